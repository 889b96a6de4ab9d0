#include "cli/last_words.h"

#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

#include "base/buffer.h"
#include "base/cleanup.h"

static const int ending_signals[] = {SIGINT, SIGTERM, SIGHUP};

/* A signal handler is told of nothing else. */
static struct {
    char text[LAST_WORDS_MAX];
    size_t len;
} last;

static void on_ending_signal(int number)
{
    (void)!write(STDERR_FILENO, last.text, last.len);
    (void)raise(number); /* its action is the default again (SA_RESETHAND) */
}

bool last_words_begin(const struct cli *cli, const char *format, ...)
{
    struct sigaction action = {.sa_handler = on_ending_signal, .sa_flags = (int)SA_RESETHAND};
    struct sigaction before;
    _cleanup_buffer_ struct buffer line = {0};
    va_list args;
    va_start(args, format);
    int r = cli_error_line(cli, &line, format, args);
    va_end(args);
    last.len = line.len < sizeof last.text ? line.len : sizeof last.text;
    if (r < 0 || last.len == 0)
        return false;
    memcpy(last.text, line.data, last.len);
    last.text[last.len - 1] = '\n';
    (void)sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < ARRAY_SIZE(ending_signals); i++)
        if (sigaction(ending_signals[i], NULL, &before) == 0 && before.sa_handler == SIG_DFL)
            (void)sigaction(ending_signals[i], &action, NULL);
    return true;
}

void last_words_end(const bool *begun)
{
    struct sigaction now;
    for (size_t i = 0; *begun && i < ARRAY_SIZE(ending_signals); i++)
        if (sigaction(ending_signals[i], NULL, &now) == 0 && now.sa_handler == on_ending_signal)
            (void)signal(ending_signals[i], SIG_DFL);
}

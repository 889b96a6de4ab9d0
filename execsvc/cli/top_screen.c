#include "cli/top_screen.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include "base/buffer.h"
#include "base/file.h"

#define ENTER "\033[?1049h\033[?25l" /* another screen, no cursor */
#define LEAVE "\033[m\033[?25h\033[?1049l"

#define COLUMNS_MAX 1000 /* a terminal may claim anything */
#define ROWS_MAX 1000
#define ESCAPE_MS 25 /* what comes so soon after an ESC belongs to it */

struct top_screen {
    struct termios before;
    struct sigaction actions[NSIG];
    bool colour;
};

static const int handled[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGWINCH};

/* Where signals go; a handler is told of nothing else. */
static int signal_pipe[2] = {-1, -1};

static void on_signal(int number)
{
    int saved = errno;
    const uint8_t byte = (uint8_t)number;
    (void)!write(signal_pipe[1], &byte, 1);
    errno = saved;
}

bool top_screen_possible(void)
{
    const char *term = getenv("TERM");
    return isatty(STDOUT_FILENO) && isatty(STDIN_FILENO) && term && term[0] &&
           strcmp(term, "dumb") != 0;
}

static void enter(struct top_screen *s)
{
    struct termios raw = s->before;
    raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
    raw.c_cc[VMIN] = 1;
    raw.c_cc[VTIME] = 0;
    (void)tcsetattr(STDIN_FILENO, TCSADRAIN, &raw);
    (void)file_write_all(STDOUT_FILENO, ENTER, strlen(ENTER));
}

static void leave(const struct top_screen *s)
{
    (void)file_write_all(STDOUT_FILENO, LEAVE, strlen(LEAVE));
    (void)tcsetattr(STDIN_FILENO, TCSADRAIN, &s->before);
}

int top_screen_open(struct top_screen **ret)
{
    struct sigaction action = {.sa_handler = on_signal};
    const char *no_colour = getenv("NO_COLOR");
    struct top_screen *s = calloc(1, sizeof *s);
    if (!s)
        return -ENOMEM;
    s->colour = !no_colour || !no_colour[0];
    if (tcgetattr(STDIN_FILENO, &s->before) < 0 || pipe2(signal_pipe, O_CLOEXEC | O_NONBLOCK) < 0) {
        int error = errno;
        free(s);
        return -error;
    }
    (void)sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < ARRAY_SIZE(handled); i++)
        (void)sigaction(handled[i], &action, &s->actions[handled[i]]);
    enter(s);
    *ret = s;
    return 0;
}

static void give_back(struct top_screen *s)
{
    leave(s);
    for (size_t i = 0; i < ARRAY_SIZE(handled); i++)
        (void)sigaction(handled[i], &s->actions[handled[i]], NULL);
}

void top_screen_close(struct top_screen *s)
{
    if (!s)
        return;
    give_back(s);
    close_fd(&signal_pipe[0]);
    close_fd(&signal_pipe[1]);
    free(s);
}

void top_screen_size(const struct top_screen *s, size_t *ret_columns, size_t *ret_rows)
{
    struct winsize size = {0};
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) < 0 || !size.ws_col || !size.ws_row)
        size = (struct winsize){.ws_col = 80, .ws_row = 24};
    *ret_columns = size.ws_col < COLUMNS_MAX ? size.ws_col : COLUMNS_MAX;
    *ret_rows = size.ws_row < ROWS_MAX ? size.ws_row : ROWS_MAX;
}

/* --- drawing ------------------------------------------------------------------------------- */

/* Bold and reverse are no colours. */
static const char *attribute_start(const struct top_screen *s, enum top_attribute attribute)
{
    switch (attribute) {
    case TOP_PLAIN:
        break;
    case TOP_HEAD:
        return "\033[1m";
    case TOP_TITLE:
        return "\033[7m";
    case TOP_GOOD:
        return s->colour ? "\033[32m" : "\033[1m";
    case TOP_WARNING:
        return s->colour ? "\033[33m" : "";
    case TOP_BAD:
        return s->colour ? "\033[31m" : "\033[1m";
    }
    return "";
}

static int append_line(const struct top_screen *s, struct buffer *b, const char *text,
                       enum top_attribute attribute)
{
    /* The rest of the line is erased before anything is in it: behind a last column it would take
     * that away. */
    return buffer_printf(b, "\033[m\033[K%s%s\033[m", attribute_start(s, attribute), text);
}

void top_screen_draw(struct top_screen *s, const struct top_page *page, const char *help)
{
    size_t columns, rows;
    _cleanup_buffer_ struct buffer b = {0};
    top_screen_size(s, &columns, &rows);
    size_t shown = help && rows > 1 ? rows - 1 : rows;
    int r = buffer_printf(&b, "\033[H");
    for (size_t i = 0; i < shown; i++) {
        bool there = i < page->count;
        r |= append_line(s, &b, there ? page->lines[i].text : "",
                         there ? page->lines[i].attribute : TOP_PLAIN);
        if (i + 1 < rows)
            r |= buffer_printf(&b, "\r\n");
    }
    if (shown < rows) {
        char line[COLUMNS_MAX + 1];
        (void)snprintf(line, columns + 1 < sizeof line ? columns + 1 : sizeof line, "%s", help);
        r |= append_line(s, &b, line, TOP_HEAD);
    }
    if (r == 0)
        (void)file_write_all(STDOUT_FILENO, b.data, b.len);
}

/* --- waiting --------------------------------------------------------------------------------- */

/* Another key may be on its way: an arrow is three bytes. */
static int read_byte(int timeout_ms)
{
    uint8_t byte;
    struct pollfd p = {.fd = STDIN_FILENO, .events = POLLIN};
    if (timeout_ms >= 0 && poll(&p, 1, timeout_ms) <= 0)
        return -1;
    return read(STDIN_FILENO, &byte, 1) == 1 ? byte : -1;
}

static int read_key(void)
{
    int key = read_byte(-1);
    if (key < 0)
        return TOP_EVENT_END;
    if (key != '\033')
        return key;
    int second = read_byte(ESCAPE_MS);
    if (second != '[' && second != 'O')
        return second < 0 ? '\033' : TOP_EVENT_NONE;
    int last = read_byte(ESCAPE_MS), number = 0;
    for (; last >= 0 && (last < '@' || last > '~'); last = read_byte(ESCAPE_MS))
        number = last >= '0' && last <= '9' ? last - '0' : number;
    return last == 'A'                  ? TOP_EVENT_UP
           : last == 'B'                ? TOP_EVENT_DOWN
           : last == '~' && number == 5 ? TOP_EVENT_PAGE_UP
           : last == '~' && number == 6 ? TOP_EVENT_PAGE_DOWN
                                        : TOP_EVENT_NONE;
}

static int take_signal(struct top_screen *s)
{
    uint8_t number;
    if (read(signal_pipe[0], &number, 1) != 1)
        return TOP_EVENT_NONE;
    if (number == SIGWINCH)
        return TOP_EVENT_RESIZED;
    if (number == SIGTSTP) {
        leave(s);
        (void)raise(SIGSTOP);
        enter(s);
        return TOP_EVENT_RESIZED;
    }
    give_back(s);
    (void)signal(number, SIG_DFL);
    (void)raise(number);
    return TOP_EVENT_END;
}

int top_screen_wait(struct top_screen *s, int fd, int timeout_ms)
{
    struct pollfd p[] = {{.fd = signal_pipe[0], .events = POLLIN},
                         {.fd = STDIN_FILENO, .events = POLLIN},
                         {.fd = fd, .events = POLLIN}};
    int n = poll(p, ARRAY_SIZE(p), timeout_ms);
    if (n < 0 && errno != EINTR)
        return TOP_EVENT_END;
    if (n < 0 || p[0].revents) /* of what interrupted it there is a byte by now */
        return take_signal(s);
    if (p[1].revents)
        return read_key();
    return p[2].revents ? TOP_EVENT_WAKE : TOP_EVENT_NONE;
}

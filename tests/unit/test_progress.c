/* The line that says how far something is, on pseudo-terminals whose screen is one line here. */
#include "unit.h"

#include <errno.h>
#include <fcntl.h>
#include <pty.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/units.h"
#include "terminal/progress.h"

struct scene {
    pid_t pid;
    int fd;
    char text[16384]; /* all that it wrote */
    size_t len;
    int status;
};

static void wait_ms(unsigned ms)
{
    (void)usleep(ms * 1000);
}

/* What is in the line after all of text, with a terminal that knows CR, NL and "erase to the end".
 * *ret_widest: the longest that it ever was. */
static void show(const char *text, size_t len, char *line, size_t *ret_widest)
{
    size_t column = 0, filled = 0;
    *ret_widest = 0;
    for (size_t i = 0; i < len; i++) {
        if (text[i] == '\r') {
            column = 0;
        } else if (text[i] == '\n') {
            column = filled = 0;
        } else if (strncmp(text + i, "\033[K", 3) == 0) {
            filled = column;
            i += 2;
        } else {
            line[column++] = text[i];
            filled = column > filled ? column : filled;
            *ret_widest = filled > *ret_widest ? filled : *ret_widest;
        }
    }
    while (filled > 0 && line[filled - 1] == ' ')
        filled--;
    line[filled] = '\0';
}

static void begin(struct scene *s, unsigned columns, const char *term, void (*run)(void))
{
    struct winsize size = {.ws_row = 24, .ws_col = (unsigned short)columns};
    *s = (struct scene){0};
    s->pid = forkpty(&s->fd, NULL, NULL, &size);
    assert_true(s->pid >= 0);
    if (s->pid == 0) {
        (void)setenv("TERM", term, 1);
        run();
        _exit(7);
    }
}

static void end(struct scene *s)
{
    for (;;) {
        ssize_t n = read(s->fd, s->text + s->len, sizeof s->text - 1 - s->len);
        if (n <= 0)
            break;
        s->len += (size_t)n;
    }
    (void)close(s->fd);
    assert_int_equal(waitpid(s->pid, &s->status, 0), s->pid);
}

/* --- scenes -------------------------------------------------------------------------------- */

static void run_bytes(void)
{
    struct progress *p = progress_start("demo", 60 << 20, PROGRESS_BYTES);
    for (int i = 0; i < 30; i++) {
        progress_add(p, 1 << 20);
        wait_ms(50);
    }
    progress_end(p);
}

static void run_steps(void)
{
    struct progress *p = progress_start("a\033[31mb", 5, PROGRESS_STEPS);
    progress_step(p, "pulling\r\nthe image");
    progress_step(p, "starting it");
    wait_ms(1400);
    progress_end(p);
}

static void run_quick(void)
{
    struct progress *p = progress_start("demo", 0, PROGRESS_BYTES);
    progress_add(p, 5);
    progress_step(p, "what");
    wait_ms(500);
    progress_end(p);
}

static void run_interrupted(void)
{
    struct progress *p = progress_start("demo", 0, PROGRESS_FILES);
    progress_add(p, 12);
    wait_ms(1500);
    (void)raise(SIGINT);
    progress_end(p);
}

static void run_message(void)
{
    struct progress *p = progress_start("demo", 0, PROGRESS_BYTES);
    progress_add(p, 5);
    wait_ms(1300);
    progress_hide();
    (void)fprintf(stderr, "a message\n");
    wait_ms(500);
    progress_end(p);
}

static void run_second(void)
{
    struct progress *p = progress_start("first", 0, PROGRESS_BYTES);
    struct progress *q = progress_start("second", 0, PROGRESS_BYTES);
    wait_ms(1300);
    progress_end(q);
    progress_end(p);
    _exit(p && !q ? 7 : 8);
}

static void assert_clean(const struct scene *s)
{
    char line[16384];
    size_t widest;
    show(s->text, s->len, line, &widest);
    assert_string_equal(line, "");
    assert_true(WIFEXITED(s->status) && WEXITSTATUS(s->status) == 7);
}

/* All at once, since each takes longer than a second. */
static void test_scenes(void **state)
{
    static struct scene bytes, narrow, dumb, steps, quick, interrupted, message, second;
    char line[16384];
    size_t widest;
    begin(&bytes, 80, "xterm", run_bytes);
    begin(&narrow, 20, "xterm", run_bytes);
    begin(&dumb, 40, "dumb", run_bytes);
    begin(&steps, 80, "xterm", run_steps);
    begin(&quick, 80, "xterm", run_quick);
    begin(&interrupted, 80, "xterm", run_interrupted);
    begin(&message, 80, "xterm", run_message);
    begin(&second, 80, "xterm", run_second);
    struct scene *all[] = {&bytes, &narrow, &dumb, &steps, &quick, &interrupted, &message, &second};
    for (size_t i = 0; i < ARRAY_SIZE(all); i++)
        end(all[i]);

    assert_clean(&bytes);
    assert_non_null(strstr(bytes.text, "demo: 2"));
    assert_non_null(strstr(bytes.text, " MiB of 60.0 MiB, "));
    assert_non_null(strstr(bytes.text, " %, "));
    assert_non_null(strstr(bytes.text, " MiB/s, "));
    assert_non_null(strstr(bytes.text, " s left"));
    assert_clean(&narrow);
    show(narrow.text, narrow.len, line, &widest);
    assert_true(widest > 4 && widest < 20);
    assert_non_null(strstr(narrow.text, "demo"));
    assert_null(strstr(narrow.text, "left"));
    assert_clean(&dumb);
    assert_null(strchr(dumb.text, '\033'));
    show(dumb.text, dumb.len, line, &widest);
    assert_true(widest < 40);
    assert_clean(&steps);
    assert_non_null(strstr(steps.text, "a\\x1b[31mb: step 2 of 5: starting it, 1 s"));
    assert_null(strstr(steps.text, "pulling"));
    assert_clean(&quick);
    assert_int_equal(quick.len, 0);
    show(interrupted.text, interrupted.len, line, &widest);
    assert_non_null(strstr(interrupted.text, "demo: 12 files, "));
    assert_string_equal(line, "");
    assert_true(WIFSIGNALED(interrupted.status) && WTERMSIG(interrupted.status) == SIGINT);
    assert_clean(&message);
    assert_non_null(strstr(message.text, "\r\033[Ka message\r\n\r\033[Kdemo: 5 B, "));
    assert_clean(&second);
    assert_non_null(strstr(second.text, "first, 1 s"));
    assert_null(strstr(second.text, "second"));
}

static void test_nothing_in_a_pipe(void **state)
{
    int pipe_fds[2];
    char text[16];
    assert_int_equal(pipe2(pipe_fds, O_CLOEXEC), 0);
    pid_t pid = fork();
    if (pid == 0) {
        (void)dup2(pipe_fds[1], STDERR_FILENO);
        struct progress *p = progress_start("demo", 5, PROGRESS_BYTES);
        progress_add(p, 3);
        progress_set(p, 4, 5);
        progress_step(p, "x");
        wait_ms(1300);
        progress_hide();
        progress_end(p);
        _exit(p ? 1 : 0);
    }
    int status;
    (void)close(pipe_fds[1]);
    assert_int_equal(read(pipe_fds[0], text, sizeof text), 0);
    (void)close(pipe_fds[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

static void test_sizes(void **state)
{
    char text[UNITS_SIZE_TEXT];
    assert_string_equal(units_size_text(0, text), "0 B");
    assert_string_equal(units_size_text(1023, text), "1023 B");
    assert_string_equal(units_size_text(1024, text), "1.0 KiB");
    assert_string_equal(units_size_text(1048575, text), "1.0 MiB");
    assert_string_equal(units_size_text(UINT64_MAX, text), "16.0 EiB");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scenes),
        cmocka_unit_test(test_nothing_in_a_pipe),
        cmocka_unit_test(test_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

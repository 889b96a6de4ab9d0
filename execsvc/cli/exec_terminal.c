#include "cli/exec_terminal.h"

#include <sys/ioctl.h>

#include "base/cleanup.h"

bool exec_terminal_size(uint32_t *ret_rows, uint32_t *ret_columns)
{
    for (int fd = 0; fd <= 2; fd++) {
        struct winsize size;
        if (ioctl(fd, TIOCGWINSZ, &size) < 0)
            continue;
        *ret_rows = size.ws_row;
        *ret_columns = size.ws_col;
        return true;
    }
    return false;
}

int exec_terminal_enter(struct exec_terminal *t)
{
    if (t->fd < 0 || t->raw)
        return 0;
    if (tcgetattr(t->fd, &t->saved) < 0)
        return -errno;
    struct termios raw = t->saved;
    cfmakeraw(&raw);
    /* NOW: waiting for output to drain would hang on a stopped terminal. */
    if (tcsetattr(t->fd, TCSANOW, &raw) < 0)
        return -errno;
    t->raw = true;
    return 0;
}

void exec_terminal_leave(struct exec_terminal *t)
{
    if (!t->raw)
        return;
    (void)tcsetattr(t->fd, TCSANOW, &t->saved);
    t->raw = false;
}

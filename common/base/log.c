#include "base/log.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char *log_program = "berth";
static enum log_level log_threshold = LOG_LEVEL_INFO;

void log_setup(const char *program, enum log_level level)
{
    log_program = program;
    log_threshold = level;
}

enum log_level log_level_get(void)
{
    return log_threshold;
}

void log_write(enum log_level level, const char *format, ...)
{
    static const char *const names[] = {"error: ", "warning: ", "", "debug: "};
    if (level > log_threshold)
        return;
    /* One write per line, so that lines of several threads or processes never mix. */
    char line[2048];
    int n = snprintf(line, sizeof line, "%s: %s", log_program, names[level]);
    va_list args;
    va_start(args, format);
    int m = vsnprintf(line + n, sizeof line - (size_t)n - 1, format, args);
    va_end(args);
    if (m < 0)
        return;
    size_t len = strnlen(line, sizeof line - 2);
    line[len++] = '\n';
    ssize_t ignored = write(STDERR_FILENO, line, len);
    (void)ignored;
}

const char *log_escape(const void *data, size_t len, char *out, size_t size)
{
    static const char digits[] = "0123456789abcdef";
    const uint8_t *bytes = data;
    size_t used = 0;
    for (size_t i = 0; i < len; i++) {
        uint8_t c = bytes[i];
        size_t need = c >= 0x20 && c < 0x7f && c != '\\' ? 1 : 4;
        if (used + need + 4 > size) { /* room for "..." and the NUL */
            memcpy(out + used, "...", 3);
            used += 3;
            break;
        }
        if (need == 1) {
            out[used++] = (char)c;
        } else {
            out[used++] = '\\';
            out[used++] = 'x';
            out[used++] = digits[c >> 4];
            out[used++] = digits[c & 15];
        }
    }
    out[used] = '\0';
    return out;
}

const char *log_level_name(enum log_level level)
{
    switch (level) {
    case LOG_LEVEL_ERROR:
        return "error";
    case LOG_LEVEL_WARNING:
        return "warning";
    case LOG_LEVEL_INFO:
        return "info";
    case LOG_LEVEL_DEBUG:
        return "debug";
    }
    return "info";
}

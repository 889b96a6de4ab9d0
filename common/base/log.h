/* Lines for the operator, on standard error: "berthd: warning: text". Each failure is
 * logged once, where it is handled, not where it is passed on. Bytes that came from a peer
 * must be escaped first (log_escape). Safe from any thread. */
#pragma once

#include <stddef.h>

enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_WARNING, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG };

/* program must outlive the process's use of the log. Default: "berth", LOG_LEVEL_INFO. */
void log_setup(const char *program, enum log_level level);
enum log_level log_level_get(void);

/* As on the command line: "error" … */
const char *log_level_name(enum log_level level);

void log_write(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#define log_error(...) log_write(LOG_LEVEL_ERROR, __VA_ARGS__)
#define log_warning(...) log_write(LOG_LEVEL_WARNING, __VA_ARGS__)
#define log_info(...) log_write(LOG_LEVEL_INFO, __VA_ARGS__)
#define log_debug(...) log_write(LOG_LEVEL_DEBUG, __VA_ARGS__)

/* Writes data into out (at most size bytes with the NUL) with everything but printable
 * ASCII as \xNN; cut with "..." if too long. Returns out. Stops terminal injection and
 * forged log lines by a peer that chooses names. */
const char *log_escape(const void *data, size_t len, char *out, size_t size);

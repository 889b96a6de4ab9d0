/* Why something failed, for a person: an errno and a sentence that says what to do.
 * Functions that fail in ways a user must read take a `struct failure *` last (never NULL)
 * and fill it when, and only when, they return a negative errno. */
#pragma once

#include <stdarg.h>
#include <stdio.h>

#define FAILURE_TEXT_MAX 768

struct failure {
    int error; /* negative errno */
    char text[FAILURE_TEXT_MAX];
};

/* Fills *f and returns `error` (negative), so that callers can `return failure_set(…)`. */
__attribute__((format(printf, 3, 4))) static inline int failure_set(struct failure *f, int error,
                                                                    const char *format, ...)
{
    va_list args;
    va_start(args, format);
    f->error = error;
    (void)vsnprintf(f->text, sizeof f->text, format, args);
    va_end(args);
    return error;
}

/* Scope-bound ownership. A variable marked with one of these attributes releases what it
 * holds when it leaves scope; take_fd() and take_ptr() pass ownership on and leave the
 * variable empty. */
#pragma once

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#define _cleanup_(f) __attribute__((cleanup(f)))

/* Closes *fd if it is >= 0 and sets it to -1. Keeps errno. */
static inline void close_fd(int *fd)
{
    if (*fd >= 0) {
        int saved = errno;
        (void)close(*fd);
        errno = saved;
    }
    *fd = -1;
}
#define _cleanup_close_ _cleanup_(close_fd)

static inline void free_pointer(void *pointer_to_pointer)
{
    free(*(void **)pointer_to_pointer);
}
#define _cleanup_free_ _cleanup_(free_pointer)

static inline int take_fd(int *fd)
{
    int taken = *fd;
    *fd = -1;
    return taken;
}

#define take_ptr(pointer)               \
    ({                                  \
        __auto_type taken_ = (pointer); \
        (pointer) = NULL;               \
        taken_;                         \
    })

/* Defines free_NAME(TYPE **) for use with _cleanup_, from a function that takes TYPE *. */
#define DEFINE_CLEANUP(type, function)                   \
    static inline void function##_pointer(type *pointer) \
    {                                                    \
        if (*pointer)                                    \
            (function)(*pointer);                        \
        *pointer = NULL;                                 \
    }                                                    \
    struct cleanup_semicolon_

#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))

/* A NULL-terminated array of owned C strings, as execve takes it. {0} is a valid empty one
 * (items is then NULL). */
#pragma once

#include <stddef.h>

#include "base/bytes.h"
#include "base/cleanup.h"

struct strings {
    char **items;
    size_t count;
    size_t allocated;
};

/* Appends a copy of text. -EINVAL when it holds a NUL byte, -ENOMEM; unchanged then. */
int strings_append(struct strings *s, struct bytes text);

/* Appends "first" "separator" "second". Errors as strings_append. */
int strings_append_joined(struct strings *s, struct bytes first, char separator,
                          struct bytes second);

/* Frees everything and leaves {0}. */
void strings_release(struct strings *s);
#define _cleanup_strings_ _cleanup_(strings_release)

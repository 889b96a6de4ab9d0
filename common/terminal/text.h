/* Text from others (thread IDs, file names, answers of a service) on its way to a terminal. */
#pragma once

#include "base/buffer.h"

enum text_form {
    TEXT_SENTENCE, /* a message of ours that may hold such bytes */
    TEXT_VALUE,    /* the bytes themselves: '\' is doubled, so the form is reversible */
};

/* Appends data with everything that could move the cursor, change the terminal or reorder or
 * hide other text as \xNN: control characters, bidirectional and invisible ones, bytes that
 * are not UTF-8, and, unless the locale's encoding is UTF-8, all that is not ASCII. -ENOMEM. */
int text_escape(struct buffer *b, struct bytes data, enum text_form form);

/* Appends data in lower-case hexadecimal. -ENOMEM. */
int text_hex(struct buffer *b, struct bytes data);

/* Columns that escaped text takes on a terminal. */
size_t text_width(struct bytes text);

/* How many bytes of escaped text fit into so many columns, without cutting a character. */
size_t text_fit(struct bytes text, size_t columns);

/* True when data is valid UTF-8 (no surrogates, no over-long forms). */
bool text_is_utf8(struct bytes data);

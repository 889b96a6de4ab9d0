/* Messages made from the table, for tests and for the seeds of the fuzzers. */
#pragma once

#include "wire/wire.h"

enum sample_kind {
    SAMPLE_LEAST,    /* numbers 0, fields and lists as short as allowed */
    SAMPLE_GREATEST, /* numbers all ones, fields and lists as long as allowed */
    SAMPLE_MANY,     /* lists with as many elements as allowed */
    SAMPLE_TYPICAL,  /* short, all fields different */
    SAMPLE_KINDS,
};

struct sample {
    struct wire_message message; /* views point into storage */
    struct buffer storage[32];   /* one per field */
};

/* Aborts the program without memory. */
void sample_make(const struct wire_row *row, enum sample_kind kind, struct sample *ret);
void sample_release(struct sample *s);

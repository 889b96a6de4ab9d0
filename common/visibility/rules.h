/* The compiled rules of one source, as visibility.c uses them. */
#pragma once

#include "visibility/pattern.h"
#include "visibility/visibility.h"

struct rule {
    uint8_t visibility;
    bool directory;
};

struct visibility_rules {
    unsigned refs; /* atomic */
    uint8_t *text;
    size_t text_len;
    struct rule *rules;
    size_t count;
    bool hide;
    struct pattern_space space;
    uint32_t *names; /* segments of the rules for a name at any level, in their order */
    size_t name_count;
    uint32_t *starts; /* first segments of all others */
    size_t start_count;
};

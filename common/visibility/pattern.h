/* One gitignore pattern as components, and names matched to one component. */
#pragma once

#include "base/buffer.h"
#include "base/bytes.h"

enum segment_kind {
    SEGMENT_LITERAL,
    SEGMENT_GLOB,
    SEGMENT_ANY_DEPTH,  /* `**` before a slash: any number of directories, or none */
    SEGMENT_SOME_DEPTH, /* `**` at the end, or before an escaped slash: at least one */
};

/* A component of a pattern. */
struct segment {
    uint8_t kind;
    bool last; /* of its pattern */
    uint16_t rule;
    uint32_t tokens; /* index of the first */
    uint16_t count;
};

/* What all patterns of a set share; {0} is empty. */
struct pattern_space {
    struct buffer segments; /* struct segment */
    struct buffer tokens;   /* uint16_t */
    struct buffer sets;     /* 32 bytes each: a bit for each byte that matches */
};
void pattern_space_release(struct pattern_space *space);

static inline const struct segment *pattern_segments(const struct pattern_space *space)
{
    return (const struct segment *)(const void *)space->segments.data;
}

static inline size_t pattern_segment_count(const struct pattern_space *space)
{
    return space->segments.len / sizeof(struct segment);
}

struct pattern {
    bool directory; /* matches directories alone */
    bool by_name;   /* has one segment, for a name at any level */
    uint32_t first; /* segment */
};

/* Compiles a pattern without its '!' as rule number `rule`. 1; 0: it never matches anything,
 * and space is unchanged; -ENOMEM; -E2BIG: more than max_segments in all. */
int pattern_compile(struct pattern_space *space, struct bytes text, uint16_t rule,
                    size_t max_segments, struct pattern *ret);

/* True when a name (no slash, not empty) matches. SEGMENT_…_DEPTH match every name. Takes at most
 * the product of the two lengths in steps. */
bool segment_matches(const struct pattern_space *space, const struct segment *segment,
                     struct bytes name);

#include "visibility/visibility.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "visibility/rules.h"

/* An element of visibility_state.live: which source's, and which of its segments. */
#define LIVE_SOURCE_SHIFT 14
#define LIVE_SEGMENT ((1U << LIVE_SOURCE_SHIFT) - 1)

_Static_assert(VISIBILITY_SEGMENTS_MAX <= LIVE_SEGMENT + 1, "segments have numbers");
_Static_assert(VISIBILITY_SOURCES <= 4, "sources have numbers");
/* A text has no more sets, of at least three bytes each, than a token can number. */
_Static_assert(VISIBILITY_TEXT_MAX / 3 <= 1 << 14, "sets have numbers");

#define WORD_BITS 64
#define WORDS (VISIBILITY_SEGMENTS_MAX / WORD_BITS)

/* Segments that a next name may match, of one source. */
struct live_set {
    uint64_t words[WORDS];
};

const char *visibility_name(enum visibility v)
{
    switch (v) {
    case VISIBILITY_SHOW:
        return "show";
    case VISIBILITY_UNLISTED:
        return "unlisted";
    case VISIBILITY_HIDDEN:
        return "hidden";
    }
    return NULL;
}

/* --- states ------------------------------------------------------------------------- */

static const struct segment *segment_at(const struct visibility_rules *rules, size_t i)
{
    return pattern_segments(&rules->space) + i;
}

/* A name may match segment i next; `**` may also match nothing, and what follows it be next. */
static void live_add(struct live_set *set, const struct visibility_rules *rules, size_t i)
{
    for (;; i++) {
        set->words[i / WORD_BITS] |= UINT64_C(1) << (i % WORD_BITS);
        if (segment_at(rules, i)->kind != SEGMENT_ANY_DEPTH)
            return;
    }
}

/* What may come next after a name that was next at segment i. */
static void live_step(struct live_set *set, const struct visibility_rules *rules, size_t i,
                      struct bytes name)
{
    const struct segment *segment = segment_at(rules, i);
    switch ((enum segment_kind)segment->kind) {
    case SEGMENT_ANY_DEPTH:
        live_add(set, rules, i);
        return;
    case SEGMENT_SOME_DEPTH:
        live_add(set, rules, i);
        if (!segment->last)
            live_add(set, rules, i + 1);
        return;
    case SEGMENT_LITERAL:
    case SEGMENT_GLOB:
        if (!segment->last && segment_matches(&rules->space, segment, name))
            live_add(set, rules, i + 1);
        return;
    }
}

static int append_live(struct visibility_state *state, const struct live_set *set, unsigned source)
{
    size_t count = 0;
    for (size_t w = 0; w < WORDS; w++)
        count += (size_t)__builtin_popcountll(set->words[w]);
    if (count == 0)
        return 0;
    uint16_t *live = realloc(state->live, (state->count + count) * sizeof *live);
    if (!live)
        return -ENOMEM;
    state->live = live;
    for (size_t w = 0; w < WORDS; w++)
        for (uint64_t word = set->words[w]; word; word &= word - 1)
            live[state->count++] = (uint16_t)(source << LIVE_SOURCE_SHIFT |
                                              (w * WORD_BITS + (unsigned)__builtin_ctzll(word)));
    return 0;
}

int visibility_state_root(const struct visibility_view *view, struct visibility_state *ret)
{
    struct visibility_state state = {.own = VISIBILITY_SHOW, .root = true};
    for (unsigned s = 0; s < VISIBILITY_SOURCES; s++) {
        const struct visibility_rules *rules = view->sources[s];
        if (!rules || rules->start_count == 0)
            continue;
        struct live_set set = {0};
        for (size_t i = 0; i < rules->start_count; i++)
            live_add(&set, rules, rules->starts[i]);
        int r = append_live(&state, &set, s);
        if (r < 0) {
            visibility_state_release(&state);
            return r;
        }
    }
    *ret = state;
    return 0;
}

int visibility_state_enter(const struct visibility_view *view, const struct visibility_state *dir,
                           struct bytes name, struct visibility_state *ret)
{
    struct visibility_state state = {.own = visibility_of(view, dir, name, true)};
    /* All below what is hidden is hidden. */
    size_t at = state.own == VISIBILITY_HIDDEN ? dir->count : 0;
    while (at < dir->count) {
        unsigned source = dir->live[at] >> LIVE_SOURCE_SHIFT;
        const struct visibility_rules *rules = view->sources[source];
        struct live_set set = {0};
        for (; at < dir->count && dir->live[at] >> LIVE_SOURCE_SHIFT == source; at++)
            live_step(&set, rules, dir->live[at] & LIVE_SEGMENT, name);
        int r = append_live(&state, &set, source);
        if (r < 0) {
            visibility_state_release(&state);
            return r;
        }
    }
    *ret = state;
    return 0;
}

int visibility_state_copy(const struct visibility_state *state, struct visibility_state *ret)
{
    struct visibility_state copy = *state;
    if (state->count) {
        copy.live = malloc(state->count * sizeof *copy.live);
        if (!copy.live)
            return -ENOMEM;
        memcpy(copy.live, state->live, state->count * sizeof *copy.live);
    }
    *ret = copy;
    return 0;
}

void visibility_state_release(struct visibility_state *state)
{
    free(state->live);
    *state = (struct visibility_state){0};
}

/* --- one name ------------------------------------------------------------------------- */

static bool decides(const struct visibility_rules *rules, const struct segment *segment,
                    struct bytes name, bool directory)
{
    return (directory || !rules->rules[segment->rule].directory) &&
           segment_matches(&rules->space, segment, name);
}

/* The last rule of a source that matches, or -1. */
static int last_match(const struct visibility_rules *rules, unsigned source,
                      const struct visibility_state *dir, struct bytes name, bool directory)
{
    int last = -1;
    for (size_t i = 0; i < dir->count; i++) {
        if (dir->live[i] >> LIVE_SOURCE_SHIFT != source)
            continue;
        const struct segment *segment = segment_at(rules, dir->live[i] & LIVE_SEGMENT);
        if (segment->last && segment->rule > last && decides(rules, segment, name, directory))
            last = segment->rule;
    }
    for (size_t i = rules->name_count; i > 0; i--) {
        const struct segment *segment = segment_at(rules, rules->names[i - 1]);
        if (segment->rule < last)
            break;
        if (decides(rules, segment, name, directory))
            return segment->rule;
    }
    return last;
}

enum visibility visibility_of(const struct visibility_view *view,
                              const struct visibility_state *dir, struct bytes name, bool directory)
{
    if (dir->own == VISIBILITY_HIDDEN ||
        (dir->root && bytes_equal(name, bytes_of_string(VISIBILITY_RESERVED_NAME))))
        return VISIBILITY_HIDDEN;
    for (unsigned s = VISIBILITY_SOURCES; s > 0; s--) {
        const struct visibility_rules *rules = view->sources[s - 1];
        int rule = rules ? last_match(rules, s - 1, dir, name, directory) : -1;
        if (rule < 0)
            continue;
        enum visibility found = rules->rules[rule].visibility;
        return found > dir->own ? found : dir->own;
    }
    return dir->own;
}

bool visibility_listed(const struct visibility_state *dir, enum visibility entry)
{
    return entry == VISIBILITY_SHOW ||
           (entry == VISIBILITY_UNLISTED && dir->own == VISIBILITY_UNLISTED);
}

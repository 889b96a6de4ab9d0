#include "visibility/pattern.h"

#include <string.h>

/* A token is a kind and, below it, a byte or the number of a set. */
#define TOKEN_BYTE 0x0000
#define TOKEN_ANY 0x4000
#define TOKEN_STAR 0x8000
#define TOKEN_SET 0xc000
#define TOKEN_KIND 0xc000
#define TOKEN_VALUE 0x3fff

#define SET_SIZE 32 /* bytes */

void pattern_space_release(struct pattern_space *space)
{
    buffer_release(&space->segments);
    buffer_release(&space->tokens);
    buffer_release(&space->sets);
}

/* --- sets of bytes ------------------------------------------------------------- */

struct set {
    uint8_t bits[SET_SIZE];
};

static void set_add(struct set *set, unsigned from, unsigned to)
{
    for (unsigned c = from; c <= to; c++)
        set->bits[c / 8] |= (uint8_t)(1U << (c % 8));
}

static bool set_has(const uint8_t *bits, uint8_t c)
{
    return bits[c / 8] >> (c % 8) & 1;
}

struct class_range {
    uint8_t from, to;
};

/* As git has them, whatever the locale: in [:space:] are neither \v nor \f. */
static const struct {
    const char *name;
    struct class_range ranges[4]; /* to 0: none */
} classes[] = {
    {"alnum", {{'0', '9'}, {'A', 'Z'}, {'a', 'z'}}},
    {"alpha", {{'A', 'Z'}, {'a', 'z'}}},
    {"blank", {{' ', ' '}, {'\t', '\t'}}},
    {"cntrl", {{0, 0x1f}, {0x7f, 0x7f}}},
    {"digit", {{'0', '9'}}},
    {"graph", {{0x21, 0x7e}}},
    {"lower", {{'a', 'z'}}},
    {"print", {{0x20, 0x7e}}},
    {"punct", {{'!', '/'}, {':', '@'}, {'[', '`'}, {'{', '~'}}},
    {"space", {{'\t', '\n'}, {'\r', '\r'}, {' ', ' '}}},
    {"upper", {{'A', 'Z'}}},
    {"xdigit", {{'0', '9'}, {'A', 'F'}, {'a', 'f'}}},
};

static bool set_add_class(struct set *set, struct bytes name)
{
    for (size_t i = 0; i < sizeof classes / sizeof classes[0]; i++) {
        if (!bytes_equal(name, bytes_of_string(classes[i].name)))
            continue;
        for (size_t k = 0; k < 4 && classes[i].ranges[k].to; k++)
            set_add(set, classes[i].ranges[k].from, classes[i].ranges[k].to);
        return true;
    }
    return false;
}

/* --- reading a pattern ----------------------------------------------------------- */

struct reader {
    struct bytes text;
    size_t at;
};

/* The byte at an offset from here; 0 after the end: patterns have no NUL. */
static uint8_t peek(const struct reader *r, size_t offset)
{
    return r->at + offset < r->text.len ? r->text.data[r->at + offset] : 0;
}

/* [:name:] at the reader, which is moved to its ']'. 1; 0: it is no class, but a set's
 * ordinary characters; -1: a class that does not exist. */
static int read_class(struct reader *r, struct set *set)
{
    size_t start = r->at + 2, end = start;
    while (end < r->text.len && r->text.data[end] != ']')
        end++;
    if (end == r->text.len)
        return -1;
    if (end == start || r->text.data[end - 1] != ':')
        return 0;
    if (!set_add_class(set, bytes_of(r->text.data + start, end - 1 - start)))
        return -1;
    r->at = end;
    return 1;
}

/* One member of a set; the reader stays on its last character. *previous: where a range would
 * begin, or 0. False: not well formed. */
static bool read_member(struct reader *r, struct set *set, uint8_t *previous)
{
    uint8_t c = peek(r, 0);
    if (c == '\\') {
        r->at++;
        c = peek(r, 0);
        if (!c)
            return false;
    } else if (c == '-' && *previous && peek(r, 1) && peek(r, 1) != ']') {
        r->at++;
        c = peek(r, 0);
        if (c == '\\') {
            r->at++;
            c = peek(r, 0);
        }
        if (!c)
            return false;
        set_add(set, *previous, c); /* none when they are the wrong way round */
        *previous = 0;
        return true;
    } else if (c == '[' && peek(r, 1) == ':') {
        int found = read_class(r, set);
        if (found < 0)
            return false;
        if (found) {
            *previous = 0;
            return true;
        }
    }
    set_add(set, c, c);
    *previous = c;
    return true;
}

/* [set], with the reader behind its '[' and then behind its ']'. False: not well formed. */
static bool read_set(struct reader *r, struct set *ret)
{
    struct set set = {0};
    uint8_t previous = 0;
    bool negated = peek(r, 0) == '!' || peek(r, 0) == '^';
    if (negated)
        r->at++;
    do { /* a ']' at the start is a member */
        if (!peek(r, 0) || !read_member(r, &set, &previous))
            return false;
        r->at++;
    } while (peek(r, 0) != ']');
    r->at++;
    for (size_t i = 0; negated && i < SET_SIZE; i++)
        set.bits[i] = (uint8_t)~set.bits[i];
    *ret = set;
    return true;
}

/* --- compiling ------------------------------------------------------------------ */

struct compiler {
    struct pattern_space *space;
    struct reader reader;
    struct segment segment; /* the one that is being read */
    bool by_name;
    size_t max_segments;
};

static uint32_t token_count(const struct pattern_space *space)
{
    return (uint32_t)(space->tokens.len / sizeof(uint16_t));
}

static int add_token(struct compiler *c, unsigned token)
{
    uint16_t value = (uint16_t)token;
    int r = buffer_append(&c->space->tokens, &value, sizeof value);
    if (r < 0)
        return r;
    if ((token & TOKEN_KIND) != TOKEN_BYTE)
        c->segment.kind = SEGMENT_GLOB;
    c->segment.count++;
    return 1;
}

static int end_segment(struct compiler *c, bool last)
{
    c->segment.last = last;
    if (pattern_segment_count(c->space) >= c->max_segments)
        return -E2BIG;
    int r = buffer_append(&c->space->segments, &c->segment, sizeof c->segment);
    c->segment = (struct segment){.rule = c->segment.rule, .tokens = token_count(c->space)};
    return r < 0 ? r : 1;
}

/* A run of stars, the reader on its first. */
static int read_stars(struct compiler *c)
{
    struct reader *r = &c->reader;
    size_t n = 1;
    while (peek(r, n) == '*')
        n++;
    r->at += n;
    uint8_t next = peek(r, 0);
    bool escaped = next == '\\' && peek(r, 1) == '/';
    if (n == 1 || c->by_name || c->segment.count > 0 || (next && next != '/' && !escaped))
        return add_token(c, TOKEN_STAR);
    c->segment.kind = next == '/' ? SEGMENT_ANY_DEPTH : SEGMENT_SOME_DEPTH;
    return 1;
}

static bool is_depth(const struct segment *s)
{
    return s->kind == SEGMENT_ANY_DEPTH || s->kind == SEGMENT_SOME_DEPTH;
}

/* The next element of the pattern. 1; 0: it never matches; -ENOMEM, -E2BIG. */
static int read_element(struct compiler *c)
{
    struct reader *r = &c->reader;
    uint8_t byte = peek(r, 0);
    if (byte == '*')
        return read_stars(c);
    r->at++;
    if (byte == '?')
        return add_token(c, TOKEN_ANY);
    if (byte == '[') {
        struct set set;
        size_t number = c->space->sets.len / SET_SIZE;
        if (!read_set(r, &set))
            return 0;
        int error = buffer_append(&c->space->sets, set.bits, SET_SIZE);
        return error < 0 ? error : add_token(c, TOKEN_SET | (unsigned)number);
    }
    if (byte == '\\') {
        byte = peek(r, 0);
        r->at++;
        if (!byte)
            return 0;
    }
    if (byte == '/') /* escaped or not; no path has an empty component */
        return c->segment.count || is_depth(&c->segment) ? end_segment(c, false) : 0;
    return add_token(c, TOKEN_BYTE | byte);
}

static int compile(struct compiler *c)
{
    struct reader *r = &c->reader;
    if (peek(r, 0) == '/')
        r->at++;
    while (r->at < r->text.len) {
        int result = read_element(c);
        if (result <= 0)
            return result;
    }
    if (c->segment.count == 0 && !is_depth(&c->segment))
        return 0;
    return end_segment(c, true);
}

int pattern_compile(struct pattern_space *space, struct bytes text, uint16_t rule,
                    size_t max_segments, struct pattern *ret)
{
    const size_t segments = space->segments.len, tokens = space->tokens.len;
    const size_t sets = space->sets.len;
    struct pattern pattern = {.first = (uint32_t)pattern_segment_count(space)};
    if (text.len && text.data[text.len - 1] == '/') {
        pattern.directory = true;
        text.len--;
    }
    struct compiler c = {
        .space = space,
        .reader = {.text = text},
        .segment = {.rule = rule, .tokens = token_count(space)},
        .by_name = !text.len || !memchr(text.data, '/', text.len),
        .max_segments = max_segments,
    };
    int r = compile(&c);
    if (r <= 0) {
        space->segments.len = segments;
        space->tokens.len = tokens;
        space->sets.len = sets;
        return r;
    }
    /* A name behind `**` and a slash is that name at any level. */
    const struct segment *all = pattern_segments(space) + pattern.first;
    if (!c.by_name && pattern_segment_count(space) - pattern.first == 2 &&
        all[0].kind == SEGMENT_ANY_DEPTH && !is_depth(&all[1])) {
        pattern.first++;
        c.by_name = true;
    }
    pattern.by_name = c.by_name;
    *ret = pattern;
    return 1;
}

/* --- matching ------------------------------------------------------------------- */

static bool token_matches(const struct pattern_space *space, uint16_t token, uint8_t c)
{
    switch (token & TOKEN_KIND) {
    case TOKEN_BYTE:
        return (token & TOKEN_VALUE) == c;
    case TOKEN_ANY:
        return true;
    case TOKEN_SET:
        return set_has(space->sets.data + (size_t)(token & TOKEN_VALUE) * SET_SIZE, c);
    default:
        return false;
    }
}

/* Without recursion: when the part behind a star fits nowhere, no earlier star can help, so that
 * only the last one is ever moved. */
static bool glob_matches(const struct pattern_space *space, const uint16_t *tokens, size_t count,
                         struct bytes name)
{
    size_t t = 0, n = 0, star = SIZE_MAX, from = 0;
    while (n < name.len) {
        if (t < count && tokens[t] == TOKEN_STAR) {
            star = t++;
            from = n;
        } else if (t < count && token_matches(space, tokens[t], name.data[n])) {
            t++;
            n++;
        } else if (star != SIZE_MAX) {
            t = star + 1;
            n = ++from;
        } else {
            return false;
        }
    }
    while (t < count && tokens[t] == TOKEN_STAR)
        t++;
    return t == count;
}

bool segment_matches(const struct pattern_space *space, const struct segment *segment,
                     struct bytes name)
{
    if (is_depth(segment)) /* before there are tokens at all, perhaps */
        return true;
    const uint16_t *tokens = (const uint16_t *)(const void *)space->tokens.data + segment->tokens;
    if (segment->kind == SEGMENT_GLOB)
        return glob_matches(space, tokens, segment->count, name);
    if (segment->count != name.len)
        return false;
    for (size_t i = 0; i < name.len; i++)
        if (tokens[i] != name.data[i])
            return false;
    return true;
}

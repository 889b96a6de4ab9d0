#include "relay_count.h"

#include <stdlib.h>
#include <string.h>

#define HEAD_MAX 16384 /* an HTTP head that is longer is not one of ours */

enum parse_state { PARSE_HEAD, PARSE_HEADER, PARSE_PAYLOAD, PARSE_OPAQUE };

struct side {
    enum parse_state state;
    struct buffer head; /* PARSE_HEAD, PARSE_HEADER: what has come of it */
    struct wire_header header;
    uint64_t left; /* PARSE_PAYLOAD */
};

struct counter {
    struct count_totals *totals;
    struct side sides[DIRECTIONS];
    struct table open; /* tag -> depth + 1 */
    uint64_t depth;    /* greatest of the replies that have passed */
    uint64_t round_trips;
};

int counter_new(struct count_totals *totals, bool raw, struct counter **ret)
{
    struct counter *c = calloc(1, sizeof(*c));
    if (!c)
        return -ENOMEM;
    c->totals = totals;
    for (size_t i = 0; i < DIRECTIONS; i++)
        c->sides[i].state = raw ? PARSE_OPAQUE : PARSE_HEAD;
    *ret = c;
    return 0;
}

void counter_free(struct counter *c)
{
    if (!c)
        return;
    c->totals->round_trips_sum += c->round_trips;
    if (c->round_trips > c->totals->round_trips_max)
        c->totals->round_trips_max = c->round_trips;
    for (size_t i = 0; i < DIRECTIONS; i++)
        buffer_release(&c->sides[i].head);
    table_release(&c->open);
    free(c);
}

uint64_t counter_round_trips(const struct counter *c)
{
    return c->round_trips;
}

void counter_reset(struct counter *c)
{
    table_release(&c->open);
    c->depth = 0;
    c->round_trips = 0;
}

static size_t type_index(uint32_t type)
{
    for (size_t i = 0; i < wire_row_count(); i++)
        if (wire_row_at(i)->type == type)
            return i;
    return COUNT_TYPES_MAX - 1;
}

static void opaque(struct counter *c, bool malformed)
{
    for (size_t i = 0; i < DIRECTIONS; i++) {
        c->sides[i].state = PARSE_OPAQUE;
        buffer_release(&c->sides[i].head);
    }
    c->totals->malformed += malformed;
}

static void frame_begins(struct counter *c, enum direction direction)
{
    const struct wire_header *h = &c->sides[direction].header;
    const struct wire_row *row = wire_row(h->type);

    if (direction != TO_SERVER || !row || row->class != WIRE_CLASS_REQUEST)
        return;
    c->totals->requests++;
    if (row->type == WIRE_HELLO || row->type == WIRE_PING)
        return;
    uint64_t depth = c->depth + 1;
    if (table_put(&c->open, h->tag, (void *)(uintptr_t)(depth + 1), NULL) < 0) {
        opaque(c, true);
        return;
    }
    if (depth > c->round_trips)
        c->round_trips = depth;
}

static void frame_ends(struct counter *c, enum direction direction)
{
    const struct wire_header *h = &c->sides[direction].header;
    const struct wire_row *row = wire_row(h->type);
    uint64_t bytes = WIRE_HEADER_SIZE + (uint64_t)h->length;

    struct count_type *counts[] = {&c->totals->frames[direction],
                                   &c->totals->types[direction][type_index(h->type)]};
    for (size_t i = 0; i < ARRAY_SIZE(counts); i++) {
        counts[i]->frames++;
        counts[i]->bytes += bytes;
    }
    if (direction == TO_CLIENT && row && row->class == WIRE_CLASS_REPLY) {
        uint64_t depth = (uint64_t)(uintptr_t)table_take(&c->open, h->tag);
        if (depth && depth - 1 > c->depth)
            c->depth = depth - 1;
    }
}

/* Takes what belongs to the HTTP head; returns how many bytes that was. */
static size_t feed_head(struct counter *c, enum direction direction, const uint8_t *data,
                        size_t len)
{
    struct side *side = &c->sides[direction];

    for (size_t i = 0; i < len; i++) {
        if (side->head.len >= HEAD_MAX || buffer_append_u8(&side->head, data[i]) < 0) {
            opaque(c, false);
            return len;
        }
        if (side->head.len < 4 || memcmp(side->head.data + side->head.len - 4, "\r\n\r\n", 4) != 0)
            continue;
        static const char request[] = "GET /v1/stream ", answer[] = "HTTP/1.1 101";
        const char *want = direction == TO_SERVER ? request : answer;
        if (side->head.len < strlen(want) || memcmp(side->head.data, want, strlen(want)) != 0) {
            opaque(c, false);
            return len;
        }
        if (direction == TO_CLIENT)
            c->totals->upgraded++;
        buffer_release(&side->head);
        side->state = PARSE_HEADER;
        return i + 1;
    }
    return len;
}

static size_t feed_header(struct counter *c, enum direction direction, const uint8_t *data,
                          size_t len)
{
    struct side *side = &c->sides[direction];
    size_t take = WIRE_HEADER_SIZE - side->head.len;

    if (take > len)
        take = len;
    if (buffer_append(&side->head, data, take) < 0) {
        opaque(c, true);
        return len;
    }
    if (side->head.len < WIRE_HEADER_SIZE)
        return take;
    wire_header_decode(side->head.data, &side->header);
    side->head.len = 0;
    if (side->header.length > WIRE_PAYLOAD_MAX) {
        opaque(c, true);
        return len;
    }
    side->left = side->header.length;
    side->state = PARSE_PAYLOAD;
    frame_begins(c, direction);
    return take;
}

void counter_feed(struct counter *c, enum direction direction, const uint8_t *data, size_t len)
{
    struct side *side = &c->sides[direction];

    c->totals->bytes[direction] += len;
    while (len > 0 || (side->state == PARSE_PAYLOAD && side->left == 0)) {
        size_t took = 0;
        switch (side->state) {
        case PARSE_HEAD:
            took = feed_head(c, direction, data, len);
            break;
        case PARSE_HEADER:
            took = feed_header(c, direction, data, len);
            break;
        case PARSE_PAYLOAD:
            took = len < side->left ? len : (size_t)side->left;
            side->left -= took;
            if (side->left == 0) {
                side->state = PARSE_HEADER;
                frame_ends(c, direction);
            }
            break;
        case PARSE_OPAQUE:
            return;
        }
        data += took;
        len -= took;
    }
}

static json_t *type_json(const struct count_type *t)
{
    return json_pack("{sI sI}", "frames", (json_int_t)t->frames, "bytes", (json_int_t)t->bytes);
}

static int add_types(json_t *object, const struct count_type *types)
{
    for (size_t i = 0; i < COUNT_TYPES_MAX; i++) {
        if (types[i].frames == 0)
            continue;
        const char *name = i < wire_row_count() ? wire_row_at(i)->name : "unknown";
        if (json_object_set_new(object, name, type_json(&types[i])) < 0)
            return -ENOMEM;
    }
    return 0;
}

static json_t *direction_json(const struct count_totals *t, enum direction direction)
{
    json_t *types = json_object();
    if (!types || add_types(types, t->types[direction]) < 0) {
        json_decref(types);
        return NULL;
    }
    return json_pack("{sI sI sI so}", "bytes", (json_int_t)t->bytes[direction], "frames",
                     (json_int_t)t->frames[direction].frames, "frame_bytes",
                     (json_int_t)t->frames[direction].bytes, "types", types);
}

json_t *count_totals_json(const struct count_totals *t)
{
    return json_pack("{so* so* sI sI sI sI sI}", "to_server", direction_json(t, TO_SERVER),
                     "to_client", direction_json(t, TO_CLIENT), "requests", (json_int_t)t->requests,
                     "upgraded", (json_int_t)t->upgraded, "malformed", (json_int_t)t->malformed,
                     "round_trips_max", (json_int_t)t->round_trips_max, "round_trips_sum",
                     (json_int_t)t->round_trips_sum);
}

#include "samples.h"

#include <stdio.h>

static void check(int r)
{
    if (r < 0)
        abort();
}

static void fill(struct buffer *b, size_t len, unsigned seed)
{
    check(buffer_reserve(b, len + 1)); /* a view of no bytes points somewhere, too */
    for (size_t i = 0; i < len; i++)
        b->data[b->len++] = (uint8_t)("berth"[(i + seed) % 5]);
}

static struct wire_time time_of(enum sample_kind kind, unsigned seed)
{
    switch (kind) {
    case SAMPLE_LEAST:
        return (struct wire_time){.sec = INT64_MIN, .nsec = 0};
    case SAMPLE_GREATEST:
        return (struct wire_time){.sec = INT64_MAX, .nsec = 999999999};
    case SAMPLE_MANY:
    case SAMPLE_TYPICAL:
    case SAMPLE_KINDS:
        break;
    }
    return (struct wire_time){.sec = -1 - (int)seed, .nsec = 1000 + seed};
}

static uint64_t number_of(enum sample_kind kind, unsigned seed)
{
    switch (kind) {
    case SAMPLE_LEAST:
        return 0;
    case SAMPLE_GREATEST:
        return UINT64_MAX;
    case SAMPLE_MANY:
    case SAMPLE_TYPICAL:
    case SAMPLE_KINDS:
        break;
    }
    return UINT64_C(0x0102030405060708) + seed;
}

static struct wire_attr attr_of(enum sample_kind kind)
{
    return (struct wire_attr){
        .ino = number_of(kind, 1),
        .generation = number_of(kind, 2),
        .version = number_of(kind, 3),
        .size = number_of(kind, 4),
        .blocks = number_of(kind, 5),
        .mode = (uint32_t)number_of(kind, 6),
        .nlink = (uint32_t)number_of(kind, 7),
        .uid = (uint32_t)number_of(kind, 8),
        .gid = (uint32_t)number_of(kind, 9),
        .rdev = (uint32_t)number_of(kind, 10),
        .blksize = (uint32_t)number_of(kind, 11),
        .atime = time_of(kind, 12),
        .mtime = time_of(kind, 13),
        .ctime = time_of(kind, 14),
    };
}

static struct bytes bytes_for(const struct wire_field *field, enum sample_kind kind, unsigned seed,
                              struct buffer *storage)
{
    size_t len = field->min;
    if (kind == SAMPLE_GREATEST)
        len = field->max;
    else if (kind == SAMPLE_TYPICAL && len < 5 && field->max >= 5)
        len = 5 + seed % 3;
    fill(storage, len, seed);
    return buffer_view(storage);
}

static struct wire_list list_for(const struct wire_field *field, enum sample_kind kind,
                                 struct buffer *storage)
{
    uint32_t count = 0;
    struct buffer element = {0};
    switch (kind) {
    case SAMPLE_LEAST:
    case SAMPLE_KINDS:
        break;
    case SAMPLE_GREATEST:
        fill(&element, field->max - 4, 0);
        count = 1;
        break;
    case SAMPLE_MANY:
        count = field->max_count;
        break;
    case SAMPLE_TYPICAL:
        fill(&element, 7, 0);
        count = 3;
        break;
    }
    check(buffer_reserve(storage, 1));
    for (uint32_t i = 0; i < count; i++)
        check(wire_list_append(storage, buffer_view(&element)));
    buffer_release(&element);
    return wire_list_of(storage, count);
}

void sample_make(const struct wire_row *row, enum sample_kind kind, struct sample *ret)
{
    *ret = (struct sample){.message = {.type = row->type}};
    if (row->field_count > sizeof ret->storage / sizeof *ret->storage)
        abort();
    for (unsigned i = 0; i < row->field_count; i++) {
        const struct wire_field *field = &row->fields[i];
        void *value = (uint8_t *)&ret->message + field->offset;
        switch (field->type) {
        case WIRE_FIELD_U32:
            *(uint32_t *)value = (uint32_t)number_of(kind, i);
            break;
        case WIRE_FIELD_U64:
            *(uint64_t *)value = number_of(kind, i);
            break;
        case WIRE_FIELD_TIME:
            *(struct wire_time *)value = time_of(kind, i);
            break;
        case WIRE_FIELD_ATTR:
            *(struct wire_attr *)value = attr_of(kind);
            break;
        case WIRE_FIELD_BYTES:
            *(struct bytes *)value = bytes_for(field, kind, i, &ret->storage[i]);
            break;
        case WIRE_FIELD_LIST:
            *(struct wire_list *)value = list_for(field, kind, &ret->storage[i]);
            break;
        }
    }
    /* What the session checks beyond the table. */
    if (row->type == WIRE_ERROR)
        ret->message.error.error = kind == SAMPLE_GREATEST ? 4095 : 1;
}

void sample_release(struct sample *s)
{
    for (size_t i = 0; i < sizeof s->storage / sizeof *s->storage; i++)
        buffer_release(&s->storage[i]);
}

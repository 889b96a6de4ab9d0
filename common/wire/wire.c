#include "wire/wire.h"

#include "base/clock.h"
#include "base/hash.h"

/* The enum of rows' places, the least and greatest payload of each, and its fields. */
enum {
#define MESSAGE(NAME, name, number, from, phase, class, effect, verb, owner, summary) PLACE_##NAME,
#define FIELD_U32(message, field)
#define FIELD_U64(message, field)
#define FIELD_TIME(message, field)
#define FIELD_ATTR(message, field)
#define FIELD_BYTES(message, field, min, max)
#define FIELD_LIST(message, field, max_count, max_size)
#define END(message)
#include "wire/messages.def"
    ROW_COUNT,
};

#define TIME_SIZE 12

#define MESSAGE(NAME, name, number, from, phase, class, effect, verb, owner, summary) \
    enum { MIN_PAYLOAD_##NAME = 0
#define FIELD_U32(message, field) +4
#define FIELD_U64(message, field) +8
#define FIELD_TIME(message, field) +TIME_SIZE
#define FIELD_ATTR(message, field) +WIRE_ATTR_SIZE
#define FIELD_BYTES(message, field, min, max) +4 + (min)
#define FIELD_LIST(message, field, max_count, max_size) +4
#define END(message) \
    }                \
    ;
#include "wire/messages.def"

#define MESSAGE(NAME, name, number, from, phase, class, effect, verb, owner, summary) \
    enum { MAX_PAYLOAD_##NAME = 0
#define FIELD_U32(message, field) +4
#define FIELD_U64(message, field) +8
#define FIELD_TIME(message, field) +TIME_SIZE
#define FIELD_ATTR(message, field) +WIRE_ATTR_SIZE
#define FIELD_BYTES(message, field, min, max) +4 + (max)
#define FIELD_LIST(message, field, max_count, max_size) +4 + (max_size)
#define END(message) \
    }                \
    ;
#include "wire/messages.def"

#define MESSAGE(NAME, name, number, from, phase, class, effect, verb, owner, summary) \
    _Static_assert(MAX_PAYLOAD_##NAME <= WIRE_PAYLOAD_MAX, #NAME " does not fit a frame");
#define FIELD_U32(message, field)
#define FIELD_U64(message, field)
#define FIELD_TIME(message, field)
#define FIELD_ATTR(message, field)
#define FIELD_BYTES(message, field, min, max)
#define FIELD_LIST(message, field, max_count, max_size)
#define END(message)
#include "wire/messages.def"

#define FIELD(message, field, ...) \
    {.name = #field, .offset = offsetof(struct wire_message, message.field), __VA_ARGS__},

#define MESSAGE(NAME, name, number, from, phase, class, effect, verb, owner, summary) \
    static const struct wire_field name##_fields[] = {
#define FIELD_U32(message, field) FIELD(message, field, .type = WIRE_FIELD_U32)
#define FIELD_U64(message, field) FIELD(message, field, .type = WIRE_FIELD_U64)
#define FIELD_TIME(message, field) FIELD(message, field, .type = WIRE_FIELD_TIME)
#define FIELD_ATTR(message, field) FIELD(message, field, .type = WIRE_FIELD_ATTR)
#define FIELD_BYTES(message, field, least, most) \
    FIELD(message, field, .type = WIRE_FIELD_BYTES, .min = (least), .max = (most))
#define FIELD_LIST(message, field, most_elements, most) \
    FIELD(message, field, .type = WIRE_FIELD_LIST, .max = (most), .max_count = (most_elements))
#define END(message) \
    }                \
    ;
#include "wire/messages.def"

static const struct wire_row rows[ROW_COUNT] = {
#define MESSAGE(NAME, lower, number, sender, when, kind, does, needs, of, text) \
    {                                                                           \
        .type = (number),                                                       \
        .name = #NAME,                                                          \
        .from = WIRE_FROM_##sender,                                             \
        .phase = WIRE_PHASE_##when,                                             \
        .class = WIRE_CLASS_##kind,                                             \
        .effect = WIRE_EFFECT_##does,                                           \
        .verb = WIRE_VERB_##needs,                                              \
        .owner = WIRE_##of,                                                     \
        .min_payload = MIN_PAYLOAD_##NAME,                                      \
        .max_payload = MAX_PAYLOAD_##NAME,                                      \
        .fields = lower##_fields,                                               \
        .field_count = sizeof lower##_fields / sizeof *lower##_fields,          \
        .summary = text,                                                        \
    },
#define FIELD_U32(message, field)
#define FIELD_U64(message, field)
#define FIELD_TIME(message, field)
#define FIELD_ATTR(message, field)
#define FIELD_BYTES(message, field, min, max)
#define FIELD_LIST(message, field, max_count, max_size)
#define END(message)
#include "wire/messages.def"
};

static uint64_t hash_time(uint64_t hash, const struct wire_time *t)
{
    return hash_bytes(hash_bytes(hash, &t->sec, sizeof t->sec), &t->nsec, sizeof t->nsec);
}

uint64_t wire_attr_version(const struct wire_attr *attr)
{
    uint64_t hash = hash_time(hash_time(HASH_START, &attr->ctime), &attr->mtime);
    return hash_end(hash_bytes(hash, &attr->size, sizeof attr->size));
}

const struct wire_row *wire_row(uint32_t type)
{
    switch (type) {
#define MESSAGE(NAME, name, number, from, phase, class, effect, verb, owner, summary) \
    case number:                                                                      \
        return &rows[PLACE_##NAME];
#define FIELD_U32(message, field)
#define FIELD_U64(message, field)
#define FIELD_TIME(message, field)
#define FIELD_ATTR(message, field)
#define FIELD_BYTES(message, field, min, max)
#define FIELD_LIST(message, field, max_count, max_size)
#define END(message)
#include "wire/messages.def"
    }
    return NULL;
}

const struct wire_row *wire_row_at(size_t i)
{
    return &rows[i];
}

size_t wire_row_count(void)
{
    return ROW_COUNT;
}

bool wire_row_is_bulk(const struct wire_row *row)
{
    if (row->class == WIRE_CLASS_RECORD)
        return false; /* part of another */
    for (size_t i = 0; i < row->field_count; i++)
        if (row->fields[i].type == WIRE_FIELD_BYTES && row->fields[i].max >= WIRE_CHUNK_MAX)
            return true;
    return row->type == WIRE_FILES || row->type == WIRE_TREE_IN || row->type == WIRE_TREE_OUT;
}

/* --- integers ------------------------------------------------------------------ */
static uint32_t load_u32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static uint64_t load_u64(const uint8_t *p)
{
    return (uint64_t)load_u32(p) | (uint64_t)load_u32(p + 4) << 32;
}

static uint8_t *store_u32(uint8_t *p, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        *p++ = (uint8_t)(v >> (8 * i));
    return p;
}

static uint8_t *store_u64(uint8_t *p, uint64_t v)
{
    return store_u32(store_u32(p, (uint32_t)v), (uint32_t)(v >> 32));
}

void wire_header_encode(uint8_t out[WIRE_HEADER_SIZE], const struct wire_header *h)
{
    (void)store_u32(out, h->length);
    (void)store_u32(out + 4, (uint32_t)h->type | (uint32_t)h->flags << 16);
    (void)store_u64(out + 8, h->tag);
}

void wire_header_decode(const uint8_t in[WIRE_HEADER_SIZE], struct wire_header *ret)
{
    uint32_t type_and_flags = load_u32(in + 4);
    *ret = (struct wire_header){.length = load_u32(in),
                                .type = (uint16_t)type_and_flags,
                                .flags = (uint16_t)(type_and_flags >> 16),
                                .tag = load_u64(in + 8)};
}

/* --- lists --------------------------------------------------------------------- */
bool wire_list_next(const struct wire_list *list, uint32_t *offset, struct bytes *ret)
{
    uint32_t left = list->len - *offset;
    if (left < 4)
        return false;
    uint32_t len = load_u32(list->data + *offset);
    if (len > left - 4)
        return false;
    *ret = bytes_of(list->data + *offset + 4, len);
    *offset += 4 + len;
    return true;
}

int wire_list_append(struct buffer *b, struct bytes element)
{
    if (element.len > WIRE_PAYLOAD_MAX)
        return -EINVAL;
    int r = buffer_reserve(b, 4 + element.len);
    if (r < 0)
        return r;
    (void)buffer_append_u32(b, (uint32_t)element.len);
    return buffer_append(b, element.data, element.len);
}

struct wire_list wire_list_of(const struct buffer *b, uint32_t count)
{
    /* A list longer than any frame is not shortened silently: it fails to encode. */
    uint32_t len = b->len <= UINT32_MAX ? (uint32_t)b->len : UINT32_MAX;
    return (struct wire_list){.data = b->data, .len = len, .count = count};
}

/* True when the elements fill the list exactly; counts at most max_count of them. */
static bool list_count(const struct wire_list *list, uint32_t max_count, uint32_t *ret)
{
    uint32_t offset = 0;
    uint32_t count = 0;
    struct bytes element;
    while (wire_list_next(list, &offset, &element))
        if (++count > max_count)
            return false;
    if (offset != list->len)
        return false;
    *ret = count;
    return true;
}

/* --- encoding ------------------------------------------------------------------ */
static const void *field_in(const struct wire_message *m, const struct wire_field *field)
{
    return (const uint8_t *)m + field->offset;
}

static bool time_valid(const struct wire_time *t)
{
    return t->nsec < NSEC_PER_SEC;
}

static bool attr_valid(const struct wire_attr *a)
{
    return time_valid(&a->atime) && time_valid(&a->mtime) && time_valid(&a->ctime);
}

static bool list_valid(const struct wire_field *field, const struct wire_list *list)
{
    uint32_t count;
    return list->len <= field->max && list_count(list, field->max_count, &count) &&
           count == list->count;
}

/* The size of the payload, or -EINVAL when a field is out of bounds. */
static ssize_t payload_size(const struct wire_row *row, const struct wire_message *m)
{
    size_t size = 0;
    for (size_t i = 0; i < row->field_count; i++) {
        const struct wire_field *field = &row->fields[i];
        const void *value = field_in(m, field);
        switch (field->type) {
        case WIRE_FIELD_U32:
            size += 4;
            break;
        case WIRE_FIELD_U64:
            size += 8;
            break;
        case WIRE_FIELD_TIME:
            if (!time_valid(value))
                return -EINVAL;
            size += TIME_SIZE;
            break;
        case WIRE_FIELD_ATTR:
            if (!attr_valid(value))
                return -EINVAL;
            size += WIRE_ATTR_SIZE;
            break;
        case WIRE_FIELD_BYTES: {
            const struct bytes *bytes = value;
            if (bytes->len < field->min || bytes->len > field->max)
                return -EINVAL;
            size += 4 + bytes->len;
            break;
        }
        case WIRE_FIELD_LIST:
            if (!list_valid(field, value))
                return -EINVAL;
            size += 4 + ((const struct wire_list *)value)->len;
            break;
        }
    }
    return (ssize_t)size;
}

static uint8_t *store_time(uint8_t *p, const struct wire_time *t)
{
    return store_u32(store_u64(p, (uint64_t)t->sec), t->nsec);
}

static uint8_t *store_attr(uint8_t *p, const struct wire_attr *a)
{
    p = store_u64(p, a->ino);
    p = store_u64(p, a->generation);
    p = store_u64(p, a->version);
    p = store_u64(p, a->size);
    p = store_u64(p, a->blocks);
    p = store_u32(p, a->mode);
    p = store_u32(p, a->nlink);
    p = store_u32(p, a->uid);
    p = store_u32(p, a->gid);
    p = store_u32(p, a->rdev);
    p = store_u32(p, a->blksize);
    p = store_time(p, &a->atime);
    p = store_time(p, &a->mtime);
    p = store_time(p, &a->ctime);
    return store_u64(p, a->flags);
}

static uint8_t *store_bytes(uint8_t *p, const void *data, size_t len)
{
    p = store_u32(p, (uint32_t)len);
    if (len > 0)
        memcpy(p, data, len);
    return p + len;
}

int wire_encode(struct buffer *b, const struct wire_message *m)
{
    const struct wire_row *row = wire_row(m->type);
    if (!row)
        return -EINVAL;
    ssize_t size = payload_size(row, m);
    if (size < 0)
        return (int)size;
    int r = buffer_reserve(b, (size_t)size);
    if (r < 0)
        return r;
    uint8_t *p = b->data + b->len;
    for (size_t i = 0; i < row->field_count; i++) {
        const struct wire_field *field = &row->fields[i];
        const void *value = field_in(m, field);
        switch (field->type) {
        case WIRE_FIELD_U32:
            p = store_u32(p, *(const uint32_t *)value);
            break;
        case WIRE_FIELD_U64:
            p = store_u64(p, *(const uint64_t *)value);
            break;
        case WIRE_FIELD_TIME:
            p = store_time(p, value);
            break;
        case WIRE_FIELD_ATTR:
            p = store_attr(p, value);
            break;
        case WIRE_FIELD_BYTES: {
            const struct bytes *bytes = value;
            p = store_bytes(p, bytes->data, bytes->len);
            break;
        }
        case WIRE_FIELD_LIST: {
            const struct wire_list *list = value;
            p = store_bytes(p, list->data, list->len);
            break;
        }
        }
    }
    b->len += (size_t)size;
    return 0;
}

/* --- decoding ------------------------------------------------------------------ */
static void *field_out(struct wire_message *m, const struct wire_field *field)
{
    return (uint8_t *)m + field->offset;
}

/* Takes n bytes off the front of *in, or NULL when there are fewer. */
static const uint8_t *take(struct bytes *in, size_t n)
{
    if (in->len < n)
        return NULL;
    const uint8_t *p = in->data;
    in->data += n;
    in->len -= n;
    return p;
}

static struct wire_time load_time(const uint8_t *p)
{
    return (struct wire_time){.sec = (int64_t)load_u64(p), .nsec = load_u32(p + 8)};
}

static void load_attr(const uint8_t *p, struct wire_attr *ret)
{
    *ret = (struct wire_attr){
        .ino = load_u64(p),
        .generation = load_u64(p + 8),
        .version = load_u64(p + 16),
        .size = load_u64(p + 24),
        .blocks = load_u64(p + 32),
        .mode = load_u32(p + 40),
        .nlink = load_u32(p + 44),
        .uid = load_u32(p + 48),
        .gid = load_u32(p + 52),
        .rdev = load_u32(p + 56),
        .blksize = load_u32(p + 60),
        .atime = load_time(p + 64),
        .mtime = load_time(p + 76),
        .ctime = load_time(p + 88),
        .flags = load_u64(p + 100),
    };
}

/* A length of at most max, and that many bytes. */
static bool take_bytes(struct bytes *in, uint32_t max, struct bytes *ret)
{
    const uint8_t *p = take(in, 4);
    if (!p)
        return false;
    uint32_t len = load_u32(p);
    if (len > max)
        return false;
    p = take(in, len);
    if (!p)
        return false;
    *ret = bytes_of(p, len);
    return true;
}

static bool take_field(struct bytes *in, const struct wire_field *field, void *ret)
{
    const uint8_t *p;
    switch (field->type) {
    case WIRE_FIELD_U32:
        p = take(in, 4);
        if (p)
            *(uint32_t *)ret = load_u32(p);
        return p;
    case WIRE_FIELD_U64:
        p = take(in, 8);
        if (p)
            *(uint64_t *)ret = load_u64(p);
        return p;
    case WIRE_FIELD_TIME:
        p = take(in, TIME_SIZE);
        if (!p)
            return false;
        *(struct wire_time *)ret = load_time(p);
        return time_valid(ret);
    case WIRE_FIELD_ATTR:
        p = take(in, WIRE_ATTR_SIZE);
        if (!p)
            return false;
        load_attr(p, ret);
        return attr_valid(ret);
    case WIRE_FIELD_BYTES:
        return take_bytes(in, field->max, ret) && ((struct bytes *)ret)->len >= field->min;
    case WIRE_FIELD_LIST: {
        struct bytes raw;
        if (!take_bytes(in, field->max, &raw))
            return false;
        struct wire_list *list = ret;
        *list = (struct wire_list){.data = raw.data, .len = (uint32_t)raw.len};
        return list_count(list, field->max_count, &list->count);
    }
    }
    return false;
}

int wire_decode(enum wire_type type, struct bytes payload, struct wire_message *ret)
{
    const struct wire_row *row = wire_row(type);
    if (!row)
        return -EBADMSG;
    ret->type = type;
    for (size_t i = 0; i < row->field_count; i++)
        if (!take_field(&payload, &row->fields[i], field_out(ret, &row->fields[i])))
            return -EBADMSG;
    return payload.len == 0 ? 0 : -EBADMSG;
}

/* --- names --------------------------------------------------------------------- */
const char *wire_verb_name(enum wire_verb verb)
{
    switch (verb) {
    case WIRE_VERB_NONE:
        return "none";
    case WIRE_VERB_READ:
        return "read";
    case WIRE_VERB_WRITE:
        return "write";
    case WIRE_VERB_EXEC:
        return "exec";
    case WIRE_VERB_ADMIN:
        return "admin";
    }
    return "";
}

const char *wire_verdict_name(uint32_t verdict)
{
    switch ((enum wire_verdict)verdict) {
    case WIRE_VERDICT_EXITED:
        return "exited";
    case WIRE_VERDICT_SIGNALED:
        return "signaled";
    case WIRE_VERDICT_TIMED_OUT:
        return "timed_out";
    case WIRE_VERDICT_OOM_KILLED:
        return "oom_killed";
    case WIRE_VERDICT_KILLED:
        return "killed";
    case WIRE_VERDICT_NOT_STARTED:
        return "not_started";
    case WIRE_VERDICT_UNKNOWN:
        return "unknown";
    case WIRE_VERDICT_RUNNING:
        return "running";
    }
    return NULL;
}

const char *wire_means_name(uint32_t means)
{
    switch ((enum wire_means)means) {
    case WIRE_MEANS_NONE:
        return "none";
    case WIRE_MEANS_CGROUP:
        return "cgroup";
    case WIRE_MEANS_SUBREAPER:
        return "subreaper";
    case WIRE_MEANS_TREE:
        return "tree";
    }
    return NULL;
}

bool wire_row_belongs(const struct wire_row *row, const struct wire_row *request)
{
    /* Who attaches to a command may do what who started it may. */
    return row->owner == WIRE_NONE || row->owner == request->type ||
           (row->owner == WIRE_EXEC && request->type == WIRE_EXEC_ATTACH);
}

const char *wire_stage_name(uint32_t stage)
{
    switch ((enum wire_exec_stage)stage) {
    case WIRE_STAGE_NONE:
        return "none";
    case WIRE_STAGE_REQUEST:
        return "request";
    case WIRE_STAGE_WORKSPACE:
        return "workspace";
    case WIRE_STAGE_PIPES:
        return "pipes";
    case WIRE_STAGE_FORK:
        return "fork";
    case WIRE_STAGE_SETUP:
        return "setup";
    case WIRE_STAGE_CONFINE:
        return "confine";
    case WIRE_STAGE_CWD:
        return "cwd";
    case WIRE_STAGE_EXECVE:
        return "execve";
    case WIRE_STAGE_ATTEST:
        return "attest";
    }
    return NULL;
}

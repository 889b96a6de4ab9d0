#include "tree_entry.h"

#include <string.h>
#include <sys/stat.h>

/* cookie, flags, the name's length, the name; then what the flags say is there */
#define COOKIE_AT 0
#define FLAGS_AT 8

#define USUAL_MODE (S_IFREG | 0644)

/* Those that most entries have come first: they take one byte. */
enum entry_flags {
    ENTRY_NODE = 1,     /* it has a node and attributes; else an inode number and a type */
    ENTRY_MODE = 2,     /* not the usual one */
    ENTRY_NLINK = 4,    /* not 1 */
    ENTRY_BLOCKS = 8,   /* not those of pages as long as the file */
    ENTRY_MTIME = 16,   /* not as ctime */
    ENTRY_ATIME = 32,   /* not as mtime */
    ENTRY_VERSION = 64, /* not what wire_attr_version says */
    ENTRY_OTHERS = 128, /* owner, device, block size, flags: not as the base's */
    ENTRY_INO = 256,    /* its inode number is not that of the attributes */
    ENTRY_TYPE = 512,   /* its type is not as the mode's */
};

/* --- numbers --------------------------------------------------------------------------- */

static uint8_t *put_fixed(uint8_t *p, uint64_t value, size_t size)
{
    for (size_t i = 0; i < size; i++)
        *p++ = (uint8_t)(value >> (8 * i));
    return p;
}

static uint64_t get_fixed(const uint8_t **p, size_t size)
{
    uint64_t value = 0;
    for (size_t i = 0; i < size; i++)
        value |= (uint64_t) * (*p)++ << (8 * i);
    return value;
}

/* Seven bits a byte, the lowest first. */
static uint8_t *put(uint8_t *p, uint64_t value)
{
    for (; value >= 0x80; value >>= 7)
        *p++ = (uint8_t)(value | 0x80);
    *p++ = (uint8_t)value;
    return p;
}

static uint64_t get(const uint8_t **p)
{
    uint64_t value = 0;
    for (unsigned shift = 0;; shift += 7) {
        uint8_t byte = *(*p)++;
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80))
            return value;
    }
}

/* As the distance from a number that is near, either way. */
static uint8_t *put_near(uint8_t *p, uint64_t value, uint64_t base)
{
    uint64_t distance = value - base;
    return put(p, distance >> 63 ? ~(distance << 1) : distance << 1);
}

static uint64_t get_near(const uint8_t **p, uint64_t base)
{
    uint64_t coded = get(p);
    return base + (coded & 1 ? ~(coded >> 1) : coded >> 1);
}

static uint8_t *put_time(uint8_t *p, const struct wire_time *t, const struct wire_time *base)
{
    p = put_near(p, (uint64_t)t->sec, (uint64_t)base->sec);
    return put_fixed(p, t->nsec, 4);
}

static struct wire_time get_time(const uint8_t **p, const struct wire_time *base)
{
    struct wire_time t;
    t.sec = (int64_t)get_near(p, (uint64_t)base->sec);
    t.nsec = (uint32_t)get_fixed(p, 4);
    return t;
}

/* --- attributes ------------------------------------------------------------------------- */

static bool time_equal(const struct wire_time *a, const struct wire_time *b)
{
    return a->sec == b->sec && a->nsec == b->nsec;
}

static uint64_t usual_blocks(uint64_t size)
{
    return (size / 4096 + (size % 4096 != 0)) * 8;
}

static bool others_equal(const struct wire_attr *a, const struct wire_attr *b)
{
    return a->uid == b->uid && a->gid == b->gid && a->rdev == b->rdev && a->blksize == b->blksize &&
           a->flags == b->flags;
}

static unsigned attr_flags(const struct wire_attr *a, const struct wire_attr *base)
{
    return (a->mode != USUAL_MODE ? ENTRY_MODE : 0U) | (a->nlink != 1 ? ENTRY_NLINK : 0U) |
           (a->blocks != usual_blocks(a->size) ? ENTRY_BLOCKS : 0U) |
           (!others_equal(a, base) ? ENTRY_OTHERS : 0U) |
           (a->version != wire_attr_version(a) ? ENTRY_VERSION : 0U) |
           (!time_equal(&a->mtime, &a->ctime) ? ENTRY_MTIME : 0U) |
           (!time_equal(&a->atime, &a->mtime) ? ENTRY_ATIME : 0U);
}

static uint8_t *put_attr(uint8_t *p, const struct wire_attr *a, const struct wire_attr *base,
                         unsigned flags)
{
    p = put_near(p, a->ino, base->ino);
    p = put_fixed(p, a->generation, 8);
    p = put(p, a->size);
    if (flags & ENTRY_MODE)
        p = put(p, a->mode);
    if (flags & ENTRY_NLINK)
        p = put(p, a->nlink);
    if (flags & ENTRY_BLOCKS)
        p = put(p, a->blocks);
    if (flags & ENTRY_OTHERS) {
        p = put(p, a->uid);
        p = put(p, a->gid);
        p = put(p, a->rdev);
        p = put(p, a->blksize);
        p = put(p, a->flags);
    }
    p = put_time(p, &a->ctime, &base->ctime);
    if (flags & ENTRY_MTIME)
        p = put_time(p, &a->mtime, &a->ctime);
    if (flags & ENTRY_ATIME)
        p = put_time(p, &a->atime, &a->mtime);
    if (flags & ENTRY_VERSION)
        p = put_fixed(p, a->version, 8);
    return p;
}

static void get_attr(const uint8_t **p, const struct wire_attr *base, unsigned flags,
                     struct wire_attr *ret)
{
    ret->ino = get_near(p, base->ino);
    ret->generation = get_fixed(p, 8);
    ret->size = get(p);
    ret->mode = flags & ENTRY_MODE ? (uint32_t)get(p) : USUAL_MODE;
    ret->nlink = flags & ENTRY_NLINK ? (uint32_t)get(p) : 1;
    ret->blocks = flags & ENTRY_BLOCKS ? get(p) : usual_blocks(ret->size);
    bool others = flags & ENTRY_OTHERS;
    ret->uid = others ? (uint32_t)get(p) : base->uid;
    ret->gid = others ? (uint32_t)get(p) : base->gid;
    ret->rdev = others ? (uint32_t)get(p) : base->rdev;
    ret->blksize = others ? (uint32_t)get(p) : base->blksize;
    ret->flags = others ? get(p) : base->flags;
    ret->ctime = get_time(p, &base->ctime);
    ret->mtime = flags & ENTRY_MTIME ? get_time(p, &ret->ctime) : ret->ctime;
    ret->atime = flags & ENTRY_ATIME ? get_time(p, &ret->mtime) : ret->mtime;
    ret->version = flags & ENTRY_VERSION ? get_fixed(p, 8) : wire_attr_version(ret);
}

/* --- entries ------------------------------------------------------------------------------ */

size_t tree_entry_pack(const struct wire_dirent *entry, uint64_t base_node,
                       const struct wire_attr *base, uint8_t ret[TREE_ENTRY_MAX])
{
    const struct wire_attr *a = &entry->attr;
    unsigned flags = 0;
    if (entry->node)
        flags = ENTRY_NODE | attr_flags(a, base) | (entry->ino != a->ino ? ENTRY_INO : 0U) |
                (entry->type != (a->mode & S_IFMT) ? ENTRY_TYPE : 0U);
    else
        flags = ENTRY_INO | ENTRY_TYPE;
    uint8_t *p = put_fixed(ret + COOKIE_AT, entry->cookie, 8);
    p = put(p, flags);
    *p++ = (uint8_t)entry->name.len;
    memcpy(p, entry->name.data, entry->name.len);
    p += entry->name.len;
    if (flags & ENTRY_NODE) {
        p = put_near(p, entry->node, base_node);
        p = put_attr(p, a, base, flags);
    }
    if (flags & ENTRY_INO)
        p = put_near(p, entry->ino, base->ino);
    if (flags & ENTRY_TYPE)
        p = put(p, entry->type);
    return (size_t)(p - ret);
}

uint64_t tree_entry_cookie(const uint8_t *data)
{
    const uint8_t *p = data + COOKIE_AT;
    return get_fixed(&p, 8);
}

static struct bytes get_name(const uint8_t **p)
{
    size_t len = *(*p)++;
    struct bytes name = bytes_of(*p, len);
    *p += len;
    return name;
}

struct bytes tree_entry_name(const uint8_t *data)
{
    const uint8_t *p = data + FLAGS_AT;
    (void)get(&p);
    return get_name(&p);
}

bool tree_entry_is(const uint8_t *data, const struct wire_attr *base, uint64_t ino,
                   uint64_t generation)
{
    uint64_t own, own_generation;
    return tree_entry_identity(data, base, &own, &own_generation) && own == ino &&
           own_generation == generation;
}

bool tree_entry_identity(const uint8_t *data, const struct wire_attr *base, uint64_t *ret_ino,
                         uint64_t *ret_generation)
{
    const uint8_t *p = data + FLAGS_AT;
    uint64_t flags = get(&p);
    (void)get_name(&p);
    if (!(flags & ENTRY_NODE))
        return false;
    (void)get(&p); /* the node */
    *ret_ino = get_near(&p, base->ino);
    *ret_generation = get_fixed(&p, 8);
    return true;
}

void tree_entry_unpack(const uint8_t *data, uint64_t base_node, const struct wire_attr *base,
                       struct wire_dirent *ret)
{
    const uint8_t *p = data + FLAGS_AT;
    unsigned flags = (unsigned)get(&p);
    *ret = (struct wire_dirent){.cookie = tree_entry_cookie(data), .name = get_name(&p)};
    if (flags & ENTRY_NODE) {
        ret->node = get_near(&p, base_node);
        get_attr(&p, base, flags, &ret->attr);
        ret->ino = ret->attr.ino;
        ret->type = ret->attr.mode & S_IFMT;
    }
    if (flags & ENTRY_INO)
        ret->ino = get_near(&p, base->ino);
    if (flags & ENTRY_TYPE)
        ret->type = (uint32_t)get(&p);
}

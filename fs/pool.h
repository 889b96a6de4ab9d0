/* Objects by number: half of a pointer, and without what an allocator takes for each. They are held
 * by the POOL_CHUNK, all of one size; a chunk goes when nothing is left in it. An object stays
 * where it is. Numbers are used again, and 0 is none. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define POOL_CHUNK 64

/* Sizes are multiples of this. */
#define POOL_UNIT 8
#define POOL_SIZE_MAX ((size_t)512)

struct pool_chunk {
    uint8_t *objects; /* NULL: none is used */
    uint64_t used;
    uint32_t next; /* with room as well, of the same size: its place and 1, or 0 */
    uint32_t size;
};

struct pool {
    struct pool_chunk *chunks;
    uint32_t count, capacity;
    uint32_t room[POOL_SIZE_MAX / POOL_UNIT + 1]; /* by size: the first with room, and 1; or 0 */
};

/* What an object of size bytes takes. */
static inline size_t pool_size(size_t size)
{
    return (size + POOL_UNIT - 1) / POOL_UNIT * POOL_UNIT;
}

/* A zeroed object of at most POOL_SIZE_MAX bytes. NULL: no memory. */
void *pool_new(struct pool *p, size_t size, uint32_t *ret_number);
void pool_free(struct pool *p, uint32_t number);

/* Of number 0: NULL. */
static inline void *pool_at(const struct pool *p, uint32_t number)
{
    if (!number)
        return NULL;
    const struct pool_chunk *c = &p->chunks[(number - 1) / POOL_CHUNK];
    return c->objects + (size_t)((number - 1) % POOL_CHUNK) * c->size;
}

/* Frees all objects; leaves {0}. */
void pool_release(struct pool *p);

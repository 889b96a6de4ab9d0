#include "pool.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/sanitizers.h"

/* What was freed is found out about when it is used. */
#if ADDRESS_SANITIZED
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, size) ((void)(address), (void)(size))
#define ASAN_UNPOISON_MEMORY_REGION(address, size) ((void)(address), (void)(size))
#endif

#define FIRST_CAPACITY 16

/* Another chunk, in which nothing is used. -ENOMEM, as false. */
static bool add_chunk(struct pool *p, size_t size)
{
    if (p->count == p->capacity) {
        uint32_t capacity = p->capacity ? 2 * p->capacity : FIRST_CAPACITY;
        struct pool_chunk *chunks = capacity > UINT32_MAX / POOL_CHUNK
                                        ? NULL
                                        : realloc(p->chunks, capacity * sizeof *chunks);
        if (!chunks)
            return false;
        p->chunks = chunks;
        p->capacity = capacity;
    }
    uint32_t *room = &p->room[size / POOL_UNIT];
    p->chunks[p->count] = (struct pool_chunk){.size = (uint32_t)size, .next = *room};
    *room = ++p->count;
    return true;
}

void *pool_new(struct pool *p, size_t size, uint32_t *ret_number)
{
    size = pool_size(size);
    assert(size && size <= POOL_SIZE_MAX);
    uint32_t *room = &p->room[size / POOL_UNIT];
    if (!*room && !add_chunk(p, size))
        return NULL;
    uint32_t chunk = *room - 1;
    struct pool_chunk *c = &p->chunks[chunk];
    if (!c->objects) {
        c->objects = malloc(POOL_CHUNK * size);
        if (!c->objects)
            return NULL;
        ASAN_POISON_MEMORY_REGION(c->objects, POOL_CHUNK * size);
    }
    unsigned at = (unsigned)__builtin_ctzll(~c->used);
    c->used |= UINT64_C(1) << at;
    if (!~c->used)
        *room = c->next;
    void *object = c->objects + at * size;
    ASAN_UNPOISON_MEMORY_REGION(object, size);
    *ret_number = chunk * POOL_CHUNK + at + 1;
    return memset(object, 0, size);
}

void pool_free(struct pool *p, uint32_t number)
{
    uint32_t chunk = (number - 1) / POOL_CHUNK, at = (number - 1) % POOL_CHUNK;
    struct pool_chunk *c = &p->chunks[chunk];
    uint32_t *room = &p->room[c->size / POOL_UNIT];
    assert(c->used >> at & 1);
    if (!~c->used) {
        c->next = *room;
        *room = chunk + 1;
    }
    c->used &= ~(UINT64_C(1) << at);
    ASAN_POISON_MEMORY_REGION(c->objects + (size_t)at * c->size, c->size);
    if (!c->used) {
        ASAN_UNPOISON_MEMORY_REGION(c->objects, (size_t)POOL_CHUNK * c->size);
        free(c->objects);
        c->objects = NULL;
    }
}

void pool_release(struct pool *p)
{
    for (uint32_t i = 0; i < p->count; i++)
        if (p->chunks[i].objects) {
            ASAN_UNPOISON_MEMORY_REGION(p->chunks[i].objects,
                                        (size_t)POOL_CHUNK * p->chunks[i].size);
            free(p->chunks[i].objects);
        }
    free(p->chunks);
    *p = (struct pool){0};
}

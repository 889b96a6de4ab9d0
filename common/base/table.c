#include "base/table.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/random.h>

static uint64_t seed;
static pthread_once_t seed_once = PTHREAD_ONCE_INIT;

static void seed_init(void)
{
    if (getrandom(&seed, sizeof seed, GRND_NONBLOCK) != sizeof seed)
        seed = (uint64_t)(uintptr_t)&seed;
}

static uint64_t mix(uint64_t x)
{
    /* The finalizer of splitmix64: every input bit changes half of the output bits. */
    x ^= x >> 30;
    x *= UINT64_C(0xbf58476d1ce4e5b9);
    x ^= x >> 27;
    x *= UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

uint64_t table_hash_pair(uint64_t a, uint64_t b)
{
    return mix(mix(a + UINT64_C(0x9e3779b97f4a7c15)) ^ b);
}

static size_t home(const struct table *t, uint64_t key)
{
    return (size_t)mix(key ^ seed) & (t->capacity - 1);
}

static size_t find(const struct table *t, uint64_t key)
{
    size_t i = home(t, key);
    while (t->slots[i].value && t->slots[i].key != key)
        i = (i + 1) & (t->capacity - 1);
    return i;
}

void *table_get(const struct table *t, uint64_t key)
{
    return t->capacity ? t->slots[find(t, key)].value : NULL;
}

static int grow(struct table *t)
{
    size_t capacity = t->capacity ? t->capacity * 2 : 16;
    struct table_slot *slots = calloc(capacity, sizeof *slots);
    if (!slots)
        return -ENOMEM;
    struct table bigger = {.slots = slots, .capacity = capacity, .count = t->count};
    for (size_t i = 0; i < t->capacity; i++)
        if (t->slots[i].value)
            bigger.slots[find(&bigger, t->slots[i].key)] = t->slots[i];
    free(t->slots);
    *t = bigger;
    return 0;
}

int table_put(struct table *t, uint64_t key, void *value, void **ret_old)
{
    (void)pthread_once(&seed_once, seed_init);
    if (t->count + 1 > t->capacity / 4 * 3) {
        int r = grow(t);
        if (r < 0)
            return r;
    }
    struct table_slot *slot = &t->slots[find(t, key)];
    if (ret_old)
        *ret_old = slot->value;
    if (!slot->value)
        t->count++;
    *slot = (struct table_slot){.key = key, .value = value};
    return 0;
}

void *table_take(struct table *t, uint64_t key)
{
    if (!t->capacity)
        return NULL;
    size_t hole = find(t, key);
    void *taken = t->slots[hole].value;
    if (!taken)
        return NULL;
    /* Backward-shift deletion: close the gap, so that no tombstones slow later probes. */
    size_t mask = t->capacity - 1;
    for (size_t i = (hole + 1) & mask; t->slots[i].value; i = (i + 1) & mask) {
        size_t from_home = (i - home(t, t->slots[i].key)) & mask;
        if (from_home >= ((i - hole) & mask)) {
            t->slots[hole] = t->slots[i];
            hole = i;
        }
    }
    t->slots[hole].value = NULL;
    t->count--;
    return taken;
}

void *table_next(const struct table *t, size_t *cursor)
{
    while (*cursor < t->capacity) {
        void *value = t->slots[(*cursor)++].value;
        if (value)
            return value;
    }
    return NULL;
}

void table_release(struct table *t)
{
    free(t->slots);
    *t = (struct table){0};
}

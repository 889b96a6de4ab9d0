/* A map from uint64_t to a non-NULL pointer: open addressing, 16 bytes a slot, load at most
 * 3/4. The table does not own what it points to. Keys are mixed before use, so that
 * neither counters nor inode numbers chosen by a peer make long probe runs on purpose
 * (the mix is seeded per process). */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct table_slot {
    uint64_t key;
    void *value; /* NULL: free */
};

struct table {
    struct table_slot *slots;
    size_t capacity; /* 0 or a power of two */
    size_t count;
};

/* NULL when the key is absent. */
void *table_get(const struct table *t, uint64_t key);

/* Stores value (not NULL), replacing what was there; *ret_old (may be NULL) gets the old
 * value or NULL. 0 or -ENOMEM, the table then unchanged. */
int table_put(struct table *t, uint64_t key, void *value, void **ret_old);

/* Removes and returns the value, or NULL. */
void *table_take(struct table *t, uint64_t key);

/* Iteration in no order: `for (size_t i = 0; (value = table_next(t, &i)); )`. The table must
 * not change meanwhile. NULL at the end. */
void *table_next(const struct table *t, size_t *cursor);

/* Frees the slots, not the values; leaves {0}. */
void table_release(struct table *t);

/* 64-bit mix of two numbers, for keys made of a pair. */
uint64_t table_hash_pair(uint64_t a, uint64_t b);

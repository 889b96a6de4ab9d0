/* What one owner has locked in one file: ranges in order, apart from each other, and as few as
 * they can be. The arithmetic of fcntl(): a new lock takes the place of what it covers, and may
 * split what it falls into. {0} is empty. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct lock_range {
    uint64_t start, end; /* both included; end < UINT64_MAX */
    uint32_t type;       /* not 0 */
};

struct lock_ranges {
    struct lock_range *items;
    size_t count;
    size_t allocated;
};

/* Most ranges that one lock_ranges_set can add. */
#define LOCK_RANGES_GROWTH 2

/* Makes room for the next lock_ranges_set, which then cannot fail. 0 or -ENOMEM. */
int lock_ranges_reserve(struct lock_ranges *r);

/* Locks start to end with this type; 0 unlocks. */
void lock_ranges_set(struct lock_ranges *r, uint64_t start, uint64_t end, uint32_t type);

/* The first range that has bytes in start to end and, if `type` is not 0, that type; or NULL. */
const struct lock_range *lock_ranges_find(const struct lock_ranges *r, uint64_t start, uint64_t end,
                                          uint32_t type);

/* Frees the memory and leaves {0}. */
void lock_ranges_release(struct lock_ranges *r);

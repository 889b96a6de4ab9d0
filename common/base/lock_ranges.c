#include "base/lock_ranges.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

int lock_ranges_reserve(struct lock_ranges *r)
{
    if (r->allocated - r->count >= LOCK_RANGES_GROWTH)
        return 0;
    size_t allocated = r->allocated ? 2 * r->allocated : 4;
    struct lock_range *items = realloc(r->items, allocated * sizeof *items);
    if (!items)
        return -ENOMEM;
    r->items = items;
    r->allocated = allocated;
    return 0;
}

/* Joins neighbours from index `at` on, as long as they are before index `to`. */
static void join(struct lock_ranges *r, size_t at, size_t to)
{
    while (at < to && at + 1 < r->count) {
        struct lock_range *one = &r->items[at], *next = one + 1;
        if (one->type == next->type && one->end + 1 == next->start) {
            one->end = next->end;
            memmove(next, next + 1, (r->count - at - 2) * sizeof *next);
            r->count--;
        } else {
            at++;
        }
    }
}

void lock_ranges_set(struct lock_ranges *r, uint64_t start, uint64_t end, uint32_t type)
{
    size_t first = 0;
    while (first < r->count && r->items[first].end < start)
        first++;
    size_t beyond = first;
    while (beyond < r->count && r->items[beyond].start <= end)
        beyond++;
    /* What takes the place of items[first … beyond - 1]. */
    struct lock_range fresh[1 + LOCK_RANGES_GROWTH];
    size_t n = 0;
    if (first < beyond && r->items[first].start < start) {
        fresh[n] = r->items[first];
        fresh[n++].end = start - 1;
    }
    if (type)
        fresh[n++] = (struct lock_range){.start = start, .end = end, .type = type};
    if (first < beyond && r->items[beyond - 1].end > end) {
        fresh[n] = r->items[beyond - 1];
        fresh[n++].start = end + 1;
    }
    size_t count = r->count - (beyond - first) + n;
    assert(count <= r->allocated);
    if (r->count > beyond)
        memmove(r->items + first + n, r->items + beyond, (r->count - beyond) * sizeof *r->items);
    if (n > 0)
        memcpy(r->items + first, fresh, n * sizeof *fresh);
    r->count = count;
    join(r, first > 0 ? first - 1 : 0, first + n);
}

const struct lock_range *lock_ranges_find(const struct lock_ranges *r, uint64_t start, uint64_t end,
                                          uint32_t type)
{
    for (size_t i = 0; i < r->count; i++) {
        const struct lock_range *one = &r->items[i];
        if (one->start <= end && one->end >= start && (!type || one->type == type))
            return one;
    }
    return NULL;
}

void lock_ranges_release(struct lock_ranges *r)
{
    free(r->items);
    *r = (struct lock_ranges){0};
}

/* Allocation that fails on order, in programs linked with -Wl,--wrap for malloc, calloc,
 * realloc and free. Counts what the program's own code (not shared libraries) holds. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* The n-th allocation from now on fails (n >= 1), and with `all` every later one. 0: none
 * from now on. */
void malloc_fail_at(size_t n, bool all);

/* True when an allocation has failed since malloc_fail_at() of a number but 0. */
bool malloc_has_failed(void);

/* Blocks and bytes allocated and not freed. */
size_t malloc_blocks(void);
size_t malloc_bytes(void);

/* The most bytes at once since malloc_reset_peak(). */
size_t malloc_peak(void);
void malloc_reset_peak(void);

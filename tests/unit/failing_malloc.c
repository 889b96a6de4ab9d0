#include "failing_malloc.h"

#include <malloc.h>
#include <stdlib.h>

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *old, size_t size);
void __real_free(void *p);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *old, size_t size);
void __wrap_free(void *p);

static size_t until_failure;
static bool fail_all;
static bool failed;
static size_t blocks;
static size_t bytes;
static size_t peak;

void malloc_fail_at(size_t n, bool all)
{
    until_failure = n;
    fail_all = n > 0 && all;
    if (n > 0)
        failed = false;
}

bool malloc_has_failed(void)
{
    return failed;
}

size_t malloc_blocks(void)
{
    return blocks;
}

size_t malloc_bytes(void)
{
    return bytes;
}

size_t malloc_peak(void)
{
    return peak;
}

void malloc_reset_peak(void)
{
    peak = bytes;
}

static bool must_fail(void)
{
    if (until_failure == 0 && failed && fail_all)
        return true;
    if (until_failure == 0 || --until_failure > 0)
        return false;
    failed = true;
    return true;
}

static void *count(void *p)
{
    if (p) {
        blocks++;
        bytes += malloc_usable_size(p);
        if (bytes > peak)
            peak = bytes;
    }
    return p;
}

static void discount(void *p)
{
    if (p) {
        blocks--;
        bytes -= malloc_usable_size(p);
    }
}

void *__wrap_malloc(size_t size)
{
    return must_fail() ? NULL : count(__real_malloc(size));
}

void *__wrap_calloc(size_t n, size_t size)
{
    return must_fail() ? NULL : count(__real_calloc(n, size));
}

void *__wrap_realloc(void *old, size_t size)
{
    if (must_fail())
        return NULL;
    discount(old);
    return count(__real_realloc(old, size));
}

void __wrap_free(void *p)
{
    discount(p);
    __real_free(p);
}

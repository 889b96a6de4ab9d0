/* Objects by number. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "failing_malloc.h"
#include "pool.h"

#define COUNT 10000

static size_t size_of(size_t n)
{
    return 1 + n * 7 % 300;
}

static void test_objects_stay_where_they_are(void **unused)
{
    struct pool p = {0};
    static uint32_t numbers[COUNT];
    static uint8_t *objects[COUNT];
    assert_null(pool_at(&p, 0));
    for (size_t i = 0; i < COUNT; i++) {
        objects[i] = pool_new(&p, size_of(i), &numbers[i]);
        assert_non_null(objects[i]);
        assert_int_not_equal(numbers[i], 0);
        assert_int_equal((uintptr_t)objects[i] % POOL_UNIT, 0);
        for (size_t at = 0; at < size_of(i); at++)
            assert_int_equal(objects[i][at], 0);
        memset(objects[i], (int)(i % 251), size_of(i));
    }
    /* Every third goes, and others take their place. */
    for (size_t i = 0; i < COUNT; i += 3)
        pool_free(&p, numbers[i]);
    for (size_t i = 0; i < COUNT; i += 3) {
        objects[i] = pool_new(&p, size_of(i), &numbers[i]);
        assert_non_null(objects[i]);
        for (size_t at = 0; at < size_of(i); at++)
            assert_int_equal(objects[i][at], 0);
        memset(objects[i], (int)(i % 251), size_of(i));
    }
    for (size_t i = 0; i < COUNT; i++) {
        assert_ptr_equal(pool_at(&p, numbers[i]), objects[i]);
        for (size_t at = 0; at < size_of(i); at++)
            assert_int_equal(objects[i][at], i % 251);
    }
    pool_release(&p);
    assert_null(p.chunks);
}

static void test_what_is_free_goes_back(void **unused)
{
    struct pool p = {0};
    static uint32_t numbers[COUNT];
    size_t blocks = malloc_blocks();
    for (size_t i = 0; i < COUNT; i++)
        assert_non_null(pool_new(&p, 100, &numbers[i]));
    size_t most = malloc_bytes();
    for (size_t i = 0; i < COUNT; i++)
        if (i % POOL_CHUNK)
            pool_free(&p, numbers[i]);
    assert_int_equal(malloc_bytes(), most); /* one is left in each */
    for (size_t i = 0; i < COUNT; i += POOL_CHUNK)
        pool_free(&p, numbers[i]);
    assert_int_equal(malloc_blocks(), blocks + 1);
    uint32_t count = p.count;
    for (size_t i = 0; i < COUNT; i++)
        assert_non_null(pool_new(&p, 100, &numbers[i]));
    assert_int_equal(p.count, count); /* in the same places */
    assert_int_equal(malloc_bytes(), most);
    pool_release(&p);
    assert_int_equal(malloc_blocks(), blocks);
}

static void test_without_memory(void **unused)
{
    struct pool p = {0};
    uint32_t number = 0, other;
    for (size_t n = 1; n <= 2; n++) { /* the table of chunks, and a chunk */
        malloc_fail_at(n, false);
        assert_null(pool_new(&p, 16, &number));
        assert_true(malloc_has_failed());
        malloc_fail_at(0, false);
    }
    assert_int_equal(number, 0);
    void *object = pool_new(&p, 16, &number);
    assert_non_null(object);
    assert_ptr_equal(pool_at(&p, number), object);
    malloc_fail_at(1, true);
    assert_non_null(pool_new(&p, 16, &other)); /* there is room */
    assert_null(pool_new(&p, 24, &other));
    malloc_fail_at(0, false);
    assert_ptr_equal(pool_at(&p, number), object);
    pool_release(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_objects_stay_where_they_are),
        cmocka_unit_test(test_what_is_free_goes_back),
        cmocka_unit_test(test_without_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The file that gives workspaces of many services numbers of one mount. */
#include "unit.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "slots.h"

#define NUMBER(slot, low) ((uint64_t)(slot) << 40 | (low))

static const uint8_t first_id[16] = "first", second_id[16] = "second";
static struct slots_service first_service, second_service;
static const struct slots_service *const first = &first_service, *const second = &second_service;
static char directory[] = "/tmp/berth-slots-XXXXXX";
static char path[64];

static struct slots_service service(const char *url, const uint8_t id[16])
{
    struct slots_service s;
    assert_int_equal(slots_service_of(url, id, &s), 0);
    return s;
}

static int make(void **state)
{
    if (!mkdtemp(directory))
        return -1;
    first_service = service("unix:/a", first_id);
    second_service = service("unix:/b", second_id);
    (void)snprintf(path, sizeof path, "%s/joined", directory);
    return 0;
}

static int clean(void **state)
{
    (void)unlink(path);
    return rmdir(directory);
}

static struct slots *reopen(struct slots *old)
{
    struct slots *s;
    slots_free(old);
    assert_int_equal(slots_open(path, &s), 0);
    return s;
}

static void test_numbers(void **state)
{
    struct slots *s = reopen(NULL);
    uint64_t a = slots_number(s, first, NUMBER(1, 77)), b = slots_number(s, second, NUMBER(1, 77));
    uint64_t c = slots_number(s, first, NUMBER(2, 77));
    assert_true(a != b && b != c && a != c);
    assert_int_equal(a & 0xffffffffff, 77);
    assert_int_equal(slots_number(s, first, NUMBER(1, 78)), a + 1);
    /* They are the same again, and nobody else's. */
    s = reopen(s);
    assert_int_equal(slots_number(s, second, NUMBER(1, 77)), b);
    assert_int_equal(slots_number(s, first, NUMBER(1, 77)), a);
    uint64_t d = slots_number(s, second, NUMBER(9, 77));
    assert_true(d != a && d != b && d != c);
    slots_free(s);
}

static void test_two_mounts(void **state)
{
    struct slots *s = reopen(NULL), *t = reopen(NULL);
    uint64_t a = slots_number(s, first, NUMBER(100, 1));
    uint64_t b = slots_number(t, second, NUMBER(100, 1));
    assert_true(a != b);
    assert_int_equal(slots_number(t, first, NUMBER(100, 1)), a);
    assert_int_equal(slots_number(s, second, NUMBER(100, 1)), b);
    slots_free(s);
    slots_free(t);
}

/* Somebody keeps the lock: nobody waits, and what was given then stays. */
static void test_locked(void **state)
{
    struct slots *s = reopen(NULL);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    alarm(20);
    uint64_t a = slots_number(s, first, NUMBER(500, 5)), b = slots_number(s, first, NUMBER(501, 5));
    alarm(0);
    assert_true(a != b);
    assert_int_equal(close(fd), 0);
    assert_int_equal(slots_number(s, first, NUMBER(500, 6)), a + 1);
    uint64_t c = slots_number(s, first, NUMBER(502, 5));
    assert_true(c >> 40 < 0xf00000 && a >> 40 >= 0xf00000);
    s = reopen(s);
    assert_int_equal(slots_number(s, first, NUMBER(502, 5)), c);
    slots_free(s);
}

static void test_damaged(void **state)
{
    struct slots *s = reopen(NULL);
    uint64_t a = slots_number(s, first, NUMBER(1, 1));
    uint64_t b = slots_number(s, second, NUMBER(1, 1));
    slots_free(s);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    off_t size = lseek(fd, 0, SEEK_END);
    /* One record overwritten, and the last one cut short. */
    assert_int_equal(pwrite(fd, "damage", 6, (off_t)(((a >> 40) - 1) * 24)), 6);
    assert_int_equal(ftruncate(fd, size - 3), 0);
    assert_int_equal(close(fd), 0);
    s = reopen(NULL);
    assert_int_equal(slots_number(s, second, NUMBER(1, 1)), b);
    uint64_t again = slots_number(s, first, NUMBER(1, 1));
    assert_true(again != a && again != b);
    s = reopen(s);
    assert_int_equal(slots_number(s, first, NUMBER(1, 1)), again);
    slots_free(s);
}

/* What a service says of itself gives it nothing of another's, wherever that is. */
static void test_one_that_takes_an_id(void **state)
{
    const struct slots_service liar = service("unix:/liar", first_id);
    struct slots *s = reopen(NULL);
    uint64_t lied = slots_number(s, &liar, NUMBER(700, 1));
    uint64_t a = slots_number(s, first, NUMBER(700, 1));
    assert_true(a != lied);
    s = reopen(s);
    assert_int_equal(slots_number(s, &liar, NUMBER(700, 1)), lied);
    assert_int_equal(slots_number(s, first, NUMBER(700, 1)), a);
    slots_free(s);
}

static void test_one_that_makes_slots_up(void **state)
{
    struct slots *s = reopen(NULL);
    for (uint64_t i = 1000; i < 1000 + SLOTS_PER_URL_MAX + 10; i++)
        (void)slots_number(s, second, NUMBER(i, 1));
    /* The last ones share slots that nobody is given. */
    assert_true(slots_number(s, second, NUMBER(1000 + SLOTS_PER_URL_MAX + 9, 1)) >> 40 >= 0xf00000);
    assert_true(slots_number(s, first, NUMBER(5, 1)) >> 40 < 0xf00000);
    slots_free(s);
}

/* Nor does it get more by saying that it is another one. */
static void test_one_that_makes_ids_up(void **state)
{
    struct slots *s = reopen(NULL);
    struct slots_service liar = service("unix:/c", first_id);
    for (uint32_t i = 0; i < SLOTS_PER_URL_MAX + 10; i++) {
        memcpy(liar.id, &i, sizeof i);
        (void)slots_number(s, &liar, NUMBER(1, 1));
    }
    assert_true(slots_number(s, &liar, NUMBER(1, 1)) >> 40 >= 0xf00000);
    const struct slots_service honest = service("unix:/d", first_id);
    assert_true(slots_number(s, &honest, NUMBER(1, 1)) >> 40 < 0xf00000);
    slots_free(s);
}

/* Nobody reads on for ever. */
static void test_a_file_without_end(void **state)
{
    struct slots *s = reopen(NULL);
    uint64_t a = slots_number(s, first, NUMBER(1, 1));
    slots_free(s);
    assert_int_equal(truncate(path, (off_t)1 << 40), 0);
    alarm(30);
    s = reopen(NULL);
    assert_int_equal(slots_number(s, first, NUMBER(1, 1)), a);
    assert_true(slots_number(s, first, NUMBER(40000, 1)) >> 40 >= 0xf00000);
    alarm(0);
    slots_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_two_mounts),
        cmocka_unit_test(test_locked),
        cmocka_unit_test(test_damaged),
        cmocka_unit_test(test_one_that_takes_an_id),
        cmocka_unit_test(test_one_that_makes_slots_up),
        cmocka_unit_test(test_one_that_makes_ids_up),
        cmocka_unit_test(test_a_file_without_end),
    };
    return cmocka_run_group_tests(tests, make, clean);
}

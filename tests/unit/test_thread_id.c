#include "unit.h"

#include <errno.h>

#include "names/thread_id.h"

static void assert_name(const char *id, size_t len, const char *name)
{
    char got[THREAD_NAME_MAX + 1];
    uint8_t back[THREAD_ID_MAX];
    assert_int_equal(thread_id_to_name(bytes_of(id, len), got), 0);
    assert_string_equal(got, name);
    assert_true(thread_id_has_name(bytes_of(id, len), bytes_of_string(name)));
    int n = thread_id_from_name(bytes_of_string(name), back);
    assert_int_equal(n, len);
    assert_memory_equal(back, id, len);
}

static void names_are_readable(void **state)
{
    assert_name("thread_abc", 10, "thread_abc");
    assert_name("-x.9", 4, "-x.9");
    assert_name("T/2024:x", 8, "T%2F2024%3Ax");
    assert_name("../../etc", 9, "%2E.%2F..%2Fetc");
    assert_name(".", 1, "%2E");
    assert_name("..", 2, "%2E.");
    assert_name(".hidden", 7, "%2Ehidden");
    assert_name("a b", 3, "a%20b");
    assert_name("%41", 3, "%2541");
    assert_name("~", 1, "%7E");
    assert_name("\0", 1, "%00");
    assert_name("\xf0\x9f\x9a\xa2", 4, "%F0%9F%9A%A2");
    assert_name("\xff\xfe", 2, "%FF%FE");
    assert_name("caf\xc3\xa9", 5, "caf%C3%A9");   /* composed */
    assert_name("cafe\xcc\x81", 6, "cafe%CC%81"); /* decomposed */
}

static void case_is_kept(void **state)
{
    assert_name("Thread", 6, "Thread");
    assert_name("thread", 6, "thread");
    assert_false(thread_id_has_name(bytes_of_string("Thread"), bytes_of_string("thread")));
}

static void the_bounds_of_ids(void **state)
{
    uint8_t id[THREAD_ID_MAX + 1];
    memset(id, 'a', sizeof id);
    char name[THREAD_NAME_MAX + 1] = "untouched";
    assert_int_equal(thread_id_to_name(bytes_of(id, 0), name), -EINVAL);
    assert_int_equal(thread_id_to_name(bytes_of(id, sizeof id), name), -EINVAL);
    assert_string_equal(name, "untouched");
    assert_int_equal(thread_id_to_name(bytes_of(id, THREAD_NAME_MAX), name), 0);
    assert_int_equal(strlen(name), THREAD_NAME_MAX);
    assert_null(strchr(name, '~'));
    assert_int_equal(thread_id_to_name(bytes_of(id, THREAD_ID_MAX), name), 0);
    assert_int_equal(strlen(name), THREAD_NAME_MAX);
}

static void long_ids_are_shortened(void **state)
{
    /* sha256 of 256 times 'a' */
    static const char hash[] = "02d7160d77e18c6447be80c2e355c7ed4388545271702c50253b0914c65ce5fe";
    uint8_t id[256];
    memset(id, 'a', sizeof id);
    char name[THREAD_NAME_MAX + 1];
    assert_int_equal(thread_id_to_name(bytes_of(id, sizeof id), name), 0);
    assert_int_equal(strlen(name), 255);
    assert_int_equal(strspn(name, "a"), 190);
    assert_string_equal(name + 190,
                        "~"
                        "02d7160d77e18c6447be80c2e355c7ed4388545271702c50253b0914c65ce5fe");
    assert_string_equal(name + 191, hash);
    uint8_t back[THREAD_ID_MAX];
    assert_int_equal(thread_id_from_name(bytes_of_string(name), back), -ENODATA);
    assert_true(thread_id_has_name(bytes_of(id, sizeof id), bytes_of_string(name)));

    /* Whole escapes only: 63 of three bytes are 189, the next would pass 190. */
    memset(id, '/', sizeof id);
    assert_int_equal(thread_id_to_name(bytes_of(id, 86), name), 0);
    assert_int_equal(strlen(name), 189 + 1 + 64);
    assert_int_equal(name[189], '~');
    assert_int_equal(thread_id_from_name(bytes_of_string(name), back), -ENODATA);
    assert_int_equal(thread_id_to_name(bytes_of(id, 85), name), 0); /* 255 to the byte */
    assert_int_equal(strlen(name), 255);
    assert_int_equal(thread_id_from_name(bytes_of_string(name), back), 85);
}

/* Only names that an ID has are names. */
static void other_names_are_refused(void **state)
{
    static const char *const bad[] = {
        "",    ".",   "..",   ".a",    "a/b", "a b", "a\n",  "%",        "%2",   "a%2",   "%2f",
        "%G0", "%41", "a%2E", "%2Ea~", "~",   "a~b", "%%25", "\xc3\xa9", "a%5f", "x%00%", "+",
    };
    uint8_t id[THREAD_ID_MAX];
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(thread_id_from_name(bytes_of_string(bad[i]), id), -EINVAL);
    assert_int_equal(thread_id_from_name(bytes_of("a\0", 2), id), -EINVAL);

    char name[300];
    memset(name, 'a', sizeof name);
    assert_int_equal(thread_id_from_name(bytes_of(name, 256), id), -EINVAL);
    /* Shortened forms whose prefix or hash could not be. */
    name[190] = '~';
    assert_int_equal(thread_id_from_name(bytes_of(name, 255), id), -ENODATA);
    assert_int_equal(thread_id_from_name(bytes_of(name, 254), id), -EINVAL);
    assert_int_equal(thread_id_from_name(bytes_of(name + 3, 252), id), -EINVAL);
    assert_int_equal(thread_id_from_name(bytes_of(name + 2, 253), id), -ENODATA);
    name[200] = 'A';
    assert_int_equal(thread_id_from_name(bytes_of(name, 255), id), -EINVAL);
    name[200] = 'g';
    assert_int_equal(thread_id_from_name(bytes_of(name, 255), id), -EINVAL);
    name[200] = '0';
    name[0] = '.';
    assert_int_equal(thread_id_from_name(bytes_of(name, 255), id), -EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_are_readable),      cmocka_unit_test(case_is_kept),
        cmocka_unit_test(the_bounds_of_ids),       cmocka_unit_test(long_ids_are_shortened),
        cmocka_unit_test(other_names_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

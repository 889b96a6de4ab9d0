#include "unit.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "base/base64.h"
#include "base/buffer.h"
#include "base/clock.h"
#include "base/dir.h"
#include "base/failure.h"
#include "base/log.h"
#include "base/table.h"
#include "failing_malloc.h"

/* --- buffer -------------------------------------------------------------------- */
static void buffer_appends_and_consumes(void **state)
{
    struct buffer b = {0};
    assert_int_equal(buffer_append(&b, NULL, 0), 0);
    buffer_consume(&b, 0);
    assert_null(b.data);
    assert_int_equal(buffer_append_u8(&b, 0x11), 0);
    assert_int_equal(buffer_append_u16(&b, 0x2233), 0);
    assert_int_equal(buffer_append_u32(&b, 0x44556677), 0);
    assert_int_equal(buffer_append_u64(&b, UINT64_C(0x8899aabbccddeeff)), 0);
    static const uint8_t expected[] = {0x11, 0x33, 0x22, 0x77, 0x66, 0x55, 0x44, 0xff,
                                       0xee, 0xdd, 0xcc, 0xbb, 0xaa, 0x99, 0x88};
    assert_true(bytes_equal(buffer_view(&b), bytes_of(expected, sizeof expected)));
    buffer_consume(&b, 3);
    assert_int_equal(b.len, sizeof expected - 3);
    assert_memory_equal(b.data, expected + 3, b.len);
    buffer_consume(&b, b.len);
    assert_int_equal(b.len, 0);
    buffer_release(&b);
    assert_null(b.data);
    assert_int_equal(b.allocated, 0);
}

static void buffer_prints(void **state)
{
    struct buffer b = {0};
    assert_int_equal(buffer_printf(&b, "%s %d;", "one", 1), 0);
    assert_int_equal(buffer_printf(&b, "%0100d", 7), 0);
    assert_int_equal(b.len, 6 + 100);
    assert_int_equal(b.data[b.len], '\0');
    assert_memory_equal(b.data, "one 1;000", 9);
    buffer_release(&b);
}

static void buffer_survives_failure(void **state)
{
    struct buffer b = {0};
    assert_int_equal(buffer_append(&b, "kept", 4), 0);
    assert_int_equal(buffer_reserve(&b, SIZE_MAX), -EOVERFLOW);
    assert_int_equal(buffer_reserve(&b, SIZE_MAX / 2), -EOVERFLOW);
    static const char more[100];
    malloc_fail_at(1, true);
    assert_int_equal(buffer_append(&b, more, sizeof more), -ENOMEM);
    assert_int_equal(buffer_printf(&b, "%0100d", 7), -ENOMEM);
    malloc_fail_at(0, false);
    assert_true(bytes_equal(buffer_view(&b), bytes_of_string("kept")));
    buffer_release(&b);
}

/* --- bytes --------------------------------------------------------------------- */
static void bytes_compare(void **state)
{
    assert_true(bytes_equal((struct bytes){0}, bytes_of("", 0)));
    assert_true(bytes_equal(bytes_of_string(NULL), (struct bytes){0}));
    assert_true(bytes_equal(bytes_of("a\0b", 3), bytes_of("a\0b", 3)));
    assert_false(bytes_equal(bytes_of("a\0b", 3), bytes_of("a\0c", 3)));
    assert_false(bytes_equal(bytes_of("a", 1), bytes_of("ab", 2)));
}

/* --- table --------------------------------------------------------------------- */
enum { KEYS = 3000 };

/* Against a plain array, with keys that differ in few bits and come and go. */
static void table_is_a_map(void **state)
{
    static int values[KEYS];
    static bool present[KEYS];
    static const unsigned shifts[] = {0, 12, 40, 52};
    for (size_t s = 0; s < sizeof shifts / sizeof *shifts; s++) {
        struct table t = {0};
        memset(present, 0, sizeof present);
        size_t count = 0;
        unsigned random = 1;
        assert_null(table_get(&t, 0));
        assert_null(table_take(&t, 0));
        for (int step = 0; step < 20000; step++) {
            random = random * 1103515245 + 12345;
            size_t i = (random >> 8) % KEYS;
            uint64_t key = (uint64_t)i << shifts[s];
            assert_ptr_equal(table_get(&t, key), present[i] ? &values[i] : NULL);
            if (random & 0x80) {
                void *old = &t;
                assert_int_equal(table_put(&t, key, &values[i], &old), 0);
                assert_ptr_equal(old, present[i] ? &values[i] : NULL);
                count += !present[i];
                present[i] = true;
            } else {
                assert_ptr_equal(table_take(&t, key), present[i] ? &values[i] : NULL);
                count -= present[i];
                present[i] = false;
            }
            assert_int_equal(t.count, count);
        }
        for (size_t i = 0; i < KEYS; i++)
            assert_ptr_equal(table_get(&t, (uint64_t)i << shifts[s]),
                             present[i] ? &values[i] : NULL);
        size_t seen = 0;
        int *value;
        for (size_t i = 0; (value = table_next(&t, &i));) {
            assert_true(present[value - values]);
            seen++;
        }
        assert_int_equal(seen, count);
        assert_true(t.count <= t.capacity / 4 * 3);
        table_release(&t);
    }
}

static void table_survives_failure(void **state)
{
    int value;
    struct table t = {0};
    malloc_fail_at(1, true);
    assert_int_equal(table_put(&t, 1, &value, NULL), -ENOMEM);
    malloc_fail_at(0, false);
    assert_int_equal(t.count, 0);
    for (uint64_t i = 0; i < 12; i++)
        assert_int_equal(table_put(&t, i, &value, NULL), 0);
    malloc_fail_at(1, true);
    assert_int_equal(table_put(&t, 12, &value, NULL), -ENOMEM);
    malloc_fail_at(0, false);
    assert_int_equal(t.count, 12);
    assert_null(table_get(&t, 12));
    for (uint64_t i = 0; i < 12; i++)
        assert_ptr_equal(table_get(&t, i), &value);
    table_release(&t);
}

static void pairs_hash_apart(void **state)
{
    assert_true(table_hash_pair(1, 2) == table_hash_pair(1, 2));
    assert_true(table_hash_pair(1, 2) != table_hash_pair(2, 1));
    assert_true(table_hash_pair(0, 0) != table_hash_pair(0, 1));
}

/* --- log, failure, clock ------------------------------------------------------- */
static void log_escapes(void **state)
{
    char out[32];
    assert_string_equal(log_escape("plain text~", 11, out, sizeof out), "plain text~");
    assert_string_equal(log_escape("\x1b[2J\n\\\xff", 7, out, sizeof out),
                        "\\x1b[2J\\x0a\\x5c\\xff");
    assert_string_equal(log_escape("", 0, out, sizeof out), "");
    assert_string_equal(log_escape("\0", 1, out, sizeof out), "\\x00");
    char small[8];
    assert_string_equal(log_escape("abcdefghijkl", 12, small, sizeof small), "abcd...");
    assert_string_equal(log_escape("\n\n", 2, small, sizeof small), "\\x0a...");
    char tiny[4];
    assert_string_equal(log_escape("abc", 3, tiny, sizeof tiny), "...");
}

static void failure_is_cut(void **state)
{
    struct failure f;
    char text[2000];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    assert_int_equal(failure_set(&f, -ENOENT, "%s", text), -ENOENT);
    assert_int_equal(f.error, -ENOENT);
    assert_int_equal(strlen(f.text), FAILURE_TEXT_MAX - 1);
}

static void clock_does_not_go_back(void **state)
{
    uint64_t before = clock_monotonic_ns();
    assert_true(before > 0);
    assert_true(clock_monotonic_ns() >= before);
}

/* --- cleanup ------------------------------------------------------------------- */
/* Kept apart: the compiler may leave out an allocation that it sees freed. */
__attribute__((noinline)) static char *allocate(size_t size)
{
    char *volatile p = malloc(size);
    return p;
}

static void cleanup_frees_once(void **state)
{
    size_t before = malloc_blocks();
    char *kept;
    {
        _cleanup_free_ char *freed = allocate(10);
        _cleanup_free_ char *taken = allocate(10);
        kept = take_ptr(taken);
        assert_null(taken);
        assert_non_null(freed);
        _cleanup_buffer_ struct buffer b = {0};
        assert_int_equal(buffer_append(&b, "x", 1), 0);
    }
    assert_int_equal(malloc_blocks(), before + 1);
    free(kept);
}

/* --- base64 ---------------------------------------------------------------------- */

static void base64_is_written_and_read(void **state)
{
    static const struct {
        const char *text, *padded, *url;
    } cases[] = {
        {"", "", ""},
        {"f", "Zg==", "Zg"},
        {"fo", "Zm8=", "Zm8"},
        {"foo", "Zm9v", "Zm9v"},
        {"foob", "Zm9vYg==", "Zm9vYg"},
        {"\xfb\xff\xbf", "+/+/", "-_-_"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct bytes data = bytes_of_string(cases[i].text);
        const char *const texts[] = {cases[i].padded, cases[i].url};
        _cleanup_buffer_ struct buffer b = {0};
        char out[16];
        assert_int_equal(base64_append(&b, BASE64, data), 0);
        assert_true(bytes_equal(buffer_view(&b), bytes_of_string(cases[i].padded)));
        size_t n = base64_write(BASE64_URL_UNPADDED, data, out);
        assert_true(bytes_equal(bytes_of(out, n), bytes_of_string(cases[i].url)));
        for (size_t k = 0; k < 2; k++) {
            assert_int_equal(base64_read(bytes_of_string(texts[k]), (uint8_t *)out, &n), 0);
            assert_true(bytes_equal(bytes_of(out, n), data));
        }
    }
}

static void base64_has_one_text(void **state)
{
    static const char *const bad[] = {"Z",      "Zg=",  "Zh==",     "Zh",      "Zm9=",
                                      "Z===",   "====", "Zg==Zg==", "Zm9v Zg", "+_+_",
                                      "Zm9v\n", "=",    "Zg==="};
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        uint8_t out[16];
        size_t n;
        assert_int_equal(base64_read(bytes_of_string(bad[i]), out, &n), -EINVAL);
    }
}

/* --- directories ------------------------------------------------------------------ */

static void names_of_a_directory(void **state)
{
    static const char *const names[] = {"...", "..name", ".a"};
    char path[] = "/tmp/berth-base-XXXXXX";
    assert_non_null(mkdtemp(path));
    _cleanup_close_ int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    for (size_t i = 0; i < ARRAY_SIZE(names); i++)
        assert_int_equal(mkdirat(fd, names[i], 0700), 0);
    assert_int_equal(symlinkat("..name", fd, "link"), 0);
    /* Twice: the second starts at the beginning, wherever the first one is. */
    for (int round = 0; round < 2; round++) {
        _cleanup_dir_ DIR *dir = NULL;
        const struct dirent *entry;
        int count = 0;
        assert_int_equal(dir_open(fd, ".", &dir), 0);
        while (dir_next(dir, &entry) == 1) {
            assert_false(dir_is_dot(entry->d_name));
            count++;
        }
        assert_int_equal(count, ARRAY_SIZE(names) + 1);
    }
    DIR *dir = NULL;
    assert_int_equal(dir_open(fd, "link", &dir), -ENOTDIR);
    assert_int_equal(dir_open(fd, "none", &dir), -ENOENT);
    assert_null(dir);
    assert_int_equal(unlinkat(fd, "link", 0), 0);
    for (size_t i = 0; i < ARRAY_SIZE(names); i++)
        assert_int_equal(unlinkat(fd, names[i], AT_REMOVEDIR), 0);
    assert_int_equal(rmdir(path), 0);
}

/* What cannot be read has not ended. */
static void names_that_cannot_be_read(void **state)
{
    _cleanup_dir_ DIR *dir = opendir("/proc/self");
    const struct dirent *entry;
    assert_non_null(dir);
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    assert_int_equal(dup3(null, dirfd(dir), O_CLOEXEC), dirfd(dir));
    assert_int_equal(close(null), 0);
    assert_int_equal(dir_next(dir, &entry), -ENOTDIR);
    dir_close(&dir);
    assert_null(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buffer_appends_and_consumes),
        cmocka_unit_test(buffer_prints),
        cmocka_unit_test(buffer_survives_failure),
        cmocka_unit_test(bytes_compare),
        cmocka_unit_test(base64_is_written_and_read),
        cmocka_unit_test(base64_has_one_text),
        cmocka_unit_test(table_is_a_map),
        cmocka_unit_test(table_survives_failure),
        cmocka_unit_test(pairs_hash_apart),
        cmocka_unit_test(log_escapes),
        cmocka_unit_test(failure_is_cut),
        cmocka_unit_test(clock_does_not_go_back),
        cmocka_unit_test(cleanup_frees_once),
        cmocka_unit_test(names_of_a_directory),
        cmocka_unit_test(names_that_cannot_be_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

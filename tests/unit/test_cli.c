/* What berth is made of, without a service: text for terminals, the mount table, work in
 * bounded time, suggestions. */
#include "unit.h"

#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli/bounded.h"
#include "cli/exec_result.h"
#include "cli/help.h"
#include "cli/here.h"
#include "cli/mounts.h"
#include "cli/programs.h"
#include "cli/text.h"
#include "cli/top_view.h"

/* --- text ------------------------------------------------------------------------ */

static void check_escape(const char *in, size_t len, enum text_form form, const char *expected)
{
    _cleanup_buffer_ struct buffer out = {0};
    assert_int_equal(text_escape(&out, bytes_of(in, len), form), 0);
    assert_int_equal(out.len, strlen(expected));
    assert_memory_equal(out.len ? out.data : (const void *)"", expected, out.len);
}

#define ESCAPES(in, expected) check_escape(in, sizeof(in) - 1, TEXT_SENTENCE, expected)

static void test_text_that_may_stay(void **state)
{
    ESCAPES("", "");
    ESCAPES("plain ~\"'\\ text", "plain ~\"'\\ text");
    ESCAPES("caf\xc3\xa9 \xe6\xbc\xa2 \xf0\x9f\x98\x80",
            "caf\xc3\xa9 \xe6\xbc\xa2 \xf0\x9f\x98\x80");
    check_escape("a\\b", 3, TEXT_VALUE, "a\\\\b");
}

static void test_text_that_would_harm(void **state)
{
    ESCAPES("\x1b[31m", "\\x1b[31m");
    ESCAPES("a\0b\tc\nd\re\x7f", "a\\x00b\\x09c\\x0ad\\x0de\\x7f");
    ESCAPES("\xc2\x9b", "\\xc2\\x9b");                   /* CSI of eight bits */
    ESCAPES("\xe2\x80\xae", "\\xe2\\x80\\xae");          /* right-to-left override */
    ESCAPES("\xe2\x81\xa6", "\\xe2\\x81\\xa6");          /* isolate */
    ESCAPES("\xe2\x80\x8b", "\\xe2\\x80\\x8b");          /* zero width */
    ESCAPES("\xe2\x80\xa8", "\\xe2\\x80\\xa8");          /* line separator */
    ESCAPES("\xf3\xa0\x80\xa1", "\\xf3\\xa0\\x80\\xa1"); /* tag */
    ESCAPES("\xef\xbb\xbf", "\\xef\\xbb\\xbf");          /* byte order mark */
}

static void test_text_that_is_not_utf8(void **state)
{
    ESCAPES("\x80", "\\x80");
    ESCAPES("\xff\xfe", "\\xff\\xfe");
    ESCAPES("x\xc3", "x\\xc3");                          /* cut off */
    ESCAPES("\xc3(", "\\xc3(");                          /* the next byte is not eaten */
    ESCAPES("\xc0\xaf", "\\xc0\\xaf");                   /* over-long */
    ESCAPES("\xe0\x80\xaf", "\\xe0\\x80\\xaf");          /* over-long */
    ESCAPES("\xed\xa0\x80", "\\xed\\xa0\\x80");          /* surrogate */
    ESCAPES("\xf4\x90\x80\x80", "\\xf4\\x90\\x80\\x80"); /* past the last code point */
    assert_true(text_is_utf8(bytes_of_string("caf\xc3\xa9")));
    assert_false(text_is_utf8(bytes_of_string("caf\xc3")));
    assert_false(text_is_utf8(bytes_of_string("\xed\xa0\x80")));
}

/* --- the mount table --------------------------------------------------------------- */

static void test_mount_table(void **state)
{
    _cleanup_mount_table_ struct mount_table t = {0};
    static const char text[] =
        "21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
        "40 21 0:39 / /mnt/a\\040b\\011\\012\\134040 rw,nosuid shared:5 master:2 - fuse.berth "
        "unix:/run/x\\040y rw,user_id=1000,group_id=1000\n"
        "41 21 0:40 /part /mnt/bound rw - fuse.berth src ro,user_id=0,group_id=0\n"
        "not a line\n"
        "42 21 zero / /x rw - tmpfs none rw\n"
        "43 21 0:41 / /no-dash rw shared:1\n"
        "44 21 0:42 / /last rw - fuse.berthx src\n";
    assert_int_equal(mount_table_parse(text, &t), 0);
    assert_int_equal(t.count, 4);
    const struct mount_row *row = &t.rows[1];
    assert_int_equal(row->id, 40);
    assert_int_equal(row->minor, 39);
    assert_string_equal(row->point, "/mnt/a b\t\n\\040");
    assert_string_equal(row->source, "unix:/run/x y");
    assert_true(mount_row_is_berth(row));
    uid_t user;
    assert_int_equal(mount_row_user(row, &user), 0);
    assert_int_equal(user, 1000);
    assert_string_equal(t.rows[2].root, "/part");
    assert_false(mount_row_is_berth(&t.rows[0]));
    assert_false(mount_row_is_berth(&t.rows[3]));
    assert_int_equal(mount_row_user(&t.rows[3], &user), -ENODATA);
}

/* Whose a mount is decides whether it is believed. */
static void test_mount_user_is_read_exactly(void **state)
{
    static const struct {
        const char *options;
        int result;
        uid_t user;
    } cases[] = {
        {"rw,user_id=0", 0, 0},
        {"user_id=7,rw", 0, 7},
        {"rw,xuser_id=0,user_id=5", 0, 5},
        {"rw,group_id=0", -ENODATA, 0},
        {"rw,user_id=", -ENODATA, 0},
        {"rw,user_id=0x", -ENODATA, 0},
        {"", -ENODATA, 0},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        char options[64];
        (void)snprintf(options, sizeof options, "%s", cases[i].options);
        const struct mount_row row = {.super_options = options};
        uid_t user = 99;
        assert_int_equal(mount_row_user(&row, &user), cases[i].result);
        if (cases[i].result == 0)
            assert_int_equal(user, cases[i].user);
    }
}

static void test_the_uppermost_mount_counts(void **state)
{
    _cleanup_mount_table_ struct mount_table t = {0};
    assert_int_equal(mount_table_parse("1 0 0:1 / /m rw - ext4 below rw\n"
                                       "2 1 0:2 / /m rw - fuse.berth above rw\n",
                                       &t),
                     0);
    assert_string_equal(mount_table_find(&t, "/m")->source, "above");
    assert_null(mount_table_find(&t, "/m/x"));
}

/* --- bounded work ------------------------------------------------------------------- */

static int work_answers(const void *context, struct buffer *out)
{
    return buffer_append(out, context, strlen(context));
}

static int work_fails(const void *context, struct buffer *out)
{
    return -ENOTCONN;
}

static int work_sleeps(const void *context, struct buffer *out)
{
    (void)pause();
    return 0;
}

static int work_crashes(const void *context, struct buffer *out)
{
    _exit(3);
}

static int work_counts_descriptors(const void *context, struct buffer *out)
{
    int count = 0;
    for (int fd = 1; fd < 1024; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return buffer_append_u8(out, (uint8_t)count);
}

static int work_talks_for_ever(const void *context, struct buffer *out)
{
    return buffer_reserve(out, 1 << 20) < 0 ? -ENOMEM : (out->len = 1 << 20, 0);
}

static void test_bounded_work(void **state)
{
    _cleanup_buffer_ struct buffer answer = {0};
    assert_int_equal(bounded_run(work_answers, "yes", 10000, &answer), 0);
    assert_int_equal(answer.len, 3);
    assert_memory_equal(answer.data, "yes", 3);
    buffer_release(&answer);
    assert_int_equal(bounded_run(work_counts_descriptors, NULL, 10000, &answer), 0);
    assert_int_equal(answer.data[0], 0);
}

static void test_bounded_work_that_fails(void **state)
{
    struct buffer answer = {0};
    assert_int_equal(bounded_run(work_fails, NULL, 10000, &answer), -ENOTCONN);
    assert_int_equal(bounded_run(work_crashes, NULL, 10000, &answer), -EIO);
    assert_int_equal(bounded_run(work_talks_for_ever, NULL, 10000, &answer), -EIO);
    uint64_t before = clock_monotonic_ns();
    assert_int_equal(bounded_run(work_sleeps, NULL, 50, &answer), -ETIMEDOUT);
    assert_in_range(clock_monotonic_ns() - before, 50 * NSEC_PER_MSEC, 5 * NSEC_PER_SEC);
    assert_null(answer.data);
}

/* --- suggestions -------------------------------------------------------------------- */

static void test_suggestions(void **state)
{
    assert_string_equal(help_suggest("exce"), "exec");
    assert_string_equal(help_suggest("remove"), "rm");
    assert_string_equal(help_suggest("doc"), "doctor");
    assert_string_equal(help_suggest("crate"), "create");
    assert_null(help_suggest(""));
    assert_null(help_suggest("zzzzzz"));
    assert_null(help_suggest("an-extremely-long-word-that-is-none"));
}

/* --- what people are told of a command's end --------------------------------------- */

static void test_verdicts_as_sentences(void **state)
{
    static const struct {
        struct wire_exec_exit verdict;
        const char *text; /* of the service's */
        const char *expected;
        int status;
        bool unseen;
    } all[] = {
        {{.verdict = WIRE_VERDICT_EXITED, .code = 3}, "", "", 3},
        {{.verdict = WIRE_VERDICT_EXITED},
         "",
         "ended, but a mount has not confirmed what it changed",
         0,
         true},
        {{.verdict = WIRE_VERDICT_SIGNALED, .signal = 11}, "", "", 139},
        {{.verdict = WIRE_VERDICT_TIMED_OUT, .timeout_ms = 500, .removed = 1},
         "",
         "timed out after 0.5 s; 1 process removed",
         124},
        {{.verdict = WIRE_VERDICT_TIMED_OUT, .timeout_ms = 60000, .removed = 2, .left = 1},
         "1 process that does not die is left",
         "timed out after 60 s; 2 processes removed: 1 process that does not die is left",
         124},
        {{.verdict = WIRE_VERDICT_OOM_KILLED, .signal = 9},
         "it needed more than its limit",
         "killed: out of memory: it needed more than its limit",
         137},
        {{.verdict = WIRE_VERDICT_KILLED, .signal = 15}, "by someone", "killed by someone", 143},
        {{.verdict = WIRE_VERDICT_KILLED, .signal = 9},
         "because its workspace is removed",
         "killed because its workspace is removed",
         137},
        {{.verdict = WIRE_VERDICT_KILLED, .signal = 9},
         "nobody is attached to it any more",
         "killed: nobody is attached to it any more; and a mount has not confirmed what it changed",
         137,
         true},
        {{.verdict = WIRE_VERDICT_KILLED}, "", "killed", 120},
        {{.verdict = WIRE_VERDICT_NOT_STARTED, .stage = WIRE_STAGE_EXECVE, .code = 127, .error = 2},
         "x\x1b[2J: not found in PATH",
         "not started: execve: x\\x1b[2J: not found in PATH",
         127},
        {{.verdict = WIRE_VERDICT_NOT_STARTED, .stage = WIRE_STAGE_FORK, .code = 125, .error = 11},
         "",
         "not started: fork: Resource temporarily unavailable",
         125},
        {{.verdict = WIRE_VERDICT_NOT_STARTED, .stage = 99}, "", "not started: unknown stage", 125},
        {{.verdict = WIRE_VERDICT_UNKNOWN, .error = 104},
         "the keeper of commands has gone",
         "outcome unknown: the keeper of commands has gone",
         120},
        {{.verdict = 77}, "", "outcome unknown", 120, true},
    };
    for (size_t i = 0; i < ARRAY_SIZE(all); i++) {
        _cleanup_buffer_ struct buffer out = {0};
        struct wire_exec_exit v = all[i].verdict;
        v.coherence = all[i].unseen ? WIRE_COHERENCE_UNKNOWN : WIRE_COHERENCE_SEEN;
        v.text = bytes_of_string(all[i].text);
        assert_int_equal(exec_result_text(&v, &out), 0);
        assert_int_equal(buffer_append_u8(&out, 0), 0);
        assert_string_equal((const char *)out.data, all[i].expected);
        assert_int_equal(verdict_status(&v), all[i].status);
    }
}

/* --- programs --------------------------------------------------------------------- */

static void test_static_berthd(void **state)
{
    _cleanup_free_ char *path = NULL;
    assert_int_equal(setenv("BERTH_STATIC_BERTHD", "/bin/sh", 1), 0);
    assert_int_equal(program_find_static_berthd(&path), 0);
    assert_string_equal(path, "/bin/sh");
    /* The one that is named or none: not another in its place. */
    assert_int_equal(setenv("BERTH_STATIC_BERTHD", "/nonexistent", 1), 0);
    assert_int_equal(program_find_static_berthd(&path), -ENOENT);
    /* What a relative path names depends on where one stands, which may be a workspace. */
    assert_int_equal(setenv("BERTH_STATIC_BERTHD", "bin/sh", 1), 0);
    assert_int_equal(chdir("/"), 0);
    assert_int_equal(program_find_static_berthd(&path), -ENOENT);
    assert_int_equal(unsetenv("BERTH_STATIC_BERTHD"), 0);
}

/* On a small screen titles without rows leave theirs to others, and paths show where they end. */
static void test_small_top(void **state)
{
    static const char mount[] =
        "{\"mountpoint\": \"/tmp/trial-of-somebody/home/%s\", \"state\": \"connected\"}%s";
    static const char *const ends[] = {"all", "one", "two", "six", "ten", "\u00e4\u00f6"};
    _cleanup_buffer_ struct buffer text = {0};
    (void)setlocale(LC_ALL, "C.UTF-8");
    assert_int_equal(buffer_printf(&text, "{\"mounts\": ["), 0);
    for (size_t i = 0; i < ARRAY_SIZE(ends); i++)
        assert_int_equal(
            buffer_printf(&text, mount, ends[i], i + 1 < ARRAY_SIZE(ends) ? "," : "]}"), 0);
    json_t *sample = json_loadb((const char *)text.data, text.len, 0, NULL);
    assert_non_null(sample);
    const struct top_choice small = {.columns = 30, .rows = 9},
                            large = {.columns = 100, .rows = 20};
    struct top_page page;
    assert_int_equal(top_view(sample, NULL, &small, &page), 0);
    assert_int_equal(page.count, 9);
    assert_non_null(strstr(page.lines[2].text, "MOUNT"));
    assert_int_equal(strncmp(page.lines[3].text, "...", 3), 0);
    assert_non_null(strstr(page.lines[3].text, "/all  connected"));
    assert_non_null(strstr(page.lines[8].text, "/\u00e4\u00f6  connected"));
    top_page_release(&page);
    assert_int_equal(top_view(sample, NULL, &large, &page), 0);
    assert_int_equal(page.count, 2 + 4 + 6);
    assert_int_equal(strncmp(page.lines[5].text, "/tmp/trial-of-somebody/home/all ", 32), 0);
    top_page_release(&page);
    json_decref(sample);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text_that_may_stay),
        cmocka_unit_test(test_text_that_would_harm),
        cmocka_unit_test(test_text_that_is_not_utf8),
        cmocka_unit_test(test_mount_table),
        cmocka_unit_test(test_mount_user_is_read_exactly),
        cmocka_unit_test(test_the_uppermost_mount_counts),
        cmocka_unit_test(test_bounded_work),
        cmocka_unit_test(test_bounded_work_that_fails),
        cmocka_unit_test(test_suggestions),
        cmocka_unit_test(test_static_berthd),
        cmocka_unit_test(test_verdicts_as_sentences),
        cmocka_unit_test(test_small_top),
    };
    if (!setlocale(LC_CTYPE, "C.UTF-8")) {
        (void)fputs("no locale C.UTF-8\n", stderr);
        return 1;
    }
    (void)alarm(60);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

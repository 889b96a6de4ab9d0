/* What clients are told of the proxy's decisions: the log as it grows, is begun anew, or makes no
 * sense. */
#include "unit.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "egress/history.h"
#include "egress/supervisor.h"

static char directory_path[] = "/tmp/berth-history-XXXXXX";
static int directory = -1;

static int make_directory(void **state)
{
    if (!mkdtemp(directory_path))
        return -1;
    directory = open(directory_path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    return directory < 0 ? -1 : 0;
}

static int remove_directory(void **state)
{
    (void)unlinkat(directory, SUPERVISOR_LOG, 0);
    close_fd(&directory);
    return rmdir(directory_path);
}

static void write_log(const char *text, int flags)
{
    _cleanup_close_ int fd =
        openat(directory, SUPERVISOR_LOG, O_WRONLY | O_CREAT | O_CLOEXEC | flags, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
}

static bool shows_all(void *context, const char *workspace)
{
    return true;
}

static bool shows_a(void *context, const char *workspace)
{
    return workspace[0] == 'a';
}

struct page {
    struct wire_egress_decisions reply;
    struct buffer list;
    char hosts[512]; /* one after the other, with commas */
};

static void read_page(struct page *p, uint64_t position, uint32_t count,
                      bool (*shows)(void *context, const char *workspace))
{
    const struct wire_egress_log request = {.position = position, .count = count};
    struct bytes element;
    uint32_t offset = 0;
    *p = (struct page){0};
    assert_int_equal(history_read(directory, &request, shows, NULL, &p->list, &p->reply), 0);
    while (wire_list_next(&p->reply.items, &offset, &element)) {
        struct wire_message m;
        assert_int_equal(wire_decode(WIRE_EGRESS_DECISION, element, &m), 0);
        size_t len = strlen(p->hosts);
        (void)snprintf(p->hosts + len, sizeof p->hosts - len, "%.*s,",
                       (int)m.egress_decision.host.len, (const char *)m.egress_decision.host.data);
    }
    buffer_release(&p->list);
}

#define LINE(workspace, host)                                                  \
    "berth-egress: egress {\"time\":\"2026-01-02T03:04:05.678Z\","             \
    "\"workspace\":\"" workspace "\",\"verdict\":\"refused\",\"host\":\"" host \
    "\",\"port\":443,\"bytes_up\":7}\n"

static void test_as_it_grows(void **state)
{
    struct page p;
    read_page(&p, 0, 0, shows_all);
    assert_int_equal(p.reply.items.count, 0); /* there is no log */
    write_log(LINE("a", "one") "berth-egress: warning: something else\n" LINE("b", "two"), O_TRUNC);
    read_page(&p, HISTORY_LATEST, 0, shows_all);
    assert_string_equal(p.hosts, "one,two,");
    assert_int_equal(p.reply.more, 0);
    uint64_t end = p.reply.position;
    read_page(&p, end, 0, shows_all);
    assert_string_equal(p.hosts, "");
    assert_int_equal(p.reply.position, end);
    write_log("berth-egress: egress {\"workspace\":\"a\",\"verd", O_APPEND); /* on its way */
    read_page(&p, end, 0, shows_all);
    assert_int_equal(p.reply.position, end);
    write_log("ict\":\"allowed\",\"host\":\"three\"}\n", O_APPEND);
    read_page(&p, end, 0, shows_all);
    assert_string_equal(p.hosts, "three,");
    read_page(&p, 0, 1, shows_all);
    assert_string_equal(p.hosts, "one,");
    assert_int_equal(p.reply.more, 1);
    read_page(&p, p.reply.position, 1, shows_all);
    assert_string_equal(p.hosts, "two,");
    read_page(&p, 0, 0, shows_a);
    assert_string_equal(p.hosts, "one,three,");
}

static void test_begun_anew(void **state)
{
    struct page p;
    write_log(LINE("a", "old") LINE("a", "older"), O_TRUNC);
    read_page(&p, HISTORY_LATEST, 0, shows_all);
    uint64_t end = p.reply.position;
    write_log(LINE("a", "new"), O_TRUNC);
    read_page(&p, end, 0, shows_all);
    assert_string_equal(p.hosts, "new,");
    assert_int_equal(p.reply.lost, 1);
}

/* Of a large one the end is told, and none of it takes for ever. */
static void test_large(void **state)
{
    struct page p;
    _cleanup_free_ char *junk = malloc(3 * HISTORY_READ_MAX + 1);
    assert_non_null(junk);
    memset(junk, 'x', 3 * HISTORY_READ_MAX);
    junk[3 * HISTORY_READ_MAX] = '\0';
    write_log(junk, O_TRUNC);
    write_log("\n" LINE("a", "last"), O_APPEND);
    read_page(&p, HISTORY_LATEST, 0, shows_all);
    assert_string_equal(p.hosts, "last,");
    uint64_t position = 0;
    for (int i = 0; i < 8; i++) {
        read_page(&p, position, 0, shows_all);
        assert_true(p.reply.position > position);
        position = p.reply.position;
        if (!p.reply.more)
            break;
    }
    assert_string_equal(p.hosts, "last,");
}

static void check_line(const char *text, int expected)
{
    struct wire_message m;
    json_t *object = NULL;
    assert_int_equal(history_parse(bytes_of_string(text), &object, &m), expected);
    if (expected == 0)
        json_decref(object);
}

static void test_lines_that_make_no_sense(void **state)
{
    check_line("", -EINVAL);
    check_line("berth-egress: egress {", -EINVAL);
    check_line("berth-egress: egress {}", -EINVAL);
    check_line("x: egress {\"workspace\":1,\"verdict\":\"refused\"}", -EINVAL);
    check_line("x: egress {\"workspace\":\"a\",\"workspace\":\"b\",\"verdict\":\"refused\"}",
               -EINVAL);
    check_line("x: egress {\"workspace\":\"a\",\"verdict\":\"refused\"} and more", -EINVAL);
    check_line("x: egress {\"workspace\":\"a\",\"verdict\":\"refused\"}", 0);
    check_line(
        "x: egress {\"workspace\":\"a\",\"verdict\":\"refused\",\"port\":-1,\"bytes_up\":\"x\"}",
        0);
}

/* Cut where its field ends, between characters. */
static void test_long_text(void **state)
{
    char line[2048];
    struct wire_message m;
    json_t *object;
    int len = snprintf(line, sizeof line,
                       "x: egress {\"workspace\":\"a\",\"verdict\":\"refused\",\"method\":\"%s\"}",
                       "\303\251\303\251\303\251\303\251\303\251\303\251\303\251\303\251\303\251"
                       "\303\251\303\251\303\251\303\251\303\251\303\251z\303\251\303\251");
    assert_int_equal(history_parse(bytes_of(line, (size_t)len), &object, &m), 0);
    assert_int_equal(m.egress_decision.method.len, 31);
    json_decref(object);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_as_it_grows), cmocka_unit_test(test_begun_anew),
        cmocka_unit_test(test_large),       cmocka_unit_test(test_lines_that_make_no_sense),
        cmocka_unit_test(test_long_text),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}

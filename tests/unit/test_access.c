/* Lines of the access file, patterns, counted failures, and which message needs what. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "access/failures.h"
#include "access/grants_file.h"
#include "access/permit.h"
#include "base/clock.h"
#include "samples.h"

#define DIGEST "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"
#define TOKEN "\"token\":\"sha256:" DIGEST "\""
#define REST "\"workspaces\":[\"*\"],\"verbs\":[\"read\"]"

static struct grant *parse(const char *line)
{
    struct grant *g;
    struct failure f;
    assert_int_equal(grant_parse(bytes_of_string(line), &g, &f), 0);
    return g;
}

/* --- lines ----------------------------------------------------------------------- */

static void test_what_is_written_is_read(void **state)
{
    static const char *const lines[] = {
        "{\"id\":\"a\"," TOKEN "," REST "}",
        "{\"id\":\"A.b_c-d@e\"," TOKEN
        ",\"certificate\":\"DNS:x\",\"workspaces\":[\"a*\",\"\\\\*\"],"
        "\"verbs\":[\"read\",\"write\",\"exec\",\"admin\"],\"expires\":\"2027-01-31T12:00:00Z\","
        "\"note\":\"n\"}",
        "{\"id\":\"u\",\"user\":1000," REST "}",
        "{\"id\":\"d\",\"loopback\":true," REST "}",
        "{\"id\":\"c\",\"certificate\":\"subject:CN=x,O=y\"," REST "}",
    };
    for (size_t i = 0; i < ARRAY_SIZE(lines); i++) {
        struct grant *g = parse(lines[i]);
        _cleanup_free_ char *again = NULL;
        assert_int_equal(grant_format(g, &again), 0);
        assert_string_equal(again, lines[i]);
        struct grant *same = parse(again);
        assert_true(grant_equal(g, same));
        same->verbs ^= GRANT_VERB(WRITE);
        assert_false(grant_equal(g, same));
        grant_unref(same);
        grant_unref(g);
    }
    struct grant *g = parse(lines[1]);
    assert_int_equal(g->expires, 1801396800);
    assert_false(grant_is_over(g, g->expires - 1));
    assert_true(grant_is_over(g, g->expires));
    assert_int_equal(g->token[1], 0x11);
    grant_unref(g);
}

static void test_lines_that_are_refused(void **state)
{
    static const struct {
        const char *line, *word;
    } cases[] = {
        {"secret-token", "berth token create"},
        {"[]", "JSON object"},
        {"{" TOKEN "," REST "}", "\"id\""},
        {"{\"id\":\"a b\"," TOKEN "," REST "}", "\"id\""},
        {"{\"id\":\"a\",\"token\":\"secret-token\"," REST "}", "does not belong here"},
        {"{\"id\":\"a\",\"token\":\"sha256:" DIGEST "0\"," REST "}", "\"token\""},
        {"{\"id\":\"a\"," REST "}", "is needed"},
        {"{\"id\":\"a\",\"user\":1," TOKEN "," REST "}", "goes with no"},
        {"{\"id\":\"a\",\"user\":-1," REST "}", "\"user\""},
        {"{\"id\":\"a\",\"loopback\":true," TOKEN "," REST "}", "goes with no"},
        {"{\"id\":\"a\",\"loopback\":true,\"user\":1," REST "}", "goes with no"},
        {"{\"id\":\"a\",\"loopback\":false," TOKEN "," REST "}", "\"loopback\""},
        {"{\"id\":\"a\",\"user\":4294967295," REST "}", "\"user\""},
        {"{\"id\":\"a\",\"certificate\":\"x\"," REST "}", "\"certificate\""},
        {"{\"id\":\"a\"," TOKEN ",\"verbs\":[\"read\"]}", "\"workspaces\""},
        {"{\"id\":\"a\"," TOKEN ",\"workspaces\":[],\"verbs\":[\"read\"]}", "\"workspaces\""},
        {"{\"id\":\"a\"," TOKEN ",\"workspaces\":[\"*\"]}", "\"verbs\""},
        {"{\"id\":\"a\"," TOKEN ",\"workspaces\":[\"*\"],\"verbs\":[\"none\"]}", "\"verbs\""},
        {"{\"id\":\"a\"," TOKEN ",\"expires\":\"tomorrow\"," REST "}", "\"expires\""},
        {"{\"id\":\"a\"," TOKEN ",\"expires\":\"1960-01-01T00:00:00Z\"," REST "}", "\"expires\""},
        {"{\"id\":\"a\"," TOKEN ",\"tokens\":1," REST "}", "unknown key tokens"},
        {"{\"id\":\"a\"," TOKEN "," TOKEN "," REST "}", "JSON object"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct grant *g;
        struct failure f;
        assert_int_equal(grant_parse(bytes_of_string(cases[i].line), &g, &f), -EINVAL);
        assert_non_null(strstr(f.text, cases[i].word));
        assert_null(strstr(f.text, "secret"));
    }
}

static void test_patterns(void **state)
{
    static const struct {
        const char *pattern, *text;
        bool matches;
    } cases[] = {
        {"*", "", true},
        {"*", "anything/at\nall", true},
        {"a", "a", true},
        {"a", "ab", false},
        {"a", "", false},
        {"a*", "a", true},
        {"a*", "ba", false},
        {"*a", "bca", true},
        {"*a", "ab", false},
        {"a*b*c", "aXbYc", true},
        {"a*b*c", "aXcYb", false},
        {"**a**", "a", true},
        {"\\*", "*", true},
        {"\\*", "x", false},
        {"a\\*b*", "a*bc", true},
        {"*\\*", "x*", true},
        {"*\\*", "x", false},
        {"?", "x", false},
        {"chat-*", "chat-1", true},
        {"chat-*", "Chat-1", false},
        {"chat-*", "x-chat-1", false},
        {"*ab", "aab", true},
        {"*aab*", "aaab", true},
        {"\xff*", "\xff\x01", true},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
        assert_int_equal(grant_pattern_matches(cases[i].pattern, bytes_of_string(cases[i].text)),
                         cases[i].matches);
    assert_false(grant_pattern_matches("a", bytes_of("a\0", 2)));
    assert_true(grant_pattern_matches("a*", bytes_of("a\0", 2)));
}

/* --- the file -------------------------------------------------------------------- */

static void write_file(const char *path, const char *text, mode_t mode)
{
    FILE *f = fopen(path, "we");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(chmod(path, mode), 0);
}

static void assert_text(const char *path, const char *text)
{
    char found[4096] = "";
    FILE *f = fopen(path, "re");
    assert_non_null(f);
    size_t n = fread(found, 1, sizeof found - 1, f);
    found[n] = '\0';
    (void)fclose(f);
    assert_string_equal(found, text);
}

static void test_writers_keep_what_they_do_not_change(void **state)
{
    char directory[] = "/tmp/berth-access-XXXXXX", path[64], link[64];
    struct failure f;
    assert_non_null(mkdtemp(directory));
    (void)snprintf(path, sizeof path, "%s/access", directory);
    (void)snprintf(link, sizeof link, "%s/link", directory);
    struct grant *g = parse("{\"id\":\"x\"," TOKEN "," REST "}");
    assert_int_equal(grants_remove(path, "x", &f), -ENOENT);
    assert_int_equal(grants_add(path, g, &f), 0);
    assert_text(path, "{\"id\":\"x\"," TOKEN "," REST "}\n");
    assert_int_equal(grants_add(path, g, &f), -EEXIST);
    /* Through a link, with comments, blank lines, and no newline at the end. */
    assert_int_equal(symlink("access", link), 0);
    write_file(path, "# one\n\n {\"user\":1,\"id\":\"y\"," REST "}\n# two", 0600);
    assert_int_equal(grants_add(link, g, &f), 0);
    assert_text(path, "# one\n\n {\"user\":1,\"id\":\"y\"," REST "}\n# two\n"
                      "{\"id\":\"x\"," TOKEN "," REST "}\n");
    assert_int_equal(grants_remove(link, "y", &f), 0);
    assert_text(path, "# one\n\n# two\n{\"id\":\"x\"," TOKEN "," REST "}\n");
    struct stat st;
    assert_int_equal(lstat(link, &st), 0);
    assert_true(S_ISLNK(st.st_mode));
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    /* What is wrong is not overwritten. */
    write_file(path, "rubbish\n", 0600);
    assert_int_equal(grants_add(path, g, &f), -EINVAL);
    assert_text(path, "rubbish\n");
    write_file(path, "", 0640);
    assert_int_equal(grants_add(path, g, &f), -EACCES);
    write_file(path, "{\"id\":\"x\"," TOKEN "," REST "}\n{\"id\":\"x\",\"user\":1," REST "}\n",
               0600);
    struct grants grants;
    assert_int_equal(grants_load(path, &grants, &st, &f), -EINVAL);
    assert_non_null(strstr(f.text, "line 2"));
    grant_unref(g);
    assert_int_equal(unlink(link), 0);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(directory), 0); /* no temporary file was left */
}

static void test_two_writers(void **state)
{
    char directory[] = "/tmp/berth-access-XXXXXX", path[64];
    assert_non_null(mkdtemp(directory));
    (void)snprintf(path, sizeof path, "%s/access", directory);
    for (int writer = 0; writer < 4; writer++) {
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid > 0)
            continue;
        struct grant *g = parse("{\"id\":\"x\"," TOKEN "," REST "}");
        int r = 0;
        for (int i = 0; r == 0 && i < 25; i++) {
            struct failure f;
            (void)snprintf(g->id, sizeof g->id, "%d-%d", writer, i);
            r = grants_add(path, g, &f);
        }
        _exit(r ? 1 : 0);
    }
    for (int writer = 0; writer < 4; writer++) {
        int status;
        assert_true(wait(&status) > 0);
        assert_int_equal(status, 0);
    }
    struct grants grants;
    struct stat st;
    struct failure f;
    assert_int_equal(grants_load(path, &grants, &st, &f), 0);
    assert_int_equal(grants.count, 100);
    grants_release(&grants);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(directory), 0);
}

/* --- failures -------------------------------------------------------------------- */

static void test_failures(void **state)
{
    struct failures *f = failures_new();
    uint64_t now = 1000 * NSEC_PER_SEC;
    for (uint64_t i = 0; i < FAILURES_BURST; i++) {
        assert_int_equal(failures_wait(f, 7, now), 0);
        failures_note(f, 7, 100 + i, now);
    }
    assert_true(failures_wait(f, 7, now) > 0);
    assert_true(failures_wait(f, 7, now) <= FAILURES_PERIOD_S + 1);
    assert_int_equal(failures_wait(f, 8, now), 0);
    now += (FAILURES_PERIOD_S + 1) * NSEC_PER_SEC;
    assert_int_equal(failures_wait(f, 7, now), 0);
    failures_note(f, 7, 200, now);
    assert_true(failures_wait(f, 7, now) > 0);
    failures_free(f);
}

static void test_the_same_wrong_token_again_is_no_attempt(void **state)
{
    struct failures *f = failures_new();
    for (uint64_t i = 0; i < 10 * FAILURES_BURST; i++)
        failures_note(f, 7, 1 + i % FAILURES_RECENT, NSEC_PER_SEC);
    assert_int_equal(failures_wait(f, 7, NSEC_PER_SEC), 0);
    failures_free(f);
}

static void test_many_addresses(void **state)
{
    struct failures *f = failures_new();
    for (uint64_t i = 0; i < FAILURES_BURST; i++)
        failures_note(f, 7, i + 1, 2 * NSEC_PER_SEC);
    failures_note(f, 8, 1, NSEC_PER_SEC);
    for (uint64_t i = 0; i < FAILURES_ADDRESSES - 1; i++) /* 8 makes room first */
        failures_note(f, 1000 + i, 1, 3 * NSEC_PER_SEC);
    assert_true(failures_wait(f, 7, 4 * NSEC_PER_SEC) > 0);
    failures_note(f, 9, 1, 3 * NSEC_PER_SEC);
    assert_int_equal(failures_wait(f, 7, 4 * NSEC_PER_SEC), 0);
    failures_free(f);
}

static uint64_t address6(const uint8_t bytes[16])
{
    struct sockaddr_in6 in6 = {.sin6_family = AF_INET6};
    memcpy(&in6.sin6_addr, bytes, 16);
    return failures_address((struct sockaddr *)&in6);
}

static void test_addresses(void **state)
{
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(0x7f000001)};
    const uint8_t mapped[16] = {[10] = 0xff, 0xff, 127, 0, 0, 1};
    const uint8_t one[16] = {0x20, 1, [15] = 1}, two[16] = {0x20, 1, [8] = 9, [15] = 2};
    const uint8_t other[16] = {0x20, 1, [7] = 1};
    assert_int_equal(failures_address((struct sockaddr *)&in), address6(mapped));
    assert_int_equal(address6(one), address6(two));
    assert_int_not_equal(address6(one), address6(other));
}

/* --- messages -------------------------------------------------------------------- */

static void test_each_message_needs_its_verb(void **state)
{
    char why[PERMIT_TEXT_MAX];
    for (size_t i = 0; i < wire_row_count(); i++) {
        const struct wire_row *row = wire_row_at(i);
        struct sample s;
        if (!(row->from & WIRE_FROM_CLIENT) || row->class == WIRE_CLASS_RECORD)
            continue;
        sample_make(row, SAMPLE_TYPICAL, &s);
        struct grant *g = grant_new_whole("id");
        unsigned needed = permit_verbs(&s.message);
        assert_int_equal(permit_check(g, NULL, &s.message, why), 0);
        g->verbs = needed;
        assert_int_equal(permit_check(g, NULL, &s.message, why), 0);
        for (enum wire_verb v = WIRE_VERB_READ; v < WIRE_VERB_COUNT; v++) {
            g->verbs = GRANT_VERBS_ALL & ~(1u << v);
            assert_int_equal(permit_check(g, NULL, &s.message, why),
                             needed & (1u << v) ? -EACCES : 0);
        }
        sample_release(&s);
        grant_unref(g);
    }
}

/* Whoever adds a message that anybody may send thinks about it here. */
static void test_messages_that_need_nothing(void **state)
{
    static const char *const names[] = {
        "HELLO",   "PING",       "GRANT", "CANCEL",     "GOODBYE", "STATUS", "ACK",    "FORGET",
        "RELEASE", "VISIBILITY", "FLUSH", "LOCK_CLAIM", "SEEN",    "SYNCED", "ACCESS",
    };
    size_t found = 0;
    for (size_t i = 0; i < wire_row_count(); i++) {
        const struct wire_row *row = wire_row_at(i);
        bool listed = false;
        if (!(row->from & WIRE_FROM_CLIENT)) {
            assert_int_equal(row->verb, WIRE_VERB_NONE);
            continue;
        }
        for (size_t j = 0; j < ARRAY_SIZE(names); j++)
            listed = listed || strcmp(names[j], row->name) == 0;
        if (listed != (row->verb == WIRE_VERB_NONE))
            fail_msg("%s", row->name);
        found += listed;
    }
    assert_int_equal(found, ARRAY_SIZE(names));
}

static void test_what_fields_need(void **state)
{
    struct wire_message m = {.type = WIRE_OPEN, .open.flags = WIRE_OPEN_READ};
    assert_int_equal(permit_verbs(&m), GRANT_VERB(READ));
    static const uint32_t writes[] = {WIRE_OPEN_WRITE, WIRE_OPEN_APPEND, WIRE_OPEN_TRUNCATE};
    for (size_t i = 0; i < ARRAY_SIZE(writes); i++) {
        m.open.flags = writes[i];
        assert_int_equal(permit_verbs(&m), GRANT_VERB(READ) | GRANT_VERB(WRITE));
    }
    m = (struct wire_message){.type = WIRE_CREATE, .create.flags = WIRE_OPEN_WRITE};
    assert_int_equal(permit_verbs(&m), GRANT_VERB(WRITE));
    m.create.flags |= WIRE_OPEN_READ;
    assert_int_equal(permit_verbs(&m), GRANT_VERB(READ) | GRANT_VERB(WRITE));
    m = (struct wire_message){.type = WIRE_LOCK_SET, .lock_set.type = WIRE_LOCK_READ};
    assert_int_equal(permit_verbs(&m), GRANT_VERB(READ));
    m.lock_set.type = WIRE_LOCK_WRITE;
    assert_int_equal(permit_verbs(&m), GRANT_VERB(READ) | GRANT_VERB(WRITE));
    m = (struct wire_message){.type = WIRE_WORKSPACE_CREATE};
    assert_int_equal(permit_verbs(&m), GRANT_VERB(ADMIN));
    m.workspace_create.flags = WIRE_WORKSPACE_FROM_WORKSPACE;
    assert_int_equal(permit_verbs(&m), GRANT_VERB(ADMIN) | GRANT_VERB(READ));
    m = (struct wire_message){.type = WIRE_COPY};
    assert_int_equal(permit_verbs(&m), GRANT_VERB(READ) | GRANT_VERB(WRITE));
}

/* Each message with a field that is as long as a thread ID may be. */
static void test_each_message_that_names_a_workspace(void **state)
{
    struct grant *g = parse("{\"id\":\"a\"," TOKEN ",\"workspaces\":[\"ours-*\"],"
                            "\"verbs\":[\"read\",\"write\",\"exec\",\"admin\"]}");
    size_t count = 0;
    for (size_t i = 0; i < wire_row_count(); i++) {
        const struct wire_row *row = wire_row_at(i);
        char why[PERMIT_TEXT_MAX];
        for (size_t j = 0; j < row->field_count; j++) {
            struct wire_message m = {.type = row->type};
            const struct wire_field *field = &row->fields[j];
            if (!(row->from & WIRE_FROM_CLIENT) || field->max != WIRE_THREAD_ID_MAX)
                continue;
            assert_int_equal(field->type, WIRE_FIELD_BYTES);
            struct bytes *key = (struct bytes *)((uint8_t *)&m + field->offset);
            *key = bytes_of_string("ours-1");
            assert_int_equal(permit_check(g, NULL, &m, why), 0);
            *key = bytes_of_string("theirs");
            assert_int_equal(permit_check(g, NULL, &m, why),
                             row->type == WIRE_WORKSPACE_CREATE ? -EACCES : -ENOENT);
            count++;
            if (strcmp(field->name, "thread_id") == 0)
                continue;
            /* By the directory's name, which is another word for the same ID. */
            uint32_t *flags = NULL;
            for (size_t k = 0; k < row->field_count; k++)
                if (strcmp(row->fields[k].name, "workspace_flags") == 0 ||
                    (!flags && strcmp(row->fields[k].name, "flags") == 0))
                    flags = (uint32_t *)((uint8_t *)&m + row->fields[k].offset);
            assert_non_null(flags);
            *flags = WIRE_WORKSPACE_BY_NAME;
            *key = bytes_of_string("ours-%2F");
            assert_int_equal(permit_check(g, NULL, &m, why), 0);
            *key = bytes_of_string("%6Furs-1"); /* no ID has this name */
            assert_int_equal(permit_check(g, NULL, &m, why), -ENOENT);
            *key = bytes_of_string("theirs");
            assert_int_equal(permit_check(g, NULL, &m, why), -ENOENT);
        }
    }
    assert_int_equal(count, 22);
    grant_unref(g);
}

static void test_a_workspace_to_start_from(void **state)
{
    struct grant *g = parse("{\"id\":\"a\"," TOKEN ",\"workspaces\":[\"ours-*\"],"
                            "\"verbs\":[\"read\",\"admin\"]}");
    char why[PERMIT_TEXT_MAX];
    struct wire_message m = {.type = WIRE_WORKSPACE_CREATE,
                             .workspace_create = {.flags = WIRE_WORKSPACE_FROM_WORKSPACE,
                                                  .thread_id = bytes_of_string("ours-1"),
                                                  .source = bytes_of_string("theirs")}};
    assert_int_equal(permit_check(g, NULL, &m, why), -ENOENT);
    m.workspace_create.source = bytes_of_string("ours-2");
    assert_int_equal(permit_check(g, NULL, &m, why), 0);
    /* A snapshot's ID is no thread ID. */
    m.workspace_create.flags = WIRE_WORKSPACE_FROM_SNAPSHOT;
    m.workspace_create.source = bytes_of_string("theirs");
    assert_int_equal(permit_check(g, NULL, &m, why), 0);
    grant_unref(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_written_is_read),
        cmocka_unit_test(test_lines_that_are_refused),
        cmocka_unit_test(test_patterns),
        cmocka_unit_test(test_writers_keep_what_they_do_not_change),
        cmocka_unit_test(test_two_writers),
        cmocka_unit_test(test_failures),
        cmocka_unit_test(test_the_same_wrong_token_again_is_no_attempt),
        cmocka_unit_test(test_many_addresses),
        cmocka_unit_test(test_addresses),
        cmocka_unit_test(test_each_message_needs_its_verb),
        cmocka_unit_test(test_messages_that_need_nothing),
        cmocka_unit_test(test_what_fields_need),
        cmocka_unit_test(test_each_message_that_names_a_workspace),
        cmocka_unit_test(test_a_workspace_to_start_from),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Tokens of one workspace, and requests signed with them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "access/access.h"
#include "base/base64.h"
#include "base/file.h"

#define CARRIER "berth_0123456789abcdefghijklmnopqrstuvwxyzABCDEFG"

#define SLOT 0x010203u

static const struct issued_key key = {{1, 2, 3}};

struct scene {
    char directory[32], file[64];
    struct access *access;
    size_t asked; /* times that all workspaces were gone through */
    bool many;    /* a million of them, as far as anybody asks */
    size_t given;
};

static const char *const workspaces[] = {"chat-1", "chat-2", "other"};

static void each_workspace(void *context,
                           bool (*each)(void *each_context, struct bytes thread_id, uint32_t slot),
                           void *each_context)
{
    struct scene *s = context;
    char name[32];
    s->asked++;
    for (unsigned i = 0; s->many && i < 1000000; i++, s->given++) {
        (void)snprintf(name, sizeof name, "chat-%u", i);
        if (!each(each_context, bytes_of_string(name), SLOT))
            return;
    }
    for (size_t i = 0; i < ARRAY_SIZE(workspaces); i++)
        if (!each(each_context, bytes_of_string(workspaces[i]), SLOT))
            return;
}

static void write_line(struct scene *s, const char *rest)
{
    uint8_t digest[GRANT_TOKEN_DIGEST_SIZE];
    char hex[2 * sizeof digest + 1];
    assert_true(grant_token_digest(bytes_of_string(CARRIER), digest));
    for (size_t i = 0; i < sizeof digest; i++)
        (void)snprintf(hex + 2 * i, 3, "%02x", digest[i]);
    FILE *f = fopen(s->file, "we");
    assert_non_null(f);
    assert_true(fprintf(f, "{\"id\":\"carrier\",\"token\":\"sha256:%s\",%s}\n", hex, rest) > 0);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(chmod(s->file, 0600), 0);
    if (s->access)
        (void)access_refresh(s->access);
}

#define ALL "\"workspaces\":[\"chat-*\"],\"verbs\":[\"read\",\"write\",\"exec\",\"admin\"]"

static void begin(struct scene *s, const char *rest)
{
    struct failure f;
    *s = (struct scene){.directory = "/tmp/berth-issued-XXXXXX"};
    assert_non_null(mkdtemp(s->directory));
    (void)snprintf(s->file, sizeof s->file, "%s/access", s->directory);
    write_line(s, rest);
    const struct access_options options = {.file = s->file};
    assert_int_equal(access_open(&options, &s->access, &f), 0);
    const struct access_issuing issuing = {.key = key, .workspaces = each_workspace, .context = s};
    access_issue_tokens(s->access, &issuing);
}

static void end(struct scene *s)
{
    access_free(s->access);
    (void)unlink(s->file);
    assert_int_equal(rmdir(s->directory), 0);
}

static int decide(struct scene *s, const char *token, bool gateway, struct grant **ret)
{
    char value[8192];
    struct access_decision d;
    (void)snprintf(value, sizeof value, "Bearer %s", token);
    const struct access_caller caller = {
        .address = 1, .authorization = bytes_of_string(value), .gateway = gateway};
    access_decide(s->access, &caller, &d);
    *ret = d.grant;
    return d.grant ? 0 : d.status;
}

static void issue(struct scene *s, const char *thread_id, char token[ISSUED_TEXT_MAX])
{
    struct grant *g;
    assert_int_equal(decide(s, CARRIER, false, &g), 0);
    assert_int_equal(access_issue(s->access, g, bytes_of_string(thread_id), SLOT, token), 0);
    grant_unref(g);
}

static void a_token_is_for_its_workspace_alone(void **state)
{
    struct scene s;
    struct grant *g;
    char token[ISSUED_TEXT_MAX], again[ISSUED_TEXT_MAX];
    begin(&s, ALL);
    issue(&s, "chat-1", token);
    issue(&s, "chat-1", again);
    assert_string_equal(token, again);
    issue(&s, "chat-2", again);
    assert_string_not_equal(token, again);
    assert_int_equal(decide(&s, token, false, &g), 0);
    assert_string_equal(g->id, "carrier");
    assert_false(g->everything);
    assert_true(grant_covers(g, bytes_of_string("chat-1")));
    assert_false(grant_covers(g, bytes_of_string("chat-2")));
    assert_false(grant_covers(g, bytes_of_string("chat-1 ")));
    assert_false(grant_covers(g, bytes_of_string("chat-*")));
    assert_int_equal(g->verbs, GRANT_VERB(READ) | GRANT_VERB(WRITE) | GRANT_VERB(EXEC));
    assert_int_equal(g->only_slot, SLOT);
    /* Nor does it get one for another. */
    assert_int_equal(access_issue(s.access, g, bytes_of_string("chat-2"), SLOT, again), -EACCES);
    assert_int_equal(access_issue(s.access, g, bytes_of_string("chat-1"), SLOT, again), 0);
    assert_string_equal(token, again);
    grant_unref(g);
    end(&s);
}

static void a_token_ends_with_its_line(void **state)
{
    struct scene s;
    struct grant *g, *none;
    char token[ISSUED_TEXT_MAX];
    begin(&s, ALL);
    issue(&s, "chat-1", token);
    assert_int_equal(decide(&s, token, false, &g), 0);
    assert_true(access_stands(s.access, g));
    write_line(&s, ALL ",\"note\":\"for people\"");
    assert_true(access_stands(s.access, g));
    assert_int_equal(decide(&s, token, false, &none), 0);
    grant_unref(none);
    write_line(&s, "\"workspaces\":[\"chat-*\"],\"verbs\":[\"read\"]");
    assert_false(access_stands(s.access, g));
    assert_int_equal(decide(&s, token, false, &none), 401);
    grant_unref(g);
    issue(&s, "chat-1", token);
    assert_int_equal(decide(&s, token, false, &g), 0);
    assert_int_equal(g->verbs, GRANT_VERB(READ));
    grant_unref(g);
    /* Over: it was right, and is told so. */
    write_line(&s, ALL ",\"expires\":\"2001-01-01T00:00:00Z\"");
    assert_int_equal(decide(&s, token, false, &none), 401);
    end(&s);
}

/* Each byte, each length, and what only looks like one. */
static void what_is_no_token_is_refused(void **state)
{
    struct scene s;
    struct grant *g;
    char token[ISSUED_TEXT_MAX], bad[ISSUED_TEXT_MAX + 8];
    struct issued_claim claim;
    begin(&s, ALL);
    issue(&s, "chat-1", token);
    size_t len = strlen(token);
    assert_true(issued_parse(bytes_of_string(token), &claim));
    assert_string_equal(claim.id, "carrier");
    assert_int_equal(claim.thread_id_len, 6);
    struct grant *line;
    struct failure f;
    assert_int_equal(
        grant_parse(bytes_of_string("{\"id\":\"carrier\",\"user\":1," ALL "}"), &line, &f), 0);
    assert_false(issued_verify(&key, line, &claim, bytes_of_string(token)));
    grant_unref(line);
    for (size_t i = 0; i < len; i++) {
        memcpy(bad, token, len + 1);
        bad[i] = bad[i] == 'A' ? 'B' : 'A';
        g = NULL;
        int status = decide(&s, bad, false, &g);
        /* Some are counted as attempts: the address may have to wait by then. */
        assert_true(status == 401 || status == 429);
        assert_null(g);
    }
    for (size_t n = 0; n < len; n++)
        assert_false(issued_parse(bytes_of(token, n), &claim) && claim.thread_id_len == 6 &&
                     strcmp(claim.id, "carrier") == 0);
    (void)snprintf(bad, sizeof bad, "%sAAAA", token);
    assert_int_equal(decide(&s, bad, false, &g), 429);
    end(&s);
}

static void sign(const char *token, const char *path, const char *operation, const char *user,
                 const char *expiry, struct signed_request *ret)
{
    char text[8192];
    *ret = (struct signed_request){.writes = strcmp(operation, "write") == 0};
    (void)snprintf(text, sizeof text, "%s:%s:%s:%s%s%s", path, operation, user, token,
                   *expiry ? ":" : "", expiry);
    assert_true(grant_token_digest(bytes_of_string(text), ret->signature));
    ret->expires = strtoull(*expiry ? expiry : "0", NULL, 10);
    ret->path_len = strlen(path);
    memcpy(ret->path, path, ret->path_len);
    ret->user_len = strlen(user);
    memcpy(ret->user, user, ret->user_len);
}

static void format(const struct signed_request *request, char out[7000])
{
    _cleanup_buffer_ struct buffer b = {0};
    assert_int_equal(signed_request_format(request, &b), 0);
    assert_true(b.len < 7000);
    memcpy(out, b.data, b.len);
    out[b.len] = '\0';
}

static void a_signature_is_found_and_is_good_for_little(void **state)
{
    struct scene s;
    struct grant *g;
    struct signed_request request, parsed;
    char token[ISSUED_TEXT_MAX], text[7000];
    begin(&s, ALL);
    issue(&s, "chat-2", token);
    sign(token, "/home/user/a b", "read", "", "", &request);
    format(&request, text);
    assert_true(signed_request_parse(bytes_of_string(text), &parsed));
    assert_false(parsed.writes);
    assert_int_equal(parsed.expires, 0);
    assert_int_equal(parsed.path_len, request.path_len);
    assert_memory_equal(parsed.path, request.path, request.path_len);
    assert_memory_equal(parsed.signature, request.signature, SIGNATURE_SIZE);
    /* Nobody but the gateway may come with it. */
    assert_int_equal(decide(&s, text, false, &g), 401);
    assert_int_equal(decide(&s, text, true, &g), 0);
    assert_int_equal(s.asked, 0);
    assert_int_equal(g->verbs, GRANT_VERB(READ));
    assert_true(grant_covers(g, bytes_of_string("chat-2")));
    assert_false(grant_covers(g, bytes_of_string("chat-1")));
    assert_int_equal(access_issue(s.access, g, bytes_of_string("chat-2"), SLOT, token), -EACCES);
    grant_unref(g);
    issue(&s, "chat-2", token);
    sign(token, "x", "write", "user", "4102444800", &request);
    format(&request, text);
    assert_int_equal(decide(&s, text, true, &g), 0);
    assert_int_equal(g->verbs, GRANT_VERB(READ) | GRANT_VERB(WRITE));
    assert_int_equal(g->expires, 4102444800);
    grant_unref(g);
    sign(token, "x", "write", "user", "1000000000", &request);
    format(&request, text);
    assert_int_equal(decide(&s, text, true, &g), 401);
    /* What was signed is one thing alone. */
    sign(token, "x", "read", "", "", &request);
    request.writes = true;
    format(&request, text);
    assert_int_equal(decide(&s, text, true, &g), 401);
    end(&s);
}

/* As after a restart: nobody has shown the token yet. */
static void a_signature_is_searched_for(void **state)
{
    struct scene s;
    struct grant *g;
    struct signed_request request;
    char token[ISSUED_TEXT_MAX], text[7000], words[512];
    begin(&s, ALL);
    assert_int_equal(decide(&s, CARRIER, false, &g), 0);
    char *line = issued_line(g);
    assert_non_null(line);
    (void)snprintf(words, sizeof words, "%s", line);
    free(line);
    grant_unref(g);
    assert_int_equal(issued_make(&key, "carrier", words, bytes_of_string("chat-2"), SLOT, token),
                     0);
    sign(token, "p", "read", "", "", &request);
    format(&request, text);
    assert_int_equal(decide(&s, text, true, &g), 0);
    assert_int_equal(s.asked, 1);
    assert_true(grant_covers(g, bytes_of_string("chat-2")));
    grant_unref(g);
    assert_int_equal(decide(&s, text, true, &g), 0);
    assert_int_equal(s.asked, 1);
    grant_unref(g);
    request.signature[0] ^= 1;
    format(&request, text);
    assert_int_equal(decide(&s, text, true, &g), 401);
    assert_int_equal(s.asked, 2);
    end(&s);
}

/* Of nobody: some, and then no more before a while has gone by. */
static void a_search_has_an_end(void **state)
{
    struct scene s;
    struct grant *g;
    struct signed_request request;
    char text[7000];
    begin(&s, ALL);
    s.many = true;
    sign("nobody", "p", "read", "", "", &request);
    format(&request, text);
    assert_int_equal(decide(&s, text, true, &g), 401);
    assert_in_range(s.given, 8000, 9000);
    request.signature[0] ^= 1;
    format(&request, text);
    assert_int_equal(decide(&s, text, true, &g), 503);
    assert_in_range(s.given, 8000, 9000 + 9000);
    end(&s);
}

static void a_signed_request_has_one_form(void **state)
{
    static const char *const bad[] = {
        "",
        "berth_signed.",
        "berth_signed.read",
        "berth_signed.read.AAAA.0..",
        "berth_signed.look.AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA.0..",
        "berth_signed.read.AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA.-1..",
        "berth_signed.read.AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA...",
        "berth_signed.read.AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA.9999999999999999999..",
        "berth_signed.read.AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA.0.Zh.",
        "berth_signed.read.AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA.0.Zg..x",
        "berth_signed.read.AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA.0.Zg.YTpi", /* "a:b" */
    };
    struct signed_request request;
    assert_true(signed_request_parse(
        bytes_of_string("berth_signed.read.AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA.0.Zg."),
        &request));
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
        assert_false(signed_request_parse(bytes_of_string(bad[i]), &request));
}

/* The same text was signed, if a user may have colons. */
static void a_signature_is_read_in_one_way(void **state)
{
    struct scene s;
    struct grant *g;
    struct signed_request honest, other;
    char token[ISSUED_TEXT_MAX], text[7000];
    begin(&s, ALL);
    issue(&s, "chat-1", token);
    sign(token, "a:write:b", "read", "user", "", &honest);
    sign(token, "a", "write", "b:read:user", "", &other);
    assert_memory_equal(honest.signature, other.signature, SIGNATURE_SIZE);
    format(&other, text);
    assert_int_equal(decide(&s, text, true, &g), 401);
    format(&honest, text);
    assert_int_equal(decide(&s, text, true, &g), 0);
    assert_int_equal(g->verbs, GRANT_VERB(READ));
    grant_unref(g);
    end(&s);
}

/* Pages make browsers send signatures; other programs of this machine send what they like. */
static void what_is_right_is_never_counted_out(void **state)
{
    struct scene s;
    struct grant *g;
    struct signed_request request;
    char token[ISSUED_TEXT_MAX], text[7000], wrong[32];
    int status = 0;
    begin(&s, ALL);
    issue(&s, "chat-1", token);
    for (unsigned i = 0; i < 2 * FAILURES_BURST; i++) {
        sign(token, "p", "read", "", "", &request);
        request.signature[0] ^= (uint8_t)(i + 1);
        format(&request, text);
        status = decide(&s, text, true, &g);
        assert_int_equal(status, i < FAILURES_BURST ? 401 : 429);
    }
    size_t asked = s.asked;
    assert_int_equal(decide(&s, text, true, &g), 429);
    assert_int_equal(s.asked, asked); /* it costs no search */
    /* Of tokens there was no wrong one. */
    assert_int_equal(decide(&s, "wrong", false, &g), 401);
    sign(token, "p", "read", "", "", &request);
    format(&request, text);
    assert_int_equal(decide(&s, text, true, &g), 0);
    grant_unref(g);
    for (unsigned i = 0; i < 2 * FAILURES_BURST; i++) {
        (void)snprintf(wrong, sizeof wrong, "wrong-%u", i);
        status = decide(&s, wrong, false, &g);
    }
    assert_int_equal(status, 429);
    assert_int_equal(decide(&s, CARRIER, false, &g), 0);
    grant_unref(g);
    assert_int_equal(decide(&s, token, false, &g), 0);
    grant_unref(g);
    end(&s);
}

static void loopback_is_without_a_token(void **state)
{
    struct access_decision d;
    struct scene s;
    begin(&s, ALL);
    struct access_caller caller = {.address = 1, .loopback = true};
    access_decide(s.access, &caller, &d);
    assert_int_equal(d.status, 401);
    FILE *f = fopen(s.file, "we");
    assert_non_null(f);
    assert_true(fputs("{\"id\":\"debug\",\"loopback\":true," ALL "}\n", f) >= 0);
    assert_int_equal(fclose(f), 0);
    access_decide(s.access, &caller, &d);
    assert_non_null(d.grant);
    assert_string_equal(d.grant->id, "debug");
    assert_true(access_stands(s.access, d.grant));
    char token[ISSUED_TEXT_MAX];
    assert_int_equal(access_issue(s.access, d.grant, bytes_of_string("chat-1"), SLOT, token),
                     -EACCES);
    grant_unref(d.grant);
    caller.authorization = bytes_of_string("Bearer x");
    access_decide(s.access, &caller, &d);
    assert_int_equal(d.status, 401);
    caller = (struct access_caller){.address = 1};
    access_decide(s.access, &caller, &d);
    assert_int_equal(d.status, 401);
    end(&s);
}

static void the_key_is_made_once(void **state)
{
    char directory[] = "/tmp/berth-issued-XXXXXX";
    struct issued_key first, second;
    struct stat st;
    assert_non_null(mkdtemp(directory));
    int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(issued_key_load(fd, "k", &first), 0);
    assert_int_equal(issued_key_load(fd, "k", &second), 0);
    assert_memory_equal(&first, &second, sizeof first);
    assert_int_equal(fstatat(fd, "k", &st, 0), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(fchmodat(fd, "k", 0644, 0), 0);
    assert_int_equal(issued_key_load(fd, "k", &second), -EINVAL);
    assert_int_equal(fchmodat(fd, "k", 0600, 0), 0);
    int file = openat(fd, "k", O_WRONLY | O_TRUNC | O_CLOEXEC);
    assert_true(file >= 0);
    assert_int_equal(close(file), 0);
    assert_int_equal(issued_key_load(fd, "k", &second), -EINVAL);
    assert_int_equal(unlinkat(fd, "k", 0), 0);
    assert_int_equal(issued_key_load(fd, "k", &second), 0);
    assert_memory_not_equal(&first, &second, sizeof first);
    assert_int_equal(unlinkat(fd, "k", 0), 0);
    assert_int_equal(close(fd), 0);
    assert_int_equal(rmdir(directory), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_token_is_for_its_workspace_alone),
        cmocka_unit_test(a_token_ends_with_its_line),
        cmocka_unit_test(what_is_no_token_is_refused),
        cmocka_unit_test(a_signature_is_found_and_is_good_for_little),
        cmocka_unit_test(a_signature_is_searched_for),
        cmocka_unit_test(a_search_has_an_end),
        cmocka_unit_test(a_signed_request_has_one_form),
        cmocka_unit_test(a_signature_is_read_in_one_way),
        cmocka_unit_test(what_is_right_is_never_counted_out),
        cmocka_unit_test(loopback_is_without_a_token),
        cmocka_unit_test(the_key_is_made_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

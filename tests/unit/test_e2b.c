/* The pure parts of E2B's dialect: frames of Connect, multipart bodies, requests and answers in
 * JSON. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "gateway/connect_rpc.h"
#include "gateway/e2b_request.h"
#include "gateway/multipart.h"

/* --- Connect -------------------------------------------------------------------------- */

static void frames(void **state)
{
    _cleanup_buffer_ struct buffer b = {0};
    struct bytes message;
    assert_int_equal(connect_append_frame(&b, CONNECT_END, bytes_of_string("{}")), 0);
    assert_int_equal(b.len, 7);
    assert_memory_equal(b.data, "\2\0\0\0\2{}", 7);
    assert_int_equal(connect_request_message(bytes_of("\0\0\0\0\2{}", 7), &message), 0);
    assert_true(bytes_equal(message, bytes_of_string("{}")));
    static const struct {
        const char *data;
        size_t len;
        int error;
    } bad[] = {
        {"", 0, -EBADMSG},
        {"\0\0\0\0", 4, -EBADMSG},
        {"\0\0\0\0\3{}", 7, -EBADMSG},
        {"\0\0\0\0\1{}", 7, -EBADMSG},
        {"\0\xff\xff\xff\xff{}", 7, -EBADMSG},
        {"\2\0\0\0\2{}", 7, -EBADMSG},
        {"\1\0\0\0\2{}", 7, -EOPNOTSUPP},
    };
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
        assert_int_equal(connect_request_message(bytes_of(bad[i].data, bad[i].len), &message),
                         bad[i].error);
}

static void codes_and_times(void **state)
{
    uint64_t ms;
    assert_string_equal(connect_code(-ENOENT, 404), "not_found");
    assert_string_equal(connect_code(-EEXIST, 409), "already_exists");
    assert_string_equal(connect_code(0, 401), "unauthenticated");
    assert_string_equal(connect_code(-EIO, 500), "internal");
    assert_int_equal(connect_timeout_ms(NULL, &ms), 0);
    assert_int_equal(ms, 0);
    assert_int_equal(connect_timeout_ms("60000", &ms), 0);
    assert_int_equal(ms, 60000);
    static const char *const bad[] = {"", "-1", "1.5", "x", "12345678901", " 1"};
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
        assert_int_equal(connect_timeout_ms(bad[i], &ms), -EINVAL);
}

/* --- multipart ------------------------------------------------------------------------ */

struct told {
    struct buffer text; /* "<NAME|FILENAME>CONTENT." for each part */
    int error;          /* what `content` answers */
};

static int on_begin(void *context, const struct multipart_part *part)
{
    struct told *t = context;
    return buffer_printf(&t->text, "<%s|%s>", part->name, part->filename ? part->filename : "-");
}

static int on_content(void *context, struct bytes data)
{
    struct told *t = context;
    assert_true(data.len > 0);
    return t->error ? t->error : buffer_append(&t->text, data.data, data.len);
}

static int on_end(void *context)
{
    return buffer_printf(&((struct told *)context)->text, ".");
}

/* In pieces of this size. */
static int parse(const char *type, struct bytes body, size_t piece, struct told *t,
                 bool *ret_complete)
{
    const struct multipart_events events = {
        .begin = on_begin, .content = on_content, .end = on_end, .context = t};
    _cleanup_multipart_ struct multipart *m = NULL;
    int r = multipart_new(type, &events, &m);
    for (size_t at = 0; r == 0 && at < body.len; at += piece)
        r = multipart_feed(m,
                           bytes_of(body.data + at, piece < body.len - at ? piece : body.len - at));
    *ret_complete = r == 0 && multipart_is_complete(m);
    return r;
}

#define TYPE "multipart/form-data; boundary=B"
#define PART(disposition) "--B\r\nContent-Disposition: form-data" disposition "\r\n\r\n"

static void parts(void **state)
{
    static const struct {
        const char *type, *body, *told;
    } cases[] = {
        {TYPE, PART("; name=\"file\"; filename=\"a b\"") "text\r\n--B--\r\n", "<file|a b>text."},
        {TYPE, PART("; name=file") "\r\n--B--", "<file|->."},
        {TYPE,
         "preamble\r\n" PART("; name=\"x\"") "1\r\n" PART("; name=\"y\"") "2\r\n--B--epilogue",
         "<x|->1.<y|->2."},
        {TYPE, PART("; name=\"x\"") "\r\n--\r\r\n--BB\n--B\r\n--C\r\n--B--", NULL},
        {TYPE, PART("; name=\"x\"") "a\r\n--\r\r\n-B\r\n\r\n--B--", "<x|->a\r\n--\r\r\n-B\r\n."},
        {"Multipart/Form-Data;boundary=\"a b'\"; charset=x",
         "--a b' \t\r\ncontent-disposition:form-data;name=\"f%22%0d\\\"\"\r\nX: y\r\n\r\n1\r\n--a "
         "b'--",
         "<f\"\r\"|->1."},
        {TYPE, PART("; name=\"file\"; filename=\"\"") "1\r\n--B--", "<file|>1."},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct bytes body = bytes_of_string(cases[i].body);
        for (size_t piece = 1; piece <= body.len; piece++) {
            struct told t = {0};
            bool complete;
            int r = parse(cases[i].type, body, piece, &t, &complete);
            if (cases[i].told) {
                assert_int_equal(r, 0);
                assert_true(complete);
                assert_true(bytes_equal(buffer_view(&t.text), bytes_of_string(cases[i].told)));
            } else {
                assert_int_equal(r, -EBADMSG);
            }
            buffer_release(&t.text);
        }
    }
}

static void bodies_that_are_none(void **state)
{
    static const struct {
        const char *type, *body;
        int error;
    } cases[] = {
        {"text/plain", "", -EINVAL},
        {"multipart/form-data", "", -EINVAL},
        {"multipart/form-data; boundary=", "", -EINVAL},
        {"multipart/form-data; boundary=\"\r\n\"", "", -EINVAL},
        {"multipart/form-data; boundary=\"x", "", -EINVAL},
        {"multipart/form-data; "
         "boundary=12345678901234567890123456789012345678901234567890123456789012"
         "345678901",
         "", -EINVAL},
        {TYPE, "--Bx\r\n", -EBADMSG},
        {TYPE, "--B\r\n\r\n", -EBADMSG},
        {TYPE, "--B\r\nX: y\r\n\r\n", -EBADMSG},
        {TYPE, "--B\r\nContent-Disposition: attachment\r\n\r\n", -EBADMSG},
        {TYPE, "--B\r\nContent-Disposition: form-data; name=\"a\"; name=\"b\"\r\n\r\n", -EBADMSG},
        {TYPE, "--B\r\nContent-Disposition: form-data\r\n folded\r\n\r\n", -EBADMSG},
        {TYPE, "--B\r\nno field\r\n\r\n", -EBADMSG},
        {TYPE, PART("; name=\"x\"") "1\r\n--B", 0},
        {TYPE, PART("; name=\"x\"") "1", 0},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct told t = {0};
        bool complete;
        assert_int_equal(parse(cases[i].type, bytes_of_string(cases[i].body), 3, &t, &complete),
                         cases[i].error);
        assert_false(complete);
        buffer_release(&t.text);
    }
}

static void headers_are_bounded_and_events_end_it(void **state)
{
    _cleanup_buffer_ struct buffer body = {0};
    struct told t = {.error = -ENOSPC};
    bool complete;
    assert_int_equal(buffer_printf(&body, "--B\r\nX: "), 0);
    for (size_t i = 0; i < MULTIPART_HEADER_MAX; i++)
        assert_int_equal(buffer_append(&body, "x", 1), 0);
    assert_int_equal(parse(TYPE, buffer_view(&body), 4096, &t, &complete), -EMSGSIZE);
    assert_int_equal(
        parse(TYPE, bytes_of_string(PART("; name=\"x\"") "1\r\n--B--"), 99, &t, &complete),
        -ENOSPC);
    buffer_release(&t.text);
}

/* --- JSON ----------------------------------------------------------------------------- */

static json_t *json(const char *text)
{
    json_t *value = json_loads(text, JSON_ALLOW_NUL, NULL);
    assert_non_null(value);
    return value;
}

static void starts(void **state)
{
    struct e2b_start s;
    struct failure f;
    json_t *request =
        json("{\"process\":{\"cmd\":\"/bin/bash\",\"args\":[\"-l\",\"\"],\"envs\":{\"A\":"
             "\"b=c\"},\"cwd\":\"x\"},\"stdin\":false,\"other\":{}}");
    assert_int_equal(e2b_start_read(request, &s, &f), 0);
    assert_int_equal(s.argv_count, 3);
    assert_int_equal(s.env_count, 1);
    assert_memory_equal(s.env.data + 4, "A=b=c", 5);
    assert_string_equal(s.cwd, "x");
    assert_false(s.stdin_open || s.pty);
    json_t *more = json("{\"A\":\"0\",\"B\":\"\"}");
    assert_int_equal(e2b_start_put_before(&s, more, &f), 0);
    assert_int_equal(s.env_count, 3);
    json_decref(more);
    e2b_start_release(&s);
    json_decref(request);
    request = json("{\"process\":{\"cmd\":\"x\",\"args\":null},\"pty\":{\"size\":{\"cols\":\"9\","
                   "\"rows\":8}}}");
    assert_int_equal(e2b_start_read(request, &s, &f), 0);
    assert_true(s.pty && s.stdin_open);
    assert_int_equal(s.columns, 9);
    assert_int_equal(s.rows, 8);
    e2b_start_release(&s);
    json_decref(request);
    static const char *const bad[] = {
        "{}",
        "{\"process\":[]}",
        "{\"process\":{}}",
        "{\"process\":{\"cmd\":1}}",
        "{\"process\":{\"cmd\":\"\"}}",
        "{\"process\":{\"cmd\":\"a\\u0000b\"}}",
        "{\"process\":{\"cmd\":\"a\",\"args\":[1]}}",
        "{\"process\":{\"cmd\":\"a\",\"args\":\"b\"}}",
        "{\"process\":{\"cmd\":\"a\",\"args\":[\"b\\u0000\"]}}",
        "{\"process\":{\"cmd\":\"a\",\"envs\":{\"A\":1}}}",
        "{\"process\":{\"cmd\":\"a\",\"envs\":{\"A=\":\"\"}}}",
        "{\"process\":{\"cmd\":\"a\",\"envs\":{\"\":\"\"}}}",
        "{\"process\":{\"cmd\":\"a\"},\"stdin\":1}",
        "{\"process\":{\"cmd\":\"a\"},\"pty\":{\"size\":{\"cols\":70000}}}",
    };
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        request = json(bad[i]);
        assert_int_equal(e2b_start_read(request, &s, &f), -EINVAL);
        json_decref(request);
    }
}

static void selectors_inputs_and_signals(void **state)
{
    struct failure f;
    uint32_t pid;
    int number;
    bool pty;
    static const struct {
        const char *text;
        int result;
    } selectors[] = {
        {"{\"process\":{\"pid\":7}}", 0},
        {"{\"process\":{\"pid\":\"7\"}}", 0},
        {"{\"process\":{\"pid\":0}}", -EINVAL},
        {"{\"process\":{\"pid\":-7}}", -EINVAL},
        {"{\"process\":{\"pid\":4294967296}}", -EINVAL},
        {"{\"process\":{}}", -EINVAL},
        {"{}", -EINVAL},
        {"{\"process\":{\"tag\":\"x\"}}", -EOPNOTSUPP},
    };
    for (size_t i = 0; i < ARRAY_SIZE(selectors); i++) {
        json_t *request = json(selectors[i].text);
        assert_int_equal(e2b_selector(request, &pid, &f), selectors[i].result);
        assert_true(selectors[i].result < 0 || pid == 7);
        json_decref(request);
    }
    static const struct {
        const char *text;
        int signal;
    } signals[] = {{"{\"signal\":9}", SIGKILL},
                   {"{\"signal\":\"SIGNAL_SIGTERM\"}", SIGTERM},
                   {"{\"signal\":\"15\"}", SIGTERM},
                   {"{\"signal\":1}", 0},
                   {"{}", 0}};
    for (size_t i = 0; i < ARRAY_SIZE(signals); i++) {
        json_t *request = json(signals[i].text);
        assert_int_equal(e2b_signal(request, &number, &f), signals[i].signal ? 0 : -EINVAL);
        assert_true(!signals[i].signal || number == signals[i].signal);
        json_decref(request);
    }
    _cleanup_buffer_ struct buffer data = {0};
    json_t *request = json("{\"input\":{\"pty\":\"AAE=\"}}");
    assert_int_equal(e2b_input(request, &pty, &data, &f), 0);
    assert_true(pty && bytes_equal(buffer_view(&data), bytes_of("\0\1", 2)));
    json_decref(request);
    request = json("{\"input\":{\"stdin\":\"AA*=\"}}");
    assert_int_equal(e2b_input(request, &pty, &data, &f), -EINVAL);
    json_decref(request);
}

static void numbers_of_commands(void **state)
{
    char id[E2B_EXEC_ID_SIZE];
    e2b_exec_id(INT32_MAX, id);
    assert_string_equal(id, "e2b-2147483647");
    assert_int_equal(e2b_exec_pid(bytes_of_string(id)), INT32_MAX);
    static const char *const others[] = {
        "e2b-", "e2b-1", "e2b-01073741824", "x", "e2b-2147483648", "e2b-1073741824x", "e2b--1", ""};
    for (size_t i = 0; i < ARRAY_SIZE(others); i++)
        assert_int_equal(e2b_exec_pid(bytes_of_string(others[i])), 0);
    assert_int_equal(e2b_exec_pid(bytes_of_string("e2b-1073741824")), E2B_PID_FIRST);
}

static void assert_answer(struct buffer *b, const char *text)
{
    assert_int_equal(buffer_append(b, "", 1), 0);
    assert_string_equal((const char *)b->data, text);
    b->len = 0;
}

static void events(void **state)
{
    _cleanup_buffer_ struct buffer b = {0};
    assert_int_equal(e2b_event_start(&b, 5), 0);
    assert_answer(&b, "{\"event\":{\"start\":{\"pid\":5}}}");
    assert_int_equal(e2b_event_data(&b, E2B_STDERR, bytes_of("\xff", 1)), 0);
    assert_answer(&b, "{\"event\":{\"data\":{\"stderr\":\"/w==\"}}}");
    struct wire_exec_exit exit = {.verdict = WIRE_VERDICT_EXITED, .code = 3};
    assert_int_equal(e2b_event_end(&b, &exit), 0);
    assert_answer(
        &b, "{\"event\":{\"end\":{\"exitCode\":3,\"exited\":true,\"status\":\"exit status 3\"}}}");
    exit = (struct wire_exec_exit){.verdict = WIRE_VERDICT_SIGNALED, .signal = SIGKILL};
    assert_int_equal(e2b_event_end(&b, &exit), 0);
    assert_answer(&b, "{\"event\":{\"end\":{\"exitCode\":-1,\"exited\":false,\"status\":\"signal: "
                      "killed\",\"error\":\"signal: killed\"}}}");
    exit = (struct wire_exec_exit){.verdict = WIRE_VERDICT_TIMED_OUT, .timeout_ms = 9};
    assert_int_equal(e2b_event_end(&b, &exit), 0);
    assert_non_null(memmem(b.data, b.len, "its timeout of 9 ms", 19));
    b.len = 0;
    assert_int_equal(e2b_error(&b, "not_found", "a\xff\"b"), 0);
    assert_answer(&b, "{\"code\":\"not_found\",\"message\":\"a\xef\xbf\xbd\\\"b\"}");
    assert_int_equal(e2b_status_error(&b, 404, ""), 0);
    assert_answer(&b, "{\"code\":404,\"message\":\"\"}");
}

static void entries(void **state)
{
    const struct wire_attr attr = {
        .mode = S_IFLNK | 0777, .size = 5, .uid = 12345, .mtime = {1, 5}};
    const struct wire_attr behind = {.mode = S_IFDIR | 0750};
    const struct e2b_entry entry = {
        .path = "/home/user/a", .target = "/home/user/b", .attr = &attr, .behind = &behind};
    json_t *e = e2b_entry_json(&entry);
    _cleanup_free_ char *text = json_dumps(e, JSON_COMPACT);
    json_decref(e);
    assert_string_equal(
        text, "{\"name\":\"a\",\"type\":\"FILE_TYPE_DIRECTORY\",\"path\":\"/home/user/a\","
              "\"size\":\"5\",\"mode\":488,\"permissions\":\"Lrwxrwxrwx\",\"owner\":\"12345\","
              "\"group\":\"root\",\"modifiedTime\":\"1970-01-01T00:00:01.000000005Z\","
              "\"symlinkTarget\":\"/home/user/b\"}");
}

static void paths(void **state)
{
    static const struct {
        const char *path, *rest; /* NULL: elsewhere */
    } cases[] = {
        {"", ""},
        {"a/b", "a/b"},
        {"~", ""},
        {"~/x", "/x"},
        {"~user", NULL},
        {"/home/user", ""},
        {"/home/user/", "/"},
        {"/home/user/a", "/a"},
        {"//home/user/a", "/a"},
        {"/home/user2", NULL},
        {"/workspace/a", "/a"},
        {"/", NULL},
        {"/tmp/x", NULL},
        {"/home", NULL},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct bytes rest;
        assert_int_equal(e2b_path(cases[i].path, &rest), cases[i].rest ? 0 : -ENXIO);
        assert_true(!cases[i].rest || bytes_equal(rest, bytes_of_string(cases[i].rest)));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frames),
        cmocka_unit_test(codes_and_times),
        cmocka_unit_test(parts),
        cmocka_unit_test(bodies_that_are_none),
        cmocka_unit_test(headers_are_bounded_and_events_end_it),
        cmocka_unit_test(starts),
        cmocka_unit_test(selectors_inputs_and_signals),
        cmocka_unit_test(numbers_of_commands),
        cmocka_unit_test(events),
        cmocka_unit_test(entries),
        cmocka_unit_test(paths),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

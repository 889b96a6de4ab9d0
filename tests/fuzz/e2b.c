/* What E2B's clients send: a frame of Connect with JSON in it, and tokens. What is taken must have
 * sense, and what is told of it must be JSON. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "access/issued.h"
#include "gateway/connect_rpc.h"
#include "gateway/e2b_shapes.h"

static void check_words(const struct buffer *words, uint32_t count)
{
    struct wire_list list = wire_list_of(words, count);
    struct bytes word;
    uint32_t offset = 0, n = 0;
    for (; wire_list_next(&list, &offset, &word); n++)
        assert(!memchr(word.data, '\0', word.len));
    assert(n == count);
}

static void check_request(const json_t *request)
{
    struct e2b_start s;
    struct failure f;
    struct buffer input = {0};
    uint32_t pid, rows, columns;
    int number;
    bool pty;
    if (e2b_start_read(request, &s, &f) == 0) {
        assert(s.argv_count > 0);
        check_words(&s.argv, s.argv_count);
        check_words(&s.env, s.env_count);
        e2b_start_release(&s);
    }
    if (e2b_selector(request, &pid, &f) == 0)
        assert(pid != 0);
    if (e2b_signal(request, &number, &f) == 0)
        assert(number == 9 || number == 15);
    (void)e2b_size(request, &rows, &columns, &f);
    (void)e2b_input(request, &pty, &input, &f);
    buffer_release(&input);
}

static void check_text(struct bytes text)
{
    struct signed_request request, again;
    struct issued_claim claim;
    struct buffer b = {0};
    if (issued_parse(text, &claim))
        assert(grant_id_is_valid(claim.id) && claim.thread_id_len > 0);
    if (signed_request_parse(text, &request)) {
        assert(signed_request_format(&request, &b) == 0);
        assert(signed_request_parse(buffer_view(&b), &again));
        assert(again.path_len == request.path_len && again.expires == request.expires);
        assert(memcmp(again.path, request.path, request.path_len) == 0);
    }
    b.len = 0;
    json_t *string = e2b_string(text);
    assert(string);
    json_decref(string);
    (void)e2b_exec_pid(text);
    buffer_release(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct bytes message;
    check_text(bytes_of(data, size));
    if (connect_request_message(bytes_of(data, size), &message) < 0)
        message = bytes_of(data, size);
    json_t *request = json_loadb((const char *)message.data, message.len,
                                 JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
    if (json_is_object(request))
        check_request(request);
    json_decref(request);
    return 0;
}

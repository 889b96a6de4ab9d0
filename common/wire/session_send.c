#include "wire/session_private.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>

/* An empty output buffer above this size is given back: an idle connection that once moved
 * a large frame does not keep its memory. */
#define OUTPUT_KEEP 0x10000

/* Smaller payloads are not worth the work. */
#define COMPRESS_MIN 256

/* --- output -------------------------------------------------------------------- */

static void drop_done(struct session *s)
{
    buffer_consume(&s->output, s->output_kept);
    s->output_start += s->output_kept;
    s->output_head -= s->output_kept;
    s->output_kept = 0;
}

/* Large frames that were done with leave no large buffer behind. */
static void shrink(struct session *s)
{
    struct buffer *out = &s->output;
    size_t left = out->len - s->output_kept;
    if (left == 0) {
        drop_done(s);
        if (out->allocated > OUTPUT_KEEP)
            buffer_release(out);
    } else if (left <= OUTPUT_KEEP && out->allocated > 4 * OUTPUT_KEEP) {
        drop_done(s);
        uint8_t *less = realloc(out->data, OUTPUT_KEEP);
        if (less) {
            out->data = less;
            out->allocated = OUTPUT_KEEP;
        }
    }
}

/* Compresses the payload that ends the output from `start` on, where that helps; *ret_flags
 * says how, also on failure. */
static int compress_payload(struct session *s, const struct wire_row *row, size_t start,
                            uint16_t *ret_flags)
{
    struct buffer *out = &s->output;
    struct bytes payload = bytes_of(out->data + start, out->len - start);
    /* GOODBYE is what is left to say when compression itself has failed. */
    if (!(s->peer.features & WIRE_FEATURE_ZSTD) || !s->ready || payload.len < COMPRESS_MIN ||
        row->type == WIRE_GOODBYE)
        return 0;
    _cleanup_buffer_ struct buffer packed = {0};
    int r;
    if (wire_row_is_bulk(row)) {
        r = compressor_bulk(&s->compressor, payload, &packed);
        if (r <= 0)
            return r;
        *ret_flags = WIRE_FRAME_ZSTD;
    } else {
        *ret_flags = WIRE_FRAME_ZSTD_STREAM;
        r = compressor_stream(&s->compressor, payload, &packed);
        if (r < 0)
            return r;
    }
    out->len = start;
    /* What does not shrink was made a little longer by the stream. */
    return buffer_append(out, packed.data, packed.len);
}

/* The frame without its header, which the caller writes; rolled back by the caller. */
static int append_payload(struct session *s, const struct wire_message *m, size_t limit,
                          size_t *ret_size, uint16_t *ret_flags)
{
    size_t start = s->output.len;
    int r = wire_encode(&s->output, m);
    if (r < 0)
        return r;
    *ret_size = s->output.len - start;
    if (*ret_size > s->peer.max_payload)
        return -EMSGSIZE;
    if (*ret_size > limit)
        return -EAGAIN;
    return compress_payload(s, wire_row(m->type), start, ret_flags);
}

int session_append_frame(struct session *s, uint64_t tag, const struct wire_message *m,
                         size_t limit, size_t *ret_size)
{
    struct buffer *out = &s->output;
    /* Moving what is left only when it is no more than what was done with costs at most one
     * copy per byte, however the peer takes it. */
    if (s->output_kept > 0 && s->output_kept >= out->len - s->output_kept)
        drop_done(s);
    size_t start = out->len;
    int r = buffer_reserve(out, WIRE_HEADER_SIZE + wire_row(m->type)->min_payload);
    if (r < 0)
        return r;
    out->len += WIRE_HEADER_SIZE;
    size_t size;
    uint16_t flags = 0;
    r = append_payload(s, m, limit, &size, &flags);
    if (r < 0) {
        out->len = start;
        /* The stream has gone on without this frame: what follows could not be read. */
        if (flags & WIRE_FRAME_ZSTD_STREAM)
            return session_fail(s, r, "no memory to compress a frame");
        return r;
    }
    struct wire_header header = {.length = (uint32_t)(out->len - start - WIRE_HEADER_SIZE),
                                 .type = (uint16_t)m->type,
                                 .flags = flags,
                                 .tag = tag};
    wire_header_encode(out->data + start, &header);
    s->stats.frames_out++;
    s->stats.bytes_out += out->len - start;
    if (ret_size)
        *ret_size = size;
    return 0;
}

struct bytes session_output(struct session *s)
{
    if (s->output.len == s->output_head)
        return (struct bytes){0};
    return bytes_of(s->output.data + s->output_head, s->output.len - s->output_head);
}

void session_output_done(struct session *s, size_t n)
{
    assert(n <= s->output.len - s->output_head);
    s->output_head += n;
    if (!(s->peer.features & WIRE_FEATURE_RESUME))
        s->output_kept = s->output_head;
    else if (s->output_head - s->output_kept > SESSION_KEEP_MAX)
        s->output_kept = s->output_head - SESSION_KEEP_MAX;
    shrink(s);
}

size_t session_kept(const struct session *s)
{
    return s->output.len - s->output_kept;
}

/* --- on another connection ------------------------------------------------------- */

bool session_resumable(const struct session *s)
{
    return s->ready && !s->dead && !s->goodbye_sent && !s->goodbye_received && !s->peer.resumed &&
           (s->peer.features & WIRE_FEATURE_RESUME);
}

uint64_t session_received(const struct session *s)
{
    return s->stats.bytes_in;
}

uint64_t session_last_tag(const struct session *s)
{
    return s->last_tag;
}

int session_resume(struct session *s, uint64_t received)
{
    if (!session_resumable(s) || received < s->output_start + s->output_kept ||
        received > s->output_start + s->output_head)
        return -ESTALE;
    s->output_kept = s->output_head = (size_t)(received - s->output_start);
    return 0;
}

int session_acknowledged(struct session *s, uint64_t received)
{
    if (!(s->peer.features & WIRE_FEATURE_RESUME))
        return session_fail(s, -EPROTO, "ACK within a session that is not kept");
    if (received > s->output_start + s->output_head)
        return session_fail(s, -EPROTO, "ACK of bytes that were never sent");
    if (received > s->output_start + s->output_kept) {
        s->output_kept = (size_t)(received - s->output_start);
        shrink(s);
    }
    return 0;
}

void session_acknowledge(struct session *s)
{
    if (!session_resumable(s) || s->stats.bytes_in - s->acknowledged < SESSION_ACK_EVERY)
        return;
    const struct wire_message ack = {.type = WIRE_ACK, .ack.received = s->stats.bytes_in};
    /* Without memory the next one says it. */
    if (session_append_frame(s, 0, &ack, SIZE_MAX, NULL) == 0)
        s->acknowledged = s->stats.bytes_in;
}

/* --- failure ------------------------------------------------------------------- */

int session_fail(struct session *s, int error, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    (void)vsnprintf(s->failure, sizeof s->failure, format, args);
    va_end(args);
    s->dead = error;
    buffer_release(&s->payload);
    buffer_release(&s->backlog);
    if (!s->goodbye_sent && !s->goodbye_received) {
        struct wire_message goodbye = {
            .type = WIRE_GOODBYE,
            .goodbye = {.error = (uint32_t)-error, .text = bytes_of_string(s->failure)}};
        /* Without memory for it the peer learns of the end by the closed stream. */
        (void)session_append_frame(s, 0, &goodbye, SIZE_MAX, NULL);
    }
    s->goodbye_sent = true;
    return error;
}

const char *session_failure(const struct session *s)
{
    return s->dead ? s->failure : NULL;
}

/* --- sending ------------------------------------------------------------------- */
static bool may_send(const struct session *s, const struct wire_row *row)
{
    enum wire_from us = s->config.role == SESSION_CLIENT ? WIRE_FROM_CLIENT : WIRE_FROM_SERVER;
    return row && (row->from & us) && row->phase != WIRE_PHASE_HELLO;
}

bool session_connected(const struct session *s, const struct wire_row *row)
{
    return !s->dead && !s->goodbye_sent && (s->ready || row->phase == WIRE_PHASE_ANY);
}

int session_request(struct session *s, const struct wire_message *m, bool blocking,
                    uint64_t *ret_tag)
{
    const struct wire_row *row = wire_row(m->type);
    if (!may_send(s, row) || row->class != WIRE_CLASS_REQUEST)
        return -EINVAL;
    if (!session_connected(s, row))
        return -ENOTCONN;
    if (s->calls.count >= s->peer.max_calls)
        return -EAGAIN;
    struct session_call *call;
    uint64_t tag = s->last_tag + 1;
    int r = session_open_call(s, tag, row, &call);
    if (r < 0)
        return r;
    r = session_append_frame(s, tag, m, SIZE_MAX, NULL);
    if (r < 0) {
        session_close_call(s, call);
        s->last_tag = tag - 1;
        return r;
    }
    call->depth = s->depth + 1;
    call->blocking = blocking;
    s->stats.requests++;
    if (blocking) {
        s->stats.blocking++;
        if (call->depth > s->stats.round_trips)
            s->stats.round_trips = call->depth;
    }
    *ret_tag = tag;
    return 0;
}

static int send_item(struct session *s, struct session_call *call, const struct wire_message *m)
{
    size_t cost;
    int r = session_append_frame(s, call->tag, m, call->credit_out, &cost);
    if (r < 0)
        return r;
    call->credit_out -= (uint32_t)cost;
    return 0;
}

int session_send(struct session *s, uint64_t tag, const struct wire_message *m)
{
    const struct wire_row *row = wire_row(m->type);
    if (!may_send(s, row) || m->type == WIRE_GRANT)
        return -EINVAL;
    if (!session_connected(s, row))
        return -ENOTCONN;
    struct session_call *call = session_find_call(s, tag);
    int r;
    switch (row->class) {
    case WIRE_CLASS_REPLY:
        if (!call)
            return -ENOENT;
        if (row->type != call->row->owner && row->type != WIRE_ERROR)
            return -EINVAL;
        r = session_append_frame(s, tag, m, SIZE_MAX, NULL);
        if (r == 0)
            session_close_call(s, call);
        return r;
    case WIRE_CLASS_ITEM:
    case WIRE_CLASS_CONTROL:
        if (!call)
            return -ENOENT;
        if (!wire_row_belongs(row, call->row))
            return -EINVAL;
        return row->class == WIRE_CLASS_ITEM ? send_item(s, call, m)
                                             : session_append_frame(s, tag, m, SIZE_MAX, NULL);
    case WIRE_CLASS_NOTICE:
        if (tag != 0)
            return -EINVAL;
        r = session_append_frame(s, 0, m, SIZE_MAX, NULL);
        if (r == 0 && row->type == WIRE_GOODBYE)
            s->goodbye_sent = true;
        return r;
    case WIRE_CLASS_REQUEST:
    case WIRE_CLASS_RECORD:
        break;
    }
    return -EINVAL;
}

int session_send_error(struct session *s, uint64_t tag, int error, const char *text)
{
    assert(error < 0 && error >= -ERRNO_MAX);
    struct wire_message m = {.type = WIRE_ERROR,
                             .error = {.error = (uint32_t)-error, .text = bytes_of_string(text)}};
    const struct wire_field *field = &wire_row(WIRE_ERROR)->fields[1];
    if (m.error.text.len > field->max)
        m.error.text.len = field->max;
    return session_send(s, tag, &m);
}

/* --- flow control -------------------------------------------------------------- */
size_t session_credit(const struct session *s, uint64_t tag)
{
    const struct session_call *call = session_find_call(s, tag);
    return call && !s->dead && !s->goodbye_sent ? call->credit_out : 0;
}

size_t session_item_cost(enum wire_type type, size_t data_len)
{
    const struct wire_row *row = wire_row(type);
    assert(row && row->class == WIRE_CLASS_ITEM);
    size_t cost = row->min_payload + data_len;
    for (size_t i = 0; i < row->field_count; i++)
        cost -= row->fields[i].min;
    return cost;
}

int session_grant(struct session *s, uint64_t tag, size_t bytes)
{
    const struct wire_row *row = wire_row(WIRE_GRANT);
    if (!session_connected(s, row))
        return -ENOTCONN;
    struct session_call *call = session_find_call(s, tag);
    if (!call)
        return -ENOENT;
    if (bytes > SESSION_CREDIT_MAX - call->credit_in)
        return -EINVAL;
    struct wire_message m = {.type = WIRE_GRANT, .grant = {.bytes = (uint32_t)bytes}};
    int r = session_append_frame(s, tag, &m, SIZE_MAX, NULL);
    if (r < 0)
        return r;
    call->credit_in += (uint32_t)bytes;
    return 0;
}

bool session_credit_changed(struct session *s)
{
    bool changed = s->credit_changed;
    s->credit_changed = false;
    return changed;
}

#include "wire/session.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/log.h"
#include "base/table.h"

/* An empty output buffer above this size is given back: an idle connection that once moved
 * a large frame does not keep its memory. */
#define OUTPUT_KEEP 0x10000

/* Linux errno numbers end here; a larger one in an ERROR would look like success or garbage
 * to code that passes it on to the kernel. */
#define ERRNO_MAX 4095

#define AGENT_MAX (sizeof((struct session_peer *)NULL)->agent - 1)

struct session_call {
    uint64_t tag;
    const struct wire_row *row;
    uint32_t credit_out; /* item bytes we may send */
    uint32_t credit_in;  /* item bytes the peer may send */
    uint64_t depth;      /* see session_stats.round_trips */
    bool blocking;
    struct session_call *prev, *next; /* in order of opening, which is that of tags */
};

struct session {
    struct session_config config; /* agent points to the next */
    char agent[AGENT_MAX + 1];
    struct session_peer peer;
    uint32_t peer_window;
    bool ready;
    bool goodbye_sent;
    bool goodbye_received;
    bool credit_changed;
    int dead; /* 0 or the negative errno */
    char failure[256];

    struct table calls;
    struct session_call *first_call, *last_call;
    uint64_t last_tag; /* the greatest opened */
    uint64_t depth;    /* greatest of any reply that somebody waited for */

    /* The frame that is arriving: row is set once its header is there. */
    uint8_t raw_header[WIRE_HEADER_SIZE];
    size_t raw_header_len;
    struct wire_header header;
    const struct wire_row *row;
    size_t payload_received;
    bool dropping; /* of a call that has ended: the payload is not kept */
    struct buffer payload;

    struct wire_frame *first_frame, **last_frame; /* received, not yet taken */

    struct buffer output;
    size_t output_head; /* what was taken of it */

    struct session_stats stats;
};

void wire_frame_free(struct wire_frame *frame)
{
    if (!frame)
        return;
    buffer_release(&frame->payload);
    free(frame);
}

DEFINE_CLEANUP(struct wire_frame *, wire_frame_free);
#define _cleanup_frame_ _cleanup_(wire_frame_free_pointer)

/* --- output -------------------------------------------------------------------- */

/* Appends a whole frame or nothing. */
static int append_frame(struct session *s, uint64_t tag, const struct wire_message *m)
{
    struct buffer *out = &s->output;
    /* Moving what is left only when it is no more than what was taken costs at most one
     * copy per byte, however the peer takes it. */
    if (s->output_head > 0 && s->output_head >= out->len - s->output_head) {
        buffer_consume(out, s->output_head);
        s->output_head = 0;
    }
    size_t start = out->len;
    int r = buffer_reserve(out, WIRE_HEADER_SIZE + wire_row(m->type)->min_payload);
    if (r < 0)
        return r;
    out->len += WIRE_HEADER_SIZE;
    r = wire_encode(out, m);
    if (r < 0) {
        out->len = start;
        return r;
    }
    size_t length = out->len - start - WIRE_HEADER_SIZE;
    if (length > s->peer.max_payload) {
        out->len = start;
        return -EMSGSIZE;
    }
    struct wire_header header = {.length = (uint32_t)length, .type = (uint16_t)m->type, .tag = tag};
    wire_header_encode(out->data + start, &header);
    s->stats.frames_out++;
    s->stats.bytes_out += out->len - start;
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
    if (s->output_head < s->output.len)
        return;
    s->output_head = 0;
    s->output.len = 0;
    if (s->output.allocated > OUTPUT_KEEP)
        buffer_release(&s->output);
}

/* --- failure ------------------------------------------------------------------- */

/* Ends the session for good and tells the peer why; returns error, a negative errno. */
__attribute__((format(printf, 3, 4))) static int fail(struct session *s, int error,
                                                      const char *format, ...)
{
    va_list args;
    va_start(args, format);
    (void)vsnprintf(s->failure, sizeof s->failure, format, args);
    va_end(args);
    s->dead = error;
    buffer_release(&s->payload);
    if (!s->goodbye_sent && !s->goodbye_received) {
        struct wire_message goodbye = {
            .type = WIRE_GOODBYE,
            .goodbye = {.error = (uint32_t)-error, .text = bytes_of_string(s->failure)}};
        /* Without memory for it the peer learns of the end by the closed stream. */
        (void)append_frame(s, 0, &goodbye);
    }
    s->goodbye_sent = true;
    return error;
}

const char *session_failure(const struct session *s)
{
    return s->dead ? s->failure : NULL;
}

/* --- calls --------------------------------------------------------------------- */
static struct session_call *find_call(const struct session *s, uint64_t tag)
{
    return table_get(&s->calls, tag);
}

static int open_call(struct session *s, uint64_t tag, const struct wire_row *row,
                     struct session_call **ret)
{
    struct session_call *call = malloc(sizeof *call);
    if (!call)
        return -ENOMEM;
    *call = (struct session_call){.tag = tag,
                                  .row = row,
                                  .credit_out = s->peer_window,
                                  .credit_in = s->config.window,
                                  .prev = s->last_call};
    int r = table_put(&s->calls, tag, call, NULL);
    if (r < 0) {
        free(call);
        return r;
    }
    if (s->last_call)
        s->last_call->next = call;
    else
        s->first_call = call;
    s->last_call = call;
    s->last_tag = tag;
    *ret = call;
    return 0;
}

static void close_call(struct session *s, struct session_call *call)
{
    (void)table_take(&s->calls, call->tag);
    if (call->prev)
        call->prev->next = call->next;
    else
        s->first_call = call->next;
    if (call->next)
        call->next->prev = call->prev;
    else
        s->last_call = call->prev;
    free(call);
}

size_t session_open_calls(const struct session *s)
{
    return s->calls.count;
}

uint64_t session_next_open(const struct session *s, uint64_t tag)
{
    const struct session_call *call = find_call(s, tag);
    if (call)
        return call->next ? call->next->tag : 0;
    for (call = s->first_call; call && call->tag <= tag; call = call->next)
        ;
    return call ? call->tag : 0;
}

/* --- receiving: a header ------------------------------------------------------- */
static const char *peer_name(const struct session *s)
{
    return s->config.role == SESSION_CLIENT ? "service" : "client";
}

static int check_tag(struct session *s)
{
    const struct wire_row *row = s->row;
    uint64_t tag = s->header.tag;
    const struct session_call *call;
    switch (row->class) {
    case WIRE_CLASS_REQUEST:
        if (tag <= s->last_tag)
            return fail(s, -EPROTO, "%s with a tag that does not rise", row->name);
        if (s->ready && s->calls.count >= s->config.max_calls)
            return fail(s, -EPROTO, "%s beyond %u open calls", row->name, s->config.max_calls);
        return 0;
    case WIRE_CLASS_REPLY:
        call = find_call(s, tag);
        if (!call)
            return fail(s, -EPROTO, "%s for a call that is not open", row->name);
        if (row->type != call->row->owner && row->type != WIRE_ERROR)
            return fail(s, -EPROTO, "%s as the reply to %s", row->name, call->row->name);
        return 0;
    case WIRE_CLASS_ITEM:
    case WIRE_CLASS_CONTROL:
        if (tag == 0 || tag > s->last_tag)
            return fail(s, -EPROTO, "%s for a call that was never opened", row->name);
        call = find_call(s, tag);
        s->dropping = !call;
        if (!call)
            return 0;
        if (row->owner != WIRE_NONE && row->owner != call->row->type)
            return fail(s, -EPROTO, "%s within %s", row->name, call->row->name);
        if (row->class == WIRE_CLASS_ITEM && s->header.length > call->credit_in)
            return fail(s, -EPROTO, "%s beyond the credit of its call", row->name);
        return 0;
    case WIRE_CLASS_NOTICE:
        if (tag != 0)
            return fail(s, -EPROTO, "%s with a tag", row->name);
        return 0;
    case WIRE_CLASS_RECORD:
        return fail(s, -EPROTO, "%s is not a message of its own", row->name);
    }
    return fail(s, -EPROTO, "%s of no class", row->name);
}

/* Everything that can be told from the header is checked before a payload byte is taken. */
static int header_received(struct session *s)
{
    wire_header_decode(s->raw_header, &s->header);
    const struct wire_header *h = &s->header;
    if (s->goodbye_received)
        return fail(s, -EPROTO, "a frame after GOODBYE");
    const struct wire_row *row = wire_row(h->type);
    if (!row)
        return fail(s, -EPROTO, "unknown message type 0x%04x", h->type);
    enum wire_from sender = s->config.role == SESSION_CLIENT ? WIRE_FROM_SERVER : WIRE_FROM_CLIENT;
    if (!(row->from & sender))
        return fail(s, -EPROTO, "%s from the %s", row->name, peer_name(s));
    if (row->phase == (s->ready ? WIRE_PHASE_HELLO : WIRE_PHASE_READY))
        return fail(s, -EPROTO, "%s %s HELLO and WELCOME", row->name,
                    s->ready ? "after" : "before");
    if (h->flags != 0)
        return fail(s, -EPROTO, "%s with flags 0x%x that are not in use", row->name, h->flags);
    if (h->length < row->min_payload || h->length > row->max_payload)
        return fail(s, -EPROTO, "%s of %u bytes, not %u to %u", row->name, h->length,
                    row->min_payload, row->max_payload);
    if (h->length > s->config.max_payload)
        return fail(s, -EPROTO, "%s of %u bytes, more than the %u agreed", row->name, h->length,
                    s->config.max_payload);
    s->row = row;
    s->dropping = false;
    s->payload_received = 0;
    return check_tag(s);
}

/* --- receiving: a whole frame -------------------------------------------------- */
static void copy_agent(char *to, struct bytes agent)
{
    for (size_t i = 0; i < agent.len; i++)
        to[i] = agent.data[i] >= 0x20 && agent.data[i] < 0x7f ? (char)agent.data[i] : '?';
    to[agent.len] = '\0';
}

static int hello_received(struct session *s, const struct wire_hello *hello)
{
    if (hello->version < 1)
        return fail(s, -EPROTO, "HELLO of protocol version %u", hello->version);
    if (hello->max_payload < SESSION_PAYLOAD_MIN || hello->window > SESSION_CREDIT_MAX)
        return fail(s, -EPROTO, "HELLO with limits out of bounds");
    s->peer.features = hello->features & s->config.features;
    s->peer.max_payload = hello->max_payload;
    s->peer_window = hello->window;
    copy_agent(s->peer.agent, hello->agent);
    s->last_tag = s->header.tag;
    struct wire_message welcome = {
        .type = WIRE_WELCOME,
        .welcome = {.version = WIRE_VERSION,
                    .max_payload = s->config.max_payload,
                    .max_calls = s->config.max_calls,
                    .window = s->config.window,
                    .features = s->peer.features,
                    .epoch = s->config.epoch,
                    .service_id = bytes_of(s->config.service_id, sizeof s->config.service_id),
                    .agent = bytes_of_string(s->agent)}};
    int r = append_frame(s, s->header.tag, &welcome);
    if (r < 0)
        return fail(s, r, "no memory for WELCOME");
    s->ready = true;
    return 0;
}

static int welcome_received(struct session *s, const struct wire_welcome *welcome)
{
    if (welcome->version != WIRE_VERSION)
        return fail(s, -EPROTO, "the service speaks protocol version %u, this program %u",
                    welcome->version, WIRE_VERSION);
    if (welcome->max_payload < SESSION_PAYLOAD_MIN || welcome->window > SESSION_CREDIT_MAX ||
        welcome->max_calls == 0)
        return fail(s, -EPROTO, "WELCOME with limits out of bounds");
    if (welcome->features & ~s->config.features)
        return fail(s, -EPROTO, "WELCOME with features that were not offered");
    s->peer.features = welcome->features;
    s->peer.max_payload = welcome->max_payload;
    s->peer.max_calls = welcome->max_calls;
    s->peer.epoch = welcome->epoch;
    s->peer_window = welcome->window;
    memcpy(s->peer.service_id, welcome->service_id.data, sizeof s->peer.service_id);
    copy_agent(s->peer.agent, welcome->agent);
    close_call(s, find_call(s, s->header.tag));
    s->ready = true;
    return 0;
}

static int reply_received(struct session *s, const struct wire_message *m)
{
    if (m->type == WIRE_ERROR && (m->error.error == 0 || m->error.error > ERRNO_MAX))
        return fail(s, -EPROTO, "ERROR with error number %u", m->error.error);
    struct session_call *call = find_call(s, s->header.tag);
    if (call->blocking && call->depth > s->depth)
        s->depth = call->depth;
    close_call(s, call);
    return 0;
}

static int grant_received(struct session *s, const struct wire_grant *grant)
{
    struct session_call *call = find_call(s, s->header.tag);
    if (grant->bytes > SESSION_CREDIT_MAX - call->credit_out)
        return fail(s, -EPROTO, "GRANT beyond %u bytes of credit", SESSION_CREDIT_MAX);
    call->credit_out += grant->bytes;
    s->credit_changed = true;
    return 0;
}

static int goodbye_received(struct session *s, const struct wire_goodbye *goodbye)
{
    s->goodbye_received = true;
    if (s->ready)
        return 0;
    char text[160];
    (void)log_escape(goodbye->text.data, goodbye->text.len, text, sizeof text);
    return fail(s, -EPROTO, "the %s ended the connection: %s", peer_name(s), text);
}

static void queue_frame(struct session *s, struct wire_frame *frame)
{
    *s->last_frame = frame;
    s->last_frame = &frame->next;
}

/* The state changes that a message brings, before its owner sees it. Returns 1 when the owner
 * is to see it, 0 when not, or fails. */
static int apply(struct session *s, const struct wire_message *m)
{
    struct session_call *call;
    int r;
    switch (s->row->class) {
    case WIRE_CLASS_REQUEST:
        if (m->type == WIRE_HELLO)
            return hello_received(s, &m->hello);
        r = open_call(s, s->header.tag, s->row, &call);
        if (r < 0)
            return fail(s, r, "no memory for a call");
        s->stats.requests++;
        return 1;
    case WIRE_CLASS_REPLY:
        if (m->type == WIRE_WELCOME)
            return welcome_received(s, &m->welcome);
        r = reply_received(s, m);
        return r < 0 ? r : 1;
    case WIRE_CLASS_ITEM:
        find_call(s, s->header.tag)->credit_in -= (uint32_t)s->payload_received;
        return 1;
    case WIRE_CLASS_CONTROL:
        if (m->type == WIRE_GRANT)
            return grant_received(s, &m->grant);
        return 1;
    case WIRE_CLASS_NOTICE:
        if (m->type == WIRE_GOODBYE) {
            r = goodbye_received(s, &m->goodbye);
            return r < 0 ? r : 1;
        }
        return 1;
    case WIRE_CLASS_RECORD:
        break;
    }
    return fail(s, -EPROTO, "%s of no class", s->row->name);
}

static int frame_received(struct session *s)
{
    s->stats.frames_in++;
    /* The call may also have been answered while this payload was on its way. */
    bool in_call = s->row->class == WIRE_CLASS_ITEM || s->row->class == WIRE_CLASS_CONTROL;
    if (s->dropping || (in_call && !find_call(s, s->header.tag))) {
        s->payload.len = 0;
        return 0;
    }
    _cleanup_frame_ struct wire_frame *frame = malloc(sizeof *frame);
    if (!frame)
        return fail(s, -ENOMEM, "no memory for a frame");
    *frame = (struct wire_frame){.tag = s->header.tag, .flags = s->header.flags};
    frame->payload = s->payload;
    s->payload = (struct buffer){0};
    if (wire_decode(s->row->type, buffer_view(&frame->payload), &frame->message) < 0)
        return fail(s, -EPROTO, "%s whose fields do not fit its bounds", s->row->name);
    int r = apply(s, &frame->message);
    if (r <= 0)
        return r;
    queue_frame(s, take_ptr(frame));
    return 0;
}

/* --- receiving: bytes ---------------------------------------------------------- */
static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Memory follows the bytes that are here: at most twice as much, never past the frame. */
static int append_payload(struct session *s, const uint8_t *data, size_t n)
{
    struct buffer *b = &s->payload;
    if (b->len + n > b->allocated) {
        size_t size = least(b->allocated * 2, s->header.length);
        if (size < b->len + n)
            size = b->len + n;
        uint8_t *grown = realloc(b->data, size);
        if (!grown)
            return -ENOMEM;
        b->data = grown;
        b->allocated = size;
    }
    memcpy(b->data + b->len, data, n);
    b->len += n;
    return 0;
}

/* Takes what it can use of the header or of the payload; the number of bytes, or fails. */
static ssize_t feed_some(struct session *s, const uint8_t *data, size_t len)
{
    size_t n;
    int r = 0;
    if (!s->row) {
        n = least(len, WIRE_HEADER_SIZE - s->raw_header_len);
        memcpy(s->raw_header + s->raw_header_len, data, n);
        s->raw_header_len += n;
        if (s->raw_header_len == WIRE_HEADER_SIZE) {
            s->raw_header_len = 0;
            r = header_received(s);
        }
        return r < 0 ? r : (ssize_t)n;
    }
    n = least(len, s->header.length - s->payload_received);
    if (!s->dropping) {
        r = append_payload(s, data, n);
        if (r < 0)
            return fail(s, r, "no memory for a payload");
    }
    s->payload_received += n;
    if (s->payload_received == s->header.length) {
        r = frame_received(s);
        s->row = NULL;
    }
    return r < 0 ? r : (ssize_t)n;
}

int session_feed(struct session *s, const void *data, size_t len)
{
    const uint8_t *p = data;
    if (!s->dead)
        s->stats.bytes_in += len;
    while (len > 0 && !s->dead) {
        ssize_t n = feed_some(s, p, len);
        if (n < 0)
            break;
        p += n;
        len -= (size_t)n;
    }
    return s->dead;
}

int session_next(struct session *s, struct wire_frame **ret)
{
    struct wire_frame *frame = s->first_frame;
    if (!frame)
        return 0;
    s->first_frame = frame->next;
    if (!s->first_frame)
        s->last_frame = &s->first_frame;
    frame->next = NULL;
    *ret = frame;
    return 1;
}

/* --- sending ------------------------------------------------------------------- */
static bool may_send(const struct session *s, const struct wire_row *row)
{
    enum wire_from us = s->config.role == SESSION_CLIENT ? WIRE_FROM_CLIENT : WIRE_FROM_SERVER;
    return row && (row->from & us) && row->phase != WIRE_PHASE_HELLO;
}

static bool connected(const struct session *s, const struct wire_row *row)
{
    return !s->dead && !s->goodbye_sent && (s->ready || row->phase == WIRE_PHASE_ANY);
}

int session_request(struct session *s, const struct wire_message *m, bool blocking,
                    uint64_t *ret_tag)
{
    const struct wire_row *row = wire_row(m->type);
    if (!may_send(s, row) || row->class != WIRE_CLASS_REQUEST)
        return -EINVAL;
    if (!connected(s, row))
        return -ENOTCONN;
    if (s->calls.count >= s->peer.max_calls)
        return -EAGAIN;
    struct session_call *call;
    uint64_t tag = s->last_tag + 1;
    int r = open_call(s, tag, row, &call);
    if (r < 0)
        return r;
    r = append_frame(s, tag, m);
    if (r < 0) {
        close_call(s, call);
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
    uint64_t before = s->stats.bytes_out;
    size_t start = s->output.len - s->output_head;
    int r = append_frame(s, call->tag, m);
    if (r < 0)
        return r;
    size_t cost = s->output.len - s->output_head - start - WIRE_HEADER_SIZE;
    if (cost > call->credit_out) {
        s->output.len = s->output_head + start;
        s->stats.frames_out--;
        s->stats.bytes_out = before;
        return -EAGAIN;
    }
    call->credit_out -= (uint32_t)cost;
    return 0;
}

int session_send(struct session *s, uint64_t tag, const struct wire_message *m)
{
    const struct wire_row *row = wire_row(m->type);
    if (!may_send(s, row) || m->type == WIRE_GRANT)
        return -EINVAL;
    if (!connected(s, row))
        return -ENOTCONN;
    struct session_call *call = find_call(s, tag);
    int r;
    switch (row->class) {
    case WIRE_CLASS_REPLY:
        if (!call)
            return -ENOENT;
        if (row->type != call->row->owner && row->type != WIRE_ERROR)
            return -EINVAL;
        r = append_frame(s, tag, m);
        if (r == 0)
            close_call(s, call);
        return r;
    case WIRE_CLASS_ITEM:
    case WIRE_CLASS_CONTROL:
        if (!call)
            return -ENOENT;
        if (row->owner != WIRE_NONE && row->owner != call->row->type)
            return -EINVAL;
        return row->class == WIRE_CLASS_ITEM ? send_item(s, call, m) : append_frame(s, tag, m);
    case WIRE_CLASS_NOTICE:
        if (tag != 0)
            return -EINVAL;
        r = append_frame(s, 0, m);
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
    const struct session_call *call = find_call(s, tag);
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
    if (!connected(s, row))
        return -ENOTCONN;
    struct session_call *call = find_call(s, tag);
    if (!call)
        return -ENOENT;
    if (bytes > SESSION_CREDIT_MAX - call->credit_in)
        return -EINVAL;
    struct wire_message m = {.type = WIRE_GRANT, .grant = {.bytes = (uint32_t)bytes}};
    int r = append_frame(s, tag, &m);
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

/* --- life ---------------------------------------------------------------------- */
static int send_hello(struct session *s)
{
    struct session_call *call;
    int r = open_call(s, 1, wire_row(WIRE_HELLO), &call);
    if (r < 0)
        return r;
    struct wire_message hello = {.type = WIRE_HELLO,
                                 .hello = {.version = WIRE_VERSION,
                                           .max_payload = s->config.max_payload,
                                           .window = s->config.window,
                                           .features = s->config.features,
                                           .agent = bytes_of_string(s->agent)}};
    return append_frame(s, 1, &hello);
}

int session_new(const struct session_config *config, struct session **ret)
{
    struct bytes agent = bytes_of_string(config->agent);
    if (agent.len > AGENT_MAX || config->max_payload < SESSION_PAYLOAD_MIN ||
        config->max_payload > WIRE_PAYLOAD_MAX || config->window > SESSION_CREDIT_MAX ||
        (config->role == SESSION_SERVER && config->max_calls == 0))
        return -EINVAL;
    struct session *s = calloc(1, sizeof *s);
    if (!s)
        return -ENOMEM;
    s->config = *config;
    if (agent.len > 0)
        memcpy(s->agent, agent.data, agent.len);
    s->config.agent = s->agent;
    s->peer.max_payload = SESSION_PAYLOAD_MIN; /* until it says what it takes */
    s->last_frame = &s->first_frame;
    int r = config->role == SESSION_CLIENT ? send_hello(s) : 0;
    if (r < 0) {
        session_free(s);
        return r;
    }
    *ret = s;
    return 0;
}

void session_free(struct session *s)
{
    if (!s)
        return;
    while (s->first_call)
        close_call(s, s->first_call);
    table_release(&s->calls);
    struct wire_frame *frame;
    while (session_next(s, &frame))
        wire_frame_free(frame);
    buffer_release(&s->payload);
    buffer_release(&s->output);
    free(s);
}

bool session_ready(const struct session *s)
{
    return s->ready;
}

const struct session_peer *session_peer(const struct session *s)
{
    return &s->peer;
}

struct session_stats session_stats(const struct session *s)
{
    return s->stats;
}

#include "wire/session_private.h"

#include "base/log.h"

/* Frames are not decoded while more decompressed bytes than this wait to be taken: stops a
 * peer from making gigabytes of one buffer's worth of bytes. One frame may pass it. */
#define INFLATED_MAX 0x400000

/* What a client allocates at once for a payload that begins to arrive: a piece of a file is not
 * moved as it grows. */
#define CLIENT_PAYLOAD_FIRST (WIRE_CHUNK_MAX + 64)

void wire_frame_free(struct wire_frame *frame)
{
    if (!frame)
        return;
    buffer_release(&frame->payload);
    free(frame);
}

/* --- calls --------------------------------------------------------------------- */
struct session_call *session_find_call(const struct session *s, uint64_t tag)
{
    return table_get(&s->calls, tag);
}

int session_open_call(struct session *s, uint64_t tag, const struct wire_row *row,
                      struct session_call **ret)
{
    struct session_call *call = malloc(sizeof *call);
    if (!call)
        return -ENOMEM;
    *call = (struct session_call){.tag = tag,
                                  .row = row,
                                  .credit_out = s->peer.window,
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

void session_close_call(struct session *s, struct session_call *call)
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
    const struct session_call *call = session_find_call(s, tag);
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
            return session_fail(s, -EPROTO, "%s with a tag that does not rise", row->name);
        if (s->ready && s->calls.count >= s->config.max_calls)
            return session_fail(s, -EPROTO, "%s beyond %u open calls", row->name,
                                s->config.max_calls);
        return 0;
    case WIRE_CLASS_REPLY:
        call = session_find_call(s, tag);
        if (!call)
            return session_fail(s, -EPROTO, "%s for a call that is not open", row->name);
        if (row->type != call->row->owner && row->type != WIRE_ERROR)
            return session_fail(s, -EPROTO, "%s as the reply to %s", row->name, call->row->name);
        return 0;
    case WIRE_CLASS_ITEM:
    case WIRE_CLASS_CONTROL:
        if (tag == 0 || tag > s->last_tag)
            return session_fail(s, -EPROTO, "%s for a call that was never opened", row->name);
        call = session_find_call(s, tag);
        if (!call) {
            /* The stream's context must see all that went through it, wanted or not. */
            s->dropping = s->header.flags != WIRE_FRAME_ZSTD_STREAM;
            return 0;
        }
        if (!wire_row_belongs(row, call->row))
            return session_fail(s, -EPROTO, "%s within %s", row->name, call->row->name);
        if (row->class == WIRE_CLASS_ITEM && s->header.flags == 0 &&
            s->header.length > call->credit_in)
            return session_fail(s, -EPROTO, "%s beyond the credit of its call", row->name);
        return 0;
    case WIRE_CLASS_NOTICE:
        if (tag != 0)
            return session_fail(s, -EPROTO, "%s with a tag", row->name);
        return 0;
    case WIRE_CLASS_RECORD:
        return session_fail(s, -EPROTO, "%s is not a message of its own", row->name);
    }
    return session_fail(s, -EPROTO, "%s of no class", row->name);
}

static int check_length(struct session *s, const struct wire_row *row)
{
    const struct wire_header *h = &s->header;
    uint32_t most =
        row->max_payload < s->config.max_payload ? row->max_payload : s->config.max_payload;
    uint32_t min = row->min_payload;
    uint32_t max = most;
    if (h->flags != 0) {
        uint16_t known = wire_row_is_bulk(row) ? WIRE_FRAME_ZSTD : WIRE_FRAME_ZSTD_STREAM;
        if (h->flags != known || !(s->peer.features & WIRE_FEATURE_ZSTD))
            return session_fail(s, -EPROTO, "%s with flags 0x%x that are not in use", row->name,
                                h->flags);
        min = 1;
        if (known == WIRE_FRAME_ZSTD_STREAM)
            max = (uint32_t)compress_stream_bound(most);
    }
    if (h->length < min || h->length > max)
        return session_fail(s, -EPROTO, "%s of %u bytes, not %u to %u", row->name, h->length, min,
                            max);
    return 0;
}

/* Everything that can be told from the header is checked before a payload byte is taken. */
static int header_received(struct session *s)
{
    wire_header_decode(s->raw_header, &s->header);
    const struct wire_header *h = &s->header;
    if (s->goodbye_received)
        return session_fail(s, -EPROTO, "a frame after GOODBYE");
    const struct wire_row *row = wire_row(h->type);
    if (!row)
        return session_fail(s, -EPROTO, "unknown message type 0x%04x", h->type);
    enum wire_from sender = s->config.role == SESSION_CLIENT ? WIRE_FROM_SERVER : WIRE_FROM_CLIENT;
    if (!(row->from & sender))
        return session_fail(s, -EPROTO, "%s from the %s", row->name, peer_name(s));
    if (row->phase == (s->ready ? WIRE_PHASE_HELLO : WIRE_PHASE_READY))
        return session_fail(s, -EPROTO, "%s %s HELLO and WELCOME", row->name,
                            s->ready ? "after" : "before");
    int r = check_length(s, row);
    if (r < 0)
        return r;
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
        return session_fail(s, -EPROTO, "HELLO of protocol version %u", hello->version);
    if (hello->max_payload < SESSION_PAYLOAD_MIN || hello->window > SESSION_CREDIT_MAX)
        return session_fail(s, -EPROTO, "HELLO with limits out of bounds");
    if (hello->key.len != 0 && hello->key.len != WIRE_KEY_SIZE)
        return session_fail(s, -EPROTO, "HELLO with a key of %zu bytes", (size_t)hello->key.len);
    s->peer.features = hello->features & s->config.features;
    s->peer.max_payload = hello->max_payload;
    s->peer.window = hello->window;
    copy_agent(s->peer.agent, hello->agent);
    s->last_tag = s->header.tag;
    uint64_t received = 0;
    bool keeps = s->peer.features & WIRE_FEATURE_RESUME;
    if (keeps && hello->key.len == WIRE_KEY_SIZE && s->config.resume) {
        struct session_resume asked = {.received = hello->received, .abandoned = hello->abandoned};
        memcpy(asked.key, hello->key.data, sizeof asked.key);
        s->peer.resumed = s->config.resume(s->config.resume_context, &asked, &received);
    }
    struct wire_message welcome = {
        .type = WIRE_WELCOME,
        .welcome = {
            .version = WIRE_VERSION,
            .max_payload = s->config.max_payload,
            .max_calls = s->config.max_calls,
            .window = s->config.window,
            .features = s->peer.features,
            .epoch = s->config.epoch,
            .service_id = bytes_of(s->config.service_id, sizeof s->config.service_id),
            .key = bytes_of(s->config.key, keeps && !s->peer.resumed ? sizeof s->config.key : 0),
            .resumed = s->peer.resumed,
            .received = received,
            .agent = bytes_of_string(s->agent)}};
    int r = session_append_frame(s, s->header.tag, &welcome, SIZE_MAX, NULL);
    if (r < 0)
        return session_fail(s, r, "no memory for WELCOME");
    s->ready = true;
    return 0;
}

static int welcome_received(struct session *s, const struct wire_welcome *welcome)
{
    if (welcome->version != WIRE_VERSION)
        return session_fail(s, -EPROTO, "the service speaks protocol version %u, this program %u",
                            welcome->version, WIRE_VERSION);
    if (welcome->max_payload < SESSION_PAYLOAD_MIN || welcome->window > SESSION_CREDIT_MAX ||
        welcome->max_calls == 0)
        return session_fail(s, -EPROTO, "WELCOME with limits out of bounds");
    if (welcome->features & ~s->config.features)
        return session_fail(s, -EPROTO, "WELCOME with features that were not offered");
    if (welcome->resumed > (s->asked_to_resume ? 1 : 0))
        return session_fail(s, -EPROTO, "WELCOME to a session that was not asked for");
    if ((welcome->features & WIRE_FEATURE_RESUME) && !welcome->resumed &&
        welcome->key.len != WIRE_KEY_SIZE)
        return session_fail(s, -EPROTO, "WELCOME without a key");
    s->peer.resumed = welcome->resumed;
    s->peer.received = welcome->received;
    if (welcome->key.len == WIRE_KEY_SIZE)
        memcpy(s->peer.key, welcome->key.data, sizeof s->peer.key);
    s->peer.features = welcome->features;
    s->peer.max_payload = welcome->max_payload;
    s->peer.max_calls = welcome->max_calls;
    s->peer.epoch = welcome->epoch;
    s->peer.window = welcome->window;
    memcpy(s->peer.service_id, welcome->service_id.data, sizeof s->peer.service_id);
    copy_agent(s->peer.agent, welcome->agent);
    session_close_call(s, session_find_call(s, s->header.tag));
    s->ready = true;
    return 0;
}

static int reply_received(struct session *s, const struct wire_message *m)
{
    if (m->type == WIRE_ERROR && (m->error.error == 0 || m->error.error > ERRNO_MAX))
        return session_fail(s, -EPROTO, "ERROR with error number %u", m->error.error);
    struct session_call *call = session_find_call(s, s->header.tag);
    if (call->blocking && call->depth > s->depth)
        s->depth = call->depth;
    session_close_call(s, call);
    return 0;
}

static int grant_received(struct session *s, const struct wire_grant *grant)
{
    struct session_call *call = session_find_call(s, s->header.tag);
    if (grant->bytes > SESSION_CREDIT_MAX - call->credit_out)
        return session_fail(s, -EPROTO, "GRANT beyond %u bytes of credit", SESSION_CREDIT_MAX);
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
    return session_fail(s, -EPROTO, "the %s ended the connection: %s", peer_name(s), text);
}

static void queue_frame(struct session *s, struct wire_frame *frame)
{
    if (frame->flags != 0)
        s->inflated += frame->payload.len;
    *s->last_frame = frame;
    s->last_frame = &frame->next;
}

/* The state changes that a message brings, before its owner sees it. Returns 1 when the owner
 * is to see it, 0 when not, or fails. */
static int apply(struct session *s, const struct wire_frame *frame)
{
    const struct wire_message *m = &frame->message;
    struct session_call *call;
    int r;
    switch (s->row->class) {
    case WIRE_CLASS_REQUEST:
        if (m->type == WIRE_HELLO)
            return hello_received(s, &m->hello);
        r = session_open_call(s, s->header.tag, s->row, &call);
        if (r < 0)
            return session_fail(s, r, "no memory for a call");
        s->stats.requests++;
        return 1;
    case WIRE_CLASS_REPLY:
        if (m->type == WIRE_WELCOME)
            return welcome_received(s, &m->welcome);
        r = reply_received(s, m);
        return r < 0 ? r : 1;
    case WIRE_CLASS_ITEM:
        session_find_call(s, s->header.tag)->credit_in -= (uint32_t)frame->payload.len;
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
        return m->type == WIRE_ACK ? session_acknowledged(s, m->ack.received) : 1;
    case WIRE_CLASS_RECORD:
        break;
    }
    return session_fail(s, -EPROTO, "%s of no class", s->row->name);
}

/* Most bytes that the arriving frame may decompress to. */
static size_t inflate_limit(const struct session *s)
{
    size_t limit = s->row->max_payload;
    if (limit > s->config.max_payload)
        limit = s->config.max_payload;
    const struct session_call *call = session_find_call(s, s->header.tag);
    if (s->row->class == WIRE_CLASS_ITEM && call && limit > call->credit_in)
        limit = call->credit_in;
    return limit;
}

static int inflate_payload(struct session *s)
{
    struct bytes in = buffer_view(&s->payload);
    struct buffer out = {0};
    int r = s->header.flags == WIRE_FRAME_ZSTD
                ? decompressor_bulk(&s->decompressor, in, inflate_limit(s), &out)
                : decompressor_stream(&s->decompressor, in, inflate_limit(s), &out);
    if (r < 0) {
        buffer_release(&out);
        if (r == -ENOMEM)
            return session_fail(s, r, "no memory to decompress a frame");
        return session_fail(s, -EPROTO, "%s that does not decompress within its bounds",
                            s->row->name);
    }
    buffer_release(&s->payload);
    s->payload = out;
    return 0;
}

static int frame_received(struct session *s)
{
    s->stats.frames_in++;
    if (s->header.flags != 0 && !s->dropping) {
        int r = inflate_payload(s);
        if (r < 0)
            return r;
    }
    /* The call may have been answered before, or while this payload was on its way. */
    bool in_call = s->row->class == WIRE_CLASS_ITEM || s->row->class == WIRE_CLASS_CONTROL;
    if (in_call && !session_find_call(s, s->header.tag)) {
        buffer_release(&s->payload);
        return 0;
    }
    _cleanup_frame_ struct wire_frame *frame = malloc(sizeof *frame);
    if (!frame)
        return session_fail(s, -ENOMEM, "no memory for a frame");
    *frame = (struct wire_frame){.tag = s->header.tag, .flags = s->header.flags};
    frame->payload = s->payload;
    s->payload = (struct buffer){0};
    if (wire_decode(s->row->type, buffer_view(&frame->payload), &frame->message) < 0)
        return session_fail(s, -EPROTO, "%s whose fields do not fit its bounds", s->row->name);
    int r = apply(s, frame);
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

/* Memory follows the bytes that are here: at most twice as much, never past the frame. Who has one
 * peer alone, which a client has, gives it room for a piece of a file at once. */
static int reserve_payload(struct session *s, size_t n)
{
    struct buffer *b = &s->payload;
    if (b->len + n <= b->allocated)
        return 0;
    size_t size = b->allocated * 2;
    if (s->config.role == SESSION_CLIENT && size < CLIENT_PAYLOAD_FIRST)
        size = CLIENT_PAYLOAD_FIRST;
    size = least(size, s->header.length);
    if (size < b->len + n)
        size = b->len + n;
    uint8_t *grown = realloc(b->data, size);
    if (!grown)
        return -ENOMEM;
    b->data = grown;
    b->allocated = size;
    return 0;
}

static int append_payload(struct session *s, const uint8_t *data, size_t n)
{
    int r = reserve_payload(s, n);
    if (r < 0)
        return r;
    memcpy(s->payload.data + s->payload.len, data, n);
    s->payload.len += n;
    return 0;
}

/* n bytes more of the payload are here. */
static int payload_grown(struct session *s, size_t n)
{
    int r = 0;
    s->payload_received += n;
    if (s->payload_received == s->header.length) {
        r = frame_received(s);
        s->row = NULL;
    }
    return r;
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
            return session_fail(s, r, "no memory for a payload");
    }
    r = payload_grown(s, n);
    return r < 0 ? r : (ssize_t)n;
}

/* Takes bytes until too much waits to be taken; how many. */
static size_t feed(struct session *s, const uint8_t *data, size_t len)
{
    size_t used = 0;
    while (used < len && !s->dead && s->inflated <= INFLATED_MAX) {
        ssize_t n = feed_some(s, data + used, len - used);
        if (n < 0)
            break;
        used += (size_t)n;
    }
    return used;
}

size_t session_wanted(const struct session *s)
{
    return s->row ? s->header.length - s->payload_received : WIRE_HEADER_SIZE - s->raw_header_len;
}

int session_feed(struct session *s, const void *data, size_t len)
{
    if (s->dead)
        return s->dead;
    s->stats.bytes_in += len;
    size_t used = s->backlog.len > 0 ? 0 : feed(s, data, len);
    if (!s->dead && used < len &&
        buffer_append(&s->backlog, (const uint8_t *)data + used, len - used) < 0)
        (void)session_fail(s, -ENOMEM, "no memory for input");
    session_acknowledge(s);
    return s->dead;
}

void *session_room(struct session *s, size_t *ret_len)
{
    if (s->dead || !s->row || s->dropping || s->backlog.len > 0 || s->inflated > INFLATED_MAX ||
        s->payload_received == 0)
        return NULL;
    size_t left = s->header.length - s->payload_received;
    if (reserve_payload(s, least(left, s->payload.len)) < 0)
        return NULL;
    *ret_len = s->payload.allocated - s->payload.len;
    return s->payload.data + s->payload.len;
}

int session_room_filled(struct session *s, size_t n)
{
    s->stats.bytes_in += n;
    s->payload.len += n;
    (void)payload_grown(s, n);
    session_acknowledge(s);
    return s->dead;
}

static void feed_backlog(struct session *s)
{
    size_t used = feed(s, s->backlog.data, s->backlog.len);
    if (used < s->backlog.len)
        buffer_consume(&s->backlog, used);
    else
        buffer_release(&s->backlog);
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
    if (frame->flags != 0)
        s->inflated -= frame->payload.len;
    if (s->backlog.len > 0 && !s->dead)
        feed_backlog(s);
    *ret = frame;
    return 1;
}

/* --- life ---------------------------------------------------------------------- */
static int send_hello(struct session *s, const struct session_resume *resumes)
{
    struct session_call *call;
    s->asked_to_resume = resumes;
    int r = session_open_call(s, 1, wire_row(WIRE_HELLO), &call);
    if (r < 0)
        return r;
    struct wire_message hello = {.type = WIRE_HELLO,
                                 .hello = {.version = WIRE_VERSION,
                                           .max_payload = s->config.max_payload,
                                           .window = s->config.window,
                                           .features = s->config.features,
                                           .agent = bytes_of_string(s->agent)}};
    if (resumes) {
        hello.hello.key = bytes_of(resumes->key, sizeof resumes->key);
        hello.hello.received = resumes->received;
        hello.hello.abandoned = resumes->abandoned;
    }
    return session_append_frame(s, 1, &hello, SIZE_MAX, NULL);
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
    s->config.resumes = NULL;
    s->peer.max_payload = SESSION_PAYLOAD_MIN; /* until it says what it takes */
    s->last_frame = &s->first_frame;
    int r = config->role == SESSION_CLIENT ? send_hello(s, config->resumes) : 0;
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
        session_close_call(s, s->first_call);
    table_release(&s->calls);
    buffer_release(&s->backlog);
    struct wire_frame *frame;
    while (session_next(s, &frame))
        wire_frame_free(frame);
    compressor_free(s->compressor);
    decompressor_free(s->decompressor);
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

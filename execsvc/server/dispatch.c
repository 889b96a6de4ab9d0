#include "server/dispatch.h"

#include <assert.h>

#include "access/permit.h"
#include "server/account.h"
#include "server/delegations.h"
#include "server/exec_gate.h"
#include "server/lock_waits.h"
#include "server/trees.h"
#include "store/fault.h"
#include "store/transfer.h"

/* What a request or notice costs in memory besides its payload: its frame, its job, its call. */
#define REQUEST_OVERHEAD (sizeof(struct wire_frame) + sizeof(struct job) + sizeof(struct call))

/* Fixed fields and names of any file request, in its payload or its reply. */
#define SMALL_MESSAGE 1536

/* A FILE but for its content. */
#define FILE_OVERHEAD ((size_t)(32 + WIRE_ATTR_SIZE))

/* --- on the loop ------------------------------------------------------------------ */

typedef void loop_handler(struct connection *c, struct call *call, const struct wire_message *m);

static void on_ping(struct connection *c, struct call *call, const struct wire_message *m)
{
    bool lease = subscribers_renew(connection_server(c)->subscribers, connection_files(c));
    const struct wire_message pong = {.type = WIRE_PONG,
                                      .pong = {.nonce = m->ping.nonce, .lease = lease}};
    call_reply(call, &pong);
}

static void on_status(struct connection *c, struct call *call, const struct wire_message *m)
{
    const size_t max = wire_row(WIRE_STATUS_REPLY)->fields[0].max;
    _cleanup_free_ char *json = NULL;
    int r = server_status(connection_server(c), connection_grant(c), max, &json);
    if (r < 0) {
        call_reply_error(call, r, NULL);
        return;
    }
    const struct wire_message reply = {.type = WIRE_STATUS_REPLY,
                                       .status_reply.json = bytes_of_string(json)};
    call_reply(call, &reply);
}

static void on_access(struct connection *c, struct call *call, const struct wire_message *m)
{
    struct grant *grant = connection_grant(c);
    struct server *s = connection_server(c);
    struct bytes thread_id = m->access.thread_id;
    char token[ISSUED_TEXT_MAX] = "";
    uint32_t slot = thread_id.len > 0 ? store_workspace_slot(s->store, thread_id) : 0;
    int r = thread_id.len == 0 ? 0
            : slot == 0        ? -ENOENT
                               : access_issue(s->access, grant, thread_id, slot, token);
    if (r < 0) {
        call_reply_error(
            call, r, r == -EACCES ? "no token is made from the credential that was shown" : NULL);
        return;
    }
    const struct wire_message reply = {
        .type = WIRE_ACCESS_REPLY,
        .access_reply = {.verbs = grant->verbs,
                         .identity = bytes_of_string(grant->id),
                         .thread_id = bytes_of(grant->only, grant->only_len),
                         .token = bytes_of_string(token)}};
    call_reply(call, &reply);
    explicit_bzero(token, sizeof token);
}

static void on_exec(struct connection *c, struct call *call, const struct wire_message *m)
{
    exec_gate_enter(connection_server(c)->exec, connection_server(c)->subscribers, call, m);
}

static void on_exec_other(struct connection *c, struct call *call, const struct wire_message *m)
{
    exec_service_ask(connection_server(c)->exec, call, m);
}

static void on_egress_log(struct connection *c, struct call *call, const struct wire_message *m)
{
    exec_service_egress(connection_server(c)->exec, call, &m->egress_log);
}

static void on_subscribe(struct connection *c, struct call *call, const struct wire_message *m)
{
    if (m->subscribe.flags & ~(uint32_t)WIRE_SUBSCRIBE_OBSERVES)
        call_reply_error(call, -EINVAL, NULL);
    else
        subscribers_open(connection_server(c)->subscribers, call, connection_files(c),
                         m->subscribe.flags & WIRE_SUBSCRIBE_OBSERVES);
}

static void on_goodbye(struct connection *c, struct call *call, const struct wire_message *m)
{
    char text[160];
    (void)log_escape(m->goodbye.text.data, m->goodbye.text.len, text, sizeof text);
    log_debug("a client says goodbye: %s", text);
    subscribers_leave(connection_server(c)->subscribers, connection_files(c));
    connection_goodbye(c, 0, "goodbye");
}

static const struct {
    enum wire_type type;
    loop_handler *handle;
} loop_routes[] = {
    {WIRE_PING, on_ping},
    {WIRE_STATUS, on_status},
    {WIRE_ACCESS, on_access},
    {WIRE_EXEC, on_exec},
    {WIRE_EXEC_ATTACH, on_exec_other},
    {WIRE_EXEC_FORGET, on_exec_other},
    {WIRE_EXEC_LIST, on_exec_other},
    {WIRE_EXEC_KILL, on_exec_other},
    {WIRE_EXEC_POLICY, on_exec_other},
    {WIRE_EXEC_LIFT, on_exec_other},
    {WIRE_EXEC_POLICY_SET, on_exec_other},
    {WIRE_EXEC_USAGE, on_exec_other},
    {WIRE_EGRESS_LOG, on_egress_log},
    {WIRE_SUBSCRIBE, on_subscribe},
    {WIRE_GOODBYE, on_goodbye},
};

static loop_handler *loop_route(enum wire_type type)
{
    for (size_t i = 0; i < ARRAY_SIZE(loop_routes); i++)
        if (loop_routes[i].type == type)
            return loop_routes[i].handle;
    return NULL;
}

static bool for_workers(const struct wire_row *row)
{
    unsigned group = (unsigned)row->type >> 8;
    return group == 1 || group == 2;
}

int dispatch_check(void)
{
    for (size_t i = 0; i < wire_row_count(); i++) {
        const struct wire_row *row = wire_row_at(i);
        bool opens = row->class == WIRE_CLASS_REQUEST || row->class == WIRE_CLASS_NOTICE;
        if (!opens || !(row->from & WIRE_FROM_CLIENT) || row->phase == WIRE_PHASE_HELLO ||
            row->type == WIRE_ACK) /* the session's own */
            continue;
        const struct wire_message m = {.type = row->type};
        if (!for_workers(row) && !loop_route(row->type) && !store_transfers(&m)) {
            log_error("no handler for %s", row->name);
            return -ENOSYS;
        }
    }
    return 0;
}

/* --- memory ----------------------------------------------------------------------- */

static size_t request_size(const struct wire_message *m)
{
    if (m->type == WIRE_WRITE)
        return m->write.data.len;
    if (m->type == WIRE_SETXATTR)
        return m->setxattr.value.len + SMALL_MESSAGE;
    if (m->type == WIRE_FORGET)
        return m->forget.pairs.len;
    if (m->type == WIRE_SYMLINK)
        return m->symlink.target.len + SMALL_MESSAGE;
    if (m->type == WIRE_WORKSPACE_SET_VISIBILITY)
        return m->workspace_set_visibility.rules.len + SMALL_MESSAGE;
    if (m->type == WIRE_WORKSPACE_CREATE)
        return m->workspace_create.policy.len + m->workspace_create.labels.len +
               m->workspace_create.source.len + SMALL_MESSAGE;
    if (m->type == WIRE_WORKSPACE_SET)
        return m->workspace_set.labels.len + SMALL_MESSAGE;
    if (m->type == WIRE_WORKSPACE_LIST)
        return m->workspace_list.selectors.len + SMALL_MESSAGE;
    if (m->type == WIRE_SNAPSHOT_CREATE)
        return m->snapshot_create.labels.len + SMALL_MESSAGE;
    if (m->type == WIRE_VISIBILITY)
        return m->visibility.rules.len;
    return SMALL_MESSAGE;
}

static size_t at_most(size_t n, size_t max)
{
    return n < max ? n : max;
}

/* The largest reply this request can get; the table's bound where the request says nothing. */
static size_t reply_size(const struct wire_message *m, const struct wire_row *row)
{
    if (row->class == WIRE_CLASS_NOTICE)
        return 0;
    if (m->type == WIRE_READ)
        return at_most(m->read.size, WIRE_DATA_MAX);
    if (m->type == WIRE_READDIR)
        return at_most(m->readdir.size, WIRE_DATA_MAX);
    if (m->type == WIRE_READTREE)
        return at_most(m->readtree.size, WIRE_DATA_MAX);
    if (m->type == WIRE_READPARTS)
        return WIRE_DATA_MAX;
    if (m->type == WIRE_READFILES)
        return m->readfiles.files.count * FILE_OVERHEAD +
               at_most(m->readfiles.size + (size_t)WIRE_FILE_MAX, WIRE_DATA_MAX);
    if (m->type == WIRE_READLINK)
        return 4096;
    if (m->type == WIRE_GETXATTR || m->type == WIRE_LISTXATTR)
        return 65536;
    return wire_row(row->owner)->max_payload;
}

/* --- on workers ------------------------------------------------------------------- */

/* What a client that pipelines may rely on: on one handle, changes take effect in the order
 * they were sent, reads see the changes sent before them, and RELEASE is last. A COPY is
 * ordered with what its target handle does. Locks are taken and given up in order on one file,
 * through whatever handles. FORGET comes after whatever was sent before it. */
static void job_set_order(struct job *job)
{
    const struct wire_message *m = &job->frame->message;
    job->order = JOB_EXCLUSIVE;
    if (m->type == WIRE_WRITE) {
        job->key = m->write.handle;
    } else if (m->type == WIRE_FLUSH) {
        job->key = m->flush.handle;
    } else if (m->type == WIRE_FSYNC) {
        job->key = m->fsync.handle;
    } else if (m->type == WIRE_RELEASE) {
        job->key = m->release.handle;
    } else if (m->type == WIRE_FALLOCATE) {
        job->key = m->fallocate.handle;
    } else if (m->type == WIRE_PLACE) {
        job->key = m->place.handle;
    } else if (m->type == WIRE_COPY) {
        job->key = m->copy.handle_out;
    } else if (m->type == WIRE_READDIR) {
        job->key = m->readdir.handle; /* one position: no use in parallel */
    } else if (m->type == WIRE_SETATTR && m->setattr.handle != 0) {
        job->key = m->setattr.handle;
    } else if (m->type == WIRE_READ) {
        job->order = JOB_SHARED;
        job->key = m->read.handle;
    } else if (m->type == WIRE_SEEK) {
        job->order = JOB_SHARED;
        job->key = m->seek.handle;
    } else if (m->type == WIRE_GETATTR && m->getattr.handle != 0) {
        job->order = JOB_SHARED;
        job->key = m->getattr.handle;
    } else if (m->type == WIRE_LOCK_SET) {
        job->key = m->lock_set.node;
    } else if (m->type == WIRE_LOCK_GET) {
        job->order = JOB_SHARED;
        job->key = m->lock_get.node;
    } else if (m->type == WIRE_FORGET) {
        job->order = JOB_BARRIER;
    } else {
        job->order = JOB_FREE;
    }
}

static void notice_end(struct connection *c, struct call *call)
{
    connection_discharge(c, call->cost);
    free(call);
}

/* After it, programs of the client may be told of changes before they come. */
static bool makes_writer(const struct wire_message *m)
{
    return m->type == WIRE_WRITE || m->type == WIRE_CREATE ||
           (m->type == WIRE_OPEN && (m->open.flags & WIRE_OPEN_WRITE));
}

void dispatch_submit(struct connection *c, struct call *call, struct wire_frame *frame)
{
    struct job *job = calloc(1, sizeof *job);
    int r = -ENOMEM;
    if (job) {
        job->frame = frame;
        job->owner = call;
        job_set_order(job);
        call->job = job;
        r = lane_submit(connection_lane(c), job);
    }
    if (r == 0)
        return;
    call->job = NULL;
    exec_removal_end(take_ptr(call->removal));
    free(job);
    wire_frame_free(frame);
    if (call->row->class == WIRE_CLASS_REQUEST) {
        call_reply_error(call, r, NULL);
    } else {
        /* A lost RELEASE or FORGET would leak for as long as the connection lives. */
        notice_end(c, call);
        connection_end(c, LOG_LEVEL_ERROR, "no memory for a notice");
    }
}

/* A WORKSPACE_REMOVE, or a WORKSPACE_SET that stops, whose workspace may have commands. */
struct clearing {
    struct connection *connection;
    struct call *call;
    struct wire_frame *frame;
};

static void on_cleared(void *context, struct exec_removal *removal, uint64_t ended)
{
    struct clearing *x = context;
    if (removal) {
        fault_point(x->frame->message.type == WIRE_WORKSPACE_SET ? FAULT_WORKSPACE_STOPPING
                                                                 : FAULT_WORKSPACE_CLEARED);
        x->call->removal = removal;
        x->call->ended = (uint32_t)ended;
        dispatch_submit(x->connection, x->call, x->frame);
    } else {
        wire_frame_free(x->frame);
    }
    free(x);
}

/* Takes the frame. */
static void clear_commands(struct connection *c, struct call *call, struct wire_frame *frame,
                           struct bytes key, uint32_t flags, enum exec_clear how)
{
    struct clearing *x = malloc(sizeof *x);
    if (!x) {
        call_reply_error(call, -ENOMEM, NULL);
        wire_frame_free(frame);
        return;
    }
    *x = (struct clearing){.connection = c, .call = call, .frame = frame};
    /* What is wrong with the request the store says. */
    if (!exec_service_clear(connection_server(c)->exec, call, key, flags, how, on_cleared, x)) {
        free(x);
        dispatch_submit(c, call, frame);
    }
}

static void remove_workspace(struct connection *c, struct call *call, struct wire_frame *frame)
{
    const struct wire_workspace_remove *m = &frame->message.workspace_remove;
    clear_commands(c, call, frame, m->key, m->flags & ~(uint32_t)WIRE_WORKSPACE_FORCE,
                   m->flags & WIRE_WORKSPACE_FORCE ? EXEC_CLEAR_FORCE : EXEC_CLEAR_ENDED);
}

static bool stops(const struct wire_workspace_set *m)
{
    return (m->valid & WIRE_WORKSPACE_SET_STATE) && m->state == WIRE_WORKSPACE_STOPPED;
}

/* Commands are ended before it is noted that there shall be none, so that a service that dies
 * between the two leaves none running where it says that none do. */
static void set_workspace(struct connection *c, struct call *call, struct wire_frame *frame)
{
    const struct wire_workspace_set *m = &frame->message.workspace_set;
    struct failure failure;
    /* But not for a request that will be refused. */
    if (stops(m) && store_check_set(connection_server(c)->store, m, &failure) == 0)
        clear_commands(c, call, frame, m->key, m->flags, EXEC_CLEAR_STOP);
    else
        dispatch_submit(c, call, frame);
}

/* An answer that others must have heard of first. */
struct held {
    struct call *call;
    struct job *job;
    struct barrier *barrier;
};

static void held_gone(void *context)
{
    struct held *h = context;
    barrier_cancel(h->barrier);
    job_free(h->job);
    free(h);
}

static void held_settled(void *context, bool all_seen)
{
    struct held *h = context;
    call_reply(h->call, &h->job->reply.message);
    job_free(h->job);
    free(h);
}

/* close() and fsync() promise that nobody is shown what was there before. Takes job. */
static void reply_when_seen(struct connection *c, struct call *call, struct job *job)
{
    struct held *h = malloc(sizeof *h);
    if (!h) {
        call_reply_error(call, -ENOMEM, NULL);
        job_free(job);
        return;
    }
    *h = (struct held){.call = call, .job = job};
    const struct call_events events = {.gone = held_gone, .context = h};
    call_set_events(call, &events);
    struct barrier *barrier;
    store_note_written(connection_server(c)->store);
    subscribers_wait(connection_server(c)->subscribers, connection_files(c), held_settled, h,
                     &barrier);
    if (barrier)
        h->barrier = barrier;
}

static bool promises_visibility(enum wire_type type)
{
    return type == WIRE_FLUSH || type == WIRE_FSYNC;
}

/* Takes job. */
static void answer(struct connection *c, struct call *call, struct job *job)
{
    /* One that is closing has let go of its calls, and would not tell a held one of its end. */
    if (c && connection_answers(c) && job->result == 0 && promises_visibility(call->row->type)) {
        reply_when_seen(c, call, job);
        return;
    }
    if (!c) { /* it has gone: the request was carried out, nobody wants the answer */
        if (job->result < 0)
            account_end_error(call->account, job->result, job->reply.text);
        else
            account_end(call->account, &job->reply.message);
        free(call);
    } else if (call->row->class == WIRE_CLASS_NOTICE) {
        notice_end(c, call);
    } else if (job->result < 0) {
        call_reply_error(call, job->result, job->reply.text);
    } else {
        call_reply(call, &job->reply.message);
    }
    job_free(job);
}

void dispatch_done(struct connection *c, struct job *job)
{
    struct call *call = job->owner;
    struct lock_waits *waits = c ? connection_server(c)->lock_waits : NULL;
    uint64_t unlocked = job->reply.unlocked;
    call->job = NULL;
    exec_removal_end(take_ptr(call->removal));
    if (call->row->type == WIRE_WORKSPACE_SET && job->result == 0)
        job->reply.message.workspace.ended = call->ended;
    if (!c || !lock_waits_keep(waits, call, job)) {
        if (!c)
            call->connection = NULL;
        lock_wait_end(call->wait);
        answer(c, call, job);
    }
    if (c && unlocked)
        lock_waits_unlocked(waits, unlocked);
}

/* --- all -------------------------------------------------------------------------- */

static void no_memory(struct connection *c, struct call *call, struct wire_frame *frame)
{
    free(call);
    wire_frame_free(frame);
    connection_end(c, LOG_LEVEL_ERROR, "no memory for a call");
}

/* A request, or a notice for workers: what is counted against FLOW_LIMIT. */
static void open_call(struct connection *c, const struct wire_row *row, struct wire_frame *frame)
{
    const struct wire_message *m = &frame->message;
    struct call *call = calloc(1, sizeof *call);
    if (!call) {
        no_memory(c, call, frame);
        return;
    }
    call->connection = c;
    call->row = row;
    call->tag = frame->tag;
    call->cost = REQUEST_OVERHEAD + request_size(m) + reply_size(m, row);
    if (row->class == WIRE_CLASS_REQUEST && connection_add_call(c, call) < 0) {
        no_memory(c, call, frame);
        return;
    }
    connection_charge(c, call->cost);
    call->account = account_begin(c, m);
    if (row->class == WIRE_CLASS_REQUEST && connection_abandoned(c, frame->tag)) {
        call_reply_error(call, -ECANCELED, NULL);
        wire_frame_free(frame);
    } else if (row->type == WIRE_WORKSPACE_REMOVE) {
        remove_workspace(c, call, frame);
    } else if (row->type == WIRE_WORKSPACE_SET) {
        set_workspace(c, call, frame);
    } else if (store_transfers(m)) {
        trees_begin(connection_server(c)->trees, call, frame);
    } else if (for_workers(row)) {
        if (!delegations_take(c, call, frame))
            dispatch_submit(c, call, frame);
    } else {
        loop_route(row->type)(c, call, m);
        wire_frame_free(frame);
    }
}

static void within_call(struct connection *c, const struct wire_frame *frame)
{
    struct call *call = connection_find_call(c, frame->tag);
    if (!call)
        return;
    call->cancelled = call->cancelled || frame->message.type == WIRE_CANCEL;
    if (call->events.message)
        call->events.message(call->events.context, &frame->message);
}

/* What belongs to a call is without consequence when the call was refused. */
static void refuse(struct connection *c, const struct wire_frame *frame, int error,
                   const char *text)
{
    struct session *session = connection_session(c);
    connection_server(c)->counters.forbidden += error != -EIO;
    server_log_refusal(connection_server(c), "%s: %s", wire_row(frame->message.type)->name, text);
    account_forbidden(c, &frame->message, error, text);
    if (wire_row(frame->message.type)->class != WIRE_CLASS_REQUEST)
        return;
    if (session_send_error(session, frame->tag, error, text) < 0)
        connection_end(c, LOG_LEVEL_ERROR, "no memory for a reply");
    else
        connection_flush(c);
}

void dispatch_frame(struct connection *c, struct wire_frame *frame)
{
    const struct wire_row *row = wire_row(frame->message.type);
    size_t index = (size_t)(row - wire_row_at(0));
    char why[PERMIT_TEXT_MAX];
    connection_server(c)->message_counts[index]++;
    int r = permit_check(connection_grant(c), connection_server(c)->store, &frame->message, why);
    if (r == 0 && !account_allows(c, &frame->message)) {
        r = -EIO;
        (void)snprintf(why, sizeof why, "the service cannot write its audit log");
    }
    if (r < 0) {
        refuse(c, frame, r, why);
        wire_frame_free(frame);
        return;
    }
    if (makes_writer(&frame->message))
        connection_set_writer(c, true);
    switch (row->class) {
    case WIRE_CLASS_REQUEST:
        open_call(c, row, frame);
        return;
    case WIRE_CLASS_NOTICE:
        if (for_workers(row)) {
            open_call(c, row, frame);
            return;
        }
        loop_route(row->type)(c, NULL, &frame->message);
        break;
    case WIRE_CLASS_ITEM:
    case WIRE_CLASS_CONTROL:
        within_call(c, frame);
        break;
    case WIRE_CLASS_REPLY:
    case WIRE_CLASS_RECORD:
        assert(!"the session lets no client send these");
        break;
    }
    wire_frame_free(frame);
}

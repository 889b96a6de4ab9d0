#include "exec/relay.h"

#include <fcntl.h>
#include <limits.h>
#include <string.h>

#include "base/log.h"
#include "egress/counts.h"
#include "egress/history.h"
#include "exec/command.h"
#include "keeper/fence.h"
#include "keeper/keeper.h"
#include "keeper/process.h"
#include "names/thread_id.h"
#include "store/json_file.h"

/* Output of one call that may be on its way here from the keeper; and on towards a client that has
 * stopped taking any. */
#define RELAY_WINDOW ((size_t)128 << 10)

/* A keeper that is about to end may still answer the connection. */
#define CONNECT_TRIES 5
#define CONNECT_PAUSE_MS 50

/* How long a keeper may take to say WELCOME: it may have to read what earlier ones have left. */
#define WELCOME_TIMEOUT_S 15

void exec_relay_free(struct relay *r)
{
    struct exec_service *s = r->service;
    TAILQ_REMOVE(&s->relays, r, entry);
    if (r->tag)
        (void)table_take(&s->by_tag, r->tag);
    if (r->barrier)
        barrier_cancel(r->barrier);
    s->running -= r->type == WIRE_EXEC;
    wire_frame_free(r->reply);
    held_release(&r->held);
    buffer_release(&r->request);
    exec_removal_end(r->removal);
    if (r->hold)
        r->hold->relay = NULL;
    if (r->cleared)
        r->cleared(r->context, NULL, 0);
    free(r);
}

/* --- answers --------------------------------------------------------------------------------- */

static void reply_verdict(struct call *call, enum wire_verdict verdict, enum wire_exec_stage stage,
                          int error, uint64_t timeout_ms, const char *text)
{
    const struct wire_message m = {.type = WIRE_EXEC_EXIT,
                                   .exec_exit = {.verdict = verdict,
                                                 .code = 125,
                                                 .stage = stage,
                                                 .error = (uint32_t)-error,
                                                 .timeout_ms = timeout_ms,
                                                 .coherence = verdict == WIRE_VERDICT_NOT_STARTED
                                                                  ? WIRE_COHERENCE_SEEN
                                                                  : WIRE_COHERENCE_UNKNOWN,
                                                 .text = bytes_of_string(text)}};
    call_reply(call, &m);
}

/* The keeper has answered, or will not. */
static void relay_hold_answered(struct relay *r, int error, const char *text)
{
    struct exec_hold *hold = take_ptr(r->hold);
    char copy[1025];
    (void)snprintf(copy, sizeof copy, "%s", text ? text : "");
    hold->relay = NULL;
    exec_relay_free(r);
    void (*held)(void *context, int error, const char *text) = hold->held;
    void *context = hold->context;
    if (error < 0)
        hold->frozen = false;
    held(context, error, copy[0] ? copy : NULL);
}

/* Nothing has happened: the keeper has never seen the request. */
static void relay_refuse(struct relay *r, int error, const char *text)
{
    if (r->hold) {
        relay_hold_answered(r, error, text);
        return;
    }
    struct call *call = take_ptr(r->call);
    bool exec = r->type == WIRE_EXEC;
    r->service->refused += exec;
    exec_relay_free(r);
    if (call && exec)
        reply_verdict(call, WIRE_VERDICT_NOT_STARTED, WIRE_STAGE_REQUEST, error, 0, text);
    else if (call)
        call_reply_error(call, error, text);
}

/* The keeper has gone amid the call. */
static void relay_lose(struct relay *r)
{
    struct call *call = take_ptr(r->call);
    bool verdict = r->type == WIRE_EXEC || r->type == WIRE_EXEC_ATTACH;
    static const char text[] = "the keeper of commands has gone";
    if (r->hold) {
        relay_hold_answered(r, -ECONNRESET, text);
        return;
    }
    exec_relay_free(r);
    if (call && verdict)
        reply_verdict(call, WIRE_VERDICT_UNKNOWN, WIRE_STAGE_NONE, -ECONNRESET, 0, text);
    else if (call)
        call_reply_error(call, -ECONNRESET, text);
}

/* Leaves out of a list of EXEC_COMMAND or EXEC_USED what the client may not learn of: in a
 * workspace that is not for it. The list is then in *ret. */
static int leave_out(const struct call *call, enum wire_type type, struct wire_list *items,
                     struct buffer *ret)
{
    struct bytes element;
    uint32_t offset = 0, count = 0;
    while (wire_list_next(items, &offset, &element)) {
        struct wire_message m;
        int r = wire_decode(type, element, &m);
        if (r == 0 && !call_shows(call, type == WIRE_EXEC_USED ? m.exec_used.workspace
                                                               : m.exec_command.workspace))
            continue;
        r = r < 0 ? r : wire_list_append(ret, element);
        if (r < 0)
            return r;
        count++;
    }
    *items = wire_list_of(ret, count);
    return 0;
}

static void on_seen(void *context, bool all_seen)
{
    struct relay *r = context;
    struct call *call = take_ptr(r->call);
    struct wire_frame *reply = take_ptr(r->reply);
    struct exec_service *s = r->service;
    struct wire_message *m = &reply->message;
    r->barrier = NULL;
    exec_relay_free(r);
    if (m->type == WIRE_EXEC_EXIT) {
        m->exec_exit.fs_seq = store_change_count(s->store);
        if (!all_seen)
            m->exec_exit.coherence = WIRE_COHERENCE_UNKNOWN;
    }
    _cleanup_buffer_ struct buffer list = {0};
    int e = 0;
    if (call && m->type == WIRE_EXEC_COMMANDS)
        e = leave_out(call, WIRE_EXEC_COMMAND, &m->exec_commands.items, &list);
    if (call && m->type == WIRE_EXEC_USAGE_REPLY)
        e = leave_out(call, WIRE_EXEC_USED, &m->exec_usage_reply.items, &list);
    if (call && e < 0)
        call_reply_error(call, e, NULL);
    else if (call)
        call_reply(call, m);
    wire_frame_free(reply);
}

/* Nothing was done that a mount could be waited for. */
static bool ended_nothing(const struct wire_message *m)
{
    return m->type == WIRE_EXEC_EXIT && (m->exec_exit.verdict == WIRE_VERDICT_NOT_STARTED ||
                                         m->exec_exit.verdict == WIRE_VERDICT_RUNNING);
}

/* Takes the frame. */
static void relay_cleared(struct relay *r, struct wire_frame *frame)
{
    struct exec_removal *removal = take_ptr(r->removal);
    exec_cleared *cleared = r->cleared;
    void *context = r->context;
    uint64_t ended = frame->message.ok.seq;
    static const struct call_events none = {0};
    r->cleared = NULL;
    if (r->call)
        call_set_events(r->call, &none);
    exec_relay_free(r);
    wire_frame_free(frame);
    cleared(context, removal, ended);
}

/* Whoever is told that a command has ended must find what it did on every mount. Takes the frame.
 */
static void relay_reply(struct relay *r, struct wire_frame *frame)
{
    struct exec_service *s = r->service;
    struct wire_message *m = &frame->message;
    if (r->hold) {
        char text[1025] = "";
        int error = m->type == WIRE_ERROR ? -(int)m->error.error : 0;
        if (error < 0)
            (void)snprintf(text, sizeof text, "%.*s", (int)m->error.text.len,
                           (const char *)m->error.text.data);
        relay_hold_answered(r, error, text);
        wire_frame_free(frame);
        return;
    }
    if ((r->call || r->own) && r->removal && m->type == WIRE_OK) {
        relay_cleared(r, frame);
        return;
    }
    r->reply = frame;
    if (m->type == WIRE_EXEC_EXIT && m->exec_exit.verdict == WIRE_VERDICT_NOT_STARTED)
        s->refused++;
    if (!r->call) {
        exec_relay_free(r);
    } else if (m->type == WIRE_ERROR) {
        struct call *call = take_ptr(r->call);
        char text[1025];
        (void)snprintf(text, sizeof text, "%.*s", (int)m->error.text.len,
                       (const char *)m->error.text.data);
        int error = -(int)m->error.error;
        exec_relay_free(r);
        call_reply_error(call, error, text[0] ? text : NULL);
    } else if (ended_nothing(m)) {
        struct call *call = take_ptr(r->call);
        if (m->exec_exit.verdict == WIRE_VERDICT_NOT_STARTED)
            m->exec_exit.coherence = WIRE_COHERENCE_SEEN;
        call_reply(call, m);
        exec_relay_free(r);
    } else {
        bool detected = store_detect(s->store) == 0;
        struct barrier *barrier = NULL;
        store_note_written(s->store);
        if (s->subscribers)
            subscribers_wait(s->subscribers, NULL, on_seen, r, &barrier);
        else
            on_seen(r, detected);
        if (barrier)
            r->barrier = barrier;
    }
}

/* --- towards the client ---------------------------------------------------------------------- */

/* Lets the keeper send what the client takes. */
static void relay_grant(struct relay *r)
{
    if (!r->call || r->tag == 0 || r->reply)
        return;
    size_t credit = call_credit(r->call);
    size_t limit = credit < RELAY_WINDOW ? credit : RELAY_WINDOW;
    /* In portions, and all at once for a client that grants little. */
    if (limit <= r->window || (r->window > 0 && limit - r->window < RELAY_WINDOW / 4))
        return;
    if (session_grant(link_session(r->service->link), r->tag, limit - r->window) < 0)
        return;
    r->window = limit;
    link_flush(r->service->link);
}

static void on_item(struct relay *r, const struct wire_message *m)
{
    if (m->type == WIRE_EXEC_STARTED && !m->exec_started.attached)
        r->service->started++;
    if (m->type == WIRE_EXEC_OUTPUT)
        r->window -= session_item_cost(m->type, m->exec_output.data.len);
    buffer_release(&r->request);
    if (!r->call)
        return;
    (void)call_send_kept(r->call, m);
    if (r->call)
        relay_grant(r);
}

/* What the keeper takes of the command's input, the client may send. */
static void relay_grant_input(struct relay *r)
{
    if (!r->call || r->tag == 0)
        return;
    size_t credit = session_credit(link_session(r->service->link), r->tag);
    if (credit <= r->input_window || !call_connected(r->call))
        return;
    if (call_grant(r->call, credit - r->input_window) == 0)
        r->input_window = credit;
}

/* --- towards the keeper ---------------------------------------------------------------------- */

static void pass_on(struct relay *r, const struct wire_message *m)
{
    if (m->type == WIRE_EXEC_INPUT) {
        size_t cost = session_item_cost(m->type, m->exec_input.data.len);
        r->input_window -= cost < r->input_window ? cost : r->input_window;
    }
    int e = session_send(link_session(r->service->link), r->tag, m);
    if (e < 0 && e != -ENOENT)
        log_warning("%s cannot be passed on: %s", wire_row(m->type)->name, strerror(-e));
    link_flush(r->service->link);
}

static void on_message(void *context, const struct wire_message *m)
{
    struct relay *r = context;
    if (r->reply)
        return;
    if (r->tag)
        pass_on(r, m);
    else
        (void)held_add(&r->held, m);
}

static void on_writable(void *context)
{
    struct relay *r = context;
    relay_grant(r);
    relay_grant_input(r);
}

static void on_gone(void *context)
{
    struct relay *r = context;
    const struct wire_message leave = {
        .type = WIRE_CANCEL,
        .cancel.flags = WIRE_CANCEL_LEAVE | (call_is_abandoned(r->call) ? 0 : KEEPER_LOST)};
    r->call = NULL;
    if (r->tag == 0 || r->reply)
        exec_relay_free(r); /* nobody has it, or nobody wants it */
    else
        pass_on(r, &leave);
}

static void relay_send(struct relay *r)
{
    struct exec_service *s = r->service;
    struct wire_message m;
    struct held_message *held;
    int e = wire_decode(r->type, buffer_view(&r->request), &m);
    if (e == 0)
        e = session_request(link_session(s->link), &m, false, &r->tag);
    if (e == 0 && table_put(&s->by_tag, r->tag, r, NULL) < 0)
        e = -ENOMEM;
    if (e < 0) {
        relay_refuse(r, e, "the request cannot be passed on");
        return;
    }
    if (r->type == WIRE_EXEC_KILL || (r->type == WIRE_EXEC && m.exec.id.len == 0))
        buffer_release(&r->request);
    r->window = 0;
    r->input_window = session_credit(link_session(s->link), r->tag);
    while ((held = held_take(&r->held))) {
        if (held_message_read(held, &m))
            pass_on(r, &m);
        held_message_free(held);
    }
    relay_grant(r);
    link_flush(s->link);
}

/* --- the link -------------------------------------------------------------------------------- */

static void link_begin(struct exec_service *s);

/* Those that wait for a keeper which is not to be had. */
static void refuse_waiting(struct exec_service *s, int error, const char *text)
{
    struct relay *next;
    for (struct relay *r = TAILQ_FIRST(&s->relays); r; r = next) {
        next = TAILQ_NEXT(r, entry);
        if (r->tag == 0 && !r->reply && r->waits_for == 0)
            relay_refuse(r, error, text);
    }
}

static void on_ready(void *context)
{
    struct exec_service *s = context;
    struct relay *next;
    s->ready = true;
    s->tries = 0;
    (void)event_del(s->again);
    for (struct relay *r = TAILQ_FIRST(&s->relays); r; r = next) {
        next = TAILQ_NEXT(r, entry);
        if (r->tag == 0 && r->waits_for == 0)
            relay_send(r);
    }
}

static void on_frame(void *context, struct wire_frame *frame)
{
    struct exec_service *s = context;
    struct relay *r = frame->tag ? table_get(&s->by_tag, frame->tag) : NULL;
    if (r && wire_row(frame->message.type)->class == WIRE_CLASS_REPLY) {
        relay_reply(r, frame);
        return;
    }
    if (r)
        on_item(r, &frame->message);
    wire_frame_free(frame);
}

static void on_link_writable(void *context)
{
    struct exec_service *s = context;
    struct relay *r;
    TAILQ_FOREACH(r, &s->relays, entry) relay_grant_input(r);
}

static void link_drop(struct exec_service *s)
{
    struct relay *next;
    link_free(take_ptr(s->link));
    s->ready = false;
    for (struct relay *r = TAILQ_FIRST(&s->relays); r; r = next) {
        next = TAILQ_NEXT(r, entry);
        if (r->tag == 0 || r->reply)
            continue;
        (void)table_take(&s->by_tag, r->tag);
        r->tag = 0;
        /* Another keeper knows what this one has put on record. */
        if (!r->call || r->request.len == 0)
            relay_lose(r);
    }
}

static void on_again(evutil_socket_t fd, short what, void *context)
{
    struct exec_service *s = context;
    if (s->link) {
        link_drop(s);
        refuse_waiting(s, -ETIMEDOUT, "the keeper of commands does not answer");
    } else {
        link_begin(s);
    }
}

static void on_lost(void *context, const char *reason)
{
    struct exec_service *s = context;
    bool was_ready = s->ready;
    bool foreign = link_is_foreign(s->link);
    char text[320];
    if (was_ready)
        log_info("the keeper of commands has gone: %s", reason);
    (void)snprintf(text, sizeof text,
                   "the keeper of commands cannot be reached: %s; see exec/.log in the root",
                   reason);
    if (foreign)
        (void)snprintf(text, sizeof text,
                       "%s: it keeps commands that were started before this service was, and ends "
                       "soon after the last of them; until then none can be started or asked for",
                       reason);
    link_drop(s);
    (void)event_del(s->again);
    if (TAILQ_EMPTY(&s->relays))
        return;
    if (foreign || ++s->tries >= CONNECT_TRIES) {
        s->tries = 0;
        refuse_waiting(s, foreign ? -EPROTONOSUPPORT : -ECONNREFUSED, text);
        return;
    }
    const struct timeval pause = {.tv_usec = CONNECT_PAUSE_MS * 1000};
    (void)event_add(s->again, &pause);
}

static void link_begin(struct exec_service *s)
{
    const struct timeval patience = {.tv_sec = WELCOME_TIMEOUT_S};
    const struct link_events events = {.ready = on_ready,
                                       .frame = on_frame,
                                       .writable = on_link_writable,
                                       .lost = on_lost,
                                       .context = s};
    _cleanup_close_ int fd = -1;
    struct failure failure;
    int r = s->connect(s->context, s->name, &fd, &failure);
    if (r == 0) {
        r = link_new(s->base, &fd, SESSION_CLIENT, 0, &events, &s->link);
        if (r < 0)
            (void)failure_set(&failure, r, "out of memory");
    }
    if (r == 0)
        (void)event_add(s->again, &patience);
    else
        refuse_waiting(s, r, failure.text);
}

/* --- requests -------------------------------------------------------------------------------- */

struct relay *exec_relay_new(struct exec_service *s, struct call *call,
                             const struct wire_message *request)
{
    struct relay *r = calloc(1, sizeof *r);
    if (!r || wire_encode(&r->request, request) < 0) {
        free(r);
        return NULL;
    }
    r->service = s;
    r->call = call;
    r->type = request->type;
    held_init(&r->held);
    TAILQ_INSERT_TAIL(&s->relays, r, entry);
    s->running += r->type == WIRE_EXEC;
    if (!call)
        return r;
    const struct call_events events = {
        .message = on_message, .writable = on_writable, .gone = on_gone, .context = r};
    call_set_events(call, &events);
    return r;
}

void exec_relay_begin(struct relay *r)
{
    struct exec_service *s = r->service;
    if (s->ready)
        relay_send(r);
    else if (!s->link && !event_pending(s->again, EV_TIMEOUT, NULL))
        link_begin(s);
}

static void ask(struct exec_service *s, struct call *call, const struct wire_message *request)
{
    struct relay *r = exec_relay_new(s, call, request);
    if (!r) {
        call_reply_error(call, -ENOMEM, NULL);
        return;
    }
    /* By now the workspace's flags are its slot. */
    if (r->type == WIRE_EXEC && exec_is_held(s, request->exec.workspace_flags))
        r->waits_for = request->exec.workspace_flags;
    else
        exec_relay_begin(r);
}

static const struct exec_removal *find_removal(const struct exec_service *s, uint32_t slot)
{
    const struct exec_removal *removal;
    LIST_FOREACH(removal, &s->removals, entry)
    {
        if (removal->slot == slot)
            return removal;
    }
    return NULL;
}

static const char no_workspace[] =
    "no such workspace; see `berth ls`, or make it with `berth create`";

void exec_service_start(struct exec_service *s, struct call *call,
                        const struct wire_message *request, bool synced)
{
    const struct wire_exec *exec = &request->exec;
    struct workspace *workspace = NULL;
    int r = store_workspace_find(s->store, exec->workspace, exec->workspace_flags, &workspace);
    if (r < 0) {
        char name[128];
        char text[256];
        (void)log_escape(exec->workspace.data, exec->workspace.len, name, sizeof name);
        (void)snprintf(text, sizeof text, "%s: %s", name,
                       r == -ENOENT ? no_workspace : strerror(-r));
        s->refused++;
        reply_verdict(call, WIRE_VERDICT_NOT_STARTED, WIRE_STAGE_WORKSPACE, r, exec->timeout_ms,
                      text);
        return;
    }
    struct wire_message m = *request;
    m.exec.workspace = workspace_thread_id(workspace);
    m.exec.workspace_flags = workspace_slot(workspace);
    const struct exec_removal *removal = find_removal(s, workspace_slot(workspace));
    m.exec.flags =
        (exec->flags & ~(KEEPER_UNSYNCED | KEEPER_STOPPED)) | (synced ? 0 : KEEPER_UNSYNCED);
    if (workspace_is_stopped(workspace) || (removal && removal->stops))
        m.exec.flags |= KEEPER_STOPPED;
    if (removal && !removal->stops)
        reply_verdict(call, WIRE_VERDICT_NOT_STARTED, WIRE_STAGE_WORKSPACE, -EBUSY,
                      exec->timeout_ms, "the workspace is being removed");
    else
        ask(s, call, &m);
    workspace_unref(workspace);
}

/* The workspace that a request means, as the keeper knows it. One that is not there has no slot. */
static int find_workspace(struct exec_service *s, uint32_t *flags, struct bytes *key,
                          struct workspace **ret)
{
    int r = store_workspace_find(s->store, *key, *flags, ret);
    if (r == -ENOENT && !(*flags & WIRE_WORKSPACE_BY_NAME)) {
        *flags = 0;
        return 0;
    }
    if (r < 0)
        return r;
    *key = workspace_thread_id(*ret);
    *flags = workspace_slot(*ret);
    return 0;
}

static bool is_about_policy(uint16_t type)
{
    return type == WIRE_EXEC_POLICY || type == WIRE_EXEC_POLICY_SET || type == WIRE_EXEC_LIFT;
}

void exec_service_ask(struct exec_service *s, struct call *call, const struct wire_message *request)
{
    struct workspace *workspace = NULL;
    struct wire_message m = *request;
    int r = 0;
    if (m.type == WIRE_EXEC_ATTACH)
        r = find_workspace(s, &m.exec_attach.workspace_flags, &m.exec_attach.workspace, &workspace);
    else if (m.type == WIRE_EXEC_FORGET)
        r = find_workspace(s, &m.exec_forget.workspace_flags, &m.exec_forget.workspace, &workspace);
    else if (m.type == WIRE_EXEC_KILL)
        r = find_workspace(s, &m.exec_kill.workspace_flags, &m.exec_kill.workspace, &workspace);
    else if (m.type == WIRE_EXEC_POLICY)
        r = find_workspace(s, &m.exec_policy.workspace_flags, &m.exec_policy.workspace, &workspace);
    else if (m.type == WIRE_EXEC_LIFT)
        r = find_workspace(s, &m.exec_lift.workspace_flags, &m.exec_lift.workspace, &workspace);
    else if (m.type == WIRE_EXEC_POLICY_SET)
        r = find_workspace(s, &m.exec_policy_set.workspace_flags, &m.exec_policy_set.workspace,
                           &workspace);
    else if (m.type == WIRE_EXEC_USAGE && m.exec_usage.workspace.len > 0)
        r = find_workspace(s, &m.exec_usage.workspace_flags, &m.exec_usage.workspace, &workspace);
    else if (m.type == WIRE_EXEC_LIST && m.exec_list.workspace.len > 0)
        r = find_workspace(s, &m.exec_list.workspace_flags, &m.exec_list.workspace, &workspace);
    /* Of one that was removed there may be commands, but nothing that holds them. */
    if (r == 0 && !workspace && is_about_policy(m.type))
        r = -ENOENT;
    if (call && r < 0) {
        call_reply_error(call, r, r == -ENOENT ? no_workspace : NULL);
    } else if (call) {
        ask(s, call, &m);
    } else if (r == 0 && s->ready) {
        (void)session_send(link_session(s->link), 0, &m);
        link_flush(s->link);
    }
    if (workspace)
        workspace_unref(workspace);
}

static int open_commands(const struct exec_service *s)
{
    char path[PATH_MAX];
    (void)snprintf(path, sizeof path, "%s/exec", store_root(s->store));
    return open(path, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

struct shown {
    const struct call *call;
    const char *only; /* as the log shows that workspace; NULL: all */
};

/* The log shows IDs, and not always exactly: what could be another's is for those alone who are
 * shown everything. */
static bool is_shown(void *context, const char *workspace)
{
    const struct shown *shown = context;
    size_t len = strlen(workspace);
    if (shown->only && strcmp(shown->only, workspace) != 0)
        return false;
    if (call_shows_all(shown->call))
        return true;
    bool exact = !strchr(workspace, '\\') && (len < 3 || strcmp(workspace + len - 3, "...") != 0);
    return exact && call_shows(shown->call, bytes_of(workspace, len));
}

void exec_service_egress(struct exec_service *s, struct call *call, const struct wire_egress_log *m)
{
    char only[HISTORY_WORKSPACE_SIZE];
    struct shown shown = {.call = call};
    struct workspace *workspace = NULL;
    struct bytes key = m->workspace;
    uint32_t flags = m->workspace_flags;
    _cleanup_buffer_ struct buffer list = {0};
    _cleanup_close_ int directory = open_commands(s);
    struct wire_message reply = {.type = WIRE_EGRESS_DECISIONS};
    int r = key.len > 0 ? find_workspace(s, &flags, &key, &workspace) : 0;
    if (r == 0 && key.len > 0)
        shown.only = log_escape(key.data, key.len, only, sizeof only);
    if (r == 0 && directory >= 0)
        r = history_read(directory, m, is_shown, &shown, &list, &reply.egress_decisions);
    if (r < 0)
        call_reply_error(call, r, r == -ENOENT ? no_workspace : NULL);
    else
        call_reply(call, &reply);
    if (workspace)
        workspace_unref(workspace);
}

/* --- the service ----------------------------------------------------------------------------- */

int exec_service_new(struct event_base *base, const struct exec_service_options *options,
                     struct exec_service **ret)
{
    struct exec_service *s = calloc(1, sizeof *s);
    if (!s)
        return -ENOMEM;
    s->base = base;
    s->store = options->store;
    s->subscribers = options->subscribers;
    s->connect = options->connect;
    s->context = options->context;
    uint8_t service_id[16];
    store_service_id(s->store, service_id);
    (void)snprintf(s->name, sizeof s->name, "berth-");
    for (size_t i = 0; i < sizeof service_id; i++)
        (void)snprintf(s->name + strlen(s->name), 3, "%02x", service_id[i]);
    TAILQ_INIT(&s->relays);
    LIST_INIT(&s->removals);
    LIST_INIT(&s->holds);
    LIST_INIT(&s->questions);
    s->again = evtimer_new(base, on_again, s);
    if (!s->again) {
        free(s);
        return -ENOMEM;
    }
    keeper_sweep(store_root(s->store), s->name);
    *ret = s;
    return 0;
}

void exec_service_free(struct exec_service *s)
{
    struct relay *r;
    struct exec_removal *removal;
    struct exec_hold *hold;
    if (!s)
        return;
    exec_end_questions(s);
    while ((r = TAILQ_FIRST(&s->relays)))
        exec_relay_free(r);
    while ((hold = LIST_FIRST(&s->holds))) {
        LIST_REMOVE(hold, entry);
        hold->service = NULL;
    }
    while ((removal = LIST_FIRST(&s->removals))) {
        LIST_REMOVE(removal, entry);
        removal->service = NULL;
    }
    link_free(s->link);
    event_free(s->again);
    table_release(&s->by_tag);
    free(s);
}

static int add_egress(int directory, json_t *object)
{
    struct counts n;
    bool running;
    if (counts_read(directory, &n, &running) < 0)
        return 0; /* there never was a proxy */
    json_t *egress =
        json_pack("{s:b, s:I, s:I, s:I, s:I, s:I, s:I}", "running", running, "connections",
                  (json_int_t)n.connections, "allowed", (json_int_t)n.allowed, "refused",
                  (json_int_t)n.refused, "failed", (json_int_t)n.failed, "bytes_up",
                  (json_int_t)n.bytes_up, "bytes_down", (json_int_t)n.bytes_down);
    return json_object_set_new(object, "egress", egress) < 0 ? -ENOMEM : 0;
}

static int add_fenced(const struct exec_service *s, json_t *object)
{
    char path[PATH_MAX];
    (void)snprintf(path, sizeof path, "%s/workspaces", store_root(s->store));
    _cleanup_close_ int workspaces = open(path, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return json_object_set_new(object, "fenced", fences_list(workspaces)) < 0 ? -ENOMEM : 0;
}

int exec_service_status(struct exec_service *s, json_t *object)
{
    json_t *exec = json_pack("{s:I,s:I,s:I}", "running", (json_int_t)s->running, "started",
                             (json_int_t)s->started, "refused", (json_int_t)s->refused);
    _cleanup_close_ int directory = -1;
    json_t *told = NULL;
    if (!exec || json_object_set_new(object, "exec", exec) < 0 || add_fenced(s, object) < 0)
        return -ENOMEM;
    directory = open_commands(s);
    if (directory < 0 || json_file_read(directory, KEEPER_CONFINEMENT, &told) < 0)
        return 0; /* no command was run yet */
    int r = json_object_update_missing(object, told);
    json_decref(told);
    return r < 0 ? -ENOMEM : add_egress(directory, object);
}

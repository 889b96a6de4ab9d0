#include "keeper/keeper.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "keeper/private.h"
#include "keeper/proxy.h"
#include "names/thread_id.h"
#include "store/json_file.h"

/* How often what has become too old is looked for, and what could not be written is tried again. */
#define TICK_S 1

/* How often a keeper that is to stop looks whether everybody has been told, and for how long those
 * that do not read hold it up. */
#define STOP_LOOK_MS 5
#define STOP_PATIENCE_MS 3000

#define STOPPED "the keeper of commands was stopped"

/* How often those that have ended are looked at again, whose leader has left something behind. */
#define LOOK_MS 200

/* Input that a call may send before the first grant: one pipe's worth and some, as a service gives
 * its own clients. */
#define KEEPER_WINDOW (256u << 10)

/* Bytes of an ID that is made here: nobody guesses another one's. */
#define ID_RANDOM 8

/* Of a page of EXEC_LIST, below the table's bound by one element at its largest. */
#define PAGE_MAX ((size_t)0x100000 - 8192)

/* --- replies --------------------------------------------------------------------------------- */

void peer_send(struct peer *p, uint64_t tag, const struct wire_message *m)
{
    int r = session_send(link_session(p->link), tag, m);
    if (r < 0 && r != -ENOENT && r != -ENOTCONN)
        log_error("%s cannot be sent: %s", wire_row(m->type)->name, strerror(-r));
    link_flush(p->link);
}

void peer_send_error(struct peer *p, uint64_t tag, int error, const char *text)
{
    (void)session_send_error(link_session(p->link), tag, error, text);
    link_flush(p->link);
}

static void reply_refusal(struct peer *p, uint64_t tag, const struct wire_exec *exec,
                          const struct command_verdict *refusal)
{
    const struct wire_message m = {.type = WIRE_EXEC_EXIT,
                                   .exec_exit = {.verdict = refusal->verdict,
                                                 .code = (uint32_t)refusal->code,
                                                 .stage = refusal->stage,
                                                 .error = (uint32_t)-refusal->error,
                                                 .timeout_ms = exec->timeout_ms,
                                                 .text = bytes_of_string(refusal->text)}};
    peer_send(p, tag, &m);
}

/* --- the table ------------------------------------------------------------------------------- */

bool kept_is_of(const struct kept *c, struct bytes workspace, uint32_t slot)
{
    return bytes_equal(c->record.command.workspace, workspace) &&
           (c->record.slot == slot || c->record.slot == 0);
}

static struct kept *find(const struct keeper *k, struct bytes workspace, uint32_t slot,
                         struct bytes id)
{
    struct kept *c = table_get(&k->commands, kept_hash(workspace, id));
    while (c && !(kept_is_of(c, workspace, slot) && bytes_equal(c->record.command.id, id)))
        c = c->same;
    return c;
}

/* The same in every keeper. */
static uint64_t expired_key(uint64_t hash, uint32_t slot)
{
    return hash_end(hash_bytes(hash, &slot, sizeof slot));
}

static bool has_expired(const struct keeper *k, struct bytes workspace, uint32_t slot,
                        struct bytes id)
{
    return expired_has(&k->expired, expired_key(kept_hash(workspace, id), slot));
}

/* Finds what a request names, or answers that it is not there. */
static struct kept *find_or_refuse(struct keeper *k, struct peer *p, uint64_t tag,
                                   struct bytes workspace, uint32_t slot, struct bytes id)
{
    struct kept *c = find(k, workspace, slot, id);
    if (!c && has_expired(k, workspace, slot, id))
        peer_send_error(p, tag, -ESTALE, "the command has ended so long ago that it was forgotten");
    else if (!c)
        peer_send_error(p, tag, -ENOENT, "no such command in this workspace");
    return c;
}

static bool is_idle(const struct keeper *k)
{
    return k->running == 0 && k->left == 0 && TAILQ_EMPTY(&k->peers);
}

void keeper_changed(struct keeper *k)
{
    const struct timeval time = {.tv_usec = LOOK_MS * 1000};
    if (k->idle)
        k->idle(k->context, is_idle(k));
    if (k->left > 0)
        (void)event_add(k->look, &time);
}

static void on_look(evutil_socket_t fd, short what, void *context)
{
    struct keeper *k = context;
    struct kept *next;
    for (struct kept *c = TAILQ_FIRST(&k->ended); c && k->left > 0; c = next) {
        next = TAILQ_NEXT(c, ended_entry);
        if (c->command && kept_look(c) && c->forgotten && TAILQ_EMPTY(&c->followers))
            kept_free(c, true);
    }
    confinement_sweep(k->confinement);
    keeper_changed(k);
}

/* Clears away what is left of a command that has just ended, if no process is. */
static void on_soon(evutil_socket_t fd, short what, void *context)
{
    struct keeper *k = context;
    struct kept *c;
    while ((c = TAILQ_FIRST(&k->fresh))) {
        TAILQ_REMOVE(&k->fresh, c, fresh_entry);
        c->fresh = false;
        if (kept_look(c) && c->forgotten && TAILQ_EMPTY(&c->followers))
            kept_free(c, true);
    }
    keeper_changed(k);
}

static void expire(struct keeper *k, struct kept *c)
{
    expired_add(&k->expired, expired_key(c->hash, c->record.slot));
    kept_free(c, true);
}

/* Those that somebody is reading stay until he has, those that have left something behind until
 * that has ended. */
static void on_tick(evutil_socket_t fd, short what, void *context)
{
    struct keeper *k = context;
    uint64_t now = clock_monotonic_ns();
    struct kept *next;
    confinement_sweep(k->confinement);
    for (struct kept *c = TAILQ_FIRST(&k->ended); c; c = next) {
        next = TAILQ_NEXT(c, ended_entry);
        if (c->unsaved)
            kept_save(c);
        bool unused = TAILQ_EMPTY(&c->followers) && !c->command;
        if (unused && c->forgotten)
            kept_free(c, true); /* it was being read, or had left something behind, at that time */
        else if (unused && (now - c->ended_ns >= k->keep_ns || k->ended_count > KEEPER_ENDED_MAX ||
                            k->ended_bytes > KEEPER_BYTES_MAX))
            expire(k, c);
    }
    if (k->untidy)
        record_tidy(k->exec);
    k->untidy = false;
}

/* --- requests -------------------------------------------------------------------------------- */

static void attach(struct peer *p, uint64_t tag, struct kept *c, uint32_t flags,
                   const uint64_t from[2], bool starter)
{
    struct follower *f;
    int r = kept_open(c);
    if (r == 0)
        r = follower_new(c, p, tag, flags, &f);
    if (r < 0) {
        peer_send_error(p, tag, r, "its output cannot be read");
        kept_rest(c);
        if (starter)
            kept_holders_changed(c, NULL);
        return;
    }
    f->starter = starter;
    for (size_t i = 0; i < ARRAY_SIZE(f->at); i++) {
        uint64_t end = spool_geometry(c->spools[i]).end;
        f->at[i] = from[i] < end ? from[i] : end;
    }
    if (flags & WIRE_ATTACH_HOLD)
        kept_holders_changed(c, NULL);
    follower_pump(f);
}

static int make_id(char ret[2 * ID_RANDOM + 1])
{
    uint8_t random[ID_RANDOM];
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
        return -EAGAIN;
    for (size_t i = 0; i < sizeof random; i++)
        (void)snprintf(ret + 2 * i, 3, "%02x", random[i]);
    return 0;
}

static int check_new(const struct keeper *k, const struct wire_exec *exec, struct bytes id,
                     struct command_verdict *refusal)
{
    int r = 0;
    const char *text = NULL;
    if (k->stop) {
        r = -ESHUTDOWN;
        text = "the keeper of commands is being stopped";
    } else if (k->running >= KEEPER_RUNNING_MAX) {
        r = -EAGAIN;
        text = "too many commands are running";
    } else if (has_expired(k, exec->workspace, exec->workspace_flags, id)) {
        r = -ESTALE;
        text = "a command with this ID has run, so long ago that its verdict was forgotten";
    }
    if (r < 0)
        command_verdict_not_started(refusal, WIRE_STAGE_REQUEST, r, "%s", text);
    return r;
}

/* Whoever asks again for what he has asked for is given its verdict, and nobody another command's.
 */
static void refuse_other(struct command_verdict *refusal, const struct kept *c)
{
    const struct wire_exec_command *i = &c->record.command;
    char words[512];
    size_t len = i->argv.len < sizeof words ? i->argv.len : sizeof words;
    for (size_t n = 0; n < len; n++)
        words[n] = i->argv.data[n] ? (char)i->argv.data[n] : ' ';
    while (len > 0 && words[len - 1] == ' ')
        len--;
    command_verdict_not_started(
        refusal, WIRE_STAGE_REQUEST, -EEXIST,
        "the ID %.*s is that of another command, or of other variables or another directory: %.*s",
        (int)i->id.len, (const char *)i->id.data, (int)len, words);
}

static void on_exec(struct keeper *k, struct peer *p, uint64_t tag, const struct wire_exec *exec)
{
    static const uint64_t from[2] = {0, 0};
    const uint32_t all =
        WIRE_ATTACH_OUTPUT | WIRE_ATTACH_INPUT | WIRE_ATTACH_FOLLOW | WIRE_ATTACH_HOLD;
    uint32_t flags = exec->flags & WIRE_EXEC_DETACH ? 0 : all;
    char made[2 * ID_RANDOM + 1];
    struct bytes id = exec->id;
    struct command_verdict refusal;
    struct kept *c = NULL;
    int r = clear_earlier(k, exec->workspace, exec->workspace_flags);
    if (r < 0) {
        command_verdict_not_started(&refusal, WIRE_STAGE_WORKSPACE, r, "the workspace was removed");
        reply_refusal(p, tag, exec, &refusal);
        return;
    }
    if (id.len > 0)
        c = find(k, exec->workspace, exec->workspace_flags, id);
    if (c && c->record.words != request_words(exec)) {
        refuse_other(&refusal, c);
        reply_refusal(p, tag, exec, &refusal);
        return;
    }
    if (c) {
        attach(p, tag, c, flags, from, false);
        return;
    }
    if (exec->flags & KEEPER_STOPPED) {
        command_verdict_not_started(&refusal, WIRE_STAGE_WORKSPACE, -ESHUTDOWN,
                                    "the workspace is stopped; see `berth start`");
        reply_refusal(p, tag, exec, &refusal);
        return;
    }
    r = id.len > 0 ? 0 : make_id(made);
    if (r < 0)
        command_verdict_not_started(&refusal, WIRE_STAGE_REQUEST, r, "no random numbers");
    else if (id.len == 0)
        id = bytes_of_string(made);
    if (r == 0)
        r = check_new(k, exec, id, &refusal);
    if (r == 0)
        r = kept_start(k, exec, id, &c, &refusal);
    if (r < 0) {
        reply_refusal(p, tag, exec, &refusal);
        return;
    }
    c->nameless = exec->id.len == 0;
    attach(p, tag, c, flags, from, true);
    keeper_changed(k);
}

static void on_attach(struct keeper *k, struct peer *p, uint64_t tag,
                      const struct wire_exec_attach *m)
{
    const uint64_t from[2] = {m->from_stdout, m->from_stderr};
    const uint32_t known =
        WIRE_ATTACH_OUTPUT | WIRE_ATTACH_INPUT | WIRE_ATTACH_FOLLOW | WIRE_ATTACH_HOLD;
    if (m->flags & ~known) {
        peer_send_error(p, tag, -EINVAL, "unknown flags");
        return;
    }
    struct kept *c = find_or_refuse(k, p, tag, m->workspace, m->workspace_flags, m->id);
    if (c)
        attach(p, tag, c, m->flags, from, false);
}

static void on_forget(struct keeper *k, const struct wire_exec_forget *m)
{
    struct kept *c = find(k, m->workspace, m->workspace_flags, m->id);
    if (c && c->state == KEPT_ENDED && TAILQ_EMPTY(&c->followers) && kept_look(c))
        kept_free(c, true);
    else if (c && c->state == KEPT_ENDED)
        c->forgotten = true;
}

static size_t count_followers(const struct kept *c)
{
    size_t n = 0;
    const struct follower *f;
    TAILQ_FOREACH(f, &c->followers, entry) n++;
    return n;
}

static int append_command(struct buffer *list, struct kept *c)
{
    _cleanup_buffer_ struct buffer element = {0};
    struct wire_message m = {.type = WIRE_EXEC_COMMAND, .exec_command = c->record.command};
    struct wire_exec_command *i = &m.exec_command;
    i->flags &= ~KEEPER_UNSYNCED;
    if (kept_is_settling(c))
        i->verdict = WIRE_VERDICT_RUNNING;
    if (c->state != KEPT_ENDED) {
        i->stdout_bytes = spool_geometry(c->spools[0]).end;
        i->stderr_bytes = spool_geometry(c->spools[1]).end;
        i->stdout_dropped = spool_dropped(c->spools[0]);
        i->stderr_dropped = spool_dropped(c->spools[1]);
        i->duration_ns = clock_monotonic_ns() - c->started_ns;
    }
    i->processes = (uint32_t)kept_processes(c);
    i->attached = (uint32_t)count_followers(c);
    int r = wire_encode(&element, &m);
    return r < 0 ? r : wire_list_append(list, buffer_view(&element));
}

static void on_list(struct keeper *k, struct peer *p, uint64_t tag, const struct wire_exec_list *m)
{
    _cleanup_buffer_ struct buffer list = {0};
    const uint32_t most = wire_row(WIRE_EXEC_COMMANDS)->fields[2].max_count;
    uint32_t limit = m->count > 0 && m->count < most ? m->count : most;
    uint32_t count = 0;
    uint64_t last = m->after;
    bool more = false;
    struct kept *c;
    TAILQ_FOREACH(c, &k->all, entry)
    {
        const struct wire_exec_command *i = &c->record.command;
        if (i->serial <= m->after ||
            (m->workspace.len > 0 && !kept_is_of(c, m->workspace, m->workspace_flags)) ||
            (m->id.len > 0 && !bytes_equal(i->id, m->id)))
            continue;
        more = count == limit || list.len > PAGE_MAX;
        if (more)
            break;
        int r = append_command(&list, c);
        if (r < 0) {
            peer_send_error(p, tag, r, NULL);
            return;
        }
        last = i->serial;
        count++;
    }
    const struct wire_message reply = {
        .type = WIRE_EXEC_COMMANDS,
        .exec_commands = {.more = more, .after = last, .items = wire_list_of(&list, count)}};
    peer_send(p, tag, &reply);
}

static void on_kill(struct keeper *k, struct peer *p, uint64_t tag, const struct wire_exec_kill *m)
{
    static const struct wire_message done = {.type = WIRE_EXEC_KILLED};
    char by[160];
    struct kept *c = find_or_refuse(k, p, tag, m->workspace, m->workspace_flags, m->id);
    if (!c)
        return;
    int r = -ESRCH;
    if (m->signal != 0) {
        if (c->state != KEPT_ENDED && !kept_is_claimed(c))
            r = command_signal(c->command, m->signal);
        if (r == 0)
            peer_send(p, tag, &done);
        else
            peer_send_error(p, tag, r, NULL);
        return;
    }
    struct killer *killer = calloc(1, sizeof *killer);
    if (!killer) {
        peer_send_error(p, tag, -ENOMEM, NULL);
        return;
    }
    *killer = (struct killer){.peer = p, .tag = tag};
    (void)snprintf(by, sizeof by, "by %.*s", m->by.len ? (int)m->by.len : 14,
                   m->by.len ? (const char *)m->by.data : "another client");
    r = kept_kill(c, by, m->grace_ms, killer);
    if (r < 0) {
        free(killer);
        peer_send_error(p, tag, r, "nothing of it is left");
    }
}

/* --- links ----------------------------------------------------------------------------------- */

static void on_ready(void *context)
{
}

static void on_frame(void *context, struct wire_frame *frame)
{
    struct peer *p = context;
    struct keeper *k = p->keeper;
    const struct wire_message *m = &frame->message;
    struct follower *f = frame->tag ? table_get(&p->by_tag, frame->tag) : NULL;
    if (m->type == WIRE_EXEC)
        on_exec(k, p, frame->tag, &m->exec);
    else if (m->type == WIRE_EXEC_ATTACH)
        on_attach(k, p, frame->tag, &m->exec_attach);
    else if (m->type == WIRE_EXEC_FORGET)
        on_forget(k, &m->exec_forget);
    else if (m->type == WIRE_EXEC_LIST)
        on_list(k, p, frame->tag, &m->exec_list);
    else if (m->type == WIRE_EXEC_KILL)
        on_kill(k, p, frame->tag, &m->exec_kill);
    else if (m->type == WIRE_EXEC_POLICY)
        policy_tell(k, p, frame->tag, &m->exec_policy);
    else if (m->type == WIRE_EXEC_POLICY_SET)
        policy_set(k, p, frame->tag, &m->exec_policy_set);
    else if (m->type == WIRE_EXEC_LIFT)
        policy_lift(k, p, frame->tag, &m->exec_lift);
    else if (m->type == WIRE_EXEC_USAGE)
        usage_tell(k, p, frame->tag, &m->exec_usage);
    else if (m->type == WIRE_SNAPSHOT_CREATE)
        freeze_handle(k, p, frame->tag, &m->snapshot_create);
    else if (m->type == WIRE_WORKSPACE_REMOVE)
        clear_begin(k, p, frame->tag, &m->workspace_remove);
    else if (f)
        follower_message(f, m);
    else if (wire_row(m->type)->class == WIRE_CLASS_REQUEST)
        peer_send_error(p, frame->tag, -EOPNOTSUPP, NULL);
    wire_frame_free(frame);
}

static void on_writable(void *context)
{
    struct peer *p = context;
    struct follower *next;
    for (struct follower *f = TAILQ_FIRST(&p->followers); f; f = next) {
        struct kept *c = f->kept;
        next = TAILQ_NEXT(f, peer_entry);
        follower_pump(f);
        if (c->command)
            command_resume(c->command);
    }
}

static void peer_free(struct peer *p)
{
    struct keeper *k = p->keeper;
    struct kept *c;
    struct killer *killer;
    struct follower *f;
    while ((f = TAILQ_FIRST(&p->followers)))
        follower_free(f);
    TAILQ_FOREACH(c, &k->all, entry)
    {
        TAILQ_FOREACH(killer, &c->killers, entry)
        {
            if (killer->peer == p)
                killer->peer = NULL;
        }
    }
    clear_peer_gone(k, p);
    freeze_peer_gone(k, p);
    TAILQ_REMOVE(&k->peers, p, entry);
    table_release(&p->by_tag);
    link_free(p->link);
    free(p);
}

static void on_lost(void *context, const char *reason)
{
    struct peer *p = context;
    struct keeper *k = p->keeper;
    log_debug("a service has gone: %s", reason);
    peer_free(p);
    keeper_changed(k);
}

int keeper_accept(struct keeper *k, int *fd)
{
    struct peer *p = calloc(1, sizeof *p);
    if (!p)
        return -ENOMEM;
    p->keeper = k;
    TAILQ_INIT(&p->followers);
    const struct link_events events = {.ready = on_ready,
                                       .frame = on_frame,
                                       .writable = on_writable,
                                       .lost = on_lost,
                                       .context = p};
    int r = link_new(k->base, fd, SESSION_SERVER, KEEPER_WINDOW, &events, &p->link);
    if (r < 0) {
        free(p);
        return r;
    }
    TAILQ_INSERT_TAIL(&k->peers, p, entry);
    keeper_changed(k);
    return 0;
}

/* --- what an earlier keeper has left --------------------------------------------------------- */

struct restoring {
    struct keeper *keeper;
    int error;
};

static int restore_one(struct keeper *k, struct bytes workspace, struct bytes id, int directory)
{
    _cleanup_buffer_ struct buffer storage = {0};
    struct record record = {0};
    struct wire_exec_command *info = &record.command;
    const char *why = NULL;
    int r = record_read(directory, &storage, &record);
    if (r == -ENOMEM)
        return r;
    if (r < 0 || !bytes_equal(info->id, id) ||
        (workspace.len > 0 && !bytes_equal(info->workspace, workspace))) {
        why = "its record is damaged";
        record = (struct record){.spools = {{.keep = SPOOL_KEEP_MIN}, {.keep = SPOOL_KEEP_MIN}},
                                 .command.flags = KEEPER_UNSYNCED};
        storage.len = 0;
        if (workspace.len == 0)
            return 0; /* nobody can name it */
        if (buffer_append(&storage, workspace.data, workspace.len) < 0 ||
            buffer_append(&storage, id.data, id.len) < 0)
            return -ENOMEM;
        info->workspace = bytes_of(storage.data, workspace.len);
        info->id = bytes_of(storage.data + workspace.len, id.len);
    } else if (info->verdict == WIRE_VERDICT_RUNNING) {
        why = "the process that kept it, or the machine, ended while it ran";
    }
    if (why) {
        info->verdict = WIRE_VERDICT_UNKNOWN;
        info->pid = 0;
        info->text = bytes_of_string(why);
    }
    struct kept *c;
    r = kept_restore(k, &storage, &record, &c);
    if (r < 0)
        return r;
    if (why)
        kept_save(c);
    /* The wall clock may have been set meanwhile: then it is kept for as long as one that ends now.
     */
    struct timespec now;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    int64_t age = now.tv_sec - info->started_at.sec - (int64_t)(info->duration_ns / NSEC_PER_SEC);
    uint64_t monotonic = clock_monotonic_ns();
    uint64_t age_ns = age > 0 ? (uint64_t)age * NSEC_PER_SEC : 0;
    c->ended_ns = why || age_ns > monotonic ? monotonic : monotonic - age_ns;
    if (k->last_serial < c->record.command.serial)
        k->last_serial = c->record.command.serial;
    return 0;
}

static void on_restore(void *context, struct bytes workspace, struct bytes id, int directory)
{
    struct restoring *restoring = context;
    int r = restore_one(restoring->keeper, workspace, id, directory);
    if (r < 0)
        restoring->error = r;
}

static int compare_serials(const void *a, const void *b)
{
    const struct kept *const *left = a;
    const struct kept *const *right = b;
    uint64_t x = (*left)->record.command.serial;
    uint64_t y = (*right)->record.command.serial;
    return (x > y) - (x < y);
}

/* Directories come in no order. */
static int sort_all(struct keeper *k)
{
    size_t n = 0;
    struct kept *c;
    if (k->ended_count == 0)
        return 0;
    _cleanup_free_ struct kept **sorted = reallocarray(NULL, k->ended_count, sizeof(struct kept *));
    if (!sorted)
        return -ENOMEM;
    TAILQ_FOREACH(c, &k->all, entry) sorted[n++] = c;
    qsort(sorted, n, sizeof *sorted, compare_serials);
    TAILQ_INIT(&k->all);
    TAILQ_INIT(&k->ended);
    for (size_t i = 0; i < n; i++) {
        TAILQ_INSERT_TAIL(&k->all, sorted[i], entry);
        TAILQ_INSERT_TAIL(&k->ended, sorted[i], ended_entry);
    }
    return 0;
}

static int restore_all(struct keeper *k)
{
    struct restoring restoring = {.keeper = k};
    int r = record_each(k->exec, on_restore, &restoring);
    if (r == 0)
        r = restoring.error;
    return r < 0 ? r : sort_all(k);
}

/* --- the keeper ------------------------------------------------------------------------------ */

static void tell_confinement(const struct keeper *k)
{
    json_t *object = json_object();
    int r = object ? confinement_status(k->confinement, object) : -ENOMEM;
    if (r == 0)
        r = json_file_write(k->exec, KEEPER_CONFINEMENT, object);
    if (r < 0)
        log_warning(KEEPER_CONFINEMENT ": %s", strerror(-r));
    json_decref(object);
}

static int keeper_begin(struct keeper *k, const struct keeper_options *options)
{
    const struct timeval tick = {.tv_sec = TICK_S};
    int r = request_user_read(&k->user);
    if (r == 0)
        r = supervisor_new(k->base, k->exec, &k->limits, &k->proxies);
    if (r < 0)
        return r;
    const struct confinement_egress egress = proxy_for(k->proxies);
    const struct confinement_options confinement = {
        .name = options->name, .cgroup_parent = options->cgroup_parent, .egress = &egress};
    r = confinement_new(&confinement, &k->confinement);
    if (r == 0)
        r = clear_new(k);
    if (r == 0)
        r = syncer_new(k->base, &k->syncer);
    if (r < 0)
        return r;
    tell_confinement(k);
    k->look = evtimer_new(k->base, on_look, k);
    k->soon = evtimer_new(k->base, on_soon, k);
    k->tick = event_new(k->base, -1, EV_PERSIST, on_tick, k);
    if (!k->look || !k->soon || !k->tick || event_add(k->tick, &tick) < 0)
        return -ENOMEM;
    return restore_all(k);
}

int keeper_new(struct event_base *base, const struct keeper_options *options, struct keeper **ret,
               struct failure *ret_failure)
{
    struct keeper *k = calloc(1, sizeof *k);
    if (!k)
        return failure_set(ret_failure, -ENOMEM, "out of memory");
    k->base = base;
    k->exec = options->exec;
    k->limits = *options->limits;
    expired_open(k->exec, &k->expired);
    k->keep_ns = options->keep_s * NSEC_PER_SEC;
    k->untidy = true;
    TAILQ_INIT(&k->all);
    TAILQ_INIT(&k->ended);
    TAILQ_INIT(&k->fresh);
    TAILQ_INIT(&k->peers);
    TAILQ_INIT(&k->clearings);
    TAILQ_INIT(&k->freezes);
    k->workspaces = openat(options->root, "workspaces", O_PATH | O_DIRECTORY | O_CLOEXEC);
    int r = k->workspaces < 0 ? -errno : keeper_begin(k, options);
    if (r < 0) {
        keeper_free(k);
        return failure_set(ret_failure, r, "commands cannot be kept: %s", strerror(-r));
    }
    k->idle = options->idle;
    k->context = options->context;
    *ret = k;
    return 0;
}

/* One that has not ended by then, with what is known. */
static void end_at_once(struct kept *c)
{
    struct wire_exec_command *i = &c->record.command;
    i->removed = (uint32_t)kept_processes(c);
    command_free(take_ptr(c->command));
    i->verdict = WIRE_VERDICT_KILLED;
    i->signal = SIGKILL;
    (void)snprintf(c->text, sizeof c->text, STOPPED);
    i->text = bytes_of_string(c->text);
    i->duration_ns = clock_monotonic_ns() - c->started_ns;
    for (size_t n = 0; n < ARRAY_SIZE(c->spools); n++)
        c->record.spools[n] = spool_geometry(c->spools[n]);
    i->stdout_bytes = c->record.spools[0].end;
    i->stderr_bytes = c->record.spools[1].end;
    i->stdout_dropped = spool_dropped(c->spools[0]);
    i->stderr_dropped = spool_dropped(c->spools[1]);
    kept_save(c);
}

static bool has_told_all(const struct keeper *k)
{
    const struct peer *p;
    TAILQ_FOREACH(p, &k->peers, entry)
    {
        if (!TAILQ_EMPTY(&p->followers) || link_is_busy(p->link))
            return false;
    }
    return k->running == 0;
}

static void on_stop(evutil_socket_t fd, short what, void *context)
{
    const struct timeval time = {.tv_usec = STOP_LOOK_MS * 1000};
    struct keeper *k = context;
    if (has_told_all(k) || clock_monotonic_ns() >= k->stop_latest_ns)
        (void)event_base_loopbreak(k->base);
    else
        (void)event_add(k->stop, &time);
}

void keeper_stop(struct keeper *k)
{
    struct kept *c, *next;
    if (!k->stop)
        k->stop = evtimer_new(k->base, on_stop, k);
    if (!k->stop) {
        (void)event_base_loopbreak(k->base);
        return;
    }
    k->stop_latest_ns = clock_monotonic_ns() + STOP_PATIENCE_MS * NSEC_PER_MSEC;
    for (c = TAILQ_FIRST(&k->all); c; c = next) {
        next = TAILQ_NEXT(c, entry);
        struct killer *killer = c->state != KEPT_ENDED ? calloc(1, sizeof *killer) : NULL;
        if (killer && kept_kill(c, STOPPED, 0, killer) < 0)
            free(killer);
    }
    on_stop(-1, 0, k);
}

void keeper_free(struct keeper *k)
{
    struct peer *p;
    struct kept *c;
    k->idle = NULL;
    while ((p = TAILQ_FIRST(&k->peers)))
        peer_free(p);
    while ((c = TAILQ_FIRST(&k->all))) {
        if (c->state != KEPT_ENDED)
            end_at_once(c);
        kept_free(c, false);
    }
    clear_free_all(k);
    syncer_free(k->syncer);
    table_release(&k->commands);
    expired_release(&k->expired);
    request_user_release(&k->user);
    if (k->look)
        event_free(k->look);
    if (k->soon)
        event_free(k->soon);
    if (k->tick)
        event_free(k->tick);
    if (k->stop)
        event_free(k->stop);
    confinement_free(k->confinement);
    supervisor_free(k->proxies);
    close_fd(&k->workspaces);
    free(k);
}

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "keeper/place.h"

/* Bytes of a command's arguments that are kept to be shown. */
#define WORDS_MAX ((size_t)1024)

static const char *const spool_names[2] = {RECORD_STDOUT, RECORD_STDERR};

struct wire_exec_exit kept_exit(const struct kept *c)
{
    const struct wire_exec_command *i = &c->record.command;
    return (struct wire_exec_exit){
        .verdict = i->verdict,
        .code = i->code,
        .signal = i->signal,
        .core = i->core,
        .stage = i->stage,
        .error = i->error,
        .removed = i->removed,
        .left = i->left,
        .means = i->means,
        .stdout_bytes = i->stdout_bytes,
        .stderr_bytes = i->stderr_bytes,
        .stdout_dropped = i->stdout_dropped,
        .stderr_dropped = i->stderr_dropped,
        .duration_ns = i->duration_ns,
        .timeout_ms = i->timeout_ms,
        .coherence = i->flags & KEEPER_UNSYNCED ? WIRE_COHERENCE_UNKNOWN : WIRE_COHERENCE_SEEN,
        .text = i->text,
    };
}

/* --- directory and spools -------------------------------------------------------------------- */

int kept_open(struct kept *c)
{
    if (c->spools[0])
        return 0;
    const struct wire_exec_command *info = &c->record.command;
    int r = record_open_directory(c->keeper->exec, info->workspace, info->id, &c->directory);
    for (size_t i = 0; r == 0 && i < ARRAY_SIZE(c->spools); i++)
        r = spool_open(c->directory, spool_names[i], &c->record.spools[i], &c->spools[i]);
    if (r < 0) {
        kept_rest(c);
        return r;
    }
    /* Without what was in memory only. */
    c->record.command.stdout_dropped = spool_dropped(c->spools[0]);
    c->record.command.stderr_dropped = spool_dropped(c->spools[1]);
    return 0;
}

void kept_rest(struct kept *c)
{
    if (c->state != KEPT_ENDED || !TAILQ_EMPTY(&c->followers))
        return;
    for (size_t i = 0; i < ARRAY_SIZE(c->spools); i++) {
        spool_free(c->spools[i]);
        c->spools[i] = NULL;
    }
    close_fd(&c->directory);
}

bool kept_is_claimed(const struct kept *c)
{
    return c->state == KEPT_STARTING && !c->command;
}

bool kept_is_settling(const struct kept *c)
{
    return c->state == KEPT_ENDED && c->sync;
}

static bool is_durable(uint32_t flags)
{
    return flags & (WIRE_EXEC_DURABLE | WIRE_EXEC_DETACH | WIRE_EXEC_KEEP);
}

void kept_save(struct kept *c)
{
    const struct wire_exec_command *info = &c->record.command;
    _cleanup_close_ int opened = -1;
    int r = 0;
    if (c->directory < 0)
        r = record_open_directory(c->keeper->exec, info->workspace, info->id, &opened);
    if (r == 0)
        r = record_write(c->directory < 0 ? opened : c->directory, &c->record);
    if (r < 0 && !c->unsaved)
        log_warning("the verdict of a command cannot be written yet: %s", strerror(-r));
    c->unsaved = r < 0;
}

/* --- its end --------------------------------------------------------------------------------- */

static void take_verdict(struct kept *c, const struct command_verdict *v)
{
    struct wire_exec_command *i = &c->record.command;
    i->verdict = v->verdict;
    i->code = (uint32_t)v->code;
    i->signal = (uint32_t)v->signal;
    i->core = v->core;
    i->stage = v->stage;
    i->error = (uint32_t)-v->error;
    i->removed = v->removed < UINT32_MAX ? (uint32_t)v->removed : UINT32_MAX;
    i->left = v->left < UINT32_MAX ? (uint32_t)v->left : UINT32_MAX;
    i->means = v->means;
    i->duration_ns = v->duration_ns;
    (void)snprintf(c->text, sizeof c->text, "%s", v->text);
    i->text = bytes_of_string(c->text);
}

static void count_output(struct kept *c)
{
    struct wire_exec_command *i = &c->record.command;
    for (size_t n = 0; n < ARRAY_SIZE(c->spools); n++)
        if (c->spools[n])
            c->record.spools[n] = spool_geometry(c->spools[n]);
    i->stdout_bytes = c->record.spools[0].end;
    i->stderr_bytes = c->record.spools[1].end;
    i->stdout_dropped = c->spools[0] ? spool_dropped(c->spools[0]) : 0;
    i->stderr_dropped = c->spools[1] ? spool_dropped(c->spools[1]) : 0;
}

static void list_as_ended(struct kept *c)
{
    struct keeper *k = c->keeper;
    TAILQ_INSERT_TAIL(&k->ended, c, ended_entry);
    k->ended_count++;
    for (size_t i = 0; i < ARRAY_SIZE(c->record.spools); i++) {
        const struct spool_geometry *g = &c->record.spools[i];
        k->ended_bytes += g->end < g->keep ? g->end : g->keep;
    }
}

static void unlist(struct kept *c)
{
    struct keeper *k = c->keeper;
    TAILQ_REMOVE(&k->ended, c, ended_entry);
    k->ended_count--;
    for (size_t i = 0; i < ARRAY_SIZE(c->record.spools); i++) {
        const struct spool_geometry *g = &c->record.spools[i];
        k->ended_bytes -= g->end < g->keep ? g->end : g->keep;
    }
}

static void answer_killers(struct kept *c, uint32_t removed, uint32_t left, uint32_t means,
                           struct bytes text)
{
    const struct wire_message m = {
        .type = WIRE_EXEC_KILLED,
        .exec_killed = {.removed = removed, .left = left, .means = means, .text = text}};
    struct killer *killer;
    while ((killer = TAILQ_FIRST(&c->killers))) {
        TAILQ_REMOVE(&c->killers, killer, entry);
        if (killer->peer)
            peer_send(killer->peer, killer->tag, &m);
        free(killer);
    }
}

static void kept_tell(struct kept *c)
{
    struct keeper *k = c->keeper;
    const struct wire_exec_command *info = &c->record.command;
    answer_killers(c, info->removed, info->left, info->means, info->text);
    followers_pump(c);
    kept_rest(c);
    /* Nobody can ask for it; what was made for it may take a moment to end. */
    c->forgotten = c->forgotten || (c->nameless && !c->ran);
    if (c->forgotten && !c->fresh && !c->command && TAILQ_EMPTY(&c->followers))
        kept_free(c, true);
    keeper_changed(k);
}

static void on_verdict_synced(void *context, int error)
{
    struct kept *c = context;
    c->sync = NULL;
    if (error < 0)
        log_warning("the verdict of a command cannot be forced to the disk: %s", strerror(-error));
    kept_tell(c);
}

/* The verdict is written before anybody is told, and on the disk where that was asked for. */
static void kept_end(struct kept *c, const struct command_verdict *verdict)
{
    struct keeper *k = c->keeper;
    take_verdict(c, verdict);
    if (verdict->stage == WIRE_STAGE_ATTEST && verdict->error == -EPERM)
        place_fence(k, c->record.command.workspace, verdict->text);
    count_output(c);
    c->state = KEPT_ENDED;
    c->held = false;
    c->ended_ns = clock_monotonic_ns();
    k->running--;
    list_as_ended(c);
    if (c->linger)
        event_free(take_ptr(c->linger));
    kept_save(c);
    k->left += c->command != NULL;
    /* Behind what is sent now: nobody waits for what is cleared away. */
    TAILQ_INSERT_TAIL(&k->fresh, c, fresh_entry);
    c->fresh = true;
    if (!c->ran || c->unsaved || !is_durable(c->record.command.flags) ||
        syncer_add(k->syncer, c->directory, on_verdict_synced, c, &c->sync) < 0)
        kept_tell(c);
    else
        followers_pump(c);
    event_active(k->soon, EV_TIMEOUT, 0);
}

/* --- from the command ------------------------------------------------------------------------ */

static void on_started(void *context, pid_t pid)
{
    struct kept *c = context;
    c->state = KEPT_RUNNING;
    c->ran = true;
    c->record.command.pid = (uint64_t)pid;
    followers_pump(c);
}

/* As much as those take who hold it. */
static size_t on_room(void *context, uint32_t stream)
{
    const struct kept *c = context;
    size_t i = stream - 1;
    uint64_t room = c->held ? spool_room(c->spools[i], c->hold[i]) : UINT64_MAX;
    const struct follower *f;
    TAILQ_FOREACH(f, &c->followers, entry)
    {
        uint64_t one = f->flags & WIRE_ATTACH_HOLD ? spool_room(c->spools[i], f->at[i]) : room;
        room = one < room ? one : room;
    }
    return room < SIZE_MAX ? (size_t)room : SIZE_MAX;
}

static void on_output(void *context, uint32_t stream, uint64_t offset, struct bytes data)
{
    struct kept *c = context;
    spool_append(c->spools[stream - 1], data);
    followers_pump(c);
}

static void on_input_taken(void *context, size_t bytes)
{
    struct kept *c = context;
    size_t owed = bytes < c->input_debt ? bytes : (size_t)c->input_debt;
    c->input_taken += bytes;
    c->input_debt -= owed;
    if (!c->input || bytes == owed)
        return;
    (void)session_grant(link_session(c->input->peer->link), c->input->tag, bytes - owed);
    link_flush(c->input->peer->link);
}

static void on_ended(void *context, const struct command_verdict *verdict)
{
    kept_end(context, verdict);
}

/* --- holders --------------------------------------------------------------------------------- */

static void on_lingered(evutil_socket_t fd, short what, void *context)
{
    struct kept *c = context;
    c->held = false;
    command_terminate(c->command, WIRE_VERDICT_KILLED, "nobody is attached to it any more");
    command_resume(c->command);
}

void kept_holders_changed(struct kept *c, const struct follower *gone)
{
    const struct follower *f;
    if (c->state == KEPT_ENDED || kept_is_claimed(c))
        return;
    TAILQ_FOREACH(f, &c->followers, entry)
    {
        if (f->flags & WIRE_ATTACH_HOLD)
            break;
    }
    c->held = false;
    if (f) {
        (void)event_del(c->linger);
    } else if (!(c->record.command.flags & (WIRE_EXEC_KEEP | WIRE_EXEC_DETACH))) {
        bool soon = gone && gone->left && c->linger_ms > KEEPER_LINGER_MS;
        uint64_t ms = soon ? KEEPER_LINGER_MS : c->linger_ms;
        const struct timeval time = {.tv_sec = (time_t)(ms / 1000),
                                     .tv_usec = (suseconds_t)(ms % 1000 * 1000)};
        (void)event_add(c->linger, &time);
        c->held = gone != NULL;
        for (size_t i = 0; gone && i < ARRAY_SIZE(c->hold); i++)
            c->hold[i] = gone->at[i];
    }
    if (c->command)
        command_resume(c->command);
}

/* --- killing --------------------------------------------------------------------------------- */

size_t kept_processes(struct kept *c)
{
    return c->command ? command_processes(c->command) : 0;
}

bool kept_look(struct kept *c)
{
    if (!c->command || !kill_set_is_empty(command_kill_set(c->command)))
        return !c->command;
    if (c->termination) /* it looks by itself, and then has a receipt */
        return false;
    command_free(take_ptr(c->command));
    c->keeper->left--;
    keeper_changed(c->keeper);
    return true;
}

static void on_left_killed(void *context, const struct kill_receipt *receipt)
{
    struct kept *c = context;
    const char *text = receipt->means == WIRE_MEANS_TREE
                           ? "processes that left the command's tree may have escaped"
                           : "";
    answer_killers(c, (uint32_t)receipt->removed, (uint32_t)receipt->left, receipt->means,
                   bytes_of_string(text));
    termination_free(take_ptr(c->termination));
}

int kept_kill(struct kept *c, const char *by, uint64_t grace_ms, struct killer *killer)
{
    int r = 0;
    if (c->state == KEPT_ENDED && kept_look(c))
        return -ESRCH;
    if (kept_is_claimed(c)) {
        c->unwanted = true;
        (void)snprintf(c->text, sizeof c->text, "%s", by);
        TAILQ_INSERT_TAIL(&c->killers, killer, entry);
        return 0;
    }
    if (grace_ms == 0) {
        /* Seen first, for the receipt; and nothing may end by TERM that was to be killed. */
        (void)command_processes(c->command);
        kill_set_kill(command_kill_set(c->command));
    }
    if (c->state != KEPT_ENDED)
        command_terminate_within(c->command, grace_ms, WIRE_VERDICT_KILLED, by);
    else if (!c->termination)
        r = termination_start(c->keeper->base, command_kill_set(c->command), grace_ms,
                              on_left_killed, c, &c->termination);
    if (r == 0)
        TAILQ_INSERT_TAIL(&c->killers, killer, entry);
    return r;
}

/* --- birth and death ------------------------------------------------------------------------- */

uint64_t kept_hash(struct bytes workspace, struct bytes id)
{
    uint64_t hash = hash_bytes(HASH_START, workspace.data, workspace.len);
    return hash_end(hash_bytes(hash_bytes(hash, "", 1), id.data, id.len));
}

static struct kept *kept_make(struct keeper *k)
{
    struct kept *c = calloc(1, sizeof *c);
    if (!c)
        return NULL;
    c->keeper = k;
    c->directory = -1;
    TAILQ_INIT(&c->followers);
    TAILQ_INIT(&c->killers);
    return c;
}

static int kept_list(struct kept *c)
{
    struct keeper *k = c->keeper;
    void *old;
    c->hash = kept_hash(c->record.command.workspace, c->record.command.id);
    int r = table_put(&k->commands, c->hash, c, &old);
    if (r < 0)
        return r;
    c->same = old;
    TAILQ_INSERT_TAIL(&k->all, c, entry);
    return 0;
}

static void kept_unlist(struct kept *c)
{
    struct keeper *k = c->keeper;
    struct kept *first = table_take(&k->commands, c->hash);
    if (first == c)
        first = c->same;
    for (struct kept *other = first; other; other = other->same)
        if (other->same == c)
            other->same = c->same;
    if (first)
        (void)table_put(&k->commands, c->hash, first, NULL); /* the slot is free again */
    TAILQ_REMOVE(&k->all, c, entry);
}

static void kept_release(struct kept *c)
{
    for (size_t i = 0; i < ARRAY_SIZE(c->spools); i++)
        spool_free(c->spools[i]);
    if (c->linger)
        event_free(c->linger);
    close_fd(&c->directory);
    buffer_release(&c->storage);
    buffer_release(&c->request);
    free(c->path);
    free(c);
}

static void remove_directory(struct keeper *k, struct bytes workspace, struct bytes id)
{
    record_remove_directory(k->exec, workspace, id);
    k->untidy = true;
}

void kept_free(struct kept *c, bool remove)
{
    struct killer *killer;
    termination_free(c->termination);
    if (c->sync)
        sync_job_abandon(c->sync);
    if (c->command && c->state == KEPT_ENDED)
        c->keeper->left--;
    command_free(take_ptr(c->command));
    if (c->fresh)
        TAILQ_REMOVE(&c->keeper->fresh, c, fresh_entry);
    if (c->state == KEPT_ENDED)
        unlist(c);
    else
        c->keeper->running--;
    while ((killer = TAILQ_FIRST(&c->killers))) {
        TAILQ_REMOVE(&c->killers, killer, entry);
        free(killer);
    }
    kept_unlist(c);
    if (remove)
        remove_directory(c->keeper, c->record.command.workspace, c->record.command.id);
    kept_release(c);
}

/* Copies what the record's views point to into storage, so that they stay. */
static int keep_views(struct kept *c, const struct wire_exec *exec, struct bytes id)
{
    struct wire_exec_command *i = &c->record.command;
    struct buffer *b = &c->storage;
    if (buffer_append(b, exec->workspace.data, exec->workspace.len) < 0 ||
        buffer_append(b, id.data, id.len) < 0)
        return -ENOMEM;
    struct bytes word;
    for (uint32_t at = 0; wire_list_next(&exec->argv, &at, &word);)
        if (b->len < exec->workspace.len + id.len + WORDS_MAX &&
            (buffer_append(b, word.data, word.len < WORDS_MAX ? word.len : WORDS_MAX) < 0 ||
             buffer_append_u8(b, 0) < 0))
            return -ENOMEM;
    size_t words = b->len - exec->workspace.len - id.len;
    i->workspace = bytes_of(b->data, exec->workspace.len);
    i->id = bytes_of(b->data + exec->workspace.len, id.len);
    i->argv =
        bytes_of(b->data + exec->workspace.len + id.len, words < WORDS_MAX ? words : WORDS_MAX);
    return 0;
}

static struct wire_time wall_clock(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    return (struct wire_time){.sec = now.tv_sec, .nsec = (uint32_t)now.tv_nsec};
}

/* Zero is no limit. */
static uint64_t lower(uint64_t a, uint64_t b)
{
    return a == 0 || (b != 0 && b < a) ? b : a;
}

static int kept_run_in(struct kept *c, const struct wire_exec *exec, struct place *place,
                       struct command_verdict *refusal)
{
    struct keeper *k = c->keeper;
    const struct policy *policy = cell_policy(place->cell);
    _cleanup_request_ struct request request = {0};
    int r = place_choose_path(k, exec, place, refusal);
    if (r < 0)
        return r;
    const struct request_place seen = {.private = cell_private(place->cell),
                                       .home = cell_home(place->cell),
                                       .proxy_port = cell_proxy_port(place->cell),
                                       .path = place->chosen ? place->path : NULL};
    r = request_parse(&k->user, &seen, exec, &request, refusal);
    if (r < 0)
        return r;
    c->path = take_ptr(place->path);
    memcpy(c->path_text, place->path_text, sizeof c->path_text);
    uint64_t timeout_ms = lower(exec->timeout_ms, policy->wall_time_ms);
    c->record.command.timeout_ms = timeout_ms;
    const struct command_options options = {
        .programs = request.programs.items,
        .argv = request.argv.items,
        .envp = request.environment.items,
        .root = place->tree,
        .cwd = request.directory,
        .flags = exec->flags,
        .rows = exec->rows,
        .columns = exec->columns,
        .timeout_ms = timeout_ms,
        .timeout_text = timeout_ms == exec->timeout_ms
                            ? NULL
                            : "the limit of the workspace's policy (limits.wall_time)",
        .together = {.memory_bytes = lower(exec->memory_max, policy->memory_bytes),
                     .processes = lower(exec->processes_max, policy->pids),
                     .cpu_percent = policy->cpu_percent},
        .limits = &k->limits,
        .confinement = k->confinement,
        .cell = place->cell,
        .view = place->view,
        .root_path = place->chosen ? c->path : NULL,
    };
    const struct command_events events = {
        .started = on_started,
        .room = on_room,
        .output = on_output,
        .input_taken = on_input_taken,
        .ended = on_ended,
        .context = c,
    };
    return command_start(k->base, &options, &events, &c->command, refusal);
}

static int kept_run(struct kept *c, const struct wire_exec *exec, struct command_verdict *refusal)
{
    struct place place = PLACE_NONE;
    int r = place_find(c->keeper, exec->workspace, &place, refusal);
    if (r == 0)
        r = kept_run_in(c, exec, &place, refusal);
    place_release(c->keeper, &place);
    return r;
}

/* Everything on the disk that tells of the command before it is there. */
static int kept_prepare(struct kept *c, const struct wire_exec *exec, struct bytes id)
{
    struct keeper *k = c->keeper;
    struct wire_exec_command *info = &c->record.command;
    uint64_t keep = exec->max_output ? exec->max_output : SPOOL_KEEP_DEFAULT;
    c->record.slot = exec->workspace_flags;
    c->record.words = request_words(exec);
    *info = (struct wire_exec_command){.serial = k->last_serial + 1,
                                       .flags = exec->flags,
                                       .started_at = wall_clock(),
                                       .verdict = WIRE_VERDICT_RUNNING,
                                       .timeout_ms = exec->timeout_ms};
    int r = keep_views(c, exec, id);
    if (r < 0)
        return r;
    c->linger = evtimer_new(k->base, on_lingered, c);
    if (!c->linger)
        return -ENOMEM;
    c->linger_ms = exec->linger_ms ? exec->linger_ms : KEEPER_LINGER_MS;
    r = record_make_directory(k->exec, info->workspace, id, &c->directory);
    for (size_t i = 0; r == 0 && i < ARRAY_SIZE(c->spools); i++) {
        r = spool_new(c->directory, spool_names[i], keep, &c->spools[i]);
        if (r == 0)
            c->record.spools[i] = spool_geometry(c->spools[i]);
    }
    return r < 0 ? r : record_write(c->directory, &c->record);
}

/* It is known on the disk that the ID is taken; or cannot be. */
static void on_claimed(void *context, int error)
{
    struct kept *c = context;
    struct command_verdict refusal;
    struct wire_message m;
    c->sync = NULL;
    if (c->unwanted) {
        command_verdict_not_started(&refusal, WIRE_STAGE_REQUEST, -ECANCELED,
                                    "killed before it started, %.900s", c->text);
        kept_end(c, &refusal);
        return;
    }
    int r = error < 0 ? error : wire_decode(WIRE_EXEC, buffer_view(&c->request), &m);
    if (r < 0)
        command_verdict_not_started(&refusal, WIRE_STAGE_REQUEST, r,
                                    "it cannot be put on record: %s", strerror(-r));
    c->started_ns = clock_monotonic_ns();
    if (r == 0)
        r = kept_run(c, &m.exec, &refusal);
    buffer_release(&c->request);
    if (r < 0) {
        c->forgotten = true;
        kept_end(c, &refusal);
        return;
    }
    kept_holders_changed(c, NULL);
    followers_begin(c);
}

/* Those that somebody will ask for by their ID are started when a crash of the machine does not let
 * it be taken again. */
static int kept_begin(struct kept *c, const struct wire_exec *exec, struct command_verdict *refusal)
{
    const struct wire_message m = {.type = WIRE_EXEC, .exec = *exec};
    c->started_ns = clock_monotonic_ns();
    if (!is_durable(exec->flags))
        return kept_run(c, exec, refusal);
    int r = wire_encode(&c->request, &m);
    if (r == 0)
        r = syncer_add(c->keeper->syncer, c->directory, on_claimed, c, &c->sync);
    if (r < 0)
        command_verdict_not_started(refusal, WIRE_STAGE_REQUEST, r,
                                    "it cannot be put on record: %s", strerror(-r));
    return r;
}

int kept_start(struct keeper *k, const struct wire_exec *exec, struct bytes id, struct kept **ret,
               struct command_verdict *refusal)
{
    struct kept *c = kept_make(k);
    int r = c ? kept_prepare(c, exec, id) : -ENOMEM;
    if (r < 0) {
        command_verdict_not_started(refusal, WIRE_STAGE_REQUEST, r,
                                    "it cannot be put on record: %s", strerror(-r));
    } else {
        r = kept_begin(c, exec, refusal);
        if (r == 0)
            r = kept_list(c);
        if (r == -ENOMEM && (c->command || c->sync))
            command_verdict_not_started(refusal, WIRE_STAGE_REQUEST, r, "%s", strerror(-r));
    }
    if (r < 0) {
        if (c) {
            command_free(c->command);
            if (c->sync)
                sync_job_abandon(c->sync);
            if (c->directory >= 0)
                remove_directory(k, exec->workspace, id);
            kept_release(c);
        }
        return r;
    }
    k->last_serial++;
    k->running++;
    *ret = c;
    return 0;
}

int kept_restore(struct keeper *k, struct buffer *storage, const struct record *record,
                 struct kept **ret)
{
    struct kept *c = kept_make(k);
    if (!c)
        return -ENOMEM;
    c->record = *record;
    struct wire_exec_command *info = &c->record.command;
    (void)snprintf(c->text, sizeof c->text, "%.*s", (int)info->text.len,
                   (const char *)info->text.data);
    info->text = bytes_of_string(c->text);
    c->state = KEPT_ENDED;
    c->ran = info->verdict != WIRE_VERDICT_NOT_STARTED;
    int r = kept_list(c);
    if (r < 0) {
        kept_release(c);
        return r;
    }
    c->storage = *storage;
    *storage = (struct buffer){0};
    list_as_ended(c);
    *ret = c;
    return 0;
}

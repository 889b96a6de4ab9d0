#include "exec/exec_service.h"

#include <pwd.h>
#include <signal.h>
#include <string.h>

#include "base/log.h"
#include "confine/confinement.h"
#include "exec/command.h"
#include "exec/environment.h"
#include "names/thread_id.h"

/* Commands at a time: stops one client from using up the machine's processes and our
 * descriptors (up to five each) for all others. */
#define EXEC_RUNNING_MAX 512

/* How often those that have ended are looked at again, whose leader has left something behind. */
#define LEFT_LOOK_MS 200

/* Where a command sees its workspace. */
#define WORKSPACE_PATH "/workspace"

#define EXEC_FLAGS_KNOWN (WIRE_EXEC_STDIN | WIRE_EXEC_MERGE | WIRE_EXEC_PTY)

/* A user database entry without a usable home. */
#define HOME_FALLBACK "/"

struct exec {
    struct exec_service *service;
    struct exec *next;
    struct exec *previous;
    struct call *call; /* NULL when the client is gone */
    struct command *command;
    struct workspace *workspace;
    uint8_t id[WIRE_EXEC_ID_MAX];
    size_t id_len;
    bool synced; /* see exec_service_start */
    uint64_t input_received;
    const struct command_verdict *verdict; /* the command's, once it has ended */
    struct barrier *barrier;
    bool left; /* it has ended and been answered, and what its leader left behind goes on */
};

struct exec_service {
    struct event_base *base;
    struct store *store;
    struct subscribers *subscribers; /* NULL: nobody is waited for */
    struct confinement *confinement;
    struct event *look; /* at those that are `left` */
    struct spawn_limits limits;
    char *user;
    char *home;
    struct exec *running; /* and those that are left */
    size_t running_count;
    size_t left_count;
    uint64_t started;
    uint64_t refused;
};

static void reply_verdict(struct call *call, const struct command_verdict *v, uint64_t seq,
                          enum wire_coherence coherence)
{
    const struct wire_message message = {
        .type = WIRE_EXEC_EXIT,
        .exec_exit =
            {
                .verdict = v->verdict,
                .code = (uint32_t)v->code,
                .signal = (uint32_t)v->signal,
                .core = v->core,
                .stage = v->stage,
                .error = (uint32_t)-v->error,
                .removed = v->removed < UINT32_MAX ? (uint32_t)v->removed : UINT32_MAX,
                .left = v->left < UINT32_MAX ? (uint32_t)v->left : UINT32_MAX,
                .means = v->means,
                .stdout_bytes = v->stdout_bytes,
                .stderr_bytes = v->stderr_bytes,
                .duration_ns = v->duration_ns,
                .timeout_ms = v->timeout_ms,
                .fs_seq = seq,
                .coherence = coherence,
                .text = bytes_of_string(v->text),
            },
    };
    call_reply(call, &message);
}

static void exec_free(struct exec *e)
{
    struct exec_service *s = e->service;
    if (e->previous)
        e->previous->next = e->next;
    else
        s->running = e->next;
    if (e->next)
        e->next->previous = e->previous;
    if (e->left)
        s->left_count--;
    else
        s->running_count--;
    if (e->barrier)
        barrier_cancel(e->barrier);
    command_free(e->command);
    workspace_unref(e->workspace);
    free(e);
}

/* --- from the command ------------------------------------------------------------ */

/* Output that the client will not get makes the verdict unknown, never a success. */
static void exec_lost_output(struct exec *e, int error)
{
    char text[128];
    (void)snprintf(text, sizeof text, "output was lost: %s", strerror(-error));
    command_discard_output(e->command);
    command_terminate(e->command, WIRE_VERDICT_UNKNOWN, text);
}

static void exec_send(struct exec *e, const struct wire_message *message)
{
    int r = e->call ? call_send(e->call, message) : 0;
    /* Sending may have found the connection dead, and `gone` been called. */
    if (r < 0 && e->call)
        exec_lost_output(e, r);
}

static void on_started(void *context, pid_t pid)
{
    struct exec *e = context;
    e->service->started++;
    const struct wire_message message = {.type = WIRE_EXEC_STARTED,
                                         .exec_started = {
                                             .pid = (uint64_t)pid,
                                             .id = bytes_of(e->id, e->id_len),
                                         }};
    exec_send(e, &message);
}

static size_t on_room(void *context)
{
    const struct exec *e = context;
    size_t credit = e->call ? call_credit(e->call) : 0;
    size_t overhead = session_item_cost(WIRE_EXEC_OUTPUT, 0);
    if (credit <= overhead)
        return 0;
    return credit - overhead < WIRE_CHUNK_MAX ? credit - overhead : WIRE_CHUNK_MAX;
}

static void on_output(void *context, uint32_t stream, uint64_t offset, struct bytes data)
{
    const struct wire_message message = {
        .type = WIRE_EXEC_OUTPUT,
        .exec_output = {.stream = stream, .offset = offset, .data = data}};
    exec_send(context, &message);
}

static void on_input_taken(void *context, size_t bytes)
{
    struct exec *e = context;
    if (e->call)
        (void)call_grant(e->call, bytes);
}

static void look_later(struct exec_service *s)
{
    const struct timeval time = {.tv_usec = LEFT_LOOK_MS * 1000};
    if (s->left_count > 0)
        (void)event_add(s->look, &time);
}

static void on_look(evutil_socket_t fd, short what, void *context)
{
    struct exec_service *s = context;
    struct exec *next;
    for (struct exec *e = s->running; e; e = next) {
        next = e->next;
        if (e->left && kill_set_is_empty(command_kill_set(e->command)))
            exec_free(e);
    }
    confinement_sweep(s->confinement);
    look_later(s);
}

/* Children that it left in the background go on, and stay known as its own. */
static void exec_leave(struct exec *e)
{
    struct exec_service *s = e->service;
    e->left = true;
    s->left_count++;
    s->running_count--;
    look_later(s);
}

static void on_seen(void *context, bool all_seen)
{
    struct exec *e = context;
    struct call *call = take_ptr(e->call);
    e->barrier = NULL;
    /* The verdict lives in the command: first answer, then free. */
    if (call)
        reply_verdict(call, e->verdict, store_change_count(e->service->store),
                      all_seen && e->synced ? WIRE_COHERENCE_SEEN : WIRE_COHERENCE_UNKNOWN);
    if (kill_set_is_empty(command_kill_set(e->command)))
        exec_free(e);
    else
        exec_leave(e);
}

/* Whoever is told that the command has ended must find what it did on every mount. */
static void on_ended(void *context, const struct command_verdict *verdict)
{
    struct exec *e = context;
    struct exec_service *s = e->service;
    e->verdict = verdict;
    if (verdict->verdict == WIRE_VERDICT_NOT_STARTED)
        s->refused++;
    bool detected = store_detect(s->store) == 0;
    store_note_written(s->store);
    if (!s->subscribers) {
        on_seen(e, detected);
        return;
    }
    struct barrier *barrier;
    subscribers_wait(s->subscribers, NULL, on_seen, e, &barrier);
    if (barrier)
        e->barrier = barrier;
}

/* --- from the client ------------------------------------------------------------- */

static void on_input(struct exec *e, const struct wire_exec_input *input)
{
    size_t len = input->data.len;
    if (input->offset != e->input_received) {
        command_terminate(e->command, WIRE_VERDICT_KILLED,
                          "the client sent input with a gap or an overlap");
        return;
    }
    e->input_received += len;
    int r = command_input(e->command, input->data, input->end != 0);
    if (r == -ENOMEM)
        command_terminate(e->command, WIRE_VERDICT_KILLED, "no memory for its input");
    /* The message's own bytes need no room; those that nobody reads are taken at once. */
    size_t free_now = session_item_cost(WIRE_EXEC_INPUT, len) - len + (r < 0 ? len : 0);
    (void)call_grant(e->call, free_now);
}

static void on_message(void *context, const struct wire_message *message)
{
    struct exec *e = context;
    if (message->type == WIRE_EXEC_INPUT)
        on_input(e, &message->exec_input);
    else if (message->type == WIRE_EXEC_SIGNAL)
        (void)command_signal(e->command, message->exec_signal.signal);
    else if (message->type == WIRE_EXEC_RESIZE)
        (void)command_resize(e->command, message->exec_resize.rows, message->exec_resize.columns);
    else if (message->type == WIRE_CANCEL)
        command_terminate(e->command, WIRE_VERDICT_KILLED, "cancelled by the caller");
}

static void on_writable(void *context)
{
    struct exec *e = context;
    command_resume(e->command);
}

static void on_gone(void *context)
{
    struct exec *e = context;
    e->call = NULL;
    command_discard_output(e->command);
    command_terminate(e->command, WIRE_VERDICT_KILLED, "the connection is gone");
}

/* --- starting -------------------------------------------------------------------- */

static bool have_nul(struct bytes b)
{
    return b.len > 0 && memchr(b.data, 0, b.len);
}

/* What follows prefix in path, when path is prefix or something under it. */
static bool strip_prefix(struct bytes path, struct bytes prefix, struct bytes *ret)
{
    while (prefix.len > 0 && prefix.data[prefix.len - 1] == '/')
        prefix.len--;
    if (prefix.len == 0 || path.len < prefix.len || memcmp(path.data, prefix.data, prefix.len) != 0)
        return false;
    struct bytes rest = bytes_of(path.data + prefix.len, path.len - prefix.len);
    if (rest.len > 0 && rest.data[0] != '/')
        return false;
    while (rest.len > 0 && rest.data[0] == '/')
        rest = bytes_of(rest.data + 1, rest.len - 1);
    *ret = rest;
    return true;
}

/* The working directory relative to the workspace. Absolute ones are names of the workspace
 * as its commands and its caller know it; there are no others for a working directory. */
static int relative_directory(const struct wire_exec *request, char **ret,
                              struct command_verdict *refusal)
{
    struct bytes cwd = request->cwd;
    if (have_nul(cwd)) {
        command_verdict_not_started(refusal, WIRE_STAGE_REQUEST, -EINVAL,
                                    "working directory: holds a NUL byte");
        return -EINVAL;
    }
    if (cwd.len > 0 && cwd.data[0] == '/' &&
        !strip_prefix(cwd, bytes_of_string(WORKSPACE_PATH), &cwd) &&
        !strip_prefix(cwd, request->mount_path, &cwd)) {
        command_verdict_not_started(
            refusal, WIRE_STAGE_CWD, -ENOENT,
            "%.*s: %s (working directories are relative to the workspace, or under " WORKSPACE_PATH
            ")",
            (int)(cwd.len < 512 ? cwd.len : 512), (const char *)cwd.data, strerror(ENOENT));
        return -ENOENT;
    }
    char *directory = calloc(1, cwd.len + 1);
    if (!directory) {
        command_verdict_not_started(refusal, WIRE_STAGE_REQUEST, -ENOMEM, "%s", strerror(ENOMEM));
        return -ENOMEM;
    }
    if (cwd.len > 0)
        memcpy(directory, cwd.data, cwd.len);
    *ret = directory;
    return 0;
}

static int check_request(const struct exec_service *s, const struct wire_exec *request,
                         struct command_verdict *refusal)
{
    int r = 0;
    const char *text = NULL;
    if (request->flags & (WIRE_EXEC_DETACH | WIRE_EXEC_KEEP)) {
        r = -EOPNOTSUPP;
        text = "commands that outlive their client are not supported by this service";
    } else if (request->flags & ~(uint32_t)EXEC_FLAGS_KNOWN) {
        r = -EINVAL;
        text = "unknown flags";
    } else if (s->running_count >= EXEC_RUNNING_MAX) {
        r = -EAGAIN;
        text = "too many commands are running";
    }
    if (r < 0)
        command_verdict_not_started(refusal, WIRE_STAGE_REQUEST, r, "%s", text);
    return r;
}

/* Two starts with one ID are one command asked for twice: it must not run twice. */
static int check_id(const struct exec_service *s, const struct workspace *workspace,
                    struct bytes id, struct command_verdict *refusal)
{
    if (id.len == 0)
        return 0;
    for (const struct exec *e = s->running; e; e = e->next) {
        if (e->left || !bytes_equal(bytes_of(e->id, e->id_len), id) ||
            !bytes_equal(workspace_thread_id(e->workspace), workspace_thread_id(workspace)))
            continue;
        command_verdict_not_started(refusal, WIRE_STAGE_REQUEST, -EEXIST,
                                    "a command with this ID is running");
        return -EEXIST;
    }
    return 0;
}

static int exec_environment(const struct exec_service *s, const struct wire_exec *request,
                            const struct workspace *workspace, struct strings *ret,
                            struct failure *ret_failure)
{
    char name[THREAD_NAME_MAX + 1];
    struct bytes thread_id = workspace_thread_id(workspace);
    int r = thread_id_to_name(thread_id, name);
    if (r < 0)
        return failure_set(ret_failure, r, "the workspace's thread ID: %s", strerror(-r));
    const struct environment_base base = {
        .user = s->user,
        .home = s->home,
        .thread_id = thread_id,
        .workspace = name,
        .terminal = request->flags & WIRE_EXEC_PTY,
    };
    return environment_build(&base, &request->env, ret, ret_failure);
}

static int exec_run(struct exec *e, const struct wire_exec *request,
                    struct command_verdict *refusal)
{
    struct exec_service *s = e->service;
    _cleanup_strings_ struct strings argv = {0};
    _cleanup_strings_ struct strings environment = {0};
    _cleanup_strings_ struct strings programs = {0};
    _cleanup_free_ char *directory = NULL;
    struct failure failure;
    int r = relative_directory(request, &directory, refusal);
    if (r < 0)
        return r;
    r = environment_arguments(&request->argv, &argv, &failure);
    if (r == 0)
        r = exec_environment(s, request, e->workspace, &environment, &failure);
    if (r < 0) {
        command_verdict_not_started(refusal, WIRE_STAGE_REQUEST, r, "%s", failure.text);
        return r;
    }
    r = environment_programs(argv.items[0], environment_get(&environment, "PATH"), &programs);
    if (r < 0) {
        command_verdict_not_started(refusal, WIRE_STAGE_REQUEST, r, "%s", strerror(-r));
        return r;
    }
    const struct command_options options = {
        .programs = programs.items,
        .argv = argv.items,
        .envp = environment.items,
        .root = workspace_tree_fd(e->workspace),
        .cwd = directory,
        .flags = request->flags,
        .rows = request->rows,
        .columns = request->columns,
        .timeout_ms = request->timeout_ms,
        .limits = &s->limits,
        .confinement = s->confinement,
    };
    const struct command_events events = {
        .started = on_started,
        .room = on_room,
        .output = on_output,
        .input_taken = on_input_taken,
        .ended = on_ended,
        .context = e,
    };
    return command_start(s->base, &options, &events, &e->command, refusal);
}

static int exec_new(struct exec_service *s, struct call *call, const struct wire_exec *request,
                    bool synced, struct command_verdict *refusal)
{
    struct workspace *workspace = NULL;
    int r =
        store_workspace_find(s->store, request->workspace, request->workspace_flags, &workspace);
    if (r < 0) {
        char name[128];
        (void)log_escape(request->workspace.data, request->workspace.len, name, sizeof name);
        command_verdict_not_started(
            refusal, WIRE_STAGE_WORKSPACE, r, "%s: %s", name,
            r == -ENOENT ? "no such workspace; see `berth ls`, or make it with `berth create`"
                         : strerror(-r));
        return r;
    }
    r = check_id(s, workspace, request->id, refusal);
    if (r < 0) {
        workspace_unref(workspace);
        return r;
    }
    struct exec *e = calloc(1, sizeof *e);
    if (!e) {
        workspace_unref(workspace);
        command_verdict_not_started(refusal, WIRE_STAGE_REQUEST, -ENOMEM, "%s", strerror(ENOMEM));
        return -ENOMEM;
    }
    e->service = s;
    e->workspace = workspace;
    e->synced = synced;
    e->id_len = request->id.len < WIRE_EXEC_ID_MAX ? request->id.len : WIRE_EXEC_ID_MAX;
    if (e->id_len > 0)
        memcpy(e->id, request->id.data, e->id_len);
    e->next = s->running;
    if (e->next)
        e->next->previous = e;
    s->running = e;
    s->running_count++;
    r = exec_run(e, request, refusal);
    if (r < 0) {
        exec_free(e);
        return r;
    }
    e->call = call;
    const struct call_events events = {
        .message = on_message, .writable = on_writable, .gone = on_gone, .context = e};
    call_set_events(call, &events);
    return 0;
}

void exec_service_start(struct exec_service *s, struct call *call, const struct wire_exec *request,
                        bool synced)
{
    struct command_verdict refusal;
    int r = check_request(s, request, &refusal);
    if (r == 0)
        r = exec_new(s, call, request, synced, &refusal);
    if (r < 0) {
        refusal.timeout_ms = request->timeout_ms;
        s->refused++;
        reply_verdict(call, &refusal, 0, WIRE_COHERENCE_SEEN);
    }
}

/* --- the service ----------------------------------------------------------------- */

static int new_confinement(struct exec_service *s)
{
    char name[64] = "berth-";
    uint8_t id[16];
    store_service_id(s->store, id);
    for (size_t i = 0; i < sizeof id; i++)
        (void)snprintf(name + strlen(name), 3, "%02x", id[i]);
    const struct confinement_options options = {.name = name};
    return confinement_new(&options, &s->confinement);
}

int exec_service_new(struct event_base *base, struct store *store, struct subscribers *subscribers,
                     struct exec_service **ret)
{
    struct exec_service *s = calloc(1, sizeof *s);
    if (!s)
        return -ENOMEM;
    s->base = base;
    s->store = store;
    s->subscribers = subscribers;
    spawn_limits_read(&s->limits);
    const struct passwd *user = getpwuid(geteuid());
    s->user = user ? strdup(user->pw_name) : NULL;
    s->home = strdup(user && user->pw_dir[0] == '/' ? user->pw_dir : HOME_FALLBACK);
    s->look = evtimer_new(base, on_look, s);
    /* Without a user database entry, as in a minimal container, USER is not set. */
    int r = s->home && s->look && (!user || s->user) ? new_confinement(s) : -ENOMEM;
    if (r < 0) {
        exec_service_free(s);
        return r;
    }
    *ret = s;
    return 0;
}

void exec_service_set_limits(struct exec_service *s, const struct spawn_limits *limits)
{
    s->limits = *limits;
}

void exec_service_free(struct exec_service *s)
{
    if (!s)
        return;
    while (s->running) {
        struct exec *e = s->running;
        struct call *call = take_ptr(e->call);
        const struct command_verdict v = {
            .verdict = WIRE_VERDICT_KILLED,
            .text = "the service is stopping",
            .stdout_bytes = e->command ? command_output_bytes(e->command, 1) : 0,
            .stderr_bytes = e->command ? command_output_bytes(e->command, 2) : 0,
        };
        exec_free(e);
        if (call)
            reply_verdict(call, &v, 0, WIRE_COHERENCE_UNKNOWN);
    }
    if (s->look)
        event_free(s->look);
    confinement_free(s->confinement);
    free(s->user);
    free(s->home);
    free(s);
}

int exec_service_status(struct exec_service *s, json_t *object)
{
    json_t *exec = json_pack("{s:I,s:I,s:I,s:I}", "running", (json_int_t)s->running_count, "left",
                             (json_int_t)s->left_count, "started", (json_int_t)s->started,
                             "refused", (json_int_t)s->refused);
    if (!exec || json_object_set_new(object, "exec", exec) < 0)
        return -ENOMEM;
    return confinement_status(s->confinement, object);
}

#include "cli/exec_run.h"

#include <inttypes.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "cli/exec_hint.h"
#include "cli/exec_request.h"
#include "cli/exec_run_private.h"
#include "cli/text.h"

/* Credit is given back in portions of this size: far below the window, so that the service
 * never waits for it, and far above a line, so that it costs no frame for each. */
#define GRANT_PORTION 16384

/* A loss that is over sooner is not worth a word. */
#define NOTICE_S 1

static void run_message(const struct exec_run *run, struct bytes text)
{
    if (text.len > 0)
        (void)fprintf(stderr, "berth: %.*s%s\n", (int)text.len, (const char *)text.data,
                      run->terminal.raw ? "\r" : "");
}

void exec_run_error(const struct exec_run *run, const char *what, const char *why)
{
    (void)fprintf(stderr, "berth: %s: %s%s\n", what, why, run->terminal.raw ? "\r" : "");
}

static bool streams_idle(const struct exec_run *run)
{
    for (size_t i = 0; i < ARRAY_SIZE(run->streams); i++)
        if (!local_output_idle(run->streams[i].output))
            return false;
    return true;
}

static void run_quit_if_done(struct exec_run *run)
{
    if (run->finished && streams_idle(run))
        (void)event_base_loopbreak(run->base);
}

void exec_run_finish(struct exec_run *run, int status)
{
    if (run->finished)
        return;
    run->finished = true;
    run->status = status;
    run_quit_if_done(run);
}

void exec_run_give_up(struct exec_run *run, const char *why)
{
    exec_run_error(run, "outcome unknown", why);
    exec_run_finish(run, EXEC_STATUS_UNKNOWN);
    (void)event_base_loopbreak(run->base);
}

/* --- output ---------------------------------------------------------------------- */

static void give_back(struct exec_run *run, size_t bytes)
{
    run->owed += bytes;
    if (run->finished || run->owed < GRANT_PORTION)
        return;
    if (run->client)
        (void)client_grant(run->client, run->tag, run->owed);
    run->owed = 0;
}

static void on_written(void *context, size_t bytes)
{
    struct exec_stream *stream = context;
    give_back(stream->run, bytes);
    run_quit_if_done(stream->run);
}

void exec_run_signal(struct exec_run *run, int signal)
{
    const struct wire_message message = {.type = WIRE_EXEC_SIGNAL,
                                         .exec_signal.signal = (uint32_t)signal};
    if (run->finished || !run->options->forwards)
        return;
    if (run->client)
        (void)client_send(run->client, run->tag, &message);
    else
        run->pending_signals |= UINT64_C(1) << signal;
}

/* As if the command had written to our descriptor itself: PIPE when nobody reads any more. */
static void on_broken(void *context, int error)
{
    struct exec_stream *stream = context;
    struct exec_run *run = stream->run;
    if (error == -EPIPE) {
        exec_run_signal(run, SIGPIPE);
        return;
    }
    run->failed = true;
    exec_run_error(run, stream->number == 1 ? "standard output" : "standard error",
                   strerror(-error));
    exec_run_signal(run, SIGTERM);
}

/* What is before the hole and what is behind it do not belong together. */
static void tell_hole(const struct exec_run *run, uint32_t stream, uint64_t bytes)
{
    char text[96];
    if (run->options->json)
        return; /* the object says it */
    (void)snprintf(text, sizeof text, "%" PRIu64 " bytes of standard %s were not kept here", bytes,
                   stream == 1 ? "output" : "error");
    exec_run_error(run, run->cli->command->name, text);
}

static void on_output(struct exec_run *run, const struct wire_exec_output *item)
{
    struct exec_stream *stream =
        item->stream == 1 || item->stream == 2 ? &run->streams[item->stream - 1] : NULL;
    if (stream && stream->anywhere)
        stream->received = item->offset;
    if (!stream || item->offset < stream->received) {
        exec_run_give_up(run, "the service sent output twice");
        return;
    }
    if (event_pending(run->stop, EV_TIMEOUT, NULL) && clock_monotonic_ns() < run->stop_latest_ns)
        exec_signals_stop_soon(run);
    size_t len = item->data.len;
    /* The end of it says whether that is what the service did not keep. */
    if (!stream->anywhere && item->offset > stream->received)
        tell_hole(run, stream->number, item->offset - stream->received);
    stream->anywhere = false;
    stream->missing += item->offset - stream->received;
    stream->received = item->offset + len;
    bool capture = run->options->json;
    int r = capture ? exec_capture_append(&stream->capture, item->data)
                    : local_output_append(stream->output, item->data);
    if (r < 0) {
        exec_run_give_up(run, strerror(-r));
        return;
    }
    size_t cost = session_item_cost(WIRE_EXEC_OUTPUT, len);
    give_back(run, capture ? cost : cost - len);
}

/* --- messages -------------------------------------------------------------------- */

bool exec_run_is_away(const struct exec_run *run)
{
    return !run->client || event_pending(run->patience, EV_TIMEOUT, NULL);
}

/* The service has answered. A connection alone is no such answer: who lends one may have lost
 * theirs. */
static void is_back(struct exec_run *run)
{
    (void)event_del(run->patience);
    (void)event_del(run->notice);
}

static void on_credit(void *context, uint64_t tag)
{
    const struct exec_run *run = context;
    if (run->input)
        exec_input_writable(run->input);
}

/* Without memory it is not told. */
static void keep_text(struct buffer *b, struct bytes text)
{
    b->len = 0;
    if (text.len > 0 && buffer_append(b, text.data, text.len) == 0 && buffer_append_u8(b, 0) < 0)
        b->len = 0;
}

static void on_started(struct exec_run *run, const struct wire_exec_started *started)
{
    run->started = true;
    keep_text(&run->path, started->path);
    keep_text(&run->path_text, started->path_text);
    if (run->options->input && !run->options->detach) {
        int r = run->input ? 0 : exec_input_new(run->base, &run->input);
        if (r == 0)
            r = exec_input_connect(run->input, run->client, run->tag, started->input);
        if (r < 0) {
            exec_run_give_up(run,
                             r == -ERANGE ? "input was lost with the connection" : strerror(-r));
            return;
        }
    }
    for (int signal = 1; signal < 64; signal++)
        if (run->pending_signals & (UINT64_C(1) << signal))
            exec_run_signal(run, signal);
    if (started->attached || run->pending_signals)
        exec_signals_send_size(run);
    run->pending_signals = 0;
}

static void on_item(void *context, uint64_t tag, const struct wire_message *item)
{
    struct exec_run *run = context;
    if (run->finished)
        return;
    is_back(run);
    if (item->type == WIRE_EXEC_STARTED)
        on_started(run, &item->exec_started);
    else if (item->type == WIRE_EXEC_OUTPUT)
        on_output(run, &item->exec_output);
}

static json_t *json_of(const struct buffer *text)
{
    return text->len > 0 ? text_json((const char *)text->data) : json_null();
}

static int print_json(struct exec_run *run, const struct wire_exec_exit *verdict, int status)
{
    json_t *object =
        exec_result_json(verdict, status, &run->streams[0].capture, &run->streams[1].capture);
    if (object && (json_object_set_new(object, "id", text_json(run->id)) < 0 ||
                   json_object_set_new(object, "path", json_of(&run->path)) < 0 ||
                   json_object_set_new(object, "path_text", json_of(&run->path_text)) < 0 ||
                   json_object_set_new(object, "connection",
                                       json_pack("{s:s,s:f}", "way", run->way, "setup_ms",
                                                 (double)run->setup_ns / NSEC_PER_MSEC)) < 0)) {
        json_decref(object);
        object = NULL;
    }
    /* As many digits as a double has, and not one of rounding more. */
    _cleanup_free_ char *text =
        object ? json_dumps(object, JSON_COMPACT | JSON_REAL_PRECISION(15)) : NULL;
    json_decref(object);
    int r = text ? local_output_append(run->streams[0].output, bytes_of_string(text)) : -ENOMEM;
    return r < 0 ? r : local_output_append(run->streams[0].output, bytes_of_string("\n"));
}

/* What has been received, and what the service says it does not keep, is all that there was. */
static bool is_complete(const struct exec_stream *stream, uint64_t bytes, uint64_t dropped)
{
    return stream->anywhere || (stream->received == bytes && stream->missing <= dropped);
}

/* Nobody will ask for it again; unless a request that was given up with a connection arrives late,
 * which must find that it has run. */
static void forget(struct exec_run *run)
{
    const struct wire_message message = {
        .type = WIRE_EXEC_FORGET,
        .exec_forget = {.workspace_flags = run->place->by_name ? WIRE_WORKSPACE_BY_NAME : 0,
                        .workspace = bytes_of_string(run->place->workspace),
                        .id = bytes_of_string(run->id)}};
    bool ours = !run->options->id && !run->options->keep && !run->options->detach;
    if (run->client && (run->options->forget || (ours && !run->loss[0])))
        (void)client_send(run->client, 0, &message);
}

/* It was refused before there was anything to keep. */
static bool is_unknown_there(const struct wire_exec_exit *verdict)
{
    return verdict->verdict == WIRE_VERDICT_NOT_STARTED &&
           (verdict->stage == WIRE_STAGE_REQUEST || verdict->stage == WIRE_STAGE_WORKSPACE);
}

static int print_id(struct exec_run *run)
{
    int r = local_output_append(run->streams[0].output, bytes_of_string(run->id));
    return r < 0 ? r : local_output_append(run->streams[0].output, bytes_of_string("\n"));
}

/* Counts come with the verdict: bytes that never came are not a success. */
static bool lacks_output(const struct exec_run *run, const struct wire_exec_exit *verdict)
{
    return run->options->output && !run->options->detach &&
           verdict->verdict != WIRE_VERDICT_RUNNING &&
           !(is_complete(&run->streams[0], verdict->stdout_bytes, verdict->stdout_dropped) &&
             is_complete(&run->streams[1], verdict->stderr_bytes, verdict->stderr_dropped));
}

/* It is left to itself, as was asked for; or was, by who asked for the same before. */
static bool is_left(const struct exec_run *run, const struct wire_exec_exit *verdict)
{
    return run->options->detach && verdict->verdict != WIRE_VERDICT_NOT_STARTED &&
           verdict->verdict != WIRE_VERDICT_UNKNOWN;
}

static void print_verdict(struct exec_run *run, const struct wire_exec_exit *verdict, int status)
{
    bool running = verdict->verdict == WIRE_VERDICT_RUNNING;
    if (is_left(run, verdict) && !running && !run->loss[0])
        (void)fprintf(stderr,
                      "berth: %s has ended, with status %d, and is kept; nothing was started\n",
                      run->id, verdict_status(verdict));
    if (run->options->json) {
        int r = print_json(run, verdict, status);
        if (r < 0) {
            run->failed = true;
            exec_run_error(run, "--json", strerror(-r));
        }
    } else if (is_left(run, verdict)) {
        run->failed = print_id(run) < 0;
    } else if (!running) {
        _cleanup_buffer_ struct buffer text = {0};
        bool absent = verdict->verdict == WIRE_VERDICT_NOT_STARTED &&
                      verdict->stage == WIRE_STAGE_EXECVE && verdict->error == ENOENT;
        int r = exec_result_text(verdict, &text);
        if (r == 0 && absent)
            r = buffer_printf(&text, "%s", exec_hint(run->options));
        if (r == 0 && verdict->stage == WIRE_STAGE_WORKSPACE && verdict->error == ENOENT)
            r = exec_hint_workspace(run->options, &text);
        if (r == 0)
            run_message(run, buffer_view(&text));
    }
}

static void on_verdict(struct exec_run *run, const struct wire_exec_exit *verdict)
{
    bool running = verdict->verdict == WIRE_VERDICT_RUNNING;
    bool lacks = lacks_output(run, verdict);
    int status = lacks                              ? EXEC_STATUS_UNKNOWN
                 : running || is_left(run, verdict) ? 0
                                                    : verdict_status(verdict);
    print_verdict(run, verdict, status);
    if (lacks)
        exec_run_error(run, "outcome unknown", "output is missing");
    else if (!running && !is_unknown_there(verdict))
        forget(run);
    exec_run_finish(run, status);
}

static void on_refusal(struct exec_run *run, int error, const struct wire_error *refusal)
{
    bool started = run->started || run->loss[0];
    struct wire_exec_exit verdict = {.verdict =
                                         started ? WIRE_VERDICT_UNKNOWN : WIRE_VERDICT_NOT_STARTED,
                                     .stage = WIRE_STAGE_REQUEST,
                                     .error = (uint32_t)-error,
                                     .stdout_bytes = run->streams[0].received,
                                     .stderr_bytes = run->streams[1].received,
                                     .text = refusal->text};
    if (run->loss[0] && error == -EOPNOTSUPP)
        verdict.text = bytes_of_string(run->loss);
    else if (verdict.text.len == 0)
        verdict.text = bytes_of_string(strerror(-error));
    on_verdict(run, &verdict);
}

static void ask(struct exec_run *run, bool start);

/* Exactly one of this and on_lost tells the end of a connection: a call that ends with it has no
 * reply. */
static void on_reply(void *context, int error, const struct wire_message *reply)
{
    struct exec_run *run = context;
    if (run->finished || !reply)
        return;
    is_back(run);
    if (error == 0)
        on_verdict(run, &reply->exec_exit);
    else if (error == -ENOENT && run->loss[0] && !run->started && !run->options->attaches &&
             client_peer(run->client)->epoch == run->epoch)
        ask(run, true); /* the request never arrived, at a service that would remember it */
    else
        on_refusal(run, error, &reply->error);
}

/* --- the connection ---------------------------------------------------------------- */

static uint64_t resume_at(const struct exec_stream *stream)
{
    return stream->anywhere ? WIRE_ATTACH_NOW : stream->received;
}

/* Of one that is detached it is asked only whether it has started. */
static uint32_t attach_flags(const struct exec_options *o)
{
    if (o->detach)
        return 0;
    return (o->output ? WIRE_ATTACH_OUTPUT : 0U) | (o->input ? WIRE_ATTACH_INPUT : 0U) |
           (o->follow ? WIRE_ATTACH_FOLLOW : 0U) | (o->forwards ? WIRE_ATTACH_HOLD : 0U);
}

/* start: EXEC; else EXEC_ATTACH from where we are. */
static void ask(struct exec_run *run, bool start)
{
    _cleanup_exec_request_ struct exec_request request = {0};
    const struct exec_options *o = run->options;
    int r = 0;
    if (start)
        r = exec_request_start(o, run->place, run->id, &request);
    else
        exec_request_attach(run->place, run->id, attach_flags(o), resume_at(&run->streams[0]),
                            resume_at(&run->streams[1]), &request);
    const struct client_call call = {.reply = on_reply,
                                     .item = on_item,
                                     .writable = on_credit,
                                     .context = run,
                                     .blocking = true};
    if (r == 0)
        r = client_call(run->client, &request.message, &call, &run->tag);
    if (r < 0) {
        struct wire_error refusal = {
            .text = bytes_of_string(r == -EINVAL ? "an argument, variable or name is too long"
                                                 : strerror(-r))};
        on_refusal(run, r, &refusal);
    }
}

static void on_lost(void *context, int error, const char *reason);

static int take_client(struct exec_run *run, struct client *client)
{
    const struct client_events events = {.lost = on_lost, .context = run};
    int r = client_attach(client, run->base, &events);
    if (r < 0) {
        client_free(client);
        return r;
    }
    run->client = client;
    run->owed = 0;
    return 0;
}

static int connect_again(void *context, struct client **ret, struct failure *ret_failure)
{
    return cli_reach_warm(context, ret, ret_failure);
}

static void on_lost(void *context, int error, const char *reason)
{
    struct exec_run *run = context;
    const struct timeval patience = {.tv_sec = run->options->reattach_s};
    const struct timeval notice = {.tv_sec = NOTICE_S};
    const struct connector_options options = {
        .connect = connect_again, .context = run->cli, .quiet = true, .event_fd = run->event_fd};
    (void)snprintf(run->loss, sizeof run->loss, "the connection was lost: %s", reason);
    client_free(take_ptr(run->client));
    if (run->input)
        exec_input_disconnect(run->input);
    if (run->finished)
        return;
    if (run->options->reattach_s == 0) {
        exec_run_give_up(run, run->loss);
        return;
    }
    /* So that keys are signals again: nobody takes them as input now. */
    exec_terminal_leave(&run->terminal);
    if (!event_pending(run->patience, EV_TIMEOUT, NULL)) {
        (void)event_add(run->patience, &patience);
        (void)event_add(run->notice, &notice);
    }
    if (connector_start(&options, NULL, &run->connector) < 0)
        exec_run_give_up(run, run->loss);
}

static void on_connected(evutil_socket_t fd, short what, void *context)
{
    struct exec_run *run = context;
    eventfd_t value;
    struct client *client;
    uint64_t abandoned;
    (void)eventfd_read(fd, &value);
    if (!run->connector)
        return;
    connector_take(take_ptr(run->connector), &client, &abandoned);
    int r = client ? take_client(run, client) : -ENOMEM;
    if (r < 0) {
        exec_run_give_up(run, strerror(-r));
        return;
    }
    (void)exec_terminal_enter(&run->terminal);
    ask(run, false);
}

static void on_notice(evutil_socket_t fd, short what, void *context)
{
    const struct exec_run *run = context;
    (void)fprintf(stderr, "berth: %s; waiting for it, %u s at most (INT gives up)%s\n", run->loss,
                  run->options->reattach_s, run->terminal.raw ? "\r" : "");
}

static void on_patience(evutil_socket_t fd, short what, void *context)
{
    struct exec_run *run = context;
    exec_run_give_up(run, run->loss);
}

/* --- life -------------------------------------------------------------------------- */

static int streams_begin(struct exec_run *run)
{
    for (size_t i = 0; i < ARRAY_SIZE(run->streams); i++) {
        struct exec_stream *stream = &run->streams[i];
        *stream = (struct exec_stream){
            .run = run, .number = (uint32_t)i + 1, .anywhere = run->options->only_new};
        const struct local_output_events events = {
            .written = on_written, .broken = on_broken, .context = stream};
        int r = local_output_new(run->base, (int)stream->number, &events, &stream->output);
        if (r < 0)
            return r;
    }
    return 0;
}

static void run_release(struct exec_run *run)
{
    exec_terminal_leave(&run->terminal);
    exec_input_free(run->input);
    buffer_release(&run->path);
    buffer_release(&run->path_text);
    if (run->stop)
        event_free(run->stop);
    if (run->grace)
        event_free(run->grace);
    if (run->connected)
        event_free(run->connected);
    if (run->patience)
        event_free(run->patience);
    if (run->notice)
        event_free(run->notice);
    for (size_t i = 0; i < ARRAY_SIZE(run->signals); i++)
        if (run->signals[i])
            event_free(run->signals[i]);
    for (size_t i = 0; i < ARRAY_SIZE(run->streams); i++) {
        local_output_free(run->streams[i].output);
        buffer_release(&run->streams[i].capture.data);
    }
}

/* Nobody else is to have it, by chance or by guessing. */
static int make_id(struct exec_run *run)
{
    uint64_t number;
    if (run->options->id) {
        (void)snprintf(run->id, sizeof run->id, "%s", run->options->id);
        return 0;
    }
    if (getrandom(&number, sizeof number, 0) != (ssize_t)sizeof number)
        return -EIO;
    (void)snprintf(run->id, sizeof run->id, "%016" PRIx64, number);
    return 0;
}

static int events_begin(struct exec_run *run)
{
    run->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (run->event_fd < 0)
        return -errno;
    run->connected = event_new(run->base, run->event_fd, EV_READ | EV_PERSIST, on_connected, run);
    run->patience = evtimer_new(run->base, on_patience, run);
    run->notice = evtimer_new(run->base, on_notice, run);
    return run->connected && run->patience && run->notice ? event_add(run->connected, NULL)
                                                          : -ENOMEM;
}

static int run_begin(struct exec_run *run, struct client *client)
{
    run->epoch = client_peer(client)->epoch;
    run->setup_ns = client_setup_ns(client);
    run->way = run->cli->way;
    int r = make_id(run);
    if (r == 0)
        r = streams_begin(run);
    if (r == 0)
        r = events_begin(run);
    /* Before the request: a signal that comes once it is sent must reach the command. */
    if (r == 0)
        r = exec_signals_begin(run);
    if (r < 0) {
        client_free(client);
        return r;
    }
    r = take_client(run, client);
    if (r < 0)
        return r;
    ask(run, !run->options->attaches);
    return exec_terminal_enter(&run->terminal);
}

int exec_run(struct cli *cli, struct client *client, const struct exec_options *options,
             const struct exec_place *place)
{
    struct exec_run run = {.cli = cli,
                           .options = options,
                           .place = place,
                           .base = event_base_new(),
                           .status = EXEC_STATUS_NOT_STARTED,
                           .event_fd = -1,
                           .terminal.fd = -1};
    cli->under_way = true;
    if (options->terminal && options->input && !options->detach && isatty(STDIN_FILENO))
        run.terminal.fd = STDIN_FILENO;
    int r = run.base ? run_begin(&run, client) : -ENOMEM;
    if (r < 0)
        exec_run_error(&run, "not started: request", strerror(-r));
    else if (!run.finished || !streams_idle(&run))
        (void)event_base_dispatch(run.base);
    if (r == 0 && !run.finished)
        exec_run_give_up(&run, "the event loop ended");
    /* Answers calls that are still open: into a run that is finished and still there. */
    run.finished = true;
    client_free(run.client);
    bool alone = !run.connector || connector_stop(run.connector);
    run_release(&run);
    /* It ran, and somebody may have been hurt by what is missing here: neither its status, nor
     * that of our TERM to it, nor "not started" would be true. */
    int status = run.failed ? EXEC_STATUS_UNKNOWN : run.status;
    if (!alone)
        _exit(status); /* a thread is still connecting, with what would be freed here */
    if (run.base)
        event_base_free(run.base);
    close_fd(&run.event_fd);
    return status;
}

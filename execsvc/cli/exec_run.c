#include "cli/exec_run.h"

#include <signal.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "cli/exec_result.h"
#include "cli/exec_terminal.h"
#include "cli/local_output.h"

/* Bytes of one read of standard input. */
#define INPUT_READ_MAX 65536

/* Credit is given back in portions of this size: far below the window, so that the service
 * never waits for it, and far above a line, so that it costs no frame for each. */
#define GRANT_PORTION 16384

/* From the forwarded TSTP, and from the last output after it, to our own stop: time for the
 * message to leave and for what was on its way to arrive. The service gives up clients that
 * leave it with unread output. */
#define STOP_QUIET_US 50000
#define STOP_LATEST_NS (2 * NSEC_PER_SEC)

/* The first interrupt is the command's, the second kills it, the third gives up on it. */
enum interrupts { INTERRUPT_FORWARD = 1, INTERRUPT_KILL = 2, INTERRUPT_GIVE_UP = 3 };

static const int forwarded_signals[] = {SIGINT,  SIGTERM, SIGHUP,  SIGQUIT,
                                        SIGTSTP, SIGCONT, SIGWINCH};

struct exec_run;

struct exec_stream {
    struct exec_run *run;
    struct local_output *output;
    struct exec_capture capture; /* with --json; output then carries the object alone */
    uint64_t received;
    uint32_t number;
};

struct exec_run {
    const struct exec_options *options;
    struct event_base *base;
    struct client *client;
    uint64_t tag;
    struct exec_stream streams[2];
    size_t owed; /* credit to give back */

    bool started;
    bool finished; /* no more messages; only local output is waited for */
    bool failed;   /* local output failed: never a success */
    int status;

    struct event *input; /* NULL: none, or at its end */
    bool input_is_file;  /* always readable, and nothing epoll would take */
    bool input_waits;    /* for credit */
    uint64_t input_sent;

    struct exec_terminal terminal;
    struct event *signals[ARRAY_SIZE(forwarded_signals)];
    struct event *stop;
    uint64_t stop_latest_ns;
    int interrupts;
};

static void run_message(const struct exec_run *run, struct bytes text)
{
    if (text.len > 0)
        (void)fprintf(stderr, "berth: %.*s%s\n", (int)text.len, (const char *)text.data,
                      run->terminal.raw ? "\r" : "");
}

static void run_error(const struct exec_run *run, const char *what, const char *why)
{
    (void)fprintf(stderr, "berth: %s: %s%s\n", what, why, run->terminal.raw ? "\r" : "");
}

static void run_quit_if_done(struct exec_run *run)
{
    if (!run->finished)
        return;
    for (size_t i = 0; i < ARRAY_SIZE(run->streams); i++)
        if (!local_output_idle(run->streams[i].output))
            return;
    (void)event_base_loopbreak(run->base);
}

static void run_finish(struct exec_run *run, int status)
{
    if (run->finished)
        return;
    run->finished = true;
    run->status = status;
    run_quit_if_done(run);
}

static void run_give_up(struct exec_run *run, const char *why)
{
    run_error(run, "outcome unknown", why);
    run_finish(run, EXEC_STATUS_UNKNOWN);
    (void)event_base_loopbreak(run->base);
}

/* --- output ---------------------------------------------------------------------- */

static void give_back(struct exec_run *run, size_t bytes)
{
    run->owed += bytes;
    if (run->finished || run->owed < GRANT_PORTION)
        return;
    (void)client_grant(run->client, run->tag, run->owed);
    run->owed = 0;
}

static void on_written(void *context, size_t bytes)
{
    struct exec_stream *stream = context;
    give_back(stream->run, bytes);
    run_quit_if_done(stream->run);
}

static void stop_soon(struct exec_run *run)
{
    const struct timeval quiet = {.tv_usec = STOP_QUIET_US};
    (void)event_add(run->stop, &quiet);
}

static void send_signal(struct exec_run *run, int signal)
{
    const struct wire_message message = {.type = WIRE_EXEC_SIGNAL,
                                         .exec_signal.signal = (uint32_t)signal};
    if (!run->finished)
        (void)client_send(run->client, run->tag, &message);
}

/* As if the command had written to our descriptor itself: PIPE when nobody reads any more. */
static void on_broken(void *context, int error)
{
    struct exec_stream *stream = context;
    struct exec_run *run = stream->run;
    if (error == -EPIPE) {
        send_signal(run, SIGPIPE);
        return;
    }
    run->failed = true;
    run_error(run, stream->number == 1 ? "standard output" : "standard error", strerror(-error));
    send_signal(run, SIGTERM);
}

static void on_output(struct exec_run *run, const struct wire_exec_output *item)
{
    struct exec_stream *stream =
        item->stream == 1 || item->stream == 2 ? &run->streams[item->stream - 1] : NULL;
    if (!stream || item->offset != stream->received) {
        run_give_up(run, "the service sent output with a gap");
        return;
    }
    if (event_pending(run->stop, EV_TIMEOUT, NULL) && clock_monotonic_ns() < run->stop_latest_ns)
        stop_soon(run);
    size_t len = item->data.len;
    stream->received += len;
    bool capture = run->options->json;
    int r = capture ? exec_capture_append(&stream->capture, item->data)
                    : local_output_append(stream->output, item->data);
    if (r < 0) {
        run_give_up(run, strerror(-r));
        return;
    }
    size_t cost = session_item_cost(WIRE_EXEC_OUTPUT, len);
    give_back(run, capture ? cost : cost - len);
}

/* --- input ----------------------------------------------------------------------- */

static void input_end(struct exec_run *run)
{
    if (run->input)
        event_free(run->input);
    run->input = NULL;
}

static void input_wait(struct exec_run *run)
{
    if (run->input_is_file)
        event_active(run->input, EV_READ, 1);
    else
        (void)event_add(run->input, NULL);
}

static void on_stdin(evutil_socket_t fd, short what, void *context)
{
    struct exec_run *run = context;
    uint8_t data[INPUT_READ_MAX];
    size_t overhead = session_item_cost(WIRE_EXEC_INPUT, 0);
    size_t credit = client_credit(run->client, run->tag);
    if (credit <= overhead) {
        run->input_waits = true;
        return;
    }
    size_t room = credit - overhead < sizeof data ? credit - overhead : sizeof data;
    ssize_t n = read(fd, data, room);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) {
        input_wait(run);
        return;
    }
    /* An unreadable standard input (closed, a directory) is an empty one. */
    const struct wire_message message = {
        .type = WIRE_EXEC_INPUT,
        .exec_input = {.end = n <= 0,
                       .offset = run->input_sent,
                       .data = bytes_of(data, n > 0 ? (size_t)n : 0)}};
    int r = client_send(run->client, run->tag, &message);
    if (r < 0 || n <= 0) {
        input_end(run);
        return;
    }
    run->input_sent += (uint64_t)n;
    input_wait(run);
}

static int input_begin(struct exec_run *run)
{
    struct stat st;
    run->input_is_file = fstat(STDIN_FILENO, &st) < 0 ||
                         !(S_ISFIFO(st.st_mode) || S_ISSOCK(st.st_mode) || isatty(STDIN_FILENO));
    run->input = event_new(run->base, STDIN_FILENO, EV_READ, on_stdin, run);
    if (!run->input)
        return -ENOMEM;
    input_wait(run);
    return 0;
}

static void on_credit(void *context, uint64_t tag)
{
    struct exec_run *run = context;
    if (!run->input_waits || !run->input)
        return;
    run->input_waits = false;
    input_wait(run);
}

/* --- messages -------------------------------------------------------------------- */

static void on_started(struct exec_run *run)
{
    run->started = true;
    if (run->options->input && input_begin(run) < 0)
        run_give_up(run, strerror(ENOMEM));
}

static void on_item(void *context, uint64_t tag, const struct wire_message *item)
{
    struct exec_run *run = context;
    if (run->finished)
        return;
    if (item->type == WIRE_EXEC_STARTED)
        on_started(run);
    else if (item->type == WIRE_EXEC_OUTPUT)
        on_output(run, &item->exec_output);
}

static int print_json(struct exec_run *run, const struct wire_exec_exit *verdict)
{
    json_t *object = exec_result_json(verdict, &run->streams[0].capture, &run->streams[1].capture);
    _cleanup_free_ char *text = object ? json_dumps(object, JSON_COMPACT | JSON_REAL_PRECISION(15)) : NULL;
    json_decref(object);
    int r = text ? local_output_append(run->streams[0].output, bytes_of_string(text)) : -ENOMEM;
    return r < 0 ? r : local_output_append(run->streams[0].output, bytes_of_string("\n"));
}

static void on_verdict(struct exec_run *run, const struct wire_exec_exit *verdict)
{
    int status = exec_result_status(verdict);
    if (run->options->json) {
        int r = print_json(run, verdict);
        if (r < 0) {
            run->failed = true;
            run_error(run, "--json", strerror(-r));
        }
    } else {
        _cleanup_buffer_ struct buffer text = {0};
        if (exec_result_text(verdict, &text) == 0)
            run_message(run, buffer_view(&text));
    }
    /* Counts come with the verdict: bytes that never came are not a success. */
    if (verdict->stdout_bytes != run->streams[0].received ||
        verdict->stderr_bytes != run->streams[1].received) {
        run_error(run, "outcome unknown", "output is missing");
        status = EXEC_STATUS_UNKNOWN;
    }
    run_finish(run, status);
}

static void on_reply(void *context, int error, const struct wire_message *reply)
{
    struct exec_run *run = context;
    if (run->finished)
        return;
    if (error == 0) {
        on_verdict(run, &reply->exec_exit);
        return;
    }
    /* A refusal by the service ran nothing; a lost connection may have run anything. */
    bool refused = reply && !run->started;
    _cleanup_buffer_ struct buffer text = {0};
    struct wire_exec_exit verdict = {.verdict =
                                         refused ? WIRE_VERDICT_NOT_STARTED : WIRE_VERDICT_UNKNOWN,
                                     .stage = WIRE_STAGE_REQUEST,
                                     .error = (uint32_t)-error,
                                     .stdout_bytes = run->streams[0].received,
                                     .stderr_bytes = run->streams[1].received};
    if (reply && reply->error.text.len > 0)
        verdict.text = reply->error.text;
    else if (buffer_printf(&text, "%s%s",
                           reply ? "" : "the connection was lost: ", strerror(-error)) == 0)
        verdict.text = buffer_view(&text);
    on_verdict(run, &verdict);
}

static void on_lost(void *context, int error, const char *reason)
{
    struct exec_run *run = context;
    if (!run->finished)
        run_give_up(run, reason);
}

/* --- signals --------------------------------------------------------------------- */

static void send_size(struct exec_run *run)
{
    struct wire_message message = {.type = WIRE_EXEC_RESIZE};
    if (run->options->terminal && !run->finished &&
        exec_terminal_size(&message.exec_resize.rows, &message.exec_resize.columns))
        (void)client_send(run->client, run->tag, &message);
}

static void on_stop(evutil_socket_t fd, short what, void *context)
{
    struct exec_run *run = context;
    exec_terminal_leave(&run->terminal);
    (void)raise(SIGSTOP);
}

static void on_interrupt(struct exec_run *run)
{
    run->interrupts++;
    if (run->interrupts == INTERRUPT_FORWARD)
        send_signal(run, SIGINT);
    else if (run->interrupts == INTERRUPT_KILL)
        send_signal(run, SIGKILL);
    else
        run_give_up(run, "interrupted");
}

static void on_signal(evutil_socket_t signal, short what, void *context)
{
    struct exec_run *run = context;
    if (run->finished && signal != SIGWINCH && signal != SIGCONT && signal != SIGTSTP) {
        /* The command has ended; only a reader that does not read keeps us. */
        run->status = EXEC_STATUS_SIGNAL + signal;
        (void)event_base_loopbreak(run->base);
    } else if (signal == SIGINT) {
        on_interrupt(run);
    } else if (signal == SIGWINCH) {
        send_size(run);
    } else if (signal == SIGTSTP) {
        send_signal(run, SIGTSTP);
        run->stop_latest_ns = clock_monotonic_ns() + STOP_LATEST_NS;
        stop_soon(run);
    } else if (signal == SIGCONT) {
        (void)exec_terminal_enter(&run->terminal);
        send_signal(run, SIGCONT);
        send_size(run);
    } else {
        send_signal(run, signal);
    }
}

static int signals_begin(struct exec_run *run)
{
    run->stop = evtimer_new(run->base, on_stop, run);
    if (!run->stop)
        return -ENOMEM;
    for (size_t i = 0; i < ARRAY_SIZE(forwarded_signals); i++) {
        /* What our caller has us ignore (nohup, a shell's background job) stays ignored. */
        struct sigaction old;
        if (sigaction(forwarded_signals[i], NULL, &old) == 0 && old.sa_handler == SIG_IGN)
            continue;
        run->signals[i] = evsignal_new(run->base, forwarded_signals[i], on_signal, run);
        if (!run->signals[i] || event_add(run->signals[i], NULL) < 0)
            return -ENOMEM;
    }
    return 0;
}

/* --- the request ----------------------------------------------------------------- */

static int append_string(struct buffer *list, uint32_t *count, const char *text)
{
    int r = wire_list_append(list, bytes_of_string(text));
    if (r == 0)
        (*count)++;
    return r;
}

static int append_terminal_type(struct buffer *list, uint32_t *count)
{
    const char *type = getenv("TERM");
    _cleanup_buffer_ struct buffer variable = {0};
    if (!type || !type[0])
        return 0;
    int r = buffer_printf(&variable, "TERM=%s", type);
    return r < 0 ? r : append_string(list, count, (const char *)variable.data);
}

static int send_request(struct exec_run *run, const struct exec_place *place)
{
    const struct exec_options *o = run->options;
    _cleanup_buffer_ struct buffer argv = {0};
    _cleanup_buffer_ struct buffer env = {0};
    uint32_t argv_count = 0;
    uint32_t env_count = 0;
    int r = o->terminal ? append_terminal_type(&env, &env_count) : 0;
    for (size_t i = 0; r == 0 && i < o->environment_count; i++)
        r = append_string(&env, &env_count, o->environment[i]);
    for (size_t i = 0; r == 0 && i < o->command_count; i++)
        r = append_string(&argv, &argv_count, o->command[i]);
    if (r < 0)
        return r;
    struct wire_message message = {
        .type = WIRE_EXEC,
        .exec = {.flags = (o->input ? WIRE_EXEC_STDIN : 0U) | (o->merge ? WIRE_EXEC_MERGE : 0U) |
                          (o->terminal ? WIRE_EXEC_PTY : 0U),
                 .workspace_flags = place->by_name ? WIRE_WORKSPACE_BY_NAME : 0,
                 .timeout_ms = o->timeout_ms,
                 .workspace = bytes_of_string(place->workspace),
                 .id = bytes_of_string(o->id),
                 .cwd = bytes_of_string(place->directory),
                 .mount_path = bytes_of_string(place->mount_path),
                 .argv = wire_list_of(&argv, argv_count),
                 .env = wire_list_of(&env, env_count)}};
    if (o->terminal)
        (void)exec_terminal_size(&message.exec.rows, &message.exec.columns);
    const struct client_call call = {.reply = on_reply,
                                     .item = on_item,
                                     .writable = on_credit,
                                     .context = run,
                                     .blocking = true};
    return client_call(run->client, &message, &call, &run->tag);
}

static int streams_begin(struct exec_run *run)
{
    for (size_t i = 0; i < ARRAY_SIZE(run->streams); i++) {
        struct exec_stream *stream = &run->streams[i];
        *stream = (struct exec_stream){.run = run, .number = (uint32_t)i + 1};
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
    input_end(run);
    if (run->stop)
        event_free(run->stop);
    for (size_t i = 0; i < ARRAY_SIZE(run->signals); i++)
        if (run->signals[i])
            event_free(run->signals[i]);
    for (size_t i = 0; i < ARRAY_SIZE(run->streams); i++) {
        local_output_free(run->streams[i].output);
        buffer_release(&run->streams[i].capture.data);
    }
}

static int run_begin(struct exec_run *run, const struct exec_place *place)
{
    const struct client_events events = {.lost = on_lost, .context = run};
    int r = streams_begin(run);
    /* Before the request: a signal that comes once it is sent must reach the command. */
    if (r == 0)
        r = signals_begin(run);
    if (r == 0)
        r = client_attach(run->client, run->base, &events);
    if (r == 0)
        r = send_request(run, place);
    return r < 0 ? r : exec_terminal_enter(&run->terminal);
}

int exec_run(struct client *client, const struct exec_options *options,
             const struct exec_place *place)
{
    struct exec_run run = {.options = options,
                           .client = client,
                           .base = event_base_new(),
                           .status = EXEC_STATUS_NOT_STARTED,
                           .terminal.fd = -1};
    if (options->terminal && options->input && isatty(STDIN_FILENO))
        run.terminal.fd = STDIN_FILENO;
    int r = run.base ? run_begin(&run, place) : -ENOMEM;
    if (r == -EINVAL)
        run_error(&run, "not started: request", "an argument, variable or name is too long");
    else if (r < 0)
        run_error(&run, "not started: request", strerror(-r));
    else
        (void)event_base_dispatch(run.base);
    if (r == 0 && !run.finished)
        run_give_up(&run, "the event loop ended");
    /* Answers calls that are still open: into a run that is finished and still there. */
    run.finished = true;
    client_free(client);
    run_release(&run);
    if (run.base)
        event_base_free(run.base);
    /* It ran, and somebody may have been hurt by what is missing here: neither its status, nor
     * that of our TERM to it, nor "not started" would be true. */
    return run.failed ? EXEC_STATUS_UNKNOWN : run.status;
}

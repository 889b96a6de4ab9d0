#include "cli/exec_run_private.h"

#include <signal.h>

#include "base/clock.h"

/* From the forwarded TSTP, and from the last output after it, to our own stop: time for the
 * message to leave and for what was on its way to arrive. The service gives up clients that
 * leave it with unread output. */
#define STOP_QUIET_US 50000
#define STOP_LATEST_NS (2 * NSEC_PER_SEC)

/* The first of INT, and of TERM, is the command's, the second kills it, the third gives up on it.
 */
enum requests { REQUEST_FORWARD = 1, REQUEST_KILL = 2, REQUEST_GIVE_UP = 3 };

/* What a shell in a terminal has after TERM, which it ignores. */
#define SHELL_GRACE_S 2

static const int forwarded_signals[EXEC_SIGNALS] = {SIGINT,  SIGTERM, SIGHUP,  SIGQUIT,
                                                    SIGTSTP, SIGCONT, SIGWINCH};

void exec_signals_stop_soon(struct exec_run *run)
{
    const struct timeval quiet = {.tv_usec = STOP_QUIET_US};
    (void)event_add(run->stop, &quiet);
}

void exec_signals_send_size(struct exec_run *run)
{
    struct wire_message message = {.type = WIRE_EXEC_RESIZE};
    if (run->options->terminal && !run->finished && run->client &&
        exec_terminal_size(&message.exec_resize.rows, &message.exec_resize.columns))
        (void)client_send(run->client, run->tag, &message);
}

static void on_stop(evutil_socket_t fd, short what, void *context)
{
    struct exec_run *run = context;
    exec_terminal_leave(&run->terminal);
    (void)raise(SIGSTOP);
}

static void on_killed(void *context, int error, const struct wire_message *reply)
{
    /* A service that cannot end all ends the process group at least. */
    if (reply && error < 0)
        exec_run_signal(context, SIGKILL);
}

/* Everything that belongs to it, not its process group alone. */
static void kill_all(struct exec_run *run, const char *by)
{
    const struct wire_message message = {
        .type = WIRE_EXEC_KILL,
        .exec_kill = {.workspace_flags = run->place->by_name ? WIRE_WORKSPACE_BY_NAME : 0,
                      .workspace = bytes_of_string(run->place->workspace),
                      .id = bytes_of_string(run->id),
                      .by = bytes_of_string(by)}};
    const struct client_call call = {.reply = on_killed, .context = run};
    if (client_call(run->client, &message, &call, NULL) < 0)
        exec_run_signal(run, SIGKILL);
}

static void on_interrupt(struct exec_run *run)
{
    run->interrupts++;
    if (run->interrupts >= REQUEST_GIVE_UP)
        exec_run_give_up(run, "interrupted");
    else if (run->interrupts == REQUEST_KILL)
        kill_all(run, "a second interrupt");
    else
        exec_run_signal(run, SIGINT);
}

static void on_termination(struct exec_run *run)
{
    const struct timeval grace = {.tv_sec = SHELL_GRACE_S};
    run->terminations++;
    if (run->terminations >= REQUEST_GIVE_UP) {
        exec_run_give_up(run, "terminated");
    } else if (run->terminations == REQUEST_KILL) {
        kill_all(run, "a second TERM");
    } else {
        exec_run_signal(run, SIGTERM);
        if (run->grace)
            (void)event_add(run->grace, &grace);
    }
}

static void on_grace(evutil_socket_t fd, short what, void *context)
{
    struct exec_run *run = context;
    if (run->finished)
        return;
    if (run->client)
        kill_all(run, "TERM, which was ignored");
    else
        exec_run_give_up(run, run->loss);
}

/* Those that ask for an end, which waiting for a connection must not put off. */
static bool ends_us(int signal)
{
    return signal == SIGINT || signal == SIGTERM || signal == SIGHUP || signal == SIGQUIT;
}

static void on_signal(evutil_socket_t signal, short what, void *context)
{
    struct exec_run *run = context;
    if (run->finished && signal != SIGWINCH && signal != SIGCONT && signal != SIGTSTP) {
        /* The command has ended; only a reader that does not read keeps us. */
        run->status = EXEC_STATUS_SIGNAL + signal;
        (void)event_base_loopbreak(run->base);
    } else if (!run->options->forwards && signal != SIGCONT && signal != SIGTSTP &&
               signal != SIGWINCH) {
        exec_run_finish(run, EXEC_STATUS_SIGNAL + signal);
        (void)event_base_loopbreak(run->base);
    } else if (exec_run_is_away(run) && ends_us(signal)) {
        exec_run_give_up(run, run->loss);
    } else if (signal == SIGINT) {
        on_interrupt(run);
    } else if (signal == SIGTERM) {
        on_termination(run);
    } else if (signal == SIGWINCH) {
        exec_signals_send_size(run);
    } else if (signal == SIGTSTP) {
        exec_run_signal(run, SIGTSTP);
        run->stop_latest_ns = clock_monotonic_ns() + STOP_LATEST_NS;
        exec_signals_stop_soon(run);
    } else if (signal == SIGCONT) {
        if (run->client)
            (void)exec_terminal_enter(&run->terminal);
        exec_run_signal(run, SIGCONT);
        exec_signals_send_size(run);
    } else {
        exec_run_signal(run, signal);
    }
}

int exec_signals_begin(struct exec_run *run)
{
    run->stop = evtimer_new(run->base, on_stop, run);
    if (run->options->ends_at_term)
        run->grace = evtimer_new(run->base, on_grace, run);
    if (!run->stop || (run->options->ends_at_term && !run->grace))
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

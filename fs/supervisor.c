#include "supervisor.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <syslog.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "client/client.h"
#include "mount.h"

#define LOG_LINE_MAX 1024

/* How often it is looked whether the driver is dying. */
#define LOOK_MS 500

enum message_kind {
    MESSAGE_MOUNTED = 1,
    MESSAGE_UNMOUNTED = 2,
    MESSAGE_SESSION = 3,
    MESSAGE_PARTED = 4, /* as UNMOUNTED */
};

struct message {
    uint32_t kind;
    uint32_t minor;
    uint8_t key[WIRE_KEY_SIZE];
};

struct supervisor {
    int control; /* write end: closed by the kernel when the driver dies, however it dies */
};

/* What the supervising process knows. */
struct watch {
    const char *mountpoint;
    const struct client_settings *settings;
    int control;
    int log; /* -1: none */
    bool mounted;
    uint32_t minor;
    bool parted;
    bool keyed;
    uint8_t key[WIRE_KEY_SIZE]; /* of the session */
    size_t line_len;
    char line[LOG_LINE_MAX];
};

static void log_bytes(struct watch *w)
{
    char part[LOG_LINE_MAX];
    ssize_t n = read(w->log, part, sizeof part);
    if (n <= 0) {
        close_fd(&w->log);
        return;
    }
    for (ssize_t i = 0; i < n; i++) {
        if (part[i] != '\n' && w->line_len < sizeof w->line - 1) {
            w->line[w->line_len++] = part[i];
            continue;
        }
        w->line[w->line_len] = '\0';
        syslog(LOG_NOTICE, "%s", w->line);
        w->line_len = 0;
    }
}

/* Standard error, if it is not syslog that is asked for, is open; else it is /dev/null. */
static void say(const char *what, const char *mountpoint, const char *why)
{
    log_error("%s %s%s", what, mountpoint, why);
    syslog(LOG_ERR, "%s %s%s", what, mountpoint, why);
}

/* Asks for it at a point where it never was, which ends it. If the service cannot be reached it
 * ends by itself. */
static int end_session(const struct watch *w)
{
    struct session_resume point = {.received = UINT64_MAX};
    struct stream_options options = client_settings_stream(w->settings);
    struct client *client;
    struct failure f;
    options.quiet = true;
    memcpy(point.key, w->key, sizeof point.key);
    int r = client_connect_again(&options, "berthfs-guard " BERTH_VERSION, &point, &client, &f);
    if (r == 0)
        client_free(client);
    return r;
}

static void say_goodbye(const struct watch *w)
{
    uint64_t end = clock_monotonic_ns() + SUPERVISOR_GOODBYE_S * NSEC_PER_SEC;
    while (end_session(w) < 0 && clock_monotonic_ns() < end)
        (void)poll(NULL, 0, LOOK_MS);
}

static void clean_up(const struct watch *w)
{
    say("the driver died; unmounting", w->mountpoint, "");
    /* First the abort: requests that wait for the dead driver would hold up the unmount. */
    (void)mount_abort(w->minor);
    int r = mount_remove(w->mountpoint, w->minor, true);
    if (r < 0)
        say("cannot unmount", w->mountpoint, strerror(-r));
    if (w->keyed)
        (void)end_session(w);
}

/* A driver that was killed while it told the kernel to forget (notifier.h) cannot go before the
 * requests that call waits for have ended, and they wait for the driver. It closes nothing until
 * then; but its first thread is gone. */
static bool driver_is_dying(void)
{
    char path[32], status[4096];
    size_t len = 0;
    (void)snprintf(path, sizeof path, "/proc/%d/status", (int)getppid());
    _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || file_read_up_to(fd, status, sizeof status - 1, &len) < 0)
        return false;
    status[len] = '\0';
    return strstr(status, "\nState:\tZ");
}

static void supervise(struct watch *w)
{
    for (;;) {
        struct pollfd fds[] = {{.fd = w->control, .events = POLLIN},
                               {.fd = w->log, .events = POLLIN}};
        int ready = poll(fds, 2, w->mounted ? LOOK_MS : -1);
        if (ready == 0 && driver_is_dying())
            break;
        if (ready <= 0)
            continue;
        if (fds[1].revents)
            log_bytes(w);
        if (!fds[0].revents)
            continue;
        struct message m;
        ssize_t n = read(w->control, &m, sizeof m);
        if (n == (ssize_t)sizeof m && m.kind == MESSAGE_MOUNTED) {
            w->mounted = true;
            w->minor = m.minor;
        } else if (n == (ssize_t)sizeof m && m.kind == MESSAGE_SESSION) {
            w->keyed = true;
            memcpy(w->key, m.key, sizeof w->key);
        } else if (n == (ssize_t)sizeof m &&
                   (m.kind == MESSAGE_UNMOUNTED || m.kind == MESSAGE_PARTED)) {
            w->mounted = false;
            w->parted = m.kind == MESSAGE_PARTED;
        } else if (!(n < 0 && errno == EINTR)) {
            break;
        }
    }
    /* What a dying driver said last is what its user needs most. */
    while (w->log >= 0) {
        struct pollfd fd = {.fd = w->log, .events = POLLIN};
        if (poll(&fd, 1, 0) <= 0)
            break;
        log_bytes(w);
    }
    if (w->mounted)
        clean_up(w);
    else if (w->parted && w->keyed)
        say_goodbye(w);
}

/* Keeps the given descriptors alone: a copy of a socket, or of the pipe on which the caller
 * waits, would keep it from ever closing. */
static void close_others(int control, int log, int err)
{
    int null = open("/dev/null", O_RDWR);
    if (null >= 0) {
        (void)dup2(null, STDIN_FILENO);
        (void)dup2(null, STDOUT_FILENO);
    }
    if (err < 0)
        err = null;
    if (err >= 0 && err != STDERR_FILENO)
        (void)dup2(err, STDERR_FILENO);
    int low = control < log || log < 0 ? control : log, high = control < log ? log : control;
    if (low > 3)
        (void)close_range(3, (unsigned)low - 1, 0);
    if (high > low + 1)
        (void)close_range((unsigned)low + 1, (unsigned)high - 1, 0);
    (void)close_range((unsigned)high + 1, ~0U, 0);
}

static void child(struct watch *w, int log_fd)
{
    /* Out of the terminal's reach: ^C is for the driver, which then unmounts in peace. */
    (void)setsid();
    const int ignored[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE};
    for (size_t i = 0; i < ARRAY_SIZE(ignored); i++)
        (void)signal(ignored[i], SIG_IGN);
    (void)prctl(PR_SET_NAME, "berthfs-guard");
    close_others(w->control, w->log, log_fd);
    if (log_fd < 0)
        openlog("berthfs", LOG_PID, LOG_DAEMON);
    supervise(w);
    _exit(0);
}

int supervisor_start(const char *mountpoint, const struct client_settings *settings, int log_fd,
                     struct supervisor **ret, int *ret_log_fd, struct failure *f)
{
    int control[2], log[2] = {-1, -1};
    if (pipe2(control, O_CLOEXEC) < 0)
        return failure_set(f, -errno, "pipe: %s", strerror(errno));
    _cleanup_close_ int control_in = control[0], control_out = control[1];
    if (log_fd < 0 && pipe2(log, O_CLOEXEC) < 0)
        return failure_set(f, -errno, "pipe: %s", strerror(errno));
    _cleanup_close_ int log_in = log[0], log_out = log[1];
    struct supervisor *s = calloc(1, sizeof *s);
    if (!s)
        return failure_set(f, -ENOMEM, "out of memory");
    pid_t pid = fork();
    if (pid < 0) {
        int error = -errno;
        free(s);
        return failure_set(f, error, "fork: %s", strerror(-error));
    }
    if (pid == 0) {
        struct watch w = {
            .mountpoint = mountpoint, .settings = settings, .control = control_in, .log = log_in};
        child(&w, log_fd);
    }
    /* A full pipe must not stop the driver: rather lose a line. */
    if (log_out >= 0)
        (void)fcntl(log_out, F_SETFL, O_NONBLOCK);
    s->control = take_fd(&control_out);
    *ret_log_fd = take_fd(&log_out);
    *ret = s;
    return 0;
}

static void send_message(struct supervisor *s, const struct message *m)
{
    /* If it died there is nobody to tell, and nobody to clean up after us. */
    if (write(s->control, m, sizeof *m) != (ssize_t)sizeof *m)
        log_debug("the supervisor is gone: %s", strerror(errno));
}

static void tell(struct supervisor *s, enum message_kind kind, uint32_t minor)
{
    const struct message m = {.kind = kind, .minor = minor};
    send_message(s, &m);
}

void supervisor_mounted(struct supervisor *s, uint32_t minor)
{
    tell(s, MESSAGE_MOUNTED, minor);
}

void supervisor_session(struct supervisor *s, const uint8_t key[WIRE_KEY_SIZE])
{
    struct message m = {.kind = MESSAGE_SESSION};
    if (!s)
        return;
    memcpy(m.key, key, sizeof m.key);
    send_message(s, &m);
}

void supervisor_end(struct supervisor *s, bool parted)
{
    tell(s, parted ? MESSAGE_PARTED : MESSAGE_UNMOUNTED, 0);
    close_fd(&s->control);
    free(s);
}

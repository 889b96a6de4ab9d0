#include "server/stdio_relay.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

#include "base/clock.h"
#include "base/file.h"
#include "server/arguments.h"
#include "server/sockets.h"
#include "stream/unix_path.h"

#define RELAY_BUFFER (256u << 10)
#define CONNECT_RETRY_MS 10

/* After our input ended: how long the service may take to say its last and close. */
#define RELAY_LINGER_S 10

/* --- starting -------------------------------------------------------------------- */

static bool nobody_listens(int r)
{
    return r == -ENOENT || r == -ECONNREFUSED;
}

static int make_root(const char *root, struct failure *ret_failure)
{
    _cleanup_free_ char *path = strdup(root);
    if (!path)
        return failure_set(ret_failure, -ENOMEM, "out of memory");
    for (char *slash = path; slash;) {
        slash = strchr(slash + 1, '/');
        if (slash)
            *slash = '\0';
        if (mkdir(path, 0700) < 0 && errno != EEXIST)
            return failure_set(ret_failure, -errno, "cannot make %s: %s", path, strerror(errno));
        if (slash)
            *slash = '/';
    }
    return 0;
}

/* In the grandchild: a process of its own, with nothing of the stream it was started from. A
 * descriptor kept would keep ssh waiting after the relay has gone. */
static _Noreturn void become_service(int log_fd, const struct arguments *arguments)
{
    int null_fd = file_open_null();
    if (null_fd < 0 || dup2(null_fd, 0) < 0 || dup2(log_fd, 1) < 0 || dup2(log_fd, 2) < 0 ||
        chdir("/") < 0)
        _exit(127);
    (void)close_range(3, ~0U, 0);
    sigset_t none;
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    (void)signal(SIGHUP, SIG_DFL);
    (void)execv("/proc/self/exe", (char **)(uintptr_t)arguments->argv);
    (void)dprintf(2, "berthd: error: cannot run itself: %s\n", strerror(errno));
    _exit(127);
}

/* Double fork: the service is nobody's child, and no terminal's. */
static int start_service(const struct service_settings *settings, const char *socket_path,
                         struct failure *ret_failure)
{
    _cleanup_free_ char *log_path = NULL;
    _cleanup_free_ char *own_url = NULL;
    struct arguments arguments;
    if (asprintf(&log_path, "%s/berthd.log", settings->root) < 0 ||
        asprintf(&own_url, "unix:%s", socket_path) < 0)
        return failure_set(ret_failure, -ENOMEM, "out of memory");
    arguments_set(&arguments, NULL, settings);
    /* Nobody asked it to listen elsewhere than for us: not on the default socket, which may be that
     * of another root. */
    if (settings->listen_count == 0)
        arguments_add(&arguments, "--listen", own_url);
    _cleanup_close_ int log_fd =
        open(log_path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (log_fd < 0)
        return failure_set(ret_failure, -errno, "cannot open %s: %s", log_path, strerror(errno));
    pid_t child = fork();
    if (child < 0)
        return failure_set(ret_failure, -errno, "cannot start the service: %s", strerror(errno));
    if (child == 0) {
        (void)setsid();
        pid_t grandchild = fork();
        if (grandchild == 0)
            become_service(log_fd, &arguments);
        _exit(grandchild < 0 ? 127 : 0);
    }
    int status;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    if (status != 0)
        return failure_set(ret_failure, -EAGAIN, "cannot start the service: no more processes");
    return 0;
}

static int wait_for_service(const char *path, int *ret_fd)
{
    uint64_t deadline = clock_monotonic_ns() + STDIO_START_TIMEOUT_S * NSEC_PER_SEC;
    int r;
    while (nobody_listens(r = unix_path_connect(path, ret_fd))) {
        if (clock_monotonic_ns() > deadline)
            return r;
        const struct timespec pause = {.tv_nsec = CONNECT_RETRY_MS * (long)NSEC_PER_MSEC};
        (void)nanosleep(&pause, NULL);
    }
    return r;
}

/* Connects, starting the service if nobody listens. Whoever holds the start lock starts it and
 * waits for it; the others find it there when they get the lock. */
static int connect_or_start(const struct service_settings *settings, const char *path, int *ret_fd,
                            struct failure *ret_failure)
{
    int r = unix_path_connect(path, ret_fd);
    if (!nobody_listens(r))
        return r < 0 ? failure_set(ret_failure, r, "cannot connect to %s: %s", path, strerror(-r))
                     : 0;
    r = make_root(settings->root, ret_failure);
    if (r < 0)
        return r;
    _cleanup_close_ int root = open(settings->root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    _cleanup_close_ int lock =
        root < 0 ? -1 : openat(root, "start.lock", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (lock < 0 || flock(lock, LOCK_EX) < 0)
        return failure_set(ret_failure, -errno, "cannot lock %s/start.lock: %s", settings->root,
                           strerror(errno));
    r = unix_path_connect(path, ret_fd);
    if (nobody_listens(r)) {
        r = start_service(settings, path, ret_failure);
        if (r < 0)
            return r;
        r = wait_for_service(path, ret_fd);
    }
    if (r < 0)
        return failure_set(ret_failure, r,
                           "the service of %s does not answer on its socket (%s); its log, if it "
                           "was started here, is %s/berthd.log",
                           settings->root, strerror(-r), settings->root);
    return 0;
}

/* --- relaying -------------------------------------------------------------------- */

struct pipe {
    int from, to;
    int error; /* negative errno */
};

/* Blocking, one thread a direction: neither waits for the other, and the flags of descriptors
 * that others may share with us stay as they are. */
static void pump(struct pipe *p)
{
    _cleanup_free_ uint8_t *buffer = malloc(RELAY_BUFFER);
    if (!buffer) {
        p->error = -ENOMEM;
        return;
    }
    for (;;) {
        ssize_t n = read(p->from, buffer, RELAY_BUFFER);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            p->error = n < 0 ? -errno : 0;
            return;
        }
        for (ssize_t done = 0; done < n;) {
            ssize_t m = write(p->to, buffer + done, (size_t)(n - done));
            if (m < 0 && errno == EINTR)
                continue;
            if (m < 0) {
                p->error = -errno;
                return;
            }
            done += m;
        }
    }
}

static void *pump_input(void *context)
{
    _cleanup_free_ struct pipe *p = context;
    pump(p);
    /* Our input has ended, or the service takes no more: the service sees the end, and what it
     * still has to say goes out, for a while. */
    (void)shutdown(p->to, SHUT_WR);
    const struct timespec linger = {.tv_sec = RELAY_LINGER_S};
    (void)nanosleep(&linger, NULL);
    (void)shutdown(p->to, SHUT_RD);
    return NULL;
}

static int relay(int service, struct failure *ret_failure)
{
    struct pipe output = {.from = service, .to = STDOUT_FILENO};
    /* The thread's own: it may outlive this function. */
    _cleanup_free_ struct pipe *input = malloc(sizeof(*input));
    if (!input)
        return failure_set(ret_failure, -ENOMEM, "out of memory");
    *input = (struct pipe){.from = STDIN_FILENO, .to = service};
    pthread_t thread;
    int e = pthread_create(&thread, NULL, pump_input, input);
    if (e != 0)
        return failure_set(ret_failure, -e, "cannot start a thread: %s", strerror(e));
    (void)take_ptr(input);
    pump(&output);
    /* The other thread may be in a read that never ends: it goes with the process. */
    return 0;
}

int stdio_run(const struct service_settings *settings, struct failure *ret_failure)
{
    (void)signal(SIGPIPE, SIG_IGN);
    _cleanup_free_ char *path = NULL;
    if (sockets_root_path(settings->root, &path) < 0)
        return failure_set(ret_failure, -ENOMEM, "out of memory");
    int fd; /* open until the process ends: the input's thread uses it */
    int r = connect_or_start(settings, path, &fd, ret_failure);
    return r < 0 ? r : relay(fd, ret_failure);
}

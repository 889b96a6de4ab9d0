#include "provider/step.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "cli/programs.h"
#include "provider/template.h"

/* What a program says last may still be in its pipes when it has ended; what it has left behind may
 * hold them for ever. */
#define DRAIN_MS 500

struct running {
    pid_t pid;
    int pidfd;
    int output;
    int errors;
};

static void running_release(struct running *p)
{
    close_fd(&p->pidfd);
    close_fd(&p->output);
    close_fd(&p->errors);
}

void step_result_release(struct step_result *r)
{
    buffer_release(&r->output);
    buffer_release(&r->errors);
}

static void handled_signals(sigset_t *ret)
{
    (void)sigemptyset(ret);
    (void)sigaddset(ret, SIGINT);
    (void)sigaddset(ret, SIGTERM);
    (void)sigaddset(ret, SIGHUP);
}

int step_signals_block(int *ret_fd)
{
    sigset_t set;
    handled_signals(&set);
    int fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (fd < 0)
        return -errno;
    (void)sigprocmask(SIG_BLOCK, &set, NULL);
    *ret_fd = fd;
    return 0;
}

void step_signals_unblock(int *fd)
{
    sigset_t set;
    if (*fd < 0)
        return;
    close_fd(fd);
    handled_signals(&set);
    (void)sigprocmask(SIG_UNBLOCK, &set, NULL);
}

/* --- starting ---------------------------------------------------------------------- */

static bool is_replaced(const char *entry, const json_t *environment)
{
    return json_object_getn(environment, entry, strcspn(entry, "="));
}

/* A token for our service is none of the vendor's business. */
static char **make_environment(const json_t *environment)
{
    size_t count = json_object_size(environment), kept = 0;
    const char *name;
    json_t *value;
    for (size_t i = 0; environ[i]; i++)
        count++;
    _cleanup_words_ char **copy = calloc(count + 1, sizeof *copy);
    if (!copy)
        return NULL;
    for (size_t i = 0; environ[i]; i++)
        if (strncmp(environ[i], "BERTH_TOKEN=", strlen("BERTH_TOKEN=")) != 0 &&
            !is_replaced(environ[i], environment) && !(copy[kept++] = strdup(environ[i])))
            return NULL;
    json_object_foreach((json_t *)(uintptr_t)environment, name, value)
    {
        if (json_is_null(value))
            continue;
        if (asprintf(&copy[kept], "%s=%s", name, json_string_value(value)) < 0) {
            copy[kept] = NULL;
            return NULL;
        }
        kept++;
    }
    return take_ptr(copy);
}

/* Between fork and exec: another thread may hold any lock. */
static _Noreturn void become(const char *program, char *const *argv, char *const *environment,
                             int input, int output, int errors, int failed, pid_t parent)
{
    sigset_t none;
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    (void)signal(SIGPIPE, SIG_DFL);
    (void)setsid();
    /* Nothing goes on being made for a maker who was killed. */
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() == parent && dup2(input, STDIN_FILENO) >= 0 && dup2(output, STDOUT_FILENO) >= 0 &&
        dup2(errors, STDERR_FILENO) >= 0)
        (void)execve(program, argv, environment);
    int error = errno;
    ssize_t ignored = write(failed, &error, sizeof error);
    (void)ignored;
    _exit(127);
}

/* A pipe, neither end of which is a standard descriptor, which a caller may have closed. */
static int make_pipe(int *ret_reads, int *ret_writes)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) < 0)
        return -errno;
    *ret_reads = fcntl(ends[0], F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    *ret_writes = fcntl(ends[1], F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    (void)close(ends[0]);
    (void)close(ends[1]);
    return *ret_reads < 0 || *ret_writes < 0 ? -EMFILE : 0;
}

static int start(const char *program, char *const *argv, const char *input_file,
                 const json_t *variables, struct running *ret)
{
    _cleanup_close_ int output = -1, errors = -1, failed_read = -1, failed = -1, input = -1;
    _cleanup_(running_release) struct running p = {.pidfd = -1, .output = -1, .errors = -1};
    _cleanup_words_ char **environment = make_environment(variables);
    int error = 0;
    if (!environment)
        return -ENOMEM;
    int opened = open(input_file ? input_file : "/dev/null", O_RDONLY | O_CLOEXEC);
    if (opened < 0)
        return -errno;
    input = fcntl(opened, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    (void)close(opened);
    int r = make_pipe(&p.output, &output);
    if (r == 0)
        r = make_pipe(&p.errors, &errors);
    if (r == 0)
        r = make_pipe(&failed_read, &failed);
    if (r < 0)
        return r;
    pid_t parent = getpid();
    (void)fflush(NULL);
    p.pid = fork();
    if (p.pid < 0)
        return -errno;
    if (p.pid == 0)
        become(program, argv, environment, input, output, errors, failed, parent);
    close_fd(&failed);
    p.pidfd = pidfd_open(p.pid, 0);
    if (p.pidfd < 0 || read(failed_read, &error, sizeof error) == (ssize_t)sizeof error) {
        r = p.pidfd < 0 ? -errno : -error;
        (void)kill(p.pid, SIGKILL);
        (void)waitpid(p.pid, NULL, 0);
        return r;
    }
    (void)fcntl(p.output, F_SETFL, O_NONBLOCK);
    (void)fcntl(p.errors, F_SETFL, O_NONBLOCK);
    *ret = p;
    p = (struct running){.pidfd = -1, .output = -1, .errors = -1};
    return 0;
}

/* --- waiting ----------------------------------------------------------------------- */

/* Reads what there is; keeps the beginning. At its end *fd is closed. */
static int take_output(int *fd, struct buffer *kept)
{
    char data[8192];
    ssize_t n = read(*fd, data, sizeof data);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    if (n <= 0) {
        close_fd(fd);
        return 0;
    }
    size_t room = STEP_OUTPUT_MAX - kept->len;
    return buffer_append(kept, data, (size_t)n < room ? (size_t)n : room);
}

static int remaining_ms(uint64_t deadline_ns)
{
    uint64_t now = clock_monotonic_ns();
    return now >= deadline_ns ? 0 : (int)((deadline_ns - now) / NSEC_PER_MSEC) + 1;
}

/* Everything of its session, as far as it has not made another. */
static void end(const struct running *p)
{
    (void)kill(-p->pid, SIGKILL);
    (void)kill(p->pid, SIGKILL);
}

static int wait_for(struct running *p, uint64_t deadline_ns, int signal_fd,
                    struct step_result *result)
{
    bool ended = false;
    while (p->output >= 0 || p->errors >= 0 || !ended) {
        struct pollfd fds[] = {{.fd = p->output, .events = POLLIN},
                               {.fd = p->errors, .events = POLLIN},
                               {.fd = ended ? -1 : p->pidfd, .events = POLLIN},
                               {.fd = ended ? -1 : signal_fd, .events = POLLIN}};
        int n = poll(fds, ARRAY_SIZE(fds), remaining_ms(deadline_ns));
        if (n < 0 && errno != EINTR)
            return -errno;
        int r = n > 0 && fds[0].revents ? take_output(&p->output, &result->output) : 0;
        if (r == 0 && n > 0 && fds[1].revents)
            r = take_output(&p->errors, &result->errors);
        if (r < 0)
            return r;
        if (n > 0 && fds[2].revents) {
            ended = true;
            deadline_ns = clock_monotonic_ns() + DRAIN_MS * NSEC_PER_MSEC;
        }
        if (n > 0 && fds[3].revents && !ended) {
            struct signalfd_siginfo taken;
            ssize_t size = read(signal_fd, &taken, sizeof taken);
            result->interrupted = size == (ssize_t)sizeof taken;
            if (result->interrupted)
                return 0;
        }
        if (n == 0 && remaining_ms(deadline_ns) == 0) {
            result->timed_out = !ended;
            return 0;
        }
    }
    return 0;
}

int step_run(char *const *argv, const char *input, const json_t *environment, uint32_t timeout_ms,
             int signal_fd, struct step_result *ret, struct failure *ret_failure)
{
    _cleanup_step_ struct step_result result = {0};
    _cleanup_(running_release) struct running p = {.pidfd = -1, .output = -1, .errors = -1};
    _cleanup_free_ char *program = NULL;
    uint64_t deadline = clock_monotonic_ns() + timeout_ms * NSEC_PER_MSEC;
    int status;
    int r = argv[0][0] == '/' ? ((program = strdup(argv[0])) ? 0 : -ENOMEM)
                              : program_find_system(argv[0], &program);
    if (r == -ENOENT)
        return failure_set(ret_failure, r, "%.200s is not installed here", argv[0]);
    if (r == 0)
        r = start(program, argv, input, environment, &p);
    if (r < 0)
        return failure_set(ret_failure, r, "%.200s cannot be run: %s", argv[0], strerror(-r));
    r = wait_for(&p, deadline, signal_fd, &result);
    if (r < 0 || result.timed_out || result.interrupted)
        end(&p);
    while (waitpid(p.pid, &status, 0) < 0)
        if (errno != EINTR)
            return failure_set(ret_failure, -errno, "%s", strerror(errno));
    if (r < 0)
        return failure_set(ret_failure, r, "%.200s: %s", argv[0], strerror(-r));
    result.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    *ret = result;
    result = (struct step_result){0};
    return 0;
}

bool step_first_line(const struct step_result *r, char ret[STEP_LINE_MAX])
{
    const struct buffer *b = &r->output;
    for (size_t at = 0; at < b->len;) {
        const uint8_t *line = b->data + at, *end = memchr(line, '\n', b->len - at);
        size_t len = end ? (size_t)(end - line) : b->len - at;
        at += len + 1;
        while (len > 0 && (line[len - 1] == ' ' || line[len - 1] == '\r'))
            len--;
        if (len == 0)
            continue;
        if (len >= STEP_LINE_MAX || memchr(line, 0, len))
            return false;
        memcpy(ret, line, len);
        ret[len] = '\0';
        return true;
    }
    return false;
}

void step_words(const struct step_result *r, char ret[STEP_WORDS_MAX])
{
    const struct buffer *b = r->errors.len ? &r->errors : &r->output;
    size_t end = b->len, start;
    while (end > 0 && (b->data[end - 1] == '\n' || b->data[end - 1] == ' '))
        end--;
    /* As much of the end as is readable in a sentence, from the beginning of a line if it can be.
     */
    start = end > STEP_WORDS_MAX / 2 ? end - STEP_WORDS_MAX / 2 : 0;
    const uint8_t *line = start ? memchr(b->data + start, '\n', end - start) : NULL;
    if (line)
        start = (size_t)(line - b->data) + 1;
    char text[STEP_WORDS_MAX / 2 + 1];
    size_t len = end - start;
    if (len)
        memcpy(text, b->data + start, len);
    for (size_t i = 0; i < len; i++)
        if (text[i] == '\n' || text[i] == '\t' || text[i] == '\r')
            text[i] = ' ';
    (void)log_escape(text, len, ret, STEP_WORDS_MAX);
}

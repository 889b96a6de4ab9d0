#include "confine/probe.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>

#include "base/cleanup.h"

/* How long a probe may take; far above what it needs on a machine that is busy. */
#define PROBE_MS 10000

struct probe {
    const struct sandbox *sandbox;
    int mounts;
    const struct restraint *restraint;
    int to;
};

struct measurement {
    int32_t error;
    uint32_t step;
    struct attest_facts facts;
};

static _Noreturn void probe_run(const struct probe *p)
{
    struct measurement m = {0};
    m.error = restraint_probe(p->restraint, p->restraint->landlock, &m.facts, &m.step);
    ssize_t n = write(p->to, &m, sizeof m);
    (void)n;
    _exit(0);
}

/* What is behind it is inside of the sandbox, itself it is not. */
static _Noreturn void probe_usher(const struct probe *p)
{
    if (!p->sandbox)
        probe_run(p);
    int r = sandbox_join(p->sandbox, p->mounts);
    pid_t pid = r < 0 ? -1 : _Fork();
    if (pid == 0)
        probe_run(p);
    while (pid > 0 && waitpid(pid, NULL, 0) < 0 && errno == EINTR)
        ;
    _exit(0);
}

int probe_measure(const struct sandbox *sandbox, int mounts, const struct restraint *restraint,
                  struct attest_facts *ret, uint32_t *ret_step)
{
    struct measurement m = {.step = RESTRAINT_MEASURE};
    int ends[2];
    *ret_step = m.step;
    if (pipe2(ends, O_CLOEXEC) < 0)
        return -errno;
    _cleanup_close_ int from = ends[0];
    const struct probe probe = {
        .sandbox = sandbox, .mounts = mounts, .restraint = restraint, .to = ends[1]};
    pid_t pid = fork();
    if (pid == 0)
        probe_usher(&probe);
    (void)close(ends[1]);
    if (pid < 0)
        return -EAGAIN;
    struct pollfd ready = {.fd = from, .events = POLLIN};
    int n;
    while ((n = poll(&ready, 1, PROBE_MS)) < 0 && errno == EINTR)
        ;
    int r = n > 0 && read(from, &m, sizeof m) == sizeof m ? m.error : -ETIMEDOUT;
    if (n <= 0)
        (void)kill(pid, SIGKILL);
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
        ;
    *ret_step = m.step;
    if (r == 0)
        *ret = m.facts;
    return r;
}

#include "exec/processes.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "base/cleanup.h"
#include "base/dir.h"

/* The kernel's struct pidfd_info in its first version, which headers of Linux 6.1 do not have. */
struct pidfd_info {
    uint64_t mask;
    uint64_t cgroup;
    uint32_t ids[11];
    int32_t exit_code; /* as wait() has it */
};
#define PIDFD_INFO_EXIT UINT64_C(8)
#define PIDFD_GET_INFO _IOWR(0xff, 11, struct pidfd_info)

/* Parses /proc/PID/stat. The name in parentheses is the process's own choice, with
 * parentheses, spaces and newlines in it: the fields begin after the last ')'. */
static bool parse_stat(char *text, struct process *p)
{
    const char *fields = strrchr(text, ')');
    char state;
    long threads, pages;
    unsigned long long start, ticks[4];
    if (!fields ||
        sscanf(fields + 1,
               " %c %d %d %d %*d %*d %*u %*u %*u %*u %*u %llu %llu %llu %llu %*d %*d %ld "
               "%*d %llu %*u %ld",
               &state, &p->parent, &p->group, &p->session, &ticks[0], &ticks[1], &ticks[2],
               &ticks[3], &threads, &start, &pages) != 11)
        return false;
    p->start = start;
    p->cpu_ticks = ticks[0] + ticks[1] + ticks[2] + ticks[3];
    p->pages = pages > 0 ? (uint64_t)pages : 0;
    /* A process whose first thread has ended says Z while the others go on. */
    p->ended = (state == 'Z' && threads <= 1) || state == 'X' || state == 'x';
    p->stopped = state == 'T' || state == 't';
    return true;
}

static int read_at(int proc, const char *pid, struct process *ret)
{
    char path[32];
    if ((size_t)snprintf(path, sizeof path, "%s/stat", pid) >= sizeof path)
        return -ESRCH;
    _cleanup_close_ int fd = openat(proc, path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT ? -ESRCH : -errno;
    char text[1024];
    ssize_t n = read(fd, text, sizeof text - 1);
    if (n <= 0)
        return -ESRCH;
    text[n] = 0;
    struct process p = {.pid = (pid_t)strtol(pid, NULL, 10)};
    if (!parse_stat(text, &p))
        return -EPROTO;
    *ret = p;
    return 0;
}

int process_read(pid_t pid, struct process *ret)
{
    _cleanup_close_ int proc = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    char text[16];
    if (proc < 0)
        return -errno;
    (void)snprintf(text, sizeof text, "%d", pid);
    return read_at(proc, text, ret);
}

static int reserve(struct processes *p)
{
    if (p->count < p->allocated)
        return 0;
    size_t size = p->allocated ? p->allocated * 2 : 256;
    struct process *larger = reallocarray(p->items, size, sizeof *larger);
    if (!larger)
        return -ENOMEM;
    p->items = larger;
    p->allocated = size;
    return 0;
}

static int compare_pids(const void *a, const void *b)
{
    const struct process *left = a;
    const struct process *right = b;
    return (left->pid > right->pid) - (left->pid < right->pid);
}

int processes_read(struct processes *ret)
{
    _cleanup_dir_ DIR *directory = opendir("/proc");
    int r = directory ? 0 : -errno;
    _cleanup_processes_ struct processes p = {0};
    const struct dirent *entry;
    while (r >= 0 && (r = dir_next(directory, &entry)) == 1) {
        if (entry->d_name[0] < '1' || entry->d_name[0] > '9')
            continue;
        r = reserve(&p);
        if (r == 0 && read_at(dirfd(directory), entry->d_name, &p.items[p.count]) == 0)
            p.count++;
    }
    if (r < 0)
        return r;
    if (p.count > 0)
        qsort(p.items, p.count, sizeof *p.items, compare_pids);
    *ret = p;
    p = (struct processes){0};
    return 0;
}

void processes_release(struct processes *p)
{
    free(p->items);
    *p = (struct processes){0};
}

struct process *processes_find(const struct processes *p, pid_t pid)
{
    const struct process key = {.pid = pid};
    return p->count > 0 ? bsearch(&key, p->items, p->count, sizeof key, compare_pids) : NULL;
}

/* Parents mostly have the lower number, so one pass finds nearly all; chains that were made the
 * other way round on purpose cost one more each time the numbers wrap. */
void processes_mark_descendants(struct processes *p)
{
    for (bool changed = true; changed;) {
        changed = false;
        for (size_t i = 0; i < p->count; i++) {
            struct process *child = &p->items[i];
            const struct process *parent = child->member ? NULL : processes_find(p, child->parent);
            if (parent && parent->member)
                changed = child->member = true;
        }
        if (!changed)
            return;
        changed = false;
        for (size_t i = p->count; i-- > 0;) {
            struct process *child = &p->items[i];
            const struct process *parent = child->member ? NULL : processes_find(p, child->parent);
            if (parent && parent->member)
                changed = child->member = true;
        }
    }
}

int process_ended_status(int pidfd, siginfo_t *ret)
{
    struct pidfd_info info = {.mask = PIDFD_INFO_EXIT};
    if (ioctl(pidfd, PIDFD_GET_INFO, &info) < 0)
        return errno == ESRCH ? -EAGAIN : -EOPNOTSUPP;
    if (!(info.mask & PIDFD_INFO_EXIT))
        return -EAGAIN;
    int status = info.exit_code;
    *ret = (siginfo_t){.si_code = WIFEXITED(status)   ? CLD_EXITED
                                  : WCOREDUMP(status) ? CLD_DUMPED
                                                      : CLD_KILLED};
    ret->si_status = WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status);
    return 0;
}

int process_signal(const struct process *p, int signal)
{
    _cleanup_close_ int pidfd = (int)syscall(SYS_pidfd_open, p->pid, 0);
    if (pidfd < 0)
        return -errno;
    /* Seen to be the same after the descriptor was opened: it can be no other any more. */
    struct process now;
    int r = process_read(p->pid, &now);
    if (r < 0)
        return r;
    if (now.start != p->start)
        return -ESRCH;
    return syscall(SYS_pidfd_send_signal, pidfd, signal, NULL, 0) < 0 ? -errno : 0;
}

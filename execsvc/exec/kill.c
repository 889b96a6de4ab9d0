#include "exec/kill.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>

#include "base/cleanup.h"
#include "base/table.h"

/* pid and start time together name a process for good: the pid alone is used again. */
struct process {
    pid_t pid;
    pid_t parent;
    pid_t group;
    pid_t session;
    uint64_t start;
    bool ended;
    bool member;
};

struct snapshot {
    struct process *processes;
    size_t count;
    size_t allocated;
};

struct member {
    pid_t pid;
    uint64_t start;
    bool alive;
};

struct kill_set {
    pid_t leader;
    struct table members; /* by pid; a table, since a fork bomb makes tens of thousands */
    size_t replaced;      /* members whose number became another member's */
};

static void snapshot_release(struct snapshot *s)
{
    free(s->processes);
}

/* Reads /proc/PID/stat. The name in parentheses is the process's own choice, with
 * parentheses, spaces and newlines in it: the fields begin after the last ')'. */
static bool process_read(int proc, const char *pid, struct process *ret)
{
    char path[32];
    if ((size_t)snprintf(path, sizeof path, "%s/stat", pid) >= sizeof path)
        return false;
    _cleanup_close_ int fd = openat(proc, path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    char text[1024];
    ssize_t n = read(fd, text, sizeof text - 1);
    if (n <= 0)
        return false;
    text[n] = 0;
    const char *fields = strrchr(text, ')');
    char state;
    struct process p = {.pid = (pid_t)strtol(pid, NULL, 10)};
    unsigned long long start;
    if (!fields || sscanf(fields + 1,
                          " %c %d %d %d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d "
                          "%*d %llu",
                          &state, &p.parent, &p.group, &p.session, &start) != 5)
        return false;
    p.start = start;
    p.ended = state == 'Z' || state == 'X' || state == 'x';
    *ret = p;
    return true;
}

static void close_directory(DIR **d)
{
    if (*d)
        (void)closedir(*d);
}

static int snapshot_reserve(struct snapshot *s)
{
    if (s->count < s->allocated)
        return 0;
    size_t size = s->allocated ? s->allocated * 2 : 256;
    struct process *larger = reallocarray(s->processes, size, sizeof *larger);
    if (!larger)
        return -ENOMEM;
    s->processes = larger;
    s->allocated = size;
    return 0;
}

static int compare_pids(const void *a, const void *b)
{
    const struct process *left = a;
    const struct process *right = b;
    return (left->pid > right->pid) - (left->pid < right->pid);
}

static int snapshot_take(struct snapshot *ret)
{
    _cleanup_(close_directory) DIR *directory = opendir("/proc");
    if (!directory)
        return -errno;
    _cleanup_(snapshot_release) struct snapshot s = {0};
    const struct dirent *entry;
    while ((entry = readdir(directory))) {
        if (entry->d_name[0] < '1' || entry->d_name[0] > '9')
            continue;
        int r = snapshot_reserve(&s);
        if (r < 0)
            return r;
        if (process_read(dirfd(directory), entry->d_name, &s.processes[s.count]))
            s.count++;
    }
    if (s.count > 0)
        qsort(s.processes, s.count, sizeof *s.processes, compare_pids);
    *ret = s;
    s = (struct snapshot){0};
    return 0;
}

static struct process *snapshot_find(const struct snapshot *s, pid_t pid)
{
    const struct process key = {.pid = pid};
    if (s->count == 0)
        return NULL;
    return bsearch(&key, s->processes, s->count, sizeof key, compare_pids);
}

static void snapshot_mark(struct snapshot *s, const struct kill_set *set)
{
    for (size_t i = 0; i < s->count; i++) {
        struct process *p = &s->processes[i];
        p->member = p->pid == set->leader || p->group == set->leader || p->session == set->leader;
    }
    const struct member *m;
    for (size_t i = 0; (m = table_next(&set->members, &i));) {
        struct process *p = snapshot_find(s, m->pid);
        if (p && p->start == m->start)
            p->member = true;
    }
    /* Children of members are members, until no more are found. */
    for (bool changed = true; changed;) {
        changed = false;
        for (size_t i = 0; i < s->count; i++) {
            struct process *p = &s->processes[i];
            const struct process *parent = p->member ? NULL : snapshot_find(s, p->parent);
            if (parent && parent->member)
                changed = p->member = true;
        }
    }
}

static int set_remember(struct kill_set *set, const struct process *p)
{
    struct member *m = table_get(&set->members, (uint64_t)p->pid);
    if (m && m->start == p->start) {
        m->alive = true;
        return 0;
    }
    if (m) {
        set->replaced++;
    } else {
        m = calloc(1, sizeof *m);
        if (!m)
            return -ENOMEM;
        int r = table_put(&set->members, (uint64_t)p->pid, m, NULL);
        if (r < 0) {
            free(m);
            return r;
        }
    }
    *m = (struct member){.pid = p->pid, .start = p->start, .alive = true};
    return 0;
}

int kill_set_new(pid_t leader, struct kill_set **ret)
{
    struct kill_set *set = calloc(1, sizeof *set);
    if (!set)
        return -ENOMEM;
    set->leader = leader;
    *ret = set;
    return 0;
}

void kill_set_free(struct kill_set *set)
{
    if (!set)
        return;
    struct member *m;
    for (size_t i = 0; (m = table_next(&set->members, &i));)
        free(m);
    table_release(&set->members);
    free(set);
}

int kill_set_scan(struct kill_set *set)
{
    _cleanup_(snapshot_release) struct snapshot s = {0};
    int r = snapshot_take(&s);
    if (r < 0)
        return r;
    snapshot_mark(&s, set);
    struct member *m;
    for (size_t i = 0; (m = table_next(&set->members, &i));)
        m->alive = false;
    int alive = 0;
    for (size_t i = 0; i < s.count; i++) {
        if (!s.processes[i].member || s.processes[i].ended)
            continue;
        r = set_remember(set, &s.processes[i]);
        if (r < 0)
            return r;
        alive++;
    }
    return alive;
}

/* Through a descriptor, and only after the start time was seen to be the member's: between the
 * scan and the signal the number may have become another process's. */
static void member_signal(const struct member *m, int signal)
{
    _cleanup_close_ int pidfd = (int)syscall(SYS_pidfd_open, m->pid, 0);
    if (pidfd < 0)
        return;
    _cleanup_close_ int proc = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    char pid[16];
    struct process p;
    (void)snprintf(pid, sizeof pid, "%d", m->pid);
    if (proc >= 0 && process_read(proc, pid, &p) && p.start == m->start)
        (void)syscall(SYS_pidfd_send_signal, pidfd, signal, NULL, 0);
}

int kill_set_signal(struct kill_set *set, int signal)
{
    int alive = kill_set_scan(set);
    /* The group first and in one call: members that fork all the time cannot outrun it. */
    (void)kill(-set->leader, signal);
    if (alive < 0)
        return alive;
    const struct member *m;
    for (size_t i = 0; (m = table_next(&set->members, &i));) {
        if (m->alive && getpgid(m->pid) != set->leader)
            member_signal(m, signal);
    }
    return alive;
}

size_t kill_set_removed(const struct kill_set *set)
{
    size_t removed = set->replaced;
    const struct member *m;
    for (size_t i = 0; (m = table_next(&set->members, &i));)
        removed += !m->alive;
    return removed;
}

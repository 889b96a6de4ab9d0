#include "exec/kill.h"

#include <poll.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/table.h"
#include "confine/confinement.h"
#include "confine/view.h"
#include "exec/processes.h"

/* How long everything is held still before it is killed, so that the receipt counts what there was
 * and what forks all the time cannot run away. */
#define FREEZE_MS 200

/* Looks for what was forked while we looked; each stops what it finds. */
#define FREEZE_ROUNDS 16

/* How long a killed process is waited for when nobody reaps it later. */
#define REAP_WAIT_MS 1000

/* How long whoever inherits a leader may take to reap it. */
#define REAPED_BY_OTHERS_MS 50

/* How long a monitor with nothing below it takes to end, at most: else one looks. */
#define MONITOR_END_MS 5

struct member {
    pid_t pid;
    uint64_t start; /* 0: not known */
    bool alive;
};

struct kill_set {
    enum wire_means means;
    struct confinement *confinement;
    struct cgroup *cgroup;
    struct cell *cell; /* held, or NULL */
    struct view *view; /* likewise */
    struct monitor monitor;
    pid_t leader;       /* 0: not started */
    int leader_pidfd;   /* a copy of our own */
    bool leader_reaped; /* its number may be another's */
    bool unwatched;     /* nothing comes from the monitor any more, and the leader lived */
    bool waited;        /* for the monitor to end behind it */
    bool empty;
    struct table members; /* by pid; a table, since a fork bomb makes tens of thousands */
    size_t replaced;      /* members whose number became another member's */
};

static bool by_cgroup(const struct kill_set *set)
{
    return set->means == WIRE_MEANS_CGROUP;
}

int kill_set_new(struct confinement *confinement, struct cell *cell, struct view *view,
                 struct kill_set **ret)
{
    struct kill_set *set = calloc(1, sizeof *set);
    if (!set)
        return -ENOMEM;
    *set = (struct kill_set){.means = WIRE_MEANS_SUBREAPER,
                             .confinement = confinement,
                             .monitor = MONITOR_NONE,
                             .leader_pidfd = -1};
    if (confinement)
        confinement_sweep(confinement);
    struct cgroup_base *base = confinement ? confinement_cgroups(confinement) : NULL;
    if (base && cgroup_new(base, &set->cgroup) == 0)
        set->means = WIRE_MEANS_CGROUP;
    if (cell)
        set->cell = confinement_share_cell(cell);
    if (view)
        set->view = view_share(view);
    *ret = set;
    return 0;
}

int kill_set_limit(struct kill_set *set, const struct cgroup_limits *l)
{
    if (l->memory_bytes == 0 && l->processes == 0 && l->cpu_percent == 0)
        return 0;
    if (!by_cgroup(set))
        return -EOPNOTSUPP;
    int r = l->memory_bytes > 0 ? cgroup_limit_memory(set->cgroup, l->memory_bytes) : 0;
    if (r == 0 && l->processes > 0)
        r = cgroup_limit_pids(set->cgroup, l->processes);
    return r == 0 && l->cpu_percent > 0 ? cgroup_limit_cpu(set->cgroup, l->cpu_percent) : r;
}

int kill_set_spawn(struct kill_set *set, const struct spawn_options *options,
                   struct spawn_child *ret, enum wire_exec_stage *ret_stage)
{
    const struct spawn_place place = {
        .sandbox = set->cell ? cell_sandbox(set->cell) : NULL,
        .mounts = set->view ? view_mounts(set->view) : -1,
        .restraint = set->view   ? view_restraint(set->view)
                     : set->cell ? cell_restraint(set->cell)
                                 : NULL,
        .cgroup = by_cgroup(set) ? cgroup_fd(set->cgroup) : -1,
        .monitored = !by_cgroup(set),
    };
    struct spawn_options placed = *options;
    placed.place = &place;
    struct spawn_child child;
    int r = spawn_start(&placed, &child, ret_stage);
    if (r < 0)
        return r;
    set->leader = child.pid;
    set->leader_pidfd = child.pidfd;
    set->monitor = child.monitor;
    *ret = child;
    return 0;
}

/* --- the leader ------------------------------------------------------------------ */

int kill_set_ended_fd(const struct kill_set *set)
{
    return set->monitor.pid > 0 && !set->unwatched ? set->monitor.channel : set->leader_pidfd;
}

void kill_set_wake(const struct kill_set *set)
{
    if (set->monitor.pid > 0)
        monitor_wake(&set->monitor);
}

/* The monitor is gone without having been told to. Whatever has inherited the leader reaps it. */
static void set_lost(struct kill_set *set)
{
    set->means = WIRE_MEANS_TREE;
    set->leader_reaped = true;
}

/* Whoever has inherited the leader reaps it, soon after its end. */
static int wait_for_inherited(const struct kill_set *set, siginfo_t *ret)
{
    struct pollfd ended = {.fd = set->leader_pidfd, .events = POLLIN};
    if (poll(&ended, 1, 0) == 0)
        return -EAGAIN;
    int r;
    for (int i = 0; (r = process_ended_status(set->leader_pidfd, ret)) == -EAGAIN; i++) {
        if (i == REAPED_BY_OTHERS_MS)
            break;
        (void)usleep(1000);
    }
    return r < 0 ? -ECHILD : 0;
}

int kill_set_wait(struct kill_set *set, siginfo_t *ret)
{
    if (set->monitor.pid > 0 && !set->unwatched) {
        int r = monitor_wait(&set->monitor, ret);
        if (r == -EAGAIN)
            return r;
        set->leader_reaped = true;
        if (r == 0)
            return 0;
        set_lost(set);
        set->unwatched = true;
    }
    if (set->unwatched)
        return wait_for_inherited(set, ret);
    siginfo_t info = {0};
    /* Looked at, not reaped: the number must stay the leader's own as long as its group may
     * still be signalled. */
    if (waitid(P_PIDFD, (id_t)set->leader_pidfd, &info, WEXITED | WNOHANG | WNOWAIT) < 0)
        return -ECHILD;
    if (info.si_pid == 0)
        return -EAGAIN;
    *ret = info;
    return 0;
}

int kill_set_signal_group(struct kill_set *set, int signal)
{
    if (set->leader <= 0 || set->leader_reaped)
        return -ESRCH;
    if (kill(-set->leader, signal) == 0)
        return 0;
    int error = errno;
    /* Perhaps it is not yet the leader of its group. */
    if (error == ESRCH && syscall(SYS_pidfd_send_signal, set->leader_pidfd, signal, NULL, 0) == 0)
        return 0;
    return -error;
}

/* --- looking --------------------------------------------------------------------- */

static int set_remember(struct kill_set *set, pid_t pid, uint64_t start)
{
    struct member *m = table_get(&set->members, (uint64_t)pid);
    if (m && m->start == start) {
        m->alive = true;
        return 0;
    }
    if (m) {
        set->replaced++;
    } else {
        m = calloc(1, sizeof *m);
        if (!m)
            return -ENOMEM;
        int r = table_put(&set->members, (uint64_t)pid, m, NULL);
        if (r < 0) {
            free(m);
            return r;
        }
    }
    *m = (struct member){.pid = pid, .start = start, .alive = true};
    return 0;
}

static void forget_who_lives(struct kill_set *set)
{
    struct member *m;
    for (size_t i = 0; (m = table_next(&set->members, &i));)
        m->alive = false;
}

/* Everything below the monitor; or, without it, what was seen before and what descends from that.
 */
static void mark_members(const struct kill_set *set, struct processes *all)
{
    struct process *monitor =
        set->means == WIRE_MEANS_SUBREAPER ? processes_find(all, set->monitor.pid) : NULL;
    if (monitor)
        monitor->member = true;
    for (size_t i = 0; set->means == WIRE_MEANS_TREE && i < all->count; i++) {
        struct process *p = &all->items[i];
        p->member = p->group == set->leader || p->session == set->leader;
    }
    const struct member *m;
    for (size_t i = 0; (m = table_next(&set->members, &i));) {
        struct process *p = processes_find(all, m->pid);
        if (p && p->start == m->start)
            p->member = true;
    }
    processes_mark_descendants(all);
    if (monitor)
        monitor->member = false;
}

static bool is_living_member(const struct process *p)
{
    return p->member && !p->ended;
}

/* Members of a set without a cgroup, remembered. What *ret held is replaced. */
static int look_in_proc(struct kill_set *set, struct processes *ret)
{
    _cleanup_processes_ struct processes all = {0};
    int r = processes_read(&all);
    processes_release(ret);
    if (r < 0)
        return r;
    mark_members(set, &all);
    forget_who_lives(set);
    for (size_t i = 0; r == 0 && i < all.count; i++)
        if (is_living_member(&all.items[i]))
            r = set_remember(set, all.items[i].pid, all.items[i].start);
    *ret = all;
    all = (struct processes){0};
    return r;
}

static void on_member(void *context, pid_t pid)
{
    if (pid > 0)
        (void)set_remember(context, pid, 0);
}

static void look_in_cgroup(struct kill_set *set)
{
    forget_who_lives(set);
    (void)cgroup_members(set->cgroup, on_member, set);
}

static size_t count_members(const struct kill_set *set, bool alive)
{
    size_t count = 0;
    const struct member *m;
    for (size_t i = 0; (m = table_next(&set->members, &i));)
        count += m->alive == alive;
    return count;
}

/* A monitor that has just been told that its leader may be reaped needs a moment: waited for once.
 */
static bool monitor_has_ended(struct kill_set *set, bool *ret_killed)
{
    struct pollfd ended = {.fd = set->monitor.pidfd, .events = POLLIN};
    if (set->leader_reaped && !set->waited)
        (void)poll(&ended, 1, MONITOR_END_MS);
    set->waited = set->leader_reaped;
    return monitor_ended(&set->monitor, ret_killed);
}

bool kill_set_is_empty(struct kill_set *set)
{
    bool killed = false;
    if (set->empty || set->leader <= 0)
        return true;
    if (by_cgroup(set)) {
        set->empty = cgroup_populated(set->cgroup) == 0;
    } else if (set->means == WIRE_MEANS_SUBREAPER && monitor_has_ended(set, &killed)) {
        if (killed)
            set_lost(set);
        else
            set->empty = true;
    }
    if (set->means == WIRE_MEANS_TREE) {
        _cleanup_processes_ struct processes all = {0};
        set->empty = look_in_proc(set, &all) == 0 && count_members(set, true) == 0;
    }
    if (set->empty)
        forget_who_lives(set);
    return set->empty;
}

size_t kill_set_alive(struct kill_set *set)
{
    if (kill_set_is_empty(set))
        return 0;
    if (by_cgroup(set)) {
        look_in_cgroup(set);
    } else if (set->means == WIRE_MEANS_SUBREAPER) {
        _cleanup_processes_ struct processes all = {0};
        (void)look_in_proc(set, &all);
    }
    size_t alive = count_members(set, true);
    /* What cannot be counted is there all the same. */
    return alive > 0 ? alive : 1;
}

/* --- signalling ------------------------------------------------------------------ */

static void signal_member(void *context, pid_t pid)
{
    const struct process member = {.pid = pid};
    struct process p;
    if (pid > 0 && process_read(member.pid, &p) == 0)
        (void)process_signal(&p, *(const int *)context);
}

void kill_set_signal(struct kill_set *set, int signal)
{
    /* The group first and in one call, so that what its members are for one another does not
     * change between the first and the last. */
    (void)kill_set_signal_group(set, signal);
    if (kill_set_is_empty(set))
        return;
    if (by_cgroup(set)) {
        look_in_cgroup(set);
        const struct member *m;
        for (size_t i = 0; (m = table_next(&set->members, &i));)
            if (m->alive && (set->leader_reaped || getpgid(m->pid) != set->leader))
                signal_member(&signal, m->pid);
        return;
    }
    _cleanup_processes_ struct processes all = {0};
    (void)look_in_proc(set, &all);
    for (size_t i = 0; i < all.count; i++)
        if (is_living_member(&all.items[i]) &&
            (set->leader_reaped || all.items[i].group != set->leader))
            (void)process_signal(&all.items[i], signal);
}

static void kill_cgroup(struct kill_set *set)
{
    /* Held still only so that they can be counted: the kernel lets none escape. */
    uint64_t until = clock_monotonic_ns() + FREEZE_MS * NSEC_PER_MSEC;
    if (cgroup_freeze(set->cgroup, true) == 0)
        while (!cgroup_frozen(set->cgroup) && clock_monotonic_ns() < until)
            (void)usleep(1000);
    look_in_cgroup(set);
    (void)cgroup_kill(set->cgroup);
    (void)cgroup_freeze(set->cgroup, false);
}

/* True if there was something that had not been stopped. */
static bool stop_all(struct kill_set *set, struct processes *all)
{
    bool found = false;
    if (look_in_proc(set, all) < 0)
        return false;
    for (size_t i = 0; i < all->count; i++) {
        if (!is_living_member(&all->items[i]) || all->items[i].stopped)
            continue;
        found = process_signal(&all->items[i], SIGSTOP) == 0 || found;
    }
    return found;
}

static void kill_in_proc(struct kill_set *set)
{
    uint64_t until = clock_monotonic_ns() + FREEZE_MS * NSEC_PER_MSEC;
    _cleanup_processes_ struct processes all = {0};
    (void)kill_set_signal_group(set, SIGSTOP);
    for (int i = 0; i < FREEZE_ROUNDS && stop_all(set, &all) && clock_monotonic_ns() < until; i++)
        ;
    (void)kill_set_signal_group(set, SIGKILL);
    for (size_t i = 0; i < all.count; i++)
        if (is_living_member(&all.items[i]))
            (void)process_signal(&all.items[i], SIGKILL);
}

void kill_set_kill(struct kill_set *set)
{
    if (kill_set_is_empty(set))
        return;
    if (by_cgroup(set)) {
        kill_cgroup(set);
        return;
    }
    kill_set_wake(set);
    kill_in_proc(set);
}

void kill_set_receipt(const struct kill_set *set, struct kill_receipt *ret)
{
    *ret = (struct kill_receipt){.removed = set->replaced + count_members(set, false),
                                 .left = count_members(set, true),
                                 .means = set->means};
}

int kill_set_freeze(struct kill_set *set, bool frozen)
{
    return set->cgroup ? cgroup_freeze(set->cgroup, frozen) : -EOPNOTSUPP;
}

bool kill_set_is_frozen(const struct kill_set *set)
{
    return set->cgroup && (cgroup_frozen(set->cgroup) || cgroup_populated(set->cgroup) == 0);
}

bool kill_set_out_of_memory(const struct kill_set *set)
{
    return set->cgroup && cgroup_out_of_memory(set->cgroup);
}

/* --- the end --------------------------------------------------------------------- */

static void reap(struct kill_set *set, int *pidfd)
{
    if (*pidfd < 0)
        return;
    if (set->confinement) {
        confinement_reap_later(set->confinement, pidfd);
        return;
    }
    /* At once, but for a process that is stuck in the kernel: a zombie of ours is then the
     * lesser evil than a service that waits for it. */
    struct pollfd ended = {.fd = *pidfd, .events = POLLIN};
    while (poll(&ended, 1, REAP_WAIT_MS) < 0 && errno == EINTR)
        ;
    siginfo_t info;
    (void)waitid(P_PIDFD, (id_t)*pidfd, &info, WEXITED | WNOHANG);
    close_fd(pidfd);
}

void kill_set_free(struct kill_set *set)
{
    if (!set)
        return;
    bool monitored = set->monitor.pid > 0;
    kill_set_kill(set);
    close_fd(&set->monitor.channel); /* the monitor now kills what is left, and what comes */
    if (monitored)
        close_fd(&set->leader_pidfd);
    reap(set, &set->monitor.pidfd);
    reap(set, &set->leader_pidfd);
    cgroup_free(set->cgroup);
    if (set->view)
        view_release(set->view);
    if (set->cell)
        confinement_release_cell(set->confinement, set->cell);
    struct member *m;
    for (size_t i = 0; (m = table_next(&set->members, &i));)
        free(m);
    table_release(&set->members);
    free(set);
}

/* --- what it uses ------------------------------------------------------------------------ */

/* How many of the members there are. */
static size_t add_up(const struct kill_set *set, uint64_t *ret_ticks, uint64_t *ret_pages)
{
    size_t seen = 0;
    const struct member *m;
    *ret_ticks = *ret_pages = 0;
    for (size_t i = 0; (m = table_next(&set->members, &i));) {
        struct process p;
        if (!m->alive || process_read(m->pid, &p) < 0 || (m->start && p.start != m->start))
            continue;
        *ret_ticks += p.cpu_ticks;
        *ret_pages += p.pages;
        seen++;
    }
    return seen;
}

int kill_set_usage(struct kill_set *set, struct kill_set_usage *ret)
{
    uint64_t ticks, pages, ns;
    if (add_up(set, &ticks, &pages) == 0 &&
        (kill_set_alive(set) == 0 || add_up(set, &ticks, &pages) == 0))
        return -ESRCH;
    long per_second = sysconf(_SC_CLK_TCK);
    *ret = (struct kill_set_usage){
        .cpu_ns = ticks * (NSEC_PER_SEC / (uint64_t)(per_second > 0 ? per_second : 100)),
        .memory_bytes = pages * (uint64_t)sysconf(_SC_PAGESIZE)};
    if (by_cgroup(set) && cgroup_cpu_ns(set->cgroup, &ns) == 0)
        ret->cpu_ns = ns;
    if (by_cgroup(set))
        (void)cgroup_memory(set->cgroup, &ret->memory_bytes);
    return 0;
}

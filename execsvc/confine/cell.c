#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "confine/disk.h"
#include "confine/private.h"
#include "confine/privileges.h"

/* How long a cell without processes is kept, for the workspace's next command. */
#define IDLE_S 60

/* Cells without processes; stops who runs a command in each of many workspaces from filling the
 * table of processes with inits. */
#define IDLE_MAX 32

/* Of a workspace, where they are counted in its own user namespace (Linux 5.14): stops a fork bomb
 * from taking all that the service's user may have. Root's are not limited so. */
#define PROCESSES_MAX 4096

/* What a cell is made of. */
struct plan {
    const struct policy *policy;
    bool sandboxed;
    bool own_root;
    bool own_network;
    bool landlocked;
    int namespaces;
    char workspace[PATH_MAX];
    char private[PATH_MAX]; /* "": in memory */
    const char *home;
};

static bool holds(const struct confinement *c, enum mechanism m)
{
    return c->findings[m].holds;
}

/* --- what can be had ------------------------------------------------------------------------- */

static int check_requirement(const struct confinement *c, const char *word, struct failure *f)
{
    for (enum level l = LEVEL_MINIMAL; l <= LEVEL_FULL; l++)
        if (strcmp(word, level_name(l)) == 0)
            return confinement_level(c) >= l
                       ? 0
                       : failure_set(f, -EOPNOTSUPP, "require: %s: this machine has %s", word,
                                     level_name(confinement_level(c)));
    for (enum mechanism m = 0; m < MECHANISM_COUNT; m++)
        if (strcmp(word, mechanism_name(m)) == 0)
            return holds(c, m)
                       ? 0
                       : failure_set(f, -EOPNOTSUPP, "require: %s: %s", word, c->findings[m].text);
    return confinement_check_name(word, f);
}

static int check_limits(const struct confinement *c, const struct policy *p, struct failure *f)
{
    const struct cgroup_limits limits = {
        .memory_bytes = p->memory_bytes, .processes = p->pids, .cpu_percent = p->cpu_percent};
    return confinement_check_limits(c, &limits, f);
}

static bool limits_disk(const struct policy *p)
{
    return p->disk_bytes > 0 || p->disk_files > 0;
}

int cell_check_policy(const struct confinement *c, const struct policy *p, struct failure *f)
{
    if (p->filesystem == POLICY_FILESYSTEM_OWN &&
        !(holds(c, MECHANISM_PID_NAMESPACE) && holds(c, MECHANISM_MOUNT_NAMESPACE)) &&
        !holds(c, MECHANISM_LANDLOCK))
        return failure_set(f, -EOPNOTSUPP,
                           "filesystem: nothing here keeps commands to their workspace: neither a "
                           "mount namespace (%s) nor Landlock (%s)",
                           c->findings[MECHANISM_MOUNT_NAMESPACE].text,
                           c->findings[MECHANISM_LANDLOCK].text);
    bool own_network = holds(c, MECHANISM_PID_NAMESPACE) && holds(c, MECHANISM_NET_NAMESPACE);
    if (p->network == POLICY_NETWORK_NONE && !own_network && !holds(c, MECHANISM_SECCOMP))
        return failure_set(f, -EOPNOTSUPP,
                           "network: nothing here keeps commands from it: neither a network "
                           "namespace (%s) nor seccomp (%s)",
                           c->findings[MECHANISM_NET_NAMESPACE].text,
                           c->findings[MECHANISM_SECCOMP].text);
    /* Landlock lets everybody connect to what has a path: the service's own socket, too. */
    if (p->filesystem == POLICY_FILESYSTEM_OWN && !holds(c, MECHANISM_SECCOMP) &&
        !(holds(c, MECHANISM_PID_NAMESPACE) && holds(c, MECHANISM_MOUNT_NAMESPACE)))
        return failure_set(f, -EOPNOTSUPP,
                           "filesystem: nothing here keeps commands from the machine's sockets: "
                           "neither a mount namespace (%s) nor seccomp (%s)",
                           c->findings[MECHANISM_MOUNT_NAMESPACE].text,
                           c->findings[MECHANISM_SECCOMP].text);
    if (p->network == POLICY_NETWORK_ALLOW && !own_network)
        return failure_set(f, -EOPNOTSUPP, "network.allow: needs a network namespace: %s",
                           c->findings[MECHANISM_NET_NAMESPACE].text);
    if (p->network == POLICY_NETWORK_ALLOW && !c->has_egress)
        return failure_set(f, -EOPNOTSUPP, "network.allow: this service has no proxy for it");
    int r = check_limits(c, p, f);
    if (r == 0 && limits_disk(p) && !holds(c, MECHANISM_SECCOMP))
        r = failure_set(f, -EOPNOTSUPP,
                        "limits.%s: nothing here keeps commands from changing what a "
                        "quota counts: seccomp: %s",
                        p->disk_bytes ? "disk" : "files", c->findings[MECHANISM_SECCOMP].text);
    for (size_t i = 0; r == 0 && i < p->require_count; i++)
        r = check_requirement(c, p->require[i], f);
    return r;
}

/* --- making one ------------------------------------------------------------------------------ */

static int path_of(int fd, char path[PATH_MAX])
{
    char link[64];
    (void)snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, PATH_MAX - 1);
    if (n < 0)
        return -errno;
    path[n] = 0;
    return 0;
}

/* Whatever mode commands have given it: none, so that it cannot be opened to be read. */
static int make_directory(int at, const char *name, mode_t mode, int *ret)
{
    char link[64];
    if (mkdirat(at, name, mode) < 0 && errno != EEXIST)
        return -errno;
    _cleanup_close_ int fd = openat(at, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    (void)snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    if (fd < 0 || chmod(link, mode) < 0)
        return -errno;
    *ret = take_fd(&fd);
    return 0;
}

/* "/a/b" is below "/a" and itself. */
static bool is_below(const char *path, const char *directory)
{
    size_t len = strlen(directory);
    return strncmp(path, directory, len) == 0 && (path[len] == 0 || path[len] == '/');
}

/* What is to be read besides must not be, or have in it, what is the service's: it has other
 * workspaces. The tree is at ROOT/workspaces/NAME/tree. */
static int check_read(const struct policy *p, const char *workspace, struct failure *f)
{
    char service[PATH_MAX];
    (void)snprintf(service, sizeof service, "%s", workspace);
    for (int i = 0; i < 3 && strrchr(service, '/'); i++)
        *strrchr(service, '/') = 0;
    for (size_t i = 0; i < p->read_count; i++) {
        _cleanup_free_ char *real = realpath(p->read[i], NULL);
        if (!real)
            return failure_set(f, -errno, "filesystem.read: %s: %s", p->read[i], strerror(errno));
        if (is_below(real, service) || is_below(service, strcmp(real, "/") == 0 ? "" : real))
            return failure_set(f, -EINVAL,
                               "filesystem.read: %s: the service's own directory, %s, is not to be "
                               "read",
                               p->read[i], service);
        int r = root_check_read(p->read[i], real, f);
        if (r < 0)
            return r;
    }
    return 0;
}

/* Nobody but the service's user reaches what is in it from outside. */
static int make_private(int directory, char path[PATH_MAX])
{
    _cleanup_close_ int private = -1;
    _cleanup_close_ int tmp = -1;
    _cleanup_close_ int home = -1;
    int r = make_directory(directory, "private", 0700, &private);
    if (r == 0)
        r = make_directory(private, "tmp", 01777, &tmp);
    if (r == 0)
        r = make_directory(private, "home", 0700, &home);
    return r == 0 ? path_of(private, path) : r;
}

static int plan_cell(const struct confinement *c, const struct cell_options *o, struct plan *ret,
                     struct failure *f)
{
    static const struct policy plain = POLICY_DEFAULT;
    const struct policy *p = o->policy ? o->policy : &plain;
    bool homeless = !o->home || strcmp(o->home, "/") == 0;
    *ret = (struct plan){.policy = p, .home = homeless ? ROOT_HOME : o->home};
    bool own_files = p->filesystem == POLICY_FILESYSTEM_OWN;
    ret->sandboxed = holds(c, MECHANISM_PID_NAMESPACE);
    ret->own_root = ret->sandboxed && own_files && holds(c, MECHANISM_MOUNT_NAMESPACE);
    ret->own_network =
        ret->sandboxed && p->network != POLICY_NETWORK_HOST && holds(c, MECHANISM_NET_NAMESPACE);
    ret->landlocked = own_files && holds(c, MECHANISM_LANDLOCK);
    if (ret->own_network)
        ret->namespaces |= CLONE_NEWNET;
    if (holds(c, MECHANISM_IPC_NAMESPACE))
        ret->namespaces |= CLONE_NEWIPC;
    if (holds(c, MECHANISM_UTS_NAMESPACE))
        ret->namespaces |= CLONE_NEWUTS;
    int r = path_of(o->root, ret->workspace);
    if (r == 0 && (r = check_read(p, ret->workspace, f)) < 0)
        return r;
    if (r == 0 && own_files && o->directory >= 0)
        r = make_private(o->directory, ret->private);
    return r < 0 ? failure_set(f, r, "the workspace's directory: %s", strerror(-r)) : 0;
}

static struct root_options root_options(const struct confinement *c, const struct plan *p)
{
    return (struct root_options){.workspace = p->workspace,
                                 .home = p->home,
                                 .private = p->private[0] ? p->private : NULL,
                                 .read = p->policy->read,
                                 .idmap = c->idmap};
}

static struct landlock_options landlock_options(const struct plan *p)
{
    return (struct landlock_options){.no_tcp = p->policy->network != POLICY_NETWORK_HOST &&
                                               !p->own_network,
                                     .no_sockets = !p->own_network,
                                     .no_signals = !p->sandboxed};
}

static int make_sandbox(const struct confinement *c, struct cell *cell, const struct plan *p,
                        struct failure *f)
{
    struct root *root = NULL;
    const struct root_options root_is = root_options(c, p);
    const struct landlock_options landlock = landlock_options(p);
    int r = p->own_root ? root_plan(&root_is, &root, f) : 0;
    if (r == 0) {
        const struct sandbox_options options = {
            .namespaces = p->namespaces,
            .root = root,
            .landlock = p->landlocked ? &landlock : NULL,
            .landlock_outside = cell->landlock,
            .port = p->policy->network == POLICY_NETWORK_ALLOW ? c->egress.port : 0,
        };
        r = sandbox_new(&options, &cell->sandbox, f);
    }
    root_free(root);
    return r;
}

static int make_landlock(const struct confinement *c, struct cell *cell, const struct plan *p,
                         struct failure *f)
{
    const struct root_options root = root_options(c, p);
    const struct landlock_options landlock = landlock_options(p);
    int r = landlock_new(&landlock, &cell->landlock);
    return r < 0 ? failure_set(f, r, "Landlock: %s", strerror(-r))
                 : root_allow_outside(&root, cell->landlock, f);
}

void cell_set_limits(struct cell *cell, const struct policy *p)
{
    struct restraint *r = &cell->restraint;
    r->open_files = p->open_files;
    r->file_size = p->file_size;
    r->cpu_time = p->cpu_time;
    r->expected.cpu_time = p->cpu_time ? p->cpu_time + RESTRAINT_CPU_GRACE : UINT64_MAX;
    r->expected.open_files = p->open_files ? p->open_files : UINT64_MAX;
    r->expected.file_size = p->file_size ? p->file_size : UINT64_MAX;
}

/* Made when it is first needed: there are many, and each takes a millisecond. */
static int plan_filter(struct confinement *c, struct cell *cell, const struct plan *p,
                       struct failure *f)
{
    bool own_files = p->policy->filesystem == POLICY_FILESYSTEM_OWN;
    bool own_ipc = p->sandboxed && (p->namespaces & CLONE_NEWIPC);
    unsigned flags =
        (p->policy->network == POLICY_NETWORK_NONE && !p->own_network ? SYSCALLS_NO_SOCKETS : 0) |
        (!p->sandboxed && !p->landlocked ? SYSCALLS_NO_TRACING : 0) |
        (own_files && !p->own_root ? SYSCALLS_NO_UNIX | SYSCALLS_NO_SETID : 0) |
        (!p->sandboxed ? SYSCALLS_NO_OTHERS : 0) | (!own_ipc ? SYSCALLS_NO_IPC : 0) |
        (limits_disk(p->policy) ? SYSCALLS_NO_PROJECTS : 0);
    struct sock_fprog *filter = &c->filters[flags];
    int r = filter->filter ? 0 : syscalls_filter_new(flags, filter, f);
    cell->restraint.filter = *filter;
    return r;
}

static int plan_restraint(struct confinement *c, struct cell *cell, const struct plan *p,
                          struct failure *f)
{
    cell->restraint = (struct restraint){
        .processes = p->sandboxed && !privileges_have_admin() ? PROCESSES_MAX : 0,
        .drops_capabilities = holds(c, MECHANISM_CAPABILITIES),
        .gains_none = holds(c, MECHANISM_NO_NEW_PRIVS),
        .landlock = p->own_root && p->landlocked ? sandbox_landlock(cell->sandbox) : cell->landlock,
        .forbidden = !p->landlocked ? NULL
                     : p->own_root  ? ROOT_FORBIDDEN
                                    : "/",
        .scope = {.mounts = p->own_root, .interfaces = p->own_network},
    };
    cell_set_limits(cell, p->policy);
    return holds(c, MECHANISM_SECCOMP) ? plan_filter(c, cell, p, f) : 0;
}

static int begin_egress(const struct confinement *c, struct cell *cell, const struct plan *p,
                        const char *name, struct failure *f)
{
    if (p->policy->network != POLICY_NETWORK_ALLOW || !c->has_egress)
        return 0;
    _cleanup_close_ int listener = sandbox_take_listener(cell->sandbox);
    int r = c->egress.begin(c->egress.context, name ? name : "", &listener, p->policy,
                            &cell->egress, f);
    cell->has_egress = r == 0;
    cell->proxy_port = c->egress.port;
    return r;
}

/* --- measuring ------------------------------------------------------------------------------- */

/* What is wider than was asked for, or NULL. */
static const char *judge(const struct confinement *c, const struct cell *cell, const struct plan *p,
                         const struct attest_facts *own)
{
    const struct restraint *s = &cell->restraint;
    const struct attest_facts *f = &cell->facts;
    const struct {
        enum attest_namespace namespace;
        bool parted;
    } parted[] = {
        {ATTEST_PID, p->sandboxed},
        {ATTEST_MOUNT, p->sandboxed},
        {ATTEST_NET, p->sandboxed && (p->namespaces & CLONE_NEWNET)},
        {ATTEST_IPC, p->sandboxed && (p->namespaces & CLONE_NEWIPC)},
        {ATTEST_UTS, p->sandboxed && (p->namespaces & CLONE_NEWUTS)},
    };
    for (size_t i = 0; i < ARRAY_SIZE(parted); i++)
        if (parted[i].parted &&
            f->namespaces[parted[i].namespace] == own->namespaces[parted[i].namespace])
            return attest_namespace_name(parted[i].namespace);
    if (s->drops_capabilities && f->capabilities != 0)
        return "capabilities";
    if (s->gains_none && !f->no_new_privileges)
        return "no_new_privs";
    if (s->filter.filter && f->seccomp != 2)
        return "the filter of system calls";
    if (s->forbidden && f->forbidden_error != EACCES)
        return "what Landlock forbids";
    if (s->open_files && f->open_files > s->open_files)
        return "the limit on open files";
    if (s->cpu_time && f->cpu_time > s->cpu_time + RESTRAINT_CPU_GRACE)
        return "the limit on processor time";
    return s->file_size && f->file_size > s->file_size ? "the limit on file sizes" : NULL;
}

/* From inside, as a command will be: what is not as it was asked for is not used. */
static int measure(struct confinement *c, struct cell *cell, const struct plan *p,
                   struct failure *f)
{
    uint32_t step = RESTRAINT_MEASURE;
    struct attest_facts own;
    int r = attest_measure(NULL, &own);
    if (r == 0)
        r = probe_measure(cell->sandbox, -1, &cell->restraint, &cell->facts, &step);
    if (r < 0)
        return failure_set(f, r, "a probe of what holds commands: %s: %s",
                           restraint_step_name(step), strerror(-r));
    const char *wider = judge(c, cell, p, &own);
    if (wider)
        return failure_set(f, -EPERM, "what was made is wider than the policy: %s", wider);
    cell->restraint.expected = cell->facts;
    cell_set_limits(cell, p->policy);
    cell->restraint.attested = true;
    return 0;
}

void cell_free(struct confinement *c, struct cell *cell)
{
    int pidfd;
    /* Another cell's views may be at the same places by now. */
    views_free(&cell->views, cell->retired ? NULL : cell->sandbox);
    if (cell->sandbox) {
        sandbox_end(cell->sandbox, &pidfd);
        confinement_reap_later(c, &pidfd);
    }
    if (cell->has_egress)
        c->egress.end(c->egress.context, cell->egress);
    close_fd(&cell->landlock);
    free(cell->private);
    free(cell->workspace);
    free(cell->home);
    free(cell->place);
    policy_release(&cell->policy);
    free(cell);
}

/* Of all cells of the workspace: it is the file system that keeps it. */
static int limit_disk(struct cell *cell, const struct cell_options *o, const char *where,
                      struct failure *f)
{
    const struct policy *p = &cell->policy;
    const char *field = p->disk_bytes ? "disk" : "files";
    struct failure why;
    if (o->directory >= 0 && !limits_disk(p))
        disk_unlimit(o->directory);
    if (!limits_disk(p))
        return 0;
    int r = o->directory < 0 ? failure_set(&why, -EOPNOTSUPP, "there is no directory")
                             : disk_project_of(o->directory, &cell->project, &why);
    if (r < 0)
        return failure_set(f, r, "limits.%s: %.600s", field, why.text);
    if (!(cell->place = strdup(where)))
        return failure_set(f, -ENOMEM, "%s", strerror(ENOMEM));
    r = disk_limit(o->directory, cell->project, p->disk_bytes, p->disk_files);
    return r < 0 ? failure_set(f, -EOPNOTSUPP, "limits.%s: a quota cannot be set: %s", field,
                               strerror(-r))
                 : 0;
}

int cell_new(struct confinement *c, const struct cell_options *o, struct cell **ret,
             struct failure *f)
{
    struct plan p;
    int r = o->policy ? cell_check_policy(c, o->policy, f) : 0;
    if (r == 0)
        r = plan_cell(c, o, &p, f);
    if (r < 0)
        return r;
    struct cell *cell = calloc(1, sizeof *cell);
    if (!cell)
        return failure_set(f, -ENOMEM, "%s", strerror(ENOMEM));
    cell->landlock = -1;
    if (policy_copy(p.policy, &cell->policy) < 0)
        r = failure_set(f, -ENOMEM, "%s", strerror(ENOMEM));
    if (r == 0)
        r = limit_disk(cell, o, p.workspace, f);
    if (r == 0 && p.landlocked && !p.own_root)
        r = make_landlock(c, cell, &p, f);
    if (r == 0 && p.sandboxed)
        r = make_sandbox(c, cell, &p, f);
    if (r == 0)
        r = plan_restraint(c, cell, &p, f);
    if (r == 0)
        r = measure(c, cell, &p, f);
    if (r == 0 && p.landlocked && !p.own_root && p.private[0] &&
        !(cell->private = strdup(p.private)))
        r = failure_set(f, -ENOMEM, "%s", strerror(ENOMEM));
    if (r == 0 && p.own_root &&
        (!(cell->workspace = strdup(p.workspace)) || (p.home && !(cell->home = strdup(p.home)))))
        r = failure_set(f, -ENOMEM, "%s", strerror(ENOMEM));
    if (r == 0)
        r = begin_egress(c, cell, &p, o->name, f);
    if (r < 0) {
        cell_free(c, cell);
        return r;
    }
    *ret = cell;
    return 0;
}

/* --- keeping them ---------------------------------------------------------------------------- */

static bool cell_works(const struct cell *cell)
{
    return !cell->retired && (!cell->sandbox || sandbox_works(cell->sandbox));
}

static void cell_remove(struct confinement *c, struct cell **at)
{
    struct cell *cell = *at;
    *at = cell->next;
    c->idle_count--;
    cell_free(c, cell);
}

/* From the one used last to the one used longest ago. */
void cells_sweep(struct confinement *c)
{
    uint64_t now = clock_monotonic_ns();
    size_t idle = 0;
    for (struct cell **at = &c->cells; *at;) {
        const struct cell *cell = *at;
        if (cell->users == 0 && (++idle > IDLE_MAX || !cell_works(cell) ||
                                 now - cell->idle_since_ns > IDLE_S * NSEC_PER_SEC))
            cell_remove(c, at);
        else
            at = &(*at)->next;
    }
}

void cells_free(struct confinement *c)
{
    while (c->cells) {
        c->idle_count = 1;
        cell_remove(c, &c->cells);
    }
}

bool cell_is_of(const struct cell *cell, const struct stat *root)
{
    return cell->device == root->st_dev && cell->inode == root->st_ino;
}

static struct cell *cell_find(struct confinement *c, const struct stat *root)
{
    for (struct cell **at = &c->cells; *at; at = &(*at)->next) {
        struct cell *cell = *at;
        if (!cell_is_of(cell, root) || !cell_works(cell))
            continue;
        *at = cell->next;
        return cell;
    }
    return NULL;
}

/* To the front, where the next command looks first. */
static struct cell *cell_take(struct confinement *c, struct cell *cell)
{
    cell->next = c->cells;
    c->cells = cell;
    if (cell->users++ == 0)
        c->idle_count--;
    return cell;
}

int confinement_find_cell(struct confinement *c, int root, struct cell **ret)
{
    struct stat st;
    if (fstat(root, &st) < 0)
        return -errno;
    struct cell *cell = cell_find(c, &st);
    if (!cell)
        return -ENOENT;
    *ret = cell_take(c, cell);
    return 0;
}

int confinement_hold_cell(struct confinement *c, const struct cell_options *options,
                          struct cell **ret, struct failure *ret_failure)
{
    struct stat st;
    struct cell *cell;
    if (fstat(options->root, &st) < 0)
        return failure_set(ret_failure, -errno, "the workspace: %s", strerror(errno));
    if (confinement_find_cell(c, options->root, ret) == 0)
        return 0;
    int r = cell_new(c, options, &cell, ret_failure);
    if (r < 0) {
        log_warning("commands cannot be confined: %s", ret_failure->text);
        return r;
    }
    cell->device = st.st_dev;
    cell->inode = st.st_ino;
    c->idle_count++;
    *ret = cell_take(c, cell);
    return 0;
}

int confinement_drop_cells(struct confinement *c, int root)
{
    struct stat st;
    if (fstat(root, &st) < 0)
        return -errno;
    for (const struct cell *cell = c->cells; cell; cell = cell->next)
        if (cell_is_of(cell, &st) && cell->users > 0)
            return -EBUSY;
    for (struct cell **at = &c->cells; *at;)
        if (cell_is_of(*at, &st))
            cell_remove(c, at);
        else
            at = &(*at)->next;
    return 0;
}

struct cell *confinement_share_cell(struct cell *cell)
{
    cell->users++;
    return cell;
}

void confinement_release_cell(struct confinement *c, struct cell *cell)
{
    if (--cell->users > 0)
        return;
    c->idle_count++;
    cell->idle_since_ns = clock_monotonic_ns();
}

int cell_hold_view(struct confinement *c, struct cell *cell, const char *path, struct view **ret,
                   struct failure *ret_failure)
{
    if (!cell->workspace)
        return failure_set(
            ret_failure, -EOPNOTSUPP, "commands have no root of their own here%s%s",
            holds(c, MECHANISM_MOUNT_NAMESPACE) ? "" : ": ",
            holds(c, MECHANISM_MOUNT_NAMESPACE) ? "" : c->findings[MECHANISM_MOUNT_NAMESPACE].text);
    const struct view_options options = {.sandbox = cell->sandbox,
                                         .restraint = &cell->restraint,
                                         .workspace = cell->workspace,
                                         .home = cell->home};
    return view_hold(&cell->views, &options, path, ret, ret_failure);
}

const struct sandbox *cell_sandbox(const struct cell *cell)
{
    return cell->sandbox;
}

const struct restraint *cell_restraint(const struct cell *cell)
{
    return &cell->restraint;
}

const struct policy *cell_policy(const struct cell *cell)
{
    return &cell->policy;
}

int cell_terminals(const struct cell *cell)
{
    return cell->sandbox ? sandbox_terminals(cell->sandbox) : -1;
}

uint16_t cell_proxy_port(const struct cell *cell)
{
    return cell->has_egress ? cell->proxy_port : 0;
}

const char *cell_home(const struct cell *cell)
{
    return cell->home;
}

const char *cell_private(const struct cell *cell)
{
    return cell->private;
}

/* What keeps commands to what they may reach. */
static const char *filesystem_by(const struct cell *cell)
{
    const struct restraint *s = &cell->restraint;
    if (cell->policy.filesystem == POLICY_FILESYSTEM_HOST)
        return "host";
    if (!s->scope.mounts)
        return "own, by landlock";
    return s->landlock >= 0 ? "own, by mount-namespace and landlock" : "own, by mount-namespace";
}

static const char *network_by(const struct cell *cell)
{
    if (cell->policy.network == POLICY_NETWORK_HOST)
        return "host";
    if (!cell->restraint.scope.interfaces)
        return "none, by seccomp";
    return cell->policy.network == POLICY_NETWORK_ALLOW ? "allow, by net-namespace and a proxy"
                                                        : "none, by net-namespace";
}

static void add_disk(const struct cell *cell, json_t *limits)
{
    _cleanup_close_ int tree = open(cell->place, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    json_t *disk = tree < 0 ? NULL : disk_measured(tree, cell->project);
    if (disk)
        (void)json_object_update(limits, disk);
    json_decref(disk);
}

json_t *cell_measured(struct confinement *c, const struct cell *cell)
{
    struct attest_facts facts;
    uint32_t step;
    int r = probe_measure(cell->sandbox, -1, &cell->restraint, &facts, &step);
    json_t *missing = json_object();
    for (enum mechanism i = 0; missing && i < MECHANISM_COUNT; i++)
        if (!holds(c, i))
            (void)json_object_set_new(missing, mechanism_name(i), json_string(c->findings[i].text));
    json_t *object =
        json_pack("{s:s, s:s, s:s, s:o, s:o}", "level", level_name(confinement_level(c)),
                  "filesystem", filesystem_by(cell), "network", network_by(cell), "missing",
                  missing, "paths", views_to_json(&cell->views));
    if (!object)
        return NULL;
    if (r < 0) {
        (void)json_object_set_new(object, "unknown",
                                  json_sprintf("%s: %s", restraint_step_name(step), strerror(-r)));
        return object;
    }
    uint32_t difference = attest_compare(&facts, &cell->restraint.expected, &cell->restraint.scope);
    json_t *told = attest_to_json(&facts);
    if (cell->project)
        add_disk(cell, json_object_get(told, "limits"));
    (void)json_object_set_new(object, "facts", told);
    if (difference)
        (void)json_object_set_new(object, "changed",
                                  json_string(attest_difference_name(difference)));
    return object;
}

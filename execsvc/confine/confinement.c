#include "confine/confinement.h"

#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "confine/idmap.h"
#include "confine/landlock.h"
#include "confine/private.h"
#include "confine/privileges.h"

/* How long the end of each child that has been killed is waited for when the service stops. */
#define END_WAIT_MS 1000

static const char *const names[] = {
    [MECHANISM_CGROUP] = "cgroup",
    [MECHANISM_USER_NAMESPACE] = "user-namespace",
    [MECHANISM_PID_NAMESPACE] = "pid-namespace",
    [MECHANISM_MOUNT_NAMESPACE] = "mount-namespace",
    [MECHANISM_NET_NAMESPACE] = "net-namespace",
    [MECHANISM_IPC_NAMESPACE] = "ipc-namespace",
    [MECHANISM_UTS_NAMESPACE] = "uts-namespace",
    [MECHANISM_LANDLOCK] = "landlock",
    [MECHANISM_SECCOMP] = "seccomp",
    [MECHANISM_NO_NEW_PRIVS] = "no-new-privs",
    [MECHANISM_CAPABILITIES] = "capabilities",
};

static const char *const levels[] = {
    [LEVEL_MINIMAL] = "minimal", [LEVEL_NO_USERNS] = "no-userns", [LEVEL_FULL] = "full"};

const char *mechanism_name(enum mechanism m)
{
    return names[m];
}

const char *level_name(enum level level)
{
    return levels[level];
}

int confinement_check_name(const char *requirement, struct failure *ret_failure)
{
    char known[256], shown[64];
    size_t used = 0;
    for (size_t i = ARRAY_SIZE(levels); i-- > 0;) {
        if (strcmp(requirement, levels[i]) == 0)
            return 0;
        used += (size_t)snprintf(known + used, sizeof known - used, "%s, ", levels[i]);
    }
    for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
        if (strcmp(requirement, names[i]) == 0)
            return 0;
        used +=
            (size_t)snprintf(known + used, sizeof known - used, "%s%s", i ? ", " : "", names[i]);
    }
    return failure_set(ret_failure, -EINVAL,
                       "require: %s: there is no such level or mechanism. There are: %s",
                       log_escape(requirement, strlen(requirement), shown, sizeof shown), known);
}

bool confinement_without(const char *name)
{
    const char *list = getenv("BERTH_WITHOUT");
    size_t len = strlen(name);
    while (list && *list) {
        size_t word = strcspn(list, ",");
        if (word == len && memcmp(list, name, len) == 0)
            return true;
        list += word + (list[word] == ',');
    }
    return false;
}

static bool taken_away(enum mechanism m)
{
    return confinement_without(names[m]);
}

/* --- finding out ----------------------------------------------------------------- */

static int try_cgroup(struct confinement *c, const struct confinement_options *options,
                      struct failure *f)
{
    int r = cgroup_base_open(options->cgroup_parent, options->name, &c->cgroups, f);
    if (r == 0)
        (void)snprintf(f->text, sizeof f->text, "%s", cgroup_base_path(c->cgroups));
    return r;
}

static bool same_root(const struct stat *root)
{
    struct stat st;
    return stat("/", &st) == 0 && st.st_dev == root->st_dev && st.st_ino == root->st_ino;
}

static void end_sandbox(struct confinement *c, struct sandbox *sandbox)
{
    struct pollfd ended = {.events = POLLIN};
    sandbox_end(sandbox, &ended.fd);
    (void)poll(&ended, 1, END_WAIT_MS);
    confinement_reap_later(c, &ended.fd);
}

/* Makes one and joins it, in a child that ends. */
static int try_sandbox(struct confinement *c, int namespaces, bool with_root, struct failure *f)
{
    struct sandbox *sandbox = NULL;
    struct root *root = NULL;
    struct stat st;
    const struct root_options empty = {.idmap = c->idmap};
    int r = with_root ? root_plan(&empty, &root, f) : 0;
    const struct sandbox_options options = {
        .namespaces = namespaces, .root = root, .landlock_outside = -1};
    if (r == 0)
        r = stat("/", &st) < 0 ? failure_set(f, -errno, "/: %s", strerror(errno))
                               : sandbox_new(&options, &sandbox, f);
    root_free(root);
    if (r < 0)
        return r;
    pid_t pid = fork();
    if (pid == 0)
        _exit(sandbox_join(sandbox, -1) < 0 ? 1 : with_root || same_root(&st) ? 0 : 2);
    int status = 1 << 8;
    while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    end_sandbox(c, sandbox);
    if (!WIFEXITED(status) || WEXITSTATUS(status) == 1)
        return failure_set(f, -EPERM, "namespaces that were made cannot be joined");
    /* Joining a mount namespace leaves a chroot: commands would see what we do not. */
    if (WEXITSTATUS(status) != 0)
        return failure_set(f, -EXDEV, "this service's root is not its mount namespace's");
    return 0;
}

static const struct {
    enum mechanism mechanism;
    int flag; /* 0: the root */
    const char *text;
} kinds[] = {
    {MECHANISM_MOUNT_NAMESPACE, 0, "a root of its own for each workspace"},
    {MECHANISM_NET_NAMESPACE, CLONE_NEWNET, "one for each workspace"},
    {MECHANISM_IPC_NAMESPACE, CLONE_NEWIPC, "one for each workspace"},
    {MECHANISM_UTS_NAMESPACE, CLONE_NEWUTS, "one for each workspace"},
};

static void find(struct confinement *c, enum mechanism m, bool holds, const char *text)
{
    struct finding *finding = &c->findings[m];
    finding->holds = holds && !taken_away(m);
    (void)snprintf(finding->text, sizeof finding->text, "%s", taken_away(m) ? "taken away" : text);
}

static void find_user_namespace(struct confinement *c)
{
    if (privileges_have_admin()) {
        find(c, MECHANISM_USER_NAMESPACE, true, "not needed: this service may make the others");
        return;
    }
    pid_t pid = fork();
    if (pid == 0)
        _exit(unshare(CLONE_NEWUSER) < 0 ? errno : 0);
    int status = 1 << 8;
    while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    int error = WIFEXITED(status) ? WEXITSTATUS(status) : EPERM;
    find(c, MECHANISM_USER_NAMESPACE, error == 0,
         error == 0 ? "one for each workspace" : strerror(error));
}

/* All in one sandbox; one by one only where that fails. */
static void find_namespaces(struct confinement *c)
{
    struct failure f = {.text = "there is no user namespace"};
    int flags = 0;
    bool with_root = false;
    for (size_t i = 0; i < ARRAY_SIZE(kinds); i++) {
        bool there = !taken_away(kinds[i].mechanism);
        flags |= there ? kinds[i].flag : 0;
        with_root = with_root || (there && kinds[i].flag == 0);
    }
    int r = -EPERM;
    bool may = c->findings[MECHANISM_USER_NAMESPACE].holds && !taken_away(MECHANISM_PID_NAMESPACE);
    if (taken_away(MECHANISM_PID_NAMESPACE))
        (void)snprintf(f.text, sizeof f.text, "the pid namespace is taken away");
    bool all = may && try_sandbox(c, flags, with_root, &f) == 0;
    if (all || may)
        r = all ? 0 : try_sandbox(c, 0, false, &f);
    find(c, MECHANISM_PID_NAMESPACE, r == 0,
         r < 0                     ? f.text
         : privileges_have_admin() ? "one for each workspace, with a /proc of its own"
                                   : "one for each workspace, with a /proc of its own, in a user "
                                     "namespace");
    for (size_t i = 0; i < ARRAY_SIZE(kinds); i++) {
        int one = all || r < 0 || taken_away(kinds[i].mechanism)
                      ? r
                      : try_sandbox(c, kinds[i].flag, kinds[i].flag == 0, &f);
        find(c, kinds[i].mechanism, one == 0, one == 0 ? kinds[i].text : f.text);
    }
}

static void find_others(struct confinement *c)
{
    struct failure f = {.text = "needs no_new_privs"};
    char text[64];
    find(c, MECHANISM_NO_NEW_PRIVS, true, "for each command");
    find(c, MECHANISM_CAPABILITIES, true, "given up by each command");
    bool may = c->findings[MECHANISM_NO_NEW_PRIVS].holds;
    int abi = may ? landlock_abi() : -EPERM;
    (void)snprintf(text, sizeof text, "ABI %d", abi);
    find(c, MECHANISM_LANDLOCK, abi > 0,
         abi > 0          ? text
         : !may           ? f.text
         : abi == -ENOSYS ? "the kernel does not have it (Linux 5.13)"
                          : "it is turned off");
    int r = may ? syscalls_filter_new(0, &c->filters[0], &f) : -EPERM;
    if (r == 0 && prctl(PR_GET_SECCOMP, 0, 0, 0, 0) < 0)
        r = failure_set(&f, -errno, "the kernel does not have it");
    (void)snprintf(text, sizeof text, "a filter of %u instructions", c->filters[0].len);
    find(c, MECHANISM_SECCOMP, r == 0, r == 0 ? text : f.text);
}

int confinement_new(const struct confinement_options *options, struct confinement **ret)
{
    struct confinement *c = calloc(1, sizeof *c);
    int r;
    if (!c)
        return -ENOMEM;
    struct failure f = {.text = ""};
    c->idmap = -1;
    /* Without it, files that root alone may read are hidden by a list. */
    if (privileges_have_admin() && (r = idmap_new(&c->idmap)) < 0)
        log_debug("confinement: no idmapped mounts: %s", strerror(-r));
    if (options->egress) {
        c->egress = *options->egress;
        c->has_egress = true;
    }
    r = taken_away(MECHANISM_CGROUP) ? -EPERM : try_cgroup(c, options, &f);
    find(c, MECHANISM_CGROUP, r == 0, f.text);
    find_user_namespace(c);
    find_namespaces(c);
    find_others(c);
    for (enum mechanism m = 0; m < MECHANISM_COUNT; m++)
        log_debug("confinement: %s: %s: %s", names[m], c->findings[m].holds ? "yes" : "no",
                  c->findings[m].text);
    *ret = c;
    return 0;
}

enum level confinement_level(const struct confinement *c)
{
    static const enum mechanism always[] = {MECHANISM_SECCOMP, MECHANISM_NO_NEW_PRIVS,
                                            MECHANISM_CAPABILITIES};
    static const enum mechanism full[] = {MECHANISM_PID_NAMESPACE, MECHANISM_MOUNT_NAMESPACE,
                                          MECHANISM_NET_NAMESPACE, MECHANISM_IPC_NAMESPACE,
                                          MECHANISM_UTS_NAMESPACE};
    bool is_full = true;
    for (size_t i = 0; i < ARRAY_SIZE(always); i++)
        if (!c->findings[always[i]].holds)
            return LEVEL_MINIMAL;
    for (size_t i = 0; i < ARRAY_SIZE(full); i++)
        is_full = is_full && c->findings[full[i]].holds;
    if (is_full)
        return LEVEL_FULL;
    return c->findings[MECHANISM_LANDLOCK].holds ? LEVEL_NO_USERNS : LEVEL_MINIMAL;
}

bool confinement_holds(const struct confinement *c, enum mechanism m, const char **ret_text)
{
    *ret_text = c->findings[m].text;
    return c->findings[m].holds;
}

static int refuse_limit(const struct confinement *c, const char *field, const char *controller,
                        struct failure *f)
{
    struct failure why;
    (void)snprintf(why.text, sizeof why.text, "%s", c->findings[MECHANISM_CGROUP].text);
    if (c->cgroups)
        cgroup_base_explain(c->cgroups, controller, &why);
    return failure_set(f, -EOPNOTSUPP, "limits.%s: needs the cgroup controller \"%s\": %s", field,
                       controller, why.text);
}

int confinement_check_limits(const struct confinement *c, const struct cgroup_limits *l,
                             struct failure *ret_failure)
{
    const struct cgroup_base *base = c->cgroups;
    if (l->memory_bytes > 0 && (!base || !cgroup_base_limits_memory(base)))
        return refuse_limit(c, "memory", "memory", ret_failure);
    if (l->processes > 0 && (!base || !cgroup_base_limits_pids(base)))
        return refuse_limit(c, "pids", "pids", ret_failure);
    if (l->cpu_percent > 0 && (!base || !cgroup_base_limits_cpu(base)))
        return refuse_limit(c, "cpu", "cpu", ret_failure);
    return 0;
}

static json_t *limit_status(const struct confinement *c, const struct cgroup_limits *limits)
{
    struct failure f;
    return confinement_check_limits(c, limits, &f) < 0 ? json_string(f.text) : json_true();
}

int confinement_status(const struct confinement *c, json_t *object)
{
    json_t *all = json_object();
    json_t *limits = json_pack("{s:o, s:o, s:o}", "memory",
                               limit_status(c, &(struct cgroup_limits){.memory_bytes = 1}), "pids",
                               limit_status(c, &(struct cgroup_limits){.processes = 1}), "cpu",
                               limit_status(c, &(struct cgroup_limits){.cpu_percent = 1}));
    if (!all || json_object_set_new(object, "limits", limits) < 0 ||
        json_object_set_new(object, "confinement", all) < 0 ||
        json_object_set_new(object, "level", json_string(level_name(confinement_level(c)))) < 0)
        return -ENOMEM;
    for (enum mechanism m = 0; m < MECHANISM_COUNT; m++) {
        json_t *one =
            json_pack("{s:b,s:s}", "holds", c->findings[m].holds, "text", c->findings[m].text);
        if (!one || json_object_set_new(all, names[m], one) < 0)
            return -ENOMEM;
    }
    return 0;
}

struct cgroup_base *confinement_cgroups(const struct confinement *c)
{
    return c->cgroups;
}

/* True when there is nothing left to reap. */
static bool reap(int pidfd)
{
    siginfo_t info = {0};
    return waitid(P_PIDFD, (id_t)pidfd, &info, WEXITED | WNOHANG) < 0 || info.si_pid != 0;
}

void confinement_reap_later(struct confinement *c, int *pidfd)
{
    if (*pidfd < 0 || reap(*pidfd)) {
        close_fd(pidfd);
        return;
    }
    if (c->unreaped_count == c->unreaped_allocated) {
        size_t size = c->unreaped_allocated ? c->unreaped_allocated * 2 : 16;
        int *larger = reallocarray(c->unreaped, size, sizeof *larger);
        /* A zombie is then the lesser evil. */
        if (!larger) {
            close_fd(pidfd);
            return;
        }
        c->unreaped = larger;
        c->unreaped_allocated = size;
    }
    c->unreaped[c->unreaped_count++] = take_fd(pidfd);
}

void confinement_sweep(struct confinement *c)
{
    size_t kept = 0;
    for (size_t i = 0; i < c->unreaped_count; i++) {
        if (reap(c->unreaped[i]))
            close_fd(&c->unreaped[i]);
        else
            c->unreaped[kept++] = c->unreaped[i];
    }
    c->unreaped_count = kept;
    if (c->idle_count > 0)
        cells_sweep(c);
    if (c->cgroups)
        cgroup_base_sweep(c->cgroups);
}

void confinement_free(struct confinement *c)
{
    if (!c)
        return;
    cells_free(c);
    confinement_sweep(c);
    cgroup_base_free(c->cgroups);
    for (size_t i = 0; i < c->unreaped_count; i++) {
        struct pollfd ended = {.fd = c->unreaped[i], .events = POLLIN};
        (void)poll(&ended, 1, END_WAIT_MS);
        (void)reap(c->unreaped[i]);
        close_fd(&c->unreaped[i]);
    }
    for (size_t i = 0; i < ARRAY_SIZE(c->filters); i++)
        syscalls_filter_release(&c->filters[i]);
    close_fd(&c->idmap);
    free(c->unreaped);
    free(c);
}

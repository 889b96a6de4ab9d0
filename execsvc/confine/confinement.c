#include "confine/confinement.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"

/* How long a sandbox without processes is kept, for the workspace's next command. */
#define SANDBOX_IDLE_S 60

/* Sandboxes without processes; stops who runs a command in each of many workspaces from filling the
 * table of processes with inits. */
#define SANDBOX_IDLE_MAX 32

/* How long the end of each child that has been killed is waited for when the service stops. */
#define END_WAIT_MS 1000

struct finding {
    bool holds;
    char text[FAILURE_TEXT_MAX];
};

struct workspace_sandbox {
    struct workspace_sandbox *next;
    struct sandbox *sandbox;
    dev_t device; /* of the workspace's tree */
    ino_t inode;
    size_t users;
    uint64_t idle_since_ns;
};

struct confinement {
    struct workspace_sandbox *sandboxes; /* the one used last first */
    size_t idle_count;
    struct finding findings[MECHANISM_COUNT];
    struct cgroup_base *cgroups;
    int *unreaped; /* pidfds */
    size_t unreaped_count;
    size_t unreaped_allocated;
};

static const char *const names[] = {
    [MECHANISM_CGROUP] = "cgroup",
    [MECHANISM_PID_NAMESPACE] = "pid-namespace",
};

const char *mechanism_name(enum mechanism m)
{
    return names[m];
}

static bool taken_away(enum mechanism m)
{
    const char *list = getenv("BERTH_WITHOUT");
    size_t len = strlen(names[m]);
    while (list && *list) {
        size_t word = strcspn(list, ",");
        if (word == len && memcmp(list, names[m], len) == 0)
            return true;
        list += word + (list[word] == ',');
    }
    return false;
}

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

/* Makes one and joins it, in a child that ends. */
static int try_pid_namespace(struct confinement *c, const struct confinement_options *options,
                             struct failure *f)
{
    struct sandbox *sandbox;
    struct stat root;
    int r = stat("/", &root) < 0 ? -errno : sandbox_new(&sandbox, f);
    if (r < 0)
        return r;
    pid_t pid = fork();
    if (pid == 0)
        _exit(sandbox_join(sandbox) < 0 ? 1 : same_root(&root) ? 0 : 2);
    int status = 1 << 8;
    while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    struct pollfd ended = {.events = POLLIN};
    sandbox_end(sandbox, &ended.fd);
    (void)poll(&ended, 1, END_WAIT_MS);
    confinement_reap_later(c, &ended.fd);
    if (!WIFEXITED(status) || WEXITSTATUS(status) == 1)
        return failure_set(f, -EPERM, "a pid namespace that was made cannot be joined");
    /* Joining a mount namespace leaves a chroot: commands would see what we do not. */
    if (WEXITSTATUS(status) != 0)
        return failure_set(f, -EXDEV, "this service's root is not its mount namespace's");
    (void)snprintf(f->text, sizeof f->text, "one for each workspace, with a /proc of its own%s",
                   geteuid() == 0 ? "" : ", in a user namespace");
    return 0;
}

int confinement_new(const struct confinement_options *options, struct confinement **ret)
{
    static int (*const tries[])(struct confinement *, const struct confinement_options *,
                                struct failure *) = {
        [MECHANISM_CGROUP] = try_cgroup,
        [MECHANISM_PID_NAMESPACE] = try_pid_namespace,
    };
    struct confinement *c = calloc(1, sizeof *c);
    if (!c)
        return -ENOMEM;
    for (enum mechanism m = 0; m < MECHANISM_COUNT; m++) {
        struct failure f = {.text = "taken away"};
        struct finding *finding = &c->findings[m];
        finding->holds = !taken_away(m) && tries[m](c, options, &f) == 0;
        (void)snprintf(finding->text, sizeof finding->text, "%s", f.text);
        log_debug("confinement: %s: %s: %s", names[m], finding->holds ? "yes" : "no", f.text);
    }
    *ret = c;
    return 0;
}

bool confinement_holds(const struct confinement *c, enum mechanism m, const char **ret_text)
{
    *ret_text = c->findings[m].text;
    return c->findings[m].holds;
}

int confinement_status(const struct confinement *c, json_t *object)
{
    json_t *all = json_object();
    if (!all || json_object_set_new(object, "confinement", all) < 0)
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

/* --- sandboxes ------------------------------------------------------------------- */

static void sandbox_remove(struct confinement *c, struct workspace_sandbox **at)
{
    struct workspace_sandbox *w = *at;
    int pidfd;
    *at = w->next;
    c->idle_count--;
    sandbox_end(w->sandbox, &pidfd);
    confinement_reap_later(c, &pidfd);
    free(w);
}

/* From the one used last to the one used longest ago. */
static void sandboxes_sweep(struct confinement *c)
{
    uint64_t now = clock_monotonic_ns();
    size_t idle = 0;
    for (struct workspace_sandbox **at = &c->sandboxes; *at;) {
        const struct workspace_sandbox *w = *at;
        if (w->users == 0 && (++idle > SANDBOX_IDLE_MAX || !sandbox_works(w->sandbox) ||
                              now - w->idle_since_ns > SANDBOX_IDLE_S * NSEC_PER_SEC))
            sandbox_remove(c, at);
        else
            at = &(*at)->next;
    }
}

static struct workspace_sandbox *sandbox_find(struct confinement *c, const struct stat *root)
{
    for (struct workspace_sandbox **at = &c->sandboxes; *at; at = &(*at)->next) {
        struct workspace_sandbox *w = *at;
        if (w->device != root->st_dev || w->inode != root->st_ino || !sandbox_works(w->sandbox))
            continue;
        *at = w->next;
        return w;
    }
    return NULL;
}

int confinement_hold_sandbox(struct confinement *c, int root, struct sandbox **ret)
{
    struct stat st;
    *ret = NULL;
    if (!c->findings[MECHANISM_PID_NAMESPACE].holds)
        return 0;
    if (fstat(root, &st) < 0)
        return -errno;
    struct workspace_sandbox *w = sandbox_find(c, &st);
    if (!w) {
        w = calloc(1, sizeof *w);
        if (!w)
            return -ENOMEM;
        *w = (struct workspace_sandbox){.device = st.st_dev, .inode = st.st_ino};
        struct failure f;
        int r = sandbox_new(&w->sandbox, &f);
        if (r < 0) {
            log_warning("a sandbox: %s", f.text);
            free(w);
            return r;
        }
        c->idle_count++;
    }
    w->next = c->sandboxes;
    c->sandboxes = w;
    if (w->users++ == 0)
        c->idle_count--;
    *ret = w->sandbox;
    return 0;
}

void confinement_release_sandbox(struct confinement *c, struct sandbox *sandbox)
{
    for (struct workspace_sandbox *w = c->sandboxes; w; w = w->next) {
        if (w->sandbox != sandbox || --w->users > 0)
            continue;
        c->idle_count++;
        w->idle_since_ns = clock_monotonic_ns();
    }
}

static void sandboxes_free(struct confinement *c)
{
    while (c->sandboxes) {
        c->idle_count = 1;
        sandbox_remove(c, &c->sandboxes);
    }
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
        sandboxes_sweep(c);
    if (c->cgroups)
        cgroup_base_sweep(c->cgroups);
}

void confinement_free(struct confinement *c)
{
    if (!c)
        return;
    sandboxes_free(c);
    confinement_sweep(c);
    cgroup_base_free(c->cgroups);
    for (size_t i = 0; i < c->unreaped_count; i++) {
        struct pollfd ended = {.fd = c->unreaped[i], .events = POLLIN};
        (void)poll(&ended, 1, END_WAIT_MS);
        (void)reap(c->unreaped[i]);
        close_fd(&c->unreaped[i]);
    }
    free(c->unreaped);
    free(c);
}

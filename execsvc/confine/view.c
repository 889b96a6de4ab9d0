#include "confine/view.h"

#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/dir.h"
#include "base/log.h"
#include "confine/root.h"

struct view {
    struct view *next;
    char *path;
    int mounts;  /* the namespace */
    int root;    /* "/" there */
    size_t made; /* components of the path, from its end, that were made for it */
    struct attest_facts facts;
    struct restraint restraint; /* the sandbox's, with what of it differs here */
    size_t users;
    bool lost; /* the workspace is not there any more: what holds the place was moved */
};

/* --- paths ----------------------------------------------------------------------------------- */

/* NULL: plain components, each behind one slash. */
static const char *wrong_with(const char *path)
{
    size_t depth = 0;
    if (path[0] != '/' || path[1] == 0)
        return "is no path of a directory below the root";
    if (strlen(path) >= PATH_MAX)
        return "is too long";
    for (const char *at = path; *at; at++)
        if ((unsigned char)*at < ' ' || *at == 0x7f)
            return "has control characters";
    for (const char *at = path; *at; depth++) {
        size_t len = strcspn(++at, "/");
        if (len == 0 || len > NAME_MAX || (len == 1 && at[0] == '.') ||
            (len == 2 && at[0] == '.' && at[1] == '.'))
            return "is not as the kernel writes it";
        at += len;
    }
    return depth > VIEW_DEPTH_MAX ? "is too deep"
           : root_reserves(path)  ? "is where programs look for the system's"
                                  : NULL;
}

int view_check_path(const char *path, struct failure *ret_failure)
{
    const char *wrong = wrong_with(path);
    return wrong ? failure_set(ret_failure, -EINVAL, "%s %s", path, wrong) : 0;
}

/* --- the way there, from outside ------------------------------------------------------------- */

/* Where directories may be made: in the root's own file system, and in what the workspace has at
 * /tmp and at home, and on the way from there to where it is. All else that is mounted there is
 * somebody else's. */
struct way {
    const char *workspace;
    const char *home;
    int at;
    uint64_t mount; /* that `at` is in */
};

static int mount_of(int fd, uint64_t *ret)
{
    struct statx stx;
    if (statx(fd, "", AT_EMPTY_PATH, STATX_MNT_ID, &stx) < 0)
        return -errno;
    if (!(stx.stx_mask & STATX_MNT_ID))
        return -EOPNOTSUPP;
    *ret = stx.stx_mnt_id;
    return 0;
}

static bool is_own_place(const struct way *way, const char *path)
{
    return strcmp(path, "/tmp") == 0 || (way->home && strcmp(path, way->home) == 0);
}

static bool is_own_mount(const struct way *way, const char *path, size_t len)
{
    char begun[PATH_MAX];
    (void)snprintf(begun, sizeof begun, "%.*s", (int)len, path);
    return is_own_place(way, begun) || root_pins(way->workspace, way->home, begun);
}

/* One component down. No link is followed: parts of the way are where commands have been.
 * *ret_made: it was not there. len: of the path so far, with this one. */
static int step_down(struct way *way, const char *name, const char *path, size_t len,
                     bool *ret_made)
{
    uint64_t mount = 0;
    *ret_made = mkdirat(way->at, name, 0755) == 0;
    if (!*ret_made && errno != EEXIST)
        return -errno;
    _cleanup_close_ int fd = openat(way->at, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    int r = mount_of(fd, &mount);
    if (r < 0)
        return r;
    if (mount != way->mount && !is_own_mount(way, path, len))
        return -EXDEV;
    (void)close(way->at);
    way->at = take_fd(&fd);
    way->mount = mount;
    return 0;
}

static bool is_empty(int directory)
{
    _cleanup_dir_ DIR *d = NULL;
    const struct dirent *entry;
    return dir_open(directory, ".", &d) == 0 && dir_next(d, &entry) == 0;
}

/* Removes directories that were made, from the deepest one, as long as nobody has use for them.
 * Returns how many are left. */
static size_t remove_way(int tree, const char *path, size_t made)
{
    char left[PATH_MAX];
    (void)snprintf(left, sizeof left, "%s", path);
    for (; made > 0; made--) {
        char name[NAME_MAX + 1];
        const char *rest = left;
        _cleanup_close_ int at = fcntl(tree, F_DUPFD_CLOEXEC, 0);
        while (at >= 0 && root_next_component(&rest, name) && *rest) {
            int next = openat(at, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
            (void)close(at);
            at = next;
        }
        if (at < 0 || unlinkat(at, name, AT_REMOVEDIR) < 0)
            break;
        *strrchr(left, '/') = 0;
    }
    return made;
}

/* The directories of the path, of which the last is empty. *ret_made: how many of them, from the
 * end, were made. -EXDEV: it leads into what is not the workspace's own; -ENOTEMPTY: something is
 * there, -ENOTDIR or -ELOOP: on the way to it. */
static int make_way(const struct view_options *o, const char *path, size_t *ret_made)
{
    char name[NAME_MAX + 1];
    const char *rest = path;
    size_t made = 0, done = 0;
    int tree = sandbox_tree(o->sandbox);
    struct way way = {
        .workspace = o->workspace, .home = o->home, .at = fcntl(tree, F_DUPFD_CLOEXEC, 0)};
    int r = way.at < 0 ? -errno : mount_of(way.at, &way.mount);
    while (r == 0 && root_next_component(&rest, name)) {
        bool is_made = false;
        r = step_down(&way, name, path, (size_t)(rest - path), &is_made);
        made += is_made;
        if (r == 0 || is_made)
            done = (size_t)(rest - path);
    }
    if (r == 0 && is_own_place(&way, path))
        r = -EBUSY;
    if (r == 0 && made == 0 && !is_empty(way.at))
        r = -ENOTEMPTY;
    close_fd(&way.at);
    if (r < 0) {
        char begun[PATH_MAX];
        (void)snprintf(begun, sizeof begun, "%.*s", (int)done, path);
        (void)remove_way(tree, begun, made);
        return r;
    }
    *ret_made = made;
    return 0;
}

/* --- making one ------------------------------------------------------------------------------ */

/* What a visitor is to do, and what it has made. */
struct arrival {
    const char *path;
    int proc; /* the machine's: there is no process of ours in the sandbox's */
    int mounts;
    int root;
};

static int arrive(void *context)
{
    struct arrival *a = context;
    if (unshare(CLONE_NEWNS) < 0)
        return -errno;
    int r = root_bind_workspace(a->path);
    if (r < 0)
        return r;
    a->root = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    a->mounts = a->root < 0 ? -1 : openat(a->proc, "self/ns/mnt", O_RDONLY | O_CLOEXEC);
    return a->mounts < 0 ? -errno : 0;
}

static int changed(struct failure *f, uint32_t difference)
{
    return failure_set(f, -EPERM, "what holds the workspace's commands was changed: %s",
                       attest_difference_name(difference));
}

/* What it is derived from must be what was made: nothing may come in with it. */
static int check_origin(const struct view_options *o, struct failure *f)
{
    struct attest_facts facts;
    uint32_t step;
    int r = probe_measure(o->sandbox, -1, o->restraint, &facts, &step);
    if (r < 0)
        return failure_set(f, r, "a probe of what holds commands: %s: %s",
                           restraint_step_name(step), strerror(-r));
    uint32_t difference = attest_compare(&facts, &o->restraint->expected, &o->restraint->scope);
    return difference ? changed(f, difference) : 0;
}

/* And has one mount more, and is the same in all else. */
static int measure(struct view *view, const struct view_options *o, struct failure *f)
{
    const struct attest_facts *origin = &o->restraint->expected;
    struct attest_facts facts;
    uint32_t step;
    int r = probe_measure(o->sandbox, view->mounts, o->restraint, &facts, &step);
    if (r < 0)
        return failure_set(f, r, "a probe of what holds commands: %s: %s",
                           restraint_step_name(step), strerror(-r));
    struct attest_facts alike = facts;
    alike.namespaces[ATTEST_MOUNT] = origin->namespaces[ATTEST_MOUNT];
    const struct attest_scope scope = {.interfaces = o->restraint->scope.interfaces};
    uint32_t difference = attest_compare(&alike, origin, &scope);
    if (difference)
        return changed(f, difference);
    if (facts.mounts != origin->mounts + 1 ||
        facts.namespaces[ATTEST_MOUNT] == origin->namespaces[ATTEST_MOUNT])
        return failure_set(f, -EPERM, "what was made is wider than the policy: mounts");
    view->facts = facts;
    return 0;
}

/* Limits may be others than when it was made. */
static void take_restraint(struct view *view, const struct restraint *restraint)
{
    view->restraint = *restraint;
    struct attest_facts *expected = &view->restraint.expected;
    expected->namespaces[ATTEST_MOUNT] = view->facts.namespaces[ATTEST_MOUNT];
    expected->mounts = view->facts.mounts;
    expected->mounts_hash = view->facts.mounts_hash;
}

static size_t depth_of(const char *path)
{
    size_t depth = 0;
    for (; *path; path++)
        depth += *path == '/';
    return depth;
}

/* Directories that were made for one view and are on the way of others now: the first whose own
 * begin right below removes them. */
static void hand_over(struct views *views, const struct view *from, size_t left)
{
    const char *end = from->path + strlen(from->path);
    size_t deepest = depth_of(from->path) - (from->made - left);
    for (size_t i = deepest; i < depth_of(from->path); i++)
        while (*--end != '/')
            ;
    size_t len = (size_t)(end - from->path);
    for (struct view *view = views->first; view; view = view->next) {
        if (view == from || view->lost || strncmp(view->path, from->path, len) != 0 ||
            view->path[len] != '/' || depth_of(view->path) - view->made != deepest)
            continue;
        view->made += left;
        return;
    }
}

static void view_free(struct views *views, struct view *view, const struct sandbox *sandbox)
{
    size_t left = 0;
    close_fd(&view->root);
    close_fd(&view->mounts);
    /* What stands there now may be another's. */
    if (!view->lost && sandbox)
        left = remove_way(sandbox_tree(sandbox), view->path, view->made);
    if (left > 0)
        hand_over(views, view, left);
    free(view->path);
    free(view);
}

/* -EPERM has a meaning of its own. */
static int refuse(const char *path, int error, struct failure *f)
{
    return failure_set(
        f, error == -EPERM ? -EACCES : error, "%s %s%s", path,
        error == -EXDEV       ? "is in what commands see already"
        : error == -EBUSY     ? "is the workspace's own place"
        : error == -ENOTEMPTY ? "has something of the workspace's in it"
                              : "cannot be made there: ",
        error == -EXDEV || error == -EBUSY || error == -ENOTEMPTY ? "" : strerror(-error));
}

static int view_new(const struct view_options *o, const char *path, struct view **ret,
                    struct failure *f)
{
    int r = check_origin(o, f);
    if (r < 0)
        return r;
    struct view *view = calloc(1, sizeof *view);
    if (!view || !(view->path = strdup(path))) {
        free(view);
        return failure_set(f, -ENOMEM, "%s", strerror(ENOMEM));
    }
    view->mounts = view->root = -1;
    r = make_way(o, path, &view->made);
    if (r == 0) {
        _cleanup_close_ int proc = open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC);
        struct arrival arrival = {.path = path, .proc = proc, .mounts = -1, .root = -1};
        r = proc < 0 ? -errno : sandbox_visit(o->sandbox, -1, arrive, &arrival);
        view->mounts = arrival.mounts;
        view->root = arrival.root;
    }
    r = r < 0 ? refuse(path, r, f) : measure(view, o, f);
    if (r < 0) {
        view_free(&(struct views){0}, view, o->sandbox);
        return r;
    }
    *ret = view;
    return 0;
}

/* --- keeping them ---------------------------------------------------------------------------- */

/* A command may have moved or removed, where the view is not, the directory that holds the place:
 * the kernel then moves or drops what is mounted there. */
static bool is_there(const struct view *view)
{
    char name[NAME_MAX + 1];
    const char *rest = view->path;
    struct stat seen, own;
    _cleanup_close_ int at = fcntl(view->root, F_DUPFD_CLOEXEC, 0);
    while (at >= 0 && root_next_component(&rest, name)) {
        int next = openat(at, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        (void)close(at);
        at = next;
    }
    return at >= 0 && fstat(at, &seen) == 0 &&
           fstatat(view->root, &ROOT_WORKSPACE[1], &own, AT_SYMLINK_NOFOLLOW) == 0 &&
           seen.st_dev == own.st_dev && seen.st_ino == own.st_ino;
}

static void remove_at(struct views *views, struct view **at, const struct sandbox *sandbox)
{
    struct view *view = *at;
    *at = view->next;
    views->count--;
    view_free(views, view, sandbox);
}

/* True when there is room for another. */
static bool make_room(struct views *views, const struct sandbox *sandbox)
{
    struct view **last = NULL;
    for (struct view **at = &views->first; *at; at = &(*at)->next)
        if ((*at)->users == 0)
            last = at;
    if (views->count >= VIEWS_MAX && last)
        remove_at(views, last, sandbox);
    return views->count < VIEWS_MAX;
}

static struct view *find(struct views *views, const struct view_options *o, const char *path)
{
    for (struct view **at = &views->first; *at; at = &(*at)->next) {
        struct view *view = *at;
        if (view->lost || strcmp(view->path, path) != 0)
            continue;
        view->lost = !is_there(view);
        if (view->lost) {
            if (view->users == 0)
                remove_at(views, at, o->sandbox);
            return NULL;
        }
        *at = view->next;
        view->next = views->first;
        views->first = view;
        return view;
    }
    return NULL;
}

int view_hold(struct views *views, const struct view_options *o, const char *path,
              struct view **ret, struct failure *ret_failure)
{
    if (strcmp(path, o->workspace) == 0 || strcmp(path, ROOT_WORKSPACE) == 0) {
        *ret = NULL;
        return 0;
    }
    int r = view_check_path(path, ret_failure);
    if (r < 0)
        return r;
    struct view *view = find(views, o, path);
    if (!view) {
        if (!make_room(views, o->sandbox))
            return failure_set(ret_failure, -EUSERS,
                               "%s: commands run at %d other paths of this workspace", path,
                               VIEWS_MAX);
        r = view_new(o, path, &view, ret_failure);
        if (r < 0)
            return r;
        view->next = views->first;
        views->first = view;
        views->count++;
    }
    take_restraint(view, o->restraint);
    view->users++;
    *ret = view;
    return 0;
}

struct view *view_share(struct view *view)
{
    view->users++;
    return view;
}

void view_release(struct view *view)
{
    view->users--;
}

void views_free(struct views *views, const struct sandbox *sandbox)
{
    while (views->first)
        remove_at(views, &views->first, sandbox);
}

int view_mounts(const struct view *view)
{
    return view->mounts;
}

const struct restraint *view_restraint(const struct view *view)
{
    return &view->restraint;
}

json_t *views_to_json(const struct views *views)
{
    json_t *list = json_array();
    for (const struct view *view = views->first; list && view; view = view->next) {
        char text[PATH_MAX];
        if (json_array_append_new(list, json_string(log_escape(view->path, strlen(view->path), text,
                                                               sizeof text))) < 0) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

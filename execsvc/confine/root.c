#include "confine/root.h"

#include <fcntl.h>
#include <limits.h>
#include <linux/mount.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "base/cleanup.h"
#include "base/dir.h"
#include "confine/idmap.h"
#include "confine/landlock.h"

/* Bytes of what is in memory, and of the root itself, which holds nothing but directories. */
#define MEMORY_OPTIONS "size=256m,nr_inodes=65536,mode=1777"
#define SHM_OPTIONS "size=64m,nr_inodes=4096,mode=1777"
#define ROOT_OPTIONS "size=1m,nr_inodes=1024,mode=755"

enum step_kind {
    STEP_BIND,      /* source at target, and all that is mounted below it */
    STEP_DEVICE,    /* a device of the machine's */
    STEP_DIRECTORY, /* an empty one */
    STEP_LINK,      /* a symbolic link with source as its text */
    STEP_MEMORY,    /* a file system of its own, with source as its options */
    STEP_TERMINALS, /* a devpts of its own */
    STEP_PIN,       /* an empty directory, which can be neither moved nor removed */
    STEP_READ_ONLY, /* what is at target already */
    STEP_HIDE,      /* what is at target already, if it is: empty */
};

struct step {
    enum step_kind kind;
    char *source;
    char *target;
    bool writable;
    bool
        nobodys; /* of a bind: to be, where it can be; of what is hidden: is not to be seen there */
    int right;   /* of Landlock's, or -1 */
    int source_fd; /* while it is built */
};

struct root {
    int idmap;
    struct step *steps;
    size_t count;
    size_t allocated;
};

/* What of the machine's programs need. A link stays one. */
static const char *const system_paths[] = {"/usr",   "/bin",    "/sbin", "/lib", "/lib32",
                                           "/lib64", "/libx32", "/opt",  "/nix", "/etc"};

/* What the service's user may read, and nobody else should. */
static const char *const secrets[] = {
    "/etc/shadow",    "/etc/shadow-", "/etc/gshadow",     "/etc/gshadow-",    "/etc/sudoers",
    "/etc/sudoers.d", "/etc/ssh",     "/etc/ssl/private", "/etc/krb5.keytab", "/etc/berth"};

static const char *const devices[] = {"/dev/null",   "/dev/zero",    "/dev/full",
                                      "/dev/random", "/dev/urandom", "/dev/tty"};

/* Of the kernel's own state, what shows other processes' or other users', and what root may write
 * to without a capability. */
static const char *const kernel_hidden[] = {
    "/proc/kcore",         "/proc/kallsyms",      "/proc/keys",       "/proc/key-users",
    "/proc/kmsg",          "/proc/sysrq-trigger", "/proc/timer_list", "/proc/sched_debug",
    "/proc/latency_stats", "/proc/acpi",          "/proc/scsi",       "/proc/config.gz"};
static const char *const kernel_read_only[] = {"/proc/sys", "/proc/irq", "/proc/bus", "/proc/fs",
                                               "/proc/dynamic_debug"};

static const char *const kernel_paths[] = {"/proc", "/sys", "/dev", "/run"};

/* "/a/b" is below "/a" and itself. */
static bool is_below(const char *path, const char *directory)
{
    size_t len = strlen(directory);
    return strncmp(path, directory, len) == 0 && (path[len] == 0 || path[len] == '/');
}

bool root_reserves(const char *path)
{
    for (size_t i = 0; i < ARRAY_SIZE(system_paths); i++)
        if (is_below(path, system_paths[i]))
            return true;
    for (size_t i = 0; i < ARRAY_SIZE(kernel_paths); i++)
        if (is_below(path, kernel_paths[i]))
            return true;
    return false;
}

/* In the directory, at whatever depth, and not the directory itself. */
static bool is_within(const char *path, const char *directory)
{
    return is_below(path, directory) && strcmp(path, directory) != 0;
}

bool root_pins(const char *workspace, const char *home, const char *path)
{
    return is_within(workspace, path) &&
           (is_within(path, "/tmp") || (home && is_within(path, home)));
}

static bool is_secret(const char *path)
{
    for (size_t i = 0; i < ARRAY_SIZE(secrets); i++)
        if (strcmp(path, secrets[i]) == 0)
            return true;
    return false;
}

/* Is one, or they are below. */
static bool holds_secrets(const char *path)
{
    for (size_t i = 0; i < ARRAY_SIZE(secrets); i++)
        if (is_below(secrets[i], path))
            return true;
    return false;
}

int root_check_read(const char *path, const char *real, struct failure *ret_failure)
{
    static const char *const own[] = {"/proc", "/dev"};
    for (size_t i = 0; i < ARRAY_SIZE(own); i++)
        if (is_below(real, own[i]))
            return failure_set(ret_failure, -EINVAL,
                               "filesystem.read: %s: commands have a %s of their own", path,
                               own[i]);
    for (size_t i = 0; i < ARRAY_SIZE(secrets); i++)
        if (is_below(real, secrets[i]) && strcmp(path, secrets[i]) != 0)
            return failure_set(ret_failure, -EINVAL,
                               "filesystem.read: %s: is hidden, as all of %s; to have that shown, "
                               "name it",
                               path, secrets[i]);
    return 0;
}

/* --- planning -------------------------------------------------------------------------------- */

static int add(struct root *root, enum step_kind kind, const char *source, const char *target,
               bool writable, int right)
{
    if (root->count == root->allocated) {
        size_t size = root->allocated ? root->allocated * 2 : 64;
        struct step *larger = reallocarray(root->steps, size, sizeof *larger);
        if (!larger)
            return -ENOMEM;
        root->steps = larger;
        root->allocated = size;
    }
    struct step *step = &root->steps[root->count];
    *step = (struct step){.kind = kind,
                          .source = strdup(source),
                          .target = strdup(target),
                          .writable = writable,
                          .right = right,
                          .source_fd = -1};
    if (!step->source || !step->target) {
        free(step->source);
        free(step->target);
        return -ENOMEM;
    }
    root->count++;
    return 0;
}

static int add_nobodys(struct root *root, enum step_kind kind, const char *source,
                       const char *target, int right)
{
    int r = add(root, kind, source, target, false, right);
    if (r == 0)
        root->steps[root->count - 1].nobodys = true;
    return r;
}

/* Of this user, as whom commands run. To hide it as well would be to have mounts that go away, as a
 * change of what commands see, when another file takes its place. */
static bool is_out_of_reach(const char *path)
{
    return access(path, R_OK) < 0 && errno == EACCES && access(path, X_OK) < 0 && errno == EACCES;
}

static int plan_system(struct root *root)
{
    int r = 0;
    for (size_t i = 0; r == 0 && i < ARRAY_SIZE(system_paths); i++) {
        struct stat st;
        char text[PATH_MAX];
        const char *path = system_paths[i];
        if (lstat(path, &st) < 0)
            continue;
        ssize_t n = S_ISLNK(st.st_mode) ? readlink(path, text, sizeof text - 1) : -1;
        if (n > 0) {
            text[n] = 0;
            r = add(root, STEP_LINK, text, path, false, -1);
        } else {
            r = add_nobodys(root, STEP_BIND, path, path, LANDLOCK_RUN);
        }
    }
    for (size_t i = 0; r == 0 && i < ARRAY_SIZE(secrets); i++)
        if (!is_out_of_reach(secrets[i]))
            r = add_nobodys(root, STEP_HIDE, "", secrets[i], -1);
    return r;
}

static int plan_devices(struct root *root)
{
    static const char *const links[][2] = {{"/proc/self/fd", "/dev/fd"},
                                           {"/proc/self/fd/0", "/dev/stdin"},
                                           {"/proc/self/fd/1", "/dev/stdout"},
                                           {"/proc/self/fd/2", "/dev/stderr"},
                                           {"pts/ptmx", "/dev/ptmx"}};
    int r = add(root, STEP_DIRECTORY, "", "/dev", false, LANDLOCK_DEVICES);
    for (size_t i = 0; r == 0 && i < ARRAY_SIZE(devices); i++)
        if (access(devices[i], F_OK) == 0) /* a minimal root has none */
            r = add(root, STEP_DEVICE, devices[i], devices[i], true, -1);
    for (size_t i = 0; r == 0 && i < ARRAY_SIZE(links); i++)
        r = add(root, STEP_LINK, links[i][0], links[i][1], false, -1);
    if (r == 0)
        r = add(root, STEP_TERMINALS, "", "/dev/pts", true, -1);
    return r == 0 ? add(root, STEP_MEMORY, SHM_OPTIONS, "/dev/shm", true, LANDLOCK_OWN) : r;
}

static int plan_kernel(struct root *root)
{
    int r = 0;
    for (size_t i = 0; r == 0 && i < ARRAY_SIZE(kernel_read_only); i++)
        r = add(root, STEP_READ_ONLY, "", kernel_read_only[i], false, -1);
    for (size_t i = 0; r == 0 && i < ARRAY_SIZE(kernel_hidden); i++)
        r = add(root, STEP_HIDE, "", kernel_hidden[i], false, -1);
    return r;
}

static int plan_private(struct root *root, const struct root_options *o, const char *name,
                        const char *target)
{
    char source[PATH_MAX];
    if (!o->private)
        return add(root, STEP_MEMORY, MEMORY_OPTIONS, target, true, LANDLOCK_OWN);
    (void)snprintf(source, sizeof source, "%s/%s", o->private, name);
    return add(root, STEP_BIND, source, target, true, LANDLOCK_OWN);
}

static bool is_named(const struct root_options *o, const char *path)
{
    for (size_t i = 0; o->read && o->read[i]; i++)
        if (strcmp(o->read[i], path) == 0)
            return true;
    return false;
}

/* What is shown besides may have secrets in it, at their own paths or, where a link leads there, at
 * others. */
static int hide_secrets(struct root *root, const struct root_options *o, const char *shown,
                        const char *real)
{
    char path[PATH_MAX];
    size_t len = strlen(real);
    int r = 0;
    for (size_t i = 0; r == 0 && i < ARRAY_SIZE(secrets); i++) {
        if (!is_below(secrets[i], real) || is_named(o, secrets[i]) || is_out_of_reach(secrets[i]))
            continue;
        (void)snprintf(path, sizeof path, "%s%s", shown, secrets[i] + len);
        r = add(root, STEP_HIDE, "", path, false, -1);
    }
    return r;
}

static int plan_read(struct root *root, const struct root_options *o, const char *path,
                     struct failure *f)
{
    _cleanup_free_ char *real = realpath(path, NULL);
    if (!real)
        return failure_set(f, -errno, "filesystem.read: %s: %s", path, strerror(errno));
    if (is_secret(path) || !holds_secrets(real))
        return add(root, STEP_BIND, path, path, false, LANDLOCK_RUN);
    /* Hidden, too: nothing may be nobody's here. */
    int r = add_nobodys(root, STEP_BIND, path, path, LANDLOCK_RUN);
    return r == 0 ? hide_secrets(root, o, path, real) : r;
}

static int plan_way(struct root *root, const struct root_options *o)
{
    char path[PATH_MAX];
    int r = 0;
    for (const char *end = o->workspace; r == 0 && (end = strchr(end + 1, '/'));) {
        (void)snprintf(path, sizeof path, "%.*s", (int)(end - o->workspace), o->workspace);
        if (root_pins(o->workspace, o->home, path))
            r = add(root, STEP_PIN, "", path, true, -1);
    }
    return r;
}

static int plan_own(struct root *root, const struct root_options *o, struct failure *f)
{
    int r = plan_private(root, o, "tmp", "/tmp");
    if (r == 0)
        r = add(root, STEP_LINK, "../tmp", "/var/tmp", false, -1);
    if (r == 0)
        r = add(root, STEP_DIRECTORY, "", "/run", false, -1);
    if (r == 0 && o->home && strcmp(o->home, "/") != 0)
        r = plan_private(root, o, "home", o->home);
    if (r == 0 && o->workspace)
        r = plan_way(root, o);
    /* What is named itself is shown above what hides it, and so comes last. */
    for (size_t i = 0; r == 0 && o->read && o->read[i]; i++)
        if (!is_secret(o->read[i]))
            r = plan_read(root, o, o->read[i], f);
    for (size_t i = 0; r == 0 && o->read && o->read[i]; i++)
        if (is_secret(o->read[i]))
            r = plan_read(root, o, o->read[i], f);
    /* Last: it may be below any of the others. */
    if (r == 0 && o->workspace)
        r = add(root, STEP_BIND, o->workspace, ROOT_WORKSPACE, true, LANDLOCK_OWN);
    if (r == 0 && o->workspace)
        r = add(root, STEP_BIND, o->workspace, o->workspace, true, -1);
    return r;
}

int root_plan(const struct root_options *options, struct root **ret, struct failure *ret_failure)
{
    struct root *root = calloc(1, sizeof *root);
    if (root)
        root->idmap = options->idmap;
    /* Devices first: what is hidden is hidden behind one. */
    int r = root ? plan_devices(root) : -ENOMEM;
    if (r == 0)
        r = plan_system(root);
    if (r == 0)
        r = plan_kernel(root);
    if (r == 0)
        r = plan_own(root, options, ret_failure);
    if (r < 0) {
        if (r == -ENOMEM)
            (void)failure_set(ret_failure, r, "%s", strerror(ENOMEM));
        root_free(root);
        return r;
    }
    *ret = root;
    return 0;
}

void root_free(struct root *root)
{
    for (size_t i = 0; root && i < root->count; i++) {
        free(root->steps[i].source);
        free(root->steps[i].target);
    }
    if (root)
        free(root->steps);
    free(root);
}

/* --- building: async-signal-safe functions only ---------------------------------------------- */

/* A copy of what is at the path, which nothing that is mounted elsewhere later changes. */
static int clone_mount(const char *path, uint64_t set)
{
    struct mount_attr attr = {.attr_set = MOUNT_ATTR_NOSUID | set, .propagation = MS_PRIVATE};
    _cleanup_close_ int fd = (int)syscall(SYS_open_tree, AT_FDCWD, path,
                                          OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_RECURSIVE);
    if (fd < 0 ||
        syscall(SYS_mount_setattr, fd, "", AT_EMPTY_PATH | AT_RECURSIVE, &attr, sizeof attr) < 0)
        return -errno;
    return take_fd(&fd);
}

/* Commands may have put something else there, so that none would be started any more: a link, or
 * a file. What is not theirs is on mounts that are read-only. */
static void clear_way(int at, const char *name, bool directory)
{
    struct stat st;
    if (fstatat(at, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && !S_ISDIR(st.st_mode) &&
        (directory || !S_ISREG(st.st_mode)))
        (void)unlinkat(at, name, 0);
}

/* In the directory `at`: the next component, made if there is none. Nothing is followed, since a
 * part of the way may be where commands have been before. */
static int step_down(int at, const char *name, bool directory)
{
    int fd;
    clear_way(at, name, directory);
    if (directory) {
        if (mkdirat(at, name, 0755) < 0 && errno != EEXIST && errno != EROFS)
            return -errno;
        fd = openat(at, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        return fd < 0 ? -errno : fd;
    }
    fd = openat(at, name, O_RDONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0444);
    close_fd(&fd);
    fd = openat(at, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

bool root_next_component(const char **path, char name[NAME_MAX + 1])
{
    *path += strspn(*path, "/");
    size_t len = strcspn(*path, "/");
    if (len == 0 || len > NAME_MAX)
        return false;
    memcpy(name, *path, len);
    name[len] = 0;
    *path += len;
    return true;
}

static bool is_last(const char *path)
{
    return path[strspn(path, "/")] == 0;
}

/* The directory that the path is in, made if need be, and its last component. */
static int open_parent(const char *path, char name[NAME_MAX + 1])
{
    _cleanup_close_ int at = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (at < 0)
        return -errno;
    while (root_next_component(&path, name)) {
        if (is_last(path))
            return take_fd(&at);
        int next = step_down(at, name, true);
        if (next < 0)
            return next;
        (void)close(at);
        at = next;
    }
    return -EINVAL;
}

static int attach(int mount, const char *target, bool directory)
{
    char name[NAME_MAX + 1];
    _cleanup_close_ int parent = open_parent(target, name);
    _cleanup_close_ int at = parent < 0 ? parent : step_down(parent, name, directory);
    if (at < 0)
        return at;
    return syscall(SYS_move_mount, mount, "", at, "",
                   MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH) < 0
               ? -errno
               : 0;
}

static int attach_source(int mount, const char *target)
{
    struct stat st;
    if (fstat(mount, &st) < 0)
        return -errno;
    return attach(mount, target, S_ISDIR(st.st_mode));
}

/* Where something is mounted, even if it is the directory itself, the kernel moves nothing. */
static int pin(const char *target)
{
    char name[NAME_MAX + 1];
    _cleanup_close_ int parent = open_parent(target, name);
    _cleanup_close_ int at = parent < 0 ? parent : step_down(parent, name, true);
    if (at < 0)
        return at;
    _cleanup_close_ int mount =
        (int)syscall(SYS_open_tree, at, "", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH);
    return mount < 0 || syscall(SYS_move_mount, mount, "", at, "",
                                MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH) < 0
               ? -errno
               : 0;
}

static int make_link(const struct step *step)
{
    char name[NAME_MAX + 1];
    _cleanup_close_ int parent = open_parent(step->target, name);
    if (parent < 0)
        return parent;
    return symlinkat(step->source, parent, name) < 0 && errno != EEXIST ? -errno : 0;
}

static int make_directory(const char *target)
{
    char name[NAME_MAX + 1];
    _cleanup_close_ int parent = open_parent(target, name);
    _cleanup_close_ int made = parent < 0 ? parent : step_down(parent, name, true);
    return made < 0 ? made : 0;
}

static int mount_new(const char *type, const char *target, unsigned long flags, const char *options)
{
    int r = make_directory(target);
    if (r < 0)
        return r;
    return mount(type, target, type, flags | MS_NOSUID, options) < 0 ? -errno : 0;
}

static int make_read_only(const char *target)
{
    struct stat st;
    if (lstat(target, &st) < 0)
        return errno == ENOENT ? 0 : -errno;
    _cleanup_close_ int mount = clone_mount(target, MOUNT_ATTR_RDONLY | MOUNT_ATTR_NODEV);
    if (mount < 0)
        return mount;
    return syscall(SYS_move_mount, mount, "", AT_FDCWD, target, MOVE_MOUNT_F_EMPTY_PATH) < 0
               ? -errno
               : 0;
}

static int hide(const char *target)
{
    struct stat st;
    if (lstat(target, &st) < 0)
        return errno == ENOENT || errno == EACCES ? 0 : -errno;
    if (S_ISLNK(st.st_mode))
        return 0; /* leads to what is in the root, or nowhere */
    if (S_ISDIR(st.st_mode))
        return mount("tmpfs", target, "tmpfs", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC,
                     "size=4k,nr_inodes=2,mode=555") < 0
                   ? -errno
                   : 0;
    _cleanup_close_ int null = clone_mount("/dev/null", MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOEXEC);
    if (null == -ENOENT)
        null = clone_mount(ROOT_FORBIDDEN, MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOEXEC);
    if (null < 0)
        return null;
    return syscall(SYS_move_mount, null, "", AT_FDCWD, target, MOVE_MOUNT_F_EMPTY_PATH) < 0 ? -errno
                                                                                            : 0;
}

static int take_step(const struct step *step)
{
    switch (step->kind) {
    case STEP_BIND:
    case STEP_DEVICE:
        return attach_source(step->source_fd, step->target);
    case STEP_DIRECTORY:
        return make_directory(step->target);
    case STEP_LINK:
        return make_link(step);
    case STEP_MEMORY:
        return mount_new("tmpfs", step->target, MS_NODEV, step->source);
    case STEP_TERMINALS:
        return mount_new("devpts", step->target, MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620");
    case STEP_PIN:
        return pin(step->target);
    case STEP_READ_ONLY:
        return make_read_only(step->target);
    case STEP_HIDE:
        return hide(step->target);
    }
    return -EINVAL;
}

/* A /proc must be mounted while another is in sight. */
static int change_root(const char **ret_step)
{
    static const char *const places[] = {"/tmp", "/usr", "/etc", "/dev", "/proc"};
    struct stat st;
    size_t i = 0;
    while (i < ARRAY_SIZE(places) && (lstat(places[i], &st) < 0 || !S_ISDIR(st.st_mode)))
        i++;
    *ret_step = "a new root";
    if (i == ARRAY_SIZE(places))
        return -ENOENT;
    if (mount("tmpfs", places[i], "tmpfs", MS_NOSUID | MS_NODEV, ROOT_OPTIONS) < 0 ||
        chdir(places[i]) < 0)
        return -errno;
    *ret_step = "a /proc of its own";
    if (mkdir("proc", 0555) < 0 ||
        mount("proc", "proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) < 0)
        return -errno;
    *ret_step = "a new root";
    if (syscall(SYS_pivot_root, ".", ".") < 0 || umount2(".", MNT_DETACH) < 0 || chdir("/") < 0)
        return -errno;
    return 0;
}

/* What is nobody's needs no hiding; and what hides a file goes away when another takes the file's
 * place on the machine, as passwd(1) has it. */
static bool shows_no_secrets(const struct root *root)
{
    for (size_t i = 0; i < root->count; i++)
        if (root->steps[i].kind == STEP_BIND && strcmp(root->steps[i].target, "/etc") == 0)
            return root->steps[i].nobodys;
    return false;
}

static int open_source(const struct root *root, struct step *step)
{
    step->source_fd =
        clone_mount(step->source, MOUNT_ATTR_NODEV | (step->writable ? 0 : MOUNT_ATTR_RDONLY));
    step->nobodys = step->nobodys && root->idmap >= 0 && step->source_fd >= 0 &&
                    idmap_apply(root->idmap, step->source_fd) == 0;
    return step->source_fd;
}

static int make_forbidden(const char **ret_step)
{
    *ret_step = ROOT_FORBIDDEN;
    _cleanup_close_ int fd = open(ROOT_FORBIDDEN, O_RDONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0444);
    return fd < 0 ? -errno : 0;
}

int root_build(struct root *root, const char **ret_step)
{
    int r = 0;
    for (size_t i = 0; r == 0 && i < root->count; i++) {
        struct step *step = &root->steps[i];
        if (step->kind == STEP_BIND)
            (void)open_source(root, step);
        else if (step->kind == STEP_DEVICE)
            /* Written to all the same; but their modes are the machine's. */
            step->source_fd = clone_mount(step->source, MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOEXEC);
        else
            continue;
        *ret_step = step->source;
        r = step->source_fd < 0 ? step->source_fd : 0;
    }
    if (r == 0)
        r = change_root(ret_step);
    if (r == 0)
        r = make_forbidden(ret_step);
    for (size_t i = 0; r == 0 && i < root->count; i++) {
        if (root->steps[i].kind == STEP_HIDE && root->steps[i].nobodys && shows_no_secrets(root))
            continue;
        *ret_step = root->steps[i].target;
        r = take_step(&root->steps[i]);
        close_fd(&root->steps[i].source_fd);
    }
    if (r < 0)
        return r;
    *ret_step = "a new root";
    if (mount(NULL, "/", NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV, NULL) < 0)
        return -errno;
    return 0;
}

int root_copy(int *ret)
{
    struct mount_attr attr = {.attr_clr = MOUNT_ATTR_RDONLY};
    _cleanup_close_ int fd = (int)syscall(SYS_open_tree, AT_FDCWD, "/",
                                          OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_RECURSIVE);
    if (fd < 0 || syscall(SYS_mount_setattr, fd, "", AT_EMPTY_PATH, &attr, sizeof attr) < 0)
        return -errno;
    *ret = take_fd(&fd);
    return 0;
}

int root_bind_workspace(const char *path)
{
    _cleanup_close_ int mount = clone_mount(ROOT_WORKSPACE, MOUNT_ATTR_NODEV);
    return mount < 0 ? mount : attach(mount, path, true);
}

int root_allow(const struct root *root, int landlock, const char **ret_step)
{
    *ret_step = "/";
    int r = landlock_allow(landlock, "/", LANDLOCK_LIST);
    if (r == 0) {
        *ret_step = "/proc";
        r = landlock_allow(landlock, "/proc", LANDLOCK_DEVICES);
    }
    for (size_t i = 0; r == 0 && i < root->count; i++) {
        const struct step *step = &root->steps[i];
        if (step->right < 0)
            continue;
        *ret_step = step->target;
        r = landlock_allow(landlock, step->target, (enum landlock_right)step->right);
    }
    return r;
}

/* --- without a root of its own --------------------------------------------------------------- */

static int allow(int landlock, const char *path, enum landlock_right right)
{
    int r = landlock_allow(landlock, path, right);
    return r == -ENOENT || r == -EACCES || r == -ELOOP ? 0 : r;
}

static bool everybody_may_read(const struct stat *st)
{
    return S_ISDIR(st->st_mode) ? (st->st_mode & 05) == 05 : (st->st_mode & 04) != 0;
}

/* Calls `each` for what is in a directory, until it answers something else than 0. */
static int each_entry(const char *directory, int (*each)(int landlock, const char *path),
                      int landlock)
{
    _cleanup_dir_ DIR *d = opendir(directory);
    const struct dirent *entry;
    int r = 0;
    while (r == 0 && d && dir_next(d, &entry) == 1) {
        char path[PATH_MAX];
        if (snprintf(path, sizeof path, "%s/%s", directory, entry->d_name) < (int)sizeof path)
            r = each(landlock, path);
    }
    return r;
}

/* 1: there is something at the path or below it that is not for everybody. */
static int has_secrets(int landlock, const char *path)
{
    struct stat st;
    if (is_secret(path))
        return 1;
    if (lstat(path, &st) < 0 || S_ISLNK(st.st_mode))
        return 0;
    if (!everybody_may_read(&st))
        return 1;
    return S_ISDIR(st.st_mode) ? each_entry(path, has_secrets, landlock) : 0;
}

/* Rights are given and never taken away: to all that is below a directory, or one by one. What
 * appears there later is not seen then. */
static int allow_for_everybody(int landlock, const char *path)
{
    struct stat st;
    if (stat(path, &st) < 0 || is_secret(path) || !everybody_may_read(&st))
        return 0;
    if (has_secrets(landlock, path) == 0)
        return allow(landlock, path, LANDLOCK_RUN);
    return S_ISDIR(st.st_mode) ? each_entry(path, allow_for_everybody, landlock) : 0;
}

static int allow_read(int landlock, const char *path)
{
    _cleanup_free_ char *real = realpath(path, NULL);
    if (!real)
        return -errno;
    return holds_secrets(real) && !is_secret(path) ? allow_for_everybody(landlock, real)
                                                   : landlock_allow(landlock, path, LANDLOCK_RUN);
}

int root_allow_outside(const struct root_options *o, int landlock, struct failure *ret_failure)
{
    char path[PATH_MAX];
    int r = each_entry("/etc", allow_for_everybody, landlock);
    for (size_t i = 0; r == 0 && i < ARRAY_SIZE(system_paths); i++)
        if (strcmp(system_paths[i], "/etc") != 0)
            r = allow(landlock, system_paths[i], LANDLOCK_RUN);
    for (size_t i = 0; r == 0 && i < ARRAY_SIZE(devices); i++)
        r = allow(landlock, devices[i], LANDLOCK_DEVICES);
    /* Nothing is read-only there: root might have the kernel run a program of its own. */
    if (r == 0)
        r = allow(landlock, "/proc", LANDLOCK_READ);
    for (size_t i = 0; r == 0 && o->read && o->read[i]; i++)
        r = allow_read(landlock, o->read[i]);
    for (int i = 0; r == 0 && o->private && i < 2; i++) {
        (void)snprintf(path, sizeof path, "%s/%s", o->private, i ? "tmp" : "home");
        r = landlock_allow(landlock, path, LANDLOCK_OWN);
    }
    if (r == 0 && o->workspace)
        r = landlock_allow(landlock, o->workspace, LANDLOCK_OWN);
    return r < 0 ? failure_set(ret_failure, r, "a rule of Landlock's: %s", strerror(-r)) : 0;
}

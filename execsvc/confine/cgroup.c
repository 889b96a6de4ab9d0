#include "confine/cgroup.h"

#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/dir.h"
#include "base/log.h"

/* Directories below a command's own that are followed: a command that may write there can nest
 * them, and we use a descriptor for each level. */
#define DEPTH_MAX 16

/* How long what a killed service has left is waited for. */
#define CLEAR_MS 2000

/* In which a command may use the processors for as long as its limit says. */
#define PERIOD_US 100000

struct cgroup_base {
    char *path;
    int parent; /* the directory that ours is in */
    char *name;
    int fd;
    uint64_t last;        /* number of the newest cgroup */
    struct cgroup *spare; /* ready for the next command; NULL: none */
    bool memory;
    bool pids;
    bool cpu;
    uint64_t *left; /* numbers of those that wait for their end */
    size_t left_count;
    size_t left_allocated;
};

struct cgroup {
    struct cgroup_base *base;
    uint64_t number;
    int fd;
    bool memory; /* is limited */
};

/* --- files ----------------------------------------------------------------------- */

static int write_file(int directory, const char *name, const char *text)
{
    _cleanup_close_ int fd = openat(directory, name, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    return write(fd, text, strlen(text)) < 0 ? -errno : 0;
}

/* Up to size - 1 bytes, as a string. */
static int read_file(int directory, const char *name, char *text, size_t size)
{
    _cleanup_close_ int fd = openat(directory, name, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    ssize_t n = read(fd, text, size - 1);
    if (n < 0)
        return -errno;
    text[n] = 0;
    return 0;
}

/* The number after "key " at the start of a line. -ENODATA when there is none. */
static int read_key(int directory, const char *file, const char *key, uint64_t *ret)
{
    char text[1024];
    int r = read_file(directory, file, text, sizeof text);
    if (r < 0)
        return r;
    size_t len = strlen(key);
    for (const char *line = text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, key, len) == 0 && line[len] == ' ') {
            *ret = strtoull(line + len + 1, NULL, 10);
            return 0;
        }
    }
    return -ENODATA;
}

static bool key_is_set(int directory, const char *file, const char *key)
{
    uint64_t value;
    return read_key(directory, file, key, &value) == 0 && value > 0;
}

typedef int each_child(int parent, const char *name, unsigned depth, void *context);

/* Calls child for each directory in fd; stops at the first that does not answer 0. */
static int for_each_child(int fd, unsigned depth, each_child *child, void *context)
{
    if (depth >= DEPTH_MAX)
        return -ELOOP;
    _cleanup_dir_ DIR *directory = NULL;
    const struct dirent *entry;
    int r = dir_open(fd, ".", &directory);
    if (r < 0)
        return r;
    while ((r = dir_next(directory, &entry)) == 1) {
        if (entry->d_type != DT_DIR || entry->d_name[0] == '.')
            continue;
        r = child(fd, entry->d_name, depth + 1, context);
        if (r != 0)
            return r;
    }
    return r;
}

static int remove_tree(int parent, const char *name, unsigned depth, void *context)
{
    if (unlinkat(parent, name, AT_REMOVEDIR) == 0 || errno == ENOENT)
        return 0;
    if (errno != EBUSY)
        return -errno;
    /* Either it is not empty, or it has directories that are. */
    _cleanup_close_ int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    int r = for_each_child(fd, depth, remove_tree, context);
    if (r < 0)
        return r;
    return unlinkat(parent, name, AT_REMOVEDIR) < 0 && errno != ENOENT ? -errno : 0;
}

/* --- the directory of all -------------------------------------------------------- */

static bool is_cgroup2(int fd)
{
    struct statfs fs;
    return fstatfs(fd, &fs) == 0 && fs.f_type == CGROUP2_SUPER_MAGIC;
}

/* Takes what it looks for out of a line of a file; false: not in this one. */
typedef bool line_fn(char *line, char *ret, size_t size);

/* What the first line of the file has that has it. -EOPNOTSUPP: none. */
static int search_lines(const char *path, line_fn *take, char *ret, size_t size)
{
    FILE *f = fopen(path, "re");
    if (!f)
        return -errno;
    _cleanup_free_ char *line = NULL;
    size_t allocated = 0;
    bool found = false;
    while (!found && getline(&line, &allocated, f) > 0)
        found = take(line, ret, size);
    (void)fclose(f);
    return found ? 0 : -EOPNOTSUPP;
}

/* Of mountinfo: where the unified hierarchy is mounted. ID PARENT DEV ROOT POINT … - TYPE … */
static bool take_mount(char *line, char *ret, size_t size)
{
    char root[2], point[512];
    const char *type = strstr(line, " - ");
    /* Only a mount of its (namespace's) root: paths of cgroups begin there. */
    if (!type || strncmp(type, " - cgroup2 ", 11) != 0 ||
        sscanf(line, "%*d %*d %*s %1s %511s", root, point) != 2 || root[0] != '/' ||
        !strstr(line, " / ") || strchr(point, '\\') || strlen(point) >= size)
        return false;
    strcpy(ret, point);
    return true;
}

/* Of /proc/self/cgroup: this process's path within the unified hierarchy. */
static bool take_own(char *line, char *ret, size_t size)
{
    if (strncmp(line, "0::/", 4) != 0)
        return false;
    line[strcspn(line, "\n")] = 0;
    const char *path = line + 3;
    /* "/..": outside of our cgroup namespace. */
    if (strlen(path) >= size || strncmp(path, "/..", 3) == 0)
        return false;
    strcpy(ret, strcmp(path, "/") == 0 ? "" : path);
    return true;
}

static int find_parent(char **ret, struct failure *ret_failure)
{
    char mount[512], own[1024];
    int r = search_lines("/proc/self/mountinfo", take_mount, mount, sizeof mount);
    if (r < 0)
        return failure_set(ret_failure, r, "no cgroup v2 is mounted here");
    r = search_lines("/proc/self/cgroup", take_own, own, sizeof own);
    if (r < 0)
        return failure_set(ret_failure, r, "this process's cgroup is outside of what is mounted");
    if (asprintf(ret, "%s%s", mount, own) < 0)
        return failure_set(ret_failure, -ENOMEM, "%s", strerror(ENOMEM));
    return 0;
}

int cgroup_make_room(const char *name, char **ret, struct failure *ret_failure)
{
    _cleanup_free_ char *parent = NULL;
    int r = find_parent(&parent, ret_failure);
    if (r < 0)
        return r;
    _cleanup_close_ int fd = open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    r = fd < 0 || (mkdirat(fd, name, 0755) < 0 && errno != EEXIST) ? -errno : 0;
    _cleanup_close_ int own =
        r < 0 ? -1 : openat(fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (r == 0)
        r = own < 0 ? -errno : cgroup_join(own, 0);
    if (r < 0)
        return failure_set(ret_failure, r, "%s/%s: %s", parent, name, strerror(-r));
    *ret = take_ptr(parent);
    return 0;
}

static int kill_child(int parent, const char *name, unsigned depth, void *context)
{
    _cleanup_close_ int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0)
        (void)write_file(fd, "cgroup.kill", "1");
    return 0;
}

/* What is there was left by a service that was killed: whoever opens holds the root's lock. */
static void clear(const struct cgroup_base *base)
{
    (void)for_each_child(base->fd, 0, kill_child, NULL);
    uint64_t until = clock_monotonic_ns() + CLEAR_MS * NSEC_PER_MSEC;
    while (for_each_child(base->fd, 0, remove_tree, NULL) < 0 && clock_monotonic_ns() < until)
        (void)usleep(10000);
}

/* Controllers are handed down by each directory on the way; a directory with processes of its own
 * hands none down, unless it is the root. What cannot be had is done without. */
static bool enable(const struct cgroup_base *base, const char *controller)
{
    char text[16];
    (void)snprintf(text, sizeof text, "+%s", controller);
    (void)write_file(base->parent, "cgroup.subtree_control", text);
    return write_file(base->fd, "cgroup.subtree_control", text) == 0;
}

static int try_everything(struct cgroup_base *base, struct failure *ret_failure)
{
    struct cgroup *cgroup = NULL;
    int r = cgroup_new(base, &cgroup);
    if (r == 0)
        r = cgroup_kill(cgroup);
    if (r == 0)
        r = cgroup_populated(cgroup);
    if (cgroup)
        cgroup_free(cgroup);
    if (r == -ENOENT)
        return failure_set(ret_failure, -EOPNOTSUPP, "%s has no cgroup.kill (Linux 5.14)",
                           base->path);
    return r < 0 ? failure_set(ret_failure, r, "%s: %s", base->path, strerror(-r)) : 0;
}

int cgroup_base_open(const char *parent, const char *name, struct cgroup_base **ret,
                     struct failure *ret_failure)
{
    _cleanup_free_ char *found = NULL;
    if (!parent) {
        int r = find_parent(&found, ret_failure);
        if (r < 0)
            return r;
        parent = found;
    }
    struct cgroup_base *base = calloc(1, sizeof *base);
    if (!base)
        return failure_set(ret_failure, -ENOMEM, "%s", strerror(ENOMEM));
    base->fd = -1;
    base->parent = open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int r = base->parent < 0 ? -errno : 0;
    if (r == 0 && !is_cgroup2(base->parent))
        r = -EOPNOTSUPP;
    if (r == 0 &&
        (asprintf(&base->path, "%s/%s", parent, name) < 0 || !(base->name = strdup(name))))
        r = -ENOMEM;
    if (r == 0 && mkdirat(base->parent, name, 0755) < 0 && errno != EEXIST)
        r = -errno;
    if (r == 0) {
        base->fd = openat(base->parent, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        r = base->fd < 0 ? -errno : 0;
    }
    if (r < 0)
        (void)failure_set(ret_failure, r, "%s/%s: %s", parent, name,
                          r == -EOPNOTSUPP ? "not in a cgroup v2 hierarchy" : strerror(-r));
    if (r == 0) {
        clear(base);
        r = try_everything(base, ret_failure);
    }
    if (r < 0) {
        cgroup_base_free(base);
        return r;
    }
    base->memory = enable(base, "memory");
    base->pids = enable(base, "pids");
    base->cpu = enable(base, "cpu");
    *ret = base;
    return 0;
}

static void number_name(uint64_t number, char ret[32])
{
    (void)snprintf(ret, 32, "exec-%" PRIu64, number);
}

void cgroup_base_sweep(struct cgroup_base *base)
{
    size_t kept = 0;
    for (size_t i = 0; i < base->left_count; i++) {
        char name[32];
        number_name(base->left[i], name);
        if (remove_tree(base->fd, name, 0, NULL) == -EBUSY)
            base->left[kept++] = base->left[i];
    }
    base->left_count = kept;
}

void cgroup_remove_left(const char *path, const char *name)
{
    const char *last = strrchr(path, '/');
    if (!last || strcmp(last + 1, name) != 0)
        return;
    struct cgroup_base left = {.fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)};
    if (left.fd < 0)
        return;
    if (is_cgroup2(left.fd)) {
        clear(&left);
        (void)rmdir(path);
    }
    close_fd(&left.fd);
}

void cgroup_base_free(struct cgroup_base *base)
{
    if (!base)
        return;
    if (base->spare)
        close_fd(&base->spare->fd);
    free(base->spare);
    if (base->fd >= 0) {
        clear(base);
        (void)unlinkat(base->parent, base->name, AT_REMOVEDIR);
    }
    close_fd(&base->fd);
    close_fd(&base->parent);
    free(base->left);
    free(base->name);
    free(base->path);
    free(base);
}

const char *cgroup_base_path(const struct cgroup_base *base)
{
    return base->path;
}

bool cgroup_base_limits_memory(const struct cgroup_base *base)
{
    return base->memory;
}

bool cgroup_base_limits_pids(const struct cgroup_base *base)
{
    return base->pids;
}

bool cgroup_base_limits_cpu(const struct cgroup_base *base)
{
    return base->cpu;
}

/* A word of the file's. */
static bool has_word(const char *words, const char *word)
{
    size_t len = strlen(word);
    for (const char *at = words; (at = strstr(at, word)); at += len)
        if ((at == words || at[-1] == ' ') && (!at[len] || at[len] == ' '))
            return true;
    return false;
}

void cgroup_base_explain(const struct cgroup_base *base, const char *controller,
                         struct failure *ret_failure)
{
    char words[256] = "";
    int parent_len = (int)(strlen(base->path) - strlen(base->name) - 1);
    _cleanup_close_ int fd = openat(base->parent, "cgroup.controllers", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, words, sizeof words - 1);
    words[n > 0 ? n : 0] = 0;
    words[strcspn(words, "\n")] = 0;
    if (has_word(words, controller))
        (void)failure_set(ret_failure, -EOPNOTSUPP,
                          "the cgroup %.*s has the controller \"%s\", but does not hand it down: "
                          "it may be another's, or have processes of its own",
                          parent_len, base->path, controller);
    else
        (void)failure_set(ret_failure, -EOPNOTSUPP,
                          "the cgroup %.*s has no controller \"%s\"; it has: %s", parent_len,
                          base->path, controller, words[0] ? words : "none");
}

/* --- one command's --------------------------------------------------------------- */

/* systemd removes what is empty below a unit that it stops, though something of the unit goes on.
 */
static bool is_there(int fd)
{
    return faccessat(fd, "cgroup.procs", F_OK, 0) == 0;
}

static int make_base_again(struct cgroup_base *base)
{
    if (mkdirat(base->parent, base->name, 0755) < 0 && errno != EEXIST)
        return -errno;
    int fd = openat(base->parent, base->name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    close_fd(&base->fd);
    base->fd = fd;
    base->memory = enable(base, "memory");
    base->pids = enable(base, "pids");
    base->cpu = enable(base, "cpu");
    return 0;
}

static int make(struct cgroup_base *base, struct cgroup **ret)
{
    char name[32];
    int r = is_there(base->fd) ? 0 : make_base_again(base);
    if (r < 0)
        return r;
    struct cgroup *cgroup = calloc(1, sizeof *cgroup);
    if (!cgroup)
        return -ENOMEM;
    *cgroup = (struct cgroup){.base = base, .number = ++base->last, .fd = -1};
    number_name(cgroup->number, name);
    if (mkdirat(base->fd, name, 0755) < 0) {
        int error = errno;
        free(cgroup);
        return -error;
    }
    cgroup->fd = openat(base->fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (cgroup->fd < 0) {
        int error = errno;
        (void)unlinkat(base->fd, name, AT_REMOVEDIR);
        free(cgroup);
        return -error;
    }
    *ret = cgroup;
    return 0;
}

int cgroup_new(struct cgroup_base *base, struct cgroup **ret)
{
    cgroup_base_sweep(base);
    if (base->spare && is_there(base->spare->fd)) {
        *ret = take_ptr(base->spare);
        return 0;
    }
    struct cgroup *gone = take_ptr(base->spare);
    if (gone) {
        close_fd(&gone->fd);
        free(gone);
    }
    return make(base, ret);
}

/* Without memory for the note it stays until the service starts anew. */
static void base_remember(struct cgroup_base *base, uint64_t number)
{
    if (base->left_count == base->left_allocated) {
        size_t size = base->left_allocated ? base->left_allocated * 2 : 16;
        uint64_t *larger = reallocarray(base->left, size, sizeof *larger);
        if (!larger)
            return;
        base->left = larger;
        base->left_allocated = size;
    }
    base->left[base->left_count++] = number;
}

void cgroup_free(struct cgroup *cgroup)
{
    if (!cgroup)
        return;
    char name[32];
    number_name(cgroup->number, name);
    struct cgroup_base *base = cgroup->base;
    close_fd(&cgroup->fd);
    int r = remove_tree(base->fd, name, 0, NULL);
    if (r == -EBUSY)
        base_remember(base, cgroup->number);
    else if (r < 0)
        log_warning("cgroup %s/%s: %s", base->path, name, strerror(-r));
    free(cgroup);
    /* Made now, when nobody waits. Not this one again: a command that may write there can have left
     * limits in it. */
    if (r == 0 && !base->spare)
        (void)make(base, &base->spare);
}

int cgroup_fd(const struct cgroup *cgroup)
{
    return cgroup->fd;
}

static int write_limit(const struct cgroup *cgroup, const char *file, const char *text)
{
    int r = write_file(cgroup->fd, file, text);
    return r == -ENOENT || r == -EACCES ? -EOPNOTSUPP : r;
}

static int write_number(const struct cgroup *cgroup, const char *file, uint64_t number)
{
    char text[32];
    (void)snprintf(text, sizeof text, "%" PRIu64, number);
    return write_limit(cgroup, file, text);
}

int cgroup_limit_memory(struct cgroup *cgroup, uint64_t bytes)
{
    int r = write_number(cgroup, "memory.max", bytes);
    if (r == 0)
        r = write_number(cgroup, "memory.oom.group", 1);
    /* Else it would go on, ever slower, from the disk. There may be no swap to limit. */
    if (r == 0)
        (void)write_number(cgroup, "memory.swap.max", 0);
    cgroup->memory = r == 0;
    return r;
}

int cgroup_limit_pids(struct cgroup *cgroup, uint64_t count)
{
    return write_number(cgroup, "pids.max", count);
}

int cgroup_limit_cpu(struct cgroup *cgroup, uint64_t percent)
{
    char text[64];
    (void)snprintf(text, sizeof text, "%" PRIu64 " %d", percent * (PERIOD_US / 100), PERIOD_US);
    return write_limit(cgroup, "cpu.max", text);
}

struct members {
    void (*member)(void *context, pid_t pid);
    void *context;
};

static int list_members(int fd, const struct members *m)
{
    int procs = openat(fd, "cgroup.procs", O_RDONLY | O_CLOEXEC);
    FILE *f = procs < 0 ? NULL : fdopen(procs, "r");
    if (!f) {
        int error = errno;
        close_fd(&procs);
        return -error;
    }
    long pid;
    while (fscanf(f, "%ld", &pid) == 1)
        m->member(m->context, (pid_t)pid); /* 0: outside of our pid namespace */
    (void)fclose(f);
    return 0;
}

static int list_child(int parent, const char *name, unsigned depth, void *context)
{
    _cleanup_close_ int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT ? 0 : -errno;
    int r = list_members(fd, context);
    return r < 0 ? r : for_each_child(fd, depth, list_child, context);
}

int cgroup_members(const struct cgroup *cgroup, void (*member)(void *context, pid_t pid),
                   void *context)
{
    struct members m = {.member = member, .context = context};
    int r = list_members(cgroup->fd, &m);
    return r < 0 ? r : for_each_child(cgroup->fd, 0, list_child, &m);
}

int cgroup_populated(const struct cgroup *cgroup)
{
    uint64_t populated = 1;
    int r = read_key(cgroup->fd, "cgroup.events", "populated", &populated);
    return r < 0 ? r : populated != 0;
}

int cgroup_freeze(struct cgroup *cgroup, bool frozen)
{
    return write_file(cgroup->fd, "cgroup.freeze", frozen ? "1" : "0");
}

bool cgroup_frozen(const struct cgroup *cgroup)
{
    return key_is_set(cgroup->fd, "cgroup.events", "frozen");
}

int cgroup_kill(struct cgroup *cgroup)
{
    return write_file(cgroup->fd, "cgroup.kill", "1");
}

bool cgroup_out_of_memory(const struct cgroup *cgroup)
{
    /* Its own, not what a command did to itself in cgroups that it has made below. The kernel
     * counts the process that it chooses before that one can end, and the whole after it. */
    return cgroup->memory && (key_is_set(cgroup->fd, "memory.events.local", "oom_kill") ||
                              key_is_set(cgroup->fd, "memory.events.local", "oom_group_kill"));
}

int cgroup_cpu_ns(const struct cgroup *cgroup, uint64_t *ret)
{
    uint64_t us;
    int r = read_key(cgroup->fd, "cpu.stat", "usage_usec", &us);
    if (r < 0)
        return r;
    *ret = us * 1000;
    return 0;
}

int cgroup_memory(const struct cgroup *cgroup, uint64_t *ret)
{
    char text[32];
    int r = read_file(cgroup->fd, "memory.current", text, sizeof text);
    if (r < 0)
        return r;
    *ret = strtoull(text, NULL, 10);
    return 0;
}

int cgroup_join(int fd, pid_t pid)
{
    char text[16];
    char *at = text + sizeof text;
    do
        *--at = (char)('0' + pid % 10);
    while ((pid /= 10) > 0);
    int procs = openat(fd, "cgroup.procs", O_WRONLY | O_CLOEXEC);
    if (procs < 0)
        return -errno;
    ssize_t n = write(procs, at, (size_t)(text + sizeof text - at));
    int error = errno;
    (void)close(procs);
    return n < 0 ? -error : 0;
}

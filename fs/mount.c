#include "mount.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "base/buffer.h"
#include "base/cleanup.h"
#include "base/log.h"

#define DEVICE "/dev/fuse"
#define FUSERMOUNT "fusermount3"
#define TYPE "fuse.berth"
#define MAX_READ "max_read=1048576" /* WIRE_DATA_MAX: the largest READ the service answers */

extern char **environ;

static void close_file(FILE **f)
{
    if (*f)
        (void)fclose(*f);
}

/* Undoes the \ooo escapes of mountinfo, in place. */
static void unescape(char *s)
{
    char *out = s;
    while (*s) {
        if (s[0] == '\\' && s[1] >= '0' && s[1] <= '3' && s[2] >= '0' && s[2] <= '7' &&
            s[3] >= '0' && s[3] <= '7') {
            *out++ = (char)((s[1] - '0') << 6 | (s[2] - '0') << 3 | (s[3] - '0'));
            s += 4;
        } else {
            *out++ = *s++;
        }
    }
    *out = '\0';
}

struct mount_line {
    struct mount_info info;
    char *mountpoint; /* within the line */
};

static bool parse_line(char *line, struct mount_line *ret)
{
    /* 36 35 98:0 /root /mountpoint options [tags…] - type source superoptions */
    char *save, *fields[5];
    for (size_t i = 0; i < 5; i++)
        if (!(fields[i] = strtok_r(i ? NULL : line, " ", &save)))
            return false;
    const char *word;
    do {
        word = strtok_r(NULL, " ", &save);
    } while (word && strcmp(word, "-") != 0);
    const char *type = word ? strtok_r(NULL, " ", &save) : NULL;
    if (!type || sscanf(fields[2], "%u:%u", &ret->info.major, &ret->info.minor) != 2)
        return false;
    ret->info.ours = strcmp(type, TYPE) == 0;
    ret->mountpoint = fields[4];
    unescape(ret->mountpoint);
    return true;
}

/* Calls visit with each mount, in the kernel's order: the last at a path is the topmost. */
static int each_mount(void (*visit)(void *context, const struct mount_line *line), void *context)
{
    FILE *f __attribute__((cleanup(close_file))) = fopen("/proc/self/mountinfo", "re");
    if (!f)
        return -errno;
    _cleanup_free_ char *line = NULL;
    size_t allocated = 0;
    while (getline(&line, &allocated, f) > 0) {
        struct mount_line parsed;
        line[strcspn(line, "\n")] = '\0';
        if (parse_line(line, &parsed))
            visit(context, &parsed);
    }
    return 0;
}

struct search {
    const char *path;
    bool found;
    struct mount_info info;
    char around[PATH_MAX]; /* the innermost mount that holds path */
    bool around_ours;
};

static void search_visit(void *context, const struct mount_line *line)
{
    struct search *s = context;
    size_t len = strlen(line->mountpoint);
    if (strcmp(line->mountpoint, s->path) == 0) {
        s->found = true;
        s->info = line->info;
    } else if (strncmp(s->path, line->mountpoint, len) == 0 && (s->path[len] == '/' || len == 1) &&
               len >= strlen(s->around)) {
        (void)snprintf(s->around, sizeof s->around, "%s", line->mountpoint);
        s->around_ours = line->info.ours;
    }
}

int mount_find(const char *mountpoint, struct mount_info *ret)
{
    struct search s = {.path = mountpoint};
    int r = each_mount(search_visit, &s);
    if (r < 0)
        return r;
    if (s.found)
        *ret = s.info;
    return s.found;
}

/* realpath() of a directory whose last component may be a dead mount. */
static int resolve(const char *path, char **ret, struct failure *f)
{
    char *absolute = realpath(path, NULL);
    if (absolute) {
        *ret = absolute;
        return 0;
    }
    if (errno != ENOTCONN)
        return failure_set(f, -errno, "mountpoint %s: %s%s", path, strerror(errno),
                           errno == ENOENT ? "; make the directory first" : "");
    _cleanup_free_ char *copy = strdup(path);
    if (!copy)
        return failure_set(f, -ENOMEM, "out of memory");
    for (size_t len = strlen(copy); len > 1 && copy[len - 1] == '/'; len--)
        copy[len - 1] = '\0';
    char *slash = strrchr(copy, '/');
    const char *name = slash ? slash + 1 : copy;
    if (slash)
        *slash = '\0';
    _cleanup_free_ char *parent = realpath(slash ? (*copy ? copy : "/") : ".", NULL);
    if (!parent)
        return failure_set(f, -errno, "mountpoint %s: %s", path, strerror(errno));
    if (asprintf(ret, "%s/%s", strcmp(parent, "/") == 0 ? "" : parent, name) < 0)
        return failure_set(f, -ENOMEM, "out of memory");
    return 0;
}

static int remove_dead(const char *path, struct failure *f)
{
    struct mount_info info;
    if (mount_find(path, &info) != 1 || !info.ours)
        return failure_set(f, -ENOTCONN,
                           "%s is a mountpoint whose file system does not answer any more; "
                           "unmount it first: fusermount3 -u -z %s",
                           path, path);
    log_warning("removing a dead mount from %s", path);
    int r = mount_remove(path, info.minor, true);
    if (r < 0)
        return failure_set(f, r, "%s is a dead mount that cannot be removed: %s", path,
                           strerror(-r));
    return 0;
}

int mount_check(const char *path, char **ret_absolute, struct failure *f)
{
    _cleanup_free_ char *absolute = NULL;
    int r = resolve(path, &absolute, f);
    if (r < 0)
        return r;
    struct search s = {.path = absolute};
    r = each_mount(search_visit, &s);
    if (r < 0)
        return failure_set(f, r, "/proc/self/mountinfo: %s", strerror(-r));
    struct stat st;
    if (stat(absolute, &st) < 0) {
        if (errno != ENOTCONN && errno != ECONNABORTED)
            return failure_set(f, -errno, "mountpoint %s: %s", path, strerror(errno));
        r = remove_dead(absolute, f);
        if (r < 0)
            return r;
        if (stat(absolute, &st) < 0)
            return failure_set(f, -errno, "mountpoint %s: %s", path, strerror(errno));
        s = (struct search){.path = absolute};
        (void)each_mount(search_visit, &s);
    }
    if (!S_ISDIR(st.st_mode))
        return failure_set(f, -ENOTDIR, "mountpoint %s is not a directory", path);
    if (s.found && s.info.ours)
        return failure_set(f, -EBUSY,
                           "workspaces are mounted at %s already; unmount them first: "
                           "berth umount %s",
                           path, path);
    if (s.around_ours)
        return failure_set(f, -ELOOP, "mountpoint %s is inside the mount at %s; choose one outside",
                           path, s.around);
    *ret_absolute = take_ptr(absolute);
    return 0;
}

static bool user_allow_other(void)
{
    FILE *f __attribute__((cleanup(close_file))) = fopen("/etc/fuse.conf", "re");
    char line[256];
    while (f && fgets(line, sizeof line, f)) {
        char word[32], more[2];
        if (sscanf(line, "%31s %1s", word, more) == 1 && strcmp(word, "user_allow_other") == 0)
            return true;
    }
    return false;
}

static bool have_fusermount(void)
{
    const char *path = getenv("PATH");
    if (access("/usr/bin/" FUSERMOUNT, X_OK) == 0 || access("/bin/" FUSERMOUNT, X_OK) == 0)
        return true;
    _cleanup_free_ char *copy = path ? strdup(path) : NULL;
    char *save, *dir = copy ? strtok_r(copy, ":", &save) : NULL;
    for (; dir; dir = strtok_r(NULL, ":", &save)) {
        char file[PATH_MAX];
        (void)snprintf(file, sizeof file, "%s/" FUSERMOUNT, dir);
        if (access(file, X_OK) == 0)
            return true;
    }
    return false;
}

static int check_device(struct failure *f)
{
    _cleanup_close_ int fd = open(DEVICE, O_RDWR | O_CLOEXEC);
    if (fd >= 0)
        return 0;
    if (errno == ENOENT || errno == ENODEV || errno == ENXIO)
        return failure_set(f, -errno,
                           DEVICE " is missing: load the module (modprobe fuse), or, in a "
                                  "container, start it with --device " DEVICE
                                  " and the capability SYS_ADMIN");
    return failure_set(f, -errno,
                       DEVICE " may not be opened: %s; its mode should be 0666, and a container "
                              "needs --device " DEVICE " and the capability SYS_ADMIN",
                       strerror(errno));
}

int mount_check_system(bool allow_other, struct failure *f)
{
    /* fusermount3 opens it with our rights, too. */
    int r = check_device(f);
    if (r < 0 || geteuid() == 0)
        return r;
    if (!have_fusermount())
        return failure_set(f, -ENOENT,
                           FUSERMOUNT " is missing, without which only root may mount: "
                                      "install the package fuse3");
    if (allow_other && !user_allow_other())
        return failure_set(f, -EPERM,
                           "allow_other lets other users see the mount; the administrator must "
                           "permit it by a line \"user_allow_other\" in /etc/fuse.conf");
    return 0;
}

static int mount_directly(const struct mount_request *m, int *ret_fd, struct failure *f)
{
    _cleanup_close_ int fd = open(DEVICE, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return failure_set(f, -errno, DEVICE ": %s", strerror(errno));
    _cleanup_free_ char *data = NULL;
    if (asprintf(&data,
                 "fd=%d,rootmode=40000,user_id=%u,group_id=%u,default_permissions," MAX_READ
                 "%s%s%s",
                 fd, getuid(), getgid(), m->allow_other ? ",allow_other" : "",
                 m->kernel_options ? "," : "", m->kernel_options ? m->kernel_options : "") < 0) {
        data = NULL;
        return failure_set(f, -ENOMEM, "out of memory");
    }
    if (mount(m->source, m->mountpoint, TYPE, m->flags | MS_NOSUID | MS_NODEV, data) < 0)
        return failure_set(f, -errno, "cannot mount at %s: %s%s", m->mountpoint, strerror(errno),
                           errno == EPERM ? " (a container needs the capability SYS_ADMIN)" : "");
    *ret_fd = take_fd(&fd);
    return 0;
}

/* Options for fusermount3, where a comma or backslash in the source is escaped. */
static int fusermount_options(const struct mount_request *m, struct buffer *b)
{
    static const struct {
        unsigned long flag;
        const char *name;
    } names[] = {
        {MS_RDONLY, "ro,"},       {MS_NOEXEC, "noexec,"},   {MS_SYNCHRONOUS, "sync,"},
        {MS_DIRSYNC, "dirsync,"}, {MS_NOATIME, "noatime,"},
    };
    int r = 0;
    for (size_t i = 0; r == 0 && i < ARRAY_SIZE(names); i++)
        if (m->flags & names[i].flag)
            r = buffer_append(b, names[i].name, strlen(names[i].name));
    if (r == 0)
        r = buffer_printf(b,
                          "nosuid,nodev,default_permissions," MAX_READ ",%ssubtype=berth,fsname=",
                          m->allow_other ? "allow_other," : "");
    for (const char *c = m->source; r == 0 && *c; c++) {
        if (*c == ',' || *c == '\\')
            r = buffer_append_u8(b, '\\');
        if (r == 0)
            r = buffer_append_u8(b, (uint8_t)*c);
    }
    return r == 0 ? buffer_append_u8(b, 0) : r;
}

static int receive_fd(int socket)
{
    char byte;
    struct iovec iov = {.iov_base = &byte, .iov_len = 1};
    union {
        struct cmsghdr align;
        char data[CMSG_SPACE(sizeof(int))];
    } control;
    struct msghdr message = {.msg_iov = &iov,
                             .msg_iovlen = 1,
                             .msg_control = control.data,
                             .msg_controllen = sizeof control.data};
    ssize_t n;
    do {
        n = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
    } while (n < 0 && errno == EINTR);
    struct cmsghdr *c = n > 0 ? CMSG_FIRSTHDR(&message) : NULL;
    if (!c || c->cmsg_type != SCM_RIGHTS)
        return -1;
    int fd;
    memcpy(&fd, CMSG_DATA(c), sizeof fd);
    return fd;
}

/* Runs fusermount3; out (may be -1) becomes its standard error, keep stays open in it. */
static int run_fusermount(const char *const argv[], int err, int keep, pid_t *ret_pid)
{
    pid_t pid = fork();
    if (pid < 0)
        return -errno;
    if (pid == 0) {
        char number[16];
        if (err >= 0)
            (void)dup2(err, STDERR_FILENO);
        if (keep >= 0) {
            (void)fcntl(keep, F_SETFD, 0);
            (void)snprintf(number, sizeof number, "%d", keep);
            (void)setenv("_FUSE_COMMFD", number, 1);
        }
        execvp(FUSERMOUNT, (char *const *)(uintptr_t)argv);
        dprintf(STDERR_FILENO, FUSERMOUNT ": %s\n", strerror(errno));
        _exit(127);
    }
    *ret_pid = pid;
    return 0;
}

static int wait_for(pid_t pid)
{
    int status;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return -errno;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

/* First line of what the program wrote, without its name. */
static void first_line(int fd, char *out, size_t size)
{
    size_t len = 0;
    ssize_t n;
    while (len + 1 < size && (n = read(fd, out + len, size - 1 - len)) > 0)
        len += (size_t)n;
    out[len] = '\0';
    out[strcspn(out, "\n")] = '\0';
    if (strncmp(out, FUSERMOUNT ": ", strlen(FUSERMOUNT ": ")) == 0)
        memmove(out, out + strlen(FUSERMOUNT ": "), strlen(out + strlen(FUSERMOUNT ": ")) + 1);
}

static int mount_by_fusermount(const struct mount_request *m, int *ret_fd, struct failure *f)
{
    _cleanup_buffer_ struct buffer options = {0};
    int r = fusermount_options(m, &options);
    if (r < 0)
        return failure_set(f, r, "out of memory");
    int sockets[2], errors[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) < 0)
        return failure_set(f, -errno, "socketpair: %s", strerror(errno));
    _cleanup_close_ int ours = sockets[0], theirs = sockets[1];
    if (pipe2(errors, O_CLOEXEC) < 0)
        return failure_set(f, -errno, "pipe: %s", strerror(errno));
    _cleanup_close_ int error_in = errors[0], error_out = errors[1];
    const char *const argv[] = {FUSERMOUNT, "-o",          (const char *)options.data,
                                "--",       m->mountpoint, NULL};
    pid_t pid = -1;
    r = run_fusermount(argv, error_out, theirs, &pid);
    if (r < 0)
        return failure_set(f, r, "cannot run " FUSERMOUNT ": %s", strerror(-r));
    close_fd(&theirs);
    close_fd(&error_out);
    int fd = receive_fd(ours);
    char text[256];
    first_line(error_in, text, sizeof text);
    int status = wait_for(pid);
    if (fd < 0)
        return failure_set(f, -EPERM, "cannot mount at %s: " FUSERMOUNT ": %s", m->mountpoint,
                           *text           ? text
                           : status == 127 ? "not found"
                                           : "failed");
    *ret_fd = fd;
    return 0;
}

int mount_make(const struct mount_request *m, int *ret_fd, struct failure *f)
{
    if (geteuid() == 0)
        return mount_directly(m, ret_fd, f);
    return mount_by_fusermount(m, ret_fd, f);
}

int mount_remove(const char *mountpoint, uint32_t minor, bool lazy)
{
    struct mount_info info;
    int r = mount_find(mountpoint, &info);
    if (r <= 0)
        return r;
    if (info.minor != minor || info.major != 0)
        return 0; /* something else is on top, or ours is gone already */
    if (geteuid() == 0)
        return umount2(mountpoint, UMOUNT_NOFOLLOW | (lazy ? MNT_DETACH : 0)) < 0 ? -errno : 0;
    const char *const lazily[] = {FUSERMOUNT, "-u", "-q", "-z", "--", mountpoint, NULL};
    const char *const plainly[] = {FUSERMOUNT, "-u", "-q", "--", mountpoint, NULL};
    pid_t pid = -1;
    r = run_fusermount(lazy ? lazily : plainly, -1, -1, &pid);
    if (r < 0)
        return r;
    return wait_for(pid) == 0 ? 0 : -EBUSY;
}

int mount_abort(uint32_t minor)
{
    char path[64];
    (void)snprintf(path, sizeof path, "/sys/fs/fuse/connections/%u/abort", minor);
    _cleanup_close_ int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    return write(fd, "1", 1) == 1 ? 0 : -errno;
}

#include "confine/disk.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/dqblk_xfs.h>
#include <linux/fs.h>
#include <linux/quota.h>
#include <stdbool.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "base/cleanup.h"
#include "base/dir.h"
#include "base/hash.h"

/* The numbers that are ours: others are the operator's own. */
#define PROJECT_FIRST UINT32_C(0x42000000)
#define PROJECT_COUNT UINT32_C(0x01000000)

/* Numbers that are tried, of which another workspace may have some. */
#define TRIES_MAX 64

/* Directories below one another that are followed: we use a descriptor for each. */
#define DEPTH_MAX 256

#define COMMAND(c) QCMD(c, PRJQUOTA)

static long quota(int fd, int command, uint32_t project, void *data)
{
    return syscall(SYS_quotactl_fd, fd, command, project, data) < 0 ? -errno : 0;
}

static bool is_ours(uint32_t project)
{
    return project - PROJECT_FIRST < PROJECT_COUNT;
}

/* --- who is in it ---------------------------------------------------------------------------- */

static int put_into(int fd, uint32_t project, bool directory)
{
    struct fsxattr attr;
    if (ioctl(fd, FS_IOC_FSGETXATTR, &attr) < 0)
        return -errno;
    if (attr.fsx_projid == project && (!directory || (attr.fsx_xflags & FS_XFLAG_PROJINHERIT)))
        return 0;
    attr.fsx_projid = project;
    if (directory)
        attr.fsx_xflags |= FS_XFLAG_PROJINHERIT;
    return ioctl(fd, FS_IOC_FSSETXATTR, &attr) < 0 ? -errno : 0;
}

/* A directory before what is in it: what is made meanwhile is in the project, and the kernel
 * refuses to move there what is not. */
static int put_tree_into(int at, const char *name, uint32_t project, unsigned depth)
{
    struct stat st;
    if (fstatat(at, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return errno == ENOENT ? 0 : -errno;
    bool directory = S_ISDIR(st.st_mode);
    if (!directory && !S_ISREG(st.st_mode))
        return 0; /* takes no room */
    _cleanup_close_ int fd = openat(
        at, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | (directory ? O_DIRECTORY : 0));
    if (fd < 0)
        return errno == ENOENT ? 0 : -errno;
    int r = put_into(fd, project, directory);
    if (r < 0 || !directory)
        return r;
    if (depth >= DEPTH_MAX)
        return -ELOOP;
    _cleanup_dir_ DIR *d = NULL;
    const struct dirent *entry;
    r = dir_open(fd, ".", &d);
    while (r >= 0 && (r = dir_next(d, &entry)) == 1)
        r = put_tree_into(fd, entry->d_name, project, depth + 1);
    return r;
}

/* One that nobody uses. */
static int choose(int directory, uint32_t *ret)
{
    struct stat st;
    if (fstat(directory, &st) < 0)
        return -errno;
    uint64_t hash = hash_end(hash_bytes(HASH_START, &st.st_ino, sizeof st.st_ino));
    for (uint32_t i = 0; i < TRIES_MAX; i++) {
        struct if_dqblk used = {0};
        uint32_t project = PROJECT_FIRST + (uint32_t)((hash + i) % PROJECT_COUNT);
        long r = quota(directory, COMMAND(Q_GETQUOTA), project, &used);
        if (r == -ENOENT || r == -ESRCH || (r == 0 && used.dqb_curinodes == 0)) {
            *ret = project;
            return 0;
        }
        if (r < 0)
            return (int)r;
    }
    return -EUSERS;
}

static int check_enforced(int directory, struct failure *f)
{
    struct fs_quota_statv state = {.qs_version = FS_QSTATV_VERSION1};
    long r = quota(directory, COMMAND(Q_XGETQSTATV), 0, &state);
    if (r < 0 || !(state.qs_flags & FS_QUOTA_PDQ_ENFD))
        return failure_set(f, -EOPNOTSUPP,
                           "needs project quotas on the file system of the service's directory "
                           "(mount option prjquota; Linux 5.14)%s%s",
                           r < 0 ? ": " : "", r < 0 ? strerror((int)-r) : "");
    return 0;
}

int disk_project_of(int directory, uint32_t *ret, struct failure *f)
{
    struct fsxattr attr;
    int r = check_enforced(directory, f);
    if (r < 0)
        return r;
    if (ioctl(directory, FS_IOC_FSGETXATTR, &attr) < 0)
        return failure_set(f, -EOPNOTSUPP, "the workspace's project: %s", strerror(errno));
    uint32_t project = attr.fsx_projid;
    if (!is_ours(project))
        r = choose(directory, &project);
    /* Again, if it was cut short: what is in the project is passed over. */
    if (r == 0)
        r = put_tree_into(directory, ".", project, 0);
    if (r < 0)
        return failure_set(f, -EOPNOTSUPP, "a project for the workspace: %s", strerror(-r));
    *ret = project;
    return 0;
}

/* --- limits ---------------------------------------------------------------------------------- */

int disk_limit(int fd, uint32_t project, uint64_t bytes, uint64_t files)
{
    struct if_dqblk limits = {
        .dqb_bhardlimit = bytes / QIF_DQBLKSIZE + (bytes % QIF_DQBLKSIZE > 0),
        .dqb_ihardlimit = files,
        .dqb_valid = QIF_LIMITS,
    };
    return (int)quota(fd, COMMAND(Q_SETQUOTA), project, &limits);
}

void disk_unlimit(int directory)
{
    struct fsxattr attr;
    if (ioctl(directory, FS_IOC_FSGETXATTR, &attr) == 0 && is_ours(attr.fsx_projid))
        (void)disk_limit(directory, attr.fsx_projid, 0, 0);
}

json_t *disk_measured(int fd, uint32_t project)
{
    struct if_dqblk now = {0};
    if (quota(fd, COMMAND(Q_GETQUOTA), project, &now) < 0)
        return NULL;
    return json_pack("{s:I, s:I, s:I, s:I}", "disk",
                     (json_int_t)(now.dqb_bhardlimit * QIF_DQBLKSIZE), "files",
                     (json_int_t)now.dqb_ihardlimit, "disk_used", (json_int_t)now.dqb_curspace,
                     "files_used", (json_int_t)now.dqb_curinodes);
}

#include "confine/landlock.h"

#include <fcntl.h>
#include <linux/landlock.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "base/cleanup.h"

/* Of later versions than the header may have. */
#define ACCESS_REFER (UINT64_C(1) << 13)     /* 2 */
#define ACCESS_TRUNCATE (UINT64_C(1) << 14)  /* 3 */
#define ACCESS_IOCTL_DEV (UINT64_C(1) << 15) /* 5 */
#define NET_ALL (UINT64_C(3))                /* 4: bind and connect */
#define SCOPE_SOCKETS (UINT64_C(1))          /* 6, as the next */
#define SCOPE_SIGNALS (UINT64_C(2))

/* The kernel takes an attribute that is longer than its own when what it does not know is zero. */
struct attribute {
    uint64_t files;
    uint64_t net;
    uint64_t scoped;
};

#define READ (LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_READ_DIR)
#define WRITE (LANDLOCK_ACCESS_FS_WRITE_FILE | ACCESS_TRUNCATE)
#define MAKE_DEVICE (LANDLOCK_ACCESS_FS_MAKE_CHAR | LANDLOCK_ACCESS_FS_MAKE_BLOCK)

/* All of version 5. */
#define ALL ((UINT64_C(1) << 16) - 1)

/* What rules for a file may have. */
#define OF_FILES \
    (LANDLOCK_ACCESS_FS_EXECUTE | LANDLOCK_ACCESS_FS_READ_FILE | WRITE | ACCESS_IOCTL_DEV)

int landlock_abi(void)
{
    long abi = syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_CREATE_RULESET_VERSION);
    if (abi > 0)
        return (int)abi;
    return errno == ENOSYS ? -ENOSYS : -EOPNOTSUPP;
}

/* What a version can refuse. */
static uint64_t handled_files(int abi)
{
    uint64_t files = ALL;
    if (abi < 5)
        files &= ~ACCESS_IOCTL_DEV;
    if (abi < 3)
        files &= ~ACCESS_TRUNCATE;
    if (abi < 2)
        files &= ~ACCESS_REFER;
    return files;
}

int landlock_new(const struct landlock_options *options, int *ret)
{
    int abi = landlock_abi();
    if (abi < 0)
        return abi;
    const struct attribute attribute = {
        .files = handled_files(abi),
        .net = options->no_tcp && abi >= 4 ? NET_ALL : 0,
        .scoped = abi >= 6 ? (options->no_sockets ? SCOPE_SOCKETS : 0) |
                                 (options->no_signals ? SCOPE_SIGNALS : 0)
                           : 0,
    };
    int fd = (int)syscall(SYS_landlock_create_ruleset, &attribute, sizeof attribute, 0);
    if (fd < 0)
        return -errno;
    *ret = fd;
    return 0;
}

static uint64_t rights_of(enum landlock_right right)
{
    switch (right) {
    case LANDLOCK_READ:
        return READ;
    case LANDLOCK_RUN:
        return READ | LANDLOCK_ACCESS_FS_EXECUTE;
    case LANDLOCK_DEVICES:
        return READ | WRITE | ACCESS_IOCTL_DEV;
    case LANDLOCK_OWN:
        return ALL & ~MAKE_DEVICE;
    case LANDLOCK_LIST:
        return LANDLOCK_ACCESS_FS_READ_DIR;
    case LANDLOCK_KEEP:
        return ALL & ~(LANDLOCK_ACCESS_FS_EXECUTE | ACCESS_IOCTL_DEV);
    }
    return 0;
}

int landlock_allow(int set, const char *path, enum landlock_right right)
{
    struct stat st;
    _cleanup_close_ int fd = open(path, O_PATH | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0)
        return -errno;
    uint64_t rights = rights_of(right) & handled_files(landlock_abi());
    if (!S_ISDIR(st.st_mode))
        rights &= OF_FILES;
    if (rights == 0)
        return 0;
    const struct landlock_path_beneath_attr rule = {.allowed_access = rights, .parent_fd = fd};
    return syscall(SYS_landlock_add_rule, set, LANDLOCK_RULE_PATH_BENEATH, &rule, 0) < 0 ? -errno
                                                                                         : 0;
}

int landlock_enter(int set)
{
    return syscall(SYS_landlock_restrict_self, set, 0) < 0 ? -errno : 0;
}

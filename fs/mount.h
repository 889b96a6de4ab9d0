/* Mounting and unmounting: mount(2) where it is permitted, else the set-uid fusermount3. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/failure.h"

struct mount_request {
    const char *mountpoint; /* absolute, without symbolic links */
    const char *source;     /* shown as the mount's device */
    unsigned long flags;    /* MS_… */
    bool allow_other;
    const char *kernel_options; /* or NULL */
};

/* The absolute path of a mountpoint that can be used: an existing directory where nothing of
 * ours is mounted. A dead mount left there is removed first. Failures say what to do:
 * -ENOENT, -ENOTDIR, -EBUSY, -EACCES, -ELOOP (inside another mount of ours), … */
int mount_check(const char *path, char **ret_absolute, struct failure *ret_failure);

/* That FUSE can be used at all, and with these wishes. */
int mount_check_system(bool allow_other, struct failure *ret_failure);

/* Mounts; *ret_fd is the descriptor of the new connection to the kernel (close-on-exec). */
int mount_make(const struct mount_request *m, int *ret_fd, struct failure *ret_failure);

/* What /proc/self/mountinfo says about the topmost mount at a path. */
struct mount_info {
    uint32_t major, minor;
    bool ours; /* type fuse.berth */
};
/* 1 and *ret; 0 when nothing is mounted there; negative errno. */
int mount_find(const char *mountpoint, struct mount_info *ret);

/* Unmounts what is mounted at mountpoint if it is device `minor`. lazy: even if it is in use.
 * Blocks. -EBUSY; -EINVAL or 0 when it is not mounted any more. */
int mount_remove(const char *mountpoint, uint32_t minor, bool lazy);

/* Makes every request on the mount's device fail with ENOTCONN, whatever the driver does. */
int mount_abort(uint32_t minor);

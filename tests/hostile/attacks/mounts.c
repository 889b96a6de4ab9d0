/* Mounts. What is asked of "." fails for another reason when it is permitted: it is no mount, as
 * "/" is no new root. */
#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <sched.h>
#include <stdint.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "base/cleanup.h"
#include "attack.h"

static int mount_memory(char **args)
{
    (void)mkdir("attack-mount", 0700);
    int r = result_of(mount("none", "attack-mount", "tmpfs", 0, "size=4k"));
    if (r == 0)
        (void)umount2("attack-mount", MNT_DETACH);
    (void)rmdir("attack-mount");
    return r;
}

static int mount_cgroup(char **args)
{
    (void)mkdir("attack-cgroup", 0700);
    int r = result_of(mount("none", "attack-cgroup", "cgroup2", 0, NULL));
    if (r == 0)
        (void)umount2("attack-cgroup", MNT_DETACH);
    (void)rmdir("attack-cgroup");
    return r;
}

static int unmount(char **args)
{
    int r = result_or(umount2(".", 0), EINVAL);
    return r == -EBUSY ? 0 : r; /* where the workspace is one */
}

static int remount(char **args)
{
    return result_or(mount(NULL, ".", NULL, MS_REMOUNT | MS_BIND, NULL), EINVAL);
}

static int pivot(char **args)
{
    return result_or(syscall(SYS_pivot_root, "/", "/"), EBUSY);
}

static int copy_tree(char **args)
{
    return result_of(syscall(SYS_open_tree, AT_FDCWD, ".", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC));
}

static int move(char **args)
{
    int r = result_or(syscall(SYS_move_mount, AT_FDCWD, ".", AT_FDCWD, ".", 0), EINVAL);
    return r == -ELOOP ? 0 : r; /* likewise */
}

static int open_file_system(char **args)
{
    return result_of(syscall(SYS_fsopen, "tmpfs", FSOPEN_CLOEXEC));
}

static int set_attributes(char **args)
{
    struct mount_attr attr = {.attr_clr = MOUNT_ATTR_RDONLY};
    return result_or(syscall(SYS_mount_setattr, AT_FDCWD, ".", 0, &attr, sizeof attr), EINVAL);
}

/* Out of a root through one that is below where we are. */
static int change_root_twice(char **args)
{
    (void)mkdir("attack-root", 0700);
    int r = result_of(chroot("attack-root"));
    if (r < 0)
        (void)rmdir("attack-root");
    for (int i = 0; r == 0 && i < 64; i++)
        r = result_of(chdir(".."));
    if (r == 0)
        r = result_of(chroot("."));
    return r == 0 ? read_secret(args[0]) : r;
}

const struct attack attacks_on_mounts[] = {
    {"mount", mount_memory, 0},
    {"mount-cgroup", mount_cgroup, 0},
    {"umount", unmount, 0},
    {"remount", remount, 0},
    {"pivot-root", pivot, 0},
    {"open-tree", copy_tree, 0},
    {"move-mount", move, 0},
    {"fsopen", open_file_system, 0},
    {"mount-setattr", set_attributes, 0},
    {"chroot", change_root_twice, 1},
    {NULL},
};

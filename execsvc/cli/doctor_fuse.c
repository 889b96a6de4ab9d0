/* What mounting needs from the kernel and from the fuse3 package. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "base/cleanup.h"
#include "cli/doctor.h"
#include "cli/programs.h"

#define DEVICE "/dev/fuse"
#define FUSE_CONF "/etc/fuse.conf"

/* 1: the kernel knows FUSE; 0: not (its module may be loaded on demand); negative: unknown. */
static int kernel_has_fuse(void)
{
    char line[256];
    int found = 0;
    FILE *file = fopen("/proc/filesystems", "re");
    if (!file)
        return -errno;
    while (fgets(line, sizeof line, file))
        found |= strcmp(line, "nodev\tfuse\n") == 0;
    (void)fclose(file);
    return found;
}

void doctor_check_device(struct doctor *d)
{
    int known = kernel_has_fuse();
    _cleanup_close_ int fd = open(DEVICE, O_RDWR | O_CLOEXEC);
    int error = fd < 0 ? errno : 0;
    if (error == 0)
        doctor_ok(d, DEVICE " can be opened");
    else if (error == ENOENT)
        doctor_problem(d,
                       known == 0 ? "load the module: `modprobe fuse` as root; in a container, on "
                                    "the host, and give it the device (--device /dev/fuse)"
                                  : "in a container, give it the device (--device /dev/fuse); else "
                                    "`mknod /dev/fuse c 10 229` as root",
                       DEVICE " is missing, so nothing can be mounted");
    else if (error == EACCES || error == EPERM)
        doctor_problem(d,
                       "the device should have mode 0666 (or you its group); in a container, "
                       "the container must be allowed to use it (--device /dev/fuse)",
                       DEVICE " may not be opened by this user: %s", strerror(error));
    else
        doctor_problem(d, "load the kernel's module: `modprobe fuse` as root",
                       DEVICE " cannot be opened: %s", strerror(error));
}

void doctor_check_fusermount(struct doctor *d)
{
    static const char advice[] = "install the package fuse3";
    _cleanup_free_ char *path = NULL;
    struct stat st;
    struct statvfs fs;
    bool root = geteuid() == 0;
    int r = program_find_system("fusermount3", &path);
    if (r < 0 && root)
        doctor_warning(d, advice, "fusermount3 is missing; other users than root cannot mount");
    else if (r < 0)
        doctor_problem(d, advice, "fusermount3 is missing; only root can mount without it");
    if (r < 0)
        return;
    if (stat(path, &st) < 0 || statvfs(path, &fs) < 0)
        doctor_problem(d, advice, "%s: %s", path, strerror(errno));
    else if (root)
        doctor_ok(d, "%s is there; root mounts without it", path);
    else if (!(st.st_mode & S_ISUID) || st.st_uid != 0)
        doctor_problem(d, "reinstall fuse3, or as root: chown root and chmod u+s on it",
                       "%s is not set-uid root, so it cannot mount", path);
    else if (fs.f_flag & ST_NOSUID)
        doctor_problem(d, "the file system it is on must not be mounted with nosuid",
                       "%s is on a file system where set-uid has no effect", path);
    else
        doctor_ok(d, "%s is set-uid root", path);
}

void doctor_check_allow_other(struct doctor *d)
{
    char line[256];
    bool allowed = false;
    FILE *file = fopen(FUSE_CONF, "re");
    while (file && fgets(line, sizeof line, file))
        allowed |= strncmp(line, "user_allow_other", 16) == 0 &&
                   strspn(line + 16, " \t\r\n") == strlen(line + 16);
    if (file)
        (void)fclose(file);
    if (geteuid() == 0)
        doctor_ok(d, "root may mount with -o allow_other");
    else if (allowed)
        doctor_ok(d, FUSE_CONF " has user_allow_other: you may mount with -o allow_other");
    else
        doctor_note(d, NULL,
                    "mounts are for you alone; -o allow_other would need the line "
                    "user_allow_other in " FUSE_CONF);
}

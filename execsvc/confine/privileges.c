#include "confine/privileges.h"

#include <errno.h>
#include <grp.h>
#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"

static int capabilities_get(struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3])
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    return syscall(SYS_capget, &header, data) < 0 ? -errno : 0;
}

bool privileges_have_admin(void)
{
    struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3];
    return capabilities_get(data) == 0 && (data[0].effective & 1U << CAP_SYS_ADMIN);
}

int privileges_drop(void)
{
    const struct __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = {0};
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    /* By the system call: the library would tell its other threads, and in a fork there are none.
     * In a user namespace it is not permitted. */
    (void)syscall(SYS_setgroups, 0, NULL);
    /* While there is CAP_SETPCAP; without it, an ordinary user's set that no_new_privs makes void.
     */
    for (int cap = 0; prctl(PR_CAPBSET_READ, cap, 0, 0, 0) >= 0; cap++)
        if (prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) < 0 && errno != EPERM)
            return -errno;
    if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) < 0 && errno != EINVAL)
        return -errno;
    return syscall(SYS_capset, &header, none) < 0 ? -errno : 0;
}

int privileges_keep(uint64_t kept)
{
    struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3];
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    int r = capabilities_get(data);
    if (r < 0)
        return r;
    for (size_t i = 0; i < ARRAY_SIZE(data); i++) {
        data[i].permitted &= (uint32_t)(kept >> 32 * i);
        data[i].effective = data[i].permitted;
        data[i].inheritable = 0;
    }
    for (int cap = 0; prctl(PR_CAPBSET_READ, cap, 0, 0, 0) >= 0; cap++)
        if (prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) < 0 && errno != EPERM)
            return -errno;
    if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) < 0 && errno != EINVAL)
        return -errno;
    return syscall(SYS_capset, &header, data) < 0 ? -errno : 0;
}

int privileges_gain_none(void)
{
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ? -errno : 0;
}

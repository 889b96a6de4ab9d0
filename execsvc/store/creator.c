#include "store/creator.h"

#include "base/cleanup.h"
#include "wire/wire.h"

#include <errno.h>
#include <sys/fsuid.h>
#include <sys/syscall.h>
#include <unistd.h>

/* No user: asked for, the kernel changes nothing and says who it is. */
#define NOBODY_AT_ALL ((uint32_t)-1)

struct capabilities {
    struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3];
};

static int capabilities_call(long number, struct capabilities *c)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    return syscall(number, &header, c->data) < 0 ? -errno : 0;
}

void creator_leave(struct creator *creator)
{
    if (!creator->changed)
        return;
    /* Back to root first, which may set any group; this brings back the capabilities too. */
    (void)setfsuid(creator->uid);
    (void)setfsgid(creator->gid);
    creator->changed = false;
}

int creator_enter(uint32_t flags, uint32_t uid, uint32_t gid, struct creator *ret)
{
    if (flags & ~(uint32_t)WIRE_MAKE_OWNER)
        return -EINVAL;
    if (!(flags & WIRE_MAKE_OWNER))
        return 0;
    if (uid == NOBODY_AT_ALL || gid == NOBODY_AT_ALL)
        return -EINVAL;
    _cleanup_creator_ struct creator creator = {.uid = (uid_t)setfsuid(NOBODY_AT_ALL),
                                                .gid = (gid_t)setfsgid(NOBODY_AT_ALL)};
    if (creator.uid == uid && creator.gid == gid)
        return 0;
    struct capabilities before;
    int r = capabilities_call(SYS_capget, &before);
    if (r < 0)
        return r;
    creator.changed = true;
    (void)setfsgid(gid);
    (void)setfsuid(uid);
    /* Neither call says whether it did. */
    if ((gid_t)setfsgid(NOBODY_AT_ALL) != gid || (uid_t)setfsuid(NOBODY_AT_ALL) != uid)
        return -EPERM;
    /* With root as its user a thread loses what lets it pass modes and keep set-group-ID; the
     * caller's own rights were checked where the caller is, with all of its groups. */
    r = capabilities_call(SYS_capset, &before);
    if (r < 0)
        return r;
    *ret = creator;
    creator.changed = false;
    return 0;
}

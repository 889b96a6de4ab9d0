/* Making files for somebody else: with a mount that passes owners through, what is made belongs
 * to who asked, from its first moment. A chown after the fact would have a moment with the wrong
 * owner, and could be led to another file by who renames there. */
#pragma once

#include <linux/capability.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct creator {
    bool changed;
    uid_t uid; /* of the thread before */
    gid_t gid;
};

/* Until creator_leave, what this thread makes belongs to uid and gid (to the directory's group
 * where that is set-group-ID), if flags have WIRE_MAKE_OWNER; nothing else about what the thread
 * may do changes. -EPERM: the service may not make files for that user; -EINVAL: other flags. */
int creator_enter(uint32_t flags, uint32_t uid, uint32_t gid, struct creator *ret);
void creator_leave(struct creator *creator);
#define _cleanup_creator_ _cleanup_(creator_leave)

/* Which processes keep a mount busy, found through /proc without touching the mount. */
#pragma once

#include "base/buffer.h"

/* Processes described at most; the rest is counted. */
#define MOUNT_USERS_MAX 10

struct mount_users {
    struct buffer text; /* "pid 12 (bash): working directory /mnt/demo; …", no NUL inside */
    size_t count;
    size_t unseen; /* processes of others that could not be looked at */
};

/* Everything but this process. -ENOMEM, or why /proc could not be read. */
int mount_users_find(const char *point, struct mount_users *ret);
void mount_users_release(struct mount_users *u);
#define _cleanup_mount_users_ _cleanup_(mount_users_release)

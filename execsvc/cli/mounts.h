/* The Berth mounts of this machine and how they are. */
#pragma once

#include "cli/here.h"

enum mount_state {
    MOUNT_CONNECTED,    /* it serves */
    MOUNT_DISCONNECTED, /* its driver lives, but has no connection to the service now */
    MOUNT_DEAD,         /* its driver has ended: "Transport endpoint is not connected" */
    MOUNT_SILENT,       /* its driver does not answer */
    MOUNT_FOREIGN,      /* another user's; it is not asked */
    MOUNT_UNKNOWN,      /* hidden by another mount, or something went wrong */
};

/* How long one mount is waited for: a report about several must not take minutes. */
#define MOUNT_STATE_DEADLINE_MS 3000

const char *mount_state_name(enum mount_state state);

/* *ret_info: as here_mount_read, or NULL when there is none. failure is filled unless the
 * state is CONNECTED or DISCONNECTED. */
enum mount_state mount_state_read(const struct mount_row *row, json_t **ret_info,
                                  struct failure *failure);

/* The uppermost mount at exactly this place, or NULL. */
const struct mount_row *mount_table_find(const struct mount_table *table, const char *point);

/* The absolute path that /proc/self/mountinfo would have for a mountpoint given by a user,
 * without asking the mount itself, which may be dead. The directory above it is asked, in
 * bounded time. Owned by the caller. A negative errno with a sentence. */
int mount_point_resolve(const struct mount_table *table, const char *path, char **ret,
                        struct failure *ret_failure);

/* All of them: an array of what each tells, with "mountpoint" and "state", and "error" where that
 * is not well. What one has to say is waited for in bounded time. A negative errno. */
int mounts_json(json_t **ret);

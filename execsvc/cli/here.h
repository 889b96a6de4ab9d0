/* Where on this machine's mounts a program stands: which fuse.berth mount, which workspace and
 * which directory in it the working directory (or another path) is.
 *
 * Nothing here waits for a mount that does not answer for longer than HERE_DEADLINE_MS: what
 * could block in a filesystem runs in a child process, since a request that a stuck driver
 * has taken cannot be interrupted, not even by KILL. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/cleanup.h"
#include "base/failure.h"

/* The driver's own time-out; its answer is local, so a live one takes microseconds. */
#define HERE_DEADLINE_MS 10000

/* One line of /proc/self/mountinfo. Strings are owned, with octal escapes decoded. */
struct mount_row {
    uint64_t id;
    unsigned int major;
    unsigned int minor;
    char *root;  /* of the filesystem, as far as this mount shows it: "/" unless bound */
    char *point; /* absolute path */
    char *options;
    char *type;
    char *source;
    char *super_options;
};

struct mount_table {
    struct mount_row *rows;
    size_t count;
};

/* The mounts this process sees. -ENOMEM, or why /proc could not be read. */
int mount_table_read(struct mount_table *ret);
/* The same from a text in the form of mountinfo. Lines that cannot be read are left out. */
int mount_table_parse(const char *text, struct mount_table *ret);
void mount_table_release(struct mount_table *t);
#define _cleanup_mount_table_ _cleanup_(mount_table_release)

/* True for mounts of berthfs. */
bool mount_row_is_berth(const struct mount_row *row);

/* The user who made a FUSE mount. -ENODATA when the row does not say. */
int mount_row_user(const struct mount_row *row, uid_t *ret);

/* What a live mount tells of itself (user.berth.mount of its root), as one JSON object the
 * caller owns. -ETIMEDOUT: it does not answer. -ENOTCONN: its driver is gone. -EPERM: another
 * user made it, so what it says (a URL may be a command to run) is not to be trusted.
 * -ENODATA, -EBADMSG: it is not one of ours. -EACCES, -ENOMEM. */
int here_mount_read(const struct mount_row *row, uint32_t timeout_ms, json_t **ret,
                    struct failure *ret_failure);

/* Owned; NULL = not set. */
struct here {
    char *mountpoint; /* of the mount that the path is in */
    char *url;
    char *token_file;
    char *ca_file;
    char *cert_file;
    char *key_file;
    bool own_credentials; /* these are all: nothing of the environment is for this service */
    char *control;        /* the socket by which the mount's connection can be used */
    char *workspace;      /* the workspace's key; NULL at the root of a mount of all of them */
    char *member;         /* in a mount of several services: whose it is there; else NULL */
    bool qualified;       /* here_find_member: that was said */
    bool named;           /* which.h: a word led here, and we stand elsewhere */
    bool by_name;         /* the key is a directory name, else a thread ID */
    char *directory;      /* relative to the workspace's root; "" is the root. Never NULL */
    char *workspace_path; /* where the workspace's root is on this machine; NULL when it is not
                             visible (a bind mount of a part of it) */
};

/* path NULL: the working directory; else any existing file. Failures with a sentence:
 *   -ENOENT   not in a berth mount, or no such path
 *   -ENOTUNIQ in one, which does not say which service is meant
 *   -ENOTCONN, -ETIMEDOUT, -EPERM, …   in one, but see here_mount_read
 *   -ESTALE   the working directory has been removed
 *   -ENOMEM */
int here_find(const char *path, struct here *ret, struct failure *ret_failure);

/* In the mount of several services that the working directory is in: a workspace as it shows it,
 * NAME@SERVICE, or from its root also NAME (or, but for by_name, a thread ID). As here_find; and
 *   -ENXIO    that is no such mount, or it is not in its root and no SERVICE is named
 *   -ENODATA  it shows no such workspace, as far as its services are reached */
int here_find_member(const char *key, bool by_name, struct here *ret, struct failure *ret_failure);
/* Whether the working directory is in a mount of several services, and the key is NAME@SERVICE of
 * one of them, be there such a workspace or not. */
bool here_names_member(const char *key);
void here_release(struct here *h);
#define _cleanup_here_ _cleanup_(here_release)

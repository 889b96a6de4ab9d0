/* The operations, one function per message. Each is called through store_handle's table with
 * a message of its type; ret->storage is empty and ret->message zeroed. */
#pragma once

#include "store/grip.h"
#include "store/handle.h"
#include "store/view.h"

#define OPERATION(name) \
    int op_##name(struct file_session *session, const struct wire_message *m, struct reply *ret)

/* ops_workspace.c */
OPERATION(workspace_create);
OPERATION(workspace_open);
OPERATION(workspace_remove);
OPERATION(workspace_list);
OPERATION(workspace_get);
OPERATION(workspace_set);
/* ops_visibility.c */
OPERATION(workspace_visibility);
OPERATION(workspace_set_visibility);
OPERATION(visibility);
/* ops_name.c */
OPERATION(lookup);
OPERATION(forget);
OPERATION(mknod);
OPERATION(mkdir);
OPERATION(symlink);
OPERATION(link);
OPERATION(unlink);
OPERATION(rmdir);
OPERATION(rename);
/* ops_place.c */
OPERATION(place);
/* ops_attr.c */
OPERATION(getattr);
OPERATION(setattr);
OPERATION(readlink);
OPERATION(statfs);
/* ops_open.c */
OPERATION(open);
OPERATION(create);
OPERATION(release);
/* ops_data.c */
OPERATION(read);
OPERATION(write);
OPERATION(flush);
OPERATION(fsync);
OPERATION(fallocate);
OPERATION(seek);
OPERATION(copy);
/* ops_lock.c */
OPERATION(lock_get);
OPERATION(lock_set);
OPERATION(lock_claim);
/* ops_directory.c */
OPERATION(readdir);
/* ops_tree.c */
OPERATION(readtree);
OPERATION(readparts);
/* ops_content.c */
OPERATION(readfiles);
/* ops_xattr.c */
OPERATION(getxattr);
OPERATION(setxattr);
OPERATION(listxattr);
OPERATION(removexattr);

/* A name in a directory, both usable for one request. */
struct place {
    struct node *dir;
    struct grip grip; /* on dir */
    struct view view; /* of dir */
    char name[WIRE_NAME_MAX + 1];
    bool hidden;           /* what is there now does not exist for this session */
    bool hidden_file;      /* what is made there must not be a file, */
    bool hidden_directory; /* or a directory */
};

/* -ESTALE, -ENOTDIR; -EINVAL: not a name; -ENAMETOOLONG. */
int place_open(struct file_session *session, uint64_t parent, struct bytes name, struct place *ret);
void place_close(struct place *place);
#define _cleanup_place_ _cleanup_(place_close)
#define PLACE_NONE ((struct place){.grip.fd = -1})

/* What a client expects at a place; ino 0: anything, or nothing. */
struct expectation {
    uint64_t ino, generation, version;
};

/* 0, or -EREMCHG. The caller holds the workspace's renames for writing, so that it stays true of
 * all that is done by way of this service until that is let go. */
int place_check(const struct place *place, const struct expectation *expected);

/* Attributes of the directory as it is now; ino 0: they are not to be had. */
void place_attr(const struct place *place, struct wire_attr *ret);

/* Looks up a name of dir (dir_fd, seen as view says) and enters it as a node, which the session
 * then holds one reference more on. -ENOENT also when it is hidden. */
int entry_find(struct file_session *session, const struct view *view, struct node *dir, int dir_fd,
               const char *name, struct wire_attr *ret_attr, uint64_t *ret_node);

/* Opens a node's regular file, flags: WIRE_OPEN_…, for whoever holds the descriptor. Never waits:
 * -EISDIR, -ELOOP and -ENXIO for what is none, -ESTALE and others as grip_take and open(2). */
int file_open(struct node *node, uint32_t flags, int *ret_fd, struct statx *ret_stx);

/* Clears set-user-ID and set-group-ID of a regular file as a write by an ordinary user does. */
int attr_kill_priv(int fd);

static inline void reply_ok(struct reply *ret)
{
    ret->message = (struct wire_message){.type = WIRE_OK};
}

/* The reply DATA with all of ret->storage. */
static inline void reply_data(struct reply *ret)
{
    ret->message =
        (struct wire_message){.type = WIRE_DATA, .data.data = buffer_view(&ret->storage)};
}

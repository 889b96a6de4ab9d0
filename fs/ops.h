/* The handlers of the kernel's requests. None blocks: each answers at once or sends a request
 * whose done function answers. */
#pragma once

#include "request.h"

extern const struct fuse_lowlevel_ops operations;

/* node.c: names and attributes */
void op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name);
/* Something was read ahead: look-ups that have waited for it go on. */
void lookup_again(struct driver *d);
void op_forget(fuse_req_t req, fuse_ino_t ino, uint64_t nlookup);
void op_forget_multi(fuse_req_t req, size_t count, struct fuse_forget_data *forgets);
void op_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void op_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *attr, int to_set,
                struct fuse_file_info *fi);
void op_mknod(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, dev_t rdev);
void op_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode);
void op_unlink(fuse_req_t req, fuse_ino_t parent, const char *name);
void op_rmdir(fuse_req_t req, fuse_ino_t parent, const char *name);
void op_symlink(fuse_req_t req, const char *target, fuse_ino_t parent, const char *name);
void op_rename(fuse_req_t req, fuse_ino_t parent, const char *name, fuse_ino_t new_parent,
               const char *new_name, unsigned int flags);
void op_link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t new_parent, const char *new_name);
void op_statfs(fuse_req_t req, fuse_ino_t ino);

/* link.c: what is shown of a symbolic link's text */
void op_readlink(fuse_req_t req, fuse_ino_t ino);

/* open.c: opening files */
void op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void op_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode,
               struct fuse_file_info *fi);
void op_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);

/* A request to open a file is answered by its content, or (NULL) by the service. */
void open_fetched(struct request *r, struct content *c);
/* Opens a file anew: the content that was to come is not to be had. */
void open_start(struct request *r);
/* Timer callback (context: driver): opens what has been open without the service for some time. */
void open_late(evutil_socket_t fd, short what, void *context);
/* A file has changed that is open without the service knowing: it is opened there, while it can
 * be. */
void open_unopened(struct driver *d, const struct inode *file);

/* WIRE_OPEN_NO_ATIME where an open with `flags` on a mount with any of these MS_… asks for it,
 * else 0. */
uint32_t open_atime_flag(const struct driver *d, int flags, unsigned long mount_flags);

/* read.c: what is in open files */
void op_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi);
/* Answers a READ with what there is of the file. An answer that is shorter than was asked for makes
 * the kernel cut the file there, and the next one none any more: so such are given in the order of
 * the file, or what is between the ends that two tell would be shown as zeros. */
void read_answer(struct request *r, struct bytes data);
/* A READ that was one of its handle's reads is about to be freed. */
void read_ends(struct request *r);
/* Sends a READ of r->handle, of r->size bytes at r->offset. */
void read_at_service(struct request *r);
void op_lseek(fuse_req_t req, fuse_ino_t ino, off_t off, int whence, struct fuse_file_info *fi);

/* write.c: changing it */
void op_write(fuse_req_t req, fuse_ino_t ino, const char *data, size_t size, off_t off,
              struct fuse_file_info *fi);
void op_flush(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void op_fsync(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi);
void op_fallocate(fuse_req_t req, fuse_ino_t ino, int mode, off_t offset, off_t length,
                  struct fuse_file_info *fi);
void op_copy_file_range(fuse_req_t req, fuse_ino_t ino_in, off_t off_in,
                        struct fuse_file_info *fi_in, fuse_ino_t ino_out, off_t off_out,
                        struct fuse_file_info *fi_out, size_t len, int flags);

/* lock.c */
void op_getlk(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi, struct flock *lock);
void op_setlk(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi, struct flock *lock,
              int sleep);
void op_flock(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi, int op);

/* directory.c: open directories */
void op_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void op_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi);
void op_readdirplus(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
                    struct fuse_file_info *fi);
/* A name of a directory is looked up that was not read ahead: reads ahead if that pays. */
void directory_missed(struct driver *d, struct inode *directory);
/* Some of the directories in it are not known: reads ahead what is below it, once. True while that
 * is under way. */
bool directory_read_below(struct driver *d, uint64_t ino, uint64_t generation);
/* What is being read ahead will most likely bring it. */
bool directory_awaited(const struct inode *directory);

/* xattr.c */
void op_setxattr(fuse_req_t req, fuse_ino_t ino, const char *name, const char *value, size_t size,
                 int flags);
void op_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name, size_t size);
void op_listxattr(fuse_req_t req, fuse_ino_t ino, size_t size);
void op_removexattr(fuse_req_t req, fuse_ino_t ino, const char *name);

/* root.c: the mount's root when it lists workspaces. It is answered without the service where
 * that can be, so that df and a shell prompt work on. */
static inline bool root_is_local(const struct driver *d, fuse_ino_t ino)
{
    return ino == FUSE_ROOT_ID && (d->inodes.root->flags & INODE_LOCAL);
}
void root_lookup(fuse_req_t req, const char *name);
void root_getattr(fuse_req_t req);
/* Lists workspaces from the one after cookie `off`. Takes the request, which has the handle. */
void root_readdir(struct request *r);
/* Answers with the workspaces of its handle. */
void root_answer_listing(struct request *r);
/* `user.berth.mount`. -ENOMEM; else *ret is a string to free. */
int root_describe(const struct driver *d, char **ret);
/* statfs of the mount's root, and of anything while there is no connection. */
void root_statfs(const struct driver *d, fuse_req_t req);
/* Asks for the free space where the workspaces are, unless it is known well enough. */
void root_refresh_space(struct driver *d);
void root_note_space(struct driver *d, const struct wire_statfs_reply *space);

/* A store on a directory of its own, driven by messages without a socket. The program's
 * arguments choose the world of the run: "fallback" (openat2 taken away by seccomp), "small"
 * (8 cached descriptors), "user" (an ordinary user instead of root), "fanotify", "inotify" and
 * "unwatched" (changes are noticed so, or not at all), "memory" (a tmpfs where there is one, for
 * trees that a disk takes long to delete). */
#pragma once

#include "unit.h"

#include <stdbool.h>
#include <sys/stat.h>

#include "store/store_private.h"

/* No test may hang: far above what any needs on a busy machine. */
#define TEST_SECONDS 400

struct fixture {
    char directory[64]; /* removed at the end */
    char root[80];      /* the store's, in directory */
    char tree[160];     /* of workspace "demo" */
    struct store *store;
    struct file_session *session;
    uint64_t demo; /* its root node */
    struct reply reply;
};

/* Reads the arguments and changes the process accordingly. */
void fixture_world(int argc, char **argv);

/* For cmocka: *state is a struct fixture. */
int fixture_setup(void **state);
int fixture_teardown(void **state);

/* Closes and opens the store and its session; limits NULL: the world's. Nodes are gone. */
void fixture_reopen(struct fixture *f, const struct store_limits *limits);
struct store_limits fixture_limits(void);

/* Runs a request and checks that it and its reply are as the message table has them. 0 or the
 * negative errno; the reply is in f->reply. */
int run(struct fixture *f, const struct wire_message *m);
int run_in(struct fixture *f, struct file_session *session, const struct wire_message *m);

/* Each returns 0 or a negative errno, or the node or handle (positive). */
int64_t t_open_workspace(struct fixture *f, const char *id);
int t_create_workspace(struct fixture *f, const char *id);
int64_t t_lookup(struct fixture *f, uint64_t parent, const char *name);
int64_t t_walk(struct fixture *f, const char *path); /* from demo */
int64_t t_mkdir(struct fixture *f, uint64_t parent, const char *name);
int64_t t_symlink(struct fixture *f, uint64_t parent, const char *name, const char *target);
int64_t t_mknod(struct fixture *f, uint64_t parent, const char *name, uint32_t mode);
int64_t t_link(struct fixture *f, uint64_t node, uint64_t parent, const char *name);
int t_unlink(struct fixture *f, uint64_t parent, const char *name);
int t_rmdir(struct fixture *f, uint64_t parent, const char *name);
int t_rename(struct fixture *f, uint64_t parent, const char *name, uint64_t new_parent,
             const char *new_name, uint32_t flags);
int64_t t_open(struct fixture *f, uint64_t node, uint32_t flags);
/* The node; *ret_handle too. */
int64_t t_create(struct fixture *f, uint64_t parent, const char *name, uint32_t flags,
                 uint32_t mode, uint64_t *ret_handle);
int t_getattr(struct fixture *f, uint64_t node, uint64_t handle, struct wire_attr *ret);
int64_t t_write(struct fixture *f, uint64_t handle, uint64_t offset, const char *text);
int t_read(struct fixture *f, uint64_t handle, uint64_t offset, uint32_t size);
void t_release(struct fixture *f, uint64_t handle);
void t_forget(struct fixture *f, uint64_t node, uint64_t count);

/* The reply's DATA as a string, until the next request. */
const char *t_data(struct fixture *f);

/* Closes every descriptor that is kept, so that nodes have to be reached anew. */
void drop_descriptors(struct fixture *f);

/* Counts of the service, by store_status. */
int64_t t_status(struct fixture *f, const char *key);
/* Waits for it: the thread that is told of changes may just look at one. */
void t_await_status(struct fixture *f, const char *key, int64_t value);

/* Files made behind the service's back, by path in demo. */
void make_file(struct fixture *f, const char *path, const char *text);
char *tree_path(struct fixture *f, const char *path, char buffer[4096]);
bool exists(struct fixture *f, const char *path);

bool directory_empty(const char *path);

/* rm -rf that passes chmod 000. */
void remove_directory(const char *path);

void assert_same_attr(const struct wire_attr *a, const struct wire_attr *b);

/* Snapshots: ROOT/snapshots/ID/
 *
 *   snapshot.json   what it is
 *   meta.json       of the workspace it was taken of, as it was; likewise policy.json and
 * visibility tree/           its files, if they share their blocks with the workspace's, or
 *   tree.zst        its files in one (tree_file.h)
 *
 * One is made in tmp/ and renamed to its place; removed by being renamed to trash/. */
#pragma once

#include "store/store_private.h"
#include "store/transfer.h"
#include "store/tree_copy.h"

/* Snapshots in one page, and list bytes: what a SNAPSHOTS message can carry. */
#define SNAPSHOT_PAGE_MAX 1024
#define SNAPSHOT_PAGE_SIZE_MAX 0x100000

struct snapshot {
    char id[WIRE_SNAPSHOT_ID_MAX + 1];
    struct meta meta; /* of the workspace */
    uint32_t flags;
    uint64_t entries, size, stored;
    struct wire_time created_at;
    char *labels; /* JSON */
};
void snapshot_release(struct snapshot *s);
#define _cleanup_snapshot_ _cleanup_(snapshot_release)

/* One that is held open is not removed. */
struct snapshot_use {
    struct snapshot_use *next; /* in store.snapshot_uses, under store.snapshots_lock */
    struct store *store;
    char id[WIRE_SNAPSHOT_ID_MAX + 1];
    int fd;      /* of its directory */
    int tree_fd; /* tree/, or -1 */
    int file_fd; /* tree.zst, or -1 */
};
int snapshot_open(struct store *store, struct bytes id, struct snapshot_use **ret);
void snapshot_close(struct snapshot_use *use);
DEFINE_CLEANUP(struct snapshot_use *, snapshot_close);
#define _cleanup_snapshot_use_ _cleanup_(snapshot_close_pointer)

/* -ENOENT, also for what is no ID; -EIO: it is damaged. *ret is to be released. */
int snapshot_read(struct store *store, const char *id, struct snapshot *ret);

/* Takes one, and reads it into *ret. */
int snapshot_take(struct store *store, struct workspace *workspace,
                  const struct wire_snapshot_create *m, const struct tree_stop *stop,
                  struct snapshot *ret, struct failure *ret_failure);

/* -ENOENT; -EBUSY: it is open. */
int snapshot_remove(struct store *store, struct bytes id);

/* As the message has it; views are into s. */
struct wire_snapshot snapshot_describe(const struct snapshot *s);

/* Copies what a workspace has beside its tree from one directory to another, where it is then on
 * the disk. */
int snapshot_copy_rules(int from_fd, int to_fd, bool policy);

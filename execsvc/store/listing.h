/* DIRENT elements made of what the kernel says of a directory. */
#pragma once

#include "store/ops.h"

/* As in the table: what one list of DIRENTs can hold. */
#define LISTING_COUNT_MAX 65536
#define LISTING_SIZE_MAX 0x100000

/* Bytes asked of the kernel at once. One of its entries becomes several times as much on the
 * wire, so that this is about one reply. */
#define LISTING_BLOCK_SIZE 32768

/* A position that no cookie equals. */
#define LISTING_POSITION_UNKNOWN UINT64_MAX

/* As getdents64 gives it. */
struct kernel_dirent {
    uint64_t ino;
    int64_t next;
    uint16_t size;
    uint8_t type;
    char name[];
};

struct listing {
    struct file_session *session;
    struct node *dir;
    int fd; /* of dir */
    struct buffer *list;
    size_t size; /* list bytes asked for */
    struct view view;
    uint32_t count;
    struct {
        uint32_t unlisted, hidden;
    } left_out, pending; /* pending: since the last entry that is in the list; a listing goes on
                            behind that, so they may be met again */
    uint64_t position;   /* cookie of the last entry taken */
    bool plus;
    bool full;
    bool in_parts;     /* what does not fit whole is cut between parts (wire/part.h) */
    size_t part_start; /* in list */
    bool cut;          /* another part may not fit */
};

/* Bytes of the list that an entry takes. */
size_t listing_entry_size(size_t name_len);

/* Takes entries of one block until the list is full; moves position along. When it stops within
 * the block, *ret_within says so: the descriptor stands behind the block. */
int listing_add_block(struct listing *l, const uint8_t *block, size_t len, bool *ret_within);

/* Counts what was left out after the last entry; at the directory's end. */
void listing_settle(struct listing *l);

/* Says in STATUS and the workspace's counters what was left out. */
void listing_count(const struct listing *l);

/* A descriptor to read a directory's names from when nobody has asked for them: that is no access.
 * Errors as grip_take and open(2). */
int directory_open(struct node *dir, int *ret_fd);

/* Nothing is in it; false also when it cannot be read. */
bool directory_is_empty(struct node *dir);

/* Within disk*.c. */
#pragma once

#include <pthread.h>

#include "base/table.h"
#include "cache/cache.h"
#include "disk.h"

/* What a key is made of, in the form that is hashed. */
struct key_name {
    uint64_t words[8];
};

struct job {
    struct job *next;
    struct key_name name;
    uint64_t hash;
    enum disk_kind kind;
    uint64_t since_ns;
    disk_done_fn *done; /* NULL: a content to write; or nobody waits any more */
    void *context;
    size_t segment; /* of reads: where it is, */
    struct segment_slot slot;
    bool found; /* and that it was there */
    size_t len;
    uint8_t data[];
};

struct jobs {
    struct job *first, **last;
};

struct segment {
    char name[SEGMENT_NAME_SIZE];
    uint64_t touched_ns;
    struct segment_slot *slots; /* in memory; their order is not that of the file */
    size_t count, allocated;
};

struct disk {
    int dir;
    char *path;
    uint64_t size_max;
    struct segment_service service;
    char *mountpoint;    /* as disk_options has it, or NULL */
    struct event *event; /* reads that are done */
    struct event *timer; /* while there are reads */
    int event_fd;
    pthread_t thread;

    /* Of the thread, once it runs. */
    struct segment_writer writer;
    size_t writing; /* index of its segment */
    bool adopted;   /* it was tried to go on with one that is there */
    bool warned;
    uint64_t pause_until_ns;

    pthread_mutex_t lock; /* of all below; the index is changed by the thread alone */
    pthread_cond_t wake;
    pthread_cond_t told;    /* that `opened` is, or `ended` */
    bool opened;            /* the directory was looked at: */
    struct failure failure; /* what came of it */
    int64_t used_ms;        /* the last time before the mount; 0: nothing is there */
    struct segment *segments[CACHE_SEGMENTS_MAX];
    struct table index; /* hash of key -> place_of(segment, slot) */
    struct jobs reads, writes, finished;
    size_t read_bytes, write_bytes; /* in memory */
    struct job *current;            /* being carried out */
    bool stuck;                     /* for too long */
    bool stop, ended;
    bool orphan; /* it is the thread's own, which frees it */
    uint64_t stop_by_ns;
    struct disk_stats stats;
};

/* disk_index.c: the index of what is there. For all, the lock is held, but for the last. */

/* What a key leads to, or NULL. A slot of another size belongs to another key. */
const struct segment_slot *disk_find_locked(const struct disk *d, uint64_t hash, uint64_t size,
                                            size_t *ret_segment);
/* Of the segment with this index, of which there is room in the file. -ENOMEM. */
int disk_add_slot_locked(struct disk *d, size_t segment, const struct segment_slot *slot);
void disk_forget_segment_locked(struct disk *d, size_t segment);
/* Takes over slots, also on failure. *ret: its index. -ENOSPC: there are too many; -ENOMEM. */
int disk_add_segment_locked(struct disk *d, const char *name, struct segment_slot *slots,
                            size_t count, size_t *ret);
/* On the thread: reads what is in the directory, until it is to stop. -ENOMEM and others. */
int disk_load(struct disk *d);

/* What there is in workspaces/, in memory: so that a page of a list costs no look at the disk, and
 * that it is known whose time is over. meta.json is what is true; an entry is read from it once,
 * and kept up by whoever writes it.
 *
 * The last use of a workspace is kept here to the millisecond, by a clock that nobody sets, and on
 * the disk as the time of modification of its meta.json, which is set ahead while it is used
 * (INDEX_AHEAD_MS). So a service that is killed at any moment never leaves an older one than the
 * true one, and it need not be written at every use.
 *
 * Thread-safe; nothing waits for the disk. Lock order: the lock is the last of all. */
#pragma once

#include "store/meta.h"

/* While a workspace is in use its meta.json says so for this much longer, and is written again when
 * half of it is over. */
#define INDEX_AHEAD_MS 60000

struct index;

struct index_entry {
    char *name;  /* of its directory */
    bool known;  /* read from the disk; all below counts only then */
    bool broken; /* its meta.json cannot be read */
    bool live;   /* in use: there is a struct workspace */
    uint32_t slot;
    enum wire_workspace_state state;
    uint64_t revision;
    uint64_t idle_ms;
    uint64_t expires_ms;
    struct wire_time created_at;
    uint8_t *thread_id;
    size_t thread_id_len;
    char *labels;
    int64_t used_ms;     /* CLOCK_BOOTTIME; negative: before this machine was started */
    uint64_t written_ms; /* CLOCK_REALTIME: what its meta.json says */
    uint64_t retry_ms;   /* CLOCK_BOOTTIME: not to be removed before */
};

int index_new(struct index **ret);
void index_free(struct index *index);

/* Notes that there is one of this name, not read yet. -ENOMEM. */
int index_add(struct index *index, const char *name);

/* Notes what its meta.json says; used_ms: as meta_used has it. -ENOMEM. */
int index_put(struct index *index, const char *name, const struct meta *meta, uint64_t used_ms);
void index_put_broken(struct index *index, const char *name);

/* Forgets the one of this name and slot; slot 0: of any. */
void index_drop(struct index *index, const char *name, uint32_t slot);

/* It is in use from now on, or was until now. *ret_write_ms: not 0 when meta_set_used is to be
 * called with it now. True: its time may be over one day. */
bool index_use(struct index *index, const char *name, uint32_t slot, bool live,
               uint64_t *ret_write_ms);

/* It was in use so many milliseconds ago by something that has no struct workspace. */
void index_used_before(struct index *index, const char *name, uint64_t age_ms);

/* It is not to be removed in the next ms milliseconds. */
void index_spare(struct index *index, const char *name, uint64_t ms);

size_t index_count(struct index *index);

/* Calls visit for each entry after this name (from: at it), in byte order of the names, under the
 * lock, until it does not return 0, and returns that. */
int index_walk(struct index *index, struct bytes after, bool from,
               int (*visit)(void *context, const struct index_entry *entry), void *context);

/* A name that was not read yet. False: there is none. */
bool index_unknown(struct index *index, char ret_name[WIRE_NAME_MAX + 1]);

/* A workspace whose time is over. */
struct index_over {
    char name[WIRE_NAME_MAX + 1];
    uint32_t slot;
    uint8_t thread_id[THREAD_ID_MAX];
    size_t thread_id_len;
};

/* One whose time is over and that is not in use; or one in use whose meta.json is to say so again.
 * False: there is none, and *ret_wait_ms is how long there will be none unless somebody changes or
 * uses one (UINT64_MAX: for ever). */
bool index_over(struct index *index, struct index_over *ret, uint64_t *ret_wait_ms);
bool index_stale(struct index *index, char ret_name[WIRE_NAME_MAX + 1], uint64_t *ret_write_ms,
                 uint64_t *ret_wait_ms);

/* Whether the time of the one of this name and slot is over, and it is not in use; even if it was
 * spared. */
bool index_is_over(struct index *index, const char *name, uint32_t slot);

/* Its last use, in CLOCK_REALTIME. */
struct wire_time index_used_at(const struct index_entry *entry);

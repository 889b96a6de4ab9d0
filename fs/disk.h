/* Contents of small files on this machine's disk, where they survive the mount: what a file with
 * these attributes contains, for ever; and parts of listings (recall.h), which have this digest.
 * The directory and its files are common/cache.
 *
 * The index of what is there is in memory, read when the mount begins; what other mounts write
 * meanwhile is seen by the next one. Files are read and written on a thread of its own, which
 * knows nothing else of the driver. All functions but those that say so are for the loop, and none
 * of them waits. */
#pragma once

#include <event2/event.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/failure.h"
#include "wire/wire.h"

#define DISK_SIZE_DEFAULT ((uint64_t)1 << 30)
#define DISK_SIZE_MIN ((uint64_t)4 << 20)
#define DISK_SIZE_MAX ((uint64_t)64 << 30) /* CACHE_SEGMENTS_MAX of them */

/* Contents that the mount knows of, about 50 bytes each; the segment used longest ago goes. Stops
 * many tiny files from taking all memory. */
#define DISK_ENTRIES_MAX ((size_t)1 << 20)

/* Contents that are to be written, and that were asked for. Past that they are not written or not
 * looked for: a disk that is slower than the network must not fill memory. */
#define DISK_WRITES_MAX ((size_t)32 << 20)
#define DISK_READS_MAX ((size_t)32 << 20)

/* A disk that does not answer for so long (a home directory on a server that is gone) is not
 * waited for; the service is asked instead. */
#define DISK_TIMEOUT_MS 2000

/* After a failure to write, nothing is written for so long. */
#define DISK_PAUSE_MS 30000

struct disk;

struct disk_options {
    uint8_t service_id[16];
    const char *url;        /* a service is known by both: its ID is what it says of itself */
    const char *mountpoint; /* where the directory must not be; or NULL */
    uint64_t size_max;      /* of all segments, at least DISK_SIZE_MIN */
};

enum disk_kind {
    DISK_CONTENT = 0,
    DISK_PART = 1,      /* of a listing */
    DISK_WORKSPACE = 2, /* empty: there have been parts of the workspace's listings */
    DISK_KINDS
};

/* What something belongs to: for contents the state of a file. */
struct disk_key {
    enum disk_kind kind;
    uint64_t size;
    uint64_t words[6];
};

struct disk_stats {
    uint64_t entries; /* known now */
    uint64_t pending; /* bytes to be written */
    struct {
        uint64_t read, read_bytes;
        uint64_t written, written_bytes;
        uint64_t damaged; /* that were not what they should be */
    } of[DISK_KINDS];
    uint64_t unwritten; /* for lack of space or time */
};

/* Opens the directory and reads what is in it; before the loop runs, since it waits for the disk.
 * Errors are those of cache_open; -ELOOP: the directory is under the mountpoint. */
int disk_open(const struct disk_options *options, struct event_base *base, struct disk **ret,
              struct failure *ret_failure);

/* The same in steps, of which only disk_wait waits; it and disk_begin may be called on any thread.
 * Until the directory is read, and if it cannot be, nothing is there and nothing is kept.
 * disk_wait: true: what came of it, as disk_open (failure.error 0: it can be used); false: it has
 * not ended within ms (0: for ever). disk_attach: before anything else is called; -ENOMEM. */
int disk_begin(const struct disk_options *options, struct disk **ret);
bool disk_wait(struct disk *disk, uint32_t ms, struct failure *ret_failure);
int disk_attach(struct disk *disk, struct event_base *base);

/* Writes what is still to be written, for DISK_TIMEOUT_MS at most, and ends. True: the disk does
 * not answer and the thread was left behind, so that the process must not tidy up. Reads under
 * way are answered with NULL. disk may be NULL, here and below. */
bool disk_free(struct disk *disk);
/* The same without waiting: the thread ends, and frees all, when it can. */
void disk_leave(struct disk *disk);

struct disk_key disk_key_of(const struct wire_attr *attr);

/* How long ago something of this service was kept before the mount, in ms; -1: nothing is there. */
int64_t disk_age_ms(struct disk *disk);

/* Asks for a content: done is called from the loop, later, with NULL when it is not there after
 * all. -ENOENT: it is not there; -EBUSY: too much is under way; -ENOMEM. done is not called then.
 */
typedef void disk_done_fn(void *context, const struct bytes *content);
int disk_get(struct disk *disk, const struct disk_key *key, disk_done_fn *done, void *context);

/* Whether disk_get would look for it. */
bool disk_has(struct disk *disk, const struct disk_key *key);

/* Keeps a content, of key->size bytes; one of more than SEGMENT_CONTENT_MAX is not kept. The bytes
 * are copied. Nothing is reported: what is not kept is asked for again one day. */
void disk_put(struct disk *disk, const struct disk_key *key, struct bytes content);

struct disk_stats disk_stats(struct disk *disk);

/* One file of the cache: contents of one service's files, appended by one process at a time and
 * read by all.
 *
 *   header   4 KiB: magic, whose contents these are
 *   slots    one for each content, in the order of writing; a hash of 0 ends them
 *   data     at multiples of SEGMENT_UNIT: SHA-256 of (service, key, content), then content
 *
 * Nothing but the digests is trusted. Slots say where a content may be; what is there is used only
 * if its digest is that of the key asked for. So a process that dies at any moment, a disk that
 * lost what was written, two that write by mistake, and flipped bytes all come to the same: the
 * content is not found. The slot is written after the data, and nothing is synchronised. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"

#define SEGMENT_SUFFIX ".segment"
#define SEGMENT_NAME_SIZE 48 /* with the NUL */
#define SEGMENT_DIGEST_SIZE 32
#define SEGMENT_SERVICE_MAX 1024 /* of its name, as shown to people; a longer one is cut */

#define SEGMENT_UNIT ((uint64_t)1024)
#define SEGMENT_SIZE_MAX ((uint64_t)16 << 20)
/* As many as data of one unit each; what is in use bounds memory of who reads them. */
#define SEGMENT_SLOTS_MAX (SEGMENT_SIZE_MAX / SEGMENT_UNIT)
#define SEGMENT_CONTENT_MAX ((size_t)512 << 10)

struct segment_service {
    uint8_t id[SEGMENT_DIGEST_SIZE];
    char name[SEGMENT_SERVICE_MAX]; /* for people */
};

/* For people, who are told how many there are. */
enum segment_kind { SEGMENT_FILE = 0, SEGMENT_LISTING = 1 };

struct segment_slot {
    uint64_t hash;      /* of the key; not 0 */
    uint32_t unit;      /* where the digest begins */
    uint32_t size : 24; /* of the content */
    uint32_t kind : 8;
};

/* What names a content, as the caller has put it together; and its hash. */
struct segment_key {
    struct bytes name;
    uint64_t hash; /* not 0 */
    enum segment_kind kind;
};

/* A segment being written to. Its file is locked (flock) as long as it is open. */
struct segment_writer {
    int fd; /* -1: none */
    uint32_t count;
    uint64_t end; /* where the next digest goes */
    char name[SEGMENT_NAME_SIZE];
};

/* Makes a new one in `dir`, with mode 0600. A negative errno. */
int segment_make(int dir, const struct segment_service *service, struct segment_writer *ret);

/* Goes on with one that nobody writes to. -EAGAIN: somebody does, or it is full, or it is gone;
 * -EBADMSG as segment_open, and others. */
int segment_adopt(int dir, const char *name, struct segment_writer *ret);

/* -ENOSPC with *ret_full: this segment is full (size_max bytes, at most SEGMENT_SIZE_MAX), or was
 * removed by another process; a new one is needed. Other errors are those of writing; the segment
 * is then as before. *ret_slot is the content's. */
int segment_append(struct segment_writer *w, const struct segment_service *service,
                   const struct segment_key *key, struct bytes content, uint64_t size_max,
                   struct segment_slot *ret_slot, bool *ret_full);

void segment_close(struct segment_writer *w);

/* Opens one for reading. -EBADMSG: it is none, or not whole; -ENOENT and others. A link or a
 * special file is none. */
int segment_open(int dir, const char *name, struct segment_service *ret_service, int *ret_fd);

/* Its slots, those left out that cannot be right. The caller frees *ret. -ENOMEM, -EIO. */
int segment_slots(int fd, struct segment_slot **ret, uint32_t *ret_count);

/* Reads the content of a slot, slot->size bytes, and checks it. -EBADMSG: it is not what the key
 * names; data is then undefined. */
int segment_read(int fd, const struct segment_service *service, const struct segment_key *key,
                 const struct segment_slot *slot, uint8_t *data);

/* Removes what segment_open found to be none, unless a process may be just making it. */
void segment_discard(int dir, const char *name);

/* Removes it, and gives its space back even while a process has it open; that process notices. */
int segment_remove(int dir, const char *name);

/* What one stream of a command has printed, by byte offset: the first and the last of it, up to a
 * bound in all, and how much there was between. In one file; when that cannot be written any more
 * (a full disk), what follows is in memory, of which the last SPOOL_MEMORY_MAX are kept. */
#pragma once

#include "base/bytes.h"

/* Kept of a stream when nobody asks for less or more, the most that may be asked for, and the least
 * that is kept. A program that prints for ever takes this much of the disk. */
#define SPOOL_KEEP_DEFAULT (UINT64_C(16) << 20)
#define SPOOL_KEEP_MAX (UINT64_C(1) << 30)
#define SPOOL_KEEP_MIN (UINT64_C(64) << 10)

/* Kept beyond that of what a reader has been sent that holds the command: as much as it may not
 * have received when it is cut off. Clients that come back without a gap grant no more than this.
 */
#define SPOOL_SLACK (UINT64_C(1) << 20)

/* In memory, when there is no place on the disk. */
#define SPOOL_MEMORY_MAX ((size_t)256 << 10)

struct spool;

/* Where everything is. All that need be known to open the file again. */
struct spool_geometry {
    uint64_t keep;
    uint64_t end;    /* bytes ever appended */
    uint64_t stored; /* up to here the file has it: what the bound allows */
};

/* directory and name are borrowed for the spool's life. The file is made with the first byte.
 * -ENOMEM. */
int spool_new(int directory, const char *name, uint64_t keep, struct spool **ret);

/* One that has ended. -EINVAL: no spool has this geometry. */
int spool_open(int directory, const char *name, const struct spool_geometry *geometry,
               struct spool **ret);
void spool_free(struct spool *s);

struct spool_geometry spool_geometry(const struct spool *s);

/* Never fails: what cannot be kept is counted. */
void spool_append(struct spool *s, struct bytes data);

/* How many bytes can be appended before something is dropped that a reader may not have, who was
 * sent what is before this offset. */
uint64_t spool_room(const struct spool *s, uint64_t offset);

/* Bytes that were appended and are not kept. */
uint64_t spool_dropped(const struct spool *s);

/* The offset from which a reader goes on who is at this one. */
uint64_t spool_next(const struct spool *s, uint64_t offset);

/* Reads at most size bytes from an offset that spool_next has given. 0 and *ret_len (0 at the end),
 * or a negative errno. */
int spool_read(const struct spool *s, uint64_t offset, void *data, size_t size, size_t *ret_len);

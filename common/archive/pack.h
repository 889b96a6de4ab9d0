/* TREE_ITEMs to an archive: tar (pax, for times to the nanosecond), plain or compressed. Holes
 * become zeros. Blocks while its bytes are written. */
#pragma once

#include "base/cleanup.h"
#include "base/failure.h"
#include "wire/wire.h"

enum pack_compression { PACK_PLAIN, PACK_ZSTD, PACK_GZIP };

struct pack_sink {
    /* Takes all of it. 0 or a negative errno. */
    int (*write)(void *context, const void *data, size_t len);
    void *context;
};

struct pack_counts {
    uint64_t entries;
    uint64_t size; /* bytes of files */
};

struct pack;

/* Reads what names that are not ASCII need. pack_new does it too; who will have no files by then
 * does it before. */
void pack_prepare(void);

/* -ENOMEM. */
int pack_new(enum pack_compression compression, const struct pack_sink *sink, struct pack **ret);
void pack_free(struct pack *p);
DEFINE_CLEANUP(struct pack *, pack_free);
#define _cleanup_pack_ _cleanup_(pack_free_pointer)

/* Adds the items of a TREE_OUT. -EBADMSG: they are none; errors of the sink; -ENOMEM. */
int pack_list(struct pack *p, const struct wire_list *items, struct failure *ret_failure);

/* There are no more. */
int pack_finish(struct pack *p, struct pack_counts *ret, struct failure *ret_failure);

/* So far. */
struct pack_counts pack_counts(const struct pack *p);

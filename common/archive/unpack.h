/* Archives to TREE_ITEMs: tar in all its kinds, plain or compressed with gzip or zstd. What an
 * archive says is what whoever made it wants to be believed: nothing here touches files, and paths
 * that lead out are refused, as are they once more where the items go. Blocks while its bytes are
 * awaited. */
#pragma once

#include "base/failure.h"
#include "wire/tree_batch.h"

struct unpack_source {
    /* The next bytes: how many, and where they are until the next call. 0: the end. A negative
     * errno. */
    ssize_t (*read)(void *context, const void **ret_data);
    void *context;
    /* Bytes of all files together: stops an archive that unpacks to more than anybody wants. 0: as
     * many as there are. */
    uint64_t max_size;
};

struct unpack_counts {
    uint64_t entries;
    uint64_t size;    /* bytes of files */
    uint64_t skipped; /* devices and sockets: there are no items for these */
};

/* Reads it to its end. -EBADMSG: it is no archive, damaged or cut off; -EINVAL: a path that leads
 * out; -E2BIG; errors of the source and of the sink, whose text the caller knows. */
int unpack_run(const struct unpack_source *source, const struct tree_sink *sink,
               struct unpack_counts *ret, struct failure *ret_failure);

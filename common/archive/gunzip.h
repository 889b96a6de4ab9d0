/* What gzip has packed, unpacked, and its checksums looked at, which libarchive does not do. */
#pragma once

#include "archive/unpack.h"

struct gunzip;

/* source: lasts as long. If it does not begin as gzip does, what is read is what it has. -ENOMEM.
 */
int gunzip_new(const struct unpack_source *source, struct gunzip **ret);
void gunzip_free(struct gunzip *g);
DEFINE_CLEANUP(struct gunzip *, gunzip_free);
#define _cleanup_gunzip_ _cleanup_(gunzip_free_pointer)

/* As unpack_source.read; -EBADMSG: it is damaged or cut, -ENOMEM. What stands behind the last
 * member and is none, as the zeros of a tape, is left alone. */
ssize_t gunzip_read(struct gunzip *g, const void **ret_data);

/* Whether it begins as gzip does. After the first read. */
bool gunzip_is_packed(const struct gunzip *g);

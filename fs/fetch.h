/* Asking for whole files (READFILES), wanted or in advance. */
#pragma once

#include "request.h"

/* Files that are asked for at once. */
struct fetch;

/* walk: whose they are in advance (prefetch.c), so that nobody waits for them; or 0. no_atime:
 * reading them is no access. -ENOMEM. */
int fetch_new(struct driver *d, uint64_t walk, bool no_atime, struct fetch **ret);

/* Adds a file of which content_get knows nothing, of about that size. -ENOSPC: it is too much for
 * one answer; -ENOMEM. */
int fetch_add(struct fetch *f, uint64_t node, uint64_t ino, uint64_t generation, uint64_t size,
              struct content **ret);
size_t fetch_bytes(const struct fetch *f);

/* Takes a file that is like this from disk (disk.h) instead, if it is there: of it too, content_get
 * knew nothing, and what waits for it is opened when it has been read. */
bool fetch_from_disk(struct driver *d, const struct wire_attr *attr, struct content **ret);

/* Sends it, and frees it when it is answered, or at once when nothing was added. What waits for
 * the files is then opened by them (open_fetched), or not. */
void fetch_send(struct fetch *f);

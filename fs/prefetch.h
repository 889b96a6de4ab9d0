/* Which files are asked for in advance.
 *
 * When a small file is opened that is not here, others are asked for beside it, by a walk: the
 * files of its directory, from it on, forward or (when it is the last, or before the one that was
 * opened before) backward, and then round, those above 128 KiB after the others, and of those above
 * 512 KiB the two ends, where programs look first (git into packs, others for an index); then those
 * of the directories below, one after the other, each with what is below it, in the same direction,
 * those of more than 64 entries after the others; then those of the directory above. It knows what
 * tree.h knows, has the rest of a directory read ahead of which only a part is known, and leaves
 * out directories whose names begin with a dot: what crawls a tree does not enter them, and who
 * uses one begins there.
 *
 * A walk asks for as much as fits into its window: the bytes that it has asked for and that nobody
 * has opened. The first window is PREFETCH_FIRST, which holds git's own files in a checkout of some
 * thousand; it grows by the size of each file that is opened, so it doubles when all in it are
 * used, up to PREFETCH_WINDOW_MAX; when nothing is opened, nothing more is asked for. Directories
 * and files that are small beside the window take their turn whatever their size. A new walk
 * starts with half as much when of what has come for the one before less than half was used, at
 * least PREFETCH_LEAST, and with twice as much, at most PREFETCH_MOST, when more was: files opened
 * here and there cost 64 KiB each after the fourth. When much of what came for one was opened, a
 * third at least, or a dozen files and a fifth, or some of the directory where the new one begins,
 * and the last of it a moment ago, somebody goes through the tree, and what was not asked for in
 * time was the next but for the order (cp takes what is in a directory by inode number), or another
 * thread's: then the new walk begins with PREFETCH_CRAWL times that one's window, so that there are
 * few such moments in a tree of any size.
 *
 * Of all walks, half of the largest window, at least PREFETCH_FLIGHT, is under way at a time: what
 * somebody waits for has no more than that before it, and text, which shrinks to a fourth, fills a
 * line of 100 Mbit and 20 ms. The newest walk goes first, and begins with PREFETCH_FLIGHT
 * even if those before have more than that on the way; one of which nothing that came was opened
 * waits until something is, when somebody has begun elsewhere. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct content;
struct driver;
struct inode;

#define PREFETCH_FIRST ((size_t)1 << 20)
#define PREFETCH_LEAST ((size_t)64 << 10)
#define PREFETCH_MOST ((size_t)1 << 20)
#define PREFETCH_WINDOW_MAX ((size_t)32 << 20)
#define PREFETCH_FLIGHT ((size_t)512 << 10)
#define PREFETCH_CRAWL 8

/* Walks that go on at the same time: programs that read a tree with several threads. */
#define PREFETCH_WALKS 8

/* A file was opened that was not here. */
void prefetch_missed(struct driver *d, const struct inode *file);

/* A content was opened, for the first time. */
void prefetch_used(struct driver *d, const struct content *c);

/* Directories were read ahead. */
void prefetch_listed(struct driver *d);

/* What a walk has asked for has come, or will not. */
void prefetch_answered(struct driver *d, uint64_t walk, size_t bytes);

void prefetch_free(struct driver *d);

/* Regular files that somebody else may be changing without anybody being told.
 *
 * Stores to a mapping are not reported by the kernel, nor do they always change the file's times: a
 * page that is dirty already takes more of them silently. Only who has a file open for writing, or
 * has mapped it so, can make them. A read lease tells: the kernel grants it when there is nobody
 * (F_SETLEASE; refused with EAGAIN while there is). It is given back at once, so that whoever opens
 * the file at that very moment waits for microseconds; with O_NONBLOCK, and for writing, open can
 * answer EWOULDBLOCK. What this service has open itself counts for the kernel, but its writes are
 * noted; while a client writes, and nobody else had the file open before, an owner of the only
 * descriptor can ask for a write lease instead.
 *
 * What was found out is right until the file is opened by another process, which the watch tells:
 * so it is found out once for each node, when the first client is told of the file. Of a file with
 * writers no client keeps anything, and it is noted as changed at every barrier until they are
 * gone. */
#pragma once

#include "store/node.h"

/* Files with writers that a barrier looks at again; the others are noted as changed without.
 * Stops somebody who opens very many files from making every barrier slow: 10 us each. */
#define WRITERS_CHECKED_MAX ((size_t)64)

/* In node.writers. */
enum {
    WRITERS_UNKNOWN,  /* not asked yet, or the kernel cannot say */
    WRITERS_CHECKING, /* by one thread; others that want to know wait for it */
    WRITERS_OPENED,   /* the same, and the file was opened since it began */
    WRITERS_NONE,     /* and openings have been noticed since */
    WRITERS_SOME,
};

/* Ignores SIGIO in this process, which tells of leases that somebody waits for. */
void writers_setup(void);

/* True when it is a regular file that nobody else has open for writing, or something else that
 * cannot be mapped. May open the file for a moment, and waits for another thread that does. Not for
 * callbacks of the watch. */
bool writers_absent(struct node *node);

/* The same, where fd is the only descriptor of this service on it, and open for writing: of a file
 * just made. */
void writers_check_made(struct node *node, int fd);

/* As openat, for opening files of clients: with O_NONBLOCK that does not wait for leases, and
 * another thread may have one for a moment. */
int writers_openat(int dir_fd, const char *path, int flags, mode_t mode);

/* Another process has opened the file: subscribers are told if it can write. */
void writers_opened(struct node *node);

/* Openings have not been reported: nothing is known of any file. */
void writers_lost(struct store *store);

/* The node is about to be freed. Under store.lock. */
void writers_forget_locked(struct node *node);

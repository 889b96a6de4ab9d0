/* What changes below a directory, by path: the service reports changes of files that its client
 * knows, so the watch knows all it has to tell of. What rules leave out of listings is not
 * watched. */
#pragma once

#include "gateway/path.h"

/* Files and directories one watch knows. Bounds its memory, about 200 bytes each here and more in
 * the service. */
#define OBSERVER_ENTRIES_MAX 100000

struct observer;

enum observer_kind {
    OBSERVER_CREATED, /* or put in the place of another */
    OBSERVER_REMOVED,
    OBSERVER_MODIFIED,
    OBSERVER_ATTRIBUTES, /* its mode, owner or time */
    OBSERVER_RENAMED,    /* from, and perhaps in the place of another */
    OBSERVER_RESYNC,     /* anything may have changed, of which nothing else is told */
};

/* "created", … */
const char *observer_kind_name(enum observer_kind kind);

/* Views last until the next observer_next. Paths are from the workspace's root. */
struct observer_event {
    enum observer_kind kind;
    uint32_t type; /* S_IFMT part of the mode */
    struct bytes path;
    struct bytes from;
};

/* Watches what is at the place: of a directory what is in it, with recursive at any depth; else
 * that name alone. Changes from when this returns on are reported, but those by the place's own
 * upstream, which is to be used for nothing else until observer_close. -ENOENT, -EMSGSIZE: more
 * than OBSERVER_ENTRIES_MAX; -EOPNOTSUPP: the service notices no changes. */
int observer_open(struct tree *t, const struct place *p, bool recursive, struct observer **ret,
                  struct failure *ret_failure);
void observer_close(struct observer *w);
DEFINE_CLEANUP(struct observer *, observer_close);
#define _cleanup_observer_ _cleanup_(observer_close_pointer)

/* False when there is something of which the service cannot see every change. */
bool observer_is_complete(const struct observer *w);

/* The next event. 0; -EAGAIN after timeout_ms (< 0: never); -ENOENT: what is watched is gone, which
 * was told; -EMSGSIZE: it has become too much; others of upstream_finish. */
int observer_next(struct observer *w, int timeout_ms, struct observer_event *ret,
                  struct failure *ret_failure);

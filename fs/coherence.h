/* What the kernel may keep of what it was told.
 *
 * While the mount is subscribed (SUBSCRIBE) and has its lease, the service reports every change
 * that others make to what this mount knows, and what the kernel is told may be kept until then.
 * A change is first noted here, so that answers asked for before it came are not kept, then
 * taken from the kernel, then confirmed to the service (SEEN). Without a subscription every answer
 * is to be asked for again at once. */
#pragma once

#include <time.h>

#include "driver.h"
#include "notifier.h"

/* After the kernel's INIT. With cache=no there is nothing to do, here and below. -ENOMEM and
 * others. */
int coherence_new(struct driver *d, struct fuse_session *session);
void coherence_free(struct driver *d);

/* There is a session; it goes on on another connection; it is lost; another one is about to begin,
 * in which nothing is known of what the last one knew. */
void coherence_connected(struct driver *d);
void coherence_resumed(struct driver *d);
void coherence_disconnected(struct driver *d);
void coherence_replaced(struct driver *d);

/* To be called when an inode may have been made: a directory or symbolic link that has one already,
 * at another place, is not kept under either. */
void coherence_entered(struct driver *d, struct inode *inode);

/* This mount has written where the kernel does not know: what it has cached there is not right. */
void coherence_appended(struct driver *d, struct inode *inode);

/* The kernel was told that the name leads to a file of this mount's, and it does not. */
void coherence_unmade(struct driver *d, const struct inode *directory, struct bytes name);

/* A rename into another directory, to, has been answered: the kernel does it under the locks of
 * both directories, and what it is told to forget of them waits for these. inode_rename_settled is
 * called when it is done. */
void coherence_renamed(struct driver *d, const struct inode *to, struct bytes name);

/* Nothing that was answered is right any more: other rules are in force. It takes locks of the
 * kernel that the running request may hold, and so goes on beside it. */
void coherence_forget(struct driver *d);
/* How much it has not been told to forget yet. */
size_t coherence_forgetting(const struct driver *d);
/* Calls done when the kernel has forgotten all it was to forget until now. With cache=no it is
 * called at once. -ENOMEM: not called. */
int coherence_when_forgotten(struct driver *d, notifier_done_fn *done, void *context,
                             uint64_t number);

/* Changes are reported. */
bool coherence_live(const struct driver *d);

/* They are not, and with disconnected=serve what was known when they last were is answered until
 * they are again. */
bool coherence_serving(const struct driver *d);
/* Since when, in seconds of the real time: what is known is as of then. 0: it is not so. */
time_t coherence_served_as_of(const struct driver *d);

/* How long ago the service confirmed last that all changes had been reported, in ms; -1: it does
 * not any more. */
int64_t coherence_confirmed_ms(const struct driver *d);

/* How far this mount is behind, as far as it lies with it and the connection. */
struct coherence_times {
    uint64_t lag_us;     /* of the last changes: from when they were told here until no program sees
                          * what was before */
    uint64_t lag_max_us; /* the longest that ever took */
    uint64_t ping_min_us; /* the shortest round trip of this session; UINT64_MAX: none yet */
    uint64_t ping_us;     /* the last round trip to the service and back */
};
struct coherence_times coherence_times(const struct driver *d);

/* One of the two: what is known may be answered. */
bool coherence_knows(const struct driver *d);

/* There is a connection, but the lease has ended without an answer: who asks may wait for long. */
bool coherence_silent(const struct driver *d);

/* For how many seconds the kernel may keep these attributes, which were asked for when
 * inode_table.stamp was `stamp`. */
double coherence_attr_timeout(const struct driver *d, const struct inode *inode,
                              const struct wire_attr *attr, uint64_t stamp);

/* And that this name of parent leads to the file, or (inode NULL) that there is none; to be called
 * once for each answer, before its reference is counted. */
double coherence_entry_timeout(struct driver *d, const struct inode *parent, struct inode *inode,
                               const struct wire_attr *attr, uint64_t stamp);

/* The kernel reads the file into its cache; and has its answer. What it is to forget of the file
 * waits for that. */
void coherence_read_begins(struct driver *d, const struct inode *inode);
void coherence_read_ends(struct driver *d, const struct inode *inode);

/* Others have written the file a moment ago, and may go on. */
bool coherence_written_lately(const struct inode *inode);

/* Called when a file or directory is opened: true when what the kernel has cached of it is right.
 * If not, it must be dropped now; from then on it is right until the next change by others. */
bool coherence_keep_cache(const struct driver *d, struct inode *inode, const struct wire_attr *attr,
                          uint64_t stamp);

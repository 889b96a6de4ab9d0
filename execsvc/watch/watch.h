/* Changes of files by other processes, as the kernel reports them, in one of two ways:
 *
 * fanotify: one mark on the whole filesystem of the root. Needs CAP_SYS_ADMIN in the initial user
 * namespace, Linux 5.17, and a filesystem with file handles that can be decoded (ext4, tmpfs, the
 * top volume of btrfs; not a subvolume, nor overlayfs but with nfs_export=on). A file is told by
 * its handle, under whichever of its names it was changed. What this process itself does is not
 * reported.
 *
 * inotify: a watch on each directory that the caller names. A file is told by the directory and
 * the name under which it was opened or is known there. What this process itself does is
 * reported too. With options.files each file has a watch as well, and everything is told of by what
 * it happened to. Without, not seen, besides what neither sees:
 *   - a change through a hard link in a directory that is not watched,
 *   - of a file that another was renamed over, or that was unlinked: that its attributes changed
 *     (the event of the name says so), and later changes by who has it open, which are told
 *     under its old name, as if of the file that now has it.
 *
 * Neither sees
 *   - stores to a shared mapping, be it with msync: only the end of descriptor and mapping, as
 *     WATCH_CLOSED_WRITE; on overlayfs that of the descriptor alone, for the mapping is of a file
 *     below. A file can be mapped for writing only by who opened it for writing: WATCH_OPENED, and
 *     a read lease that is refused, tell;
 *   - asynchronous writes by io_submit: only the close after them;
 *   - that only the access time was set, by reading or by utimensat;
 *   - inode flags (chattr);
 *   - what others change on the server of a network filesystem. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/failure.h"

enum watch_mode {
    WATCH_AUTO, /* fanotify if it works for the root, which is tried, else inotify */
    WATCH_FANOTIFY,
    WATCH_INOTIFY,
    WATCH_NONE, /* not for watch_new */
};

/* In watch_event.kinds. */
enum {
    /* name in dir leads elsewhere now, or nowhere. With that, attributes of dir have changed, and
     * of the file that had or has the name. */
    WATCH_NAME = 1,
    WATCH_CONTENT = 2,       /* and with it size and times */
    WATCH_ATTR = 4,          /* mode, owner, times, link count, extended attributes */
    WATCH_OPENED = 8,        /* by another process, perhaps to write; only with options.opens */
    WATCH_CLOSED_WRITE = 16, /* the last use of an open file that could write has ended */
    WATCH_UNWATCHED = 32,    /* inotify: the directory `target` is gone, and so is its watch */
    WATCH_ALL_LOST = 64,     /* events were lost: anything may have changed. Alone */
};

struct watch_event {
    /* Numbers of files: file_handle_hash() with fanotify, with inotify the key that the directory
     * was given. 0: not known. Where target is known it is the file that the event is about, and
     * `name` only how it was reached; else the file is the one that was last known as `name`. */
    uint64_t dir;
    uint64_t target;
    struct bytes name; /* in dir; empty: the event is of target alone. Valid during the call */
    uint32_t kinds;
    bool directory; /* what has or had the name, or target */
};

/* Called by whoever drains, one call at a time, while the watch holds no lock. It may call
 * watch_directory and watch_forget_directory, not watch_drain. An event may come twice. Answers
 * whether the file is one that anybody wants to know of: where none is for a while, changes are
 * reported at a gentler pace (see watch_start). */
struct watch_events {
    bool (*event)(void *context, const struct watch_event *event);
    void *context;
};

struct watch_options {
    enum watch_mode mode;
    bool opens;         /* report WATCH_OPENED; costs an event per open of any file */
    bool bounded_queue; /* fanotify: the system's limit of events instead of none */
    bool files; /* inotify: files are watched by watch_file; directories tell of names alone */
};

struct watch;

/* root_fd: a directory, in which a file is made for a moment to try out fanotify. By the process
 * whose changes are then not reported. Nothing is reported before watch_start or watch_drain. */
int watch_new(int root_fd, const struct watch_options *options, const struct watch_events *events,
              struct watch **ret, struct failure *failure);
/* No event is called afterwards. */
void watch_free(struct watch *w);

/* A thread that reports changes soon after they happen: at once after a rest, else within 1 ms;
 * within 8 ms where those before were all of files that nobody wants to know of, as of a whole
 * filesystem most are. */
int watch_start(struct watch *w);

/* WATCH_FANOTIFY or WATCH_INOTIFY. */
enum watch_mode watch_mode(const struct watch *w);
/* "auto", "fanotify", "inotify", "none". */
const char *watch_mode_name(enum watch_mode mode);

/* From when it returns on, changes of what is in the directory and of its names are reported, so
 * what is read of it afterwards is covered; not of what is below its subdirectories. Counted: each
 * call wants its watch_forget_directory. `key` is any number but 0, one for each directory.
 * -EXDEV: fanotify, and the directory is on another filesystem.
 * -ENOSPC: inotify, and no watch is left, or none that is not for the user's other programs
 * (WATCH_SHARE). -EACCES: inotify, and the directory cannot
 * be read. -EEXIST: inotify; the key is another directory's, or the directory has another key. */
int watch_directory(struct watch *w, int dir_fd, uint64_t key);
void watch_forget_directory(struct watch *w, uint64_t key);

/* inotify: the same for a file of any kind, fd, which may be O_PATH. It is told of by its key
 * alone, whatever name it is changed by, and until it is gone: WATCH_UNWATCHED. */
int watch_file(struct watch *w, int fd, bool directory, uint64_t key);
void watch_forget(struct watch *w, uint64_t key);

/* False: watch_file would answer -ENOSPC; that is counted. Files leave a quarter to directories,
 * which are worth more. */
bool watch_room(struct watch *w, bool directory);

/* When it returns 0, everything that happened before the call has been reported: every call that
 * was made by a process that has been waited for, or that told us of it. Bounded, also while
 * changes go on. Any thread. A negative errno: the kernel's queue failed, WATCH_ALL_LOST was
 * reported, and nothing will be any more. */
int watch_drain(struct watch *w);

/* Of the watches that a user may have, the part that this process takes at most: an editor of the
 * same user wants some as well. */
#define WATCH_SHARE(limit) ((limit) - (limit) / 4)

/* How many inotify watches a user may have, by the smaller of the two limits that the kernel says;
 * 0: it does not. */
uint64_t watch_user_limit(void);

struct watch_status {
    enum watch_mode mode;
    uint64_t directories; /* inotify: watched now, and files, */
    uint64_t limit;       /* at most, */
    uint64_t refused;     /* and how often there was no room for one more */
    uint64_t events;      /* reported since the start */
    uint64_t own;         /* fanotify: of this process, not reported */
    uint64_t overflows;   /* queue overflows, each a WATCH_ALL_LOST */
    uint64_t behind_ns;   /* 0: nothing waits; else no less than the age of the oldest event */
};

void watch_status(struct watch *w, struct watch_status *ret);

/* Shared by the files of watch/. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "base/cleanup.h"
#include "base/table.h"
#include "watch/watch.h"

/* Far more than one event, whose largest part is two names or handles. */
#define WATCH_BUFFER_SIZE (64 * 1024)

/* A directory with an inotify watch. */
struct watched {
    uint64_t key;
    uint64_t count;
    int wd; /* -1: the kernel has dropped the watch, as the directory is gone */
};

struct watch {
    struct watch_events events;
    enum watch_mode mode;
    int fd;
    int stop_fd;
    bool started;
    pthread_t thread;

    /* Drains are numbered as they are asked for; one that runs serves all that were asked for
     * before it began. */
    pthread_mutex_t lock;
    pthread_cond_t drained;
    uint64_t asked, served;
    uint64_t caught_up_ns; /* everything before this moment has been reported */
    bool draining;
    int error; /* sticky */

    /* Of the one that drains. */
    struct watch_event last; /* reported last from what is in the buffer; kinds 0: none */
    _Atomic bool wanted;     /* some of what was read lately was, or there was much of it */
    _Alignas(8) uint8_t buffer[WATCH_BUFFER_SIZE];

    _Atomic uint64_t event_count, own_count, overflow_count, refused_count;

    /* fanotify */
    pid_t self;
    dev_t device;

    /* inotify */
    uint32_t mask, file_mask;         /* of directories, of files */
    pthread_mutex_t directories_lock; /* innermost */
    struct table by_key, by_wd;
    uint64_t directories_max;
};

/* To the caller, unless it repeats the one before. */
void watch_report(struct watch *w, const struct watch_event *event);
void watch_report_lost(struct watch *w);

/* 0, w->fd is open; or a negative errno and the failure. */
int fanotify_open(struct watch *w, int root_fd, const struct watch_options *options,
                  struct failure *failure);
/* Reports what a read has given. Returns how much less FIONREAD says for it. */
size_t fanotify_report(struct watch *w, struct bytes raw);
int fanotify_directory(struct watch *w, int dir_fd);

/* One event of fanotify, and the process that caused it. Takes it off *raw. False at the end.
 * What cannot be understood is WATCH_ALL_LOST, and ends *raw. */
bool fanotify_next(struct bytes *raw, struct watch_event *ret, pid_t *ret_pid);

int inotify_open(struct watch *w, const struct watch_options *options, struct failure *failure);
size_t inotify_report(struct watch *w, struct bytes raw);
int inotify_file(struct watch *w, int fd, bool directory, uint64_t key);
bool inotify_room(struct watch *w, bool directory);
void inotify_forget(struct watch *w, uint64_t key);
void inotify_release(struct watch *w);

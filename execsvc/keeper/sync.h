/* Forces what is known of commands to the disk, so that it is there after a crash of the machine.
 * In a thread of its own: a disk that is slow, or hangs, holds up those who wait for it and nobody
 * else. What is asked for while it works is done together, mostly by one commit of the
 * filesystem's. */
#pragma once

#include <event2/event.h>

struct syncer;
struct sync_job;

/* The thread begins with the first job. -ENOMEM, -errno. */
int syncer_new(struct event_base *base, struct syncer **ret);

/* Does what is still asked for, calling nobody. NULL is allowed. */
void syncer_free(struct syncer *s);

/* Everything in the directory of a command (record.h), and that the directory is there. done is
 * called once, from the loop, with 0 or a negative errno. -ENOMEM, -errno: nothing was begun. */
int syncer_add(struct syncer *s, int directory, void (*done)(void *context, int error),
               void *context, struct sync_job **ret);

/* It goes on, and nobody is called. */
void sync_job_abandon(struct sync_job *job);

/* How far something is that takes long: one line on standard error, shown when it has taken
 * PROGRESS_AFTER_MS, drawn anew by a thread, and taken away at the end. Where standard error is no
 * terminal nothing of this does anything.
 *
 * One at a time in a process; a second one that is begun shows nothing. What is written to the
 * terminal meanwhile needs progress_hide() before it; a child that is forked may only execute a
 * program. */
#pragma once

#include <stdint.h>

#include "base/cleanup.h"

#define PROGRESS_AFTER_MS 1000
#define PROGRESS_EVERY_MS 200

enum progress_unit {
    PROGRESS_BYTES, /* "demo: 12.3 MiB of 60.0 MiB, 20 %, 5.1 MiB/s, 9 s left" */
    PROGRESS_FILES, /* "demo: 1200 files, 560 files/s" */
    PROGRESS_STEPS, /* "demo: step 2 of 5: pulling the image, 12 s"; of one that is
                     * not known, "demo: pulling the image, 12 s" */
};

struct progress;

/* what: any bytes; what would harm the terminal comes out escaped. total: 0 if it is not known.
 * Returns NULL when there is nothing to show to anybody, which all others take. */
struct progress *progress_start(const char *what, uint64_t total, enum progress_unit unit);

/* So much more is done. Cheap; from any thread. */
void progress_add(struct progress *p, uint64_t amount);

/* The same with what is done so far, and the total as it is known now (0: not known). */
void progress_set(struct progress *p, uint64_t done, uint64_t total);

/* What is being done now, any bytes. With PROGRESS_STEPS the next step begins with it. */
void progress_step(struct progress *p, const char *text);

/* Takes the line away, until the next time it is drawn. For what is about to be written there. */
void progress_hide(void);

/* Takes the line away and frees. NULL is allowed. Once the process is ended by SIGINT, SIGTERM,
 * SIGHUP or SIGQUIT, the line is taken away too. */
void progress_end(struct progress *p);

DEFINE_CLEANUP(struct progress *, progress_end);
#define _cleanup_progress_ _cleanup_(progress_end_pointer)

/* What the proxy has done, for `berth status`: numbers in a file of the keeper's, which the proxy's
 * process writes as they change, and holds a lock on for as long as it lives. They go on from one
 * process to the next, but for the connections that are open. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* In the directory of commands. */
#define COUNTS_FILE "egress.counts"

struct counts {
    uint64_t connections; /* that are open */
    uint64_t allowed;     /* decisions, as in the log */
    uint64_t refused;
    uint64_t failed;
    uint64_t bytes_up; /* of connections that have ended */
    uint64_t bytes_down;
};

/* Goes on from what the file has: nothing, if it is none. */
void counts_begin(int fd, struct counts *ret);

/* What cannot be written is not told. */
void counts_write(int fd, const struct counts *counts);

/* running: there is a process that writes it. -ENOENT: there never was one. */
int counts_read(int directory, struct counts *ret, bool *ret_running);

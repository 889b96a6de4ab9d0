/* The audit log: who did what, one JSON object a line:
 *
 *   "time"        UTC, to the millisecond
 *   "connection"  its number, as in the service's own log
 *   "identity"    the grant's ID; null: nobody was let in
 *   "peer"        address, or user and process
 *   "verb"        that was needed; "none"
 *   "message"     of the protocol; CONNECT: somebody came
 *   "workspace"   its directory's name, which tells the thread ID; "exec": a command's ID
 *   "outcome"     "ok", "begun" (a command, which has another line at its end), "exited 3" and
 * other verdicts, "gone" (the client left first), or an errno's name, such as "EACCES" "text" why
 * not
 *
 * Never a token, a command's words, its environment or output, or what is in a file. Lines are
 * appended whole, with one write each, by the loop's thread. When one cannot be written it is lost
 * and counted, and nothing that would need another begins until that succeeds: it is refused. The
 * first line after that says how many are missing ("message": "LOST", "count"). */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/failure.h"

struct audit;

struct audit_entry {
    uint64_t connection;
    const char *identity; /* or NULL, as the next ones but message */
    const char *peer;
    const char *verb;
    const char *message;
    const char *workspace;
    struct bytes exec;
    const char *outcome;
    const char *text;
};

/* Opens the file for appending, with mode 0600 if it is missing: a descriptor or a negative errno.
 */
int audit_file_open(const char *file);

/* open: as audit_file_open, now and each time that it is to be opened; file is for messages. */
int audit_open(const char *file, int (*open)(void *context), void *context, struct audit **ret,
               struct failure *ret_failure);
void audit_close(struct audit *a); /* NULL is allowed */

/* After the file was moved away: goes on with another of that name. What cannot be opened is as
 * what cannot be written. */
void audit_reopen(struct audit *a);

/* Whether lines can be written, which is tried when the last one could not. NULL: there is no log,
 * and nothing stands in the way. */
bool audit_works(struct audit *a);

void audit_write(struct audit *a, const struct audit_entry *entry); /* NULL: does nothing */

/* Lines that were lost, ever. */
uint64_t audit_lost(const struct audit *a);

/* What the audit log (access/audit.h) is told of connections and their calls: who comes, or is
 * refused; each request about workspaces and commands, when it is answered; each message that was
 * forbidden. Requests about files are not in it, but the opening of the workspace they are in is.
 */
#pragma once

#include "server/connection.h"

/* A call that will have a line. */
struct account;

/* Somebody was let in (why NULL), or not. Of refusals those have a line that server_log_refusal,
 * called before, did not leave out, so that a flood of them does not fill the disk. */
void account_connected(const struct connection *c, const char *why);

/* Whether m may begin as far as the log is concerned: it has no line, or lines can be written, or
 * m ends something, which may be what has filled the disk. */
bool account_allows(const struct connection *c, const struct wire_message *m);

/* m was refused before any handler; bounded in the same way. */
void account_forbidden(const struct connection *c, const struct wire_message *m, int error,
                       const char *text);

/* A request begins. NULL: it has no line; or no memory, and its line is in the log already. */
struct account *account_begin(const struct connection *c, const struct wire_message *m);

/* The call ends, with this reply, or error, or because the client is gone (account_end_gone). NULL
 * is allowed. */
void account_end(struct account *account, const struct wire_message *reply);
void account_end_error(struct account *account, int error, const char *text);
void account_end_gone(struct account *account);

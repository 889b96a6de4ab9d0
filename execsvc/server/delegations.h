/* Who alone makes names in a workspace (DELEGATION). A mount that does tells its programs that a
 * file is there a round trip before it is. That must not be so while somebody else could make the
 * same name: nobody would know that a lock file is his. So a client has it only while no command
 * lives in the workspace, no other client has made a name there for a while, and rules hide
 * nothing, since what is hidden cannot be made. Others who want to make one wait until it has said
 * that all its own are made (subscribers_sync), as a command does that is to be started; and what
 * comes from it later, by a number that it has no more, is refused. Processes beside the service
 * that it has not started are not held back. */
#pragma once

#include "server/server.h"
#include "wire/session.h"

/* After two clients have made names in a workspace neither has it for so long: each change of hands
 * costs a round trip of who had it. */
#define DELEGATIONS_PAUSE_MS 5000

/* When there were commands, the keeper is asked again after so long. */
#define DELEGATIONS_ASK_MS 1000

/* The connection makes no names at the moment: it has ended, or waits for its client. */
void delegations_leave(const struct connection *c);

/* On the loop, before a request goes to the workers: takes it if it has to wait, or is refused. */
bool delegations_take(struct connection *c, struct call *call, struct wire_frame *frame);

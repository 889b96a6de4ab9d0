/* The one place where it is decided whether a client may send a message: by the verb of the
 * message's row and what its fields need besides, and by the workspace that it names. Nodes and
 * handles need no look: a session has them only of workspaces that it was let into. */
#pragma once

#include "access/grant.h"
#include "store/store.h"

#define PERMIT_TEXT_MAX 160

/* The verbs that a message needs, GRANT_VERB(…):
 *   its row's
 *   OPEN       WRITE for flags that write
 *   CREATE     READ for flags that read: the file may be there already
 *   COPY       READ
 *   WORKSPACE_CREATE  READ for a workspace that it is made from
 *   LOCK_SET   WRITE for a lock that keeps readers out */
unsigned permit_verbs(const struct wire_message *m);

/* The workspace that a client's message names, if its row has a field for one: a thread ID, or a
 * directory name with *ret_by_name. Empty: it names none. */
struct bytes permit_workspace(const struct wire_message *m, bool *ret_by_name);

/* 0: may be sent. -EACCES: the grant lacks a verb, or the message would make a workspace that the
 * grant does not cover. -ENOENT: it names a workspace that the grant does not cover, which is
 * answered alike whether there is one or not. ret_text: why. */
int permit_check(const struct grant *grant, struct store *store, const struct wire_message *m,
                 char ret_text[PERMIT_TEXT_MAX]);

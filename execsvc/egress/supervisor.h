/* The keeper's side of the process that has the proxy: it is started with the first workspace that
 * needs it, told of each (control.h), and started again when it ends. What connects meanwhile waits
 * in the workspaces' listening sockets, which are kept here too; nothing else of a command depends
 * on it. It ends with the last workspace. */
#pragma once

#include <event2/event.h>

#include "base/log.h"
#include "egress/allow_list.h"
#include "exec/spawn.h"

/* Before it is started again: at first, and at most, when it ends again and again. */
#define SUPERVISOR_DELAY_MS 50
#define SUPERVISOR_DELAY_MAX_MS 5000

/* In the directory of commands: what it logs, and what it logged before. */
#define SUPERVISOR_LOG "egress.log"
#define SUPERVISOR_OLD_LOG "egress.log.old"

struct supervisor;
struct ward;

/* directory and limits are borrowed for its life. -ENOMEM. */
int supervisor_new(struct event_base *base, int directory, const struct spawn_limits *limits,
                   struct supervisor **ret);

/* There may be wards left, which are gone then. NULL is allowed. */
void supervisor_free(struct supervisor *s);

/* Has a workspace served. Takes *listener; the others are copied. -ENOMEM. */
int supervisor_begin(struct supervisor *s, int *listener, const char *name,
                     const struct allow_list *list, struct ward **ret);

/* From now on that list holds; connections to what is not on it end. -ENOMEM. */
int supervisor_change(struct supervisor *s, struct ward *w, const struct allow_list *list);

/* Ends its connections. */
void supervisor_end(struct supervisor *s, struct ward *w);

/* Removes workspaces whose time is over (store_set_expired), but not those in which something of a
 * command lives. All functions are for the loop's thread. */
#pragma once

#include "exec/exec_service.h"
#include "server/workers.h"

struct reaper;

/* Before store_begin. -ENOMEM, others of eventfd. */
int reaper_new(struct event_base *base, struct store *store, struct reaper **ret);

/* From now on. After store_begin. -ENOMEM. */
int reaper_begin(struct reaper *reaper, struct exec_service *exec, struct workers *workers);

/* No more are removed; before the workers end. */
void reaper_stop(struct reaper *reaper);

/* When the store has been closed. NULL is allowed. */
void reaper_free(struct reaper *reaper);

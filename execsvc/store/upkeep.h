/* A thread that looks after the workspaces nobody asks for: reads what they are when the service
 * has started, notes that those in use are (index.h), and finds those whose time is over. */
#pragma once

#include "store/store_private.h"

struct upkeep;

/* -ENOMEM. */
int upkeep_new(struct store *store, struct upkeep **ret);
int upkeep_begin(struct upkeep *upkeep);
void upkeep_free(struct upkeep *upkeep);

/* Who removes those whose time is over; without it the thread itself does, asking nobody. Called on
 * the thread. Before upkeep_begin. */
void upkeep_set_expired(struct upkeep *upkeep,
                        void (*expired)(void *context, const struct index_over *over),
                        void *context);

/* A time may be over earlier than it has seen. */
void upkeep_wake(struct upkeep *upkeep);

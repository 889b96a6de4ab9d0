/* The proxy's state, shared by the files that implement egress.h: egress.c has the workspaces and
 * their listeners, visit.c a connection of a command's. */
#pragma once

#include <sys/queue.h>

#include "base/table.h"
#include "egress/counts.h"
#include "egress/egress.h"
#include "egress/resolver.h"
#include "egress/settings.h"

struct visit;

TAILQ_HEAD(visit_list, visit);

struct egress_workspace {
    struct egress *egress;
    uint64_t id;
    char *name;
    int listener;
    struct event *acceptable;
    struct event *refill; /* when connections may be taken again */
    struct allow_list *list;
    struct visit_list visits;
    size_t count;
    double tokens; /* connections that may be taken now */
    uint64_t filled_ns;
};

struct egress {
    struct event_base *base;
    struct egress_limits limits;
    struct resolver *resolver;
    struct table workspaces;
    size_t descriptors; /* that connections may use, in all */
    struct settings settings;
    struct counts counts;
    int counts_fd; /* -1: nobody is told */
};

/* --- visit.c --------------------------------------------------------------------------------- */

/* Takes *fd. -ENOMEM. */
int visit_new(struct egress_workspace *w, int *fd);

/* The list has changed; it may be gone afterwards. */
void visit_check(struct visit *v);

void visit_free(struct visit *v);

struct visit *visit_next(struct visit *v);

/* --- egress.c -------------------------------------------------------------------------------- */

/* The counts have changed. */
void egress_counted(struct egress *e);

/* One is gone. */
void egress_workspace_visit_ended(struct egress_workspace *w);

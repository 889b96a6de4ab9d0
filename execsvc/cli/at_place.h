/* The service of a workspace that a provider made a sandbox for: its place (places/place.h) says.
 */
#pragma once

#include "cli/cli.h"
#include "cli/which.h"
#include "places/place.h"

/* The place of a workspace, by thread ID or (by_name) directory name. 1: *ret; 0: it has none, or
 * another service is meant: one that the user named, or that of the workspace in which we stand,
 * when that is the one. Negative: why it could not be read was printed, or that it may be
 * another's. */
int at_place_find(const struct cli *cli, const char *key, bool by_name, struct place *ret);

/* which_find, and from then on the service is that of the workspace's place, if it has one and
 * nobody named another. Of environment and configuration neither URL nor credentials are used then:
 * they are another service's. False: it has one that cannot be used now; said. Call it before
 * cli_load_settings. */
bool at_place_use(struct cli *cli, struct which *w);

/* The same for what takes thread IDs: *word becomes `id`, which holds it. NULL stays so: of all
 * workspaces of the service that is meant (which_service). */
bool at_place_use_id(struct cli *cli, const char **word, char id[static WHICH_ID_SIZE]);

/* cli_connect, but over a connection that is held when it is a place's: each costs a program of the
 * vendor's. */
int at_place_connect(struct cli *cli, struct client **ret);

/* A cli like this one, whose service is that of the place; to be released. */
int at_place_enter(const struct cli *cli, const struct place *p, struct cli *ret);
void at_place_leave(struct cli *cli);
#define _cleanup_at_place_ _cleanup_(at_place_leave)

/* For commands that take several workspaces: each in turn. *at begins as {0}; a connection stays
 * for those that follow and have no place of their own, or the same. */
struct at_places {
    struct cli *cli;    /* of the caller; borrowed */
    struct cli other;   /* of the place that is used now */
    struct client *own; /* a connection to the service that is used without a place, */
    char *own_url;      /* which is this one */
    struct client *client;
};
int at_places_connect(struct at_places *at, struct which *w, struct client **ret);
/* To the service that is meant now, which need not be that of the workspace before. */
int at_places_connect_own(struct at_places *at, struct client **ret);
void at_places_release(struct at_places *at);
#define _cleanup_at_places_ _cleanup_(at_places_release)

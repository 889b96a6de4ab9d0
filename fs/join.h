/* A joined mount: the workspaces of several services in one tree. Each service is a member, with a
 * driver of its own: its own session, replica, journal, lease and pipeline, all on one loop and one
 * device. So one that is dead, slow or hostile is nothing to the others. The driver that has the
 * device, the hub, has no connection; its root is the directory of all workspaces (join_root.c).
 *
 * A node ID has the number of its member in its upper 16 bits, from which each request finds its
 * driver. A number is used again only when the kernel has forgotten all that had it, and all others
 * have been used. The root, 1, is the hub's.
 *
 * Who is who. A member is what the user named: a URL with its credentials. What a service says of
 * itself (service_id) is compared with what the same member said before, never with another's, so
 * one that says another's ID keeps nobody out and has nothing of what is known of that one.
 *
 * Names. The root shows the workspaces of all members. Where two have the same name, the first
 * member has it, in the order in which they were given; but a name that has led to a workspace
 * leads there for as long as that is there, so that nobody's files change under him because another
 * service came back. NAME@SERVICE is the workspace of that service, always; it is listed where NAME
 * is another's. (No directory name of a workspace has an '@': names/thread_id.h.)
 *
 * Waiting. Members that are connected are asked at once, all of them. One that does not answer
 * within JOIN_ANSWER_MS is no longer waited for, nor is one without a connection, unless it is
 * known to have the name: then the request waits for it as on a mount of its own. */
#pragma once

#include "request.h"

#define JOIN_MEMBERS_MAX 1024 /* at a time: each takes a connection and two threads */
#define JOIN_NUMBER_SHIFT 48
#define JOIN_NUMBER_MAX 65535 /* members at a time, with those that the kernel still knows */

/* First attempts to connect at a time: a mount of many must not be a flood for the network. */
#define JOIN_CONNECTING_MAX 32

/* How long the mount waits for its members before it says that it can be used. */
#define JOIN_SETTLE_MS 2000

#define JOIN_ANSWER_MS 2000

/* A member in whose place another service was found is replaced by it at once, but not again
 * within this time: stops one that says another ID at each connection from taking numbers, and the
 * time of the loop. */
#define JOIN_REPLACED_MS 30000

/* Workspaces of one member that are listed: stops one that lists names for ever from taking all
 * memory. */
#define JOIN_NAMES_MAX 131072

struct join_options {
    const struct client_settings *base; /* for what a member has not itself; outlives the join */
    bool places;                        /* follow the directory of places */
    const char *slots_file;             /* as slots_open */
};

/* Gives settings the URL of a joined mount, as it is shown in /proc/mounts. -ENOMEM. */
struct options;
int join_name(const struct options *o, struct client_settings *settings,
              struct failure *ret_failure);

/* join_new, and join_add of all that the options of the hub name. Failures say which. */
int join_load(struct driver *hub, struct failure *ret_failure);

/* For a hub that has been set up by driver_init. -ENOMEM and others. */
int join_new(struct driver *hub, const struct join_options *options, struct failure *ret_failure);

/* Before join_start. Takes the settings over. why: it cannot be used, because; or NULL. -E2BIG,
 * -ENOMEM. quiet: failures to connect are not told in the log. */
int join_add(struct join *j, const char *name, struct client_settings *settings, const char *why,
             bool quiet);

/* False: what goes well is logged later, since who mounts would be told of it. */
bool join_tells(const struct driver *d);

/* The device serves: members are connected. Calls hub->ready when they are, or have failed to, or
 * JOIN_SETTLE_MS have passed. A negative errno. */
int join_start(struct join *j);

/* All connections end. *ret_left_behind: as connection_stop. */
void join_stop(struct join *j, bool *ret_left_behind);
/* After the mount has gone. */
void join_free(struct join *j);

/* --- for the device ----------------------------------------------------------------------- */

struct fuse_in_header;

/* Whose a request is, with `size` bytes behind its header. NULL: it is to be answered with
 * *ret_error (0 or negative), or (> 0) not at all. */
struct driver *join_route(struct join *j, const struct fuse_in_header *in, size_t size,
                          int *ret_error);

/* Whose a node is; NULL: it was of a member that has gone. */
struct driver *join_driver(struct join *j, uint64_t node);

/* --- for the drivers of members --------------------------------------------------------------- */

struct driver *join_hub(const struct driver *d);
uint64_t join_ino(const struct driver *d, uint64_t ino);

/* Its first connection is there. -EOPNOTSUPP: it cannot be a member; -ENOMEM and others. It is then
 * not to be used, and not connected again. */
int join_first(struct driver *d, struct client *client);

/* Its connection came, was lost, or could not be made, because (NULL: not known). */
void join_changed(struct driver *d, const char *why);

/* Another service answers where it was: it is a member anew. */
void join_replaced(struct driver *d);

/* A workspace is not there (ENOENT); true: r was taken over, to look elsewhere. */
bool join_missing(struct request *r);

/* --- for the hub's root ----------------------------------------------------------------------- */

/* The part of a name that the service knows: before the '@', if there is one. */
struct bytes join_key(struct bytes name);

void join_lookup(struct driver *hub, fuse_req_t req, const char *name);
void join_readdir(struct request *r);
/* Whose free space the root tells: of the first member that is connected; or the hub's. */
struct driver *join_space(struct driver *hub);
/* As root_describe. */
int join_describe(const struct driver *hub, char **ret);
/* What a workspace tells of its member, beside what a mount of it would. */
struct json_t;
void join_describe_member(const struct driver *d, struct json_t *object);
/* New rules for all members. */
void join_set_rules(fuse_req_t req, struct visibility_rules *rules);

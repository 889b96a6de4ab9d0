/* Which workspace a word means, for all commands alike, and at which service it is:
 *
 *   none, or "."    the one in which we stand. (A thread ID that is a dot is %2E with --name;
 *                   outside of mounts the dot is the ID.)
 *   NAME@SERVICE    in a mount of several services: what it shows under this name
 *   ID              of the service of the workspace in which we stand; in the root of a mount of
 *                   several services, where commands that change something refuse it, what is
 *                   shown there; outside of mounts of the default service. Where the mount in which
 *                   we stand, or may stand, does not tell its service, none is meant
 *
 * Who names a service (--url, --service, BERTH_URL, BERTH_SERVICE) means that one wherever he
 * stands. Where he stands then tells a name alone, and nothing to commands that change something,
 * unless it is the same service. */
#pragma once

#include "cli/cli.h"
#include "names/thread_id.h"

#define WHICH_ID_SIZE (THREAD_ID_MAX + 1)

struct which {
    const char *key; /* a word of the user's, or NULL; then as the service knows it, for as long
                        as the cli is not asked again */
    bool by_name;    /* it is a directory name, else a thread ID */
    bool is_new;     /* it is to be made: only its service is looked for */
};

static inline uint32_t which_flags(const struct which *w)
{
    return w->by_name ? WIRE_WORKSPACE_BY_NAME : 0;
}

/* For commands that are told no workspace: the service that is meant. False: it cannot be told, the
 * command would change something, and it was said what to type. */
bool which_service(struct cli *cli);

/* From now on the service is the workspace's, but for places (at_place.h). A negative errno: said.
 */
int which_find(struct cli *cli, struct which *w);

/* The same for what takes thread IDs alone. */
int which_find_id(struct cli *cli, const char *word, char ret_id[static WHICH_ID_SIZE]);

/* NAME@SERVICE in a mount of several services is refused as the thread ID of one that is to be made
 * there: no word would find it. which_find() has done so for those that are to be made. */
int which_check_new(const struct cli *cli, const char *id);

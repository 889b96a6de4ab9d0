/* Ending and forgetting the commands of a workspace, which is removed or stopped. */
#include "exec/relay.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "store/index.h"
#include "keeper/keeper.h"

bool exec_has_commands(const struct exec_service *s, const char *name)
{
    char path[PATH_MAX];
    (void)snprintf(path, sizeof path, "%s/exec/%s", store_root(s->store), name);
    return s->link || !TAILQ_EMPTY(&s->relays) || access(path, F_OK) == 0 || errno != ENOENT;
}

void exec_removal_end(struct exec_removal *removal)
{
    if (removal && removal->service)
        LIST_REMOVE(removal, entry);
    free(removal);
}

/* How the keeper is told. */
static uint32_t clear_flags(enum exec_clear how)
{
    switch (how) {
    case EXEC_CLEAR_ENDED:
        return 0;
    case EXEC_CLEAR_FORCE:
        return KEEPER_FORCE;
    case EXEC_CLEAR_STOP:
        return KEEPER_STOP;
    }
    return 0;
}

struct cleared_workspace {
    uint32_t slot;
    struct bytes thread_id;
    const char *name;
};

static int clear(struct exec_service *s, struct call *call, const struct cleared_workspace *w,
                 enum exec_clear how, struct exec_removal **removal, struct relay **ret)
{
    const struct wire_message m = {
        .type = WIRE_WORKSPACE_REMOVE,
        .workspace_remove = {.flags = w->slot | clear_flags(how), .key = w->thread_id}};
    *removal = calloc(1, sizeof **removal);
    if (!*removal)
        return -ENOMEM;
    (*removal)->slot = w->slot;
    (*removal)->stops = how == EXEC_CLEAR_STOP;
    (*removal)->service = s;
    LIST_INSERT_HEAD(&s->removals, *removal, entry);
    if (!exec_has_commands(s, w->name))
        return 0;
    *ret = exec_relay_new(s, call, &m);
    return *ret ? 0 : -ENOMEM;
}

static void clear_begin(struct exec_service *s, struct call *call,
                        const struct cleared_workspace *w, enum exec_clear how,
                        exec_cleared *cleared, void *context)
{
    struct exec_removal *removal = NULL;
    struct relay *relay = NULL;
    int r = clear(s, call, w, how, &removal, &relay);
    if (r < 0) {
        exec_removal_end(removal);
        if (call)
            call_reply_error(call, r, NULL);
        cleared(context, NULL, 0);
    } else if (!relay) {
        cleared(context, removal, 0);
    } else {
        relay->own = !call;
        relay->removal = removal;
        relay->cleared = cleared;
        relay->context = context;
        exec_relay_begin(relay);
    }
}

bool exec_service_clear(struct exec_service *s, struct call *call, struct bytes key,
                        uint32_t workspace_flags, enum exec_clear how, exec_cleared *cleared,
                        void *context)
{
    struct workspace *workspace = NULL;
    if (store_workspace_find(s->store, key, workspace_flags, &workspace) < 0)
        return false;
    const struct cleared_workspace w = {.slot = workspace_slot(workspace),
                                        .thread_id = workspace_thread_id(workspace),
                                        .name = workspace_name(workspace)};
    clear_begin(s, call, &w, how, cleared, context);
    workspace_unref(workspace);
    return true;
}

void exec_service_clear_over(struct exec_service *s, const struct index_over *over,
                             exec_cleared *cleared, void *context)
{
    const struct cleared_workspace w = {.slot = over->slot,
                                        .thread_id = bytes_of(over->thread_id, over->thread_id_len),
                                        .name = over->name};
    clear_begin(s, NULL, &w, EXEC_CLEAR_ENDED, cleared, context);
}

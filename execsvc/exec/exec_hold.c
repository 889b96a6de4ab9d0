/* Holding a workspace: its commands stand still, or there are none, and none is started. */
#include "exec/relay.h"

#include <stdlib.h>

#include "base/log.h"
#include "keeper/keeper.h"

bool exec_is_held(const struct exec_service *s, uint32_t slot)
{
    const struct exec_hold *hold;
    LIST_FOREACH(hold, &s->holds, entry)
    {
        if (hold->slot == slot)
            return true;
    }
    return false;
}

static struct wire_message hold_message(const struct exec_hold *hold, struct bytes thread_id,
                                        uint32_t flags)
{
    return (struct wire_message){
        .type = WIRE_SNAPSHOT_CREATE,
        .snapshot_create = {.workspace_flags = hold->slot, .flags = flags, .workspace = thread_id}};
}

void exec_service_hold(struct exec_service *s, const struct exec_hold_options *options,
                       struct exec_hold **ret)
{
    struct workspace *workspace;
    if (store_workspace_find(s->store, options->workspace, options->workspace_flags, &workspace) <
        0) {
        options->held(options->context, 0, NULL);
        return;
    }
    struct exec_hold *hold = calloc(1, sizeof *hold);
    struct relay *relay = NULL;
    bool ask_keeper = exec_has_commands(s, workspace_name(workspace));
    if (hold) {
        *hold = (struct exec_hold){.service = s,
                                   .slot = workspace_slot(workspace),
                                   .frozen = options->freeze && ask_keeper,
                                   .held = options->held,
                                   .context = options->context};
        const struct wire_message m = hold_message(hold, workspace_thread_id(workspace),
                                                   options->freeze ? KEEPER_FREEZE : KEEPER_QUIET);
        relay = ask_keeper ? exec_relay_new(s, NULL, &m) : NULL;
    }
    workspace_unref(workspace);
    if (!hold || (ask_keeper && !relay)) {
        free(hold);
        options->held(options->context, -ENOMEM, NULL);
        return;
    }
    LIST_INSERT_HEAD(&s->holds, hold, entry);
    *ret = hold;
    if (!relay) {
        hold->held(hold->context, 0, NULL);
        return;
    }
    relay->hold = hold;
    hold->relay = relay;
    exec_relay_begin(relay);
}

static void begin_waiting(struct exec_service *s, uint32_t slot)
{
    struct relay *next;
    for (struct relay *r = TAILQ_FIRST(&s->relays); r; r = next) {
        next = TAILQ_NEXT(r, entry);
        if (r->waits_for != slot)
            continue;
        r->waits_for = 0;
        exec_relay_begin(r);
    }
}

/* A keeper that has gone has let them go on. */
static void thaw(struct exec_service *s, const struct exec_hold *hold)
{
    static const uint8_t nobody[1] = {'-'};
    const struct wire_message m = hold_message(hold, bytes_of(nobody, 1), KEEPER_THAW);
    uint64_t tag;
    if (!s->ready)
        return;
    if (session_request(link_session(s->link), &m, false, &tag) < 0)
        log_error("commands cannot be told to go on");
    link_flush(s->link);
}

void exec_hold_end(struct exec_hold *hold)
{
    if (!hold)
        return;
    struct exec_service *s = hold->service;
    if (s) {
        LIST_REMOVE(hold, entry);
        if (hold->frozen)
            thaw(s, hold);
        if (hold->relay) {
            /* Its answer comes to nobody. */
            hold->relay->hold = NULL;
            if (hold->relay->tag == 0)
                exec_relay_free(hold->relay);
        }
        if (!exec_is_held(s, hold->slot))
            begin_waiting(s, hold->slot);
    }
    free(hold);
}

/* --- whether there are any ----------------------------------------------------------------------
 */

static bool some_wait(const struct exec_service *s, uint32_t slot)
{
    const struct relay *r;
    TAILQ_FOREACH(r, &s->relays, entry)
    if (r->waits_for == slot)
        return true;
    return false;
}

static void question_end(struct exec_question *q, bool idle)
{
    LIST_REMOVE(q, entry);
    q->idle(q->context, idle);
    exec_hold_end(q->hold);
    free(q);
}

/* Those that wait for the hold have come before it. */
static void on_held(void *context, int error, const char *text)
{
    struct exec_question *q = context;
    question_end(q, error == 0 && !some_wait(q->service, q->slot));
}

void exec_service_ask_idle(struct exec_service *s, const struct workspace *workspace,
                           exec_idle_fn *idle, void *context)
{
    struct exec_question *q = NULL;
    if (s->link || !exec_has_commands(s, workspace_name(workspace)))
        q = malloc(sizeof *q);
    if (!q) {
        idle(context, false);
        return;
    }
    *q = (struct exec_question){
        .service = s, .slot = workspace_slot(workspace), .idle = idle, .context = context};
    LIST_INSERT_HEAD(&s->questions, q, entry);
    const struct exec_hold_options options = {
        .workspace = workspace_thread_id(workspace), .held = on_held, .context = q};
    exec_service_hold(s, &options, &q->hold);
}

void exec_end_questions(struct exec_service *s)
{
    struct exec_question *q;
    while ((q = LIST_FIRST(&s->questions)))
        question_end(q, false);
}

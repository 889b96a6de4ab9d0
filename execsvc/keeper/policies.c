/* Requests about what a workspace's commands may do. */
#include "base/cleanup.h"
#include "base/log.h"
#include "keeper/place.h"

/* Of the commands that go on as they were started, so many are named. */
#define KEPT_NAMED_MAX 100

static void reply(struct peer *p, uint64_t tag, int error, const char *why, const json_t *object)
{
    _cleanup_free_ char *text = error == 0 ? json_dumps(object, JSON_COMPACT) : NULL;
    const struct wire_message m = {.type = WIRE_EXEC_POLICY_REPLY,
                                   .exec_policy_reply.json = bytes_of_string(text)};
    if (text)
        peer_send(p, tag, &m);
    else
        peer_send_error(p, tag, error < 0 ? error : -ENOMEM, why);
}

void policy_tell(struct keeper *k, struct peer *p, uint64_t tag, const struct wire_exec_policy *m)
{
    json_t *object = json_object();
    int r = object ? place_describe(k, m->workspace, object) : -ENOMEM;
    reply(p, tag, r, NULL, object);
    json_decref(object);
}

static int add_kept(const struct keeper *k, const struct wire_exec_policy_set *m, bool at_once,
                    json_t *object)
{
    json_t *names = json_array();
    json_int_t count = 0;
    const struct kept *c;
    int r = json_object_set_new(object, "kept", names);
    TAILQ_FOREACH(c, &k->all, entry)
    {
        const struct wire_exec_command *i = &c->record.command;
        if (at_once || !c->command || !kept_is_of(c, m->workspace, m->workspace_flags))
            continue;
        char id[4 * WIRE_EXEC_ID_MAX + 4];
        if (count++ < KEPT_NAMED_MAX)
            r |= json_array_append_new(
                names, json_string(log_escape(i->id.data, i->id.len, id, sizeof id)));
    }
    r |= json_object_set_new(object, "kept_count", json_integer(count));
    return r < 0 ? -ENOMEM : 0;
}

void policy_set(struct keeper *k, struct peer *p, uint64_t tag,
                const struct wire_exec_policy_set *m)
{
    struct failure failure = {.text = ""};
    bool at_once;
    json_t *object = json_object();
    int r = object ? place_change(k, m->workspace, m->policy, object, &at_once, &failure) : -ENOMEM;
    if (r == 0)
        r = add_kept(k, m, at_once, object);
    reply(p, tag, r, failure.text[0] ? failure.text : NULL, object);
    json_decref(object);
}

void policy_lift(struct keeper *k, struct peer *p, uint64_t tag, const struct wire_exec_lift *m)
{
    static const struct wire_message done = {.type = WIRE_OK};
    int r = place_lift(k, m->workspace);
    if (r == 0)
        peer_send(p, tag, &done);
    else
        peer_send_error(p, tag, r,
                        r == -ENOENT  ? "the workspace is not fenced"
                        : r == -EBUSY ? "commands of the workspace live; `berth kill` ends them"
                                      : NULL);
}

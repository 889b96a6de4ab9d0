#include "cli/exec_find.h"

#include <stdio.h>
#include <string.h>

#include "cli/held.h"
#include "cli/text.h"
#include "names/thread_id.h"

/* The elements of one answer. *after: the serial of the last. */
static int each_of(const struct wire_exec_commands *commands, exec_each_fn *each, void *context,
                   uint64_t *after, struct failure *f)
{
    uint32_t offset = 0;
    struct bytes element;
    while (wire_list_next(&commands->items, &offset, &element)) {
        struct wire_message m;
        if (wire_decode(WIRE_EXEC_COMMAND, element, &m) < 0 || m.exec_command.serial <= *after)
            return failure_set(f, -EPROTO, "the service's list of commands makes no sense");
        *after = m.exec_command.serial;
        int r = each(context, &m.exec_command);
        if (r < 0)
            return failure_set(f, r, "%s", strerror(-r));
    }
    return 0;
}

int exec_each(struct client *client, const char *workspace, const char *id, exec_each_fn *each,
              void *context, struct failure *ret_failure)
{
    uint64_t after = 0;
    bool more = true;
    char name[THREAD_NAME_MAX + 1] = "";
    int r = workspace ? thread_id_to_name(bytes_of_string(workspace), name) : 0;
    if (r < 0)
        return failure_set(ret_failure, r, "%s: that is no thread ID", workspace);
    while (r == 0 && more) {
        struct wire_frame *reply;
        uint64_t before = after;
        /* By its name: only there is one that does not exist no empty one. */
        const struct wire_message request = {
            .type = WIRE_EXEC_LIST,
            .exec_list = {.after = after,
                          .workspace_flags = workspace ? WIRE_WORKSPACE_BY_NAME : 0,
                          .workspace = bytes_of_string(name),
                          .id = bytes_of_string(id)}};
        struct failure f;
        r = cli_call(client, &request, &reply, &f);
        if (r == -ENOENT && workspace)
            return failure_set(ret_failure, r, "%s: %s", workspace, f.text);
        if (r < 0)
            return failure_set(ret_failure, r, "%s", f.text);
        r = each_of(&reply->message.exec_commands, each, context, &after, ret_failure);
        /* The last ones that were looked at may be such that we are not told of. */
        if (reply->message.exec_commands.after > after)
            after = reply->message.exec_commands.after;
        more = reply->message.exec_commands.more && after > before;
        wire_frame_free(reply);
    }
    return r;
}

struct search {
    struct exec_found *found;
    size_t count;
};

static int consider(void *context, const struct wire_exec_command *c)
{
    struct search *s = context;
    if (s->count++ > 0)
        return 0;
    s->found->workspace = text_copy(c->workspace);
    memcpy(s->found->id, c->id.data, c->id.len);
    s->found->id[c->id.len] = '\0';
    s->found->flags = c->flags;
    return s->found->workspace ? 0 : -ENOMEM;
}

struct prefix {
    const char *id;
    char found[WIRE_EXEC_ID_MAX + 1];
};

static int consider_prefix(void *context, const struct wire_exec_command *c)
{
    struct prefix *p = context;
    size_t len = strlen(p->id);
    if (!p->found[0] && c->id.len > len && memcmp(c->id.data, p->id, len) == 0 &&
        c->id.len < sizeof p->found)
        memcpy(p->found, c->id.data, c->id.len);
    return 0;
}

/* Only asked for by its workspace is it known whether there was one. */
static int tell_absent(struct client *client, const char *workspace, const char *id,
                       struct failure *ret_failure)
{
    const struct wire_message request = {
        .type = WIRE_EXEC_ATTACH,
        .exec_attach = {.workspace = bytes_of_string(workspace), .id = bytes_of_string(id)}};
    struct wire_frame *reply;
    struct failure f = {0};
    int r = workspace && workspace[0] ? cli_call(client, &request, &reply, &f) : -ENOENT;
    if (r == 0)
        wire_frame_free(reply); /* it has come meanwhile: whoever asks again finds it */
    if (r == -ESTALE)
        return failure_set(ret_failure, r,
                           "%s: it has ended so long ago that its verdict was forgotten", id);
    /* Part of an ID is never taken for it: another command could be killed. */
    struct prefix prefix = {.id = id};
    if (exec_each(client, workspace, NULL, consider_prefix, &prefix, &f) == 0 && prefix.found[0])
        return failure_set(ret_failure, -ENOENT,
                           "%s: no such command; %s begins so, and the whole ID is wanted", id,
                           prefix.found);
    return failure_set(ret_failure, -ENOENT, "%s: no such command%s; see `berth ps --all`", id,
                       workspace && workspace[0] ? " in this workspace" : "");
}

int exec_find(struct client *client, const char *workspace, const char *id, struct exec_found *ret,
              struct failure *ret_failure)
{
    _cleanup_exec_found_ struct exec_found found = {0};
    struct search search = {.found = &found};
    if (!id[0] || strlen(id) > WIRE_EXEC_ID_MAX)
        return failure_set(ret_failure, -EINVAL, "a command's ID has 1 to %d bytes",
                           WIRE_EXEC_ID_MAX);
    int r = exec_each(client, workspace, id, consider, &search, ret_failure);
    if (r < 0)
        return r;
    if (search.count == 0)
        return tell_absent(client, workspace, id, ret_failure);
    if (search.count > 1)
        return failure_set(ret_failure, -EEXIST, "%s: in several workspaces; name one with -w ID",
                           id);
    *ret = found;
    found = (struct exec_found){0};
    return 0;
}

int exec_find_held(const struct cli *cli, const char *workspace, const char *id, int error,
                   struct place *ret, struct failure *f)
{
    char why[FAILURE_TEXT_MAX];
    size_t left = 0;
    if (error != -ENOENT || workspace)
        return error;
    int r = held_find_command(cli, id, ret, &left);
    if (r > 0)
        return r;
    (void)snprintf(why, sizeof why, "%.200s", f->text);
    if (left > 0)
        (void)failure_set(f, error,
                          "%s; %zu workspace%s of providers not connected and not asked: -w ID "
                          "names one",
                          why, left, left == 1 ? " is" : "s are");
    return error;
}

void exec_found_release(struct exec_found *f)
{
    free(f->workspace);
    *f = (struct exec_found){0};
}

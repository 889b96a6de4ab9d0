#include "cli/tree_call.h"

#include <string.h>

#include "config/config.h"
#include "gateway/upstream.h"
#include "stream/url.h"

struct tree_call {
    struct upstream *upstream;
    struct upstream_call *call; /* NULL: it is finished */
    struct wire_frame *frame;   /* of the items that were given last */
};

int tree_call_begin(struct cli *cli, const struct wire_message *request, struct tree_call **ret)
{
    struct failure failure;
    if (!cli_load_settings(cli))
        return -EINVAL;
    const struct stream_options options = client_settings_stream(&cli->settings);
    int r = stream_url_is_network(options.url) ? cli_need_network(cli, &failure) : 0;
    struct tree_call *call = r == 0 ? calloc(1, sizeof *call) : NULL;
    if (r == 0 && !call)
        r = failure_set(&failure, -ENOMEM, "out of memory");
    if (r == 0)
        r = upstream_open(&options, CLI_AGENT, &call->upstream, &failure);
    if (r == 0) {
        r = upstream_start(call->upstream, request, &call->call);
        if (r < 0)
            (void)failure_set(&failure, r, "%s", strerror(-r));
    }
    if (r < 0) {
        cli_error(cli, "%s", failure.text);
        tree_call_drop(call);
        return r;
    }
    *ret = call;
    return 0;
}

void tree_call_drop(struct tree_call *call)
{
    if (!call)
        return;
    wire_frame_free(call->frame);
    if (call->call)
        upstream_drop(call->call, 0);
    upstream_free(call->upstream);
    free(call);
}

static int send_items(struct tree_call *call, const struct wire_list *items, bool end)
{
    const struct wire_message m = {.type = WIRE_TREE_IN, .tree_in = {.end = end, .items = *items}};
    for (;;) {
        int r = upstream_send(call->call, &m);
        if (r == -ENOENT || (r == -EAGAIN && upstream_is_answered(call->call)))
            return -ECANCELED;
        if (r != -EAGAIN)
            return r;
        r = upstream_wait(call->upstream, -1);
        if (r < 0)
            return r;
    }
}

int tree_call_part(void *call, const struct wire_list *items)
{
    return send_items(call, items, false);
}

int tree_call_end_items(struct tree_call *call)
{
    const struct wire_list none = {0};
    return send_items(call, &none, true);
}

int tree_call_next(struct tree_call *call, struct wire_list *ret, uint64_t *ret_total)
{
    wire_frame_free(call->frame);
    call->frame = NULL;
    int r = upstream_next(call->call, -1, &call->frame);
    if (r <= 0)
        return r;
    *ret = call->frame->message.tree_out.items;
    *ret_total = call->frame->message.tree_out.total;
    return 1;
}

int tree_call_finish(struct tree_call *call, struct wire_frame **ret, struct failure *ret_failure)
{
    int r = upstream_finish(take_ptr(call->call), ret, ret_failure);
    tree_call_drop(call);
    return r;
}

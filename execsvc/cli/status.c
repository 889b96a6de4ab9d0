#include "cli/status.h"

int status_ask(struct client *client, json_t **ret, struct failure *ret_failure)
{
    struct wire_frame *reply;
    const struct wire_message request = {.type = WIRE_STATUS};
    int r = cli_call(client, &request, &reply, ret_failure);
    if (r < 0)
        return r;
    struct bytes text = reply->message.status_reply.json;
    json_t *object = json_loadb((const char *)text.data, text.len, 0, NULL);
    wire_frame_free(reply);
    if (!json_is_object(object)) {
        json_decref(object);
        return failure_set(ret_failure, -EPROTO, "the service's answer makes no sense");
    }
    *ret = object;
    return 0;
}

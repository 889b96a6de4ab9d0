#include "prune.h"

#include "coherence.h"
#include "join.h"

#define TELL_TIMEOUT_MS 10000

int prune_tell(struct client *client, const struct visibility_rules *rules, struct failure *f)
{
    if (!rules)
        return 0;
    const struct wire_message m = {.type = WIRE_VISIBILITY,
                                   .visibility.rules = visibility_rules_text(rules)};
    struct wire_frame *frame = NULL;
    struct failure why;
    int r = client_call_sync(client, &m, TELL_TIMEOUT_MS, &frame, &why);
    if (r < 0)
        return failure_set(f, r, "the service does not take the mount's rules: %s", why.text);
    wire_frame_free(frame);
    return 0;
}

/* In force from here on; what the kernel asks next is answered by them. */
static void told(struct request *r, int error, const struct wire_message *reply)
{
    struct driver *d = r->driver;
    struct visibility_rules *rules = r->context;
    if (error < 0) {
        visibility_rules_unref(rules);
        request_fail(r, error);
        return;
    }
    visibility_rules_unref(d->rules);
    d->rules = rules;
    coherence_forget(d);
    request_reply_ok(r);
}

void prune_set(fuse_req_t req, struct bytes text)
{
    const struct driver *d = request_driver(req);
    const struct fuse_ctx *caller = fuse_req_ctx(req);
    struct visibility_rules *rules = NULL;
    struct failure failure;
    int error = caller->uid != 0 && caller->uid != d->uid ? -EPERM : 0;
    if (error == 0 && text.len)
        error = visibility_rules_parse(text, &rules, &failure);
    if (error < 0) {
        (void)fuse_reply_err(req, -error);
        return;
    }
    if (d->join) {
        join_set_rules(req, rules);
        return;
    }
    struct request *r = request_start(req, WIRE_VISIBILITY, NULL, NULL);
    if (!r) {
        visibility_rules_unref(rules);
        return;
    }
    error = buffer_append(&r->storage, text.data, text.len);
    if (error < 0) {
        visibility_rules_unref(rules);
        request_fail(r, error);
        return;
    }
    r->context = rules;
    r->message.visibility.rules = buffer_view(&r->storage);
    request_send(r, told);
}

/* Routes of archives: the files of a workspace or a snapshot as tar, and a workspace from one.
 * Neither is ever whole in memory. */
#include "gateway/archives.h"

#include <errno.h>
#include <string.h>

#include "archive/pack.h"
#include "archive/unpack.h"
#include "gateway/documents.h"
#include "gateway/routes.h"

/* --- out ------------------------------------------------------------------------------------- */

static const struct {
    const char *word;
    const char *type;
    enum pack_compression compression;
} formats[] = {
    {"tar", "application/x-tar", PACK_PLAIN},
    {"tar.zst", "application/zstd", PACK_ZSTD},
    {"tar.gz", "application/gzip", PACK_GZIP},
};

static int sink_write(void *context, const void *data, size_t len)
{
    return exchange_write(context, data, len);
}

static int pack_items(struct upstream_call *call, struct pack *p, struct failure *f)
{
    struct wire_frame *item;
    int r;
    while ((r = upstream_next(call, -1, &item)) > 0) {
        if (item->message.type == WIRE_TREE_OUT)
            r = pack_list(p, &item->message.tree_out.items, f);
        wire_frame_free(item);
        if (r < 0)
            return r;
    }
    return r < 0 ? failure_set(f, r, "%s", strerror(-r)) : 0;
}

/* Takes call. The answer begins when the service has begun: what it refuses is a problem. */
static int send_tree(struct exchange *x, struct upstream_call *call, size_t format,
                     struct failure *f)
{
    _cleanup_pack_ struct pack *p = NULL;
    const struct pack_sink sink = {.write = sink_write, .context = x};
    struct pack_counts counts;
    struct wire_frame *reply;
    struct wire_frame *first = NULL;
    int r = upstream_next(call, -1, &first);
    if (r == 0 && (r = upstream_finish(call, &reply, f)) < 0)
        return r;
    if (r == 0)
        wire_frame_free(reply); /* an empty tree has its root at least: this is none */
    bool open = first;
    if (r >= 0)
        r = exchange_begin(x, 200, formats[format].type, EXCHANGE_STREAM);
    if (r >= 0 && exchange_is_head(x)) {
        wire_frame_free(first);
        if (open)
            upstream_drop(call, 0);
        return 0;
    }
    if (r >= 0)
        r = pack_new(formats[format].compression, &sink, &p);
    if (r < 0)
        (void)failure_set(f, r, "%s", strerror(-r));
    if (r >= 0 && first)
        r = pack_list(p, &first->message.tree_out.items, f);
    wire_frame_free(first);
    if (r >= 0 && open)
        r = pack_items(call, p, f);
    if (r < 0) {
        if (open)
            upstream_drop(call, 0);
        return r;
    }
    if (open && (r = upstream_finish(call, &reply, f)) < 0)
        return r;
    if (open)
        wire_frame_free(reply);
    return pack_finish(p, &counts, f);
}

static int export_tree(struct exchange *x, struct wire_message *m, struct failure *f)
{
    const char *word = exchange_query(x, "format");
    struct upstream *u;
    struct upstream_call *call;
    size_t format = 0;
    while (word && format < ARRAY_SIZE(formats) && strcmp(formats[format].word, word) != 0)
        format++;
    if (format == ARRAY_SIZE(formats))
        return failure_set(f, -EINVAL, "format is tar, tar.zst or tar.gz");
    m->type = WIRE_TREE_EXPORT;
    int r = exchange_upstream(x, &u, f);
    if (r < 0)
        return r;
    r = upstream_start(u, m, &call);
    return r < 0 ? failure_set(f, r, "the request cannot be sent: %s", strerror(-r))
                 : send_tree(x, call, format, f);
}

int archives_export(struct exchange *x, struct failure *f)
{
    struct wire_message m = {0};
    int r = document_key(x, &m.tree_export.workspace, &m.tree_export.workspace_flags, f);
    return r < 0 ? r : export_tree(x, &m, f);
}

int archives_export_snapshot(struct exchange *x, struct failure *f)
{
    struct wire_message m = {.tree_export.snapshot = exchange_param(x, 0)};
    if (m.tree_export.snapshot.len > WIRE_SNAPSHOT_ID_MAX)
        return failure_set(f, -ENAMETOOLONG, "an ID is at most %d bytes", WIRE_SNAPSHOT_ID_MAX);
    return export_tree(x, &m, f);
}

/* --- in -------------------------------------------------------------------------------------- */

struct import {
    struct exchange *exchange;
    struct upstream *upstream;
    struct upstream_call *call;
    struct failure *failure; /* of reading or sending: its text is better than an errno's */
};

static ssize_t source_read(void *context, const void **ret_data)
{
    struct import *i = context;
    struct bytes part;
    int r = exchange_next(i->exchange, &part, i->failure);
    if (r <= 0)
        return r;
    *ret_data = part.data;
    return (ssize_t)part.len;
}

/* Waits for credit. -ENOENT: the service has answered already. */
static int send_part(struct import *i, const struct wire_message *m)
{
    for (;;) {
        int r = upstream_send(i->call, m);
        if (r != -EAGAIN)
            return r;
        r = upstream_wait(i->upstream, -1);
        if (r < 0)
            return failure_set(i->failure, r, "%s", strerror(-r));
    }
}

static int sink_part(void *context, const struct wire_list *items)
{
    const struct wire_message m = {.type = WIRE_TREE_IN, .tree_in.items = *items};
    return send_part(context, &m);
}

bool archives_is_one(const struct exchange *x)
{
    const char *type = exchange_field(x, "content-type");
    size_t len = type ? strcspn(type, "; \t") : 0;
    for (size_t i = 0; i < ARRAY_SIZE(formats); i++)
        if (type && strlen(formats[i].type) == len && strncmp(type, formats[i].type, len) == 0)
            return true;
    return false;
}

int archives_import(struct exchange *x, const struct wire_message *create, struct wire_frame **ret,
                    struct failure *f)
{
    struct failure detail = {.text = ""};
    struct import i = {.exchange = x, .failure = &detail};
    const struct unpack_source source = {.read = source_read, .context = &i};
    const struct tree_sink sink = {.part = sink_part, .context = &i};
    const struct wire_message end = {.type = WIRE_TREE_IN, .tree_in.end = 1};
    struct unpack_counts counts;
    int r = exchange_upstream(x, &i.upstream, f);
    if (r < 0)
        return r;
    r = upstream_start(i.upstream, create, &i.call);
    if (r < 0)
        return failure_set(f, r, "the request cannot be sent: %s", strerror(-r));
    /* It may be there already, or not be this caller's to make: then nobody needs the files. */
    r = upstream_next(i.call, 0, ret);
    if (r == 1)
        wire_frame_free(*ret);
    r = upstream_is_answered(i.call) ? -ENOENT : unpack_run(&source, &sink, &counts, f);
    if (r == 0 && counts.skipped > 0)
        r = failure_set(
            f, -EINVAL,
            "the archive has device nodes, or other entries that no workspace can have");
    if (r == 0)
        r = send_part(&i, &end);
    if (r < 0 && !upstream_is_answered(i.call)) {
        upstream_drop(i.call, 0);
        if (detail.text[0])
            *f = detail;
        return r;
    }
    return upstream_finish(i.call, ret, f);
}

/* /files and /health of E2B's daemon: whole files up and down, and URLs that their owner has
 * signed. */
#include "gateway/e2b_request.h"
#include "gateway/routes.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <zlib.h>

#include "access/issued.h"
#include "base/base64.h"
#include "gateway/file.h"
#include "gateway/multipart.h"

/* Files of one upload. Bounds its answer. */
#define UPLOADS_MAX 10000

/* --- signatures ------------------------------------------------------------------------------- */

static int bad_signature(struct exchange *x)
{
    return exchange_refuse(x, 401, "the signature has not the form of one");
}

/* A request with a signature in its query is its signer's, for this file alone. It does not say
 * which workspace: the service finds out. 0; 1: there is none. */
static int take_signature(struct exchange *x, bool writes, struct failure *f)
{
    static const char prefix[] = "v1_";
    const char *text = exchange_query(x, "signature"), *path = exchange_query(x, "path");
    const char *user = exchange_query(x, "username");
    struct signed_request request = {.writes = writes};
    _cleanup_buffer_ struct buffer token = {0};
    uint8_t bytes[64];
    size_t n = 0;
    if (!text)
        return 1;
    size_t skip = sizeof prefix - 1, path_len = path ? strlen(path) : 0;
    size_t len = strlen(text), user_len = user ? strlen(user) : 0;
    if (strncmp(text, prefix, skip) != 0 || len - skip > base64_size(SIGNATURE_SIZE) ||
        base64_read(bytes_of(text + skip, len - skip), bytes, &n) < 0 || n != SIGNATURE_SIZE ||
        path_len > SIGNED_PATH_MAX || user_len > SIGNED_USER_MAX || (user && strchr(user, ':')))
        return bad_signature(x);
    memcpy(request.signature, bytes, n);
    request.path_len = path_len;
    request.user_len = user_len;
    memcpy(request.path, path ? path : "", path_len);
    memcpy(request.user, user ? user : "", user_len);
    int r = exchange_query_u64(x, "signature_expiration", 1, 99999999999, &request.expires, f);
    if (r == 0)
        r = signed_request_format(&request, &token);
    if (r == 0)
        r = buffer_append(&token, "", 1);
    return r < 0 ? r : exchange_set_token(x, (const char *)token.data);
}

/* The workspace that this connection is for alone. */
static int own_workspace(struct upstream *u, struct wire_frame **ret, struct failure *f)
{
    const struct wire_message m = {.type = WIRE_ACCESS};
    int r = upstream_call(u, &m, ret, f);
    if (r == 0 && (*ret)->message.access_reply.thread_id.len == 0) {
        wire_frame_free(take_ptr(*ret));
        r = failure_set(f, -EINVAL, "which sandbox? E2b-Sandbox-Id is missing");
    }
    return r;
}

static int open_tree(struct exchange *x, bool writes, struct tree **ret, struct failure *f)
{
    struct upstream *u;
    struct wire_frame *access = NULL;
    int r = e2b_check_user(x, f);
    if (r == 0)
        r = take_signature(x, writes, f);
    if (r < 0)
        return r;
    if (r == 1 && e2b_workspace(x).len > 0)
        return e2b_open_tree(x, ret, f);
    r = exchange_upstream(x, &u, f);
    if (r == 0)
        r = own_workspace(u, &access, f);
    if (r == 0)
        r = tree_open(u, access->message.access_reply.thread_id, 0, ret, f);
    if (access)
        wire_frame_free(access);
    return r;
}

/* --- down ------------------------------------------------------------------------------------- */

int e2b_files_get(struct exchange *x, struct failure *ret_failure)
{
    _cleanup_tree_ struct tree *tree = NULL;
    _cleanup_place_ struct place p = {0};
    _cleanup_reader_ struct file_reader *reader = NULL;
    const char *name = exchange_query(x, "path");
    struct bytes path, data;
    int r = open_tree(x, false, &tree, ret_failure);
    if (r == 0 && !name)
        r = failure_set(ret_failure, -EINVAL, "path is missing");
    if (r == 0)
        r = e2b_take_path(name, false, &path, ret_failure);
    if (r == 0)
        r = file_walk_reader(tree, path, &p, &reader, ret_failure);
    if (r == -EISDIR)
        r = failure_set(ret_failure, -EINVAL, "path '%s' is a directory", name);
    if (r < 0)
        return r;
    uint64_t size = file_attr(reader)->size;
    file_seek(reader, 0, size);
    r = exchange_begin(x, 200, "application/octet-stream", size);
    while (r == 0 && !exchange_is_head(x) && (r = file_next(reader, &data, ret_failure)) > 0)
        r = exchange_write(x, data.data, data.len);
    return r;
}

/* --- up --------------------------------------------------------------------------------------- */

struct upload {
    struct exchange *x;
    struct tree *tree;
    struct failure *failure;
    const char *path; /* of the query, or NULL */
    json_t *metadata; /* or NULL */
    json_t *written;
    /* the file that is being written; NULL: a part that is none */
    struct place place;
    struct file_writer *writer;
    /* gzip */
    bool inflating, inflated;
    z_stream zip;
    struct multipart *multipart; /* or NULL: the body is the file */
};

static void upload_release(struct upload *u)
{
    file_writer_free(u->writer);
    path_release(&u->place);
    multipart_free(u->multipart);
    json_decref(u->written);
    json_decref(u->metadata);
    if (u->inflating)
        (void)inflateEnd(&u->zip);
}
#define _cleanup_upload_ _cleanup_(upload_release)

static int begin_file(struct upload *u, const char *name)
{
    const struct file_write_options options = {.mode = 0644, .lazy = true};
    struct bytes path;
    if (json_array_size(u->written) >= UPLOADS_MAX)
        return failure_set(u->failure, -E2BIG, "more than %d files", UPLOADS_MAX);
    int r = e2b_take_path(name, true, &path, u->failure);
    exchange_set_effect(u->x, EXCHANGE_EFFECT_UNKNOWN);
    if (r == 0)
        r = path_walk(u->tree, path, PATH_FOLLOW | PATH_MAY_LACK | PATH_MAKE_PARENTS, &u->place,
                      u->failure);
    if (r == 0 && u->place.node && S_ISDIR(u->place.attr.mode))
        r = failure_set(u->failure, -EISDIR, "path '%s' is a directory", name);
    return r < 0 ? r : file_create(u->tree, &u->place, &options, &u->writer, u->failure);
}

static int set_attribute(struct tree *t, uint64_t node, const char *key, const char *value,
                         struct failure *f)
{
    char name[WIRE_NAME_MAX + 1];
    struct wire_frame *frame;
    (void)snprintf(name, sizeof name, "user.e2b.%s", key);
    const struct wire_message m = {
        .type = WIRE_SETXATTR,
        .setxattr = {.node = node, .name = bytes_of_string(name), .value = bytes_of_string(value)}};
    int r = tree_call(t, &m, &frame, f);
    if (r == 0)
        wire_frame_free(frame);
    return r;
}

static int end_file(struct upload *u)
{
    _cleanup_buffer_ struct buffer path = {0};
    _cleanup_place_ struct place now = {0};
    const char *key;
    json_t *value;
    bool made, placed;
    int r = file_commit(u->writer, &u->place.attr, &made, &placed, u->failure);
    if (r == 0 && u->metadata)
        r = path_walk(u->tree, buffer_view(&u->place.path), 0, &now, u->failure);
    if (r == 0 && u->metadata)
        json_object_foreach(u->metadata, key, value) if (r == 0) r =
            set_attribute(u->tree, now.node, key, json_string_value(value), u->failure);
    if (r == 0)
        r = e2b_show_path(&path, buffer_view(&u->place.path));
    if (r < 0)
        return r;
    const char *slash = strrchr((const char *)path.data, '/');
    json_t *entry =
        json_pack("{s:o,s:s,s:o}", "name", e2b_string(bytes_of_string(slash + 1)), "type", "file",
                  "path", e2b_string(bytes_of_string((const char *)path.data)));
    if (entry && u->metadata)
        (void)json_object_set(entry, "metadata", u->metadata);
    file_writer_free(take_ptr(u->writer));
    path_release(&u->place);
    return json_array_append_new(u->written, entry) < 0 ? -ENOMEM : 0;
}

static int on_part(void *context, const struct multipart_part *part)
{
    struct upload *u = context;
    if (strcmp(part->name, "file") != 0)
        return 0;
    const char *name = u->path ? u->path : part->filename;
    if (!name)
        return failure_set(u->failure, -EINVAL, "a file has neither a path nor a name");
    if (u->path && json_array_size(u->written) > 0)
        return failure_set(u->failure, -EINVAL, "two files for one path");
    return begin_file(u, name);
}

static int on_content(void *context, struct bytes data)
{
    struct upload *u = context;
    return u->writer ? file_write(u->writer, data, u->failure) : 0;
}

static int on_part_end(void *context)
{
    struct upload *u = context;
    return u->writer ? end_file(u) : 0;
}

/* Of the body, without its compression. */
static int take(struct upload *u, struct bytes data)
{
    int r = u->multipart ? multipart_feed(u->multipart, data) : on_content(u, data);
    if (u->multipart && (r == -EBADMSG || r == -EMSGSIZE) && !*u->failure->text)
        r = failure_set(u->failure, -EBADMSG, "the body is not multipart/form-data as it says");
    return r;
}

static int inflate_some(struct upload *u, uint8_t *out, size_t size)
{
    u->zip.next_out = out;
    u->zip.avail_out = (uInt)size;
    int z = u->inflated ? Z_DATA_ERROR : inflate(&u->zip, Z_NO_FLUSH);
    if (z != Z_OK && z != Z_STREAM_END && z != Z_BUF_ERROR)
        return failure_set(u->failure, -EBADMSG, "the body is not gzip, as it says");
    u->inflated = z == Z_STREAM_END;
    size_t len = size - u->zip.avail_out;
    return len > 0 ? take(u, bytes_of(out, len)) : 0;
}

static int take_compressed(struct upload *u, struct bytes data)
{
    uint8_t out[65536];
    int r = 0;
    u->zip.next_in = (Bytef *)(uintptr_t)data.data;
    u->zip.avail_in = (uInt)data.len;
    /* One that was filled may not have been all. */
    do {
        r = inflate_some(u, out, sizeof out);
    } while (r == 0 && (u->zip.avail_in > 0 || (u->zip.avail_out == 0 && !u->inflated)));
    u->zip.next_out = NULL;
    return r;
}

static int take_body(struct upload *u)
{
    struct bytes data;
    int r;
    while ((r = exchange_next(u->x, &data, u->failure)) > 0) {
        r = u->inflating ? take_compressed(u, data) : take(u, data);
        if (r < 0)
            return r;
    }
    if (r == 0 && u->inflating && !u->inflated)
        r = failure_set(u->failure, -EBADMSG, "the compressed body ends early");
    if (r == 0 && u->multipart && !multipart_is_complete(u->multipart))
        r = failure_set(u->failure, -EBADMSG, "the body ends before its last boundary");
    return r;
}

static int begin_body(struct upload *u, struct failure *f)
{
    const char *type = exchange_field(u->x, "content-type");
    const char *encoding = exchange_field(u->x, "content-encoding");
    const struct multipart_events events = {
        .begin = on_part, .content = on_content, .end = on_part_end, .context = u};
    if (encoding && strcasecmp(encoding, "gzip") == 0) {
        if (inflateInit2(&u->zip, 15 + 16) != Z_OK)
            return failure_set(f, -ENOMEM, "out of memory");
        u->inflating = true;
    } else if (encoding && strcasecmp(encoding, "identity") != 0) {
        return failure_set(f, -EINVAL, "Content-Encoding can be gzip");
    }
    if (type && strncasecmp(type, "application/octet-stream", 24) == 0)
        return u->path ? begin_file(u, u->path) : failure_set(f, -EINVAL, "path is missing");
    int r = multipart_new(type, &events, &u->multipart);
    return r == -EINVAL ? failure_set(f, r,
                                      "Content-Type must be multipart/form-data, with a boundary, "
                                      "or application/octet-stream")
                        : r;
}

/* X-Metadata-NAME: VALUE; names come in whatever case, and are kept in lower case. */
static int take_metadata(struct upload *u, struct failure *f)
{
    static const char prefix[] = "x-metadata-";
    const char *name, *value;
    for (size_t i = 0; exchange_field_at(u->x, i, &name, &value); i++) {
        size_t len = sizeof prefix - 1;
        if (strncasecmp(name, prefix, len) != 0 || !name[len])
            continue;
        char key[WIRE_NAME_MAX];
        size_t n = 0;
        for (; name[len + n] && n < sizeof key - 16; n++)
            key[n] = (char)tolower((unsigned char)name[len + n]);
        key[n] = '\0';
        if (!u->metadata)
            u->metadata = json_object();
        if (json_object_set_new(u->metadata, key, e2b_string(bytes_of_string(value))) < 0)
            return failure_set(f, -ENOMEM, "out of memory");
    }
    return 0;
}

int e2b_files_post(struct exchange *x, struct failure *ret_failure)
{
    _cleanup_tree_ struct tree *tree = NULL;
    _cleanup_upload_ struct upload u = {.x = x, .failure = ret_failure, .written = json_array()};
    u.path = exchange_query(x, "path");
    if (u.path && !*u.path)
        u.path = NULL;
    int r = open_tree(x, true, &tree, ret_failure);
    u.tree = tree;
    if (r == 0)
        r = take_metadata(&u, ret_failure);
    if (r == 0)
        r = begin_body(&u, ret_failure);
    if (r == 0)
        r = take_body(&u);
    if (r == 0 && u.writer)
        r = end_file(&u);
    if (r == 0 && json_array_size(u.written) == 0)
        r = failure_set(ret_failure, -EINVAL, "the body has no part named file");
    return r < 0 ? r : exchange_reply_json(x, 200, take_ptr(u.written));
}

/* --- health ----------------------------------------------------------------------------------- */

/* Of the sandbox that is named; who names none asks about us. One that is gone, or stopped, is
 * answered as E2B's own edge does: 502. */
int e2b_health(struct exchange *x, struct failure *ret_failure)
{
    struct bytes workspace = e2b_workspace(x);
    struct upstream *u;
    struct wire_frame *frame;
    if (workspace.len == 0)
        return exchange_reply_empty(x, 204);
    int r = e2b_enter(x, &u, &workspace, ret_failure);
    if (r < 0)
        return r;
    const struct wire_message m = {.type = WIRE_WORKSPACE_GET, .workspace_get = {.key = workspace}};
    r = upstream_call(u, &m, &frame, ret_failure);
    if (r == -ENOENT)
        return exchange_refuse(x, 502, "there is no such sandbox");
    if (r < 0)
        return r;
    bool running = frame->message.workspace.state != WIRE_WORKSPACE_STOPPED;
    wire_frame_free(frame);
    return running ? exchange_reply_empty(x, 204)
                   : exchange_refuse(x, 502, "the sandbox is paused");
}

#include "gateway/e2b_request.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "base/base64.h"
#include "gateway/file.h"

/* --- which workspace, and who ----------------------------------------------------------------- */

struct bytes e2b_workspace(struct exchange *x)
{
    const char *id = exchange_field(x, "e2b-sandbox-id"), *host = exchange_field(x, "host");
    if (id && *id)
        return bytes_of_string(id);
    size_t digits = host ? strspn(host, "0123456789") : 0;
    const char *dot = host ? strchr(host, '.') : NULL;
    if (digits == 0 || digits > 5 || host[digits] != '-' || !dot)
        return (struct bytes){0};
    id = host + digits + 1;
    return bytes_of(id, (size_t)(dot - id));
}

static bool is_own_user(const char *name)
{
    return *name == '\0' || strcmp(name, "user") == 0 || strcmp(name, "root") == 0;
}

/* Of "Basic base64(USER:)": in ret, which is as long as what is given. False: it is not one. */
static bool basic_user(const char *authorization, char *ret)
{
    static const char scheme[] = "basic ";
    size_t n;
    if (!authorization || strncasecmp(authorization, scheme, sizeof scheme - 1) != 0)
        return false;
    const char *text = authorization + sizeof scheme - 1;
    if (base64_read(bytes_of_string(text + strspn(text, " ")), (uint8_t *)ret, &n) < 0)
        n = 0;
    ret[n] = '\0';
    ret[strcspn(ret, ":")] = '\0';
    return true;
}

int e2b_check_user(struct exchange *x, struct failure *ret_failure)
{
    const char *authorization = exchange_field(x, "authorization");
    const char *username = exchange_query(x, "username");
    _cleanup_free_ char *name = malloc(authorization ? strlen(authorization) + 4 : 1);
    if (!name)
        return failure_set(ret_failure, -ENOMEM, "out of memory");
    if (basic_user(authorization, name) && !is_own_user(name))
        username = name;
    if (username && !is_own_user(username))
        return failure_set(ret_failure, -EINVAL,
                           "user '%s': there is one user alone, whom user and root both mean",
                           username);
    return 0;
}

static bool has_token(const struct exchange *x)
{
    const char *authorization = exchange_field(x, "authorization");
    return exchange_field(x, "x-access-token") || exchange_field(x, "x-api-key") ||
           (authorization && strncasecmp(authorization, "bearer ", 7) == 0);
}

/* Debug mode makes no sandbox before it uses it. Who may not make one finds it or not. */
static int make(struct upstream *u, struct bytes workspace, struct failure *f)
{
    struct wire_frame *frame;
    const struct wire_message m = {
        .type = WIRE_WORKSPACE_CREATE,
        .workspace_create = {.thread_id = workspace,
                             .labels = bytes_of_string("{\"" E2B_SANDBOX_LABEL "\":\"\"}")}};
    int r = upstream_call(u, &m, &frame, f);
    if (r == 0)
        wire_frame_free(frame);
    return r == -EACCES ? 0 : r;
}

int e2b_enter(struct exchange *x, struct upstream **ret, struct bytes *ret_workspace,
              struct failure *ret_failure)
{
    *ret_workspace = e2b_workspace(x);
    if (ret_workspace->len == 0)
        return failure_set(ret_failure, -EINVAL,
                           "which sandbox? E2b-Sandbox-Id is missing, and Host is not "
                           "PORT-ID.DOMAIN");
    int r = e2b_check_user(x, ret_failure);
    if (r == 0)
        r = exchange_upstream(x, ret, ret_failure);
    bool reads = strcmp(exchange_method(x), "GET") == 0;
    return r < 0 || reads || has_token(x) ? r : make(*ret, *ret_workspace, ret_failure);
}

int e2b_open_tree(struct exchange *x, struct tree **ret, struct failure *ret_failure)
{
    struct upstream *u;
    struct bytes workspace;
    int r = e2b_enter(x, &u, &workspace, ret_failure);
    return r < 0 ? r : tree_open(u, workspace, 0, ret, ret_failure);
}

/* --- paths ------------------------------------------------------------------------------------ */

/* What is behind prefix, if that is the path or a directory on its way. */
static const char *below(const char *path, const char *prefix)
{
    size_t len = strlen(prefix);
    return strncmp(path, prefix, len) == 0 && (path[len] == '/' || path[len] == '\0') ? path + len
                                                                                      : NULL;
}

int e2b_path(const char *path, struct bytes *ret)
{
    const char *rest = path;
    if (*path == '/') {
        while (path[1] == '/')
            path++;
        rest = below(path, E2B_HOME);
        if (!rest)
            rest = below(path, PATH_WORKSPACE);
    } else if (*path == '~') {
        rest = below(path, "~");
    }
    if (!rest)
        return -ENXIO;
    *ret = bytes_of_string(rest);
    return 0;
}

int e2b_take_path(const char *path, bool writes, struct bytes *ret, struct failure *ret_failure)
{
    int r = e2b_path(path, ret);
    if (r == -ENXIO)
        r = failure_set(ret_failure, writes ? -EINVAL : -ENOENT,
                        "%s is outside of " E2B_HOME
                        ", where the sandbox's files are: commands reach "
                        "it, this does not",
                        path);
    return r;
}

int e2b_show_path(struct buffer *b, struct bytes path)
{
    int r = buffer_append(b, E2B_HOME, sizeof E2B_HOME - 1);
    if (r == 0 && path.len > 0)
        r = buffer_append(b, "/", 1);
    if (r == 0)
        r = buffer_append(b, path.data, path.len);
    if (r == 0 && buffer_append(b, "", 1) == 0) {
        b->len--;
        return 0;
    }
    return -ENOMEM;
}

/* --- entries ---------------------------------------------------------------------------------- */

/* Where a link leads, if that is in the workspace; else its text. */
static int follow(struct tree *t, const struct place *link, struct place *behind,
                  struct buffer *text, bool *ret_found, struct failure *f)
{
    struct failure ignored;
    *ret_found = path_walk(t, buffer_view(&link->path), PATH_FOLLOW, behind, &ignored) == 0;
    if (*ret_found)
        return e2b_show_path(text, buffer_view(&behind->path));
    int r = file_link_text(t, link->node, text, f);
    return r < 0 ? r : buffer_append(text, "", 1);
}

/* Those of E2B's are attributes user.e2b.NAME. */
static json_t *metadata_of(struct tree *t, uint64_t node)
{
    static const char prefix[] = "user.e2b.";
    struct wire_frame *names, *value;
    struct failure f;
    const struct wire_message list = {.type = WIRE_LISTXATTR, .listxattr = {.node = node}};
    if (tree_call(t, &list, &names, &f) < 0)
        return NULL;
    json_t *all = json_object();
    struct bytes left = names->message.data.data;
    while (left.len > 0) {
        const char *name = (const char *)left.data;
        size_t len = strnlen(name, left.len);
        const struct wire_message get = {.type = WIRE_GETXATTR,
                                         .getxattr = {.node = node, .name = bytes_of(name, len)}};
        if (len > sizeof prefix - 1 && memcmp(name, prefix, sizeof prefix - 1) == 0 &&
            tree_call(t, &get, &value, &f) == 0) {
            const struct bytes data = value->message.data.data;
            (void)json_object_setn_new(all, name + sizeof prefix - 1, len - sizeof prefix + 1,
                                       e2b_string(data));
            wire_frame_free(value);
        }
        size_t skip = len < left.len ? len + 1 : len;
        left = bytes_of(left.data + skip, left.len - skip);
    }
    wire_frame_free(names);
    if (json_object_size(all) > 0)
        return all;
    json_decref(all);
    return NULL;
}

json_t *e2b_entry_at(struct tree *t, const struct place *p, struct failure *ret_failure)
{
    _cleanup_place_ struct place behind = {0};
    _cleanup_buffer_ struct buffer path = {0}, target = {0};
    bool link = S_ISLNK(p->attr.mode), found = false;
    int r = e2b_show_path(&path, buffer_view(&p->path));
    if (r == 0 && link)
        r = follow(t, p, &behind, &target, &found, ret_failure);
    json_t *metadata = r == 0 && S_ISREG(p->attr.mode) ? metadata_of(t, p->node) : NULL;
    const struct e2b_entry entry = {.path = (const char *)path.data,
                                    .target = link ? (const char *)target.data : NULL,
                                    .attr = &p->attr,
                                    .behind = found ? &behind.attr : NULL,
                                    .metadata = metadata};
    json_t *json = r == 0 ? e2b_entry_json(&entry) : NULL;
    json_decref(metadata);
    if (!json && (r == 0 || r == -ENOMEM))
        (void)failure_set(ret_failure, -ENOMEM, "out of memory");
    return json;
}

/* --- bodies ----------------------------------------------------------------------------------- */

int e2b_read(struct exchange *x, bool stream, json_t **ret, struct failure *ret_failure)
{
    _cleanup_buffer_ struct buffer body = {0};
    struct bytes message;
    int r = exchange_read_all(x, E2B_BODY_MAX, &body, ret_failure);
    if (r < 0)
        return r;
    message = buffer_view(&body);
    if (stream)
        r = connect_request_message(buffer_view(&body), &message);
    if (r < 0)
        return failure_set(ret_failure, r, "%s",
                           r == -EOPNOTSUPP ? "compressed frames are not taken"
                                            : "the body is not one frame of Connect");
    json_t *json = message.len == 0 ? json_object()
                                    : json_loadb((const char *)message.data, message.len,
                                                 JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
    if (!json_is_object(json)) {
        json_decref(json);
        return failure_set(ret_failure, -EINVAL, "the body is not a JSON object");
    }
    *ret = json;
    return 0;
}

/* --- streams ---------------------------------------------------------------------------------- */

void e2b_stream_release(struct e2b_stream_out *s)
{
    buffer_release(&s->json);
    buffer_release(&s->frame);
}

int e2b_send(struct e2b_stream_out *s, unsigned flags)
{
    s->frame.len = 0;
    int r = connect_append_frame(&s->frame, flags, buffer_view(&s->json));
    s->json.len = 0;
    return r < 0 ? r : exchange_write(s->x, s->frame.data, s->frame.len);
}

int e2b_end(struct e2b_stream_out *s, int error, const char *text)
{
    s->json.len = 0;
    int r = error < 0 ? buffer_printf(&s->json, "{\"error\":") : buffer_printf(&s->json, "{}");
    if (r == 0 && error < 0)
        r = e2b_error(&s->json, connect_code(error, 0), text);
    if (r == 0 && error < 0)
        r = buffer_printf(&s->json, "}");
    return r < 0 ? r : e2b_send(s, CONNECT_END);
}

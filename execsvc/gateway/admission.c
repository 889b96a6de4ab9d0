/* What a request may say to a route of ours: parameters of the query, and conditions. One that
 * nobody looks at is refused, since its sender relies on it. */
#include "gateway/private.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "gateway/conditions.h"

static const struct {
    exchange_handler *handler;
    bool conditional;     /* If-Match and If-None-Match are looked at */
    const char *names[6]; /* of its query */
} rules[] = {
    {workspaces_list, false, {"label", "state", "limit", "after"}},
    {workspaces_create, false, {"id", "ttl", "idle_ttl", "exclusive", "label"}},
    {workspaces_get, true, {"by"}},
    {workspaces_change, true, {"by"}},
    {workspaces_remove, false, {"by", "force"}},
    {workspaces_get_labels, true, {"by"}},
    {workspaces_put_labels, true, {"by"}},
    {workspaces_stop, true, {"by"}},
    {workspaces_start, true, {"by"}},
    {workspaces_get_policy, false, {"by"}},
    {workspaces_change_policy, false, {"by"}},
    {workspaces_lift_fence, false, {"by"}},
    {snapshots_list, false, {"limit", "after"}},
    {snapshots_list_of, false, {"by", "limit", "after"}},
    {snapshots_create, false, {"by"}},
    {snapshots_restore, false, {"by"}},
    {archives_export, false, {"by", "format"}},
    {archives_export_snapshot, false, {"format"}},
    {content_read, true, {NULL}},
    {content_write, true, {"mode", "append", "parents"}},
    {files_remove, true, {"recursive"}},
    {files_stat, false, {"follow"}},
    {files_list, false, {"depth", "limit", "after"}},
    {files_make_directory, false, {"parents"}},
    {changes_watch, false, {"recursive"}},
    {exec_list, false, {"limit", "after"}},
    {exec_attach, false, {"follow", "stdout", "stderr"}},
    {exec_input, false, {"end"}},
};

static bool is_named(const char *const *names, const char *name)
{
    for (; *names; names++)
        if (strcmp(*names, name) == 0)
            return true;
    return false;
}

/* Two readers of such a parameter might take another one each. */
static int check_once(const struct exchange *x, const char *const *names, struct failure *f)
{
    for (; *names; names++)
        if (strcmp(*names, "label") != 0 && exchange_query_nth(x, *names, 1))
            return failure_set(f, -EINVAL, "the parameter %s is given twice", *names);
    return 0;
}

int exchange_admit(struct exchange *x, struct failure *f)
{
    static const char *const nothing[] = {NULL};
    static const char *const e2b[] = {"path",     "username",  "signature", "signature_expiration",
                                      "metadata", "nextToken", "limit",     "sandboxID",
                                      NULL};
    const char *const *names = nothing;
    const char *at = (const char *)x->query.data;
    bool conditional = false;
    if (x->route->flags & (ROUTE_E2B | ROUTE_CONNECT | ROUTE_STREAM))
        return check_once(x, e2b, f);
    /* What is open to everybody may be asked with anything, as load balancers do. */
    if (x->route->flags & ROUTE_OPEN)
        return 0;
    for (size_t i = 0; i < ARRAY_SIZE(rules); i++)
        if (rules[i].handler == x->route->handler) {
            names = rules[i].names;
            conditional = rules[i].conditional;
        }
    for (size_t i = 0; i < x->query_count; i++) {
        if (!is_named(names, at))
            return failure_set(f, -EINVAL, "the parameter %.100s means nothing here", at);
        at += strlen(at) + 1;
        at += strlen(at) + 1;
    }
    int r = check_once(x, names, f);
    if (r < 0)
        return r;
    if (!conditional && (x->route->flags & ROUTE_CHANGES) &&
        (exchange_field(x, "if-match") || exchange_field(x, "if-none-match")))
        return failure_set(f, -EINVAL, "this can have no condition: If-Match, If-None-Match");
    /* A date cannot tell two changes within a second apart, so it would promise what does not hold.
     * With If-Match it is to be ignored (RFC 9110 13.1.4). */
    if ((x->route->flags & ROUTE_CHANGES) && exchange_field(x, "if-unmodified-since") &&
        !exchange_field(x, "if-match"))
        return exchange_refuse(x, 412, "no change can have If-Unmodified-Since; use If-Match");
    return 0;
}

int exchange_tags(struct exchange *x, const char *name, const char **ret, struct failure *f)
{
    struct buffer *list = &x->tags[strcmp(name, "if-match") != 0];
    const char *at, *value;
    *ret = NULL;
    list->len = 0;
    int r = 0;
    for (size_t i = 0; r == 0 && exchange_field_at(x, i, &at, &value); i++)
        if (strcmp(at, name) == 0)
            r = buffer_printf(list, "%s%s", list->len > 0 ? ", " : "", value);
    if (r == 0 && list->len == 0)
        return exchange_field(x, name) ? failure_set(f, -EINVAL, "%s is empty", name) : 0;
    if (r == 0)
        r = buffer_append_u8(list, 0);
    if (r < 0)
        return failure_set(f, r, "out of memory");
    if (!conditions_tags_valid((const char *)list->data))
        return failure_set(f, -EINVAL, "%s is * or entity tags, each in double quotes", name);
    *ret = (const char *)list->data;
    return 0;
}

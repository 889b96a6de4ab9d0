#include "cli/life.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"
#include "base/cleanup.h"
#include "base/units.h"
#include "cli/text.h"

bool life_add_label(json_t *labels, const char *word, bool removes)
{
    const char *equals = strchr(word, '=');
    size_t len = strlen(word);
    if (equals)
        return equals > word && json_object_setn_new(labels, word, (size_t)(equals - word),
                                                     json_string(equals + 1)) == 0;
    return removes && len > 1 && word[len - 1] == '-' &&
           json_object_setn_new(labels, word, len - 1, json_null()) == 0;
}

bool life_duration(const struct cli *cli, const char *option, const char *text, uint64_t *ret_ms)
{
    *ret_ms = 0;
    if (strcmp(text, "never") == 0 || (units_duration(text, LIFE_MAX_S, ret_ms) && *ret_ms > 0))
        return true;
    char *end;
    double n = strtod(text, &end);
    if (end == text || n < 0)
        (void)cli_usage_error(cli, "%s %s: neither a time (90, 30m, 12h, 7d, 1w) nor never", option,
                              text);
    else if (n > 0)
        (void)cli_usage_error(cli, "%s %s: not a time (90, 30m, 12h, 7d, 1w), or more than %d days",
                              option, text, (int)(LIFE_MAX_S / 86400));
    else
        (void)cli_usage_error(cli,
                              "%s %s: a time is more than 0; never is without an end, and `berth "
                              "rm` removes at once",
                              option, text);
    return false;
}

const char *life_state(uint32_t state)
{
    return state == WIRE_WORKSPACE_RUNNING   ? "running"
           : state == WIRE_WORKSPACE_STOPPED ? "stopped"
                                             : "?";
}

/* --- JSON ------------------------------------------------------------------------ */

static json_t *time_json(struct wire_time time)
{
    char when[64];
    if (time.sec == 0 && time.nsec == 0)
        return json_null();
    text_time(time.sec, true, when, sizeof when);
    return json_string(when);
}

static int set_thread_id(json_t *object, struct bytes id)
{
    _cleanup_buffer_ struct buffer hex = {0};
    if (text_is_utf8(id))
        return json_object_set_new(object, "thread_id",
                                   json_stringn((const char *)id.data, id.len));
    int r = text_hex(&hex, id);
    r |= json_object_set_new(object, "thread_id", json_null());
    r |=
        json_object_set_new(object, "thread_id_hex", json_stringn((const char *)hex.data, hex.len));
    return r;
}

json_t *life_json(const struct wire_workspace *w)
{
    json_t *labels = json_loadb((const char *)w->labels.data, w->labels.len, 0, NULL);
    json_t *object = json_object();
    int r = set_thread_id(object, w->thread_id);
    r |= json_object_set_new(object, "name", json_stringn((const char *)w->name.data, w->name.len));
    r |= json_object_set_new(object, "created_at", time_json(w->created_at));
    r |= json_object_set_new(object, "state", json_string(life_state(w->state)));
    r |= json_object_set_new(object, "labels", labels ? labels : json_object());
    r |= json_object_set_new(object, "expires_at", time_json(w->expires_at));
    r |= json_object_set_new(object, "idle_ttl",
                             w->idle_ms ? json_real((double)w->idle_ms / 1000) : json_null());
    r |= json_object_set_new(object, "used_at", time_json(w->used_at));
    r |= json_object_set_new(object, "revision", json_integer((json_int_t)w->revision));
    if (r == 0)
        return object;
    json_decref(object);
    return NULL;
}

/* --- calls ----------------------------------------------------------------------- */

int life_call(const struct cli *cli, struct client *client, const struct wire_workspace_set *q,
              struct wire_frame **ret)
{
    struct failure failure;
    struct wire_message request = {.type = WIRE_WORKSPACE_SET, .workspace_set = *q};
    if (q->valid == 0)
        request = (struct wire_message){.type = WIRE_WORKSPACE_GET,
                                        .workspace_get = {.flags = q->flags, .key = q->key}};
    int r = cli_call(client, &request, ret, &failure);
    if (r == -ENOENT)
        cli_error(cli, "there is no workspace %.*s; see `berth ls`", (int)q->key.len,
                  (const char *)q->key.data);
    else if (r < 0)
        cli_error(cli, "%.*s: %s", (int)q->key.len, (const char *)q->key.data, failure.text);
    return r;
}

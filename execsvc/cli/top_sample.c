#include "cli/top_sample.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "cli/exec_find.h"
#include "cli/exec_json.h"
#include "cli/life.h"
#include "cli/mounts.h"
#include "cli/status.h"
#include "cli/text.h"

#define PAGE 500

struct taking {
    struct top_source *source;
    struct client *client;
    double seconds; /* since the last sample; 0: this is the first */
    json_t *workspaces;
    json_t *by_id; /* their objects; owned by the array */
    json_t *commands;
    json_t *by_serial; /* likewise */
    json_t *egress;
    json_t *cpu_now, *trips_now;
    struct failure failure;
};

static double number(const json_t *object, const char *key)
{
    return json_number_value(json_object_get(object, key));
}

static int add_to(json_t *object, const char *key, double amount)
{
    double sum = number(object, key) + amount;
    return json_object_set_new(object, key, json_real(sum));
}

static int count_up(json_t *object, const char *key, json_int_t amount)
{
    json_int_t sum = json_integer_value(json_object_get(object, key)) + amount;
    return json_object_set_new(object, key, json_integer(sum));
}

/* --- workspaces ------------------------------------------------------------------------------ */

static json_t *workspace_new(struct taking *t, json_t *object, json_t *id)
{
    int r = json_object_set_new(object, "id", id);
    r |= json_object_set_new(object, "commands", json_integer(0));
    r |= json_object_set_new(object, "processes", json_integer(0));
    r |= json_object_set_new(object, "cpu_percent", json_real(0));
    r |= json_object_set_new(object, "memory_bytes", json_integer(0));
    r |= json_array_append(t->workspaces, object);
    const char *key = json_string_value(json_object_get(object, "id"));
    if (r == 0 && key)
        r = json_object_set(t->by_id, key, object);
    json_decref(object);
    return r == 0 ? object : NULL;
}

static int take_workspaces(struct taking *t)
{
    char after[WIRE_NAME_MAX + 1] = "";
    for (bool more = true; more && json_array_size(t->workspaces) < TOP_WORKSPACES_MAX;) {
        struct wire_frame *reply;
        const struct wire_message request = {
            .type = WIRE_WORKSPACE_LIST,
            .workspace_list = {.count = PAGE, .after = bytes_of_string(after)}};
        int r = cli_call(t->client, &request, &reply, &t->failure);
        if (r < 0)
            return r;
        uint32_t offset = 0;
        struct bytes element;
        const struct wire_workspaces *page = &reply->message.workspaces;
        while (r == 0 && wire_list_next(&page->items, &offset, &element)) {
            struct wire_message m;
            r = wire_decode(WIRE_WORKSPACE, element, &m);
            if (r < 0)
                break;
            json_t *object = life_json(&m.workspace);
            if (!object || !workspace_new(t, object, text_json_bytes(m.workspace.thread_id)))
                r = -ENOMEM;
            memcpy(after, m.workspace.name.data, m.workspace.name.len);
            after[m.workspace.name.len] = '\0';
        }
        more = page->more && page->items.count > 0;
        wire_frame_free(reply);
        if (r < 0)
            return failure_set(&t->failure, r, "the service's list makes no sense");
    }
    return 0;
}

/* --- commands -------------------------------------------------------------------------------- */

static int on_command(void *context, const struct wire_exec_command *c)
{
    struct taking *t = context;
    char serial[32];
    if (c->verdict != WIRE_VERDICT_RUNNING && c->processes == 0)
        return 0;
    (void)snprintf(serial, sizeof serial, "%" PRIu64, c->serial);
    json_t *object = exec_json(c);
    int r = json_object_set_new(object, "cpu_percent", json_null());
    r |= json_object_set_new(object, "cpu_ms", json_null());
    r |= json_object_set_new(object, "memory_bytes", json_null());
    r |= json_array_append(t->commands, object);
    r |= json_object_set(t->by_serial, serial, object);
    const char *id = json_string_value(json_object_get(object, "workspace"));
    json_t *workspace = id ? json_object_get(t->by_id, id) : NULL;
    if (r == 0 && !workspace)
        workspace = workspace_new(t, json_object(), text_json_bytes(c->workspace));
    r |= count_up(workspace, "commands", c->verdict == WIRE_VERDICT_RUNNING);
    r |= count_up(workspace, "processes", (json_int_t)c->processes);
    json_decref(object);
    return r ? -ENOMEM : 0;
}

/* As a share of one processor: since the last sample, or since the command began. */
static double cpu_percent(struct taking *t, const char *serial, const json_t *command,
                          uint64_t cpu_ns)
{
    const json_t *before = json_object_get(t->source->cpu_before, serial);
    double used = (double)cpu_ns / 1e9, seconds = number(command, "duration_ms") / 1000;
    if (before && t->seconds > 0) {
        used -= json_real_value(before);
        seconds = t->seconds;
    }
    return seconds > 0 && used > 0 ? 100 * used / seconds : 0;
}

static int take_used(struct taking *t, const struct wire_exec_used *u)
{
    char serial[32];
    (void)snprintf(serial, sizeof serial, "%" PRIu64, u->serial);
    json_t *command = json_object_get(t->by_serial, serial);
    const char *id = json_string_value(json_object_get(command, "workspace"));
    json_t *workspace = id ? json_object_get(t->by_id, id) : NULL;
    if (!command || !workspace)
        return 0;
    double percent = cpu_percent(t, serial, command, u->cpu_ns);
    int r = json_object_set_new(command, "cpu_percent", json_real(percent));
    r |= json_object_set_new(command, "cpu_ms", json_integer((json_int_t)(u->cpu_ns / 1000000)));
    r |= json_object_set_new(command, "memory_bytes", json_integer((json_int_t)u->memory_bytes));
    r |= add_to(workspace, "cpu_percent", percent);
    r |= count_up(workspace, "memory_bytes", (json_int_t)u->memory_bytes);
    r |= json_object_set_new(t->cpu_now, serial, json_real((double)u->cpu_ns / 1e9));
    return r ? -ENOMEM : 0;
}

/* A service ends the connection for a message that it does not know. */
static bool is_older(const struct client *client)
{
    return client && !(client_peer(client)->features & WIRE_FEATURE_USAGE);
}

static int take_commands(struct taking *t)
{
    int r = exec_each(t->client, NULL, NULL, on_command, t, &t->failure);
    if (r < 0 || json_array_size(t->commands) == 0 || is_older(t->client))
        return r;
    struct wire_frame *reply;
    const struct wire_message request = {.type = WIRE_EXEC_USAGE};
    r = cli_call(t->client, &request, &reply, &t->failure);
    if (r < 0)
        return r;
    uint32_t offset = 0;
    struct bytes element;
    while (r == 0 && wire_list_next(&reply->message.exec_usage_reply.items, &offset, &element)) {
        struct wire_message m;
        r = wire_decode(WIRE_EXEC_USED, element, &m);
        if (r == 0)
            r = take_used(t, &m.exec_used);
    }
    wire_frame_free(reply);
    return r < 0 ? failure_set(&t->failure, r, "what commands use: %s", strerror(-r)) : 0;
}

/* --- egress ------------------------------------------------------------------------------------
 */

static json_t *decision_json(const struct wire_egress_decision *d)
{
    const struct {
        const char *name;
        struct bytes text;
    } texts[] = {{"time", d->time},       {"workspace", d->workspace}, {"verdict", d->verdict},
                 {"method", d->method},   {"host", d->host},           {"entry", d->entry},
                 {"address", d->address}, {"reason", d->reason}};
    json_t *o = json_pack("{s:I,s:I,s:I,s:I}", "port", (json_int_t)d->port, "bytes_up",
                          (json_int_t)d->bytes_up, "bytes_down", (json_int_t)d->bytes_down,
                          "duration_ms", (json_int_t)d->duration_ms);
    int r = o ? 0 : -ENOMEM;
    for (size_t i = 0; r == 0 && i < ARRAY_SIZE(texts); i++)
        r = json_object_set_new(o, texts[i].name,
                                texts[i].text.len ? text_json_bytes(texts[i].text) : json_null());
    if (r == 0)
        return o;
    json_decref(o);
    return NULL;
}

static int take_egress(struct taking *t)
{
    struct top_source *s = t->source;
    for (bool more = true; more;) {
        struct wire_frame *reply;
        const struct wire_message request = {.type = WIRE_EGRESS_LOG,
                                             .egress_log.position =
                                                 s->follows ? s->egress_position : UINT64_MAX};
        int r = cli_call(t->client, &request, &reply, &t->failure);
        if (r < 0)
            return r;
        const struct wire_egress_decisions *d = &reply->message.egress_decisions;
        uint32_t offset = 0;
        struct bytes element;
        while (r == 0 && wire_list_next(&d->items, &offset, &element)) {
            struct wire_message m;
            r = wire_decode(WIRE_EGRESS_DECISION, element, &m);
            if (r == 0)
                r = json_array_append_new(t->egress, decision_json(&m.egress_decision));
            if (json_array_size(t->egress) > TOP_DECISIONS_MAX)
                (void)json_array_remove(t->egress, 0);
        }
        /* A service that says so for ever would keep us here. */
        more = d->more && d->position > s->egress_position;
        s->egress_position = d->position;
        s->follows = true;
        wire_frame_free(reply);
        if (r < 0)
            return failure_set(&t->failure, -EPROTO, "the service's decisions make no sense");
    }
    return 0;
}

/* --- mounts ------------------------------------------------------------------------------------
 */

/* Of a mount, or a member of one; point: its name among them. */
static int add_rate(struct taking *t, json_t *mount, const char *point)
{
    json_t *trips = json_object_get(json_object_get(mount, "stats"), "round_trips");
    const json_t *before = point ? json_object_get(t->source->trips_before, point) : NULL;
    json_t *rate = json_null();
    if (before && trips && t->seconds > 0) {
        double n = json_number_value(trips) - json_number_value(before);
        rate = json_real(n > 0 ? n / t->seconds : 0);
    }
    int r = json_object_set_new(mount, "round_trips_per_s", rate);
    if (r == 0 && point && trips)
        r = json_object_set_new(t->trips_now, point, json_real(json_number_value(trips)));
    return r;
}

/* Those that were killed leave nothing behind but a sample without mounts. */
static json_t *take_mounts(struct taking *t)
{
    json_t *mounts = NULL, *mount, *member;
    size_t i, k;
    if (mounts_json(&mounts) < 0)
        return json_array();
    json_array_foreach(mounts, i, mount)
    {
        const char *point = json_string_value(json_object_get(mount, "mountpoint"));
        (void)add_rate(t, mount, point);
        json_array_foreach(json_object_get(mount, "members"), k, member)
        {
            const char *name = json_string_value(json_object_get(member, "name"));
            _cleanup_free_ char *key = NULL;
            if (point && name && asprintf(&key, "%s//%s", point, name) >= 0)
                (void)add_rate(t, member, key);
        }
    }
    return mounts;
}

/* --- all
 * ------------------------------------------------------------------------------------------ */

/* What this client was not granted is left out. */
static int allowed(int r)
{
    return r == -EACCES || r == -EPERM ? 0 : r;
}

static int take_service(struct taking *t, json_t **ret)
{
    struct top_source *s = t->source;
    int r = s->client ? 0 : cli_connect_alone(s->cli, &s->client, &t->failure);
    if (r < 0)
        return r;
    t->client = s->client;
    r = status_ask(s->client, ret, &t->failure);
    if (r == 0)
        r = allowed(take_workspaces(t));
    if (r == 0)
        r = allowed(take_commands(t));
    if (r == 0 && !is_older(s->client))
        r = allowed(take_egress(t));
    if (r < 0) {
        client_free(s->client);
        s->client = NULL;
    }
    return r;
}

static json_t *now_json(void)
{
    char when[64];
    text_time(time(NULL), true, when, sizeof when);
    return json_string(when);
}

static json_t *put_together(struct taking *t, json_t *service, bool reached)
{
    json_t *all = json_object();
    int r = json_object_set_new(all, "time", now_json());
    r |= json_object_set_new(all, "url", text_json(t->source->cli->settings.url));
    r |= json_object_set_new(all, "error", reached ? json_null() : text_json(t->failure.text));
    r |= json_object_set_new(all, "note",
                             is_older(t->source->client)
                                 ? json_string("this service is older than this berth: what "
                                               "commands use, and what the proxy decides, is not "
                                               "shown")
                                 : json_null());
    r |= json_object_set_new(all, "service", service ? service : json_null());
    r |= json_object_set(all, "workspaces", t->workspaces);
    r |= json_object_set(all, "commands", t->commands);
    r |= json_object_set_new(all, "mounts", take_mounts(t));
    r |= json_object_set(all, "egress", t->egress);
    if (r == 0)
        return all;
    json_decref(all);
    return NULL;
}

json_t *top_sample(struct top_source *source)
{
    uint64_t now = clock_monotonic_ns();
    struct taking t = {.source = source,
                       .seconds = source->taken_ns ? (double)(now - source->taken_ns) / 1e9 : 0,
                       .workspaces = json_array(),
                       .by_id = json_object(),
                       .commands = json_array(),
                       .by_serial = json_object(),
                       .egress = json_array(),
                       .cpu_now = json_object(),
                       .trips_now = json_object()};
    json_t *service = NULL;
    bool reached = take_service(&t, &service) == 0;
    json_t *all = put_together(&t, service, reached);
    json_decref(t.workspaces);
    json_decref(t.by_id);
    json_decref(t.commands);
    json_decref(t.by_serial);
    json_decref(t.egress);
    json_decref(source->cpu_before);
    json_decref(source->trips_before);
    source->cpu_before = t.cpu_now;
    source->trips_before = t.trips_now;
    source->taken_ns = now;
    return all;
}

void top_source_release(struct top_source *source)
{
    client_free(source->client);
    json_decref(source->cpu_before);
    json_decref(source->trips_before);
    *source = (struct top_source){0};
}

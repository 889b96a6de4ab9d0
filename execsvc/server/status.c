#include <jansson.h>
#include <stdio.h>
#include <sys/resource.h>

#include "base/clock.h"
#include "server/lock_waits.h"

static int set_number(json_t *object, const char *name, uint64_t value)
{
    return json_object_set_new(object, name, json_integer((json_int_t)value)) < 0 ? -ENOMEM : 0;
}

/* Resident pages of this process, in bytes; 0 when /proc is not there. */
static uint64_t resident_now(void)
{
    unsigned long long size = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    if (!f)
        return 0;
    if (fscanf(f, "%llu %llu", &size, &resident) != 2)
        resident = 0;
    (void)fclose(f);
    return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

static int add_connections(const struct server *s, json_t *object)
{
    const struct server_counters *n = &s->counters;
    const struct {
        const char *name;
        uint64_t value;
    } numbers[] = {
        {"open", s->connection_count},
        {"alive", s->connections_alive},
        {"accepted", n->accepted},
        {"upgraded", n->upgraded},
        {"relayed", n->relayed},
        {"relays", s->relay_count},
        {"unauthorized", n->unauthorized},
        {"forbidden", n->forbidden},
        {"dropped_early", n->dropped_early},
        {"timed_out", n->timed_out},
        {"protocol_errors", n->protocol_errors},
        {"accept_errors", n->accept_errors},
        {"parked", s->parked_count},
        {"parked_ever", n->parked},
        {"resumed", n->resumed},
    };
    json_t *connections = json_object();
    if (json_object_set_new(object, "connections", connections) < 0)
        return -ENOMEM;
    for (size_t i = 0; i < ARRAY_SIZE(numbers); i++)
        if (set_number(connections, numbers[i].name, numbers[i].value) < 0)
            return -ENOMEM;
    return 0;
}

static int add_messages(const struct server *s, json_t *object)
{
    json_t *messages = json_object();
    if (json_object_set_new(object, "messages", messages) < 0)
        return -ENOMEM;
    for (size_t i = 0; i < wire_row_count(); i++)
        if (s->message_counts[i] > 0 &&
            set_number(messages, wire_row_at(i)->name, s->message_counts[i]) < 0)
            return -ENOMEM;
    return 0;
}

static int add_process(const struct server *s, json_t *object)
{
    struct rusage usage = {0};
    uint64_t resident = resident_now();
    (void)getrusage(RUSAGE_SELF, &usage);
    /* The kernel keeps the peak up to date only now and then. */
    uint64_t peak = (uint64_t)usage.ru_maxrss * 1024;
    peak = peak < resident ? resident : peak;
    if (json_object_set_new(object, "version", json_string(BERTH_VERSION)) < 0)
        return -ENOMEM;
    uint64_t uptime = (clock_monotonic_ns() - s->started_ns) / NSEC_PER_SEC;
    if (set_number(object, "pid", (uint64_t)getpid()) < 0 ||
        set_number(object, "uptime_seconds", uptime) < 0 ||
        set_number(object, "resident_bytes", resident) < 0 ||
        set_number(object, "resident_bytes_max", peak) < 0 ||
        set_number(object, "workers", workers_count(s->workers)) < 0 ||
        set_number(object, "crashes", s->crashes) < 0 ||
        set_number(object, "lock_waits", lock_waits_count(s->lock_waits)) < 0)
        return -ENOMEM;
    /* A root that is not UTF-8 cannot be a JSON string, and is left out. */
    json_t *root = json_string(store_root(s->store));
    if (root && json_object_set_new(object, "root", root) < 0)
        return -ENOMEM;
    return 0;
}

/* What the client itself may do. */
static int add_granted(const struct grant *grant, json_t *object)
{
    json_t *granted = json_object(), *workspaces = json_array(), *verbs = json_array();
    int r = json_object_set_new(object, "granted", granted);
    r |= json_object_set_new(granted, "workspaces", workspaces);
    r |= json_object_set_new(granted, "verbs", verbs);
    if (r == 0)
        r = json_object_set_new(granted, "id", json_string(grant->id));
    if (r == 0 && grant->expires)
        r = json_object_set_new(granted, "expires", json_integer(grant->expires));
    if (r == 0 && grant->everything)
        r = json_array_append_new(workspaces, json_string("*"));
    if (r == 0 && grant->issuer)
        r = json_object_set_new(granted, "workspace",
                                json_stringn((const char *)grant->only, grant->only_len));
    for (size_t i = 0; r == 0 && !grant->everything && i < grant->pattern_count; i++)
        r = json_array_append_new(workspaces, json_string(grant->patterns[i]));
    for (enum wire_verb v = WIRE_VERB_READ; r == 0 && v < WIRE_VERB_COUNT; v++)
        if (grant->verbs & (1u << v))
            r = json_array_append_new(verbs, json_string(wire_verb_name(v)));
    return r < 0 ? -ENOMEM : 0;
}

static int add_everything(struct server *s, json_t *object)
{
    int r = add_process(s, object);
    if (r == 0)
        r = add_connections(s, object);
    if (r == 0)
        r = add_messages(s, object);
    if (r == 0)
        r = access_status(s->access, object);
    if (r == 0 && s->audit)
        r = set_number(object, "audit_lost", audit_lost(s->audit));
    if (r == 0)
        r = bounds_status(&s->bounds, object);
    if (r == 0)
        r = store_status(s->store, object);
    if (r == 0)
        r = exec_service_status(s->exec, object);
    return r;
}

/* Not how many workspaces there are, or what runs, or where. */
static int add_little(struct server *s, json_t *object)
{
    int r = json_object_set_new(object, "version", json_string(BERTH_VERSION)) < 0 ? -ENOMEM : 0;
    if (r == 0)
        r = exec_service_status(s->exec, object);
    (void)json_object_del(object, "exec");
    (void)json_object_del(object, "egress");
    (void)json_object_del(object, "fenced");
    return r;
}

int server_status(struct server *s, const struct grant *grant, size_t max, char **ret)
{
    json_t *object = json_object();
    if (!object)
        return -ENOMEM;
    bool all = grant->everything && (grant->verbs & GRANT_VERB(ADMIN));
    int r = add_granted(grant, object);
    if (r == 0)
        r = all ? add_everything(s, object) : add_little(s, object);
    char *text = r == 0 ? json_dumps(object, JSON_COMPACT) : NULL;
    json_decref(object);
    if (r < 0)
        return r;
    if (!text)
        return -ENOMEM;
    if (strlen(text) > max) {
        free(text);
        return -EMSGSIZE;
    }
    *ret = text;
    return 0;
}

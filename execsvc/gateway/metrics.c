/* /metrics: what the service and the gateway count, in the text format of Prometheus 0.0.4. */
#include <errno.h>
#include <string.h>

#include "gateway/private.h"

/* A number of STATUS_REPLY, by the way to it. */
static const struct {
    const char *object; /* NULL: at the top */
    const char *member;
    const char *name;
    const char *type;
    const char *help;
} numbers[] = {
    {NULL, "uptime_seconds", "berth_uptime_seconds", "gauge", "Since the service started."},
    {NULL, "resident_bytes", "berth_resident_bytes", "gauge", "Memory of the service."},
    {NULL, "crashes", "berth_crashes_total", "counter", "Services that ended unasked."},
    {NULL, "workspaces", "berth_workspaces", "gauge", "Workspaces."},
    {NULL, "nodes", "berth_nodes", "gauge", "Files and directories that clients know."},
    {NULL, "handles", "berth_handles", "gauge", "Files and directories that clients have open."},
    {NULL, "descriptors", "berth_descriptors", "gauge", "Descriptors of files at rest."},
    {NULL, "lock_owners", "berth_lock_owners", "gauge", "Owners of file locks."},
    {NULL, "lock_waits", "berth_lock_waits", "gauge", "Requests that wait for a lock."},
    {NULL, "audit_lost", "berth_audit_lost_total", "counter",
     "Lines that the audit log could not take."},
    {"connections", "open", "berth_connections", "gauge", "Connections that speak frames."},
    {"connections", "relays", "berth_http_connections", "gauge",
     "Connections that speak HTTP and have got in."},
    {"connections", "parked", "berth_sessions_parked", "gauge",
     "Sessions whose clients may come back."},
    {"connections", "accepted", "berth_connections_accepted_total", "counter",
     "Connections, of all kinds."},
    {"connections", "upgraded", "berth_connections_upgraded_total", "counter",
     "Connections that came to speak frames."},
    {"connections", "relayed", "berth_http_connections_total", "counter",
     "Connections that came to speak HTTP."},
    {"connections", "unauthorized", "berth_unauthorized_total", "counter",
     "Clients that were not let in."},
    {"connections", "forbidden", "berth_forbidden_total", "counter",
     "Requests that their client was not granted."},
    {"connections", "dropped_early", "berth_connections_dropped_total", "counter",
     "Connections closed for a newer one before they had got in."},
    {"connections", "timed_out", "berth_connections_timed_out_total", "counter",
     "Connections that did not get in, or did not read, in time."},
    {"connections", "protocol_errors", "berth_protocol_errors_total", "counter",
     "Connections that broke the protocol."},
    {"connections", "resumed", "berth_sessions_resumed_total", "counter",
     "Sessions that went on on another connection."},
    {"changes", "noticed", "berth_changes_noticed_total", "counter",
     "Changes by others that the kernel told of."},
    {"changes", "noted", "berth_changes_noted_total", "counter",
     "Of these, of files that clients know."},
    {"changes", "overflows", "berth_changes_overflows_total", "counter",
     "Times that the kernel could not say what had changed."},
    {"exec", "running", "berth_commands", "gauge", "Commands that run."},
    {"exec", "started", "berth_commands_started_total", "counter", "Commands that were started."},
    {"exec", "refused", "berth_commands_refused_total", "counter",
     "Commands that were not started."},
};

static int put_head(struct buffer *b, const char *name, const char *type, const char *help)
{
    return buffer_printf(b, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static int put_numbers(struct buffer *b, const json_t *status)
{
    int r = 0;
    for (size_t i = 0; r == 0 && i < ARRAY_SIZE(numbers); i++) {
        const json_t *object =
            numbers[i].object ? json_object_get(status, numbers[i].object) : status;
        const json_t *value = json_object_get(object, numbers[i].member);
        if (!json_is_integer(value))
            continue;
        r = put_head(b, numbers[i].name, numbers[i].type, numbers[i].help);
        if (r == 0)
            r = buffer_printf(b, "%s %lld\n", numbers[i].name,
                              (long long)json_integer_value(value));
    }
    return r;
}

/* Names of the table of messages: no byte of them needs an escape. */
static int put_messages(struct buffer *b, const json_t *status)
{
    const char *name;
    json_t *value;
    int r = put_head(b, "berth_messages_total", "counter", "Messages of clients, by their type.");
    json_object_foreach(json_object_get(status, "messages"), name, value)
    {
        if (r == 0)
            r = buffer_printf(b, "berth_messages_total{type=\"%s\"} %lld\n", name,
                              (long long)json_integer_value(value));
    }
    return r;
}

static const char *route_label(size_t i)
{
    return i < route_count() ? route_at(i)->pattern : "";
}

static const char *method_label(size_t i)
{
    return i < route_count() ? route_at(i)->method : "";
}

/* A route that nobody has asked for has no line. */
static int put_requests(struct buffer *b, struct counters *n)
{
    int r = put_head(b, "berth_http_requests_total", "counter",
                     "Requests that were answered, by route (none: there is none) and status.");
    for (size_t i = 0; r == 0 && i < COUNTERS_ROUTES; i++)
        for (size_t class = 0; r == 0 && class < COUNTERS_CLASSES; class ++) {
            uint64_t count = n->requests[i][class];
            if (count > 0)
                r = buffer_printf(b,
                                  "berth_http_requests_total{method=\"%s\",route=\"%s\","
                                  "status=\"%zuxx\"} %llu\n",
                                  method_label(i), route_label(i), class + 1,
                                  (unsigned long long)count);
        }
    if (r == 0)
        r = put_head(b, "berth_http_request_seconds_total", "counter",
                     "Time that requests took, by route.");
    for (size_t i = 0; r == 0 && i < COUNTERS_ROUTES; i++) {
        uint64_t us = n->duration_us[i];
        if (us > 0)
            r = buffer_printf(b,
                              "berth_http_request_seconds_total{method=\"%s\",route=\"%s\"} "
                              "%llu.%06llu\n",
                              method_label(i), route_label(i), (unsigned long long)(us / 1000000),
                              (unsigned long long)(us % 1000000));
    }
    return r;
}

static int put_gateway(struct buffer *b, struct counters *n)
{
    const struct {
        const char *name;
        const char *type;
        uint64_t value;
        const char *help;
    } own[] = {
        {"berth_gateway_processes", "gauge", n->open, "Processes that answer a connection each."},
        {"berth_gateway_processes_total", "counter", n->connections, "Those that there were."},
        {"berth_gateway_crashes_total", "counter", n->crashed, "Of these, that were killed."},
        {"berth_gateway_refused_total", "counter", n->refused,
         "Connections that came when there were too many."},
        {"berth_http_received_bytes_total", "counter", n->received, "Bytes of requests' bodies."},
        {"berth_http_sent_bytes_total", "counter", n->sent, "Bytes of answers' bodies."},
    };
    int r = 0;
    for (size_t i = 0; r == 0 && i < ARRAY_SIZE(own); i++) {
        r = put_head(b, own[i].name, own[i].type, own[i].help);
        if (r == 0)
            r = buffer_printf(b, "%s %llu\n", own[i].name, (unsigned long long)own[i].value);
    }
    return r < 0 ? r : put_requests(b, n);
}

static int put_all(struct buffer *b, struct bytes status_text, struct counters *counters,
                   struct failure *f)
{
    json_t *status = json_loadb((const char *)status_text.data, status_text.len, 0, NULL);
    if (!status)
        return failure_set(f, -EPROTO, "the service's status is no JSON");
    /* Who may not see everything sees nothing: numbers tell what others do. */
    bool all = json_object_get(status, "uptime_seconds");
    int r = all ? put_numbers(b, status)
                : failure_set(f, -EACCES, "metrics are for whoever administers all workspaces");
    if (r == 0)
        r = put_messages(b, status);
    if (r == 0)
        r = put_gateway(b, counters);
    json_decref(status);
    return r;
}

int about_metrics(struct exchange *x, struct failure *f)
{
    _cleanup_buffer_ struct buffer text = {0};
    struct upstream *u;
    struct wire_frame *frame;
    const struct wire_message m = {.type = WIRE_STATUS};
    int r = exchange_upstream(x, &u, f);
    if (r == 0)
        r = upstream_call(u, &m, &frame, f);
    if (r < 0)
        return r;
    f->text[0] = '\0';
    r = put_all(&text, frame->message.status_reply.json, x->conversation->options->counters, f);
    wire_frame_free(frame);
    return r < 0 ? r
                 : exchange_reply(x, 200, "text/plain; version=0.0.4; charset=utf-8", text.data,
                                  text.len);
}

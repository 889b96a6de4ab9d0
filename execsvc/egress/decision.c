#include "egress/decision.h"

#include <jansson.h>
#include <stdio.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/log.h"

static void write_time(char *out, size_t size)
{
    struct timespec now;
    struct tm utc;
    char seconds[32];
    (void)clock_gettime(CLOCK_REALTIME, &now);
    (void)gmtime_r(&now.tv_sec, &utc);
    (void)strftime(seconds, sizeof seconds, "%Y-%m-%dT%H:%M:%S", &utc);
    (void)snprintf(out, size, "%s.%03ldZ", seconds, now.tv_nsec / 1000000);
}

void decision_log(const struct decision *d)
{
    char when[48];
    write_time(when, sizeof when);
    json_t *object = json_pack(
        "{s:s, s:s, s:s*, s:s*, s:s*, s:s*, s:s, s:s*, s:I, s:I, s:I}", "time", when, "workspace",
        d->workspace, "method", d->method, "host", d->host, "entry", d->entry, "address",
        d->address, "verdict", d->verdict, "reason", d->reason, "bytes_up", (json_int_t)d->bytes_up,
        "bytes_down", (json_int_t)d->bytes_down, "duration_ms", (json_int_t)d->duration_ms);
    if (object && d->port > 0)
        (void)json_object_set_new(object, "port", json_integer(d->port));
    _cleanup_free_ char *text =
        object ? json_dumps(object, JSON_COMPACT | JSON_ENSURE_ASCII) : NULL;
    if (text)
        log_info("egress %s", text);
    else
        log_error("egress: a decision cannot be logged: no memory");
    json_decref(object);
}

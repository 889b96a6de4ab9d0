#include "cli/exec_json.h"

#include <inttypes.h>
#include <stdio.h>
#include <time.h>

#include "cli/exec_result.h"
#include "cli/text.h"

int exec_words(struct buffer *b, struct bytes argv)
{
    size_t start = 0;
    int r = 0;
    for (size_t i = 0; r == 0 && i <= argv.len; i++) {
        if (i < argv.len && argv.data[i])
            continue;
        if (i == argv.len && i == start)
            break;
        if (start)
            r = buffer_append_u8(b, ' ');
        if (r == 0)
            r = text_escape(b, bytes_of(argv.data + start, i - start), TEXT_SENTENCE);
        start = i + 1;
    }
    return r;
}

static json_t *words_json(struct bytes argv)
{
    json_t *array = json_array();
    size_t start = 0;
    for (size_t i = 0; array && i <= argv.len; i++) {
        if ((i < argv.len && argv.data[i]) || (i == argv.len && i == start))
            continue;
        (void)json_array_append_new(array, text_json_bytes(bytes_of(argv.data + start, i - start)));
        start = i + 1;
    }
    return array;
}

void exec_age(uint64_t ns, char *text, size_t size)
{
    uint64_t s = ns / 1000000000;
    if (s < 60)
        (void)snprintf(text, size, "%" PRIu64 "s", s);
    else if (s < 3600)
        (void)snprintf(text, size, "%" PRIu64 "m%02us", s / 60, (unsigned)(s % 60));
    else if (s < 86400)
        (void)snprintf(text, size, "%" PRIu64 "h%02um", s / 3600, (unsigned)(s / 60 % 60));
    else
        (void)snprintf(text, size, "%" PRIu64 "d%02uh", s / 86400, (unsigned)(s / 3600 % 24));
}

/* As of its end. */
static struct wire_exec_exit verdict_of(const struct wire_exec_command *c)
{
    return (struct wire_exec_exit){.verdict = c->verdict, .code = c->code, .signal = c->signal};
}

json_t *exec_json(const struct wire_exec_command *c)
{
    char started[64];
    time_t t = (time_t)c->started_at.sec;
    struct tm tm;
    if (!gmtime_r(&t, &tm) || strftime(started, sizeof started, "%Y-%m-%dT%H:%M:%SZ", &tm) == 0)
        (void)snprintf(started, sizeof started, "?");
    const struct wire_exec_exit verdict = verdict_of(c);
    bool running = c->verdict == WIRE_VERDICT_RUNNING;
    const char *state = wire_verdict_name(c->verdict);
    return json_pack("{s:o,s:o,s:s,s:I,s:I,s:I,s:o,s:s,s:I,s:o,s:I,s:I}", "id",
                     text_json_bytes(c->id), "workspace", text_json_bytes(c->workspace), "state",
                     state ? state : "unknown", "pid", (json_int_t)c->pid, "processes",
                     (json_int_t)c->processes, "attached", (json_int_t)c->attached, "command",
                     words_json(c->argv), "started_at", started, "duration_ms",
                     (json_int_t)(c->duration_ns / 1000000), "exit_status",
                     running ? json_null() : json_integer(verdict_status(&verdict)), "stdout_bytes",
                     (json_int_t)c->stdout_bytes, "stderr_bytes", (json_int_t)c->stderr_bytes);
}

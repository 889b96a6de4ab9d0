#include "base/clock.h"
#include "keeper/private.h"

/* How long processes are looked at for one answer; stops a thousand commands, or one with very many
 * processes, from holding up the others, whose timeouts run on this loop. */
#define USAGE_LOOK_MS 20

static int append_used(struct buffer *list, struct kept *c)
{
    _cleanup_buffer_ struct buffer element = {0};
    struct kill_set_usage usage;
    const struct wire_exec_command *i = &c->record.command;
    int r = kill_set_usage(command_kill_set(c->command), &usage);
    if (r < 0)
        return 0;
    const struct wire_message m = {.type = WIRE_EXEC_USED,
                                   .exec_used = {.serial = i->serial,
                                                 .cpu_ns = usage.cpu_ns,
                                                 .memory_bytes = usage.memory_bytes,
                                                 .workspace = i->workspace}};
    r = wire_encode(&element, &m);
    if (r == 0)
        r = wire_list_append(list, buffer_view(&element));
    return r < 0 ? r : 1;
}

void usage_tell(struct keeper *k, struct peer *p, uint64_t tag, const struct wire_exec_usage *m)
{
    _cleanup_buffer_ struct buffer list = {0};
    const uint32_t most = wire_row(WIRE_EXEC_USAGE_REPLY)->fields[0].max_count;
    uint64_t latest = clock_monotonic_ns() + USAGE_LOOK_MS * NSEC_PER_MSEC;
    uint32_t count = 0;
    struct kept *c;
    /* The youngest first: of those that run for long the last look is known. */
    TAILQ_FOREACH_REVERSE(c, &k->all, kept_list, entry)
    {
        if (count == most || clock_monotonic_ns() > latest)
            break;
        if (!c->command ||
            (m->workspace.len > 0 && !kept_is_of(c, m->workspace, m->workspace_flags)))
            continue;
        int r = append_used(&list, c);
        if (r < 0) {
            peer_send_error(p, tag, r, NULL);
            return;
        }
        count += (uint32_t)r;
    }
    const struct wire_message reply = {.type = WIRE_EXEC_USAGE_REPLY,
                                       .exec_usage_reply.items = wire_list_of(&list, count)};
    peer_send(p, tag, &reply);
}

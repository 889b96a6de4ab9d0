#include <stdlib.h>
#include <string.h>

#include "keeper/private.h"

/* Bytes of one EXEC_OUTPUT. */
#define FOLLOWER_CHUNK ((size_t)64 << 10)

/* Input that was received and that the command has not read, above which nobody new may give it
 * any: stops a client that comes back again and again from filling memory, a window each time. */
#define INPUT_PENDING_MAX ((uint64_t)1 << 20)

int follower_new(struct kept *c, struct peer *peer, uint64_t tag, uint32_t flags,
                 struct follower **ret)
{
    struct follower *f = calloc(1, sizeof *f);
    if (!f)
        return -ENOMEM;
    if (table_put(&peer->by_tag, tag, f, NULL) < 0) {
        free(f);
        return -ENOMEM;
    }
    *f = (struct follower){.kept = c, .peer = peer, .tag = tag, .flags = flags};
    held_init(&f->held);
    for (size_t i = 0; i < ARRAY_SIZE(f->until); i++)
        f->until[i] = flags & WIRE_ATTACH_FOLLOW ? UINT64_MAX : spool_geometry(c->spools[i]).end;
    TAILQ_INSERT_TAIL(&c->followers, f, entry);
    TAILQ_INSERT_TAIL(&peer->followers, f, peer_entry);
    if (flags & WIRE_ATTACH_INPUT) {
        c->input = f;
        c->input_debt = c->input_received - c->input_taken;
    }
    *ret = f;
    return 0;
}

void follower_free(struct follower *f)
{
    struct kept *c = f->kept;
    (void)table_take(&f->peer->by_tag, f->tag);
    TAILQ_REMOVE(&c->followers, f, entry);
    TAILQ_REMOVE(&f->peer->followers, f, peer_entry);
    if (c->input == f)
        c->input = NULL;
    if (f->flags & WIRE_ATTACH_HOLD)
        kept_holders_changed(c, f);
    kept_rest(c);
    held_release(&f->held);
    free(f);
}

static void tell_started(struct follower *f)
{
    const struct kept *c = f->kept;
    const struct wire_exec_command *info = &c->record.command;
    const struct wire_message m = {
        .type = WIRE_EXEC_STARTED,
        .exec_started = {.pid = c->state == KEPT_RUNNING ? info->pid : 0,
                         .attached = !f->starter,
                         .input = c->input_received,
                         .started_at = info->started_at,
                         .id = info->id,
                         .path = bytes_of_string(c->path ? c->path : ""),
                         .path_text = bytes_of_string(c->path_text)},
    };
    f->told = true;
    peer_send(f->peer, f->tag, &m);
}

static void reply(struct follower *f)
{
    const struct wire_message m = {.type = WIRE_EXEC_EXIT, .exec_exit = kept_exit(f->kept)};
    struct peer *peer = f->peer;
    uint64_t tag = f->tag;
    /* Not a holder's departure: it has got everything, or nobody waits for the rest. */
    peer_send(peer, tag, &m);
    follower_free(f);
}

/* How many bytes of output may be sent now. */
static size_t follower_room(const struct follower *f)
{
    if (!link_has_room(f->peer->link))
        return 0;
    size_t credit = session_credit(link_session(f->peer->link), f->tag);
    size_t overhead = session_item_cost(WIRE_EXEC_OUTPUT, 0);
    size_t room = credit > overhead ? credit - overhead : 0;
    return room < FOLLOWER_CHUNK ? room : FOLLOWER_CHUNK;
}

/* 1: there is more, but no room; 0: that is all; or a negative errno. */
static int send_output(struct follower *f, size_t i)
{
    const struct spool *spool = f->kept->spools[i];
    uint8_t data[FOLLOWER_CHUNK];
    for (;;) {
        uint64_t at = spool_next(spool, f->at[i]);
        size_t len = 0;
        uint64_t end = spool_geometry(spool).end;
        if (at >= end || at >= f->until[i])
            return 0;
        size_t room = follower_room(f);
        if (room == 0)
            return 1;
        if (room > f->until[i] - at)
            room = (size_t)(f->until[i] - at);
        int r = spool_read(spool, at, data, room, &len);
        if (r < 0)
            return r;
        const struct wire_message m = {
            .type = WIRE_EXEC_OUTPUT,
            .exec_output = {.stream = (uint32_t)i + 1, .offset = at, .data = bytes_of(data, len)}};
        peer_send(f->peer, f->tag, &m);
        f->at[i] = at + len;
    }
}

static int send_outputs(struct follower *f)
{
    if (!(f->flags & WIRE_ATTACH_OUTPUT))
        return 0;
    int first = send_output(f, 0);
    int second = first < 0 ? 0 : send_output(f, 1);
    return first < 0 ? first : second < 0 ? second : first | second;
}

void follower_pump(struct follower *f)
{
    struct kept *c = f->kept;
    if (c->state == KEPT_STARTING)
        return;
    if (c->ran && !f->told)
        tell_started(f);
    int r = send_outputs(f);
    if (r < 0) {
        peer_send_error(f->peer, f->tag, r, "its output cannot be read");
        follower_free(f);
        return;
    }
    if (r == 0 &&
        (c->state == KEPT_ENDED ? !kept_is_settling(c) : !(f->flags & WIRE_ATTACH_FOLLOW)))
        reply(f);
}

void followers_pump(struct kept *c)
{
    struct follower *next;
    for (struct follower *f = TAILQ_FIRST(&c->followers); f; f = next) {
        next = TAILQ_NEXT(f, entry);
        follower_pump(f);
    }
}

/* --- messages ------------------------------------------------------------------------------ */

static void grant(const struct follower *f, size_t bytes)
{
    (void)session_grant(link_session(f->peer->link), f->tag, bytes);
    link_flush(f->peer->link);
}

static void on_input(struct follower *f, const struct wire_exec_input *input)
{
    struct kept *c = f->kept;
    size_t len = input->data.len;
    size_t cost = session_item_cost(WIRE_EXEC_INPUT, len);
    if (c->input != f || c->state == KEPT_ENDED) {
        grant(f, cost);
        return;
    }
    if (input->offset > c->input_received) {
        command_terminate(c->command, WIRE_VERDICT_KILLED, "the client sent input with a gap");
        return;
    }
    if (c->input_received - c->input_taken > INPUT_PENDING_MAX) {
        peer_send_error(f->peer, f->tag, -ENOBUFS, "too much input waits for the command");
        follower_free(f);
        return;
    }
    size_t known = (size_t)(c->input_received - input->offset);
    if (known > len)
        known = len;
    c->input_received += len - known;
    int r =
        command_input(c->command, bytes_of(input->data.data + known, len - known), input->end != 0);
    if (r == -ENOMEM)
        command_terminate(c->command, WIRE_VERDICT_KILLED, "no memory for its input");
    if (r < 0)
        c->input_taken += len - known;
    /* The message's own bytes need no room; those that nobody reads are taken at once. */
    grant(f, cost - len + (r < 0 ? len : known));
}

static void on_cancel(struct follower *f, uint32_t flags)
{
    struct kept *c = f->kept;
    if (!(flags & WIRE_CANCEL_LEAVE) && f->starter) {
        if (c->state != KEPT_ENDED)
            command_terminate(c->command, WIRE_VERDICT_KILLED, "cancelled by the caller");
        return;
    }
    f->left = (flags & (WIRE_CANCEL_LEAVE | KEEPER_LOST)) == WIRE_CANCEL_LEAVE;
    peer_send_error(f->peer, f->tag, -ECANCELED, NULL);
    follower_free(f);
}

void followers_begin(struct kept *c)
{
    struct follower *next;
    for (struct follower *f = TAILQ_FIRST(&c->followers); f; f = next) {
        struct peer *p = f->peer;
        uint64_t tag = f->tag;
        struct held_message *held;
        struct wire_message m;
        next = TAILQ_NEXT(f, entry);
        while (f && (held = held_take(&f->held))) {
            if (held_message_read(held, &m))
                follower_message(f, &m);
            held_message_free(held);
            f = table_get(&p->by_tag, tag);
        }
    }
}

void follower_message(struct follower *f, const struct wire_message *m)
{
    struct kept *c = f->kept;
    if (kept_is_claimed(c))
        (void)held_add(&f->held, m);
    else if (m->type == WIRE_EXEC_INPUT)
        on_input(f, &m->exec_input);
    else if (m->type == WIRE_CANCEL)
        on_cancel(f, m->cancel.flags);
    else if (m->type == WIRE_EXEC_SIGNAL && c->state != KEPT_ENDED)
        (void)command_signal(c->command, m->exec_signal.signal);
    else if (m->type == WIRE_EXEC_RESIZE && c->state != KEPT_ENDED)
        (void)command_resize(c->command, m->exec_resize.rows, m->exec_resize.columns);
}

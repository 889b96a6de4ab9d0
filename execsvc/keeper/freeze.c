#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "keeper/private.h"

/* How long the loop waits until everything stands still: all but what hangs in the kernel does
 * within a millisecond. Stops a command that hangs there from holding up all others. */
#define FREEZE_PATIENCE_MS 100

/* A workspace whose commands stand still for a service, until that says otherwise or has gone. */
struct freeze {
    TAILQ_ENTRY(freeze) entry;
    const struct peer *peer;
    uint32_t slot;
};

static bool is_frozen(const struct keeper *k, uint32_t slot)
{
    const struct freeze *x;
    TAILQ_FOREACH(x, &k->freezes, entry)
    {
        if (x->slot == slot)
            return true;
    }
    return false;
}

/* What belongs to it and has processes. */
static struct kill_set *processes_of(const struct kept *c, uint32_t slot)
{
    return c->record.slot == slot && c->command ? command_kill_set(c->command) : NULL;
}

static void thaw_all(struct keeper *k, uint32_t slot)
{
    struct kept *c;
    if (is_frozen(k, slot))
        return;
    TAILQ_FOREACH(c, &k->all, entry)
    {
        struct kill_set *set = processes_of(c, slot);
        if (set)
            (void)kill_set_freeze(set, false);
    }
}

static bool all_stand_still(const struct keeper *k, uint32_t slot)
{
    const struct kept *c;
    TAILQ_FOREACH(c, &k->all, entry)
    {
        struct kill_set *set = processes_of(c, slot);
        if (set && !kill_set_is_frozen(set))
            return false;
    }
    return true;
}

static int freeze_all(struct keeper *k, uint32_t slot, const char **ret_text)
{
    uint64_t until = clock_monotonic_ns() + FREEZE_PATIENCE_MS * NSEC_PER_MSEC;
    struct kept *c;
    TAILQ_FOREACH(c, &k->all, entry)
    {
        if (c->record.slot == slot && kept_is_claimed(c)) {
            *ret_text = "a command is just being started in it; try again";
            return -EBUSY;
        }
        struct kill_set *set = processes_of(c, slot);
        if (!set || kill_set_is_empty(set))
            continue;
        int r = kill_set_freeze(set, true);
        if (r < 0) {
            *ret_text = "commands run in it that cannot be made to stand still";
            return r == -EOPNOTSUPP ? r : -EBUSY;
        }
    }
    while (!all_stand_still(k, slot)) {
        if (clock_monotonic_ns() >= until) {
            *ret_text = "commands in it do not stand still: they hang in the kernel";
            return -EBUSY;
        }
        (void)usleep(500);
    }
    return 0;
}

static int begin(struct keeper *k, const struct peer *p, uint32_t slot, const char **ret_text)
{
    struct freeze *x = calloc(1, sizeof *x);
    if (!x)
        return -ENOMEM;
    int r = freeze_all(k, slot, ret_text);
    if (r < 0) {
        free(x);
        thaw_all(k, slot);
        return r;
    }
    *x = (struct freeze){.peer = p, .slot = slot};
    TAILQ_INSERT_TAIL(&k->freezes, x, entry);
    return 0;
}

static void end(struct keeper *k, const struct peer *p, uint32_t slot)
{
    struct freeze *x;
    TAILQ_FOREACH(x, &k->freezes, entry)
    {
        if (x->peer != p || x->slot != slot)
            continue;
        TAILQ_REMOVE(&k->freezes, x, entry);
        free(x);
        thaw_all(k, slot);
        return;
    }
}

static int check_quiet(struct keeper *k, uint32_t slot, const char **ret_text)
{
    struct kept *c;
    TAILQ_FOREACH(c, &k->all, entry)
    {
        if (c->record.slot == slot && clear_is_alive(c)) {
            *ret_text = "commands run in it, or have left processes behind; see `berth ps`";
            return -EBUSY;
        }
    }
    return 0;
}

void freeze_handle(struct keeper *k, struct peer *p, uint64_t tag,
                   const struct wire_snapshot_create *m)
{
    const struct wire_message done = {
        .type = WIRE_SNAPSHOT,
        .snapshot = {.id = bytes_of_string("-"), .thread_id = bytes_of_string("-")}};
    const char *text = NULL;
    int r = 0;
    if (m->flags & KEEPER_FREEZE)
        r = begin(k, p, m->workspace_flags, &text);
    else if (m->flags & KEEPER_THAW)
        end(k, p, m->workspace_flags);
    else
        r = check_quiet(k, m->workspace_flags, &text);
    if (r < 0)
        peer_send_error(p, tag, r, text);
    else
        peer_send(p, tag, &done);
}

void freeze_peer_gone(struct keeper *k, const struct peer *p)
{
    struct freeze *x, *next;
    for (x = TAILQ_FIRST(&k->freezes); x; x = next) {
        next = TAILQ_NEXT(x, entry);
        if (x->peer == p) {
            uint32_t slot = x->slot;
            TAILQ_REMOVE(&k->freezes, x, entry);
            free(x);
            thaw_all(k, slot);
        }
    }
}

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "keeper/private.h"

/* How often it is looked whether what was killed has ended, and for how long. */
#define CLEAR_MS 10
#define CLEAR_PATIENCE_S 10

/* Slots that are remembered: 1 MiB. When there are more, all are forgotten, and looked at again. */
#define SLOTS_MAX 65536

/* A workspace whose commands are being ended. */
struct clearing {
    TAILQ_ENTRY(clearing) entry;
    struct peer *peer; /* NULL: it has gone */
    uint64_t tag;
    uint64_t until_ns;
    uint32_t slot;
    bool keep; /* verdicts and output */
    uint64_t ended;
    size_t workspace_len;
    uint8_t workspace[];
};

/* A damaged record does not say which workspace of that thread ID it was. */
static bool belongs(const struct clearing *x, const struct kept *c)
{
    return c->record.slot == x->slot ||
           (c->record.slot == 0 &&
            bytes_equal(c->record.command.workspace, bytes_of(x->workspace, x->workspace_len)));
}

bool clear_is_alive(struct kept *c)
{
    return c->state != KEPT_ENDED || kept_is_settling(c) || !kept_look(c);
}

static bool lives(const struct clearing *x, struct keeper *k)
{
    struct kept *c;
    TAILQ_FOREACH(c, &k->all, entry)
    {
        if (belongs(x, c) && clear_is_alive(c))
            return true;
    }
    return false;
}

/* Whoever follows it is told. */
static void drop(struct kept *c)
{
    struct follower *f;
    while ((f = TAILQ_FIRST(&c->followers))) {
        struct peer *p = f->peer;
        uint64_t tag = f->tag;
        follower_free(f);
        peer_send_error(p, tag, -ESTALE, "its workspace was removed");
    }
    kept_free(c, true);
}

static void clearing_end(struct keeper *k, struct clearing *x, int error, const char *text)
{
    const struct wire_message ok = {.type = WIRE_OK, .ok.seq = x->ended};
    TAILQ_REMOVE(&k->clearings, x, entry);
    record_tidy(k->exec);
    if (x->peer && error < 0)
        peer_send_error(x->peer, x->tag, error, text);
    else if (x->peer)
        peer_send(x->peer, x->tag, &ok);
    free(x);
}

static void clearing_step(struct keeper *k, struct clearing *x)
{
    struct kept *next;
    if (!lives(x, k)) {
        for (struct kept *c = TAILQ_FIRST(&k->all); c && !x->keep; c = next) {
            next = TAILQ_NEXT(c, entry);
            if (belongs(x, c))
                drop(c);
        }
        clearing_end(k, x, 0, NULL);
    } else if (clock_monotonic_ns() >= x->until_ns) {
        clearing_end(k, x, -EBUSY, "processes of its commands do not end; see `berth ps`");
    }
}

static void on_clear(evutil_socket_t fd, short what, void *context)
{
    const struct timeval time = {.tv_usec = CLEAR_MS * 1000};
    struct keeper *k = context;
    struct clearing *next;
    for (struct clearing *x = TAILQ_FIRST(&k->clearings); x; x = next) {
        next = TAILQ_NEXT(x, entry);
        clearing_step(k, x);
    }
    if (!TAILQ_EMPTY(&k->clearings))
        (void)event_add(k->clear, &time);
    keeper_changed(k);
}

static int kill_all(struct keeper *k, struct clearing *x)
{
    const char *why =
        x->keep ? "because its workspace is stopped" : "because its workspace is removed";
    struct kept *next;
    for (struct kept *c = TAILQ_FIRST(&k->all); c; c = next) {
        next = TAILQ_NEXT(c, entry);
        if (!belongs(x, c) || !clear_is_alive(c))
            continue;
        struct killer *killer = calloc(1, sizeof *killer); /* nobody asks for the receipt */
        if (!killer)
            return -ENOMEM;
        if (kept_kill(c, why, 0, killer) < 0)
            free(killer);
        x->ended++;
    }
    return 0;
}

void clear_begin(struct keeper *k, struct peer *p, uint64_t tag,
                 const struct wire_workspace_remove *m)
{
    struct clearing *x = calloc(1, sizeof *x + m->key.len);
    if (!x) {
        peer_send_error(p, tag, -ENOMEM, NULL);
        return;
    }
    *x = (struct clearing){.peer = p,
                           .tag = tag,
                           .slot = m->flags & ~(KEEPER_FORCE | KEEPER_STOP),
                           .keep = m->flags & KEEPER_STOP,
                           .until_ns = clock_monotonic_ns() + CLEAR_PATIENCE_S * NSEC_PER_SEC,
                           .workspace_len = m->key.len};
    memcpy(x->workspace, m->key.data, m->key.len);
    TAILQ_INSERT_TAIL(&k->clearings, x, entry);
    int r = 0;
    if (m->flags & (KEEPER_FORCE | KEEPER_STOP))
        r = kill_all(k, x);
    else if (lives(x, k))
        r = -EBUSY;
    if (r < 0)
        clearing_end(k, x, r,
                     r == -EBUSY ? "commands run in it, or have left processes behind; see `berth "
                                   "ps`, and -f to end them"
                                 : NULL);
    else
        on_clear(-1, 0, k);
}

void clear_peer_gone(struct keeper *k, const struct peer *p)
{
    struct clearing *x;
    TAILQ_FOREACH(x, &k->clearings, entry)
    {
        if (x->peer == p)
            x->peer = NULL;
    }
}

int clear_earlier(struct keeper *k, struct bytes workspace, uint32_t slot)
{
    struct kept *next;
    if (table_get(&k->slots, slot))
        return 0;
    for (struct kept *c = TAILQ_FIRST(&k->all); c; c = next) {
        next = TAILQ_NEXT(c, entry);
        if (c->record.slot == 0 || c->record.slot == slot ||
            !bytes_equal(c->record.command.workspace, workspace))
            continue;
        if (c->record.slot > slot)
            return -ESTALE;
        drop(c);
    }
    if (k->slots.count >= SLOTS_MAX)
        table_release(&k->slots);
    (void)table_put(&k->slots, slot, k, NULL);
    keeper_changed(k);
    return 0;
}

int clear_new(struct keeper *k)
{
    k->clear = evtimer_new(k->base, on_clear, k);
    return k->clear ? 0 : -ENOMEM;
}

void clear_free_all(struct keeper *k)
{
    struct clearing *x;
    while ((x = TAILQ_FIRST(&k->clearings))) {
        TAILQ_REMOVE(&k->clearings, x, entry);
        free(x);
    }
    if (k->clear)
        event_free(k->clear);
    table_release(&k->slots);
}

#include "exec/termination.h"

#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/clock.h"

/* How often it looks whether everything is gone: the first time at once, since most commands end at
 * once, and then less and less often. */
#define TICK_MIN_MS 5
#define TICK_MAX_MS 50

/* After KILL, how long processes that do not die (in an uninterruptible system call) are waited for
 * before the receipt says so. */
#define GIVE_UP_MS 5000

struct termination {
    struct kill_set *set;
    struct event *timer;
    void (*done)(void *context, const struct kill_receipt *receipt);
    void *context;
    bool killing; /* KILL has been sent */
    uint64_t deadline_ns;
    uint64_t tick_ms;
};

static void tick_later(struct termination *t)
{
    const struct timeval time = {.tv_sec = 0, .tv_usec = (suseconds_t)(t->tick_ms * 1000)};
    (void)event_add(t->timer, &time);
    t->tick_ms = t->tick_ms * 2 < TICK_MAX_MS ? t->tick_ms * 2 : TICK_MAX_MS;
}

static void on_tick(evutil_socket_t fd, short what, void *context)
{
    struct termination *t = context;
    uint64_t now = clock_monotonic_ns();
    bool late = now >= t->deadline_ns;
    bool kill = t->killing || late;
    if (kill) {
        if (!t->killing)
            t->deadline_ns = now + GIVE_UP_MS * NSEC_PER_MSEC;
        late = late && t->killing;
        t->killing = true;
        kill_set_kill(t->set);
    }
    /* Counted as long as there is something to count; what is found only now counts as well. */
    if (kill_set_alive(t->set) > 0 && !late) {
        tick_later(t);
        return;
    }
    struct kill_receipt receipt;
    kill_set_receipt(t->set, &receipt);
    t->done(t->context, &receipt);
}

int termination_start(struct event_base *base, struct kill_set *set, uint64_t grace_ms,
                      void (*done)(void *context, const struct kill_receipt *receipt),
                      void *context, struct termination **ret)
{
    struct termination *t = calloc(1, sizeof *t);
    if (!t)
        return -ENOMEM;
    *t = (struct termination){
        .set = set,
        .done = done,
        .context = context,
        .deadline_ns = clock_monotonic_ns() + grace_ms * NSEC_PER_MSEC,
        .tick_ms = TICK_MIN_MS,
    };
    t->timer = event_new(base, -1, 0, on_tick, t);
    if (!t->timer) {
        free(t);
        return -ENOMEM;
    }
    /* Seen before anything can end. */
    (void)kill_set_alive(set);
    kill_set_signal(set, SIGTERM);
    /* A stopped process would not see TERM. */
    kill_set_signal(set, SIGCONT);
    tick_later(t);
    *ret = t;
    return 0;
}

void termination_look(struct termination *t)
{
    event_active(t->timer, EV_TIMEOUT, 1);
}

void termination_free(struct termination *t)
{
    if (!t)
        return;
    event_free(t->timer);
    free(t);
}

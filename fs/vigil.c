#include "vigil.h"

/* A request that came while the driver slept counts as soon also if this much later: the end of
 * the sleep took its time. */
#define WAKING_NS UINT64_C(40000)

/* One that comes this soon after the driver went to sleep came because it did. */
#define IN_THE_WAY_NS UINT64_C(10000)

/* One that did not come soon counts twice: waiting for it cost more than it would have saved. */
#define CREDIT_MAX 8
#define CREDIT_LOST 2

#define PENALTY_MIN 16
#define PENALTY_MAX 4096

static void note(struct vigil *v, bool soon)
{
    v->credit += soon ? 1 : -CREDIT_LOST;
    if (v->credit > CREDIT_MAX)
        v->credit = CREDIT_MAX;
    else if (v->credit < -CREDIT_MAX)
        v->credit = -CREDIT_MAX;
}

void vigil_taken(struct vigil *v, uint64_t now_ns)
{
    uint64_t gap = now_ns - v->answered_ns;
    if (v->waiting) {
        note(v, true);
        if (v->looked)
            v->penalty /= 2;
    } else if (v->slept_ns && now_ns - v->slept_ns < IN_THE_WAY_NS) {
        v->penalty = v->penalty ? 2 * v->penalty : PENALTY_MIN;
        if (v->penalty > PENALTY_MAX)
            v->penalty = PENALTY_MAX;
        v->patience = v->penalty;
    } else if (!v->slept_ns) {
        note(v, gap < VIGIL_NS + WAKING_NS);
    }
    v->waiting = false;
    v->slept_ns = 0;
    if (v->patience)
        v->patience--;
}

void vigil_handled(struct vigil *v, uint64_t now_ns, bool answered)
{
    v->answered_ns = now_ns;
    v->waiting = answered && v->credit > 0 && !v->patience;
    v->looked = false;
}

bool vigil_goes_on(struct vigil *v, uint64_t now_ns)
{
    if (!v->waiting)
        return false;
    v->looked = true;
    if (now_ns - v->answered_ns < VIGIL_NS)
        return true;
    v->waiting = false;
    v->slept_ns = now_ns;
    note(v, false);
    return false;
}

#include "confine/restraint.h"

#include <errno.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#include "base/cleanup.h"
#include "confine/landlock.h"
#include "confine/privileges.h"
#include "confine/syscalls.h"

static const char *const step_names[] = {
    [RESTRAINT_LIMITS] = "limits",
    [RESTRAINT_CAPABILITIES] = "giving up capabilities",
    [RESTRAINT_PRIVILEGES] = "no_new_privs",
    [RESTRAINT_LANDLOCK] = "Landlock",
    [RESTRAINT_SYSCALLS] = "the filter of system calls",
    [RESTRAINT_MEASURE] = "measuring what holds",
};

const char *restraint_step_name(uint32_t step)
{
    return step < RESTRAINT_ATTEST ? step_names[step]
                                   : attest_difference_name(step - RESTRAINT_ATTEST);
}

/* Never above what is in force. */
static int lower(int resource, uint64_t to, uint64_t hard)
{
    struct rlimit limit;
    if (to == 0)
        return 0;
    if (getrlimit(resource, &limit) < 0)
        return -errno;
    if (limit.rlim_max > hard)
        limit.rlim_max = hard;
    if (limit.rlim_cur > to)
        limit.rlim_cur = to;
    if (limit.rlim_cur > limit.rlim_max)
        limit.rlim_cur = limit.rlim_max;
    return setrlimit(resource, &limit) < 0 ? -errno : 0;
}

static int restrain(const struct restraint *s, int landlock, uint32_t *ret_step)
{
    /* Until its program begins it has the service's memory: not to be seen by commands that can do
     * as little as it can from here on. */
    (void)prctl(PR_SET_DUMPABLE, 0);
    *ret_step = RESTRAINT_LIMITS;
    int r = lower(RLIMIT_NOFILE, s->open_files, s->open_files);
    if (r == 0)
        r = lower(RLIMIT_FSIZE, s->file_size, s->file_size);
    if (r == 0)
        r = lower(RLIMIT_CPU, s->cpu_time, s->cpu_time + RESTRAINT_CPU_GRACE);
    if (r == 0)
        r = lower(RLIMIT_NPROC, s->processes, s->processes);
    if (r == 0 && s->drops_capabilities) {
        *ret_step = RESTRAINT_CAPABILITIES;
        r = privileges_drop();
    }
    /* Before what an ordinary user may only do who gains nothing any more. */
    if (r == 0 && s->gains_none) {
        *ret_step = RESTRAINT_PRIVILEGES;
        r = privileges_gain_none();
    }
    if (r == 0 && landlock >= 0) {
        *ret_step = RESTRAINT_LANDLOCK;
        r = landlock_enter(landlock);
    }
    if (r == 0 && s->filter.filter) {
        *ret_step = RESTRAINT_SYSCALLS;
        r = syscalls_filter_enter(&s->filter);
    }
    return r;
}

int restraint_probe(const struct restraint *s, int landlock, struct attest_facts *ret,
                    uint32_t *ret_step)
{
    int r = restrain(s, landlock, ret_step);
    if (r < 0)
        return r;
    *ret_step = RESTRAINT_MEASURE;
    return attest_measure(s->forbidden, ret);
}

int restraint_enter(const struct restraint *s, int landlock, uint32_t *ret_step)
{
    struct attest_facts facts;
    if (!s->attested)
        return restrain(s, landlock, ret_step);
    int r = restraint_probe(s, landlock, &facts, ret_step);
    if (r < 0)
        return r;
    uint32_t difference = attest_compare(&facts, &s->expected, &s->scope);
    *ret_step = RESTRAINT_ATTEST + difference;
    return difference ? -EPERM : 0;
}

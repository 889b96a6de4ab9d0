#include "gateway/confine.h"

#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "confine/confinement.h"
#include "confine/landlock.h"
#include "confine/privileges.h"
#include "server/bounds_calls.h"

/* The user and the group that own nothing. */
#define NOBODY 65534

/* To the client, to the parent, to the service for each credential, and what a loop needs. */
#define DESCRIPTORS_MAX 64

int gateway_confine_parent(struct failure *f)
{
    const uint64_t kept =
        UINT64_C(1) << CAP_SETUID | UINT64_C(1) << CAP_SETGID | UINT64_C(1) << CAP_KILL;
    int r = privileges_keep(kept);
    if (r == 0)
        r = privileges_gain_none();
    return r < 0 ? failure_set(f, r, "privileges cannot be given up: %s", strerror(-r)) : 0;
}

/* Without such a user, as in some user namespaces, it stays as it is. */
static void become_nobody(void)
{
    if (geteuid() != 0 || setgroups(0, NULL) < 0 || setresgid(NOBODY, NOBODY, NOBODY) < 0)
        return;
    (void)setresuid(NOBODY, NOBODY, NOBODY);
}

static int enter_landlock(void)
{
    const struct landlock_options options = {
        .no_tcp = true, .no_sockets = true, .no_signals = true};
    _cleanup_close_ int set = -1;
    int r = landlock_new(&options, &set);
    /* What it may know of itself: sanitisers look. Open for good, as the rule is of an inode. */
    if (r == 0 && open("/proc/self", O_PATH | O_DIRECTORY | O_CLOEXEC) < 0)
        r = -errno;
    if (r == 0)
        r = landlock_allow(set, "/proc/self", LANDLOCK_READ);
    return r < 0 ? r : landlock_enter(set);
}

static int set_limit(int which, rlim_t value)
{
    const struct rlimit limit = {.rlim_cur = value, .rlim_max = value};
    return setrlimit((__rlimit_resource_t)which, &limit) < 0 ? -errno : 0;
}

static int set_limits(void)
{
    int r = set_limit(RLIMIT_NOFILE, DESCRIPTORS_MAX);
    if (r == 0)
        r = set_limit(RLIMIT_CORE, 0);
    /* A sanitiser's own memory is larger than any bound. */
    return r < 0 || bounds_calls_sanitized() ? r : set_limit(RLIMIT_DATA, GATEWAY_MEMORY_MAX);
}

static int enter(const char *name, int (*bound)(void), enum config_confine mode, struct failure *f)
{
    int r = mode == CONFIG_CONFINE_OFF || confinement_without(name) ? -ECANCELED : bound();
    if (r < 0 && mode == CONFIG_CONFINE_REQUIRE)
        return failure_set(f, r, "the gateway cannot confine itself (%s: %s)", name, strerror(-r));
    if (r < 0 && r != -ECANCELED)
        log_debug("the gateway is not confined by %s: %s", name, strerror(-r));
    return 0;
}

int gateway_confine(enum config_confine mode, struct failure *ret_failure)
{
    int r = set_limits();
    become_nobody();
    if (r == 0)
        r = privileges_drop();
    if (r == 0)
        r = privileges_gain_none();
    if (r < 0)
        return failure_set(ret_failure, r, "privileges cannot be given up: %s", strerror(-r));
    /* Taken back by a change of the user. */
    (void)prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    r = enter("gateway-landlock", enter_landlock, mode, ret_failure);
    return r < 0 ? r : enter("gateway-seccomp", bounds_calls_enter, mode, ret_failure);
}

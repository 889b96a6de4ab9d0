#include "egress/confine.h"

#include <errno.h>
#include <grp.h>
#include <string.h>
#include <sys/prctl.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "confine/landlock.h"
#include "confine/privileges.h"
#include "confine/syscalls.h"
#include "egress/settings.h"

/* The user and the group that own nothing. */
#define NOBODY 65534

/* Modules of the C library's for names; and what the process may know of itself, for sanitisers. */
static const char *const read_at[] = {
    "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/local/lib",
    "/lib",     "/lib64",     "/nix/store", "/proc/self",
};

int egress_confine_files(void)
{
    const struct landlock_options options = {.no_sockets = true, .no_signals = true};
    _cleanup_close_ int set = -1;
    int r = landlock_new(&options, &set);
    if (r < 0)
        return r;
    r = settings_allow(set);
    if (r < 0)
        return r;
    for (size_t i = 0; i < ARRAY_SIZE(read_at); i++) {
        r = landlock_allow(set, read_at[i], LANDLOCK_READ);
        if (r < 0 && r != -ENOENT && r != -ENOTDIR && r != -EACCES)
            return r;
    }
    return landlock_enter(set);
}

static int confine_calls(void)
{
    struct failure failure;
    struct sock_fprog filter;
    int r = syscalls_filter_new(0, &filter, &failure);
    if (r < 0)
        return r;
    r = syscalls_filter_enter(&filter);
    syscalls_filter_release(&filter);
    return r;
}

/* Where root's files are nobody's business either. Without such a user, as in some user namespaces,
 * it stays as it is. */
static void become_nobody(void)
{
    if (geteuid() != 0 || setgroups(0, NULL) < 0 || setresgid(NOBODY, NOBODY, NOBODY) < 0)
        return;
    /* While it may. */
    for (int cap = 0; prctl(PR_CAPBSET_READ, cap, 0, 0, 0) >= 0; cap++)
        (void)prctl(PR_CAPBSET_DROP, cap, 0, 0, 0);
    (void)setresuid(NOBODY, NOBODY, NOBODY);
}

int egress_confine(struct failure *ret_failure)
{
    become_nobody();
    int r = privileges_drop();
    if (r == 0)
        r = privileges_gain_none();
    if (r < 0)
        return failure_set(ret_failure, r, "privileges cannot be given up: %s", strerror(-r));
    r = egress_confine_files();
    if (r < 0)
        log_warning("files are not out of reach: Landlock: %s", strerror(-r));
    r = confine_calls();
    if (r < 0)
        log_warning("system calls are not taken away: seccomp: %s", strerror(-r));
    return 0;
}

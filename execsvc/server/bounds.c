#include "server/bounds.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <string.h>
#include <sys/prctl.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "confine/confinement.h"
#include "confine/landlock.h"
#include "confine/privileges.h"
#include "server/bounds_calls.h"

#define BIT(capability) (UINT64_C(1) << (capability))

/* What a service of root's serves files with. An ordinary user's has none. */
static const uint64_t kept =
    /* files of any owner and mode are the clients' of a service of root's */
    BIT(CAP_DAC_OVERRIDE) | BIT(CAP_FOWNER) | BIT(CAP_CHOWN) | BIT(CAP_FSETID) |
    /* what is made belongs to who makes it (store/creator.h) */
    BIT(CAP_SETUID) | BIT(CAP_SETGID) |
    /* devices, for mounts with owner=server */
    BIT(CAP_MKNOD) |
    /* who has a file open for writing is found out by a lease (store/writers.h) */
    BIT(CAP_LEASE) |
    /* attributes of programs' capabilities are copied like others */
    BIT(CAP_SETFCAP);

static const char *const names[] = {
    [BOUND_CAPABILITIES] = "service-capabilities",
    [BOUND_PRIVILEGES] = "service-no-new-privs",
    [BOUND_LANDLOCK] = "service-landlock",
    [BOUND_SECCOMP] = "service-seccomp",
};

static int enter_landlock(const char *root, char *text, size_t size)
{
    const struct landlock_options options = {
        .no_tcp = true, .no_sockets = true, .no_signals = true};
    _cleanup_close_ int set = -1;
    int r = landlock_new(&options, &set);
    if (r == 0)
        r = landlock_allow(set, root, LANDLOCK_KEEP);
    /* What it may know of itself: how large it is, and sanitisers more. Open for good: a rule is of
     * an inode, and the kernel makes another one when it has forgotten the directory. */
    if (r == 0 && open("/proc/self", O_PATH | O_DIRECTORY | O_CLOEXEC) < 0)
        r = -errno;
    if (r == 0)
        r = landlock_allow(set, "/proc/self", LANDLOCK_READ);
    if (r == 0)
        r = landlock_enter(set);
    if (r == 0)
        (void)snprintf(text, size, "ABI %d", landlock_abi());
    return r;
}

static int enter(enum bound b, const char *root, char *text, size_t size)
{
    switch (b) {
    case BOUND_CAPABILITIES:
        (void)snprintf(text, size, "%s", geteuid() == 0 ? "those that files need" : "none");
        return privileges_keep(kept);
    case BOUND_PRIVILEGES:
        (void)snprintf(text, size, "for good");
        return privileges_gain_none();
    case BOUND_LANDLOCK:
        return enter_landlock(root, text, size);
    case BOUND_SECCOMP:
        (void)snprintf(text, size, "a list of what is allowed");
        return bounds_calls_enter();
    case BOUND_COUNT:
        break;
    }
    return -EINVAL;
}

int bounds_enter(enum config_confine mode, const char *root, struct bounds *ret,
                 struct failure *ret_failure)
{
    *ret = (struct bounds){.mode = mode};
    for (enum bound b = 0; b < BOUND_COUNT; b++) {
        char *text = ret->each[b].text;
        const size_t size = sizeof ret->each[b].text;
        bool wanted = mode != CONFIG_CONFINE_OFF && !confinement_without(names[b]);
        int r = wanted ? enter(b, root, text, size) : -ECANCELED;
        ret->each[b].holds = r == 0;
        if (r < 0)
            (void)snprintf(text, size, "%s",
                           mode == CONFIG_CONFINE_OFF ? "turned off by --confine"
                           : !wanted                  ? "taken away"
                                                      : strerror(-r));
        if (r < 0 && mode == CONFIG_CONFINE_REQUIRE)
            return failure_set(ret_failure, r,
                               "this service cannot confine itself (%s: %s), as --confine=require "
                               "asks",
                               names[b], text);
        if (r < 0)
            log_warning("this service is not confined by %s: %s", names[b], text);
    }
    return 0;
}

int bounds_status(const struct bounds *bounds, json_t *object)
{
    json_t *all = json_pack("{s:s}", "mode", config_confine_word(bounds->mode));
    if (!all || json_object_set_new(object, "service_confinement", all) < 0)
        return -ENOMEM;
    for (enum bound b = 0; b < BOUND_COUNT; b++) {
        json_t *one =
            json_pack("{s:b,s:s}", "holds", bounds->each[b].holds, "text", bounds->each[b].text);
        if (!one || json_object_set_new(all, names[b], one) < 0)
            return -ENOMEM;
    }
    return 0;
}

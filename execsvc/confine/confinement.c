#include "confine/confinement.h"

#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#include "base/cleanup.h"
#include "base/log.h"

struct finding {
    bool holds;
    char text[FAILURE_TEXT_MAX];
};

struct confinement {
    struct finding findings[MECHANISM_COUNT];
    struct cgroup_base *cgroups;
    int *unreaped; /* pidfds */
    size_t unreaped_count;
    size_t unreaped_allocated;
};

static const char *const names[] = {
    [MECHANISM_CGROUP] = "cgroup",
};

const char *mechanism_name(enum mechanism m)
{
    return names[m];
}

static bool taken_away(enum mechanism m)
{
    const char *list = getenv("BERTH_WITHOUT");
    size_t len = strlen(names[m]);
    while (list && *list) {
        size_t word = strcspn(list, ",");
        if (word == len && memcmp(list, names[m], len) == 0)
            return true;
        list += word + (list[word] == ',');
    }
    return false;
}

static int try_cgroup(struct confinement *c, const struct confinement_options *options,
                      struct failure *f)
{
    int r = cgroup_base_open(options->cgroup_parent, options->name, &c->cgroups, f);
    if (r == 0)
        (void)snprintf(f->text, sizeof f->text, "%s", cgroup_base_path(c->cgroups));
    return r;
}

int confinement_new(const struct confinement_options *options, struct confinement **ret)
{
    static int (*const tries[])(struct confinement *, const struct confinement_options *,
                                struct failure *) = {
        [MECHANISM_CGROUP] = try_cgroup,
    };
    struct confinement *c = calloc(1, sizeof *c);
    if (!c)
        return -ENOMEM;
    for (enum mechanism m = 0; m < MECHANISM_COUNT; m++) {
        struct failure f = {.text = "taken away"};
        struct finding *finding = &c->findings[m];
        finding->holds = !taken_away(m) && tries[m](c, options, &f) == 0;
        (void)snprintf(finding->text, sizeof finding->text, "%s", f.text);
        log_debug("confinement: %s: %s: %s", names[m], finding->holds ? "yes" : "no", f.text);
    }
    *ret = c;
    return 0;
}

bool confinement_holds(const struct confinement *c, enum mechanism m, const char **ret_text)
{
    *ret_text = c->findings[m].text;
    return c->findings[m].holds;
}

int confinement_status(const struct confinement *c, json_t *object)
{
    json_t *all = json_object();
    if (!all || json_object_set_new(object, "confinement", all) < 0)
        return -ENOMEM;
    for (enum mechanism m = 0; m < MECHANISM_COUNT; m++) {
        json_t *one =
            json_pack("{s:b,s:s}", "holds", c->findings[m].holds, "text", c->findings[m].text);
        if (!one || json_object_set_new(all, names[m], one) < 0)
            return -ENOMEM;
    }
    return 0;
}

struct cgroup_base *confinement_cgroups(const struct confinement *c)
{
    return c->cgroups;
}

/* True when there is nothing left to reap. */
static bool reap(int pidfd)
{
    siginfo_t info = {0};
    return waitid(P_PIDFD, (id_t)pidfd, &info, WEXITED | WNOHANG) < 0 || info.si_pid != 0;
}

void confinement_reap_later(struct confinement *c, int *pidfd)
{
    if (*pidfd < 0 || reap(*pidfd)) {
        close_fd(pidfd);
        return;
    }
    if (c->unreaped_count == c->unreaped_allocated) {
        size_t size = c->unreaped_allocated ? c->unreaped_allocated * 2 : 16;
        int *larger = reallocarray(c->unreaped, size, sizeof *larger);
        /* A zombie is then the lesser evil. */
        if (!larger) {
            close_fd(pidfd);
            return;
        }
        c->unreaped = larger;
        c->unreaped_allocated = size;
    }
    c->unreaped[c->unreaped_count++] = take_fd(pidfd);
}

void confinement_sweep(struct confinement *c)
{
    size_t kept = 0;
    for (size_t i = 0; i < c->unreaped_count; i++) {
        if (reap(c->unreaped[i]))
            close_fd(&c->unreaped[i]);
        else
            c->unreaped[kept++] = c->unreaped[i];
    }
    c->unreaped_count = kept;
    if (c->cgroups)
        cgroup_base_sweep(c->cgroups);
}

void confinement_free(struct confinement *c)
{
    if (!c)
        return;
    confinement_sweep(c);
    cgroup_base_free(c->cgroups);
    for (size_t i = 0; i < c->unreaped_count; i++)
        close_fd(&c->unreaped[i]);
    free(c->unreaped);
    free(c);
}

#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "confine/private.h"

/* Of what a cell is made, and not only what its commands are given. */
static bool needs_another(const struct policy *before, const struct policy *after)
{
    bool same = before->filesystem == after->filesystem && before->network == after->network &&
                before->read_count == after->read_count &&
                before->disk_bytes == after->disk_bytes && before->disk_files == after->disk_files;
    for (size_t i = 0; same && i < after->read_count; i++)
        same = strcmp(before->read[i], after->read[i]) == 0;
    return !same;
}

int confinement_prepare_change(struct confinement *c, const struct cell_options *options,
                               const struct policy *before, struct cell **ret,
                               struct failure *ret_failure)
{
    struct stat st;
    struct cell *cell = NULL;
    if (fstat(options->root, &st) < 0)
        return failure_set(ret_failure, -errno, "the workspace: %s", strerror(errno));
    int r = needs_another(before, options->policy)
                ? cell_new(c, options, &cell, ret_failure)
                : cell_check_policy(c, options->policy, ret_failure);
    if (r < 0)
        return r;
    if (cell) {
        cell->device = st.st_dev;
        cell->inode = st.st_ino;
    }
    *ret = cell;
    return 0;
}

/* The list that its commands' proxy has from now on; nobody reaches anything without memory for it.
 */
static int change_hosts(struct confinement *c, struct cell *cell, const struct policy *p)
{
    struct allow_list *none = NULL;
    if (!cell->has_egress || p->network == POLICY_NETWORK_HOST)
        return 0;
    int r = p->network == POLICY_NETWORK_NONE ? allow_list_new(&none) : 0;
    if (r == 0)
        r = c->egress.change(c->egress.context, cell->egress, none ? none : p->allow);
    allow_list_free(none);
    if (r < 0) {
        c->egress.end(c->egress.context, cell->egress);
        cell->has_egress = false;
    }
    return r;
}

/* Without memory it is retired: the next command is given one that is made anew. */
static void change_one(struct confinement *c, struct cell *cell, const struct policy *policy,
                       bool replaced)
{
    struct policy copy;
    if (change_hosts(c, cell, policy) < 0)
        cell->retired = true;
    if (replaced || cell->retired || policy_copy(policy, &copy) < 0) {
        cell->retired = true;
        return;
    }
    policy_release(&cell->policy);
    cell->policy = copy;
    cell_set_limits(cell, policy);
}

void confinement_change(struct confinement *c, int root, const struct policy *policy,
                        struct cell **fresh)
{
    struct stat st;
    bool replaced = *fresh != NULL;
    if (fstat(root, &st) < 0)
        st = (struct stat){0};
    for (struct cell *cell = c->cells; cell; cell = cell->next)
        if (cell_is_of(cell, &st))
            change_one(c, cell, policy, replaced);
    if (!replaced)
        return;
    struct cell *cell = take_ptr(*fresh);
    cell->idle_since_ns = clock_monotonic_ns();
    cell->next = c->cells;
    c->cells = cell;
    c->idle_count++;
}

void confinement_forget_change(struct confinement *c, struct cell **fresh)
{
    if (*fresh)
        cell_free(c, take_ptr(*fresh));
}

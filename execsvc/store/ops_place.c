#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

#include "store/ops.h"
#include "store/unnamed.h"

/* What node_note_place and look-ups rely on is as in RENAME. */
static int put_at(struct handle *handle, const struct place *to, bool keep,
                  const struct expectation *expected)
{
    struct workspace *workspace = to->dir->workspace;
    (void)pthread_rwlock_wrlock(&workspace->renames);
    atomic_fetch_add(&workspace->rename_count, 1);
    int r = handle->unnamed ? place_check(to, expected) : -EINVAL;
    if (r == 0) {
        grip_keep_removed(workspace, to->grip.fd, to->name);
        r = unnamed_place(handle->unnamed, handle->fd, to, keep);
    }
    atomic_fetch_add(&workspace->rename_count, 1);
    if (r == 0) {
        unnamed_drop(take_ptr(handle->unnamed));
        node_note_place(to->dir, to->grip.fd, to->name);
    }
    (void)pthread_rwlock_unlock(&workspace->renames);
    return r;
}

OPERATION(place)
{
    const struct wire_place *p = &m->place;
    const struct expectation expected = {.ino = p->expected_ino,
                                         .generation = p->expected_generation,
                                         .version = p->expected_version};
    struct statx stx;
    if (p->flags & ~(uint32_t)(RENAME_NOREPLACE | WIRE_PLACE_TIME))
        return -EINVAL;
    _cleanup_handle_ struct handle *handle = NULL;
    _cleanup_place_ struct place to = PLACE_NONE;
    int r = handle_get(session, p->handle, &handle);
    if (r == 0)
        r = place_open(session, p->parent, p->name, &to);
    if (r < 0)
        return r;
    if (to.hidden || to.hidden_file)
        return -EPERM;
    if (handle->node->workspace != to.dir->workspace)
        return -EXDEV;
    const struct timespec time = {.tv_sec = p->time.sec, .tv_nsec = p->time.nsec};
    if ((p->flags & WIRE_PLACE_TIME) && handle->unnamed &&
        futimens(handle->fd, (const struct timespec[]){time, time}) < 0)
        return -errno;
    r = put_at(handle, &to, p->flags & RENAME_NOREPLACE, &expected);
    if (r == 0)
        r = grip_statx_fd(handle->fd, &stx);
    if (r < 0)
        return r;
    ret->message = (struct wire_message){.type = WIRE_PLACED};
    r = node_attr(handle->node, &stx, &ret->message.placed.attr);
    if (r == 0)
        place_attr(&to, &ret->message.placed.directory);
    return r;
}

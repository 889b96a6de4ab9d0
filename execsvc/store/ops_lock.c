#include "store/lock.h"
#include "store/ops.h"

static bool lock_valid(uint64_t start, uint64_t end, uint32_t type)
{
    return start <= end && end <= WIRE_LOCK_END && type <= WIRE_LOCK_WRITE;
}

/* The handle, which must be of that node's file. */
static int get_handle(struct file_session *session, uint64_t number, uint64_t node,
                      struct handle **ret)
{
    _cleanup_handle_ struct handle *handle = NULL;
    int r = handle_get(session, number, &handle);
    if (r < 0)
        return r;
    if (handle->directory || handle->node->number != node)
        return -EBADF;
    *ret = take_ptr(handle);
    return 0;
}

OPERATION(lock_get)
{
    const struct wire_lock_get *g = &m->lock_get;
    if (!lock_valid(g->start, g->end, g->type) || g->type == WIRE_LOCK_NONE)
        return -EINVAL;
    _cleanup_handle_ struct handle *handle = NULL;
    int r = get_handle(session, g->handle, g->node, &handle);
    if (r < 0)
        return r;
    const struct lock_request request = {
        .owner = g->owner, .start = g->start, .end = g->end, .type = g->type};
    ret->message = (struct wire_message){.type = WIRE_LOCK_FOUND};
    return lock_get(session, handle, &request, &ret->message.lock_found);
}

OPERATION(lock_set)
{
    const struct wire_lock_set *s = &m->lock_set;
    bool whole = s->flags & WIRE_LOCK_FLOCK;
    if (!lock_valid(s->start, s->end, s->type) ||
        (s->flags & ~(uint32_t)(WIRE_LOCK_WAIT | WIRE_LOCK_FLOCK)) ||
        (whole && (s->start != 0 || s->end != WIRE_LOCK_END)))
        return -EINVAL;
    _cleanup_handle_ struct handle *handle = NULL;
    int r = s->type == WIRE_LOCK_NONE ? 0 : get_handle(session, s->handle, s->node, &handle);
    if (r < 0)
        return r;
    const struct lock_request request = {
        .owner = s->owner, .start = s->start, .end = s->end, .type = s->type, .flock = whole};
    bool freed = false;
    r = lock_set(session, s->node, handle, &request, &freed);
    if (freed)
        ret->unlocked = s->node;
    if (r == 0)
        reply_ok(ret);
    return r;
}

OPERATION(lock_claim)
{
    if (lock_claim(session, m->lock_claim.secret.data))
        ret->unlocked = REPLY_UNLOCKED_ANY;
    reply_ok(ret);
    return 0;
}

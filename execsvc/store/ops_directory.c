#include "store/listing.h"

#include <sys/syscall.h>

static int seek(struct handle *handle, uint64_t cookie)
{
    if (handle->position == cookie)
        return 0;
    if (cookie > INT64_MAX)
        return -EINVAL;
    /* The kernel's own cookies: they stay right while entries come and go. */
    if (lseek(handle->fd, (off_t)cookie, SEEK_SET) < 0)
        return -errno;
    handle->position = cookie;
    return 0;
}

static int fill_locked(struct listing *l, struct handle *handle, uint64_t cookie, bool *ret_end)
{
    int r = seek(handle, cookie);
    if (r < 0)
        return r;
    _Alignas(struct kernel_dirent) uint8_t block[LISTING_BLOCK_SIZE];
    *ret_end = false;
    while (!l->full) {
        long n = syscall(SYS_getdents64, handle->fd, block, sizeof block);
        if (n == 0) {
            listing_settle(l);
            *ret_end = true;
        }
        if (n <= 0)
            return n < 0 ? -errno : 0;
        bool within;
        r = listing_add_block(l, block, (size_t)n, &within);
        handle->position = within ? LISTING_POSITION_UNKNOWN : l->position;
        if (r < 0)
            return r;
    }
    return 0;
}

OPERATION(readdir)
{
    _cleanup_handle_ struct handle *handle = NULL;
    int r = handle_get(session, m->readdir.handle, &handle);
    if (r < 0)
        return r;
    if (!handle->directory)
        return -ENOTDIR;
    struct listing l = {
        .session = session,
        .dir = handle->node,
        .fd = handle->fd,
        .list = &ret->storage,
        .size = m->readdir.size < LISTING_SIZE_MAX ? m->readdir.size : LISTING_SIZE_MAX,
        .plus = m->readdir.plus,
    };
    r = view_open(session, handle->node, &l.view);
    if (r < 0)
        return r == -ESTALE ? -ENOENT : r;
    bool end = false;
    (void)pthread_mutex_lock(&handle->position_lock);
    r = fill_locked(&l, handle, m->readdir.cookie, &end);
    if (r < 0)
        handle->position = LISTING_POSITION_UNKNOWN;
    (void)pthread_mutex_unlock(&handle->position_lock);
    view_close(&l.view);
    /* Entries that are in the list have been counted as given; the error comes again. */
    if (r < 0 && l.count == 0)
        return r;
    ret->message =
        (struct wire_message){.type = WIRE_DIRENTS,
                              .dirents = {.end = end,
                                          .unlisted = l.left_out.unlisted,
                                          .hidden = l.left_out.hidden,
                                          .entries = wire_list_of(&ret->storage, l.count)}};
    listing_count(&l);
    return 0;
}

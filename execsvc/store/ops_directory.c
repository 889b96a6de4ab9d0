#include "store/ops.h"

#include <dirent.h>
#include <fcntl.h>
#include <string.h>
#include <sys/syscall.h>

/* As in the table: what a DIRENTS list can hold. */
#define LIST_COUNT_MAX 65536
#define LIST_SIZE_MAX 0x100000

/* Bytes asked of the kernel at once. One of its entries becomes several times as much on the
 * wire, so that this is about one reply. */
#define BLOCK_SIZE 32768

/* A position that no cookie equals, so that the next READDIR seeks. */
#define POSITION_UNKNOWN UINT64_MAX

struct kernel_dirent {
    uint64_t ino;
    int64_t next;
    uint16_t size;
    uint8_t type;
    char name[];
};

struct listing {
    struct file_session *session;
    struct handle *handle;
    struct buffer *list;
    size_t size; /* list bytes asked for */
    struct view view;
    uint32_t count;
    struct {
        uint32_t unlisted, hidden;
    } left_out, pending; /* pending: since the last entry that is in the list; READDIR goes on
                            behind that, so they may be met again */
    bool plus;
    bool full;
};

/* --- one entry ------------------------------------------------------------------- */

static void list_patch_u32(struct buffer *b, size_t at, uint32_t v)
{
    for (size_t i = 0; i < 4; i++)
        b->data[at + i] = (uint8_t)(v >> (8 * i));
}

/* Appends a DIRENT, encoded in place. */
static int append(struct listing *l, const struct wire_message *entry)
{
    size_t before = l->list->len;
    int r = buffer_append_u32(l->list, 0);
    if (r == 0)
        r = wire_encode(l->list, entry);
    if (r < 0) {
        l->list->len = before;
        return r;
    }
    list_patch_u32(l->list, before, (uint32_t)(l->list->len - before - 4));
    l->count++;
    return 0;
}

/* The entry without attributes, for the DIRENT of a plain listing. */
static int describe(struct listing *l, const struct kernel_dirent *d, struct wire_dirent *ret)
{
    struct node *dir = l->handle->node;
    struct workspace *workspace = dir->workspace;
    ret->type = DTTOIF(d->type);
    if (d->type == DT_UNKNOWN) {
        struct statx stx;
        if (statx(l->handle->fd, d->name, AT_SYMLINK_NOFOLLOW, STATX_TYPE, &stx) < 0)
            return -errno;
        ret->type = stx.stx_mode & S_IFMT;
    }
    return inode_number(workspace->store->numbers, workspace->slot, workspace->device, dir->device,
                        d->ino, &ret->ino);
}

/* 0, also when the entry has vanished and is left out. */
static int add(struct listing *l, const struct kernel_dirent *d)
{
    struct wire_message entry = {.type = WIRE_DIRENT};
    struct wire_dirent *dirent = &entry.dirent;
    dirent->cookie = (uint64_t)d->next;
    dirent->name = bytes_of_string(d->name);
    int r = -EACCES;
    if (l->plus)
        r = entry_find(l->session, &l->view, l->handle->node, l->handle->fd, d->name, &dirent->attr,
                       &dirent->node);
    if (r == 0) {
        dirent->ino = dirent->attr.ino;
        dirent->type = dirent->attr.mode & S_IFMT;
    } else if (r != -ENOENT && r != -ENOMEM) {
        /* A directory that may be read but not searched, or too many nodes: the name alone. */
        r = describe(l, d, dirent);
    }
    if (r < 0)
        return r == -ENOENT ? 0 : r;
    r = append(l, &entry);
    if (r < 0 && dirent->node)
        node_forget(l->session, dirent->node, 1);
    return r;
}

/* --- the listing ----------------------------------------------------------------- */

static enum visibility see(const struct listing *l, const struct kernel_dirent *d)
{
    struct bytes name = bytes_of_string(d->name);
    enum visibility as_file = view_of(&l->view, name, false);
    enum visibility as_directory = view_of(&l->view, name, true);
    if (as_file == as_directory)
        return as_file;
    bool directory = d->type == DT_DIR;
    if (d->type == DT_UNKNOWN) {
        struct statx stx;
        directory = statx(l->handle->fd, d->name, AT_SYMLINK_NOFOLLOW, STATX_TYPE, &stx) == 0 &&
                    S_ISDIR(stx.stx_mode);
    }
    return directory ? as_directory : as_file;
}

/* False, and counted, for what the rules leave out. */
static bool is_listed(struct listing *l, const struct kernel_dirent *d)
{
    if (d->name[0] == '.' && (d->name[1] == '\0' || (d->name[1] == '.' && d->name[2] == '\0')))
        return false;
    enum visibility v = see(l, d);
    if (visibility_listed(&l->view.dir, v))
        return true;
    *(v == VISIBILITY_HIDDEN ? &l->pending.hidden : &l->pending.unlisted) += 1;
    return false;
}

static void settle_left_out(struct listing *l)
{
    l->left_out.unlisted += l->pending.unlisted;
    l->left_out.hidden += l->pending.hidden;
    l->pending.unlisted = l->pending.hidden = 0;
}

static bool fits(const struct listing *l, size_t name_len)
{
    /* cookie, node, ino, type, the name's length, attributes, the element's own length */
    const size_t fixed = 8 + 8 + 8 + 4 + 4 + WIRE_ATTR_SIZE + 4;
    /* At least one, however little was asked for: an empty reply would mean the end. */
    return l->count == 0 ||
           (l->count < LIST_COUNT_MAX && l->list->len + fixed + name_len <= l->size);
}

/* Takes entries of one block until the list is full; moves handle->position along. */
static int add_block(struct listing *l, const uint8_t *block, size_t len)
{
    for (size_t at = 0; at < len;) {
        const struct kernel_dirent *d = (const void *)(block + at);
        if (is_listed(l, d)) {
            l->full = !fits(l, strlen(d->name));
            int r = l->full ? 0 : add(l, d);
            if (l->full || r < 0) {
                /* The descriptor stands behind the block. */
                l->handle->position = POSITION_UNKNOWN;
                return r;
            }
            settle_left_out(l);
        }
        l->handle->position = (uint64_t)d->next;
        at += d->size;
    }
    return 0;
}

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

static int fill_locked(struct listing *l, uint64_t cookie, bool *ret_end)
{
    int r = seek(l->handle, cookie);
    if (r < 0)
        return r;
    _Alignas(struct kernel_dirent) uint8_t block[BLOCK_SIZE];
    *ret_end = false;
    while (!l->full) {
        long n = syscall(SYS_getdents64, l->handle->fd, block, sizeof block);
        if (n == 0) {
            settle_left_out(l);
            *ret_end = true;
        }
        if (n <= 0)
            return n < 0 ? -errno : 0;
        r = add_block(l, block, (size_t)n);
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
        .handle = handle,
        .list = &ret->storage,
        .size = m->readdir.size < LIST_SIZE_MAX ? m->readdir.size : LIST_SIZE_MAX,
        .plus = m->readdir.plus,
    };
    r = view_open(session, handle->node, &l.view);
    if (r < 0)
        return r == -ESTALE ? -ENOENT : r;
    bool end = false;
    (void)pthread_mutex_lock(&handle->position_lock);
    r = fill_locked(&l, m->readdir.cookie, &end);
    if (r < 0)
        handle->position = POSITION_UNKNOWN;
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
    struct workspace *workspace = handle->node->workspace;
    atomic_fetch_add(&workspace->unlisted, l.left_out.unlisted);
    atomic_fetch_add(&workspace->hidden, l.left_out.hidden);
    return 0;
}

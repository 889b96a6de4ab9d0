#include "store/listing.h"

#include <dirent.h>
#include <fcntl.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "wire/part.h"

/* --- the directory ----------------------------------------------------------------- */

/* Of another's directory only who may do everything can read it without setting its access time. */
int directory_open(struct node *dir, int *ret_fd)
{
    int flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOATIME;
    _cleanup_grip_ struct grip grip = {.fd = -1};
    int r = grip_take(dir, &grip, NULL);
    if (r < 0)
        return r;
    int fd = openat(grip.fd, ".", flags);
    if (fd < 0 && errno == EPERM) {
        flags &= ~O_NOATIME;
        fd = openat(grip.fd, ".", flags);
    }
    if (fd < 0 && (errno == EMFILE || errno == ENFILE)) {
        grip_trim(dir->workspace->store, 0);
        fd = openat(grip.fd, ".", flags);
    }
    if (fd < 0)
        return -errno;
    *ret_fd = fd;
    return 0;
}

static bool is_dots(const char *name)
{
    return name[0] == '.' && (name[1] == '\0' || (name[1] == '.' && name[2] == '\0'));
}

bool directory_is_empty(struct node *dir)
{
    _Alignas(struct kernel_dirent) uint8_t block[1024];
    _cleanup_close_ int fd = -1;
    long n = -1;
    if (directory_open(dir, &fd) < 0)
        return false;
    while ((n = syscall(SYS_getdents64, fd, block, sizeof block)) > 0)
        for (long at = 0; at < n;) {
            const struct kernel_dirent *d = (const void *)(block + at);
            if (!is_dots(d->name))
                return false;
            at += d->size;
        }
    return n == 0;
}

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
    struct node *dir = l->dir;
    struct workspace *workspace = dir->workspace;
    ret->type = DTTOIF(d->type);
    if (d->type == DT_UNKNOWN) {
        struct statx stx;
        if (statx(l->fd, d->name, AT_SYMLINK_NOFOLLOW, STATX_TYPE, &stx) < 0)
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
        r = entry_find(l->session, &l->view, l->dir, l->fd, d->name, &dirent->attr, &dirent->node);
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
        directory = statx(l->fd, d->name, AT_SYMLINK_NOFOLLOW, STATX_TYPE, &stx) == 0 &&
                    S_ISDIR(stx.stx_mode);
    }
    return directory ? as_directory : as_file;
}

/* False, and counted, for what the rules leave out. */
static bool is_listed(struct listing *l, const struct kernel_dirent *d)
{
    if (is_dots(d->name))
        return false;
    enum visibility v = see(l, d);
    if (visibility_listed(&l->view.dir, v))
        return true;
    *(v == VISIBILITY_HIDDEN ? &l->pending.hidden : &l->pending.unlisted) += 1;
    return false;
}

void listing_settle(struct listing *l)
{
    l->left_out.unlisted += l->pending.unlisted;
    l->left_out.hidden += l->pending.hidden;
    l->pending.unlisted = l->pending.hidden = 0;
}

size_t listing_entry_size(size_t name_len)
{
    /* cookie, node, ino, type, the name's length, attributes, the element's own length */
    const size_t fixed = 8 + 8 + 8 + 4 + 4 + WIRE_ATTR_SIZE + 4;
    return fixed + name_len;
}

static bool fits(const struct listing *l, size_t name_len)
{
    /* At least one, however little was asked for: an empty reply would mean the end. */
    return l->count == 0 || (l->count < LISTING_COUNT_MAX && !l->cut &&
                             l->list->len + listing_entry_size(name_len) <= l->size);
}

static void note_part(struct listing *l, struct bytes name)
{
    if (!l->in_parts || !part_ends(name, l->list->len - l->part_start))
        return;
    l->part_start = l->list->len;
    l->cut = l->list->len + PART_SIZE_MAX > l->size;
}

int listing_add_block(struct listing *l, const uint8_t *block, size_t len, bool *ret_within)
{
    *ret_within = false;
    for (size_t at = 0; at < len;) {
        const struct kernel_dirent *d = (const void *)(block + at);
        if (is_listed(l, d)) {
            uint32_t count = l->count;
            l->full = !fits(l, strlen(d->name));
            int r = l->full ? 0 : add(l, d);
            if (l->count > count)
                note_part(l, bytes_of_string(d->name));
            if (l->full || r < 0) {
                *ret_within = true;
                return r;
            }
            listing_settle(l);
        }
        l->position = (uint64_t)d->next;
        at += d->size;
    }
    return 0;
}

void listing_count(const struct listing *l)
{
    struct workspace *workspace = l->dir->workspace;
    atomic_fetch_add(&workspace->unlisted, l->left_out.unlisted);
    atomic_fetch_add(&workspace->hidden, l->left_out.hidden);
}

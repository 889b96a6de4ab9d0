#include "ops.h"

#include "coherence.h"

#include <limits.h>
#include <linux/fuse.h>
#include <sys/mount.h>

/* List bytes asked of the server: the first page answers small directories in one round trip
 * without much waste for those who read only the start; the later ones are for long ones. */
#define FIRST_PAGE 0x10000
#define LATER_PAGE 0x40000

/* Cookies of "." and "..", which the server does not list; its own are as the file systems
 * give them, and none gives these. */
#define COOKIE_DOT (INT64_MAX - 3)
#define COOKIE_DOT_DOT (INT64_MAX - 2)

static void opendir_done(struct request *r, int error, const struct wire_message *reply)
{
    struct driver *d = r->driver;
    if (error < 0) {
        request_fail(r, error == -ENOENT ? -ESTALE : error);
        return;
    }
    struct handle *h;
    uint64_t wire = reply ? reply->opened.handle : 0;
    error =
        handle_new(&d->handles, r->inode, wire, d->inodes.connection, r->message.open.flags, &h);
    if (error < 0) {
        if (wire)
            (void)buffer_append_u64(&d->handles.releases, wire);
        request_fail(r, error);
        return;
    }
    struct fuse_file_info fi = {.fh = h->id};
    if (reply) {
        fi.keep_cache = coherence_keep_cache(d, r->inode, &reply->opened.attr, r->stamp);
        fi.cache_readdir = (r->inode->flags & INODE_CACHED) != 0;
    }
    if (fuse_reply_open(r->fuse, &fi) != 0)
        handle_release(&d->handles, h);
    request_free(r);
}

void op_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct request *r = request_start(req, WIRE_OPEN, NULL, NULL);
    if (!r || !request_set_inode(r, ino))
        return;
    r->message.open.flags = WIRE_OPEN_READ | WIRE_OPEN_DIRECTORY |
                            open_atime_flag(r->driver, fi->flags, MS_NOATIME | MS_NODIRATIME);
    if (root_is_local(r->driver, ino))
        opendir_done(r, 0, NULL);
    else
        request_send(r, opendir_done);
}

/* The answer under construction. */
struct page {
    struct request *r;
    char *data;
    size_t len;
};

/* Adds a name without attributes. false: no room. */
static bool page_add(struct page *p, const char *name, uint64_t ino, mode_t type, off_t cookie)
{
    size_t room = p->r->size - p->len, need;
    if (p->r->plus) {
        /* Node ID 0: the kernel takes the name and learns nothing about the file. */
        struct fuse_entry_param e = {.attr = {.st_ino = ino, .st_mode = type}};
        need = fuse_add_direntry_plus(p->r->fuse, p->data + p->len, room, name, &e, cookie);
    } else {
        struct stat st = {.st_ino = ino, .st_mode = type};
        need = fuse_add_direntry(p->r->fuse, p->data + p->len, room, name, &st, cookie);
    }
    if (need > room)
        return false;
    p->len += need;
    return true;
}

/* Adds a name with its inode, which counts one reference of the kernel. The wire reference of
 * the entry is consumed in any case but "no room". */
static bool page_add_inode(struct page *p, const struct listing *l, const char *name,
                           const struct wire_dirent *entry)
{
    struct driver *d = p->r->driver;
    size_t room = p->r->size - p->len;
    if (fuse_add_direntry_plus(p->r->fuse, NULL, 0, name, NULL, 0) > room)
        return false;
    struct inode *i;
    if (inode_enter(&d->inodes, entry->node, &entry->attr, 0, p->r->handle->inode, entry->name,
                    &i) < 0)
        return page_add(p, name, entry->ino, entry->type, (off_t)entry->cookie);
    if (i->stamp > l->stamp) {
        /* The file was changed by this mount after these attributes were taken. The kernel
         * would believe them, and cut cached pages at the old size. */
        inode_drop(&d->inodes, i);
        return page_add(p, name, entry->ino, entry->type, (off_t)entry->cookie);
    }
    struct fuse_entry_param e;
    request_entry(d, p->r->handle->inode, i, &entry->attr, l->stamp, &e);
    inode_looked_up(i);
    p->len +=
        fuse_add_direntry_plus(p->r->fuse, p->data + p->len, room, name, &e, (off_t)entry->cookie);
    return true;
}

/* The page did not arrive: the kernel got none of its references. */
static void page_forget(const struct page *p)
{
    struct inode_table *inodes = &p->r->driver->inodes;
    const struct fuse_direntplus *entry;
    for (size_t at = 0; at < p->len; at += FUSE_DIRENTPLUS_SIZE(entry)) {
        entry = (const void *)(p->data + at);
        struct inode *i =
            entry->entry_out.nodeid ? inode_get(inodes, entry->entry_out.nodeid) : NULL;
        if (i)
            inode_forget(inodes, i, 1);
    }
}

static bool name_fits_kernel(struct bytes name)
{
    return !memchr(name.data, '/', name.len) && !memchr(name.data, '\0', name.len) &&
           !(name.data[0] == '.' && (name.len == 1 || (name.len == 2 && name.data[1] == '.')));
}

/* Serves what the listing holds into the page. Negative errno only for malformed elements. */
static int serve(struct page *p, struct listing *l)
{
    struct driver *d = p->r->driver;
    struct wire_message m;
    uint32_t next;
    int r;
    while ((r = listing_peek(l, &m, &next)) > 0) {
        const struct wire_dirent *entry = &m.dirent;
        char name[WIRE_NAME_MAX + 1];
        memcpy(name, entry->name.data, entry->name.len);
        name[entry->name.len] = '\0';
        bool current = entry->node && l->connection == d->inodes.connection;
        bool added = true;
        if (!name_fits_kernel(entry->name)) {
            if (current)
                inode_give_back(&d->inodes, entry->node, 1);
        } else if (current && p->r->plus) {
            added = page_add_inode(p, l, name, entry);
        } else {
            added = page_add(p, name, entry->ino, entry->type, (off_t)entry->cookie);
            if (added && current)
                inode_give_back(&d->inodes, entry->node, 1);
        }
        if (!added)
            return 0;
        listing_take(l, &m, next);
    }
    return r;
}

static void readdir_done(struct request *r, int error, const struct wire_message *reply);

static void fetch(struct request *r, uint64_t cookie, bool first)
{
    r->offset = cookie;
    r->message.readdir.cookie = cookie;
    r->message.readdir.size = first ? FIRST_PAGE : LATER_PAGE;
    r->message.readdir.plus = r->plus;
    request_send(r, readdir_done);
}

static void answer(struct request *r, off_t off)
{
    struct driver *d = r->driver;
    struct handle *h = r->handle;
    struct page p = {.r = r, .data = malloc(r->size ? r->size : 1)};
    if (!p.data) {
        request_fail(r, -ENOMEM);
        return;
    }
    struct inode *dir = h->inode, *up = dir->parent ? dir->parent : dir;
    bool room = true;
    if (off == 0)
        room = page_add(&p, ".", dir->ino, S_IFDIR, COOKIE_DOT);
    if (room && (off == 0 || off == COOKIE_DOT))
        room = page_add(&p, "..", up->ino, S_IFDIR, COOKIE_DOT_DOT);
    int error = room && h->listing ? serve(&p, h->listing) : 0;
    if (error < 0 && p.len == 0) {
        request_fail(r, -EIO);
    } else {
        if (fuse_reply_buf(r->fuse, p.data, p.len) != 0 && r->plus)
            page_forget(&p);
        request_free(r);
    }
    free(p.data);
    driver_notices_pending(d);
}

static uint64_t server_cookie(off_t off)
{
    return off == COOKIE_DOT || off == COOKIE_DOT_DOT ? 0 : (uint64_t)off;
}

static void readdir_done(struct request *r, int error, const struct wire_message *reply)
{
    struct driver *d = r->driver;
    if (error < 0) {
        request_fail(r, error);
        return;
    }
    struct listing *l;
    error = listing_new(&d->inodes, &reply->dirents, r->offset, r->stamp, &l);
    if (error < 0) {
        request_fail(r, error);
        return;
    }
    d->stats.unlisted += reply->dirents.unlisted;
    d->stats.hidden += reply->dirents.hidden;
    listing_free(&d->inodes, r->handle->listing);
    r->handle->listing = l;
    answer(r, (off_t)r->position);
}

static void read_directory(fuse_req_t req, size_t size, off_t off, struct fuse_file_info *fi,
                           bool plus)
{
    struct request *r = request_start(req, WIRE_READDIR, NULL, NULL);
    if (!r || !request_set_handle(r, fi))
        return;
    r->size = size;
    r->position = (uint64_t)off;
    r->plus = plus;
    if (r->handle->inode->flags & INODE_LOCAL) {
        root_readdir(r);
        return;
    }
    struct listing *l = r->handle->listing;
    uint64_t cookie = server_cookie(off);
    /* Offset 0 is rewinddir(): it must see what is there now. */
    if (off != 0 && l && l->cookie == cookie) {
        if (l->offset < l->entries.len || l->end) {
            answer(r, off);
            return;
        }
        fetch(r, cookie, false);
        return;
    }
    fetch(r, cookie, true);
}

void op_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi)
{
    read_directory(req, size, off, fi, false);
}

void op_readdirplus(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
                    struct fuse_file_info *fi)
{
    read_directory(req, size, off, fi, true);
}

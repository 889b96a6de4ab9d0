#include "ops.h"

#include "coherence.h"
#include "create_ahead.h"
#include "pipeline.h"
#include "prefetch.h"
#include "recall.h"

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

/* List bytes read ahead at once: as much as a TREE holds. */
#define TREE_SIZE 0x100000

/* --- opening ---------------------------------------------------------------------- */

/* wire 0: opened at the service when it is needed (repair.h). attr NULL: nothing is kept. */
static void opened(struct request *r, uint64_t wire, uint32_t connection,
                   const struct wire_attr *attr)
{
    struct driver *d = r->driver;
    struct handle *h;
    int error = handle_new(&d->handles, r->inode, wire, connection, (uint32_t)r->offset, &h);
    if (error < 0) {
        if (wire)
            (void)buffer_append_u64(&d->handles.releases, wire);
        request_fail(r, error);
        return;
    }
    struct fuse_file_info fi = {.fh = h->id};
    if (attr) {
        fi.keep_cache = coherence_keep_cache(d, r->inode, attr, r->stamp);
        fi.cache_readdir = (r->inode->flags & INODE_CACHED) != 0;
    }
    if (fuse_reply_open(r->fuse, &fi) != 0)
        handle_release(&d->handles, h);
    request_free(r);
}

/* What it holds is here, or with the kernel. */
static void opened_here(struct request *r)
{
    const struct wire_attr covered = {.flags = WIRE_ATTR_COVERED};
    r->stamp = r->driver->inodes.stamp;
    opened(r, 0, 0, &covered);
}

static void opendir_done(struct request *r, int error, const struct wire_message *reply)
{
    if (error < 0)
        request_fail(r, error == -ENOENT ? -ESTALE : error);
    else
        opened(r, reply->opened.handle, r->connection, &reply->opened.attr);
}

static void open_at_service(struct request *r)
{
    r->message = (struct wire_message){.type = WIRE_OPEN, .open.flags = (uint32_t)r->offset};
    request_send(r, opendir_done);
}

/* --- reading ahead ------------------------------------------------------------------ */

static bool can_read_ahead(const struct driver *d, const struct inode *directory)
{
    return coherence_live(d) && (directory->flags & INODE_COVERED);
}

/* When somebody goes through the subdirectories of a directory one by one, those that follow come
 * with the one that is opened. */
static int add_following(struct request *r)
{
    struct inode_table *inodes = &r->driver->inodes;
    const struct inode *directory = r->inode;
    struct tree_directory *listing =
        directory->parent ? tree_find(inodes, directory->parent) : NULL;
    if (!listing)
        return 0;
    ssize_t index = tree_named(inodes, listing, inode_name_bytes(directory));
    if (index < 0 || !tree_walks(listing, (size_t)index))
        return 0;
    uint64_t nodes[WIRE_ALSO_MAX];
    size_t count = tree_unread(inodes, listing, (size_t)index + 1, nodes, ARRAY_SIZE(nodes));
    int error = 0;
    for (size_t i = 0; error == 0 && i < count; i++)
        error = buffer_append_u64(&r->storage, nodes[i]);
    return error;
}

/* It has been taken in, and whoever waited for it goes on. */
static void read_ahead_ends(struct request *r)
{
    struct driver *d = r->driver;
    r->inode->flags &= (uint8_t)~INODE_ASKED;
    d->recalling -= (r->message.readtree.flags & WIRE_TREE_DIGESTS) != 0;
    tree_answered(&d->inodes);
    lookup_again(d);
    prefetch_listed(d);
    r->then(r);
}

static void recalled(struct request *r, struct wire_tree_directory *directories, size_t count,
                     bool first)
{
    struct driver *d = r->driver;
    r->inode->flags |= INODE_READ;
    tree_take_directories(&d->inodes, directories, count, first ? r->message.readtree.cookie : 0,
                          r->stamp, can_read_ahead(d, r->inode));
    driver_notices_pending(d);
    read_ahead_ends(r);
}

static void tree_came(struct request *r, int error, const struct wire_message *reply)
{
    struct driver *d = r->driver;
    if (error == 0 && r->message.readtree.flags & WIRE_TREE_DIGESTS) {
        recall_start(r, &reply->tree.digests, recalled);
        return;
    }
    if (error == 0) {
        bool keep = can_read_ahead(d, r->inode);
        r->inode->flags |= INODE_READ;
        tree_take(&d->inodes, &reply->tree, r->message.readtree.cookie, r->stamp, keep);
        if (keep)
            recall_keep(d, &reply->tree);
        driver_notices_pending(d);
    }
    read_ahead_ends(r);
}

/* Sends r, of `directory`, as a READTREE of what follows cookie. */
static void read_ahead(struct request *r, struct inode *directory, uint64_t cookie,
                       void (*then)(struct request *r))
{
    bool again = directory->flags & INODE_READ;
    int error = cookie ? 0 : add_following(r);
    r->then = then;
    r->message = (struct wire_message){.type = WIRE_READTREE,
                                       .readtree = {.size = TREE_SIZE,
                                                    .flags = again || cookie ? WIRE_TREE_ALONE : 0,
                                                    .cookie = cookie,
                                                    .also = buffer_view(&r->storage)}};
    /* What this mount has seen before has changed since, or was too much to keep. */
    if ((!again || cookie) && recall_may(r->driver, directory, &r->message.readtree.age))
        r->message.readtree.flags |= WIRE_TREE_DIGESTS;
    if (error == 0)
        error = tree_asked(&r->driver->inodes);
    if (error < 0) {
        if (!r->handle)
            r->handle = take_ptr(r->context);
        request_fail(r, error);
        return;
    }
    directory->flags |= INODE_ASKED;
    r->driver->recalling += (r->message.readtree.flags & WIRE_TREE_DIGESTS) != 0;
    request_send(r, tree_came);
}

bool directory_awaited(const struct inode *directory)
{
    if (directory->flags & INODE_ASKED)
        return true;
    const struct inode *i = directory->parent;
    while (i && ((i->flags & INODE_READ) || !(i->flags & INODE_ASKED)))
        i = i->parent;
    return i;
}

/* What follows cookie; nobody waits for it. */
static void read_quietly(struct driver *d, struct inode *directory, uint64_t cookie)
{
    struct request *r;
    if (request_new(d, NULL, WIRE_READTREE, NULL, NULL, &r) < 0)
        return;
    r->inode = inode_pin(directory);
    r->quiet = r->once = true;
    r->connection = d->inodes.connection;
    read_ahead(r, directory, cookie, request_free);
}

void directory_missed(struct driver *d, struct inode *directory)
{
    const struct tree_directory *listing = tree_find(&d->inodes, directory);
    bool again = listing && tree_was_added_to(listing);
    bool more = listing ? again || tree_can_go_on(listing) : !(directory->flags & INODE_READ);
    if (!more || (directory->flags & INODE_ASKED) || !can_read_ahead(d, directory))
        return;
    /* One look-up does not make it a place where something is done, unless all begins there, or
     * what is not known now will be missed. */
    if (!d->options->serve && (listing || !(directory->flags & INODE_WORKSPACE)))
        directory->flags ^= INODE_MISSED;
    if (!(directory->flags & INODE_MISSED))
        read_quietly(d, directory, listing && !again ? tree_cookie(listing) : 0);
}

bool directory_read_below(struct driver *d, uint64_t ino, uint64_t generation)
{
    struct inode *i = inode_identified(&d->inodes, ino, generation, NULL);
    if (i && !(i->flags & (INODE_ASKED | INODE_READ)) && can_read_ahead(d, i))
        read_quietly(d, i, 0);
    return i && (i->flags & INODE_ASKED);
}

static void opendir_read(struct request *r)
{
    if (tree_find(&r->driver->inodes, r->inode))
        opened_here(r);
    else
        open_at_service(r);
}

/* What it lists is here, or with the kernel. */
static bool is_known(struct driver *d, const struct inode *directory)
{
    if (!coherence_knows(d) || !(directory->flags & INODE_COVERED))
        return false;
    const struct tree_directory *listing = tree_find(&d->inodes, directory);
    if (!listing)
        return directory->flags & INODE_CACHED;
    return !tree_is_stale(listing) || coherence_serving(d);
}

void op_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct request *r = request_start(req, WIRE_OPEN, NULL, NULL);
    if (!r || !request_set_inode(r, ino))
        return;
    struct driver *d = r->driver;
    r->offset = WIRE_OPEN_READ | WIRE_OPEN_DIRECTORY |
                open_atime_flag(d, fi->flags, MS_NOATIME | MS_NODIRATIME);
    if (root_is_local(d, ino)) {
        opened(r, 0, d->inodes.connection, NULL);
        return;
    }
    if (is_known(d, r->inode)) {
        r->inode->flags |= INODE_READ;
        opened_here(r);
    } else if (can_read_ahead(d, r->inode)) {
        read_ahead(r, r->inode, 0, opendir_read);
    } else {
        open_at_service(r);
    }
}

/* --- listing --------------------------------------------------------------------------- */

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
    uint64_t shown = driver_ino(p->r->driver, ino);
    if (p->r->plus) {
        /* Node ID 0: the kernel takes the name and learns nothing about the file. */
        struct fuse_entry_param e = {.attr = {.st_ino = shown, .st_mode = type}};
        need = fuse_add_direntry_plus(p->r->fuse, p->data + p->len, room, name, &e, cookie);
    } else {
        struct stat st = {.st_ino = shown, .st_mode = type};
        need = fuse_add_direntry(p->r->fuse, p->data + p->len, room, name, &st, cookie);
    }
    if (need > room)
        return false;
    p->len += need;
    return true;
}

static bool page_has_room(const struct page *p, const char *name)
{
    return fuse_add_direntry_plus(p->r->fuse, NULL, 0, name, NULL, 0) <= p->r->size - p->len;
}

/* Adds a name with its inode, which counts one reference of the kernel; there is room. */
static void page_add_known(struct page *p, const char *name, struct inode *i,
                           const struct wire_dirent *entry, uint64_t stamp)
{
    struct fuse_entry_param e;
    request_entry(p->r->driver, p->r->handle->inode, i, &entry->attr, stamp, &e);
    inode_looked_up(i);
    p->len += fuse_add_direntry_plus(p->r->fuse, p->data + p->len, p->r->size - p->len, name, &e,
                                     (off_t)entry->cookie);
}

/* Adds a name with its inode. The wire reference of the entry is consumed in any case but "no
 * room". */
static bool page_add_inode(struct page *p, const struct listing *l, const char *name,
                           const struct wire_dirent *entry)
{
    struct driver *d = p->r->driver;
    if (!page_has_room(p, name))
        return false;
    struct inode *i;
    if (inode_enter(&d->inodes, entry->node, &entry->attr, 0, p->r->handle->inode, entry->name,
                    &i) < 0)
        return page_add(p, name, entry->ino, entry->type, (off_t)entry->cookie);
    if (i->stamp > l->stamp || pipeline_pending(d, i)) {
        /* The file was changed by this mount after these attributes were taken. The kernel
         * would believe them, and cut cached pages at the old size. */
        inode_drop(&d->inodes, i);
        return page_add(p, name, entry->ino, entry->type, (off_t)entry->cookie);
    }
    page_add_known(p, name, i, entry, l->stamp);
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

static void copy_name(const struct wire_dirent *entry, char ret[WIRE_NAME_MAX + 1])
{
    memcpy(ret, entry->name.data, entry->name.len);
    ret[entry->name.len] = '\0';
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
        copy_name(entry, name);
        bool current = entry->node && l->connection == d->inodes.connection;
        bool added = true;
        if (!listing_name_fits(entry->name)) {
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

/* Serves what was read ahead, from index on. */
static void serve_read_ahead(struct page *p, const struct tree_directory *listing, size_t index)
{
    struct driver *d = p->r->driver;
    for (; index < tree_count(listing); index++) {
        struct wire_dirent entry;
        char name[WIRE_NAME_MAX + 1];
        struct inode *i;
        tree_read(listing, index, &entry);
        if (entry.name.len == 0)
            continue;
        copy_name(&entry, name);
        bool plus = p->r->plus && entry.node;
        if (plus && !page_has_room(p, name))
            break;
        if (plus &&
            inode_lend(&d->inodes, entry.node, &entry.attr, p->r->handle->inode, entry.name, &i) ==
                0 &&
            !pipeline_pending(d, i))
            page_add_known(p, name, i, &entry, d->inodes.stamp); /* it is right as of now */
        else if (!page_add(p, name, entry.ino, entry.type, (off_t)entry.cookie))
            break;
    }
    p->r->handle->tree_index = index;
}

static void readdir_done(struct request *r, int error, const struct wire_message *reply);

static void fetch(struct request *r, uint64_t cookie, bool first)
{
    r->offset = cookie;
    r->message = (struct wire_message){
        .type = WIRE_READDIR,
        .readdir = {.cookie = cookie, .size = first ? FIRST_PAGE : LATER_PAGE, .plus = r->plus}};
    request_send(r, readdir_done);
}

/* Answers from what was read ahead, or else from the handle's own listing. */
static void answer(struct request *r, off_t off, const struct tree_directory *ahead, size_t index)
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
    int error = 0;
    if (room && ahead)
        serve_read_ahead(&p, ahead, index);
    else if (room && h->listing)
        error = serve(&p, h->listing);
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
    attrs_changed(&d->inodes, r->handle->inode->ino, r->handle->inode->generation);
    d->stats.unlisted += reply->dirents.unlisted;
    d->stats.hidden += reply->dirents.hidden;
    listing_free(&d->inodes, r->handle->listing);
    r->handle->listing = l;
    answer(r, (off_t)r->position, NULL, 0);
}

static bool answer_read_ahead(struct request *r, off_t off, uint64_t cookie)
{
    struct handle *h = r->handle;
    const struct tree_directory *ahead = tree_find(&r->driver->inodes, h->inode);
    ssize_t index = ahead ? tree_index(ahead, cookie, h->tree_index) : -ENOENT;
    if (index < 0 || ((size_t)index == tree_count(ahead) && !tree_is_complete(ahead)) ||
        (off == 0 && tree_was_added_to(ahead)))
        return false;
    if (off == 0) {
        /* A page that is left from an earlier pass would be older. */
        listing_free(&r->driver->inodes, h->listing);
        h->listing = NULL;
    }
    answer(r, off, ahead, (size_t)index);
    return true;
}

/* The request's handle waits in its context meanwhile: it need not be open at the service. */
static void readdir_read_on(struct request *r)
{
    struct inode_table *inodes = &r->driver->inodes;
    uint64_t cookie = r->message.readtree.cookie;
    r->handle = take_ptr(r->context);
    inode_unpin(inodes, take_ptr(r->inode));
    if (!answer_read_ahead(r, (off_t)r->position, cookie))
        fetch(r, cookie, true);
}

/* What was read ahead has been served up to cookie, and is not all: it is asked for more. Or it is
 * to be served from its start, to which something was added. */
static bool read_on(struct request *r, uint64_t cookie)
{
    struct inode *directory = r->handle->inode;
    const struct tree_directory *ahead = tree_find(&r->driver->inodes, directory);
    bool again = ahead && cookie == 0 && tree_was_added_to(ahead);
    bool more = ahead && tree_can_go_on(ahead) && tree_cookie(ahead) == cookie;
    if ((!again && !more) || !can_read_ahead(r->driver, directory))
        return false;
    r->context = take_ptr(r->handle);
    r->inode = inode_pin(directory);
    read_ahead(r, directory, cookie, readdir_read_on);
    return true;
}

static void read_known(struct request *r);

static void read_again(struct request *r, int error, const struct wire_message *reply)
{
    read_known(r);
}

static void read_known(struct request *r)
{
    const off_t off = (off_t)r->position;
    if (create_ahead_in(r->driver, r->handle->inode)) {
        create_ahead_wait(r, read_again);
        return;
    }
    struct listing *l = r->handle->listing;
    uint64_t cookie = server_cookie(off);
    /* Offset 0 is rewinddir(): it must see what is there now. */
    if (off != 0 && l && l->cookie == cookie) {
        if (l->offset < l->entries.len || l->end) {
            answer(r, off, NULL, 0);
            return;
        }
        fetch(r, cookie, false);
        return;
    }
    if (!answer_read_ahead(r, off, cookie) && !read_on(r, cookie))
        fetch(r, cookie, true);
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
    if (r->handle->inode->flags & INODE_LOCAL)
        root_readdir(r);
    else
        read_known(r);
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

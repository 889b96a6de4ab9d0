#include "ops.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "base/clock.h"
#include "climb.h"
#include "coherence.h"
#include "create_ahead.h"
#include "device.h"
#include "join.h"
#include "names.h"
#include "pipeline.h"
#include "repair.h"

static void looked_up(struct request *r, int error, const struct wire_message *reply)
{
    struct driver *d = r->driver;
    if (error == -ENOENT) {
        /* With a timeout, the kernel also remembers that there is none. */
        struct fuse_entry_param none = {
            .entry_timeout = coherence_entry_timeout(d, r->inode, NULL, NULL, r->stamp)};
        if (none.entry_timeout > 0) {
            (void)fuse_reply_entry(r->fuse, &none);
            request_free(r);
            return;
        }
    }
    if (error < 0 && request_reply_unsure(r, error))
        return;
    struct inode *i;
    if (error == 0)
        error = inode_enter(&d->inodes, reply->entry.node, &reply->entry.attr, 0, r->inode,
                            request_name(r), &i);
    if (error < 0)
        request_fail(r, error);
    else
        request_reply_entry(r, i, &reply->entry.attr);
}

static void made(struct request *r, int error, const struct wire_message *reply)
{
    struct driver *d = r->driver;
    if (r->message.type == WIRE_MKDIR)
        d->naming--;
    if (error < 0) {
        request_fail(r, error);
        return;
    }
    const struct wire_made *m = &reply->made;
    /* LINK makes its entry in the target directory, all others in `inode`. */
    struct inode *parent = inode_pin(r->target ? r->target : r->inode), *i;
    names_made(r, parent, &m->attr, &m->directory);
    error = inode_enter(&d->inodes, m->node, &m->attr, 0, parent, request_name(r), &i);
    if (error < 0) {
        request_fail(r, error);
    } else {
        /* The kernel believes these attributes even if it has been told meanwhile that they
         * changed. */
        if (r->message.type == WIRE_LINK)
            inode_changed(&d->inodes, i);
        else if (m->empty && S_ISDIR(m->attr.mode))
            names_made_empty(r, i, &m->attr);
        if (r->message.type == WIRE_MKDIR)
            create_ahead_made_directory(r, i, &m->attr);
        request_reply_entry(r, i, &m->attr);
    }
    names_made_end(d, parent);
    inode_unpin(&d->inodes, parent);
}

/* Answers a look-up of a name that leads to that file, if its attributes are known. So it is with
 * what a rename here has put there: the kernel asks by force about a name that is to be replaced.
 */
static bool find_known(struct request *r, uint64_t ino, uint64_t generation)
{
    struct inode_table *inodes = &r->driver->inodes;
    const struct wire_attr *attr = attrs_get(inodes, ino, generation);
    struct inode *i = attr ? inode_known(inodes, attr, r->inode, request_name(r)) : NULL;
    if (!i || i->parent != r->inode || !attrs_are_sure(i, attr) ||
        !bytes_equal(inode_name_bytes(i), request_name(r)))
        return false;
    request_reply_entry(r, i, attr);
    return true;
}

/* Answers a look-up by what was read ahead. */
static bool find_read_ahead(struct request *r)
{
    struct driver *d = r->driver;
    struct tree_directory *listing = tree_find(&d->inodes, r->inode);
    if (!listing)
        return false;
    /* It is right as of now. */
    r->stamp = d->inodes.stamp;
    if (tree_lacks(&d->inodes, listing, request_name(r))) {
        looked_up(r, -ENOENT, NULL);
        return true;
    }
    struct wire_dirent entry = {0};
    struct inode *i;
    ssize_t index = tree_named(&d->inodes, listing, request_name(r));
    if (index < 0 && !tree_made(&d->inodes, listing, request_name(r), &entry.attr))
        return false;
    if (index >= 0)
        tree_read(listing, (size_t)index, &entry);
    if (index >= 0 && coherence_serving(d))
        tree_read_linked(listing, (size_t)index, &entry);
    if (!entry.node ||
        inode_lend(&d->inodes, entry.node, &entry.attr, r->inode, entry.name, &i) < 0)
        return find_known(r, entry.attr.ino, entry.attr.generation);
    request_reply_entry(r, i, &entry.attr);
    return true;
}

static void look_up(struct request *r);

static void look_up_again(struct request *r, int error, const struct wire_message *reply)
{
    look_up(r);
}

static void look_up(struct request *r)
{
    struct driver *d = r->driver;
    if (create_ahead_at(d, r->inode, request_name(r))) {
        create_ahead_wait(r, look_up_again);
        return;
    }
    if (find_read_ahead(r) || request_reply_told(r))
        return;
    if (directory_awaited(r->inode) && !d->stopping) {
        *d->lookups.last = r;
        d->lookups.last = &r->next;
        return;
    }
    struct inode *directory = inode_pin(r->inode);
    request_send(r, looked_up);
    directory_missed(d, directory);
    inode_unpin(&d->inodes, directory);
}

void op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    climb_end(request_driver(req), req);
    if (root_is_local(request_driver(req), parent)) {
        root_lookup(req, name);
        return;
    }
    struct request *r = request_start(req, WIRE_LOOKUP, name, NULL);
    if (!r || !request_set_inode(r, parent))
        return;
    r->message.lookup.name = request_name(r);
    inode_asked(&r->driver->inodes, r->inode, request_name(r));
    look_up(r);
}

void lookup_again(struct driver *d)
{
    struct request *next, *r = d->lookups.first;
    d->lookups = (struct request_queue){.last = &d->lookups.first};
    for (; r; r = next) {
        next = r->next;
        r->next = NULL;
        look_up(r);
    }
}

void op_forget(fuse_req_t req, fuse_ino_t ino, uint64_t nlookup)
{
    struct driver *d = request_driver(req);
    struct inode *i = inode_get(&d->inodes, ino);
    if (i)
        inode_forget(&d->inodes, i, nlookup);
    fuse_reply_none(req);
    driver_notices_pending(d);
}

void op_forget_multi(fuse_req_t req, size_t count, struct fuse_forget_data *forgets)
{
    for (size_t n = 0; n < count; n++) {
        struct driver *d = device_driver(request_driver(req), forgets[n].ino);
        struct inode *i = d ? inode_get(&d->inodes, forgets[n].ino) : NULL;
        if (i)
            inode_forget(&d->inodes, i, forgets[n].nlookup);
        if (d)
            driver_notices_pending(d);
    }
    fuse_reply_none(req);
}

/* An unlinked file is reached only through a handle, and any one will do. */
static void use_open_handle(struct request *r, uint32_t with)
{
    struct handle *h = pipeline_handle(r->driver, r->inode);
    if (!h)
        h = handle_of(r->inode, r->driver->inodes.connection, with, 0);
    if (h)
        r->handle = handle_pin(h);
}

static const struct handle *opened_here(const struct inode *i)
{
    const struct handle *h = i->handles;
    while (h && !h->attr.ino)
        h = h->next;
    return h;
}

static void getattr_done(struct request *r, int error, const struct wire_message *reply)
{
    struct driver *d = r->driver;
    const struct handle *h = error == -ESTALE ? opened_here(r->inode) : NULL;
    if (error == -EIO && (!d->client || coherence_silent(d)) && r->inode == d->inodes.root) {
        /* The root stays visible, so that it can be left, looked at and unmounted. */
        struct stat st;
        request_stat(d, &d->root_attr, &st);
        (void)fuse_reply_attr(r->fuse, &st, 0);
        request_free(r);
    } else if (h) {
        /* It was unlinked before the service opened it, and what is open lives on here alone. */
        struct wire_attr attr = h->attr;
        attr.nlink = 0;
        attr.flags = 0;
        request_reply_attr(r, r->inode, &attr);
    } else if (error < 0) {
        request_fail(r, error);
    } else {
        pipeline_ordered(r);
        request_reply_attr(r, r->inode, &reply->attrs.attr);
    }
}

/* The kernel asks for the attributes of what it has changed or read once more. The service has told
 * them with its answer to the change; and reading what is here does not set the time of the last
 * access. */
static bool stat_read_ahead(struct request *r)
{
    struct driver *d = r->driver;
    const struct inode *i = r->inode;
    const struct wire_attr *attr = NULL;
    if (i->type == S_IFDIR) {
        const struct tree_directory *listing = tree_find(&d->inodes, i);
        attr = listing ? tree_attr(listing) : NULL;
        if (!attr)
            attr = attrs_get(&d->inodes, i->ino, i->generation);
    } else {
        const struct content *c = content_get(&d->inodes, i->ino, i->generation);
        attr = c && c->here ? &c->attr : attrs_get(&d->inodes, i->ino, i->generation);
        if (attr && !attrs_are_sure(i, attr))
            attr = NULL;
    }
    if (!attr && coherence_serving(d))
        attr = known_attr(&d->inodes, i);
    if (!attr)
        return false;
    r->stamp = d->inodes.stamp;
    const struct wire_attr copy = *attr;
    request_reply_attr(r, r->inode, &copy);
    return true;
}

void op_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct driver *d = request_driver(req);
    climb_passed(d, req, ino);
    if (root_is_local(d, ino)) {
        root_getattr(req);
        return;
    }
    struct request *r = request_start(req, WIRE_GETATTR, NULL, NULL);
    if (!r || !request_set_inode(r, ino))
        return;
    if (r->inode == d->inodes.root && (!d->client || coherence_silent(d))) {
        getattr_done(r, -EIO, NULL);
        return;
    }
    if (fi && !request_set_handle(r, fi))
        return;
    bool pending = pipeline_pending(d, r->inode) || create_ahead_in(d, r->inode);
    if ((r->inode->type != S_IFDIR || !fi || coherence_serving(d)) && !pending &&
        stat_read_ahead(r))
        return;
    if (fi && (pending || (r->handle->connection == 0 && r->inode->type == S_IFREG))) {
        /* Nor need it be opened for that; nor is this the handle to see what is under way. */
        handle_unpin(&d->handles, r->handle);
        r->handle = NULL;
    }
    if (!r->handle)
        use_open_handle(r, 0);
    request_send(r, getattr_done);
}

static void setattr_done(struct request *r, int error, const struct wire_message *reply)
{
    if (!request_was_sent(r)) {
        request_fail(r, error);
        return;
    }
    struct driver *d = r->driver;
    /* Nobody has changed it since it was asked for but this. */
    bool current = error == 0 && !(r->message.setattr.valid & WIRE_SET_SIZE) &&
                   coherence_attr_timeout(d, r->inode, &reply->attrs.attr, r->stamp) > 0;
    /* It may have been done in part. */
    if (r->message.setattr.valid & WIRE_SET_SIZE)
        inode_changed(&d->inodes, r->inode);
    else
        inode_attr_changed(&d->inodes, r->inode);
    pipeline_forget_attr(r->inode);
    if (error < 0) {
        request_fail(r, error);
        return;
    }
    if (current)
        r->stamp = d->inodes.stamp;
    request_reply_attr(r, r->inode, &reply->attrs.attr);
}

static struct wire_time wire_time_of(const struct timespec *t)
{
    return (struct wire_time){.sec = t->tv_sec, .nsec = (uint32_t)t->tv_nsec};
}

/* With owner=map every file is the mounting user's, and can be given to nobody else. */
static int map_owner(const struct driver *d, const struct stat *attr, int *to_set)
{
    if (d->options->owner_server)
        return 0;
    if (((*to_set & FUSE_SET_ATTR_UID) && attr->st_uid != d->uid) ||
        ((*to_set & FUSE_SET_ATTR_GID) && attr->st_gid != d->gid))
        return -EPERM;
    *to_set &= ~(FUSE_SET_ATTR_UID | FUSE_SET_ATTR_GID);
    return 0;
}

/* What the file is like once this is done. False: only the service can tell, or it may refuse. */
static bool foresee(const struct wire_setattr *set, struct wire_attr *attr)
{
    const uint32_t now = WIRE_SET_ATIME_NOW | WIRE_SET_MTIME_NOW;
    bool owner = (set->valid & (WIRE_SET_UID | WIRE_SET_GID)) &&
                 (set->uid != (uint32_t)-1 || set->gid != (uint32_t)-1);
    if (owner || (set->valid & now) || ((attr->mode | set->mode) & (S_ISUID | S_ISGID)))
        return false;
    if (set->valid & WIRE_SET_MODE)
        attr->mode = (attr->mode & S_IFMT) | set->mode;
    if (set->valid & WIRE_SET_SIZE)
        attr->size = set->size;
    if (set->valid & WIRE_SET_ATIME)
        attr->atime = set->atime;
    if (set->valid & WIRE_SET_MTIME)
        attr->mtime = set->mtime;
    return true;
}

static void send_setattr(struct request *r)
{
    struct handle *h = r->handle;
    if (h && h->foreseen && !h->error) {
        struct wire_attr attr = *h->foreseen;
        if (foresee(&r->message.setattr, &attr) && pipeline_send(r, &attr)) {
            h->dirty = true;
            if (h->foreseen) /* it has not failed at once */
                *h->foreseen = attr;
            return;
        }
    }
    request_send(r, setattr_done);
}

void op_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *attr, int to_set,
                struct fuse_file_info *fi)
{
    static const struct {
        int fuse;
        uint32_t wire;
    } bits[] = {
        {FUSE_SET_ATTR_MODE, WIRE_SET_MODE},
        {FUSE_SET_ATTR_UID, WIRE_SET_UID},
        {FUSE_SET_ATTR_GID, WIRE_SET_GID},
        {FUSE_SET_ATTR_SIZE, WIRE_SET_SIZE},
        {FUSE_SET_ATTR_ATIME, WIRE_SET_ATIME},
        {FUSE_SET_ATTR_MTIME, WIRE_SET_MTIME},
        {FUSE_SET_ATTR_ATIME_NOW, WIRE_SET_ATIME | WIRE_SET_ATIME_NOW},
        {FUSE_SET_ATTR_MTIME_NOW, WIRE_SET_MTIME | WIRE_SET_MTIME_NOW},
    };
    struct driver *d = request_driver(req);
    if (root_is_local(d, ino)) {
        (void)fuse_reply_err(req, EPERM);
        return;
    }
    int error = map_owner(d, attr, &to_set);
    if (error < 0) {
        (void)fuse_reply_err(req, -error);
        return;
    }
    uint32_t valid = 0;
    for (size_t n = 0; n < ARRAY_SIZE(bits); n++)
        if (to_set & bits[n].fuse)
            valid |= bits[n].wire;
    if (to_set & FUSE_SET_ATTR_KILL_SUID)
        valid |= WIRE_SET_KILL_PRIV;
    /* All that is left of a chown that changes no owner; it still changes the ctime, and clears
     * set-uid and set-gid. */
    if (!valid) {
        valid = WIRE_SET_UID | WIRE_SET_GID;
        attr->st_uid = (uid_t)-1;
        attr->st_gid = (gid_t)-1;
    }
    struct request *r = request_start(req, WIRE_SETATTR, NULL, NULL);
    if (!r || !request_set_inode(r, ino))
        return;
    if (fi) {
        if (!request_set_handle(r, fi))
            return;
    } else {
        use_open_handle(r, valid & WIRE_SET_SIZE ? WIRE_OPEN_WRITE : 0);
    }
    struct wire_setattr *m = &r->message.setattr;
    if (r->inode->type == S_IFDIR && (valid & (WIRE_SET_MODE | WIRE_SET_UID | WIRE_SET_GID)))
        create_ahead_forget(d, r->inode);
    m->valid = valid;
    m->mode = attr->st_mode & 07777;
    m->uid = attr->st_uid;
    m->gid = attr->st_gid;
    m->size = (uint64_t)attr->st_size;
    if (valid & WIRE_SET_ATIME && !(valid & WIRE_SET_ATIME_NOW))
        m->atime = wire_time_of(&attr->st_atim);
    if (valid & WIRE_SET_MTIME && !(valid & WIRE_SET_MTIME_NOW))
        m->mtime = wire_time_of(&attr->st_mtim);
    if (r->handle && (valid & WIRE_SET_SIZE)) {
        if (fi && pipeline_failed(r))
            return;
        pipeline_follow(r);
    }
    send_setattr(r);
}

/* A request on a name in a directory; NULL when it was answered already. */
static struct request *start_named(fuse_req_t req, enum wire_type type, fuse_ino_t parent,
                                   const char *name)
{
    if (root_is_local(request_driver(req), parent)) {
        /* Workspaces come and go by `berth create` and `berth rm` alone. */
        (void)fuse_reply_err(req, EPERM);
        return NULL;
    }
    struct request *r = request_start(req, type, name, NULL);
    return r && request_set_inode(r, parent) ? r : NULL;
}

void op_mknod(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, dev_t rdev)
{
    struct request *r = start_named(req, WIRE_MKNOD, parent, name);
    if (!r)
        return;
    r->message.mknod =
        (struct wire_mknod){.mode = mode, .rdev = (uint32_t)rdev, .name = request_name(r)};
    REQUEST_SET_MAKER(r, mknod);
    request_send(r, made);
}

void op_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode)
{
    struct request *r = start_named(req, WIRE_MKDIR, parent, name);
    if (!r)
        return;
    r->message.mkdir = (struct wire_mkdir){.mode = mode, .name = request_name(r)};
    REQUEST_SET_MAKER(r, mkdir);
    r->driver->naming++;
    request_send(r, made);
}

void op_symlink(fuse_req_t req, const char *target, fuse_ino_t parent, const char *name)
{
    struct request *r = start_named(req, WIRE_SYMLINK, parent, name);
    if (!r)
        return;
    int error = buffer_append(&r->storage, target, strlen(target));
    if (error < 0) {
        request_fail(r, error);
        return;
    }
    r->message.symlink =
        (struct wire_symlink){.name = request_name(r), .target = buffer_view(&r->storage)};
    REQUEST_SET_MAKER(r, symlink);
    request_send(r, made);
}

/* The file there is about to lose its name. */
static void set_victim(struct request *r, const struct inode *parent, struct bytes name)
{
    struct inode *i = inode_file_named(&r->driver->inodes, parent, name);
    if (i && i->type == S_IFREG && i->handles)
        r->victim = inode_pin(i);
}

static void removed(struct request *r, int error, const struct wire_message *reply)
{
    if (error == 0)
        names_removed(r, &reply->removed);
    request_done_ok(r, error, reply);
}

void op_unlink(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    struct request *r = start_named(req, WIRE_UNLINK, parent, name);
    if (!r)
        return;
    r->message.unlink.name = request_name(r);
    set_victim(r, r->inode, request_name(r));
    request_send(r, removed);
}

void op_rmdir(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    struct request *r = start_named(req, WIRE_RMDIR, parent, name);
    if (!r)
        return;
    r->message.rmdir.name = request_name(r);
    request_send(r, removed);
}

static void renamed(struct request *r, int error, const struct wire_message *reply)
{
    struct driver *d = r->driver;
    d->naming--;
    if (error == 0)
        names_renamed(r, &reply->renamed);
    inode_rename_end(&d->inodes, r->inode, request_name(r), r->target, request_new_name(r),
                     error == 0, r->message.rename.flags & RENAME_EXCHANGE, clock_monotonic_ns());
    struct inode *to = r->inode != r->target ? inode_pin(r->target) : NULL;
    char new_name[WIRE_NAME_MAX + 1];
    struct bytes name = request_new_name(r);
    memcpy(new_name, name.data, name.len);
    name.data = (const uint8_t *)new_name;
    request_done_ok(r, error, reply);
    if (to && error == 0)
        coherence_renamed(d, to, name);
    inode_unpin(&d->inodes, to);
}

void op_rename(fuse_req_t req, fuse_ino_t parent, const char *name, fuse_ino_t new_parent,
               const char *new_name, unsigned int flags)
{
    struct driver *d = request_driver(req);
    if (root_is_local(d, parent) || root_is_local(d, new_parent)) {
        /* Not EXDEV: mv would then copy, and remove what it could. */
        (void)fuse_reply_err(req, EPERM);
        return;
    }
    struct request *r = request_start(req, WIRE_RENAME, name, new_name);
    if (!r || !request_set_inode(r, parent) || !request_set_target(r, new_parent))
        return;
    r->message.rename.flags = flags;
    set_victim(r, r->target, request_new_name(r));
    r->message.rename.name = request_name(r);
    r->message.rename.new_name = request_new_name(r);
    inode_rename_begin(&d->inodes, r->inode, request_name(r), r->target, request_new_name(r),
                       flags & RENAME_EXCHANGE);
    d->naming++;
    climb_send_rename(r, renamed);
}

void op_link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t new_parent, const char *new_name)
{
    if (root_is_local(request_driver(req), new_parent)) {
        (void)fuse_reply_err(req, EPERM);
        return;
    }
    struct request *r = request_start(req, WIRE_LINK, new_name, NULL);
    if (!r || !request_set_inode(r, ino) || !request_set_target(r, new_parent))
        return;
    r->message.link.name = request_name(r);
    request_send(r, made);
}

static void statfs_done(struct request *r, int error, const struct wire_message *reply)
{
    if (error < 0) {
        request_fail(r, error);
        return;
    }
    root_note_space(r->driver, &reply->statfs_reply);
    root_statfs(r->driver, r->fuse);
    request_free(r);
}

void op_statfs(fuse_req_t req, fuse_ino_t ino)
{
    struct driver *d = request_driver(req);
    if (d->join)
        d = join_space(d);
    if (ino == FUSE_ROOT_ID || !d->client) {
        if (ino == FUSE_ROOT_ID)
            root_refresh_space(d);
        root_statfs(d, req);
        return;
    }
    struct request *r = request_start(req, WIRE_STATFS, NULL, NULL);
    if (r && request_set_inode(r, ino))
        request_send(r, statfs_done);
}

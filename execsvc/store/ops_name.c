#include "store/ops.h"

#include "store/creator.h"
#include "store/listing.h"
#include "store/path.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Longest text of a symbolic link, as the kernel's. */
#define TARGET_MAX 4095

/* --- places ---------------------------------------------------------------------- */

static int copy_name(struct bytes name, char ret[WIRE_NAME_MAX + 1])
{
    if (name.len > WIRE_NAME_MAX)
        return -ENAMETOOLONG;
    if (!path_name_valid(name.data, name.len))
        return -EINVAL;
    memcpy(ret, name.data, name.len);
    ret[name.len] = '\0';
    return 0;
}

/* 1: a directory is there; 0: something else; negative errno. */
static int directory_at(const struct place *place)
{
    struct statx stx;
    if (statx(place->grip.fd, place->name, AT_SYMLINK_NOFOLLOW, STATX_TYPE, &stx) < 0)
        return -errno;
    return S_ISDIR(stx.stx_mode);
}

/* What rules for directories alone mean for the place depends on what is there. */
static int see_place(struct place *place)
{
    struct bytes name = bytes_of_string(place->name);
    place->hidden_file = view_of(&place->view, name, false) == VISIBILITY_HIDDEN;
    place->hidden_directory = view_of(&place->view, name, true) == VISIBILITY_HIDDEN;
    place->hidden = place->hidden_file;
    if (place->hidden_file == place->hidden_directory)
        return 0;
    int directory = directory_at(place);
    if (directory < 0 && directory != -ENOENT)
        return directory;
    place->hidden = directory < 0 ? false
                    : directory   ? place->hidden_directory
                                  : place->hidden_file;
    return 0;
}

int place_open(struct file_session *session, uint64_t parent, struct bytes name, struct place *ret)
{
    struct place place = PLACE_NONE;
    int r = copy_name(name, place.name);
    if (r < 0)
        return r;
    r = node_get_directory(session, parent, &place.dir);
    if (r == 0)
        r = view_open(session, place.dir, &place.view);
    if (r == 0)
        r = grip_take(place.dir, &place.grip, NULL);
    if (r == 0)
        r = see_place(&place);
    if (r < 0) {
        place_close(&place);
        return r;
    }
    *ret = place;
    return 0;
}

void place_close(struct place *place)
{
    grip_release(&place->grip);
    view_close(&place->view);
    if (place->dir)
        node_unref(place->dir);
    place->dir = NULL;
}

void place_attr(const struct place *place, struct wire_attr *ret)
{
    struct statx stx;
    if (grip_statx_fd(place->grip.fd, &stx) < 0 || node_attr(place->dir, &stx, ret) < 0)
        *ret = (struct wire_attr){0};
}

/* --- looking up ------------------------------------------------------------------ */

/* The node of a name, referenced by the session too, and what it was when it was seen. */
static int find(struct file_session *session, const struct view *view, struct node *dir, int dir_fd,
                const char *name, const uint64_t *rename_count, struct statx *ret_stx,
                struct node **ret)
{
    if (statx(dir_fd, name, AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS | STATX_BTIME, ret_stx) < 0)
        return -errno;
    if (view_of(view, bytes_of_string(name), S_ISDIR(ret_stx->stx_mode)) == VISIBILITY_HIDDEN)
        return -ENOENT;
    const struct sighting seen = {.dir = dir,
                                  .name = name,
                                  .at_fd = dir_fd,
                                  .at_name = name,
                                  .stx = ret_stx,
                                  .rename_count = rename_count,
                                  .seen_at = view->at};
    return node_enter(session, dir->workspace, &seen, ret);
}

int entry_find(struct file_session *session, const struct view *view, struct node *dir, int dir_fd,
               const char *name, struct wire_attr *ret_attr, uint64_t *ret_node)
{
    struct workspace *workspace = dir->workspace;
    uint64_t rename_count = atomic_load(&workspace->rename_count);
    struct statx stx;
    _cleanup_node_ struct node *node = NULL;
    int r = find(session, view, dir, dir_fd, name, &rename_count, &stx, &node);
    if (r == -EAGAIN) {
        (void)pthread_rwlock_rdlock(&workspace->renames);
        r = find(session, view, dir, dir_fd, name, NULL, &stx, &node);
        (void)pthread_rwlock_unlock(&workspace->renames);
    }
    if (r < 0)
        return r;
    r = node_attr(node, &stx, ret_attr);
    if (r < 0) {
        node_forget(session, node->number, 1);
        return r;
    }
    *ret_node = node->number;
    return 0;
}

OPERATION(lookup)
{
    _cleanup_place_ struct place place = PLACE_NONE;
    int r = place_open(session, m->lookup.parent, m->lookup.name, &place);
    if (r < 0)
        return r;
    if (place.hidden)
        return -ENOENT;
    ret->message = (struct wire_message){.type = WIRE_ENTRY};
    return entry_find(session, &place.view, place.dir, place.grip.fd, place.name,
                      &ret->message.entry.attr, &ret->message.entry.node);
}

static uint64_t read_u64(const uint8_t *data)
{
    uint64_t v = 0;
    for (int i = 7; i >= 0; i--)
        v = v << 8 | data[i];
    return v;
}

OPERATION(forget)
{
    struct bytes pairs = m->forget.pairs;
    for (size_t at = 0; pairs.len - at >= 16; at += 16)
        node_forget(session, read_u64(pairs.data + at), read_u64(pairs.data + at + 8));
    return 0;
}

/* --- making ---------------------------------------------------------------------- */

/* A place at which something is to be made. */
static int place_open_new(struct file_session *session, uint64_t parent, struct bytes name,
                          bool directory, struct place *ret)
{
    int r = place_open(session, parent, name, ret);
    if (r < 0)
        return r;
    if (ret->hidden || (directory ? ret->hidden_directory : ret->hidden_file))
        return -EPERM;
    return node_room(session) ? 0 : -ENFILE;
}

/* Answers with what was just made. If that cannot be done it goes: nobody was told of it. */
static int reply_made(struct file_session *session, const struct place *place, int flags,
                      struct reply *ret)
{
    ret->message = (struct wire_message){.type = WIRE_MADE};
    struct wire_made *made = &ret->message.made;
    int r = entry_find(session, &place->view, place->dir, place->grip.fd, place->name, &made->attr,
                       &made->node);
    if (r == -ENOMEM || r == -ENFILE)
        (void)unlinkat(place->grip.fd, place->name, flags);
    if (r == 0)
        place_attr(place, &made->directory);
    return r;
}

/* Others may have put something in it before the session held its node. */
static bool is_empty(struct file_session *session, uint64_t number)
{
    _cleanup_node_ struct node *node = NULL;
    return node_get_directory(session, number, &node) == 0 && directory_is_empty(node);
}

OPERATION(mknod)
{
    mode_t type = m->mknod.mode & S_IFMT;
    if (type == 0)
        type = S_IFREG;
    const bool device = type == S_IFCHR || type == S_IFBLK;
    if (!device && type != S_IFREG && type != S_IFIFO && type != S_IFSOCK)
        return -EINVAL;
    /* Root's on both sides: a mount with owner=server lets its kernel ask the calling program for
     * CAP_MKNOD, and mknod asks this service for it. Nothing here opens what is made. */
    if (device && !(m->mknod.make & WIRE_MAKE_OWNER))
        return -EPERM;
    _cleanup_place_ struct place place = PLACE_NONE;
    int r = place_open_new(session, m->mknod.parent, m->mknod.name, false, &place);
    if (r < 0)
        return r;
    _cleanup_creator_ struct creator creator = {0};
    r = creator_enter(m->mknod.make, m->mknod.uid, m->mknod.gid, &creator);
    if (r < 0)
        return r;
    r = mknodat(place.grip.fd, place.name, type | (m->mknod.mode & 07777),
                device ? m->mknod.rdev : 0) < 0
            ? -errno
            : 0;
    creator_leave(&creator);
    if (r < 0)
        return r;
    return reply_made(session, &place, 0, ret);
}

OPERATION(mkdir)
{
    _cleanup_place_ struct place place = PLACE_NONE;
    int r = place_open_new(session, m->mkdir.parent, m->mkdir.name, true, &place);
    if (r < 0)
        return r;
    _cleanup_creator_ struct creator creator = {0};
    r = creator_enter(m->mkdir.make, m->mkdir.uid, m->mkdir.gid, &creator);
    if (r < 0)
        return r;
    r = mkdirat(place.grip.fd, place.name, m->mkdir.mode & 07777) < 0 ? -errno : 0;
    creator_leave(&creator);
    if (r < 0)
        return r;
    r = reply_made(session, &place, AT_REMOVEDIR, ret);
    if (r == 0)
        ret->message.made.empty = is_empty(session, ret->message.made.node);
    return r;
}

OPERATION(symlink)
{
    struct bytes target = m->symlink.target;
    if (target.len == 0)
        return -ENOENT;
    if (target.len > TARGET_MAX)
        return -ENAMETOOLONG;
    if (memchr(target.data, '\0', target.len))
        return -EINVAL;
    char text[TARGET_MAX + 1];
    memcpy(text, target.data, target.len);
    text[target.len] = '\0';
    _cleanup_place_ struct place place = PLACE_NONE;
    int r = place_open_new(session, m->symlink.parent, m->symlink.name, false, &place);
    if (r < 0)
        return r;
    _cleanup_creator_ struct creator creator = {0};
    r = creator_enter(m->symlink.make, m->symlink.uid, m->symlink.gid, &creator);
    if (r < 0)
        return r;
    r = symlinkat(text, place.grip.fd, place.name) < 0 ? -errno : 0;
    creator_leave(&creator);
    if (r < 0)
        return r;
    return reply_made(session, &place, 0, ret);
}

OPERATION(link)
{
    _cleanup_node_ struct node *node = NULL;
    _cleanup_grip_ struct grip grip = {.fd = -1};
    _cleanup_place_ struct place place = PLACE_NONE;
    int r = node_get(session, m->link.node, &node);
    if (r == 0)
        r = place_open_new(session, m->link.parent, m->link.name, false, &place);
    if (r < 0)
        return r;
    if (node->workspace != place.dir->workspace)
        return -EXDEV;
    if (node->type == S_IFDIR)
        return -EPERM;
    r = grip_take(node, &grip, NULL);
    if (r < 0)
        return r;
    /* Through /proc, since AT_EMPTY_PATH needs a capability here. What is followed is the
     * descriptor alone: a symbolic link behind it is itself linked. */
    char path[GRIP_PATH_SIZE];
    if (linkat(AT_FDCWD, grip_path(grip.fd, path), place.grip.fd, place.name, AT_SYMLINK_FOLLOW) <
        0)
        return -errno;
    return reply_made(session, &place, 0, ret);
}

/* --- removing and renaming ------------------------------------------------------- */

int place_check(const struct place *place, const struct expectation *expected)
{
    _cleanup_node_ struct node *node = NULL;
    struct statx stx;
    struct expectation found;
    if (expected->ino == 0)
        return 0;
    if (node_find_at(place->dir, place->grip.fd, place->name, &node) < 0 ||
        statx(place->grip.fd, place->name, AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS, &stx) < 0 ||
        node_identity(node, &stx, &found.ino, &found.generation, &found.version) < 0)
        return -EREMCHG;
    return found.ino == expected->ino && found.generation == expected->generation &&
                   found.version == expected->version
               ? 0
               : -EREMCHG;
}

static int unlink_expected(const struct place *place, const struct expectation *expected, int flags)
{
    pthread_rwlock_t *renames = &place->dir->workspace->renames;
    /* Who expects something keeps everybody out, others only those. */
    (void)(expected->ino ? pthread_rwlock_wrlock(renames) : pthread_rwlock_rdlock(renames));
    int r = place_check(place, expected);
    if (r == 0 && unlinkat(place->grip.fd, place->name, flags) < 0)
        r = -errno;
    (void)pthread_rwlock_unlock(renames);
    return r;
}

static int remove_name(struct file_session *session, uint64_t parent, struct bytes name, int flags,
                       const struct expectation *expected, struct reply *ret)
{
    _cleanup_place_ struct place place = PLACE_NONE;
    int r = place_open(session, parent, name, &place);
    if (r < 0)
        return r;
    if (place.hidden)
        return -ENOENT;
    if (!(flags & AT_REMOVEDIR))
        grip_keep_removed(place.dir->workspace, place.grip.fd, place.name);
    r = unlink_expected(&place, expected, flags);
    if (r < 0)
        return r;
    ret->message = (struct wire_message){.type = WIRE_REMOVED};
    place_attr(&place, &ret->message.removed.directory);
    return 0;
}

OPERATION(unlink)
{
    const struct expectation expected = {.ino = m->unlink.expected_ino,
                                         .generation = m->unlink.expected_generation,
                                         .version = m->unlink.expected_version};
    return remove_name(session, m->unlink.parent, m->unlink.name, 0, &expected, ret);
}

OPERATION(rmdir)
{
    const struct expectation any = {0};
    return remove_name(session, m->rmdir.parent, m->rmdir.name, AT_REMOVEDIR, &any, ret);
}

/* Attributes of what is at place, if the session holds its node. */
static void held_attr(struct file_session *session, const struct place *place,
                      struct wire_attr *ret)
{
    _cleanup_node_ struct node *node = NULL, *held = NULL;
    struct statx stx;
    if (node_find_at(place->dir, place->grip.fd, place->name, &node) < 0 ||
        node_get(session, node->number, &held) < 0 || grip_stat(node, &stx) < 0 ||
        node_attr(node, &stx, ret) < 0)
        *ret = (struct wire_attr){0};
}

static bool is_there(const struct place *place)
{
    return faccessat(place->grip.fd, place->name, F_OK, AT_SYMLINK_NOFOLLOW) == 0 ||
           errno != ENOENT;
}

/* True when what is at `from` would be hidden at `to`, or what is hidden there lost. */
static bool would_hide(const struct place *from, const struct place *to)
{
    if (to->hidden || to->hidden_file == to->hidden_directory)
        return to->hidden;
    int directory = directory_at(from);
    return directory >= 0 && (directory ? to->hidden_directory : to->hidden_file);
}

static int rename_places(const struct place *from, const struct place *to, unsigned flags)
{
    struct workspace *workspace = from->dir->workspace;
    int r = 0;
    (void)pthread_rwlock_wrlock(&workspace->renames);
    atomic_fetch_add(&workspace->rename_count, 1);
    if (!(flags & (RENAME_NOREPLACE | RENAME_EXCHANGE)))
        grip_keep_removed(workspace, to->grip.fd, to->name);
    if (renameat2(from->grip.fd, from->name, to->grip.fd, to->name, flags) < 0)
        r = -errno;
    /* A look-up that saw the old names notes them before this or not at all, so that what is
     * noted below stays. */
    atomic_fetch_add(&workspace->rename_count, 1);
    if (r == 0) {
        node_note_place(to->dir, to->grip.fd, to->name);
        if (flags & RENAME_EXCHANGE)
            node_note_place(from->dir, from->grip.fd, from->name);
    }
    (void)pthread_rwlock_unlock(&workspace->renames);
    return r;
}

OPERATION(rename)
{
    unsigned flags = m->rename.flags;
    if (flags & ~(unsigned)(RENAME_NOREPLACE | RENAME_EXCHANGE))
        return -EINVAL;
    _cleanup_place_ struct place from = PLACE_NONE;
    _cleanup_place_ struct place to = PLACE_NONE;
    int r = place_open(session, m->rename.parent, m->rename.name, &from);
    if (r == 0)
        r = place_open(session, m->rename.new_parent, m->rename.new_name, &to);
    if (r < 0)
        return r;
    if (from.hidden)
        return -ENOENT;
    if (would_hide(&from, &to) || ((flags & RENAME_EXCHANGE) && would_hide(&to, &from)))
        return -EPERM;
    if (from.dir->workspace != to.dir->workspace)
        return -EXDEV;
    r = rename_places(&from, &to, flags);
    if (r < 0)
        return r;
    ret->message = (struct wire_message){.type = WIRE_RENAMED};
    place_attr(&from, &ret->message.renamed.directory);
    place_attr(&to, &ret->message.renamed.new_directory);
    held_attr(session, &to, &ret->message.renamed.attr);
    ret->message.renamed.kept = is_there(&from);
    return 0;
}

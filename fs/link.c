#include "ops.h"

#include <limits.h>

#include "base/clock.h"
#include "climb.h"
#include "coherence.h"

/* Where the link is in the kernel's tree, which is where following it starts. */
static struct link_place place_of(struct driver *d, const struct inode *link)
{
    const struct inode *workspace;
    struct link_place place = {
        .depth = inode_depth(&d->inodes, link->parent, clock_monotonic_ns(), &workspace)};
    if (place.depth >= 0 && workspace != d->inodes.root)
        place.workspace = inode_name_bytes(workspace);
    return place;
}

/* Tells those that move directories what the reader may be about to climb; see climb.h. */
static int note_climb(struct request *r, struct bytes text)
{
    int ups = text.data[0] == '/' ? 0 : link_text_ups(text);
    const struct inode *top = r->inode->parent;
    for (int i = 0; i < ups && top; i++)
        top = top->parent;
    return ups && top ? climb_begin(r->driver, r->fuse, r->inode->parent, top) : 0;
}

static void answer(struct request *r, struct bytes text, bool may_wait);

static void judge_again(void *context, uint64_t number)
{
    struct request *r = context;
    answer(r, buffer_view(&r->storage), false);
}

/* A rename that the kernel is just doing counts as not done: what that refuses may be allowed in a
 * moment. */
static int wait_for_rename(struct request *r, struct bytes text)
{
    int error = buffer_append(&r->storage, text.data, text.len);
    return error < 0 ? error : coherence_when_forgotten(r->driver, judge_again, r, 0);
}

static void answer(struct request *r, struct bytes text, bool may_wait)
{
    struct driver *d = r->driver;
    char target[PATH_MAX];
    int error = 0;
    const struct link_rules rules = {
        .mode = d->settings->symlinks,
        .prefixes = d->settings->system_prefixes,
        .mountpoint = d->mountpoint,
    };
    struct link_place place = place_of(d, r->inode);
    switch (link_text_judge(&rules, &place, text, target)) {
    case LINK_REFUSED:
        if (may_wait && d->coherence && inode_rename_unsettled(&d->inodes)) {
            error = wait_for_rename(r, text);
            if (error < 0)
                request_fail(r, error);
            return;
        }
        d->stats.links_refused++;
        request_fail(r, -EACCES);
        return;
    case LINK_EXACT:
        if (rules.mode != LINK_VERBATIM && (error = note_climb(r, text)) < 0) {
            request_fail(r, error);
            return;
        }
        memcpy(target, text.data, text.len);
        target[text.len] = '\0';
        break;
    case LINK_TRANSLATED:
        break;
    }
    (void)fuse_reply_readlink(r->fuse, target);
    request_free(r);
}

static void show(struct request *r, struct bytes text)
{
    /* Looked up at its new place, it has another node ID. */
    if (inode_is_displaced(r->inode) && r->driver->settings->symlinks != LINK_VERBATIM) {
        request_fail(r, -ESTALE);
        return;
    }
    if (text.len == 0 || text.len >= PATH_MAX || memchr(text.data, '\0', text.len))
        request_fail(r, -EIO);
    else
        answer(r, text, true);
}

static void readlink_done(struct request *r, int error, const struct wire_message *reply)
{
    if (error < 0) {
        request_fail(r, error);
        return;
    }
    known_note_link(&r->driver->inodes, r->inode, reply->data.data);
    show(r, reply->data.data);
}

void op_readlink(fuse_req_t req, fuse_ino_t ino)
{
    struct request *r = request_start(req, WIRE_READLINK, NULL, NULL);
    if (!r || !request_set_inode(r, ino))
        return;
    struct bytes text = {0};
    if (coherence_serving(r->driver))
        text = known_link(&r->driver->inodes, r->inode);
    if (text.len)
        show(r, text);
    else
        request_send(r, readlink_done);
}

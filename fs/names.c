#include "names.h"

#include <stdio.h>
#include <sys/stat.h>

#include "coherence.h"
#include "pipeline.h"

/* attr, as the reply to r has it, is right as of now. Of a directory: so is what was known of its
 * names before r, but for those that r has changed. */
static bool is_current(const struct request *r, const struct inode *i, const struct wire_attr *attr)
{
    return coherence_live(r->driver) && inode_is(i, attr) &&
           coherence_attr_timeout(r->driver, i, attr, r->stamp) > 0;
}

static void forget(const struct request *r, const struct inode *directory)
{
    tree_changed(&r->driver->inodes, directory->ino, directory->generation, true);
}

static void name_made(const struct request *r, const struct inode *directory, struct bytes name,
                      const struct wire_attr *file, const struct wire_attr *attr)
{
    struct inode_table *inodes = &r->driver->inodes;
    if (is_current(r, directory, attr)) {
        tree_name_made(inodes, directory, name, file);
        attrs_note(inodes, attr);
    } else {
        forget(r, directory);
    }
}

static void name_removed(const struct request *r, const struct inode *directory, struct bytes name,
                         const struct wire_attr *attr)
{
    struct inode_table *inodes = &r->driver->inodes;
    if (is_current(r, directory, attr)) {
        tree_name_removed(inodes, directory, name);
        attrs_note(inodes, attr);
    } else {
        forget(r, directory);
    }
}

/* Answers to what was asked before may be older than the change. */
static void end(struct driver *d, struct inode *directory)
{
    directory->flags &= (uint8_t)~INODE_CACHED;
    known_changed(&d->inodes, directory);
    directory->stamp = ++d->inodes.stamp;
}

void names_made(const struct request *r, struct inode *directory, const struct wire_attr *file,
                const struct wire_attr *attr)
{
    name_made(r, directory, request_name(r), file, attr);
}

void names_made_end(struct driver *d, struct inode *directory)
{
    end(d, directory);
}

void names_made_empty(const struct request *r, struct inode *i, const struct wire_attr *attr)
{
    struct inode_table *inodes = &r->driver->inodes;
    if (!is_current(r, i, attr))
        return;
    i->flags |= INODE_READ;
    if (inode_lend_own(inodes, i) && !tree_add_empty(inodes, i->node, attr))
        inode_lent_back(inodes, i->node, i->ino, i->generation);
}

/* What is known of a file that loses a name here, or is moved, is not right any more: the time of
 * its change. gone: nor is there anything in it, if it is a directory. */
static void note_moved(const struct request *r, const struct inode *directory, struct bytes name,
                       bool gone)
{
    struct inode_table *inodes = &r->driver->inodes;
    const struct inode *i = inode_named(inodes, directory, name);
    known_name_changed(inodes, directory, name);
    for (; i; i = inode_named_after(inodes, i, directory, name))
        tree_changed(inodes, i->ino, i->generation, gone && i->type == S_IFDIR);
}

void names_removed(struct request *r, const struct wire_removed *reply)
{
    note_moved(r, r->inode, request_name(r), true);
    inode_removed(&r->driver->inodes, r->inode, request_name(r));
    name_removed(r, r->inode, request_name(r), &reply->directory);
    end(r->driver, r->inode);
}

void names_renamed(struct request *r, const struct wire_renamed *reply)
{
    struct driver *d = r->driver;
    bool exchange = r->message.rename.flags & RENAME_EXCHANGE;
    const struct inode *moved = inode_named(&d->inodes, r->inode, request_name(r));
    const struct wire_attr *attr = &reply->attr;
    note_moved(r, r->inode, request_name(r), false);
    note_moved(r, r->target, request_new_name(r), !exchange);
    if (!moved || !inode_is(moved, attr))
        attr = NULL;
    if (exchange)
        name_made(r, r->inode, request_name(r), NULL, &reply->directory);
    else if (reply->kept)
        forget(r, r->inode);
    else
        name_removed(r, r->inode, request_name(r), &reply->directory);
    name_made(r, r->target, request_new_name(r), attr, &reply->new_directory);
    if (attr && is_current(r, moved, attr) && !pipeline_pending(d, moved))
        attrs_note(&d->inodes, attr);
    end(d, r->inode);
    end(d, r->target);
}

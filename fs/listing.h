/* What a directory handle has read ahead. */
#pragma once

#include "inode.h"

/* A page of DIRENT elements, served to the kernel piece by piece. An element that was asked
 * for with attributes carries a wire reference, which either becomes an inode's or is given
 * back. */
struct listing {
    struct buffer entries; /* as in DIRENTS */
    uint32_t count;
    uint32_t offset; /* of the first element that was not served */
    uint64_t cookie; /* of the element before it: where the kernel goes on */
    uint64_t stamp;  /* inode_table.stamp when it was asked for */
    uint32_t connection;
    bool end; /* nothing follows the last element */
};

/* False for what the kernel does not take as the name of an entry. */
static inline bool listing_name_fits(struct bytes name)
{
    return !memchr(name.data, '/', name.len) && !memchr(name.data, '\0', name.len) &&
           !(name.data[0] == '.' && (name.len == 1 || (name.len == 2 && name.data[1] == '.')));
}

/* Copies the page of a reply that answers a request for the entries after cookie. -ENOMEM:
 * the page's references have been given back. */
int listing_new(struct inode_table *inodes, const struct wire_dirents *page, uint64_t cookie,
                uint64_t stamp, struct listing **ret);

/* The next element, which stays the next until listing_take. 1, 0 at the end, or -EBADMSG:
 * it is malformed, and nothing after it can be read. */
int listing_peek(const struct listing *l, struct wire_message *ret, uint32_t *ret_next);
void listing_take(struct listing *l, const struct wire_message *entry, uint32_t next);

/* Gives back the references of what was not served. NULL is fine. */
void listing_free(struct inode_table *inodes, struct listing *l);

/* The workspaces at one moment, in the order of their names: the mount root's entries. The
 * cookie of an entry is its index and 1. */
struct workspace_listing {
    struct buffer names; /* each with its NUL */
    struct buffer index; /* per entry: u32 offset of the name, u32 slot */
    bool complete;
};

/* Appends a WORKSPACES page; sets complete after the last. -ENOMEM, -EBADMSG. */
int workspace_listing_append(struct workspace_listing *l, const struct wire_workspaces *page);
size_t workspace_listing_count(const struct workspace_listing *l);
const char *workspace_listing_at(const struct workspace_listing *l, size_t i, uint32_t *ret_slot);
/* -ENOMEM. */
int workspace_listing_copy(const struct workspace_listing *l, struct workspace_listing **ret);

void workspace_listing_free(struct workspace_listing *l);

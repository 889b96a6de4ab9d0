/* What this mount's own changes of names mean for what is known of the directories they are in.
 *
 * The service reports a change to everybody but who has asked for it, and answers that one with
 * what the directory is like since. So nothing has to be asked anew, unless others have changed the
 * directory meanwhile: whether that came before or after is not known then, and all goes that was
 * known of it. */
#pragma once

#include "request.h"

/* The name of r, which has been answered, leads to a file in a directory, of which attr is. */
void names_made(const struct request *r, struct inode *directory, const struct wire_attr *file,
                const struct wire_attr *attr);
/* It has made directory i, in which there is nothing. */
void names_made_empty(const struct request *r, struct inode *i, const struct wire_attr *attr);
/* To be called after names_made, when the answer to r is made as well: answers to what was asked
 * before of the directory may be older. */
void names_made_end(struct driver *d, struct inode *directory);

/* r was an UNLINK or RMDIR. */
void names_removed(struct request *r, const struct wire_removed *reply);

/* r was a RENAME; before inode_rename_end. */
void names_renamed(struct request *r, const struct wire_renamed *reply);

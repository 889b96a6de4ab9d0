/* Files that are written before they have a name. Where the filesystem can make them so
 * (O_TMPFILE), nobody sees one, and it is gone with whoever writes it, however that ends. Elsewhere
 * it has a name that nothing else has, and which is taken away with its handle; only one that is
 * being written when the service itself is killed stays there. */
#pragma once

#include "store/ops.h"

struct unnamed;

/* Makes one in the place's directory, open for writing, which is the caller's to close. mode: less
 * the umask's bits, as open(2) has it. */
int unnamed_make(const struct place *place, mode_t mode, int *ret_fd, struct unnamed **ret);

/* Gives it, open as fd, the name of `to`. Under the workspace's renames, for writing. -EEXIST with
 * `keep`: there is something. Whatever fails, what is there stays there. */
int unnamed_place(struct unnamed *u, int fd, const struct place *to, bool keep);

/* Takes away what has not got a name. NULL is allowed. */
void unnamed_drop(struct unnamed *u);

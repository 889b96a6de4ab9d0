/* Files of a workspace, read and written over the wire, with bounded memory whatever their size. */
#pragma once

#include "gateway/path.h"

/* --- reading --------------------------------------------------------------------------------- */

/* The entity tag of what is at a place, in quotes: another one when another file is there, or its
 * content may be another. */
#define FILE_TAG_SIZE 64
void file_tag(const struct wire_attr *attr, char ret[FILE_TAG_SIZE]);

/* Bytes asked for in one READ, and how many READs are under way: what one reader holds at most, and
 * enough that the service never waits for us. */
#define FILE_READ_SIZE (256 << 10)
#define FILE_READ_AHEAD 4

struct file_reader;

/* Opens what is at the place. -ENOENT: nothing; -EISDIR; -EINVAL: no regular file; others of OPEN.
 */
int file_open_reader(struct tree *t, const struct place *p, struct file_reader **ret,
                     struct failure *ret_failure);

/* Walks there, following links, and opens it: again while it is replaced in between. */
int file_walk_reader(struct tree *t, struct bytes path, struct place *ret_place,
                     struct file_reader **ret, struct failure *ret_failure);
void file_close_reader(struct file_reader *r);
DEFINE_CLEANUP(struct file_reader *, file_close_reader);
#define _cleanup_reader_ _cleanup_(file_close_reader_pointer)

/* As it was opened: what is read is this file's, also when its name is given to another. */
const struct wire_attr *file_attr(const struct file_reader *r);

/* What file_next gives from now on. */
void file_seek(struct file_reader *r, uint64_t offset, uint64_t length);

/* The next bytes: 1 and a view that lasts until the next call; 0 at the end of the range. -ENODATA:
 * the file has become shorter. */
int file_next(struct file_reader *r, struct bytes *ret, struct failure *ret_failure);

/* --- writing --------------------------------------------------------------------------------- */

/* A condition on what is at the place (NULL: nothing), for a file that is replaced. */
struct file_condition {
    bool (*holds)(void *context, const struct wire_attr *attr);
    void *context;
};

struct file_write_options {
    uint32_t mode;                          /* of a file that is not there yet */
    bool append;                            /* to what is there, instead of replacing it */
    bool lazy;                              /* answered before it is on the disk */
    const struct file_condition *condition; /* NULL: none */
};

struct file_writer;

/* Begins to write what shall be at the place. Nobody sees any of it before file_commit: it has no
 * name, and then takes the place of what was there, whose mode it has. (append: everybody sees each
 * piece as it is written.) -EREMCHG: the condition does not hold; -EISDIR; -EEXIST: what is there
 * is no regular file; -EINVAL: the workspace's root. The place lives as long as the writer. */
int file_create(struct tree *t, const struct place *p, const struct file_write_options *options,
                struct file_writer **ret, struct failure *ret_failure);

int file_write(struct file_writer *w, struct bytes data, struct failure *ret_failure);

/* Puts it in place, and waits until all mounts have heard of it. With a condition: in place of what
 * it holds of, and of nothing else, whoever replaces, removes or moves it by way of the service
 * meanwhile. -EREMCHG as file_create; -EBUSY: it is replaced again and again. *ret: what is there
 * now; *ret_made: nothing was. *ret_placed: it is there, or may be, also when something failed
 * after that. */
int file_commit(struct file_writer *w, struct wire_attr *ret, bool *ret_made, bool *ret_placed,
                struct failure *ret_failure);

/* Without file_commit nothing remains of it (append: what was written). NULL is allowed. */
void file_writer_free(struct file_writer *w);
DEFINE_CLEANUP(struct file_writer *, file_writer_free);
#define _cleanup_writer_ _cleanup_(file_writer_free_pointer)

/* --- names ----------------------------------------------------------------------------------- */

/* An entry of a directory. type: S_IFMT part of the mode; attr NULL: it was gone when it was looked
 * at. node: of attr, for this call, unless 1 is returned: then the callee has that reference. A
 * negative errno ends the listing. */
typedef int file_entry_fn(void *context, const char *name, uint32_t type, uint64_t node,
                          const struct wire_attr *attr);

/* Calls fn for entries of a directory after *cookie (0: from the start), at most limit; *cookie: of
 * the last. *ret_end: there are no more. -ENOTDIR. */
int file_list(struct tree *t, uint64_t directory, uint64_t *cookie, size_t limit, file_entry_fn *fn,
              void *context, bool *ret_end, struct failure *ret_failure);

/* The text of a link. Appended, without NUL. */
int file_link_text(struct tree *t, uint64_t node, struct buffer *ret, struct failure *ret_failure);

/* Removes what is at the place (a link, not what it leads to), a directory if it is empty or, with
 * recursive, with all that is in it: -ENOTEMPTY stops at what rules leave out of listings. With a
 * condition (NULL: none): only a file of which it holds, else -EREMCHG; -EINVAL for a directory.
 * *ret_removed (may be NULL): how many names were removed, also on failure. */
int file_remove(struct tree *t, const struct place *p, bool recursive,
                const struct file_condition *condition, uint64_t *ret_removed,
                struct failure *ret_failure);

/* Gives what is at `from` the place `to`. replace: of a file or empty directory that is there, else
 * -EEXIST. */
int file_move(struct tree *t, const struct place *from, const struct place *to, bool replace,
              struct failure *ret_failure);

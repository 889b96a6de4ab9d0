/* What is known of a command, on the disk: EXEC/WORKSPACE/ID/record, in a directory of its own
 * beside its spools. It is written before the command is forked, so that an ID that was taken is
 * never started again; when the command has ended another one is appended, with a sum of its own,
 * and the last one counts. (To replace the file by another one would have ext4 write it to the disk
 * at once.) A record without a verdict whose keeper is gone, and one that is damaged, is of a
 * command whose end nobody knows.
 *
 * Writing does not force it to the disk (sync.h does): after a crash of the machine a verdict may
 * be lost that was told, and is then unknown, never another one. */
#pragma once

#include "base/buffer.h"
#include "keeper/spool.h"
#include "wire/wire.h"

/* Names in the directory: itself, and the spools. */
#define RECORD_NAME "record"
#define RECORD_STDOUT "stdout"
#define RECORD_STDERR "stderr"

struct record {
    uint32_t slot;  /* of its workspace, which tells it from others of that thread ID; 0: unknown */
    uint64_t words; /* request_words of its EXEC */
    struct spool_geometry spools[2];
    struct wire_exec_command command; /* its views are borrowed */
    uint64_t end; /* of the file: of the last record in it; 0: there is none, or nothing is right */
};

/* Makes the directory of a new command in that of all. -EEXIST: there is one. */
int record_make_directory(int exec, struct bytes workspace, struct bytes id, int *ret);

/* Opens it. */
int record_open_directory(int exec, struct bytes workspace, struct bytes id, int *ret);

/* Removes it and all that is in it. What is not there is no error. */
void record_remove_directory(int exec, struct bytes workspace, struct bytes id);

/* Removes workspaces' directories in which there is nothing any more. Not with the last command of
 * each: mostly another one follows. */
void record_tidy(int exec);

/* Appends to what there is up to r->end. When it fails nothing has changed; or a part is there, if
 * the disk refuses that as well or we end meanwhile, and the record counts as damaged. */
int record_write(int directory, struct record *r);

/* Reads it. The views of *ret point into storage, which the caller releases. -ENOENT; -EBADMSG: it
 * is damaged, or of another version. */
int record_read(int directory, struct buffer *storage, struct record *ret);

/* Calls `each` with the directory of every command that there is, open and borrowed. The IDs are
 * those of the directories' names; directories of names that are none are left alone. A negative
 * errno. */
int record_each(int exec,
                void (*each)(void *context, struct bytes workspace, struct bytes id, int directory),
                void *context);

/* Places: what this machine remembers of the workspaces that a provider made a sandbox for, so that
 * `berth` and mounts find them, and so that no sandbox is left that nobody knows of. One file a
 * workspace in paths_places_dir(), named after the workspace's directory name:
 *
 *   { "version": 1, "id": thread ID (or "id_hex" where it is not UTF-8 or holds a NUL),
 *     "provider", "sandbox": the vendor's name or ID of it, "name": what we called it,
 *     "parameters": { NAME: text, … }, "url": how its service is reached, "" while it is not known,
 *     "state", "created" (seconds), "created_by": text,
 *     "environment"?: { NAME: text, or null: it was not set, … },
 *     "secrets"?: { NAME: a hash that tells whether it is still the same, or null, … } }
 *
 * A URL may be a command to run, so a file is read only when it and the directory belong to the
 * caller (or root) and nobody else can write there. Files appear and are replaced as a whole (for
 * inotify: IN_CREATE, IN_MOVED_TO and IN_DELETE); names that begin with '.' are no places.
 * Tokens and other secrets are never kept here. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/buffer.h"
#include "base/failure.h"
#include "names/thread_id.h"

/* Largest file read, and longest text in it: stop a damaged or planted file from taking all memory,
 * or from making command lines that no kernel takes. */
#define PLACE_FILE_MAX ((size_t)65536)
#define PLACE_TEXT_MAX ((size_t)4096)

/* Workspaces listed: a directory is not a way to run out of memory. */
#define PLACES_MAX 10000

/* Variables of the environment that are kept, and bytes of one's name: as above. */
#define PLACE_VARIABLES_MAX 64
#define PLACE_VARIABLE_NAME_MAX 64

enum place_state {
    PLACE_CREATING, /* written before the provider is asked; stays when its maker was killed */
    PLACE_READY,
    PLACE_REMOVING,
    PLACE_FAILED, /* neither made nor, for all that is known, gone */
};

struct place {
    char name[THREAD_NAME_MAX + 1]; /* the workspace's directory name */
    struct buffer id;               /* its thread ID */
    char *provider;
    char *sandbox;
    char *given_name;   /* what we called it; "sandbox" is this until the provider says otherwise */
    json_t *parameters; /* an object of strings */
    char *url;
    enum place_state state;
    int64_t created; /* seconds of the real time */
    char *created_by;
    json_t *environment; /* what it was made with, an object of strings and nulls; or NULL */
    json_t *secrets;     /* the same of hashes */
};

/* "DOCKER_HOST": upper-case letters, digits and '_', not beginning with a digit. Never the loader's
 * (LD_…) nor ours (BERTH_…). */
bool place_variable_is_valid(const char *name);

void place_clear(struct place *p);
#define _cleanup_place_ _cleanup_(place_clear)

/* "creating" … */
const char *place_state_name(enum place_state state);

/* As it stands in its file. NULL: no memory. */
json_t *place_to_json(const struct place *p);

/* From the bytes of a file. -EINVAL, with a sentence that does not name the file; -ENOMEM. */
int place_parse(struct bytes text, struct place *ret, struct failure *ret_failure);

/* The place of a directory name. -ENOENT: there is none. Others with a sentence. */
int place_read(const char *name, struct place *ret, struct failure *ret_failure);

/* Writes it, durably. The directory is made. is_new: -EEXIST when there is one already. */
int place_write(const struct place *p, bool is_new, struct failure *ret_failure);

/* -ENOENT: it was not there. */
int place_remove(const char *name, struct failure *ret_failure);

/* Whoever makes, changes or destroys a place holds its lock, until *ret_fd is closed or the process
 * ends. -EAGAIN: another process does. */
int place_lock(const char *name, int *ret_fd, struct failure *ret_failure);

/* Calls each with every place, in the order of their names; p is the list's, unless each takes it
 * and leaves {0}. A negative errno of each ends it. Files that cannot be read are left out, with a
 * warning in the log. No directory is an empty list. */
typedef int places_each_fn(void *context, struct place *p);
int places_list(places_each_fn *each, void *context, struct failure *ret_failure);

/* The same where it matters that none is missing: a file that cannot be read (damaged, of a later
 * version, writable by others) is an error, and each is not called. */
int places_list_all(places_each_fn *each, void *context, struct failure *ret_failure);

/* Provider profiles: one JSON file for each system that makes sandboxes, which says how, by the
 * command line of its own program (berth-provider(5)). A profile is data: nothing in it goes
 * through a shell.
 *
 *   { "profile": 1, "name", "summary", "tried": "real" | "stand-in", "notes"?: [ text, … ],
 *     "needs"?: [ program, … ],
 *     "parameters"?: { NAME: { "help", "default"?, "default_from"?: WORDS, "pattern"? }, … },
 *     "bound_to"?: { "environment"?: [ variable, … ], "secrets"?: [ variable, … ] },
 *     "create"?:  [ STEP, … ],   "install"?: [ STEP, … ],
 *     "connect":  [ word, … ] | "default",
 *     "destroy"?: [ STEP, … ],   "gone"?: { "status"?: [ n, … ], "text"?: [ text, … ] },
 *     "unreached"?: as "gone",
 *     "status"?:  { "run": WORDS, "states": { text: state, … } },
 *     "list"?:    { "run": WORDS },
 *     "policy"?:  { FIELD: WORDS of a limit, with {value}, or { word: WORDS, … },
 *                   "inside": [ FIELD, … ] } }
 *   STEP: { "run": WORDS, "what"?, "timeout"?: seconds, "stdin"?: file, "capture"?: "sandbox",
 *           "unless"?: WORDS, "unless_fails"?: [ exit status, … ] }
 *
 * WORDS are words of a command line, in which {NAME} stands for a parameter or for what template.h
 * knows; a list among them is left out when what it has of those is empty. An unknown key, and an
 * unknown {NAME}, is an error. */
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "base/bytes.h"
#include "base/failure.h"

/* Largest file read; words of a command line, and entries of the other lists and objects: stop a
 * planted or damaged file from filling memory. */
#define PROFILE_FILE_MAX ((size_t)131072)
#define PROFILE_WORDS_MAX 256
#define PROFILE_LIST_MAX 64

/* Bytes of a word, and of a parameter's value. */
#define PROFILE_TEXT_MAX 4096

#define PROFILE_NAME_MAX 32
#define PROFILE_STEP_TIMEOUT_S 120
#define PROFILE_STEP_TIMEOUT_MAX_S 7200

struct profile {
    json_t *document; /* as above, checked */
    char *file;       /* where it was, or NULL */
};

/* Reads a document and checks all of it. -EINVAL: the failure begins with where, "create[0].run:
 * …"; -ENOMEM. */
int profile_parse(struct bytes text, struct profile *ret, struct failure *ret_failure);
void profile_release(struct profile *p);
#define _cleanup_profile_ _cleanup_(profile_release)

/* A string of the top, "" when it is not there. */
const char *profile_text(const struct profile *p, const char *key);

/* Where its file is, or "/"; owned. NULL: no memory. */
char *profile_directory(const struct profile *p);

/* True for what has no sandbox of its own: its workspaces are those of the service that is used
 * anyway, and no place is kept of them ("connect": "default"). */
bool profile_is_default_service(const struct profile *p);

/* "docker", "my-lab": [a-z][a-z0-9-]*, at most PROFILE_NAME_MAX. */
bool profile_name_is_valid(const char *name);

/* The profile of a name, from the first of these that has NAME.json: each directory of
 * BERTH_PROVIDERS (separated by ':'), $XDG_CONFIG_HOME/berth/providers or
 * ~/.config/berth/providers, /etc/berth/providers, and where Berth was installed. A file that
 * others than the caller and root can write is an error, since it says what to run. -ENOENT names
 * those there are. */
int profile_find(const char *name, struct profile *ret, struct failure *ret_failure);

/* All there are, in the order of their names; the first of a name is meant, as above. What cannot
 * be read is given with its failure instead. The profile is the list's. */
typedef int profile_each_fn(void *context, const char *name, const struct profile *p,
                            const struct failure *failure);
int profile_each(profile_each_fn *each, void *context, struct failure *ret_failure);

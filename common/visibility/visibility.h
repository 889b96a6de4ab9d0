/* What of a workspace is shown: ordered rules in the manner of gitignore, from several sources.
 * Pure: no I/O, no clock; the same for service, driver and command line.
 *
 * A rule set is a text, one rule a line:
 *
 *   [show:|unlisted:|hidden:]PATTERN    (without a word: unlisted)
 *   !PATTERN                            the same as show:PATTERN
 *   profile:NAME                        the rules of a named profile, at this place
 *   # comment                           and empty lines
 *
 * PATTERN is as in gitignore(5), matched to bytes, case and all: a pattern with a slash at its
 * start or in its middle is relative to the workspace's root, any other matches the name at
 * every level; a slash at the end: directories alone; *, ?, [set] (with ranges, ! or ^, and
 * [:class:]) do not match a slash; a component ** is any number of directories; \ takes
 * the meaning off the next character; spaces at the end are dropped unless escaped. White space
 * after a word's colon is skipped. A pattern that itself begins with a word, '!' or '#' is written
 * with a '\' before it. What git takes for a pattern that never matches never matches here.
 *
 * The last rule that matches a path decides, and a later source goes before an earlier one.
 * A path below a restricted directory is never less restricted than the directory: no rule
 * gives back what lies below a hidden or an unlisted one. `/.berth` is hidden whatever the
 * rules say.
 *
 * Names are matched level by level: a directory's state holds what its path has matched so
 * far, so that a look-up costs one name and not a path. */
#pragma once

#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/failure.h"

/* In order of restriction. */
enum visibility {
    VISIBILITY_SHOW,
    VISIBILITY_UNLISTED, /* not in listings, but there for those who know the name */
    VISIBILITY_HIDDEN,   /* does not exist */
};

/* "show", "unlisted", "hidden" */
const char *visibility_name(enum visibility v);

/* Bytes of one rule set. A name is compared with each pattern at a cost of at most the product
 * of their lengths, so this bounds what one name can cost (ten milliseconds for patterns made
 * for it, below a microsecond for ordinary ones), and with it what a peer that sets rules and
 * lists a large directory can make the service do. */
#define VISIBILITY_TEXT_MAX 32768

/* Rules of one set, profiles expanded. Bounds the work for one name that no pattern fits. */
#define VISIBILITY_RULES_MAX 1024

/* Bytes of one pattern: longer than any path component needs, and short enough that one line
 * cannot take the whole of VISIBILITY_TEXT_MAX for the costliest pattern there is. */
#define VISIBILITY_PATTERN_MAX 1024

/* Components of all patterns that have a slash. A directory's state is at most so many
 * numbers: stops patterns of many `**` components from making each directory's state large. */
#define VISIBILITY_SEGMENTS_MAX 4096

#define VISIBILITY_PROFILE_NAME_MAX 64

/* The name at a workspace's root that is always hidden. */
#define VISIBILITY_RESERVED_NAME ".berth"

/* The compiled rules of one source. Immutable, counted, may be used by many threads at once. */
struct visibility_rules;

/* Compiles a text. -EINVAL with the line and what is wrong; -ENOMEM. */
int visibility_rules_parse(struct bytes text, struct visibility_rules **ret,
                           struct failure *ret_failure);

/* Tells what in a text that compiles is hardly meant: a word before a colon that is none of ours,
 * and so a part of the pattern unless there is a '\' before it; a pattern that never matches.
 * Lines count from 1; the sentence lasts for the call. -ENOMEM. */
typedef void visibility_doubt(void *context, size_t line, const char *sentence);
int visibility_rules_doubts(struct bytes text, visibility_doubt *doubt, void *context);

struct visibility_rules *visibility_rules_ref(struct visibility_rules *rules);
void visibility_rules_unref(struct visibility_rules *rules); /* NULL is allowed */
DEFINE_CLEANUP(struct visibility_rules *, visibility_rules_unref);
#define _cleanup_visibility_rules_ _cleanup_(visibility_rules_unref_pointer)

/* The text as it was given; lives as long as the rules. */
struct bytes visibility_rules_text(const struct visibility_rules *rules);
/* Rules in force, profiles expanded; a pattern that never matches is none. */
size_t visibility_rules_count(const struct visibility_rules *rules);
/* True when some rule hides. */
bool visibility_rules_hide(const struct visibility_rules *rules);

/* The rules of a named profile as text, or NULL. */
const char *visibility_profile(struct bytes name);

/* The text for what a user names as a profile: "profile:NAME", NUL-terminated, for the caller to
 * free. -EINVAL: no such profile, with those there are; -ENOMEM. */
int visibility_profile_text(const char *name, char **ret, struct failure *ret_failure);

enum visibility_source {
    VISIBILITY_SERVICE,
    VISIBILITY_WORKSPACE,
    VISIBILITY_MOUNT,
};
#define VISIBILITY_SOURCES 3

/* The rule sets in force together, later ones before earlier ones. NULL: no rules. */
struct visibility_view {
    struct visibility_rules *sources[VISIBILITY_SOURCES];
};

/* Where a directory stands with regard to a view's rules. Belongs to the very rule sets it was
 * made with. {0} is a valid state to release. */
struct visibility_state {
    enum visibility own; /* the directory's own visibility */
    bool root;           /* it is the workspace's root */
    uint16_t count;
    uint16_t *live; /* components of patterns that a child's name may match next */
};

/* The root's state. -ENOMEM. */
int visibility_state_root(const struct visibility_view *view, struct visibility_state *ret);

/* The state of the directory `name` in dir. -ENOMEM. */
int visibility_state_enter(const struct visibility_view *view, const struct visibility_state *dir,
                           struct bytes name, struct visibility_state *ret);
int visibility_state_copy(const struct visibility_state *state, struct visibility_state *ret);
void visibility_state_release(struct visibility_state *state);
#define _cleanup_visibility_state_ _cleanup_(visibility_state_release)

/* The visibility of an entry of dir; at least the directory's own. */
enum visibility visibility_of(const struct visibility_view *view,
                              const struct visibility_state *dir, struct bytes name,
                              bool directory);

/* True when a listing of dir has an entry of this visibility. What is hidden never is. What
 * is unlisted is not, but in a directory that is unlisted itself: whoever lists that has named it,
 * and is shown all there is, so that `rm -r`, package managers and language servers work in
 * it as they do everywhere. */
bool visibility_listed(const struct visibility_state *dir, enum visibility entry);

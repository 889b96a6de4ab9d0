/* What a mount shows of a symbolic link's text. Who decides the text (an agent in the workspace)
 * is not who follows it (the developer's tools, on the developer's machine): the text is shown
 * exactly as it is when following it leads nowhere but into the link's own workspace or to what
 * any program of this machine may trust, and is refused otherwise.
 *
 * A relative text stays inside when all its ".." come first and are no more than the link's
 * directory has directories above it in the workspace. After a name, ".." is refused: the name
 * may be a link, and leave the walk nearer to the workspace's root. Links met on the way are
 * judged by themselves, each when it is read.
 *
 * An absolute text never has "..", and is compared component by component. It leads to a system
 * prefix, or is refused; below the mountpoint nothing is one, lest a link lead to another
 * workspace. Components that are empty or "." count nowhere. */
#pragma once

#include <limits.h>

#include "base/bytes.h"
#include "base/failure.h"

enum link_mode {
    LINK_CONTAIN,   /* inside, and system prefixes */
    LINK_TRANSLATE, /* the same, and /workspace/… as the place of the workspace here */
    LINK_VERBATIM,  /* everything as it is: for workspaces that are trusted */
    LINK_REFUSE,    /* inside alone */
    LINK_MODE_COUNT,
};

enum link_verdict { LINK_EXACT, LINK_TRANSLATED, LINK_REFUSED };

/* Where programs, libraries and their data are on most machines, for `link_rules.prefixes`. */
#define LINK_PREFIXES_DEFAULT "/usr:/bin:/lib*:/opt:/nix:/etc/alternatives"

struct link_rules {
    enum link_mode mode;
    const char *prefixes;   /* as link_prefixes_check has accepted them */
    const char *mountpoint; /* absolute */
};

struct link_place {
    int depth;              /* of the link's directory, 0: the workspace's root; < 0: in none */
    struct bytes workspace; /* name of its root in the mountpoint; empty: it is the mountpoint */
};

/* LINK_TRANSLATED: the text to show is in ret, with a NUL; else ret is untouched. */
enum link_verdict link_text_judge(const struct link_rules *rules, const struct link_place *place,
                                  struct bytes text, char ret[PATH_MAX]);

/* How many ".." a relative text begins with. */
int link_text_ups(struct bytes text);

/* "contain", "contain+translate", "verbatim", "refuse". -EINVAL */
const char *link_mode_name(enum link_mode mode);
int link_mode_parse(const char *name, enum link_mode *ret, struct failure *ret_failure);

/* Prefixes are absolute paths separated by ':', without empty components, "." and ".."; a '*' that
 * ends one stands for the rest of that component. -EINVAL. */
int link_prefixes_check(const char *prefixes, struct failure *ret_failure);

/* What is done with a sandbox by its provider's profile: made, looked at, destroyed. The place
 * (places/ place.h) says which; it is written before anything is made, and whenever something of it
 * becomes known, so that whatever we are killed at can be found and destroyed. */
#pragma once

#include <stdbool.h>

#include "places/place.h"
#include "provider/enforce.h"
#include "provider/profile.h"

/* Told before each step, for people: "docker run". */
typedef void sandbox_step_fn(void *context, const char *what);

struct sandbox {
    const struct profile *profile;
    struct place *place;
    const char *berthd;  /* the file of the berthd for inside, or NULL: there is none */
    const json_t *words; /* of struct enforced, or NULL */
    int signal_fd;       /* step_signals_block, or -1 */
    bool touched;        /* by sandbox_create: the provider may have made something */
    sandbox_step_fn *tell;
    void *context;
};

/* Fills a new place: its names, the owner, the time, and what it is bound to (binding.h). id: the
 * thread ID. The names are no one's else: a vendor's error that a name is taken never leads to the
 * destruction of what has it. */
int sandbox_new_place(const struct profile *p, struct bytes id, json_t *parameters,
                      struct place *ret, struct failure *ret_failure);

/* "me-laptop-1a2b3c4d": a DNS label, for the vendor's labels: this user's on this machine, from
 * this state directory. It is made once and kept there; a copy of the directory, here or on another
 * machine, gets one of its own. */
int sandbox_owner(char **ret, struct failure *ret_failure);

#define SANDBOX_NO_BERTHD                                                              \
    "there is no static berthd to put into the sandbox: install it, or name one with " \
    "BERTH_STATIC_BERTHD"

/* True if a step that is run in any case wants {berthd}; or_may: also one that may not be run. */
bool sandbox_needs_berthd(const struct profile *p, bool or_may);

/* True while the provider's own name of it is still to be told by a step ("capture"). */
bool sandbox_name_is_unknown(const struct profile *p, const struct place *place);

/* True if "destroy" takes what we called it, so that it reaches one whose name was never told. */
bool sandbox_destroys_by_name(const struct profile *p);

/* Says which program is not here. -ENOENT. */
int sandbox_check_needs(const struct profile *p, struct failure *ret_failure);

/* Runs the steps of "create" and "install", and sets the place's URL. -EINTR: a signal came. What
 * has been made so far is left for sandbox_destroy. The place is written as its fields become
 * known. */
int sandbox_create(struct sandbox *s, struct failure *ret_failure);

/* Runs those of "destroy". *ret_gone: it was gone already, which is 0 as well. */
int sandbox_destroy(struct sandbox *s, bool *ret_gone, struct failure *ret_failure);

/* The state that the vendor says it is in: one of "ready", "creating", "stopped", "failed", "gone";
 * NULL in *ret_state: none that the profile knows, and *ret_words, for people, are the vendor's.
 * -EOPNOTSUPP: the profile cannot tell. */
int sandbox_status(struct sandbox *s, const char **ret_state, char ret_words[200],
                   struct failure *ret_failure);

/* Names of the sandboxes that the vendor has of this owner, as the environment is now. */
#define SANDBOX_LIST_MAX 10000
typedef int sandbox_each_fn(void *context, const char *name);
int sandbox_list(const struct profile *p, const json_t *parameters, sandbox_each_fn *each,
                 void *context, struct failure *ret_failure);

/* exec: and the words of "connect", with the place's environment, quoted as sh takes them. -E2BIG:
 * longer than a URL may be. */
int sandbox_url(const struct sandbox *s, char **ret, struct failure *ret_failure);

/* A command line of the profile with everything put in, for people. Owned. */
int sandbox_show(const struct sandbox *s, const json_t *words, char **ret,
                 struct failure *ret_failure);

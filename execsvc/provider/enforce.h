/* Who holds what a policy asks for: the vendor, by words of its command line, or the berthd inside.
 */
#pragma once

#include <jansson.h>

#include "base/buffer.h"
#include "provider/profile.h"

struct enforced {
    json_t *words;        /* of the vendor's command line, for {policy}; an array of strings */
    struct buffer inside; /* the document for the berthd inside; empty: nothing was asked of it */
};

void enforced_release(struct enforced *e);
#define _cleanup_enforced_ _cleanup_(enforced_release)

/* Looks at a policy document (confine/policy.h), which may be empty. -EINVAL: it is none.
 * -EOPNOTSUPP: neither holds one of its fields; the failure names it. A document without "network"
 * is the vendor's for none. */
int enforce_policy(const struct profile *p, struct bytes document, struct enforced *ret,
                   struct failure *ret_failure);

/* "vendor", "inside", "vendor, inside" or "refused", of "memory", "network.none" … */
const char *enforce_who(const struct profile *p, const char *field, const char *word);

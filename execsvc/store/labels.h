/* Labels: what a workspace's owner notes about it, a JSON object of strings. They are kept and
 * told as one text: {} or "key":"value" pairs in the order of their keys, without blanks. So each
 * pair of it begins behind '{' or ',' and can be searched for as it stands: a key begins with a
 * letter, a digit, '_' or a byte beyond ASCII, which never follows a closing quote. */
#pragma once

#include "base/buffer.h"
#include "base/failure.h"
#include "wire/wire.h"

#define LABEL_KEY_MAX 256 /* bytes */

/* Without labels. */
#define LABELS_NONE "{}"

/* The text of labels that a client gave; empty: none. -EINVAL with what is wrong; -E2BIG: longer
 * than WIRE_LABELS_MAX as it is kept; -ENOMEM. */
int labels_parse(struct bytes given, char **ret, struct failure *ret_failure);

/* labels, which are a text of labels_parse, with those of `given` over them, null taking one away.
 * Errors as labels_parse. */
int labels_merge(const char *labels, struct bytes given, char **ret, struct failure *ret_failure);

/* What is looked for in labels. */
struct label_selectors {
    size_t count;
    struct label_selector {
        char *text; /* "key":"value", or "key": */
        size_t len;
    } list[WIRE_SELECTORS_MAX];
};

/* Of KEY=VALUE and KEY elements. -EINVAL: one has no key; -ENOMEM. *ret is to be released in any
 * case. */
int label_selectors_parse(const struct wire_list *list, struct label_selectors *ret);
void label_selectors_release(struct label_selectors *s);
#define _cleanup_label_selectors_ _cleanup_(label_selectors_release)

/* All of them are there. */
bool labels_match(const char *labels, const struct label_selectors *selectors);

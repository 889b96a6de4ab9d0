/* Words of command lines with {NAME} in them. What is put in stays within its word: nothing is
 * split, joined or given to a shell. A doubled brace is left as it is, so that other programs'
 * templates can be written ({{.State}}).
 *
 *   {sandbox}   the vendor's name or ID of it; what we called it until it is known
 *   {name}      what we called it: a DNS label
 *   {berthd}    the file of the berthd that is to run in the sandbox
 *   {directory} where the profile is: a script can be beside it
 *   {owner}     who made it, of which machine: a DNS label, for the vendor's labels
 *   {created}, {created_unix}   when, by RFC 3339 and in seconds
 *   {value}, {value_mib}        of a limit, in a profile's "policy"
 *   {policy}    alone in its word: as many words as what was asked takes */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/failure.h"

struct template_name {
    const char *text;
    size_t len;
};

/* The next {NAME} from *at on, which is moved behind it. False: there is none. */
bool template_next(const char **at, struct template_name *ret);

/* value: also those of a limit. */
bool template_is_builtin(const char *name, size_t len, bool value);

/* Names of limits in a policy: "memory" … (confine/policy.h). */
bool template_is_limit(const char *name);

/* What the names stand for; borrowed. NULL and what is missing in values is empty. */
struct template_scope {
    const json_t *parameters; /* an object of strings */
    const json_t *values;     /* of the names above; an object of strings */
    const json_t *policy;     /* words; an array of strings */
};

/* One word. NULL: no memory. */
char *template_word(const char *word, const struct template_scope *scope);

/* A command line, ending in NULL. -ENOMEM; -E2BIG: more than TEMPLATE_WORDS_MAX words. */
#define TEMPLATE_WORDS_MAX 1024
int template_words(const json_t *words, const struct template_scope *scope, char ***ret,
                   struct failure *ret_failure);
void template_words_free(char ***words);
#define _cleanup_words_ _cleanup_(template_words_free)

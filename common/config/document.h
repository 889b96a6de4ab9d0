/* The configuration file as both halves of config.h read it. */
#pragma once

#include <jansson.h>

#include "base/cleanup.h"
#include "base/failure.h"

/* The configuration file, or one without settings when there is none. */
struct document {
    char *file; /* absolute; NULL: none */
    char *directory;
    json_t *root;
};

/* Keys of one object; anything else in it is an error. */
struct section {
    const char *name; /* as errors tell it */
    const char *const *keys;
};

/* Reads `flag`, else paths_config_file, and checks which keys there are. Failures as config.h. */
int config_document_load(const char *flag, struct document *ret, struct failure *ret_failure);
void config_document_release(struct document *d);

/* -EINVAL: `object` has a key that the section does not. */
int config_document_check_keys(const char *file, json_t *object, const struct section *section,
                               struct failure *ret_failure);

/* The JSON of a file of bounded size; what: "configuration file", for errors. */
int config_document_parse_file(const char *what, const char *file, json_t **ret,
                               struct failure *ret_failure);
void config_document_json_release(json_t **object);

/* A string of `object`, which errors call section; *ret borrowed, NULL: it is not given. -EINVAL.
 */
int config_document_string_in(const struct document *d, json_t *object, const char *section,
                              const char *key, const char **ret, struct failure *ret_failure);

/* The same of the section of that name. */
int config_document_string(const struct document *d, const char *section, const char *key,
                           const char **ret, struct failure *ret_failure);

/* A variable of the environment; NULL: not set, or empty. name NULL: NULL. */
const char *config_document_environment(const char *name);

/* flag, else variable (NULL: none), else section.key, as an absolute path; *ret NULL if none. */
int config_document_file(const struct document *d, const char *flag, const char *variable,
                         const char *section, const char *key, char **ret,
                         struct failure *ret_failure);

int config_document_no_memory(struct failure *ret_failure);

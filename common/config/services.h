/* Services by name, as the configuration file has them:
 *
 *   { "client": { "services": { "NAME": { "url", "token_file", "ca_file", "cert_file",
 *                                         "key_file" }, … } } }
 *
 * A service has its own credentials or none: those of "client" and of the environment are for other
 * services, and are never shown to it. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/failure.h"
#include "config/config.h"

#define SERVICE_NAME_MAX 63
#define SERVICES_MAX 1024 /* each costs a joined mount a connection and a thread that makes it */

/* Owned. NULL = not set, but name and url always are; files are absolute paths. */
struct service_entry {
    char *name;
    char *url; /* checked in form */
    char *token_file;
    char *ca_file;
    char *cert_file;
    char *key_file;
};

struct service_list {
    struct service_entry *entries; /* in the order of the file */
    size_t count;
};

/* [A-Za-z0-9][A-Za-z0-9._-]{0,62}, but "all", which stands for all of them. */
bool service_name_is_valid(const char *name);

/* All of config_file, else of paths_config_file. Failures as client_settings_load. */
int service_list_load(const char *config_file, struct service_list *ret,
                      struct failure *ret_failure);
void service_list_release(struct service_list *l);
#define _cleanup_service_list_ _cleanup_(service_list_release)

/* NULL: there is none of this name. */
const struct service_entry *service_list_find(const struct service_list *l, const char *name);

/* Settings for one of them: its URL and credentials, all else as `base` has it. Its token is read.
 */
int client_settings_of_service(const struct client_settings *base, const struct service_entry *e,
                               struct client_settings *ret, struct failure *ret_failure);

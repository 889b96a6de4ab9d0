/* What the command line of berthfs says, in its own form and in that of a mount(8) helper. */
#pragma once

#include <stdbool.h>

#include "base/failure.h"
#include "config/config.h"

#define OPTIONS_TIMEOUT_MS 10000 /* how long a program waits for a lost service */

struct options {
    bool foreground;
    bool help;
    bool version;
    bool fake; /* mount -f: check the options and do nothing */
    bool allow_other;
    bool owner_server;
    bool alone;          /* credentials are those of the options alone */
    bool locks_local;    /* locks hold on this machine alone */
    bool serve;          /* without a connection, what is known is answered */
    bool cache;          /* the kernel keeps what it was told until a change is reported */
    uint64_t cache_size; /* bytes of contents on disk; 0: none */
    char *mountpoint;    /* as given */
    char *workspace;     /* thread ID or directory name, or NULL */
    char *log_file;
    char *prune; /* profile or file of visibility rules, or NULL */
    uint32_t timeout_ms;
    unsigned long mount_flags; /* MS_… */
    char *kernel_options;      /* passed on as they are, or NULL */

    char **urls; /* of a joined mount; those before the mountpoint, when they are more than one */
    size_t url_count;
    char *services; /* of a joined mount: names, separated by ':', or "all"; or NULL */

    /* Owned here, lent to client_settings_load by options_client_flags. */
    char *url;
    char *service;
    char *config_file;
    char *token_file;
    char *ca_file;
    char *cert_file;
    char *key_file;
    char *symlinks;
    char *system_prefixes;
};

/* Reads the command line. helper: by the rules of mount(8), "SOURCE MOUNTPOINT [-sfnv]
 * [-o …]"; else "[URL…] MOUNTPOINT [-f] [-w ID] [-o …]". -EINVAL with what is wrong; -ENOMEM. */
int options_parse(int argc, char *const argv[], bool helper, struct options *ret,
                  struct failure *ret_failure);
void options_release(struct options *o);
#define _cleanup_options_ _cleanup_(options_release)

/* Whether it is of several services (join.h). */
static inline bool options_are_joined(const struct options *o)
{
    return o->services || o->url_count;
}

struct client_flags options_client_flags(const struct options *o);

extern const char options_usage[];

/* Settings, from command-line flags, environment, configuration file and defaults, in this
 * order of precedence, each setting by itself. The file is one JSON object:
 *
 *   { "client":  { "url", "token_file", "ca_file", "cert_file", "key_file",
 *                  "connect_timeout" (seconds), "persist" (seconds), "symlinks",
 *                  "system_prefixes": [ … ],
 *                  "services": { services by name: services.h } },
 *     "service": { "root", "listen": [ … ], "access_file", "audit_log", "tls_cert", "tls_key",
 *                  "tls_client_ca", "log_level": "error"|"warning"|"info"|"debug",
 *                  "socket_mode": "0600", "keeper_socket",
 *                  "watch": "auto"|"fanotify"|"inotify"|"none",
 *                  "confine": "auto"|"require"|"off",
 *                  "visibility": [ rules as in visibility.h, one a string ],
 *                  "policy": { of new workspaces, see berth-policy(5) } } }
 *
 * Every key is optional; an unknown one is an error. File names may be relative to the
 * directory of the configuration file; those of flags and environment are relative to the
 * working directory. All come out absolute, so that a program may change its directory.
 * Failures name the file, the key (or flag, or variable) and what is expected:
 *   -EINVAL   a value or the file's form     -EACCES  a file that cannot or must not be read
 *   -ENOENT   a file that was named is missing         -ENOMEM */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>
#include <stdint.h>

#include "base/failure.h"
#include "base/log.h"
#include "names/link_text.h"
#include "stream/stream.h"
#include "visibility/visibility.h"

/* What the command line gave; borrowed, {0} = nothing given. */
struct client_flags {
    const char *config_file;
    const char *url;
    const char *service; /* a name of "services"; with url: an error */
    const char *token_file;
    const char *ca_file;
    const char *cert_file;
    const char *key_file;
    const char *symlinks;        /* the name of a mode */
    const char *system_prefixes; /* as link_prefixes_check takes them */
    const char *persist;         /* seconds */
    uint32_t connect_timeout_ms;
    bool alone; /* the URL is not that of environment and configuration: their credentials are kept
                   from it */
};

/* Owned. NULL = not set, but url and system_prefixes are always set. Environment: BERTH_URL,
 * BERTH_SERVICE, BERTH_TOKEN, BERTH_TOKEN_FILE, BERTH_CA_FILE, BERTH_CERT_FILE, BERTH_KEY_FILE,
 * BERTH_PERSIST (empty = unset).
 * BERTH_TOKEN beats BERTH_TOKEN_FILE; --token-file beats both. For a service by name the flags
 * and what the file says of it are all there is (services.h). */
struct client_settings {
    char *url;
    char *service;    /* the name by which it was chosen, or NULL */
    bool url_default; /* nobody named it */
    char *token;      /* the token itself, from wherever; wiped on release */
    char *token_file; /* where it came from, or NULL (BERTH_TOKEN) */
    char *ca_file;
    char *cert_file;
    char *key_file;
    bool alone; /* these are all, as client_flags has it */
    enum link_mode symlinks;
    char *system_prefixes;
    uint32_t connect_timeout_ms; /* 0: the stream's default */
    int persist_s; /* how long a connection without use is held for later; 0: it is not; -1: nobody
                      said */
};

/* Reads the configuration file (flags->config_file, else paths_config_file) and the token
 * file. The URL is checked in form. */
int client_settings_load(const struct client_flags *flags, struct client_settings *ret,
                         struct failure *ret_failure);
void client_settings_release(struct client_settings *s);
/* -ENOMEM */
int client_settings_copy(const struct client_settings *s, struct client_settings *ret);

/* Reads s->token from s->token_file; nothing if that is NULL. */
int client_settings_read_token(struct client_settings *s, struct failure *ret_failure);

/* Whether flags or environment name the service: they beat what a mount says. */
bool client_flags_name_service(const struct client_flags *flags);
#define _cleanup_client_settings_ _cleanup_(client_settings_release)

/* Options for stream_open that borrow from s. */
struct stream_options client_settings_stream(const struct client_settings *s);

struct service_flags {
    const char *config_file;
    const char *root;
    const char *const *listen; /* URLs; given ones replace those of the file */
    size_t listen_count;
    const char *keeper_socket; /* keeper/unit.h */
    const char *access_file;   /* of grants: access/grant.h */
    const char *audit_log;
    const char *tls_cert;
    const char *tls_key;
    const char *tls_client_ca;
    const char *log_level;
    const char *watch;
    const char *socket_mode; /* octal */
    const char *confine;
    const char *keep_verdicts; /* seconds */
    const char *prune;         /* as config_rules_load; replaces the file's rules */
    const char *policy;        /* a file; replaces the policy of the configuration */
};

/* For how long the verdicts of commands are kept when nobody says otherwise, and at most: a year.
 */
#define CONFIG_KEEP_VERDICTS_S 3600
#define CONFIG_KEEP_VERDICTS_MAX 31536000

/* Who may connect by default: the service's user. */
#define CONFIG_SOCKET_MODE 0600

/* How changes beside the service are noticed. */
enum config_watch {
    CONFIG_WATCH_AUTO,
    CONFIG_WATCH_FANOTIFY,
    CONFIG_WATCH_INOTIFY,
    CONFIG_WATCH_NONE,
};

/* As in the file and on the command line. */
const char *config_watch_word(enum config_watch watch);

/* Whether the service confines itself. */
enum config_confine {
    CONFIG_CONFINE_AUTO,    /* as far as the kernel can */
    CONFIG_CONFINE_REQUIRE, /* or it does not start */
    CONFIG_CONFINE_OFF,
};
const char *config_confine_word(enum config_confine confine);
int config_confine_parse(const char *word, enum config_confine *ret); /* -EINVAL */

/* Owned. root is always set. listen_count 0: nobody named a listener (the service then takes
 * paths_default_url). */
struct service_settings {
    char *config_file; /* the file that was read, or NULL */
    char *root;
    char **listen; /* checked by config_listen_check */
    size_t listen_count;
    char *keeper_socket;
    char *access_file;
    char *audit_log;
    char *tls_cert;
    char *tls_key;
    char *tls_client_ca;
    enum log_level log_level;
    enum config_watch watch;
    mode_t socket_mode; /* of unix sockets, but that of the root */
    enum config_confine confine;
    uint32_t keep_verdicts_s;
    char *prune;                         /* the flag's profile or file, or NULL */
    char *policy_file;                   /* the flag's, or NULL */
    char *policy;                        /* JSON, not looked at; NULL: none given */
    char *policy_from;                   /* where it was, for errors */
    struct visibility_rules *visibility; /* NULL: none given */
};

int service_settings_load(const struct service_flags *flags, struct service_settings *ret,
                          struct failure *ret_failure);
void service_settings_release(struct service_settings *s);
#define _cleanup_service_settings_ _cleanup_(service_settings_release)

/* One more to listen on; nothing if it is there already. from: who says so, for the failure.
 * -EINVAL, -ENOMEM. */
int service_settings_listen(struct service_settings *s, const char *url, const char *from,
                            struct failure *ret_failure);

/* A URL a service may listen on: unix:/PATH, https://HOST:PORT, http://LOOPBACK:PORT; port 0 is
 * any. Its parts: stream_url_parse_listen. */
int config_listen_check(const char *url, struct failure *ret_failure);

/* Visibility rules as users name them: a file when there is a '/' in it, else a profile. -EINVAL,
 * -ENOENT, -EACCES, -ENOMEM. What in a file is hardly meant is a warning in the log. */
int config_rules_load(const char *profile_or_file, struct visibility_rules **ret,
                      struct failure *ret_failure);

#define CONFIG_LISTEN_MAX 16 /* listeners; a file is not a way to run out of descriptors */

/* Tokens of a token file: one a line, blank lines and those starting with '#' skipped, white
 * space around them stripped. The file must not be readable, writable or executable by group
 * or others (-EACCES); a token is 1 to CONFIG_TOKEN_MAX bytes of printable ASCII without
 * spaces; at least one (-EINVAL). */
#define CONFIG_TOKEN_MAX 1024  /* fits every header limit on the way */
#define CONFIG_TOKENS_MAX 1024 /* bounds the comparison work of each authentication */

struct token_list {
    char **tokens;
    size_t count;
};
int token_list_load(const char *file, struct token_list *ret, struct failure *ret_failure);

/* Wipes and frees. */
void token_list_release(struct token_list *l);
#define _cleanup_token_list_ _cleanup_(token_list_release)

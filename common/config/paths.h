/* Where Berth keeps its things when nobody says otherwise. Every result is an absolute path
 * (or URL) that the caller frees. Nothing here creates anything but paths_make_….
 *
 *   runtime directory   $XDG_RUNTIME_DIR/berth; else /run/berth for root; else
 *                       /tmp/berth-UID, which must be a directory of ours with mode 0700
 *   socket              RUNTIME/berthd.sock       default URL   unix:RUNTIME/berthd.sock
 *   service root        /var/lib/berth for root; else $XDG_STATE_HOME/berth, else
 *                       ~/.local/state/berth
 *   places              $XDG_STATE_HOME/berth-client/places; else /var/lib/berth-client/places for
 *                       root; else ~/.local/state/berth-client/places: never in a service root
 *   joined slots        the file "joined" beside places (fs/slots.h)
 *   cache               $XDG_CACHE_HOME/berth; else /var/cache/berth for root; else ~/.cache/berth
 *   configuration       $XDG_CONFIG_HOME/berth/berth.json, else ~/.config/berth/berth.json, if
 *                       that exists; else /etc/berth/berth.json
 *
 * XDG variables that are empty or not absolute count as unset. */
#pragma once

#include "base/failure.h"

/* -ENOMEM, or -EPERM: /tmp/berth-UID exists but is not a private directory of ours, so that
 * somebody else could listen there in our name. It need not exist. */
int paths_runtime_dir(char **ret, struct failure *ret_failure);
int paths_socket(char **ret, struct failure *ret_failure);
int paths_default_url(char **ret, struct failure *ret_failure);

/* -ENOENT: no home directory can be told. */
int paths_service_root(char **ret, struct failure *ret_failure);
int paths_cache_dir(char **ret, struct failure *ret_failure);
int paths_places_dir(char **ret, struct failure *ret_failure);
int paths_joined_slots(char **ret, struct failure *ret_failure);

/* The first of the two that exists; *ret NULL when neither does (not a failure). */
int paths_config_file(char **ret, struct failure *ret_failure);

/* Makes the runtime directory (0700) if it is missing and checks it as paths_runtime_dir. For
 * the service, before it binds the default socket. */
int paths_make_socket_dir(struct failure *ret_failure);

/* Makes a directory (0700) and those above it (0755) where they are missing. path is as before when
 * it returns. */
int paths_make_directory(char *path, struct failure *ret_failure);

/* path itself if absolute, else base/path; base NULL: the working directory. A leading "~/" is
 * the home directory. Not normalised; nothing needs to exist. */
int paths_absolute(const char *path, const char *base, char **ret, struct failure *ret_failure);

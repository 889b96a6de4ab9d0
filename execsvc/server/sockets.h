/* The sockets that a service listens on: unix, https, http on loopback. Whoever opens them has
 * other rights, and another life, than who serves them (listener.h). */
#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include "config/config.h"

struct activation;

/* A name may have several addresses. Stops one with hundreds from using up descriptors. */
#define SOCKETS_MAX (4 * CONFIG_LISTEN_MAX)

enum listener_kind {
    LISTENER_UNIX,
    LISTENER_HTTPS,
    LISTENER_HTTP,
    LISTENER_GATEWAY, /* for the gateway alone (http_relay.h) */
};

struct listening {
    enum listener_kind kind;
    char *url; /* with the address and port that it is bound to */
    int fd;
    char *path; /* unix: to be removed at the end, if it is still ours */
    dev_t path_dev;
    ino_t path_ino;
};

struct sockets {
    struct listening list[SOCKETS_MAX];
    size_t count;
};

/* Opens those of the settings, or the default one, and ROOT/berthd.sock and the gateway's last:
 * whoever can connect there may connect to all, and they alone have the mode 0600 whatever the
 * settings say. What `activation` has of them is taken from there, open already, with its mode and
 * its name, which are another's to change and to remove. unix: a missing directory is made, 0700; a
 * socket that nobody listens on is replaced. Failures name the URL; what was opened is then closed:
 * -EADDRINUSE   somebody else listens there       -EEXIST the path is no socket -EINVAL       the
 * URL, or http beyond loopback; and those of the system calls.
 */
int sockets_open(const struct service_settings *settings, const char *root,
                 struct activation *activation, struct sockets *ret, struct failure *ret_failure);

/* With the names of unix sockets, unless others have them now. */
void sockets_close(struct sockets *s);

/* Without touching names: they are another process's. */
void sockets_forget(struct sockets *s);

/* ROOT/berthd.sock: where every service of a root listens, whatever else it does. */
int sockets_root_path(const char *root, char **ret);

/* "HOST:PORT", in numbers. */
void sockets_address_text(const struct sockaddr *address, socklen_t len, char *out, size_t size);

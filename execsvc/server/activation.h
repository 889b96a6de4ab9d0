/* Sockets that this process was started with, as systemd's socket units and others hand them over
 * (sd_listen_fds(3)): LISTEN_PID says whose they are, LISTEN_FDS how many there are from descriptor
 * 3 on, LISTEN_FDNAMES what they are called. */
#pragma once

#include "config/config.h"

struct activation {
    struct {
        int fd; /* -1: given away */
        char *url;
    } list[CONFIG_LISTEN_MAX];
    size_t count;
};

/* Takes those that are meant for this process, with the URLs that their addresses are: unix: and
 * https:, or http: for one that is called "http". None is no failure. The variables are gone
 * afterwards, so that nothing that is started here takes other descriptors for them. -EINVAL: a
 * descriptor that is no listening stream socket, or whose address has no URL; -E2BIG. */
int activation_take(struct activation *ret, struct failure *ret_failure);

/* The one socket that this process was started with, which is of that type and listens, and this
 * process's then. -EINVAL: it was started with none, with several, or with something else. */
int activation_take_one(int type, int *ret_fd, struct failure *ret_failure);

/* The socket of that URL, which is the caller's then; -1: there is none. */
int activation_claim(struct activation *a, const char *url);

void activation_release(struct activation *a);
#define _cleanup_activation_ _cleanup_(activation_release)

#include "control/control.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "base/log.h"
#include "control/private.h"
#include "stream/unix_path.h"

/* Accepted per turn of the loop. */
#define ACCEPT_BATCH 16

/* The socket's mode keeps others out, and so does its directory's. A process that holds either
 * open from before, or root in another's name, is kept out by this. */
static bool is_owner(int fd)
{
    struct ucred credentials;
    socklen_t len = sizeof credentials;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &len) == 0 &&
           credentials.uid == geteuid();
}

static void on_accept(evutil_socket_t fd, short what, void *context)
{
    struct control *c = context;
    for (int i = 0; i < ACCEPT_BATCH; i++) {
        int peer = accept4(fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (peer < 0)
            return;
        if (c->peer_count < CONTROL_PEERS_MAX && is_owner(peer))
            peer_new(c, peer);
        else
            close_fd(&peer);
    }
}

static void end_peers(struct control *c, const char *reason)
{
    struct peer *p;
    TAILQ_FOREACH(p, &c->peers, link)
    if (p->session)
        peer_end(p, -ECONNRESET, reason);
}

void control_set_client(struct control *c, struct client *client, const char *reason)
{
    if (!c || c->client == client)
        return;
    end_peers(c, reason ? reason : "the connection to the service is lost");
    c->client = client;
    c->generation++;
    control_set_suspended(c, false);
}

void control_set_suspended(struct control *c, bool suspended)
{
    if (!c)
        return;
    c->suspended = suspended;
    if (suspended)
        end_peers(c, "the connection to the service is lost");
}

int control_new(struct event_base *base, const char *path, const struct control_events *events,
                struct control **ret, struct failure *ret_failure)
{
    struct control *c = calloc(1, sizeof *c);
    struct stat st;
    if (!c)
        return failure_set(ret_failure, -ENOMEM, "out of memory");
    c->base = base;
    c->events = *events;
    c->fd = -1;
    TAILQ_INIT(&c->peers);
    int r = unix_path_listen(path, &c->fd, &st, ret_failure);
    if (r < 0) {
        free(c);
        return r;
    }
    c->path_dev = st.st_dev;
    c->path_ino = st.st_ino;
    c->path = strdup(path);
    c->accept = event_new(base, c->fd, EV_READ | EV_PERSIST, on_accept, c);
    if (!c->path || !c->accept || event_add(c->accept, NULL) < 0) {
        control_free(c);
        return failure_set(ret_failure, -ENOMEM, "out of memory");
    }
    *ret = c;
    return 0;
}

void control_free(struct control *c)
{
    if (!c)
        return;
    c->events.peers = NULL;
    struct peer *p;
    end_peers(c, "the connection is being closed");
    while ((p = TAILQ_FIRST(&c->peers))) {
        peer_last_words(p);
        peer_free(p);
    }
    struct stat st;
    /* Another one may have taken its place. */
    if (c->path && lstat(c->path, &st) == 0 && st.st_dev == c->path_dev && st.st_ino == c->path_ino)
        (void)unlink(c->path);
    if (c->accept)
        event_free(c->accept);
    close_fd(&c->fd);
    free(c->path);
    free(c);
}

#include "egress/dial.h"

#include <ifaddrs.h>
#include <sys/socket.h>

#include "base/cleanup.h"

struct attempt {
    struct address address;
    int fd;
    struct event *writable;
};

struct dial {
    struct event_base *base;
    struct event *next; /* begins the next attempt */
    uint16_t port;
    struct attempt attempts[DIAL_ATTEMPTS_MAX];
    size_t count;
    size_t begun;
    size_t failed;
    int error; /* of the first that failed */
    struct address error_address;
    dial_done done;
    void *context;
};

static void attempt_end(struct attempt *a)
{
    if (a->writable)
        event_free(take_ptr(a->writable));
    close_fd(&a->fd);
}

void dial_cancel(struct dial *c)
{
    if (!c)
        return;
    for (size_t i = 0; i < c->count; i++)
        attempt_end(&c->attempts[i]);
    if (c->next)
        event_free(c->next);
    free(c);
}

static void finish(struct dial *c, int fd, int error, const struct address *address)
{
    const struct address copy = *address;
    dial_done done = c->done;
    void *context = c->context;
    dial_cancel(c);
    done(context, fd, error, &copy);
}

static void attempt_failed(struct dial *c, struct attempt *a, int error)
{
    attempt_end(a);
    if (c->failed++ == 0) {
        c->error = error;
        c->error_address = a->address;
    }
    if (c->failed == c->count)
        finish(c, -1, c->error, &c->error_address);
    else if (c->begun < c->count)
        event_active(c->next, EV_TIMEOUT, 0);
}

static void on_writable(evutil_socket_t fd, short what, void *context)
{
    struct dial *c = context;
    struct attempt *a = c->attempts;
    while (a->fd != fd)
        a++;
    int error = 0;
    socklen_t len = sizeof error;
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len) < 0)
        error = errno;
    if (error != 0)
        attempt_failed(c, a, -error);
    else
        finish(c, take_fd(&a->fd), 0, &a->address);
}

static int begin(struct dial *c, struct attempt *a)
{
    struct sockaddr_storage to;
    socklen_t len = address_to_socket(&a->address, c->port, &to);
    a->fd = socket(to.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (a->fd < 0 || (connect(a->fd, (struct sockaddr *)&to, len) < 0 && errno != EINPROGRESS))
        return -errno;
    a->writable = event_new(c->base, a->fd, EV_WRITE, on_writable, c);
    return a->writable && event_add(a->writable, NULL) == 0 ? 0 : -ENOMEM;
}

static void on_next(evutil_socket_t fd, short what, void *context)
{
    struct dial *c = context;
    const struct timeval delay = {.tv_usec = DIAL_DELAY_MS * 1000};
    if (c->begun == c->count)
        return;
    struct attempt *a = &c->attempts[c->begun++];
    int r = begin(c, a);
    if (c->begun < c->count)
        (void)event_add(c->next, &delay);
    if (r < 0)
        attempt_failed(c, a, r);
}

/* In their order, but alternating between the families, so that one of them that leads nowhere does
 * not use up the attempts. */
static void choose(struct dial *c, const struct address *addresses, size_t count)
{
    sa_family_t wanted = addresses[0].family;
    size_t at[2] = {0, 0}; /* in each family */
    while (c->count < DIAL_ATTEMPTS_MAX) {
        size_t *i = &at[wanted == AF_INET];
        while (*i < count && addresses[*i].family != wanted)
            (*i)++;
        if (*i < count)
            c->attempts[c->count++] = (struct attempt){.address = addresses[(*i)++], .fd = -1};
        wanted = wanted == AF_INET ? AF_INET6 : AF_INET;
        if (at[0] >= count && at[1] >= count)
            break;
    }
}

int dial_start(struct event_base *base, const struct address *addresses, size_t count,
               uint16_t port, dial_done done, void *context, struct dial **ret)
{
    struct dial *c = calloc(1, sizeof *c);
    if (!c)
        return -ENOMEM;
    c->base = base;
    c->port = port;
    c->done = done;
    c->context = context;
    choose(c, addresses, count);
    c->next = evtimer_new(base, on_next, c);
    if (!c->next) {
        dial_cancel(c);
        return -ENOMEM;
    }
    event_active(c->next, EV_TIMEOUT, 0);
    *ret = c;
    return 0;
}

/* Of an interface; also what the kernel would not choose to talk from. */
static bool is_of_interface(const struct address *a)
{
    struct ifaddrs *all;
    bool found = false;
    if (getifaddrs(&all) < 0)
        return true; /* who cannot tell admits nothing */
    for (const struct ifaddrs *i = all; i && !found; i = i->ifa_next) {
        struct address of;
        found = i->ifa_addr && address_from_socket(i->ifa_addr, &of) == 0 && address_equal(a, &of);
    }
    freeifaddrs(all);
    return found;
}

/* Of a block that is routed to the machine: it talks to such an address from that very address. */
static bool is_talked_to_from_itself(const struct address *a)
{
    struct sockaddr_storage to;
    struct sockaddr_storage from;
    struct address chosen;
    socklen_t len = address_to_socket(a, 9, &to);
    socklen_t from_len = sizeof from;
    _cleanup_close_ int fd = socket(to.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    return fd >= 0 && connect(fd, (struct sockaddr *)&to, len) == 0 &&
           getsockname(fd, (struct sockaddr *)&from, &from_len) == 0 &&
           address_from_socket((struct sockaddr *)&from, &chosen) == 0 && address_equal(a, &chosen);
}

bool dial_is_own(const struct address *a)
{
    return is_talked_to_from_itself(a) || is_of_interface(a);
}

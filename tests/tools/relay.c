/* A network between a client and a service, for tests and measurements: one-way delay and
 * bandwidth per direction, and the ways a network fails, changed at run time over a control
 * socket. On unencrypted Berth streams it also counts frames and round trips. Relays other
 * protocols (ssh) just as well; their bytes are counted.
 *
 *   relay --listen ADDRESS --connect ADDRESS --control PATH [--delay MS] [--bandwidth N] [--raw]
 *
 * ADDRESS is unix:PATH or tcp:HOST:PORT (port 0 when listening: any). Prints
 * "relay: listening on ADDRESS" when ready. The control socket takes one command per line and
 * answers each with one line ("ok", "error …", or JSON):
 *
 *   delay MS         one way, in each direction, fractions allowed
 *   bandwidth N      bytes per second in each direction, 0: no limit
 *   cut              close all connections at once; new ones are served
 *   stall / resume   nothing passes, and nothing is lost / everything goes on
 *   half-open        whatever arrives on present connections is thrown away; they stay open
 *   lose             the same, but the server sees them end
 *   cut-after N      the connection whose bytes are the N-th from now on is cut at that byte
 *   refuse on|off    new connections are refused as if nobody listened
 *   stats, reset     counts since the last reset */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <event2/buffer.h>
#include <event2/bufferevent.h>

#include "base/clock.h"
#include "relay_link.h"

#define LINKS_MAX 16384 /* a test of ten thousand connections fits */
#define COMMAND_MAX 256 /* bytes in a line of the control socket */
#define LIMITED_RECEIVE                                                     \
    65536 /* socket buffer when bandwidth is limited: what the kernel takes \
             in ahead of the wire would not show as waiting to its sender */

struct relay {
    struct event_base *base;
    struct link_settings settings;
    struct count_totals totals;
    const char *target;
    struct sockaddr_storage listen_address;
    socklen_t listen_len;
    int listen_fd;
    struct event *listening;
    struct link *links[LINKS_MAX];
    size_t link_count;
    uint64_t accepted, failed;
};

/* unix:PATH or tcp:HOST:PORT. 0, or -EINVAL. */
static int address_parse(const char *text, struct sockaddr_storage *ret, socklen_t *ret_len)
{
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    char host[256];

    if (strncmp(text, "unix:", 5) == 0) {
        if (strlen(text + 5) >= sizeof(un.sun_path) || !text[5])
            return -EINVAL;
        memcpy(un.sun_path, text + 5, strlen(text + 5) + 1);
        memcpy(ret, &un, sizeof(un));
        *ret_len = sizeof(un);
        return 0;
    }
    const char *colon = strrchr(text, ':');
    if (strncmp(text, "tcp:", 4) != 0 || colon < text + 4)
        return -EINVAL;
    const char *start = text + 4;
    size_t len = (size_t)(colon - start);
    if (len >= 2 && start[0] == '[' && start[len - 1] == ']') {
        start++;
        len -= 2;
    }
    if (len >= sizeof(host))
        return -EINVAL;
    memcpy(host, start, len);
    host[len] = '\0';
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    if (getaddrinfo(host, colon + 1, &hints, &found) != 0)
        return -EINVAL;
    memcpy(ret, found->ai_addr, found->ai_addrlen);
    *ret_len = found->ai_addrlen;
    freeaddrinfo(found);
    return 0;
}

static void socket_tune(const struct relay *r, int fd)
{
    int on = 1, size = LIMITED_RECEIVE;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    if (r->settings.bandwidth)
        (void)setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof(size));
}

static void on_link_closed(void *context, struct link *link)
{
    struct relay *r = context;
    for (size_t i = 0; i < r->link_count; i++) {
        if (r->links[i] == link) {
            r->links[i] = r->links[--r->link_count];
            break;
        }
    }
    link_free(link);
}

/* Target and client are both on this machine, so connecting does not take long. */
static int connect_target(struct relay *r)
{
    struct sockaddr_storage address;
    socklen_t len;

    if (address_parse(r->target, &address, &len) < 0)
        return -EINVAL;
    _cleanup_close_ int fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    socket_tune(r, fd);
    if (connect(fd, (struct sockaddr *)&address, len) < 0)
        return -errno;
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0)
        return -errno;
    return take_fd(&fd);
}

static void on_accept(int fd, short what, void *context)
{
    struct relay *r = context;
    _cleanup_close_ int client = accept4(fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

    if (client < 0)
        return;
    r->accepted++;
    socket_tune(r, client);
    int server = r->link_count < LINKS_MAX ? connect_target(r) : -EMFILE;
    if (server < 0) {
        r->failed++;
        return;
    }
    struct link *link;
    if (link_new(r->base, &r->settings, &r->totals, take_fd(&client), server, on_link_closed, r,
                 &link) < 0)
        r->failed++;
    else
        r->links[r->link_count++] = link;
}

static void listen_stop(struct relay *r)
{
    if (r->listening)
        event_free(r->listening);
    r->listening = NULL;
    close_fd(&r->listen_fd);
}

static int listen_start(struct relay *r)
{
    const struct sockaddr_un *un = (const struct sockaddr_un *)&r->listen_address;
    int on = 1;

    if (r->listening)
        return 0;
    if (un->sun_family == AF_UNIX)
        (void)unlink(un->sun_path);
    r->listen_fd = socket(un->sun_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (r->listen_fd < 0)
        return -errno;
    (void)setsockopt(r->listen_fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (bind(r->listen_fd, (struct sockaddr *)&r->listen_address, r->listen_len) < 0 ||
        listen(r->listen_fd, SOMAXCONN) < 0)
        return -errno;
    if (un->sun_family != AF_UNIX &&
        getsockname(r->listen_fd, (struct sockaddr *)&r->listen_address, &r->listen_len) < 0)
        return -errno;
    r->listening = event_new(r->base, r->listen_fd, EV_READ | EV_PERSIST, on_accept, r);
    if (!r->listening || event_add(r->listening, NULL) < 0)
        return -ENOMEM;
    return 0;
}

static json_t *stats_json(const struct relay *r)
{
    json_t *object = count_totals_json(&r->totals);
    if (!object)
        return NULL;
    uint64_t longest = r->totals.round_trips_max, sum = r->totals.round_trips_sum;
    for (size_t i = 0; i < r->link_count; i++) {
        uint64_t n = counter_round_trips(link_counter(r->links[i]));
        longest = n > longest ? n : longest;
        sum += n;
    }
    if (json_object_set_new(object, "round_trips_max", json_integer((json_int_t)longest)) < 0 ||
        json_object_set_new(object, "round_trips_sum", json_integer((json_int_t)sum)) < 0 ||
        json_object_set_new(object, "accepted", json_integer((json_int_t)r->accepted)) < 0 ||
        json_object_set_new(object, "failed", json_integer((json_int_t)r->failed)) < 0 ||
        json_object_set_new(object, "open", json_integer((json_int_t)r->link_count)) < 0) {
        json_decref(object);
        return NULL;
    }
    return object;
}

static void answer_stats(const struct relay *r, struct evbuffer *out)
{
    json_t *object = stats_json(r);
    char *text = object ? json_dumps(object, JSON_COMPACT) : NULL;
    (void)evbuffer_add_printf(out, "%s\n", text ? text : "error out of memory");
    free(text);
    json_decref(object);
}

static void reset_stats(struct relay *r)
{
    r->totals = (struct count_totals){0};
    r->accepted = r->failed = 0;
    for (size_t i = 0; i < r->link_count; i++)
        counter_reset(link_counter(r->links[i]));
}

static void set_stalled(struct relay *r, bool stalled)
{
    r->settings.stalled = stalled;
    for (size_t i = 0; i < r->link_count; i++)
        link_update(r->links[i]);
}

static int set_number(const char *text, double scale, uint64_t *ret)
{
    char *end;
    errno = 0;
    double value = strtod(text, &end);
    if (errno || end == text || *end || !(value >= 0) || value * scale > 1e18)
        return -EINVAL;
    *ret = (uint64_t)(value * scale);
    return 0;
}

/* 0, or -EINVAL for an unknown command or a bad number. */
static int run_command(struct relay *r, const char *line)
{
    if (strncmp(line, "delay ", 6) == 0)
        return set_number(line + 6, (double)NSEC_PER_MSEC, &r->settings.delay_ns);
    if (strncmp(line, "bandwidth ", 10) == 0)
        return set_number(line + 10, 1, &r->settings.bandwidth);
    if (strcmp(line, "cut") == 0) {
        while (r->link_count)
            link_free(r->links[--r->link_count]);
        return 0;
    }
    if (strcmp(line, "stall") == 0 || strcmp(line, "resume") == 0) {
        set_stalled(r, line[0] == 's');
        return 0;
    }
    if (strcmp(line, "half-open") == 0) {
        for (size_t i = 0; i < r->link_count; i++)
            link_swallow(r->links[i]);
        return 0;
    }
    if (strcmp(line, "lose") == 0) {
        for (size_t i = 0; i < r->link_count; i++)
            link_lose(r->links[i]);
        return 0;
    }
    if (strncmp(line, "cut-after ", 10) == 0)
        return set_number(line + 10, 1, &r->settings.cut_after);
    if (strcmp(line, "refuse on") == 0) {
        listen_stop(r);
        return 0;
    }
    if (strcmp(line, "refuse off") == 0)
        return listen_start(r);
    if (strcmp(line, "reset") == 0) {
        reset_stats(r);
        return 0;
    }
    return -EINVAL;
}

static void on_control_end(struct bufferevent *connection, short what, void *context)
{
    bufferevent_free(connection);
}

static void on_control_written(struct bufferevent *connection, void *context)
{
    bufferevent_free(connection);
}

static void on_control_line(struct bufferevent *connection, void *context)
{
    struct relay *r = context;
    struct evbuffer *in = bufferevent_get_input(connection);
    struct evbuffer *out = bufferevent_get_output(connection);
    char *line;

    while ((line = evbuffer_readln(in, NULL, EVBUFFER_EOL_LF))) {
        if (strcmp(line, "stats") == 0) {
            answer_stats(r, out);
        } else {
            int result = run_command(r, line);
            if (result < 0)
                (void)evbuffer_add_printf(out, "error %s: %s\n", line, strerror(-result));
            else
                (void)evbuffer_add_printf(out, "ok\n");
        }
        free(line);
    }
    if (evbuffer_get_length(in) > COMMAND_MAX)
        bufferevent_free(connection);
}

/* End of a client's commands: answer what is left, then close. */
static void on_control_event(struct bufferevent *connection, short what, void *context)
{
    if ((what & BEV_EVENT_EOF) && evbuffer_get_length(bufferevent_get_output(connection)))
        bufferevent_setcb(connection, NULL, on_control_written, on_control_end, context);
    else
        bufferevent_free(connection);
}

static void on_control_accept(int fd, short what, void *context)
{
    struct relay *r = context;
    int client = accept4(fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (client < 0)
        return;
    struct bufferevent *connection = bufferevent_socket_new(r->base, client, BEV_OPT_CLOSE_ON_FREE);
    if (!connection) {
        close_fd(&client);
        return;
    }
    bufferevent_setcb(connection, on_control_line, NULL, on_control_event, r);
    (void)bufferevent_enable(connection, EV_READ | EV_WRITE);
}

static int control_open(const char *path)
{
    struct sockaddr_un un = {.sun_family = AF_UNIX};

    if (strlen(path) >= sizeof(un.sun_path))
        return -ENAMETOOLONG;
    memcpy(un.sun_path, path, strlen(path) + 1);
    (void)unlink(path);
    _cleanup_close_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&un, sizeof(un)) < 0 || listen(fd, 16) < 0)
        return -errno;
    return take_fd(&fd);
}

static void print_address(const struct relay *r)
{
    char host[64], port[16];

    if (r->listen_address.ss_family == AF_UNIX) {
        printf("relay: listening on unix:%s\n",
               ((const struct sockaddr_un *)&r->listen_address)->sun_path);
    } else if (getnameinfo((const struct sockaddr *)&r->listen_address, r->listen_len, host,
                           sizeof(host), port, sizeof(port),
                           NI_NUMERICHOST | NI_NUMERICSERV) == 0) {
        bool six = strchr(host, ':');
        printf("relay: listening on tcp:%s%s%s:%s\n", six ? "[" : "", host, six ? "]" : "", port);
    }
    (void)fflush(stdout);
}

static void on_signal(int number, short what, void *context)
{
    (void)event_base_loopbreak(context);
}

static int usage(void)
{
    fprintf(stderr, "usage: relay --listen ADDRESS --connect ADDRESS --control PATH"
                    " [--delay MS] [--bandwidth BYTES] [--raw]\n"
                    "ADDRESS is unix:PATH or tcp:HOST:PORT\n");
    return 2;
}

static int fail(const char *what, int error)
{
    fprintf(stderr, "relay: %s: %s\n", what, strerror(-error));
    return 1;
}

static int serve(struct relay *r, const char *control_path)
{
    _cleanup_close_ int control_fd = control_open(control_path);
    if (control_fd < 0)
        return fail(control_path, control_fd);
    int error = listen_start(r);
    if (error < 0)
        return fail("listen", error);

    struct event *control =
        event_new(r->base, control_fd, EV_READ | EV_PERSIST, on_control_accept, r);
    struct event *term = evsignal_new(r->base, SIGTERM, on_signal, r->base);
    struct event *interrupt = evsignal_new(r->base, SIGINT, on_signal, r->base);
    int result = 1;
    if (control && term && interrupt && event_add(control, NULL) == 0 &&
        event_add(term, NULL) == 0 && event_add(interrupt, NULL) == 0) {
        print_address(r);
        result = event_base_dispatch(r->base) < 0;
    }
    struct event *events[] = {control, term, interrupt};
    for (size_t i = 0; i < ARRAY_SIZE(events); i++)
        if (events[i])
            event_free(events[i]);
    while (r->link_count)
        link_free(r->links[--r->link_count]);
    listen_stop(r);
    return result;
}

int main(int argc, char **argv)
{
    static const struct option options[] = {
        {"listen", required_argument, NULL, 'l'},
        {"connect", required_argument, NULL, 'c'},
        {"control", required_argument, NULL, 'o'},
        {"delay", required_argument, NULL, 'd'},
        {"bandwidth", required_argument, NULL, 'b'},
        {"raw", no_argument, NULL, 'r'},
        {NULL, 0, NULL, 0},
    };
    static struct relay relay = {.listen_fd = -1};
    const char *listen_on = NULL, *control = NULL;
    struct sockaddr_storage address;
    socklen_t len;
    int option;

    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        switch (option) {
        case 'l':
            listen_on = optarg;
            break;
        case 'c':
            relay.target = optarg;
            break;
        case 'o':
            control = optarg;
            break;
        case 'd':
            if (set_number(optarg, (double)NSEC_PER_MSEC, &relay.settings.delay_ns) < 0)
                return usage();
            break;
        case 'b':
            if (set_number(optarg, 1, &relay.settings.bandwidth) < 0)
                return usage();
            break;
        case 'r':
            relay.settings.raw = true;
            break;
        default:
            return usage();
        }
    }
    if (!listen_on || !relay.target || !control || optind != argc ||
        address_parse(listen_on, &relay.listen_address, &relay.listen_len) < 0 ||
        address_parse(relay.target, &address, &len) < 0)
        return usage();

    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &files);
    }
    (void)umask(0077);
    (void)signal(SIGPIPE, SIG_IGN);
    relay.base = event_base_new();
    if (!relay.base)
        return fail("event loop", -ENOMEM);
    int result = serve(&relay, control);
    event_base_free(relay.base);
    return result;
}

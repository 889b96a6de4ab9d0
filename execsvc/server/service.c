#include "server/service.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>

#include "base/clock.h"
#include "server/connection.h"
#include "server/dispatch.h"
#include "server/errand.h"
#include "server/issuing.h"
#include "server/listener.h"
#include "server/lock_waits.h"
#include "server/park.h"
#include "server/reaper.h"
#include "server/standing.h"
#include "server/trees.h"

/* Connections get this long to take what is queued for them when the service stops. */
#define STOP_TIMEOUT_S 3

/* Descriptors that connections leave to the store, to commands and to the loop. */
#define DESCRIPTORS_RESERVED 256

struct service {
    struct server server;
    struct tls *tls;
    char *root;
    int lock;               /* of the root, until the store has it */
    struct sockets sockets; /* until the listeners have them */
    struct event *errand;
    struct event *on_term, *on_int, *on_hup;
    struct event *stop_deadline;
    struct event *stop_check;
};

void server_log_refusal(struct server *s, const char *format, ...)
{
    uint64_t now = clock_monotonic_ns();
    if (now - s->log_period_start_ns > SERVER_LOG_PERIOD_S * NSEC_PER_SEC) {
        if (s->log_suppressed > 0)
            log_warning("%llu more lines like the last were left out",
                        (unsigned long long)s->log_suppressed);
        s->log_period_start_ns = now;
        s->log_burst = 0;
        s->log_suppressed = 0;
    }
    if (s->log_burst >= SERVER_LOG_BURST) {
        s->log_suppressed++;
        return;
    }
    s->log_burst++;
    char text[512];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    log_info("%s", text);
}

/* --- the end --------------------------------------------------------------------- */

static void on_tear_down(evutil_socket_t fd, short what, void *context)
{
    struct server *s = context;
    struct connection *c;
    while ((c = TAILQ_FIRST(&s->ended)))
        connection_free(c);
}

static void on_stop_deadline(evutil_socket_t fd, short what, void *context)
{
    struct service *service = context;
    (void)event_base_loopbreak(service->server.base);
}

static void on_stop_check(evutil_socket_t fd, short what, void *context)
{
    struct service *service = context;
    if (service->server.connections_alive == 0)
        (void)event_base_loopbreak(service->server.base);
}

/* Ended ones leave their list, so the first is always another. */
static void end_all(struct connection_list *list, const char *why)
{
    struct connection *c;
    while ((c = TAILQ_FIRST(list)))
        connection_end(c, LOG_LEVEL_DEBUG, why);
}

static void stop(struct service *service)
{
    static const char why[] = "the service is stopping";
    const struct errand stopping = {.kind = ERRAND_STOPPING};
    struct server *s = &service->server;
    /* The default action is back with these: a second signal ends the process at once. */
    (void)event_del(service->on_term);
    (void)event_del(service->on_int);
    s->stopping = true;
    listener_stop_all(s);
    struct listener *l;
    for (l = listener_first(s); l; l = listener_next(l))
        end_all(listener_pending(l), why);
    end_all(&s->parked, why);
    end_all(&s->relays, why);
    /* Calls end unanswered: commands go on, and their clients come back to them. */
    connection_goodbye_all(s, -ESHUTDOWN, why);
    struct timeval deadline = {.tv_sec = STOP_TIMEOUT_S};
    struct timeval check = {.tv_usec = 20000};
    (void)event_add(service->stop_deadline, &deadline);
    (void)event_add(service->stop_check, &check);
    (void)event_del(service->errand);
    (void)errand_send(ERRAND_FD, &stopping, -1);
}

static void on_signal(evutil_socket_t number, short what, void *context)
{
    struct service *service = context;
    log_info("stopping on signal %d", (int)number);
    if (!service->server.stopping)
        stop(service);
}

/* Its end, or an answer that came too late. */
static void on_errand(evutil_socket_t socket, short what, void *context)
{
    struct service *service = context;
    struct errand late;
    int fd;
    int r = errand_receive(socket, 0, &late, &fd);
    close_fd(&fd);
    if (r != -ECONNRESET)
        return;
    log_info("stopping");
    stop(service);
}

static void service_release(struct service *service)
{
    struct server *s = &service->server;
    struct listener *l;
    for (l = listener_first(s); l; l = listener_next(l))
        end_all(listener_pending(l), "the service ends");
    end_all(&s->connections, "the service ends");
    end_all(&s->parked, "the service ends");
    end_all(&s->relays, "the service ends");
    on_tear_down(-1, 0, s);
    trees_free(s->trees); /* which hold commands, and read the store */
    reaper_stop(s->reaper);
    exec_service_free(s->exec);
    /* After the lanes were closed, before the store: workers use it until the last job. */
    workers_free(s->workers);
    lock_waits_free(s->lock_waits);
    subscribers_free(s->subscribers);
    listener_stop_all(s);
    listener_free_all(s);
    struct event *events[] = {service->on_term,    service->on_int, service->stop_deadline,
                              service->stop_check, s->tear_down,    s->flush,
                              s->park_timer,       s->access_timer, service->on_hup,
                              service->errand};
    for (size_t i = 0; i < ARRAY_SIZE(events); i++)
        if (events[i])
            event_free(events[i]);
    tls_free(service->tls);
    access_free(s->access);
    audit_close(s->audit);
    store_close(s->store);
    reaper_free(s->reaper);
    if (s->base)
        event_base_free(s->base);
    free(s->message_counts);
    free(s->read_buffer);
    sockets_forget(&service->sockets);
    close_fd(&service->lock);
    free(service->root);
}
#define _cleanup_service_ _cleanup_(service_release)

/* --- the beginning --------------------------------------------------------------- */

/* Clients' connections, nodes and handles are descriptors: as many as we may have. */
static unsigned raise_descriptor_limit(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
        return 1024;
    if (limit.rlim_cur < limit.rlim_max) {
        rlim_t before = limit.rlim_cur;
        limit.rlim_cur = limit.rlim_max;
        if (setrlimit(RLIMIT_NOFILE, &limit) < 0)
            limit.rlim_cur = before;
    }
    return limit.rlim_cur < UINT32_MAX ? (unsigned)limit.rlim_cur : UINT32_MAX;
}

static unsigned between(unsigned n, unsigned least, unsigned most)
{
    return n < least ? least : n > most ? most : n;
}

/* Half of the descriptors are for clients' files; of the other half, a half each for those who
 * have authenticated and those who have not. */
static void set_limits(struct server *s, unsigned descriptors, size_t listeners)
{
    unsigned usable = descriptors > DESCRIPTORS_RESERVED ? descriptors - DESCRIPTORS_RESERVED : 0;
    s->connections_max = between(usable / 4, 16, SERVER_CONNECTIONS_MAX);
    s->relays_max = between(usable / 16, 8, SERVER_RELAYS_MAX);
    s->pending_max =
        between(usable / 4 / (unsigned)(listeners + 1), LISTENER_PENDING_MIN, LISTENER_PENDING_MAX);
}

/* --- what the starter does for it ------------------------------------------------ */

static int ask(enum errand_kind kind)
{
    struct failure failure;
    int fd;
    int r = errand_ask(ERRAND_FD, kind, "", &fd, &failure);
    return r < 0 ? r : fd;
}

static int open_access_file(void *context)
{
    return ask(ERRAND_ACCESS_FILE);
}

static int open_audit_log(void *context)
{
    return ask(ERRAND_AUDIT_LOG);
}

static int connect_keeper(void *context, const char *name, int *ret_fd, struct failure *ret_failure)
{
    return errand_ask(ERRAND_FD, ERRAND_KEEPER, name, ret_fd, ret_failure);
}

static int take_listener(struct service *service, const struct errand *e, int *fd)
{
    struct sockets *s = &service->sockets;
    if (s->count == SOCKETS_MAX || *fd < 0)
        return -EBADMSG;
    struct listening *l = &s->list[s->count];
    *l = (struct listening){
        .kind = (enum listener_kind)e->number, .url = strdup(e->text), .fd = take_fd(fd)};
    s->count++;
    return l->url ? 0 : -ENOMEM;
}

/* What the starter has opened. */
static int begin_errand(struct service *service, struct failure *ret_failure)
{
    struct errand e;
    int r;
    service->lock = -1;
    do {
        _cleanup_close_ int fd = -1;
        r = errand_receive(ERRAND_FD, ERRAND_TIMEOUT_MS, &e, &fd);
        if (r == 0 && e.kind == ERRAND_LOCK && !service->root) {
            service->lock = take_fd(&fd);
            service->root = strdup(e.text);
            r = service->root ? 0 : -ENOMEM;
        } else if (r == 0 && e.kind == ERRAND_LISTENER) {
            r = take_listener(service, &e, &fd);
        }
    } while (r == 0 && e.kind != ERRAND_BEGIN);
    service->server.crashes = (uint64_t)e.number;
    if (r < 0 || !service->root || fcntl(ERRAND_FD, F_SETFD, FD_CLOEXEC) < 0)
        return failure_set(ret_failure, r < 0 ? r : -EBADMSG, "berthd starts this by itself");
    return 0;
}

/* --- its parts ------------------------------------------------------------------- */

static bool is_https(const char *url)
{
    return strncmp(url, "https:", 6) == 0;
}

static bool is_http(const char *url)
{
    return strncmp(url, "http:", 5) == 0;
}

static int open_credentials(struct service *service, const struct service_settings *settings,
                            struct failure *ret_failure)
{
    struct server *s = &service->server;
    bool https = false;
    const char *http = NULL;
    for (size_t i = 0; i < settings->listen_count; i++) {
        const char *url = settings->listen[i];
        https = https || is_https(url);
        http = is_http(url) ? url : http;
        if (is_http(url) && !settings->access_file)
            return failure_set(ret_failure, -EINVAL,
                               "%s: http needs --access-file; `berth token create` makes one", url);
        if (is_https(url) && !settings->access_file && !settings->tls_client_ca)
            return failure_set(ret_failure, -EINVAL,
                               "%s: https needs --access-file (`berth token create` makes one), "
                               "--tls-client-ca, or both",
                               url);
        if (is_https(url) && (!settings->tls_cert || !settings->tls_key))
            return failure_set(ret_failure, -EINVAL, "%s: https needs --tls-cert and --tls-key",
                               url);
    }
    /* Whoever asks for certificates must not get a way in without. */
    if (http && settings->tls_client_ca)
        return failure_set(ret_failure, -EINVAL,
                           "%s: --tls-client-ca asks for certificates, which http has not; "
                           "use https, or leave out one of the two",
                           http);
    const struct access_options options = {.file = settings->access_file,
                                           .open = open_access_file,
                                           .certificates = settings->tls_client_ca != NULL};
    int r = access_open(&options, &s->access, ret_failure);
    if (r == 0 && settings->audit_log)
        r = audit_open(settings->audit_log, open_audit_log, NULL, &s->audit, ret_failure);
    if (r == 0 && https) {
        r = tls_new(settings->tls_cert, settings->tls_key, settings->tls_client_ca, &service->tls,
                    ret_failure);
    }
    return r;
}

/* Those of the starter's which came with the errand; it takes the descriptors. */
static int open_listeners(struct service *service, struct failure *ret_failure)
{
    for (size_t i = 0; i < service->sockets.count; i++) {
        struct listening *l = &service->sockets.list[i];
        int r = listener_open(&service->server, l->kind, l->url, &l->fd, service->tls);
        if (r < 0)
            return failure_set(ret_failure, r, "cannot listen on %s: %s", l->url, strerror(-r));
    }
    return 0;
}

/* Whoever moves the audit log away says so. */
static void on_hangup(evutil_socket_t number, short what, void *context)
{
    struct server *s = context;
    if (s->audit)
        audit_reopen(s->audit);
    (void)access_refresh(s->access);
}

static int new_events(struct service *service)
{
    struct server *s = &service->server;
    service->on_term = evsignal_new(s->base, SIGTERM, on_signal, service);
    service->on_hup = evsignal_new(s->base, SIGHUP, on_hangup, s);
    service->on_int = evsignal_new(s->base, SIGINT, on_signal, service);
    service->errand = event_new(s->base, ERRAND_FD, EV_READ | EV_PERSIST, on_errand, service);
    service->stop_deadline = event_new(s->base, -1, 0, on_stop_deadline, service);
    service->stop_check = event_new(s->base, -1, EV_PERSIST, on_stop_check, service);
    s->tear_down = event_new(s->base, -1, 0, on_tear_down, s);
    s->flush = event_new(s->base, -1, 0, connection_on_flush, s);
    s->park_timer = event_new(s->base, -1, 0, park_on_timer, s);
    s->access_timer = event_new(s->base, -1, 0, standing_on_timer, s);
    if (!service->on_term || !service->on_int || !service->stop_deadline || !service->stop_check ||
        !s->tear_down || !s->flush || !s->park_timer || !s->access_timer ||
        event_add(service->on_term, NULL) < 0 || event_add(service->on_int, NULL) < 0 ||
        !service->on_hup || event_add(service->on_hup, NULL) < 0 || !service->errand ||
        event_add(service->errand, NULL) < 0)
        return -ENOMEM;
    return 0;
}

static int remember_leases(struct server *s)
{
    _cleanup_free_ char *path = NULL;
    if (asprintf(&path, "%s/leases", store_root(s->store)) < 0)
        return -ENOMEM;
    int fd = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return -errno;
    subscribers_remember(s->subscribers, fd);
    return 0;
}

static int new_exec_service(struct server *s)
{
    const struct exec_service_options options = {
        .store = s->store, .subscribers = s->subscribers, .connect = connect_keeper};
    return exec_service_new(s->base, &options, &s->exec);
}

static int new_parts(struct service *service)
{
    struct server *s = &service->server;
    s->started_ns = clock_monotonic_ns();
    if (getrandom(&s->epoch, sizeof s->epoch, 0) != (ssize_t)sizeof s->epoch)
        s->epoch = s->started_ns;
    s->message_counts = calloc(wire_row_count(), sizeof *s->message_counts);
    s->read_buffer = malloc(SERVER_READ_MAX);
    s->base = event_base_new();
    if (!s->message_counts || !s->read_buffer || !s->base)
        return -ENOMEM;
    int r = new_events(service);
    if (r == 0)
        r = lock_waits_new(s->base, &s->lock_waits);
    if (r == 0)
        r = subscribers_new(s->base, &s->subscribers);
    if (r == 0)
        r = remember_leases(s);
    if (r == 0)
        r = new_exec_service(s);
    if (r == 0)
        r = trees_new(s, &s->trees);
    if (r == 0)
        r = reaper_new(s->base, s->store, &s->reaper);
    return r;
}

/* What holds the service holds those that it starts from now on. */
static int start_threads(struct server *s, struct failure *ret_failure)
{
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    int r = store_begin(s->store, ret_failure);
    if (r < 0)
        return r;
    r = workers_new(s->base, cpus > 0 && cpus < WORKERS_MAX ? 2 * (unsigned)cpus : WORKERS_MAX,
                    &s->workers);
    if (r == 0)
        r = reaper_begin(s->reaper, s->exec, s->workers);
    return r < 0 ? failure_set(ret_failure, r, "cannot start: %s", strerror(-r)) : 0;
}

static const enum watch_mode watch_modes[] = {
    [CONFIG_WATCH_AUTO] = WATCH_AUTO,
    [CONFIG_WATCH_FANOTIFY] = WATCH_FANOTIFY,
    [CONFIG_WATCH_INOTIFY] = WATCH_INOTIFY,
    [CONFIG_WATCH_NONE] = WATCH_NONE,
};

int service_run(const struct service_settings *settings, struct failure *ret_failure)
{
    _cleanup_service_ struct service service = {0};
    struct server *s = &service.server;
    TAILQ_INIT(&s->listeners);
    TAILQ_INIT(&s->connections);
    TAILQ_INIT(&s->parked);
    TAILQ_INIT(&s->relays);
    TAILQ_INIT(&s->ended);
    TAILQ_INIT(&s->dirty);
    (void)prctl(PR_SET_NAME, "berthd"); /* not that of the link it was started by */
    (void)signal(SIGPIPE, SIG_IGN);     /* a peer that closes is an error of that write alone */
    set_limits(s, raise_descriptor_limit(), settings->listen_count);
    int r = dispatch_check();
    if (r < 0)
        return failure_set(ret_failure, r, "this program is incomplete");
    r = begin_errand(&service, ret_failure);
    if (r == 0)
        r = open_credentials(&service, settings, ret_failure);
    if (r == 0)
        r = store_open_claimed(service.root, &service.lock, watch_modes[settings->watch], &s->store,
                               ret_failure);
    if (r == 0)
        r = issuing_begin(s, ret_failure);
    if (r == 0 && settings->visibility)
        r = store_set_visibility(s->store, visibility_rules_text(settings->visibility),
                                 ret_failure);
    if (r == 0 && settings->policy)
        r = store_set_policy(s->store, settings->policy, settings->policy_from, ret_failure);
    if (r < 0)
        return r;
    r = new_parts(&service);
    if (r < 0)
        return failure_set(ret_failure, r, "cannot start: %s", strerror(-r));
    r = bounds_enter(settings->confine, service.root, &s->bounds, ret_failure);
    if (r == 0)
        r = start_threads(s, ret_failure);
    if (r == 0)
        r = open_listeners(&service, ret_failure);
    if (r < 0)
        return r;
    const struct errand ready = {.kind = ERRAND_READY};
    (void)errand_send(ERRAND_FD, &ready, -1);
    if (event_base_dispatch(s->base) < 0)
        return failure_set(ret_failure, -EIO, "the event loop failed");
    log_info("stopped");
    return 0;
}

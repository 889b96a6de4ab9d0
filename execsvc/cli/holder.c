#include "cli/holder.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "client/client.h"
#include "control/control.h"

#define AGENT "berth connection " BERTH_VERSION

/* For programs to take the last words of a connection that is lost. */
#define LAST_WORDS_S 2

struct holder {
    const struct client_settings *settings;
    int persist_s;
    struct event_base *base;
    struct client *client; /* NULL: lost */
    struct control *control;
    struct event *idle;
    struct event *terminate;
    size_t peers;
};

static void end(struct holder *h)
{
    (void)event_base_loopexit(h->base, NULL);
}

/* With nobody there, a connection that is not there either is not worth waiting for. */
static void reconsider(struct holder *h)
{
    const struct timeval persist = {.tv_sec = h->persist_s};
    const struct timeval last_words = {.tv_sec = LAST_WORDS_S};
    if (h->peers == 0 && !h->client)
        end(h);
    else if (!h->client)
        (void)event_add(h->idle, &last_words);
    else if (h->peers == 0)
        (void)event_add(h->idle, &persist);
    else
        (void)event_del(h->idle);
}

static void on_peers(void *context, size_t count)
{
    struct holder *h = context;
    h->peers = count;
    reconsider(h);
}

static void on_stop(void *context)
{
    end(context);
}

static int describe(void *context, json_t *object)
{
    const struct holder *h = context;
    json_t *more = json_pack("{s:s,s:s,s:i}", "kind", "holder", "url", h->settings->url, "persist",
                             h->persist_s);
    int r = more && json_object_update(object, more) == 0 ? 0 : -ENOMEM;
    json_decref(more);
    return r;
}

static void on_idle(evutil_socket_t fd, short what, void *context)
{
    end(context);
}

static void on_terminate(evutil_socket_t signal, short what, void *context)
{
    end(context);
}

/* --- the connection ---------------------------------------------------------------- */

/* Its session is not gone on with: programs come back to their commands, over another connection.
 */
static void on_lost(void *context, int error, const char *reason)
{
    struct holder *h = context;
    struct client *client = take_ptr(h->client);
    control_set_client(h->control, NULL, reason);
    client_free(client);
    reconsider(h);
}

/* --- life ---------------------------------------------------------------------------- */

static void leave_terminal(void)
{
    _cleanup_close_ int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    (void)setsid();
    (void)!chdir("/");
    for (int fd = 0; null >= 0 && fd <= 2; fd++)
        (void)dup2(null, fd);
}

static void allow_descriptors(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < CONTROL_PEERS_MAX + 64) {
        limit.rlim_cur =
            limit.rlim_max < CONTROL_PEERS_MAX + 64 ? limit.rlim_max : CONTROL_PEERS_MAX + 64;
        (void)setrlimit(RLIMIT_NOFILE, &limit);
    }
}

static int open_events(struct holder *h)
{
    h->base = event_base_new();
    if (!h->base)
        return -ENOMEM;
    h->idle = evtimer_new(h->base, on_idle, h);
    h->terminate = evsignal_new(h->base, SIGTERM, on_terminate, h);
    return h->idle && h->terminate && event_add(h->terminate, NULL) == 0 ? 0 : -ENOMEM;
}

static int start(struct holder *h, const char *path, struct failure *f)
{
    const struct stream_options stream = client_settings_stream(h->settings);
    int r = open_events(h);
    if (r < 0)
        return failure_set(f, r, "%s", strerror(-r));
    r = client_connect(&stream, AGENT, &h->client, f);
    if (r < 0)
        return r;
    const struct client_events events = {.lost = on_lost, .context = h};
    const struct control_events control = {
        .peers = on_peers, .stop = on_stop, .describe = describe, .context = h};
    r = control_new(h->base, path, &control, &h->control, f);
    if (r < 0)
        return r;
    r = client_attach(h->client, h->base, &events);
    if (r < 0)
        return failure_set(f, r, "%s", strerror(-r));
    control_set_client(h->control, h->client, NULL);
    return 0;
}

static void release(struct holder *h)
{
    control_set_client(h->control, NULL, "the connection holder has ended");
    client_free(h->client);
    control_free(h->control);
    if (h->idle)
        event_free(h->idle);
    if (h->terminate)
        event_free(h->terminate);
    if (h->base)
        event_base_free(h->base);
}

int holder_run(const struct client_settings *settings, const char *path, int persist_s,
               int ready_fd)
{
    struct holder h = {.settings = settings, .persist_s = persist_s};
    struct failure f;
    allow_descriptors();
    int r = start(&h, path, &f);
    if (r == 0 || r == -EADDRINUSE) {
        leave_terminal();
        (void)!write(ready_fd, "", 1);
    } else {
        /* Connected, but nobody could find it: who wants a connection is better off without. */
        if (h.client)
            (void)!write(ready_fd, HOLDER_USELESS, 1);
        (void)!write(ready_fd, f.text, strlen(f.text));
    }
    (void)close(ready_fd);
    if (r == 0) {
        reconsider(&h);
        (void)event_base_dispatch(h.base);
    }
    release(&h);
    return r == 0 ? CLI_OK : CLI_FAILED;
}

#include "client/connector.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"

#define BACKOFF_MIN_MS 100
#define BACKOFF_MAX_MS 5000

/* For how long an attempt is worth waiting for: then the service is likely not to be there. */
#define ATTEMPT_WORTH_NS (3 * NSEC_PER_SEC)

/* Shared with the thread, guarded by `lock`. Freed by whoever comes last. */
struct connector {
    pthread_mutex_t lock;
    pthread_cond_t wake; /* CLOCK_MONOTONIC */
    pthread_t thread;
    struct connector_options options;
    bool stop;
    bool finished;
    bool hurry; /* before the next attempt */
    bool trying;
    uint64_t begun_ns, ended_ns; /* the last attempt; 0: none */
    uint64_t failed_begun_ns;    /* the last one that failed */
    bool resumes;                /* a session, at this point */
    struct session_resume point;
    char failure[FAILURE_TEXT_MAX]; /* of the same */
    struct client *client;
    uint64_t abandoned; /* what client's HELLO said of it */
};

static void connector_free(struct connector *c)
{
    (void)pthread_cond_destroy(&c->wake);
    (void)pthread_mutex_destroy(&c->lock);
    if (c->options.release)
        c->options.release(c->options.context);
    free(c);
}

/* Waits, with the lock held, until the time since the last attempt is over or it is to stop. */
static void wait_locked(struct connector *c, uint32_t ms, bool hurries)
{
    int r = 0;
    while (!c->stop && r == 0) {
        bool hurry = hurries && c->hurry && c->options.hurry_ms < ms;
        uint64_t until = c->ended_ns + (hurry ? c->options.hurry_ms : ms) * NSEC_PER_MSEC;
        struct timespec t = {.tv_sec = (time_t)(until / NSEC_PER_SEC),
                             .tv_nsec = (long)(until % NSEC_PER_SEC)};
        r = pthread_cond_timedwait(&c->wake, &c->lock, &t);
    }
}

static int connect_once(const struct connector_options *o, const struct session_resume *resumes,
                        struct client **ret, struct failure *f)
{
    struct client *client;
    int r = o->connect ? o->connect(o->context, &client, f)
                       : client_connect_again(&o->stream, o->agent, resumes, &client, f);
    if (r == 0 && o->greet && !client_peer(client)->resumed) {
        r = o->greet(o->context, client, f);
        if (r < 0)
            client_free(client);
    }
    if (r == 0)
        *ret = client;
    return r;
}

static void *connect_thread(void *argument)
{
    struct connector *c = argument;
    uint32_t backoff_ms = BACKOFF_MIN_MS;
    char last[FAILURE_TEXT_MAX] = "";
    (void)pthread_mutex_lock(&c->lock);
    c->ended_ns = clock_monotonic_ns();
    if (c->options.pause_ms)
        wait_locked(c, c->options.pause_ms, false);
    while (!c->stop) {
        struct client *client;
        struct failure f;
        const struct session_resume point = c->point;
        bool resumes = c->resumes;
        c->hurry = false;
        c->trying = true;
        c->begun_ns = clock_monotonic_ns();
        (void)pthread_mutex_unlock(&c->lock);
        int r = connect_once(&c->options, resumes ? &point : NULL, &client, &f);
        if (r < 0 && !c->options.quiet && strcmp(last, f.text) != 0) {
            log_warning("%s; trying again", f.text);
            memcpy(last, f.text, sizeof last);
        }
        (void)pthread_mutex_lock(&c->lock);
        c->trying = false;
        c->ended_ns = clock_monotonic_ns();
        if (r == 0) {
            c->client = client;
            c->abandoned = point.abandoned;
            break;
        }
        c->failed_begun_ns = c->begun_ns;
        memcpy(c->failure, f.text, sizeof c->failure);
        if (c->options.tells_failures && !c->stop)
            (void)eventfd_write(c->options.event_fd, 1);
        wait_locked(c, backoff_ms, true);
        backoff_ms = backoff_ms * 2 < BACKOFF_MAX_MS ? backoff_ms * 2 : BACKOFF_MAX_MS;
    }
    c->finished = true;
    bool stop = c->stop;
    if (!stop)
        (void)eventfd_write(c->options.event_fd, 1);
    (void)pthread_mutex_unlock(&c->lock);
    if (stop) {
        /* Detached by connector_stop: nobody else knows of it any more. */
        client_free(c->client);
        connector_free(c);
    }
    return NULL;
}

int connector_start(const struct connector_options *options, const struct session_resume *resumes,
                    struct connector **ret)
{
    struct connector *c = calloc(1, sizeof *c);
    if (!c)
        return -ENOMEM;
    pthread_condattr_t attributes;
    (void)pthread_condattr_init(&attributes);
    (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&c->wake, &attributes);
    (void)pthread_condattr_destroy(&attributes);
    (void)pthread_mutex_init(&c->lock, NULL);
    c->options = *options;
    c->options.stream.quiet = true; /* who tries again and again tells of failures */
    connector_set_resume(c, resumes);
    int r = -pthread_create(&c->thread, NULL, connect_thread, c);
    if (r < 0) {
        c->options.release = NULL;
        connector_free(c);
        return r;
    }
    *ret = c;
    return 0;
}

void connector_set_resume(struct connector *c, const struct session_resume *resumes)
{
    (void)pthread_mutex_lock(&c->lock);
    c->resumes = resumes != NULL;
    if (resumes)
        c->point = *resumes;
    (void)pthread_mutex_unlock(&c->lock);
}

uint64_t connector_hurry(struct connector *c)
{
    (void)pthread_mutex_lock(&c->lock);
    uint64_t now = clock_monotonic_ns(), until = now + ATTEMPT_WORTH_NS;
    if (c->trying)
        until = c->begun_ns + ATTEMPT_WORTH_NS;
    else if (c->failed_begun_ns && now < c->ended_ns + c->options.hurry_ms * NSEC_PER_MSEC)
        until = 0;
    c->hurry = true;
    (void)pthread_cond_signal(&c->wake);
    (void)pthread_mutex_unlock(&c->lock);
    return until;
}

bool connector_has_succeeded(struct connector *c, uint64_t *ret_failed_begun_ns)
{
    (void)pthread_mutex_lock(&c->lock);
    bool finished = c->finished;
    *ret_failed_begun_ns = c->failed_begun_ns;
    (void)pthread_mutex_unlock(&c->lock);
    return finished;
}

void connector_last_failure(struct connector *c, char ret[static FAILURE_TEXT_MAX])
{
    (void)pthread_mutex_lock(&c->lock);
    memcpy(ret, c->failure, FAILURE_TEXT_MAX);
    (void)pthread_mutex_unlock(&c->lock);
}

void *connector_context(const struct connector *c)
{
    return c->options.context;
}

void connector_take(struct connector *c, struct client **ret, uint64_t *ret_abandoned)
{
    (void)pthread_join(c->thread, NULL);
    *ret = c->client;
    *ret_abandoned = c->abandoned;
    connector_free(c);
}

bool connector_stop(struct connector *c)
{
    (void)pthread_mutex_lock(&c->lock);
    c->stop = true;
    bool finished = c->finished;
    (void)pthread_cond_signal(&c->wake);
    if (!finished)
        (void)pthread_detach(c->thread);
    (void)pthread_mutex_unlock(&c->lock);
    if (!finished)
        return false;
    (void)pthread_join(c->thread, NULL);
    client_free(c->client);
    connector_free(c);
    return true;
}

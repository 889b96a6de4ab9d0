#include "server/backend.h"

#include "server/dispatch.h"
#include "server/lock_waits.h"

struct backend {
    struct server *server;
    struct connection *connection; /* NULL once that has ended */
    struct lane *lane;
    struct file_session *files;
    struct grant *grant;
};

static bool shows(const void *context, struct bytes thread_id)
{
    return grant_covers(context, thread_id);
}

static void on_run(void *context, struct job *job)
{
    const struct backend *b = context;
    job->result = store_handle(b->files, &job->frame->message, &job->reply);
}

static void on_done(void *context, struct job *job)
{
    const struct backend *b = context;
    dispatch_done(b->connection, job);
}

static void on_finish(void *context)
{
    const struct backend *b = context;
    file_session_free(b->files); /* may close many descriptors: not on the loop */
}

static void on_finished(void *context)
{
    struct backend *b = context;
    lock_waits_unlocked(b->server->lock_waits, REPLY_UNLOCKED_ANY);
    grant_unref(b->grant);
    free(b);
}

int backend_new(struct server *s, struct connection *c, struct grant *grant, struct backend **ret)
{
    struct backend *b = calloc(1, sizeof *b);
    if (!b)
        return -ENOMEM;
    b->server = s;
    b->connection = c;
    int r = file_session_new(s->store, &b->files);
    if (r == 0) {
        if (!grant->everything)
            file_session_set_filter(b->files, shows, grant);
        const struct lane_events events = {.run = on_run,
                                           .done = on_done,
                                           .finish = on_finish,
                                           .finished = on_finished,
                                           .context = b};
        r = lane_new(s->workers, &events, &b->lane);
    }
    if (r < 0) {
        file_session_free(b->files);
        free(b);
        return r;
    }
    b->grant = grant_ref(grant);
    *ret = b;
    return 0;
}

struct lane *backend_lane(const struct backend *b)
{
    return b->lane;
}

struct file_session *backend_files(const struct backend *b)
{
    return b->files;
}

void backend_close(struct backend *b)
{
    b->connection = NULL;
    lane_close(b->lane);
}

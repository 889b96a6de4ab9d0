/* Workspaces that providers made (common/places): each is a member of a joined mount for as long as
 * its place is there. */
#include "join_private.h"

#include <sys/inotify.h>
#include <sys/stat.h>

#include "base/log.h"
#include "config/paths.h"
#include "coherence.h"
#include "notifier.h"
#include "places/place.h"

/* What is written and renamed a moment later is looked at once. */
#define SETTLED_MS 100

struct places_watch {
    struct join *join;
    int fd;
    struct event *readable;
    struct event *settled;
};

static struct member *member_of_place(const struct join *j, const char *name)
{
    for (size_t i = 0; i < j->count; i++)
        if (j->members[i]->is_place && strcmp(j->members[i]->name, name) == 0)
            return j->members[i];
    return NULL;
}

static int add_place(struct join *j, const struct place *p)
{
    const struct service_entry e = {.url = p->url};
    struct client_settings s;
    struct failure f;
    struct member *m;
    int r = client_settings_of_service(j->options.base, &e, &s, &f);
    if (r == 0)
        r = member_add(j, p->name, &s, true, &m);
    client_settings_release(&s);
    if (r < 0)
        return r;
    m->seen = true;
    m->provider = strdup(p->provider);
    return 0;
}

static int see(void *context, struct place *p)
{
    struct join *j = context;
    if (p->state != PLACE_READY || !p->url || !*p->url)
        return 0;
    struct member *m = member_of_place(j, p->name);
    if (m && strcmp(m->settings.url, p->url) == 0) {
        m->seen = true;
        return 0;
    }
    int r = add_place(j, p);
    if (r < 0)
        log_warning("%s, a workspace of %s, is not shown: %s", p->name, p->provider, strerror(-r));
    return 0;
}

static void scan(struct places_watch *w)
{
    struct join *j = w->join;
    struct failure f;
    for (size_t i = 0; i < j->count; i++)
        j->members[i]->seen = !j->members[i]->is_place;
    if (places_list(see, j, &f) < 0) {
        log_warning("workspaces of providers: %s", f.text);
        return;
    }
    for (size_t i = 0; i < j->count;) {
        struct member *m = j->members[i];
        if (m->seen)
            i++;
        else
            member_retire(j, m); /* takes it out */
    }
}

static void on_settled(evutil_socket_t fd, short what, void *context)
{
    scan(context);
}

static void on_readable(evutil_socket_t fd, short what, void *context)
{
    struct places_watch *w = context;
    char events[4096];
    const struct timeval tv = {.tv_usec = SETTLED_MS * 1000};
    while (read(w->fd, events, sizeof events) > 0)
        ;
    (void)event_add(w->settled, &tv);
}

int places_watch_new(struct join *j, struct places_watch **ret)
{
    _cleanup_free_ char *path = NULL;
    struct failure f;
    int r = paths_places_dir(&path, &f);
    if (r < 0)
        return r;
    struct places_watch *w = calloc(1, sizeof *w);
    if (!w)
        return -ENOMEM;
    w->join = j;
    w->fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    if (w->fd >= 0)
        w->readable = event_new(j->hub->base, w->fd, EV_READ | EV_PERSIST, on_readable, w);
    w->settled = evtimer_new(j->hub->base, on_settled, w);
    /* So that there is something to watch. */
    r = paths_make_directory(path, &f);
    if (r == 0 && (w->fd < 0 || inotify_add_watch(w->fd, path,
                                                  IN_CREATE | IN_MOVED_TO | IN_DELETE |
                                                      IN_MOVED_FROM | IN_CLOSE_WRITE) < 0))
        r = -errno;
    if (r == 0 && (!w->readable || !w->settled || event_add(w->readable, NULL) < 0))
        r = -ENOMEM;
    if (r < 0) {
        places_watch_free(w);
        return r;
    }
    scan(w);
    *ret = w;
    return 0;
}

void places_watch_free(struct places_watch *w)
{
    if (!w)
        return;
    if (w->readable)
        event_free(w->readable);
    if (w->settled)
        event_free(w->settled);
    close_fd(&w->fd);
    free(w);
}

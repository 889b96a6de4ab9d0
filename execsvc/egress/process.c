#include "egress/process.h"

#include <event2/event.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/sendfile.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "egress/confine.h"
#include "egress/control.h"
#include "egress/egress.h"
#include "exec/spawn.h"

/* How often the size of the log is looked at. */
#define LOG_LOOK_S 10

struct process {
    struct event_base *base;
    struct egress *egress;
    struct event *message;
    struct event *look;
    struct event *on_term;
};

/* --- the log --------------------------------------------------------------------------------- */

/* By descriptors alone: no name can be opened here. */
static void on_look(evutil_socket_t fd, short what, void *context)
{
    struct stat st;
    off_t offset = 0;
    if (fstat(STDERR_FILENO, &st) < 0 || !S_ISREG(st.st_mode) || st.st_size <= EGRESS_LOG_MAX ||
        ftruncate(EGRESS_OLD_LOG_FD, 0) < 0 || lseek(EGRESS_OLD_LOG_FD, 0, SEEK_SET) < 0)
        return;
    while (offset < st.st_size &&
           sendfile(EGRESS_OLD_LOG_FD, STDERR_FILENO, &offset, (size_t)(st.st_size - offset)) > 0)
        ;
    (void)ftruncate(STDERR_FILENO, 0);
}

/* --- what the keeper says -------------------------------------------------------------------- */

static void obey(struct process *p, struct control_message *m)
{
    int r = 0;
    switch (m->kind) {
    case CONTROL_OPEN:
        r = egress_open(p->egress, m->id, m->name, &m->listener, &m->list);
        break;
    case CONTROL_CHANGE:
        r = egress_change(p->egress, m->id, &m->list);
        break;
    case CONTROL_CLOSE:
        egress_close(p->egress, m->id);
        break;
    }
    if (r < 0)
        log_error("egress: a workspace cannot be served: %s", strerror(-r));
}

static void on_message(evutil_socket_t fd, short what, void *context)
{
    struct process *p = context;
    _cleanup_control_message_ struct control_message m = {.listener = -1};
    int r = control_receive(fd, &m);
    if (r == 1)
        obey(p, &m);
    else if (r == 0 || r == -ECONNRESET)
        (void)event_base_loopbreak(p->base);
    else if (r != -EAGAIN)
        log_error("egress: a message of the keeper: %s", strerror(-r));
}

static void on_signal(evutil_socket_t number, short what, void *context)
{
    struct process *p = context;
    (void)event_base_loopbreak(p->base);
}

/* --- the process ----------------------------------------------------------------------------- */

static int parse_limits(const char *text, struct egress_limits *limits)
{
    const struct {
        const char *name;
        uint32_t *value;
    } known[] = {
        {"request_ms", &limits->request_ms},
        {"resolve_ms", &limits->resolve_ms},
        {"connect_ms", &limits->connect_ms},
        {"idle_ms", &limits->idle_ms},
        {"connections", &limits->connections},
        {"per_second", &limits->per_second},
        {"burst", &limits->burst},
    };
    while (*text) {
        char name[16];
        unsigned value;
        int used = 0;
        size_t i = 0;
        if (sscanf(text, "%15[a-z_]=%u%n", name, &value, &used) != 2)
            return -EINVAL;
        while (i < ARRAY_SIZE(known) && strcmp(known[i].name, name) != 0)
            i++;
        if (i == ARRAY_SIZE(known))
            return -EINVAL;
        *known[i].value = value;
        text += used;
        text += *text == ',';
    }
    return 0;
}

static void process_release(struct process *p)
{
    egress_free(p->egress);
    struct event *events[] = {p->message, p->look, p->on_term};
    for (size_t i = 0; i < ARRAY_SIZE(events); i++)
        if (events[i])
            event_free(events[i]);
    if (p->base)
        event_base_free(p->base);
}
#define _cleanup_process_ _cleanup_(process_release)

static int process_begin(struct process *p, const struct egress_limits *limits)
{
    const struct timeval look = {.tv_sec = LOG_LOOK_S};
    p->base = event_base_new();
    if (!p->base)
        return -ENOMEM;
    int r = egress_new(p->base, limits, &p->egress);
    if (r < 0)
        return r;
    egress_count(p->egress, EGRESS_COUNTS_FD);
    p->message = event_new(p->base, EGRESS_CONTROL_FD, EV_READ | EV_PERSIST, on_message, p);
    p->look = event_new(p->base, -1, EV_PERSIST, on_look, p);
    p->on_term = evsignal_new(p->base, SIGTERM, on_signal, p);
    if (!p->message || !p->look || !p->on_term || event_add(p->message, NULL) < 0 ||
        event_add(p->look, &look) < 0 || event_add(p->on_term, NULL) < 0)
        return -ENOMEM;
    return 0;
}

int egress_process_run(const char *limits_text, enum log_level level, struct failure *ret_failure)
{
    _cleanup_process_ struct process p = {0};
    struct egress_limits limits = EGRESS_LIMITS_DEFAULT;
    (void)signal(SIGPIPE, SIG_IGN);
    (void)signal(SIGHUP, SIG_IGN);
    (void)signal(SIGINT, SIG_IGN);
    /* The operator's record of decisions does not depend on how much else is logged. */
    log_setup("berth-egress", level < LOG_LEVEL_INFO ? LOG_LEVEL_INFO : level);
    if (fcntl(EGRESS_CONTROL_FD, F_SETFD, FD_CLOEXEC) < 0)
        return failure_set(ret_failure, -errno, "berthd starts this by itself");
    if (parse_limits(limits_text, &limits) < 0)
        return failure_set(ret_failure, -EINVAL, "\"%s\" are no limits", limits_text);
    spawn_raise_descriptors();
    int r = egress_confine(ret_failure);
    if (r < 0)
        return r;
    /* The kernel forgets this with a change of the user. */
    (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
    r = process_begin(&p, &limits);
    if (r < 0)
        return failure_set(ret_failure, r, "cannot start: %s", strerror(-r));
    if (event_base_dispatch(p.base) < 0)
        return failure_set(ret_failure, -EIO, "the event loop failed");
    return 0;
}

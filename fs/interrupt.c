#include "interrupt.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/table.h"
#include "device.h"

/* How often it is looked whether those who were interrupted are dying. */
#define LOOK_MS 20

#define PROC_MAX 8192 /* what the files read here have is less */

/* Of /proc/PID/stat, as proc(5) numbers them; the first that follows the name is 3. */
#define STAT_FLAGS 9
#define STAT_EXIT_CODE 52
#define STAT_EXITING 4 /* PF_EXITING */

/* False also for a thread that this process cannot see. */
static bool read_proc(pid_t thread, const char *file, char ret[PROC_MAX + 1])
{
    char path[40];
    size_t len = 0;
    if (!thread)
        return false;
    (void)snprintf(path, sizeof path, "/proc/%d/%s", (int)thread, file);
    _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || file_read_up_to(fd, ret, PROC_MAX, &len) < 0)
        return false;
    ret[len] = '\0';
    return true;
}

static bool has_kill(const char *status, const char *field)
{
    const char *line = strstr(status, field);
    return line && (strtoull(line + strlen(field), NULL, 16) & (1u << (SIGKILL - 1)));
}

static bool is_dying(pid_t thread)
{
    char status[PROC_MAX + 1];
    return read_proc(thread, "status", status) &&
           (has_kill(status, "\nSigPnd:") || has_kill(status, "\nShdPnd:"));
}

static unsigned long stat_field(const char *stat, int number)
{
    const char *at = strrchr(stat, ')'); /* the name may have any characters */
    for (int i = 2; at && i < number; i++)
        at = strchr(at + 1, ' ');
    return at ? strtoul(at, NULL, 10) : 0;
}

/* Killed, and by now closing its files, which no signal interrupts. (Who ends by itself must wait:
 * somebody may look at the files next.) /proc/PID/stat waits for a lock that execve() holds while
 * it closes files, so that it must not be read before the thread has given its memory up, as only
 * who exits does. */
static bool was_killed(pid_t thread)
{
    char text[PROC_MAX + 1];
    return read_proc(thread, "status", text) && !strstr(text, "\nVmSize:") &&
           read_proc(thread, "stat", text) && (stat_field(text, STAT_FLAGS) & STAT_EXITING) &&
           (stat_field(text, STAT_EXIT_CODE) & 0x7f);
}

static bool is_gone(const struct request *r)
{
    pid_t thread = fuse_req_ctx(r->fuse)->pid;
    return is_dying(thread) || (r->message.type == WIRE_FLUSH && was_killed(thread));
}

struct interrupts {
    struct table requests; /* by address; those whose callers may be gone */
    struct event *timer;
};

static void look_later(struct interrupts *s)
{
    const struct timeval tv = {.tv_usec = LOOK_MS * 1000};
    if (s->requests.count && !evtimer_pending(s->timer, NULL))
        (void)evtimer_add(s->timer, &tv);
}

/* The answer that comes later finds nobody, which every handler reckons with. */
static void let_go_of_the_dying(struct driver *d)
{
    struct interrupts *s = d->interrupts;
    struct request *r;
    size_t cursor = 0;
    while ((r = table_next(&s->requests, &cursor)))
        if (is_gone(r)) {
            device_answer_interrupted(d, r->unique);
            interrupt_forget(r);
            cursor = 0;
        }
    look_later(s);
}

static void on_timer(evutil_socket_t fd, short what, void *context)
{
    let_go_of_the_dying(context);
}

static struct interrupts *interrupts_of(struct driver *d)
{
    if (d->interrupts)
        return d->interrupts;
    struct interrupts *s = calloc(1, sizeof *s);
    if (s)
        s->timer = evtimer_new(d->base, on_timer, d);
    if (!s || !s->timer) {
        free(s);
        return NULL;
    }
    d->interrupts = s;
    return s;
}

/* Without memory r waits for its answer. */
static struct interrupts *add(struct request *r)
{
    struct interrupts *s = interrupts_of(r->driver);
    if (!s || table_put(&s->requests, (uintptr_t)r, r, NULL) < 0)
        return NULL;
    r->watched = true;
    return s;
}

void interrupt_signalled(struct request *r)
{
    if (add(r))
        let_go_of_the_dying(r->driver);
}

static void on_interrupt(fuse_req_t req, void *context)
{
    interrupt_signalled(context);
}

void interrupt_watch(struct request *r)
{
    r->unique = device_current_unique(r->driver);
    fuse_req_interrupt_func(r->fuse, on_interrupt, r);
    struct interrupts *s = r->message.type == WIRE_FLUSH ? add(r) : NULL;
    if (s)
        look_later(s);
}

void interrupt_forget(struct request *r)
{
    if (!r->watched)
        return;
    r->watched = false;
    (void)table_take(&r->driver->interrupts->requests, (uintptr_t)r);
}

void interrupt_pass(struct request *from, struct request *to)
{
    to->unique = from->unique;
    interrupt_forget(from);
    fuse_req_interrupt_func(to->fuse, on_interrupt, to);
}

void interrupt_release(struct driver *d)
{
    struct interrupts *s = take_ptr(d->interrupts);
    if (!s)
        return;
    table_release(&s->requests);
    event_free(s->timer);
    free(s);
}

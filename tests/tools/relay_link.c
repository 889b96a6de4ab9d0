#include "relay_link.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/clock.h"

#define READ_SIZE 65536
/* With a bandwidth limit bytes are scheduled in pieces of about a packet, so that a large
 * write does not come out in one lump at its end. */
#define SEGMENT_SIZE 2048
/* Bytes held per direction beyond those on the wire: the buffer of the slowest router. More
 * would hide a slow link from its sender, less would starve it between two wake-ups. */
#define QUEUE_SLACK 131072
/* Without a bandwidth limit: memory one direction may take, with a delay (bytes fly while it
 * lasts) and without (nothing flies; a receiver that does not read must be felt). */
#define QUEUE_FLYING 0x8000000
#define QUEUE_DIRECT 0x100000

struct segment {
    struct segment *next;
    uint64_t due; /* CLOCK_MONOTONIC, when it comes out */
    size_t len;
    size_t sent;
    uint8_t data[];
};

/* One direction. */
struct lane {
    struct link *link;
    enum direction direction;
    int from, to; /* borrowed from the link */
    struct event *readable, *writable, *timer;
    int timer_fd;
    struct segment *first, **last;
    size_t queued;
    uint64_t wire_free;      /* when the wire has put out what it was given, */
    uint64_t wire_remainder; /* and the rest of that division, so that no rounding adds up */
    uint64_t last_due;
    bool end;        /* from has ended */
    bool end_passed; /* … and to knows */
};

struct link {
    struct link_settings *settings;
    struct counter *counter;
    int client_fd, server_fd;
    struct lane lanes[DIRECTIONS];
    bool swallowing;
    bool over;
    struct event *closing;
    void (*closed)(void *context, struct link *link);
    void *context;
};

struct counter *link_counter(struct link *link)
{
    return link->counter;
}

static size_t queue_limit(const struct link_settings *s)
{
    if (s->bandwidth == 0)
        return s->delay_ns ? QUEUE_FLYING : QUEUE_DIRECT;
    return (size_t)((double)s->bandwidth * (double)s->delay_ns / 1e9) + QUEUE_SLACK;
}

static void link_over(struct link *link)
{
    if (link->over)
        return;
    link->over = true;
    /* The caller of closed() frees the link, and we may be deep inside it. */
    event_active(link->closing, EV_TIMEOUT, 0);
}

static void on_closing(int fd, short what, void *context)
{
    struct link *link = context;
    link->closed(link->context, link);
}

static void lane_drop(struct lane *lane)
{
    struct segment *s = lane->first;
    while (s) {
        struct segment *next = s->next;
        free(s);
        s = next;
    }
    lane->first = NULL;
    lane->last = &lane->first;
    lane->queued = 0;
}

static void lane_arm(struct lane *lane)
{
    struct itimerspec when = {0};
    if (lane->first) {
        when.it_value.tv_sec = (time_t)(lane->first->due / NSEC_PER_SEC);
        when.it_value.tv_nsec = (long)(lane->first->due % NSEC_PER_SEC);
    }
    (void)timerfd_settime(lane->timer_fd, TFD_TIMER_ABSTIME, &when, NULL);
}

static void lane_read_or_not(struct lane *lane)
{
    const struct link *link = lane->link;
    bool want = !lane->end && !link->settings->stalled &&
                (link->swallowing || lane->queued < queue_limit(link->settings));
    if (want)
        (void)event_add(lane->readable, NULL);
    else
        (void)event_del(lane->readable);
}

/* Puts out what is due, and arranges to be called for the next. */
static void lane_run(struct lane *lane)
{
    struct link *link = lane->link;

    if (link->over || link->settings->stalled)
        return;
    (void)event_del(lane->writable);
    uint64_t now = clock_monotonic_ns();
    while (lane->first && lane->first->due <= now) {
        struct segment *s = lane->first;
        while (s->sent < s->len) {
            ssize_t n = send(lane->to, s->data + s->sent, s->len - s->sent, MSG_NOSIGNAL);
            if (n < 0 && errno == EINTR)
                continue;
            if (n < 0 && errno == EAGAIN) {
                (void)event_add(lane->writable, NULL);
                lane_read_or_not(lane);
                return;
            }
            if (n < 0) {
                link_over(link);
                return;
            }
            if (lane->direction == TO_CLIENT)
                counter_feed(link->counter, TO_CLIENT, s->data + s->sent, (size_t)n);
            s->sent += (size_t)n;
            lane->queued -= (size_t)n;
        }
        lane->first = s->next;
        if (!lane->first)
            lane->last = &lane->first;
        bool end = s->len == 0;
        free(s);
        if (end) {
            (void)shutdown(lane->to, SHUT_WR);
            lane->end_passed = true;
            if (link->lanes[!lane->direction].end_passed)
                link_over(link);
        }
    }
    lane_arm(lane);
    lane_read_or_not(lane);
}

static void on_timer(int fd, short what, void *context)
{
    uint64_t count;
    (void)!read(fd, &count, sizeof(count));
    lane_run(context);
}

static void on_writable(int fd, short what, void *context)
{
    lane_run(context);
}

/* When bytes that enter the wire now come out of it. */
static uint64_t lane_schedule(struct lane *lane, uint64_t now, size_t len)
{
    const struct link_settings *s = lane->link->settings;
    uint64_t due = now;

    if (s->bandwidth) {
        if (lane->wire_free < now) {
            lane->wire_free = now;
            lane->wire_remainder = 0;
        }
        uint64_t work = len * NSEC_PER_SEC + lane->wire_remainder;
        lane->wire_free += work / s->bandwidth;
        lane->wire_remainder = work % s->bandwidth;
        due = lane->wire_free;
    }
    due += s->delay_ns;
    /* A shorter delay set meanwhile must not let bytes overtake. */
    if (due < lane->last_due)
        due = lane->last_due;
    lane->last_due = due;
    return due;
}

/* len 0: the end of the stream. */
static int lane_queue(struct lane *lane, uint64_t now, const uint8_t *data, size_t len)
{
    struct segment *s = malloc(sizeof(*s) + len);
    if (!s)
        return -ENOMEM;
    s->next = NULL;
    s->len = len;
    s->sent = 0;
    if (len)
        memcpy(s->data, data, len);
    s->due = lane_schedule(lane, now, len);
    *lane->last = s;
    lane->last = &s->next;
    lane->queued += len;
    return 0;
}

static void on_readable(int fd, short what, void *context)
{
    struct lane *lane = context;
    struct link *link = lane->link;
    static uint8_t data[READ_SIZE];

    if (link->over)
        return;
    ssize_t n = recv(lane->from, data, sizeof(data), 0);
    if (n < 0) {
        if (errno != EAGAIN && errno != EINTR)
            link_over(link);
        return;
    }
    if (n == 0) {
        lane->end = true;
        lane_read_or_not(lane);
        if (link->swallowing)
            return;
    }
    if (link->swallowing)
        return;

    uint64_t now = clock_monotonic_ns();
    uint64_t *left = &link->settings->cut_after;
    bool cut = *left > 0 && (size_t)n >= *left;
    if (cut)
        n = (ssize_t)*left;
    *left -= *left > 0 ? (uint64_t)n : 0;
    size_t len = (size_t)n, step = link->settings->bandwidth ? SEGMENT_SIZE : READ_SIZE;
    if (lane->direction == TO_SERVER)
        counter_feed(link->counter, TO_SERVER, data, len);
    size_t done = 0;
    do {
        size_t part = len - done < step ? len - done : step;
        if (lane_queue(lane, now, data + done, part) < 0) {
            link_over(link);
            return;
        }
        done += part;
    } while (done < len);
    lane_run(lane);
    if (cut)
        link_over(link);
}

void link_swallow(struct link *link)
{
    link->swallowing = true;
    for (size_t i = 0; i < DIRECTIONS; i++) {
        lane_drop(&link->lanes[i]);
        (void)event_del(link->lanes[i].writable);
        lane_arm(&link->lanes[i]);
        lane_read_or_not(&link->lanes[i]);
    }
}

void link_lose(struct link *link)
{
    link_swallow(link);
    (void)shutdown(link->server_fd, SHUT_RDWR);
}

void link_update(struct link *link)
{
    for (size_t i = 0; i < DIRECTIONS; i++) {
        lane_read_or_not(&link->lanes[i]);
        if (!link->settings->stalled)
            lane_run(&link->lanes[i]);
    }
}

static int lane_start(struct lane *lane, struct link *link, struct event_base *base,
                      enum direction direction)
{
    lane->link = link;
    lane->direction = direction;
    lane->last = &lane->first;
    lane->from = direction == TO_SERVER ? link->client_fd : link->server_fd;
    lane->to = direction == TO_SERVER ? link->server_fd : link->client_fd;
    lane->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    if (lane->timer_fd < 0)
        return -errno;
    lane->readable = event_new(base, lane->from, EV_READ | EV_PERSIST, on_readable, lane);
    lane->writable = event_new(base, lane->to, EV_WRITE, on_writable, lane);
    lane->timer = event_new(base, lane->timer_fd, EV_READ | EV_PERSIST, on_timer, lane);
    if (!lane->readable || !lane->writable || !lane->timer || event_add(lane->timer, NULL) < 0)
        return -ENOMEM;
    lane_read_or_not(lane);
    return 0;
}

int link_new(struct event_base *base, struct link_settings *settings, struct count_totals *totals,
             int client_fd, int server_fd, void (*closed)(void *context, struct link *link),
             void *context, struct link **ret)
{
    struct link *link = calloc(1, sizeof(*link));
    if (!link) {
        close_fd(&client_fd);
        close_fd(&server_fd);
        return -ENOMEM;
    }
    *link = (struct link){.settings = settings,
                          .client_fd = client_fd,
                          .server_fd = server_fd,
                          .closed = closed,
                          .context = context};
    for (size_t i = 0; i < DIRECTIONS; i++)
        link->lanes[i].timer_fd = -1;

    int r = counter_new(totals, settings->raw, &link->counter);
    if (r == 0) {
        link->closing = event_new(base, -1, 0, on_closing, link);
        r = link->closing ? 0 : -ENOMEM;
    }
    for (size_t i = 0; i < DIRECTIONS && r == 0; i++)
        r = lane_start(&link->lanes[i], link, base, (enum direction)i);
    if (r < 0) {
        link_free(link);
        return r;
    }
    *ret = link;
    return 0;
}

static void event_release(struct event *e)
{
    if (e)
        event_free(e);
}

void link_free(struct link *link)
{
    if (!link)
        return;
    for (size_t i = 0; i < DIRECTIONS; i++) {
        struct lane *lane = &link->lanes[i];
        event_release(lane->readable);
        event_release(lane->writable);
        event_release(lane->timer);
        close_fd(&lane->timer_fd);
        lane_drop(lane);
    }
    event_release(link->closing);
    close_fd(&link->client_fd);
    close_fd(&link->server_fd);
    counter_free(link->counter);
    free(link);
}

#include "terminal/progress.h"

#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>

#include "base/clock.h"
#include "base/units.h"
#include "terminal/text.h"

#define COLUMNS_USUAL 80 /* of a terminal that does not say */
#define COLUMNS_MAX 512  /* a terminal may claim anything */
#define RATE_OLD 0.8     /* of the rate that was shown in the next one: no jumping figures */

struct progress {
    pthread_t thread;
    pthread_mutex_t lock; /* of all below but done and total */
    pthread_cond_t wake;
    enum progress_unit unit;
    char *what;
    char *step; /* NULL: nothing was said */
    bool end;
    uint64_t begin_ns, next_ns; /* when it is drawn */
    uint64_t seen_ns, seen;     /* when the rate was found, and what was done then */
    double rate;                /* per second */
    _Atomic uint64_t done, total;
};

static const int ending_signals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};

/* The process's terminal has one such line, and a signal handler is told of nothing else. */
static struct {
    pthread_mutex_t lock; /* of current; taken before its own */
    struct progress *current;
    _Atomic bool shown; /* there is a line */
    char erase[COLUMNS_MAX + 16];
    _Atomic size_t erase_len;
    struct sigaction before[ARRAY_SIZE(ending_signals)];
} screen = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* --- the terminal -------------------------------------------------------------------- */

static bool is_dumb(void)
{
    const char *term = getenv("TERM");
    return !term || !term[0] || strcmp(term, "dumb") == 0;
}

static size_t columns(void)
{
    struct winsize size;
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) < 0 || size.ws_col == 0)
        return COLUMNS_USUAL;
    return size.ws_col > COLUMNS_MAX ? COLUMNS_MAX : size.ws_col;
}

/* A job in the background writes over what another program shows. */
static bool is_ours(void)
{
    pid_t group = tcgetpgrp(STDERR_FILENO);
    return group < 0 || group == getpgrp();
}

/* Calls nothing that a signal handler may not call. */
static void erase(void)
{
    if (atomic_exchange(&screen.shown, false))
        (void)!write(STDERR_FILENO, screen.erase, atomic_load(&screen.erase_len));
}

static void prepare_erase(size_t width)
{
    int len = is_dumb() ? snprintf(screen.erase, sizeof screen.erase, "\r%*s\r", (int)width, "")
                        : snprintf(screen.erase, sizeof screen.erase, "\r\033[K");
    atomic_store(&screen.erase_len, (size_t)len);
}

static void on_ending_signal(int number)
{
    erase();
    for (size_t i = 0; i < ARRAY_SIZE(ending_signals); i++)
        if (ending_signals[i] == number)
            (void)sigaction(number, &screen.before[i], NULL);
    (void)raise(number);
}

static void watch_signals(void)
{
    struct sigaction action = {.sa_handler = on_ending_signal, .sa_flags = (int)SA_RESETHAND};
    (void)sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < ARRAY_SIZE(ending_signals); i++) {
        (void)sigaction(ending_signals[i], NULL, &screen.before[i]);
        if (screen.before[i].sa_handler != SIG_IGN)
            (void)sigaction(ending_signals[i], &action, NULL);
    }
}

static void unwatch_signals(void)
{
    struct sigaction now;
    for (size_t i = 0; i < ARRAY_SIZE(ending_signals); i++)
        if (sigaction(ending_signals[i], NULL, &now) == 0 && now.sa_handler == on_ending_signal)
            (void)sigaction(ending_signals[i], &screen.before[i], NULL);
}

/* --- the line -------------------------------------------------------------------------- */

static int append_amount(struct buffer *b, enum progress_unit unit, uint64_t amount)
{
    char text[UNITS_SIZE_TEXT];
    if (unit == PROGRESS_BYTES)
        return buffer_printf(b, "%s", units_size_text(amount, text));
    return buffer_printf(b, "%" PRIu64, amount);
}

/* Appends the text if it fits into what is left of the width. */
static void append_part(struct buffer *line, size_t width, const struct buffer *part)
{
    if (part->data && text_width(buffer_view(line)) + text_width(buffer_view(part)) <= width)
        (void)buffer_append(line, part->data, part->len);
}

static void find_rate(struct progress *p, uint64_t now, uint64_t done)
{
    double s = (double)(now - p->seen_ns) / (double)NSEC_PER_SEC;
    if (s <= 0)
        return;
    double rate = done > p->seen ? (double)(done - p->seen) / s : 0;
    p->rate = p->seen_ns == p->begin_ns ? rate : p->rate * RATE_OLD + rate * (1 - RATE_OLD);
    p->seen_ns = now;
    p->seen = done;
}

static void append_times(struct progress *p, struct buffer *line, size_t width, uint64_t now)
{
    _cleanup_buffer_ struct buffer rate = {0}, time = {0};
    uint64_t done = atomic_load(&p->done), total = atomic_load(&p->total);
    /* When all of it has gone, what is waited for has no rate. */
    bool amounts = p->unit != PROGRESS_STEPS && done > 0 && (total == 0 || done < total);
    if (amounts) {
        (void)buffer_printf(&rate, ", ");
        (void)append_amount(&rate, p->unit, (uint64_t)p->rate);
        (void)buffer_printf(&rate, p->unit == PROGRESS_BYTES ? "/s" : " files/s");
        append_part(line, width, &rate);
    }
    double left = p->rate >= 1 ? (double)(total - done) / p->rate : 0;
    if (amounts && total > done && left > 0 && left < 1e6)
        (void)buffer_printf(&time, ", %.0f s left", left + 0.5);
    else
        (void)buffer_printf(&time, ", %" PRIu64 " s", (now - p->begin_ns) / NSEC_PER_SEC);
    append_part(line, width, &time);
}

static void append_amounts(struct progress *p, struct buffer *line, size_t width)
{
    _cleanup_buffer_ struct buffer amount = {0}, share = {0};
    uint64_t done = atomic_load(&p->done), total = atomic_load(&p->total);
    if (done == 0 || (p->unit == PROGRESS_STEPS && total == 0))
        return;
    (void)buffer_printf(&amount, ": %s", p->unit == PROGRESS_STEPS ? "step " : "");
    (void)append_amount(&amount, p->unit, done);
    if (total >= done) {
        (void)buffer_printf(&amount, " of ");
        (void)append_amount(&amount, p->unit, total);
    }
    if (p->unit == PROGRESS_FILES)
        (void)buffer_printf(&amount, " files");
    append_part(line, width, &amount);
    if (total >= done && p->unit != PROGRESS_STEPS) {
        (void)buffer_printf(&share, ", %.0f %%", 100.0 * (double)done / (double)total);
        append_part(line, width, &share);
    }
}

static void compose(struct progress *p, struct buffer *line, size_t width, uint64_t now)
{
    _cleanup_buffer_ struct buffer step = {0};
    struct bytes what = bytes_of_string(p->what);
    (void)buffer_append(line, what.data, text_fit(what, width));
    append_amounts(p, line, width);
    if (p->step) {
        (void)buffer_printf(&step, ": %s", p->step);
        append_part(line, width, &step);
    }
    append_times(p, line, width, now);
}

static void draw(struct progress *p, uint64_t now)
{
    _cleanup_buffer_ struct buffer line = {0}, all = {0};
    size_t width = columns() - 1; /* the last column wraps on some terminals */
    find_rate(p, now, atomic_load(&p->done));
    if (!is_ours())
        return;
    compose(p, &line, width, now);
    prepare_erase(width);
    if (buffer_append(&all, screen.erase, atomic_load(&screen.erase_len)) == 0 &&
        buffer_append(&all, line.data, line.len) == 0) {
        /* Before it is there, so that no signal finds a line that nobody takes away. */
        atomic_store(&screen.shown, true);
        (void)!write(STDERR_FILENO, all.data, all.len);
    }
}

static void *draw_all(void *context)
{
    struct progress *p = context;
    (void)pthread_mutex_lock(&p->lock);
    while (!p->end) {
        uint64_t now = clock_monotonic_ns();
        if (now >= p->next_ns) {
            draw(p, now);
            p->next_ns = now + PROGRESS_EVERY_MS * NSEC_PER_MSEC;
        }
        const struct timespec until = {.tv_sec = (time_t)(p->next_ns / NSEC_PER_SEC),
                                       .tv_nsec = (long)(p->next_ns % NSEC_PER_SEC)};
        (void)pthread_cond_timedwait(&p->wake, &p->lock, &until);
    }
    (void)pthread_mutex_unlock(&p->lock);
    return NULL;
}

/* --- its life ----------------------------------------------------------------------------- */

static char *escaped(const char *text)
{
    _cleanup_buffer_ struct buffer b = {0};
    if (text_escape(&b, bytes_of_string(text), TEXT_SENTENCE) < 0 || buffer_append_u8(&b, 0) < 0)
        return NULL;
    return (char *)take_ptr(b.data);
}

static void release(struct progress *p)
{
    (void)pthread_cond_destroy(&p->wake);
    (void)pthread_mutex_destroy(&p->lock);
    free(p->what);
    free(p->step);
    free(p);
}

static int start_thread(struct progress *p)
{
    sigset_t all, before;
    pthread_condattr_t attr;
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_mutex_init(&p->lock, NULL);
    (void)pthread_cond_init(&p->wake, &attr);
    (void)pthread_condattr_destroy(&attr);
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    int r = -pthread_create(&p->thread, NULL, draw_all, p);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return r;
}

struct progress *progress_start(const char *what, uint64_t total, enum progress_unit unit)
{
    if (!isatty(STDERR_FILENO))
        return NULL;
    struct progress *p = calloc(1, sizeof *p);
    if (!p)
        return NULL;
    p->what = escaped(what);
    p->unit = unit;
    p->begin_ns = p->seen_ns = clock_monotonic_ns();
    p->next_ns = p->begin_ns + PROGRESS_AFTER_MS * NSEC_PER_MSEC;
    atomic_init(&p->total, total);
    (void)pthread_mutex_lock(&screen.lock);
    bool mine = !screen.current && p->what && start_thread(p) == 0;
    if (mine) {
        screen.current = p;
        watch_signals();
    }
    (void)pthread_mutex_unlock(&screen.lock);
    if (mine)
        return p;
    release(p);
    return NULL;
}

void progress_add(struct progress *p, uint64_t amount)
{
    if (p)
        atomic_fetch_add(&p->done, amount);
}

void progress_set(struct progress *p, uint64_t done, uint64_t total)
{
    if (!p)
        return;
    atomic_store(&p->done, done);
    atomic_store(&p->total, total);
}

void progress_step(struct progress *p, const char *text)
{
    if (!p)
        return;
    char *step = escaped(text);
    (void)pthread_mutex_lock(&p->lock);
    free(p->step);
    p->step = step;
    (void)pthread_mutex_unlock(&p->lock);
    if (p->unit == PROGRESS_STEPS)
        progress_add(p, 1);
}

void progress_hide(void)
{
    (void)pthread_mutex_lock(&screen.lock);
    struct progress *p = screen.current;
    if (p) {
        (void)pthread_mutex_lock(&p->lock);
        uint64_t next = clock_monotonic_ns() + PROGRESS_EVERY_MS * NSEC_PER_MSEC;
        p->next_ns = next > p->next_ns ? next : p->next_ns;
        erase();
        (void)pthread_mutex_unlock(&p->lock);
    }
    (void)pthread_mutex_unlock(&screen.lock);
}

void progress_end(struct progress *p)
{
    if (!p)
        return;
    (void)pthread_mutex_lock(&p->lock);
    p->end = true;
    (void)pthread_cond_signal(&p->wake);
    (void)pthread_mutex_unlock(&p->lock);
    (void)pthread_join(p->thread, NULL);
    (void)pthread_mutex_lock(&screen.lock);
    screen.current = NULL;
    erase();
    unwatch_signals();
    (void)pthread_mutex_unlock(&screen.lock);
    release(p);
}

#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <time.h>

#include "base/clock.h"
#include "base/units.h"
#include "cli/cli.h"
#include "cli/text.h"
#include "cli/top_sample.h"
#include "cli/top_screen.h"
#include "cli/top_view.h"

#define INTERVAL_MS 2000
#define INTERVAL_MIN_MS 200
#define INTERVAL_MAX_S 3600.0

/* A sample that takes longer is told of, so that figures are not taken for those of now. */
#define LATE_MS 3000

const char top_usage[] =
    "usage: berth top [--sort ORDER] [--interval SECONDS] [--once] [--json]\n"
    "Shows what goes on, and goes on showing it: workspaces, those that are busy first, the\n"
    "commands that run, the mounts of this machine, and what the proxy of commands decides.\n"
    "Where standard output or input is no terminal that can be drawn on, it prints this once.\n"
    "\n"
    "      --sort ORDER        busy (the default), cpu, memory, time or name\n"
    "      --interval SECONDS  between two looks (2; at least 0.2)\n"
    "      --once              prints one look as text, all of it, and ends\n"
    "      --json              prints an object a line for each look: \"time\", \"url\", "
    "\"error\"\n"
    "                          (null, or why the service was not reached), \"note\" (null, or\n"
    "                          that an older one tells less), \"service\" and\n"
    "                          \"mounts\" as `berth status --json` has them, \"workspaces\",\n"
    "                          \"commands\", and \"egress\": decisions since the last look. See\n"
    "                          berth(1)\n"
    "\n"
    "CPU% is of one processor. LAG is how long the last changes took from when the mount was told\n"
    "of them until no program saw what was before, PING a round trip to the service, TRIPS/S how\n"
    "many of them programs and the mount cause. What is not known is \"-\".\n"
    "\n"
    "Keys\n"
    "  q, ^C   end          s       the next order; b, c, m, t, n: busy, cpu, memory, time, name\n"
    "  space   look now     Tab     one table alone, the next one, all; arrows: its other rows\n"
    "  h, ?    these keys   + -     look less, more often\n"
    "\n"
    "Examples\n"
    "  berth top\n"
    "  berth top --once | less\n"
    "  berth top --json | jq --unbuffered '.egress[] | select(.verdict == \"refused\")'\n";

static const char keys_help[] =
    "q end  s order  Tab table  arrows rows  space now  + - interval  h keys";

enum { OPTION_SORT = 256, OPTION_INTERVAL, OPTION_ONCE, OPTION_JSON };

static const struct option options[] = {
    {"sort", required_argument, NULL, OPTION_SORT},
    {"interval", required_argument, NULL, OPTION_INTERVAL},
    {"once", no_argument, NULL, OPTION_ONCE},
    {"json", no_argument, NULL, OPTION_JSON},
    {"help", no_argument, NULL, 'h'},
    {0},
};

struct top {
    struct cli *cli;
    struct top_choice choice;
    uint64_t interval_ms;
    bool once, json, keys;
    bool reached;      /* the service was, once */
    json_t *decisions; /* the latest */
    json_t *sample;    /* that is shown */
    uint64_t shown_ns; /* since when */
};

/* --- taking samples: on a thread of its own, since a service or a mount may not answer -----------
 */

struct sampler {
    pthread_mutex_t lock;
    pthread_cond_t wanted;
    bool wants;
    json_t *taken; /* that nobody has fetched yet */
    int wake;      /* an eventfd: there is one */
    struct top_source source;
};

static void *take_samples(void *context)
{
    struct sampler *s = context;
    const uint64_t one = 1;
    for (;;) {
        (void)pthread_mutex_lock(&s->lock);
        while (!s->wants)
            (void)pthread_cond_wait(&s->wanted, &s->lock);
        s->wants = false;
        (void)pthread_mutex_unlock(&s->lock);
        json_t *sample = top_sample(&s->source);
        (void)pthread_mutex_lock(&s->lock);
        json_decref(s->taken);
        s->taken = sample;
        (void)pthread_mutex_unlock(&s->lock);
        (void)!write(s->wake, &one, sizeof one);
    }
    return NULL;
}

static void want_sample(struct sampler *s)
{
    (void)pthread_mutex_lock(&s->lock);
    s->wants = true;
    (void)pthread_cond_signal(&s->wanted);
    (void)pthread_mutex_unlock(&s->lock);
}

static json_t *fetch_sample(struct sampler *s)
{
    uint64_t count;
    (void)!read(s->wake, &count, sizeof count);
    (void)pthread_mutex_lock(&s->lock);
    json_t *sample = take_ptr(s->taken);
    (void)pthread_mutex_unlock(&s->lock);
    return sample;
}

/* --- showing ------------------------------------------------------------------------------------
 */

static void keep_decisions(struct top *t, const json_t *sample)
{
    (void)json_array_extend(t->decisions, json_object_get(sample, "egress"));
    while (json_array_size(t->decisions) > TOP_DECISIONS_MAX)
        (void)json_array_remove(t->decisions, 0);
}

static int print_json(const json_t *sample)
{
    int r = json_dumpf(sample, stdout, JSON_COMPACT | JSON_ENSURE_ASCII);
    (void)putchar('\n');
    return r < 0 ? -EIO : 0;
}

static int print_text(struct top *t, const json_t *sample)
{
    _cleanup_top_page_ struct top_page page = {0};
    struct winsize size;
    if (isatty(STDOUT_FILENO) && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0)
        t->choice.columns = size.ws_col;
    keep_decisions(t, sample);
    int r = top_view(sample, t->decisions, &t->choice, &page);
    for (size_t i = 0; r == 0 && i < page.count; i++)
        (void)printf("%s\n", page.lines[i].text);
    return r;
}

static int print_looks(struct top *t)
{
    struct top_source source = {.cli = t->cli};
    int status = CLI_OK;
    for (;;) {
        json_t *sample = top_sample(&source);
        int r = !sample ? -ENOMEM : t->json ? print_json(sample) : print_text(t, sample);
        bool reached = json_is_null(json_object_get(sample, "error"));
        if (sample && !reached && !t->json)
            cli_error(t->cli, "%s", json_string_value(json_object_get(sample, "error")));
        json_decref(sample);
        if (r < 0)
            cli_error(t->cli, "%s", strerror(-r));
        status = cli_finish_output(t->cli, r < 0 || !reached ? CLI_FAILED : CLI_OK);
        if (t->once || r < 0 || ferror(stdout))
            break;
        const struct timespec pause = {.tv_sec = (time_t)(t->interval_ms / 1000),
                                       .tv_nsec = (long)(t->interval_ms % 1000 * 1000000)};
        (void)nanosleep(&pause, NULL);
    }
    top_source_release(&source);
    return status;
}

static void help_line(const struct top *t, char *text, size_t size)
{
    uint64_t age_ms = (clock_monotonic_ns() - t->shown_ns) / NSEC_PER_MSEC;
    if (t->sample && age_ms > t->interval_ms + LATE_MS)
        (void)snprintf(text, size, "as of %" PRIu64 " s ago: no answer since", age_ms / 1000);
    else if (t->keys)
        (void)snprintf(text, size, "%s", keys_help);
    else
        (void)snprintf(text, size, "h keys  order %s  every %g s", top_sort_name(t->choice.sort),
                       (double)t->interval_ms / 1000);
}

static int show(struct top *t, struct top_screen *screen)
{
    _cleanup_top_page_ struct top_page page = {0};
    char help[128];
    size_t rows;
    top_screen_size(screen, &t->choice.columns, &rows);
    t->choice.rows = rows > 1 ? rows - 1 : 1;
    int r = t->sample ? top_view(t->sample, t->decisions, &t->choice, &page) : 0;
    help_line(t, help, sizeof help);
    if (r == 0)
        top_screen_draw(screen, &page, t->sample ? help : "asking ...");
    return r;
}

/* --- keys
 * ------------------------------------------------------------------------------------------ */

static void next_table(struct top_choice *c)
{
    if (!c->one)
        c->part = TOP_WORKSPACES;
    else
        c->part++;
    c->one = c->part < TOP_PART_COUNT;
    c->scroll = 0;
}

static void scroll(struct top_choice *c, long rows)
{
    if (rows < 0)
        c->scroll -= c->scroll < (size_t)-rows ? c->scroll : (size_t)-rows;
    else
        c->scroll += (size_t)rows;
}

static size_t rows_of(const struct top *t)
{
    static const char *const names[] = {"workspaces", "commands", "mounts"};
    if (t->choice.part == TOP_EGRESS)
        return json_array_size(t->decisions);
    const json_t *all = json_object_get(t->sample, names[t->choice.part]);
    size_t rows = json_array_size(all);
    for (size_t i = 0; t->choice.part == TOP_MOUNTS && i < json_array_size(all); i++)
        rows += json_array_size(json_object_get(json_array_get(all, i), "members"));
    return rows;
}

static void change_interval(struct top *t, bool longer)
{
    uint64_t ms = longer ? t->interval_ms * 2 : t->interval_ms / 2;
    if (ms >= INTERVAL_MIN_MS && (double)ms <= INTERVAL_MAX_S * 1000)
        t->interval_ms = ms;
}

/* False: it is the end. */
static bool on_key(struct top *t, int key)
{
    static const char orders[] = "bcmtn";
    struct top_choice *c = &t->choice;
    const char *order = key > 0 && key < 256 ? strchr(orders, key) : NULL;
    long page = c->rows > 4 ? (long)c->rows - 4 : 1;
    if (order)
        c->sort = (enum top_sort)(order - orders);
    else if (key == 's')
        c->sort = (c->sort + 1) % TOP_SORT_COUNT;
    else if (key == '\t')
        next_table(c);
    else if (key == TOP_EVENT_UP || key == 'k')
        scroll(c, -1);
    else if (key == TOP_EVENT_DOWN || key == 'j')
        scroll(c, 1);
    else if (key == TOP_EVENT_PAGE_UP)
        scroll(c, -page);
    else if (key == TOP_EVENT_PAGE_DOWN)
        scroll(c, page);
    else if (key == 'h' || key == '?')
        t->keys = !t->keys;
    else if (key == '+' || key == '-')
        change_interval(t, key == '+');
    size_t rows = c->one ? rows_of(t) : 0;
    c->scroll = c->scroll < rows ? c->scroll : rows ? rows - 1 : 0;
    return key != 'q' && key != 'Q' && key != TOP_EVENT_END && key != 4;
}

/* Nothing that is waited for on the other thread holds this one up, the end least of all. */
static int run_screen(struct top *t, struct sampler *s, struct top_screen *screen)
{
    uint64_t next_ns = 0;
    bool asked = false;
    int r = 0;
    for (int key = TOP_EVENT_NONE; r == 0 && on_key(t, key);) {
        uint64_t now = clock_monotonic_ns();
        if (key == TOP_EVENT_WAKE) {
            json_t *sample = fetch_sample(s);
            asked = false;
            if (sample) {
                json_decref(t->sample);
                t->sample = sample;
                t->shown_ns = now;
                t->reached |= json_is_null(json_object_get(sample, "error"));
                keep_decisions(t, sample);
            }
        }
        if (!asked && (now >= next_ns || key == ' ')) {
            want_sample(s);
            asked = true;
            next_ns = now + t->interval_ms * NSEC_PER_MSEC;
        }
        r = show(t, screen);
        uint64_t wait_ms = next_ns > now ? (next_ns - now) / NSEC_PER_MSEC + 1 : 1000;
        key = top_screen_wait(screen, s->wake, wait_ms < 1000 ? (int)wait_ms : 1000);
    }
    return r;
}

static int show_looks(struct top *t)
{
    static struct sampler sampler = {.lock = PTHREAD_MUTEX_INITIALIZER,
                                     .wanted = PTHREAD_COND_INITIALIZER};
    struct top_screen *screen;
    pthread_t thread;
    struct failure failure;
    sampler.source.cli = t->cli;
    /* Before the terminal is another one: what connects may ask for a password on it. */
    (void)cli_connect_alone(t->cli, &sampler.source.client, &failure);
    sampler.wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int r = sampler.wake < 0 ? -errno : top_screen_open(&screen);
    if (r < 0) {
        cli_error(t->cli, "%s", strerror(-r));
        return CLI_FAILED;
    }
    r = -pthread_create(&thread, NULL, take_samples, &sampler);
    if (r == 0)
        r = run_screen(t, &sampler, screen);
    top_screen_close(screen);
    const char *error = json_string_value(json_object_get(t->sample, "error"));
    if (r < 0)
        cli_error(t->cli, "%s", strerror(-r));
    else if (!t->reached && error)
        cli_error(t->cli, "%s", error);
    /* The other thread may be waiting for a service, which the end of the process ends. */
    return r < 0 || (!t->reached && error) ? CLI_FAILED : CLI_OK;
}

int cmd_top(struct cli *cli, int argc, char **argv)
{
    struct top t = {.cli = cli, .interval_ms = INTERVAL_MS};
    int option;
    opterr = 0;
    while ((option = getopt_long(argc, argv, ":h", options, NULL)) != -1) {
        if (option == OPTION_SORT && top_sort_parse(optarg, &t.choice.sort) < 0)
            return cli_usage_error(cli, "--sort %s: it is busy, cpu, memory, time or name", optarg);
        if (option == OPTION_INTERVAL && (!units_duration(optarg, INTERVAL_MAX_S, &t.interval_ms) ||
                                          t.interval_ms < INTERVAL_MIN_MS))
            return cli_usage_error(cli, "--interval %s: a time from 0.2 to 3600 seconds", optarg);
        if (option == OPTION_ONCE)
            t.once = true;
        else if (option == OPTION_JSON)
            t.json = true;
        else if (option == 'h')
            return cli_show_help(cli);
        else if (option != OPTION_SORT && option != OPTION_INTERVAL)
            return cli_option_error(cli, option, argv);
    }
    if (optind < argc)
        return cli_usage_error(cli, "%s: top takes no arguments", argv[optind]);
    if (!cli_load_settings(cli))
        return CLI_FAILED;
    t.once = t.once || (!t.json && !top_screen_possible());
    t.decisions = json_array();
    int status = t.once || t.json ? print_looks(&t) : show_looks(&t);
    json_decref(t.decisions);
    json_decref(t.sample);
    return status;
}

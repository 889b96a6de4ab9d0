/* Symbolic links against a mount that contains them, from both sides.
 *
 *   link-attack agent DIR     the agent in a workspace, whose directory (or a mount of it) is DIR:
 *                             moves a directory full of links up and down, changes and
 *                             hard-links links, swaps directories for links; until TERM
 *   link-attack move DIR      only moves the directory: what a tool on the victim's own mount
 *                             might do meanwhile
 *   link-attack victim DIR TRIES THREADS
 *                             opens everything through DIR, a workspace on a mount, TRIES times,
 *                             by paths and from directories held open, and looks where it got
 *   link-attack watch FILE…   says for each time that a FILE is opened, by whomever; until TERM
 *
 * The directory holds links `upK`, "../" K times and then "canary": for each depth, some that stay
 * inside and some that would lead out of the mount. Each prints a line of JSON at its end. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define UPS 10
#define THREADS_MAX 16
#define HELD 8            /* directories that a victim keeps open */
#define TRIES_PER_HOLD 64 /* after which one of them is opened anew */

/* Where the directory of links may be; each is one deeper. */
static const char *const places[] = {".", "1", "1/2", "1/2/3", "1/2/3/4", "1/2/3/4/5"};
#define PLACES (sizeof places / sizeof *places)

static atomic_bool stop;

static void on_signal(int number)
{
    stop = true;
}

static uint32_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

static double now(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void give_up(const char *what)
{
    perror(what);
    exit(1);
}

static void go_to(const char *directory)
{
    if (chdir(directory) < 0)
        give_up(directory);
}

/* --- the agent ------------------------------------------------------------------------------ */

static void write_canary(const char *path)
{
    int fd = open(path, O_WRONLY | O_CREAT, 0644);
    if (fd < 0 || write(fd, "inside", 6) != 6)
        give_up(path);
    (void)close(fd);
}

/* "../" times and then the rest. */
static void climb(char *ret, size_t size, unsigned int times, const char *rest)
{
    ret[0] = '\0';
    for (unsigned int i = 0; i < times; i++)
        (void)strncat(ret, "../", size - strlen(ret) - 1);
    (void)strncat(ret, rest, size - strlen(ret) - 1);
}

static void plant(void)
{
    char path[PATH_MAX], text[PATH_MAX];
    for (size_t i = 1; i < PLACES; i++)
        (void)mkdir(places[i], 0755);
    for (size_t i = 0; i < PLACES; i++) {
        (void)snprintf(path, sizeof path, "%s/canary", places[i]);
        write_canary(path);
    }
    (void)mkdir("m", 0755);
    (void)mkdir("m/in", 0755);
    for (unsigned int i = 0; i < UPS; i++) {
        (void)snprintf(path, sizeof path, "m/up%u", i);
        climb(text, sizeof text, i, "canary");
        (void)symlink(text, path);
        (void)snprintf(path, sizeof path, "m/in/up%u", i);
        (void)symlink(text, path);
    }
    write_canary("m/canary");
    write_canary("m/in/canary");
    (void)symlink("canary", "changing");
    (void)symlink("canary", "1/2/3/4/changing");
    (void)mkdir("swapped", 0755);
    (void)symlink("1/2", "swapper");
}

/* The directory of links goes from wherever it is to `to`. */
static bool move_to(size_t to)
{
    char from_path[PATH_MAX], to_path[PATH_MAX];
    (void)snprintf(to_path, sizeof to_path, "%s/m", places[to]);
    for (size_t i = 0; i < PLACES; i++) {
        (void)snprintf(from_path, sizeof from_path, "%s/m", places[i]);
        if (i != to && rename(from_path, to_path) == 0)
            return true;
    }
    return false;
}

static void change_link(uint64_t *random, const char *path)
{
    static const char *const texts[] = {"canary",
                                        "../canary",
                                        "../../../../../../canary",
                                        "1/2/canary",
                                        "1/../../../canary",
                                        "/etc/shadow",
                                        "/proc/self/root/etc/shadow"};
    char other[PATH_MAX];
    (void)snprintf(other, sizeof other, "%s.new", path);
    (void)unlink(other);
    if (symlink(texts[next_random(random) % (sizeof texts / sizeof *texts)], other) == 0)
        (void)rename(other, path);
}

/* One link, followed from the top and from the depths. */
static void link_hard(uint64_t *random)
{
    char text[PATH_MAX];
    (void)unlink("hard");
    (void)unlink("1/2/3/4/5/hard");
    climb(text, sizeof text, 1 + next_random(random) % 6, "canary");
    if (symlink(text, "1/2/3/4/5/hard") == 0)
        (void)linkat(AT_FDCWD, "1/2/3/4/5/hard", AT_FDCWD, "hard", 0);
}

static int run_agent(const char *directory, bool moves_only)
{
    uint64_t random = (uint64_t)getpid(), moves = 0, others = 0;
    go_to(directory);
    if (!moves_only)
        plant();
    (void)puts("ready");
    (void)fflush(stdout);
    double start = now();
    while (!stop) {
        uint32_t what = moves_only ? 0 : next_random(&random) % 16;
        others++;
        if (what < 12) {
            moves += move_to(next_random(&random) % PLACES);
            others--;
        } else if (what == 12) {
            change_link(&random, "changing");
        } else if (what == 13) {
            change_link(&random, "1/2/3/4/changing");
        } else if (what == 14) {
            link_hard(&random);
        } else {
            (void)renameat2(AT_FDCWD, "swapped", AT_FDCWD, "swapper", RENAME_EXCHANGE);
        }
    }
    printf("{\"moves\": %llu, \"others\": %llu, \"seconds\": %.1f}\n", (unsigned long long)moves,
           (unsigned long long)others, now() - start);
    return 0;
}

/* --- the victim ----------------------------------------------------------------------------- */

struct counts {
    uint64_t tries, inside, refused, absent, other, outside;
};

struct victim {
    pthread_t thread;
    uint64_t tries;
    uint64_t random;
    int held[HELD];
    struct counts counts;
};

static char workspace[PATH_MAX]; /* the victim's, as the kernel names what is in it */

static void note(struct victim *v, const char *what, int fd)
{
    struct counts *c = &v->counts;
    c->tries++;
    if (fd < 0) {
        if (errno == EACCES)
            c->refused++;
        else if (errno == ENOENT || errno == ESTALE || errno == ENOTDIR)
            c->absent++;
        else
            c->other++;
        return;
    }
    char link[64], path[PATH_MAX];
    (void)snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t len = readlink(link, path, sizeof path - 1);
    path[len < 0 ? 0 : len] = '\0';
    size_t prefix = strlen(workspace);
    /* What is deleted meanwhile has its last path, or none that the kernel can tell. */
    if (strncmp(path, workspace, prefix) == 0 && (path[prefix] == '/' || path[prefix] == '\0')) {
        c->inside++;
    } else {
        c->outside++;
        (void)fprintf(stderr, "%s led to %s\n", what, path);
    }
    (void)close(fd);
}

/* A path from the workspace to a link, with what moves on it. */
static void choose_path(struct victim *v, char ret[PATH_MAX])
{
    const char *place = places[next_random(&v->random) % PLACES];
    uint32_t up = next_random(&v->random) % UPS;
    switch (next_random(&v->random) % 16) {
    case 0:
        (void)snprintf(ret, PATH_MAX, "changing");
        break;
    case 1:
        (void)snprintf(ret, PATH_MAX, "1/2/3/4/changing");
        break;
    case 2:
        (void)snprintf(ret, PATH_MAX, "hard");
        break;
    case 3:
        (void)snprintf(ret, PATH_MAX, "1/2/3/4/5/hard");
        break;
    case 4:
        (void)snprintf(ret, PATH_MAX, "swapped/../canary");
        break;
    case 5:
        (void)snprintf(ret, PATH_MAX, "swapper/canary");
        break;
    case 6:
    case 7:
    case 8:
        (void)snprintf(ret, PATH_MAX, "%s/m/in/up%u", place, up);
        break;
    default:
        (void)snprintf(ret, PATH_MAX, "%s/m/up%u", place, up);
        break;
    }
}

/* Looks for the directory of links everywhere, as a crawler does, and keeps it open. */
static void hold(struct victim *v)
{
    for (size_t i = 0; i < PLACES; i++) {
        char path[PATH_MAX];
        (void)snprintf(path, sizeof path, "%s/m%s", places[i],
                       next_random(&v->random) % 2 ? "/in" : "");
        int fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0)
            continue;
        int *held = &v->held[next_random(&v->random) % HELD];
        if (*held >= 0)
            (void)close(*held);
        *held = fd;
    }
}

static void *run_thread(void *argument)
{
    struct victim *v = argument;
    for (size_t i = 0; i < HELD; i++)
        v->held[i] = -1;
    for (uint64_t i = 0; i < v->tries && !stop; i++) {
        char path[PATH_MAX];
        struct stat st;
        if (i % TRIES_PER_HOLD == 0)
            hold(v);
        int held = v->held[next_random(&v->random) % HELD];
        if (held >= 0 && next_random(&v->random) % 4) {
            (void)snprintf(path, sizeof path, "up%u", next_random(&v->random) % UPS);
            note(v, path, openat(held, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK));
        } else {
            choose_path(v, path);
            note(v, path, open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK));
        }
        /* The kernel learns where the directory is now. */
        (void)snprintf(path, sizeof path, "%s/m", places[next_random(&v->random) % PLACES]);
        (void)stat(path, &st);
    }
    return NULL;
}

static int run_victim(const char *directory, uint64_t tries, size_t threads)
{
    static struct victim victims[THREADS_MAX];
    struct counts all = {0};
    if (threads == 0 || threads > THREADS_MAX)
        return 2;
    go_to(directory);
    if (!getcwd(workspace, sizeof workspace))
        give_up("getcwd");
    double start = now();
    for (size_t i = 0; i < threads; i++) {
        victims[i].tries = tries / threads;
        victims[i].random = i + 1;
        if (pthread_create(&victims[i].thread, NULL, run_thread, &victims[i]) != 0)
            give_up("pthread_create");
    }
    for (size_t i = 0; i < threads; i++) {
        (void)pthread_join(victims[i].thread, NULL);
        const struct counts *c = &victims[i].counts;
        all.tries += c->tries;
        all.inside += c->inside;
        all.refused += c->refused;
        all.absent += c->absent;
        all.other += c->other;
        all.outside += c->outside;
    }
    printf(
        "{\"tries\": %llu, \"inside\": %llu, \"refused\": %llu, \"absent\": %llu, \"other\": %llu, "
        "\"outside\": %llu, \"seconds\": %.1f}\n",
        (unsigned long long)all.tries, (unsigned long long)all.inside,
        (unsigned long long)all.refused, (unsigned long long)all.absent,
        (unsigned long long)all.other, (unsigned long long)all.outside, now() - start);
    return 0;
}

/* --- the watch ------------------------------------------------------------------------------ */

static int run_watch(char **files)
{
    unsigned long long opened = 0;
    int fd = inotify_init1(IN_CLOEXEC);
    if (fd < 0)
        give_up("inotify_init1");
    for (; *files; files++)
        if (inotify_add_watch(fd, *files, IN_OPEN) < 0)
            give_up(*files);
    (void)puts("ready");
    (void)fflush(stdout);
    while (!stop) {
        char events[4096] __attribute__((aligned(8)));
        ssize_t len = read(fd, events, sizeof events);
        for (ssize_t at = 0; at < len;) {
            const struct inotify_event *event = (const void *)(events + at);
            at += (ssize_t)(sizeof *event + event->len);
            opened++;
        }
    }
    printf("{\"opened\": %llu}\n", opened);
    return 0;
}

int main(int argc, char **argv)
{
    const struct sigaction action = {.sa_handler = on_signal};
    (void)sigaction(SIGTERM, &action, NULL);
    if (argc == 3 && strcmp(argv[1], "agent") == 0)
        return run_agent(argv[2], false);
    if (argc == 3 && strcmp(argv[1], "move") == 0)
        return run_agent(argv[2], true);
    if (argc == 5 && strcmp(argv[1], "victim") == 0)
        return run_victim(argv[2], strtoull(argv[3], NULL, 10), strtoul(argv[4], NULL, 10));
    if (argc >= 3 && strcmp(argv[1], "watch") == 0)
        return run_watch(argv + 2);
    (void)fputs("usage: link-attack agent|move DIR, victim DIR TRIES THREADS, watch FILE…\n",
                stderr);
    return 2;
}

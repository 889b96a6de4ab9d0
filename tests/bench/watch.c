/* What the watch costs: watch-bench MODE [opens] in a directory. Prints the mode, how soon after a
 * change its event is there, by the watch's own thread and by a drain, and how many events a
 * second it takes in while processes change files as fast as they can. */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "watch/watch.h"

#define SAMPLES 500
#define PAUSE_US 2000
#define FLOOD_NS (2 * NSEC_PER_SEC)

struct shared {
    _Atomic uint64_t asked; /* the child changes the file when it rises */
    _Atomic uint64_t changed_ns, seen_ns;
    _Atomic uint64_t changes;
    atomic_bool stop;
};

static struct shared *shared;

static bool on_event(void *context, const struct watch_event *event)
{
    if (bytes_equal(event->name, bytes_of_string("sample")) && event->kinds & WATCH_CONTENT)
        shared->seen_ns = clock_monotonic_ns();
    if (event->kinds == WATCH_ALL_LOST)
        (void)printf("lost\n");
    return true;
}

static void sampled(void)
{
    int fd = open("sample", O_CREAT | O_WRONLY, 0600);
    for (uint64_t last = 0;; last++) {
        while (shared->asked == last)
            (void)sched_yield();
        shared->changed_ns = clock_monotonic_ns();
        if (pwrite(fd, "s", 1, 0) != 1)
            _exit(1);
    }
}

static void flooder(unsigned n)
{
    char name[32];
    for (uint64_t i = 0; !shared->stop; i++) {
        (void)snprintf(name, sizeof name, "flood-%u-%u", n, (unsigned)(i % 100));
        int fd = open(name, O_CREAT | O_WRONLY, 0600);
        if (fd < 0 || write(fd, "f", 1) != 1 || close(fd) < 0 || unlink(name) < 0)
            _exit(1);
        shared->changes++;
    }
    _exit(0);
}

static int compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static void print_times(const char *what, uint64_t *ns, size_t count)
{
    const size_t middle = count / 2, p99 = count * 99 / 100;
    qsort(ns, count, sizeof *ns, compare);
    (void)printf("%-28s median %7.1f us  p99 %8.1f us  most %8.1f us\n", what,
                 (double)ns[middle] / 1e3, (double)ns[p99] / 1e3, (double)ns[count - 1] / 1e3);
}

static double cpu_seconds(void)
{
    struct rusage used;
    (void)getrusage(RUSAGE_SELF, &used);
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
           (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
}

static void measure_latency(struct watch *w, bool drains)
{
    static uint64_t latency[SAMPLES];
    for (size_t i = 0; i < SAMPLES; i++) {
        shared->seen_ns = 0;
        shared->changed_ns = 0;
        shared->asked++;
        while (!shared->changed_ns)
            (void)sched_yield();
        while (drains && !shared->seen_ns)
            (void)watch_drain(w);
        while (!shared->seen_ns)
            (void)usleep(20);
        latency[i] = shared->seen_ns - shared->changed_ns;
        (void)usleep(PAUSE_US);
    }
    print_times(drains ? "change to event, draining" : "change to event, thread", latency, SAMPLES);
    uint64_t start = clock_monotonic_ns();
    for (size_t i = 0; drains && i < 10000; i++)
        (void)watch_drain(w);
    if (drains)
        (void)printf("%-28s %.2f us\n", "drain of nothing",
                     (double)(clock_monotonic_ns() - start) / 1e7);
}

static void measure_flood(struct watch *w)
{
    pid_t pids[2];
    struct watch_status before, after;
    for (unsigned n = 0; n < 2; n++)
        if ((pids[n] = fork()) == 0)
            flooder(n);
    watch_status(w, &before);
    double cpu = cpu_seconds();
    uint64_t start = clock_monotonic_ns(), most = 0, behind = 0;
    while (clock_monotonic_ns() - start < FLOOD_NS) {
        uint64_t drain = clock_monotonic_ns();
        watch_status(w, &after);
        if (after.behind_ns > behind)
            behind = after.behind_ns;
        (void)watch_drain(w);
        drain = clock_monotonic_ns() - drain;
        if (drain > most)
            most = drain;
        (void)usleep(10000);
    }
    double seconds = (double)(clock_monotonic_ns() - start) / 1e9;
    watch_status(w, &after);
    shared->stop = true;
    for (unsigned n = 0; n < 2; n++)
        (void)waitpid(pids[n], NULL, 0);
    double events = (double)(after.events - before.events);
    (void)printf("2 processes: %.0f files/s (create, write, close, unlink), %.0f events/s, "
                 "%.2f us of ours each, longest drain %.1f ms, behind at most %.1f ms\n",
                 (double)shared->changes / seconds, events / seconds,
                 (cpu_seconds() - cpu) * 1e6 / events, (double)most / 1e6, (double)behind / 1e6);
}

int main(int argc, char **argv)
{
    (void)setvbuf(stdout, NULL, _IOLBF, 0);
    struct watch_options options = {.opens = argc > 2 && strcmp(argv[2], "opens") == 0};
    if (argc > 1 && strcmp(argv[1], "fanotify") == 0)
        options.mode = WATCH_FANOTIFY;
    else if (argc > 1 && strcmp(argv[1], "inotify") == 0)
        options.mode = WATCH_INOTIFY;
    const struct watch_events events = {.event = on_event};
    struct failure failure;
    struct watch *w;
    int root = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (watch_new(root, &options, &events, &w, &failure) < 0) {
        (void)fprintf(stderr, "%s\n", failure.text);
        return 1;
    }
    (void)printf("%s%s\n", watch_mode_name(watch_mode(w)), options.opens ? ", opens too" : "");
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED || watch_directory(w, root, 1) < 0)
        return 1;
    pid_t sample = fork();
    if (sample == 0)
        sampled();
    measure_latency(w, true);
    if (watch_start(w) < 0)
        return 1;
    measure_latency(w, false);
    (void)kill(sample, SIGKILL);
    (void)waitpid(sample, NULL, 0);
    measure_flood(w);
    watch_free(w);
    (void)unlink("sample");
    return 0;
}

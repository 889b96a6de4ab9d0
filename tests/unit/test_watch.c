/* The watch itself: whose changes, in which directories, drained by whom, with what lost. */
#include "watch_fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <seccomp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/fanotify.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "watch/watch_private.h"

#define WAIT_S 20

static int make_file(void)
{
    _cleanup_close_ int fd = open("x", O_CREAT | O_RDWR | O_CLOEXEC, 0644);
    return fd < 0 || write(fd, "x", 1) != 1;
}

static int make_sub(void)
{
    return mkdir("sub", 0755);
}

static int make_file_in_sub(void)
{
    return mknod("sub/x", S_IFREG | 0644, 0);
}

static int touch_sub_file(void)
{
    return chmod("sub/x", 0600);
}

/* --- whose changes ------------------------------------------------------------- */

#define ROUNDS 10000

struct turn {
    int up[2], down[2];
    pid_t pid;
};

/* A child that writes to x for each byte it gets. */
static void turn_start(struct turn *t)
{
    assert_int_equal(pipe2(t->up, O_CLOEXEC), 0);
    assert_int_equal(pipe2(t->down, O_CLOEXEC), 0);
    t->pid = fork_child();
    if (t->pid == 0) {
        (void)close(t->down[1]);
        int fd = open("x", O_WRONLY | O_CLOEXEC);
        char c;
        while (read(t->down[0], &c, 1) == 1)
            if (pwrite(fd, "c", 1, 0) != 1 || write(t->up[1], &c, 1) != 1)
                _exit(1);
        _exit(0);
    }
    (void)close(t->up[1]);
    (void)close(t->down[0]);
}

static void turn_take(struct turn *t)
{
    char c = 0;
    assert_int_equal(write(t->down[1], &c, 1), 1);
    assert_int_equal(read(t->up[0], &c, 1), 1);
}

static void turn_end(struct turn *t)
{
    int status;
    (void)close(t->down[1]);
    assert_int_equal(waitpid(t->pid, &status, 0), t->pid);
    assert_int_equal(status, 0);
    (void)close(t->up[0]);
}

static void test_own_changes_and_others_in_turn(void **state)
{
    struct fixture *f = *state;
    bool fanotify = world_mode() == WATCH_FANOTIFY;
    in_child(make_file);
    _cleanup_close_ int fd = open("x", O_WRONLY | O_CLOEXEC);
    struct turn turn;
    turn_start(&turn);
    settle(f);
    unsigned seed = 1;
    for (unsigned round = 0; round < ROUNDS; round++) {
        /* Own, other's or both, in either order. */
        bool own_first = rand_r(&seed) & 1, other = rand_r(&seed) & 1, own_last = rand_r(&seed) & 1;
        if (own_first)
            assert_int_equal(pwrite(fd, "o", 1, 0), 1);
        if (other)
            turn_take(&turn);
        if (own_last)
            assert_int_equal(pwrite(fd, "o", 1, 0), 1);
        assert_int_equal(watch_drain(f->watch), 0);
        bool expected = other || (!fanotify && (own_first || own_last));
        if ((count_named(f, f->root, "x", WATCH_CONTENT) > 0) != expected)
            fail_msg("round %u: own %d, other's %d, own %d, events %zu", round, own_first, other,
                     own_last, f->count);
        f->count = 0;
    }
    turn_end(&turn);
    struct watch_status status;
    watch_status(f->watch, &status);
    assert_int_equal(status.own > 0, fanotify);
}

static void test_own_names(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(make_file() || rename("x", "y") || unlink("y"), 0);
    assert_int_equal(watch_drain(f->watch), 0);
    assert_int_equal(f->count > 0, world_mode() == WATCH_INOTIFY);
}

/* --- overflow ------------------------------------------------------------------ */

/* More events than the limit, of which none is like another that still waits. */
static int flood(void)
{
    char name[32];
    for (unsigned i = 0; i < 10000; i++) {
        (void)snprintf(name, sizeof name, "flood-%u", i);
        if (mknod(name, S_IFREG | 0644, 0) || unlink(name))
            return -1;
    }
    return 0;
}

static void test_overflow(void **state)
{
    struct fixture *f = *state;
    struct watch_options options = fixture_options();
    options.bounded_queue = true;
    fixture_watch(f, &options);
    in_child(flood);
    assert_int_equal(f->lost, 0);
    assert_int_equal(watch_drain(f->watch), 0);
    assert_int_equal(f->lost, 1);
    settle(f);
    in_child(make_file);
    assert_int_equal(watch_drain(f->watch), 0);
    assert_int_not_equal(count_named(f, f->root, "x", WATCH_NAME), 0);
    assert_int_not_equal(count_named(f, f->root, "x", WATCH_CONTENT), 0);
    assert_int_equal(f->lost, 1);
    struct watch_status status;
    watch_status(f->watch, &status);
    assert_int_equal(status.overflows, 1);
}

static void test_no_limit(void **state)
{
    struct fixture *f = *state;
    in_child(flood);
    struct watch_status status;
    watch_status(f->watch, &status);
    assert_true(status.behind_ns > 0);
    assert_int_equal(watch_drain(f->watch), 0);
    assert_int_equal(f->lost, world_mode() == WATCH_FANOTIFY ? 0 : 1);
}

/* --- draining by many ---------------------------------------------------------- */

#define WRITERS 2
#define DRAINERS 4
#define DRAINS 1000

/* What the writers have done, in memory that they share with us. */
struct progress {
    _Atomic unsigned done[WRITERS];
    atomic_bool stop;
};

struct crowd {
    struct watch *watch;
    struct progress *progress;
    _Atomic unsigned told[WRITERS]; /* the highest number reported */
    atomic_uint inside, lost;
    atomic_uint late;
};

static bool on_crowd_event(void *context, const struct watch_event *event)
{
    struct crowd *crowd = context;
    if (atomic_fetch_add(&crowd->inside, 1) != 0)
        abort(); /* two at once */
    char name[64] = "";
    unsigned writer, number;
    if (event->kinds & WATCH_ALL_LOST)
        crowd->lost++;
    if (event->name.len < sizeof name) {
        if (event->name.len)
            memcpy(name, event->name.data, event->name.len);
        /* The directory is new and its names nobody else's, so they are enough. */
        if (sscanf(name, "crowd-%u-%u", &writer, &number) == 2 && writer < WRITERS &&
            number > crowd->told[writer])
            crowd->told[writer] = number;
    }
    (void)atomic_fetch_sub(&crowd->inside, 1);
    return true;
}

static void *drainer_main(void *context)
{
    struct crowd *crowd = context;
    for (unsigned i = 0; i < DRAINS; i++) {
        unsigned before[WRITERS];
        for (unsigned n = 0; n < WRITERS; n++)
            before[n] = crowd->progress->done[n];
        if (watch_drain(crowd->watch) < 0)
            abort();
        for (unsigned n = 0; n < WRITERS; n++)
            crowd->late += crowd->told[n] < before[n];
    }
    return NULL;
}

static void writer_main(struct progress *progress, unsigned writer)
{
    char name[32];
    for (unsigned number = 1; !progress->stop; number++) {
        (void)snprintf(name, sizeof name, "crowd-%u-%u", writer, number);
        if (mknod(name, S_IFREG | 0644, 0))
            _exit(1);
        progress->done[writer] = number;
        if (unlink(name))
            _exit(1);
    }
    _exit(0);
}

static void test_many_drain_while_many_change(void **state)
{
    struct fixture *f = *state;
    struct crowd crowd = {
        .progress = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)};
    assert_true(crowd.progress != MAP_FAILED);
    const struct watch_events events = {.event = on_crowd_event, .context = &crowd};
    const struct watch_options options = fixture_options();
    struct failure failure;
    assert_int_equal(watch_new(f->root_fd, &options, &events, &crowd.watch, &failure), 0);
    assert_int_equal(watch_directory(crowd.watch, f->root_fd, 7), 0);
    assert_int_equal(watch_start(crowd.watch), 0);
    pid_t writers[WRITERS];
    for (unsigned n = 0; n < WRITERS; n++) {
        writers[n] = fork_child();
        if (writers[n] == 0)
            writer_main(crowd.progress, n);
    }
    for (unsigned n = 0; n < WRITERS; n++)
        while (crowd.progress->done[n] < 10)
            (void)sched_yield();
    pthread_t drainers[DRAINERS];
    for (unsigned n = 0; n < DRAINERS; n++)
        assert_int_equal(pthread_create(&drainers[n], NULL, drainer_main, &crowd), 0);
    for (unsigned n = 0; n < DRAINERS; n++)
        assert_int_equal(pthread_join(drainers[n], NULL), 0);
    crowd.progress->stop = true;
    for (unsigned n = 0; n < WRITERS; n++) {
        int status;
        assert_int_equal(waitpid(writers[n], &status, 0), writers[n]);
        assert_int_equal(status, 0);
    }
    assert_int_equal(crowd.lost, 0);
    assert_int_equal(crowd.late, 0);
    watch_free(crowd.watch);
    (void)munmap(crowd.progress, 4096);
}

/* A drain that is held up in an event, and one that was asked for meanwhile. */
struct held {
    struct watch *watch;
    pthread_mutex_t gate; /* held by the test while the event waits */
    atomic_bool waits, told;
    atomic_uint inside;
};

static bool on_held_event(void *context, const struct watch_event *event)
{
    struct held *held = context;
    if (atomic_fetch_add(&held->inside, 1) != 0)
        abort();
    if (bytes_equal(event->name, bytes_of_string("x")) && !held->waits) {
        held->waits = true;
        (void)pthread_mutex_lock(&held->gate);
        (void)pthread_mutex_unlock(&held->gate);
    }
    if (bytes_equal(event->name, bytes_of_string("late")))
        held->told = true;
    (void)atomic_fetch_sub(&held->inside, 1);
    return true;
}

static void *held_main(void *context)
{
    struct held *held = context;
    return watch_drain(held->watch) == 0 && held->told ? held : NULL;
}

static int make_late(void)
{
    return mknod("late", S_IFREG | 0644, 0);
}

static void wait_until_asked(struct watch *watch, uint64_t count)
{
    for (uint64_t asked = 0; asked < count; (void)sched_yield()) {
        (void)pthread_mutex_lock(&watch->lock);
        asked = watch->asked;
        (void)pthread_mutex_unlock(&watch->lock);
    }
}

static void test_a_drain_that_began_before_is_not_enough(void **state)
{
    struct fixture *f = *state;
    struct held held = {.gate = PTHREAD_MUTEX_INITIALIZER};
    const struct watch_events events = {.event = on_held_event, .context = &held};
    const struct watch_options options = fixture_options();
    struct failure failure;
    assert_int_equal(watch_new(f->root_fd, &options, &events, &held.watch, &failure), 0);
    assert_int_equal(watch_directory(held.watch, f->root_fd, 7), 0);
    in_child(make_file);
    (void)pthread_mutex_lock(&held.gate);
    pthread_t before, after[3];
    assert_int_equal(pthread_create(&before, NULL, held_main, &held), 0);
    while (!held.waits)
        (void)sched_yield();
    in_child(make_late);
    for (unsigned n = 0; n < ARRAY_SIZE(after); n++)
        assert_int_equal(pthread_create(&after[n], NULL, held_main, &held), 0);
    wait_until_asked(held.watch, 1 + ARRAY_SIZE(after));
    (void)pthread_mutex_unlock(&held.gate);
    assert_int_equal(pthread_join(before, NULL), 0);
    for (unsigned n = 0; n < ARRAY_SIZE(after); n++) {
        void *told;
        assert_int_equal(pthread_join(after[n], &told), 0);
        assert_ptr_equal(told, &held);
    }
    watch_free(held.watch);
}

/* --- the thread ---------------------------------------------------------------- */

struct waiter {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool seen;
};

static bool on_awaited_event(void *context, const struct watch_event *event)
{
    struct waiter *waiter = context;
    if (!bytes_equal(event->name, bytes_of_string("x")))
        return false;
    (void)pthread_mutex_lock(&waiter->lock);
    waiter->seen = true;
    (void)pthread_cond_signal(&waiter->changed);
    (void)pthread_mutex_unlock(&waiter->lock);
    return true;
}

/* With its thread, and the root watched. */
static struct watch *started(struct fixture *f, const struct watch_events *events)
{
    const struct watch_options options = fixture_options();
    struct failure failure;
    struct watch *watch;
    assert_int_equal(watch_new(f->root_fd, &options, events, &watch, &failure), 0);
    assert_int_equal(watch_directory(watch, f->root_fd, 7), 0);
    assert_int_equal(watch_start(watch), 0);
    return watch;
}

static void test_thread(void **state)
{
    struct fixture *f = *state;
    struct waiter waiter = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    const struct watch_events events = {.event = on_awaited_event, .context = &waiter};
    struct watch *watch = started(f, &events);
    for (unsigned round = 0; round < 20; round++) {
        waiter.seen = false;
        in_child(make_file);
        struct timespec deadline;
        (void)clock_gettime(CLOCK_REALTIME, &deadline);
        deadline.tv_sec += WAIT_S;
        int e = 0;
        (void)pthread_mutex_lock(&waiter.lock);
        while (!waiter.seen && e == 0)
            e = pthread_cond_timedwait(&waiter.changed, &waiter.lock, &deadline);
        (void)pthread_mutex_unlock(&waiter.lock);
        assert_int_equal(e, 0);
        assert_int_equal(watch_drain(watch), 0);
    }
    watch_free(watch);
    /* And stopped at once after the start, or with changes under way. */
    for (unsigned round = 0; round < 20; round++) {
        watch = started(f, &events);
        if (round & 1)
            in_child(make_file);
        watch_free(watch);
    }
}

/* How many files another process makes, and for how long about, while nobody does anything else. */
#define OTHERS 3000
#define OTHERS_PAUSE_NS 100000

static int make_many(void)
{
    for (unsigned i = 0; i < OTHERS; i++) {
        if (make_file() < 0 || unlink("x") < 0)
            return -1;
        (void)nanosleep(&(struct timespec){.tv_nsec = OTHERS_PAUSE_NS}, NULL);
    }
    return 0;
}

static bool on_nothing(void *context, const struct watch_event *event)
{
    bool *wanted = context;
    return *wanted;
}

/* How often the thread is awake for it, in a second. */
static double pace(struct fixture *f, bool wanted)
{
    const struct watch_events events = {.event = on_nothing, .context = &wanted};
    struct watch *watch = started(f, &events);
    uint64_t begun = clock_monotonic_ns();
    in_child(make_many);
    double seconds = (double)(clock_monotonic_ns() - begun) / NSEC_PER_SEC;
    assert_int_equal(pthread_mutex_lock(&watch->lock), 0);
    double drains = (double)watch->asked;
    assert_int_equal(pthread_mutex_unlock(&watch->lock), 0);
    watch_free(watch);
    return drains / seconds;
}

static void test_what_nobody_wants_is_taken_slowly(void **state)
{
    const double most = 1000.0 / 8 + 20; /* each rest is 8 ms, but for the first ones */
    double slow = pace(*state, false), fast = pace(*state, true);
    /* What others do on the filesystem meanwhile may be too much to be left for long. */
    for (unsigned tries = 0; slow >= most && tries < 5; tries++)
        slow = pace(*state, false);
    print_message("awake %.0f times a second; if somebody wants them, %.0f\n", slow, fast);
    assert_true(slow < most && slow < fast);
}

/* --- names --------------------------------------------------------------------- */

/* The longest, with every byte there can be. */
static void longest_name(char name[256])
{
    for (unsigned i = 0; i < 255; i++)
        name[i] = (char)(i + 1 == '/' ? '_' : i + 1);
    name[255] = 0;
}

static int make_longest(void)
{
    char name[256];
    longest_name(name);
    return mknod(name, S_IFREG | 0644, 0);
}

static void test_longest_name(void **state)
{
    struct fixture *f = *state;
    char name[256];
    in_child(make_longest);
    assert_int_equal(watch_drain(f->watch), 0);
    longest_name(name);
    assert_int_equal(count_named(f, f->root, name, WATCH_NAME), 1);
}

/* --- directories --------------------------------------------------------------- */

static size_t events_in_sub(struct fixture *f)
{
    f->count = 0;
    in_child(touch_sub_file);
    assert_int_equal(watch_drain(f->watch), 0);
    return f->count;
}

static void test_directories_are_counted(void **state)
{
    struct fixture *f = *state;
    bool fanotify = world_mode() == WATCH_FANOTIFY;
    in_child(make_sub);
    in_child(make_file_in_sub);
    uint64_t sub = number_of("sub");
    watch_path(f, "sub");
    watch_path(f, "sub");
    assert_true(events_in_sub(f) > 0);
    watch_forget_directory(f->watch, sub);
    assert_true(events_in_sub(f) > 0);
    /* What is still in the queue when the directory is forgotten is not reported. */
    in_child(touch_sub_file);
    watch_forget_directory(f->watch, sub);
    f->count = 0;
    assert_int_equal(watch_drain(f->watch), 0);
    assert_int_equal(f->count > 0, fanotify);
    assert_int_equal(events_in_sub(f) > 0, fanotify);
    watch_forget_directory(f->watch, sub); /* of nobody */
    watch_path(f, "sub");
    assert_true(events_in_sub(f) > 0);
}

static int remove_sub(void)
{
    return system("rm -r sub");
}

static void test_removed_directory(void **state)
{
    struct fixture *f = *state;
    bool fanotify = world_mode() == WATCH_FANOTIFY;
    in_child(make_sub);
    uint64_t sub = number_of("sub");
    watch_path(f, "sub");
    settle(f);
    in_child(remove_sub);
    assert_int_equal(watch_drain(f->watch), 0);
    assert_int_not_equal(count_named(f, f->root, "sub", WATCH_NAME), 0);
    assert_int_equal(count_target(f, sub, WATCH_UNWATCHED), fanotify ? 0 : 1);
    struct watch_status status;
    watch_status(f->watch, &status);
    assert_int_equal(status.directories, fanotify ? 0 : 1);
    /* The key can be used for another, and both uses are given back. */
    in_child(make_sub);
    in_child(make_file_in_sub);
    _cleanup_close_ int fd = open("sub", O_PATH | O_CLOEXEC);
    assert_int_equal(watch_directory(f->watch, fd, sub), 0);
    know(f, number_of("sub"));
    assert_true(events_in_sub(f) > 0);
    watch_forget_directory(f->watch, sub);
    assert_true(events_in_sub(f) > 0);
    watch_forget_directory(f->watch, sub);
    assert_int_equal(events_in_sub(f) > 0, fanotify);
}

static void test_one_key_for_a_directory(void **state)
{
    struct fixture *f = *state;
    if (world_mode() == WATCH_FANOTIFY)
        return; /* keys mean nothing */
    in_child(make_sub);
    in_child(make_file_in_sub);
    _cleanup_close_ int fd = open("sub", O_PATH | O_CLOEXEC);
    assert_int_equal(watch_directory(f->watch, fd, f->root), -EEXIST);
    assert_int_equal(watch_directory(f->watch, f->root_fd, 5), -EEXIST);
    /* Neither has changed what there was. */
    watch_path(f, "sub");
    assert_true(events_in_sub(f) > 0);
    in_child(make_file);
    assert_int_equal(watch_drain(f->watch), 0);
    assert_int_not_equal(count_named(f, f->root, "x", WATCH_NAME), 0);
    watch_forget_directory(f->watch, 5);
    watch_forget_directory(f->watch, f->root);
    assert_int_equal(watch_directory(f->watch, f->root_fd, 5), 0);
}

/* Keeps a directory watched and not in turn, while it and what is in it come and go. */
static void test_watches_come_and_go(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(watch_start(f->watch), 0);
    pid_t pid = fork_child();
    if (pid == 0)
        for (;;)
            (void)(make_sub() | make_file_in_sub() | touch_sub_file() | unlink("sub/x") |
                   rmdir("sub"));
    for (unsigned watched = 0; watched < 1000;) {
        _cleanup_close_ int fd = open("sub", O_PATH | O_CLOEXEC);
        if (fd < 0)
            continue;
        uint64_t sub;
        assert_int_equal(file_handle_hash_at(fd, "", &sub), 0);
        assert_int_equal(watch_directory(f->watch, fd, sub), 0);
        watched++;
        watch_forget_directory(f->watch, sub);
    }
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    assert_int_equal(watch_drain(f->watch), 0);
    struct watch_status status;
    watch_status(f->watch, &status);
    assert_int_equal(status.directories, world_mode() == WATCH_FANOTIFY ? 0 : 1);
}

static void test_refused_directories(void **state)
{
    struct fixture *f = *state;
    in_child(make_sub);
    in_child(make_file_in_sub);
    _cleanup_close_ int other = open("/proc/self", O_PATH | O_CLOEXEC);
    _cleanup_close_ int file = open("sub/x", O_PATH | O_CLOEXEC);
    if (world_mode() == WATCH_FANOTIFY) {
        assert_int_equal(watch_directory(f->watch, other, 1), -EXDEV);
        return;
    }
    assert_int_equal(watch_directory(f->watch, file, 1), -ENOTDIR);
    assert_int_equal(watch_directory(f->watch, -1, 1), -ENOENT);
    if (world_is_user()) {
        _cleanup_close_ int fd = open("sub", O_PATH | O_CLOEXEC);
        assert_int_equal(chmod("sub", 0300), 0);
        assert_int_equal(watch_directory(f->watch, fd, 1), -EACCES);
        assert_int_equal(chmod("sub", 0700), 0);
    }
}

/* In a user namespace, whose limit of watches is its own. */
static int reach_limit(void)
{
    _cleanup_close_ int limit = open("/proc/sys/user/max_inotify_watches", O_WRONLY | O_CLOEXEC);
    if (limit < 0 || write(limit, "3", 1) != 1)
        return -1;
    struct watch *watch;
    struct failure failure;
    const struct watch_options options = {.mode = WATCH_INOTIFY};
    const struct watch_events events = {0};
    _cleanup_close_ int root = open(".", O_PATH | O_CLOEXEC);
    if (watch_new(root, &options, &events, &watch, &failure) < 0)
        return -1;
    int r = 0;
    char name[] = "0";
    for (unsigned i = 1; i <= 5; i++, name[0]++) {
        if (mkdir(name, 0755) < 0)
            return -1;
        _cleanup_close_ int fd = open(name, O_PATH | O_CLOEXEC);
        r |= watch_directory(watch, fd, i) != (i <= 3 ? 0 : -ENOSPC);
        /* One given back is one to be had. */
        if (i == 4) {
            watch_forget_directory(watch, 1);
            r |= watch_directory(watch, fd, i) != 0;
        }
    }
    struct watch_status status;
    watch_status(watch, &status);
    r |= status.directories != 3;
    watch_free(watch);
    return r;
}

/* Not unshare, which is for processes of one thread, and sanitisers have their own. */
static int in_user_namespace(void)
{
    int status;
    long pid = syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, NULL, NULL, NULL, NULL);
    if (pid == 0)
        _exit(reach_limit() == 0 ? 0 : 1);
    return pid < 0 || waitpid((pid_t)pid, &status, 0) != pid || status != 0;
}

static void test_limit_of_watches(void **state)
{
    if (world_mode() == WATCH_INOTIFY)
        in_child(in_user_namespace);
}

/* --- the choice of the mode ---------------------------------------------------- */

static int new_auto(enum watch_mode *ret)
{
    const struct watch_options options = {.mode = WATCH_AUTO};
    const struct watch_events events = {0};
    struct failure failure;
    struct watch *watch;
    _cleanup_close_ int root = open(".", O_PATH | O_CLOEXEC);
    int r = watch_new(root, &options, &events, &watch, &failure);
    if (r < 0)
        return r;
    *ret = watch_mode(watch);
    watch_free(watch);
    return 0;
}

static int without(int call, const struct scmp_arg_cmp *argument, int error)
{
    scmp_filter_ctx filter = seccomp_init(SCMP_ACT_ALLOW);
    int r = filter ? 0 : -ENOMEM;
    if (r == 0)
        r = seccomp_rule_add_array(filter, SCMP_ACT_ERRNO((uint32_t)error), call, argument ? 1 : 0,
                                   argument);
    if (r == 0)
        r = seccomp_load(filter);
    seccomp_release(filter);
    enum watch_mode mode;
    return r < 0 ? r : new_auto(&mode) || mode != WATCH_INOTIFY;
}

static int without_fanotify(void)
{
    return without(SCMP_SYS(fanotify_init), NULL, ENOSYS);
}

static int without_targets(void)
{
    const struct scmp_arg_cmp targets =
        SCMP_A0(SCMP_CMP_MASKED_EQ, FAN_REPORT_TARGET_FID, FAN_REPORT_TARGET_FID);
    return without(SCMP_SYS(fanotify_init), &targets, EINVAL);
}

static int without_marks(void)
{
    return without(SCMP_SYS(fanotify_mark), NULL, EOPNOTSUPP);
}

static int without_handles(void)
{
    return without(SCMP_SYS(name_to_handle_at), NULL, EOPNOTSUPP);
}

/* The mark is said to be made, and nothing comes. */
static int with_silent_marks(void)
{
    return without(SCMP_SYS(fanotify_mark), NULL, 0);
}

static void test_choice_of_mode(void **state)
{
    enum watch_mode mode;
    assert_int_equal(new_auto(&mode), 0);
    assert_int_equal(mode, world_is_user() ? WATCH_INOTIFY : WATCH_FANOTIFY);
    in_child(without_fanotify);
    in_child(without_targets);
    in_child(without_marks);
    in_child(without_handles);
    in_child(with_silent_marks);
    assert_int_equal(system("test -z \"$(ls -A)\""), 0); /* what was tried left nothing */
}

/* --- bad bytes ----------------------------------------------------------------- */

static size_t real_events(uint8_t *raw, size_t size)
{
    struct failure failure;
    const struct watch_options options = {.mode = WATCH_FANOTIFY};
    const struct watch_events events = {0};
    struct watch *watch;
    _cleanup_close_ int root = open(".", O_PATH | O_CLOEXEC);
    assert_int_equal(watch_new(root, &options, &events, &watch, &failure), 0);
    in_child(make_file);
    ssize_t len = read(watch->fd, raw, size);
    assert_true(len > 0);
    watch_free(watch);
    return (size_t)len;
}

/* Parses a copy that ends where its memory does, so that a sanitiser sees a step beyond. */
static unsigned parse(const uint8_t *data, size_t len, unsigned *ret_events)
{
    _cleanup_free_ uint8_t *copy = malloc(len ? len : 1);
    assert_non_null(copy);
    memcpy(copy, data, len);
    struct bytes raw = bytes_of(copy, len);
    struct watch_event event;
    pid_t pid;
    unsigned lost = 0;
    *ret_events = 0;
    for (size_t before = SIZE_MAX; fanotify_next(&raw, &event, &pid); before = raw.len) {
        assert_true(raw.len < before);
        for (size_t i = 0; i < event.name.len; i++)
            assert_int_not_equal(event.name.data[i], 0);
        lost += event.kinds == WATCH_ALL_LOST;
        ++*ret_events;
    }
    return lost;
}

static void test_bad_bytes(void **state)
{
    if (world_mode() != WATCH_FANOTIFY)
        return;
    uint8_t raw[2048], bad[4096];
    size_t len = real_events(raw, sizeof raw);
    unsigned all, events;
    assert_int_equal(parse(raw, len, &all), 0);
    assert_true(all > 0);
    /* Cut within the first event: lost; nothing at all: nothing. */
    struct fanotify_event_metadata first;
    memcpy(&first, raw, sizeof first);
    for (size_t cut = 1; cut < first.event_len; cut++)
        assert_int_equal(parse(raw, cut, &events), 1);
    assert_int_equal(parse(raw, 0, &events), 0);
    /* What comes after an overflow is not lost. */
    first = (struct fanotify_event_metadata){.event_len = sizeof first,
                                             .vers = FANOTIFY_METADATA_VERSION,
                                             .metadata_len = sizeof first,
                                             .mask = FAN_Q_OVERFLOW,
                                             .fd = FAN_NOFD};
    memcpy(bad, &first, sizeof first);
    assert_true(len + sizeof first <= sizeof bad);
    memcpy(bad + sizeof first, raw, len);
    assert_int_equal(parse(bad, sizeof first + len, &events), 1);
    assert_int_equal(events, 1 + all);
    unsigned seed = 1, lost = 0;
    for (unsigned i = 0; i < 100000; i++) {
        memcpy(bad, raw, len);
        for (unsigned n = 0; n < 1 + i % 3; n++)
            bad[(unsigned)rand_r(&seed) % len] = (uint8_t)rand_r(&seed);
        lost += parse(bad, len, &events);
    }
    assert_true(lost > 0);
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, fixture_setup, fixture_teardown)

int main(int argc, char **argv)
{
    world(argc, argv);
    const struct CMUnitTest tests[] = {
        TEST(test_own_changes_and_others_in_turn),
        TEST(test_own_names),
        TEST(test_overflow),
        TEST(test_no_limit),
        TEST(test_many_drain_while_many_change),
        TEST(test_a_drain_that_began_before_is_not_enough),
        TEST(test_thread),
        TEST(test_what_nobody_wants_is_taken_slowly),
        TEST(test_longest_name),
        TEST(test_directories_are_counted),
        TEST(test_removed_directory),
        TEST(test_one_key_for_a_directory),
        TEST(test_watches_come_and_go),
        TEST(test_refused_directories),
        TEST(test_limit_of_watches),
        TEST(test_choice_of_mode),
        TEST(test_bad_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#include "watch_fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"

static enum watch_mode mode;
static bool on_tmpfs, as_user;
static const char *above = "/tmp";

void world(int argc, char **argv)
{
    (void)alarm(TEST_SECONDS);
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "fanotify") == 0)
            mode = WATCH_FANOTIFY;
        else if (strcmp(argv[i], "inotify") == 0)
            mode = WATCH_INOTIFY;
        else if (strcmp(argv[i], "tmpfs") == 0)
            on_tmpfs = true;
        else if (strcmp(argv[i], "user") == 0)
            as_user = true;
        else
            abort();
    }
    /* The mount goes with the process. */
    if (on_tmpfs && getuid() != 0)
        above = "/dev/shm";
    else if (on_tmpfs &&
             (unshare(CLONE_NEWNS) < 0 || mount("", "/", "", MS_REC | MS_PRIVATE, "") < 0 ||
              mount("watch", "/tmp", "tmpfs", 0, "mode=1777") < 0)) {
        perror("tmpfs");
        abort();
    }
    const gid_t group = 65534;
    if (as_user && getuid() == 0 &&
        (setgroups(1, &group) < 0 || setgid(group) < 0 || setuid(65534) < 0))
        abort();
    as_user = getuid() != 0;
}

enum watch_mode world_mode(void)
{
    return mode;
}

bool world_is_user(void)
{
    return as_user;
}

struct watch_options fixture_options(void)
{
    return (struct watch_options){.mode = mode};
}

static bool is_known(const struct fixture *f, uint64_t number)
{
    for (size_t i = 0; i < f->known_count; i++)
        if (f->known[i] == number)
            return number != 0;
    return false;
}

static bool keep(void *context, const struct watch_event *event)
{
    struct fixture *f = context;
    if (event->kinds & WATCH_ALL_LOST) {
        assert_int_equal(event->kinds, WATCH_ALL_LOST);
        f->lost++;
        return true;
    }
    /* fanotify tells of the whole filesystem. */
    if ((!is_known(f, event->dir) && !is_known(f, event->target)) || f->count == KEPT_MAX)
        return false;
    struct kept_event *e = &f->events[f->count++];
    *e = (struct kept_event){.dir = event->dir,
                             .target = event->target,
                             .kinds = event->kinds,
                             .directory = event->directory};
    assert_true(event->name.len < sizeof e->name);
    if (event->name.len)
        memcpy(e->name, event->name.data, event->name.len);
    return true;
}

void fixture_watch(struct fixture *f, const struct watch_options *options)
{
    if (f->watch)
        watch_free(f->watch);
    f->watch = NULL;
    f->count = f->lost = f->known_count = 0;
    const struct watch_events events = {.event = keep, .context = f};
    struct failure failure = {0};
    if (watch_new(f->root_fd, options, &events, &f->watch, &failure) < 0)
        fail_msg("%s", failure.text);
    if (options->mode != WATCH_AUTO)
        assert_int_equal(watch_mode(f->watch), options->mode);
    watch_path(f, "");
}

int fixture_setup(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    (void)snprintf(f->directory, sizeof f->directory, "%s/watch-XXXXXX", above);
    assert_non_null(mkdtemp(f->directory));
    f->root_fd = open(f->directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(f->root_fd >= 0);
    assert_int_equal(fchdir(f->root_fd), 0);
    f->root = number_of("");
    const struct watch_options options = fixture_options();
    fixture_watch(f, &options);
    *state = f;
    return 0;
}

int fixture_teardown(void **state)
{
    struct fixture *f = *state;
    watch_free(f->watch);
    close_fd(&f->root_fd);
    char command[128];
    assert_int_equal(chdir("/"), 0);
    (void)snprintf(command, sizeof command, "rm -rf %s", f->directory);
    assert_int_equal(system(command), 0);
    free(f);
    return 0;
}

uint64_t number_of(const char *path)
{
    uint64_t number;
    assert_int_equal(file_handle_hash_at(AT_FDCWD, path[0] ? path : ".", &number), 0);
    return number;
}

void know(struct fixture *f, uint64_t number)
{
    assert_true(f->known_count < ARRAY_SIZE(f->known));
    f->known[f->known_count++] = number;
}

void watch_path(struct fixture *f, const char *path)
{
    _cleanup_close_ int fd = open(path[0] ? path : ".", O_PATH | O_DIRECTORY | O_CLOEXEC);
    assert_true(fd >= 0);
    uint64_t number = number_of(path);
    assert_int_equal(watch_directory(f->watch, fd, number), 0);
    know(f, number);
}

pid_t fork_child(void)
{
    pid_t parent = getpid(), pid = fork();
    assert_true(pid >= 0);
    if (pid == 0 && (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || getppid() != parent))
        _exit(1);
    return pid;
}

void in_child(int (*change)(void))
{
    pid_t pid = fork_child();
    if (pid == 0) {
        errno = 0;
        int r = change();
        if (r != 0)
            perror("the child");
        _exit(r == 0 ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

void settle(struct fixture *f)
{
    assert_int_equal(watch_drain(f->watch), 0);
    f->count = 0;
}

size_t count_named(const struct fixture *f, uint64_t dir, const char *name, uint32_t kinds)
{
    size_t count = 0;
    for (size_t i = 0; i < f->count; i++)
        if (f->events[i].dir == dir && strcmp(f->events[i].name, name) == 0 &&
            (f->events[i].kinds & kinds) == kinds)
            count++;
    return count;
}

size_t count_target(const struct fixture *f, uint64_t target, uint32_t kinds)
{
    size_t count = 0;
    for (size_t i = 0; i < f->count; i++)
        if (f->events[i].target == target && (f->events[i].kinds & kinds) == kinds)
            count++;
    return count;
}

void print_events(const struct fixture *f)
{
    for (size_t i = 0; i < f->count; i++)
        print_message("    dir %016llx '%s' target %016llx kinds %#x%s\n",
                      (unsigned long long)f->events[i].dir, f->events[i].name,
                      (unsigned long long)f->events[i].target, f->events[i].kinds,
                      f->events[i].directory ? " directory" : "");
}

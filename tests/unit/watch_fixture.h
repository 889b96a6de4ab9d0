/* A watch on a directory of its own, whose events are kept. Changes are made by children, so that
 * they are another process's; when one has been waited for, all it did is in the queue. The
 * program's arguments choose the world: "fanotify" or "inotify"; "tmpfs" (of its own if it can,
 * else what /tmp is on); "user" (an ordinary user). */
#pragma once

#include "unit.h"

#include <stdbool.h>
#include <sys/types.h>

#include "watch/file_handle.h"
#include "watch/watch.h"

/* No test may hang: far above what any needs on a busy machine. */
#define TEST_SECONDS 100

#define KEPT_MAX 4096

struct kept_event {
    uint64_t dir, target;
    uint32_t kinds;
    bool directory;
    char name[256];
};

struct fixture {
    char directory[64]; /* removed at the end; the tests' working directory */
    int root_fd;
    uint64_t root; /* number of the directory */
    struct watch *watch;
    struct kept_event events[KEPT_MAX];
    size_t count; /* of events kept: those of directories and files that were asked for */
    size_t lost;  /* WATCH_ALL_LOST */
    uint64_t known[64];
    size_t known_count;
};

void world(int argc, char **argv);
enum watch_mode world_mode(void);
bool world_is_user(void);

int fixture_setup(void **state);
int fixture_teardown(void **state);
/* Instead of the one there is. */
void fixture_watch(struct fixture *f, const struct watch_options *options);
struct watch_options fixture_options(void);

/* The number of a file by path, or of the working directory for "". */
uint64_t number_of(const char *path);
/* Watches a directory, and keeps its events from now on. */
void watch_path(struct fixture *f, const char *path);
/* Keeps events of this number. */
void know(struct fixture *f, uint64_t number);

/* fork, of a child that does not outlive the test. */
pid_t fork_child(void);

/* Runs `change` in a child that must return 0, and waits for it. */
void in_child(int (*change)(void));
/* Drains, and forgets all events. */
void settle(struct fixture *f);

/* How many events of name in dir, or of target, have all these kinds. */
size_t count_named(const struct fixture *f, uint64_t dir, const char *name, uint32_t kinds);
size_t count_target(const struct fixture *f, uint64_t target, uint32_t kinds);
void print_events(const struct fixture *f);

/* Every message that touches files, while somebody swaps the directories and files it works on
 * with links to the outside, moves them to another workspace, or puts FIFOs, sockets and devices
 * in the place of files. */
#include "race_messages.h"

#include "canary.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "store/trash.h"

/* Each message so often in each race, but for no longer than BERTH_RACE_SECONDS, else this. */
#define ROUNDS 2000
#define RACE_SECONDS 1
#define ROUNDS_LEAST 12
#define REMOVALS 1000

static const char *const outside_files[] = {RACE_OUTSIDE_FILES};

/* A message added to the table is raced here, or said to name no file. */
static void test_every_message(void **state)
{
    for (size_t i = 0; i < wire_row_count(); i++) {
        const struct wire_row *row = wire_row_at(i);
        if (!(row->from & WIRE_FROM_CLIENT) ||
            (row->class != WIRE_CLASS_REQUEST && row->class != WIRE_CLASS_NOTICE))
            continue;
        if (!race_covers(row->type))
            fail_msg("no race for %s", row->name);
    }
}

/* All the names that messages use, in a directory outside. */
static void fill_outside(struct canaries *c, const char *directory)
{
    for (size_t i = 0; i < ARRAY_SIZE(outside_files); i++)
        canary_make_file(c, directory, outside_files[i]);
    char path[256];
    assert_true(snprintf(path, sizeof path, "%s/" RACE_OUTSIDE_DIRECTORY, directory) <
                (int)sizeof path);
    assert_int_equal(mkdir(path, 0755), 0);
    canary_note_directory(c, path);
}

/* --- the attackers ----------------------------------------------------------------------- */

enum attacker {
    SWAP_OUTER,  /* d with a link to the outside */
    SWAP_INNER,  /* d/e with one */
    SWAP_FILE,   /* d/e/victim with a link to a file outside */
    MOVE_OUT,    /* d/e to another workspace and back */
    SWAP_FIFO,   /* d/e/victim with a FIFO that has a reader */
    SWAP_BARE,   /* with a FIFO that has none: an open of it waits */
    SWAP_SOCKET, /* with a socket */
    SWAP_DEVICE, /* with a device */
};

struct swapper {
    pthread_t thread;
    enum attacker kind;
    int tree_fd, other_fd;
    atomic_bool stop;
    unsigned long count;
};

static void *swap(void *context)
{
    static const char *const pairs[][2] = {
        [SWAP_OUTER] = {"d", "link"},
        [SWAP_INNER] = {"d/e", "d/link"},
        [SWAP_FILE] = {"d/e/victim", "d/e/swap"},
        [SWAP_FIFO] = {"d/e/victim", "d/e/swap"},
        [SWAP_BARE] = {"d/e/victim", "d/e/swap"},
        [SWAP_SOCKET] = {"d/e/victim", "d/e/swap"},
        [SWAP_DEVICE] = {"d/e/victim", "d/e/swap"},
    };
    struct swapper *s = context;
    while (!atomic_load(&s->stop) || s->count % 2 == 1) {
        if (s->kind == MOVE_OUT) {
            assert_int_equal(renameat(s->tree_fd, "d/e", s->other_fd, "e"), 0);
            assert_int_equal(renameat(s->other_fd, "e", s->tree_fd, "d/e"), 0);
            s->count++;
        } else {
            const char *const *pair = pairs[s->kind];
            assert_int_equal(renameat2(s->tree_fd, pair[0], s->tree_fd, pair[1], RENAME_EXCHANGE),
                             0);
        }
        s->count++;
    }
    return NULL;
}

/* What takes the victim's place. */
static void make_swap(struct fixture *f, enum attacker kind, const char *outside,
                      struct canaries *c, int *ret_reader)
{
    char path[4096], target[512];
    (void)tree_path(f, "d/e/swap", path);
    switch (kind) {
    case SWAP_OUTER:
        assert_int_equal(symlink(outside, tree_path(f, "link", path)), 0);
        return;
    case SWAP_INNER:
        assert_true(snprintf(target, sizeof target, "%s/e", outside) < (int)sizeof target);
        assert_int_equal(symlink(target, tree_path(f, "d/link", path)), 0);
        return;
    case SWAP_FILE:
        assert_true(snprintf(target, sizeof target, "%s/e/victim", outside) < (int)sizeof target);
        assert_int_equal(symlink(target, path), 0);
        return;
    case MOVE_OUT:
        return;
    case SWAP_FIFO:
    case SWAP_BARE:
        assert_int_equal(mkfifo(path, 0666), 0);
        if (kind == SWAP_FIFO) /* so that opening it to write succeeds */
            *ret_reader = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
        break;
    case SWAP_SOCKET: {
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        /* Addresses are short. */
        int directory = open(tree_path(f, "d/e", path), O_PATH | O_CLOEXEC);
        (void)snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d/swap",
                       directory);
        assert_int_equal(bind(fd, (const struct sockaddr *)&address, sizeof address), 0);
        (void)close(directory);
        (void)close(fd);
        (void)tree_path(f, "d/e/swap", path);
        break;
    }
    case SWAP_DEVICE:
        /* Opened, it would take a terminal; and as /dev/null does, it opens for everybody. */
        assert_int_equal(mknod(path, S_IFCHR | 0666, makedev(1, 3)), 0);
        break;
    }
    canary_watch(c, path, IN_OPEN | IN_CLOSE); /* its attributes may be changed */
}

/* --- the race ---------------------------------------------------------------------------- */

static void make_directory(char path[256], const char *parent, const char *name)
{
    assert_true(snprintf(path, 256, "%s/%s", parent, name) < 256);
    assert_int_equal(mkdir(path, 0755), 0);
}

static void race(struct fixture *f, enum attacker kind)
{
    char outside[256], inner[256], path[4096], other[256];
    struct canaries c;
    canaries_open(&c);
    assert_int_equal(t_create_workspace(f, "other"), 0);
    (void)snprintf(other, sizeof other, "%.150s/workspaces/other/tree", f->root);
    make_directory(outside, f->directory, "outside");
    make_directory(inner, outside, "e");
    fill_outside(&c, outside);
    fill_outside(&c, inner);
    fill_outside(&c, other); /* but the attacker may move things there */
    canary_note_directory(&c, outside);
    canary_note_directory(&c, inner);

    struct race_scene s = {.f = f};
    s.d = (uint64_t)t_mkdir(f, f->demo, "d");
    s.e = (uint64_t)t_mkdir(f, s.d, "e");
    make_file(f, "d/e/victim", "inside");
    int64_t victim = t_lookup(f, s.e, "victim");
    assert_true(victim > 0);
    s.victim = (uint64_t)victim;
    int reader = -1;
    make_swap(f, kind, outside, &c, &reader);
    canaries_check_quiet(&c);

    struct swapper swapper = {.kind = kind};
    swapper.tree_fd = open(f->tree, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    swapper.other_fd = open(other, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_int_equal(pthread_create(&swapper.thread, NULL, swap, &swapper), 0);
    size_t kinds = 0;
    const char *seconds = getenv("BERTH_RACE_SECONDS");
    uint64_t end = clock_monotonic_ns() +
                   (seconds ? strtoull(seconds, NULL, 10) : RACE_SECONDS) * NSEC_PER_SEC;
    /* Where each swap is noticed as well, requests that miss wait for that. */
    for (; s.round < ROUNDS_LEAST || (s.round < ROUNDS && clock_monotonic_ns() < end); s.round++)
        for (kinds = 0; race_message(&s, kinds); kinds++)
            if (s.round % 4 < 3)
                drop_descriptors(f); /* so that the next walks */
    atomic_store(&swapper.stop, true);
    (void)pthread_join(swapper.thread, NULL);
    print_message("%u rounds of %zu messages, %lu swaps: %u answered, %u refused\n", s.round, kinds,
                  swapper.count, s.answered, s.refused);
    assert_true(swapper.count > s.round);
    /* It did meet both. */
    assert_true(s.answered > s.round && s.refused > s.round);

    canaries_check(&c);
    if (kind == SWAP_FIFO || kind == SWAP_BARE || kind == SWAP_DEVICE)
        canaries_check_told(&c, tree_path(f, "d/e/swap", path));
    (void)close(swapper.tree_fd);
    (void)close(swapper.other_fd);
    canaries_close(&c);
    if (reader >= 0)
        (void)close(reader);
    /* Of the other workspace: its canaries, and nothing else. */
    for (size_t i = 0; i < ARRAY_SIZE(outside_files); i++) {
        (void)snprintf(path, sizeof path, "%s/%s", other, outside_files[i]);
        assert_int_equal(unlink(path), 0);
    }
    (void)snprintf(path, sizeof path, "%s/" RACE_OUTSIDE_DIRECTORY, other);
    assert_int_equal(rmdir(path), 0);
    assert_true(directory_empty(other));
}

static void make_path(char path[256], const char *directory, const char *name)
{
    (void)snprintf(path, 256, "%s/%s", directory, name);
}

/* Swaps the workspace's tree with a link to the outside, as long as there is one: through a
 * descriptor, since a workspace that is removed is moved away first. */
static void *swap_doomed(void *context)
{
    struct swapper *s = context;
    while (!atomic_load(&s->stop)) {
        int fd = openat(s->tree_fd, "doomed", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        while (!atomic_load(&s->stop) && fd >= 0 &&
               renameat2(fd, "tree", fd, "link", RENAME_EXCHANGE) == 0)
            s->count++;
        if (fd >= 0)
            (void)close(fd);
    }
    return NULL;
}

/* A workspace is removed while what is in it is swapped with links to the outside. */
static void test_workspace_removal(void **state)
{
    struct fixture *f = *state;
    struct canaries c;
    char outside[256], path[256];
    canaries_open(&c);
    make_directory(outside, f->directory, "outside");
    fill_outside(&c, outside);
    canary_note_directory(&c, outside);
    struct swapper swapper = {0};
    make_path(path, f->root, "workspaces");
    swapper.tree_fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_int_equal(pthread_create(&swapper.thread, NULL, swap_doomed, &swapper), 0);
    for (int i = 0; i < REMOVALS; i++) {
        assert_int_equal(t_create_workspace(f, "doomed"), 0);
        make_path(path, f->root, "workspaces/doomed/tree");
        /* The name leads outside now and then, the descriptor does not. */
        int tree = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        assert_true(tree >= 0);
        for (size_t k = 0; k < ARRAY_SIZE(outside_files); k++)
            assert_int_equal(mknodat(tree, outside_files[k], S_IFREG | 0600, 0), 0);
        (void)close(tree);
        make_path(path, f->root, "workspaces/doomed/link");
        assert_int_equal(symlink(outside, path), 0);
        const struct wire_message remove = {.type = WIRE_WORKSPACE_REMOVE,
                                            .workspace_remove.key = bytes_of_string("doomed")};
        int r;
        do
            r = run(f, &remove);
        while (r == -ENOTDIR); /* the link, which is refused */
        assert_int_equal(r, 0);
    }
    atomic_store(&swapper.stop, true);
    (void)pthread_join(swapper.thread, NULL);
    (void)close(swapper.tree_fd);
    assert_true(swapper.count > REMOVALS / 10); /* a busy machine gives it little time */
    trash_settle(f->store->trash);
    make_path(path, f->root, "trash");
    assert_true(directory_empty(path));
    canaries_check(&c);
    canaries_close(&c);
}

#define RACE(name, kind)                  \
    static void test_##name(void **state) \
    {                                     \
        race(*state, kind);               \
    }
RACE(outer_directory, SWAP_OUTER)
RACE(inner_directory, SWAP_INNER)
RACE(file, SWAP_FILE)
RACE(moved_out, MOVE_OUT)
RACE(fifo, SWAP_FIFO)
RACE(fifo_without_reader, SWAP_BARE)
RACE(socket, SWAP_SOCKET)
RACE(device, SWAP_DEVICE)

/* A tmpfs of our own, on which devices work: containers mount theirs without. */
static void mount_memory(void)
{
    if (getuid() != 0)
        return;
    assert_int_equal(unshare(CLONE_NEWNS), 0);
    assert_int_equal(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL), 0);
    assert_int_equal(mount("tmpfs", "/dev/shm", "tmpfs", 0, "mode=1777"), 0);
}

int main(int argc, char **argv)
{
    mount_memory();
    fixture_world(argc, argv);
#define T(function) cmocka_unit_test_setup_teardown(function, fixture_setup, fixture_teardown)
#define EVERYWHERE                                                                          \
    cmocka_unit_test(test_every_message), T(test_outer_directory), T(test_inner_directory), \
        T(test_file), T(test_moved_out), T(test_fifo), T(test_fifo_without_reader),         \
        T(test_socket), T(test_workspace_removal)
    const struct CMUnitTest without_devices[] = {EVERYWHERE};
    const struct CMUnitTest tests[] = {EVERYWHERE, T(test_device)};
    /* Only root can make one. */
    if (getuid() != 0)
        return cmocka_run_group_tests(without_devices, NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

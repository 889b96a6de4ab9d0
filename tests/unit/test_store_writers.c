/* Whether somebody beside the service can be changing a file without being noticed. */
#include "store_fixture.h"

#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "store/changes.h"
#include "store/writers.h"

#define BUSY 0x5a

struct program {
    pid_t pid;
    int told, tells;
};

static void say(int fd)
{
    const char byte = BUSY;
    assert_int_equal(write(fd, &byte, 1), 1);
}

static void hear(int fd)
{
    char byte;
    assert_int_equal(read(fd, &byte, 1), 1);
    assert_int_equal(byte, BUSY);
}

/* A program that opens a file, maps it if it is to, lets go of the descriptor then, and stays until
 * it is told to end. */
static struct program program_start(struct fixture *f, const char *name, int flags, bool maps)
{
    int to[2], from[2];
    char path[4096];
    assert_int_equal(pipe(to), 0);
    assert_int_equal(pipe(from), 0);
    (void)tree_path(f, name, path);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        char byte = BUSY;
        /* What the service has open is not to be open here as well. */
        if (dup2(to[0], 0) < 0 || dup2(from[1], 1) < 0 || close_range(3, UINT_MAX, 0) < 0)
            _exit(4);
        int fd = open(path, flags);
        if (fd < 0)
            _exit(1);
        if (maps) {
            if (mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED)
                _exit(2);
            (void)close(fd);
        }
        if (write(1, &byte, 1) != 1 || read(0, &byte, 1) != 1)
            _exit(3);
        _exit(0);
    }
    (void)close(to[0]);
    (void)close(from[1]);
    hear(from[0]);
    return (struct program){.pid = pid, .told = to[1], .tells = from[0]};
}

static void program_end(struct program *p)
{
    int status;
    say(p->told);
    assert_int_equal(waitpid(p->pid, &status, 0), p->pid);
    assert_int_equal(status, 0);
    (void)close(p->told);
    (void)close(p->tells);
}

static uint32_t flags_of(struct fixture *f, uint64_t node)
{
    struct wire_attr attr;
    assert_int_equal(t_getattr(f, node, 0, &attr), 0);
    return attr.flags;
}

static void nothing(void *context)
{
}

/* Kinds that were told of all files since the last time. */
static uint32_t told(struct subscription *subscription)
{
    struct buffer list = {0};
    uint64_t position;
    uint32_t kinds = 0;
    int n;
    while ((n = subscription_take(subscription, &list, &position)) > 0) {
        struct wire_list l = wire_list_of(&list, (uint32_t)n);
        uint32_t offset = 0;
        struct bytes element;
        struct wire_message m;
        while (wire_list_next(&l, &offset, &element)) {
            assert_int_equal(wire_decode(WIRE_CHANGE, element, &m), 0);
            kinds |= m.change.kinds;
        }
        list.len = 0;
    }
    assert_int_equal(n, 0);
    buffer_release(&list);
    return kinds;
}

static void test_somebody_writes_already(void **state)
{
    struct fixture *f = *state;
    if (!store_detects(f->store))
        return; /* nothing is covered: test_store_changes */
    for (int maps = 0; maps <= 1; maps++) {
        make_file(f, maps ? "mapped" : "open", "text");
        struct program p = program_start(f, maps ? "mapped" : "open", O_RDWR, maps);
        int64_t node = t_lookup(f, f->demo, maps ? "mapped" : "open");
        assert_true(node > 0);
        assert_int_equal(flags_of(f, (uint64_t)node), WIRE_ATTR_WRITTEN);
        program_end(&p);
        assert_int_equal(flags_of(f, (uint64_t)node), WIRE_ATTR_COVERED);
    }
}

static void test_somebody_reads(void **state)
{
    struct fixture *f = *state;
    if (!store_detects(f->store))
        return;
    make_file(f, "a", "text");
    struct program p = program_start(f, "a", O_RDONLY, false);
    uint64_t node = (uint64_t)t_lookup(f, f->demo, "a");
    assert_int_equal(flags_of(f, node), WIRE_ATTR_COVERED);
    program_end(&p);
}

static void test_somebody_comes_to_write(void **state)
{
    struct fixture *f = *state;
    if (!store_detects(f->store))
        return;
    struct subscription *subscription;
    assert_int_equal(subscription_open(f->session, nothing, NULL, &subscription), 0);
    make_file(f, "a", "text");
    uint64_t node = (uint64_t)t_lookup(f, f->demo, "a");
    assert_int_equal(flags_of(f, node), WIRE_ATTR_COVERED);
    (void)store_detect(f->store);
    (void)told(subscription);
    /* Who only reads changes nothing. */
    struct program p = program_start(f, "a", O_RDONLY, false);
    assert_int_equal(store_detect(f->store), 0);
    store_note_written(f->store);
    assert_int_equal(told(subscription), 0);
    assert_int_equal(flags_of(f, node), WIRE_ATTR_COVERED);
    program_end(&p);
    p = program_start(f, "a", O_RDWR, true);
    assert_int_equal(store_detect(f->store), 0);
    assert_true(told(subscription) & WIRE_CHANGE_CONTENT);
    assert_int_equal(flags_of(f, node), WIRE_ATTR_WRITTEN);
    /* At every barrier, until the one after it has ended. */
    for (int i = 0; i < 2; i++) {
        store_note_written(f->store);
        assert_int_equal(told(subscription), WIRE_CHANGE_CONTENT);
    }
    program_end(&p);
    assert_int_equal(store_detect(f->store), 0);
    store_note_written(f->store);
    assert_true(told(subscription) & WIRE_CHANGE_CONTENT);
    store_note_written(f->store);
    assert_int_equal(told(subscription), 0);
    assert_int_equal(flags_of(f, node), WIRE_ATTR_COVERED);
    subscription_close(subscription);
}

/* What clients of this service have open is no reason not to keep a file. */
static void test_clients_are_no_writers(void **state)
{
    struct fixture *f = *state;
    if (!store_detects(f->store))
        return;
    uint64_t first = 0;
    uint64_t node = (uint64_t)t_create(f, f->demo, "a", WIRE_OPEN_WRITE, 0644, &first);
    assert_int_equal(f->reply.message.created.attr.flags, WIRE_ATTR_COVERED);
    int64_t second = t_open(f, node, WIRE_OPEN_READ | WIRE_OPEN_WRITE);
    assert_true(second > 0);
    /* inotify does not say who opened it, and of two that can write nobody can tell whose they are:
     * then it counts as written, which is right too, but for nothing. */
    uint32_t flags = f->store->by_file ? WIRE_ATTR_WRITTEN : WIRE_ATTR_COVERED;
    assert_int_equal(store_detect(f->store), 0);
    assert_int_equal(flags_of(f, node), flags);
    assert_int_equal(t_write(f, first, 0, "x"), 1);
    assert_int_equal(flags_of(f, node), flags);
    /* While they do, somebody else cannot be told from them, and counts. */
    struct program p = program_start(f, "a", O_RDONLY, false);
    assert_int_equal(store_detect(f->store), 0);
    assert_int_equal(flags_of(f, node), WIRE_ATTR_WRITTEN);
    t_release(f, first);
    t_release(f, (uint64_t)second);
    assert_int_equal(flags_of(f, node), WIRE_ATTR_COVERED);
    program_end(&p);
}

static void test_a_new_file_is_open_elsewhere(void **state)
{
    struct fixture *f = *state;
    if (!store_detects(f->store))
        return;
    uint64_t handle = 0;
    uint64_t node = (uint64_t)t_create(f, f->demo, "a", WIRE_OPEN_WRITE, 0644, &handle);
    struct program p = program_start(f, "a", O_WRONLY, false);
    assert_int_equal(store_detect(f->store), 0);
    assert_int_equal(flags_of(f, node), WIRE_ATTR_WRITTEN);
    t_release(f, handle);
    assert_int_equal(flags_of(f, node), WIRE_ATTR_WRITTEN);
    program_end(&p);
    assert_int_equal(flags_of(f, node), WIRE_ATTR_COVERED);
}

/* A node that is forgotten is nobody's to be told of. */
static size_t written_count(struct fixture *f)
{
    store_lock(f->store);
    size_t count = f->store->written.count;
    store_unlock(f->store);
    return count;
}

static void test_what_is_forgotten(void **state)
{
    struct fixture *f = *state;
    if (!store_detects(f->store))
        return;
    make_file(f, "a", "text");
    uint64_t node = (uint64_t)t_lookup(f, f->demo, "a");
    assert_int_equal(flags_of(f, node), WIRE_ATTR_COVERED);
    assert_int_equal(written_count(f), 0);
    struct program p = program_start(f, "a", O_WRONLY, false);
    assert_int_equal(store_detect(f->store), 0);
    assert_int_equal(written_count(f), 1);
    t_forget(f, node, 1);
    assert_int_equal(written_count(f), 0);
    program_end(&p);
}

int main(int argc, char **argv)
{
    fixture_world(argc, argv);
#define T(function) cmocka_unit_test_setup_teardown(function, fixture_setup, fixture_teardown)
    const struct CMUnitTest tests[] = {
        T(test_somebody_writes_already),      T(test_somebody_reads),
        T(test_somebody_comes_to_write),      T(test_clients_are_no_writers),
        T(test_a_new_file_is_open_elsewhere), T(test_what_is_forgotten),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

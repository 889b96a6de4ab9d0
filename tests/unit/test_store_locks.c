/* Locks of clients: what an owner holds is what the kernel says, for other owners, other sessions
 * and a process beside the files. And the arithmetic of ranges, against a byte map. */
#include "store_fixture.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/lock_ranges.h"

#define RW (WIRE_OPEN_READ | WIRE_OPEN_WRITE)
#define END WIRE_LOCK_END

enum { UN = WIRE_LOCK_NONE, RD = WIRE_LOCK_READ, WR = WIRE_LOCK_WRITE };

struct file {
    uint64_t node, handle;
    char path[4096];
};

static struct file make(struct fixture *f, const char *name)
{
    struct file made;
    int64_t node = t_create(f, f->demo, name, RW | WIRE_OPEN_EXCLUSIVE, 0644, &made.handle);
    assert_true(node > 0);
    made.node = (uint64_t)node;
    (void)tree_path(f, name, made.path);
    return made;
}

static int set_in(struct fixture *f, struct file_session *session, const struct file *file,
                  uint64_t owner, uint32_t type, uint64_t start, uint64_t end)
{
    const struct wire_message m = {.type = WIRE_LOCK_SET,
                                   .lock_set = {.node = file->node,
                                                .handle = type ? file->handle : 0,
                                                .owner = owner,
                                                .start = start,
                                                .end = end,
                                                .type = type}};
    return run_in(f, session, &m);
}

static int set(struct fixture *f, const struct file *file, uint64_t owner, uint32_t type,
               uint64_t start, uint64_t end)
{
    return set_in(f, f->session, file, owner, type, start, end);
}

static int set_flock(struct fixture *f, const struct file *file, uint64_t owner, uint32_t type)
{
    const struct wire_message m = {.type = WIRE_LOCK_SET,
                                   .lock_set = {.node = file->node,
                                                .handle = type ? file->handle : 0,
                                                .owner = owner,
                                                .end = END,
                                                .type = type,
                                                .flags = WIRE_LOCK_FLOCK}};
    return run(f, &m);
}

static int get(struct fixture *f, const struct file *file, uint64_t owner, uint32_t type,
               uint64_t start, uint64_t end)
{
    const struct wire_message m = {.type = WIRE_LOCK_GET,
                                   .lock_get = {.node = file->node,
                                                .handle = file->handle,
                                                .owner = owner,
                                                .start = start,
                                                .end = end,
                                                .type = type}};
    return run(f, &m);
}

/* What an outsider with a description of its own sees in the way of a write lock. */
static struct flock outsider(const char *path, off_t start, off_t len)
{
    int fd = open(path, O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    struct flock lock = {.l_type = F_WRLCK, .l_start = start, .l_len = len};
    assert_int_equal(fcntl(fd, F_OFD_GETLK, &lock), 0);
    (void)close(fd);
    return lock;
}

/* By another process, since POSIX locks are the process's. Its pid is in *ret_holder. */
static int hold_posix(const char *path, short type, off_t start, off_t len, pid_t *ret_holder)
{
    int ready[2];
    assert_int_equal(pipe(ready), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        int fd = open(path, O_RDWR);
        struct flock lock = {.l_type = type, .l_start = start, .l_len = len};
        char c = fcntl(fd, F_SETLK, &lock) == 0 ? 'y' : 'n';
        (void)!write(ready[1], &c, 1);
        for (;;)
            (void)pause();
    }
    char c = 'n';
    assert_int_equal(read(ready[0], &c, 1), 1);
    (void)close(ready[0]);
    (void)close(ready[1]);
    *ret_holder = pid;
    return c == 'y' ? 0 : -1;
}

static void end_holder(pid_t pid)
{
    (void)kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
}

static void test_owners_exclude_each_other(void **state)
{
    struct fixture *f = *state;
    struct file file = make(f, "a");
    assert_int_equal(set(f, &file, 1, WR, 10, 19), 0);
    assert_int_equal(set(f, &file, 1, WR, 10, 19), 0); /* its own does not hinder it */
    assert_int_equal(set(f, &file, 2, WR, 19, 30), -EAGAIN);
    assert_int_equal(set(f, &file, 2, RD, 0, END), -EAGAIN);
    assert_int_equal(set(f, &file, 2, WR, 20, END), 0);
    assert_int_equal(set(f, &file, 1, RD, 10, 19), 0); /* downgrade */
    assert_int_equal(set(f, &file, 2, RD, 10, 19), 0);
    assert_int_equal(set(f, &file, 1, WR, 10, 19), -EAGAIN); /* upgrade beside a reader */
    assert_int_equal(set(f, &file, 2, UN, 0, END), 0);
    assert_int_equal(set(f, &file, 1, WR, 10, 19), 0);
    assert_int_equal(f->reply.unlocked, 0);
    assert_int_equal(set(f, &file, 1, UN, 13, 15), 0); /* splits */
    assert_int_equal(f->reply.unlocked, file.node);
    assert_int_equal(set(f, &file, 2, WR, 13, 15), 0);
    assert_int_equal(set(f, &file, 2, WR, 12, 12), -EAGAIN);
    assert_int_equal(set(f, &file, 2, WR, 16, 16), -EAGAIN);
}

static void test_get_finds_the_first(void **state)
{
    struct fixture *f = *state;
    struct file file = make(f, "a");
    const struct wire_lock_found *found = &f->reply.message.lock_found;
    assert_int_equal(get(f, &file, 2, WR, 0, END), 0);
    assert_int_equal(found->type, UN);
    assert_int_equal(set(f, &file, 1, RD, 100, 199), 0);
    assert_int_equal(set(f, &file, 1, WR, 300, END), 0);
    assert_int_equal(get(f, &file, 2, WR, 0, END), 0);
    assert_int_equal(found->type, RD);
    assert_int_equal(found->start, 100);
    assert_int_equal(found->end, 199);
    assert_int_equal(found->pid, 0);
    assert_int_equal(get(f, &file, 2, RD, 0, END), 0);
    assert_int_equal(found->type, WR);
    assert_int_equal(found->start, 300);
    assert_true(found->end == END);
    assert_int_equal(get(f, &file, 1, WR, 0, END), 0); /* not its own */
    assert_int_equal(found->type, UN);
    pid_t holder;
    assert_int_equal(hold_posix(file.path, F_WRLCK, 0, 10, &holder), 0);
    assert_int_equal(get(f, &file, 1, RD, 5, 5), 0);
    assert_int_equal(found->type, WR);
    assert_int_equal(found->pid, holder);
    end_holder(holder);
}

static void test_outsiders(void **state)
{
    struct fixture *f = *state;
    struct file file = make(f, "a");
    assert_int_equal(set(f, &file, 1, WR, 10, 19), 0);
    struct flock seen = outsider(file.path, 0, 0);
    assert_int_equal(seen.l_type, F_WRLCK);
    assert_int_equal(seen.l_start, 10);
    assert_int_equal(seen.l_len, 10);
    pid_t holder;
    assert_int_equal(hold_posix(file.path, F_WRLCK, 15, 1, &holder), -1);
    end_holder(holder);
    assert_int_equal(hold_posix(file.path, F_WRLCK, 20, 0, &holder), 0);
    assert_int_equal(set(f, &file, 1, RD, 25, 25), -EAGAIN);
    end_holder(holder);
    assert_int_equal(set(f, &file, 1, RD, 25, 25), 0);
    assert_int_equal(set(f, &file, 1, UN, 0, END), 0);
    assert_int_equal(outsider(file.path, 0, 0).l_type, F_UNLCK);
}

static void test_flock(void **state)
{
    struct fixture *f = *state;
    struct file file = make(f, "a");
    int fd = open(file.path, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(set_flock(f, &file, 1, WR), 0);
    assert_int_equal(flock(fd, LOCK_SH | LOCK_NB), -1);
    assert_int_equal(errno, EWOULDBLOCK);
    assert_int_equal(set_flock(f, &file, 2, RD), -EAGAIN);
    /* Not the same kind: they do not exclude each other, as on Linux. */
    assert_int_equal(set(f, &file, 2, WR, 0, END), 0);
    assert_int_equal(set_flock(f, &file, 1, RD), 0);
    assert_int_equal(f->reply.unlocked, file.node);
    assert_int_equal(flock(fd, LOCK_SH | LOCK_NB), 0);
    /* A change that fails has given up the old lock. */
    assert_int_equal(set_flock(f, &file, 1, WR), -EAGAIN);
    assert_int_equal(f->reply.unlocked, file.node);
    assert_int_equal(flock(fd, LOCK_EX | LOCK_NB), 0);
    (void)close(fd);
    assert_int_equal(set_flock(f, &file, 1, WR), 0);
    assert_int_equal(set_flock(f, &file, 1, UN), 0);
    assert_int_equal(set_flock(f, &file, 2, WR), 0);
}

static void test_access(void **state)
{
    struct fixture *f = *state;
    struct file file = make(f, "a");
    struct file reader = file, writer = file;
    reader.handle = (uint64_t)t_open(f, file.node, WIRE_OPEN_READ);
    writer.handle = (uint64_t)t_open(f, file.node, WIRE_OPEN_WRITE);
    assert_int_equal(set(f, &reader, 1, WR, 0, 9), -EBADF);
    assert_int_equal(set(f, &writer, 1, RD, 0, 9), -EBADF);
    /* One owner through both: its read lock becomes a write lock without a gap. */
    assert_int_equal(set(f, &reader, 1, RD, 0, 9), 0);
    assert_int_equal(set(f, &reader, 1, RD, 20, 29), 0);
    assert_int_equal(set(f, &writer, 1, WR, 5, 24), 0);
    assert_int_equal(outsider(file.path, 0, 1).l_type, F_RDLCK);
    assert_int_equal(outsider(file.path, 5, 1).l_type, F_WRLCK);
    assert_int_equal(outsider(file.path, 29, 1).l_type, F_RDLCK);
    assert_int_equal(outsider(file.path, 30, 1).l_type, F_UNLCK);
    assert_int_equal(set(f, &file, 1, UN, 0, END), 0);
    /* With flock() any access will do. */
    assert_int_equal(set_flock(f, &reader, 1, WR), 0);
    assert_int_equal(set_flock(f, &writer, 1, WR), 0);
}

static void test_reading_leaves_programs_executable(void **state)
{
    struct fixture *f = *state;
    struct file file = make(f, "true");
    assert_int_equal(t_write(f, file.handle, 0, "#!/bin/sh\nexit 7\n"), 17);
    t_release(f, file.handle);
    assert_int_equal(chmod(file.path, 0755), 0);
    file.handle = (uint64_t)t_open(f, file.node, WIRE_OPEN_READ);
    assert_int_equal(set(f, &file, 1, RD, 0, END), 0);
    assert_int_equal(set_flock(f, &file, 1, WR), 0);
    pid_t pid = fork();
    if (pid == 0) {
        (void)execl(file.path, file.path, (char *)NULL);
        _exit(errno == ETXTBSY ? 99 : 98);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(WEXITSTATUS(status), 7);
}

static void test_refusals(void **state)
{
    struct fixture *f = *state;
    struct file file = make(f, "a"), other = make(f, "b"), wrong = file;
    assert_int_equal(set(f, &file, 1, 3, 0, 9), -EINVAL);
    assert_int_equal(set(f, &file, 1, WR, 9, 8), -EINVAL);
    assert_int_equal(set(f, &file, 1, WR, 0, (uint64_t)INT64_MAX + 1), -EINVAL);
    assert_int_equal(get(f, &file, 1, UN, 0, 9), -EINVAL);
    wrong.node = other.node;
    assert_int_equal(set(f, &wrong, 1, WR, 0, 9), -EBADF);
    wrong.node = f->demo;
    wrong.handle = (uint64_t)t_open(f, f->demo, WIRE_OPEN_READ | WIRE_OPEN_DIRECTORY);
    assert_int_equal(set(f, &wrong, 1, RD, 0, 9), -EBADF);
    struct wire_message m = {.type = WIRE_LOCK_SET,
                             .lock_set = {.node = file.node,
                                          .handle = file.handle,
                                          .end = 9,
                                          .type = WR,
                                          .flags = WIRE_LOCK_FLOCK}};
    assert_int_equal(run(f, &m), -EINVAL); /* part of a file */
    m.lock_set.flags = 4;
    assert_int_equal(run(f, &m), -EINVAL);
    /* To unlock what is not locked, or not known, is nothing. */
    wrong.node = 99999999;
    assert_int_equal(set(f, &wrong, 1, UN, 0, END), 0);
    assert_int_equal(set(f, &file, 77, UN, 0, END), 0);
    assert_int_equal(t_status(f, "lock_owners"), 0);
}

static void test_ends(void **state)
{
    struct fixture *f = *state;
    struct file file = make(f, "a");
    assert_int_equal(set(f, &file, 1, WR, 0, 9), 0);
    assert_int_equal(set(f, &file, 2, WR, 10, 19), 0);
    assert_int_equal(set_flock(f, &file, 1, RD), 0);
    assert_int_equal(t_status(f, "lock_owners"), 3);
    assert_int_equal(set(f, &file, 1, UN, 0, 4), 0);
    assert_int_equal(t_status(f, "lock_owners"), 3);
    assert_int_equal(set(f, &file, 1, UN, 5, 9), 0); /* nothing is left of it */
    assert_int_equal(t_status(f, "lock_owners"), 2);
    assert_int_equal(t_unlink(f, f->demo, "a"), 0);
    assert_int_equal(set(f, &file, 1, WR, 0, 9), 0); /* of a file without a name */
    t_release(f, file.handle);
    assert_int_equal(t_status(f, "lock_owners"), 3); /* owners end their locks, not handles */
    file_session_free(f->session);
    f->session = NULL;
    assert_int_equal(t_status(f, "lock_owners"), 0);
    assert_int_equal(t_status(f, "handles"), 0);
    t_await_status(f, "nodes", 0);
    assert_int_equal(file_session_new(f->store, &f->session), 0);
}

static void test_limits(void **state)
{
    struct fixture *f = *state;
    struct store_limits limits = fixture_limits();
    limits.session_handles = 3;
    fixture_reopen(f, &limits);
    f->demo = (uint64_t)t_open_workspace(f, "demo");
    struct file file = make(f, "a");
    assert_int_equal(set(f, &file, 1, WR, 0, 0), 0);
    assert_int_equal(set(f, &file, 2, WR, 1, 1), 0);
    assert_int_equal(set(f, &file, 3, WR, 2, 2), -ENOLCK);
    assert_int_equal(set(f, &file, 1, UN, 0, END), 0);
    assert_int_equal(set(f, &file, 3, WR, 2, 2), 0);
    /* Ranges that do not touch. */
    uint64_t at = 10;
    int r = 0;
    for (; r == 0; at += 2)
        r = set(f, &file, 2, WR, at, at);
    assert_int_equal(r, -ENOLCK);
    assert_in_range(at / 2, 4000, 4100);
    assert_int_equal(set(f, &file, 2, UN, 0, END), 0);
    assert_int_equal(set(f, &file, 2, WR, 10, 10), 0);
}

static void test_claim(void **state)
{
    struct fixture *f = *state;
    struct file file = make(f, "a");
    const struct wire_message claim = {.type = WIRE_LOCK_CLAIM,
                                       .lock_claim.secret = bytes_of("0123456789abcdef", 16)};
    const struct wire_message other = {.type = WIRE_LOCK_CLAIM,
                                       .lock_claim.secret = bytes_of("0123456789abcdeF", 16)};
    assert_int_equal(run(f, &claim), 0);
    assert_int_equal(f->reply.unlocked, 0);
    assert_int_equal(set(f, &file, 1, WR, 0, 9), 0);
    struct file_session *next;
    assert_int_equal(file_session_new(f->store, &next), 0);
    assert_int_equal(run_in(f, next, &other), 0);
    assert_int_equal(outsider(file.path, 0, 0).l_type, F_WRLCK);
    assert_int_equal(run_in(f, next, &claim), 0);
    assert_true(f->reply.unlocked == REPLY_UNLOCKED_ANY);
    assert_int_equal(outsider(file.path, 0, 0).l_type, F_UNLCK);
    /* The one before it has lost them for good. */
    assert_int_equal(set(f, &file, 1, WR, 0, 9), -EIO);
    assert_int_equal(set(f, &file, 2, RD, 0, 9), -EIO);
    assert_int_equal(t_write(f, file.handle, 0, "text"), 4);
    file_session_free(next);
}

/* --- ranges --------------------------------------------------------------------- */

#define BYTES 40

static void test_ranges_are_like_bytes(void **state)
{
    (void)state;
    struct lock_ranges r = {0};
    uint32_t bytes[BYTES] = {0};
    unsigned seed = 7;
    for (int step = 0; step < 20000; step++) {
        uint64_t start = (uint64_t)rand_r(&seed) % BYTES;
        uint64_t end = start + (uint64_t)rand_r(&seed) % (BYTES - start);
        uint32_t type = (uint32_t)rand_r(&seed) % 3;
        assert_int_equal(lock_ranges_reserve(&r), 0);
        lock_ranges_set(&r, start, end, type);
        for (uint64_t at = start; at <= end; at++)
            bytes[at] = type;
        size_t i = 0;
        for (uint64_t at = 0; at < BYTES;) {
            uint64_t to = at;
            while (to + 1 < BYTES && bytes[to + 1] == bytes[at])
                to++;
            const struct lock_range *found = lock_ranges_find(&r, at, to, 0);
            if (bytes[at]) {
                assert_true(i < r.count);
                assert_ptr_equal(found, &r.items[i]);
                assert_int_equal(r.items[i].start, at);
                assert_int_equal(r.items[i].end, to);
                assert_int_equal(r.items[i++].type, bytes[at]);
            } else {
                assert_null(found);
            }
            at = to + 1;
        }
        assert_int_equal(i, r.count);
    }
    lock_ranges_release(&r);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)

int main(int argc, char **argv)
{
    fixture_world(argc, argv);
    const struct CMUnitTest tests[] = {
        TEST(test_owners_exclude_each_other),
        TEST(test_get_finds_the_first),
        TEST(test_outsiders),
        TEST(test_flock),
        TEST(test_access),
        TEST(test_reading_leaves_programs_executable),
        TEST(test_refusals),
        TEST(test_ends),
        TEST(test_limits),
        TEST(test_claim),
        cmocka_unit_test(test_ranges_are_like_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

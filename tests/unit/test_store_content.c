/* READFILES: what it brings, in which order, how much; and of which version it is. */
#include "store_fixture.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define FULL 0x80000

/* The service's clock of file times may be set ahead of the kernel's. */
static time_t ahead;

int clock_gettime(clockid_t clock, struct timespec *t)
{
    int r = (int)syscall(SYS_clock_gettime, clock, t);
    if (r == 0 && clock == CLOCK_REALTIME_COARSE)
        t->tv_sec += ahead;
    return r;
}

static int read_files(struct fixture *f, const uint64_t *nodes, size_t count, uint32_t size,
                      uint32_t flags)
{
    struct buffer list = {0};
    for (size_t i = 0; i < count; i++)
        assert_int_equal(wire_list_append(&list, bytes_of(&nodes[i], sizeof nodes[i])), 0);
    const struct wire_message m = {
        .type = WIRE_READFILES,
        .readfiles = {.size = size, .flags = flags, .files = wire_list_of(&list, (uint32_t)count)}};
    int r = run(f, &m);
    buffer_release(&list);
    return r;
}

/* Steps through the reply. */
static bool next_file(struct fixture *f, uint32_t *offset, struct wire_file *ret)
{
    struct bytes element;
    struct wire_message m;
    if (!wire_list_next(&f->reply.message.files.files, offset, &element))
        return false;
    assert_int_equal(wire_decode(WIRE_FILE, element, &m), 0);
    if (m.file.flags & WIRE_FILE_ENDS) {
        assert_true(m.file.attr.size > WIRE_FILE_MAX);
        assert_int_equal(m.file.data.len, WIRE_FILE_HEAD + WIRE_FILE_TAIL);
    } else {
        assert_int_equal(m.file.data.len, m.file.attr.size);
    }
    if (m.file.error) {
        static const struct wire_attr none;
        assert_same_attr(&m.file.attr, &none);
        assert_int_equal(m.file.flags, 0);
    }
    *ret = m.file;
    return true;
}

/* Of one node. 0 and *ret, or the error that its FILE tells. */
static int read_one(struct fixture *f, uint64_t node, uint32_t flags, struct wire_file *ret)
{
    uint32_t offset = 0;
    assert_int_equal(read_files(f, &node, 1, FULL, flags), 0);
    assert_true(next_file(f, &offset, ret));
    assert_int_equal(ret->node, node);
    assert_false(next_file(f, &offset, ret));
    return -(int)ret->error;
}

static void make_long(struct fixture *f, const char *path, size_t size)
{
    char full[4096];
    make_file(f, path, "");
    assert_int_equal(truncate(tree_path(f, path, full), (off_t)size), 0);
}

static void test_in_the_order_asked_for(void **state)
{
    struct fixture *f = *state;
    static const char *const texts[] = {"first", "", "the third"};
    char full[4096];
    assert_int_equal(mkdir(tree_path(f, "d", full), 0755), 0);
    make_file(f, "a", texts[1]);
    make_file(f, "b", texts[2]);
    make_file(f, "d/z", texts[0]);
    const uint64_t nodes[] = {(uint64_t)t_walk(f, "d/z"), (uint64_t)t_walk(f, "a"),
                              (uint64_t)t_walk(f, "b"), (uint64_t)t_walk(f, "d/z")};
    drop_descriptors(f);
    assert_int_equal(read_files(f, nodes, 4, FULL, 0), 0);
    struct wire_file files[4];
    uint32_t offset = 0;
    struct buffer kept = {0};
    assert_int_equal(f->reply.message.files.files.count, 4);
    assert_int_equal(buffer_append(&kept, f->reply.storage.data, f->reply.storage.len), 0);
    for (size_t i = 0; i < 4; i++) {
        assert_true(next_file(f, &offset, &files[i]));
        assert_int_equal(files[i].error, 0);
        assert_int_equal(files[i].node, nodes[i]);
        assert_true(bytes_equal(files[i].data, bytes_of_string(texts[i % 3])));
    }
    for (size_t i = 0; i < 4; i++) {
        struct wire_attr attr;
        assert_int_equal(t_getattr(f, nodes[i], 0, &attr), 0);
        assert_same_attr(&files[i].attr, &attr);
    }
    buffer_release(&kept);
    assert_int_equal(read_files(f, NULL, 0, FULL, 0), 0);
    assert_int_equal(f->reply.message.files.files.count, 0);
}

/* The lengths of what came, as text. */
static const char *lengths(struct fixture *f, const uint64_t *nodes, size_t count, uint32_t size)
{
    static char text[16384];
    uint32_t offset = 0;
    size_t len = 0;
    struct wire_file file;
    text[0] = '\0';
    assert_int_equal(read_files(f, nodes, count, size, 0), 0);
    while (next_file(f, &offset, &file))
        len += (size_t)snprintf(text + len, sizeof text - len, "%zu ", file.data.len);
    return text;
}

#define LONG ((size_t)128 << 10)

static void test_size(void **state)
{
    struct fixture *f = *state;
    static const size_t sizes[] = {1000, 0, 3000, 10, LONG};
    uint64_t nodes[ARRAY_SIZE(sizes)], many[WIRE_FILES_MAX];
    char name[16];
    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
        (void)snprintf(name, sizeof name, "file%zu", i);
        make_long(f, name, sizes[i]);
        nodes[i] = (uint64_t)t_walk(f, name);
    }
    assert_string_equal(lengths(f, nodes, 5, FULL), "1000 0 3000 10 131072 ");
    assert_string_equal(lengths(f, nodes, 5, 4010 + LONG), "1000 0 3000 10 131072 ");
    assert_string_equal(lengths(f, nodes, 5, 4009 + LONG), "1000 0 3000 10 ");
    /* What comes after the first that is too much is left out, though it would fit. */
    assert_string_equal(lengths(f, nodes, 5, 3999), "1000 0 ");
    assert_string_equal(lengths(f, nodes, 5, 1000), "1000 0 ");
    assert_string_equal(lengths(f, nodes, 5, 0), "1000 0 ");
    assert_string_equal(lengths(f, nodes + 4, 1, 0), "131072 ");
    /* However much is asked for. */
    for (size_t i = 0; i < WIRE_FILES_MAX; i++)
        many[i] = nodes[4];
    assert_string_equal(lengths(f, many, WIRE_FILES_MAX, UINT32_MAX),
                        "131072 131072 131072 131072 ");
    for (size_t i = 0; i < WIRE_FILES_MAX; i++)
        many[i] = nodes[i % 4];
    assert_int_equal(read_files(f, many, WIRE_FILES_MAX, FULL, 0), 0);
    assert_int_equal(f->reply.message.files.files.count, WIRE_FILES_MAX);
    assert_true(f->reply.message.files.files.len <= WIRE_DATA_MAX);
}

static void test_what_is_no_small_file(void **state)
{
    struct fixture *f = *state;
    struct wire_file file;
    char full[4096];
    make_long(f, "large", WIRE_FILE_MAX + 1);
    make_file(f, "gone", "gone");
    assert_int_equal(symlink("large", tree_path(f, "link", full)), 0);
    assert_int_equal(mkfifo(tree_path(f, "fifo", full), 0600), 0);
    assert_int_equal(mknod(tree_path(f, "socket", full), S_IFSOCK | 0600, 0), 0);
    assert_int_equal(read_one(f, f->demo, 0, &file), -EISDIR);
    assert_int_equal(read_one(f, (uint64_t)t_walk(f, "link"), 0, &file), -ELOOP);
    assert_int_equal(read_one(f, (uint64_t)t_walk(f, "fifo"), 0, &file), -ENXIO);
    assert_int_equal(read_one(f, (uint64_t)t_walk(f, "socket"), 0, &file), -ENXIO);
    assert_int_equal(read_one(f, (uint64_t)t_walk(f, "large"), 0, &file), -EFBIG);
    assert_int_equal(read_one(f, 999999, 0, &file), -ESTALE);
    assert_int_equal(read_one(f, 0, 0, &file), -ESTALE);
    uint64_t gone = (uint64_t)t_walk(f, "gone");
    assert_int_equal(unlink(tree_path(f, "gone", full)), 0);
    drop_descriptors(f);
    assert_int_equal(read_one(f, gone, 0, &file), -ESTALE);
    if (getuid() == 0 && mknod(tree_path(f, "device", full), S_IFCHR | 0600, makedev(1, 5)) == 0)
        assert_int_equal(read_one(f, (uint64_t)t_walk(f, "device"), 0, &file), -ENXIO);
    if (getuid() != 0) {
        make_file(f, "closed", "closed");
        assert_int_equal(chmod(tree_path(f, "closed", full), 0), 0);
        assert_int_equal(read_one(f, (uint64_t)t_walk(f, "closed"), 0, &file), -EACCES);
    }
    /* None of them stands in the way of others. */
    make_file(f, "file", "file");
    const uint64_t nodes[] = {gone, (uint64_t)t_walk(f, "large"), (uint64_t)t_walk(f, "file")};
    assert_string_equal(lengths(f, nodes, 3, 4), "0 0 4 ");
}

/* Writes a byte here and there. */
static void mark(struct fixture *f, const char *path, off_t offset, char byte)
{
    char full[4096];
    int fd = open(tree_path(f, path, full), O_WRONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, &byte, 1, offset), 1);
    assert_int_equal(close(fd), 0);
}

static void test_ends(void **state)
{
    struct fixture *f = *state;
    const size_t size = WIRE_FILE_MAX + 1, both = WIRE_FILE_HEAD + WIRE_FILE_TAIL;
    struct wire_file file;
    make_long(f, "large", size);
    mark(f, "large", 0, 'a');
    mark(f, "large", WIRE_FILE_HEAD - 1, 'b');
    mark(f, "large", WIRE_FILE_HEAD, 'c');
    mark(f, "large", (off_t)size - WIRE_FILE_TAIL - 1, 'd');
    mark(f, "large", (off_t)size - WIRE_FILE_TAIL, 'e');
    mark(f, "large", (off_t)size - 1, 'f');
    make_long(f, "whole", WIRE_FILE_MAX);
    uint64_t large = (uint64_t)t_walk(f, "large"), whole = (uint64_t)t_walk(f, "whole");
    assert_int_equal(read_one(f, large, WIRE_READFILES_ENDS, &file), 0);
    assert_true(file.flags & WIRE_FILE_ENDS);
    assert_int_equal(file.attr.size, size);
    assert_int_equal(file.data.len, both);
    const char marks[] = {(char)file.data.data[0], (char)file.data.data[WIRE_FILE_HEAD - 1],
                          (char)file.data.data[WIRE_FILE_HEAD], (char)file.data.data[both - 1], 0};
    assert_string_equal(marks, "abef");
    assert_null(memchr(file.data.data, 'c', both));
    assert_null(memchr(file.data.data, 'd', both));
    assert_int_equal(read_one(f, whole, WIRE_READFILES_ENDS, &file), 0);
    assert_false(file.flags & WIRE_FILE_ENDS);
    assert_int_equal(file.data.len, WIRE_FILE_MAX);
    /* They count as what they are. */
    const uint64_t nodes[] = {large, large};
    assert_int_equal(read_files(f, nodes, 2, (uint32_t)(2 * both), WIRE_READFILES_ENDS), 0);
    assert_int_equal(f->reply.message.files.files.count, 1); /* 512 KiB is all that there is */
    uint32_t offset = 0;
    assert_true(next_file(f, &offset, &file));
    make_file(f, "one", "1");
    const uint64_t after[] = {(uint64_t)t_walk(f, "one"), large};
    assert_int_equal(read_files(f, after, 2, (uint32_t)both + 1, WIRE_READFILES_ENDS), 0);
    assert_int_equal(f->reply.message.files.files.count, 2);
    assert_int_equal(read_files(f, after, 2, (uint32_t)both, WIRE_READFILES_ENDS), 0);
    assert_int_equal(f->reply.message.files.files.count, 1);
}

static void test_malformed(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(read_files(f, &f->demo, 1, FULL, 4), -EINVAL);
    for (size_t len = 0; len <= 9; len += 9 - 2 * (len == 0)) {
        struct buffer list = {0};
        assert_int_equal(wire_list_append(&list, bytes_of("123456789", len)), 0);
        const struct wire_message m = {.type = WIRE_READFILES,
                                       .readfiles.files = wire_list_of(&list, 1)};
        assert_int_equal(run(f, &m), -EINVAL);
        buffer_release(&list);
    }
}

static void test_rules(void **state)
{
    struct fixture *f = *state;
    struct wire_file file;
    make_file(f, "secret", "secret");
    make_file(f, "unlisted", "unlisted");
    uint64_t secret = (uint64_t)t_walk(f, "secret"), unlisted = (uint64_t)t_walk(f, "unlisted");
    assert_int_equal(read_one(f, secret, 0, &file), 0);
    const struct wire_message rules = {.type = WIRE_VISIBILITY,
                                       .visibility.rules =
                                           bytes_of_string("unlisted:unlisted\nhidden:secret\n")};
    assert_int_equal(run(f, &rules), 0);
    assert_int_equal(read_one(f, secret, 0, &file), -ESTALE);
    assert_int_equal(read_one(f, unlisted, 0, &file), 0);
}

/* The access time, in seconds, of a file last read in 1970. */
static time_t read_in_1970(struct fixture *f, const char *path)
{
    const struct timespec times[2] = {{.tv_sec = 1000}, {.tv_nsec = UTIME_OMIT}};
    char full[4096];
    assert_int_equal(utimensat(AT_FDCWD, tree_path(f, path, full), times, 0), 0);
    return 1000;
}

static time_t access_time(struct fixture *f, const char *path)
{
    struct stat st;
    char full[4096];
    assert_int_equal(stat(tree_path(f, path, full), &st), 0);
    return st.st_atime;
}

static void test_access_time(void **state)
{
    struct fixture *f = *state;
    struct wire_file file;
    char full[4096], byte;
    make_file(f, "file", "file");
    uint64_t node = (uint64_t)t_walk(f, "file");
    time_t old = read_in_1970(f, "file");
    int fd = open(tree_path(f, "file", full), O_RDONLY | O_CLOEXEC);
    assert_int_equal(read(fd, &byte, 1), 1);
    assert_int_equal(close(fd), 0);
    bool counts = access_time(f, "file") != old; /* the filesystem keeps access times */
    (void)read_in_1970(f, "file");
    assert_int_equal(read_one(f, node, WIRE_READFILES_NO_ATIME, &file), 0);
    assert_int_equal(access_time(f, "file"), old);
    assert_int_equal(file.attr.atime.sec, old);
    assert_int_equal(read_one(f, node, 0, &file), 0);
    assert_int_equal(access_time(f, "file") != old, counts);
    assert_int_equal(file.attr.atime.sec, access_time(f, "file"));
}

static void test_settled(void **state)
{
    struct fixture *f = *state;
    struct wire_file file;
    make_file(f, "file", "file");
    uint64_t node = (uint64_t)t_walk(f, "file");
    assert_int_equal(read_one(f, node, 0, &file), 0);
    assert_int_equal(file.flags, 0);
    ahead = 60;
    assert_int_equal(read_one(f, node, 0, &file), 0);
    if (getuid() == 0)
        assert_int_equal(file.attr.flags, WIRE_ATTR_COVERED);
    assert_int_equal(file.flags, file.attr.flags & WIRE_ATTR_COVERED ? WIRE_FILE_SETTLED : 0);
    ahead = -60; /* the file is of the future: its time can come again */
    assert_int_equal(read_one(f, node, 0, &file), 0);
    assert_int_equal(file.flags, 0);
    ahead = 0;
}

/* What is stored to a mapping comes without a new time. */
static void test_written_is_not_settled(void **state)
{
    struct fixture *f = *state;
    struct wire_file file;
    char full[4096], byte;
    int ready[2], stop[2], status;
    make_file(f, "file", "file");
    assert_int_equal(pipe2(ready, O_CLOEXEC) | pipe2(stop, O_CLOEXEC), 0);
    pid_t child = fork();
    if (child == 0) {
        (void)close(stop[1]);
        _exit(open(tree_path(f, "file", full), O_RDWR | O_CLOEXEC) < 0 ||
              write(ready[1], "", 1) != 1 || read(stop[0], &byte, 1) != 0);
    }
    assert_int_equal(read(ready[0], &byte, 1), 1);
    uint64_t node = (uint64_t)t_walk(f, "file");
    ahead = 60;
    assert_int_equal(read_one(f, node, 0, &file), 0);
    assert_int_equal(file.flags, 0);
    assert_false(file.attr.flags & WIRE_ATTR_COVERED);
    (void)close(stop[1]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(read_one(f, node, 0, &file), 0);
    assert_int_equal(file.flags, store_detects(f->store) ? WIRE_FILE_SETTLED : 0);
    ahead = 0;
    (void)close(stop[0]);
    (void)close(ready[0]);
    (void)close(ready[1]);
}

static void test_moved_by_others(void **state)
{
    struct fixture *f = *state;
    struct wire_file file;
    char full[4096], other[4096];
    assert_int_equal(mkdir(tree_path(f, "here", full), 0755), 0);
    make_file(f, "here/one", "one");
    make_file(f, "here/two", "two");
    const uint64_t nodes[] = {(uint64_t)t_walk(f, "here/one"), (uint64_t)t_walk(f, "here/two")};
    /* What this process does itself is not reported. */
    pid_t child = fork();
    if (child == 0)
        _exit(rename(tree_path(f, "here", full), tree_path(f, "there", other)) < 0);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    drop_descriptors(f);
    if (store_detects(f->store)) {
        assert_string_equal(lengths(f, nodes, 2, FULL), "3 3 ");
    } else {
        assert_int_equal(read_one(f, nodes[0], 0, &file), -ESTALE);
        assert_int_equal(read_one(f, nodes[1], 0, &file), -ESTALE);
    }
}

/* --- while it is written ------------------------------------------------------------ */

struct writer {
    struct fixture *f;
    atomic_bool stop;
    bool replace; /* by rename; else in place */
};

/* A version is so many times one letter, of a length that belongs to the letter. */
static size_t version_size(char letter)
{
    return 1000 + (size_t)(letter - 'a') * 2500;
}

static void *write_without_end(void *context)
{
    struct writer *w = context;
    char path[4096], other[4096], data[65536];
    const char *target = w->replace ? "new" : "file";
    (void)tree_path(w->f, "file", path);
    (void)tree_path(w->f, target, other);
    for (unsigned i = 0; !w->stop; i++) {
        char letter = (char)('a' + i % 26);
        memset(data, letter, version_size(letter));
        int fd = open(other, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
        ssize_t n = write(fd, data, version_size(letter));
        if (fd < 0 || n < 0 || close(fd) < 0 || (w->replace && rename(other, path) < 0))
            abort();
    }
    return NULL;
}

static void check_version(struct bytes data)
{
    if (data.len == 0)
        return; /* after O_TRUNC */
    char letter = (char)data.data[0];
    for (size_t i = 0; i < data.len; i++)
        assert_int_equal(data.data[i], letter);
    assert_int_equal(data.len, version_size(letter));
}

static void read_beside(struct fixture *f, bool replace)
{
    struct writer w = {.f = f, .replace = replace};
    pthread_t thread;
    make_file(f, "file", "");
    assert_int_equal(pthread_create(&thread, NULL, write_without_end, &w), 0);
    unsigned whole = 0;
    for (unsigned i = 0; i < 2000 || whole == 0; i++) {
        struct wire_file file;
        int64_t node = t_walk(f, "file");
        assert_true(node > 0);
        int r = read_one(f, (uint64_t)node, 0, &file);
        t_forget(f, (uint64_t)node, 1);
        if (r == 0)
            whole++;
        else if (r != -EAGAIN)
            assert_int_equal(r, -ESTALE);
        /* In place, two writes may have the same time. */
        if (r == 0 && replace)
            check_version(file.data);
    }
    w.stop = true;
    assert_int_equal(pthread_join(thread, NULL), 0);
}

static void test_beside_a_writer(void **state)
{
    read_beside(*state, false);
}

static void test_beside_replacements(void **state)
{
    read_beside(*state, true);
}

int main(int argc, char **argv)
{
    fixture_world(argc, argv);
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)
        TEST(test_in_the_order_asked_for),
        TEST(test_size),
        TEST(test_what_is_no_small_file),
        TEST(test_ends),
        TEST(test_malformed),
        TEST(test_rules),
        TEST(test_access_time),
        TEST(test_settled),
        TEST(test_written_is_not_settled),
        TEST(test_moved_by_others),
        TEST(test_beside_a_writer),
        TEST(test_beside_replacements),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

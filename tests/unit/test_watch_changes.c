/* Every change through every system call is reported between the change and the return of
 * watch_drain: no test here waits for anything but a child. */
#include "watch_fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/falloc.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "base/cleanup.h"

/* --- before -------------------------------------------------------------------- */

static int put(const char *path)
{
    _cleanup_close_ int fd = open(path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0644);
    return fd >= 0 && write(fd, "0123456789abcdef", 16) == 16 ? 0 : -1;
}

/* Run in a child in the test's directory, with directories a and b. */
static int nothing(void)
{
    return 0;
}

static int file(void)
{
    return put("a/x");
}

static int two_files(void)
{
    return put("a/x") || put("b/y");
}

static int two_links(void)
{
    return put("a/x") || link("a/x", "b/y");
}

static int hidden_link(void)
{
    return put("a/x") || mkdir("hidden", 0755) || link("a/x", "hidden/x");
}

static int directory(void)
{
    return mkdir("a/x", 0755);
}

static int file_with_xattr(void)
{
    return put("a/x") || setxattr("a/x", "user.k", "v", 1, 0);
}

static int link_to_nothing(void)
{
    return symlink("nowhere", "a/x");
}

/* --- changes ------------------------------------------------------------------- */

static int do_create(void)
{
    _cleanup_close_ int fd = open("a/x", O_CREAT | O_EXCL | O_RDONLY | O_CLOEXEC, 0644);
    return fd < 0;
}

static int do_mkdir(void)
{
    return mkdir("a/x", 0755);
}

static int do_mknod(void)
{
    return mknod("a/x", S_IFREG | 0644, 0);
}

static int do_mkfifo(void)
{
    return mknod("a/x", S_IFIFO | 0644, 0);
}

static int do_symlink(void)
{
    return symlink("nowhere", "a/x");
}

static int do_link(void)
{
    return link("a/x", "b/y");
}

static int do_tmpfile(void)
{
    _cleanup_close_ int fd = open("a", O_TMPFILE | O_WRONLY | O_CLOEXEC, 0644);
    char path[64];
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return fd < 0 || write(fd, "x", 1) != 1 ||
           linkat(AT_FDCWD, path, AT_FDCWD, "a/x", AT_SYMLINK_FOLLOW);
}

static int do_unlink(void)
{
    return unlink("a/x");
}

static int do_rmdir(void)
{
    return rmdir("a/x");
}

static int do_rename(void)
{
    return rename("a/x", "a/z");
}

static int do_rename_across(void)
{
    return rename("a/x", "b/z");
}

static int do_rename_over(void)
{
    return rename("a/x", "b/y");
}

static int do_exchange(void)
{
    return renameat2(AT_FDCWD, "a/x", AT_FDCWD, "b/y", RENAME_EXCHANGE);
}

static int in_file(int flags, int (*change)(int fd))
{
    _cleanup_close_ int fd = open("a/x", flags | O_CLOEXEC);
    return fd < 0 || change(fd);
}

static int with_write(int fd)
{
    return write(fd, "w", 1) != 1;
}

static int do_write(void)
{
    return in_file(O_WRONLY, with_write);
}

static int do_append(void)
{
    return in_file(O_WRONLY | O_APPEND, with_write);
}

static int with_pwrite(int fd)
{
    return pwrite(fd, "w", 1, 3) != 1;
}

static int do_pwrite(void)
{
    return in_file(O_RDWR, with_pwrite);
}

static int with_pwritev2(int fd)
{
    char text[] = "vector";
    struct iovec iov = {.iov_base = text, .iov_len = 6};
    return writev(fd, &iov, 1) != 6 || pwritev2(fd, &iov, 1, 0, RWF_DSYNC) != 6;
}

static int do_pwritev2(void)
{
    return in_file(O_RDWR, with_pwritev2);
}

static int do_write_through_link(void)
{
    _cleanup_close_ int fd = open("hidden/x", O_WRONLY | O_CLOEXEC);
    return fd < 0 || with_write(fd);
}

static int do_truncate(void)
{
    return truncate("a/x", 5);
}

static int with_ftruncate(int fd)
{
    return ftruncate(fd, 100);
}

static int do_ftruncate(void)
{
    return in_file(O_RDWR, with_ftruncate);
}

static int do_open_truncate(void)
{
    _cleanup_close_ int fd = open("a/x", O_WRONLY | O_TRUNC | O_CLOEXEC);
    return fd < 0;
}

static int with_fallocate(int fd)
{
    return fallocate(fd, 0, 0, 8192);
}

static int do_fallocate(void)
{
    return in_file(O_RDWR, with_fallocate);
}

static int with_punch_hole(int fd)
{
    return fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 8);
}

static int do_punch_hole(void)
{
    return in_file(O_RDWR, with_punch_hole);
}

static int with_copy_file_range(int fd)
{
    _cleanup_close_ int from = open("b/y", O_RDONLY | O_CLOEXEC);
    return copy_file_range(from, NULL, fd, NULL, 16, 0) != 16;
}

static int do_copy_file_range(void)
{
    return in_file(O_RDWR, with_copy_file_range);
}

static int with_sendfile(int fd)
{
    _cleanup_close_ int from = open("b/y", O_RDONLY | O_CLOEXEC);
    return sendfile(fd, from, NULL, 16) != 16;
}

static int do_sendfile(void)
{
    return in_file(O_RDWR, with_sendfile);
}

static int with_splice(int fd)
{
    int pipe_fds[2];
    return pipe2(pipe_fds, O_CLOEXEC) || write(pipe_fds[1], "pipe", 4) != 4 ||
           splice(pipe_fds[0], NULL, fd, NULL, 4, 0) != 4;
}

static int do_splice(void)
{
    return in_file(O_RDWR, with_splice);
}

static int do_chmod(void)
{
    return chmod("a/x", 0600);
}

static int with_fchmod(int fd)
{
    return fchmod(fd, 0640);
}

static int do_fchmod(void)
{
    return in_file(O_RDONLY, with_fchmod);
}

static int do_chown(void)
{
    return lchown("a/x", getuid(), getgid());
}

static int do_utimens(void)
{
    return utimensat(AT_FDCWD, "a/x", NULL, AT_SYMLINK_NOFOLLOW);
}

static int do_mtime(void)
{
    const struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = 1000}};
    return utimensat(AT_FDCWD, "a/x", times, 0);
}

static int do_setxattr(void)
{
    return setxattr("a/x", "user.k", "v", 1, 0);
}

static int do_removexattr(void)
{
    return removexattr("a/x", "user.k");
}

static int do_chmod_directory(void)
{
    return chmod("a", 0700);
}

/* What is told of a directory's own attributes must not depend on how it is reached. */
static int do_fchmod_directory(void)
{
    _cleanup_close_ int fd = open("a", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return fd < 0 || fchmod(fd, 0700);
}

static int do_close(void)
{
    _cleanup_close_ int fd = open("a/x", O_WRONLY | O_CLOEXEC);
    return fd < 0;
}

/* --- the table ----------------------------------------------------------------- */

/* An event that must come. With fanotify it names the target by its handle. */
struct want {
    const char *name; /* path; NULL: of the target alone */
    uint32_t kinds;
    const char *target;   /* path, before the change if there is something, else after it */
    enum watch_mode only; /* WATCH_AUTO: in both */
};

struct change {
    const char *what;
    int (*prepare)(void);
    int (*change)(void);
    struct want wants[6];
};

#define AT_X(change_kinds)                \
    {                                     \
        {                                 \
            "a/x", change_kinds, "a/x", 0 \
        }                                 \
    }
#define WRITTEN                                 \
    {                                           \
        {"a/x", WATCH_CONTENT, "a/x", 0},       \
        {                                       \
            "a/x", WATCH_CLOSED_WRITE, "a/x", 0 \
        }                                       \
    }

static const struct change changes[] = {
    {"create", nothing, do_create, AT_X(WATCH_NAME)},
    {"mkdir", nothing, do_mkdir, AT_X(WATCH_NAME)},
    {"mknod", nothing, do_mknod, AT_X(WATCH_NAME)},
    {"mkfifo", nothing, do_mkfifo, AT_X(WATCH_NAME)},
    {"symlink", nothing, do_symlink, AT_X(WATCH_NAME)},
    {"link",
     file,
     do_link,
     {{"b/y", WATCH_NAME, "a/x", 0}, {NULL, WATCH_ATTR, "a/x", WATCH_FANOTIFY}}},
    {"O_TMPFILE and linkat",
     nothing,
     do_tmpfile,
     {{"a/x", WATCH_NAME, "a/x", 0}, {NULL, WATCH_CLOSED_WRITE, "a/x", WATCH_FANOTIFY}}},
    {"unlink",
     file,
     do_unlink,
     {{"a/x", WATCH_NAME, "a/x", 0}, {NULL, WATCH_ATTR, "a/x", WATCH_FANOTIFY}}},
    {"unlink, one of two",
     two_links,
     do_unlink,
     {{"a/x", WATCH_NAME, "a/x", 0}, {NULL, WATCH_ATTR, "b/y", WATCH_FANOTIFY}}},
    {"rmdir", directory, do_rmdir, AT_X(WATCH_NAME)},
    {"rename", file, do_rename, {{"a/x", WATCH_NAME, "a/x", 0}, {"a/z", WATCH_NAME, "a/x", 0}}},
    {"rename across",
     file,
     do_rename_across,
     {{"a/x", WATCH_NAME, "a/x", 0}, {"b/z", WATCH_NAME, "a/x", 0}}},
    {"rename over",
     two_files,
     do_rename_over,
     {{"a/x", WATCH_NAME, "a/x", 0},
      {"b/y", WATCH_NAME, "a/x", 0},
      {NULL, WATCH_ATTR, "b/y", WATCH_FANOTIFY}}},
    {"rename, exchange",
     two_files,
     do_exchange,
     {{"a/x", WATCH_NAME, "a/x", 0},
      {"a/x", WATCH_NAME, "b/y", 0},
      {"b/y", WATCH_NAME, "a/x", 0},
      {"b/y", WATCH_NAME, "b/y", 0}}},
    {"rename of a directory",
     directory,
     do_rename_across,
     {{"a/x", WATCH_NAME, "a/x", 0}, {"b/z", WATCH_NAME, "a/x", 0}}},
    {"write", file, do_write, WRITTEN},
    {"append", file, do_append, WRITTEN},
    {"pwrite", file, do_pwrite, WRITTEN},
    {"writev, pwritev2", file, do_pwritev2, WRITTEN},
    {"write under another name",
     two_links,
     do_write,
     {{NULL, WATCH_CONTENT, "b/y", WATCH_FANOTIFY}}},
    {"write through a link elsewhere",
     hidden_link,
     do_write_through_link,
     {{NULL, WATCH_CONTENT, "a/x", WATCH_FANOTIFY}}},
    {"truncate", file, do_truncate, AT_X(WATCH_CONTENT)},
    {"ftruncate", file, do_ftruncate, WRITTEN},
    {"open with O_TRUNC", file, do_open_truncate, WRITTEN},
    {"fallocate", file, do_fallocate, WRITTEN},
    {"hole", file, do_punch_hole, WRITTEN},
    {"copy_file_range", two_files, do_copy_file_range, WRITTEN},
    {"sendfile", two_files, do_sendfile, WRITTEN},
    {"splice", file, do_splice, WRITTEN},
    {"chmod", file, do_chmod, AT_X(WATCH_ATTR)},
    {"fchmod", file, do_fchmod, AT_X(WATCH_ATTR)},
    {"chown", file, do_chown, AT_X(WATCH_ATTR)},
    {"lchown of a symbolic link", link_to_nothing, do_chown, AT_X(WATCH_ATTR)},
    {"times", file, do_utimens, AT_X(WATCH_ATTR)},
    {"times of a symbolic link", link_to_nothing, do_utimens, AT_X(WATCH_ATTR)},
    {"time of content alone", file, do_mtime, AT_X(WATCH_CONTENT)},
    {"setxattr", file, do_setxattr, AT_X(WATCH_ATTR)},
    {"removexattr", file_with_xattr, do_removexattr, AT_X(WATCH_ATTR)},
    {"chmod of a subdirectory",
     directory,
     do_chmod,
     {{"a/x", WATCH_ATTR, "a/x", WATCH_INOTIFY}, {NULL, WATCH_ATTR, "a/x", WATCH_FANOTIFY}}},
    {"chmod of the directory", nothing, do_chmod_directory, {{NULL, WATCH_ATTR, "a", 0}}},
    {"fchmod of the directory", nothing, do_fchmod_directory, {{NULL, WATCH_ATTR, "a", 0}}},
    {"open to write, and close", file, do_close, AT_X(WATCH_CLOSED_WRITE)},
};

static bool happened(const struct fixture *f, const struct want *want, uint64_t target)
{
    bool fanotify = world_mode() == WATCH_FANOTIFY;
    char dir[2] = {want->name ? want->name[0] : 0};
    uint64_t parent = want->name ? number_of(dir) : 0;
    for (size_t i = 0; i < f->count; i++) {
        const struct kept_event *e = &f->events[i];
        if ((e->kinds & want->kinds) != want->kinds)
            continue;
        if (want->name && (e->dir != parent || strcmp(e->name, want->name + 2) != 0))
            continue;
        if ((fanotify || !want->name) ? e->target == target : e->target == 0)
            return true;
    }
    return false;
}

static int clear(void)
{
    return system("rm -rf a b hidden && mkdir a b");
}

static uint64_t number_or_0(const char *path)
{
    uint64_t number = 0;
    return file_handle_hash_at(AT_FDCWD, path, &number) == 0 ? number : 0;
}

static void run_change(struct fixture *f, const struct change *c)
{
    const struct watch_options options = fixture_options();
    in_child(clear);
    in_child(c->prepare);
    fixture_watch(f, &options);
    watch_path(f, "a");
    watch_path(f, "b");
    settle(f);
    uint64_t targets[ARRAY_SIZE(c->wants)];
    for (size_t i = 0; c->wants[i].kinds; i++)
        if ((targets[i] = number_or_0(c->wants[i].target)))
            know(f, targets[i]);
    in_child(c->change);
    for (size_t i = 0; c->wants[i].kinds; i++)
        if (!targets[i])
            know(f, targets[i] = number_of(c->wants[i].target));
    assert_int_equal(watch_drain(f->watch), 0);
    for (size_t i = 0; c->wants[i].kinds; i++) {
        const struct want *want = &c->wants[i];
        if ((want->only && want->only != world_mode()) || happened(f, want, targets[i]))
            continue;
        print_events(f);
        fail_msg("%s: the event %zu, of '%s', kinds %#x, target %016llx, did not come", c->what, i,
                 want->name ? want->name : "", want->kinds, (unsigned long long)targets[i]);
    }
    assert_int_equal(f->lost, 0);
}

static void test_every_change(void **state)
{
    for (size_t i = 0; i < ARRAY_SIZE(changes); i++)
        run_change(*state, &changes[i]);
}

/* --- what is no change, and what is not seen ----------------------------------- */

static int do_look(void)
{
    char text[16];
    struct stat st;
    _cleanup_close_ int fd = open("a/x", O_RDONLY | O_CLOEXEC);
    return fd < 0 || read(fd, text, sizeof text) != sizeof text || stat("a/x", &st) ||
           access("a/x", R_OK) || system("ls -la a > /dev/null");
}

static int do_atime(void)
{
    const struct timespec times[2] = {{.tv_sec = 1000}, {.tv_nsec = UTIME_OMIT}};
    return utimensat(AT_FDCWD, "a/x", times, 0);
}

static void prepare_x(struct fixture *f, bool opens)
{
    struct watch_options options = fixture_options();
    options.opens = opens;
    in_child(clear);
    in_child(file);
    fixture_watch(f, &options);
    watch_path(f, "a");
    know(f, number_of("a/x"));
    settle(f);
}

static void test_looking_is_silent(void **state)
{
    struct fixture *f = *state;
    prepare_x(f, false);
    in_child(do_look);
    in_child(do_atime);
    assert_int_equal(watch_drain(f->watch), 0);
    if (f->count)
        print_events(f);
    assert_int_equal(f->count, 0);
    in_child(do_chmod);
    assert_int_equal(watch_drain(f->watch), 0);
    assert_int_not_equal(f->count, 0);
}

static void test_opens(void **state)
{
    struct fixture *f = *state;
    prepare_x(f, true);
    in_child(do_look);
    assert_int_equal(watch_drain(f->watch), 0);
    assert_true(count_named(f, number_of("a"), "x", WATCH_OPENED) > 0);
    assert_int_equal(count_named(f, number_of("a"), "x", WATCH_CLOSED_WRITE), 0);
}

/* Tells the parent that a step is done, and waits to be told to go on. */
static int told, go;

static int next_step(void)
{
    char c = 0;
    return write(told, &c, 1) != 1 || read(go, &c, 1) != 1;
}

static int do_map(void)
{
    int fd = open("a/x", O_RDWR | O_CLOEXEC);
    char *map = fd < 0 ? MAP_FAILED : mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED || close(fd) < 0 || next_step())
        return -1;
    memcpy(map, "stored", 6);
    if (msync(map, 4096, MS_SYNC) < 0 || next_step())
        return -1;
    return munmap(map, 4096) || next_step();
}

static int do_aio(void)
{
    _cleanup_close_ int fd = open("a/x", O_RDWR | O_CLOEXEC);
    aio_context_t context = 0;
    static char text[] = "asynchronous";
    struct iocb io = {.aio_lio_opcode = IOCB_CMD_PWRITE,
                      .aio_fildes = (uint32_t)fd,
                      .aio_buf = (uintptr_t)text,
                      .aio_nbytes = 12};
    struct iocb *ios[] = {&io};
    struct io_event done;
    if (fd < 0 || syscall(SYS_io_setup, 1, &context) < 0 ||
        syscall(SYS_io_submit, context, 1, ios) != 1 ||
        syscall(SYS_io_getevents, context, 1, 1, &done, NULL) != 1 || done.res != 12)
        return -1;
    return next_step() || close(take_fd(&fd)) || next_step();
}

/* Runs a child of some steps; looked is called after each. */
static void in_steps(struct fixture *f, int (*change)(void), int steps,
                     void (*looked)(struct fixture *f, int step))
{
    int up[2], down[2];
    assert_int_equal(pipe2(up, O_CLOEXEC), 0);
    assert_int_equal(pipe2(down, O_CLOEXEC), 0);
    pid_t pid = fork_child();
    if (pid == 0) {
        told = up[1];
        go = down[0];
        _exit(change() == 0 ? 0 : 1);
    }
    (void)close(up[1]);
    (void)close(down[0]);
    for (int step = 0; step < steps; step++) {
        char c;
        assert_int_equal(read(up[0], &c, 1), 1);
        assert_int_equal(watch_drain(f->watch), 0);
        looked(f, step);
        f->count = 0;
        assert_int_equal(write(down[1], "", 1), 1);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    (void)close(up[0]);
    (void)close(down[1]);
}

static void looked_at_map(struct fixture *f, int step)
{
    size_t opened = count_named(f, number_of("a"), "x", WATCH_OPENED);
    size_t closed = count_named(f, number_of("a"), "x", WATCH_CLOSED_WRITE);
    assert_int_equal(count_named(f, number_of("a"), "x", WATCH_CONTENT), 0);
    assert_int_equal(opened > 0, step == 0); /* the writer is announced */
    assert_int_equal(closed > 0, step == 2); /* and its end, though the descriptor went before */
}

static void test_shared_mapping(void **state)
{
    struct fixture *f = *state;
    prepare_x(f, true);
    in_steps(f, do_map, 3, looked_at_map);
}

static void looked_at_aio(struct fixture *f, int step)
{
    /* Not told before the close, as it is (Linux 6.18); it would be welcome. */
    assert_int_equal(count_named(f, number_of("a"), "x", WATCH_CLOSED_WRITE) > 0, step == 1);
}

static void test_asynchronous_write(void **state)
{
    struct fixture *f = *state;
    prepare_x(f, false);
    in_steps(f, do_aio, 2, looked_at_aio);
}

static int do_write_unlinked(void)
{
    _cleanup_close_ int fd = open("a/x", O_RDWR | O_CLOEXEC);
    if (fd < 0 || put("a/new") || rename("a/new", "a/x") || next_step())
        return -1;
    return with_write(fd) || next_step();
}

static void looked_at_unlinked(struct fixture *f, int step)
{
    if (step == 0)
        return;
    bool fanotify = world_mode() == WATCH_FANOTIFY;
    assert_int_equal(count_target(f, number_of("a/x"), WATCH_CONTENT), 0);
    assert_int_equal(count_target(f, f->known[2], WATCH_CONTENT) > 0, fanotify);
    assert_int_not_equal(count_named(f, number_of("a"), "x", WATCH_CONTENT), 0);
}

/* A file that another was renamed over is told by its handle, and by inotify not at all. */
static void test_write_to_a_replaced_file(void **state)
{
    struct fixture *f = *state;
    prepare_x(f, false);
    in_steps(f, do_write_unlinked, 2, looked_at_unlinked);
}

int main(int argc, char **argv)
{
    world(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_every_change, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_looking_is_silent, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_opens, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_shared_mapping, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_asynchronous_write, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_write_to_a_replaced_file, fixture_setup,
                                        fixture_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* What an untrusted agent, a greedy client or a full disk does to the store. */
#include "store_fixture.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/sanitizers.h"
#include "store/path.h"

#define RW (WIRE_OPEN_READ | WIRE_OPEN_WRITE)

/* How long each race runs. */
#define RACE_NS (2 * NSEC_PER_SEC)

#define RENAME_PAUSE_US 20

/* --- many threads ------------------------------------------------------------------- */

struct worker {
    pthread_t thread;
    struct fixture f; /* its own session and reply */
    atomic_bool *stop;
    unsigned seed;
    unsigned long count;
    int64_t wrong; /* the first answer that should not be; asserts work in the main thread alone */
};

static bool is_ordinary(int64_t r)
{
    return r >= 0 || r == -ENOENT || r == -ESTALE || r == -EEXIST || r == -ENOTEMPTY ||
           r == -EISDIR || r == -ENOTDIR || r == -EINVAL || r == -EPERM || r == -ELOOP;
}

static void random_request(struct worker *w)
{
    static const char *const names[] = {"a", "b", "c", "d"};
    struct fixture *f = &w->f;
    const char *name = names[rand_r(&w->seed) % 4], *other = names[rand_r(&w->seed) % 4];
    int64_t dir = (int64_t)f->demo;
    if (rand_r(&w->seed) % 2) {
        dir = t_lookup(f, f->demo, other);
        if (dir < 0)
            dir = (int64_t)f->demo;
    }
    int64_t r = 0;
    uint64_t handle;
    switch (rand_r(&w->seed) % 8) {
    case 0:
        r = t_create(f, (uint64_t)dir, name, RW, 0644, &handle);
        if (r > 0) {
            r = t_write(f, handle, 0, name);
            if (r == 1)
                r = t_read(f, handle, 0, 1);
            t_release(f, handle);
        }
        break;
    case 1:
        r = t_mkdir(f, (uint64_t)dir, name);
        break;
    case 2:
        r = t_rename(f, (uint64_t)dir, name, f->demo, other,
                     rand_r(&w->seed) % 2 ? RENAME_EXCHANGE : 0);
        break;
    case 3:
        r = t_unlink(f, (uint64_t)dir, name);
        break;
    case 4:
        r = t_rmdir(f, (uint64_t)dir, name);
        break;
    case 5:
        r = t_lookup(f, (uint64_t)dir, name);
        if (r > 0)
            r = t_getattr(f, (uint64_t)r, 0, NULL);
        break;
    case 6:
        r = t_open(f, (uint64_t)dir, WIRE_OPEN_READ | WIRE_OPEN_DIRECTORY);
        if (r > 0) {
            handle = (uint64_t)r;
            r = run(f,
                    &(struct wire_message){.type = WIRE_READDIR,
                                           .readdir = {.handle = handle, .size = 4096, .plus = 1}});
            t_release(f, handle);
        }
        break;
    default:
        t_forget(f, (uint64_t)dir, dir == (int64_t)f->demo ? 0 : 3);
        break;
    }
    if (!is_ordinary(r) && w->wrong == 0)
        w->wrong = r;
}

static void *work(void *context)
{
    struct worker *w = context;
    while (!atomic_load(w->stop)) {
        random_request(w);
        if (w->count++ % 16 == 0)
            drop_descriptors(&w->f);
    }
    return NULL;
}

static void test_many_threads(void **state)
{
    struct fixture *f = *state;
    struct worker workers[4] = {0};
    atomic_bool stop = false;
    struct file_session *shared;
    assert_int_equal(file_session_new(f->store, &shared), 0);
    for (size_t i = 0; i < ARRAY_SIZE(workers); i++) {
        struct worker *w = &workers[i];
        *w = (struct worker){.stop = &stop, .seed = (unsigned)i};
        w->f.store = f->store;
        /* Two with a session of their own, two on one, as a connection's workers are. */
        if (i < 2)
            w->f.session = shared;
        else
            assert_int_equal(file_session_new(f->store, &w->f.session), 0);
        w->f.demo = (uint64_t)t_open_workspace(&w->f, "demo");
    }
    for (size_t i = 0; i < ARRAY_SIZE(workers); i++)
        assert_int_equal(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    (void)usleep(RACE_NS / 1000);
    atomic_store(&stop, true);
    for (size_t i = 0; i < ARRAY_SIZE(workers); i++) {
        (void)pthread_join(workers[i].thread, NULL);
        assert_int_equal(workers[i].wrong, 0);
        assert_true(workers[i].count > 100);
        buffer_release(&workers[i].f.reply.storage);
        if (i >= 2)
            file_session_free(workers[i].f.session);
    }
    file_session_free(shared);
    t_await_status(f, "nodes", 1);
    assert_int_equal(t_status(f, "handles"), 0);
}

static void *rename_about(void *context)
{
    struct worker *w = context;
    struct fixture *f = &w->f;
    while (!atomic_load(w->stop) && w->wrong == 0) {
        w->wrong = t_rename(f, f->demo, "here", f->demo, "there", 0);
        (void)usleep(RENAME_PAUSE_US); /* long enough to notice a wrong place */
        if (w->wrong == 0)
            w->wrong = t_rename(f, f->demo, "there", f->demo, "here", 0);
        (void)usleep(RENAME_PAUSE_US);
        w->count++;
    }
    return NULL;
}

/* A node is reached however its directory is renamed through the service meanwhile. */
static void test_rename_is_seamless(void **state)
{
    struct fixture *f = *state;
    atomic_bool stop = false;
    int64_t here = t_mkdir(f, f->demo, "here");
    assert_true(t_mkdir(f, (uint64_t)here, "sub") > 0);
    make_file(f, "here/sub/file", "x");
    int64_t file = t_walk(f, "here/sub/file");
    assert_true(file > 0);
    struct worker renamer = {.stop = &stop};
    renamer.f.store = f->store;
    assert_int_equal(file_session_new(f->store, &renamer.f.session), 0);
    renamer.f.demo = (uint64_t)t_open_workspace(&renamer.f, "demo");
    assert_int_equal(pthread_create(&renamer.thread, NULL, rename_about, &renamer), 0);
    uint64_t end = clock_monotonic_ns() + RACE_NS;
    int getattr = 0;
    int64_t found = here;
    while (clock_monotonic_ns() < end && getattr == 0 && (found == here || found == -ENOENT)) {
        found = t_lookup(f, f->demo, "here");
        drop_descriptors(f);
        getattr = t_getattr(f, (uint64_t)file, 0, NULL);
    }
    atomic_store(&stop, true);
    (void)pthread_join(renamer.thread, NULL);
    assert_int_equal(renamer.wrong, 0);
    assert_int_equal(getattr, 0);
    assert_true(found == here || found == -ENOENT);
    assert_true(renamer.count > 10);
    buffer_release(&renamer.f.reply.storage);
    file_session_free(renamer.f.session);
}

/* A workspace removed while others work in it. */
static void test_remove_while_working(void **state)
{
    struct fixture *f = *state;
    atomic_bool stop = false;
    struct worker w = {.stop = &stop, .seed = 9};
    w.f.store = f->store;
    assert_int_equal(file_session_new(f->store, &w.f.session), 0);
    w.f.demo = (uint64_t)t_open_workspace(&w.f, "demo");
    assert_int_equal(pthread_create(&w.thread, NULL, work, &w), 0);
    (void)usleep(200000);
    const struct wire_message remove = {.type = WIRE_WORKSPACE_REMOVE,
                                        .workspace_remove.key = bytes_of_string("demo")};
    assert_int_equal(run(f, &remove), 0);
    assert_int_equal(t_create_workspace(f, "demo"), 0);
    (void)usleep(200000);
    atomic_store(&stop, true);
    (void)pthread_join(w.thread, NULL);
    assert_int_equal(w.wrong, 0);
    assert_int_equal(t_getattr(&w.f, w.f.demo, 0, NULL), -ESTALE);
    assert_false(exists(f, "a") || exists(f, "b") || exists(f, "c") || exists(f, "d"));
    buffer_release(&w.f.reply.storage);
    file_session_free(w.f.session);
}

/* --- paths ------------------------------------------------------------------------- */

static int open_path(int fd, const char *path, bool use_openat2)
{
    char copy[8192];
    size_t len = strlen(path);
    memcpy(copy, path, len + 1);
    int opened = path_open(fd, copy, len, use_openat2);
    if (opened >= 0)
        (void)close(opened);
    return opened < 0 ? opened : 0;
}

static void test_path_open(void **state)
{
    struct fixture *f = *state;
    int fd = open(f->tree, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(mkdirat(fd, "d", 0755), 0);
    assert_int_equal(mkdirat(fd, "d/e", 0755), 0);
    make_file(f, "d/e/file", "");
    assert_int_equal(symlinkat("/etc", fd, "d/absolute"), 0);
    assert_int_equal(symlinkat("..", fd, "d/up"), 0);
    assert_int_equal(symlinkat("e", fd, "d/harmless"), 0);
    /* Twenty levels of 255 bytes: more than one call can take. */
    char longest[8192] = "";
    int level = dup(fd);
    for (int i = 0; i < 20; i++) {
        char name[256];
        memset(name, 'a' + i, 255);
        name[255] = '\0';
        (void)snprintf(longest + strlen(longest), sizeof longest - strlen(longest), "%s%s",
                       i ? "/" : "", name);
        assert_int_equal(mkdirat(level, name, 0755), 0);
        int next = openat(level, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        (void)close(level);
        level = next;
    }
    assert_int_equal(symlinkat("/", level, "root"), 0);
    (void)close(level);
    bool works = path_openat2_works(fd);
    for (int with = 0; with <= works; with++) {
        int refused = with ? -ELOOP : -ENOTDIR;
        assert_int_equal(open_path(fd, "d/e/file", with), 0);
        assert_int_equal(open_path(fd, "d/absolute", with), 0); /* the link itself */
        assert_int_equal(open_path(fd, "d/absolute/passwd", with), refused);
        assert_int_equal(open_path(fd, "d/up/d/e", with), refused);
        assert_int_equal(open_path(fd, "d/harmless/file", with), refused);
        assert_int_equal(open_path(fd, "d/e/file/x", with), -ENOTDIR);
        assert_int_equal(open_path(fd, "d/nothing/x", with), -ENOENT);
        assert_int_equal(open_path(fd, longest, with), 0);
        size_t len = strlen(longest);
        (void)snprintf(longest + len, sizeof longest - len, "/root/etc");
        assert_int_equal(open_path(fd, longest, with), refused);
        longest[len] = '\0';
    }
    (void)close(fd);
}

/* --- depth and size --------------------------------------------------------------- */

static void test_deep(void **state)
{
    struct fixture *f = *state;
    const size_t levels = 10000;
    int64_t node = (int64_t)f->demo, first = 0, middle = 0;
    for (size_t i = 0; i < TREE_DEPTH_MAX + 1; i++) {
        node = t_mkdir(f, (uint64_t)node, "directory");
        assert_true(node > 0);
        if (i == 0)
            first = node;
        if (i == levels)
            middle = node;
    }
    drop_descriptors(f);
    assert_int_equal(t_getattr(f, (uint64_t)middle, 0, NULL), 0);
    uint64_t handle;
    assert_true(t_create(f, (uint64_t)middle, "file", RW, 0644, &handle) > 0);
    assert_int_equal(t_write(f, handle, 0, "deep"), 4);
    drop_descriptors(f);
    assert_int_equal(t_getattr(f, (uint64_t)node, 0, NULL), -ENAMETOOLONG);
    /* All of it elsewhere: one rename, and all nodes are right. */
    assert_int_equal(t_rename(f, f->demo, "directory", f->demo, "moved", 0), 0);
    drop_descriptors(f);
    assert_int_equal(t_getattr(f, (uint64_t)middle, 0, NULL), 0);
    assert_int_equal(t_getattr(f, (uint64_t)first, 0, NULL), 0);
    /* Forgotten from the top down: the chain of parents stays for those below. */
    t_forget(f, (uint64_t)first, 1);
    drop_descriptors(f);
    assert_int_equal(t_getattr(f, (uint64_t)middle, 0, NULL), 0);
}

static size_t resident_bytes(void)
{
    size_t pages = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%*s %zu", &pages), 1);
    (void)fclose(file);
    return pages * (size_t)sysconf(_SC_PAGESIZE);
}

static void test_many_nodes(void **state)
{
    struct fixture *f = *state;
    enum { DIRECTORIES = 100, FILES = 1000 };
    for (int i = 0; i < DIRECTORIES; i++) {
        char name[32], path[4096];
        (void)snprintf(name, sizeof name, "directory%d", i);
        assert_int_equal(mkdir(tree_path(f, name, path), 0755), 0);
        int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        for (int j = 0; j < FILES; j++) {
            (void)snprintf(name, sizeof name, "some_file_%d.c", j);
            assert_int_equal(mknodat(fd, name, S_IFREG | 0644, 0), 0);
        }
        (void)close(fd);
    }
    size_t before = resident_bytes();
    for (int i = 0; i < DIRECTORIES; i++) {
        char name[32];
        (void)snprintf(name, sizeof name, "directory%d", i);
        int64_t dir = t_lookup(f, f->demo, name);
        for (int j = 0; j < FILES; j++) {
            (void)snprintf(name, sizeof name, "some_file_%d.c", j);
            assert_true(t_lookup(f, (uint64_t)dir, name) > 0);
        }
    }
    size_t used = resident_bytes() - before;
    size_t nodes = (size_t)t_status(f, "nodes");
    assert_int_equal(nodes, DIRECTORIES * FILES + DIRECTORIES + 1);
    print_message("%zu bytes resident for %zu nodes: %zu each\n", used, nodes, used / nodes);
#if !ADDRESS_SANITIZED && !THREAD_SANITIZED
    /* Who is not root is told of changes by a watch on each. */
    assert_true(used / nodes < (geteuid() == 0 ? 320 : 440));
#endif
}

/* --- limits ------------------------------------------------------------------------- */

static void test_node_limit(void **state)
{
    struct fixture *f = *state;
    struct store_limits limits = fixture_limits();
    limits.session_nodes = 4;
    fixture_reopen(f, &limits);
    uint64_t handle;
    assert_true(t_mkdir(f, f->demo, "a") > 0);
    assert_true(t_mkdir(f, f->demo, "b") > 0);
    int64_t c = t_mkdir(f, f->demo, "c");
    assert_true(c > 0);
    make_file(f, "d", "");
    assert_int_equal(t_lookup(f, f->demo, "d"), -ENFILE);
    assert_true(t_lookup(f, f->demo, "a") > 0); /* known already */
    assert_int_equal(t_mkdir(f, f->demo, "e"), -ENFILE);
    assert_int_equal(t_create(f, f->demo, "e", RW, 0644, &handle), -ENFILE);
    assert_int_equal(t_symlink(f, f->demo, "e", "x"), -ENFILE);
    assert_int_equal(t_mknod(f, f->demo, "e", S_IFREG | 0644), -ENFILE);
    assert_false(exists(f, "e"));
    assert_int_equal(t_status(f, "handles"), 0);
    /* A listing goes on without nodes. */
    int64_t directory = t_open(f, f->demo, WIRE_OPEN_READ | WIRE_OPEN_DIRECTORY);
    const struct wire_message readdir = {
        .type = WIRE_READDIR, .readdir = {.handle = (uint64_t)directory, .size = 65536, .plus = 1}};
    assert_int_equal(run(f, &readdir), 0);
    assert_int_equal(f->reply.message.dirents.entries.count, 4);
    t_forget(f, (uint64_t)c, 100);
    assert_true(t_lookup(f, f->demo, "d") > 0);
    /* Another session has its own. */
    struct file_session *other;
    assert_int_equal(file_session_new(f->store, &other), 0);
    const struct wire_message open = {.type = WIRE_WORKSPACE_OPEN,
                                      .workspace_open.key = bytes_of_string("demo")};
    assert_int_equal(run_in(f, other, &open), 0);
    file_session_free(other);
}

static void test_handle_limits(void **state)
{
    struct fixture *f = *state;
    struct store_limits limits = fixture_limits();
    limits.session_handles = 2;
    limits.handles = 3;
    fixture_reopen(f, &limits);
    make_file(f, "a", "");
    int64_t a = t_lookup(f, f->demo, "a");
    uint64_t handle;
    assert_true(t_open(f, (uint64_t)a, RW) > 0);
    int64_t second = t_open(f, (uint64_t)a, RW);
    assert_true(second > 0);
    assert_int_equal(t_open(f, (uint64_t)a, RW), -EMFILE);
    assert_int_equal(t_open(f, f->demo, WIRE_OPEN_READ | WIRE_OPEN_DIRECTORY), -EMFILE);
    assert_int_equal(t_create(f, f->demo, "b", RW, 0644, &handle), -EMFILE);
    assert_false(exists(f, "b"));
    t_release(f, (uint64_t)second);
    assert_true(t_open(f, (uint64_t)a, RW) > 0);
    struct fixture other = {.store = f->store};
    assert_int_equal(file_session_new(f->store, &other.session), 0);
    other.demo = (uint64_t)t_open_workspace(&other, "demo");
    assert_true(t_create(&other, other.demo, "c", RW, 0644, &handle) > 0);
    assert_int_equal(t_create(&other, other.demo, "d", RW, 0644, &handle), -ENFILE);
    assert_false(exists(f, "d"));
    /* Refused opens give their reservation back. */
    assert_int_equal(t_open(f, (uint64_t)a, 0), -EINVAL);
    assert_int_equal(t_status(f, "handles"), 3);
    file_session_free(other.session);
    assert_int_equal(t_status(f, "handles"), 2);
    buffer_release(&other.reply.storage);
}

static void test_cache_limit(void **state)
{
    struct fixture *f = *state;
    struct store_limits limits = fixture_limits();
    limits.cached_descriptors = 8;
    fixture_reopen(f, &limits);
    int64_t nodes[100];
    for (int i = 0; i < 100; i++) {
        char name[16];
        (void)snprintf(name, sizeof name, "d%d", i);
        nodes[i] = t_mkdir(f, f->demo, name);
        assert_true(t_mkdir(f, (uint64_t)nodes[i], "sub") > 0);
    }
    for (int i = 0; i < 100; i++) {
        int64_t sub = t_lookup(f, (uint64_t)nodes[i * 37 % 100], "sub");
        assert_true(sub > 0);
        assert_int_equal(t_getattr(f, (uint64_t)sub, 0, NULL), 0);
        assert_true(t_status(f, "descriptors") <= 8);
    }
    t_await_status(f, "descriptors", 8);
}

/* The process has no descriptor left but those that are kept. */
static void test_no_descriptors(void **state)
{
    struct fixture *f = *state;
    struct store_limits limits = fixture_limits();
    limits.cached_descriptors = 100;
    fixture_reopen(f, &limits);
    int64_t nodes[50], file = 0;
    uint64_t handle;
    for (int i = 0; i < 50; i++) {
        char name[16];
        (void)snprintf(name, sizeof name, "d%d", i);
        nodes[i] = t_mkdir(f, f->demo, name);
        file = t_create(f, (uint64_t)nodes[i], "file", RW, 0644, &handle);
        assert_true(file > 0);
        t_release(f, handle);
    }
    for (int kind = 0; kind < 4; kind++) {
        drop_descriptors(f);
        for (int i = 1; i < 50; i++)
            assert_true(t_lookup(f, (uint64_t)nodes[i], "file") > 0);
        t_await_status(f, "descriptors", 49);
        int taken[1000], count = 0;
        struct rlimit before, low;
        assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
        low = before;
        low.rlim_cur = 150;
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
        while (count < 1000 && (taken[count] = dup(0)) >= 0)
            count++;
        int64_t r = 0;
        if (kind == 0) {
            r = t_lookup(f, (uint64_t)nodes[0], "file");
        } else if (kind == 1) {
            r = t_open(f, (uint64_t)nodes[49], WIRE_OPEN_READ | WIRE_OPEN_DIRECTORY);
        } else if (kind == 2) {
            r = t_open(f, (uint64_t)file, WIRE_OPEN_READ);
        } else {
            r = t_create(f, (uint64_t)nodes[49], "new", RW, 0644, &handle);
        }
        while (count > 0)
            (void)close(taken[--count]);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
        assert_true(r > 0);
        if (kind > 0)
            t_release(f, kind == 3 ? handle : (uint64_t)r);
    }
}

/* --- a full disk --------------------------------------------------------------------- */

/* Mounts a small filesystem on the store's directory, in a mount namespace of our own. */
static void mount_small(struct fixture *f, const char *options)
{
    assert_int_equal(unshare(CLONE_NEWNS), 0);
    assert_int_equal(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL), 0);
    assert_int_equal(mount("tmpfs", f->directory, "tmpfs", 0, options), 0);
}

static void open_fresh(struct fixture *f)
{
    struct failure failure = {0};
    assert_int_equal(store_open(f->root, WATCH_AUTO, &f->store, &failure), 0);
    assert_int_equal(file_session_new(f->store, &f->session), 0);
    assert_int_equal(t_create_workspace(f, "demo"), 0);
    f->demo = (uint64_t)t_open_workspace(f, "demo");
}

static void test_disk_full(void **state)
{
    struct fixture *f = *state;
    struct fixture small = *f;
    small.reply = (struct reply){0};
    mount_small(f, "size=1m,nr_inodes=40");
    open_fresh(&small);
    uint64_t handle;
    assert_true(t_create(&small, small.demo, "file", RW, 0644, &handle) > 0);
    char *text = malloc(300001);
    memset(text, 't', 300000);
    text[300000] = '\0';
    /* Bytes that fit are counted, the rest meets the error. */
    int64_t r = 0, written = 0;
    while ((r = t_write(&small, handle, (uint64_t)written, text)) > 0)
        written += r;
    assert_int_equal(r, -ENOSPC);
    assert_true(written > 300000 && written % 300000 != 0);
    struct wire_attr attr;
    assert_int_equal(t_getattr(&small, (uint64_t)t_lookup(&small, small.demo, "file"), 0, &attr),
                     0);
    assert_int_equal(attr.size, written);
    /* No name appears that has no room. */
    int made = 0;
    char name[16];
    for (;; made++) {
        (void)snprintf(name, sizeof name, "f%d", made);
        r = t_create(&small, small.demo, name, RW, 0644, &handle);
        if (r < 0)
            break;
        t_release(&small, handle);
    }
    assert_int_equal(r, -ENOSPC);
    assert_true(made > 5);
    assert_false(exists(f, name));
    assert_int_equal(t_mkdir(&small, small.demo, name), -ENOSPC);
    assert_int_equal(t_symlink(&small, small.demo, name, "x"), -ENOSPC);
    assert_int_equal(t_mknod(&small, small.demo, name, S_IFREG | 0644), -ENOSPC);
    assert_int_equal(t_lookup(&small, small.demo, name), -ENOENT);
    assert_int_equal(t_create_workspace(&small, "two"), -ENOSPC);
    assert_int_equal(t_status(&small, "workspaces"), 1);
    char path[4096];
    (void)snprintf(path, sizeof path, "%s/tmp", f->root);
    assert_true(directory_empty(path));
    /* Everything goes on when there is room again. */
    for (int i = 0; i < made; i++) {
        (void)snprintf(name, sizeof name, "f%d", i);
        assert_int_equal(t_unlink(&small, small.demo, name), 0);
    }
    assert_int_equal(t_unlink(&small, small.demo, "file"), 0);
    free(text);
    fixture_reopen(&small, NULL); /* closes the file, whose bytes go */
    assert_int_equal(t_create_workspace(&small, "two"), 0);
    file_session_free(small.session);
    store_close(small.store);
    buffer_release(&small.reply.storage);
    assert_int_equal(umount2(f->directory, MNT_DETACH), 0);
}

int main(int argc, char **argv)
{
    fixture_world(argc, argv);
#define T(function) cmocka_unit_test_setup_teardown(function, fixture_setup, fixture_teardown)
#define EVERYWHERE                                                                                \
    T(test_many_threads), T(test_rename_is_seamless), T(test_remove_while_working), T(test_deep), \
        T(test_many_nodes), T(test_node_limit), T(test_handle_limits), T(test_cache_limit),       \
        T(test_no_descriptors), T(test_path_open)
    const struct CMUnitTest without_mount[] = {EVERYWHERE};
    const struct CMUnitTest tests[] = {
        EVERYWHERE,
        T(test_disk_full), /* last: it leaves the process in a mount namespace of its own */
    };
    /* Only root may mount the small filesystem. */
    if (getuid() != 0)
        return cmocka_run_group_tests(without_mount, NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

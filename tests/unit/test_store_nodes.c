/* Listing directories, and what nodes are: counted, found again, and never another file. */
#include "store_fixture.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define UNKNOWN_NUMBER 99999999

/* --- readdir --------------------------------------------------------------------- */

/* Decodes the DIRENTS reply; calls visit for each entry. */
static uint64_t each_entry(struct fixture *f, void (*visit)(const struct wire_dirent *, void *),
                           void *context)
{
    const struct wire_dirents *d = &f->reply.message.dirents;
    uint32_t offset = 0, count = 0;
    struct bytes element;
    uint64_t cookie = 0;
    while (wire_list_next(&d->entries, &offset, &element)) {
        struct wire_message m;
        assert_int_equal(wire_decode(WIRE_DIRENT, element, &m), 0);
        cookie = m.dirent.cookie;
        visit(&m.dirent, context);
        count++;
    }
    assert_int_equal(count, d->entries.count);
    return cookie;
}

static int list_after(struct fixture *f, uint64_t handle, uint64_t cookie, uint32_t size,
                      uint32_t plus)
{
    return run(f, &(struct wire_message){
                      .type = WIRE_READDIR,
                      .readdir = {.handle = handle, .cookie = cookie, .size = size, .plus = plus}});
}

struct seen {
    struct fixture *f;
    unsigned char of[4096];
    size_t count;
};

static void visit_numbered(const struct wire_dirent *d, void *context)
{
    struct seen *seen = context;
    char name[256] = {0};
    memcpy(name, d->name.data, d->name.len);
    int i = atoi(name + 1);
    assert_true(name[0] == 'f' && i >= 0 && i < 4096);
    assert_int_equal(d->type, S_IFREG);
    assert_true(d->ino >> 40 == 1);
    assert_int_equal(seen->of[i], 0);
    seen->of[i] = 1;
    seen->count++;
    if (d->node)
        assert_int_equal(d->attr.ino, d->ino);
}

static void test_readdir_sizes(void **state)
{
    struct fixture *f = *state;
    char path[4096];
    assert_int_equal(mkdir(tree_path(f, ".berth", path), 0755), 0);
    for (int i = 0; i < 3000; i++) {
        char name[16];
        (void)snprintf(name, sizeof name, "f%d", i);
        make_file(f, name, "");
    }
    static const uint32_t sizes[] = {0, 1, 400, 4096, 65536, UINT32_MAX};
    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++)
        for (uint32_t plus = 0; plus < 2; plus++) {
            int64_t handle = t_open(f, f->demo, WIRE_OPEN_READ | WIRE_OPEN_DIRECTORY);
            struct seen *seen = calloc(1, sizeof *seen);
            uint64_t cookie = 0;
            do {
                assert_int_equal(list_after(f, (uint64_t)handle, cookie, sizes[i], plus), 0);
                uint32_t count = f->reply.message.dirents.entries.count;
                assert_true(f->reply.message.dirents.end || count > 0);
                assert_true(count <= 1 || f->reply.message.dirents.entries.len <= sizes[i]);
                if (count)
                    cookie = each_entry(f, visit_numbered, seen);
            } while (!f->reply.message.dirents.end);
            assert_int_equal(seen->count, 3000);
            free(seen);
            t_release(f, (uint64_t)handle);
        }
    /* Each plus listing counted one reference on each node. */
    t_await_status(f, "nodes", 3001);
    int64_t node = t_lookup(f, f->demo, "f7");
    t_forget(f, (uint64_t)node, ARRAY_SIZE(sizes));
    assert_int_equal(t_getattr(f, (uint64_t)node, 0, NULL), 0);
    t_forget(f, (uint64_t)node, 1);
    assert_int_equal(t_getattr(f, (uint64_t)node, 0, NULL), -ESTALE);
}

static void visit_and_unlink(const struct wire_dirent *d, void *context)
{
    struct seen *seen = context;
    visit_numbered(d, seen);
    char name[256] = {0}, path[4096];
    memcpy(name, d->name.data, d->name.len);
    assert_int_equal(unlink(tree_path(seen->f, name, path)), 0);
}

static void test_readdir_while_deleting(void **state)
{
    struct fixture *f = *state;
    for (int i = 0; i < 3000; i++) {
        char name[16];
        (void)snprintf(name, sizeof name, "f%d", i);
        make_file(f, name, "");
    }
    int64_t handle = t_open(f, f->demo, WIRE_OPEN_READ | WIRE_OPEN_DIRECTORY);
    struct seen *seen = calloc(1, sizeof *seen);
    seen->f = f;
    uint64_t cookie = 0;
    do {
        assert_int_equal(list_after(f, (uint64_t)handle, cookie, 4096, 0), 0);
        if (f->reply.message.dirents.entries.count)
            cookie = each_entry(f, visit_and_unlink, seen);
    } while (!f->reply.message.dirents.end);
    assert_int_equal(seen->count, 3000);
    free(seen);
    assert_int_equal(list_after(f, (uint64_t)handle, 0, 4096, 0), 0); /* rewinddir */
    assert_int_equal(f->reply.message.dirents.entries.count, 0);
    assert_int_equal(f->reply.message.dirents.end, 1);
}

static void visit_nothing(const struct wire_dirent *d, void *context)
{
    *(struct wire_dirent *)context = *d;
}

static void test_readdir_errors(void **state)
{
    struct fixture *f = *state;
    uint64_t handle;
    int64_t dir = t_mkdir(f, f->demo, "d");
    assert_true(t_create(f, f->demo, "a", WIRE_OPEN_READ | WIRE_OPEN_WRITE, 0644, &handle) > 0);
    assert_int_equal(list_after(f, handle, 0, 4096, 0), -ENOTDIR);
    assert_int_equal(list_after(f, UNKNOWN_NUMBER, 0, 4096, 0), -EBADF);
    int64_t directory = t_open(f, (uint64_t)dir, WIRE_OPEN_READ | WIRE_OPEN_DIRECTORY);
    assert_int_equal(list_after(f, (uint64_t)directory, UINT64_MAX - 5, 4096, 0), -EINVAL);
    assert_int_equal(list_after(f, (uint64_t)directory, 0, 4096, 1), 0);
    assert_int_equal(f->reply.message.dirents.entries.count, 0);
    assert_int_equal(f->reply.message.dirents.end, 1);
    /* Readable, not searchable: names without nodes. Root may search all. */
    make_file(f, "d/x", "");
    char path[4096];
    assert_int_equal(chmod(tree_path(f, "d", path), 0400), 0);
    assert_int_equal(list_after(f, (uint64_t)directory, 0, 4096, 1), 0);
    assert_int_equal(f->reply.message.dirents.entries.count, 1);
    struct wire_dirent entry;
    (void)each_entry(f, visit_nothing, &entry);
    assert_int_equal(entry.type, S_IFREG);
    assert_int_equal(entry.node == 0, getuid() != 0);
    assert_int_equal(chmod(path, 0755), 0);
}

/* --- references -------------------------------------------------------------------- */

static void test_forget(void **state)
{
    struct fixture *f = *state;
    make_file(f, "a", "");
    int64_t node = t_lookup(f, f->demo, "a");
    assert_int_equal(t_lookup(f, f->demo, "a"), node);
    t_forget(f, (uint64_t)node, 1);
    assert_int_equal(t_getattr(f, (uint64_t)node, 0, NULL), 0);
    /* More than there are, twice, unknown, zero. */
    t_forget(f, (uint64_t)node, UINT64_MAX);
    assert_int_equal(t_getattr(f, (uint64_t)node, 0, NULL), -ESTALE);
    t_forget(f, (uint64_t)node, UINT64_MAX);
    t_forget(f, UNKNOWN_NUMBER, 1);
    t_forget(f, f->demo, 0);
    assert_int_equal(t_getattr(f, f->demo, 0, NULL), 0);
    /* Known again under a new number. */
    int64_t again = t_lookup(f, f->demo, "a");
    assert_true(again > node);
    /* A forgotten directory is kept as long as its children need it. */
    int64_t dir = t_mkdir(f, f->demo, "d");
    make_file(f, "d/x", "");
    int64_t child = t_lookup(f, (uint64_t)dir, "x");
    t_forget(f, (uint64_t)dir, 1);
    assert_int_equal(t_getattr(f, (uint64_t)dir, 0, NULL), -ESTALE);
    assert_int_equal(t_getattr(f, (uint64_t)child, 0, NULL), 0);
    /* The handle of a forgotten node goes on. */
    int64_t handle = t_open(f, (uint64_t)child, WIRE_OPEN_READ);
    t_forget(f, (uint64_t)child, 1);
    assert_int_equal(t_read(f, (uint64_t)handle, 0, 1), 0);
    t_forget(f, f->demo, 1);
    assert_int_equal(t_lookup(f, f->demo, "a"), -ESTALE);
}

/* Changed by a command, not through the service. */
static void test_behind_our_back(void **state)
{
    struct fixture *f = *state;
    char from[4096], to[4096];
    make_file(f, "a", "old");
    int64_t a = t_lookup(f, f->demo, "a");
    /* Replaced: the old node is gone, and its number never means the new file. */
    make_file(f, "b", "new");
    assert_int_equal(rename(tree_path(f, "b", from), tree_path(f, "a", to)), 0);
    assert_int_equal(t_getattr(f, (uint64_t)a, 0, NULL), -ESTALE);
    assert_int_equal(t_open(f, (uint64_t)a, WIRE_OPEN_READ), -ESTALE);
    assert_true(t_lookup(f, f->demo, "a") != a);
    /* Inode numbers used again at once, as ext4 does. */
    for (int i = 0; i < 50; i++) {
        make_file(f, "same", "x");
        int64_t before = t_lookup(f, f->demo, "same");
        assert_int_equal(unlink(tree_path(f, "same", from)), 0);
        make_file(f, "same", "y");
        assert_int_equal(t_getattr(f, (uint64_t)before, 0, NULL), -ESTALE);
        assert_true(t_lookup(f, f->demo, "same") != before);
    }
    /* Moved: found again once it has been looked up there. */
    assert_int_equal(mkdir(tree_path(f, "d", from), 0755), 0);
    make_file(f, "d/x", "");
    int64_t d = t_lookup(f, f->demo, "d");
    int64_t x = t_lookup(f, (uint64_t)d, "x");
    assert_int_equal(rename(tree_path(f, "d", from), tree_path(f, "e", to)), 0);
    drop_descriptors(f);
    assert_int_equal(t_lookup(f, f->demo, "e"), d);
    assert_int_equal(t_getattr(f, (uint64_t)x, 0, NULL), 0);
    /* Turned inside out: d/e becomes e/d, which a list of parents must not make a circle of. */
    int64_t inner = t_mkdir(f, (uint64_t)d, "inner");
    assert_int_equal(rename(tree_path(f, "e/inner", from), tree_path(f, "outer", to)), 0);
    assert_int_equal(rename(tree_path(f, "e", from), tree_path(f, "outer/e", to)), 0);
    drop_descriptors(f);
    assert_int_equal(t_lookup(f, f->demo, "outer"), inner);
    assert_int_equal(t_lookup(f, (uint64_t)inner, "e"), d);
    assert_int_equal(t_getattr(f, (uint64_t)x, 0, NULL), 0);
    assert_int_equal(rename(tree_path(f, "outer/e", from), tree_path(f, "e", to)), 0);
    assert_int_equal(rename(tree_path(f, "outer", from), tree_path(f, "e/outer", to)), 0);
    /* Now the inner one is looked up through a directory whose noted parent is itself. */
    assert_int_equal(t_lookup(f, (uint64_t)d, "outer"), inner);
    drop_descriptors(f);
    /* fanotify leaves out what this process does. */
    assert_int_equal(t_getattr(f, (uint64_t)inner, 0, NULL), f->store->by_file ? 0 : -ESTALE);
    assert_int_equal(t_lookup(f, f->demo, "e"), d);
    assert_int_equal(t_getattr(f, (uint64_t)inner, 0, NULL), 0);
}

/* Made for another user, from the first moment, and by nobody who may not. */
static void test_made_for_others(void **state)
{
    struct fixture *f = *state;
    const bool root = geteuid() == 0;
    struct wire_message m = {.type = WIRE_MKDIR,
                             .mkdir = {.parent = f->demo,
                                       .mode = 0700,
                                       .make = WIRE_MAKE_OWNER,
                                       .uid = 4711,
                                       .gid = 4712,
                                       .name = bytes_of_string("theirs")}};
    assert_int_equal(run(f, &m), root ? 0 : -EPERM);
    if (root) {
        assert_int_equal(f->reply.message.made.attr.uid, 4711);
        assert_int_equal(f->reply.message.made.attr.gid, 4712);
        /* Where that user may not write: the modes were checked where the caller is. */
        const uint64_t theirs = f->reply.message.made.node;
        m = (struct wire_message){.type = WIRE_CREATE,
                                  .create = {.parent = theirs,
                                             .flags = WIRE_OPEN_WRITE,
                                             .mode = 06755,
                                             .make = WIRE_MAKE_OWNER,
                                             .uid = 4713,
                                             .gid = 4714,
                                             .name = bytes_of_string("file")}};
        assert_int_equal(run(f, &m), 0);
        assert_int_equal(f->reply.message.created.attr.uid, 4713);
        assert_int_equal(f->reply.message.created.attr.mode & 07777, 06755);
        t_release(f, f->reply.message.created.handle);
    }
    /* The thread is itself again. */
    struct wire_attr attr;
    int64_t own = t_symlink(f, f->demo, "own", "x");
    assert_int_equal(t_getattr(f, (uint64_t)own, 0, &attr), 0);
    assert_int_equal(attr.uid, geteuid());
    m = (struct wire_message){.type = WIRE_MKDIR,
                              .mkdir = {.parent = f->demo,
                                        .make = WIRE_MAKE_OWNER,
                                        .uid = UINT32_MAX,
                                        .name = bytes_of_string("nobodys")}};
    assert_int_equal(run(f, &m), -EINVAL);
    m.mkdir.make = 2;
    assert_int_equal(run(f, &m), -EINVAL);
    assert_int_equal(t_lookup(f, f->demo, "nobodys"), -ENOENT);
}

static int make_device(struct fixture *f, const char *name, mode_t mode, uint32_t make)
{
    return run(f, &(struct wire_message){.type = WIRE_MKNOD,
                                         .mknod = {.parent = f->demo,
                                                   .mode = mode,
                                                   .rdev = (uint32_t)makedev(1, 3),
                                                   .make = make,
                                                   .uid = geteuid(),
                                                   .gid = getegid(),
                                                   .name = bytes_of_string(name)}});
}

static int watch_opens(const char *path)
{
    int fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    assert_true(fd >= 0 && inotify_add_watch(fd, path, IN_OPEN) >= 0);
    return fd;
}

static bool was_opened(int watch)
{
    /* Events of a watch on a file have no names: they are all of one size. */
    struct inotify_event events[32];
    ssize_t n = read(watch, events, sizeof events);
    for (ssize_t i = 0; i < n / (ssize_t)sizeof *events; i++)
        if (events[i].mask & IN_OPEN)
            return true;
    return false;
}

/* Every request that names a node, on one that is a device. */
static void ask_everything(struct fixture *f, uint64_t device)
{
    const struct bytes xattr = bytes_of_string("user.x");
    struct wire_message setattr = {.type = WIRE_SETATTR, .setattr = {.node = device, .mode = 0600}};
    uint64_t handle;
    assert_int_equal(t_open(f, device, WIRE_OPEN_READ), -ENXIO);
    assert_int_equal(t_open(f, device, WIRE_OPEN_WRITE), -ENXIO);
    assert_int_equal(t_open(f, device, WIRE_OPEN_WRITE | WIRE_OPEN_TRUNCATE), -ENXIO);
    assert_int_equal(t_open(f, device, WIRE_OPEN_READ | WIRE_OPEN_DIRECTORY), -ENOTDIR);
    assert_int_equal(t_create(f, f->demo, "device", WIRE_OPEN_WRITE, 0600, &handle), -ESTALE);
    assert_int_equal(
        t_create(f, f->demo, "device", WIRE_OPEN_WRITE | WIRE_OPEN_EXCLUSIVE, 0600, &handle),
        -EEXIST);
    assert_int_equal(t_getattr(f, device, 0, NULL), 0);
    setattr.setattr.valid = WIRE_SET_SIZE;
    assert_int_equal(run(f, &setattr), -EINVAL);
    setattr.setattr.valid = WIRE_SET_UID | WIRE_SET_GID;
    assert_int_equal(run(f, &setattr), 0);
    setattr.setattr.valid = WIRE_SET_ATIME | WIRE_SET_MTIME | WIRE_SET_MTIME_NOW;
    assert_int_equal(run(f, &setattr), 0);
    setattr.setattr.valid = WIRE_SET_MODE | WIRE_SET_KILL_PRIV;
    assert_int_equal(run(f, &setattr), 0);
    const struct wire_message others[] = {
        {.type = WIRE_READLINK, .readlink.node = device},
        {.type = WIRE_GETXATTR, .getxattr = {.node = device, .name = xattr}},
        {.type = WIRE_SETXATTR, .setxattr = {.node = device, .name = xattr, .value = xattr}},
        {.type = WIRE_LISTXATTR, .listxattr.node = device},
        {.type = WIRE_REMOVEXATTR, .removexattr = {.node = device, .name = xattr}},
        {.type = WIRE_STATFS, .statfs.node = device},
        {.type = WIRE_LOOKUP, .lookup = {.parent = device, .name = xattr}},
    };
    for (size_t i = 0; i < ARRAY_SIZE(others); i++)
        (void)run(f, &others[i]);
    assert_int_equal(t_link(f, device, f->demo, "second"), device);
    assert_int_equal(t_rename(f, f->demo, "second", f->demo, "third", 0), 0);
    int64_t root = t_open(f, f->demo, WIRE_OPEN_READ | WIRE_OPEN_DIRECTORY);
    assert_int_equal(list_after(f, (uint64_t)root, 0, 0x1000, 1), 0);
    t_release(f, (uint64_t)root);
    drop_descriptors(f);
    assert_int_equal(t_getattr(f, device, 0, NULL), 0);
    assert_int_equal(t_unlink(f, f->demo, "third"), 0);
    assert_int_equal(t_unlink(f, f->demo, "device"), 0);
}

/* Made for root by root, and never opened, not even when one was there already. */
static void test_devices(void **state)
{
    struct fixture *f = *state;
    char path[4096];
    assert_int_equal(make_device(f, "device", S_IFCHR | 0666, 0), -EPERM);
    assert_int_equal(make_device(f, "device", S_IFBLK | 0666, 0), -EPERM);
    assert_false(exists(f, "device"));
    if (geteuid() != 0) {
        assert_int_equal(make_device(f, "device", S_IFCHR | 0666, WIRE_MAKE_OWNER), -EPERM);
        return;
    }
    assert_int_equal(make_device(f, "device", S_IFBLK | 0640, WIRE_MAKE_OWNER), 0);
    assert_int_equal(f->reply.message.made.attr.mode, S_IFBLK | 0640);
    assert_int_equal(f->reply.message.made.attr.rdev, makedev(1, 3));
    assert_int_equal(t_unlink(f, f->demo, "device"), 0);
    assert_int_equal(make_device(f, "device", S_IFCHR | 0666, WIRE_MAKE_OWNER), 0);

    _cleanup_close_ int watch = watch_opens(tree_path(f, "device", path));
    ask_everything(f, f->reply.message.made.node);
    assert_false(was_opened(watch));

    assert_int_equal(mknod(path, S_IFCHR | 0666, makedev(1, 3)), 0);
    _cleanup_close_ int second = watch_opens(path);
    ask_everything(f, (uint64_t)t_lookup(f, f->demo, "device"));
    assert_false(was_opened(second));

    /* The watch would have told. */
    assert_int_equal(mknod(path, S_IFCHR | 0666, makedev(1, 3)), 0);
    _cleanup_close_ int third = watch_opens(path), fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0 && was_opened(third));
    assert_int_equal(unlink(path), 0);
}

int main(int argc, char **argv)
{
    fixture_world(argc, argv);
#define T(function) cmocka_unit_test_setup_teardown(function, fixture_setup, fixture_teardown)
    const struct CMUnitTest tests[] = {
        T(test_readdir_sizes), T(test_readdir_while_deleting), T(test_readdir_errors),
        T(test_forget),        T(test_behind_our_back),        T(test_made_for_others),
        T(test_devices),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

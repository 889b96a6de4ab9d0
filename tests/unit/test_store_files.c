/* Each file operation: what it does, and the exact errno when it does not. */
#include "store_fixture.h"

#include <fcntl.h>
#include <linux/falloc.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/xattr.h>
#include <unistd.h>

#define RW (WIRE_OPEN_READ | WIRE_OPEN_WRITE)
#define UNKNOWN_NUMBER 99999999

static uint64_t make(struct fixture *f, const char *name, uint64_t *ret_handle)
{
    int64_t node = t_create(f, f->demo, name, RW | WIRE_OPEN_EXCLUSIVE, 0644, ret_handle);
    assert_true(node > 0);
    return (uint64_t)node;
}

static uint64_t make_closed(struct fixture *f, const char *name, const char *text)
{
    uint64_t handle;
    uint64_t node = make(f, name, &handle);
    if (text[0])
        assert_int_equal(t_write(f, handle, 0, text), (int64_t)strlen(text));
    t_release(f, handle);
    return node;
}

/* What was sent behind a change that fails, before its answer, fails in the same way. */
static void test_behind(void **state)
{
    struct fixture *f = *state;
    uint64_t handle;
    uint64_t node = make(f, "behind", &handle);
    const struct wire_message behind = {.type = WIRE_WRITE,
                                        .write = {.handle = handle,
                                                  .offset = 10,
                                                  .flags = WIRE_WRITE_BEHIND,
                                                  .data = bytes_of_string("hole")}};
    struct wire_message grow = {
        .type = WIRE_SETATTR,
        .setattr = {.node = node, .handle = handle, .valid = WIRE_SET_SIZE | WIRE_SET_BEHIND}};
    grow.setattr.size = 100;
    const struct wire_message mode = {
        .type = WIRE_SETATTR,
        .setattr = {.node = node, .handle = handle, .valid = WIRE_SET_MODE, .mode = 0600}};
    assert_int_equal(t_write(f, handle, 0, "start"), 5);
    assert_int_equal(run(f, &behind), 0);
    assert_int_equal(t_write(f, handle, INT64_MAX, "x"), -EFBIG);
    assert_int_equal(run(f, &behind), -EFBIG);
    assert_int_equal(run(f, &mode), 0); /* counts on no data */
    assert_int_equal(f->reply.message.attrs.attr.size, 14);
    assert_int_equal(run(f, &grow), -EFBIG);
    assert_int_equal(run(f, &behind), -EFBIG);
    /* One that counts on none begins anew. */
    assert_int_equal(t_write(f, handle, 0, "START"), 5);
    assert_int_equal(run(f, &grow), 0);
    assert_int_equal(f->reply.message.attrs.attr.size, 100);
    grow.setattr.size = (uint64_t)INT64_MAX + 1;
    assert_true(run(f, &grow) < 0);
    assert_true(run(f, &behind) < 0);
    t_release(f, handle);
}

static void test_lookup(void **state)
{
    struct fixture *f = *state;
    make_file(f, "a", "text");
    int64_t node = t_lookup(f, f->demo, "a");
    assert_true(node > 0);
    struct wire_attr attr = f->reply.message.entry.attr;
    char path[4096];
    struct stat st;
    assert_int_equal(stat(tree_path(f, "a", path), &st), 0);
    assert_true((attr.ino & ((UINT64_C(1) << 40) - 1)) == st.st_ino);
    assert_int_equal(attr.ino >> 40, 1); /* the service's first workspace */
    assert_int_equal(attr.size, 4);
    assert_int_equal(attr.mode, S_IFREG | 0644);
    assert_int_equal(attr.nlink, 1);
    assert_int_equal(attr.uid, st.st_uid);
    assert_int_equal(attr.gid, st.st_gid);
    assert_int_equal(attr.blocks, st.st_blocks);
    assert_int_equal(attr.mtime.sec, st.st_mtim.tv_sec);
    assert_int_equal(attr.mtime.nsec, st.st_mtim.tv_nsec);
    assert_true(attr.generation != 0 && attr.version != 0);
    /* Again, and by another name: the same node. */
    assert_int_equal(t_lookup(f, f->demo, "a"), node);
    char other[4096];
    assert_int_equal(link(path, tree_path(f, "b", other)), 0);
    assert_int_equal(t_lookup(f, f->demo, "b"), node);
    assert_int_equal(f->reply.message.entry.attr.nlink, 2);

    assert_int_equal(t_lookup(f, f->demo, "nothing"), -ENOENT);
    assert_int_equal(t_lookup(f, (uint64_t)node, "x"), -ENOTDIR);
    assert_int_equal(t_lookup(f, UNKNOWN_NUMBER, "x"), -ESTALE);
}

static void test_names(void **state)
{
    struct fixture *f = *state;
    char longest[257];
    memset(longest, 'n', 256);
    longest[256] = '\0';
    uint64_t handle;
    static const char *const bad[] = {"a/b", ".", "..", "/", "/etc/passwd", "../x", ""};
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        assert_int_equal(t_lookup(f, f->demo, bad[i]), -EINVAL);
        assert_int_equal(t_mkdir(f, f->demo, bad[i]), -EINVAL);
        assert_int_equal(t_create(f, f->demo, bad[i], RW, 0644, &handle), -EINVAL);
        assert_int_equal(t_unlink(f, f->demo, bad[i]), -EINVAL);
        assert_int_equal(t_rmdir(f, f->demo, bad[i]), -EINVAL);
        assert_int_equal(t_rename(f, f->demo, "x", f->demo, bad[i], 0), -EINVAL);
        assert_int_equal(t_symlink(f, f->demo, bad[i], "t"), -EINVAL);
    }
    const struct wire_message nul = {.type = WIRE_LOOKUP,
                                     .lookup = {.parent = f->demo, .name = bytes_of("a\0b", 3)}};
    assert_int_equal(run(f, &nul), -EINVAL);
    assert_int_equal(t_lookup(f, f->demo, longest), -ENAMETOOLONG);
    assert_int_equal(t_mkdir(f, f->demo, longest), -ENAMETOOLONG);
    char *path = malloc(65537);
    memset(path, 'p', 65536);
    path[65536] = '\0';
    assert_int_equal(t_lookup(f, f->demo, path), -ENAMETOOLONG);
    free(path);
    longest[255] = '\0';
    assert_true(t_mkdir(f, f->demo, longest) > 0);
    assert_true(t_lookup(f, f->demo, longest) > 0);
    /* Names are bytes. */
    assert_true(t_mkdir(f, f->demo, "new\nline \xff\xfe") > 0);
    assert_true(exists(f, "new\nline \xff\xfe"));
}

static void test_hidden(void **state)
{
    struct fixture *f = *state;
    char path[4096];
    assert_int_equal(mkdir(tree_path(f, ".berth", path), 0755), 0);
    uint64_t handle;
    uint64_t node = make_closed(f, "a", "");
    assert_int_equal(t_lookup(f, f->demo, ".berth"), -ENOENT);
    assert_int_equal(t_mkdir(f, f->demo, ".berth"), -EPERM);
    assert_int_equal(t_create(f, f->demo, ".berth", RW, 0644, &handle), -EPERM);
    assert_int_equal(t_symlink(f, f->demo, ".berth", "x"), -EPERM);
    assert_int_equal(t_mknod(f, f->demo, ".berth", S_IFREG | 0644), -EPERM);
    assert_int_equal(t_link(f, node, f->demo, ".berth"), -EPERM);
    assert_int_equal(t_unlink(f, f->demo, ".berth"), -ENOENT);
    assert_int_equal(t_rmdir(f, f->demo, ".berth"), -ENOENT);
    assert_int_equal(t_rename(f, f->demo, ".berth", f->demo, "b", 0), -ENOENT);
    assert_int_equal(t_rename(f, f->demo, "a", f->demo, ".berth", 0), -EPERM);
    assert_int_equal(t_rename(f, f->demo, "a", f->demo, ".berth", RENAME_EXCHANGE), -EPERM);
    assert_true(exists(f, ".berth"));
    /* Only there. */
    int64_t sub = t_mkdir(f, f->demo, "sub");
    assert_true(t_mkdir(f, (uint64_t)sub, ".berth") > 0);
}

static void test_getattr(void **state)
{
    struct fixture *f = *state;
    uint64_t handle;
    uint64_t node = make(f, "a", &handle);
    struct wire_attr attr;
    assert_int_equal(t_write(f, handle, 0, "123"), 3);
    assert_int_equal(t_getattr(f, node, handle, &attr), 0);
    assert_int_equal(attr.size, 3);
    uint64_t version = attr.version;
    assert_int_equal(t_write(f, handle, 3, "4"), 1);
    assert_int_equal(t_getattr(f, node, 0, &attr), 0);
    assert_int_equal(attr.size, 4);
    assert_true(attr.version != version);
    assert_int_equal(t_getattr(f, f->demo, handle, &attr), -EBADF); /* of another node */
    assert_int_equal(t_getattr(f, node, UNKNOWN_NUMBER, &attr), -EBADF);
    assert_int_equal(t_getattr(f, UNKNOWN_NUMBER, 0, &attr), -ESTALE);
    assert_int_equal(t_getattr(f, handle, 0, &attr), -ESTALE);
    assert_int_equal(t_getattr(f, 0, 0, &attr), -ESTALE);
    /* Unlinked but open: all of it still works. */
    assert_int_equal(t_unlink(f, f->demo, "a"), 0);
    assert_int_equal(t_getattr(f, node, 0, &attr), 0);
    assert_int_equal(attr.nlink, 0);
    assert_int_equal(t_read(f, handle, 0, 10), 0);
    assert_string_equal(t_data(f), "1234");
    int64_t again = t_open(f, node, WIRE_OPEN_READ);
    assert_true(again > 0);
    t_release(f, (uint64_t)again);
    t_release(f, handle);
    /* And while the node is held, by whoever has it by O_PATH. */
    assert_int_equal(t_getattr(f, node, 0, &attr), 0);
    assert_int_equal(attr.nlink, 0);
    t_forget(f, node, 1);
    assert_int_equal(t_getattr(f, node, 0, &attr), -ESTALE);
    assert_int_equal(t_open(f, node, WIRE_OPEN_READ), -ESTALE);
}

static int set(struct fixture *f, struct wire_setattr set)
{
    return run(f, &(struct wire_message){.type = WIRE_SETATTR, .setattr = set});
}

static void test_setattr(void **state)
{
    struct fixture *f = *state;
    uint64_t handle;
    uint64_t node = make(f, "a", &handle);
    assert_int_equal(t_write(f, handle, 0, "12345"), 5);
    const struct wire_attr *attr = &f->reply.message.attrs.attr;
    /* Size, mode and times in one request, in an order that leaves the times as asked. */
    struct wire_setattr all = {.node = node,
                               .valid =
                                   WIRE_SET_SIZE | WIRE_SET_MODE | WIRE_SET_ATIME | WIRE_SET_MTIME,
                               .size = 2,
                               .mode = 0600,
                               .atime = {.sec = 1000, .nsec = 999999999},
                               .mtime = {.sec = -5, .nsec = 123456789}};
    assert_int_equal(set(f, all), 0);
    assert_int_equal(attr->size, 2);
    assert_int_equal(attr->mode, S_IFREG | 0600);
    assert_int_equal(attr->atime.sec, 1000);
    assert_int_equal(attr->atime.nsec, 999999999);
    assert_int_equal(attr->mtime.sec, -5);
    assert_int_equal(attr->mtime.nsec, 123456789);
    /* One time alone leaves the other; NOW is the server's now. */
    assert_int_equal(set(f, (struct wire_setattr){.node = node, .valid = WIRE_SET_ATIME_NOW}), 0);
    assert_true(attr->atime.sec > 1000000000);
    assert_int_equal(attr->mtime.sec, -5);
    assert_int_equal(set(f, (struct wire_setattr){.node = node, .valid = WIRE_SET_MTIME_NOW}), 0);
    assert_true(attr->mtime.sec > 1000000000);
    struct wire_setattr wrong = all;
    wrong.mtime.nsec = 1000000000;
    assert_int_equal(set(f, wrong), -EINVAL);
    assert_int_equal(set(f, (struct wire_setattr){.node = node, .valid = 1 << 20}), -EINVAL);
    /* A writable handle may set the size whatever the mode says. */
    assert_int_equal(set(f, (struct wire_setattr){.node = node, .valid = WIRE_SET_MODE}), 0);
    assert_int_equal(set(f, (struct wire_setattr){.node = node,
                                                  .handle = handle,
                                                  .valid = WIRE_SET_SIZE,
                                                  .size = 70000}),
                     0);
    assert_int_equal(attr->size, 70000);
    if (getuid() != 0)
        assert_int_equal(
            set(f, (struct wire_setattr){.node = node, .valid = WIRE_SET_SIZE, .size = 1}),
            -EACCES);
    assert_int_equal(set(f, (struct wire_setattr){.node = node,
                                                  .handle = handle,
                                                  .valid = WIRE_SET_SIZE,
                                                  .size = UINT64_MAX}),
                     -EFBIG);
    assert_int_equal(
        set(f, (struct wire_setattr){.node = f->demo, .handle = handle, .valid = WIRE_SET_SIZE}),
        -EBADF);
    assert_int_equal(set(f, (struct wire_setattr){.node = f->demo, .valid = WIRE_SET_SIZE}),
                     -EISDIR);
    t_release(f, handle);
    /* No descriptor is kept that would keep a deleted file's blocks. */
    drop_descriptors(f);
    assert_int_equal(set(f, (struct wire_setattr){.node = node, .valid = WIRE_SET_ATIME_NOW}), 0);
    t_await_status(f, "descriptors", 0);

    int64_t link = t_symlink(f, f->demo, "link", "nowhere");
    assert_int_equal(set(f, (struct wire_setattr){.node = (uint64_t)link,
                                                  .valid = WIRE_SET_MTIME,
                                                  .mtime = {.sec = 77}}),
                     0);
    assert_int_equal(attr->mtime.sec, 77);
    assert_int_equal(attr->mode & S_IFMT, S_IFLNK);
    assert_int_equal(
        set(f, (struct wire_setattr){.node = (uint64_t)link, .valid = WIRE_SET_MODE, .mode = 0600}),
        -EOPNOTSUPP);
    assert_int_equal(set(f, (struct wire_setattr){.node = (uint64_t)link, .valid = WIRE_SET_SIZE}),
                     -EINVAL);
    assert_int_equal(set(f, (struct wire_setattr){.node = (uint64_t)link,
                                                  .valid = WIRE_SET_UID | WIRE_SET_GID,
                                                  .uid = getuid(),
                                                  .gid = getgid()}),
                     0);
    if (getuid() == 0) {
        assert_int_equal(set(f, (struct wire_setattr){.node = node,
                                                      .valid = WIRE_SET_UID | WIRE_SET_MODE,
                                                      .uid = 1234,
                                                      .mode = 06755}),
                         0);
        assert_int_equal(attr->uid, 1234);
        /* chown clears set-user-ID, so the mode must come after it. */
        assert_int_equal(attr->mode, S_IFREG | 06755);
    } else {
        assert_int_equal(set(f, (struct wire_setattr){.node = node, .valid = WIRE_SET_UID}),
                         -EPERM);
    }
}

static void test_kill_priv(void **state)
{
    struct fixture *f = *state;
    uint64_t handle;
    uint64_t node = make(f, "a", &handle);
    const struct wire_setattr with = {.node = node, .valid = WIRE_SET_MODE, .mode = 06777};
    struct wire_attr attr;
    assert_int_equal(set(f, with), 0);
    assert_int_equal(f->reply.message.attrs.attr.mode & 07777, 06777);
    assert_int_equal(set(f, (struct wire_setattr){.node = node, .valid = WIRE_SET_KILL_PRIV}), 0);
    assert_int_equal(f->reply.message.attrs.attr.mode & 07777, 0777);
    assert_int_equal(set(f, with), 0);
    const struct wire_message write = {
        .type = WIRE_WRITE,
        .write = {.handle = handle, .flags = WIRE_WRITE_KILL_PRIV, .data = bytes_of_string("x")}};
    assert_int_equal(run(f, &write), 0);
    assert_int_equal(t_getattr(f, node, 0, &attr), 0);
    assert_int_equal(attr.mode & 07777, 0777);
    assert_int_equal(set(f, with), 0);
    int64_t other = t_open(f, node, RW | WIRE_OPEN_TRUNCATE | WIRE_OPEN_KILL_PRIV);
    assert_true(other > 0);
    assert_int_equal(f->reply.message.opened.attr.mode & 07777, 0777);
    /* Without execution for the group, set-group-ID is something else. */
    assert_int_equal(
        set(f, (struct wire_setattr){.node = node, .valid = WIRE_SET_MODE, .mode = 02666}), 0);
    assert_int_equal(set(f, (struct wire_setattr){.node = node, .valid = WIRE_SET_KILL_PRIV}), 0);
    assert_int_equal(f->reply.message.attrs.attr.mode & 07777, 02666);
}

static void test_symlinks(void **state)
{
    struct fixture *f = *state;
    static const char *const texts[] = {"/etc/passwd", "../../..", "plain", "\xff\n"};
    for (size_t i = 0; i < ARRAY_SIZE(texts); i++) {
        char name[8];
        (void)snprintf(name, sizeof name, "l%zu", i);
        int64_t node = t_symlink(f, f->demo, name, texts[i]);
        assert_true(node > 0);
        assert_int_equal(f->reply.message.made.attr.mode & S_IFMT, S_IFLNK);
        const struct wire_message readlink = {.type = WIRE_READLINK,
                                              .readlink.node = (uint64_t)node};
        assert_int_equal(run(f, &readlink), 0);
        assert_string_equal(t_data(f), texts[i]);
        assert_int_equal(t_lookup(f, (uint64_t)node, "x"), -ENOTDIR);
        assert_int_equal(t_open(f, (uint64_t)node, WIRE_OPEN_READ), -ELOOP);
    }
    char *target = malloc(4097);
    memset(target, 't', 4096);
    target[4096] = '\0';
    assert_int_equal(t_symlink(f, f->demo, "long", target), -ENAMETOOLONG);
    target[4095] = '\0';
    assert_true(t_symlink(f, f->demo, "long", target) > 0);
    const struct wire_message readlink = {.type = WIRE_READLINK,
                                          .readlink.node = f->reply.message.made.node};
    assert_int_equal(run(f, &readlink), 0);
    assert_string_equal(t_data(f), target);
    free(target);
    assert_int_equal(t_symlink(f, f->demo, "l0", "x"), -EEXIST);
    const struct wire_message nul = {.type = WIRE_SYMLINK,
                                     .symlink = {.parent = f->demo,
                                                 .name = bytes_of_string("nul"),
                                                 .target = bytes_of("a\0b", 3)}};
    assert_int_equal(run(f, &nul), -EINVAL);
    const struct wire_message not_a_link = {.type = WIRE_READLINK, .readlink.node = f->demo};
    assert_int_equal(run(f, &not_a_link), -EINVAL);
}

static void test_mknod(void **state)
{
    struct fixture *f = *state;
    int64_t fifo = t_mknod(f, f->demo, "fifo", S_IFIFO | 0640);
    int64_t socket = t_mknod(f, f->demo, "socket", S_IFSOCK | 0600);
    assert_true(fifo > 0 && socket > 0);
    assert_true(t_mknod(f, f->demo, "file", S_IFREG | 04755) > 0);
    assert_int_equal(f->reply.message.made.attr.mode, S_IFREG | 04755);
    assert_true(t_mknod(f, f->demo, "plain", 0600) > 0);
    assert_int_equal(t_mknod(f, f->demo, "dev", S_IFCHR | 0600), -EPERM);
    assert_int_equal(t_mknod(f, f->demo, "dev", S_IFBLK | 0600), -EPERM);
    assert_int_equal(t_mknod(f, f->demo, "dev", S_IFDIR | 0700), -EINVAL);
    assert_int_equal(t_mknod(f, f->demo, "file", S_IFREG | 0600), -EEXIST);
    assert_false(exists(f, "dev"));
    /* Never opened, whatever is asked. */
    assert_int_equal(t_open(f, (uint64_t)fifo, RW), -ENXIO);
    assert_int_equal(t_open(f, (uint64_t)fifo, WIRE_OPEN_READ), -ENXIO);
    assert_int_equal(t_open(f, (uint64_t)socket, RW), -ENXIO);
    uint64_t handle;
    assert_int_equal(t_create(f, f->demo, "fifo", RW, 0600, &handle), -ESTALE);
    assert_int_equal(t_create(f, f->demo, "fifo", RW | WIRE_OPEN_EXCLUSIVE, 0600, &handle),
                     -EEXIST);
}

static void test_directories(void **state)
{
    struct fixture *f = *state;
    int64_t a = t_mkdir(f, f->demo, "a");
    assert_true(a > 0);
    assert_int_equal(f->reply.message.made.attr.mode, S_IFDIR | 0755);
    assert_int_equal(t_mkdir(f, f->demo, "a"), -EEXIST);
    assert_true(t_mkdir(f, (uint64_t)a, "b") > 0);
    assert_int_equal(t_rmdir(f, f->demo, "a"), -ENOTEMPTY);
    assert_int_equal(t_unlink(f, f->demo, "a"), -EISDIR);
    assert_int_equal(t_rmdir(f, (uint64_t)a, "b"), 0);
    assert_int_equal(t_rmdir(f, f->demo, "a"), 0);
    assert_int_equal(t_rmdir(f, f->demo, "a"), -ENOENT);
    (void)make_closed(f, "file", "");
    assert_int_equal(t_rmdir(f, f->demo, "file"), -ENOTDIR);
    assert_int_equal(t_unlink(f, f->demo, "nothing"), -ENOENT);
    /* In a directory that is gone. */
    int64_t r = t_mkdir(f, (uint64_t)a, "c");
    assert_true(r == -ENOENT || r == -ESTALE);
}

static void test_links(void **state)
{
    struct fixture *f = *state;
    uint64_t a = make_closed(f, "a", "x");
    assert_int_equal(t_link(f, a, f->demo, "b"), (int64_t)a);
    assert_int_equal(f->reply.message.made.attr.nlink, 2);
    assert_int_equal(t_link(f, a, f->demo, "b"), -EEXIST);
    int64_t directory = t_mkdir(f, f->demo, "dir");
    assert_int_equal(t_link(f, (uint64_t)directory, f->demo, "c"), -EPERM);
    /* The link itself, not what it leads to. */
    int64_t symlink = t_symlink(f, f->demo, "s", "/etc/passwd");
    assert_int_equal(t_link(f, (uint64_t)symlink, f->demo, "s2"), symlink);
    assert_int_equal(f->reply.message.made.attr.mode & S_IFMT, S_IFLNK);
    /* The node is reached by the name that is left. */
    assert_int_equal(t_unlink(f, f->demo, "a"), 0);
    assert_int_equal(t_getattr(f, a, 0, NULL), 0);
    assert_int_equal(t_create_workspace(f, "other"), 0);
    int64_t other = t_open_workspace(f, "other");
    assert_int_equal(t_link(f, a, (uint64_t)other, "c"), -EXDEV);
    assert_int_equal(t_rename(f, f->demo, "b", (uint64_t)other, "c", 0), -EXDEV);
}

static void test_rename(void **state)
{
    struct fixture *f = *state;
    int64_t dir = t_mkdir(f, f->demo, "dir");
    int64_t sub = t_mkdir(f, (uint64_t)dir, "sub");
    uint64_t handle;
    int64_t file = t_create(f, (uint64_t)sub, "file", RW, 0644, &handle);
    t_release(f, handle);
    uint64_t other = make_closed(f, "other", "");
    assert_true(dir > 0 && sub > 0 && file > 0);
    /* Nodes below a renamed directory stay what they are. */
    assert_int_equal(t_rename(f, f->demo, "dir", f->demo, "moved", 0), 0);
    drop_descriptors(f);
    assert_int_equal(t_getattr(f, (uint64_t)file, 0, NULL), 0);
    assert_int_equal(t_rename(f, (uint64_t)sub, "file", f->demo, "top", 0), 0);
    assert_int_equal(t_getattr(f, (uint64_t)file, 0, NULL), 0);
    assert_int_equal(t_rename(f, f->demo, "top", f->demo, "other", RENAME_NOREPLACE), -EEXIST);
    assert_int_equal(t_rename(f, f->demo, "top", f->demo, "other", RENAME_EXCHANGE), 0);
    assert_int_equal(t_lookup(f, f->demo, "other"), file);
    assert_int_equal(t_getattr(f, other, 0, NULL), 0);
    assert_int_equal(t_lookup(f, f->demo, "top"), (int64_t)other);
    /* Exchanged across directories, one of them a directory. */
    assert_int_equal(t_rename(f, f->demo, "other", f->demo, "moved", RENAME_EXCHANGE), 0);
    drop_descriptors(f);
    assert_int_equal(t_getattr(f, (uint64_t)file, 0, NULL), 0);
    assert_int_equal(t_getattr(f, (uint64_t)sub, 0, NULL), 0);
    assert_int_equal(t_lookup(f, f->demo, "other"), dir);
    /* Replaced: no name leads there any more, but who has looked it up can still open it, as long
     * as there is a descriptor to spare. */
    assert_int_equal(t_rename(f, f->demo, "top", f->demo, "moved", 0), 0);
    struct wire_attr attr;
    assert_int_equal(t_getattr(f, (uint64_t)file, 0, &attr), 0);
    assert_int_equal(attr.nlink, 0);
    int64_t late = t_open(f, (uint64_t)file, WIRE_OPEN_READ);
    assert_true(late > 0);
    t_release(f, (uint64_t)late);
    assert_int_equal(t_getattr(f, (uint64_t)file, 0, NULL), 0);
    drop_descriptors(f);
    assert_int_equal(t_getattr(f, (uint64_t)file, 0, NULL), -ESTALE);
    /* Not a large one: its blocks are to be freed. */
    assert_int_equal(truncate(tree_path(f, "moved", (char[4096]){0}), 256 * 1024 + 1), 0);
    (void)make_closed(f, "small", "");
    assert_int_equal(t_rename(f, f->demo, "small", f->demo, "moved", 0), 0);
    assert_int_equal(t_getattr(f, other, 0, NULL), -ESTALE);
    other = (uint64_t)t_lookup(f, f->demo, "moved");
    assert_int_equal(t_getattr(f, other, 0, NULL), 0);

    assert_int_equal(t_rename(f, f->demo, "moved", f->demo, "x", 4), -EINVAL); /* WHITEOUT */
    assert_int_equal(t_rename(f, f->demo, "moved", f->demo, "other", 3), -EINVAL);
    assert_int_equal(t_rename(f, f->demo, "nothing", f->demo, "x", 0), -ENOENT);
    assert_int_equal(t_rename(f, f->demo, "other", (uint64_t)sub, "x", 0),
                     -EINVAL); /* into itself */
    assert_int_equal(t_rename(f, f->demo, "moved", f->demo, "other", 0), -EISDIR);
    assert_int_equal(t_rename(f, f->demo, "other", f->demo, "moved", 0), -ENOTDIR);
    assert_true(t_mkdir(f, f->demo, "full") > 0);
    assert_int_equal(t_rename(f, f->demo, "full", f->demo, "other", 0), -ENOTEMPTY);
}

static void test_open(void **state)
{
    struct fixture *f = *state;
    uint64_t node = make_closed(f, "a", "text");
    int64_t reader = t_open(f, node, WIRE_OPEN_READ);
    int64_t writer = t_open(f, node, WIRE_OPEN_WRITE);
    assert_true(reader > 0 && writer > 0 && reader != writer);
    assert_int_equal(t_write(f, (uint64_t)reader, 0, "x"), -EBADF);
    assert_int_equal(t_read(f, (uint64_t)writer, 0, 1), -EBADF);
    assert_int_equal(t_open(f, node, 0), -EINVAL);
    assert_int_equal(t_open(f, node, WIRE_OPEN_READ | 1 << 20), -EINVAL);
    assert_int_equal(t_open(f, node, WIRE_OPEN_READ | WIRE_OPEN_DIRECTORY), -ENOTDIR);
    assert_int_equal(t_open(f, f->demo, WIRE_OPEN_READ), -EISDIR);
    assert_int_equal(t_open(f, f->demo, RW | WIRE_OPEN_DIRECTORY), -EISDIR);
    assert_int_equal(t_open(f, UNKNOWN_NUMBER, WIRE_OPEN_READ), -ESTALE);
    assert_true(t_open(f, node, WIRE_OPEN_WRITE | WIRE_OPEN_TRUNCATE) > 0);
    assert_int_equal(f->reply.message.opened.attr.size, 0);
    assert_true(t_open(f, node, RW | WIRE_OPEN_DIRECT | WIRE_OPEN_SYNC) > 0);
    assert_int_equal(t_write(f, (uint64_t)f->reply.message.opened.handle, 1, "x"), 1);
    t_release(f, (uint64_t)reader);
    assert_int_equal(t_read(f, (uint64_t)reader, 0, 1), -EBADF);
    t_release(f, (uint64_t)reader); /* twice, and what never was: nothing */
    t_release(f, UNKNOWN_NUMBER);
    /* A handle of another session. */
    struct file_session *other;
    assert_int_equal(file_session_new(f->store, &other), 0);
    const struct wire_message read = {.type = WIRE_READ,
                                      .read = {.handle = (uint64_t)writer, .size = 1}};
    assert_int_equal(run_in(f, other, &read), -EBADF);
    const struct wire_message getattr = {.type = WIRE_GETATTR, .getattr.node = node};
    assert_int_equal(run_in(f, other, &getattr), -ESTALE);
    file_session_free(other);
    if (getuid() != 0) {
        char path[4096];
        assert_int_equal(chmod(tree_path(f, "a", path), 0), 0);
        assert_int_equal(t_open(f, node, WIRE_OPEN_READ), -EACCES);
    }
}

static void test_create(void **state)
{
    struct fixture *f = *state;
    uint64_t handle;
    /* git's object files: read-only from birth, and written through the descriptor. */
    int64_t node =
        t_create(f, f->demo, "object", WIRE_OPEN_WRITE | WIRE_OPEN_EXCLUSIVE, 0444, &handle);
    assert_true(node > 0);
    assert_int_equal(f->reply.message.created.attr.mode, S_IFREG | 0444);
    assert_int_equal(t_write(f, handle, 0, "bytes"), 5);
    assert_int_equal(t_getattr(f, (uint64_t)node, 0, NULL), 0);
    assert_int_equal(f->reply.message.attrs.attr.size, 5);
    t_release(f, handle);
    assert_int_equal(t_create(f, f->demo, "object", RW | WIRE_OPEN_EXCLUSIVE, 0644, &handle),
                     -EEXIST);
    /* Without EXCLUSIVE what is there is opened, and its mode stays. */
    uint64_t open_node = make_closed(f, "open", "text");
    assert_int_equal(t_create(f, f->demo, "open", RW, 0600, &handle), (int64_t)open_node);
    assert_int_equal(f->reply.message.created.attr.mode, S_IFREG | 0644);
    assert_int_equal(f->reply.message.created.attr.size, 4);
    assert_int_equal(t_create(f, f->demo, "open", RW | WIRE_OPEN_TRUNCATE, 0600, &handle),
                     (int64_t)open_node);
    assert_int_equal(f->reply.message.created.attr.size, 0);
    assert_true(t_symlink(f, f->demo, "link", "../../../../escaped") > 0);
    assert_int_equal(t_create(f, f->demo, "link", RW, 0644, &handle), -ESTALE);
    assert_int_equal(t_create(f, f->demo, "link", RW | WIRE_OPEN_EXCLUSIVE, 0644, &handle),
                     -EEXIST);
    char escaped[128];
    (void)snprintf(escaped, sizeof escaped, "%s/escaped", f->root);
    assert_int_not_equal(access(escaped, F_OK), 0);
    assert_true(t_mkdir(f, f->demo, "dir") > 0);
    assert_int_equal(t_create(f, f->demo, "dir", RW, 0644, &handle), -EISDIR);
    assert_int_equal(t_create(f, f->demo, "x", 0, 0644, &handle), -EINVAL);
    assert_int_equal(t_create(f, f->demo, "x", RW | WIRE_OPEN_DIRECTORY, 0644, &handle), -EINVAL);
    assert_int_equal(t_create(f, open_node, "x", RW, 0644, &handle), -ENOTDIR);
    assert_false(exists(f, "x"));
}

static void test_data(void **state)
{
    struct fixture *f = *state;
    uint64_t handle;
    uint64_t node = make(f, "a", &handle);
    assert_int_equal(t_write(f, handle, 0, "hello world"), 11);
    assert_int_equal(t_read(f, handle, 6, 100), 0);
    assert_string_equal(t_data(f), "world");
    assert_int_equal(t_read(f, handle, 11, 100), 0);
    assert_string_equal(t_data(f), "");
    assert_int_equal(t_read(f, handle, 0, 0), 0);
    assert_int_equal(t_write(f, handle, 5, ""), 0);
    assert_int_equal(t_read(f, handle, INT64_MAX, 1), -EINVAL);
    assert_int_equal(t_read(f, handle, UINT64_MAX, 1), -EINVAL);
    assert_int_equal(t_read(f, handle, 0, WIRE_DATA_MAX + 1), -EINVAL);
    assert_int_equal(t_write(f, handle, INT64_MAX, "x"), -EFBIG);
    assert_int_equal(t_write(f, handle, UINT64_MAX, "x"), -EINVAL);
    assert_int_equal(t_write(f, UNKNOWN_NUMBER, 0, "x"), -EBADF);
    assert_int_equal(t_write(f, node, 0, "x"), -EBADF);
    /* Append goes to the server's end of file, not to the client's. */
    int64_t append = t_open(f, node, WIRE_OPEN_WRITE | WIRE_OPEN_APPEND);
    make_file(f, "a", "0123");
    assert_int_equal(t_write(f, (uint64_t)append, 0, "45"), 2);
    assert_int_equal(t_read(f, handle, 0, 100), 0);
    assert_string_equal(t_data(f), "012345");
    /* Append by the write alone, as after fcntl(F_SETFL, O_APPEND). */
    const struct wire_message at_end = {
        .type = WIRE_WRITE,
        .write = {.handle = handle, .flags = WIRE_WRITE_APPEND, .data = bytes_of_string("67")}};
    assert_int_equal(run(f, &at_end), 0);
    assert_int_equal(t_read(f, handle, 0, 100), 0);
    assert_string_equal(t_data(f), "01234567");
    struct wire_message unknown = at_end;
    unknown.write.flags = 8;
    assert_int_equal(run(f, &unknown), -EINVAL);
    /* A whole message. */
    char *big = malloc(WIRE_DATA_MAX + 1);
    memset(big, 'b', WIRE_DATA_MAX);
    big[WIRE_DATA_MAX] = '\0';
    assert_int_equal(t_write(f, handle, 1, big), WIRE_DATA_MAX);
    assert_int_equal(t_read(f, handle, 1, WIRE_DATA_MAX), 0);
    assert_int_equal(f->reply.message.data.data.len, WIRE_DATA_MAX);
    assert_memory_equal(f->reply.message.data.data.data, big, WIRE_DATA_MAX);
    free(big);
    int64_t directory = t_open(f, f->demo, WIRE_OPEN_READ | WIRE_OPEN_DIRECTORY);
    assert_int_equal(t_read(f, (uint64_t)directory, 0, 10), -EISDIR);
    assert_int_equal(t_write(f, (uint64_t)directory, 0, "x"), -EISDIR);
    for (uint32_t datasync = 0; datasync < 2; datasync++) {
        struct wire_message fsync = {.type = WIRE_FSYNC,
                                     .fsync = {.handle = handle, .datasync = datasync}};
        assert_int_equal(run(f, &fsync), 0);
        fsync.fsync.handle = (uint64_t)directory;
        assert_int_equal(run(f, &fsync), 0);
        fsync.fsync.handle = UNKNOWN_NUMBER;
        assert_int_equal(run(f, &fsync), -EBADF);
    }
    struct wire_message flush = {.type = WIRE_FLUSH, .flush.handle = handle};
    assert_int_equal(run(f, &flush), 0);
    flush.flush.handle = UNKNOWN_NUMBER;
    assert_int_equal(run(f, &flush), -EBADF);
}

static int allocate(struct fixture *f, uint64_t handle, uint32_t mode, uint64_t offset,
                    uint64_t length)
{
    return run(
        f, &(struct wire_message){
               .type = WIRE_FALLOCATE,
               .fallocate = {.handle = handle, .offset = offset, .length = length, .mode = mode}});
}

static int seek_to(struct fixture *f, uint64_t handle, uint64_t offset, uint32_t whence)
{
    return run(
        f, &(struct wire_message){.type = WIRE_SEEK,
                                  .seek = {.handle = handle, .offset = offset, .whence = whence}});
}

static void test_space(void **state)
{
    struct fixture *f = *state;
    uint64_t handle;
    uint64_t node = make(f, "a", &handle);
    assert_int_equal(allocate(f, handle, 0, 0, 1 << 20), 0);
    assert_int_equal(t_getattr(f, node, 0, NULL), 0);
    assert_int_equal(f->reply.message.attrs.attr.size, 1 << 20);
    assert_int_equal(allocate(f, handle, 0, 0, 0), -EINVAL);
    assert_int_equal(allocate(f, handle, 0x800, 0, 10), -EOPNOTSUPP);
    assert_int_equal(allocate(f, handle, 0, INT64_MAX, 10), -EFBIG);
    assert_int_equal(allocate(f, handle, 0, UINT64_MAX, 10), -EINVAL);

    struct wire_message size = {
        .type = WIRE_SETATTR,
        .setattr = {.node = node, .handle = handle, .valid = WIRE_SET_SIZE, .size = 0}};
    assert_int_equal(run(f, &size), 0);
    size.setattr.size = 1 << 20;
    assert_int_equal(run(f, &size), 0);
    assert_int_equal(t_write(f, handle, 512 << 10, "data"), 4);
    assert_int_equal(seek_to(f, handle, 0, SEEK_DATA), 0);
    assert_int_equal(f->reply.message.offset.offset, 512 << 10);
    assert_int_equal(seek_to(f, handle, 0, SEEK_HOLE), 0);
    assert_int_equal(f->reply.message.offset.offset, 0);
    assert_int_equal(seek_to(f, handle, 1 << 20, SEEK_DATA), -ENXIO);
    assert_int_equal(seek_to(f, handle, UINT64_MAX, SEEK_DATA), -ENXIO);
    assert_int_equal(seek_to(f, handle, 0, SEEK_SET), -EINVAL);
    assert_int_equal(
        allocate(f, handle, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 512 << 10, 4096), 0);
    assert_int_equal(seek_to(f, handle, 0, SEEK_DATA), -ENXIO);
    int64_t reader = t_open(f, node, WIRE_OPEN_READ);
    assert_int_equal(allocate(f, (uint64_t)reader, 0, 0, 10), -EBADF);
}

static void test_copy(void **state)
{
    struct fixture *f = *state;
    uint64_t in, out;
    (void)make(f, "in", &in);
    uint64_t out_node = make(f, "out", &out);
    assert_int_equal(t_write(f, in, 0, "0123456789"), 10);
    struct wire_message copy = {
        .type = WIRE_COPY,
        .copy = {.handle_in = in, .offset_in = 2, .handle_out = out, .offset_out = 1, .length = 5}};
    assert_int_equal(run(f, &copy), 0);
    assert_int_equal(f->reply.message.written.size, 5);
    assert_int_equal(t_read(f, out, 1, 100), 0);
    assert_string_equal(t_data(f), "23456");
    copy.copy.offset_in = 10;
    assert_int_equal(run(f, &copy), 0);
    assert_int_equal(f->reply.message.written.size, 0);
    copy.copy.offset_in = INT64_MAX;
    assert_int_equal(run(f, &copy), -EOVERFLOW);
    copy.copy.offset_in = 0;
    copy.copy.handle_out = UNKNOWN_NUMBER;
    assert_int_equal(run(f, &copy), -EBADF);
    copy.copy.handle_out = (uint64_t)t_open(f, out_node, WIRE_OPEN_READ);
    assert_int_equal(run(f, &copy), -EBADF);
    copy.copy.handle_out = in; /* onto itself, overlapping */
    copy.copy.offset_out = 1;
    assert_int_equal(run(f, &copy), -EINVAL);
}

static void test_statfs(void **state)
{
    struct fixture *f = *state;
    uint64_t file = make_closed(f, "a", "");
    int64_t link = t_symlink(f, f->demo, "l", "/proc");
    const uint64_t nodes[] = {f->demo, file, (uint64_t)link, 0};
    for (size_t i = 0; i < ARRAY_SIZE(nodes); i++) {
        const struct wire_message statfs = {.type = WIRE_STATFS, .statfs.node = nodes[i]};
        assert_int_equal(run(f, &statfs), 0);
        assert_true(f->reply.message.statfs_reply.blocks > 0);
        assert_int_equal(f->reply.message.statfs_reply.namelen, 255);
        assert_true(f->reply.message.statfs_reply.frsize >= 512);
    }
}

static int get_xattr(struct fixture *f, uint64_t node, const char *name)
{
    return run(f,
               &(struct wire_message){.type = WIRE_GETXATTR,
                                      .getxattr = {.node = node, .name = bytes_of_string(name)}});
}

static int set_xattr(struct fixture *f, uint64_t node, const char *name, const char *value,
                     uint32_t flags)
{
    return run(f, &(struct wire_message){.type = WIRE_SETXATTR,
                                         .setxattr = {.node = node,
                                                      .flags = flags,
                                                      .name = bytes_of_string(name),
                                                      .value = bytes_of_string(value)}});
}

static int remove_xattr(struct fixture *f, uint64_t node, const char *name)
{
    return run(
        f, &(struct wire_message){.type = WIRE_REMOVEXATTR,
                                  .removexattr = {.node = node, .name = bytes_of_string(name)}});
}

static void test_xattrs(void **state)
{
    struct fixture *f = *state;
    uint64_t a = make_closed(f, "a", "");
    assert_int_equal(get_xattr(f, a, "user.one"), -ENODATA);
    assert_int_equal(set_xattr(f, a, "user.one", "first", 0), 0);
    assert_int_equal(set_xattr(f, a, "user.two", "", 0), 0);
    assert_int_equal(get_xattr(f, a, "user.one"), 0);
    assert_string_equal(t_data(f), "first");
    assert_int_equal(get_xattr(f, a, "user.two"), 0);
    assert_string_equal(t_data(f), "");
    assert_int_equal(set_xattr(f, a, "user.one", "x", XATTR_CREATE), -EEXIST);
    assert_int_equal(set_xattr(f, a, "user.three", "x", XATTR_REPLACE), -ENODATA);
    assert_int_equal(set_xattr(f, a, "user.three", "x", 64), -EINVAL);
    const struct wire_message list = {.type = WIRE_LISTXATTR, .listxattr.node = a};
    char path[4096];
    assert_int_equal(setxattr(tree_path(f, "a", path), "user.berth.x", "x", 1, 0), 0);
    assert_int_equal(run(f, &list), 0);
    struct bytes names = f->reply.message.data.data;
    assert_int_equal(names.len, 18);
    assert_non_null(memmem(names.data, names.len, "user.one", 9));
    assert_non_null(memmem(names.data, names.len, "user.two", 9));
    assert_int_equal(remove_xattr(f, a, "user.one"), 0);
    assert_int_equal(remove_xattr(f, a, "user.one"), -ENODATA);
    /* Ours, and what is none of the workspace's business. */
    assert_int_equal(get_xattr(f, a, "user.berth.x"), -ENODATA);
    assert_int_equal(set_xattr(f, a, "user.berth.x", "x", 0), -EPERM);
    assert_int_equal(remove_xattr(f, a, "user.berth.x"), -EPERM);
    static const char *const foreign[] = {"security.capability", "trusted.x",
                                          "system.posix_acl_access", "user", "nothing"};
    for (size_t i = 0; i < ARRAY_SIZE(foreign); i++) {
        assert_int_equal(get_xattr(f, a, foreign[i]), -ENODATA);
        assert_int_equal(set_xattr(f, a, foreign[i], "x", 0), -EOPNOTSUPP);
        assert_int_equal(remove_xattr(f, a, foreign[i]), -EOPNOTSUPP);
    }
    assert_int_equal(get_xattr(f, f->demo, "user.berth.thread_id"), 0);
    assert_string_equal(t_data(f), "demo");
    assert_int_equal(get_xattr(f, a, "user.berth.thread_id"), -ENODATA);
    assert_int_equal(set_xattr(f, f->demo, "user.berth.thread_id", "x", 0), -EPERM);
    int64_t link = t_symlink(f, f->demo, "l", "a");
    assert_int_equal(get_xattr(f, (uint64_t)link, "user.two"), -ENODATA);
    assert_int_equal(set_xattr(f, (uint64_t)link, "user.two", "x", 0), -EPERM);
}

int main(int argc, char **argv)
{
    fixture_world(argc, argv);
#define T(function) cmocka_unit_test_setup_teardown(function, fixture_setup, fixture_teardown)
    const struct CMUnitTest tests[] = {
        T(test_behind),  T(test_lookup),    T(test_names),    T(test_hidden), T(test_getattr),
        T(test_setattr), T(test_kill_priv), T(test_symlinks), T(test_mknod),  T(test_directories),
        T(test_links),   T(test_rename),    T(test_open),     T(test_create), T(test_data),
        T(test_space),   T(test_copy),      T(test_statfs),   T(test_xattrs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

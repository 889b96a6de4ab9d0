/* Workspaces: made, found, listed and removed, and what a crash or a user leaves behind. */
#include "store_fixture.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include "store/removal.h"
#include "store/trash.h"

static int create(struct fixture *f, struct bytes id, uint32_t flags)
{
    return run(f, &(struct wire_message){.type = WIRE_WORKSPACE_CREATE,
                                         .workspace_create = {.flags = flags, .thread_id = id}});
}

static int open_key(struct fixture *f, struct bytes key, uint32_t flags)
{
    return run(f, &(struct wire_message){.type = WIRE_WORKSPACE_OPEN,
                                         .workspace_open = {.flags = flags, .key = key}});
}

static int remove_key(struct fixture *f, const char *key, uint32_t flags)
{
    return run(f, &(struct wire_message){
                      .type = WIRE_WORKSPACE_REMOVE,
                      .workspace_remove = {.flags = flags, .key = bytes_of_string(key)}});
}

static char *root_path(struct fixture *f, const char *path, char buffer[4096])
{
    (void)snprintf(buffer, 4096, "%s/%s", f->root, path);
    return buffer;
}

static void test_create(void **state)
{
    struct fixture *f = *state;
    const struct wire_workspace *w = &f->reply.message.workspace;
    assert_int_equal(create(f, bytes_of_string("plain"), 0), 0);
    assert_int_equal(w->created, 1);
    assert_int_equal(w->slot, 2); /* after "demo" */
    uint32_t slot = w->slot;
    struct wire_time at = w->created_at;
    assert_true(at.sec > 1600000000);
    assert_true(bytes_equal(w->name, bytes_of_string("plain")));
    assert_true(bytes_equal(w->thread_id, bytes_of_string("plain")));
    /* The same again is the same workspace. */
    assert_int_equal(create(f, bytes_of_string("plain"), 0), 0);
    assert_int_equal(w->created, 0);
    assert_int_equal(w->slot, slot);
    assert_int_equal(w->created_at.sec, at.sec);
    assert_int_equal(w->created_at.nsec, at.nsec);
    assert_int_equal(create(f, bytes_of_string("plain"), WIRE_WORKSPACE_EXCLUSIVE), -EEXIST);
    assert_int_equal(create(f, bytes_of_string("new"), WIRE_WORKSPACE_EXCLUSIVE), 0);
    assert_int_equal(create(f, bytes_of_string("x"), WIRE_WORKSPACE_BY_NAME), -EINVAL);
    assert_int_equal(create(f, bytes_of_string(""), 0), -EINVAL);
    /* IDs of every kind, found again by ID, by name, and after a restart. */
    char longest[1025];
    memset(longest, 'x', 1024);
    longest[1024] = '\0';
    const struct bytes ids[] = {
        bytes_of_string("T/2024:x"),
        bytes_of_string("../../etc"),
        bytes_of("a\0b", 3),
        bytes_of_string("\xff\xfe"),
        bytes_of_string("."),
        bytes_of_string(".hidden"),
        bytes_of_string(longest),
        bytes_of_string("PLAIN"),
        bytes_of_string("\xf0\x9f\x90\x9f"),
    };
    for (int round = 0; round < 2; round++) {
        for (size_t i = 0; i < ARRAY_SIZE(ids); i++) {
            assert_int_equal(create(f, ids[i], 0), 0);
            assert_int_equal(w->created, round == 0);
            assert_int_equal(w->slot, 4 + i);
            assert_true(bytes_equal(w->thread_id, ids[i]));
            char name[256];
            size_t name_len = w->name.len;
            memcpy(name, w->name.data, name_len);
            assert_int_equal(open_key(f, ids[i], 0), 0);
            uint64_t node = f->reply.message.workspace_root.node;
            assert_true(bytes_equal(f->reply.message.workspace_root.thread_id, ids[i]));
            assert_int_equal(f->reply.message.workspace_root.attr.mode, S_IFDIR | 0755);
            assert_int_equal(open_key(f, bytes_of(name, name_len), WIRE_WORKSPACE_BY_NAME), 0);
            assert_int_equal(f->reply.message.workspace_root.node, node);
            assert_true(bytes_equal(f->reply.message.workspace_root.thread_id, ids[i]));
        }
        fixture_reopen(f, NULL);
    }
    static const char *const unknown[] = {"nothing", "..",     ".",    "demo/tree",
                                          "a b",     "%2e%2e", ".git", "workspaces"};
    for (size_t i = 0; i < ARRAY_SIZE(unknown); i++) {
        assert_int_equal(open_key(f, bytes_of_string(unknown[i]), 0),
                         strcmp(unknown[i], ".") == 0 ? 0 : -ENOENT);
        assert_int_equal(open_key(f, bytes_of_string(unknown[i]), WIRE_WORKSPACE_BY_NAME), -ENOENT);
    }
    assert_int_equal(open_key(f, bytes_of_string("demo"), 64), -EINVAL);
}

struct names {
    char text[4096];
    size_t count;
};

static int list(struct fixture *f, const char *after, uint32_t count, struct names *ret)
{
    int r = run(f, &(struct wire_message){
                       .type = WIRE_WORKSPACE_LIST,
                       .workspace_list = {.count = count, .after = bytes_of_string(after)}});
    if (r < 0)
        return r;
    *ret = (struct names){0};
    uint32_t offset = 0;
    struct bytes element;
    while (wire_list_next(&f->reply.message.workspaces.items, &offset, &element)) {
        struct wire_message m;
        assert_int_equal(wire_decode(WIRE_WORKSPACE, element, &m), 0);
        (void)snprintf(ret->text + strlen(ret->text), sizeof ret->text - strlen(ret->text), "%.*s ",
                       (int)m.workspace.name.len, (const char *)m.workspace.name.data);
        ret->count++;
    }
    return 0;
}

static void test_list(void **state)
{
    struct fixture *f = *state;
    static const char *const ids[] = {"b", "a", "ab", "B", "a/b", "aa"};
    for (size_t i = 0; i < ARRAY_SIZE(ids); i++)
        assert_int_equal(create(f, bytes_of_string(ids[i]), 0), 0);
    char path[4096];
    assert_int_equal(mkdir(root_path(f, "workspaces/alien", path), 0700), 0); /* no meta.json */
    struct names names;
    assert_int_equal(list(f, "", 0, &names), 0);
    assert_string_equal(names.text, "B a a%2Fb aa ab b demo ");
    assert_int_equal(f->reply.message.workspaces.more, 0);
    assert_int_equal(list(f, "", 3, &names), 0);
    assert_string_equal(names.text, "B a a%2Fb ");
    assert_int_equal(f->reply.message.workspaces.more, 1);
    assert_int_equal(list(f, "a%2Fb", 2, &names), 0);
    assert_string_equal(names.text, "aa ab ");
    assert_int_equal(list(f, "ab", 100, &names), 0);
    assert_string_equal(names.text, "b demo ");
    assert_int_equal(f->reply.message.workspaces.more, 0);
    assert_int_equal(list(f, "zzz", 100, &names), 0);
    assert_int_equal(names.count, 0);
}

static void test_identity(void **state)
{
    struct fixture *f = *state;
    uint8_t before[16], after[16];
    store_service_id(f->store, before);
    struct wire_attr root, again;
    assert_int_equal(t_getattr(f, f->demo, 0, &root), 0);
    make_file(f, "a", "");
    assert_true(t_lookup(f, f->demo, "a") > 0);
    struct wire_attr file = f->reply.message.entry.attr;
    /* A slot is never given twice, not even after its workspace is gone. */
    assert_int_equal(create(f, bytes_of_string("x"), 0), 0);
    uint32_t slot = f->reply.message.workspace.slot;
    assert_int_equal(remove_key(f, "x", 0), 0);
    fixture_reopen(f, NULL);
    assert_int_equal(create(f, bytes_of_string("x"), 0), 0);
    assert_true(f->reply.message.workspace.slot > slot);
    store_service_id(f->store, after);
    assert_memory_equal(before, after, sizeof before);
    assert_int_equal(t_getattr(f, f->demo, 0, &again), 0);
    assert_int_equal(again.ino, root.ino);
    assert_int_equal(again.generation, root.generation);
    assert_true(t_lookup(f, f->demo, "a") > 0);
    assert_int_equal(f->reply.message.entry.attr.ino, file.ino);
    assert_int_equal(f->reply.message.entry.attr.generation, file.generation);
}

static void test_lock(void **state)
{
    struct fixture *f = *state;
    struct store *second;
    struct failure failure = {0};
    assert_int_equal(store_open(f->root, WATCH_AUTO, &second, &failure), -EBUSY);
    assert_non_null(strstr(failure.text, f->root));
    assert_non_null(strstr(failure.text, "--root"));
    /* The lock is not inherited by what the service executes. */
    fixture_reopen(f, NULL);
    struct stat st;
    char path[4096];
    assert_int_equal(stat(root_path(f, "", path), &st), 0);
    assert_int_equal(st.st_mode & 07777, 0700);
}

static void test_status(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(t_status(f, "workspaces"), 1);
    t_await_status(f, "nodes", 1);
    assert_int_equal(t_status(f, "handles"), 0);
    assert_int_equal(create(f, bytes_of_string("x"), 0), 0);
    assert_int_equal(t_status(f, "workspaces"), 2);
    int64_t handle = t_open(f, f->demo, WIRE_OPEN_READ | WIRE_OPEN_DIRECTORY);
    assert_int_equal(t_status(f, "handles"), 1);
    t_release(f, (uint64_t)handle);
    assert_int_equal(t_status(f, "handles"), 0);
}

/* Every request on a workspace that was removed, and on one that took its name. */
static void test_remove_in_use(void **state)
{
    struct fixture *f = *state;
    uint64_t handle;
    int64_t file = t_create(f, f->demo, "file", WIRE_OPEN_READ | WIRE_OPEN_WRITE, 0644, &handle);
    int64_t sub = t_mkdir(f, f->demo, "sub");
    int64_t directory = t_open(f, (uint64_t)sub, WIRE_OPEN_READ | WIRE_OPEN_DIRECTORY);
    struct workspace *held;
    assert_int_equal(store_workspace_find(f->store, bytes_of_string("demo"), 0, &held), 0);
    assert_string_equal(workspace_path(held), f->tree);
    assert_true(bytes_equal(workspace_thread_id(held), bytes_of_string("demo")));

    assert_int_equal(remove_key(f, "nothing", 0), -ENOENT);
    assert_int_equal(remove_key(f, "demo", WIRE_WORKSPACE_BY_NAME), 0);
    char path[4096];
    trash_settle(f->store->trash);
    assert_true(directory_empty(root_path(f, "trash", path)));
    assert_int_equal(remove_key(f, "demo", 0), -ENOENT);
    assert_int_equal(t_open_workspace(f, "demo"), -ENOENT);
    assert_int_equal(t_create_workspace(f, "demo"), 0);

    struct stat st;
    assert_int_equal(fstat(workspace_tree_fd(held), &st), 0); /* usable, but gone */
    workspace_unref(held);
    assert_int_equal(t_getattr(f, f->demo, 0, NULL), -ESTALE);
    assert_int_equal(t_getattr(f, (uint64_t)file, 0, NULL), -ESTALE);
    assert_int_equal(t_getattr(f, (uint64_t)file, handle, NULL), -ESTALE);
    assert_int_equal(t_lookup(f, f->demo, "file"), -ESTALE);
    assert_int_equal(t_mkdir(f, f->demo, "x"), -ESTALE);
    assert_int_equal(t_mkdir(f, (uint64_t)sub, "x"), -ESTALE);
    assert_int_equal(t_unlink(f, f->demo, "file"), -ESTALE);
    assert_int_equal(t_rename(f, f->demo, "file", f->demo, "x", 0), -ESTALE);
    assert_int_equal(t_open(f, (uint64_t)file, WIRE_OPEN_READ), -ESTALE);
    assert_int_equal(t_read(f, handle, 0, 1), -ESTALE);
    assert_int_equal(t_write(f, handle, 0, "x"), -ESTALE);
    const struct wire_message readdir = {.type = WIRE_READDIR,
                                         .readdir = {.handle = (uint64_t)directory, .size = 4096}};
    assert_int_equal(run(f, &readdir), -ESTALE);
    t_release(f, handle);
    t_forget(f, (uint64_t)file, 1);
    assert_false(exists(f, "x"));
    assert_false(exists(f, "file"));
    int64_t root = t_open_workspace(f, "demo");
    assert_true(root > 0 && (uint64_t)root != f->demo);
    assert_true(t_mkdir(f, (uint64_t)root, "x") > 0);
    assert_true(exists(f, "x"));
}

/* --- hostile trees ------------------------------------------------------------------ */

static void make_deep(int fd, int levels)
{
    fd = dup(fd);
    for (int i = 0; i < levels; i++) {
        assert_int_equal(mkdirat(fd, "d", 0755), 0);
        int next = openat(fd, "d", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        assert_true(next >= 0);
        if (i % 1000 == 500) {
            int file = openat(next, "file", O_CREAT | O_WRONLY | O_CLOEXEC, 0);
            assert_true(file >= 0);
            (void)close(file);
        }
        (void)close(fd);
        fd = next;
    }
    (void)close(fd);
}

static void make_hostile(const char *path, const char *outside)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(fd >= 0);
    make_deep(fd, 10000);
    assert_int_equal(symlinkat(outside, fd, "link"), 0);
    assert_int_equal(mkdirat(fd, "closed", 0755), 0);
    assert_int_equal(mkdirat(fd, "closed/inner", 0755), 0);
    assert_int_equal(mkdirat(fd, "closed/inner/more", 0755), 0);
    assert_int_equal(mkdirat(fd, "closed/inner/more/most", 0755), 0);
    assert_int_equal(symlinkat(outside, fd, "closed/inner/link"), 0);
    assert_int_equal(mknodat(fd, "closed/fifo", S_IFIFO | 0600, 0), 0);
    assert_int_equal(fchmodat(fd, "closed/inner/more", 0, 0), 0);
    assert_int_equal(fchmodat(fd, "closed/inner", 0, 0), 0);
    assert_int_equal(fchmodat(fd, "closed", 0, 0), 0);
    for (int i = 0; i < 20; i++) { /* names that removal itself uses */
        char name[16];
        (void)snprintf(name, sizeof name, "%d", i);
        assert_int_equal(mkdirat(fd, name, 0755), 0);
        (void)snprintf(name, sizeof name, "%d/%d", i, i + 1);
        assert_int_equal(mkdirat(fd, name, 0755), 0);
    }
    (void)close(fd);
}

static void test_remove_hostile(void **state)
{
    struct fixture *f = *state;
    char outside[128], inside[160], path[4096];
    (void)snprintf(outside, sizeof outside, "%s/outside", f->directory);
    (void)snprintf(inside, sizeof inside, "%s/keep", outside);
    assert_int_equal(mkdir(outside, 0755), 0);
    assert_int_equal(mkdir(inside, 0755), 0);
    make_hostile(f->tree, outside);
    assert_int_equal(remove_key(f, "demo", 0), 0);
    trash_settle(f->store->trash);
    assert_true(directory_empty(root_path(f, "trash", path)));
    assert_int_equal(access(inside, F_OK), 0);
    struct stat st;
    assert_int_equal(stat(outside, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0755);
}

static void test_leftovers(void **state)
{
    struct fixture *f = *state;
    char outside[128], path[4096];
    (void)snprintf(outside, sizeof outside, "%s/outside", f->directory);
    assert_int_equal(mkdir(outside, 0755), 0);
    static const char *const names[] = {"trash/7", "trash/0", "tmp/8"};
    trash_settle(f->store->trash); /* this store is not to find them */
    for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
        assert_int_equal(mkdir(root_path(f, names[i], path), 0700), 0);
        make_hostile(path, outside);
    }
    fixture_reopen(f, NULL);
    trash_settle(f->store->trash);
    assert_true(directory_empty(root_path(f, "trash", path)));
    assert_true(directory_empty(root_path(f, "tmp", path)));
    assert_int_equal(access(outside, F_OK), 0);
}

/* A process that still writes into a tree while it is removed. */
static void test_remove_while_written(void **state)
{
    struct fixture *f = *state;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        (void)alarm(5);
        int fd = open(f->tree, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        for (int i = 0; i < 20000; i++) {
            char name[32];
            (void)snprintf(name, sizeof name, "d%d", i);
            (void)mkdirat(fd, name, 0755);
            (void)snprintf(name, sizeof name, "d%d/x", i);
            (void)mkdirat(fd, name, 0755);
        }
        _exit(0);
    }
    char path[4096];
    while (access(tree_path(f, "d100", path), F_OK) < 0)
        (void)usleep(100);
    assert_int_equal(remove_key(f, "demo", 0), 0);
    assert_int_equal(waitpid(child, NULL, 0), child);
    /* Whatever was left goes at the next start. */
    file_session_free(f->session);
    store_close(f->store);
    struct failure failure = {0};
    assert_int_equal(store_open(f->root, WATCH_AUTO, &f->store, &failure), 0);
    assert_int_equal(file_session_new(f->store, &f->session), 0);
    trash_settle(f->store->trash);
    assert_true(directory_empty(root_path(f, "trash", path)));
}

/* --- damage ---------------------------------------------------------------------- */

static void write_root(struct fixture *f, const char *name, const char *text)
{
    char path[4096];
    int fd = open(root_path(f, name, path), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    (void)close(fd);
}

static void test_damaged_meta(void **state)
{
    struct fixture *f = *state;
    static const char *const texts[] = {
        "",
        "{",
        "[]",
        "{}",
        "{\"version\":1,\"slot\":0,\"created_at\":{\"sec\":1,\"nsec\":1},\"thread_id\":\"bad\"}",
        "{\"version\":2,\"slot\":1,\"created_at\":{\"sec\":1,\"nsec\":1},\"thread_id\":\"bad\"}",
        "{\"version\":1,\"slot\":9,\"created_at\":{\"sec\":1},\"thread_id\":\"bad\"}",
        "{\"version\":1,\"slot\":9,\"created_at\":{\"sec\":1,\"nsec\":1},\"thread_id\":\"\"}",
        "{\"version\":1,\"slot\":9,\"created_at\":{\"sec\":1,\"nsec\":1},\"thread_id_hex\":\"0\"}",
        "{\"version\":1,\"slot\":9,\"created_at\":{\"sec\":1,\"nsec\":1},\"thread_id_hex\":\"zz\"}",
        "{\"version\":1,\"slot\":9,\"created_at\":{\"sec\":1,\"nsec\":1},\"thread_id\":7}",
        /* the slot of "demo" */
        "{\"version\":1,\"slot\":1,\"created_at\":{\"sec\":1,\"nsec\":1},\"thread_id\":\"bad\"}",
    };
    assert_int_equal(create(f, bytes_of_string("bad"), 0), 0);
    for (size_t i = 0; i < ARRAY_SIZE(texts); i++) {
        write_root(f, "workspaces/bad/meta.json", texts[i]);
        assert_int_equal(open_key(f, bytes_of_string("bad"), 0), -EIO);
        assert_true(f->reply.text[0] != '\0');
        assert_int_equal(create(f, bytes_of_string("bad"), 0), -EIO);
    }
    /* Another thread's directory. */
    write_root(f, "workspaces/bad/meta.json",
               "{\"version\":1,\"slot\":9,\"created_at\":{\"sec\":1,\"nsec\":1},"
               "\"thread_id\":\"other\"}");
    assert_int_equal(open_key(f, bytes_of_string("bad"), 0), -ENOENT);
    assert_int_equal(open_key(f, bytes_of_string("bad"), WIRE_WORKSPACE_BY_NAME), 0);
}

static void test_damaged_service(void **state)
{
    struct fixture *f = *state;
    file_session_free(f->session);
    store_close(f->store);
    char path[4096], kept[4096];
    assert_int_equal(rename(root_path(f, "service.json", path), root_path(f, "kept", kept)), 0);
    static const char *const texts[] = {"", "{}", "{\"version\":1}",
                                        "{\"version\":1,\"service_id\":\"00\",\"next_slot\":1}"};
    struct failure failure = {0};
    for (size_t i = 0; i < ARRAY_SIZE(texts); i++) {
        write_root(f, "service.json", texts[i]);
        assert_int_equal(store_open(f->root, WATCH_AUTO, &f->store, &failure), -EIO);
        assert_non_null(strstr(failure.text, "service.json"));
    }
    /* Slots used up: no workspace can be made, those that are there work. */
    write_root(f, "service.json",
               "{\"version\":1,\"service_id\":\"00000000000000000000000000000000\","
               "\"next_slot\":16777215}");
    assert_int_equal(store_open(f->root, WATCH_AUTO, &f->store, &failure), 0);
    assert_int_equal(file_session_new(f->store, &f->session), 0);
    assert_int_equal(create(f, bytes_of_string("one more"), 0), -ENOSPC);
    assert_true(t_open_workspace(f, "demo") > 0);
}

static void test_numbers(void **state)
{
    struct fixture *f = *state;
    struct inode_numbers *numbers = NULL;
    int fd = open(f->directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_int_equal(inode_numbers_open(fd, &numbers), 0);
    uint64_t a, b, c, again;
    assert_int_equal(inode_number(numbers, 5, 1, 1, 77, &a), 0);
    assert_int_equal(a, UINT64_C(5) << 40 | 77);
    /* On another device, and a number too large: given ones. */
    assert_int_equal(inode_number(numbers, 5, 1, 2, 77, &a), 0);
    assert_int_equal(inode_number(numbers, 6, 1, 2, 77, &b), 0);
    assert_int_equal(inode_number(numbers, 5, 1, 1, UINT64_C(1) << 40, &c), 0);
    assert_true(a >> 40 == 0xffffff && a != b && b != c && a != c);
    assert_int_equal(inode_number(numbers, 5, 1, 2, 77, &again), 0);
    assert_int_equal(again, a);
    inode_numbers_close(numbers);
    /* A record cut short by a crash is dropped, the others stay. */
    int file = openat(fd, "inodes", O_WRONLY | O_APPEND | O_CLOEXEC);
    assert_int_equal(write(file, "torn", 4), 4);
    assert_int_equal(inode_numbers_open(fd, &numbers), 0);
    assert_int_equal(inode_number(numbers, 6, 1, 2, 77, &again), 0);
    assert_int_equal(again, b);
    uint64_t d;
    assert_int_equal(inode_number(numbers, 6, 1, 2, 78, &d), 0);
    assert_true(d != a && d != b && d != c);
    inode_numbers_close(numbers);
    assert_int_equal(pwrite(file, "damage", 6, 32), 6);
    (void)close(file);
    file = openat(fd, "inodes", O_WRONLY | O_CLOEXEC);
    assert_int_equal(pwrite(file, "damage", 6, 32), 6);
    assert_int_equal(inode_numbers_open(fd, &numbers), -EIO);
    (void)close(file);
    (void)close(fd);
}

int main(int argc, char **argv)
{
    fixture_world(argc, argv);
#define T(function) cmocka_unit_test_setup_teardown(function, fixture_setup, fixture_teardown)
    const struct CMUnitTest tests[] = {
        T(test_create),
        T(test_list),
        T(test_identity),
        T(test_lock),
        T(test_status),
        T(test_remove_in_use),
        T(test_remove_hostile),
        T(test_leftovers),
        T(test_remove_while_written),
        T(test_damaged_meta),
        T(test_damaged_service),
        T(test_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

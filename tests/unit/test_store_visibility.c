/* What rules take away from a session, by every way in: names, nodes it holds already, listings,
 * handles; and what changes with them while it is connected. */
#include "store_fixture.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int set_mount(struct fixture *f, struct file_session *session, const char *rules)
{
    return run_in(f, session,
                  &(struct wire_message){.type = WIRE_VISIBILITY,
                                         .visibility.rules = bytes_of_string(rules)});
}

static int set_workspace(struct fixture *f, const char *id, const char *rules, uint32_t flags)
{
    return run(
        f, &(struct wire_message){.type = WIRE_WORKSPACE_SET_VISIBILITY,
                                  .workspace_set_visibility = {.flags = flags,
                                                               .key = bytes_of_string(id),
                                                               .rules = bytes_of_string(rules)}});
}

/* The names of a directory, sorted, each followed by a space. */
static const char *list(struct fixture *f, uint64_t node, bool plus)
{
    static char text[4096];
    static char names[64][256];
    size_t count = 0;
    uint64_t cookie = 0;
    int64_t handle = t_open(f, node, WIRE_OPEN_READ | WIRE_OPEN_DIRECTORY);
    if (handle < 0)
        return "(refused)";
    bool end = false;
    uint32_t unlisted = 0, hidden = 0;
    while (!end) {
        assert_int_equal(run(f, &(struct wire_message){.type = WIRE_READDIR,
                                                       .readdir = {.handle = (uint64_t)handle,
                                                                   .cookie = cookie,
                                                                   .size = 1, /* one by one */
                                                                   .plus = plus}}),
                         0);
        const struct wire_dirents *d = &f->reply.message.dirents;
        uint32_t offset = 0;
        struct bytes element;
        while (wire_list_next(&d->entries, &offset, &element)) {
            struct wire_message m;
            assert_int_equal(wire_decode(WIRE_DIRENT, element, &m), 0);
            assert_true(count < ARRAY_SIZE(names));
            (void)snprintf(names[count++], 256, "%.*s", (int)m.dirent.name.len,
                           (const char *)m.dirent.name.data);
            cookie = m.dirent.cookie;
        }
        unlisted += d->unlisted;
        hidden += d->hidden;
        end = d->end;
    }
    t_release(f, (uint64_t)handle);
    qsort(names, count, sizeof names[0], (int (*)(const void *, const void *))strcmp);
    size_t len = 0;
    text[0] = '\0';
    for (size_t i = 0; i < count; i++)
        len += (size_t)snprintf(text + len, sizeof text - len, "%s ", names[i]);
    (void)snprintf(text + len, sizeof text - len, "(%u, %u)", unlisted, hidden);
    return text;
}

static void make_tree(struct fixture *f)
{
    char path[4096];
    static const char *const directories[] = {
        "src",   "src/secret", "node_modules", "node_modules/a", "node_modules/a/node_modules",
        ".berth"};
    for (size_t i = 0; i < ARRAY_SIZE(directories); i++)
        assert_int_equal(mkdir(tree_path(f, directories[i], path), 0755), 0);
    static const char *const files[] = {
        "README",       "key.pem",        "src/main.c",           "src/key.pem",
        "src/secret/x", "node_modules/i", "node_modules/key.pem", "node_modules/a/index.js",
        ".berth/inside"};
    for (size_t i = 0; i < ARRAY_SIZE(files); i++)
        make_file(f, files[i], files[i]);
}

static void test_listings(void **state)
{
    struct fixture *f = *state;
    make_tree(f);
    for (int plus = 0; plus < 2; plus++) {
        assert_int_equal(set_mount(f, f->session, ""), 0);
        assert_string_equal(list(f, f->demo, plus), "README key.pem node_modules src (0, 1)");
        assert_int_equal(
            set_mount(f, f->session, "node_modules/\nhidden:*.pem\nhidden:/src/secret"), 0);
        assert_string_equal(list(f, f->demo, plus), "README src (1, 2)");
        uint64_t src = (uint64_t)t_lookup(f, f->demo, "src");
        assert_string_equal(list(f, src, plus), "main.c (0, 2)");
        /* By name it is there, and shows all there is but what is hidden. */
        uint64_t modules = (uint64_t)t_lookup(f, f->demo, "node_modules");
        assert_string_equal(list(f, modules, plus), "a i (0, 1)");
        uint64_t a = (uint64_t)t_lookup(f, modules, "a");
        assert_string_equal(list(f, a, plus), "index.js node_modules (0, 0)");
        assert_int_equal(t_lookup(f, modules, "key.pem"), -ENOENT);
    }
    assert_int_equal(set_mount(f, f->session, "hidden:!x"), -EINVAL);
    assert_non_null(strstr(f->reply.text, "line 1"));
    assert_int_equal(t_lookup(f, f->demo, "key.pem"), -ENOENT); /* the old ones stay */
}

static void test_hidden_by_every_way(void **state)
{
    struct fixture *f = *state;
    make_tree(f);
    uint64_t handle;
    assert_int_equal(set_mount(f, f->session, "hidden:*.pem\nhidden:secret/\nhidden:n\n"), 0);
    uint64_t src = (uint64_t)t_lookup(f, f->demo, "src");
    int64_t readme = t_lookup(f, f->demo, "README");
    static const char *const there[] = {"key.pem", "secret"};
    for (size_t i = 0; i < ARRAY_SIZE(there); i++) {
        assert_int_equal(t_lookup(f, src, there[i]), -ENOENT);
        assert_int_equal(t_unlink(f, src, there[i]), -ENOENT);
        assert_int_equal(t_rmdir(f, src, there[i]), -ENOENT);
        assert_int_equal(t_rename(f, src, there[i], f->demo, "found", 0), -ENOENT);
    }
    static const char *const names[] = {"key.pem", "new.pem", "n", "secret"};
    for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
        const char *n = names[i];
        assert_int_equal(t_mkdir(f, src, n), -EPERM);
        assert_int_equal(t_mknod(f, src, n, S_IFREG | 0644), -EPERM);
        assert_int_equal(t_mknod(f, src, n, S_IFIFO | 0644), -EPERM);
        assert_int_equal(t_symlink(f, src, n, "x"), -EPERM);
        assert_int_equal(t_link(f, (uint64_t)readme, src, n), -EPERM);
        assert_int_equal(t_create(f, src, n, WIRE_OPEN_READ, 0644, &handle), -EPERM);
        assert_int_equal(t_create(f, src, n, WIRE_OPEN_READ | WIRE_OPEN_EXCLUSIVE, 0644, &handle),
                         -EPERM);
        assert_int_equal(t_rename(f, f->demo, "README", src, n, 0), -EPERM);
        assert_int_equal(t_rename(f, f->demo, "README", src, n, RENAME_NOREPLACE), -EPERM);
        assert_int_equal(t_rename(f, f->demo, "README", src, n, RENAME_EXCHANGE), -EPERM);
        assert_int_equal(t_rename(f, f->demo, "node_modules", src, n, 0), -EPERM);
    }
    assert_true(exists(f, "src/key.pem") && exists(f, "src/secret/x") && exists(f, "README"));
    assert_false(exists(f, "src/new.pem") || exists(f, "src/n"));
    /* A rule for directories lets a file be; and a directory that would go there by exchange. */
    assert_true(t_create(f, f->demo, "secret", WIRE_OPEN_READ, 0644, &handle) > 0);
    assert_int_equal(t_rename(f, f->demo, "secret", f->demo, "src", RENAME_EXCHANGE), -EPERM);
    assert_int_equal(t_rename(f, f->demo, "node_modules", f->demo, "secret", 0), -EPERM);
    assert_int_equal(t_rename(f, f->demo, "README", f->demo, "secret", 0), 0);
    assert_int_equal(t_mkdir(f, f->demo, "secret"), -EPERM);
    /* The reserved name, with no rules of any use. */
    assert_int_equal(set_mount(f, f->session, "!.berth\n!/.berth/**\n"), 0);
    assert_int_equal(t_lookup(f, f->demo, ".berth"), -ENOENT);
    assert_int_equal(t_mkdir(f, f->demo, ".berth"), -EPERM);
    assert_int_equal(t_rmdir(f, f->demo, ".berth"), -ENOENT);
    assert_true(t_mkdir(f, src, ".berth") > 0);
}

static void test_nothing_unseen_is_deleted(void **state)
{
    struct fixture *f = *state;
    char path[4096];
    static const char *const directories[] = {"u", "u/node_modules", "h", "h/x.pem", "other"};
    for (size_t i = 0; i < ARRAY_SIZE(directories); i++)
        assert_int_equal(mkdir(tree_path(f, directories[i], path), 0755), 0);
    assert_int_equal(set_mount(f, f->session, "node_modules\nhidden:*.pem"), 0);
    static const char *const parents[] = {"u", "h"};
    for (size_t i = 0; i < 2; i++) {
        uint64_t node = (uint64_t)t_lookup(f, f->demo, parents[i]);
        assert_string_equal(list(f, node, true), i == 0 ? "(1, 0)" : "(0, 1)");
        assert_int_equal(t_rmdir(f, f->demo, parents[i]), -ENOTEMPTY);
        assert_int_equal(t_rename(f, f->demo, "other", f->demo, parents[i], 0), -ENOTEMPTY);
    }
    assert_true(exists(f, "u/node_modules") && exists(f, "h/x.pem"));
    /* What was unseen by name goes by name. */
    uint64_t u = (uint64_t)t_lookup(f, f->demo, "u");
    assert_int_equal(t_rmdir(f, u, "node_modules"), 0);
    assert_int_equal(t_rmdir(f, f->demo, "u"), 0);
}

static void test_nodes_held_already(void **state)
{
    struct fixture *f = *state;
    struct wire_attr attr;
    uint64_t opened;
    make_tree(f);
    uint64_t src = (uint64_t)t_lookup(f, f->demo, "src");
    uint64_t key = (uint64_t)t_lookup(f, src, "key.pem");
    uint64_t secret = (uint64_t)t_lookup(f, src, "secret");
    uint64_t x = (uint64_t)t_lookup(f, secret, "x");
    uint64_t directory = (uint64_t)t_open(f, secret, WIRE_OPEN_READ | WIRE_OPEN_DIRECTORY);
    uint64_t file = (uint64_t)t_open(f, key, WIRE_OPEN_READ);
    assert_int_equal(t_create(f, src, "a.pem", WIRE_OPEN_READ | WIRE_OPEN_WRITE, 0644, &opened) > 0,
                     true);
    assert_int_equal(set_workspace(f, "demo", "hidden:*.pem\nhidden:/src/secret/\n", 0), 0);
    const uint64_t gone[] = {key, secret, x};
    for (size_t i = 0; i < ARRAY_SIZE(gone); i++) {
        assert_int_equal(t_getattr(f, gone[i], 0, &attr), -ESTALE);
        assert_int_equal(t_open(f, gone[i], WIRE_OPEN_READ), -ESTALE);
        assert_int_equal(t_link(f, gone[i], f->demo, "link"), -ESTALE);
    }
    assert_int_equal(t_lookup(f, secret, "x"), -ESTALE);
    assert_int_equal(t_mkdir(f, secret, "new"), -ESTALE);
    assert_int_equal(t_rename(f, src, "main.c", secret, "main.c", 0), -ESTALE);
    assert_int_equal(run(f, &(struct wire_message){.type = WIRE_READDIR,
                                                   .readdir = {.handle = directory, .size = 4096}}),
                     -ENOENT);
    /* As with a file that was unlinked, what is open goes on. */
    assert_int_equal(t_read(f, file, 0, 100), 0);
    assert_string_equal(t_data(f), "src/key.pem");
    assert_int_equal(t_getattr(f, key, file, &attr), 0);
    assert_int_equal(t_getattr(f, key, opened, &attr), -EBADF);
    assert_int_equal(t_write(f, opened, 0, "text"), 4);
    assert_int_equal(t_getattr(f, src, 0, &attr), 0);
    /* And back. */
    assert_int_equal(set_workspace(f, "demo", "", 0), 0);
    for (size_t i = 0; i < ARRAY_SIZE(gone); i++)
        assert_int_equal(t_getattr(f, gone[i], 0, &attr), 0);
    assert_true(t_lookup(f, secret, "x") > 0);
}

static void test_renames_between_places(void **state)
{
    struct fixture *f = *state;
    struct wire_attr attr;
    char from[4096], to[4096];
    make_tree(f);
    assert_int_equal(set_mount(f, f->session, "hidden:/src/secret\nhidden:/vault/**\n/src/m*\n"),
                     0);
    uint64_t src = (uint64_t)t_lookup(f, f->demo, "src");
    assert_string_equal(list(f, src, false), "key.pem (1, 1)");
    /* The place counts: with the directory renamed the rules are about others. */
    assert_int_equal(t_rename(f, f->demo, "src", f->demo, "lib", 0), 0);
    assert_string_equal(list(f, src, false), "key.pem main.c secret (0, 0)");
    uint64_t secret = (uint64_t)t_lookup(f, src, "secret");
    assert_true(t_lookup(f, secret, "x") > 0);
    assert_int_equal(t_rename(f, f->demo, "lib", f->demo, "src", 0), 0);
    assert_string_equal(list(f, src, false), "key.pem (1, 1)");
    assert_int_equal(t_getattr(f, secret, 0, &attr), -ESTALE);
    assert_int_equal(t_lookup(f, src, "secret"), -ENOENT);
    /* A directory may take what it holds to where that is hidden. */
    assert_int_equal(t_rename(f, f->demo, "src", f->demo, "vault", 0), 0);
    assert_string_equal(list(f, src, false), "(0, 3)");
    assert_int_equal(t_rename(f, src, "main.c", f->demo, "main.c", 0), -ENOENT);
    assert_int_equal(t_rename(f, f->demo, "README", src, "README", 0), -EPERM);
    assert_int_equal(t_rename(f, f->demo, "vault", f->demo, "src", 0), 0);
    /* A command renames: known from the next look-up of the directory on. */
    assert_int_equal(rename(tree_path(f, "src", from), tree_path(f, "vault", to)), 0);
    assert_int_equal(t_lookup(f, f->demo, "src"), -ENOENT);
    assert_int_equal(t_lookup(f, f->demo, "vault"), (int64_t)src);
    assert_string_equal(list(f, src, false), "(0, 3)");
}

static void test_two_names(void **state)
{
    struct fixture *f = *state;
    struct wire_attr attr;
    struct file_session *other;
    make_tree(f);
    uint64_t readme = (uint64_t)t_lookup(f, f->demo, "README");
    assert_int_equal(t_link(f, readme, f->demo, "copy.pem"), (int64_t)readme);
    assert_int_equal(file_session_new(f->store, &other), 0);
    assert_int_equal(set_mount(f, f->session, "hidden:*.pem"), 0);
    /* Its last name was hidden: it is looked up again by the other one. */
    assert_int_equal(t_getattr(f, readme, 0, &attr), -ESTALE);
    assert_int_equal(t_lookup(f, f->demo, "copy.pem"), -ENOENT);
    assert_int_equal(t_lookup(f, f->demo, "README"), (int64_t)readme);
    assert_int_equal(t_getattr(f, readme, 0, &attr), 0);
    assert_int_equal(attr.nlink, 2);
    /* A session that sees both names does not take it away again. */
    assert_int_equal(run_in(f, other,
                            &(struct wire_message){.type = WIRE_WORKSPACE_OPEN,
                                                   .workspace_open.key = bytes_of_string("demo")}),
                     0);
    assert_int_equal(
        run_in(f, other,
               &(struct wire_message){
                   .type = WIRE_LOOKUP,
                   .lookup = {.parent = f->demo, .name = bytes_of_string("copy.pem")}}),
        0);
    assert_int_equal(f->reply.message.entry.node, readme);
    assert_int_equal(t_getattr(f, readme, 0, &attr), 0);
    file_session_free(other);
}

static void test_workspace_rules_stay(void **state)
{
    struct fixture *f = *state;
    struct failure failure;
    make_tree(f);
    assert_int_equal(set_workspace(f, "demo", "hidden:*.pem", 0), 0);
    const struct wire_workspace_rules *rules = &f->reply.message.workspace_rules;
    assert_true(bytes_equal(rules->workspace, bytes_of_string("hidden:*.pem")));
    assert_int_equal(rules->service.len, 0);
    assert_int_equal(set_workspace(f, "demo", "show:src/*.pem\n", WIRE_WORKSPACE_APPEND), 0);
    assert_true(bytes_equal(rules->workspace, bytes_of_string("hidden:*.pem\nshow:src/*.pem\n")));
    assert_int_equal(set_workspace(f, "demo", "hidden:", WIRE_WORKSPACE_APPEND), -EINVAL);
    assert_non_null(strstr(f->reply.text, "line 3"));
    assert_int_equal(set_workspace(f, "nope", "a", 0), -ENOENT);
    assert_int_equal(set_workspace(f, "demo", "a", WIRE_WORKSPACE_EXCLUSIVE << 4), -EINVAL);
    for (int round = 0; round < 2; round++) {
        assert_int_equal(t_lookup(f, f->demo, "key.pem"), -ENOENT);
        uint64_t src = (uint64_t)t_lookup(f, f->demo, "src");
        assert_true(t_lookup(f, src, "key.pem") > 0);
        fixture_reopen(f, NULL);
    }
    assert_int_equal(
        run(f, &(struct wire_message){.type = WIRE_WORKSPACE_VISIBILITY,
                                      .workspace_visibility.key = bytes_of_string("demo")}),
        0);
    assert_true(bytes_equal(rules->workspace, bytes_of_string("hidden:*.pem\nshow:src/*.pem\n")));
    /* The service's rules come first, so the workspace's beat them. */
    assert_int_equal(store_set_visibility(f->store, bytes_of_string("hidden:!"), &failure),
                     -EINVAL);
    assert_int_equal(
        store_set_visibility(f->store, bytes_of_string("hidden:README\nhidden:key.pem"), &failure),
        0);
    assert_int_equal(t_lookup(f, f->demo, "README"), -ENOENT);
    uint64_t src = (uint64_t)t_lookup(f, f->demo, "src");
    assert_true(t_lookup(f, src, "key.pem") > 0);
    assert_int_equal(set_mount(f, f->session, "!README"), 0);
    assert_true(t_lookup(f, f->demo, "README") > 0);
    /* Cleared: no file is left; and one that was damaged opens nothing. */
    char path[4096];
    (void)snprintf(path, sizeof path, "%s/workspaces/demo/visibility", f->root);
    assert_int_equal(access(path, F_OK), 0);
    assert_int_equal(set_workspace(f, "demo", "", 0), 0);
    assert_int_equal(access(path, F_OK), -1);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_int_equal(write(fd, "profile:nope", 12), 12);
    (void)close(fd);
    assert_int_equal(t_open_workspace(f, "demo"), -EIO);
    assert_int_equal(unlink(path), 0);
    assert_true(t_open_workspace(f, "demo") > 0);
}

static void test_status_counts(void **state)
{
    struct fixture *f = *state;
    make_tree(f);
    assert_int_equal(set_workspace(f, "demo", "node_modules\nhidden:*.pem", 0), 0);
    (void)list(f, f->demo, false);
    (void)list(f, f->demo, true);
    json_t *status = json_object();
    assert_int_equal(store_status(f->store, status), 0);
    json_t *v = json_object_get(status, "visibility");
    assert_int_equal(json_integer_value(json_object_get(v, "rules")), 0);
    assert_int_equal(json_integer_value(json_object_get(v, "unlisted")), 2);
    assert_int_equal(json_integer_value(json_object_get(v, "hidden")), 4); /* and /.berth */
    json_t *one = json_array_get(json_object_get(v, "workspaces"), 0);
    assert_string_equal(json_string_value(json_object_get(one, "name")), "demo");
    assert_int_equal(json_integer_value(json_object_get(one, "rules")), 2);
    assert_int_equal(json_integer_value(json_object_get(one, "unlisted")), 2);
    json_decref(status);
}

/* Deep, with rules that keep many components alive at every level. */
static void test_costly_rules(void **state)
{
    struct fixture *f = *state;
    static char rules[32768];
    size_t len = 0;
    for (int i = 0; i < 200; i++)
        len += (size_t)snprintf(rules + len, sizeof rules - len, "hidden:**/a/**/b%d/**/c\n", i);
    assert_int_equal(set_mount(f, f->session, rules), 0);
    uint64_t node = f->demo;
    for (int i = 0; i < 60; i++) {
        int64_t below = t_mkdir(f, node, i == 1 ? "b7" : "a");
        assert_true(below > 0);
        node = (uint64_t)below;
    }
    assert_int_equal(t_mkdir(f, node, "c"), -EPERM);
    assert_true(t_mkdir(f, node, "d") > 0);
    drop_descriptors(f);
    assert_int_equal(t_lookup(f, node, "c"), -ENOENT);
    assert_true(t_lookup(f, node, "d") > 0);
}

int main(int argc, char **argv)
{
    fixture_world(argc, argv);
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)
        TEST(test_listings),
        TEST(test_hidden_by_every_way),
        TEST(test_nothing_unseen_is_deleted),
        TEST(test_nodes_held_already),
        TEST(test_renames_between_places),
        TEST(test_two_names),
        TEST(test_workspace_rules_stay),
        TEST(test_status_counts),
        TEST(test_costly_rules),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

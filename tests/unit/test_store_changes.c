/* What one session is told of what others change. Where nothing is detected, nothing is told. */
#include "store_fixture.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "store/changes.h"

static atomic_int woken;

static void on_wake(void *context)
{
    atomic_fetch_add(&woken, 1);
}

struct other {
    struct file_session *session;
    struct subscription *subscription;
    uint64_t demo;
};

/* A second session that knows the workspace's root, and is told. */
static struct other other_open(struct fixture *f)
{
    struct other o = {0};
    assert_int_equal(file_session_new(f->store, &o.session), 0);
    assert_int_equal(subscription_open(o.session, on_wake, NULL, &o.subscription), 0);
    struct subscription *second;
    assert_int_equal(subscription_open(o.session, on_wake, NULL, &second), -EBUSY);
    assert_int_equal(run_in(f, o.session,
                            &(struct wire_message){.type = WIRE_WORKSPACE_OPEN,
                                                   .workspace_open.key = bytes_of_string("demo")}),
                     0);
    o.demo = f->reply.message.workspace_root.node;
    return o;
}

static void other_close(struct other *o)
{
    subscription_close(o->subscription);
    file_session_free(o->session);
}

static uint64_t other_lookup(struct fixture *f, struct other *o, const char *name,
                             struct wire_attr *ret)
{
    assert_int_equal(run_in(f, o->session,
                            &(struct wire_message){
                                .type = WIRE_LOOKUP,
                                .lookup = {.parent = o->demo, .name = bytes_of_string(name)}}),
                     0);
    *ret = f->reply.message.entry.attr;
    return f->reply.message.entry.node;
}

/* All that is pending, as "kinds:name " in order; the kinds of `ino` without a name as "kinds". */
static const char *told(struct other *o, uint64_t ino)
{
    static char text[512];
    struct buffer list = {0};
    uint64_t position = 0;
    text[0] = '\0';
    int n;
    while ((n = subscription_take(o->subscription, &list, &position)) > 0) {
        struct wire_list l = wire_list_of(&list, (uint32_t)n);
        uint32_t offset = 0;
        struct bytes element;
        while (wire_list_next(&l, &offset, &element)) {
            struct wire_message m;
            assert_int_equal(wire_decode(WIRE_CHANGE, element, &m), 0);
            if (ino && m.change.ino != ino)
                continue;
            size_t at = strlen(text);
            (void)snprintf(text + at, sizeof text - at, "%u:%.*s ", m.change.kinds,
                           (int)m.change.name.len, (const char *)m.change.name.data);
        }
        assert_true(position <= subscription_end(o->subscription));
        list.len = 0;
    }
    assert_int_equal(n, 0);
    assert_true(!position || position == subscription_end(o->subscription));
    buffer_release(&list);
    return text;
}

static void test_who_is_told(void **state)
{
    struct fixture *f = *state;
    if (!store_detects(f->store) || f->store->by_file)
        return; /* test_nothing_without_detection; what is done here is told to all */
    struct other o = other_open(f);
    struct wire_attr attr;
    uint64_t handle = 0;
    atomic_store(&woken, 0);
    int64_t node = t_create(f, f->demo, "a", WIRE_OPEN_WRITE, 0600, &handle);
    assert_true(node > 0);
    assert_int_equal(atomic_load(&woken), 1);
    assert_string_equal(told(&o, 0), "1:a ");
    /* Of a file that it does not know, it hears nothing. */
    assert_int_equal(t_write(f, handle, 0, "x"), 1);
    assert_string_equal(told(&o, 0), "");
    uint64_t known = other_lookup(f, &o, "a", &attr);
    assert_true(attr.flags & WIRE_ATTR_COVERED);
    /* Twice the same is told once. */
    assert_int_equal(t_write(f, handle, 0, "y"), 1);
    assert_int_equal(t_write(f, handle, 0, "z"), 1);
    assert_string_equal(told(&o, attr.ino), "2: ");
    t_release(f, handle);
    /* Of its own changes it hears nothing either. */
    assert_int_equal(run_in(f, o.session,
                            &(struct wire_message){
                                .type = WIRE_SETATTR,
                                .setattr = {.node = known, .valid = WIRE_SET_MODE, .mode = 0644}}),
                     0);
    assert_string_equal(told(&o, 0), "");
    /* A name less, and one link less of what it was. */
    assert_true(t_link(f, (uint64_t)node, f->demo, "b") > 0);
    assert_string_equal(told(&o, 0), "1:b 4: ");
    assert_int_equal(t_unlink(f, f->demo, "b"), 0);
    assert_string_equal(told(&o, 0), "1:b 4: ");
    assert_int_equal(t_rename(f, f->demo, "a", f->demo, "c", 0), 0);
    assert_string_equal(told(&o, 0), "1:a 1:c 4: ");
    other_close(&o);
}

static void test_too_much_becomes_everything(void **state)
{
    struct fixture *f = *state;
    if (!store_detects(f->store))
        return;
    struct other o = other_open(f);
    struct node *root;
    assert_int_equal(node_get(f->session, f->demo, &root), 0);
    for (size_t i = 0; i < CHANGES_PENDING_MAX + 10; i++) {
        char name[32];
        int n = snprintf(name, sizeof name, "f%zu", i);
        changes_note(f->store, NULL, root, WIRE_CHANGE_NAME, bytes_of(name, (size_t)n));
    }
    uint64_t end = subscription_end(o.subscription);
    assert_string_equal(told(&o, 0), "8: ");
    assert_int_equal(subscription_end(o.subscription), end);
    /* And then one by one again. */
    changes_note(f->store, NULL, root, WIRE_CHANGE_NAME, bytes_of_string("one"));
    assert_string_equal(told(&o, 0), "1:one ");
    changes_note_all(f->store);
    changes_note(f->store, NULL, root, WIRE_CHANGE_NAME, bytes_of_string("two"));
    assert_string_equal(told(&o, 0), "8: ");
    node_unref(root);
    other_close(&o);
}

/* By a child, whose changes are not the service's own. */
static void beside(const char *command, const char *directory)
{
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        if (chdir(directory) == 0)
            (void)execl("/bin/sh", "sh", "-c", command, (char *)NULL);
        _exit(1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

static void test_what_others_do_is_detected(void **state)
{
    struct fixture *f = *state;
    if (!store_detects(f->store))
        return;
    struct other o = other_open(f);
    struct wire_attr attr;
    beside("echo x > a; mkdir d", f->tree);
    assert_int_equal(store_detect(f->store), 0);
    assert_non_null(strstr(told(&o, 0), "1:a "));
    (void)other_lookup(f, &o, "a", &attr);
    beside("echo y > a", f->tree);
    assert_int_equal(store_detect(f->store), 0);
    assert_string_equal(told(&o, attr.ino), "2: ");
    /* Through a name that nobody knows. */
    beside("ln a d/b", f->tree);
    assert_int_equal(store_detect(f->store), 0);
    (void)told(&o, 0);
    beside("chmod 600 d/b", f->tree);
    assert_int_equal(store_detect(f->store), 0);
    assert_string_equal(told(&o, attr.ino), "4: ");
    /* A directory that is moved is still found. */
    uint64_t d = (uint64_t)t_lookup(f, f->demo, "d");
    drop_descriptors(f);
    beside("mv d e", f->tree);
    assert_int_equal(store_detect(f->store), 0);
    assert_true(t_lookup(f, d, "b") > 0);
    other_close(&o);
}

static struct wire_attr attr_of(struct fixture *f, uint64_t node)
{
    struct wire_attr attr;
    assert_int_equal(t_getattr(f, node, 0, &attr), 0);
    return attr;
}

/* told is what GETATTR answers afterwards. */
static void check_told(struct fixture *f, struct wire_attr told, uint64_t node)
{
    const struct wire_attr attr = attr_of(f, node);
    assert_int_equal(told.ino, attr.ino);
    assert_int_equal(told.generation, attr.generation);
    assert_int_equal(told.version, attr.version); /* of its times and its size */
    assert_int_equal(told.mode, attr.mode);
    assert_int_equal(told.nlink, attr.nlink);
    assert_int_equal(told.flags, attr.flags);
}

/* Who changes a name is told what its directory is like since. */
static void test_what_changes_of_names_tell(void **state)
{
    struct fixture *f = *state;
    struct wire_message m;
    uint64_t handle, dir = (uint64_t)t_mkdir(f, f->demo, "dir");
    m = f->reply.message;
    assert_true(m.made.empty);
    check_told(f, m.made.directory, f->demo);
    check_told(f, m.made.attr, dir);
    uint64_t sub = (uint64_t)t_mkdir(f, dir, "sub");
    m = f->reply.message;
    check_told(f, m.made.directory, dir);
    assert_int_equal(attr_of(f, dir).nlink, 3);
    uint64_t file = (uint64_t)t_create(f, dir, "file", WIRE_OPEN_WRITE, 0644, &handle);
    m = f->reply.message;
    check_told(f, m.created.directory, dir);
    t_release(f, handle);
    assert_int_equal(t_create(f, dir, "file", WIRE_OPEN_WRITE, 0644, &handle), (int64_t)file);
    m = f->reply.message;
    check_told(f, m.created.directory, dir);
    t_release(f, handle);
    uint64_t link = (uint64_t)t_symlink(f, dir, "link", "x");
    m = f->reply.message;
    assert_false(m.made.empty);
    check_told(f, m.made.directory, dir);
    assert_int_equal(t_link(f, file, dir, "hard"), (int64_t)file);
    m = f->reply.message;
    check_told(f, m.made.directory, dir);
    assert_true(t_mknod(f, dir, "fifo", S_IFIFO | 0600) > 0);
    m = f->reply.message;
    check_told(f, m.made.directory, dir);
    assert_int_equal(t_unlink(f, dir, "fifo"), 0);
    m = f->reply.message;
    check_told(f, m.removed.directory, dir);

    assert_int_equal(t_rename(f, dir, "link", sub, "moved", 0), 0);
    m = f->reply.message;
    check_told(f, m.renamed.directory, dir);
    check_told(f, m.renamed.new_directory, sub);
    check_told(f, m.renamed.attr, link);
    assert_false(m.renamed.kept);
    assert_int_equal(t_rename(f, dir, "file", sub, "moved", RENAME_EXCHANGE), 0);
    m = f->reply.message;
    check_told(f, m.renamed.attr, file);
    /* Names of one file: nothing happens. */
    assert_int_equal(t_rename(f, sub, "moved", dir, "hard", 0), 0);
    m = f->reply.message;
    assert_true(m.renamed.kept);
    check_told(f, m.renamed.directory, sub);
    assert_int_equal(t_lookup(f, sub, "moved"), (int64_t)file);
    /* Of what it has not asked for it is told nothing. */
    make_file(f, "unknown", "");
    assert_int_equal(t_rename(f, f->demo, "unknown", dir, "unknown", 0), 0);
    m = f->reply.message;
    assert_int_equal(m.renamed.attr.ino, 0);

    assert_int_equal(t_unlink(f, sub, "moved"), 0);
    m = f->reply.message;
    assert_int_equal(t_rmdir(f, dir, "sub"), 0);
    m = f->reply.message;
    check_told(f, m.removed.directory, dir);
    assert_int_equal(attr_of(f, dir).nlink, 2);
}

/* Makes a file in each directory as soon as it is there, until one cannot be made. */
static pid_t fill_directories(struct fixture *f, unsigned count)
{
    pid_t child = fork();
    assert_true(child >= 0);
    if (child)
        return child;
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (unsigned i = 0; i < count; i++) {
        char name[32], path[4096];
        int fd;
        (void)snprintf(name, sizeof name, "new%u/x", i);
        (void)tree_path(f, name, path);
        while ((fd = open(path, O_WRONLY | O_CREAT, 0644)) < 0 && errno == ENOENT)
            (void)sched_yield();
        if (fd < 0)
            _exit(1);
        (void)close(fd);
    }
    _exit(0);
}

/* What comes to be in it before its node is held is nobody's to report. */
static void test_a_new_directory_is_empty_or_reported(void **state)
{
    struct fixture *f = *state;
    const unsigned count = 150;
    unsigned filled = 0;
    struct subscription *s;
    if (!store_detects(f->store))
        return;
    assert_int_equal(subscription_open(f->session, on_wake, NULL, &s), 0);
    struct other o = {.session = f->session, .subscription = s};
    pid_t child = fill_directories(f, count);
    for (unsigned i = 0; i < count; i++) {
        char name[32];
        (void)snprintf(name, sizeof name, "new%u", i);
        assert_true(t_mkdir(f, f->demo, name) > 0);
        const struct wire_made made = f->reply.message.made;
        (void)snprintf(name, sizeof name, "new%u/x", i);
        for (unsigned tries = 0; !exists(f, name) && tries < 10000; tries++)
            (void)usleep(1000);
        assert_true(exists(f, name));
        assert_int_equal(store_detect(f->store), 0);
        const char *text = told(&o, made.attr.ino);
        filled += !made.empty;
        if (made.empty && !strstr(text, "1:x "))
            fail_msg("new%u was called empty, and what came to be there not told: %s", i, text);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    print_message("%u of %u were not empty any more\n", filled, count);
    subscription_close(s);
}

static void test_nothing_without_detection(void **state)
{
    struct fixture *f = *state;
    if (store_detects(f->store))
        return; /* the others */
    struct other o = other_open(f);
    struct wire_attr attr;
    uint64_t handle = 0;
    assert_true(t_create(f, f->demo, "a", WIRE_OPEN_WRITE, 0600, &handle) > 0);
    (void)other_lookup(f, &o, "a", &attr);
    assert_false(attr.flags & WIRE_ATTR_COVERED);
    assert_int_equal(store_detect(f->store), 0);
    assert_string_equal(told(&o, 0), "");
    t_release(f, handle);
    other_close(&o);
}

static void beside_seen(struct fixture *f, const char *command)
{
    beside(command, f->tree);
    assert_int_equal(store_detect(f->store), 0);
}

static uint32_t flags_at(struct fixture *f, struct other *o, const char *name)
{
    struct wire_attr attr;
    (void)other_lookup(f, o, name, &attr);
    return attr.flags;
}

/* A file is told of under whatever name, be it in a directory that nobody knows, or none. */
static void test_a_file_that_is_open_is_followed(void **state)
{
    struct fixture *f = *state;
    if (!store_detects(f->store))
        return;
    struct other o = other_open(f);
    struct wire_attr attr;
    beside_seen(f, "echo x > a; mkdir unknown");
    assert_int_equal(flags_at(f, &o, "a"), WIRE_ATTR_COVERED);
    uint64_t node = other_lookup(f, &o, "a", &attr);
    assert_int_equal(
        run_in(f, o.session,
               &(struct wire_message){.type = WIRE_OPEN,
                                      .open = {.node = node, .flags = WIRE_OPEN_READ}}),
        0);
    beside_seen(f, "true");
    (void)told(&o, 0);
    beside_seen(f, "ln a unknown/b");
    assert_string_equal(told(&o, attr.ino), "4: ");
    beside_seen(f, "echo y >> unknown/b");
    assert_string_equal(told(&o, attr.ino), "2: ");
    beside_seen(f, "mv a unknown/a");
    assert_string_equal(told(&o, attr.ino), "4: ");
    beside_seen(f, "echo z >> unknown/a");
    assert_string_equal(told(&o, attr.ino), "2: ");
    beside_seen(f, "exec 3>> unknown/a; rm unknown/a unknown/b; echo z >&3");
    assert_string_equal(told(&o, attr.ino), "6: ");
    other_close(&o);
}

static void test_watches_are_given_back(void **state)
{
    struct fixture *f = *state;
    if (!f->store->by_file)
        return;
    struct watch_status status = {0};
    watch_status(f->store->watch, &status);
    uint64_t before = status.directories;
    beside_seen(f, "mkdir a b b/c");
    uint64_t a = (uint64_t)t_lookup(f, f->demo, "a");
    uint64_t b = (uint64_t)t_walk(f, "b"), c = (uint64_t)t_walk(f, "b/c");
    watch_status(f->store->watch, &status);
    assert_int_equal(status.directories, before + 3);
    t_forget(f, a, 1);
    watch_status(f->store->watch, &status);
    assert_int_equal(status.directories, before + 2);
    /* The kernel's part of one that is gone. */
    beside_seen(f, "rmdir b/c");
    watch_status(f->store->watch, &status);
    assert_int_equal(status.directories, before + 1);
    t_forget(f, c, 1);
    t_forget(f, b, 2);
    watch_status(f->store->watch, &status);
    assert_int_equal(status.directories, before);
}

int main(int argc, char **argv)
{
    fixture_world(argc, argv);
#define T(function) cmocka_unit_test_setup_teardown(function, fixture_setup, fixture_teardown)
    const struct CMUnitTest tests[] = {
        T(test_who_is_told),
        T(test_too_much_becomes_everything),
        T(test_what_others_do_is_detected),
        T(test_what_changes_of_names_tell),
        T(test_a_new_directory_is_empty_or_reported),
        T(test_nothing_without_detection),
        T(test_a_file_that_is_open_is_followed),
        T(test_watches_are_given_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

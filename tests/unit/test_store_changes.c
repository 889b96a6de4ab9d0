/* What one session is told of what others change. Where nothing is detected, nothing is told. */
#include "store_fixture.h"

#include <stdatomic.h>
#include <string.h>
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
        T(test_nothing_without_detection),
        T(test_a_file_that_is_open_is_followed),
        T(test_watches_are_given_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

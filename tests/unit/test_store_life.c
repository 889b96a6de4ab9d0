/* What a workspace has besides its files: labels, a state, an end; and lists by them. */
#include "store_fixture.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "store/index.h"
#include "store/labels.h"
#include "store/trash.h"

/* --- labels ---------------------------------------------------------------------- */

static void test_labels_text(void **state)
{
    static const struct {
        const char *given;
        const char *kept; /* NULL: refused */
        int error;
    } cases[] = {
        {"", "{}", 0},
        {"{}", "{}", 0},
        {" { \"b\" : \"2\", \"a\":\"1\" } ", "{\"a\":\"1\",\"b\":\"2\"}", 0},
        {"{\"a\":\"\\u00fc\\n\\\"\"}", "{\"a\":\"ü\\n\\\"\"}", 0},
        {"{\"\xc3\xbc\":\"\"}", "{\"\xc3\xbc\":\"\"}", 0},
        {"{\"a b.c/d-e\":\"=,\"}", "{\"a b.c/d-e\":\"=,\"}", 0},
        {"[]", NULL, -EINVAL},
        {"{", NULL, -EINVAL},
        {"{\"a\":1}", NULL, -EINVAL},
        {"{\"a\":null}", NULL, -EINVAL},
        {"{\"\":\"x\"}", NULL, -EINVAL},
        {"{\":\":\"x\"}", NULL, -EINVAL},
        {"{\"}\":\"x\"}", NULL, -EINVAL},
        {"{\"a=b\":\"x\"}", NULL, -EINVAL},
        {"{\"a\\u0001\":\"x\"}", NULL, -EINVAL},
        {"{\"a\":\"1\",\"a\":\"2\"}", NULL, -EINVAL},
        {"{\"a\":\"\\u0000\"}", NULL, -EINVAL},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        char *kept = NULL;
        struct failure failure = {0};
        int r = labels_parse(bytes_of_string(cases[i].given), &kept, &failure);
        assert_int_equal(r, cases[i].error);
        if (r == 0)
            assert_string_equal(kept, cases[i].kept);
        else
            assert_true(failure.text[0] != '\0');
        free(kept);
    }
    char long_value[WIRE_LABELS_MAX + 16], *kept = NULL;
    struct failure failure = {0};
    memset(long_value, 'x', sizeof long_value);
    memcpy(long_value, "{\"k\":\"", 6);
    memcpy(long_value + WIRE_LABELS_MAX - 2, "\"}", 2);
    assert_int_equal(labels_parse(bytes_of(long_value, WIRE_LABELS_MAX), &kept, &failure), 0);
    free(kept);
    kept = NULL;
    memcpy(long_value + WIRE_LABELS_MAX - 2, "xx\"}", 4);
    assert_int_equal(labels_parse(bytes_of(long_value, WIRE_LABELS_MAX + 2), &kept, &failure),
                     -E2BIG);
}

static bool match(const char *given, const char *selector)
{
    struct label_selectors s = {0};
    struct failure failure;
    _cleanup_buffer_ struct buffer list = {0};
    _cleanup_free_ char *labels = NULL;
    assert_int_equal(labels_parse(bytes_of_string(given), &labels, &failure), 0);
    assert_int_equal(wire_list_append(&list, bytes_of_string(selector)), 0);
    const struct wire_list selectors = wire_list_of(&list, 1);
    int r = label_selectors_parse(&selectors, &s);
    assert_int_equal(r, 0);
    bool matches = labels_match(labels, &s);
    label_selectors_release(&s);
    return matches;
}

/* Values that look like other labels, and keys that are a part of others. */
static void test_labels_match(void **state)
{
    static const char labels[] =
        "{\"a\":\"1\",\"ab\":\"{\",\"q\":\"x\\\",\\\"w\\\":\\\"2\","
        "\"v\":\"\\\\\",\"x{\":\":\",\"e\":\"\",\"m\\\"n\":\"o\",\"k\":\"k=v\"}";
    static const char *const there[] = {"a=1",  "a",  "ab={", "ab", "q=x\",\"w\":\"2", "v=\\",  "v",
                                        "x{=:", "x{", "e=",   "e",  "k=k=v",           "m\"n=o"};
    static const char *const not_there[] = {"a=", "a=11", "b",   "b={", "w",   "w=2",
                                            "v=", "x=:",  "e=1", "k=v", "k=k", "1",
                                            "x",  "q=x",  "A",   "A=1", "n=o", "n"};
    for (size_t i = 0; i < ARRAY_SIZE(there); i++)
        if (!match(labels, there[i]))
            fail_msg("%s", there[i]);
    for (size_t i = 0; i < ARRAY_SIZE(not_there); i++)
        if (match(labels, not_there[i]))
            fail_msg("%s", not_there[i]);
    assert_false(match("", "a"));
}

/* --- requests -------------------------------------------------------------------- */

static int create(struct fixture *f, const char *id, const char *labels, uint64_t ttl_ms,
                  uint64_t idle_ms)
{
    return run(f, &(struct wire_message){.type = WIRE_WORKSPACE_CREATE,
                                         .workspace_create = {.thread_id = bytes_of_string(id),
                                                              .labels = bytes_of_string(labels),
                                                              .ttl_ms = ttl_ms,
                                                              .idle_ms = idle_ms}});
}

static int get(struct fixture *f, const char *id)
{
    return run(f, &(struct wire_message){.type = WIRE_WORKSPACE_GET,
                                         .workspace_get.key = bytes_of_string(id)});
}

static int set(struct fixture *f, struct wire_workspace_set q)
{
    if (q.key.len == 0)
        q.key = bytes_of_string("w");
    return run(f, &(struct wire_message){.type = WIRE_WORKSPACE_SET, .workspace_set = q});
}

static int set_labels(struct fixture *f, uint64_t revision, const char *labels)
{
    return set(f, (struct wire_workspace_set){.valid = WIRE_WORKSPACE_SET_LABELS,
                                              .revision = revision,
                                              .labels = bytes_of_string(labels)});
}

static const struct wire_workspace *told(struct fixture *f)
{
    return &f->reply.message.workspace;
}

static void assert_labels(struct fixture *f, const char *labels)
{
    if (!bytes_equal(told(f)->labels, bytes_of_string(labels)))
        fail_msg("%.*s", (int)told(f)->labels.len, (const char *)told(f)->labels.data);
}

/* The revision and the file are as they were when nothing is another thing. */
static void test_set_the_same(void **state)
{
    struct fixture *f = *state;
    struct stat before, after;
    assert_int_equal(create(f, "w", "{\"b\":\"2\",\"a\":\"1\"}", 0, 5000000), 0);
    char *path = NULL;
    assert_true(asprintf(&path, "%s/workspaces/w/meta.json", f->root) > 0);
    assert_int_equal(stat(path, &before), 0);
    const struct wire_workspace_set same[] = {
        {.valid = WIRE_WORKSPACE_SET_LABELS,
         .labels = bytes_of_string("{\"a\":\"1\",\"b\":\"2\"}")},
        {.valid = WIRE_WORKSPACE_SET_MERGE, .labels = bytes_of_string("{\"a\":\"1\",\"x\":null}")},
        {.valid = WIRE_WORKSPACE_SET_STATE, .state = WIRE_WORKSPACE_RUNNING},
        {.valid = WIRE_WORKSPACE_SET_TTL | WIRE_WORKSPACE_SET_IDLE, .idle_ms = 5000000}};
    for (size_t i = 0; i < ARRAY_SIZE(same); i++) {
        assert_int_equal(set(f, same[i]), 0);
        assert_int_equal(told(f)->revision, 1);
        assert_int_equal(stat(path, &after), 0);
        assert_int_equal(after.st_ino, before.st_ino);
    }
    /* One of two is enough. */
    const struct wire_workspace_set one = {.valid =
                                               WIRE_WORKSPACE_SET_STATE | WIRE_WORKSPACE_SET_IDLE,
                                           .state = WIRE_WORKSPACE_RUNNING,
                                           .idle_ms = 5000001};
    assert_int_equal(set(f, one), 0);
    assert_int_equal(told(f)->revision, 2);
    assert_int_equal(stat(path, &after), 0);
    assert_int_not_equal(after.st_ino, before.st_ino);
    free(path);
}

static void test_set(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(create(f, "w", "{\"b\":\"2\",\"a\":\"1\"}", 0, 0), 0);
    assert_labels(f, "{\"a\":\"1\",\"b\":\"2\"}");
    assert_int_equal(told(f)->revision, 1);
    assert_int_equal(told(f)->state, WIRE_WORKSPACE_RUNNING);
    assert_int_equal(told(f)->expires_at.sec, 0);
    /* Only for new ones. */
    assert_int_equal(create(f, "w", "{\"c\":\"3\"}", 1, 1), 0);
    assert_int_equal(told(f)->created, 0);
    assert_labels(f, "{\"a\":\"1\",\"b\":\"2\"}");
    assert_int_equal(told(f)->idle_ms, 0);

    assert_int_equal(set_labels(f, 2, "{}"), -EREMCHG);
    assert_true(strstr(f->reply.text, "revision 1"));
    assert_int_equal(get(f, "w"), 0);
    assert_labels(f, "{\"a\":\"1\",\"b\":\"2\"}");
    assert_int_equal(set_labels(f, 1, "{\"c\":\"3\"}"), 0);
    assert_int_equal(told(f)->revision, 2);
    assert_labels(f, "{\"c\":\"3\"}");
    assert_int_equal(set_labels(f, 1, "{}"), -EREMCHG);
    assert_int_equal(set_labels(f, 0, "{\"c\":3}"), -EINVAL);
    const struct wire_workspace_set merge = {
        .valid = WIRE_WORKSPACE_SET_MERGE,
        .labels = bytes_of_string("{\"c\":null,\"gone\":null,\"d\":\"4\",\"a\":\"5\"}")};
    assert_int_equal(set(f, merge), 0);
    assert_labels(f, "{\"a\":\"5\",\"d\":\"4\"}");
    assert_int_equal(set(f, (struct wire_workspace_set){.valid = 64}), -EINVAL);
    assert_int_equal(set(f, (struct wire_workspace_set){.valid = 3}), -EINVAL);
    assert_int_equal(
        set(f, (struct wire_workspace_set){.valid = WIRE_WORKSPACE_SET_STATE, .state = 3}),
        -EINVAL);
    assert_int_equal(set(f, (struct wire_workspace_set){.valid = WIRE_WORKSPACE_SET_TTL,
                                                        .ttl_ms = WIRE_LIFE_MAX_MS + 1}),
                     -EINVAL);
    assert_int_equal(set(f, (struct wire_workspace_set){.key = bytes_of_string("no")}), -ENOENT);
    assert_int_equal(get(f, "no"), -ENOENT);
    /* All parts at once, and what of it is on the disk. */
    const struct wire_workspace_set all = {.valid =
                                               WIRE_WORKSPACE_SET_LABELS | WIRE_WORKSPACE_SET_TTL |
                                               WIRE_WORKSPACE_SET_IDLE | WIRE_WORKSPACE_SET_STATE,
                                           .revision = 3,
                                           .state = WIRE_WORKSPACE_STOPPED,
                                           .ttl_ms = 1000000,
                                           .idle_ms = 2000000};
    assert_int_equal(set(f, all), 0);
    for (int i = 0; i < 2; i++) {
        assert_labels(f, "{}");
        assert_int_equal(told(f)->revision, 4);
        assert_int_equal(told(f)->state, WIRE_WORKSPACE_STOPPED);
        assert_int_equal(told(f)->idle_ms, 2000000);
        int64_t left = told(f)->expires_at.sec - told(f)->used_at.sec;
        assert_true(left > 500 && left <= 1001);
        fixture_reopen(f, NULL);
        assert_int_equal(get(f, "w"), 0);
    }
    struct workspace *w;
    assert_int_equal(store_workspace_find(f->store, bytes_of_string("w"), 0, &w), 0);
    assert_true(workspace_is_stopped(w));
    const struct wire_workspace_set start = {.valid = WIRE_WORKSPACE_SET_STATE,
                                             .state = WIRE_WORKSPACE_RUNNING};
    assert_int_equal(set(f, start), 0);
    assert_false(workspace_is_stopped(w));
    workspace_unref(w);
}

/* One of a hundred. */
struct racer {
    struct fixture *f;
    struct file_session *session;
    pthread_t thread;
    int error;
    uint32_t created, slot;
    uint64_t won;
};

static void *race_create(void *context)
{
    struct racer *x = context;
    struct reply reply = {0};
    const struct wire_message m = {.type = WIRE_WORKSPACE_CREATE,
                                   .workspace_create.thread_id = bytes_of_string("raced")};
    x->error = store_handle(x->session, &m, &reply);
    x->created = reply.message.workspace.created;
    x->slot = reply.message.workspace.slot;
    buffer_release(&reply.storage);
    return NULL;
}

/* Counts up to what all have to find at the end. */
static void *race_labels(void *context)
{
    struct racer *x = context;
    struct reply reply = {0};
    while (x->won < 3 && x->error == 0) {
        char labels[32];
        const struct wire_message ask = {.type = WIRE_WORKSPACE_GET,
                                         .workspace_get.key = bytes_of_string("raced")};
        x->error = store_handle(x->session, &ask, &reply);
        struct wire_workspace w = reply.message.workspace;
        unsigned n = 0;
        if (w.labels.len > 6)
            (void)sscanf((const char *)w.labels.data, "{\"n\":\"%u", &n);
        (void)snprintf(labels, sizeof labels, "{\"n\":\"%u\"}", n + 1);
        const struct wire_message m = {.type = WIRE_WORKSPACE_SET,
                                       .workspace_set = {.key = bytes_of_string("raced"),
                                                         .valid = WIRE_WORKSPACE_SET_LABELS,
                                                         .revision = w.revision,
                                                         .labels = bytes_of_string(labels)}};
        int r = x->error == 0 ? store_handle(x->session, &m, &reply) : 0;
        x->won += r == 0;
        if (r != -EREMCHG)
            x->error = x->error ? x->error : r;
    }
    buffer_release(&reply.storage);
    return NULL;
}

static void race(struct racer *racers, size_t count, void *(*work)(void *context))
{
    for (size_t i = 0; i < count; i++)
        assert_int_equal(pthread_create(&racers[i].thread, NULL, work, &racers[i]), 0);
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(pthread_join(racers[i].thread, NULL), 0);
        assert_int_equal(racers[i].error, 0);
    }
}

static void test_many_at_once(void **state)
{
    struct fixture *f = *state;
    static struct racer racers[100];
    uint32_t created = 0;
    memset(racers, 0, sizeof racers);
    for (size_t i = 0; i < ARRAY_SIZE(racers); i++) {
        racers[i].f = f;
        assert_int_equal(file_session_new(f->store, &racers[i].session), 0);
    }
    race(racers, ARRAY_SIZE(racers), race_create);
    for (size_t i = 0; i < ARRAY_SIZE(racers); i++) {
        created += racers[i].created;
        assert_int_equal(racers[i].slot, racers[0].slot);
    }
    assert_int_equal(created, 1);
    /* No change is lost. */
    race(racers, 10, race_labels);
    assert_int_equal(get(f, "raced"), 0);
    assert_labels(f, "{\"n\":\"30\"}");
    assert_int_equal(told(f)->revision, 31);
    for (size_t i = 0; i < ARRAY_SIZE(racers); i++)
        file_session_free(racers[i].session);
}

/* --- lists ----------------------------------------------------------------------- */

static void assert_list(struct fixture *f, uint32_t state, const char *selectors, uint32_t count,
                        const char *after, const char *expected)
{
    _cleanup_buffer_ struct buffer list = {0};
    char got[1024] = "", copy[256];
    uint32_t number = 0, offset = 0;
    (void)snprintf(copy, sizeof copy, "%s", selectors);
    for (char *save, *s = strtok_r(copy, " ", &save); s; s = strtok_r(NULL, " ", &save), number++)
        assert_int_equal(wire_list_append(&list, bytes_of_string(s)), 0);
    const struct wire_message m = {.type = WIRE_WORKSPACE_LIST,
                                   .workspace_list = {.count = count,
                                                      .state = state,
                                                      .after = bytes_of_string(after),
                                                      .selectors = wire_list_of(&list, number)}};
    assert_int_equal(run(f, &m), 0);
    struct bytes element;
    while (wire_list_next(&f->reply.message.workspaces.items, &offset, &element)) {
        struct wire_message w;
        assert_int_equal(wire_decode(WIRE_WORKSPACE, element, &w), 0);
        (void)snprintf(got + strlen(got), sizeof got - strlen(got), "%.*s ",
                       (int)w.workspace.name.len, (const char *)w.workspace.name.data);
    }
    if (f->reply.message.workspaces.more)
        (void)strcat(got, "…");
    assert_string_equal(got, expected);
}

static void test_list(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(create(f, "a", "{\"x\":\"1\"}", 0, 0), 0);
    assert_int_equal(create(f, "b", "{\"x\":\"2\",\"y\":\"1\"}", 0, 0), 0);
    assert_int_equal(create(f, "c", "{\"x\":\"1\",\"y\":\"1\"}", 0, 0), 0);
    assert_int_equal(create(f, "w", "", 0, 0), 0);
    const struct wire_workspace_set stop = {.valid = WIRE_WORKSPACE_SET_STATE,
                                            .state = WIRE_WORKSPACE_STOPPED,
                                            .key = bytes_of_string("c")};
    assert_int_equal(set(f, stop), 0);
    for (int i = 0; i < 2; i++) {
        assert_list(f, 0, "", 0, "", "a b c demo w ");
        assert_list(f, 0, "x", 0, "", "a b c ");
        assert_list(f, 0, "x=1", 0, "", "a c ");
        assert_list(f, 0, "x=1 y", 0, "", "c ");
        assert_list(f, 0, "x=3", 0, "", "");
        assert_list(f, WIRE_WORKSPACE_STOPPED, "", 0, "", "c ");
        assert_list(f, WIRE_WORKSPACE_RUNNING, "x=1", 0, "", "a ");
        /* A page that is full says that there is more only when there is. */
        assert_list(f, 0, "x=1", 1, "", "a …");
        assert_list(f, 0, "x=1", 1, "a", "c ");
        assert_list(f, 0, "x", 2, "", "a b …");
        assert_list(f, 0, "x", 3, "", "a b c ");
        /* By a service that has just begun. */
        fixture_reopen(f, NULL);
    }
    const struct wire_message wrong = {.type = WIRE_WORKSPACE_LIST, .workspace_list.state = 3};
    assert_int_equal(run(f, &wrong), -EINVAL);
    _cleanup_buffer_ struct buffer list = {0};
    assert_int_equal(wire_list_append(&list, bytes_of_string("=x")), 0);
    const struct wire_message no_key = {.type = WIRE_WORKSPACE_LIST,
                                        .workspace_list.selectors = wire_list_of(&list, 1)};
    assert_int_equal(run(f, &no_key), -EINVAL);
}

/* --- the first version ----------------------------------------------------------- */

static void test_first_version(void **state)
{
    struct fixture *f = *state;
    static const char text[] = "{\"version\":1,\"slot\":7,\"created_at\":{\"sec\":5,\"nsec\":6},"
                               "\"thread_id\":\"w\"}";
    char path[4096];
    assert_int_equal(create(f, "w", "", 0, 0), 0);
    (void)snprintf(path, sizeof path, "%s/workspaces/w/meta.json", f->root);
    int fd = open(path, O_WRONLY | O_TRUNC | O_CLOEXEC);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    (void)close(fd);
    fixture_reopen(f, NULL);
    assert_int_equal(get(f, "w"), 0);
    assert_int_equal(told(f)->slot, 7);
    assert_int_equal(told(f)->revision, 1);
    assert_int_equal(told(f)->state, WIRE_WORKSPACE_RUNNING);
    assert_labels(f, "{}");
    assert_int_equal(set_labels(f, 1, "{\"a\":\"1\"}"), 0);
    fixture_reopen(f, NULL);
    assert_int_equal(get(f, "w"), 0);
    assert_labels(f, "{\"a\":\"1\"}");
    assert_int_equal(told(f)->created_at.nsec, 6);
}

/* --- ends ------------------------------------------------------------------------ */

static void await_end(struct fixture *f, const char *id)
{
    int r;
    for (int i = 0; (r = get(f, id)) == 0 && i < 3000; i++)
        (void)usleep(10000);
    assert_int_equal(r, -ENOENT);
    trash_settle(f->store->trash);
}

static void test_ends(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(create(f, "short", "", 1, 0), 0);
    assert_int_equal(create(f, "idle", "", 0, 1), 0);
    assert_int_equal(create(f, "long", "", 1000000, 1000000), 0);
    assert_int_equal(create(f, "w", "", 0, 0), 0);
    await_end(f, "short");
    await_end(f, "idle");
    assert_int_equal(get(f, "w"), 0);
    const struct wire_workspace_set ttl = {.valid = WIRE_WORKSPACE_SET_TTL, .ttl_ms = 1};
    assert_int_equal(set(f, ttl), 0);
    await_end(f, "w");
    /* What ended meanwhile is found by a service that begins. */
    assert_int_equal(get(f, "long"), 0);
    struct wire_workspace_set q = {
        .valid = WIRE_WORKSPACE_SET_IDLE, .idle_ms = 1, .key = bytes_of_string("long")};
    struct workspace *held;
    assert_int_equal(store_workspace_find(f->store, bytes_of_string("long"), 0, &held), 0);
    assert_int_equal(set(f, q), 0);
    workspace_unref(held);
    fixture_reopen(f, NULL);
    await_end(f, "long");
    assert_list(f, 0, "", 0, "", "demo ");
}

static struct index_over over_of(struct fixture *f, const char *id)
{
    struct index_over over = {0};
    assert_int_equal(get(f, id), 0);
    over.slot = told(f)->slot;
    (void)snprintf(over.name, sizeof over.name, "%s", id);
    return over;
}

/* Whatever holds it: a node of a session, and whoever has found it. */
static void test_in_use(void **state)
{
    struct fixture *f = *state;
    const struct wire_workspace_set both = {.valid =
                                                WIRE_WORKSPACE_SET_TTL | WIRE_WORKSPACE_SET_IDLE,
                                            .ttl_ms = 1,
                                            .idle_ms = 1,
                                            .key = bytes_of_string("demo")};
    struct index_over over = over_of(f, "demo");
    assert_int_equal(set(f, both), 0);
    for (int i = 0; i < 20; i++) {
        (void)usleep(5000);
        assert_int_equal(store_expire(f->store, &over), -EBUSY);
    }
    assert_int_equal(get(f, "demo"), 0);
    struct workspace *held;
    assert_int_equal(store_workspace_find(f->store, bytes_of_string("demo"), 0, &held), 0);
    t_forget(f, f->demo, 1);
    assert_int_equal(store_expire(f->store, &over), -EBUSY);
    over.slot++; /* another one of that name */
    workspace_unref(held);
    assert_int_equal(store_expire(f->store, &over), -EBUSY);
    await_end(f, "demo");
}

/* A service that was killed amid a use leaves no older one than the true one. */
static void test_use_is_kept(void **state)
{
    struct fixture *f = *state;
    char path[4096];
    struct stat st;
    struct timespec now;
    assert_int_equal(create(f, "w", "", 0, 0), 0);
    (void)snprintf(path, sizeof path, "%s/workspaces/w/meta.json", f->root);
    const struct timespec old[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
    assert_int_equal(utimensat(AT_FDCWD, path, old, 0), 0);
    fixture_reopen(f, NULL);
    assert_int_equal(get(f, "w"), 0); /* is no use */
    /* By two clocks, of which one is read after the other. */
    assert_in_range(told(f)->used_at.sec, 999, 1000);
    assert_true(t_open_workspace(f, "w") > 0);
    assert_int_equal(clock_gettime(CLOCK_REALTIME, &now), 0);
    assert_int_equal(stat(path, &st), 0);
    assert_true(st.st_mtim.tv_sec >= now.tv_sec + INDEX_AHEAD_MS / 2000 - 1);
    assert_int_equal(get(f, "w"), 0);
    assert_true(told(f)->used_at.sec <= now.tv_sec + 1);
    assert_true(told(f)->used_at.sec >= now.tv_sec - 60);
    /* What it says ahead of time is not believed. */
    fixture_reopen(f, NULL);
    assert_int_equal(get(f, "w"), 0);
    assert_int_equal(clock_gettime(CLOCK_REALTIME, &now), 0);
    assert_true(told(f)->used_at.sec <= now.tv_sec);
}

int main(int argc, char **argv)
{
    fixture_world(argc, argv);
#define T(function) cmocka_unit_test_setup_teardown(function, fixture_setup, fixture_teardown)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_labels_text),
        cmocka_unit_test(test_labels_match),
        T(test_set),
        T(test_set_the_same),
        T(test_many_at_once),
        T(test_list),
        T(test_first_version),
        T(test_ends),
        T(test_in_use),
        T(test_use_is_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

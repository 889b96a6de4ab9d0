/* What this machine remembers of workspaces in sandboxes: the form of a file, what is refused, and
 * the directory of them. */
#include "unit.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "config/paths.h"
#include "places/place.h"

static char directory[] = "/tmp/berth-places-XXXXXX";

static int make_directory(void **state)
{
    return mkdtemp(directory) && setenv("XDG_STATE_HOME", directory, 1) == 0 ? 0 : -1;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    return remove(path);
}

static int remove_directory(void **state)
{
    return nftw(directory, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

static struct place sample(struct bytes id)
{
    struct place p = {.provider = strdup("docker"),
                      .sandbox = strdup("berth-demo-1"),
                      .given_name = strdup("berth-demo-1"),
                      .parameters = json_pack("{s:s}", "image", "debian:12"),
                      .environment = json_pack("{s:s, s:n}", "DOCKER_HOST", "unix:///x", "A_1"),
                      .secrets = json_pack("{s:s}", "KEY", "0011"),
                      .url = strdup("exec:true"),
                      .state = PLACE_CREATING,
                      .created = 1700000000,
                      .created_by = strdup("me")};
    assert_int_equal(buffer_append(&p.id, id.data, id.len), 0);
    assert_int_equal(thread_id_to_name(id, p.name), 0);
    return p;
}

static void check_same(const struct place *a, const struct place *b)
{
    json_t *x = place_to_json(a), *y = place_to_json(b);
    assert_true(x && y && json_equal(x, y));
    assert_true(bytes_equal(buffer_view(&a->id), buffer_view(&b->id)));
    json_decref(x);
    json_decref(y);
}

static void keep_any_id(void **state)
{
    char longest[THREAD_ID_MAX], just[251], file[300];
    memset(longest, '%', sizeof longest);
    memset(just, 'j', sizeof just);
    const struct bytes ids[] = {
        bytes_of_string("demo"), bytes_of_string("../../etc/\xf0\x9f\x9a\xa2"),
        bytes_of("\0\xff\n", 3), bytes_of(longest, sizeof longest), bytes_of(just, sizeof just)};
    for (size_t i = 0; i < ARRAY_SIZE(ids); i++) {
        struct failure f = {0};
        _cleanup_place_ struct place p = sample(ids[i]), read = {0};
        assert_int_equal(place_write(&p, true, &f), 0);
        assert_int_equal(place_read(p.name, &read, &f), 0);
        check_same(&p, &read);
        /* A second maker of the same workspace loses, and changes nothing. */
        p.state = PLACE_READY;
        assert_int_equal(place_write(&p, true, &f), -EEXIST);
        place_clear(&read);
        assert_int_equal(place_read(p.name, &read, &f), 0);
        assert_int_equal(read.state, PLACE_CREATING);
        assert_int_equal(place_write(&p, false, &f), 0);
        place_clear(&read);
        assert_int_equal(place_read(p.name, &read, &f), 0);
        assert_int_equal(read.state, PLACE_READY);
        assert_int_equal(place_remove(p.name, &f), 0);
        assert_int_equal(place_remove(p.name, &f), -ENOENT);
        place_clear(&read);
        assert_int_equal(place_read(p.name, &read, &f), -ENOENT);
    }
    (void)snprintf(file, sizeof file, "%s/berth-client/places", directory);
    struct stat st;
    assert_int_equal(stat(file, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);
}

static int count(void *context, struct place *p)
{
    char *names = context;
    (void)strcat(strcat(names, p->name), " ");
    return 0;
}

static void list_and_leave_out(void **state)
{
    char names[512] = "", path[512];
    struct failure f = {0};
    _cleanup_place_ struct place b = sample(bytes_of_string("b"));
    _cleanup_place_ struct place a = sample(bytes_of_string("a"));
    assert_int_equal(place_write(&b, true, &f), 0);
    assert_int_equal(place_write(&a, true, &f), 0);
    /* One of another name, one that others can write, a link, and what is no place at all. */
    (void)snprintf(
        path, sizeof path,
        "cd %s/berth-client/places && cp a.json c.json && cp b.json d && mkdir e.json && "
        "ln -s a.json f.json && echo '{' > g.json && cp a.json .a.json",
        directory);
    assert_int_equal(system(path), 0);
    assert_int_equal(places_list(count, names, &f), 0);
    assert_string_equal(names, "a b ");
    /* Where none may be missing, none is told of. */
    assert_int_equal(places_list_all(count, names, &f), -EBADMSG);
    assert_string_equal(names, "a b ");
    (void)snprintf(path, sizeof path,
                   "cd %s/berth-client/places && rm -r c.json e.json f.json g.json && "
                   "touch .new-1 && touch -d '2 hours ago' .new-2",
                   directory);
    assert_int_equal(system(path), 0);
    names[0] = '\0';
    assert_int_equal(places_list_all(count, names, &f), 0);
    assert_string_equal(names, "a b ");
    (void)snprintf(path, sizeof path,
                   "cd %s/berth-client/places && test -e .new-1 && ! test -e .new-2 && rm .new-1",
                   directory);
    assert_int_equal(system(path), 0);
    _cleanup_place_ struct place read = {0};
    (void)snprintf(path, sizeof path, "%s/berth-client/places/a.json", directory);
    assert_int_equal(chmod(path, 0620), 0);
    assert_int_equal(place_read("a", &read, &f), -EPERM);
    assert_non_null(strstr(f.text, "a.json"));
    assert_int_equal(place_remove("a", &f), 0);
    assert_int_equal(place_remove("b", &f), 0);
}

static void others_can_write_the_directory(void **state)
{
    char path[512];
    struct failure f = {0};
    _cleanup_place_ struct place p = sample(bytes_of_string("a")), read = {0};
    assert_int_equal(place_write(&p, true, &f), 0);
    (void)snprintf(path, sizeof path, "%s/berth-client/places", directory);
    assert_int_equal(chmod(path, 0777), 0);
    assert_int_equal(place_read("a", &read, &f), -EPERM);
    assert_int_equal(chmod(path, 0700), 0);
    assert_int_equal(place_remove("a", &f), 0);
}

static void refuse(void **state)
{
    static const char good[] =
        "{\"version\":1,\"id\":\"a\",\"provider\":\"p\",\"sandbox\":\"s\",\"name\":\"n\","
        "\"parameters\":{\"k\":\"v\"},\"url\":\"\",\"state\":\"failed\",\"created\":5,"
        "\"created_by\":\"me\"}";
    static const struct {
        const char *from, *to;
    } changes[] = {
        {"\"version\":1", "\"version\":2"},
        {"\"id\":\"a\"", "\"id\":\"\""},
        {"\"id\":\"a\"", "\"id_hex\":\"6g\""},
        {"\"id\":\"a\"", "\"id_hex\":\"611\""},
        {"\"id\":\"a\"", "\"id\":\"a\",\"id_hex\":\"61\""},
        {"\"id\":\"a\",", ""},
        {"\"s\"", "\"s\\n\""},
        {"\"s\"", "\"s\\u0000\""},
        {"\"s\"", "\"\""},
        {"\"s\"", "7"},
        {"\"v\"", "7"},
        {"\"v\"", "\"\\u001b[2J\""},
        {"{\"k\":\"v\"}", "[]"},
        {"\"failed\"", "\"gone\""},
        {":5,", ":\"5\","},
        {"\"url\"", "\"token\":\"x\",\"url\""},
        {"\"version\":1", "\"version\":1,\"version\":1"},
        {"}\0", "}}\0"},
        {":5,", ":5,\"environment\":[],"},
        {":5,", ":5,\"environment\":{\"A B\":\"x\"},"},
        {":5,", ":5,\"environment\":{\"LD_PRELOAD\":\"x\"},"},
        {":5,", ":5,\"environment\":{\"BERTH_TOKEN\":\"x\"},"},
        {":5,", ":5,\"environment\":{\"A\":\"\\n\"},"},
        {":5,", ":5,\"secrets\":{\"A\":1},"},
    };
    struct failure f = {0};
    struct place p = {0};
    assert_int_equal(place_parse(bytes_of_string(good), &p, &f), 0);
    place_clear(&p);
    for (size_t i = 0; i < ARRAY_SIZE(changes); i++) {
        char text[512];
        const char *at = strstr(good, changes[i].from);
        assert_non_null(at);
        (void)snprintf(text, sizeof text, "%.*s%s%s", (int)(at - good), good, changes[i].to,
                       at + strlen(changes[i].from));
        if (place_parse(bytes_of_string(text), &p, &f) != -EINVAL || !f.text[0])
            fail_msg("%s", text);
    }
    /* One that was cut is none; one of which a byte was changed is none, or all of another. */
    for (size_t len = 0; len < strlen(good); len++) {
        char text[sizeof good];
        assert_int_equal(place_parse(bytes_of(good, len), &p, &f), -EINVAL);
        memcpy(text, good, sizeof text);
        text[len] = '\xff';
        assert_int_equal(place_parse(bytes_of(text, strlen(good)), &p, &f), -EINVAL);
        text[len] = (char)(good[len] ^ 1);
        if (place_parse(bytes_of(text, strlen(good)), &p, &f) == 0) {
            assert_true(p.provider && p.sandbox && p.given_name && p.url && p.created_by);
            place_clear(&p);
        }
    }
    _cleanup_free_ char *large = calloc(1, PLACE_FILE_MAX + 2);
    assert_non_null(large);
    memset(large, ' ', PLACE_FILE_MAX + 1);
    memcpy(large, good, strlen(good));
    assert_int_equal(place_parse(bytes_of(large, PLACE_FILE_MAX + 1), &p, &f), -EINVAL);
}

static void one_holds_the_lock(void **state)
{
    struct failure f = {0};
    int first = -1, second = -1, other = -1;
    assert_int_equal(place_lock("a", &first, &f), 0);
    assert_int_equal(place_lock("a", &second, &f), -EAGAIN);
    assert_int_equal(place_lock("b", &other, &f), 0);
    close_fd(&first);
    assert_int_equal(place_lock("a", &second, &f), 0);
    close_fd(&second);
    close_fd(&other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keep_any_id),
        cmocka_unit_test(list_and_leave_out),
        cmocka_unit_test(others_can_write_the_directory),
        cmocka_unit_test(refuse),
        cmocka_unit_test(one_holds_the_lock),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}

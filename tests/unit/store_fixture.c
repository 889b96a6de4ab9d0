#include "store_fixture.h"

#include <dirent.h>
#include <fcntl.h>
#include <grp.h>
#include <seccomp.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "store/grip.h"
#include "store/removal.h"

static struct store_limits world_limits;
static bool world_limited;
static enum watch_mode world_watch = WATCH_AUTO;
static const char *world_directory = "/tmp";

static void block_openat2(void)
{
    scmp_filter_ctx filter = seccomp_init(SCMP_ACT_ALLOW);
    assert_non_null(filter);
    assert_int_equal(seccomp_rule_add(filter, SCMP_ACT_ERRNO(ENOSYS), SCMP_SYS(openat2), 0), 0);
    assert_int_equal(seccomp_load(filter), 0);
    seccomp_release(filter);
}

void fixture_world(int argc, char **argv)
{
    (void)alarm(TEST_SECONDS);
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "fallback") == 0) {
            block_openat2();
        } else if (strcmp(argv[i], "small") == 0) {
            world_limits = (struct store_limits){.cached_descriptors = 8,
                                                 .handles = 1000,
                                                 .session_handles = 1000,
                                                 .session_nodes = 1000000};
            world_limited = true;
        } else if (strcmp(argv[i], "fanotify") == 0) {
            world_watch = WATCH_FANOTIFY;
        } else if (strcmp(argv[i], "inotify") == 0) {
            world_watch = WATCH_INOTIFY;
        } else if (strcmp(argv[i], "unwatched") == 0) {
            world_watch = WATCH_NONE;
        } else if (strcmp(argv[i], "memory") == 0) {
            if (access("/dev/shm", W_OK) == 0)
                world_directory = "/dev/shm";
        } else if (strcmp(argv[i], "user") == 0) {
            if (getuid() != 0)
                continue;
            const gid_t group = 65534;
            if (setgroups(1, &group) < 0 || setgid(group) < 0 || setuid(65534) < 0)
                abort();
        } else {
            abort();
        }
    }
}

struct store_limits fixture_limits(void)
{
    return world_limited ? world_limits
                         : (struct store_limits){.cached_descriptors = 4096,
                                                 .handles = 10000,
                                                 .session_handles = 10000,
                                                 .session_nodes = 1000000};
}

void remove_directory(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(fd >= 0);
    (void)removal_empty(fd, NULL);
    (void)close(fd);
    assert_int_equal(rmdir(path), 0);
}

static void open_all(struct fixture *f, const struct store_limits *limits)
{
    struct store_limits ours = limits ? *limits : fixture_limits();
    struct failure failure = {0};
    assert_int_equal(store_open_limited(f->root, world_watch, &ours, &f->store, &failure), 0);
    assert_int_equal(store_detects(f->store), world_watch != WATCH_NONE);
    assert_int_equal(file_session_new(f->store, &f->session), 0);
}

void fixture_reopen(struct fixture *f, const struct store_limits *limits)
{
    file_session_free(f->session);
    store_close(f->store);
    open_all(f, limits);
    int64_t node = t_open_workspace(f, "demo");
    assert_true(node > 0);
    f->demo = (uint64_t)node;
}

int fixture_setup(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    (void)snprintf(f->directory, sizeof f->directory, "%s/berth-store-XXXXXX", world_directory);
    assert_non_null(mkdtemp(f->directory));
    (void)snprintf(f->root, sizeof f->root, "%s/root", f->directory);
    (void)snprintf(f->tree, sizeof f->tree, "%s/workspaces/demo/tree", f->root);
    open_all(f, NULL);
    assert_int_equal(t_create_workspace(f, "demo"), 0);
    int64_t node = t_open_workspace(f, "demo");
    assert_true(node > 0);
    f->demo = (uint64_t)node;
    *state = f;
    return 0;
}

int fixture_teardown(void **state)
{
    struct fixture *f = *state;
    file_session_free(f->session);
    (void)store_detect(f->store); /* the watch holds references while it reports */
    /* Every reference has been given back: the reports of leaks below are of whole tables. */
    t_await_status(f, "nodes", 0);
    assert_int_equal(t_status(f, "handles"), 0);
    t_await_status(f, "descriptors", 0);
    store_close(f->store);
    buffer_release(&f->reply.storage);
    remove_directory(f->directory);
    free(f);
    return 0;
}

/* --- requests -------------------------------------------------------------------- */

int run_in(struct fixture *f, struct file_session *session, const struct wire_message *m)
{
    const struct wire_row *row = wire_row(m->type);
    assert_non_null(row);
    memset(&f->reply.message, 0, sizeof f->reply.message);
    int r = store_handle(session, m, &f->reply);
    assert_true(r <= 0);
    if (r < 0 || row->class == WIRE_CLASS_NOTICE) {
        assert_true(r == 0 || row->class == WIRE_CLASS_REQUEST);
        return r;
    }
    assert_int_equal(f->reply.message.type, row->owner);
    struct buffer encoded = {0};
    struct wire_message decoded;
    assert_int_equal(wire_encode(&encoded, &f->reply.message), 0);
    assert_int_equal(wire_decode(row->owner, buffer_view(&encoded), &decoded), 0);
    buffer_release(&encoded);
    return 0;
}

int run(struct fixture *f, const struct wire_message *m)
{
    return run_in(f, f->session, m);
}

int64_t t_open_workspace(struct fixture *f, const char *id)
{
    int r = run(f, &(struct wire_message){.type = WIRE_WORKSPACE_OPEN,
                                          .workspace_open.key = bytes_of_string(id)});
    return r < 0 ? r : (int64_t)f->reply.message.workspace_root.node;
}

int t_create_workspace(struct fixture *f, const char *id)
{
    return run(f, &(struct wire_message){.type = WIRE_WORKSPACE_CREATE,
                                         .workspace_create.thread_id = bytes_of_string(id)});
}

int64_t t_lookup(struct fixture *f, uint64_t parent, const char *name)
{
    int r =
        run(f, &(struct wire_message){.type = WIRE_LOOKUP,
                                      .lookup = {.parent = parent, .name = bytes_of_string(name)}});
    if (r < 0)
        return r;
    assert_true(f->reply.message.entry.node > 0);
    return (int64_t)f->reply.message.entry.node;
}

static int64_t made(struct fixture *f, const struct wire_message *m)
{
    int r = run(f, m);
    if (r < 0)
        return r;
    assert_true(f->reply.message.made.node > 0);
    return (int64_t)f->reply.message.made.node;
}

int64_t t_walk(struct fixture *f, const char *path)
{
    char copy[4096];
    (void)snprintf(copy, sizeof copy, "%s", path);
    char *state = NULL;
    int64_t node = (int64_t)f->demo;
    for (char *name = strtok_r(copy, "/", &state); name && node > 0;
         name = strtok_r(NULL, "/", &state))
        node = t_lookup(f, (uint64_t)node, name);
    return node;
}

int64_t t_mkdir(struct fixture *f, uint64_t parent, const char *name)
{
    return made(f, &(struct wire_message){
                       .type = WIRE_MKDIR,
                       .mkdir = {.parent = parent, .mode = 0755, .name = bytes_of_string(name)}});
}

int64_t t_symlink(struct fixture *f, uint64_t parent, const char *name, const char *target)
{
    return made(f, &(struct wire_message){.type = WIRE_SYMLINK,
                                          .symlink = {.parent = parent,
                                                      .name = bytes_of_string(name),
                                                      .target = bytes_of_string(target)}});
}

int64_t t_mknod(struct fixture *f, uint64_t parent, const char *name, uint32_t mode)
{
    return made(f, &(struct wire_message){
                       .type = WIRE_MKNOD,
                       .mknod = {.parent = parent, .mode = mode, .name = bytes_of_string(name)}});
}

int64_t t_link(struct fixture *f, uint64_t node, uint64_t parent, const char *name)
{
    return made(f, &(struct wire_message){
                       .type = WIRE_LINK,
                       .link = {.node = node, .parent = parent, .name = bytes_of_string(name)}});
}

int t_unlink(struct fixture *f, uint64_t parent, const char *name)
{
    return run(f,
               &(struct wire_message){.type = WIRE_UNLINK,
                                      .unlink = {.parent = parent, .name = bytes_of_string(name)}});
}

int t_rmdir(struct fixture *f, uint64_t parent, const char *name)
{
    return run(f,
               &(struct wire_message){.type = WIRE_RMDIR,
                                      .rmdir = {.parent = parent, .name = bytes_of_string(name)}});
}

int t_rename(struct fixture *f, uint64_t parent, const char *name, uint64_t new_parent,
             const char *new_name, uint32_t flags)
{
    return run(f, &(struct wire_message){.type = WIRE_RENAME,
                                         .rename = {.parent = parent,
                                                    .new_parent = new_parent,
                                                    .flags = flags,
                                                    .name = bytes_of_string(name),
                                                    .new_name = bytes_of_string(new_name)}});
}

int64_t t_open(struct fixture *f, uint64_t node, uint32_t flags)
{
    int r =
        run(f, &(struct wire_message){.type = WIRE_OPEN, .open = {.node = node, .flags = flags}});
    return r < 0 ? r : (int64_t)f->reply.message.opened.handle;
}

int64_t t_create(struct fixture *f, uint64_t parent, const char *name, uint32_t flags,
                 uint32_t mode, uint64_t *ret_handle)
{
    int r = run(f, &(struct wire_message){.type = WIRE_CREATE,
                                          .create = {.parent = parent,
                                                     .flags = flags,
                                                     .mode = mode,
                                                     .name = bytes_of_string(name)}});
    if (r < 0)
        return r;
    *ret_handle = f->reply.message.created.handle;
    return (int64_t)f->reply.message.created.node;
}

int t_getattr(struct fixture *f, uint64_t node, uint64_t handle, struct wire_attr *ret)
{
    int r = run(f, &(struct wire_message){.type = WIRE_GETATTR,
                                          .getattr = {.node = node, .handle = handle}});
    if (r == 0 && ret)
        *ret = f->reply.message.attrs.attr;
    return r;
}

int64_t t_write(struct fixture *f, uint64_t handle, uint64_t offset, const char *text)
{
    int r =
        run(f, &(struct wire_message){
                   .type = WIRE_WRITE,
                   .write = {.handle = handle, .offset = offset, .data = bytes_of_string(text)}});
    return r < 0 ? r : (int64_t)f->reply.message.written.size;
}

int t_read(struct fixture *f, uint64_t handle, uint64_t offset, uint32_t size)
{
    return run(f,
               &(struct wire_message){.type = WIRE_READ,
                                      .read = {.handle = handle, .offset = offset, .size = size}});
}

void t_release(struct fixture *f, uint64_t handle)
{
    assert_int_equal(run(f, &(struct wire_message){.type = WIRE_RELEASE, .release.handle = handle}),
                     0);
}

void t_forget(struct fixture *f, uint64_t node, uint64_t count)
{
    struct buffer pairs = {0};
    assert_int_equal(buffer_append_u64(&pairs, node), 0);
    assert_int_equal(buffer_append_u64(&pairs, count), 0);
    assert_int_equal(
        run(f, &(struct wire_message){.type = WIRE_FORGET, .forget.pairs = buffer_view(&pairs)}),
        0);
    buffer_release(&pairs);
}

const char *t_data(struct fixture *f)
{
    assert_int_equal(f->reply.message.type, WIRE_DATA);
    assert_int_equal(buffer_append_u8(&f->reply.storage, 0), 0);
    f->reply.storage.len--;
    return (const char *)f->reply.storage.data;
}

void drop_descriptors(struct fixture *f)
{
    grip_trim(f->store, 0);
}

int64_t t_status(struct fixture *f, const char *key)
{
    json_t *object = json_object();
    assert_int_equal(store_status(f->store, object), 0);
    assert_true(json_is_integer(json_object_get(object, key)));
    int64_t value = json_integer_value(json_object_get(object, key));
    json_decref(object);
    return value;
}

void t_await_status(struct fixture *f, const char *key, int64_t value)
{
    for (int i = 0; i < 5000 && t_status(f, key) != value; i++)
        (void)usleep(1000);
    assert_int_equal(t_status(f, key), value);
}

/* --- behind the service's back ----------------------------------------------------- */

char *tree_path(struct fixture *f, const char *path, char buffer[4096])
{
    (void)snprintf(buffer, 4096, "%s/%s", f->tree, path);
    return buffer;
}

void make_file(struct fixture *f, const char *path, const char *text)
{
    char full[4096];
    int fd = open(tree_path(f, path, full), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    assert_int_equal(close(fd), 0);
}

bool exists(struct fixture *f, const char *path)
{
    char full[4096];
    struct stat st;
    return lstat(tree_path(f, path, full), &st) == 0;
}

bool directory_empty(const char *path)
{
    DIR *stream = opendir(path);
    assert_non_null(stream);
    int count = 0;
    while (readdir(stream))
        count++;
    (void)closedir(stream);
    return count == 2; /* . and .. */
}

void assert_same_attr(const struct wire_attr *a, const struct wire_attr *b)
{
    struct buffer one = {0}, two = {0};
    const struct wire_message m = {.type = WIRE_ATTRS, .attrs.attr = *a},
                              n = {.type = WIRE_ATTRS, .attrs.attr = *b};
    assert_int_equal(wire_encode(&one, &m), 0);
    assert_int_equal(wire_encode(&two, &n), 0);
    assert_memory_equal(one.data, two.data, WIRE_ATTR_SIZE);
    buffer_release(&one);
    buffer_release(&two);
}

#include "race_messages.h"

#include "canary.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define RW (WIRE_OPEN_READ | WIRE_OPEN_WRITE)

/* One of a pair of names; which, changes from round to round. */
static struct bytes pick(const struct race_scene *s, const char *kind, char buffer[32])
{
    (void)snprintf(buffer, 32, "%s%u", kind, s->round % 2);
    return bytes_of_string(buffer);
}

static bool holds(struct bytes data, const char *text)
{
    return memmem(data.data, data.len, text, strlen(text));
}

static void check_attr(const struct wire_attr *attr)
{
    assert_int_not_equal(attr->size, CANARY_SIZE);
}

/* No reply speaks of what is outside. */
static void check_reply(const struct wire_message *reply)
{
    switch ((unsigned)reply->type) {
    case WIRE_DATA:
        assert_false(holds(reply->data.data, CANARY_TEXT));
        assert_false(holds(reply->data.data, RACE_OUTSIDE_NAME));
        break;
    case WIRE_ENTRY:
        check_attr(&reply->entry.attr);
        break;
    case WIRE_ATTRS:
        check_attr(&reply->attrs.attr);
        break;
    case WIRE_OPENED:
        check_attr(&reply->opened.attr);
        break;
    case WIRE_CREATED:
        check_attr(&reply->created.attr);
        check_attr(&reply->created.directory);
        break;
    case WIRE_MADE:
        check_attr(&reply->made.attr);
        check_attr(&reply->made.directory);
        break;
    case WIRE_REMOVED:
        check_attr(&reply->removed.directory);
        break;
    case WIRE_RENAMED:
        check_attr(&reply->renamed.directory);
        check_attr(&reply->renamed.new_directory);
        check_attr(&reply->renamed.attr);
        break;
    case WIRE_DIRENTS: {
        struct bytes list = bytes_of(reply->dirents.entries.data, reply->dirents.entries.len);
        assert_false(holds(list, RACE_OUTSIDE_NAME));
        break;
    }
    }
}

/* What a client may be told when names change under it. */
static bool is_expected(int error)
{
    static const int expected[] = {0,       ENOENT, ESTALE,    EEXIST, ENOTEMPTY, EISDIR,
                                   ENOTDIR, ELOOP,  ENXIO,     EPERM,  EINVAL,    ENODATA,
                                   EBADF,   EXDEV,  ENOTEMPTY, EACCES, EOPNOTSUPP};
    for (size_t i = 0; i < ARRAY_SIZE(expected); i++)
        if (error == -expected[i])
            return true;
    return false;
}

static int ask(struct race_scene *s, const struct wire_message *m)
{
    int r = run(s->f, m);
    if (!is_expected(r))
        fail_msg("%s: errno %d", wire_row(m->type)->name, -r);
    if (r < 0) {
        s->refused++;
        return r;
    }
    s->answered++;
    if (wire_row(m->type)->class == WIRE_CLASS_REQUEST)
        check_reply(&s->f->reply.message);
    return r;
}

static void forget(struct race_scene *s, uint64_t node)
{
    (void)ask(s, &(struct wire_message){.type = WIRE_GETATTR, .getattr.node = node});
    t_forget(s->f, node, 1);
}

static uint64_t look_up(struct race_scene *s, uint64_t parent, struct bytes name)
{
    const struct wire_message m = {.type = WIRE_LOOKUP, .lookup = {.parent = parent, .name = name}};
    return ask(s, &m) < 0 ? 0 : s->f->reply.message.entry.node;
}

static void forget_made(struct race_scene *s, int r)
{
    if (r == 0)
        forget(s, s->f->reply.message.made.node);
}

static void on_lookup(struct race_scene *s)
{
    char buffer[32];
    const struct bytes wanted[] = {bytes_of_string("victim"), bytes_of_string(RACE_OUTSIDE_NAME),
                                   pick(s, "file", buffer), bytes_of_string("e")};
    for (size_t i = 0; i < ARRAY_SIZE(wanted); i++) {
        uint64_t node = look_up(s, i == 3 ? s->d : s->e, wanted[i]);
        if (node)
            forget(s, node);
    }
}

static void on_forget(struct race_scene *s)
{
    uint64_t node = look_up(s, s->e, bytes_of_string("victim"));
    if (node)
        t_forget(s->f, node, 1);
}

static void on_getattr(struct race_scene *s)
{
    (void)ask(s, &(struct wire_message){.type = WIRE_GETATTR, .getattr.node = s->target});
    (void)ask(s, &(struct wire_message){.type = WIRE_GETATTR, .getattr.node = s->e});
}

static void on_setattr(struct race_scene *s)
{
    struct wire_setattr set = {.node = s->target,
                               .valid = WIRE_SET_MODE | WIRE_SET_MTIME | WIRE_SET_KILL_PRIV,
                               .mode = 0600 + s->round % 64,
                               .uid = getuid(),
                               .gid = getgid(),
                               .size = s->round % 10};
    (void)ask(s, &(struct wire_message){.type = WIRE_SETATTR, .setattr = set});
    set.valid = WIRE_SET_SIZE;
    (void)ask(s, &(struct wire_message){.type = WIRE_SETATTR, .setattr = set});
    set.valid = WIRE_SET_UID | WIRE_SET_GID;
    (void)ask(s, &(struct wire_message){.type = WIRE_SETATTR, .setattr = set});
}

/* The text of a link is what it is, the way outside too: never what that leads to. */
static void on_readlink(struct race_scene *s)
{
    char buffer[32];
    (void)ask(s, &(struct wire_message){.type = WIRE_READLINK, .readlink.node = s->target});
    uint64_t node = look_up(s, s->e, pick(s, "link", buffer));
    if (!node)
        return;
    (void)ask(s, &(struct wire_message){.type = WIRE_READLINK, .readlink.node = node});
    t_forget(s->f, node, 1);
}

static void on_mknod(struct race_scene *s)
{
    static const mode_t types[] = {S_IFREG, S_IFIFO, S_IFSOCK};
    char buffer[32];
    forget_made(s, ask(s, &(struct wire_message){
                              .type = WIRE_MKNOD,
                              .mknod = {.parent = s->e,
                                        .mode = types[s->round / 2 % ARRAY_SIZE(types)] | 0644,
                                        .name = pick(s, "node", buffer)}}));
}

static void on_mkdir(struct race_scene *s)
{
    char buffer[32];
    forget_made(s, ask(s, &(struct wire_message){.type = WIRE_MKDIR,
                                                 .mkdir = {.parent = s->e,
                                                           .mode = 0755,
                                                           .name = pick(s, "directory", buffer)}}));
}

static void on_symlink(struct race_scene *s)
{
    char buffer[32];
    forget_made(s, ask(s, &(struct wire_message){
                              .type = WIRE_SYMLINK,
                              .symlink = {.parent = s->e,
                                          .name = pick(s, "link", buffer),
                                          .target = bytes_of_string("../../../../outside/e")}}));
}

static void on_link(struct race_scene *s)
{
    char buffer[32];
    forget_made(s, ask(s, &(struct wire_message){.type = WIRE_LINK,
                                                 .link = {.node = s->target,
                                                          .parent = s->e,
                                                          .name = pick(s, "hard", buffer)}}));
}

static void on_unlink(struct race_scene *s)
{
    static const char *const kinds[] = {"file", "link", "hard", "moved", "node"};
    char buffer[32];
    for (size_t i = 0; i < ARRAY_SIZE(kinds); i++)
        (void)ask(s, &(struct wire_message){.type = WIRE_UNLINK,
                                            .unlink = {.parent = i % 2 ? s->d : s->e,
                                                       .name = pick(s, kinds[i], buffer)}});
    (void)ask(s, &(struct wire_message){
                     .type = WIRE_UNLINK,
                     .unlink = {.parent = s->e, .name = bytes_of_string(RACE_OUTSIDE_NAME)}});
}

static void on_rmdir(struct race_scene *s)
{
    char buffer[32];
    (void)ask(
        s, &(struct wire_message){.type = WIRE_RMDIR,
                                  .rmdir = {.parent = s->e, .name = pick(s, "directory", buffer)}});
}

static void on_rename(struct race_scene *s)
{
    static const char *const from[] = {"file0", "hard1", RACE_OUTSIDE_NAME, "directory0", "node1"};
    char buffer[32];
    (void)ask(s, &(struct wire_message){
                     .type = WIRE_RENAME,
                     .rename = {.parent = s->e,
                                .new_parent = s->round % 3 ? s->e : s->d,
                                .flags = s->round % 4 ? 0 : RENAME_EXCHANGE,
                                .name = bytes_of_string(from[s->round % ARRAY_SIZE(from)]),
                                .new_name = pick(s, "moved", buffer)}});
}

static void on_place(struct race_scene *s)
{
    char buffer[32];
    const struct wire_message create = {.type = WIRE_CREATE,
                                        .create = {.parent = s->e,
                                                   .flags = RW | WIRE_OPEN_UNNAMED,
                                                   .mode = 0666,
                                                   .name = bytes_of_string("victim")}};
    if (ask(s, &create) < 0)
        return;
    uint64_t node = s->f->reply.message.created.node;
    uint64_t handle = s->f->reply.message.created.handle;
    assert_true(t_write(s->f, handle, 0, "by the client") > 0);
    (void)ask(s,
              &(struct wire_message){.type = WIRE_PLACE,
                                     .place = {.handle = handle,
                                               .parent = s->round % 3 ? s->e : s->d,
                                               .flags = s->round % 2 ? 0 : RENAME_NOREPLACE,
                                               .name = s->round % 2 ? pick(s, "placed", buffer)
                                                                    : bytes_of_string("victim")}});
    t_release(s->f, handle);
    t_forget(s->f, node, 1);
}

/* 0: refused. */
static uint64_t open_target(struct race_scene *s, uint64_t node, uint32_t flags)
{
    const struct wire_message m = {.type = WIRE_OPEN, .open = {.node = node, .flags = flags}};
    return ask(s, &m) < 0 ? 0 : s->f->reply.message.opened.handle;
}

static void on_open(struct race_scene *s)
{
    static const uint32_t flags[] = {WIRE_OPEN_READ, WIRE_OPEN_WRITE, RW | WIRE_OPEN_TRUNCATE,
                                     WIRE_OPEN_READ | WIRE_OPEN_DIRECTORY};
    for (size_t i = 0; i < ARRAY_SIZE(flags); i++) {
        uint64_t handle = open_target(s, s->target, flags[i]);
        if (handle)
            t_release(s->f, handle);
    }
    uint64_t handle = open_target(s, s->e, WIRE_OPEN_READ | WIRE_OPEN_DIRECTORY);
    if (handle)
        t_release(s->f, handle);
}

static void on_create(struct race_scene *s)
{
    char buffer[32];
    const struct bytes wanted[] = {pick(s, "file", buffer), bytes_of_string("victim")};
    for (size_t i = 0; i < ARRAY_SIZE(wanted); i++) {
        const struct wire_message m = {
            .type = WIRE_CREATE,
            .create = {.parent = s->e,
                       .flags = RW | (s->round % 4 == 1 ? WIRE_OPEN_EXCLUSIVE : 0) |
                                (s->round % 4 == 2 ? WIRE_OPEN_TRUNCATE : 0),
                       .mode = 0666,
                       .name = wanted[i]}};
        if (ask(s, &m) < 0)
            continue;
        uint64_t node = s->f->reply.message.created.node;
        uint64_t handle = s->f->reply.message.created.handle;
        assert_true(t_write(s->f, handle, 0, "by the client") > 0);
        t_release(s->f, handle);
        t_forget(s->f, node, 1);
    }
}

static void on_read(struct race_scene *s)
{
    (void)ask(
        s, &(struct wire_message){.type = WIRE_READ, .read = {.handle = s->handle, .size = 8192}});
}

static void on_write(struct race_scene *s)
{
    (void)ask(s, &(struct wire_message){
                     .type = WIRE_WRITE,
                     .write = {.handle = s->handle,
                               .flags = s->round % 2 ? WIRE_WRITE_APPEND : WIRE_WRITE_KILL_PRIV,
                               .data = bytes_of_string("by the client")}});
    (void)ask(s, &(struct wire_message){
                     .type = WIRE_SETATTR,
                     .setattr = {.node = s->target, .handle = s->handle, .valid = WIRE_SET_SIZE}});
}

static void on_flush(struct race_scene *s)
{
    (void)ask(s, &(struct wire_message){.type = WIRE_FLUSH, .flush.handle = s->handle});
}

static void on_fsync(struct race_scene *s)
{
    (void)ask(s, &(struct wire_message){.type = WIRE_FSYNC, .fsync.handle = s->handle});
}

static void on_release(struct race_scene *s)
{
    uint64_t handle = open_target(s, s->target, RW);
    if (handle)
        (void)ask(s, &(struct wire_message){.type = WIRE_RELEASE, .release.handle = handle});
}

static void on_readdir(struct race_scene *s)
{
    uint64_t handle = open_target(s, s->e, WIRE_OPEN_READ | WIRE_OPEN_DIRECTORY);
    if (!handle)
        return;
    struct wire_message m = {.type = WIRE_READDIR,
                             .readdir = {.handle = handle, .size = 65536, .plus = s->round % 2}};
    int r = ask(s, &m);
    struct wire_list list = s->f->reply.message.dirents.entries;
    uint64_t nodes[64];
    size_t count = 0;
    uint32_t offset = 0;
    struct bytes element;
    while (r == 0 && wire_list_next(&list, &offset, &element)) {
        struct wire_message entry;
        assert_int_equal(wire_decode(WIRE_DIRENT, element, &entry), 0);
        check_attr(&entry.dirent.attr);
        if (entry.dirent.node && count < ARRAY_SIZE(nodes))
            nodes[count++] = entry.dirent.node;
    }
    while (count > 0)
        t_forget(s->f, nodes[--count], 1);
    t_release(s->f, handle);
}

/* Looks at the TREE that has come, and gives back what it counts. */
static void take_tree(struct race_scene *s)
{
    struct wire_list list = s->f->reply.message.tree.directories;
    uint64_t nodes[64];
    size_t count = 0;
    uint32_t offset = 0, at = 0;
    struct bytes element;
    while (wire_list_next(&list, &offset, &element)) {
        struct wire_message d, entry;
        assert_int_equal(wire_decode(WIRE_TREE_DIRECTORY, element, &d), 0);
        check_attr(&d.tree_directory.attr);
        if (count < ARRAY_SIZE(nodes))
            nodes[count++] = d.tree_directory.node;
        for (at = 0; wire_list_next(&d.tree_directory.entries, &at, &element);) {
            assert_int_equal(wire_decode(WIRE_DIRENT, element, &entry), 0);
            check_attr(&entry.dirent.attr);
            if (entry.dirent.node && count < ARRAY_SIZE(nodes))
                nodes[count++] = entry.dirent.node;
        }
    }
    while (count > 0)
        t_forget(s->f, nodes[--count], 1);
}

static void on_readtree(struct race_scene *s)
{
    const struct wire_message m = {.type = WIRE_READTREE,
                                   .readtree = {.node = s->e, .size = 65536}};
    if (ask(s, &m) == 0)
        take_tree(s);
}

static void on_readparts(struct race_scene *s)
{
    struct buffer range = {0};
    assert_int_equal(buffer_append_u64(&range, s->e), 0);
    assert_int_equal(buffer_append_u64(&range, 0), 0);
    assert_int_equal(buffer_append_u32(&range, 4096), 0);
    const struct wire_message m = {.type = WIRE_READPARTS, .readparts.parts = buffer_view(&range)};
    if (ask(s, &m) == 0)
        take_tree(s);
    buffer_release(&range);
}

static void on_readfiles(struct race_scene *s)
{
    char buffer[32];
    const uint64_t nodes[] = {s->target, s->e, look_up(s, s->e, pick(s, "file", buffer)),
                              look_up(s, s->e, pick(s, "link", buffer)), s->victim};
    struct buffer wanted = {0};
    for (size_t i = 0; i < ARRAY_SIZE(nodes); i++)
        assert_int_equal(wire_list_append(&wanted, bytes_of(&nodes[i], sizeof nodes[i])), 0);
    const struct wire_message m = {
        .type = WIRE_READFILES,
        .readfiles = {.size = 65536, .files = wire_list_of(&wanted, ARRAY_SIZE(nodes))}};
    int r = ask(s, &m);
    struct wire_list list = s->f->reply.message.files.files;
    uint32_t offset = 0;
    struct bytes element;
    while (r == 0 && wire_list_next(&list, &offset, &element)) {
        struct wire_message file;
        assert_int_equal(wire_decode(WIRE_FILE, element, &file), 0);
        check_attr(&file.file.attr);
        assert_false(holds(file.file.data, CANARY_TEXT));
        if (!is_expected(-(int)file.file.error) && file.file.error != EAGAIN)
            fail_msg("READFILES: errno %d", (int)file.file.error);
    }
    buffer_release(&wanted);
    for (size_t i = 2; i < 4; i++)
        if (nodes[i])
            t_forget(s->f, nodes[i], 1);
}

static void on_statfs(struct race_scene *s)
{
    (void)ask(s, &(struct wire_message){.type = WIRE_STATFS, .statfs.node = s->target});
}

static void on_getxattr(struct race_scene *s)
{
    (void)ask(s, &(struct wire_message){
                     .type = WIRE_GETXATTR,
                     .getxattr = {.node = s->target, .name = bytes_of_string("user.canary")}});
}

static void on_setxattr(struct race_scene *s)
{
    (void)ask(s, &(struct wire_message){.type = WIRE_SETXATTR,
                                        .setxattr = {.node = s->target,
                                                     .name = bytes_of_string("user.client"),
                                                     .value = bytes_of_string("x")}});
}

static void on_listxattr(struct race_scene *s)
{
    (void)ask(s, &(struct wire_message){.type = WIRE_LISTXATTR, .listxattr.node = s->target});
}

static void on_removexattr(struct race_scene *s)
{
    static const char *const attributes[] = {"user.client", "user.canary"};
    (void)ask(s, &(struct wire_message){
                     .type = WIRE_REMOVEXATTR,
                     .removexattr = {.node = s->target,
                                     .name = bytes_of_string(attributes[s->round % 2])}});
}

static void on_fallocate(struct race_scene *s)
{
    (void)ask(s, &(struct wire_message){.type = WIRE_FALLOCATE,
                                        .fallocate = {.handle = s->handle, .length = 20}});
}

static void on_seek(struct race_scene *s)
{
    (void)ask(s, &(struct wire_message){.type = WIRE_SEEK,
                                        .seek = {.handle = s->handle, .whence = SEEK_DATA}});
}

static void on_copy(struct race_scene *s)
{
    (void)ask(s, &(struct wire_message){.type = WIRE_COPY,
                                        .copy = {.handle_in = s->handle,
                                                 .offset_out = 100,
                                                 .handle_out = s->handle,
                                                 .length = 10}});
}

static void on_lock_get(struct race_scene *s)
{
    (void)ask(s, &(struct wire_message){.type = WIRE_LOCK_GET,
                                        .lock_get = {.node = s->target,
                                                     .handle = s->handle,
                                                     .owner = 1,
                                                     .end = 10,
                                                     .type = WIRE_LOCK_WRITE}});
}

static void on_lock_set(struct race_scene *s)
{
    struct wire_message m = {.type = WIRE_LOCK_SET,
                             .lock_set = {.node = s->target,
                                          .handle = s->handle,
                                          .owner = 1,
                                          .end = 10,
                                          .type = WIRE_LOCK_WRITE}};
    if (ask(s, &m) < 0)
        return;
    m.lock_set.type = WIRE_LOCK_NONE;
    (void)ask(s, &m);
}

static void on_workspace(struct race_scene *s)
{
    const struct wire_message open = {.type = WIRE_WORKSPACE_OPEN,
                                      .workspace_open.key = bytes_of_string("demo")};
    if (ask(s, &open) == 0)
        t_forget(s->f, s->f->reply.message.workspace_root.node, 1);
}

enum { NEEDS_HANDLE = 1 };

static const struct attack {
    enum wire_type type;
    void (*run)(struct race_scene *s);
    int needs;
} attacks[] = {
    {WIRE_LOOKUP, on_lookup, 0},
    {WIRE_FORGET, on_forget, 0},
    {WIRE_GETATTR, on_getattr, 0},
    {WIRE_SETATTR, on_setattr, 0},
    {WIRE_READLINK, on_readlink, 0},
    {WIRE_MKNOD, on_mknod, 0},
    {WIRE_MKDIR, on_mkdir, 0},
    {WIRE_SYMLINK, on_symlink, 0},
    {WIRE_LINK, on_link, 0},
    {WIRE_UNLINK, on_unlink, 0},
    {WIRE_RMDIR, on_rmdir, 0},
    {WIRE_RENAME, on_rename, 0},
    {WIRE_PLACE, on_place, 0},
    {WIRE_OPEN, on_open, 0},
    {WIRE_CREATE, on_create, 0},
    {WIRE_READ, on_read, NEEDS_HANDLE},
    {WIRE_WRITE, on_write, NEEDS_HANDLE},
    {WIRE_FLUSH, on_flush, NEEDS_HANDLE},
    {WIRE_FSYNC, on_fsync, NEEDS_HANDLE},
    {WIRE_RELEASE, on_release, 0},
    {WIRE_READDIR, on_readdir, 0},
    {WIRE_READTREE, on_readtree, 0},
    {WIRE_READPARTS, on_readparts, 0},
    {WIRE_READFILES, on_readfiles, 0},
    {WIRE_STATFS, on_statfs, 0},
    {WIRE_GETXATTR, on_getxattr, 0},
    {WIRE_SETXATTR, on_setxattr, 0},
    {WIRE_LISTXATTR, on_listxattr, 0},
    {WIRE_REMOVEXATTR, on_removexattr, 0},
    {WIRE_FALLOCATE, on_fallocate, NEEDS_HANDLE},
    {WIRE_SEEK, on_seek, NEEDS_HANDLE},
    {WIRE_COPY, on_copy, NEEDS_HANDLE},
    {WIRE_LOCK_GET, on_lock_get, NEEDS_HANDLE},
    {WIRE_LOCK_SET, on_lock_set, NEEDS_HANDLE},
    {WIRE_WORKSPACE_OPEN, on_workspace, 0},
};

/* Messages that name no file of a workspace, and those that have a race of their own. */
static const enum wire_type elsewhere[] = {
    WIRE_HELLO,
    WIRE_PING,
    WIRE_STATUS,
    WIRE_ACCESS,
    WIRE_GOODBYE,
    WIRE_VISIBILITY,
    WIRE_LOCK_CLAIM,
    WIRE_SUBSCRIBE,
    WIRE_ACK,
    WIRE_WORKSPACE_LIST,
    WIRE_WORKSPACE_CREATE,
    WIRE_WORKSPACE_GET,
    WIRE_WORKSPACE_SET,
    WIRE_WORKSPACE_VISIBILITY,
    WIRE_WORKSPACE_SET_VISIBILITY,
    WIRE_WORKSPACE_REMOVE, /* test_workspace_removal */
    WIRE_TREE_EXPORT,
    WIRE_SNAPSHOT_CREATE,
    WIRE_SNAPSHOT_LIST,
    WIRE_SNAPSHOT_REMOVE,
    WIRE_WORKSPACE_RESTORE,
    WIRE_EXEC, /* the directory it runs in: test_exec_command.c */
    WIRE_EXEC_ATTACH,
    WIRE_EXEC_FORGET,
    WIRE_EXEC_LIST,
    WIRE_EXEC_KILL,
    WIRE_EXEC_POLICY,
    WIRE_EXEC_LIFT,
    WIRE_EXEC_POLICY_SET,
    WIRE_EXEC_USAGE,
    WIRE_EGRESS_LOG,
};

bool race_covers(enum wire_type type)
{
    for (size_t i = 0; i < ARRAY_SIZE(attacks); i++)
        if (attacks[i].type == type)
            return true;
    for (size_t i = 0; i < ARRAY_SIZE(elsewhere); i++)
        if (elsewhere[i] == type)
            return true;
    return false;
}

bool race_message(struct race_scene *s, size_t i)
{
    if (i == ARRAY_SIZE(attacks))
        return false;
    const struct attack *attack = &attacks[i];
    uint64_t found = 0;
    s->target = s->victim;
    if (s->round % 2) {
        found = look_up(s, s->e, bytes_of_string("victim"));
        if (found)
            s->target = found;
    }
    s->handle = attack->needs == NEEDS_HANDLE ? open_target(s, s->target, RW) : 0;
    if (s->handle || attack->needs != NEEDS_HANDLE)
        attack->run(s);
    if (s->handle)
        t_release(s->f, s->handle);
    if (found)
        t_forget(s->f, found, 1);
    return true;
}

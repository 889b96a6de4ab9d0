#include "cli/here.h"

#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/xattr.h>

#include "base/buffer.h"
#include "cli/bounded.h"
#include "cli/text.h"
#include "config/services.h"
#include "names/thread_id.h"

#define XATTR_NAME "user.berth.mount"
#define XATTR_MAX 65536 /* the kernel's own limit */

/* --- what a mount says of itself -------------------------------------------------- */

/* The mount's ID of an open descriptor, without asking the filesystem; 0 when not known. */
static uint64_t fd_mount_id(int fd)
{
    char path[64];
    unsigned long long id = 0;
    (void)snprintf(path, sizeof path, "/proc/self/fdinfo/%d", fd);
    FILE *file = fopen(path, "re");
    char line[128];
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "mnt_id: %llu", &id) == 1)
            break;
    if (file)
        (void)fclose(file);
    return id;
}

/* What is asked: a mount, or (name) a workspace in it. */
struct question {
    const struct mount_row *row;
    const char *name;
};

static int read_attribute(const void *context, struct buffer *out)
{
    const struct question *q = context;
    const struct mount_row *row = q->row;
    char path[64 + NAME_MAX + 1];
    _cleanup_close_ int fd = open(row->point, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    /* Another mount may lie over this one, and then speaks for itself only. */
    uint64_t id = fd_mount_id(fd);
    if (id != 0 && id != row->id)
        return -ENODATA;
    int r = buffer_reserve(out, XATTR_MAX);
    if (r < 0)
        return r;
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d%s%s", fd, q->name ? "/" : "",
                   q->name ? q->name : "");
    ssize_t len = getxattr(path, XATTR_NAME, out->data, XATTR_MAX);
    if (len < 0)
        return -errno;
    out->len = (size_t)len;
    return 0;
}

static int read_failure(const struct mount_row *row, int error, struct failure *f)
{
    if (error == -ETIMEDOUT)
        return failure_set(f, error, "the mount at %s does not answer; see `berth doctor`",
                           row->point);
    if (error == -ENOTCONN || error == -ECONNABORTED)
        return failure_set(f, -ENOTCONN,
                           "the mount at %s is dead (its berthfs has ended): take it down with "
                           "`berth umount %s` and mount again",
                           row->point, row->point);
    if (error == -ENODATA || error == -EOPNOTSUPP)
        return failure_set(f, -ENODATA,
                           "the mount at %s is hidden by another, or is not of this berthfs",
                           row->point);
    return failure_set(f, error, "the mount at %s cannot be asked: %s", row->point,
                       strerror(-error));
}

/* What a mount says names commands to run (exec: URLs) and files to read secrets from. Anybody
 * can mount something of the type fuse.berth for all to enter. */
static int check_user(const struct mount_row *row, struct failure *f)
{
    uid_t user;
    if (mount_row_user(row, &user) < 0)
        return failure_set(f, -EPERM, "the mount at %s does not say whose it is", row->point);
    if (user == geteuid() || user == 0)
        return 0;
    return failure_set(f, -EPERM,
                       "the mount at %s was made by another user (uid %u), so what it says about "
                       "its service is not trusted; name the service with --url",
                       row->point, (unsigned int)user);
}

static int ask(const struct question *q, uint32_t timeout_ms, json_t **ret,
               struct failure *ret_failure)
{
    const struct mount_row *row = q->row;
    _cleanup_buffer_ struct buffer text = {0};
    int r = check_user(row, ret_failure);
    if (r < 0)
        return r;
    r = bounded_run(read_attribute, q, timeout_ms, &text);
    if (r < 0)
        return read_failure(row, r, ret_failure);
    json_t *object = json_loadb((const char *)text.data, text.len, 0, NULL);
    if (!json_is_object(object)) {
        json_decref(object);
        return failure_set(ret_failure, -EBADMSG, "the mount at %s is not of this berthfs",
                           row->point);
    }
    *ret = object;
    return 0;
}

int here_mount_read(const struct mount_row *row, uint32_t timeout_ms, json_t **ret,
                    struct failure *ret_failure)
{
    const struct question q = {.row = row};
    return ask(&q, timeout_ms, ret, ret_failure);
}

/* --- where a path is -------------------------------------------------------------- */

struct spot {
    uint64_t mount_id; /* 0: not known */
    char *path;        /* absolute, without symbolic links */
};

static int stat_here(const void *context, struct buffer *out)
{
    struct stat st;
    if (stat(".", &st) < 0)
        return -errno;
    return st.st_nlink ? 0 : -ENOENT;
}

static int is_fuse_here(const void *context, struct buffer *out)
{
    struct statfs fs;
    if (statfs(".", &fs) < 0)
        return -errno;
    return fs.f_type == FUSE_SUPER_MAGIC ? -EREMOTE : 0;
}

/* The working directory has no path. -ENOENT: it was not in a Berth mount for certain. */
static int lost(struct failure *f, const char *why)
{
    _cleanup_buffer_ struct buffer none = {0};
    int r = bounded_run(is_fuse_here, NULL, HERE_DEADLINE_MS, &none);
    return failure_set(f, r == 0 ? -ENOENT : -ESTALE, "%s", why);
}

/* The kernel has no path for it. That alone does not mean that it is gone. */
static int no_path(struct failure *f)
{
    _cleanup_buffer_ struct buffer none = {0};
    int r = bounded_run(stat_here, NULL, HERE_DEADLINE_MS, &none);
    if (r == -ENOENT || r == -ESTALE)
        return lost(f, "the working directory has been removed");
    if (r < 0)
        return failure_set(f, r, "the working directory: %s",
                           r == -ETIMEDOUT ? "its mount does not answer" : strerror(-r));
    return lost(f, "the working directory is there, but not at the path it had; enter it again");
}

/* Neither call asks a filesystem: the place of the working directory is kept by the kernel,
 * and the path is not walked. */
static int spot_of_directory(struct spot *ret, struct failure *f)
{
    char path[PATH_MAX];
    struct statx stx = {0};
    if (syscall(SYS_getcwd, path, sizeof path) < 0) {
        if (errno == ENOENT)
            return no_path(f);
        return failure_set(f, -errno, "the working directory: %s", strerror(errno));
    }
    if (path[0] != '/')
        return lost(f, "the working directory's mount has been taken down");
    if (statx(AT_FDCWD, "", AT_EMPTY_PATH | AT_NO_AUTOMOUNT | AT_STATX_DONT_SYNC, STATX_MNT_ID,
              &stx) == 0 &&
        (stx.stx_mask & STATX_MNT_ID))
        ret->mount_id = stx.stx_mnt_id;
    ret->path = strdup(path);
    return ret->path ? 0 : failure_set(f, -ENOMEM, "%s", strerror(ENOMEM));
}

static int compare_here(const void *context, struct buffer *out)
{
    struct stat here, there;
    if (stat(context, &there) < 0)
        return -errno;
    if (stat(".", &here) < 0)
        return -errno;
    return here.st_dev == there.st_dev && here.st_ino == there.st_ino ? 0 : -ENOENT;
}

/* Where others renamed or removed a directory above it, the kernel goes on to tell the old path,
 * which may be another directory's by now: a command must not run there instead. What cannot be
 * asked now shows when the command is started. */
static int check_directory(const char *path, struct failure *f)
{
    _cleanup_buffer_ struct buffer none = {0};
    int r = bounded_run(compare_here, path, HERE_DEADLINE_MS, &none);
    if (r != -ENOENT && r != -ENOTDIR && r != -ESTALE)
        return 0;
    return failure_set(
        f, -ESTALE,
        "the working directory is not at %s any more: it was moved, or removed; enter "
        "it again",
        path);
}

static int resolve_path(const void *context, struct buffer *out)
{
    char link[64];
    char path[PATH_MAX];
    _cleanup_close_ int fd = open(context, O_PATH | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    uint64_t id = fd_mount_id(fd);
    (void)snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t len = readlink(link, path, sizeof path);
    if (len < 0)
        return -errno;
    if ((size_t)len == sizeof path)
        return -ENAMETOOLONG;
    int r = buffer_append_u64(out, id);
    return r < 0 ? r : buffer_append(out, path, (size_t)len);
}

static int spot_of_path(const char *path, struct spot *ret, struct failure *f)
{
    _cleanup_buffer_ struct buffer answer = {0};
    int r = bounded_run(resolve_path, path, HERE_DEADLINE_MS, &answer);
    if (r == -ETIMEDOUT)
        return failure_set(f, r, "%s: the mount it is in does not answer", path);
    if (r < 0)
        return failure_set(f, r, "%s: %s", path, strerror(-r));
    for (size_t i = 0; i < sizeof ret->mount_id; i++)
        ret->mount_id |= (uint64_t)answer.data[i] << (8 * i);
    buffer_consume(&answer, sizeof ret->mount_id);
    ret->path = text_copy(buffer_view(&answer));
    return ret->path ? 0 : failure_set(f, -ENOMEM, "%s", strerror(ENOMEM));
}

/* What follows `directory` in path, without the slash; NULL when it is not below. */
static const char *below(const char *path, const char *directory)
{
    size_t len = strlen(directory);
    while (len > 0 && directory[len - 1] == '/')
        len--;
    if (strncmp(path, directory, len) != 0 || (path[len] != '/' && path[len] != 0))
        return NULL;
    return path[len] == '/' ? path + len + 1 : path + len;
}

static const struct mount_row *find_row(const struct mount_table *table, const struct spot *spot)
{
    const struct mount_row *found = NULL;
    for (size_t i = 0; i < table->count; i++) {
        const struct mount_row *row = &table->rows[i];
        const char *rest = below(spot->path, row->point);
        if (spot->mount_id == row->id && rest)
            return row;
        /* Where the kernel does not tell the ID: the longest, and of equals the uppermost. */
        if (spot->mount_id == 0 && rest && (!found || strlen(row->point) >= strlen(found->point)))
            found = row;
    }
    return found;
}

/* The row that shows the whole filesystem of which `row` may show a part (a bind mount). */
static const struct mount_row *whole_row(const struct mount_table *table,
                                         const struct mount_row *row)
{
    if (strcmp(row->root, "/") == 0)
        return row;
    for (size_t i = 0; i < table->count; i++) {
        const struct mount_row *other = &table->rows[i];
        if (other->major == row->major && other->minor == row->minor &&
            strcmp(other->root, "/") == 0)
            return other;
    }
    return NULL;
}

/* --- putting it together ----------------------------------------------------------- */

/* A key of the mount's object, as a new string; NULL stays NULL. */
static int get_string(json_t *object, const char *key, char **ret)
{
    json_t *value = json_object_get(object, key);
    if (!json_is_string(value))
        return 0;
    if (strlen(json_string_value(value)) != json_string_length(value))
        return -EBADMSG;
    *ret = strdup(json_string_value(value));
    return *ret ? 0 : -ENOMEM;
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static int get_hex(json_t *object, const char *key, char **ret)
{
    const char *text = json_string_value(json_object_get(object, key));
    if (!text)
        return 0;
    size_t len = strlen(text) / 2;
    _cleanup_free_ char *bytes = calloc(1, len + 1);
    if (!bytes)
        return -ENOMEM;
    for (size_t i = 0; i < len; i++) {
        int high = hex_digit(text[2 * i]);
        int low = hex_digit(text[2 * i + 1]);
        /* NUL cannot come from a command line, and could not go back onto one. */
        if (high < 0 || low < 0 || (high == 0 && low == 0))
            return -EBADMSG;
        bytes[i] = (char)(high << 4 | low);
    }
    *ret = take_ptr(bytes);
    return 0;
}

static int take_settings(json_t *object, struct here *h)
{
    const struct {
        const char *key;
        char **field;
    } strings[] = {
        {"url", &h->url},           {"token_file", &h->token_file},
        {"ca_file", &h->ca_file},   {"cert_file", &h->cert_file},
        {"key_file", &h->key_file}, {"workspace", &h->workspace},
        {"control", &h->control},   {"member", &h->member},
    };
    for (size_t i = 0; i < ARRAY_SIZE(strings); i++) {
        int r = get_string(object, strings[i].key, strings[i].field);
        if (r < 0)
            return r;
    }
    return h->workspace ? 0 : get_hex(object, "workspace_hex", &h->workspace);
}

static int join(const char *a, const char *b, char **ret)
{
    while (*b == '/')
        b++;
    size_t len = strlen(a);
    bool slash = len > 0 && a[len - 1] != '/' && *b;
    char *joined;
    if (asprintf(&joined, "%s%s%s", a, slash ? "/" : "", b) < 0)
        return -ENOMEM;
    *ret = joined;
    return 0;
}

/* inside: the path from the root of the filesystem, which is the workspace's. */
static int place_in_workspace(const struct mount_row *row, const char *inside, struct here *h)
{
    h->directory = strdup(inside);
    if (!h->directory)
        return -ENOMEM;
    return strcmp(row->root, "/") == 0 ? join(row->point, "", &h->workspace_path) : 0;
}

/* The same where the first component is the workspace. */
static int place_in_all(const struct mount_row *row, const char *inside, struct here *h)
{
    size_t len = strcspn(inside, "/");
    h->directory = strdup(inside[len] ? inside + len + 1 : "");
    if (!h->directory)
        return -ENOMEM;
    if (len == 0)
        return 0;
    h->by_name = true;
    h->workspace = strndup(inside, len);
    if (!h->workspace)
        return -ENOMEM;
    if (strcmp(row->root, "/") == 0)
        return join(row->point, h->workspace, &h->workspace_path);
    return strcmp(row->root + 1, h->workspace) == 0 ? join(row->point, "", &h->workspace_path) : 0;
}

/* NAME@SERVICE is NAME to the service. */
static void forget_service(struct here *h)
{
    if (h->by_name && h->workspace)
        h->workspace[strcspn(h->workspace, "@")] = '\0';
}

/* Of the members of such a mount, one that --service can name; NULL: there is none. Those without a
 * name of their own, and workspaces of providers, have none there. */
static const char *named_member(json_t *object)
{
    size_t i;
    json_t *member;
    json_array_foreach(json_object_get(object, "members"), i, member)
    {
        const char *name = json_string_value(json_object_get(member, "name"));
        if (name && service_name_is_valid(name) && strcmp(name, "default") != 0 &&
            strspn(name, "0123456789") < strlen(name) && !json_object_get(member, "provider"))
            return name;
    }
    return NULL;
}

static int ask_which(const struct mount_row *row, json_t *object, struct failure *f)
{
    const char *name = named_member(object);
    return failure_set(f, -ENOTUNIQ,
                       "%s shows the workspaces of several services: enter one of them, or name "
                       "the service: berth %s%s …",
                       row->point, name ? "--service " : "--url URL", name ? name : "");
}

/* What the workspace of this name tells of its own takes the place of what the mount does. */
static int ask_member(const struct mount_row *whole, const char *name, json_t **object,
                      struct failure *f)
{
    json_t *own = NULL;
    const struct question q = {.row = whole, .name = name};
    int r = ask(&q, HERE_DEADLINE_MS, &own, f);
    if (r == -EIO)
        return failure_set(
            f, r, "the service of %s in the mount at %s is not reached; see `berth status`", name,
            whole->point);
    if (r < 0)
        return r;
    json_decref(*object);
    *object = own;
    return 0;
}

/* In a mount of several services, *object becomes what the workspace tells of its own. */
static int ask_workspace(const struct mount_row *row, const struct mount_row *whole,
                         const char *path, json_t **object, struct failure *f)
{
    _cleanup_free_ char *inside = NULL;
    if (!json_is_array(json_object_get(*object, "members")))
        return 0;
    int r = join(row->root[0] == '/' ? row->root + 1 : row->root, below(path, row->point), &inside);
    if (r < 0)
        return failure_set(f, r, "%s", strerror(-r));
    inside[strcspn(inside, "/")] = '\0';
    return inside[0] ? ask_member(whole, inside, object, f) : ask_which(row, *object, f);
}

static int describe(const struct mount_row *row, const char *path, json_t *object, struct here *h,
                    struct failure *f)
{
    _cleanup_free_ char *inside = NULL;
    h->own_credentials = json_is_true(json_object_get(object, "own_credentials"));
    h->mountpoint = strdup(row->point);
    int r = h->mountpoint ? take_settings(object, h) : -ENOMEM;
    if (r == 0 && !h->url)
        r = -EBADMSG;
    if (r == 0)
        r = join(row->root[0] == '/' ? row->root + 1 : row->root, below(path, row->point), &inside);
    if (r == 0)
        r = h->workspace ? place_in_workspace(row, inside, h) : place_in_all(row, inside, h);
    if (r == 0 && h->member)
        forget_service(h);
    if (r == -EBADMSG)
        return failure_set(f, r, "the mount at %s says what this version does not understand",
                           row->point);
    return r < 0 ? failure_set(f, r, "%s", strerror(-r)) : 0;
}

/* The Berth mount inside which somebody has mounted another filesystem: whose workspace that is
 * nobody says, but who stands in it may well think of this one's. */
static const struct mount_row *row_around(const struct mount_table *table, const char *point)
{
    for (size_t i = 0; i < table->count; i++) {
        const struct mount_row *row = &table->rows[i];
        const char *rest = mount_row_is_berth(row) ? below(point, row->point) : NULL;
        if (rest && *rest)
            return row;
    }
    return NULL;
}

/* The mount that the spot is in, and what it tells. */
static int find_mount(const struct mount_table *table, const struct spot *spot, const char *what,
                      const struct mount_row **ret_row, const struct mount_row **ret_whole,
                      json_t **ret_object, struct failure *f)
{
    const struct mount_row *row = find_row(table, spot);
    const struct mount_row *around =
        row && !mount_row_is_berth(row) ? row_around(table, row->point) : NULL;
    if (around)
        return failure_set(f, -EXDEV,
                           "%s is in what is mounted at %s, inside the Berth mount at %s", what,
                           row->point, around->point);
    if (!row || !mount_row_is_berth(row))
        return failure_set(f, -ENOENT, "%s is not in a Berth mount", what);
    const struct mount_row *whole = whole_row(table, row);
    if (!whole)
        return failure_set(f, -ENOTUNIQ,
                           "%s shows a part of a Berth mount whose root is not visible here; name "
                           "the service with --url",
                           row->point);
    *ret_row = row;
    *ret_whole = whole;
    return here_mount_read(whole, HERE_DEADLINE_MS, ret_object, f);
}

static int find_workspace(const struct mount_table *table, const struct spot *spot,
                          const char *what, struct here *h, struct failure *f)
{
    const struct mount_row *row, *whole;
    json_t *object;
    int r = find_mount(table, spot, what, &row, &whole, &object, f);
    if (r < 0)
        return r;
    r = ask_workspace(row, whole, spot->path, &object, f);
    if (r == 0)
        r = describe(row, spot->path, object, h, f);
    json_decref(object);
    return r;
}

/* --- a workspace of a mount of several services, by its name there ------------------------------
 */

static bool is_member(json_t *object, const char *name)
{
    size_t i;
    json_t *member;
    json_array_foreach(json_object_get(object, "members"), i, member)
    {
        const char *is = json_string_value(json_object_get(member, "name"));
        if (is && strcmp(is, name) == 0 && !json_object_get(member, "provider"))
            return true;
    }
    return false;
}

/* The name in the mount's root. -ENXIO: a service has to be named, and is not. */
static int name_there(json_t *object, const char *key, bool by_name, bool in_root, char **ret,
                      bool *ret_qualified)
{
    char name[THREAD_NAME_MAX + 1];
    const char *at = strrchr(key, '@');
    *ret_qualified = at && at > key && is_member(object, at + 1);
    if (!*ret_qualified && !in_root)
        return -ENXIO;
    struct bytes part = bytes_of(key, *ret_qualified ? (size_t)(at - key) : strlen(key));
    if (by_name && part.len < sizeof name) {
        memcpy(name, part.data, part.len);
        name[part.len] = '\0';
    } else if (by_name || thread_id_to_name(part, name) < 0) {
        return -ENODATA;
    }
    if (strchr(name, '/') || name[0] == '.' || !name[0])
        return -ENODATA;
    return asprintf(ret, "%s%s", name, *ret_qualified ? at : "") < 0 ? -ENOMEM : 0;
}

static int find_member(const struct mount_table *table, const struct spot *spot, const char *key,
                       bool by_name, struct here *h, struct failure *f)
{
    const struct mount_row *row, *whole;
    _cleanup_free_ char *name = NULL, *path = NULL;
    json_t *object;
    int r = find_mount(table, spot, "the working directory", &row, &whole, &object, f);
    if (r < 0)
        return r;
    const char *inside = below(spot->path, row->point);
    bool in_root = strcmp(row->root, "/") == 0 && inside && !*inside;
    if (!json_is_array(json_object_get(object, "members")))
        r = failure_set(f, -ENXIO, "%s is a mount of one service", row->point);
    else if ((r = name_there(object, key, by_name, in_root, &name, &h->qualified)) < 0)
        (void)failure_set(f, r, "%s shows no workspace %s", row->point, key);
    if (r == 0)
        r = ask_member(whole, name, &object, f);
    if (r == -ENOENT)
        r = failure_set(f, -ENODATA, "%s shows no workspace %s; see ls %s", whole->point, key,
                        whole->point);
    if (r == 0 && join(whole->point, name, &path) < 0)
        r = failure_set(f, -ENOMEM, "%s", strerror(ENOMEM));
    if (r == 0)
        r = describe(whole, path, object, h, f);
    json_decref(object);
    return r;
}

/* Of a path (NULL: the working directory), or (key) of a name in the mount that it is in. */
static int find(const char *path, const char *key, bool by_name, struct here *ret,
                struct failure *ret_failure)
{
    _cleanup_mount_table_ struct mount_table table = {0};
    _cleanup_here_ struct here h = {0};
    struct spot spot = {0};
    int r = mount_table_read(&table);
    if (r < 0)
        return failure_set(ret_failure, r, "/proc/self/mountinfo: %s", strerror(-r));
    r = path ? spot_of_path(path, &spot, ret_failure) : spot_of_directory(&spot, ret_failure);
    if (r == 0 && key)
        r = find_member(&table, &spot, key, by_name, &h, ret_failure);
    else if (r == 0)
        r = find_workspace(&table, &spot, path ? path : "the working directory", &h, ret_failure);
    if (r == 0 && !path)
        r = check_directory(spot.path, ret_failure);
    free(spot.path);
    if (r < 0)
        return r;
    *ret = h;
    h = (struct here){0};
    return 0;
}

int here_find(const char *path, struct here *ret, struct failure *ret_failure)
{
    return find(path, NULL, false, ret, ret_failure);
}

int here_find_member(const char *key, bool by_name, struct here *ret, struct failure *ret_failure)
{
    return find(NULL, key, by_name, ret, ret_failure);
}

bool here_names_member(const char *key)
{
    _cleanup_mount_table_ struct mount_table table = {0};
    const struct mount_row *row, *whole;
    struct spot spot = {0};
    struct failure f;
    json_t *object;
    const char *at = strrchr(key, '@');
    if (!at || mount_table_read(&table) < 0 || spot_of_directory(&spot, &f) < 0)
        return false;
    int r = find_mount(&table, &spot, "the working directory", &row, &whole, &object, &f);
    free(spot.path);
    if (r < 0)
        return false;
    bool names = is_member(object, at + 1);
    json_decref(object);
    return names;
}

void here_release(struct here *h)
{
    free(h->mountpoint);
    free(h->url);
    free(h->token_file);
    free(h->ca_file);
    free(h->cert_file);
    free(h->key_file);
    free(h->control);
    free(h->workspace);
    free(h->member);
    free(h->directory);
    free(h->workspace_path);
    *h = (struct here){0};
}

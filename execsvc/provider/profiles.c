#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buffer.h"
#include "base/cleanup.h"
#include "base/dir.h"
#include "base/file.h"
#include "config/paths.h"
#include "provider/profile.h"

#define SUFFIX ".json"

/* Absolute paths, in the order in which they are looked into. */
struct directories {
    char *paths[16];
    size_t count;
};

static void directories_release(struct directories *d)
{
    for (size_t i = 0; i < d->count; i++)
        free(d->paths[i]);
    *d = (struct directories){0};
}

static int add_directory(struct directories *d, const char *path, size_t len)
{
    /* A relative one would be another in each working directory, which may be an agent's. */
    if (len == 0 || path[0] != '/' || d->count == ARRAY_SIZE(d->paths))
        return 0;
    d->paths[d->count] = strndup(path, len);
    return d->paths[d->count] ? (d->count++, 0) : -ENOMEM;
}

static int add_own(struct directories *d)
{
    const char *xdg = getenv("XDG_CONFIG_HOME");
    _cleanup_free_ char *path = NULL;
    struct failure f;
    int r = xdg && xdg[0] == '/' ? paths_absolute("berth/providers", xdg, &path, &f)
                                 : paths_absolute("~/.config/berth/providers", NULL, &path, &f);
    if (r == -ENOENT)
        return 0;
    return r < 0 ? r : add_directory(d, path, strlen(path));
}

static int find_directories(struct directories *d)
{
    static const char *const fixed[] = {"/etc/berth/providers", BERTH_DATADIR "/berth/providers"};
    const char *at = getenv("BERTH_PROVIDERS");
    int r = 0;
    for (; r == 0 && at && *at; at += strcspn(at, ":"), at += *at == ':')
        r = add_directory(d, at, strcspn(at, ":"));
    if (r == 0)
        r = add_own(d);
    for (size_t i = 0; r == 0 && i < ARRAY_SIZE(fixed); i++)
        r = add_directory(d, fixed[i], strlen(fixed[i]));
    return r;
}

/* --- one ---------------------------------------------------------------------------- */

static int read_text(const char *path, struct buffer *text, struct failure *f)
{
    struct stat st;
    _cleanup_close_ int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0)
        return failure_set(f, -errno, "%s: %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode) || (st.st_uid != geteuid() && st.st_uid != 0) || (st.st_mode & 022))
        return failure_set(f, -EPERM,
                           "%s: says what to run, and so must be a file of yours or of root's that "
                           "nobody else can write",
                           path);
    int r = buffer_reserve(text, PROFILE_FILE_MAX + 1);
    if (r == 0)
        r = file_read_up_to(fd, text->data, PROFILE_FILE_MAX + 1, &text->len);
    return r < 0 ? failure_set(f, r, "%s: %s", path, strerror(-r)) : 0;
}

static int load(const char *directory, const char *name, struct profile *ret, struct failure *f)
{
    _cleanup_buffer_ struct buffer text = {0};
    _cleanup_profile_ struct profile p = {0};
    _cleanup_free_ char *path = NULL;
    struct failure why;
    if (asprintf(&path, "%s/%s" SUFFIX, directory, name) < 0) {
        path = NULL;
        return failure_set(f, -ENOMEM, "out of memory");
    }
    int r = read_text(path, &text, f);
    if (r < 0)
        return r;
    r = profile_parse(buffer_view(&text), &p, &why);
    if (r < 0)
        return failure_set(f, r, "%s: %s", path, why.text);
    if (strcmp(profile_text(&p, "name"), name) != 0)
        return failure_set(f, -EINVAL, "%s: name: must be that of the file", path);
    p.file = take_ptr(path);
    *ret = p;
    p = (struct profile){0};
    return 0;
}

static int find_in(const struct directories *d, const char *name, struct profile *ret,
                   struct failure *f)
{
    int r = -ENOENT;
    for (size_t i = 0; r == -ENOENT && i < d->count; i++)
        r = load(d->paths[i], name, ret, f);
    /* ENOTDIR, EACCES: a place that is none of ours to look into. */
    return r;
}

static int add_name(void *context, const char *name, const struct profile *p,
                    const struct failure *failure)
{
    struct buffer *names = context;
    return buffer_printf(names, "%s%s", names->len ? ", " : "", name);
}

int profile_find(const char *name, struct profile *ret, struct failure *ret_failure)
{
    _cleanup_(directories_release) struct directories d = {0};
    int r = find_directories(&d);
    if (r < 0)
        return failure_set(ret_failure, r, "%s", strerror(-r));
    r = profile_name_is_valid(name) ? find_in(&d, name, ret, ret_failure) : -ENOENT;
    if (r != -ENOENT)
        return r;
    _cleanup_buffer_ struct buffer names = {0};
    struct failure f;
    (void)profile_each(add_name, &names, &f);
    return failure_set(ret_failure, r, "there is no provider %.*s; there are: %s", PROFILE_NAME_MAX,
                       name,
                       names.len ? (const char *)names.data : "none, since none is installed");
}

/* --- all ---------------------------------------------------------------------------- */

struct names {
    char **items;
    size_t count;
};

static void names_release(struct names *n)
{
    for (size_t i = 0; i < n->count; i++)
        free(n->items[i]);
    free(n->items);
    *n = (struct names){0};
}

static int compare(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static int add_file(struct names *n, const char *file)
{
    size_t len = strlen(file);
    char name[PROFILE_NAME_MAX + 1];
    if (len < sizeof SUFFIX || len - (sizeof SUFFIX - 1) > PROFILE_NAME_MAX ||
        strcmp(file + len - (sizeof SUFFIX - 1), SUFFIX) != 0)
        return 0;
    (void)snprintf(name, sizeof name, "%.*s", (int)(len - (sizeof SUFFIX - 1)), file);
    if (!profile_name_is_valid(name))
        return 0;
    for (size_t i = 0; i < n->count; i++)
        if (strcmp(n->items[i], name) == 0)
            return 0;
    char **items = reallocarray(n->items, n->count + 1, sizeof *items);
    if (!items)
        return -ENOMEM;
    n->items = items;
    items[n->count] = strdup(name);
    return items[n->count] ? (n->count++, 0) : -ENOMEM;
}

static int collect(const struct directories *d, struct names *n)
{
    int r = 0;
    for (size_t i = 0; r == 0 && i < d->count; i++) {
        _cleanup_dir_ DIR *directory = opendir(d->paths[i]);
        const struct dirent *entry;
        while (directory && r == 0 && n->count < PROFILE_LIST_MAX &&
               dir_next(directory, &entry) == 1)
            r = add_file(n, entry->d_name);
    }
    return r;
}

int profile_each(profile_each_fn *each, void *context, struct failure *ret_failure)
{
    _cleanup_(directories_release) struct directories d = {0};
    _cleanup_(names_release) struct names n = {0};
    int r = find_directories(&d);
    if (r == 0)
        r = collect(&d, &n);
    if (n.count)
        qsort(n.items, n.count, sizeof *n.items, compare);
    for (size_t i = 0; r == 0 && i < n.count; i++) {
        _cleanup_profile_ struct profile p = {0};
        struct failure why = {0};
        int found = find_in(&d, n.items[i], &p, &why);
        r = each(context, n.items[i], found == 0 ? &p : NULL, &why);
    }
    return r < 0 ? failure_set(ret_failure, r, "%s", strerror(-r)) : 0;
}

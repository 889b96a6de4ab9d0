#include <errno.h>
#include <fcntl.h>
#include <sha2.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/dir.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "config/paths.h"
#include "places/place.h"

#define SUFFIX ".json"
/* Longer directory names would pass NAME_MAX with the suffix. */
#define PLAIN_MAX (THREAD_NAME_MAX - (sizeof SUFFIX - 1))
#define LOCK_NAME ".lock"
#define TEMPORARY ".new-"
#define LEFT_OVER_S 3600 /* no write takes so long */

/* --- the directory --------------------------------------------------------------- */

static bool is_ours(const struct stat *st)
{
    return (st->st_uid == geteuid() || st->st_uid == 0) && !(st->st_mode & 022);
}

/* -ENOENT, without a sentence: there is none. */
static int open_directory(bool make, int *ret_fd, char **ret_path, struct failure *f)
{
    _cleanup_free_ char *path = NULL;
    struct stat st;
    int r = paths_places_dir(&path, f);
    if (r == 0 && make)
        r = paths_make_directory(path, f);
    if (r < 0)
        return r;
    _cleanup_close_ int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0) {
        r = -errno;
        return failure_set(f, r, "%s: %s", path, strerror(-r));
    }
    if (!is_ours(&st))
        return failure_set(f, -EPERM,
                           "%s: others can write there, and so choose what is run in your name: it "
                           "must be yours, with mode 0700",
                           path);
    *ret_fd = take_fd(&fd);
    *ret_path = take_ptr(path);
    return 0;
}

/* --- one file -------------------------------------------------------------------- */

/* A short name is its own; of a long one it is '~' and a hash, as which no directory name begins.
 */
static void file_name(const char *name, char ret[THREAD_NAME_MAX + 1])
{
    uint8_t hash[SHA256_DIGEST_LENGTH];
    SHA2_CTX context;
    size_t len = strlen(name);
    if (len <= PLAIN_MAX) {
        (void)snprintf(ret, THREAD_NAME_MAX + 1, "%s" SUFFIX, name);
        return;
    }
    SHA256Init(&context);
    SHA256Update(&context, (const uint8_t *)name, len);
    SHA256Final(hash, &context);
    len = (size_t)snprintf(ret, 2, "~");
    for (size_t i = 0; i < sizeof hash; i++)
        len += (size_t)snprintf(ret + len, 3, "%02x", hash[i]);
    memcpy(ret + len, SUFFIX, sizeof SUFFIX);
}

static int read_file(int directory, const char *file, struct place *ret, struct failure *f)
{
    struct stat st;
    size_t len = 0;
    _cleanup_free_ char *text = NULL;
    _cleanup_close_ int fd =
        openat(directory, file, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0)
        return failure_set(f, -errno, "%s", strerror(errno));
    if (!S_ISREG(st.st_mode) || !is_ours(&st))
        return failure_set(f, -EPERM, "it must be a file of yours that nobody else can write");
    text = malloc(PLACE_FILE_MAX + 1);
    int r = text ? file_read_up_to(fd, text, PLACE_FILE_MAX + 1, &len) : -ENOMEM;
    if (r < 0)
        return failure_set(f, r, "%s", strerror(-r));
    r = place_parse(bytes_of(text, len), ret, f);
    if (r < 0)
        return r;
    char own[THREAD_NAME_MAX + 1];
    file_name(ret->name, own);
    if (strcmp(own, file) == 0)
        return 0;
    place_clear(ret);
    return failure_set(f, -EINVAL, "it is of a workspace of another name");
}

int place_read(const char *name, struct place *ret, struct failure *ret_failure)
{
    _cleanup_close_ int directory = -1;
    _cleanup_free_ char *path = NULL;
    char file[THREAD_NAME_MAX + 1];
    struct failure why;
    int r = open_directory(false, &directory, &path, ret_failure);
    if (r < 0)
        return r;
    file_name(name, file);
    r = read_file(directory, file, ret, &why);
    return r < 0 ? failure_set(ret_failure, r, "%s/%s: %s", path, file, why.text) : 0;
}

/* Puts the file where it belongs; a new one, by a link, only where there is none. */
static int publish(int directory, const char *temporary, const char *file, bool is_new)
{
    if (!is_new)
        return renameat(directory, temporary, directory, file) < 0 ? -errno : 0;
    if (linkat(directory, temporary, directory, file, 0) < 0)
        return -errno;
    (void)unlinkat(directory, temporary, 0);
    return 0;
}

static int write_file(int directory, const char *text, const char *file, bool is_new)
{
    char temporary[64];
    uint64_t random;
    if (getrandom(&random, sizeof random, 0) != sizeof random)
        return -EIO;
    (void)snprintf(temporary, sizeof temporary, TEMPORARY "%016llx", (unsigned long long)random);
    _cleanup_close_ int fd =
        openat(directory, temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return -errno;
    /* A sandbox is made after this: a power cut must not lose that there may be one. */
    int r = file_write_text_synced(fd, text);
    if (r == 0)
        r = publish(directory, temporary, file, is_new);
    if (r < 0)
        (void)unlinkat(directory, temporary, 0);
    else if (fsync(directory) < 0)
        r = -errno;
    return r;
}

int place_write(const struct place *p, bool is_new, struct failure *ret_failure)
{
    _cleanup_close_ int directory = -1;
    _cleanup_free_ char *path = NULL, *text = NULL;
    char file[THREAD_NAME_MAX + 1];
    int r = open_directory(true, &directory, &path, ret_failure);
    if (r < 0)
        return r;
    json_t *object = place_to_json(p);
    text = object ? json_dumps(object, JSON_INDENT(2)) : NULL;
    json_decref(object);
    file_name(p->name, file);
    r = !text                           ? -ENOMEM
        : strlen(text) > PLACE_FILE_MAX ? -EFBIG
                                        : write_file(directory, text, file, is_new);
    return r < 0 ? failure_set(ret_failure, r, "%s/%s: %s", path, file, strerror(-r)) : 0;
}

int place_remove(const char *name, struct failure *ret_failure)
{
    _cleanup_close_ int directory = -1;
    _cleanup_free_ char *path = NULL;
    char file[THREAD_NAME_MAX + 1];
    int r = open_directory(false, &directory, &path, ret_failure);
    if (r < 0)
        return r;
    file_name(name, file);
    if (unlinkat(directory, file, 0) < 0 || fsync(directory) < 0)
        return failure_set(ret_failure, -errno, "%s/%s: %s", path, file, strerror(errno));
    return 0;
}

/* A byte of one file for each, by hash: two names may share one, and then take turns. */
int place_lock(const char *name, int *ret_fd, struct failure *ret_failure)
{
    _cleanup_close_ int directory = -1;
    _cleanup_free_ char *path = NULL;
    int r = open_directory(true, &directory, &path, ret_failure);
    if (r < 0)
        return r;
    _cleanup_close_ int fd =
        openat(directory, LOCK_NAME, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    uint64_t hash = hash_end(hash_bytes(HASH_START, name, strlen(name)));
    struct flock lock = {
        .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)(hash >> 2), .l_len = 1};
    if (fd >= 0 && fcntl(fd, F_OFD_SETLK, &lock) == 0) {
        *ret_fd = take_fd(&fd);
        return 0;
    }
    r = errno == EACCES && fd >= 0 ? -EAGAIN : -errno;
    return failure_set(ret_failure, r, "%s/" LOCK_NAME ": %s", path, strerror(-r));
}

/* --- all ------------------------------------------------------------------------- */

static int compare(const void *a, const void *b)
{
    return strcmp(((const struct place *)a)->name, ((const struct place *)b)->name);
}

struct places {
    struct place *items;
    size_t count;
    size_t allocated;
};

static void places_release(struct places *l)
{
    for (size_t i = 0; i < l->count; i++)
        place_clear(&l->items[i]);
    free(l->items);
    *l = (struct places){0};
}

static int add(struct places *l, struct place *p)
{
    if (l->count == l->allocated) {
        size_t larger = l->allocated ? 2 * l->allocated : 64;
        struct place *items = reallocarray(l->items, larger, sizeof *items);
        if (!items)
            return -ENOMEM;
        l->items = items;
        l->allocated = larger;
    }
    l->items[l->count++] = *p;
    *p = (struct place){0};
    return 0;
}

static bool is_place(const char *file)
{
    size_t len = strlen(file);
    return file[0] != '.' && len >= sizeof SUFFIX &&
           strcmp(file + len - (sizeof SUFFIX - 1), SUFFIX) == 0;
}

static int leave_out(const char *path, const char *file, bool all, const struct failure *why,
                     struct failure *f)
{
    char shown[THREAD_NAME_MAX + 1];
    (void)log_escape(file, strlen(file), shown, sizeof shown);
    if (all)
        return failure_set(f, -EBADMSG, "%s/%s: %s", path, shown, why->text);
    log_warning("%s/%s: %s", path, shown, why->text);
    return 0;
}

/* What a writer that was killed has left. */
static void remove_left_over(int directory, const char *file)
{
    struct stat st;
    if (strncmp(file, TEMPORARY, strlen(TEMPORARY)) == 0 &&
        fstatat(directory, file, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
        st.st_mtime < time(NULL) - LEFT_OVER_S)
        (void)unlinkat(directory, file, 0);
}

/* all: of one that cannot be read the failure is set. */
static int read_all(int fd, const char *path, bool all, struct places *l, struct failure *f)
{
    _cleanup_dir_ DIR *directory = NULL;
    const struct dirent *entry;
    int r = dir_open(fd, ".", &directory);
    while (r >= 0 && (r = dir_next(directory, &entry)) == 1) {
        struct failure why;
        _cleanup_place_ struct place p = {0};
        if (!is_place(entry->d_name)) {
            remove_left_over(dirfd(directory), entry->d_name);
            continue;
        }
        if (l->count == PLACES_MAX) {
            r = failure_set(f, -E2BIG, "%s: more places than can be listed", path);
            break;
        }
        r = read_file(dirfd(directory), entry->d_name, &p, &why);
        if (r == 0)
            r = add(l, &p);
        else if (r == -ENOENT)
            r = 0; /* removed meanwhile */
        else if (r != -ENOMEM)
            r = leave_out(path, entry->d_name, all, &why, f);
    }
    return r;
}

static int list(bool all, places_each_fn *each, void *context, struct failure *f)
{
    _cleanup_close_ int directory = -1;
    _cleanup_free_ char *path = NULL;
    _cleanup_(places_release) struct places l = {0};
    int r = open_directory(false, &directory, &path, f);
    if (r < 0)
        return r == -ENOENT ? 0 : r;
    r = read_all(directory, path, all, &l, f);
    if (r == -E2BIG || r == -EBADMSG)
        return r;
    if (l.count)
        qsort(l.items, l.count, sizeof *l.items, compare);
    for (size_t i = 0; r == 0 && i < l.count; i++)
        r = each(context, &l.items[i]);
    return r < 0 ? failure_set(f, r, "%s: %s", path, strerror(-r)) : 0;
}

int places_list(places_each_fn *each, void *context, struct failure *ret_failure)
{
    return list(false, each, context, ret_failure);
}

int places_list_all(places_each_fn *each, void *context, struct failure *ret_failure)
{
    return list(true, each, context, ret_failure);
}

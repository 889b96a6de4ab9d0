/* In berth-network, which has libarchive behind it. */
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "archive/pack.h"
#include "archive/unpack.h"
#include "base/file.h"
#include "cli/tree_call.h"

#define READ_SIZE 65536

/* --- up ----------------------------------------------------------------------------------- */

struct upload {
    struct tree_call *call;
    struct progress *progress;
    int fd;
    uint8_t data[READ_SIZE];
};

static ssize_t read_archive(void *context, const void **ret)
{
    struct upload *u = context;
    size_t len;
    *ret = u->data;
    int r = file_read_up_to(u->fd, u->data, sizeof u->data, &len);
    if (r < 0)
        return r;
    progress_add(u->progress, len);
    return (ssize_t)len;
}

static int upload_part(void *context, const struct wire_list *items)
{
    const struct upload *u = context;
    return tree_call_part(u->call, items);
}

/* 0: it has none, as a pipe. */
static uint64_t size_of(int fd)
{
    struct stat st;
    return fstat(fd, &st) == 0 && S_ISREG(st.st_mode) ? (uint64_t)st.st_size : 0;
}

int archive_upload(struct cli *cli, const char *file, struct tree_call *call,
                   struct progress *progress)
{
    _cleanup_free_ struct upload *u = calloc(1, sizeof *u);
    _cleanup_close_ int opened = -1;
    struct unpack_counts counts;
    struct failure failure = {0};
    if (!u) {
        cli_error(cli, "out of memory");
        return -ENOMEM;
    }
    bool standard = strcmp(file, "-") == 0;
    opened = standard ? -1 : open(file, O_RDONLY | O_CLOEXEC);
    if (!standard && opened < 0) {
        int r = -errno;
        cli_error(cli, "%s: %s", file, strerror(-r));
        return r;
    }
    u->call = call;
    u->fd = standard ? STDIN_FILENO : opened;
    u->progress = progress;
    progress_set(progress, 0, standard ? 0 : size_of(opened));
    const struct unpack_source source = {.read = read_archive, .context = u};
    const struct tree_sink sink = {.part = upload_part, .context = u};
    int r = unpack_run(&source, &sink, &counts, &failure);
    if (r == 0)
        r = tree_call_end_items(call);
    else if (r != -ECANCELED) /* the service says why it takes no more */
        cli_error(cli, "%s: %s", standard ? "standard input" : file, failure.text);
    if (r == 0 && counts.skipped > 0)
        cli_error(cli, "%s: %llu devices or sockets were left out", file,
                  (unsigned long long)counts.skipped);
    return r == -ECANCELED ? 0 : r;
}

/* --- down --------------------------------------------------------------------------------- */

static int write_archive(void *context, const void *data, size_t len)
{
    const int *fd = context;
    return file_write_all(*fd, data, len);
}

static bool ends_with(const char *text, const char *end)
{
    size_t a = strlen(text), b = strlen(end);
    return a >= b && strcmp(text + a - b, end) == 0;
}

static enum pack_compression choose(const char *file, const char *compression)
{
    if (compression)
        return strcmp(compression, "zstd") == 0   ? PACK_ZSTD
               : strcmp(compression, "gzip") == 0 ? PACK_GZIP
                                                  : PACK_PLAIN;
    if (file && (ends_with(file, ".zst") || ends_with(file, ".tzst")))
        return PACK_ZSTD;
    return file && (ends_with(file, ".gz") || ends_with(file, ".tgz")) ? PACK_GZIP : PACK_PLAIN;
}

static int pack_all(struct tree_call *call, struct pack *pack, struct progress *progress,
                    struct failure *f)
{
    struct wire_list items;
    uint64_t total;
    int r;
    while ((r = tree_call_next(call, &items, &total)) == 1) {
        r = pack_list(pack, &items, f);
        if (r < 0)
            break;
        progress_set(progress, pack_counts(pack).size, total);
    }
    return r;
}

/* Where it is written: a file beside the one that is meant, whose name it takes when it is whole.
 * What is there and is no regular file, a device or a FIFO, is written to itself. */
struct target {
    int fd;
    char *file, *temporary; /* owned; NULL: written to itself */
    bool unnamed; /* it has that name at the end only, so that nothing is left by who is killed */
};

static void target_release(struct target *t)
{
    if (t->temporary && !t->unnamed)
        (void)unlink(t->temporary);
    close_fd(&t->fd);
    free(t->temporary);
    free(t->file);
}
#define _cleanup_target_ _cleanup_(target_release)

/* In the directory that the file is in. Not every filesystem has such files, and a name needs
 * /proc. */
static int open_unnamed(const char *file, mode_t mode)
{
    _cleanup_free_ char *path = strdup(file);
    if (!path || access("/proc/self/fd", X_OK) < 0)
        return -1;
    return open(dirname(path), O_TMPFILE | O_WRONLY | O_CLOEXEC, mode);
}

/* file NULL: standard output. */
static int target_open(const char *file, struct target *t)
{
    struct stat st;
    if (!file) {
        t->fd = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
        return t->fd < 0 ? -errno : 0;
    }
    if (stat(file, &st) == 0 && !S_ISREG(st.st_mode)) {
        t->fd = open(file, O_WRONLY | O_NOCTTY | O_CLOEXEC);
        return t->fd < 0 ? -errno : 0;
    }
    bool link = lstat(file, &st) == 0 && S_ISLNK(st.st_mode);
    t->file = link ? realpath(file, NULL) : strdup(file);
    if (!t->file)
        return -errno;
    _cleanup_free_ char *temporary = NULL;
    if (asprintf(&temporary, "%s.part-%d", t->file, (int)getpid()) < 0)
        return -ENOMEM;
    /* Who could not read what was there is not to read what comes, from the beginning. */
    bool there = stat(t->file, &st) == 0;
    mode_t mode = there ? st.st_mode & 0777 : 0666;
    t->fd = open_unnamed(t->file, mode);
    t->unnamed = t->fd >= 0;
    if (!t->unnamed)
        t->fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    if (t->fd < 0)
        return -errno;
    t->temporary = take_ptr(temporary);
    struct stat new;
    if (there &&
        (fstat(t->fd, &new) < 0 || ((new.st_mode & 0777) != mode && fchmod(t->fd, mode) < 0)))
        return -errno;
    return 0;
}

static int target_name(struct target *t)
{
    char path[32];
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", t->fd);
    if (t->unnamed && linkat(AT_FDCWD, path, AT_FDCWD, t->temporary, AT_SYMLINK_FOLLOW) < 0)
        return -errno;
    t->unnamed = false;
    return rename(t->temporary, t->file) < 0 ? -errno : 0;
}

/* It is whole. */
static int target_finish(struct target *t, uint64_t size, struct progress *progress)
{
    if (!t->temporary)
        return 0;
    progress_set(progress, size, size); /* nothing more comes, which has no rate */
    progress_step(progress, "writing to the disk");
    int r = fsync(t->fd) < 0 ? -errno : target_name(t);
    if (r < 0)
        return r;
    free(t->temporary);
    t->temporary = NULL;
    return 0;
}

int archive_download(struct cli *cli, const char *id, const char *file, const char *compression,
                     struct tree_call *call)
{
    _cleanup_target_ struct target target = {.fd = -1};
    _cleanup_pack_ struct pack *pack = NULL;
    struct failure failure = {0};
    struct wire_frame *reply;
    if (file && strcmp(file, "-") == 0)
        file = NULL;
    int r = target_open(file, &target);
    const struct pack_sink sink = {.write = write_archive, .context = &target.fd};
    if (r == 0)
        r = pack_new(choose(file, compression), &sink, &pack);
    if (r < 0) {
        cli_error(cli, "%s: %s", file ? file : "standard output", strerror(-r));
        tree_call_drop(call);
    } else {
        _cleanup_progress_ struct progress *progress = progress_start(id, 0, PROGRESS_BYTES);
        r = pack_all(call, pack, progress, &failure);
        /* What was received before the service failed is no archive of it, nor is it to look like
         * one to whoever reads it from a pipe: its end is written when the service has said that it
         * is whole. */
        int answer = tree_call_finish(call, &reply, r < 0 ? &(struct failure){0} : &failure);
        if (answer == 0)
            wire_frame_free(reply);
        r = r < 0 ? r : answer;
        struct pack_counts counts;
        if (r == 0)
            r = pack_finish(pack, &counts, &failure);
        if (r == 0 && (r = target_finish(&target, counts.size, progress)) < 0)
            (void)failure_set(&failure, r, "%s: %s", file, strerror(-r));
        if (r < 0)
            cli_error(cli, "%s: %s", id, failure.text[0] ? failure.text : strerror(-r));
    }
    return r;
}

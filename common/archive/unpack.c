#include "archive/unpack.h"

#include <archive.h>
#include <archive_entry.h>
#include <stdlib.h>
#include <string.h>

#include "archive/gunzip.h"
#include "base/cleanup.h"
#include "base/log.h"

/* What the service takes; others are of no use to it. */
#define XATTR_PREFIX "user."
#define XATTR_OWN_PREFIX "user.berth."

/* Bytes behind the end of an archive that is packed with gzip, whose checksum stands behind them:
 * tar fills up a record, of at most 10 MiB. Stops an archive that goes on without end. */
#define REST_MAX (16 * 1024 * 1024)

struct unpacking {
    const struct unpack_source *source;
    struct gunzip *gunzip;
    struct archive *archive;
    struct tree_batch batch;
    struct unpack_counts counts;
    struct failure *failure;
    int read_error; /* of the source */
    char path[WIRE_TREE_PATH_MAX + 1];
    char link[WIRE_TREE_PATH_MAX + 1];
};

static void unpacking_release(struct unpacking *u)
{
    if (u->archive)
        (void)archive_read_free(u->archive);
    if (u->gunzip)
        gunzip_free(u->gunzip);
    tree_batch_release(&u->batch);
}

static la_ssize_t on_read(struct archive *archive, void *context, const void **data)
{
    struct unpacking *u = context;
    ssize_t n = gunzip_read(u->gunzip, data);
    if (n < 0) {
        u->read_error = (int)n;
        archive_set_error(archive, (int)-n, "%s", strerror((int)-n));
    }
    return n;
}

static int fail(struct unpacking *u, int error, const char *path, const char *why)
{
    char shown[512];
    (void)log_escape(path, strlen(path), shown, sizeof shown);
    return failure_set(u->failure, error, "%s: %s", shown, why);
}

/* What the library found. */
static int fail_archive(struct unpacking *u)
{
    if (u->read_error == -EBADMSG)
        return failure_set(
            u->failure, -EBADMSG,
            "this is no tar archive, or it is damaged: gzip's checksum or end is wrong");
    if (u->read_error < 0)
        return failure_set(u->failure, u->read_error, "cannot read the archive: %s",
                           strerror(-u->read_error));
    if (archive_errno(u->archive) == ENOMEM)
        return failure_set(u->failure, -ENOMEM, "out of memory");
    const char *text = archive_error_string(u->archive);
    char shown[256];
    text = text ? text : "it is damaged";
    return failure_set(u->failure, -EBADMSG, "this is no tar archive, or it is damaged: %s",
                       log_escape(text, strlen(text), shown, sizeof shown));
}

/* ---- paths -------------------------------------------------------------------------------- */

/* Takes "." and empty components out: "./a//b/" is a/b. */
static int normalise(struct unpacking *u, const char *path, char ret[WIRE_TREE_PATH_MAX + 1])
{
    size_t len = 0;
    if (path[0] == '/')
        return fail(u, -EINVAL, path, "a path that begins at the root; make the archive relative");
    for (const char *at = path; *at;) {
        size_t n = strcspn(at, "/");
        if (n == 2 && at[0] == '.' && at[1] == '.')
            return fail(u, -EINVAL, path, "a path that leads out by \"..\"");
        if (n > 0 && !(n == 1 && at[0] == '.')) {
            if (len + 1 + n > WIRE_TREE_PATH_MAX)
                return fail(u, -ENAMETOOLONG, path, "too long a path");
            if (len > 0)
                ret[len++] = '/';
            memcpy(ret + len, at, n);
            len += n;
        }
        at += n;
        at += *at == '/';
    }
    ret[len] = '\0';
    return 0;
}

/* ---- entries ------------------------------------------------------------------------------ */

static uint32_t kind_of(struct archive_entry *entry)
{
    if (archive_entry_hardlink(entry) || archive_entry_hardlink_utf8(entry))
        return WIRE_ITEM_HARD_LINK;
    switch (archive_entry_filetype(entry)) {
    case AE_IFREG:
        return WIRE_ITEM_FILE;
    case AE_IFDIR:
        return WIRE_ITEM_DIRECTORY;
    case AE_IFLNK:
        return WIRE_ITEM_SYMLINK;
    case AE_IFIFO:
        return WIRE_ITEM_FIFO;
    }
    return 0;
}

static int sent(struct unpacking *u, int r)
{
    return r < 0 ? failure_set(u->failure, r, "%s", strerror(-r)) : 0;
}

static int send_xattrs(struct unpacking *u, struct archive_entry *entry)
{
    const char *name;
    const void *value;
    size_t size;
    int r = 0;
    (void)archive_entry_xattr_reset(entry);
    while (r == 0 && archive_entry_xattr_next(entry, &name, &value, &size) == ARCHIVE_OK) {
        const struct wire_tree_item item = {
            .kind = WIRE_ITEM_XATTR, .path = bytes_of_string(name), .value = bytes_of(value, size)};
        if (!name || strncmp(name, XATTR_PREFIX, strlen(XATTR_PREFIX)) != 0 ||
            strncmp(name, XATTR_OWN_PREFIX, strlen(XATTR_OWN_PREFIX)) == 0 ||
            size > WIRE_TREE_VALUE_MAX)
            continue;
        r = sent(u, tree_batch_add(&u->batch, &item));
    }
    return r;
}

static int send_data(struct unpacking *u, uint64_t size)
{
    const void *data;
    size_t len;
    la_int64_t offset;
    int r;
    while ((r = archive_read_data_block(u->archive, &data, &len, &offset)) == ARCHIVE_OK) {
        if (offset < 0 || (uint64_t)offset > size || len > size - (uint64_t)offset)
            return fail(u, -EBADMSG, u->path, "more data than it has by its size");
        for (size_t at = 0; at < len;) {
            size_t n = len - at < WIRE_TREE_VALUE_MAX ? len - at : WIRE_TREE_VALUE_MAX;
            const struct wire_tree_item item = {.kind = WIRE_ITEM_DATA,
                                                .offset = (uint64_t)offset + at,
                                                .value = bytes_of((const uint8_t *)data + at, n)};
            int e = sent(u, tree_batch_add(&u->batch, &item));
            if (e < 0)
                return e;
            at += n;
        }
    }
    return r == ARCHIVE_EOF ? 0 : fail_archive(u);
}

static int send_entry(struct unpacking *u, struct archive_entry *entry)
{
    const char *path = archive_entry_pathname(entry);
    const char *link = archive_entry_hardlink(entry);
    path = path ? path : archive_entry_pathname_utf8(entry);
    link = link ? link : archive_entry_hardlink_utf8(entry);
    if (!path)
        return failure_set(u->failure, -EBADMSG, "the archive has an entry without a name");
    int r = normalise(u, path, u->path);
    if (r < 0)
        return r;
    struct wire_tree_item item = {.kind = kind_of(entry),
                                  .mode = (uint32_t)archive_entry_perm(entry) & 07777,
                                  .uid = (uint32_t)archive_entry_uid(entry),
                                  .gid = (uint32_t)archive_entry_gid(entry),
                                  .path = bytes_of_string(u->path)};
    if (item.kind == 0) {
        u->counts.skipped++;
        return 0;
    }
    long nsec = archive_entry_mtime_nsec(entry);
    item.mtime = (struct wire_time){.sec = archive_entry_mtime(entry),
                                    .nsec = nsec >= 0 && nsec < 1000000000 ? (uint32_t)nsec : 0};
    if (item.kind == WIRE_ITEM_HARD_LINK) {
        r = normalise(u, link, u->link);
        item.value = bytes_of_string(u->link);
    } else if (item.kind == WIRE_ITEM_SYMLINK) {
        const char *text = archive_entry_symlink(entry);
        text = text ? text : archive_entry_symlink_utf8(entry);
        item.value = bytes_of_string(text);
        if (item.value.len == 0 || item.value.len > WIRE_TREE_PATH_MAX)
            return fail(u, -EBADMSG, u->path, "a symbolic link without a text that can be one");
    } else if (item.kind == WIRE_ITEM_FILE) {
        la_int64_t size = archive_entry_size(entry);
        if (size < 0)
            return fail(u, -EBADMSG, u->path, "a size that is none");
        item.size = (uint64_t)size;
        u->counts.size += item.size;
        if (u->source->max_size && u->counts.size > u->source->max_size)
            return fail(u, -E2BIG, u->path, "the archive unpacks to more than it may");
    }
    if (r < 0)
        return r;
    u->counts.entries++;
    r = sent(u, tree_batch_add(&u->batch, &item));
    if (r == 0 && (item.kind == WIRE_ITEM_FILE || item.kind == WIRE_ITEM_DIRECTORY))
        r = send_xattrs(u, entry);
    return r == 0 && item.kind == WIRE_ITEM_FILE && item.size > 0 ? send_data(u, item.size) : r;
}

/* Up to where gzip's checksum has been looked at. */
static int read_rest(struct unpacking *u)
{
    const void *data;
    ssize_t n;
    size_t rest = 0;
    while (gunzip_is_packed(u->gunzip) && (n = gunzip_read(u->gunzip, &data)) != 0) {
        if (n < 0) {
            u->read_error = (int)n;
            return fail_archive(u);
        }
        rest += (size_t)n;
        if (rest > REST_MAX)
            return failure_set(u->failure, -EBADMSG, "the archive goes on behind its end");
    }
    return 0;
}

int unpack_run(const struct unpack_source *source, const struct tree_sink *sink,
               struct unpack_counts *ret, struct failure *ret_failure)
{
    _cleanup_(unpacking_release) struct unpacking u = {
        .source = source, .batch.sink = *sink, .failure = ret_failure};
    struct archive_entry *entry;
    u.archive = archive_read_new();
    if (!u.archive || archive_read_support_format_tar(u.archive) != ARCHIVE_OK ||
        gunzip_new(source, &u.gunzip) < 0 ||
        archive_read_support_filter_zstd(u.archive) != ARCHIVE_OK)
        return failure_set(ret_failure, -ENOMEM, "out of memory");
    /* Names are bytes. */
    (void)archive_read_set_options(u.archive, "hdrcharset=BINARY");
    if (archive_read_open(u.archive, &u, NULL, on_read, NULL) != ARCHIVE_OK)
        return fail_archive(&u);
    int r;
    while ((r = archive_read_next_header(u.archive, &entry)) == ARCHIVE_OK || r == ARCHIVE_WARN) {
        int e = send_entry(&u, entry);
        if (e < 0)
            return e;
    }
    if (r != ARCHIVE_EOF)
        return fail_archive(&u);
    /* The end has a block of its own, which is read then: without it the rest may be missing. */
    if (archive_filter_bytes(u.archive, 0) <= archive_read_header_position(u.archive))
        return failure_set(ret_failure, -EBADMSG, "the archive is cut: it has no end");
    r = read_rest(&u);
    if (r == 0)
        r = sent(&u, tree_batch_flush(&u.batch));
    if (r == 0)
        *ret = u.counts;
    return r;
}

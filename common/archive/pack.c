#include "archive/pack.h"

#include <archive.h>
#include <archive_entry.h>
#include <locale.h>
#include <pthread.h>
#include <string.h>
#include <sys/stat.h>

/* Bytes given to the sink at a time; a tape's block is of no use to anybody here. */
#define BLOCK 65536

/* What the library thinks that names are in. It makes UTF-8 of them, as pax has it; what is none it
 * leaves as it is, and says so in the header (hdrcharset, which not every tar knows). In the "C"
 * locale that is all that is not ASCII. */
static locale_t names_locale;

static void find_locale(void)
{
    names_locale = newlocale(LC_CTYPE_MASK, "C.UTF-8", (locale_t)0);
    if (!names_locale)
        names_locale = newlocale(LC_CTYPE_MASK, "C", (locale_t)0);
}

void pack_prepare(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, find_locale);
}

struct pack {
    struct pack_sink sink;
    struct archive *archive;
    struct archive_entry *entry; /* its header is written when its attributes have come */
    bool pending;
    uint64_t size, written; /* of the file that is being written */
    struct pack_counts counts;
    int write_error;
    bool dropped; /* nothing is written any more */
};

void pack_free(struct pack *p)
{
    if (p->entry)
        archive_entry_free(p->entry);
    if (p->archive) {
        /* What was not finished is not to look as if it was. The library's own way to say that
         * leaks. */
        p->dropped = true;
        (void)archive_write_free(p->archive);
    }
    free(p);
}

static la_ssize_t on_write(struct archive *archive, void *context, const void *data, size_t len)
{
    struct pack *p = context;
    int r = p->dropped ? 0 : p->sink.write(p->sink.context, data, len);
    if (r == 0)
        return (la_ssize_t)len;
    p->write_error = r;
    archive_set_error(archive, -r, "%s", strerror(-r));
    return -1;
}

static int add_filter(struct archive *archive, enum pack_compression compression)
{
    switch (compression) {
    case PACK_PLAIN:
        return ARCHIVE_OK;
    case PACK_ZSTD:
        return archive_write_add_filter_zstd(archive);
    case PACK_GZIP:
        return archive_write_add_filter_gzip(archive);
    }
    return ARCHIVE_FATAL;
}

int pack_new(enum pack_compression compression, const struct pack_sink *sink, struct pack **ret)
{
    _cleanup_pack_ struct pack *p = calloc(1, sizeof *p);
    if (!p)
        return -ENOMEM;
    p->sink = *sink;
    pack_prepare();
    p->archive = archive_write_new();
    p->entry = archive_entry_new();
    if (!p->archive || !p->entry || archive_write_set_format_pax(p->archive) != ARCHIVE_OK ||
        add_filter(p->archive, compression) != ARCHIVE_OK ||
        archive_write_set_bytes_per_block(p->archive, BLOCK) != ARCHIVE_OK ||
        archive_write_set_bytes_in_last_block(p->archive, 1) != ARCHIVE_OK ||
        archive_write_open(p->archive, p, NULL, on_write, NULL) != ARCHIVE_OK)
        return -ENOMEM;
    *ret = take_ptr(p);
    return 0;
}

static int fail(const struct pack *p, struct failure *f)
{
    if (p->write_error < 0)
        return failure_set(f, p->write_error, "cannot write the archive: %s",
                           strerror(-p->write_error));
    const char *text = archive_error_string(p->archive);
    return failure_set(f, archive_errno(p->archive) == ENOMEM ? -ENOMEM : -EBADMSG,
                       "cannot write the archive: %s", text ? text : "out of memory");
}

static int write_header(struct pack *p, struct failure *f)
{
    if (!p->pending)
        return 0;
    p->pending = false;
    locale_t before = uselocale(names_locale);
    int r = archive_write_header(p->archive, p->entry);
    (void)uselocale(before);
    return r < ARCHIVE_WARN ? fail(p, f) : 0;
}

/* Up to there the file has zeros. */
static int write_zeros(struct pack *p, uint64_t until, struct failure *f)
{
    static const uint8_t zeros[BLOCK];
    while (p->written < until) {
        size_t n = until - p->written < sizeof zeros ? (size_t)(until - p->written) : sizeof zeros;
        la_ssize_t done = archive_write_data(p->archive, zeros, n);
        if (done <= 0)
            return fail(p, f);
        p->written += (uint64_t)done;
    }
    return 0;
}

static int end_entry(struct pack *p, struct failure *f)
{
    int r = write_header(p, f);
    if (r == 0)
        r = write_zeros(p, p->size, f);
    p->size = p->written = 0;
    return r;
}

static int copy_text(struct bytes text, char ret[WIRE_TREE_PATH_MAX + 1])
{
    if (text.len > WIRE_TREE_PATH_MAX || memchr(text.data, '\0', text.len))
        return -EBADMSG;
    memcpy(ret, text.data, text.len);
    ret[text.len] = '\0';
    return 0;
}

/* Of halves of UTF-16 pairs, each in three bytes, the library would make the one character. Names
 * are bytes: a group that is no text makes it leave all of the header as it is. Nobody has that
 * group; its number counts. */
static void keep_bytes(struct archive_entry *entry, const char *name)
{
    for (const char *at = name; (at = strchr(at, 0xed)); at++)
        if ((uint8_t)at[1] >= 0xa0)
            archive_entry_copy_gname(entry, "\xff");
}

static int begin_entry(struct pack *p, const struct wire_tree_item *item, struct failure *f)
{
    static const mode_t types[] = {[WIRE_ITEM_DIRECTORY] = S_IFDIR,
                                   [WIRE_ITEM_FILE] = S_IFREG,
                                   [WIRE_ITEM_SYMLINK] = S_IFLNK,
                                   [WIRE_ITEM_HARD_LINK] = S_IFREG,
                                   [WIRE_ITEM_FIFO] = S_IFIFO};
    char path[WIRE_TREE_PATH_MAX + 1], text[WIRE_TREE_PATH_MAX + 1];
    int r = end_entry(p, f);
    if (r < 0)
        return r;
    if (copy_text(item->path, path) < 0)
        return failure_set(f, -EBADMSG, "what came is no tree");
    struct archive_entry *entry = archive_entry_clear(p->entry);
    archive_entry_copy_pathname(entry, path[0] ? path : ".");
    keep_bytes(entry, path);
    archive_entry_set_mode(entry, types[item->kind] | (item->mode & 07777));
    archive_entry_set_uid(entry, item->uid);
    archive_entry_set_gid(entry, item->gid);
    archive_entry_set_mtime(entry, item->mtime.sec, (long)item->mtime.nsec);
    if (item->kind == WIRE_ITEM_SYMLINK || item->kind == WIRE_ITEM_HARD_LINK) {
        if (copy_text(item->value, text) < 0)
            return failure_set(f, -EBADMSG, "what came is no tree");
        keep_bytes(entry, text);
        if (item->kind == WIRE_ITEM_SYMLINK)
            archive_entry_copy_symlink(entry, text);
        else
            archive_entry_copy_hardlink(entry, text);
    }
    archive_entry_set_size(entry, 0);
    if (item->kind == WIRE_ITEM_FILE) {
        if (item->size > INT64_MAX)
            return failure_set(f, -EBADMSG, "what came is no tree");
        archive_entry_set_size(entry, (la_int64_t)item->size);
        p->size = item->size;
        p->counts.size += item->size;
    }
    p->pending = true;
    p->counts.entries++;
    return 0;
}

static int add_data(struct pack *p, const struct wire_tree_item *item, struct failure *f)
{
    if (item->offset < p->written || item->offset > p->size ||
        item->value.len > p->size - item->offset)
        return failure_set(f, -EBADMSG, "what came is no tree");
    int r = write_header(p, f);
    if (r == 0)
        r = write_zeros(p, item->offset, f);
    for (size_t at = 0; r == 0 && at < item->value.len;) {
        la_ssize_t n = archive_write_data(p->archive, item->value.data + at, item->value.len - at);
        if (n <= 0)
            return fail(p, f);
        at += (size_t)n;
        p->written += (uint64_t)n;
    }
    return r;
}

static int add_item(struct pack *p, const struct wire_tree_item *item, struct failure *f)
{
    char name[WIRE_TREE_PATH_MAX + 1];
    if (item->kind >= WIRE_ITEM_DIRECTORY && item->kind <= WIRE_ITEM_FIFO)
        return begin_entry(p, item, f);
    if (item->kind == WIRE_ITEM_DATA)
        return add_data(p, item, f);
    if (item->kind != WIRE_ITEM_XATTR || !p->pending || copy_text(item->path, name) < 0)
        return failure_set(f, -EBADMSG, "what came is no tree");
    archive_entry_xattr_add_entry(p->entry, name, item->value.data, item->value.len);
    return 0;
}

int pack_list(struct pack *p, const struct wire_list *items, struct failure *ret_failure)
{
    struct bytes element;
    uint32_t offset = 0;
    int r = 0;
    while (r == 0 && wire_list_next(items, &offset, &element)) {
        struct wire_message m;
        if (wire_decode(WIRE_TREE_ITEM, element, &m) < 0)
            return failure_set(ret_failure, -EBADMSG, "what came is no tree");
        r = add_item(p, &m.tree_item, ret_failure);
    }
    return r;
}

int pack_finish(struct pack *p, struct pack_counts *ret, struct failure *ret_failure)
{
    int r = end_entry(p, ret_failure);
    if (r < 0)
        return r;
    if (archive_write_close(p->archive) != ARCHIVE_OK)
        return fail(p, ret_failure);
    *ret = p->counts;
    return 0;
}

struct pack_counts pack_counts(const struct pack *p)
{
    return p->counts;
}

/* Routes of files' content: GET and PUT /v1/workspaces/{id}/files/{path}. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>

#include "gateway/conditions.h"
#include "gateway/file.h"
#include "gateway/files.h"
#include "gateway/routes.h"

/* Never what the bytes may look like: they are an agent's, and a browser would run them as ours. */
#define CONTENT_TYPE "application/octet-stream"

#define FILE_MODE 0644

/* --- reading --------------------------------------------------------------------------------- */

struct download {
    struct exchange *x;
    struct file_reader *reader;
    struct failure *failure;
    uint64_t size;
    char tag[FILE_TAG_SIZE];
    time_t modified;
    const char *match, *none; /* If-Match, If-None-Match; or NULL */
};

static int sent(struct download *d, int r)
{
    return r < 0 ? failure_set(d->failure, r, "%s", strerror(-r)) : 0;
}

static int send_range(struct download *d, uint64_t from, uint64_t length)
{
    struct bytes data;
    int r;
    file_seek(d->reader, from, length);
    while ((r = file_next(d->reader, &data, d->failure)) > 0) {
        r = sent(d, exchange_write(d->x, data.data, data.len));
        if (r < 0)
            return r;
    }
    return r;
}

static int send_whole(struct download *d)
{
    int r = sent(d, exchange_begin(d->x, 200, CONTENT_TYPE, d->size));
    return r < 0 || exchange_is_head(d->x) ? r : send_range(d, 0, d->size);
}

static int send_part(struct download *d, const struct conditions_range *range)
{
    int r = exchange_add_field(d->x, "Content-Range", "bytes %" PRIu64 "-%" PRIu64 "/%" PRIu64,
                               range->from, range->from + range->length - 1, d->size);
    if (r == 0)
        r = exchange_begin(d->x, 206, CONTENT_TYPE, range->length);
    return sent(d, r) < 0 ? r : send_range(d, range->from, range->length);
}

static int part_head(struct buffer *b, const char *boundary, const struct conditions_range *range,
                     uint64_t size)
{
    return buffer_printf(b,
                         "\r\n--%s\r\nContent-Type: " CONTENT_TYPE
                         "\r\nContent-Range: bytes %" PRIu64 "-%" PRIu64 "/%" PRIu64 "\r\n\r\n",
                         boundary, range->from, range->from + range->length - 1, size);
}

/* multipart/byteranges */
static int send_parts(struct download *d, const struct conditions_range *ranges, int count)
{
    _cleanup_buffer_ struct buffer head = {0};
    uint64_t random[2], total = 0;
    char boundary[48], type[96];
    if (getrandom(random, sizeof random, 0) != sizeof random)
        return failure_set(d->failure, -EIO, "no random number");
    /* Which no file can hold on purpose. */
    (void)snprintf(boundary, sizeof boundary, "%016" PRIx64 "%016" PRIx64, random[0], random[1]);
    (void)snprintf(type, sizeof type, "multipart/byteranges; boundary=%s", boundary);
    int r = 0;
    for (int i = 0; r == 0 && i < count; i++) {
        r = part_head(&head, boundary, &ranges[i], d->size);
        total += ranges[i].length;
    }
    total += head.len + strlen(boundary) + 8; /* CRLF, the dashes, CRLF */
    if (r == 0)
        r = exchange_begin(d->x, 206, type, total);
    for (int i = 0; r == 0 && i < count; i++) {
        head.len = 0;
        r = part_head(&head, boundary, &ranges[i], d->size);
        if (r == 0)
            r = exchange_write(d->x, head.data, head.len);
        if (r == 0 && send_range(d, ranges[i].from, ranges[i].length) < 0)
            return d->failure->error;
    }
    head.len = 0;
    if (r == 0)
        r = buffer_printf(&head, "\r\n--%s--\r\n", boundary);
    if (r == 0)
        r = exchange_write(d->x, head.data, head.len);
    return sent(d, r);
}

/* RFC 9110 13.2.2: the status to answer with instead of the content, or 0. */
static int precondition(const struct download *d)
{
    const char *match = d->match;
    const char *none = d->none;
    const char *since = exchange_field(d->x, "if-modified-since");
    const char *unmodified = exchange_field(d->x, "if-unmodified-since");
    time_t date;
    if (match ? !conditions_tag_listed(match, d->tag, true)
              : unmodified && conditions_date(unmodified, &date) && d->modified > date)
        return 412;
    if (none ? conditions_tag_listed(none, d->tag, false)
             : since && conditions_date(since, &date) && d->modified <= date)
        return 304;
    return 0;
}

/* An If-Range that does not hold makes the answer the whole file. A date is no strong validator
 * here, where files change more often than once a second. */
static const char *range_field(const struct download *d)
{
    const char *condition = exchange_field(d->x, "if-range");
    if (condition && strcmp(condition, d->tag) != 0)
        return NULL;
    return exchange_field(d->x, "range");
}

static int answer(struct download *d)
{
    struct conditions_range ranges[CONDITIONS_RANGES_MAX];
    char date[CONDITIONS_DATE_SIZE];
    conditions_print_date(d->modified, date);
    int status = precondition(d);
    if (status == 412)
        return exchange_refuse(d->x, 412, "the file is not what the condition says");
    int r = exchange_add_field(d->x, "ETag", "%s", d->tag);
    if (r == 0)
        r = exchange_add_field(d->x, "Last-Modified", "%s", date);
    if (r == 0)
        r = exchange_add_field(d->x, "Accept-Ranges", "bytes");
    if (r == 0)
        r = exchange_add_field(d->x, "Cache-Control", "no-cache");
    if (r == 0)
        r = exchange_add_field(d->x, "X-Content-Type-Options", "nosniff");
    if (r < 0)
        return sent(d, r);
    if (status == 304)
        return exchange_reply_empty(d->x, 304);
    const char *range = exchange_is_head(d->x) ? NULL : range_field(d);
    int count = range ? conditions_ranges(range, d->size, ranges) : -1;
    if (count == 0) {
        r = exchange_add_field(d->x, "Content-Range", "bytes */%" PRIu64, d->size);
        return r < 0 ? sent(d, r)
                     : exchange_refuse(d->x, 416, "the file has %" PRIu64 " bytes", d->size);
    }
    return count < 0    ? send_whole(d)
           : count == 1 ? send_part(d, ranges)
                        : send_parts(d, ranges, count);
}

int content_read(struct exchange *x, struct failure *f)
{
    _cleanup_tree_ struct tree *t = NULL;
    _cleanup_place_ struct place p = {0};
    _cleanup_reader_ struct file_reader *reader = NULL;
    struct download d = {.x = x, .failure = f};
    int r = exchange_tags(x, "if-match", &d.match, f);
    if (r == 0)
        r = exchange_tags(x, "if-none-match", &d.none, f);
    if (r == 0)
        r = files_open(x, &t, f);
    if (r == 0)
        r = file_walk_reader(t, exchange_param(x, 1), &p, &reader, f);
    if (r < 0)
        return r;
    const struct wire_attr *attr = file_attr(reader);
    d.reader = reader;
    d.size = attr->size;
    d.modified = attr->mtime.sec;
    file_tag(attr, d.tag);
    return answer(&d);
}

/* --- writing --------------------------------------------------------------------------------- */

static int receive(struct exchange *x, struct file_writer *w, struct failure *f)
{
    struct bytes data;
    int r;
    while ((r = exchange_next(x, &data, f)) > 0) {
        r = file_write(w, data, f);
        if (r < 0)
            return r;
    }
    return r;
}

static int query_mode(struct exchange *x, uint32_t *ret, struct failure *f)
{
    const char *text = exchange_query(x, "mode");
    char *end;
    if (!text)
        return 0;
    unsigned long mode = strtoul(text, &end, 8);
    if (!*text || *end || mode > 0777)
        return failure_set(f, -EINVAL, "mode is an octal number up to 0777");
    *ret = (uint32_t)mode;
    return 0;
}

static int write_options(struct exchange *x, struct file_write_options *o, bool *parents,
                         struct failure *f)
{
    int r = query_mode(x, &o->mode, f);
    if (r == 0)
        r = files_query_flag(x, "append", &o->append, f);
    if (r == 0)
        r = files_query_flag(x, "parents", parents, f);
    /* RFC 9110 14.4: of a part that is put nobody knows what is with the rest. */
    if (r == 0 && exchange_field(x, "content-range"))
        r = failure_set(f, -EINVAL, "a part of a file cannot be put");
    return r;
}

static int put(struct exchange *x, struct tree *t, const struct place *p,
               const struct file_write_options *options, struct failure *f)
{
    _cleanup_writer_ struct file_writer *w = NULL;
    struct wire_attr attr;
    char tag[FILE_TAG_SIZE];
    bool made, placed = false;
    int r = file_create(t, p, options, &w, f);
    if (r < 0)
        return r;
    if (options->append)
        exchange_set_effect(x, EXCHANGE_EFFECT_UNKNOWN);
    r = receive(x, w, f);
    if (r < 0)
        return r;
    r = file_commit(w, &attr, &made, &placed, f);
    if (placed)
        exchange_set_effect(x, r < 0 ? EXCHANGE_EFFECT_UNKNOWN : EXCHANGE_EFFECT_DONE);
    if (r < 0)
        return r;
    file_tag(&attr, tag);
    r = exchange_add_field(x, "ETag", "%s", tag);
    if (r < 0)
        return failure_set(f, r, "%s", strerror(-r));
    return exchange_reply_json(
        x, made ? 201 : 200,
        files_entry_json(bytes_of_string(p->name), buffer_view(&p->path), &attr, NULL));
}

int content_write(struct exchange *x, struct failure *f)
{
    _cleanup_tree_ struct tree *t = NULL;
    _cleanup_place_ struct place p = {0};
    struct files_condition condition;
    struct file_write_options options = {.mode = FILE_MODE};
    bool parents = false;
    int r = write_options(x, &options, &parents, f);
    if (r == 0)
        r = files_condition(x, &condition, &options.condition, f);
    if (r == 0)
        r = files_open(x, &t, f);
    if (r == 0)
        r = files_place(x, t, PATH_FOLLOW | PATH_MAY_LACK | (parents ? PATH_MAKE_PARENTS : 0), &p,
                        f);
    if (t && tree_has_made(t))
        exchange_set_effect(x, EXCHANGE_EFFECT_UNKNOWN);
    return r < 0 ? r : put(x, t, &p, &options, f);
}

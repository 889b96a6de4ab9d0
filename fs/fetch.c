#include "fetch.h"

#include "coherence.h"
#include "disk.h"
#include "ops.h"
#include "prefetch.h"

/* Of one answer. Whatever comes behind it waits for so much. */
#define ANSWER_MAX WIRE_CHUNK_MAX

struct fetch {
    struct driver *driver;
    struct buffer nodes; /* elements of the message's list */
    size_t bytes;
    uint32_t count;
    uint64_t walk; /* 0: somebody waits */
    bool no_atime;
    struct content *files[WIRE_FILES_MAX]; /* each pinned */
};

int fetch_new(struct driver *d, uint64_t walk, bool no_atime, struct fetch **ret)
{
    struct fetch *f = calloc(1, sizeof *f);
    if (!f)
        return -ENOMEM;
    f->driver = d;
    f->walk = walk;
    f->no_atime = no_atime;
    *ret = f;
    return 0;
}

size_t fetch_bytes(const struct fetch *f)
{
    return f->bytes;
}

int fetch_add(struct fetch *f, uint64_t node, uint64_t ino, uint64_t generation, uint64_t size,
              struct content **ret)
{
    uint8_t number[8];
    if (f->count == WIRE_FILES_MAX || (f->count && f->bytes + size > ANSWER_MAX))
        return -ENOSPC;
    for (size_t i = 0; i < sizeof number; i++)
        number[i] = (uint8_t)(node >> (8 * i));
    int r = wire_list_append(&f->nodes, bytes_of(number, sizeof number));
    if (r < 0)
        return r;
    struct content *c;
    r = content_ask(&f->driver->inodes, ino, generation, f->walk != 0, &c);
    if (r < 0) {
        f->nodes.len -= 4 + sizeof number;
        return r;
    }
    c->size = (uint32_t)size;
    c->walk = f->walk;
    f->files[f->count++] = c;
    f->bytes += size;
    *ret = c;
    return 0;
}

static void open_waiters(struct driver *d, struct content *c, bool here)
{
    struct request *next;
    for (struct request *r = take_ptr(c->waiters); r; r = next) {
        next = r->next;
        r->next = NULL;
        open_fetched(r, here ? c : NULL);
    }
    content_unpin(&d->inodes, c);
}

static void file_answered(struct fetch *f, struct content *c, const struct wire_file *file)
{
    struct driver *d = f->driver;
    d->stats.content_received += file ? file->data.len : 0;
    bool here = content_take(&d->inodes, c, file, coherence_live(d));
    if (here && c->settled && !c->ends) {
        const struct disk_key key = disk_key_of(&c->attr);
        disk_put(d->disk, &key, file->data);
    }
    open_waiters(d, c, here);
}

static void fetch_end(struct fetch *f)
{
    if (f->walk)
        prefetch_answered(f->driver, f->walk, f->bytes);
    buffer_release(&f->nodes);
    free(f);
}

static void answered(struct request *q, int error, const struct wire_message *reply)
{
    struct fetch *f = q->context;
    struct wire_list files = error == 0 ? reply->files.files : (struct wire_list){0};
    uint32_t offset = 0;
    struct bytes element;
    for (uint32_t i = 0; i < f->count; i++) {
        struct wire_message m;
        bool came =
            wire_list_next(&files, &offset, &element) && wire_decode(WIRE_FILE, element, &m) == 0;
        file_answered(f, f->files[i], came ? &m.file : NULL);
    }
    request_free(q);
    fetch_end(f);
}

void fetch_send(struct fetch *f)
{
    struct driver *d = f->driver;
    struct request *q;
    if (!f->count) {
        buffer_release(&f->nodes);
        free(f);
        return;
    }
    if (request_new(d, NULL, WIRE_READFILES, NULL, NULL, &q) < 0) {
        for (uint32_t i = 0; i < f->count; i++)
            file_answered(f, f->files[i], NULL);
        fetch_end(f);
        return;
    }
    q->context = f;
    q->quiet = f->walk != 0;
    q->once = true;
    q->connection = d->inodes.connection;
    q->message.readfiles =
        (struct wire_readfiles){.size = ANSWER_MAX,
                                .flags = (f->no_atime ? (uint32_t)WIRE_READFILES_NO_ATIME : 0) |
                                         (f->walk ? (uint32_t)WIRE_READFILES_ENDS : 0),
                                .files = wire_list_of(&f->nodes, f->count)};
    request_send(q, answered);
}

/* --- from disk -------------------------------------------------------------------------- */

struct disk_read {
    struct driver *driver;
    struct content *content; /* pinned */
    struct wire_attr attr;
};

static void disk_answered(void *context, const struct bytes *data)
{
    struct disk_read *q = context;
    struct driver *d = q->driver;
    struct content *c = q->content;
    struct wire_file file = {.flags = WIRE_FILE_SETTLED, .attr = q->attr};
    file.data = data ? *data : file.data;
    free(q);
    bool here = content_take(&d->inodes, c, data ? &file : NULL, coherence_knows(d));
    if (data || d->stopping) {
        open_waiters(d, c, here);
        return;
    }
    /* It was damaged, or is gone: the service has it. */
    struct request *r = take_ptr(c->waiters), *next;
    content_unpin(&d->inodes, c);
    for (; r; r = next) {
        next = r->next;
        r->next = NULL;
        open_start(r);
    }
}

bool fetch_from_disk(struct driver *d, const struct wire_attr *attr, struct content **ret)
{
    if (!d->disk)
        return false;
    const struct disk_key key = disk_key_of(attr);
    if (!disk_has(d->disk, &key))
        return false;
    struct disk_read *q = malloc(sizeof *q);
    struct content *c;
    if (!q || content_ask(&d->inodes, attr->ino, attr->generation, false, &c) < 0) {
        free(q);
        return false;
    }
    *q = (struct disk_read){.driver = d, .content = c, .attr = *attr};
    if (disk_get(d->disk, &key, disk_answered, q) < 0) {
        (void)content_take(&d->inodes, c, NULL, false);
        content_unpin(&d->inodes, c);
        free(q);
        return false;
    }
    *ret = c;
    return true;
}

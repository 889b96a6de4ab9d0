#include "sequence.h"

#include <sys/stat.h>

#include "coherence.h"
#include "ops.h"
#include "pipeline.h"

/* Reads in a row after which more is expected. */
#define ROW_MIN 3

struct part {
    struct part *next;
    struct request *waiters;
    uint64_t offset;
    uint64_t stamp; /* inode_table.stamp when it was asked for */
    uint32_t size;  /* as asked for */
    bool here;
    bool dropped;             /* and so freed when it is answered */
    struct wire_frame *frame; /* the answer; NULL: not here, or it failed */
};

struct sequence {
    struct part *first, **last;
    uint64_t next; /* where the next READ is expected */
    uint64_t end;  /* of what was asked for */
    size_t window;
    size_t *bytes; /* of all streams */
    unsigned row;
};

static void part_free(struct sequence *s, struct part *p)
{
    *s->bytes -= p->size;
    wire_frame_free(p->frame);
    free(p);
}

static void drop_first(struct sequence *s)
{
    struct part *p = s->first;
    s->first = p->next;
    if (!s->first)
        s->last = &s->first;
    p->dropped = true;
    if (p->here)
        part_free(s, p);
}

static void drop_all(struct sequence *s)
{
    while (s->first)
        drop_first(s);
    s->window = 2 * SEQUENCE_PART;
    s->row = 0;
}

void sequence_free(struct sequence *s)
{
    if (!s)
        return;
    drop_all(s);
    free(s);
}

static bool is_right(const struct driver *d, const struct inode *i, uint64_t stamp)
{
    return coherence_live(d) && (i->flags & INODE_CACHED) && i->stamp <= stamp &&
           d->inodes.tree.lost_stamp <= stamp;
}

static void reply_part(struct request *r, const struct part *p)
{
    struct bytes data = p->frame->message.data.data;
    size_t from = (size_t)(r->offset - p->offset);
    size_t left = from < data.len ? data.len - from : 0;
    read_answer(r, bytes_of(data.data + (left ? from : 0), left));
}

static void part_answered(struct request *q, int error, const struct wire_message *reply)
{
    struct driver *d = q->driver;
    struct part *p = q->context;
    struct request *next, *r = take_ptr(p->waiters);
    p->here = true;
    if (error == 0 && reply->data.data.len <= p->size) {
        p->frame = client_take_frame(driver_session(d));
        p->stamp = q->stamp;
    } else {
        p->stamp = 0; /* never right: whoever wants it asks himself, and is told why */
    }
    bool right = p->stamp && is_right(d, q->handle->inode, p->stamp);
    for (; r; r = next) {
        next = r->next;
        r->next = NULL;
        if (right)
            reply_part(r, p);
        else
            read_at_service(r);
    }
    if (p->dropped)
        part_free(q->handle->sequence, p);
    request_free(q);
}

/* Asks for one part more. */
static bool ask(struct request *r)
{
    struct driver *d = r->driver;
    struct handle *h = r->handle;
    struct sequence *s = h->sequence;
    struct request *q;
    struct part *p = malloc(sizeof *p);
    if (!p || request_new(d, NULL, WIRE_READ, NULL, NULL, &q) < 0) {
        free(p);
        return false;
    }
    *p = (struct part){.offset = s->end, .size = SEQUENCE_PART};
    *s->last = p;
    s->last = &p->next;
    *s->bytes += p->size;
    s->end += p->size;
    q->context = p;
    q->handle = handle_pin(h);
    q->quiet = true;
    q->message.read.offset = p->offset;
    q->message.read.size = p->size;
    request_send(q, part_answered);
    return true;
}

/* Where what is to be asked for ends: the end of the file may be here. */
static uint64_t end_of(const struct handle *h)
{
    return h->content && h->content->ends && !h->doubtful ? h->size - WIRE_FILE_TAIL : h->size;
}

static void ask_more(struct request *r)
{
    struct sequence *s = r->handle->sequence;
    while (s->row >= ROW_MIN && s->end < s->next + s->window && s->end < end_of(r->handle) &&
           *s->bytes + SEQUENCE_PART <= SEQUENCE_MEMORY_MAX && ask(r))
        ;
}

static struct sequence *sequence_of(struct request *r)
{
    struct handle *h = r->handle;
    if (!h->sequence)
        h->sequence = calloc(1, sizeof *h->sequence);
    if (h->sequence && !h->sequence->bytes) {
        h->sequence->bytes = &r->driver->sequence_bytes;
        h->sequence->last = &h->sequence->first;
        h->sequence->window = 2 * SEQUENCE_PART;
    }
    return h->sequence;
}

/* One more in the row, or the first of another. NULL: nothing is read ahead. */
static struct sequence *step(struct request *r)
{
    struct driver *d = r->driver;
    struct inode *i = r->handle->inode;
    struct sequence *s = r->handle->size > WIRE_FILE_MAX ? sequence_of(r) : NULL;
    if (!s)
        return NULL;
    if (r->offset != s->next || !is_right(d, i, d->inodes.stamp) || pipeline_pending(d, i))
        drop_all(s);
    s->row++;
    s->next = r->offset + r->size;
    return s;
}

void sequence_begin(struct request *r)
{
    struct sequence *s = step(r);
    if (!s)
        return;
    if (!s->first)
        s->end = s->next;
    ask_more(r);
}

bool sequence_read(struct request *r)
{
    struct driver *d = r->driver;
    struct handle *h = r->handle;
    struct sequence *s = step(r);
    if (!s)
        return false;
    uint64_t end = s->next;
    while (s->first && s->first->offset + s->first->size <= r->offset)
        drop_first(s);
    struct part *p = s->first;
    bool covered = p && p->offset <= r->offset && end <= p->offset + p->size;
    if ((p && !covered) || (covered && p->here && !is_right(d, h->inode, p->stamp))) {
        drop_all(s);
        p = NULL;
    }
    if (!p)
        s->end = end;
    else if (end == p->offset + p->size && s->window < SEQUENCE_WINDOW_MAX)
        s->window *= 2;
    ask_more(r);
    if (!p)
        return false;
    if (p->here) {
        reply_part(r, p);
    } else {
        r->next = p->waiters;
        p->waiters = r;
    }
    return true;
}

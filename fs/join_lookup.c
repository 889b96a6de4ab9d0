/* Looking a workspace up in a joined mount. */
#include "join_private.h"

#include "base/log.h"
#include "device.h"
#include "interrupt.h"
#include "names/thread_id.h"
#include "ops.h"

enum answer_state { ANSWER_NONE, ANSWER_ASKED, ANSWER_HAS, ANSWER_LACKS };

struct search;

struct answer {
    struct search *search;
    struct member *member;
    enum answer_state state;
    bool known; /* it is known to have had the name: its answer is waited for */
    bool taken; /* the reference on the workspace's node */
    int error;
    uint32_t connection;
    uint64_t node, stamp;
    struct wire_attr attr;
    struct buffer thread_id;
};

/* One name, asked of several members at once. Freed when it is answered and all have answered. */
struct search {
    struct join *join;
    struct request *asker; /* of the kernel, the hub's; NULL: it has been answered */
    struct event *timer;
    bool late; /* what is not known to have the name is not waited for any more */
    size_t asked, count;
    struct answer answers[];
};

static void search_free(struct search *s)
{
    if (s->asker || s->asked)
        return;
    for (size_t i = 0; i < s->count; i++) {
        struct answer *a = &s->answers[i];
        struct driver *d = &a->member->driver;
        if (a->state == ANSWER_HAS && !a->taken && a->connection == d->inodes.connection) {
            inode_give_back(&d->inodes, a->node, 1);
            driver_notices_pending(d);
        }
        /* A member that has gone is there until nothing of it is used. */
        inode_unpin(&d->inodes, d->inodes.root);
        buffer_release(&a->thread_id);
    }
    event_free(s->timer);
    free(s);
}

static void answer_found(struct search *s, struct answer *a)
{
    struct driver *d = &a->member->driver;
    struct request *asker = take_ptr(s->asker), *r;
    char name[WIRE_NAME_MAX + 1] = "";
    memcpy(name, request_name(asker).data, request_name(asker).len);
    int error = request_new(d, asker->fuse, WIRE_WORKSPACE_OPEN, name, NULL, &r);
    if (error < 0) {
        request_fail(asker, error);
        return;
    }
    interrupt_pass(asker, r);
    asker->fuse = NULL;
    request_free(asker);
    if (a->connection != d->inodes.connection) {
        request_fail(r, -EIO);
        return;
    }
    r->stamp = a->stamp;
    r->connection = a->connection;
    a->taken = true;
    struct inode *i;
    error = inode_enter(&d->inodes, a->node, &a->attr, INODE_WORKSPACE, d->inodes.root,
                        request_name(r), &i);
    if (error == 0) {
        error = driver_note_workspace(d, i, buffer_view(&a->thread_id));
        if (error < 0)
            inode_drop(&d->inodes, i);
    }
    if (error < 0) {
        request_fail(r, error);
        return;
    }
    join_set_owner(s->join, request_name(r), a->member);
    request_reply_entry(r, i, &a->attr);
}

static void decide(struct search *s)
{
    int error = -ENOENT;
    if (!s->asker)
        return;
    for (size_t i = 0; i < s->count; i++) {
        struct answer *a = &s->answers[i];
        if (a->state == ANSWER_HAS) {
            answer_found(s, a);
            return;
        }
        if (a->state == ANSWER_ASKED && (a->known || !s->late))
            return;
        if (a->state == ANSWER_LACKS && a->known && a->error != -ENOENT && error == -ENOENT)
            error = a->error;
    }
    request_fail(take_ptr(s->asker), error);
}

static void answered(struct request *q, int error, const struct wire_message *reply)
{
    struct answer *a = q->context;
    struct search *s = a->search;
    s->asked--;
    a->state = ANSWER_LACKS;
    a->error = error == -EINVAL ? -ENOENT : error;
    if (error == 0) {
        const struct wire_workspace_root *w = &reply->workspace_root;
        struct driver *d = q->driver;
        if (buffer_append(&a->thread_id, w->thread_id.data, w->thread_id.len) < 0) {
            inode_give_back(&d->inodes, w->node, 1);
            a->error = -ENOMEM;
        } else {
            a->state = ANSWER_HAS;
            a->node = w->node;
            a->attr = w->attr;
            a->stamp = q->stamp;
            a->connection = q->connection;
            member_learn_one(a->member, q->message.workspace_open.key,
                             (uint32_t)(w->attr.ino >> 40));
        }
    } else if (a->error == -ENOENT && !a->member->is_place) {
        member_unlearn(a->member, q->message.workspace_open.key);
    }
    request_free(q);
    decide(s);
    search_free(s);
}

static void on_late(evutil_socket_t fd, short what, void *context)
{
    struct search *s = context;
    s->late = true;
    decide(s);
    search_free(s);
}

/* Whether it is worth asking: then it is asked. */
static int ask(struct answer *a, struct bytes key)
{
    struct member *m = a->member;
    char name[WIRE_NAME_MAX + 1] = "";
    struct request *q;
    a->known =
        m->is_place ? bytes_equal(bytes_of_string(m->name), key) : member_knows(m, key) != NULL;
    a->state = ANSWER_LACKS;
    a->error = -ENOENT;
    if (!member_is_there(m) || (m->is_place && !a->known) || (!a->known && !member_answers(m)))
        return 0;
    member_use(m);
    memcpy(name, key.data, key.len);
    int r = request_new(&m->driver, NULL, WIRE_WORKSPACE_OPEN, name, NULL, &q);
    if (r < 0)
        return r;
    q->context = a;
    q->message.workspace_open.flags = WIRE_WORKSPACE_BY_NAME;
    q->message.workspace_open.key = request_name(q);
    a->state = ANSWER_ASKED;
    a->search->asked++;
    request_send(q, answered);
    return 0;
}

/* Takes r, which is the hub's. */
static void search_all(struct join *j, struct request *r)
{
    struct search *s = calloc(1, sizeof *s + j->count * sizeof s->answers[0]);
    if (!s || join_timer(j, on_late, s, &s->timer) < 0) {
        free(s);
        request_fail(r, -ENOMEM);
        return;
    }
    s->join = j;
    s->asker = r;
    s->count = j->count;
    for (size_t i = 0; i < s->count; i++) {
        s->answers[i] = (struct answer){.search = s, .member = j->members[i]};
        (void)inode_pin(j->members[i]->driver.inodes.root);
    }
    /* Not freed by answers that come at once. */
    s->asked++;
    const struct bytes key = request_name(r);
    char name[WIRE_NAME_MAX + 1] = "";
    memcpy(name, key.data, key.len);
    int error = 0;
    for (size_t i = 0; error == 0 && s->asker && i < s->count; i++)
        error = ask(&s->answers[i], bytes_of_string(name));
    s->asked--;
    if (error < 0 && s->asker)
        request_fail(take_ptr(s->asker), error);
    decide(s);
    search_free(s);
}

bool join_missing(struct request *r)
{
    struct driver *d = r->driver;
    struct join *j = d->member->join;
    struct bytes name = request_name(r);
    struct bytes key = join_key(name);
    struct request *again;
    char text[WIRE_NAME_MAX + 1] = "";
    member_unlearn(d->member, key);
    /* Whose it is was said. */
    if (key.len != name.len || !r->fuse || j->stopping)
        return false;
    join_set_owner(j, name, NULL);
    memcpy(text, name.data, name.len);
    if (request_new(j->hub, r->fuse, WIRE_WORKSPACE_OPEN, text, NULL, &again) < 0)
        return false;
    interrupt_pass(r, again);
    r->fuse = NULL;
    request_free(r);
    search_all(j, again);
    return true;
}

static struct member *member_called(const struct join *j, struct bytes name)
{
    for (size_t i = 0; i < j->count; i++) {
        struct member *m = j->members[i];
        if (!m->is_place && bytes_equal(bytes_of_string(m->name), name))
            /* The other one is before it. */
            return m->same ? member_called(j, bytes_of_string(m->same)) : m;
    }
    return NULL;
}

/* Of one member, as on a mount of its own. */
static void lookup_of(struct join *j, struct member *m, fuse_req_t req, const char *name)
{
    member_use(m);
    device_hand_over(j->hub, &m->driver);
    root_lookup(req, name);
}

void join_lookup(struct driver *hub, fuse_req_t req, const char *name)
{
    struct join *j = hub->join;
    struct bytes all = bytes_of_string(name), key = join_key(all);
    uint8_t id[THREAD_ID_MAX];
    if (thread_id_from_name(key, id) == -EINVAL) {
        (void)fuse_reply_err(req, all.len > WIRE_NAME_MAX ? ENAMETOOLONG : ENOENT);
        return;
    }
    if (key.len != all.len) {
        struct member *m =
            member_called(j, bytes_of(all.data + key.len + 1, all.len - key.len - 1));
        if (m && member_is_there(m) && (m->driver.client || member_knows(m, key)))
            lookup_of(j, m, req, name);
        else
            /* ENOTCONN is what programs are told whose mount is dead. */
            (void)fuse_reply_err(req, !m ? ENOENT : EIO);
        return;
    }
    struct member *owner = join_owner(j, all);
    if (owner) {
        lookup_of(j, owner, req, name);
        return;
    }
    struct request *r = request_start(req, WIRE_WORKSPACE_OPEN, name, NULL);
    if (r)
        search_all(j, r);
}

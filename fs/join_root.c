/* What the root of a joined mount lists and tells. */
#include "join_private.h"

#include <jansson.h>

#include "base/log.h"
#include "coherence.h"
#include "ops.h"

/* --- listing ------------------------------------------------------------------------------- */

struct gather;

struct part {
    struct gather *gather;
    struct member *member;
};

/* One listing of all members. Freed when it is answered and all have answered. */
struct gather {
    struct join *join;
    struct request *asker; /* the hub's; NULL: it has been answered */
    struct event *timer;
    size_t asked, count;
    struct part parts[];
};

static void gather_free(struct gather *g)
{
    if (g->asker || g->asked)
        return;
    for (size_t i = 0; i < g->count; i++) {
        struct driver *d = &g->parts[i].member->driver;
        inode_unpin(&d->inodes, d->inodes.root);
    }
    event_free(g->timer);
    free(g);
}

static int add_name(struct workspace_listing *l, const char *name, uint32_t slot)
{
    int r = buffer_reserve(&l->names, strlen(name) + 1);
    if (r == 0)
        r = buffer_reserve(&l->index, 8);
    if (r < 0)
        return r;
    (void)buffer_append_u32(&l->index, (uint32_t)l->names.len);
    (void)buffer_append_u32(&l->index, slot);
    return buffer_append(&l->names, name, strlen(name) + 1);
}

/* A name of a member, as the root shows it. taken: hash -> member that has it plainly. */
static int show(struct gather *g, struct table *taken, struct member *m, const char *name,
                uint32_t slot)
{
    struct join *j = g->join;
    struct workspace_listing *l = g->asker->handle->workspaces;
    uint64_t key = inode_hash_name(&j->hub->inodes, bytes_of_string(name));
    struct member *first = table_get(taken, key);
    uint32_t shown = slot && m->greeted ? (uint32_t)join_slot(m, slot) : 0;
    if (first == m)
        return add_name(l, name, shown);
    char other[WIRE_NAME_MAX + SERVICE_NAME_MAX + 2];
    int len = snprintf(other, sizeof other, "%s@%s", name, m->name);
    /* What is too long can be mounted by itself. A place is known by its name alone. */
    if (m->is_place || len < 0 || len > WIRE_NAME_MAX)
        return 0;
    return add_name(l, other, shown);
}

typedef int name_fn(struct gather *g, struct table *taken, struct member *m, const char *name,
                    uint32_t slot);

/* The first that has a name has it, unless it has led to another, which has it still. */
static int claim(struct gather *g, struct table *taken, struct member *m, const char *name,
                 uint32_t slot)
{
    struct bytes text = bytes_of_string(name);
    uint64_t key = inode_hash_name(&g->join->hub->inodes, text);
    const struct member *owner = join_owner(g->join, text);
    if (!table_get(taken, key) || owner == m)
        return table_put(taken, key, m, NULL);
    return 0;
}

/* What a member has, as it said now or last. */
static int each_name(struct gather *g, struct table *taken, struct member *m, name_fn *fn)
{
    int r = 0;
    if (!member_is_there(m))
        return 0;
    if (m->is_place)
        return fn(g, taken, m, m->name, 0);
    const struct known_name *k;
    size_t cursor = 0;
    while (r == 0 && (k = table_next(&m->names, &cursor)))
        r = fn(g, taken, m, k->name, k->slot);
    return r;
}

static void answer(struct gather *g)
{
    if (!g->asker)
        return;
    struct table taken = {0};
    int r = 0;
    for (size_t i = 0; r == 0 && i < g->count; i++)
        r = each_name(g, &taken, g->parts[i].member, claim);
    for (size_t i = 0; r == 0 && i < g->count; i++)
        r = each_name(g, &taken, g->parts[i].member, show);
    table_release(&taken);
    struct request *asker = take_ptr(g->asker);
    if (r < 0) {
        request_fail(asker, r);
        return;
    }
    asker->handle->workspaces->complete = true;
    root_answer_listing(asker);
}

static void listed(void *context, const struct workspace_listing *l)
{
    struct part *p = context;
    struct gather *g = p->gather;
    if (--g->asked == 0)
        answer(g);
    gather_free(g);
}

static void on_late(evutil_socket_t fd, short what, void *context)
{
    struct gather *g = context;
    answer(g);
    gather_free(g);
}

static void ask(struct part *p)
{
    struct member *m = p->member;
    if (m->is_place || !member_is_there(m) || !member_answers(m))
        return;
    p->gather->asked++;
    if (member_list(m, listed, p) < 0)
        p->gather->asked--;
}

void join_readdir(struct request *r)
{
    struct join *j = r->driver->join;
    struct gather *g = calloc(1, sizeof *g + j->count * sizeof g->parts[0]);
    if (!g || join_timer(j, on_late, g, &g->timer) < 0) {
        free(g);
        request_fail(r, -ENOMEM);
        return;
    }
    g->join = j;
    g->asker = r;
    g->count = j->count;
    for (size_t i = 0; i < g->count; i++) {
        g->parts[i] = (struct part){.gather = g, .member = j->members[i]};
        (void)inode_pin(j->members[i]->driver.inodes.root);
    }
    /* Not answered before all have been asked. */
    g->asked++;
    for (size_t i = 0; i < g->count; i++)
        ask(&g->parts[i]);
    if (--g->asked == 0)
        answer(g);
    gather_free(g);
}

struct driver *join_space(struct driver *hub)
{
    const struct join *j = hub->join;
    for (size_t i = 0; i < j->count; i++)
        if (!j->members[i]->is_place && j->members[i]->driver.client)
            return &j->members[i]->driver;
    return hub;
}

/* --- telling -------------------------------------------------------------------------------- */

/* Of an extended attribute, which holds 64 KiB. */
#define DESCRIBED_MAX 60000

/* As root_describe has them. */
struct counts {
    uint64_t round_trips, inodes, read_ahead_bytes, content_bytes;
    uint64_t lag_us, lag_max_us, ping_us;
};

static struct counts counts_of(const struct driver *d)
{
    struct session_stats now = {0};
    const struct coherence_times times = coherence_times(d);
    if (driver_session(d))
        now = client_stats(driver_session(d));
    return (struct counts){.round_trips = d->stats.round_trips + now.round_trips,
                           .inodes = d->inodes.count - 1,
                           .read_ahead_bytes = d->inodes.tree.bytes,
                           .content_bytes = d->inodes.content.bytes,
                           .lag_us = times.lag_us,
                           .lag_max_us = times.lag_max_us,
                           .ping_us = times.ping_us};
}

/* Of all together; of times the longest. */
static void add_counts(struct counts *all, const struct counts *c)
{
    all->round_trips += c->round_trips;
    all->inodes += c->inodes;
    all->read_ahead_bytes += c->read_ahead_bytes;
    all->content_bytes += c->content_bytes;
    all->lag_us = c->lag_us > all->lag_us ? c->lag_us : all->lag_us;
    all->lag_max_us = c->lag_max_us > all->lag_max_us ? c->lag_max_us : all->lag_max_us;
    all->ping_us = c->ping_us > all->ping_us ? c->ping_us : all->ping_us;
}

static json_t *describe_counts(const struct counts *c)
{
    return json_pack("{s:I,s:I,s:I,s:I,s:I,s:I,s:I}", "round_trips", (json_int_t)c->round_trips,
                     "inodes", (json_int_t)c->inodes, "read_ahead_bytes",
                     (json_int_t)c->read_ahead_bytes, "content_bytes", (json_int_t)c->content_bytes,
                     "lag_us", (json_int_t)c->lag_us, "lag_max_us", (json_int_t)c->lag_max_us,
                     "ping_us", (json_int_t)c->ping_us);
}

/* Who says the same of itself: one may lie, or it is one service by two ways. */
static const struct member *says_the_same(const struct member *m)
{
    for (size_t i = 0; i < m->join->count && m->greeted; i++) {
        const struct member *o = m->join->members[i];
        if (o != m && o->greeted && !o->is_place && !m->is_place &&
            memcmp(o->service_id, m->service_id, sizeof o->service_id) == 0)
            return o;
    }
    return NULL;
}

static json_t *describe_member(const struct member *m)
{
    const struct member *same = says_the_same(m);
    const struct driver *d = &m->driver;
    json_t *o = json_pack("{s:s,s:s,s:s,s:I,s:i,s:b}", "name", m->name, "url", m->settings.url,
                          "state", member_state_name(m->state), "since", (json_int_t)m->since,
                          "open", (int)d->inodes.count - 1, "coherent", coherence_live(d));
    if (o && m->is_place)
        (void)json_object_set_new(o, "provider", json_string(m->provider ? m->provider : ""));
    if (o && m->why && m->state != MEMBER_CONNECTED)
        (void)json_object_set_new(o, "why", json_string(m->why));
    if (o && same)
        (void)json_object_set_new(o, "says_it_is", json_string(same->name));
    if (o && m->state == MEMBER_CONNECTED && coherence_confirmed_ms(d) >= 0)
        (void)json_object_set_new(o, "lag_ms", json_integer(coherence_confirmed_ms(d)));
    if (o && m->state == MEMBER_CONNECTED) {
        const struct counts c = counts_of(d);
        (void)json_object_set_new(o, "stats", describe_counts(&c));
    }
    if (o && !m->is_place)
        (void)json_object_set_new(o, "workspaces", json_integer((json_int_t)m->names.count));
    return o;
}

void join_describe_member(const struct driver *d, json_t *object)
{
    const struct member *m = d->member;
    (void)json_object_set_new(object, "member", json_string(m->name));
    if (m->is_place || m->settings.service)
        (void)json_object_set_new(object, "own_credentials", json_true());
}

int join_describe(const struct driver *hub, char **ret)
{
    const struct join *j = hub->join;
    size_t used = 0, shown = 0, connected = 0;
    json_t *members = json_array();
    struct counts all = {0};
    for (size_t i = 0; i < j->count; i++) {
        const struct counts own = counts_of(&j->members[i]->driver);
        add_counts(&all, &own);
        json_t *o = describe_member(j->members[i]);
        char *text = o ? json_dumps(o, JSON_COMPACT) : NULL;
        used += text ? strlen(text) + 1 : DESCRIBED_MAX;
        free(text);
        connected += j->members[i]->state == MEMBER_CONNECTED;
        shown += used < DESCRIBED_MAX;
        if (used < DESCRIBED_MAX)
            (void)json_array_append_new(members, o);
        else
            json_decref(o);
    }
    json_t *stats = describe_counts(&all);
    json_t *more =
        json_pack("{s:b,s:i,s:i,s:i}", "connected", j->count == 0 || connected > 0, "pid",
                  (int)getpid(), "members", (int)j->count, "members_connected", (int)connected);
    (void)json_object_update(stats, more);
    json_decref(more);
    json_t *o = json_pack("{s:s,s:o,s:i,s:s,s:o}", "url", hub->settings->url, "members", members,
                          "members_left_out", (int)(j->count - shown), "symlinks",
                          link_mode_name(hub->settings->symlinks), "stats", stats);
    char *text = o ? json_dumps(o, JSON_COMPACT) : NULL;
    json_decref(o);
    if (!text)
        return -ENOMEM;
    *ret = text;
    return 0;
}

/* --- rules ------------------------------------------------------------------------------------ */

struct telling {
    struct request *asker; /* the hub's */
    struct visibility_rules *rules;
    size_t asked;
    int error;
};

static void telling_ends(struct telling *t)
{
    if (--t->asked)
        return;
    if (t->error < 0)
        request_fail(t->asker, t->error);
    else
        request_reply_ok(t->asker);
    visibility_rules_unref(t->rules);
    free(t);
}

static void told(struct request *q, int error, const struct wire_message *reply)
{
    struct telling *t = q->context;
    if (error == 0)
        coherence_forget(q->driver);
    else if (q->driver->client) /* one that comes back is told then */
        t->error = error;
    request_free(q);
    telling_ends(t);
}

static void set_rules(struct driver *d, struct visibility_rules *rules)
{
    visibility_rules_unref(d->rules);
    d->rules = rules ? visibility_rules_ref(rules) : NULL;
}

void join_set_rules(fuse_req_t req, struct visibility_rules *rules)
{
    struct request *r = request_start(req, WIRE_VISIBILITY, NULL, NULL);
    struct telling *t = r ? calloc(1, sizeof *t) : NULL;
    if (!t) {
        if (r)
            request_fail(r, -ENOMEM);
        visibility_rules_unref(rules);
        return;
    }
    struct join *j = r->driver->join;
    *t = (struct telling){.asker = r, .rules = rules, .asked = 1};
    set_rules(j->hub, rules);
    for (size_t i = 0; i < j->count; i++) {
        struct driver *d = &j->members[i]->driver;
        struct request *q;
        set_rules(d, rules);
        if (!d->client)
            continue;
        int error = request_new(d, NULL, WIRE_VISIBILITY, NULL, NULL, &q);
        if (error < 0) {
            t->error = error;
            continue;
        }
        q->context = t;
        if (rules)
            q->message.visibility.rules = visibility_rules_text(rules);
        t->asked++;
        request_send(q, told);
    }
    telling_ends(t);
}

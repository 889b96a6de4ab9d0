/* What is known of the names of a joined mount's root. */
#include "join_private.h"

#include "names/thread_id.h"

#define LIST_PAGE 512

struct owner {
    uint64_t serial; /* of a member, and its number */
    uint32_t number;
    char name[];
};

static uint64_t hash(const struct join *j, struct bytes name)
{
    return inode_hash_name(&j->hub->inodes, name);
}

static bool is_name(const char *text, struct bytes name)
{
    return strlen(text) == name.len && memcmp(text, name.data, name.len) == 0;
}

/* --- of a member ------------------------------------------------------------------------------ */

const struct known_name *member_knows(const struct member *m, struct bytes name)
{
    const struct known_name *k = table_get(&m->names, hash(m->join, name));
    return k && is_name(k->name, name) ? k : NULL;
}

void member_learn_one(struct member *m, struct bytes name, uint32_t slot)
{
    struct known_name *k = malloc(sizeof *k + name.len + 1);
    void *old = NULL;
    if (!k)
        return; /* nothing but waiting in vain depends on it */
    k->slot = slot;
    memcpy(k->name, name.data, name.len);
    k->name[name.len] = '\0';
    if (table_put(&m->names, hash(m->join, name), k, &old) < 0)
        free(k);
    else
        free(old);
}

void member_unlearn(struct member *m, struct bytes name)
{
    if (member_knows(m, name))
        free(table_take(&m->names, hash(m->join, name)));
}

static void learn(struct member *m, const struct workspace_listing *l)
{
    struct known_name *k;
    size_t cursor = 0;
    while ((k = table_next(&m->names, &cursor)))
        free(k);
    table_release(&m->names);
    for (size_t i = 0; i < workspace_listing_count(l); i++) {
        uint32_t slot;
        struct bytes name = bytes_of_string(workspace_listing_at(l, i, &slot));
        uint8_t id[THREAD_ID_MAX];
        /* What is no workspace's could be taken for another member's. */
        if (thread_id_from_name(name, id) != -EINVAL)
            member_learn_one(m, name, slot);
    }
}

uint64_t join_slot(const struct member *m, uint64_t slot)
{
    return slots_number(m->join->slots, &m->numbers, slot << 40) >> 40;
}

/* --- asking a member for its names -------------------------------------------------------------
 */

struct listed_waiter {
    struct listed_waiter *next;
    member_listed_fn *done;
    void *context;
};

struct asking {
    struct member *member;
    struct listed_waiter *waiters;
    struct workspace_listing listing;
};

static void tell(struct listed_waiter *w, const struct workspace_listing *l)
{
    while (w) {
        struct listed_waiter *next = w->next;
        if (w->done)
            w->done(w->context, l);
        free(w);
        w = next;
    }
}

static void page_came(struct request *q, int error, const struct wire_message *reply);

static void ask_page(struct request *q)
{
    struct asking *a = q->context;
    size_t count = workspace_listing_count(&a->listing);
    q->message = (struct wire_message){.type = WIRE_WORKSPACE_LIST};
    q->message.workspace_list.count = LIST_PAGE;
    if (count)
        q->message.workspace_list.after =
            bytes_of_string(workspace_listing_at(&a->listing, count - 1, NULL));
    request_send(q, page_came);
}

static int start_listing(struct member *m)
{
    struct asking *a = calloc(1, sizeof *a);
    struct request *q;
    if (!a || request_new(&m->driver, NULL, WIRE_WORKSPACE_LIST, NULL, NULL, &q) < 0) {
        free(a);
        return -ENOMEM;
    }
    *a = (struct asking){.member = m, .waiters = take_ptr(m->listed_next)};
    m->listing = true;
    q->context = a;
    q->quiet = true;
    for (const struct listed_waiter *w = a->waiters; w; w = w->next)
        q->quiet &= !w->done;
    ask_page(q);
    return 0;
}

static void page_came(struct request *q, int error, const struct wire_message *reply)
{
    struct asking *a = q->context;
    struct member *m = a->member;
    if (error == 0)
        error = workspace_listing_append(&a->listing, &reply->workspaces);
    if (error == 0 && !a->listing.complete &&
        workspace_listing_count(&a->listing) < JOIN_NAMES_MAX) {
        ask_page(q);
        return;
    }
    request_free(q);
    m->listing = false;
    if (error == 0)
        learn(m, &a->listing);
    /* Who came meanwhile wants to know what is there now. */
    bool goes_on = member_is_there(m) && !m->join->stopping;
    if (m->listed_next && (!goes_on || start_listing(m) < 0))
        tell(take_ptr(m->listed_next), NULL);
    tell(a->waiters, error == 0 ? &a->listing : NULL);
    buffer_release(&a->listing.names);
    buffer_release(&a->listing.index);
    free(a);
}

int member_list(struct member *m, member_listed_fn *done, void *context)
{
    struct listed_waiter *w = malloc(sizeof *w);
    if (!w)
        return -ENOMEM;
    *w = (struct listed_waiter){.next = m->listed_next, .done = done, .context = context};
    m->listed_next = w;
    if (m->listing || start_listing(m) == 0)
        return 0;
    m->listed_next = w->next;
    free(w);
    return -ENOMEM;
}

/* --- whose a name is -------------------------------------------------------------------------- */

struct member *join_owner(const struct join *j, struct bytes name)
{
    const struct owner *o = table_get(&j->owners, hash(j, name));
    struct member *m = o && is_name(o->name, name) ? table_get(&j->by_number, o->number) : NULL;
    return m && m->serial == o->serial && member_is_there(m) ? m : NULL;
}

void join_set_owner(struct join *j, struct bytes name, struct member *m)
{
    uint64_t key = hash(j, name);
    void *old = NULL;
    if (!m) {
        const struct owner *o = table_get(&j->owners, key);
        if (o && is_name(o->name, name))
            free(table_take(&j->owners, key));
        return;
    }
    struct owner *o = malloc(sizeof *o + name.len + 1);
    if (!o)
        return;
    o->serial = m->serial;
    o->number = m->number;
    memcpy(o->name, name.data, name.len);
    o->name[name.len] = '\0';
    if (table_put(&j->owners, key, o, &old) < 0)
        free(o);
    else
        free(old);
}

void join_owners_release(struct join *j)
{
    size_t cursor = 0;
    struct owner *o;
    while ((o = table_next(&j->owners, &cursor)))
        free(o);
    table_release(&j->owners);
}

struct bytes join_key(struct bytes name)
{
    const uint8_t *at = memchr(name.data, '@', name.len);
    return at ? bytes_of(name.data, (size_t)(at - name.data)) : name;
}

#include "store/changes.h"

#include <string.h>

struct change {
    struct change *next;
    uint64_t position;
    uint64_t key; /* in subscription.pending */
    uint64_t ino, generation;
    uint32_t kinds;
    uint8_t name_len;
    uint8_t name[];
};

struct subscription {
    struct subscription *next; /* in store.subscriptions */
    struct file_session *session;
    void (*wake)(void *context);
    void *context;
    struct change *first, **last;
    struct table pending; /* hash of file and name -> struct change, the latest of its key */
    uint64_t end;
    bool all; /* only WIRE_CHANGE_ALL is pending */
};

int subscription_open(struct file_session *session, void (*wake)(void *context), void *context,
                      struct subscription **ret)
{
    struct subscription *s = calloc(1, sizeof *s);
    if (!s)
        return -ENOMEM;
    s->session = session;
    s->wake = wake;
    s->context = context;
    s->last = &s->first;
    struct store *store = session->store;
    int r = 0;
    store_lock(store);
    for (struct subscription *other = store->subscriptions; other; other = other->next)
        if (other->session == session)
            r = -EBUSY;
    if (r == 0) {
        s->next = store->subscriptions;
        store->subscriptions = s;
    }
    store_unlock(store);
    if (r < 0) {
        free(s);
        return r;
    }
    *ret = s;
    return 0;
}

static void drop_pending(struct subscription *s)
{
    struct change *next;
    for (struct change *c = s->first; c; c = next) {
        next = c->next;
        free(c);
    }
    s->first = NULL;
    s->last = &s->first;
    table_release(&s->pending);
}

void subscription_close(struct subscription *s)
{
    struct store *store = s->session->store;
    store_lock(store);
    struct subscription **at = &store->subscriptions;
    while (*at != s)
        at = &(*at)->next;
    *at = s->next;
    store_unlock(store);
    drop_pending(s);
    free(s);
}

const struct subscription *subscription_next(const struct subscription *s)
{
    return s->next;
}

bool subscription_is_of(const struct subscription *s, const struct file_session *session)
{
    return s->session == session;
}

uint64_t subscription_end(struct subscription *s)
{
    struct store *store = s->session->store;
    store_lock(store);
    uint64_t end = s->end;
    store_unlock(store);
    return end;
}

/* --- noting ---------------------------------------------------------------------- */

static uint64_t key_of(uint64_t ino, uint64_t generation, struct bytes name)
{
    uint64_t hash = table_hash_pair(ino, generation);
    for (size_t i = 0; i < name.len; i++)
        hash = (hash ^ name.data[i]) * UINT64_C(0x100000001b3);
    return hash;
}

static bool is_same(const struct change *c, uint64_t ino, uint64_t generation, struct bytes name)
{
    return c->ino == ino && c->generation == generation &&
           bytes_equal(bytes_of(c->name, c->name_len), name);
}

/* Without memory for what changed, all that can be said is that something did: that change
 * takes the place of the first, which is there whenever memory is short. */
static void collapse(struct subscription *s)
{
    struct change *c = s->first;
    if (!c)
        c = calloc(1, sizeof *c);
    else
        s->first = c->next;
    drop_pending(s);
    s->all = true;
    if (!c) {
        /* Told when it is taken: see subscription_take. */
        s->end++;
        return;
    }
    *c = (struct change){.position = ++s->end, .kinds = WIRE_CHANGE_ALL};
    s->first = c;
    s->last = &c->next;
}

static void add(struct subscription *s, uint64_t ino, uint64_t generation, uint32_t kinds,
                struct bytes name)
{
    bool was_empty = !s->first && !s->all;
    if (s->all) {
        s->end++;
        if (s->first)
            s->first->position = s->end;
        return;
    }
    uint64_t key = key_of(ino, generation, name);
    struct change *c = table_get(&s->pending, key);
    if (c && is_same(c, ino, generation, name)) {
        c->kinds |= kinds;
        return;
    }
    c = s->pending.count < CHANGES_PENDING_MAX ? malloc(sizeof *c + name.len) : NULL;
    if (c) {
        *c = (struct change){.position = s->end + 1,
                             .key = key,
                             .ino = ino,
                             .generation = generation,
                             .kinds = kinds,
                             .name_len = (uint8_t)name.len};
        if (name.len)
            memcpy(c->name, name.data, name.len);
        if (table_put(&s->pending, key, c, NULL) < 0)
            free(take_ptr(c));
    }
    if (c) {
        s->end++;
        *s->last = c;
        s->last = &c->next;
    } else {
        collapse(s);
    }
    if (was_empty)
        s->wake(s->context);
}

bool changes_cover(const struct node *node)
{
    return node->workspace->store->detects && node->device == node->workspace->device &&
           node->ino >> INODE_NUMBER_BITS == 0;
}

void changes_note_locked(struct store *store, const struct file_session *origin, struct node *node,
                         uint32_t kinds, struct bytes name)
{
    uint64_t ino;
    if (!changes_cover(node) ||
        inode_number(store->numbers, node->workspace->slot, node->workspace->device, node->device,
                     node->ino, &ino) < 0)
        return;
    for (struct subscription *s = store->subscriptions; s; s = s->next)
        if (s->session != origin && table_get(&s->session->nodes, node->number))
            add(s, ino, node->generation, kinds, name);
}

void changes_note(struct store *store, const struct file_session *origin, struct node *node,
                  uint32_t kinds, struct bytes name)
{
    store_lock(store);
    store->change_count++;
    changes_note_locked(store, origin, node, kinds, name);
    store_unlock(store);
}

bool changes_note_file(struct store *store, uint64_t generation, uint32_t kinds, struct bytes name)
{
    store_lock(store);
    struct node *first = table_get(&store->generations, generation);
    if (first)
        store->change_count++;
    for (struct node *n = first; n; n = n->same_generation)
        if (n->generation == generation)
            changes_note_locked(store, NULL, n, kinds, name);
    store_unlock(store);
    return first;
}

void changes_note_all(struct store *store)
{
    store_lock(store);
    store->change_count++;
    for (struct subscription *s = store->subscriptions; s; s = s->next) {
        bool was_empty = !s->first && !s->all;
        collapse(s);
        if (was_empty)
            s->wake(s->context);
    }
    store_unlock(store);
}

uint64_t store_change_count(struct store *store)
{
    store_lock(store);
    uint64_t count = store->change_count;
    store_unlock(store);
    return count;
}

/* --- taking ---------------------------------------------------------------------- */

static int append(struct buffer *list, const struct change *c)
{
    struct buffer element = {0};
    const struct wire_message m = {.type = WIRE_CHANGE,
                                   .change = {.ino = c->ino,
                                              .generation = c->generation,
                                              .kinds = c->kinds,
                                              .name = bytes_of(c->name, c->name_len)}};
    int r = wire_encode(&element, &m);
    if (r == 0)
        r = wire_list_append(list, buffer_view(&element));
    buffer_release(&element);
    return r;
}

int subscription_take(struct subscription *s, struct buffer *list, uint64_t *ret_position)
{
    struct store *store = s->session->store;
    int taken = 0, r = 0;
    store_lock(store);
    if (s->all && !s->first) {
        const struct change all = {.kinds = WIRE_CHANGE_ALL};
        r = append(list, &all);
        if (r == 0) {
            *ret_position = s->end;
            s->all = false;
            taken = 1;
        }
    }
    while (r == 0 && s->first && taken < CHANGES_COUNT_MAX) {
        struct change *c = s->first;
        if (list->len + sizeof *c + c->name_len > CHANGES_SIZE_MAX)
            break;
        r = append(list, c);
        if (r < 0)
            break;
        *ret_position = c->position;
        taken++;
        if (c->kinds & WIRE_CHANGE_ALL)
            s->all = false;
        if (table_get(&s->pending, c->key) == c)
            (void)table_take(&s->pending, c->key);
        s->first = c->next;
        if (!s->first)
            s->last = &s->first;
        free(c);
    }
    store_unlock(store);
    return taken > 0 ? taken : r;
}

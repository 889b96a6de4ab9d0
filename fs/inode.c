#include "inode.h"

#include <assert.h>
#include <sys/random.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/table.h"

#define ROOT_ID 1 /* FUSE_ROOT_ID */
#define FIRST_CAPACITY 256

uint64_t inode_hash_name(const struct inode_table *t, struct bytes name)
{
    uint64_t h = t->seed;
    size_t i = 0;
    for (; i + 8 <= name.len; i += 8) {
        uint64_t part;
        memcpy(&part, name.data + i, sizeof part);
        h = table_hash_pair(h, part);
    }
    uint64_t rest = 0;
    if (name.len > i)
        memcpy(&rest, name.data + i, name.len - i);
    return table_hash_pair(h, rest ^ name.len);
}

static uint64_t hash_name(const struct inode_table *t, const struct inode *parent,
                          struct bytes name)
{
    return table_hash_pair(inode_hash_name(t, name), parent->id);
}

static uint64_t hash_identity(const struct inode_table *t, uint64_t ino, uint64_t generation)
{
    return table_hash_pair(ino ^ t->seed, generation);
}

static uint64_t hash_of(const struct inode_table *t, const struct inode *i, enum inode_index index)
{
    switch (index) {
    case INODE_BY_ID:
        return table_hash_pair(i->id, t->seed);
    case INODE_BY_IDENTITY:
        return hash_identity(t, i->ino, i->generation);
    case INODE_BY_NAME:
        return hash_name(t, i->parent, inode_name_bytes(i));
    case INODE_INDEX_COUNT:
        break;
    }
    assert(false);
    return 0;
}

static struct inode *numbered(const struct inode_table *t, uint32_t number)
{
    return pool_at(&t->pool, number);
}

static struct inode *next_of(const struct inode_table *t, const struct inode *i,
                             enum inode_index index)
{
    return numbered(t, i->next[index]);
}

static uint32_t *chain_head(const struct inode_table *t, enum inode_index index, uint64_t hash)
{
    const struct inode_chains *c = &t->chains[index];
    return &c->heads[hash & (c->capacity - 1)];
}

static struct inode *chain_first(const struct inode_table *t, enum inode_index index, uint64_t hash)
{
    return numbered(t, *chain_head(t, index, hash));
}

/* Doubles an index; what is in a chain keeps its order. Without memory the chains only get longer,
 * so failure is no error. */
static void chains_grow(struct inode_table *t, enum inode_index index)
{
    struct inode_chains old = t->chains[index];
    uint32_t *heads = calloc(old.capacity * 2, sizeof *heads);
    if (!heads)
        return;
    t->chains[index] = (struct inode_chains){.heads = heads, .capacity = old.capacity * 2};
    for (size_t slot = 0; slot < old.capacity; slot++) {
        uint32_t next, *tails[] = {&heads[slot], &heads[slot + old.capacity]};
        for (uint32_t number = old.heads[slot]; number; number = next) {
            struct inode *i = numbered(t, number);
            next = i->next[index];
            uint32_t **tail = &tails[(hash_of(t, i, index) & old.capacity) != 0];
            i->next[index] = 0;
            **tail = number;
            *tail = &i->next[index];
        }
    }
    free(old.heads);
}

static void chains_add(struct inode_table *t, uint32_t number, enum inode_index index)
{
    if (t->count > t->chains[index].capacity * 2)
        chains_grow(t, index);
    struct inode *i = numbered(t, number);
    uint32_t *head = chain_head(t, index, hash_of(t, i, index));
    i->next[index] = *head;
    *head = number;
}

/* Returns its number; 0: it was in none. */
static uint32_t chains_remove(struct inode_table *t, struct inode *i, enum inode_index index)
{
    uint32_t *link = chain_head(t, index, hash_of(t, i, index));
    struct inode *other;
    while ((other = numbered(t, *link)) && other != i)
        link = &other->next[index];
    uint32_t number = *link;
    if (number)
        *link = i->next[index];
    i->next[index] = 0;
    return number;
}

static uint32_t number_of(const struct inode_table *t, const struct inode *i)
{
    uint32_t number = *chain_head(t, INODE_BY_ID, hash_of(t, i, INODE_BY_ID));
    struct inode *other;
    while ((other = numbered(t, number)) != i)
        number = other->next[INODE_BY_ID];
    return number;
}

static void name_free(struct inode *i)
{
    char *apart;
    memcpy(&apart, i->name, sizeof apart);
    if (i->name_apart)
        free(apart);
    i->name_apart = false;
    i->name_len = 0;
}

/* With room for this name, which most files have for ever, and at least for a pointer to another.
 */
static struct inode *inode_new(struct inode_table *t, struct bytes name, uint32_t *ret_number)
{
    size_t least = name.len + 1 > sizeof(char *) ? name.len + 1 : sizeof(char *);
    size_t size = pool_size(offsetof(struct inode, name) + least);
    struct inode *i = pool_new(&t->pool, size, ret_number);
    if (i) {
        size_t room = size - offsetof(struct inode, name) - 1;
        i->room = (uint8_t)(room < WIRE_NAME_MAX ? room : WIRE_NAME_MAX);
    }
    return i;
}

int inode_table_init(struct inode_table *t, uint8_t root_flags)
{
    *t = (struct inode_table){.last_id = ROOT_ID};
    if (getrandom(&t->seed, sizeof t->seed, GRND_NONBLOCK) != sizeof t->seed)
        t->seed = (uint64_t)(uintptr_t)t;
    for (enum inode_index index = 0; index < INODE_INDEX_COUNT; index++) {
        t->chains[index].heads = calloc(FIRST_CAPACITY, sizeof *t->chains[index].heads);
        t->chains[index].capacity = FIRST_CAPACITY;
        if (!t->chains[index].heads) {
            inode_table_release(t);
            return -ENOMEM;
        }
    }
    uint32_t number;
    t->root = inode_new(t, (struct bytes){0}, &number);
    if (!t->root) {
        inode_table_release(t);
        return -ENOMEM;
    }
    t->root->id = ROOT_ID;
    t->root->ino = ROOT_ID;
    t->root->type = S_IFDIR;
    t->root->flags = root_flags;
    t->root->pins = 1;
    /* Not by identity: an entry that claims to be the root would make the kernel fail. */
    t->count = 1;
    chains_add(t, number, INODE_BY_ID);
    return 0;
}

void inode_table_release(struct inode_table *t)
{
    size_t cursor = 0;
    struct inode *i = NULL;
    while ((i = inode_next(t, &cursor, i)))
        name_free(i);
    pool_release(&t->pool);
    for (enum inode_index index = 0; index < INODE_INDEX_COUNT; index++)
        free(t->chains[index].heads);
    tree_release(t);
    content_release(t);
    known_release(t);
    attrs_forget(t);
    buffer_release(&t->forgets);
    *t = (struct inode_table){0};
}

struct inode *inode_get(struct inode_table *t, uint64_t id)
{
    if (id == ROOT_ID)
        return t->root;
    struct inode *i = chain_first(t, INODE_BY_ID, table_hash_pair(id, t->seed));
    while (i && i->id != id)
        i = next_of(t, i, INODE_BY_ID);
    return i;
}

static bool is_at(const struct inode *i, const struct inode *parent, struct bytes name)
{
    return i->parent == parent && bytes_equal(inode_name_bytes(i), name);
}

/* The next of those at parent/name, from i on in its chain. */
static struct inode *next_named(const struct inode_table *t, struct inode *i,
                                const struct inode *parent, struct bytes name)
{
    while (i && !is_at(i, parent, name))
        i = next_of(t, i, INODE_BY_NAME);
    return i;
}

struct inode *inode_named(struct inode_table *t, const struct inode *parent, struct bytes name)
{
    return next_named(t, chain_first(t, INODE_BY_NAME, hash_name(t, parent, name)), parent, name);
}

struct inode *inode_named_after(struct inode_table *t, const struct inode *i,
                                const struct inode *parent, struct bytes name)
{
    return next_named(t, next_of(t, i, INODE_BY_NAME), parent, name);
}

static bool has_place(uint32_t mode)
{
    return S_ISDIR(mode) || S_ISLNK(mode);
}

static struct inode *find_place(struct inode_table *t, const struct wire_attr *attr,
                                const struct inode *parent, struct bytes name)
{
    struct inode *i = inode_named(t, parent, name);
    while (i && (!inode_is(i, attr) || inode_is_displaced(i)))
        i = inode_named_after(t, i, parent, name);
    return i;
}

bool inode_is(const struct inode *i, const struct wire_attr *attr)
{
    return i->ino == attr->ino && i->generation == attr->generation &&
           i->type == (attr->mode & S_IFMT);
}

static struct inode *find_identity(struct inode_table *t, const struct wire_attr *attr)
{
    struct inode *i =
        chain_first(t, INODE_BY_IDENTITY, hash_identity(t, attr->ino, attr->generation));
    while (i && !inode_is(i, attr))
        i = next_of(t, i, INODE_BY_IDENTITY);
    return i;
}

struct inode *inode_identified(struct inode_table *t, uint64_t ino, uint64_t generation,
                               const struct inode *after)
{
    if (!after && t->root->ino == ino && t->root->generation == generation)
        return t->root;
    struct inode *i = after && after != t->root
                          ? next_of(t, after, INODE_BY_IDENTITY)
                          : chain_first(t, INODE_BY_IDENTITY, hash_identity(t, ino, generation));
    while (i && !(i->ino == ino && i->generation == generation))
        i = next_of(t, i, INODE_BY_IDENTITY);
    return i;
}

struct inode *inode_next(const struct inode_table *t, size_t *cursor, const struct inode *i)
{
    const struct inode_chains *chains = &t->chains[INODE_BY_ID];
    uint32_t next = i ? i->next[INODE_BY_ID] : 0;
    while (!next && chains->heads && *cursor < chains->capacity)
        next = chains->heads[(*cursor)++];
    return numbered(t, next);
}

void inode_give_back(struct inode_table *t, uint64_t node, uint64_t count)
{
    size_t len = t->forgets.len;
    if (buffer_append_u64(&t->forgets, node) < 0 || buffer_append_u64(&t->forgets, count) < 0)
        t->forgets.len = len;
}

void inode_adopt(struct inode_table *t, struct inode *i, uint64_t node)
{
    if (i->connection != t->connection) {
        /* What the old connection had counted went with it. */
        i->connection = t->connection;
        i->node = node;
        i->wire_refs = 1;
    } else if (i->node == node && i->wire_refs < UINT32_MAX) {
        i->wire_refs++;
    } else {
        /* Requests in flight may use the node we have: keep it. */
        inode_give_back(t, node, 1);
    }
}

/* Forgets the hint. */
static void unname(struct inode_table *t, struct inode *i)
{
    struct inode *parent = i->parent;
    if (!parent)
        return;
    (void)chains_remove(t, i, INODE_BY_NAME);
    i->parent = NULL;
    name_free(i);
    inode_unpin(t, parent);
}

/* At most one file has its hint there, but any number of directories and links their place. */
struct inode *inode_file_named(struct inode_table *t, const struct inode *parent, struct bytes name)
{
    struct inode *i = inode_named(t, parent, name);
    while (i && has_place(i->type))
        i = inode_named_after(t, i, parent, name);
    return i;
}

void inode_removed(struct inode_table *t, struct inode *parent, struct bytes name)
{
    struct inode *i = inode_file_named(t, parent, name);
    if (i)
        unname(t, i);
}

/* -ENOMEM: it keeps the one it has. */
static int set_name(struct inode *i, struct bytes name)
{
    assert(name.len <= WIRE_NAME_MAX);
    char *room = i->name;
    if (name.len > i->room) {
        room = malloc(name.len + 1);
        if (!room)
            return -ENOMEM;
    }
    name_free(i);
    memmove(room, name.data, name.len);
    room[name.len] = '\0';
    if (room != i->name)
        memcpy(i->name, &room, sizeof room);
    i->name_apart = room != i->name;
    i->name_len = (uint8_t)name.len;
    return 0;
}

void inode_note_attr(struct inode *i, const struct wire_attr *attr)
{
    if (attr->flags & WIRE_ATTR_COVERED)
        i->flags |= INODE_COVERED;
    else
        i->flags &= (uint8_t)~INODE_COVERED;
    if (i->type == S_IFREG && attr->size <= WIRE_FILE_MAX)
        i->flags |= INODE_SMALL;
    else if (i->type == S_IFREG)
        i->flags &= (uint8_t)~INODE_SMALL;
}

int inode_set_root(struct inode_table *t, uint64_t node, const struct wire_attr *attr,
                   struct bytes name)
{
    int r = set_name(t->root, name);
    if (r < 0)
        return r;
    t->root->ino = attr->ino;
    t->root->generation = attr->generation;
    t->connection = 1;
    t->root->connection = t->connection;
    t->root->node = node;
    t->root->wire_refs = 1;
    inode_note_attr(t->root, attr);
    return 0;
}

/* Notes that a file without a place was seen there. -ENOMEM: it has no hint then. */
static int hint(struct inode_table *t, struct inode *i, struct inode *parent, struct bytes name)
{
    if (is_at(i, parent, name))
        return 0;
    /* Pinned first: the old hint may hold the last pin of the parent. */
    (void)inode_pin(parent);
    inode_removed(t, parent, name);
    unname(t, i);
    int r = set_name(i, name);
    if (r < 0) {
        inode_unpin(t, parent);
        return r;
    }
    i->parent = parent;
    chains_add(t, number_of(t, i), INODE_BY_NAME);
    return 0;
}

static int make(struct inode_table *t, uint64_t node, const struct wire_attr *attr, uint8_t flags,
                struct inode *parent, struct bytes name, struct inode **ret)
{
    uint32_t number;
    struct inode *i = inode_new(t, name, &number);
    bool placed = has_place(attr->mode);
    if (!i)
        return -ENOMEM;
    if (placed)
        (void)set_name(i, name); /* it has the room */
    i->id = ++t->last_id;
    i->ino = attr->ino;
    i->generation = attr->generation;
    i->type = attr->mode & S_IFMT;
    i->flags = flags;
    i->node = node;
    i->wire_refs = 1;
    i->connection = t->connection;
    t->count++;
    chains_add(t, number, INODE_BY_ID);
    if (placed) {
        i->parent = inode_pin(parent);
        chains_add(t, number, INODE_BY_NAME);
    }
    chains_add(t, number, INODE_BY_IDENTITY);
    *ret = i;
    return 0;
}

struct inode *inode_known(struct inode_table *t, const struct wire_attr *attr,
                          const struct inode *parent, struct bytes name)
{
    return has_place(attr->mode) ? find_place(t, attr, parent, name) : find_identity(t, attr);
}

/* As inode_enter, but on failure the reference stays the caller's. */
static int enter(struct inode_table *t, uint64_t node, const struct wire_attr *attr, uint8_t flags,
                 struct inode *parent, struct bytes name, struct inode **ret)
{
    bool placed = has_place(attr->mode);
    struct inode *i = inode_known(t, attr, parent, name);
    if (i) {
        inode_adopt(t, i, node);
    } else {
        int r = make(t, node, attr, flags, parent, name, &i);
        if (r < 0)
            return r;
    }
    inode_note_attr(i, attr);
    (void)inode_pin(i);
    if (placed) {
        /* The newest comes first. */
        inode_removed(t, parent, name);
        chains_add(t, chains_remove(t, i, INODE_BY_NAME), INODE_BY_NAME);
    } else {
        if (i->type == S_IFREG && i->parent && !is_at(i, parent, name))
            i->flags |= INODE_LINKED;
        /* Only a hint: without memory the file is merely not found again later. */
        (void)hint(t, i, parent, name);
    }
    i->pins--;
    *ret = i;
    return 0;
}

int inode_enter(struct inode_table *t, uint64_t node, const struct wire_attr *attr, uint8_t flags,
                struct inode *parent, struct bytes name, struct inode **ret)
{
    int r = enter(t, node, attr, flags, parent, name, ret);
    if (r < 0)
        inode_give_back(t, node, 1);
    return r;
}

/* True for an inode whose reference on the node is lent. */
static bool is_lent(const struct inode_table *t, const struct inode *i)
{
    return i->connection == t->connection && i->wire_refs == 0;
}

/* Another inode of the file lives by a reference that was lent. */
static bool another_is_lent(struct inode_table *t, uint64_t ino, uint64_t generation,
                            const struct inode *i)
{
    const struct inode *other = NULL;
    while ((other = inode_identified(t, ino, generation, other)))
        if (other != i && is_lent(t, other))
            return true;
    return false;
}

int inode_lend(struct inode_table *t, uint64_t node, const struct wire_attr *attr,
               struct inode *parent, struct bytes name, struct inode **ret)
{
    const struct inode *known = inode_known(t, attr, parent, name);
    if ((known && known->connection == t->connection && known->node != node) ||
        another_is_lent(t, attr->ino, attr->generation, known))
        return -EEXIST;
    struct inode *i;
    int r = enter(t, node, attr, 0, parent, name, &i);
    if (r < 0)
        return r;
    i->wire_refs--;
    *ret = i;
    return 0;
}

bool inode_lend_own(struct inode_table *t, struct inode *i)
{
    if (i->connection != t->connection || i->wire_refs == 0 ||
        (i->wire_refs == 1 && another_is_lent(t, i->ino, i->generation, i)))
        return false;
    i->wire_refs--;
    return true;
}

void inode_lent_back(struct inode_table *t, uint64_t node, uint64_t ino, uint64_t generation)
{
    struct inode *i = NULL;
    while ((i = inode_identified(t, ino, generation, i)))
        if (is_lent(t, i) && i->node == node) {
            i->wire_refs = 1;
            return;
        }
    inode_give_back(t, node, 1);
}

/* Takes the directories that are at parent/name out of their chain, into a list of their own, the
 * newest last. */
static uint32_t detach_directories(struct inode_table *t, const struct inode *parent,
                                   struct bytes name)
{
    uint32_t list = 0;
    uint32_t *link = chain_head(t, INODE_BY_NAME, hash_name(t, parent, name));
    while (*link) {
        uint32_t number = *link;
        struct inode *i = numbered(t, number);
        if (i->type == S_IFDIR && is_at(i, parent, name)) {
            *link = i->next[INODE_BY_NAME];
            i->next[INODE_BY_NAME] = list;
            list = number;
        } else {
            link = &i->next[INODE_BY_NAME];
        }
    }
    return list;
}

static int plain_depth(const struct inode *directory, const struct inode **ret_workspace)
{
    int depth = 0;
    for (const struct inode *i = directory; i; i = i->parent, depth++)
        if (i->flags & INODE_WORKSPACE) {
            *ret_workspace = i;
            return depth;
        }
    return -1;
}

static bool is_below(const struct inode *i, const struct inode *directory)
{
    while (i && i != directory)
        i = i->parent;
    return i;
}

/* Puts a list of detached directories at parent/name. More than one was at the old place when
 * another took the name of the first: the kernel has moved one of them. Those of which that is
 * less likely are put at the place of less depth. */
static void attach_directories(struct inode_table *t, uint32_t list, struct inode *parent,
                               struct bytes name)
{
    const struct inode *workspace;
    uint32_t next;
    for (uint32_t number = list; number; number = next) {
        struct inode *i = numbered(t, number);
        next = i->next[INODE_BY_NAME];
        bool certain = !next;
        struct inode *old = i->parent;
        /* The kernel moves no directory below itself. If it looks so, it was another. */
        bool moves = !is_below(parent, i) &&
                     (certain || plain_depth(parent, &workspace) < plain_depth(old, &workspace));
        if (moves) {
            /* Without memory its place is right but for the name, by which it is just not found
             * again. */
            (void)set_name(i, name);
            i->parent = inode_pin(parent);
        }
        chains_add(t, number, INODE_BY_NAME);
        if (moves)
            inode_unpin(t, old);
    }
}

/* How long after our answer to a rename the kernel has certainly done it. It is a matter of one
 * thread getting the processor; and most often the next question of the kernel tells. */
#define MOVE_SETTLED_NS NSEC_PER_SEC

static void move_settle(struct inode_table *t)
{
    struct inode *from = take_ptr(t->move.from), *to = take_ptr(t->move.to);
    t->move.until_ns = 0;
    inode_unpin(t, from);
    inode_unpin(t, to);
}

/* The kernel keeps the node ID, which is of the place that the link had, until it looks up anew. */
static void note_renamed_links(struct inode_table *t, const struct inode *parent, struct bytes name)
{
    struct inode *i = inode_named(t, parent, name);
    for (; i; i = inode_named_after(t, i, parent, name))
        if (i->type == S_IFLNK)
            i->flags |= INODE_RENAMED;
}

void inode_rename_begin(struct inode_table *t, struct inode *from, struct bytes name,
                        struct inode *to, struct bytes new_name, bool exchange)
{
    struct inode_move *m = &t->move;
    if (from == to)
        return;
    move_settle(t); /* the one before: the kernel would not ask for this one else */
    m->number++;
    m->from = inode_pin(from);
    m->to = inode_pin(to);
    m->replaces = inode_named(t, to, new_name);
    m->exchanges = exchange;
    memcpy(m->name, name.data, name.len);
    memcpy(m->new_name, new_name.data, new_name.len);
    m->name_len = (uint8_t)name.len;
    m->new_name_len = (uint8_t)new_name.len;
}

void inode_rename_end(struct inode_table *t, struct inode *from, struct bytes name,
                      struct inode *to, struct bytes new_name, bool done, bool exchange,
                      uint64_t now_ns)
{
    if (!done) {
        if (from != to)
            move_settle(t);
        return;
    }
    if (from != to)
        t->move.until_ns = now_ns + MOVE_SETTLED_NS;
    else if (bytes_equal(name, new_name))
        return;
    struct inode *moved = inode_file_named(t, from, name),
                 *other = inode_file_named(t, to, new_name);
    if (moved != other || !moved) {
        if (moved)
            (void)inode_pin(moved);
        if (other)
            (void)inode_pin(other);
        inode_removed(t, to, new_name);
        if (moved)
            (void)hint(t, moved, to, new_name);
        if (other && exchange)
            (void)hint(t, other, from, name);
        inode_unpin(t, moved);
        inode_unpin(t, other);
    }
    if (from != to)
        note_renamed_links(t, from, name);
    if (from != to && exchange)
        note_renamed_links(t, to, new_name);
    uint32_t directories = detach_directories(t, from, name);
    uint32_t others = exchange ? detach_directories(t, to, new_name) : 0;
    attach_directories(t, directories, to, new_name);
    attach_directories(t, others, from, name);
}

bool inode_rename_climbs(const struct inode_table *t)
{
    const struct inode_move *m = &t->move;
    const struct inode *workspace;
    if (!m->from || m->until_ns)
        return false;
    int from = plain_depth(m->from, &workspace), to = plain_depth(m->to, &workspace);
    return m->exchanges ? from != to : to < from;
}

bool inode_below_named(const struct inode *directory, const struct inode *parent, struct bytes name)
{
    const struct inode *i = directory;
    while (i && !is_at(i, parent, name))
        i = i->parent;
    return i;
}

void inode_rename_settled(struct inode_table *t, uint64_t number)
{
    if (t->move.number == number && t->move.until_ns)
        move_settle(t);
}

bool inode_rename_unsettled(const struct inode_table *t)
{
    return t->move.until_ns;
}

void inode_asked(struct inode_table *t, const struct inode *parent, struct bytes name)
{
    const struct inode_move *m = &t->move;
    /* Where something was to be replaced, the kernel may ask about that all the time. */
    if (m->to == parent && m->until_ns && !m->replaces &&
        bytes_equal(name, bytes_of(m->new_name, m->new_name_len)))
        move_settle(t);
}

int inode_depth(struct inode_table *t, const struct inode *directory, uint64_t now_ns,
                const struct inode **ret_workspace)
{
    const struct inode_move *m = &t->move;
    if (m->until_ns && now_ns >= m->until_ns)
        move_settle(t);
    int depth = plain_depth(directory, ret_workspace);
    if (!m->from || depth < 0)
        return depth;
    int below = 1; /* of i's parent, so far */
    for (const struct inode *i = directory; i; i = i->parent, below++) {
        if (!is_at(i, m->from, bytes_of(m->name, m->name_len)) &&
            !is_at(i, m->to, bytes_of(m->new_name, m->new_name_len)))
            continue;
        const struct inode *workspace;
        int from = plain_depth(m->from, &workspace), to = plain_depth(m->to, &workspace);
        int least = below + (from < to ? from : to);
        return least < depth ? least : depth;
    }
    return depth;
}

void inode_drop(struct inode_table *t, struct inode *i)
{
    /* A loop, not recursion: a parent may be freed with its last child, up to the root. */
    while (i && i != t->root && i->nlookup == 0 && i->pins == 0) {
        struct inode *parent = i->parent;
        if (parent) {
            (void)chains_remove(t, i, INODE_BY_NAME);
            parent->pins--;
        }
        uint32_t number = chains_remove(t, i, INODE_BY_ID);
        (void)chains_remove(t, i, INODE_BY_IDENTITY);
        t->count--;
        if (i->connection == t->connection && i->wire_refs)
            inode_give_back(t, i->node, i->wire_refs);
        content_unreferenced(t, i->ino, i->generation);
        known_gone(t, i);
        attrs_changed(t, i->ino, i->generation);
        name_free(i);
        pool_free(&t->pool, number);
        i = parent;
    }
}

void inode_unpin(struct inode_table *t, struct inode *i)
{
    if (!i)
        return;
    assert(i->pins > 0);
    i->pins--;
    inode_drop(t, i);
}

void inode_forget(struct inode_table *t, struct inode *i, uint64_t n)
{
    if (i == t->root)
        return;
    if (i->nlookup == UINT32_MAX)
        return; /* how many there were is not known any more */
    assert(n <= i->nlookup);
    i->nlookup -= (uint32_t)n;
    inode_drop(t, i);
}

void inode_attr_changed(struct inode_table *t, struct inode *i)
{
    i->stamp = ++t->stamp;
    known_changed(t, i);
    if (i->type == S_IFREG) {
        i->flags &= (uint8_t)~INODE_ALLOWED;
        i->dense = false;
    }
    tree_changed(t, i->ino, i->generation, false);
}

void inode_changed(struct inode_table *t, struct inode *i)
{
    inode_attr_changed(t, i);
    content_rewritten(i);
}

#include "prefetch.h"

#include <sys/stat.h>

#include "base/clock.h"
#include "coherence.h"
#include "disk.h"
#include "fetch.h"
#include "ops.h"

/* How deep a walk goes. */
#define DEPTH_MAX 64

/* READTREEs that one walk asks for. Stops a tree of which some is never told, as that of another
 * filesystem, from being asked for again and again. */
#define LISTINGS_MAX 8

/* Entries that a walk looks at before it comes back to the loop. Bounds how long one call takes in
 * a tree of which all is here already. */
#define STEPS_MAX 4096

/* With more entries a directory is entered after its neighbours: .git/objects after .git/refs. But
 * not when they fit well into the window. */
#define MANY_ENTRIES 64
#define MANY_ENTRIES_WINDOW ((size_t)16 << 10) /* for each */

/* And larger files are asked for after their neighbours: .git/index after .git/config. */
#define LARGE_FILE ((size_t)128 << 10)
#define LARGE_FILE_PART 8 /* of the window */

/* When so much of a walk was opened, a third of what came, or so many files, a fifth, or some files
 * of the directory that it is about, and the last of it so lately, somebody goes through the tree:
 * with several threads, or in another order, if then something is opened that was not asked for. */
#define CRAWL_LEAST ((size_t)512 << 10)
#define CRAWL_PART 3
#define CRAWL_FILES 12
#define CRAWL_FILES_PART 5
#define CRAWL_FILES_BESIDE 4
#define CRAWL_NS NSEC_PER_SEC

/* Less of a walk tells nothing of the next one. */
#define JUDGED_LEAST ((size_t)64 << 10)

/* What is passed in a directory, one after the other. */
enum pass { PASS_FILES, PASS_LARGE_FILES, PASS_DIRECTORIES, PASS_LARGE_DIRECTORIES, PASS_COUNT };

/* A directory of a walk. */
struct place {
    uint64_t ino, generation;
    size_t first;  /* the entries from here on, and then the others */
    size_t passed; /* of them, in this pass */
    enum pass pass;
};

struct walk {
    uint64_t number; /* 0: none */
    bool backward;
    size_t depth;
    size_t window;
    size_t asked, came, used; /* ever */
    size_t files;             /* that were used */
    uint64_t used_ns;         /* the last time */
    size_t listings;          /* asked for */
    struct place places[DEPTH_MAX];
};

struct prefetch {
    struct walk walks[PREFETCH_WALKS]; /* the newest first */
    uint64_t last_number;
    size_t first_window;
    size_t under_way;
    uint64_t ino, generation; /* directory of the file opened last */
    size_t index;             /* and which one it was */
};

/* --- the walk ----------------------------------------------------------------------------- */

static bool walk_push(struct walk *w, uint64_t ino, uint64_t generation, size_t first)
{
    if (w->depth == DEPTH_MAX)
        return false;
    w->places[w->depth++] = (struct place){.ino = ino, .generation = generation, .first = first};
    return true;
}

/* The index of the entry that is number p->passed, or -ENOENT: from first to the end, then from
 * before first to the start. */
static ssize_t place_index(const struct walk *w, const struct place *p, size_t count)
{
    if (!count)
        return -ENOENT;
    size_t first = p->first < count ? p->first : count - 1;
    size_t ahead = w->backward ? first + 1 : count - first;
    if (p->passed < ahead)
        return (ssize_t)(w->backward ? first - p->passed : first + p->passed);
    if (p->passed >= count)
        return -ENOENT;
    return (ssize_t)(w->backward ? p->passed : first - 1 - (p->passed - ahead));
}

/* Of a large file its ends are asked for. */
static size_t size_asked(const struct wire_attr *attr)
{
    return attr->size <= WIRE_FILE_MAX ? (size_t)attr->size : WIRE_FILE_HEAD + WIRE_FILE_TAIL;
}

static bool is_wanted(struct driver *d, const struct walk *w, const struct wire_dirent *entry)
{
    struct inode_table *t = &d->inodes;
    const struct wire_attr *attr = &entry->attr;
    const struct disk_key key = disk_key_of(attr);
    if (entry->type != S_IFREG || !entry->node || size_asked(attr) > w->window ||
        content_get(t, attr->ino, attr->generation) || disk_has(d->disk, &key))
        return false;
    /* What the kernel has of it, it has read already. */
    const struct inode *i = inode_identified(t, attr->ino, attr->generation, NULL);
    return !i || !(i->flags & INODE_CACHED);
}

/* Not all that is below was read ahead: it was too much. */
static bool lacks_listings(const struct inode_table *t, const struct tree_directory *listing)
{
    for (size_t i = 0; i < tree_count(listing); i++) {
        struct wire_dirent entry;
        tree_read(listing, i, &entry);
        if (entry.type == S_IFDIR && !tree_identified(t, entry.attr.ino, entry.attr.generation))
            return true;
    }
    return false;
}

/* Reads ahead what is below a directory, which may be none that the kernel knows. */
static void read_below(struct driver *d, struct walk *w, const struct place *p,
                       const struct wire_dirent *entry)
{
    struct inode_table *t = &d->inodes;
    struct inode *parent = inode_identified(t, p->ino, p->generation, NULL);
    struct inode *i = inode_identified(t, entry->attr.ino, entry->attr.generation, NULL);
    w->listings++;
    if (!i && (!parent || !entry->node ||
               inode_lend(t, entry->node, &entry->attr, parent, entry->name, &i) < 0))
        return;
    (void)inode_pin(i);
    (void)directory_read_below(d, entry->attr.ino, entry->attr.generation);
    inode_unpin(t, i);
}

/* Goes on in a directory, if it is its turn. False: not now, its listing is under way. */
static bool walk_enter(struct driver *d, struct walk *w, const struct place *p,
                       const struct wire_dirent *entry)
{
    const struct wire_attr *attr = &entry->attr;
    const struct tree_directory *below = tree_identified(&d->inodes, attr->ino, attr->generation);
    size_t count = below ? tree_count(below) : SIZE_MAX;
    size_t fit = w->window / MANY_ENTRIES_WINDOW;
    bool now = p->pass == PASS_LARGE_DIRECTORIES ? count > MANY_ENTRIES
                                                 : count <= MANY_ENTRIES || count <= fit;
    if (!now)
        return true;
    if (!below)
        return !directory_read_below(d, p->ino, p->generation);
    (void)walk_push(w, attr->ino, attr->generation, w->backward ? count - 1 : 0);
    if (w->listings < LISTINGS_MAX && lacks_listings(&d->inodes, below))
        read_below(d, w, p, entry);
    return true;
}

/* Of files that are wanted; one that came before its turn is so no more. */
static bool is_turn_of(const struct walk *w, const struct place *p, const struct wire_dirent *entry)
{
    uint64_t size = entry->attr.size;
    return p->pass == PASS_LARGE_FILES ? size > LARGE_FILE
                                       : size <= LARGE_FILE || size <= w->window / LARGE_FILE_PART;
}

/* The next file that is wanted. *steps: how many entries may be looked at. */
static bool walk_next(struct driver *d, struct walk *w, size_t *steps, struct wire_dirent *ret)
{
    struct inode_table *t = &d->inodes;
    for (; w->depth && *steps; --*steps) {
        struct place *p = &w->places[w->depth - 1];
        const struct tree_directory *listing = tree_identified(t, p->ino, p->generation);
        ssize_t index = listing ? place_index(w, p, tree_count(listing)) : -ENOENT;
        if (index < 0) {
            p->passed = 0;
            if (!listing || ++p->pass == PASS_COUNT)
                w->depth--;
            continue;
        }
        tree_read(listing, (size_t)index, ret);
        bool enters =
            p->pass >= PASS_DIRECTORIES && ret->type == S_IFDIR && ret->name.data[0] != '.';
        if (enters && !walk_enter(d, w, p, ret))
            return false;
        p->passed++;
        if (p->pass < PASS_DIRECTORIES && is_turn_of(w, p, ret) && is_wanted(d, w, ret))
            return true;
    }
    return false;
}

/* --- asking --------------------------------------------------------------------------------- */

static size_t flight_max(const struct prefetch *p)
{
    size_t max = PREFETCH_FLIGHT;
    for (size_t i = 0; i < PREFETCH_WALKS; i++)
        if (p->walks[i].window / 2 > max)
            max = p->walks[i].window / 2;
    return max;
}

static size_t walk_room(const struct walk *w)
{
    size_t open = w->asked - w->used;
    return open < w->window ? w->window - open : 0;
}

/* Sends one READFILES, if that is worth one. False: there is nothing more for it to do now. */
static bool walk_ask(struct driver *d, struct walk *w)
{
    struct prefetch *p = d->prefetch;
    struct fetch *f;
    struct wire_dirent entry;
    size_t steps = STEPS_MAX;
    size_t room = walk_room(w);
    if (room < w->window / 4 || room == 0 || fetch_new(d, w->number, true, &f) < 0)
        return false;
    while (fetch_bytes(f) < room && walk_next(d, w, &steps, &entry)) {
        struct content *c;
        if (fetch_add(f, entry.node, entry.attr.ino, entry.attr.generation, size_asked(&entry.attr),
                      &c) < 0) {
            w->places[w->depth - 1].passed--;
            break;
        }
    }
    size_t bytes = fetch_bytes(f);
    w->asked += bytes;
    p->under_way += bytes;
    fetch_send(f);
    return bytes;
}

/* Nothing of what came for it was opened, and somebody is elsewhere now. */
static bool is_left(const struct prefetch *p, const struct walk *w)
{
    return w != &p->walks[0] && w->came && !w->used;
}

/* There is room on the way, or, whatever those before have there, for the start of the newest. */
static bool may_ask(const struct prefetch *p, const struct walk *w)
{
    return p->under_way < flight_max(p) ||
           (w == &p->walks[0] && w->asked - w->came < PREFETCH_FLIGHT);
}

static void ask(struct driver *d)
{
    struct prefetch *p = d->prefetch;
    if (!coherence_live(d) || d->stopping)
        return;
    for (struct walk *w = p->walks; w < p->walks + PREFETCH_WALKS; w++)
        while (w->number && !is_left(p, w) && may_ask(p, w) && walk_ask(d, w))
            ;
}

void prefetch_listed(struct driver *d)
{
    if (d->prefetch)
        ask(d);
}

static struct walk *find_walk(struct prefetch *p, uint64_t number)
{
    for (size_t i = 0; i < PREFETCH_WALKS; i++)
        if (p->walks[i].number == number)
            return &p->walks[i];
    return NULL;
}

void prefetch_answered(struct driver *d, uint64_t walk, size_t bytes)
{
    struct walk *w = find_walk(d->prefetch, walk);
    if (w)
        w->came += bytes;
    d->prefetch->under_way -= bytes;
    ask(d);
}

/* --- when ------------------------------------------------------------------------------------ */

/* Much of what came for it was opened, and the last of it a moment ago. What was not may be yet.
 * beside: the next begins in the same directory. */
static bool is_crawled(const struct walk *w, bool beside, uint64_t now)
{
    bool much = w->used >= CRAWL_LEAST && w->used >= w->came / CRAWL_PART;
    bool many = w->files >= CRAWL_FILES && w->used >= w->came / CRAWL_FILES_PART;
    bool some = w->files >= CRAWL_FILES_BESIDE && beside;
    return w->number && (much || many || some) && now - w->used_ns < CRAWL_NS;
}

/* What the next walk begins with, by how the ones before went. */
static size_t next_window(struct prefetch *p, bool beside)
{
    const struct walk *before = &p->walks[0];
    uint64_t now = clock_monotonic_ns();
    if (!p->first_window)
        p->first_window = PREFETCH_FIRST;
    else if (before->came < JUDGED_LEAST)
        ; /* it tells nothing yet */
    else if (before->used > before->came / 2 && p->first_window < PREFETCH_MOST)
        p->first_window *= 2;
    else if (before->used < before->came / 2 && p->first_window > PREFETCH_LEAST &&
             !is_crawled(before, beside, now))
        p->first_window /= 2;
    size_t window = p->first_window;
    for (const struct walk *w = p->walks; w < p->walks + PREFETCH_WALKS; w++)
        if (is_crawled(w, beside && w == before, now) && PREFETCH_CRAWL * w->window > window)
            window = PREFETCH_CRAWL * w->window;
    return window < PREFETCH_WINDOW_MAX ? window : PREFETCH_WINDOW_MAX;
}

/* Makes room for a walk, and judges the one before. */
static struct walk *walk_new(struct prefetch *p, bool beside)
{
    size_t window = next_window(p, beside);
    memmove(&p->walks[1], &p->walks[0], sizeof p->walks - sizeof p->walks[0]);
    struct walk *w = &p->walks[0];
    w->number = ++p->last_number;
    w->window = window;
    w->asked = w->came = w->used = w->files = w->depth = w->listings = 0;
    return w;
}

/* The places of a directory and of those above it, as far as they are known; the topmost first. */
static void walk_start(struct driver *d, struct walk *w, const struct inode *directory,
                       size_t first)
{
    struct inode_table *t = &d->inodes;
    struct place up[DEPTH_MAX];
    size_t count = 0;
    const struct inode *i = directory;
    while (i->parent && !(i->flags & INODE_WORKSPACE) && count < DEPTH_MAX / 2) {
        struct tree_directory *listing = tree_find(t, i->parent);
        ssize_t index =
            listing && i->name_len ? tree_named(t, listing, inode_name_bytes(i)) : -ENOENT;
        if (index < 0)
            break;
        up[count++] = (struct place){
            .ino = i->parent->ino, .generation = i->parent->generation, .first = (size_t)index};
        i = i->parent;
    }
    while (count--)
        w->places[w->depth++] = up[count];
    (void)walk_push(w, directory->ino, directory->generation, first);
}

void prefetch_missed(struct driver *d, const struct inode *file)
{
    const struct inode *directory = file->parent;
    struct tree_directory *listing = directory ? tree_find(&d->inodes, directory) : NULL;
    ssize_t index = listing && file->name_len
                        ? tree_named(&d->inodes, listing, inode_name_bytes(file))
                        : -ENOENT;
    if (index < 0)
        return;
    if (!d->prefetch)
        d->prefetch = calloc(1, sizeof *d->prefetch);
    struct prefetch *p = d->prefetch;
    if (!p)
        return;
    bool same = p->ino == directory->ino && p->generation == directory->generation;
    struct walk *w = walk_new(p, same);
    w->backward = (size_t)index + 1 == tree_count(listing) || (same && (size_t)index < p->index);
    p->ino = directory->ino;
    p->generation = directory->generation;
    p->index = (size_t)index;
    walk_start(d, w, directory, (size_t)index);
    ask(d);
}

void prefetch_used(struct driver *d, const struct content *c)
{
    struct walk *w = d->prefetch && c->walk ? find_walk(d->prefetch, c->walk) : NULL;
    if (!w)
        return;
    w->used_ns = clock_monotonic_ns();
    w->used += c->size < w->asked - w->used ? c->size : w->asked - w->used;
    w->window += c->size;
    w->files++;
    if (w->window > PREFETCH_WINDOW_MAX)
        w->window = PREFETCH_WINDOW_MAX;
    ask(d);
}

void prefetch_free(struct driver *d)
{
    free(take_ptr(d->prefetch));
}

#include "store/snapshot.h"

#include "base/log.h"
#include "confine/policy_file.h"
#include "store/fault.h"
#include "store/file_copy.h"
#include "store/json_file.h"
#include "store/trash.h"
#include "store/rules_file.h"
#include "store/tree_file.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#define SNAPSHOT_FILE "snapshot.json"
#define SNAPSHOT_VERSION 1
#define TREE_DIRECTORY "tree"
#define TREE_FILE "tree.zst"
#define TREE_MODE 0755

void snapshot_release(struct snapshot *s)
{
    free(s->labels);
    meta_release(&s->meta);
    *s = (struct snapshot){0};
}

static void json_release(json_t **object)
{
    json_decref(*object);
}
#define _cleanup_json_ _cleanup_(json_release)

/* --- IDs ------------------------------------------------------------------------------- */

static bool is_id_byte(uint8_t c, bool first)
{
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9'))
        return true;
    return !first && (c == '-' || c == '_' || c == '.');
}

static bool parse_id(struct bytes id, char ret[WIRE_SNAPSHOT_ID_MAX + 1])
{
    if (id.len == 0 || id.len > WIRE_SNAPSHOT_ID_MAX)
        return false;
    for (size_t i = 0; i < id.len; i++)
        if (!is_id_byte(id.data[i], i == 0))
            return false;
    memcpy(ret, id.data, id.len);
    ret[id.len] = '\0';
    return true;
}

/* Told apart by people by when it was made, and never made twice. */
static int make_up_id(char ret[WIRE_SNAPSHOT_ID_MAX + 1])
{
    uint32_t random;
    time_t now = time(NULL);
    struct tm tm;
    char when[32];
    if (getrandom(&random, sizeof random, 0) != (ssize_t)sizeof random)
        return -EIO;
    if (!gmtime_r(&now, &tm) || strftime(when, sizeof when, "%Y%m%d-%H%M%S", &tm) == 0)
        return -EIO;
    (void)snprintf(ret, WIRE_SNAPSHOT_ID_MAX + 1, "%s-%08x", when, random);
    return 0;
}

/* --- snapshot.json ----------------------------------------------------------------------- */

static int write_snapshot(int fd, const struct snapshot *s)
{
    _cleanup_json_ json_t *object = json_pack(
        "{s:i, s:I, s:I, s:I, s:I, s:{s:I, s:I}, s:s}", "version", SNAPSHOT_VERSION, "flags",
        (json_int_t)s->flags, "entries", (json_int_t)s->entries, "size", (json_int_t)s->size,
        "stored", (json_int_t)s->stored, "created_at", "sec", (json_int_t)s->created_at.sec, "nsec",
        (json_int_t)s->created_at.nsec, "labels", s->labels);
    return object ? json_file_write(fd, SNAPSHOT_FILE, object) : -ENOMEM;
}

static bool parse_snapshot(const json_t *object, struct snapshot *s)
{
    json_int_t flags, entries, size, stored, sec, nsec;
    int version;
    const char *labels;
    if (json_unpack((json_t *)(uintptr_t)object, "{s:i, s:I, s:I, s:I, s:I, s:{s:I, s:I}, s:s}",
                    "version", &version, "flags", &flags, "entries", &entries, "size", &size,
                    "stored", &stored, "created_at", "sec", &sec, "nsec", &nsec, "labels",
                    &labels) < 0 ||
        version != SNAPSHOT_VERSION || entries < 0 || size < 0 || stored < 0 || nsec < 0 ||
        nsec > 999999999)
        return false;
    s->flags = (uint32_t)flags;
    s->entries = (uint64_t)entries;
    s->size = (uint64_t)size;
    s->stored = (uint64_t)stored;
    s->created_at = (struct wire_time){.sec = sec, .nsec = (uint32_t)nsec};
    s->labels = strdup(labels);
    return s->labels;
}

int snapshot_read(struct store *store, const char *id, struct snapshot *ret)
{
    char checked[WIRE_SNAPSHOT_ID_MAX + 1];
    if (!parse_id(bytes_of_string(id), checked))
        return -ENOENT;
    _cleanup_close_ int fd =
        openat(store->snapshots_fd, checked, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    _cleanup_json_ json_t *object = NULL;
    _cleanup_snapshot_ struct snapshot s = {0};
    int r = json_file_read(fd, SNAPSHOT_FILE, &object);
    if (r == 0)
        r = meta_read(fd, &s.meta);
    if (r < 0)
        return r == -ENOENT ? -EIO : r;
    if (!parse_snapshot(object, &s))
        return -EIO;
    memcpy(s.id, checked, sizeof s.id);
    *ret = s;
    s = (struct snapshot){0};
    return 0;
}

struct wire_snapshot snapshot_describe(const struct snapshot *s)
{
    return (struct wire_snapshot){.flags = s->flags,
                                  .entries = s->entries,
                                  .size = s->size,
                                  .stored = s->stored,
                                  .created_at = s->created_at,
                                  .id = bytes_of_string(s->id),
                                  .thread_id = bytes_of(s->meta.thread_id, s->meta.thread_id_len),
                                  .labels = bytes_of_string(s->labels)};
}

/* --- use --------------------------------------------------------------------------------- */

static bool is_used_locked(const struct store *store, const char *id)
{
    for (const struct snapshot_use *u = store->snapshot_uses; u; u = u->next)
        if (strcmp(u->id, id) == 0)
            return true;
    return false;
}

void snapshot_close(struct snapshot_use *use)
{
    struct store *store = use->store;
    (void)pthread_mutex_lock(&store->snapshots_lock);
    struct snapshot_use **at = &store->snapshot_uses;
    while (*at != use)
        at = &(*at)->next;
    *at = use->next;
    (void)pthread_mutex_unlock(&store->snapshots_lock);
    close_fd(&use->file_fd);
    close_fd(&use->tree_fd);
    close_fd(&use->fd);
    free(use);
}

int snapshot_open(struct store *store, struct bytes id, struct snapshot_use **ret)
{
    _cleanup_snapshot_use_ struct snapshot_use *use = NULL;
    struct snapshot_use *made = calloc(1, sizeof *made);
    if (!made)
        return -ENOMEM;
    *made = (struct snapshot_use){.store = store, .fd = -1, .tree_fd = -1, .file_fd = -1};
    if (!parse_id(id, made->id)) {
        free(made);
        return -ENOENT;
    }
    (void)pthread_mutex_lock(&store->snapshots_lock);
    made->next = store->snapshot_uses;
    store->snapshot_uses = use = made;
    (void)pthread_mutex_unlock(&store->snapshots_lock);
    use->fd = openat(store->snapshots_fd, use->id, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (use->fd < 0)
        return -errno;
    use->tree_fd = openat(use->fd, TREE_DIRECTORY, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (use->tree_fd < 0)
        use->file_fd = openat(use->fd, TREE_FILE, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (use->tree_fd < 0 && use->file_fd < 0)
        return errno == ENOENT ? -EIO : -errno;
    *ret = take_ptr(use);
    return 0;
}

/* --- taking ------------------------------------------------------------------------------ */

int snapshot_copy_rules(int from_fd, int to_fd, bool with_policy)
{
    _cleanup_visibility_rules_ struct visibility_rules *rules = NULL;
    int r = rules_file_read(from_fd, &rules);
    if (r == 0 && rules)
        r = rules_file_write(to_fd, visibility_rules_text(rules));
    if (r < 0 || !with_policy)
        return r;
    _cleanup_policy_ struct policy policy = {0};
    r = policy_file_read(from_fd, &policy);
    return r < 0 ? r : policy_file_write(to_fd, &policy);
}

/* Where blocks can be shared a copy costs nothing but its names. */
static int take_shared(struct store *store, int tree_fd, int fd, const struct tree_stop *stop,
                       struct snapshot *s, struct failure *f)
{
    const struct tree_reader_options reading = {.openat2_missing = store->openat2_missing};
    const struct tree_writer_options writing = {.own = true,
                                                .openat2_missing = store->openat2_missing};
    _cleanup_tree_writer_ struct tree_writer *writer = NULL;
    struct tree_counts counts;
    if (mkdirat(fd, TREE_DIRECTORY, TREE_MODE) < 0)
        return failure_set(f, -errno, "cannot make its directory: %s", strerror(errno));
    _cleanup_close_ int root = openat(fd, TREE_DIRECTORY, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int r = root < 0 ? -errno : tree_writer_new(root, &writing, &writer);
    if (r < 0)
        return failure_set(f, r, "cannot make its directory: %s", strerror(-r));
    r = tree_copy(tree_fd, &reading, writer, stop, f);
    if (r == 0)
        r = tree_writer_finish(writer, &counts, f);
    if (r < 0)
        return r;
    s->entries = counts.entries;
    s->size = counts.size;
    s->flags |= counts.shared ? WIRE_SNAPSHOT_SHARED : 0;
    s->stored = counts.shared ? 0 : counts.size;
    return 0;
}

static int take_file(struct store *store, int tree_fd, int fd, const struct tree_stop *stop,
                     struct snapshot *s, struct failure *f)
{
    const struct tree_reader_options reading = {.openat2_missing = store->openat2_missing};
    _cleanup_tree_file_ struct tree_file *file = NULL;
    struct tree_counts counts;
    struct stat st;
    _cleanup_close_ int out =
        openat(fd, TREE_FILE, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    int r = out < 0 ? -errno : tree_file_new(out, &file);
    if (r < 0)
        return failure_set(f, r, "cannot make its file: %s", strerror(-r));
    const struct tree_sink sink = {.part = tree_file_part, .context = file};
    r = tree_send(tree_fd, &reading, true, &sink, stop, &counts, f);
    if (r < 0)
        return r;
    r = tree_file_finish(file);
    if (r == 0 && fstat(out, &st) < 0)
        r = -errno;
    if (r < 0)
        return failure_set(f, r, "cannot write its file: %s", strerror(-r));
    s->entries = counts.entries;
    s->size = counts.size;
    s->stored = (uint64_t)st.st_size;
    return 0;
}

static int fill(struct store *store, const struct workspace *workspace, int fd,
                const struct tree_stop *stop, struct snapshot *s, struct failure *f)
{
    _cleanup_close_ int from = openat(store->workspaces_fd, workspace->name,
                                      O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    struct timespec now;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    s->created_at = (struct wire_time){.sec = now.tv_sec, .nsec = (uint32_t)now.tv_nsec};
    int r = from < 0 ? -errno : meta_read(from, &s->meta);
    if (r == 0 && s->meta.slot != workspace->slot)
        r = -ENOENT; /* another one by now */
    if (r == 0)
        r = snapshot_copy_rules(from, fd, true);
    if (r < 0)
        return failure_set(f, r, "cannot copy the workspace's settings: %s", strerror(-r));
    r = file_copy_shares(fd) ? take_shared(store, workspace->tree_fd, fd, stop, s, f)
                             : take_file(store, workspace->tree_fd, fd, stop, s, f);
    if (r < 0)
        return r;
    r = write_snapshot(fd, s);
    if (r == 0)
        r = meta_write(fd, &s->meta); /* which syncs the directory, last */
    return r < 0 ? failure_set(f, r, "cannot write what it is: %s", strerror(-r)) : 0;
}

static int build(struct store *store, struct workspace *workspace, const char *temporary,
                 const struct tree_stop *stop, struct snapshot *s, struct failure *f)
{
    _cleanup_close_ int fd =
        openat(store->tmp_fd, temporary, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return failure_set(f, -errno, "cannot open its directory: %s", strerror(errno));
    int r = fill(store, workspace, fd, stop, s, f);
    if (r < 0)
        return r;
    /* What was removed meanwhile was not read whole. */
    store_lock(store);
    bool removed = workspace->removed;
    store_unlock(store);
    if (removed)
        return failure_set(f, -ENOENT, "the workspace was removed meanwhile");
    fault_point(FAULT_SNAPSHOT_BUILT);
    r = store_rename_new(store->tmp_fd, temporary, store->snapshots_fd, s->id);
    if (r == 0)
        fault_point(FAULT_SNAPSHOT_NAMED);
    if (r == 0 && fsync(store->snapshots_fd) < 0)
        r = -errno;
    if (r == 0)
        fault_point(FAULT_SNAPSHOT_MADE);
    if (r == -EEXIST || r == -ENOTEMPTY)
        return failure_set(f, -EEXIST, "a snapshot of this ID exists");
    return r < 0 ? failure_set(f, r, "cannot put it in its place: %s", strerror(-r)) : 0;
}

static int check_labels(struct bytes labels, char **ret, struct failure *f)
{
    if (labels.len == 0)
        labels = bytes_of_string("{}");
    _cleanup_json_ json_t *object =
        json_loadb((const char *)labels.data, labels.len, JSON_REJECT_DUPLICATES, NULL);
    if (!json_is_object(object))
        return failure_set(f, -EINVAL, "labels: not a JSON object");
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value)
    {
        if (!json_is_string(value))
            return failure_set(f, -EINVAL, "labels: not all of them are strings");
    }
    *ret = json_dumps(object, JSON_COMPACT | JSON_SORT_KEYS);
    return *ret ? 0 : failure_set(f, -ENOMEM, "out of memory");
}

int snapshot_take(struct store *store, struct workspace *workspace,
                  const struct wire_snapshot_create *m, const struct tree_stop *stop,
                  struct snapshot *ret, struct failure *ret_failure)
{
    _cleanup_snapshot_ struct snapshot s = {.flags = m->flags & WIRE_SNAPSHOT_LIVE};
    char temporary[WIRE_SNAPSHOT_ID_MAX + 16];
    int r = check_labels(m->labels, &s.labels, ret_failure);
    if (r < 0)
        return r;
    if (m->id.len > 0 && !parse_id(m->id, s.id))
        return failure_set(ret_failure, -EINVAL,
                           "a snapshot's ID begins with a letter or digit, and has no others than "
                           "those, '-', '_' and '.'");
    if (m->id.len == 0 && make_up_id(s.id) < 0)
        return failure_set(ret_failure, -EIO, "no randomness");
    if (faccessat(store->snapshots_fd, s.id, F_OK, AT_SYMLINK_NOFOLLOW) == 0)
        return failure_set(ret_failure, -EEXIST, "a snapshot of this ID exists");
    (void)snprintf(temporary, sizeof temporary, "snapshot-%s", s.id);
    if (mkdirat(store->tmp_fd, temporary, 0700) < 0)
        return failure_set(ret_failure, -errno, "%s",
                           errno == EEXIST ? "a snapshot of this ID is being made"
                                           : strerror(errno));
    r = build(store, workspace, temporary, stop, &s, ret_failure);
    if (r < 0) {
        store_remove_built(store, temporary);
        return r;
    }
    *ret = s;
    s = (struct snapshot){0};
    return 0;
}

/* --- removing ----------------------------------------------------------------------------- */

int snapshot_remove(struct store *store, struct bytes id)
{
    char checked[WIRE_SNAPSHOT_ID_MAX + 1], trash[40];
    uint64_t random;
    if (!parse_id(id, checked))
        return -ENOENT;
    if (getrandom(&random, sizeof random, 0) != (ssize_t)sizeof random)
        return -EIO;
    (void)snprintf(trash, sizeof trash, "snapshot-%016llx", (unsigned long long)random);
    (void)pthread_mutex_lock(&store->snapshots_lock);
    /* Under the lock, so that nobody opens it in between. */
    int r = -EBUSY;
    if (!is_used_locked(store, checked))
        r = renameat(store->snapshots_fd, checked, store->trash_fd, trash) < 0 ? -errno : 0;
    (void)pthread_mutex_unlock(&store->snapshots_lock);
    if (r == 0)
        fault_point(FAULT_SNAPSHOT_TRASHED);
    if (r == 0 && fsync(store->snapshots_fd) < 0)
        r = -errno;
    if (r == 0)
        trash_wake(store->trash);
    return r;
}

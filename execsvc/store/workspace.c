#include "store/store_private.h"

#include "base/clock.h"
#include "base/log.h"
#include "confine/confinement.h"
#include "confine/policy_file.h"
#include "store/fault.h"
#include "store/grip.h"
#include "store/labels.h"
#include "store/meta.h"
#include "store/path.h"
#include "store/removal.h"
#include "store/rules_file.h"
#include "store/snapshot.h"
#include "store/trash.h"
#include "store/upkeep.h"
#include "store/workspace_source.h"
#include "store/view.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define TREE_DIRECTORY "tree"

/* The root of a workspace as its users see it; ROOT itself lets nobody else in. */
#define TREE_MODE 0755

/* --- references ------------------------------------------------------------------ */

struct workspace *workspace_ref_locked(struct workspace *workspace)
{
    workspace->refs++;
    return workspace;
}

static void workspace_free(struct workspace *workspace)
{
    close_fd(&workspace->tree_fd);
    (void)pthread_rwlock_destroy(&workspace->renames);
    free(workspace->path);
    free(workspace->name);
    free(workspace->thread_id);
    visibility_rules_unref(workspace->rules);
    free(workspace);
}

/* Not 0: what is to be written to its meta.json (meta_set_used). */
static uint64_t note_use_locked(const struct workspace *workspace, bool live)
{
    struct store *store = workspace->store;
    uint64_t write_ms = 0;
    if (!workspace->removed &&
        index_use(store->index, workspace->name, workspace->slot, live, &write_ms))
        upkeep_wake(store->upkeep);
    return write_ms;
}

void workspace_unref_locked(struct workspace *workspace)
{
    if (--workspace->refs > 0)
        return;
    (void)note_use_locked(workspace, false);
    /* One that was removed has left the table; its slot never comes again. */
    if (!workspace->removed)
        (void)table_take(&workspace->store->workspaces, workspace->slot);
    workspace_free(workspace);
}

void workspace_unref(struct workspace *workspace)
{
    struct store *store = workspace->store;
    store_lock(store);
    workspace_unref_locked(workspace);
    store_unlock(store);
}

int workspace_tree_fd(const struct workspace *workspace)
{
    return workspace->tree_fd;
}

const char *workspace_path(const struct workspace *workspace)
{
    return workspace->path;
}

struct bytes workspace_thread_id(const struct workspace *workspace)
{
    return bytes_of(workspace->thread_id, workspace->thread_id_len);
}

uint32_t workspace_slot(const struct workspace *workspace)
{
    return workspace->slot;
}

bool workspace_is_stopped(const struct workspace *workspace)
{
    return atomic_load(&workspace->stopped);
}

const char *workspace_name(const struct workspace *workspace)
{
    return workspace->name;
}

/* --- finding --------------------------------------------------------------------- */

static int workspace_new(struct store *store, const char *name, const struct meta *meta,
                         struct visibility_rules *rules, int tree_fd, const struct stat *st,
                         struct workspace **ret)
{
    struct workspace *w = calloc(1, sizeof *w);
    if (!w)
        return -ENOMEM;
    *w = (struct workspace){
        .store = store,
        .refs = 1,
        .slot = meta->slot,
        .stopped = meta->state == WIRE_WORKSPACE_STOPPED,
        .tree_fd = -1,
        .device = st->st_dev,
        .root_ino = st->st_ino,
        .name = strdup(name),
        .thread_id = malloc(meta->thread_id_len + 1), /* never of nothing */
        .thread_id_len = meta->thread_id_len,
        .created_at = meta->created_at,
    };
    /* Many clients making files must not keep a rename waiting for ever. */
    pthread_rwlockattr_t attributes;
    (void)pthread_rwlockattr_init(&attributes);
    (void)pthread_rwlockattr_setkind_np(&attributes, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
    (void)pthread_rwlock_init(&w->renames, &attributes);
    (void)pthread_rwlockattr_destroy(&attributes);
    if (asprintf(&w->path, "%s/workspaces/%s/%s", store->root, name, TREE_DIRECTORY) < 0)
        w->path = NULL;
    if (!w->name || !w->thread_id || !w->path) {
        workspace_free(w);
        return -ENOMEM;
    }
    memcpy(w->thread_id, meta->thread_id, meta->thread_id_len);
    w->tree_fd = tree_fd;
    w->rules = rules ? visibility_rules_ref(rules) : NULL;
    *ret = w;
    return 0;
}

/* The one object of a workspace that is in use, or a new one. Takes tree_fd on success. */
static int workspace_intern(struct store *store, const char *name, const struct meta *meta,
                            struct visibility_rules *rules, int *tree_fd, const struct stat *st,
                            struct workspace **ret, uint64_t *ret_write_ms)
{
    store_lock(store);
    struct workspace *w = table_get(&store->workspaces, meta->slot);
    int r = 0;
    if (w && w->device == st->st_dev && w->root_ino == st->st_ino) {
        w->refs++;
    } else if (w) {
        r = -EIO; /* two directories with one slot: somebody copied a workspace's directory */
    } else {
        r = workspace_new(store, name, meta, rules, *tree_fd, st, &w);
        if (r == 0) {
            (void)take_fd(tree_fd);
            r = table_put(&store->workspaces, meta->slot, w, NULL);
            if (r < 0)
                workspace_free(w);
        }
    }
    *ret_write_ms = r == 0 ? note_use_locked(w, true) : 0;
    store_unlock(store);
    if (r == 0)
        *ret = w;
    return r;
}

/* Opens workspaces/NAME. Under store.names. */
static int workspace_load(struct store *store, const char *name, struct meta *ret_meta, int *ret_fd)
{
    _cleanup_close_ int fd =
        openat(store->workspaces_fd, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    int r = meta_read(fd, ret_meta);
    if (r < 0)
        return r == -ENOENT ? -EIO : r;
    *ret_fd = take_fd(&fd);
    return 0;
}

int workspace_find_locked(struct store *store, const char *name, const struct bytes *thread_id,
                          struct workspace **ret)
{
    _cleanup_close_ int fd = -1;
    _cleanup_meta_ struct meta meta = {0};
    int r = workspace_load(store, name, &meta, &fd);
    if (r < 0)
        return r;
    if (thread_id && !bytes_equal(*thread_id, bytes_of(meta.thread_id, meta.thread_id_len)))
        return -ENOENT;
    _cleanup_close_ int tree_fd =
        openat(fd, TREE_DIRECTORY, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    struct stat st;
    if (tree_fd < 0 || fstat(tree_fd, &st) < 0)
        return errno == ENOENT ? -EIO : -errno;
    struct visibility_rules *rules;
    r = rules_file_read(fd, &rules);
    if (r < 0)
        return r;
    uint64_t used_ms, write_ms = 0;
    r = meta_used(fd, &used_ms);
    if (r == 0)
        r = index_put(store->index, name, &meta, used_ms);
    if (r == 0)
        r = workspace_intern(store, name, &meta, rules, &tree_fd, &st, ret, &write_ms);
    if (write_ms)
        (void)meta_set_used(fd, write_ms);
    visibility_rules_unref(rules);
    return r;
}

int workspace_read(struct store *store, const char *name)
{
    _cleanup_close_ int fd = -1;
    _cleanup_meta_ struct meta meta = {0};
    uint64_t used_ms;
    (void)pthread_rwlock_rdlock(&store->names);
    int r = workspace_load(store, name, &meta, &fd);
    if (r == 0)
        r = meta_used(fd, &used_ms);
    if (r == 0)
        r = index_put(store->index, name, &meta, used_ms);
    else if (r == -ENOENT)
        index_drop(store->index, name, 0);
    bool again = r == -ENOMEM || r == -EMFILE || r == -ENFILE;
    if (r < 0 && !again)
        index_put_broken(store->index, name);
    (void)pthread_rwlock_unlock(&store->names);
    return again ? r : 0;
}

int workspace_key_name(struct bytes key, uint32_t flags, char ret_name[THREAD_NAME_MAX + 1],
                       const struct bytes **ret_id, const struct bytes *key_place)
{
    if (flags & ~(uint32_t)(WIRE_WORKSPACE_BY_NAME | WIRE_WORKSPACE_EXCLUSIVE))
        return -EINVAL;
    if (!(flags & WIRE_WORKSPACE_BY_NAME)) {
        *ret_id = key_place;
        return thread_id_to_name(key, ret_name);
    }
    *ret_id = NULL;
    uint8_t id[THREAD_ID_MAX];
    int r = thread_id_from_name(key, id);
    if (r < 0 && r != -ENODATA)
        return -ENOENT; /* no workspace can have this name */
    memcpy(ret_name, key.data, key.len);
    ret_name[key.len] = '\0';
    return 0;
}

int store_workspace_find(struct store *store, struct bytes key, uint32_t workspace_flags,
                         struct workspace **ret)
{
    char name[THREAD_NAME_MAX + 1];
    const struct bytes *id;
    int r = workspace_key_name(key, workspace_flags, name, &id, &key);
    if (r < 0)
        return r;
    (void)pthread_rwlock_rdlock(&store->names);
    r = workspace_find_locked(store, name, id, ret);
    (void)pthread_rwlock_unlock(&store->names);
    return r;
}

/* --- making ---------------------------------------------------------------------- */

/* Its tree, and what stays beside it of where that is from. */
static int build_from(struct store *store, const struct workspace_source *source, int fd,
                      bool with_policy, struct failure *f)
{
    int r = 0;
    if (source->rules_fd >= 0)
        r = snapshot_copy_rules(source->rules_fd, fd, with_policy);
    if (r < 0)
        return failure_set(f, r, "cannot copy the settings that belong to the files: %s",
                           strerror(-r));
    return workspace_source_build(store, source, fd, f);
}

/* Builds the workspace in tmp/, durable. policy NULL: as where it is from. */
static int build(struct store *store, const char *temporary, const struct meta *meta,
                 const struct policy *policy, const struct workspace_source *source,
                 struct failure *f)
{
    if (mkdirat(store->tmp_fd, temporary, 0700) < 0)
        return -errno;
    fault_point(FAULT_WORKSPACE_BUILDING);
    _cleanup_close_ int fd =
        openat(store->tmp_fd, temporary, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    int r = 0;
    if (source)
        r = build_from(store, source, fd, !policy, f);
    else if (mkdirat(fd, TREE_DIRECTORY, TREE_MODE) < 0)
        r = -errno;
    if (r == 0 && policy)
        r = policy_file_write(fd, policy);
    return r < 0 ? r : meta_write(fd, meta); /* syncs fd, and so tree's name, last */
}

void store_remove_built(struct store *store, const char *temporary)
{
    if (trash_take(store, store->tmp_fd, temporary, temporary) == 0)
        trash_wake(store->trash);
}

int store_rename_new(int from_fd, const char *from, int to_fd, const char *to)
{
    if (renameat2(from_fd, from, to_fd, to, RENAME_NOREPLACE) == 0)
        return 0;
    if (errno != EINVAL)
        return -errno;
    /* A filesystem without the flag. Nobody else makes names here, and a directory never
     * replaces one that is not empty. */
    return renameat(from_fd, from, to_fd, to) < 0 ? -errno : 0;
}

static uint64_t realtime_ms(const struct timespec *t)
{
    return (uint64_t)t->tv_sec * 1000 + (uint64_t)t->tv_nsec / NSEC_PER_MSEC;
}

/* Takes labels. Under store.names for writing. */
static int begin_meta(struct store *store, const struct wire_workspace_create *q, char **labels,
                      struct meta *ret)
{
    struct timespec now;
    int r = store_take_slot(store, &ret->slot);
    if (r < 0)
        return r;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    memcpy(ret->thread_id, q->thread_id.data, q->thread_id.len);
    ret->thread_id_len = q->thread_id.len;
    ret->created_at = (struct wire_time){.sec = now.tv_sec, .nsec = (uint32_t)now.tv_nsec};
    ret->state = WIRE_WORKSPACE_RUNNING;
    ret->revision = 1;
    ret->idle_ms = q->idle_ms;
    ret->expires_ms = q->ttl_ms ? realtime_ms(&now) + q->ttl_ms : 0;
    ret->labels = take_ptr(*labels);
    return 0;
}

static int give_name_locked(struct store *store, const char *temporary, const char *name)
{
    fault_point(FAULT_WORKSPACE_BUILT);
    int r = store_rename_new(store->tmp_fd, temporary, store->workspaces_fd, name);
    if (r < 0)
        return r;
    fault_point(FAULT_WORKSPACE_NAMED);
    if (fsync(store->workspaces_fd) < 0)
        return -errno;
    fault_point(FAULT_WORKSPACE_MADE);
    return 0;
}

static int create_locked(struct store *store, const struct wire_workspace_create *q,
                         const char *name, const struct policy *policy, char **labels)
{
    _cleanup_meta_ struct meta meta = {0};
    char temporary[16];
    int r = begin_meta(store, q, labels, &meta);
    if (r < 0)
        return r;
    (void)snprintf(temporary, sizeof temporary, "%u", meta.slot);
    r = build(store, temporary, &meta, policy, NULL, NULL);
    if (r == 0)
        r = give_name_locked(store, temporary, name);
    if (r < 0)
        store_remove_built(store, temporary);
    return r;
}

/* Like it, but for what takes long: nobody waits for that but who has asked. Two who make the same
 * at once both build it, and the second is refused. */
static int create_from(struct store *store, const struct wire_workspace_create *q, const char *name,
                       const struct policy *policy, char **labels,
                       const struct workspace_source *source, struct workspace **ret,
                       struct failure *f)
{
    _cleanup_meta_ struct meta meta = {0};
    char temporary[16];
    struct workspace *there;
    static const char exists[] = "a workspace of this ID exists, and is as it was";
    (void)pthread_rwlock_wrlock(&store->names);
    int r = workspace_find_locked(store, name, &q->thread_id, &there);
    if (r == 0)
        workspace_unref(there);
    r = r == 0 ? -EEXIST : r == -ENOENT ? begin_meta(store, q, labels, &meta) : r;
    (void)pthread_rwlock_unlock(&store->names);
    if (r == -EEXIST)
        return failure_set(f, r, "%s", exists);
    if (r < 0)
        return r;
    (void)snprintf(temporary, sizeof temporary, "%u", meta.slot);
    r = build(store, temporary, &meta, policy, source, f);
    (void)pthread_rwlock_wrlock(&store->names);
    bool lost = false;
    if (r == 0) {
        r = give_name_locked(store, temporary, name);
        lost = r == -ENOTEMPTY || r == -EEXIST;
    }
    if (r == 0)
        r = workspace_find_locked(store, name, &q->thread_id, ret);
    (void)pthread_rwlock_unlock(&store->names);
    if (r < 0)
        store_remove_built(store, temporary);
    return lost ? failure_set(f, -EEXIST, "%s", exists) : r;
}

static int read_policy(const struct store *store, struct bytes text, struct policy *ret,
                       struct failure *ret_failure)
{
    int r = text.len == 0 ? policy_copy(&store->policy, ret)
                          : policy_parse(text, &store->policy, ret, ret_failure);
    for (size_t i = 0; r == 0 && i < ret->require_count; i++)
        r = confinement_check_name(ret->require[i], ret_failure);
    return r;
}

int store_set_policy(struct store *store, const char *policy, const char *from,
                     struct failure *ret_failure)
{
    struct failure why;
    _cleanup_policy_ struct policy p = {0};
    int r = read_policy(store, bytes_of_string(policy), &p, &why);
    if (r < 0)
        return failure_set(ret_failure, r, "%s: %s", from, why.text);
    policy_release(&store->policy);
    store->policy = p;
    p = (struct policy){0};
    return 0;
}

static int check_create(const struct wire_workspace_create *q, struct failure *f)
{
    const uint32_t sources = WIRE_WORKSPACE_FROM_STREAM | WIRE_WORKSPACE_FROM_SNAPSHOT |
                             WIRE_WORKSPACE_FROM_WORKSPACE | WIRE_WORKSPACE_LIVE;
    if (q->flags & ~(WIRE_WORKSPACE_EXCLUSIVE | sources))
        return -EINVAL;
    if (q->ttl_ms > WIRE_LIFE_MAX_MS)
        return failure_set(f, -EINVAL, "ttl: too long");
    if (q->idle_ms > WIRE_LIFE_MAX_MS)
        return failure_set(f, -EINVAL, "idle TTL: too long");
    return 0;
}

/* Only who finds none waits for who makes one. */
static int find_or_create(struct store *store, const struct wire_workspace_create *q,
                          const char *name, const struct policy *policy, char **labels,
                          struct workspace **ret, bool *ret_created)
{
    (void)pthread_rwlock_rdlock(&store->names);
    int r = workspace_find_locked(store, name, &q->thread_id, ret);
    (void)pthread_rwlock_unlock(&store->names);
    if (r == -ENOENT) {
        (void)pthread_rwlock_wrlock(&store->names);
        r = workspace_find_locked(store, name, &q->thread_id, ret);
        if (r == -ENOENT) {
            r = create_locked(store, q, name, policy, labels);
            if (r == 0)
                r = workspace_find_locked(store, name, &q->thread_id, ret);
            *ret_created = r == 0;
        }
        (void)pthread_rwlock_unlock(&store->names);
    }
    if (r == 0 && !*ret_created && ((q->flags & WIRE_WORKSPACE_EXCLUSIVE) || q->policy.len > 0))
        r = -EEXIST;
    return r;
}

int workspace_create(struct store *store, const struct wire_workspace_create *q,
                     const struct workspace_source *source, struct workspace **ret,
                     bool *ret_created, struct failure *ret_failure)
{
    char name[THREAD_NAME_MAX + 1];
    ret_failure->text[0] = 0;
    int r = check_create(q, ret_failure);
    if (r == 0)
        r = thread_id_to_name(q->thread_id, name);
    if (r < 0)
        return r;
    _cleanup_policy_ struct policy own = {0};
    _cleanup_free_ char *labels = NULL;
    r = read_policy(store, q->policy, &own, ret_failure);
    if (r == 0)
        r = labels_parse(q->labels, &labels, ret_failure);
    if (r < 0)
        return r;
    _cleanup_workspace_ struct workspace *workspace = NULL;
    bool created = false;
    if (source) {
        bool inherits = source->rules_fd >= 0 && q->policy.len == 0;
        r = create_from(store, q, name, inherits ? NULL : &own, &labels, source, &workspace,
                        ret_failure);
        created = r == 0;
    } else {
        r = find_or_create(store, q, name, &own, &labels, &workspace, &created);
    }
    if (r < 0)
        return r;
    if (created && (q->ttl_ms || q->idle_ms))
        upkeep_wake(store->upkeep);
    *ret = take_ptr(workspace);
    *ret_created = created;
    return 0;
}

/* --- removing -------------------------------------------------------------------- */

bool workspace_claim(struct workspace *workspace)
{
    store_lock(workspace->store);
    bool claimed = !workspace->claimed;
    workspace->claimed = true;
    store_unlock(workspace->store);
    return claimed;
}

void workspace_disclaim(struct workspace *workspace)
{
    store_lock(workspace->store);
    workspace->claimed = false;
    store_unlock(workspace->store);
}

/* From now on every request on the workspace is answered ESTALE. */
static void mark_removed(struct workspace *workspace)
{
    struct store *store = workspace->store;
    store_lock(store);
    workspace->removed = true;
    (void)table_take(&store->workspaces, workspace->slot);
    store_unlock(store);
}

int workspace_remove_locked(struct store *store, struct workspace *workspace)
{
    char trash_name[16];
    if (!workspace_claim(workspace))
        return -EBUSY;
    (void)snprintf(trash_name, sizeof trash_name, "%u", workspace->slot);
    int r = trash_take(store, store->workspaces_fd, workspace->name, trash_name);
    if (r < 0) {
        workspace_disclaim(workspace);
        return r;
    }
    mark_removed(workspace);
    index_drop(store->index, workspace->name, workspace->slot);
    fault_point(FAULT_WORKSPACE_TRASHED);
    if (fsync(store->workspaces_fd) < 0)
        return -errno;
    fault_point(FAULT_WORKSPACE_REMOVED);
    return 0;
}

void workspace_removed(struct store *store)
{
    /* Descriptors kept for the workspace's directories would keep them from going. */
    grip_trim(store, 0);
    trash_wake(store->trash);
}

int workspace_remove(struct store *store, struct bytes key, uint32_t flags)
{
    char name[THREAD_NAME_MAX + 1];
    const struct bytes *id;
    int r = workspace_key_name(key, flags & ~(uint32_t)WIRE_WORKSPACE_FORCE, name, &id, &key);
    if (r < 0)
        return r;
    _cleanup_workspace_ struct workspace *workspace = NULL;
    (void)pthread_rwlock_wrlock(&store->names);
    r = workspace_find_locked(store, name, id, &workspace);
    if (r == 0)
        r = workspace_remove_locked(store, workspace);
    (void)pthread_rwlock_unlock(&store->names);
    if (r == 0)
        workspace_removed(store);
    return r;
}

/* --- visibility ------------------------------------------------------------------ */

int workspace_visibility(struct store *store, struct bytes key, uint32_t flags,
                         struct visibility_rules **ret_service, struct visibility_rules **ret)
{
    _cleanup_workspace_ struct workspace *workspace = NULL;
    int r = store_workspace_find(store, key, flags, &workspace);
    if (r < 0)
        return r;
    store_lock(store);
    *ret_service = store->rules ? visibility_rules_ref(store->rules) : NULL;
    *ret = workspace->rules ? visibility_rules_ref(workspace->rules) : NULL;
    store_unlock(store);
    return 0;
}

/* Behind the rules there are, on a line of its own. */
static int join_rules(const struct visibility_rules *before, struct bytes more, struct buffer *ret)
{
    struct bytes old = visibility_rules_text(before);
    int r = buffer_append(ret, old.data, old.len);
    if (r == 0 && old.len && old.data[old.len - 1] != '\n')
        r = buffer_append_u8(ret, '\n');
    return r < 0 ? r : buffer_append(ret, more.data, more.len);
}

/* Under store.names for writing, so that nobody reads the file meanwhile and no other change
 * is lost. */
static int set_visibility_locked(struct workspace *workspace, bool append, struct bytes text,
                                 struct failure *f)
{
    struct store *store = workspace->store;
    _cleanup_buffer_ struct buffer joined = {0};
    if (append && workspace->rules) {
        int r = join_rules(workspace->rules, text, &joined);
        if (r < 0)
            return r;
        text = buffer_view(&joined);
    }
    struct visibility_rules *rules = NULL;
    _cleanup_close_ int fd = openat(store->workspaces_fd, workspace->name,
                                    O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    int r = text.len ? visibility_rules_parse(text, &rules, f) : 0;
    if (r == 0)
        r = rules_file_write(fd, text);
    if (r < 0) {
        visibility_rules_unref(rules);
        return r;
    }
    store_lock(store);
    struct visibility_rules *old = workspace->rules;
    workspace->rules = rules;
    view_changed_locked(store, &workspace->view_changed);
    store_unlock(store);
    visibility_rules_unref(old);
    return 0;
}

int workspace_set_visibility(struct store *store, struct bytes key, uint32_t flags,
                             struct bytes rules, struct failure *ret_failure)
{
    char name[THREAD_NAME_MAX + 1];
    const struct bytes *id;
    bool append = flags & WIRE_WORKSPACE_APPEND;
    int r = workspace_key_name(key, flags & ~(uint32_t)WIRE_WORKSPACE_APPEND, name, &id, &key);
    if (r < 0)
        return r;
    _cleanup_workspace_ struct workspace *workspace = NULL;
    (void)pthread_rwlock_wrlock(&store->names);
    r = workspace_find_locked(store, name, id, &workspace);
    if (r == 0)
        r = set_visibility_locked(workspace, append, rules, ret_failure);
    (void)pthread_rwlock_unlock(&store->names);
    return r;
}

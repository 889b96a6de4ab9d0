/* What changes about a workspace while it is there, and how it ends by itself. */
#include "store/store_private.h"

#include "base/clock.h"
#include "store/fault.h"
#include "store/labels.h"
#include "store/upkeep.h"

#include <fcntl.h>
#include <string.h>
#include <time.h>

static uint64_t now_ms(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / NSEC_PER_MSEC;
}

/* --- changing -------------------------------------------------------------------- */

static int check_request(const struct wire_workspace_set *q, struct failure *f)
{
    const uint32_t known = WIRE_WORKSPACE_SET_LABELS | WIRE_WORKSPACE_SET_MERGE |
                           WIRE_WORKSPACE_SET_TTL | WIRE_WORKSPACE_SET_IDLE |
                           WIRE_WORKSPACE_SET_STATE;
    const uint32_t both = WIRE_WORKSPACE_SET_LABELS | WIRE_WORKSPACE_SET_MERGE;
    if ((q->valid & ~known) || (q->valid & both) == both)
        return failure_set(f, -EINVAL, "unknown parts, or labels twice");
    if ((q->valid & WIRE_WORKSPACE_SET_STATE) && q->state != WIRE_WORKSPACE_RUNNING &&
        q->state != WIRE_WORKSPACE_STOPPED)
        return failure_set(f, -EINVAL, "state: neither running nor stopped");
    if ((q->valid & WIRE_WORKSPACE_SET_TTL) && q->ttl_ms > WIRE_LIFE_MAX_MS)
        return failure_set(f, -EINVAL, "ttl: too long");
    if ((q->valid & WIRE_WORKSPACE_SET_IDLE) && q->idle_ms > WIRE_LIFE_MAX_MS)
        return failure_set(f, -EINVAL, "idle TTL: too long");
    return 0;
}

static int set_labels(struct meta *meta, const struct wire_workspace_set *q, bool *changed,
                      struct failure *f)
{
    char *labels = NULL;
    int r = 0;
    if (q->valid & WIRE_WORKSPACE_SET_LABELS)
        r = labels_parse(q->labels, &labels, f);
    else if (q->valid & WIRE_WORKSPACE_SET_MERGE)
        r = labels_merge(meta->labels, q->labels, &labels, f);
    if (r < 0 || !labels)
        return r;
    *changed = strcmp(meta->labels, labels) != 0;
    free(meta->labels);
    meta->labels = labels;
    return 0;
}

/* Makes of meta what it is to be. The revision is another one only when that is something else:
 * who compares it would be told of a change that was none. */
static int change(struct meta *meta, const struct wire_workspace_set *q, bool *ret_changed,
                  struct failure *f)
{
    *ret_changed = false;
    if (q->revision != 0 && q->revision != meta->revision)
        return failure_set(f, -EREMCHG,
                           "the workspace was changed meanwhile: it has revision %llu, not %llu",
                           (unsigned long long)meta->revision, (unsigned long long)q->revision);
    bool changed = false;
    int r = set_labels(meta, q, &changed, f);
    if (r < 0)
        return r;
    uint64_t expires_ms = q->ttl_ms ? now_ms() + q->ttl_ms : 0;
    if (q->valid & WIRE_WORKSPACE_SET_TTL) {
        changed |= meta->expires_ms != expires_ms;
        meta->expires_ms = expires_ms;
    }
    if (q->valid & WIRE_WORKSPACE_SET_IDLE) {
        changed |= meta->idle_ms != q->idle_ms;
        meta->idle_ms = q->idle_ms;
    }
    if (q->valid & WIRE_WORKSPACE_SET_STATE) {
        changed |= meta->state != (enum wire_workspace_state)q->state;
        meta->state = (enum wire_workspace_state)q->state;
    }
    meta->revision += changed;
    *ret_changed = changed;
    return 0;
}

static int set_locked(struct workspace *w, const struct wire_workspace_set *q, struct failure *f)
{
    struct store *store = w->store;
    _cleanup_meta_ struct meta meta = {0};
    _cleanup_close_ int fd =
        openat(store->workspaces_fd, w->name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    bool changed = false;
    int r = meta_read(fd, &meta);
    if (r == 0)
        r = change(&meta, q, &changed, f);
    if (r == 0 && changed)
        r = meta_write(fd, &meta);
    if (r < 0 || !changed)
        return r;
    /* The new file's time is that of now, and the workspace is in use. */
    (void)meta_set_used(fd, now_ms() + INDEX_AHEAD_MS);
    atomic_store(&w->stopped, meta.state == WIRE_WORKSPACE_STOPPED);
    r = index_put(store->index, w->name, &meta, 0);
    fault_point(FAULT_WORKSPACE_SET);
    return r;
}

int workspace_set(struct store *store, const struct wire_workspace_set *q,
                  char ret_name[WIRE_NAME_MAX + 1], struct failure *ret_failure)
{
    struct bytes key = q->key;
    const struct bytes *id;
    ret_failure->text[0] = 0;
    int r = check_request(q, ret_failure);
    if (r == 0)
        r = workspace_key_name(key, q->flags, ret_name, &id, &key);
    if (r < 0)
        return r;
    _cleanup_workspace_ struct workspace *workspace = NULL;
    (void)pthread_rwlock_wrlock(&store->names);
    r = workspace_find_locked(store, ret_name, id, &workspace);
    if (r == 0)
        r = set_locked(workspace, q, ret_failure);
    (void)pthread_rwlock_unlock(&store->names);
    if (r == 0)
        upkeep_wake(store->upkeep);
    return r;
}

int store_check_set(struct store *store, const struct wire_workspace_set *q,
                    struct failure *ret_failure)
{
    struct bytes key = q->key;
    const struct bytes *id;
    char name[THREAD_NAME_MAX + 1];
    ret_failure->text[0] = 0;
    int r = check_request(q, ret_failure);
    if (r == 0)
        r = workspace_key_name(key, q->flags, name, &id, &key);
    if (r < 0)
        return r;
    _cleanup_close_ int fd = -1;
    _cleanup_meta_ struct meta meta = {0};
    (void)pthread_rwlock_rdlock(&store->names);
    fd = openat(store->workspaces_fd, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    r = fd < 0 ? -errno : meta_read(fd, &meta);
    (void)pthread_rwlock_unlock(&store->names);
    if (r == 0 && id && !bytes_equal(*id, bytes_of(meta.thread_id, meta.thread_id_len)))
        r = -ENOENT;
    bool changed;
    return r < 0 ? r : change(&meta, q, &changed, ret_failure);
}

/* --- ending ---------------------------------------------------------------------- */

void store_set_expired(struct store *store,
                       void (*expired)(void *context, const struct index_over *over), void *context)
{
    upkeep_set_expired(store->upkeep, expired, context);
}

/* Whoever begins to use it must look it up, which waits for store.names. */
int store_expire(struct store *store, const struct index_over *over)
{
    struct workspace *workspace = NULL;
    int r = -EBUSY;
    (void)pthread_rwlock_wrlock(&store->names);
    if (index_is_over(store->index, over->name, over->slot))
        r = workspace_find_locked(store, over->name, NULL, &workspace);
    if (r == 0 && workspace->slot == over->slot)
        r = workspace_remove_locked(store, workspace);
    (void)pthread_rwlock_unlock(&store->names);
    if (workspace)
        workspace_unref(workspace);
    if (r == 0)
        workspace_removed(store);
    return r;
}

void store_used(struct store *store, const struct index_over *over)
{
    index_used_before(store->index, over->name, 0);
}

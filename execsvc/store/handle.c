#include "store/handle.h"

#include "store/unnamed.h"

int handle_reserve(struct file_session *session)
{
    struct store *store = session->store;
    int r = 0;
    store_lock(store);
    if (session->handle_count >= store->limits.session_handles) {
        r = -EMFILE;
    } else if (store->handle_count >= store->limits.handles) {
        r = -ENFILE;
    } else {
        session->handle_count++;
        store->handle_count++;
    }
    store_unlock(store);
    return r;
}

void handle_unreserve(struct file_session *session)
{
    struct store *store = session->store;
    store_lock(store);
    session->handle_count--;
    store->handle_count--;
    store_unlock(store);
}

int handle_new(struct file_session *session, struct node *node, int fd, bool writable,
               uint64_t *ret_number)
{
    struct store *store = session->store;
    struct handle *handle = malloc(sizeof *handle);
    if (!handle)
        return -ENOMEM;
    *handle = (struct handle){
        .fd = fd,
        .refs = 1,
        .node = node,
        .directory = node->type == S_IFDIR,
        .writable = writable,
    };
    int r = -pthread_mutex_init(&handle->position_lock, NULL);
    if (r < 0) {
        free(handle);
        return r;
    }
    store_lock(store);
    uint64_t number = store->last_number + 1;
    r = table_put(&session->handles, number, handle, NULL);
    if (r == 0) {
        store->last_number = handle->number = number;
        handle->after = node->handles;
        if (handle->after)
            handle->after->before = handle;
        node->handles = handle;
        node->refs++;
    }
    store_unlock(store);
    if (r < 0) {
        (void)pthread_mutex_destroy(&handle->position_lock);
        free(handle);
        return r;
    }
    *ret_number = number;
    return 0;
}

int handle_get(struct file_session *session, uint64_t number, struct handle **ret)
{
    struct store *store = session->store;
    int r = -EBADF;
    store_lock(store);
    struct handle *handle = table_get(&session->handles, number);
    if (handle && handle->node->workspace->removed) {
        r = -ESTALE;
    } else if (handle) {
        handle->refs++;
        *ret = handle;
        r = 0;
    }
    store_unlock(store);
    return r;
}

/* *ret_fd: to be closed when store.lock has been let go, since closing a deleted file frees its
 * blocks; -1: still in use. *ret_unnamed: likewise to be dropped. */
static void unref_locked(struct handle *handle, int *ret_fd, struct unnamed **ret_unnamed)
{
    *ret_fd = -1;
    *ret_unnamed = NULL;
    if (--handle->refs > 0)
        return;
    struct node *node = handle->node;
    *ret_unnamed = handle->unnamed;
    *(handle->before ? &handle->before->after : &node->handles) = handle->after;
    if (handle->after)
        handle->after->before = handle->before;
    *ret_fd = handle->fd;
    node_unref_locked(node);
    (void)pthread_mutex_destroy(&handle->position_lock);
    free(handle);
}

int handle_change(struct handle *handle, bool behind)
{
    if (!behind)
        handle->failed = 0;
    return handle->failed;
}

void handle_unref(struct handle *handle)
{
    struct store *store = handle->node->workspace->store;
    _cleanup_close_ int fd = -1;
    struct unnamed *unnamed;
    store_lock(store);
    unref_locked(handle, &fd, &unnamed);
    store_unlock(store);
    unnamed_drop(unnamed);
}

void handle_release(struct file_session *session, uint64_t number)
{
    struct store *store = session->store;
    _cleanup_close_ int fd = -1;
    struct unnamed *unnamed = NULL;
    store_lock(store);
    struct handle *handle = table_take(&session->handles, number);
    if (handle) {
        session->handle_count--;
        store->handle_count--;
        unref_locked(handle, &fd, &unnamed);
    }
    store_unlock(store);
    unnamed_drop(unnamed);
}

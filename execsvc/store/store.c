#include "store/store_private.h"

#include "base/clock.h"
#include "base/dir.h"
#include "base/log.h"
#include "store/grip.h"
#include "store/handle.h"
#include "store/json_file.h"
#include "store/lock.h"
#include "store/path.h"
#include "store/adopt.h"
#include "store/changes.h"
#include "store/detect.h"
#include "store/restore.h"
#include "store/trash.h"
#include "store/upkeep.h"
#include "store/view.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <time.h>

#define SERVICE_VERSION 1

/* How long ROOT's lock is waited for. */
#define CLAIM_TRIES 50
#define CLAIM_PAUSE_MS 10

/* --- service.json ---------------------------------------------------------------- */

static int service_write(struct store *store)
{
    char id[2 * sizeof store->service_id + 1];
    for (size_t i = 0; i < sizeof store->service_id; i++)
        (void)snprintf(id + 2 * i, 3, "%02x", store->service_id[i]);
    json_t *object = json_pack("{s:i, s:s, s:I}", "version", SERVICE_VERSION, "service_id", id,
                               "next_slot", (json_int_t)store->next_slot);
    if (!object)
        return -ENOMEM;
    int r = json_file_write(store->root_fd, SERVICE_FILE, object);
    json_decref(object);
    return r;
}

static bool service_parse(struct store *store, const json_t *object)
{
    const json_t *id = json_object_get(object, "service_id");
    const json_t *slot = json_object_get(object, "next_slot");
    const json_t *version = json_object_get(object, "version");
    if (json_integer_value(version) != SERVICE_VERSION ||
        json_string_length(id) != 2 * sizeof store->service_id || !json_is_integer(slot) ||
        json_integer_value(slot) < 1 || json_integer_value(slot) > (json_int_t)SLOT_MAX + 1)
        return false;
    const char *text = json_string_value(id);
    for (size_t i = 0; i < sizeof store->service_id; i++)
        if (sscanf(text + 2 * i, "%2hhx", &store->service_id[i]) != 1)
            return false;
    store->next_slot = (uint32_t)json_integer_value(slot);
    return true;
}

static int service_load(struct store *store)
{
    json_t *object = NULL;
    int r = json_file_read(store->root_fd, SERVICE_FILE, &object);
    if (r == -ENOENT) {
        if (getrandom(store->service_id, sizeof store->service_id, 0) !=
            (ssize_t)sizeof store->service_id)
            return -EIO;
        store->next_slot = 1;
        return service_write(store);
    }
    if (r == 0 && !service_parse(store, object))
        r = -EIO;
    json_decref(object);
    return r;
}

int store_take_slot(struct store *store, uint32_t *ret)
{
    if (store->next_slot > SLOT_MAX)
        return -ENOSPC;
    uint32_t slot = store->next_slot++;
    /* Before anything uses it: a slot that came twice would give two files one number. */
    int r = service_write(store);
    if (r < 0) {
        store->next_slot--;
        return r;
    }
    *ret = slot;
    return 0;
}

/* --- the root -------------------------------------------------------------------- */

/* mkdir -p; what is made is private. */
static int make_directories(const char *path)
{
    _cleanup_free_ char *copy = strdup(path);
    if (!copy)
        return -ENOMEM;
    for (char *slash = copy + 1; (slash = strchr(slash, '/')); *slash++ = '/') {
        *slash = '\0';
        if (mkdir(copy, 0700) < 0 && errno != EEXIST)
            return -errno;
    }
    return mkdir(copy, 0700) < 0 && errno != EEXIST ? -errno : 0;
}

static int open_directory(int at_fd, const char *name, int *ret)
{
    if (at_fd != AT_FDCWD && mkdirat(at_fd, name, 0700) < 0 && errno != EEXIST)
        return -errno;
    int fd = openat(at_fd, name,
                    O_RDONLY | O_DIRECTORY | O_CLOEXEC | (at_fd == AT_FDCWD ? 0 : O_NOFOLLOW));
    if (fd < 0)
        return -errno;
    *ret = fd;
    return 0;
}

/* A service that was killed may hold it for a moment longer. */
static int take_lock(int root, int *ret)
{
    const struct timespec pause = {.tv_nsec = CLAIM_PAUSE_MS * (long)NSEC_PER_MSEC};
    _cleanup_close_ int fd = openat(root, "lock", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return -errno;
    for (int i = 0; flock(fd, LOCK_EX | LOCK_NB) < 0; i++) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            return -errno;
        if (i == CLAIM_TRIES)
            return -EBUSY;
        (void)nanosleep(&pause, NULL);
    }
    *ret = take_fd(&fd);
    return 0;
}

int store_claim(const char *root, char **ret_root, int *ret_lock, struct failure *ret_failure)
{
    int r = make_directories(root);
    if (r < 0)
        return failure_set(ret_failure, r, "cannot make the service's directory %s: %s", root,
                           strerror(-r));
    _cleanup_close_ int fd = -1;
    _cleanup_free_ char *path = realpath(root, NULL);
    r = path ? open_directory(AT_FDCWD, path, &fd) : -errno;
    if (r < 0)
        return failure_set(ret_failure, r, "cannot open the service's directory %s: %s", root,
                           strerror(-r));
    r = adopt_check(fd, path, ret_failure);
    if (r < 0)
        return r;
    r = take_lock(fd, ret_lock);
    if (r == -EBUSY)
        return failure_set(ret_failure, r,
                           "another service is running on %s; stop it, or give this one its own "
                           "directory with --root",
                           path);
    if (r < 0)
        return failure_set(ret_failure, r, "cannot lock %s/lock: %s", path, strerror(-r));
    *ret_root = take_ptr(path);
    return 0;
}

/* What a crash has left half-made. */
static void clear_tmp(struct store *store)
{
    _cleanup_dir_ DIR *stream = NULL;
    const struct dirent *entry;
    int r = dir_open(store->tmp_fd, ".", &stream);
    while (r >= 0 && (r = dir_next(stream, &entry)) == 1)
        if (entry->d_name[0] != '.')
            r = trash_take(store, store->tmp_fd, entry->d_name, entry->d_name);
    if (r < 0)
        log_warning("cannot remove everything in %s/tmp: %s", store->root, strerror(-r));
}

/* The names alone; what they are is read later (upkeep.h). */
static int fill_index(struct store *store)
{
    _cleanup_dir_ DIR *stream = NULL;
    const struct dirent *entry;
    int r = dir_open(store->workspaces_fd, ".", &stream);
    while (r >= 0 && (r = dir_next(stream, &entry)) == 1)
        if (entry->d_name[0] != '.')
            r = index_add(store->index, entry->d_name);
    return r;
}

static int open_parts(struct store *store, struct failure *ret_failure)
{
    const struct {
        const char *name;
        int *fd;
    } directories[] = {
        {"workspaces", &store->workspaces_fd}, {"snapshots", &store->snapshots_fd},
        {"restores", &store->restores_fd},     {"tmp", &store->tmp_fd},
        {"trash", &store->trash_fd},
    };
    for (size_t i = 0; i < ARRAY_SIZE(directories); i++) {
        int r = open_directory(store->root_fd, directories[i].name, directories[i].fd);
        if (r < 0)
            return failure_set(ret_failure, r, "cannot open %s/%s: %s", store->root,
                               directories[i].name, strerror(-r));
    }
    int r = service_load(store);
    if (r < 0)
        return failure_set(ret_failure, r, "cannot read %s/%s: %s", store->root, SERVICE_FILE,
                           r == -EIO ? "it is damaged" : strerror(-r));
    r = inode_numbers_open(store->root_fd, &store->numbers);
    if (r < 0)
        return failure_set(ret_failure, r, "cannot read %s/inodes: %s", store->root,
                           r == -EIO ? "it is damaged" : strerror(-r));
    char path[GRIP_PATH_SIZE];
    if (access(grip_path(store->root_fd, path), F_OK) < 0)
        return failure_set(ret_failure, -errno,
                           "/proc is not there; files cannot be opened without it");
    clear_tmp(store);
    restore_resume_all(store);
    r = fill_index(store);
    if (r < 0)
        return failure_set(ret_failure, r, "cannot read %s/workspaces: %s", store->root,
                           strerror(-r));
    return 0;
}

/* --- birth and death ------------------------------------------------------------- */

static struct store_limits ordinary_limits(void)
{
    struct rlimit files;
    size_t most = SIZE_MAX;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur != RLIM_INFINITY)
        most = (size_t)files.rlim_cur;
    /* Half for handles and a quarter for the cache leave a quarter for connections,
     * commands' pipes, and what running requests open. */
    return (struct store_limits){
        .cached_descriptors = most / 4 < CACHED_DESCRIPTORS_MAX ? most / 4 : CACHED_DESCRIPTORS_MAX,
        .handles = most / 2,
        /* At most a quarter of the handles, so that no client alone can take all. */
        .session_handles = most / 8 < SESSION_HANDLES_MAX ? most / 8 : SESSION_HANDLES_MAX,
        .session_nodes = SESSION_NODES_MAX,
    };
}

static int new_parts(struct store *store)
{
    int r = index_new(&store->index);
    if (r == 0)
        r = upkeep_new(store, &store->upkeep);
    if (r == 0)
        r = trash_new(store, &store->trash);
    return r;
}

static int open_all(const char *root, int *lock, enum watch_mode watch,
                    const struct store_limits *limits, struct store **ret,
                    struct failure *ret_failure)
{
    struct store *store = calloc(1, sizeof *store);
    if (!store)
        return failure_set(ret_failure, -ENOMEM, "out of memory");
    store->root_fd = store->workspaces_fd = store->snapshots_fd = store->restores_fd =
        store->tmp_fd = store->trash_fd = -1;
    store->lock_fd = take_fd(lock);
    store->limits = limits ? *limits : ordinary_limits();
    (void)pthread_mutex_init(&store->lock, NULL);
    (void)pthread_cond_init(&store->writers_found, NULL);
    (void)pthread_mutex_init(&store->sessions_lock, NULL);
    (void)pthread_mutex_init(&store->snapshots_lock, NULL);
    (void)pthread_rwlock_init(&store->names, NULL);
    (void)umask(0);
    store->root = strdup(root);
    int r = store->root ? new_parts(store) : -ENOMEM;
    if (r == 0)
        r = open_directory(AT_FDCWD, root, &store->root_fd);
    if (r < 0)
        (void)failure_set(ret_failure, r, "cannot open the service's directory %s: %s", root,
                          strerror(-r));
    if (r == 0)
        r = open_parts(store, ret_failure);
    if (r == 0) {
        store->openat2_missing = !path_openat2_works(store->root_fd);
        r = detect_open(store, watch, ret_failure);
    }
    if (r < 0) {
        store_close(store);
        return r;
    }
    *ret = store;
    return 0;
}

int store_open_claimed(const char *root, int *lock, enum watch_mode watch, struct store **ret,
                       struct failure *ret_failure)
{
    return open_all(root, lock, watch, NULL, ret, ret_failure);
}

int store_begin(struct store *store, struct failure *ret_failure)
{
    int r = detect_begin(store, ret_failure);
    if (r < 0)
        return r;
    r = trash_begin(store->trash);
    if (r == 0)
        r = upkeep_begin(store->upkeep);
    return r < 0 ? failure_set(ret_failure, r, "cannot start a thread: %s", strerror(-r)) : 0;
}

int store_open_limited(const char *root, enum watch_mode watch, const struct store_limits *limits,
                       struct store **ret, struct failure *ret_failure)
{
    _cleanup_free_ char *path = NULL;
    _cleanup_close_ int lock = -1;
    struct store *store;
    int r = store_claim(root, &path, &lock, ret_failure);
    if (r == 0)
        r = open_all(path, &lock, watch, limits, &store, ret_failure);
    if (r < 0)
        return r;
    r = store_begin(store, ret_failure);
    if (r < 0) {
        store_close(store);
        return r;
    }
    *ret = store;
    return 0;
}

int store_open(const char *root, enum watch_mode watch, struct store **ret,
               struct failure *ret_failure)
{
    return store_open_limited(root, watch, NULL, ret, ret_failure);
}

void store_close(struct store *store)
{
    if (!store)
        return;
    upkeep_free(store->upkeep);
    trash_free(store->trash);
    detect_close(store);
    index_free(store->index);
    table_release(&store->workspaces);
    table_release(&store->nodes);
    table_release(&store->generations);
    table_release(&store->written);
    inode_numbers_close(store->numbers);
    visibility_rules_unref(store->rules);
    policy_release(&store->policy);
    close_fd(&store->trash_fd);
    close_fd(&store->tmp_fd);
    close_fd(&store->restores_fd);
    close_fd(&store->snapshots_fd);
    close_fd(&store->workspaces_fd);
    close_fd(&store->root_fd);
    close_fd(&store->lock_fd); /* last: from now on another service may open ROOT */
    (void)pthread_rwlock_destroy(&store->names);
    (void)pthread_mutex_destroy(&store->snapshots_lock);
    (void)pthread_mutex_destroy(&store->sessions_lock);
    (void)pthread_cond_destroy(&store->writers_found);
    (void)pthread_mutex_destroy(&store->lock);
    free(store->root);
    free(store);
}

const char *store_root(const struct store *store)
{
    return store->root;
}

void store_service_id(const struct store *store, uint8_t ret_id[16])
{
    memcpy(ret_id, store->service_id, sizeof store->service_id);
}

int store_status(struct store *store, json_t *object)
{
    json_int_t workspaces = (json_int_t)index_count(store->index);
    store_lock(store);
    json_int_t nodes = (json_int_t)store->node_count, handles = (json_int_t)store->handle_count,
               descriptors = (json_int_t)store->cached.count,
               lock_owners = (json_int_t)store->locker_count;
    store_unlock(store);
    if (json_object_set_new(object, "workspaces", json_integer(workspaces)) < 0 ||
        json_object_set_new(object, "nodes", json_integer(nodes)) < 0 ||
        json_object_set_new(object, "handles", json_integer(handles)) < 0 ||
        json_object_set_new(object, "descriptors", json_integer(descriptors)) < 0 ||
        json_object_set_new(object, "lock_owners", json_integer(lock_owners)) < 0)
        return -ENOMEM;
    int error = detect_status(store, object);
    return error < 0 ? error : view_status(store, object);
}

/* --- sessions -------------------------------------------------------------------- */

int file_session_new(struct store *store, struct file_session **ret)
{
    struct file_session *session = calloc(1, sizeof *session);
    if (!session)
        return -ENOMEM;
    session->store = store;
    (void)pthread_mutex_lock(&store->sessions_lock);
    session->next = store->sessions;
    if (session->next)
        session->next->prev = session;
    store->sessions = session;
    (void)pthread_mutex_unlock(&store->sessions_lock);
    *ret = session;
    return 0;
}

void file_session_set_filter(struct file_session *session,
                             bool (*shows)(const void *context, struct bytes thread_id),
                             const void *context)
{
    session->shows = shows;
    session->shows_context = context;
}

struct file_session_size file_session_size(struct file_session *session)
{
    store_lock(session->store);
    const struct file_session_size size = {.nodes = session->nodes.count,
                                           .handles = session->handle_count};
    store_unlock(session->store);
    return size;
}

void file_session_free(struct file_session *session)
{
    if (!session)
        return;
    struct store *store = session->store;
    (void)pthread_mutex_lock(&store->sessions_lock);
    *(session->prev ? &session->prev->next : &store->sessions) = session->next;
    if (session->next)
        session->next->prev = session->prev;
    (void)pthread_mutex_unlock(&store->sessions_lock);
    lock_release_all(session);
    size_t i = 0;
    struct handle *handle;
    while ((handle = table_next(&session->handles, &i)))
        handle_unref(handle);
    store_lock(store);
    store->handle_count -= session->handle_count;
    struct node_ref *ref;
    for (i = 0; (ref = table_next(&session->nodes, &i));) {
        node_unref_locked(ref->node);
        view_forget(ref);
        free(ref);
    }
    store_unlock(store);
    visibility_rules_unref(session->rules);
    table_release(&session->handles);
    table_release(&session->nodes);
    free(session);
}

struct workspace *store_node_workspace(struct file_session *session, uint64_t node)
{
    struct store *store = session->store;
    struct workspace *workspace = NULL;
    store_lock(store);
    const struct node_ref *ref = table_get(&session->nodes, node);
    if (ref)
        workspace = workspace_ref_locked(ref->node->workspace);
    store_unlock(store);
    return workspace;
}

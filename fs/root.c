#include "ops.h"

#include <sys/stat.h>

#include <jansson.h>

#include "base/clock.h"
#include "coherence.h"
#include "disk.h"
#include "connection.h"
#include "device.h"
#include "join.h"
#include "lock.h"
#include "names/thread_id.h"

#define ROOT_INO 1
#define KEPT_SECONDS 86400.0              /* what is said of the root here never changes */
#define LIST_PAGE 512                     /* workspaces asked for at a time */
#define SPACE_FRESH_NS (2 * NSEC_PER_SEC) /* df's figures may be this old */

static void root_stat(const struct driver *d, struct stat *ret)
{
    /* Writable by its mode, so that every attempt to create something here gets the same
     * answer, EPERM, whether or not root tries. */
    *ret = (struct stat){
        .st_ino = ROOT_INO,
        .st_mode = S_IFDIR | 0755,
        .st_nlink = 1, /* as others say who do not count subdirectories */
        .st_uid = d->uid,
        .st_gid = d->gid,
        .st_blksize = 4096,
        .st_atim = {.tv_sec = d->mounted_at},
        .st_mtim = {.tv_sec = d->mounted_at},
        .st_ctim = {.tv_sec = d->mounted_at},
    };
}

void root_getattr(fuse_req_t req)
{
    struct stat st;
    root_stat(request_driver(req), &st);
    (void)fuse_reply_attr(req, &st, KEPT_SECONDS);
}

static void workspace_found(struct request *r, int error, const struct wire_message *reply)
{
    struct driver *d = r->driver;
    if (error < 0) {
        error = error == -EINVAL ? -ENOENT : error;
        if (error == -ENOENT && d->member && join_missing(r))
            return;
        if (!request_reply_unsure(r, error))
            request_fail(r, error);
        return;
    }
    const struct wire_workspace_root *w = &reply->workspace_root;
    struct inode *i;
    error = inode_enter(&d->inodes, w->node, &w->attr, INODE_WORKSPACE, d->inodes.root,
                        request_name(r), &i);
    if (error == 0) {
        error = driver_note_workspace(d, i, w->thread_id);
        if (error < 0)
            inode_drop(&d->inodes, i);
    }
    if (error < 0) {
        request_fail(r, error);
        return;
    }
    request_reply_entry(r, i, &w->attr);
}

void root_lookup(fuse_req_t req, const char *name)
{
    struct driver *d = request_driver(req);
    if (d->join) {
        join_lookup(d, req, name);
        return;
    }
    /* Shells, desktops and git look for .git, .Trash, autorun.inf and the like in every
     * directory above: what cannot be a workspace needs no question. */
    uint8_t id[THREAD_ID_MAX];
    if (thread_id_from_name(d->member ? join_key(bytes_of_string(name)) : bytes_of_string(name),
                            id) == -EINVAL) {
        (void)fuse_reply_err(req, strlen(name) > WIRE_NAME_MAX ? ENAMETOOLONG : ENOENT);
        return;
    }
    struct request *r = request_start(req, WIRE_WORKSPACE_OPEN, name, NULL);
    if (!r || request_reply_told(r))
        return;
    r->message.workspace_open.flags = WIRE_WORKSPACE_BY_NAME;
    r->message.workspace_open.key = join_key(request_name(r));
    request_send(r, workspace_found);
}

void root_answer_listing(struct request *r)
{
    struct driver *d = r->driver;
    const struct workspace_listing *l = r->handle->workspaces;
    char *data = malloc(r->size ? r->size : 1);
    if (!data) {
        request_fail(r, -ENOMEM);
        return;
    }
    size_t len = 0, count = workspace_listing_count(l);
    /* Entries 0 and 1 are "." and "..". */
    for (uint64_t i = r->position; i < count + 2; i++) {
        const char *name = i == 0 ? "." : "..";
        uint64_t ino = ROOT_INO;
        if (i >= 2) {
            uint32_t slot;
            name = workspace_listing_at(l, (size_t)i - 2, &slot);
            const struct inode *known =
                inode_named(&d->inodes, d->inodes.root, bytes_of_string(name));
            /* The root's number is in the slot's space; 0 there is no file's. */
            ino = known ? known->ino : slot ? (uint64_t)slot << 40 : UINT32_MAX;
        }
        size_t need;
        if (r->plus) {
            struct fuse_entry_param e = {.attr = {.st_ino = ino, .st_mode = S_IFDIR}};
            need =
                fuse_add_direntry_plus(r->fuse, data + len, r->size - len, name, &e, (off_t)i + 1);
        } else {
            struct stat st = {.st_ino = ino, .st_mode = S_IFDIR};
            need = fuse_add_direntry(r->fuse, data + len, r->size - len, name, &st, (off_t)i + 1);
        }
        if (need > r->size - len)
            break;
        len += need;
    }
    (void)fuse_reply_buf(r->fuse, data, len);
    free(data);
    request_free(r);
}

static void page_done(struct request *r, int error, const struct wire_message *reply);

static void ask_page(struct request *r)
{
    struct workspace_listing *l = r->handle->workspaces;
    size_t count = workspace_listing_count(l);
    r->message = (struct wire_message){.type = WIRE_WORKSPACE_LIST};
    r->message.workspace_list.count = LIST_PAGE;
    if (count)
        r->message.workspace_list.after = bytes_of_string(workspace_listing_at(l, count - 1, NULL));
    request_send(r, page_done);
}

static void note_listed(struct driver *d, const struct workspace_listing *l)
{
    struct workspace_listing *copy;
    if (!d->options->serve || workspace_listing_copy(l, &copy) < 0)
        return;
    workspace_listing_free(d->workspaces_seen);
    d->workspaces_seen = copy;
}

static void page_done(struct request *r, int error, const struct wire_message *reply)
{
    struct workspace_listing *l = r->handle->workspaces;
    if (error == 0 && !l->complete)
        error = workspace_listing_append(l, &reply->workspaces);
    if (error < 0) {
        request_fail(r, error == -EBADMSG ? -EIO : error);
        return;
    }
    if (!l->complete) {
        ask_page(r);
        return;
    }
    note_listed(r->driver, l);
    root_answer_listing(r);
}

void root_readdir(struct request *r)
{
    struct handle *h = r->handle;
    if (h->workspaces && r->position == 0) {
        /* rewinddir(): what is there now. Not while another request still fills it. */
        if (h->workspaces->complete) {
            workspace_listing_free(h->workspaces);
            h->workspaces = NULL;
        }
    }
    struct driver *d = r->driver;
    if (!h->workspaces && coherence_serving(d) && d->workspaces_seen)
        (void)workspace_listing_copy(d->workspaces_seen, &h->workspaces);
    if (!h->workspaces) {
        h->workspaces = calloc(1, sizeof *h->workspaces);
        if (!h->workspaces) {
            request_fail(r, -ENOMEM);
            return;
        }
    }
    if (h->workspaces->complete)
        root_answer_listing(r);
    else if (d->join)
        join_readdir(r);
    else
        ask_page(r);
}

void root_note_space(struct driver *d, const struct wire_statfs_reply *space)
{
    d->space = *space;
    d->space_ns = clock_monotonic_ns();
}

static void space_done(struct request *r, int error, const struct wire_message *reply)
{
    r->driver->space_asked = false;
    if (error == 0)
        root_note_space(r->driver, &reply->statfs_reply);
    request_free(r);
}

void root_refresh_space(struct driver *d)
{
    struct request *r;
    if (d->space_asked || !d->client ||
        (d->space_ns && clock_monotonic_ns() - d->space_ns < SPACE_FRESH_NS))
        return;
    if (request_new(d, NULL, WIRE_STATFS, NULL, NULL, &r) < 0)
        return;
    d->space_asked = true;
    r->quiet = true;
    request_send(r, space_done);
}

void root_statfs(const struct driver *d, fuse_req_t req)
{
    const struct wire_statfs_reply *s = &d->space;
    struct statvfs st = {
        .f_bsize = s->bsize ? s->bsize : 4096,
        .f_frsize = s->frsize ? s->frsize : 4096,
        .f_blocks = s->blocks,
        .f_bfree = s->bfree,
        .f_bavail = s->bavail,
        .f_files = s->files,
        .f_ffree = s->ffree,
        .f_namemax = WIRE_NAME_MAX,
    };
    (void)fuse_reply_statfs(req, &st);
}

static json_t *describe_requests(const struct driver *d)
{
    json_t *o = json_object();
    for (size_t i = 0; i < wire_row_count(); i++) {
        const struct wire_row *row = wire_row_at(i);
        if ((uint32_t)row->type < DRIVER_TYPES && d->stats.requests[row->type])
            (void)json_object_set_new(o, row->name,
                                      json_integer((json_int_t)d->stats.requests[row->type]));
    }
    return o;
}

static json_t *describe_received(const struct driver *d)
{
    json_t *o = json_object();
    const char *name;
    uint64_t count;
    for (size_t i = 0; (name = device_received(d, i, &count)); i++)
        if (count)
            (void)json_object_set_new(o, name, json_integer((json_int_t)count));
    return o;
}

static void set_string(json_t *o, const char *key, const char *value)
{
    if (value)
        (void)json_object_set_new(o, key, json_string(value));
}

/* Thread IDs are bytes; JSON strings are not. */
static int set_workspace(json_t *o, const struct workspace_ids *w)
{
    json_t *text = json_stringn((const char *)w->thread_id, w->len);
    if (text)
        return json_object_set_new(o, "workspace", text);
    char hex[THREAD_ID_MAX * 2 + 1];
    for (size_t i = 0; i < w->len; i++)
        (void)snprintf(hex + 2 * i, 3, "%02x", w->thread_id[i]);
    return json_object_set_new(o, "workspace_hex", json_stringn(hex, w->len * 2));
}

int root_describe(const struct driver *d, char **ret)
{
    if (d->join)
        return join_describe(d, ret);
    const struct client_settings *s = d->settings;
    struct session_stats now = {0};
    if (driver_session(d))
        now = client_stats(driver_session(d));
    const struct disk_stats disk = disk_stats(d->disk);
    const struct coherence_times times = coherence_times(d);
    json_t *o = json_object(), *stats = json_object(), *visibility = json_object();
    set_string(o, "url", s->url);
    if (d->member)
        join_describe_member(d, o);
    else if (s->service || s->alone)
        (void)json_object_set_new(o, "own_credentials", json_true());
    const struct workspace_ids *w = driver_workspace(d, d->inodes.root);
    if (w)
        (void)set_workspace(o, w);
    set_string(o, "token_file", s->token_file);
    set_string(o, "ca_file", s->ca_file);
    set_string(o, "cert_file", s->cert_file);
    set_string(o, "key_file", s->key_file);
    set_string(o, "control", d->control_path);
    set_string(o, "symlinks", link_mode_name(s->symlinks));
    const struct {
        const char *name;
        uint64_t value;
    } numbers[] = {
        {"round_trips", d->stats.round_trips + now.round_trips},
        {"blocking", d->stats.blocking + now.blocking},
        {"inodes", d->inodes.count - 1},
        {"handles", d->handles.by_id.count},
        {"reconnects", d->stats.reconnects},
        {"resumes", d->stats.resumes},
        {"unlisted", d->stats.unlisted + d->inodes.tree.unlisted},
        {"hidden", d->stats.hidden + d->inodes.tree.hidden},
        {"read_ahead", d->inodes.tree.count - d->inodes.tree.dropping},
        {"read_ahead_bytes", d->inodes.tree.bytes},
        {"reading_ahead", d->inodes.tree.asked},
        {"forgetting", coherence_forgetting(d)},
        {"content", d->inodes.content.count},
        {"content_bytes", d->inodes.content.bytes},
        {"content_used", d->inodes.content.used},
        {"content_unused", d->inodes.content.unused},
        {"sequence_bytes", d->sequence_bytes},
        {"content_received", d->stats.content_received},
        {"disk_entries", disk.entries},
        {"disk_read", disk.of[DISK_CONTENT].read},
        {"disk_read_bytes", disk.of[DISK_CONTENT].read_bytes},
        {"disk_written", disk.of[DISK_CONTENT].written},
        {"disk_written_bytes", disk.of[DISK_CONTENT].written_bytes},
        {"disk_parts_read", disk.of[DISK_PART].read},
        {"disk_parts_read_bytes", disk.of[DISK_PART].read_bytes},
        {"disk_parts_written", disk.of[DISK_PART].written},
        {"disk_parts_written_bytes", disk.of[DISK_PART].written_bytes},
        {"disk_damaged", disk.of[DISK_CONTENT].damaged},
        {"disk_parts_damaged", disk.of[DISK_PART].damaged},
        {"disk_pending", disk.pending},
        {"disk_unwritten", disk.unwritten},
        {"links_refused", d->stats.links_refused},
        {"locks", lock_count(d)},
        {"locks_lost", d->stats.locks_lost},
        {"lag_us", times.lag_us},
        {"lag_max_us", times.lag_max_us},
        {"ping_us", times.ping_us},
        {"pid", (uint64_t)getpid()},
    };
    for (size_t i = 0; i < ARRAY_SIZE(numbers); i++)
        (void)json_object_set_new(stats, numbers[i].name,
                                  json_integer((json_int_t)numbers[i].value));
    (void)json_object_set_new(stats, "connected", json_boolean(d->client != NULL));
    (void)json_object_set_new(stats, "coherent", json_boolean(coherence_live(d)));
    (void)json_object_set_new(stats, "serving", json_boolean(coherence_serving(d)));
    if (coherence_serving(d))
        (void)json_object_set_new(stats, "served_as_of",
                                  json_integer((json_int_t)coherence_served_as_of(d)));
    (void)json_object_set_new(stats, "requests", describe_requests(d));
    (void)json_object_set_new(stats, "kernel", describe_received(d));
    (void)json_object_set_new(o, "stats", stats);
    (void)json_object_set_new(
        visibility, "rules",
        json_integer(d->rules ? (json_int_t)visibility_rules_count(d->rules) : 0));
    (void)json_object_set_new(o, "visibility", visibility);
    char *text = o ? json_dumps(o, JSON_COMPACT) : NULL;
    json_decref(o);
    if (!text)
        return -ENOMEM;
    *ret = text;
    return 0;
}

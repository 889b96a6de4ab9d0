#include "watch/watch_private.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/fanotify.h>
#include <sys/stat.h>

#include "watch/file_handle.h"

#define NAME_EVENTS (FAN_CREATE | FAN_DELETE | FAN_MOVED_FROM | FAN_MOVED_TO)
#define ALL_EVENTS (NAME_EVENTS | FAN_MODIFY | FAN_ATTRIB | FAN_CLOSE_WRITE | FAN_ONDIR)

/* What FIONREAD counts for an event: Linux does not count what comes after the metadata. */
#define EVENT_COUNTED sizeof(struct fanotify_event_metadata)

/* --- events -------------------------------------------------------------------- */

static uint32_t kinds_of(uint64_t mask)
{
    return (mask & NAME_EVENTS ? WATCH_NAME : 0) | (mask & FAN_MODIFY ? WATCH_CONTENT : 0) |
           (mask & FAN_ATTRIB ? WATCH_ATTR : 0) | (mask & FAN_OPEN ? WATCH_OPENED : 0) |
           (mask & FAN_CLOSE_WRITE ? WATCH_CLOSED_WRITE : 0);
}

/* Takes a record off *records: a file handle, and a name behind it if it has one. */
static bool next_record(struct bytes *records, uint8_t *ret_type, uint64_t *ret_file,
                        struct bytes *ret_name)
{
    struct fanotify_event_info_fid info;
    union {
        struct file_handle handle;
        uint8_t space[sizeof(struct file_handle) + MAX_HANDLE_SZ];
    } h;
    size_t fixed = sizeof info + sizeof h.handle;
    if (records->len < fixed)
        return false;
    memcpy(&info, records->data, sizeof info);
    memcpy(&h, records->data + sizeof info, sizeof h.handle);
    size_t len = info.hdr.len;
    if (len < fixed || len > records->len || h.handle.handle_bytes > MAX_HANDLE_SZ ||
        h.handle.handle_bytes > len - fixed)
        return false;
    memcpy(h.handle.f_handle, records->data + fixed, h.handle.handle_bytes);
    *ret_type = info.hdr.info_type;
    *ret_file = file_handle_hash(&h.handle);
    size_t used = fixed + h.handle.handle_bytes;
    const uint8_t *name = records->data + used;
    *ret_name = bytes_of(name, strnlen((const char *)name, len - used));
    *records = bytes_of(records->data + len, records->len - len);
    return true;
}

static bool parse_records(struct bytes records, struct watch_event *ret)
{
    while (records.len) {
        uint8_t type;
        uint64_t file;
        struct bytes name;
        if (!next_record(&records, &type, &file, &name))
            return false;
        if (type == FAN_EVENT_INFO_TYPE_FID) {
            ret->target = file;
        } else if (type == FAN_EVENT_INFO_TYPE_DFID_NAME || type == FAN_EVENT_INFO_TYPE_DFID) {
            ret->dir = file;
            ret->name = name;
        }
    }
    /* An event of a directory itself. */
    if (ret->dir && (ret->name.len == 0 || bytes_equal(ret->name, bytes_of_string(".")))) {
        ret->target = ret->dir;
        ret->dir = 0;
        ret->name = (struct bytes){0};
    }
    return ret->dir || ret->target;
}

bool fanotify_next(struct bytes *raw, struct watch_event *ret, pid_t *ret_pid)
{
    struct fanotify_event_metadata event;
    if (raw->len == 0)
        return false;
    *ret_pid = 0;
    *ret = (struct watch_event){.kinds = WATCH_ALL_LOST};
    struct bytes rest = *raw;
    *raw = (struct bytes){0};
    if (rest.len < sizeof event)
        return true;
    memcpy(&event, rest.data, sizeof event);
    if (event.vers != FANOTIFY_METADATA_VERSION || event.metadata_len < sizeof event ||
        event.event_len < event.metadata_len || event.event_len > rest.len)
        return true;
    struct bytes records =
        bytes_of(rest.data + event.metadata_len, event.event_len - event.metadata_len);
    rest = bytes_of(rest.data + event.event_len, rest.len - event.event_len);
    if (event.mask & FAN_Q_OVERFLOW) {
        *raw = rest;
        return true;
    }
    struct watch_event parsed = {.kinds = kinds_of(event.mask),
                                 .directory = event.mask & FAN_ONDIR};
    if (!parse_records(records, &parsed))
        return true;
    *raw = rest;
    *ret = parsed;
    *ret_pid = event.pid;
    return true;
}

size_t fanotify_report(struct watch *w, struct bytes raw)
{
    struct watch_event event;
    pid_t pid;
    size_t count = 0;
    for (; fanotify_next(&raw, &event, &pid); count++) {
        if (pid == w->self)
            w->own_count++;
        else if (event.kinds == WATCH_ALL_LOST)
            watch_report_lost(w);
        else
            watch_report(w, &event);
    }
    return count * EVENT_COUNTED;
}

/* --- setting up ---------------------------------------------------------------- */

static int find_probe(struct watch *w, const struct watch_event *wanted)
{
    for (;;) {
        ssize_t len = read(w->fd, w->buffer, sizeof w->buffer);
        if (len < 0 && errno == EINTR)
            continue;
        if (len < 0)
            return errno == EAGAIN ? -ENODATA : -errno;
        struct bytes raw = bytes_of(w->buffer, (size_t)len);
        struct watch_event event;
        pid_t pid;
        while (fanotify_next(&raw, &event, &pid))
            if (event.kinds & WATCH_NAME && event.dir == wanted->dir && pid == w->self &&
                event.target == wanted->target && bytes_equal(event.name, wanted->name))
                return 0;
    }
}

/* That files are named by the handles that we know them by, and we by our process number. */
static int probe(struct watch *w, int root_fd)
{
    char name[64];
    (void)snprintf(name, sizeof name, ".watch-probe-%d", (int)w->self);
    struct watch_event wanted = {.name = bytes_of_string(name)};
    int r = file_handle_hash_at(root_fd, "", &wanted.dir);
    if (r < 0)
        return r;
    if (unlinkat(root_fd, name, 0) < 0 && errno != ENOENT)
        return -errno;
    if (mknodat(root_fd, name, S_IFREG | 0600, 0) < 0)
        return -errno;
    r = file_handle_hash_at(root_fd, name, &wanted.target);
    (void)unlinkat(root_fd, name, 0);
    return r < 0 ? r : find_probe(w, &wanted);
}

int fanotify_open(struct watch *w, int root_fd, const struct watch_options *options,
                  struct failure *failure)
{
    w->mode = WATCH_FANOTIFY;
    w->self = getpid();
    struct stat st;
    if (fstat(root_fd, &st) < 0)
        return failure_set(failure, -errno, "the root: %s", strerror(errno));
    w->device = st.st_dev;
    w->fd =
        fanotify_init(FAN_CLASS_NOTIF | FAN_CLOEXEC | FAN_NONBLOCK | FAN_REPORT_DFID_NAME_TARGET |
                          (options->bounded_queue ? 0 : FAN_UNLIMITED_QUEUE),
                      O_RDONLY | O_CLOEXEC);
    if (w->fd < 0)
        return failure_set(failure, -errno, "fanotify is not to be had: %s", strerror(errno));
    int r = 0;
    if (fanotify_mark(w->fd, FAN_MARK_ADD | FAN_MARK_FILESYSTEM,
                      ALL_EVENTS | (options->opens ? FAN_OPEN : 0), root_fd, ".") < 0)
        r = failure_set(failure, -errno, "fanotify cannot watch the root's filesystem: %s",
                        strerror(errno));
    if (r == 0) {
        r = probe(w, root_fd);
        if (r < 0)
            (void)failure_set(failure, r, "fanotify does not report changes in the root: %s",
                              strerror(-r));
    }
    if (r < 0)
        close_fd(&w->fd);
    return r;
}

int fanotify_directory(struct watch *w, int dir_fd)
{
    struct stat st;
    if (fstat(dir_fd, &st) < 0)
        return -errno;
    return st.st_dev == w->device ? 0 : -EXDEV;
}

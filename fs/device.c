#include "device.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/uio.h>

#include <linux/fuse.h>

#include "base/clock.h"
#include "base/log.h"
#include "coherence.h"
#include "join.h"
#include "ops.h"
#include "vigil.h"

/* Requests taken in one turn of the loop: a flood of them must not keep the answers of the
 * service waiting, which is what would end it. */
#define REQUESTS_PER_TURN 64

/* How many requests the kernel sends without anybody waiting for them (readahead,
 * write-back of mmap); its default of 12 would serialise readahead over a slow network. */
#define MAX_BACKGROUND 256

#define OPCODES 64 /* the kernel's, of those that are counted */

struct device {
    struct driver *driver;
    struct driver *current; /* whose the request is that is being handled */
    struct fuse_session *session;
    struct event *event;
    struct fuse_buf buffer;
    struct vigil vigil;
    uint64_t init_unique;
    uint64_t init_offered;
    uint64_t init_wanted;       /* of these, what the kernel has been told */
    uint64_t received[OPCODES]; /* requests of the kernel, by opcode */
    bool init_answered;
    bool answered; /* something, since the request that is being handled came */
};

/* What the kernel is told although libfuse (3.14) does not tell it. Only flags that it offers
 * are sent, and where libfuse sends them already this changes nothing.
 *
 * Without PARALLEL_DIROPS the kernel holds a directory locked during each LOOKUP and READDIR
 * in it, so that they go over the network one after the other. Without HANDLE_KILLPRIV_V2 it
 * asks for security.capability before every write; with it, it says when set-uid and set-gid
 * are to be cleared, and the service does. With DIRECT_IO_ALLOW_MMAP files that are open to append
 * can bypass the page cache and still be mapped. */
#define WANTED_FLAGS (FUSE_PARALLEL_DIROPS | FUSE_HANDLE_KILLPRIV_V2 | FUSE_DIRECT_IO_ALLOW_MMAP)

/* Linux 6.6 */
#ifndef FUSE_DIRECT_IO_ALLOW_MMAP
#define FUSE_DIRECT_IO_ALLOW_MMAP (1ULL << 36)
#endif

static ssize_t device_read(int fd, void *buffer, size_t len, void *userdata)
{
    struct device *dev = ((struct driver *)userdata)->device;
    ssize_t n = read(fd, buffer, len);
    if (n >= (ssize_t)sizeof(struct fuse_in_header)) {
        const struct fuse_in_header *in = buffer;
        if (in->opcode < OPCODES)
            dev->received[in->opcode]++;
    }
    if (n >= (ssize_t)(sizeof(struct fuse_in_header) + offsetof(struct fuse_init_in, flags2))) {
        const struct fuse_in_header *in = buffer;
        if (in->opcode == FUSE_INIT) {
            const struct fuse_init_in *init = (const void *)(in + 1);
            dev->init_unique = in->unique;
            dev->init_offered = init->flags;
            if ((init->flags & FUSE_INIT_EXT) && n >= (ssize_t)(sizeof *in + sizeof *init))
                dev->init_offered |= (uint64_t)init->flags2 << 32;
        }
    }
    return n;
}

static ssize_t device_write(int fd, struct iovec *iov, int count, void *userdata)
{
    struct device *dev = ((struct driver *)userdata)->device;
    const struct fuse_out_header *out = iov[0].iov_base;
    if (dev->init_unique && !dev->init_answered && out->unique == dev->init_unique) {
        if (count >= 2 && out->error == 0 &&
            iov[1].iov_len >= offsetof(struct fuse_init_out, max_background)) {
            struct fuse_init_out *init = iov[1].iov_base;
            dev->init_wanted = dev->init_offered & WANTED_FLAGS;
            if (iov[1].iov_len < offsetof(struct fuse_init_out, unused))
                dev->init_wanted &= UINT32_MAX;
            else if (dev->init_wanted >> 32)
                dev->init_wanted |= FUSE_INIT_EXT; /* the kernel reads flags2 then */
            init->flags |= (uint32_t)dev->init_wanted;
            if (dev->init_wanted & FUSE_INIT_EXT)
                init->flags2 |= (uint32_t)(dev->init_wanted >> 32);
        }
        dev->init_answered = true;
    }
    /* What tells the kernel to forget answers nothing, and comes from another thread. */
    if (out->unique != 0)
        dev->answered = true;
    return writev(fd, iov, count);
}

/* The arguments of the request that is being handled; NULL if it is another or too short. */
static const void *current_arguments(const struct driver *d, uint32_t opcode, size_t size)
{
    const struct fuse_buf *b = &d->device->buffer;
    const struct fuse_in_header *in = b->mem;
    return in->opcode == opcode && b->size >= sizeof *in + size ? in + 1 : NULL;
}

bool device_write_kills_priv(const struct driver *d)
{
    const struct fuse_write_in *w = current_arguments(d, FUSE_WRITE, sizeof *w);
    return w && (w->write_flags & FUSE_WRITE_KILL_SUIDGID);
}

bool device_open_kills_priv(const struct driver *d)
{
    const struct fuse_open_in *o = current_arguments(d, FUSE_OPEN, sizeof *o);
    const struct fuse_create_in *c = current_arguments(d, FUSE_CREATE, sizeof *c);
    return (o && (o->open_flags & FUSE_OPEN_KILL_SUIDGID)) ||
           (c && (c->open_flags & FUSE_OPEN_KILL_SUIDGID));
}

const char *device_received(const struct driver *d, size_t i, uint64_t *ret_count)
{
#define NAMED(name)        \
    {                      \
        FUSE_##name, #name \
    }
    static const struct {
        uint32_t opcode;
        const char *name;
    } opcodes[] = {
        NAMED(LOOKUP),
        NAMED(FORGET),
        NAMED(BATCH_FORGET),
        NAMED(GETATTR),
        NAMED(SETATTR),
        NAMED(READLINK),
        NAMED(SYMLINK),
        NAMED(MKNOD),
        NAMED(MKDIR),
        NAMED(UNLINK),
        NAMED(RMDIR),
        NAMED(RENAME),
        NAMED(RENAME2),
        NAMED(LINK),
        NAMED(OPEN),
        NAMED(CREATE),
        NAMED(READ),
        NAMED(WRITE),
        NAMED(FLUSH),
        NAMED(FSYNC),
        NAMED(RELEASE),
        NAMED(FALLOCATE),
        NAMED(COPY_FILE_RANGE),
        NAMED(LSEEK),
        NAMED(OPENDIR),
        NAMED(READDIR),
        NAMED(READDIRPLUS),
        NAMED(RELEASEDIR),
        NAMED(STATFS),
        NAMED(GETXATTR),
        NAMED(SETXATTR),
        NAMED(LISTXATTR),
        NAMED(GETLK),
        NAMED(SETLK),
        NAMED(SETLKW),
        NAMED(INTERRUPT),
    };
#undef NAMED
    if (i >= ARRAY_SIZE(opcodes))
        return NULL;
    *ret_count = d->device->received[opcodes[i].opcode];
    return opcodes[i].name;
}

uint64_t device_current_unique(const struct driver *d)
{
    return ((const struct fuse_in_header *)d->device->buffer.mem)->unique;
}

void device_answer_interrupted(const struct driver *d, uint64_t unique)
{
    const struct fuse_out_header out = {.len = sizeof out, .error = -EINTR, .unique = unique};
    /* It fails when the kernel has the answer already. */
    (void)!write(fuse_session_fd(d->device->session), &out, sizeof out);
}

struct fuse_session *device_session(const struct driver *d)
{
    return d->device->session;
}

bool device_direct_allows_mmap(const struct driver *d)
{
    return d->device->init_wanted & FUSE_DIRECT_IO_ALLOW_MMAP;
}

struct driver *request_driver(fuse_req_t fuse)
{
    return ((struct driver *)fuse_req_userdata(fuse))->device->current;
}

struct driver *device_driver(struct driver *d, uint64_t node)
{
    struct driver *first = d->device->driver;
    return first->join ? join_driver(first->join, node) : first;
}

void device_hand_over(struct driver *d, struct driver *to)
{
    d->device->current = to;
}

/* False: the kernel has been answered. */
static bool route(struct device *dev)
{
    const struct fuse_in_header *in = dev->buffer.mem;
    dev->current = dev->driver;
    if (!dev->driver->join || dev->buffer.size < sizeof *in)
        return true;
    int error = 0;
    dev->current = join_route(dev->driver->join, in, dev->buffer.size - sizeof *in, &error);
    if (dev->current)
        return true;
    dev->current = dev->driver;
    const struct fuse_out_header out = {.len = sizeof out, .error = error, .unique = in->unique};
    if (error <= 0)
        (void)!write(fuse_session_fd(dev->session), &out, sizeof out);
    dev->answered = true;
    return false;
}

static void op_init(void *userdata, struct fuse_conn_info *conn)
{
    conn->max_background = MAX_BACKGROUND;
    conn->congestion_threshold = MAX_BACKGROUND * 3 / 4;
    conn->max_write = WIRE_DATA_MAX;
    const struct driver *d = userdata;
    /* Pages are dropped when a change is reported; where none are, when the kernel finds another
     * size or time. */
    bool reported =
        d->options->cache &&
        (d->join || (d->client && (client_peer(d->client)->features & WIRE_FEATURE_CHANGES)));
    const unsigned int want =
        (reported ? FUSE_CAP_EXPLICIT_INVAL_DATA : FUSE_CAP_AUTO_INVAL_DATA) | FUSE_CAP_ASYNC_READ |
        FUSE_CAP_PARALLEL_DIROPS | FUSE_CAP_EXPIRE_ONLY | FUSE_CAP_READDIRPLUS |
        FUSE_CAP_READDIRPLUS_AUTO | FUSE_CAP_ASYNC_DIO | FUSE_CAP_ATOMIC_O_TRUNC;
    /* Not among them: WRITEBACK_CACHE assumes that nobody else changes the files. With
     * CACHE_SYMLINKS the kernel would follow texts that were judged where a link's directory is no
     * longer. The first
     * HANDLE_KILLPRIV would have set-uid cleared on every write, whoever writes. Splicing
     * needs pipes that the hooks above do not have. */
    const unsigned int locks = FUSE_CAP_POSIX_LOCKS | FUSE_CAP_FLOCK_LOCKS;
    conn->want = conn->capable & (d->options->locks_local ? want : want | locks);
}

const struct fuse_lowlevel_ops operations = {
    .init = op_init,
    .lookup = op_lookup,
    .forget = op_forget,
    .forget_multi = op_forget_multi,
    .getattr = op_getattr,
    .setattr = op_setattr,
    .readlink = op_readlink,
    .mknod = op_mknod,
    .mkdir = op_mkdir,
    .unlink = op_unlink,
    .rmdir = op_rmdir,
    .symlink = op_symlink,
    .rename = op_rename,
    .link = op_link,
    .open = op_open,
    .read = op_read,
    .write = op_write,
    .flush = op_flush,
    .release = op_release,
    .fsync = op_fsync,
    .opendir = op_opendir,
    .readdir = op_readdir,
    .readdirplus = op_readdirplus,
    .releasedir = op_release,
    .fsyncdir = op_fsync,
    .statfs = op_statfs,
    .setxattr = op_setxattr,
    .getxattr = op_getxattr,
    .listxattr = op_listxattr,
    .removexattr = op_removexattr,
    .create = op_create,
    .fallocate = op_fallocate,
    .lseek = op_lseek,
    .copy_file_range = op_copy_file_range,
    .getlk = op_getlk,
    .setlk = op_setlk,
    .flock = op_flock,
};

static void device_readable(evutil_socket_t fd, short what, void *context)
{
    struct device *dev = context;
    struct driver *d = dev->driver;
    for (int i = 0; i < REQUESTS_PER_TURN; i++) {
        int r = fuse_session_receive_buf(dev->session, &dev->buffer);
        if (r == -EINTR)
            continue;
        if (r == -EAGAIN) {
            /* In the loop's next turn, which does not sleep then. */
            if (vigil_goes_on(&dev->vigil, clock_monotonic_ns()))
                event_active(dev->event, EV_READ, 0);
            return;
        }
        if (r <= 0) {
            /* 0: unmounted, or the connection was aborted. */
            if (r < 0)
                log_error("reading from the kernel: %s", strerror(-r));
            (void)event_del(dev->event);
            driver_end(d, r);
            return;
        }
        bool before = dev->init_answered;
        dev->answered = false;
        vigil_taken(&dev->vigil, clock_monotonic_ns());
        if (route(dev))
            fuse_session_process_buf(dev->session, &dev->buffer);
        vigil_handled(&dev->vigil, clock_monotonic_ns(), dev->answered);
        if (!before && dev->init_answered) {
            int error = d->join ? join_start(d->join) : coherence_new(d, dev->session);
            if (error < 0) {
                log_error("cannot learn of changes: %s", strerror(-error));
                driver_end(d, error);
                return;
            }
            if (d->ready && !d->join)
                d->ready(d->ready_context);
        }
    }
}

__attribute__((format(printf, 2, 0))) static void log_libfuse(enum fuse_log_level level,
                                                              const char *format, va_list args)
{
    char text[512];
    (void)vsnprintf(text, sizeof text, format, args);
    text[strcspn(text, "\n")] = '\0';
    if (level <= FUSE_LOG_ERR)
        log_error("libfuse: %s", text);
    else
        log_debug("libfuse: %s", text);
}

int device_start(struct driver *d, int fd, struct failure *ret_failure)
{
    _cleanup_close_ int owned = fd;
    struct device *dev = calloc(1, sizeof *dev);
    if (!dev)
        return failure_set(ret_failure, -ENOMEM, "out of memory");
    dev->driver = dev->current = d;
    d->device = dev;
    fuse_set_log_func(log_libfuse);
    char name[] = "berthfs";
    char *argv[] = {name, NULL};
    struct fuse_args args = FUSE_ARGS_INIT(1, argv);
    dev->session = fuse_session_new(&args, &operations, sizeof operations, d);
    fuse_opt_free_args(&args);
    if (!dev->session)
        return failure_set(ret_failure, -ENOMEM, "libfuse cannot make a session");
    const struct fuse_custom_io io = {.writev = device_write, .read = device_read};
    if (fcntl(fd, F_SETFL, O_NONBLOCK) < 0)
        return failure_set(ret_failure, -errno, "/dev/fuse: %s", strerror(errno));
    int r = fuse_session_custom_io(dev->session, &io, fd);
    if (r != 0)
        return failure_set(ret_failure, r < 0 ? r : -EIO, "libfuse cannot use /dev/fuse");
    (void)take_fd(&owned); /* the session closes it */
    dev->event = event_new(d->base, fd, EV_READ | EV_PERSIST, device_readable, dev);
    if (!dev->event || event_add(dev->event, NULL) < 0)
        return failure_set(ret_failure, -ENOMEM, "cannot watch /dev/fuse");
    return 0;
}

void device_free(struct device *dev)
{
    if (!dev)
        return;
    if (dev->event)
        event_free(dev->event);
    if (dev->session)
        fuse_session_destroy(dev->session);
    free(dev->buffer.mem);
    free(dev);
}

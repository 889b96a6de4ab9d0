/* berthfs, also known as mount.fuse.berth: the command. It checks what can be checked, leaves
 * the terminal, connects, mounts, and serves. */
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/log.h"
#include "climb.h"
#include "coherence.h"
#include "connection.h"
#include "control_socket.h"
#include "device.h"
#include "disk.h"
#include "interrupt.h"
#include "join.h"
#include "mount.h"
#include "names/thread_id.h"
#include "options.h"
#include "outside.h"
#include "prune.h"
#include "request.h"
#include "stop.h"
#include "supervisor.h"
#include "terminal/progress.h"

#define EXIT_USAGE 2

/* Freed memory that the allocator keeps. Parts of large files come and go; the kernel would have to
 * clear that of each, which takes up to a third of the time. */
#define MEMORY_KEPT (8 << 20)

/* Where the outcome of starting goes: to the process that the user started. */
struct outcome {
    int fd; /* pipe to the parent; -1 in the foreground */
    bool told;
};

static void outcome_failed(struct outcome *o, const struct failure *f)
{
    if (o->fd >= 0 && !o->told)
        (void)!write(o->fd, f->text, strlen(f->text));
    else
        log_error("%s", f->text);
    close_fd(&o->fd);
    o->told = true;
}

static void detach_stdio(void)
{
    _cleanup_close_ int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null >= 0) {
        (void)dup2(null, STDIN_FILENO);
        (void)dup2(null, STDOUT_FILENO);
    }
}

/* What the background part needs when the mount has become usable. */
struct ready {
    struct outcome *outcome;
    struct driver *driver;
    int log_fd; /* becomes standard error; -1: stays as it is */
};

static void on_ready(void *context)
{
    struct ready *r = context;
    if (r->outcome->fd < 0) {
        log_info("mounted %s at %s", r->driver->settings->url, r->driver->mountpoint);
        return;
    }
    detach_stdio();
    if (r->log_fd >= 0)
        (void)dup2(r->log_fd, STDERR_FILENO);
    close_fd(&r->log_fd);
    r->driver->unheard = false;
    log_info("mounted %s at %s", r->driver->settings->url, r->driver->mountpoint);
    (void)!write(r->outcome->fd, "", 1); /* an empty message: success */
    close_fd(&r->outcome->fd);
    r->outcome->told = true;
}

/* In the parent: waits for the outcome and reports it. */
static int wait_outcome(int fd, bool may_ask)
{
    struct progress *progress = may_ask ? NULL : progress_start("mount", 0, PROGRESS_STEPS);
    progress_step(progress, "waiting for the service");
    char text[FAILURE_TEXT_MAX];
    size_t len = 0;
    ssize_t n;
    while (len < sizeof text - 1 && (n = read(fd, text + len, sizeof text - 1 - len)) != 0) {
        if (n < 0 && errno != EINTR)
            break;
        if (n > 0)
            len += (size_t)n;
    }
    text[len] = '\0';
    progress_end(progress);
    if (len == 1 && text[0] == '\0')
        return EXIT_SUCCESS;
    log_error("%s", len ? text : "the driver died while starting");
    return EXIT_FAILURE;
}

static int open_workspace(struct client *client, uint32_t flags, const char *key,
                          struct wire_frame **ret, struct failure *f)
{
    struct wire_message m = {.type = WIRE_WORKSPACE_OPEN};
    m.workspace_open.flags = flags;
    m.workspace_open.key = bytes_of_string(key);
    return client_call_sync(client, &m, 0, ret, f);
}

/* Makes the workspace of -w the mount's root. */
static int root_workspace(struct driver *d, struct client *client, struct failure *f)
{
    const char *key = d->options->workspace;
    struct wire_frame *frame = NULL;
    uint8_t id[THREAD_ID_MAX];
    if (strlen(key) > WIRE_THREAD_ID_MAX || !*key)
        return failure_set(f, -EINVAL, "-w: a thread ID has 1 to %d bytes", WIRE_THREAD_ID_MAX);
    int r = open_workspace(client, 0, key, &frame, f);
    if (r == -ENOENT && thread_id_from_name(bytes_of_string(key), id) != -EINVAL)
        r = open_workspace(client, WIRE_WORKSPACE_BY_NAME, key, &frame, f);
    char text[256];
    if (r == -ENOENT)
        return failure_set(f, r, "the service has no workspace \"%s\"; make it with: berth create",
                           log_escape(key, strlen(key), text, sizeof text));
    if (r < 0)
        return r;
    const struct wire_workspace_root *w = &frame->message.workspace_root;
    r = inode_set_root(&d->inodes, w->node, &w->attr, w->name);
    d->root_attr = w->attr;
    if (r == 0)
        r = driver_note_workspace(d, d->inodes.root, w->thread_id);
    wire_frame_free(frame);
    return r < 0 ? failure_set(f, r, "out of memory") : 0;
}

/* The first df must not show a full disk: programs refuse to save on one. */
static int ask_space(struct driver *d, struct client *client, struct failure *f)
{
    const struct wire_message m = {.type = WIRE_STATFS};
    struct wire_frame *frame = NULL;
    int r = client_call_sync(client, &m, 0, &frame, f);
    if (r < 0)
        return r;
    root_note_space(d, &frame->message.statfs_reply);
    wire_frame_free(frame);
    return 0;
}

static int mount_device(struct driver *d, uint32_t *ret_minor, int *ret_fd, struct failure *f)
{
    struct mount_request m = {
        .mountpoint = d->mountpoint,
        .source = d->settings->url,
        .flags = d->options->mount_flags,
        .allow_other = d->options->allow_other,
        .kernel_options = d->options->kernel_options,
    };
    struct mount_info info;
    int r = mount_make(&m, ret_fd, f);
    if (r < 0)
        return r;
    r = mount_find(d->mountpoint, &info);
    if (r != 1) {
        close_fd(ret_fd);
        return failure_set(f, -EIO, "the mount at %s is not in /proc/self/mountinfo",
                           d->mountpoint);
    }
    *ret_minor = info.minor;
    supervisor_mounted(d->supervisor, info.minor);
    return 0;
}

/* Before the mount, which could come to lie over it. Without it, the mount has more to ask for. */
static void open_cache(struct driver *d, struct failure *ret_failure)
{
    struct disk_options o = {
        .url = d->settings->url, .mountpoint = d->mountpoint, .size_max = d->options->cache_size};
    ret_failure->error = 0;
    if (!d->options->cache || !o.size_max)
        return;
    memcpy(o.service_id, client_peer(d->client)->service_id, sizeof o.service_id);
    (void)disk_open(&o, d->base, &d->disk, ret_failure);
}

/* Mounts, and serves from when the loop runs. */
static int start_device(struct driver *d, uint32_t *ret_minor, struct failure *f)
{
    int fd;
    int r = mount_device(d, ret_minor, &fd, f);
    return r < 0 ? r : device_start(d, fd, f);
}

/* The hub of a joined mount: its members are connected when it serves. */
static int start_joined(struct driver *d, uint32_t *ret_minor, struct failure *f)
{
    int r = driver_init(d, f);
    if (r == 0)
        r = join_load(d, f);
    if (r == 0)
        r = start_device(d, ret_minor, f);
    return r < 0 ? r : stop_watch(d, *ret_minor, f);
}

static int start(struct driver *d, uint32_t *ret_minor, struct failure *f)
{
    if (options_are_joined(d->options))
        return start_joined(d, ret_minor, f);
    int r = driver_init(d, f);
    if (r < 0)
        return r;
    if (d->options->serve)
        known_start(&d->inodes);
    struct stream_options options = client_settings_stream(d->settings);
    struct client *client;
    r = client_connect_again(&options, DRIVER_AGENT, NULL, &client, f);
    if (r < 0)
        return r;
    r = outside_root(client, d->settings->url, d->mountpoint, f);
    if (r == 0)
        r = prune_tell(client, d->rules, f);
    if (r == 0 && d->options->workspace)
        r = root_workspace(d, client, f);
    if (r == 0)
        r = ask_space(d, client, f);
    if (r < 0) {
        client_free(client);
        return r;
    }
    r = connection_start(d, client, f);
    if (r < 0)
        return r;
    struct failure cache_failure;
    open_cache(d, &cache_failure);
    control_socket_open(d);
    r = start_device(d, ret_minor, f);
    if (r < 0)
        return r;
    /* A mount that fails has one reason to tell. */
    if (cache_failure.error)
        log_warning("no contents of files are kept on disk: %s", cache_failure.text);
    return stop_watch(d, *ret_minor, f);
}

/* Connects, mounts, serves, and leaves nothing behind. */
static int drive(struct driver *d, struct outcome *outcome)
{
    struct failure f;
    uint32_t minor = 0;
    int r = start(d, &minor, &f);
    if (r < 0) {
        outcome_failed(outcome, &f);
    } else {
        if (event_base_dispatch(d->base) < 0)
            d->result = -EIO;
        r = d->result;
        if (!outcome->told && outcome->fd >= 0) {
            (void)failure_set(&f, -EIO, "the mount ended before it was usable");
            outcome_failed(outcome, &f);
            r = -EIO;
        }
    }
    /* Of what is still mounted, nothing can be served any more. */
    if (minor)
        (void)mount_remove(d->mountpoint, minor, true);
    supervisor_end(take_ptr(d->supervisor), minor && !d->client && !d->join);
    bool left_behind = false;
    connection_stop(d, &left_behind);
    if (d->join) {
        join_stop(d->join, &left_behind);
        /* Threads still connect. */
        if (left_behind)
            _exit(r < 0 ? EXIT_FAILURE : EXIT_SUCCESS);
        request_fail_all(d, -EIO);
        join_free(take_ptr(d->join));
    }
    control_socket_free(d);
    left_behind |= disk_free(take_ptr(d->disk));
    climb_stop(d);
    request_fail_all(d, -EIO);
    stop_free(d);
    coherence_free(d);
    interrupt_release(d);
    device_free(d->device);
    driver_release(d);
    if (left_behind)
        _exit(r < 0 ? EXIT_FAILURE : EXIT_SUCCESS);
    return r < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}

static int open_log(const struct options *o, int *ret_fd, struct failure *f)
{
    *ret_fd = -1;
    if (!o->log_file)
        return 0;
    *ret_fd = file_open_log(o->log_file);
    return *ret_fd < 0 ? failure_set(f, *ret_fd, "log=%s: %s", o->log_file, file_log_error(*ret_fd))
                       : 0;
}

/* The rest of the program in the process that will serve. */
static int serve(const struct options *o, const struct client_settings *settings,
                 const char *mountpoint, struct visibility_rules *rules, int log_fd, int outcome_fd)
{
    struct outcome outcome = {.fd = outcome_fd};
    struct driver d = {
        .options = o,
        .settings = settings,
        .mountpoint = mountpoint,
        .rules = rules ? visibility_rules_ref(rules) : NULL,
        .uid = getuid(),
        .gid = getgid(),
    };
    struct ready ready = {.outcome = &outcome, .driver = &d, .log_fd = log_fd};
    struct failure f;
    int syslog_fd;
    int r =
        supervisor_start(mountpoint, settings, o->foreground && log_fd < 0 ? STDERR_FILENO : log_fd,
                         &d.supervisor, &syslog_fd, &f);
    if (r < 0) {
        outcome_failed(&outcome, &f);
        return EXIT_FAILURE;
    }
    if (ready.log_fd < 0)
        ready.log_fd = syslog_fd;
    d.unheard = outcome_fd >= 0;
    d.ready = on_ready;
    d.ready_context = &ready;
    (void)signal(SIGPIPE, SIG_IGN);
    return drive(&d, &outcome);
}

/* may_ask: a command that connects may want a password of whoever sits there. */
static int go_to_background(bool may_ask, int *ret_outcome_fd, struct failure *f)
{
    int fds[2];
    if (pipe2(fds, O_CLOEXEC) < 0)
        return failure_set(f, -errno, "pipe: %s", strerror(errno));
    (void)fflush(NULL);
    pid_t pid = fork();
    if (pid < 0)
        return failure_set(f, -errno, "fork: %s", strerror(errno));
    if (pid > 0) {
        (void)close(fds[1]);
        exit(wait_outcome(fds[0], may_ask));
    }
    (void)close(fds[0]);
    (void)setsid();
    *ret_outcome_fd = fds[1];
    return 0;
}

static int check(const struct options *o, const struct client_settings *settings,
                 char **ret_mountpoint, struct failure *f)
{
    int r = mount_check(o->mountpoint, ret_mountpoint, f);
    if (r < 0)
        return r;
    if (!options_are_joined(o))
        r = outside_files(*ret_mountpoint, settings, f);
    if (r == 0 && o->log_file)
        r = outside_check(*ret_mountpoint, "the log", o->log_file, f);
    return r < 0 ? r : mount_check_system(o->allow_other, f);
}

int main(int argc, char *argv[])
{
    const char *slash = strrchr(argv[0], '/');
    const char *name = slash ? slash + 1 : argv[0];
    bool helper = strncmp(name, "mount.", 6) == 0;
    log_setup("berthfs", LOG_LEVEL_INFO);

    struct failure f;
    struct options o __attribute__((cleanup(options_release))) = {0};
    struct client_settings settings __attribute__((cleanup(client_settings_release))) = {0};
    _cleanup_visibility_rules_ struct visibility_rules *rules = NULL;
    _cleanup_free_ char *mountpoint = NULL;
    _cleanup_close_ int log_fd = -1;
    int r = options_parse(argc, argv, helper, &o, &f);
    if (r < 0) {
        log_error("%s", f.text);
        return r == -EINVAL ? EXIT_USAGE : EXIT_FAILURE;
    }
    if (o.help || o.version) {
        (void)fputs(o.version ? "berthfs " BERTH_VERSION "\n" : options_usage, stdout);
        return EXIT_SUCCESS;
    }
    struct client_flags flags = options_client_flags(&o);
    r = client_settings_load(&flags, &settings, &f);
    if (r == 0 && options_are_joined(&o))
        r = join_name(&o, &settings, &f);
    if (r == 0 && o.prune)
        r = config_rules_load(o.prune, &rules, &f);
    if (r == 0)
        r = check(&o, &settings, &mountpoint, &f);
    if (r == 0)
        r = open_log(&o, &log_fd, &f);
    if (r < 0) {
        log_error("%s", f.text);
        return EXIT_FAILURE;
    }
    if (o.fake)
        return EXIT_SUCCESS;
    int outcome_fd = -1;
    if (!o.foreground) {
        r = go_to_background(settings.url && strncmp(settings.url, "exec:", 5) == 0, &outcome_fd,
                             &f);
        if (r < 0) {
            log_error("%s", f.text);
            return EXIT_FAILURE;
        }
    }
    /* The working directory may be the mountpoint, or on it. */
    if (chdir("/") < 0) {
        log_error("/: %s", strerror(errno));
        return EXIT_FAILURE;
    }
    if (o.foreground && log_fd >= 0)
        (void)dup2(log_fd, STDERR_FILENO);
    (void)mallopt(M_MMAP_THRESHOLD, MEMORY_KEPT);
    (void)mallopt(M_TRIM_THRESHOLD, MEMORY_KEPT);
    return serve(&o, &settings, mountpoint, rules, take_fd(&log_fd), outcome_fd);
}

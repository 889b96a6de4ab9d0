#include "cli/warm.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#include "base/buffer.h"
#include "base/dir.h"
#include "cli/cli.h"
#include "cli/holder.h"
#include "cli/programs.h"
#include "control/identity.h"

/* One that listens answers at once; one that is stopped is left alone. */
#define CONNECT_TIMEOUT_MS 2000

/* While another one connects there; as long as that may take. */
#define LOCK_RETRY_MS 10
#define LOCK_WORD_MS 5000
#define LOCK_WAIT_MS 75000

static int compare(const void *a, const void *b)
{
    const struct warm_socket *x = a, *y = b;
    return x->mount != y->mount ? x->mount - y->mount : strcmp(x->path, y->path);
}

static int add(struct warm_list *l, const char *directory, const char *name)
{
    struct warm_socket *sockets = reallocarray(l->sockets, l->count + 1, sizeof *sockets);
    if (!sockets)
        return -ENOMEM;
    l->sockets = sockets;
    char *path;
    if (asprintf(&path, "%s/%s", directory, name) < 0)
        return -ENOMEM;
    sockets[l->count++] = (struct warm_socket){.path = path, .mount = strchr(name, '-') != NULL};
    return 0;
}

int warm_list_read(const char *directory, const char *identity, struct warm_list *ret)
{
    _cleanup_warm_list_ struct warm_list l = {0};
    _cleanup_dir_ DIR *dir = opendir(directory);
    const struct dirent *entry;
    int r = dir ? 0 : -errno;
    if (r == -ENOENT)
        return 0;
    while (r >= 0 && (r = dir_next(dir, &entry)) == 1)
        if (strspn(entry->d_name, "0123456789abcdef") == IDENTITY_SIZE - 1 &&
            (!identity || identity_matches(identity, entry->d_name)))
            r = add(&l, directory, entry->d_name);
    if (r < 0)
        return r;
    if (l.count)
        qsort(l.sockets, l.count, sizeof *l.sockets, compare);
    *ret = l;
    l = (struct warm_list){0};
    return 0;
}

void warm_list_release(struct warm_list *l)
{
    for (size_t i = 0; i < l->count; i++)
        free(l->sockets[i].path);
    free(l->sockets);
    *l = (struct warm_list){0};
}

/* --- using one ---------------------------------------------------------------------- */

static int connect_socket(const char *path, struct client **ret)
{
    _cleanup_free_ char *url = NULL;
    struct failure f;
    if (asprintf(&url, "unix:%s", path) < 0) {
        url = NULL;
        return -ENOMEM;
    }
    const struct stream_options options = {.url = url, .connect_timeout_ms = CONNECT_TIMEOUT_MS};
    return client_connect(&options, CLI_AGENT, ret, &f);
}

static int connect_any(const char *directory, const char *identity, const char **ret_way,
                       struct client **ret)
{
    _cleanup_warm_list_ struct warm_list l = {0};
    int r = warm_list_read(directory, identity, &l);
    if (r < 0)
        return r;
    for (size_t i = 0; i < l.count; i++) {
        if (connect_socket(l.sockets[i].path, ret) < 0)
            continue;
        *ret_way = l.sockets[i].mount ? "mount" : "holder";
        return 0;
    }
    return -ENOENT;
}

/* --- starting one --------------------------------------------------------------------- */

static _Noreturn void become_holder(const char *program, const struct client_settings *s,
                                    const char *config_file, const char *path, int persist_s,
                                    int fd)
{
    char persist[16], ready[16];
    (void)snprintf(persist, sizeof persist, "%d", persist_s);
    (void)snprintf(ready, sizeof ready, "%d", fd);
    const char *argv[24] = {"berth"};
    size_t n = 1;
    const struct {
        const char *option, *value;
    } options[] = {
        {"--service", s->service},       {"--url", s->service ? NULL : s->url},
        {"--token-file", s->token_file}, {"--ca-file", s->ca_file},
        {"--cert-file", s->cert_file},   {"--key-file", s->key_file},
        {"--config", config_file},       {"--persist", persist},
    };
    for (size_t i = 0; i < ARRAY_SIZE(options); i++)
        if (options[i].value) {
            argv[n++] = options[i].option;
            argv[n++] = options[i].value;
        }
    argv[n++] = "connection";
    argv[n++] = "hold";
    argv[n++] = path;
    argv[n++] = ready;
    if (s->alone)
        argv[n++] = HOLDER_ALONE;
    /* What the caller of berth has open besides must end when berth does. Standard error stays
     * until it is connected: a password may have to be asked for. */
    int null = open("/dev/null", O_RDWR);
    if (null >= 0 && dup2(null, STDIN_FILENO) >= 0 && dup2(null, STDOUT_FILENO) >= 0) {
        if (fd > 3)
            (void)close_range(3, (unsigned)fd - 1, 0);
        (void)close_range((unsigned)fd + 1, ~0U, 0);
        (void)execv(program, (char **)(uintptr_t)argv);
    }
    (void)dprintf(fd, "%s cannot be started: %s", program, strerror(errno));
    _exit(CLI_FAILED);
}

/* 0: there is a holder. -ECONNABORTED: it says in *f why it could not connect; -ENOTUNIQ: why
 * nothing but a connection could be made. Others: nobody tried. */
static int start_holder(const struct cli *cli, const char *path, int persist_s, struct failure *f)
{
    _cleanup_free_ char *program = NULL;
    int fds[2];
    int r = program_find_network(&program);
    if (r < 0)
        return r;
    if (pipe2(fds, O_CLOEXEC) < 0)
        return -errno;
    (void)fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        (void)fcntl(fds[1], F_SETFD, 0);
        become_holder(program, &cli->settings, cli->flags.config_file, path, persist_s, fds[1]);
    }
    int error = pid < 0 ? -errno : 0;
    (void)close(fds[1]);
    char text[FAILURE_TEXT_MAX] = "";
    size_t len = 0;
    ssize_t n = 0;
    while (error == 0 && len < sizeof text - 1 &&
           ((n = read(fds[0], text + len, sizeof text - 1 - len)) > 0 || (n < 0 && errno == EINTR)))
        if (n > 0 && text[(len += (size_t)n) - 1] == '\0')
            break;
    (void)close(fds[0]);
    if (error < 0 || (len == 1 && text[0] == '\0'))
        return error;
    (void)waitpid(pid, NULL, 0);
    if (text[0] == HOLDER_USELESS[0])
        return failure_set(f, -ENOTUNIQ, "%s", text + 1);
    return failure_set(f, len ? -ECONNABORTED : -EIO, "%s", text);
}

/* Waits while another berth connects there, which may ask somebody for a password. -EAGAIN: too
 * long.
 */
static int wait_for_lock(const struct cli *cli, int fd, struct flock *lock)
{
    static const struct timespec pause = {.tv_nsec = LOCK_RETRY_MS * 1000000L};
    for (unsigned waited = 0; fcntl(fd, F_OFD_SETLK, lock) < 0; waited += LOCK_RETRY_MS) {
        if (errno != EAGAIN && errno != EACCES && errno != EINTR)
            return -errno;
        if (waited >= LOCK_WAIT_MS)
            return -EAGAIN;
        if (waited == LOCK_WORD_MS)
            cli_error(cli, "waiting for another berth, which connects to the same service");
        (void)nanosleep(&pause, NULL);
    }
    return 0;
}

/* One holder is started at a time for an identity; each has a byte of one file. */
static int lock_identity(const struct cli *cli, const char *directory, const char *identity,
                         int *ret_fd)
{
    _cleanup_free_ char *path = NULL;
    if (asprintf(&path, "%s/lock", directory) < 0) {
        path = NULL;
        return -ENOMEM;
    }
    _cleanup_close_ int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return -errno;
    char digits[16] = "";
    memcpy(digits, identity, 15);
    struct flock lock = {.l_type = F_WRLCK,
                         .l_whence = SEEK_SET,
                         .l_start = (off_t)strtoull(digits, NULL, 16),
                         .l_len = 1};
    int r = wait_for_lock(cli, fd, &lock);
    if (r == 0)
        *ret_fd = take_fd(&fd);
    return r;
}

static int connect_held(struct cli *cli, const char *directory, const char *identity,
                        struct client **ret, struct failure *f)
{
    _cleanup_close_ int lock = -1;
    _cleanup_free_ char *path = NULL;
    int persist_s = cli->settings.persist_s < 0 ? WARM_PERSIST_DEFAULT_S : cli->settings.persist_s;
    int r = lock_identity(cli, directory, identity, &lock);
    if (r < 0)
        return -ENOENT;
    /* Somebody may have been first. */
    if (connect_any(directory, identity, &cli->way, ret) == 0)
        return 0;
    r = identity_socket(directory, identity, 0, &path);
    if (r == 0)
        r = start_holder(cli, path, persist_s, f);
    if (r == -ENOTUNIQ)
        cli_error(cli, "warning: connecting without holding the connection: %s", f->text);
    if (r == 0)
        r = connect_socket(path, ret);
    if (r == 0)
        cli->way = "holder";
    return r == -ECONNABORTED || r == 0 ? r : -ENOENT;
}

/* A connection on this machine costs little more than one to a holder. A command that is found from
 * the working directory is another one elsewhere. */
static bool is_worth_holding(const struct client_settings *s)
{
    if (strncmp(s->url, "exec:", 5) == 0 && strstr(s->url, "./"))
        return false;
    return s->persist_s > 0 || (s->persist_s < 0 && strncmp(s->url, "unix:", 5) != 0);
}

int cli_reach_warm(struct cli *cli, struct client **ret, struct failure *ret_failure)
{
    char identity[IDENTITY_SIZE];
    _cleanup_free_ char *directory = NULL;
    int r = -ENOENT;
    if (cli->settings.persist_s != 0 && identity_of(&cli->settings, identity, ret_failure) == 0 &&
        identity_directory(&directory, ret_failure) == 0) {
        if (cli->control && identity_matches(identity, cli->control) &&
            (r = connect_socket(cli->control, ret)) == 0)
            cli->way = "mount";
        if (r < 0)
            r = connect_any(directory, identity, &cli->way, ret);
        if (r < 0 && !cli->passive && is_worth_holding(&cli->settings))
            r = connect_held(cli, directory, identity, ret, ret_failure);
    }
    if (r == 0 || r == -ECONNABORTED)
        return r;
    if (cli->passive && strncmp(cli->settings.url, "exec:", 5) == 0)
        return failure_set(ret_failure, -ENOENT, "there is no connection");
    cli->way = "direct";
    return cli_connect_alone(cli, ret, ret_failure);
}

int cli_connect_warm(struct cli *cli, struct client **ret)
{
    struct failure f;
    if (!cli_load_settings(cli))
        return -EINVAL;
    int r = cli_reach_warm(cli, ret, &f);
    if (r < 0)
        cli_error(cli, "%s", f.text);
    return r;
}

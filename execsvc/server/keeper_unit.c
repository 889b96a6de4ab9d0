#include "server/keeper_unit.h"

#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "base/cleanup.h"
#include "confine/cgroup.h"
#include "server/activation.h"
#include "server/errand.h"
#include "stream/unix_path.h"

/* The keeper's own cgroup, below the one that it hands on to commands. */
#define OWN_CGROUP "keeper"

/* How long whoever has connected takes to say what for. */
#define ASK_MS 2000

int keeper_unit_ask(const char *path, const struct keeper_settings *settings, int *ret_fd)
{
    struct errand e = {.kind = ERRAND_KEEP, .number = (int32_t)settings->log_level};
    _cleanup_close_ int socket = -1;
    int pair[2];
    int n = snprintf(e.text, sizeof e.text, "%u,%" PRIu64 ",%s,%s", (unsigned)geteuid(),
                     settings->keep_s, settings->name, settings->root);
    if ((size_t)n >= sizeof e.text)
        return -ENAMETOOLONG;
    int r = unix_path_connect_packets(path, &socket);
    if (r < 0)
        return r;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        return -errno;
    _cleanup_close_ int ours = pair[0];
    _cleanup_close_ int theirs = pair[1];
    r = errand_send(socket, &e, theirs);
    if (r == 0)
        *ret_fd = take_fd(&ours);
    return r;
}

/* --- the keeper's side ----------------------------------------------------------------------- */

/* Cuts the text at the next comma. NULL: there is none. */
static char *next_field(char **text)
{
    char *field = *text;
    char *comma = strchr(field, ',');
    if (!comma)
        return NULL;
    *comma = '\0';
    *text = comma + 1;
    return field;
}

static int take_settings(struct errand *e, struct keeper_settings *ret, struct failure *f)
{
    char *rest = e->text;
    const char *user = next_field(&rest);
    const char *keep = user ? next_field(&rest) : NULL;
    const char *name = keep ? next_field(&rest) : NULL;
    if (e->kind != ERRAND_KEEP || !name || !keeper_name_is_valid(name) || rest[0] != '/' ||
        e->number < LOG_LEVEL_ERROR || e->number > LOG_LEVEL_DEBUG)
        return -EBADMSG;
    if (strtoul(user, NULL, 10) != geteuid())
        return failure_set(
            f, -EPERM,
            "a service of user %s asks for a keeper, and this is user %u: both units "
            "need the same User=",
            user, (unsigned)geteuid());
    *ret = (struct keeper_settings){.root = rest,
                                    .name = name,
                                    .keep_s = strtoull(keep, NULL, 10),
                                    .log_level = (enum log_level)e->number};
    return 0;
}

static bool is_readable(int fd, int timeout_ms)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    int r;
    while ((r = poll(&p, 1, timeout_ms)) < 0 && errno == EINTR)
        ;
    return r > 0;
}

/* Accepts one that may ask, and what it asks for. Who may not, or asks for something else, is let
 * go. -ETIMEDOUT: nobody has come. */
static int accept_errand(int listener, struct errand *errand, struct keeper_settings *ret,
                         int *ret_stream)
{
    while (is_readable(listener, KEEPER_IDLE_S * 1000)) {
        struct failure f = {.text = "it says nothing that is understood"};
        _cleanup_close_ int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        _cleanup_close_ int stream = -1;
        if (fd < 0 || !keeper_peer_is_ours(fd))
            continue;
        int r = errand_receive(fd, ASK_MS, errand, &stream);
        if (r == 0 && stream < 0)
            r = -EBADMSG;
        if (r == 0)
            r = take_settings(errand, ret, &f);
        if (r == 0) {
            *ret_stream = take_fd(&stream);
            return 0;
        }
        log_warning("who has connected is given no keeper: %s", f.text);
    }
    return -ETIMEDOUT;
}

int keeper_unit_run(struct failure *ret_failure)
{
    static struct errand errand; /* what the settings borrow from */
    struct keeper_settings settings;
    struct failure why = {.text = ""};
    _cleanup_free_ char *cgroup = NULL;
    _cleanup_close_ int listener = -1;
    _cleanup_close_ int stream = -1;
    log_setup("berth-keeper", LOG_LEVEL_INFO);
    int r = activation_take_one(SOCK_SEQPACKET, &listener, ret_failure);
    if (r < 0)
        return r;
    r = accept_errand(listener, &errand, &settings, &stream);
    close_fd(&listener);
    if (r < 0)
        return 0;
    log_setup("berth-keeper", settings.log_level);
    if (cgroup_make_room(OWN_CGROUP, &cgroup, &why) < 0)
        log_warning("commands have no limits of memory, processes and processors: %s", why.text);
    settings.cgroup_parent = cgroup;
    if (chdir("/") < 0 || dup2(stream, KEEPER_FD) < 0)
        return failure_set(ret_failure, -errno, "cannot start: %s", strerror(errno));
    close_fd(&stream);
    return keeper_process_run(&settings, ret_failure);
}

/* The way to the service, and the service. */
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/un.h>

#include "base/cleanup.h"
#include "cache/cache.h"
#include "cli/doctor.h"
#include "cli/doctor_certificate.h"
#include "cli/reasons.h"
#include "config/paths.h"
#include "stream/url.h"

/* Below these, writing in a workspace will soon fail. */
#define SPACE_MIN_BYTES (UINT64_C(1) << 30)
#define INODES_MIN_PERCENT 2

/* --- runtime directory and settings -------------------------------------------------- */

void doctor_check_runtime(struct doctor *d)
{
    _cleanup_free_ char *directory = NULL;
    struct failure failure;
    struct stat st;
    const char *xdg = getenv("XDG_RUNTIME_DIR");
    bool set = xdg && xdg[0] == '/';
    if (set && stat(xdg, &st) < 0)
        doctor_problem(d, "log in anew, or make it (mode 0700), or unset the variable",
                       "XDG_RUNTIME_DIR is %s: %s", xdg, strerror(errno));
    else if (set && (st.st_uid != geteuid() || (st.st_mode & 077)))
        doctor_problem(d, "it must belong to you and have mode 0700; with su or sudo, unset it",
                       "XDG_RUNTIME_DIR is %s, which is not private to this user", xdg);
    else if (paths_runtime_dir(&directory, &failure) < 0)
        doctor_problem(d, "remove it, if it is yours, or set XDG_RUNTIME_DIR", "%s", failure.text);
    else if (!set && geteuid() != 0)
        doctor_warning(d,
                       "with systemd, log in anew (or `loginctl enable-linger`); the service must "
                       "be started with the same setting",
                       "XDG_RUNTIME_DIR is not set, so the socket's place is %s", directory);
    else
        doctor_ok(d, "the runtime directory is %s", directory);
}

/* Mounts go without it, and say so only in their log. */
void doctor_check_cache(struct doctor *d)
{
    struct failure failure;
    _cleanup_free_ char *path = NULL;
    _cleanup_close_ int dir = -1;
    int r = cache_open(false, &dir, &path, &failure);
    if (r == 0)
        doctor_ok(d, "contents of files are kept in %s", path);
    else if (r != -ENOENT) /* the first mount makes it */
        doctor_warning(d, "until then, mounts keep no contents of files on this machine's disk",
                       "%s", failure.text);
}

static const char *url_source(const struct cli *cli)
{
    if (cli->flags.url)
        return "--url";
    if (cli->flags.service)
        return "--service";
    return cli->settings.service       ? "BERTH_SERVICE"
           : cli->url_given            ? "BERTH_URL"
           : cli->settings.url_default ? "the default"
                                       : "the configuration file";
}

/* Settings that could not be loaded have been reported by the loader's own sentence. */
void doctor_check_settings(struct doctor *d)
{
    struct cli *cli = d->cli;
    struct failure failure;
    _cleanup_free_ char *config_file = NULL;
    if (!getenv("HOME") || getenv("HOME")[0] != '/')
        doctor_warning(d, "set HOME", "HOME is not set, so no configuration of yours is found");
    if (client_settings_load(&cli->flags, &cli->settings, &failure) < 0) {
        doctor_problem(d, "correct that first: no command works without it", "settings: %s",
                       failure.text);
        return;
    }
    cli->settings_loaded = true;
    if (cli->flags.config_file)
        config_file = strdup(cli->flags.config_file);
    else
        (void)paths_config_file(&config_file, &failure);
    doctor_ok(d, "configuration file: %s", config_file ? config_file : "none (none is needed)");
    doctor_ok(d, "service: %s (from %s)", cli->settings.url, url_source(cli));
    if (cli->settings.token)
        doctor_ok(d, "bearer token: from %s",
                  cli->settings.token_file ? cli->settings.token_file : "BERTH_TOKEN");
    doctor_check_certificates(d);
}

/* --- the socket ---------------------------------------------------------------------- */

/* Whether somebody listens, for the line that says why not. */
static int try_socket(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path)
        return 0;
    strcpy(address.sun_path, path);
    _cleanup_close_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    if (connect(fd, (const struct sockaddr *)&address, sizeof address) < 0 && errno != EAGAIN)
        return -errno;
    return 0;
}

static const char *connect_advice(int error)
{
    switch (error) {
    case -ECONNREFUSED:
    case -EHOSTUNREACH:
    case -ENETUNREACH:
        return "is berthd running there, with --listen of this port, and no firewall between?";
    case -ETIMEDOUT:
        return "is the host right, and reachable from here? A firewall may drop the packets";
    case -EACCES:
        return "the token (or client certificate) must be one that the service knows";
    case -EBADE:
        return "name the authority that signed it with --ca-file; check the host name and clocks";
    case -EPROTO:
        return "is that the port of berthd, and is it https or http as the service listens?";
    case -EBUSY:
        return "its operator is told more: in the service's log, by `berth status` and doctor "
               "there";
    case -ECHILD:
        return "run the command by hand: it must start `berthd --stdio` and print nothing else";
    default:
        return NULL;
    }
}

static void explain_socket(struct doctor *d, const char *path, const struct failure *failure)
{
    struct stat st;
    int error = lstat(path, &st) < 0 ? errno : 0;
    if (error == ENOENT)
        doctor_problem(d,
                       "start the service: `berthd`; if it listens elsewhere (--listen), name that "
                       "URL with --url, BERTH_URL or the configuration file",
                       "there is no socket %s: no service runs there", path);
    else if (error == EACCES)
        doctor_problem(d, "the service is another user's; ask them, or use https",
                       "the directory of the socket %s may not be entered by you", path);
    else if (error != 0)
        doctor_problem(d, NULL, "the socket %s: %s", path, strerror(error));
    else if (!S_ISSOCK(st.st_mode))
        doctor_problem(d, "remove it or name another URL", "%s is not a socket", path);
    else if (try_socket(path) == -ECONNREFUSED)
        doctor_problem(d, "start the service again: `berthd`; it replaces the socket",
                       "nobody listens on the socket %s: its service has ended", path);
    else if (try_socket(path) == -EACCES)
        doctor_problem(d, "only the user who runs the service (and root) may connect",
                       "the socket %s belongs to uid %u", path, (unsigned int)st.st_uid);
    else if (failure->error == -ETIMEDOUT)
        doctor_problem(d,
                       "is it stopped (`kill -CONT`), or does it wait for a disk? Its log may say "
                       "more; end it and start it again if not",
                       "the service on the socket %s does not answer", path);
    else
        doctor_problem(d, connect_advice(failure->error), "%s", failure->text);
}

/* --- the service --------------------------------------------------------------------- */

static void check_version(struct doctor *d, const struct session_peer *peer)
{
    const char *version = strrchr(peer->agent, ' ');
    if (version && strcmp(version + 1, BERTH_VERSION) == 0)
        doctor_ok(d, "the service answers: %s", peer->agent);
    else
        doctor_warning(d, "install the same version on both sides when you can",
                       "the service is %s, this is berth %s", peer->agent, BERTH_VERSION);
}

/* For a service of this machine: what its root has left. */
static void check_root(struct doctor *d, const char *root)
{
    struct statvfs fs;
    if (statvfs(root, &fs) < 0) {
        doctor_note(d, NULL, "the service's root is %s; its free space cannot be seen from here",
                    root);
        return;
    }
    uint64_t space = (uint64_t)fs.f_bavail * fs.f_frsize;
    uint64_t percent = fs.f_files ? (uint64_t)fs.f_favail * 100 / fs.f_files : 100;
    if (space < SPACE_MIN_BYTES)
        doctor_warning(d, "remove workspaces (`berth rm`), or move the root",
                       "only %llu MiB are free at the service's root %s",
                       (unsigned long long)(space >> 20), root);
    else if (percent < INODES_MIN_PERCENT)
        doctor_warning(d, "remove workspaces with many files, or move the root",
                       "only %llu %% of the inodes are free at the service's root %s",
                       (unsigned long long)percent, root);
    else
        doctor_ok(d, "the service's root %s has %llu GiB free", root,
                  (unsigned long long)(space >> 30));
}

static int64_t count_in(json_t *object, const char *name)
{
    return json_integer_value(json_object_get(object, name));
}

/* How much of what mounts know they may keep. */
static void check_changes(struct doctor *d, json_t *changes)
{
    const char *mode = json_string_value(json_object_get(changes, "mode"));
    if (!mode)
        return;
    if (strcmp(mode, "none") == 0)
        doctor_warning(d, "see --watch in berthd(8)",
                       "the service does not notice what commands change: mounts keep nothing");
    else if (count_in(changes, "watches_refused") > 0)
        doctor_warning(d,
                       "raise fs.inotify.max_user_watches (sysctl) on the service's machine, or "
                       "run the service as root",
                       "the service has %lld inotify watches, fewer than the files that mounts "
                       "know: the others are asked for each time",
                       (long long)count_in(changes, "watches_max"));
    else if (count_in(changes, "overflows") > 0)
        doctor_note(d, "raise fs.fanotify.max_queued_events or fs.inotify.max_queued_events there",
                    "%lld times more changed than the service's kernel keeps, and mounts forgot "
                    "all they knew",
                    (long long)count_in(changes, "overflows"));
    else
        doctor_ok(d, "the service notices changes by %s", mode);
}

/* Landlock does, since its version 6. */
static bool scopes_signals(json_t *confinement)
{
    json_t *landlock = json_object_get(confinement, "landlock");
    const char *text = json_string_value(json_object_get(landlock, "text"));
    int abi = 0;
    return json_is_true(json_object_get(landlock, "holds")) && text &&
           sscanf(text, "ABI %d", &abi) == 1 && abi >= 6;
}

/* How the service keeps commands apart, and finds what belongs to one. */
static void check_confinement(struct doctor *d, json_t *confinement)
{
    json_t *cgroup = json_object_get(confinement, "cgroup");
    json_t *space = json_object_get(confinement, "pid-namespace");
    const char *where = json_string_value(json_object_get(cgroup, "text"));
    const char *why = json_string_value(json_object_get(space, "text"));
    if (!where || !why)
        return;
    if (json_is_true(json_object_get(cgroup, "holds")))
        doctor_ok(d, "the service finds and kills what belongs to a command by cgroup: %s", where);
    else
        doctor_note(d, "run the service as root, or delegate a cgroup v2 to it (Delegate=yes)",
                    "the service finds what belongs to a command by a process of its own, which a "
                    "command can kill: %s",
                    where);
    if (json_is_true(json_object_get(space, "holds")))
        doctor_ok(d, "commands have pid namespaces: %s", why);
    else if (scopes_signals(confinement))
        doctor_note(
            d, "run the service as root, or where user namespaces are permitted",
            "commands see the processes of others, whom Landlock keeps them from signalling: "
            "no pid namespace: %s",
            why);
    else
        doctor_warning(d, "run the service as root, or where user namespaces are permitted",
                       "commands can signal those of other workspaces, and the service: no pid "
                       "namespace (%s), and no Landlock that keeps signals in (Linux 6.12)",
                       why);
}

static void check_access(struct doctor *d, json_t *access)
{
    const char *file = json_string_value(json_object_get(access, "file"));
    const char *error = json_string_value(json_object_get(access, "error"));
    if (error)
        doctor_problem(d, "correct the file: `berth token list` says the same until it is right",
                       "nobody is let in anew but the service's own user: %s", error);
    else if (file)
        doctor_ok(d, "the access file %s has %lld grant%s", file,
                  (long long)count_in(access, "grants"),
                  count_in(access, "grants") == 1 ? "" : "s");
}

static const char *why_missing(const json_t *finding)
{
    return json_is_true(json_object_get(finding, "holds"))
               ? NULL
               : json_string_value(json_object_get(finding, "text"));
}

static void note_missing(void *d, const char *names, const char *reason)
{
    /* What takes its place holds as much. */
    if (strcmp(names, "cgroup") != 0)
        doctor_note(d, NULL, "missing is %s: %s", names, reason);
}

/* Names of mechanisms that are missing, and why, one note for each reason. */
static void check_level(struct doctor *d, json_t *status)
{
    static const char advice[] = "run the service as root, or where user namespaces are permitted; "
                                 "berth-policy(5) says what each level can enforce";
    const char *level = json_string_value(json_object_get(status, "level"));
    if (!level)
        return;
    if (strcmp(level, "full") == 0)
        doctor_ok(d, "commands are confined at the level full: every policy can be enforced");
    else
        doctor_warning(d, advice, "commands are confined at the level %s alone", level);
    reasons_each(json_object_get(status, "confinement"), why_missing, note_missing, d);
}

/* What limits cannot be had, as a policy that asks for one would be told. */
static void check_limits(struct doctor *d, json_t *limits)
{
    const char *name;
    json_t *why;
    json_object_foreach(limits, name, why)
    {
        if (json_is_string(why))
            doctor_note(d, "policies and commands that ask for it are refused", "limits of %s: %s",
                        name, json_string_value(why));
        else
            doctor_ok(d, "limits of %s can be had", name);
    }
}

static void check_fenced(struct doctor *d, json_t *fenced)
{
    size_t i;
    json_t *one;
    json_array_foreach(fenced, i, one)
    {
        const char *name = json_string_value(json_object_get(one, "workspace"));
        const char *why = json_string_value(json_object_get(one, "why"));
        if (name && why)
            doctor_problem(d, "find out who did it; then `berth policy -n --lift` that name",
                           "workspace %s is fenced: %s", name, why);
    }
}

/* What it could do if somebody took it over. */
static void check_bounds(struct doctor *d, json_t *bounds)
{
    const char *name;
    json_t *bound;
    bool all = bounds != NULL;
    json_object_foreach(bounds, name, bound)
    {
        if (!json_is_false(json_object_get(bound, "holds")))
            continue;
        all = false;
        doctor_warning(d, "see --confine in berthd(8), and the service's log",
                       "the service itself is not confined by %s: %s", name,
                       json_string_value(json_object_get(bound, "text")));
    }
    if (all)
        doctor_ok(d, "the service itself is confined");
}

static void check_answers(struct doctor *d, struct client *client, bool local)
{
    struct failure failure;
    struct wire_frame *reply;
    const struct wire_message request = {.type = WIRE_STATUS};
    if (cli_call(client, &request, &reply, &failure) < 0) {
        doctor_problem(d, "look at the service's log", "the service does not tell its state: %s",
                       failure.text);
        return;
    }
    struct bytes text = reply->message.status_reply.json;
    json_t *status = json_loadb((const char *)text.data, text.len, 0, NULL);
    const char *root = json_string_value(json_object_get(status, "root"));
    if (local && root)
        check_root(d, root);
    check_access(d, json_object_get(status, "access"));
    check_changes(d, json_object_get(status, "changes"));
    check_confinement(d, json_object_get(status, "confinement"));
    check_level(d, status);
    check_limits(d, json_object_get(status, "limits"));
    check_fenced(d, json_object_get(status, "fenced"));
    check_bounds(d, json_object_get(status, "service_confinement"));
    if (count_in(status, "crashes") > 0)
        doctor_warning(d, "look at the service's log, and report it",
                       "the service has crashed %lld times, and was started again",
                       (long long)count_in(status, "crashes"));
    json_decref(status);
    wire_frame_free(reply);
}

void doctor_check_service(struct doctor *d)
{
    struct cli *cli = d->cli;
    struct stream_url url;
    struct failure failure;
    _cleanup_client_ struct client *client = NULL;
    if (!cli->settings_loaded || stream_url_parse(cli->settings.url, &url, &failure) < 0)
        return;
    if (url.kind == STREAM_HTTPS && !cli->settings.token && !cli->settings.cert_file)
        doctor_warning(d, "give --token-file FILE, or --cert-file and --key-file",
                       "neither a token nor a client certificate is set for an https service");
    int r = cli_connect_alone(cli, &client, &failure);
    if (r < 0 && url.kind == STREAM_UNIX) {
        explain_socket(d, url.rest, &failure);
        return;
    }
    if (r < 0) {
        doctor_problem(d, connect_advice(r), "%s", failure.text);
        return;
    }
    check_version(d, client_peer(client));
    check_answers(d, client, url.kind == STREAM_UNIX);
}

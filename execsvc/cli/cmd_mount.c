#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"
#include "base/cleanup.h"
#include "cli/at_place.h"
#include "cli/cli.h"
#include "cli/programs.h"
#include "config/services.h"
#include "stream/url.h"

const char mount_usage[] =
    "usage: berth mount [URL…] MOUNTPOINT [OPTION…]\n"
    "Shows the service's workspaces as directories of MOUNTPOINT, an empty directory of yours.\n"
    "Returns when the mount is usable; it stays until `berth umount MOUNTPOINT`.\n"
    "\n"
    "      --service NAME   the service of that name in the configuration file; given more than\n"
    "                       once, or with several URLs: all of them in one tree. Of two\n"
    "                       workspaces of one name the first service has it, and the other is\n"
    "                       NAME@SERVICE. One that cannot be reached comes when it can\n"
    "      --all            the service of this machine, all that have names, and the workspaces\n"
    "                       of providers, as they come and go\n"
    "  -w, --workspace ID   this workspace alone is the mountpoint\n"
    "  -f, --foreground     stay in the foreground, with messages on standard error\n"
    "  -o OPTION,…          options of the mount:\n"
    "       ro              nothing can be changed through it\n"
    "       allow_other     other users may enter it too; needs user_allow_other in\n"
    "                       /etc/fuse.conf unless root mounts\n"
    "       owner=map       files look like yours (the default); owner=server: as they are\n"
    "       symlinks=contain links that lead out of their workspace, but for system paths\n"
    "                       like /usr, cannot be followed (the default); refuse: nor those;\n"
    "                       verbatim: all can, so trust the workspace;\n"
    "                       contain+translate: /workspace/… leads to the mount\n"
    "       prune=ide       leaves node_modules, .venv, target, caches and the like out of\n"
    "                       listings; prune=./FILE: by rules of your own, see\n"
    "                       `berth help visibility`\n"
    "       locks=local     file locks hold on this machine alone; locks=server (the\n"
    "                       default): wherever the files are in use\n"
    "       cache=no        asks the service each time; cache=yes (the default): keeps what it\n"
    "                       was told until the service reports a change, and reads ahead\n"
    "       disconnected=serve while the connection is lost, goes on answering what it knows,\n"
    "                       which may have changed; disconnected=fail (the default): after 3\n"
    "                       seconds nothing is answered that is not certain\n"
    "       timeout=SECONDS how long a program waits while the connection is lost\n"
    "       and those of mount(8). In a value, ',' is written '\\,' and '\\' is written '\\\\'.\n"
    "\n"
    "Examples\n"
    "  mkdir -p ~/berth && berth mount ~/berth\n"
    "  berth mount -w demo ~/demo\n"
    "  berth mount https://build.example.org:7443 ~/build -o ro\n"
    "  berth mount --service lab --service build ~/work\n"
    "  berth mount 'exec:ssh host berthd --stdio' ~/host\n"
    "\n"
    "In /etc/fstab (see berthfs(8)):\n"
    "  unix:/run/berth/berthd.sock  /srv/berth  fuse.berth  allow_other,_netdev  0  0\n";

enum { OPTION_SERVICE = 256, OPTION_ALL };

static const struct option options[] = {
    {"workspace", required_argument, NULL, 'w'},
    {"service", required_argument, NULL, OPTION_SERVICE},
    {"all", no_argument, NULL, OPTION_ALL},
    {"foreground", no_argument, NULL, 'f'},
    {"options", required_argument, NULL, 'o'},
    {"help", no_argument, NULL, 'h'},
    {0},
};

struct words {
    char **list; /* NULL-terminated; borrowed but for those in owned */
    size_t count;
    char **owned;
    size_t owned_count;
};

static void words_release(struct words *w)
{
    for (size_t i = 0; i < w->owned_count; i++)
        free(w->owned[i]);
    free(w->owned);
    free(w->list);
}

static void add(struct words *w, char *word)
{
    w->list[w->count++] = word;
    w->list[w->count] = NULL;
}

/* "-o", "name=value" with the value escaped as berthfs and libfuse read it. */
static int add_setting(struct words *w, const char *name, const char *value)
{
    if (!value)
        return 0;
    size_t len = strlen(name);
    char *text = malloc(len + 1 + 2 * strlen(value) + 1);
    if (!text)
        return -ENOMEM;
    char *to = text + sprintf(text, "%s=", name);
    for (; *value; value++) {
        if (*value == ',' || *value == '\\')
            *to++ = '\\';
        *to++ = *value;
    }
    *to = 0;
    w->owned[w->owned_count++] = text;
    static char option[] = "-o";
    add(w, option);
    add(w, text);
    return 0;
}

/* What is meant, as far as the command line says. */
struct target {
    struct buffer services; /* names, separated by ':', with a NUL; empty: none */
    size_t service_count;
    bool all;
    char **urls; /* borrowed */
    size_t url_count;
    char *mountpoint;      /* borrowed */
    const char *workspace; /* of -w; borrowed */
};

static bool is_joined(const struct target *t)
{
    return t->all || t->service_count > 1 || t->url_count > 1;
}

/* What is resolved here goes along, so that the mount is of the very service that other
 * commands would reach; a token from BERTH_TOKEN goes through the environment, where other
 * users cannot see it. The user's own -o come later and win. */
static int add_settings(struct words *w, const struct client_settings *s, const char *config)
{
    const struct {
        const char *name;
        const char *value;
    } settings[] = {
        {"config", config},
        {"service", s->service},
        {"url", s->service ? NULL : s->url},
        {"credentials", s->alone && !s->service ? "own" : NULL},
        {"token_file", s->token_file},
        {"ca_file", s->ca_file},
        {"cert_file", s->cert_file},
        {"key_file", s->key_file},
    };
    for (size_t i = 0; i < ARRAY_SIZE(settings); i++) {
        int r = add_setting(w, settings[i].name, settings[i].value);
        if (r < 0)
            return r;
    }
    return 0;
}

/* Of several services each has its own: what the command line says is for all URLs. */
static int add_joined(struct words *w, const struct target *t, const struct client_flags *f)
{
    const struct client_settings given = {.token_file = (char *)(uintptr_t)f->token_file,
                                          .ca_file = (char *)(uintptr_t)f->ca_file,
                                          .cert_file = (char *)(uintptr_t)f->cert_file,
                                          .key_file = (char *)(uintptr_t)f->key_file};
    int r = add_settings(w, &given, f->config_file);
    if (r == 0 && t->all)
        r = add_setting(w, "services", "all");
    else if (r == 0 && t->service_count)
        r = add_setting(w, "services", (const char *)t->services.data);
    return r;
}

static int add_service(struct cli *cli, struct target *t, const char *name)
{
    if (!service_name_is_valid(name))
        return cli_usage_error(cli, "%s is no name for a service", name);
    if (t->services.len)
        t->services.data[t->services.len - 1] = ':';
    if (buffer_append(&t->services, name, strlen(name) + 1) < 0) {
        cli_error(cli, "%s", strerror(ENOMEM));
        return CLI_FAILED;
    }
    t->service_count++;
    return CLI_OK;
}

static int check_target(struct cli *cli, const struct target *t)
{
    struct failure why;
    for (size_t i = 0; t->url_count > 1 && i < t->url_count; i++)
        if (stream_url_check(t->urls[i], &why) < 0)
            return cli_usage_error(cli, "%s: one word too many, or a URL that is none: %s",
                                   t->urls[i], why.text);
    if (t->url_count && cli->flags.url)
        return cli_usage_error(cli, "two URLs: %s and %s", cli->flags.url, t->urls[0]);
    if (t->url_count && (t->service_count || t->all || cli->flags.service))
        return cli_usage_error(cli,
                               "a URL and the name of a service both say which: leave out one");
    if (!t->url_count && stream_url_check(t->mountpoint, &why) == 0)
        return cli_usage_error(cli, "%s is a URL; where shall it be mounted?", t->mountpoint);
    if ((t->service_count || t->all) && (cli->flags.url || cli->flags.service))
        return cli_usage_error(
            cli, "the options before the command say which service, too: leave out one");
    if (t->service_count && t->all)
        return cli_usage_error(cli, "--all has all services: leave out --service");
    return CLI_OK;
}

/* The positional words, [URL…] MOUNTPOINT, and what the options before the command say. */
static int take_places(struct cli *cli, int argc, char **argv, struct target *t)
{
    int count = argc - optind;
    if (count == 0)
        return cli_usage_error(cli, "where? berth mount [URL] MOUNTPOINT");
    t->urls = argv + optind;
    t->url_count = (size_t)count - 1;
    t->mountpoint = argv[argc - 1];
    int status = check_target(cli, t);
    if (status != CLI_OK)
        return status;
    if (t->url_count == 1)
        cli->flags.url = t->urls[0];
    if (t->service_count == 1)
        cli->flags.service = (const char *)t->services.data;
    return CLI_OK;
}

/* CLI_OK; or what to end with. *ret_help: all has been said. */
static int parse(struct cli *cli, int argc, char **argv, struct words *w, struct target *t,
                 bool *ret_help)
{
    static char dash_f[] = "-f", dash_o[] = "-o", dash_w[] = "-w";
    int option;
    int status = CLI_OK;
    opterr = 0;
    while (status == CLI_OK && (option = getopt_long(argc, argv, ":w:fo:h", options, NULL)) != -1) {
        if (option == 'f') {
            add(w, dash_f);
        } else if (option == 'w' || option == 'o') {
            add(w, option == 'w' ? dash_w : dash_o);
            add(w, optarg);
            if (option == 'w')
                t->workspace = optarg;
        } else if (option == OPTION_SERVICE) {
            status = add_service(cli, t, optarg);
        } else if (option == OPTION_ALL) {
            t->all = true;
        } else if (option == 'h') {
            *ret_help = true;
            return cli_show_help(cli);
        } else {
            return cli_option_error(cli, option, argv);
        }
    }
    return status;
}

static int run_berthfs(const struct cli *cli, struct words *w)
{
    _cleanup_free_ char *path = NULL;
    int r = program_find("berthfs", &path);
    if (r == -ENOENT) {
        cli_error(cli, "berthfs is neither beside this program nor in PATH; install it");
        return CLI_FAILED;
    }
    if (r == 0) {
        /* Ignored signals would stay ignored in berthfs. */
        (void)signal(SIGPIPE, SIG_DFL);
        (void)execv(path, w->list);
        r = -errno;
    }
    cli_error(cli, "%s: %s", path ? path : "berthfs", strerror(-r));
    return CLI_FAILED;
}

static int mount_target(struct cli *cli, const struct target *t, const struct words *given,
                        struct words *all)
{
    static char name[] = "berthfs", dashes[] = "--";
    bool joined = is_joined(t);
    bool is_told = t->url_count || cli->flags.url || cli->flags.service;
    struct which w = {.key = t->workspace};
    if (!joined && !is_told && t->workspace && !at_place_use(cli, &w))
        return CLI_FAILED;
    if (!joined && !cli_load_settings(cli))
        return CLI_FAILED;
    add(all, name);
    int r = joined ? add_joined(all, t, &cli->flags)
                   : add_settings(all, &cli->settings, cli->flags.config_file);
    if (r < 0) {
        cli_error(cli, "%s", strerror(-r));
        return CLI_FAILED;
    }
    for (size_t i = 0; i < given->count; i++)
        add(all, given->list[i]);
    add(all, dashes);
    for (size_t i = 0; joined && i < t->url_count; i++)
        add(all, t->urls[i]);
    add(all, t->mountpoint);
    return run_berthfs(cli, all);
}

int cmd_mount(struct cli *cli, int argc, char **argv)
{
    /* Each word of ours becomes at most two, and there are the settings. */
    size_t room = 2 * (size_t)argc + 20;
    _cleanup_(words_release) struct words given = {.list = calloc(room, sizeof(char *))};
    _cleanup_(words_release) struct words all = {.list = calloc(2 * room, sizeof(char *)),
                                                 .owned = calloc(room, sizeof(char *))};
    struct target t = {0};
    bool help = false;
    if (!given.list || !all.list || !all.owned) {
        cli_error(cli, "%s", strerror(ENOMEM));
        return CLI_FAILED;
    }
    int status = parse(cli, argc, argv, &given, &t, &help);
    if (status == CLI_OK && !help)
        status = take_places(cli, argc, argv, &t);
    if (status == CLI_OK && !help)
        status = mount_target(cli, &t, &given, &all);
    buffer_release(&t.services);
    return status;
}

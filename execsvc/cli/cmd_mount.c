#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "cli/cli.h"
#include "cli/programs.h"

const char mount_usage[] =
    "usage: berth mount [URL] MOUNTPOINT [OPTION…]\n"
    "Shows the service's workspaces as directories of MOUNTPOINT, an empty directory of yours.\n"
    "Returns when the mount is usable; it stays until `berth umount MOUNTPOINT`.\n"
    "\n"
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
    "  berth mount 'exec:ssh host berthd --stdio' ~/host\n"
    "\n"
    "In /etc/fstab (see berthfs(8)):\n"
    "  unix:/run/berth/berthd.sock  /srv/berth  fuse.berth  allow_other,_netdev  0  0\n";

static const struct option options[] = {
    {"workspace", required_argument, NULL, 'w'},
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

/* What is resolved here goes along, so that the mount is of the very service that other
 * commands would reach; a token from BERTH_TOKEN goes through the environment, where other
 * users cannot see it. The user's own -o come later and win. */
static int add_settings(struct words *w, const struct client_settings *s)
{
    const struct {
        const char *name;
        const char *value;
    } settings[] = {
        {"url", s->url},           {"token_file", s->token_file},
        {"ca_file", s->ca_file},   {"cert_file", s->cert_file},
        {"key_file", s->key_file},
    };
    for (size_t i = 0; i < ARRAY_SIZE(settings); i++) {
        int r = add_setting(w, settings[i].name, settings[i].value);
        if (r < 0)
            return r;
    }
    return 0;
}

/* The positional words: [URL] MOUNTPOINT. */
static int take_places(struct cli *cli, int argc, char **argv, char **ret_mountpoint)
{
    int count = argc - optind;
    if (count == 0)
        return cli_usage_error(cli, "where? berth mount [URL] MOUNTPOINT");
    if (count > 2)
        return cli_usage_error(cli, "%s: one word too many", argv[optind + 2]);
    if (count == 2 && cli->flags.url)
        return cli_usage_error(cli, "two URLs: %s and %s", cli->flags.url, argv[optind]);
    if (count == 2)
        cli->flags.url = argv[optind];
    *ret_mountpoint = argv[argc - 1];
    if (count == 1 && stream_url_check(argv[optind], &(struct failure){0}) == 0)
        return cli_usage_error(cli, "%s is a URL; where shall it be mounted?", argv[optind]);
    return CLI_OK;
}

static int parse(struct cli *cli, int argc, char **argv, struct words *w)
{
    static char dash_f[] = "-f", dash_o[] = "-o", dash_w[] = "-w";
    int option;
    opterr = 0;
    while ((option = getopt_long(argc, argv, ":w:fo:h", options, NULL)) != -1) {
        if (option == 'f') {
            add(w, dash_f);
        } else if (option == 'w' || option == 'o') {
            add(w, option == 'w' ? dash_w : dash_o);
            add(w, optarg);
        } else if (option == 'h') {
            (void)cli_show_help(cli);
            return -ECANCELED;
        } else {
            (void)cli_option_error(cli, option, argv);
            return -EINVAL;
        }
    }
    return 0;
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

int cmd_mount(struct cli *cli, int argc, char **argv)
{
    static char name[] = "berthfs", dashes[] = "--";
    /* Each word of ours becomes at most two, and there are the settings. */
    size_t room = 2 * (size_t)argc + 16;
    _cleanup_(words_release) struct words given = {.list = calloc(room, sizeof(char *))};
    _cleanup_(words_release) struct words all = {.list = calloc(2 * room, sizeof(char *)),
                                                 .owned = calloc(room, sizeof(char *))};
    char *mountpoint;
    if (!given.list || !all.list || !all.owned) {
        cli_error(cli, "%s", strerror(ENOMEM));
        return CLI_FAILED;
    }
    int r = parse(cli, argc, argv, &given);
    if (r < 0)
        return r == -ECANCELED ? CLI_OK : CLI_USAGE;
    int status = take_places(cli, argc, argv, &mountpoint);
    if (status != CLI_OK)
        return status;
    if (!cli_load_settings(cli))
        return CLI_FAILED;
    add(&all, name);
    if (add_settings(&all, &cli->settings) < 0) {
        cli_error(cli, "%s", strerror(ENOMEM));
        return CLI_FAILED;
    }
    for (size_t i = 0; i < given.count; i++)
        add(&all, given.list[i]);
    add(&all, dashes);
    add(&all, mountpoint);
    return run_berthfs(cli, &all);
}

#include "server/options.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "store/fault.h"

static const char usage[] =
    "Usage: berthd [OPTION]...\n"
    "Serves workspaces: their files, and commands in them. Runs in the foreground.\n"
    "\n"
    "      --config FILE         settings in JSON (default: berth.json in the user's\n"
    "                            configuration directory, else /etc/berth/berth.json)\n"
    "      --root DIR            where workspaces are kept\n"
    "      --listen URL          unix:PATH, https://HOST:PORT, or http://LOOPBACK:PORT;\n"
    "                            may be given several times (default: a unix socket in the\n"
    "                            runtime directory). ROOT/berthd.sock is always served.\n"
    "      --access-file FILE    who may do what: tokens and others, as `berth token` writes it\n"
    "      --audit-log FILE      who did what, a JSON object a line; reopened on SIGHUP\n"
    "      --tls-cert FILE       certificate chain in PEM, for https\n"
    "      --tls-key FILE        its key\n"
    "      --tls-client-ca FILE  ask https clients for a certificate of this CA\n"
    "      --prune PROFILE|FILE  visibility rules for all workspaces\n"
    "      --policy FILE         what commands of new workspaces may do, berth-policy(5)\n"
    "      --socket-mode MODE    of unix sockets, octal (default: 0600)\n"
    "      --watch HOW           how changes by commands are noticed: auto (default), fanotify,\n"
    "                            inotify or none\n"
    "      --confine HOW         whether the service confines itself: auto (default), require or\n"
    "                            off\n"
    "      --keep-verdicts S     seconds for which verdicts and output of commands\n"
    "                            that have ended are kept (default: 3600)\n"
    "      --keeper-socket PATH  where a keeper of commands is asked for, instead of being "
    "started\n"
    "                            below the service\n"
    "      --keeper              be such a keeper: for the socket unit that listens there\n"
    "      --log-level LEVEL     error, warning, info (default) or debug\n"
    "      --stdio               relay standard input and output to the service of the root,\n"
    "                            and start that service first if there is none\n"
    "      --version             print the version and exit\n"
    "  -h, --help                print this and exit\n"
    "\n"
    "See berthd(8).\n";

enum {
    OPTION_CONFIG = 256,
    OPTION_ROOT,
    OPTION_LISTEN,
    OPTION_ACCESS_FILE,
    OPTION_AUDIT_LOG,
    OPTION_TLS_CERT,
    OPTION_TLS_KEY,
    OPTION_TLS_CLIENT_CA,
    OPTION_LOG_LEVEL,
    OPTION_PRUNE,
    OPTION_POLICY,
    OPTION_WATCH,
    OPTION_SOCKET_MODE,
    OPTION_CONFINE,
    OPTION_SERVE,
    OPTION_STDIO,
    OPTION_KEEP_COMMANDS,
    OPTION_KEEPER,
    OPTION_KEEPER_SOCKET,
    OPTION_EGRESS,
    OPTION_GATEWAY,
    OPTION_KEEP_VERDICTS,
    OPTION_FAULT_POINTS,
    OPTION_VERSION,
};

static const struct option long_options[] = {
    {"config", required_argument, NULL, OPTION_CONFIG},
    {"root", required_argument, NULL, OPTION_ROOT},
    {"listen", required_argument, NULL, OPTION_LISTEN},
    {"access-file", required_argument, NULL, OPTION_ACCESS_FILE},
    {"audit-log", required_argument, NULL, OPTION_AUDIT_LOG},
    {"tls-cert", required_argument, NULL, OPTION_TLS_CERT},
    {"tls-key", required_argument, NULL, OPTION_TLS_KEY},
    {"tls-client-ca", required_argument, NULL, OPTION_TLS_CLIENT_CA},
    {"log-level", required_argument, NULL, OPTION_LOG_LEVEL},
    {"prune", required_argument, NULL, OPTION_PRUNE},
    {"policy", required_argument, NULL, OPTION_POLICY},
    {"watch", required_argument, NULL, OPTION_WATCH},
    {"socket-mode", required_argument, NULL, OPTION_SOCKET_MODE},
    {"confine", required_argument, NULL, OPTION_CONFINE},
    {"serve", no_argument, NULL, OPTION_SERVE},
    {"stdio", no_argument, NULL, OPTION_STDIO},
    {"keep-verdicts", required_argument, NULL, OPTION_KEEP_VERDICTS},
    {"keep-commands", required_argument, NULL, OPTION_KEEP_COMMANDS},
    {"keeper", no_argument, NULL, OPTION_KEEPER},
    {"keeper-socket", required_argument, NULL, OPTION_KEEPER_SOCKET},
    {"egress", required_argument, NULL, OPTION_EGRESS},
    {"fault-points", no_argument, NULL, OPTION_FAULT_POINTS},
    {"gateway", no_argument, NULL, OPTION_GATEWAY},
    {"version", no_argument, NULL, OPTION_VERSION},
    {"help", no_argument, NULL, 'h'},
    {0},
};

static int add_listen(struct options *o, const char *url)
{
    if (o->flags.listen_count == CONFIG_LISTEN_MAX) {
        (void)fprintf(stderr, "berthd: more than %d --listen\n", CONFIG_LISTEN_MAX);
        return -EINVAL;
    }
    o->listen[o->flags.listen_count++] = url;
    return 0;
}

static int take_option(struct options *o, int option, const char *argument)
{
    switch (option) {
    case OPTION_CONFIG:
        o->flags.config_file = argument;
        return 0;
    case OPTION_ROOT:
        if (!*argument) {
            (void)fprintf(stderr, "berthd: --root: a directory is needed\n");
            return -EINVAL;
        }
        o->flags.root = argument;
        return 0;
    case OPTION_LISTEN:
        return add_listen(o, argument);
    case OPTION_ACCESS_FILE:
        o->flags.access_file = argument;
        return 0;
    case OPTION_AUDIT_LOG:
        o->flags.audit_log = argument;
        return 0;
    case OPTION_TLS_CERT:
        o->flags.tls_cert = argument;
        return 0;
    case OPTION_TLS_KEY:
        o->flags.tls_key = argument;
        return 0;
    case OPTION_TLS_CLIENT_CA:
        o->flags.tls_client_ca = argument;
        return 0;
    case OPTION_LOG_LEVEL:
        o->flags.log_level = argument;
        return 0;
    case OPTION_PRUNE:
        o->flags.prune = argument;
        return 0;
    case OPTION_POLICY:
        o->flags.policy = argument;
        return 0;
    case OPTION_WATCH:
        o->flags.watch = argument;
        return 0;
    case OPTION_SOCKET_MODE:
        o->flags.socket_mode = argument;
        return 0;
    case OPTION_CONFINE:
        o->flags.confine = argument;
        return 0;
    case OPTION_SERVE:
        o->serve = true;
        return 0;
    case OPTION_KEEP_VERDICTS:
        o->flags.keep_verdicts = argument;
        return 0;
    case OPTION_STDIO:
        o->stdio = true;
        return 0;
    case OPTION_KEEP_COMMANDS:
        o->keeper = true;
        o->keep_s = strtoull(argument, NULL, 10);
        o->keeper_name = strchr(argument, ',') ? strchr(argument, ',') + 1 : "";
        return 0;
    case OPTION_KEEPER:
        o->keeper_unit = true;
        return 0;
    case OPTION_KEEPER_SOCKET:
        o->flags.keeper_socket = argument;
        return 0;
    case OPTION_EGRESS:
        o->egress = argument;
        return 0;
    case OPTION_FAULT_POINTS:
        if (fault_list(stdout) == 0)
            return OPTIONS_EXIT;
        (void)fputs("berthd: this build has no fault points\n", stderr);
        return -EOPNOTSUPP;
    case OPTION_GATEWAY:
        o->gateway = true;
        return 0;
    case OPTION_VERSION:
        (void)puts("berthd " BERTH_VERSION);
        return OPTIONS_EXIT;
    case 'h':
        (void)fputs(usage, stdout);
        return OPTIONS_EXIT;
    }
    (void)fputs("Try 'berthd --help'.\n", stderr);
    return -EINVAL;
}

int options_parse(int argc, char **argv, struct options *ret)
{
    *ret = (struct options){0};
    ret->flags.listen = ret->listen;
    int option;
    while ((option = getopt_long(argc, argv, "h", long_options, NULL)) != -1) {
        int r = take_option(ret, option, optarg);
        if (r != 0)
            return r;
    }
    if (optind < argc) {
        (void)fprintf(stderr, "berthd: unexpected argument '%s'\nTry 'berthd --help'.\n",
                      argv[optind]);
        return -EINVAL;
    }
    return OPTIONS_RUN;
}

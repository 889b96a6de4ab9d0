#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/buffer.h"
#include "cli/cli.h"
#include "cli/holder.h"
#include "cli/text.h"
#include "cli/warm.h"
#include "control/identity.h"
#include "control/query.h"

const char connection_usage[] =
    "usage: berth connection [ls] [--json]\n"
    "       berth connection stop [--all]\n"
    "To connect takes several round trips; a command needs one. So the first `berth exec` to a\n"
    "service that is not on this machine leaves a process behind that holds the connection for\n"
    "the next ones, until nobody has used it for ten minutes. Inside a mount, or where there is\n"
    "one of the same service with the same credentials, its connection is used, and nothing is\n"
    "left behind. A connection is never used with another token, certificate or URL.\n"
    "\n"
    "  ls      shows your connections that others can use\n"
    "  stop    ends the holder of the service that is meant here (--url); commands that run over\n"
    "          it lose their connection\n"
    "\n"
    "      --all    of stop: ends all of yours\n"
    "      --json   an array of objects with \"kind\" (holder or mount), \"url\", \"pid\",\n"
    "               \"programs\" (that use it now), \"calls\" (that it passed on so far),\n"
    "               \"connected\", and \"path\" (of a mount) or \"persist\" (of a holder)\n"
    "\n"
    "--persist SECONDS before or behind exec, BERTH_PERSIST, or \"persist\" in the configuration\n"
    "says how long a connection without use is held. 0, or --no-persist, is not at all: then no\n"
    "connection of others is used either. A unix socket is held only if one of these is given.\n"
    "\n"
    "Examples\n"
    "  berth connection\n"
    "  berth connection stop\n"
    "  berth exec --no-persist -w demo -- make\n";

enum { OPTION_JSON = 256, OPTION_ALL };

static const struct option options[] = {
    {"json", no_argument, NULL, OPTION_JSON},
    {"all", no_argument, NULL, OPTION_ALL},
    {"help", no_argument, NULL, 'h'},
    {0},
};

static int hold(struct cli *cli, const char *path, const char *ready)
{
    struct failure f;
    char identity[IDENTITY_SIZE];
    int fd = atoi(ready);
    if (!cli_load_settings(cli))
        return CLI_FAILED;
    int r = identity_of(&cli->settings, identity, &f);
    /* A file that has changed in this moment makes it another connection. */
    if (r < 0 || !identity_matches(identity, path) || fd <= 2)
        return CLI_FAILED;
    return holder_run(&cli->settings, path, cli->settings.persist_s, fd);
}

static int number(json_t *object, const char *key)
{
    return (int)json_integer_value(json_object_get(object, key));
}

static void print_row(json_t *o)
{
    _cleanup_buffer_ struct buffer line = {0};
    const char *url = json_string_value(json_object_get(o, "url"));
    const char *path = json_string_value(json_object_get(o, "path"));
    const char *kind = json_string_value(json_object_get(o, "kind"));
    int r = buffer_printf(&line, "%-7s pid %-8d %d program%s, %d call%s so far%s  ",
                          kind ? kind : "?", number(o, "pid"), number(o, "programs"),
                          number(o, "programs") == 1 ? "" : "s", number(o, "calls"),
                          number(o, "calls") == 1 ? "" : "s",
                          json_is_true(json_object_get(o, "connected")) ? "" : ", not connected");
    if (r == 0)
        r = text_escape(&line, bytes_of_string(url), TEXT_SENTENCE);
    if (r == 0 && path)
        r = buffer_printf(&line, "  ");
    if (r == 0 && path)
        r = text_escape(&line, bytes_of_string(path), TEXT_SENTENCE);
    if (r == 0)
        (void)printf("%.*s\n", (int)line.len, (const char *)line.data);
}

static int list(struct cli *cli, const struct warm_list *sockets, bool json)
{
    json_t *array = json_array();
    for (size_t i = 0; array && i < sockets->count; i++) {
        struct failure f;
        json_t *object;
        if (control_query(sockets->sockets[i].path, false, &object, &f) == 0)
            (void)json_array_append_new(array, object);
        else if (f.error != -ECONNREFUSED && f.error != -ENOENT)
            cli_error(cli, "%s", f.text);
    }
    size_t i;
    json_t *object;
    if (json && json_dumpf(array, stdout, JSON_INDENT(2)) == 0)
        (void)puts("");
    if (!json)
        json_array_foreach(array, i, object) print_row(object);
    json_decref(array);
    return cli_finish_output(cli, CLI_OK);
}

static int stop(struct cli *cli, const struct warm_list *sockets)
{
    int status = CLI_OK;
    for (size_t i = 0; i < sockets->count; i++) {
        struct failure f;
        json_t *about = NULL, *none;
        if (sockets->sockets[i].mount)
            continue;
        if (control_query(sockets->sockets[i].path, false, &about, &f) == 0 &&
            control_query(sockets->sockets[i].path, true, &none, &f) == 0) {
            (void)printf("ended: ");
            print_row(about);
            json_decref(about);
            continue;
        }
        json_decref(about);
        if (f.error == -ECONNREFUSED || f.error == -ENOENT)
            continue;
        cli_error(cli, "%s", f.text);
        status = CLI_FAILED;
    }
    return cli_finish_output(cli, status);
}

int cmd_connection(struct cli *cli, int argc, char **argv)
{
    bool json = false, all = false;
    int option;
    opterr = 0;
    while ((option = getopt_long(argc, argv, ":h", options, NULL)) != -1) {
        if (option == OPTION_JSON)
            json = true;
        else if (option == OPTION_ALL)
            all = true;
        else if (option == 'h')
            return cli_show_help(cli);
        else
            return cli_option_error(cli, option, argv);
    }
    const char *verb = optind < argc ? argv[optind++] : "ls";
    bool alone = argc - optind == 3 && strcmp(argv[optind + 2], HOLDER_ALONE) == 0;
    cli->flags.alone = alone;
    if (strcmp(verb, "hold") == 0 && (argc - optind == 2 || alone))
        return hold(cli, argv[optind], argv[optind + 1]);
    bool stops = strcmp(verb, "stop") == 0;
    if (optind < argc || (!stops && strcmp(verb, "ls") != 0))
        return cli_usage_error(cli, "ls or stop is what can be done here");
    _cleanup_warm_list_ struct warm_list sockets = {0};
    _cleanup_free_ char *directory = NULL;
    char identity[IDENTITY_SIZE];
    struct failure f;
    int r = 0;
    if (stops && !all) {
        if (!cli_load_settings(cli))
            return CLI_FAILED;
        r = identity_of(&cli->settings, identity, &f);
    }
    if (r == 0)
        r = identity_directory(&directory, &f);
    if (r == 0 && (r = warm_list_read(directory, stops && !all ? identity : NULL, &sockets)) < 0)
        (void)failure_set(&f, r, "%s: %s", directory, strerror(-r));
    if (r < 0) {
        cli_error(cli, "%s", f.text);
        return CLI_FAILED;
    }
    return stops ? stop(cli, &sockets) : list(cli, &sockets, json);
}

#include "cli/cli.h"

#include <stdio.h>
#include <string.h>

#include "cli/help.h"
#include "cli/here.h"
#include "cli/text.h"
#include "stream/url.h"
#include "terminal/progress.h"

enum {
    OPTION_URL = 256,
    OPTION_SERVICE,
    OPTION_TOKEN,
    OPTION_CA,
    OPTION_CERT,
    OPTION_KEY,
    OPTION_CONFIG,
    OPTION_PERSIST,
    OPTION_NO_PERSIST
};

static const struct option global_options[] = {
    {"url", required_argument, NULL, OPTION_URL},
    {"service", required_argument, NULL, OPTION_SERVICE},
    {"token-file", required_argument, NULL, OPTION_TOKEN},
    {"ca-file", required_argument, NULL, OPTION_CA},
    {"cert-file", required_argument, NULL, OPTION_CERT},
    {"key-file", required_argument, NULL, OPTION_KEY},
    {"config", required_argument, NULL, OPTION_CONFIG},
    {"persist", required_argument, NULL, OPTION_PERSIST},
    {"no-persist", no_argument, NULL, OPTION_NO_PERSIST},
    {"help", no_argument, NULL, 'h'},
    {"version", no_argument, NULL, 'V'},
    {0},
};

/* --- messages -------------------------------------------------------------------- */

int cli_error_line(const struct cli *cli, struct buffer *line, const char *format, va_list args)
{
    char *sentence;
    if (vasprintf(&sentence, format, args) < 0)
        return -ENOMEM;
    int r = buffer_printf(
        line, cli->command ? "berth: %s: " : "berth: ", cli->command ? cli->command->name : "");
    if (r == 0)
        r = text_escape(line, bytes_of_string(sentence), TEXT_SENTENCE);
    free(sentence);
    return r < 0 ? r : buffer_append(line, "\n", 1);
}

__attribute__((format(printf, 2, 0))) static void print_error(const struct cli *cli,
                                                              const char *format, va_list args)
{
    _cleanup_buffer_ struct buffer line = {0};
    int r = cli_error_line(cli, &line, format, args);
    progress_hide();
    /* In one piece, so that lines of several programs do not mix. */
    if (r == 0)
        (void)fwrite(line.data, 1, line.len, stderr);
    else
        (void)fputs("berth: out of memory\n", stderr);
}

void cli_error(const struct cli *cli, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    print_error(cli, format, args);
    va_end(args);
}

int cli_usage_error(const struct cli *cli, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    print_error(cli, format, args);
    va_end(args);
    if (cli->command)
        (void)fprintf(stderr, "Try `berth help %s`.\n", cli->command->name);
    else
        (void)fputs("Try `berth --help`.\n", stderr);
    return CLI_USAGE;
}

int cli_show_help(const struct cli *cli)
{
    help_print_command(cli->command);
    return cli_finish_output(cli, CLI_OK);
}

/* True when `word` is --NAME or --NAME=VALUE of an option that belongs before the command. */
static const char *global_option_name(const char *word)
{
    if (strncmp(word, "--", 2) != 0)
        return NULL;
    size_t len = strcspn(word + 2, "=");
    for (const struct option *o = global_options; o->name; o++)
        if (o->has_arg && strlen(o->name) == len && strncmp(o->name, word + 2, len) == 0)
            return o->name;
    return NULL;
}

int cli_option_error(const struct cli *cli, int option, char **argv)
{
    const char *word = argv[optind - 1];
    const char *global = cli->command ? global_option_name(word) : NULL;
    if (global)
        return cli_usage_error(cli, "--%s belongs before the command: berth --%s … %s", global,
                               global, cli->command->name);
    if (option == ':')
        return cli_usage_error(cli, "%s needs a value", word);
    if (optopt > 0 && optopt < 256)
        return cli_usage_error(cli, "there is no option -%c", optopt);
    if (optopt)
        return cli_usage_error(cli, "%.*s takes no value", (int)strcspn(word, "="), word);
    return cli_usage_error(cli, "there is no option %s, or it begins several", word);
}

int cli_finish_output(const struct cli *cli, int status)
{
    errno = 0;
    if (fflush(stdout) == 0 && !ferror(stdout))
        return status;
    /* A reader that has seen enough (head) is no news. */
    if (errno != EPIPE)
        cli_error(cli, "writing the output failed: %s",
                  errno ? strerror(errno) : "not all was written");
    return status == CLI_OK ? CLI_FAILED : status;
}

/* --- the service ----------------------------------------------------------------- */

bool cli_load_settings(struct cli *cli)
{
    struct failure failure;
    if (cli->settings_loaded)
        return true;
    if (client_settings_load(&cli->flags, &cli->settings, &failure) < 0) {
        cli_error(cli, "%s", failure.text);
        return false;
    }
    cli->settings_loaded = true;
    return true;
}

/* They are another service's. */
static void drop_settings(struct cli *cli)
{
    client_settings_release(&cli->settings);
    cli->settings_loaded = false;
}

void cli_use_here(struct cli *cli, const struct here *here)
{
    struct client_flags *f = &cli->flags;
    if (cli->url_given)
        return;
    if (!cli->here)
        cli->given = cli->flags;
    cli->here = here;
    *f = cli->given;
    drop_settings(cli);
    cli->control = here->control;
    f->alone = here->own_credentials;
    f->url = here->url;
    f->token_file = f->token_file ? f->token_file : here->token_file;
    f->ca_file = f->ca_file ? f->ca_file : here->ca_file;
    f->cert_file = f->cert_file ? f->cert_file : here->cert_file;
    f->key_file = f->key_file ? f->key_file : here->key_file;
}

void cli_leave_here(struct cli *cli)
{
    cli->here = NULL;
    cli->flags = cli->given;
    cli->control = NULL;
    drop_settings(cli);
}

bool cli_use_working_directory(struct cli *cli, struct here *here)
{
    struct failure failure;
    int r = here_find(NULL, here, &failure);
    if (r == 0)
        cli_use_here(cli, here);
    return r == 0 || r == -ENOENT || r == -ENOTUNIQ;
}

int cli_connect_alone(struct cli *cli, struct client **ret, struct failure *ret_failure)
{
    const struct stream_options options = client_settings_stream(&cli->settings);
    int r = stream_url_is_network(options.url) ? cli_need_network(cli, ret_failure) : 0;
    return r < 0 ? r : client_connect(&options, CLI_AGENT, ret, ret_failure);
}

int cli_connect(struct cli *cli, struct client **ret)
{
    if (!cli_load_settings(cli))
        return -EINVAL;
    struct failure failure;
    int r = cli_connect_alone(cli, ret, &failure);
    if (r < 0)
        cli_error(cli, "%s", failure.text);
    return r;
}

int cli_call(struct client *client, const struct wire_message *request, struct wire_frame **ret,
             struct failure *ret_failure)
{
    return client_call_sync(client, request, CLI_CALL_TIMEOUT_MS, ret, ret_failure);
}

/* --- the command line ------------------------------------------------------------ */

const struct cli_command *cli_find_command(const char *name)
{
    for (const struct cli_command *c = cli_commands; c->name; c++)
        if (strcmp(c->name, name) == 0)
            return c;
    return NULL;
}

const char help_usage[] = "usage: berth help [COMMAND]\n"
                          "Explains a command, with examples.\n";

int cmd_help(struct cli *cli, int argc, char **argv)
{
    if (argc > 2)
        return cli_usage_error(cli, "one command at a time");
    if (argc == 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0))
        return cli_show_help(cli);
    if (argc < 2) {
        help_print_overview();
        return cli_finish_output(cli, CLI_OK);
    }
    const struct cli_command *about = cli_find_command(argv[1]);
    if (!about) {
        const char *near = help_suggest(argv[1]);
        return cli_usage_error(cli, "there is no command %s%s%s%s", argv[1],
                               near ? "; did you mean `berth help " : "", near ? near : "",
                               near ? "`?" : "");
    }
    help_print_command(about);
    return cli_finish_output(cli, CLI_OK);
}

static int run_command(struct cli *cli, int argc, char **argv)
{
    const struct cli_command *command = cli_find_command(argv[0]);
    if (!command && (strstr(argv[0], "://") || strncmp(argv[0], "unix:", 5) == 0 ||
                     strncmp(argv[0], "exec:", 5) == 0))
        return cli_usage_error(cli,
                               "there is no command %s; a URL stands behind --url: berth --url %s",
                               argv[0], argv[0]);
    if (!command) {
        const char *near = help_suggest(argv[0]);
        return cli_usage_error(cli, "there is no command %s%s%s%s", argv[0],
                               near ? "; did you mean `berth " : "", near ? near : "",
                               near ? "`?" : "");
    }
    cli->command = command;
    /* 0: getopt starts over, with the command's own argv. */
    optind = 0;
    return command->run(cli, argc, argv);
}

static bool take_option(struct cli *cli, int option, const char *value)
{
    struct client_flags *f = &cli->flags;
    if (option == OPTION_URL)
        f->url = value;
    else if (option == OPTION_SERVICE)
        f->service = value;
    else if (option == OPTION_TOKEN)
        f->token_file = value;
    else if (option == OPTION_CA)
        f->ca_file = value;
    else if (option == OPTION_CERT)
        f->cert_file = value;
    else if (option == OPTION_KEY)
        f->key_file = value;
    else if (option == OPTION_CONFIG)
        f->config_file = value;
    else if (option == OPTION_PERSIST)
        f->persist = value;
    else if (option == OPTION_NO_PERSIST)
        f->persist = "0";
    else
        return false;
    return true;
}

int cli_take_word(struct cli *cli, const char *word, const char *next)
{
    size_t len = strcspn(word, "=");
    for (const struct option *o = global_options; o->name; o++) {
        if (len != strlen(o->name) + 2 || strncmp(word + 2, o->name, len - 2) != 0)
            continue;
        bool apart = o->has_arg && !word[len];
        (void)take_option(cli, o->val, apart ? next : word[len] ? word + len + 1 : NULL);
        cli->url_given = client_flags_name_service(&cli->flags);
        return apart ? 2 : 1;
    }
    return 1;
}

int cli_main(struct cli *cli, int argc, char **argv)
{
    int option;
    opterr = 0;
    cli->words = argv;
    while ((option = getopt_long(argc, argv, "+:hV", global_options, NULL)) != -1) {
        if (option == 'h') {
            help_print_overview();
            return cli_finish_output(cli, CLI_OK);
        }
        if (option == 'V') {
            (void)puts(CLI_AGENT);
            return cli_finish_output(cli, CLI_OK);
        }
        if (!take_option(cli, option, optarg))
            return cli_option_error(cli, option, argv);
    }
    cli->url_given = client_flags_name_service(&cli->flags);
    if (cli->flags.url && cli->flags.service)
        return cli_usage_error(cli, "--url and --service both say which service: leave out one");
    if (optind == argc)
        return cli_usage_error(cli, "no command given");
    return run_command(cli, argc - optind, argv + optind);
}

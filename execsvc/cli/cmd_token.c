#include <ctype.h>
#include <fcntl.h>
#include <jansson.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "access/grants_file.h"
#include "cli/cli.h"
#include "cli/text.h"

const char token_usage[] =
    "usage: berth token create -w PATTERN… --verb VERB[,VERB…] [--output FILE] [OPTION…]\n"
    "       berth token list [--json]\n"
    "       berth token revoke ID…\n"
    "Says who may do what at a service of this machine, in its access file. create makes a new\n"
    "token, and prints it once: the file keeps its hash. The service notices changes within a "
    "second; whoever\n"
    "is connected by a line that has gone is cut off.\n"
    "\n"
    "      --access-file FILE  the file; without it, service.access_file of the configuration\n"
    "  -w, --workspace PATTERN thread IDs it is good for; * stands for anything; may be repeated\n"
    "      --verb VERBS        read, write, exec, admin, with commas between. exec runs commands,\n"
    "                          which read and write; admin makes and removes workspaces\n"
    "      --output FILE       writes the token there, to a new file of mode 0600, as "
    "--token-file\n"
    "                          wants it, and does not print it\n"
    "      --expires WHEN      90d (default), 12h, 30m, 45s, or never\n"
    "      --id ID             its name, in logs and for revoke (default: random)\n"
    "      --note TEXT         for people\n"
    "      --user USER         no token: this user of the machine, at a unix socket that the\n"
    "                          user may connect to (berthd --socket-mode)\n"
    "      --loopback          no token: whoever comes by plain http from this machine without "
    "one,\n"
    "                          which is any program of any user of it\n"
    "      --certificate NAME  no token: who has a client certificate with this name,\n"
    "                          subject:…, DNS:…, email:… or URI:…\n"
    "      --with-token        with --certificate: both are needed\n"
    "      --json              list: an array of objects\n"
    "\n"
    "Examples\n"
    "  berth token create -w '*' --verb read,write,exec,admin --id laptop --output token\n"
    "  berth token create -w 'chat-*' --verb read --expires 12h\n"
    "  berth token revoke laptop\n";

enum {
    OPTION_FILE = 256,
    OPTION_VERB,
    OPTION_OUTPUT,
    OPTION_EXPIRES,
    OPTION_ID,
    OPTION_NOTE,
    OPTION_USER,
    OPTION_CERTIFICATE,
    OPTION_WITH_TOKEN,
    OPTION_LOOPBACK,
    OPTION_JSON,
};

static const struct option options[] = {
    {"access-file", required_argument, NULL, OPTION_FILE},
    {"workspace", required_argument, NULL, 'w'},
    {"verb", required_argument, NULL, OPTION_VERB},
    {"output", required_argument, NULL, OPTION_OUTPUT},
    {"expires", required_argument, NULL, OPTION_EXPIRES},
    {"id", required_argument, NULL, OPTION_ID},
    {"note", required_argument, NULL, OPTION_NOTE},
    {"user", required_argument, NULL, OPTION_USER},
    {"certificate", required_argument, NULL, OPTION_CERTIFICATE},
    {"with-token", no_argument, NULL, OPTION_WITH_TOKEN},
    {"loopback", no_argument, NULL, OPTION_LOOPBACK},
    {"json", no_argument, NULL, OPTION_JSON},
    {"help", no_argument, NULL, 'h'},
    {0},
};

#define EXPIRES_DEFAULT "90d"
#define EXPIRES_MAX_S (100LL * 365 * 86400)

/* Of a token: nobody guesses it, so a hash without salt or cost is enough. */
#define TOKEN_RANDOM_SIZE 32
#define TOKEN_PREFIX "berth_"

struct wish {
    const char *file, *output, *expires, *id, *note, *user, *certificate;
    const char *patterns[GRANT_PATTERNS_MAX];
    size_t pattern_count;
    unsigned verbs;
    bool with_token, loopback, json;
    bool creates; /* an option was given that is for create alone */
};

static int take_option(const struct cli *cli, struct wish *w, int option)
{
    struct failure f;
    w->creates = w->creates || (option != OPTION_FILE && option != OPTION_JSON);
    if (option == 'w') {
        if (w->pattern_count == GRANT_PATTERNS_MAX)
            return cli_usage_error(cli, "more than %d patterns", GRANT_PATTERNS_MAX);
        w->patterns[w->pattern_count++] = optarg;
    } else if (option == OPTION_VERB) {
        unsigned verbs;
        if (grant_verbs_parse(optarg, &verbs, &f) < 0)
            return cli_usage_error(cli, "--verb %s: %s", optarg, f.text);
        w->verbs |= verbs;
    } else if (option == OPTION_WITH_TOKEN) {
        w->with_token = true;
    } else if (option == OPTION_LOOPBACK) {
        w->loopback = true;
    } else if (option == OPTION_JSON) {
        w->json = true;
    } else {
        const char **text = option == OPTION_FILE      ? &w->file
                            : option == OPTION_OUTPUT  ? &w->output
                            : option == OPTION_EXPIRES ? &w->expires
                            : option == OPTION_ID      ? &w->id
                            : option == OPTION_NOTE    ? &w->note
                            : option == OPTION_USER    ? &w->user
                                                       : &w->certificate;
        *text = optarg;
    }
    return CLI_OK;
}

/* The file, absolute or as given; to be freed. NULL: a message has been printed. */
static char *find_file(const struct cli *cli, const struct wish *w)
{
    if (w->file)
        return strdup(w->file);
    const struct service_flags flags = {.config_file = cli->flags.config_file};
    _cleanup_service_settings_ struct service_settings settings = {0};
    struct failure f;
    if (service_settings_load(&flags, &settings, &f) < 0)
        cli_error(cli, "%s", f.text);
    else if (!settings.access_file)
        cli_error(cli, "which access file? Name it with --access-file, or as service.access_file "
                       "in the configuration");
    return take_ptr(settings.access_file);
}

/* --- create ---------------------------------------------------------------------------- */

/* 0: never; -1: it makes no sense; -2: it is too long. */
static time_t expiry_of(const char *text)
{
    static const struct {
        char letter;
        long long seconds;
    } units[] = {{'d', 86400}, {'h', 3600}, {'m', 60}, {'s', 1}};
    char *end;
    if (strcmp(text, "never") == 0)
        return 0;
    errno = 0;
    long long n = isdigit((unsigned char)*text) ? strtoll(text, &end, 10) : 0;
    for (size_t i = 0; n > 0 && i < ARRAY_SIZE(units); i++) {
        if (*end != units[i].letter || end[1] != '\0')
            continue;
        return errno == 0 && n <= EXPIRES_MAX_S / units[i].seconds
                   ? time(NULL) + (time_t)(n * units[i].seconds)
                   : -2;
    }
    return -1;
}

static int user_of(const char *text, uid_t *ret)
{
    const struct passwd *entry = getpwnam(text);
    if (entry) {
        *ret = entry->pw_uid;
        return 0;
    }
    char *end;
    errno = 0;
    unsigned long long n = isdigit((unsigned char)*text) ? strtoull(text, &end, 10) : UINT64_MAX;
    if (errno || n >= UINT32_MAX || *end)
        return -ENOENT;
    *ret = (uid_t)n;
    return 0;
}

static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/* Six bits of each byte; every letter is as likely as another. */
static int random_word(char *out, size_t len)
{
    uint8_t bytes[64];
    if (len > sizeof bytes || getrandom(bytes, len, 0) != (ssize_t)len)
        return -EIO;
    for (size_t i = 0; i < len; i++)
        out[i] = letters[bytes[i] & 63];
    out[len] = '\0';
    explicit_bzero(bytes, sizeof bytes);
    return 0;
}

#define TOKEN_LETTERS ((TOKEN_RANDOM_SIZE * 8 + 5) / 6)
#define ID_LETTERS 10

struct new_token {
    char text[sizeof TOKEN_PREFIX + TOKEN_LETTERS];
};

static int make_token(struct grant *g, struct new_token *token)
{
    (void)snprintf(token->text, sizeof token->text, TOKEN_PREFIX);
    int r = random_word(token->text + sizeof TOKEN_PREFIX - 1, TOKEN_LETTERS);
    g->has_token = r == 0 && grant_token_digest(bytes_of_string(token->text), g->token);
    return g->has_token ? 0 : -EIO;
}

/* A mistake of the command line is named; else CLI_OK. */
static int check(const struct cli *cli, const struct wish *w, struct grant *g)
{
    const char *expires = w->expires ? w->expires : EXPIRES_DEFAULT;
    g->verbs = w->verbs;
    g->expires = expiry_of(expires);
    g->has_user = w->user;
    g->loopback = w->loopback;
    if (w->pattern_count == 0)
        return cli_usage_error(cli, "for which workspaces? Name them with -w; '*' is all");
    if (!w->verbs)
        return cli_usage_error(cli, "for what? Name it with --verb: read, write, exec, admin");
    if (g->expires == -2)
        return cli_usage_error(cli, "--expires %s: too long; 36500d is the most, or never",
                               expires);
    if (g->expires < 0)
        return cli_usage_error(cli,
                               "--expires %s: expected a time such as 30d, 12h, 30m or 45s, "
                               "or never",
                               expires);
    if (w->id && (!grant_id_is_valid(w->id) || w->id[0] == '-'))
        return cli_usage_error(cli,
                               "--id %s: 1 to %d letters, digits, or . _ @ -, which is not the "
                               "first",
                               w->id, GRANT_ID_MAX);
    if (w->user && (w->certificate || w->with_token))
        return cli_usage_error(cli, "--user goes with no token or certificate");
    if (w->loopback && (w->user || w->certificate || w->with_token))
        return cli_usage_error(cli, "--loopback goes with no token, certificate or user");
    if (w->output && (w->user || w->loopback || (w->certificate && !w->with_token)))
        return cli_usage_error(cli, "--output is for a token, and none is made");
    if (w->user && user_of(w->user, &g->user) < 0)
        return cli_usage_error(cli, "--user %s: there is no such user", w->user);
    return CLI_OK;
}

static int fill(const struct wish *w, struct grant *g, struct new_token *token)
{
    int r = 0;
    if (w->id)
        (void)snprintf(g->id, sizeof g->id, "%s", w->id);
    else
        r = random_word(g->id, ID_LETTERS);
    /* An ID that looks like an option could not be revoked by what people type. */
    if (!w->id && g->id[0] == '-')
        g->id[0] = 'a';
    if (r == 0 && !w->user && !w->loopback && (!w->certificate || w->with_token))
        r = make_token(g, token);
    g->patterns = calloc(GRANT_PATTERNS_MAX, sizeof *g->patterns);
    g->certificate = w->certificate ? strdup(w->certificate) : NULL;
    g->note = w->note ? strdup(w->note) : NULL;
    if (!g->patterns || (w->certificate && !g->certificate) || (w->note && !g->note))
        return -ENOMEM;
    for (size_t i = 0; i < w->pattern_count; i++) {
        g->patterns[i] = strdup(w->patterns[i]);
        if (!g->patterns[g->pattern_count++])
            return -ENOMEM;
    }
    return r;
}

/* Reads it as the service will: so that nothing is written which that would refuse. */
static int proof_read(const struct grant *g, struct failure *f)
{
    _cleanup_free_ char *line = NULL;
    struct grant *read_back;
    int r = grant_format(g, &line);
    if (r < 0)
        return failure_set(f, r, "out of memory, or a word is not UTF-8");
    r = grant_parse(bytes_of_string(line), &read_back, f);
    if (r == 0)
        grant_unref(read_back);
    return r;
}

/* Nobody else may read it, not for a moment, and nothing is written over. */
static int open_output(const char *file, struct failure *f)
{
    int fd = open(file, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    return fd < 0 ? failure_set(f, -errno, "--output %s: %s", file, strerror(errno)) : fd;
}

static int write_output(int fd, const char *file, const struct new_token *token, struct failure *f)
{
    size_t len = strlen(token->text);
    bool good = fchmod(fd, 0600) == 0 && write(fd, token->text, len) == (ssize_t)len &&
                write(fd, "\n", 1) == 1 && fsync(fd) == 0;
    return good ? 0 : failure_set(f, -EIO, "--output %s: %s", file, strerror(errno ? errno : EIO));
}

/* What it says about the new line, and what is to be done. */
static void tell(const struct wish *w, const struct grant *g, const char *file)
{
    char when[64] = "never";
    struct tm tm;
    if (g->expires)
        (void)strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S UTC", gmtime_r(&g->expires, &tm));
    (void)fprintf(stderr, "%s is in %s; it expires: %s", g->id, file, when);
    if (w->output)
        (void)fprintf(stderr, ". Its token is in %s", w->output);
    else if (g->has_token)
        (void)fprintf(stderr, ". Its token is shown this once");
    if (g->has_user)
        (void)fprintf(stderr, ". The user must be able to reach the socket: berthd --socket-mode");
    (void)fputc('\n', stderr);
}

static int create(const struct cli *cli, const struct wish *w, const char *file)
{
    _cleanup_grant_ struct grant *g = calloc(1, sizeof *g);
    struct new_token token = {0};
    struct failure f;
    _cleanup_close_ int output = -1;
    if (!g) {
        cli_error(cli, "out of memory");
        return CLI_FAILED;
    }
    g->refs = 1;
    int status = check(cli, w, g);
    if (status != CLI_OK)
        return status;
    int r = fill(w, g, &token);
    if (r < 0)
        (void)failure_set(&f, r, "%s", strerror(-r));
    if (r == 0)
        r = proof_read(g, &f);
    if (r == 0 && w->output)
        r = output = open_output(w->output, &f);
    if (r >= 0 && w->output)
        r = write_output(output, w->output, &token, &f);
    if (r >= 0)
        r = grants_add(file, g, &f);
    if (r < 0) {
        if (output >= 0)
            (void)unlink(w->output);
        explicit_bzero(&token, sizeof token);
        cli_error(cli, "%s", f.text);
        return CLI_FAILED;
    }
    if (g->has_token && !w->output)
        (void)printf("%s\n", token.text);
    tell(w, g, file);
    explicit_bzero(&token, sizeof token);
    return cli_finish_output(cli, CLI_OK);
}

/* --- list ------------------------------------------------------------------------------ */

static json_t *grant_json(const struct grant *g)
{
    _cleanup_free_ char *line = NULL;
    if (grant_format(g, &line) < 0)
        return NULL;
    json_t *object = json_loads(line, 0, NULL);
    (void)json_object_set_new(object, "expired", json_boolean(grant_is_over(g, time(NULL))));
    return object;
}

static int print_json(const struct grants *grants)
{
    json_t *array = json_array();
    int r = array ? 0 : -ENOMEM;
    for (size_t i = 0; r == 0 && i < grants->count; i++)
        r = json_array_append_new(array, grant_json(grants->list[i])) < 0 ? -ENOMEM : 0;
    if (r == 0) {
        (void)json_dumpf(array, stdout, JSON_INDENT(2) | JSON_ENSURE_ASCII);
        (void)putchar('\n');
    }
    json_decref(array);
    return r;
}

static void print_text(const char *text)
{
    _cleanup_buffer_ struct buffer escaped = {0};
    if (text_escape(&escaped, bytes_of_string(text), TEXT_SENTENCE) == 0)
        (void)fwrite(escaped.data, 1, escaped.len, stdout);
}

#define ROW "%-16s %-22s %-22s "

static void print_one(const struct grant *g)
{
    char verbs[64], when[32] = "never";
    struct tm tm;
    if (g->expires)
        (void)strftime(when, sizeof when, "%Y-%m-%d %H:%M UTC", gmtime_r(&g->expires, &tm));
    (void)printf(ROW, g->id, grant_verbs_text(g->verbs, verbs, sizeof verbs),
                 grant_is_over(g, time(NULL)) ? "expired" : when);
    if (g->has_user)
        (void)printf("user %u  ", (unsigned)g->user);
    if (g->loopback)
        (void)printf("loopback  ");
    if (g->certificate) {
        print_text(g->certificate);
        (void)printf(g->has_token ? " and token  " : "  ");
    }
    for (size_t i = 0; i < g->pattern_count; i++) {
        (void)printf("%s", i ? ", " : "");
        print_text(g->patterns[i]);
    }
    if (g->note) {
        (void)printf("  # ");
        print_text(g->note);
    }
    (void)putchar('\n');
}

static int list(const struct cli *cli, const struct wish *w, const char *file)
{
    _cleanup_grants_ struct grants grants = {0};
    struct stat st;
    struct failure f;
    int r = grants_load(file, &grants, &st, &f);
    if (r < 0) {
        cli_error(cli, "%s", f.text);
        return CLI_FAILED;
    }
    if (w->json && print_json(&grants) < 0) {
        cli_error(cli, "out of memory");
        return CLI_FAILED;
    }
    if (!w->json && grants.count > 0)
        (void)printf(ROW "FOR\n", "ID", "VERBS", "EXPIRES");
    for (size_t i = 0; !w->json && i < grants.count; i++)
        print_one(grants.list[i]);
    return cli_finish_output(cli, CLI_OK);
}

/* --- all ------------------------------------------------------------------------------- */

static int take_back(const struct cli *cli, const char *file, char **ids)
{
    int status = CLI_OK;
    for (; *ids; ids++) {
        struct failure f;
        if (grants_remove(file, *ids, &f) < 0) {
            cli_error(cli, "%s", f.text);
            status = CLI_FAILED;
        }
    }
    return status;
}

int cmd_token(struct cli *cli, int argc, char **argv)
{
    struct wish w = {0};
    int option;
    opterr = 0;
    while ((option = getopt_long(argc, argv, ":hw:", options, NULL)) != -1) {
        if (option == 'h')
            return cli_show_help(cli);
        if (option == '?' || option == ':')
            return cli_option_error(cli, option, argv);
        int status = take_option(cli, &w, option);
        if (status != CLI_OK)
            return status;
    }
    const char *what = optind < argc ? argv[optind++] : "";
    bool creates = strcmp(what, "create") == 0;
    bool lists = strcmp(what, "list") == 0 || strcmp(what, "ls") == 0;
    if (!creates && !lists && strcmp(what, "revoke") != 0)
        return cli_usage_error(cli, "expected create, list (or ls) or revoke");
    if (w.json && !lists)
        return cli_usage_error(cli, "--json is for list");
    if (w.creates && !creates)
        return cli_usage_error(cli, "%s takes no such options", what);
    if (optind < argc && (creates || lists))
        return cli_usage_error(cli, "%s: %s takes no arguments", argv[optind], what);
    if (optind == argc && !creates && !lists)
        return cli_usage_error(cli, "which one? Name its ID; `berth token list` shows them");
    _cleanup_free_ char *file = find_file(cli, &w);
    if (!file)
        return CLI_FAILED;
    return creates ? create(cli, &w, file)
           : lists ? list(cli, &w, file)
                   : take_back(cli, file, argv + optind);
}

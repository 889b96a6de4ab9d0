#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/xattr.h>

#include "cli/at_place.h"
#include "cli/cli.h"
#include "cli/here.h"
#include "cli/text.h"
#include "cli/workspace_id.h"
#include "visibility/visibility.h"

/* As the driver has it (fs/prune.h); on the root of a mount. */
#define MOUNT_RULES "user.berth.visibility"

const char visibility_usage[] =
    "usage: berth visibility [OPTION…] [ID]\n"
    "       berth visibility [OPTION…] --mount PATH\n"
    "Shows the rules that hide files of a workspace or leave them out of listings, and changes\n"
    "them, at once for everybody; or those of one mount, until it is unmounted. In a mount . is "
    "the\n"
    "workspace in which one stands, and so is none.\n"
    "\n"
    "  -a, --add RULE       adds a rule behind those there are\n"
    "  -p, --profile NAME   adds the rules of a profile: ide\n"
    "  -f, --file FILE      adds those of a file, one a line\n"
    "      --clear          removes the rules there were, before anything is added\n"
    "  -n, --name           ID is a directory name\n"
    "  -m, --mount PATH     the mount that PATH is in\n"
    "\n"
    "A rule is a pattern as in a .gitignore file. What it matches is not listed, but is there for\n"
    "those who know its name: searches and indexers do not descend, tools go on working. With\n"
    "hidden: before the pattern it does not exist at all; with ! or show: it is shown. A pattern\n"
    "that begins with a word and a colon has a '\\' before it. The last rule that matches\n"
    "decides; the mount's go before the workspace's, and those before the\n"
    "service's. Commands (berth exec) always see everything.\n"
    "\n"
    "Examples\n"
    "  berth visibility demo\n"
    "  berth visibility demo --profile ide --add '!/src/target/'\n"
    "  berth visibility demo --add 'hidden:.env'\n"
    "  berth visibility demo --clear\n"
    "  berth visibility --mount ~/berth --clear --profile ide\n";

enum { OPTION_CLEAR = 256 };

static const struct option options[] = {
    {"add", required_argument, NULL, 'a'},  {"profile", required_argument, NULL, 'p'},
    {"file", required_argument, NULL, 'f'}, {"clear", no_argument, NULL, OPTION_CLEAR},
    {"name", no_argument, NULL, 'n'},       {"mount", required_argument, NULL, 'm'},
    {"help", no_argument, NULL, 'h'},       {0},
};

struct wish {
    bool clear;
    bool add;
    struct buffer rules; /* to be added */
    uint32_t flags;      /* WIRE_WORKSPACE_BY_NAME */
    const char *mount;
};

static void wish_release(struct wish *w)
{
    buffer_release(&w->rules);
}

/* --- what to add --------------------------------------------------------------------- */

static int add_text(struct wish *w, struct bytes text)
{
    w->add = true;
    int r = buffer_append(&w->rules, text.data, text.len);
    if (r == 0 && text.len && text.data[text.len - 1] != '\n')
        r = buffer_append_u8(&w->rules, '\n');
    return r;
}

struct given_rule {
    const struct cli *cli;
    const char *text;
};

static void warn_of_rule(void *context, size_t line, const char *sentence)
{
    const struct given_rule *given = context;
    cli_error(given->cli, "warning: %s: %s", given->text, sentence);
}

static int add_rule(const struct cli *cli, struct wish *w, const char *rule)
{
    struct given_rule given = {cli, rule};
    struct bytes text = bytes_of_string(rule);
    if (strchr(rule, '\n'))
        return -EINVAL;
    int r = visibility_rules_doubts(text, warn_of_rule, &given);
    return r < 0 ? r : add_text(w, text);
}

static int add_file(const struct cli *cli, struct wish *w, const char *file)
{
    struct failure failure;
    _cleanup_free_ char *path = NULL;
    /* With a '/', so that a file is what it is taken for. */
    if (asprintf(&path, "%s%s", strchr(file, '/') ? "" : "./", file) < 0)
        path = NULL;
    _cleanup_visibility_rules_ struct visibility_rules *rules = NULL;
    int r = path ? config_rules_load(path, &rules, &failure) : -ENOMEM;
    if (r == -ENOMEM) {
        cli_error(cli, "%s", strerror(ENOMEM));
        return r;
    }
    if (r < 0) {
        cli_error(cli, "%s", failure.text);
        return r;
    }
    return add_text(w, visibility_rules_text(rules));
}

static int add_profile(const struct cli *cli, struct wish *w, const char *name)
{
    struct failure failure;
    _cleanup_free_ char *text = NULL;
    int r = visibility_profile_text(name, &text, &failure);
    if (r < 0) {
        cli_error(cli, "%s", failure.text);
        return r;
    }
    return add_text(w, bytes_of_string(text));
}

/* CLI_OK, or the status to end with; *ret_done: there is nothing left to do. */
static int parse(struct cli *cli, int argc, char **argv, struct wish *w, bool *ret_done)
{
    int option;
    *ret_done = true;
    opterr = 0;
    while ((option = getopt_long(argc, argv, ":a:p:f:nm:h", options, NULL)) != -1) {
        int r = 0;
        if (option == 'a')
            r = add_rule(cli, w, optarg);
        else if (option == 'p')
            r = add_profile(cli, w, optarg);
        else if (option == 'f')
            r = add_file(cli, w, optarg);
        else if (option == OPTION_CLEAR)
            w->clear = true;
        else if (option == 'n')
            w->flags = WIRE_WORKSPACE_BY_NAME;
        else if (option == 'm')
            w->mount = optarg;
        else if (option == 'h')
            return cli_show_help(cli);
        else
            return cli_option_error(cli, option, argv);
        if (r == -EINVAL && option == 'a')
            return cli_usage_error(cli, "a rule is one line");
        if (r < 0)
            return r == -EINVAL ? CLI_USAGE : CLI_FAILED;
    }
    if (argc - optind > 1)
        return cli_usage_error(cli, "%s: one workspace at a time", argv[optind + 1]);
    if (w->mount && optind < argc)
        return cli_usage_error(cli, "%s: a workspace or --mount, not both", argv[optind]);
    *ret_done = false;
    return CLI_OK;
}

/* --- showing ------------------------------------------------------------------------- */

/* Line by line; what others wrote does not move the cursor. */
static void print_rules(const char *prefix, struct bytes text)
{
    for (size_t at = 0; at < text.len;) {
        const uint8_t *start = text.data + at;
        const uint8_t *newline = memchr(start, '\n', text.len - at);
        size_t len = newline ? (size_t)(newline - start) : text.len - at;
        _cleanup_buffer_ struct buffer line = {0};
        if (text_escape(&line, bytes_of(start, len), TEXT_SENTENCE) == 0)
            (void)printf("%s%.*s\n", prefix, (int)line.len, (const char *)line.data);
        at += len + 1;
    }
}

/* --- a workspace ---------------------------------------------------------------------- */

static int on_workspace(struct cli *cli, const struct wish *w, char **ids)
{
    if (!workspace_ids_check(cli, ids, w->flags ? THREAD_NAME_MAX : THREAD_ID_MAX))
        return CLI_USAGE;
    _cleanup_client_ struct client *client = NULL;
    struct which which = {.key = ids[0], .by_name = w->flags};
    if (!at_place_use(cli, &which))
        return ids[0] ? CLI_FAILED : CLI_USAGE;
    if (at_place_connect(cli, &client) < 0)
        return CLI_FAILED;
    struct bytes key = bytes_of_string(which.key);
    uint32_t flags = which_flags(&which);
    struct wire_message request = {.type = WIRE_WORKSPACE_VISIBILITY,
                                   .workspace_visibility = {.flags = flags, .key = key}};
    if (w->clear || w->add)
        request = (struct wire_message){
            .type = WIRE_WORKSPACE_SET_VISIBILITY,
            .workspace_set_visibility = {.flags = flags |
                                                  (w->clear ? 0 : (uint32_t)WIRE_WORKSPACE_APPEND),
                                         .key = key,
                                         .rules = buffer_view(&w->rules)}};
    struct failure failure;
    struct wire_frame *reply;
    int r = cli_call(client, &request, &reply, &failure);
    if (r == -ENOENT)
        cli_error(cli, "there is no workspace %s; see `berth ls`", which.key);
    else if (r < 0)
        cli_error(cli, "%s: %s", which.key, failure.text);
    if (r < 0)
        return CLI_FAILED;
    print_rules("# of the service: ", reply->message.workspace_rules.service);
    print_rules("", reply->message.workspace_rules.workspace);
    wire_frame_free(reply);
    return cli_finish_output(cli, CLI_OK);
}

/* --- a mount --------------------------------------------------------------------------- */

static int read_mount(const char *point, struct buffer *ret)
{
    int r = buffer_reserve(ret, VISIBILITY_TEXT_MAX);
    if (r < 0)
        return r;
    ssize_t n = getxattr(point, MOUNT_RULES, ret->data, VISIBILITY_TEXT_MAX);
    if (n < 0 && errno != ENODATA)
        return -errno;
    ret->len = n < 0 ? 0 : (size_t)n;
    return 0;
}

static int change_mount(const char *point, const struct wish *w, struct buffer *rules,
                        struct failure *f)
{
    if (w->clear)
        rules->len = 0;
    int r = 0;
    if (rules->len && rules->data[rules->len - 1] != '\n')
        r = buffer_append_u8(rules, '\n');
    if (r == 0)
        r = buffer_append(rules, w->rules.data, w->rules.len);
    if (r < 0)
        return failure_set(f, r, "%s", strerror(-r));
    struct visibility_rules *parsed;
    r = visibility_rules_parse(buffer_view(rules), &parsed, f);
    if (r < 0)
        return r;
    visibility_rules_unref(parsed);
    if (setxattr(point, MOUNT_RULES, rules->data ? (void *)rules->data : "", rules->len, 0) < 0)
        return failure_set(f, -errno, "%s", strerror(errno));
    return 0;
}

static int on_mount(const struct cli *cli, const struct wish *w)
{
    _cleanup_here_ struct here here = {0};
    _cleanup_buffer_ struct buffer rules = {0};
    struct failure failure;
    int r = here_find(w->mount, &here, &failure);
    if (r < 0) {
        cli_error(cli, "%s", failure.text);
        return CLI_FAILED;
    }
    r = read_mount(here.mountpoint, &rules);
    if (r < 0)
        (void)failure_set(&failure, r, "%s", strerror(-r));
    if (r == 0 && (w->clear || w->add))
        r = change_mount(here.mountpoint, w, &rules, &failure);
    if (r < 0) {
        cli_error(cli, "%s: %s", w->mount, failure.text);
        return CLI_FAILED;
    }
    print_rules("", buffer_view(&rules));
    return cli_finish_output(cli, CLI_OK);
}

int cmd_visibility(struct cli *cli, int argc, char **argv)
{
    _cleanup_(wish_release) struct wish wish = {0};
    bool done;
    int status = parse(cli, argc, argv, &wish, &done);
    if (done)
        return status;
    return wish.mount ? on_mount(cli, &wish) : on_workspace(cli, &wish, argv + optind);
}

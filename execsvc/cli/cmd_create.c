#include <stdio.h>
#include <string.h>

#include "base/buffer.h"
#include "base/cleanup.h"
#include "cli/cli.h"
#include "cli/at_place.h"
#include "cli/create_provider.h"
#include "cli/create_source.h"
#include "cli/life.h"
#include "cli/policy_text.h"
#include "cli/workspace_id.h"

const char create_usage[] =
    "usage: berth create [OPTION…] ID…\n"
    "Makes a workspace for each thread ID and prints the name of its directory. One that\n"
    "exists is left as it is, and its name is printed too, unless an option says what it is to\n"
    "have: then that is an error.\n"
    "\n"
    "A thread ID is what an agent framework calls a conversation: any bytes, 1 to 1024 of\n"
    "them. Plain ones (letters, digits, '-', '_' and '.') are their own directory names; in\n"
    "others each other byte becomes %XX, and long ones are shortened.\n"
    "\n"
    "  -x, --exclusive    fail if the workspace exists\n"
    "      --from FILE    with the files of a tar archive, plain or compressed (gzip, zstd); - is\n"
    "                     standard input. It is there when all of it is, or not at all\n"
    "      --snapshot S   with the files of a snapshot\n"
    "      --fork ID      with the files of another workspace, its policy and visibility rules\n"
    "      --live         with --fork: its commands go on meanwhile\n"
    "      --worktree REPOSITORY[@REF]\n"
    "                     with a git repository of its own: what a local one has committed at REF\n"
    "                     (HEAD), on that branch if it is one; it can be fetched from by its "
    "mount\n"
    "      --provider NAME[:K=V,…]\n"
    "                     in a sandbox of its own, which a system such as docker or ssh makes; "
    "see\n"
    "                     `berth help provider`. `berth rm` destroys it with the workspace\n"
    "      --provider-option K=V\n"
    "                     a parameter of the provider; what is not given is as its profile has it\n"
    "      --label K=V    a label, of which there may be several; see `berth help label`\n"
    "      --ttl TIME     it is removed so long after now, but not while it is in use\n"
    "      --idle-ttl TIME\n"
    "                     it is removed when it has not been used for so long; 90, 30m, 12h, 7d\n"
    "  -p, --policy FILE  what its commands may do, in JSON (berth-policy(5)); what FILE leaves "
    "out\n"
    "                     is as the service has it. Only for new ones: fails if it exists\n"
    "\n"
    "Examples\n"
    "  berth create demo                     prints: demo\n"
    "  berth create 'team/42: the bug'       prints: team%2F42%3A%20the%20bug\n"
    "  berth create -x \"$id\" || echo taken\n"
    "  echo '{\"network\": \"host\"}' | berth create --policy - demo\n"
    "  berth create --worktree ~/src/app@main fix-the-bug\n"
    "  berth create --label team=search --idle-ttl 2h demo\n"
    "  berth create --provider docker:image=debian:12 demo\n"
    "  git archive HEAD | berth create --from - demo\n"
    "  berth create -- -strange              an ID that begins with '-'\n";

enum {
    OPTION_FROM = 256,
    OPTION_SNAPSHOT,
    OPTION_FORK,
    OPTION_LIVE,
    OPTION_WORKTREE,
    OPTION_PROVIDER,
    OPTION_PROVIDER_OPTION,
    OPTION_LABEL,
    OPTION_TTL,
    OPTION_IDLE_TTL,
};

static const struct option options[] = {
    {"from", required_argument, NULL, OPTION_FROM},
    {"snapshot", required_argument, NULL, OPTION_SNAPSHOT},
    {"fork", required_argument, NULL, OPTION_FORK},
    {"live", no_argument, NULL, OPTION_LIVE},
    {"worktree", required_argument, NULL, OPTION_WORKTREE},
    {"provider", required_argument, NULL, OPTION_PROVIDER},
    {"provider-option", required_argument, NULL, OPTION_PROVIDER_OPTION},
    {"label", required_argument, NULL, OPTION_LABEL},
    {"ttl", required_argument, NULL, OPTION_TTL},
    {"idle-ttl", required_argument, NULL, OPTION_IDLE_TTL},
    {"exclusive", no_argument, NULL, 'x'},
    {"policy", required_argument, NULL, 'p'},
    {"help", no_argument, NULL, 'h'},
    {0},
};

int create_one(const struct cli *cli, struct client *client, const char *id, const char *file,
               const struct wire_workspace_create *create)
{
    struct failure failure;
    struct wire_frame *reply;
    struct wire_message request = {.type = WIRE_WORKSPACE_CREATE, .workspace_create = *create};
    struct bytes policy = create->policy;
    request.workspace_create.thread_id = bytes_of_string(id);
    int r = cli_call(client, &request, &reply, &failure);
    if (r == -EEXIST)
        cli_error(cli, "%s: a workspace of this ID exists%s", id,
                  policy.len ? ", and keeps the policy it was made with" : "");
    else if ((r == -EINVAL || r == -EOPNOTSUPP) && policy.len)
        cli_error(cli, "%s: %s: %s", id, policy_text_name(file), failure.text);
    else if (r < 0)
        cli_error(cli, "%s: %s", id, failure.text);
    if (r < 0)
        return r;
    struct bytes name = reply->message.workspace.name;
    /* Whoever counts on an end that was not set is to learn of it. */
    if (!reply->message.workspace.created &&
        (create->labels.len || create->ttl_ms || create->idle_ms)) {
        cli_error(cli,
                  "%s: a workspace of this ID exists, and keeps its labels and its end; see "
                  "`berth label`, `berth ttl`",
                  id);
        r = -EEXIST;
    } else if (!cli->silent) {
        (void)printf("%.*s\n", (int)name.len, (const char *)name.data);
    }
    wire_frame_free(reply);
    return r;
}

static void json_release(json_t **object)
{
    json_decref(*object);
}

int cmd_create(struct cli *cli, int argc, char **argv)
{
    struct wire_workspace_create create = {0};
    _cleanup_(json_release) json_t *labels = json_object();
    _cleanup_free_ char *label_text = NULL;
    const char *file = NULL, *error;
    struct create_source source = {0};
    struct create_provider provider = {0};
    _cleanup_buffer_ struct buffer policy = {0};
    int option;
    opterr = 0;
    while ((option = getopt_long(argc, argv, ":xp:h", options, NULL)) != -1) {
        if (option == 'x')
            create.flags = WIRE_WORKSPACE_EXCLUSIVE;
        else if (option == OPTION_LABEL && !life_add_label(labels, optarg, false))
            return cli_usage_error(cli, "--label %s: not KEY=VALUE", optarg);
        else if (option == OPTION_TTL && !life_duration(cli, "--ttl", optarg, &create.ttl_ms))
            return CLI_USAGE;
        else if (option == OPTION_IDLE_TTL &&
                 !life_duration(cli, "--idle-ttl", optarg, &create.idle_ms))
            return CLI_USAGE;
        else if (option == OPTION_LABEL || option == OPTION_TTL || option == OPTION_IDLE_TTL)
            continue;
        else if (option == 'p')
            file = optarg;
        else if (option == OPTION_FROM)
            source.from = optarg;
        else if (option == OPTION_SNAPSHOT)
            source.snapshot = optarg;
        else if (option == OPTION_FORK)
            source.fork = optarg;
        else if (option == OPTION_LIVE)
            source.live = true;
        else if (option == OPTION_WORKTREE)
            source.worktree = optarg;
        else if (option == OPTION_PROVIDER)
            provider.spec = optarg;
        else if (option == OPTION_PROVIDER_OPTION &&
                 provider.option_count == CREATE_PROVIDER_OPTIONS_MAX)
            return cli_usage_error(cli, "--provider-option: more than %d",
                                   CREATE_PROVIDER_OPTIONS_MAX);
        else if (option == OPTION_PROVIDER_OPTION)
            provider.options[provider.option_count++] = optarg;
        else if (option == 'h')
            return cli_show_help(cli);
        else
            return cli_option_error(cli, option, argv);
    }
    if (optind == argc)
        return cli_usage_error(cli, "which thread ID?");
    if (!workspace_ids_check(cli, argv + optind, THREAD_ID_MAX))
        return CLI_USAGE;
    bool filled = create_source_given(&source, &error);
    if (error)
        return cli_usage_error(cli, "%s", error);
    if (filled && argv[optind + 1])
        return cli_usage_error(cli, "one workspace at a time is filled");
    if (file && policy_text_read(cli, file, &policy) < 0)
        return CLI_USAGE;
    create.policy = buffer_view(&policy);
    label_text = json_object_size(labels) > 0 ? json_dumps(labels, JSON_COMPACT) : NULL;
    create.labels = bytes_of_string(label_text);
    if (create.labels.len > WIRE_LABELS_MAX)
        return cli_usage_error(cli, "labels: more than %d bytes in all", WIRE_LABELS_MAX);
    if (provider.option_count && !provider.spec)
        return cli_usage_error(cli, "--provider-option is for --provider");
    if (provider.spec) {
        provider.policy_file = file;
        provider.exclusive = create.flags & WIRE_WORKSPACE_EXCLUSIVE;
        return create_provider_run(cli, &provider, &source, argv + optind, &create);
    }
    if (filled) {
        struct which w = {.key = argv[optind], .is_new = true};
        int r = at_place_use(cli, &w) ? create_source_run(cli, &source, argv[optind], &create)
                                      : -ENOENT;
        return cli_finish_output(cli, r < 0 ? CLI_FAILED : CLI_OK);
    }
    _cleanup_at_places_ struct at_places at = {.cli = cli};
    int status = CLI_OK;
    for (char **id = argv + optind; *id; id++) {
        struct client *client;
        struct which w = {.key = *id, .is_new = true};
        int r = at_places_connect(&at, &w, &client);
        if (r == 0)
            r = create_one(cli, client, *id, file, &create);
        if (r < 0)
            status = CLI_FAILED;
        if (r < 0 && !at.own && !at.client)
            break;
        if (r == -ENOTCONN)
            break;
    }
    return cli_finish_output(cli, status);
}

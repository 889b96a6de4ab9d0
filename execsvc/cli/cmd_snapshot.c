#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/buffer.h"
#include "cli/at_place.h"
#include "cli/cli.h"
#include "cli/held.h"
#include "cli/text.h"
#include "terminal/progress.h"

#define PAGE 512

const char snapshot_usage[] =
    "usage: berth snapshot create [OPTION…] [ID [SNAPSHOT]]\n"
    "       berth snapshot ls [OPTION…] [ID]\n"
    "       berth snapshot rm [-w ID] SNAPSHOT…\n"
    "       berth snapshot restore [OPTION…] [ID] SNAPSHOT\n"
    "Keeps copies of the files of workspaces at the service, and brings them back. In a mount . "
    "is\n"
    "the workspace in which one stands, and so is none, but for ls.\n"
    "\n"
    "create  takes one, and prints its ID: SNAPSHOT, or one that is made up. Commands that run in\n"
    "        the workspace stand still meanwhile. Where the service's filesystem can share blocks\n"
    "        (btrfs, xfs) a snapshot takes next to no time and space, else it is a compressed\n"
    "        copy.\n"
    "ls      lists them, of one workspace or all; of those of providers, that are connected\n"
    "rm      removes them; workspaces that were made from them keep their files\n"
    "restore puts the files of a snapshot in the place of all that the workspace has. Not while\n"
    "        commands run in it. What is there now is gone, unless it is in a snapshot.\n"
    "\n"
    "  -n, --name         ID is a directory name, as `berth ls -q` shows it\n"
    "  -l, --label K=V    create: a label of the snapshot; may be given again\n"
    "      --live         create: commands go on, and files may be of different moments\n"
    "  -w, --workspace ID rm: at the service of this workspace, if a provider made it\n"
    "  -q, --quiet        ls: the IDs alone, one a line\n"
    "      --json         create and ls: all that is known\n"
    "\n"
    "A workspace is made from one with `berth create --snapshot SNAPSHOT ID`.\n"
    "\n"
    "Examples\n"
    "  berth snapshot create demo before-the-change\n"
    "  berth snapshot ls demo\n"
    "  berth snapshot restore demo before-the-change\n"
    "  berth snapshot rm $(berth snapshot ls -q demo)\n";

enum { OPTION_JSON = 256, OPTION_LIVE };

static const struct option options[] = {
    {"name", no_argument, NULL, 'n'},         {"label", required_argument, NULL, 'l'},
    {"live", no_argument, NULL, OPTION_LIVE}, {"workspace", required_argument, NULL, 'w'},
    {"quiet", no_argument, NULL, 'q'},        {"json", no_argument, NULL, OPTION_JSON},
    {"help", no_argument, NULL, 'h'},         {0},
};

struct choice {
    uint32_t workspace_flags;
    bool live, quiet, json;
    json_t *labels;
    const char *workspace; /* rm */
};

/* --- output ------------------------------------------------------------------------------ */

static json_t *snapshot_json(const struct wire_snapshot *s)
{
    char when[64];
    _cleanup_free_ char *id = text_copy(s->id);
    text_time(s->created_at.sec, true, when, sizeof when);
    json_t *labels = json_loadb((const char *)s->labels.data, s->labels.len, 0, NULL);
    json_t *object = json_pack(
        "{s:s, s:s, s:I, s:I, s:I, s:b, s:b, s:o}", "id", id ? id : "", "created_at", when,
        "entries", (json_int_t)s->entries, "size", (json_int_t)s->size, "stored",
        (json_int_t)s->stored, "live", (s->flags & WIRE_SNAPSHOT_LIVE) != 0, "shared",
        (s->flags & WIRE_SNAPSHOT_SHARED) != 0, "labels", labels ? labels : json_object());
    if (!object)
        return NULL;
    if (text_is_utf8(s->thread_id)) {
        (void)json_object_set_new(object, "thread_id",
                                  json_stringn((const char *)s->thread_id.data, s->thread_id.len));
    } else {
        _cleanup_buffer_ struct buffer hex = {0};
        (void)text_hex(&hex, s->thread_id);
        (void)json_object_set_new(object, "thread_id", json_null());
        (void)json_object_set_new(object, "thread_id_hex",
                                  json_stringn((const char *)hex.data, hex.len));
    }
    return object;
}

static int print_row(const struct wire_snapshot *s)
{
    char when[64];
    _cleanup_buffer_ struct buffer id = {0}, thread_id = {0};
    text_time(s->created_at.sec, false, when, sizeof when);
    int r = text_escape(&id, s->id, TEXT_SENTENCE);
    if (r == 0)
        r = text_escape(&thread_id, s->thread_id, TEXT_VALUE);
    if (r < 0)
        return r;
    (void)printf("%-26.*s  %-19s  %10.1f  %10.1f  %.*s\n", (int)id.len, (const char *)id.data, when,
                 (double)s->size / 1048576, (double)s->stored / 1048576, (int)thread_id.len,
                 (const char *)thread_id.data);
    return 0;
}

/* --- create ------------------------------------------------------------------------------ */

static int snapshot_create(struct cli *cli, const struct choice *choice, char **words)
{
    struct failure failure;
    struct wire_frame *reply;
    if (words[0] && words[1] && words[2])
        return cli_usage_error(cli, "create takes the ID of a workspace, and one for the snapshot");
    struct which w = {.key = words[0], .by_name = choice->workspace_flags};
    if (!at_place_use(cli, &w))
        return words[0] ? CLI_FAILED : CLI_USAGE;
    _cleanup_free_ char *labels = choice->labels ? json_dumps(choice->labels, JSON_COMPACT) : NULL;
    const struct wire_message request = {
        .type = WIRE_SNAPSHOT_CREATE,
        .snapshot_create = {.workspace_flags = which_flags(&w),
                            .flags = choice->live ? WIRE_SNAPSHOT_LIVE : 0,
                            .workspace = bytes_of_string(w.key),
                            .id = bytes_of_string(words[0] ? words[1] : NULL),
                            .labels = bytes_of_string(labels)}};
    _cleanup_client_ struct client *client = NULL;
    if (at_place_connect(cli, &client) < 0)
        return CLI_FAILED;
    struct progress *progress = progress_start(w.key, 0, PROGRESS_STEPS);
    progress_step(progress, "taking a snapshot");
    int r = client_call_sync(client, &request, 0, &reply, &failure);
    progress_end(progress);
    if (r < 0) {
        cli_error(cli, "%s: %s%s", w.key, failure.text,
                  r == -EOPNOTSUPP ? "; --live takes one all the same" : "");
        return CLI_FAILED;
    }
    const struct wire_snapshot *s = &reply->message.snapshot;
    if (choice->json) {
        json_t *object = snapshot_json(s);
        (void)json_dumpf(object, stdout, JSON_INDENT(2) | JSON_ENSURE_ASCII);
        (void)putchar('\n');
        json_decref(object);
    } else {
        (void)printf("%.*s\n", (int)s->id.len, (const char *)s->id.data);
    }
    wire_frame_free(reply);
    return cli_finish_output(cli, CLI_OK);
}

/* --- ls ----------------------------------------------------------------------------------- */

static int list_page(const struct choice *choice, const struct wire_snapshots *page, json_t *array,
                     char ret_last[WIRE_SNAPSHOT_ID_MAX + 1])
{
    struct bytes element;
    uint32_t offset = 0;
    int r = 0;
    while (r == 0 && wire_list_next(&page->items, &offset, &element)) {
        struct wire_message m;
        if (wire_decode(WIRE_SNAPSHOT, element, &m) < 0)
            return -EPROTO;
        const struct wire_snapshot *s = &m.snapshot;
        char id[WIRE_SNAPSHOT_ID_MAX + 1];
        memcpy(id, s->id.data, s->id.len);
        id[s->id.len] = '\0';
        /* A service that repeats itself would keep us here for ever. */
        if (strcmp(id, ret_last) <= 0)
            return -EPROTO;
        memcpy(ret_last, id, sizeof id);
        if (choice->json)
            r = json_array_append_new(array, snapshot_json(s)) < 0 ? -ENOMEM : 0;
        else if (choice->quiet)
            (void)printf("%s\n", id);
        else
            r = print_row(s);
    }
    return r < 0 ? r : page->more && page->items.count == 0 ? -EPROTO : 0;
}

struct snapshot_list {
    const struct choice *choice;
    json_t *array;
};

/* workspace: NULL, all. */
static int list_from(struct cli *cli, struct client *client, uint32_t flags, const char *workspace,
                     const struct snapshot_list *l)
{
    char last[WIRE_SNAPSHOT_ID_MAX + 1] = "";
    bool more = true;
    int r = 0;
    while (r == 0 && more) {
        struct failure failure;
        struct wire_frame *reply;
        const struct wire_message request = {
            .type = WIRE_SNAPSHOT_LIST,
            .snapshot_list = {.workspace_flags = flags,
                              .count = PAGE,
                              .after = bytes_of_string(last),
                              .workspace = bytes_of_string(workspace)}};
        r = cli_call(client, &request, &reply, &failure);
        if (r < 0) {
            cli_error(cli, "%s", failure.text);
            break;
        }
        r = list_page(l->choice, &reply->message.snapshots, l->array, last);
        more = reply->message.snapshots.more;
        wire_frame_free(reply);
        if (r < 0)
            cli_error(cli, "%s", r == -EPROTO ? "the service's list makes no sense" : strerror(-r));
    }
    return r;
}

static int list_held(void *context, struct cli *cli, struct client *client, const char *workspace)
{
    (void)list_from(cli, client, 0, workspace, context);
    return 0;
}

static int list_of(struct cli *cli, const struct which *w, const struct snapshot_list *l)
{
    _cleanup_client_ struct client *client = NULL;
    size_t left;
    int r = w->key ? at_place_connect(cli, &client) : held_connect_own(cli, false, &client);
    if (r == 0 && client)
        r = list_from(cli, client, which_flags(w), w->key, l);
    return r < 0 || w->key ? r : held_each(cli, list_held, (void *)(uintptr_t)l, &left);
}

static int snapshot_ls(struct cli *cli, const struct choice *choice, char **words)
{
    if (words[0] && words[1])
        return cli_usage_error(cli, "ls takes at most one workspace");
    struct which w = {.key = words[0] ? words[0] : choice->workspace,
                      .by_name = choice->workspace_flags};
    if (!(w.key ? at_place_use(cli, &w) : which_service(cli)))
        return CLI_FAILED;
    json_t *array = json_array();
    const struct snapshot_list l = {.choice = choice, .array = array};
    if (!choice->json && !choice->quiet)
        (void)printf("%-26s  %-19s  %10s  %10s  %s\n", "SNAPSHOT", "CREATED", "MIB", "STORED",
                     "THREAD ID");
    int r = list_of(cli, &w, &l);
    if (r == 0 && choice->json) {
        (void)json_dumpf(array, stdout, JSON_INDENT(2) | JSON_ENSURE_ASCII);
        (void)putchar('\n');
    }
    json_decref(array);
    return cli_finish_output(cli, r < 0 ? CLI_FAILED : CLI_OK);
}

/* --- rm and restore ------------------------------------------------------------------------ */

static int snapshot_rm(struct cli *cli, const struct choice *choice, char **words)
{
    int status = CLI_OK;
    if (!words[0])
        return cli_usage_error(cli, "which snapshot?");
    _cleanup_client_ struct client *client = NULL;
    struct which w = {.key = choice->workspace, .by_name = choice->workspace_flags};
    if (!(w.key ? at_place_use(cli, &w) : which_service(cli)) || at_place_connect(cli, &client) < 0)
        return CLI_FAILED;
    for (; *words; words++) {
        struct failure failure;
        struct wire_frame *reply;
        const struct wire_message request = {.type = WIRE_SNAPSHOT_REMOVE,
                                             .snapshot_remove.id = bytes_of_string(*words)};
        int r = strlen(*words) > WIRE_SNAPSHOT_ID_MAX
                    ? failure_set(&failure, -ENOENT, "no such snapshot")
                    : client_call_sync(client, &request, 0, &reply, &failure);
        if (r == 0) {
            wire_frame_free(reply);
            continue;
        }
        cli_error(cli, "%s: %s%s", *words, failure.text,
                  r == -ENOENT && !choice->workspace
                      ? "; one of a provider's workspace is at its service: -w ID"
                      : "");
        status = CLI_FAILED;
        if (r == -ENOTCONN)
            break;
    }
    return status;
}

static int snapshot_restore(struct cli *cli, const struct choice *choice, char **words)
{
    struct failure failure;
    struct wire_frame *reply;
    if (!words[0] || (words[1] && words[2]))
        return cli_usage_error(cli, "restore takes the ID of a workspace and a snapshot");
    const char *snapshot = words[1] ? words[1] : words[0];
    if (strlen(snapshot) > WIRE_SNAPSHOT_ID_MAX)
        return cli_usage_error(cli, "%s: no snapshot has so long an ID", snapshot);
    struct which w = {.key = words[1] ? words[0] : NULL, .by_name = choice->workspace_flags};
    if (!at_place_use(cli, &w))
        return words[1] ? CLI_FAILED : CLI_USAGE;
    const struct wire_message request = {
        .type = WIRE_WORKSPACE_RESTORE,
        .workspace_restore = {.workspace_flags = which_flags(&w),
                              .workspace = bytes_of_string(w.key),
                              .snapshot = bytes_of_string(snapshot)}};
    _cleanup_client_ struct client *client = NULL;
    if (at_place_connect(cli, &client) < 0)
        return CLI_FAILED;
    struct progress *progress = progress_start(w.key, 0, PROGRESS_STEPS);
    progress_step(progress, "putting its files back");
    int r = client_call_sync(client, &request, 0, &reply, &failure);
    progress_end(progress);
    if (r < 0) {
        cli_error(cli, "%s: %s", w.key, failure.text);
        return CLI_FAILED;
    }
    wire_frame_free(reply);
    return CLI_OK;
}

/* --- all ------------------------------------------------------------------------------------ */

static bool add_label(struct choice *choice, const char *word)
{
    const char *equals = strchr(word, '=');
    if (!equals || equals == word)
        return false;
    if (!choice->labels)
        choice->labels = json_object();
    _cleanup_free_ char *key = strndup(word, (size_t)(equals - word));
    return key && json_object_set_new(choice->labels, key, json_string(equals + 1)) == 0;
}

static int run(struct cli *cli, const char *what, const struct choice *choice, char **words)
{
    static const struct {
        const char *name;
        int (*run)(struct cli *cli, const struct choice *choice, char **words);
    } commands[] = {{"create", snapshot_create},
                    {"ls", snapshot_ls},
                    {"rm", snapshot_rm},
                    {"restore", snapshot_restore}};
    for (size_t i = 0; i < ARRAY_SIZE(commands); i++)
        if (strcmp(commands[i].name, what) == 0)
            return commands[i].run(cli, choice, words);
    return cli_usage_error(cli, "%s: it is create, ls, rm or restore", what);
}

int cmd_snapshot(struct cli *cli, int argc, char **argv)
{
    struct choice choice = {0};
    int option;
    opterr = 0;
    while ((option = getopt_long(argc, argv, ":nl:w:qh", options, NULL)) != -1) {
        if (option == 'n')
            choice.workspace_flags = WIRE_WORKSPACE_BY_NAME;
        else if (option == 'l' && !add_label(&choice, optarg))
            return cli_usage_error(cli, "%s: a label is KEY=VALUE", optarg);
        else if (option == 'w')
            choice.workspace = optarg;
        else if (option == 'q')
            choice.quiet = true;
        else if (option == OPTION_LIVE)
            choice.live = true;
        else if (option == OPTION_JSON)
            choice.json = true;
        else if (option == 'h')
            return cli_show_help(cli);
        else if (option != 'l')
            return cli_option_error(cli, option, argv);
    }
    int status = argv[optind] ? run(cli, argv[optind], &choice, argv + optind + 1)
                              : cli_usage_error(cli, "create, ls, rm or restore?");
    json_decref(choice.labels);
    return status;
}

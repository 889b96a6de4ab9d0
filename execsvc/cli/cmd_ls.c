#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"
#include "cli/at_place.h"
#include "cli/cli.h"
#include "cli/life.h"
#include "cli/places_list.h"
#include "cli/text.h"
#include "config/services.h"

/* Workspaces asked for at once. */
#define PAGE 512

/* Columns a name may take before the next column is pushed out of line. */
#define NAME_COLUMN_MAX 40

/* With --all: how long one of them may take to be connected. */
#define SERVICE_ANSWER_MS 3000

const char ls_usage[] =
    "usage: berth ls [OPTION…]\n"
    "Lists the service's workspaces, in the order of their directory names: the name, when\n"
    "it was made, and the thread ID. What could disturb a terminal in an ID is shown as\n"
    "\\xNN, and '\\' as '\\\\'.\n"
    "\n"
    "  -a, --all     of all services: the default one, those that the configuration names, and\n"
    "                those in sandboxes, as `berth mount --all` shows them: where several have a\n"
    "                name, all but the first are NAME@SERVICE\n"
    "  -l, --long    also whether commands can run in it (STATE), when it ends (ENDS) or that it\n"
    "                does when it is not used for so long (IDLE), and its labels\n"
    "  -q, --quiet   the directory names alone, one a line. They are plain ASCII without\n"
    "                blanks, whatever the ID is, so a script can split them; give\n"
    "                them to others after --, since one may begin with '-'\n"
    "      --label K=V   only those with this label; K: with this key. All that are given\n"
    "      --state S     only those that are running, or stopped\n"
    "      --json    an array of objects with \"name\", \"thread_id\", \"created_at\", \"state\",\n"
    "                \"labels\", \"expires_at\", \"idle_ttl\", \"used_at\" and \"revision\"; where "
    "the\n"
    "                ID is not UTF-8, \"thread_id\" is null and \"thread_id_hex\" has it\n"
    "\n"
    "Those that a provider made a sandbox for are listed too, unless a service was named. With "
    "-l,\n"
    "--json, --label and --state their services are asked; one that does not answer within a few\n"
    "seconds is \"unreachable\". In JSON these have \"provider\" besides: its \"name\", the\n"
    "\"sandbox\" and the \"state\" of that; with --all the others have \"service\". One that does "
    "not\n"
    "answer is told of on standard error, and the exit status is 1 then.\n"
    "\n"
    "Examples\n"
    "  berth ls\n"
    "  berth ls --label team=search --state stopped\n"
    "  berth ls --json | jq -r '.[].thread_id'\n"
    "  for name in $(berth ls -q); do du -sh ~/berth/\"$name\"; done\n";

enum { OPTION_JSON = 256, OPTION_LABEL, OPTION_STATE };

static const struct option options[] = {
    {"all", no_argument, NULL, 'a'},
    {"long", no_argument, NULL, 'l'},
    {"quiet", no_argument, NULL, 'q'},
    {"json", no_argument, NULL, OPTION_JSON},
    {"label", required_argument, NULL, OPTION_LABEL},
    {"state", required_argument, NULL, OPTION_STATE},
    {"help", no_argument, NULL, 'h'},
    {0},
};

struct workspace_item {
    char *name; /* ASCII, by the mapping */
    struct buffer thread_id;
    int64_t created;
    int64_t expires; /* 0: never */
    json_t *json;    /* of it all, with --json or --long */
    char *provider;  /* of its sandbox, and how that is if it is not ready; NULL: it has none */
    char *service;   /* with --all; NULL: it has a sandbox */
};

struct list {
    struct workspace_item *items;
    size_t count;
    size_t allocated;
    bool json;
    uint32_t state;
    struct buffer selectors; /* as on the wire */
    uint32_t selector_count;
    const char *labels[WIRE_SELECTORS_MAX]; /* the same as words; borrowed */
    bool has_providers;                     /* of what is listed */
    bool has_places;
    bool all;
    size_t first; /* of the service that is being asked */
};

static void list_release(struct list *l)
{
    for (size_t i = 0; i < l->count; i++) {
        free(l->items[i].name);
        free(l->items[i].provider);
        free(l->items[i].service);
        buffer_release(&l->items[i].thread_id);
        json_decref(l->items[i].json);
    }
    buffer_release(&l->selectors);
    free(l->items);
    *l = (struct list){0};
}

static int list_reserve(struct list *l)
{
    if (l->count == l->allocated) {
        size_t larger = l->allocated ? l->allocated * 2 : PAGE;
        struct workspace_item *items = reallocarray(l->items, larger, sizeof *items);
        if (!items)
            return -ENOMEM;
        l->items = items;
        l->allocated = larger;
    }
    return 0;
}

static int list_add(struct list *l, const struct wire_workspace *w)
{
    if (list_reserve(l) < 0)
        return -ENOMEM;
    struct workspace_item item = {.created = w->created_at.sec, .expires = w->expires_at.sec};
    int r = buffer_append(&item.thread_id, w->thread_id.data, w->thread_id.len);
    item.name = text_copy(w->name);
    item.json = l->json ? life_json(w) : NULL;
    if (r < 0 || !item.name || (l->json && !item.json)) {
        json_decref(item.json);
        buffer_release(&item.thread_id);
        free(item.name);
        return -ENOMEM;
    }
    l->items[l->count++] = item;
    return 0;
}

/* Adds a page. Names must rise: a service that repeats itself would keep us here for ever. */
static int add_page(struct list *l, const struct wire_workspaces *page)
{
    uint32_t offset = 0;
    struct bytes element;
    while (wire_list_next(&page->items, &offset, &element)) {
        struct wire_message m;
        if (wire_decode(WIRE_WORKSPACE, element, &m) < 0 ||
            memchr(m.workspace.name.data, 0, m.workspace.name.len))
            return -EPROTO;
        int r = list_add(l, &m.workspace);
        if (r < 0)
            return r;
        if (l->count > l->first + 1 &&
            strcmp(l->items[l->count - 2].name, l->items[l->count - 1].name) >= 0)
            return -EPROTO;
    }
    return page->more && page->items.count == 0 ? -EPROTO : 0;
}

static int fetch(const struct cli *cli, struct client *client, struct list *l)
{
    bool more = true;
    while (more) {
        struct failure failure;
        struct wire_frame *reply;
        const struct wire_message request = {
            .type = WIRE_WORKSPACE_LIST,
            .workspace_list = {.count = PAGE,
                               .state = l->state,
                               .selectors = wire_list_of(&l->selectors, l->selector_count),
                               .after = bytes_of_string(
                                   l->count > l->first ? l->items[l->count - 1].name : NULL)}};
        int r = cli_call(client, &request, &reply, &failure);
        if (r < 0) {
            cli_error(cli, "%s", failure.text);
            return r;
        }
        r = add_page(l, &reply->message.workspaces);
        more = reply->message.workspaces.more;
        wire_frame_free(reply);
        if (r < 0) {
            cli_error(cli, "%s", r == -EPROTO ? "the service's list makes no sense" : strerror(-r));
            return r;
        }
    }
    return 0;
}

/* --- in sandboxes ------------------------------------------------------------------ */

/* As life_json writes it; 0: never. */
static int64_t seconds_of(const json_t *time)
{
    struct tm tm = {0};
    const char *text = json_string_value(time);
    return text && strptime(text, "%Y-%m-%dT%H:%M:%SZ", &tm) ? (int64_t)timegm(&tm) : 0;
}

static int add_place(struct list *l, struct place_row *row)
{
    const struct place *p = &row->place;
    const char *state = p->state == PLACE_READY ? "" : place_state_name(p->state);
    struct workspace_item item = {.created = p->created,
                                  .expires = seconds_of(json_object_get(row->json, "expires_at"))};
    if (list_reserve(l) < 0 || asprintf(&item.provider, "%s%s%s%s", p->provider, *state ? " (" : "",
                                        state, *state ? ")" : "") < 0)
        return -ENOMEM;
    item.name = strdup(p->name);
    item.json = json_incref(row->json);
    int r = buffer_append(&item.thread_id, p->id.data, p->id.len);
    l->items[l->count++] = item;
    l->has_providers = true;
    return r < 0 || !item.name ? -ENOMEM : 0;
}

static int compare_items(const void *a, const void *b)
{
    const struct workspace_item *x = a, *y = b;
    int order = strcmp(x->name, y->name);
    if (order == 0)
        order = (x->provider != NULL) - (y->provider != NULL);
    return order;
}

/* Beside those of the service that is used anyway. */
static int add_places(struct cli *cli, struct list *l)
{
    _cleanup_place_rows_ struct place_rows rows = {0};
    const char *state = l->state ? life_state(l->state) : NULL;
    bool ask = l->json || l->selector_count || state;
    int r = place_rows_read(cli, ask, &rows);
    l->has_places = rows.count > 0;
    for (size_t i = 0; r == 0 && i < rows.count; i++)
        if (place_row_matches(&rows.rows[i], l->labels, l->selector_count, state) &&
            add_place(l, &rows.rows[i]) < 0) {
            cli_error(cli, "%s", strerror(ENOMEM));
            r = -ENOMEM;
        }
    if (r == 0 && l->has_providers && !l->all)
        qsort(l->items, l->count, sizeof *l->items, compare_items);
    return r;
}

/* --- output ---------------------------------------------------------------------- */

static int name_column(const struct list *l)
{
    int column = (int)strlen("NAME");
    for (size_t i = 0; i < l->count; i++) {
        int len = (int)strlen(l->items[i].name);
        if (len > column && len <= NAME_COLUMN_MAX)
            column = len;
    }
    return column;
}

/* Who has it, where that is told: with --all the service or the provider, else the latter. */
static const char *owner_title(const struct list *l)
{
    return l->all ? "SERVICE" : l->has_providers ? "PROVIDER" : "";
}

static const char *owner_of(const struct list *l, size_t i)
{
    const struct workspace_item *item = &l->items[i];
    if (!*owner_title(l))
        return "";
    return item->provider ? item->provider : item->service ? item->service : "-";
}

/* The columns of that and what is behind it. */
static int owner_column(const struct list *l)
{
    int column = (int)strlen(owner_title(l));
    for (size_t i = 0; i < l->count; i++) {
        int len = (int)strlen(owner_of(l, i));
        column = len > column ? len : column;
    }
    return column ? column + 2 : 0;
}

static int print_table(const struct list *l)
{
    int column = name_column(l), width = owner_column(l);
    (void)printf("%-*s  %-19s  %-*s%s\n", column, "NAME", "CREATED", width, owner_title(l),
                 "THREAD ID");
    for (size_t i = 0; i < l->count; i++) {
        char when[64];
        _cleanup_buffer_ struct buffer name = {0};
        _cleanup_buffer_ struct buffer id = {0};
        int r = text_escape(&name, bytes_of_string(l->items[i].name), TEXT_SENTENCE);
        if (r == 0)
            r = text_escape(&id, buffer_view(&l->items[i].thread_id), TEXT_VALUE);
        if (r < 0)
            return r;
        text_time(l->items[i].created, false, when, sizeof when);
        (void)printf("%-*.*s  %-19s  %-*s%.*s\n", column, (int)name.len, (const char *)name.data,
                     when, width, owner_of(l, i), (int)id.len, (const char *)id.data);
    }
    return 0;
}

static int add_labels(struct buffer *b, json_t *labels)
{
    const char *key;
    json_t *value;
    int r = 0;
    json_object_foreach(labels, key, value)
    {
        r |= buffer_append(b, ", ", b->len > 0 ? 2 : 0);
        r |= text_escape(b, bytes_of_string(key), TEXT_VALUE);
        r |= buffer_append(b, "=", 1);
        r |= text_escape(b, bytes_of_string(json_string_value(value)), TEXT_VALUE);
    }
    return r < 0 ? -ENOMEM : 0;
}

/* As `berth ttl --idle` takes it. */
static void idle_text(double seconds, char *text, size_t size)
{
    static const struct {
        const char *name;
        uint64_t seconds;
    } units[] = {{"d", 86400}, {"h", 3600}, {"m", 60}};
    for (size_t i = 0; i < ARRAY_SIZE(units); i++) {
        uint64_t count = (uint64_t)seconds / units[i].seconds;
        if (count > 0 && (double)(count * units[i].seconds) == seconds) {
            (void)snprintf(text, size, "%llu%s", (unsigned long long)count, units[i].name);
            return;
        }
    }
    (void)snprintf(text, size, "%gs", seconds);
}

static int print_long(const struct list *l)
{
    int column = name_column(l), width = owner_column(l);
    (void)printf("%-*s  %-7s  %-19s  %-19s  %-8s  %-*s%s\n", column, "NAME", "STATE", "CREATED",
                 "ENDS", "IDLE", width, owner_title(l), "THREAD ID, LABELS");
    for (size_t i = 0; i < l->count; i++) {
        const struct workspace_item *item = &l->items[i];
        char created[64], ends[64] = "-", idle[32] = "-";
        _cleanup_buffer_ struct buffer id = {0};
        _cleanup_buffer_ struct buffer labels = {0};
        json_t *idle_ttl = json_object_get(item->json, "idle_ttl");
        int r = text_escape(&id, buffer_view(&item->thread_id), TEXT_VALUE);
        if (r == 0)
            r = add_labels(&labels, json_object_get(item->json, "labels"));
        if (r < 0)
            return r;
        text_time(item->created, false, created, sizeof created);
        if (item->expires)
            text_time(item->expires, false, ends, sizeof ends);
        if (json_is_number(idle_ttl))
            idle_text(json_number_value(idle_ttl), idle, sizeof idle);
        (void)printf("%-*s  %-7s  %-19s  %-19s  %-8s  %-*s%.*s%s%.*s\n", column, item->name,
                     json_string_value(json_object_get(item->json, "state")), created, ends, idle,
                     width, owner_of(l, i), (int)id.len, (const char *)id.data,
                     labels.len > 0 ? "  " : "", (int)labels.len, (const char *)labels.data);
    }
    return 0;
}

static int print_json(const struct list *l)
{
    json_t *array = json_array();
    int r = array ? 0 : -ENOMEM;
    for (size_t i = 0; r == 0 && i < l->count; i++)
        r = json_array_append(array, l->items[i].json) < 0 ? -ENOMEM : 0;
    if (r == 0) {
        (void)json_dumpf(array, stdout, JSON_INDENT(2) | JSON_ENSURE_ASCII);
        (void)putchar('\n');
    }
    json_decref(array);
    return r;
}

static int print_names(const struct list *l)
{
    for (size_t i = 0; i < l->count; i++) {
        _cleanup_buffer_ struct buffer name = {0};
        int r = text_escape(&name, bytes_of_string(l->items[i].name), TEXT_SENTENCE);
        if (r < 0)
            return r;
        (void)printf("%.*s\n", (int)name.len, (const char *)name.data);
    }
    return 0;
}

static int print_list(const struct cli *cli, const struct list *l,
                      int (*print)(const struct list *l), bool for_people)
{
    int r = print(l);
    if (r < 0) {
        cli_error(cli, "%s", strerror(-r));
        return CLI_FAILED;
    }
    int status = cli_finish_output(cli, CLI_OK);
    bool filtered = l->state || l->selector_count;
    if (l->count == 0 && for_people && !filtered && isatty(STDOUT_FILENO))
        (void)fputs("No workspaces yet; make one: berth create ID\n", stderr);
    return status;
}

static int add_selector(struct list *l, const char *word)
{
    if (l->selector_count < ARRAY_SIZE(l->labels))
        l->labels[l->selector_count] = word;
    if (l->selector_count == WIRE_SELECTORS_MAX ||
        l->selectors.len + strlen(word) + 8 > WIRE_LABELS_MAX)
        return -E2BIG;
    l->selector_count++;
    return wire_list_append(&l->selectors, bytes_of_string(word));
}

/* --- of all services ---------------------------------------------------------------- */

static int name_service(struct list *l, const char *name)
{
    for (size_t i = l->first; i < l->count; i++) {
        struct workspace_item *item = &l->items[i];
        item->service = strdup(name);
        if (!item->service ||
            (item->json && json_object_set_new(item->json, "service", json_string(name)) < 0))
            return -ENOMEM;
    }
    return 0;
}

/* name NULL: the one that is meant where none is named, which need not be there. */
static int add_service(const struct cli *cli, struct list *l, const char *name, json_t *seen)
{
    struct cli other = {.command = cli->command,
                        .words = cli->words,
                        .flags = {.config_file = cli->flags.config_file,
                                  .service = name,
                                  .connect_timeout_ms = SERVICE_ANSWER_MS}};
    struct failure failure;
    struct client *client = NULL;
    l->first = l->count;
    if (!cli_load_settings(&other))
        return -EINVAL;
    const char *url = other.settings.url;
    int r = 0;
    /* By another name it is the same. */
    if (!json_object_get(seen, url)) {
        (void)json_object_set_new(seen, url, json_true());
        r = cli_connect_alone(&other, &client, &failure);
        if (r < 0 && !name && other.settings.url_default)
            r = 0;
        else if (r < 0)
            cli_error(cli, "%s: %s", name ? name : "default", failure.text);
        else
            r = fetch(&other, client, l);
    }
    if (r == 0)
        r = name_service(l, name ? name : "default");
    if (client)
        client_free(client);
    client_settings_release(&other.settings);
    return r;
}

/* As a mount shows them: the first has the plain name. In the order of the services, and then of
 * names, sandboxes last. */
static int qualify(struct list *l)
{
    json_t *taken = json_object();
    int r = taken ? 0 : -ENOMEM;
    for (size_t i = 0; r == 0 && i < l->count; i++) {
        struct workspace_item *item = &l->items[i];
        if (!json_object_get(taken, item->name)) {
            r = json_object_set_new(taken, item->name, json_true());
            continue;
        }
        char *shown = NULL;
        if (!item->service)
            continue;
        if (asprintf(&shown, "%s@%s", item->name, item->service) < 0)
            r = -ENOMEM;
        free(item->name);
        item->name = shown;
    }
    json_decref(taken);
    return r < 0 ? -ENOMEM : 0;
}

static int collect_all(struct cli *cli, struct list *l)
{
    _cleanup_service_list_ struct service_list services = {0};
    struct failure failure;
    json_t *seen = json_object();
    int r = service_list_load(cli->flags.config_file, &services, &failure);
    if (r < 0)
        cli_error(cli, "%s", failure.text);
    bool whole = r == 0 && add_service(cli, l, NULL, seen) == 0;
    for (size_t i = 0; r == 0 && i < services.count; i++)
        whole &= add_service(cli, l, services.entries[i].name, seen) == 0;
    json_decref(seen);
    if (r == 0)
        r = add_places(cli, l);
    if (r == 0 && qualify(l) < 0)
        r = -ENOMEM;
    qsort(l->items, l->count, sizeof *l->items, compare_items);
    return r < 0 || !whole ? CLI_FAILED : CLI_OK;
}

/* Those of the service, and, if none was named, those in sandboxes. Whoever uses nothing but
 * sandboxes has no service here, and needs none. */
static int collect(struct cli *cli, struct list *l)
{
    struct failure failure;
    struct client *client = NULL;
    int status = CLI_OK;
    if (l->all)
        return collect_all(cli, l);
    if (!which_service(cli) || !cli_load_settings(cli))
        return CLI_FAILED;
    int r = cli_connect_alone(cli, &client, &failure);
    if (r == 0)
        status = fetch(cli, client, l) < 0 ? CLI_FAILED : CLI_OK;
    if (client)
        client_free(client);
    if (!cli->url_given && add_places(cli, l) < 0)
        status = CLI_FAILED;
    if (r < 0 && !(l->has_places && cli->settings.url_default)) {
        cli_error(cli, "%s", failure.text);
        status = CLI_FAILED;
    }
    return status;
}

int cmd_ls(struct cli *cli, int argc, char **argv)
{
    _cleanup_(list_release) struct list list = {0};
    bool json = false;
    bool quiet = false;
    bool extended = false;
    int option;
    opterr = 0;
    while ((option = getopt_long(argc, argv, ":alqh", options, NULL)) != -1) {
        if (option == 'q')
            quiet = true;
        else if (option == 'a')
            list.all = true;
        else if (option == 'l')
            extended = true;
        else if (option == OPTION_JSON)
            json = true;
        else if (option == OPTION_LABEL && add_selector(&list, optarg) < 0)
            return cli_usage_error(cli, "--label %s: more labels than can be looked for", optarg);
        else if (option == OPTION_LABEL)
            continue;
        else if (option == OPTION_STATE && strcmp(optarg, "running") == 0)
            list.state = WIRE_WORKSPACE_RUNNING;
        else if (option == OPTION_STATE && strcmp(optarg, "stopped") == 0)
            list.state = WIRE_WORKSPACE_STOPPED;
        else if (option == OPTION_STATE)
            return cli_usage_error(cli, "--state %s: neither running nor stopped", optarg);
        else if (option == 'h')
            return cli_show_help(cli);
        else
            return cli_option_error(cli, option, argv);
    }
    if (optind < argc)
        return cli_usage_error(cli, "%s: ls takes no arguments; it lists all", argv[optind]);
    if (list.all && (cli->flags.url || cli->flags.service))
        return cli_usage_error(cli, "--all is of all services, and one was named");
    if (json + quiet + extended > 1)
        return cli_usage_error(cli, "--json, -q and -l exclude each other");
    list.json = json || extended;
    int status = collect(cli, &list);
    if (status == CLI_FAILED && !list.has_places && !list.all)
        return status;
    int printed = print_list(cli, &list,
                             json       ? print_json
                             : quiet    ? print_names
                             : extended ? print_long
                                        : print_table,
                             !json && !quiet);
    return printed == CLI_OK ? status : printed;
}

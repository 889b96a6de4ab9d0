#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/buffer.h"
#include "base/cleanup.h"
#include "cli/at_place.h"
#include "cli/cli.h"
#include "cli/orphans.h"
#include "cli/programs.h"
#include "cli/text.h"
#include "provider/binding.h"
#include "provider/parameters.h"
#include "provider/sandbox.h"

const char provider_usage[] =
    "usage: berth provider ls [--json]\n"
    "       berth provider show NAME\n"
    "       berth provider check NAME[:KEY=VALUE,…]\n"
    "       berth provider status [-n] [--json] ID\n"
    "       berth provider orphans [--json] [--remove] NAME[:KEY=VALUE,…]\n"
    "A provider is a system that makes sandboxes: docker, ssh, and others. A file for each, its\n"
    "profile, says how (berth-provider(5)): `berth create --provider NAME ID` makes a sandbox "
    "with\n"
    "a service in it and the workspace ID there, and all commands find it by its ID from then on;\n"
    "`berth rm ID` removes the workspace and destroys the sandbox.\n"
    "\n"
    "  ls        the providers that there are, and whether they were tried with the real system\n"
    "            or with a stand-in for it\n"
    "  show      a profile as it is read, in JSON\n"
    "  check     whether it could be used here: its programs, its parameters, whether it answers;\n"
    "            who holds what of a policy, and what would be run\n"
    "  status    how the sandbox of a workspace is, as the provider says\n"
    "  orphans   sandboxes of yours that the provider has and no workspace here belongs to: what "
    "a\n"
    "            crash may leave\n"
    "\n"
    "  -n, --name     ID is a directory name, as `berth ls -q` and the mount show it\n"
    "      --remove   destroys the orphans; nothing while it is not sure of all: a file of a\n"
    "                 workspace cannot be read, or one is being made whose name is not known yet\n"
    "      --json     prints JSON\n"
    "\n"
    "Profiles are looked for in $BERTH_PROVIDERS (directories, separated by ':'),\n"
    "~/.config/berth/providers, /etc/berth/providers, and where Berth was installed.\n"
    "\n"
    "Examples\n"
    "  berth provider check ssh:host=build7\n"
    "  berth create --provider ssh:host=build7 fix-the-bug\n"
    "  berth provider status fix-the-bug\n"
    "  berth provider orphans --remove docker\n";

enum { OPTION_JSON = 256, OPTION_REMOVE };

static const struct option options[] = {
    {"name", no_argument, NULL, 'n'},
    {"json", no_argument, NULL, OPTION_JSON},
    {"remove", no_argument, NULL, OPTION_REMOVE},
    {"help", no_argument, NULL, 'h'},
    {0},
};

struct choice {
    bool by_name;
    bool json;
    bool remove;
};

/* A line for people; what a file or a vendor says does not drive the terminal. */
static void print_text(const char *before, const char *text, const char *after)
{
    _cleanup_buffer_ struct buffer escaped = {0};
    if (text_escape(&escaped, bytes_of_string(text), TEXT_SENTENCE) == 0)
        (void)printf("%s%.*s%s", before, (int)escaped.len, (const char *)escaped.data, after);
}

static void print_json(json_t *value)
{
    (void)json_dumpf(value, stdout, JSON_INDENT(2) | JSON_ENSURE_ASCII);
    (void)putchar('\n');
}

static void json_release(json_t **object)
{
    json_decref(*object);
}

/* --- ls, show ------------------------------------------------------------------------------- */

static int add_row(void *context, const char *name, const struct profile *p,
                   const struct failure *failure)
{
    json_t *array = context;
    json_t *row =
        p ? json_pack("{s:s, s:s, s:s, s:s}", "name", name, "tried", profile_text(p, "tried"),
                      "summary", profile_text(p, "summary"), "file", p->file)
          : json_pack("{s:s, s:s}", "name", name, "error", failure->text);
    return row && json_array_append_new(array, row) == 0 ? 0 : -ENOMEM;
}

static int provider_ls(struct cli *cli, const struct choice *choice, char **words)
{
    _cleanup_(json_release) json_t *array = json_array();
    struct failure f;
    size_t i;
    json_t *row;
    if (words[0])
        return cli_usage_error(cli, "%s: ls takes no arguments; it lists all", words[0]);
    if (profile_each(add_row, array, &f) < 0) {
        cli_error(cli, "%s", f.text);
        return CLI_FAILED;
    }
    if (choice->json) {
        print_json(array);
        return CLI_OK;
    }
    if (json_array_size(array) == 0) {
        cli_error(cli, "no profile in $BERTH_PROVIDERS, ~/.config/berth/providers, "
                       "/etc/berth/providers, " BERTH_DATADIR "/berth/providers");
        return CLI_FAILED;
    }
    (void)printf("%-14s  %-8s  %s\n", "NAME", "TRIED", "SUMMARY");
    json_array_foreach(array, i, row)
    {
        const char *error = json_string_value(json_object_get(row, "error"));
        const char *tried = json_string_value(json_object_get(row, "tried"));
        const char *summary = json_string_value(json_object_get(row, "summary"));
        (void)printf("%-14s  %-8s  ", json_string_value(json_object_get(row, "name")),
                     tried ? tried : "-");
        print_text("", error ? error : summary, "\n");
    }
    return CLI_OK;
}

static int provider_show(struct cli *cli, const struct choice *choice, char **words)
{
    _cleanup_profile_ struct profile p = {0};
    struct failure f;
    if (!words[0] || words[1])
        return cli_usage_error(cli, "show takes the name of a provider");
    if (profile_find(words[0], &p, &f) < 0) {
        cli_error(cli, "%s", f.text);
        return CLI_FAILED;
    }
    print_json(p.document);
    return CLI_OK;
}

/* --- check ------------------------------------------------------------------------------------ */

static int find(struct cli *cli, const char *spec, struct profile *ret, json_t **ret_parameters)
{
    _cleanup_free_ char *name = NULL;
    _cleanup_(json_release) json_t *given = NULL;
    struct failure f;
    int r = parameters_split(spec, &name, &given, &f);
    if (r == 0)
        r = profile_find(name, ret, &f);
    if (r == 0)
        r = parameters_complete(ret, given, ret_parameters, &f);
    if (r == 0)
        r = binding_ask(ret, *ret_parameters, &f);
    if (r < 0)
        cli_error(cli, "%s: %s", name ? name : spec, f.text);
    return r;
}

static void print_who(const struct profile *p, const char *field, const char *word)
{
    (void)printf("  %-20s %s\n", word ? word : field, enforce_who(p, field, word));
}

static void print_policy(const struct profile *p)
{
    static const char *const limits[] = {"memory",     "pids",      "cpu",  "cpu_time", "file_size",
                                         "open_files", "wall_time", "disk", "files",    "require"};
    static const char *const networks[] = {"none", "allow", "host"};
    static const char *const filesystems[] = {"own", "read", "host"};
    char word[64];
    (void)puts(
        "who holds what of a policy: the vendor's system, the berthd inside, or it is refused");
    for (size_t i = 0; i < ARRAY_SIZE(networks); i++) {
        (void)snprintf(word, sizeof word, "network %s", networks[i]);
        (void)printf("  %-20s %s\n", word, enforce_who(p, "network", networks[i]));
    }
    for (size_t i = 0; i < ARRAY_SIZE(filesystems); i++) {
        (void)snprintf(word, sizeof word, "filesystem %s", filesystems[i]);
        (void)printf("  %-20s %s\n", word, enforce_who(p, "filesystem", filesystems[i]));
    }
    for (size_t i = 0; i < ARRAY_SIZE(limits); i++)
        print_who(p, limits[i], NULL);
}

static void print_line(const struct sandbox *s, const char *part, const json_t *words)
{
    struct failure f;
    _cleanup_free_ char *text = NULL;
    char before[32];
    (void)snprintf(before, sizeof before, "  %-8s ", part);
    if (words && sandbox_show(s, words, &text, &f) == 0)
        print_text(before, text, "\n");
}

static void print_steps(const struct sandbox *s, const char *part)
{
    size_t i;
    json_t *step;
    json_array_foreach(json_object_get(s->profile->document, part), i, step)
    {
        print_line(s, part, json_object_get(step, "run"));
    }
}

/* What could be given, also when something of it is missing. */
static void print_parameters(const struct profile *p)
{
    const char *key;
    json_t *parameter;
    json_t *all = json_object_get(p->document, "parameters");
    if (json_object_size(all) > 0)
        (void)puts("parameters");
    json_object_foreach(all, key, parameter)
    {
        const json_t *given = json_object_get(parameter, "default");
        const char *text = json_string_value(given);
        (void)printf("  %-20s ", key);
        print_text("", json_string_value(json_object_get(parameter, "help")), "");
        print_text(" (", !given ? "needed" : *text ? text : "may be left out", ")\n");
    }
}

static void show_parameters(const char *spec)
{
    _cleanup_profile_ struct profile p = {0};
    _cleanup_free_ char *name = strndup(spec, strcspn(spec, ":"));
    struct failure f;
    if (name && profile_find(name, &p, &f) == 0)
        print_parameters(&p);
}

static int count_listed(void *context, const char *name)
{
    (*(size_t *)context)++;
    return 0;
}

/* Whether the provider answers, by what changes nothing. */
static int ask(const struct profile *p, const json_t *parameters, struct failure *f)
{
    size_t count = 0;
    if (!json_object_get(p->document, "list")) {
        (void)puts("its programs are here; whether it can be reached is seen when one is made");
        return 0;
    }
    int r = sandbox_list(p, parameters, count_listed, &count, f);
    if (r == 0)
        (void)printf("it answers; sandboxes of yours that it has: %zu\n", count);
    return r;
}

static int provider_check(struct cli *cli, const struct choice *choice, char **words)
{
    _cleanup_profile_ struct profile p = {0};
    _cleanup_(json_release) json_t *parameters = NULL;
    _cleanup_place_ struct place place = {0};
    _cleanup_free_ char *berthd = NULL;
    struct failure f;
    size_t i;
    json_t *note;
    if (!words[0] || words[1])
        return cli_usage_error(cli, "check takes the name of a provider, and its parameters");
    if (find(cli, words[0], &p, &parameters) < 0) {
        show_parameters(words[0]);
        return CLI_FAILED;
    }
    print_text(profile_text(&p, "name"), "", ": ");
    print_text("", profile_text(&p, "summary"), "\n");
    print_text("profile ", p.file, "\n");
    if (strcmp(profile_text(&p, "tried"), "real") == 0)
        (void)puts("tried with the real system");
    else
        (void)puts("not tried against the real one: only with a stand-in for its program");
    json_array_foreach(json_object_get(p.document, "notes"), i, note)
    {
        print_text("note: ", json_string_value(note), "\n");
    }
    print_parameters(&p);
    print_policy(&p);
    int r = sandbox_new_place(&p, bytes_of_string("example"), parameters, &place, &f);
    int found = program_find_static_berthd(&berthd);
    struct sandbox s = {
        .profile = &p, .place = &place, .berthd = found == 0 ? berthd : "berthd", .signal_fd = -1};
    if (r == 0 && !profile_is_default_service(&p)) {
        (void)puts("what is run");
        print_steps(&s, "create");
        print_steps(&s, "install");
        print_line(&s, "connect", json_object_get(p.document, "connect"));
        print_steps(&s, "destroy");
    }
    if (r == 0)
        r = sandbox_check_needs(&p, &f);
    if (r == 0 && found < 0 && sandbox_needs_berthd(&p, false))
        r = failure_set(&f, found, SANDBOX_NO_BERTHD);
    if (r == 0 && found < 0 && sandbox_needs_berthd(&p, true))
        (void)puts("note: there is no static berthd here (BERTH_STATIC_BERTHD): one must be there");
    if (r == 0 && !profile_is_default_service(&p))
        r = ask(&p, parameters, &f);
    if (r < 0) {
        cli_error(cli, "%s", f.text);
        return CLI_FAILED;
    }
    return CLI_OK;
}

/* --- status -------------------------------------------------------------------------------------
 */

static void print_binding(const struct profile *profile, const struct place *p)
{
    _cleanup_free_ char *bound = binding_describe(profile, p);
    const char *changed = binding_changed_secret(p);
    if (bound && *bound)
        print_text("asked     ", bound, "\n");
    if (changed)
        print_text("note      ", changed, " is not what it was made with\n");
}

static int print_status(const struct choice *choice, const struct profile *profile,
                        const struct place *p, const char *state, const char *says)
{
    json_t *object = choice->json ? place_to_json(p) : NULL;
    if (object) {
        (void)json_object_set_new(object, "provider_state",
                                  state ? json_string(state) : json_null());
        (void)json_object_set_new(object, "provider_says", json_string(says));
        print_json(object);
        json_decref(object);
        return CLI_OK;
    }
    char when[64];
    text_time(p->created, false, when, sizeof when);
    (void)printf("provider  %s\n", p->provider);
    print_text("sandbox   ", p->sandbox, "\n");
    (void)printf("created   %s\n", when);
    print_text("by        ", p->created_by, "\n");
    (void)printf("here      %s\n", place_state_name(p->state));
    print_text("there     ", state ? state : *says ? says : "-", "\n");
    print_binding(profile, p);
    print_text("url       ", p->url[0] ? p->url : "-", "\n");
    return CLI_OK;
}

static int provider_status(struct cli *cli, const struct choice *choice, char **words)
{
    _cleanup_place_ struct place p = {0};
    _cleanup_profile_ struct profile profile = {0};
    struct failure f;
    const char *state = NULL;
    char says[200] = "";
    if (!words[0] || words[1])
        return cli_usage_error(cli, "status takes the ID of a workspace");
    bool given = cli->url_given;
    cli->url_given = false;
    int r = at_place_find(cli, words[0], choice->by_name, &p);
    cli->url_given = given;
    if (r == 0)
        cli_error(cli, "%s: no provider has made a sandbox for it", words[0]);
    if (r <= 0)
        return CLI_FAILED;
    r = profile_find(p.provider, &profile, &f);
    struct sandbox s = {.profile = &profile, .place = &p, .signal_fd = -1};
    if (r == 0)
        r = sandbox_status(&s, &state, says, &f);
    if (r < 0 && r != -EOPNOTSUPP)
        cli_error(cli, "%s: %s", words[0], f.text);
    int status = print_status(choice, &profile, &p, state, says);
    return r < 0 && r != -EOPNOTSUPP ? CLI_FAILED : status;
}

/* --- orphans
 * -------------------------------------------------------------------------------------- */

static int provider_orphans(struct cli *cli, const struct choice *choice, char **words)
{
    _cleanup_profile_ struct profile p = {0};
    _cleanup_(json_release) json_t *parameters = NULL, *found = NULL;
    struct failure f, unsure = {0};
    size_t i;
    json_t *name;
    int status = CLI_OK;
    if (!words[0] || words[1])
        return cli_usage_error(cli, "orphans takes the name of a provider, and its parameters");
    if (find(cli, words[0], &p, &parameters) < 0)
        return CLI_FAILED;
    if (orphans_find(&p, parameters, NULL, &found, &unsure, &f) < 0) {
        cli_error(cli, "%s: %s", profile_text(&p, "name"), f.text);
        return CLI_FAILED;
    }
    if (choice->json)
        print_json(found);
    if (*unsure.text && json_array_size(found) > 0) {
        cli_error(cli, "%s%s", unsure.text, choice->remove ? "; nothing was destroyed" : "");
        status = choice->remove ? CLI_FAILED : CLI_OK;
    }
    json_array_foreach(found, i, name)
    {
        if (!choice->json)
            print_text("", json_string_value(name), "\n");
        if (!choice->remove || *unsure.text)
            continue;
        if (orphans_destroy(&p, parameters, json_string_value(name), &f) < 0) {
            cli_error(cli, "%s: %s", json_string_value(name), f.text);
            status = CLI_FAILED;
        }
    }
    return status;
}

/* --- all
 * ------------------------------------------------------------------------------------------ */

int cmd_provider(struct cli *cli, int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*run)(struct cli *cli, const struct choice *choice, char **words);
    } verbs[] = {{"ls", provider_ls},
                 {"show", provider_show},
                 {"check", provider_check},
                 {"status", provider_status},
                 {"orphans", provider_orphans}};
    struct choice choice = {0};
    int option;
    opterr = 0;
    while ((option = getopt_long(argc, argv, ":nh", options, NULL)) != -1) {
        if (option == 'n')
            choice.by_name = true;
        else if (option == OPTION_JSON)
            choice.json = true;
        else if (option == OPTION_REMOVE)
            choice.remove = true;
        else if (option == 'h')
            return cli_show_help(cli);
        else
            return cli_option_error(cli, option, argv);
    }
    const char *verb = argv[optind];
    if (!verb)
        return cli_usage_error(cli, "ls, show, check, status or orphans?");
    for (size_t i = 0; i < ARRAY_SIZE(verbs); i++)
        if (strcmp(verbs[i].name, verb) == 0)
            return cli_finish_output(cli, verbs[i].run(cli, &choice, argv + optind + 1));
    return cli_usage_error(cli, "%s: not one of ls, show, check, status and orphans", verb);
}

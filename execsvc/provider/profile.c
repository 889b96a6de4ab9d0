#include "provider/profile.h"

#include <errno.h>
#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "places/place.h"
#include "provider/template.h"

#define PATH_TEXT 256

/* Where in the document, for messages, and which names may stand in braces there. */
struct checked {
    const json_t *parameters;
    struct failure *failure;
    bool value; /* {value} is known too */
};

__attribute__((format(printf, 3, 4))) static int wrong(struct checked *c, const char *path,
                                                       const char *format, ...)
{
    char what[FAILURE_TEXT_MAX / 2];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(what, sizeof what, format, args);
    va_end(args);
    return failure_set(c->failure, -EINVAL, "%s%s%s", path, *path ? ": " : "", what);
}

/* --- what every part is made of --------------------------------------------------------- */

static bool is_plain(const char *text, size_t len)
{
    if (!text || strlen(text) != len || len > PROFILE_TEXT_MAX)
        return false;
    for (size_t i = 0; i < len; i++)
        if ((unsigned char)text[i] < 0x20 || text[i] == 0x7f)
            return false;
    return true;
}

static bool is_text(const json_t *value)
{
    return json_is_string(value) && is_plain(json_string_value(value), json_string_length(value));
}

static bool is_among(const char *word, const char *const *words)
{
    for (; *words; words++)
        if (strcmp(*words, word) == 0)
            return true;
    return false;
}

static int check_keys(struct checked *c, const char *path, const json_t *object,
                      const char *const *known, const char *const *required)
{
    const char *key;
    json_t *value;
    char shown[80];
    if (!json_is_object(object))
        return wrong(c, path, "must be an object { ... }");
    if (json_object_size(object) > PROFILE_LIST_MAX)
        return wrong(c, path, "has more than %d keys", PROFILE_LIST_MAX);
    json_object_foreach((json_t *)(uintptr_t)object, key, value)
    {
        if (!is_among(key, known))
            return wrong(c, path, "unknown key %s",
                         log_escape(key, strlen(key), shown, sizeof shown));
    }
    for (; *required; required++)
        if (!json_object_get(object, *required))
            return wrong(c, path, "\"%s\" is missing", *required);
    return 0;
}

static int check_texts(struct checked *c, const char *path, const json_t *array)
{
    size_t i;
    json_t *value;
    if (!json_is_array(array) || json_array_size(array) > PROFILE_LIST_MAX)
        return wrong(c, path, "must be a list of at most %d texts", PROFILE_LIST_MAX);
    json_array_foreach(array, i, value)
    {
        if (!is_text(value) || json_string_length(value) == 0)
            return wrong(c, path, "[%zu] must be a text of one line", i);
    }
    return 0;
}

/* Every {NAME} must be known. */
static int check_word(struct checked *c, const char *path, const char *word)
{
    struct template_name name;
    for (const char *at = word; template_next(&at, &name);)
        if (!template_is_builtin(name.text, name.len, c->value) &&
            !json_object_getn(c->parameters, name.text, name.len))
            return wrong(c, path, "{%.*s} is neither a parameter nor known otherwise",
                         (int)name.len, name.text);
    return 0;
}

static int check_words(struct checked *c, const char *path, const json_t *words, bool nested)
{
    size_t i;
    json_t *word;
    int r = 0;
    if (!json_is_array(words) || json_array_size(words) > PROFILE_WORDS_MAX)
        return wrong(c, path, "must be a list of at most %d words", PROFILE_WORDS_MAX);
    json_array_foreach(words, i, word)
    {
        char inner[PATH_TEXT];
        (void)snprintf(inner, sizeof inner, "%s[%zu]", path, i);
        if (json_is_array(word) && nested)
            r = check_words(c, inner, word, false);
        else if (is_text(word))
            r = check_word(c, inner, json_string_value(word));
        else
            r = wrong(c, inner, "must be a word without control characters%s",
                      nested ? ", or a list of such" : "");
        if (r < 0)
            return r;
    }
    return 0;
}

/* A command line: its first word is a program, as it is. */
static int check_command(struct checked *c, const char *path, const json_t *words)
{
    int r = check_words(c, path, words, true);
    if (r < 0)
        return r;
    const char *program = json_string_value(json_array_get(words, 0));
    if (!program || !*program || strchr(program, '{') || program[0] == '-')
        return wrong(c, path, "must begin with the program to run");
    return 0;
}

static bool is_name(const char *name, size_t max)
{
    size_t len = strlen(name);
    if (len == 0 || len > max || name[0] < 'a' || name[0] > 'z')
        return false;
    return strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_-") == len;
}

bool profile_name_is_valid(const char *name)
{
    return is_name(name, PROFILE_NAME_MAX) && !strchr(name, '_');
}

/* --- the parts --------------------------------------------------------------------------- */

static int check_pattern(struct checked *c, const char *path, const json_t *parameter)
{
    const char *pattern = json_string_value(json_object_get(parameter, "pattern"));
    const char *given = json_string_value(json_object_get(parameter, "default"));
    regex_t expression;
    if (!pattern)
        return 0;
    if (regcomp(&expression, pattern, REG_EXTENDED | REG_NOSUB) != 0)
        return wrong(c, path, "\"pattern\" is no extended regular expression");
    bool good = !given || !*given || regexec(&expression, given, 0, NULL, 0) == 0;
    regfree(&expression);
    return good ? 0 : wrong(c, path, "\"default\" does not match \"pattern\"");
}

/* It is run before there is a sandbox, or another parameter. */
static int check_default_from(struct checked *c, const char *path, const json_t *parameter)
{
    const json_t *words = json_object_get(parameter, "default_from");
    const char *given = json_string_value(json_object_get(parameter, "default"));
    char inner[PATH_TEXT + 24];
    size_t i;
    json_t *word;
    if (!words)
        return 0;
    (void)snprintf(inner, sizeof inner, "%s.default_from", path);
    if (!given || *given)
        return wrong(c, inner, "is for a parameter whose \"default\" is \"\"");
    int r = check_command(c, inner, words);
    json_array_foreach((json_t *)(uintptr_t)words, i, word)
    {
        struct template_name name;
        const char *at = json_string_value(word);
        if (r == 0 && (!at || (template_next(&at, &name) &&
                               (name.len != 9 || memcmp(name.text, "directory", 9) != 0))))
            r = wrong(c, inner, "[%zu]: nothing but {directory} is known here", i);
    }
    return r;
}

static int check_parameters(struct checked *c, const json_t *parameters)
{
    static const char *const known[] = {"default", "default_from", "help", "pattern", NULL};
    static const char *const required[] = {"help", NULL};
    const char *key, *part;
    json_t *value, *text;
    if (!parameters)
        return 0;
    if (!json_is_object(parameters) || json_object_size(parameters) > PROFILE_LIST_MAX)
        return wrong(c, "parameters", "must be an object of at most %d", PROFILE_LIST_MAX);
    json_object_foreach((json_t *)(uintptr_t)parameters, key, value)
    {
        char path[PATH_TEXT], shown[80];
        (void)snprintf(path, sizeof path, "parameters.%s",
                       log_escape(key, strlen(key), shown, sizeof shown));
        if (!is_name(key, PROFILE_NAME_MAX) || strchr(key, '-'))
            return wrong(c, path, "a parameter's name is [a-z][a-z0-9_]*");
        if (template_is_builtin(key, strlen(key), true))
            return wrong(c, path, "this name means something else");
        int r = check_keys(c, path, value, known, required);
        if (r < 0)
            return r;
        json_object_foreach(value, part, text)
        {
            if (strcmp(part, "default_from") != 0 && !is_text(text))
                return wrong(c, path, "\"%s\" must be a text of one line", part);
        }
        r = check_pattern(c, path, value);
        if (r == 0)
            r = check_default_from(c, path, value);
        if (r < 0)
            return r;
    }
    return 0;
}

static int check_statuses(struct checked *c, const char *path, const json_t *statuses)
{
    size_t i;
    json_t *value;
    if (!json_is_array(statuses) || json_array_size(statuses) > PROFILE_LIST_MAX)
        return wrong(c, path, "must be a list of numbers");
    json_array_foreach((json_t *)(uintptr_t)statuses, i, value)
    {
        if (!json_is_integer(value) || json_integer_value(value) < 1 ||
            json_integer_value(value) > 255)
            return wrong(c, path, "[%zu] must be an exit status, 1 to 255", i);
    }
    return 0;
}

static int check_step(struct checked *c, const char *path, const json_t *step)
{
    static const char *const known[] = {"run",     "what",   "timeout",      "stdin",
                                        "capture", "unless", "unless_fails", NULL};
    static const char *const required[] = {"run", NULL};
    char inner[PATH_TEXT + 24];
    const json_t *timeout = json_object_get(step, "timeout");
    const json_t *capture = json_object_get(step, "capture");
    const json_t *input = json_object_get(step, "stdin"), *what = json_object_get(step, "what");
    const json_t *unless = json_object_get(step, "unless");
    json_int_t seconds = json_integer_value(timeout);
    int r = check_keys(c, path, step, known, required);
    if (r < 0)
        return r;
    (void)snprintf(inner, sizeof inner, "%s.run", path);
    r = check_command(c, inner, json_object_get(step, "run"));
    if (r == 0 && unless) {
        (void)snprintf(inner, sizeof inner, "%s.unless", path);
        r = check_command(c, inner, unless);
    }
    if (r == 0 && json_object_get(step, "unless_fails")) {
        (void)snprintf(inner, sizeof inner, "%s.unless_fails", path);
        r = unless ? check_statuses(c, inner, json_object_get(step, "unless_fails"))
                   : wrong(c, inner, "is of \"unless\"");
    }
    if (r < 0)
        return r;
    if (timeout &&
        (!json_is_integer(timeout) || seconds < 1 || seconds > PROFILE_STEP_TIMEOUT_MAX_S))
        return wrong(c, path, "\"timeout\" must be a number of seconds, 1 to %d",
                     PROFILE_STEP_TIMEOUT_MAX_S);
    if (capture && (!json_is_string(capture) || strcmp(json_string_value(capture), "sandbox") != 0))
        return wrong(c, path, "\"capture\" must be \"sandbox\"");
    if (what && !is_text(what))
        return wrong(c, path, "\"what\" must be a text of one line");
    if (input && !is_text(input))
        return wrong(c, path, "\"stdin\" must be the name of a file");
    return input ? check_word(c, path, json_string_value(input)) : 0;
}

static int check_steps(struct checked *c, const char *name, const json_t *steps)
{
    size_t i;
    json_t *step;
    if (!steps)
        return 0;
    if (!json_is_array(steps) || json_array_size(steps) > PROFILE_LIST_MAX)
        return wrong(c, name, "must be a list of at most %d steps", PROFILE_LIST_MAX);
    json_array_foreach(steps, i, step)
    {
        char path[PATH_TEXT];
        (void)snprintf(path, sizeof path, "%s[%zu]", name, i);
        int r = check_step(c, path, step);
        if (r < 0)
            return r;
        if (strcmp(name, "create") != 0 && json_object_get(step, "capture"))
            return wrong(c, path, "\"capture\" is for a step of \"create\"");
    }
    return 0;
}

/* "gone", "unreached": by what a failure is told from others. */
static int check_failure(struct checked *c, const char *name, const json_t *failure)
{
    static const char *const known[] = {"status", "text", NULL}, *const required[] = {NULL};
    const json_t *status = json_object_get(failure, "status");
    const json_t *text = json_object_get(failure, "text");
    char path[PATH_TEXT];
    if (!failure)
        return 0;
    int r = check_keys(c, name, failure, known, required);
    (void)snprintf(path, sizeof path, "%s.text", name);
    if (r == 0 && text)
        r = check_texts(c, path, text);
    if (r < 0)
        return r;
    /* Any failure, else, would be taken for one that says that there is nothing left. */
    if (json_array_size(text) == 0 && json_array_size(status) == 0)
        return wrong(c, name, "neither \"status\" nor \"text\" says anything");
    (void)snprintf(path, sizeof path, "%s.status", name);
    return status ? check_statuses(c, path, status) : 0;
}

static int check_variables(struct checked *c, const char *path, const json_t *names)
{
    size_t i;
    json_t *name;
    int r = names ? check_texts(c, path, names) : 0;
    if (json_array_size(names) > PLACE_VARIABLES_MAX)
        return wrong(c, path, "has more than %d names", PLACE_VARIABLES_MAX);
    json_array_foreach((json_t *)(uintptr_t)names, i, name)
    {
        if (r == 0 && !place_variable_is_valid(json_string_value(name)))
            r = wrong(c, path, "[%zu] is no name of a variable that can be kept", i);
    }
    return r;
}

static int check_bound_to(struct checked *c, const json_t *bound)
{
    static const char *const known[] = {"environment", "secrets", NULL}, *const required[] = {NULL};
    int r = bound ? check_keys(c, "bound_to", bound, known, required) : 0;
    if (r == 0)
        r = check_variables(c, "bound_to.environment", json_object_get(bound, "environment"));
    return r < 0 ? r : check_variables(c, "bound_to.secrets", json_object_get(bound, "secrets"));
}

static int check_status(struct checked *c, const json_t *status)
{
    static const char *const known[] = {"run", "states", NULL};
    static const char *const states[] = {"ready", "creating", "stopped", "failed", "gone", NULL};
    const char *key;
    json_t *value;
    if (!status)
        return 0;
    int r = check_keys(c, "status", status, known, known);
    if (r == 0)
        r = check_command(c, "status.run", json_object_get(status, "run"));
    if (r < 0)
        return r;
    json_t *map = json_object_get(status, "states");
    if (!json_is_object(map) || json_object_size(map) > PROFILE_LIST_MAX)
        return wrong(c, "status.states", "must be an object of at most %d", PROFILE_LIST_MAX);
    json_object_foreach(map, key, value)
    {
        if (!is_text(value) || !is_among(json_string_value(value), states))
            return wrong(c, "status.states",
                         "a state is \"ready\", \"creating\", \"stopped\", \"failed\" or \"gone\"");
    }
    return 0;
}

static int check_list(struct checked *c, const json_t *list)
{
    static const char *const known[] = {"run", NULL};
    int r = list ? check_keys(c, "list", list, known, known) : 0;
    return list && r == 0 ? check_command(c, "list.run", json_object_get(list, "run")) : r;
}

static int check_choices(struct checked *c, const char *path, const json_t *choices,
                         const char *const *words)
{
    static const char *const none[] = {NULL};
    const char *key;
    json_t *value;
    int r = check_keys(c, path, choices, words, none);
    json_object_foreach((json_t *)(uintptr_t)choices, key, value)
    {
        char inner[PATH_TEXT];
        (void)snprintf(inner, sizeof inner, "%s.%s", path, key);
        if (r == 0)
            r = check_words(c, inner, value, false);
    }
    return r;
}

static int check_policy(struct checked *c, const json_t *policy)
{
    static const char *const networks[] = {"none", "host", "allow", NULL};
    static const char *const filesystems[] = {"own", "host", "read", NULL};
    const char *key;
    json_t *value;
    size_t i;
    if (!policy)
        return 0;
    if (!json_is_object(policy) || json_object_size(policy) > PROFILE_LIST_MAX)
        return wrong(c, "policy", "must be an object { ... }");
    json_object_foreach((json_t *)(uintptr_t)policy, key, value)
    {
        char path[PATH_TEXT], shown[80];
        int r = 0;
        (void)snprintf(path, sizeof path, "policy.%s",
                       log_escape(key, strlen(key), shown, sizeof shown));
        if (strcmp(key, "inside") == 0) {
            r = check_texts(c, path, value);
        } else if (strcmp(key, "network") == 0) {
            r = check_choices(c, path, value, networks);
        } else if (strcmp(key, "filesystem") == 0) {
            r = check_choices(c, path, value, filesystems);
        } else if (template_is_limit(key)) {
            c->value = true;
            r = check_words(c, path, value, false);
            c->value = false;
        } else {
            r = wrong(c, "policy", "unknown field %s", shown);
        }
        if (r < 0)
            return r;
    }
    json_array_foreach(json_object_get(policy, "inside"), i, value)
    {
        const char *field = json_string_value(value);
        if (!template_is_limit(field) && strcmp(field, "network") != 0 &&
            strcmp(field, "filesystem") != 0 && strcmp(field, "require") != 0)
            return wrong(c, "policy.inside", "unknown field %s", field);
    }
    return 0;
}

static int check_connect(struct checked *c, const json_t *document)
{
    static const char *const sandboxes[] = {"create", "install", "destroy", "status", "list"};
    const json_t *connect = json_object_get(document, "connect");
    if (!json_is_string(connect))
        return check_command(c, "connect", connect);
    if (strcmp(json_string_value(connect), "default") != 0)
        return wrong(c, "connect", "must be a list of words, or \"default\"");
    for (size_t i = 0; i < ARRAY_SIZE(sandboxes); i++)
        if (json_object_get(document, sandboxes[i]))
            return wrong(c, sandboxes[i], "there is no sandbox where \"connect\" is \"default\"");
    return 0;
}

static int check_top(struct checked *c, const json_t *document)
{
    static const char *const known[] = {"profile",  "name",      "summary",    "tried",   "notes",
                                        "needs",    "create",    "parameters", "install", "connect",
                                        "destroy",  "gone",      "status",     "list",    "policy",
                                        "bound_to", "unreached", NULL};
    static const char *const required[] = {"profile", "name", "summary", "tried", "connect", NULL};
    static const char *const tried[] = {"real", "stand-in", NULL};
    int r = check_keys(c, "", document, known, required);
    if (r < 0)
        return r;
    const char *name = json_string_value(json_object_get(document, "name"));
    const json_t *summary = json_object_get(document, "summary");
    const json_t *notes = json_object_get(document, "notes");
    const json_t *needs = json_object_get(document, "needs");
    const char *how = json_string_value(json_object_get(document, "tried"));
    if (json_integer_value(json_object_get(document, "profile")) != 1)
        return wrong(c, "profile", "must be 1: this version knows no other form");
    if (!name || !profile_name_is_valid(name))
        return wrong(c, "name", "must be [a-z][a-z0-9-]*, at most %d bytes", PROFILE_NAME_MAX);
    if (!is_text(summary) || json_string_length(summary) == 0)
        return wrong(c, "summary", "must be a text of one line");
    if (!how || !is_among(how, tried))
        return wrong(c, "tried", "must be \"real\" or \"stand-in\"");
    r = notes ? check_texts(c, "notes", notes) : 0;
    if (r == 0 && needs)
        r = check_texts(c, "needs", needs);
    return r;
}

int profile_parse(struct bytes text, struct profile *ret, struct failure *ret_failure)
{
    struct checked c = {.failure = ret_failure};
    json_error_t where;
    if (text.len > PROFILE_FILE_MAX)
        return failure_set(ret_failure, -EINVAL, "larger than %zu KiB", PROFILE_FILE_MAX / 1024);
    _cleanup_profile_ struct profile p = {
        .document = json_loadb((const char *)text.data, text.len, JSON_REJECT_DUPLICATES, &where)};
    if (!p.document)
        return failure_set(ret_failure, -EINVAL, "line %d: not valid JSON: %s", where.line,
                           where.text);
    c.parameters = json_object_get(p.document, "parameters");
    int r = check_top(&c, p.document);
    if (r < 0 || (r = check_parameters(&c, c.parameters)) < 0 ||
        (r = check_steps(&c, "create", json_object_get(p.document, "create"))) < 0 ||
        (r = check_steps(&c, "install", json_object_get(p.document, "install"))) < 0 ||
        (r = check_connect(&c, p.document)) < 0 ||
        (r = check_steps(&c, "destroy", json_object_get(p.document, "destroy"))) < 0 ||
        (r = check_failure(&c, "gone", json_object_get(p.document, "gone"))) < 0 ||
        (r = check_failure(&c, "unreached", json_object_get(p.document, "unreached"))) < 0 ||
        (r = check_bound_to(&c, json_object_get(p.document, "bound_to"))) < 0 ||
        (r = check_status(&c, json_object_get(p.document, "status"))) < 0 ||
        (r = check_list(&c, json_object_get(p.document, "list"))) < 0 ||
        (r = check_policy(&c, json_object_get(p.document, "policy"))) < 0)
        return r;
    *ret = p;
    p = (struct profile){0};
    return 0;
}

void profile_release(struct profile *p)
{
    json_decref(p->document);
    free(p->file);
    *p = (struct profile){0};
}

const char *profile_text(const struct profile *p, const char *key)
{
    const char *text = json_string_value(json_object_get(p->document, key));
    return text ? text : "";
}

char *profile_directory(const struct profile *p)
{
    const char *slash = p->file ? strrchr(p->file, '/') : NULL;
    return strndup(slash ? p->file : "/", slash && slash > p->file ? (size_t)(slash - p->file) : 1);
}

bool profile_is_default_service(const struct profile *p)
{
    return json_is_string(json_object_get(p->document, "connect"));
}

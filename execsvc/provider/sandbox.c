#include "provider/sandbox.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "cli/programs.h"
#include "provider/binding.h"
#include "provider/step.h"
#include "provider/template.h"
#include "stream/url.h"

/* Longest name or ID that a vendor's program may give. */
#define CAPTURE_MAX 256

static void json_release(json_t **object)
{
    json_decref(*object);
}

/* --- what stands in the words ------------------------------------------------------------ */

static json_t *values_of(const struct sandbox *s, const char *owner)
{
    const struct place *p = s->place;
    char when[32], unix_time[32];
    time_t seconds = (time_t)p->created;
    struct tm tm;
    (void)snprintf(unix_time, sizeof unix_time, "%lld", (long long)p->created);
    if (!gmtime_r(&seconds, &tm) || strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", &tm) == 0)
        return NULL;
    _cleanup_free_ char *directory = profile_directory(s->profile);
    if (!directory)
        return NULL;
    return json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:s}", "directory", directory, "sandbox",
                     p->sandbox, "name", p->given_name, "berthd", s->berthd ? s->berthd : "",
                     "owner", owner, "created", when, "created_unix", unix_time);
}

/* The command line of words; and, if there is one, the file of its input. */
static int expand(const struct sandbox *s, const json_t *words, const char *input, char ***ret,
                  char **ret_input, struct failure *f)
{
    _cleanup_(json_release) json_t *values = values_of(s, s->place->created_by);
    const struct template_scope scope = {
        .parameters = s->place->parameters, .values = values, .policy = s->words};
    _cleanup_free_ char *file = NULL;
    if (!values)
        return failure_set(f, -ENOMEM, "out of memory");
    if (input && !(file = template_word(input, &scope)))
        return failure_set(f, -ENOMEM, "out of memory");
    int r = template_words(words, &scope, ret, f);
    if (r == 0 && ret_input)
        *ret_input = take_ptr(file);
    return r;
}

static int run(const struct sandbox *s, const json_t *words, const char *input, int timeout_s,
               struct step_result *ret, struct failure *f)
{
    _cleanup_words_ char **argv = NULL;
    _cleanup_free_ char *file = NULL;
    int r = expand(s, words, input, &argv, &file, f);
    return r < 0 ? r
                 : step_run(argv, file, s->place->environment, (uint32_t)timeout_s * 1000,
                            s->signal_fd, ret, f);
}

static int timeout_of(const json_t *step)
{
    const json_t *timeout = json_object_get(step, "timeout");
    return timeout ? (int)json_integer_value(timeout) : PROFILE_STEP_TIMEOUT_S;
}

/* "docker run", or what the step calls itself. */
static void step_name(const json_t *step, char *name, size_t size)
{
    const json_t *words = json_object_get(step, "run");
    const char *what = json_string_value(json_object_get(step, "what"));
    const char *second = json_string_value(json_array_get(words, 1));
    (void)snprintf(name, size, "%s%s%s", what ? what : json_string_value(json_array_get(words, 0)),
                   !what && second && second[0] != '-' ? " " : "",
                   !what && second && second[0] != '-' ? second : "");
}

/* How a step failed. */
static int say(const char *name, const struct step_result *result, int timeout_s, struct failure *f)
{
    char words[STEP_WORDS_MAX];
    step_words(result, words);
    if (result->interrupted)
        return failure_set(f, -EINTR, "%s was interrupted", name);
    if (result->timed_out)
        return failure_set(f, -ETIMEDOUT, "%s did not end within %d s, and was ended%s%s", name,
                           timeout_s, *words ? ": " : "", words);
    return failure_set(f, -EIO, "%s: exit status %d%s%s", name, result->status, *words ? ": " : "",
                       words);
}

static bool is_good(const struct step_result *result)
{
    return !result->timed_out && !result->interrupted && result->status == 0;
}

/* --- creating ------------------------------------------------------------------------------ */

/* value: "{berthd}" … */
static bool names_value(const json_t *step, const char *value)
{
    _cleanup_free_ char *text = json_dumps(step, JSON_COMPACT | JSON_ENCODE_ANY);
    return text && strstr(text, value);
}

static bool names_berthd(const json_t *step)
{
    return names_value(step, "{berthd}");
}

bool sandbox_name_is_unknown(const struct profile *p, const struct place *place)
{
    size_t i;
    json_t *step;
    json_array_foreach(json_object_get(p->document, "create"), i, step)
    {
        if (json_object_get(step, "capture"))
            return strcmp(place->sandbox, place->given_name) == 0;
    }
    return false;
}

bool sandbox_destroys_by_name(const struct profile *p)
{
    const json_t *steps = json_object_get(p->document, "destroy");
    return steps && names_value(steps, "{name}");
}

bool sandbox_needs_berthd(const struct profile *p, bool or_may)
{
    static const char *const parts[] = {"create", "install"};
    size_t i;
    json_t *step;
    for (size_t part = 0; part < ARRAY_SIZE(parts); part++)
        json_array_foreach(json_object_get(p->document, parts[part]), i, step)
        {
            /* What is there already may do. */
            if (names_berthd(step) && (or_may || !json_object_get(step, "unless")))
                return true;
        }
    return false;
}

int sandbox_check_needs(const struct profile *p, struct failure *ret_failure)
{
    size_t i;
    json_t *value;
    json_array_foreach(json_object_get(p->document, "needs"), i, value)
    {
        _cleanup_free_ char *path = NULL;
        int r = program_find_system(json_string_value(value), &path);
        if (r < 0)
            return failure_set(ret_failure, r,
                               "%s: the provider %s is used by it, and it is not installed here",
                               json_string_value(value), profile_text(p, "name"));
    }
    return 0;
}

/* What berth-provider(5) allows. Whatever a profile or a vendor makes a path or an address of it,
 * it leads nowhere else, and no program takes it for an option. */
static bool is_plain_word(const char *text, size_t len)
{
    bool begins = true;
    for (size_t i = 0; i < len; i++) {
        bool letter = (text[i] >= 'a' && text[i] <= 'z') || (text[i] >= 'A' && text[i] <= 'Z') ||
                      (text[i] >= '0' && text[i] <= '9');
        if (!letter && (begins || !text[i] || !strchr("._:@-/", text[i])))
            return false;
        begins = text[i] == '/';
    }
    return !begins && len <= CAPTURE_MAX;
}

/* The name or ID of what the vendor has made. It goes onto command lines. */
static int take_captured(struct sandbox *s, const char *name, const struct step_result *result,
                         struct failure *f)
{
    const char *text = (const char *)result->output.data;
    size_t len = result->output.len;
    while (len > 0 && (text[len - 1] == '\n' || text[len - 1] == '\r' || text[len - 1] == ' '))
        len--;
    char shown[80];
    if (!is_plain_word(text, len))
        return failure_set(f, -EPROTO,
                           "%s: what it printed is no name of a sandbox: %s. It may have made one",
                           name, log_escape(text, len, shown, sizeof shown));
    char *sandbox = strndup(text, len);
    if (!sandbox)
        return failure_set(f, -ENOMEM, "out of memory");
    free(s->place->sandbox);
    s->place->sandbox = sandbox;
    return place_write(s->place, false, f);
}

static bool has_status(const json_t *statuses, int status)
{
    size_t i;
    json_t *value;
    json_array_foreach((json_t *)(uintptr_t)statuses, i, value)
    {
        if (json_integer_value(value) == status)
            return true;
    }
    return false;
}

/* 1: what "unless" looks for is there already. */
static int is_done(struct sandbox *s, const json_t *step, const char *name, struct failure *f)
{
    const json_t *unless = json_object_get(step, "unless");
    _cleanup_step_ struct step_result result = {0};
    if (!unless)
        return 0;
    int r = run(s, unless, NULL, timeout_of(step), &result, f);
    if (r == 0 && (result.interrupted || result.timed_out ||
                   has_status(json_object_get(step, "unless_fails"), result.status)))
        r = say(name, &result, timeout_of(step), f);
    return r < 0 ? r : result.status == 0;
}

static bool has_text(const struct buffer *b, const char *text)
{
    return b->len && memmem(b->data, b->len, text, strlen(text));
}

/* Whether it failed as "gone" or "unreached" has it. Both, when the profile has both. */
static bool failed_as(const struct profile *p, const char *name, const struct step_result *result)
{
    const json_t *failure = json_object_get(p->document, name);
    const json_t *statuses = json_object_get(failure, "status"),
                 *texts = json_object_get(failure, "text");
    bool status = !statuses, text = !texts;
    size_t i;
    json_t *value;
    if (!failure || result->timed_out || result->interrupted || result->status == 0)
        return false;
    status = status || has_status(statuses, result->status);
    json_array_foreach((json_t *)(uintptr_t)texts, i, value)
    {
        text = text || has_text(&result->errors, json_string_value(value)) ||
               has_text(&result->output, json_string_value(value));
    }
    return status && text;
}

static int run_step(struct sandbox *s, const json_t *step, struct failure *f)
{
    char name[128];
    _cleanup_step_ struct step_result result = {0};
    const char *input = json_string_value(json_object_get(step, "stdin"));
    step_name(step, name, sizeof name);
    if (s->tell)
        s->tell(s->context, name);
    int r = is_done(s, step, name, f);
    if (r != 0)
        return r < 0 ? r : 0;
    if (!s->berthd && names_berthd(step))
        return failure_set(f, -ENOENT, "%s: " SANDBOX_NO_BERTHD, name);
    bool touched = s->touched;
    s->touched = true;
    r = run(s, json_object_get(step, "run"), input, timeout_of(step), &result, f);
    if (r == -ENOENT || (r == 0 && failed_as(s->profile, "unreached", &result)))
        s->touched = touched;
    if (r < 0)
        return r;
    if (!is_good(&result))
        return say(name, &result, timeout_of(step), f);
    return json_object_get(step, "capture") ? take_captured(s, name, &result, f) : 0;
}

static int run_steps(struct sandbox *s, const char *part, struct failure *f)
{
    size_t i;
    json_t *step;
    int r = 0;
    json_array_foreach(json_object_get(s->profile->document, part), i, step)
    {
        if (r == 0)
            r = run_step(s, step, f);
    }
    return r;
}

int sandbox_create(struct sandbox *s, struct failure *ret_failure)
{
    char *url = NULL;
    int r = run_steps(s, "create", ret_failure);
    if (r == 0)
        r = run_steps(s, "install", ret_failure);
    if (r == 0)
        r = sandbox_url(s, &url, ret_failure);
    if (r < 0)
        return r;
    free(s->place->url);
    s->place->url = url;
    return place_write(s->place, false, ret_failure);
}

/* --- destroying ---------------------------------------------------------------------------- */

int sandbox_destroy(struct sandbox *s, bool *ret_gone, struct failure *ret_failure)
{
    size_t i;
    json_t *step;
    int r = 0;
    *ret_gone = false;
    json_array_foreach(json_object_get(s->profile->document, "destroy"), i, step)
    {
        char name[128];
        _cleanup_step_ struct step_result result = {0};
        if (r < 0)
            break;
        step_name(step, name, sizeof name);
        if (s->tell)
            s->tell(s->context, name);
        r = is_done(s, step, name, ret_failure);
        if (r != 0) {
            r = r < 0 ? r : 0;
            continue;
        }
        r = run(s, json_object_get(step, "run"), json_string_value(json_object_get(step, "stdin")),
                timeout_of(step), &result, ret_failure);
        if (r < 0 || is_good(&result))
            continue;
        if (failed_as(s->profile, "gone", &result))
            *ret_gone = true;
        else
            r = say(name, &result, timeout_of(step), ret_failure);
    }
    return r;
}

/* --- looking ------------------------------------------------------------------------------- */

int sandbox_status(struct sandbox *s, const char **ret_state, char ret_words[200],
                   struct failure *ret_failure)
{
    const json_t *status = json_object_get(s->profile->document, "status");
    _cleanup_step_ struct step_result result = {0};
    *ret_state = NULL;
    ret_words[0] = '\0';
    if (!status)
        return failure_set(ret_failure, -EOPNOTSUPP, "the provider %s cannot tell how a sandbox is",
                           profile_text(s->profile, "name"));
    int r =
        run(s, json_object_get(status, "run"), NULL, PROFILE_STEP_TIMEOUT_S, &result, ret_failure);
    if (r < 0)
        return r;
    if (failed_as(s->profile, "gone", &result)) {
        *ret_state = "gone";
        return 0;
    }
    if (!is_good(&result))
        return say("status", &result, PROFILE_STEP_TIMEOUT_S, ret_failure);
    char line[STEP_LINE_MAX] = "";
    (void)step_first_line(&result, line);
    (void)log_escape(line, strlen(line), ret_words, 200);
    *ret_state = json_string_value(json_object_get(json_object_get(status, "states"), ret_words));
    return 0;
}

static bool is_listed_name(const char *name, size_t len)
{
    if (len == 0 || len > CAPTURE_MAX || name[0] == '-')
        return false;
    for (size_t i = 0; i < len; i++)
        if (name[i] <= ' ' || name[i] > '~')
            return false;
    return true;
}

static int each_line(const struct buffer *output, sandbox_each_fn *each, void *context,
                     struct failure *f)
{
    size_t count = 0;
    for (size_t at = 0; at < output->len;) {
        const uint8_t *line = output->data + at;
        const uint8_t *end = memchr(line, '\n', output->len - at);
        size_t len = end ? (size_t)(end - line) : output->len - at;
        char name[CAPTURE_MAX + 1], shown[80];
        at += len + 1;
        while (len > 0 && (line[len - 1] == '\r' || line[len - 1] == ' '))
            len--;
        if (len == 0)
            continue;
        if (!is_listed_name((const char *)line, len) || ++count > SANDBOX_LIST_MAX)
            return failure_set(f, -EPROTO, "the list has what is no name of a sandbox: %s",
                               log_escape(line, len, shown, sizeof shown));
        memcpy(name, line, len);
        name[len] = '\0';
        int r = each(context, name);
        if (r < 0)
            return failure_set(f, r, "%s", strerror(-r));
    }
    return 0;
}

int sandbox_list(const struct profile *p, const json_t *parameters, sandbox_each_fn *each,
                 void *context, struct failure *ret_failure)
{
    const json_t *list = json_object_get(p->document, "list");
    _cleanup_place_ struct place place = {0};
    _cleanup_step_ struct step_result result = {0};
    struct sandbox s = {.profile = p, .place = &place, .signal_fd = -1};
    if (!list)
        return failure_set(ret_failure, -EOPNOTSUPP, "the provider %s cannot list its sandboxes",
                           profile_text(p, "name"));
    place.sandbox = strdup("");
    place.given_name = strdup("");
    place.parameters = json_deep_copy(parameters);
    int r = place.sandbox && place.given_name && place.parameters
                ? sandbox_owner(&place.created_by, ret_failure)
                : failure_set(ret_failure, -ENOMEM, "out of memory");
    if (r == 0)
        r = run(&s, json_object_get(list, "run"), NULL, PROFILE_STEP_TIMEOUT_S, &result,
                ret_failure);
    if (r == 0 && !is_good(&result))
        r = say("list", &result, PROFILE_STEP_TIMEOUT_S, ret_failure);
    /* A list that was cut would make sandboxes look as if they were gone. */
    if (r == 0 && result.output.len == STEP_OUTPUT_MAX)
        r = failure_set(ret_failure, -EFBIG, "the list is too long");
    return r < 0 ? r : each_line(&result.output, each, context, ret_failure);
}

/* --- its URL --------------------------------------------------------------------------------- */

static int add_quoted(struct buffer *b, const char *word)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                "_./:=@%+,-";
    if (*word && strspn(word, plain) == strlen(word))
        return buffer_append(b, word, strlen(word));
    int r = buffer_append(b, "'", 1);
    for (; r == 0 && *word; word++)
        r = *word == '\'' ? buffer_append(b, "'\\''", 4) : buffer_append(b, word, 1);
    return r == 0 ? buffer_append(b, "'", 1) : r;
}

static int join(char **words, const char *before, struct buffer *b)
{
    int r = buffer_append(b, before, strlen(before));
    for (char **word = words; r == 0 && *word; word++) {
        if (word != words)
            r = buffer_append(b, " ", 1);
        if (r == 0)
            r = add_quoted(b, *word);
    }
    return r == 0 ? buffer_append(b, "", 1) : r;
}

static int joined(const struct sandbox *s, const json_t *words, const char *before, char **ret,
                  struct failure *f)
{
    _cleanup_words_ char **argv = NULL;
    _cleanup_buffer_ struct buffer text = {0};
    int r = expand(s, words, NULL, &argv, NULL, f);
    if (r == 0 && join(argv, before, &text) < 0)
        r = failure_set(f, -ENOMEM, "out of memory");
    if (r == 0)
        *ret = (char *)take_ptr(text.data);
    return r;
}

/* "exec:", and the variables that the command is to have, since whoever connects later may have
 * others. */
static int add_environment(const json_t *environment, struct buffer *b)
{
    const char *name;
    json_t *value;
    int r = buffer_printf(b, json_object_size(environment) ? "exec:env" : "exec:");
    json_object_foreach((json_t *)(uintptr_t)environment, name, value)
    {
        if (r == 0 && json_is_null(value))
            r = buffer_printf(b, " -u %s", name);
    }
    json_object_foreach((json_t *)(uintptr_t)environment, name, value)
    {
        _cleanup_free_ char *word = NULL;
        if (r < 0 || json_is_null(value))
            continue;
        if (asprintf(&word, "%s=%s", name, json_string_value(value)) < 0) {
            word = NULL;
            return -ENOMEM;
        }
        r = buffer_append(b, " ", 1);
        if (r == 0)
            r = add_quoted(b, word);
    }
    if (r == 0 && json_object_size(environment))
        r = buffer_append(b, " ", 1);
    return r == 0 ? buffer_append_u8(b, 0) : r;
}

int sandbox_url(const struct sandbox *s, char **ret, struct failure *ret_failure)
{
    _cleanup_free_ char *url = NULL;
    _cleanup_buffer_ struct buffer before = {0};
    if (add_environment(s->place->environment, &before) < 0)
        return failure_set(ret_failure, -ENOMEM, "out of memory");
    int r = joined(s, json_object_get(s->profile->document, "connect"), (const char *)before.data,
                   &url, ret_failure);
    if (r < 0)
        return r;
    if (strlen(url) > STREAM_URL_MAX)
        return failure_set(ret_failure, -E2BIG,
                           "the command that connects to it has more than %d bytes",
                           STREAM_URL_MAX);
    *ret = take_ptr(url);
    return 0;
}

int sandbox_show(const struct sandbox *s, const json_t *words, char **ret,
                 struct failure *ret_failure)
{
    return joined(s, words, "", ret, ret_failure);
}

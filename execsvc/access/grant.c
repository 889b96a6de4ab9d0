#include "access/grant.h"

#include <errno.h>
#include <jansson.h>
#include <sha2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/log.h"

static const char digest_prefix[] = "sha256:";
static const char *const certificate_prefixes[] = {"subject:", "DNS:", "email:", "URI:"};

static int no_memory(struct failure *f)
{
    return failure_set(f, -ENOMEM, "out of memory");
}

/* --- words ------------------------------------------------------------------------------------ */

bool grant_token_digest(struct bytes token, uint8_t ret[GRANT_TOKEN_DIGEST_SIZE])
{
    SHA2_CTX context;
    SHA256Init(&context);
    SHA256Update(&context, token.data, token.len);
    SHA256Final(ret, &context);
    explicit_bzero(&context, sizeof context);
    return true;
}

bool grant_id_is_valid(const char *id)
{
    static const char letters[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._@-";
    size_t len = strlen(id);
    return len > 0 && len <= GRANT_ID_MAX && strspn(id, letters) == len;
}

static int verb_of(const char *word, size_t len, unsigned *ret)
{
    for (enum wire_verb v = WIRE_VERB_READ; v < WIRE_VERB_COUNT; v++) {
        const char *name = wire_verb_name(v);
        if (strlen(name) == len && memcmp(name, word, len) == 0) {
            *ret = 1u << v;
            return 0;
        }
    }
    return -EINVAL;
}

int grant_verbs_parse(const char *words, unsigned *ret_verbs, struct failure *ret_failure)
{
    unsigned verbs = 0;
    while (*words) {
        size_t len = strcspn(words, ",");
        unsigned verb;
        if (verb_of(words, len, &verb) < 0)
            return failure_set(ret_failure, -EINVAL,
                               "verbs are read, write, exec and admin, with commas between");
        verbs |= verb;
        words += len + (words[len] == ',');
    }
    if (!verbs)
        return failure_set(ret_failure, -EINVAL, "no verb: name read, write, exec or admin");
    *ret_verbs = verbs;
    return 0;
}

const char *grant_verbs_text(unsigned verbs, char *out, size_t size)
{
    size_t used = 0;
    out[0] = '\0';
    for (enum wire_verb v = WIRE_VERB_READ; v < WIRE_VERB_COUNT && used < size; v++)
        if (verbs & (1u << v))
            used += (size_t)snprintf(out + used, size - used, "%s%s", used ? "," : "",
                                     wire_verb_name(v));
    return out;
}

/* Never tries more than one star anew: a name costs at most the product of two lengths. */
bool grant_pattern_matches(const char *pattern, struct bytes text)
{
    const char *after_star = NULL;
    size_t i = 0, star_at = 0;
    while (i < text.len) {
        const char *p = *pattern == '\\' && pattern[1] ? pattern + 1 : pattern;
        if (*pattern == '*') {
            after_star = ++pattern;
            star_at = i;
        } else if (*p && (uint8_t)*p == text.data[i]) {
            pattern = p + 1;
            i++;
        } else if (after_star) {
            pattern = after_star;
            i = ++star_at;
        } else {
            return false;
        }
    }
    while (*pattern == '*')
        pattern++;
    return *pattern == '\0';
}

/* --- reading ---------------------------------------------------------------------------------- */

static int text_of(json_t *object, const char *key, const char **ret, struct failure *f)
{
    json_t *value = json_object_get(object, key);
    const char *text = json_string_value(value);
    *ret = NULL;
    if (!value)
        return 0;
    if (!text || !*text || strlen(text) != json_string_length(value))
        return failure_set(f, -EINVAL, "\"%s\" must be a string that is not empty", key);
    *ret = text;
    return 0;
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static int read_token(json_t *object, struct grant *g, struct failure *f)
{
    const char *text;
    int r = text_of(object, "token", &text, f);
    if (r < 0 || !text)
        return r;
    size_t skip = sizeof digest_prefix - 1;
    bool good = strncmp(text, digest_prefix, skip) == 0 &&
                strlen(text + skip) == (size_t)2 * GRANT_TOKEN_DIGEST_SIZE;
    for (size_t i = 0; good && i < GRANT_TOKEN_DIGEST_SIZE; i++) {
        int high = hex_digit(text[skip + 2 * i]), low = hex_digit(text[skip + 2 * i + 1]);
        good = high >= 0 && low >= 0;
        g->token[i] = (uint8_t)(high * 16 + low);
    }
    g->has_token = good;
    return good ? 0
                : failure_set(f, -EINVAL,
                              "\"token\" must be sha256: and 64 digits 0-9a-f, as `berth token "
                              "create` writes it; a token itself does not belong here");
}

static int read_certificate(json_t *object, struct grant *g, struct failure *f)
{
    const char *text;
    int r = text_of(object, "certificate", &text, f);
    if (r < 0 || !text)
        return r;
    for (size_t i = 0; i < ARRAY_SIZE(certificate_prefixes); i++) {
        size_t len = strlen(certificate_prefixes[i]);
        if (strncmp(text, certificate_prefixes[i], len) == 0 && text[len]) {
            g->certificate = strdup(text);
            return g->certificate ? 0 : no_memory(f);
        }
    }
    return failure_set(
        f, -EINVAL, "\"certificate\" must begin with subject:, DNS:, email: or URI:, and a name");
}

static int read_user(json_t *object, struct grant *g, struct failure *f)
{
    json_t *value = json_object_get(object, "user");
    json_int_t number = json_is_integer(value) ? json_integer_value(value) : -1;
    if (!value)
        return 0;
    if (number < 0 || number >= UINT32_MAX)
        return failure_set(f, -EINVAL, "\"user\" must be a user ID, a number");
    g->user = (uid_t)number;
    g->has_user = true;
    return 0;
}

static int read_loopback(json_t *object, struct grant *g, struct failure *f)
{
    json_t *value = json_object_get(object, "loopback");
    g->loopback = json_is_true(value);
    return !value || g->loopback ? 0
                                 : failure_set(f, -EINVAL, "\"loopback\" can be true, or left out");
}

static int read_patterns(json_t *object, struct grant *g, struct failure *f)
{
    json_t *array = json_object_get(object, "workspaces");
    size_t count = json_is_array(array) ? json_array_size(array) : 0;
    if (count == 0 || count > GRANT_PATTERNS_MAX)
        return failure_set(f, -EINVAL,
                           "\"workspaces\" must be an array of 1 to %d patterns of thread IDs, for "
                           "example [\"*\"]",
                           GRANT_PATTERNS_MAX);
    g->patterns = calloc(count, sizeof *g->patterns);
    if (!g->patterns)
        return no_memory(f);
    for (size_t i = 0; i < count; i++) {
        json_t *value = json_array_get(array, i);
        const char *text = json_string_value(value);
        if (!text || !*text || json_string_length(value) > GRANT_PATTERN_MAX ||
            strlen(text) != json_string_length(value))
            return failure_set(f, -EINVAL,
                               "\"workspaces\": pattern %zu is not a string of 1 to %d "
                               "bytes",
                               i + 1, GRANT_PATTERN_MAX);
        g->everything = g->everything || strcmp(text, "*") == 0;
        g->patterns[g->pattern_count] = strdup(text);
        if (!g->patterns[g->pattern_count++])
            return no_memory(f);
    }
    return 0;
}

static int read_verbs(json_t *object, struct grant *g, struct failure *f)
{
    json_t *array = json_object_get(object, "verbs");
    json_t *value;
    size_t i;
    unsigned verb = 0;
    bool good = json_is_array(array) && json_array_size(array) > 0;
    json_array_foreach(array, i, value)
    {
        const char *text = json_string_value(value);
        good = good && text && verb_of(text, json_string_length(value), &verb) == 0;
        g->verbs |= verb;
    }
    return good ? 0
                : failure_set(f, -EINVAL,
                              "\"verbs\" must be an array of \"read\", \"write\", \"exec\" and "
                              "\"admin\", at least one");
}

static int read_expiry(json_t *object, struct grant *g, struct failure *f)
{
    const char *text;
    struct tm tm = {0};
    int r = text_of(object, "expires", &text, f);
    if (r < 0 || !text)
        return r;
    const char *end = strptime(text, "%Y-%m-%dT%H:%M:%SZ", &tm);
    g->expires = end && !*end ? timegm(&tm) : -1;
    if (g->expires <= 0)
        return failure_set(f, -EINVAL,
                           "\"expires\" must be a time in UTC, for example 2027-01-31T12:00:00Z");
    return 0;
}

static int check_keys(json_t *object, struct failure *f)
{
    static const char *const known[] = {"id",         "token", "certificate", "user", "loopback",
                                        "workspaces", "verbs", "expires",     "note"};
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value)
    {
        size_t i = 0;
        while (i < ARRAY_SIZE(known) && strcmp(known[i], key) != 0)
            i++;
        if (i == ARRAY_SIZE(known)) {
            char shown[80];
            return failure_set(f, -EINVAL,
                               "unknown key %s. The keys are: id, token, certificate, user, "
                               "loopback, workspaces, verbs, expires, note",
                               log_escape(key, strlen(key), shown, sizeof shown));
        }
    }
    return 0;
}

static int read_object(json_t *object, struct grant *g, struct failure *f)
{
    const char *id, *note;
    int r = check_keys(object, f);
    if (r < 0 || (r = text_of(object, "id", &id, f)) < 0 ||
        (r = text_of(object, "note", &note, f)) < 0 || (r = read_token(object, g, f)) < 0 ||
        (r = read_certificate(object, g, f)) < 0 || (r = read_user(object, g, f)) < 0 ||
        (r = read_loopback(object, g, f)) < 0 || (r = read_patterns(object, g, f)) < 0 ||
        (r = read_verbs(object, g, f)) < 0 || (r = read_expiry(object, g, f)) < 0)
        return r;
    if (!id || !grant_id_is_valid(id))
        return failure_set(f, -EINVAL, "\"id\" must be 1 to %d letters, digits, or . _ @ -",
                           GRANT_ID_MAX);
    if (!g->has_token && !g->certificate && !g->has_user && !g->loopback)
        return failure_set(
            f, -EINVAL, "one of \"token\", \"certificate\", \"user\" and \"loopback\" is needed");
    if ((g->has_user || g->loopback) &&
        (g->has_token || g->certificate || (g->has_user && g->loopback)))
        return failure_set(f, -EINVAL, "\"user\" or \"loopback\" goes with no other credential");
    (void)snprintf(g->id, sizeof g->id, "%s", id);
    g->note = note ? strdup(note) : NULL;
    return note && !g->note ? no_memory(f) : 0;
}

int grant_parse(struct bytes line, struct grant **ret, struct failure *ret_failure)
{
    _cleanup_grant_ struct grant *g = calloc(1, sizeof *g);
    if (!g)
        return no_memory(ret_failure);
    g->refs = 1;
    json_t *object = json_loadb((const char *)line.data, line.len, JSON_REJECT_DUPLICATES, NULL);
    if (!json_is_object(object)) {
        json_decref(object);
        return failure_set(ret_failure, -EINVAL,
                           "this is not a JSON object on one line. If it is a token: the service "
                           "keeps hashes only; make one with `berth token create`");
    }
    int r = read_object(object, g, ret_failure);
    json_decref(object);
    if (r < 0)
        return r;
    *ret = take_ptr(g);
    return 0;
}

/* --- writing ---------------------------------------------------------------------------------- */

static int put_strings(json_t *object, const struct grant *g)
{
    json_t *patterns = json_array(), *verbs = json_array();
    int r = json_object_set_new(object, "workspaces", patterns);
    r |= json_object_set_new(object, "verbs", verbs);
    for (size_t i = 0; r == 0 && i < g->pattern_count; i++)
        r = json_array_append_new(patterns, json_string(g->patterns[i]));
    for (enum wire_verb v = WIRE_VERB_READ; r == 0 && v < WIRE_VERB_COUNT; v++)
        if (g->verbs & (1u << v))
            r = json_array_append_new(verbs, json_string(wire_verb_name(v)));
    return r;
}

static int put_credentials(json_t *object, const struct grant *g)
{
    char text[sizeof digest_prefix + (size_t)2 * GRANT_TOKEN_DIGEST_SIZE];
    int r = 0;
    (void)snprintf(text, sizeof text, "%s", digest_prefix);
    for (size_t i = 0; i < GRANT_TOKEN_DIGEST_SIZE; i++)
        (void)snprintf(text + sizeof digest_prefix - 1 + 2 * i, 3, "%02x", g->token[i]);
    if (g->has_token)
        r = json_object_set_new(object, "token", json_string(text));
    if (r == 0 && g->certificate)
        r = json_object_set_new(object, "certificate", json_string(g->certificate));
    if (r == 0 && g->has_user)
        r = json_object_set_new(object, "user", json_integer(g->user));
    if (r == 0 && g->loopback)
        r = json_object_set_new(object, "loopback", json_true());
    return r;
}

int grant_format(const struct grant *g, char **ret)
{
    json_t *object = json_object();
    int r = json_object_set_new(object, "id", json_string(g->id));
    if (r == 0)
        r = put_credentials(object, g);
    if (r == 0)
        r = put_strings(object, g);
    if (r == 0 && g->expires) {
        char text[32];
        struct tm tm;
        (void)strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&g->expires, &tm));
        r = json_object_set_new(object, "expires", json_string(text));
    }
    if (r == 0 && g->note)
        r = json_object_set_new(object, "note", json_string(g->note));
    char *text = r == 0 ? json_dumps(object, JSON_COMPACT) : NULL;
    json_decref(object);
    if (!text)
        return -ENOMEM;
    *ret = text;
    return 0;
}

/* --- life ------------------------------------------------------------------------------------- */

struct grant *grant_new_whole(const char *id)
{
    struct grant *g = calloc(1, sizeof *g);
    if (!g)
        return NULL;
    g->refs = 1;
    g->everything = true;
    g->verbs = GRANT_VERBS_ALL;
    (void)snprintf(g->id, sizeof g->id, "%s", id);
    return g;
}

struct grant *grant_new_issued(struct grant *line, struct bytes thread_id, uint32_t slot,
                               unsigned verbs, time_t expires)
{
    struct grant *g = grant_new_whole(line->id);
    if (!g)
        return NULL;
    g->everything = false;
    g->verbs = verbs & line->verbs;
    g->expires = line->expires && (!expires || line->expires < expires) ? line->expires : expires;
    g->issuer = grant_ref(line);
    g->only = malloc(thread_id.len);
    if (!g->only) {
        grant_unref(g);
        return NULL;
    }
    memcpy(g->only, thread_id.data, thread_id.len);
    g->only_len = thread_id.len;
    g->only_slot = slot;
    return g;
}

struct grant *grant_ref(struct grant *grant)
{
    grant->refs++;
    return grant;
}

void grant_unref(struct grant *g)
{
    if (!g || --g->refs > 0)
        return;
    for (size_t i = 0; i < g->pattern_count; i++)
        free(g->patterns[i]);
    free(g->patterns);
    free(g->certificate);
    free(g->note);
    free(g->only);
    grant_unref(g->issuer);
    free(g);
}

/* --- questions -------------------------------------------------------------------------------- */

static bool same_text(const char *a, const char *b)
{
    return a == b || (a && b && strcmp(a, b) == 0);
}

bool grant_equal(const struct grant *a, const struct grant *b)
{
    if (strcmp(a->id, b->id) != 0 || a->has_token != b->has_token ||
        memcmp(a->token, b->token, sizeof a->token) != 0 ||
        !same_text(a->certificate, b->certificate) || a->has_user != b->has_user ||
        a->user != b->user || a->loopback != b->loopback || a->verbs != b->verbs ||
        a->expires != b->expires || a->pattern_count != b->pattern_count)
        return false;
    for (size_t i = 0; i < a->pattern_count; i++)
        if (strcmp(a->patterns[i], b->patterns[i]) != 0)
            return false;
    return true;
}

bool grant_covers(const struct grant *g, struct bytes thread_id)
{
    if (g->issuer)
        return bytes_equal(bytes_of(g->only, g->only_len), thread_id) &&
               grant_covers(g->issuer, thread_id);
    bool covers = g->everything;
    for (size_t i = 0; !covers && i < g->pattern_count; i++)
        covers = grant_pattern_matches(g->patterns[i], thread_id);
    return covers;
}

bool grant_is_over(const struct grant *g, time_t now)
{
    return g->expires != 0 && now >= g->expires;
}

#include "provider/enforce.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "confine/policy.h"
#include "provider/template.h"

#define MIB ((json_int_t)1024 * 1024)

static void json_release(json_t **object)
{
    json_decref(*object);
}

void enforced_release(struct enforced *e)
{
    json_decref(e->words);
    buffer_release(&e->inside);
    *e = (struct enforced){0};
}

static bool is_inside(const json_t *policy, const char *field)
{
    size_t i;
    json_t *value;
    json_array_foreach(json_object_get(policy, "inside"), i, value)
    {
        if (strcmp(json_string_value(value), field) == 0)
            return true;
    }
    return false;
}

/* The vendor's words for a field, or for one of its words. */
static const json_t *vendor_words(const json_t *policy, const char *field, const char *word)
{
    const json_t *value = json_object_get(policy, field);
    return word ? json_object_get(value, word) : value;
}

const char *enforce_who(const struct profile *p, const char *field, const char *word)
{
    const json_t *policy = json_object_get(p->document, "policy");
    bool inside = is_inside(policy, field), vendor = vendor_words(policy, field, word);
    return vendor && inside ? "vendor, inside" : vendor ? "vendor" : inside ? "inside" : "refused";
}

/* --- one field ----------------------------------------------------------------------- */

/* As a command line takes it: bytes, seconds, a count, processors. */
static json_t *value_text(const json_t *limits, const char *field)
{
    const json_t *value = json_object_get(limits, field);
    char text[64];
    if (json_is_integer(value))
        (void)snprintf(text, sizeof text, "%lld", (long long)json_integer_value(value));
    else
        (void)snprintf(text, sizeof text, "%g", json_number_value(value));
    return json_string(text);
}

static int add_words(struct enforced *e, const json_t *words, const json_t *values)
{
    const struct template_scope scope = {.values = values};
    size_t i;
    json_t *word;
    json_array_foreach((json_t *)(uintptr_t)words, i, word)
    {
        _cleanup_free_ char *text = template_word(json_string_value(word), &scope);
        if (!text || json_array_append_new(e->words, json_string(text)) < 0)
            return -ENOMEM;
    }
    return 0;
}

static int add_limit(struct enforced *e, const json_t *words, const json_t *limits,
                     const char *field)
{
    _cleanup_(json_release) json_t *values = json_object();
    json_int_t mib = json_integer_value(json_object_get(limits, field)) / MIB;
    char text[32];
    (void)snprintf(text, sizeof text, "%lld", (long long)(mib > 0 ? mib : 1));
    if (json_object_set_new(values, "value", value_text(limits, field)) < 0 ||
        json_object_set_new(values, "value_mib", json_string(text)) < 0)
        return -ENOMEM;
    return add_words(e, words, values);
}

static int refuse(const struct profile *p, const char *field, const char *word, struct failure *f)
{
    return failure_set(f, -EOPNOTSUPP,
                       "%s%s%s: neither the provider %s nor the berthd inside holds this; leave it "
                       "out, or take another provider (`berth provider check %s` says who holds "
                       "what)",
                       field, word ? ": " : "", word ? word : "", profile_text(p, "name"),
                       profile_text(p, "name"));
}

/* given: as it was written, for the berthd inside; words: what the vendor takes for it, or NULL. */
static int add_field(const struct profile *p, const char *field, const char *word, json_t *given,
                     json_t *inside, bool *ret_vendor, struct failure *f)
{
    const json_t *policy = json_object_get(p->document, "policy");
    bool in = is_inside(policy, field);
    *ret_vendor = vendor_words(policy, field, word);
    if (!in && !*ret_vendor)
        return refuse(p, field, word, f);
    return in && json_object_set(inside, field, given) < 0
               ? failure_set(f, -ENOMEM, "out of memory")
               : 0;
}

static int add_choice(const struct profile *p, const char *field, json_t *given, json_t *inside,
                      struct enforced *e, struct failure *f)
{
    const json_t *policy = json_object_get(p->document, "policy");
    const char *word = json_string_value(given);
    bool vendor;
    if (!word)
        word = json_object_iter_key(json_object_iter(given));
    int r = add_field(p, field, word, given, inside, &vendor, f);
    if (r == 0 && vendor && add_words(e, vendor_words(policy, field, word), NULL) < 0)
        r = failure_set(f, -ENOMEM, "out of memory");
    return r;
}

static int add_limits(const struct profile *p, json_t *given, const json_t *checked, json_t *inside,
                      struct enforced *e, struct failure *f)
{
    const json_t *policy = json_object_get(p->document, "policy");
    const json_t *limits = json_object_get(checked, "limits");
    json_t *kept = json_object();
    const char *field;
    json_t *value;
    int r = json_object_set_new(inside, "limits", kept) < 0
                ? failure_set(f, -ENOMEM, "out of memory")
                : 0;
    json_object_foreach(given, field, value)
    {
        bool vendor;
        if (r < 0)
            break;
        if (json_is_null(value))
            continue;
        r = add_field(p, field, NULL, value, kept, &vendor, f);
        if (r == 0 && vendor && add_limit(e, vendor_words(policy, field, NULL), limits, field) < 0)
            r = failure_set(f, -ENOMEM, "out of memory");
    }
    if (r == 0 && json_object_size(kept) == 0)
        (void)json_object_del(inside, "limits");
    return r;
}

/* --- the document --------------------------------------------------------------------- */

/* Where a document says nothing of the network, the berthd inside lets commands have none, and the
 * sandbox needs none. */
static int add_default_network(const struct profile *p, const json_t *document, struct enforced *e,
                               struct failure *f)
{
    const json_t *policy = json_object_get(p->document, "policy");
    const json_t *network = json_object_get(document, "network");
    if (network && !json_is_null(network))
        return 0;
    return add_words(e, vendor_words(policy, "network", "none"), NULL) < 0
               ? failure_set(f, -ENOMEM, "out of memory")
               : 0;
}

static int look(const struct profile *p, json_t *document, const json_t *checked, json_t *inside,
                struct enforced *e, struct failure *f)
{
    const char *field;
    json_t *value;
    bool vendor;
    int r = 0;
    json_object_foreach(document, field, value)
    {
        if (r < 0 || json_is_null(value))
            continue;
        if (strcmp(field, "limits") == 0)
            r = add_limits(p, value, checked, inside, e, f);
        else if (strcmp(field, "network") == 0 || strcmp(field, "filesystem") == 0)
            r = add_choice(p, field, value, inside, e, f);
        else if (strcmp(field, "user") == 0) /* there is but one */
            continue;
        else if (strcmp(field, "require") == 0 && json_array_size(value) == 0)
            continue;
        else
            r = add_field(p, field, NULL, value, inside, &vendor, f);
    }
    return r;
}

int enforce_policy(const struct profile *p, struct bytes document, struct enforced *ret,
                   struct failure *ret_failure)
{
    _cleanup_enforced_ struct enforced e = {.words = json_array()};
    _cleanup_(json_release) json_t *inside = json_object(), *given = NULL, *checked = NULL;
    _cleanup_policy_ struct policy policy = {0};
    _cleanup_free_ char *text = NULL;
    int r = e.words && inside ? 0 : failure_set(ret_failure, -ENOMEM, "out of memory");
    if (r == 0 && document.len) {
        r = policy_parse(document, NULL, &policy, ret_failure);
        if (r < 0)
            return r;
        given = json_loadb((const char *)document.data, document.len, 0, NULL);
        checked = policy_to_json(&policy);
        r = given && checked ? look(p, given, checked, inside, &e, ret_failure)
                             : failure_set(ret_failure, -ENOMEM, "out of memory");
    }
    if (r == 0)
        r = add_default_network(p, given, &e, ret_failure);
    if (r == 0 && json_object_size(inside) > 0) {
        text = json_dumps(inside, JSON_COMPACT);
        if (!text || buffer_append(&e.inside, text, strlen(text)) < 0)
            r = failure_set(ret_failure, -ENOMEM, "out of memory");
    }
    if (r < 0)
        return r;
    *ret = e;
    e = (struct enforced){0};
    return 0;
}

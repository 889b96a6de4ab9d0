#include "cli/orphans.h"

#include <errno.h>
#include <string.h>

#include "base/cleanup.h"

static void json_release(json_t **object)
{
    json_decref(*object);
}

struct search {
    const struct place *without;
    json_t *known;  /* names of sandboxes that places have: keys */
    json_t *listed; /* names that the provider has */
    struct failure *unsure;
};

static int add_listed(void *context, const char *name)
{
    struct search *s = context;
    return json_array_append_new(s->listed, json_string(name)) < 0 ? -ENOMEM : 0;
}

/* Its maker has not been told what it is called, and may be about to be. */
static bool may_be_any(const struct place *p)
{
    _cleanup_profile_ struct profile profile = {0};
    struct failure f;
    if (p->state != PLACE_CREATING || strcmp(p->sandbox, p->given_name) != 0)
        return false;
    return profile_find(p->provider, &profile, &f) < 0 || sandbox_name_is_unknown(&profile, p);
}

/* Those of other profiles as well: two may lead to one system. */
static int add_known(void *context, struct place *p)
{
    struct search *s = context;
    if (s->without && strcmp(p->name, s->without->name) == 0)
        return 0;
    if (!*s->unsure->text && may_be_any(p))
        (void)failure_set(
            s->unsure, -EBUSY,
            "%s: its sandbox is being made (%s), and one of these may be it: wait, or "
            "`berth rm` it first if what made it has been killed",
            p->name, p->provider);
    return json_object_set_new(s->known, p->sandbox, json_true()) < 0 ||
                   json_object_set_new(s->known, p->given_name, json_true()) < 0
               ? -ENOMEM
               : 0;
}

static int compare(const struct search *s, json_t **ret_found, struct failure *f)
{
    _cleanup_(json_release) json_t *found = json_array();
    size_t i;
    json_t *name;
    json_array_foreach(s->listed, i, name)
    {
        if (!json_object_get(s->known, json_string_value(name)) &&
            json_array_append(found, name) < 0)
            return failure_set(f, -ENOMEM, "out of memory");
    }
    *ret_found = take_ptr(found);
    return 0;
}

int orphans_find(const struct profile *p, const json_t *parameters, const struct place *without,
                 json_t **ret_found, struct failure *ret_unsure, struct failure *ret_failure)
{
    _cleanup_(json_release) json_t *known = json_object(), *listed = json_array();
    struct search s = {.without = without, .known = known, .listed = listed, .unsure = ret_unsure};
    struct failure why;
    *ret_unsure = (struct failure){0};
    /* The provider's first: what is made meanwhile has a place before it is there. */
    int r = sandbox_list(p, parameters, add_listed, &s, ret_failure);
    if (r < 0)
        return r;
    r = places_list_all(add_known, &s, &why);
    if (r == -EBADMSG)
        return failure_set(ret_failure, r,
                           "which sandboxes belong to no workspace is not known while the file of "
                           "one cannot be read: %s",
                           why.text);
    return r < 0 ? failure_set(ret_failure, r, "%s", why.text)
                 : compare(&s, ret_found, ret_failure);
}

int orphans_destroy(const struct profile *p, json_t *parameters, const char *name,
                    struct failure *ret_failure)
{
    _cleanup_place_ struct place place = {0};
    int r = sandbox_new_place(p, bytes_of_string("orphan"), parameters, &place, ret_failure);
    if (r < 0)
        return r;
    free(place.sandbox);
    free(place.given_name);
    place.sandbox = strdup(name);
    place.given_name = strdup(name);
    if (!place.sandbox || !place.given_name)
        return failure_set(ret_failure, -ENOMEM, "out of memory");
    struct sandbox s = {.profile = p, .place = &place, .signal_fd = -1};
    bool gone;
    return sandbox_destroy(&s, &gone, ret_failure);
}

int orphans_check(const struct profile *profile, const struct place *p, struct failure *ret_failure)
{
    _cleanup_(json_release) json_t *found = NULL;
    struct failure unsure, why;
    if (!sandbox_name_is_unknown(profile, p) || sandbox_destroys_by_name(profile))
        return 0;
    int r = orphans_find(profile, p->parameters, p, &found, &unsure, &why);
    if (r == 0 && json_array_size(found) == 0)
        return 0;
    if (r == 0)
        return failure_set(ret_failure, -EUCLEAN,
                           "what the provider calls its sandbox was never learned, and it has one "
                           "that belongs to no workspace (%s): see `berth provider orphans %s`",
                           json_string_value(json_array_get(found, 0)), p->provider);
    return failure_set(ret_failure, -EUCLEAN,
                       "what the provider calls its sandbox was never learned; one may be there: "
                       "see `berth provider orphans %s`, or ask the provider (%s)",
                       p->provider, why.text);
}

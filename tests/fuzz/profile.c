/* Any bytes as a provider's profile: refused with a sentence, or such that all its command lines
 * can be made of it, none of which has a {NAME} left. */
#include <assert.h>
#include <string.h>

#include "base/cleanup.h"
#include "provider/profile.h"
#include "provider/template.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void expand(const json_t *words, const struct template_scope *scope)
{
    struct failure f = {0};
    _cleanup_words_ char **argv = NULL;
    if (!json_is_array(words) || template_words(words, scope, &argv, &f) < 0)
        return;
    for (char **word = argv; *word; word++) {
        struct template_name name;
        const char *at = *word;
        assert(!template_next(&at, &name));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const parts[] = {"create", "install", "destroy"};
    struct failure f = {0};
    _cleanup_profile_ struct profile p = {0};
    const struct template_scope scope = {0};
    size_t i;
    json_t *step;
    int r = profile_parse(bytes_of(data, size), &p, &f);
    if (r < 0) {
        assert(f.error == r && f.text[0]);
        return 0;
    }
    assert(profile_name_is_valid(profile_text(&p, "name")));
    expand(json_object_get(p.document, "connect"), &scope);
    for (size_t part = 0; part < ARRAY_SIZE(parts); part++)
        json_array_foreach(json_object_get(p.document, parts[part]), i, step)
        {
            expand(json_object_get(step, "run"), &scope);
        }
    return 0;
}

/* Any bytes as a policy: refused, or read as what is written and read again as the same. */
#include <assert.h>
#include <string.h>

#include "base/cleanup.h"
#include "confine/policy.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct failure f = {0};
    _cleanup_policy_ struct policy first = {0}, second = {0};
    int r = policy_parse(bytes_of(data, size), NULL, &first, &f);
    if (r < 0) {
        assert(f.error == r && f.text[0]);
        return 0;
    }
    json_t *object = policy_to_json(&first);
    _cleanup_free_ char *text = json_dumps(object, JSON_COMPACT);
    json_decref(object);
    assert(text);
    /* What is written can be longer than what may be given: names of fields that were left out. */
    if (strlen(text) > POLICY_TEXT_MAX)
        return 0;
    r = policy_parse(bytes_of_string(text), NULL, &second, &f);
    assert(r == 0);
    object = policy_to_json(&second);
    _cleanup_free_ char *again = json_dumps(object, JSON_COMPACT);
    json_decref(object);
    assert(again && strcmp(text, again) == 0);
    return 0;
}

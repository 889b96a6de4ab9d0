/* Any bytes as a place: refused, or read as what is written and read again as the same. */
#include <assert.h>
#include <string.h>

#include "base/cleanup.h"
#include "places/place.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct failure f = {0};
    _cleanup_place_ struct place first = {0}, second = {0};
    int r = place_parse(bytes_of(data, size), &first, &f);
    if (r < 0) {
        assert(f.text[0]);
        return 0;
    }
    json_t *object = place_to_json(&first);
    _cleanup_free_ char *text = json_dumps(object, JSON_COMPACT | JSON_SORT_KEYS);
    assert(text);
    if (strlen(text) <= PLACE_FILE_MAX) {
        r = place_parse(bytes_of_string(text), &second, &f);
        assert(r == 0 && strcmp(first.name, second.name) == 0);
        json_t *again = place_to_json(&second);
        assert(json_equal(object, again));
        json_decref(again);
    }
    json_decref(object);
    return 0;
}

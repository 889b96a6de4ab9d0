/* Any bytes as the text of a symbolic link. The first byte chooses the mode and the depth; the
 * text follows. */
#include <stdlib.h>

#include "names/link_text.h"

static void check(bool ok)
{
    if (!ok)
        abort();
}

/* Counted from the link's directory; *ret_ups: how many "..". */
static bool stays_inside(struct bytes text, int depth, int *ret_ups)
{
    int at = depth;
    *ret_ups = 0;
    for (size_t i = 0; i < text.len;) {
        const uint8_t *slash = memchr(text.data + i, '/', text.len - i);
        size_t end = slash ? (size_t)(slash - text.data) : text.len;
        struct bytes name = bytes_of(text.data + i, end - i);
        i = end + 1;
        if (name.len == 0 || bytes_equal(name, bytes_of_string(".")))
            continue;
        bool up = bytes_equal(name, bytes_of_string(".."));
        *ret_ups += up;
        at += up ? -1 : 1;
        if (at < 0)
            return false;
    }
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    if (len < 2)
        return 0;
    const struct link_rules rules = {.mode = data[0] % LINK_MODE_COUNT,
                                     .prefixes = LINK_PREFIXES_DEFAULT,
                                     .mountpoint = "/home/user/mnt"};
    const struct link_place place = {.depth = data[0] / LINK_MODE_COUNT % 8,
                                     .workspace = bytes_of_string("demo")};
    struct bytes text = bytes_of(data + 1, len - 1);
    if (text.len >= PATH_MAX || memchr(text.data, '\0', text.len))
        return 0; /* no such link: refused before anybody judges it */
    char shown[PATH_MAX];
    enum link_verdict verdict = link_text_judge(&rules, &place, text, shown);
    check(verdict == LINK_EXACT || verdict == LINK_REFUSED || rules.mode == LINK_TRANSLATE);
    int ups;
    bool inside = stays_inside(text, place.depth, &ups);
    if (rules.mode == LINK_VERBATIM)
        check(verdict == LINK_EXACT);
    else if (verdict == LINK_EXACT && text.data[0] != '/')
        check(inside);
    else if (verdict == LINK_EXACT)
        check(rules.mode != LINK_REFUSE && ups == 0);
    if (verdict == LINK_TRANSLATED)
        check(strncmp(shown, "/home/user/mnt/demo", 19) == 0);
    return 0;
}

/* Any bytes as visibility rules, and as names that they are asked about. The first byte is the
 * length of the rules in eighths of what follows; the rest is a path. */
#include <errno.h>
#include <stdlib.h>

#include "visibility/visibility.h"

static void check(bool ok)
{
    if (!ok)
        abort();
}

/* What holds of every entry, whatever the rules. */
static void check_entry(const struct visibility_view *view, const struct visibility_state *dir,
                        struct bytes name)
{
    enum visibility as_file = visibility_of(view, dir, name, false);
    enum visibility as_directory = visibility_of(view, dir, name, true);
    /* No rule gives back what lies below. */
    check(as_file >= dir->own && as_directory >= dir->own);
    check(!visibility_listed(dir, VISIBILITY_HIDDEN));
    if (dir->root && bytes_equal(name, bytes_of_string(VISIBILITY_RESERVED_NAME)))
        check(as_file == VISIBILITY_HIDDEN && as_directory == VISIBILITY_HIDDEN);
    bool may_hide = dir->own == VISIBILITY_HIDDEN || dir->root;
    for (size_t i = 0; i < VISIBILITY_SOURCES; i++)
        may_hide |= view->sources[i] && visibility_rules_hide(view->sources[i]);
    check(may_hide || (as_file != VISIBILITY_HIDDEN && as_directory != VISIBILITY_HIDDEN));
}

static void walk(const struct visibility_view *view, struct bytes path)
{
    struct visibility_state dir;
    check(visibility_state_root(view, &dir) == 0);
    while (path.len > 0) {
        const uint8_t *slash = memchr(path.data, '/', path.len);
        size_t len = slash ? (size_t)(slash - path.data) : path.len;
        struct bytes name = bytes_of(path.data, len);
        path = bytes_of(path.data + len + (slash != NULL), path.len - len - (slash != NULL));
        if (len == 0)
            continue;
        check_entry(view, &dir, name);
        struct visibility_state next;
        enum visibility expected = visibility_of(view, &dir, name, true);
        check(visibility_state_enter(view, &dir, name, &next) == 0);
        check(next.own == expected && !next.root && next.count <= VISIBILITY_SEGMENTS_MAX);
        visibility_state_release(&dir);
        dir = next;
    }
    visibility_state_release(&dir);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    if (len < 1)
        return 0;
    size_t rules_len = (len - 1) * (data[0] % 9) / 8;
    struct bytes text = bytes_of(data + 1, rules_len);
    struct bytes path = bytes_of(data + 1 + rules_len, len - 1 - rules_len);
    struct visibility_view view = {0};
    struct failure failure = {0};
    int r = visibility_rules_parse(text, &view.sources[VISIBILITY_WORKSPACE], &failure);
    if (r < 0) {
        check(r == -EINVAL && failure.text[0]);
        return 0;
    }
    struct visibility_rules *rules = view.sources[VISIBILITY_WORKSPACE];
    check(bytes_equal(visibility_rules_text(rules), text));
    check(visibility_rules_count(rules) <= VISIBILITY_RULES_MAX);
    walk(&view, path);
    /* The same rules of the mount too: what decides is the same. */
    view.sources[VISIBILITY_MOUNT] = visibility_rules_ref(rules);
    walk(&view, path);
    visibility_rules_unref(rules);
    visibility_rules_unref(rules);
    return 0;
}

#include "link_text.h"

#include <errno.h>

/* Where a command in the workspace sees it. */
#define INSIDE "workspace"

/* Takes the next component that is neither empty nor "."; false at the end. */
static bool take_component(struct bytes *rest, struct bytes *ret)
{
    while (rest->len) {
        const uint8_t *slash = memchr(rest->data, '/', rest->len);
        size_t len = slash ? (size_t)(slash - rest->data) : rest->len;
        struct bytes component = bytes_of(rest->data, len);
        *rest = bytes_of(rest->data + len, rest->len - len);
        if (slash && len == 0)
            *rest = bytes_of(rest->data + 1, rest->len - 1);
        if (len && !bytes_equal(component, bytes_of_string("."))) {
            *ret = component;
            return true;
        }
    }
    return false;
}

static bool is_up(struct bytes component)
{
    return bytes_equal(component, bytes_of_string(".."));
}

static bool has_up(struct bytes text)
{
    struct bytes component;
    while (take_component(&text, &component))
        if (is_up(component))
            return true;
    return false;
}

static bool stays_inside(struct bytes text, int depth)
{
    struct bytes component;
    while (take_component(&text, &component)) {
        if (!is_up(component))
            return !has_up(text);
        if (depth-- <= 0)
            return false;
    }
    return true;
}

int link_text_ups(struct bytes text)
{
    struct bytes component;
    int ups = 0;
    while (take_component(&text, &component) && is_up(component))
        ups++;
    return ups;
}

static bool component_matches(struct bytes component, struct bytes pattern)
{
    if (pattern.data[pattern.len - 1] != '*')
        return bytes_equal(component, pattern);
    return component.len >= pattern.len - 1 &&
           memcmp(component.data, pattern.data, pattern.len - 1) == 0;
}

/* stars: a '*' at the end of a component of prefix stands for more. */
static bool is_below(struct bytes text, struct bytes prefix, bool stars)
{
    struct bytes wanted, component;
    while (take_component(&prefix, &wanted))
        if (!take_component(&text, &component) ||
            !(stars ? component_matches(component, wanted) : bytes_equal(component, wanted)))
            return false;
    return true;
}

/* Takes the next of the paths separated by ':'; false at the end. */
static bool take_prefix(const char **prefixes, struct bytes *ret)
{
    if (!**prefixes)
        return false;
    size_t len = strcspn(*prefixes, ":");
    *ret = bytes_of(*prefixes, len);
    *prefixes += len;
    if (**prefixes)
        (*prefixes)++;
    return true;
}

static bool is_system(const struct link_rules *rules, struct bytes text)
{
    const char *prefixes = rules->prefixes;
    struct bytes prefix;
    if (is_below(text, bytes_of_string(rules->mountpoint), false))
        return false;
    while (take_prefix(&prefixes, &prefix))
        if (is_below(text, prefix, true))
            return true;
    return false;
}

static bool put(char ret[PATH_MAX], size_t *len, struct bytes part)
{
    if (part.len >= PATH_MAX - *len)
        return false;
    if (part.len)
        memcpy(ret + *len, part.data, part.len);
    *len += part.len;
    ret[*len] = '\0';
    return true;
}

static enum link_verdict translate(const struct link_rules *rules, const struct link_place *place,
                                   struct bytes text, char ret[PATH_MAX])
{
    struct bytes first;
    if (!take_component(&text, &first) || !bytes_equal(first, bytes_of_string(INSIDE)))
        return LINK_REFUSED;
    char all[PATH_MAX];
    size_t len = 0;
    if (!put(all, &len, bytes_of_string(rules->mountpoint)) ||
        (place->workspace.len &&
         (!put(all, &len, bytes_of_string("/")) || !put(all, &len, place->workspace))) ||
        !put(all, &len, text))
        return LINK_REFUSED;
    memcpy(ret, all, len + 1);
    return LINK_TRANSLATED;
}

enum link_verdict link_text_judge(const struct link_rules *rules, const struct link_place *place,
                                  struct bytes text, char ret[PATH_MAX])
{
    if (rules->mode == LINK_VERBATIM)
        return LINK_EXACT;
    if (place->depth < 0 || text.len == 0)
        return LINK_REFUSED;
    if (text.data[0] != '/')
        return stays_inside(text, place->depth) ? LINK_EXACT : LINK_REFUSED;
    if (rules->mode == LINK_REFUSE || has_up(text))
        return LINK_REFUSED;
    if (is_system(rules, text))
        return LINK_EXACT;
    return rules->mode == LINK_TRANSLATE ? translate(rules, place, text, ret) : LINK_REFUSED;
}

static const char *const mode_names[] = {
    [LINK_CONTAIN] = "contain",
    [LINK_TRANSLATE] = "contain+translate",
    [LINK_VERBATIM] = "verbatim",
    [LINK_REFUSE] = "refuse",
};

const char *link_mode_name(enum link_mode mode)
{
    return mode_names[mode];
}

int link_mode_parse(const char *name, enum link_mode *ret, struct failure *ret_failure)
{
    for (enum link_mode mode = 0; mode < LINK_MODE_COUNT; mode++)
        if (strcmp(name, mode_names[mode]) == 0) {
            *ret = mode;
            return 0;
        }
    return failure_set(ret_failure, -EINVAL,
                       "symlinks=%s: expected contain, contain+translate, verbatim or refuse",
                       name);
}

/* Every component is a name, with a '*' at the end of the last one at most. */
static bool prefix_is_good(struct bytes prefix)
{
    if (prefix.len < 2 || prefix.data[0] != '/')
        return false;
    struct bytes rest = bytes_of(prefix.data + 1, prefix.len - 1);
    for (;;) {
        const uint8_t *slash = memchr(rest.data, '/', rest.len);
        size_t len = slash ? (size_t)(slash - rest.data) : rest.len;
        struct bytes component = bytes_of(rest.data, len);
        const uint8_t *star = len ? memchr(rest.data, '*', len) : NULL;
        if (len == 0 || is_up(component) || bytes_equal(component, bytes_of_string(".")) ||
            (star && (slash || len == 1 || star != rest.data + len - 1)))
            return false;
        if (!slash)
            return true;
        rest = bytes_of(slash + 1, rest.len - len - 1);
    }
}

int link_prefixes_check(const char *prefixes, struct failure *ret_failure)
{
    const char *rest = prefixes;
    struct bytes prefix = {0};
    bool good = *prefixes && prefixes[strlen(prefixes) - 1] != ':';
    while (good && take_prefix(&rest, &prefix))
        good = prefix_is_good(prefix);
    return good ? 0
                : failure_set(ret_failure, -EINVAL,
                              "system_prefixes=%s: expected absolute paths separated by ':', each "
                              "below \"/\" and without \"..\", a '*' nowhere but at its end",
                              prefixes);
}

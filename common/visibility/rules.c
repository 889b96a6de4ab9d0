#include "visibility/rules.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/log.h"

struct parser {
    struct visibility_rules *rules;
    size_t line; /* of the text given, from 1 */
    struct failure *failure;
    visibility_doubt *doubt; /* NULL: nobody asks */
    void *doubt_context;
};

static int no_memory(struct parser *p)
{
    return failure_set(p->failure, -ENOMEM, "out of memory");
}

/* --- one line --------------------------------------------------------------------- */

/* Spaces at the end that are not escaped. */
static struct bytes trim(struct bytes line)
{
    size_t end = 0; /* behind the last byte that stays */
    for (size_t i = 0; i < line.len; i++) {
        if (line.data[i] == '\\') {
            /* A '\' at the very end keeps all before it, as in git. */
            end = i + 1 < line.len ? i + 2 : line.len;
            i++;
        } else if (line.data[i] != ' ') {
            end = i + 1;
        }
    }
    return bytes_of(line.data, end);
}

static bool take_word(struct bytes *line, const char *word)
{
    size_t len = strlen(word);
    if (line->len < len || memcmp(line->data, word, len) != 0)
        return false;
    *line = bytes_of(line->data + len, line->len - len);
    while (line->len && (line->data[0] == ' ' || line->data[0] == '\t'))
        *line = bytes_of(line->data + 1, line->len - 1);
    return true;
}

__attribute__((format(printf, 2, 3))) static void say_doubt(struct parser *p, const char *format,
                                                            ...)
{
    char sentence[256];
    va_list args;
    if (!p->doubt)
        return;
    va_start(args, format);
    (void)vsnprintf(sentence, sizeof sentence, format, args);
    va_end(args);
    p->doubt(p->doubt_context, p->line, sentence);
}

/* Letters and a colon at the start that are no word of ours. */
static void doubt_word(struct parser *p, struct bytes line)
{
    size_t len = 0, end;
    while (len < line.len && ((line.data[len] | 0x20) >= 'a' && (line.data[len] | 0x20) <= 'z'))
        len++;
    for (end = len; end < line.len && line.data[end] == ' ';)
        end++;
    if (len > 0 && end < line.len && line.data[end] == ':')
        say_doubt(
            p,
            "\"%.*s:\" is none of show:, unlisted:, hidden: and profile:, and so a part of the "
            "pattern; if that is meant, write a '\\' before it",
            (int)(len < 64 ? len : 64), (const char *)line.data);
}

static int add_rule(struct parser *p, struct bytes pattern, enum visibility visibility)
{
    struct visibility_rules *r = p->rules;
    struct pattern compiled;
    if (pattern.len > VISIBILITY_PATTERN_MAX)
        return failure_set(p->failure, -EINVAL, "line %zu: the pattern is longer than %d bytes",
                           p->line, VISIBILITY_PATTERN_MAX);
    if (r->count == VISIBILITY_RULES_MAX)
        return failure_set(p->failure, -EINVAL, "line %zu: more than %d rules", p->line,
                           VISIBILITY_RULES_MAX);
    int result =
        pattern_compile(&r->space, pattern, (uint16_t)r->count, VISIBILITY_SEGMENTS_MAX, &compiled);
    if (result == -E2BIG)
        return failure_set(p->failure, -EINVAL,
                           "line %zu: the patterns have more than %d components in all", p->line,
                           VISIBILITY_SEGMENTS_MAX);
    if (result < 0)
        return no_memory(p);
    if (result == 0 && pattern.len > 0)
        say_doubt(p, "the pattern matches nothing%s",
                  memchr(pattern.data, '[', pattern.len) ? "; is there a ']' for each '['?" : "");
    if (result == 0)
        return 0;
    if (compiled.by_name)
        r->names[r->name_count++] = compiled.first;
    else
        r->starts[r->start_count++] = compiled.first;
    r->rules[r->count++] = (struct rule){.visibility = visibility, .directory = compiled.directory};
    if (visibility == VISIBILITY_HIDDEN)
        r->hide = true;
    return 0;
}

static int parse_text(struct parser *p, struct bytes text, bool profile);

static int add_profile(struct parser *p, struct bytes name)
{
    const char *text = visibility_profile(name);
    char shown[2 * VISIBILITY_PROFILE_NAME_MAX];
    if (!text)
        return failure_set(p->failure, -EINVAL, "line %zu: there is no profile \"%s\"", p->line,
                           log_escape((const char *)name.data, name.len, shown, sizeof shown));
    return parse_text(p, bytes_of_string(text), true);
}

static int parse_line(struct parser *p, struct bytes line, bool profile)
{
    static const struct {
        const char *word;
        enum visibility visibility;
    } words[] = {
        {"show:", VISIBILITY_SHOW},
        {"unlisted:", VISIBILITY_UNLISTED},
        {"hidden:", VISIBILITY_HIDDEN},
    };
    if (line.len == 0 || line.data[0] == '#')
        return 0;
    if (memchr(line.data, '\0', line.len))
        return failure_set(p->failure, -EINVAL, "line %zu: a NUL byte, which no name has", p->line);
    line = trim(line);
    if (!profile && take_word(&line, "profile:"))
        return add_profile(p, line);
    for (size_t i = 0; i < ARRAY_SIZE(words); i++) {
        if (!take_word(&line, words[i].word))
            continue;
        if (line.len && line.data[0] == '!')
            return failure_set(p->failure, -EINVAL,
                               "line %zu: '!' means \"show:\" and cannot stand beside \"%s\"",
                               p->line, words[i].word);
        if (line.len == 0)
            return failure_set(p->failure, -EINVAL, "line %zu: \"%s\" needs a pattern", p->line,
                               words[i].word);
        return add_rule(p, line, words[i].visibility);
    }
    if (line.len && line.data[0] == '!')
        return add_rule(p, bytes_of(line.data + 1, line.len - 1), VISIBILITY_SHOW);
    doubt_word(p, line);
    return add_rule(p, line, VISIBILITY_UNLISTED);
}

/* --- all of it ---------------------------------------------------------------------- */

static int parse_text(struct parser *p, struct bytes text, bool profile)
{
    static const uint8_t mark[] = {0xef, 0xbb, 0xbf}; /* some editors begin UTF-8 with it */
    size_t at = text.len >= sizeof mark && memcmp(text.data, mark, sizeof mark) == 0 ? 3 : 0;
    while (at < text.len) {
        const uint8_t *start = text.data + at;
        const uint8_t *newline = memchr(start, '\n', text.len - at);
        size_t len = newline ? (size_t)(newline - start) : text.len - at;
        at += len + (newline != NULL);
        if (!profile)
            p->line++;
        if (newline && len && start[len - 1] == '\r')
            len--;
        int r = parse_line(p, bytes_of(start, len), profile);
        if (r < 0)
            return r;
    }
    return 0;
}

static void rules_free(struct visibility_rules *r)
{
    free(r->text);
    free(r->rules);
    free(r->names);
    free(r->starts);
    pattern_space_release(&r->space);
    free(r);
}

static void *fit(void *array, size_t count, size_t size)
{
    void *smaller = realloc(array, count ? count * size : 1);
    return smaller ? smaller : array;
}

static int rules_parse(struct bytes text, visibility_doubt *doubt, void *doubt_context,
                       struct visibility_rules **ret, struct failure *ret_failure)
{
    if (text.len > VISIBILITY_TEXT_MAX)
        return failure_set(ret_failure, -EINVAL, "the rules are longer than %d bytes",
                           VISIBILITY_TEXT_MAX);
    struct visibility_rules *r = calloc(1, sizeof *r);
    if (!r)
        return failure_set(ret_failure, -ENOMEM, "out of memory");
    struct parser p = {
        .rules = r, .failure = ret_failure, .doubt = doubt, .doubt_context = doubt_context};
    r->refs = 1;
    r->text = malloc(text.len ? text.len : 1);
    r->rules = calloc(VISIBILITY_RULES_MAX, sizeof *r->rules);
    r->names = calloc(VISIBILITY_RULES_MAX, sizeof *r->names);
    r->starts = calloc(VISIBILITY_RULES_MAX, sizeof *r->starts);
    int result = r->text && r->rules && r->names && r->starts ? 0 : no_memory(&p);
    if (result == 0) {
        if (text.len)
            memcpy(r->text, text.data, text.len);
        r->text_len = text.len;
        result = parse_text(&p, text, false);
    }
    if (result < 0) {
        rules_free(r);
        return result;
    }
    /* They stay for as long as a session does. */
    r->rules = fit(r->rules, r->count, sizeof *r->rules);
    r->names = fit(r->names, r->name_count, sizeof *r->names);
    r->starts = fit(r->starts, r->start_count, sizeof *r->starts);
    *ret = r;
    return 0;
}

int visibility_rules_parse(struct bytes text, struct visibility_rules **ret,
                           struct failure *ret_failure)
{
    return rules_parse(text, NULL, NULL, ret, ret_failure);
}

int visibility_rules_doubts(struct bytes text, visibility_doubt *doubt, void *context)
{
    struct failure failure;
    struct visibility_rules *rules;
    int r = rules_parse(text, doubt, context, &rules, &failure);
    if (r == 0)
        visibility_rules_unref(rules);
    return r == -ENOMEM ? r : 0;
}

struct visibility_rules *visibility_rules_ref(struct visibility_rules *rules)
{
    (void)__atomic_add_fetch(&rules->refs, 1, __ATOMIC_RELAXED);
    return rules;
}

void visibility_rules_unref(struct visibility_rules *rules)
{
    if (rules && __atomic_sub_fetch(&rules->refs, 1, __ATOMIC_ACQ_REL) == 0)
        rules_free(rules);
}

struct bytes visibility_rules_text(const struct visibility_rules *rules)
{
    return bytes_of(rules->text, rules->text_len);
}

size_t visibility_rules_count(const struct visibility_rules *rules)
{
    return rules->count;
}

bool visibility_rules_hide(const struct visibility_rules *rules)
{
    return rules->hide;
}

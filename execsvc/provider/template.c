#include "provider/template.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"
#include "base/cleanup.h"

static const char *const builtins[] = {"sandbox", "name",    "berthd",       "owner", "directory",
                                       "policy",  "created", "created_unix", NULL};
static const char *const values[] = {"value", "value_mib", NULL};
static const char *const limits[] = {"memory",     "pids",      "cpu",  "cpu_time", "file_size",
                                     "open_files", "wall_time", "disk", "files",    NULL};

static bool is_in(const char *const *names, const char *name, size_t len)
{
    for (; *names; names++)
        if (strlen(*names) == len && memcmp(*names, name, len) == 0)
            return true;
    return false;
}

bool template_is_builtin(const char *name, size_t len, bool value)
{
    return is_in(builtins, name, len) || (value && is_in(values, name, len));
}

bool template_is_limit(const char *name)
{
    return is_in(limits, name, strlen(name));
}

bool template_next(const char **at, struct template_name *ret)
{
    const char *p = *at;
    while ((p = strchr(p, '{'))) {
        if (p[1] == '{') {
            p += 2;
            continue;
        }
        size_t len = strspn(p + 1, "abcdefghijklmnopqrstuvwxyz0123456789_");
        if (len > 0 && p[1 + len] == '}') {
            *ret = (struct template_name){.text = p + 1, .len = len};
            *at = p + len + 2;
            return true;
        }
        p++;
    }
    return false;
}

static const char *value_of(const struct template_scope *scope, const struct template_name *name)
{
    const json_t *value = json_object_getn(scope->values, name->text, name->len);
    if (!value)
        value = json_object_getn(scope->parameters, name->text, name->len);
    const char *text = json_string_value(value);
    return text ? text : "";
}

char *template_word(const char *word, const struct template_scope *scope)
{
    _cleanup_buffer_ struct buffer out = {0};
    struct template_name name;
    const char *at = word, *done = word;
    int r = 0;
    while (r == 0 && template_next(&at, &name)) {
        const char *value = value_of(scope, &name);
        r = buffer_append(&out, done, (size_t)(name.text - 1 - done));
        if (r == 0)
            r = buffer_append(&out, value, strlen(value));
        done = at;
    }
    if (r == 0)
        r = buffer_append(&out, done, strlen(done) + 1);
    return r == 0 ? (char *)take_ptr(out.data) : NULL;
}

/* --- command lines ------------------------------------------------------------------ */

struct list {
    char **words;
    size_t count;
};

static int add(struct list *l, char *word)
{
    if (!word)
        return -ENOMEM;
    if (l->count == TEMPLATE_WORDS_MAX) {
        free(word);
        return -E2BIG;
    }
    l->words[l->count++] = word;
    return 0;
}

static int add_policy(struct list *l, const struct template_scope *scope)
{
    size_t i;
    json_t *word;
    int r = 0;
    json_array_foreach((json_t *)(uintptr_t)scope->policy, i, word)
    {
        if (r == 0)
            r = add(l, strdup(json_string_value(word)));
    }
    return r;
}

/* True when the list names something and one of what it names is empty. */
static bool is_left_out(const json_t *words, const struct template_scope *scope)
{
    size_t i;
    json_t *word;
    json_array_foreach((json_t *)(uintptr_t)words, i, word)
    {
        struct template_name name;
        for (const char *at = json_string_value(word); template_next(&at, &name);)
            if (!*value_of(scope, &name))
                return true;
    }
    return false;
}

static int add_words(struct list *l, const json_t *words, const struct template_scope *scope)
{
    size_t i;
    json_t *word;
    int r = 0;
    json_array_foreach((json_t *)(uintptr_t)words, i, word)
    {
        if (r < 0)
            break;
        if (json_is_array(word))
            r = is_left_out(word, scope) ? 0 : add_words(l, word, scope);
        else if (strcmp(json_string_value(word), "{policy}") == 0)
            r = add_policy(l, scope);
        else
            r = add(l, template_word(json_string_value(word), scope));
    }
    return r;
}

int template_words(const json_t *words, const struct template_scope *scope, char ***ret,
                   struct failure *ret_failure)
{
    struct list l = {.words = calloc(TEMPLATE_WORDS_MAX + 1, sizeof *l.words)};
    int r = l.words ? add_words(&l, words, scope) : -ENOMEM;
    if (r == 0) {
        *ret = l.words;
        return 0;
    }
    template_words_free(&l.words);
    return failure_set(ret_failure, r, "%s",
                       r == -E2BIG ? "the command line has too many words" : strerror(-r));
}

void template_words_free(char ***words)
{
    for (char **word = *words; word && *word; word++)
        free(*word);
    free(*words);
    *words = NULL;
}

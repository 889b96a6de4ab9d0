#include "exec/strings.h"

static int strings_reserve(struct strings *s)
{
    /* One more string and the NULL behind it. */
    if (s->count + 2 <= s->allocated)
        return 0;
    size_t size = s->allocated ? s->allocated * 2 : 16;
    char **items = reallocarray(s->items, size, sizeof *items);
    if (!items)
        return -ENOMEM;
    s->items = items;
    s->allocated = size;
    return 0;
}

static int strings_push(struct strings *s, char *item)
{
    int r = strings_reserve(s);
    if (r < 0)
        return r;
    s->items[s->count++] = item;
    s->items[s->count] = NULL;
    return 0;
}

static bool bytes_have_nul(struct bytes b)
{
    return b.len > 0 && memchr(b.data, 0, b.len);
}

static char *copy_to(char *to, struct bytes from)
{
    if (from.len > 0)
        memcpy(to, from.data, from.len);
    return to + from.len;
}

int strings_append(struct strings *s, struct bytes text)
{
    if (bytes_have_nul(text))
        return -EINVAL;
    _cleanup_free_ char *item = malloc(text.len + 1);
    if (!item)
        return -ENOMEM;
    *copy_to(item, text) = 0;
    int r = strings_push(s, item);
    if (r < 0)
        return r;
    (void)take_ptr(item);
    return 0;
}

int strings_append_joined(struct strings *s, struct bytes first, char separator,
                          struct bytes second)
{
    if (bytes_have_nul(first) || bytes_have_nul(second))
        return -EINVAL;
    _cleanup_free_ char *item = malloc(first.len + second.len + 2);
    if (!item)
        return -ENOMEM;
    char *end = copy_to(item, first);
    *end++ = separator;
    *copy_to(end, second) = 0;
    int r = strings_push(s, item);
    if (r < 0)
        return r;
    (void)take_ptr(item);
    return 0;
}

void strings_release(struct strings *s)
{
    for (size_t i = 0; i < s->count; i++)
        free(s->items[i]);
    free(s->items);
    *s = (struct strings){0};
}

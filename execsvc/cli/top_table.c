#include "cli/top_table.h"

#include <errno.h>
#include <string.h>

#include "terminal/text.h"

#define GAP 2          /* between columns */
#define FLEXIBLE_MIN 8 /* a column that takes what is left, before others go */
#define SHRUNK_MIN 16  /* what one with a maximum keeps for its sake */
#define LEFT_OUT SIZE_MAX

int top_table_begin(struct top_table *t, const struct top_column *columns, size_t count)
{
    *t = (struct top_table){.columns = columns, .column_count = count};
    return 0;
}

static int reserve(struct top_table *t)
{
    if (t->count < t->allocated)
        return 0;
    size_t larger = t->allocated ? 2 * t->allocated : 64;
    char **cells = reallocarray(t->cells, larger * t->column_count, sizeof *cells);
    if (!cells)
        return -ENOMEM;
    t->cells = cells;
    enum top_attribute *attributes = reallocarray(t->attributes, larger, sizeof *attributes);
    if (!attributes)
        return -ENOMEM;
    t->attributes = attributes;
    t->allocated = larger;
    return 0;
}

int top_table_add(struct top_table *t, const char *const *cells, enum top_attribute attribute)
{
    int r = reserve(t);
    if (r < 0)
        return r;
    char **row = t->cells + t->count * t->column_count;
    for (size_t i = 0; r == 0 && i < t->column_count; i++) {
        _cleanup_buffer_ struct buffer b = {0};
        r = text_escape(&b, bytes_of_string(cells[i]), TEXT_SENTENCE);
        if (r == 0)
            r = buffer_append_u8(&b, 0);
        row[i] = r == 0 ? (char *)take_ptr(b.data) : NULL;
        for (size_t k = 0; r < 0 && k < i; k++)
            free(row[k]);
    }
    if (r < 0)
        return r;
    t->attributes[t->count++] = attribute;
    return 0;
}

static size_t natural_width(const struct top_table *t, size_t column)
{
    const struct top_column *c = &t->columns[column];
    size_t width = strlen(c->title);
    for (size_t row = 0; row < t->count; row++) {
        size_t n = text_width(bytes_of_string(t->cells[row * t->column_count + column]));
        width = n > width ? n : width;
    }
    return c->max && width > c->max ? c->max : width;
}

/* What all columns but the flexible one take, with gaps. */
static size_t fixed_width(const struct top_table *t, const size_t *widths)
{
    size_t total = 0;
    for (size_t i = 0; i < t->column_count; i++)
        if (widths[i] != LEFT_OUT)
            total += (t->columns[i].flexible ? 0 : widths[i]) + GAP;
    return total - GAP;
}

static bool drop_one(const struct top_table *t, size_t *widths)
{
    size_t worst = LEFT_OUT;
    for (size_t i = 0; i < t->column_count; i++)
        if (widths[i] != LEFT_OUT && t->columns[i].drop &&
            (worst == LEFT_OUT || t->columns[i].drop > t->columns[worst].drop))
            worst = i;
    if (worst == LEFT_OUT)
        return false;
    widths[worst] = LEFT_OUT;
    return true;
}

/* So that the flexible one has what its cells are wide. */
static void shrink(const struct top_table *t, size_t *widths, size_t flexible, size_t columns)
{
    size_t wanted = fixed_width(t, widths) + widths[flexible];
    for (size_t i = 0; i < t->column_count && wanted > columns; i++) {
        size_t spare = t->columns[i].max && widths[i] != LEFT_OUT && widths[i] > SHRUNK_MIN
                           ? widths[i] - SHRUNK_MIN
                           : 0;
        spare = spare < wanted - columns ? spare : wanted - columns;
        widths[i] -= spare;
        wanted -= spare;
    }
}

size_t *top_table_fit(const struct top_table *t, size_t columns)
{
    size_t flexible = 0;
    size_t *widths = calloc(t->column_count, sizeof *widths);
    if (!widths)
        return NULL;
    for (size_t i = 0; i < t->column_count; i++) {
        widths[i] = natural_width(t, i);
        flexible = t->columns[i].flexible ? i : flexible;
    }
    if (!columns)
        return widths;
    while (fixed_width(t, widths) + FLEXIBLE_MIN > columns && drop_one(t, widths))
        ;
    shrink(t, widths, flexible, columns);
    size_t fixed = fixed_width(t, widths);
    size_t left = columns > fixed ? columns - fixed : 0;
    if (widths[flexible] > left)
        widths[flexible] = left;
    return widths;
}

/* The end of a path that is too wide. */
static struct bytes end_of(struct bytes text, size_t width)
{
    while (text.len > 0 && text_width(text) > width) {
        do
            text = bytes_of(text.data + 1, text.len - 1);
        while (text.len > 0 && (text.data[0] & 0xc0) == 0x80); /* amid a character */
    }
    return text;
}

static int append_cell(struct buffer *line, struct bytes text, size_t width,
                       const struct top_column *c, bool last)
{
    static const char cut[] = "...";
    int r = 0;
    if (c->path && text.len > 0 && text.data[0] == '/' && width > sizeof cut - 1 &&
        text_width(text) > width) {
        r = buffer_append(line, cut, sizeof cut - 1);
        width -= sizeof cut - 1;
        text = end_of(text, width);
    }
    size_t len = text_fit(text, width);
    size_t fill = width - text_width(bytes_of(text.data, len));
    r |= c->right ? buffer_printf(line, "%*s", (int)fill, "") : 0;
    r |= buffer_append(line, text.data, len);
    if (!c->right && !last)
        r |= buffer_printf(line, "%*s", (int)fill, "");
    if (!last)
        r |= buffer_append(line, "  ", GAP);
    return r;
}

static int append_line(const struct top_table *t, const size_t *widths, const char *const *cells,
                       struct buffer *line)
{
    int r = 0;
    for (size_t i = 0; i < t->column_count; i++) {
        const char *text = cells ? cells[i] : t->columns[i].title;
        if (widths[i] != LEFT_OUT)
            r |= append_cell(line, bytes_of_string(text), widths[i], &t->columns[i],
                             i + 1 == t->column_count);
    }
    return r;
}

int top_table_title(const struct top_table *t, const size_t *widths, struct buffer *line)
{
    return append_line(t, widths, NULL, line);
}

int top_table_row(const struct top_table *t, const size_t *widths, size_t row, struct buffer *line)
{
    return append_line(t, widths, (const char *const *)t->cells + row * t->column_count, line);
}

enum top_attribute top_table_attribute(const struct top_table *t, size_t row)
{
    return t->attributes[row];
}

void top_table_release(struct top_table *t)
{
    for (size_t i = 0; i < t->count * t->column_count; i++)
        free(t->cells[i]);
    free(t->cells);
    free(t->attributes);
    *t = (struct top_table){0};
}

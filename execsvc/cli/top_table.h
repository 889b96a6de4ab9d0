/* Rows of text in columns that fit a width: columns of least use are left out where there is no
 * room, and one column takes what is left. */
#pragma once

#include "base/buffer.h"
#include "cli/top_view.h"

struct top_column {
    const char *title;
    bool right;    /* aligned, as numbers are */
    bool flexible; /* takes what is left; one of each table */
    bool path;     /* one that is too wide loses its beginning, in which many are alike */
    unsigned drop; /* 0: stays; else the greatest goes first */
    size_t max;    /* columns that it takes at most, and fewer for the flexible one; 0: as many
                      as its widest cell */
};

struct top_table {
    const struct top_column *columns; /* borrowed */
    size_t column_count;
    char **cells; /* row by row; escaped */
    enum top_attribute *attributes;
    size_t count;
    size_t allocated;
};

int top_table_begin(struct top_table *t, const struct top_column *columns, size_t count);

/* As many cells as there are columns, any bytes without NUL, which are copied. -ENOMEM. */
int top_table_add(struct top_table *t, const char *const *cells, enum top_attribute attribute);

/* The width of each column; SIZE_MAX: it is left out. columns 0: no bound. NULL: no memory. */
size_t *top_table_fit(const struct top_table *t, size_t columns);

/* Append a line of that. -ENOMEM. */
int top_table_title(const struct top_table *t, const size_t *widths, struct buffer *line);
int top_table_row(const struct top_table *t, const size_t *widths, size_t row, struct buffer *line);

enum top_attribute top_table_attribute(const struct top_table *t, size_t row);
void top_table_release(struct top_table *t);

/* A sample of `berth top` as lines of text: pure, so that it can be looked at without a terminal.
 * Whatever a workspace, a command or a server chose comes out escaped. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

enum top_sort { TOP_BUSY, TOP_CPU, TOP_MEMORY, TOP_TIME, TOP_NAME, TOP_SORT_COUNT };
enum top_part { TOP_WORKSPACES, TOP_COMMANDS, TOP_MOUNTS, TOP_EGRESS, TOP_PART_COUNT };

const char *top_sort_name(enum top_sort sort);
/* -EINVAL. */
int top_sort_parse(const char *text, enum top_sort *ret);

struct top_choice {
    enum top_sort sort;
    bool one; /* only `part` is shown */
    enum top_part part;
    size_t scroll;  /* rows of it that are left out at its beginning */
    size_t columns; /* 0: no bound */
    size_t rows;    /* 0: all there is */
};

enum top_attribute { TOP_PLAIN, TOP_HEAD, TOP_TITLE, TOP_GOOD, TOP_WARNING, TOP_BAD };

struct top_line {
    char *text; /* no wider than columns */
    enum top_attribute attribute;
};

struct top_page {
    struct top_line *lines;
    size_t count;
    size_t allocated;
};

/* decisions: of the proxy, the oldest first. -ENOMEM. */
int top_view(const json_t *sample, const json_t *decisions, const struct top_choice *choice,
             struct top_page *ret);
void top_page_release(struct top_page *page);
#define _cleanup_top_page_ _cleanup_(top_page_release)

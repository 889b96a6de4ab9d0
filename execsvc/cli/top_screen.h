/* The terminal while `berth top` has it: another screen, keys as they are typed, no cursor. What it
 * was is given back when it is closed, stopped by ^Z, or ended by a signal. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "cli/top_view.h"

struct top_screen;

/* What top_screen_wait has found; keys are their characters. */
enum top_event {
    TOP_EVENT_NONE,       /* the time is over */
    TOP_EVENT_WAKE = 256, /* the descriptor is readable */
    TOP_EVENT_RESIZED,    /* or it was in the background */
    TOP_EVENT_UP,
    TOP_EVENT_DOWN,
    TOP_EVENT_PAGE_UP,
    TOP_EVENT_PAGE_DOWN,
    TOP_EVENT_END, /* the terminal has gone */
};

/* Standard output and input are a terminal that can be drawn on. */
bool top_screen_possible(void);

/* One in a process. A negative errno. */
int top_screen_open(struct top_screen **ret);
void top_screen_close(struct top_screen *s);

void top_screen_size(const struct top_screen *s, size_t *ret_columns, size_t *ret_rows);

/* Draws the page, with a line of help or NULL at the bottom. */
void top_screen_draw(struct top_screen *s, const struct top_page *page, const char *help);

/* Waits for at most so long for a key, or for fd. A signal that ends programs gives the terminal
 * back and ends this one. */
int top_screen_wait(struct top_screen *s, int fd, int timeout_ms);

/* What is known of workspaces in sandboxes, for `berth ls`: their places, and what their services
 * say if they answer soon. */
#pragma once

#include <jansson.h>

#include "cli/cli.h"
#include "places/place.h"

/* A service that has not answered by then is listed without. */
#define PLACES_ANSWER_MS 5000

/* And so all of them, when they are many. */
#define PLACES_ALL_MS 15000

/* Services asked at once: each may be a program of a vendor's. When there are more, connections are
 * not held: each would be such a program for minutes. */
#define PLACES_ASKING_MAX 16

struct place_row {
    struct place place;
    json_t *json; /* as life_json, with "provider"; NULL: not asked for */
    bool answered;
};

struct place_rows {
    struct place_row *rows;
    size_t count;
};

/* All places. ask: also what each service says of its workspace. A message was printed when this
 * fails. */
int place_rows_read(const struct cli *cli, bool ask, struct place_rows *ret);
void place_rows_release(struct place_rows *l);
#define _cleanup_place_rows_ _cleanup_(place_rows_release)

/* Whether one has the labels (KEY=VALUE or KEY, `count` of them) and the state (NULL: any). */
bool place_row_matches(const struct place_row *row, const char *const *labels, size_t count,
                       const char *state);

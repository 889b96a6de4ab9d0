/* Conditional requests and ranges (RFC 9110 13 and 14): pure functions of header fields. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

/* True when the list of a field (If-Match, If-None-Match) has this entity tag, in quotes, or is
 * "*". strong: W/ tags match nothing. A list that is none has nothing. */
bool conditions_tag_listed(const char *list, const char *tag, bool strong);

/* True for "*", and for a list of entity tags. */
bool conditions_tags_valid(const char *list);

/* A date of HTTP, in its usual form; false when it is none. */
bool conditions_date(const char *text, time_t *ret);

/* "Sun, 06 Nov 1994 08:49:37 GMT". */
#define CONDITIONS_DATE_SIZE 32
void conditions_print_date(time_t at, char ret[CONDITIONS_DATE_SIZE]);

/* Ranges of one request. Stops a request of thousands, each of the whole file, from costing as
 * much. */
#define CONDITIONS_RANGES_MAX 16

struct conditions_range {
    uint64_t from, length; /* length > 0, within the size */
};

/* The ranges of a Range field over so many bytes: how many can be satisfied, in the order asked
 * for; 0: none can; -1: the field is to be ignored (not bytes, not well-formed, too many, or more
 * in all than there is). */
int conditions_ranges(const char *field, uint64_t size,
                      struct conditions_range ret[CONDITIONS_RANGES_MAX]);

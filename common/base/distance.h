/* How much alike two words are, for "did you mean". */
#pragma once

#include <stddef.h>

/* Longer words are no misspelt names; bounds the work, which is the product of the lengths. */
#define WORD_DISTANCE_MAX 24

/* Edits (insert, delete, replace, swap two neighbours) from one word to the other; SIZE_MAX when
 * one is longer than WORD_DISTANCE_MAX. */
size_t word_distance(const char *a, const char *b);

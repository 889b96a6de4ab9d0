/* Times and sizes as people write them. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* A number, fractions allowed, of seconds, or with ms, s, m, h or d behind it of those. *ret_ms is
 * rounded up. False: it is none, or below 0, or more than max_s seconds. */
bool units_duration(const char *text, double max_s, uint64_t *ret_ms);

/* A whole number of bytes, or with k, M, G or T behind it (and B or iB, in either case) that
 * multiple of 1024. False: it is none, or 0, or too large for a signed number of 64 bits. */
bool units_size(const char *text, uint64_t *ret);

/* A number of bytes for people, in text, which has room for UNITS_SIZE_TEXT: "512 B", "1.5 KiB",
 * "12.3 MiB". Returns text. */
#define UNITS_SIZE_TEXT 16
char *units_size_text(uint64_t bytes, char *text);

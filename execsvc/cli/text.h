/* Text as the command line prints it, and what common has for that. */
#pragma once

#include <jansson.h>

#include "terminal/text.h"

/* As a JSON string, escaped (TEXT_VALUE) where it is not UTF-8. NULL: no memory. */
json_t *text_json(const char *text);
json_t *text_json_bytes(struct bytes bytes);

/* Seconds of the real time in words: local time, or (utc) as JSON has it. */
void text_time(int64_t seconds, bool utc, char *text, size_t size);

/* The bytes as a new string; NULL: no memory. They must hold no NUL. */
char *text_copy(struct bytes data);

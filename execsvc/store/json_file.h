/* Small JSON files that are replaced as a whole or not at all. */
#pragma once

#include <jansson.h>

/* Largest file read: stops a damaged or planted file from taking all memory. */
#define JSON_FILE_MAX ((size_t)65536)

/* -ENOENT; -EIO: not one JSON object; others of open and read. */
int json_file_read(int dir_fd, const char *name, json_t **ret);

/* Writes name.new, makes it durable, renames it to name, and makes that durable too. */
int json_file_write(int dir_fd, const char *name, const json_t *object);

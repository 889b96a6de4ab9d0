/* What segment.c (the file) and segment_content.c (what is in it) share. */
#pragma once

#include "cache/segment.h"

#define SEGMENT_HEADER_SIZE 4096
#define SEGMENT_DATA_START (SEGMENT_HEADER_SIZE + SEGMENT_SLOTS_MAX * sizeof(struct segment_slot))

int segment_write_at(int fd, const void *data, size_t size, uint64_t at);

/* Where the next digest may be. */
uint64_t segment_slot_end(const struct segment_slot *slot);

/* False: it was removed. */
bool segment_is_there(int fd);

/* A cache of contents in a directory of its own, and contents made from numbers. */
#pragma once

#include "unit.h"

#include "cache/cache.h"
#include "disk.h"

#define URL "unix:/run/test.sock"

struct place {
    char base[64]; /* $XDG_CACHE_HOME */
    char path[96]; /* the cache */
    struct event_base *loop;
};

/* Of disk_get, with on_answer. */
struct answer {
    bool called;
    bool found;
    size_t len;
    uint8_t data[SEGMENT_CONTENT_MAX];
};

extern struct answer answer;

int setup(void **state);
int teardown(void **state);
struct disk *open_sized(const struct place *p, uint64_t size_max);
struct disk *open_disk(const struct place *p);
/* A file's state and content, made from a number. */
struct disk_key key_of(uint64_t n, size_t size);
struct bytes content_of(uint64_t n, size_t size);
void on_answer(void *context, const struct bytes *found);
void put(struct disk *d, uint64_t n, size_t size);
/* True: it was there, and is right. A wrong content fails the test, or ends the child. */
bool has(const struct place *p, struct disk *d, uint64_t n, size_t size);
/* At the end, a mount gives the disk only so much time. */
void close_disk(struct disk *d);
struct cache_list list_of(void);
void only_file(const struct place *p, char ret[160]);
size_t size_of_number(uint64_t n);

/* One file with FILES contents. */
#define FILES 12 /* of sizes of about 100 bytes */
size_t small_size(uint64_t n);
void make_small(const struct place *p, char file[160]);

extern uint64_t random_state;
uint64_t random_number(uint64_t below);

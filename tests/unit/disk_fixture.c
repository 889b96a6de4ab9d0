#include "disk_fixture.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/cleanup.h"

int setup(void **state)
{
    struct place *p = calloc(1, sizeof *p);
    if (!p)
        return -1;
    (void)snprintf(p->base, sizeof p->base, "/tmp/berth-disk-XXXXXX");
    assert_non_null(mkdtemp(p->base));
    (void)snprintf(p->path, sizeof p->path, "%s/berth", p->base);
    assert_int_equal(setenv("XDG_CACHE_HOME", p->base, 1), 0);
    p->loop = event_base_new();
    assert_non_null(p->loop);
    *state = p;
    return 0;
}

int teardown(void **state)
{
    struct place *p = *state;
    event_base_free(p->loop);
    char command[128];
    (void)snprintf(command, sizeof command, "rm -rf %s", p->base);
    int r = system(command); /* NOLINT: the name is ours */
    free(p);
    return r;
}

struct disk *open_sized(const struct place *p, uint64_t size_max)
{
    const struct disk_options options = {
        .service_id = "0123456789abcde", .url = URL, .size_max = size_max};
    struct disk *d = NULL;
    struct failure f;
    if (disk_open(&options, p->loop, &d, &f) < 0)
        fail_msg("%s", f.text);
    return d;
}

struct disk *open_disk(const struct place *p)
{
    return open_sized(p, DISK_SIZE_DEFAULT);
}

struct disk_key key_of(uint64_t n, size_t size)
{
    const struct wire_attr attr = {.ino = n + 1,
                                   .generation = 7,
                                   .size = size,
                                   .mtime = {.sec = 1000 + (int64_t)n, .nsec = 1},
                                   .ctime = {.sec = 2000, .nsec = (uint32_t)n % 1000}};
    return disk_key_of(&attr);
}

static uint8_t content[SEGMENT_CONTENT_MAX];

struct bytes content_of(uint64_t n, size_t size)
{
    uint64_t x = n * 2654435761 + size + 1;
    for (size_t i = 0; i < size; i++) {
        x = x * 6364136223846793005 + 1442695040888963407;
        content[i] = (uint8_t)(x >> 56);
    }
    return bytes_of(content, size);
}

void put(struct disk *d, uint64_t n, size_t size)
{
    const struct disk_key key = key_of(n, size);
    disk_put(d, &key, content_of(n, size));
}

void on_answer(void *context, const struct bytes *found)
{
    struct answer *a = context;
    a->called = true;
    a->found = found;
    if (found) {
        a->len = found->len;
        memcpy(a->data, found->data, found->len);
    }
}

struct answer answer;

bool has(const struct place *p, struct disk *d, uint64_t n, size_t size)
{
    const struct disk_key key = key_of(n, size);
    answer.called = false;
    bool known = disk_has(d, &key);
    int r = disk_get(d, &key, on_answer, &answer);
    assert_int_equal(known, r == 0);
    if (r < 0) {
        assert_int_equal(r, -ENOENT);
        return false;
    }
    while (!answer.called)
        assert_int_equal(event_base_loop(p->loop, EVLOOP_ONCE), 0);
    if (answer.found) {
        assert_int_equal(answer.len, size);
        assert_memory_equal(answer.data, content_of(n, size).data, size);
    }
    return answer.found;
}

void close_disk(struct disk *d)
{
    while (disk_stats(d).pending)
        (void)usleep(1000);
    assert_false(disk_free(d));
}

struct cache_list list_of(void)
{
    struct failure f;
    struct cache_list list = {0};
    _cleanup_close_ int dir = -1;
    assert_int_equal(cache_open(false, &dir, NULL, &f), 0);
    assert_int_equal(cache_list(dir, &list), 0);
    return list;
}

void only_file(const struct place *p, char ret[160])
{
    _cleanup_cache_list_ struct cache_list list = list_of();
    assert_int_equal(list.count, 1);
    (void)snprintf(ret, 160, "%s/%s", p->path, list.segments[0].name);
}

size_t size_of_number(uint64_t n)
{
    static const size_t sizes[] = {0, 1, 31, 991, 992, 993, 4096, 70000, SEGMENT_CONTENT_MAX};
    return sizes[n % ARRAY_SIZE(sizes)];
}

size_t small_size(uint64_t n)
{
    return 90 + n;
}

void make_small(const struct place *p, char file[160])
{
    struct disk *d = open_disk(p);
    for (uint64_t n = 0; n < FILES; n++)
        put(d, n, small_size(n));
    close_disk(d);
    only_file(p, file);
}

uint64_t random_state = 88172645463325252;

uint64_t random_number(uint64_t below)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state % below;
}

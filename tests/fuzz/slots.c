/* Any bytes as the file of a joined mount's numbers: what is given is the same for whoever reads
 * the file later, and nobody else's. */
#include <assert.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/log.h"
#include "slots.h"

#define SERVICES 3
#define SLOTS 4
#define GIVEN_BELOW UINT64_C(0xf00000)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void ask(const char *path, uint64_t ret[SERVICES * SLOTS])
{
    struct slots *s;
    assert(slots_open(path, &s) == 0);
    for (size_t i = 0; i < SERVICES * SLOTS; i++) {
        const uint8_t id[16] = {(uint8_t)(i / SLOTS)};
        struct slots_service of;
        assert(slots_service_of(i / SLOTS ? "unix:/b" : "unix:/a", id, &of) == 0);
        ret[i] = slots_number(s, &of, (uint64_t)(i % SLOTS) << 40 | 7);
        assert((ret[i] & 0xffffffffff) == 7);
    }
    slots_free(s);
}

/* Overwrites what is there with data[2…] from data[0] on, and cuts it off at data[1] if not 0. */
static void damage(int fd, const uint8_t *data, size_t size)
{
    if (size < 2)
        return;
    assert(pwrite(fd, data + 2, size - 2, data[0]) == (ssize_t)(size - 2));
    assert(data[1] == 0 || ftruncate(fd, data[1]) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[] = "/tmp/berth-fuzz-slots-XXXXXX";
    uint64_t first[SERVICES * SLOTS], again[SERVICES * SLOTS];
    int fd = mkstemp(path);
    log_setup("fuzz_slots", LOG_LEVEL_ERROR);
    assert(fd >= 0);
    ask(path, first);
    damage(fd, data, size);
    ask(path, first);
    ask(path, again);
    for (size_t i = 0; i < SERVICES * SLOTS; i++) {
        assert(again[i] == first[i]);
        for (size_t k = 0; k < i; k++)
            assert(first[i] != first[k] || first[i] >> 40 >= GIVEN_BELOW);
    }
    assert(close(fd) == 0 && unlink(path) == 0);
    return 0;
}

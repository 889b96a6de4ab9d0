#include "keeper/expired.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/log.h"

/* In front of the keys: which one is the next to be replaced, as a count of all. */
#define HEADER_SIZE sizeof(uint64_t)

static off_t place_of(uint64_t number)
{
    return (off_t)(HEADER_SIZE + number % EXPIRED_MAX * sizeof(uint64_t));
}

void expired_open(int exec, struct expired *ret)
{
    *ret = (struct expired){
        .fd = openat(exec, ".expired", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600)};
    _cleanup_free_ uint64_t *all = calloc(EXPIRED_MAX + 1, sizeof *all);
    size_t len = 0;
    if (ret->fd < 0 || !all ||
        file_read_up_to(ret->fd, (uint8_t *)all, (EXPIRED_MAX + 1) * sizeof *all, &len) < 0)
        return;
    ret->count = len >= HEADER_SIZE ? all[0] : 0;
    for (size_t i = 1; i < len / sizeof *all; i++)
        if (all[i])
            (void)table_put(&ret->keys, all[i], ret, NULL);
}

void expired_release(struct expired *e)
{
    close_fd(&e->fd);
    table_release(&e->keys);
}

void expired_add(struct expired *e, uint64_t key)
{
    uint64_t oldest = 0;
    off_t place = place_of(e->count);
    if (e->fd >= 0 && pread(e->fd, &oldest, sizeof oldest, place) == sizeof oldest && oldest)
        (void)table_take(&e->keys, oldest);
    if (e->keys.count >= EXPIRED_MAX)
        table_release(&e->keys);
    (void)table_put(&e->keys, key, e, NULL);
    e->count++;
    /* The key first: a count that lags behind replaces a key too many, and no more. */
    if (e->fd >= 0 && (pwrite(e->fd, &key, sizeof key, place) != sizeof key ||
                       pwrite(e->fd, &e->count, sizeof e->count, 0) != sizeof e->count))
        log_warning("that a command has expired cannot be written: %s", strerror(errno));
}

bool expired_has(const struct expired *e, uint64_t key)
{
    return table_get(&e->keys, key) != NULL;
}

#include "cache/segment.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "cache/segment_private.h"

#define MAKING_SECONDS 10 /* a file younger than this may be about to get its header */

/* Integers are the machine's own: the cache is of this machine, and on another one where they
 * differ nothing is found. */
struct header {
    char magic[8];
    uint8_t service[SEGMENT_DIGEST_SIZE];
    char name[SEGMENT_SERVICE_MAX]; /* ends in a NUL */
};

static const char magic[8] = "berthC1\n";

static_assert(sizeof(struct header) <= SEGMENT_HEADER_SIZE, "the header has its place");
static_assert(sizeof(struct segment_slot) == 16, "slots have no holes");
static_assert(SEGMENT_DATA_START % SEGMENT_UNIT == 0, "data begins at a unit");
static_assert(SEGMENT_DATA_START + SEGMENT_DIGEST_SIZE + SEGMENT_CONTENT_MAX <= (1 << 20),
              "a content fits into the smallest segment");

int segment_write_at(int fd, const void *data, size_t size, uint64_t at)
{
    for (size_t done = 0; done < size;) {
        ssize_t n = pwrite(fd, (const uint8_t *)data + done, size - done, (off_t)(at + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : -EIO;
        done += (size_t)n;
    }
    return 0;
}

uint64_t segment_slot_end(const struct segment_slot *slot)
{
    uint64_t end = slot->unit * SEGMENT_UNIT + SEGMENT_DIGEST_SIZE + slot->size;
    return (end + SEGMENT_UNIT - 1) / SEGMENT_UNIT * SEGMENT_UNIT;
}

bool segment_is_there(int fd)
{
    struct stat st;
    return fstat(fd, &st) == 0 && st.st_nlink > 0;
}

static bool slot_is_possible(const struct segment_slot *slot)
{
    return slot->hash && slot->size <= SEGMENT_CONTENT_MAX &&
           slot->unit >= SEGMENT_DATA_START / SEGMENT_UNIT &&
           segment_slot_end(slot) <= SEGMENT_SIZE_MAX;
}

/* --- reading ------------------------------------------------------------------------ */

static int read_header(int fd, struct segment_service *ret)
{
    struct stat st;
    if (fstat(fd, &st) < 0)
        return -errno;
    struct header header;
    size_t len = 0;
    int r = S_ISREG(st.st_mode) ? file_read_at(fd, &header, sizeof header, 0, &len) : 0;
    if (r < 0)
        return r;
    if (len < sizeof header || memcmp(header.magic, magic, sizeof magic) != 0 ||
        header.name[sizeof header.name - 1])
        return -EBADMSG;
    memcpy(ret->id, header.service, sizeof ret->id);
    memcpy(ret->name, header.name, sizeof ret->name);
    return 0;
}

static int open_file(int dir, const char *name, int flags, int *ret_fd)
{
    /* Not to be led elsewhere, nor to wait for the other end of a pipe. */
    int fd = openat(dir, name, flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return errno == ELOOP || errno == EISDIR || errno == ENXIO ? -EBADMSG : -errno;
    *ret_fd = fd;
    return 0;
}

int segment_open(int dir, const char *name, struct segment_service *ret_service, int *ret_fd)
{
    _cleanup_close_ int fd = -1;
    int r = open_file(dir, name, O_RDONLY, &fd);
    if (r == 0)
        r = read_header(fd, ret_service);
    if (r == 0)
        *ret_fd = take_fd(&fd);
    return r;
}

/* *ret_used: up to where slots are taken; *ret_end: up to where data is. */
static int load_slots(int fd, struct segment_slot *slots, uint32_t *ret_used, uint64_t *ret_end)
{
    size_t len = 0;
    int r = file_read_at(fd, slots, SEGMENT_SLOTS_MAX * sizeof *slots, SEGMENT_HEADER_SIZE, &len);
    if (r < 0)
        return r;
    uint32_t used = 0;
    *ret_end = SEGMENT_DATA_START;
    for (; used < len / sizeof *slots && slots[used].hash; used++)
        if (slot_is_possible(&slots[used]) && segment_slot_end(&slots[used]) > *ret_end)
            *ret_end = segment_slot_end(&slots[used]);
    *ret_used = used;
    return 0;
}

int segment_slots(int fd, struct segment_slot **ret, uint32_t *ret_count)
{
    _cleanup_free_ struct segment_slot *slots = malloc(SEGMENT_SLOTS_MAX * sizeof *slots);
    if (!slots)
        return -ENOMEM;
    uint32_t used;
    uint64_t end;
    int r = load_slots(fd, slots, &used, &end);
    if (r < 0)
        return r;
    uint32_t count = 0;
    for (uint32_t i = 0; i < used; i++)
        if (slot_is_possible(&slots[i]))
            slots[count++] = slots[i];
    struct segment_slot *smaller = realloc(slots, (count ? count : 1) * sizeof *slots);
    if (!smaller)
        return -ENOMEM;
    (void)take_ptr(slots);
    *ret = smaller;
    *ret_count = count;
    return 0;
}

/* --- writing ------------------------------------------------------------------------ */

static int make_file(int dir, char name[SEGMENT_NAME_SIZE], int *ret_fd)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    uint64_t random;
    if (getrandom(&random, sizeof random, 0) != sizeof random)
        return -EIO;
    /* Names sort by age, for people; the random part keeps processes apart. */
    (void)snprintf(name, SEGMENT_NAME_SIZE, "%010llx%016" PRIx64 SEGMENT_SUFFIX,
                   (unsigned long long)now.tv_sec, random);
    *ret_fd = openat(dir, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    return *ret_fd < 0 ? -errno : 0;
}

int segment_make(int dir, const struct segment_service *service, struct segment_writer *ret)
{
    struct segment_writer w = {.count = 0, .end = SEGMENT_DATA_START};
    _cleanup_close_ int fd = -1;
    int r = make_file(dir, w.name, &fd);
    if (r < 0)
        return r;
    struct header header = {0};
    memcpy(header.magic, magic, sizeof magic);
    memcpy(header.service, service->id, sizeof header.service);
    memcpy(header.name, service->name, strnlen(service->name, sizeof header.name - 1));
    r = flock(fd, LOCK_EX | LOCK_NB) < 0 ? -errno : segment_write_at(fd, &header, sizeof header, 0);
    if (r < 0) {
        (void)unlinkat(dir, w.name, 0);
        return r;
    }
    w.fd = take_fd(&fd);
    *ret = w;
    return 0;
}

int segment_adopt(int dir, const char *name, struct segment_writer *ret)
{
    struct segment_writer w;
    struct segment_service service;
    _cleanup_close_ int fd = -1;
    int r = open_file(dir, name, O_RDWR, &fd);
    if (r == 0)
        r = flock(fd, LOCK_EX | LOCK_NB) < 0 ? -errno : 0;
    if (r == 0)
        r = segment_is_there(fd) ? read_header(fd, &service) : -EAGAIN;
    if (r < 0)
        return r;
    _cleanup_free_ struct segment_slot *slots = malloc(SEGMENT_SLOTS_MAX * sizeof *slots);
    if (!slots)
        return -ENOMEM;
    r = load_slots(fd, slots, &w.count, &w.end);
    if (r < 0)
        return r;
    if (w.count == SEGMENT_SLOTS_MAX || w.end >= SEGMENT_SIZE_MAX)
        return -EAGAIN;
    (void)snprintf(w.name, sizeof w.name, "%s", name);
    w.fd = take_fd(&fd);
    *ret = w;
    return 0;
}

void segment_close(struct segment_writer *w)
{
    close_fd(&w->fd);
}

void segment_discard(int dir, const char *name)
{
    struct stat st;
    if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
        st.st_mtim.tv_sec + MAKING_SECONDS < time(NULL))
        (void)unlinkat(dir, name, 0);
}

int segment_remove(int dir, const char *name)
{
    _cleanup_close_ int fd = -1;
    (void)open_file(dir, name, O_WRONLY, &fd);
    if (unlinkat(dir, name, 0) < 0)
        return -errno;
    struct stat st;
    if (fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_nlink == 0)
        (void)!ftruncate(fd, 0);
    return 0;
}

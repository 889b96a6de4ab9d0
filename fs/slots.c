#include "slots.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/table.h"
#include "config/paths.h"
#include "service_key.h"

#define NUMBER_BITS 40
#define HASHED_FIRST UINT64_C(0xf00000) /* slots of 24 bits from here on are given to nobody */
#define HASHED_COUNT UINT64_C(0x100000)
#define READ_AT_ONCE 512
#define LOCK_TRIES 5 /* of a millisecond: others hold it for one record */

/* In this machine's byte order: the file never leaves it. */
struct record {
    struct slots_service service;
    uint32_t slot;
    uint32_t check; /* a record cut short or overwritten is nobody's */
};

struct entry {
    struct entry *next; /* of the same key */
    struct record record;
    uint64_t given;
};

struct url_count {
    uint32_t count;
};

struct slots {
    int fd; /* -1: nothing is written down */
    uint64_t count;
    bool held; /* somebody kept the lock: it is tried once alone until it is to be had again */
    struct table entries;
    struct table urls; /* hash of a URL's digest -> struct url_count: how many it has */
};

static uint64_t hash_url(const struct slots_service *of)
{
    return hash_end(hash_bytes(HASH_START, of->url, sizeof of->url));
}

static uint64_t key_of(const struct record *r)
{
    uint64_t service = hash_end(hash_bytes(HASH_START, &r->service, sizeof r->service));
    return table_hash_pair(service, r->slot);
}

static uint32_t check_of(const struct record *r)
{
    return (uint32_t)hash_end(hash_bytes(HASH_START, r, offsetof(struct record, check)));
}

static const struct entry *find(const struct slots *s, const struct record *r)
{
    const struct entry *e = table_get(&s->entries, key_of(r));
    while (e && (e->record.slot != r->slot ||
                 memcmp(&e->record.service, &r->service, sizeof r->service) != 0))
        e = e->next;
    return e;
}

static uint32_t url_has(const struct slots *s, const struct slots_service *of)
{
    const struct url_count *c = table_get(&s->urls, hash_url(of));
    return c ? c->count : 0;
}

static int count_url(struct slots *s, const struct slots_service *of)
{
    uint64_t key = hash_url(of);
    struct url_count *c = table_get(&s->urls, key);
    if (!c) {
        c = calloc(1, sizeof *c);
        int r = c ? table_put(&s->urls, key, c, NULL) : -ENOMEM;
        if (r < 0) {
            free(c);
            return r;
        }
    }
    c->count++;
    return 0;
}

static int remember(struct slots *s, const struct record *r, uint64_t given)
{
    struct entry *e = malloc(sizeof *e);
    if (!e)
        return -ENOMEM;
    *e = (struct entry){.next = table_get(&s->entries, key_of(r)), .record = *r, .given = given};
    int error = table_put(&s->entries, key_of(r), e, NULL);
    if (error < 0)
        free(e);
    return error < 0 ? error : count_url(s, &r->service);
}

/* The record at the next place. One that is not right takes its place and is nobody's. */
static int take(struct slots *s, const struct record *r)
{
    s->count++;
    if (r->check != check_of(r) || s->count >= HASHED_FIRST || find(s, r))
        return 0;
    return remember(s, r, s->count);
}

/* What others have appended. A file that is damaged may be of any size. */
static int read_on(struct slots *s)
{
    struct record records[READ_AT_ONCE];
    size_t len = sizeof records;
    while (len == sizeof records && s->count + 1 < HASHED_FIRST) {
        int r = file_read_at(s->fd, records, sizeof records, s->count * sizeof records[0], &len);
        if (r < 0)
            return r;
        for (size_t i = 0; i < len / sizeof records[0]; i++)
            if ((r = take(s, &records[i])) < 0)
                return r;
    }
    return 0;
}

static int give_locked(struct slots *s, const struct record *r)
{
    int error = s->fd < 0 ? 0 : read_on(s);
    if (error < 0 || find(s, r))
        return error;
    if (s->count + 1 >= HASHED_FIRST)
        return -ENFILE;
    /* At its place: what a write that was cut short left behind it is written over. */
    if (s->fd >= 0 &&
        pwrite(s->fd, r, sizeof *r, (off_t)(s->count * sizeof *r)) != (ssize_t)sizeof *r)
        return -EIO;
    return take(s, r);
}

static int lock(struct slots *s)
{
    const struct timespec pause = {.tv_nsec = 1000000};
    int tries = s->held ? 1 : LOCK_TRIES;
    int r;
    while ((r = flock(s->fd, LOCK_EX | LOCK_NB) < 0 ? -errno : 0) == -EWOULDBLOCK && --tries > 0)
        (void)nanosleep(&pause, NULL);
    s->held = r < 0;
    return r;
}

static int give(struct slots *s, const struct record *r)
{
    if (s->count + 1 >= HASHED_FIRST || url_has(s, &r->service) >= SLOTS_PER_URL_MAX)
        return -ENFILE;
    int error = s->fd >= 0 ? lock(s) : 0;
    if (error < 0)
        return error;
    error = give_locked(s, r);
    if (s->fd >= 0)
        (void)flock(s->fd, LOCK_UN);
    return error;
}

static uint64_t hashed(const struct record *r)
{
    return HASHED_FIRST + key_of(r) % HASHED_COUNT;
}

int slots_service_of(const char *url, const uint8_t service_id[16], struct slots_service *ret)
{
    uint8_t of_url[SERVICE_KEY_SIZE], of_both[SERVICE_KEY_SIZE];
    int r = service_key(url, NULL, of_url);
    if (r == 0)
        r = service_key(url, service_id, of_both);
    if (r < 0)
        return r;
    memcpy(ret->url, of_url, sizeof ret->url);
    memcpy(ret->id, of_both, sizeof ret->id);
    return 0;
}

uint64_t slots_number(struct slots *s, const struct slots_service *of, uint64_t number)
{
    struct record r = {.service = *of, .slot = (uint32_t)(number >> NUMBER_BITS)};
    r.check = check_of(&r);
    const struct entry *e = find(s, &r);
    if (!e) {
        int error = give(s, &r);
        /* It has had this one from then on, also when the lock is to be had again. */
        if (error < 0 && error != -ENFILE)
            (void)remember(s, &r, hashed(&r));
        e = find(s, &r);
    }
    uint64_t low = number & ((UINT64_C(1) << NUMBER_BITS) - 1);
    uint64_t slot = e ? e->given : hashed(&r);
    return slot << NUMBER_BITS | low;
}

static int open_file(const char *given, int *ret, struct failure *f)
{
    _cleanup_free_ char *path = given ? strdup(given) : NULL;
    int r = given ? (path ? 0 : -ENOMEM) : paths_joined_slots(&path, f);
    if (r < 0)
        return r;
    char *slash = strrchr(path, '/');
    *slash = '\0';
    r = paths_make_directory(path, f);
    *slash = '/';
    if (r < 0)
        return r;
    *ret = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    return *ret < 0 ? failure_set(f, -errno, "%s: %s", path, strerror(errno)) : 0;
}

int slots_open(const char *path, struct slots **ret)
{
    struct slots *s = calloc(1, sizeof *s);
    struct failure f;
    if (!s)
        return -ENOMEM;
    s->fd = -1;
    if (open_file(path, &s->fd, &f) < 0) {
        log_warning("inode numbers will be others on the next joined mount: %s", f.text);
    } else if (read_on(s) < 0) {
        log_warning("inode numbers will be others on the next joined mount: they cannot be read");
        close_fd(&s->fd);
    }
    *ret = s;
    return 0;
}

void slots_free(struct slots *s)
{
    if (!s)
        return;
    size_t cursor = 0;
    struct entry *e;
    while ((e = table_next(&s->entries, &cursor)))
        while (e) {
            struct entry *next = e->next;
            free(e);
            e = next;
        }
    struct url_count *c;
    cursor = 0;
    while ((c = table_next(&s->urls, &cursor)))
        free(c);
    table_release(&s->entries);
    table_release(&s->urls);
    close_fd(&s->fd);
    free(s);
}

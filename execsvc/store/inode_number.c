#include "store/inode_number.h"

#include "base/cleanup.h"
#include "base/table.h"
#include "store/store_private.h"

#include <fcntl.h>

#define NUMBERS_FILE "inodes"
#define OWN_LIMIT (UINT64_C(1) << INODE_NUMBER_BITS)
#define GIVEN_SLOT ((uint64_t)SLOT_MAX + 1)

/* As in the file, in this machine's byte order: the file never leaves it. The number is
 * the record's place. */
struct record {
    uint64_t slot;
    uint64_t device;
    uint64_t ino;
    uint64_t check; /* a record cut short or overwritten is not believed */
};

struct entry {
    struct entry *next; /* same key */
    struct record record;
    uint64_t number;
};

struct inode_numbers {
    pthread_mutex_t lock;
    int fd;
    struct table table;
    size_t count;
};

static uint64_t record_check(const struct record *r)
{
    uint64_t sum = r->slot * UINT64_C(0x9e3779b97f4a7c15) ^ r->device;
    sum = (sum ^ sum >> 31) * UINT64_C(0xbf58476d1ce4e5b9) ^ r->ino;
    return (sum ^ sum >> 29) * UINT64_C(0x94d049bb133111eb) | 1;
}

static uint64_t record_key(const struct record *r)
{
    return table_hash_pair(r->ino, r->device ^ r->slot << 40);
}

static struct entry *find_locked(const struct inode_numbers *numbers, const struct record *record)
{
    struct entry *e = table_get(&numbers->table, record_key(record));
    while (e && (e->record.slot != record->slot || e->record.device != record->device ||
                 e->record.ino != record->ino))
        e = e->next;
    return e;
}

static int add_locked(struct inode_numbers *numbers, const struct record *record)
{
    struct entry *e = malloc(sizeof *e);
    if (!e)
        return -ENOMEM;
    uint64_t key = record_key(record);
    *e = (struct entry){
        .next = table_get(&numbers->table, key),
        .record = *record,
        .number = GIVEN_SLOT << INODE_NUMBER_BITS | (numbers->count + 1),
    };
    int r = table_put(&numbers->table, key, e, NULL);
    if (r < 0) {
        free(e);
        return r;
    }
    numbers->count++;
    return 0;
}

static int load(struct inode_numbers *numbers)
{
    struct record record;
    for (;;) {
        off_t at = (off_t)(numbers->count * sizeof record);
        ssize_t n = pread(numbers->fd, &record, sizeof record, at);
        if (n < 0)
            return -errno;
        if (n == 0)
            return 0;
        /* The last record may have been cut short by a crash; nobody was told its number. */
        if (n < (ssize_t)sizeof record)
            return ftruncate(numbers->fd, at) < 0 ? -errno : 0;
        if (record.check != record_check(&record) || numbers->count >= INODE_NUMBERS_MAX)
            return -EIO;
        int r = add_locked(numbers, &record);
        if (r < 0)
            return r;
    }
}

int inode_numbers_open(int root_fd, struct inode_numbers **ret)
{
    struct inode_numbers *numbers = calloc(1, sizeof *numbers);
    if (!numbers)
        return -ENOMEM;
    (void)pthread_mutex_init(&numbers->lock, NULL);
    numbers->fd = openat(root_fd, NUMBERS_FILE, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    int r = numbers->fd < 0 ? -errno : load(numbers);
    if (r < 0) {
        inode_numbers_close(numbers);
        return r;
    }
    *ret = numbers;
    return 0;
}

void inode_numbers_close(struct inode_numbers *numbers)
{
    if (!numbers)
        return;
    struct entry *e;
    for (size_t i = 0; (e = table_next(&numbers->table, &i));)
        while (e) {
            struct entry *next = e->next;
            free(e);
            e = next;
        }
    table_release(&numbers->table);
    close_fd(&numbers->fd);
    (void)pthread_mutex_destroy(&numbers->lock);
    free(numbers);
}

static int give_locked(struct inode_numbers *numbers, const struct record *record)
{
    if (numbers->count >= INODE_NUMBERS_MAX)
        return -ENFILE;
    /* Written before it is told to anyone. Not fsynced: after a power cut no mount is left
     * that remembers it. */
    off_t at = (off_t)(numbers->count * sizeof *record);
    ssize_t n = pwrite(numbers->fd, record, sizeof *record, at);
    if (n < 0)
        return -errno;
    if (n < (ssize_t)sizeof *record)
        return -ENOSPC;
    return add_locked(numbers, record);
}

int inode_number(struct inode_numbers *numbers, uint32_t slot, dev_t own_device, dev_t device,
                 uint64_t ino, uint64_t *ret)
{
    if (device == own_device && ino < OWN_LIMIT) {
        *ret = (uint64_t)slot << INODE_NUMBER_BITS | ino;
        return 0;
    }
    struct record record = {.slot = slot, .device = device, .ino = ino};
    record.check = record_check(&record);
    int r = 0;
    (void)pthread_mutex_lock(&numbers->lock);
    struct entry *e = find_locked(numbers, &record);
    if (!e) {
        r = give_locked(numbers, &record);
        e = r == 0 ? find_locked(numbers, &record) : NULL;
    }
    if (e)
        *ret = e->number;
    (void)pthread_mutex_unlock(&numbers->lock);
    return r;
}

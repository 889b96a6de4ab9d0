#include "watch/file_handle.h"

#include <errno.h>

#include "base/hash.h"

uint64_t file_handle_hash(const struct file_handle *handle)
{
    uint64_t hash = hash_bytes(HASH_START, &handle->handle_type, sizeof handle->handle_type);
    return hash_end(hash_bytes(hash, handle->f_handle, handle->handle_bytes));
}

int file_handle_hash_at(int dir_fd, const char *name, uint64_t *ret)
{
    union {
        struct file_handle handle;
        uint8_t space[sizeof(struct file_handle) + MAX_HANDLE_SZ];
    } h = {.handle.handle_bytes = MAX_HANDLE_SZ};
    int mount_id;
    if (name_to_handle_at(dir_fd, name, &h.handle, &mount_id, name[0] ? 0 : AT_EMPTY_PATH) < 0)
        return -errno;
    *ret = file_handle_hash(&h.handle);
    return 0;
}

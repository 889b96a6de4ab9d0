/* A workspace's meta.json: what a directory of workspaces/ is. It lies beside tree/, where
 * nothing that runs in the workspace can change it. */
#pragma once

#include "names/thread_id.h"
#include "wire/wire.h"

struct meta {
    uint8_t thread_id[THREAD_ID_MAX];
    size_t thread_id_len;
    struct wire_time created_at;
    uint32_t slot;
};

/* -ENOENT, -EIO (not what meta_write writes), -ENOMEM, others of open and read. */
int meta_read(int dir_fd, struct meta *ret);

/* Durable when it returns 0. */
int meta_write(int dir_fd, const struct meta *meta);

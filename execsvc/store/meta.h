/* A workspace's meta.json: what a directory of workspaces/ is. It lies beside tree/, where
 * nothing that runs in the workspace can change it. Its time of modification says when the
 * workspace was used last (index.h). */
#pragma once

#include "base/cleanup.h"
#include "names/thread_id.h"
#include "wire/wire.h"

struct meta {
    uint8_t thread_id[THREAD_ID_MAX];
    size_t thread_id_len;
    struct wire_time created_at;
    uint32_t slot;
    enum wire_workspace_state state;
    uint64_t revision;   /* from 1 */
    uint64_t idle_ms;    /* 0: none */
    uint64_t expires_ms; /* CLOCK_REALTIME; 0: never */
    char *labels;        /* a text of labels.h, never NULL once read or written */
};

void meta_release(struct meta *meta);
#define _cleanup_meta_ _cleanup_(meta_release)

/* Reads what this and the first version have written. -ENOENT, -EIO (not what meta_write writes),
 * -ENOMEM, others of open and read. *ret is to be released on success. */
int meta_read(int dir_fd, struct meta *ret);

/* Durable when it returns 0. */
int meta_write(int dir_fd, const struct meta *meta);

/* When the workspace was used last, at the latest. CLOCK_REALTIME. */
int meta_used(int dir_fd, uint64_t *ret_ms);
int meta_set_used(int dir_fd, uint64_t ms);

/* Work that may block for ever in somebody's filesystem, done in a child process and waited
 * for in bounded time. A thread would not do: a process with a thread in an uninterruptible
 * wait cannot end. */
#pragma once

#include "base/buffer.h"

/* Runs in the child: fills *out and returns 0 or a negative errno. It has no descriptors but
 * those it opens. */
typedef int bounded_fn(const void *context, struct buffer *out);

/* What `work` returned and, for 0, what it wrote (owned by the caller). -ETIMEDOUT: no answer;
 * the child is killed, or dies as soon as the kernel lets it. -EIO: the child crashed.
 * -EAGAIN, -EMFILE, -ENOMEM. For programs with one thread. */
int bounded_run(bounded_fn *work, const void *context, uint32_t timeout_ms, struct buffer *ret);

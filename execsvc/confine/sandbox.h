/* What the commands of one workspace share and nothing else can see: a pid namespace whose init is
 * ours, with a /proc of its own. They see and signal each other; nothing they do, `kill -9 -1` as
 * root included, reaches a process outside, the init among them (the kernel keeps signals of its
 * own children from it). When the init ends, because the service was killed for example, the kernel
 * kills everything inside.
 *
 * It is made with a workspace's first command and lives until none of its commands has a process
 * any more and a while has passed: joining it costs a command next to nothing, making it takes
 * milliseconds. Where the service is not root, it is made in a user namespace in which the user is
 * the same; there are no others in it.
 *
 * Further namespaces of a workspace are made and joined here. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/failure.h"

struct sandbox;

/* Makes one. What can be missing: namespaces, the right to make them, a /proc that may be mounted.
 */
int sandbox_new(struct sandbox **ret, struct failure *ret_failure);

/* Kills everything in it. *ret_pidfd (owned by the caller) is its init, to be reaped. */
void sandbox_end(struct sandbox *s, int *ret_pidfd);

/* False: its init has ended, which nobody can have asked for; it is of no more use. */
bool sandbox_works(const struct sandbox *s);

/* For the child that is to become part of it, whose own children then are: async-signal-safe. After
 * this the child's root and working directory are the sandbox's. */
int sandbox_join(const struct sandbox *s);

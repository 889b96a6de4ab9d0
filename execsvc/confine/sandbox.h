/* What the commands of one workspace share and nothing else can see: namespaces, of which one is a
 * pid namespace whose init is ours. They see and signal each other; nothing they do, `kill -9 -1`
 * as root included, reaches a process outside, the init among them (the kernel keeps signals of its
 * own children from it). When the init ends, because the service was killed for example, the kernel
 * kills everything inside.
 *
 * It is made with a workspace's first command and lives until none of its commands has a process
 * any more and a while has passed: joining it costs a command next to nothing, making it takes
 * milliseconds. Where the service may not make namespaces, it is made in a user namespace in which
 * the user is the same; there are no others in it.
 *
 * The init makes what is inside: the root that commands see (root.h), the loopback, and the set of
 * Landlock's that holds them there. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/failure.h"
#include "confine/landlock.h"
#include "confine/root.h"

struct sandbox;

/* What can be made. A pid namespace and one for mounts are always there. */
#define SANDBOX_NAMESPACES (CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS)

struct sandbox_options {
    int namespaces; /* of SANDBOX_NAMESPACES */
    /* NULL: what the service sees, with a /proc of its own. Borrowed for sandbox_new. */
    struct root *root;
    /* With a root: a set of Landlock's for what is in it. NULL: none. */
    const struct landlock_options *landlock;
    /* Without a root: a set that is to have what is in the sandbox's /proc as well, or -1. */
    int landlock_outside;
    /* With CLONE_NEWNET: a socket that listens on 127.0.0.1:PORT inside; 0: none. */
    uint16_t port;
};

/* Makes one. What can be missing: namespaces, the right to make them, a /proc that may be mounted.
 */
int sandbox_new(const struct sandbox_options *options, struct sandbox **ret,
                struct failure *ret_failure);

/* Kills everything in it. *ret_pidfd (owned by the caller) is its init, to be reaped. */
void sandbox_end(struct sandbox *s, int *ret_pidfd);

/* False: its init has ended, which nobody can have asked for; it is of no more use. */
bool sandbox_works(const struct sandbox *s);

/* Directory of its terminals, of which "ptmx" makes new ones; -1: they are the service's. Borrowed.
 */
int sandbox_terminals(const struct sandbox *s);

/* The set of Landlock's, or -1. Borrowed. */
int sandbox_landlock(const struct sandbox *s);

/* Its root with all that is in it, seen from outside, where nothing keeps the directories of the
 * root itself from being written to; -1: it has no root of its own. Borrowed. */
int sandbox_tree(const struct sandbox *s);

/* The socket that listens inside (stream, blocking, close-on-exec), which the caller takes over; it
 * keeps the network namespace alive. -1: there is none, or it was taken. Connections to it come
 * from commands of this workspace and nobody else. */
int sandbox_take_listener(struct sandbox *s);

/* For the child that is to become part of it, whose own children then are: async-signal-safe. After
 * this the child's root and working directory are the sandbox's. mounts: a mount namespace that
 * was derived from the sandbox's, instead of that; or -1. */
int sandbox_join(const struct sandbox *s, int mounts);

/* The same for a moment: `visit` runs there, with our memory and our descriptors, while we wait:
 * what it opens is ours. What it forks is inside, itself it is not. Async-signal-safe functions
 * only. A negative errno, or what it returns. */
int sandbox_visit(const struct sandbox *s, int mounts, int (*visit)(void *context), void *context);

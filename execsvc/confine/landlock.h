/* Landlock: files that a process and its children can reach, by what they are in, whatever their
 * modes say; TCP, and signals and abstract sockets beyond themselves. It needs no privileges and
 * cannot be given back. */
#pragma once

#include <stdbool.h>

enum landlock_right {
    LANDLOCK_READ,    /* read and list */
    LANDLOCK_RUN,     /* and run */
    LANDLOCK_DEVICES, /* read, write and ioctl, but make nothing */
    LANDLOCK_OWN,     /* everything but making devices */
    LANDLOCK_LIST,    /* list directories */
    LANDLOCK_KEEP,    /* everything to files, but running them or talking to devices */
};

struct landlock_options {
    bool no_tcp;     /* neither connect nor bind (ABI 4) */
    bool no_sockets; /* abstract unix sockets of others (ABI 6) */
    bool no_signals; /* to others (ABI 6) */
};

/* The kernel's version of it, or a negative errno: -EOPNOTSUPP when it is off. */
int landlock_abi(void);

/* These are async-signal-safe.
 *
 * A set without rights (close-on-exec), as strict as this kernel can be: whatever its version
 * cannot refuse is not refused. */
int landlock_new(const struct landlock_options *options, int *ret);

/* What is at the path, and below it. -ENOENT. */
int landlock_allow(int set, const char *path, enum landlock_right right);

/* Confines the calling thread; it needs no_new_privs. */
int landlock_enter(int set);

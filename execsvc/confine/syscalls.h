/* System calls that commands have no use for, and those who want to get out do: refused by seccomp
 * with an errno, as a kernel without them or without the privilege would. */
#pragma once

#include <linux/filter.h>

#include "base/failure.h"

enum syscalls_flag {
    SYSCALLS_NO_SOCKETS = 1, /* none but unix sockets: there is no network namespace */
    SYSCALLS_NO_TRACING = 2, /* of other processes: nothing else keeps it inside */
    SYSCALLS_NO_UNIX = 4,    /* but for pairs: Landlock lets everybody connect to what has a path */
    SYSCALLS_NO_OTHERS = 8,  /* limits and priorities of others: there is no pid namespace */
    SYSCALLS_NO_IPC = 16,    /* there is no ipc namespace */
    SYSCALLS_NO_PROJECTS = 32, /* to leave the one whose quota limits the workspace */
    SYSCALLS_NO_SETID = 64,    /* set-user-ID files: no layer sees whose mode is changed */
    SYSCALLS_FLAGS = 128,      /* how many combinations there are */
};

/* A filter, to be freed by syscalls_filter_release. -ENOMEM; others when libseccomp cannot. */
int syscalls_filter_new(unsigned flags, struct sock_fprog *ret, struct failure *ret_failure);
void syscalls_filter_release(struct sock_fprog *filter);

/* Of the calling thread, for good; it needs no_new_privs. Async-signal-safe. */
int syscalls_filter_enter(const struct sock_fprog *filter);

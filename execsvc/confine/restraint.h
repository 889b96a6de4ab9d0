/* What a command's child takes upon itself, between its set-up and its execve: limits, privileges
 * given up, Landlock and seccomp; and then a look whether all of it, and the namespaces that it was
 * forked in, are as they were when they were made. */
#pragma once

#include <linux/filter.h>
#include <stdbool.h>
#include <stdint.h>

#include "confine/attest.h"

#define RESTRAINT_CPU_GRACE 1

/* Borrowed by whoever has one; it lives as long as its cell (confinement.h). */
struct restraint {
    uint64_t open_files; /* limits, 0: as they are */
    uint64_t file_size;
    uint64_t cpu_time;  /* seconds; SIGXCPU, and after RESTRAINT_CPU_GRACE more SIGKILL */
    uint64_t processes; /* threads too, of the user's in this user namespace */
    bool drops_capabilities;
    bool gains_none;          /* no_new_privs */
    int landlock;             /* a set of Landlock's, or -1 */
    struct sock_fprog filter; /* of system calls; borrowed; without a filter, none */
    const char *forbidden;    /* what Landlock keeps from everybody, or NULL */
    bool attested;            /* compared with: */
    struct attest_facts expected;
    struct attest_scope scope;
};

enum restraint_step {
    RESTRAINT_LIMITS,
    RESTRAINT_CAPABILITIES,
    RESTRAINT_PRIVILEGES,
    RESTRAINT_LANDLOCK,
    RESTRAINT_SYSCALLS,
    RESTRAINT_MEASURE,
    RESTRAINT_ATTEST, /* and above: what differs, as of attest_compare */
};

/* landlock: the restraint's, wherever this process has it now.
 *
 * All of it, for the calling thread. 0, or a negative errno (-EPERM from RESTRAINT_ATTEST on) and
 * where it failed. Async-signal-safe. */
int restraint_enter(const struct restraint *restraint, int landlock, uint32_t *ret_step);

/* What failed, in words. */
const char *restraint_step_name(uint32_t step);

/* All but the last, and what is measured then. Async-signal-safe. */
int restraint_probe(const struct restraint *restraint, int landlock, struct attest_facts *ret,
                    uint32_t *ret_step);

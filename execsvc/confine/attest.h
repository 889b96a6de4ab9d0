/* What really holds a process, as the kernel tells it: measured by a probe when a workspace's
 * sandbox has been made, and by every command's child as the last thing before its execve. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

enum attest_namespace {
    ATTEST_USER,
    ATTEST_MOUNT,
    ATTEST_PID,
    ATTEST_NET,
    ATTEST_IPC,
    ATTEST_UTS,
    ATTEST_NAMESPACES,
};

/* Numbers of what there is; texts are not kept, so that they fit into a message of a pipe. */
struct attest_facts {
    uint64_t namespaces[ATTEST_NAMESPACES]; /* their inodes */
    uint64_t capabilities;                  /* of all sets together, a bit each */
    uint64_t no_new_privileges;
    uint64_t seccomp;         /* 2: a filter */
    uint64_t mounts;          /* how many, */
    uint64_t mounts_hash;     /* and of all that the kernel says of them */
    uint64_t interfaces;      /* network interfaces, */
    uint64_t interfaces_hash; /* and of their names */
    uint64_t forbidden_error; /* errno of opening what no command may open; 0: it was opened */
    uint64_t open_files;      /* hard limits, UINT64_MAX: none; expected: at most */
    uint64_t file_size;
    uint64_t cpu_time; /* in seconds */
};

/* forbidden: what must not be opened, a file or a directory; NULL: nothing. -errno when the kernel
 * does not tell. Async-signal-safe. */
int attest_measure(const char *forbidden, struct attest_facts *ret);

/* Of what is compared. Others may change without our doing: mounts where they are shared with the
 * machine, interfaces of the machine's network. */
struct attest_scope {
    bool mounts;
    bool interfaces;
};

/* What differs, as a word of attest_difference_name; 0: nothing. Async-signal-safe. */
uint32_t attest_compare(const struct attest_facts *measured, const struct attest_facts *expected,
                        const struct attest_scope *scope);
const char *attest_difference_name(uint32_t difference);

/* For people and scripts. NULL: no memory. */
json_t *attest_to_json(const struct attest_facts *facts);

/* As "user", "mount", "pid", "net", "ipc", "uts". */
const char *attest_namespace_name(enum attest_namespace n);

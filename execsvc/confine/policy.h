/* What a workspace's commands may do, as the operator or who made the workspace has asked: one JSON
 * object, of which every part may be left out (berth-policy(5)).
 *
 * {"filesystem": "own" | "host" | {"read": ["/opt/tools"]},
 *  "network": "none" | "host" | {"allow": ["pypi.org:443", "*.example.com:443"]},
 *  "limits": {"memory": "2G", "pids": 512, "cpu": 1.5, "cpu_time": 600, "file_size": "1G",
 * "open_files": 1024, "wall_time": 3600, "disk": "10G", "files": 100000}, "user": "service",
 * "require": ["full", "landlock"]}
 *
 * Whether it can be had on this machine is not known here, but to whoever enforces it. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/failure.h"
#include "egress/allow_list.h"

/* Bytes of a document, and entries of its lists: stop who makes workspaces from filling memory. */
#define POLICY_TEXT_MAX 16384
#define POLICY_LIST_MAX 128

enum policy_filesystem {
    POLICY_FILESYSTEM_OWN,  /* its workspace, and what of the system programs need */
    POLICY_FILESYSTEM_HOST, /* all that the service's user can reach */
};

enum policy_network {
    POLICY_NETWORK_NONE,  /* a loopback of its own */
    POLICY_NETWORK_ALLOW, /* and, through a proxy, what is listed */
    POLICY_NETWORK_HOST,  /* the service's own */
};

struct policy {
    enum policy_filesystem filesystem;
    char **read; /* absolute paths without "..", to be read beside the workspace */
    size_t read_count;
    enum policy_network network;
    struct allow_list *allow; /* POLICY_NETWORK_ALLOW: of egress/allow_list.h */
    uint64_t memory_bytes; /* of a command's processes together; this and the next: 0 is no limit */
    uint64_t pids;
    uint64_t cpu_percent; /* of one processor: 150 is one and a half */
    uint64_t disk_bytes;  /* of the workspace, as the next */
    uint64_t disk_files;
    uint64_t cpu_time; /* seconds, of each process; as the next two */
    uint64_t file_size;
    uint64_t open_files;
    uint64_t wall_time_ms;
    char **require; /* levels and mechanisms, as confinement.h names them */
    size_t require_count;
};

/* What holds when nobody says anything. */
#define POLICY_DEFAULT ((struct policy){.filesystem = POLICY_FILESYSTEM_OWN})

/* Reads a document; what it leaves out is as in `base` (NULL: POLICY_DEFAULT). -EINVAL: the failure
 * begins with the field, "limits.memory: …"; -ENOMEM. */
int policy_parse(struct bytes text, const struct policy *base, struct policy *ret,
                 struct failure *ret_failure);

/* The same of a value within another document, whose path is put before the field's. */
int policy_from_json(const json_t *object, const char *path, const struct policy *base,
                     struct policy *ret, struct failure *ret_failure);

/* -ENOMEM. */
int policy_copy(const struct policy *from, struct policy *ret);

/* The whole of it, nothing left out. NULL: no memory. */
json_t *policy_to_json(const struct policy *policy);

/* An array of the names of the fields in which they differ. NULL: no memory. */
json_t *policy_differences(const struct policy *a, const struct policy *b);

void policy_release(struct policy *policy);
#define _cleanup_policy_ _cleanup_(policy_release)

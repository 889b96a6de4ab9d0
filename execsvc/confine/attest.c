#include "confine/attest.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/hash.h"

/* Bytes of a file that are read at a time; /proc/self/status is read as one. */
#define READ_SIZE 8192

static const char *const namespace_names[] = {"user", "mount", "pid", "net", "ipc", "uts"};
static const char *const namespace_paths[] = {"/proc/self/ns/user", "/proc/self/ns/mnt",
                                              "/proc/self/ns/pid",  "/proc/self/ns/net",
                                              "/proc/self/ns/ipc",  "/proc/self/ns/uts"};

/* Everything that is compared as it is, in the order in which it is told. */
static const struct {
    const char *name;
    size_t offset;
} fields[] = {
    {"the user namespace", offsetof(struct attest_facts, namespaces[ATTEST_USER])},
    {"the mount namespace", offsetof(struct attest_facts, namespaces[ATTEST_MOUNT])},
    {"the pid namespace", offsetof(struct attest_facts, namespaces[ATTEST_PID])},
    {"the network namespace", offsetof(struct attest_facts, namespaces[ATTEST_NET])},
    {"the ipc namespace", offsetof(struct attest_facts, namespaces[ATTEST_IPC])},
    {"the uts namespace", offsetof(struct attest_facts, namespaces[ATTEST_UTS])},
    {"capabilities", offsetof(struct attest_facts, capabilities)},
    {"no_new_privs", offsetof(struct attest_facts, no_new_privileges)},
    {"the filter of system calls", offsetof(struct attest_facts, seccomp)},
    {"what Landlock forbids", offsetof(struct attest_facts, forbidden_error)},
    {"the limit on open files", offsetof(struct attest_facts, open_files)},
    {"the limit on file sizes", offsetof(struct attest_facts, file_size)},
    {"the limit on processor time", offsetof(struct attest_facts, cpu_time)},
    {"the number of mounts", offsetof(struct attest_facts, mounts)},
    {"the mounts", offsetof(struct attest_facts, mounts_hash)},
    {"the number of network interfaces", offsetof(struct attest_facts, interfaces)},
    {"the network interfaces", offsetof(struct attest_facts, interfaces_hash)},
};

/* The first of fields that is about limits, mounts, and interfaces. */
#define FIELD_LIMITS 10
#define FIELD_MOUNTS 13
#define FIELD_INTERFACES 15

static uint64_t field(const struct attest_facts *facts, size_t i)
{
    uint64_t value;
    memcpy(&value, (const char *)facts + fields[i].offset, sizeof value);
    return value;
}

/* --- measuring: async-signal-safe functions only --------------------------------------------- */

static int measure_namespaces(struct attest_facts *f)
{
    struct stat st;
    for (size_t i = 0; i < ATTEST_NAMESPACES; i++) {
        f->namespaces[i] = 0;
        if (stat(namespace_paths[i], &st) == 0)
            f->namespaces[i] = st.st_ino;
        else if (errno != ENOENT) /* the kernel has none of this kind */
            return -errno;
    }
    return 0;
}

/* The number behind "\nKEY:\t" in a file's text, of that base. */
static int status_number(const char *text, const char *key, int base, uint64_t *ret)
{
    const char *at = strstr(text, key);
    if (!at)
        return -ENODATA;
    *ret = strtoull(at + strlen(key), NULL, base);
    return 0;
}

static int measure_status(struct attest_facts *f)
{
    static const char *const sets[] = {"\nCapInh:\t", "\nCapPrm:\t", "\nCapEff:\t", "\nCapBnd:\t",
                                       "\nCapAmb:\t"};
    char text[READ_SIZE];
    _cleanup_close_ int fd = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (n < 0)
        return -errno;
    text[n] = 0;
    int r = status_number(text, "\nNoNewPrivs:\t", 10, &f->no_new_privileges);
    /* A kernel without it has no such line. */
    if (status_number(text, "\nSeccomp:\t", 10, &f->seccomp) < 0)
        f->seccomp = 0;
    f->capabilities = 0;
    for (size_t i = 0; r == 0 && i < ARRAY_SIZE(sets); i++) {
        uint64_t set;
        r = status_number(text, sets[i], 16, &set);
        /* What cannot come back: with no_new_privs the bounding set of a process that has no
         * capabilities gives none to anybody. */
        if (r == 0 && (i != 3 || !f->no_new_privileges))
            f->capabilities |= set;
    }
    return r;
}

static int measure_mounts(struct attest_facts *f)
{
    char text[READ_SIZE];
    uint64_t hash = HASH_START;
    ssize_t n;
    f->mounts = 0;
    _cleanup_close_ int fd = open("/proc/self/mountinfo", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    while ((n = read(fd, text, sizeof text)) > 0) {
        hash = hash_bytes(hash, text, (size_t)n);
        for (ssize_t i = 0; i < n; i++)
            f->mounts += text[i] == '\n';
    }
    f->mounts_hash = hash_end(hash);
    return n < 0 ? -errno : 0;
}

/* /proc/self/net/dev: two lines of headings, then "  NAME: numbers that change". */
static int measure_interfaces(struct attest_facts *f)
{
    char text[READ_SIZE];
    uint64_t hash = HASH_START;
    unsigned line = 0;
    bool in_name = true;
    ssize_t n;
    f->interfaces = 0;
    _cleanup_close_ int fd = open("/proc/self/net/dev", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    while ((n = read(fd, text, sizeof text)) > 0) {
        for (ssize_t i = 0; i < n; i++) {
            if (text[i] == '\n') {
                line++;
                in_name = true;
            } else if (line >= 2 && in_name && text[i] != ' ') {
                hash = hash_bytes(hash, &text[i], 1);
                in_name = text[i] != ':';
                f->interfaces += !in_name;
            }
        }
    }
    f->interfaces_hash = hash_end(hash);
    return n < 0 ? -errno : 0;
}

static uint64_t hard_limit(int resource)
{
    struct rlimit limit;
    return getrlimit(resource, &limit) < 0 ? UINT64_MAX : limit.rlim_max;
}

int attest_measure(const char *forbidden, struct attest_facts *ret)
{
    struct attest_facts f = {.open_files = hard_limit(RLIMIT_NOFILE),
                             .file_size = hard_limit(RLIMIT_FSIZE),
                             .cpu_time = hard_limit(RLIMIT_CPU)};
    int r = measure_namespaces(&f);
    if (r == 0)
        r = measure_status(&f);
    if (r == 0)
        r = measure_mounts(&f);
    if (r == 0)
        r = measure_interfaces(&f);
    if (r < 0)
        return r;
    if (forbidden) {
        _cleanup_close_ int fd = open(forbidden, O_RDONLY | O_CLOEXEC);
        f.forbidden_error = fd < 0 ? (uint64_t)errno : 0;
    }
    *ret = f;
    return 0;
}

uint32_t attest_compare(const struct attest_facts *measured, const struct attest_facts *expected,
                        const struct attest_scope *scope)
{
    for (size_t i = 0; i < ARRAY_SIZE(fields); i++) {
        if ((i >= FIELD_INTERFACES && !scope->interfaces) ||
            (i >= FIELD_MOUNTS && i < FIELD_INTERFACES && !scope->mounts))
            continue;
        bool limit = i >= FIELD_LIMITS && i < FIELD_MOUNTS;
        if (limit ? field(measured, i) > field(expected, i)
                  : field(measured, i) != field(expected, i))
            return (uint32_t)i + 1;
    }
    return 0;
}

/* --- telling --------------------------------------------------------------------------------- */

const char *attest_difference_name(uint32_t difference)
{
    return difference > 0 && difference <= ARRAY_SIZE(fields) ? fields[difference - 1].name
                                                              : "nothing";
}

const char *attest_namespace_name(enum attest_namespace n)
{
    return namespace_names[n];
}

static json_t *limit_of(uint64_t value)
{
    return value > INT64_MAX ? json_null() : json_integer((json_int_t)value);
}

json_t *attest_to_json(const struct attest_facts *f)
{
    json_t *namespaces = json_object();
    for (size_t i = 0; namespaces && i < ATTEST_NAMESPACES; i++)
        if (json_object_set_new(namespaces, namespace_names[i],
                                json_integer((json_int_t)f->namespaces[i])) < 0) {
            json_decref(namespaces);
            return NULL;
        }
    return json_pack(
        "{s:o, s:o, s:b, s:b, s:I, s:I, s:I, s:{s:o, s:o, s:o}}", "namespaces", namespaces,
        "capabilities", json_sprintf("%016llx", (unsigned long long)f->capabilities),
        "no_new_privs", f->no_new_privileges != 0, "seccomp", f->seccomp == 2, "mounts",
        (json_int_t)f->mounts, "interfaces", (json_int_t)f->interfaces, "forbidden_errno",
        (json_int_t)f->forbidden_error, "limits", "open_files", limit_of(f->open_files),
        "file_size", limit_of(f->file_size), "cpu_time", limit_of(f->cpu_time));
}

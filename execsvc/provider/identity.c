#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <sha2.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "config/paths.h"
#include "provider/binding.h"
#include "provider/sandbox.h"

/* A DNS label: what vendors take for names and for values of labels. */
#define LABEL_MAX 63

#define PREFIX_MAX 24 /* what people recognise of the thread ID */
#define HASH_BYTES 6
#define OWNER_FILE "owner"
#define BINDING_MAX 16

static void append_hex(char *text, const uint8_t *bytes, size_t count)
{
    size_t len = strlen(text);
    for (size_t i = 0; i < count; i++)
        len += (size_t)snprintf(text + len, 3, "%02x", bytes[i]);
}

/* Lower-case letters and digits, with one '-' for whatever else is between them. */
static void append_label(char *text, struct bytes from, size_t max)
{
    size_t len = strlen(text), first = len;
    bool gap = false;
    for (size_t i = 0; i < from.len && len - first < max; i++) {
        uint8_t c = from.data[i];
        if (c >= 'A' && c <= 'Z')
            c += 'a' - 'A';
        bool plain = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
        if (plain && gap && len > first && len - first + 1 < max)
            text[len++] = '-';
        if (plain)
            text[len++] = (char)c;
        gap = !plain;
    }
    text[len] = '\0';
}

/* --- whose they are ------------------------------------------------------------------------ */

static int make_owner(char text[LABEL_MAX + 1])
{
    char host[256] = "";
    uint8_t random[4];
    struct passwd entry, *found = NULL;
    char buffer[16384];
    if (getrandom(random, sizeof random, 0) != sizeof random)
        return -EIO;
    (void)getpwuid_r(geteuid(), &entry, buffer, sizeof buffer, &found);
    (void)gethostname(host, sizeof host - 1);
    text[0] = '\0';
    append_label(text, bytes_of_string(found ? found->pw_name : "user"), 20);
    (void)strcat(text, *text ? "-" : "user-");
    size_t len = strlen(text);
    append_label(text, bytes_of(host, strcspn(host, ".")), 20);
    if (strlen(text) > len)
        (void)strcat(text, "-");
    append_hex(text, random, sizeof random);
    return 0;
}

static bool is_label(const char *text)
{
    size_t len = strlen(text);
    return len > 0 && len <= LABEL_MAX && text[0] != '-' && text[len - 1] != '-' &&
           strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789-") == len;
}

/* What a copy of the file has not: this machine, and this file of its filesystem. */
static int make_binding(int fd, char text[BINDING_MAX + 1])
{
    struct stat st;
    char machine[256] = "";
    size_t len = 0;
    uint8_t hash[SHA256_DIGEST_LENGTH];
    SHA2_CTX context;
    if (fstat(fd, &st) < 0)
        return -errno;
    if (!S_ISREG(st.st_mode) || st.st_uid != geteuid() || (st.st_mode & 022))
        return -EPERM;
    _cleanup_close_ int id = open("/etc/machine-id", O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (id < 0 || file_read_up_to(id, machine, sizeof machine, &len) < 0 || len < 32) {
        (void)gethostname(machine, sizeof machine - 1);
        len = strlen(machine);
    }
    uint64_t inode = st.st_ino;
    SHA256Init(&context);
    SHA256Update(&context, (const uint8_t *)machine, len);
    SHA256Update(&context, (const uint8_t *)&inode, sizeof inode);
    SHA256Final(hash, &context);
    text[0] = '\0';
    append_hex(text, hash, BINDING_MAX / 2);
    return 0;
}

/* 0: there is none yet, or it is a copy's. -EINVAL: it is something else. */
static int read_owner(int fd, const char *binding, char text[LABEL_MAX + 1])
{
    char line[LABEL_MAX + BINDING_MAX + 3];
    size_t len;
    int r = file_read_up_to(fd, line, sizeof line, &len);
    if (r < 0 || len == 0)
        return r;
    if (line[len - 1] != '\n')
        return -EINVAL;
    line[len - 1] = '\0';
    char *bound = strchr(line, ' ');
    if (bound)
        *bound++ = '\0';
    if (!is_label(line))
        return -EINVAL;
    if (!bound || strcmp(bound, binding) != 0)
        return 0;
    (void)strcpy(text, line);
    return 1;
}

static int write_owner(int fd, const char *binding, const char *text)
{
    char line[LABEL_MAX + BINDING_MAX + 3];
    int len = snprintf(line, sizeof line, "%s %s\n", text, binding);
    if (ftruncate(fd, 0) < 0 || lseek(fd, 0, SEEK_SET) < 0)
        return -errno;
    int r = file_write_all(fd, line, (size_t)len);
    return r == 0 && fsync(fd) < 0 ? -errno : r;
}

/* In its place, since another file would be another inode. */
static int find_owner(const char *path, char text[LABEL_MAX + 1])
{
    char binding[BINDING_MAX + 1];
    _cleanup_close_ int fd =
        open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
    if (fd < 0)
        return -errno;
    while (flock(fd, LOCK_EX) < 0)
        if (errno != EINTR)
            return -errno;
    int r = make_binding(fd, binding);
    if (r == 0)
        r = read_owner(fd, binding, text);
    if (r != 0)
        return r < 0 ? r : 0;
    r = make_owner(text);
    return r == 0 ? write_owner(fd, binding, text) : r;
}

/* Beside the directory of places, which a lock makes. */
static int owner_path(char **ret, struct failure *f)
{
    _cleanup_free_ char *directory = NULL;
    _cleanup_close_ int lock = -1;
    int r = place_lock("", &lock, f);
    if (r < 0 && r != -EAGAIN)
        return r;
    r = paths_places_dir(&directory, f);
    if (r == 0 && asprintf(ret, "%s/../" OWNER_FILE, directory) < 0)
        r = failure_set(f, -ENOMEM, "out of memory");
    return r;
}

int sandbox_owner(char **ret, struct failure *ret_failure)
{
    _cleanup_free_ char *path = NULL;
    char text[LABEL_MAX + 1];
    int r = owner_path(&path, ret_failure);
    if (r < 0)
        return r;
    r = find_owner(path, text);
    if (r == 0 && !(*ret = strdup(text)))
        r = -ENOMEM;
    return r < 0 ? failure_set(ret_failure, r, "%s: %s", path,
                               r == -EINVAL  ? "is not what this program writes there"
                               : r == -EPERM ? "must be a file of yours that nobody else can write"
                                             : strerror(-r))
                 : 0;
}

/* --- names ---------------------------------------------------------------------------------- */

static int make_name(struct bytes id, char text[LABEL_MAX + 1])
{
    uint8_t random[16], hash[SHA256_DIGEST_LENGTH];
    SHA2_CTX context;
    if (getrandom(random, sizeof random, 0) != sizeof random)
        return -EIO;
    SHA256Init(&context);
    SHA256Update(&context, random, sizeof random);
    SHA256Update(&context, id.data, id.len);
    SHA256Final(hash, &context);
    (void)strcpy(text, "berth-");
    append_label(text, id, PREFIX_MAX);
    if (text[strlen(text) - 1] != '-')
        (void)strcat(text, "-");
    append_hex(text, hash, HASH_BYTES);
    return 0;
}

int sandbox_new_place(const struct profile *p, struct bytes id, json_t *parameters,
                      struct place *ret, struct failure *ret_failure)
{
    _cleanup_place_ struct place place = {.state = PLACE_CREATING, .created = (int64_t)time(NULL)};
    char name[LABEL_MAX + 1];
    int r = thread_id_to_name(id, place.name);
    if (r == 0)
        r = make_name(id, name);
    if (r == 0)
        r = buffer_append(&place.id, id.data, id.len);
    if (r < 0)
        return failure_set(ret_failure, r, "%s", strerror(-r));
    r = sandbox_owner(&place.created_by, ret_failure);
    if (r < 0)
        return r;
    place.provider = strdup(profile_text(p, "name"));
    place.sandbox = strdup(name);
    place.given_name = strdup(name);
    place.url = strdup("");
    place.parameters = json_incref(parameters);
    if (!place.provider || !place.sandbox || !place.given_name || !place.url)
        return failure_set(ret_failure, -ENOMEM, "out of memory");
    r = binding_take(p, &place, ret_failure);
    if (r < 0)
        return r;
    *ret = place;
    place = (struct place){0};
    return 0;
}

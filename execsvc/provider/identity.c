#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <sha2.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "config/paths.h"
#include "provider/sandbox.h"

/* A DNS label: what vendors take for names and for values of labels. */
#define LABEL_MAX 63

#define PREFIX_MAX 24 /* what people recognise of the thread ID */
#define HASH_BYTES 6
#define OWNER_FILE "owner"

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

static int read_owner(const char *path, char text[LABEL_MAX + 1])
{
    size_t len;
    _cleanup_close_ int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    int r = fd < 0 ? -errno : file_read_up_to(fd, text, LABEL_MAX + 1, &len);
    if (r < 0)
        return r;
    if (len == 0 || text[len - 1] != '\n')
        return -EINVAL;
    text[len - 1] = '\0';
    return is_label(text) ? 0 : -EINVAL;
}

/* One of several that begin at the same time is everybody's. */
static int write_owner(const char *path, const char *text)
{
    _cleanup_free_ char *temporary = NULL;
    if (asprintf(&temporary, "%s.%d", path, (int)getpid()) < 0) {
        temporary = NULL;
        return -ENOMEM;
    }
    _cleanup_close_ int fd =
        open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return -errno;
    int r = file_write_all(fd, text, strlen(text));
    if (r == 0)
        r = file_write_all(fd, "\n", 1);
    if (r == 0 && fsync(fd) < 0)
        r = -errno;
    if (r == 0 && link(temporary, path) < 0 && errno != EEXIST)
        r = -errno;
    (void)unlink(temporary);
    return r;
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
    char text[LABEL_MAX + 2];
    int r = owner_path(&path, ret_failure);
    if (r < 0)
        return r;
    r = read_owner(path, text);
    if (r == -ENOENT) {
        r = make_owner(text);
        if (r == 0)
            r = write_owner(path, text);
        if (r == 0)
            r = read_owner(path, text);
    }
    if (r == 0 && !(*ret = strdup(text)))
        r = -ENOMEM;
    return r < 0
               ? failure_set(ret_failure, r, "%s: %s", path,
                             r == -EINVAL ? "is not what this program writes there" : strerror(-r))
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
    *ret = place;
    place = (struct place){0};
    return 0;
}

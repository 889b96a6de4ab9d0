#include "control/identity.h"

#include <errno.h>
#include <fcntl.h>
#include <sha2.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "base/buffer.h"
#include "config/paths.h"

/* Certificates and keys; a wrong file, such as a device, must not fill memory. */
#define FILE_MAX (1 << 20)

/* What libcurl, or the command of an exec URL, is led by. The rest of the environment differs from
 * one terminal to the next and leads nowhere. */
static const char *const variables[] = {
    "https_proxy",    "HTTPS_PROXY",   "all_proxy",       "ALL_PROXY",      "no_proxy",
    "NO_PROXY",       "SSL_CERT_FILE", "SSL_CERT_DIR",    "CURL_CA_BUNDLE", "PATH",
    "HOME",           "SSH_AUTH_SOCK", "KUBECONFIG",      "DOCKER_HOST",    "DOCKER_CONTEXT",
    "CONTAINER_HOST", "DOCKER_CONFIG", "XDG_CONFIG_HOME",
};

/* Each with its length, so that no two lists of values are the same bytes. */
static int add(struct buffer *b, const char *name, struct bytes value, bool set)
{
    int r = buffer_printf(b, "%s %d %zu ", name, set, value.len);
    return r < 0 ? r : buffer_append(b, value.data, value.len);
}

static int add_string(struct buffer *b, const char *name, const char *value)
{
    return add(b, name, bytes_of_string(value), value != NULL);
}

static int add_file(struct buffer *b, const char *name, const char *path, struct failure *f)
{
    _cleanup_buffer_ struct buffer content = {0};
    int r = 0;
    if (path) {
        _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        ssize_t n = 1;
        if (fd < 0)
            return failure_set(f, -errno, "%s: %s", path, strerror(errno));
        while (r == 0 && n > 0 && content.len <= FILE_MAX) {
            r = buffer_reserve(&content, 16384);
            n = r == 0 ? read(fd, content.data + content.len, 16384) : 0;
            if (n > 0)
                content.len += (size_t)n;
        }
        if (n < 0)
            return failure_set(f, -errno, "%s: %s", path, strerror(errno));
    }
    if (r == 0)
        r = add(b, name, buffer_view(&content), path != NULL);
    if (content.data)
        explicit_bzero(content.data, content.allocated);
    return r < 0 ? failure_set(f, r, "out of memory") : 0;
}

int identity_of(const struct client_settings *s, char ret[static IDENTITY_SIZE],
                struct failure *ret_failure)
{
    _cleanup_buffer_ struct buffer all = {0};
    int r = buffer_printf(&all, "berth/" BERTH_VERSION " %u ", (unsigned)geteuid());
    if (r == 0)
        r = add_string(&all, "url", s->url);
    if (r == 0)
        r = add_string(&all, "token", s->token);
    for (size_t i = 0; r == 0 && i < ARRAY_SIZE(variables); i++)
        r = add_string(&all, variables[i], getenv(variables[i]));
    if (r < 0)
        (void)failure_set(ret_failure, r, "out of memory");
    if (r == 0)
        r = add_file(&all, "ca", s->ca_file, ret_failure);
    if (r == 0)
        r = add_file(&all, "cert", s->cert_file, ret_failure);
    if (r == 0)
        r = add_file(&all, "key", s->key_file, ret_failure);
    uint8_t digest[32];
    SHA2_CTX context;
    SHA256Init(&context);
    SHA256Update(&context, all.data, all.len);
    SHA256Final(digest, &context);
    explicit_bzero(&context, sizeof context);
    if (all.data)
        explicit_bzero(all.data, all.allocated);
    for (size_t i = 0; r == 0 && i < (IDENTITY_SIZE - 1) / 2; i++)
        (void)snprintf(ret + 2 * i, 3, "%02x", digest[i]);
    return r;
}

int identity_directory(char **ret, struct failure *ret_failure)
{
    _cleanup_free_ char *runtime = NULL;
    _cleanup_free_ char *path = NULL;
    struct stat st;
    int r = paths_make_socket_dir(ret_failure);
    if (r == 0)
        r = paths_runtime_dir(&runtime, ret_failure);
    if (r < 0)
        return r;
    if (asprintf(&path, "%s/control", runtime) < 0) {
        path = NULL;
        return failure_set(ret_failure, -ENOMEM, "out of memory");
    }
    if (mkdir(path, 0700) < 0 && errno != EEXIST)
        return failure_set(ret_failure, -errno, "%s: %s", path, strerror(errno));
    if (lstat(path, &st) < 0)
        return failure_set(ret_failure, -errno, "%s: %s", path, strerror(errno));
    if (!S_ISDIR(st.st_mode) || st.st_uid != geteuid() || (st.st_mode & 077))
        return failure_set(ret_failure, -EPERM,
                           "%s: this must be a directory that belongs to you, with mode 0700",
                           path);
    *ret = take_ptr(path);
    return 0;
}

int identity_socket(const char *directory, const char *identity, pid_t pid, char **ret)
{
    char *path;
    int n = pid ? asprintf(&path, "%s/%s-%d", directory, identity, (int)pid)
                : asprintf(&path, "%s/%s", directory, identity);
    if (n < 0)
        return -ENOMEM;
    *ret = path;
    return 0;
}

bool identity_matches(const char *identity, const char *path)
{
    const char *slash = strrchr(path, '/');
    const char *name = slash ? slash + 1 : path;
    size_t len = strlen(identity);
    return strncmp(name, identity, len) == 0 && (name[len] == '\0' || name[len] == '-');
}

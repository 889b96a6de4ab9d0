#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "config/config.h"

/* One byte more than may be, so that a longer file is noticed. */
static int read_file(int fd, uint8_t *text, size_t *ret_len)
{
    size_t len = 0;
    while (len <= VISIBILITY_TEXT_MAX) {
        ssize_t n = read(fd, text + len, VISIBILITY_TEXT_MAX + 1 - len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        if (n == 0)
            break;
        len += (size_t)n;
    }
    *ret_len = len;
    return 0;
}

static int load_file(const char *file, struct visibility_rules **ret, struct failure *f)
{
    _cleanup_close_ int fd = open(file, O_RDONLY | O_NOCTTY | O_CLOEXEC);
    if (fd < 0)
        return failure_set(f, errno == ENOENT || errno == EACCES ? -errno : -EINVAL,
                           "rules of visibility %s: %s. Check the path", file, strerror(errno));
    _cleanup_free_ uint8_t *text = malloc(VISIBILITY_TEXT_MAX + 1);
    if (!text)
        return failure_set(f, -ENOMEM, "out of memory");
    size_t len = 0;
    int r = read_file(fd, text, &len);
    if (r < 0)
        return failure_set(f, -EINVAL, "rules of visibility %s: cannot be read: %s", file,
                           strerror(-r));
    struct failure why;
    r = visibility_rules_parse(bytes_of(text, len), ret, &why);
    return r < 0 ? failure_set(f, r, "rules of visibility %s: %s", file, why.text) : 0;
}

int config_rules_load(const char *profile_or_file, struct visibility_rules **ret,
                      struct failure *ret_failure)
{
    if (strchr(profile_or_file, '/'))
        return load_file(profile_or_file, ret, ret_failure);
    _cleanup_free_ char *text = NULL;
    int r = visibility_profile_text(profile_or_file, &text, ret_failure);
    return r < 0 ? r : visibility_rules_parse(bytes_of_string(text), ret, ret_failure);
}

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "config/config.h"

static void warn(void *context, size_t line, const char *sentence)
{
    const char *const *file = context;
    log_warning("rules of visibility %s, line %zu: %s", *file, line, sentence);
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
    /* One byte more than may be, so that a longer file is noticed. */
    int r = file_read_up_to(fd, text, VISIBILITY_TEXT_MAX + 1, &len);
    if (r < 0)
        return failure_set(f, -EINVAL, "rules of visibility %s: cannot be read: %s", file,
                           strerror(-r));
    struct failure why;
    r = visibility_rules_parse(bytes_of(text, len), ret, &why);
    if (r < 0)
        return failure_set(f, r, "rules of visibility %s: %s", file, why.text);
    (void)visibility_rules_doubts(bytes_of(text, len), warn, &file);
    return 0;
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

#include "cli/policy_text.h"

#include <fcntl.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/file.h"

const char *policy_text_name(const char *file)
{
    return strcmp(file, "-") == 0 ? "standard input" : file;
}

int policy_text_read(const struct cli *cli, const char *file, struct buffer *ret)
{
    _cleanup_close_ int opened = -1;
    int fd = STDIN_FILENO;
    if (strcmp(file, "-") != 0)
        fd = opened = open(file, O_RDONLY | O_CLOEXEC);
    size_t len = 0;
    int r = fd < 0 ? -errno : buffer_reserve(ret, WIRE_POLICY_MAX + 1);
    if (r == 0)
        r = file_read_up_to(fd, ret->data, WIRE_POLICY_MAX + 1, &len);
    if (r == 0 && len > WIRE_POLICY_MAX)
        r = -EFBIG;
    ret->len = r == 0 ? len : 0;
    if (r < 0)
        cli_error(cli, "%s: %s", policy_text_name(file), strerror(-r));
    else if (len == 0)
        cli_error(cli, "%s: is empty; a policy is one JSON object { ... }", policy_text_name(file));
    return r == 0 && len == 0 ? -EINVAL : r;
}

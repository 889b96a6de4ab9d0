#include "egress/settings.h"

#include <fcntl.h>

#include "base/cleanup.h"
#include "confine/landlock.h"

static const char *const files[SETTINGS_FILES] = {
    "/etc/resolv.conf", "/etc/hosts",    "/etc/nsswitch.conf", "/etc/host.conf",
    "/etc/gai.conf",    "/etc/hostname", "/etc/mdns.allow",
};

/* What links of these lead to is replaced where it is. */
static const char *const others[] = {
    "/etc/ld.so.cache", /* modules for names are found by it */
    "/run/systemd/resolve",
    "/run/nscd",
    "/run/resolvconf",
};

static int allow(int landlock, const char *path)
{
    int r = landlock_allow(landlock, path, LANDLOCK_READ);
    return r == -ENOENT || r == -ENOTDIR || r == -EACCES ? 0 : r;
}

int settings_allow(int landlock)
{
    int r = 0;
    for (size_t i = 0; r == 0 && i < ARRAY_SIZE(files); i++)
        r = allow(landlock, files[i]);
    for (size_t i = 0; r == 0 && i < ARRAY_SIZE(others); i++)
        r = allow(landlock, others[i]);
    return r;
}

void settings_look(struct settings *ret)
{
    for (size_t i = 0; i < ARRAY_SIZE(files); i++) {
        _cleanup_close_ int fd = open(files[i], O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        ret->errors[i] = fd < 0 ? errno : 0;
    }
}

bool settings_lost(const struct settings *before)
{
    struct settings now;
    settings_look(&now);
    for (size_t i = 0; i < ARRAY_SIZE(files); i++)
        if (now.errors[i] == EACCES && before->errors[i] != EACCES)
            return true;
    return false;
}

#include "control_socket.h"

#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "control/control.h"
#include "control/identity.h"

static int describe(void *context, json_t *object)
{
    const struct driver *d = context;
    json_t *more =
        json_pack("{s:s,s:s,s:s}", "kind", "mount", "url", d->settings->url, "path", d->mountpoint);
    int r = more && json_object_update(object, more) == 0 ? 0 : -ENOMEM;
    json_decref(more);
    return r;
}

static bool is_below(const char *path, const char *directory)
{
    size_t len = strlen(directory);
    return strncmp(path, directory, len) == 0 && path[len] == '/';
}

static int open_socket(struct driver *d, struct failure *f)
{
    char identity[IDENTITY_SIZE];
    _cleanup_free_ char *directory = NULL;
    _cleanup_free_ char *path = NULL;
    int r = identity_of(d->settings, identity, f);
    if (r == 0)
        r = identity_directory(&directory, f);
    if (r < 0)
        return r;
    r = identity_socket(directory, identity, getpid(), &path);
    if (r < 0)
        return failure_set(f, r, "out of memory");
    if (is_below(path, d->mountpoint))
        return failure_set(f, -ELOOP, "%s lies under the mountpoint", path);
    const struct control_events events = {.describe = describe, .context = d};
    r = control_new(d->base, path, &events, &d->control, f);
    if (r < 0)
        return r;
    control_set_client(d->control, d->client, NULL);
    d->control_path = take_ptr(path);
    return 0;
}

void control_socket_open(struct driver *d)
{
    struct failure f;
    if (open_socket(d, &f) < 0)
        log_warning("berth exec will not use this mount's connection: %s", f.text);
}

void control_socket_free(struct driver *d)
{
    control_free(take_ptr(d->control));
    free(take_ptr(d->control_path));
}

#include "outside.h"

#include <jansson.h>
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"

/* True for directory itself, too. */
static bool is_in(const char *path, const char *directory)
{
    size_t len = strcmp(directory, "/") == 0 ? 0 : strlen(directory);
    return strncmp(path, directory, len) == 0 && (path[len] == '/' || path[len] == '\0');
}

/* Nothing that the driver itself needs may be reached through its own mount. */
int outside_check(const char *mountpoint, const char *what, const char *file, struct failure *f)
{
    _cleanup_free_ char *absolute = file ? realpath(file, NULL) : NULL;
    if (absolute && is_in(absolute, mountpoint))
        return failure_set(f, -ELOOP,
                           "%s %s lies under the mountpoint %s, where the mount would hide it",
                           what, file, mountpoint);
    return 0;
}

/* The service of this machine must not come to the mount when it goes to its own files: it would
 * wait for itself. */
int outside_root(struct client *client, const char *url, const char *mountpoint, struct failure *f)
{
    if (strncmp(url, "unix:", 5) != 0)
        return 0;
    const struct wire_message m = {.type = WIRE_STATUS};
    struct wire_frame *frame = NULL;
    /* One that does not say where its root is has not been started here by the same hand. */
    if (client_call_sync(client, &m, 0, &frame, f) < 0)
        return 0;
    int r = 0;
    struct bytes text = frame->message.status_reply.json;
    json_t *status = json_loadb((const char *)text.data, text.len, 0, NULL);
    wire_frame_free(frame);
    const char *root = json_string_value(json_object_get(status, "root"));
    _cleanup_free_ char *absolute = root ? realpath(root, NULL) : NULL;
    if (absolute && is_in(mountpoint, absolute))
        r = failure_set(f, -ELOOP,
                        "mountpoint %s is inside %s, where the service keeps the workspaces; "
                        "choose one outside",
                        mountpoint, absolute);
    else
        r = outside_check(mountpoint, "the service's root", root, f);
    json_decref(status);
    return r;
}

int outside_files(const char *mountpoint, const struct client_settings *s,
                  struct failure *ret_failure)
{
    const struct {
        const char *what, *file;
    } files[] = {
        {"the service's socket", strncmp(s->url, "unix:", 5) == 0 ? s->url + 5 : NULL},
        {"the token file", s->token_file},
        {"the CA file", s->ca_file},
        {"the certificate", s->cert_file},
        {"the key", s->key_file},
    };
    int r = 0;
    for (size_t i = 0; r == 0 && i < ARRAY_SIZE(files); i++)
        r = outside_check(mountpoint, files[i].what, files[i].file, ret_failure);
    return r;
}

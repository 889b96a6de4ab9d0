#include "store/ops.h"

#include <linux/limits.h>
#include <linux/xattr.h>
#include <string.h>
#include <sys/xattr.h>

#define USER_PREFIX XATTR_USER_PREFIX
#define OWN_PREFIX "user.berth." /* the service's own: read from the root alone */
#define OWN_THREAD_ID OWN_PREFIX "thread_id"

enum xattr_kind { XATTR_ORDINARY, XATTR_OWN, XATTR_FOREIGN };

static bool has_prefix(const char *name, const char *prefix)
{
    return strncmp(name, prefix, strlen(prefix)) == 0;
}

static enum xattr_kind xattr_kind(const char *name)
{
    if (!has_prefix(name, USER_PREFIX))
        return XATTR_FOREIGN;
    return has_prefix(name, OWN_PREFIX) ? XATTR_OWN : XATTR_ORDINARY;
}

static int copy_name(struct bytes name, char ret[XATTR_NAME_MAX + 1])
{
    if (name.len > XATTR_NAME_MAX)
        return -ERANGE; /* as the kernel */
    if (name.len == 0 || memchr(name.data, '\0', name.len))
        return -EINVAL;
    memcpy(ret, name.data, name.len);
    ret[name.len] = '\0';
    return 0;
}

/* A node, something to reach it by, and the path for calls that take no O_PATH descriptor. */
struct target {
    struct node *node;
    struct grip grip;
    char path[GRIP_PATH_SIZE];
};

static void target_close(struct target *target)
{
    grip_release(&target->grip);
    if (target->node)
        node_unref(target->node);
}
#define _cleanup_target_ _cleanup_(target_close)

static int target_open(struct file_session *session, uint64_t number, struct target *target)
{
    int r = node_get(session, number, &target->node);
    if (r == 0)
        r = grip_take(target->node, &target->grip, NULL);
    if (r == 0)
        (void)grip_path(target->grip.fd, target->path);
    return r;
}

static int get_own(struct file_session *session, uint64_t number, const char *name,
                   struct reply *ret)
{
    _cleanup_node_ struct node *node = NULL;
    int r = node_get(session, number, &node);
    if (r < 0)
        return r;
    if (!node->root || strcmp(name, OWN_THREAD_ID) != 0)
        return -ENODATA;
    struct bytes id = workspace_thread_id(node->workspace);
    r = buffer_append(&ret->storage, id.data, id.len);
    if (r == 0)
        reply_data(ret);
    return r;
}

OPERATION(getxattr)
{
    char name[XATTR_NAME_MAX + 1];
    int r = copy_name(m->getxattr.name, name);
    if (r < 0)
        return r;
    switch (xattr_kind(name)) {
    case XATTR_FOREIGN:
        return -ENODATA;
    case XATTR_OWN:
        return get_own(session, m->getxattr.node, name, ret);
    case XATTR_ORDINARY:
        break;
    }
    _cleanup_target_ struct target target = {.grip.fd = -1};
    r = target_open(session, m->getxattr.node, &target);
    if (r == 0)
        r = buffer_reserve(&ret->storage, XATTR_SIZE_MAX);
    if (r < 0)
        return r;
    ssize_t n = getxattr(target.path, name, ret->storage.data, XATTR_SIZE_MAX);
    if (n < 0)
        return -errno;
    ret->storage.len = (size_t)n;
    reply_data(ret);
    return 0;
}

/* 0 when a client may change the attribute. */
static int may_change(const char *name)
{
    switch (xattr_kind(name)) {
    case XATTR_FOREIGN:
        return -EOPNOTSUPP;
    case XATTR_OWN:
        return -EPERM;
    case XATTR_ORDINARY:
        break;
    }
    return 0;
}

OPERATION(setxattr)
{
    char name[XATTR_NAME_MAX + 1];
    int r = copy_name(m->setxattr.name, name);
    if (r == 0)
        r = may_change(name);
    if (r < 0)
        return r;
    if (m->setxattr.flags & ~(uint32_t)(XATTR_CREATE | XATTR_REPLACE))
        return -EINVAL;
    _cleanup_target_ struct target target = {.grip.fd = -1};
    r = target_open(session, m->setxattr.node, &target);
    if (r < 0)
        return r;
    struct bytes value = m->setxattr.value;
    if (setxattr(target.path, name, value.data, value.len, (int)m->setxattr.flags) < 0)
        return -errno;
    reply_ok(ret);
    return 0;
}

/* Keeps the names a client may read. */
static void filter_names(struct buffer *names)
{
    size_t kept = 0;
    for (size_t at = 0; at < names->len;) {
        const char *name = (const char *)names->data + at;
        size_t len = strnlen(name, names->len - at) + 1;
        if (at + len > names->len)
            break;
        if (xattr_kind(name) == XATTR_ORDINARY) {
            memmove(names->data + kept, names->data + at, len);
            kept += len;
        }
        at += len;
    }
    names->len = kept;
}

OPERATION(listxattr)
{
    _cleanup_target_ struct target target = {.grip.fd = -1};
    int r = target_open(session, m->listxattr.node, &target);
    if (r == 0)
        r = buffer_reserve(&ret->storage, XATTR_LIST_MAX);
    if (r < 0)
        return r;
    ssize_t n = listxattr(target.path, (char *)ret->storage.data, XATTR_LIST_MAX);
    if (n < 0)
        return -errno;
    ret->storage.len = (size_t)n;
    filter_names(&ret->storage);
    reply_data(ret);
    return 0;
}

OPERATION(removexattr)
{
    char name[XATTR_NAME_MAX + 1];
    int r = copy_name(m->removexattr.name, name);
    if (r == 0)
        r = may_change(name);
    if (r < 0)
        return r;
    _cleanup_target_ struct target target = {.grip.fd = -1};
    r = target_open(session, m->removexattr.node, &target);
    if (r < 0)
        return r;
    if (removexattr(target.path, name) < 0)
        return -errno;
    reply_ok(ret);
    return 0;
}

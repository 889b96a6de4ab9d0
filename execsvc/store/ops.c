#include "store/ops.h"

#include "store/publish.h"

typedef int operation_function(struct file_session *session, const struct wire_message *m,
                               struct reply *ret);

/* By the low byte of the type; REPLY and RECORD types have none. */
#define ROW(NAME, name) [WIRE_##NAME & 0xff] = op_##name

static operation_function *const workspace_operations[] = {
    ROW(WORKSPACE_CREATE, workspace_create),
    ROW(WORKSPACE_OPEN, workspace_open),
    ROW(WORKSPACE_REMOVE, workspace_remove),
    ROW(WORKSPACE_LIST, workspace_list),
    ROW(WORKSPACE_GET, workspace_get),
    ROW(WORKSPACE_SET, workspace_set),
    ROW(WORKSPACE_VISIBILITY, workspace_visibility),
    ROW(WORKSPACE_SET_VISIBILITY, workspace_set_visibility),
    ROW(VISIBILITY, visibility),
};

/* clang-format off */
static operation_function *const file_operations[] = {
    ROW(LOOKUP, lookup),
    ROW(FORGET, forget),
    ROW(GETATTR, getattr),
    ROW(SETATTR, setattr),
    ROW(READLINK, readlink),
    ROW(MKNOD, mknod),
    ROW(MKDIR, mkdir),
    ROW(SYMLINK, symlink),
    ROW(LINK, link),
    ROW(UNLINK, unlink),
    ROW(RMDIR, rmdir),
    ROW(RENAME, rename),
    ROW(PLACE, place),
    ROW(OPEN, open),
    ROW(CREATE, create),
    ROW(READ, read),
    ROW(WRITE, write),
    ROW(FLUSH, flush),
    ROW(FSYNC, fsync),
    ROW(RELEASE, release),
    ROW(READDIR, readdir),
    ROW(STATFS, statfs),
    ROW(GETXATTR, getxattr),
    ROW(SETXATTR, setxattr),
    ROW(LISTXATTR, listxattr),
    ROW(REMOVEXATTR, removexattr),
    ROW(FALLOCATE, fallocate),
    ROW(SEEK, seek),
    ROW(COPY, copy),
    ROW(LOCK_GET, lock_get),
    ROW(LOCK_SET, lock_set),
    ROW(LOCK_CLAIM, lock_claim),
    ROW(READTREE, readtree),
    ROW(READFILES, readfiles),
    ROW(READPARTS, readparts),
};
/* clang-format on */

static operation_function *find_operation(enum wire_type type)
{
    unsigned group = (unsigned)type >> 8, row = (unsigned)type & 0xff;
    if (group == 1 && row < ARRAY_SIZE(workspace_operations))
        return workspace_operations[row];
    if (group == 2 && row < ARRAY_SIZE(file_operations))
        return file_operations[row];
    return NULL;
}

static int carry_out(struct file_session *session, operation_function *operation,
                     const struct wire_message *request, struct reply *ret)
{
    ret->storage.len = 0;
    ret->text[0] = '\0';
    return operation(session, request, ret);
}

int store_handle(struct file_session *session, const struct wire_message *request,
                 struct reply *ret)
{
    ret->unlocked = 0;
    operation_function *operation = find_operation(request->type);
    if (!operation)
        return -EOPNOTSUPP;
    struct publication publication;
    publish_before(session, request, &publication);
    int r = carry_out(session, operation, request, ret);
    /* A directory that others have moved is found again once it is known where to. */
    if (r == -ESTALE && session->store->detects && store_detect(session->store) == 0)
        r = carry_out(session, operation, request, ret);
    publish_after(session, request, r, &publication);
    return r;
}

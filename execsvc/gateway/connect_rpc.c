#include "gateway/connect_rpc.h"

#include <errno.h>
#include <string.h>

static const struct {
    int error;
    const char *code;
} by_error[] = {
    {-ENOENT, "not_found"},
    {-ESTALE, "not_found"},
    {-ESRCH, "not_found"},
    {-EEXIST, "already_exists"},
    {-EINVAL, "invalid_argument"},
    {-EISDIR, "invalid_argument"},
    {-ENOTDIR, "invalid_argument"},
    {-ENAMETOOLONG, "invalid_argument"},
    {-EBADMSG, "invalid_argument"},
    {-EMSGSIZE, "invalid_argument"},
    {-E2BIG, "invalid_argument"},
    {-ELOOP, "failed_precondition"},
    {-ENOTEMPTY, "failed_precondition"},
    {-EPIPE, "failed_precondition"},
    {-EXDEV, "failed_precondition"},
    {-EACCES, "permission_denied"},
    {-EPERM, "permission_denied"},
    {-EROFS, "permission_denied"},
    {-EBUSY, "aborted"},
    {-EREMCHG, "aborted"},
    {-ENOSPC, "resource_exhausted"},
    {-EDQUOT, "resource_exhausted"},
    {-EFBIG, "resource_exhausted"},
    {-ENOMEM, "resource_exhausted"},
    {-EOPNOTSUPP, "unimplemented"},
    {-ENOSYS, "unimplemented"},
    {-ECANCELED, "canceled"},
    {-ETIMEDOUT, "unavailable"},
    {-ECONNRESET, "unavailable"},
    {-ECONNREFUSED, "unavailable"},
    {-ENOTCONN, "unavailable"},
    {-ESHUTDOWN, "unavailable"},
    {-EAGAIN, "unavailable"},
};

static const struct {
    int status;
    const char *code;
} by_status[] = {
    {400, "invalid_argument"}, {401, "unauthenticated"},   {403, "permission_denied"},
    {404, "not_found"},        {408, "deadline_exceeded"}, {409, "already_exists"},
    {413, "invalid_argument"}, {415, "invalid_argument"},  {429, "resource_exhausted"},
    {501, "unimplemented"},    {502, "unavailable"},       {503, "unavailable"},
};

const char *connect_code(int error, int status)
{
    for (size_t i = 0; error < 0 && i < ARRAY_SIZE(by_error); i++)
        if (by_error[i].error == error)
            return by_error[i].code;
    for (size_t i = 0; error == 0 && i < ARRAY_SIZE(by_status); i++)
        if (by_status[i].status == status)
            return by_status[i].code;
    return "internal";
}

int connect_append_frame(struct buffer *b, unsigned flags, struct bytes json)
{
    uint8_t head[CONNECT_HEAD_SIZE] = {(uint8_t)flags, (uint8_t)(json.len >> 24),
                                       (uint8_t)(json.len >> 16), (uint8_t)(json.len >> 8),
                                       (uint8_t)json.len};
    if (json.len > UINT32_MAX)
        return -EMSGSIZE;
    int r = buffer_reserve(b, sizeof head + json.len);
    if (r == 0)
        r = buffer_append(b, head, sizeof head);
    return r < 0 ? r : buffer_append(b, json.data, json.len);
}

int connect_request_message(struct bytes body, struct bytes *ret)
{
    if (body.len < CONNECT_HEAD_SIZE)
        return -EBADMSG;
    uint32_t len = (uint32_t)body.data[1] << 24 | (uint32_t)body.data[2] << 16 |
                   (uint32_t)body.data[3] << 8 | body.data[4];
    if (body.data[0] == CONNECT_COMPRESSED)
        return -EOPNOTSUPP;
    if (body.data[0] != 0 || body.len - CONNECT_HEAD_SIZE != len)
        return -EBADMSG;
    *ret = bytes_of(body.data + CONNECT_HEAD_SIZE, len);
    return 0;
}

int connect_timeout_ms(const char *text, uint64_t *ret)
{
    uint64_t n = 0;
    size_t len = text ? strlen(text) : 0;
    if (text && (len == 0 || len > 10 || strspn(text, "0123456789") != len))
        return -EINVAL;
    for (size_t i = 0; i < len; i++)
        n = 10 * n + (uint64_t)(text[i] - '0');
    *ret = n;
    return 0;
}

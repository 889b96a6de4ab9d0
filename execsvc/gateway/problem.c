#include "gateway/problem.h"

#include <errno.h>
#include <stddef.h>

#include "base/cleanup.h"

static const struct problem_kind kinds[] = {
    /* the request */
    {-EINVAL, 400, false},
    {-EBADMSG, 400, false},
    {-EILSEQ, 400, false},
    {-ENAMETOOLONG, 400, false},
    {-ERANGE, 400, false},
    {-E2BIG, 400, false},
    /* who asks */
    {-EACCES, 403, false},
    {-EPERM, 403, false},
    {-EROFS, 403, false},
    /* what it is about */
    {-ENOENT, 404, false},
    {-ENODATA, 404, false},
    {-EEXIST, 409, false},
    {-ENOTEMPTY, 409, false},
    {-ENOTDIR, 409, false},
    {-EISDIR, 409, false},
    {-ELOOP, 409, false},
    {-EXDEV, 409, false},
    {-EMLINK, 409, false},
    {-ESRCH, 409, false},
    {-EBUSY, 409, true},
    {-ETXTBSY, 409, true},
    {-EREMCHG, 412, false}, /* another revision than If-Match has */
    {-EMSGSIZE, 413, false},
    {-EFBIG, 413, false},
    /* this service */
    {-EOPNOTSUPP, 501, false},
    {-ENOSYS, 501, false},
    {-ENOSPC, 507, true},
    {-EDQUOT, 507, true},
    {-ENOMEM, 503, true},
    {-EAGAIN, 503, true},
    {-ESTALE, 503, true}, /* replaced again and again while it was looked for */
    {-EMFILE, 503, true},
    {-ENFILE, 503, true},
    {-ESHUTDOWN, 503, true},
    {-ECONNREFUSED, 503, true},
    {-ECONNRESET, 503, true},
    {-ENOTCONN, 503, true},
    {-ETIMEDOUT, 504, true},
};

struct problem_kind problem_of(int error)
{
    for (size_t i = 0; i < ARRAY_SIZE(kinds); i++)
        if (kinds[i].error == error)
            return kinds[i];
    return (struct problem_kind){.error = error, .status = 500};
}

bool problem_retry(int status)
{
    return status == 408 || status == 429 || status == 503 || status == 504 || status == 507;
}

const char *problem_title(int status)
{
    static const struct {
        int status;
        const char *title;
    } titles[] = {
        {200, "OK"},
        {201, "Created"},
        {202, "Accepted"},
        {204, "No Content"},
        {206, "Partial Content"},
        {304, "Not Modified"},
        {400, "Bad Request"},
        {401, "Unauthorized"},
        {403, "Forbidden"},
        {404, "Not Found"},
        {405, "Method Not Allowed"},
        {406, "Not Acceptable"},
        {408, "Request Timeout"},
        {409, "Conflict"},
        {411, "Length Required"},
        {412, "Precondition Failed"},
        {413, "Content Too Large"},
        {415, "Unsupported Media Type"},
        {416, "Range Not Satisfiable"},
        {417, "Expectation Failed"},
        {426, "Upgrade Required"},
        {428, "Precondition Required"},
        {429, "Too Many Requests"},
        {431, "Request Header Fields Too Large"},
        {500, "Internal Server Error"},
        {501, "Not Implemented"},
        {502, "Bad Gateway"},
        {503, "Service Unavailable"},
        {504, "Gateway Timeout"},
        {507, "Insufficient Storage"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(titles); i++)
        if (titles[i].status == status)
            return titles[i].title;
    return "Error";
}

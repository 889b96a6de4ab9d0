/* Routes about the service itself. */
#include "gateway/private.h"

#include <string.h>

int about_health(struct exchange *x, struct failure *ret_failure)
{
    return exchange_reply(x, 200, "text/plain; charset=utf-8", "ok\n", 3);
}

int about_metrics(struct exchange *x, struct failure *f)
{
    return failure_set(f, -EOPNOTSUPP, "not yet");
}

int about_openapi(struct exchange *x, struct failure *f)
{
    return failure_set(f, -EOPNOTSUPP, "not yet");
}

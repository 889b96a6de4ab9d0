/* Routes about the service itself. */
#include "gateway/openapi.h"
#include "gateway/routes.h"

int about_health(struct exchange *x, struct failure *ret_failure)
{
    return exchange_reply(x, 200, "text/plain; charset=utf-8", "ok\n", 3);
}

int about_openapi(struct exchange *x, struct failure *ret_failure)
{
    return exchange_reply(x, 200, "application/json", openapi_document, openapi_document_size);
}

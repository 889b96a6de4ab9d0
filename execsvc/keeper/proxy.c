#include "keeper/proxy.h"

#include <errno.h>
#include <string.h>

static int begin(void *context, const char *name, int *listener, const struct policy *policy,
                 void **ret, struct failure *ret_failure)
{
    struct ward *ward;
    int r = supervisor_begin(context, listener, name, policy->allow, &ward);
    if (r < 0)
        return failure_set(ret_failure, r, "the proxy: %s", strerror(-r));
    *ret = ward;
    return 0;
}

static int change(void *context, void *begun, const struct allow_list *list)
{
    return supervisor_change(context, begun, list);
}

static void end(void *context, void *begun)
{
    supervisor_end(context, begun);
}

struct confinement_egress proxy_for(struct supervisor *supervisor)
{
    return (struct confinement_egress){
        .begin = begin, .change = change, .end = end, .context = supervisor, .port = PROXY_PORT};
}

/* The log of what was asked of the proxy, for the operator: a line for each decision, and one for
 * the end of each connection that was allowed, "egress {…}" with a JSON object. Whatever a command
 * chose in it is escaped. */
#pragma once

#include <stdint.h>

struct decision {
    const char *workspace;
    const char *method; /* NULL: there was no request */
    const char *host;   /* NULL likewise */
    uint16_t port;
    const char *entry;   /* of the allow list that admits the host, or NULL */
    const char *address; /* that is connected to, or NULL */
    const char
        *verdict;       /* "allowed", "refused", "failed" (allowed, and it did not work), "ended" */
    const char *reason; /* NULL: none */
    uint64_t bytes_up;  /* from the workspace */
    uint64_t bytes_down;
    uint64_t duration_ms;
};

void decision_log(const struct decision *d);

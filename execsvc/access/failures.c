#include "access/failures.h"

#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

#define PERIOD_NS (FAILURES_PERIOD_S * NSEC_PER_SEC)

struct entry {
    uint64_t address;
    uint64_t empty_ns; /* when nothing of it counts any more; 0: unused */
    uint64_t last_ns;
    uint64_t recent[FAILURES_RECENT];
    unsigned next;
};

struct failures {
    struct entry entries[FAILURES_ADDRESSES];
};

struct failures *failures_new(void)
{
    return calloc(1, sizeof(struct failures));
}

void failures_free(struct failures *f)
{
    free(f);
}

uint64_t failures_address(const struct sockaddr *address)
{
    uint64_t network = 0;
    uint32_t host;
    if (address->sa_family == AF_INET) {
        host = ((const struct sockaddr_in *)(const void *)address)->sin_addr.s_addr;
        return host;
    }
    if (address->sa_family != AF_INET6)
        return 0;
    const struct in6_addr *in6 = &((const struct sockaddr_in6 *)(const void *)address)->sin6_addr;
    if (IN6_IS_ADDR_V4MAPPED(in6)) {
        memcpy(&host, in6->s6_addr + 12, sizeof host);
        return host;
    }
    memcpy(&network, in6->s6_addr, sizeof network);
    return network | UINT64_C(1) << 63 | UINT64_C(1) << 32; /* no IPv4 address */
}

static struct entry *find(struct failures *f, uint64_t address)
{
    struct entry *oldest = &f->entries[0];
    for (size_t i = 0; i < FAILURES_ADDRESSES; i++) {
        struct entry *e = &f->entries[i];
        if (e->last_ns && e->address == address)
            return e;
        if (e->last_ns < oldest->last_ns)
            oldest = e;
    }
    *oldest = (struct entry){.address = address};
    return oldest;
}

unsigned failures_wait(const struct failures *f, uint64_t address, uint64_t now_ns)
{
    for (size_t i = 0; i < FAILURES_ADDRESSES; i++) {
        const struct entry *e = &f->entries[i];
        if (!e->last_ns || e->address != address)
            continue;
        uint64_t free_ns = now_ns + (FAILURES_BURST - 1) * PERIOD_NS;
        return e->empty_ns > free_ns ? (unsigned)((e->empty_ns - free_ns) / NSEC_PER_SEC) + 1 : 0;
    }
    return 0;
}

void failures_note(struct failures *f, uint64_t address, uint64_t digest, uint64_t now_ns)
{
    struct entry *e = find(f, address);
    e->last_ns = now_ns;
    for (size_t i = 0; i < FAILURES_RECENT; i++)
        if (e->recent[i] == digest)
            return;
    e->recent[e->next] = digest;
    e->next = (e->next + 1) % FAILURES_RECENT;
    e->empty_ns = (e->empty_ns > now_ns ? e->empty_ns : now_ns) + PERIOD_NS;
}

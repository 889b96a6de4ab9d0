#include "egress/address.h"

#include <arpa/inet.h>
#include <errno.h>
#include <string.h>

#include "base/cleanup.h"

/* How an IPv6 address carries an IPv4 address that a gateway sends it on to. */
enum carries { CARRIES_NOTHING = 0, CARRIES_AT_2 = 2, CARRIES_AT_12 = 12 };

/* The registries of special-purpose addresses (RFC 6890 and what was added since), and where
 * clouds answer their own guests with credentials. The smallest block that holds an address
 * counts. */
static const struct {
    const char *what;
    const char *first;
    unsigned bits;
    enum carries carries;
} special_blocks[] = {
    {"unspecified", "0.0.0.0", 8},
    {"private", "10.0.0.0", 8},
    {"shared by a carrier (CGNAT)", "100.64.0.0", 10},
    {"a cloud's metadata service", "100.100.100.200", 32},
    {"loopback", "127.0.0.0", 8},
    {"a cloud's metadata service", "168.63.129.16", 32},
    {"link-local", "169.254.0.0", 16},
    {"a cloud's metadata service", "169.254.169.254", 32},
    {"a cloud's metadata service", "169.254.170.2", 32},
    {"private", "172.16.0.0", 12},
    {"reserved", "192.0.0.0", 24},
    {"a cloud's metadata service", "192.0.0.192", 32},
    {"reserved (6to4 relays)", "192.88.99.0", 24},
    {"private", "192.168.0.0", 16},
    {"for benchmarks", "198.18.0.0", 15},
    {"multicast", "224.0.0.0", 4},
    {"reserved", "240.0.0.0", 4},
    {"reserved", "::", 0},
    {"unspecified", "::", 128},
    {"loopback", "::1", 128},
    {"reserved (NAT64)", "64:ff9b::", 96, CARRIES_AT_12},
    {"reserved (NAT64)", "64:ff9b:1::", 48},
    {"reserved", "2001::", 23},
    {"reserved (6to4)", "2002::", 16, CARRIES_AT_2},
    {"unique-local", "fc00::", 7},
    {"a cloud's metadata service", "fd00:ec2::254", 128},
    {"a cloud's metadata service", "fd20:ce::254", 128},
    {"link-local", "fe80::", 10},
    {"site-local", "fec0::", 10},
    {"multicast", "ff00::", 8},
};

/* All of IPv6 that has been given out to be routed. */
static const struct address_block ipv6_public = {{AF_INET6, {0x20}}, 3};

static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};

static struct address address_of(sa_family_t family, const uint8_t *octets)
{
    struct address a = {.family = family};
    if (family == AF_INET6 && memcmp(octets, mapped, sizeof mapped) == 0) {
        a.family = AF_INET;
        octets += sizeof mapped;
    }
    memcpy(a.octets, octets, a.family == AF_INET ? 4 : 16);
    return a;
}

int address_parse(const char *text, struct address *ret)
{
    uint8_t octets[16];
    sa_family_t family = strchr(text, ':') ? AF_INET6 : AF_INET;
    if (inet_pton(family, text, octets) != 1)
        return -EINVAL;
    *ret = address_of(family, octets);
    return 0;
}

int address_from_socket(const struct sockaddr *from, struct address *ret)
{
    if (from->sa_family == AF_INET) {
        struct sockaddr_in in;
        memcpy(&in, from, sizeof in);
        *ret = address_of(AF_INET, (const uint8_t *)&in.sin_addr);
        return 0;
    }
    if (from->sa_family == AF_INET6) {
        struct sockaddr_in6 in6;
        memcpy(&in6, from, sizeof in6);
        *ret = address_of(AF_INET6, in6.sin6_addr.s6_addr);
        return 0;
    }
    return -EAFNOSUPPORT;
}

socklen_t address_to_socket(const struct address *a, uint16_t port, struct sockaddr_storage *ret)
{
    *ret = (struct sockaddr_storage){.ss_family = a->family};
    if (a->family == AF_INET) {
        struct sockaddr_in in = {.sin_family = AF_INET, .sin_port = htons(port)};
        memcpy(&in.sin_addr, a->octets, 4);
        memcpy(ret, &in, sizeof in);
        return sizeof in;
    }
    struct sockaddr_in6 in6 = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
    memcpy(in6.sin6_addr.s6_addr, a->octets, 16);
    memcpy(ret, &in6, sizeof in6);
    return sizeof in6;
}

const char *address_text(const struct address *a, char ret[ADDRESS_TEXT_MAX])
{
    if (!inet_ntop(a->family, a->octets, ret, ADDRESS_TEXT_MAX))
        ret[0] = '\0';
    return ret;
}

unsigned address_bits(const struct address *a)
{
    return a->family == AF_INET ? 32 : 128;
}

bool address_equal(const struct address *a, const struct address *b)
{
    return a->family == b->family && memcmp(a->octets, b->octets, sizeof a->octets) == 0;
}

bool address_is_in(const struct address *a, const struct address_block *block)
{
    if (a->family != block->first.family)
        return false;
    size_t whole = block->bits / 8;
    unsigned rest = block->bits % 8;
    if (memcmp(a->octets, block->first.octets, whole) != 0)
        return false;
    unsigned differ = rest ? a->octets[whole] ^ block->first.octets[whole] : 0;
    return differ >> (8 - rest) == 0;
}

bool address_block_is_in(const struct address_block *inner, const struct address_block *outer)
{
    return inner->bits >= outer->bits && address_is_in(&inner->first, outer);
}

const char *address_special(const struct address *a, struct address_block *ret_block)
{
    const char *what = NULL;
    enum carries carries = CARRIES_NOTHING;
    struct address_block found = {.bits = 0};
    for (size_t i = 0; i < ARRAY_SIZE(special_blocks); i++) {
        struct address_block block = {.bits = special_blocks[i].bits};
        if (address_parse(special_blocks[i].first, &block.first) < 0 || !address_is_in(a, &block) ||
            (what && block.bits < found.bits))
            continue;
        what = special_blocks[i].what;
        carries = special_blocks[i].carries;
        found = block;
    }
    if (what && found.bits == 0 && address_is_in(a, &ipv6_public))
        return NULL;
    if (carries != CARRIES_NOTHING) {
        struct address_block ignored;
        const struct address inner = address_of(AF_INET, a->octets + carries);
        what = address_special(&inner, &ignored);
    }
    if (what)
        *ret_block = found;
    return what;
}

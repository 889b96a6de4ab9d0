/* Addresses that a workspace's connections may go to: one form for each, and which of them are no
 * part of the public internet. Pure functions. */
#pragma once

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

/* An IPv4 or IPv6 address. IPv6 that only writes an IPv4 address (::ffff:a.b.c.d) is that IPv4
 * address, since that is where the kernel connects to. */
struct address {
    sa_family_t family; /* AF_INET, AF_INET6 */
    uint8_t octets[16]; /* in the order of the network; the last 12 of IPv4 are 0 */
};

/* As text, with the NUL. */
#define ADDRESS_TEXT_MAX INET6_ADDRSTRLEN

/* Addresses that start with the same `bits` bits. */
struct address_block {
    struct address first;
    unsigned bits;
};

/* -EINVAL: not exactly a dotted quad of decimal numbers, or IPv6 as of RFC 4291 (no brackets, no
 * zone). */
int address_parse(const char *text, struct address *ret);

/* -EAFNOSUPPORT: of another family. */
int address_from_socket(const struct sockaddr *from, struct address *ret);

/* Returns its length. */
socklen_t address_to_socket(const struct address *a, uint16_t port, struct sockaddr_storage *ret);

const char *address_text(const struct address *a, char ret[ADDRESS_TEXT_MAX]);

unsigned address_bits(const struct address *a); /* 32 or 128 */
bool address_equal(const struct address *a, const struct address *b);
bool address_is_in(const struct address *a, const struct address_block *block);
bool address_block_is_in(const struct address_block *inner, const struct address_block *outer);

/* NULL for what is on the public internet, else in a word or two what it is ("loopback",
 * "a cloud's metadata service"), and the smallest block of that kind that holds it. IPv6 that
 * carries an IPv4 address to which a gateway sends it on is what that is. Documentation ranges are
 * nobody's, so they count as public. */
const char *address_special(const struct address *a, struct address_block *ret_block);

/* Wrong credentials, counted by where they come from. Stops somebody who tries one token after the
 * other: FAILURES_BURST at once, and one each FAILURES_PERIOD_S after that, whereupon wrong ones
 * from there are told to wait. A right one never is: whoever shares the address, as all programs of
 * one machine do, could shut out all others of it. The same wrong one again is no attempt, so that
 * a client whose token was revoked, and which comes back for ever, is told that. An address is an
 * IPv4 address or an IPv6 network of 64 bits, which one customer has. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#define FAILURES_BURST 20
#define FAILURES_PERIOD_S 10

/* Addresses that are remembered; the one that failed longest ago makes room. Whoever has so many
 * addresses to come from has as many bursts. Stops them from using up memory. */
#define FAILURES_ADDRESSES 1024

/* Wrong ones that are told from new ones, for each address. */
#define FAILURES_RECENT 4

struct failures;

/* NULL: no memory. */
struct failures *failures_new(void);
void failures_free(struct failures *f);

/* Its address, as the others take it. */
uint64_t failures_address(const struct sockaddr *address);

/* Seconds until a wrong one from there is an attempt again; 0: it is. */
unsigned failures_wait(const struct failures *f, uint64_t address, uint64_t now_ns);

/* A credential from there was wrong; digest: of it. */
void failures_note(struct failures *f, uint64_t address, uint64_t digest, uint64_t now_ns);

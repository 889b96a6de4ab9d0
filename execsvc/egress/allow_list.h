/* What the commands of a workspace may reach: a list of entries HOST:PORT, and whether it admits
 * something. Pure functions.
 *
 * HOST is one of
 *   a name        example.org, compared without case and without a dot at its end; names in other
 *                 scripts are compared as what is asked of name servers ("xn--…")
 *   labels with * *.example.org: a leading * stands for one label or more, so that it admits
 *                 a.example.org and a.b.example.org and not example.org; any other for exactly
 *                 one label. * alone admits every name. A * is never a part of a label
 *   an address    192.0.2.1, [2001:db8::1]
 *   a block       192.0.2.0/24, [2001:db8::/32]
 * and PORT a number from 1 to 65535, or *.
 *
 * Names never admit addresses that somebody writes instead of a name, and what a name resolves to
 * must be on the public internet, or be admitted itself by an entry with an address or block that
 * lies within the same special block as the address (address.h): 10.1.0.0/16 admits private
 * addresses, 0.0.0.0/0 does not. */
#pragma once

#include "base/bytes.h"
#include "base/failure.h"
#include "egress/address.h"

/* Stops a policy from making each decision slow, and from being too long for one message. */
#define ALLOW_ENTRIES_MAX 256

/* A name as DNS has it: without the dot at its end. */
#define ALLOW_NAME_MAX 253
#define ALLOW_LABEL_MAX 63

/* An entry's text, normalised: brackets, a name, a colon and a port. */
#define ALLOW_TEXT_MAX (ALLOW_NAME_MAX + 10)

struct allow_list;

/* -ENOMEM. */
int allow_list_new(struct allow_list **ret);
void allow_list_free(struct allow_list *list); /* NULL is allowed */

/* -EINVAL: the failure shows the entry and says at which character it is wrong and why; -E2BIG:
 * ALLOW_ENTRIES_MAX; -ENOMEM. */
int allow_list_add(struct allow_list *list, struct bytes entry, struct failure *ret_failure);

/* -ENOMEM. */
int allow_list_copy(const struct allow_list *list, struct allow_list **ret);

size_t allow_list_count(const struct allow_list *list);

/* The entry as it is compared, index < count. Borrowed. */
const char *allow_list_text(const struct allow_list *list, size_t index);

/* A host as a request may name it. */
struct allow_host {
    bool is_address;
    struct address address;
    char name[ALLOW_NAME_MAX + 1]; /* normalised; of an address, its text */
};

/* Reads the host of a request: a name, an address, or an IPv6 address in brackets. -EINVAL, and
 * *ret_why says why: also for forms of addresses that others read as numbers (127.1, 0x7f000001,
 * 017700000001), and names that no server is asked for. */
int allow_host_parse(struct bytes text, struct allow_host *ret, const char **ret_why);

/* Is this host, as it was named, on the list? *ret_index (may be NULL): the entry. */
bool allow_list_admits(const struct allow_list *list, const struct allow_host *host, uint16_t port,
                       size_t *ret_index);

/* May this address be connected to, for a host that is on the list? NULL, or why not. */
const char *allow_list_refuses_address(const struct allow_list *list, const struct address *a,
                                       uint16_t port);

/* Does an entry with an address or a block admit exactly this one? What is special is admitted by
 * nothing wider than its own special block. */
bool allow_list_admits_address(const struct allow_list *list, const struct address *a,
                               uint16_t port);

#include "egress/allow_list.h"

#include <idn2.h>
#include <stdio.h>

#include "base/cleanup.h"
#include "base/log.h"

/* Longest part of an entry that an error text shows. */
#define SHOWN_MAX 128

struct entry {
    bool is_block;
    struct address_block block;
    uint16_t port;                    /* 0: any */
    char pattern[ALLOW_NAME_MAX + 1]; /* of a name */
    char text[ALLOW_TEXT_MAX + 1];
};

struct allow_list {
    struct entry *entries;
    size_t count;
};

/* What is wrong with a text, and at which of its bytes. */
struct mistake {
    const char *why;
    size_t at;
};

static int wrong(struct mistake *m, const char *why, size_t at)
{
    *m = (struct mistake){.why = why, .at = at};
    return -EINVAL;
}

/* --- names ----------------------------------------------------------------------------------- */

static bool is_ascii(struct bytes text)
{
    for (size_t i = 0; i < text.len; i++)
        if (text.data[i] >= 0x80)
            return false;
    return true;
}

/* A label in another script becomes what name servers are asked for. What such a label is mapped
 * to is checked like any other: a character may stand for a dot or a digit. */
static int to_ascii(struct bytes label, char **ret)
{
    uint8_t text[4 * ALLOW_LABEL_MAX + 1];
    uint8_t *ascii = NULL;
    if (label.len >= sizeof text || memchr(label.data, 0, label.len))
        return -EINVAL;
    memcpy(text, label.data, label.len);
    text[label.len] = 0;
    int r = idn2_lookup_u8(text, &ascii, IDN2_NFC_INPUT | IDN2_NONTRANSITIONAL);
    if (r != IDN2_OK)
        return r == IDN2_MALLOC ? -ENOMEM : -EINVAL;
    *ret = strdup((const char *)ascii);
    idn2_free(ascii);
    return *ret ? 0 : -ENOMEM;
}

/* Appends a label, in lower case. `at` is where it stands in the text. */
static int append_label(char *name, size_t *len, struct bytes label, size_t at, bool star,
                        struct mistake *m)
{
    if (label.len == 0)
        return wrong(m, "an empty label", at);
    if (label.len > ALLOW_LABEL_MAX)
        return wrong(m, "a label of more than 63 characters", at);
    if (*len + 1 + label.len > ALLOW_NAME_MAX)
        return wrong(m, "a name of more than 253 characters", at);
    if (*len > 0)
        name[(*len)++] = '.';
    bool whole = label.len == 1;
    for (size_t i = 0; i < label.len; i++) {
        uint8_t c = label.data[i];
        if (c >= 'A' && c <= 'Z')
            c = (uint8_t)(c - 'A' + 'a');
        if (c == '*' && star && !whole)
            return wrong(m, "a * stands for a whole label, not for a part of one", at + i);
        if (!(c >= 'a' && c <= 'z') && !(c >= '0' && c <= '9') && c != '-' && c != '_' &&
            !(c == '*' && star))
            return wrong(
                m, c == '@' ? "user names have no place here" : "a character that no name has",
                at + i);
        name[(*len)++] = (char)c;
    }
    return 0;
}

/* Normalises a name, in which with `star` labels may be a *. */
static int normalise(struct bytes text, bool star, char ret[ALLOW_NAME_MAX + 1], struct mistake *m)
{
    size_t len = 0;
    size_t end = text.len;
    if (end > 0 && text.data[end - 1] == '.')
        end--;
    if (end == 0)
        return wrong(m, "a name is missing", 0);
    for (size_t at = 0; at <= end;) {
        const uint8_t *dot = memchr(text.data + at, '.', end - at);
        struct bytes label =
            bytes_of(text.data + at, dot ? (size_t)(dot - text.data) - at : end - at);
        _cleanup_free_ char *ascii = NULL;
        int r = 0;
        if (!is_ascii(label)) {
            r = to_ascii(label, &ascii);
            if (r == -EINVAL)
                return wrong(m, "a label that no name can have", at);
        }
        if (r == 0)
            r = ascii ? append_label(ret, &len, bytes_of_string(ascii), at, false, m)
                      : append_label(ret, &len, label, at, star, m);
        if (r < 0)
            return r;
        at += label.len + 1;
    }
    ret[len] = '\0';
    return 0;
}

/* Where the last label begins if it is a number in any of the forms in which libraries take
 * addresses, else NULL: such a name is an address to them (inet_aton, WHATWG's "ends in a
 * number"). */
static const char *number_at_end(const char *name)
{
    const char *dot = strrchr(name, '.');
    const char *last = dot ? dot + 1 : name;
    bool hex = last[0] == '0' && last[1] == 'x';
    return strspn(last, "0123456789") == strlen(last) ||
                   (hex && strspn(last + 2, "0123456789abcdef") == strlen(last + 2))
               ? last
               : NULL;
}

/* IPv6 stands in brackets. */
static int parse_ipv6(struct bytes text, struct address *ret)
{
    char copy[ADDRESS_TEXT_MAX];
    if (text.len >= sizeof copy || memchr(text.data, 0, text.len))
        return -EINVAL;
    memcpy(copy, text.data, text.len);
    copy[text.len] = '\0';
    return strchr(copy, ':') ? address_parse(copy, ret) : -EINVAL;
}

static const char bad_ipv6[] = "no IPv6 address is written like this";
static const char bad_number[] = "an address is four decimal numbers from 0 to 255, without "
                                 "further zeros before them";

static int parse_host(struct bytes text, struct allow_host *ret, struct mistake *m)
{
    *ret = (struct allow_host){0};
    if (text.len > 0 && text.data[0] == '[') {
        if (text.data[text.len - 1] != ']' ||
            parse_ipv6(bytes_of(text.data + 1, text.len - 2), &ret->address) < 0)
            return wrong(m, bad_ipv6, 0);
        ret->is_address = true;
        (void)address_text(&ret->address, ret->name);
        return 0;
    }
    int r = normalise(text, false, ret->name, m);
    if (r < 0 || !number_at_end(ret->name))
        return r;
    if (address_parse(ret->name, &ret->address) < 0)
        return wrong(m, bad_number, 0);
    ret->is_address = true;
    return 0;
}

int allow_host_parse(struct bytes text, struct allow_host *ret, const char **ret_why)
{
    struct mistake m;
    struct allow_host host;
    int r = parse_host(text, &host, &m);
    if (r == 0)
        *ret = host;
    else if (r == -EINVAL)
        *ret_why = m.why;
    return r;
}

/* --- entries --------------------------------------------------------------------------------- */

static int parse_number(struct bytes text, unsigned max, unsigned *ret)
{
    unsigned n = 0;
    if (text.len == 0 || text.len > 5 || (text.data[0] == '0' && text.len > 1))
        return -EINVAL;
    for (size_t i = 0; i < text.len; i++) {
        if (text.data[i] < '0' || text.data[i] > '9')
            return -EINVAL;
        n = 10 * n + (unsigned)(text.data[i] - '0');
    }
    if (n > max)
        return -EINVAL;
    *ret = n;
    return 0;
}

static int parse_port(struct bytes text, size_t at, uint16_t *ret, struct mistake *m)
{
    unsigned port;
    if (text.len == 1 && text.data[0] == '*')
        port = 0;
    else if (parse_number(text, UINT16_MAX, &port) < 0 || port == 0)
        return wrong(m, "a port is a number from 1 to 65535, or *", at);
    *ret = (uint16_t)port;
    return 0;
}

/* Address, or Address/BITS. at: of it in the entry. */
static int parse_block(struct bytes text, size_t at, struct address_block *ret, struct mistake *m)
{
    const uint8_t *slash = memchr(text.data, '/', text.len);
    size_t len = slash ? (size_t)(slash - text.data) : text.len;
    struct bytes first = bytes_of(text.data, len);
    char copy[ADDRESS_TEXT_MAX] = {0};
    bool ipv6 = memchr(first.data, ':', first.len) != NULL;
    if (len < sizeof copy)
        memcpy(copy, first.data, len);
    if (len >= sizeof copy || strlen(copy) != len || address_parse(copy, &ret->first) < 0)
        return wrong(m, ipv6 ? bad_ipv6 : bad_number, at);
    ret->bits = address_bits(&ret->first);
    if (!slash)
        return 0;
    if (ipv6 && ret->first.family == AF_INET)
        return wrong(m, "a block of IPv4 addresses is written as IPv4", at);
    if (parse_number(bytes_of(slash + 1, text.len - len - 1), ret->bits, &ret->bits) < 0)
        return wrong(m,
                     ret->bits == 32 ? "behind the / stands a number of bits, from 0 to 32"
                                     : "behind the / stands a number of bits, from 0 to 128",
                     at + len + 1);
    struct address_block whole = {.first = ret->first, .bits = ret->bits};
    for (unsigned bit = ret->bits; bit < address_bits(&ret->first); bit++)
        whole.first.octets[bit / 8] &= (uint8_t) ~(0x80u >> bit % 8);
    if (!address_equal(&whole.first, &ret->first))
        return wrong(m, "the block does not start at this address", at);
    return 0;
}

/* Where the host ends: at the colon before the port. */
static int find_colon(struct bytes text, size_t *ret, struct mistake *m)
{
    size_t at = text.len;
    if (text.len > 0 && text.data[0] == '[') {
        const uint8_t *end = memchr(text.data, ']', text.len);
        if (!end)
            return wrong(m, "a ] is missing", text.len);
        at = (size_t)(end - text.data) + 1;
    } else {
        const uint8_t *colon = text.len ? memchr(text.data, ':', text.len) : NULL;
        if (colon)
            at = (size_t)(colon - text.data);
        if (colon && memchr(colon + 1, ':', text.len - at - 1))
            return wrong(m, "IPv6 addresses stand in brackets: [2001:db8::1]:443", 0);
    }
    if (at == text.len || text.data[at] != ':')
        return wrong(m, "a colon and a port are missing (example.org:443)", at);
    *ret = at;
    return 0;
}

static void write_text(struct entry *e)
{
    char port[8] = "*";
    char address[ADDRESS_TEXT_MAX];
    char bits[8] = "";
    if (e->port != 0)
        (void)snprintf(port, sizeof port, "%u", e->port);
    if (!e->is_block) {
        (void)snprintf(e->text, sizeof e->text, "%s:%s", e->pattern, port);
        return;
    }
    const struct address *first = &e->block.first;
    if (e->block.bits < address_bits(first))
        (void)snprintf(bits, sizeof bits, "/%u", e->block.bits);
    (void)snprintf(e->text, sizeof e->text, first->family == AF_INET ? "%s%s:%s" : "[%s%s]:%s",
                   address_text(first, address), bits, port);
}

static int parse_entry(struct bytes text, struct entry *ret, struct mistake *m)
{
    size_t colon;
    *ret = (struct entry){0};
    const uint8_t *scheme = text.len ? memmem(text.data, text.len, "://", 3) : NULL;
    if (scheme)
        return wrong(m, "no scheme, and no path: a host and a port, as in example.org:443",
                     (size_t)(scheme - text.data));
    int r = find_colon(text, &colon, m);
    if (r == 0)
        r = parse_port(bytes_of(text.data + colon + 1, text.len - colon - 1), colon + 1, &ret->port,
                       m);
    if (r < 0)
        return r;
    struct bytes host = bytes_of(text.data, colon);
    if (host.len > 0 && host.data[0] == '[') {
        ret->is_block = true;
        if (!memchr(host.data, ':', host.len))
            return wrong(m, bad_ipv6, 1);
        r = parse_block(bytes_of(host.data + 1, host.len - 2), 1, &ret->block, m);
    } else if (host.len > 0 && memchr(host.data, '/', host.len)) {
        ret->is_block = true;
        r = parse_block(host, 0, &ret->block, m);
    } else {
        r = normalise(host, true, ret->pattern, m);
        if (r == 0 && number_at_end(ret->pattern)) {
            ret->is_block = true;
            r = parse_block(bytes_of_string(ret->pattern), 0, &ret->block, m);
        }
    }
    if (r == 0)
        write_text(ret);
    return r;
}

/* --- the list -------------------------------------------------------------------------------- */

int allow_list_new(struct allow_list **ret)
{
    struct allow_list *list = calloc(1, sizeof *list);
    if (!list)
        return -ENOMEM;
    *ret = list;
    return 0;
}

void allow_list_free(struct allow_list *list)
{
    if (!list)
        return;
    free(list->entries);
    free(list);
}

int allow_list_add(struct allow_list *list, struct bytes entry, struct failure *ret_failure)
{
    char shown[SHOWN_MAX];
    struct mistake m = {0};
    struct entry parsed;
    (void)log_escape(entry.data, entry.len, shown, sizeof shown);
    if (list->count == ALLOW_ENTRIES_MAX)
        return failure_set(ret_failure, -E2BIG, "\"%s\": more than %d entries", shown,
                           ALLOW_ENTRIES_MAX);
    int r = parse_entry(entry, &parsed, &m);
    if (r == -EINVAL)
        return failure_set(ret_failure, r, "\"%s\": at character %zu: %s", shown, m.at + 1, m.why);
    struct entry *larger = NULL;
    if (r == 0)
        larger = reallocarray(list->entries, list->count + 1, sizeof *larger);
    if (!larger)
        return failure_set(ret_failure, -ENOMEM, "%s", strerror(ENOMEM));
    list->entries = larger;
    list->entries[list->count++] = parsed;
    return 0;
}

int allow_list_copy(const struct allow_list *list, struct allow_list **ret)
{
    struct allow_list *copy;
    int r = allow_list_new(&copy);
    if (r < 0)
        return r;
    if (list->count > 0) {
        copy->entries = calloc(list->count, sizeof *copy->entries);
        if (!copy->entries) {
            allow_list_free(copy);
            return -ENOMEM;
        }
        memcpy(copy->entries, list->entries, list->count * sizeof *copy->entries);
    }
    copy->count = list->count;
    *ret = copy;
    return 0;
}

size_t allow_list_count(const struct allow_list *list)
{
    return list->count;
}

const char *allow_list_text(const struct allow_list *list, size_t index)
{
    return list->entries[index].text;
}

/* --- matching -------------------------------------------------------------------------------- */

static bool label_matches(const char *pattern, size_t pattern_len, const char *label, size_t len)
{
    return (pattern_len == 1 && *pattern == '*') ||
           (pattern_len == len && memcmp(pattern, label, len) == 0);
}

/* Label by label, from the end. */
static bool name_matches(const char *pattern, const char *name)
{
    size_t p = strlen(pattern);
    size_t n = strlen(name);
    for (;;) {
        size_t p_start = p;
        size_t n_start = n;
        while (p_start > 0 && pattern[p_start - 1] != '.')
            p_start--;
        while (n_start > 0 && name[n_start - 1] != '.')
            n_start--;
        bool first = p_start == 0;
        if (first && p == 1 && *pattern == '*')
            return true; /* for this label and all before it */
        if (!label_matches(pattern + p_start, p - p_start, name + n_start, n - n_start))
            return false;
        if (first || n_start == 0)
            return first && n_start == 0;
        p = p_start - 1;
        n = n_start - 1;
    }
}

static bool port_matches(const struct entry *e, uint16_t port)
{
    return e->port == 0 || e->port == port;
}

static bool find_address(const struct allow_list *list, const struct address *a, uint16_t port,
                         size_t *ret_index)
{
    struct address_block kind;
    const char *special = address_special(a, &kind);
    for (size_t i = 0; i < list->count; i++) {
        const struct entry *e = &list->entries[i];
        if (!e->is_block || !port_matches(e, port) || !address_is_in(a, &e->block) ||
            (special && !address_block_is_in(&e->block, &kind)))
            continue;
        if (ret_index)
            *ret_index = i;
        return true;
    }
    return false;
}

bool allow_list_admits(const struct allow_list *list, const struct allow_host *host, uint16_t port,
                       size_t *ret_index)
{
    if (host->is_address)
        return find_address(list, &host->address, port, ret_index);
    for (size_t i = 0; i < list->count; i++) {
        const struct entry *e = &list->entries[i];
        if (e->is_block || !port_matches(e, port) || !name_matches(e->pattern, host->name))
            continue;
        if (ret_index)
            *ret_index = i;
        return true;
    }
    return false;
}

bool allow_list_admits_address(const struct allow_list *list, const struct address *a,
                               uint16_t port)
{
    return find_address(list, a, port, NULL);
}

const char *allow_list_refuses_address(const struct allow_list *list, const struct address *a,
                                       uint16_t port)
{
    struct address_block kind;
    const char *special = address_special(a, &kind);
    return special && !allow_list_admits_address(list, a, port) ? special : NULL;
}

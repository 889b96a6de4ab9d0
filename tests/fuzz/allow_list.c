/* An entry of an allow list and a host as a request names it, a line each; the first byte is left
 * out. Normalising twice is normalising once, and an address is never admitted by a name. */
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "egress/allow_list.h"

static void check(bool ok)
{
    if (!ok)
        abort();
}

static void check_host(const struct allow_list *list, struct bytes text, bool names_only)
{
    struct allow_host host, again;
    const char *why = NULL;
    int r = allow_host_parse(text, &host, &why);
    check(r == 0 || (r == -EINVAL && why));
    if (r < 0)
        return;
    char copy[ALLOW_NAME_MAX + 3];
    bool brackets = host.is_address && host.address.family == AF_INET6;
    (void)snprintf(copy, sizeof copy, "%s%s%s", brackets ? "[" : "", host.name,
                   brackets ? "]" : "");
    check(allow_host_parse(bytes_of_string(copy), &again, &why) == 0);
    check(again.is_address == host.is_address && strcmp(again.name, host.name) == 0);
    bool admitted = allow_list_admits(list, &host, 443, NULL);
    check(!admitted || !host.is_address || !names_only);
    check(admitted == allow_list_admits(list, &again, 443, NULL));
    if (host.is_address && admitted)
        check(!allow_list_refuses_address(list, &host.address, 443));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    struct allow_list *list = NULL, *second = NULL;
    struct failure failure;
    if (len < 1)
        return 0;
    const uint8_t *text = data + 1;
    const uint8_t *end = memchr(text, '\n', len - 1);
    size_t first = end ? (size_t)(end - text) : len - 1;
    check(allow_list_new(&list) == 0 && allow_list_new(&second) == 0);
    int r = allow_list_add(list, bytes_of(text, first), &failure);
    check(r == 0 || r == -EINVAL);
    if (r == 0) {
        const char *normal = allow_list_text(list, 0);
        check(strlen(normal) <= ALLOW_TEXT_MAX);
        check(allow_list_add(second, bytes_of_string(normal), &failure) == 0);
        check(strcmp(allow_list_text(second, 0), normal) == 0);
    }
    if (end)
        check_host(list, bytes_of(end + 1, len - 2 - first),
                   r < 0 || strspn(allow_list_text(list, 0), "[0123456789./:") < 2);
    allow_list_free(list);
    allow_list_free(second);
    return 0;
}

/* Any bytes as a thread ID and as a directory name. */
#include <errno.h>
#include <stdlib.h>

#include "names/thread_id.h"

static void check(bool ok)
{
    if (!ok)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    char name[THREAD_NAME_MAX + 1];
    uint8_t id[THREAD_ID_MAX];
    struct bytes input = bytes_of(data, len);
    if (thread_id_to_name(input, name) == 0) {
        struct bytes made = bytes_of_string(name);
        check(made.len >= 1 && made.len <= THREAD_NAME_MAX && name[0] != '.');
        check(!strchr(name, '/'));
        int n = thread_id_from_name(made, id);
        check(n == -ENODATA ? strchr(name, '~') != NULL
                            : bytes_equal(bytes_of(id, (size_t)n), input));
    }
    int n = thread_id_from_name(input, id);
    if (n >= 0)
        check(thread_id_has_name(bytes_of(id, (size_t)n), input));
    return 0;
}

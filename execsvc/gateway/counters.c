#include "gateway/counters.h"

#include <stddef.h>
#include <sys/mman.h>

struct counters *counters_new(void)
{
    void *p = mmap(NULL, sizeof(struct counters), PROT_READ | PROT_WRITE,
                   MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

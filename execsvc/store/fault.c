#include "store/fault.h"

#include <errno.h>

#ifdef BERTH_FAULT_POINTS

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define FAULT_VARIABLE "BERTH_FAULT"

static const struct {
    const char *name;
    const char *text;
} faults[] = {
#define FAULT(name, text) [FAULT_##name] = {#name, text},
#include "store/faults.def"
#undef FAULT
};

struct chosen {
    const char *name; /* NULL: none */
    size_t len;
    long passing;
};

static struct chosen chosen_fault(void)
{
    const char *name = getenv(FAULT_VARIABLE);
    if (!name)
        return (struct chosen){0};
    size_t len = strcspn(name, ":");
    return (struct chosen){
        .name = name, .len = len, .passing = name[len] ? strtol(name + len + 1, NULL, 10) : 1};
}

void fault_point(enum fault fault)
{
    static atomic_long passed;
    const struct chosen chosen = chosen_fault();
    const char *name = faults[fault].name;
    if (!chosen.name || strlen(name) != chosen.len || memcmp(name, chosen.name, chosen.len) != 0)
        return;
    if (atomic_fetch_add(&passed, 1) + 1 == chosen.passing)
        (void)raise(SIGKILL);
}

void fault_forget(void)
{
    (void)unsetenv(FAULT_VARIABLE);
}

int fault_list(FILE *to)
{
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
        (void)fprintf(to, "%s\t%s\n", faults[i].name, faults[i].text);
    return 0;
}

#else

int fault_list(FILE *to)
{
    (void)to;
    return -EOPNOTSUPP;
}

#endif

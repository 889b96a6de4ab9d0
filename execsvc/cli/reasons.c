#include "cli/reasons.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define NAMES_MAX 512

static bool is_first(const json_t *object, const char *of, const char *reason,
                     const char *(*why)(const json_t *value))
{
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)object, name, value)
    {
        if (strcmp(name, of) == 0)
            return true;
        const char *other = why(value);
        if (other && strcmp(other, reason) == 0)
            return false;
    }
    return true;
}

void reasons_each(const json_t *object, const char *(*why)(const json_t *value),
                  void (*tell)(void *context, const char *names, const char *reason), void *context)
{
    const char *name, *other;
    json_t *value, *same;
    json_object_foreach((json_t *)(uintptr_t)object, name, value)
    {
        const char *reason = why(value);
        char names[NAMES_MAX] = "";
        size_t used = 0;
        if (!reason || !is_first(object, name, reason, why))
            continue;
        json_object_foreach((json_t *)(uintptr_t)object, other, same)
        {
            const char *its = why(same);
            if (its && strcmp(its, reason) == 0 && used < sizeof names)
                used += (size_t)snprintf(names + used, sizeof names - used, "%s%s",
                                         used ? ", " : "", other);
        }
        tell(context, names, reason);
    }
}

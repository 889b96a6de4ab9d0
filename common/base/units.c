#include "base/units.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/cleanup.h"

bool units_duration(const char *text, double max_s, uint64_t *ret_ms)
{
    static const struct {
        const char *name;
        double ms;
    } units[] = {{"", 1000},    {"s", 1000},    {"ms", 1},         {"m", 60e3},
                 {"h", 3600e3}, {"d", 86400e3}, {"w", 7 * 86400e3}};
    char *end;
    errno = 0;
    double n = strtod(text, &end);
    if (end == text || errno || !isfinite(n) || n < 0)
        return false;
    for (size_t i = 0; i < ARRAY_SIZE(units); i++) {
        if (strcmp(end, units[i].name) != 0)
            continue;
        double ms = n * units[i].ms;
        if (ms > max_s * 1000)
            return false;
        *ret_ms = (uint64_t)ms;
        *ret_ms += (double)*ret_ms < ms;
        return true;
    }
    return false;
}

bool units_size(const char *text, uint64_t *ret)
{
    static const char letters[] = "kmgt";
    char *end;
    if (text[0] < '0' || text[0] > '9')
        return false;
    errno = 0;
    unsigned long long n = strtoull(text, &end, 10);
    unsigned shift = 0;
    for (unsigned i = 0; *end && letters[i]; i++)
        if ((*end | 0x20) == letters[i])
            shift = 10 * (i + 1);
    const char *rest = shift ? end + 1 : end;
    if (*rest && strcasecmp(rest, "B") != 0 && (!shift || strcasecmp(rest, "iB") != 0))
        return false;
    if (errno || n == 0 || n > (UINT64_MAX >> 1) >> shift)
        return false;
    *ret = (uint64_t)n << shift;
    return true;
}

char *units_size_text(uint64_t bytes, char *text)
{
    static const char letters[] = "KMGTPE";
    if (bytes < 1024) {
        (void)snprintf(text, UNITS_SIZE_TEXT, "%u B", (unsigned)bytes);
        return text;
    }
    double n = (double)bytes / 1024;
    size_t i = 0;
    /* What would be rounded to 1024.0 is 1.0 of the next. */
    for (; n >= 1023.95 && letters[i + 1]; i++)
        n /= 1024;
    (void)snprintf(text, UNITS_SIZE_TEXT, "%.1f %ciB", n, letters[i]);
    return text;
}

#include "gateway/conditions.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

static const char *skip_space(const char *at)
{
    return at + strspn(at, " \t");
}

bool conditions_tag_listed(const char *list, const char *tag, bool strong)
{
    const char *at = skip_space(list);
    size_t len = strlen(tag);
    if (strcmp(at, "*") == 0)
        return true;
    while (*at) {
        bool weak = strncmp(at, "W/", 2) == 0;
        if (weak)
            at += 2;
        const char *end = *at == '"' ? strchr(at + 1, '"') : NULL;
        if (!end)
            return false;
        if ((size_t)(end + 1 - at) == len && memcmp(at, tag, len) == 0 && !(weak && strong))
            return true;
        at = skip_space(end + 1);
        if (*at != ',')
            return false;
        at = skip_space(at + 1);
    }
    return false;
}

bool conditions_tags_valid(const char *list)
{
    const char *at = skip_space(list);
    if (*at == '*')
        return *skip_space(at + 1) == '\0';
    while (*at) {
        at += strncmp(at, "W/", 2) == 0 ? 2 : 0;
        const char *end = *at == '"' ? strchr(at + 1, '"') : NULL;
        if (!end)
            return false;
        at = skip_space(end + 1);
        if (*at == '\0')
            return true;
        if (*at != ',')
            return false;
        at = skip_space(at + 1);
    }
    return false;
}

static const char *const days[] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
static const char *const months[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                     "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};

bool conditions_date(const char *text, time_t *ret)
{
    struct tm tm = {0};
    char day[4], month[4], rest;
    if (sscanf(text, "%3s, %2d %3s %4d %2d:%2d:%2d GMT%c", day, &tm.tm_mday, month, &tm.tm_year,
               &tm.tm_hour, &tm.tm_min, &tm.tm_sec, &rest) != 7 ||
        !strstr(text, " GMT"))
        return false;
    for (tm.tm_mon = 0; tm.tm_mon < 12 && strcmp(months[tm.tm_mon], month) != 0; tm.tm_mon++)
        ;
    if (tm.tm_mon == 12)
        return false;
    tm.tm_year -= 1900;
    *ret = timegm(&tm);
    return true;
}

/* Not strftime: the names are those of no locale. */
void conditions_print_date(time_t at, char ret[CONDITIONS_DATE_SIZE])
{
    struct tm tm;
    if (!gmtime_r(&at, &tm) || tm.tm_year < -1900 || tm.tm_year > 8099) {
        at = 0;
        (void)gmtime_r(&at, &tm);
    }
    (void)snprintf(ret, CONDITIONS_DATE_SIZE, "%s, %02d %s %04d %02d:%02d:%02d GMT",
                   days[tm.tm_wday], tm.tm_mday, months[tm.tm_mon], tm.tm_year + 1900, tm.tm_hour,
                   tm.tm_min, tm.tm_sec);
}

/* Digits; UINT64_MAX stands for every greater number. NULL: there are none. */
static const char *read_number(const char *at, uint64_t *ret)
{
    uint64_t n = 0;
    if (*at < '0' || *at > '9')
        return NULL;
    for (; *at >= '0' && *at <= '9'; at++) {
        unsigned digit = (unsigned)(*at - '0');
        n = n > (UINT64_MAX - digit) / 10 ? UINT64_MAX : n * 10 + digit;
    }
    *ret = n;
    return at;
}

/* One spec; NULL: it is none. ret->length 0: it cannot be satisfied. */
static const char *read_range(const char *at, uint64_t size, struct conditions_range *ret)
{
    uint64_t first, last = UINT64_MAX;
    *ret = (struct conditions_range){0};
    if (*at == '-') {
        at = read_number(at + 1, &last);
        if (at && last > 0 && size > 0) {
            ret->length = last < size ? last : size;
            ret->from = size - ret->length;
        }
        return at;
    }
    at = read_number(at, &first);
    if (!at || *at++ != '-')
        return NULL;
    if (*at >= '0' && *at <= '9')
        at = read_number(at, &last);
    if (last < first)
        return NULL;
    if (first < size) {
        ret->from = first;
        ret->length = last < size ? last - first + 1 : size - first;
    }
    return at;
}

int conditions_ranges(const char *field, uint64_t size,
                      struct conditions_range ret[CONDITIONS_RANGES_MAX])
{
    int count = 0, specs = 0;
    uint64_t total = 0;
    if (strncasecmp(field, "bytes=", 6) != 0)
        return -1;
    const char *at = skip_space(field + 6);
    for (;;) {
        struct conditions_range range;
        at = read_range(at, size, &range);
        if (!at || ++specs > CONDITIONS_RANGES_MAX)
            return -1;
        if (count > 0 && range.length > size - total)
            return -1;
        if (range.length > 0)
            ret[count++] = range;
        total += range.length;
        at = skip_space(at);
        if (*at == '\0')
            break;
        if (*at != ',')
            return -1;
        at = skip_space(at + 1);
    }
    return count;
}

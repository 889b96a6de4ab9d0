#include "cli/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

char *text_copy(struct bytes data)
{
    char *copy = malloc(data.len + 1);
    if (!copy)
        return NULL;
    if (data.len > 0)
        memcpy(copy, data.data, data.len);
    copy[data.len] = 0;
    return copy;
}

json_t *text_json_bytes(struct bytes bytes)
{
    _cleanup_buffer_ struct buffer escaped = {0};
    if (text_is_utf8(bytes))
        return json_stringn(bytes.len ? (const char *)bytes.data : "", bytes.len);
    if (text_escape(&escaped, bytes, TEXT_VALUE) < 0)
        return NULL;
    return json_stringn((const char *)escaped.data, escaped.len);
}

json_t *text_json(const char *text)
{
    return text_json_bytes(bytes_of_string(text));
}

void text_time(int64_t seconds, bool utc, char *text, size_t size)
{
    time_t t = (time_t)seconds;
    struct tm tm;
    if (!(utc ? gmtime_r(&t, &tm) : localtime_r(&t, &tm)) ||
        strftime(text, size, utc ? "%Y-%m-%dT%H:%M:%SZ" : "%Y-%m-%d %H:%M:%S", &tm) == 0)
        (void)snprintf(text, size, "?");
}

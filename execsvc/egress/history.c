#include "egress/history.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "egress/supervisor.h"

#define LINE_BEGIN ": egress {"

/* --- a line ---------------------------------------------------------------------------------- */

/* Text that is longer than its field is cut, but not amid a character. */
static void take_text(const json_t *object, const char *key, size_t max, struct bytes *ret)
{
    const json_t *value = json_object_get(object, key);
    size_t len = json_string_length(value);
    const char *text = json_string_value(value);
    if (len > max)
        for (len = max; len > 0 && ((uint8_t)text[len] & 0xc0) == 0x80;)
            len--;
    *ret = bytes_of(text, text ? len : 0);
}

static uint64_t take_number(const json_t *object, const char *key)
{
    json_int_t n = json_integer_value(json_object_get(object, key));
    return n > 0 ? (uint64_t)n : 0;
}

int history_parse(struct bytes line, json_t **ret_object, struct wire_message *ret)
{
    const char *begin = memmem(line.data, line.len, LINE_BEGIN, strlen(LINE_BEGIN));
    if (!begin)
        return -EINVAL;
    begin += strlen(LINE_BEGIN) - 1;
    size_t len = line.len - (size_t)((const uint8_t *)begin - line.data);
    json_t *object = json_loadb(begin, len, JSON_REJECT_DUPLICATES, NULL);
    if (!json_is_string(json_object_get(object, "verdict")) ||
        !json_is_string(json_object_get(object, "workspace"))) {
        json_decref(object);
        return -EINVAL;
    }
    uint64_t port = take_number(object, "port");
    *ret = (struct wire_message){
        .type = WIRE_EGRESS_DECISION,
        .egress_decision = {.port = port <= UINT16_MAX ? (uint32_t)port : 0,
                            .bytes_up = take_number(object, "bytes_up"),
                            .bytes_down = take_number(object, "bytes_down"),
                            .duration_ms = take_number(object, "duration_ms")}};
    const struct wire_row *row = wire_row(WIRE_EGRESS_DECISION);
    for (size_t i = 0; i < row->field_count; i++)
        if (row->fields[i].type == WIRE_FIELD_BYTES)
            take_text(object, row->fields[i].name, row->fields[i].max,
                      (struct bytes *)(void *)((uint8_t *)ret + row->fields[i].offset));
    *ret_object = object;
    return 0;
}

/* --- the log -----------------------------------------------------------------------------------
 */

struct history {
    bool (*shows)(void *context, const char *workspace);
    void *context;
    uint32_t limit;
    struct buffer *list;
    uint32_t count;
};

static int add_line(struct history *h, struct bytes line)
{
    _cleanup_buffer_ struct buffer element = {0};
    struct wire_message m;
    json_t *object;
    if (history_parse(line, &object, &m) < 0)
        return 0;
    int r = 0;
    if (h->shows(h->context, json_string_value(json_object_get(object, "workspace")))) {
        r = wire_encode(&element, &m);
        if (r == 0)
            r = wire_list_append(h->list, buffer_view(&element));
        h->count += r == 0;
    }
    json_decref(object);
    return r;
}

/* Whole lines alone: the last may be on its way. Returns how much of the text that was. */
static int add_lines(struct history *h, struct bytes text, size_t *ret_used)
{
    size_t at = 0;
    while (at < text.len && h->count < h->limit) {
        const uint8_t *end = memchr(text.data + at, '\n', text.len - at);
        if (!end)
            break;
        size_t len = (size_t)(end - text.data) - at;
        int r = add_line(h, bytes_of(text.data + at, len));
        if (r < 0)
            return r;
        at += len + 1;
    }
    /* No line of the log is as long; what is one in it all the same is left out. */
    *ret_used = at > 0 || text.len < HISTORY_READ_MAX ? at : text.len;
    return 0;
}

int history_read(int directory, const struct wire_egress_log *request,
                 bool (*shows)(void *context, const char *workspace), void *context,
                 struct buffer *list, struct wire_egress_decisions *ret)
{
    const uint32_t most = wire_row(WIRE_EGRESS_DECISIONS)->fields[3].max_count;
    struct history h = {.shows = shows,
                        .context = context,
                        .limit =
                            request->count > 0 && request->count < most ? request->count : most,
                        .list = list};
    struct stat st = {0};
    size_t used = 0;
    _cleanup_free_ uint8_t *text = malloc(HISTORY_READ_MAX);
    _cleanup_close_ int fd =
        openat(directory, SUPERVISOR_LOG, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    *ret = (struct wire_egress_decisions){0};
    if (!text)
        return -ENOMEM;
    if (fd < 0)
        return errno == ENOENT ? 0 : -errno;
    if (fstat(fd, &st) < 0)
        return -errno;
    uint64_t size = (uint64_t)st.st_size, position = request->position;
    bool latest = position == HISTORY_LATEST, begins_amid = false;
    if (latest) {
        begins_amid = size > HISTORY_READ_MAX;
        position = begins_amid ? size - HISTORY_READ_MAX : 0;
    } else if (position > size) {
        /* It was begun anew. */
        ret->lost = 1;
        position = 0;
    }
    ssize_t n = pread(fd, text, HISTORY_READ_MAX, (off_t)position);
    if (n < 0)
        return -errno;
    const uint8_t *first = begins_amid ? memchr(text, '\n', (size_t)n) : NULL;
    size_t skipped = first ? (size_t)(first - text) + 1 : 0;
    int r = add_lines(&h, bytes_of(text + skipped, (size_t)n - skipped), &used);
    if (r < 0)
        return r;
    ret->position = position + skipped + used;
    ret->more = used > 0 && ret->position < size;
    ret->items = wire_list_of(list, h.count);
    return 0;
}

#include "gateway/multipart.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/*   PREAMBLE -> AFTER_BOUNDARY -> HEADER -> CONTENT -> AFTER_BOUNDARY …
 *                      |
 *                      v
 *                   COMPLETE
 *
 * A delimiter is CR LF "--" boundary; the first one may lack the CR LF, so the input is taken as
 * if one came before it. */
enum state { PREAMBLE, AFTER_BOUNDARY, HEADER, CONTENT, COMPLETE, FAILED };

struct multipart {
    struct multipart_events events;
    enum state state;
    char delimiter[4 + MULTIPART_BOUNDARY_MAX + 1];
    size_t delimiter_len;
    size_t matched;         /* of the delimiter, at the end of what has come */
    struct buffer gathered; /* AFTER_BOUNDARY, HEADER: the line or header so far */
};

/* --- parameters ------------------------------------------------------------------------------- */

static const char *skip_blanks(const char *s)
{
    return s + strspn(s, " \t");
}

/* The next "; name=value" of a header's value: 1; 0: there is none; -EBADMSG. Value: a token or a
 * quoted string, in which \" and \\ are what browsers and fetch write; they write others as %XX. */
static int next_parameter(const char **at, struct buffer *name, struct buffer *value)
{
    const char *s = skip_blanks(*at);
    name->len = value->len = 0;
    if (*s == '\0')
        return 0;
    if (*s++ != ';')
        return -EBADMSG;
    s = skip_blanks(s);
    size_t len = strcspn(s, "= \t;\"");
    if (len == 0 || s[len] != '=' || buffer_append(name, s, len) < 0)
        return -EBADMSG;
    s += len + 1;
    bool quoted = *s == '"';
    s += quoted;
    while (*s && (quoted ? *s != '"' : !strchr("; \t", *s))) {
        if (quoted && *s == '\\' && (s[1] == '"' || s[1] == '\\'))
            s++;
        if (buffer_append(value, s++, 1) < 0)
            return -ENOMEM;
    }
    if (quoted && *s++ != '"')
        return -EBADMSG;
    if (buffer_append(name, "", 1) < 0 || buffer_append(value, "", 1) < 0)
        return -ENOMEM;
    *at = s;
    return 1;
}

/* As forms write a name: %0A, %0D and %22 stand for what would end it. */
static void decode_escapes(struct buffer *b)
{
    static const struct {
        const char *text;
        char byte;
    } escapes[] = {{"%22", '"'}, {"%0A", '\n'}, {"%0D", '\r'}};
    size_t n = 0;
    for (size_t i = 0; i < b->len; i++) {
        uint8_t byte = b->data[i];
        for (size_t k = 0; byte == '%' && k < ARRAY_SIZE(escapes); k++) {
            if (b->len - i >= 3 && strncasecmp((char *)b->data + i, escapes[k].text, 3) == 0) {
                byte = (uint8_t)escapes[k].byte;
                i += 2;
            }
        }
        b->data[n++] = byte;
    }
    b->len = n;
}

static bool is_boundary(const struct buffer *value)
{
    const char *text = (const char *)value->data;
    size_t len = strlen(text);
    for (size_t i = 0; i < len; i++)
        if (!isalnum((unsigned char)text[i]) && !strchr("'()+_,-./:=? ", text[i]))
            return false;
    return len > 0 && len <= MULTIPART_BOUNDARY_MAX && text[len - 1] != ' ';
}

/* --- life ------------------------------------------------------------------------------------- */

int multipart_new(const char *type, const struct multipart_events *events, struct multipart **ret)
{
    static const char expected[] = "multipart/form-data";
    _cleanup_buffer_ struct buffer name = {0}, value = {0};
    size_t len = sizeof expected - 1;
    if (!type || strncasecmp(type, expected, len) != 0)
        return -EINVAL;
    const char *at = type + len;
    int r;
    while ((r = next_parameter(&at, &name, &value)) > 0)
        if (strcasecmp((const char *)name.data, "boundary") == 0)
            break;
    if (r <= 0 || !is_boundary(&value))
        return r == -ENOMEM ? r : -EINVAL;
    struct multipart *m = calloc(1, sizeof *m);
    if (!m)
        return -ENOMEM;
    m->events = *events;
    m->delimiter_len =
        (size_t)snprintf(m->delimiter, sizeof m->delimiter, "\r\n--%s", (const char *)value.data);
    m->matched = 2;
    *ret = m;
    return 0;
}

void multipart_free(struct multipart *m)
{
    if (!m)
        return;
    buffer_release(&m->gathered);
    free(m);
}

bool multipart_is_complete(const struct multipart *m)
{
    return m->state == COMPLETE;
}

/* --- states ----------------------------------------------------------------------------------- */

/* Content, or preamble, up to a delimiter; how much of data was used. *ret_found: it has come.
 * CR occurs in the delimiter at its start alone (a boundary has none), so what matched in part and
 * then does not can only match again from a CR. */
static int take_content(struct multipart *m, struct bytes data, size_t *ret_used, bool *ret_found)
{
    bool wanted = m->state == CONTENT;
    size_t held = m->matched, start = 0, i = 0; /* held: matched in earlier data */
    int r = 0;
    *ret_found = false;
    for (; r == 0 && i < data.len; i++) {
        if (data.data[i] == (uint8_t)m->delimiter[m->matched]) {
            if (++m->matched == m->delimiter_len) {
                *ret_found = true;
                i++;
                break;
            }
            continue;
        }
        if (m->matched > 0) {
            if (wanted && held > 0)
                r = m->events.content(m->events.context, bytes_of(m->delimiter, held));
            held = 0;
            m->matched = data.data[i] == '\r';
        }
        if (m->matched == 0) {
            const uint8_t *cr = memchr(data.data + i, '\r', data.len - i);
            i = cr ? (size_t)(cr - data.data) - 1 : data.len - 1;
        }
    }
    /* What is not part of a delimiter, perhaps of one that goes on in later data. */
    size_t in_data = m->matched - held;
    size_t end = i - in_data;
    if (r == 0 && wanted && end > start)
        r = m->events.content(m->events.context, bytes_of(data.data + start, end - start));
    if (*ret_found)
        m->matched = 0;
    *ret_used = i;
    return r;
}

/* Behind a delimiter: "--" is the last one; blanks and CR LF begin a part. */
static int take_after_boundary(struct multipart *m, struct bytes data, size_t *ret_used)
{
    size_t i = 0;
    while (i < data.len) {
        uint8_t byte = data.data[i++];
        if (buffer_append_u8(&m->gathered, byte) < 0)
            return -ENOMEM;
        const uint8_t *all = m->gathered.data;
        size_t len = m->gathered.len;
        if (len == 2 && all[0] == '-' && all[1] == '-') {
            m->state = COMPLETE;
            break;
        }
        if (len >= 2 && all[len - 2] == '\r' && byte == '\n') {
            m->state = HEADER;
            m->gathered.len = 0;
            break;
        }
        bool dash = byte == '-' && len == 1;
        if ((byte != ' ' && byte != '\t' && byte != '\r' && !dash) ||
            (len >= 2 && (all[len - 2] == '\r' || all[len - 2] == '-')) ||
            len > MULTIPART_HEADER_MAX)
            return -EBADMSG;
    }
    *ret_used = i;
    return 0;
}

static int take_disposition(const char *value, struct buffer *name, struct buffer *filename,
                            bool *ret_file)
{
    static const char expected[] = "form-data";
    _cleanup_buffer_ struct buffer key = {0}, text = {0};
    size_t len = sizeof expected - 1;
    if (strncasecmp(value, expected, len) != 0)
        return -EBADMSG;
    const char *at = value + len;
    int r;
    while ((r = next_parameter(&at, &key, &text)) > 0) {
        const char *word = (const char *)key.data;
        bool file = strcasecmp(word, "filename") == 0;
        if (!file && strcasecmp(word, "name") != 0)
            continue;
        struct buffer *to = file ? filename : name;
        decode_escapes(&text);
        if (to->len > 0)
            return -EBADMSG; /* two */
        if (buffer_append(to, text.data, text.len) < 0)
            return -ENOMEM;
        *ret_file = *ret_file || file;
    }
    return r;
}

static int begin_part(struct multipart *m)
{
    static const char disposition[] = "content-disposition:";
    _cleanup_buffer_ struct buffer name = {0}, filename = {0};
    bool found = false, file = false;
    int r = buffer_append(&m->gathered, "", 1);
    if (r == 0 && memchr(m->gathered.data, '\0', m->gathered.len - 1))
        r = -EBADMSG;
    char *line = (char *)m->gathered.data;
    while (r == 0 && *line) {
        char *end = strstr(line, "\r\n");
        if (end)
            *end = '\0';
        /* Folded lines, and what is no field, would be read in two ways. */
        if (*line == ' ' || *line == '\t' || !strchr(line, ':') || strpbrk(line, "\r\n"))
            r = -EBADMSG;
        else if (strncasecmp(line, disposition, sizeof disposition - 1) == 0) {
            r = found ? -EBADMSG
                      : take_disposition(skip_blanks(line + sizeof disposition - 1), &name,
                                         &filename, &file);
            found = true;
        }
        line = end ? end + 2 : line + strlen(line);
    }
    if (r < 0 || !found)
        return r < 0 ? r : -EBADMSG;
    const struct multipart_part part = {.name = name.len ? (const char *)name.data : "",
                                        .filename = file ? (const char *)filename.data : NULL};
    m->gathered.len = 0;
    m->state = CONTENT;
    return m->events.begin(m->events.context, &part);
}

static int take_header(struct multipart *m, struct bytes data, size_t *ret_used)
{
    size_t i = 0;
    while (i < data.len) {
        if (buffer_append_u8(&m->gathered, data.data[i++]) < 0)
            return -ENOMEM;
        const uint8_t *all = m->gathered.data;
        size_t len = m->gathered.len;
        if (len > MULTIPART_HEADER_MAX)
            return -EMSGSIZE;
        if (len == 2 && memcmp(all, "\r\n", 2) == 0)
            return -EBADMSG; /* no field at all */
        if (len < 4 || memcmp(all + len - 4, "\r\n\r\n", 4) != 0)
            continue;
        m->gathered.len -= 2;
        *ret_used = i;
        return begin_part(m);
    }
    *ret_used = i;
    return 0;
}

static int step(struct multipart *m, struct bytes data, size_t *ret_used)
{
    bool found, content = m->state == CONTENT;
    int r;
    switch (m->state) {
    case PREAMBLE:
    case CONTENT:
        r = take_content(m, data, ret_used, &found);
        if (r < 0 || !found)
            return r;
        m->state = AFTER_BOUNDARY;
        m->gathered.len = 0;
        return content ? m->events.end(m->events.context) : 0;
    case AFTER_BOUNDARY:
        return take_after_boundary(m, data, ret_used);
    case HEADER:
        return take_header(m, data, ret_used);
    case COMPLETE:
        *ret_used = data.len;
        return 0;
    case FAILED:
        break;
    }
    return -EBADMSG;
}

int multipart_feed(struct multipart *m, struct bytes data)
{
    while (data.len > 0) {
        size_t used = 0;
        int r = step(m, data, &used);
        if (r < 0) {
            m->state = FAILED;
            return r;
        }
        data = bytes_of(data.data + used, data.len - used);
    }
    return 0;
}

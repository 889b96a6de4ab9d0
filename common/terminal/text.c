#include "terminal/text.h"

#include <langinfo.h>
#include <locale.h>
#include <pthread.h>
#include <string.h>
#include <wchar.h>

#include "base/cleanup.h"

#define UTF8_MAX_POINT 0x10ffff

struct range {
    uint32_t first;
    uint32_t last;
};

/* What a name must not do to the line it is printed in. */
static const struct range unsafe_points[] = {
    {0x0000, 0x001f},   {0x007f, 0x009f},   /* controls: escape sequences of two standards */
    {0x00ad, 0x00ad},   {0x034f, 0x034f},   /* invisible */
    {0x061c, 0x061c},   {0x115f, 0x1160},   /* direction; invisible */
    {0x17b4, 0x17b5},   {0x180b, 0x180f},   /* invisible */
    {0x200b, 0x200f},   {0x2028, 0x202e},   /* zero width, lines, direction */
    {0x2060, 0x206f},   {0x3164, 0x3164},   /* direction; invisible */
    {0xe000, 0xf8ff},   {0xfdd0, 0xfdef},   /* private use; not characters */
    {0xfeff, 0xfeff},   {0xffa0, 0xffa0},   /* byte order mark; invisible */
    {0xfff0, 0xfffb},   {0xfffe, 0xffff},   /* specials */
    {0xe0000, 0xe0fff}, {0xf0000, 0x10ffff} /* tags; private use */
};

/* Length of the character at data and its code point; 0 when it is not UTF-8. */
static size_t decode(struct bytes data, uint32_t *ret)
{
    uint8_t lead = data.data[0];
    size_t len = lead < 0x80 ? 1 : lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    if (len == 1) {
        *ret = lead;
        return 1;
    }
    if (lead < 0xc2 || lead > 0xf4 || len > data.len)
        return 0;
    uint32_t point = lead & (0x7fU >> len);
    for (size_t i = 1; i < len; i++) {
        if ((data.data[i] & 0xc0) != 0x80)
            return 0;
        point = point << 6 | (data.data[i] & 0x3fU);
    }
    if (point < least[len] || point > UTF8_MAX_POINT || (point >= 0xd800 && point <= 0xdfff))
        return 0;
    *ret = point;
    return len;
}

static bool is_unsafe(uint32_t point)
{
    for (size_t i = 0; i < ARRAY_SIZE(unsafe_points); i++)
        if (point >= unsafe_points[i].first && point <= unsafe_points[i].last)
            return true;
    return false;
}

static void load_locale(void)
{
    if (strcmp(setlocale(LC_CTYPE, NULL), "C") == 0)
        (void)setlocale(LC_CTYPE, "");
}

/* The user's, when it is needed for the first time: to load it takes 0.1 ms, and a command that
 * runs well says nothing. Threads may come here at once. */
static void use_locale(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, load_locale);
}

static bool locale_is_utf8(void)
{
    use_locale();
    return strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
}

int text_escape(struct buffer *b, struct bytes data, enum text_form form)
{
    bool utf8 = locale_is_utf8();
    for (size_t i = 0; i < data.len;) {
        uint32_t point = 0;
        size_t len = decode(bytes_of(data.data + i, data.len - i), &point);
        bool keep = len > 0 && !is_unsafe(point) && (point < 0x80 || utf8);
        int r = 0;
        if (keep && point == '\\' && form == TEXT_VALUE)
            r = buffer_append(b, "\\\\", 2);
        else if (keep)
            r = buffer_append(b, data.data + i, len);
        len = len ? len : 1;
        for (size_t k = 0; !keep && r == 0 && k < len; k++)
            r = buffer_printf(b, "\\x%02x", data.data[i + k]);
        if (r < 0)
            return r;
        i += len;
    }
    return 0;
}

int text_hex(struct buffer *b, struct bytes data)
{
    for (size_t i = 0; i < data.len; i++) {
        int r = buffer_printf(b, "%02x", data.data[i]);
        if (r < 0)
            return r;
    }
    return 0;
}

size_t text_width(struct bytes text)
{
    size_t width = 0;
    use_locale();
    for (size_t i = 0; i < text.len;) {
        uint32_t point = 0;
        size_t len = decode(bytes_of(text.data + i, text.len - i), &point);
        int columns = len ? wcwidth((wchar_t)point) : 1;
        width += columns < 0 ? 1U : (size_t)columns;
        i += len ? len : 1;
    }
    return width;
}

size_t text_fit(struct bytes text, size_t columns)
{
    size_t width = 0, i = 0;
    use_locale();
    while (i < text.len) {
        uint32_t point = 0;
        size_t len = decode(bytes_of(text.data + i, text.len - i), &point);
        int taken = len ? wcwidth((wchar_t)point) : 1;
        width += taken < 0 ? 1U : (size_t)taken;
        if (width > columns)
            break;
        i += len ? len : 1;
    }
    return i;
}

bool text_is_utf8(struct bytes data)
{
    for (size_t i = 0; i < data.len;) {
        uint32_t point;
        size_t len = decode(bytes_of(data.data + i, data.len - i), &point);
        if (len == 0)
            return false;
        i += len;
    }
    return true;
}

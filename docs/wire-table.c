/* The message table of docs/protocol.md, between two marks in the page.
 *   wire-table update PAGE   makes it anew
 *   wire-table check PAGE    fails when it is not up to date */
#include <stdio.h>

#include "wire/wire.h"

#define BEGIN "<!-- table: begin -->\n"
#define END "<!-- table: end -->\n"

static const char *from_name(const struct wire_row *row)
{
    switch (row->from) {
    case WIRE_FROM_CLIENT:
        return "client";
    case WIRE_FROM_SERVER:
        return "service";
    case WIRE_FROM_EITHER:
        return "either";
    }
    return "";
}

static const char *phase_name(const struct wire_row *row)
{
    switch (row->phase) {
    case WIRE_PHASE_HELLO:
        return "hello";
    case WIRE_PHASE_READY:
        return "ready";
    case WIRE_PHASE_ANY:
        return "any";
    }
    return "";
}

static const char *class_name(const struct wire_row *row)
{
    switch (row->class) {
    case WIRE_CLASS_REQUEST:
        return "request";
    case WIRE_CLASS_REPLY:
        return "reply";
    case WIRE_CLASS_ITEM:
        return "item";
    case WIRE_CLASS_CONTROL:
        return "control";
    case WIRE_CLASS_NOTICE:
        return "notice";
    case WIRE_CLASS_RECORD:
        return "record";
    }
    return "";
}

static const char *effect_name(const struct wire_row *row)
{
    switch (row->effect) {
    case WIRE_EFFECT_NONE:
        return "";
    case WIRE_EFFECT_READS:
        return "reads";
    case WIRE_EFFECT_WRITES:
        return "writes";
    }
    return "";
}

static const char *verb_name(const struct wire_row *row)
{
    return row->verb == WIRE_VERB_NONE ? "" : wire_verb_name(row->verb);
}

static int put_field(struct buffer *out, const struct wire_field *field)
{
    switch (field->type) {
    case WIRE_FIELD_U32:
        return buffer_printf(out, "%s u32", field->name);
    case WIRE_FIELD_U64:
        return buffer_printf(out, "%s u64", field->name);
    case WIRE_FIELD_TIME:
        return buffer_printf(out, "%s time", field->name);
    case WIRE_FIELD_ATTR:
        return buffer_printf(out, "%s attr", field->name);
    case WIRE_FIELD_BYTES:
        if (field->min == field->max)
            return buffer_printf(out, "%s bytes(%u)", field->name, field->max);
        return buffer_printf(out, "%s bytes(%u…%u)", field->name, field->min, field->max);
    case WIRE_FIELD_LIST:
        return buffer_printf(out, "%s list(%u, %u bytes)", field->name, field->max_count,
                             field->max);
    }
    return 0;
}

static int put_row(struct buffer *out, const struct wire_row *row)
{
    const struct wire_row *owner = wire_row(row->owner);
    int r = buffer_printf(out, "| 0x%04x | **%s** | %s | %s | %s%s%s | %s | %s | %u…%u | %s ",
                          row->type, row->name, from_name(row), phase_name(row), class_name(row),
                          !owner                             ? ""
                          : row->class == WIRE_CLASS_REQUEST ? " → "
                                                             : " in ",
                          owner ? owner->name : "", effect_name(row), verb_name(row),
                          row->min_payload, row->max_payload, row->summary);
    for (size_t i = 0; i < row->field_count && r == 0; i++) {
        r = buffer_printf(out, i == 0 ? "<br>" : ", ");
        if (r == 0)
            r = put_field(out, &row->fields[i]);
    }
    return r < 0 ? r : buffer_printf(out, " |\n");
}

static int put_table(struct buffer *out)
{
    int r =
        buffer_printf(out, "%s%s",
                      "| number | name | from | phase | class | effect | verb | payload | meaning, "
                      "and fields in order |\n",
                      "| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
    for (size_t i = 0; i < wire_row_count() && r == 0; i++)
        r = put_row(out, wire_row_at(i));
    return r;
}

static int read_file(const char *path, struct buffer *b)
{
    FILE *f = fopen(path, "re");
    if (!f)
        return -errno;
    int r = 0;
    size_t n = 1;
    while (n > 0 && r == 0) {
        r = buffer_reserve(b, 65536);
        n = r == 0 ? fread(b->data + b->len, 1, 65536, f) : 0;
        b->len += n;
    }
    if (r == 0 && ferror(f))
        r = -EIO;
    (void)fclose(f);
    return r;
}

static int write_file(const char *path, const struct buffer *b)
{
    FILE *f = fopen(path, "we");
    if (!f)
        return -errno;
    bool written = fwrite(b->data, 1, b->len, f) == b->len;
    return fclose(f) == 0 && written ? 0 : -EIO;
}

/* The end of the first mark at or after `from`, or 0; *ret_start its start. */
static size_t find_mark(const struct buffer *b, size_t from, const char *mark, size_t *ret_start)
{
    if (from > b->len)
        return 0;
    const uint8_t *found = memmem(b->data + from, b->len - from, mark, strlen(mark));
    if (!found)
        return 0;
    *ret_start = (size_t)(found - b->data);
    return *ret_start + strlen(mark);
}

static int fail(const char *path, const char *why)
{
    (void)fprintf(stderr, "%s: %s\n", path, why);
    return 1;
}

int main(int argc, char **argv)
{
    bool update = argc == 3 && strcmp(argv[1], "update") == 0;
    if (!update && (argc != 3 || strcmp(argv[1], "check") != 0))
        return 2;
    const char *path = argv[2];
    _cleanup_buffer_ struct buffer page = {0};
    _cleanup_buffer_ struct buffer made = {0};
    size_t begin = 0;
    size_t end = 0;
    int r = read_file(path, &page);
    if (r < 0)
        return fail(path, strerror(-r));
    size_t table = find_mark(&page, 0, BEGIN, &begin);
    if (table == 0 || find_mark(&page, table, END, &end) == 0)
        return fail(path, "no marks for the table");
    if (buffer_append(&made, page.data, table) < 0 || put_table(&made) < 0 ||
        buffer_append(&made, page.data + end, page.len - end) < 0)
        return fail(path, "out of memory");
    if (bytes_equal(buffer_view(&page), buffer_view(&made)))
        return 0;
    if (!update)
        return fail(path, "the message table is not up to date: run `ninja protocol-table`");
    r = write_file(path, &made);
    return r < 0 ? fail(path, strerror(-r)) : 0;
}

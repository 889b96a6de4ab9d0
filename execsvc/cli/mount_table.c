#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/here.h"

/* Decodes the kernel's octal escapes (\040 for a space, …) in place. */
static void unescape(char *text)
{
    char *to = text;
    for (const char *from = text; *from; to++) {
        bool octal = from[0] == '\\' && from[1] >= '0' && from[1] <= '3' && from[2] >= '0' &&
                     from[2] <= '7' && from[3] >= '0' && from[3] <= '7';
        if (octal) {
            *to = (char)((from[1] - '0') << 6 | (from[2] - '0') << 3 | (from[3] - '0'));
            from += 4;
        } else {
            *to = *from++;
        }
    }
    *to = 0;
}

static void row_release(struct mount_row *row)
{
    free(row->root);
    free(row->point);
    free(row->options);
    free(row->type);
    free(row->source);
    free(row->super_options);
}

static int copy_field(const char *text, char **ret)
{
    *ret = strdup(text);
    if (!*ret)
        return -ENOMEM;
    unescape(*ret);
    return 0;
}

/* 36 35 98:0 /root /point rw,noatime master:1 - fuse.berth source rw,user_id=0
 * with any number of optional fields before the dash. The line is cut up. 0: not such a line;
 * 1; -ENOMEM. */
static int parse_line(char *line, struct mount_row *ret)
{
    struct mount_row row = {0};
    char *fields[6];
    char *rest = line;
    for (size_t i = 0; i < ARRAY_SIZE(fields); i++) {
        fields[i] = strsep(&rest, " ");
        if (!rest)
            return 0;
    }
    char *word;
    while ((word = strsep(&rest, " ")) && strcmp(word, "-") != 0)
        ;
    char *type = strsep(&rest, " ");
    char *source = strsep(&rest, " ");
    char *super_options = strsep(&rest, " ");
    if (!word || !type || !source)
        return 0;
    row.id = strtoull(fields[0], NULL, 10);
    if (sscanf(fields[2], "%u:%u", &row.major, &row.minor) != 2)
        return 0;
    const struct {
        const char *text;
        char **field;
    } copies[] = {
        {fields[3], &row.root},    {fields[4], &row.point},
        {fields[5], &row.options}, {type, &row.type},
        {source, &row.source},     {super_options ? super_options : "", &row.super_options},
    };
    for (size_t i = 0; i < ARRAY_SIZE(copies); i++) {
        if (copy_field(copies[i].text, copies[i].field) < 0) {
            row_release(&row);
            return -ENOMEM;
        }
    }
    *ret = row;
    return 1;
}

int mount_table_parse(const char *text, struct mount_table *ret)
{
    _cleanup_free_ char *copy = strdup(text);
    _cleanup_mount_table_ struct mount_table table = {0};
    size_t allocated = 0;
    if (!copy)
        return -ENOMEM;
    char *rest = copy;
    for (char *line; (line = strsep(&rest, "\n"));) {
        if (table.count == allocated) {
            size_t larger = allocated ? allocated * 2 : 32;
            struct mount_row *rows = reallocarray(table.rows, larger, sizeof *rows);
            if (!rows)
                return -ENOMEM;
            table.rows = rows;
            allocated = larger;
        }
        int r = parse_line(line, &table.rows[table.count]);
        if (r < 0)
            return r;
        table.count += (size_t)r;
    }
    *ret = table;
    table = (struct mount_table){0};
    return 0;
}

int mount_table_read(struct mount_table *ret)
{
    _cleanup_free_ char *text = NULL;
    size_t size = 0;
    FILE *file = fopen("/proc/self/mountinfo", "re");
    if (!file)
        return -errno;
    errno = 0;
    ssize_t len = getdelim(&text, &size, 0, file);
    int r = len >= 0 ? 0 : errno ? -errno : -ENODATA;
    (void)fclose(file);
    return r < 0 ? r : mount_table_parse(text, ret);
}

void mount_table_release(struct mount_table *t)
{
    for (size_t i = 0; i < t->count; i++)
        row_release(&t->rows[i]);
    free(t->rows);
    *t = (struct mount_table){0};
}

bool mount_row_is_berth(const struct mount_row *row)
{
    return strcmp(row->type, "fuse.berth") == 0;
}

int mount_row_user(const struct mount_row *row, uid_t *ret)
{
    for (const char *at = row->super_options; at; at = strchr(at, ',')) {
        at += *at == ',';
        char *end;
        if (strncmp(at, "user_id=", 8) != 0)
            continue;
        unsigned long user = strtoul(at + 8, &end, 10);
        if (end == at + 8 || (*end && *end != ','))
            return -ENODATA;
        *ret = (uid_t)user;
        return 0;
    }
    return -ENODATA;
}

#include "cli/top_view.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/units.h"
#include "cli/exec_json.h"
#include "cli/top_table.h"
#include "terminal/text.h"

#define DURATION_TEXT 32

static const char *const sort_names[] = {
    [TOP_BUSY] = "busy", [TOP_CPU] = "cpu",   [TOP_MEMORY] = "memory",
    [TOP_TIME] = "time", [TOP_NAME] = "name",
};

const char *top_sort_name(enum top_sort sort)
{
    return sort_names[sort];
}

int top_sort_parse(const char *text, enum top_sort *ret)
{
    for (enum top_sort s = TOP_BUSY; s < TOP_SORT_COUNT; s++) {
        if (strcmp(sort_names[s], text) == 0) {
            *ret = s;
            return 0;
        }
    }
    return -EINVAL;
}

static double number(const json_t *object, const char *key)
{
    return json_number_value(json_object_get(object, key));
}

static const char *string(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

static const char *plural(double n)
{
    return n == 1 ? "" : "s";
}

/* --- the order ------------------------------------------------------------------------------- */

struct ranked {
    const json_t *object;
    double first, second; /* larger ones come first */
    const char *text;     /* then this, in order of bytes */
};

static int compare(const void *a, const void *b)
{
    const struct ranked *left = a, *right = b;
    if (left->first != right->first)
        return left->first > right->first ? -1 : 1;
    if (left->second != right->second)
        return left->second > right->second ? -1 : 1;
    return strcmp(left->text, right->text);
}

static void rank(struct ranked *r, enum top_sort sort, bool command)
{
    const json_t *o = r->object;
    double cpu = number(o, "cpu_percent"), memory = number(o, "memory_bytes");
    r->text = string(o, command ? "workspace" : "id");
    switch (sort) {
    case TOP_BUSY:
        r->first = command ? cpu : number(o, "commands") > 0;
        r->second = command ? number(o, "duration_ms") : cpu;
        break;
    case TOP_CPU:
        r->first = cpu;
        break;
    case TOP_MEMORY:
        r->first = memory;
        break;
    case TOP_TIME:
        r->first = command ? number(o, "duration_ms") : 0;
        break;
    case TOP_NAME:
    case TOP_SORT_COUNT:
        break;
    }
}

/* By busyness and by time, who was used last comes before others; times of JSON sort as text. */
static int compare_used(const void *a, const void *b)
{
    const struct ranked *left = a, *right = b;
    if (left->first != right->first || left->second != right->second)
        return compare(a, b);
    int r = strcmp(string(right->object, "used_at"), string(left->object, "used_at"));
    return r ? r : strcmp(left->text, right->text);
}

static struct ranked *rank_all(const json_t *array, enum top_sort sort, bool command)
{
    size_t count = json_array_size(array);
    struct ranked *all = calloc(count + 1, sizeof *all);
    for (size_t i = 0; all && i < count; i++) {
        all[i].object = json_array_get(array, i);
        rank(&all[i], sort, command);
    }
    if (all)
        qsort(all, count, sizeof *all,
              !command && (sort == TOP_BUSY || sort == TOP_TIME) ? compare_used : compare);
    return all;
}

/* --- the tables --------------------------------------------------------------------------------
 */

static char *size_cell(const json_t *value, char text[UNITS_SIZE_TEXT])
{
    if (!json_is_integer(value))
        return strcpy(text, "-");
    return units_size_text((uint64_t)json_integer_value(value), text);
}

static void percent_cell(const json_t *value, char *text, size_t size)
{
    if (json_is_number(value))
        (void)snprintf(text, size, "%.1f", json_number_value(value));
    else
        (void)snprintf(text, size, "-");
}

static void time_cell(double seconds, char text[DURATION_TEXT])
{
    exec_age((uint64_t)(seconds * 1e9), text, DURATION_TEXT);
}

/* "2026-11-30T12:00:01.5Z", as all of ours are. */
static bool parse_time(const char *text, time_t *ret)
{
    struct tm tm = {0};
    if (!strptime(text, "%Y-%m-%dT%H:%M:%S", &tm))
        return false;
    *ret = timegm(&tm);
    return true;
}

static void ago_cell(const json_t *sample, const char *then_text, char text[DURATION_TEXT])
{
    time_t now, then;
    if (parse_time(string(sample, "time"), &now) && parse_time(then_text, &then))
        time_cell(now > then ? (double)(now - then) : 0, text);
    else
        (void)strcpy(text, "-");
}

static int add_workspaces(const json_t *sample, enum top_sort sort, struct top_table *t)
{
    static const struct top_column columns[] = {
        {.title = "WORKSPACE", .flexible = true},
        {.title = "STATE", .drop = 4},
        {.title = "CMDS", .right = true},
        {.title = "PROCS", .right = true, .drop = 3},
        {.title = "CPU%", .right = true},
        {.title = "MEMORY", .right = true, .drop = 1},
        {.title = "USED", .right = true, .drop = 2},
    };
    const json_t *array = json_object_get(sample, "workspaces");
    _cleanup_free_ struct ranked *ranked = rank_all(array, sort, false);
    int r = ranked ? top_table_begin(t, columns, ARRAY_SIZE(columns)) : -ENOMEM;
    for (size_t i = 0; r == 0 && i < json_array_size(array); i++) {
        const json_t *o = ranked[i].object;
        char memory[UNITS_SIZE_TEXT], cpu[32], commands[32], processes[32], used[DURATION_TEXT];
        bool busy = number(o, "commands") > 0 || number(o, "processes") > 0;
        (void)snprintf(commands, sizeof commands, "%.0f", number(o, "commands"));
        (void)snprintf(processes, sizeof processes, "%.0f", number(o, "processes"));
        percent_cell(busy ? json_object_get(o, "cpu_percent") : NULL, cpu, sizeof cpu);
        ago_cell(sample, string(o, "used_at"), used);
        const char *cells[] = {string(o, "id"),
                               string(o, "state"),
                               busy ? commands : "-",
                               busy ? processes : "-",
                               cpu,
                               size_cell(busy ? json_object_get(o, "memory_bytes") : NULL, memory),
                               used};
        bool stopped = strcmp(string(o, "state"), "stopped") == 0;
        r = top_table_add(t, cells, stopped ? TOP_WARNING : busy ? TOP_GOOD : TOP_PLAIN);
    }
    return r;
}

static int append_words(struct buffer *b, const json_t *words)
{
    size_t i;
    json_t *word;
    int r = 0;
    json_array_foreach((json_t *)(uintptr_t)words, i, word)
    {
        r |= buffer_append(b, " ", i > 0);
        r |= text_escape(b, bytes_of(json_string_value(word), json_string_length(word)),
                         TEXT_SENTENCE);
    }
    return r | buffer_append_u8(b, 0);
}

static int add_commands(const json_t *sample, enum top_sort sort, struct top_table *t)
{
    static const struct top_column columns[] = {
        {.title = "ID", .max = 16, .drop = 4},
        {.title = "WORKSPACE", .max = 20, .drop = 1},
        {.title = "TIME", .right = true},
        {.title = "PROCS", .right = true, .drop = 5},
        {.title = "CPU%", .right = true},
        {.title = "MEMORY", .right = true, .drop = 3},
        {.title = "READERS", .right = true, .drop = 6},
        {.title = "COMMAND", .flexible = true},
    };
    const json_t *array = json_object_get(sample, "commands");
    _cleanup_free_ struct ranked *ranked = rank_all(array, sort, true);
    int r = ranked ? top_table_begin(t, columns, ARRAY_SIZE(columns)) : -ENOMEM;
    for (size_t i = 0; r == 0 && i < json_array_size(array); i++) {
        const json_t *o = ranked[i].object;
        char memory[UNITS_SIZE_TEXT], cpu[32], processes[32], readers[32], time[DURATION_TEXT];
        _cleanup_buffer_ struct buffer words = {0};
        percent_cell(json_object_get(o, "cpu_percent"), cpu, sizeof cpu);
        (void)snprintf(processes, sizeof processes, "%.0f", number(o, "processes"));
        (void)snprintf(readers, sizeof readers, "%.0f", number(o, "attached"));
        time_cell(number(o, "duration_ms") / 1000, time);
        /* What its leader has left behind. */
        bool left = strcmp(string(o, "state"), "running") != 0;
        if (left)
            (void)buffer_printf(&words, "(%s) ", string(o, "state"));
        if (append_words(&words, json_object_get(o, "command")) < 0)
            return -ENOMEM;
        const char *cells[] = {string(o, "id"),
                               string(o, "workspace"),
                               time,
                               processes,
                               cpu,
                               size_cell(json_object_get(o, "memory_bytes"), memory),
                               readers,
                               (const char *)words.data};
        r = top_table_add(t, cells, left ? TOP_WARNING : TOP_PLAIN);
    }
    return r;
}

static void micro_cell(const json_t *value, char *text, size_t size)
{
    double us = json_number_value(value);
    if (!json_is_number(value))
        (void)snprintf(text, size, "-");
    else if (us < 1000)
        (void)snprintf(text, size, "%.0f us", us);
    else if (us < 1e6)
        (void)snprintf(text, size, "%.1f ms", us / 1000);
    else
        (void)snprintf(text, size, "%.1f s", us / 1e6);
}

/* A mount, or a member of one that joins several services. */
static int add_mount(struct top_table *t, const json_t *o, const char *name)
{
    const json_t *stats = json_object_get(o, "stats");
    char lag[32], ping[32], trips[32], files[32], cache[UNITS_SIZE_TEXT];
    const json_t *rate = json_object_get(o, "round_trips_per_s");
    bool serving = json_is_true(json_object_get(stats, "serving"));
    const char *state = serving ? "serving" : string(o, "state");
    micro_cell(json_object_get(stats, "lag_us"), lag, sizeof lag);
    micro_cell(json_object_get(stats, "ping_us"), ping, sizeof ping);
    if (json_is_number(rate))
        (void)snprintf(trips, sizeof trips, "%.1f", json_number_value(rate));
    else
        (void)snprintf(trips, sizeof trips, "-");
    bool counts =
        json_object_get(stats, "inodes"); /* one that joins services has none of its own */
    if (counts)
        (void)snprintf(files, sizeof files, "%.0f", number(stats, "inodes"));
    else
        (void)snprintf(files, sizeof files, "-");
    double held = number(stats, "read_ahead_bytes") + number(stats, "content_bytes");
    if (counts)
        (void)units_size_text((uint64_t)held, cache);
    else
        (void)strcpy(cache, "-");
    const char *cells[] = {name, state, lag, ping, trips, files, cache, string(o, "url")};
    /* A member is idle until it is wanted. */
    bool well = strcmp(state, "connected") == 0 || strcmp(state, "idle") == 0;
    bool soon = serving || strcmp(state, "connecting") == 0;
    return top_table_add(t, cells, well ? TOP_PLAIN : soon ? TOP_WARNING : TOP_BAD);
}

static int add_mounts(const json_t *sample, struct top_table *t)
{
    static const struct top_column columns[] = {
        {.title = "MOUNT", .flexible = true, .path = true},
        {.title = "STATE"},
        {.title = "LAG", .right = true},
        {.title = "PING", .right = true, .drop = 3},
        {.title = "TRIPS/S", .right = true, .drop = 1},
        {.title = "FILES", .right = true, .drop = 4},
        {.title = "CACHE", .right = true, .drop = 2},
        {.title = "SERVICE", .max = 40, .drop = 5},
    };
    size_t i, k;
    json_t *mount, *member;
    int r = top_table_begin(t, columns, ARRAY_SIZE(columns));
    json_array_foreach(json_object_get(sample, "mounts"), i, mount)
    {
        if (r == 0)
            r = add_mount(t, mount, string(mount, "mountpoint"));
        json_array_foreach(json_object_get(mount, "members"), k, member)
        {
            char name[256];
            (void)snprintf(name, sizeof name, "  %s", string(member, "name"));
            if (r == 0)
                r = add_mount(t, member, name);
        }
    }
    return r;
}

static int add_egress(const json_t *decisions, struct top_table *t)
{
    static const struct top_column columns[] = {
        {.title = "TIME"},
        {.title = "EGRESS"},
        {.title = "WORKSPACE", .max = 20, .drop = 2},
        {.title = "BYTES", .right = true, .drop = 1},
        {.title = "TO", .flexible = true},
    };
    int r = top_table_begin(t, columns, ARRAY_SIZE(columns));
    for (size_t i = json_array_size(decisions); r == 0 && i > 0; i--) {
        const json_t *o = json_array_get(decisions, i - 1);
        char when[32] = "", bytes[UNITS_SIZE_TEXT] = "";
        _cleanup_buffer_ struct buffer to = {0};
        time_t then;
        struct tm tm;
        if (parse_time(string(o, "time"), &then) && localtime_r(&then, &tm))
            (void)strftime(when, sizeof when, "%H:%M:%S", &tm);
        const char *verdict = string(o, "verdict"), *reason = string(o, "reason");
        if (strcmp(verdict, "ended") == 0)
            (void)units_size_text((uint64_t)(number(o, "bytes_up") + number(o, "bytes_down")),
                                  bytes);
        /* A reason mostly begins with the host. */
        const char *host = string(o, "host");
        bool told = host[0] && strncmp(reason, host, strlen(host)) == 0;
        if (!told)
            r = buffer_printf(&to, "%s", host);
        if (r == 0 && !told && number(o, "port") > 0)
            r = buffer_printf(&to, ":%.0f", number(o, "port"));
        if (r == 0 && reason[0])
            r = buffer_printf(&to, "%s%s", to.len ? ": " : "", reason);
        const char *cells[] = {when, verdict, string(o, "workspace"), bytes,
                               to.data ? (const char *)to.data : ""};
        enum top_attribute attribute = strcmp(verdict, "refused") == 0  ? TOP_BAD
                                       : strcmp(verdict, "failed") == 0 ? TOP_WARNING
                                                                        : TOP_PLAIN;
        if (r == 0)
            r = top_table_add(t, cells, attribute);
    }
    return r;
}

/* --- the page ------------------------------------------------------------------------------------
 */

/* As much of it as fits. */
static int add_line(struct top_page *page, size_t columns, enum top_attribute attribute,
                    struct bytes text)
{
    size_t len = columns ? text_fit(text, columns) : text.len;
    while (len > 0 && text.data[len - 1] == ' ')
        len--;
    if (page->count == page->allocated) {
        size_t larger = page->allocated ? page->allocated * 2 : 64;
        struct top_line *lines = reallocarray(page->lines, larger, sizeof *lines);
        if (!lines)
            return -ENOMEM;
        page->lines = lines;
        page->allocated = larger;
    }
    char *copy = malloc(len + 1);
    if (!copy)
        return -ENOMEM;
    if (len > 0)
        memcpy(copy, text.data, len);
    copy[len] = '\0';
    page->lines[page->count++] = (struct top_line){.text = copy, .attribute = attribute};
    return 0;
}

void top_page_release(struct top_page *page)
{
    for (size_t i = 0; i < page->count; i++)
        free(page->lines[i].text);
    free(page->lines);
    *page = (struct top_page){0};
}

static int escape(struct buffer *b, const char *text)
{
    return text_escape(b, bytes_of_string(text), TEXT_SENTENCE);
}

static int add_head(const json_t *sample, size_t columns, struct top_page *page)
{
    _cleanup_buffer_ struct buffer first = {0}, second = {0};
    const json_t *service = json_object_get(sample, "service");
    const json_t *error = json_object_get(sample, "error");
    int r = buffer_printf(&first, "berth  ");
    r |= escape(&first, string(sample, "url"));
    if (json_object_get(service, "pid")) {
        char up[DURATION_TEXT], memory[UNITS_SIZE_TEXT];
        time_cell(number(service, "uptime_seconds"), up);
        (void)units_size_text((uint64_t)number(service, "resident_bytes"), memory);
        double connections = number(json_object_get(service, "connections"), "open");
        r |= buffer_printf(&first, "  up %s, %s, %.0f connection%s", up, memory, connections,
                           plural(connections));
    }
    double commands = (double)json_array_size(json_object_get(sample, "commands"));
    const json_t *known = json_object_get(service, "workspaces");
    double workspaces = known ? json_number_value(known)
                              : (double)json_array_size(json_object_get(sample, "workspaces"));
    r |= buffer_printf(&second, "%.0f workspace%s, %.0f command%s", workspaces, plural(workspaces),
                       commands, plural(commands));
    const json_t *egress = json_object_get(service, "egress");
    if (egress)
        r |= buffer_printf(&second, ", egress %.0f allowed %.0f refused %.0f open",
                           number(egress, "allowed"), number(egress, "refused"),
                           number(egress, "connections"));
    const json_t *changes = json_object_get(service, "changes");
    if (changes) {
        r |= buffer_printf(&second, ", changes by ");
        r |= escape(&second, string(changes, "mode"));
        r |= buffer_printf(&second, " %.0f us behind", number(changes, "behind_us"));
    }
    if (r == 0)
        r = add_line(page, columns, TOP_HEAD, buffer_view(&first));
    if (r == 0 && json_is_string(error)) {
        second.len = 0;
        r = escape(&second, json_string_value(error));
        r |= add_line(page, columns, TOP_BAD, buffer_view(&second));
    } else if (r == 0) {
        r = add_line(page, columns, TOP_PLAIN, buffer_view(&second));
    }
    const char *note = string(sample, "note");
    if (r == 0 && *note)
        r = add_line(page, columns, TOP_WARNING, bytes_of_string(note));
    return r < 0 ? -ENOMEM : 0;
}

/* Rows for each table: what all want if there is room; else each a fair part, and what some do not
 * need of theirs goes to the others in order of the parts. */
static void share_rows(const struct top_table *tables, size_t rows, size_t *ret)
{
    size_t left = rows;
    for (size_t i = 0; i < TOP_PART_COUNT; i++) {
        size_t part = rows / TOP_PART_COUNT;
        ret[i] = tables[i].count < part ? tables[i].count : part;
        left -= ret[i];
    }
    for (size_t i = 0; i < TOP_PART_COUNT; i++) {
        size_t more = tables[i].count - ret[i] < left ? tables[i].count - ret[i] : left;
        ret[i] += more;
        left -= more;
    }
}

/* A title and so many rows; the last says how many there are besides. */
static int add_table(struct top_page *page, const struct top_table *t, size_t columns, size_t rows,
                     size_t scroll)
{
    _cleanup_free_ size_t *widths = top_table_fit(t, columns);
    _cleanup_buffer_ struct buffer line = {0};
    if (!widths)
        return -ENOMEM;
    /* Where there is no room for a row the title says so. */
    int r = rows == 0 && t->count
                ? buffer_printf(&line, "%s ... %zu more", t->columns[0].title, t->count)
                : top_table_title(t, widths, &line);
    if (r == 0)
        r = add_line(page, columns, TOP_TITLE, buffer_view(&line));
    scroll = scroll < t->count ? scroll : t->count ? t->count - 1 : 0;
    size_t count = t->count - scroll;
    size_t shown = count <= rows ? count : rows ? rows - 1 : 0;
    for (size_t i = scroll; r == 0 && i < scroll + shown; i++) {
        line.len = 0;
        r = top_table_row(t, widths, i, &line);
        if (r == 0)
            r = add_line(page, columns, top_table_attribute(t, i), buffer_view(&line));
    }
    if (r == 0 && shown < count && rows) {
        line.len = 0;
        r = buffer_printf(&line, "... %zu more", count - shown);
        if (r == 0)
            r = add_line(page, columns, TOP_PLAIN, buffer_view(&line));
    }
    return r;
}

static int add_tables(struct top_page *page, const struct top_table *tables,
                      const struct top_choice *choice)
{
    size_t rows[TOP_PART_COUNT];
    int r = 0;
    if (choice->one) {
        size_t left = choice->rows > page->count + 1 ? choice->rows - page->count - 1 : 0;
        return add_table(page, &tables[choice->part], choice->columns,
                         choice->rows ? left : SIZE_MAX, choice->scroll);
    }
    /* Where not all fits, a title without rows is one row less for others. */
    size_t wanted = page->count + TOP_PART_COUNT, titles = 0;
    for (size_t i = 0; i < TOP_PART_COUNT; i++) {
        wanted += tables[i].count;
        titles += tables[i].count > 0;
    }
    bool all = choice->rows == 0 || wanted <= choice->rows || titles == 0;
    size_t taken = page->count + (all ? TOP_PART_COUNT : titles);
    size_t left = choice->rows > taken ? choice->rows - taken : 0;
    share_rows(tables, choice->rows ? left : SIZE_MAX / 2, rows);
    for (size_t i = 0; r == 0 && i < TOP_PART_COUNT; i++) {
        if (choice->rows && page->count == choice->rows)
            break;
        if (!all && tables[i].count == 0)
            continue;
        if (choice->rows == 0)
            r = add_line(page, 0, TOP_PLAIN, (struct bytes){0});
        if (r == 0)
            r = add_table(page, &tables[i], choice->columns, rows[i], 0);
    }
    return r;
}

int top_view(const json_t *sample, const json_t *decisions, const struct top_choice *choice,
             struct top_page *ret)
{
    struct top_table tables[TOP_PART_COUNT] = {0};
    _cleanup_top_page_ struct top_page page = {0};
    int r = add_head(sample, choice->columns, &page);
    if (r == 0)
        r = add_workspaces(sample, choice->sort, &tables[TOP_WORKSPACES]);
    if (r == 0)
        r = add_commands(sample, choice->sort, &tables[TOP_COMMANDS]);
    if (r == 0)
        r = add_mounts(sample, &tables[TOP_MOUNTS]);
    if (r == 0)
        r = add_egress(decisions, &tables[TOP_EGRESS]);
    if (r == 0)
        r = add_tables(&page, tables, choice);
    for (size_t i = 0; i < TOP_PART_COUNT; i++)
        top_table_release(&tables[i]);
    if (r < 0)
        return r;
    *ret = page;
    page = (struct top_page){0};
    return 0;
}

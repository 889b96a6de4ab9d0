#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "cache/cache.h"
#include "cli/cli.h"
#include "cli/text.h"
#include "config/paths.h"

const char cache_usage[] =
    "usage: berth cache [--clear] [--json]\n"
    "Shows what mounts of yours keep on this machine's disk from one mount to the next: contents\n"
    "of small files and parts of listings, by service. How much that may be is for the mount\n"
    "option cache_size.\n"
    "\n"
    "      --clear   removes it; mounts that use it go on, and ask the service again\n"
    "      --json    one object: \"path\", \"bytes\", \"entries\" (files) and \"listings\" in "
    "all,\n"
    "                and \"services\", each with \"url\" and these numbers; with --clear, what "
    "was\n"
    "                removed\n"
    "\n"
    "Examples\n"
    "  berth cache\n"
    "  berth cache --clear\n"
    "  berth cache --json | jq .bytes\n";

enum { OPTION_CLEAR = 256, OPTION_JSON };

static const struct option options[] = {
    {"clear", no_argument, NULL, OPTION_CLEAR},
    {"json", no_argument, NULL, OPTION_JSON},
    {"help", no_argument, NULL, 'h'},
    {0},
};

struct amount {
    uint64_t bytes, files, listings;
};

struct part {
    struct segment_service service;
    struct amount amount;
};

struct cache {
    int dir; /* -1: there is none */
    char *path;
    struct part *parts; /* one for each service */
    size_t count;
    struct amount amount;
};

static void cache_release(struct cache *c)
{
    close_fd(&c->dir);
    free(c->path);
    free(c->parts);
}

/* --- collecting -------------------------------------------------------------------- */

static struct part *part_of(struct cache *c, const struct segment_service *service)
{
    for (size_t i = 0; i < c->count; i++)
        if (memcmp(c->parts[i].service.id, service->id, sizeof service->id) == 0)
            return &c->parts[i];
    struct part *parts = realloc(c->parts, (c->count + 1) * sizeof *parts);
    if (!parts)
        return NULL;
    c->parts = parts;
    parts[c->count] = (struct part){.service = *service};
    return &parts[c->count++];
}

/* One that is damaged counts as far as it can be read: its space is in use. */
static int add_segment(struct cache *c, const struct cache_segment *segment)
{
    c->amount.bytes += segment->bytes;
    _cleanup_close_ int fd = -1;
    struct segment_service service;
    _cleanup_free_ struct segment_slot *slots = NULL;
    uint32_t count;
    if (segment_open(c->dir, segment->name, &service, &fd) < 0)
        return 0;
    struct part *part = part_of(c, &service);
    if (!part)
        return -ENOMEM;
    part->amount.bytes += segment->bytes;
    int r = segment_slots(fd, &slots, &count);
    if (r < 0)
        return r == -ENOMEM ? r : 0;
    for (uint32_t i = 0; i < count; i++) {
        bool listing = slots[i].kind == SEGMENT_LISTING;
        if (listing && !slots[i].size)
            continue; /* says that there are others */
        *(listing ? &part->amount.listings : &part->amount.files) += 1;
        *(listing ? &c->amount.listings : &c->amount.files) += 1;
    }
    return 0;
}

static int by_url(const void *a, const void *b)
{
    const struct part *x = a, *y = b;
    return strcmp(x->service.name, y->service.name);
}

static int collect(struct cache *c, struct failure *f)
{
    int r = cache_open(false, &c->dir, NULL, f);
    if (r == -ENOENT && c->path)
        return 0;
    if (r < 0)
        return r;
    _cleanup_cache_list_ struct cache_list list = {0};
    r = cache_list(c->dir, &list);
    for (size_t i = 0; r == 0 && i < list.count; i++)
        r = add_segment(c, &list.segments[i]);
    if (r < 0)
        return failure_set(f, r, "%s: %s", c->path, strerror(-r));
    if (c->count)
        qsort(c->parts, c->count, sizeof *c->parts, by_url);
    return 0;
}

/* --- printing ---------------------------------------------------------------------- */

static void print_text(const char *text)
{
    _cleanup_buffer_ struct buffer escaped = {0};
    if (text_escape(&escaped, bytes_of_string(text), TEXT_SENTENCE) == 0)
        (void)fwrite(escaped.data, 1, escaped.len, stdout);
}

static void print_amount(const struct amount *a)
{
    (void)printf("%" PRIu64 " file%s, ", a->files, a->files == 1 ? "" : "s");
    if (a->listings)
        (void)printf("%" PRIu64 " part%s of listings, ", a->listings, a->listings == 1 ? "" : "s");
    if (a->bytes < UINT64_C(1) << 20)
        (void)printf("%" PRIu64 " KiB", (a->bytes + 1023) >> 10);
    else
        (void)printf("%.1f MiB", (double)a->bytes / (1 << 20));
}

static void print_all(const struct cache *c, bool cleared)
{
    (void)printf(cleared ? "Removed from " : "Cache ");
    print_text(c->path);
    (void)printf("\n  ");
    print_amount(&c->amount);
    (void)putchar('\n');
    for (size_t i = 0; i < c->count; i++) {
        (void)printf("  ");
        print_text(c->parts[i].service.name);
        (void)printf(": ");
        print_amount(&c->parts[i].amount);
        (void)putchar('\n');
    }
}

static int set_amount(json_t *object, const struct amount *a)
{
    int r = json_object_set_new(object, "bytes", json_integer((json_int_t)a->bytes));
    r |= json_object_set_new(object, "entries", json_integer((json_int_t)a->files));
    return r | json_object_set_new(object, "listings", json_integer((json_int_t)a->listings));
}

static int print_json(const struct cache *c)
{
    json_t *all = json_object(), *services = json_array();
    int r = json_object_set_new(all, "path", text_json(c->path));
    r |= set_amount(all, &c->amount);
    for (size_t i = 0; r == 0 && i < c->count; i++) {
        json_t *one = json_object();
        r |= json_object_set_new(one, "url", text_json(c->parts[i].service.name));
        r |= set_amount(one, &c->parts[i].amount);
        r |= json_array_append_new(services, one);
    }
    r |= json_object_set_new(all, "services", services);
    if (r == 0) {
        (void)json_dumpf(all, stdout, JSON_INDENT(2) | JSON_ENSURE_ASCII);
        (void)putchar('\n');
    }
    json_decref(all);
    return r ? -ENOMEM : 0;
}

int cmd_cache(struct cli *cli, int argc, char **argv)
{
    bool clear = false, json = false;
    int option;
    opterr = 0;
    while ((option = getopt_long(argc, argv, ":h", options, NULL)) != -1) {
        if (option == OPTION_CLEAR)
            clear = true;
        else if (option == OPTION_JSON)
            json = true;
        else if (option == 'h')
            return cli_show_help(cli);
        else
            return cli_option_error(cli, option, argv);
    }
    if (optind < argc)
        return cli_usage_error(cli, "%s: cache takes no arguments", argv[optind]);
    __attribute__((cleanup(cache_release))) struct cache c = {.dir = -1};
    struct failure failure;
    int r = paths_cache_dir(&c.path, &failure);
    if (r == 0)
        r = collect(&c, &failure);
    if (r == 0 && clear && c.dir >= 0) {
        r = cache_clear(c.dir);
        if (r < 0)
            (void)failure_set(&failure, r, "%s: %s", c.path, strerror(-r));
    }
    if (r == 0 && json)
        r = print_json(&c);
    else if (r == 0)
        print_all(&c, clear);
    if (r == -ENOMEM)
        (void)failure_set(&failure, r, "%s", strerror(ENOMEM));
    if (r < 0) {
        cli_error(cli, "%s", failure.text);
        return CLI_FAILED;
    }
    return cli_finish_output(cli, CLI_OK);
}

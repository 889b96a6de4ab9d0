/* What it costs to read a workspace in advance: files-bench URL WORKSPACE [SIZE] asks for the
 * content of all its small files, in the order of READTREE, SIZE bytes a time (256 KiB), 8 requests
 * in flight; prints what came over the wire, how long it took, and the processor time of this side.
 * The service's: its own to tell. BERTH_TOKEN: for http and https. */
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "client/client.h"

#define IN_FLIGHT 8
#define TIMEOUT_MS 20000

struct bench {
    struct event_base *base;
    struct client *client;
    struct buffer nodes; /* of files: u64 node, u64 size */
    size_t next;
    size_t size;
    size_t under_way;
    uint64_t files, content, failed;
};

static void fail(const char *what, int r)
{
    (void)fprintf(stderr, "%s: %s\n", what, strerror(-r));
    exit(1);
}

static struct wire_frame *ask(struct bench *b, const struct wire_message *m)
{
    struct wire_frame *frame;
    struct failure failure;
    int r = client_call_sync(b->client, m, TIMEOUT_MS, &frame, &failure);
    if (r < 0)
        fail(wire_row(m->type)->name, r);
    return frame;
}

static int add_node(struct buffer *list, uint64_t node, uint64_t size)
{
    int r = buffer_append_u64(list, node);
    return r < 0 ? r : buffer_append_u64(list, size);
}

static uint64_t number_at(const struct buffer *b, size_t i)
{
    uint64_t n;
    memcpy(&n, b->data + i * sizeof n, sizeof n);
    return n;
}

/* Directories below root, breadth first, one request for each: what it costs is not counted. */
static void list_files(struct bench *b, uint64_t root)
{
    _cleanup_buffer_ struct buffer queue = {0};
    int r = buffer_append_u64(&queue, root);
    for (size_t i = 0; r == 0 && i * sizeof(uint64_t) < queue.len; i++) {
        struct wire_message d, e;
        struct bytes element;
        struct wire_frame *frame =
            ask(b, &(struct wire_message){.type = WIRE_READTREE,
                                          .readtree = {.node = number_at(&queue, i),
                                                       .size = WIRE_DATA_MAX,
                                                       .flags = WIRE_TREE_ALONE}});
        uint32_t offset = 0, at = 0;
        if (!wire_list_next(&frame->message.tree.directories, &offset, &element) ||
            wire_decode(WIRE_TREE_DIRECTORY, element, &d) < 0)
            fail("TREE", -EBADMSG);
        while (r == 0 && wire_list_next(&d.tree_directory.entries, &at, &element)) {
            if (wire_decode(WIRE_DIRENT, element, &e) < 0)
                fail("DIRENT", -EBADMSG);
            if (S_ISDIR(e.dirent.attr.mode))
                r = buffer_append_u64(&queue, e.dirent.node);
            else if (S_ISREG(e.dirent.attr.mode) && e.dirent.attr.size <= WIRE_FILE_MAX)
                r = add_node(&b->nodes, e.dirent.node, e.dirent.attr.size);
        }
        wire_frame_free(frame);
    }
    if (r < 0)
        fail("list", r);
}

static void ask_for_more(struct bench *b);

static void on_files(void *context, int error, const struct wire_message *reply)
{
    struct bench *b = context;
    struct wire_message m;
    struct bytes element;
    b->under_way--;
    if (error < 0)
        fail("READFILES", error);
    for (uint32_t at = 0; wire_list_next(&reply->files.files, &at, &element);) {
        if (wire_decode(WIRE_FILE, element, &m) < 0)
            fail("FILE", -EBADMSG);
        b->files++;
        b->failed += m.file.error != 0;
        b->content += m.file.data.len;
    }
    ask_for_more(b);
    if (b->under_way == 0)
        (void)event_base_loopbreak(b->base);
}

static void ask_for_more(struct bench *b)
{
    while (b->under_way < IN_FLIGHT && b->next * 16 < b->nodes.len) {
        _cleanup_buffer_ struct buffer list = {0};
        size_t size = 0;
        uint32_t count = 0;
        for (; count < WIRE_FILES_MAX && b->next * 16 < b->nodes.len; count++, b->next++) {
            uint64_t node = number_at(&b->nodes, b->next * 2);
            size += number_at(&b->nodes, b->next * 2 + 1);
            if (count > 0 && size > b->size)
                break;
            if (wire_list_append(&list, bytes_of(&node, sizeof node)) < 0)
                fail("list", -ENOMEM);
        }
        const struct wire_message m = {.type = WIRE_READFILES,
                                       .readfiles = {.size = (uint32_t)b->size,
                                                     .flags = WIRE_READFILES_NO_ATIME,
                                                     .files = wire_list_of(&list, count)}};
        const struct client_call call = {.reply = on_files, .context = b};
        int r = client_call(b->client, &m, &call, NULL);
        if (r < 0)
            fail("READFILES", r);
        b->under_way++;
    }
}

static void on_lost(void *context, int error, const char *reason)
{
    fail(reason, error);
}

static double cpu_seconds(void)
{
    struct rusage u;
    (void)getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        (void)fprintf(stderr, "files-bench URL WORKSPACE [SIZE]\n");
        return 2;
    }
    struct bench b = {.base = event_base_new(),
                      .size = argc > 3 ? strtoul(argv[3], NULL, 0) : WIRE_CHUNK_MAX};
    struct failure failure;
    const struct stream_options options = {.url = argv[1], .token = getenv("BERTH_TOKEN")};
    int r = client_connect(&options, "files-bench", &b.client, &failure);
    if (r < 0)
        fail(failure.text, r);
    struct wire_frame *frame =
        ask(&b, &(struct wire_message){.type = WIRE_WORKSPACE_OPEN,
                                       .workspace_open = {.flags = WIRE_WORKSPACE_BY_NAME,
                                                          .key = bytes_of_string(argv[2])}});
    uint64_t root = frame->message.workspace_root.node;
    wire_frame_free(frame);
    list_files(&b, root);
    const struct client_events events = {.lost = on_lost};
    r = client_attach(b.client, b.base, &events);
    if (r < 0)
        fail("attach", r);
    uint64_t begin = clock_monotonic_ns(), before = client_stats(b.client).bytes_in;
    double cpu = cpu_seconds();
    ask_for_more(&b);
    (void)event_base_dispatch(b.base);
    (void)printf("%llu files, %llu failed, %.2f MB of content, %.2f MB on the wire, %.3f s, "
                 "%.3f s of processor time\n",
                 (unsigned long long)b.files, (unsigned long long)b.failed, (double)b.content / 1e6,
                 (double)(client_stats(b.client).bytes_in - before) / 1e6,
                 (double)(clock_monotonic_ns() - begin) / 1e9, cpu_seconds() - cpu);
    client_free(b.client);
    buffer_release(&b.nodes);
    event_base_free(b.base);
    return 0;
}

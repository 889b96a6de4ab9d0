/* Writes what the fuzzers start from, out of the table.
 *   fuzz-seeds dictionary     on standard output
 *   fuzz-seeds corpus DIR     DIR/fuzz_X/… for each target */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "requests.h"
#include "wire/session.h"

/* Longer seeds are left out: they slow a fuzzer down and teach it nothing. */
#define SEED_MAX 4096

static void check(bool ok, const char *what)
{
    if (!ok) {
        perror(what);
        exit(1);
    }
}

static void entry(const char *name, const uint8_t *data, size_t len)
{
    printf("%s=\"", name);
    for (size_t i = 0; i < len; i++)
        printf("\\x%02x", data[i]);
    puts("\"");
}

static void dictionary(void)
{
    char name[80];
    for (size_t i = 0; i < wire_row_count(); i++) {
        const struct wire_row *row = wire_row_at(i);
        uint8_t raw[WIRE_HEADER_SIZE];
        const struct wire_header least = {.length = row->min_payload, .type = (uint16_t)row->type};
        wire_header_encode(raw, &least);
        entry(row->name, raw + 4, 4);
        (void)snprintf(name, sizeof name, "%s_least", row->name);
        entry(name, raw, 8);
        const struct wire_header most = {.length = row->max_payload, .type = (uint16_t)row->type};
        wire_header_encode(raw, &most);
        (void)snprintf(name, sizeof name, "%s_most", row->name);
        entry(name, raw, 8);
    }
    entry("zstd_magic", (const uint8_t *)"\x28\xb5\x2f\xfd", 4);
    entry("nsec_limit", (const uint8_t *)"\x00\xca\x9a\x3b", 4);
}

static void write_seed(const char *dir, const char *target, const char *name, uint8_t first,
                       struct bytes rest)
{
    char path[4096];
    (void)snprintf(path, sizeof path, "%s/%s", dir, target);
    check(mkdir(path, 0777) == 0 || errno == EEXIST, path);
    (void)snprintf(path, sizeof path, "%s/%s/%s-%u", dir, target, name, first);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    check(fd >= 0, path);
    check(write(fd, &first, 1) == 1, path);
    check(write(fd, rest.data, rest.len) == (ssize_t)rest.len, path);
    check(close(fd) == 0, path);
}

static void move(struct session *from, struct session *to, struct buffer *copy)
{
    struct bytes out = session_output(from);
    check(buffer_append(copy, out.data, out.len) == 0, "memory");
    if (out.len > 0)
        check(session_feed(to, out.data, out.len) == 0, "feed");
    session_output_done(from, out.len);
    struct wire_frame *frame;
    while (session_next(to, &frame))
        wire_frame_free(frame);
}

/* Both sides, and all that they said from HELLO on. */
struct talk {
    struct session *client, *server;
    struct buffer by_client, by_server;
};

static void talk_new(struct talk *t, uint64_t features)
{
    struct session_config config = {.role = SESSION_CLIENT,
                                    .max_payload = WIRE_PAYLOAD_MAX,
                                    .max_calls = 64,
                                    .window = 4096,
                                    .features = features,
                                    .agent = "seed"};
    *t = (struct talk){0};
    check(session_new(&config, &t->client) == 0, "session");
    config.role = SESSION_SERVER;
    check(session_new(&config, &t->server) == 0, "session");
    move(t->client, t->server, &t->by_client);
    move(t->server, t->client, &t->by_server);
}

static void talk_free(struct talk *t)
{
    session_free(t->client);
    session_free(t->server);
    buffer_release(&t->by_client);
    buffer_release(&t->by_server);
}

/* The tag of the request of this type among those of the client target. */
static uint64_t request_all(struct talk *t, enum wire_type wanted)
{
    struct sample sample;
    uint64_t found = 0;
    for (size_t i = 0; fuzz_request(i, &sample); i++) {
        uint64_t tag;
        check(session_request(t->client, &sample.message, true, &tag) == 0, "request");
        if (sample.message.type == wanted || wanted == WIRE_NONE)
            found = tag;
        sample_release(&sample);
    }
    move(t->client, t->server, &t->by_client);
    return found;
}

static enum wire_type call_for(const struct wire_row *row)
{
    if (row->class != WIRE_CLASS_REPLY)
        return row->owner;
    for (size_t i = 0; i < wire_row_count(); i++)
        if (wire_row_at(i)->class == WIRE_CLASS_REQUEST && wire_row_at(i)->owner == row->type)
            return wire_row_at(i)->type;
    return WIRE_NONE; /* ERROR: any */
}

static void session_seeds(const char *dir, const struct wire_row *row, const struct sample *sample,
                          const char *name, uint64_t features)
{
    struct talk t;
    talk_new(&t, features);
    uint64_t tag;
    if (row->class == WIRE_CLASS_REQUEST)
        (void)session_request(t.client, &sample->message, true, &tag);
    else if (row->class == WIRE_CLASS_NOTICE)
        (void)session_send(row->from & WIRE_FROM_CLIENT ? t.client : t.server, 0, &sample->message);
    else if (row->class != WIRE_CLASS_RECORD)
        (void)session_send(row->from & WIRE_FROM_SERVER ? t.server : t.client,
                           request_all(&t, call_for(row)), &sample->message);
    move(t.client, t.server, &t.by_client);
    move(t.server, t.client, &t.by_server);
    uint8_t first = (uint8_t)(1 | (features ? 4 : 0) | (row->type & 8));
    if (t.by_client.len <= SEED_MAX)
        write_seed(dir, "fuzz_session_server", name, first, buffer_view(&t.by_client));
    /* Bit 2 is another one there: the talk begins behind the upgrade. */
    if (t.by_client.len <= SEED_MAX)
        write_seed(dir, "fuzz_control", name, (uint8_t)((first & ~3U) | 4),
                   buffer_view(&t.by_client));
    if (t.by_server.len <= SEED_MAX)
        write_seed(dir, "fuzz_session_client", name, first, buffer_view(&t.by_server));
    talk_free(&t);
}

/* Scripts of resume.c: steps of all kinds at random, lies and strange bytes in every other one. */
static void resume_seeds(const char *dir)
{
    srandom(1);
    for (unsigned i = 0; i < 32; i++) {
        uint8_t script[400];
        size_t len = 0;
        char name[32];
        while (len < sizeof script) {
            uint8_t step = (uint8_t)(random() % (i % 2 ? 8 : 6));
            /* Long lines and short ones. */
            uint8_t number = (uint8_t)(random() % (i % 4 < 2 ? 3 : 32));
            script[len++] = (uint8_t)(step | number << 3);
        }
        (void)snprintf(name, sizeof name, "script-%u", i);
        write_seed(dir, "fuzz_session_resume", name, (uint8_t)(i / 4 % 2), bytes_of(script, len));
    }
}

/* A header of tar, and what it has in the archive. */
static void add_member(struct buffer *b, const char *name, char type, const char *link,
                       const char *content)
{
    char header[512] = {0}, padding[512] = {0};
    size_t len = strlen(content);
    unsigned sum = 0;
    (void)snprintf(header, 100, "%s", name);
    (void)snprintf(header + 100, 8, "%07o", 0644);
    (void)snprintf(header + 124, 12, "%011zo", len);
    (void)snprintf(header + 136, 12, "%011o", 1000000000);
    memset(header + 148, ' ', 8);
    header[156] = type;
    (void)snprintf(header + 157, 100, "%s", link);
    memcpy(header + 257, "ustar\00000", 8);
    for (size_t i = 0; i < sizeof header; i++)
        sum += (uint8_t)header[i];
    (void)snprintf(header + 148, 8, "%06o", sum);
    check(buffer_append(b, header, sizeof header) == 0 && buffer_append(b, content, len) == 0 &&
              buffer_append(b, padding, (512 - len % 512) % 512) == 0,
          "memory");
}

static void archive_seeds(const char *dir)
{
    static const struct {
        char type;
        const char *name, *link, *content;
    } members[] = {
        {'0', "a/file", "", "content"},
        {'1', "hard", "a/file", ""},
        {'2', "link", "a/file", ""},
        {'5', "directory/", "", ""},
        {'6', "pipe", "", ""},
        {'0', "../up", "", "x"},
        {'x', "pax", "", "30 mtime=1234567890.123456789\n"},
        {'0', "./b//c", "", "x"},
        {'x', "pax", "", "22 GNU.sparse.major=1\n"},
        {'L', "long", "", "longname"},
    };
    struct buffer all = {0};
    for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
        struct buffer one = {0};
        add_member(&one, members[i].name, members[i].type, members[i].link, members[i].content);
        add_member(&one, "behind", '0', "", "x");
        check(buffer_append(&all, one.data, one.len) == 0, "memory");
        write_seed(dir, "fuzz_archive", members[i].name[0] == '.' ? "dot" : "member", (uint8_t)i,
                   buffer_view(&one));
        buffer_release(&one);
    }
    write_seed(dir, "fuzz_archive", "all", 0, buffer_view(&all));
    buffer_release(&all);
}

static void tree_seeds(const char *dir)
{
    static const struct {
        uint32_t kind;
        const char *path, *value;
    } items[] = {{WIRE_ITEM_DIRECTORY, "d", ""},    {WIRE_ITEM_FILE, "d/f", ""},
                 {WIRE_ITEM_XATTR, "user.x", "v"},  {WIRE_ITEM_DATA, "", "abc"},
                 {WIRE_ITEM_HARD_LINK, "h", "d/f"}, {WIRE_ITEM_SYMLINK, "l", "../outside"},
                 {WIRE_ITEM_FIFO, "p", ""},         {WIRE_ITEM_FILE, "l/x", ""},
                 {WIRE_ITEM_HARD_LINK, "o", "l"},   {WIRE_ITEM_FILE, "h", ""}};
    struct buffer list = {0};
    for (size_t i = 0; i < sizeof items / sizeof *items; i++) {
        struct buffer element = {0};
        const struct wire_message m = {.type = WIRE_TREE_ITEM,
                                       .tree_item = {.kind = items[i].kind,
                                                     .mode = 0755,
                                                     .size = 3,
                                                     .path = bytes_of_string(items[i].path),
                                                     .value = bytes_of_string(items[i].value)}};
        check(wire_encode(&element, &m) == 0 && wire_list_append(&list, buffer_view(&element)) == 0,
              "memory");
        buffer_release(&element);
        write_seed(dir, "fuzz_tree", "items", (uint8_t)i, buffer_view(&list));
    }
    buffer_release(&list);
}

static void corpus(const char *dir)
{
    check(mkdir(dir, 0777) == 0 || errno == EEXIST, dir);
    static const enum sample_kind kinds[] = {SAMPLE_LEAST, SAMPLE_GREATEST, SAMPLE_TYPICAL};
    for (size_t i = 0; i < wire_row_count(); i++) {
        const struct wire_row *row = wire_row_at(i);
        for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
            char name[80];
            (void)snprintf(name, sizeof name, "%s-%zu", row->name, k);
            struct sample sample;
            sample_make(row, kinds[k], &sample);
            struct buffer payload = {0};
            check(buffer_append_u8(&payload, (uint8_t)(row->type >> 8)) == 0 &&
                      wire_encode(&payload, &sample.message) == 0,
                  "encode");
            if (payload.len <= SEED_MAX)
                write_seed(dir, "fuzz_wire_decode", name, (uint8_t)row->type,
                           buffer_view(&payload));
            buffer_release(&payload);
            if (row->phase != WIRE_PHASE_HELLO && row->type != WIRE_GRANT &&
                row->type != WIRE_ACK) {
                session_seeds(dir, row, &sample, name, 0);
                session_seeds(dir, row, &sample, name, WIRE_FEATURE_ZSTD);
            }
            sample_release(&sample);
        }
    }
    resume_seeds(dir);
    archive_seeds(dir);
    tree_seeds(dir);
    static const char *const requests[] = {
        ("GET /v1/stream HTTP/1.1\r\nHost: h\r\nConnection: keep-alive, Upgrade\r\n"
         "Upgrade: berth/1\r\nAuthorization: Bearer secret\r\n\r\nframes"),
        "GET /healthz?x HTTP/1.0\r\n\r\n",
        "POST /v1/stream HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
        "\r\nHEAD http://h/p HTTP/1.1\r\nHost:\r\nContent-Length: 5\r\nX: a\r\n b\r\n\r\nhello",
        "CONNECT h:1 HTTP/1.1\r\nHost: h\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    };
    for (size_t i = 0; i < sizeof requests / sizeof *requests; i++)
        write_seed(dir, "fuzz_http", "request", (uint8_t)(16 * i), bytes_of_string(requests[i]));
    write_seed(dir, "fuzz_multipart", "part", 7,
               bytes_of_string("\001B--B\r\nContent-Disposition: form-data; name=\"file\"; "
                               "filename=\"a\"\r\n\r\ntext\r\n--B--\r\n"));
    write_seed(dir, "fuzz_e2b", "start", ' ',
               bytes_of_string("{\"process\":{\"cmd\":\"x\",\"args\":[\"y\"],\"envs\":{\"A\":"
                               "\"b\"},\"pid\":7},\"pty\":{\"size\":{\"cols\":1}},\"signal\":9}"));
    write_seed(dir, "fuzz_http_body", "chunks", 7,
               bytes_of_string("5;a=b\r\nabcde\r\n00f\r\n0123456789abcde\r\n0\r\nX: a\r\n\r\nGET"));
    static const char *const proxied[] = {
        "CONNECT example.org:443 HTTP/1.1\r\nHost: example.org:443\r\n\r\nearly",
        "GET http://example.org:81/a?b HTTP/1.1\r\nHost: x\r\nConnection: a, b\r\nb: 1\r\n\r\n",
        "POST HTTP://[::1] HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
        "OPTIONS http://192.0.2.1 HTTP/1.1\r\nhost:\r\nContent-Length: 3\r\n\r\nabc",
    };
    for (size_t i = 0; i < sizeof proxied / sizeof *proxied; i++)
        write_seed(dir, "fuzz_egress_request", "request", (uint8_t)(16 * i),
                   bytes_of_string(proxied[i]));
    static const char *const entries[] = {
        "*.example.org:443\na.Example.org.:443",
        "b\303\274cher.example:*\nxn--bcher-kva.example:1",
        "[2001:db8::/32]:8080\n[2001:db8::1]:8080",
        "10.0.0.0/8:*\n10.1.2.3:5",
        "*:443\n0x7f.1:443",
    };
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++)
        write_seed(dir, "fuzz_allow_list", "entry", (uint8_t)(10 * i), bytes_of_string(entries[i]));
    static const char *const rules[] = {
        "node_modules/\n!/keep/me\nhidden:*.key\n a/b/c.key",
        "profile:ide\nunlisted:/a/**/b\n a/x/y/b/.venv",
        "show:[[:alpha:]-9]*\\ \n\\#x\n**/q?\n.berth/x/q1",
        "hidden:/a/\n!a/b\nhidden: [!x]y  \n a/b/zy",
    };
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        write_seed(dir, "fuzz_visibility", "rules", (uint8_t)(6 + 9 * i),
                   bytes_of_string(rules[i]));
    static const char *const texts[] = {"../x/./y",       "a/../../..",
                                        "/usr/lib/../x",  "/lib64//ld.so",
                                        "/workspace/a/b", "../../../../etc/shadow"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        write_seed(dir, "fuzz_link_text", "text", (uint8_t)(5 * i), bytes_of_string(texts[i]));
    static const char *const policies[] = {
        "\"filesystem\":{\"read\":[\"/a\"]},\"require\":[\"full\"],\"user\":\"service\"}",
        "\"network\":{\"allow\":[\"*.a.b:443\",\"[::1]:*\",\"1.2.3.4:5\"]}}",
        "\"limits\":{\"memory\":\"2G\",\"pids\":9,\"cpu\":1.5,\"wall_time\":null}}",
    };
    for (size_t i = 0; i < sizeof policies / sizeof *policies; i++)
        write_seed(dir, "fuzz_policy", (char[]){(char)('a' + i), 0}, '{',
                   bytes_of_string(policies[i]));
    static const char place[] =
        "\"version\":1,\"id\":\"a/b\",\"provider\":\"docker\",\"sandbox\":\"berth-a-1\",\"name\":"
        "\"berth-a-1\",\"parameters\":{\"image\":\"debian:12\"},\"url\":\"exec:true\",\"state\":"
        "\"ready\",\"created\":1,\"created_by\":\"me\",\"environment\":{\"A\":\"b\",\"C\":null},"
        "\"secrets\":{\"K\":\"00\"}}";
    write_seed(dir, "fuzz_place", "place", '{', bytes_of_string(place));
    static const char profile[] =
        "\"profile\":1,\"name\":\"a\",\"summary\":\"b\",\"tried\":\"real\",\"parameters\":{\"p\":{"
        "\"help\":\"h\",\"default\":\"d\",\"pattern\":\"^d$\"},\"q\":{\"help\":\"h\",\"default\":"
        "\"\","
        "\"default_from\":[\"{directory}\"]}},\"create\":[{\"run\":[\"x\",[\"-"
        "p\",\"{p}\"],"
        "\"{policy}\",\"{{.A}}\"],\"timeout\":5,\"capture\":\"sandbox\"}],\"connect\":[\"x\",\"{"
        "sandbox}\"],"
        "\"destroy\":[{\"run\":[\"x\"]}],\"gone\":{\"status\":[1],\"text\":[\"no\"]},\"policy\":{"
        "\"network\":{"
        "\"none\":[\"-n\"]},\"memory\":[\"-m\",\"{value}\"],\"inside\":[\"pids\"]},"
        "\"unreached\":{\"status\":[5]},\"bound_to\":{\"environment\":[\"A_B\"],\"secrets\":[\"K\"]"
        "}}";
    write_seed(dir, "fuzz_profile", "profile", '{', bytes_of_string(profile));
    static const char decision[] =
        "erth-egress: egress {\"time\":\"2026-01-02T03:04:05.678Z\",\"workspace\":\"a\","
        "\"method\":\"CONNECT\",\"host\":\"a.example\",\"entry\":\"*:*\",\"address\":\"192.0.2.1\","
        "\"verdict\":\"refused\",\"reason\":\"no\",\"bytes_up\":1,\"bytes_down\":2,"
        "\"duration_ms\":3,\"port\":443}";
    write_seed(dir, "fuzz_history", "decision", 'b', bytes_of_string(decision));
    static const char *const ids[] = {"hread", "./../etc", "aa%2F", "%2E.", "~~", "\xc3\xa9"};
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        char name[16];
        (void)snprintf(name, sizeof name, "id-%zu", i);
        write_seed(dir, "fuzz_thread_id", name, 'T', bytes_of_string(ids[i]));
    }
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "dictionary") == 0)
        dictionary();
    else if (argc == 3 && strcmp(argv[1], "corpus") == 0)
        corpus(argv[2]);
    else
        return 2;
    return 0;
}

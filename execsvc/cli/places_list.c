#include "cli/places_list.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "cli/at_place.h"
#include "cli/life.h"
#include "cli/text.h"

/* Longest answer of a child of ours: labels and names are bounded on the wire. */
#define ANSWER_MAX ((size_t)262144)

void place_rows_release(struct place_rows *l)
{
    for (size_t i = 0; i < l->count; i++) {
        place_clear(&l->rows[i].place);
        json_decref(l->rows[i].json);
    }
    free(l->rows);
    *l = (struct place_rows){0};
}

static int add(void *context, struct place *p)
{
    struct place_rows *l = context;
    struct place_row *rows = reallocarray(l->rows, l->count + 1, sizeof *rows);
    if (!rows)
        return -ENOMEM;
    l->rows = rows;
    rows[l->count++] = (struct place_row){.place = *p};
    *p = (struct place){0};
    return 0;
}

/* --- asking, in a process for each: one that hangs is ended -------------------------------------
 */

struct asked {
    pid_t pid; /* 0: none */
    int fd;
    uint64_t deadline_ns;
    struct buffer answer;
    struct place_row *row;
};

/* Over a connection that is held; hold: or will be. */
static int reach(struct cli *cli, bool hold, struct client **ret, struct failure *f)
{
    cli->passive = !hold;
    int r = cli_reach_warm(cli, ret, f);
    return r < 0 && !hold ? cli_connect_alone(cli, ret, f) : r;
}

static _Noreturn void answer(const struct cli *cli, const struct place *p, bool hold, int fd)
{
    struct cli other;
    struct client *client;
    struct failure f;
    struct wire_frame *reply;
    const struct wire_message request = {.type = WIRE_WORKSPACE_GET,
                                         .workspace_get.key = buffer_view(&p->id)};
    if (at_place_enter(cli, p, &other) < 0)
        _exit(CLI_FAILED);
    other.flags.connect_timeout_ms = PLACES_ANSWER_MS;
    if (client_settings_load(&other.flags, &other.settings, &f) < 0 ||
        reach(&other, hold, &client, &f) < 0 || cli_call(client, &request, &reply, &f) < 0)
        _exit(CLI_FAILED);
    json_t *object = life_json(&reply->message.workspace);
    bool written = object && json_dumpfd(object, fd, JSON_COMPACT) == 0;
    _exit(written ? CLI_OK : CLI_FAILED);
}

static int start(const struct cli *cli, struct place_row *row, bool hold, struct asked *a)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) < 0)
        return -errno;
    (void)fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        (void)setpgid(0, 0);
        (void)close(ends[0]);
        answer(cli, &row->place, hold, ends[1]);
    }
    int error = errno;
    (void)close(ends[1]);
    if (pid < 0) {
        (void)close(ends[0]);
        return -error;
    }
    *a = (struct asked){.pid = pid,
                        .fd = ends[0],
                        .deadline_ns = clock_monotonic_ns() + PLACES_ANSWER_MS * NSEC_PER_MSEC,
                        .row = row};
    return 0;
}

/* ended: it has closed its pipe, and is about to. */
static void finish(struct asked *a, bool ended)
{
    int status = -1;
    (void)close(a->fd);
    if (!ended) {
        /* And what it has started. */
        (void)kill(-a->pid, SIGKILL);
        (void)kill(a->pid, SIGKILL);
    }
    while (waitpid(a->pid, &status, 0) < 0 && errno == EINTR)
        ;
    json_t *object = a->answer.len && WIFEXITED(status) && WEXITSTATUS(status) == 0
                         ? json_loadb((const char *)a->answer.data, a->answer.len, 0, NULL)
                         : NULL;
    if (json_is_object(object)) {
        a->row->json = json_incref(object);
        a->row->answered = true;
    }
    json_decref(object);
    buffer_release(&a->answer);
    *a = (struct asked){0};
}

/* False: there is no more to read. */
static bool take(struct asked *a)
{
    char data[4096];
    ssize_t n = read(a->fd, data, sizeof data);
    if (n < 0 && errno == EINTR)
        return true;
    return n > 0 && a->answer.len + (size_t)n <= ANSWER_MAX &&
           buffer_append(&a->answer, data, (size_t)n) == 0;
}

/* Starts as many as may be asked at once. Their number. */
static size_t fill(const struct cli *cli, struct place_rows *l, size_t *next, struct asked *asked)
{
    bool hold = l->count <= PLACES_ASKING_MAX;
    size_t running = 0;
    for (size_t i = 0; i < PLACES_ASKING_MAX; i++) {
        while (!asked[i].pid && *next < l->count) {
            struct place_row *row = &l->rows[(*next)++];
            if (row->place.state == PLACE_READY && row->place.url[0])
                (void)start(cli, row, hold, &asked[i]);
        }
        running += asked[i].pid != 0;
    }
    return running;
}

static void wait_for_some(struct asked *asked)
{
    struct pollfd fds[PLACES_ASKING_MAX];
    uint64_t now = clock_monotonic_ns(), deadline = UINT64_MAX;
    for (size_t i = 0; i < PLACES_ASKING_MAX; i++) {
        fds[i] = (struct pollfd){.fd = asked[i].pid ? asked[i].fd : -1, .events = POLLIN};
        if (asked[i].pid && asked[i].deadline_ns < deadline)
            deadline = asked[i].deadline_ns;
    }
    int left = deadline > now ? (int)((deadline - now) / NSEC_PER_MSEC) + 1 : 0;
    int n = poll(fds, PLACES_ASKING_MAX, left);
    now = clock_monotonic_ns();
    for (size_t i = 0; i < PLACES_ASKING_MAX; i++) {
        if (n > 0 && asked[i].pid && fds[i].revents && !take(&asked[i]))
            finish(&asked[i], true);
        if (asked[i].pid && now >= asked[i].deadline_ns)
            finish(&asked[i], false);
    }
}

static void ask_all(const struct cli *cli, struct place_rows *l)
{
    struct asked asked[PLACES_ASKING_MAX] = {0};
    uint64_t end = clock_monotonic_ns() + PLACES_ALL_MS * NSEC_PER_MSEC;
    size_t next = 0;
    while (clock_monotonic_ns() < end && fill(cli, l, &next, asked) > 0)
        wait_for_some(asked);
    for (size_t i = 0; i < PLACES_ASKING_MAX; i++)
        if (asked[i].pid)
            finish(&asked[i], false);
}

/* --- as JSON
 * -------------------------------------------------------------------------------------- */

static const char *state_of(const struct place_row *row)
{
    return row->place.state != PLACE_READY ? place_state_name(row->place.state) : "unreachable";
}

/* What is known of one that has not answered. */
static json_t *json_of(const struct place_row *row)
{
    const struct place *p = &row->place;
    const struct wire_workspace w = {.thread_id = buffer_view(&p->id),
                                     .name = bytes_of_string(p->name),
                                     .created_at.sec = p->created,
                                     .labels = bytes_of_string("{}")};
    json_t *object = life_json(&w);
    if (object)
        (void)json_object_set_new(object, "state", json_string(state_of(row)));
    return object;
}

static int complete(struct place_row *row)
{
    const struct place *p = &row->place;
    if (!row->json)
        row->json = json_of(row);
    json_t *provider = json_pack("{s:s, s:s, s:s}", "name", p->provider, "sandbox", p->sandbox,
                                 "state", place_state_name(p->state));
    return row->json && provider && json_object_set_new(row->json, "provider", provider) == 0
               ? 0
               : -ENOMEM;
}

int place_rows_read(const struct cli *cli, bool ask, struct place_rows *ret)
{
    _cleanup_place_rows_ struct place_rows l = {0};
    struct failure f;
    int r = places_list(add, &l, &f);
    if (r == 0 && ask)
        ask_all(cli, &l);
    for (size_t i = 0; r == 0 && ask && i < l.count; i++)
        if (complete(&l.rows[i]) < 0)
            r = failure_set(&f, -ENOMEM, "%s", strerror(ENOMEM));
    if (r < 0) {
        cli_error(cli, "%s", f.text);
        return r;
    }
    *ret = l;
    l = (struct place_rows){0};
    return 0;
}

bool place_row_matches(const struct place_row *row, const char *const *labels, size_t count,
                       const char *state)
{
    const json_t *has = json_object_get(row->json, "labels");
    const char *is = json_string_value(json_object_get(row->json, "state"));
    if (state && (!is || strcmp(is, state) != 0))
        return false;
    for (size_t i = 0; i < count; i++) {
        size_t len = strcspn(labels[i], "=");
        const char *value = json_string_value(json_object_getn(has, labels[i], len));
        if (!value || (labels[i][len] && strcmp(value, labels[i] + len + 1) != 0))
            return false;
    }
    return true;
}

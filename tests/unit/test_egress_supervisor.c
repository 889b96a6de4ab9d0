/* The keeper's side of the proxy's process: this program is that process too, and answers each
 * connection with its own number and the list that it was told of. */
#include "unit.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "egress/control.h"
#include "egress/process.h"
#include "egress/supervisor.h"

#define WARDS_MAX 200

/* --- in the process -------------------------------------------------------------------------- */

struct served {
    uint64_t id;
    int listener;
    char first[64];
};

static void obey(struct served *all, struct control_message *m)
{
    size_t i = 0;
    while (i < WARDS_MAX && all[i].id != (m->kind == CONTROL_OPEN ? 0 : m->id))
        i++;
    if (i == WARDS_MAX)
        _exit(9);
    if (m->kind == CONTROL_CLOSE) {
        close_fd(&all[i].listener);
        all[i].id = 0;
        return;
    }
    if (m->kind == CONTROL_OPEN) {
        all[i].id = m->id;
        all[i].listener = take_fd(&m->listener);
    }
    (void)snprintf(all[i].first, sizeof all[i].first, "%s",
                   allow_list_count(m->list) ? allow_list_text(m->list, 0) : "");
}

static int serve(void)
{
    static struct served all[WARDS_MAX];
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) {
        struct pollfd polled[WARDS_MAX + 1] = {{.fd = EGRESS_CONTROL_FD, .events = POLLIN}};
        for (size_t i = 0; i < WARDS_MAX; i++)
            polled[i + 1] =
                (struct pollfd){.fd = all[i].id ? all[i].listener : -1, .events = POLLIN};
        (void)poll(polled, WARDS_MAX + 1, -1);
        if (polled[0].revents) {
            _cleanup_control_message_ struct control_message m = {.listener = -1};
            int r = control_receive(EGRESS_CONTROL_FD, &m);
            if (r <= 0)
                return r == 0 ? 0 : 8;
            obey(all, &m);
            continue;
        }
        for (size_t i = 0; i < WARDS_MAX; i++) {
            if (!polled[i + 1].revents)
                continue;
            _cleanup_close_ int fd = accept(all[i].listener, NULL, NULL);
            (void)dprintf(fd, "%d %s", (int)getpid(), all[i].first);
        }
    }
}

/* --- the tests ------------------------------------------------------------------------------- */

struct fixture {
    struct event_base *base;
    struct supervisor *supervisor;
    struct spawn_limits limits;
    char directory[32];
    int fd;
};

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    (void)strcpy(f->directory, "/tmp/egress-XXXXXX");
    assert_non_null(mkdtemp(f->directory));
    f->fd = open(f->directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    f->base = event_base_new();
    spawn_limits_read(&f->limits);
    assert_int_equal(supervisor_new(f->base, f->fd, &f->limits, &f->supervisor), 0);
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    supervisor_free(f->supervisor);
    event_base_free(f->base);
    (void)unlinkat(f->fd, SUPERVISOR_LOG, 0);
    (void)unlinkat(f->fd, SUPERVISOR_OLD_LOG, 0);
    (void)close(f->fd);
    (void)rmdir(f->directory);
    free(f);
    return 0;
}

static struct ward *begin(struct fixture *f, const char *entry, uint16_t *ret_port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    struct allow_list *list;
    struct failure failure;
    struct ward *w;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, len), 0);
    assert_int_equal(listen(fd, 16), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &len), 0);
    assert_int_equal(allow_list_new(&list), 0);
    assert_int_equal(allow_list_add(list, bytes_of_string(entry), &failure), 0);
    assert_int_equal(supervisor_begin(f->supervisor, &fd, "w", list, &w), 0);
    assert_int_equal(fd, -1);
    allow_list_free(list);
    *ret_port = ntohs(address.sin_port);
    return w;
}

static int dial(uint16_t port)
{
    const struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fd, (const struct sockaddr *)&address, sizeof address) == 0)
        return fd;
    (void)close(fd);
    return -1;
}

/* Asks the process; the loop runs meanwhile. Its number, and the list's first entry. */
static pid_t ask(struct fixture *f, uint16_t port, char ret_entry[64])
{
    _cleanup_close_ int fd = dial(port);
    char text[128] = "";
    int pid = 0;
    assert_true(fd >= 0);
    for (int i = 0; i < 3000; i++) {
        struct pollfd polled = {.fd = fd, .events = POLLIN};
        (void)event_base_loop(f->base, EVLOOP_NONBLOCK);
        if (poll(&polled, 1, 10) == 1)
            break;
    }
    assert_true(recv(fd, text, sizeof text - 1, MSG_DONTWAIT) > 0);
    assert_int_equal(sscanf(text, "%d %63s", &pid, ret_entry), 2);
    return pid;
}

static void starts_and_starts_again(void **state)
{
    struct fixture *f = *state;
    char entry[64];
    uint16_t one, two;
    (void)begin(f, "one.test:1", &one);
    (void)begin(f, "two.test:2", &two);
    pid_t pid = ask(f, one, entry);
    assert_string_equal(entry, "one.test:1");
    assert_int_equal(ask(f, two, entry), pid);
    assert_string_equal(entry, "two.test:2");
    for (int i = 0; i < 2; i++) {
        assert_int_equal(kill(pid, SIGKILL), 0);
        /* Connections wait for the next one. */
        pid_t next = ask(f, two, entry);
        assert_true(next != pid);
        assert_string_equal(entry, "two.test:2");
        pid = next;
        assert_int_equal(ask(f, one, entry), pid);
    }
}

static void lists_change_and_wards_end(void **state)
{
    struct fixture *f = *state;
    struct allow_list *list;
    struct failure failure;
    char entry[64];
    uint16_t one, two, three;
    struct ward *first = begin(f, "one.test:1", &one);
    struct ward *second = begin(f, "two.test:2", &two);
    pid_t pid = ask(f, one, entry);
    assert_int_equal(allow_list_new(&list), 0);
    assert_int_equal(allow_list_add(list, bytes_of_string("changed.test:3"), &failure), 0);
    assert_int_equal(supervisor_change(f->supervisor, first, list), 0);
    allow_list_free(list);
    assert_int_equal(ask(f, one, entry), pid);
    assert_string_equal(entry, "changed.test:3");
    supervisor_end(f->supervisor, second);
    for (int fd, i = 0; i < 3000 && (fd = dial(two)) >= 0; i++) {
        (void)close(fd);
        (void)event_base_loop(f->base, EVLOOP_NONBLOCK);
        (void)usleep(10000);
    }
    assert_int_equal(dial(two), -1);
    assert_int_equal(ask(f, one, entry), pid);
    /* With the last one the process ends; the next one has another. */
    supervisor_end(f->supervisor, first);
    (void)begin(f, "three.test:3", &three);
    assert_true(ask(f, three, entry) != pid);
    assert_string_equal(entry, "three.test:3");
}

/* More than the socket holds at a time. */
static void many_wards(void **state)
{
    struct fixture *f = *state;
    char entry[64], text[64];
    uint16_t ports[WARDS_MAX];
    for (unsigned i = 0; i < WARDS_MAX; i++) {
        (void)snprintf(text, sizeof text, "w%u.test:1", i);
        (void)begin(f, text, &ports[i]);
    }
    pid_t pid = ask(f, ports[0], entry);
    assert_int_equal(kill(pid, SIGKILL), 0);
    for (unsigned i = 0; i < WARDS_MAX; i++) {
        (void)snprintf(text, sizeof text, "w%u.test:1", i);
        assert_true(ask(f, ports[i], entry) != pid);
        assert_string_equal(entry, text);
    }
}

int main(int argc, char **argv)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(starts_and_starts_again, set_up, tear_down),
        cmocka_unit_test_setup_teardown(lists_change_and_wards_end, set_up, tear_down),
        cmocka_unit_test_setup_teardown(many_wards, set_up, tear_down),
    };
    (void)signal(SIGPIPE, SIG_IGN);
    if (argc > 1)
        return serve();
    return cmocka_run_group_tests(tests, NULL, NULL);
}

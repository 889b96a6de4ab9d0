/* A control socket and a program that may say anything there. The first byte chooses the size of
 * the pieces that its bytes come in (bits 0-1), whether it has been upgraded already (bit 2), and
 * whether the service answers (bit 3). */
#include <event2/event.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "control/private.h"
#include "fake_client.h"
#include "requests.h"

static const char upgrade[] = "GET /v1/stream HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\n"
                              "Upgrade: berth/1\r\n\r\n";

static void check(bool ok)
{
    if (!ok)
        abort();
}

/* With one item that fits, and the reply. */
static void answer(struct client *c)
{
    for (size_t i = 0; i < c->count; i++) {
        struct sample sample;
        struct fake_call *f = &c->calls[i];
        if (!f->open)
            continue;
        if (f->call.writable)
            f->call.writable(f->call.context, f->tag);
        sample_make(wire_row(wire_row(f->type)->owner), SAMPLE_TYPICAL, &sample);
        fake_client_reply(c, i, &sample.message);
        sample_release(&sample);
    }
}

static void drain(int fd)
{
    uint8_t data[65536];
    while (recv(fd, data, sizeof data, MSG_DONTWAIT) > 0)
        ;
}

static void turn(struct control *c, int fd, bool answering)
{
    for (int i = 0; i < 4; i++) {
        (void)event_base_loop(c->base, EVLOOP_NONBLOCK);
        drain(fd);
    }
    if (answering)
        answer(c->client);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    static const size_t pieces[] = {SIZE_MAX, 1, 7, 4096};
    static struct client client;
    int pair[2];
    if (len == 0 || len > 4096)
        return 0;
    size_t piece = pieces[data[0] & 3];
    if (piece == 1 && len > 256)
        return 0;
    (void)signal(SIGPIPE, SIG_IGN);
    fake_client_init(&client);
    struct control c = {.base = event_base_new(), .client = &client, .fd = -1};
    TAILQ_INIT(&c.peers);
    check(c.base && socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) == 0);
    peer_new(&c, pair[0]);
    if (data[0] & 4)
        check(send(pair[1], upgrade, sizeof upgrade - 1, 0) == (ssize_t)sizeof upgrade - 1);
    turn(&c, pair[1], false);
    for (size_t done = 1; done < len;) {
        size_t n = len - done < piece ? len - done : piece;
        (void)send(pair[1], data + done, n, MSG_DONTWAIT | MSG_NOSIGNAL);
        done += n;
        turn(&c, pair[1], data[0] & 8);
    }
    (void)close(pair[1]);
    (void)event_base_loop(c.base, EVLOOP_NONBLOCK);
    (void)event_base_loop(c.base, EVLOOP_NONBLOCK);
    struct peer *p;
    while ((p = TAILQ_FIRST(&c.peers)))
        peer_free(p);
    check(c.peer_count == 0 && c.program_count == 0);
    fake_client_end(&client);
    event_base_free(c.base);
    return 0;
}

/* The network. What is connected to is the test's own, on the machine's loopback. */
#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_packet.h>
#include <linux/vm_sockets.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/cleanup.h"
#include "attack.h"

static int connect_to(int s, const char *host, const char *port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};
    struct sockaddr_in6 b = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)atoi(port))};
    if (inet_pton(AF_INET, host, &a.sin_addr) == 1)
        return result_of(connect(s, (struct sockaddr *)&a, sizeof a));
    if (inet_pton(AF_INET6, host, &b.sin6_addr) == 1)
        return result_of(connect(s, (struct sockaddr *)&b, sizeof b));
    return -EINVAL;
}

static int open_socket(const char *host, int type, int *ret)
{
    int s = socket(strchr(host, ':') ? AF_INET6 : AF_INET, type | SOCK_CLOEXEC, 0);
    if (s < 0)
        return -errno;
    *ret = s;
    return 0;
}

/* HOST PORT */
static int tcp(char **args)
{
    _cleanup_close_ int s = -1;
    int r = open_socket(args[0], SOCK_STREAM, &s);
    return r < 0 ? r : connect_to(s, args[0], args[1]);
}

/* HOST PORT, where what is sent comes back. */
static int udp(char **args)
{
    _cleanup_close_ int s = -1;
    int r = open_socket(args[0], SOCK_DGRAM, &s);
    if (r == 0)
        r = connect_to(s, args[0], args[1]);
    if (r == 0)
        r = result_of(send(s, "x", 1, 0));
    struct pollfd ready = {.fd = s, .events = POLLIN};
    char byte;
    if (r < 0)
        return r;
    return poll(&ready, 1, 2000) == 1 ? result_of(recv(s, &byte, 1, 0)) : -ENODATA;
}

static int raw(char **args)
{
    return result_of(socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_ICMP));
}

static int packet(char **args)
{
    return result_of(socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, htons(ETH_P_ALL)));
}

static int virtual_machine(char **args)
{
    return result_of(socket(AF_VSOCK, SOCK_STREAM | SOCK_CLOEXEC, 0));
}

static int crypto(char **args)
{
    return result_or(socket(AF_ALG, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), EAFNOSUPPORT);
}

/* The loopback, set to what it is. */
static int set_interface(char **args)
{
    struct ifreq request = {.ifr_name = "lo"};
    _cleanup_close_ int s = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (s < 0 || ioctl(s, SIOCGIFFLAGS, &request) < 0)
        return -errno;
    return result_of(ioctl(s, SIOCSIFFLAGS, &request));
}

/* PATH of a unix socket that somebody listens on. */
static int unix_socket(char **args)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    (void)strncpy(address.sun_path, args[0], sizeof address.sun_path - 1);
    _cleanup_close_ int s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (s < 0)
        return -errno;
    return result_of(connect(s, (struct sockaddr *)&address, sizeof address));
}

const struct attack attacks_on_sockets[] = {
    {"tcp", tcp, 2},
    {"udp", udp, 2},
    {"raw-socket", raw, 0},
    {"packet-socket", packet, 0},
    {"vsock", virtual_machine, 0},
    {"alg-socket", crypto, 0},
    {"interface", set_interface, 0},
    {"unix-socket", unix_socket, 1},
    {NULL},
};

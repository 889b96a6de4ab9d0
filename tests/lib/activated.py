"""Programs that are started with sockets, as sd_listen_fds(3) has them."""

import fcntl
import os
import socket


def high(one):
    """The same socket with a number that is in nobody's way."""
    moved = socket.socket(fileno=fcntl.fcntl(one.fileno(), fcntl.F_DUPFD_CLOEXEC, 100))
    one.close()
    return moved


def with_sockets(given, argv, count=None, pid=None):
    """A command line that has these sockets as its descriptors from 3 on. given: pairs of socket (to be passed on,
    see high) and name; count, pid: what it is told instead of the truth."""
    for index, (one, _) in enumerate(given):
        os.set_inheritable(one.fileno(), True)
        assert one.fileno() > 2 + len(given) + index, "in the way of the numbers that are to be"
    words = [f"exec {3 + index}<&{one.fileno()} {one.fileno()}<&-" for index, (one, _) in enumerate(given)]
    words += [f"export LISTEN_PID={pid or '$$'} LISTEN_FDS={len(given) if count is None else count}",
              "export LISTEN_FDNAMES=" + ":".join(name for _, name in given), 'exec "$0" "$@"']
    return ["bash", "-c", "\n".join(words), *argv]

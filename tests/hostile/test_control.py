"""Whoever may reach the socket by which connections are lent: garbage, half messages, lengths without bounds, a crowd,
readers that do not read, and other users. The lender, a mount's driver or a holder, and a well-behaved program beside
them go on, and memory stays where it was."""

import errno
import os
import socket
import subprocess
import time
from pathlib import Path

import pytest

from lib.berthwire import CallError, Closed, Connection
from lib.exec_client import WORKSPACE, ExecClient
from lib.harness import memory_of, wait_until

pytestmark = pytest.mark.timeout(120)

UPGRADE = b"GET /v1/stream HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: berth/1\r\n\r\n"
PEERS_MAX = 1024
GROWTH_MAX = 64 << 20  # with sanitisers, which give nothing back


class Lender:
    def __init__(self, path, pid):
        self.path, self.pid = path, pid
        self.before = memory_of(pid)

    def connect(self):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(20)
        sock.connect(self.path)
        return sock

    def program(self):
        wire = Connection.unix(self.path, 20)
        wire.upgrade()
        wire.hello()
        return wire

    def works(self):
        """For somebody who does what one does, and with no more memory than before."""
        with ExecClient(self.path) as client:
            call = client.run(WORKSPACE, ["echo", "here"])
            assert (call.verdict.verdict, bytes(call.output[1])) == ("exited", b"here\n")
        return memory_of(self.pid) - self.before


@pytest.fixture(params=["mount", "holder"])
def lender(request, harness, service, run_berth):
    directory = Path(harness.env["XDG_RUNTIME_DIR"])
    run_berth("create", WORKSPACE, check=True)
    if request.param == "mount":
        request.getfixturevalue("start_mount")(service)
    else:
        run_berth("exec", "-w", WORKSPACE, "--persist", "100", "--", "true", check=True)
    path, = wait_until(lambda: [path for path in (directory / "berth" / "control").glob("*") if path.is_socket()],
                       what="its socket")
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(str(path))
    pid = int.from_bytes(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)[:4], "little")
    sock.close()
    lent = Lender(str(path), pid)
    lent.works()
    lent.before = memory_of(pid)
    yield lent
    if request.param == "holder":
        run_berth("connection", "--stop")


def ended(sock):
    """The lender has closed it, whatever it said before."""
    try:
        while sock.recv(65536):
            pass
    except ConnectionResetError:
        pass
    sock.close()
    return True


GARBAGE = {
    "bytes": os.urandom(5000),
    "zeros": bytes(100000),
    "another path": b"GET /etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n",
    "endless header": b"GET /v1/stream HTTP/1.1\r\n" + b"X: y\r\n" * 20000,
    "no HELLO": UPGRADE + b"\x00" * 16 + b"\xff" * 4000,
    "huge length": UPGRADE + b"\xff\xff\xff\xff" + b"\x01\x00\x00\x00" + bytes(8) + b"x" * 1000,
}


def test_garbage(lender):
    for kind, data in GARBAGE.items():
        for _ in range(5):
            sock = lender.connect()
            try:
                sock.sendall(data)
            except (BrokenPipeError, ConnectionResetError):
                pass
            assert ended(sock), kind
        assert lender.works() < GROWTH_MAX, kind


def test_lengths_without_bounds_after_a_greeting(lender):
    beside = lender.program()
    for length in b"\x00\x00\x40\x00", b"\xff\xff\xff\x7f", b"\xff\xff\xff\xff":
        wire = lender.program()
        wire.send_raw(length + b"\x01\x03\x00\x00" + bytes(8) + b"x" * 100)
        wire.until_closed()
    assert beside.call("WORKSPACE_LIST").name == "WORKSPACES"
    beside.close()
    assert lender.works() < GROWTH_MAX


def test_halves_hold_up_nobody(lender):
    """Each stays where it is: amid a header, a greeting, a request."""
    waiting = [lender.connect() for _ in range(50)]
    for i, sock in enumerate(waiting):
        sock.sendall((UPGRADE + b"\x20\x00\x00\x00\x01\x00")[:1 + 2 * i])
    assert lender.works() < GROWTH_MAX
    for sock in waiting:
        sock.close()


def test_crowd_is_bounded(lender):
    crowd = []
    refused = 0
    for _ in range(PEERS_MAX + 200):
        sock = lender.connect()
        sock.settimeout(0.001)
        crowd.append(sock)
    time.sleep(0.5)
    for sock in crowd:
        try:
            refused += sock.recv(1) == b""
        except (TimeoutError, BlockingIOError):
            pass
        except ConnectionResetError:
            refused += 1
    assert refused >= 200
    for sock in crowd:
        sock.close()
    wait_until(lambda: lender.works() < GROWTH_MAX, what="room again")


def test_reader_that_does_not_read(lender):
    """It holds up its own commands alone, and costs a window for each."""
    with ExecClient(lender.path) as slow:
        slow.granting = False
        calls = [slow.start(WORKSPACE, ["yes"]) for _ in range(8)]
        slow.wait_started(calls[-1])
        time.sleep(1)
        assert lender.works() < GROWTH_MAX
    assert lender.works() < GROWTH_MAX


def test_more_calls_than_one_may_have(lender):
    wire = lender.program()
    with pytest.raises((Closed, CallError, OSError)):
        for _ in range(200):
            wire.request("EXEC", flags=0, workspace=WORKSPACE.encode(), argv=[b"sleep", b"30"], linger_ms=1)
        while True:
            got = wire.receive_new()
            if got.name in ("ERROR", "GOODBYE"):
                raise CallError(got["error"], got["text"])
    wire.close()
    assert lender.works() < GROWTH_MAX


def test_what_needs_a_session_is_refused(lender):
    wire = lender.program()
    requests = {"LOOKUP": {"parent": 1, "name": b"x"}, "SUBSCRIBE": {"flags": 0},
                "WORKSPACE_OPEN": {"flags": 0, "key": WORKSPACE.encode()}}
    for name, fields in requests.items():
        with pytest.raises(CallError) as refused:
            wire.call(name, **fields)
        assert refused.value.errno == errno.EOPNOTSUPP, name
    wire.close()
    lender.works()


CONNECT = ("import socket, sys\n"
           "s = socket.socket(socket.AF_UNIX)\n"
           "s.settimeout(10)\n"
           "s.connect(sys.argv[1])\n"
           "try:\n"
           "    s.sendall(b'GET /v1/connection HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n')\n"
           "    print(s.recv(100))\n"
           "except (BrokenPipeError, ConnectionResetError):\n"
           "    print(b'')\n")


def test_another_user_is_refused(lender):
    """By the socket's mode, and where that was opened to all, by the credentials."""
    def ask():
        return subprocess.run(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "/usr/bin/python3", "-c",
                               CONNECT, lender.path], capture_output=True, text=True, timeout=30, check=False)
    assert "PermissionError" in ask().stderr
    places = [path for path in (Path(lender.path), *Path(lender.path).parents) if path != Path("/")]
    modes = [path.stat().st_mode for path in places]
    try:
        for path, mode in zip(places, modes):
            path.chmod(mode | (0o666 if path.is_socket() else 0o011))
        result = ask()
    finally:
        for path, mode in zip(places, modes):
            path.chmod(mode)
    assert result.stdout == "b''\n", result
    assert lender.works() < GROWTH_MAX

"""Sockets that a service is started with, and what it tells who started it, as systemd does both."""

import json
import os
import socket
import urllib.request
from pathlib import Path

import pytest

from lib.activated import high, with_sockets
from lib.harness import Process, Service, is_alive, wait_until


class Activated(Service):
    """A berthd with sockets of the test's as its descriptors from 3 on. given: pairs of socket and name."""

    def __init__(self, harness, given, args=(), env=None, count=None, pid=None):
        root = harness.new_path("root")
        argv = with_sockets(given, [harness.program("berthd"), "--root", root, *args], count, pid)
        Process.__init__(self, harness, "berthd", argv, env={**harness.env, **(env or {})},
                         pass_fds=[one.fileno() for one, _ in given])
        self.root, self.tls, self.token_file, self.expected_crashes = root, None, None, 0
        self.urls = []
        harness.services.append(self)

    def wait(self):
        self.wait_for_line(f"listening on unix:{self.root}/berthd.sock")
        return self


@pytest.fixture
def unix(harness):
    path = harness.short / "given.sock"
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(path))
        one.listen()
        with high(one) as moved:
            yield moved, path


@pytest.fixture
def tcp():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        one.listen()
        with high(one) as moved:
            yield moved


def listening(service):
    return {line.split()[-1] for line in service.log.splitlines() if "listening on" in line}


def test_a_socket_that_is_there_already(harness, unix):
    given, path = unix
    # Whoever connects before there is a service waits for it.
    with socket.socket(socket.AF_UNIX) as early:
        early.connect(str(path))
        service = Activated(harness, [(given, "berthd.socket")]).wait()
        # In the place of the one that it would make for itself.
        assert listening(service) == {f"unix:{path}", f"unix:{service.root}/berthd.sock"}
        early.sendall(b"GET /healthz HTTP/1.1\r\nHost: b\r\n\r\n")
        assert b" 200 " in early.recv(4096)
    harness.run_berth("create", "w", url=f"unix:{path}", check=True)
    # What runs beside the service knows nothing of it.
    result = harness.run_berth("exec", "-w", "w", "--", "env", url=f"unix:{path}", check=True)
    assert "LISTEN_" not in result.stdout
    for pid in {service.popen.pid, service.pid, service.keeper().pid}:
        numbers = [int(name) for name in os.listdir(f"/proc/{pid}/fd")]
        same = [n for n in numbers if os.path.samestat(os.stat(f"/proc/{pid}/fd/{n}"), os.fstat(given.fileno()))]
        assert len(same) == (0 if pid == service.keeper().pid else 1), pid
    inode = path.lstat().st_ino
    service.stop()
    assert path.lstat().st_ino == inode, "it is another's to remove"


def test_it_outlives_a_crash_of_the_service(harness, unix):
    given, path = unix
    service = Activated(harness, [(given, "")]).wait()
    harness.run_berth("create", "w", url=f"unix:{path}", check=True)
    serving = service.pid
    service.expected_crashes = 1
    os.kill(serving, 9)
    wait_until(lambda: not is_alive(serving), what="its end")
    assert "w" in harness.run_berth("ls", url=f"unix:{path}", check=True).stdout


def test_with_others_that_are_named(harness, unix):
    given, path = unix
    other = harness.short / "other.sock"
    service = Activated(harness, [(given, "")], ["--listen", f"unix:{other}", "--listen", f"unix:{path}"]).wait()
    assert listening(service) == {f"unix:{path}", f"unix:{other}", f"unix:{service.root}/berthd.sock"}


def test_tcp_is_tls_unless_it_is_called_http(harness, unix, tcp):
    access = harness.access_file({"id": "t", "secret": "token-1"})
    service = Activated(harness, [unix[:1] + ("",), (tcp, "http")], ["--access-file", access]).wait()
    port = tcp.getsockname()[1]
    assert f"http://127.0.0.1:{port}" in listening(service)
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/workspaces", headers={"Authorization": "Bearer token-1"})
    with urllib.request.urlopen(request, timeout=20) as answer:
        assert "workspaces" in json.load(answer)
    service.stop()


@pytest.mark.parametrize("name", ["", "https", "httpx"])
def test_tls_needs_what_it_always_needs(harness, tcp, name):
    service = Activated(harness, [(tcp, name)])
    service.expected_status = (1,)
    assert service.popen.wait(20) == 1
    assert "https needs --access-file" in service.log


def test_http_beyond_loopback(harness):
    with socket.socket() as one:
        one.bind(("0.0.0.0", 0))
        one.listen()
        with high(one) as moved:
            service = Activated(harness, [(moved, "http")], ["--access-file", harness.access_file({"id": "t", "secret": "s"})])
            service.expected_status = (1,)
            assert service.popen.wait(20) == 1
    assert "for this machine alone" in service.log


def test_what_is_no_listening_socket(harness):
    left, right = socket.socketpair()
    with left, high(right) as moved:
        service = Activated(harness, [(moved, "")])
        service.expected_status = (1,)
        assert service.popen.wait(20) == 1
    assert "descriptor 3 is no listening stream socket" in service.log


def test_numbers_that_are_not_there(harness, unix):
    """More than there are, and more than anybody needs."""
    for count, said in ((2, "descriptor 4 is no listening"), (10**6, "more than 16"), (10**30, None)):
        service = Activated(harness, [(unix[0], "")], count=count)
        if said:
            service.expected_status = (1,)
            assert service.popen.wait(20) == 1
            assert said in service.log
        else:
            service.wait()


def test_sockets_of_another_process(harness, unix):
    service = Activated(harness, [(unix[0], "")], pid=1).wait()
    assert f"unix:{unix[1]}" not in listening(service)


@pytest.mark.parametrize("abstract", [False, True])
def test_it_says_when_it_is_ready_and_when_it_ends(harness, abstract):
    path = str(harness.short / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0" + path if abstract else path)
        manager.settimeout(20)
        service = Activated(harness, [], env={"NOTIFY_SOCKET": "@" + path if abstract else path})
        assert manager.recv(100) == b"READY=1"
        assert service.log.count("listening on") == 2, "not before it listens"
        harness.run_berth("create", "w", url=f"unix:{service.root}/berthd.sock", check=True)
        environment = harness.run_berth("exec", "-w", "w", "--", "env", url=f"unix:{service.root}/berthd.sock", check=True)
        assert "NOTIFY" not in environment.stdout
        assert b"NOTIFY_SOCKET" not in Path(f"/proc/{service.keeper().pid}/environ").read_bytes()
        service.signal(15)
        assert manager.recv(100) == b"STOPPING=1"
        service.stop()


def test_a_manager_that_has_gone(harness):
    Activated(harness, [], env={"NOTIFY_SOCKET": str(harness.short / "nobody")}).wait()

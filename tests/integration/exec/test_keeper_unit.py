"""A keeper that somebody else starts, with a cgroup for itself, as systemd does by contrib's units."""

import os
import socket
import struct
from pathlib import Path

import pytest

from lib.activated import high, with_sockets
from lib.exec_client import WORKSPACE
from lib.harness import wait_until

pytestmark = pytest.mark.sandbox

HIERARCHY = next((Path(point) for _, point, kind, *_ in map(str.split, open("/proc/self/mounts", encoding="utf-8"))
                  if kind == "cgroup2"), None)
ASK = 11  # ERRAND_KEEP


@pytest.fixture
def listener(harness):
    """Where a service asks for a keeper."""
    path = harness.short / "keeper.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as one:
        one.bind(str(path))
        one.listen()
        with high(one) as moved:
            yield moved, path


@pytest.fixture
def cgroup(harness):
    path = HIERARCHY / f"berth-test-{os.getpid()}-{harness.short.name}"
    path.mkdir()
    yield path

    def removed():
        for directory, _, _ in os.walk(path, topdown=False):
            try:
                os.rmdir(directory)
            except OSError:
                return False
        return True

    wait_until(removed, 20, "the removal of what was made in the unit's cgroup")


def start_keeper(harness, listener, cgroup=None):
    argv = with_sockets([(listener, "")], [harness.program("berthd"), "--keeper"])
    if cgroup:
        argv = ["sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', cgroup, *argv]
    return harness.start("keeper", *argv, pass_fds=[listener.fileno()])


def start_service(harness, path):
    service = harness.start_service(args=["--keeper-socket", path])
    harness.run_berth("create", WORKSPACE, check=True)
    return service


def own_cgroup(pid):
    return HIERARCHY / next(line for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines()
                            if line.startswith("0::")).removeprefix("0::/")


def test_it_has_a_cgroup_to_divide(harness, listener, cgroup, run_berth):
    keeper = start_keeper(harness, listener[0], cgroup)
    service = start_service(harness, listener[1])
    run_berth("exec", "-w", WORKSPACE, "--id", "long", "--detach", "--", "sleep", "600", check=True)
    assert service.keeper().pid == keeper.pid
    # No process is where controllers are handed down from; commands are beside the keeper.
    assert (cgroup / "cgroup.procs").read_text() == ""
    assert own_cgroup(keeper.pid) == cgroup / "keeper"
    base, = (path for path in cgroup.glob("berth-*"))
    assert [path for path in base.glob("exec-*") if (path / "cgroup.procs").read_text()]
    # The next service finds it.
    service = service.restart()
    assert "long" in run_berth("ps", "-w", WORKSPACE, check=True).stdout and service.keeper().pid == keeper.pid
    run_berth("kill", "-w", WORKSPACE, "long", check=True)
    # It ends by itself, and the next command asks for another one.
    service.stop()
    wait_until(lambda: not keeper.running(), 20, "its end")
    assert not list(cgroup.glob("berth-*"))


def packet(text, number=2, kind=ASK):
    return struct.pack("IIi", kind, 0, number) + text.encode() + b"\0"


NAME = "berth-" + "0" * 32
WRONG = [b"", b"\0", b"\xff" * 3000, packet(""), packet(",,,/"), packet(f"0,1,{NAME}/x,/"), packet(f"0,1,{NAME},x"),
         packet(f"0,1,{NAME},/", number=-1), packet(f"0,1,{NAME},/", number=77), packet(f"0,1,{NAME},/", kind=3),
         packet(f"12345,1,{NAME},/nowhere"), packet(f"0,1,{NAME},/" + "x" * 5000), packet(f"0,1,{NAME},/nowhere")]


def test_what_asks_for_nothing_is_let_go(harness, listener, run_berth):
    """The last has all but a stream. Then one that is meant."""
    keeper = start_keeper(harness, listener[0])
    ours, stream = socket.socketpair()
    for wrong in WRONG:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as one:
            one.connect(str(listener[1]))
            socket.send_fds(one, [wrong], [stream.fileno()] if wrong is not WRONG[-1] else [])
            one.settimeout(20)
            # The end comes as one, or as a reset when there was more than was read.
            try:
                assert one.recv(1) == b""
            except ConnectionResetError:
                pass
    stream.close()
    ours.settimeout(20)
    assert ours.recv(1) == b"", "it has kept none of the streams"
    ours.close()
    service = start_service(harness, listener[1])
    run_berth("exec", "-w", WORKSPACE, "--", "true", check=True)
    assert service.keeper().pid == keeper.pid
    assert keeper.log.count("who has connected is given no keeper") == len(WRONG)
    assert "a service of user 12345 asks for a keeper, and this is user 0: both units need the same User=" in keeper.log


@pytest.mark.parametrize("how", ["nobody listens", "no such socket"])
def test_without_it_one_is_started_here(harness, listener, run_berth, how):
    path = listener[1] if how == "nobody listens" else harness.short / "missing"
    listener[0].close()
    service = start_service(harness, path)
    run_berth("exec", "-w", WORKSPACE, "--", "true", check=True)
    assert f"no keeper of commands is to be had at {path}" in service.log
    assert b"--keep-commands" in Path(f"/proc/{service.keeper().pid}/cmdline").read_bytes()


@pytest.mark.parametrize("kind, count", [(None, 1), (socket.SOCK_STREAM, 1), (socket.SOCK_SEQPACKET, 2),
                                         (socket.SOCK_SEQPACKET, 10**30)])
def test_started_with_something_else(harness, kind, count):
    argv = [harness.program("berthd"), "--keeper"]
    with socket.socket(socket.AF_UNIX, kind or socket.SOCK_DGRAM) as one:
        one.bind(str(harness.short / "other.sock"))
        if kind:
            one.listen()
        with high(one) as moved:
            keeper = harness.start("keeper", *with_sockets([(moved, "")], argv, count=count), pass_fds=[moved.fileno()])
            keeper.expected_status = (1,)
            assert keeper.popen.wait(20) == 1 and "LISTEN_FDS" in keeper.log


def test_started_without_a_socket(harness):
    keeper = harness.start("keeper", harness.program("berthd"), "--keeper")
    keeper.expected_status = (1,)
    assert keeper.popen.wait(20) == 1 and "LISTEN_FDS" in keeper.log

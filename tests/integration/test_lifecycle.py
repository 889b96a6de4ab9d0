"""Workspaces that are stopped and started, that end by themselves, and that many want at once."""

import errno
import os
import time

import pytest

from lib import berthwire as wire
from lib.harness import wait_until

C = wire.CONSTANTS
DETACH, KEEP = C["WIRE_EXEC_DETACH"], C["WIRE_EXEC_KEEP"]
RUNNING, STOPPED = C["WIRE_WORKSPACE_RUNNING"], C["WIRE_WORKSPACE_STOPPED"]
SET_TTL, SET_IDLE, SET_STATE = (C["WIRE_WORKSPACE_SET_" + part] for part in ("TTL", "IDLE", "STATE"))


def connect(service):
    connection = wire.Connection.unix(service.socket, timeout=60)
    connection.upgrade()
    connection.hello()
    return connection


def error_of(connection, name, **values):
    with pytest.raises(wire.CallError) as caught:
        connection.call(name, **values)
    return caught.value.errno


def exists(connection, name=b"w"):
    try:
        connection.call("WORKSPACE_GET", key=name)
        return True
    except wire.CallError as error:
        assert error.errno == errno.ENOENT
        return False


@pytest.fixture
def service(harness):
    return harness.start_service()


@pytest.fixture
def peer(service):
    with connect(service) as connection:
        connection.call("WORKSPACE_CREATE", thread_id=b"w")
        yield connection


def start(peer, id, *argv, flags=DETACH):
    return peer.call("EXEC", workspace=b"w", id=id, argv=list(argv), flags=flags)


def state(peer, to):
    return peer.call("WORKSPACE_SET", key=b"w", valid=SET_STATE, state=to)


# --- stopped ---------------------------------------------------------------------------------

def test_stop_and_start(peer, service):
    verdicts = {name: value for name, value in C.items() if name.startswith("WIRE_VERDICT_")}
    assert start(peer, b"one", b"sleep", b"1000")["verdict"] == verdicts["WIRE_VERDICT_RUNNING"]
    start(peer, b"two", b"sleep", b"1000")
    (service.root / "workspaces" / "w" / "tree" / "file").write_text("kept")
    # A stop that is refused ends nothing.
    assert error_of(peer, "WORKSPACE_SET", key=b"w", valid=SET_STATE, state=STOPPED, revision=7) == errno.EREMCHG
    assert peer.call("EXEC_ATTACH", workspace=b"w", id=b"one")["verdict"] == verdicts["WIRE_VERDICT_RUNNING"]
    stopped = state(peer, STOPPED)
    assert (stopped["state"], stopped["ended"]) == (STOPPED, 2)
    for id in (b"one", b"two"):
        # The same request again is answered with what became of it, and runs nothing.
        again = start(peer, id, b"sleep", b"1000", flags=0)
        assert again["verdict"] == verdicts["WIRE_VERDICT_KILLED"]
        assert b"because its workspace is stopped" in again["text"]
    refused = start(peer, b"three", b"true")
    assert refused["verdict"] == verdicts["WIRE_VERDICT_NOT_STARTED"]
    assert (refused["stage"], refused["error"]) == (C["WIRE_STAGE_WORKSPACE"], errno.ESHUTDOWN)
    assert b"berth start" in refused["text"]
    # Files are there, and can be written.
    root = peer.call("WORKSPACE_OPEN", key=b"w")["node"]
    assert peer.call("LOOKUP", parent=root, name=b"file")["attr"]["size"] == 4
    peer.call("MKDIR", parent=root, name=b"new", mode=0o755)
    assert state(peer, STOPPED)["ended"] == 0
    service = service.restart()
    with connect(service) as peer:
        assert peer.call("WORKSPACE_GET", key=b"w")["state"] == STOPPED
        assert start(peer, b"three", b"true")["error"] == errno.ESHUTDOWN
        assert state(peer, RUNNING)["state"] == RUNNING
        assert start(peer, b"three", b"true", flags=0)["verdict"] == verdicts["WIRE_VERDICT_EXITED"]


# --- ends ------------------------------------------------------------------------------------

@pytest.mark.parametrize("part", [SET_IDLE, pytest.param(SET_TTL, marks=pytest.mark.long)])
def test_a_command_keeps_its_workspace(peer, part):
    start(peer, b"c", b"sleep", b"1000")
    peer.call("WORKSPACE_SET", key=b"w", valid=part, ttl_ms=1, idle_ms=1)
    # It has been looked at, since this one, whose end comes later, is gone.
    peer.call("WORKSPACE_CREATE", thread_id=b"other", ttl_ms=500)
    wait_until(lambda: not exists(peer, b"other"), timeout=60)
    assert exists(peer)
    peer.call("EXEC_KILL", workspace=b"w", id=b"c")
    wait_until(lambda: not exists(peer), timeout=60)


def test_a_mount_keeps_its_workspace(peer, harness, service):
    mount = harness.start_mount(workspace="w")
    peer.call("WORKSPACE_SET", key=b"w", valid=SET_TTL | SET_IDLE, ttl_ms=1, idle_ms=1)
    peer.call("WORKSPACE_CREATE", thread_id=b"other", ttl_ms=500)
    wait_until(lambda: not exists(peer, b"other"), timeout=60)
    (mount.path / "file").write_text("here")
    mount.unmount()
    wait_until(lambda: not exists(peer), timeout=90)


@pytest.mark.long
def test_what_a_command_did_is_a_use(peer):
    """One that nobody waited for, longer than the idle TTL: it counts from its end."""
    peer.call("WORKSPACE_SET", key=b"w", valid=SET_IDLE, idle_ms=4000)
    start(peer, b"c", b"sleep", b"6")
    begin = time.monotonic()
    wait_until(lambda: not exists(peer), timeout=90)
    assert time.monotonic() - begin >= 6 + 4 - 1


# --- many ------------------------------------------------------------------------------------

def test_one_for_a_hundred_callers(service):
    connections = [connect(service) for _ in range(100)]
    tags = [c.request("WORKSPACE_CREATE", thread_id=b"wanted") for c in connections]
    made = [c.reply(tag) for c, tag in zip(connections, tags)]
    assert sum(m["created"] for m in made) == 1
    assert len({m["slot"] for m in made}) == 1
    for connection in connections:
        connection.close()


def make_tree(path, directories, files):
    for i in range(directories):
        os.mkdir(path / str(i))
        for j in range(files):
            (path / str(i) / str(j)).touch()


@pytest.mark.parametrize("directories,files,levels",
                         [(20, 50, 2000), pytest.param(1000, 1000, 100_000, marks=[pytest.mark.long, pytest.mark.timeout(3600)])])
def test_nobody_waits_for_a_tree_that_is_removed(peer, service, directories, files, levels):
    tree = service.root / "workspaces" / "w" / "tree"
    make_tree(tree, directories, files)
    at = os.open(tree, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("d", dir_fd=at)
        below = os.open("d", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.close(at)
    begin = time.monotonic()
    peer.call("WORKSPACE_REMOVE", key=b"w")
    removed = time.monotonic() - begin
    assert error_of(peer, "WORKSPACE_REMOVE", key=b"w") == errno.ENOENT
    assert peer.call("WORKSPACE_CREATE", thread_id=b"w")["created"] == 1
    # A service that ends amid it does not wait either, and the next one goes on.
    service = service.restart()
    with connect(service) as again:
        assert exists(again)
    wait_until(lambda: not os.listdir(service.root / "trash"), timeout=1200, interval=0.1)
    print(f"answered after {removed * 1000:.0f} ms, deleted after {time.monotonic() - begin:.1f} s")
    assert removed < 30


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_hundred_thousand(harness, service):
    """They are made beside the service, as an earlier one would have left them."""
    count = 100_000
    service.kill()
    workspaces = service.root / "workspaces"
    for i in range(count):
        directory = workspaces / f"w{i:06}"
        os.makedirs(directory / "tree")
        (directory / "meta.json").write_text(
            f'{{"version":2,"slot":{i + 1},"thread_id":"w{i:06}","created_at":{{"sec":1,"nsec":0}},'
            f'"state":{1 + i % 2},"revision":1,"idle_ms":0,"expires_ms":0,'
            f'"labels":{{"tenth":"{i % 10}","rare":"{"yes" if i % 10_000 == 7 else "no"}"}}}}')
    begin = time.monotonic()
    service = harness.start_service(root=service.root, listen=service.urls)
    with connect(service) as peer:
        print(f"serves after {time.monotonic() - begin:.2f} s")
        begin = time.monotonic()
        assert peer.call("WORKSPACE_GET", key=b"w099999")["slot"] == count
        print(f"one of them after {time.monotonic() - begin:.3f} s")

        def names(**values):
            after, more, pages = b"", 1, 0
            while more:
                page = peer.call("WORKSPACE_LIST", after=after, **values)
                pages += 1
                for item in page["items"]:
                    after = wire.decode("WORKSPACE", item)["name"]
                    yield after
                more = page["more"]

        for what, expected, values in (
                ("all, first time", count, {}), ("all", count, {}),
                ("rare", 10, {"selectors": [b"rare=yes"]}),
                ("stopped, one tenth", count // 10, {"selectors": [b"tenth=3"], "state": STOPPED})):
            begin = time.monotonic()
            got = list(names(**values))
            print(f"{what}: {time.monotonic() - begin:.3f} s")
            assert len(got) == expected and got == sorted(got)
        begin = time.monotonic()
        peer.call("WORKSPACE_LIST", count=100, after=b"w050000", selectors=[b"tenth=1"])
        print(f"a page of 100 in the middle: {(time.monotonic() - begin) * 1000:.1f} ms")
        print(f"memory: {service.memory() >> 20} MiB")

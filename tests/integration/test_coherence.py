"""What a mount shows is never older than a command that has ended, a close or an fsync."""

import os
import time

import pytest

from lib import agent
from lib.berthwire import Connection
from lib.cached import workspace  # noqa: F401, fixtures
from lib.exec_client import WORKSPACE, ExecClient


def test_what_is_known_costs_nothing(service, start_mount, workspace):
    for number in range(20):
        (workspace / f"d{number % 4}").mkdir(exist_ok=True)
        (workspace / f"d{number % 4}" / f"f{number}").write_bytes(b"x" * number)
    mount = start_mount(service, workspace=WORKSPACE)

    def walk():
        for directory, _, files in os.walk(mount.path):
            for name in files:
                os.stat(os.path.join(directory, name))
            assert not os.path.exists(os.path.join(directory, "missing"))

    walk()
    walk()
    before = mount.stats()
    for number in range(20):
        os.stat(mount.path / f"d{number % 4}" / f"f{number}")
        assert not os.path.exists(mount.path / f"d{number % 4}" / "missing")
    assert mount.stats()["blocking"] == before["blocking"]
    # An open file costs its open; its content is the kernel's.
    for _ in range(3):
        assert (mount.path / "d3" / "f3").read_bytes() == b"xxx"
    after = mount.stats()
    assert after["requests"].get("READ", 0) - before["requests"].get("READ", 0) <= 1


def test_background_changes_are_seen_soon(service, start_mount, workspace):
    mount = start_mount(service, workspace=WORKSPACE)
    (workspace / "f").write_bytes(b"0")
    assert (mount.path / "f").read_bytes() == b"0"
    delays = []
    for number in range(1, 51):
        text = b"%d" % number
        start = time.monotonic()
        # Not by the service, and not waited for by anybody.
        (workspace / "f").write_bytes(text)
        while (mount.path / "f").read_bytes() != text:
            assert time.monotonic() - start < 10
        delays.append(time.monotonic() - start)
    delays.sort()
    print(f"background changes: median {delays[25] * 1e3:.1f} ms, worst {delays[-1] * 1e3:.1f} ms")
    assert delays[25] < 1


def test_a_directory_in_use_keeps_its_path(service, start_mount, workspace):
    """The name is told of as changed, but what it leads to has not."""
    mount = start_mount(service, workspace=WORKSPACE)
    with ExecClient(service.socket) as client:
        for number in range(30):
            client.run(WORKSPACE, ["mkdir", "-p", f"d{number}/e"])
            descriptor = os.open(mount.path / f"d{number}" / "e", os.O_RDONLY | os.O_DIRECTORY)
            try:
                client.run(WORKSPACE, ["sh", "-c", f"touch d{number}/e/f; chmod 700 d{number}/e; mkdir d{number}/g"])
                assert os.readlink(f"/proc/self/fd/{descriptor}") == str(mount.path / f"d{number}" / "e")
            finally:
                os.close(descriptor)


@pytest.mark.parametrize("how", ["close", "fsync"])
def test_another_mount_sees_what_was_closed_or_synced(service, start_mount, workspace, how):
    one, two = (start_mount(service, workspace=WORKSPACE).path for _ in range(2))
    for number in range(300):
        text = b"%06d" % number
        name = f"f{number % 3}"
        agent.seen(two / name)
        with open(one / name, "wb", buffering=0) as file:
            file.write(text)
            if how == "fsync":
                os.fsync(file.fileno())
                assert (two / name).read_bytes() == text
                assert (two / name).stat().st_mtime_ns == os.fstat(file.fileno()).st_mtime_ns
        assert (two / name).read_bytes() == text
        assert name in os.listdir(two)


def test_a_mount_that_does_not_answer_is_not_waited_for_long(service, start_relay, start_mount, workspace):
    """A frozen client is cut off, and by its own clock knows nothing then."""
    relay = start_relay(service)
    mount = start_mount(service, url=relay.url, workspace=WORKSPACE)
    (workspace / "f").write_bytes(b"old")
    assert (mount.path / "f").read_bytes() == b"old"
    relay.stall()
    with ExecClient(service.socket) as client:
        start = time.monotonic()
        call = client.run(WORKSPACE, ["sh", "-c", "printf new > f"])
        assert call.verdict.code == 0
        assert call.verdict.coherence == 0
        assert 1 < time.monotonic() - start < 15
    relay.resume()
    assert (mount.path / "f").read_bytes() == b"new"


def subscribe(service):
    connection = Connection.unix(service.socket, 10)
    connection.upgrade()
    connection.hello()
    connection.request("SUBSCRIBE", flags=0)
    while connection.receive().name != "CHANGES":
        pass
    connection.request("PING", nonce=1)  # asks for a lease
    while connection.receive().name != "PONG":
        pass
    return connection


@pytest.mark.parametrize("goodbye", [False, True])
def test_a_client_that_is_lost_is_waited_for_until_its_lease_is_over(service, workspace, goodbye):
    """It may be answering from its caches: that the connection has ended may be news to it."""
    connection = subscribe(service)
    if goodbye:
        connection.send("GOODBYE", 0, error=0, text=b"")
    connection.close()
    with ExecClient(service.socket) as client:
        start = time.monotonic()
        verdict = client.run(WORKSPACE, ["true"]).verdict
        took = time.monotonic() - start
        assert verdict.code == 0 and verdict.coherence == int(goodbye)
        assert took < 1.5 if goodbye else 2 < took < 15
        # Once it is over, nobody waits.
        start = time.monotonic()
        client.run(WORKSPACE, ["true"])
        assert time.monotonic() - start < 1.5


def test_names_of_nothing_are_forgotten_with_all_else(service, start_mount, workspace, run_berth):
    """Which is when rules change, or more than can be told."""
    mount = start_mount(service, workspace=WORKSPACE)
    with ExecClient(service.socket) as client:
        for number in range(2):
            name = f"f{number}"
            (workspace / name).touch()
            run_berth("visibility", WORKSPACE, "--add", f"hidden:{name}", check=True)
            assert not os.path.exists(mount.path / name)
            run_berth("visibility", WORKSPACE, "--clear", check=True)
            assert client.run(WORKSPACE, ["true"]).verdict.coherence == 1
            assert os.path.exists(mount.path / name), number

"""Services that lie, in a joined mount with honest ones: these go on as if the others were not there."""

import bisect
import contextlib
import json
import os
import random
import socket
import stat
import threading
import time

import pytest

from lib.berthwire import CONSTANTS, Connection, encode, frame
from lib.harness import wait_until
from lib.joined import SOON, berth, configure, join, members, until_state, within  # noqa: F401, fixtures
from lib.peer_service import PeerService

SLOT = 1 << 40


class LyingMember(PeerService):
    """It has all workspaces that are asked for, lists `names`, and says that it is `service_id`."""

    def __init__(self, path, service_id=b"l" * 16, names=()):
        self.service_id, self.names, self.greeted = service_id, sorted(names), 0
        super().__init__(path)

    def answer(self, wire, got):
        directory = {**self.attr(SLOT | 1, stat.S_IFDIR | 0o755), "nlink": 2}
        if got.name == "HELLO":
            self.greeted += 1
            wire.send("WELCOME", got.tag, version=1, max_payload=0x400000, max_calls=64, window=0x100000,
                      features=self.features, agent=b"liar", service_id=self.service_id)
        elif got.name == "WORKSPACE_LIST":
            rest = self.names[bisect.bisect(self.names, got["after"]):]
            items = [encode("WORKSPACE", slot=1, thread_id=name, name=name) for name in rest[:got["count"]]]
            wire.send("WORKSPACES", got.tag, more=len(rest) > len(items), items=items)
        elif got.name == "WORKSPACE_OPEN":
            wire.send("WORKSPACE_ROOT", got.tag, node=1, attr=directory, slot=1, thread_id=got["key"], name=got["key"])
        elif got.name == "GETATTR":
            wire.send("ATTRS", got.tag, attr=directory)
        else:
            super().answer(wire, got)


@pytest.fixture
def liar(harness):
    started = []

    def start(kind=LyingMember, **how):
        started.append(kind(harness.short / f"liar{len(started)}.sock", **how))
        return started[-1]
    yield start
    for service in started:
        service.close()


def service_id(service):
    with Connection.unix(service.url.removeprefix("unix:")) as wire:
        wire.upgrade()
        return wire.hello()["service_id"]


def test_one_that_says_it_is_another(join, start_service, liar, berth):
    """It comes first, and keeps nobody out; nor has it the numbers of the one that it says it is."""
    honest = start_service()
    berth("--url", honest.url, "create", "w", check=True)
    lies = liar(service_id=service_id(honest), names=[b"other"])
    mount = join(liar=lies, honest=honest, options=["cache=no"])
    for name in ("liar", "honest"):
        until_state(mount, name, "connected")
    assert {"w", "other"} <= set(os.listdir(mount.path))
    (mount.path / "w@honest" / "f").write_text("x")
    numbers = [os.stat(mount.path / name).st_ino for name in ("w@honest", "w@liar")]
    assert numbers[0] != numbers[1]
    assert numbers[0] >> 40 != numbers[1] >> 40
    mount.unmount()
    # Whoever comes first, and whether the liar is there or not.
    mount = join(honest=honest, other="unix:/nowhere", options=["cache=no"])
    assert os.stat(mount.path / "w").st_ino == numbers[0]
    assert berth("exec", "--", "cat", "f", cwd=mount.path / "w", check=True).stdout == "x"


def cut(wire):
    with contextlib.suppress(OSError):
        wire.sock.shutdown(socket.SHUT_RDWR)


class Turncoat(LyingMember):
    """Another service at each connection, which does not last."""

    def answer(self, wire, got):
        if got.name == "HELLO":
            self.service_id = os.urandom(16)
        super().answer(wire, got)
        if got.name == "HELLO":
            threading.Timer(0.05, cut, [wire]).start()


def test_one_that_is_another_at_each_connection(join, start_service, liar, berth):
    """It is replaced by what it says it is now, and then has to wait."""
    honest, lies = start_service(), liar(Turncoat)
    berth("--url", honest.url, "create", "w", check=True)
    mount = join(liar=lies, honest=honest, options=["cache=no"])
    wait_until(lambda: "another service answers at each" in members(mount)["liar"].get("why", ""), what="it is noticed")
    seen = lies.greeted
    assert seen < 8
    for _ in range(10):
        assert within(SOON, os.listdir, mount.path) == ["w"]
        within(1, (mount.path / "w" / "f").write_text, "x")
        time.sleep(0.05)
    assert lies.greeted == seen
    assert len(members(mount)) == 2


class Endless(LyingMember):
    """It lists workspaces for ever."""
    pages = begun = 0

    def answer(self, wire, got):
        if got.name == "WORKSPACE_LIST":
            self.pages += 1
            self.begun += not got["after"]
            name = b"n%09d" % self.pages
            wire.send("WORKSPACES", got.tag, more=1, items=[encode("WORKSPACE", slot=self.pages, thread_id=name, name=name)])
        else:
            super().answer(wire, got)


class Random(LyingMember):
    """Other numbers in each answer, and changes of files that are not its own."""

    def __init__(self, path, **how):
        super().__init__(path, names=[b"w", b"x"], **how)

    def attr(self, ino, mode):
        return {**super().attr(random.getrandbits(64), mode), "generation": random.getrandbits(32)}

    def answer(self, wire, got):
        if got.name == "SUBSCRIBE":
            for _ in range(20):
                items = [encode("CHANGE", ino=random.choice([0, 1, SLOT | 1, SLOT | 2, random.getrandbits(64)]), generation=1,
                                kinds=random.getrandbits(8), name=random.choice([b"", b"w", b"f", b"a/b", b".."]))
                         for _ in range(50)]
                wire.send("CHANGES", got.tag, position=random.getrandbits(63), items=items)
        else:
            super().answer(wire, got)


class Stalling(LyingMember):
    """It stops in the middle of an answer."""

    def answer(self, wire, got):
        if got.name in ("WORKSPACE_LIST", "WORKSPACE_OPEN", "STATFS"):
            wire.send_raw(frame("WORKSPACES", got.tag, b"half", length=1 << 20))
        else:
            super().answer(wire, got)


class Flapping(LyingMember):
    """It greets, and ends the connection at the first question."""

    def answer(self, wire, got):
        if got.name in ("HELLO", "PING"):
            super().answer(wire, got)
        else:
            cut(wire)


class Noise(LyingMember):
    """Bytes that are no frames."""

    def answer(self, wire, got):
        if got.name == "HELLO":
            super().answer(wire, got)
        else:
            wire.send_raw(os.urandom(4096))


def test_others_go_on(join, start_service, liar, berth):
    honest = start_service()
    berth("--url", honest.url, "create", "w", check=True)
    kinds = [Endless, Random, Stalling, Flapping, Noise]
    liars = {kind.__name__: liar(kind) for kind in kinds}
    for service in liars.values():
        service.features = CONSTANTS["WIRE_FEATURE_CHANGES"]
    mount = join(**{"A": honest, **liars}, options=["timeout=2"])
    pid = json.loads(os.getxattr(mount.path, "user.berth.mount"))["stats"]["pid"]
    until_state(mount, "A", "connected")

    def pages():
        return int(open(f"/proc/{pid}/statm", encoding="ascii").read().split()[1])

    first, asking = pages(), []

    def ask(call, *arguments):
        asking.append(threading.Thread(target=call, args=arguments))
        asking[-1].start()

    for i in range(12):
        (mount.path / "w" / "f").write_text(str(i))
        assert within(1, (mount.path / "w" / "f").read_text) == str(i)
        ask(os.listdir, mount.path)
        for name in liars:
            ask(os.path.exists, mount.path / f"x@{name}")
        time.sleep(0.1)
    assert "w" in within(2 * SOON, os.listdir, mount.path)
    assert berth("exec", "--", "cat", "f", cwd=mount.path / "w", check=True).stdout == "11"
    assert liars["Endless"].begun <= 3, "listings that go on are shared"
    assert liars["Flapping"].greeted < 60, "it is connected more slowly"
    assert (pages() - first) * 4096 < 64 << 20
    state = {name: member["state"] for name, member in members(mount).items()}
    assert state["A"] == "connected", state
    for thread in asking:
        thread.join(20)


def test_many_workspaces(join, liar):
    """Listed in bounded time, with names that clash."""
    names = [b"w%05d" % i for i in range(10000)]
    one, other = (liar(names=names) for _ in range(2))
    mount = join(one=one, other=other, options=["cache=no"])
    for name in ("one", "other"):
        until_state(mount, name, "connected")
    listed = within(8, os.listdir, mount.path)
    assert len(listed) == len(set(listed)) == 20000 and {"w00000", "w09999@other"} <= set(listed)

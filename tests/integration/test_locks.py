"""Locks: flock(), fcntl()'s and those of open file descriptions, between processes of one mount, of
two mounts, and beside the files. What is expected is first shown on a local directory."""

import errno
import functools
import inspect
import json
import os
import signal
import sqlite3
import subprocess
import time
from fcntl import LOCK_EX, LOCK_NB, LOCK_SH, LOCK_UN, lockf

import pytest

from lib.harness import REPOSITORY, wait_until
from lib.lock_peer import (GETLK, OFD_GETLK, OFD_SETLK, OFD_SETLKW, RD, SETLK, SETLKW, UN, WR,
                           LockPeer)
from lib.processes import name_of, processes_with

PYTHON = ("/usr/bin/python3", "-I", "-S")
PEER = REPOSITORY / "tests" / "lib" / "lock_peer.py"
WOULD_BLOCK = errno.EAGAIN


class Place:
    """One file as two sides see it, each a directory or "exec" (`berth exec` in the workspace)."""

    def __init__(self, harness, label, sides, name):
        self.harness, self.label, self.sides, self.name = harness, label, sides, name
        self.peers = []

    def peer(self, side):
        where = self.sides[side]
        word = f"peer-{time.monotonic_ns()}"
        if where == "exec":
            # Its text, since no command sees where it lies.
            argv = [self.harness.program("berth"), "exec", "-w", "demo", "-i", "--", *PYTHON, "-c",
                    PEER.read_text(), self.name, word]
            env = self.harness.services[-1].client_env()
        else:
            argv, env = [*PYTHON, PEER, where / self.name, word], self.harness.env
        process = subprocess.Popen([str(word) for word in argv], stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, env=env, cwd=self.harness.directory)
        self.peers.append(process)
        return LockPeer(process, word)

    def open(self, side, flags=os.O_RDWR | os.O_CREAT):
        peer = self.peer(side)
        peer("open", "a", flags)
        return peer

    def close(self):
        for process in self.peers:
            process.kill()
            process.wait(20)
            process.stdin.close()
            process.stdout.close()


def tree(service, name="demo"):
    return service.root / "workspaces" / name / "tree"


def places(harness):
    """A local directory first: what fails there is wrong in the test."""
    local = harness.new_path("local")
    local.mkdir()
    service = harness.start_service()
    harness.run_berth("create", "demo", check=True)
    one, two = (harness.start_mount(service).path / "demo" for _ in range(2))
    sides = {
        "a local directory": (local, local),
        "one mount": (one, one),
        "two mounts": (one, two),
        "a mount and beside the files": (one, tree(service)),
        "beside the files and a mount": (tree(service), two),
        "a mount and berth exec": (one, "exec"),
    }
    return [Place(harness, label, pair, f"f{i}") for i, (label, pair) in enumerate(sides.items())]


# Where all that takes part is: both drivers, the service, a command's kernel.
FARTHEST = ("two mounts", "a mount and berth exec")


def everywhere(test):
    """Runs test(place, …) in each of the places; before a merge in the farthest."""
    @functools.wraps(test)
    def wrapper(harness, fuse_works, where, **parameters):
        for place in places(harness):
            if where != "everywhere" and place.label not in FARTHEST:
                continue
            try:
                test(place, **parameters)
            except BaseException as error:
                raise AssertionError(f"between the two sides of: {place.label}") from error
            finally:
                place.close()
    signature = inspect.signature(test)
    own = [p for p in signature.parameters.values() if p.name != "sides"]
    fixtures = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD)
                for name in ("harness", "fuse_works", "where")]
    wrapper.__signature__ = signature.replace(parameters=[*fixtures, *own])
    del wrapper.__wrapped__
    return pytest.mark.parametrize("where", ["farthest", pytest.param("everywhere", marks=pytest.mark.long)])(wrapper)


# --- what excludes what --------------------------------------------------------------------

@everywhere
def test_flock(sides):
    one, two = sides.open(0), sides.open(1)
    one("flock", "a", LOCK_EX)
    assert two.refused("flock", "a", LOCK_EX | LOCK_NB) == WOULD_BLOCK
    assert two.refused("flock", "a", LOCK_SH | LOCK_NB) == WOULD_BLOCK
    one("flock", "a", LOCK_SH)  # a downgrade
    two("flock", "a", LOCK_SH | LOCK_NB)
    assert two.refused("flock", "a", LOCK_EX | LOCK_NB) == WOULD_BLOCK
    two("flock", "a", LOCK_UN)
    one("flock", "a", LOCK_EX | LOCK_NB)  # an upgrade
    one("flock", "a", LOCK_UN)
    two("flock", "a", LOCK_EX | LOCK_NB)


@everywhere
def test_flock_needs_no_access(sides):
    sides.open(0)
    one, two = sides.open(0, os.O_RDONLY), sides.open(1, os.O_RDONLY)
    one("flock", "a", LOCK_EX)
    assert two.refused("flock", "a", LOCK_SH | LOCK_NB) == WOULD_BLOCK


@pytest.mark.parametrize("command", [SETLK, OFD_SETLK], ids=["posix", "ofd"])
@everywhere
def test_ranges(sides, command):
    one, two = sides.open(0), sides.open(1)
    one.lock(command, "a", WR, 10, 10)
    assert two.refused("lock", command, "a", WR, 19, 5) == WOULD_BLOCK
    assert two.refused("lock", command, "a", RD, 0, 0) == WOULD_BLOCK
    two.lock(command, "a", WR, 20, 0)
    one.lock(command, "a", RD, 10, 10)
    two.lock(command, "a", RD, 10, 10)
    assert one.refused("lock", command, "a", WR, 12, 1) == WOULD_BLOCK
    two.lock(command, "a", UN, 0, 0)
    one.lock(command, "a", WR, 12, 1)
    one.lock(command, "a", UN, 14, 2)  # in the middle: three ranges are left
    two.lock(command, "a", WR, 14, 2)
    assert two.refused("lock", command, "a", RD, 12, 1) == WOULD_BLOCK
    two.lock(command, "a", RD, 13, 1)
    assert two.refused("lock", command, "a", WR, 16, 1) == WOULD_BLOCK
    one.lock(command, "a", UN, 0, 0)
    two.lock(command, "a", WR, 0, 0)


@pytest.mark.parametrize("get, command", [(GETLK, SETLK), (OFD_GETLK, OFD_SETLK)],
                         ids=["posix", "ofd"])
@everywhere
def test_who_is_in_the_way(sides, get, command):
    one, two = sides.open(0), sides.open(1)
    assert two.lock(get, "a", WR)[0] == UN
    one.lock(command, "a", RD, 100, 50)
    one.lock(command, "a", WR, 200, 0)
    kind, _, start, length, pid = two.lock(get, "a", WR)
    assert (kind, start, length) == (RD, 100, 50)
    same_machine_and_mount = sides.sides[0] == sides.sides[1]
    if command == OFD_SETLK and same_machine_and_mount:
        assert pid in (-1, one("pid"))  # a mount knows it; the kernel says -1
    elif same_machine_and_mount:
        assert pid == one("pid")
    kind, _, start, length, _ = two.lock(get, "a", RD)
    assert (kind, start, length) == (WR, 200, 0)
    assert one.lock(get, "a", WR)[0] == UN, "one's own are not in the way"


@everywhere
def test_a_write_lock_needs_a_descriptor_to_write(sides):
    sides.open(0)
    one, two = sides.open(0, os.O_RDONLY), sides.open(1, os.O_WRONLY)
    assert one.refused("lock", SETLK, "a", WR, 0, 0) == errno.EBADF
    assert two.refused("lock", SETLK, "a", RD, 0, 0) == errno.EBADF
    one.lock(SETLK, "a", RD, 0, 1)
    two.lock(SETLK, "a", WR, 1, 0)


@everywhere
def test_one_process_with_two_descriptors_is_one_owner(sides):
    one, two = sides.open(0), sides.open(1)
    one("open", "b", os.O_RDONLY)
    one.lock(SETLK, "b", RD, 0, 10)
    one.lock(SETLK, "a", WR, 0, 10)
    assert two.refused("lock", SETLK, "a", RD, 9, 1) == WOULD_BLOCK
    # Descriptions are owners of their own.
    one.lock(OFD_SETLK, "a", RD, 20, 10)
    assert one.refused("lock", OFD_SETLK, "a", WR, 0, 1) == WOULD_BLOCK


# --- their end -----------------------------------------------------------------------------

@everywhere
def test_closing_any_descriptor_ends_a_process_s_locks(sides):
    one, two = sides.open(0), sides.open(1)
    one("open", "b", os.O_RDONLY)
    one.lock(SETLK, "a", WR)
    assert two.refused("lock", SETLK, "a", WR, 0, 0) == WOULD_BLOCK
    one("close", "b")
    two.lock(SETLK, "a", WR)


@pytest.mark.parametrize("kind", ["ofd", "flock"])
@everywhere
def test_the_last_close_ends_a_description_s_locks(sides, kind):
    def take(peer):
        if kind == "flock":
            return peer("flock", "a", LOCK_EX | LOCK_NB)
        return peer.lock(OFD_SETLK, "a", WR)

    def free():
        try:
            take(two)
        except OSError as error:
            assert error.errno == WOULD_BLOCK
            return False
        return True
    one, two = sides.open(0), sides.open(1)
    one("dup", "a", "b")
    take(one)
    one("close", "a")
    assert not free()
    child = one("fork")
    one("close", "b")
    assert not free()
    one("reap", child)
    # Within one mount at once; the kernel tells the driver of the last close on its own time.
    wait_until(free, what="the lock is free")


@everywhere
def test_a_killed_process_holds_nothing(sides):
    one, two = sides.open(0), sides.open(1)
    one("flock", "a", LOCK_EX)
    one.lock(SETLK, "a", WR)
    two.begin("flock", "a", LOCK_EX)
    assert not two.ready(0.2)
    one.close()
    two.end()
    # By `berth exec`, its process may live a little longer than the caller.
    two.begin("lock", SETLKW, "a", WR, 0, 0)
    two.end()


@everywhere
def test_a_fork_does_not_inherit_locks(sides):
    one, two = sides.open(0), sides.open(1)
    one.lock(SETLK, "a", WR)
    one("reap", one("fork"))  # its exit closes its copies
    assert two.refused("lock", SETLK, "a", WR, 0, 0) == WOULD_BLOCK


# --- files that are open for reading: the kernel tells a mount of the last close alone ------

def free(peer, start=0, length=0):
    """Whether a write lock is to be had, which is given up again."""
    if peer.refused("lock", SETLK, "a", WR, start, length) is None:
        peer.lock(SETLK, "a", UN, start, length)
        return True
    return False


def opened_for_reading(sides):
    """A process that has a file open for reading, which nobody here had open to write."""
    one = sides.open(0)
    one("close", "a")
    one("open", "a", os.O_RDONLY)
    return one


@everywhere
def test_the_close_of_what_was_read_ends_locks(sides):
    one = opened_for_reading(sides)
    two = sides.open(1)
    one.lock(SETLK, "a", RD)
    assert not free(two)
    one("close", "a")
    wait_until(lambda: free(two), what="the lock is free")
    # Of a file in which somebody has locked each close is told.
    one("open", "a", os.O_RDONLY)
    one("dup", "a", "b")
    one.lock(SETLK, "a", RD)
    child = one("fork")
    assert not free(two)
    one("close", "b")
    assert free(two)
    # A description's last as long as it does.
    one.lock(OFD_SETLK, "a", RD)
    one("close", "a")
    assert not free(two)
    one("reap", child)
    wait_until(lambda: free(two), what="the lock is free")


@everywhere
def test_a_description_s_locks_outlive_who_read(sides):
    one = opened_for_reading(sides)
    two = sides.open(1)
    one("dup", "a", "b")
    one.lock(OFD_SETLK, "a", RD)
    one("fork")
    one("close", "a")
    one("close", "b")
    assert not free(two)
    one.process.kill()
    one.process.wait(20)
    # Its child waits for a pipe that ends with it, and ends as well.
    wait_until(lambda: free(two), what="the lock is free")


@everywhere
def test_a_lock_by_another_descriptor_stays(sides):
    one = opened_for_reading(sides)
    two = sides.open(1)
    one.lock(SETLK, "a", RD, 0, 10)
    child = one("fork")
    one("close", "a")
    one("open", "b", os.O_RDONLY)
    one.lock(SETLK, "b", RD, 20, 10)
    one("reap", child)  # the last close of the first description
    for _ in range(20):
        assert not free(two, 20, 10)
        time.sleep(0.005)
    one("close", "b")
    assert free(two)


def test_a_lock_under_way_by_another_descriptor_stays(service, start_relay, start_mount, run_berth, harness):
    run_berth("create", "demo", check=True)
    far = start_mount(service, url=start_relay(service, delay=150).url).path / "demo"
    place = Place(harness, "", (far, tree(service)), "f")
    try:
        two = place.open(1)
        one = place.peer(0)
        one("open", "a", os.O_RDONLY)
        one.lock(SETLK, "a", RD, 0, 10)
        child = one("fork")
        one("close", "a")
        one("open", "b", os.O_RDONLY)
        one.begin("lock", SETLK, "b", RD, 20, 10)
        assert not one.ready(0.05)
        os.kill(child, signal.SIGKILL)  # the last close of the first description
        one.end()
        os.stat(far)
        assert not free(two, 20, 10)
    finally:
        place.close()


LATER = {
    "a copy": (lambda one: one("dup", "a", "b"), lambda one: one("close", "b"), "a"),
    "a child's copy": (lambda one: one("fork"), lambda one: one("close", "a"), None),
    "another descriptor": (lambda one: one("open", "b", os.O_RDONLY), lambda one: one("close", "b"), "a"),
    "a lock to write": (lambda one: one("open", "b", os.O_RDWR), lambda one: one("close", "a"), "b"),
}


@pytest.mark.matrix
@pytest.mark.parametrize("case", LATER)
@everywhere
def test_the_first_lock_in_a_file_that_was_open_for_reading(sides, case):
    """What is not as locally, and how it ends: semantics.md, Locks."""
    before, close, holder = LATER[case]
    one = opened_for_reading(sides)
    child = before(one)
    two = sides.open(1)
    if holder == "b":
        one.lock(SETLK, "b", WR)
    else:
        one.lock(SETLK, "a", RD)
    assert not free(two)
    close(one)
    if not sides.label.startswith(("one mount", "two mounts", "a mount")):
        assert free(two)
        return
    assert not free(two)
    if holder:
        one("close", holder)
    else:
        one("reap", child)
    wait_until(lambda: free(two), what="the lock is free")


# --- waiting -------------------------------------------------------------------------------

WAITS = {
    "flock": (("flock", "a", LOCK_EX), ("flock", "a", LOCK_UN)),
    "posix": (("lock", SETLKW, "a", WR, 5, 5), ("lock", SETLK, "a", UN, 0, 0)),
    "ofd": (("lock", OFD_SETLKW, "a", WR, 5, 5), ("lock", OFD_SETLK, "a", UN, 0, 0)),
}


@pytest.mark.parametrize("kind", WAITS)
@everywhere
def test_waiting_ends_when_the_lock_is_given_up(sides, kind):
    lock, unlock = WAITS[kind]
    one, two = sides.open(0), sides.open(1)
    one(*lock)
    two.begin(*lock)
    assert not two.ready(0.1)
    one(*unlock)
    two.end()
    one.begin(*lock)
    assert not one.ready(0.1)
    two(*unlock)
    one.end()


def outer_pid(peer):
    """Its process ID here; peer("pid") is that of the namespace in which it runs."""
    found, = [pid for pid in processes_with(peer.word) if name_of(pid).startswith("python")]
    return found


@pytest.mark.parametrize("kind", WAITS)
@everywhere
def test_a_signal_ends_waiting_and_nothing_is_held(sides, kind):
    lock, unlock = WAITS[kind]
    one, two = sides.open(0), sides.open(1)
    one(*lock)
    two.begin(*lock)
    assert not two.ready(0.1)
    os.kill(outer_pid(two), signal.SIGUSR1)
    with pytest.raises(InterruptedError):
        two.end()
    one(*unlock)
    one(*lock)  # nobody is in the way
    one(*unlock)
    two(*lock)


@everywhere
def test_a_wait_that_is_killed_holds_nothing(sides):
    one, two, three = sides.open(0), sides.open(1), sides.open(0)
    one("flock", "a", LOCK_EX)
    two.begin("flock", "a", LOCK_EX)
    assert not two.ready(0.2)
    os.kill(outer_pid(two), signal.SIGKILL)
    two.process.wait(20)
    one("flock", "a", LOCK_UN)
    three("flock", "a", LOCK_EX | LOCK_NB)


@everywhere
def test_an_upgrade_waits_for_the_other_reader(sides):
    one, two = sides.open(0), sides.open(1)
    for peer in (one, two):
        peer.lock(SETLK, "a", RD)
    one.begin("lock", SETLKW, "a", WR, 0, 0)
    assert not one.ready(0.1)
    two.lock(SETLK, "a", UN)
    one.end()
    assert two.refused("lock", SETLK, "a", RD, 0, 0) == WOULD_BLOCK


@everywhere
def test_many_wait_and_each_gets_its_turn(sides):
    peers = [sides.open(i % 2) for i in range(4)]
    peers[0]("flock", "a", LOCK_EX)
    for peer in peers[1:]:
        peer.begin("flock", "a", LOCK_EX)
    waiting = peers[1:]
    holder = peers[0]
    while waiting:
        assert not any(peer.ready(0.05) for peer in waiting)
        holder("flock", "a", LOCK_UN)
        ready = wait_until(lambda: [peer for peer in waiting if peer.ready(0)], what="a turn")
        assert len(ready) == 1
        holder = ready[0]
        holder.end()
        waiting.remove(holder)


# --- the option ----------------------------------------------------------------------------

def test_local_locks_hold_on_this_machine_alone(service, start_mount, run_berth, harness):
    run_berth("create", "demo", check=True)
    one, two = (start_mount(service, options="locks=local") for _ in range(2))
    place = Place(harness, "", (one.path / "demo", two.path / "demo"), "f")
    try:
        first, same, other = place.open(0), place.open(0), place.open(1)
        first("flock", "a", LOCK_EX)
        first.lock(SETLK, "a", WR)
        assert same.refused("flock", "a", LOCK_EX | LOCK_NB) == WOULD_BLOCK
        assert same.refused("lock", SETLK, "a", WR, 0, 0) == WOULD_BLOCK
        other("flock", "a", LOCK_EX | LOCK_NB)
        other.lock(SETLK, "a", WR)
        assert not [name for name in one.stats()["requests"] if name.startswith("LOCK")]
    finally:
        place.close()


@pytest.mark.parametrize("locks", ["server", "local"])
def test_closing_what_was_read_asks_nobody(service, start_mount, run_berth, locks):
    run_berth("create", "demo", check=True)
    mount = start_mount(service, options=f"locks={locks}")
    path = mount.path / "demo" / "f"
    path.write_bytes(b"x")

    def flushes(mode):
        before = mount.stats()["kernel"].get("FLUSH", 0)
        for _ in range(3):  # from the service, and from what is known
            with open(path, mode, buffering=0) as file:
                file.read()
        return mount.stats()["kernel"].get("FLUSH", 0) - before
    assert flushes("rb") == 0
    assert flushes("r+b") == 3
    asked = 3 if locks == "server" else 0  # where who closes may be who has locked
    with open(path, "r+b"):
        assert flushes("rb") == asked
    assert flushes("rb") == 0
    with open(path, "rb") as file:
        lockf(file, LOCK_SH)
    assert flushes("rb") == asked


def test_local_locks_of_a_process_end_with_any_descriptor_of_the_file(service, start_mount, run_berth, harness):
    run_berth("create", "demo", check=True)
    point = start_mount(service, options="locks=local").path / "demo"
    place = Place(harness, "", (point, point), "f")
    try:
        one, two = place.open(0), place.open(1)
        one("open", "b", os.O_RDONLY)
        one.lock(SETLK, "a", WR)
        assert two.refused("lock", SETLK, "a", WR, 0, 0) == WOULD_BLOCK
        one("close", "b")
        two.lock(SETLK, "a", WR)
    finally:
        place.close()


def test_the_option_takes_no_other_word(harness):
    result = harness.run([harness.program("berthfs"), "/nowhere", "-o", "locks=none"])
    assert result.returncode == 2
    assert "expected locks=server or locks=local" in result.stderr


# --- bounds --------------------------------------------------------------------------------

WAITERS = r"""
import fcntl, os, sys, threading
path, count = sys.argv[1], int(sys.argv[2])
results = []
def wait():
    with open(path, "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            results.append(0)
        except OSError as error:
            results.append(error.errno)
            os.write(1, b"%d\n" % error.errno)
threads = [threading.Thread(target=wait) for _ in range(count)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
os.write(1, b"turns %d\n" % results.count(0))
"""


def test_those_who_wait_hold_up_nobody(service, start_mount, run_berth, harness):
    """As many as may wait, and more, which get ENOLCK: other work of the same mount goes on."""
    run_berth("create", "demo", check=True)
    path = start_mount(service).path / "demo"
    place = Place(harness, "", (path, path), "f")
    try:
        holder = place.open(0)
        holder("flock", "a", LOCK_EX)
        waiters = subprocess.Popen([*PYTHON, "-c", WAITERS, str(path / "f"), "260"],
                                   stdout=subprocess.PIPE, env=harness.env, text=True)
        place.peers.append(waiters)
        waiters.stdin = waiters.stdout
        refused = [int(waiters.stdout.readline()) for _ in range(4)]
        assert refused == [errno.ENOLCK] * 4
        assert json.loads(run_berth("status", "--json").stdout)["service"]["lock_waits"] == 256
        for i in range(50):
            (path / f"other{i}").write_bytes(b"text")
            assert (path / f"other{i}").read_bytes() == b"text"
        other = place.peer(1)
        other("open", "a", os.O_RDWR)
        other.lock(SETLK, "a", WR)
        holder("flock", "a", LOCK_UN)
        assert waiters.stdout.readline() == "turns 256\n"
        assert json.loads(run_berth("status", "--json").stdout)["service"]["lock_waits"] == 0
    finally:
        place.close()


# --- the connection is lost ----------------------------------------------------------------

@pytest.fixture
def shaky(service, start_relay, start_mount, run_berth, harness):
    """A mount through a relay, another without, and the file beside them."""
    run_berth("create", "demo", check=True)
    relay = start_relay(service)
    mount = start_mount(service, url=relay.url, options="timeout=3")
    other = start_mount(service)
    place = Place(harness, "", (mount.path / "demo", other.path / "demo"), "f")
    yield relay, mount, place
    place.close()


def reconnected(mount, count=1):
    wait_until(lambda: mount.stats()["reconnects"] >= count and mount.stats()["connected"],
               what="the connection is back", timeout=20)
    os.stat(mount.path / "demo")  # waits until the locks have been taken again


def test_locks_are_taken_again_after_a_cut(shaky):
    relay, mount, place = shaky
    one, two, other = place.open(0), place.open(0), place.open(1)
    one("flock", "a", LOCK_EX)
    one.lock(SETLK, "a", WR, 0, 10)
    one.lock(SETLK, "a", RD, 20, 10)
    two.lock(OFD_SETLK, "a", WR, 100, 0)
    for cut in range(1, 3):
        relay.cut()
        reconnected(mount, cut)
        # Nobody of this mount did anything meanwhile: they are held all the same.
        assert other.refused("flock", "a", LOCK_SH | LOCK_NB) == WOULD_BLOCK
        assert other.refused("lock", SETLK, "a", RD, 9, 1) == WOULD_BLOCK
        assert other.refused("lock", SETLK, "a", WR, 29, 1) == WOULD_BLOCK
        assert other.refused("lock", SETLK, "a", RD, 1000, 1) == WOULD_BLOCK
        other.lock(SETLK, "a", RD, 20, 10)
        other.lock(SETLK, "a", WR, 10, 10)
        other.lock(SETLK, "a", UN)
        assert one("write", "a", "mine") == 4
    stats = mount.stats()
    assert (stats["locks"], stats["locks_lost"]) == (3, 0)
    one("close", "a")
    other("flock", "a", LOCK_EX)
    other.lock(SETLK, "a", WR, 0, 50)
    # The answer to the driver comes by a longer way than the lock to the other mount.
    wait_until(lambda: mount.stats()["locks"] == 1, 10, "the note of what one had locked to go")


def test_a_connection_that_the_service_has_not_given_up_yet_does_not_keep_the_locks(shaky):
    """The network is gone without a word: the old connection still holds the lock."""
    relay, mount, place = shaky
    one, other = place.open(0), place.open(1)
    one.lock(SETLK, "a", WR)
    relay.half_open()
    with pytest.raises((OSError, TimeoutError)):  # until the driver gives up the old one
        one.begin("write", "a", "x")
        one.end(0.1)
        raise TimeoutError
    reconnected(mount)
    assert mount.stats()["locks_lost"] == 0
    assert other.refused("lock", SETLK, "a", RD, 0, 0) == WOULD_BLOCK


def test_a_lock_that_somebody_else_got_is_lost(shaky, run_berth, service):
    relay, mount, place = shaky
    one, two, other = place.open(0), place.open(0), place.open(1)
    one.lock(SETLK, "a", WR)
    relay.refuse()
    service.kill()
    wait_until(lambda: not mount.stats()["connected"], what="the connection is lost")
    service.restart()
    other.lock(SETLK, "a", WR)
    relay.refuse(False)
    reconnected(mount)
    assert one.refused("write", "a", "x") == errno.EIO
    assert one.refused("read", "a") == errno.EIO
    assert one.refused("lock", SETLK, "a", RD, 0, 0) == errno.EIO
    assert two("write", "a", "others") == 6
    assert mount.stats()["locks_lost"] == 1
    assert "LOST with the connection: locks of 1 owner" in run_berth("status").stdout
    assert 'a lock on "f" was lost with the connection' in mount.log
    one("close", "a")
    one("open", "a", os.O_RDWR)
    assert one("read", "a") == "others"
    assert one.refused("lock", SETLK, "a", WR, 0, 0) == WOULD_BLOCK
    other.lock(SETLK, "a", UN)
    one.lock(SETLK, "a", WR)


def test_waiting_goes_on_after_cuts(shaky):
    relay, mount, place = shaky
    one, other = place.open(0), place.open(1)
    other("flock", "a", LOCK_EX)
    one.begin("flock", "a", LOCK_EX)
    assert not one.ready(0.1)
    for cut in range(1, 4):
        relay.cut()
        reconnected(mount, cut)
        assert not one.ready(0.1)
    other("flock", "a", LOCK_UN)
    one.end()
    assert other.refused("flock", "a", LOCK_EX | LOCK_NB) == WOULD_BLOCK


def test_unlocking_does_not_wait_for_a_service_that_is_down(shaky):
    relay, mount, place = shaky
    one, other = place.open(0), place.open(1)
    one.lock(SETLK, "a", WR)
    one("flock", "a", LOCK_EX)
    relay.refuse()
    relay.cut()
    wait_until(lambda: not mount.stats()["connected"], what="the connection is lost")
    one.lock(SETLK, "a", UN, 0, 10)
    one.begin("flock", "a", LOCK_UN)
    one.end(2)
    relay.refuse(False)
    reconnected(mount)
    other("flock", "a", LOCK_EX | LOCK_NB)
    other.lock(SETLK, "a", WR, 0, 10)
    assert other.refused("lock", SETLK, "a", WR, 10, 1) == WOULD_BLOCK


def test_a_wait_without_a_service_can_be_interrupted(shaky):
    relay, mount, place = shaky
    one = place.open(0)
    pid = one("pid")
    relay.refuse()
    relay.cut()
    wait_until(lambda: not mount.stats()["connected"], what="the connection is lost")
    one.begin("flock", "a", LOCK_EX)
    assert not one.ready(0.2)
    os.kill(pid, signal.SIGUSR1)
    with pytest.raises(InterruptedError):
        one.end(3)


def test_the_end_of_a_mount_ends_its_locks(shaky):
    _, mount, place = shaky
    one, other = place.open(0), place.open(1)
    one("flock", "a", LOCK_EX)
    other.begin("flock", "a", LOCK_EX)
    assert not other.ready(0.1)
    mount.kill()
    other.end()


# --- a database ----------------------------------------------------------------------------

COUNTER = """
import sqlite3, sys
path, times = sys.argv[1], int(sys.argv[2])
database = sqlite3.connect(path, timeout=50, isolation_level=None)
for _ in range(times):
    database.execute("BEGIN IMMEDIATE")
    value, = database.execute("SELECT value FROM counter").fetchone()
    database.execute("UPDATE counter SET value = ?", (value + 1,))
    database.execute("COMMIT")
"""


def count_everywhere(harness, service, mounts, times):
    """Processes on two mounts, beside the files and by `berth exec`, in one database with a
    rollback journal: no increment is lost."""
    path = tree(service) / "counter.db"
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE counter (value INTEGER)")
    database.execute("INSERT INTO counter VALUES (0)")
    database.commit()
    assert database.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    database.close()
    command = [harness.program("berth"), "--url", service.url, "exec", "-w", "demo", "--"]
    places = [([], mounts[0] / "counter.db"), ([], mounts[1] / "counter.db"), (command, "counter.db"),
              ([], mounts[0] / "counter.db")]
    running = [subprocess.Popen([str(word) for word in
                                 [*prefix, *PYTHON, "-c", COUNTER, where, times]],
                                env=harness.env, cwd=harness.directory)
               for prefix, where in places]
    try:
        assert [process.wait(50 + times) for process in running] == [0] * len(places)
    finally:
        for process in running:
            process.kill()
            process.wait()
    database = sqlite3.connect(path)
    assert database.execute("SELECT value FROM counter").fetchone() == (len(places) * times,)
    assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    database.close()


@pytest.mark.parametrize("times", [25, pytest.param(1000, marks=[pytest.mark.long,
                                                                pytest.mark.timeout(1200)])])
def test_sqlite_from_everywhere(service, start_mount, run_berth, harness, times):
    run_berth("create", "demo", check=True)
    count_everywhere(harness, service, [start_mount(service).path / "demo" for _ in range(2)], times)

"""What a mount shows is never older than a command that has ended, a close or an fsync."""

import os
import random
import shlex
import stat
import time

import pytest

from lib.cached import start_mount, workspace  # noqa: F401, fixtures
from lib.exec_client import WORKSPACE, ExecClient

ROUNDS = 600
LONG_ROUNDS = 10000

NAMES = ["a", "b", "c", "d/a", "d/b", "e/a", "e/f/a"]

MMAP = r"""
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o644)
os.ftruncate(fd, max(os.fstat(fd).st_size, 5000))
with mmap.mmap(fd, 0) as m:
    m[4990:4996] = sys.argv[2].encode()[:6].ljust(6, b"-")
"""


def changes(rng, number):
    """A shell command that changes something; whatever is there."""
    one, two = (shlex.quote(rng.choice(NAMES)) for _ in range(2))
    text = f"{number:06d}"
    return rng.choice([
        f"printf {text} > {one}",                                       # same size
        f"printf {text} > {one}; touch -d @1700000000 {one}",           # and the same time
        f"printf {text}{'x' * rng.randrange(9000)} > {one}",
        f"printf {text} >> {one}",
        f"printf {text} > t; mv -fT t {one}",                           # renamed over
        f"rm -rf {one}",
        f"rm -rf {one}; mkdir {one}",
        f"rm -rf {one}; ln -s {text} {one}",
        f"rm -rf {two}; mv -T {one} {two}",
        f"ln -f {one} {two}",
        f"chmod {rng.choice(['600', '644', '755'])} {one}",
        f"mkdir -p d e/f; printf {text} > d/a",
        f"mv -T d e/d; mv -T e/d d",
        f"rm -rf {one}; mkdir {one}; printf {text} > {one}/x",
        f"truncate -s {rng.randrange(6000)} {one}",
        f"/usr/bin/python3 -S -E -c {shlex.quote(MMAP)} {one} {text}" if number % 10 == 0 else "true",
    ])


def seen(path):
    """All that can be told of a file by the usual calls, or the errno of the first."""
    try:
        info = os.lstat(path)
        shown = [stat.S_IFMT(info.st_mode), info.st_mode, info.st_nlink, info.st_mtime_ns, info.st_ctime_ns]
        if stat.S_ISDIR(info.st_mode):
            shown.append(sorted(os.listdir(path)))
        elif stat.S_ISLNK(info.st_mode):
            shown.append(os.readlink(path))
        else:
            shown.append(info.st_size)
            with open(path, "rb") as file:
                shown.append(file.read())
        return shown
    except OSError as error:
        return error.errno


def compare(mounts, tree, names, what):
    for name in names:
        truth = seen(tree / name)
        for mount in mounts:
            shown = seen(mount / name)
            assert shown == truth, f"{what}: {name} on {mount}"


def read_your_exec(service, mounts, tree, rounds, seed):
    rng = random.Random(seed)
    places = [*NAMES, "", "d", "e", "e/f", "t", "d/a/x", "never"]
    with ExecClient(service.socket) as client:
        compare(mounts, tree, places, "at first")
        for number in range(rounds):
            command = changes(rng, number)
            client.run(WORKSPACE, ["sh", "-c", command])
            compare(mounts, tree, rng.sample(places, 5), f"seed {seed}, round {number}, {command[:60]}")
            if number % 50 == 49:
                compare(mounts, tree, places, f"seed {seed}, round {number}")


@pytest.mark.timeout(240)
def test_read_your_exec(service, start_mount, workspace):
    one = start_mount(service, workspace=WORKSPACE)
    two = start_mount(service)
    mounts = [one.path, two.path / WORKSPACE]
    read_your_exec(service, mounts, workspace, ROUNDS, seed=time.time_ns() % 1000000)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_read_your_exec_long(service, start_mount, workspace, seed):
    mount = start_mount(service, workspace=WORKSPACE)
    read_your_exec(service, [mount.path], workspace, LONG_ROUNDS, seed)


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
        seen(two / name)
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

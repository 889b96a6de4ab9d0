"""A mount whose connection is cut and whose service is not: the session goes on."""

import contextlib
import errno
import fcntl
import os
import random
import threading
import time

import pytest

from lib import harness
from lib.exec_client import WORKSPACE, ExecClient

CUTS = 150
LONG_CUTS = 2000


@pytest.fixture
def place(service, start_relay, start_mount, run_berth):
    """A mount through a relay, and where the service keeps its files."""
    run_berth("create", WORKSPACE, check=True)
    relay = start_relay(service)
    mount = start_mount(service, url=relay.url, workspace=WORKSPACE, options="cache=yes")
    return relay, mount, service.root / "workspaces" / WORKSPACE / "tree"


def cut(relay, mount):
    before = mount.stats()
    relay.cut()
    harness.wait_until(lambda: mount.stats()["reconnects"] > before["reconnects"], what="the connection")
    assert mount.stats()["resumes"] == before["resumes"] + 1


def test_open_files_also_unlinked_ones_and_locks_survive(place, start_mount, service):
    relay, mount, tree = place
    other = start_mount(service, workspace=WORKSPACE).path
    (mount.path / "l").write_bytes(b"")
    with open(mount.path / "gone", "w+b", buffering=0) as gone, open(mount.path / "l", "r+b") as locked:
        gone.write(b"written")
        os.unlink(mount.path / "gone")
        fcntl.flock(locked, fcntl.LOCK_EX)
        for _ in range(3):
            cut(relay, mount)
        assert os.pread(gone.fileno(), 20, 0) == b"written"
        assert os.pwrite(gone.fileno(), b" on", 7) == 3
        assert os.pread(gone.fileno(), 20, 0) == b"written on"
        assert os.fstat(gone.fileno()).st_nlink == 0
        with open(other / "l", "r+b") as second:
            with pytest.raises(BlockingIOError):
                fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert mount.stats()["locks_lost"] == 0
    assert not (tree / "gone").exists()


def warm(path):
    for directory, _, files in os.walk(path):
        for name in files:
            with open(os.path.join(directory, name), "rb") as file:
                file.read()


def is_coherent_over_a_cut(relay, mount, tree, text):
    """Changes a file to text, and makes one of that name, while there is no connection. False if the
    lease ran out meanwhile, on a slow machine."""
    warm(mount.path)
    warm(mount.path)
    resumes = mount.stats()["resumes"]
    relay.refuse()
    relay.cut()
    (tree / "d1" / "f1").write_text(text)
    (tree / "d2" / text).write_text(text)
    relay.refuse(False)
    harness.wait_until(lambda: mount.stats()["resumes"] == resumes + 1, what="the connection")
    harness.wait_until(lambda: (mount.path / "d1" / "f1").read_text() == text, what="the change")
    harness.wait_until(lambda: text in os.listdir(mount.path / "d2"), what="the name")
    return mount.stats()["coherent"]


def test_what_has_not_changed_is_still_known(place):
    """And what has is not, whoever changed it while there was no connection."""
    relay, mount, tree = place
    for number in range(20):
        (tree / f"d{number % 4}").mkdir(exist_ok=True)
        (tree / f"d{number % 4}" / f"f{number}").write_bytes(b"old")
    assert any(is_coherent_over_a_cut(relay, mount, tree, f"other{i}") for i in range(5))
    before = mount.stats()
    for number in range(20):
        if number % 4 not in (1, 2):
            assert os.stat(mount.path / f"d{number % 4}" / f"f{number}").st_size == 3
    assert mount.stats()["blocking"] == before["blocking"]


def test_what_took_too_long_fails_and_is_not_done_later(service, start_relay, start_mount, run_berth):
    """The session outlives the failure: the file that was unlinked is still there."""
    run_berth("create", WORKSPACE, check=True)
    relay = start_relay(service)
    mount = start_mount(service, url=relay.url, workspace=WORKSPACE, options="timeout=1")
    tree = service.root / "workspaces" / WORKSPACE / "tree"
    (mount.path / "f").write_bytes(b"x")
    with open(mount.path / "gone", "w+b", buffering=0) as gone:
        gone.write(b"kept")
        os.unlink(mount.path / "gone")
        relay.stall()
        results = []

        def make():
            try:
                os.mkdir(mount.path / "late")
            except OSError as error:
                results.append(error.errno)
        thread = threading.Thread(target=make)
        start = time.monotonic()
        thread.start()
        time.sleep(0.3)
        relay.refuse()
        relay.cut()
        thread.join(20)
        assert results == [errno.EIO] and time.monotonic() - start < 10
        relay.resume()
        relay.refuse(False)
        harness.wait_until(lambda: mount.stats()["resumes"] == 1, what="the connection")
        assert os.pread(gone.fileno(), 10, 0) == b"kept"
        os.fsync(gone.fileno())
    assert not (tree / "late").exists()
    assert sorted(os.listdir(mount.path)) == ["f"]


def test_nobody_is_shown_what_was_before_a_barrier(place, service):
    """Only the service knows that the connection is lost."""
    relay, mount, tree = place
    (tree / "f").write_bytes(b"old")
    assert (mount.path / "f").read_bytes() == b"old"
    relay.refuse()
    relay.lose()
    with ExecClient(service.socket) as client:
        assert client.run(WORKSPACE, ["sh", "-c", "printf new > f"]).verdict.code == 0
    relay.refuse(False)
    assert (mount.path / "f").read_bytes() == b"new"


def test_nobody_is_shown_what_was_before_a_barrier_of_another_service(place, service):
    """That has been killed has given a lease, of which the next one must know."""
    relay, mount, tree = place
    (tree / "f").write_bytes(b"old")
    assert (mount.path / "f").read_bytes() == b"old"
    relay.refuse()
    relay.half_open()
    service.kill()
    service = service.restart()
    with ExecClient(service.socket) as client:
        verdict = client.run(WORKSPACE, ["sh", "-c", "printf new > f"]).verdict
    assert verdict.code == 0 and verdict.coherence == 0
    relay.refuse(False)
    assert (mount.path / "f").read_bytes() == b"new"


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_who_has_come_back_to_another_service_is_not_waited_for(place, service, how):
    relay, mount, tree = place
    (tree / "f").write_bytes(b"old")
    assert (mount.path / "f").read_bytes() == b"old"
    getattr(service, how)()
    service = service.restart()
    harness.wait_until(lambda: mount.stats()["coherent"], what="the connection")
    with ExecClient(service.socket) as client:
        verdict = client.run(WORKSPACE, ["sh", "-c", "printf new > f"]).verdict
    assert verdict.code == 0 and verdict.coherence == 1
    assert (mount.path / "f").read_bytes() == b"new"


def test_a_mount_that_is_taken_down_while_it_is_cut_off_leaves_no_session(place, service, start_mount, run_berth):
    """Whose locks nobody could have for a minute. Its goodbye comes when there is a way for it."""
    relay, mount, tree = place
    (tree / "l").touch()
    with open(mount.path / "l", "r+b") as locked:
        fcntl.flock(locked, fcntl.LOCK_EX)
        relay.refuse()
        relay.cut()
        harness.wait_until(lambda: not mount.stats()["connected"], what="the loss")
    mount.unmount()
    other = start_mount(service, workspace=WORKSPACE)
    with open(other.path / "l", "r+b") as wanted:
        with pytest.raises(BlockingIOError):
            fcntl.flock(wanted, fcntl.LOCK_EX | fcntl.LOCK_NB)
        relay.refuse(False)

        def is_had():
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(wanted, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
        harness.wait_until(is_had, what="the end of the session", timeout=15)


class Load:
    """Changes of which it is known what has been told to the program that made them."""

    def __init__(self, path, number):
        self.path, self.number = path, number
        self.names, self.lines = {}, []
        self.stop = False
        self.error = None
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        rng = random.Random(self.number)
        try:
            log = os.open(self.path / f"log{self.number}", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            step = 0
            while not self.stop:
                step += 1
                name = f"{self.number}-{step}"
                kind = rng.randrange(4)
                if kind == 0:
                    os.mkdir(self.path / name)
                    self.names[name] = None
                elif kind == 1:
                    content = rng.randbytes(rng.randrange(3000))
                    file = os.open(self.path / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                    assert os.write(file, content) == len(content)
                    os.close(file)
                    self.names[name] = content
                elif kind == 2 and self.names:
                    old = rng.choice(sorted(self.names))
                    os.rename(self.path / old, self.path / name)
                    self.names[name] = self.names.pop(old)
                else:
                    line = b"%s %s\n" % (name.encode(), b"x" * rng.randrange(200))
                    assert os.write(log, line) == len(line)
                    self.lines.append(line)
            os.close(log)
        except BaseException as error:
            self.error = error

    def check(self, tree, where):
        self.stop = True
        self.thread.join(60)
        assert not self.thread.is_alive()
        if self.error:
            raise self.error
        for root in (tree, where):
            found = {name for name in os.listdir(root) if name.startswith(f"{self.number}-")}
            assert found == set(self.names), root
            for name, content in self.names.items():
                assert content is None or (root / name).read_bytes() == content
            assert (root / f"log{self.number}").read_bytes() == b"".join(self.lines)


def cut_at_random(place, cuts, seed):
    relay, mount, tree = place
    rng = random.Random(seed)
    print("seed", seed)
    loads = [Load(mount.path, number) for number in range(3)]
    before = mount.stats()["resumes"]
    while mount.stats()["resumes"] - before < cuts and not any(load.error for load in loads):
        relay.cut_after(int(rng.expovariate(1 / 3000)) + 1)
        time.sleep(rng.random() * 0.05)
        if rng.randrange(10) == 0:
            relay.cut()
    relay.cut_after(0)
    for load in loads:
        load.check(tree, mount.path)
    stats = mount.stats()
    assert stats["resumes"] == stats["reconnects"]
    print(sum(len(load.lines) + len(load.names) for load in loads), "changes,", stats["resumes"], "cuts")


@pytest.mark.timeout(180)
def test_everything_is_done_once_however_often_the_connection_is_cut(place):
    cut_at_random(place, CUTS, time.time_ns() % 1000000)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [1, 2])
def test_everything_is_done_once_long(place, seed):
    cut_at_random(place, LONG_CUTS, seed)

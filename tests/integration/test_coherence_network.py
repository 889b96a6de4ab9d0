"""A network that stalls, is cut and comes back at random, and a service that is killed, under programs
that work: what was acknowledged is there, nobody waits for longer than is said, and nothing is wrong
afterwards."""

import contextlib
import errno
import hashlib
import os
import random
import shutil
import subprocess
import threading
import time

import pytest

from lib import agent, harness, mounts
from lib.cached import workspace  # noqa: F401, fixtures
from lib.exec_client import WORKSPACE, ExecClient

SECONDS, LONG_SECONDS = 12, 240
TIMEOUT = 3  # of the mount
# One call may need several requests, each of which waits until the silence is noticed and then for a
# connection; and the machine is busy.
LONGEST = 2 * TIMEOUT * 4 + 20
LOST = {errno.EIO, errno.ESTALE, errno.ENOTCONN, errno.ENOENT, errno.ETIMEDOUT}


class Worker(threading.Thread):
    """Does step() again and again, in which errors of a lost connection are allowed, and notes how long
    each took."""

    def __init__(self, step, stop):
        super().__init__(daemon=True)
        self.step, self.stop = step, stop
        self.done, self.lost, self.longest, self.wrong = 0, 0, 0.0, None

    def run(self):
        while not self.stop.is_set() and not self.wrong:
            start = time.monotonic()
            try:
                self.step(self.done)
                self.done += 1
            except OSError as error:
                self.lost += 1
                if error.errno not in LOST:
                    self.wrong = error
            except BaseException as error:  # told by the test's own thread
                self.wrong = error
            self.longest = max(self.longest, time.monotonic() - start)
            time.sleep(0.005)


class Writer:
    """Files whose content is known: each name has what was acknowledged last, or what was being
    written when an error came."""

    def __init__(self, directory):
        self.directory, self.rng = directory, random.Random(1)
        self.acknowledged, self.possible = {}, {}

    def step(self, number):
        name = f"w{number % 20}"
        content = self.rng.randbytes(self.rng.choice([10, 5000, 200000]))
        self.possible.setdefault(name, []).append(content)
        if number % 2:
            # As editors save.
            temporary = self.directory / f".{name}.tmp"
            self.write(temporary, content)
            os.rename(temporary, self.directory / name)
        else:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.directory / name)
            self.acknowledged.pop(name, None)
            self.write(self.directory / name, content)
        self.acknowledged[name] = content
        self.possible[name] = [content]

    @staticmethod
    def write(path, content):
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            written = 0
            while written < len(content):
                written += os.write(fd, content[written:])
            os.fsync(fd)
        finally:
            os.close(fd)

    def check(self, directory):
        for name, content in self.acknowledged.items():
            possible = self.possible[name]
            if len(possible) == 1 or possible == [content]:
                found = (directory / name).read_bytes()
                assert hashlib.md5(found).digest() == hashlib.md5(content).digest(), name


def reader(mount):
    """What is read of a file that nobody changes is right, or not read at all."""
    def step(number):
        name = f"r{number % 30}"
        content = (mount / "still" / name).read_bytes()
        assert content == name.encode() * 3000, (name, len(content))
        assert len(os.listdir(mount / "still")) == 30
    return step


def git(directory, longest):
    def step(number):
        (directory / "file").write_text(str(number))
        for lock in (".git/index.lock", ".git/HEAD.lock", ".git/refs/heads/main.lock"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(directory / lock)
        for words in (["add", "file"], ["commit", "-qm", "x"], ["status", "--porcelain"]):
            subprocess.run(["git", "-C", directory, *words], timeout=longest, check=False,
                           stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return step


def never_hangs(mount, longest):
    """df and a prompt in the mount's root; the time that the worst took is kept."""
    def step(_):
        start = time.monotonic()
        os.statvfs(mount)
        os.stat(mount)
        longest.append(time.monotonic() - start)
    return step


class Disturbance:
    def __init__(self, relay, service):
        self.relay, self.service, self.rng = relay, service, random.Random(time.time_ns())
        self.counts = {}

    def once(self, kill):
        kinds = ["stall", "stall", "cut", "half_open", "refuse", "delay", "nothing"] + (["kill"] if kill else [])
        kind = self.rng.choice(kinds)
        self.counts[kind] = self.counts.get(kind, 0) + 1
        for_how_long = self.rng.choice([0.05, 0.3, 1, TIMEOUT + 1.5])
        if kind == "stall":
            self.relay.stall()
            time.sleep(for_how_long)
            self.relay.resume()
        elif kind == "cut":
            self.relay.cut()
        elif kind == "half_open":
            self.relay.half_open()
            time.sleep(for_how_long)
        elif kind == "refuse":
            self.relay.refuse()
            self.relay.cut()
            time.sleep(for_how_long)
            self.relay.refuse(False)
        elif kind == "delay":
            self.relay.delay(self.rng.choice([1, 20]))
            time.sleep(for_how_long)
            self.relay.delay(0)
        elif kind == "kill":
            self.service.kill()
            time.sleep(for_how_long / 4)
            self.service = self.service.restart()
        time.sleep(self.rng.random() * 0.7)


def disturbed(service, start_relay, start_mount, workspace, seconds, option="fail"):
    (workspace / "still").mkdir()
    for number in range(30):
        (workspace / "still" / f"r{number}").write_text(f"r{number}" * 3000)
    (workspace / "repository").mkdir()
    subprocess.run(["git", "init", "-q", "-b", "main", workspace / "repository"], check=True, timeout=30)
    relay = start_relay(service)
    mount = start_mount(service, url=relay.url, workspace=WORKSPACE, options=f"timeout={TIMEOUT},disconnected={option}")
    (mount.path / "written").mkdir()
    writer, prompts, stop = Writer(mount.path / "written"), [], threading.Event()
    steps = {"writer": writer.step, "reader": reader(mount.path), "git": git(mount.path / "repository", LONGEST * 2),
             "prompt": never_hangs(mount.path, prompts)}
    workers = {name: Worker(step, stop) for name, step in steps.items()}
    for worker in workers.values():
        worker.start()
    disturbance, end = Disturbance(relay, service), time.monotonic() + seconds
    while time.monotonic() < end:
        disturbance.once(kill=True)
        assert not [name for name, worker in workers.items() if worker.wrong], \
            {name: worker.wrong for name, worker in workers.items()}
    stop.set()
    for name, worker in workers.items():
        worker.join(LONGEST * 2)
        assert not worker.is_alive(), f"{name} is stuck"
        assert not worker.wrong, (name, worker.wrong)
    print({name: (worker.done, worker.lost, round(worker.longest, 2)) for name, worker in workers.items()},
          disturbance.counts, f"prompt: {max(prompts) * 1e3:.0f} ms at most")
    assert all(worker.longest < LONGEST for name, worker in workers.items() if name != "git")
    # Answered without the service, at the latest when the lease is over; and the machine is busy.
    assert max(prompts) < 15
    harness.wait_until(lambda: mount.stats()["coherent"], what="the connection", timeout=20)
    assert mounts.find_mount(mount.path)["id"] == mount.row["id"]
    writer.check(workspace / "written")
    writer.check(mount.path / "written")
    with ExecClient(disturbance.service.socket) as client:
        for number in range(20):
            command = agent.change(disturbance.rng, number)
            client.run(WORKSPACE, ["sh", "-c", command])
            agent.compare([mount.path], workspace, agent.PLACES, command)
    shutil.rmtree(mount.path / "repository")


def test_the_root_answers_while_the_service_is_silent(service, start_relay, start_mount, workspace):
    """Before the connection is given up, too."""
    relay = start_relay(service)
    mount = start_mount(service, url=relay.url, workspace=WORKSPACE, options="timeout=25")
    os.stat(mount.path)
    relay.stall()
    time.sleep(4)  # the lease is over
    start = time.monotonic()
    os.stat(mount.path)
    os.statvfs(mount.path)
    assert time.monotonic() - start < 10
    relay.resume()
    (mount.path / "f").write_bytes(b"1")


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_network_that_fails_under_work(service, start_relay, start_mount, workspace):
    disturbed(service, start_relay, start_mount, workspace, SECONDS)


@pytest.mark.long
@pytest.mark.timeout(LONG_SECONDS + 400)
@pytest.mark.parametrize("option", ["fail", "serve"])
def test_a_network_that_fails_under_work_for_long(service, start_relay, start_mount, workspace, option):
    disturbed(service, start_relay, start_mount, workspace, LONG_SECONDS, option)

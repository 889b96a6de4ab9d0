"""What the kernel was told just before it changed must not be kept, however late the program that asked
comes to take the answer."""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import pytest

from lib import agent
from lib.cached import workspace  # noqa: F401, fixtures
from lib.exec_client import WORKSPACE, ExecClient

ROUNDS = 25
LONG_ROUNDS = 5000


@contextlib.contextmanager
def slow_reader(function):
    """Runs function() again and again in a process that gets the processor only when a busy one, which
    is bound to the same, lets it: between the answer to a call and its return much can happen."""
    cpu = max(os.sched_getaffinity(0))
    busy = subprocess.Popen(["sh", "-c", "while :; do :; done"], start_new_session=True)
    os.sched_setaffinity(busy.pid, {cpu})
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        try:
            os.sched_setaffinity(0, {cpu})
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
            while True:
                with contextlib.suppress(OSError):
                    function()
        finally:
            os._exit(1)
    try:
        yield
    finally:
        for process in (pid, busy.pid):
            os.kill(process, signal.SIGKILL)
        os.waitpid(pid, 0)
        busy.wait()


def pause(rng):
    """From nothing to a tenth of a second, short ones more often."""
    time.sleep(rng.random() ** 2 * 0.1)


def check(client, mount, tree, names, number):
    assert client.run(WORKSPACE, ["true"]).verdict.coherence == 1
    found = agent.differences(mount, tree, names)
    if found:
        time.sleep(1)
        raise AssertionError("\n".join([f"round {number}", *found, "a second later:",
                                        *agent.differences(mount, tree, names)]))


def names_found_again(service, mount, tree, rounds):
    """A name is told of as changed, looked up, found to lead to what it led to, and then does not."""
    rng = random.Random(1)
    names = ["d", "e", "f", "g"]
    below = tree / "below"

    def make(name):
        if name in "de":
            (below / name).mkdir()
            (below / name / "x").touch()
        else:
            (below / name).touch()

    def read():
        for name in names:
            os.stat(mount / "below" / name)

    below.mkdir()
    for name in names:
        make(name)
    with slow_reader(read), ExecClient(service.socket) as client:
        for number in range(rounds):
            for name in names:
                os.rename(below / name, below / "t")
                os.rename(below / "t", below / name)
            pause(rng)
            for name in names:
                os.rename(below / name, below / f"old-{name}-{number}")
                make(name)
            check(client, mount, tree, [f"below/{name}" for name in [*names, "d/x"]], number)
            if number % 20 == 19:
                shutil.rmtree(below)
                below.mkdir()
                for name in names:
                    make(name)


def files_seen_first(service, mount, tree, rounds):
    """A file is changed while the kernel makes its first acquaintance."""
    rng = random.Random(1)
    (tree / "d").mkdir()

    def read():
        for name in ("f", "d/f"):
            os.stat(mount / name)

    with slow_reader(read), ExecClient(service.socket) as client:
        for number in range(rounds):
            for name in ("f", "d/f"):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(tree / name)
                (tree / name).write_bytes(b"1")
            pause(rng)
            for name in ("f", "d/f"):
                os.chmod(tree / name, 0o600)
                (tree / name).write_bytes(b"22")
            check(client, mount, tree, ["f", "d/f"], number)


def files_listed_first(service, mount, tree, rounds):
    """Likewise many, as a listing shows them."""
    rng = random.Random(1)
    count = 60

    def read():
        for name in os.listdir(mount):
            with os.scandir(mount / name) as entries:
                for entry in entries:
                    entry.stat()

    with slow_reader(read), ExecClient(service.socket) as client:
        for number in range(rounds // 5):
            directory = tree / f"d{number}"
            directory.mkdir()
            names = [f"{directory.name}/{i}" for i in range(count)]
            for name in names:
                (tree / name).write_bytes(b"1")
            pause(rng)
            for name in names[::-1]:
                (tree / name).write_bytes(b"22")
            check(client, mount, tree, [*names, directory.name], number)


def test_a_directory_that_comes_and_goes_keeps_its_path(service, start_mount, workspace):
    """For the programs in it, though what its name leads to is news again and again."""
    mount = start_mount(service, workspace=WORKSPACE)
    (workspace / "d" / "e").mkdir(parents=True)
    descriptor = os.open(mount.path / "d" / "e", os.O_RDONLY | os.O_DIRECTORY)
    try:
        with ExecClient(service.socket) as client:
            for number in range(20):
                client.run(WORKSPACE, ["sh", "-c", "mv d t; mv t d; mv d/e d/t; mv d/t d/e"])
                shown = os.readlink(f"/proc/self/fd/{descriptor}")
                assert shown == str(mount.path / "d" / "e"), number
                os.stat(mount.path / "d" / "e")
    finally:
        os.close(descriptor)


CASES = [names_found_again, files_seen_first, files_listed_first]


@pytest.mark.parametrize("case", CASES[:1])
def test_late_answers_are_not_kept(service, start_mount, workspace, case):
    mount = start_mount(service, workspace=WORKSPACE)
    case(service, mount.path, workspace, ROUNDS)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("case", CASES)
def test_late_answers_are_not_kept_long(service, start_mount, workspace, case):
    mount = start_mount(service, workspace=WORKSPACE)
    case(service, mount.path, workspace, LONG_ROUNDS)

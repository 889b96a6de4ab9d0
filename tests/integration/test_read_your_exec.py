"""Nothing on a mount is older than a command that has ended, another mount's fsync or close, or the
mount's own calls."""

import collections
import os
import random
import subprocess
import time

import pytest

from lib import agent
from lib.cached import workspace  # noqa: F401, fixtures
from lib.exec_client import WORKSPACE, ExecClient

ROUNDS = 150
LONG_ROUNDS = 10000
ANY_LINK = "symlinks=verbatim"


@pytest.fixture
def seed():
    return time.time_ns() % 1000000


def rounds(service, mounts, tree, count, seed, change):
    """change(rng, number, run) changes something and returns what it was."""
    rng = random.Random(seed)
    kinds, latest = collections.Counter(), collections.deque(maxlen=30)
    with ExecClient(service.socket) as client:
        agent.compare(mounts, tree, agent.PLACES, "at first")
        for number in range(count):
            what = change(rng, number, lambda command: client.run(WORKSPACE, ["sh", "-c", command]).verdict)
            kinds[agent.kind_of(what)] += 1
            latest.append(what)
            places = agent.PLACES if number % 50 == 49 else rng.sample(agent.PLACES, 6)
            agent.compare(mounts, tree, places, "\n".join([f"seed {seed}, round {number}, after:", *latest]))
    print(f"{count} rounds, nothing stale: {dict(sorted(kinds.items()))}")
    assert len(kinds) > 25 or count < ROUNDS


def by_exec(rng, number, run):
    command = agent.change(rng, number)
    verdict = run(command)
    assert verdict.coherence == 1, verdict
    return command


def in_shell(directory):
    """The same commands in a directory, each by a shell's own calls on that mount, and an fsync."""
    def change(rng, number, run):
        command = agent.change(rng, number)
        subprocess.run(["sh", "-c", command], cwd=directory, timeout=30, check=False,
                       stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        with open(directory / "barrier", "wb") as barrier:
            os.fsync(barrier.fileno())
        return command
    return change


@pytest.mark.timeout(240)
def test_read_your_exec(service, start_mount, workspace, seed):
    one = start_mount(service, workspace=WORKSPACE, options=ANY_LINK)
    two = start_mount(service, options=ANY_LINK)
    rounds(service, [one.path, two.path / WORKSPACE], workspace, ROUNDS, seed, by_exec)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_read_your_exec_long(service, start_mount, workspace, seed):
    mount = start_mount(service, workspace=WORKSPACE, options=ANY_LINK)
    rounds(service, [mount.path], workspace, LONG_ROUNDS, seed, by_exec)


def through_another_mount(service, start_mount, workspace, count, seed):
    """Seen by the other mount, by the mount itself, and (the tree) by commands."""
    one = start_mount(service, workspace=WORKSPACE, options=ANY_LINK).path
    two = start_mount(service, workspace=WORKSPACE, options=ANY_LINK).path
    rounds(service, [one, two], workspace, count, seed, in_shell(two))


@pytest.mark.timeout(240)
def test_read_what_another_mount_did(service, start_mount, workspace, seed):
    through_another_mount(service, start_mount, workspace, ROUNDS // 2, seed)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_read_what_another_mount_did_long(service, start_mount, workspace, seed):
    through_another_mount(service, start_mount, workspace, LONG_ROUNDS, seed)

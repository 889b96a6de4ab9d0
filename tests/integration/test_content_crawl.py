"""Who goes through a whole tree, whatever the order, waits few times: for what nobody could know of, and then
only for what is on its way."""

import os
import random
import shlex
import sys
import threading

import pytest

from lib.cached import through_relay, workspace  # noqa: F401, fixtures


def make_tree(root):
    """1,400 files of 14 MB in 60 directories, as sources are: most are small, some directories have many."""
    rng = random.Random(7)
    directories = [root]
    for number in range(60):
        parent = rng.choice(directories[: 1 + number // 3])
        path = parent / f"d{number:02}"
        path.mkdir()
        directories.append(path)
    size = 0
    for number in range(1400):
        # Every tenth in one of two directories, which so have about 80.
        directory = directories[1 + number % 2] if number % 10 == 0 else rng.choice(directories)
        text = bytes(rng.randrange(97, 123) for _ in range(64)) * int(min(rng.lognormvariate(4.6, 1.4), 6000))
        (directory / f"f{number:04}").write_bytes(text)
        size += len(text)
    return size


def read(entry):
    with open(entry.path, "rb") as file:
        return len(file.read())


def crawl(path, threads, first):
    """As rg does: what a directory has is put on a stack that all threads take from. first: the entry that was
    listed first is the first to be taken."""
    stack, condition, total, busy = [path], threading.Condition(), [0], [0]

    def work():
        while True:
            with condition:
                while not stack and busy[0]:
                    condition.wait()
                if not stack:
                    condition.notify_all()
                    return
                entry = stack.pop()
                busy[0] += 1
            found, size = [], 0
            if entry is path or entry.is_dir():
                with os.scandir(entry) as entries:
                    found = list(entries)[:: -1 if first else 1]
            else:
                size = read(entry)
            with condition:
                busy[0] -= 1
                stack.extend(found)
                total[0] += size
                condition.notify_all()

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
    return total[0]


def walk(path):
    """The files of a directory, then those below."""
    return sum(read(entry) for directory, _, _ in os.walk(path) for entry in os.scandir(directory) if entry.is_file())


# The order that fits least to how a tree is read ahead runs always.
ORDERS = {
    "a thread, from the last on": lambda path: crawl(path, 1, False),
    "a thread, from the first on": lambda path: crawl(path, 1, True),
    "three threads, from the last on": lambda path: crawl(path, 3, False),
    "directory by directory": walk,
}


@pytest.mark.parametrize("order", [pytest.param(order, marks=[] if "first on" in order else [pytest.mark.long])
                                   for order in ORDERS])
@pytest.mark.timeout(300)
def test_how_often_a_crawler_waits(workspace, through_relay, order):
    size = make_tree(workspace)
    mount, count = through_relay(delay=10, bandwidth=50_000_000)
    found = []
    cost = count(lambda: found.append(ORDERS[order](mount.path)))
    print(order, size, cost["round_trips"], cost["blocking"], cost["bytes"])
    assert found == [size]
    assert cost["round_trips"] <= 4, cost
    assert count(lambda: ORDERS[order](mount.path))["blocking"] == 0


READ_ALL = """
import os
for directory, _, names in os.walk("."):
    for name in names:
        with open(os.path.join(directory, name), "rb") as file:
            file.read()
"""

# grep asks of each file that it does not read in one go whether it has holes.
PROGRAMS = {
    "grep -r": ["grep", "-rc", "NEEDLE", "."],
    "grep -R": ["grep", "-Rc", "NEEDLE", "."],
    "find -exec cat": ["find", ".", "-type", "f", "-exec", "cat", "{}", "+"],
    "tar": ["sh", "-c", "tar cf - . | cat"],
    "cp -r": ["cp", "-r", ".", "COPY"],
    "du -a": ["du", "-a", "."],
    "os.walk": [sys.executable, "-SEc", READ_ALL],
    "wc": ["sh", "-c", "wc -l $(find . -type f)"],
}


@pytest.mark.parametrize("name", [pytest.param(name, marks=[] if name == "grep -r" else [pytest.mark.long])
                                  for name in PROGRAMS])
@pytest.mark.timeout(300)
def test_how_often_a_program_waits(workspace, through_relay, run, tmp_path, name):
    """However it goes through the tree. Of what it has read nothing comes twice."""
    size = make_tree(workspace)
    mount, count = through_relay(delay=10, bandwidth=50_000_000)
    words = [str(tmp_path / "copy") if word == "COPY" else word for word in PROGRAMS[name]]

    def work():
        assert run(words, cwd=mount.path).returncode == (1 if "grep" in name else 0)
    cost = count(work)
    print(shlex.join(words), size, cost)
    # Three or four, mostly. cp goes by inode numbers, and these by where the filesystem had room.
    assert cost["round_trips"] <= (6 if name == "cp -r" else 4), cost
    assert cost["bytes"] <= 1.05 * size + (1 << 20), cost
    assert mount.stats()["content_received"] in (0, size)
    again = count(work)
    assert again["blocking"] == again["kinds"].get("STATFS", 0) <= 1, again

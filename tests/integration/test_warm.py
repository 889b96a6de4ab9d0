"""What a mount knows the kernel answers by itself: counted as requests that reach the driver."""

import os
import time
from pathlib import Path

import pytest

from lib.cached import workspace  # noqa: F401, fixtures
from lib.exec_client import WORKSPACE
from lib.harness import wait_until

FILES = 200


@pytest.fixture(params=["a mount of one workspace", "a mount of all"])
def warm(request, service, workspace, start_mount):
    """A directory of a mount whose files have been looked at and read, and a function that gives
    what the kernel has asked while something was done."""
    (workspace / "d").mkdir()
    for number in range(FILES):
        (workspace / "d" / f"file{number}").write_bytes(b"x" * number)
    one = request.param == "a mount of one workspace"
    mount = start_mount(service, workspace=WORKSPACE if one else None)
    wait_until(lambda: mount.stats()["coherent"], what="reports of changes")
    directory = (mount.path if one else mount.path / WORKSPACE) / "d"
    for entry in os.scandir(directory):
        entry.stat()
        with open(entry.path, "rb") as file:
            file.read()
    os.listdir(directory)
    # The kernel takes what it reads for an access, and asks once when that was.
    for path in (directory, *directory.iterdir()):
        os.stat(path)

    def asked(work):
        before = mount.stats()["kernel"]
        work()
        after = mount.stats()["kernel"]
        own = {"GETXATTR": 2}  # the question itself: how long the answer is, and the answer
        changed = {kind: count - before.get(kind, 0) - own.get(kind, 0) for kind, count in after.items()}
        # That something is not used any more may be told at any time; the space left is asked by nobody here.
        return {kind: count for kind, count in changed.items()
                if count and kind not in ("FORGET", "BATCH_FORGET", "STATFS", "RELEASE", "RELEASEDIR")}
    return directory, asked


def test_stat_reaches_nobody(warm):
    directory, asked = warm
    assert asked(lambda: [os.lstat(directory / f"file{number}") for number in range(FILES)]) == {}
    assert asked(lambda: [os.access(directory / f"file{number}", os.R_OK) for number in range(FILES)]) == {}


def test_names_that_do_not_exist_are_asked_for_once(warm):
    directory, asked = warm

    def look():
        for number in range(FILES):
            with pytest.raises(FileNotFoundError):
                os.lstat(directory / f"missing{number}")
    assert asked(look).get("LOOKUP") == FILES
    # They end with the lease of three seconds, of which much may have gone.
    assert asked(look).get("LOOKUP", 0) <= FILES
    assert set(asked(look)) <= {"LOOKUP"}


def test_listing_takes_opening_alone(warm):
    directory, asked = warm

    def listing():
        assert len(os.listdir(directory)) == FILES
    assert asked(listing) == {"OPENDIR": 1}
    assert asked(lambda: [entry.stat() for entry in os.scandir(directory)]) == {"OPENDIR": 1}


def test_pages_are_read_from_the_kernel(warm):
    directory, asked = warm

    def read():
        for number in range(FILES):
            descriptor = os.open(directory / f"file{number}", os.O_RDONLY)
            assert len(os.read(descriptor, 4096)) == number
            os.close(descriptor)
    assert asked(read) == {"OPEN": FILES}


def test_a_driver_of_which_nobody_asks_sleeps(service, workspace, start_mount):
    (workspace / "f").write_bytes(b"x")
    mount = start_mount(service, workspace=WORKSPACE)
    wait_until(lambda: mount.stats()["coherent"], what="reports of changes")

    def is_asleep():
        return "State:\tS" in Path(f"/proc/{mount.pid}/status").read_text()
    for _ in range(1000):  # it stays awake for the next one
        os.close(os.open(mount.path / "f", os.O_RDONLY))
    seen = []
    for _ in range(40):
        time.sleep(0.02)
        seen.append(is_asleep())
    assert seen.count(True) > 30

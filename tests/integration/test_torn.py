"""A file that others rewrite in place while it is read: what is shown may be part of it, as on a local
filesystem, but nothing that was never in it."""

import os
import subprocess
import sys
import time

import pytest

from lib.cached import workspace  # noqa: F401, fixtures
from lib.exec_client import WORKSPACE
from lib.harness import wait_until

SECONDS, LONG_SECONDS = 4, 60

# Each version is whole in a file of its own size, and has no byte that is zero. It is not cut at its end
# after it was written: a local filesystem fills the last page with zeros then, before readers' eyes.
WRITER = r"""
import os, random, sys, time
path, most = sys.argv[1], int(sys.argv[2])
rng = random.Random(1)
number = 0
while True:
    number += 1
    data = (b"%08d" % number) * (1 + rng.randrange(most) // 8)
    fd = os.open(path, os.O_WRONLY | os.O_TRUNC)
    for at in range(0, len(data), 65536):
        os.write(fd, data[at:at + 65536])
    os.close(fd)
    time.sleep(rng.random() * 0.002)
"""

SIZES = {"small": 9000, "large": 3 << 20}


def look(path):
    """Whether what was never there is seen, at once and a moment later; and whether all was."""
    with open(path, "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        text = file.read(4 << 20)
        again = os.pread(file.fileno(), 100, max(0, size - 100))
    return b"\0" in text, b"\0" in again, len(text) == size


def count(path, tree, most, seconds):
    (tree / "f").write_bytes(b"00000000")
    writer = subprocess.Popen([sys.executable, "-c", WRITER, tree / "f", str(most)])
    looks = whole = zeros = later = 0
    try:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            found = look(path)
            looks += 1
            zeros += found[0]
            later += found[1]
            whole += found[2]
    finally:
        writer.kill()
        writer.wait(10)
    return looks, whole, zeros, later


def rewritten(service, start_mount, workspace, most, seconds):
    mount = start_mount(service, workspace=WORKSPACE)
    wait_until(lambda: mount.stats()["coherent"], what="reports of changes")
    found = count(mount.path / "f", workspace, most, seconds)
    print("looks, whole, zeros, zeros later:", found)
    assert found[0] > 20 and found[1] > 0 and found[2:] == (0, 0), found


@pytest.mark.parametrize("size", SIZES)
def test_no_zeros_that_were_never_there(service, start_mount, workspace, size):
    rewritten(service, start_mount, workspace, SIZES[size], SECONDS)


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("size", SIZES)
def test_no_zeros_that_were_never_there_long(service, start_mount, workspace, size):
    rewritten(service, start_mount, workspace, SIZES[size], LONG_SECONDS)

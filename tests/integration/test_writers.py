"""Files that a program beside the service has mapped: its stores are reported by nobody."""

import os
import subprocess
import sys

import pytest

from lib.cached import workspace  # noqa: F401, fixtures
from lib.exec_client import WORKSPACE, ExecClient

SIZE = 8192

# Maps a file and lets go of the descriptor; stores each line it is given, and says so.
PROGRAM = """
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
m = mmap.mmap(fd, 0)
os.close(fd)
print("mapped", flush=True)
for line in sys.stdin:
    text = line.strip().encode()
    m[4090:4090 + len(text)] = text
    print("stored", flush=True)
"""


class Writer:
    def __init__(self, path):
        self.process = subprocess.Popen(
            [sys.executable, "-S", "-E", "-c", PROGRAM, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True)
        assert self.process.stdout.readline() == "mapped\n"

    def store(self, text):
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "stored\n"

    def end(self):
        self.process.stdin.close()
        assert self.process.wait(10) == 0
        self.process.stdout.close()


@pytest.fixture
def start_writer():
    writers = []

    def start(path):
        writers.append(Writer(path))
        return writers[-1]

    yield start
    for writer in writers:
        writer.process.kill()
        writer.process.wait(10)


def shown(path, held):
    """What was stored, by each way to read, and the time."""
    ways = [os.pread(held, SIZE, 0), path.read_bytes(), os.pread(held, SIZE, 0)]
    assert all(way == ways[0] for way in ways), "descriptors differ"
    return ways[0], os.stat(path).st_mtime_ns


def test_stores_are_seen_after_a_barrier(service, start_mount, start_writer, workspace):
    """Those to a page that is dirty already change nothing but that page."""
    (workspace / "f").write_bytes(bytes(SIZE))
    mounts = [start_mount(service, workspace=WORKSPACE).path for _ in range(2)]
    held = [os.open(mount / "f", os.O_RDONLY) for mount in mounts]
    try:
        with ExecClient(service.socket) as client:
            for mount, descriptor in zip(mounts, held):
                assert shown(mount / "f", descriptor)[0] == bytes(SIZE)
            writer = start_writer(workspace / "f")
            for number in range(30):
                text = f"{number:012d}"
                writer.store(text)
                assert client.run(WORKSPACE, ["true"]).verdict.code == 0
                truth = (workspace / "f").read_bytes(), os.stat(workspace / "f").st_mtime_ns
                assert text.encode() in truth[0]
                for mount, descriptor in zip(mounts, held):
                    assert shown(mount / "f", descriptor) == truth, f"round {number}"
            # A new reader, between barriers, asks each time.
            with open(mounts[0] / "f", "rb", buffering=0) as file:
                for number in range(30):
                    text = f"{number:012d}"
                    writer.store(text)
                    assert text.encode() in os.pread(file.fileno(), SIZE, 0), f"round {number}"
    finally:
        for descriptor in held:
            os.close(descriptor)


def test_it_is_kept_again_when_they_have_ended(service, start_mount, start_writer, workspace):
    (workspace / "f").write_bytes(bytes(SIZE))
    mount = start_mount(service, workspace=WORKSPACE)

    def reads(times):
        before = mount.stats()["requests"].get("READ", 0)
        for _ in range(times):
            content = (mount.path / "f").read_bytes()
        return content, mount.stats()["requests"].get("READ", 0) - before

    with ExecClient(service.socket) as client:
        reads(2)
        assert reads(5)[1] == 0
        writer = start_writer(workspace / "f")
        writer.store("stored")
        client.run(WORKSPACE, ["true"])
        content, asked = reads(5)
        assert b"stored" in content and asked >= 5
        writer.store("before the end")
        writer.end()
        client.run(WORKSPACE, ["true"])
        content, _ = reads(2)
        assert b"before the end" in content
        assert reads(5)[1] == 0


def test_what_a_mount_has_mapped_stays_cached(service, start_mount, workspace):
    """A mount's own stores come by WRITE, so its having the file open is no reason to ask each time."""
    (workspace / "f").write_bytes(bytes(SIZE))
    mount = start_mount(service, workspace=WORKSPACE)
    with open(mount.path / "f", "r+b", buffering=0) as file:
        os.pread(file.fileno(), SIZE, 0)
        before = mount.stats()["requests"].get("READ", 0)
        for _ in range(10):
            os.pread(file.fileno(), SIZE, 0)
            assert (mount.path / "f").read_bytes() == bytes(SIZE)
        assert mount.stats()["requests"].get("READ", 0) - before <= 1

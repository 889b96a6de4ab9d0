"""O_DIRECT: past the page cache of this machine, so what another mount or a process beside the
files writes is seen at once, and the other way round. FUSE asks for no alignment."""

import mmap
import os

import pytest

from lib.harness import wait_until

BLOCK = 4096


@pytest.fixture
def sides(service, start_mount, run_berth):
    run_berth("create", "demo", check=True)
    one, two = (start_mount(service).path / "demo" for _ in range(2))
    return one / "f", two / "f", service.root / "workspaces" / "demo" / "tree" / "f"


def test_reads_see_each_write_of_others(sides):
    one, two, beside = sides
    beside.write_bytes(b"-" * (2 * BLOCK))
    reader = os.open(one, os.O_RDONLY | os.O_DIRECT)
    cached = os.open(one, os.O_RDONLY)
    # (O_DSYNC: other writes of a mount arrive a moment after they were made.)
    writers = [os.open(path, os.O_WRONLY | os.O_DSYNC) for path in (two, beside)]
    try:
        with mmap.mmap(-1, 2 * BLOCK) as memory:
            for i in range(50):
                text = b"%06d" % i
                os.pwrite(writers[i % 2], text, BLOCK)
                assert os.preadv(reader, [memory], 0) == 2 * BLOCK
                assert memory[BLOCK - 1:BLOCK + 7] == b"-" + text + b"-"
                wait_until(lambda text=text: os.pread(cached, 6, BLOCK) == text)
            for i in range(1, 20):  # its size too
                os.pwrite(writers[i % 2], b"longer", (2 + i) * BLOCK - 6)
                assert os.preadv(reader, [memory], (1 + i) * BLOCK) == BLOCK
                assert memory[BLOCK - 6:BLOCK] == b"longer"
            os.truncate(beside, 10)
            assert os.preadv(reader, [memory], 0) == 10
            assert os.preadv(reader, [memory], BLOCK) == 0
    finally:
        for fd in (reader, cached, *writers):
            os.close(fd)


def test_writes_are_at_the_service_at_once(sides):
    one, two, beside = sides
    fd = os.open(one, os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o644)
    try:
        with mmap.mmap(-1, BLOCK) as memory:
            for i in range(20):
                memory[:] = b"%c" % (ord("a") + i) * BLOCK
                assert os.pwritev(fd, [memory], i * BLOCK) == BLOCK
                assert beside.read_bytes()[i * BLOCK:] == memory[:]
                wait_until(lambda i=i, memory=memory: two.read_bytes()[i * BLOCK:] == memory[:])
    finally:
        os.close(fd)


def test_odd_sizes_and_places(sides):
    """Local filesystems may refuse these with EINVAL; here they are done."""
    one, _, beside = sides
    fd = os.open(one, os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o644)
    try:
        assert os.pwrite(fd, b"x" * 4099, 13) == 4099
        assert os.pread(fd, 5000, 10) == b"\0\0\0" + b"x" * 4099
        assert os.pwrite(fd, b"y" * 3, 1) == 3
    finally:
        os.close(fd)
    assert beside.read_bytes() == b"\0yyy" + bytes(9) + b"x" * 4099

"""What docs/semantics.md says of mappings on two mounts of one workspace."""

import errno
import mmap
import os

import pytest

from lib.harness import wait_until


def test_mappings_on_two_mounts(mounted, mounted_too, workspace):
    (mounted / "f").write_bytes(b"x" * 4096)
    here, there = (os.open(place / "f", os.O_RDWR) for place in (mounted, mounted_too))
    memory = mmap.mmap(there, 4096)
    assert memory[:1] == b"x"
    os.pwrite(there, b"w", 0)
    assert memory[:1] == b"w", "a write on the same mount"
    os.fsync(there)  # of writes that are under way the one that arrives last is the last
    os.pwrite(here, b"y", 0)
    wait_until(lambda: os.pread(there, 1, 0) == b"y" and memory[:1] == b"y")
    (workspace / "f").open("r+b", buffering=0).write(b"z")
    def seen_when_opened():
        os.close(os.open(mounted_too / "f", os.O_RDONLY))
        return memory[:1] == b"z"
    wait_until(seen_when_opened)
    memory[1:2] = b"S"
    memory.flush()
    assert os.pread(here, 4, 0) == b"zSxx" and (workspace / "f").read_bytes()[:4] == b"zSxx"
    memory[2:3] = b"T"
    memory.close()
    assert os.pread(here, 4, 0) == b"zSTx", "unmapped"
    # A mapping holds its file: what is stored is written when both have gone.
    with mmap.mmap(there, 4096) as memory:
        memory[3:4] = b"U"
        os.close(there)
    assert os.pread(here, 4, 0) == b"zSTU"
    os.close(here)


def test_positions_beyond_the_largest_size(mounted):
    fd = os.open(mounted / "f", os.O_RDWR | os.O_CREAT)
    assert os.lseek(fd, 1 << 62, os.SEEK_SET) == 1 << 62
    with pytest.raises(OSError) as caught:
        os.write(fd, b"x")
    assert caught.value.errno == errno.EFBIG
    assert os.fstat(fd).st_size == 0 and os.read(fd, 1) == b""
    os.close(fd)

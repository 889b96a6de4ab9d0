"""Many processes that append to one file, on two mounts and beside the files: every record is
there, whole, once. First on a local directory."""

import mmap
import os
import subprocess

import pytest

PYTHON = "/usr/bin/python3"

# argv: path, letter, size of a record, how many. Each record is one write().
WRITER = """
import os, sys
path, letter, size, count = sys.argv[1], sys.argv[2].encode(), int(sys.argv[3]), int(sys.argv[4])
fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
sys.stdin.read(1)
for i in range(count):
    head = b"%s%06d" % (letter, i)
    record = head + letter * (size - len(head) - 1) + b"\\n"
    assert os.write(fd, record) == size
os.close(fd)
"""


@pytest.fixture
def world(service, start_mount, run_berth, harness):
    run_berth("create", "demo", check=True)
    mounts = [start_mount(service) for _ in range(2)]
    return harness, service, [mount.path / "demo" for mount in mounts]


def append_all(harness, writers, size, count):
    """writers: (command line before the script, path) each; started together."""
    running = []
    for i, (prefix, path) in enumerate(writers):
        argv = [*prefix, PYTHON, "-c", WRITER, path, chr(ord("a") + i), size, count]
        running.append(subprocess.Popen([str(word) for word in argv], stdin=subprocess.PIPE,
                                        env=harness.env, cwd=harness.directory))
    for process in running:
        process.stdin.write(b"g")
        process.stdin.close()
    assert [process.wait(50) for process in running] == [0] * len(running)


def check_records(path, writers, size, count):
    data = path.read_bytes()
    assert len(data) == writers * size * count
    next_of = dict.fromkeys(b"abcdefgh"[:writers], 0)
    for at in range(0, len(data), size):
        record = data[at:at + size]
        letter = record[:1]
        head = b"%s%06d" % (letter, next_of[letter[0]])
        assert record == head + letter * (size - len(head) - 1) + b"\n", f"torn or lost at {at}"
        next_of[letter[0]] += 1
    assert set(next_of.values()) == {count}


@pytest.mark.parametrize("size, count", [(10, 200), pytest.param(5000, 60, marks=pytest.mark.long), (100_000, 20)])
def test_records_of_many_writers_are_whole(world, size, count):
    harness, service, (one, two) = world
    local = harness.new_path("local")
    local.mkdir()
    beside = service.root / "workspaces" / "demo" / "tree"
    command = [harness.program("berth"), "--url", service.url, "exec", "-w", "demo", "-i", "--"]
    append_all(harness, [([], local / "log")] * 4, size, count)
    check_records(local / "log", 4, size, count)
    writers = [([], one / "log"), ([], one / "log"), ([], two / "log"), (command, "log"),
               ([], beside / "log")]
    append_all(harness, writers, size, count)
    check_records(beside / "log", 5, size, count)
    assert (one / "log").read_bytes() == (two / "log").read_bytes()


@pytest.mark.long
def test_a_record_of_almost_a_megabyte_is_whole(world):
    """The largest write() that surely is one request: what the kernel takes, less a page."""
    harness, service, (one, two) = world
    size = (1 << 20) - 4096
    append_all(harness, [([], one / "log"), ([], two / "log")], size, 10)
    check_records(one / "log", 2, size, 10)


def test_appending_after_another_mount_has(world):
    """The end is the service's, whatever the kernel here believed last."""
    _, _, (one, two) = world
    a = os.open(one / "f", os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    b = os.open(two / "f", os.O_RDWR | os.O_APPEND)
    try:
        for i in range(5):
            assert os.write(a, b"a%d" % i) == 2
            assert os.write(b, b"b%d" % i) == 2
        assert os.pread(a, 100, 0) == os.pread(b, 100, 0) == b"a0b0a1b1a2b2a3b3a4b4"
        assert os.fstat(a).st_size == os.fstat(b).st_size == 20
        # pwrite() too appends, as on Linux.
        assert os.pwrite(a, b"end", 0) == 3
        assert os.pread(b, 100, 18) == b"b4end"
        os.ftruncate(b, 2)
        assert os.write(a, b"!") == 1
        assert os.pread(b, 100, 0) == b"a0!"
    finally:
        os.close(a)
        os.close(b)


def test_a_file_open_to_append_can_be_mapped(world):
    _, _, (one, two) = world
    with open(one / "f", "wb") as file:
        file.write(b"-" * 10000)
    fd = os.open(one / "f", os.O_RDWR | os.O_APPEND)
    with mmap.mmap(fd, 10000) as memory:
        assert memory[:3] == b"---"
        memory[5000:5003] = b"map"
        assert os.write(fd, b"end") == 3
        memory.flush()
    with mmap.mmap(fd, 10000, flags=mmap.MAP_PRIVATE) as memory:
        assert memory[4999:5004] == b"-map-"
        memory[0:3] = b"own"
    os.close(fd)
    assert (two / "f").read_bytes() == b"-" * 5000 + b"map" + b"-" * 4997 + b"end"


def test_append_set_by_fcntl_goes_to_the_end(world):
    """Not whole any more when it crosses a page, but nothing is overwritten."""
    import fcntl
    _, _, (one, two) = world
    (one / "f").write_bytes(b"first")
    fd = os.open(one / "f", os.O_RDWR)
    fcntl.fcntl(fd, fcntl.F_SETFL, os.O_APPEND)
    with open(two / "f", "ab") as other:
        other.write(b" second")
    os.write(fd, b" third")
    os.close(fd)
    assert (two / "f").read_bytes() == b"first second third"

"""What goes over the wire for a call, and what does not: seen by the relay between the mount and
the service, and by the driver's own counters."""

import errno
import fcntl
import os

import pytest

MIB = 1 << 20


@pytest.fixture
def far(service, start_relay, start_mount, run_berth, caches_kept):
    """A mount behind the relay, with two workspaces, and what passes while a function works:
    bytes in both directions, and the requests by name."""
    for name in ("one", "two"):
        run_berth("create", name, check=True)
    relay = start_relay(service)
    mount = start_mount(service, url=relay.url)

    def passes(work):
        before = mount.stats()["requests"]
        relay.reset_stats()
        work()
        stats = relay.stats()
        after = mount.stats()["requests"]
        asked = {name: count - before.get(name, 0) for name, count in after.items() if count != before.get(name, 0)}
        return stats["to_server"]["bytes"] + stats["to_client"]["bytes"], asked
    return mount.path, passes


def random_file(path, size):
    data = os.urandom(size)
    path.write_bytes(data)
    return data


def test_copies_are_made_at_the_service(far, run):
    root, passes = far
    data = random_file(root / "one" / "f", 8 * MIB)

    def copy(target):
        with open(root / "one" / "f", "rb") as source, open(target, "wb") as out:
            done = 0
            while count := os.copy_file_range(source.fileno(), out.fileno(), 8 * MIB - done):
                done += count
            assert done == 8 * MIB
    # The control: bytes that are written do pass.
    moved, _ = passes(lambda: (root / "one" / "through").write_bytes((root / "one" / "f").read_bytes()))
    assert moved > 8 * MIB
    for target in (root / "one" / "g", root / "two" / "g"):  # of another workspace, too
        moved, asked = passes(lambda target=target: copy(target))
        assert moved < 4096 and asked["COPY"] >= 1, (moved, asked)
        assert "READ" not in asked and "WRITE" not in asked
        assert target.read_bytes() == data
    # cp(1) does it by itself.
    moved, asked = passes(lambda: run(["cp", root / "one" / "f", root / "one" / "by cp"], check=True))
    assert moved < 8192 and asked["COPY"] >= 1, (moved, asked)
    assert (root / "one" / "by cp").read_bytes() == data


def test_a_copy_that_is_larger_than_one_request(far, service):
    """The service copies in parts, so that none keeps a worker for long."""
    root, passes = far
    size = 150 * MIB
    with open(root / "one" / "f", "wb") as file:
        file.truncate(size)
        os.pwrite(file.fileno(), b"middle", 70 * MIB)
        os.pwrite(file.fileno(), b"end", size - 3)

    def copy():
        with open(root / "one" / "f", "rb") as source, open(root / "one" / "g", "wb") as out:
            done = 0
            while count := os.copy_file_range(source.fileno(), out.fileno(), size):
                done += count
            assert done == size
    moved, asked = passes(copy)
    assert moved < 8192 and asked["COPY"] >= 3, (moved, asked)
    below = service.root / "workspaces/one/tree/g"
    assert below.stat().st_size == size
    with open(below, "rb") as file:
        assert os.pread(file.fileno(), 6, 70 * MIB) == b"middle" and os.pread(file.fileno(), 3, size - 3) == b"end"


def test_writing_asks_for_no_attributes(far):
    """The kernel asks for security.capability before it writes; that is answered here."""
    root, passes = far

    def work():
        with open(root / "one" / "f", "wb", buffering=0) as file:
            for _ in range(20):
                file.write(b"x" * 5000)
        with pytest.raises(OSError) as caught:
            os.getxattr(root / "one" / "f", "security.capability")
        assert caught.value.errno == errno.ENODATA
        for name in ("security.selinux", "system.posix_acl_access", "trusted.x", "bogus.x"):
            with pytest.raises(OSError):
                os.getxattr(root / "one" / "f", name)
    _, asked = passes(work)
    assert asked["WRITE"] >= 20 and "GETXATTR" not in asked, asked
    _, asked = passes(lambda: os.setxattr(root / "one" / "f", "user.x", b"1") or os.getxattr(root / "one" / "f", "user.x"))
    assert asked["GETXATTR"] == asked["SETXATTR"] == 1


def test_a_hole_is_punched_without_sending_zeros(far):
    root, passes = far
    random_file(root / "one" / "f", 4 * MIB)
    with open(root / "one" / "f", "r+b") as file:
        moved, asked = passes(lambda: os.posix_fallocate(file.fileno(), 4 * MIB, 4 * MIB))
        assert moved < 4096 and asked["FALLOCATE"] == 1
        moved, asked = passes(lambda: os.ftruncate(file.fileno(), 64 * MIB))
        assert moved < 4096
        moved, asked = passes(lambda: os.lseek(file.fileno(), 0, os.SEEK_DATA) and None)
        assert moved < 4096 and asked["SEEK"] == 1


def test_what_no_file_can_do_is_answered_here(far):
    """isatty, and what lsattr and cp --reflink try."""
    root, passes = far
    (root / "one" / "f").write_bytes(b"x")
    with open(root / "one" / "f", "rb") as file:
        assert passes(file.isatty)[1] == {}

        def flags():
            for number in (0x80086601, 0x801c581f):  # FS_IOC_GETFLAGS, FS_IOC_FSGETXATTR
                with pytest.raises(OSError) as caught:
                    fcntl.ioctl(file.fileno(), number, bytes(64))
                assert caught.value.errno == errno.ENOTTY
        # The kernel opens the file once more to ask the driver.
        assert set(passes(flags)[1]) <= {"OPEN", "RELEASE"}

        def clone():
            with open(root / "one" / "g", "wb") as out, pytest.raises(OSError) as caught:
                fcntl.ioctl(out.fileno(), 0x40049409, file.fileno())  # FICLONE
            assert caught.value.errno == errno.EOPNOTSUPP
        assert not {"COPY", "READ", "WRITE"} & set(passes(clone)[1])

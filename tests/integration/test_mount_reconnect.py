"""A mount whose service goes away and comes back."""

import errno
import os
import subprocess
import threading
import time

import pytest

from lib import harness
from lib import mounts


@pytest.fixture
def demo(service, start_mount, run_berth):
    run_berth("create", "demo", check=True)
    mount = start_mount(service)
    return mount, mount.path / "demo"


def crash_and_restart(service):
    service.kill()
    return service.restart()


def connected(mount):
    return lambda: mount.stats()["connected"]


def test_reads_writes_and_listings_go_on_after_a_crash(demo, service):
    mount, path = demo
    (path / "a" / "b" / "c").mkdir(parents=True)
    (path / "a/b/c/file").write_bytes(b"0123456789")
    (path / "a" / "b" / "renamed-from").write_bytes(b"r")
    inode = os.stat(path / "a/b/c/file").st_ino
    with open(path / "a/b/c/file", "r+b", buffering=0) as file, \
            open(path / "a/b/renamed-from", "r+b", buffering=0) as renamed:
        os.rename(path / "a/b/renamed-from", path / "a/renamed-to")
        directory = os.open(path / "a/b/c", os.O_RDONLY | os.O_DIRECTORY)
        try:
            crash_and_restart(service)
            # Without a path: the driver itself must find them again.
            assert os.pread(file.fileno(), 4, 2) == b"2345"
            assert os.pwrite(file.fileno(), b"XY", 0) == 2
            assert os.fstat(file.fileno()).st_ino == inode
            assert os.pread(renamed.fileno(), 1, 0) == b"r"
            assert os.listdir(directory) == ["file"]
            os.close(os.open("new", os.O_WRONLY | os.O_CREAT, dir_fd=directory))
        finally:
            os.close(directory)
        os.fsync(file.fileno())
    assert (path / "a/b/c/file").read_bytes() == b"XY23456789"
    assert sorted(os.listdir(path / "a/b/c")) == ["file", "new"]
    assert os.listdir(mount.path) == ["demo"]
    assert os.stat(path / "a/b/c/file").st_ino == inode
    assert mount.stats()["reconnects"] == 1


def test_the_open_root_is_listed_after_a_crash(demo, service):
    """It has no handle at the service."""
    mount, _ = demo
    directory = os.open(mount.path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        crash_and_restart(service)
        assert os.listdir(directory) == ["demo"]
        assert os.listdir(directory) == ["demo"]
    finally:
        os.close(directory)


@pytest.mark.parametrize("flags", [os.O_CREAT | os.O_EXCL, os.O_TRUNC])
def test_opening_again_neither_truncates_nor_fails_for_exclusive_files(demo, service, flags):
    _, path = demo
    if not flags & os.O_EXCL:
        (path / "f").write_bytes(b"old")
    fd = os.open(path / "f", os.O_RDWR | flags, 0o600)
    try:
        os.write(fd, b"kept")
        os.fsync(fd)
        crash_and_restart(service)
        assert os.pread(fd, 10, 0) == b"kept"
        assert os.pwrite(fd, b"K", 0) == 1
    finally:
        os.close(fd)
    assert (path / "f").read_bytes() == b"Kept"


def test_what_was_unlinked_while_open_is_stale_after_a_crash(demo, service):
    _, path = demo
    fd = os.open(path / "f", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.write(fd, b"gone")
        os.unlink(path / "f")
        assert os.pread(fd, 10, 0) == b"gone"
        crash_and_restart(service)
        # The same name is another file now, and must not be taken for the first.
        (path / "f").write_bytes(b"other")
        with pytest.raises(OSError) as caught:
            os.pwrite(fd, b"wrong", 0)
        assert caught.value.errno == errno.ESTALE
    finally:
        os.close(fd)
    assert (path / "f").read_bytes() == b"other"


def test_a_file_replaced_while_the_service_was_down_is_not_taken_for_the_old(demo, service):
    _, path = demo
    below = service.root / "workspaces" / "demo" / "tree"
    (path / "f").write_bytes(b"old")
    fd = os.open(path / "f", os.O_RDWR)
    try:
        service.kill()
        (below / "g").write_bytes(b"new")
        os.rename(below / "g", below / "f")
        service.restart()
        for call in (lambda: os.pwrite(fd, b"wrong", 0), lambda: os.pread(fd, 10, 0),
                     lambda: os.fstat(fd)):
            with pytest.raises(OSError) as caught:
                call()
            assert caught.value.errno == errno.ESTALE
    finally:
        os.close(fd)
    assert (path / "f").read_bytes() == b"new"


def test_without_a_service_calls_fail_in_time_and_the_root_stays(service, start_mount, run_berth):
    run_berth("create", "demo", check=True)
    mount = start_mount(service, options="timeout=1")
    path = mount.path / "demo"
    (path / "f").write_bytes(b"x")
    space = os.statvfs(mount.path).f_blocks
    assert space > 0
    service.kill()
    start = time.monotonic()
    with pytest.raises(OSError) as caught:
        (path / "f").read_bytes()
    assert caught.value.errno == errno.EIO
    assert time.monotonic() - start < 3
    start = time.monotonic()
    assert os.statvfs(mount.path).f_blocks == space
    assert os.stat(mount.path).st_mode & 0o777 == 0o755
    assert mount.stats()["connected"] is False
    assert time.monotonic() - start < 0.5
    with pytest.raises(OSError) as caught:
        os.listdir(mount.path)
    assert caught.value.errno == errno.EIO
    service.restart()
    harness.wait_until(connected(mount), what="the connection")
    assert (path / "f").read_bytes() == b"x"


def test_the_root_of_one_workspace_stays_too(service, start_mount, run_berth):
    run_berth("create", "demo", check=True)
    mount = start_mount(service, workspace="demo", options="timeout=1")
    (mount.path / "f").write_bytes(b"x")
    space = os.statvfs(mount.path).f_blocks
    inode = os.stat(mount.path).st_ino
    service.kill()
    harness.wait_until(lambda: not mount.stats()["connected"], what="the loss")
    start = time.monotonic()
    assert os.statvfs(mount.path).f_blocks == space > 0
    assert os.stat(mount.path).st_ino == inode
    assert time.monotonic() - start < 0.5
    service.restart()
    harness.wait_until(connected(mount), what="the connection")
    assert os.listdir(mount.path) == ["f"]
    assert (mount.path / "f").read_bytes() == b"x"


def test_waiting_calls_are_done_when_the_service_returns(demo, service):
    mount, path = demo
    (path / "f").write_bytes(b"x" * 300000)
    fd = os.open(path / "f", os.O_RDWR)
    service.kill()
    harness.wait_until(lambda: not mount.stats()["connected"], what="the loss")
    results = {}

    def write():
        results["write"] = os.pwrite(fd, b"y" * 200000, 50000)

    def read():
        results["read"] = (path / "f").read_bytes()[:3]
    threads = [threading.Thread(target=write), threading.Thread(target=read)]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    assert not results
    service.restart()
    for thread in threads:
        thread.join(20)
    os.close(fd)
    assert results == {"write": 200000, "read": b"xxx"}
    assert (path / "f").read_bytes() == b"x" * 50000 + b"y" * 200000 + b"x" * 50000


def test_what_is_in_flight_is_done_once(service, start_relay, start_mount, run_berth):
    run_berth("create", "demo", check=True)
    relay = start_relay(service)
    mount = start_mount(service, url=relay.url)
    path = mount.path / "demo"
    (path / "f").write_bytes(b"x")
    fd = os.open(path / "f", os.O_RDWR)
    # Other files: the kernel lets one change of a file at a time through, and none beside a read.
    # (Who does not ask for the answer hears of it from close: test_pipelining.py.)
    written, cut = [os.open(path / name, os.O_RDWR | os.O_CREAT | os.O_DSYNC) for name in "gh"]
    result = {}

    def call(name, function):
        try:
            result[name] = function()
        except OSError as error:
            result[name] = error.errno
    calls = {"pread": lambda: os.pread(fd, 1, 0), "pwrite": lambda: os.pwrite(written, b"y", 1),
             "stat": lambda: os.stat(path / "f").st_size > 0,
             "truncate": lambda: os.ftruncate(cut, 5)}
    relay.stall()
    threads = [threading.Thread(target=call, args=item) for item in calls.items()]
    for thread in threads:
        thread.start()
    time.sleep(0.3)
    assert not result
    relay.cut()
    relay.resume()
    for thread in threads:
        thread.join(10)
    for file in (fd, written, cut):
        os.close(file)
    assert result == {"pread": b"x", "pwrite": 1, "stat": True, "truncate": None}
    assert (path / "g").read_bytes() == b"\0y" and (path / "h").stat().st_size == 5
    harness.wait_until(connected(mount), what="the connection")


def test_a_silent_connection_is_given_up(service, start_relay, start_mount, run_berth):
    run_berth("create", "demo", check=True)
    relay = start_relay(service)
    mount = start_mount(service, url=relay.url, options="timeout=1")
    path = mount.path / "demo"
    (path / "f").write_bytes(b"x")
    relay.refuse()
    relay.half_open()
    start = time.monotonic()
    with pytest.raises(OSError) as caught:
        os.stat(path / "f")
    assert caught.value.errno == errno.EIO
    assert time.monotonic() - start < 6
    relay.refuse(False)
    harness.wait_until(connected(mount), what="the connection")
    assert (path / "f").read_bytes() == b"x"


def test_another_service_at_the_same_place_ends_the_mount(demo, service, start_service):
    """Its files are others, though names and numbers may agree."""
    mount, path = demo
    (path / "f").write_bytes(b"x")
    mount.expected_status = {1}
    service.kill()
    start_service(listen=[service.url])
    harness.wait_until(lambda: not mount.running(), what="the driver's end")
    assert "another service" in mount.log
    assert mounts.find_mount(mount.path) is None


def test_many_files_are_found_again_at_once(service, start_relay, start_mount, run_berth):
    """One round trip a level and one to open, not one after the other for each file."""
    run_berth("create", "demo", check=True)
    relay = start_relay(service)
    mount = start_mount(service, url=relay.url)
    path = mount.path / "demo" / "d"
    path.mkdir()
    fds = []
    for i in range(100):
        (path / f"f{i}").write_bytes(b"%d" % i)
        fds.append(os.open(path / f"f{i}", os.O_RDONLY))
    relay.cut()
    harness.wait_until(lambda: mount.stats()["reconnects"] == 1, what="the connection")
    relay.delay(50)
    results = [None] * 100

    def read(i):
        results[i] = os.pread(fds[i], 10, 0)
    threads = [threading.Thread(target=read, args=(i,)) for i in range(100)]
    start = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.monotonic() - start
    relay.delay(0)
    for fd in fds:
        os.close(fd)
    assert results == [b"%d" % i for i in range(100)]
    assert took < 2, took


def test_a_workspace_removed_under_the_mount(demo, run_berth):
    mount, path = demo
    run_berth("create", "other", check=True)
    (path / "f").write_bytes(b"x")
    fd = os.open(path / "f", os.O_RDONLY)
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        run_berth("rm", "demo", check=True)
        assert os.listdir(mount.path) == ["other"]
        for call in (lambda: os.stat(path / "f"), lambda: os.listdir(path),
                     lambda: (path / "new").write_bytes(b"")):
            with pytest.raises(OSError) as caught:
                call()
            assert caught.value.errno in (errno.ENOENT, errno.ESTALE)
        with pytest.raises(OSError) as caught:
            os.close(os.open("new", os.O_WRONLY | os.O_CREAT, dir_fd=directory))
        assert caught.value.errno in (errno.ENOENT, errno.ESTALE)
    finally:
        os.close(directory)
        os.close(fd)
    run_berth("create", "demo", check=True)
    assert os.listdir(path) == []
    (path / "f").write_bytes(b"again")
    assert subprocess.run(["cat", path / "f"], capture_output=True, timeout=10,
                          check=True).stdout == b"again"

"""The service works where an agent has written: whatever the agent puts there, and swaps while the
service looks, nothing outside the workspace is opened, read or changed, and no FIFO, socket or
device is opened. With openat2, and with the kernel refusing it. The same for each message of the
wire, many more times: tests/unit/test_store_races.c."""

import contextlib
import errno
import os
import re
import socket
import stat
import threading
import time

import pytest

from lib.berthwire import CallError, Connection
from lib.canary import IN_CLOSE, IN_OPEN, TEXT, Swapper, Watch
from lib.exec_client import ExecClient
from lib.sockets import bound_socket

ROUNDS = 300
SECONDS = 6

# Nothing inside is so large.
OUTSIDE_SIZE = 4242

NAMES = ("victim", "file", "link", "hard", "moved", "node", "only-outside")


def refusing(harness, program, **calls):
    """A wrapper of a program for which system calls fail: refusing(harness, "berthd", openat2=38)."""
    rules = " ".join(f"{name}={number}" for name, number in calls.items())
    wrapper = harness.new_path(program)
    wrapper.write_text(f"#!/bin/sh\nexec '{harness.build}/tests/tools/refuse' {rules} -- "
                       f"'{harness.program(program)}' \"$@\"\n")
    wrapper.chmod(0o755)
    return wrapper


@pytest.fixture(params=["openat2", "fallback"])
def service(request, harness, monkeypatch):
    if request.param == "fallback":
        monkeypatch.setitem(harness.binaries, "berthd",
                            refusing(harness, "berthd", openat2=errno.ENOSYS))
    started = harness.start_service()
    # One of them is the service's own.
    filters = re.search(r"^Seccomp_filters:\t(\d+)$", open(f"/proc/{started.pid}/status").read(), re.MULTILINE)
    assert int(filters.group(1)) == 1 + (request.param == "fallback")
    return started


@pytest.fixture
def tree(service, run_berth):
    run_berth("create", "demo", check=True)
    return service.root / "workspaces" / "demo" / "tree"


@pytest.fixture
def outside(service, tree):
    """A directory beside the workspaces, with all the names used. A link that the service followed
    would lead there; followed on the mount, it leads nowhere."""
    directory = service.root / "outside"
    (directory / "e").mkdir(parents=True)
    with Watch() as watch:
        for place in (directory, directory / "e"):
            for name in NAMES:
                (place / name).write_bytes(TEXT.ljust(OUTSIDE_SIZE))
                watch.add(place / name)
            (place / "directory").mkdir()
            watch.add(place / "directory")
        for place in (directory, directory / "e"):
            watch.add(place)
        yield directory
        watch.check()


def quietly(call, *arguments, **keywords):
    """Calls; how it failed does not matter here."""
    with contextlib.suppress(OSError):
        return call(*arguments, **keywords)
    return None


def everything_on(d, e, number):
    """Every system call that a mount passes on, on names of the directories d and e."""
    def file_calls(fd):
        assert TEXT not in (quietly(os.pread, fd, 4096, 0) or b"")
        quietly(os.pwrite, fd, b"by the client", 0)
        quietly(os.ftruncate, fd, number % 20)
        quietly(os.fchmod, fd, 0o600 + number % 8)
        quietly(os.fchown, fd, 0, 0)
        quietly(os.posix_fallocate, fd, 0, 10)
        quietly(os.lseek, fd, 0, os.SEEK_DATA)
        quietly(os.copy_file_range, fd, fd, 5, 0, 100)
        quietly(os.setxattr, fd, b"user.client", b"x")
        quietly(os.getxattr, fd, b"user.client")
        quietly(os.listxattr, fd)
        quietly(os.removexattr, fd, b"user.client")
        quietly(os.fstatvfs, fd)
        quietly(os.fsync, fd)
        quietly(os.fstat, fd)

    def open_in(name, flags):
        fd = quietly(os.open, name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644, dir_fd=e)
        if fd is not None:
            file_calls(fd)
            quietly(os.close, fd)

    open_in("victim", os.O_RDWR)
    open_in("file", os.O_RDWR | os.O_CREAT | (os.O_TRUNC if number % 2 else 0))
    open_in("only-outside", os.O_RDONLY)
    for name in ("victim", "only-outside"):
        status = quietly(os.stat, name, dir_fd=e, follow_symlinks=False)
        assert status is None or status.st_size != OUTSIDE_SIZE
        quietly(os.utime, name, dir_fd=e, follow_symlinks=False)
        quietly(os.chown, name, 0, 0, dir_fd=e, follow_symlinks=False)
    quietly(os.readlink, "link", dir_fd=e)
    quietly(os.symlink, "../../../outside/e", "link", dir_fd=e)
    quietly(os.mkdir, "directory", dir_fd=e)
    quietly(os.mknod, "node", stat.S_IFIFO | 0o644, dir_fd=e)
    quietly(os.link, "victim", "hard", src_dir_fd=e, dst_dir_fd=e, follow_symlinks=False)
    quietly(os.rename, "file", "moved", src_dir_fd=e, dst_dir_fd=d)
    quietly(os.rename, "only-outside", "moved", src_dir_fd=e, dst_dir_fd=e)
    assert "only-outside" not in (quietly(os.listdir, e) or ())
    for name in ("link", "hard", "node", "moved", "only-outside"):
        quietly(os.unlink, name, dir_fd=e)
    quietly(os.unlink, "moved", dir_fd=d)
    quietly(os.rmdir, "directory", dir_fd=e)


# Before a merge each place in one of the two ways, and each way in a place.
IN_BOTH_WAYS = [pytest.param(way, swapped, marks=[pytest.mark.long] if (way == "openat2") == (swapped == "d/e") else [])
                for way in ("openat2", "fallback") for swapped in ("d", "d/e", "d/e/victim")]


@pytest.mark.slow
@pytest.mark.parametrize("service, swapped", IN_BOTH_WAYS, indirect=["service"])
def test_mount_while_names_are_swapped(swapped, service, tree, outside, start_mount):
    (tree / "d" / "e").mkdir(parents=True)
    (tree / "d" / "e" / "victim").write_bytes(b"inside")
    mount = start_mount(service, workspace="demo", options=["symlinks=verbatim"])
    # From the directory that holds the link to the outside as the service would go.
    up = "../" * (3 + swapped.count("/"))
    link = tree / f"{swapped}.swap"
    link.symlink_to(up + "outside" + swapped[1:])
    assert (link / ".." if swapped.endswith("victim") else link).resolve() in (
        outside, outside / "e")
    d = os.open(mount.path / "d", os.O_RDONLY | os.O_DIRECTORY)
    e = os.open(mount.path / "d" / "e", os.O_RDONLY | os.O_DIRECTORY)
    rounds, end = 0, time.monotonic() + SECONDS
    try:
        with Swapper(tree / swapped, link):
            while rounds < ROUNDS and time.monotonic() < end:
                everything_on(d, e, rounds)
                rounds += 1
    finally:
        os.close(d)
        os.close(e)
    assert rounds > 5


@pytest.mark.slow
def test_exec_directory_while_names_are_swapped(service, tree, outside):
    """berth exec -C d/e runs there or not at all."""
    (tree / "d" / "e").mkdir(parents=True)
    (tree / "d" / "e" / "victim").write_bytes(b"inside")
    (tree / "d.swap").symlink_to("../../../outside")
    outcomes = {True: 0, False: 0}
    end = time.monotonic() + SECONDS
    with ExecClient(service.socket) as client, Swapper(tree / "d", tree / "d.swap"):
        while sum(outcomes.values()) < ROUNDS and time.monotonic() < end:
            call = client.start("demo", ["/bin/cat", "victim"], cwd="d/e")
            verdict = client.wait(call)
            if verdict.verdict == "exited" and verdict.code == 0:
                assert bytes(call.output[1]) == b"inside"
                outcomes[True] += 1
            else:
                assert (verdict.verdict, verdict.stage) == ("not_started", "cwd")
                outcomes[False] += 1
    assert sum(outcomes.values()) > 5


# --- FIFOs, sockets, devices ---------------------------------------------------------------

def plant(tree):
    """One of each, as an agent makes them; what they are when opened: a wait, or a side effect."""
    os.mkfifo(tree / "fifo")
    with bound_socket(tree / "socket"):
        pass
    os.mknod(tree / "device", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    os.mknod(tree / "block", stat.S_IFBLK | 0o666, os.makedev(7, 255))
    return ("fifo", "socket", "device", "block")


@pytest.fixture
def special(tree, monkeypatch):
    monkeypatch.chdir(tree)
    names = plant(tree)
    with Watch() as watch:
        for name in names:
            watch.add(tree / name, IN_OPEN | IN_CLOSE)
        yield names
        watch.check()


def test_special_files_on_the_wire(service, special):
    """Each is refused at once, with an errno of its own, and what is beside them still works."""
    with Connection.unix(service.socket) as wire:
        wire.upgrade()
        wire.hello()
        root = wire.call("WORKSPACE_OPEN", key=b"demo")["node"]
        for name in special:
            entry = wire.call("LOOKUP", parent=root, name=name.encode())
            node, status = entry["node"], os.lstat(name)
            assert entry["attr"]["mode"] == status.st_mode
            assert entry["attr"]["rdev"] == status.st_rdev

            def refused(message, expected, **fields):
                with pytest.raises(CallError) as caught:
                    wire.call(message, **fields)
                assert caught.value.errno == expected, message

            for flags in (1, 2, 3, 2 | 8, 1 | 32):  # READ, WRITE, TRUNCATE, DIRECTORY
                refused("OPEN", errno.ENOTDIR if flags & 32 else errno.ENXIO, node=node, flags=flags)
            refused("CREATE", errno.ESTALE, parent=root, flags=3, mode=0o644, name=name.encode())
            refused("CREATE", errno.EEXIST, parent=root, flags=3 | 16, mode=0o644,
                    name=name.encode())
            refused("SETATTR", errno.EINVAL, node=node, valid=8, size=0)
            refused("READLINK", errno.EINVAL, node=node)
            refused("SETXATTR", errno.EPERM, node=node, name=b"user.x", value=b"x")
            wire.call("SETATTR", node=node, valid=1, mode=0o640)
            assert stat.S_IMODE(os.lstat(name).st_mode) == 0o640
            wire.call("LINK", node=node, parent=root, name=b"hard")
            wire.call("RENAME", parent=root, name=b"hard", new_parent=root, new_name=b"moved")
            wire.call("UNLINK", parent=root, name=b"moved")
        wire.call("PING", nonce=1)


def test_special_files_on_the_mount(service, special, start_mount, run):
    """A FIFO of the mount is the kernel's, between programs of this machine, and nobody's at the
    service; sockets and devices answer as on any filesystem mounted without devices."""
    mount = start_mount(service, workspace="demo")
    received = []

    def read():
        with open(mount.path / "fifo", "rb") as reader:
            received.append(reader.read())

    reader = threading.Thread(target=read)
    reader.start()
    with open(mount.path / "fifo", "wb") as writer:
        writer.write(b"through the mount")
    reader.join(20)
    assert received == [b"through the mount"]
    with pytest.raises(OSError) as refused:
        os.open(mount.path / "fifo", os.O_WRONLY | os.O_NONBLOCK)
    assert refused.value.errno == errno.ENXIO

    with socket.socket(socket.AF_UNIX) as client, pytest.raises(ConnectionRefusedError):
        os.chdir(mount.path)
        client.connect("socket")
    os.chdir("/")
    with pytest.raises(OSError) as refused:
        os.open(mount.path / "socket", os.O_RDWR)
    assert refused.value.errno == errno.ENXIO
    for name in ("device", "block"):
        with pytest.raises(PermissionError) as refused:
            os.open(mount.path / name, os.O_RDWR)
        assert refused.value.errno == errno.EACCES
    # Tools that copy or walk do not read them.
    run(["cp", "-a", mount.path / "fifo", mount.path / "copy"], check=True)
    assert stat.S_ISFIFO(os.lstat(mount.path / "copy").st_mode)
    run(["tar", "cf", "/dev/null", "-C", mount.path, "fifo", "device", "block"], check=True)
    run(["find", mount.path, "-type", "f"], check=True)


@pytest.mark.slow
def test_special_files_in_the_place_of_files(service, tree, start_mount, run):
    """A file is a FIFO, and a device, by the time that it is opened: programs on the mount get an
    error or the kernel's own FIFO, never a service that waits."""
    (tree / "victim").write_bytes(b"inside")
    os.mkfifo(tree / "fifo")
    os.mknod(tree / "device", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    mount = start_mount(service, workspace="demo")
    for name in ("fifo", "device"):
        with Watch() as watch:
            watch.add(tree / name, IN_OPEN | IN_CLOSE)
            rounds, end = 0, time.monotonic() + SECONDS / 2
            with Swapper(tree / "victim", tree / name):
                while rounds < ROUNDS and time.monotonic() < end:
                    flags = os.O_RDWR if rounds % 2 else os.O_RDONLY | os.O_NONBLOCK
                    fd = quietly(os.open, mount.path / "victim", flags)
                    if fd is not None:
                        quietly(os.close, fd)
                    rounds += 1
            assert rounds > 5
            # Which of the two is where does not matter to the watch, but to the control.
            if not stat.S_ISREG(os.lstat(tree / "victim").st_mode):
                os.rename(tree / name, tree / "file")
                os.rename(tree / "victim", tree / name)
                os.rename(tree / "file", tree / "victim")
            watch.check()
    assert (mount.path / "victim").read_bytes() == b"inside"

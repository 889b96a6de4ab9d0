"""Large files: read ahead when they are read from one end to the other, and not when they are read
here and there; and never an older state than was told."""

import contextlib
import ctypes
import os
import random
import socket
import ssl
import struct
import time

import pytest

from lib import kernel_caches
from lib.berthwire import Connection
from lib.cached import through_relay, workspace  # noqa: F401, fixtures
from lib.exec_client import WORKSPACE, ExecClient
from lib.harness import wait_until

MIB = 1 << 20
SIZE = 24 * MIB
STEP = 128 << 10  # of one READ
PIDFD_GETFD = 438


@pytest.fixture
def opened():
    """A function that opens a file until the end of the test, before the mounts go."""
    descriptors = []

    def open_it(path):
        descriptors.append(os.open(path, os.O_RDONLY))
        return descriptors[-1]
    yield open_it
    for descriptor in descriptors:
        os.close(descriptor)


@pytest.fixture
def large(workspace):
    """Its path in the workspace; what is in it says where."""
    path = workspace / "large"
    with open(path, "wb") as file:
        for offset in range(0, SIZE, 4096):
            file.write(page(offset))
    return path


def page(offset, text=b"old"):
    return (b"%s %d " % (text, offset) * 1024)[:4096]


def forget_pages():
    kernel_caches.drop("1")


def read_through(descriptor):
    for offset in range(0, SIZE, MIB):
        block = os.pread(descriptor, MIB, offset)
        for at in range(0, MIB, 4096):
            assert block[at:at + 4096] == page(offset + at), offset + at


def test_a_file_read_from_one_end_to_the_other(large, through_relay, opened):
    mount, count = through_relay()
    descriptor = opened(mount.path / "large")
    cost = count(lambda: read_through(descriptor))
    print(cost)
    # The first three tell that more is wanted. Then somebody waits only for what is under way: a few
    # times more where other tests keep the processors busy, and not for each of 96.
    assert cost["blocking"] <= 16, cost
    assert cost["kinds"]["READ"] <= 1.5 * SIZE / (256 << 10), cost
    assert os.pread(descriptor, 10, SIZE) == b""


def test_a_file_read_here_and_there(large, through_relay, opened):
    mount, count = through_relay()
    descriptor = opened(mount.path / "large")
    rng = random.Random(1)

    def some():
        for offset in rng.sample(range(0, SIZE, 4096), 200):
            assert os.pread(descriptor, 4096, offset) == page(offset)
    cost = count(some)
    print(cost)
    # A few more where the kernel drops a page between two reads of a busy machine.
    assert cost["kinds"]["READ"] <= 240 and cost["bytes"] < 200 * 4096 * 1.2, cost


@pytest.mark.parametrize("by", ["a command", pytest.param("another mount", marks=pytest.mark.long), pytest.param("this mount", marks=pytest.mark.long)])
def test_a_change_while_it_is_read(large, service, start_mount, opened, by):
    mount, other = (start_mount(service, workspace=WORKSPACE) for _ in range(2))
    for each in (mount, other):
        wait_until(lambda each=each: each.stats()["coherent"], what="reports of changes")
    with ExecClient(service.socket) as client:
        for number in range(12):
            descriptor = opened(mount.path / "large")
            # The kernel then asks for nothing by itself: what it wants after the change is what follows.
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
            offset = 0
            while offset < 2 * MIB:  # what follows is under way, or here
                assert os.pread(descriptor, STEP, offset)[:3] in (b"old", b"new")
                offset += STEP
            text = b"new %06d" % number
            where = offset + (number % 6) * STEP
            if by == "a command":
                client.run(WORKSPACE, ["sh", "-c", f"printf '{text.decode()}' |"
                                       f" dd of=large bs=1 seek={where} conv=notrunc status=none"])
            else:
                path = (other if by == "another mount" else mount).path / "large"
                with open(path, "r+b", buffering=0) as file:
                    os.pwrite(file.fileno(), text, where)
            while offset <= where:
                block = os.pread(descriptor, STEP, offset)
                offset += STEP
            assert block.startswith(text), number
            forget_pages()


def test_a_file_cut_while_it_is_read(large, service, start_mount, opened):
    mount = start_mount(service, workspace=WORKSPACE)
    wait_until(lambda: mount.stats()["coherent"], what="reports of changes")
    descriptor = opened(mount.path / "large")
    assert len(os.pread(descriptor, 2 * MIB, 0)) == 2 * MIB
    with ExecClient(service.socket) as client:
        client.run(WORKSPACE, ["truncate", "-s", str(2 * MIB + 5), "large"])
    assert os.pread(descriptor, MIB, 2 * MIB) == page(2 * MIB)[:5]


@pytest.mark.long
def test_readers_of_many_files(workspace, service, start_mount):
    """What is read ahead has a bound for all together."""
    for number in range(24):
        (workspace / f"f{number}").write_bytes(bytes([number]) * 6 * MIB)
    mount = start_mount(service, workspace=WORKSPACE)
    wait_until(lambda: mount.stats()["coherent"], what="reports of changes")
    descriptors = [os.open(mount.path / f"f{number}", os.O_RDONLY) for number in range(24)]
    most = 0
    for offset in range(0, 4 * MIB, 256 << 10):
        for number, descriptor in enumerate(descriptors):
            assert os.pread(descriptor, 256 << 10, offset) == bytes([number]) * (256 << 10)
        most = max(most, mount.stats()["sequence_bytes"])
    assert 4 * MIB < most <= 32 * MIB
    for descriptor in descriptors:
        os.close(descriptor)
    wait_until(lambda: mount.stats()["sequence_bytes"] == 0)


# --- TLS: records of 16 KiB, of which a segment of the loopback's holds four ----------------

def carried(sock):
    """Segments and bytes received, and sent, as linux/tcp.h has them."""
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 160)
    return [struct.unpack_from(kind, info, at)[0] for kind, at in (("I", 152), ("Q", 128), ("I", 156), ("Q", 120))]


@pytest.fixture
def wire(start_service, certificates):
    """A connection to a service, which has a file with a handle, and the file's path."""
    service = start_service(tls=True)
    address, port = service.tls_url.removeprefix("https://").split(":")
    with Connection.tcp(address, int(port), ssl.create_default_context(cafile=certificates.ca), timeout=60) as peer:
        peer.upgrade(token=service.token)
        peer.hello()
        peer.call("WORKSPACE_CREATE", thread_id=b"demo")
        peer.path = service.root / "workspaces" / "demo" / "tree" / "f"
        peer.path.write_bytes(b"")
        root = peer.call("WORKSPACE_OPEN", key=b"demo")["node"]
        node = peer.call("LOOKUP", parent=root, name=b"f")["node"]
        peer.handle = peer.call("OPEN", node=node, flags=3)["handle"]
        yield peer


def test_segments_are_filled(wire):
    data = random.Random(5).randbytes(8 * MIB)
    wire.path.write_bytes(data)
    segments, before, _, _ = carried(wire.sock)
    tags = [wire.request("READ", handle=wire.handle, offset=offset, size=MIB // 4)
            for offset in range(0, len(data), MIB // 4)]
    assert b"".join(wire.reply(tag)["data"] for tag in tags) == data
    count, size = (now - then for now, then in zip(carried(wire.sock), (segments, before)))
    assert size > len(data)
    assert size / count > 32 << 10
    # What is small does not wait for more.
    started = time.monotonic()
    for _ in range(20):
        wire.call("READ", handle=wire.handle, offset=0, size=1)
    assert time.monotonic() - started < 2


def test_segments_of_what_is_written_are_filled(start_service, start_mount, run_berth):
    service = start_service(tls=True)
    run_berth("create", "demo", check=True)
    mount = start_mount(service, url=service.tls_url)
    path = mount.path / "demo" / "f"
    data = random.Random(6).randbytes(8 * MIB)
    with borrowed_socket(mount.pid) as sock:
        _, _, segments, before = carried(sock)
        path.write_bytes(data)
        count, size = (now - then for now, then in zip(carried(sock)[2:], (segments, before)))
        assert size > len(data)
        assert size / count > 32 << 10
        started = time.monotonic()
        for number in range(20):
            path.with_name(f"f{number}").write_bytes(b"x")
        assert time.monotonic() - started < 4
    assert (service.root / "workspaces" / "demo" / "tree" / "f").read_bytes() == data


@contextlib.contextmanager
def borrowed_socket(pid):
    """The TCP socket of another process."""
    process = os.pidfd_open(pid)
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            if os.readlink(f"/proc/{pid}/fd/{name}").startswith("socket:"):
                descriptor = ctypes.CDLL(None, use_errno=True).syscall(PIDFD_GETFD, process, int(name), 0)
                assert descriptor >= 0, os.strerror(ctypes.get_errno())
                with socket.socket(fileno=descriptor) as sock:
                    if sock.family == socket.AF_INET:
                        yield sock
                        return
    finally:
        os.close(process)
    raise AssertionError("it has no TCP connection")


def test_what_comes_in_records_of_any_size_is_taken(wire):
    """The service takes several at once, and must not forget a part that the TLS library has."""
    chance = random.Random(7)
    expected, tags = b"", []
    for size in [16384 - 40, 16384, 16385, 65536, *(chance.randrange(1, 100_000) for _ in range(200))]:
        data = chance.randbytes(size)
        tags.append(wire.request("WRITE", handle=wire.handle, offset=len(expected), data=data))
        expected += data
        if chance.random() < 0.2:
            wire.reply(tags.pop())
    for tag in tags:
        wire.reply(tag)
    assert wire.path.read_bytes() == expected

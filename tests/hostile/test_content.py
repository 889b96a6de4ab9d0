"""Content in advance: whatever a client asks for, and whatever is done to the files meanwhile, an
answer comes soon, and what it says is of one version of each file."""

import errno
import os
import stat
import struct
import subprocess
import sys
import time

import pytest

from lib.berthwire import CONSTANTS, CallError, Connection, decode_list
from lib.sockets import bound_socket

FILE_MAX = CONSTANTS["WIRE_FILE_MAX"]
FILES_MAX = CONSTANTS["WIRE_FILES_MAX"]
FULL = 1 << 20
BY_NAME = 1


@pytest.fixture
def tree(service, tmp_path):
    """A client, its root node, and the same directory."""
    with connect(service) as connection:
        connection.call("WORKSPACE_CREATE", thread_id=b"demo")
        root = connection.call("WORKSPACE_OPEN", key=b"demo")["node"]
        yield connection, root, service.root / "workspaces" / "demo" / "tree"


def connect(service):
    connection = Connection.unix(service.socket)
    connection.upgrade()
    connection.hello()
    return connection


def look_up(connection, parent, name):
    return connection.call("LOOKUP", parent=parent, name=name)["node"]


def forget(connection, node):
    connection.send("FORGET", 0, pairs=struct.pack("<QQ", node, 1))


def read_files(connection, nodes, size=FULL, flags=0):
    files = connection.call("READFILES", size=size, flags=flags,
                            files=[struct.pack("<Q", node) for node in nodes])["files"]
    found = decode_list("FILE", files)
    assert [file["node"] for file in found] == list(nodes[:len(found)])
    for file in found:
        assert len(file["data"]) == file["attr"]["size"]
        assert not (file["error"] and file["data"])
    return found


def test_whatever_is_asked_for(service, tree):
    """Nothing but files is opened, a pipe least of all; each has an answer of its own."""
    connection, root, path = tree
    (path / "file").write_bytes(b"file")
    (path / "empty").write_bytes(b"")
    (path / "full").write_bytes(b"f" * FILE_MAX)
    (path / "large").write_bytes(b"l" * (FILE_MAX + 1))
    (path / "directory").mkdir()
    (path / "link").symlink_to("file")
    (path / "outside").symlink_to("/etc/passwd")
    os.mkfifo(path / "pipe")
    with bound_socket(path / "socket"):
        pass
    kinds = {"file": 0, "pipe": errno.ENXIO, "socket": errno.ENXIO, "directory": errno.EISDIR,
             "link": errno.ELOOP, "outside": errno.ELOOP, "large": errno.EFBIG, "empty": 0}
    if os.geteuid() == 0:
        # Reading this one would have no end.
        os.mknod(path / "device", stat.S_IFCHR | 0o666, os.makedev(1, 5))
        kinds["device"] = errno.ENXIO
    nodes = {look_up(connection, root, name.encode()): error for name, error in kinds.items()}
    for unknown in (0, 0xffffffff, (1 << 64) - 1, max(nodes) + 1000):
        nodes[unknown] = errno.ESTALE
    asked = (list(nodes) * FILES_MAX)[:FILES_MAX]
    found = read_files(connection, asked)
    assert len(found) == FILES_MAX
    assert [file["error"] for file in found] == [nodes[node] for node in asked]
    assert {file["data"] for file in found} == {b"", b"file"}
    full = look_up(connection, root, b"full")
    assert [file["data"] for file in read_files(connection, [full], size=0)] == [b"f" * FILE_MAX]
    assert 1 <= len(read_files(connection, [full] * FILES_MAX, size=0xffffffff)) < 8


def test_malformed_requests(service, tree):
    connection, root, _ = tree
    for element in (b"", b"1234567", b"123456789"):
        with pytest.raises(CallError) as refused:
            connection.call("READFILES", size=FULL, files=[element])
        assert refused.value.errno == errno.EINVAL
    with pytest.raises(CallError) as refused:
        connection.call("READFILES", size=FULL, flags=0x80000000)
    assert refused.value.errno == errno.EINVAL
    connection.request("READFILES", size=FULL, files=[struct.pack("<Q", root)] * (FILES_MAX + 1))
    last = connection.until_closed()[-1]
    assert last.name == "GOODBYE" and b"READFILES" in last["text"]
    with connect(service) as another:
        assert another.call("WORKSPACE_OPEN", key=b"demo")["node"]


# --- while others write ------------------------------------------------------------------------

# A version is its number, in 8 digits, so many times.
WRITER = """
import os, sys
how, path = sys.argv[1:]
n = 0
while os.getppid() == int(os.environ["PARENT"]):
    n += 1
    data = b"%08d" % (n % 100000000) * (1 + n % 3000)
    if how == "grow":
        with open(path, "ab", 0) as file:
            file.write(data)
            if file.tell() > 30000:
                file.truncate(n % 4096)
        continue
    target = path + ".new" if how == "rename" else path
    with open(target, "wb", 0) as file:
        file.write(data[:8])
        file.write(data[8:])
    if how == "rename":
        os.rename(target, path)
    elif how == "remove":
        os.unlink(path)
"""


@pytest.fixture
def writer():
    running = []

    def start(how, path):
        running.append(subprocess.Popen([sys.executable, "-c", WRITER, how, str(path)],
                                        env={**os.environ, "PARENT": str(os.getpid())}))

    yield start
    for process in running:
        process.kill()
        process.wait(10)


def is_whole(data):
    return len(data) >= 8 and data == data[:8] * (1 + int(data[:8]) % 3000)


@pytest.mark.parametrize("how", ["rename", "rewrite", pytest.param("grow", marks=pytest.mark.long), pytest.param("remove", marks=pytest.mark.long)])
def test_beside_a_writer(service, tree, writer, how):
    """Size and content belong together in each of 20,000 answers; of a file that is replaced, so
    do the first byte and the last. (Between two writes to one file, everybody sees half of them.)"""
    connection, root, path = tree
    (path / "file").write_bytes(b"00000000")
    kept = look_up(connection, root, b"file")
    writer(how, path / "file")
    asked = answered = 0
    versions = set()
    deadline = time.monotonic() + 60
    with connect(service) as beside:
        while asked < 20000 or answered < 20 or len(versions) < 2:
            assert time.monotonic() < deadline, (asked, answered, len(versions))
            try:
                node = look_up(connection, root, b"file")
            except CallError as error:
                assert error.errno == errno.ENOENT
                continue
            for file in read_files(connection, [node, kept] * 16):
                asked += 1
                if file["error"]:
                    assert file["error"] in (errno.ESTALE, errno.EAGAIN, errno.EFBIG)
                    continue
                answered += 1
                versions.add(file["attr"]["version"])
                if how == "rename":
                    assert is_whole(file["data"])
            forget(connection, node)
            if asked % 1000 < 32:
                beside.call("PING", nonce=asked)

"""Whole trees over the wire: TREE_ITEMs there and back, and what is on the disk in the same words."""

import os
import stat
import time

import pytest

from lib import berthwire as wire
from lib.harness import wait_until

C = wire.CONSTANTS
DIRECTORY, FILE, SYMLINK, HARD_LINK, FIFO, DATA, XATTR = (
    C["WIRE_ITEM_" + name] for name in ("DIRECTORY", "FILE", "SYMLINK", "HARD_LINK", "FIFO", "DATA", "XATTR"))
FROM_STREAM, FROM_SNAPSHOT, FROM_WORKSPACE, LIVE = (
    C["WIRE_WORKSPACE_" + name] for name in ("FROM_STREAM", "FROM_SNAPSHOT", "FROM_WORKSPACE", "LIVE"))
SNAPSHOT_LIVE, SHARED = C["WIRE_SNAPSHOT_LIVE"], C["WIRE_SNAPSHOT_SHARED"]


def connect(service, timeout=60):
    connection = wire.Connection.unix(service.socket, timeout)
    connection.upgrade()
    connection.hello()
    return connection


@pytest.fixture
def client(service):
    """A connection for tests that import it by name."""
    with connect(service) as connection:
        yield connection


def item(kind, path=b"", **more):
    return wire.encode("TREE_ITEM", kind=kind, path=path, **more)


def file(path, data=b"", mode=0o644, mtime=1_000_000_000, **more):
    items = [item(FILE, path, size=len(data), mode=mode, mtime=mtime, **more)]
    step = C["WIRE_TREE_VALUE_MAX"]
    return items + [item(DATA, offset=at, value=data[at:at + step]) for at in range(0, len(data), step)]


def parts(items, size=C["WIRE_TREE_PART_MAX"], count=C["WIRE_TREE_ITEMS_MAX"]):
    part, used = [], 0
    for one in items:
        if part and (used + len(one) + 4 > size or len(part) == count):
            yield part
            part, used = [], 0
        part.append(one)
        used += len(one) + 4
    yield part


def ask(connection, name, /, **values):
    """The reply's fields, or (errno, text)."""
    try:
        return connection.call(name, **values).fields
    except wire.CallError as error:
        return error.errno, error.text


def create(connection, thread_id, items, end=True, flags=0, **more):
    """Of these items, within the credit; the reply's fields, or (errno, text)."""
    tag = connection.request("WORKSPACE_CREATE", thread_id=thread_id, flags=FROM_STREAM | flags, **more)
    credit = 256 << 10
    for part in parts(items):
        payload = wire.encode("TREE_IN", items=part)
        while credit < len(payload):
            got = connection.wait(tag)
            if got.name != "GRANT":
                return (got["error"], got["text"]) if got.name == "ERROR" else got.fields
            credit += got["bytes"]
        connection.send("TREE_IN", tag, items=part)
        credit -= len(payload)
    if end:
        connection.send("TREE_IN", tag, end=1)
    got = connection.wait(tag)
    while got.name == "GRANT":
        got = connection.wait(tag)
    return (got["error"], got["text"]) if got.name == "ERROR" else got.fields


def export(connection, **what):
    """The items as dicts by path, files with their data; or (errno, text)."""
    tag = connection.request("TREE_EXPORT", **what)
    entries, last = {}, None
    while True:
        got = connection.wait(tag)
        if got.name == "ERROR":
            return got["error"], got["text"]
        if got.name != "TREE_OUT":
            return entries
        for one in wire.decode_list("TREE_ITEM", got["items"]):
            if one["kind"] == DATA:
                last["data"][one["offset"]:one["offset"] + len(one["value"])] = one["value"]
            elif one["kind"] == XATTR:
                last["xattrs"][one["path"]] = one["value"]
            else:
                last = dict(one, xattrs={}, data=bytearray(one["size"]))
                assert one["path"] not in entries
                entries[one["path"]] = last
        connection.send("GRANT", tag, bytes=len(wire.encode("TREE_OUT", items=got["items"])))


def on_disk(top):
    """What is below a directory: by path, what matters of it."""
    top, found, first = os.fsencode(top), {}, {}
    for directory, names, files in os.walk(top):
        for name in names + files:
            path = os.path.join(directory, name)
            st = os.lstat(path)
            what = [stat.S_IFMT(st.st_mode), stat.S_IMODE(st.st_mode), st.st_mtime_ns, st.st_uid, st.st_gid]
            if stat.S_ISREG(st.st_mode):
                with open(path, "rb") as stream:
                    what += [stream.read(), first.setdefault(st.st_ino, path[len(top):]) if st.st_nlink > 1 else None]
            elif stat.S_ISLNK(st.st_mode):
                what.append(os.readlink(path))
            if not stat.S_ISLNK(st.st_mode):
                what.append({name: os.getxattr(path, name) for name in os.listxattr(path)})
            found[path[len(top) + 1:]] = what
    return found


def tree_of(service, name):
    return service.root / "workspaces" / name / "tree"


def fill(top):
    """One of everything that a tree can have."""
    (top / "deep" / "er" / "still").mkdir(parents=True)
    (top / "deep" / "er" / "still" / "file").write_bytes(b"at the bottom")
    (top / "empty").write_bytes(b"")
    (top / "large").write_bytes(os.urandom(300_000))
    (top / "executable").write_bytes(b"#!/bin/sh\n")
    (top / "executable").chmod(0o755)
    (top / "read-only").write_bytes(b"x")
    (top / "read-only").chmod(0o400)
    with open(top / "sparse", "wb") as stream:
        stream.seek(50 << 20)
        stream.write(b"end")
        stream.truncate(60 << 20)
    os.symlink("deep/er", top / "link")
    os.symlink("/etc/passwd", top / "outside")
    os.symlink("nowhere", top / "dangling")
    os.link(top / "large", top / "deep" / "same")
    os.mkfifo(top / "pipe", 0o640)
    (top / "locked").mkdir(0o500)
    os.setxattr(top / "empty", "user.note", b"value")
    os.setxattr(top / "deep", "user.note", b"of a directory")
    name = os.fsencode(top) + b"/\xff\n name"
    with open(name, "wb") as stream:
        stream.write(b"bytes")
    os.utime(top / "empty", ns=(1, 1_234_567_890_123_456_789))
    os.utime(top / "link", ns=(1, 987_654_321_000_000_001), follow_symlinks=False)
    os.utime(top / "deep", ns=(1, 1_111_111_111_000_000_000))


def left_over(service):
    """What lies in the trash is about to go."""
    wait_until(lambda: not os.listdir(service.root / "trash"), timeout=60, what="an empty trash/")
    return {name: os.listdir(service.root / name) for name in ("tmp", "trash", "restores")}


NOTHING = {"tmp": [], "trash": [], "restores": []}


def wait_for_nothing(service, timeout=20):
    """What nobody waits for any more may not even have begun, so this is true for a moment only."""
    until = time.monotonic() + timeout
    while (left := left_over(service)) != NOTHING:
        assert time.monotonic() < until, left
        time.sleep(0.02)

"""Whole trees over the wire: workspaces made of items that a client sends, and their export."""

import errno
import os

import pytest

from lib import berthwire as wire
from lib.access import call
from lib.trees import (DATA, DIRECTORY, FIFO, FILE, HARD_LINK, NOTHING, SYMLINK, XATTR, ask, client, connect, create, export,
                       file, fill, item, left_over, on_disk, tree_of, wait_for_nothing)


def items_of(entries):
    for path, entry in entries.items():
        fields = {name: entry[name] for name in ("mode", "uid", "gid", "size", "mtime", "value")}
        yield item(entry["kind"], path, **fields)
        for name, value in entry["xattrs"].items():
            yield item(XATTR, name, value=value)
        if entry["kind"] == FILE:
            for at in range(0, entry["size"], 65536):
                data = bytes(entry["data"][at:at + 65536])
                if data.count(0) != len(data):
                    yield item(DATA, offset=at, value=data)


def test_there_and_back(service, client):
    """Everything a tree can have comes back as it was, but for whose it is."""
    call(client, "WORKSPACE_CREATE", thread_id=b"first")
    fill(tree_of(service, "first"))
    entries = export(client, workspace=b"first")
    assert entries[b"sparse"]["size"] == 60 << 20
    assert entries[b"large"]["kind"] + entries[b"deep/same"]["kind"] == FILE + HARD_LINK
    reply = create(client, b"second", items_of(entries))
    assert reply["created"] == 1
    assert on_disk(tree_of(service, "second")) == on_disk(tree_of(service, "first"))
    assert os.stat(tree_of(service, "second") / "sparse").st_blocks * 512 < 1 << 20
    assert left_over(service) == NOTHING


def test_a_workspace_that_is_there_is_not_filled(service, client):
    call(client, "WORKSPACE_CREATE", thread_id=b"w")
    assert create(client, b"w", file(b"f", b"x"))[0] == errno.EEXIST
    assert os.listdir(tree_of(service, "w")) == []
    assert left_over(service) == NOTHING


def test_files_belong_to_the_service_and_have_no_rights_of_others(service, client):
    create(client, b"w", file(b"f", mode=0o6755, uid=12345, gid=12345) + [item(DIRECTORY, b"d", mode=0o3777, uid=1)])
    f, d = (os.stat(tree_of(service, "w") / name) for name in ("f", "d"))
    assert (f.st_mode & 0o7777, f.st_uid, f.st_gid) == (0o755, os.getuid(), os.getgid())
    assert (d.st_mode & 0o7777, d.st_uid) == (0o1777, os.getuid())


def test_parents_that_nobody_sent(service, client):
    create(client, b"w", file(b"a/b/c", b"x") + [item(DIRECTORY, b"a/b", mode=0o700, mtime=5)])
    top = tree_of(service, "w")
    assert (top / "a/b/c").read_bytes() == b"x"
    assert [os.stat(top / name).st_mode & 0o7777 for name in ("a", "a/b")] == [0o755, 0o700]
    assert os.stat(top / "a/b").st_mtime == 5


def test_what_comes_twice_is_what_came_last(service, client):
    items = file(b"f", b"first, and longer") + [item(SYMLINK, b"l", value=b"f")] + file(b"f", b"second")
    items += file(b"l", b"a file now") + [item(DIRECTORY, b"d", mode=0o700), item(DIRECTORY, b"d", mode=0o711)]
    assert create(client, b"w", items)["created"] == 1
    top = tree_of(service, "w")
    assert (top / "f").read_bytes() == b"second" and (top / "l").read_bytes() == b"a file now"
    assert not (top / "l").is_symlink() and os.stat(top / "d").st_mode & 0o7777 == 0o711


OUTSIDE = b"../../../../outside"
HOSTILE = {
    "up": (file(b"../f", b"x"), errno.EINVAL),
    "up inside": (file(b"a/../../f", b"x"), errno.EINVAL),
    "absolute": (file(b"/tmp/f", b"x"), errno.EINVAL),
    "dot": (file(b"./f", b"x"), errno.EINVAL),
    "empty component": (file(b"a//f", b"x"), errno.EINVAL),
    "slash at the end": (file(b"f/", b"x"), errno.EINVAL),
    "NUL": (file(b"a\0b", b"x"), errno.EINVAL),
    "long name": (file(b"x" * 256, b"x"), errno.ENAMETOOLONG),
    "the root as a file": (file(b"", b"x"), errno.EINVAL),
    "through a link": ([item(SYMLINK, b"l", value=OUTSIDE)] + file(b"l/f", b"x"), errno.ELOOP),
    "through an absolute link": ([item(SYMLINK, b"l", value=b"/tmp")] + file(b"l/f", b"x"), errno.ELOOP),
    "through a link to a link": ([item(SYMLINK, b"d/l", value=b"../m"), item(SYMLINK, b"m", value=b"/tmp")] +
                                 file(b"d/l/f", b"x"), errno.ELOOP),
    "a directory over a link": ([item(SYMLINK, b"l", value=OUTSIDE), item(DIRECTORY, b"l", mode=0o777)], errno.EBADMSG),
    "below a file": (file(b"f", b"x") + file(b"f/g", b"x"), errno.ENOTDIR),
    "a file over a directory": ([item(DIRECTORY, b"d")] + file(b"d", b"x"), errno.EBADMSG),
    "a link over a directory": (file(b"d/f") + [item(SYMLINK, b"d", value=b"/tmp")], errno.EBADMSG),
    "a directory over a file": (file(b"d", b"x") + [item(DIRECTORY, b"d")], errno.EBADMSG),
    "a hard link out": ([item(HARD_LINK, b"h", value=b"../../../service.json")], errno.EINVAL),
    "a hard link through a link": ([item(SYMLINK, b"l", value=b"/etc"), item(HARD_LINK, b"h", value=b"l/passwd")],
                                   errno.ENOTDIR),
    "a hard link to a directory": ([item(DIRECTORY, b"d"), item(HARD_LINK, b"h", value=b"d")], errno.EISDIR),
    "a hard link to nothing": ([item(HARD_LINK, b"h", value=b"none")], errno.ENOENT),
    "data of a directory": ([item(DIRECTORY, b"d"), item(DATA, value=b"x")], errno.EINVAL),
    "data of a link": ([item(SYMLINK, b"l", value=b"f"), item(DATA, value=b"x")], errno.EINVAL),
    "data behind the end": ([item(FILE, b"f", size=3), item(DATA, offset=1, value=b"xyz")], errno.EINVAL),
    "data far behind the end": ([item(FILE, b"f", size=3), item(DATA, offset=2**64 - 1, value=b"xyz")], errno.EINVAL),
    "a size that is none": ([item(FILE, b"f", size=2**64 - 1)], errno.EFBIG),
    "a link without text": ([item(SYMLINK, b"l")], errno.EINVAL),
    "a link with NUL": ([item(SYMLINK, b"l", value=b"a\0b")], errno.EINVAL),
    "an attribute of the service's": (file(b"f") + [item(XATTR, b"user.berth.thread_id", value=b"x")], errno.EPERM),
    "rights by attribute": (file(b"f") + [item(XATTR, b"security.capability", value=b"x" * 20)], errno.EPERM),
    "an attribute of a link": ([item(SYMLINK, b"l", value=b"f"), item(XATTR, b"user.x")], errno.EINVAL),
    "an attribute of a pipe": ([item(FIFO, b"p"), item(XATTR, b"user.x")], errno.EINVAL),
    "what is the service's": (file(b".berth/f", b"x"), errno.EPERM),
    "of no kind": ([item(99, b"f")], errno.EINVAL),
    "no items": ([b"what?"], errno.EBADMSG),
}


def test_hostile_trees(service, client, tmp_path):
    """Each is refused with its errno, and nothing is there afterwards: not it, not what came before."""
    (service.root / "outside").mkdir()
    for name, (items, error) in HOSTILE.items():
        answer = create(client, b"w", file(b"good", b"x") + items)
        assert isinstance(answer, tuple) and answer[0] == error, (name, answer)
        assert ask(client, "WORKSPACE_OPEN", key=b"w")[0] == errno.ENOENT
        assert left_over(service) == NOTHING, name
    assert os.listdir(service.root / "outside") == [] and not os.path.exists("/tmp/f")


def test_a_stream_that_is_cut_off(service, client):
    """All or nothing: without its end there is no workspace, whatever came."""
    with connect(service) as other:
        tag = other.request("WORKSPACE_CREATE", thread_id=b"w", flags=16)
        other.send("TREE_IN", tag, items=file(b"f", b"x" * 1000))
        other.send("CANCEL", tag)
        assert other.wait(tag, "ERROR")["error"] == errno.ECANCELED
        tag = other.request("WORKSPACE_CREATE", thread_id=b"w", flags=16)
        other.send("TREE_IN", tag, items=file(b"f", b"x" * 1000))
    wait_for_nothing(service)
    assert ask(client, "WORKSPACE_OPEN", key=b"w")[0] == errno.ENOENT


def test_two_make_the_same(service, client):
    """Both build it, one gets it."""
    with connect(service) as other:
        tags = [(c, c.request("WORKSPACE_CREATE", thread_id=b"w", flags=16)) for c in (client, other)]
        for number, (c, tag) in enumerate(tags):
            c.send("TREE_IN", tag, items=file(b"f", b"%d" % number))
        for c, tag in tags:
            c.send("TREE_IN", tag, end=1)
        answers = []
        for c, tag in tags:
            got = c.wait(tag, "WORKSPACE", "ERROR")
            answers.append(got["error"] if got.name == "ERROR" else got["created"])
    assert sorted(answers) == [1, errno.EEXIST]
    assert (tree_of(service, "w") / "f").read_bytes() == b"%d" % answers.index(1)
    assert left_over(service) == NOTHING


def test_what_is_hidden_is_not_exported(service, client):
    call(client, "WORKSPACE_CREATE", thread_id=b"w")
    top = tree_of(service, "w")
    for name in ("secret/key", "shown/file", "shown/secret", "unlisted/file", ".berth/x"):
        (top / name).parent.mkdir(exist_ok=True)
        (top / name).write_bytes(b"x")
    call(client, "WORKSPACE_SET_VISIBILITY", key=b"w", rules=b"hidden:secret\nunlisted\n")
    assert sorted(export(client, workspace=b"w")) == [b"", b"shown", b"shown/file", b"unlisted", b"unlisted/file"]


def test_what_changes_while_it_is_read(service, client):
    """What goes is left out, and what grows has the size that was told."""
    call(client, "WORKSPACE_CREATE", thread_id=b"w")
    top = tree_of(service, "w")
    for number in range(30):
        (top / f"{number}").mkdir()
        (top / f"{number}" / "file").write_bytes(b"x" * 200_000)
    tag = client.request("TREE_EXPORT", workspace=b"w")
    first = client.wait(tag)
    assert first.name == "TREE_OUT"
    for number in range(30):
        os.rename(top / f"{number}" / "file", top / f"{number}" / "moved")
        os.symlink("/etc/passwd", top / f"{number}" / "file")
    got, seen = first, 0
    while got.name == "TREE_OUT":
        for one in wire.decode_list("TREE_ITEM", got["items"]):
            assert one["kind"] in (DIRECTORY, FILE, SYMLINK, DATA) and b"root:" not in one["value"]
        client.send("GRANT", tag, bytes=len(wire.encode("TREE_OUT", items=got["items"])))
        got = client.wait(tag)
        seen += 1
    assert got.name == "OK" and seen > 5


def test_a_reader_that_takes_nothing_holds_up_nobody(service, client):
    call(client, "WORKSPACE_CREATE", thread_id=b"w")
    (tree_of(service, "w") / "large").write_bytes(os.urandom(20 << 20))
    tags = [client.request("TREE_EXPORT", workspace=b"w") for _ in range(8)]
    for tag in tags:
        client.wait(tag)
    assert ask(client, "TREE_EXPORT", workspace=b"w")[0] == errno.EAGAIN
    assert call(client, "PING", nonce=7)["nonce"] == 7
    for tag in tags:
        client.send("CANCEL", tag)
    for tag in tags:
        assert client.wait(tag, "ERROR", "OK").name == "ERROR"
    assert b"large" in export(client, workspace=b"w")


def test_a_full_disk(harness, client, service):
    """A tree that does not fit is not there at all."""
    root = harness.new_path("small")
    root.mkdir()
    if os.getuid() != 0:
        pytest.skip("a filesystem of its own is root's to mount")
    harness.run(["mount", "-t", "tmpfs", "-o", "size=8m", "berth-test", root], check=True)
    try:
        small = harness.start_service(root=root / "root")
        with connect(small) as connection:
            assert create(connection, b"w", file(b"f", os.urandom(10 << 20)))[0] == errno.ENOSPC
            assert left_over(small) == NOTHING
            assert create(connection, b"w", file(b"f", b"x"))["created"] == 1
        small.close()
    finally:
        harness.run(["umount", root], check=True)


def test_fifo(service, client):
    assert create(client, b"w", [item(FIFO, b"p", mode=0o622, mtime=7)])["created"] == 1
    st = os.stat(tree_of(service, "w") / "p")
    assert (st.st_mode, st.st_mtime) == (0o010622, 7)

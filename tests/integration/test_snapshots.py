"""Snapshots: taken, listed, restored, forked, exported and removed; what commands and mounts do meanwhile."""

import errno
import json
import os
import time

import pytest

from lib import berthwire as wire
from lib.access import call
from lib.exec_client import ExecClient
from lib.harness import wait_until
from lib.trees import (FROM_SNAPSHOT, FROM_WORKSPACE, LIVE, NOTHING, SHARED, SNAPSHOT_LIVE, ask, client, connect, export, fill,
                       left_over, on_disk, tree_of, wait_for_nothing)


@pytest.fixture
def filled(service, client):
    call(client, "WORKSPACE_CREATE", thread_id=b"w", policy=b'{"network":"host"}')
    fill(tree_of(service, "w"))
    return on_disk(tree_of(service, "w"))


def snapshots(connection, **values):
    page = call(connection, "SNAPSHOT_LIST", **values)
    return wire.decode_list("SNAPSHOT", page["items"])


def test_a_snapshot_s_life(service, client, filled):
    made = call(client, "SNAPSHOT_CREATE", workspace=b"w", id=b"one", labels=b'{"why":"test"}')
    assert (made["id"], made["thread_id"], made["flags"] & SNAPSHOT_LIVE) == (b"one", b"w", 0)
    assert json.loads(made["labels"]) == {"why": "test"} and made["entries"] == len(filled) + 1
    assert made["size"] > 60 << 20 and made["stored"] < 1 << 20
    assert call(client, "SNAPSHOT_CREATE", workspace=b"w", id=b"one") == errno.EEXIST
    named = call(client, "SNAPSHOT_CREATE", workspace=b"w")["id"]
    listed = snapshots(client)
    assert sorted(s["id"] for s in listed) == sorted([b"one", named])
    assert next(s for s in listed if s["id"] == b"one") == made
    # What becomes of the workspace is nothing to it.
    os.unlink(tree_of(service, "w") / "large")
    (tree_of(service, "w") / "new").write_bytes(b"x")
    reply = call(client, "WORKSPACE_CREATE", thread_id=b"copy", flags=FROM_SNAPSHOT, source=b"one")
    assert reply["created"] == 1
    assert on_disk(tree_of(service, "copy")) == filled
    assert (service.root / "workspaces/copy/policy.json").read_text() == (
        service.root / "workspaces/w/policy.json").read_text()
    call(client, "WORKSPACE_REMOVE", key=b"w")
    assert b"large" in export(client, snapshot=b"one")
    assert [s["id"] for s in snapshots(client, workspace=b"w", count=1)]
    assert "seq" in call(client, "SNAPSHOT_REMOVE", id=b"one")
    assert call(client, "SNAPSHOT_REMOVE", id=b"one") == errno.ENOENT
    assert call(client, "WORKSPACE_CREATE", thread_id=b"more", flags=FROM_SNAPSHOT, source=b"one") == errno.ENOENT
    assert [s["id"] for s in snapshots(client)] == [named]
    assert left_over(service) == NOTHING


@pytest.mark.parametrize("name", [b"", b"..", b".x", b"a/b", b"-x", b"x\0", b"x" * 129, b"\xff"])
def test_names_that_are_none(client, filled, name):
    if 0 < len(name) <= 128:
        assert call(client, "SNAPSHOT_CREATE", workspace=b"w", id=name) == errno.EINVAL
        assert call(client, "SNAPSHOT_REMOVE", id=name) == errno.ENOENT
        assert call(client, "WORKSPACE_RESTORE", workspace=b"w", snapshot=name) == errno.ENOENT
    assert call(client, "WORKSPACE_CREATE", thread_id=b"x", flags=FROM_SNAPSHOT, source=name) == errno.ENOENT


def test_labels_are_strings(client, filled):
    for labels in (b"[]", b'{"a":1}', b'{"a":"b"', b'{"a":"b","a":"c"}'):
        assert call(client, "SNAPSHOT_CREATE", workspace=b"w", labels=labels) == errno.EINVAL
    assert snapshots(client) == []


def test_pages(client):
    call(client, "WORKSPACE_CREATE", thread_id=b"w")
    call(client, "WORKSPACE_CREATE", thread_id=b"other")
    for number in range(7):
        call(client, "SNAPSHOT_CREATE", workspace=b"w", id=b"s%d" % number)
    call(client, "SNAPSHOT_CREATE", workspace=b"other", id=b"s3x")
    seen, after = [], b""
    while True:
        page = call(client, "SNAPSHOT_LIST", count=3, after=after, workspace=b"w")
        found = [s["id"] for s in wire.decode_list("SNAPSHOT", page["items"])]
        seen += found
        if not page["more"]:
            break
        after = found[-1]
    assert seen == [b"s%d" % number for number in range(7)]


def test_restore(service, client, filled):
    """All is as it was, nothing that came since is there, and the directory is the one it was."""
    before = os.stat(tree_of(service, "w"))
    call(client, "SNAPSHOT_CREATE", workspace=b"w", id=b"one")
    os.unlink(tree_of(service, "w") / "large")
    (tree_of(service, "w") / "new").mkdir()
    (tree_of(service, "w") / "new" / "file").write_bytes(b"x")
    (tree_of(service, "w") / "empty").write_bytes(b"not any more")
    os.chmod(tree_of(service, "w"), 0o700)
    reply = call(client, "WORKSPACE_RESTORE", workspace=b"w", snapshot=b"one")
    assert reply["thread_id"] == b"w" and reply["created"] == 0
    after = os.stat(tree_of(service, "w"))
    assert on_disk(tree_of(service, "w")) == filled
    assert (after.st_ino, after.st_mode, after.st_mtime_ns) == (before.st_ino, before.st_mode, before.st_mtime_ns)
    assert left_over(service) == NOTHING
    # Of another workspace, too.
    call(client, "WORKSPACE_CREATE", thread_id=b"other")
    call(client, "WORKSPACE_RESTORE", workspace=b"other", snapshot=b"one")
    assert on_disk(tree_of(service, "other")) == filled


def test_restores_one_after_the_other(service, client, filled):
    """What one has replaced is still being deleted when the next one comes."""
    many = tree_of(service, "w") / "many"
    many.mkdir()
    for number in range(2000):
        (many / f"f{number}").write_bytes(b"x")
    call(client, "SNAPSHOT_CREATE", workspace=b"w", id=b"one")
    for _ in range(4):
        call(client, "WORKSPACE_RESTORE", workspace=b"w", snapshot=b"one")
    assert len(os.listdir(many)) == 2000
    wait_for_nothing(service)


def test_mounts_see_a_restore(harness, service, client, filled):
    """At once, with what they had cached; the directory a shell stands in goes as if it was removed."""
    call(client, "SNAPSHOT_CREATE", workspace=b"w", id=b"one")
    mount = harness.start_mount(service, workspace="w")
    (mount.path / "read-only").unlink()
    (mount.path / "empty").write_bytes(b"changed")
    assert (mount.path / "deep/er/still/file").read_bytes() == b"at the bottom"
    call(client, "WORKSPACE_RESTORE", workspace=b"w", snapshot=b"one")
    assert (mount.path / "read-only").read_bytes() == b"x"
    assert (mount.path / "empty").read_bytes() == b""
    assert sorted(os.listdir(mount.path)) == sorted(os.listdir(tree_of(service, "w")))
    (mount.path / "after").write_bytes(b"still works")
    assert (tree_of(service, "w") / "after").read_bytes() == b"still works"


def test_what_a_mount_has_written_is_in_it(harness, service, client):
    """Without fsync or close: programs have been told that it is written."""
    call(client, "WORKSPACE_CREATE", thread_id=b"w")
    mount = harness.start_mount(service, workspace="w")
    with open(mount.path / "log", "wb", buffering=0) as stream:
        for number in range(1000):
            stream.write(b"%06d\n" % number)
        call(client, "SNAPSHOT_CREATE", workspace=b"w", id=b"one")
    assert export(client, snapshot=b"one")[b"log"]["data"] == b"".join(b"%06d\n" % n for n in range(1000))


def test_fork(service, client, filled):
    call(client, "WORKSPACE_SET_VISIBILITY", key=b"w", rules=b"hidden:large\n")
    reply = call(client, "WORKSPACE_CREATE", thread_id=b"fork", flags=FROM_WORKSPACE, source=b"w")
    assert reply["created"] == 1
    assert on_disk(tree_of(service, "fork")) == filled
    assert call(client, "WORKSPACE_VISIBILITY", key=b"fork")["workspace"] == b"hidden:large\n"
    assert b"large" not in export(client, workspace=b"fork")
    call(client, "SNAPSHOT_CREATE", workspace=b"fork", id=b"s")
    assert b"large" not in export(client, snapshot=b"s") and b"sparse" in export(client, snapshot=b"s")
    (tree_of(service, "fork") / "empty").write_bytes(b"its own")
    assert (tree_of(service, "w") / "empty").read_bytes() == b""
    assert call(client, "WORKSPACE_CREATE", thread_id=b"x", flags=FROM_WORKSPACE, source=b"none") == errno.ENOENT
    assert call(client, "WORKSPACE_CREATE", thread_id=b"fork", flags=FROM_WORKSPACE, source=b"w") == errno.EEXIST
    assert left_over(service) == NOTHING


def test_a_damaged_snapshot(service, client, filled):
    """What was cut off or changed on the disk is noticed, and nothing comes of it."""
    path = service.root / "snapshots/one/tree.zst"
    call(client, "SNAPSHOT_CREATE", workspace=b"w", id=b"one")
    if not path.exists():
        pytest.skip("this filesystem shares blocks: there is no file")
    good = path.read_bytes()
    for bad in (good[:-1], good[:len(good) // 2], b"", good[:-3] + bytes([good[-3] ^ 1]) + good[-2:]):
        path.write_bytes(bad)
        assert call(client, "WORKSPACE_CREATE", thread_id=b"x", flags=FROM_SNAPSHOT, source=b"one") == errno.EIO
        assert call(client, "WORKSPACE_RESTORE", workspace=b"w", snapshot=b"one") == errno.EIO
        assert on_disk(tree_of(service, "w")) == filled
    path.write_bytes(good)
    assert call(client, "WORKSPACE_CREATE", thread_id=b"x", flags=FROM_SNAPSHOT, source=b"one")["created"] == 1
    assert left_over(service) == NOTHING


# --- commands --------------------------------------------------------------------------------

def test_commands_stand_still(service, client):
    """Two files that a command always changes together are of one moment in every snapshot."""
    call(client, "WORKSPACE_CREATE", thread_id=b"w")
    top = tree_of(service, "w")
    script = "i=0; while :; do i=$((i+1)); echo $i > a; echo $i > b; done"
    for number in range(200):
        (top / f"between{number}").write_bytes(os.urandom(10_000))
    with ExecClient(service.socket) as commands:
        commands.start("w", ["sh", "-c", script])
        wait_until(lambda: (top / "b").exists() and (top / "b").read_bytes(), what="the command")
        for number in range(10):
            made = call(client, "SNAPSHOT_CREATE", workspace=b"w", id=b"s%d" % number)
            assert isinstance(made, dict), os.strerror(made)
            entries = export(client, snapshot=b"s%d" % number)
            a, b = (entries[name]["data"].strip() for name in (b"a", b"b"))
            # Both may be empty for a moment: a shell makes a file empty, and then writes.
            assert not a or not b or int(a) - int(b) in (0, 1), (a, b)
        before = (top / "a").read_bytes()
        wait_until(lambda: (top / "a").read_bytes() not in (before, b""), what="the command going on")
        # A restore is refused, one that is LIVE is taken.
        assert ask(client, "WORKSPACE_RESTORE", workspace=b"w", snapshot=b"s0")[0] == errno.EBUSY
        assert call(client, "SNAPSHOT_CREATE", workspace=b"w", id=b"live", flags=SNAPSHOT_LIVE)["flags"] & SNAPSHOT_LIVE
        assert call(client, "WORKSPACE_CREATE", thread_id=b"f", flags=FROM_WORKSPACE, source=b"w")["created"] == 1
        assert call(client, "WORKSPACE_CREATE", thread_id=b"g", flags=FROM_WORKSPACE | LIVE, source=b"w")["created"] == 1


def test_a_command_that_comes_meanwhile_waits(service, client):
    """It starts when the snapshot is taken, and is not in it."""
    call(client, "WORKSPACE_CREATE", thread_id=b"w")
    top = tree_of(service, "w")
    (top / "large").write_bytes(os.urandom(64 << 20))
    with ExecClient(service.socket) as commands:
        taking = client.request("SNAPSHOT_CREATE", workspace=b"w", id=b"s")
        wait_until(lambda: any((service.root / "tmp").iterdir()) or (service.root / "snapshots/s").exists())
        verdict = commands.run("w", ["sh", "-c", "echo x > after"]).verdict
        assert (verdict.verdict, verdict.code) == ("exited", 0)
        client.wait(taking, "SNAPSHOT")
    assert b"after" not in export(client, snapshot=b"s")
    assert (top / "after").exists()


# --- filesystems -----------------------------------------------------------------------------

def test_blocks_are_shared(harness, filesystems):
    """On btrfs a snapshot, a fork and a restore take no space for what files hold."""
    place = filesystems.image("btrfs", 256 << 20)
    service = harness.start_service(root=place / "root")

    def used():
        os.sync()
        st = os.statvfs(place)
        return (st.f_blocks - st.f_bfree) * st.f_frsize

    with connect(service) as client:
        call(client, "WORKSPACE_CREATE", thread_id=b"w")
        fill(tree_of(service, "w"))
        (tree_of(service, "w") / "huge").write_bytes(os.urandom(80 << 20))
        filled, before = on_disk(tree_of(service, "w")), used()
        made = call(client, "SNAPSHOT_CREATE", workspace=b"w", id=b"one")
        assert made["flags"] & SHARED and made["stored"] == 0
        call(client, "WORKSPACE_CREATE", thread_id=b"fork", flags=FROM_WORKSPACE, source=b"w")
        call(client, "WORKSPACE_CREATE", thread_id=b"copy", flags=FROM_SNAPSHOT, source=b"one")
        (tree_of(service, "w") / "empty").write_bytes(b"changed")
        call(client, "WORKSPACE_RESTORE", workspace=b"w", snapshot=b"one")
        assert used() - before < 30 << 20
        for name in ("w", "fork", "copy"):
            assert on_disk(tree_of(service, name)) == filled
        (tree_of(service, "fork") / "huge").write_bytes(b"its own")
        assert on_disk(tree_of(service, "copy")) == filled
        assert set(export(client, snapshot=b"one")) == set(filled) | {b""}


# --- kills -----------------------------------------------------------------------------------

@pytest.mark.parametrize("delay", [0.0, 0.002, 0.01, 0.03, 0.08])
def test_killed_amid_it(harness, service, client, delay):
    """Whatever was under way is as it was before, or done."""
    call(client, "WORKSPACE_CREATE", thread_id=b"w")
    top = tree_of(service, "w")
    for number in range(300):
        (top / f"d{number}").mkdir()
        (top / f"d{number}" / "f").write_bytes(b"old")
    old = on_disk(top)
    call(client, "SNAPSHOT_CREATE", workspace=b"w", id=b"old")
    for number in range(300):
        (top / f"d{number}" / "f").write_bytes(b"new")
    (top / "more").write_bytes(b"x")
    new = on_disk(top)
    client.request("WORKSPACE_RESTORE", workspace=b"w", snapshot=b"old")
    client.request("SNAPSHOT_CREATE", workspace=b"w", id=b"other", flags=SNAPSHOT_LIVE)
    client.request("WORKSPACE_CREATE", thread_id=b"fork", flags=FROM_SNAPSHOT, source=b"old")
    client.request("SNAPSHOT_REMOVE", id=b"old") if delay > 0.01 else None
    time.sleep(delay)
    service.kill()
    service.restart()
    wait_for_nothing(service)
    with connect(service) as after:
        assert on_disk(top) in (old, new)
        ids = [s["id"] for s in snapshots(after)]
        for name in ids:
            assert isinstance(export(after, snapshot=name), dict)
        if "node" in ask(after, "WORKSPACE_OPEN", key=b"fork"):
            assert on_disk(tree_of(service, "fork")) == old
        assert set(ids) <= {b"old", b"other"} and (delay > 0.01 or b"old" in ids)

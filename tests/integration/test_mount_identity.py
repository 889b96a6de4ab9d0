"""A file is the same file whatever becomes of caches, mounts and the service: git, rsync, tar and make
remember what they saw by these numbers."""

import os

import pytest

from lib import kernel_caches


def look(directory):
    """What stat tells of everything below directory, by path. st_dev is each mount's own, as is
    the directory itself, where it lists workspaces."""
    found = {}
    for place, directories, files in os.walk(directory):
        for name in [".", *directories, *files]:
            path = os.path.normpath(os.path.join(place, name))
            s = os.lstat(path)
            found[os.path.relpath(path, directory)] = (
                s.st_ino, s.st_mode, s.st_nlink, s.st_uid, s.st_gid, s.st_size, s.st_blocks, s.st_blksize,
                s.st_mtime_ns, s.st_ctime_ns)
    del found["."]
    return found


def drop_caches():
    """Dentries and inodes that nobody holds: the kernel must ask for all of them again."""
    os.sync()
    kernel_caches.drop("2")


@pytest.mark.parametrize("options", [[], ["owner=server"]], ids=["owner=map", "owner=server"])
def test_identity_stays(service, start_mount, run_berth, options):
    for workspace in ("one", "two"):
        run_berth("create", workspace, check=True)
    mount = start_mount(service, options=options)
    for workspace in ("one", "two"):
        root = mount.path / workspace
        (root / "d/e").mkdir(parents=True)
        for name in ("f", "d/f", "d/e/f"):
            (root / name).write_text(name)
        os.link(root / "f", root / "d/hard")
        os.symlink("f", root / "l")
        os.utime(root / "f", ns=(1, 1_234_567_890_123_456_789))
    before = look(mount.path)
    numbers = [row[0] for path, row in before.items() if not path.endswith("hard")]
    assert len(set(numbers)) == len(numbers), "two files have one number"
    assert before["one/f"][8] == 1_234_567_890_123_456_789
    drop_caches()
    assert look(mount.path) == before
    os.rename(mount.path / "one/d", mount.path / "one/moved")
    moved = look(mount.path)
    assert {path.replace("moved", "d"): row[0] for path, row in moved.items()} \
        == {path: row[0] for path, row in before.items()}
    assert moved["one/moved/f"] == before["one/d/f"], "what lies in a renamed directory does not change"
    os.rename(mount.path / "one/moved", mount.path / "one/d")
    before = look(mount.path)
    second = start_mount(service, options=options)
    assert look(second.path) == before
    service.restart()
    drop_caches()
    for path in (mount.path, second.path, start_mount(options=options).path):
        assert look(path) == before

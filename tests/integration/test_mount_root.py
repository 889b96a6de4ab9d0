"""The mount's own root, which lists workspaces, and what a mount says about itself."""

import errno
import json
import os

import pytest


@pytest.fixture
def two(mount, run_berth):
    for name in ("one", "two"):
        run_berth("create", name, check=True)
    return mount


def fails_with(number, function, *arguments, **keywords):
    with pytest.raises(OSError) as caught:
        function(*arguments, **keywords)
    assert caught.value.errno == number, caught.value


def test_workspaces_are_directories(two, run_berth):
    assert os.listdir(two.path) == ["one", "two"]
    run_berth("create", "T/2024:x", check=True)
    run_berth("create", "../../etc", check=True)
    names = os.listdir(two.path)
    assert len(names) == 4 and "T%2F2024%3Ax" in names
    for name in names:
        assert os.stat(two.path / name).st_uid == os.getuid()
        (two.path / name / "f").write_text(name)
    for name in names:
        assert (two.path / name / "f").read_text() == name
    numbers = {os.stat(two.path / name).st_ino for name in [".", *names]}
    assert len(numbers) == 5
    entries = {entry.name: entry.inode() for entry in os.scandir(two.path)}
    assert entries == {name: os.stat(two.path / name).st_ino for name in names}


def test_many_workspaces_are_listed_in_pages(mount, service, harness):
    names = sorted(f"w{i}" for i in range(520))
    harness.run(["xargs", "-P", "4", "-n", "1", str(harness.program("berth")), "create"],
                env=service.client_env(), input="\n".join(names), timeout=50, check=True)
    assert os.listdir(mount.path) == names
    assert mount.stats()["requests"]["WORKSPACE_LIST"] > 1


def test_the_root_changes_by_berth_alone(two):
    root = two.path
    fails_with(errno.EPERM, os.mkdir, root / "new")
    fails_with(errno.EPERM, os.rmdir, root / "one")
    fails_with(errno.EPERM, os.rename, root / "one", root / "three")
    fails_with(errno.EPERM, os.symlink, "x", root / "link")
    fails_with(errno.EPERM, os.mknod, root / "node")
    fails_with(errno.EPERM, os.open, root / "file", os.O_WRONLY | os.O_CREAT)
    fails_with(errno.EPERM, os.chmod, root, 0o700)
    fails_with(errno.EPERM, os.setxattr, root, "user.x", b"1")
    (root / "one" / "f").write_text("x")
    fails_with(errno.EPERM, os.rename, root / "one" / "f", root / "f")
    fails_with(errno.EPERM, os.link, root / "one" / "f", root / "f")
    fails_with(errno.EPERM, os.rename, root / "two", root / "one" / "two")
    fails_with(errno.ENOENT, os.stat, root / "missing")
    fails_with(errno.ENOENT, os.stat, root / ".git")
    fails_with(errno.ENOENT, os.stat, root / "bad name")
    fails_with(errno.ENAMETOOLONG, os.stat, root / ("n" * 256))
    assert os.listdir(root) == ["one", "two"]


def test_workspaces_are_apart(two):
    (two.path / "one" / "f").write_text("x")
    fails_with(errno.EXDEV, os.rename, two.path / "one" / "f", two.path / "two" / "f")
    fails_with(errno.EXDEV, os.link, two.path / "one" / "f", two.path / "two" / "f")
    assert os.listdir(two.path / "two") == []
    (two.path / "two" / "f").write_text("y")
    one, other = (os.stat(two.path / name / "f") for name in ("one", "two"))
    assert one.st_dev == other.st_dev and one.st_ino != other.st_ino


def test_questions_that_cannot_be_workspaces_cost_nothing(two):
    before = two.stats()["requests"].get("WORKSPACE_OPEN", 0)
    for name in (".git", ".Trash-1000", "autorun.inf ", "Desktop.ini!"):
        assert not os.path.exists(two.path / name)
    assert two.stats()["requests"].get("WORKSPACE_OPEN", 0) == before


def test_the_mount_describes_itself(two, service):
    os.listdir(two.path / "one")
    text = os.getxattr(two.path, "user.berth.mount")
    described = json.loads(text)
    assert described["url"] == service.url
    assert "workspace" not in described
    stats = described["stats"]
    assert stats["pid"] == two.pid
    assert stats["connected"] is True and stats["reconnects"] == 0
    assert 0 < stats["round_trips"] <= stats["blocking"]
    assert os.listxattr(two.path) == []
    assert os.getxattr(two.path / "one", "user.berth.thread_id") == b"one"
    assert os.listxattr(two.path / "one") == [], "rsync -X would try to remove it"
    fails_with(errno.ENODATA, os.getxattr, two.path, "user.other")


def test_one_workspace_as_the_root(two, service, start_mount, run_berth):
    run_berth("create", "T/1", check=True)
    for key in ("T/1", "T%2F1"):
        mount = start_mount(service, workspace=key)
        assert os.listdir(mount.path) == []
        (mount.path / "f").write_text("x")
        (mount.path / "d").mkdir()
        os.rename(mount.path / "f", mount.path / "d" / "g")
        assert (two.path / "T%2F1" / "d" / "g").read_text() == "x"
        described = json.loads(os.getxattr(mount.path, "user.berth.mount"))
        assert described["workspace"] == "T/1"
        assert os.getxattr(mount.path, "user.berth.thread_id") == b"T/1"
        assert os.listxattr(mount.path) == []
        assert os.stat(mount.path).st_ino == os.stat(two.path / "T%2F1").st_ino
        assert os.statvfs(mount.path).f_blocks > 0
        os.chmod(mount.path, 0o750)
        assert os.stat(two.path / "T%2F1").st_mode & 0o777 == 0o750
        os.unlink(mount.path / "d" / "g")
        os.rmdir(mount.path / "d")


def test_a_thread_id_that_is_not_text(service, start_mount, run_berth):
    run_berth("create", b"\xff\xfe", check=True)
    mount = start_mount(service, workspace="%FF%FE")
    described = json.loads(os.getxattr(mount.path, "user.berth.mount"))
    assert described["workspace_hex"] == "fffe"
    assert os.getxattr(mount.path, "user.berth.thread_id") == b"\xff\xfe"


def test_free_space_is_that_of_the_service(two, service):
    below = os.statvfs(service.root)
    for path in (two.path, two.path / "one"):
        shown = os.statvfs(path)
        assert shown.f_blocks * shown.f_frsize == below.f_blocks * below.f_frsize
        assert shown.f_namemax == 255


def test_read_only(two, service, start_mount):
    (two.path / "one" / "f").write_text("x")
    mount = start_mount(service, options="ro")
    assert (mount.path / "one" / "f").read_text() == "x"
    fails_with(errno.EROFS, (mount.path / "one" / "f").write_text, "y")
    fails_with(errno.EROFS, os.mkdir, mount.path / "one" / "d")


def test_owners(two, service, start_mount):
    file = two.path / "one" / "f"
    file.touch()
    below = service.root / "workspaces" / "one" / "tree" / "f"
    os.chown(below, 1234, 5678)
    assert (file.stat().st_uid, file.stat().st_gid) == (os.getuid(), os.getgid())
    fails_with(errno.EPERM, os.chown, file, 1234, -1)
    fails_with(errno.EPERM, os.chown, file, -1, 1234)
    os.chown(file, os.getuid(), os.getgid())
    assert (below.stat().st_uid, below.stat().st_gid) == (1234, 5678)
    mount = start_mount(service, options="owner=server")
    file = mount.path / "one" / "f"
    assert (file.stat().st_uid, file.stat().st_gid) == (1234, 5678)
    os.chown(file, 1, 2)
    assert (below.stat().st_uid, below.stat().st_gid) == (1, 2)

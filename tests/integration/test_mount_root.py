"""The mount's own root, which lists workspaces, and what a mount says about itself."""

import errno
import fcntl
import json
import os

import pytest

from lib import berthwire, harness


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


@pytest.mark.long
def test_many_workspaces_are_listed_in_pages(mount, service):
    names = sorted(f"w{i}" for i in range(520))
    with berthwire.Connection.unix(service.socket) as wire:
        wire.upgrade()
        wire.hello()
        for name in names:
            wire.call("WORKSPACE_CREATE", thread_id=name.encode())
    assert os.listdir(mount.path) == names
    assert mount.stats()["requests"]["WORKSPACE_LIST"] > 1


def test_questions_in_the_root(two):
    for name, number in (("missing", errno.ENOENT), (".git", errno.ENOENT), ("bad name", errno.ENOENT),
                         ("n" * 256, errno.ENAMETOOLONG)):
        fails_with(number, os.stat, two.path / name)


# What each call answers in the root of all workspaces; {} is the root. What is there is seen as
# everywhere; what would change it is EPERM, since only `berth create` and `berth rm` do that.
ANSWERS = [
    ("mkdir of a new name", lambda r: os.mkdir(r / "new"), errno.EPERM),
    ("mkdir of one that no ID has", lambda r: os.mkdir(r / "bad name"), errno.EPERM),
    ("mkdir of a hidden name", lambda r: os.mkdir(r / ".new"), errno.EPERM),
    ("mkdir of a workspace", lambda r: os.mkdir(r / "one"), errno.EEXIST),
    ("mkdir of a long name", lambda r: os.mkdir(r / ("n" * 256)), errno.ENAMETOOLONG),
    ("rmdir of an empty workspace", lambda r: os.rmdir(r / "two"), errno.EPERM),
    ("rmdir of a workspace", lambda r: os.rmdir(r / "one"), errno.EPERM),
    ("rmdir of nothing", lambda r: os.rmdir(r / "missing"), errno.ENOENT),
    ("unlink of a workspace", lambda r: os.unlink(r / "one"), errno.EISDIR),
    ("unlink of nothing", lambda r: os.unlink(r / "missing"), errno.ENOENT),
    ("rename of a workspace", lambda r: os.rename(r / "one", r / "new"), errno.EPERM),
    ("rename over a workspace", lambda r: os.rename(r / "one", r / "two"), errno.EPERM),
    ("rename of nothing", lambda r: os.rename(r / "missing", r / "new"), errno.ENOENT),
    ("rename into the root", lambda r: os.rename(r / "one" / "f", r / "f"), errno.EPERM),
    ("rename out of the root", lambda r: os.rename(r / "two", r / "one" / "two"), errno.EPERM),
    ("link into the root", lambda r: os.link(r / "one" / "f", r / "f"), errno.EPERM),
    ("link of a workspace", lambda r: os.link(r / "one", r / "two" / "one"), errno.EPERM),
    ("symlink", lambda r: os.symlink("one", r / "link"), errno.EPERM),
    ("mknod", lambda r: os.mknod(r / "node"), errno.EPERM),
    ("mkfifo", lambda r: os.mkfifo(r / "fifo"), errno.EPERM),
    ("create", lambda r: os.open(r / "file", os.O_WRONLY | os.O_CREAT), errno.EPERM),
    ("create over a workspace", lambda r: os.open(r / "one", os.O_WRONLY | os.O_CREAT), errno.EISDIR),
    ("open of nothing", lambda r: os.open(r / "missing", os.O_RDONLY), errno.ENOENT),
    ("open to write", lambda r: os.open(r, os.O_WRONLY), errno.EISDIR),
    ("truncate", lambda r: os.truncate(r, 0), errno.EISDIR),
    ("chmod", lambda r: os.chmod(r, 0o700), errno.EPERM),
    ("chown", lambda r: os.chown(r, 0, 0), errno.EPERM),
    ("utime", os.utime, errno.EPERM),
    ("setxattr", lambda r: os.setxattr(r, "user.x", b"1"), errno.EPERM),
    ("setxattr of another kind", lambda r: os.setxattr(r, "security.x", b"1"), errno.EOPNOTSUPP),
    ("removexattr", lambda r: os.removexattr(r, "user.x"), errno.EPERM),
    ("getxattr", lambda r: os.getxattr(r, "user.x"), errno.ENODATA),
    ("getxattr of another kind", lambda r: os.getxattr(r, "system.posix_acl_access"), errno.EOPNOTSUPP),
    ("readlink", os.readlink, errno.EINVAL),
    ("rmdir of the mountpoint", os.rmdir, errno.EBUSY),
    ("rename of the mountpoint", lambda r: os.rename(r, str(r) + " moved"), errno.EBUSY),
]


def test_every_call_in_the_root(two, run):
    (two.path / "one" / "f").write_text("x")
    before = two.stats()["requests"]
    for what, call, number in ANSWERS:
        with pytest.raises(OSError) as caught:
            call(two.path)
        assert caught.value.errno == number, (what, caught.value)
    asked = {name for name, count in two.stats()["requests"].items() if count != before.get(name, 0)}
    assert not asked & {"MKDIR", "RMDIR", "RENAME", "CREATE", "UNLINK", "LINK", "SYMLINK", "MKNOD", "SETATTR"}
    assert os.listdir(two.path) == ["one", "two"] and (two.path / "one" / "f").read_text() == "x"
    assert os.listxattr(two.path) == []
    os.rename(two.path / "one", two.path / "one")  # nothing to do, as POSIX has it
    fd = os.open(two.path, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(fd)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fails_with(errno.EISDIR, os.read, fd, 1)
    fails_with(errno.ENOTTY, fcntl.ioctl, fd, 0x80086601, bytes(8))
    os.close(fd)
    assert os.stat(two.path / "..").st_ino == os.stat(two.path.parent).st_ino
    assert os.stat(two.path / "one" / "..").st_ino == os.stat(two.path).st_ino
    # Below it everything goes, also for those who make what leads there.
    os.makedirs(two.path / "one" / "a" / "b", exist_ok=True)
    run(["mkdir", "-p", two.path / "two" / "c" / "d"], check=True)
    result = run(["rm", "-r", two.path / "two"])
    assert result.returncode == 1 and "Operation not permitted" in result.stderr
    assert os.listdir(two.path / "two") == [], "what is in it can be removed"


def test_workspaces_come_and_go_in_the_root(two, run_berth):
    with os.scandir(two.path) as entries:
        next(entries)
        run_berth("create", "three", check=True)
        run_berth("rm", "two", check=True)
        assert {entry.name for entry in entries} <= {"two", "three"}
    assert os.listdir(two.path) == ["one", "three"]
    fails_with(errno.ENOENT, os.stat, two.path / "two")
    (two.path / "three" / "f").write_text("x")
    fd = os.open(two.path / "three", os.O_RDONLY | os.O_DIRECTORY)
    file = os.open(two.path / "three" / "f", os.O_RDWR)
    try:
        run_berth("rm", "three", check=True)
        # The service keeps nothing of it, not even for those who have it open.
        fails_with(errno.ESTALE, os.pread, file, 10, 0)
        fails_with(errno.ESTALE, os.fstat, file)
        fails_with(errno.ESTALE, os.open, "g", os.O_WRONLY | os.O_CREAT, dir_fd=fd)
    finally:
        os.close(file)
        os.close(fd)
    assert os.listdir(two.path) == ["one"]
    # One of the same name is another one.
    run_berth("create", "three", check=True)
    assert os.listdir(two.path / "three") == []


def test_the_root_for_another_user(two, service, harness, start_mount, run):
    """The modes come first: others may look, and are denied the rest before anything is asked."""
    os.chmod(harness.short, 0o755)
    mount = start_mount(service, path=harness.short / "mnt", options="allow_other")
    script = ("import os, sys, errno\n"
              "os.chdir(sys.argv[1])\n"
              "assert os.listdir('.') == ['one', 'two']\n"
              "for go in (lambda: os.mkdir('new'), lambda: os.rmdir('one'), lambda: os.rename('one', 'x')):\n"
              "    try:\n        go()\n    except PermissionError as error:\n"
              "        assert error.errno == errno.EACCES, error\n    else:\n        raise SystemExit('not refused')\n")
    run(["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "/usr/bin/python3", "-c", script,
         mount.path], check=True, cwd="/")


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
        harness.wait_until(lambda: os.stat(two.path / "T%2F1").st_mode & 0o777 == 0o750)
        os.unlink(mount.path / "d" / "g")
        os.rmdir(mount.path / "d")
        # An ordinary directory, but that it cannot be removed or moved, and has one name that is
        # not anybody's.
        fails_with(errno.EBUSY, os.rmdir, mount.path)
        fails_with(errno.EBUSY, os.rename, mount.path, str(mount.path) + " moved")
        fails_with(errno.EPERM, os.mkdir, mount.path / ".berth")
        fails_with(errno.ENOENT, os.stat, mount.path / ".berth")
        os.setxattr(mount.path, "user.x", b"1")
        assert os.getxattr(two.path / "T%2F1", "user.x") == b"1"
        os.removexattr(mount.path, "user.x")
        os.utime(mount.path, ns=(1, 2))
        assert os.stat(two.path / "T%2F1").st_mtime_ns == 2
        fd = os.open(mount.path, os.O_RDONLY | os.O_DIRECTORY)
        os.fsync(fd)
        os.close(fd)
        assert os.stat(mount.path / "..").st_ino == os.stat(mount.path.parent).st_ino


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

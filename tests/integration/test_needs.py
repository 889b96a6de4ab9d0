"""What tools need from a directory (lib/needs): each check passes on a local directory first,
and then on a mount, as an ordinary user, as root, and as a user of somebody else's mount."""

import atexit
import functools
import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from lib import harness as parts
from lib import mounts
from lib import needs

NOBODY = pwd.getpwnam("nobody")
AS_NOBODY = ["setpriv", "--reuid", str(NOBODY.pw_uid), "--regid", str(NOBODY.pw_gid),
             "--clear-groups"]
PYTHON = "/usr/bin/python3"


class User:
    """Runs checks in directories that are this user's."""

    def __init__(self, harness, prefix):
        self.harness, self.prefix = harness, prefix

    def directory(self, path, mode=0o755):
        path.mkdir()
        path.chmod(mode)
        if self.prefix:
            os.chown(path, NOBODY.pw_uid, NOBODY.pw_gid)
        return path

    def run(self, *argv, **keywords):
        return self.harness.run([*self.prefix, *argv], **{"cwd": "/", **keywords})

    def check(self, name, *places):
        return self.run(PYTHON, "-B", "-m", "needs", name, *places, cwd=program(), timeout=120,
                        env={name: value for name, value in self.harness.env.items() if not name.startswith("PYTHON")})


@functools.cache
def program():
    """Where the checks are, compiled: a copy, since the repository may be where this user may not look."""
    copy = Path(tempfile.mkdtemp(prefix="berth-needs-", dir="/tmp"))
    atexit.register(shutil.rmtree, copy)
    copy.chmod(0o755)
    shutil.copytree(Path(needs.__file__).parent, copy / "needs", ignore=shutil.ignore_patterns("__pycache__"))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    subprocess.run([PYTHON, "-m", "compileall", "-q", copy], check=True, env=environment, timeout=60)
    return copy


def open_to_all(harness):
    """The test's own directories are root's alone; what another user needs is in harness.short."""
    os.chmod(harness.short, 0o755)


def mount_of_an_ordinary_user(harness, *options):
    """The service and the mount are the user's own, with owner=map and without allow_other."""
    open_to_all(harness)
    user = User(harness, AS_NOBODY)
    home = user.directory(harness.short / "nobody")
    root, point = user.directory(home / "root"), user.directory(home / "mnt")
    url = f"unix:{home}/sock"
    env = {**harness.env, "HOME": str(home), "XDG_RUNTIME_DIR": str(home), "BERTH_URL": url}
    service = harness.start("berthd", *AS_NOBODY, harness.program("berthd"), "--root", root,
                            "--listen", url, env=env)
    service.wait_for_line("listening on unix:" + str(home / "sock"))
    for name in ("one", "two"):
        user.run(harness.program("berth"), "create", name, env=env, check=True)
    asked = ["-o", ",".join(options)] if options else []
    UsersMount(harness, [*AS_NOBODY, harness.program("berthfs"), url, point, "-f", *asked], point, env)
    return user, point / "one", point / "two"


def mount_of_root(harness, *options):
    """owner=server, which everybody may enter."""
    open_to_all(harness)
    service = harness.start_service()
    for name in ("one", "two"):
        harness.run_berth("create", name, check=True)
    point = harness.short / "mnt"
    harness.start_mount(service, path=point, options=["owner=server", "allow_other", *options])
    return User(harness, []), point / "one", point / "two"


def mount_of_root_used_by_another(harness, *options):
    """The same, where the checks run as an ordinary user in directories given to that user."""
    _, one, two = mount_of_root(harness, *options)
    for workspace in (one, two):
        workspace.chmod(0o711)
    user = User(harness, AS_NOBODY)
    return user, user.directory(one / "theirs"), user.directory(two / "theirs")


class UsersMount(parts.Mount):
    """A mount that root, who runs the test, may not look at."""

    def _wait(self):
        def mounted():
            if not self.running():
                raise parts.HarnessError(f"berthfs ended:\n{self.log}")
            row = mounts.find_mount(self.path)
            return row if row and row["type"].startswith("fuse") else None
        self.row = parts.wait_until(mounted, parts.START_TIMEOUT, f"mount at {self.path}")


@pytest.fixture
def other_filesystem(harness):
    """A directory that is not on the filesystem of the test's own ones."""
    path = Path(tempfile.mkdtemp(prefix="berth-", dir="/dev/shm"))
    assert path.stat().st_dev != harness.short.stat().st_dev, "the oracle needs two filesystems"
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


# Whose point is in their thousands of files or rounds.
MANY = ("readdir_survives_deletion", "readdir_shows_the_rest_while_others_come_and_go", "large_appends_are_whole",
        "save_by_rename_without_a_moment_without_the_file", "two_writers_never_a_torn_mix", "holes_hold_no_data")

# Of those that a mount with its defaults does not do.
OPTIONS = {"absolute_symbolic_links": ["symlinks=verbatim"]}


@pytest.mark.matrix
@pytest.mark.timeout(300)  # thousands of files, on a busy machine
@pytest.mark.parametrize("mounted", [mount_of_an_ordinary_user, pytest.param(mount_of_root, marks=pytest.mark.long),
                                     pytest.param(mount_of_root_used_by_another, marks=pytest.mark.long)], ids=lambda f: f.__name__)
@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.long) if name in MANY else name for name in needs.CHECKS])
def test_need(name, mounted, harness, fuse_works, other_filesystem):
    user, one, two = mounted(harness, *OPTIONS.get(name, ()))
    local = user.directory(harness.short / "local")
    result = user.check(name, local, user.directory(other_filesystem / "other"), one, two)
    if f"fails in {local}" in result.stderr:
        pytest.fail(f"the check is wrong, a local directory fails it:\n{result.stderr}")
    assert result.returncode == 0, result.stderr


# --- users of somebody else's mount --------------------------------------------------------

REFUSED = """
import errno, os, sys
for go in (os.stat, os.listdir, lambda p: os.open(p, os.O_RDONLY),
           lambda p: os.stat(p + "/one"), lambda p: os.mkdir(p + "/one/d"),
           lambda p: os.open(p + "/one/f", os.O_WRONLY | os.O_CREAT), os.chdir,
           lambda p: os.getxattr(p, "user.berth.mount"), lambda p: os.rename(p + "/one/a", p + "/one/b")):
    try:
        go(sys.argv[1])
    except OSError as error:
        assert error.errno == errno.EACCES, error
    else:
        raise AssertionError("not refused")
"""


@pytest.mark.parametrize("options", [[], ["owner=server"]], ids=["owner=map", "owner=server"])
def test_other_users_are_refused_without_allow_other(harness, service, start_mount, run_berth, options):
    open_to_all(harness)
    run_berth("create", "one", check=True)
    mount = start_mount(service, path=harness.short / "mnt", options=options)
    (mount.path / "one").chmod(0o777)
    User(harness, AS_NOBODY).run(PYTHON, "-c", REFUSED, mount.path, check=True)
    assert os.listdir(mount.path / "one") == []


def test_root_is_refused_by_another_users_mount(harness, fuse_works):
    _, one, _ = mount_of_an_ordinary_user(harness)
    harness.run([PYTHON, "-c", REFUSED, one.parent], check=True)


ALLOWED = """
import errno, os, sys
os.chdir(sys.argv[1])
assert open("public").read() == "public"
assert sorted(os.listdir("shared")) == ["roots"]
def refused(number, go, *args):
    try:
        go(*args)
    except OSError as error:
        assert error.errno == number, (args, error)
    else:
        raise AssertionError(f"not refused: {args}")
refused(errno.EACCES, open, "private")
refused(errno.EACCES, open, "public", "a")
refused(errno.EACCES, open, "new", "w")
refused(errno.EACCES, os.mkdir, "new")
refused(errno.EACCES, os.unlink, "public")
refused(errno.EACCES, os.truncate, "public", 0)
refused(errno.EACCES, os.listdir, "closed")
refused(errno.EACCES, os.stat, "closed/f")
refused(errno.EPERM, os.chmod, "public", 0o777)
refused(errno.EPERM, os.chown, "public", os.getuid(), -1)
refused(errno.EPERM, os.utime, "public", (1, 1))
refused(errno.EACCES, os.setxattr, "public", "user.x", b"1")
refused(errno.EPERM, os.unlink, "shared/roots")   # sticky
refused(errno.EPERM, os.rename, "shared/roots", "shared/mine")
assert os.access("public", os.R_OK) and not os.access("public", os.W_OK)
with open("shared/mine", "w") as file:
    file.write("mine")
status = os.stat("shared/mine")
assert (status.st_uid, status.st_gid) == (os.getuid(), os.getgid()), status
os.chmod("shared/mine", 0o600)
assert open("shared/mine").read() == "mine"
os.mkdir("group/d")
assert os.stat("group/d").st_uid == os.getuid()
assert os.stat("group/d").st_gid == os.stat("group").st_gid, "of a set-gid directory"
assert os.stat("group/d").st_mode & 0o2000
"""


def test_other_users_are_bound_by_the_modes(harness, fuse_works):
    """With owner=server and allow_other: what a local directory of root's lets another user do."""
    _, one, _ = mount_of_root(harness)
    local = harness.short / "local"
    local.mkdir()
    old = os.umask(0o022)
    try:
        for place in (local, one):
            place.chmod(0o755)
            for name, mode in (("public", 0o644), ("private", 0o600)):
                (place / name).write_text(name)
                (place / name).chmod(mode)
            for name, mode in (("closed", 0o700), ("shared", 0o1777), ("group", 0o2777)):
                (place / name).mkdir()
                (place / name).chmod(mode)
            (place / "closed" / "f").touch()
            (place / "shared" / "roots").touch()
            result = User(harness, AS_NOBODY).run(PYTHON, "-c", ALLOWED, place)
            assert result.returncode == 0, f"{place}:\n{result.stderr}"
            assert (place / "shared" / "mine").stat().st_uid == NOBODY.pw_uid
    finally:
        os.umask(old)


def test_other_users_may_read_but_not_write_with_owner_map(harness, service, start_mount, run_berth):
    """With owner=map all is the mounting user's, so the modes alone say what others may."""
    open_to_all(harness)
    run_berth("create", "one", check=True)
    mount = start_mount(service, path=harness.short / "mnt", options=["allow_other"])
    one = mount.path / "one"
    one.chmod(0o755)
    for name, mode in (("public", 0o644), ("private", 0o600)):
        (one / name).write_text(name)
        (one / name).chmod(mode)
    user = User(harness, AS_NOBODY)
    assert user.run("cat", one / "public").stdout == "public"
    for argv in (["cat", one / "private"], ["touch", one / "new"], ["rm", "-f", one / "public"],
                 ["chmod", "777", one / "public"], ["mkdir", one / "d"]):
        result = user.run(*argv, env={**harness.env, "LC_ALL": "C"})
        assert result.returncode != 0 and ("Permission denied" in result.stderr
                                           or "not permitted" in result.stderr), (argv, result)
    assert sorted(os.listdir(one)) == ["private", "public"]

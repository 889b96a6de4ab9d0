"""A mount without its service: with disconnected=serve it goes on with what it knows, and says so; without
it nothing is answered that is not certain."""

import contextlib
import errno
import os
import re
import subprocess
import time

import pytest

from lib import kernel_caches
from lib import tree as trees
from lib.cached import workspace  # noqa: F401, fixtures
from lib.exec_client import WORKSPACE, ExecClient
from lib.harness import wait_until
from lib.mounts import find_mount

TIMEOUT = 1
LEASE = 3
# Nobody waits for longer, with what a busy machine takes.
LONGEST = 20


def run(*words, cwd):
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_OPTIONAL_LOCKS": "0"}
    result = subprocess.run(words, cwd=cwd, timeout=50, env=environment, stdin=subprocess.DEVNULL, capture_output=True)
    assert (result.returncode, result.stderr) == (0, b""), (words, result)
    return result.stdout


def git(path, *words):
    return run("git", "-c", "user.name=a", "-c", "user.email=a@b", *words, cwd=path)


@pytest.fixture
def prepared(workspace):
    """A repository with what one has: links, files with two names, an empty directory, a large file."""
    for number in range(40):
        path = workspace / f"d{number % 5}" / f"f{number}"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"needle {number}\n" * (number * 30 + 1))
    (workspace / "link").symlink_to("d1/f1")
    (workspace / "empty").mkdir()
    os.link(workspace / "d0" / "f0", workspace / "d1" / "second-name")
    (workspace / "large").write_bytes(os.urandom(3 << 20))
    git(workspace, "init", "-q", "-b", "main")
    (workspace / ".git" / "info" / "exclude").write_text("large\n")
    git(workspace, "add", ".")
    git(workspace, "commit", "-qm", "all")
    (workspace / "d2" / "f2").write_text("changed\n")
    (workspace / "untracked").write_text("needle\n")
    return workspace


def look(path):
    """What programs read."""
    status = git(path, "status", "--porcelain")
    found = run("rg", "-c", "--sort=path", "needle", cwd=path)
    listed = run("ls", "-lR", "--time-style=full-iso", ".", cwd=path)
    negative = [os.path.exists(path / name) for name in ("never", "d1/never", "empty/never")]
    return status, found, listed, negative, trees.describe(path, skip=(b"large",)), (path / "link").read_bytes()


def drop_caches(what):
    if os.geteuid() == 0:
        kernel_caches.drop(what)


def is_served(mount):
    """Past the lease and the deadline."""
    wait_until(lambda: mount.stats()["serving"], what="the end of the lease", timeout=30)
    wait_until(lambda: not mount.stats()["connected"], what="the loss", timeout=30)
    time.sleep(TIMEOUT + 1)


def fails(call, number=errno.EIO):
    start = time.monotonic()
    with pytest.raises(OSError) as caught:
        call()
    assert caught.value.errno == number
    assert time.monotonic() - start < LONGEST


def open_and_close(path, flags):
    os.close(os.open(path, flags, 0o600))


def is_left_alone(path, tree):
    """What changes something fails, and what is not known does."""
    before = trees.describe(tree, skip=(b".git",))
    fails(lambda: open_and_close(path / "new", os.O_WRONLY | os.O_CREAT))
    fails(lambda: open_and_close(path / "d1" / "f1", os.O_RDWR))
    fails(lambda: os.unlink(path / "d1" / "f1"))
    fails(lambda: os.rename(path / "d1" / "f1", path / "d1" / "g"))
    fails(lambda: os.mkdir(path / "d1" / "new"))
    fails(lambda: os.chmod(path / "d1" / "f1", 0o600))
    fails(lambda: os.setxattr(path / "d1" / "f1", "user.x", b"1"))
    fails(lambda: os.truncate(path / "d1" / "f1", 0))
    assert trees.describe(tree, skip=(b".git",)) == before


class Loss:
    """Ways to lose a service, and to have it back."""

    def __init__(self, service, relay):
        self.service, self.relay = service, relay

    def lose(self, how):
        if how == "cut":
            self.relay.refuse()
            self.relay.cut()
        elif how == "silent":
            self.relay.refuse()
            self.relay.half_open()
        elif how == "killed":
            self.service.kill()
        else:
            self.service.stop()

    def restore(self, how):
        if how in ("killed", "stopped"):
            self.service = self.service.restart()
        else:
            self.relay.refuse(False)


def mounted(service, start_relay, start_mount, option="serve", **keywords):
    relay = start_relay(service)
    mount = start_mount(service, url=relay.url, options=[f"timeout={TIMEOUT}", f"disconnected={option}"],
                        **{"workspace": WORKSPACE, **keywords})
    wait_until(lambda: mount.stats()["coherent"], what="reports of changes")
    return mount, Loss(service, relay)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("how", ["cut", pytest.param("silent", marks=pytest.mark.long), pytest.param("killed", marks=pytest.mark.long), "stopped"])
def test_what_was_read_is_served_and_then_asked_anew(service, start_relay, start_mount, prepared, how):
    mount, loss = mounted(service, start_relay, start_mount)
    before = look(mount.path)
    assert look(mount.path) == before
    loss.lose(how)
    is_served(mount)
    assert look(mount.path) == before
    drop_caches("2")  # names and attributes
    assert look(mount.path) == before
    drop_caches("3")  # and pages: the large file's are nowhere else
    (mount.path / "d3" / "f3").read_bytes()
    assert os.listdir(mount.path / "empty") == []
    if os.geteuid() == 0:
        fails((mount.path / "large").read_bytes)
    is_left_alone(mount.path, prepared)
    # Meanwhile.
    (prepared / "d1" / "f1").write_text("meanwhile\n")
    (prepared / "d1" / "f6").unlink()
    (prepared / "d1" / "never").write_text("now\n")
    os.rename(prepared / "d4", prepared / "d5")
    (prepared / "link").unlink()
    (prepared / "link").symlink_to("d2/f2")
    (prepared / "d0" / "f0").write_text("two names\n")
    assert look(mount.path)[3] == before[3]
    loss.restore(how)
    wait_until(lambda: mount.stats()["coherent"] and not mount.stats()["serving"], what="the connection", timeout=30)
    with ExecClient(loss.service.socket) as client:  # a barrier
        client.run(WORKSPACE, ["true"])
    assert trees.differences(mount.path, prepared) == []
    assert git(mount.path, "status", "--porcelain") == git(prepared, "status", "--porcelain")
    (mount.path / "new").write_text("written\n")
    assert (prepared / "new").read_text() == "written\n"
    assert find_mount(mount.path)["id"] == mount.row["id"]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("how", ["cut", "killed"])
def test_without_it_nothing_is_served(service, start_relay, start_mount, prepared, how):
    mount, loss = mounted(service, start_relay, start_mount, "fail")
    before = look(mount.path)
    loss.lose(how)
    wait_until(lambda: not mount.stats()["coherent"], what="the end of the lease", timeout=30)
    time.sleep(LEASE + 0.5)  # the kernel forgets: that there is no such name when the lease would have ended
    assert not mount.stats()["serving"]
    for call in (lambda: os.stat(mount.path / "d1" / "f1"), lambda: os.listdir(mount.path / "d1"),
                 (mount.path / "d2" / "f2").read_bytes, lambda: os.stat(mount.path / "never")):
        fails(call)
    loss.restore(how)
    wait_until(lambda: mount.stats()["coherent"], what="the connection", timeout=30)
    assert look(mount.path) == before


@pytest.mark.timeout(120)
def test_what_this_mount_has_changed_is_served_as_it_is(service, start_relay, start_mount, workspace):
    """Not what was there before."""
    (workspace / "d").mkdir()
    for name in ("removed", "moved", "written", "twice"):
        (workspace / "d" / name).write_text("old")
    os.link(workspace / "d" / "twice", workspace / "d" / "thrice")
    mount, loss = mounted(service, start_relay, start_mount)
    path = mount.path / "d"
    for name in os.listdir(path):
        (path / name).read_text()
    (path / "written").write_text("longer than before")
    os.unlink(path / "removed")
    os.rename(path / "moved", path / "there")
    os.mkdir(path / "made")
    os.rmdir(path / "made")
    (path / "twice").write_text("of both")
    os.listdir(path)
    (path / "written").read_text()
    loss.lose("cut")
    is_served(mount)
    for _ in range(2):
        assert (path / "written").stat().st_size == 18
        assert (path / "written").read_text() == "longer than before"
        assert sorted(os.listdir(path)) == ["there", "thrice", "twice", "written"]
        assert not os.path.exists(path / "removed") and not os.path.exists(path / "made")
        drop_caches("2")


@pytest.mark.timeout(120)
def test_open_files_and_what_was_under_way(service, start_relay, start_mount, workspace):
    """Reading goes on, and each write that did not arrive is told of, at the latest by close."""
    (workspace / "f").write_bytes(b"read")
    (workspace / "w").write_bytes(b"")
    mount, loss = mounted(service, start_relay, start_mount)
    read = os.open(mount.path / "f", os.O_RDONLY)
    assert os.pread(read, 10, 0) == b"read"
    written = [os.open(mount.path / "w", os.O_WRONLY) for _ in range(2)]
    assert os.write(written[0], b"arrived") == 7
    os.fsync(written[0])
    loss.relay.stall()
    assert os.write(written[0], b"on its way") == 10  # returns before the service has it
    loss.lose("cut")
    is_served(mount)
    loss.relay.resume()
    assert os.pread(read, 10, 0) == b"read"
    assert os.fstat(read).st_size == 4
    fails(lambda: os.pwrite(written[1], b"x", 0))
    fails(lambda: os.fsync(written[0]))
    with contextlib.suppress(OSError):
        os.close(written[1])
    os.close(written[0])
    (workspace / "f").write_bytes(b"meanwhile")
    loss.restore("cut")
    wait_until(lambda: mount.stats()["coherent"], what="the connection", timeout=30)
    with ExecClient(service.socket) as client:
        client.run(WORKSPACE, ["true"])
    assert os.pread(read, 10, 0) == b"meanwhile"
    assert (mount.path / "w").read_bytes() == (workspace / "w").read_bytes() == b"arrived"
    os.close(read)


@pytest.mark.timeout(120)
def test_close_tells_of_what_did_not_arrive(service, start_relay, start_mount, workspace):
    (workspace / "w").write_bytes(b"")
    mount, loss = mounted(service, start_relay, start_mount)
    descriptor = os.open(mount.path / "w", os.O_WRONLY)
    os.write(descriptor, b"arrived")
    os.fsync(descriptor)
    loss.relay.stall()
    assert os.write(descriptor, b"on its way") == 10
    loss.lose("cut")
    is_served(mount)
    fails(lambda: os.close(descriptor))


@pytest.mark.timeout(120)
def test_nobody_waits_for_longer_than_the_lease(service, start_relay, start_mount, workspace):
    """Who changes something elsewhere: also when what is served here is older then."""
    (workspace / "f").write_text("old")
    mount, loss = mounted(service, start_relay, start_mount)
    other = start_mount(service, workspace=WORKSPACE)
    assert (mount.path / "f").read_text() == "old"
    loss.lose("cut")
    start = time.monotonic()
    with ExecClient(service.socket) as client:
        result = client.run(WORKSPACE, ["sh", "-c", "printf new > f"])
    assert result.verdict.code == 0
    assert time.monotonic() - start < LONGEST
    is_served(mount)
    start = time.monotonic()
    for number in range(5):  # each would wait for a lease that is not over
        (other.path / "f").write_text(f"newer {number}")
    assert time.monotonic() - start < LEASE
    assert (mount.path / "f").read_text() == "old"
    loss.restore("cut")
    wait_until(lambda: mount.stats()["coherent"], what="the connection", timeout=30)
    assert (mount.path / "f").read_text() == "newer 4"


@pytest.mark.timeout(120)
def test_a_mount_of_all_workspaces(service, start_relay, start_mount, prepared, run_berth):
    run_berth("create", "other", check=True)
    mount, loss = mounted(service, start_relay, start_mount, workspace=None)
    before = look(mount.path / WORKSPACE), sorted(os.listdir(mount.path))
    assert before[1] == sorted([WORKSPACE, "other"])
    loss.lose("cut")
    is_served(mount)
    for what in ("2", "3"):
        drop_caches(what)
        assert sorted(os.listdir(mount.path)) == before[1]
        assert os.listdir(mount.path / WORKSPACE / "empty") == []
        assert (mount.path / WORKSPACE / "d1" / "f1").read_bytes() == (prepared / "d1" / "f1").read_bytes()
    fails(lambda: os.stat(mount.path / "never-seen"))
    run_berth("rm", "other", check=True)
    run_berth("create", "third", check=True)
    loss.restore("cut")
    wait_until(lambda: mount.stats()["coherent"], what="the connection", timeout=30)
    assert sorted(os.listdir(mount.path)) == sorted([WORKSPACE, "third"])


def told(run_berth, mount):
    """What the status says of this mount; others of this machine are none of our business."""
    text = run_berth("status").stdout
    return re.search(rf"^  {re.escape(str(mount.path))}  .*\n(    .*\n)*", text, re.M).group(0)


@pytest.mark.timeout(120)
def test_status_says_since_when(service, start_relay, start_mount, workspace, run_berth):
    mount, loss = mounted(service, start_relay, start_mount)
    assert "serving what it knew" not in told(run_berth, mount)
    loss.lose("cut")
    lost = time.time()
    is_served(mount)
    stats = mount.stats()
    assert stats["serving"] and not stats["coherent"]
    assert lost - LEASE - 5 < stats["served_as_of"] <= lost + 1
    text = told(run_berth, mount)
    when = re.search(r"DISCONNECTED: serving what it knew as of (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d);", text)
    assert when and when.group(1) == time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(stats["served_as_of"])), text
    assert f"{mount.path}  disconnected" in text
    loss.restore("cut")
    wait_until(lambda: mount.stats()["coherent"], what="the connection", timeout=30)
    assert "served_as_of" not in mount.stats()
    assert "serving what it knew" not in told(run_berth, mount)


@pytest.mark.parametrize("options, reason", [
    ("disconnected=maybe", "expected disconnected=fail or disconnected=serve"),
    ("disconnected", "option disconnected needs a value"),
    ("cache=no,disconnected=serve", "leave out one of the two")])
def test_options_that_make_no_sense(service, run, binaries, tmp_path, options, reason):
    result = run([binaries["berthfs"], service.url, tmp_path, "-o", options], env=service.client_env())
    assert result.returncode == 2
    assert reason in result.stderr

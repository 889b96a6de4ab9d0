"""A shell that stands in a mount keeps its working directory: whatever the kernel is told to forget, and
while the service is away, a directory that is what it was has a path. And how long calls wait meanwhile."""

import errno
import os
import signal
import time
from contextlib import contextmanager

import pytest

from lib.cached import workspace  # noqa: F401, fixtures
from lib.exec_client import WORKSPACE, ExecClient
from lib.harness import wait_until

# Until then the driver takes an answer that it gave for one that the kernel may not have taken in.
TAKEN_IN = 3

# So soon after an attempt to connect has failed, a call fails without another: much longer than that.
PAUSE = 0.2


@contextmanager
def standing_in(path):
    """A function that gives the directory's path, as the kernel has it (getcwd)."""
    fd = os.open(path, os.O_PATH | os.O_DIRECTORY)
    try:
        yield lambda: os.readlink(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)


def told_lately(path):
    """Looks it up again so that the kernel may keep it, which it may not just after a change of the name."""
    time.sleep(TAKEN_IN + 0.5)
    os.stat(path)


def change_rules(run_berth, mount, pattern):
    run_berth("visibility", "-m", mount.path, "-a", f"hidden:{pattern}", check=True)


@contextmanager
def paused(service):
    """What happens meanwhile is reported all at once."""
    service.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        service.signal(signal.SIGCONT)


def barrier(service):
    """Returns when the mounts have seen all that was changed."""
    with ExecClient(service.socket) as client:
        client.run(WORKSPACE, ["true"])


@pytest.mark.parametrize("watch", ["inotify", "fanotify"])
def test_other_rules_leave_it(start_service, start_mount, run_berth, watch):
    if watch == "fanotify" and os.geteuid() != 0:
        watch = "inotify"
    service = start_service(args=("--watch", watch))
    run_berth("create", WORKSPACE, check=True)
    mount = start_mount(service)
    path = mount.path / WORKSPACE / "a" / "b"
    path.mkdir(parents=True)
    change_rules(run_berth, mount, "first")
    told_lately(path)
    with standing_in(path) as place, standing_in(path.parent) as above:
        change_rules(run_berth, mount, "second")
        barrier(service)
        assert (place(), above()) == (str(path), str(path.parent))
        assert run_berth("exec", "--", "pwd", cwd=path, check=True).stdout.strip().endswith("/a/b")
    # What is hidden by them is gone all the same, once and for all.
    change_rules(run_berth, mount, "b")
    with pytest.raises(FileNotFoundError):
        os.stat(path)


@pytest.fixture
def reported(service, start_mount, run_berth, workspace):
    """(where it is, its path on a mount) of a directory a/b, of whose name the kernel was told
    lately; what is done to it in `with paused(service)` is reported at once."""
    (workspace / "a" / "b").mkdir(parents=True)
    mount = start_mount(service, workspace=WORKSPACE)
    wait_until(lambda: mount.stats()["coherent"], what="reports of changes")
    path = mount.path / "a" / "b"
    os.stat(path)
    change_rules(run_berth, mount, "first")
    told_lately(path)
    return workspace / "a" / "b", path


def test_a_report_of_its_name_leaves_it(service, reported):
    """Some changes are this mount's own, and some are undone."""
    there, path = reported
    with standing_in(path) as place:
        with paused(service):
            os.rename(there, there.parent / "c")
            os.rename(there.parent / "c", there)
        barrier(service)
        assert place() == str(path)


def test_what_has_another_name_has_lost_its_path(service, reported):
    there, path = reported
    with standing_in(path) as place:
        with paused(service):
            os.rename(there, there.parent / "c")
            (there / "new").mkdir(parents=True)
        barrier(service)
        assert os.listdir(path) == ["new"]
        assert place() == f"{path} (deleted)"



@pytest.mark.timeout(120)
@pytest.mark.parametrize("single", [True, False])
def test_it_outlives_the_service(service, start_mount, run_berth, workspace, single):
    """Also when it was looked for meanwhile, in vain."""
    (workspace / "a" / "b").mkdir(parents=True)
    mount = start_mount(service, options=["timeout=1"], workspace=WORKSPACE if single else None)
    top = mount.path if single else mount.path / WORKSPACE
    path = top / "a" / "b"
    os.stat(path)
    change_rules(run_berth, mount, "first")
    told_lately(path)
    with standing_in(path) as place, standing_in(path.parent) as above, standing_in(top) as root:
        places = [str(path), str(path.parent), str(top)]
        service.kill()
        wait_until(lambda: not mount.stats()["coherent"], what="the end of the lease")
        time.sleep(0.5)  # the kernel forgets
        assert [place(), above(), root()] == places
        for missing in (path, path / "never", top / "never"):
            with pytest.raises(OSError) as caught:
                os.stat(missing)
            assert caught.value.errno == errno.EIO
        assert [place(), above(), root()] == places
        # Its name is not known to have gone, so nothing is made there.
        with pytest.raises(OSError) as caught:
            os.mkdir(path)
        assert caught.value.errno == errno.EIO
        time.sleep(PAUSE)
        service.restart()
        os.stat(path)
        assert [place(), above(), root()] == places
        assert run_berth("exec", "--", "pwd", cwd=path, check=True).stdout.strip().endswith("/a/b")


def test_it_outlives_a_service_that_is_stood_in_for(service, start_mount, run_berth, workspace):
    (workspace / "a" / "b").mkdir(parents=True)
    mount = start_mount(service, options=["timeout=1", "disconnected=serve"], workspace=WORKSPACE)
    path = mount.path / "a" / "b"
    os.stat(path)
    change_rules(run_berth, mount, "first")
    told_lately(path)
    with standing_in(path) as place:
        service.kill()
        wait_until(lambda: mount.stats()["serving"], what="the end of the lease")
        with pytest.raises(OSError) as caught:
            os.mkdir(path / "new")
        assert caught.value.errno == errno.EIO
        os.stat(path)
        assert place() == str(path)
        time.sleep(PAUSE)
        service.restart()
        assert os.listdir(path) == []
        assert place() == str(path)


def test_one_that_went_meanwhile_has_gone(service, start_mount, workspace):
    (workspace / "a").mkdir()
    mount = start_mount(service, options=["timeout=1"], workspace=WORKSPACE)
    with standing_in(mount.path / "a") as place:
        service.kill()
        wait_until(lambda: not mount.stats()["coherent"], what="the end of the lease")
        time.sleep(0.5)  # the kernel forgets
        with pytest.raises(OSError) as caught:
            os.stat(mount.path / "a")
        assert caught.value.errno == errno.EIO
        (workspace / "a").rmdir()
        time.sleep(PAUSE)
        service.restart()
        with pytest.raises(FileNotFoundError):
            os.stat(mount.path / "a")
        assert place() == f"{mount.path}/a (deleted)"


def test_the_timeout_is_of_the_loss_not_of_each_call(service, start_mount, workspace):
    mount = start_mount(service, options=["timeout=5"], workspace=WORKSPACE)
    service.kill()
    wait_until(lambda: not mount.stats()["connected"], what="the loss")
    start = time.monotonic()
    for number in range(10):  # alone, they would take 50 s
        with pytest.raises(OSError) as caught:
            os.stat(mount.path / f"f{number}")
        assert caught.value.errno == errno.EIO
    assert 3 < time.monotonic() - start < 25


def test_a_call_does_not_wait_for_the_next_attempt(service, start_mount, workspace):
    """Attempts to connect come 0.1, 0.3, 0.7, 1.5, 3.1 and 6.3 s after the loss; and when they are needed."""
    mount = start_mount(service, options=["timeout=1"], workspace=WORKSPACE)
    service.kill()
    wait_until(lambda: not mount.stats()["connected"], what="the loss")
    time.sleep(3.6)
    service.restart()
    os.stat(mount.path / ".")
    assert os.listdir(mount.path) == []

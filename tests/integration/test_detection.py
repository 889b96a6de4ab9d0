"""Ways to notice what commands change: with each, nothing that a mount shows after a command has ended is
older than that; also when there is too much, and where nothing can be noticed."""

import json
import os
import random
import signal
import subprocess
import time

import pytest

from integration.test_read_your_exec import ANY_LINK, by_exec, rounds
from lib.agent import compare, seen
from lib.cached import workspace  # noqa: F401, fixtures
from lib.exec_client import WORKSPACE, ExecClient

ROUNDS = 40

RENAMES = 20000

# Of which the service takes three quarters.
FEW_WATCHES = 8

MODES = ["fanotify", "inotify", "none"]


def with_few_watches():
    """In a user namespace of its own, whose limit is lowered: that of the machine stays as it is."""
    script = f"echo {FEW_WATCHES} > /proc/sys/user/max_inotify_watches && exec \"$@\""
    return ["unshare", "--user", "--map-root-user", "sh", "-c", script, "sh"]


@pytest.fixture(params=MODES)
def mode(request):
    return request.param


@pytest.fixture
def service(start_service, mode):
    return start_service(args=["--watch", mode])


@pytest.fixture
def changes_of(run_berth):
    def read():
        status = json.loads(run_berth("status", "--json", check=True).stdout)
        return status["service"]["changes"]
    return read


def test_read_your_exec(service, mode, start_mount, workspace, changes_of):
    one, two = (start_mount(service, workspace=name, options=ANY_LINK) for name in (WORKSPACE, None))
    rounds(service, [one.path, two.path / WORKSPACE], workspace, ROUNDS, time.time_ns() % 1000000, by_exec)
    assert changes_of()["mode"] == mode


NEW_TREE = "mkdir -p {0}/b/c/d && touch {0}/1 {0}/b/2 {0}/b/c/3 {0}/b/c/d/4 && printf {0} > {0}/b/c/d/4"


def test_new_directories_are_seen_with_what_is_in_them(service, start_mount, workspace):
    mount = start_mount(service, workspace=WORKSPACE)
    names = ["", "{0}", "{0}/1", "{0}/b", "{0}/b/2", "{0}/b/c", "{0}/b/c/3", "{0}/b/c/d", "{0}/b/c/d/4"]
    with ExecClient(service.socket) as client:
        for number in range(10):
            top = f"a{number % 7}"
            paths = [name.format(top) for name in names]
            if number % 3 == 0:
                seen(mount.path / top)
            client.run(WORKSPACE, ["sh", "-c", f"rm -rf {top}; {NEW_TREE.format(top)}"])
            compare([mount.path], workspace, random.Random(number).sample(paths, 4), f"round {number}")
            # By what is known of the new ones now, too.
            client.run(WORKSPACE, ["sh", "-c", f"touch {top}/b/c/d/5; mkdir {top}/b/c/d/6; touch {top}/b/c/d/6/7"])
            compare([mount.path], workspace, [*paths, f"{top}/b/c/d/5", f"{top}/b/c/d/6/7"], f"round {number}")


@pytest.mark.parametrize("mode", ["inotify"], indirect=True)
def test_a_link_in_another_directory(service, start_mount, workspace):
    """A file with two names is changed by the other."""
    mount = start_mount(service, workspace=WORKSPACE)
    for directory in ("one", "two"):
        (workspace / directory).mkdir()
    (workspace / "one" / "f").write_bytes(b"text")
    held = os.open(mount.path / "one" / "f", os.O_RDONLY)
    try:
        with ExecClient(service.socket) as client:
            assert seen(mount.path / "one" / "f") == seen(workspace / "one" / "f")
            os.listdir(mount.path / "two")
            client.run(WORKSPACE, ["ln", "one/f", "two/f"])
            for number in range(20):
                client.run(WORKSPACE, ["sh", "-c", f"printf {number:04d} > two/f"])
                compare([mount.path], workspace, ["one/f", "two/f"], f"round {number}")
                assert os.pread(held, 10, 0) == b"%04d" % number
    finally:
        os.close(held)


def test_more_directories_than_watches(start_service, start_mount, run_berth, changes_of):
    service = start_service(args=["--watch", "inotify"], wrapper=with_few_watches())
    run_berth("create", WORKSPACE, check=True)
    tree = service.root / "workspaces" / WORKSPACE / "tree"
    for number in range(30):
        (tree / f"d{number}").mkdir()
        (tree / f"d{number}" / "f").write_bytes(b"%d" % number)
    mount = start_mount(service, workspace=WORKSPACE)
    subprocess.run(["find", ".", "-ls"], cwd=mount.path, check=True, stdout=subprocess.DEVNULL)
    changes = changes_of()
    assert changes["watches"] <= changes["watches_max"] == FEW_WATCHES * 3 // 4
    assert changes["watches_refused"] > 0
    assert str(FEW_WATCHES * 3 // 4) in run_berth("status", check=True).stdout
    rng = random.Random(1)
    with ExecClient(service.socket) as client:
        for number in range(80):
            one, two = rng.sample(range(30), 2)
            client.run(WORKSPACE, ["sh", "-c", rng.choice([
                f"printf {number} > d{one}/f",
                f"mkdir -p d{one}/e; printf {number} > d{one}/e/g",
                f"rm -rf d{one}/e d{one}/f",
                f"mv d{one} t; mv d{two} d{one}; mv t d{two}",
                f"ln -f d{one}/f d{two}/h",
                f"touch -d @1700000000 d{one}/f; chmod 600 d{two}"])])
            names = [f"d{n}{rest}" for n in (one, two) for rest in ("", "/f", "/e", "/e/g", "/h")]
            compare([mount.path], tree, ["", *names], f"round {number}")


@pytest.mark.parametrize("mode", ["fanotify", "inotify"], indirect=True)
def test_more_changes_than_the_kernel_keeps(service, start_mount, workspace, changes_of):
    """The service stands still while a program changes more than the queue holds."""
    mount = start_mount(service, workspace=WORKSPACE)
    for number in range(20):
        (workspace / f"f{number}").write_bytes(b"old")
    directory = workspace / "d"
    directory.mkdir()
    (directory / "t0").write_bytes(b"x")
    subprocess.run(["find", ".", "-ls"], cwd=mount.path, check=True, stdout=subprocess.DEVNULL)
    names = ["", "d", "d/t0", f"d/t{RENAMES}", *(f"f{number}" for number in range(20))]
    compare([mount.path], workspace, names, "at first")
    before = changes_of()["overflows"]
    service.signal(signal.SIGSTOP)
    try:
        # At least one event each, and all within the time that a mount relies on the service.
        for number in range(RENAMES):
            os.rename(directory / f"t{number}", directory / f"t{number + 1}")
        for number in range(20):
            (workspace / f"f{number}").write_bytes(b"new")
    finally:
        service.signal(signal.SIGCONT)
    with ExecClient(service.socket) as client:
        client.run(WORKSPACE, ["true"])
        compare([mount.path], workspace, names, "after the flood")
        assert changes_of()["overflows"] > before
        # And one by one again.
        for number in range(10):
            client.run(WORKSPACE, ["sh", "-c", f"printf {number} > d/1; rm -f f{number}"])
            compare([mount.path], workspace, [*names, "d/1"], f"round {number}")


def test_a_way_that_is_not_to_be_had(harness):
    """In a user namespace there is no mark on a filesystem."""
    run = subprocess.run(
        ["unshare", "--user", "--map-root-user", harness.program("berthd"), "--root", harness.new_path("root"),
         "--watch", "fanotify", "--listen", f"unix:{harness.short}/w.sock"],
        capture_output=True, text=True, timeout=60)
    assert run.returncode == 1
    assert "cannot watch for changes: fanotify" in run.stderr


def test_doctor_tells_when_watches_are_few(start_service, start_mount, run_berth):
    service = start_service(args=["--watch", "inotify"], wrapper=with_few_watches())
    run_berth("create", WORKSPACE, check=True)
    tree = service.root / "workspaces" / WORKSPACE / "tree"
    assert "notices changes by inotify" in run_berth("doctor").stdout
    for number in range(FEW_WATCHES):
        (tree / f"d{number}").mkdir()
    mount = start_mount(service, workspace=WORKSPACE)
    subprocess.run(["find", ".", "-ls"], cwd=mount.path, check=True, stdout=subprocess.DEVNULL)
    assert "raise fs.inotify.max_user_watches" in run_berth("doctor").stdout

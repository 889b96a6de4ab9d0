"""A workspace that is mounted again: what its listings cost, and that they are right."""

import os
import pathlib
import shutil
import stat
import subprocess
import sys
import time

import pytest

from lib.cached import workspace  # noqa: F401, fixtures
from lib.exec_client import WORKSPACE
from lib.harness import wait_until

pytestmark = pytest.mark.timeout(120)

DIRECTORIES, FILES, LARGE = 60, 20, 3000


@pytest.fixture
def files(workspace):
    """1,200 files in 60 directories, 3,000 in one: more than a first mount is told at once."""
    for number in range(DIRECTORIES):
        directory = workspace / f"a{number % 5}" / f"b{number}"
        directory.mkdir(parents=True)
        for file in range(FILES):
            (directory / f"file{file}").write_bytes(b"x" * file)
    large = workspace / "large"
    large.mkdir()
    for number in range(LARGE):
        (large / f"name-{number}").touch()
    time.sleep(0.1)  # What changed after a mount has written to its disk is told whole to the next.
    return workspace


@pytest.fixture
def directory(harness):
    """Where the cache of what the harness runs is."""
    return pathlib.Path(harness.env["XDG_CACHE_HOME"]) / "berth"


@pytest.fixture
def mounted(service, start_relay, start_mount, workspace, caches_kept):
    """A function that mounts the workspace anew, always by the same URL; .count(work) of what it gives
    counts what work costs."""
    relay = start_relay(service, delay=10)

    def start(options=""):
        mount = start_mount(service, url=relay.url, workspace=WORKSPACE, options=options)
        wait_until(lambda: mount.stats()["coherent"], what="reports of changes")

        def count(work):
            relay.reset_stats()
            before = mount.stats()
            work()
            after, passed = mount.stats(), relay.stats()
            kinds = {kind: row["frames"] for kind, row in passed["to_server"]["types"].items()}
            return {"blocking": after["blocking"] - before["blocking"],
                    "bytes": passed["to_client"]["bytes"], "sent": passed["to_server"]["bytes"],
                    "kinds": {kind: number for kind, number in kinds.items() if kind not in ("ACK", "PING", "STATFS")}}
        mount.count = count
        return mount
    start.relay = relay
    return start


def described(path):
    """All there is to know of a tree but what a mount has of its own: inode numbers."""
    found = {}
    for place, directories, names in os.walk(path):
        for name in [*directories, *names]:
            full = os.path.join(place, name)
            try:
                st = os.lstat(full)
                link = os.readlink(full) if stat.S_ISLNK(st.st_mode) else None
            except FileNotFoundError:
                continue  # it has a name no more
            found[os.path.relpath(full, path)] = (st.st_mode, st.st_size, st.st_mtime_ns, st.st_ctime_ns,
                                                  st.st_nlink, st.st_blocks, link)
    return found


def seen(mount, tree):
    """Looks at all of the mount, which must be what is there, and says what that cost."""
    expected = described(tree)
    got = []
    cost = mount.count(lambda: got.append(described(mount.path)))
    wrong = {name for name in expected.keys() | got[0].keys() if expected.get(name) != got[0].get(name)}
    assert not wrong, sorted(wrong)[:10]
    cost["parts"] = mount.stats()["disk_parts_read"]
    return cost


def left(mount):
    wait_until(lambda: mount.stats()["disk_pending"] == 0, what="writing to disk")
    mount.unmount()


def seen_once(mounted, tree):
    mount = mounted()
    cost = seen(mount, tree)
    left(mount)
    return cost


def test_nothing_has_changed(files, mounted):
    first = seen_once(mounted, files)
    print(first)
    assert first["parts"] == 0
    for _ in range(2):
        mount = mounted()
        cost = seen(mount, files)
        print(cost)
        assert cost["parts"] > DIRECTORIES
        assert cost["bytes"] * 10 < first["bytes"], (first, cost)
        assert cost["sent"] <= first["sent"]
        assert cost["blocking"] <= first["blocking"] + 1 and cost["kinds"]["READTREE"] == 1, (first, cost)
        assert "READPARTS" not in cost["kinds"] and not set(seen(mount, files)["kinds"]) & {"READTREE", "READPARTS"}
        left(mount)


def set_times_back(path, before):
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def write_same_size(tree):
    path = tree / "a1/b1/file19"
    before = path.stat()
    path.write_bytes(b"y" * before.st_size)
    set_times_back(path, before)


def change_mode(tree):
    (tree / "a2/b2/file3").chmod(0o600)


def change_mode_of_a_directory(tree):
    (tree / "a2/b2").chmod(0o700)


def make(tree):
    (tree / "a3/b3/new").write_bytes(b"new")
    (tree / "large/new").touch()


def remove(tree):
    (tree / "a3/b8/file3").unlink()
    (tree / "large/name-1000").unlink()


def rename(tree):
    """Of a file it is the only sign that its name is gone, and another one there."""
    (tree / "large/name-7").rename(tree / "a0/b0/moved")
    (tree / "a1/b6").rename(tree / "a1/moved")


def swap_types(tree):
    (tree / "a4/b4/file5").unlink()
    (tree / "a4/b4/file5").mkdir()
    shutil.rmtree(tree / "a4/b9")
    (tree / "a4/b9").symlink_to("b4")


def swap_names(tree):
    """Two files of the same size and time, each by the other's name."""
    one, two = tree / "large/name-11", tree / "large/name-12"
    at = one.stat().st_mtime_ns
    os.utime(two, ns=(at, at))
    one.rename(tree / "large/between")
    two.rename(one)
    (tree / "large/between").rename(two)


def link(tree):
    os.link(tree / "a0/b5/file1", tree / "a1/b1/another")


def replace_all(tree):
    for number in range(LARGE):
        (tree / f"large/name-{number}").chmod(0o640)


SINGLE = [write_same_size, change_mode, change_mode_of_a_directory, make, remove, rename, swap_types, swap_names, link]


def all_at_once(tree):
    for change in SINGLE:
        change(tree)


@pytest.mark.parametrize("change", [all_at_once, *(pytest.param(change, marks=pytest.mark.long)
                                                   for change in [*SINGLE, replace_all])])
def test_what_has_changed_meanwhile_is_seen(files, mounted, change):
    """And nothing but that comes anew."""
    first = seen_once(mounted, files)
    change(files)
    mount = mounted()
    cost = seen(mount, files)
    print(cost)
    if change in (write_same_size, all_at_once):
        assert (mount.path / "a1/b1/file19").read_bytes() == b"y" * 19
    assert cost["parts"] > 20
    if change is not replace_all:
        assert cost["bytes"] < first["bytes"] / 5, (first, cost)
    assert cost["kinds"]["READTREE"] == 1 and cost["kinds"].get("READPARTS", 0) <= 1, cost
    left(mount)
    # From then on it is on disk as well.
    mount = mounted()
    assert seen(mount, files)["bytes"] * 10 < first["bytes"]


def segments(directory):
    return sorted(directory.glob("*.segment"))


START = 4096 + 16384 * 16  # of what is in a segment (common/cache/segment.h)


def flip(path):
    data = bytearray(path.read_bytes())
    for at in range(START + 40, len(data), 5000):
        data[at] ^= 1
    path.write_bytes(data)


def cut(path):
    os.truncate(path, START + (path.stat().st_size - START) // 2)


def empty(path):
    with open(path, "r+b") as file:
        file.seek(START)
        file.write(bytes(path.stat().st_size - START))


@pytest.mark.parametrize("damage", [flip, *(pytest.param(damage, marks=pytest.mark.long) for damage in (cut, empty))])
def test_what_is_damaged_is_never_served(files, mounted, directory, damage):
    seen_once(mounted, files)
    for path in segments(directory):
        damage(path)
    mount = mounted()
    cost = seen(mount, files)
    print(cost)
    assert "READPARTS" in cost["kinds"] and mount.stats()["disk_parts_damaged"] > 10
    left(mount)
    mount = mounted()
    assert "READPARTS" not in seen(mount, files)["kinds"] and mount.stats()["disk_parts_damaged"] == 0


def test_shown_and_cleared(files, mounted, directory, run_berth):
    first = seen_once(mounted, files)
    shown = run_berth("cache", check=True).stdout
    assert " 0 files, " in shown and " parts of listings, " in shown
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert [stat.S_IMODE(path.stat().st_mode) for path in segments(directory)] == [0o600]
    mount = mounted()
    run_berth("cache", "--clear", check=True)
    assert " parts of listings, " not in run_berth("cache", check=True).stdout
    # Of this mount it was expected to be there.
    assert "READPARTS" in seen(mount, files)["kinds"]
    left(mount)
    run_berth("cache", "--clear", check=True)
    mount = mounted()
    cost = seen(mount, files)
    # Whether an attribute is asked for as well depends on how soon the walk comes by.
    assert cost["parts"] == 0 and cost["kinds"]["READTREE"] == first["kinds"]["READTREE"], (first, cost)
    assert "READPARTS" not in cost["kinds"]


def test_of_another_service_nothing_is_taken(files, mounted, service):
    first = seen_once(mounted, files)
    service.stop()
    described_in = service.root / "service.json"
    text = described_in.read_text()
    identity = text.split('"service_id"')[1].split('"')[1]
    described_in.write_text(text.replace(identity, identity[:-1] + ("0" if identity[-1] != "0" else "1")))
    service.restart()
    mount = mounted()
    cost = seen(mount, files)
    assert cost["parts"] == 0 and cost["bytes"] > first["bytes"] / 2


@pytest.mark.long
def test_a_service_that_was_started_again(files, mounted, service):
    first = seen_once(mounted, files)
    service.stop()
    change_mode(files)
    service.restart()
    mount = mounted()
    cost = seen(mount, files)
    assert cost["parts"] > DIRECTORIES / 2 and cost["bytes"] * 5 < first["bytes"]


def test_other_rules(files, mounted, run_berth):
    """Of what is left out now nothing is told, and what was left out is."""
    seen_once(mounted, files)

    def names(mount):
        return {os.path.relpath(os.path.join(place, name), mount.path)
                for place, directories, files in os.walk(mount.path) for name in [*directories, *files]}
    everything = set(described(files))
    run_berth("visibility", WORKSPACE, "--add", "hidden:file7", "--add", "a3/", check=True)
    mount = mounted()
    shown = {name for name in everything if not name.endswith("/file7") and name.split("/")[0] != "a3"}
    assert names(mount) == shown
    with pytest.raises(FileNotFoundError):
        os.stat(mount.path / "a0/b0/file7")
    assert os.stat(mount.path / "a3/b3/file3").st_size == 3
    left(mount)
    run_berth("visibility", WORKSPACE, "--clear", check=True)
    mount = mounted()
    assert names(mount) == everything
    assert mount.stats()["disk_parts_read"] > DIRECTORIES / 2


def test_killed_drivers_leave_nothing_wrong(files, mounted):
    for number in (0, 2, 5):
        mount = mounted()
        walk = subprocess.Popen(["find", ".", "-ls"], cwd=mount.path, stdout=subprocess.DEVNULL,
                                stderr=subprocess.DEVNULL)
        time.sleep(0.02 * number)
        mount.kill()
        walk.wait(30)
        mount.close()
        (files / f"large/between-{number}").touch()
    for _ in range(2):
        mount = mounted()
        seen(mount, files)
        assert mount.stats()["disk_parts_damaged"] == 0
        left(mount)


CHURN = """
import os, random, sys, time
r, end, n = random.Random(int(sys.argv[1])), time.time() + 3, 0
while time.time() < end:
    n += 1
    name = f"large/name-{r.randrange(3000)}"
    try:
        match r.randrange(4):
            case 0: os.unlink(name)
            case 1: os.chmod(name, r.choice([0o600, 0o644]))
            case 2: os.rename(name, f"large/name-{r.randrange(3000)}")
            case 3: open(name, "w").write("x" * r.randrange(9))
    except OSError:
        pass
print(n)
"""


@pytest.mark.long
def test_what_changes_while_it_is_read_again(files, mounted):
    """Between digests and what is asked for by them, too."""
    seen_once(mounted, files)
    mounted.relay.delay(0)  # while names change, each is looked up
    for number in range(2):
        with subprocess.Popen([sys.executable, "-c", CHURN, str(number)], stdout=subprocess.PIPE, cwd=files) as churn:
            time.sleep(0.2)
            while churn.poll() is None:
                mount = mounted()
                described(mount.path)
                if churn.poll() is None:
                    mount.unmount()
            assert int(churn.stdout.read()) > 100
        seen(mount, files)
        mount.unmount()

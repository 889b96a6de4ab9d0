"""What is read ahead: how often and how much is asked for it, and that it is right."""

import json
import os
import random
import subprocess
import time

import pytest

from lib import berthwire, kernel_caches
from lib.agent import PLACES, change, compare
from lib.cached import mount, through_relay, workspace  # noqa: F401, fixtures
from lib.exec_client import WORKSPACE, ExecClient
from lib.harness import wait_until

ROUNDS = 100
LONG_ROUNDS = 5000

DIRECTORIES, FILES = 40, 50


@pytest.fixture
def files(workspace):
    """2,000 files in 40 directories, three levels deep."""
    for number in range(DIRECTORIES):
        directory = workspace / f"a{number % 5}" / f"b{number % 10}" / f"c{number}"
        directory.mkdir(parents=True)
        for file in range(FILES):
            (directory / f"file{file}").write_bytes(b"x" * file)
    return workspace


def find(path):
    return subprocess.run(["find", ".", "-ls"], cwd=path, check=True, capture_output=True, text=True,
                          timeout=60).stdout


def inodes(listing):
    """Without the numbers, which are the mount's own, and the blocks of directories."""
    return sorted(line.split()[-1] for line in listing.splitlines())


def test_find_of_a_cold_tree(files, through_relay):
    mount, count = through_relay()
    found = []
    cost = count(lambda: found.append(find(mount.path)))
    print(cost)
    assert inodes(found[0]) == inodes(find(files))
    assert cost["round_trips"] <= 2 and cost["blocking"] <= 3, cost
    assert cost["kinds"]["READTREE"] == 1
    # All of it again, and in another way.
    again = count(lambda: (find(mount.path), subprocess.run(["ls", "-lR", mount.path], check=True,
                                                            capture_output=True, timeout=60)))
    assert set(again["kinds"]) <= {"STATFS", "PING"}, again


def test_names_that_do_not_exist_cost_nothing_in_a_listed_directory(files, through_relay):
    mount, count = through_relay()
    os.listdir(mount.path)

    def work():
        for directory in ("a0", "a1/b1", "a2/b2/c2", "."):
            for name in ("x", "file100", "Makefile"):
                with pytest.raises(FileNotFoundError):
                    os.stat(mount.path / directory / name)
    assert count(work)["blocking"] == 0


def test_looking_names_up_reads_ahead_too(files, through_relay):
    """As programs do that know what they want: git, compilers."""
    mount, count = through_relay()
    directory = mount.path / "a0" / "b0" / "c0"
    paths = [directory / f"file{number}" for number in range(FILES)]

    def work():
        for path in paths:
            os.stat(path)
            time.sleep(0.002)
    cost = count(work)
    print(cost)
    assert cost["kinds"]["READTREE"] == 1
    assert cost["blocking"] <= 3, cost


@pytest.mark.parametrize("number_of_files", [1000, pytest.param(5000, marks=pytest.mark.long)])
def test_git_status_of_a_cold_repository(workspace, through_relay, run, number_of_files):
    run(["git", "init", "-q", "."], cwd=workspace, check=True)
    for number in range(number_of_files):
        path = workspace / f"src{number % 20}" / f"part{number % 3}" / f"file{number}.c"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"int f{number}(void);\n")
    run(["git", "add", "."], cwd=workspace, check=True)
    run(["git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x"], cwd=workspace, check=True)
    time.sleep(1.1)  # not racily clean: git would read the files
    run(["git", "status"], cwd=workspace, check=True)
    mount, count = through_relay()
    told = []

    def status():
        told.append(run(["git", "status", "--porcelain"], cwd=mount.path, env={"GIT_OPTIONAL_LOCKS": "0"},
                        check=True).stdout)
    first, second = count(status), count(status)
    print(first, second)
    assert told == ["", ""]
    # Nothing is asked about the thousand files one by one, and git's own come before it opens them.
    # (The loose objects of 5,000 files do not fit into what is read ahead at once.)
    most = 3 if number_of_files == 1000 else 4
    assert first["blocking"] <= most and first["round_trips"] <= most, first
    assert second["blocking"] == 0, second


@pytest.mark.parametrize("locks", [False, True])
def test_git_status_of_a_cold_repository_with_a_large_pack(workspace, through_relay, run, locks):
    """Its ends come before it is opened. The lock's name is made and removed before git goes on."""
    run(["git", "init", "-q", "."], cwd=workspace, check=True)
    rng = random.Random(1)
    for number in range(60):
        path = workspace / f"src{number % 5}" / f"file{number}"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(rng.randbytes(30000))
    for command in (["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x"], ["gc", "-q"]):
        run(["git", *command], cwd=workspace, check=True)
    time.sleep(1.1)
    run(["git", "status"], cwd=workspace, check=True)
    mount, count = through_relay()
    find(mount.path)
    told = []
    cost = count(lambda: told.append(run(["git", "status", "--porcelain"], cwd=mount.path,
                                         env={"GIT_OPTIONAL_LOCKS": "1" if locks else "0"}, check=True).stdout))
    print(cost)
    assert told == [""]
    # The index's lock file; and one without a name in case that there are more.
    names = {"CREATE": 2, "UNLINK": 1} if locks else {}
    assert {kind: cost["kinds"].get(kind, 0) for kind in ("CREATE", "UNLINK", "READ")} == {"CREATE": 0, "UNLINK": 0, **names, "READ": 0}
    assert cost["round_trips"] <= 1 + len(names) and cost["blocking"] <= 1 + len(names), cost


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_small_directory_is_not_held_up_by_a_large_one(workspace, through_relay):
    (workspace / "large").mkdir()
    (workspace / "small").mkdir()
    directory = os.open(workspace / "large", os.O_RDONLY)
    for number in range(20000):
        os.close(os.open(f"entry-{number:05}", os.O_WRONLY | os.O_CREAT, dir_fd=directory))
    os.close(directory)
    for number in range(20):
        (workspace / "small" / f"file{number}").touch()
    mount, count = through_relay()
    cost = count(lambda: subprocess.run(["ls", "-l", mount.path / "small"], check=True, capture_output=True,
                                        timeout=60))
    print(cost)
    assert cost["round_trips"] <= 3 and cost["bytes"] < 30000, cost
    # And in its own directory, too.
    cost = count(lambda: os.listdir(mount.path))
    assert cost["bytes"] < 30000, cost
    # The large one comes in parts, with the attributes of its files.
    cost = count(lambda: subprocess.run(["ls", "-l", mount.path / "large"], check=True, capture_output=True,
                                        timeout=200))
    print(cost)
    assert cost["blocking"] < 9 and cost["kinds"]["READTREE"] < 7, cost
    assert len(os.listdir(mount.path / "large")) == 20000
    assert mount.stats()["read_ahead"] > 20000
    assert mount.stats()["read_ahead_bytes"] < 120 * 20000


@pytest.mark.slow
@pytest.mark.long
def test_a_walk_of_many_directories_brings_many_at_a_time(workspace, through_relay):
    """15,000 files in 150 directories: more than one answer holds."""
    for number in range(150):
        directory = workspace / f"part{number % 3}" / f"directory{number}"
        directory.mkdir(parents=True)
        for file in range(100):
            (directory / f"file{file}").touch()
    mount, count = through_relay()
    found = []
    cost = count(lambda: found.append(find(mount.path)))
    print(cost)
    assert inodes(found[0]) == inodes(find(workspace))
    assert cost["kinds"]["READTREE"] < 12, cost
    assert cost["kinds"].get("LOOKUP", 0) < 10 and cost["blocking"] < 60, cost
    assert set(count(lambda: find(mount.path))["kinds"]) <= {"STATFS", "PING"}


def test_who_asks_at_once_is_told_the_same(files, service):
    """By requests each of which finds out about files that another is just looking at."""
    def told(wire, tag):
        covered = []
        for directory in berthwire.decode_list("TREE_DIRECTORY", wire.reply(tag)["directories"]):
            covered += [entry["attr"]["flags"] & 1
                        for entry in berthwire.decode_list("DIRENT", directory["entries"])]
        return covered

    with berthwire.Connection.unix(service.socket) as wire:
        wire.upgrade()
        wire.hello()
        root = wire.call("WORKSPACE_OPEN", flags=0, key=WORKSPACE.encode())["node"]
        tags = [wire.request("READTREE", node=root, size=1 << 20, flags=0, cookie=0, also=b"") for _ in range(4)]
        for covered in [told(wire, tag) for tag in tags]:
            assert len(covered) > DIRECTORIES * FILES and all(covered), covered.count(0)


def test_unlisted_trees_are_not_sent(workspace, through_relay):
    for number in range(50):
        package = workspace / "node_modules" / f"package{number}"
        package.mkdir(parents=True)
        for file in range(20):
            (package / f"file{file}.js").touch()
    (workspace / "src").mkdir()
    (workspace / "src" / "main.js").touch()
    mount, count = through_relay(options="prune=ide")
    cost = count(lambda: find(mount.path))
    assert cost["kinds"]["READTREE"] == 1 and cost["bytes"] < 4000, cost
    assert mount.stats()["read_ahead"] == 2
    # Their names work all the same.
    assert (mount.path / "node_modules" / "package7" / "file3.js").exists()
    assert not (mount.path / "node_modules" / "package7" / "file30.js").exists()
    mount, count = through_relay()
    assert count(lambda: find(mount.path))["bytes"] > 4000


def test_nothing_is_kept_of_what_rules_hide_from_now_on(files, start_mount, service):
    mount = start_mount(service, workspace=WORKSPACE)
    wait_until(lambda: mount.stats()["coherent"], what="reports of changes")
    find(mount.path)
    assert mount.stats()["read_ahead"] > 2000
    os.setxattr(mount.path, "user.berth.visibility", b"hidden:c1\n")
    assert "c1\n" not in find(mount.path)
    with pytest.raises(FileNotFoundError):
        os.stat(mount.path / "a1/b1/c1")
    os.removexattr(mount.path, "user.berth.visibility")
    assert inodes(find(mount.path)) == inodes(find(files))


def test_what_is_known_is_right_after_a_lost_connection(files, service, start_relay, start_mount):
    relay = start_relay(service)
    mount = start_mount(service, url=relay.url, workspace=WORKSPACE)
    wait_until(lambda: mount.stats()["coherent"], what="reports of changes")
    for number in range(5):
        assert inodes(find(mount.path)) == inodes(find(files))
        relay.cut()
        (files / "a0/b0/c0" / f"new{number}").touch()
        wait_until(lambda: mount.stats()["reconnects"] > number and mount.stats()["coherent"])
        # What nobody waited for is reported soon.
        wait_until(lambda path=mount.path / "a0/b0/c0" / f"new{number}": path.exists())
        assert inodes(find(mount.path)) == inodes(find(files))
        assert os.stat(mount.path / "a1/b1/c1/file3").st_size == 3


@pytest.mark.long
@pytest.mark.timeout(120)
def test_the_next_change_does_not_wait_until_all_is_forgotten(workspace, mount, service):
    """As after an overflow of the kernel's queue."""
    for number in range(300):
        (workspace / f"d{number}").mkdir()
        for file in range(100):
            os.close(os.open(workspace / f"d{number}" / f"f{file}", os.O_CREAT | os.O_WRONLY))
    find(mount.path)
    assert mount.stats()["inodes"] > 30000
    left = []
    names = [f"d{number}/f{number % 100}" for number in range(0, 300, 7)]
    for number in range(1, 4):
        os.setxattr(mount.path, "user.berth.visibility", b"hidden:no-such-%d\n" % number)
        for name in names:
            os.stat(mount.path / name)
        for name in names:
            os.truncate(workspace / name, number)
        for name in names:
            wait_until(lambda path=mount.path / name, size=number: os.stat(path).st_size == size, interval=0.001)
        left.append(mount.stats()["forgetting"])
        # But who is told that a change has been seen waits for all.
        with ExecClient(service.socket) as client:
            assert client.run(WORKSPACE, ["true"]).verdict.coherence == 1
        assert mount.stats()["forgetting"] == 0
        find(mount.path)
    assert max(left) > 1000, left


def test_all_references_are_given_back(files, service, start_mount):
    """Nodes that the service holds for a mount are those of what the mount holds."""
    def nodes():
        with berthwire.Connection.unix(service.socket) as wire:
            wire.upgrade()
            wire.hello()
            return json.loads(wire.call("STATUS", flags=0)["json"])["nodes"]
    mount = start_mount(service, workspace=WORKSPACE)
    wait_until(lambda: mount.stats()["coherent"], what="reports of changes")
    with ExecClient(service.socket) as client:
        for number in range(5):
            find(mount.path)
            client.run(WORKSPACE, ["sh", "-c", "for d in a*/b*/c*; do touch $d/x; rm $d/x; done"])
    find(mount.path)
    for number in range(DIRECTORIES):
        directory = f"a{number % 5}/b{number % 10}/c{number}"
        for file in range(FILES):
            (files / directory / f"file{file}").unlink()

    def given_back():
        # Names that the kernel was told of stay with it, as expired, until it wants the memory.
        kernel_caches.drop("2")
        find(mount.path)
        return nodes() < 100
    wait_until(given_back, timeout=20, what="nodes given back", interval=1)


def test_a_large_directory_is_given_back_by_portions(workspace, mount, service):
    """So nobody waits for all of it when others change one name in it; and what is not given back yet
    answers nothing."""
    for number in range(6000):
        os.close(os.open(workspace / f"f{number}", os.O_CREAT | os.O_WRONLY))
    with ExecClient(service.socket) as client:
        client.run(WORKSPACE, ["true"])  # what was written before has been reported
        assert len(os.listdir(mount.path)) == 6000 and mount.stats()["read_ahead"] == 6000
        before = mount.stats()["requests"].get("FORGET", 0)
        client.run(WORKSPACE, ["sh", "-c", "mv f17 moved; touch new; rm f18"])
        assert not (mount.path / "f17").exists() and (mount.path / "new").exists()
        assert set(os.listdir(mount.path)) == set(os.listdir(workspace))
        wait_until(lambda: mount.stats()["requests"].get("FORGET", 0) >= before + 6, what="portions")
        assert inodes(find(mount.path)) == inodes(find(workspace))


def warm(*paths):
    for path in paths:
        subprocess.run(["find", path, "-ls"], check=False, capture_output=True, timeout=60)


def change_everywhere(service, mounts, tree, rounds, seed):
    """By a command, and by programs on either mount; each is seen at once on all."""
    rng = random.Random(seed)
    places = PLACES
    with ExecClient(service.socket) as client:
        for number in range(rounds):
            if number % 20 == 0:
                warm(*mounts)
            command = change(rng, number)
            where = rng.randrange(len(mounts) + 1)
            if where == len(mounts):
                client.run(WORKSPACE, ["sh", "-c", command])
            else:
                subprocess.run(["sh", "-c", command], cwd=mounts[where], stderr=subprocess.DEVNULL, check=False,
                               timeout=30)
                what = f"seed {seed}, round {number}, on its own mount: {command[:60]}"
                compare([mounts[where]], tree, rng.sample(places, 5), what)
                # What is closed is seen by all, and with it what was done before.
                (mounts[where] / ".closed").write_bytes(b"x")
            what = f"seed {seed}, round {number}, by {where}: {command[:60]}"
            compare(mounts, tree, rng.sample(places, 5), what)
            if number % 20 == 19:
                compare(mounts, tree, places, what)


@pytest.mark.timeout(300)
def test_changes_of_what_was_read_ahead(service, start_mount, workspace):
    mounts = [start_mount(service, workspace=WORKSPACE), start_mount(service, workspace=WORKSPACE)]
    for mount in mounts:
        wait_until(lambda: mount.stats()["coherent"], what="reports of changes")
    change_everywhere(service, [mount.path for mount in mounts], workspace, ROUNDS, seed=time.time_ns() % 1000000)
    assert all(mount.stats()["requests"]["READTREE"] > 1 for mount in mounts)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_changes_of_what_was_read_ahead_long(service, start_mount, workspace, seed):
    mounts = [start_mount(service, workspace=WORKSPACE).path for _ in range(2)]
    change_everywhere(service, mounts, workspace, LONG_ROUNDS, seed)

"""Names that a mount changes: what they cost on the way, and that what is known afterwards is right."""

import os
import random
import subprocess
import threading
import time

import pytest

from lib.agent import seen
from lib.cached import workspace  # noqa: F401, fixtures
from lib.exec_client import WORKSPACE, ExecClient
from lib.harness import wait_until

NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL
DIRECTORIES, FILES = 8, 12


@pytest.fixture
def way(service, workspace, start_relay, start_mount, caches_kept):  # noqa: F811
    """A mount behind a relay, and a function that counts round trips. The directory has been listed."""
    for number in range(20):
        (workspace / f"file{number}").write_text("old")
    relay = start_relay(service, delay=10)
    mount = start_mount(service, url=relay.url, workspace=WORKSPACE)
    wait_until(lambda: mount.stats()["coherent"], what="reports of changes")
    os.listdir(mount.path)
    os.stat(mount.path)

    def count(work):
        before = mount.stats()["round_trips"]
        relay.reset_stats()
        work()
        kinds = {kind: row["frames"] for kind, row in relay.stats()["to_server"]["types"].items()}
        return mount.stats()["round_trips"] - before, kinds
    return mount, count


def save(directory, name, content):
    with open(directory / f".{name}.tmp", "xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.rename(directory / f".{name}.tmp", directory / name)


def archive(tmp_path):
    source = tmp_path / "source"
    for number in range(DIRECTORIES):
        (source / f"d{number}").mkdir(parents=True)
        for file in range(FILES):
            (source / f"d{number}" / f"f{file}").write_bytes(os.urandom(2000))
    subprocess.run(["tar", "cf", tmp_path / "a.tar", "-C", source, "."], check=True)
    return tmp_path / "a.tar"


def unpack(archive_path, directory):
    os.mkdir(directory)
    subprocess.run(["tar", "xf", archive_path, "-C", directory], check=True, timeout=120)


# --- costs -----------------------------------------------------------------------------------

def test_saves(way, workspace):  # noqa: F811
    mount, count = way
    # CREATE, FSYNC, RENAME, the first time; then the file is made ahead. Also when it is what was saved
    # before, and what nobody had.
    for number, name in enumerate(("file3", "file3", "file4", "new", "new")):
        trips, kinds = count(lambda name=name: save(mount.path, name, b"new" * 1000))
        assert 2 <= trips <= 3 and (trips == 3 or number), (name, trips, kinds)
    assert trips == 2, kinds
    trips, kinds = count(lambda: os.stat(mount.path / "file3"))
    assert trips == 0, kinds
    assert seen(mount.path / "file3") == seen(workspace / "file3")


def test_each_change_of_a_name_is_one_round_trip(way):
    mount, count = way
    path = mount.path
    for what, work in [
            ("mkdir", lambda: os.mkdir(path / "d")),
            ("mkdir below", lambda: os.mkdir(path / "d" / "e")),
            ("create", lambda: os.close(os.open(path / "d" / "new", NEW))),
            ("symlink", lambda: os.symlink("x", path / "d" / "l")),
            ("mkfifo", lambda: os.mkfifo(path / "d" / "p")),
            ("rename", lambda: os.rename(path / "d" / "l", path / "d" / "m")),
            ("rename to another", lambda: os.rename(path / "file7", path / "d" / "e" / "file")),
            ("unlink", lambda: os.unlink(path / "d" / "p")),
            ("unlink what was moved", lambda: os.unlink(path / "d" / "e" / "file")),
            ("rmdir", lambda: os.rmdir(path / "d" / "e"))]:
        trips, kinds = count(work)
        assert trips == 1, (what, trips, kinds)
    def missing():
        return [name for name in ("file7", "d/l", "d/p", "d/e", "d/never") if os.path.lexists(path / name)]
    trips, kinds = count(lambda: missing() and pytest.fail(f"{missing()} are there"))
    assert trips == 0, kinds


def test_tar_and_rm(way, tmp_path):
    mount, count = way
    packed = archive(tmp_path)
    files = DIRECTORIES * FILES
    trips, kinds = count(lambda: unpack(packed, mount.path / "x"))
    print(trips, kinds)
    # For each file one, until it and all that was written to it is there; then for each directory its
    # name, and owner, mode and times at the end.
    assert trips <= files + 5 * DIRECTORIES + 10, (trips, kinds)
    assert kinds["PLACE"] >= files - 10 and kinds.get("LOOKUP", 0) == 0, kinds
    trips, kinds = count(lambda: subprocess.run(["rm", "-r", mount.path / "x"], check=True, timeout=120))
    print(trips, kinds)
    assert trips <= files * 1.2, (trips, kinds)
    assert not os.path.lexists(mount.path / "x")


# --- what is known afterwards ------------------------------------------------------------------

@pytest.fixture
def two(service, workspace, start_mount):  # noqa: F811
    """The path of a mount, and the workspace itself."""
    mount = start_mount(service, workspace=WORKSPACE)
    wait_until(lambda: mount.stats()["coherent"], what="reports of changes")
    os.listdir(mount.path)
    return mount.path, workspace


def test_a_listing_shows_what_was_made_and_not_what_was_removed(two):
    path, _ = two
    os.mkdir(path / "d")
    names = set()
    for number in range(300):
        (path / "d" / f"f{number}").touch()
        names.add(f"f{number}")
        if number % 7 == 3:
            os.unlink(path / "d" / f"f{number - 2}")
            names.remove(f"f{number - 2}")
        if number % 50 == 0:
            assert set(os.listdir(path / "d")) == names
    fd = os.open(path / "d", os.O_RDONLY)
    assert set(os.listdir(fd)) == names
    (path / "d" / "late").touch()
    assert set(os.listdir(fd)) == names | {"late"}  # from its start again
    os.unlink(path / "d" / "late")
    os.rename(path / "d" / "f0", path / "d" / "g0")
    assert set(os.listdir(fd)) == names - {"f0"} | {"g0"}
    os.close(fd)


def test_a_rename_between_names_of_one_link_does_nothing(two):
    """The kernel takes hard links of a symbolic link for two files, and asks."""
    path, tree = two
    os.symlink("x", path / "a")
    os.link(path / "a", path / "b", follow_symlinks=False)
    os.rename(path / "a", path / "b")
    wait_until(lambda: os.path.lexists(path / "a") and os.path.lexists(path / "b"), 5)
    assert os.path.lexists(tree / "a") and set(os.listdir(path)) == {"a", "b"}


def test_what_others_change_in_between_is_seen(two, service):
    """Changes by turns in one directory: after each command all is as it is."""
    path, tree = two
    rng = random.Random(4)
    names = [f"n{number}" for number in range(6)]
    with ExecClient(service.socket) as client:
        for number in range(150):
            one, other = rng.sample(names, 2)
            where = path if number % 2 else tree
            try:
                rng.choice([lambda: os.unlink(where / one), lambda: (where / one).touch(),
                            lambda: os.rename(where / one, where / other), lambda: os.mkdir(where / one),
                            lambda: os.rmdir(where / one), lambda: save(where, one, b"%d" % number),
                            lambda: os.link(where / one, where / other)])()
            except OSError:
                pass
            if where == tree:
                client.run(WORKSPACE, ["true"])
            for name in [*names, ""]:
                assert seen(path / name) == seen(tree / name), (number, name)


def agent(tree, stop, seed):
    """Makes and removes names in the directories of a tree until it is told to stop."""
    rng = random.Random(seed)
    while not stop.is_set():
        directories = [entry for entry, _, _ in os.walk(tree) if ".git" not in entry]
        place = os.path.join(rng.choice(directories), f"agent{rng.randrange(4)}")
        try:
            rng.choice([lambda: open(place, "xb").close(), lambda: os.unlink(place), lambda: os.mkdir(place),
                        lambda: os.rmdir(place), lambda: os.rename(place, place[:-1] + "x")])()
        except OSError:
            pass
        time.sleep(0.0005)


def differences(path, tree):
    """Of all that is in either, by the usual calls."""
    names = {os.path.relpath(os.path.join(top, name), base) for base in (path, tree)
             for top, below, files in os.walk(base) for name in [*below, *files]}
    names |= {os.path.join(os.path.dirname(name), "agent0") for name in names} | {"."}
    return [name for name in sorted(names) if seen(path / name) != seen(tree / name)]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("rounds", [2, pytest.param(40, marks=pytest.mark.long)])
def test_tools_beside_an_agent_in_the_same_directories(two, service, tmp_path, run, rounds):
    path, tree = two
    packed = archive(tmp_path)
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    run(["git", "init", "-q", "-b", "main", path / "r"], check=True)
    unpack(packed, path / "r" / "x")
    run(["git", "-C", path / "r", "add", "."], check=True)
    run([*git, "-C", path / "r", "commit", "-qm", "one"], check=True)
    run(["git", "-C", path / "r", "rm", "-rq", "x"], check=True)
    run([*git, "-C", path / "r", "commit", "-qm", "two"], check=True)
    with ExecClient(service.socket) as client:
        for number in range(rounds):
            stop = threading.Event()
            beside = threading.Thread(target=agent, args=(tree, stop, number))
            beside.start()
            try:
                unpack(packed, path / f"t{number}")
                subprocess.run(["git", "-C", path / "r", "checkout", "-q", "HEAD~1"], check=True, timeout=60)
                (path / "r" / "x" / "d1" / "f1").write_bytes(b"changed")
                # git removes no directory in which the agent makes something just then, and says so by its status.
                subprocess.run([*git, "-C", path / "r", "stash", "-q", "-u"], check=False, timeout=60,
                               stderr=subprocess.DEVNULL)
                subprocess.run(["git", "-C", path / "r", "checkout", "-qf", "main"], check=False, timeout=60)
                # What the agent makes meanwhile may be left over.
                subprocess.run(["rm", "-rf", path / f"t{number}"], check=False, timeout=60,
                               stderr=subprocess.DEVNULL)
            finally:
                stop.set()
                beside.join(30)
            client.run(WORKSPACE, ["true"])
            assert differences(path, tree) == [], number

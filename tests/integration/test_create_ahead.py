"""A mount that alone makes names in a workspace tells its programs that a file is made a round trip
before it is (fs/create_ahead.h): with nobody able to tell, and no error lost."""

import errno
import fcntl
import json
import os
import signal
import stat
import subprocess
import threading
import time

import pytest

from lib.cached import workspace  # noqa: F401, a fixture
from lib.exec_client import WORKSPACE
from lib.harness import wait_until

NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL
DELAY = 20  # ms each way


def make(path, data=b"data", mode=0o644):
    fd = os.open(path, NEW, mode)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)


def failure_of(call):
    """The name of the error, or None."""
    try:
        call()
    except OSError as error:
        return errno.errorcode[error.errno]
    return None


class Ahead:
    """A mount behind a relay that is ahead by now, and a directory in it."""

    def __init__(self, mount, relay, tree):
        self.mount, self.relay = mount, relay
        self.path, self.directory, self.there = mount.path, mount.path / "d", tree / "d"
        os.listdir(mount.path)
        self.directory.mkdir()
        self.number = 0
        self.wait()

    def wait(self):
        """Until files are made ahead again."""
        wait_until(self.is_ahead, 20, "a file to be made ahead")

    def is_ahead(self):
        self.number += 1
        return "PLACE" in self.counted(lambda: make(self.directory / f"first-{self.number}"))[1]

    def counted(self, work):
        """Round trips of work, and how many requests of each type it took."""
        self.relay.reset_stats()
        work()
        stats = self.relay.stats()
        return stats["round_trips_max"], {
            kind: row["frames"] for kind, row in stats["to_server"]["types"].items()
            if kind not in ("PING", "SEEN", "RELEASE", "FORGET", "GRANT")}

    def open(self, name, flags=NEW, mode=0o644):
        """Of a new file, which is not made yet when it returns."""
        self.relay.reset_stats()
        fd = os.open(self.directory / name, flags, mode)
        wait_until(lambda: "PLACE" in self.relay.stats()["to_server"]["types"], what="a file to be made ahead")
        return fd


@pytest.fixture
def start_ahead(service, workspace, start_relay, start_mount, caches_kept):  # noqa: F811
    def start(delay=DELAY, **keywords):
        relay = start_relay(service, delay=delay)
        mount = start_mount(service, url=relay.url, workspace=WORKSPACE, **keywords)
        wait_until(lambda: mount.stats()["coherent"], what="reports of changes")
        return Ahead(mount, relay, workspace)
    return start


@pytest.fixture
def ahead(start_ahead):
    return start_ahead()


# --- what it saves --------------------------------------------------------------------------

def test_a_small_file_costs_one_round_trip(ahead):
    def work():
        for number in range(20):
            make(ahead.directory / f"file-{number}", b"%d" % number)
    trips, kinds = ahead.counted(work)
    # But for one or the other that is made before there is one without a name.
    assert kinds["PLACE"] >= 18 and trips <= 24, (trips, kinds)
    for number in range(20):
        assert (ahead.there / f"file-{number}").read_bytes() == b"%d" % number


def test_an_archive_costs_hardly_more_than_its_files(ahead, tmp_path):
    files = 0
    for number in range(4):
        below = tmp_path / "from" / f"{number}" / "below"
        below.mkdir(parents=True)
        for name in range(8):
            (below / f"file-{name}").write_bytes(os.urandom(700 * name))
            files += 1
    subprocess.run(["tar", "cf", tmp_path / "tar", "-C", tmp_path, "from"], check=True)
    trips, kinds = ahead.counted(lambda: subprocess.run(
        ["tar", "xf", tmp_path / "tar", "-C", ahead.directory], check=True))
    directories = 1 + 2 * 4
    # Of a directory: that it is made, and then its owner, mode and times.
    assert trips <= files + 4 * directories + 8, (files, directories, kinds)
    assert subprocess.run(["diff", "-r", tmp_path / "from", ahead.there / "from"]).returncode == 0
    trips, kinds = ahead.counted(lambda: subprocess.run(
        ["cp", "-r", tmp_path / "from", ahead.directory / "copy"], check=True))
    assert trips <= files + directories + 8, (files, directories, kinds)


def test_none_where_the_way_is_short(service, workspace, start_mount):  # noqa: F811
    mount = start_mount(service, workspace=WORKSPACE)
    wait_until(lambda: mount.stats()["coherent"], what="reports of changes")
    os.listdir(mount.path)
    for number in range(50):
        make(mount.path / f"{number}")
    assert mount.stats()["requests"].get("PLACE", 0) == 0


# --- what a program sees ---------------------------------------------------------------------

@pytest.fixture
def slow_to_name(harness, tmp_path, start_relay, start_mount, caches_kept):
    """A mount that is ahead of a service that takes its time to give a file its name."""
    library = tmp_path / "slow.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-o", library, "-"], check=True, timeout=60, text=True, input="""
        #define _GNU_SOURCE
        #include <fcntl.h>
        #include <sys/syscall.h>
        #include <unistd.h>
        int linkat(int from, const char *path, int to, const char *name, int flags)
        {
            usleep(100000);
            return syscall(SYS_linkat, from, path, to, name, flags);
        }
        """)
    service = harness.start_service(env={"LD_PRELOAD": str(library)})
    harness.run_berth("create", WORKSPACE, service=service, check=True)
    relay = start_relay(service, delay=2)
    mount = start_mount(service, url=relay.url, workspace=WORKSPACE)
    wait_until(lambda: mount.stats()["coherent"], what="reports of changes")
    return Ahead(mount, relay, service.root / "workspaces" / WORKSPACE / "tree")


def test_nobody_here_can_tell(slow_to_name):
    """Whatever looks while the file is not made yet waits, and sees it."""
    ahead = slow_to_name
    looks = {
        "list": lambda path: path.name in os.listdir(path.parent),
        "stat": lambda path: os.stat(path).st_nlink == 1,
        "open": lambda path: os.close(os.open(path, os.O_RDONLY)) is None,
        "again": lambda path: failure_of(lambda: os.open(path, NEW)) == "EEXIST",
        "mkdir": lambda path: failure_of(lambda: os.mkdir(path)) == "EEXIST",
        "link": lambda path: os.link(path, ahead.path / "linked") is None and os.stat(path).st_nlink == 2,
        "link there": lambda path: failure_of(lambda: os.link(ahead.path / "other", path)) == "EEXIST",
        "symlink": lambda path: failure_of(lambda: os.symlink("x", path)) == "EEXIST",
        "rmdir": lambda path: failure_of(lambda: os.rmdir(path.parent)) == "ENOTEMPTY",
        "unlink": lambda path: os.unlink(path) is None and path.name not in os.listdir(path.parent),
        "rename": lambda path: os.rename(path, ahead.path / "moved") is None
        and "moved" in os.listdir(ahead.path),
        "replace": lambda path: os.rename(ahead.path / "moved", path) is None
        and path.read_bytes() == b"",
        "chmod": lambda path: os.chmod(path, 0o600) is None
        and stat.S_IMODE(os.stat(path).st_mode) == 0o600,
        "time": lambda path: os.stat(path.parent).st_mtime_ns > before,
        "lock": lambda path: lock(path) is None,
    }

    def lock(path):
        with open(path, "r+b") as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    make(ahead.path / "other")
    for name, look in looks.items():
        before = os.stat(ahead.directory).st_mtime_ns
        fd = ahead.open(name)
        assert not (ahead.there / name).exists(), "it is not late"
        assert look(ahead.directory / name), name
        os.close(fd)


def test_what_could_tell_is_not_even_sent(start_ahead):
    """Nothing that looks at names overtakes that which is being made."""
    ahead = start_ahead(delay=100)
    listed = os.open(ahead.directory, os.O_RDONLY)
    (ahead.path / "empty").mkdir()
    works = {
        "READDIR": lambda name: os.listdir(listed), "GETATTR": lambda name: os.stat(ahead.directory),
        "MKDIR": lambda name: os.mkdir(ahead.path / f"{name}-d"), "RMDIR": lambda name: os.rmdir(ahead.path / "empty"),
        "UNLINK": lambda name: os.unlink(ahead.directory / name),
        "SYMLINK": lambda name: os.symlink("x", ahead.path / f"{name}-s"),
        "LINK": lambda name: os.link(ahead.directory / "first-1", ahead.path / f"{name}-l"),
        "MKNOD": lambda name: os.mkfifo(ahead.path / f"{name}-p"),
        "RENAME": lambda name: os.rename(ahead.directory / "first-1", ahead.path / f"{name}-r"),
    }
    for kind, work in works.items():
        os.listdir(ahead.directory)  # it is all here
        fd = ahead.open(f"during-{kind}")
        done = []
        thread = threading.Thread(target=lambda work=work, kind=kind: done.append(work(f"during-{kind}")))
        thread.start()
        time.sleep(0.05)
        sent = ahead.relay.stats()["to_server"]["types"]
        assert kind not in sent and "READTREE" not in sent, (kind, sent)
        thread.join(20)
        assert len(done) == 1, kind
        if kind == "READDIR":
            assert f"during-{kind}" in done[0]
        os.close(fd)
    os.close(listed)


def test_close_waits_for_the_name(slow_to_name):
    ahead = slow_to_name
    for number in range(3):
        fd = ahead.open(f"closed-{number}")
        os.write(fd, b"data")
        os.close(fd)
        assert (ahead.there / f"closed-{number}").read_bytes() == b"data"
        fd = ahead.open(f"empty-{number}")
        os.fsync(fd)
        assert (ahead.there / f"empty-{number}").exists()
        os.close(fd)


def test_it_is_what_was_told(ahead):
    """Number, mode, owner and times that fstat shows at once are those it has."""
    for mode in (0o644, 0o644, 0o755, 0o755, 0o600, 0o600):
        ahead.number += 1
        name = f"told-{ahead.number}"
        fd = os.open(ahead.directory / name, NEW, mode)
        told = os.fstat(fd)
        os.close(fd)
        for path in (ahead.directory / name, ahead.there / name):
            found = os.stat(path)
            assert stat.S_IMODE(found.st_mode) == mode & ~os.umask(os.umask(0o22))
            assert (told.st_mode, told.st_nlink, told.st_mtime_ns) == (
                found.st_mode, found.st_nlink, found.st_mtime_ns)
        assert told.st_ino == os.stat(ahead.directory / name).st_ino
        assert abs(told.st_mtime - time.time()) < 1


@pytest.mark.parametrize("flags", [os.O_APPEND, os.O_SYNC, os.O_DIRECT, os.O_EXCL, os.O_TRUNC, 0])
def test_flags(ahead, flags):
    for number in range(3):
        fd = os.open(ahead.directory / f"flags-{number}", os.O_RDWR | os.O_CREAT | flags, 0o640)
        assert os.write(fd, b"one") == 3
        assert os.write(fd, b"two") == 3
        assert os.pread(fd, 10, 0) == b"onetwo"
        os.close(fd)
        assert (ahead.there / f"flags-{number}").read_bytes() == b"onetwo"


def test_what_a_directory_gives_its_files(ahead):
    """Its group where it is set-group-ID, and its ACL: as they are when the file is made."""
    group = ahead.directory / "group"
    group.mkdir()
    make(group / "before")
    os.chmod(group, 0o2775)
    if os.geteuid() == 0:
        os.chown(ahead.there / "group", -1, 12345)
        os.chmod(ahead.there / "group", 0o2775)
    for number in range(4):
        make(group / f"{number}")
        found = os.stat(ahead.there / "group" / f"{number}")
        assert found.st_gid == os.stat(ahead.there / "group").st_gid


# --- others ----------------------------------------------------------------------------------

def test_a_command_finds_what_is_made(ahead, run_berth):
    for number in range(5):
        make(ahead.directory / f"seen-{number}")
        fd = os.open(ahead.directory / f"open-{number}", NEW, 0o644)
        result = json.loads(run_berth("exec", "-w", WORKSPACE, "--json", "--", "sh", "-c",
                                      f"cat d/seen-{number}; ls d").stdout)
        os.close(fd)
        assert f"open-{number}\n" in result["stdout"]
        assert result["coherence"] == "seen"


def test_not_while_a_command_lives(ahead, run_berth):
    """It could make the same name; a lock file would be two programs'."""
    ahead.wait()
    run_berth("exec", "-w", WORKSPACE, "--detach", "--id", "long", "--", "sleep", "600", check=True)
    for _ in range(5):
        assert not ahead.is_ahead()
        time.sleep(0.3)
    run_berth("kill", "-w", WORKSPACE, "long", check=True)
    ahead.wait()


def test_a_lock_file_is_one_programs(start_ahead, service, start_mount, run_berth):
    """Mounts, a command, and who writes by HTTP race for names: each is made once."""
    ahead = start_ahead()
    other = start_mount(service, workspace=WORKSPACE)
    wait_until(lambda: other.stats()["coherent"], what="reports of changes")
    os.listdir(other.path / "d")
    made, failed = {}, []

    def race(who, directory, pause):
        for number in range(60):
            try:
                fd = os.open(directory / f"lock-{number}", NEW, 0o644)
            except FileExistsError:
                continue
            made.setdefault(number, []).append(who)
            os.write(fd, who.encode())
            try:
                os.close(fd)
            except OSError as error:
                failed.append((who, number, error))
            time.sleep(pause)
    threads = [threading.Thread(target=race, args=("here", ahead.directory, 0)),
               threading.Thread(target=race, args=("there", other.path / "d", 0.02))]
    for thread in threads:
        thread.start()
    command = run_berth("exec", "-w", WORKSPACE, "--", "sh", "-c",
                        "set -C; i=0; while [ $i -lt 60 ]; do"
                        " { printf command > d/lock-$i && echo $i; } 2>/dev/null; i=$((i+3)); done; true")
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    for number in command.stdout.split():
        made.setdefault(int(number), []).append("command")
    assert sorted(made) == list(range(60)) and not failed, failed
    for number, who in made.items():
        assert len(who) == 1, (number, who)
        assert (ahead.there / f"lock-{number}").read_text() == who[0]


def test_a_lock_file_of_who_is_cut_off_is_not_made_later(ahead, service, start_mount):
    """Another takes the name when the service has waited long enough; the first hears of it."""
    other = start_mount(service, workspace=WORKSPACE)
    wait_until(lambda: other.stats()["coherent"], what="reports of changes")
    os.listdir(other.path / "d")
    ahead.relay.stall()
    fd = os.open(ahead.directory / "lock", NEW, 0o644)
    os.write(fd, b"the first's")
    make(other.path / "d" / "lock", b"the other's")
    os.unlink(other.path / "d" / "lock")
    ahead.relay.resume()
    assert failure_of(lambda: os.close(fd)) in ("ESTALE", "EIO")
    assert not (ahead.there / "lock").exists()
    assert failure_of(lambda: os.stat(ahead.directory / "lock")) == "ENOENT"


# --- errors ----------------------------------------------------------------------------------

def test_an_error_is_told(ahead):
    """By close(), here of a process beside the service that has made the name meanwhile."""
    ahead.relay.stall()
    fd = os.open(ahead.directory / "taken", NEW, 0o644)
    assert os.write(fd, b"ours") == 4
    (ahead.there / "taken").write_text("theirs")
    ahead.relay.resume()
    assert failure_of(lambda: os.close(fd)) == "EEXIST"
    assert (ahead.there / "taken").read_text() == "theirs"
    wait_until(lambda: (ahead.directory / "taken").read_text() == "theirs", what="what is there")
    assert sorted(os.listdir(ahead.there)) == sorted(os.listdir(ahead.directory))
    make(ahead.directory / "after")
    assert (ahead.there / "after").read_bytes() == b"data"
    ahead.wait()


def test_a_service_that_ends_takes_it_with_it(start_ahead, service):
    ahead = start_ahead(options=["timeout=3"])
    ahead.relay.stall()
    fd = os.open(ahead.directory / "lost", NEW, 0o644)
    service.kill()
    service.restart()
    ahead.relay.resume()
    assert failure_of(lambda: os.close(fd)) == "EIO"
    assert not (ahead.there / "lost").exists()
    assert failure_of(lambda: os.stat(ahead.directory / "lost")) == "ENOENT"
    ahead.wait()


def test_it_goes_on_after_a_cut(ahead):
    ahead.relay.stall()
    fd = os.open(ahead.directory / "cut", NEW, 0o644)
    os.write(fd, b"whole")
    ahead.relay.cut()
    ahead.relay.resume()
    os.close(fd)
    assert (ahead.there / "cut").read_bytes() == b"whole"
    ahead.wait()


def test_who_was_away_makes_files_as_before(ahead, service, start_mount):
    """Others have made names meanwhile, for which nobody could ask this mount."""
    other = start_mount(service, workspace=WORKSPACE)
    wait_until(lambda: other.stats()["coherent"], what="reports of changes")
    os.listdir(other.path / "d")
    ahead.relay.refuse()
    ahead.relay.cut()
    make(other.path / "d" / "meanwhile")
    other.close()
    ahead.relay.refuse(False)
    for number in range(5):
        make(ahead.directory / f"back-{number}")
        assert (ahead.there / f"back-{number}").read_bytes() == b"data"
    ahead.wait()


def test_who_was_silent_makes_files_as_before(ahead, service, start_mount):
    """The service has ended its reports to a mount that did not confirm a change in time."""
    other = start_mount(service, workspace=WORKSPACE)
    wait_until(lambda: other.stats()["coherent"], what="reports of changes")
    ahead.mount.signal(signal.SIGSTOP)
    try:
        (other.path / "d" / "first-1").write_bytes(b"unseen")  # waits for it in vain
    finally:
        ahead.mount.signal(signal.SIGCONT)
    other.close()
    wait_until(lambda: ahead.mount.stats()["coherent"], what="reports of changes")
    for number in range(5):
        make(ahead.directory / f"again-{number}")
        assert (ahead.there / f"again-{number}").read_bytes() == b"data"
    ahead.wait()


def test_nothing_is_kept_for_ever(ahead, service):
    """Files that were made in advance go when they are not used."""
    def unnamed():
        found = 0
        for fd in os.listdir(f"/proc/{service.pid}/fd"):
            try:
                found += os.readlink(f"/proc/{service.pid}/fd/{fd}").endswith("(deleted)")
            except OSError:
                pass
        return found
    assert unnamed() > 0
    wait_until(lambda: unnamed() == 0, 20, "the end of files without a name")
    before = sorted(os.listdir(ahead.there))
    make(ahead.directory / "later")
    assert sorted(os.listdir(ahead.there)) == sorted([*before, "later"])

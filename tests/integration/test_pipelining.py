"""What a program writes to an open file is on its way when write() returns, and joined by close, fsync
and whoever looks: in order, bounded, and with no error lost."""

import contextlib
import errno
import mmap
import os
import random
import signal
import subprocess
import sys
import threading
import time

import pytest

from lib.cached import workspace  # noqa: F401, fixtures
from lib.exec_client import WORKSPACE, ExecClient
from lib.harness import wait_until

KIB, MIB = 1 << 10, 1 << 20
FILE_MAX = 4 * MIB  # PIPELINE_FILE_MAX
NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL


def wait_until_it_keeps(mount, directory):
    """The mount has its lease: attributes are not asked for again."""
    def kept():
        os.stat(directory)
        before = mount.stats()["requests"].get("GETATTR", 0)
        os.stat(directory)
        return mount.stats()["requests"].get("GETATTR", 0) == before
    wait_until(kept, 10, "the mount to keep attributes")


class Way:
    """A mount whose way to the service is a relay."""

    def __init__(self, mount, relay, tree):
        self.mount, self.relay, self.tree = mount, relay, tree
        self.directory = mount.path / WORKSPACE
        os.listdir(self.directory)
        wait_until_it_keeps(mount, self.directory)

    def counted(self, work):
        """Round trips of work, and how many requests of each type it took."""
        self.relay.reset_stats()
        work()
        stats = self.relay.stats()
        return stats["round_trips_max"], {
            kind: row["frames"] for kind, row in stats["to_server"]["types"].items()
            if kind not in ("PING", "SEEN", "RELEASE", "FORGET", "GRANT")}


@pytest.fixture
def way(service, workspace, start_relay, start_mount, caches_kept):  # noqa: F811
    def make(delay=0, options=""):
        relay = start_relay(service, delay=delay)
        return Way(start_mount(service, url=relay.url, options=options), relay, workspace)
    return make


class Background(threading.Thread):
    """A call on the side: its result or the error it raised."""

    def __init__(self, call):
        super().__init__(daemon=True)
        self.call, self.result, self.error = call, None, None
        self.start()

    def run(self):
        try:
            self.result = self.call()
        except OSError as error:
            self.error = error

    def get(self, timeout=30):
        self.join(timeout)
        assert not self.is_alive(), "it still waits"
        if self.error:
            raise self.error
        return self.result


def refused(call):
    with pytest.raises(OSError) as caught:
        call()
    return errno.errorcode[caught.value.errno]


# --- what waits, and what does not ---------------------------------------------------------

def test_a_writer_does_not_wait(way):
    here = way()
    fd = os.open(here.directory / "file", NEW, 0o644)
    here.relay.stall()

    def work():
        for number in range(20):
            assert os.write(fd, b"%05d" % number * 1000) == 5000
        os.ftruncate(fd, 99000)
        os.utime(fd, ns=(10**18, 10**18 + 1))
        os.fchmod(fd, 0o600)

    Background(work).get()
    closing = Background(lambda: os.close(fd))
    time.sleep(0.2)
    assert closing.is_alive(), "close() returned before the service had anything"
    here.relay.resume()
    closing.get()
    there = here.tree / "file"
    assert there.read_bytes() == b"".join(b"%05d" % n * 1000 for n in range(20))[:99000]
    for path in (there, here.directory / "file"):
        info = os.stat(path)
        assert (info.st_mode & 0o7777, info.st_size, info.st_mtime_ns) == (0o600, 99000, 10**18 + 1)


@pytest.mark.parametrize("how", ["O_APPEND", "O_DSYNC", "O_SYNC", "O_DIRECT"])
def test_who_asks_to_wait_waits(way, how):
    here = way()
    fd = os.open(here.directory / "file", NEW | getattr(os, how), 0o644)
    here.relay.stall()
    writing = Background(lambda: os.write(fd, bytes(4096)))
    time.sleep(0.2)
    assert writing.is_alive()
    here.relay.resume()
    assert writing.get() == 4096
    os.close(fd)


def test_what_is_under_way_is_bounded(way):
    here = way()
    fd = os.open(here.directory / "file", NEW, 0o644)
    written = 0

    def work():
        nonlocal written
        for _ in range(32):
            written += os.write(fd, b"w" * MIB)

    here.relay.stall()
    writing = Background(work)
    time.sleep(1)
    assert FILE_MAX - MIB <= written <= FILE_MAX
    here.relay.resume()
    writing.get()
    os.close(fd)
    assert os.stat(here.tree / "file").st_size == 32 * MIB


def test_round_trips(way):
    here = way(delay=25)

    def unpacked(name):
        fd = os.open(here.directory / name, NEW, 0o644)
        for _ in range(5):
            os.write(fd, b"x" * 10000)
        os.utime(fd, (1, 2))
        os.close(fd)

    # One for all, once files are made ahead: that it is made, and what was written to it.
    types = {}
    numbers = iter(range(1, 20))
    while "PLACE" not in types:
        name = f"{next(numbers)}"
        trips, types = here.counted(lambda name=name: unpacked(name))
    assert types["FLUSH"] == 1 and types["SETATTR"] == 1 and types["PLACE"] == 1
    assert trips == 1, types
    flushes = here.mount.stats()["requests"]["FLUSH"]
    fd = os.open(here.directory / name, os.O_WRONLY)
    blocking = here.mount.stats()["blocking"]
    for n in range(50):
        os.pwrite(fd, b"y" * 4096, n * 8192)
    assert here.mount.stats()["blocking"] == blocking
    trips, _ = here.counted(lambda: (os.write(fd, b"z"), os.fsync(fd), os.close(fd)))
    assert trips == 1
    assert here.mount.stats()["requests"]["FLUSH"] == flushes


# --- order -----------------------------------------------------------------------------------

def test_everything_looks_as_on_a_local_file(way, tmp_path):
    """Two descriptors, the name, and a mapping; each looks at once at what the others did."""
    here = way(delay=1)
    rng = random.Random(5)
    places = [here.directory / "file", tmp_path / "file"]
    for path in places:
        path.write_bytes(b"0" * 20000)
    descriptors = [[os.open(path, os.O_RDWR) for _ in range(2)] for path in places]
    mappings = [mmap.mmap(fds[0], 20000) for fds in descriptors]
    try:
        for number in range(400):
            kind = rng.choice(["write"] * 6 + ["truncate", "pread", "path", "stat", "map", "store", "named",
                                               "copy", "end"])
            who, at, length = rng.randrange(2), rng.randrange(18000), rng.randrange(1, 2000)
            text = (b"%d" % number * 2000)[:length]

            def step(path, fds, mapping):
                fd = fds[who]
                if kind == "write":
                    return os.pwrite(fd, text, at)
                if kind == "truncate":
                    # What the mappings hold must stay within the file.
                    os.ftruncate(fd, 20000 + at)
                    return os.fstat(fds[1 - who]).st_size
                if kind == "pread":
                    return os.pread(fd, length, at)
                if kind == "path":
                    return path.read_bytes()
                if kind == "stat":
                    return os.stat(path).st_size, os.fstat(fd).st_size
                if kind == "map":
                    return mapping[at:at + length]
                if kind == "store":
                    mapping[at:at + len(text)] = text
                    mapping.flush()
                    return os.pread(fds[1 - who], 20000, 0)
                if kind == "named":
                    os.truncate(path, 20000 + length)
                    return path.stat().st_size
                if kind == "copy":
                    return os.copy_file_range(fds[0], fds[1], length, at, 19000 + 2 * length)
                os.lseek(fd, 0, os.SEEK_END)
                return os.write(fd, text), os.fstat(fd).st_size

            results = [step(*place) for place in zip(places, descriptors, mappings)]
            assert results[0] == results[1], (number, kind, who, at, length)
        assert (here.tree / "file").stat().st_size == os.fstat(descriptors[0][0]).st_size
    finally:
        for mapping in mappings:
            mapping.close()
        for fd in sum(descriptors, []):
            os.close(fd)
    assert (here.tree / "file").read_bytes() == places[1].read_bytes()


LOOKS = {
    "another descriptor": lambda path, other: os.pread(other, 100, 0),
    "the name": lambda path, other: path.read_bytes(),
    "stat of the name": lambda path, other: path.stat().st_size,
    "fstat": lambda path, other: os.fstat(other).st_size,
    "SEEK_DATA": lambda path, other: os.lseek(other, 0, os.SEEK_DATA),
    "truncating open": lambda path, other: (os.close(os.open(path, os.O_WRONLY | os.O_TRUNC)),
                                            path.stat().st_size),
    "truncate": lambda path, other: (os.truncate(path, 7), path.read_bytes()),
    "rename": lambda path, other: path.rename(path.with_name("moved")).read_bytes(),
    "link": lambda path, other: (os.link(path, path.with_name("linked")),
                                 path.with_name("linked").stat().st_size),
    "listing": lambda path, other: [entry.stat().st_size for entry in os.scandir(path.parent)
                                    if entry.name == path.name],
}


@pytest.mark.parametrize("look", LOOKS)
def test_who_looks_waits_for_what_was_written(way, look, tmp_path):
    """Nothing that was asked for later is answered as if it had come earlier."""
    here = way()
    results = []
    for directory in (here.directory, tmp_path):
        path = directory / "file"
        path.write_bytes(b"before")
        fd, other = os.open(path, os.O_WRONLY), os.open(path, os.O_RDONLY)
        # Who stood still until a lease had run out waits for an answer already when it writes.
        late = threading.Timer(3, here.relay.resume)
        if directory == here.directory:
            here.relay.stall()
            late.start()
        for n in range(20):
            os.pwrite(fd, b"after" * 1000, n * 5000)
        looking = Background(lambda: LOOKS[look](path, other))
        if directory == here.directory:
            time.sleep(0.2)
            late.cancel()
            here.relay.resume()
        results.append(looking.get())
        os.close(fd)
        os.close(other)
    assert results[0] == results[1]


LOOK_UP = r"""
import ctypes, os, sys
directory = sys.argv[1]
map_file = ctypes.CDLL(None).mmap  # mmap.mmap() asks for the size
map_file.restype = ctypes.c_void_p
map_file.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
fd = os.open(f"{directory}/file", os.O_RDWR)
print("open", flush=True)
sys.stdin.readline()
os.pwrite(fd, b"x" * 65536, 0)
address = map_file(None, 65536, 1, 1, fd, 0)
print("written", flush=True)
# A look-up that nothing else follows, of a name that the kernel does not know.
os.close(os.open(f"{directory}/link", os.O_PATH))
assert ctypes.string_at(address, 65536) == b"x" * 65536
"""


def test_names_looked_up_meanwhile(harness, start_service, start_mount, run_berth):  # noqa: F811
    """The kernel believes the size in a look-up's answer. With the one from before the writes, what
    lies behind it would be gone from its mappings (SIGBUS)."""
    place, image = harness.new_path("place"), harness.new_path("image")
    place.mkdir()
    with open(image, "wb") as file:
        file.truncate(16 * MIB)
    run = {"check": True, "timeout": 30}
    subprocess.run(["mkfs.ext4", "-q", image], **run)
    subprocess.run(["mount", "-o", "loop", image, place], **run)
    try:
        service = start_service(root=place / "root")
        run_berth("create", WORKSPACE, check=True, service=service)
        tree = place / "root" / "workspaces" / WORKSPACE / "tree"
        (tree / "file").write_bytes(b"")
        os.link(tree / "file", tree / "link")
        mount = start_mount(service)
        directory = mount.path / WORKSPACE
        wait_until_it_keeps(mount, directory)
        with subprocess.Popen([sys.executable, "-c", LOOK_UP, directory], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, text=True) as program:
            assert program.stdout.readline() == "open\n"
            # The service can look up, but not write.
            subprocess.run(["fsfreeze", "-f", place], **run)
            try:
                program.stdin.write("\n")
                program.stdin.flush()
                assert program.stdout.readline() == "written\n"
                time.sleep(0.3)
            finally:
                subprocess.run(["fsfreeze", "-u", place], **run)
            try:
                assert program.wait(30) == 0
            finally:
                program.kill()
    finally:
        for thing in reversed(harness.owned):
            thing.stop()
        subprocess.run(["umount", "-l", place], **run)


# --- errors ----------------------------------------------------------------------------------

@pytest.fixture
def full(harness, start_service, start_mount, run_berth):  # noqa: F811
    """A mount whose service's filesystem is full, but for names; and a call that makes room."""
    place = harness.new_path("tmpfs")
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", place], check=True, timeout=30)
    service = start_service(root=place / "root")
    run_berth("create", WORKSPACE, check=True, service=service)
    mount = start_mount(service)
    directory = mount.path / WORKSPACE
    for name in ("file", "other"):
        (directory / name).write_bytes(b"kept")
    wait_until_it_keeps(mount, directory)
    ballast = place / "ballast"
    with open(ballast, "wb", buffering=0) as file:
        try:
            while True:
                file.write(b"f" * 4096)
        except OSError:
            pass
    yield directory, place / "root" / "workspaces" / WORKSPACE / "tree", ballast.unlink
    for thing in reversed(harness.owned):
        thing.stop()
    subprocess.run(["umount", "-l", place], check=True, timeout=30)


def fails_later(directory, name="file", flags=os.O_RDWR):
    """A descriptor through which something was written that did not fit."""
    fd = os.open(directory / name, flags)
    assert os.pwrite(fd, b"x" * MIB, 64 * KIB) == MIB
    return fd


def test_fsync_tells_once_each_description(full):
    directory, tree, make_room = full
    bystander = os.open(directory / "file", os.O_RDONLY)
    fd = fails_later(directory)
    copy = os.dup(fd)
    assert refused(lambda: os.fsync(fd)) == "ENOSPC"
    os.fsync(copy)  # the same description
    assert refused(lambda: os.fsync(bystander)) == "ENOSPC"
    os.fsync(bystander)
    for each in (copy, bystander, fd):
        os.close(each)
    # What is not there is not shown.
    assert (directory / "file").read_bytes() == (tree / "file").read_bytes()
    # From now on it is told at once, until something has been written again.
    fd = os.open(directory / "file", os.O_RDWR)
    assert refused(lambda: os.pwrite(fd, b"x" * MIB, 2 * MIB)) == "ENOSPC"
    make_room()
    assert os.pwrite(fd, b"y" * MIB, 64 * KIB) == MIB
    os.fsync(fd)
    os.close(fd)
    assert (tree / "file").read_bytes()[64 * KIB:] == b"y" * MIB


def test_close_tells_and_a_child_that_exits_does_not_use_it_up(full):
    directory, _, _ = full
    fd = fails_later(directory)
    os.set_inheritable(fd, True)
    subprocess.run(["true"], close_fds=False, check=True, timeout=30)
    assert refused(lambda: os.close(fd)) == "ENOSPC"
    # A reader's close is none of its business.
    fd = os.open(directory / "file", os.O_RDONLY)
    os.close(fd)


def test_the_next_write_tells(full):
    directory, _, _ = full
    fd = fails_later(directory)
    assert os.fstat(fd).st_size > 0  # after it: the failure has come
    assert refused(lambda: os.pwrite(fd, b"x", 0)) == "ENOSPC"
    assert os.pwrite(fd, b"K", 0) == 1
    os.fsync(fd)
    os.close(fd)
    assert (directory / "file").read_bytes()[:4] == b"Kept"


def test_the_limit_of_the_writer_is_its_own(way):
    here = way()
    code = ("import os, resource, signal, sys\n"
            "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
            "resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))\n"
            "fd = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)\n"
            "print(os.write(fd, bytes(8000)))\n"
            "try: os.write(fd, b'x')\n"
            "except OSError as error: print(error.errno)\n"
            "os.close(fd)\n")
    result = subprocess.run([sys.executable, "-c", code, here.directory / "file"], check=True,
                            capture_output=True, text=True, timeout=30)
    assert result.stdout.split() == ["5000", str(errno.EFBIG)]


def test_a_cut_connection_loses_nothing(way):
    here = way()
    fd = os.open(here.directory / "file", NEW, 0o644)
    for round_ in range(5):
        here.relay.stall()
        for n in range(20):
            # Each exactly once, and in order: they overlap.
            os.pwrite(fd, b"%06d" % (round_ * 20 + n) * 500, (round_ * 20 + n) * 1500)
        before = here.mount.stats()["resumes"]
        here.relay.cut()
        here.relay.resume()
        wait_until(lambda: here.mount.stats()["resumes"] > before, 20, "another connection")
    os.close(fd)
    expected = b"".join(b"%06d" % n * 250 for n in range(99)) + b"%06d" % 99 * 500
    assert (here.tree / "file").read_bytes() == expected


@pytest.mark.parametrize("told_by", ["close", "fsync"])
def test_a_lost_service_is_told(way, service, told_by):
    here = way(options="timeout=2")
    path = here.directory / "file"
    path.write_bytes(b"-" * 20000)
    fd = os.open(path, os.O_RDWR)
    here.relay.stall()
    for n in range(4):
        os.pwrite(fd, b"new!" * 500, n * 5000)
    service.kill()
    here.relay.cut()
    here.relay.resume()
    service.restart()
    wait_until(lambda: here.mount.stats()["connected"], 20, "another connection")
    if told_by == "fsync":
        assert refused(lambda: os.fsync(fd)) == "EIO"
        os.fsync(fd)
        os.pwrite(fd, b"again", 0)
        os.close(fd)
        assert (here.tree / "file").read_bytes()[:5] == b"again"
    else:
        assert refused(lambda: os.close(fd)) == "EIO"
    # What is shown is what is there.
    assert path.read_bytes() == (here.tree / "file").read_bytes()


def test_a_killed_writer_leaves_what_it_wrote(way):
    here = way()
    code = ("import os, sys, time\n"
            "fd = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)\n"
            "print('open', flush=True)\n"
            "sys.stdin.readline()\n"
            "for n in range(100): os.write(fd, b'w' * 1000)\n"
            "print('written', flush=True)\n"
            "time.sleep(60)\n")
    writer = subprocess.Popen([sys.executable, "-c", code, here.directory / "file"],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert writer.stdout.readline() == "open\n"
        here.relay.stall()
        writer.stdin.write("\n")
        writer.stdin.flush()
        assert writer.stdout.readline() == "written\n"
        writer.send_signal(signal.SIGKILL)
        assert writer.wait(10) == -signal.SIGKILL  # though the service has not answered
    finally:
        writer.kill()
        writer.wait(10)
        here.relay.resume()
    wait_until(lambda: (here.tree / "file").read_bytes() == b"w" * 100000, 10, "all that was written")


# --- commands --------------------------------------------------------------------------------

def follow_writes(here, service, rounds, seed):
    """A command, which comes by a shorter way, sees what write() has returned for."""
    rng = random.Random(seed)
    fds = [os.open(here.directory / f"file{n}", os.O_RDWR | os.O_CREAT) for n in range(3)]
    try:
        with ExecClient(service.socket) as client:
            for number in range(rounds):
                which = rng.randrange(3)
                text = b"%06d" % number * rng.randrange(1, 20000)
                # A command in between at times: the next write is then the first of its kind.
                for at in range(0, len(text), 20000):
                    os.pwrite(fds[which], text[at:at + 20000], at)
                if rng.randrange(2):
                    os.ftruncate(fds[which], len(text))
                else:
                    os.pwrite(fds[which], b"!", len(text))
                    text += b"!"
                seen = client.run(WORKSPACE, ["head", "-c", str(len(text)), f"file{which}"])
                assert bytes(seen.output[1]) == text, number
                assert seen.verdict.coherence == 1
    finally:
        for fd in fds:
            os.close(fd)


def test_the_next_command_sees_it(way, service):
    follow_writes(way(delay=10), service, 40, seed=1)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_next_command_sees_it_a_thousand_times(way, service):
    follow_writes(way(delay=10), service, 1000, seed=2)


def test_nobody_is_asked_when_nothing_is_under_way(way, service):
    here = way()
    asked = lambda: here.relay.stats()["to_client"]["types"].get("SYNC", {}).get("frames", 0)  # noqa: E731
    with ExecClient(service.socket) as client:
        client.run(WORKSPACE, ["true"])
        assert asked() == 0
        fd = os.open(here.directory / "file", NEW, 0o644)
        os.write(fd, b"x")
        client.run(WORKSPACE, ["true"])
        assert asked() == 1
        # Open still, and nothing was written since.
        for _ in range(3):
            client.run(WORKSPACE, ["true"])
        assert asked() == 1
        os.close(fd)


def test_a_command_does_not_wait_for_ever(way, service):
    here = way()
    fd = os.open(here.directory / "file", NEW, 0o644)
    os.write(fd, b"x")
    here.relay.stall()
    os.write(fd, b"y")
    with ExecClient(service.socket) as client:
        call = client.start(WORKSPACE, ["cat"], flags=1)
        client.input(call, 0, b"early", end=True)  # before it runs
        client.wait(call)
        assert call.verdict.verdict == "exited" and call.verdict.code == 0
        assert bytes(call.output[1]) == b"early"
        assert call.verdict.coherence == 0  # it may not have seen the mount's last word
    here.relay.resume()
    with contextlib.suppress(OSError):  # by now it may have given the connection up
        os.close(fd)

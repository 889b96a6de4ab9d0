"""What the kernel does not like: files forgotten while they are read, mapped, listed, run and waited for;
signals, caches that are dropped, drivers that are killed. Nothing hangs, nobody is unkillable, and
nothing is wrong."""

import contextlib
import ctypes
import errno
import mmap
import os
import random
import select
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lib import harness as parts
from lib import kernel_caches, mounts
from lib.cached import workspace  # noqa: F401, fixtures
from lib.exec_client import WORKSPACE, ExecClient

SECONDS, LONG_SECONDS = 4, 240
PATIENCE = 30  # for one step of a worker, on a busy machine
PAGE = 4096
SIZE = 64 * PAGE
COUNT = 12
GONE = {errno.ENOENT, errno.ESTALE, errno.ENOTDIR}


def pattern(number):
    """SIZE bytes, each block of which says which version it is of."""
    block = struct.pack("<QQ", number, ~number & (1 << 64) - 1)
    return block * (SIZE // len(block))


def check_pattern(data, whole):
    """Each block is of a version. whole: all of one."""
    assert len(data) % 16 == 0
    versions = set()
    for at in range(0, len(data), 16 if len(data) <= PAGE else PAGE // 2):
        one, two = struct.unpack_from("<QQ", data, at)
        assert one == ~two & (1 << 64) - 1, (at, one, two)
        versions.add(one)
    assert not whole or len(versions) == 1, versions


def read_whole(directory, rng):
    """Replaced by renames, so of one version, with the size of it."""
    with open(directory / f"whole{rng.randrange(COUNT)}", "rb") as file:
        data = file.read()
        assert len(data) == SIZE
        check_pattern(data, True)


def read_ahead(directory, rng):
    with open(directory / f"inplace{rng.randrange(COUNT)}", "rb", buffering=0) as file:
        while data := file.read(rng.choice([PAGE, 8 * PAGE])):
            check_pattern(data[:len(data) // 16 * 16], False)


def read_mapped(directory, rng):
    with open(directory / f"whole{rng.randrange(COUNT)}", "rb") as file, \
            mmap.mmap(file.fileno(), SIZE, prot=mmap.PROT_READ) as mapping:
        for _ in range(5):
            at = rng.randrange(SIZE // PAGE) * PAGE
            check_pattern(mapping[at:at + PAGE], True)


def walk(directory, rng):
    for _, directories, files in os.walk(directory / "tree"):
        assert len(directories) + len(files) <= 40


def working_directory(directory, rng):
    """A directory that is moved while somebody is in it has a path, or says that it has none."""
    descriptor = os.open(directory / f"tree/d{rng.randrange(3)}", os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fchdir(descriptor)
        with contextlib.suppress(FileNotFoundError):
            os.getcwd()
        os.listdir(".")
    finally:
        os.chdir(directory)
        os.close(descriptor)


def run_program(directory, rng):
    result = subprocess.run([directory / "program", "x"], stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE)
    assert (result.returncode, result.stdout) == (0, b"x\n"), result


def fork_many(directory, rng):
    children = []
    for _ in range(3):
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(OSError):
                os.stat(directory / f"whole{rng.randrange(COUNT)}")
                read_whole(directory, rng)
            os._exit(0)
        children.append(pid)
    os.kill(rng.choice(children), signal.SIGKILL)
    for pid in children:
        os.waitpid(pid, 0)


def watch(directory, rng):
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = libc.inotify_init1(os.O_NONBLOCK)
    try:
        for name in (".", "tree", f"whole{rng.randrange(COUNT)}"):
            libc.inotify_add_watch(descriptor, os.fsencode(directory / name), 0xfff)
        if select.select([descriptor], [], [], 0.1)[0]:
            os.read(descriptor, 65536)
    finally:
        os.close(descriptor)


def write_and_read(directory, rng):
    name = directory / f"mine{os.getpid()}"
    data = pattern(rng.randrange(1 << 30))
    with open(name, "wb") as file:
        file.write(data)
    assert name.read_bytes() == data
    os.rename(name, directory / f"{name.name}.new")
    assert (directory / f"{name.name}.new").read_bytes() == data
    os.unlink(directory / f"{name.name}.new")


STEPS = [read_whole, read_ahead, read_mapped, walk, working_directory, run_program, fork_many, watch, write_and_read]


class Workers:
    """A process for each step, which counts in shared memory what it has done."""

    def __init__(self, directory):
        self.counts = mmap.mmap(-1, 8 * len(STEPS))
        self.reading, writing = os.pipe()
        sys.stderr.flush()
        self.pids = [self.start(directory, number, writing) for number in range(len(STEPS))]
        os.close(writing)

    def start(self, directory, number, writing):
        pid = os.fork()
        if pid:
            return pid
        try:
            signal.signal(signal.SIGALRM, lambda *_: None)
            signal.setitimer(signal.ITIMER_REAL, 0.01, 0.007)  # as git's progress, and worse
            rng, done = random.Random(number), 0
            os.chdir(directory)
            while True:
                try:
                    STEPS[number](directory, rng)
                except OSError as error:
                    if error.errno not in GONE:
                        raise
                done += 1
                struct.pack_into("<Q", self.counts, 8 * number, done)
        except BaseException as error:
            with contextlib.suppress(OSError):
                os.write(writing, f"{STEPS[number].__name__}: {error!r}\n".encode()[:4000])
        finally:
            os._exit(1)

    def done(self):
        return {step.__name__: struct.unpack_from("<Q", self.counts, 8 * number)[0] for number, step in enumerate(STEPS)}

    def wrong(self):
        return os.read(self.reading, 65536).decode() if select.select([self.reading], [], [], 0)[0] else ""

    def kill(self):
        """None may be unkillable."""
        for pid in self.pids:
            os.kill(pid, signal.SIGKILL)
        end = time.monotonic() + PATIENCE
        for pid in self.pids:
            while os.waitpid(pid, os.WNOHANG) == (0, 0):
                assert time.monotonic() < end, f"unkillable:\n{parts.describe_process(pid)}"
                time.sleep(0.01)
        os.close(self.reading)


def prepare(tree):
    for number in range(COUNT):
        (tree / f"whole{number}").write_bytes(pattern(number))
        (tree / f"inplace{number}").write_bytes(pattern(number))
    for number in range(3):
        (tree / f"tree/d{number}/e").mkdir(parents=True)
        for name in ("a", "e/b"):
            (tree / f"tree/d{number}/{name}").write_bytes(b"1")
    (tree / "program").write_bytes(Path("/bin/echo").read_bytes())
    (tree / "program").chmod(0o755)


def storm(tree, rng):
    """What the agent does, beside the service."""
    version = rng.randrange(1 << 40)
    (tree / "t").write_bytes(pattern(version))
    os.rename(tree / "t", tree / f"whole{rng.randrange(COUNT)}")
    with open(tree / f"inplace{rng.randrange(COUNT)}", "r+b", buffering=0) as file:
        at = rng.randrange(SIZE // PAGE) * PAGE
        file.seek(at)
        file.write(pattern(version)[:PAGE])
    one, two = rng.sample(range(3), 2)
    with contextlib.suppress(OSError):
        os.rename(tree / f"tree/d{one}", tree / f"tree/d{two}/moved")
        os.rename(tree / f"tree/d{two}/moved", tree / f"tree/d{one}")
    os.chmod(tree / "program", rng.choice([0o755, 0o775]))
    (tree / f"tree/n{rng.randrange(4)}").touch()
    with contextlib.suppress(FileNotFoundError):
        os.unlink(tree / f"tree/n{rng.randrange(4)}")


def stressed(service, start_mount, tree, seconds):
    prepare(tree)
    mount = start_mount(service, workspace=WORKSPACE)
    workers, rng = Workers(mount.path), random.Random(time.time_ns())
    end = time.monotonic() + seconds
    before, looked, storms = workers.done(), time.monotonic(), 0
    try:
        with ExecClient(service.socket) as client:
            while time.monotonic() < end:
                storm(tree, rng)
                storms += 1
                if storms % 50 == 0:
                    name = f"whole{rng.randrange(COUNT)}"
                    client.run(WORKSPACE, ["sh", "-c", f"cp whole0 t; mv t {name}"])
                    assert (mount.path / name).read_bytes() == (tree / name).read_bytes()
                if storms % 300 == 0:
                    kernel_caches.drop("2", patience=0, anyway=False)
                assert not (wrong := workers.wrong()), wrong
                if time.monotonic() - looked > PATIENCE:
                    now = workers.done()
                    idle = [name for name in now if now[name] == before[name]]
                    assert not idle, f"{idle} do not get on:\n" + "\n".join(map(parts.describe_process, workers.pids))
                    before, looked = now, time.monotonic()
        print(f"{storms} storms, {workers.done()}")
        assert seconds < PATIENCE or all(workers.done().values())
    except BaseException:
        mounts.abort_mount(mount.row)
        raise
    finally:
        workers.kill()


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_nothing_hangs_and_nothing_is_wrong(service, start_mount, workspace):
    stressed(service, start_mount, workspace, SECONDS)


@pytest.mark.long
@pytest.mark.timeout(LONG_SECONDS + 300)
def test_nothing_hangs_and_nothing_is_wrong_for_long(service, start_mount, workspace):
    stressed(service, start_mount, workspace, LONG_SECONDS)


def killed(service, start_mount, tree, rounds):
    prepare(tree)
    rng, path = random.Random(time.time_ns()), None
    for number in range(rounds):
        mount = start_mount(service, workspace=WORKSPACE, path=path)
        path = mount.path
        workers = Workers(path)
        try:
            end = time.monotonic() + rng.random() * 0.5
            while time.monotonic() < end:
                storm(tree, rng)
            mount.kill()
            start = time.monotonic()
            # The supervisor takes the mount away; whoever waits in it is let go.
            parts.wait_until(lambda: not mounts.find_mount(path), 30, "the end of the mount")
        finally:
            workers.kill()
        print(f"round {number}: {time.monotonic() - start:.2f} s")


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_killed_driver_leaves_a_mountpoint_that_can_be_used(service, start_mount, workspace):
    killed(service, start_mount, workspace, 2)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_killed_driver_leaves_a_mountpoint_that_can_be_used_long(service, start_mount, workspace):
    killed(service, start_mount, workspace, 50)


LOCKER = r"""
import os, sys, time
directory, me, count, careful = sys.argv[1], sys.argv[2], int(sys.argv[3]), len(sys.argv) > 4
os.chdir(directory)
done = retried = 0
while done < count:
    try:
        fd = os.open("ref.lock", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    except FileExistsError:
        retried += 1
        time.sleep(0.0005)
        continue
    # Ours: nobody else changes ref until the lock is renamed or removed.
    with open("ref", "rb") as file:
        before = file.read()
    assert len(before) % 32 == 0, before
    last = int(before[-32:-1].split()[1]) if before else -1
    with open("ref", "rb") as file:
        assert file.read() == before
    line = b"%-4s %026d\n" % (me.encode(), last + 1)
    if careful:
        with open("ref.new", "wb", buffering=0) as file:
            file.write((before + line)[-32 * 40:])
            os.rename("ref.new", "ref")
            os.fsync(file.fileno())
        os.close(fd)
        os.unlink("ref.lock")
    else:
        os.write(fd, (before + line)[-32 * 40:])
        os.close(fd)
        os.rename("ref.lock", "ref")
    if done % 7 == 0:
        with open("ref", "rb") as file:
            assert int(file.read()[-32:-1].split()[1]) >= last + 1
    done += 1
print(done, retried)
"""


def lock_rename_read(places, count):
    """As git updates what it points to: create a lock, read, write, rename. No change may be lost. On
    another mount a rename is seen a little later: there the lock is kept until an fsync after it."""
    (places[0] / "ref").touch()
    careful = ["careful"] if len(set(places)) > 1 else []
    processes = [subprocess.Popen([sys.executable, "-I", "-S", "-c", LOCKER, place, str(number), str(count), *careful],
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                 for number, place in enumerate(places)]
    try:
        for process in processes:
            out, err = process.communicate(timeout=600)
            assert process.returncode == 0, err
            print("rounds and retries:", out.strip())
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for place in places:
        line = (place / "ref").read_bytes()[-32:-1]
        assert int(line.split()[1]) == len(places) * count - 1, (place, line)


@pytest.mark.parametrize("where", ["one mount", "two mounts"])
@pytest.mark.timeout(240)
def test_lock_rename_and_read(service, start_mount, workspace, where):
    one = start_mount(service, workspace=WORKSPACE).path
    other = one if where == "one mount" else start_mount(service, workspace=WORKSPACE).path
    lock_rename_read([one, other], 100)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("where", ["one mount", "two mounts"])
def test_lock_rename_and_read_long(service, start_mount, workspace, where):
    one = start_mount(service, workspace=WORKSPACE).path
    other = one if where == "one mount" else start_mount(service, workspace=WORKSPACE).path
    lock_rename_read([one, other], 2000)

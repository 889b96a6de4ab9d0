"""Contents, listings and times while others work on them."""

import ctypes
import errno
import mmap
import os
import signal
import subprocess
import time

from .base import SEEK_DATA, SEEK_HOLE, check, fails, get, libc, opened, put


def extents(path):
    with opened(path) as fd:
        size, at, found = os.fstat(fd).st_size, 0, []
        while at < size:
            try:
                start = os.lseek(fd, at, SEEK_DATA)
            except OSError as error:
                assert error.errno == errno.ENXIO
                break
            at = os.lseek(fd, start, SEEK_HOLE)
            assert at > start
            found.append((start, at))
        return found


@check
def holes_hold_no_data(_):
    """Neither SEEK_DATA and SEEK_HOLE nor st_blocks claim a hole where bytes are, even right
    after they were written, before any sync: cp would leave them out."""
    block = 1 << 20
    written = [0, 3, 4, 9]
    with opened("f", os.O_RDWR | os.O_CREAT) as fd:
        os.ftruncate(fd, 12 * block)
        for i in written:
            os.pwrite(fd, b"%d" % i * 65536, i * block)

        def look():
            found = extents("f")
            for i in written:
                assert any(start <= i * block and end >= i * block + 65536 for start, end in found), found
            status = os.stat("f")
            assert status.st_size == 12 * block
            assert status.st_blocks == 0 or status.st_blocks * 512 >= len(written) * 65536, status
            return status
        look()
        subprocess.run(["cp", "--sparse=auto", "f", "copy"], check=True)
        assert get("copy") == get("f")
        os.fsync(fd)
        assert look().st_blocks > 0
        with fails(errno.ENXIO):
            os.lseek(fd, 12 * block, SEEK_DATA)
        assert os.lseek(fd, 9 * block, SEEK_HOLE) >= 9 * block + 65536
    with opened("m", os.O_RDWR | os.O_CREAT) as fd:
        os.ftruncate(fd, block)
        with mmap.mmap(fd, block) as memory:
            memory[block // 2:block // 2 + 4] = b"data"
            memory.flush()
        assert any(start <= block // 2 < end for start, end in extents("m"))
    subprocess.run(["cp", "m", "m copy"], check=True)
    assert get("m copy")[block // 2:block // 2 + 4] == b"data"
    put("small", b"x")
    assert extents("small") == [(0, 1)]
    put("empty")
    assert extents("empty") == []


@check
def copy_file_range(_):
    data = os.urandom(1 << 20)
    put("f", data)
    with opened("f") as source, opened("g", os.O_RDWR | os.O_CREAT) as target:
        copied = 0
        while count := os.copy_file_range(source, target, len(data) - copied):
            copied += count
        assert copied == len(data)
        assert os.pread(target, len(data), 0) == data
        assert os.copy_file_range(source, target, 1000, 100, 5) == 1000
        assert os.pread(target, 1000, 5) == data[100:1100]
        assert os.copy_file_range(source, target, 10, len(data), 0) == 0, "nothing after the end"
        with fails(errno.EBADF):
            os.copy_file_range(target, source, 10, 0, 0)
    with opened("f", os.O_RDWR) as fd:
        with fails(errno.EINVAL):
            os.copy_file_range(fd, fd, 100, 0, 50)
        assert os.copy_file_range(fd, fd, 100, 0, 5000) == 100
    assert get("f")[5000:5100] == data[:100]


@check
def readdir_survives_deletion(_):
    names = {f"file-{i:05}" for i in range(3000)}
    os.mkdir("many")
    for name in names:
        os.close(os.open(f"many/{name}", os.O_WRONLY | os.O_CREAT))
    seen = []
    with os.scandir("many") as entries:
        for entry in entries:
            seen.append(entry.name)
            os.unlink(entry.path)
    assert len(seen) == 3000 and set(seen) == names
    os.rmdir("many")


@check
def readdir_shows_the_rest_while_others_come_and_go(_):
    """What stays is listed exactly once, whatever is made and removed meanwhile."""
    os.mkdir("d")
    stay = {f"stay-{i:04}" for i in range(1000)}
    for name in stay:
        put(f"d/{name}")
    seen = []
    with os.scandir("d") as entries:
        for i, entry in enumerate(entries):
            seen.append(entry.name)
            if i < 600:
                put(f"d/new-{i}")
                if i % 2:
                    os.unlink(f"d/new-{i}")
                    os.rename(f"d/new-{i - 1}", f"d/renamed-{i}")
    kept = [name for name in seen if name.startswith("stay")]
    assert len(kept) == 1000 and set(kept) == stay


@check
def two_writers_never_a_torn_mix(_):
    """Two processes replace a file while a third reads it: it sees one version, size and bytes."""
    def content(who, i):
        return f"{who}{i:05} ".encode() * (1 + (i * 7 + ord(who)) % 40 * 100)
    put("f", content("a", 0))
    writers = []
    for who in "ab":
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                for i in range(150):
                    put(f"tmp-{who}", content(who, i))
                    os.rename(f"tmp-{who}", "f")
                status = 0
            finally:
                os._exit(status)
        writers.append(pid)
    reads, seen = 0, set()
    running = list(writers)
    statuses = []
    while running or reads < 10:
        with opened("f") as fd:
            size = os.fstat(fd).st_size
            data = os.read(fd, 1 << 20)
        assert len(data) == size, (len(data), size)
        who, i = chr(data[0]), int(data[1:6])
        assert data == content(who, i), "a mix of two versions"
        seen.add((who, i))
        reads += 1
        for pid in list(running):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                running.remove(pid)
                statuses.append(status)
    assert statuses == [0, 0]
    assert len(seen) > 2, "the reader saw no change: nothing was tested"


@check
def appends_of_two_processes_are_all_there(_):
    def work(who):
        with opened("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644) as fd:
            for i in range(200):
                assert os.write(fd, b"%s %04d\n" % (who, i)) == 7
    put("log")
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work(b"a")
            status = 0
        finally:
            os._exit(status)
    work(b"b")
    assert os.waitpid(pid, 0)[1] == 0
    assert sorted(get("log").splitlines()) == [b"%s %04d" % (who, i) for who in (b"a", b"b")
                                               for i in range(200)]


@check
def signals_interrupt_nothing(_):
    """An alarm every half millisecond, as git and Go have them: each call on a regular file does
    its work once, without EINTR and without EEXIST from an O_EXCL create done twice. The calls
    are made through libc: Python itself would repeat one that ends with EINTR."""
    caught = []
    libc_open = ctypes.CDLL(None, use_errno=True)
    signal.signal(signal.SIGALRM, lambda *_: caught.append(1))

    def call(name, *args):
        result = getattr(libc_open, name)(*args)
        assert result >= 0, f"{name}: {errno.errorcode[ctypes.get_errno()]} after {len(caught)} signals"
        return result
    data = b"x" * 70000
    buffer = ctypes.create_string_buffer(70000)
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    try:
        rounds, deadline = 0, time.monotonic() + 20
        while rounds < 60 or (len(caught) < 200 and time.monotonic() < deadline):
            rounds += 1
            fd = call("open", b"f", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
            assert call("write", fd, data, len(data)) == len(data)
            call("fsync", fd)
            assert call("pread", fd, buffer, len(data), ctypes.c_long(0)) == len(data)
            call("ftruncate", fd, ctypes.c_long(10))
            call("close", fd)
            call("mkdir", b"d", 0o755)
            call("link", b"f", b"d/g")
            call("symlink", b"f", b"l")
            call("rename", b"d/g", b"h")
            call("chmod", b"h", 0o600)
            for name in (b"f", b"h", b"l"):
                call("unlink", name)
            call("rmdir", b"d")
            assert os.listdir(".") == []
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    assert len(caught) >= 50, "no storm: nothing was tested"


@check
def directory_times_follow_their_entries(_):
    """What make, git's untracked cache and build tools read from a directory's mtime."""
    os.mkdir("d")
    put("d/kept")

    def changes(action):
        os.utime("d", ns=(0, 0))
        action()
        return os.stat("d").st_mtime_ns != 0
    assert changes(lambda: put("d/f"))
    assert not changes(lambda: put("d/f", b"content is not the directory's"))
    assert not changes(lambda: os.chmod("d/f", 0o600))
    assert changes(lambda: os.rename("d/f", "d/g"))
    assert changes(lambda: os.link("d/g", "d/h"))
    assert changes(lambda: os.unlink("d/g"))
    assert changes(lambda: os.symlink("x", "d/s"))
    assert changes(lambda: os.mkdir("d/sub"))
    assert os.stat("d").st_nlink in (1, 3)
    assert changes(lambda: os.rmdir("d/sub"))


@check
def getcwd_stays_while_names_change(_):
    """A program that stands in a directory knows where, after its parents were renamed too."""
    start = os.getcwd()
    os.makedirs("a/b/c")
    os.chdir("a/b/c")
    put("f", b"x")
    os.rename(os.path.join(start, "a"), os.path.join(start, "moved"))
    assert os.getcwd() == os.path.join(start, "moved/b/c")
    assert get("f") == b"x" and os.listdir(".") == ["f"]
    assert subprocess.run(["pwd", "-P"], stdout=subprocess.PIPE, check=True).stdout.decode().strip() \
        == os.path.join(start, "moved/b/c")

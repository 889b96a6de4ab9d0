"""What tools need from a directory, as checks that each pass on a local filesystem.

    needs.py CHECK DIRECTORY OTHER

runs one check in an empty DIRECTORY; OTHER is an empty directory that nothing can be renamed
or linked to from there. A check that fails ends the program with a traceback. This is a
program of its own, with nothing but the standard library, so that any user can be made to
run it: `python3 - CHECK DIRECTORY OTHER < needs.py`.
"""

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import signal
import stat
import subprocess
import sys
import threading
import time

LIBC = ctypes.CDLL(None, use_errno=True)
AT_FDCWD, AT_SYMLINK_NOFOLLOW = -100, 0x100
UTIME_NOW, UTIME_OMIT = (1 << 30) - 1, (1 << 30) - 2
RENAME_NOREPLACE, RENAME_EXCHANGE, RENAME_WHITEOUT = 1, 2, 4
SEEK_DATA, SEEK_HOLE = 3, 4

CHECKS = {}


def check(function):
    CHECKS[function.__name__] = function
    return function


@contextlib.contextmanager
def fails(*numbers):
    """The block must fail with one of these errno numbers."""
    try:
        yield
    except OSError as error:
        if error.errno not in numbers:
            raise AssertionError(f"{errno.errorcode.get(error.errno)} instead of "
                                 f"{[errno.errorcode[n] for n in numbers]}") from error
    else:
        raise AssertionError(f"succeeded instead of {[errno.errorcode[n] for n in numbers]}")


@contextlib.contextmanager
def opened(path, flags=os.O_RDONLY, mode=0o666):
    fd = os.open(path, flags, mode)
    try:
        yield fd
    finally:
        os.close(fd)


def put(path, data=b"", mode=0o666):
    with opened(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode) as fd:
        assert os.write(fd, data) == len(data)


def get(path):
    with opened(path) as fd:
        data = b""
        while block := os.read(fd, 1 << 20):
            data += block
        return data


def libc(function, *args):
    if function(*args) != 0:
        raise OSError(ctypes.get_errno(), function.__name__)


def renameat2(old, new, flags):
    libc(LIBC.renameat2, AT_FDCWD, os.fsencode(old), AT_FDCWD, os.fsencode(new), flags)


class Timespec(ctypes.Structure):
    _fields_ = [("sec", ctypes.c_long), ("nsec", ctypes.c_long)]


def utimensat(path, atime, mtime, flags=0):
    """Each time is (seconds, nanoseconds), where nanoseconds may be UTIME_NOW or UTIME_OMIT."""
    times = (Timespec * 2)(Timespec(*atime), Timespec(*mtime))
    libc(LIBC.utimensat, AT_FDCWD, os.fsencode(path), times, flags)


def in_child(function):
    """Runs function in a forked process; whatever it raises there is raised here as a failure."""
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            function()
            status = 0
        except BaseException:  # the child must never return into its parent's code
            sys.excepthook(*sys.exc_info())
            sys.stderr.flush()
        os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, "failed in the child"


# --- git -----------------------------------------------------------------------------------

@check
def git_lock_rename_recreate_read(_):
    """A lock file becomes the file, and at once there is a new lock: each read shows the last
    bytes, never those of another file that had the name."""
    put("index", b"0")
    for i in range(100):
        data = b"%d " % i * (1 + i % 7 * 300)
        with opened("index.lock", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666) as fd:
            os.write(fd, data)
            with fails(errno.EEXIST):
                os.open("index.lock", os.O_RDWR | os.O_CREAT | os.O_EXCL)
            new = os.fstat(fd)
        os.rename("index.lock", "index")
        with opened("index.lock", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666) as fd:
            assert os.fstat(fd).st_size == 0
            assert os.read(fd, 1) == b""
            now = os.stat("index")
            assert (now.st_ino, now.st_size) == (new.st_ino, len(data)), i
            assert get("index") == data, i
        os.unlink("index.lock")
    assert os.listdir(".") == ["index"]


@check
def git_object_is_read_only_yet_written(_):
    """0444 with O_EXCL, written, linked to its place and closed; then nobody may write it."""
    with opened("tmp_obj", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o444) as fd:
        assert os.write(fd, b"object") == 6
        os.fsync(fd)
        assert os.write(fd, b" more") == 5
        assert os.pread(fd, 20, 0) == b"object more"
        assert stat.S_IMODE(os.fstat(fd).st_mode) == 0o444
    os.link("tmp_obj", "object")
    os.unlink("tmp_obj")
    assert get("object") == b"object more"
    if os.getuid() != 0:
        with fails(errno.EACCES):
            os.open("object", os.O_WRONLY)
    with opened("later", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644) as fd:
        os.fchmod(fd, 0o400)
        assert os.write(fd, b"still") == 5
        os.ftruncate(fd, 2)
    assert get("later") == b"st"


@check
def attributes_stay_when_nothing_changes(_):
    """What git's index remembers of a file: the same at each look, through any descriptor."""
    put("f", b"data")
    os.mkdir("d")

    def look(name):
        s = os.lstat(name)
        return s.st_dev, s.st_ino, s.st_mode, s.st_uid, s.st_gid, s.st_size, s.st_mtime_ns, s.st_ctime_ns
    before = look("f"), look("d")
    for _ in range(20):
        get("f")
        os.listdir("d")
        with opened("f") as fd:
            assert os.fstat(fd).st_ino == before[0][1]
        assert (look("f"), look("d")) == before
    assert (os.stat("f").st_uid, os.stat("f").st_gid) == (os.getuid(), os.getgid())
    os.rename("f", "d/g")
    after = look("d/g")
    assert after[:7] == before[0][:7], "renaming changes nothing but ctime"


# --- editors -------------------------------------------------------------------------------

@check
def save_by_rename_without_a_moment_without_the_file(_):
    """Somebody who opens the file all the time while it is saved 150 times finds it each time,
    whole, with its mode."""
    put("f", b"0\n" * 1000, 0o640)
    os.chmod("f", 0o640)
    problems, rounds, done = [], [0], threading.Event()

    def watch():
        while not done.is_set():
            try:
                with opened("f") as fd:
                    status = os.fstat(fd)
                    data = os.read(fd, 100000)
            except OSError as error:
                problems.append(repr(error))
                return
            lines = set(data.split(b"\n"))
            # "" after the last newline, and one number: a mix would have two.
            if len(data) != status.st_size or len(lines) != 2 or stat.S_IMODE(status.st_mode) != 0o640:
                problems.append((status, data[:100], lines))
                return
            rounds[0] += 1

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        saves = 0
        deadline = time.monotonic() + 20
        while (saves < 150 or rounds[0] < 50) and not problems and time.monotonic() < deadline:
            saves += 1
            with opened("f~", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600) as fd:
                os.write(fd, b"%d\n" % saves * (1 + saves % 5 * 500))
                os.fchmod(fd, 0o640)
                os.fsync(fd)
            os.rename("f~", "f")
    finally:
        done.set()
        thread.join()
    assert not problems, problems
    assert rounds[0] >= 50 and saves >= 150, "the check did not see enough"
    assert os.listdir(".") == ["f"]


@check
def fsync_of_a_directory(_):
    os.mkdir("d")
    put("d/f", b"x")
    with opened("d", os.O_RDONLY | os.O_DIRECTORY) as fd:
        os.fsync(fd)
        os.fdatasync(fd)
        os.rename("d/f", "d/g")
        os.fsync(fd)
    assert os.listdir("d") == ["g"]


# --- make, tar, rsync ----------------------------------------------------------------------

@check
def nanosecond_times(_):
    put("f", b"x")
    os.mkdir("d")
    os.symlink("f", "l")
    for name in ("f", "d", "l"):
        for ns in (1_600_000_000_123_456_789, 999_999_999, 0, 2_000_000_000_000_000_001):
            os.utime(name, ns=(ns, ns + 1), follow_symlinks=False)
            status = os.lstat(name)
            assert (status.st_atime_ns, status.st_mtime_ns) == (ns, ns + 1), name
    put("a")
    put("b")
    time.sleep(0.011)  # the kernel's clock for times ticks at 4 or 10 ms
    put("c")
    assert os.stat("c").st_mtime_ns > os.stat("b").st_mtime_ns >= os.stat("a").st_mtime_ns


@check
def write_then_futimens_then_close_keeps_the_time(_):
    """tar, cp -p and rsync: what is still to be flushed at close must not set the time again."""
    for size in (1, 5000, 300_000):
        with opened("f", os.O_RDWR | os.O_CREAT) as fd:
            os.write(fd, b"x" * size)
            os.utime(fd, ns=(10**18, 10**18 + 7))
            assert os.fstat(fd).st_mtime_ns == 10**18 + 7
        assert os.stat("f").st_mtime_ns == 10**18 + 7, size
    with opened("f", os.O_RDWR) as fd, mmap.mmap(fd, 4096) as memory:
        memory[:4] = b"page"
        memory.flush()
        os.utime(fd, ns=(10**18, 10**18 + 8))
    assert os.stat("f").st_mtime_ns == 10**18 + 8
    assert get("f")[:5] == b"pagex"


@check
def utime_omit_and_now(_):
    put("f", b"x")
    os.utime("f", ns=(10**18, 2 * 10**17))
    utimensat("f", (0, UTIME_OMIT), (123, 456))
    assert (os.stat("f").st_atime_ns, os.stat("f").st_mtime_ns) == (10**18, 123_000_000_456)
    utimensat("f", (7, 8), (0, UTIME_OMIT))
    assert (os.stat("f").st_atime_ns, os.stat("f").st_mtime_ns) == (7_000_000_008, 123_000_000_456)
    changed = os.stat("f").st_ctime_ns
    utimensat("f", (0, UTIME_OMIT), (0, UTIME_OMIT))
    assert os.stat("f").st_ctime_ns == changed
    before = time.time_ns()
    utimensat("f", (0, UTIME_NOW), (0, UTIME_OMIT))
    status = os.stat("f")
    assert abs(status.st_atime_ns - before) < 5 * 10**9 and status.st_mtime_ns == 123_000_000_456
    utimensat("f", (0, UTIME_OMIT), (0, UTIME_NOW))
    assert abs(os.stat("f").st_mtime_ns - before) < 5 * 10**9
    with fails(errno.EINVAL):
        utimensat("f", (0, 10**9), (0, 0))


@check
def touch_of_a_dangling_link(_):
    os.symlink("nowhere", "l")
    subprocess.run(["touch", "-h", "-d", "2020-01-02 03:04:05.678901234 UTC", "l"], check=True)
    assert os.lstat("l").st_mtime_ns == 1577934245678901234
    assert os.readlink("l") == "nowhere" and os.listdir(".") == ["l"]
    utimensat("l", (1, 2), (3, 4), AT_SYMLINK_NOFOLLOW)
    assert os.lstat("l").st_mtime_ns == 3_000_000_004
    with fails(errno.ENOENT):
        utimensat("l", (1, 2), (3, 4))


@check
def touch_of_one_time_keeps_the_other(_):
    subprocess.run("touch -t 202001010000 f; touch -a f", shell=True, check=True,
                   env={"TZ": "UTC", "PATH": os.environ["PATH"]})
    assert os.stat("f").st_mtime_ns == 1577836800 * 10**9
    assert os.stat("f").st_atime_ns > 1577836800 * 10**9
    subprocess.run("touch -a -t 202001010000 f; touch -m f", shell=True, check=True,
                   env={"TZ": "UTC", "PATH": os.environ["PATH"]})
    assert os.stat("f").st_atime_ns == 1577836800 * 10**9


# --- package managers ----------------------------------------------------------------------

@check
def unlinked_open_file(_):
    """It is gone from the directory, says so, and stays readable and writable."""
    os.mkdir("d")
    with opened("d/f", os.O_RDWR | os.O_CREAT) as fd:
        os.write(fd, b"before")
        os.unlink("d/f")
        assert os.listdir("d") == [], "litter"
        assert os.fstat(fd).st_nlink == 0
        assert os.write(fd, b" after") == 6
        assert os.pread(fd, 100, 0) == b"before after"
        os.ftruncate(fd, 3)
        assert os.fstat(fd).st_size == 3
        os.rmdir("d")
        assert os.pread(fd, 100, 0) == b"bef"
        os.fsync(fd)
        in_child(lambda: os.pwrite(fd, b"child", 0))
        assert os.pread(fd, 100, 0) == b"child"
    with opened("g", os.O_RDWR | os.O_CREAT) as fd:
        os.write(fd, b"mapped")
        with mmap.mmap(fd, 6) as memory:
            os.unlink("g")
            memory[0:1] = b"M"
            memory.flush()
            assert os.pread(fd, 6, 0) == b"Mapped"
    assert os.listdir(".") == []


@check
def hard_links_share_everything(_):
    put("a", b"one")
    os.mkdir("d")
    os.link("a", "d/b")
    os.link("d/b", "c")

    def agree(links, size, mode):
        seen = {(s.st_ino, s.st_nlink, s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_mode)
                for s in map(os.lstat, ("a", "d/b", "c"))}
        assert len(seen) == 1, seen
        assert os.stat("a").st_nlink == links and os.stat("a").st_size == size
        assert stat.S_IMODE(os.stat("a").st_mode) == mode
    os.chmod("a", 0o644)
    agree(3, 3, 0o644)
    with opened("c", os.O_WRONLY | os.O_APPEND) as fd:
        os.write(fd, b" two")
    agree(3, 7, 0o644)
    assert get("a") == get("d/b") == b"one two"
    os.chmod("d/b", 0o600)
    agree(3, 7, 0o600)
    os.truncate("a", 2)
    agree(3, 2, 0o600)
    os.rename("c", "a")  # names of one file: POSIX says that nothing happens
    assert sorted(os.listdir(".")) == ["a", "c", "d"]
    os.unlink("a")
    assert os.stat("c").st_nlink == 2 and get("d/b") == b"on"


@check
def symbolic_links(_):
    os.mkdir("d")
    put("d/f", b"through")
    os.symlink("d", "dir")
    os.symlink("../d/f", "d/up")
    os.symlink(os.path.abspath("d/f"), "absolute")
    os.symlink("loop", "loop")
    os.symlink("x" * 4095, "long")
    assert get("dir/f") == get("d/up") == get("absolute") == get("dir/up") == b"through"
    assert os.lstat("dir").st_size == 1 and os.readlink("long") == "x" * 4095
    assert os.path.realpath("dir/up") == os.path.abspath("d/f")
    with fails(errno.ELOOP):
        os.open("loop", os.O_RDONLY)
    with fails(errno.ELOOP):
        os.open("absolute", os.O_RDONLY | os.O_NOFOLLOW)
    with fails(errno.EEXIST):
        os.open("loop", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    with fails(errno.ENAMETOOLONG):
        os.open("long", os.O_RDONLY)
    put("absolute", b"written")
    assert get("d/f") == b"written" and os.path.islink("absolute")
    os.symlink("d/new", "creates")
    put("creates", b"made")
    assert get("d/new") == b"made"


@check
def locks_refuse_a_second_holder(_):
    put("f", b"x" * 100)
    with opened("f", os.O_RDWR) as one, opened("f", os.O_RDWR) as two:
        fcntl.flock(one, fcntl.LOCK_EX)
        with fails(errno.EWOULDBLOCK):
            fcntl.flock(two, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with fails(errno.EWOULDBLOCK):
            fcntl.flock(two, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(one, fcntl.LOCK_SH)
        fcntl.flock(two, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(one, fcntl.LOCK_UN)
        fcntl.flock(two, fcntl.LOCK_UN)
    with opened("f", os.O_RDWR) as fd:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 20)

        def second():
            with opened("f", os.O_RDWR) as other:
                with fails(errno.EAGAIN, errno.EACCES):
                    fcntl.lockf(other, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 25)
                with fails(errno.EAGAIN, errno.EACCES):
                    fcntl.lockf(other, fcntl.LOCK_SH | fcntl.LOCK_NB)
                fcntl.lockf(other, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 0)
        in_child(second)
        fcntl.lockf(fd, fcntl.LOCK_UN)

        def second_when_free():
            with opened("f", os.O_RDWR) as other:
                fcntl.lockf(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        in_child(second_when_free)


@check
def locks_of_an_open_file_description(_):
    """F_OFD_SETLK, and that a lock that waits gets its turn."""
    put("f", b"x")
    lock = 37  # F_OFD_SETLK
    whole = fcntl.F_WRLCK.to_bytes(2, "little") + bytes(2 + 4) + bytes(8) + bytes(8) + bytes(8)
    with opened("f", os.O_RDWR) as one, opened("f", os.O_RDWR) as two:
        fcntl.fcntl(one, lock, whole)
        with fails(errno.EAGAIN):
            fcntl.fcntl(two, lock, whole)
    with opened("f", os.O_RDWR) as one:
        fcntl.flock(one, fcntl.LOCK_EX)
        turn = []

        def wait():
            with opened("f", os.O_RDWR) as other:
                fcntl.flock(other, fcntl.LOCK_EX)
                turn.append(True)
        thread = threading.Thread(target=wait)
        thread.start()
        time.sleep(0.05)
        assert not turn
        fcntl.flock(one, fcntl.LOCK_UN)
        thread.join(10)
        assert turn


@check
def shared_mappings_reach_the_file(_):
    size = 3 * 4096 + 100
    put("f", b"-" * size)
    with opened("f", os.O_RDWR) as fd, mmap.mmap(fd, size) as memory:
        memory[5000:5004] = b"mmap"
        memory[size - 3:] = b"end"
        memory.flush()
        assert os.pread(fd, 6, 4999) == b"-mmap-"
        os.pwrite(fd, b"write", 8000)
        assert memory[8000:8005] == b"write", "a write is seen through the mapping"
    data = get("f")
    assert len(data) == size and data[5000:5004] == b"mmap" and data[-3:] == b"end"
    # The last munmap alone writes too, after the descriptor is long closed.
    fd = os.open("f", os.O_RDWR)
    memory = mmap.mmap(fd, size)
    os.close(fd)
    memory[0:4] = b"late"
    memory.close()
    assert get("f")[:5] == b"late-"
    # Two processes with the same mapping are one memory.
    with opened("f", os.O_RDWR) as fd, mmap.mmap(fd, size) as memory:
        def write():
            memory[100:105] = b"child"
        in_child(write)
        assert memory[100:105] == b"child"
        with mmap.mmap(fd, size, flags=mmap.MAP_PRIVATE) as private:
            private[200:204] = b"none"
    assert get("f")[98:107] == b"--child--" and get("f")[200:204] == b"----"


# --- errno by the book ---------------------------------------------------------------------

@check
def errno_of_names_that_exist(_):
    os.mkdir("d")
    put("d/f")
    os.mkdir("full")
    put("full/f")
    for make in (os.mkdir, os.mkfifo, lambda p: os.symlink("x", p), lambda p: os.link("d/f", p),
                 lambda p: os.open(p, os.O_WRONLY | os.O_CREAT | os.O_EXCL),
                 lambda p: renameat2("d/f", p, RENAME_NOREPLACE)):
        for there in ("d", "full/f"):
            with fails(errno.EEXIST):
                make(there)
    with fails(errno.ENOTEMPTY):
        os.rmdir("full")
    with fails(errno.ENOTEMPTY):
        os.rename("d", "full")
    assert get("d/f") == get("full/f") == b""


@check
def errno_of_the_wrong_kind(_):
    os.mkdir("d")
    put("f", b"x")
    os.symlink("f", "l")
    for go in (lambda: os.stat("f/x"), lambda: os.mkdir("f/x"), lambda: os.rmdir("f"),
               lambda: os.listdir("f"), lambda: os.open("f", os.O_RDONLY | os.O_DIRECTORY),
               lambda: os.open("f/x", os.O_WRONLY | os.O_CREAT), lambda: os.stat("f/"),
               lambda: os.unlink("f/x"), lambda: os.rename("d", "f"),
               lambda: os.open("l", os.O_RDONLY | os.O_DIRECTORY)):
        with fails(errno.ENOTDIR):
            go()
    for go in (lambda: os.open("d", os.O_WRONLY), lambda: os.unlink("d"), lambda: os.truncate("d", 0),
               lambda: os.open("d", os.O_RDONLY | os.O_CREAT), lambda: os.rename("f", "d")):
        with fails(errno.EISDIR):
            go()
    with opened("d") as fd, fails(errno.EISDIR):
        os.read(fd, 1)
    with fails(errno.EPERM):
        os.link("d", "hard")
    with fails(errno.EINVAL):
        os.rename("d", "d/x")
    with fails(errno.EINVAL):
        os.readlink("f")
    with fails(errno.ENOENT):
        os.stat("missing")
    with fails(errno.ENOENT):
        os.rename("missing", "x")
    with opened("f") as fd:
        with fails(errno.EBADF):
            os.write(fd, b"x")
        with fails(errno.EINVAL):
            os.lseek(fd, -1, os.SEEK_SET)
        with fails(errno.EINVAL):
            os.ftruncate(fd, 0)
    with fails(errno.EINVAL):
        os.truncate("f", -1)


@check
def errno_of_long_names(_):
    for good in ("n" * 255, "é" * 127 + "n"):
        put(good, b"long")
        assert get(good) == b"long"
        os.rename(good, "s" + good[1:] if good[0] == "n" else "x")
    put("f")
    for bad in ("n" * 256, "é" * 128):
        for go in (lambda: os.stat(bad), lambda: os.mkdir(bad), lambda: os.unlink(bad),
                   lambda: os.open(bad, os.O_WRONLY | os.O_CREAT), lambda: os.rename("f", bad),
                   lambda: os.link("f", bad), lambda: os.symlink("f", bad), lambda: os.rmdir(bad),
                   lambda: os.stat(bad + "/x"), lambda: os.mkfifo(bad)):
            with fails(errno.ENAMETOOLONG):
                go()
    with fails(errno.ENAMETOOLONG):
        os.symlink("t" * 4096, "l")


@check
def errno_across_filesystems(other):
    """OTHER is another filesystem, or another workspace of the same mount."""
    put("f", b"x")
    os.mkdir("d")
    for name in ("f", "d"):
        with fails(errno.EXDEV):
            os.rename(name, os.path.join(other, name))
    with fails(errno.EXDEV):
        os.link("f", os.path.join(other, "f"))
    with fails(errno.EXDEV):
        renameat2("f", os.path.join(other, "f"), RENAME_NOREPLACE)
    assert os.listdir(other) == [] and sorted(os.listdir(".")) == ["d", "f"]
    # What mv does then.
    subprocess.run(["mv", "f", "d", other], check=True)
    assert sorted(os.listdir(other)) == ["d", "f"] and os.listdir(".") == []
    assert get(os.path.join(other, "f")) == b"x"


@check
def renameat2_flags(_):
    put("a", b"a")
    put("b", b"b")
    os.mkdir("d")
    put("d/in", b"in")
    with fails(errno.EEXIST):
        renameat2("a", "b", RENAME_NOREPLACE)
    assert get("b") == b"b"
    renameat2("a", "new", RENAME_NOREPLACE)
    assert get("new") == b"a"
    renameat2("new", "b", RENAME_EXCHANGE)
    assert (get("new"), get("b")) == (b"b", b"a")
    renameat2("new", "d", RENAME_EXCHANGE)
    assert get("d") == b"b" and get("new/in") == b"in"
    with fails(errno.ENOENT):
        renameat2("d", "missing", RENAME_EXCHANGE)
    for flags in (RENAME_NOREPLACE | RENAME_EXCHANGE, RENAME_WHITEOUT | RENAME_EXCHANGE, 64):
        with fails(errno.EINVAL):
            renameat2("d", "b", flags)
    assert sorted(os.listdir(".")) == ["b", "d", "new"]


@check
def hostile_names(_):
    names = [b"new\nline", b"\xff\xfe\x80", b" ", b"-rf", b"\\", b"a\tb", b"%41", b"...", b"\x01\x1b[31m",
             b"\xc3\xa9", b"e\xcc\x81", b"A", b"a", "\N{RIGHT-TO-LEFT OVERRIDE}".encode(), b"~", b"*",
             b".fuse_hidden0", b".git", b"\xed\xa0\x80", b"x" * 255, b"\xff" * 255, b"\n" * 255]
    for i, name in enumerate(names):
        put(name, b"%d" % i)
        os.mkdir(name[:250] + b".dir")
        put(os.path.join(name[:250] + b".dir", name), b"%d" % i)
    listed = os.listdir(b".")
    assert len(listed) == len(set(listed)) == 2 * len(names)
    assert set(listed) == set(names) | {name[:250] + b".dir" for name in names}
    for i, name in enumerate(names):
        assert get(name) == b"%d" % i
        assert os.listdir(name[:250] + b".dir") == [name]
        os.rename(name, b"moved")
        os.symlink(name, name)
        assert os.readlink(name) == name
        os.rename(b"moved", name)
        assert get(name) == b"%d" % i


# --- data ----------------------------------------------------------------------------------

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


# --- users ---------------------------------------------------------------------------------

@check
def permissions_bind_the_owner_too(_):
    """An ordinary user is refused by the mode bits of what is their own."""
    put("f", b"secret")
    os.mkdir("d")
    put("d/f")
    os.chmod("f", 0o000)
    os.chmod("d", 0o000)
    if os.getuid() == 0:
        assert get("f") == b"secret" and os.listdir("d") == ["f"]
        return
    for go in (lambda: get("f"), lambda: os.open("f", os.O_WRONLY), lambda: os.listdir("d"),
               lambda: os.stat("d/f"), lambda: os.unlink("d/f"), lambda: os.rmdir("d/x"),
               lambda: put("d/new")):
        with fails(errno.EACCES):
            go()
    assert not os.access("f", os.R_OK)
    os.chmod("d", 0o500)
    assert os.listdir("d") == ["f"]
    with fails(errno.EACCES):
        os.unlink("d/f")
    with fails(errno.EACCES):
        put("d/new")
    os.chmod("d", 0o700)
    os.chmod("f", 0o200)
    with opened("f", os.O_WRONLY) as fd, fails(errno.EBADF):
        os.read(fd, 1)
    with fails(errno.EACCES):
        os.open("f", os.O_RDWR)


@check
def ownership_is_the_makers(_):
    """Whatever one makes is one's own, and only root gives it away."""
    put("f")
    os.mkdir("d")
    os.symlink("f", "l")
    os.mkfifo("p")
    os.mknod("n", stat.S_IFREG | 0o600)
    os.mknod("s", stat.S_IFSOCK | 0o600)
    for name in ("f", "d", "l", "p", "n", "s"):
        status = os.lstat(name)
        assert (status.st_uid, status.st_gid) == (os.getuid(), os.getgid()), name
        os.chown(name, os.getuid(), os.getgid(), follow_symlinks=False)
        os.chown(name, -1, -1, follow_symlinks=False)
    os.chmod("f", 0o600)
    put("f", b"x")
    if os.getuid() != 0:
        with fails(errno.EPERM):
            os.chown("f", 0, -1)
        with fails(errno.EPERM):
            os.chown("f", -1, 0)


def main(name, directory, other):
    os.umask(0o022)
    os.chdir(directory)
    CHECKS[name](other)


if __name__ == "__main__":
    main(*sys.argv[1:])

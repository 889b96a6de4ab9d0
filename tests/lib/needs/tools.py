"""What git, editors, make, archivers and package managers rely on."""

import errno
import fcntl
import mmap
import os
import stat
import subprocess
import threading
import time

from .base import (AT_SYMLINK_NOFOLLOW, UTIME_NOW, UTIME_OMIT, check, fails, get, in_child,
                   opened, put, utimensat)


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


@check
def git_trusts_what_is_the_users_own(_):
    """git refuses to work in a repository that seems to be somebody else's."""
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_GLOBAL": "/dev/null",
                   "GIT_CONFIG_NOSYSTEM": "1", "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@example.org",
                   "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@example.org"}

    def git(*words):
        result = subprocess.run(["git", *words], env=environment, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr
        return result.stdout
    git("init", "-q", "--template=")
    put("f", b"x\n")
    git("add", ".")
    git("commit", "-qm", "first")
    # What the index remembers is what is there: nothing is read again, nothing is dirty.
    assert git("status", "--porcelain") == "" and git("diff-files", "--name-only") == ""
    os.rename("f", "g")
    assert git("status", "--porcelain").split() == ["D", "f", "??", "g"]


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
    os.symlink("loop", "loop")
    os.symlink("x" * 4095, "long")
    assert get("dir/f") == get("d/up") == get("dir/up") == b"through"
    assert os.lstat("dir").st_size == 1 and os.readlink("long") == "x" * 4095
    assert os.path.realpath("dir/up") == os.path.abspath("d/f")
    with fails(errno.ELOOP):
        os.open("loop", os.O_RDONLY)
    with fails(errno.ELOOP):
        os.open("d/up", os.O_RDONLY | os.O_NOFOLLOW)
    with fails(errno.EEXIST):
        os.open("loop", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    with fails(errno.ENAMETOOLONG):
        os.open("long", os.O_RDONLY)
    put("d/up", b"written")
    assert get("d/f") == b"written" and os.path.islink("d/up")
    os.symlink("d/new", "creates")
    put("creates", b"made")
    assert get("d/new") == b"made"


@check
def absolute_symbolic_links(_):
    """Links to where the tool runs, wherever that is: on a mount, with symlinks=verbatim."""
    put("f", b"through")
    os.symlink(os.path.abspath("f"), "absolute")
    assert get("absolute") == b"through"
    assert os.path.realpath("absolute") == os.path.abspath("f")
    put("absolute", b"written")
    assert get("f") == b"written" and os.path.islink("absolute")


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

"""Every file operation on a mount, with a local directory as the oracle: the same calls in the
same order must give the same answers, errno included, and leave the same tree."""

import ctypes
import errno
import mmap
import os
import stat

import pytest

from lib import harness, kernel_caches, tree

LIBC = ctypes.CDLL(None, use_errno=True)
AT_FDCWD = -100
RENAME_NOREPLACE, RENAME_EXCHANGE, RENAME_WHITEOUT = 1, 2, 4
SEEK_DATA, SEEK_HOLE = 3, 4


class Recorder:
    """Runs calls in a directory and notes what each gave: a value, or the name of the errno."""

    def __init__(self, directory):
        self.directory = os.fsencode(directory)
        self.notes = []

    def path(self, name):
        return os.path.join(self.directory, os.fsencode(name))

    def note(self, what, function, *args, **keywords):
        try:
            value = function(*args, **keywords)
        except OSError as error:
            value = errno.errorcode.get(error.errno, error.errno)
        self.notes.append((what, value))
        return value

    def open(self, name, flags, mode=0o666):
        return self.note(f"open {name!r} {flags:#o}",
                         lambda: os.close(os.open(self.path(name), flags, mode)))

    def stat(self, name):
        def look():
            status = os.lstat(self.path(name))
            size = status.st_size if not stat.S_ISDIR(status.st_mode) else None
            return (oct(status.st_mode), size, status.st_nlink if size is not None else None,
                    status.st_uid, status.st_gid)
        return self.note(f"stat {name!r}", look)

    def write(self, name, data, flags=os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode=0o644):
        def go():
            fd = os.open(self.path(name), flags, mode)
            try:
                return os.write(fd, data)
            finally:
                os.close(fd)
        return self.note(f"write {name!r}", go)

    def read(self, name):
        def go():
            with open(self.path(name), "rb") as file:
                return file.read()
        return self.note(f"read {name!r}", go)

    def list(self, name="."):
        return self.note(f"list {name!r}", lambda: sorted(os.listdir(self.path(name))))

    def renameat2(self, old, new, flags):
        def go():
            if LIBC.renameat2(AT_FDCWD, self.path(old), AT_FDCWD, self.path(new), flags) != 0:
                raise OSError(ctypes.get_errno(), "renameat2")
            return "renamed"
        return self.note(f"renameat2 {old!r} {new!r} {flags}", go)


def create_and_open(r):
    r.write("a", b"hello")
    r.read("a")
    r.stat("a")
    r.open("a", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    r.open("missing", os.O_RDONLY)
    r.open("a/b", os.O_RDONLY)
    r.open("a", os.O_RDONLY | os.O_DIRECTORY)
    r.open(".", os.O_WRONLY)
    r.open("n" * 256, os.O_RDONLY)
    r.open("n" * 256, os.O_WRONLY | os.O_CREAT)
    r.open("n" * 255, os.O_WRONLY | os.O_CREAT)
    r.write(b"line\nfeed \xff\xfe invalid", b"x")
    r.write("\N{SNOWMAN}", b"x", mode=0o600)
    r.list()
    r.write("a", b"xy")
    r.read("a")
    r.open("a", os.O_RDWR | os.O_TRUNC)
    r.stat("a")
    # Made read-only and exclusive, yet writable through its own descriptor: git's objects.
    r.write("locked", b"object", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o444)
    r.stat("locked")
    r.read("locked")


def directories(r):
    r.note("mkdir", os.mkdir, r.path("d"), 0o750)
    r.stat("d")
    r.note("mkdir again", os.mkdir, r.path("d"))
    r.note("mkdir below nothing", os.mkdir, r.path("no/d"))
    r.write("d/f", b"1")
    r.note("rmdir full", os.rmdir, r.path("d"))
    r.note("rmdir file", os.rmdir, r.path("d/f"))
    r.note("unlink directory", os.unlink, r.path("d"))
    r.note("rmdir missing", os.rmdir, r.path("x"))
    r.note("rmdir dot", os.rmdir, r.path("d/."))
    r.note("unlink", os.unlink, r.path("d/f"))
    r.note("unlink again", os.unlink, r.path("d/f"))
    r.note("rmdir", os.rmdir, r.path("d"))
    r.stat("d")
    r.note("deep", os.makedirs, r.path("/".join("deep")))
    r.list("d/e")
    r.note("setgid", os.mkdir, r.path("s"))
    r.note("setgid", os.chmod, r.path("s"), 0o2775)
    r.stat("s")


def renames(r):
    r.write("a", b"a")
    r.write("b", b"bb")
    r.note("mkdir", os.mkdir, r.path("d"))
    r.note("mkdir", os.mkdir, r.path("e"))
    r.write("e/f", b"")
    r.note("over file", os.rename, r.path("a"), r.path("b"))
    r.read("b")
    r.stat("a")
    r.note("into directory", os.rename, r.path("b"), r.path("d/c"))
    r.note("file over directory", os.rename, r.path("d/c"), r.path("e"))
    r.note("directory over file", os.rename, r.path("e"), r.path("d/c"))
    r.note("directory over full one", os.rename, r.path("d"), r.path("e"))
    r.note("into itself", os.rename, r.path("d"), r.path("d/x"))
    r.note("missing", os.rename, r.path("x"), r.path("y"))
    r.note("long", os.rename, r.path("e"), r.path("y" * 256))
    r.note("directory over empty one", os.mkdir, r.path("empty"))
    r.note("directory over empty one", os.rename, r.path("e"), r.path("empty"))
    r.list("empty")
    r.write("p", b"p")
    r.write("q", b"q")
    r.renameat2("p", "q", RENAME_NOREPLACE)
    r.renameat2("p", "new", RENAME_NOREPLACE)
    r.renameat2("new", "q", RENAME_EXCHANGE)
    r.read("q")
    r.read("new")
    r.renameat2("q", "missing", RENAME_EXCHANGE)
    r.renameat2("q", "d", RENAME_EXCHANGE)
    r.list("q")
    r.renameat2("new", "x", RENAME_EXCHANGE | RENAME_NOREPLACE)
    # A renamed directory carries its open children.
    fd = os.open(r.path("q/c"), os.O_RDWR)
    r.note("rename parent", os.rename, r.path("q"), r.path("moved"))
    r.note("pwrite", os.pwrite, fd, b"through", 0)
    os.close(fd)
    r.read("moved/c")


def links(r):
    r.write("a", b"data")
    r.note("link", os.link, r.path("a"), r.path("b"))
    r.stat("a")
    r.note("same", lambda: os.stat(r.path("a")).st_ino == os.stat(r.path("b")).st_ino)
    r.note("link over", os.link, r.path("a"), r.path("b"))
    r.note("link directory", lambda: (os.mkdir(r.path("d")), os.link(r.path("d"), r.path("e"))))
    r.note("append by one name", lambda: open(r.path("b"), "ab").write(b"+"))
    r.read("a")
    r.note("unlink", os.unlink, r.path("a"))
    r.stat("b")
    r.note("symlink", os.symlink, "b", r.path("s"))
    r.note("symlink", os.symlink, "nowhere/at all", r.path("dangling"))
    r.note("symlink", os.symlink, b"\xff\n", r.path("bytes"))
    r.note("symlink", os.symlink, "x" * 4095, r.path("long"))
    r.note("symlink", os.symlink, "x" * 4096, r.path("too long"))
    r.note("symlink over", os.symlink, "b", r.path("b"))
    r.note("loop", os.symlink, "loop", r.path("loop"))
    for name in ("s", "dangling", "bytes", "long"):
        r.note("readlink", os.readlink, r.path(name))
    r.stat("s")
    r.read("s")
    r.read("dangling")
    r.read("loop")
    r.note("readlink of a file", os.readlink, r.path("b"))
    r.note("link a symlink", lambda: os.link(r.path("s"), r.path("s2"), follow_symlinks=False))
    r.note("times of a link", lambda: os.utime(r.path("dangling"), ns=(1, 2), follow_symlinks=False))
    r.note("times of a link", lambda: os.lstat(r.path("dangling")).st_mtime_ns)


def special_files(r):
    r.note("fifo", os.mkfifo, r.path("f"), 0o600)
    r.stat("f")
    r.note("mknod file", os.mknod, r.path("m"), stat.S_IFREG | 0o640)
    r.stat("m")
    r.note("mknod socket", os.mknod, r.path("s"), stat.S_IFSOCK | 0o600)
    r.stat("s")
    r.note("mknod over", os.mknod, r.path("m"), stat.S_IFREG)
    r.open("s", os.O_RDONLY)

    def through():
        reader = os.open(r.path("f"), os.O_RDONLY | os.O_NONBLOCK)
        writer = os.open(r.path("f"), os.O_WRONLY)
        try:
            os.write(writer, b"x")
            return os.read(reader, 10)
        finally:
            os.close(reader)
            os.close(writer)
    r.note("through a fifo", through)


def attributes(r):
    r.write("a", b"12345")
    for mode in (0o600, 0o4755, 0o2755, 0o1644, 0o000, 0o644):
        r.note("chmod", os.chmod, r.path("a"), mode)
        r.stat("a")
    r.note("chmod missing", os.chmod, r.path("x"), 0o600)
    r.note("chown to self", os.chown, r.path("a"), os.getuid(), os.getgid())
    r.note("chown nothing", os.chown, r.path("a"), -1, -1)
    r.note("chmod", os.chmod, r.path("a"), 0o6755)
    r.note("chown clears", os.chown, r.path("a"), os.getuid(), -1)
    r.stat("a")
    r.note("chmod", os.chmod, r.path("a"), 0o6755)
    r.note("chown clears", os.chown, r.path("a"), -1, -1)
    r.stat("a")

    def times(ns):
        os.utime(r.path("a"), ns=ns)
        status = os.stat(r.path("a"))
        return status.st_atime_ns, status.st_mtime_ns
    r.note("utimens", times, (1_000_000_001, 2_123_456_789))
    r.note("utimens before 1970", times, (-1_500_000_000, -1))
    r.note("utimens far", times, (4_000_000_000_000_000_000, 5_000_000_000_000_000_001))

    def futimens():
        fd = os.open(r.path("a"), os.O_RDWR)
        os.write(fd, b"later")
        os.utime(fd, ns=(10, 20))
        os.close(fd)
        status = os.stat(r.path("a"))
        return status.st_atime_ns, status.st_mtime_ns
    r.note("write, futimens, close", futimens)
    for size in (3, 0, 10, 1 << 33, 7):
        r.note("truncate", os.truncate, r.path("a"), size)
        r.stat("a")
    r.read("a")
    r.note("truncate negative", os.truncate, r.path("a"), -1)
    r.note("truncate directory", lambda: (os.mkdir(r.path("d")), os.truncate(r.path("d"), 0)))

    def ftruncate():
        fd = os.open(r.path("a"), os.O_RDWR)
        os.ftruncate(fd, 2)
        size = os.fstat(fd).st_size
        os.close(fd)
        return size
    r.note("ftruncate", ftruncate)
    r.note("access", os.access, r.path("a"), os.R_OK | os.W_OK)
    r.note("access x", os.access, r.path("a"), os.X_OK)
    r.note("umask", lambda: os.umask(0o027) and None)
    r.write("masked", b"", mode=0o666)
    r.note("mkdir", os.mkdir, r.path("masked d"), 0o777)
    r.note("umask", lambda: os.umask(0o022) and None)
    r.stat("masked")
    r.stat("masked d")


def reading_and_writing(r):
    data = bytes(range(256)) * 5000
    r.write("a", data)
    r.note("same", lambda: open(r.path("a"), "rb").read() == data)
    fd = os.open(r.path("a"), os.O_RDWR)
    r.note("pread", os.pread, fd, 100, 255)
    r.note("pread at the end", os.pread, fd, 100, len(data) - 10)
    r.note("pread past the end", os.pread, fd, 100, len(data) + 10)
    r.note("pwrite past the end", os.pwrite, fd, b"far", len(data) + 5000)
    r.note("pread the hole", os.pread, fd, 20, len(data) + 4990)
    r.note("size", lambda: os.fstat(fd).st_size)
    r.note("seek end", os.lseek, fd, 0, os.SEEK_END)
    r.note("seek before", os.lseek, fd, -1, os.SEEK_SET)
    r.note("fsync", os.fsync, fd)
    r.note("fdatasync", os.fdatasync, fd)
    r.note("writev", os.writev, fd, [b"ab", b"", b"cd"])
    r.note("fallocate", os.posix_fallocate, fd, 0, 3_000_000)
    r.note("size", lambda: os.fstat(fd).st_size)
    os.close(fd)
    fd = os.open(r.path("a"), os.O_RDONLY)
    r.note("write to a read-only descriptor", os.write, fd, b"x")
    os.close(fd)
    fd = os.open(r.path("a"), os.O_WRONLY)
    r.note("read from a write-only descriptor", os.read, fd, 1)
    os.close(fd)
    a = os.open(r.path("log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    b = os.open(r.path("log"), os.O_WRONLY | os.O_APPEND)
    for i in range(5):
        r.note("append", os.write, a, b"a%d" % i)
        r.note("append", os.write, b, b"b%d" % i)
    os.close(a)
    os.close(b)
    r.read("log")
    fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
    r.note("read a directory", os.read, fd, 1)
    os.close(fd)
    fd = os.open(r.directory, os.O_RDONLY | os.O_DIRECTORY)
    r.note("fsync of a directory", os.fsync, fd)
    os.close(fd)
    dup = os.open(r.path("dup"), os.O_RDWR | os.O_CREAT, 0o600)
    other = os.dup(dup)
    r.note("write", os.write, dup, b"one")
    os.close(dup)
    r.note("write through the copy", os.write, other, b"two")
    os.close(other)
    r.read("dup")


def holes_and_copies(r):
    def layout(name):
        fd = os.open(r.path(name), os.O_RDONLY)
        try:
            size, at, found = os.fstat(fd).st_size, 0, []
            while at < size:
                try:
                    start = os.lseek(fd, at, SEEK_DATA)
                except OSError as error:
                    found.append(errno.errorcode[error.errno])
                    break
                at = os.lseek(fd, start, SEEK_HOLE)
                found.append((start, at))
            return found
        finally:
            os.close(fd)

    fd = os.open(r.path("sparse"), os.O_RDWR | os.O_CREAT, 0o600)
    r.note("pwrite", os.pwrite, fd, b"x" * 65536, 1 << 20)
    r.note("ftruncate", os.ftruncate, fd, 1 << 22)
    os.fsync(fd)
    os.close(fd)
    r.note("layout", layout, "sparse")
    r.note("blocks", lambda: os.stat(r.path("sparse")).st_blocks < 1024)

    def copy(name, offset, length):
        source = os.open(r.path("sparse"), os.O_RDONLY)
        target = os.open(r.path(name), os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            return os.copy_file_range(source, target, length, offset, 7)
        finally:
            os.close(source)
            os.close(target)
    r.note("copy_file_range", copy, "copy", (1 << 20) - 10, 65536)
    r.read("copy")

    def fallocate(mode, offset, length):
        fd = os.open(r.path("sparse"), os.O_RDWR)
        try:
            if LIBC.fallocate(fd, mode, ctypes.c_long(offset), ctypes.c_long(length)) != 0:
                raise OSError(ctypes.get_errno(), "fallocate")
        finally:
            os.close(fd)
    r.note("punch", fallocate, 3, 1 << 20, 65536)
    r.note("layout", layout, "sparse")
    r.note("keep size", fallocate, 1, 1 << 22, 65536)
    r.note("size", lambda: os.stat(r.path("sparse")).st_size)
    r.note("zero length", fallocate, 0, 0, 0)
    r.note("bad mode", fallocate, 0x1000, 0, 10)


def mapped(r):
    r.write("m", b"-" * 10000)
    with open(r.path("m"), "r+b") as file:
        with mmap.mmap(file.fileno(), 10000) as memory:
            memory[5000:5004] = b"mmap"
            r.note("read while mapped", lambda: memory[4999:5005])
    r.note("written", lambda: open(r.path("m"), "rb").read()[4999:5005])
    fd = os.open(r.path("m"), os.O_RDWR)
    private = mmap.mmap(fd, 10000, flags=mmap.MAP_PRIVATE)
    private[0:1] = b"p"
    private.close()
    os.close(fd)
    r.note("private", lambda: open(r.path("m"), "rb").read(1))
    # The file is open to append as well: its pages must not be appended to it.
    fd = os.open(r.path("m"), os.O_RDWR | os.O_APPEND)
    shared = mmap.mmap(fd, 10000)
    shared[100:103] = b"abc"
    shared.flush()
    shared.close()
    os.close(fd)
    r.stat("m")
    r.note("in place", lambda: open(r.path("m"), "rb").read()[99:104])


def flags_change(r):
    import fcntl
    fd = os.open(r.path("a"), os.O_RDWR | os.O_CREAT, 0o600)
    r.note("write", os.write, fd, b"0123456789")
    fcntl.fcntl(fd, fcntl.F_SETFL, os.O_APPEND)
    os.lseek(fd, 2, os.SEEK_SET)
    r.note("append from now on", os.write, fd, b"AB")
    fcntl.fcntl(fd, fcntl.F_SETFL, 0)
    os.lseek(fd, 2, os.SEEK_SET)
    r.note("no more", os.write, fd, b"xy")
    os.close(fd)
    r.read("a")
    fd = os.open(r.path("b"), os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    r.note("write", os.write, fd, b"0123456789")
    fcntl.fcntl(fd, fcntl.F_SETFL, 0)
    os.lseek(fd, 2, os.SEEK_SET)
    r.note("not to append", os.write, fd, b"xy")
    os.close(fd)
    r.read("b")


def extended_attributes(r):
    r.write("a", b"")
    path = r.path("a")
    r.note("get missing", os.getxattr, path, "user.x")
    r.note("set", os.setxattr, path, "user.x", b"\0value\xff")
    r.note("get", os.getxattr, path, "user.x")
    r.note("create", os.setxattr, path, "user.x", b"", os.XATTR_CREATE)
    r.note("replace", os.setxattr, path, "user.x", b"new", os.XATTR_REPLACE)
    r.note("replace missing", os.setxattr, path, "user.y", b"", os.XATTR_REPLACE)
    r.note("empty", os.setxattr, path, "user.empty", b"")
    r.note("list", lambda: sorted(os.listxattr(path)))
    r.note("remove", os.removexattr, path, "user.x")
    r.note("remove missing", os.removexattr, path, "user.x")
    r.note("list", lambda: sorted(os.listxattr(path)))
    r.note("capability", os.getxattr, path, "security.capability")
    r.note("on a directory", os.setxattr, r.directory, "user.d", b"1")
    r.note("get", os.getxattr, r.directory, "user.d")
    r.note("remove", os.removexattr, r.directory, "user.d")

    def too_small():
        buffer = ctypes.create_string_buffer(1)
        os.setxattr(path, "user.long", b"12345")
        if LIBC.getxattr(path, b"user.long", buffer, 1) < 0:
            raise OSError(ctypes.get_errno(), "getxattr")
    r.note("too small", too_small)


def unlinked_but_open(r):
    fd = os.open(r.path("a"), os.O_RDWR | os.O_CREAT, 0o600)
    r.note("write", os.write, fd, b"before")
    r.note("unlink", os.unlink, r.path("a"))
    r.list()
    r.note("nlink", lambda: os.fstat(fd).st_nlink)
    r.note("write", os.write, fd, b" after")
    r.note("read", os.pread, fd, 100, 0)
    r.note("fchmod", os.fchmod, fd, 0o640)
    r.note("mode", lambda: oct(os.fstat(fd).st_mode))
    r.note("ftruncate", os.ftruncate, fd, 3)
    r.note("read", os.pread, fd, 100, 0)
    r.note("utime", lambda: (os.utime(fd, ns=(1, 2)), os.fstat(fd).st_mtime_ns)[1])
    r.note("fsync", os.fsync, fd)
    r.note("setxattr", os.setxattr, fd, "user.gone", b"1")
    r.note("getxattr", os.getxattr, fd, "user.gone")
    os.close(fd)
    # Replaced by a rename while open, as every editor does.
    r.write("b", b"old")
    r.write("c", b"new")
    fd = os.open(r.path("b"), os.O_RDONLY)
    r.note("replace", os.rename, r.path("c"), r.path("b"))
    r.note("the old", os.read, fd, 10)
    r.note("nlink", lambda: os.fstat(fd).st_nlink)
    os.close(fd)
    r.read("b")
    r.note("mkdir", os.mkdir, r.path("d"))
    fd = os.open(r.path("d"), os.O_RDONLY)
    r.note("rmdir", os.rmdir, r.path("d"))
    r.note("create in a removed directory",
           lambda: os.close(os.open("x", os.O_WRONLY | os.O_CREAT, dir_fd=fd)))
    os.close(fd)
    r.list()


SCENARIOS = [create_and_open, directories, renames, links, special_files, attributes,
             reading_and_writing, holes_and_copies, mapped, flags_change, extended_attributes,
             unlinked_but_open]


@pytest.fixture
def workspace(mount, run_berth):
    run_berth("create", "demo", check=True)
    return mount.path / "demo"


@pytest.mark.matrix
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.__name__)
def test_same_as_a_local_directory(scenario, workspace, tmp_path):
    local = Recorder(tmp_path / "local")
    os.mkdir(local.directory)
    remote = Recorder(workspace)
    old = os.umask(0o022)
    try:
        scenario(local)
        scenario(remote)
    finally:
        os.umask(old)
    assert len(local.notes) > 5
    assert remote.notes == local.notes
    assert tree.describe(workspace, times=False) == tree.describe(local.directory, times=False)


def test_touching_one_time_keeps_the_other(workspace, run):
    file = workspace / "f"
    run(["touch", "-t", "202001010000", str(file)], check=True)
    before = os.stat(file).st_mtime_ns
    run(["touch", "-a", str(file)], check=True)
    after = os.stat(file)
    assert after.st_mtime_ns == before
    assert after.st_atime_ns > before


@pytest.mark.long
def test_directories_of_thousands_survive_deletion_while_reading(workspace):
    directory = workspace / "many"
    directory.mkdir()
    names = {f"file-{i:05}" for i in range(3000)}
    for name in names:
        (directory / name).touch()
    assert {entry.name for entry in os.scandir(directory)} == names
    seen = set()
    with os.scandir(directory) as entries:
        for entry in entries:
            seen.add(entry.name)
            os.unlink(entry.path)
    assert seen == names
    assert os.listdir(directory) == []


def test_inode_numbers_are_those_of_readdir_and_stay(workspace):
    (workspace / "d").mkdir()
    for i in range(20):
        (workspace / "d" / str(i)).touch()
    listed = {entry.name: entry.inode() for entry in os.scandir(workspace / "d")}
    assert listed == {name: os.stat(workspace / "d" / name).st_ino for name in listed}
    assert len(set(listed.values())) == 20
    os.rename(workspace / "d" / "0", workspace / "moved")
    assert os.stat(workspace / "moved").st_ino == listed["0"]


def test_new_files_shrink_and_grow_for_a_second_reader(workspace, service):
    """Changes by others are seen as soon as they are told of."""
    file = workspace / "f"
    file.write_bytes(b"1" * 100)
    assert file.read_bytes() == b"1" * 100
    below = service.root / "workspaces" / "demo" / "tree" / "f"
    below.write_bytes(b"22")
    harness.wait_until(lambda: file.stat().st_size == 2)
    harness.wait_until(lambda: file.read_bytes() == b"22")
    below.with_name("g").write_bytes(b"new")
    os.rename(below.with_name("g"), below)
    harness.wait_until(lambda: file.read_bytes() == b"new")
    below.unlink()
    harness.wait_until(lambda: not file.exists())
    with pytest.raises(FileNotFoundError):
        file.read_bytes()


def test_appending_goes_to_the_end_that_others_made(workspace, service):
    below = service.root / "workspaces" / "demo" / "tree" / "log"
    fd = os.open(workspace / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        for i in range(10):
            assert os.write(fd, b"mount%d " % i) == 7
            with open(below, "ab") as file:
                file.write(b"other%d " % i)
    finally:
        os.close(fd)
    expected = b"".join(b"mount%d other%d " % (i, i) for i in range(10))
    assert below.read_bytes() == (workspace / "log").read_bytes() == expected


def test_locks_hold_between_programs(workspace):
    import fcntl
    (workspace / "f").touch()
    with open(workspace / "f", "r+b") as one, open(workspace / "f", "r+b") as two:
        fcntl.flock(one, fcntl.LOCK_EX)
        with pytest.raises(BlockingIOError):
            fcntl.flock(two, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(one, fcntl.LOCK_UN)
        fcntl.lockf(one, fcntl.LOCK_EX)
        child = os.fork()
        if child == 0:
            try:
                fcntl.lockf(two, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os._exit(1)
            except BlockingIOError:
                os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_no_file_outlives_its_handles_at_the_service(mount, workspace):
    for i in range(200):
        (workspace / f"f{i}").write_bytes(b"x")
    for entry in list(os.scandir(workspace)):
        os.unlink(entry.path)
    harness.wait_until(lambda: mount.stats()["handles"] == 0, what="handles to be released")
    kernel_caches.drop("2")
    harness.wait_until(lambda: mount.stats()["inodes"] < 20, what="inodes to be forgotten")


def test_a_listing_read_ahead_does_not_cut_a_file_that_grew(workspace, service):
    """The driver reads directories ahead, with attributes. When a file was changed since, the
    kernel must not believe them: it would drop pages beyond the old size, written or not."""
    directory = workspace / "many"
    below = service.root / "workspaces" / "demo" / "tree" / "many"
    below.mkdir()
    for i in range(400):
        (below / f"{i:03}").touch()
    order = [entry.name for entry in os.scandir(directory)]
    grown = order[300]
    with os.scandir(directory) as entries:
        next(entries)  # reads ahead
        # Names that the kernel did not know make it go on asking for attributes.
        fd = os.open(directory / grown, os.O_RDWR)
        os.ftruncate(fd, 16384)
        memory = mmap.mmap(fd, 16384)
        memory[8192:8196] = b"kept"
        assert len(list(entries)) == 399
        memory.close()
        os.close(fd)
    assert (below / grown).stat().st_size == 16384
    assert (below / grown).read_bytes()[8192:8196] == b"kept"

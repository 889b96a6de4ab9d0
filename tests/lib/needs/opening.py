"""Ways to open, what a descriptor alone can do, and who is told of changes."""

import ctypes
import errno
import fcntl
import os
import select
import stat
import struct

from .base import AT_FDCWD, LIBC, check, fails, get, libc, opened, put

AT_EMPTY_PATH = 0x1000


@check
def flags_of_open(_):
    put("f", b"x")
    os.mkdir("d")
    os.symlink("f", "l")
    os.symlink("d", "ld")
    for path in ("l", "ld"):
        with fails(errno.ELOOP):
            os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    with fails(errno.ENOTDIR):
        os.open("ld", os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY)
    with fails(errno.ENOTDIR):
        os.open("f", os.O_RDONLY | os.O_DIRECTORY)
    with opened("ld", os.O_RDONLY | os.O_DIRECTORY) as fd:
        assert os.fstat(fd).st_ino == os.stat("d").st_ino
    with fails(errno.EISDIR):
        os.open("d", os.O_WRONLY)
    with fails(errno.EISDIR):
        os.open("d/", os.O_WRONLY | os.O_CREAT)
    with fails(errno.ENXIO):
        os.mkfifo("p")
        os.open("p", os.O_WRONLY | os.O_NONBLOCK)
    # A socket is no file to open, whoever left it there.
    os.mknod("s", stat.S_IFSOCK | 0o600)
    with fails(errno.ENXIO):
        os.open("s", os.O_RDWR)
    # O_TRUNC and O_EXCL mean something with O_CREAT only as the manual says.
    with opened("f", os.O_RDWR | os.O_TRUNC) as fd:
        assert os.fstat(fd).st_size == 0
    with fails(errno.EEXIST):
        os.open("l", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    # The owner may leave access times alone (backups); O_SYNC and O_DSYNC just write.
    put("f", b"before")
    os.utime("f", ns=(10**18, 10**18))
    with opened("f", os.O_RDONLY | os.O_NOATIME) as fd:
        assert os.read(fd, 10) == b"before"
    assert os.stat("f").st_atime_ns == 10**18
    for flag in (os.O_SYNC, os.O_DSYNC, os.O_NONBLOCK, os.O_NOCTTY, os.O_CLOEXEC):
        with opened("f", os.O_WRONLY | flag) as fd:
            assert os.write(fd, b"synced") == 6
    assert get("f") == b"synced"


@check
def descriptors_that_only_name(_):
    """O_PATH: what systemd, container tools and safe path walkers hold."""
    put("f", b"named")
    os.mkdir("d")
    put("d/in", b"in")
    os.symlink("f", "l")
    os.chmod("f", 0o200)
    with opened("f", os.O_PATH) as fd:
        assert os.fstat(fd).st_size == 5
        with fails(errno.EBADF):
            os.read(fd, 1)
        with fails(errno.EBADF):
            os.fchmod(fd, 0o600)
        os.chmod(f"/proc/self/fd/{fd}", 0o600)
        os.rename("f", "g")
        assert get(f"/proc/self/fd/{fd}") == b"named"
    with opened("l", os.O_PATH | os.O_NOFOLLOW) as fd:
        assert stat.S_ISLNK(os.fstat(fd).st_mode)
        assert os.readlink("", dir_fd=fd) == "f"
    with opened("d", os.O_PATH | os.O_DIRECTORY) as fd:
        inner = os.open("in", os.O_RDONLY, dir_fd=fd)
        assert os.read(inner, 5) == b"in"
        os.close(inner)
        os.mkdir("sub", dir_fd=fd)
        os.rename("in", "moved", src_dir_fd=fd, dst_dir_fd=fd)
        os.rename("d", "e")
        assert sorted(os.listdir("e")) == ["moved", "sub"]
        os.unlink("moved", dir_fd=fd)
        os.rmdir("sub", dir_fd=fd)
        with fails(errno.EBADF):
            os.listdir(fd)
        here = os.getcwd()
        os.fchdir(fd)
        assert os.getcwd() == os.path.join(here, "e")
        os.chdir(here)


@check
def places_of_descriptors(_):
    """/proc/self/fd: the path as it is now, and another open of the same file."""
    here = os.getcwd()
    put("f", b"first")
    os.mkdir("d")
    with opened("f", os.O_RDONLY) as fd:
        link = f"/proc/self/fd/{fd}"
        assert os.readlink(link) == os.path.join(here, "f")
        os.rename("f", "d/g")
        assert os.readlink(link) == os.path.join(here, "d/g")
        os.rename("d", "e")
        assert os.readlink(link) == os.path.join(here, "e/g")
        with opened(link, os.O_RDWR) as again:
            os.write(again, b"FIRST")
        assert os.pread(fd, 10, 0) == b"FIRST"
        assert os.stat(link).st_ino == os.fstat(fd).st_ino
        os.unlink("e/g")
        assert os.readlink(link) == os.path.join(here, "e/g (deleted)")
        assert os.stat(link).st_nlink == 0
        put("e/g", b"other")
        with opened(link, os.O_RDWR) as again:
            assert os.read(again, 10) == b"FIRST", "the file that is open, not the one of that name"
            os.pwrite(again, b"L", 0)
        assert os.pread(fd, 10, 0) == b"LIRST" and get("e/g") == b"other"
    os.chdir("e")
    assert os.readlink("/proc/self/cwd") == os.path.join(here, "e")


class FileHandle(ctypes.Structure):
    _fields_ = [("size", ctypes.c_uint), ("type", ctypes.c_int), ("bytes", ctypes.c_ubyte * 128)]


@check
def handles_of_files(_):
    """name_to_handle_at, which backup programs and systemd try: a handle that leads back to the
    file, or a refusal that they know."""
    put("f", b"handle")
    handle, mount = FileHandle(size=128), ctypes.c_int()
    result = LIBC.name_to_handle_at(AT_FDCWD, b"f", ctypes.byref(handle), ctypes.byref(mount), 0)
    if result != 0:
        assert ctypes.get_errno() == errno.EOPNOTSUPP
        return
    small = FileHandle(size=0)
    with fails(errno.EOVERFLOW):
        libc(LIBC.name_to_handle_at, AT_FDCWD, b"f", ctypes.byref(small), ctypes.byref(mount), 0)
    assert 0 < small.size <= 128
    with opened(".", os.O_RDONLY | os.O_DIRECTORY) as fd:
        back = LIBC.open_by_handle_at(fd, ctypes.byref(handle), os.O_RDONLY)
        if back < 0:
            assert ctypes.get_errno() in (errno.EPERM, errno.ESTALE), errno.errorcode[ctypes.get_errno()]
            assert os.getuid() != 0 or ctypes.get_errno() == errno.ESTALE
        else:
            assert os.read(back, 10) == b"handle"
            os.close(back)


FS_IOC_GETFLAGS, FS_IOC_SETFLAGS, FS_IOC_FSGETXATTR = 0x80086601, 0x40086602, 0x801c581f
FS_IOC_FIEMAP, FICLONE, FIONREAD, TCGETS, UNKNOWN = 0xc020660b, 0x40049409, 0x541b, 0x5401, 0x8004b3f7


@check
def ioctls(_):
    """lsattr, chattr, filefrag, cp --reflink, isatty: done, or refused in the words they know."""
    put("f", b"x" * 5000)
    os.mkdir("d")
    for name in ("f", "d"):
        with opened(name) as fd:
            with fails(errno.ENOTTY):
                fcntl.ioctl(fd, TCGETS, bytes(64))
            assert not os.isatty(fd)
            with fails(errno.ENOTTY):
                fcntl.ioctl(fd, UNKNOWN, bytes(4))
            for number, size in ((FS_IOC_GETFLAGS, 8), (FS_IOC_FSGETXATTR, 28)):
                try:
                    fcntl.ioctl(fd, number, bytes(size))
                except OSError as error:
                    assert error.errno == errno.ENOTTY, error
    with opened("f", os.O_RDWR) as fd:
        try:
            flags = struct.unpack("I", fcntl.ioctl(fd, FS_IOC_GETFLAGS, bytes(4)))[0]
            fcntl.ioctl(fd, FS_IOC_SETFLAGS, struct.pack("I", flags))
        except OSError as error:
            assert error.errno == errno.ENOTTY, error
        try:
            fcntl.ioctl(fd, FS_IOC_FIEMAP, struct.pack("QQIIII", 0, 5000, 1, 0, 0, 0))
        except OSError as error:
            assert error.errno in (errno.EOPNOTSUPP, errno.ENOTTY), error
        os.lseek(fd, 1000, os.SEEK_SET)
        assert struct.unpack("i", fcntl.ioctl(fd, FIONREAD, bytes(4))) == (4000,)
        with opened("copy", os.O_RDWR | os.O_CREAT) as target:
            try:
                fcntl.ioctl(target, FICLONE, fd)
            except OSError as error:
                assert error.errno == errno.EOPNOTSUPP, error
    assert os.system("cp --reflink=auto f again && cmp f again") == 0
    assert os.system("cp --reflink=always f never 2>/dev/null") == 0 or os.path.getsize("f") == 5000


IN_NAMES = {0x2: "modify", 0x4: "attrib", 0x8: "close write", 0x40: "moved from", 0x80: "moved to",
            0x100: "create", 0x200: "delete", 0x400: "delete self", 0x800: "move self",
            0x8000: "ignored"}
IN_ISDIR = 0x40000000


class Watch:
    """inotify, as file watchers of editors and build tools use it."""

    def __init__(self, *paths):
        self.fd = LIBC.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        assert self.fd >= 0
        self.names = {}
        for path in paths:
            number = LIBC.inotify_add_watch(self.fd, os.fsencode(path), sum(IN_NAMES))
            assert number >= 0, errno.errorcode[ctypes.get_errno()]
            self.names[number] = path

    def events(self):
        """(path, what, name) of all that came; repeated ones once, since they may be merged."""
        found = []
        while select.select([self.fd], [], [], 0)[0]:
            data, at = os.read(self.fd, 65536), 0
            while at < len(data):
                number, mask, _, size = struct.unpack_from("iIII", data, at)
                name = data[at + 16:at + 16 + size].rstrip(b"\0").decode()
                at += 16 + size
                what = IN_NAMES[mask & 0xffff] + (" directory" if mask & IN_ISDIR else "")
                if not found or found[-1] != (self.names[number], what, name):
                    found.append((self.names[number], what, name))
        return found


@check
def changes_are_told_to_watchers(_):
    """inotify tells a program of what others on this machine do."""
    os.mkdir("d")
    put("d/old", b"x")
    watch = Watch("d")
    with opened("d/f", os.O_WRONLY | os.O_CREAT) as fd:
        os.write(fd, b"data")
    assert watch.events() == [("d", "create", "f"), ("d", "modify", "f"), ("d", "close write", "f")]
    os.chmod("d/f", 0o600)
    assert watch.events() == [("d", "attrib", "f")]
    os.truncate("d/f", 1)
    assert ("d", "modify", "f") in watch.events()
    os.rename("d/f", "d/g")
    assert watch.events() == [("d", "moved from", "f"), ("d", "moved to", "g")]
    os.rename("d/g", "d/old")
    assert watch.events() == [("d", "moved from", "g"), ("d", "moved to", "old")]
    os.mkdir("d/sub")
    os.link("d/old", "d/hard")
    os.symlink("old", "d/soft")
    assert [e for e in watch.events() if e[1] != "attrib"] == \
        [("d", "create directory", "sub"), ("d", "create", "hard"), ("d", "create", "soft")]
    watch_sub = Watch("d/sub", "d/old")
    os.unlink("d/hard")
    os.rmdir("d/sub")
    assert [e for e in watch.events() if e[1] != "attrib"] == \
        [("d", "delete", "hard"), ("d", "delete directory", "sub")]
    assert ("d/sub", "delete self", "") in [(p, w.replace(" directory", ""), n) for p, w, n in watch_sub.events()]
    os.unlink("d/old")
    assert ("d/old", "delete self", "") in watch_sub.events()
    os.close(watch.fd)
    os.close(watch_sub.fd)

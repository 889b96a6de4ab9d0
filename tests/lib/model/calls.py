"""What an actor can be told to do in its directory, which is its root directory too. Each call is
a method; descriptors and mappings have slots instead of numbers, and an empty slot answers EBADF.
What a call returns is the same wherever the same calls have been made before:
no inode numbers, no time of day, no order of listings."""

import ctypes
import errno
import fcntl
import hashlib
import mmap
import os
import random
import stat
import struct
import time

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.restype = ctypes.c_void_p
LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int,
                      ctypes.c_long]
for function in (LIBC.munmap, LIBC.msync):
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int][:3 if function is LIBC.msync else 2]
for function in (LIBC.read, LIBC.write):
    function.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t]
    function.restype = ctypes.c_ssize_t
LIBC.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
LIBC.syscall.restype = ctypes.c_long
SYS_GETDENTS64 = 217 if os.uname().machine == "x86_64" else 61
AT_FDCWD, AT_SYMLINK_NOFOLLOW = -100, 0x100
UTIME_NOW, UTIME_OMIT = (1 << 30) - 1, (1 << 30) - 2
SEEK_DATA, SEEK_HOLE = 3, 4
MAP_SHARED, MAP_PRIVATE, PROT_READ, PROT_WRITE, MS_SYNC = 1, 2, 1, 2, 4
PAGE = 4096
DAY = 86400


def checked(result):
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def data_of(spec):
    """Bytes of (length, seed), none of them zero: what was never written must not look like it."""
    length, seed = spec
    return random.Random(seed).randbytes(length).replace(b"\0", b"\1")


def brief(data):
    """Data as it is shown and compared."""
    if len(data) <= 32:
        return data
    return f"{len(data)} bytes, {hashlib.sha256(data).hexdigest()[:16]}, from {data[:8]!r}"


def moment(seconds, nanoseconds):
    """A time that was set is told exactly, the time of a change only as being that."""
    return "now" if abs(seconds - time.time()) < DAY else (seconds, nanoseconds)


def status(st):
    kind = stat.S_IFMT(st.st_mode)
    return {
        "mode": oct(st.st_mode), "nlink": st.st_nlink, "uid": st.st_uid, "gid": st.st_gid,
        "size": None if kind == stat.S_IFDIR else st.st_size,
        "mtime": moment(*divmod(st.st_mtime_ns, 10 ** 9)),
    }


class Timespec(ctypes.Structure):
    _fields_ = [("sec", ctypes.c_long), ("nsec", ctypes.c_long)]


class Mapping:
    def __init__(self, address, length, offset, place):
        self.address, self.length, self.offset, self.place = address, length, offset, place


class Calls:
    def __init__(self, proc):
        self.proc = proc  # a descriptor of /proc/self/fd, which cannot be reached by name any more
        self.slots, self.mappings = {}, {}
        self.pipe = os.pipe()

    def fd(self, slot):
        if slot not in self.slots:
            raise OSError(errno.EBADF, "empty slot")
        return self.slots[slot]

    def at(self, slot):
        return None if slot is None else self.slots.get(slot, -1)

    def _keep(self, slot, fd):
        self.close_quietly(slot)
        self.slots[slot] = fd

    def close_quietly(self, slot):
        if slot in self.slots:
            os.close(self.slots.pop(slot))

    # -- descriptors --

    def open(self, slot, at, path, flags, mode=0o644):
        # Never wait for the other end of a FIFO.
        self._keep(slot, os.open(path, flags | os.O_NONBLOCK, mode, dir_fd=self.at(at)))

    def close(self, slot):
        fd = self.fd(slot)
        del self.slots[slot]
        os.close(fd)

    def dup(self, slot, new):
        self._keep(new, os.dup(self.fd(slot)))

    def append(self, slot, on):
        fd = self.fd(slot)
        flags = fcntl.fcntl(fd, fcntl.F_GETFL)
        fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_APPEND if on else flags & ~os.O_APPEND)

    def read(self, slot, size):
        return brief(os.read(self.fd(slot), size))

    def pread(self, slot, size, offset):
        return brief(os.pread(self.fd(slot), size, offset))

    def write(self, slot, data):
        fd = self.fd(slot)
        written = os.write(fd, data_of(data))
        if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_APPEND:
            # The position after an append is where the kernel believed the end to be.
            os.lseek(fd, 0, os.SEEK_END)
        return written

    def pwrite(self, slot, data, offset):
        return os.pwrite(self.fd(slot), data_of(data), offset)

    def lseek(self, slot, offset, whence):
        if stat.S_ISDIR(os.fstat(self.fd(slot)).st_mode):
            return "positions in directories are each filesystem's own"
        return os.lseek(self.fd(slot), offset, whence)

    def ftruncate(self, slot, size):
        os.ftruncate(self.fd(slot), size)

    def truncate(self, path, size):
        os.truncate(path, size)

    def fallocate(self, slot, mode, offset, length):
        checked(LIBC.fallocate(self.fd(slot), mode, offset, length))

    def copy(self, slot, offset, target, target_offset, length):
        """copy_file_range until all is copied, since how much one call copies is not promised."""
        done = 0
        while done < length:
            count = os.copy_file_range(
                self.fd(slot), self.fd(target), length - done,
                None if offset is None else offset + done,
                None if target_offset is None else target_offset + done)
            if count == 0:
                break
            done += count
        return done

    def sendfile(self, slot, target, offset, size):
        return os.sendfile(self.fd(target), self.fd(slot), offset, size)

    def fsync(self, slot):
        os.fsync(self.fd(slot))

    def fdatasync(self, slot):
        os.fdatasync(self.fd(slot))

    def fstat(self, slot):
        return status(os.fstat(self.fd(slot)))

    def fchmod(self, slot, mode):
        os.fchmod(self.fd(slot), mode)

    # -- names --

    def rename(self, at, old, new_at, new, flags=0):
        checked(LIBC.renameat2(AT_FDCWD if at is None else self.at(at), old,
                               AT_FDCWD if new_at is None else self.at(new_at), new, flags))

    def link(self, at, old, new_at, new, follow=False):
        os.link(old, new, src_dir_fd=self.at(at), dst_dir_fd=self.at(new_at), follow_symlinks=follow)

    def symlink(self, text, at, path):
        os.symlink(text, path, dir_fd=self.at(at))

    def readlink(self, at, path):
        return os.readlink(path, dir_fd=self.at(at))

    def unlink(self, at, path):
        os.unlink(path, dir_fd=self.at(at))

    def rmdir(self, at, path):
        os.rmdir(path, dir_fd=self.at(at))

    def mkdir(self, at, path, mode=0o755):
        os.mkdir(path, mode, dir_fd=self.at(at))

    def mknod(self, at, path, mode):
        os.mknod(path, mode, dir_fd=self.at(at))

    def chdir(self, path):
        os.chdir(path)

    def fchdir(self, slot):
        os.fchdir(self.fd(slot))

    def getcwd(self):
        return os.getcwdb()

    # -- attributes --

    def stat(self, at, path, follow=True):
        return status(os.stat(path, dir_fd=self.at(at), follow_symlinks=follow))

    def access(self, at, path, mode):
        return os.access(path, mode, dir_fd=self.at(at))

    def chmod(self, at, path, mode):
        os.chmod(path, mode, dir_fd=self.at(at))

    def chown(self, at, path, follow):
        """To whom it belongs already: the one change of owners that every mount has."""
        os.chown(path, os.getuid(), -1, dir_fd=self.at(at), follow_symlinks=follow)

    def utimens(self, at, path, atime, mtime, follow):
        """path None: of the descriptor itself. Each time is (seconds, nanoseconds), which may be
        UTIME_NOW or UTIME_OMIT."""
        fd = AT_FDCWD if at is None else self.fd(at)
        times = (Timespec * 2)(Timespec(*atime), Timespec(*mtime))
        checked(LIBC.utimensat(fd, path, times, 0 if follow or path is None else AT_SYMLINK_NOFOLLOW))
        st = os.fstat(fd) if path is None else os.stat(path, dir_fd=self.at(at), follow_symlinks=follow)
        # Reading may have changed the access time, on a mount at another moment than locally.
        return (None if atime[1] == UTIME_OMIT else moment(*divmod(st.st_atime_ns, 10 ** 9)),
                moment(*divmod(st.st_mtime_ns, 10 ** 9)))

    def setxattr(self, path, name, value, flags, follow=True):
        """path here and in its kin: a path, or a slot."""
        os.setxattr(self._file(path), name, data_of(value), flags, **self._follow(path, follow))

    def getxattr(self, path, name, follow=True):
        return brief(os.getxattr(self._file(path), name, **self._follow(path, follow)))

    def listxattr(self, path, follow=True):
        return sorted(os.listxattr(self._file(path), **self._follow(path, follow)))

    def removexattr(self, path, name, follow=True):
        os.removexattr(self._file(path), name, **self._follow(path, follow))

    def _file(self, path):
        return path if isinstance(path, bytes) else self.fd(path)

    @staticmethod
    def _follow(path, follow):
        return {"follow_symlinks": follow} if isinstance(path, bytes) else {}

    def statvfs(self, path):
        st = os.statvfs(path)
        assert 0 < st.f_bavail <= st.f_bfree <= st.f_blocks and st.f_bsize > 0 and st.f_frsize > 0, st
        return st.f_namemax

    # -- directories --

    def list(self, at, path):
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY, dir_fd=self.at(at))
        try:
            return sorted(self._entries(fd, 32768))
        finally:
            os.close(fd)

    @staticmethod
    def _page(fd, size):
        """One getdents64: names with their type and inode number."""
        buffer = ctypes.create_string_buffer(size)
        length = checked(LIBC.syscall(SYS_GETDENTS64, fd, buffer, size))
        found, at = [], 0
        while at < length:
            number, _, record, kind = struct.unpack_from("=QqHB", buffer, at)
            name = buffer.raw[at + 19:at + record].split(b"\0", 1)[0]
            found.append((name, kind, number))
            at += record
        return found

    def _entries(self, fd, size):
        found = []
        while page := self._page(fd, size):
            found += [(name, kind) for name, kind, _ in page]
        return found

    def list_changing(self, path, count, keep):
        """Makes a directory of `count` files, and lists it in small pages while all but every
        keep-th file is removed and others are made: what was there all the time is listed once,
        and nothing twice. What is left is removed too."""
        os.mkdir(path)
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            names = [b"%03d" % i for i in range(count)]
            for name in names:
                os.close(os.open(name, os.O_CREAT | os.O_WRONLY, dir_fd=fd))
            kept = {name for i, name in enumerate(names) if i % keep == 0}
            seen, doomed, made = [], [name for name in names if name not in kept], []
            while page := self._page(fd, 280):
                seen += [name for name, _, _ in page]
                for _ in range(3):
                    if doomed:
                        os.unlink(doomed.pop(), dir_fd=fd)
                if len(made) < count:
                    made.append(b"new%03d" % len(made))
                    os.close(os.open(made[-1], os.O_CREAT | os.O_WRONLY, dir_fd=fd))
            assert len(seen) == len(set(seen)), f"listed twice: {sorted(seen)}"
            assert kept | {b".", b".."} <= set(seen), f"not listed: {sorted(kept - set(seen))}"
            assert set(seen) <= set(names) | set(made) | {b".", b".."}
            for name in kept | set(doomed) | set(made):
                os.unlink(name, dir_fd=fd)
            os.lseek(fd, 0, os.SEEK_SET)
            assert sorted(name for name, _ in self._entries(fd, 280)) == [b".", b".."]
        finally:
            os.close(fd)
        os.rmdir(path)

    # -- mappings --

    def map(self, m, slot, writable, offset, length, private=False):
        fd = self.fd(slot)
        address = LIBC.mmap(None, length, PROT_READ | (PROT_WRITE if writable else 0),
                            MAP_PRIVATE if private else MAP_SHARED, fd, offset)
        if address in (None, ctypes.c_void_p(-1).value):
            checked(-1)
        self.unmap_quietly(m)
        # Tells the file's size, which others change, without holding it open.
        place = os.open(str(fd), os.O_PATH, dir_fd=self.proc)
        self.mappings[m] = Mapping(address, length, offset, place)

    def unmap_quietly(self, m):
        if m in self.mappings:
            self.unmap(m)

    def unmap(self, m):
        mapping = self.mappings.pop(m, None)
        if mapping is None:
            return "nothing mapped"
        os.close(mapping.place)
        checked(LIBC.munmap(mapping.address, mapping.length))
        return None

    def _window(self, m, offset, size):
        """The address, or None where nothing is mapped or the file has no bytes. What is beyond
        its end in its last page belongs to nobody."""
        mapping = self.mappings.get(m)
        if mapping is None or offset + size > mapping.length:
            return None
        if mapping.offset + offset + size > os.fstat(mapping.place).st_size:
            return None
        return mapping.address + offset

    # Through a pipe: the kernel copies with page faults as a program's own load or store has
    # them, and says EFAULT where that would be SIGBUS.

    def mapread(self, m, offset, size):
        address = self._window(m, offset, size)
        if address is None:
            return "outside"
        checked(LIBC.write(self.pipe[1], address, size))
        return brief(os.read(self.pipe[0], size))

    def mapwrite(self, m, offset, data):
        content = data_of(data)
        address = self._window(m, offset, len(content))
        if address is None:
            return "outside"
        os.write(self.pipe[1], content)
        return checked(LIBC.read(self.pipe[0], address, len(content)))

    def msync(self, m):
        mapping = self.mappings.get(m)
        if mapping is None:
            return "nothing mapped"
        checked(LIBC.msync(mapping.address, mapping.length, MS_SYNC))
        return None

    def store(self, slot, offset, data):
        """A store in a mapping that lives for that long only, synchronised."""
        content = data_of(data)
        start = offset // PAGE * PAGE
        self.map("store", slot, True, start, offset - start + len(content))
        try:
            stored = self.mapwrite("store", offset - start, data)
            self.msync("store")
            return stored
        finally:
            self.unmap("store")

    # -- without the kernel's cache; offset and size are whole pages --

    def direct_read(self, slot, size, offset):
        with mmap.mmap(-1, max(size, PAGE)) as buffer, memoryview(buffer)[:size] as view:
            return brief(bytes(view[:os.preadv(self.fd(slot), [view], offset)]))

    def direct_write(self, slot, data, offset):
        size = data[0]
        with mmap.mmap(-1, max(size, PAGE)) as buffer, memoryview(buffer)[:size] as view:
            view[:] = data_of(data)
            return os.pwritev(self.fd(slot), [view], offset)

    # -- everything --

    def barrier(self):
        """What makes this actor's changes certain to be seen by all others: see pairs.py."""
        fd = os.open(b"/", os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def look(self):
        """The whole tree, and what is open. Hard links are told by the first path of their file."""
        self.first, tree = {}, {}
        self._look_at(b"/", tree)
        for slot, fd in sorted(self.slots.items()):
            tree[f"slot {slot}"] = self._look_at_descriptor(fd)
        return tree

    @staticmethod
    def _tried(function, *args):
        """What it returns, or the name of the errno."""
        try:
            return function(*args)
        except OSError as error:
            return errno.errorcode[error.errno]

    def _look_at(self, path, tree):
        st = os.lstat(path)
        entry = tree[path] = status(st)
        kind = stat.S_IFMT(st.st_mode)
        entry["first"] = self.first.setdefault((st.st_dev, st.st_ino), path)
        if kind == stat.S_IFLNK:
            entry["text"] = brief(os.readlink(path))
        else:
            entry["xattrs"] = self._tried(self._xattrs, path)
        if kind == stat.S_IFREG:
            entry["content"] = self._tried(self._content_at, path)
        if kind == stat.S_IFDIR:
            entry["below"] = self._tried(self._look_below, path, tree)

    @staticmethod
    def _xattrs(path):
        return {name: brief(os.getxattr(path, name)) for name in sorted(os.listxattr(path))}

    def _content_at(self, path):
        fd = os.open(path, os.O_RDONLY)
        try:
            return self._content(fd)
        finally:
            os.close(fd)

    def _look_below(self, path, tree):
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            entries = []
            while page := self._page(fd, 32768):
                entries += page
        finally:
            os.close(fd)
        names = sorted(name for name, _, _ in entries)
        assert len(names) == len(set(names)), f"listed twice: {names}"
        for name, listed, number in sorted(entries):
            if name in (b".", b".."):
                continue
            below = os.path.join(path, name)
            self._look_at(below, tree)
            found = os.lstat(below)
            assert stat.S_IFMT(found.st_mode) == listed << 12, f"{below}: listed as type {listed}"
            assert found.st_ino == number, f"{below}: listed as inode {number}, is {found.st_ino}"
        return names

    def _look_at_descriptor(self, fd):
        st = os.fstat(fd)
        entry = status(st)
        entry["first"] = self.first.get((st.st_dev, st.st_ino))
        if stat.S_ISREG(st.st_mode):
            entry["content"] = self._tried(self._content, fd, not self.mappings)
            entry["position"] = self._tried(os.lseek, fd, 0, os.SEEK_CUR)
        return entry

    def size(self, path):
        return os.stat(path).st_size

    def content(self, slot):
        return self._content(self.fd(slot), not self.mappings)

    @staticmethod
    def _content(fd, holes=True):
        """Size and bytes agree, and no hole is claimed where bytes are. What a mapping stored and has
        not synchronised may be told as a hole, unless the file was opened since."""
        size, content, data = os.fstat(fd).st_size, b"", b""
        if size > 1 << 26:
            return "large"
        while part := os.pread(fd, size + 1 - len(content), len(content)):
            content += part
        assert len(content) == size, f"{len(content)} bytes of a file of {size}"
        if not holes:
            return brief(content)
        at, position = 0, os.lseek(fd, 0, os.SEEK_CUR)
        try:
            while at < size:
                start = os.lseek(fd, at, SEEK_DATA)
                end = os.lseek(fd, start, SEEK_HOLE)
                assert start < end <= size, (start, end, size)
                assert not content[at:start].strip(b"\0"), f"data in the hole from {at} to {start}"
                at = end
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            assert not content[at:].strip(b"\0"), f"data in the hole from {at}"
        finally:
            os.lseek(fd, position, os.SEEK_SET)
        return brief(content)

"""Ways to move bytes beyond read and write, space, and sizes that do not fit 32 bits."""

import ctypes
import errno
import mmap
import os
import resource
import signal
import socket
import struct
import subprocess
import tempfile

from .base import LIBC, SEEK_DATA, SEEK_HOLE, check, fails, get, libc, opened, put

KEEP_SIZE, PUNCH_HOLE, COLLAPSE_RANGE, ZERO_RANGE, INSERT_RANGE, UNSHARE_RANGE = 1, 2, 8, 16, 32, 64
MIB = 1 << 20


@check
def vectors(_):
    """readv, writev, preadv2 and pwritev2 with the flags that there are."""
    with opened("f", os.O_RDWR | os.O_CREAT) as fd:
        assert os.writev(fd, [b"one", b"", b"two" * 3000, b"three"]) == 3 + 9000 + 5
        parts = [bytearray(2), bytearray(0), bytearray(9000), bytearray(100)]
        assert os.preadv(fd, parts, 1) == 9007
        assert b"".join(parts)[:9007] == b"ne" + b"two" * 3000 + b"three"
        assert os.pwritev(fd, [b"AB", b"C"], 5000) == 3
        assert os.pread(fd, 5, 4999) == (b"one" + b"two" * 3000)[4999:5000] + b"ABC" \
            + (b"one" + b"two" * 3000)[5003:5004]
        for flag in (os.RWF_DSYNC, os.RWF_SYNC):
            assert os.pwritev(fd, [b"sync"], 0, flag) == 4
        assert os.pwritev(fd, [b"!"], 0, os.RWF_APPEND) == 1
        assert os.fstat(fd).st_size == 9009
        assert os.pread(fd, 4, 0) == b"sync" and os.pread(fd, 2, 9007) == b"e!"
        # "Only if it does not wait": done, in part, or refused; never an error of another kind.
        buffer = bytearray(4)
        try:
            assert os.preadv(fd, [buffer], 0, os.RWF_NOWAIT) == 4 and buffer == b"sync"
        except OSError as error:
            assert error.errno in (errno.EAGAIN, errno.EOPNOTSUPP), error
        with fails(errno.EOPNOTSUPP):
            os.preadv(fd, [buffer], 0, 1 << 20)
        with fails(errno.EINVAL):
            os.writev(fd, [b"x"] * 1025)
        os.lseek(fd, 0, os.SEEK_SET)
        assert os.readv(fd, [bytearray(4)]) == 4 and os.lseek(fd, 0, os.SEEK_CUR) == 4


class Iovec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("len", ctypes.c_size_t)]


@check
def without_copies(_):
    """sendfile, splice, tee and vmsplice from files and into them."""
    data = os.urandom(300_000)
    put("f", data)
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    with ours, theirs, opened("f") as fd, opened("g", os.O_RDWR | os.O_CREAT) as out:
        sent = received = 0
        while sent < len(data):
            count = os.sendfile(ours.fileno(), fd, sent, min(50_000, len(data) - sent))
            assert count > 0
            sent += count
            while received < sent:
                block = theirs.recv(65536)
                assert block == data[received:received + len(block)]
                received += len(block)
        assert os.sendfile(ours.fileno(), fd, len(data), 10) == 0
        sent = 0
        while count := os.sendfile(out, fd, sent, len(data)):  # file to file, as install(1) may
            sent += count
        assert os.pread(out, len(data) + 1, 0) == data
    reader, writer = os.pipe()
    reader2, writer2 = os.pipe()
    try:
        with opened("f") as fd, opened("h", os.O_RDWR | os.O_CREAT) as out:
            done = 0
            while count := os.splice(fd, writer, 16384):
                assert LIBC.tee(reader, writer2, ctypes.c_size_t(count), 0) == count
                left = count
                while left:
                    left -= os.splice(reader, out, left)
                copy = b""
                while len(copy) < count:
                    copy += os.read(reader2, count - len(copy))
                assert copy == data[done:done + count]
                done += count
            assert done == len(data) and os.pread(out, done + 1, 0) == data
            # At an offset of its own; the descriptor's stays.
            assert os.splice(fd, writer, 100, offset_src=1000) == 100
            assert os.splice(reader, out, 100, offset_dst=5) == 100
            assert os.pread(out, 100, 5) == data[1000:1100]
            assert os.lseek(fd, 0, os.SEEK_CUR) == len(data)
            memory = mmap.mmap(-1, 8192)
            memory[:8192] = b"vm" * 4096
            address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
            assert LIBC.vmsplice(writer, ctypes.byref(Iovec(address, 8192)), ctypes.c_ulong(1), 0) == 8192
            left = 8192
            while left:
                left -= os.splice(reader, out, left, offset_dst=8192 - left)
            assert os.pread(out, 8192, 0) == b"vm" * 4096
        with opened("f", os.O_WRONLY | os.O_APPEND) as fd:
            os.write(writer, b"x")
            with fails(errno.EINVAL):
                os.splice(reader, fd, 1)
    finally:
        for fd in (reader, writer, reader2, writer2):
            os.close(fd)


class Ring:
    """io_uring with one entry at a time, by system call: what a runtime does with many."""

    def __init__(self):
        parameters = ctypes.create_string_buffer(120)
        self.fd = LIBC.syscall(425, 4, parameters)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "io_uring_setup")
        entries, completions = struct.unpack_from("II", parameters)
        submit = struct.unpack_from("8I", parameters, 40)   # head tail mask entries flags dropped array
        complete = struct.unpack_from("6I", parameters, 80)  # head tail mask entries overflow cqes
        self.sq = mmap.mmap(self.fd, submit[6] + 4 * entries, offset=0)
        self.cq = mmap.mmap(self.fd, complete[5] + 16 * completions, offset=0x8000000)
        self.entries = mmap.mmap(self.fd, 64 * entries, offset=0x10000000)
        self.sq_tail, self.sq_mask, self.sq_array = submit[1], submit[2], submit[6]
        self.cq_head, self.cq_tail, self.cq_mask, self.cqes = complete[0], complete[1], complete[2], complete[5]

    def close(self):
        for memory in (self.sq, self.cq, self.entries):
            memory.close()
        os.close(self.fd)

    def call(self, operation, fd, offset=0, address=0, length=0, flags=0):
        """One operation to its end; its result, negative for an error."""
        tail, = struct.unpack_from("I", self.sq, self.sq_tail)
        mask, = struct.unpack_from("I", self.sq, self.sq_mask)
        at = tail & mask
        self.entries[64 * at:64 * at + 64] = struct.pack("BBHiQQIIQ24x", operation, 0, 0, fd, offset, address,
                                                         length, flags, 4711)
        struct.pack_into("I", self.sq, self.sq_array + 4 * at, at)
        struct.pack_into("I", self.sq, self.sq_tail, tail + 1)
        assert LIBC.syscall(426, self.fd, 1, 1, 1, None, 0) == 1
        head, = struct.unpack_from("I", self.cq, self.cq_head)
        assert struct.unpack_from("I", self.cq, self.cq_tail) == (head + 1,)
        mask, = struct.unpack_from("I", self.cq, self.cq_mask)
        tag, result = struct.unpack_from("Qi", self.cq, self.cqes + 16 * (head & mask))
        struct.pack_into("I", self.cq, self.cq_head, head + 1)
        assert tag == 4711
        return result


@check
def io_uring(_):
    """Reads, writes and fsync as runtimes with io_uring do them, where the kernel lets them."""
    try:
        ring = Ring()
    except OSError as error:
        assert error.errno in (errno.ENOSYS, errno.EPERM), error  # turned off: kernel.io_uring_disabled
        return
    fsync, read, write = 3, 22, 23
    memory = mmap.mmap(-1, 65536)
    anchor = ctypes.c_char.from_buffer(memory)
    address = ctypes.addressof(anchor)
    with opened("f", os.O_RDWR | os.O_CREAT) as fd:
        memory[:] = b"ring" * 16384
        for i in range(4):
            assert ring.call(write, fd, i * 65536, address, 65536) == 65536
        assert ring.call(fsync, fd) == 0
        memory[:] = bytes(65536)
        assert ring.call(read, fd, 3 * 65536 - 2, address, 65536) == 65536
        assert memory[:8] == b"ngringri"
        assert ring.call(read, fd, 4 * 65536, address, 65536) == 0
        assert ring.call(read, fd, 4 * 65536 - 5, address, 65536) == 5
        assert ring.call(read, 999999, 0, address, 1) == -errno.EBADF
    with opened("f") as fd:
        assert ring.call(write, fd, 0, address, 1) == -errno.EBADF
    assert get("f") == b"ring" * 65536
    ring.close()


def fallocate(fd, mode, offset, length):
    libc(LIBC.fallocate, fd, mode, ctypes.c_long(offset), ctypes.c_long(length))


@check
def space_is_given_and_taken(_):
    """fallocate: what is done is done right, what is not is refused and changes nothing."""
    with opened("f", os.O_RDWR | os.O_CREAT) as fd:
        fallocate(fd, 0, 0, 4 * MIB)
        status = os.fstat(fd)
        assert status.st_size == 4 * MIB and status.st_blocks * 512 >= 4 * MIB
        fallocate(fd, KEEP_SIZE, 4 * MIB, MIB)
        assert os.fstat(fd).st_size == 4 * MIB and os.fstat(fd).st_blocks * 512 >= 5 * MIB
        os.pwrite(fd, b"x" * (4 * MIB), 0)
        os.fsync(fd)
        before = os.fstat(fd).st_blocks
        fallocate(fd, PUNCH_HOLE | KEEP_SIZE, MIB, MIB)
        assert os.fstat(fd).st_blocks <= before - 2048 + 16
        assert os.pread(fd, MIB + 2, MIB - 1) == b"x" + bytes(MIB) + b"x"
        assert os.lseek(fd, 0, SEEK_HOLE) == MIB and os.lseek(fd, MIB, SEEK_DATA) == 2 * MIB
        expected = b"x" * MIB + bytes(MIB) + b"x" * (2 * MIB)
        for mode, offset, length, change in (
                (ZERO_RANGE, 3 * MIB, MIB, lambda d: d[:3 * MIB] + bytes(MIB)),
                (COLLAPSE_RANGE, MIB, MIB, lambda d: d[:MIB] + d[2 * MIB:]),
                (INSERT_RANGE, MIB, MIB, lambda d: d[:MIB] + bytes(MIB) + d[MIB:]),
                (UNSHARE_RANGE, 0, MIB, lambda d: d)):
            try:
                fallocate(fd, mode, offset, length)
                expected = change(expected)
            except OSError as error:
                assert error.errno == errno.EOPNOTSUPP, (mode, error)
            assert os.fstat(fd).st_size == len(expected), mode
            assert os.pread(fd, len(expected) + 1, 0) == expected, mode
        for mode, offset, length, number in (
                (PUNCH_HOLE, 0, MIB, errno.EOPNOTSUPP), (0, 0, 0, errno.EINVAL), (0, -1, 10, errno.EINVAL),
                (0, 0, -1, errno.EINVAL), (0, 2**63 - 10, 100, errno.EFBIG)):
            with fails(number):
                fallocate(fd, mode, offset, length)
    with opened("f") as fd, fails(errno.EBADF):
        fallocate(fd, 0, 0, 10)
    with opened(".", os.O_RDONLY | os.O_DIRECTORY) as fd, fails(errno.EBADF):
        fallocate(fd, 0, 0, 10)


@check
def holes_stay_holes(_):
    """cp --sparse, tar -S and rsync -S carry a file with holes over and back, no larger than it was."""
    with opened("f", os.O_RDWR | os.O_CREAT) as fd:
        os.ftruncate(fd, 5 * MIB)
        for i in (1, 4):
            os.pwrite(fd, b"data" * 16384, i * MIB)
        os.fsync(fd)
    data = get("f")
    used = os.stat("f").st_blocks
    assert used * 512 < MIB
    for how in ("auto", "always", "never"):
        subprocess.run(["cp", f"--sparse={how}", "f", how], check=True)
    subprocess.run("tar -cSf - f | tar -xSf - --transform s/f/untarred/", shell=True, check=True)
    subprocess.run(["rsync", "-S", "f", "synced"], check=True)
    for name in ("auto", "always", "untarred", "synced"):
        with opened(name) as fd:
            os.fsync(fd)
        assert get(name) == data, name
        assert os.stat(name).st_blocks * 512 < MIB, (name, os.stat(name).st_blocks)
    assert get("never") == data


@check
def sizes_beyond_32_bits(_):
    far = [2**32 - 3, 2**32 + 5, 2**40, 2**41 + 1]
    with opened("f", os.O_RDWR | os.O_CREAT) as fd:
        for i, offset in enumerate(far):
            assert os.pwrite(fd, b"far%d" % i, offset) == 4
        size = far[-1] + 4
        assert os.fstat(fd).st_size == os.stat("f").st_size == size
        assert os.lseek(fd, 0, os.SEEK_END) == size
        for i, offset in enumerate(far):
            assert os.pread(fd, 8, offset - 2).strip(b"\0") == b"far%d" % i
            assert os.lseek(fd, offset - 4096, SEEK_DATA) <= offset
        assert os.pread(fd, 100, size) == b""
        assert os.lseek(fd, 2**33, SEEK_DATA) > 2**39
        with mmap.mmap(fd, 8192, offset=2**40) as memory:
            assert memory[:4] == b"far2"
            memory[100:104] = b"page"
        assert os.pread(fd, 4, 2**40 + 100) == b"page"
        assert os.copy_file_range(fd, fd, 4, 2**40, 2**33) == 4
        assert os.pread(fd, 4, 2**33) == b"far2"
        fallocate(fd, PUNCH_HOLE | KEEP_SIZE, 2**32, 2**34)
        assert os.pread(fd, 4, 2**33) == bytes(4) and os.pread(fd, 3, 2**32 - 3) == b"far"
        os.ftruncate(fd, 2**40 + 2)
        assert os.fstat(fd).st_size == 2**40 + 2
        assert os.fstat(fd).st_blocks < 1000
        assert os.pread(fd, 10, 2**40) == b"fa"
    os.truncate("f", 2**42)
    assert os.stat("f").st_size == 2**42
    os.truncate("f", 5)
    assert get("f") == bytes(5)


@check
def files_too_large(_):
    """The process's limit and the filesystem's: SIGXFSZ and EFBIG, and nothing written."""
    put("f", b"x" * 1000)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
    with opened("f", os.O_RDWR) as fd:
        assert os.pwrite(fd, b"y" * 100, 1950) == 50, "as much as fits"
        with fails(errno.EFBIG):
            os.pwrite(fd, b"y", 2000)
        with fails(errno.EFBIG):
            os.ftruncate(fd, 3000)
        with fails(errno.EFBIG):
            fallocate(fd, 0, 0, 3000)
    with fails(errno.EFBIG):
        os.truncate("f", 3000)
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert get("f") == b"x" * 1000 + bytes(950) + b"y" * 50
    with opened("f", os.O_RDWR) as fd:
        for go in (lambda: os.pwrite(fd, b"x", 2**62), lambda: os.ftruncate(fd, 2**62)):
            with fails(errno.EFBIG):
                go()
        with fails(errno.EINVAL):
            os.pwrite(fd, b"x", -1)
    assert os.stat("f").st_size == 2000


@check
def between_filesystems(other):
    """What cp, mv and install do when source and target are apart: each way to copy either
    works or says EXDEV."""
    data = os.urandom(100_000)
    put("f", data)
    target = os.path.join(other, "g")
    with opened("f") as source, opened(target, os.O_RDWR | os.O_CREAT) as fd:
        try:
            assert os.copy_file_range(source, fd, len(data), 0, 0) == len(data)
        except OSError as error:
            assert error.errno == errno.EXDEV, error
            assert os.sendfile(fd, source, 0, len(data)) == len(data)
        assert os.pread(fd, len(data) + 1, 0) == data
    with tempfile.TemporaryDirectory(dir="/tmp") as outside:
        for source, destination in (("f", f"{outside}/f"), (f"{outside}/f", "back"), ("f", os.path.join(other, "h"))):
            subprocess.run(["cp", "-p", source, destination], check=True)
            assert get(destination) == data
            assert os.stat(destination).st_mtime_ns == os.stat("f").st_mtime_ns

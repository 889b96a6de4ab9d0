"""What the checks are written with."""

import contextlib
import ctypes
import errno
import os
import sys

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

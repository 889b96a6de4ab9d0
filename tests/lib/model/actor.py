"""A process of its own that works in one directory, so that whatever it has open ends with it, and
that it can be stuck or die without the test."""

import ctypes
import errno
import multiprocessing
import os
import signal
import sys
import traceback

from lib import harness

from .calls import Calls

PATIENCE = 25  # seconds; less than the harness waits before it takes mounts away
CLONE_NEWUSER = 0x10000000
CAPABILITY_VERSION_3 = 0x20080522


class Lost(AssertionError):
    """An actor died or is stuck."""


LIBC = ctypes.CDLL(None, use_errno=True)


def _checked(name, *arguments):
    if getattr(LIBC, name)(*arguments) != 0:
        raise OSError(ctypes.get_errno(), name)


def _enter(directory):
    """Makes directory the root, so that absolute links and `..` stay in it."""
    user = os.geteuid() != 0
    if user:
        uid, gid = os.getuid(), os.getgid()
        _checked("unshare", CLONE_NEWUSER)
        for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"),
                           ("gid_map", f"{gid} {gid} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    proc = os.open("/proc/self/fd", os.O_RDONLY | os.O_DIRECTORY)
    os.chdir(directory)
    os.chroot(".")
    os.umask(0o022)
    if user:  # what the new namespace gave is more than the service has
        _checked("capset", (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0), (ctypes.c_uint32 * 6)())
    return proc


def _serve(pipe, directory):
    calls = Calls(_enter(directory))
    while True:
        name, *args = pipe.recv()
        try:
            outcome = (True, getattr(calls, name)(*args))
        except OSError as error:
            outcome = (False, errno.errorcode.get(error.errno, error.errno))
        except Exception:  # of the check, or because of what it was given
            outcome = (False, "wrong: " + traceback.format_exc())
        pipe.send(outcome)


class Actor:
    def __init__(self, directory):
        self.directory = directory
        self.pipe, theirs = multiprocessing.Pipe()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                keep = theirs.fileno()
                os.closerange(3, keep)
                os.closerange(keep + 1, 1024)
                _serve(theirs, directory)
            except EOFError:
                pass
            except BaseException:  # the child must never return into its parent's code
                sys.excepthook(*sys.exc_info())
                sys.stderr.flush()
            os._exit(1)
        theirs.close()

    def call(self, *call):
        """(True, value) or (False, name of the errno or what was wrong)."""
        if not self.pid:
            raise Lost("ended before")
        try:
            self.pipe.send(call)
            if self.pipe.poll(PATIENCE):
                return self.pipe.recv()
        except (EOFError, ConnectionError):
            _, how = os.waitpid(self.pid, 0)
            self.pid = None
            raise Lost(f"{call} in {self.directory}: ended with {os.waitstatus_to_exitcode(how)}") from None
        raise Lost(f"{call} in {self.directory}: no answer\n{harness.describe_process(self.pid)}")

    def close(self):
        self.pipe.close()
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.pid = None

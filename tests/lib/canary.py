"""Files of which the kernel tells whether anybody opened, read or changed them (inotify is told of
every open but those with O_PATH), and a process that swaps two names as fast as it can."""

import ctypes
import os
import subprocess
import sys

IN_ACCESS, IN_MODIFY, IN_ATTRIB, IN_CLOSE, IN_OPEN = 0x1, 0x2, 0x4, 0x18, 0x20
IN_ALL_EVENTS = 0xfff
IN_DONT_FOLLOW = 0x02000000
IN_NONBLOCK, IN_CLOEXEC = os.O_NONBLOCK, os.O_CLOEXEC

TEXT = b"outside the workspace"

LIBC = ctypes.CDLL(None, use_errno=True)


class Watch:
    """Events of paths, none of which is followed."""

    def __init__(self):
        self.fd = LIBC.inotify_init1(IN_NONBLOCK | IN_CLOEXEC)
        assert self.fd >= 0
        self.seen = {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self.fd)

    def add(self, path, events=IN_ALL_EVENTS):
        assert LIBC.inotify_add_watch(self.fd, os.fsencode(path), events | IN_DONT_FOLLOW) >= 0
        status = os.lstat(path)
        self.seen[path] = (events, status)
        return path

    def events(self):
        try:
            return os.read(self.fd, 65536)
        except BlockingIOError:
            return b""

    def check(self):
        """Nothing has happened; as a control, an open of one of them is told."""
        assert self.events() == b""
        for path, (events, before) in self.seen.items():
            if events == IN_ALL_EVENTS:
                assert os.lstat(path) == before
        os.close(os.open(next(iter(self.seen)), os.O_RDONLY | os.O_NONBLOCK))
        assert self.events()


SWAP = """
import ctypes, os, sys
libc, parent = ctypes.CDLL(None), os.getppid()
first, second = map(os.fsencode, sys.argv[1:])
while os.getppid() == parent:
    for _ in range(1000):
        libc.renameat2(-100, first, -100, second, 2)
"""


class Swapper:
    """Exchanges two names until the end of the block."""

    def __init__(self, first, second):
        self.names = first, second

    def __enter__(self):
        self.process = subprocess.Popen([sys.executable, "-c", SWAP, *map(str, self.names)])
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

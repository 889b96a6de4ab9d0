"""The kernel's caches of names, attributes and pages are all the machine's: who counts what a mount asks for holds
them, and who drops them waits for those who count, in whichever process they are."""

import contextlib
import fcntl
import os
import tempfile
import time
from pathlib import Path

DROP = Path("/proc/sys/vm/drop_caches")
DIRECTORY = Path(tempfile.gettempdir())
PATIENCE = 20  # seconds; then they are dropped whoever counts

held = []  # files locked by this process


def open_lock(name):
    return open(DIRECTORY / f"berth-tests-{os.getuid()}-{name}.lock", "ab")


@contextlib.contextmanager
def kept():
    """Nobody else drops them meanwhile."""
    with open_lock("drop") as waiting, open_lock("caches") as file:
        fcntl.flock(waiting, fcntl.LOCK_SH)  # who waits to drop them goes first
        fcntl.flock(file, fcntl.LOCK_SH)
        fcntl.flock(waiting, fcntl.LOCK_UN)
        held.append(file)
        try:
            yield
        finally:
            held.remove(file)


def try_lock(file, patience):
    end = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= end:
                return False
            time.sleep(0.01)


def drop(what, patience=PATIENCE, anyway=True):
    """what: "1" pages, "2" names and attributes, "3" both. anyway: if somebody still counts after so long, too."""
    mine = list(held)
    for file in mine:
        fcntl.flock(file, fcntl.LOCK_UN)
    with open_lock("drop") as waiting, open_lock("caches") as file:
        if (try_lock(waiting, patience) and try_lock(file, patience)) or anyway:
            DROP.write_text(what, encoding="ascii")
    for file in mine:
        fcntl.flock(file, fcntl.LOCK_SH)

"""What processes there are, as /proc tells, and processes that can be told apart."""

import contextlib
import os
import time


def processes_with(word):
    """Processes that have this word in their arguments."""
    found = []
    for entry in os.listdir("/proc"):
        try:
            line = open(f"/proc/{entry}/cmdline", "rb").read() if entry.isdigit() else b""
        except OSError:
            continue
        if word.encode() in line.split(b"\0") and int(entry) != os.getpid():
            found.append(int(entry))
    return found


def memory_limit(harness):
    """Growth of a service that is bounded; a sanitised one keeps freed memory aside."""
    with open(harness.program("berthd"), "rb") as program:
        return (512 if b"__asan_init" in program.read() else 16) << 20


def unique_sleep():
    """Arguments of a sleep that only this test runs."""
    return f"{600 + os.getpid() % 100}.{time.monotonic_ns()}"


def state_of(pid):
    return open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[0]


def name_of(pid):
    with contextlib.suppress(OSError):
        return open(f"/proc/{pid}/comm").read().strip()
    return None


def children_of(pid):
    """But for the inits of sandboxes, which outlive commands."""
    children = open(f"/proc/{pid}/task/{pid}/children").read().split()
    return [child for child in children if name_of(child) not in (None, "berth-init")]

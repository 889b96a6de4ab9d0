"""A machine for what is about installing: systemd as process 1 in namespaces of its own, on this machine's files,
where everything that is written is in memory and forgotten at the end.

As a program: LOG-DIRECTORY becomes it, until it is asked to end.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from lib.booted_root import MS_PRIVATE, MS_REC, NEW_CGROUP, NEW_IPC, NEW_MOUNTS, NEW_NET, NEW_PID, NEW_UTS, call, enter, mount
from lib.harness import REPOSITORY, Process, wait_until


def _remove_cgroup(path):
    with contextlib.suppress(OSError):
        (path / "cgroup.kill").write_text("1")
    for _ in range(100):
        for directory, _, _ in os.walk(path, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(directory)
        if not path.exists():
            return
        time.sleep(0.05)


def main(place):
    """Looks after it from outside: when it ends, its cgroup goes."""
    place = Path(place)
    call("unshare", NEW_MOUNTS)
    mount("none", "/", None, MS_REC | MS_PRIVATE)
    groups, machine = place / "cgroup", place / "machine"
    for directory in (groups, machine):
        directory.mkdir()
    mount("cgroup2", groups, "cgroup2")
    own = groups / f"berth-test-{os.getpid()}"
    own.mkdir()
    ended = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.append(True))
    ready, child_ready = os.pipe()
    pid = os.fork()
    if pid == 0:
        (own / "cgroup.procs").write_text(str(os.getpid()))
        call("unshare", NEW_MOUNTS | NEW_CGROUP | NEW_UTS | NEW_IPC | NEW_PID | NEW_NET)
        inner = os.fork()
        if inner == 0:
            os.setsid()
            enter(machine)
        os.write(child_ready, str(inner).encode())
        os.waitpid(inner, 0)
        os._exit(0)
    inner = int(os.read(ready, 20))
    print(json.dumps({"pid": inner}), flush=True)
    try:
        while not ended and os.waitpid(pid, os.WNOHANG) == (0, 0):
            time.sleep(0.05)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(inner, signal.SIGKILL)
        _remove_cgroup(own)


class Booted(Process):
    """The machine. root: its files, as seen from outside; /mnt/written in it: what was written of them, without
    /run, /tmp and /var/log."""

    def __init__(self, harness):
        place = harness.new_path("machine")
        place.mkdir()
        super().__init__(harness, "machine", ["/usr/bin/python3", __file__, place],
                         env={**harness.env, "PYTHONPATH": str(REPOSITORY / "tests")})
        (found,) = self.wait_for_line(r'^\{"pid": (\d+)\}$')
        self.inner = int(found.group(1))
        self.root = Path(f"/proc/{self.inner}/root")
        wait_until(lambda: self.call("systemctl", "is-active", "sockets.target").stdout == "active\n", 40, "the start",
                   interval=0.2)

    def call(self, *words, uid=0, timeout=60, check=False):
        """A program in there."""
        as_user = ["setpriv", "--reuid", str(uid), "--regid", str(uid), "--clear-groups"] if uid else []
        result = subprocess.run(
            ["nsenter", "-t", str(self.inner), "--mount", "--pid", "--cgroup", "--uts", "--ipc", "--net",
             *as_user, *map(str, words)],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout, check=False,
            env={"PATH": "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LC_ALL": "C.UTF-8",
                 "DEBIAN_FRONTEND": "noninteractive"})
        assert not check or result.returncode == 0, (words, result)
        return result


if __name__ == "__main__":
    main(sys.argv[1])

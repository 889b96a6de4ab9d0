"""A machine for what is about installing: systemd as process 1 in namespaces of its own, on this machine's files,
where everything that is written is in memory and forgotten at the end.

As a program: LOG-DIRECTORY becomes it, until it is asked to end.
"""

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from lib.harness import REPOSITORY, Process, wait_until

MS_RDONLY, MS_BIND, MS_REC, MS_PRIVATE, MNT_DETACH = 0x1, 0x1000, 0x4000, 0x40000, 2
NEW_MOUNTS, NEW_CGROUP, NEW_UTS, NEW_IPC, NEW_PID, NEW_NET = (
    0x20000, 0x2000000, 0x4000000, 0x8000000, 0x20000000, 0x40000000)
TARGET = "[Unit]\nDescription=What a test needs\nRequires=sysinit.target sockets.target\n"


def _call(name, *arguments):
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name} {arguments}: {os.strerror(number)}")


def _mount(source, target, kind=None, flags=0, options=None):
    words = [os.fsencode(word) if word is not None else None for word in (source, target, kind)]
    _call("mount", *words, ctypes.c_ulong(flags), options.encode() if options else None)


def _enter(place):
    """In the namespaces: the root, and systemd."""
    _mount("tmpfs", place, "tmpfs")
    os.chdir(place)
    for name in ("upper", "work", "root"):
        os.mkdir(name)
    _mount("overlay", "root", "overlay", 0, "lowerdir=/,upperdir=upper,workdir=work")
    os.chdir("root")
    for name in ("run", "tmp", "var/log", "mnt"):
        _mount("tmpfs", name, "tmpfs", 0, "mode=1777" if name == "tmp" else "mode=755")
    _mount("proc", "proc", "proc")
    _mount("sysfs", "sys", "sysfs", MS_RDONLY)
    _mount("cgroup2", "sys/fs/cgroup", "cgroup2")
    _mount("/dev", "dev", None, MS_BIND | MS_REC)
    for path in Path("etc/systemd/system").iterdir():
        subprocess.run(["rm", "-rf", str(path)], check=True)
    for path in Path("usr/lib/systemd/system/sysinit.target.wants").iterdir():
        Path("etc/systemd/system", path.name).symlink_to("/dev/null")
    Path("etc/systemd/system/default.target").write_text(TARGET)
    Path("etc/fstab").write_text("")
    Path("usr/sbin/policy-rc.d").unlink(missing_ok=True)
    # Each package with a manual page has the index of all pages made again.
    Path("usr/bin/mandb").unlink(missing_ok=True)
    Path("usr/bin/mandb").symlink_to("true")
    os.mkdir("mnt/old")
    os.mkdir("mnt/written")
    _mount("../upper", "mnt/written", None, MS_BIND)
    number = {"x86_64": 155, "aarch64": 41}[os.uname().machine]
    _call("syscall", number, b".", b"mnt/old")
    os.chdir("/")
    _call("umount2", b"/mnt/old", MNT_DETACH)
    os.rmdir("/mnt/old")
    os.execve("/lib/systemd/systemd", ["systemd", "--system", "--unit=default.target"],
              {"container": "test", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})


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
    _call("unshare", NEW_MOUNTS)
    _mount("none", "/", None, MS_REC | MS_PRIVATE)
    groups, machine = place / "cgroup", place / "machine"
    for directory in (groups, machine):
        directory.mkdir()
    _mount("cgroup2", groups, "cgroup2")
    own = groups / f"berth-test-{os.getpid()}"
    own.mkdir()
    ended = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.append(True))
    ready, child_ready = os.pipe()
    pid = os.fork()
    if pid == 0:
        (own / "cgroup.procs").write_text(str(os.getpid()))
        _call("unshare", NEW_MOUNTS | NEW_CGROUP | NEW_UTS | NEW_IPC | NEW_PID | NEW_NET)
        inner = os.fork()
        if inner == 0:
            os.setsid()
            _enter(machine)
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

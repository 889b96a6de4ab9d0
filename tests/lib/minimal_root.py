"""Root file systems that have next to nothing, as in a container made from one program: an own mount
and pid namespace with that directory as its root and a /proc.

As a program (inside `unshare --mount --pid --fork`): ROOT UID PROGRAM ARGUMENT… goes there and becomes it.
"""

import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path

from lib.harness import REPOSITORY, Process, wait_until

MS_BIND, MS_REC, MS_PRIVATE, MNT_DETACH = 0x1000, 0x4000, 0x40000, 2


def _check(result, what):
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def enter(root, uid, argv):
    """A pivot, as container engines do it: after chroot the kernel makes no namespaces."""
    libc = ctypes.CDLL(None, use_errno=True)
    path = os.fsencode(root)
    pivot_root = {"x86_64": 155, "aarch64": 41}[os.uname().machine]
    _check(libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None), "private mounts")
    _check(libc.mount(path, path, None, MS_BIND, None), root)
    os.chdir(path)
    _check(libc.mount(b"proc", b"proc", b"proc", 0, None), "proc")
    _check(libc.syscall(pivot_root, b".", b"."), "pivot_root")
    _check(libc.umount2(b".", MNT_DETACH), "the old root")
    os.chdir("/")
    if uid:
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
    os.execve(argv[0], argv, {"PATH": "/bin"})


class Container(Process):
    """pid: of process 1, from outside; with it all others of the namespace end."""

    @property
    def pid(self):
        children = Path(f"/proc/{self.popen.pid}/task/{self.popen.pid}/children").read_text().split()
        return int(children[0]) if children else self.popen.pid

    def signal(self, number):
        """A process 1 that handles no signals is given none, and unshare waits for it."""
        self.killed |= number == signal.SIGTERM
        os.kill(self.pid, signal.SIGKILL if number == signal.SIGTERM else number)

    def wait_for_program(self, name):
        wait_until(lambda: Path(f"/proc/{self.pid}/comm").read_text() == f"{name}\n", what=name)


class MinimalRoot:
    """A directory that becomes a root. directory: as seen from outside."""

    def __init__(self, harness):
        self.harness = harness
        self.directory = harness.short / "root"
        (self.directory / "proc").mkdir(parents=True)
        self.process = None

    def put(self, source, at, mode=0o755):
        target = self.directory / at.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(Path(source).read_bytes())
        target.chmod(mode)

    def put_busybox(self):
        """What a small distribution has: its programs as links, device nodes, users, /tmp."""
        self.put("/bin/busybox", "/bin/busybox")
        for name in subprocess.run(["/bin/busybox", "--list"], check=True, capture_output=True,
                                   text=True, timeout=20).stdout.split():
            if name != "busybox":
                (self.directory / "bin" / name).symlink_to("busybox")
        for name, minor in (("null", 3), ("zero", 5), ("full", 7), ("random", 8), ("urandom", 9)):
            path = self.directory / "dev" / name
            path.parent.mkdir(exist_ok=True)
            os.mknod(path, 0o20666, os.makedev(1, minor))
            path.chmod(0o666)
        (self.directory / "etc").mkdir()
        (self.directory / "etc" / "passwd").write_text(
            "root:x:0:0::/root:/bin/sh\nagent:x:1234:1234::/home/agent:/bin/sh\n")
        for name, mode in (("tmp", 0o1777), ("root", 0o700), ("home", 0o755), ("srv", 0o1777)):
            (self.directory / name).mkdir()
            (self.directory / name).chmod(mode)

    def start(self, *argv, uid=0):
        """The program as process 1 of the namespace, in the background."""
        self.process = Container(
            self.harness, "container", ["unshare", "--mount", "--pid", "--fork", "--kill-child", "/usr/bin/python3",
                                        __file__, self.directory, uid, *argv],
            env={**self.harness.env, "PYTHONPATH": str(REPOSITORY / "tests")})
        return self.process


if __name__ == "__main__":
    enter(sys.argv[1], int(sys.argv[2]), sys.argv[3:])

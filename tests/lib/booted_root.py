"""The root of a machine that systemd runs, on this machine's files. Standard library only: a program that has
no other becomes it, in namespaces (lib/booted.py) or on another kernel (lib/machine_units.py)."""

import ctypes
import os
import subprocess
from pathlib import Path

MS_RDONLY, MS_BIND, MS_REC, MS_PRIVATE, MNT_DETACH = 0x1, 0x1000, 0x4000, 0x40000, 2
NEW_MOUNTS, NEW_CGROUP, NEW_UTS, NEW_IPC, NEW_PID, NEW_NET = (
    0x20000, 0x2000000, 0x4000000, 0x8000000, 0x20000000, 0x40000000)
TARGET = "[Unit]\nDescription=What a test needs\nRequires=sysinit.target sockets.target\n"


def call(name, *arguments):
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name} {arguments}: {os.strerror(number)}")


def mount(source, target, kind=None, flags=0, options=None):
    words = [os.fsencode(word) if word is not None else None for word in (source, target, kind)]
    call("mount", *words, ctypes.c_ulong(flags), options.encode() if options else None)


def enter(place, prepare=None):
    """Becomes systemd, with what is written kept in memory. prepare: called in the new root before that."""
    mount("tmpfs", place, "tmpfs")
    os.chdir(place)
    for name in ("upper", "work", "root"):
        os.mkdir(name)
    mount("overlay", "root", "overlay", 0, "lowerdir=/,upperdir=upper,workdir=work")
    os.chdir("root")
    for name in ("run", "tmp", "var/log", "mnt"):
        mount("tmpfs", name, "tmpfs", 0, "mode=1777" if name == "tmp" else "mode=755")
    mount("proc", "proc", "proc")
    mount("sysfs", "sys", "sysfs", MS_RDONLY)
    mount("cgroup2", "sys/fs/cgroup", "cgroup2")
    mount("/dev", "dev", None, MS_BIND | MS_REC)
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
    if prepare:
        prepare()
    os.mkdir("mnt/old")
    os.mkdir("mnt/written")
    mount("../upper", "mnt/written", None, MS_BIND)
    number = {"x86_64": 155, "aarch64": 41}[os.uname().machine]
    call("syscall", number, b".", b"mnt/old")
    os.chdir("/")
    call("umount2", b"/mnt/old", MNT_DETACH)
    os.rmdir("/mnt/old")
    os.execve("/lib/systemd/systemd", ["systemd", "--system", "--unit=default.target"],
              {"container": "test", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})

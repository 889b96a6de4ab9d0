"""Mounts, as the kernel tells of them, and how they are taken down whatever state they are in."""

import contextlib
import os
import re
import socket
import subprocess
from pathlib import Path

from lib.failure import HarnessError


def _unescape(text):
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), text)


def mounts():
    """Rows of /proc/self/mountinfo; reading it never touches a mounted filesystem."""
    rows = []
    text = Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
    for line in text.splitlines():
        left, right = line.split(" - ", 1)
        fields, tail = left.split(" "), right.split(" ")
        rows.append({
            "id": int(fields[0]),
            "device": fields[2],
            "point": _unescape(fields[4]),
            "options": fields[5].split(","),
            "type": tail[0],
            "source": _unescape(tail[1]),
            "super_options": tail[2].split(",") if len(tail) > 2 else [],
        })
    return rows


def find_mount(point):
    """The topmost mount at this very path, or None."""
    found = [row for row in mounts() if row["point"] == str(point)]
    return found[-1] if found else None


def mounts_below(directory):
    prefix = str(directory)
    return [row for row in mounts()
            if row["point"] == prefix or row["point"].startswith(prefix + "/")]


def _connections():
    """The directory with one entry per FUSE connection; needs fusectl, which only root mounts."""
    directory = Path("/sys/fs/fuse/connections")
    if os.geteuid() == 0 and not any(row["point"] == str(directory) for row in mounts()):
        subprocess.run(["mount", "-t", "fusectl", "none", str(directory)], check=False,
                       stderr=subprocess.DEVNULL)
    return directory


def abort_mount(row):
    """Makes every request waiting in this mount fail, so that nobody stays stuck in it."""
    minor = row["device"].split(":")[1]
    with contextlib.suppress(OSError):
        (_connections() / minor / "abort").write_text("1")


def held_elsewhere(row):
    """True when a process in another mount namespace has a copy of this mount, made when that
    namespace was: the filesystem then lives on, and its driver with it."""
    ours = os.readlink("/proc/self/ns/mnt")
    device = f" {row['device']} "
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if os.readlink(entry / "ns/mnt") != ours and device in (entry / "mountinfo").read_text(errors="replace"):
                    return True
    return False


def force_unmount(directory):
    """Takes down every mount at or below directory, stuck or not. True if there was one."""
    found = False
    for _ in range(20):
        rows = mounts_below(directory)
        if not rows:
            return found
        found = True
        row = rows[-1]
        if row["type"].startswith("fuse"):
            abort_mount(row)
            subprocess.run(["fusermount3", "-u", "-z", row["point"]], check=False, timeout=20,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        if find_mount(row["point"]):
            subprocess.run(["umount", "-l", row["point"]], check=False, timeout=20,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return found


def check_fuse(directory):
    """Positive control: a FUSE mount can be made here at all. Uses fusermount3 as libfuse does,
    without any of our code; raises when it cannot, since every test would then mean nothing."""
    try:
        # As udev makes it everywhere; where there is no udev, ordinary users could not mount.
        if os.geteuid() == 0:
            os.chmod("/dev/fuse", 0o666)
        os.close(os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        raise HarnessError(f"/dev/fuse cannot be opened, nothing can be mounted: {error}") from error
    point = Path(directory) / "control"
    point.mkdir()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours, theirs:
        result = subprocess.run(
            ["fusermount3", "-o", "rw,nosuid,nodev,fsname=berth-control", "--", str(point)],
            env={**os.environ, "_FUSE_COMMFD": str(theirs.fileno())},
            pass_fds=[theirs.fileno()], capture_output=True, timeout=20, check=False)
        theirs.close()
        if result.returncode != 0:
            raise HarnessError(f"mounting does not work here: {result.stderr.decode()}")
        _, descriptors, _, _ = socket.recv_fds(ours, 1, 1)
    row = find_mount(point)
    for descriptor in descriptors:
        os.close(descriptor)
    force_unmount(point)
    point.rmdir()
    if not row or not row["type"].startswith("fuse"):
        raise HarnessError("fusermount3 succeeded but there is no mount")

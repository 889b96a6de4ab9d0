"""Mounts of the type fuse.berth without berthfs: dead ones, silent ones, and ones that lie.

Run as a program it is the driver of such a mount: a thread would not do, since a fork that waits
in the mount (chdir into it) holds up the whole interpreter."""

import contextlib
import ctypes
import os
import socket
import struct
import subprocess
import sys
import time

INIT, GETXATTR, FORGET, INTERRUPT = 26, 22, 2, 36
HOLD = b"(hold)"
HEADER = struct.Struct("<IIQQIIII")


def reply_to(device, request, answer):
    _, opcode, unique, *_ = HEADER.unpack_from(request)
    body, error = b"", -38
    if opcode in (FORGET, INTERRUPT):
        return
    if opcode == INIT:
        error = 0
        body = struct.pack("<IIIIHHIIHHI", 7, 31, 65536, 0, 12, 9, 65536, 1, 32, 0, 0)
        body += bytes(64 - len(body))
    elif opcode == GETXATTR:
        size, = struct.unpack_from("<I", request, HEADER.size)
        name = request[HEADER.size + 8:].split(b"\0")[0]
        print(name.decode(), flush=True)
        if answer == HOLD:
            return
        if name == b"user.berth.mount" and size >= len(answer):
            error, body = 0, answer
    os.write(device, struct.pack("<IiQ", 16 + len(body), error, unique) + body)


def serve(device, answer):
    with contextlib.suppress(OSError):
        while request := os.read(device, 1 << 18):
            reply_to(device, request, answer)


class RawMount:
    """Close it with close(). answer: None: no request is ever answered; else INIT is, and
    getxattr(user.berth.mount) with this text, and everything else with ENOSYS. HOLD as the text:
    the request is taken and never answered, so that not even KILL ends who asked. user: who
    seems to have made it (root only)."""

    def __init__(self, point, answer=None, user=None, source="unix:/nowhere"):
        self.point = point
        point.mkdir()
        self.log = point.with_suffix(".asked")
        self.device = self._mount(source) if user is None else self._mount_as(user, source)
        os.set_inheritable(self.device, False)
        self.driver = None
        if answer is not None:
            with open(self.log, "wb") as log:
                self.driver = subprocess.Popen(
                    [sys.executable, __file__, str(self.device)], stdin=subprocess.PIPE,
                    stdout=log, pass_fds=[self.device], start_new_session=True)
            self.driver.stdin.write(answer.encode())
            self.driver.stdin.close()
            os.close(self.device)
            self.device = -1

    def _mount(self, source):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with ours, theirs:
            subprocess.run(
                ["fusermount3", "-o", f"rw,nosuid,nodev,subtype=berth,fsname={source}", "--",
                 self.point], check=True, timeout=20, pass_fds=[theirs.fileno()],
                env={**os.environ, "_FUSE_COMMFD": str(theirs.fileno())})
            _, (device,), _, _ = socket.recv_fds(ours, 1, 1)
        return device

    def _mount_as(self, user, source):
        device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = f"fd={device},rootmode=40000,user_id={user},group_id={user},allow_other"
        libc = ctypes.CDLL(None, use_errno=True)
        nosuid_nodev = 2 | 4
        if libc.mount(source.encode(), os.fsencode(self.point), b"fuse.berth", nosuid_nodev,
                      options.encode()) != 0:
            os.close(device)
            raise OSError(ctypes.get_errno(), "mount")
        return device

    @property
    def asked(self):
        """Names of the extended attributes that were asked for."""
        return self.log.read_text().split("\n")

    def die(self):
        """The driver ends; the mount stays, as after a crash."""
        if self.driver:
            self.driver.kill()
            self.driver.wait(20)
        elif self.device >= 0:
            os.close(self.device)
            self.device = -1

    def close(self):
        self.die()
        for _ in range(50):
            result = subprocess.run(["fusermount3", "-u", "-z", "--", self.point], check=False,
                                    timeout=20, stderr=subprocess.DEVNULL)
            if result.returncode != 0:
                return
            time.sleep(0.01)


if __name__ == "__main__":
    serve(int(sys.argv[1]), sys.stdin.buffer.read())

"""A process that takes locks as it is told: by lines of JSON on its standard input, answered on its
standard output with [result] or [null, errno]. It runs wherever a test wants it, also by
`berth exec`, so it needs nothing but Python.

    peer = LockPeer(subprocess.Popen([*PEER, path, word], …), word)
    peer("flock", "a", LOCK_EX | LOCK_NB)          # a: a descriptor, opened by ("open", "a", flags)
    peer.begin("flock", "a", LOCK_EX); …; peer.end(timeout)   # one that waits
"""

import fcntl
import json
import os
import select
import signal
import struct
import sys

GETLK, SETLK, SETLKW = fcntl.F_GETLK, fcntl.F_SETLK, fcntl.F_SETLKW
OFD_GETLK, OFD_SETLK, OFD_SETLKW = 36, 37, 38
RD, WR, UN = fcntl.F_RDLCK, fcntl.F_WRLCK, fcntl.F_UNLCK
FLOCK = struct.Struct("hhqqi4x")  # struct flock with 64-bit offsets


class LockPeer:
    def __init__(self, process, word):
        """word: an argument that no other process has."""
        self.process = process
        self.word = word
        self.pending = b""
        self.end(30)  # it says that it is there

    def begin(self, *command):
        self.process.stdin.write(json.dumps(command).encode() + b"\n")
        self.process.stdin.flush()

    def ready(self, timeout):
        """Whether an answer has come or comes in time."""
        return b"\n" in self.pending or bool(select.select([self.process.stdout], [], [], timeout)[0])

    def end(self, timeout=20):
        while b"\n" not in self.pending:
            if not select.select([self.process.stdout], [], [], timeout)[0]:
                raise TimeoutError(f"no answer within {timeout} s")
            data = os.read(self.process.stdout.fileno(), 65536)
            assert data, "the peer has ended"
            self.pending += data
        line, self.pending = self.pending.split(b"\n", 1)
        result, *error = json.loads(line)
        if error:
            raise OSError(error[0], os.strerror(error[0]))
        return result

    def __call__(self, *command):
        self.begin(*command)
        return self.end()

    def refused(self, *command):
        """The errno with which this fails."""
        try:
            self(*command)
        except OSError as error:
            return error.errno
        return None

    def lock(self, command, name, kind, start=0, length=0):
        return self("lock", command, name, kind, start, length)

    def close(self):
        self.process.kill()
        self.process.wait(20)
        self.process.stdin.close()
        self.process.stdout.close()


def _serve(path):
    descriptors, children = {}, {}

    def lock(command, name, kind, start, length):
        answer = fcntl.fcntl(descriptors[name], command, FLOCK.pack(kind, 0, start, length, 0))
        return FLOCK.unpack(answer)

    def open_(name, flags):
        descriptors[name] = os.open(path, flags | os.O_CLOEXEC, 0o644)

    def dup(name, other):
        descriptors[other] = os.dup(descriptors[name])

    def fork():
        """A child that holds copies of all descriptors until it is reaped."""
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(write)
            os.read(read, 1)
            os._exit(0)
        os.close(read)
        children[pid] = write
        return pid

    def reap(pid):
        os.close(children.pop(pid))
        os.waitpid(pid, 0)

    commands = {
        "open": open_, "lock": lock, "dup": dup, "fork": fork, "reap": reap, "pid": os.getpid,
        "close": lambda name: os.close(descriptors.pop(name)),
        "flock": lambda name, operation: fcntl.flock(descriptors[name], operation),
        "write": lambda name, text: os.pwrite(descriptors[name], text.encode(), 0),
        "read": lambda name: os.pread(descriptors[name], 100, 0).decode(),
        "fstat": lambda name: os.fstat(descriptors[name]).st_size,
    }

    def interrupt(*_):
        raise InterruptedError(4, "interrupted")
    signal.signal(signal.SIGUSR1, interrupt)
    print("[null]", flush=True)
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        try:
            answer = [commands[name](*arguments)]
        except OSError as error:
            answer = [None, error.errno]
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    _serve(sys.argv[1])

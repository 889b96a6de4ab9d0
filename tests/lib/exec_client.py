"""A client of the wire protocol for tests of exec: it can send what `berth exec` would never
send, and read as slowly as it likes. Blocking, one socket, any number of calls."""

import socket
import struct
from dataclasses import dataclass, field

HELLO, WELCOME, ERROR, GRANT, CANCEL = 0x0001, 0x0002, 0x0003, 0x0007, 0x0008
WORKSPACE_CREATE, WORKSPACE = 0x0101, 0x0106
EXEC, EXEC_STARTED, EXEC_OUTPUT, EXEC_INPUT = 0x0301, 0x0302, 0x0303, 0x0304
EXEC_SIGNAL, EXEC_RESIZE, EXEC_EXIT = 0x0305, 0x0306, 0x0307

STDIN, MERGE, PTY, DETACH = 1, 2, 4, 8

VERDICTS = {1: "exited", 2: "signaled", 3: "timed_out", 4: "oom_killed", 5: "killed",
            6: "not_started", 7: "unknown"}
STAGES = {0: None, 1: "request", 2: "workspace", 3: "pipes", 4: "fork", 5: "setup", 6: "confine",
          7: "cwd", 8: "execve"}


class Refused(Exception):
    """The service answered ERROR."""

    def __init__(self, error, text):
        super().__init__(f"errno {error}: {text}")
        self.error = error


def data(value):
    value = value.encode() if isinstance(value, str) else value
    return struct.pack("<I", len(value)) + value


def items(values):
    body = b"".join(data(value) for value in values)
    return struct.pack("<I", len(body)) + body


@dataclass
class Verdict:
    verdict: str
    code: int
    signal: int
    core: int
    stage: str
    error: int
    removed: int
    stdout_bytes: int
    stderr_bytes: int
    duration_ns: int
    timeout_ms: int
    fs_seq: int
    text: str


@dataclass
class Call:
    tag: int
    started: bool = False
    pid: int = 0
    output: dict = field(default_factory=lambda: {1: bytearray(), 2: bytearray()})
    verdict: Verdict = None


class ExecClient:
    def __init__(self, path, window=1 << 20, timeout=30):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(timeout)
        self.socket.connect(path)
        self.received = b""
        self.tag = 0
        self.calls = {}
        self.grant = True
        self.socket.sendall(b"GET /v1/stream HTTP/1.1\r\nHost: test\r\nConnection: Upgrade\r\n"
                            b"Upgrade: berth/1\r\n\r\n")
        while b"\r\n\r\n" not in self.received:
            self._receive()
        head, self.received = self.received.split(b"\r\n\r\n", 1)
        assert head.startswith(b"HTTP/1.1 101"), head
        self.tag += 1
        self._send(HELLO, self.tag, struct.pack("<IIIQ", 1, 1 << 22, window, 0) + data("test"))
        kind, _, _ = self._frame()
        assert kind == WELCOME, hex(kind)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.socket.close()

    def _receive(self):
        chunk = self.socket.recv(1 << 18)
        if not chunk:
            raise EOFError("the service closed the connection")
        self.received += chunk

    def _frame(self):
        while len(self.received) < 16:
            self._receive()
        length, kind, _, tag = struct.unpack_from("<IHHQ", self.received)
        while len(self.received) < 16 + length:
            self._receive()
        payload = self.received[16:16 + length]
        self.received = self.received[16 + length:]
        return kind, tag, payload

    def _send(self, kind, tag, payload):
        self.socket.sendall(struct.pack("<IHHQ", len(payload), kind, 0, tag) + payload)

    def request(self, kind, payload):
        """Sends a request; returns its tag."""
        self.tag += 1
        self._send(kind, self.tag, payload)
        return self.tag

    def create(self, thread_id):
        tag = self.request(WORKSPACE_CREATE, struct.pack("<I", 0) + data(thread_id))
        kind, answered, payload = self._frame()
        assert (kind, answered) == (WORKSPACE, tag), (hex(kind), payload)

    def start(self, workspace, argv, flags=0, env=(), cwd="", timeout_ms=0, exec_id="", rows=0,
              columns=0, mount_path=""):
        payload = struct.pack("<IIIIQ", flags, 0, rows, columns, timeout_ms)
        payload += data(workspace) + data(exec_id) + data(cwd) + data(mount_path)
        payload += items(argv) + items(env)
        call = Call(self.request(EXEC, payload))
        self.calls[call.tag] = call
        return call

    def input(self, call, offset, value, end=False):
        self._send(EXEC_INPUT, call.tag, struct.pack("<IQ", end, offset) + data(value))

    def signal(self, call, number):
        self._send(EXEC_SIGNAL, call.tag, struct.pack("<I", number))

    def resize(self, call, rows, columns):
        self._send(EXEC_RESIZE, call.tag, struct.pack("<II", rows, columns))

    def cancel(self, call):
        self._send(CANCEL, call.tag, struct.pack("<I", 0))

    def step(self):
        """Takes one message."""
        kind, tag, payload = self._frame()
        call = self.calls.get(tag)
        if kind == EXEC_STARTED:
            call.started = True
            call.pid, = struct.unpack("<Q", payload)
        elif kind == EXEC_OUTPUT:
            stream, offset, length = struct.unpack_from("<IQI", payload)
            assert call.started and call.verdict is None
            assert offset == len(call.output[stream])
            assert length == len(payload) - 16
            call.output[stream] += payload[16:]
            if self.grant:
                self._send(GRANT, tag, struct.pack("<I", len(payload)))
        elif kind == EXEC_EXIT:
            fields = struct.unpack_from("<7I5Q", payload)
            length, = struct.unpack_from("<I", payload, 68)
            assert len(payload) == 72 + length
            call.verdict = Verdict(VERDICTS[fields[0]], *fields[1:4], STAGES[fields[4]],
                                   *fields[5:], payload[72:].decode(errors="replace"))
            del self.calls[tag]
        elif kind == ERROR:
            error, length = struct.unpack_from("<II", payload)
            self.calls.pop(tag, None)
            raise Refused(error, payload[8:8 + length].decode(errors="replace"))
        return kind, tag

    def wait_started(self, call):
        while not call.started and call.verdict is None:
            self.step()
        return call

    def wait(self, call):
        while call.verdict is None:
            self.step()
        assert len(call.output[1]) == call.verdict.stdout_bytes
        assert len(call.output[2]) == call.verdict.stderr_bytes
        return call.verdict

    def run(self, workspace, argv, **keywords):
        call = self.start(workspace, argv, **keywords)
        self.wait(call)
        return call

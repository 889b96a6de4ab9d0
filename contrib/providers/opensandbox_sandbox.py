"""What the profile "opensandbox" runs: OpenSandbox's lifecycle interface (specs/sandbox-lifecycle.yml of its
repository), the file upload of execd, the daemon in each sandbox (specs/execd-api.yaml), and execd's shell over a
WebSocket in pipe mode (components/execd/PTY.md), which is the one way in that takes a stream of bytes.

create --image I --lifetime S --cpu C --memory M --created-by O --created-at T [--egress deny] NAME
put SANDBOX FILE                    standard input becomes FILE there, which can be run
stream SANDBOX COMMAND…             the command's standard input and output
destroy, state SANDBOX
list --created-by O

Before the word: --server URL, and --server-proxy yes if execd is reached through the server. SANDBOX is the ID that
create prints, or the NAME while that is not known. OPEN_SANDBOX_API_KEY is the key. Exit status 4: there is
none; 5: nothing was asked.
"""

from __future__ import annotations

import argparse
import base64
import functools
import hashlib
import json
import os
import queue
import select
import shlex
import signal
import socket
import ssl
import sys
import threading
import time
import urllib.parse
from typing import Any, Callable, Iterator, NoReturn

sys.dont_write_bytecode = True

from sandbox_api import (  # noqa: E402
    PAGES_MAX, Refusal, base_url, call, destroyed_on_failure, fail, field, run, wait_for_start)

EXECD_PORT = 44772
CHUNK = 32768

# Bytes of a frame: a server must not fill our memory.
FRAME_MAX = 4 << 20

# Bytes of the answer to the handshake, for the same reason.
HANDSHAKE_MAX = 65536

# Chunks that wait for a slow reader. execd gives a connection up that does not take a frame for 10 seconds.
WAITING_MAX = 512

# Seconds between our pings: execd ends a connection on which nothing came for 60.
PING_INTERVAL = 20

# Seconds without anything from execd, which pings every 30 and answers ours, until the connection is given up.
SILENCE_MAX = 90

# Seconds that a command has after the end of our input, which it is not told of: the protocol has no word for that.
LAST_WORDS = 1

STDIN, STDOUT, STDERR = 0, 1, 2
TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10
WEBSOCKET_GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class Server:
    """The lifecycle interface."""

    def __init__(self, url: str, server_proxy: bool):
        self.url = base_url(url, "the parameter server") + "/v1"
        self.server_proxy = server_proxy
        key = os.environ.get("OPEN_SANDBOX_API_KEY")
        self.headers = {"OPEN-SANDBOX-API-KEY": key} if key else {}

    def call(self, method: str, path: str, body: Any = None) -> Any:
        return call(method, self.url + path, self.headers, body)

    def having(self, key: str, value: str) -> Iterator[str]:
        """The IDs of the sandboxes with this metadata."""
        wanted = urllib.parse.quote(urllib.parse.urlencode({key: value}), safe="")
        for page in range(1, PAGES_MAX + 1):
            answer = self.call("GET", f"/sandboxes?metadata={wanted}&page={page}&pageSize=100") or {}
            for item in answer.get("items", []):
                # What is destroyed is told by this, whatever the server makes of a filter.
                if (item.get("metadata") or {}).get(key) == value:
                    yield field(item, "id")
            if not (answer.get("pagination") or {}).get("hasNextPage"):
                return

    def find(self, sandbox: str) -> str:
        if not sandbox.startswith("berth-"):
            return sandbox
        for one in self.having("berth-name", sandbox):
            return one
        raise Refusal(404, "", f"no such sandbox: {sandbox}")

    def state(self, sandbox: str) -> str:
        return field(self.call("GET", f"/sandboxes/{sandbox}"), "status", "state")

    def destroy(self, sandbox: str) -> None:
        self.call("DELETE", f"/sandboxes/{sandbox}")

    def execd(self, sandbox: str) -> tuple[str, dict[str, str]]:
        """Where execd is reached, and the fields that requests to it need."""
        answer = self.call("GET", f"/sandboxes/{sandbox}/endpoints/{EXECD_PORT}"
                           f"?use_server_proxy={'true' if self.server_proxy else 'false'}")
        endpoint = field(answer, "endpoint")
        if "://" not in endpoint:
            endpoint = urllib.parse.urlsplit(self.url).scheme + "://" + endpoint
        headers = {str(name): str(value) for name, value in (answer.get("headers") or {}).items()}
        if self.server_proxy:
            headers = {**self.headers, **headers}
        return base_url(endpoint, "what the server says of execd"), headers


def create(server: Server, a: argparse.Namespace) -> None:
    request = {
        "image": {"uri": a.image},
        "entrypoint": ["tail", "-f", "/dev/null"],
        "timeout": a.lifetime or None,
        "resourceLimits": {"cpu": a.cpu, "memory": a.memory},
        "metadata": {"created-by": a.created_by, "created-at": a.created_at, "berth-name": a.sandbox},
    }
    if a.egress:
        request["networkPolicy"] = {"defaultAction": "deny"}
    sandbox = field(server.call("POST", "/sandboxes", request), "id")
    with destroyed_on_failure(lambda: server.destroy(sandbox)):
        wait_for_start("opensandbox", lambda: server.state(sandbox), ("Running",), ("Failed", "Stopping", "Terminated"))
    print(sandbox)


def put(server: Server, a: argparse.Namespace) -> None:
    url, headers = server.execd(server.find(a.sandbox))
    boundary = "berth-" + os.urandom(16).hex()
    metadata = json.dumps({"path": a.words[0], "mode": 755})
    data = b"".join([
        f'--{boundary}\r\nContent-Disposition: form-data; name="metadata"; filename="metadata"\r\n'
        f"Content-Type: application/json\r\n\r\n{metadata}\r\n"
        f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="file"\r\n'
        "Content-Type: application/octet-stream\r\n\r\n".encode(),
        sys.stdin.buffer.read(), f"\r\n--{boundary}--\r\n".encode()])
    call("POST", url + "/files/upload", {**headers, "Content-Type": f"multipart/form-data; boundary={boundary}"},
         data=data)


class WebSocket:
    """A client's end. Writing is for several threads, reading for one."""

    def __init__(self, url: str, headers: dict[str, str]):
        parts = urllib.parse.urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        self.socket = socket.create_connection((parts.hostname, port), timeout=SILENCE_MAX)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if parts.scheme == "https":
            self.socket = ssl.create_default_context().wrap_socket(self.socket, server_hostname=parts.hostname)
        # A TLS connection is one object for both directions: one at a time, and none of them waits in it.
        self.socket.setblocking(False)
        self.at_work, self.turn = threading.Lock(), threading.Lock()
        self.read_ahead = b""
        key = base64.b64encode(os.urandom(16)).decode()
        lines = [f"GET {parts.path}?{parts.query} HTTP/1.1", f"Host: {parts.netloc}", "Upgrade: websocket",
                 "Connection: Upgrade", f"Sec-WebSocket-Key: {key}", "Sec-WebSocket-Version: 13"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if any("\r" in line or "\n" in line for line in lines):
            fail("opensandbox: a field of the server's has a line of its own")
        self._write(("\r\n".join(lines) + "\r\n\r\n").encode())
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += self._exactly(1)
            if len(head) > HANDSHAKE_MAX:
                fail("opensandbox: the answer to the handshake has no end")
        first, _, rest = head.decode(errors="replace").partition("\r\n")
        answer = {name.strip().lower(): value.strip() for name, _, value in
                  (line.partition(":") for line in rest.split("\r\n"))}
        proof = base64.b64encode(hashlib.sha1((key + WEBSOCKET_GUID).encode()).digest()).decode()
        if first.split(" ")[1:2] != ["101"] or answer.get("sec-websocket-accept") != proof:
            fail(f"opensandbox: execd did not open the stream: {first}")

    def _do(self, act: Callable[[], Any], reading: bool) -> Any:
        """act, once the connection is ready for it."""
        while True:
            read = reading
            try:
                with self.at_work:
                    return act()
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
                if not isinstance(error, BlockingIOError):
                    read = isinstance(error, ssl.SSLWantReadError)
            ready = select.select([self.socket] if read else [], [] if read else [self.socket], [], SILENCE_MAX)
            if not (ready[0] or ready[1]):
                raise TimeoutError("execd is silent")

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[self._do(functools.partial(self.socket.send, rest), reading=False):]

    def _exactly(self, count: int) -> bytes:
        while len(self.read_ahead) < count:
            more = self._do(lambda: self.socket.recv(CHUNK + 16), reading=True)
            if not more:
                raise EOFError
            self.read_ahead += more
        taken, self.read_ahead = self.read_ahead[:count], self.read_ahead[count:]
        return taken

    def send(self, kind: int, data: bytes) -> None:
        size, mask = len(data), os.urandom(4)
        if size < 126:
            head = bytes([0x80 | kind, 0x80 | size])
        elif size < 1 << 16:
            head = bytes([0x80 | kind, 0x80 | 126]) + size.to_bytes(2, "big")
        else:
            head = bytes([0x80 | kind, 0x80 | 127]) + size.to_bytes(8, "big")
        masks = (mask * (size // 4 + 1))[:size]
        masked = (int.from_bytes(data, "big") ^ int.from_bytes(masks, "big")).to_bytes(size, "big")
        with self.turn:
            self._write(head + mask + masked)

    def messages(self) -> Iterator[tuple[int, bytes]]:
        """Texts and bytes, until the other end closes. EOFError, OSError: it is lost."""
        kind, parts = 0, b""
        while True:
            first, size = self._exactly(2)
            if size & 0x80:
                fail("opensandbox: execd's stream is no WebSocket's")
            if size >= 126:
                size = int.from_bytes(self._exactly(2 if size == 126 else 8), "big")
            if size + len(parts) > FRAME_MAX:
                fail(f"opensandbox: a message of execd's is larger than {FRAME_MAX} bytes")
            data = self._exactly(size)
            if first & 0x0f == CLOSE:
                return
            if first & 0x0f == PING:
                self.send(PONG, data)
            elif first & 0x0f in (0, TEXT, BINARY):
                kind, parts = (first & 0x0f) or kind, parts + data
                if first & 0x80:
                    yield kind, parts
                    kind, parts = 0, b""


class Stream:
    """A command in a shell of execd's, whose streams are ours."""

    def __init__(self, url: str, headers: dict[str, str], words: list[str]):
        self.url, self.headers, self.words = url, headers, words
        self.session = field(call("POST", url + "/pty", headers, {}), "session_id")
        self.ended = threading.Lock()
        self.waiting: queue.Queue[tuple[int, bytes] | None] = queue.Queue(WAITING_MAX)

    def end(self, status: int) -> NoReturn:
        """The shell there, and this program."""
        self.ended.acquire()  # never let go: the first one ends all
        try:
            call("DELETE", f"{self.url}/pty/{self.session}", self.headers)
        except (Refusal, SystemExit):
            pass
        os._exit(status)

    def open(self) -> None:
        self.socket = WebSocket(f"{self.url}/pty/{urllib.parse.quote(self.session)}/ws?pty=0", self.headers)

    def feed(self) -> None:
        while chunk := os.read(0, CHUNK):
            self.socket.send(BINARY, bytes([STDIN]) + chunk)
        time.sleep(LAST_WORDS)

    def ping(self) -> None:
        while True:
            time.sleep(PING_INTERVAL)
            self.socket.send(TEXT, b'{"type":"ping"}')

    def write(self) -> None:
        while (item := self.waiting.get()) is not None:
            number, data = item
            while data:
                data = data[os.write(number, data):]

    def guarded(self, act: Any) -> None:
        """A thread's work, whose end is that of all."""
        try:
            act()
        except OSError:
            pass
        self.end(0)

    def carry(self) -> int:
        """The command's exit status."""
        started = False
        writer = threading.Thread(target=self.write, daemon=True)
        for kind, data in self.socket.messages():
            if kind == BINARY:
                # A replay (3) is of what was before the command.
                if data[:1] in (b"\x01", b"\x02"):
                    self.waiting.put((data[0], data[1:]))
                continue
            said = json.loads(data)
            if said.get("type") == "connected" and not started:
                if said.get("mode") != "pipe":
                    fail("opensandbox: execd gave a terminal, which changes bytes")
                started = True
                self.socket.send(BINARY, bytes([STDIN]) + f"exec {shlex.join(self.words)}\n".encode())
                writer.start()
                for act in (self.feed, self.ping):
                    threading.Thread(target=self.guarded, args=(act,), daemon=True).start()
            elif said.get("type") == "exit":
                self.waiting.put(None)
                if started:
                    writer.join()
                return int(said.get("exit_code", 1)) & 0xff
            elif said.get("type") == "error":
                fail(f"opensandbox: execd: {said.get('code', '')} {said.get('error', '')}")
        fail("opensandbox: execd closed the stream")


def stream(server: Server, a: argparse.Namespace) -> NoReturn:
    one = Stream(*server.execd(server.find(a.sandbox)), a.words)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        # Not twice: the one that is at it would never go on.
        signal.signal(number, lambda *_: one.ended.locked() or one.end(1))
    try:
        one.open()
        status = one.carry()
    except (OSError, EOFError, ValueError) as error:
        print(f"opensandbox: the stream is lost: {error or 'it ended'}", file=sys.stderr)
        status = 1
    except SystemExit as error:
        print(error.code, file=sys.stderr)
        status = 1
    one.end(status)


def destroy(server: Server, a: argparse.Namespace) -> None:
    server.destroy(server.find(a.sandbox))


def show_state(server: Server, a: argparse.Namespace) -> None:
    print(server.state(server.find(a.sandbox)))


def show_all(server: Server, a: argparse.Namespace) -> None:
    for sandbox in server.having("created-by", a.created_by):
        print(sandbox)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="opensandbox_sandbox.py", allow_abbrev=False)
    parser.add_argument("--server", required=True)
    parser.add_argument("--server-proxy", choices=("yes", "no"), default="no")
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb in ("create", "put", "stream", "destroy", "state", "list"):
        one = verbs.add_parser(verb, allow_abbrev=False)
        if verb in ("create", "list"):
            one.add_argument("--created-by", required=True)
        if verb == "create":
            for option in ("--image", "--cpu", "--memory", "--created-at"):
                one.add_argument(option, required=True)
            one.add_argument("--lifetime", type=int, required=True)
            one.add_argument("--egress", choices=("deny",))
        if verb != "list":
            one.add_argument("sandbox")
        if verb in ("put", "stream"):
            one.add_argument("words", nargs=argparse.REMAINDER)
    return parser.parse_args()


def main() -> int:
    a = parse()
    server = Server(a.server, a.server_proxy == "yes")
    verbs = {"create": create, "put": put, "stream": stream, "destroy": destroy, "state": show_state, "list": show_all}
    return run("opensandbox", lambda: verbs[a.verb](server, a))


if __name__ == "__main__":
    sys.exit(main())

"""Connections to a Berth service, for HTTP/1.1: unix sockets, TLS, plain loopback, and the standard
input and output of a command such as `ssh HOST berthd --stdio`."""

from __future__ import annotations

import http.client
import io
import os
import select
import signal
import socket
import ssl
import subprocess
import threading
import time
from dataclasses import dataclass
from typing import Any, List, Mapping, Optional, Tuple
from urllib.parse import urlsplit

CONNECT_TIMEOUT = 20.0
# How long a command that is a stream may go on when its input has ended.
CHILD_END_TIMEOUT = 2.0
# Of what such a command says on standard error, as much is told.
CHILD_ERROR_MAX = 2048
# For how long it is waited for what such a command says when it has gone.
CHILD_ERROR_TIMEOUT = 0.5
TOKEN_FILE_MAX = 64 << 10
# An exchange may take a second more for so many bytes. Stops a service that sends or takes a byte now and then from
# holding its caller for ever.
RATE_MIN = 16 << 10


class ConfigurationError(ValueError):
    """An address or credential that can never work."""


@dataclass(frozen=True)
class Address:
    """A service and what is shown to it. The files are read when a connection is made."""

    url: str
    token: Optional[str] = None
    token_file: Optional[str] = None
    ca_file: Optional[str] = None
    cert_file: Optional[str] = None
    key_file: Optional[str] = None

    def __repr__(self) -> str:  # without the token: this gets into logs
        return f"Address({self.url!r})"

    def __post_init__(self) -> None:
        scheme = self.url.partition(":")[0]
        if scheme not in ("unix", "http", "https", "exec") or not self.url[len(scheme) + 1:]:
            raise ConfigurationError(
                f"{self.url!r} is no address of a service: unix:PATH, https://HOST:PORT, http://LOOPBACK:PORT "
                "or exec:COMMAND")
        if "\0" in self.url:
            raise ConfigurationError("an address cannot have a NUL in it")
        if scheme in ("http", "https"):
            self._place()

    def _place(self) -> Tuple[str, int]:
        parts = urlsplit(self.url)
        try:
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise ConfigurationError(f"{self.url!r}: {error}") from None
        if not host or parts.path not in ("", "/") or parts.query or parts.username or parts.password:
            raise ConfigurationError(f"{self.url!r} is not {parts.scheme}://HOST:PORT")
        if parts.scheme == "http" and not is_loopback(host):
            raise ConfigurationError(f"{self.url!r}: without encryption only this machine is reached; use https")
        return host, port or (443 if parts.scheme == "https" else 80)

    def bearer(self) -> Optional[str]:
        """The token, read anew each time, so that one that is replaced in its file is used."""
        if self.token is not None:
            return self.token
        if self.token_file is None:
            return None
        with open(self.token_file, encoding="utf-8") as file:
            lines = file.read(TOKEN_FILE_MAX).splitlines()
        for line in lines:
            if line.strip() and not line.startswith("#"):
                return line.strip()
        raise ConfigurationError(f"{self.token_file} has no token")

    def connect(self) -> "Connection":
        """A connection; OSError when there is none."""
        if self.url.startswith("unix:"):
            return UnixConnection(self.url[len("unix:"):])
        if self.url.startswith("exec:"):
            return CommandConnection(self.url[len("exec:"):])
        host, port = self._place()
        if self.url.startswith("http:"):
            return Connection(host, port)
        context = ssl.create_default_context(cafile=self.ca_file)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        if self.cert_file:
            context.load_cert_chain(self.cert_file, self.key_file)
        return TlsConnection(host, port, context)


def from_environment(environment: Mapping[str, str]) -> Address:
    """What `berth` itself would take from its environment, else its default unix socket."""
    url = environment.get("BERTH_URL")
    if not url:
        runtime = environment.get("XDG_RUNTIME_DIR") or ("/run" if os.geteuid() == 0 else None)
        url = f"unix:{runtime}/berth/berthd.sock" if runtime else f"unix:/tmp/berth-{os.geteuid()}/berthd.sock"
    return Address(
        url=url, token=environment.get("BERTH_TOKEN"), token_file=environment.get("BERTH_TOKEN_FILE"),
        ca_file=environment.get("BERTH_CA_FILE"), cert_file=environment.get("BERTH_CERT_FILE"),
        key_file=environment.get("BERTH_KEY_FILE"))


def is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")


class Patience:
    """Until when an exchange must have ended: so many seconds, and what its bytes may take; `until` ends it anyhow."""

    def __init__(self, seconds: float, until: Optional[float] = None) -> None:
        self._begun, self._seconds, self._until = time.monotonic(), seconds, until
        self._bytes = 0

    def add(self, count: int) -> None:
        self._bytes += count

    def left(self) -> float:
        """How long the next read or write may take; TimeoutError when there is no time left."""
        now = time.monotonic()
        left = self._begun + self._seconds + self._bytes / RATE_MIN - now
        if self._until is not None:
            left = min(left, self._until - now)
        if left <= 0:
            raise TimeoutError("it took too long")
        return min(left, self._seconds)


class _Reader(io.RawIOBase):
    """A connection's stream for http.client, with its patience."""

    def __init__(self, connection: "Connection") -> None:
        super().__init__()
        self._connection = connection
        self._socket = connection.sock
        self._stream = connection.sock.makefile("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> Optional[int]:
        patience = self._connection.patience
        self._socket.settimeout(patience.left())
        count = self._stream.readinto(buffer)
        patience.add(count or 0)
        return count

    def close(self) -> None:
        self._stream.close()
        super().close()

    def makefile(self, *_arguments: Any) -> io.BufferedReader:
        return io.BufferedReader(self)


class Connection(http.client.HTTPConnection):
    """A connection of any kind; `sock` is its stream."""

    def __init__(self, host: str = "berth", port: Optional[int] = None) -> None:
        super().__init__(host, port, timeout=CONNECT_TIMEOUT)
        self.patience = Patience(CONNECT_TIMEOUT)
        # By what http.client makes a response of a socket.
        self.response_class: Any = self._response

    def _response(self, _sock: socket.socket, *arguments: Any, **keywords: Any) -> http.client.HTTPResponse:
        reader: Any = _Reader(self)
        return http.client.HTTPResponse(reader, *arguments, **keywords)

    def send(self, data: Any) -> None:
        """All of it, within the patience."""
        view = memoryview(data)
        while len(view) > 0:
            self.sock.settimeout(self.patience.left())
            count = self.sock.send(view[:RATE_MIN])
            self.patience.add(count)
            view = view[count:]

    def connect(self) -> None:
        super().connect()
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def is_fresh(self) -> bool:
        """Whether the other side has not ended it. Nothing is sent unasked, so what can be read is an end."""
        if self.sock is None:
            return False
        try:
            poll = select.poll()
            poll.register(self.sock.fileno(), select.POLLIN)
            return not poll.poll(0)
        except (OSError, ValueError):
            return False

    def explanation(self) -> str:
        """What is known of why it ended; may be empty."""
        return ""


class UnixConnection(Connection):
    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path

    def connect(self) -> None:
        stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            stream.settimeout(self.timeout)
            stream.connect(self._path)
        except BaseException:
            stream.close()
            raise
        self.sock = stream


class TlsConnection(Connection):
    def __init__(self, host: str, port: int, context: ssl.SSLContext) -> None:
        super().__init__(host, port)
        self._context = context

    def connect(self) -> None:
        super().connect()
        plain = self.sock
        try:
            self.sock = self._context.wrap_socket(plain, server_hostname=self.host)
        except BaseException:
            plain.close()
            raise


class _Said:
    """The end of what a command says on standard error, which is read to its end and else forgotten."""

    def __init__(self) -> None:
        self._ours, self.theirs = os.pipe()
        self._tail = bytearray()
        self._left = False
        self._thread = threading.Thread(target=self._read, daemon=True)

    def start(self) -> None:
        os.close(self.theirs)
        self._thread.start()

    def give_up(self) -> None:
        """In place of start."""
        os.close(self.theirs)
        os.close(self._ours)

    def _read(self) -> None:
        poll = select.poll()
        poll.register(self._ours, select.POLLIN)
        while not self._left:
            if not poll.poll(200):
                continue
            data = os.read(self._ours, 65536)
            if not data:
                break
            self._tail += data
            del self._tail[:max(0, len(self._tail) - CHILD_ERROR_MAX)]
        os.close(self._ours)

    def wait(self, seconds: float) -> None:
        """Until nobody can say anything any more."""
        self._thread.join(seconds)

    def leave(self) -> None:
        self._left = True

    def text(self) -> str:
        return bytes(self._tail).decode("utf-8", "replace").strip()


class CommandConnection(Connection):
    """The standard input and output of a shell command. It is ended with the connection, with all that it has started in
    its process group."""

    def __init__(self, command: str) -> None:
        super().__init__()
        self._command = command
        self._child: Optional["subprocess.Popen[bytes]"] = None
        self._said: Optional[_Said] = None

    def connect(self) -> None:
        ours, theirs = socket.socketpair()
        said = _Said()
        try:
            self._child = subprocess.Popen(
                ["/bin/sh", "-c", self._command], stdin=theirs.fileno(), stdout=theirs.fileno(),
                stderr=said.theirs, start_new_session=True)
        except BaseException:
            ours.close()
            said.give_up()
            raise
        finally:
            theirs.close()
        said.start()
        self._said = said
        self.sock = ours

    def explanation(self) -> str:
        if self._said is None:
            return ""
        self._said.wait(CHILD_ERROR_TIMEOUT)
        return self._said.text()

    def close(self) -> None:
        super().close()
        child, self._child = self._child, None
        said, self._said = self._said, None
        if child is None or said is None:
            return
        # Until it is waited for, its ID is its own, and so is its group's.
        if not _has_ended(child.pid, CHILD_END_TIMEOUT):
            os.killpg(child.pid, signal.SIGTERM)
            _has_ended(child.pid, CHILD_END_TIMEOUT)
        said.wait(CHILD_ERROR_TIMEOUT)  # what it has started ends as well
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        said.leave()


def _has_ended(pid: int, seconds: float) -> bool:
    """Whether a child has, within so long. It is not waited for."""
    until = time.monotonic() + seconds
    pause = 0.001
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
        if time.monotonic() > until:
            return False
        time.sleep(pause)
        pause = min(2 * pause, 0.05)
    return True


def describe(error: BaseException, connection: Optional[Connection]) -> str:
    """Why a connection failed, in a line."""
    text: List[str] = [str(error) or type(error).__name__]
    said = connection.explanation() if connection is not None else ""
    if said:
        text.append(said.splitlines()[-1])
    return ": ".join(text)

"""Connections to a Berth service, for HTTP/1.1: unix sockets, TLS, plain loopback, and the standard
input and output of a command such as `ssh HOST berthd --stdio`."""

from __future__ import annotations

import contextlib
import http.client
import os
import select
import signal
import socket
import ssl
import subprocess
import tempfile
from dataclasses import dataclass
from typing import IO, List, Mapping, Optional, Tuple
from urllib.parse import urlsplit

CONNECT_TIMEOUT = 20.0
# How long a command that is a stream may go on when its input has ended.
CHILD_END_TIMEOUT = 2.0
# Of what such a command says on standard error, as much is told.
CHILD_ERROR_MAX = 2048
TOKEN_FILE_MAX = 64 << 10


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


class Connection(http.client.HTTPConnection):
    """A connection of any kind; `sock` is its stream."""

    def __init__(self, host: str = "berth", port: Optional[int] = None) -> None:
        super().__init__(host, port, timeout=CONNECT_TIMEOUT)

    def connect(self) -> None:
        super().connect()
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def limit(self, seconds: float) -> None:
        """For how long one read or write may stand still."""
        self.timeout = seconds
        if self.sock is not None:
            self.sock.settimeout(seconds)

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


class CommandConnection(Connection):
    """The standard input and output of a shell command. It is ended with the connection."""

    def __init__(self, command: str) -> None:
        super().__init__()
        self._command = command
        self._child: Optional["subprocess.Popen[bytes]"] = None
        self._errors: Optional[IO[bytes]] = None

    def connect(self) -> None:
        ours, theirs = socket.socketpair()
        try:
            self._errors = tempfile.TemporaryFile()
            self._child = subprocess.Popen(
                ["/bin/sh", "-c", self._command], stdin=theirs.fileno(), stdout=theirs.fileno(),
                stderr=self._errors,
                start_new_session=True)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        ours.settimeout(self.timeout)
        self.sock = ours

    def explanation(self) -> str:
        if self._errors is None:
            return ""
        with contextlib.suppress(OSError, ValueError):
            size = self._errors.seek(0, os.SEEK_END)
            self._errors.seek(max(0, size - CHILD_ERROR_MAX))
            return self._errors.read().decode("utf-8", "replace").strip()
        return ""

    def close(self) -> None:
        super().close()
        child, self._child = self._child, None
        if child is not None:
            try:
                child.wait(CHILD_END_TIMEOUT)
            except subprocess.TimeoutExpired:
                # What the command line has started is of its session.
                for ending in (signal.SIGTERM, signal.SIGKILL):
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(child.pid, ending)
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        child.wait(CHILD_END_TIMEOUT)
                        break
        errors, self._errors = self._errors, None
        if errors is not None:
            errors.close()


def describe(error: BaseException, connection: Optional[Connection]) -> str:
    """Why a connection failed, in a line."""
    text: List[str] = [str(error) or type(error).__name__]
    said = connection.explanation() if connection is not None else ""
    if said:
        text.append(said.splitlines()[-1])
    return ": ".join(text)

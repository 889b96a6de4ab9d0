"""Bytes to and from a service, without a client's good manners: for tests that send what no
client would, or do not read what every client would."""

import json
import socket
import ssl
import struct
from urllib.parse import urlsplit

from lib.berthwire import HEADER, MESSAGES, encode, frame, sized

NAMES = ("HELLO", "WELCOME", "ERROR", "PING", "PONG", "GRANT", "GOODBYE", "STATUS", "STATUS_REPLY",
         "WORKSPACE_CREATE", "WORKSPACE_OPEN", "WORKSPACE", "WORKSPACE_ROOT", "LOOKUP", "FORGET",
         "GETATTR", "ATTRS", "DATA", "CREATE", "CREATED", "READ", "WRITE", "WRITTEN", "RELEASE")
(HELLO, WELCOME, ERROR, PING, PONG, GRANT, GOODBYE, STATUS, STATUS_REPLY,
 WORKSPACE_CREATE, WORKSPACE_OPEN, WORKSPACE, WORKSPACE_ROOT, LOOKUP, FORGET,
 GETATTR, ATTRS, DATA, CREATE, CREATED, READ, WRITE, WRITTEN, RELEASE) = (
     MESSAGES[name].number for name in NAMES)

PAYLOAD_MAX = 0x400000
text = sized


def hello(version=1, max_payload=PAYLOAD_MAX, window=1 << 20, features=0, agent=b"test"):
    return encode("HELLO", version=version, max_payload=max_payload, window=window,
                  features=features, agent=agent)


def request(target="/v1/stream", method="GET", upgrade="berth/1", token=None, host="test",
            extra=""):
    lines = [f"{method} {target} HTTP/1.1"]
    if host is not None:
        lines.append(f"Host: {host}")
    # Only for frames is the connection the peer's to keep.
    options = [] if target.startswith("/v1/stream") else ["close"]
    if upgrade is not None:
        lines.append(f"Upgrade: {upgrade}")
        options.append("Upgrade")
    if options:
        lines.append("Connection: " + ", ".join(options))
    if token is not None:
        lines.append(f"Authorization: Bearer {token}")
    return ("\r\n".join(lines) + "\r\n" + extra + "\r\n").encode()


def connect(url, ca=None, pair=None, timeout=20):
    """A socket, through TLS for https."""
    if url.startswith("unix:"):
        plain = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        plain.settimeout(timeout)
        plain.connect(url[5:])
        return plain
    parts = urlsplit(url)
    plain = socket.create_connection((parts.hostname, parts.port), timeout)
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if parts.scheme == "http":
        return plain
    context = ssl.create_default_context(cafile=ca)
    if pair:
        context.load_cert_chain(*pair)
    return context.wrap_socket(plain, server_hostname=parts.hostname)


def read_all(connection, limit=1 << 20):
    """Until the other side closes, in whatever way."""
    data = b""
    try:
        while len(data) < limit and (chunk := connection.recv(65536)):
            data += chunk
    except (ConnectionError, ssl.SSLError):
        pass
    return data


class Answer:
    """An HTTP answer that ended with the connection."""

    def __init__(self, data):
        head, _, self.body = data.partition(b"\r\n\r\n")
        status, *fields = head.decode("latin-1").split("\r\n")
        self.status = int(status.split()[1]) if status else 0
        self.fields = {name.lower(): value.strip()
                       for name, value in (field.split(":", 1) for field in fields)}

    @property
    def problem(self):
        assert self.fields["content-type"] == "application/problem+json"
        assert int(self.fields["content-length"]) == len(self.body)
        document = json.loads(self.body)
        assert document["status"] == self.status
        assert document["title"] and document["detail"]
        return document


def ask(url, data, **keywords):
    """Sends bytes and returns the answer."""
    with connect(url, **keywords) as connection:
        connection.sendall(data)
        return Answer(read_all(connection))


class Stream:
    """Frames over an upgraded connection."""

    def __init__(self, url, token=None, greet=True, connection=None, **keywords):
        self.connection = connection or connect(url, **keywords)
        self.received = bytearray()
        self.tag = 1
        self.connection.sendall(request(token=token))
        while b"\r\n\r\n" not in self.received:
            self._receive()
        head, _, self.received = self.received.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101 "), head
        if greet:
            self.send(frame(HELLO, 1, hello()))
            assert self.take()[0] == WELCOME

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.connection.close()

    def send(self, data):
        self.connection.sendall(data)

    def _receive(self):
        chunk = self.connection.recv(1 << 18)
        if not chunk:
            raise EOFError
        self.received += chunk

    def take(self):
        """The next frame: (type, tag, payload). EOFError at the end."""
        while len(self.received) < HEADER.size:
            self._receive()
        length, kind, _, tag = HEADER.unpack_from(self.received)
        while len(self.received) < HEADER.size + length:
            self._receive()
        payload = bytes(self.received[HEADER.size:HEADER.size + length])
        del self.received[:HEADER.size + length]
        return kind, tag, payload

    def open_call(self, kind, payload):
        self.tag += 1
        self.send(frame(kind, self.tag, payload))
        return self.tag

    def call(self, kind, payload):
        """Sends a request and takes the next frame, which must be its reply."""
        tag = self.open_call(kind, payload)
        reply, answered, body = self.take()
        assert answered == tag
        return reply, body

    def ping(self, nonce=7):
        assert self.call(PING, struct.pack("<Q", nonce)) == (PONG, struct.pack("<QI", nonce, 0))

    def status(self):
        kind, body = self.call(STATUS, struct.pack("<I", 0))
        assert kind == STATUS_REPLY
        return json.loads(body[4:])

    def create_workspace(self, thread_id):
        kind, body = self.call(WORKSPACE_CREATE, struct.pack("<IQQ", 0, 0, 0) + text(thread_id) + 3 * text(b""))
        assert kind == WORKSPACE, body
        kind, body = self.call(WORKSPACE_OPEN, struct.pack("<I", 0) + text(thread_id))
        assert kind == WORKSPACE_ROOT, body
        return struct.unpack_from("<Q", body)[0]

    def create_file(self, parent, name, flags=3):
        """Node and handle of a new file, open for reading and writing."""
        kind, body = self.call(CREATE, encode("CREATE", parent=parent, flags=flags, mode=0o644, name=name))
        assert kind == CREATED, body
        return struct.unpack_from("<QQ", body)

    def last_words(self):
        """Takes frames until the end; the text of the GOODBYE among them, or None."""
        goodbye = None
        try:
            while True:
                kind, _, payload = self.take()
                if kind == GOODBYE:
                    goodbye = payload[8:].decode()
        except (EOFError, ConnectionError, ssl.SSLError):
            return goodbye

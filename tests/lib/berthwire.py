"""The wire protocol in Python, made from common/wire/messages.def: for tests that need a peer
which follows it, or one which does not. Blocking and simple.

    wire = Connection.unix(path)                  # or .tcp(host, port, context), .process(popen)
    wire.upgrade(token="…")                       # HTTP, up to 101
    wire.hello()
    root = wire.call("WORKSPACE_OPEN", key=b"demo")["node"]
    wire.send("LOOKUP", 7, parent=root, name=b"x" * 300)   # no bound is checked here
    wire.send_raw(b"garbage")
    frame = wire.receive()                        # Frame, or None at the end of the stream

Field values: int; bytes; LIST: a list of bytes; TIME: (seconds, nanoseconds); ATTR: a dict.
Fields that are not given are 0, empty, or as short as the table allows.
"""

import re
import socket
import struct
from dataclasses import dataclass, field
from pathlib import Path

WIRE = Path(__file__).resolve().parents[2] / "common" / "wire"
HEADER = struct.Struct("<IHHQ")

ZSTD_STREAM = 1
ZSTD = 2


class Malformed(Exception):
    """A payload that is not what the table says."""


class Closed(Exception):
    """The peer ended the stream."""


class Refused(Exception):
    """The upgrade was answered with something else than 101."""

    def __init__(self, status, head, body):
        super().__init__(f"{status}: {body.decode(errors='replace')}")
        self.status, self.head, self.body = status, head, body


class CallError(Exception):
    """A call that was answered with ERROR."""

    def __init__(self, error, text):
        super().__init__(f"errno {error}: {text.decode(errors='replace')}")
        self.errno, self.text = error, text


# --- the table ---------------------------------------------------------------------

@dataclass(frozen=True)
class Field:
    name: str
    kind: str  # U32, U64, TIME, ATTR, BYTES, LIST
    min: int = 0
    max: int = 0
    max_count: int = 0


@dataclass
class Message:
    name: str
    number: int
    sender: str
    phase: str
    kind: str
    effect: str
    verb: str
    owner: str
    summary: str
    fields: list = field(default_factory=list)

    @property
    def min_payload(self):
        return sum(SIZES[f.kind] + f.min for f in self.fields)

    @property
    def max_payload(self):
        return sum(SIZES[f.kind] + f.max for f in self.fields)


ATTR_FIELDS = [("ino", "Q"), ("generation", "Q"), ("version", "Q"), ("size", "Q"),
               ("blocks", "Q"), ("mode", "I"), ("nlink", "I"), ("uid", "I"), ("gid", "I"),
               ("rdev", "I"), ("blksize", "I"), ("atime", "time"), ("mtime", "time"),
               ("ctime", "time"), ("flags", "Q")]
SIZES = {"U32": 4, "U64": 8, "TIME": 12, "ATTR": 108, "BYTES": 4, "LIST": 4}


def _read_constants(text):
    found = re.findall(r"^#define (WIRE_\w+) (0x[0-9a-fA-F]+|\d+)\b", text, re.M)
    found += re.findall(r"^\s*(WIRE_\w+) = (0x[0-9a-fA-F]+|\d+),", text, re.M)
    return {name: int(value, 0) for name, value in found}


def _read_table(text, constants):
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    number = lambda s: constants[s] if s in constants else int(s, 0)
    messages = {}
    pattern = re.compile(r'MESSAGE\(([^"]*?),\s*((?:"[^"]*"\s*)+)\)|FIELD_(\w+)\(([^)]*)\)')
    for match in pattern.finditer(text):
        if match[1]:
            name, _, code, sender, phase, kind, effect, verb, owner = match[1].replace("\n", " ").split(",")
            summary = "".join(re.findall(r'"([^"]*)"', match[2]))
            current = Message(name.strip(), number(code.strip()), sender.strip(), phase.strip(),
                              kind.strip(), effect.strip(), verb.strip(), owner.strip(), summary)
            messages[current.name] = current
        else:
            kind, (_, name, *bounds) = match[3], [part.strip() for part in match[4].split(",")]
            bounds = [number(b) for b in bounds]
            if kind == "BYTES":
                current.fields.append(Field(name, kind, bounds[0], bounds[1]))
            elif kind == "LIST":
                current.fields.append(Field(name, kind, 0, bounds[1], bounds[0]))
            else:
                current.fields.append(Field(name, kind))
    return messages


CONSTANTS = _read_constants((WIRE / "wire.h").read_text())
MESSAGES = _read_table((WIRE / "messages.def").read_text(), CONSTANTS)
BY_NUMBER = {m.number: m for m in MESSAGES.values()}


# --- encoding ----------------------------------------------------------------------

def u32(value):
    return struct.pack("<I", value)


def sized(data):
    return u32(len(data)) + data


def _encode_time(value):
    seconds, nanoseconds = (value, 0) if isinstance(value, int) else value
    return struct.pack("<qI", seconds, nanoseconds)


def _encode_attr(value):
    parts = []
    for name, kind in ATTR_FIELDS:
        if kind == "time":
            parts.append(_encode_time(value.get(name, 0)))
        else:
            parts.append(struct.pack("<" + kind, value.get(name, 0)))
    return b"".join(parts)


def _encode_field(f, value):
    if f.kind == "U32":
        return u32(value or 0)
    if f.kind == "U64":
        return struct.pack("<Q", value or 0)
    if f.kind == "TIME":
        return _encode_time(value or 0)
    if f.kind == "ATTR":
        return _encode_attr(value or {})
    if f.kind == "BYTES":
        return sized(b"x" * f.min if value is None else value)
    return sized(b"".join(sized(element) for element in value or []))


def encode(name, /, **values):
    """A payload. Bounds are not checked: a test may send what must be refused."""
    message = MESSAGES[name]
    unknown = set(values) - {f.name for f in message.fields}
    if unknown:
        raise TypeError(f"{name} has no {', '.join(sorted(unknown))}")
    return b"".join(_encode_field(f, values.get(f.name)) for f in message.fields)


def frame(kind, tag, payload=b"", flags=0, length=None):
    """A frame of any type number or name; `length` may lie."""
    number = MESSAGES[kind].number if isinstance(kind, str) else kind
    return HEADER.pack(len(payload) if length is None else length, number, flags, tag) + payload


def message(name, tag, /, **values):
    return frame(name, tag, encode(name, **values))


# --- decoding ----------------------------------------------------------------------

class _Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, n):
        if n > len(self.data) - self.at:
            raise Malformed("fields are cut short")
        self.at += n
        return self.data[self.at - n:self.at]

    def unpack(self, kind):
        return struct.unpack("<" + kind, self.take(struct.calcsize("<" + kind)))

    def sized(self):
        return self.take(self.unpack("I")[0])

    def end(self):
        if self.at != len(self.data):
            raise Malformed(f"{len(self.data) - self.at} bytes trail")


def _decode_field(f, reader):
    if f.kind == "U32":
        return reader.unpack("I")[0]
    if f.kind == "U64":
        return reader.unpack("Q")[0]
    if f.kind == "TIME":
        return reader.unpack("qI")
    if f.kind == "ATTR":
        return {name: reader.unpack("qI") if kind == "time" else reader.unpack(kind)[0]
                for name, kind in ATTR_FIELDS}
    data = reader.sized()
    if not f.min <= len(data) <= f.max:
        raise Malformed(f"{f.name} of {len(data)} bytes, not {f.min} to {f.max}")
    if f.kind == "BYTES":
        return data
    elements, inner = [], _Reader(data)
    while inner.at < len(data):
        elements.append(inner.sized())
    if len(elements) > f.max_count:
        raise Malformed(f"{f.name} of {len(elements)} elements, not {f.max_count}")
    return elements


def decode(kind, payload):
    """The fields of a payload as a dict; Malformed unless it is exactly what the table says."""
    described = MESSAGES[kind] if isinstance(kind, str) else BY_NUMBER[kind]
    reader = _Reader(payload)
    values = {f.name: _decode_field(f, reader) for f in described.fields}
    reader.end()
    return values


def decode_list(kind, elements):
    """The records in a LIST, for example decode_list("DIRENT", dirents["entries"])."""
    return [decode(kind, element) for element in elements]


@dataclass
class Frame:
    type: int
    flags: int
    tag: int
    payload: bytes

    @property
    def name(self):
        return BY_NUMBER[self.type].name if self.type in BY_NUMBER else f"0x{self.type:04x}"

    @property
    def fields(self):
        return decode(self.type, self.payload)

    def __getitem__(self, name):
        return self.fields[name]


# --- a connection ------------------------------------------------------------------

class Connection:
    """Speaks on a pair of functions: read(n) gives at most n bytes and b"" at the end, write(data)
    takes all. Every wait is bounded by the socket's timeout (socket.timeout is raised)."""

    def __init__(self, read, write, close=lambda: None):
        self.read, self.write, self.close = read, write, close
        self.buffer = b""
        self.queue = []      # frames received while another was awaited
        self.next_tag = 1
        self.welcome = None
        self.received = 0    # bytes of frames
        self.sent = b""      # all frames, for those who send them again

    @classmethod
    def socket(cls, sock, timeout=10):
        sock.settimeout(timeout)
        made = cls(sock.recv, sock.sendall, sock.close)
        made.sock = sock
        return made

    @classmethod
    def unix(cls, path, timeout=10):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(timeout)
        try:
            sock.connect(str(path))
        except OSError:
            sock.close()
            raise
        return cls.socket(sock, timeout)

    @classmethod
    def tcp(cls, host, port, context=None, timeout=10, server_name=None):
        """With an ssl.SSLContext: TLS."""
        sock = socket.create_connection((host, port), timeout)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if context:
            try:
                sock = context.wrap_socket(sock, server_hostname=server_name or host)
            except OSError:
                sock.close()
                raise
        return cls.socket(sock, timeout)

    @classmethod
    def process(cls, process):
        """On a Popen with pipes (unbuffered or not); its own time limit is the caller's."""
        def write(data):
            process.stdin.write(data)
            process.stdin.flush()

        read = getattr(process.stdout, "read1", process.stdout.read)
        return cls(read, write, process.stdin.close)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()

    # HTTP

    def upgrade(self, token=None, host="localhost", path="/v1/stream", headers=()):
        lines = [f"GET {path} HTTP/1.1", f"Host: {host}", "Connection: Upgrade", "Upgrade: berth/1"]
        if token is not None:
            lines.append(f"Authorization: Bearer {token}")
        lines.extend(headers)
        self.send_raw("\r\n".join(lines + ["", ""]).encode())
        status, head = self.read_head()
        if status != 101:
            match = re.search(rb"^content-length: *(\d+)", head, re.M | re.I)
            body = self.take(int(match[1])) if match else b""
            raise Refused(status, head, body)
        return head

    def read_head(self):
        """The status and the head of an HTTP response."""
        while b"\r\n\r\n" not in self.buffer:
            self._fill()
        head, self.buffer = self.buffer.split(b"\r\n\r\n", 1)
        return int(head.split(b" ", 2)[1]), head

    # frames

    def _fill(self):
        data = self.read(65536)
        if not data:
            raise Closed(f"with {len(self.buffer)} bytes of a frame" if self.buffer else "")
        self.buffer += data

    def take(self, n):
        while len(self.buffer) < n:
            self._fill()
        data, self.buffer = self.buffer[:n], self.buffer[n:]
        return data

    def send_raw(self, data):
        self.write(data)

    def send(self, name, tag, /, **values):
        data = message(name, tag, **values)
        self.sent += data
        self.write(data)

    def request(self, name, /, **values):
        """Sends a request under the next tag, and gives the tag."""
        tag, self.next_tag = self.next_tag, self.next_tag + 1
        self.send(name, tag, **values)
        return tag

    def receive_new(self):
        """The next frame off the stream. Closed when the stream ends, also within a frame."""
        length, kind, flags, tag = HEADER.unpack(self.take(HEADER.size))
        got = Frame(kind, flags, tag, self.take(length))
        self.received += HEADER.size + length
        return got

    def receive(self):
        """The next frame, those first that came while another was awaited; None at the end."""
        if self.queue:
            return self.queue.pop(0)
        try:
            return self.receive_new()
        except (Closed, ConnectionResetError):
            return None

    def wait(self, tag, *names):
        """The next frame of this tag (and of one of these names), others are kept for later."""
        wanted = lambda f: f.tag == tag and (not names or f.name in names)
        for i, kept in enumerate(self.queue):
            if wanted(kept):
                return self.queue.pop(i)
        while True:
            got = self.receive_new()
            if wanted(got):
                return got
            if got.name == "GOODBYE":
                raise Closed(f"GOODBYE {got['error']}: {got['text'].decode(errors='replace')}")
            self.queue.append(got)

    def hello(self, version=1, max_payload=0x400000, window=0x100000, features=0, agent=b"berthwire",
              **values):
        tag = self.request("HELLO", version=version, max_payload=max_payload, window=window,
                           features=features, agent=agent, **values)
        self.welcome = self.wait(tag, "WELCOME").fields
        return self.welcome

    def resume(self, old, key=None, received=None, abandoned=0):
        """HELLO that asks for the session of an older Connection. If it is granted: what the service
        lacks of it is sent again, and this goes on as the old one. The WELCOME's fields."""
        welcome = self.hello(features=old.welcome["features"], key=old.welcome["key"] if key is None else key,
                             received=old.received if received is None else received, abandoned=abandoned)
        if welcome["resumed"]:
            self.welcome, self.next_tag, self.queue = old.welcome, old.next_tag, old.queue
            self.received, self.sent = old.received, old.sent
            self.send_raw(self.sent[welcome["received"]:])
        return welcome

    def reply(self, tag):
        """The reply of a call as a Frame; CallError for ERROR."""
        owner_replies = {m.name for m in MESSAGES.values() if m.kind == "REPLY"}
        got = self.wait(tag, *owner_replies)
        if got.name == "ERROR":
            raise CallError(got["error"], got["text"])
        return got

    def call(self, name, /, **values):
        return self.reply(self.request(name, **values))

    def until_closed(self):
        """All frames up to the end of the stream; a GOODBYE, if any, is the last."""
        frames = []
        while (got := self.receive()) is not None:
            frames.append(got)
        return frames

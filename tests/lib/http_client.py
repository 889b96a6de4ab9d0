"""A strict HTTP/1.1 client: what it does not expect in an answer is an error, so that nothing wrong
is taken for right, and one answer's bytes never for another's."""

import json
from urllib.parse import quote

from lib import raw


class Response:
    def __init__(self, status, fields, body):
        self.status = status
        self.fields = fields
        self.body = body

    @property
    def json(self):
        assert self.fields["content-type"] == "application/json", (self.status, self.body)
        return json.loads(self.body)

    @property
    def problem(self):
        assert self.fields["content-type"] == "application/problem+json", (self.status, self.body)
        document = json.loads(self.body)
        assert document["status"] == self.status
        return document


class Http:
    """One connection."""

    def __init__(self, url, token=None, **keywords):
        self.connection = raw.connect(url, **keywords)
        self.token = token
        self.received = bytearray()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.connection.close()

    def send(self, data):
        self.connection.sendall(data)

    def _receive(self):
        chunk = self.connection.recv(1 << 18)
        if not chunk:
            raise EOFError(bytes(self.received))
        self.received += chunk

    def _take(self, size):
        while len(self.received) < size:
            self._receive()
        taken = bytes(self.received[:size])
        del self.received[:size]
        return taken

    def _line(self):
        while b"\r\n" not in self.received:
            self._receive()
        end = self.received.index(b"\r\n")
        line = self.received[:end].decode("latin-1")
        del self.received[:end + 2]
        return line

    def _chunks(self):
        while True:
            size = int(self._line(), 16)
            data = self._take(size)
            assert self._take(2) == b"\r\n"
            if size == 0:
                return
            yield data

    def head(self):
        """Status and fields of the next answer."""
        version, status, title = self._line().split(" ", 2)
        assert version == "HTTP/1.1" and len(status) == 3 and title
        fields = {}
        while line := self._line():
            name, separator, value = line.partition(":")
            assert separator and name == name.strip() and name.lower() not in fields, line
            fields[name.lower()] = value.strip()
        return int(status), fields

    def chunks(self, fields):
        """The content that follows, as it comes."""
        if "transfer-encoding" in fields:
            assert fields["transfer-encoding"] == "chunked" and "content-length" not in fields
            yield from self._chunks()
        else:
            yield self._take(int(fields["content-length"]))

    def answer(self, method="GET"):
        status, fields = self.head()
        assert "date" in fields
        if method == "HEAD" or status in (204, 304):
            assert status != 204 or "content-length" not in fields
            return Response(status, fields, b"")
        return Response(status, fields, b"".join(self.chunks(fields)))

    def start(self, method, target, body=None, fields=(), chunked=False):
        """Sends a request, and does not wait."""
        fields = dict(fields)
        if isinstance(body, (dict, list)):
            fields.setdefault("Content-Type", "application/json")
            body = json.dumps(body).encode()
        lines = [f"{method} {target} HTTP/1.1", "Host: test"]
        if self.token is not None:
            lines.append(f"Authorization: Bearer {self.token}")
        if chunked:
            lines.append("Transfer-Encoding: chunked")
            body = b"".join(b"%x\r\n%s\r\n" % (len(part), part)
                            for part in (body[at:at + 1000] for at in range(0, len(body), 1000))) + b"0\r\n\r\n"
        elif body is not None:
            lines.append(f"Content-Length: {len(body)}")
        lines += [f"{name}: {value}" for name, value in fields.items()]
        self.send(("\r\n".join(lines) + "\r\n\r\n").encode() + (body or b""))

    def ask(self, method, target, body=None, fields=(), chunked=False):
        self.start(method, target, body, fields, chunked)
        return self.answer(method)

    def get(self, target, **fields):
        return self.ask("GET", target, fields=fields)

    def is_closed(self):
        """The other side has sent all and closed."""
        if self.received:
            return False
        try:
            return self.connection.recv(1) == b""
        except ConnectionError:
            return True


def workspace(name, rest=""):
    return f"/v1/workspaces/{quote(name, safe='')}{rest}"

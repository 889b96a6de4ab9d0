"""An HTTP client for a service's /v1, of the standard library alone: over its unix socket, or TCP with
a token."""

import http.client
import json
import socket
from urllib.parse import quote, urlsplit


class Answer:
    def __init__(self, response, body):
        self.status = response.status
        self.fields = {name.lower(): value for name, value in response.getheaders()}
        self.body = body

    @property
    def json(self):
        return json.loads(self.body)

    def __repr__(self):
        return f"<{self.status} {self.fields} {self.body[:400]!r}>"


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path, timeout):
        super().__init__("localhost", timeout=timeout)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


def segment(text):
    """Bytes or text as one segment of a path."""
    return quote(text, safe="")


class Web:
    """Requests on one connection that is kept. Paths are below /v1/workspaces/ID, where a workspace is
    given, else below /v1."""

    def __init__(self, url, token=None, workspace=None, timeout=60):
        self.url, self.token, self.workspace, self.timeout = url, token, workspace, timeout
        self.connection = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        if self.connection:
            self.connection.close()
            self.connection = None

    def another(self, **changes):
        values = {"url": self.url, "token": self.token, "workspace": self.workspace, "timeout": self.timeout}
        return Web(**{**values, **changes})

    def _connect(self):
        if self.url.startswith("unix:"):
            return UnixConnection(self.url[5:], self.timeout)
        address = urlsplit(self.url)
        return http.client.HTTPConnection(address.hostname, address.port, timeout=self.timeout)

    def target(self, path):
        return f"/v1/workspaces/{segment(self.workspace)}{path}" if self.workspace else f"/v1{path}"

    def open(self, method, path, body=None, fields=(), chunked=False):
        """The response, whose body is not read."""
        if self.connection is None:
            self.connection = self._connect()
        fields = dict(fields)
        if self.token:
            fields["Authorization"] = f"Bearer {self.token}"
        if isinstance(body, (dict, list)):
            body = json.dumps(body).encode()
        self.connection.request(method, self.target(path), body=body, headers=fields, encode_chunked=chunked)
        return self.connection.getresponse()

    def ask(self, method, path, body=None, **fields):
        """fields: header fields, _ for -."""
        fields = {name.replace("_", "-"): value for name, value in fields.items()}
        response = self.open(method, path, body, fields)
        answer = Answer(response, response.read())
        if response.will_close:
            self.close()
        return answer

    def lines(self, method, path, body=None):
        """The objects of a stream, as they come."""
        response = self.open(method, path, body, {"Accept": "application/x-ndjson"})
        assert response.status == 200, response.read()
        assert response.getheader("content-type") == "application/x-ndjson"
        for line in response:
            yield json.loads(line)

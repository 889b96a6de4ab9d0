"""Requests about one workspace, on a connection that is kept."""

import json

from lib.http_client import Http, workspace


class Answer:
    """JSON whatever it says: problem documents too."""

    def __init__(self, response):
        self.status, self.fields, self.body = response.status, response.fields, response.body

    @property
    def json(self):
        return json.loads(self.body)

    def __repr__(self):
        return f"<{self.status} {self.fields} {self.body[:400]!r}>"


class Web:
    def __init__(self, url, token=None, workspace=None):
        self.url, self.token, self.workspace = url, token, workspace
        self.http = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        if self.http:
            self.http.close()
            self.http = None

    def another(self, **changes):
        return Web(**{"url": self.url, "token": self.token, "workspace": self.workspace, **changes})

    def target(self, path):
        return workspace(self.workspace, path)

    def start(self, method, path, body=None, fields=(), chunked=False):
        """Sends a request, and does not wait: self.http has what comes."""
        if not self.http:
            self.http = Http(self.url, self.token)
        self.http.start(method, self.target(path), body, fields, chunked)

    def ask(self, method, path, body=None, chunked=False, **fields):
        """fields: header fields, _ for -."""
        self.start(method, path, body, {name.replace("_", "-"): value for name, value in fields.items()}, chunked)
        answer = Answer(self.http.answer(method))
        if answer.fields.get("connection") == "close":
            self.close()
        return answer

    def lines(self, method, path, body=None):
        """The objects of a stream, as they come."""
        self.start(method, path, body, {"Accept": "application/x-ndjson"})
        status, fields = self.http.head()
        assert (status, fields["content-type"]) == (200, "application/x-ndjson")
        rest = b""
        for chunk in self.http.chunks(fields):
            *lines, rest = (rest + chunk).split(b"\n")
            yield from map(json.loads, lines)
        assert rest == b""

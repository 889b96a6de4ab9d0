"""The native HTTP interface of a Berth service (/v1), as far as sandboxes need it. Each failure says
whether anything has happened; requests are sent again only where that cannot do a thing twice."""

from __future__ import annotations

import http.client
import json
import threading
import time
from dataclasses import dataclass, field
from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple
from urllib.parse import quote, urlencode

from berth_airflow.transport import Address, Connection, Patience, describe

JSON = Dict[str, Any]

# What an answer may be at most: two outputs of 4 MiB in JSON, each byte at most six characters of it.
DOCUMENT_MAX = 64 << 20
STREAM_TYPE = "application/x-ndjson"
# A line of a stream of events.
LINE_MAX = 16 << 20
# Connections that nobody uses are kept so many and so long. The service gives up idle ones later.
IDLE_MAX = 4
IDLE_SECONDS = 20.0
# A request and its answer take so long at most, and what their bytes may take (RATE_MIN); so does an event of a
# stream, which says something every 10 s.
ANSWER_SECONDS = 60.0
STREAM_SECONDS = 40.0
# For how long a service that does not answer, or is busy, is asked again.
RECOVERY_SECONDS = 30.0
BUSY_SECONDS = 10.0


class BerthError(Exception):
    """A refusal. effect: "none", "done" or "unknown"."""

    def __init__(self, detail: str, *, status: int = 0, errno: str = "", retry: bool = False,
                 effect: str = "none") -> None:
        self.status, self.errno, self.retry, self.effect = status, errno, retry, effect
        self.detail = detail
        super().__init__(detail)


class UnreachableError(BerthError):
    """No connection: nothing was asked."""


class LostError(BerthError):
    """It was asked, and there is no answer: what happened is not known."""

    def __init__(self, detail: str) -> None:
        super().__init__(detail, retry=True, effect="unknown")


@dataclass
class Answer:
    status: int
    fields: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return _parsed(self.body, "the service's answer is no JSON")

    def document(self) -> JSON:
        value = self.json()
        if not isinstance(value, dict):
            raise LostError("the service's answer is no object")
        return value


def _parsed(text: bytes, otherwise: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise LostError(otherwise) from None


def _labels(value: Any) -> Dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise LostError("labels are no strings")
    return value


def _workspace(document: JSON, workspace: str) -> JSON:
    """What describes this workspace, and nothing else."""
    if document.get("id") != workspace:
        raise LostError("a workspace is described that was not asked for")
    _labels(document.get("labels"))
    return document


@dataclass
class _Idle:
    connections: List[Tuple[float, Connection]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


class Client:
    """Requests to one service. May be used by several threads; each request has a connection to itself."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._idle = _Idle()
        self._reached = False

    def close(self) -> None:
        with self._idle.lock:
            connections, self._idle.connections = self._idle.connections, []
        for _, connection in connections:
            connection.close()

    # --- requests ---

    def ask(self, method: str, path: str, *, query: Optional[Mapping[str, str]] = None,
            body: Optional[JSON] = None, content: Optional[bytes] = None,
            fields: Optional[Mapping[str, str]] = None, repeat: bool = False,
            body_max: int = DOCUMENT_MAX) -> Answer:
        """repeat: the request may be sent again when its answer is lost."""
        until = time.monotonic() + RECOVERY_SECONDS
        busy_until = time.monotonic() + BUSY_SECONDS
        pause = 0.05
        while True:
            try:
                connection, response = self._send(method, path, query, body, content, fields)
                try:
                    answer = self._take(connection, response, body_max)
                except BaseException:
                    connection.close()
                    raise
                self._give_back(connection, response)
                self._check(answer)
                return answer
            except LostError:
                if not repeat or not self.may_return() or time.monotonic() > until:
                    raise
            except UnreachableError:
                if not self.may_return() or time.monotonic() > until:
                    raise
            except BerthError as error:
                if error.status != 503 or error.effect != "none" or time.monotonic() > busy_until:
                    raise
            time.sleep(pause)
            pause = min(2 * pause, 1.0)

    def may_return(self) -> bool:
        """Whether it is worth while to wait for a service that is not there: it was, and may be started again. One that
        was never there is told of at once."""
        return self._reached

    def _connection(self) -> Connection:
        with self._idle.lock:
            while self._idle.connections:
                since, connection = self._idle.connections.pop()
                if time.monotonic() - since < IDLE_SECONDS and connection.is_fresh():
                    return connection
                connection.close()
        connection = self._address.connect()
        try:
            connection.connect()
        except BaseException:
            connection.close()
            raise
        return connection

    def _give_back(self, connection: Connection, response: http.client.HTTPResponse) -> None:
        if response.will_close or connection.sock is None:
            connection.close()
            return
        with self._idle.lock:
            if len(self._idle.connections) < IDLE_MAX:
                self._idle.connections.append((time.monotonic(), connection))
                return
        connection.close()

    def _send(self, method: str, path: str, query: Optional[Mapping[str, str]], body: Optional[JSON],
              content: Optional[bytes], fields: Optional[Mapping[str, str]],
              patience: Optional[Patience] = None) -> Tuple[Connection, http.client.HTTPResponse]:
        try:
            token = self._address.bearer()
            connection = self._connection()
        except OSError as error:
            raise UnreachableError(f"{self._address.url} is not reached: {error}") from error
        try:
            connection.patience = patience or Patience(ANSWER_SECONDS)
            headers = {"Host": "berth", **(fields or {})}
            if connection.host != "berth":
                del headers["Host"]
            if token is not None:
                headers["Authorization"] = f"Bearer {token}"
            if body is not None:
                content = json.dumps(body).encode()
                headers["Content-Type"] = "application/json"
            elif content is not None:
                headers["Content-Type"] = "application/octet-stream"
            target = path + (f"?{urlencode(query)}" if query else "")
            connection.request(method, target, body=content, headers=headers)
            response = connection.getresponse()
            self._reached = True
            return connection, response
        except (OSError, ValueError, http.client.HTTPException) as error:
            text = describe(error, connection)
            connection.close()
            raise LostError(f"the connection to {self._address.url} was lost: {text}") from error
        except BaseException:
            connection.close()
            raise

    def _take(self, connection: Connection, response: http.client.HTTPResponse, body_max: int) -> Answer:
        fields = {name.lower(): value for name, value in response.getheaders()}
        try:
            length = response.length
            if length is not None and length > body_max and response.status < 300:
                return Answer(response.status, fields, b"")  # the caller looks at its fields
            data = response.read(DOCUMENT_MAX + 1)
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise LostError(f"an answer was cut off: {describe(error, connection)}") from error
        if len(data) > DOCUMENT_MAX:
            raise LostError("an answer is longer than any the service gives")
        if response.length not in (None, 0):
            raise LostError("an answer was cut off")
        return Answer(response.status, fields, data)

    @staticmethod
    def _check(answer: Answer) -> None:
        if answer.status < 400:
            return
        try:
            problem = json.loads(answer.body)
            detail = str(problem["detail"])
        except (ValueError, KeyError, TypeError, RecursionError):
            raise BerthError(f"HTTP {answer.status}", status=answer.status, effect="unknown") from None
        raise BerthError(detail, status=answer.status, errno=str(problem.get("errno", "")),
                         retry=bool(problem.get("retry")), effect=str(problem.get("effect", "unknown")))

    def events(self, method: str, path: str, *, query: Optional[Mapping[str, str]] = None,
               body: Optional[JSON] = None, until: Optional[float] = None) -> Iterator[JSON]:
        """A stream of events up to its end, or to where the caller leaves it; LostError when it goes on after
        `until`, a time of time.monotonic()."""
        connection, response = self._send(method, path, query, body, None, {"Accept": STREAM_TYPE},
                                          Patience(STREAM_SECONDS, until))
        try:
            if response.status != 200:
                self._check(self._take(connection, response, DOCUMENT_MAX))
                raise LostError(f"HTTP {response.status} for a stream")
            while True:
                connection.patience = Patience(STREAM_SECONDS, until)
                event = self._event(connection, response)
                if event is None:
                    self._give_back(connection, response)
                    return
                yield event
        except BaseException:
            connection.close()
            raise

    @staticmethod
    def _event(connection: Connection, response: http.client.HTTPResponse) -> Optional[JSON]:
        try:
            line = response.readline(LINE_MAX)
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise LostError(f"a stream was cut off: {describe(error, connection)}") from error
        if not line and response.isclosed():
            return None
        if not line.endswith(b"\n"):
            raise LostError("a stream was cut off")
        event = _parsed(line, "a stream has a line that is no JSON")
        if not isinstance(event, dict):
            raise LostError("a stream has a line that is no event")
        return event

    # --- workspaces ---

    @staticmethod
    def place(workspace: str, rest: str = "") -> str:
        return f"/v1/workspaces/{quote(workspace, safe='')}{rest}"

    @staticmethod
    def file_place(workspace: str, kind: str, path: str) -> str:
        names = [quote(name, safe="") for name in path.split("/") if name not in ("", ".")]
        return Client.place(workspace, f"/{kind}/" + "/".join(names))

    def workspace(self, workspace: str) -> JSON:
        return _workspace(self.ask("GET", self.place(workspace), repeat=True).document(), workspace)

    def create(self, workspace: str, **fields: Any) -> JSON:
        """One that nobody else can have made: a second request finds what the first has made. LostError: it may be
        there."""
        try:
            return _workspace(self.ask("POST", "/v1/workspaces", body={"id": workspace, **fields}).document(), workspace)
        except LostError as lost:
            if not self.may_return():
                raise
            try:
                return self.workspace(workspace)
            except BerthError:
                raise lost from None

    def destroy(self, workspace: str) -> None:
        self.ask("DELETE", self.place(workspace), query={"force": "1"}, repeat=True)

    def policy(self, workspace: str) -> JSON:
        document = self.ask("GET", self.place(workspace, "/policy"), repeat=True).document()
        if not isinstance(document.get("asked"), dict):
            raise LostError("a policy is described by no object")
        return document

    def labels(self, workspace: str) -> Tuple[Dict[str, str], str]:
        """Labels, and the revision that they are of."""
        answer = self.ask("GET", self.place(workspace, "/labels"), repeat=True)
        return _labels(answer.json()), answer.fields.get("etag", "")

    def replace_labels(self, workspace: str, labels: Mapping[str, str], revision: str) -> str:
        """If the workspace has this revision still (else 412); its next one. An answer that was lost
        may be of a change that was made: LostError."""
        answer = self.ask("PUT", self.place(workspace, "/labels"), body=dict(labels),
                          fields={"If-Match": revision})
        return answer.fields.get("etag", "")

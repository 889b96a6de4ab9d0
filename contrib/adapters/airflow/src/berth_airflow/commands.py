"""A command that is run once whatever happens to connections, and told of truly. Its output is read as
it comes, the end of each stream is what is kept, and neither memory nor the network suffers from one
that prints without end."""

from __future__ import annotations

import base64
import time
import uuid
from dataclasses import dataclass
from typing import Any, Dict, Iterator, Mapping, Optional, Sequence

from berth_airflow.client import JSON, RECOVERY_SECONDS, STREAM_SECONDS, BerthError, Client, LostError, UnreachableError

# Beyond a command's time: its grace of 2 s before KILL, the end of its output, a busy machine.
GRACE_SECONDS = 30.0
# The service's own bounds for what is kept of an output, of which half is the end.
KEPT_MIN, KEPT_MAX = 64 << 10, 1 << 30
# When so much was printed, the output is followed no more, and its end is fetched afterwards.
FLOOD = 8 << 20
# An offset that no output reaches: who follows from there is told of the end alone.
NOWHERE = 1 << 60
STREAMS = ("stdout", "stderr")
# Where commands see the workspace and start, but where the service has no mount namespaces.
WORKDIR = "/workspace"


@dataclass
class Outcome:
    """A command's verdict, and the last of what it printed."""

    verdict: JSON
    stdout: bytes
    stderr: bytes
    duration: float

    @property
    def kind(self) -> str:
        return str(self.verdict.get("verdict"))

    @property
    def exit_status(self) -> int:
        return number(self.verdict.get("exit_status"), "an exit status")

    def truncated(self, stream: str) -> bool:
        kept = self.stdout if stream == "stdout" else self.stderr
        return printed(self.verdict, stream) > len(kept)


class Tail:
    """The last bytes of a stream, at most so many."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._data = bytearray()
        self.offset = 0  # in the stream, of what comes next

    def add(self, offset: int, data: bytes) -> None:
        if offset > self.offset:  # the middle was not kept
            self._data.clear()
        else:  # told once more after a lost connection
            data = data[self.offset - offset:]
        self.offset = max(self.offset, offset) + len(data)
        self._data += data
        del self._data[:max(0, len(self._data) - self._limit)]

    @property
    def data(self) -> bytes:
        return bytes(self._data)


def printed(verdict: JSON, stream: str) -> int:
    return number(verdict.get(f"{stream}_bytes", 0), "an output's size")


def number(value: object, what: str) -> int:
    if not isinstance(value, int) or not -1 << 63 <= value < 1 << 63:
        raise LostError(f"{what} is no number")
    return value


def decoded(text: object, encoding: object) -> bytes:
    if not isinstance(text, str):
        raise LostError("an output is no text")
    try:
        return base64.b64decode(text) if encoding == "base64" else text.encode("utf-8", "surrogatepass")
    except ValueError:
        raise LostError("an output is no base64") from None


def run(client: Client, workspace: str, argv: Sequence[str], *, timeout: float, output_max: int,
        env: Optional[Mapping[str, str]] = None, stdin: Optional[bytes] = None,
        mount_path: str = WORKDIR) -> Outcome:
    """LostError: how it ended is not known, and it may be running. Other BerthErrors: it was not started."""
    started = time.monotonic()
    command = _Command(client, workspace, timeout, output_max)
    request: JSON = {
        "argv": list(argv), "id": command.name, "timeout_ms": max(1, round(timeout * 1000)),
        "mount_path": mount_path, "env": dict(env or {}), "max_output": min(max(2 * output_max, KEPT_MIN), KEPT_MAX),
        # For so long it goes on alone: whoever was cut off comes back within that.
        "linger_ms": round((RECOVERY_SECONDS + STREAM_SECONDS) * 1000)}
    if stdin is not None:
        request.update(stdin=base64.b64encode(stdin).decode(), stdin_encoding="base64")
    verdict = command.follow(request)
    if verdict.get("verdict") == "unknown":
        raise LostError(str(verdict.get("text") or "the service does not know how the command ended"))
    command.complete(verdict)
    stdout, stderr = (command.tails[stream].data for stream in STREAMS)
    return Outcome(verdict, stdout, stderr, time.monotonic() - started)


class _Command:
    def __init__(self, client: Client, workspace: str, timeout: float, output_max: int) -> None:
        self.client, self.workspace, self.output_max = client, workspace, output_max
        self.name = f"a-{uuid.uuid4().hex}"
        self.tails: Dict[str, Tail] = {stream: Tail(output_max) for stream in STREAMS}
        self.deadline = time.monotonic() + timeout + GRACE_SECONDS
        self.begun = self.flooded = self.killed = False

    def place(self, rest: str = "") -> str:
        return self.client.place(self.workspace, f"/exec/{self.name}{rest}")

    def follow(self, request: JSON) -> JSON:
        """Its verdict, after connections that were lost, too."""
        silent_since: Optional[float] = None
        pause = 0.05
        while True:
            try:
                verdict: Optional[JSON] = None
                for event in self._events(request):
                    self.begun, silent_since, pause = True, None, 0.05
                    if event.get("event") == "ended":
                        verdict = event  # and to the stream's end, so that its connection is kept
                    elif self._take(event) or time.monotonic() > self.deadline:
                        break
                else:
                    if verdict is not None:
                        return verdict
                    raise LostError("a stream ended before the command")
            except UnreachableError:
                if not self.begun and not self.client.may_return():
                    raise
            except LostError:
                pass
            except BerthError as error:
                if self.begun and error.status == 404:
                    raise LostError("the service does not know the command any more") from error
                if error.status != 503:
                    raise
            now = time.monotonic()
            silent_since = now if silent_since is None else silent_since
            if now - silent_since > RECOVERY_SECONDS:
                raise LostError("the connection was lost while a command ran, and the service does not answer: "
                                "the command may have run, or be running")
            self._mind_the_time(now)
            if not self.flooded:
                time.sleep(pause)
                pause = min(2 * pause, 1.0)

    def _mind_the_time(self, now: float) -> None:
        """The service ends it at its time. A service that does not say so is asked once to kill it."""
        if now <= self.deadline:
            return
        if self.killed:
            raise LostError("the service does not tell how the command ended")
        self.killed, self.deadline = True, now + GRACE_SECONDS
        try:
            self.client.ask("POST", self.place("/kill"), body={"grace_ms": 0}, repeat=True)
        except BerthError:
            pass

    def _events(self, request: JSON) -> Iterator[JSON]:
        if not self.begun:
            # By its ID it is run once, however often this is sent.
            return self.client.events("POST", self.client.place(self.workspace, "/exec"), body=request,
                                      until=self.deadline)
        query = {stream: str(NOWHERE if self.flooded else tail.offset) for stream, tail in self.tails.items()}
        return self.client.events("GET", self.place(), query={"follow": "true", **query}, until=self.deadline)

    def _take(self, event: JSON) -> bool:
        """Whether the stream is to be left, since there is too much of it."""
        if event.get("event") != "output":
            return False
        offset = number(event.get("offset"), "an output's offset")
        tail = self.tails.get(str(event.get("stream")))
        if tail is None or offset < 0:
            raise LostError("a stream has an output that is none")
        tail.add(offset, decoded(event.get("data"), event.get("encoding")))
        if self.flooded or sum(each.offset for each in self.tails.values()) <= FLOOD:
            return False
        self.flooded = True
        return True

    def complete(self, verdict: JSON) -> None:
        """Fetches the ends of what was not followed to its end."""
        lacking = [stream for stream, tail in self.tails.items() if tail.offset < printed(verdict, stream)]
        if not lacking:
            return
        query: Dict[str, Any] = {}
        for stream in STREAMS:
            size = printed(verdict, stream)
            query[stream] = str(max(0, size - self.output_max) if stream in lacking else size)
        document = self.client.ask("GET", self.place(), query=query, repeat=True).document()
        for stream in lacking:
            self.tails[stream].add(number(document.get(f"{stream}_offset", 0), "an output's offset"),
                                   decoded(document.get(stream), document.get(f"{stream}_encoding")))

"""What the small programs of the profiles "opensandbox" and "boat" share: a vendor's HTTP interface, of Python's
standard library alone."""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import Any, Callable, Collection, Iterator, NoReturn

# Exit statuses: there is no such sandbox; nobody was asked for anything.
GONE, UNREACHED = 4, 5

# Seconds for one answer: a service that says nothing must not hold the caller longer.
ANSWER_TIMEOUT = 120

# Bytes of one answer: a service must not fill the caller's memory.
ANSWER_MAX = 4 << 20

# Characters of a service's own words in an error.
WORDS_MAX = 400

# Seconds until a sandbox must run; its image may have to be fetched.
START_TIMEOUT = 600

# Pages of one list: a service whose list never ends must not hold the caller for ever.
PAGES_MAX = 1000


class Refusal(Exception):
    """The service answered with an error. status: of HTTP."""

    def __init__(self, status: int, code: str, words: str):
        super().__init__(words)
        self.status, self.code = status, code


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """The credential goes to the service that was named and to no other."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirect)


class Unreached(Exception):
    """Nobody was asked for anything."""


def plain(words: str) -> str:
    """words, without what could drive a terminal."""
    return "".join(c if c.isprintable() else "?" for c in words)


def fail(words: str) -> NoReturn:
    """Ends the program with one line."""
    sys.exit(plain(words))


class _Told:
    """Whether a service may have been told anything by this program: it may have made something then."""

    yet = False


def _is_unreached(reason: object) -> bool:
    return not _Told.yet and isinstance(reason, (ConnectionRefusedError, socket.gaierror))


def base_url(text: str, what: str) -> str:
    """text, without a slash at its end. Ends the program unless it is an http or https URL."""
    parts = urllib.parse.urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        fail(f"{what} is not an http or https URL: {text}")
    return text.rstrip("/")


def _refusal(error: urllib.error.HTTPError) -> Refusal:
    with error:
        text = error.read(ANSWER_MAX).decode(errors="replace")
    try:
        said = json.loads(text)
        said = said.get("error") if isinstance(said.get("error"), dict) else said
        code, words = str(said.get("code", "")), str(said.get("message") or said.get("error") or text)
    except (ValueError, AttributeError):
        code, words = "", text
    return Refusal(error.code, code, f"{error.code} {code} {words[:WORDS_MAX]}".strip())


def call(method: str, url: str, headers: dict[str, str], body: Any = None,
         data: bytes | None = None) -> Any:
    """One request, of JSON (body) or of bytes (data); the JSON that is answered, None if nothing is.

    Refusal: the service said no. Unreached: it is not there, and none was before. The program ends if it is lost or
    says what is no JSON.
    """
    headers = {"Accept": "application/json", **headers}
    if body is not None:
        data = json.dumps(body).encode()
        headers["Content-Type"] = "application/json"
    request = urllib.request.Request(url, data=data, headers=headers, method=method)
    try:
        with _OPENER.open(request, timeout=ANSWER_TIMEOUT) as answer:
            text = answer.read(ANSWER_MAX + 1)
    except urllib.error.HTTPError as error:
        _Told.yet = True
        raise _refusal(error) from None
    except OSError as error:
        reason = getattr(error, "reason", error)
        words = f"{urllib.parse.urlsplit(url).netloc}: {reason}"
        if _is_unreached(reason):
            raise Unreached(words) from None
        fail(words)
    _Told.yet = True
    if len(text) > ANSWER_MAX:
        fail(f"{method} {url}: more than {ANSWER_MAX} bytes were answered")
    try:
        return json.loads(text) if text.strip() else None
    except ValueError:
        fail(f"{method} {url}: what was answered is no JSON")


def field(answer: Any, *names: str) -> str:
    """A text deep in an answer. Ends the program if it is not there: nothing is done with half an answer."""
    for name in names:
        answer = answer.get(name) if isinstance(answer, dict) else None
    if not isinstance(answer, str) or not answer:
        fail(f"the service's answer has no {'.'.join(names)}")
    return answer


@contextlib.contextmanager
def destroyed_on_failure(destroy: Callable[[], None]) -> Iterator[None]:
    """What was made and then fails is not left."""
    try:
        yield
    except BaseException:
        destroy()
        raise


def wait_for_start(prog: str, state: Callable[[], str], ready: Collection[str], ended: Collection[str]) -> None:
    """Until its state is one of ready. Ends the program when it is one of ended, or in START_TIMEOUT."""
    deadline = time.monotonic() + START_TIMEOUT
    while (now := state()) not in ready:
        if now in ended or time.monotonic() > deadline:
            fail(f"{prog}: the sandbox does not start: {now}")
        time.sleep(0.5)


def run(prog: str, act: Callable[[], None]) -> int:
    """The exit status of act, whose failures are told."""
    try:
        act()
    except (Refusal, Unreached) as error:
        print(plain(f"{prog}: {error}"), file=sys.stderr)
        return UNREACHED if isinstance(error, Unreached) else GONE if error.status == 404 else 1
    return 0

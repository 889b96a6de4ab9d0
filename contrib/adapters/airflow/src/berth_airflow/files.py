"""Files of a sandbox. Those of the workspace go by the service's interface for files, which is binary-safe,
whole or not at all, and never waits for a FIFO. What lies elsewhere in the sandbox, or behind a link that
leads there, only commands reach: small scripts, whose words are data and never text of a script."""

from __future__ import annotations

import base64
import posixpath
import re
from typing import Any, List, Optional, Sequence, Tuple

from berth_airflow.client import BerthError, Client, LostError
from berth_airflow.commands import WORKDIR, Outcome, run
from berth_airflow.contract import SandboxError, SandboxFileTooLargeError

# What the kernel takes; longer ones are refused here, before they could be too long for a request.
PATH_MAX = 4095
SCRIPT_TIMEOUT = 120.0
# A page of a listing, and how much is listed at most.
PAGE, LISTED_MAX = 1000, 100_000
LISTING_BYTES_MAX = 16 << 20
# What a script is given at a time: as base64 it fits into a request of 4 MiB.
CHUNK = 2 << 20

MISSING, DIRECTORY, SPECIAL = 66, 67, 68
READ = f"""[ -e "$1" ] || exit {MISSING}
[ -d "$1" ] && exit {DIRECTORY}
[ -f "$1" ] || exit {SPECIAL}
stat -Lc %s -- "$1" && exec head -c "$2" -- "$1"
"""
WRITE = f"""[ -d "$1" ] && exit {DIRECTORY}
[ -e "$1" ] && ! [ -f "$1" ] && exit {SPECIAL}
mkdir -p -- "$2" && cat > "$1"
"""
APPEND = 'cat >> "$1"'
LIST = f"""[ -e "$1" ] || exit {MISSING}
cd -- "$1" || exit 1
for e in * .[!.]* ..?*; do
  if [ -L "$e" ]; then t=l; elif [ -d "$e" ]; then t=d; elif [ -e "$e" ]; then t=f; else continue; fi
  printf '%s %s\\0' "$t" "$e"
done
"""
RANGE = re.compile(r"bytes (?:\*|\d+-\d+)/(\d+)\Z")
# Refusals after which a command may reach what the interface does not: a link that leads out, and a name that is
# hidden from it.
OUTSIDE = {"EACCES", "ELOOP", "EXDEV"}


def check_path(path: str) -> None:
    """SandboxError for what can be no path; the model is told, and the sandbox lives on."""
    if not path:
        raise SandboxError("the path is empty")
    if "\0" in path:
        raise SandboxError("the path has a NUL in it")
    try:
        size = len(path.encode())
    except UnicodeEncodeError:
        raise SandboxError("the path is no UTF-8") from None
    if size > PATH_MAX:
        raise SandboxError(f"the path has {size} bytes; at most {PATH_MAX} are possible")


def inside(path: str) -> Optional[str]:
    """The path relative to the workspace's root; None when it is not known to be in there. What `..` means
    depends on links, so the sandbox decides."""
    if path == WORKDIR or path.startswith(WORKDIR + "/"):
        path = path[len(WORKDIR):].lstrip("/")
    elif path.startswith("/"):
        return None
    return None if ".." in path.split("/") else path


def _entry(entry: Any) -> Tuple[str, bool]:
    name = entry["name"]
    if name is None:  # no UTF-8: shown as nearly as can be
        name = base64.b64decode(entry["name_base64"]).decode("utf-8", "replace")
    return str(name), entry["type"] == "directory"


class Files:
    def __init__(self, client: Client) -> None:
        self._client = client

    def read(self, sandbox: str, path: str, max_bytes: int) -> bytes:
        check_path(path)
        place = inside(path)
        if place is not None:
            try:
                return self._get(sandbox, path, place, max_bytes)
            except BerthError as error:
                self._refuse(error, path)
        outcome = self._script(sandbox, READ, (path, str(max_bytes + 1)), path, max_bytes + 64)
        reported, _, data = outcome.stdout.partition(b"\n")
        if len(data) > max_bytes:
            # What streams without end says 0 of itself.
            raise SandboxFileTooLargeError(path, max(int(reported), len(data)), max_bytes)
        return data

    def _get(self, sandbox: str, path: str, place: str, max_bytes: int) -> bytes:
        """At most one byte more than may be is asked for, and nothing of a file that is too large is read."""
        try:
            answer = self._client.ask("GET", self._client.file_place(sandbox, "files", place), repeat=True,
                                      fields={"Range": f"bytes=0-{max_bytes}"}, body_max=max_bytes)
        except BerthError as error:
            if error.status == 416:  # an empty file has no first byte
                return b""
            raise
        found = RANGE.match(answer.fields.get("content-range", ""))
        size = int(found.group(1)) if found else len(answer.body)
        if not found and not answer.body:
            stated = answer.fields.get("content-length", "0")
            size = int(stated) if stated.isdecimal() and len(stated) < 20 else 0
        if size > max_bytes:
            raise SandboxFileTooLargeError(path, size, max_bytes)
        return answer.body

    def write(self, sandbox: str, path: str, content: bytes) -> None:
        check_path(path)
        if path.endswith("/"):
            raise SandboxError(f"{path!r} names a directory")
        place = inside(path)
        if place is not None:
            try:
                self._client.ask("PUT", self._client.file_place(sandbox, "files", place), content=content,
                                 query={"parents": "1"}, repeat=True)
                return
            except BerthError as error:
                self._refuse(error, path)
        above = posixpath.dirname(path) or "."
        for at in range(0, max(len(content), 1), CHUNK):
            self._script(sandbox, APPEND if at else WRITE, (path, above), path, 4096, content[at:at + CHUNK])

    def list(self, sandbox: str, path: str) -> List[Tuple[str, bool]]:
        check_path(path)
        place = inside(path)
        if place is not None:
            try:
                return self._pages(sandbox, path, place)
            except BerthError as error:
                self._refuse(error, path)
        word = path if path.startswith("/") else f"./{path}"
        outcome = self._script(sandbox, LIST, (word,), path, LISTING_BYTES_MAX)
        if outcome.truncated("stdout"):
            raise SandboxError(f"{path!r} has too many entries to list")
        entries = (record.partition(b" ") for record in outcome.stdout.split(b"\0") if record)
        return [(name.decode("utf-8", "replace"), kind == b"d") for kind, _, name in entries]

    def _pages(self, sandbox: str, path: str, place: str) -> List[Tuple[str, bool]]:
        entries: List[Tuple[str, bool]] = []
        query = {"limit": str(PAGE)}
        while True:
            document = self._client.ask("GET", self._client.file_place(sandbox, "list", place), query=query,
                                        repeat=True).document()
            try:
                entries += [_entry(entry) for entry in document["entries"]]
                after = document["next"]
            except (KeyError, TypeError, ValueError):
                raise LostError("a listing is none") from None
            if after is None:
                return entries
            if len(entries) >= LISTED_MAX:
                raise SandboxError(f"{path!r} has more than {LISTED_MAX} entries, too many to list")
            query["after"] = str(after)

    @staticmethod
    def _refuse(error: BerthError, path: str) -> None:
        """Raises, unless a command may still reach it."""
        if error.errno in OUTSIDE:
            return
        if error.errno == "ENOENT" and "workspace" not in error.detail:
            raise SandboxError(f"{path!r} is not there") from error
        if error.errno == "EISDIR":
            raise SandboxError(f"{path!r} is a directory") from error
        if error.status in (400, 409, 413, 507) and error.errno not in ("ESHUTDOWN", ""):
            raise SandboxError(f"{path!r}: {error.detail}") from error
        raise error

    def _script(self, sandbox: str, script: str, words: Sequence[str], path: str, output_max: int,
                stdin: Optional[bytes] = None) -> Outcome:
        outcome = run(self._client, sandbox, ["/bin/sh", "-c", script, "berth", *words], timeout=SCRIPT_TIMEOUT,
                      output_max=output_max, stdin=stdin)
        status = outcome.exit_status
        if outcome.kind == "exited" and status == 0:
            return outcome
        said = outcome.stderr[-512:].decode("utf-8", "replace").strip() or str(outcome.verdict.get("text") or "")
        reasons = {MISSING: "is not there, or cannot be reached", DIRECTORY: "is a directory",
                   SPECIAL: "is no regular file"}
        if outcome.kind == "exited" and status in reasons:
            raise SandboxError(f"{path!r} {reasons[status]}")
        if outcome.kind == "timed_out":
            raise SandboxError(f"{path!r}: it took longer than {SCRIPT_TIMEOUT:g} s")
        raise SandboxError(f"{path!r}: {said or outcome.kind}")

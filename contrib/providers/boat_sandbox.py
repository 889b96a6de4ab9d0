"""What the profile "boat" runs: Boat's HTTP interface (openapi/boat-v1.yaml of its documentation) to make and destroy
a sandbox and to let a key of ours in, and ssh for all else.

create --type T --lifetime S --created-by O NAME
stream SANDBOX COMMAND…             the command's standard input and output
destroy --type T --lifetime S, state, both with --created-by O SANDBOX
list --created-by O

SANDBOX is the ID that create prints, or the NAME while that is not known. BOAT_API_KEY is the key, and BOAT_BASE_URL
where the interface is, if not at Boat's. Exit status 4: there is none; 5: nothing was asked.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
import urllib.parse
from pathlib import Path
from typing import Any, Iterator, NoReturn

sys.dont_write_bytecode = True

from sandbox_api import (  # noqa: E402
    PAGES_MAX, START_TIMEOUT, Refusal, Unreached, base_url, call, destroyed_on_failure, fail, field, run,
    wait_for_start)

BASE_URL = "https://boat.dev/api/v1"

READY = ("ready", "idle", "running")
ENDED = ("archiving", "archived", "error", "cancelled")

HOST_KEY = re.compile(r"(ssh|ecdsa)-[a-z0-9-]+ [A-Za-z0-9+/]+=*( [^\s]*)?")
HOST = re.compile(r"[0-9A-Za-z.:-]+")
USER = re.compile(r"[a-z_][a-z0-9_-]*")


class Boat:
    """The interface. What is made there has a name that begins with the owner's."""

    def __init__(self) -> None:
        key = os.environ.get("BOAT_API_KEY")
        if not key:
            raise Unreached("BOAT_API_KEY is not set")
        self.url = base_url(os.environ.get("BOAT_BASE_URL") or BASE_URL, "BOAT_BASE_URL")
        self.headers = {"Authorization": f"Bearer {key}"}

    def call(self, method: str, path: str, body: Any = None, **more: str) -> Any:
        headers = {name.replace("_", "-"): value for name, value in more.items()}
        return call(method, self.url + path, {**self.headers, **headers}, body)

    def sandboxes(self) -> Iterator[tuple[str, str]]:
        """IDs and names."""
        cursor = ""
        for _ in range(PAGES_MAX):
            more = f"&cursor={urllib.parse.quote(cursor)}" if cursor else ""
            answer = self.call("GET", f"/sandboxes?limit=100{more}") or {}
            for item in answer.get("sandboxes", []):
                yield field(item, "id"), str(item.get("name") or "")
            page = answer.get("pageInfo") or {}
            cursor = str(page.get("nextCursor") or "")
            if not page.get("hasMore") or not cursor:
                return

    def make(self, a: argparse.Namespace) -> str:
        """The same for the same name: Boat remembers the key of a request for a day."""
        # noEnv: none of the account's secrets go in, and nothing in it can act on the account.
        request = {"type": a.type, "ttlSeconds": a.lifetime or None, "noEnv": True}
        deadline = time.monotonic() + START_TIMEOUT
        while True:
            try:
                return field(self.call("POST", "/sandboxes", request, Idempotency_Key=a.sandbox), "sandbox", "id")
            except Refusal as refusal:
                if refusal.code != "idempotency_in_progress" or time.monotonic() > deadline:
                    raise
            time.sleep(1)

    def find(self, a: argparse.Namespace) -> str:
        if not a.sandbox.startswith("berth-"):
            return a.sandbox
        for sandbox, name in self.sandboxes():
            if name == full_name(a):
                return sandbox
        raise Refusal(404, "", f"no such sandbox: {a.sandbox}")

    def state(self, sandbox: str) -> str:
        return field(self.call("GET", f"/sandboxes/{urllib.parse.quote(sandbox)}"), "sandbox", "state")

    def destroy(self, sandbox: str) -> None:
        self.call("DELETE", f"/sandboxes/{urllib.parse.quote(sandbox)}", X_Ascii_Confirm_Delete=sandbox)


def full_name(a: argparse.Namespace) -> str:
    return f"{a.created_by} {a.sandbox}"


def create(boat: Boat, a: argparse.Namespace) -> None:
    sandbox = boat.make(a)
    with destroyed_on_failure(lambda: boat.destroy(sandbox)):
        # Before anybody hears of it: what has no name of ours is not found again.
        boat.call("PATCH", f"/sandboxes/{sandbox}", {"name": full_name(a)})
        wait_for_start("boat", lambda: boat.state(sandbox), READY, ENDED)
    print(sandbox)


def destroy(boat: Boat, a: argparse.Namespace) -> None:
    try:
        sandbox = boat.find(a)
    except Refusal as refusal:
        if refusal.status != 404:
            raise
        # Whether one was made that has no name yet, is known by asking for it once more.
        try:
            sandbox = boat.make(a)
        except Refusal as again:
            if again.status < 500:
                raise refusal from None
            raise
    boat.destroy(sandbox)
    (directory() / alias_of(sandbox)).unlink(missing_ok=True)


def directory() -> Path:
    """Where this user's key for Boat's sandboxes is, and their host keys."""
    state = os.environ.get("XDG_STATE_HOME")
    if not state:
        state = "/var/lib" if os.geteuid() == 0 else Path.home() / ".local" / "state"
    made = Path(state) / "berth-client" / "boat"
    made.mkdir(mode=0o700, parents=True, exist_ok=True)
    return made


def key_file() -> Path:
    """The private key, which is made once."""
    key = directory() / "key"
    if not key.exists():
        with tempfile.TemporaryDirectory(dir=directory()) as made:
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "berth", "-f", f"{made}/key"],
                           check=True, stdin=subprocess.DEVNULL, stdout=sys.stderr)
            try:
                os.link(f"{made}/key", key)
            except FileExistsError:
                pass  # two began at once, and that one is as good
    return key


def public_key(key: Path) -> str:
    done = subprocess.run(["ssh-keygen", "-y", "-f", str(key)], check=True, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, text=True)
    return done.stdout.strip()


def alias_of(sandbox: str) -> str:
    return "boat-" + re.sub(r"[^A-Za-z0-9_-]", "", sandbox)


def stream(boat: Boat, a: argparse.Namespace) -> NoReturn:
    sandbox, key = boat.find(a), key_file()
    answer = boat.call("POST", f"/sandboxes/{urllib.parse.quote(sandbox)}/sshkey", {"key": public_key(key)}) or {}
    # Without it, it could be any machine that answers there.
    host_key, user = field(answer, "hostKey"), str(answer.get("sshUser") or "user")
    endpoint = answer.get("sshEndpoint")
    host, _, port = endpoint.rpartition(":") if endpoint else (field(answer, "machineIp"), "", "22")
    if not HOST_KEY.fullmatch(host_key) or not HOST.fullmatch(host) or not port.isdigit() or not USER.fullmatch(user):
        fail("boat: what it says of a sandbox's ssh is not usable")
    alias = alias_of(sandbox)
    known = directory() / alias
    with tempfile.NamedTemporaryFile("w", dir=directory(), delete=False) as file:
        file.write(f"{alias} {host_key}\n")
    os.replace(file.name, known)
    os.environ.pop("BERTH_TOKEN", None)
    os.execvp("ssh", [
        "ssh", "-T", "-p", port, "-i", str(key), "-o", "IdentitiesOnly=yes", "-o", "BatchMode=yes", "-o",
        f"HostKeyAlias={alias}", "-o", "StrictHostKeyChecking=yes", "-o", f"UserKnownHostsFile={known}",
        "-o", "GlobalKnownHostsFile=/dev/null", "-o", "ControlPath=none", "-o", "ForwardAgent=no", "-o",
        "ServerAliveInterval=15", "-o", "LogLevel=ERROR", f"{user}@{host}", "--", shlex.join(a.words)])


def show_state(boat: Boat, a: argparse.Namespace) -> None:
    print(boat.state(boat.find(a)))


def show_all(boat: Boat, a: argparse.Namespace) -> None:
    for sandbox, name in boat.sandboxes():
        if name.startswith(f"{a.created_by} berth-"):
            print(sandbox)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="boat_sandbox.py", allow_abbrev=False)
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb in ("create", "stream", "destroy", "state", "list"):
        one = verbs.add_parser(verb, allow_abbrev=False)
        one.add_argument("--created-by", required=True)
        if verb in ("create", "destroy"):
            one.add_argument("--type", required=True)
            one.add_argument("--lifetime", type=int, required=True)
        if verb != "list":
            one.add_argument("sandbox")
        if verb == "stream":
            one.add_argument("words", nargs=argparse.REMAINDER)
    return parser.parse_args()


def main() -> int:
    a = parse()

    verbs = {"create": create, "stream": stream, "destroy": destroy, "state": show_state, "list": show_all}
    return run("boat", lambda: verbs[a.verb](Boat(), a))


if __name__ == "__main__":
    sys.exit(main())

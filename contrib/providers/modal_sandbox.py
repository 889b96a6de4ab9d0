"""What the profile "modal" runs: Modal's documented Python interface, as words of a command line.

create --app A --image I --lifetime S --created-by O --created-at T [--memory MIB] [--cpu N] [--block-network] NAME
put --app A SANDBOX FILE            standard input becomes FILE there, which can be run
stream --app A SANDBOX COMMAND…     the command's standard input and output
destroy, state --app A SANDBOX
list --app A --created-by O

SANDBOX is the ID that create prints, or the NAME while that is not known. --profile P, everywhere: a profile of
Modal's. Exit status 4: there is none; 5: nothing was asked.
"""

import argparse
import importlib
import os
import sys
import threading
from typing import Any

CHUNK = 65536

# Exit statuses: there is no such sandbox; Modal's package is not here, or Modal does not know us.
GONE, UNREACHED = 4, 5


def find(app, sandbox):
    if sandbox.startswith("sb-"):
        return modal.Sandbox.from_id(sandbox)
    return modal.Sandbox.from_name(app, sandbox)


def create(a):
    limits = {}
    if a.memory:
        limits["memory"] = (a.memory, a.memory)
    if a.cpu:
        limits["cpu"] = (a.cpu, a.cpu)
    sandbox = modal.Sandbox.create(
        "sleep", "infinity", app=modal.App.lookup(a.app, create_if_missing=True), name=a.sandbox,
        image=modal.Image.from_registry(a.image), timeout=a.lifetime, block_network=a.block_network, **limits)
    # Before anybody hears of it: what has no tags is not found again.
    try:
        sandbox.set_tags({"created-by": a.created_by, "created-at": a.created_at})
    except BaseException:
        sandbox.terminate()
        raise
    print(sandbox.object_id)


def feed(process):
    """What comes from our standard input, until it ends or the process does."""
    while chunk := os.read(0, CHUNK):
        process.stdin.write(chunk)
        process.stdin.drain()
    process.stdin.write_eof()
    process.stdin.drain()


def put(a):
    script = 'mkdir -p "${1%/*}" && cat > "$1.new" && chmod 755 "$1.new" && mv -f "$1.new" "$1"'
    process = find(a.app, a.sandbox).exec("sh", "-c", script, "sh", a.words[0], text=False)
    feed(process)
    if process.wait() != 0:
        sys.exit("modal: the file could not be put there: " + process.stderr.read().decode(errors="replace"))


def stream(a):
    process = find(a.app, a.sandbox).exec(*a.words, text=False)
    threading.Thread(target=feed, args=(process,), daemon=True).start()
    for chunk in process.stdout:
        sys.stdout.buffer.write(chunk)
        sys.stdout.buffer.flush()
    os._exit(process.wait())  # not for the thread, which waits for input


modal: Any = None


def main():
    parser = argparse.ArgumentParser(prog="modal_sandbox.py", allow_abbrev=False)
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb in ("create", "put", "stream", "destroy", "state", "list"):
        one = verbs.add_parser(verb, allow_abbrev=False)
        one.add_argument("--app", required=True)
        one.add_argument("--profile")
        if verb in ("create", "list"):
            one.add_argument("--created-by", required=True)
        if verb == "create":
            one.add_argument("--image", required=True)
            one.add_argument("--lifetime", type=int, required=True)
            one.add_argument("--created-at", required=True)
            one.add_argument("--memory", type=int)
            one.add_argument("--cpu", type=float)
            one.add_argument("--block-network", action="store_true")
        if verb != "list":
            one.add_argument("sandbox")
        if verb in ("put", "stream"):
            one.add_argument("words", nargs=argparse.REMAINDER)
    a = parser.parse_args()
    # Before the package is loaded, which reads it then.
    if a.profile:
        os.environ["MODAL_PROFILE"] = a.profile
    global modal
    try:
        modal = importlib.import_module("modal")
        errors = importlib.import_module("modal.exception")
    except ImportError as error:
        print(f"modal: its Python package is not here: {error}", file=sys.stderr)
        return UNREACHED
    try:
        if a.verb == "create":
            create(a)
        elif a.verb == "put":
            put(a)
        elif a.verb == "stream":
            stream(a)
        elif a.verb == "destroy":
            find(a.app, a.sandbox).terminate()
        elif a.verb == "state":
            print("running" if find(a.app, a.sandbox).poll() is None else "ended")
        else:
            app = modal.App.lookup(a.app, create_if_missing=True)
            for sandbox in modal.Sandbox.list(app_id=app.app_id, tags={"created-by": a.created_by}):
                print(sandbox.object_id)
    except errors.NotFoundError:
        print(f"modal: no such sandbox: {getattr(a, 'sandbox', '')}", file=sys.stderr)
        return GONE
    except errors.AuthError as error:
        print(f"modal: {error}", file=sys.stderr)
        return UNREACHED
    return 0


if __name__ == "__main__":
    sys.exit(main())

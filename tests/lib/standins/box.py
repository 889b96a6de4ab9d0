"""A small container of this machine: mount and process namespaces of its own, private directories where
programs are put and keep things, and an init whose end is that of all in it.

The state is in the directory STANDIN_STATE: one directory a box, with its name and what the vendor would
know of it. Errors are for the vendor's own words: see the exceptions."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

PRIVATE = ["/usr/local", "/var/lib", "/run", "/root", "/opt", "/tmp"]

STATE = Path(os.environ.get("STANDIN_STATE", "/nonexistent"))


class NoBox(Exception):
    """There is none of this name."""


class BoxExists(Exception):
    """There is one of this name."""


def log(*words):
    """What the vendor was asked, for tests."""
    with open(STATE / "log", "a", encoding="utf-8") as file:
        file.write(json.dumps(words) + "\n")


def misbehave(word):
    """Whether a test wants this to go wrong: the file STANDIN_STATE/WORD is there."""
    return (STATE / word).exists()


def _directory(name):
    if "/" in name or name in ("", ".", ".."):
        raise NoBox(name)
    return STATE / "boxes" / name


def find(name):
    """What is known of a box; its init may have ended."""
    try:
        return json.loads((_directory(name) / "about").read_text())
    except FileNotFoundError:
        raise NoBox(name) from None


def is_running(name):
    about = find(name)
    try:
        return Path(f"/proc/{about['pid']}/cmdline").read_bytes().startswith(b"berth-standin\0")
    except OSError:
        return False


def create(name, **about):
    directory = _directory(name)
    try:
        directory.mkdir(parents=True)
    except FileExistsError:
        raise BoxExists(name) from None
    mounts = []
    for path in PRIVATE:
        inside = directory / "root" / path.strip("/")
        inside.mkdir(parents=True)
        (inside / "bin").mkdir()
        mounts += ["mount", "--bind", str(inside), path, "&&"]
    script = " ".join(mounts) + " mount -t proc proc /proc && exec -a berth-standin sleep infinity"
    ready = subprocess.Popen(
        ["unshare", "--mount", "--pid", "--fork", "--kill-child", "bash", "-c", script],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True, cwd="/", env={"PATH": os.environ["PATH"]})
    deadline = time.monotonic() + 20
    while True:
        try:
            pid = int(Path(f"/proc/{ready.pid}/task/{ready.pid}/children").read_text().split()[0])
            if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"berth-standin\0"):
                break
        except (OSError, IndexError):
            pass
        if time.monotonic() > deadline or ready.poll() is not None:
            raise RuntimeError("a box cannot be made here")
        time.sleep(0.01)
    (directory / "about.new").write_text(json.dumps({"name": name, "pid": pid, "parent": ready.pid, **about}))
    (directory / "about.new").rename(directory / "about")


def boxes():
    try:
        names = sorted(os.listdir(STATE / "boxes"))
    except FileNotFoundError:
        return []
    return [find(name) for name in names if (STATE / "boxes" / name / "about").exists()]


def note(name, tags):
    """Tags that are set later."""
    find(name)
    (_directory(name) / "tags").write_text(json.dumps(tags))


def notes(name):
    try:
        return json.loads((_directory(name) / "tags").read_text())
    except FileNotFoundError:
        return {}


def execute(name, argv):
    """Becomes the command."""
    about = find(name)
    if not is_running(name):
        raise NoBox(name)
    kept = {key: value for key, value in os.environ.items()
            if key in ("PATH", "LC_ALL", "TZ") or key.endswith("SAN_OPTIONS")}
    kept["PATH"] = "/usr/local/bin:" + kept["PATH"]
    kept["HOME"] = "/root"
    command = ["nsenter", "--target", str(about["pid"]), "--mount", "--pid", "--wd=/", "--", *argv]
    sys.stdout.flush()
    os.execvpe(command[0], command, kept)


def put(name, source, target):
    """A file into it; the target's mode is the source's."""
    find(name)
    for path in PRIVATE:
        if target.startswith(path + "/"):
            destination = _directory(name) / "root" / target.strip("/")
            destination.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, destination)
            shutil.copymode(source, destination)
            return
    raise PermissionError(f"{target}: read-only")


def destroy(name):
    about = find(name)
    if is_running(name):
        os.kill(about["pid"], signal.SIGKILL)
    deadline = time.monotonic() + 20
    while Path(f"/proc/{about['pid']}").exists() and is_running(name):
        if time.monotonic() > deadline:
            raise RuntimeError("a box does not end")
        time.sleep(0.01)
    shutil.rmtree(_directory(name), ignore_errors=True)


def destroy_all():
    for about in boxes():
        destroy(about["name"])
    # Those whose maker was killed before it could write them down; the paths are this test's alone.
    mark = f"{STATE}/boxes/".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if mark in (entry / "cmdline").read_bytes():
                    os.kill(int(entry.name), signal.SIGKILL)
            except OSError:
                pass

"""Signals to programs that wait for an answer which does not come."""

import os
import signal
import subprocess
import sys
import time

import pytest

PROGRAM = r"""
import os, signal, sys
what, path = sys.argv[1:]
handled = []
signal.signal(signal.SIGUSR1, lambda *_: handled.append(1))
# Writing does not wait for its answer, unless that is asked for.
fd = os.open(path, os.O_RDWR | (os.O_DSYNC if what == "write" else 0))
if what == "exec":
    os.write(fd, b"x")
directory = os.path.dirname(path)
print("ready", flush=True)
sys.stdin.readline()
call = {
    "stat": lambda: os.stat(os.path.join(directory, "g")),
    "missing": lambda: os.path.exists(os.path.join(directory, "none")),
    "write": lambda: os.write(fd, b"x"),
    "read": lambda: os.pread(fd, 1, 1 << 20),
    "fsync": lambda: os.fsync(fd),
    "open": lambda: os.open(os.path.join(directory, "g"), os.O_RDONLY),
    "create": lambda: os.open(os.path.join(directory, "new"), os.O_CREAT | os.O_WRONLY),
    "mkdir": lambda: os.mkdir(os.path.join(directory, "d")),
    "list": lambda: os.listdir(directory),
    "rename": lambda: os.rename(os.path.join(directory, "g"), os.path.join(directory, "h")),
    "exec": lambda: os.execv("/bin/echo", ["echo", "done"]),
}[what]
call()
print("done", len(handled), flush=True)
"""

CALLS = ["stat", "missing", "write", "read", "fsync", "open", "create", "mkdir", "list", "rename"]


@pytest.fixture
def stalled(service, start_relay, start_mount, run_berth):
    """The relay, a mount behind it, and a program that is about to make a call there."""
    run_berth("create", "demo", check=True)
    relay = start_relay(service)
    mount = start_mount(service, url=relay.url, workspace="demo", options="timeout=60,cache=no")
    tree = service.root / "workspaces" / "demo" / "tree"
    (tree / "f").write_bytes(bytes(2 << 20))
    (tree / "g").write_bytes(b"g")
    programs = []

    def start(what):
        program = subprocess.Popen([sys.executable, "-c", PROGRAM, what, mount.path / "f"], stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, text=True)
        programs.append(program)
        assert program.stdout.readline() == "ready\n"
        relay.stall()
        program.stdin.write("\n")
        program.stdin.flush()
        time.sleep(0.3)
        assert program.poll() is None
        return program
    yield relay, mount, start
    relay.resume()
    for program in programs:
        program.kill()
        program.wait(20)


@pytest.mark.matrix
@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.long), signal.SIGINT])
@pytest.mark.parametrize("what", CALLS)
def test_who_is_killed_ends_at_once(stalled, what, number):
    relay, mount, start = stalled
    program = start(what)
    if number == signal.SIGINT:  # Python handles this one, so that it kills nobody at once
        program.send_signal(signal.SIGUSR1)
        time.sleep(0.1)
        number = signal.SIGKILL
    program.send_signal(number)
    begun = time.monotonic()
    assert program.wait(20) == -number
    assert time.monotonic() - begun < 10
    # The answer that nobody waits for any more leaves nothing behind, and the mount goes on.
    relay.resume()
    assert (mount.path / "f").stat().st_size == 2 << 20
    before = mount.stats()["inodes"]
    assert len(os.listdir(mount.path)) >= 2
    assert before < 10


@pytest.mark.matrix
@pytest.mark.parametrize("what", CALLS)
def test_a_handled_signal_interrupts_nothing(stalled, what):
    relay, _, start = stalled
    program = start(what)
    program.send_signal(signal.SIGUSR1)
    time.sleep(0.2)
    assert program.poll() is None
    relay.resume()
    out, _ = program.communicate("", timeout=20)
    assert out.startswith("done")
    assert program.returncode == 0


def test_a_program_that_closes_as_it_becomes_another(stalled):
    """In execve() the kernel closes files while it holds a lock that readers of /proc wait for."""
    relay, _, start = stalled
    program = start("exec")
    time.sleep(0.5)
    relay.resume()
    out, _ = program.communicate("", timeout=20)
    assert (out, program.returncode) == ("done\n", 0)

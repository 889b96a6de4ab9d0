"""Commands in a terminal."""

import fcntl
import os
import pty
import random
import re
import select
import signal
import struct
import subprocess
import termios
import time

import pytest

from lib.exec_client import PTY, STDIN, WORKSPACE
from lib.harness import wait_until
from lib.processes import processes_with

pytestmark = pytest.mark.sandbox


class Terminal:
    """berth exec -i -t in a terminal of our own."""

    def __init__(self, harness, service, *argv, rows=31, columns=97):
        self.master, self.slave = pty.openpty()
        self.resize(rows, columns)
        self.before = termios.tcgetattr(self.slave)
        self.seen = b""
        self.process = subprocess.Popen(
            ["setsid", "--ctty", "--wait", harness.program("berth"), "exec", "-w", WORKSPACE, "-i",
             "-t", "--", *argv],
            env={**service.client_env(), "TERM": "vt100"}, stdin=self.slave, stdout=self.slave,
            stderr=self.slave)

    def resize(self, rows, columns):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def expect(self, pattern, timeout=20):
        deadline = time.monotonic() + timeout
        while not (found := re.search(pattern, self.seen)):
            left = deadline - time.monotonic()
            assert left > 0 and select.select([self.master], [], [], left)[0], self.seen
            self.seen += os.read(self.master, 65536)
        self.seen = self.seen[found.end():]
        return found

    def type(self, text):
        os.write(self.master, text)

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(20)
        os.close(self.master)
        os.close(self.slave)


@pytest.fixture
def terminal(harness, service, tree):
    opened = []

    def start(*argv, **keywords):
        opened.append(Terminal(harness, service, *argv, **keywords))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


def test_terminal_size_and_type_are_set_at_once(terminal):
    screen = terminal("sh", "-c", "stty size; echo $TERM; exit 4")
    screen.expect(rb"31 97\r\nvt100\r\n")
    assert screen.process.wait(20) == 4
    assert termios.tcgetattr(screen.slave) == screen.before


def test_without_terminals(harness):
    """The machine has none to give, and no namespace is to be had in which commands have their own."""
    harness.env["BERTH_WITHOUT"] = "mount-namespace,pid-namespace"
    harness.start_service(wrapper=["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /dev/pts && exec "$@"', "sh"])
    harness.run_berth("create", WORKSPACE, check=True)
    result = harness.run_berth("exec", "-w", WORKSPACE, "-t", "--", "tty")
    assert result.returncode == 125
    assert re.fullmatch("berth: not started: pipes: no terminal: /dev/ptmx: [A-Z][a-z ]+; commands have none of their own "
                        "without a mount namespace, and run without -t\n", result.stderr), result.stderr
    assert harness.run_berth("exec", "-w", WORKSPACE, "--", "echo", "here", check=True).stdout == "here\n"


def test_terminal_follows_the_window(terminal):
    screen = terminal("sh", "-c", "trap 'stty size' WINCH; echo ready; while :; do sleep 0.05; done")
    screen.expect(rb"ready\r\n")
    screen.resize(50, 120)
    screen.expect(rb"50 120\r\n")
    screen.type(b"\x03")
    assert screen.process.wait(20) == 130


def test_terminal_keys_reach_the_command(terminal):
    screen = terminal("sh", "-c", "trap 'echo interrupted' INT; echo ready;"
                                  " until read line; do :; done; echo got $line; cat; echo end")
    screen.expect(rb"ready\r\n")
    screen.type(b"\x03")
    screen.expect(rb"interrupted\r\n")
    screen.type(b"hello\n")
    screen.expect(rb"got hello\r\n")
    screen.type(b"\x04")
    screen.expect(rb"end\r\n")
    assert screen.process.wait(20) == 0
    assert termios.tcgetattr(screen.slave) == screen.before


def test_terminal_is_restored_after_a_signal(harness, terminal):
    word = 60 + random.random()
    screen = terminal("sh", "-c", f"echo ready; sleep {word}")
    screen.expect(rb"ready\r\n")
    assert termios.tcgetattr(screen.slave) != screen.before
    berth, = wait_until(lambda: [p for p in processes_with(f"echo ready; sleep {word}")
                                 if os.readlink(f"/proc/{p}/exe").endswith("/berth")], what="berth")
    os.kill(berth, signal.SIGTERM)
    assert screen.process.wait(20) == 143
    assert termios.tcgetattr(screen.slave) == screen.before


def test_terminal_without_a_local_one(execute):
    result = execute("sh", "-c", "test -t 0 && test -t 1 && test -t 2 && stty size", options=["-t"],
                     text=False)
    assert (result.returncode, result.stdout) == (0, b"24 80\r\n")


def test_terminal_over_the_wire(client):
    call = client.wait_started(client.start(WORKSPACE, ["sh", "-c", "stty size; read x; stty size"],
                                            flags=PTY | STDIN, rows=10, columns=20))
    while bytes(call.output[1]) != b"10 20\r\n":
        client.step()
    client.resize(call, 11, 22)
    client.input(call, 0, "\n")
    client.wait(call)
    assert bytes(call.output[1]).endswith(b"11 22\r\n")

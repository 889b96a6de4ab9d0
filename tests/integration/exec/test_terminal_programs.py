"""What people run in a terminal, as they run it: driven through pexpect."""

import os
import re
import signal
import termios

import pexpect
import pytest

from lib.exec_client import WORKSPACE
from lib.harness import wait_until
from lib.processes import processes_with, unique_sleep

pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(120)]

PROMPT = r"\$> "


@pytest.fixture
def spawn(harness, service, tree):
    opened = []

    def start(*argv, command="exec", options=("-i", "-t", "-w", WORKSPACE), cwd=None, **env):
        words = [command, *options, *(["--", *argv] if argv else [])]
        child = pexpect.spawn(harness.program("berth"), words, timeout=20, dimensions=(30, 100),
                              cwd=str(cwd or harness.directory),
                              env={**service.client_env(), "TERM": "xterm", **env})
        # Of another new one: berth may have changed this one's already.
        ends = os.openpty()
        child.attributes = termios.tcgetattr(ends[0])
        for end in ends:
            os.close(end)
        opened.append(child)
        return child

    yield start
    for child in opened:
        child.close(force=True)


@pytest.fixture
def shell(spawn):
    """bash with job control and a prompt of our own."""
    child = spawn("bash", "--norc", "--noprofile", "-i", options=("-i", "-t", "-w", WORKSPACE, "-e", "PS1=$> "))
    child.expect(PROMPT)
    return child


def ended(child):
    child.expect(pexpect.EOF)
    child.wait()
    return child.exitstatus


def test_job_control(shell):
    shell.sendline("sleep 300")
    shell.expect("sleep 300\r\n")
    # Until bash has handed the terminal over, the key stops nobody.
    while True:
        shell.send("\x1a")
        if shell.expect([r"Stopped\s+sleep 300", pexpect.TIMEOUT], timeout=1) == 0:
            break
    shell.sendline("bg; jobs; echo state=$?")
    shell.expect(r"Running\s+sleep 300")
    shell.expect(r"state=0\r\n")
    shell.sendline("kill %1; wait; echo gone")
    shell.expect(r"gone\r\n")
    shell.sendline("exit 7")
    assert ended(shell) == 7


def test_interrupting_ends_the_job_and_not_the_shell(shell):
    shell.sendline("sleep 300; echo after=$?")
    shell.expect("after=\\$\\?\r\n")
    while True:
        shell.send("\x03")
        if shell.expect([r"after=130\r\n", PROMPT, pexpect.TIMEOUT], timeout=1) < 2:
            break
    shell.sendline("exit")
    assert ended(shell) == 130 or shell.exitstatus == 0


def test_less(spawn, tree):
    (tree / "text").write_text("".join(f"line {i}\n" for i in range(1, 500)))
    child = spawn("less", "text")
    child.expect("line 29\r\n")
    child.send("G")
    child.expect("line 499")
    child.send("g/line 250\n")
    child.expect("line 250")
    child.send("q")
    assert ended(child) == 0


def test_vim(spawn, tree):
    child = spawn("vim", "-u", "NONE", "-N", "note")
    child.expect("note")
    child.send("ihello from vim\x1b")
    child.expect("hello from vim")
    child.send(":wq\r")
    assert ended(child) == 0
    assert (tree / "note").read_text() == "hello from vim\n"


def test_top(spawn):
    child = spawn("top", "-d", "1")
    child.expect("PID")
    child.expect("COMMAND")
    child.setwinsize(12, 60)
    child.expect("PID")
    child.send("q")
    assert ended(child) == 0


def test_python(spawn):
    child = spawn("/usr/bin/python3", "-q", PYTHON_BASIC_REPL="1")
    child.expect(">>> ")
    child.sendline("import shutil; print(tuple(shutil.get_terminal_size()))")
    child.expect(re.escape("(100, 30)"))
    child.expect(">>> ")
    child.sendline("import time; print('wait' + 'ing'); time.sleep(300)")
    child.expect("waiting")
    child.send("\x03")
    child.expect("KeyboardInterrupt")
    child.expect(">>> ")
    child.sendline("raise SystemExit(4)")
    assert ended(child) == 4


def test_a_password_is_asked_for_and_not_shown(spawn):
    child = spawn("/usr/bin/python3", "-c", "import getpass; print(len(getpass.getpass('Secret: ')))")
    child.expect("Secret: ")
    child.sendline("hunter2")
    child.expect("7\r\n")
    assert b"hunter2" not in child.before
    assert ended(child) == 0


def test_shell(spawn, tree):
    child = spawn(command="shell", options=(WORKSPACE,))
    child.sendline("shopt -q login_shell && echo lo'gin'; test -t 0 && pwd -P")
    child.expect("login\r\n")
    child.expect(re.escape(str(tree)))
    child.sendline("exit 5")
    assert ended(child) == 5


def test_shell_of_a_path_on_a_mount(spawn, mount):
    place = mount.path / WORKSPACE / "sub"
    place.mkdir()
    for options, cwd in (((str(place),), None), ((), place)):
        child = spawn(command="shell", options=("-s", "/bin/sh", *options), cwd=cwd)
        child.sendline("pwd -P; exit 3")
        child.expect(re.escape(f"{place}\r\n"))
        assert ended(child) == 3


def test_the_terminal_is_as_before_when_the_command_was_killed(spawn):
    word = unique_sleep()
    child = spawn("sh", "-c", f"echo ready; exec sleep {word}")
    child.expect("ready\r\n")
    assert termios.tcgetattr(child.child_fd) != child.attributes
    pid, = wait_until(lambda: processes_with(word), what="the command")
    os.kill(pid, signal.SIGKILL)
    assert ended(child) == 137
    assert termios.tcgetattr(child.child_fd) == child.attributes


def test_the_terminal_is_as_before_when_the_service_is_gone(spawn, service):
    child = spawn("sh", "-c", "echo ready; exec sleep 300",
                  options=("-i", "-t", "-w", WORKSPACE, "--reattach", "1"))
    child.expect("ready\r\n")
    service.kill()
    assert ended(child) == 120
    assert termios.tcgetattr(child.child_fd) == child.attributes

"""berth shell: in a terminal as that of a login, without one as sh with a script on its input."""

import os
import pty
import signal
import subprocess

import pytest

from lib.exec_client import WORKSPACE
from lib.harness import wait_until
from lib.processes import processes_with, unique_sleep


@pytest.fixture
def shell(run_berth, tree):
    def run(*words, **keywords):
        return run_berth("shell", *words, **keywords)
    return run


def test_commands_from_a_pipe(shell):
    result = shell(WORKSPACE, input="echo hi; tty; echo oops >&2; exit 3\n", timeout=30)
    assert (result.returncode, result.stdout) == (3, "hi\nnot a tty\n"), result
    assert "oops\n" in result.stderr and "\x1b" not in result.stderr, result


def test_the_end_of_input_is_the_end(shell):
    result = shell(WORKSPACE, input="", timeout=30)
    assert (result.returncode, result.stdout) == (0, ""), result


def test_term_ends_a_shell_that_ignores_it(harness, service, tree):
    word = unique_sleep()
    master, slave = pty.openpty()
    process = subprocess.Popen([harness.program("berth"), "shell", WORKSPACE], env=service.client_env(),
                               stdin=slave, stdout=slave, stderr=slave)
    try:
        os.write(master, f"sleep {word} &\n".encode())
        wait_until(lambda: processes_with(word), what="the shell's command")
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 137
        wait_until(lambda: not processes_with(word), what="the end of what it left")
    finally:
        process.kill()
        process.wait(20)
        os.close(master)
        os.close(slave)


def test_a_word_beside_w_is_a_directory(shell, tree):
    (tree / "sub").mkdir()
    result = shell("-w", WORKSPACE, "sub", input="pwd\n", timeout=30)
    assert (result.returncode, result.stdout) == (0, f"{tree}/sub\n"), result
    result = shell("-w", WORKSPACE, "-C", "sub", "sub", input="pwd\n")
    assert result.returncode == 125 and "-C" in result.stderr, result


def test_a_path_that_is_no_mounts(shell):
    result = shell("/etc", input="pwd\n")
    assert result.returncode == 125 and "/etc is not in a Berth mount" in result.stderr, result

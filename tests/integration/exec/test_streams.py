"""Output and input: every byte, in order, however slow or broken the other side."""

import fcntl
import hashlib
import os
import signal
import subprocess
import time

import pytest

from lib.exec_client import STDIN, WORKSPACE
from lib.processes import processes_with, unique_sleep

pytestmark = pytest.mark.sandbox


# --- output --------------------------------------------------------------------------------

def test_streams_are_separate_and_binary_safe(execute):
    every = bytes(range(256)) * 300
    script = ("import sys, os; b = bytes(range(256)) * 300\n"
              "os.write(1, b) if len(b) < 65536 else sys.stdout.buffer.write(b)\n"
              "sys.stdout.flush(); sys.stderr.buffer.write(b[::-1])")
    result = execute("python3", "-c", script, text=False)
    assert result.returncode == 0
    assert result.stdout == every
    assert result.stderr == every[::-1]


def test_merged_streams_keep_their_order(execute):
    script = "for i in 1 2 3 4 5; do echo out $i; echo err $i >&2; done"
    result = execute("sh", "-c", script, options=["--merge"])
    assert result.stdout == "".join(f"out {i}\nerr {i}\n" for i in range(1, 6))
    assert result.stderr == ""


def test_many_small_writes(execute):
    result = execute("sh", "-c", "i=0; while [ $i -lt 20000 ]; do echo $i; i=$((i+1)); done")
    assert result.stdout == "".join(f"{i}\n" for i in range(20000))


def test_character_split_across_writes(execute):
    result = execute("sh", "-c", r"printf 'a\303'; sleep 0.2; printf '\251b'", text=False)
    assert result.stdout == "aéb".encode()


def test_last_line_without_newline(execute):
    assert execute("printf", "one\\ntwo").stdout == "one\ntwo"


def test_output_appears_while_the_command_runs(begin):
    process = begin("sh", "-c", "echo early; sleep 60")
    assert process.stdout.readline() == b"early\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 128 + signal.SIGTERM


def test_children_that_hold_the_pipes_do_not_hold_the_caller(execute):
    word = unique_sleep()
    before = time.monotonic()
    result = execute("sh", "-c", f"sleep {word} & echo started")
    took = time.monotonic() - before
    try:
        assert (result.returncode, result.stdout) == (0, "started\n")
        assert took < 10
        assert len(processes_with(word)) == 1  # left running
    finally:
        for pid in processes_with(word):
            os.kill(pid, signal.SIGKILL)


def test_reader_that_goes_away(harness, service, tree):
    """As locally: the command gets SIGPIPE, and nobody says anything."""
    berth = harness.program("berth")
    result = harness.run(
        ["bash", "-c", f"'{berth}' exec -w {WORKSPACE} -- yes | head -n 2; echo ${{PIPESTATUS[0]}}"],
        env=service.client_env())
    assert (result.stdout, result.stderr) == ("y\ny\n141\n", "")


def test_closed_local_output(harness, service, tree):
    berth = harness.program("berth")
    result = harness.run(["sh", "-c", f"'{berth}' exec -w {WORKSPACE} -- echo x >&-"],
                         env=service.client_env())
    assert (result.returncode, result.stderr) == (
        120, "berth: standard output: Bad file descriptor\n")


@pytest.mark.parametrize("rest", ["", "; sleep 1"])
def test_output_that_cannot_be_written(harness, service, tree, rest):
    """It ran, so neither 125 nor the status of the command or of our signal to it is true."""
    berth = harness.program("berth")
    result = harness.run(
        ["sh", "-c", f"'{berth}' exec -w {WORKSPACE} -- sh -c 'echo hi{rest}' > /dev/full"],
        env=service.client_env())
    assert (result.returncode, result.stderr) == (
        120, "berth: standard output: No space left on device\n")


def test_closed_local_error_output(harness, service, tree):
    """Nowhere to write messages: the command goes on, as it would here."""
    berth = harness.program("berth")
    result = harness.run(
        ["sh", "-c", f"'{berth}' exec -w {WORKSPACE} -- sh -c 'echo x >&2; sleep 0.2; exit 7' 2>&-"],
        env=service.client_env())
    assert (result.returncode, result.stdout) == (7, "")


def test_slow_reader_gets_everything(begin, service):
    process = begin("head", "-c", "3000000", "/dev/zero")
    time.sleep(1)
    assert process.poll() is None
    out, err = process.communicate(timeout=30)
    assert (out, err, process.returncode) == (bytes(3000000), b"", 0)


def test_shared_descriptors_stay_blocking(harness, service, tree):
    """O_NONBLOCK on a descriptor that we inherit would break every process that shares it."""
    read, write_end = os.pipe()
    result = subprocess.run(
        [harness.program("berth"), "exec", "-w", WORKSPACE, "-i", "--", "true"],
        env=service.client_env(), stdin=subprocess.DEVNULL, stdout=write_end, timeout=30,
        check=False)
    flags = fcntl.fcntl(write_end, fcntl.F_GETFL)
    os.close(read)
    os.close(write_end)
    assert result.returncode == 0
    assert not flags & os.O_NONBLOCK


# --- input ---------------------------------------------------------------------------------

def test_input_is_empty_unless_asked_for(execute, begin):
    assert execute("cat", input="ignored").stdout == ""
    process = begin("cat", stdin=subprocess.PIPE)  # held open
    assert process.wait(20) == 0


def test_input_arrives_and_ends(execute):
    content = os.urandom(10 << 20)
    result = execute("md5sum", options=["-i"], input=content, text=False)
    assert result.stdout.split()[0].decode() == hashlib.md5(content).hexdigest()


def test_input_through_and_back(execute):
    content = os.urandom(5 << 20)
    result = execute("cat", options=["-i"], input=content, text=False)
    assert result.stdout == content


def test_input_from_a_file(execute, harness):
    path = harness.new_path("input")
    path.write_bytes(os.urandom(3 << 20))
    with open(path, "rb") as file:
        result = execute("md5sum", options=["-i"], stdin=file)
    assert result.stdout.split()[0] == hashlib.md5(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("command", ["sleep 1000", "yes", "cat /dev/zero"])
def test_endless_input_delays_nothing(harness, service, tree, command):
    berth = harness.program("berth")
    before = time.monotonic()
    result = harness.run(
        ["bash", "-c", f"exec 3< <(exec {command}); feeder=$!; '{berth}' exec -w {WORKSPACE} -i"
                       " -- echo hi <&3; status=$?; kill $feeder; exit $status"],
        env=service.client_env())
    assert (result.returncode, result.stdout, result.stderr) == (0, "hi\n", "")
    assert time.monotonic() - before < 10


def test_closed_input(harness, service, tree):
    berth = harness.program("berth")
    result = harness.run(["sh", "-c", f"'{berth}' exec -w {WORKSPACE} -i -- wc -c <&-"],
                         env=service.client_env())
    assert (result.returncode, result.stdout) == (0, "0\n")


def test_input_with_a_gap_ends_the_command(client):
    call = client.wait_started(client.start(WORKSPACE, ["cat"], flags=STDIN))
    client.input(call, 0, "abc")
    client.input(call, 5, "def")
    verdict = client.wait(call)
    assert verdict.verdict == "killed"
    assert "gap" in verdict.text

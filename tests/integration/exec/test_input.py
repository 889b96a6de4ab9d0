"""Standard input: closed unless asked for, passed on to its end, and never waited for."""

import os
import subprocess
import time

import pytest


@pytest.fixture
def endless():
    """A pipe that nobody writes to and nobody closes."""
    reader, writer = os.pipe()
    yield reader
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize("options", [[], ["-i"]])
def test_the_end_of_the_command_is_the_end(execute, endless, options):
    started = time.monotonic()
    result = execute("echo", "hi", options=options, stdin=endless)
    assert (result.returncode, result.stdout) == (0, "hi\n")
    assert time.monotonic() - started < 20


def test_input_is_closed_unless_asked_for(execute, endless):
    result = execute("sh", "-c", "cat; echo end", stdin=endless)
    assert (result.returncode, result.stdout) == (0, "end\n")
    assert execute("readlink", "/proc/self/fd/0").stdout == "/dev/null\n"


def test_input_to_its_end(execute):
    data = os.urandom(1_500_000)
    for size in (0, 1, 65536, len(data)):
        result = execute("cat", options=["-i"], input=data[:size], text=False)
        assert (result.returncode, result.stdout) == (0, data[:size])


def test_input_of_a_file_and_of_nothing(execute, harness):
    path = harness.new_path("input")
    path.write_bytes(b"from a file\n")
    with open(path, "rb") as file:
        assert execute("cat", options=["-i"], stdin=file).stdout == "from a file\n"
    with open("/dev/null", "rb") as null:
        assert execute("wc", "-c", options=["-i"], stdin=null).stdout == "0\n"


def test_a_conversation(begin):
    process = begin("cat", options=["-i"], stdin=subprocess.PIPE)
    for i in range(50):
        line = f"line {i}\n".encode()
        process.stdin.write(line)
        process.stdin.flush()
        assert process.stdout.readline() == line
    process.stdin.close()
    assert process.wait(20) == 0
    process.stdin = None


def test_a_command_that_does_not_read_stops_the_writer(begin):
    """And takes no memory for it."""
    process = begin("sh", "-c", "echo ready; exec sleep 300", options=["-i"], stdin=subprocess.PIPE)
    assert process.stdout.readline() == b"ready\n"
    os.set_blocking(process.stdin.fileno(), False)
    written, idle = 0, time.monotonic()
    while time.monotonic() - idle < 1:
        try:
            written += os.write(process.stdin.fileno(), b"x" * 65536)
            idle = time.monotonic()
        except BlockingIOError:
            time.sleep(0.02)
        assert written < 16 << 20
    process.send_signal(15)
    assert process.wait(20) == 143
    process.stdin.close()
    process.stdin = None

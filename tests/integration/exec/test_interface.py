"""Command line and JSON of berth exec, and many commands beside each other."""

import base64
import json
import signal
import time

import pytest

from lib.exec_client import MERGE, PTY, STDIN, WORKSPACE, ExecClient
from lib.harness import wait_until
from lib.processes import children_of, memory_limit

pytestmark = pytest.mark.sandbox


# --- JSON ----------------------------------------------------------------------------------

def test_json_of_an_exit(execute, tree):
    result = execute("sh", "-c", "printf 'é\\0'; printf '\\377' >&2; exit 9", options=["--json"])
    assert (result.returncode, result.stderr) == (9, "")
    assert result.stdout.count("\n") == 1 and result.stdout.endswith("\n")
    object = json.loads(result.stdout)
    assert object.pop("duration_ms") > 0
    assert object.pop("connection")["way"] == "direct"
    assert len(object.pop("id")) == 16
    assert (object.pop("path"), object.pop("path_text")) == (str(tree), None)
    assert object == {
        "verdict": "exited", "exit_status": 9, "code": 9, "signal": None, "core": False,
        "stage": None, "error": None, "errno": None, "text": None, "removed": 0, "left": 0, "means": None,
        "stdout_dropped": 0, "stderr_dropped": 0,
        "timeout_ms": None, "coherence": "seen", "fs_seq": None, "stdout": "é\0", "stdout_encoding": "utf-8",
        "stdout_bytes": 3, "stdout_truncated": False,
        "stderr": base64.b64encode(b"\xff").decode(), "stderr_encoding": "base64",
        "stderr_bytes": 1, "stderr_truncated": False}


def test_json_of_what_does_not_start(execute):
    result = execute("no-such-program", options=["--json"])
    object = json.loads(result.stdout)
    assert (result.returncode, object["exit_status"], object["verdict"], object["stage"],
            object["errno"], object["code"]) == (127, 127, "not_started", "execve", "ENOENT", None)


def test_json_of_a_timeout(execute):
    result = execute("sleep", "60", options=["--json", "--timeout", "0.3"])
    object = json.loads(result.stdout)
    assert (result.returncode, object["verdict"], object["timeout_ms"], object["signal"],
            object["removed"]) == (124, "timed_out", 300, 15, 1)


@pytest.mark.slow
@pytest.mark.long
def test_json_of_endless_output_is_bounded(execute):
    result = execute("head", "-c", "20000000", "/dev/zero", options=["--json"])
    object = json.loads(result.stdout)
    assert (object["stdout_bytes"], object["stdout_truncated"]) == (20000000, True)
    assert len(object["stdout"]) == 16 << 20


# --- the command line ----------------------------------------------------------------------

@pytest.mark.parametrize("arguments", [
    ["-w", WORKSPACE], ["-w", WORKSPACE, "--"], ["-w", WORKSPACE, "--timeout", "x", "--", "true"],
    ["-w", WORKSPACE, "--timeout", "0", "--", "true"], ["-w", WORKSPACE, "--timeout", "nan", "true"],
    ["-w", WORKSPACE, "--no-such-option", "true"], ["-w", "", "--", "true"],
    ["-w", WORKSPACE, "--id", "x" * 65, "--", "true"]])
def test_command_lines_that_are_none(run_berth, tree, arguments):
    result = run_berth("exec", *arguments)
    assert result.returncode == 125
    assert result.stdout == "" and result.stderr != ""


def test_options_of_the_command_are_its_own(execute, run_berth, tree):
    assert run_berth("exec", "-w", WORKSPACE, "echo", "-w", "x", "--json").stdout == "-w x --json\n"


# --- many, and beside each other -----------------------------------------------------------

@pytest.mark.timeout(120)
def test_nothing_is_left_behind(client, service):
    for _ in range(5):
        client.run(WORKSPACE, ["true"])
    keeper = service.keeper()
    wait_until(lambda: children_of(keeper.pid) == [], what="the end of what is cleared away behind a verdict")
    before = service.descriptors(), keeper.descriptors()  # more for a moment, where an earlier client goes
    for i in range(200):
        argv = [["sh", "-c", "echo x; echo y >&2"], ["no-such"], ["sh", "-c", "kill -9 $$"]][i % 3]
        client.run(WORKSPACE, argv, flags=[0, MERGE, STDIN, PTY][i % 4])
    wait_until(lambda: children_of(service.pid) + children_of(keeper.pid) == [],
               what="the end of all children")
    wait_until(lambda: service.descriptors() <= before[0] and keeper.descriptors() <= before[1],
               what=f"no more descriptors than before, {before}")


def test_commands_run_side_by_side(client):
    before = time.monotonic()
    calls = [client.start(WORKSPACE, ["sh", "-c", f"sleep 1; echo {i}"]) for i in range(40)]
    for i, call in enumerate(calls):
        assert client.wait(call).code == 0
        assert bytes(call.output[1]) == f"{i}\n".encode()
    assert time.monotonic() - before < 20


def test_client_that_never_reads(execute, client, harness, service):
    """Only its own command stops; the service's memory does not grow; others do not notice."""
    client.run(WORKSPACE, ["true"])
    before = service.memory()
    with ExecClient(service.socket) as deaf:
        calls = [deaf.start(WORKSPACE, ["yes"]) for _ in range(4)]
        time.sleep(0.5)
        begun = time.monotonic()
        for i in range(20):
            assert bytes(client.run(WORKSPACE, ["echo", str(i)]).output[1]) == f"{i}\n".encode()
        assert time.monotonic() - begun < 10
        assert execute("echo", "hi").stdout == "hi\n"
        assert service.memory() - before < memory_limit(harness)
        assert calls[0].verdict is None
    wait_until(lambda: children_of(service.keeper().pid) == [], what="the end of the deaf client's commands")


def test_call_that_is_not_granted_does_not_stop_its_neighbour(client):
    """Two calls on one connection: the one whose output is not taken waits alone."""
    client.granting = False
    stuck = client.wait_started(client.start(WORKSPACE, ["yes"]))
    deadline = time.monotonic() + 1
    while time.monotonic() < deadline and len(stuck.output[1]) < 900000:
        client.step()
    other = client.run(WORKSPACE, ["sh", "-c", "seq 1000"])
    assert other.output[1].endswith(b"1000\n")
    client.signal(stuck, signal.SIGKILL)
    client.granting = True
    client.grant(stuck, 1 << 20)
    assert client.wait(stuck).signal == 9

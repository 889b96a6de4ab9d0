"""How commands end: statuses, signals, time, and a lost other side."""

import os
import signal
import time

import pytest

from lib.exec_client import WORKSPACE
from lib.harness import wait_until
from lib.processes import processes_with, state_of, unique_sleep

pytestmark = pytest.mark.sandbox


# --- how it ends ---------------------------------------------------------------------------

def test_every_exit_code(client):
    for code in range(256):
        verdict = client.run(WORKSPACE, ["sh", "-c", f"exit {code}"]).verdict
        assert (verdict.verdict, verdict.code, verdict.signal) == ("exited", code, 0)


@pytest.mark.matrix
@pytest.mark.parametrize("code", [0, 1, 2, 119, 120, 124, 125, 126, 127, 128, 130, 200, 255])
def test_exit_status_of_the_cli(execute, code):
    result = execute("sh", "-c", f"exit {code}")
    assert (result.returncode, result.stdout, result.stderr) == (code, "", "")


def test_exit_takes_the_low_byte(client, tree):
    """As _exit(2) does for every parent: 300 is 44, and no shell's own idea of it."""
    program = "import ctypes; ctypes.CDLL(None).exit(300)"
    verdict = client.run(WORKSPACE, ["python3", "-c", program]).verdict
    assert (verdict.verdict, verdict.code) == ("exited", 300 & 0xff)
    assert client.run(WORKSPACE, ["bash", "-c", "exit 300"]).verdict.code == 44


ENDING_SIGNALS = sorted(set(range(1, 65)) - {
    signal.SIGCHLD, signal.SIGCONT, signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU,
    signal.SIGURG, signal.SIGWINCH})


def test_every_signal(client):
    for number in ENDING_SIGNALS:
        call = client.wait_started(client.start(WORKSPACE, ["sleep", "60"]))
        client.signal(call, number)
        verdict = client.wait(call)
        assert (verdict.verdict, verdict.signal, verdict.code) == ("signaled", number, 0)


@pytest.mark.matrix
@pytest.mark.parametrize("number", [1, 2, 3, 6, 9, 11, 13, 15, 34, 64])
def test_signal_status_of_the_cli(execute, number):
    script = (f"import os, signal\n"
              f"if {number} != 9: signal.signal({number}, signal.SIG_DFL)\n"
              f"os.kill(os.getpid(), {number})")
    assert execute("python3", "-c", script).returncode == 128 + number


def test_duration_and_counts(client):
    call = client.run(WORKSPACE, ["sh", "-c", "sleep 0.3; printf abc; printf de >&2"])
    assert (call.verdict.stdout_bytes, call.verdict.stderr_bytes) == (3, 2)
    assert 300e6 <= call.verdict.duration_ns < 20e9
    assert call.verdict.removed == 0


# --- signals and time ----------------------------------------------------------------------

def test_interrupt_reaches_the_group(begin):
    word = unique_sleep()
    process = begin("sh", "-c", f"echo ready; sleep {word}; echo not reached")
    assert process.stdout.readline() == b"ready\n"
    wait_until(lambda: processes_with(word), what="the sleep")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err) == (130, b"", b"")
    assert processes_with(word) == []


@pytest.mark.parametrize("number,name", [(signal.SIGINT, "INT"), (signal.SIGTERM, "TERM"),
                                         (signal.SIGHUP, "HUP"), (signal.SIGQUIT, "QUIT")])
def test_signals_are_forwarded(begin, number, name):
    process = begin("sh", "-c", f"trap 'echo got {name}; exit 5' {name}; echo ready;"
                                "while :; do sleep 0.05; done")
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(number)
    out, _ = process.communicate(timeout=20)
    assert (process.returncode, out) == (5, f"got {name}\n".encode())


@pytest.mark.parametrize("name", ["INT", "TERM"])
def test_second_signal_kills(begin, name):
    process = begin("sh", "-c", f"trap '' {name}; echo ready; while :; do sleep 0.05; done")
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(signal.Signals[f"SIG{name}"])
    time.sleep(0.3)
    assert process.poll() is None
    process.send_signal(signal.Signals[f"SIG{name}"])
    assert process.wait(20) == 137


def test_stop_and_continue(begin):
    word = unique_sleep()
    process = begin("sleep", word)
    pid, = wait_until(lambda: [p for p in processes_with(word) if p != process.pid], what="start")
    process.send_signal(signal.SIGTSTP)
    wait_until(lambda: state_of(pid) == "T", what="the command's stop")
    wait_until(lambda: state_of(process.pid) == "T", what="our own stop")
    process.send_signal(signal.SIGCONT)
    wait_until(lambda: state_of(pid) == "S", what="the command's continuation")
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 143


def test_stop_and_continue_lose_no_output(harness, begin):
    with open(harness.new_path("output"), "wb") as output:
        process = begin("sh", "-c", "i=0; while :; do echo $((i=i+1)); done", stdout=output)
        wait_until(lambda: output.tell() or os.path.getsize(output.name) > 1 << 18, what="output")
        process.send_signal(signal.SIGTSTP)
        wait_until(lambda: state_of(process.pid) == "T", what="our own stop")
        process.send_signal(signal.SIGCONT)
        size = os.path.getsize(output.name)
        wait_until(lambda: os.path.getsize(output.name) > size, what="more output")
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 143
    lines = open(output.name).read().split("\n")
    assert lines[:-1] == [str(i + 1) for i in range(len(lines) - 1)]


def test_timeout(execute):
    word = unique_sleep()
    before = time.monotonic()
    result = execute("sh", "-c", f"sleep {word} & sleep {word}; echo no", options=["--timeout", "0.5"])
    assert time.monotonic() - before < 15
    assert (result.returncode, result.stdout) == (124, "")
    assert result.stderr == "berth: timed out after 0.5 s; 3 processes removed\n"
    assert processes_with(word) == []


def test_timeout_of_what_ignores_term(client):
    word = unique_sleep()
    script = f"trap '' TERM; setsid sleep {word} & sleep {word} & while :; do sleep 0.1; done"
    call = client.run(WORKSPACE, ["sh", "-c", script], timeout_ms=500)
    verdict = call.verdict
    assert (verdict.verdict, verdict.signal, verdict.timeout_ms) == ("timed_out", 9, 500)
    assert verdict.removed >= 3
    assert 2.4e9 < verdict.duration_ns < 20e9
    assert processes_with(word) == []


def test_command_in_time_is_not_timed_out(client):
    verdict = client.run(WORKSPACE, ["sh", "-c", "exit 3"], timeout_ms=20000).verdict
    assert (verdict.verdict, verdict.code, verdict.timeout_ms) == ("exited", 3, 20000)


def test_cancel(client):
    call = client.wait_started(client.start(WORKSPACE, ["sleep", "60"]))
    client.cancel(call)
    verdict = client.wait(call)
    assert (verdict.verdict, verdict.signal, verdict.removed) == ("killed", signal.SIGTERM, 1)
    assert "cancelled" in verdict.text


@pytest.mark.parametrize("ignores", [False, True])
def test_lost_client_ends_its_commands(begin, tree, ignores):
    word = unique_sleep()
    trap = "trap '' TERM" if ignores else "trap 'touch got-term; exit' TERM"
    process = begin("sh", "-c", f"{trap}; echo ready; while :; do sleep 0.05; done; : {word}")
    assert process.stdout.readline() == b"ready\n"
    process.kill()
    process.wait(20)
    wait_until(lambda: not processes_with(f"{trap}; echo ready; while :; do sleep 0.05; done; : {word}"),
               timeout=10, what="the command's end")
    assert (tree / "got-term").exists() != ignores


def test_lost_service_is_never_a_success(begin, service):
    word = unique_sleep()
    process = begin("sh", "-c", f"echo ready; sleep {word}", options=["--reattach", "1"])
    assert process.stdout.readline() == b"ready\n"
    service.kill()
    try:
        out, err = process.communicate(timeout=20)
        assert (process.returncode, out) == (120, b"")
        assert err.startswith(b"berth: outcome unknown: ")
    finally:
        for pid in processes_with(word):
            os.kill(pid, signal.SIGKILL)
        for pid in processes_with(f"echo ready; sleep {word}"):
            os.kill(pid, signal.SIGKILL)


def test_service_that_ends_is_never_a_success(begin, service):
    """Output that came before is not called missing."""
    process = begin("sh", "-c", f"echo ready; sleep {unique_sleep()}", options=["--reattach", "0"])
    assert process.stdout.readline() == b"ready\n"
    service.stop()
    _, err = process.communicate(timeout=20)
    assert process.returncode == 120  # how far it came is not known
    assert err.startswith(b"berth: outcome unknown: ") and b"missing" not in err, err


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_service_that_is_restarted_loses_nothing(begin, service, how):
    process = begin("sh", "-c", "echo ready; sleep 1; echo done; exit 7")
    assert process.stdout.readline() == b"ready\n"
    if how == "kill":
        service.kill()
    service.restart()
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (7, b"done\n"), err
    assert err == b"" or err.count(b"\n") == 1 and b"the connection was lost" in err  # it may take over a second

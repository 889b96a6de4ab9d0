"""Commands by their IDs: berth exec --detach, ps, logs, attach, wait, kill; and coming back to one after
its connection was lost."""

import hashlib
import json
import random
import re
import signal
import subprocess
import time

import pexpect
import pytest

from lib.exec_client import WORKSPACE
from lib.harness import wait_until
from lib.processes import processes_with

pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(120)]


@pytest.fixture
def berth(run_berth, tree):
    """berth(COMMAND, …) with its output as text."""
    return lambda *argv, **keywords: run_berth(*argv, **keywords)


@pytest.fixture
def detach(berth):
    def start(*argv, options=()):
        return berth("exec", "--detach", "-w", WORKSPACE, *options, "--", *argv, check=True).stdout.strip()
    return start


def rows(berth, *options):
    return json.loads(berth("ps", "--json", *options, check=True).stdout)


def test_detached_and_waited_for(berth, detach, tree):
    first = detach("sh", "-c", "echo out; echo err >&2; while ! test -e go; do sleep 0.05; done; exit 7")
    assert re.fullmatch("[0-9a-f]{16}", first)
    assert detach("sh", "-c", "exit 3", options=["--id", "named"]) == "named"
    assert berth("wait", "named").returncode == 3
    row, = rows(berth)
    assert (row["id"], row["workspace"], row["state"], row["exit_status"]) == (first, WORKSPACE, "running", None)
    assert row["command"][0] == "sh" and row["processes"] >= 1
    assert first in berth("ps").stdout and "named" not in berth("ps").stdout
    assert berth("ps", "-q").stdout == f"{first}\n"
    assert {row["id"] for row in rows(berth, "--all")} == {first, "named"}
    logs = berth("logs", first)
    assert (logs.returncode, logs.stdout, logs.stderr) == (0, "out\n", "err\n")
    (tree / "go").touch()
    assert berth("wait", first).returncode == 7
    again = berth("logs", "-f", first)
    assert (again.returncode, again.stdout, again.stderr) == (7, "out\n", "err\n")
    verdict = json.loads(berth("wait", "--json", first).stdout)
    assert (verdict["verdict"], verdict["code"], verdict["id"]) == ("exited", 7, first)


def test_what_is_not_there(berth):
    for command in ("logs", "attach", "wait"):
        result = berth(command, "nowhere")
        assert (result.returncode, result.stdout) == (125, "") and "no such command" in result.stderr
    assert berth("kill", "nowhere").returncode == 1
    assert rows(berth) == [] and berth("ps").stdout == ""


def test_a_second_start_attaches(begin, detach, tree):
    argv = ["sh", "-c", "echo x >> count; while ! test -e go; do sleep 0.05; done; echo done"]
    detach(*argv, options=["--id", "once"])
    starts = [begin(*argv, options=["--id", "once"]) for _ in range(5)]
    time.sleep(0.3)
    (tree / "go").touch()
    for process in starts:
        out, _ = process.communicate(timeout=30)
        assert (process.returncode, out) == (0, b"done\n")
    assert (tree / "count").read_text() == "x\n"


def test_input_from_who_attaches(berth, begin):
    process = begin("sh", "-c", "echo ready; read x; echo got $x; exit 4", options=["-i", "--id", "asks"],
                    stdin=subprocess.PIPE)
    assert process.stdout.readline() == b"ready\n"
    result = berth("attach", "-i", "asks", input="hello\n")
    assert (result.returncode, result.stdout) == (4, "ready\ngot hello\n")
    out, _ = process.communicate(timeout=20)
    assert (process.returncode, out) == (4, b"got hello\n")


def test_killed_with_all_it_left(berth, detach):
    word = f"{300 + random.random()}"
    name = detach("sh", "-c", f"sleep {word} & setsid sleep {word} & echo started; wait")
    wait_until(lambda: len(processes_with(word)) >= 2, what="the command's processes")
    result = berth("kill", name)
    assert result.returncode == 0, result.stderr
    assert re.fullmatch(rf"{name}: \d+ processes removed \((cgroup|subreaper|tree)\)\n", result.stdout)
    assert processes_with(word) == []
    assert berth("wait", name).returncode in (143, 137)
    again = berth("kill", name)
    assert again.returncode == 1 and "nothing of it lives" in again.stderr


def test_a_signal_by_name(berth, detach, tree):
    name = detach("sh", "-c", "trap 'echo hup >> note; exit 9' HUP; echo up > note; while :; do sleep 0.05; done")
    wait_until(lambda: (tree / "note").exists(), what="the command")
    assert berth("kill", "-s", "HUP", name).returncode == 0
    assert berth("wait", name).returncode == 9
    assert (tree / "note").read_text() == "up\nhup\n"


def test_what_a_leader_leaves_is_listed_and_killed(berth, execute):
    word = f"{300 + random.random()}"
    result = execute("sh", "-c", f"setsid sleep {word} >/dev/null 2>&1 & echo left", options=["--id", "leaver"])
    assert (result.returncode, result.stdout) == (0, "left\n")
    row, = rows(berth)
    assert (row["id"], row["state"], row["processes"]) == ("leaver", "exited", 1)
    assert berth("kill", "leaver").returncode == 0
    assert processes_with(word) == [] and rows(berth) == []


def test_interrupting_logs_leaves_the_command(berth, detach, harness, service):
    name = detach("sh", "-c", "echo one; sleep 300")
    process = subprocess.Popen([harness.program("berth"), "logs", "-f", name], env=service.client_env(),
                               cwd=harness.directory, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"one\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 130
    process.communicate()
    assert rows(berth)[0]["state"] == "running"
    berth("kill", name, check=True)


def test_a_second_interrupt_ends_all_of_it(begin):
    word = f"{300 + random.random()}"
    process = begin("sh", "-c", f"trap '' INT; setsid sleep {word} & echo ready; while :; do sleep 0.05; done")
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.wait(20) in (137, 143)
    assert processes_with(word) == []


# --- coming back -----------------------------------------------------------------------------

LINES = "i=0; while [ $i -lt {n} ]; do echo line $i; echo err $i >&2; i=$((i+1)); done; exit 5"


def expected(prefix, n):
    return "".join(f"{prefix} {i}\n" for i in range(n)).encode()


@pytest.fixture
def far(harness, start_service, start_relay):
    """A service behind a relay; commands have a connection of their own."""
    service = start_service(http=True)
    harness.run_berth("create", WORKSPACE, check=True, url=service.url)
    relay = start_relay(service.http_url)

    def begin(*argv, options=(), **keywords):
        return subprocess.Popen(
            [harness.program("berth"), "exec", "--no-persist", "-w", WORKSPACE, *options, "--", *argv],
            env=service.client_env(relay.url), cwd=harness.directory, start_new_session=True,
            **{"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **keywords})

    begin.relay, begin.service = relay, service
    return begin


def cut_at_random(far, rounds, seed):
    chance, refused = random.Random(seed), 0
    for _ in range(rounds):
        count = chance.randrange(1, 3000)
        for _ in range(chance.randrange(1, 4)):
            far.relay.cut_after(chance.randrange(1, 60_000))
        process = far("sh", "-c", LINES.format(n=count))
        out, err = process.communicate(timeout=60)
        if process.returncode == 125:  # cut in the greeting: nothing was asked for yet
            assert out == b"" and (b"without an answer" in err or b"before its greeting" in err), (seed, err)
            refused += 1
            continue
        assert process.returncode == 5, (seed, err[-300:])
        err = b"".join(line for line in err.splitlines(True) if not line.startswith(b"berth: "))  # of a long loss
        assert hashlib.md5(out).digest() == hashlib.md5(expected("line", count)).digest()
        assert hashlib.md5(err).digest() == hashlib.md5(expected("err", count)).digest()
    assert refused <= rounds // 20


def test_output_after_cuts_has_no_gap_and_no_repeat(far):
    cut_at_random(far, 15, 1)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_output_after_a_thousand_cuts(far):
    cut_at_random(far, 1000, random.randrange(1 << 30))


@pytest.mark.parametrize("at", [1000, 100_000, 700_000, 1_900_000])
def test_input_after_a_cut_has_no_gap_and_no_repeat(far, at):
    data = random.Random(at).randbytes(2_000_000)
    far.relay.cut_after(at)
    process = far("md5sum", options=["-i"], stdin=subprocess.PIPE)
    out, err = process.communicate(data, timeout=60)
    assert process.returncode == 0, err
    assert out.split()[0].decode() == hashlib.md5(data).hexdigest()


def test_a_request_that_was_cut_runs_once(far):
    tree = far.service.root / "workspaces" / WORKSPACE / "tree"
    ran = 0
    for size in range(300, 1200, 50):
        far.relay.cut_after(size)
        process = far("sh", "-c", f"echo x >> ran-{size}; cat ran-{size}")
        out, err = process.communicate(timeout=60)
        if process.returncode == 125:  # cut in the greeting: nothing was asked for yet
            assert not (tree / f"ran-{size}").exists()
            continue
        assert (process.returncode, out) == (0, b"x\n"), (size, err)
        assert (tree / f"ran-{size}").read_text() == "x\n"
        ran += 1
    assert ran > 5


def test_interrupted_while_away(far):
    process = far("sh", "-c", "echo ready; sleep 300")
    assert process.stdout.readline() == b"ready\n"
    far.relay.refuse()
    far.relay.cut()
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 120
    assert b"unknown" in process.stderr.read()


def test_a_terminal_comes_back(far, harness):
    child = pexpect.spawn(harness.program("berth"), ["shell", "-s", "/bin/sh", WORKSPACE], timeout=20, cwd="/",
                          env={**far.service.client_env(far.relay.url), "TERM": "xterm", "BERTH_PERSIST": "0"})
    child.sendline("x=kept; echo re''ady")
    child.expect("ready\r\n")
    far.relay.refuse()
    far.relay.cut()
    child.expect("waiting for it, 60 s at most")
    far.relay.refuse(False)
    child.sendline("echo $x again")
    child.expect("kept again\r\n")
    child.sendline("exit 6")
    child.expect(pexpect.EOF)
    child.wait()
    assert child.exitstatus == 6
    child.close()


def test_a_client_that_is_killed(far, berth):
    """--on-disconnect=continue goes on; without it the command is ended after a while."""
    tree = far.service.root / "workspaces" / WORKSPACE / "tree"
    process = far("sh", "-c", "echo ready; while ! test -e go; do sleep 0.05; done; touch went-on",
                  options=["--on-disconnect", "continue", "--id", "stays"])
    assert process.stdout.readline() == b"ready\n"
    process.kill()
    process.communicate()
    (tree / "go").touch()
    assert berth("wait", "stays", service=far.service).returncode == 0
    assert (tree / "went-on").exists()

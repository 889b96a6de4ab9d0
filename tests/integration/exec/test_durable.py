"""Commands outlive the process that talks to the network, and those who started them: they run once,
lose nothing, and what is said of their end is true."""

import contextlib
import errno
import json
import os
import random
import signal
import time

import pytest

from lib.berthwire import CallError, Closed
from lib.exec_client import (ATTACH_FOLLOW, ATTACH_HOLD, ATTACH_INPUT, ATTACH_OUTPUT, DETACH, KEEP, STDIN,
                             WORKSPACE, ExecClient)
from lib.harness import wait_until
from lib.peer_service import PeerService
from lib.processes import processes_with, unique_sleep

pytestmark = pytest.mark.sandbox

LOGS = ATTACH_OUTPUT
FOLLOW = ATTACH_OUTPUT | ATTACH_FOLLOW


def restarted(service):
    """The same root and addresses, after berthd was killed."""
    service.kill()
    return service.restart()


# --- detached, listed, attached ------------------------------------------------------------

def test_detached_command_is_answered_when_it_runs(client, tree):
    call = client.start(WORKSPACE, ["sh", "-c", "echo begun > began; sleep 60"], flags=DETACH, exec_id="d")
    verdict = client.wait_verdict(call)
    assert (verdict.verdict, call.id, call.output[1]) == ("running", b"d", b"")
    wait_until(lambda: (tree / "began").exists(), what="the command's work")
    assert client.list()[0].verdict == "running"


def test_detached_command_that_cannot_start(client):
    verdict = client.wait_verdict(client.start(WORKSPACE, ["no-such"], flags=DETACH))
    assert (verdict.verdict, verdict.stage, verdict.code) == ("not_started", "execve", 127)


def test_detached_command_outlives_its_client(service, client):
    script = "for i in $(seq 50); do echo $i; sleep 0.02; done; exit 9"
    with ExecClient(service.socket) as other:
        other.wait_verdict(other.start(WORKSPACE, ["sh", "-c", script], flags=DETACH, exec_id="d"))
    verdict = client.wait(call := client.attach(WORKSPACE, "d"))
    assert (verdict.verdict, verdict.code, call.attached) == ("exited", 9, True)
    assert bytes(call.output[1]) == b"".join(b"%d\n" % (i + 1) for i in range(50))


def test_list(client):
    word = unique_sleep()
    for name in ("a", "b"):
        client.wait_verdict(client.start(WORKSPACE, ["sleep", word], flags=DETACH, exec_id=name))
    client.wait(client.start(WORKSPACE, ["sh", "-c", "printf abc; exit 4"], exec_id="c"))
    a, b, c = client.list()
    assert [one.id for one in (a, b, c)] == [b"a", b"b", b"c"]
    assert (a.workspace, a.argv, a.verdict, a.attached) == (b"work", b"sleep\0" + word.encode() + b"\0", "running", 0)
    assert (a.processes, c.processes) == (1, 0)
    assert (c.verdict, c.code, c.stdout_bytes) == ("exited", 4, 3)
    assert a.pid in processes_with(word) and abs(a.started_at[0] - time.time()) < 60
    assert [one.id for one in client.list(exec_id="b")] == [b"b"]
    assert [one.id for one in client.list(after=a.serial, count=1)] == [b"b"]
    assert client.list(workspace="other") == []


def test_output_so_far_and_followed(client, tree):
    os.mkfifo(tree / "go")
    client.wait_verdict(client.start(WORKSPACE, ["sh", "-c", "echo one; read x < go; echo two"],
                                     flags=DETACH, exec_id="d"))
    wait_until(lambda: client.list()[0].stdout_bytes == 4, what="the first line")
    so_far = client.attach(WORKSPACE, "d", LOGS)
    assert client.wait_verdict(so_far).verdict == "running"
    assert bytes(so_far.output[1]) == b"one\n"
    followed = client.attach(WORKSPACE, "d", FOLLOW, from_stdout=2)
    waited = client.attach(WORKSPACE, "d", ATTACH_FOLLOW)
    (tree / "go").write_text("\n")
    assert client.wait_verdict(followed).verdict == "exited"
    assert bytes(followed.output[1]) == b"e\ntwo\n"
    assert client.wait_verdict(waited).code == 0 and not waited.output[1]


def test_attached_client_gives_input(client):
    client.wait_verdict(client.start(WORKSPACE, ["sh", "-c", "cat; echo end"], flags=DETACH | STDIN, exec_id="d"))
    call = client.wait_started(client.attach(WORKSPACE, "d", FOLLOW | ATTACH_INPUT))
    client.input(call, 0, "some ")
    client.input(call, 3, "e input", end=True)  # what was sent already is dropped
    assert client.wait_verdict(call).code == 0
    assert bytes(call.output[1]) == b"some inputend\n"


def test_input_goes_on_where_it_was(client, service):
    with ExecClient(service.socket) as other:
        call = other.wait_started(other.start(WORKSPACE, ["cat"], flags=STDIN, exec_id="c"))
        other.input(call, 0, "first ")
        while not call.output[1]:
            other.step()
    again = client.wait_started(client.attach(WORKSPACE, "c", FOLLOW | ATTACH_INPUT | ATTACH_HOLD))
    assert again.input == 6
    client.input(again, 6, "second", end=True)
    assert client.wait(again).code == 0
    assert bytes(again.output[1]) == b"first second"


@pytest.mark.parametrize("ask", ["attach", "kill"])
def test_id_that_is_not_there(client, ask):
    with pytest.raises(CallError) as refused:
        if ask == "attach":
            client.wait_verdict(client.attach(WORKSPACE, "no such"))
        else:
            client.kill(WORKSPACE, "no such")
    assert refused.value.errno == 2


def test_forgotten_command_leaves_nothing(client, service):
    client.wait(client.start(WORKSPACE, ["echo", "x"], exec_id="f"))
    assert (service.root / "exec" / WORKSPACE / "f" / "record").exists()
    client.forget(WORKSPACE, "f")
    wait_until(lambda: client.list() == [], what="the end of the verdict")
    wait_until(lambda: not (service.root / "exec" / WORKSPACE).exists(), what="the end of an empty directory")


# --- once ----------------------------------------------------------------------------------

def test_same_id_runs_once(service, tree):
    """Asked for a hundred times at once, on many connections."""
    script = ["sh", "-c", "echo x >> runs; sleep 0.5; cat runs; exit 3"]
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(ExecClient(service.socket)) for _ in range(10)]
        calls = [(c, c.start(WORKSPACE, script, exec_id="once")) for _ in range(10) for c in clients]
        for c, call in calls:
            assert (c.wait(call).code, bytes(call.output[1])) == (3, b"x\n")
    assert (tree / "runs").read_text() == "x\n"
    assert sum(not call.attached for _, call in calls) == 1


def test_same_id_in_another_workspace_is_another_command(client, run_berth):
    run_berth("create", "other", check=True)
    client.wait(client.start(WORKSPACE, ["echo", "one"], exec_id="x"))
    call = client.start("other", ["echo", "two"], exec_id="x")
    assert client.wait(call).code == 0 and bytes(call.output[1]) == b"two\n"


@pytest.mark.parametrize("name", ["lock", "log", "socket", "expired", "confinement.json", "record"])
def test_no_workspace_is_in_the_way(client, run_berth, name):
    run_berth("create", name, check=True)
    assert client.wait(client.start(name, ["true"], exec_id=name)).code == 0


def test_id_that_has_run_is_not_run_again_after_everything_was_restarted(service, client, tree):
    client.wait(client.start(WORKSPACE, ["sh", "-c", "echo x >> runs; cat runs; exit 6"], exec_id="once"))
    service.keeper().kill()
    with ExecClient(restarted(service).socket) as again:
        call = again.start(WORKSPACE, ["sh", "-c", "echo x >> runs; cat runs; exit 6"], exec_id="once")
        assert (again.wait(call).code, call.attached, bytes(call.output[1])) == (6, True, b"x\n")
        other = again.wait(again.start(WORKSPACE, ["sh", "-c", "echo x >> runs"], exec_id="once"))
        assert (other.verdict, other.stage, other.error) == ("not_started", "request", errno.EEXIST)
    assert (tree / "runs").read_text() == "x\n"


@pytest.mark.parametrize("change", [{"argv": ["touch", "a", "b"]}, {"argv": ["touch", "a b"]}, {"env": ["A=1"]},
                                    {"cwd": "sub"}])
def test_id_of_another_command(client, tree, change):
    (tree / "sub").mkdir()
    first = {"argv": ["touch", "a"]}
    client.wait(client.start(WORKSPACE, exec_id="x", **first))
    verdict = client.wait(client.start(WORKSPACE, exec_id="x", **{**first, **change}))
    assert (verdict.verdict, verdict.error) == ("not_started", errno.EEXIST)
    assert "the ID x is that of another command" in verdict.text and verdict.text.endswith(": touch a")
    assert client.wait(client.start(WORKSPACE, exec_id="x", **first)).code == 0


def test_id_that_is_asked_for_again_and_detached(execute, run_berth):
    def again(*argv):
        return execute(*argv, options=["--detach", "--id", "d"])

    argv = ["sh", "-c", "echo out; exit 3"]
    assert (again(*argv).returncode, again(*argv).stdout) == (0, "d\n")
    assert run_berth("wait", "d").returncode == 3
    result = again(*argv)
    assert (result.returncode, result.stdout) == (0, "d\n")
    assert result.stderr == "berth: d has ended, with status 3, and is kept; nothing was started\n"
    result = again("echo", "b")
    assert (result.returncode, result.stdout) == (125, "") and "the ID d is that of another command" in result.stderr
    assert execute(*argv, options=["--id", "d"]).stdout == "out\n"
    assert run_berth("wait", "--forget", "d").returncode == 3
    wait_until(lambda: again("sh", "-c", "exit 0").returncode == 0, what="the ID to be free")
    assert run_berth("wait", "d").returncode == 0


def test_detached_command_with_input(execute, run_berth):
    assert execute("cat", options=["--detach", "-i", "--id", "d"], input="no\n").stdout == "d\n"
    result = run_berth("attach", "-i", "d", input="yes\n")
    assert (result.returncode, result.stdout) == (0, "yes\n")


def test_json_of_a_detached_command_has_its_status(execute, run_berth):
    result = execute("sleep", "60", options=["--json", "--detach", "--id", "d"])
    answer = json.loads(result.stdout)
    assert (result.returncode, answer["verdict"], answer["exit_status"]) == (0, "running", 0)
    run_berth("kill", "d", check=True)


def test_hole_in_the_output_is_told(execute, run_berth):
    script = "head -c 3000000 /dev/zero; echo end"
    execute("sh", "-c", script, options=["--id", "h", "--max-output", "64k"])
    result = run_berth("logs", "h", text=False)
    assert result.returncode == 0
    hole = 3000004 - len(result.stdout)
    # What is kept beyond the bound, docs: 1 MiB.
    assert len(result.stdout) == (64 << 10) + (1 << 20)
    assert result.stderr == b"berth: logs: %d bytes of standard output were not kept here\n" % hole
    answer = json.loads(run_berth("logs", "--json", "h").stdout)
    assert answer["stdout_dropped"] == hole


# --- the service ends ----------------------------------------------------------------------

def test_service_is_killed_while_commands_run(service, client):
    script = "for i in $(seq 100); do echo $i; echo e$i >&2; sleep 0.02; done; exit 5"
    call = client.wait_started(client.start(WORKSPACE, ["sh", "-c", script], exec_id="long"))
    while len(call.output[1]) < 20:
        client.step()
    pid = service.keeper().pid
    after = restarted(service)
    with pytest.raises((Closed, OSError)):
        client.wait(call)
    with ExecClient(after.socket) as again:
        rest = again.attach(WORKSPACE, "long", from_stdout=call.at[1], from_stderr=call.at[2])
        assert again.wait(rest).code == 5
        assert after.keeper().pid == pid
    out, err = (bytes(call.output[i] + rest.output[i]) for i in (1, 2))
    assert out == b"".join(b"%d\n" % (i + 1) for i in range(100))
    assert err == b"".join(b"e%d\n" % (i + 1) for i in range(100))


def test_verdict_of_what_ended_while_no_service_was_there(service, client, tree):
    client.wait_started(client.start(WORKSPACE, ["sh", "-c", "sleep 0.5; echo done > done; exit 8"], flags=KEEP,
                                     exec_id="k"))
    service.kill()
    wait_until(lambda: (tree / "done").exists(), what="the command's end")
    wait_until(lambda: service.keeper() is None, timeout=30, what="the end of a keeper with nothing to do")
    with ExecClient(service.restart().socket) as again:
        assert again.wait(again.attach(WORKSPACE, "k")).code == 8


def test_nobody_holds_it_any_more(service, client):
    word = unique_sleep()
    with ExecClient(service.socket) as other:
        other.wait_started(other.start(WORKSPACE, ["sleep", word], exec_id="l", linger_ms=300))
    wait_until(lambda: not processes_with(word), what="the end of what nobody holds")
    verdict = client.wait_verdict(client.attach(WORKSPACE, "l"))
    assert (verdict.verdict, verdict.text) == ("killed", "nobody is attached to it any more")


class Asked(PeerService):
    """Keeps what EXEC asks for, and refuses it."""

    def __init__(self, path):
        super().__init__(path)
        self.lingers = []

    def answer(self, wire, got):
        if got.name == "EXEC":
            self.lingers.append(got["linger_ms"])
        super().answer(wire, got)


def test_command_is_held_for_as_long_as_its_client_comes_back(run_berth, tmp_path):
    peer = Asked(tmp_path / "peer")
    for options in ([], ["--reattach", "7"], ["--reattach", "0"]):
        assert run_berth("exec", "-w", WORKSPACE, *options, "--", "true", url=peer.url).returncode == 125
    peer.close()
    assert peer.lingers == [60000, 7000, 0]


@pytest.mark.long
def test_service_that_is_stopped_for_a_while(service, client, begin):
    """Longer than a command goes on whose client is gone for good."""
    script = "for i in $(seq 14); do echo $i; sleep 1; done; exit 6"
    waits = begin("sh", "-c", script, options=["--id", "waits"])
    assert waits.stdout.readline() == b"1\n"
    goes = client.wait_started(client.start(WORKSPACE, ["sleep", "50"], exec_id="goes", linger_ms=60000))
    client.leave(goes)
    with pytest.raises(CallError):
        client.wait_verdict(goes)
    service.stop()
    time.sleep(8)
    after = service.restart()
    out, error = waits.communicate(timeout=60)
    assert (waits.returncode, out) == (6, b"".join(b"%d\n" % (i + 2) for i in range(13))), error
    assert error.count(b"the connection was lost") == 1 and b"waiting for it, 60 s" in error
    with ExecClient(after.socket) as again:
        verdict = again.wait_verdict(again.attach(WORKSPACE, "goes"))
        assert (verdict.verdict, verdict.text) == ("killed", "nobody is attached to it any more")


def test_client_that_leaves_does_not_end_it(client):
    call = client.wait_started(client.start(WORKSPACE, ["sh", "-c", "sleep 0.5; exit 4"], flags=KEEP, exec_id="k"))
    client.leave(call)
    with pytest.raises(CallError) as left:
        client.wait_verdict(call)
    assert left.value.errno == 125  # ECANCELED
    assert client.wait(client.attach(WORKSPACE, "k")).code == 4


def test_keeper_is_killed(service, client):
    """Nothing is known of the command's end then, and that is what is said, for good."""
    word = unique_sleep()
    call = client.wait_started(client.start(WORKSPACE, ["sleep", word], exec_id="k"))
    service.keeper().kill()
    verdict = client.wait_verdict(call)
    assert verdict.verdict == "unknown"
    for _ in range(2):
        verdict = client.wait_verdict(client.attach(WORKSPACE, "k"))
        assert verdict.verdict == "unknown" and "ended while it ran" in verdict.text
        service.keeper().kill()
    wait_until(lambda: not processes_with(word), what="the end of what nobody owns")


@pytest.mark.parametrize("damage", [b"", b"berthx3\n", b"x" * 500], ids=["one bit", "cut off", "other"])
def test_damaged_record_is_never_a_success(service, client, damage):
    client.wait(client.start(WORKSPACE, ["true"], exec_id="d"))
    record = service.root / "exec" / WORKSPACE / "d" / "record"
    whole = record.read_bytes()
    service.keeper().kill()
    record.write_bytes(damage or whole[:60] + bytes([whole[60] ^ 1]) + whole[61:])
    verdict = client.wait_verdict(client.attach(WORKSPACE, "d"))
    assert (verdict.verdict, verdict.text) == ("unknown", "its record is damaged")


# --- killing -------------------------------------------------------------------------------

def test_kill_by_another_client(service, client):
    word = unique_sleep()
    script = f"trap '' TERM; setsid sleep {word} & sleep {word} & while :; do sleep 0.1; done"
    call = client.wait_started(client.start(WORKSPACE, ["sh", "-c", script], exec_id="k"))
    with ExecClient(service.socket) as other:
        wait_until(lambda: len(processes_with(word)) == 2, what="its children")
        receipt = other.kill(WORKSPACE, "k", grace_ms=100, by="the other one")
    assert receipt["removed"] >= 3 and receipt["left"] == 0 and receipt["means"] in (1, 2)
    verdict = client.wait(call)
    assert (verdict.verdict, verdict.text, verdict.signal) == ("killed", "by the other one", 9)
    assert processes_with(word) == []
    with pytest.raises(CallError) as nothing:
        client.kill(WORKSPACE, "k")
    assert nothing.value.errno == 3  # ESRCH


def test_signal_by_another_client(service, client):
    call = client.wait_started(client.start(WORKSPACE, ["sleep", "60"], exec_id="k"))
    with ExecClient(service.socket) as other:
        assert other.kill(WORKSPACE, "k", signal=signal.SIGUSR1)["left"] == 0
    assert client.wait(call).signal == signal.SIGUSR1


def test_what_the_leader_left_is_listed_and_killed(client):
    word = unique_sleep()
    call = client.start(WORKSPACE, ["sh", "-c", f"setsid sleep {word} >/dev/null 2>&1 & exit 2"], exec_id="l")
    assert client.wait(call).code == 2
    command, = client.list()
    assert (command.verdict, command.processes) == ("exited", 1)
    receipt = client.kill(WORKSPACE, "l", grace_ms=100)
    assert (receipt["removed"], receipt["left"]) == (1, 0)
    assert processes_with(word) == []
    assert client.list()[0].processes == 0


# --- what is kept --------------------------------------------------------------------------

def test_output_for_ever_is_bounded(service, client):
    """Head and tail are kept, the middle is counted; neither memory nor disk grow."""
    size = 12_000_000
    script = f"head -c 1000 /dev/zero | tr '\\0' a; head -c {size} /dev/zero; printf '%0500d' 0"
    client.wait(client.start(WORKSPACE, ["true"]))
    before = service.keeper().memory()
    client.wait_verdict(client.start(WORKSPACE, ["sh", "-c", script], flags=DETACH, exec_id="y",
                                     max_output=200_000))
    verdict = client.wait_verdict(call := client.attach(WORKSPACE, "y", ATTACH_FOLLOW))
    assert (verdict.code, verdict.stdout_bytes) == (0, size + 1500)
    verdict = client.wait_verdict(call := client.attach(WORKSPACE, "y"))
    got = bytes(call.output[1])
    assert call.gaps == verdict.stdout_dropped > size - 2_000_000
    assert len(got) + verdict.stdout_dropped == size + 1500
    assert got.startswith(b"a" * 1000 + b"\0" * 99_000) and got.endswith(b"0" * 500)
    assert (service.root / "exec" / WORKSPACE / "y" / "stdout").stat().st_size < 2_000_000
    assert service.keeper().memory() - before < 600 << 20


def test_reader_that_does_not_hold_is_overtaken(service, client):
    client.wait_verdict(client.start(WORKSPACE, ["sh", "-c", "head -c 30000000 /dev/zero; echo end"],
                                     flags=DETACH, exec_id="y", max_output=1 << 20))
    with ExecClient(service.socket) as slow:
        slow.granting = False
        slow.wait_started(slow.attach(WORKSPACE, "y", FOLLOW))
        verdict = client.wait_verdict(client.attach(WORKSPACE, "y", ATTACH_FOLLOW))
        assert verdict.stdout_bytes == 30000004


# --- cuts ----------------------------------------------------------------------------------

PRINT = ("import os, random, sys\n"
         "r = random.Random(int(sys.argv[1]))\n"
         "for i in range(400):\n"
         "    os.write(r.choice((1, 2)), r.randbytes(r.randrange(1, 4000)))\n"
         "sys.exit(int(sys.argv[1]) % 256)\n")


def printed(seed):
    r = random.Random(seed)
    streams = {1: b"", 2: b""}
    for _ in range(400):
        stream = r.choice((1, 2))
        streams[stream] += r.randbytes(r.randrange(1, 4000))
    return streams


def cut_and_come_back(path, seed, rounds):
    """One command, whose client is cut off at random moments; what it got in all, and the verdict."""
    r = random.Random(f"cuts {seed}")
    exec_id = f"cut{seed}"
    got = {1: b"", 2: b""}
    cuts = 0
    while True:
        with ExecClient(path) as client:
            if cuts == 0:
                call = client.start(WORKSPACE, ["python3", "-c", PRINT, str(seed)], exec_id=exec_id)
            else:
                call = client.attach(WORKSPACE, exec_id, from_stdout=len(got[1]), from_stderr=len(got[2]))
            for _ in range(r.randrange(1, 12) if cuts < rounds else 1 << 30):
                client.step()
                if call.verdict or call.answer:
                    break
            assert not call.answer, call.answer
            assert call.gaps == 0
            for stream in got:
                got[stream] += bytes(call.output[stream])
            if call.verdict:
                return got, call.verdict, cuts
        cuts += 1


def cuts_campaign(path, seeds, rounds):
    cuts = 0
    for seed in seeds:
        got, verdict, count = cut_and_come_back(path, seed, rounds)
        assert got == printed(seed), f"seed {seed}"
        assert (verdict.verdict, verdict.code) == ("exited", seed % 256)
        cuts += count
    return cuts


def test_cuts_lose_and_repeat_nothing(service, tree):
    assert cuts_campaign(service.socket, range(6), 20) >= 10


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_cuts_lose_and_repeat_nothing_long(service, tree):
    cuts = 0
    seed = 0
    while cuts < 1000:
        cuts += cuts_campaign(service.socket, range(seed, seed + 10), 100)
        seed += 10

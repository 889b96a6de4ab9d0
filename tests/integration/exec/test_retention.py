"""How long commands are known: no longer than their workspace, and their verdicts for a settable time."""

import errno
import json
import os
import shutil
import subprocess

import pytest

from lib.berthwire import CallError, Connection
from lib.exec_client import DETACH, WORKSPACE, ExecClient
from lib.harness import wait_until
from lib.processes import processes_with, unique_sleep

OPEN_WRITE = 2

pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(120)]


def known(run_berth):
    return [row["id"] for row in json.loads(run_berth("ps", "--all", "--json", check=True).stdout)]


def detach(client, argv, exec_id):
    assert client.wait_verdict(client.start(WORKSPACE, argv, flags=DETACH, exec_id=exec_id)).verdict == "running"


# --- no longer than their workspace --------------------------------------------------------

@pytest.mark.parametrize("argv", [["sleep", "{}"], ["sh", "-c", "sleep {} & exit 0"]], ids=["runs", "has left"])
def test_removal_ends_commands_when_it_is_forced(client, service, run_berth, argv):
    word = unique_sleep()
    detach(client, [each.format(word) for each in argv], "old")
    wait_until(lambda: processes_with(word), what="the command")
    refused = run_berth("rm", WORKSPACE)
    assert refused.returncode == 1 and "commands run in it" in refused.stderr and "-f" in refused.stderr
    assert processes_with(word) and known(run_berth) == ["old"] and run_berth("ls", "-q").stdout == f"{WORKSPACE}\n"
    run_berth("rm", "-f", WORKSPACE, check=True)
    assert not processes_with(word) and not known(run_berth)
    assert not (service.root / "exec" / WORKSPACE).exists()


def test_a_workspace_made_again_starts_clean(client, service, run_berth, tree):
    assert client.wait(client.start(WORKSPACE, ["sh", "-c", "echo old; exit 3"], exec_id="id")).code == 3
    run_berth("rm", WORKSPACE, check=True)
    assert not (service.root / "exec" / WORKSPACE).exists()
    run_berth("create", WORKSPACE, check=True)
    assert known(run_berth) == []
    with pytest.raises(CallError) as refused:
        client.wait_verdict(client.attach(WORKSPACE, "id"))
    assert refused.value.errno == errno.ENOENT
    call = client.start(WORKSPACE, ["sh", "-c", "echo new; exit 4"], exec_id="id")
    assert (client.wait(call).code, call.attached, bytes(call.output[1])) == (4, False, b"new\n")


def test_who_waits_for_a_command_of_a_removed_workspace_is_told(client, run_berth):
    call = client.wait_started(client.start(WORKSPACE, ["sleep", unique_sleep()]))
    run_berth("rm", "-f", WORKSPACE, check=True)
    verdict = client.wait_verdict(call)
    assert (verdict.verdict, verdict.left) == ("killed", 0) and "its workspace is removed" in verdict.text


@pytest.mark.parametrize("keeper", ["goes on", "is new"])
def test_a_removal_that_nobody_told_of(client, service, run_berth, keeper):
    """As after a crash in the midst of it."""
    word = unique_sleep()
    client.wait(client.start(WORKSPACE, ["sh", "-c", "exit 3"], exec_id="ended"))
    detach(client, ["sleep", word], "running")
    service.kill()
    if keeper == "is new":
        service.keeper().kill()
    shutil.rmtree(service.root / "workspaces" / WORKSPACE)
    with ExecClient(service.restart().socket) as again:
        run_berth("create", WORKSPACE, check=True)
        assert again.list(workspace=WORKSPACE) == []
        for exec_id in ("ended", "running"):
            with pytest.raises(CallError) as refused:
                again.wait_verdict(again.attach(WORKSPACE, exec_id))
            assert refused.value.errno == errno.ENOENT
        call = again.start(WORKSPACE, ["sh", "-c", "exit 4"], exec_id="ended")
        assert (again.wait(call).code, call.attached) == (4, False)
        assert [one.id for one in again.list()] == [b"ended"]
    wait_until(lambda: not processes_with(word), what="the end of the other workspace's command")
    assert os.listdir(service.root / "exec" / WORKSPACE) == ["ended"]


# --- for a settable time -------------------------------------------------------------------

def settable(harness, tmp_path, means):
    if means == "option":
        return ["--keep-verdicts", "1"]
    (tmp_path / "berth.json").write_text('{"service": {"keep_verdicts": 1}}')
    return ["--config", tmp_path / "berth.json"]


@pytest.mark.parametrize("means", ["option", "file"])
def test_a_verdict_that_has_expired_says_so(harness, start_service, tmp_path, means):
    service = start_service(args=settable(harness, tmp_path, means))

    def berth(*argv, **keywords):
        return subprocess.run([harness.program("berth"), *argv], env=service.client_env(), cwd=harness.directory,
                              capture_output=True, text=True, timeout=60, **keywords)

    berth("create", WORKSPACE, check=True)
    detached = berth("exec", "--detach", "--id", "old", "-w", WORKSPACE, "--", "sh", "-c", "echo x >> ran", check=True)
    assert detached.stdout == "old\n"
    wait_until(lambda: json.loads(berth("ps", "--all", "--json", check=True).stdout) == [],
               timeout=30, what="the end of the verdict")
    for command in ("wait", "logs", "attach"):
        expired = berth(command, "-w", WORKSPACE, "old")
        assert (expired.returncode, expired.stdout) == (125, "")
        assert expired.stderr == f"berth: {command}: old: it has ended so long ago that its verdict was forgotten\n"
        never = berth(command, "-w", WORKSPACE, "new")
        assert (never.returncode, never.stdout) == (125, "")
        assert never.stderr == f"berth: {command}: new: no such command in this workspace; see `berth ps --all`\n"
    service.keeper().kill()  # the next one knows as well
    with ExecClient(service.socket) as client:
        for ask in (client.attach, client.kill):
            with pytest.raises(CallError) as refused:
                client.wait_verdict(ask(WORKSPACE, "old"))
            assert refused.value.errno == errno.ESTALE
    again = berth("exec", "--id", "old", "-w", WORKSPACE, "--", "sh", "-c", "echo x >> ran")
    assert (again.returncode, again.stdout) == (125, "") and "its verdict was forgotten" in again.stderr
    assert (service.root / "workspaces" / WORKSPACE / "tree" / "ran").read_text() == "x\n"
    assert not (service.root / "exec" / WORKSPACE).exists()


# --- what it was started without -----------------------------------------------------------

def test_what_was_not_synced_at_its_start_stays_so(client, service):
    """Its verdict never says that it has seen everything, whoever is told."""
    mount = Connection.unix(service.socket, 10)
    mount.upgrade()
    mount.hello()
    mount.request("SUBSCRIBE", flags=0)
    while mount.receive().name != "CHANGES":
        pass
    mount.request("OPEN", node=77, flags=OPEN_WRITE)  # from now on it may be ahead, and never answers SYNC
    started = client.wait_verdict(client.start(WORKSPACE, ["sh", "-c", "exit 5"], flags=DETACH, exec_id="early"))
    assert (started.verdict, started.coherence) == ("running", 0)
    mount.close()
    for _ in range(2):
        with ExecClient(service.socket) as other:
            wait_until(lambda: other.run(WORKSPACE, ["true"]).verdict.coherence == 1, timeout=30,
                       what="the mount's end")
            for call in (other.attach(WORKSPACE, "early"),
                         other.start(WORKSPACE, ["sh", "-c", "exit 5"], exec_id="early")):
                verdict = other.wait_verdict(call)
                assert (verdict.verdict, verdict.code, verdict.coherence) == ("exited", 5, 0)
            assert [one.flags for one in other.list(exec_id="early")] == [DETACH]
        service.keeper().kill()  # another one has it from the disk

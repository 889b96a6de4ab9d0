"""Whoever asks for a command's end, in whatever way and whatever happens meanwhile, is told the same."""

import json
import os
import signal
import time

import pytest

from lib.harness import wait_until

pytestmark = pytest.mark.sandbox


def ends(process):
    out, error = process.communicate(timeout=30)
    return process.returncode, out, error


def test_id_that_is_not_text_is_told_in_json(execute, run_berth):
    name = b"a\xff\xfe"
    answers = [execute("sh", "-c", "echo out; exit 3", options=["--json", "--id", name])]
    for way in ("wait", "logs", "attach"):
        answers.append(run_berth(way, "--json", name))
    for answer in answers:
        assert (answer.returncode, json.loads(answer.stdout)["id"]) == (3, r"a\xff\xfe"), answer.stderr
    detached = execute("true", options=["--json", "--detach", "--id", b"\xff"])
    assert (detached.returncode, json.loads(detached.stdout)["id"]) == (0, r"\xff")
    listed = json.loads(run_berth("ps", "-a", "--json", check=True).stdout)
    assert {one["id"] for one in listed} == {r"a\xff\xfe", r"\xff"}


def test_detached_command_is_left_when_it_starts_amid_a_loss(begin, execute, run_berth, service, tree):
    execute("true", check=True)
    os.mkfifo(tree / "go")
    keeper = service.keeper()
    os.kill(keeper.pid, signal.SIGSTOP)
    try:
        process = begin("sh", "-c", "echo out; read x < go; exit 3", options=["--detach", "--id", "left"])
        time.sleep(1)  # for the request to get as far as it can
        assert process.poll() is None
        service.kill()
    finally:
        os.kill(keeper.pid, signal.SIGCONT)
    service.restart()
    assert ends(process)[:2] == (0, b"left\n")
    assert [one["state"] for one in json.loads(run_berth("ps", "--json", check=True).stdout)] == ["running"]
    (tree / "go").write_text("x\n", encoding="ascii")
    assert run_berth("wait", "left").returncode == 3


def test_keeper_that_is_stopped_tells_everybody_the_same(begin, background, run_berth, service):
    process = begin("sh", "-c", "sleep 100 & echo out; wait", options=["--json", "--id", "stopped"])
    wait_until(lambda: "stopped" in run_berth("ps", "-q").stdout, what="the command")
    follower = background("logs", "-f", "stopped")
    assert follower.stdout.readline() == b"out\n"
    os.kill(service.keeper().pid, signal.SIGTERM)
    status, out, error = ends(process)
    answers = [json.loads(out)] if out else pytest.fail(error.decode())
    assert (ends(follower)[0], status) == (137, 137)
    waits = run_berth("wait", "--json", "stopped")
    answers.append(json.loads(waits.stdout))
    for answer in answers:
        assert (answer["verdict"], answer["text"], answer["exit_status"], answer["signal"], answer["left"]) == (
            "killed", "the keeper of commands was stopped", 137, 9, 0)
        assert answer["removed"] >= 2 and answer["means"] in ("cgroup", "subreaper")
    assert answers[0]["removed"] == answers[1]["removed"] and waits.returncode == 137
    listed, = json.loads(run_berth("ps", "-a", "--json", check=True).stdout)
    assert (listed["state"], listed["exit_status"]) == ("killed", 137)


def test_followers_come_back_after_the_service(begin, background, service, tree):
    os.mkfifo(tree / "go")
    begin("sh", "-c", "echo one; read x < go; echo two; exit 6", options=["--id", "c", "--on-disconnect", "continue"])
    wait_until(lambda: b"c" in background("ps", "-q").communicate(timeout=20)[0], what="the command")
    shown = [background(*argv) for argv in (["logs", "-f", "c"], ["attach", "c"])]
    waits = background("wait", "c")
    for process in shown:
        assert process.stdout.readline() == b"one\n", process.communicate()
    time.sleep(0.5)  # for the one that waits to be doing so
    service.kill()
    service.restart()
    (tree / "go").write_text("x\n", encoding="ascii")
    for process in shown:
        assert ends(process)[:2] == (6, b"two\n")
    assert ends(waits)[0] == 6

"""Limits of commands under systemd's units, on a machine of its own, in which all controllers are those of cgroup v2."""

import json

import pytest

from lib.harness import REPOSITORY
from lib.machine import run_in_machine
from lib.processes import unique_sleep

pytestmark = [pytest.mark.sandbox, pytest.mark.unsanitised, pytest.mark.long, pytest.mark.timeout(400),
              pytest.mark.xdist_group("machine")]

EAT = "/usr/bin/python3 -c 'all = []\nwhile True: all.append(bytearray(1 << 20))'"
FORKS = "i=0; while [ $i -lt 30 ]; do sleep {word} & i=$((i + 1)); done; echo all"
UNIT = "/sys/fs/cgroup/system.slice/berthd-keeper.service"


def steps(word, limited):
    def run(*words):
        return ["berth", "exec", "-w", "w", "--json", *words]

    memory = ["--memory", "32M", "--", "sh", "-c", EAT]
    processes = ["--processes", "20", "--", "sh", "-c", FORKS.format(word=word)]
    return {
        "start": ["systemctl", "start", "berthd.socket", "berthd.service"],
        "create": ["berth", "create", "w"],
        "status": ["berth", "status", "--json"],
        "memory": run(*memory),
        "processes": run(*processes),
        "policy": ["berth", "policy", "--set", limited, "w"],
        "quarter": run("--", "true"),
        "detach": ["berth", "exec", "-w", "w", "--id", "long", "--detach", "--memory", "64M", "--", "sleep", word],
        "restart": ["systemctl", "restart", "berthd.service"],
        "active": ["systemctl", "is-active", "berthd.service"],
        "held": ["sh", "-c", f"cat {UNIT}/berth-*/exec-*/memory.max; cat {UNIT}/cgroup.procs"],
        "memory again": run(*memory),
        "crash": ["sh", "-c", "systemctl kill -s KILL berthd.service; sleep 2; systemctl is-active berthd.service"],
        "ps": ["berth", "ps", "-w", "w", "--json"],
        "end": ["systemctl", "stop", "berthd-keeper.service"],
        "ended": ["berth", "wait", "-w", "w", "long"],
        "next": run(*memory),
    }


@pytest.fixture(scope="module")
def answers(binaries, build_dir, tmp_path_factory):
    place = tmp_path_factory.mktemp("machine")
    limited = place / "limited.json"
    limited.write_text('{"limits": {"cpu": 0.25}}')
    word = unique_sleep()
    job = {"berthd": str(binaries["berthd"]), "berth": str(binaries["berth"]), "build": str(build_dir), "word": word,
           "repository": str(REPOSITORY), "steps": steps(word, str(limited))}
    found = run_in_machine(place, REPOSITORY / "tests/lib/machine_units.py", job, memory="768M", becomes=True)
    assert list(found) == list(job["steps"])
    return found


def verdict_of(answer):
    assert answer["stdout"], answer
    return json.loads(answer["stdout"])


def test_limits_hold(answers):
    for name in ("start", "create"):
        assert answers[name]["status"] == 0, answers[name]
    limits = json.loads(answers["status"]["stdout"])
    for name in ("memory", "memory again"):
        verdict = verdict_of(answers[name])
        assert (verdict["verdict"], verdict["means"]) == ("oom_killed", "cgroup"), (verdict, limits)
    verdict = verdict_of(answers["processes"])
    assert "Cannot fork" in verdict["stderr"] and "all" not in verdict["stdout"], (verdict, limits)


def test_the_service_is_replaced_while_they_hold(answers):
    assert answers["restart"]["status"] == 0 and answers["active"]["stdout"] == "active\n"
    assert set(answers["held"]["stdout"].split()) == {"max", str(64 << 20)}, "the one that is ready for the next, and that"
    assert answers["crash"]["stdout"] == "active\n"
    assert [c["id"] for c in json.loads(answers["ps"]["stdout"]) if c["state"] == "running"] == ["long"]


def test_processors(answers):
    assert verdict_of(answers["quarter"])["verdict"] == "exited"


def test_what_ends_commands(answers):
    assert answers["end"]["status"] == 0
    assert answers["ended"]["status"] == 137 and "killed" in answers["ended"]["stderr"], answers["ended"]
    assert verdict_of(answers["next"])["verdict"] == "oom_killed"

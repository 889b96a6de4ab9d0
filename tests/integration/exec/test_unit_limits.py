"""Limits of commands under systemd's units, on a machine of its own, in which all controllers are those of cgroup v2."""

import json

import pytest

from lib.harness import REPOSITORY
from lib.machine import run_in_machine
from lib.processes import unique_sleep

pytestmark = [pytest.mark.sandbox, pytest.mark.unsanitised, pytest.mark.long, pytest.mark.timeout(400),
              pytest.mark.xdist_group("machine")]

USER = 61234
EAT = "/usr/bin/python3 -c 'all = []\nwhile True: all.append(bytearray(1 << 20))'"
FORKS = "i=0; while [ $i -lt 30 ]; do sleep {word} & i=$((i + 1)); done; echo all"
UNIT = "/sys/fs/cgroup/system.slice/berthd-keeper.service"


def of_user(*words):
    return ["setpriv", "--reuid", str(USER), "--regid", str(USER), "--clear-groups", "env", f"XDG_RUNTIME_DIR=/run/user/{USER}",
            "HOME=/mnt/home", *words]


def steps(word, limited):
    def run(*words, who=()):
        return [*who, "berth", "exec", "-w", "w", "--json", *words]

    memory = ["--memory", "32M", "--", "sh", "-c", EAT]
    processes = ["--processes", "20", "--", "sh", "-c", FORKS.format(word=word)]
    system = {
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
    user = {
        "user's manager": ["sh", "-c", f"install -d -o {USER} -g {USER} /mnt/home && systemctl start manager-{USER}.service"],
        "user's start": of_user("systemctl", "--user", "start", "berthd.socket"),
        "user's create": of_user("berth", "create", "w"),
        "user's status": of_user("berth", "status", "--json"),
        "user's memory": of_user(*run(*memory)),
        "user's processes": of_user(*run(*processes)),
        "user's restart": of_user("systemctl", "--user", "restart", "berthd.service"),
        "user's memory again": of_user(*run(*memory)),
    }
    return {**system, **user}


@pytest.fixture(scope="module")
def answers(binaries, build_dir, tmp_path_factory):
    place = tmp_path_factory.mktemp("machine")
    limited = place / "limited.json"
    limited.write_text('{"limits": {"cpu": 0.25}}')
    word = unique_sleep()
    job = {"berthd": str(binaries["berthd"]), "berth": str(binaries["berth"]), "build": str(build_dir), "word": word,
           "repository": str(REPOSITORY), "user": USER, "steps": steps(word, str(limited))}
    found = run_in_machine(place, REPOSITORY / "tests/lib/machine_units.py", job, memory="768M", becomes=True)
    assert list(found) == list(job["steps"])
    return found


def verdict_of(answer):
    assert answer["stdout"], answer
    return json.loads(answer["stdout"])


@pytest.mark.parametrize("whose", ["", "user's "])
def test_limits_hold(answers, whose):
    for name in (["start", "create"] if not whose else ["manager", "start", "create"]):
        assert answers[whose + name]["status"] == 0, answers[whose + name]
    limits = json.loads(answers[whose + "status"]["stdout"])
    for name in ("memory", "memory again"):
        verdict = verdict_of(answers[whose + name])
        assert (verdict["verdict"], verdict["means"]) == ("oom_killed", "cgroup"), (verdict, limits)
    verdict = verdict_of(answers[whose + "processes"])
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

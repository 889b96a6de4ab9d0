"""A policy that is changed while commands run: what holds at once, what holds for later commands only,
what is refused, and who may do it."""

import json
import threading

import pytest

from lib.exec_client import WORKSPACE
from lib.harness import HarnessError, wait_until
from lib.processes import name_of, state_of

pytestmark = pytest.mark.sandbox

PATH, PATH_ONLY = 64, 128  # flags of EXEC
LOOK = "ulimit -Hn; ls -d /boot 2>/dev/null || echo hidden"


@pytest.fixture
def changeable(harness, run_berth):
    """changeable(policy, …): a service and a workspace. Returns the service."""
    def start(policy=None, without="", **keywords):
        if without:
            harness.env["BERTH_WITHOUT"] = without
        service = harness.start_service(**keywords)
        run_berth("create", "--policy", "-", WORKSPACE, input=json.dumps(policy or {}), check=True)
        return service
    return start


def run(run_berth, *argv, **keywords):
    return run_berth("exec", "-w", WORKSPACE, *keywords.pop("options", ()), "--", *argv, **keywords)


def change(run_berth, policy, check=True):
    result = run_berth("policy", "--json", "--set", "-", WORKSPACE, input=json.dumps(policy))
    if check and result.returncode != 0:
        raise HarnessError(result.stderr)
    return json.loads(result.stdout) if check else result


def stored(service):
    return json.loads((service.root / "workspaces" / WORKSPACE / "policy.json").read_text())


@pytest.mark.parametrize("options", [(), ("--lift",), ("--set", "-")])
def test_a_workspace_that_is_not_there(changeable, run_berth, options):
    changeable()
    told = [run_berth("policy", *options, "nope", input="{}"), run_berth("exec", "-w", "nope", "--", "true")]
    words = "nope: no such workspace; see `berth ls`, or make it with `berth create`"
    assert [(result.returncode, words in result.stderr) for result in told] == [(1, True), (125, True)], told


def test_later_commands_are_held_as_it_says(changeable, run_berth):
    service = changeable({"limits": {"open_files": 100, "wall_time": 1000}})
    before = "while ! test -e go; do sleep 0.05; done; " + LOOK
    run(run_berth, "sh", "-c", before, options=("--detach", "--id", "before"), check=True)
    assert run(run_berth, "sh", "-c", LOOK, check=True).stdout == "100\nhidden\n"
    told = change(run_berth, {"limits": {"open_files": 50}, "require": ["minimal"]})
    assert sorted(told["changed"]) == ["limits", "require"]
    assert (told["kept"], told["kept_count"]) == (["before"], 1)
    # What was left out stays.
    assert told["asked"] == stored(service)
    assert told["asked"]["limits"]["wall_time"] == 1000
    assert run(run_berth, "sh", "-c", LOOK, check=True).stdout == "50\nhidden\n"
    told = change(run_berth, {"filesystem": "host"})
    assert (told["changed"], told["kept"]) == (["filesystem"], ["before"])
    assert run(run_berth, "sh", "-c", LOOK, check=True).stdout == "50\n/boot\n"
    assert json.loads(run_berth("policy", "--json", WORKSPACE, check=True).stdout)[
        "measured"]["filesystem"] == "host"
    run(run_berth, "touch", "go", check=True)
    assert run_berth("wait", "-w", WORKSPACE, "before").returncode == 0
    assert run_berth("logs", "-w", WORKSPACE, "before", check=True).stdout == "100\nhidden\n"
    assert change(run_berth, {"filesystem": "host"}) == {
        "asked": stored(service), "changed": [], "kept": [], "kept_count": 0}
    # Another service, and another keeper, know of nothing else.
    service.keeper().kill()
    service.restart()
    assert run(run_berth, "sh", "-c", LOOK, check=True).stdout == "50\n/boot\n"


def test_for_people(changeable, run_berth):
    changeable()
    run(run_berth, "sleep", "60", options=("--detach", "--id", "long"), check=True)
    result = run_berth("policy", WORKSPACE, "--set", "-", input='{"network": "host"}', check=True)
    assert result.stdout == ("network      host\n"
                             "kept         long goes on as it was started\n")
    result = run_berth("policy", WORKSPACE, "--set", "-", input='{"network": "host"}', check=True)
    assert result.stdout == "nothing is changed\n"


REFUSED = {
    "no field": ("", {"limits": {"memroy": 1}}, "limits.memroy: there is no such field"),
    "level": ("net-namespace", {"require": ["full"]}, "require: full: this machine has no-userns"),
    "list": ("net-namespace", {"network": {"allow": ["a.example:1"]}},
             "network.allow: needs a network namespace"),
    "limit": ("cgroup", {"limits": {"memory": "1G"}}, "limits.memory: "),
    "path": ("", {"filesystem": {"read": ["/nothing/there"]}}, "filesystem.read: /nothing/there: No such"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_had_changes_nothing(changeable, run_berth, what):
    without, policy, says = REFUSED[what]
    service = changeable({"limits": {"open_files": 100}}, without)
    before = stored(service)
    result = change(run_berth, {**policy, "user": "service"}, check=False)
    assert (result.returncode, result.stdout) == (1, "")
    assert f"berth: policy: {WORKSPACE}: standard input: {says}" in result.stderr
    assert stored(service) == before
    assert run(run_berth, "sh", "-c", "ulimit -Hn", check=True).stdout == "100\n"


def test_a_policy_that_cannot_be_stored_changes_nothing(changeable, run_berth):
    service = changeable({"limits": {"open_files": 100}})
    run(run_berth, "true", check=True)
    new = service.root / "workspaces" / WORKSPACE / "policy.json.new"
    new.mkdir()
    (new / "file").touch()
    result = change(run_berth, {"filesystem": "host"}, check=False)
    assert (result.returncode, "the workspace's policy.json: " in result.stderr) == (1, True)
    assert run(run_berth, "sh", "-c", LOOK, check=True).stdout == "100\nhidden\n"


def test_who_may_not(harness, changeable, run_berth):
    """A command has no way to the service or the file, and a token needs the right to administer."""
    access = harness.access_file({"id": "all", "secret": "all"},
                                 {"id": "user", "secret": "user", "verbs": ["read", "write", "exec"]})
    audit = harness.new_path("audit.log")
    service = changeable(unix=True, http=True, access_file=access, args=["--audit-log", audit])
    policy = service.root / "workspaces" / WORKSPACE / "policy.json"
    before = policy.read_bytes()
    # What it makes at that path is in its own /tmp, if anywhere.
    script = f"""cat {policy}; (echo '{{"network": "host"}}' > {policy}); ls {service.root}/exec
                 curl -sS --max-time 5 --unix-socket {service.socket} http://x/"""
    result = run(run_berth, "sh", "-c", script)
    assert (result.returncode, result.stdout) == (7, ""), result
    assert policy.read_bytes() == before
    token = harness.new_path("token")
    token.write_text("user\n")
    token.chmod(0o600)
    env = {**harness.env, "BERTH_URL": service.http_url, "BERTH_TOKEN_FILE": str(token)}
    result = run_berth("policy", "--set", "-", WORKSPACE, input='{"network": "host"}', env=env)
    assert (result.returncode, "user may not do this: it was not granted admin" in result.stderr) == (1, True)
    assert stored(service)["network"] == "none"
    change(run_berth, {"network": "host"})
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    sets = [(line["identity"], line["workspace"], line["verb"], line["outcome"]) for line in lines
            if line["message"] == "EXEC_POLICY_SET"]
    assert sets[0] == ("user", WORKSPACE, "admin", "EACCES")
    assert sets[1][0].startswith("user:") and sets[1][1:] == (WORKSPACE, "admin", "ok")


def test_commands_that_are_started_meanwhile(changeable, run_berth):
    """Each is held by one policy as a whole, and one that starts after the answer by what was answered."""
    changeable({"limits": {"open_files": 100}})
    policies = [({"filesystem": "host", "limits": {"open_files": 200}}, "200\n/boot\n"),
                ({"filesystem": "own", "limits": {"open_files": 100}}, "100\nhidden\n")]
    seen, stop = [], threading.Event()

    def starts():
        while not stop.is_set():
            seen.append(run(run_berth, "sh", "-c", LOOK).stdout)

    thread = threading.Thread(target=starts)
    thread.start()
    try:
        for _ in range(3):
            for policy, shown in policies:
                change(run_berth, policy)
                assert run(run_berth, "sh", "-c", LOOK, check=True).stdout == shown
    finally:
        stop.set()
        thread.join()
    assert seen and set(seen) <= {shown for _, shown in policies}


def test_cells_of_earlier_policies_end(changeable, run_berth):
    service = changeable()
    pid = service.keeper
    run(run_berth, "sleep", "600", options=("--detach", "--id", "long"), check=True)

    def inits():
        children = open(f"/proc/{pid().pid}/task/{pid().pid}/children", encoding="ascii").read().split()
        return [int(one) for one in children if name_of(int(one)) == "berth-init" and state_of(int(one)) != "Z"]
    first, = inits()
    change(run_berth, {"filesystem": "host"})
    assert len(inits()) == 2
    change(run_berth, {"filesystem": "own"})
    wait_until(lambda: len(inits()) == 2, what="the end of the one in between")
    assert first in inits()
    assert run_berth("kill", "-w", WORKSPACE, "long").returncode == 0
    wait_until(lambda: len(inits()) == 1, what="the end of the first")
    assert first not in inits()


def test_a_fence_stays(changeable, run_berth):
    service = changeable()
    fence = service.root / "workspaces" / WORKSPACE / "fence.json"
    fence.write_text('{"why": "a test"}')
    change(run_berth, {"network": "host"})
    result = run(run_berth, "true")
    assert (result.returncode, "fenced: a test" in result.stderr) == (125, True)


def test_commands_at_another_path(client, run_berth):
    """A view of the caller's mount is held to the limits and the files of the policy that it is used under."""
    def at(script):
        call = client.run(WORKSPACE, ["sh", "-c", script], mount_path="/srv/mount", flags=PATH | PATH_ONLY)
        return call.verdict.text or call.output[1].decode()
    assert at("pwd; test $(ulimit -Hn) -gt 50 && echo more") == "/srv/mount\nmore\n"
    change(run_berth, {"limits": {"open_files": 50, "file_size": 4096}})
    assert at("pwd; ulimit -Hn; ulimit -Hf") == "/srv/mount\n50\n8\n"
    change(run_berth, {"filesystem": {"read": ["/boot"]}})
    assert at("pwd; ls -d /boot") == "/srv/mount\n/boot\n"

"""Limits of memory and of processes: the kernel keeps them, and the verdict tells what it did. They are tried in a
machine of their own, in which all controllers are those of cgroup v2."""

import errno
import json
import subprocess

import pytest

from lib.exec_client import WORKSPACE, ExecClient
from lib.harness import REPOSITORY
from lib.machine import run_in_machine
from lib.processes import unique_sleep

pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(300), pytest.mark.xdist_group("machine")]

EAT = "/usr/bin/python3 -c 'all = []\nwhile True: all.append(bytearray(1 << 20))'"

# In the command's own cgroup: one below it, with a limit of its own, that is killed whole.
NESTED = f"""
own=/sys/fs/cgroup$(sed -n s/^0:://p /proc/self/cgroup)
mkdir $own/a $own/b
echo $$ > $own/a/cgroup.procs
echo +memory > $own/cgroup.subtree_control
echo 16M > $own/b/memory.max
echo 1 > $own/b/memory.oom.group
sh -c "echo \\$\\$ > $own/b/cgroup.procs; exec \\"\\$@\\"" sh {EAT}
echo $?
grep oom_group_kill $own/memory.events
kill -9 $$
"""

FORKS = """
import errno, os, time
n = 0
try:
    while True:
        if os.fork() == 0: time.sleep(600)
        n += 1
except OSError as error:
    print(n, errno.errorcode[error.errno])
"""

BOMB = """
import os
while True:
    try:
        if os.fork() == 0: os.setsid()
    except OSError:
        pass
"""


# What it is given of a processor, as it goes on; and as its cgroup has it.
SPIN = """
import time
begun, used = time.monotonic(), time.process_time()
while time.process_time() - used < 0.5: pass
path = open("/proc/self/cgroup").readline().strip().split("::")[1]
print((time.process_time() - used) / (time.monotonic() - begun), open("/sys/fs/cgroup" + path + "/cpu.max").read().strip())
"""


# Until it may not: how much of what it asked for was given, and the error.
FILL = """
import errno, os, sys
def until_refused(step):
    n = 0
    try:
        while True:
            step(n)
            n += 1
    except OSError as error:
        print(n, errno.errorcode[error.errno])
    return n
def write(n):
    os.write(out, b"x" * (1 << 16))
    os.fsync(out)
out = os.open(sys.argv[1] + "/large", os.O_CREAT | os.O_WRONLY)
until_refused(write)
os.unlink(sys.argv[1] + "/large")
os.close(out)
n = until_refused(lambda n: os.close(os.open(f"{sys.argv[1]}/{n}", os.O_CREAT | os.O_WRONLY)))
for i in range(n):
    os.unlink(f"{sys.argv[1]}/{i}")
"""

# To leave the project whose quota it is, or to have what is made outside of it.
LEAVE = """
import errno, fcntl, os
def attempt(request, size):
    fd = os.open(".", os.O_RDONLY)
    try:
        fcntl.ioctl(fd, request, bytes(size))
        return "done"
    except OSError as error:
        return errno.errorcode[error.errno]
print(attempt(0x401c5820, 28), attempt(0x40086602, 8), attempt(0x40046602, 4))
"""


def steps(word, policy):
    def run(*command, options=(), workspace=WORKSPACE):
        return ["exec", "-w", workspace, "--json", *options, "--", *command]

    limit = ["--memory", "32M"]
    return {
        "create": ["create", WORKSPACE],
        "create one that sees all": ["create", "host", "--policy", policy],
        "create one with little room": ["create", "small", "--policy", f"{policy}.small"],
        "fill the workspace": run("/usr/bin/python3", "-c", FILL, ".", workspace="small"),
        "fill its /tmp": run("/usr/bin/python3", "-c", FILL, "/tmp", workspace="small"),
        "leave": run("/usr/bin/python3", "-c", LEAVE, workspace="small"),
        "room": ["policy", "--json", "small"],
        "fill another": run("sh", "-c", "head -c 16M /dev/zero > f; sync f; rm f; echo end"),
        "more room": ["policy", "--set", f"{policy}.larger", "small"],
        "fill it": run("/usr/bin/python3", "-c", FILL, ".", workspace="small"),
        "no limits": ["policy", "--set", f"{policy}.none", "small"],
        "fill it for good": run("sh", "-c", "head -c 16M /dev/zero > f; sync f; rm f; echo end", workspace="small"),
        "create one with a quarter": ["create", "quarter", "--policy", f"{policy}.quarter"],
        "a quarter of a processor": run("/usr/bin/python3", "-c", SPIN, workspace="quarter"),
        "a child needs too much": run("sh", "-c", f"sleep {word} & setsid sleep {word} & {EAT}; echo survived",
                                      options=limit),
        "the leader needs too much": run("sh", "-c", f"exec {EAT}", options=limit),
        "for people": ["exec", "-w", WORKSPACE, *limit, "--", "sh", "-c", EAT],
        "killed for another reason": run("sh", "-c", "kill -9 $$", options=limit),
        "a limit of its own": run("sh", "-c", f"ulimit -v 60000; {EAT} 2>/dev/null; echo $?; kill -9 $$",
                                  options=["--memory", "256M"]),
        "one that it set below": run("sh", "-c", NESTED, options=["--memory", "256M"], workspace="host"),
        "enough": run("sh", "-c", "head -c 20000000 /dev/zero | tail -c 1 | wc -c", options=limit),
        "forks until it may not": run("/usr/bin/python3", "-c", FORKS, options=["--processes", "20"]),
        "left": ["ps", "--json"],
        "fork bomb": run("/usr/bin/python3", "-c", BOMB, word, options=["--processes", "20", "--timeout", "5"]),
        "others go on": run("echo", "here"),
    }


@pytest.fixture(scope="module")
def answers(binaries, tmp_path_factory):
    job = {"berthd": str(binaries["berthd"]), "berth": str(binaries["berth"]), "word": unique_sleep()}
    policy = tmp_path_factory.mktemp("policy") / "host.json"
    policy.write_text('{"filesystem": "host"}')
    for name, limits in (("small", {"disk": "4M", "files": 100}), ("larger", {"disk": "8M", "files": 200}),
                         ("none", {"disk": None, "files": None})):
        (policy.parent / f"host.json.{name}").write_text(json.dumps({"limits": limits}))
    (policy.parent / "host.json.quarter").write_text('{"filesystem": "host", "limits": {"cpu": 0.25}}')
    job["steps"] = steps(job["word"], str(policy))
    disk = tmp_path_factory.mktemp("disk") / "image"
    with open(disk, "wb") as image:
        image.truncate(64 << 20)
    subprocess.run(["/sbin/mkfs.ext4", "-q", "-O", "quota,project", "-E", "quotatype=prjquota", disk], check=True,
                   timeout=60)
    job["disk"] = True
    found = run_in_machine(tmp_path_factory.mktemp("machine"), REPOSITORY / "tests/lib/machine_commands.py", job,
                           disk=disk)
    disk.unlink()
    assert list(found) == list(job["steps"]) and found["create"]["status"] == 0, found
    return found


# The machine has no room for what sanitisers map.
in_machine = pytest.mark.unsanitised


def verdict_of(answer):
    return json.loads(answer["stdout"])


@in_machine
@pytest.mark.parametrize("who", ["a child", "the leader"])
def test_out_of_memory(answers, who):
    """All of it is gone, whoever it was that needed too much."""
    answer = answers[f"{who} needs too much"]
    verdict = verdict_of(answer)
    assert (answer["status"], answer["living"]) == (137, 0)
    assert (verdict["verdict"], verdict["signal"], verdict["exit_status"]) == ("oom_killed", 9, 137)
    assert (verdict["left"], verdict["means"], verdict["stdout"]) == (0, "cgroup", "")


@in_machine
def test_out_of_memory_for_people(answers):
    answer = answers["for people"]
    assert (answer["status"], answer["stdout"]) == (137, "")
    assert answer["stderr"] == "berth: killed: out of memory: it needed more than its limit\n"


@in_machine
@pytest.mark.parametrize("how,printed", [("killed for another reason", ""), ("a limit of its own", "1\n"),
                                         ("one that it set below", "137\noom_group_kill 1\n")])
def test_what_is_not_out_of_memory(answers, how, printed):
    verdict = verdict_of(answers[how])
    assert (verdict["verdict"], verdict["signal"], verdict["stdout"]) == ("signaled", 9, printed), verdict


@in_machine
def test_enough_memory(answers):
    verdict = verdict_of(answers["enough"])
    assert (verdict["verdict"], verdict["code"], verdict["stdout"]) == ("exited", 0, "1\n"), verdict


@in_machine
@pytest.mark.parametrize("what,chunks,files", [("the workspace", 64, 100), ("its /tmp", 64, 100), ("it", 128, 200)])
def test_as_much_of_the_disk_as_allowed(answers, what, chunks, files):
    """By size and by number; /tmp and home are of the workspace, and so is what the service keeps beside it."""
    size, number = (line.split() for line in verdict_of(answers[f"fill {what}"])["stdout"].splitlines())
    assert (size[1], number[1]) == ("EDQUOT", "EDQUOT")
    assert chunks - 8 <= int(size[0]) <= chunks and files - 20 <= int(number[0]) < files


@in_machine
def test_room_on_the_disk(answers):
    """It is of that workspace alone, measured, changed live, and not left."""
    limits = json.loads(answers["room"]["stdout"])["measured"]["facts"]["limits"]
    assert (limits["disk"], limits["files"]) == (4 << 20, 100) and 0 < limits["files_used"] < 20, limits
    assert verdict_of(answers["leave"])["stdout"] == "EPERM EPERM EPERM\n"
    for name in ("fill another", "fill it for good"):
        assert verdict_of(answers[name])["stdout"] == "end\n", answers[name]


@in_machine
def test_as_much_of_a_processor_as_allowed(answers):
    """On a busy machine it may be less."""
    share, *limit = verdict_of(answers["a quarter of a processor"])["stdout"].split()
    assert limit == ["25000", "100000"] and 0 < float(share) < 0.4


@in_machine
def test_as_many_processes_as_allowed(answers):
    assert verdict_of(answers["forks until it may not"])["stdout"] == "19 EAGAIN\n"
    left, = json.loads(answers["left"]["stdout"])
    assert (left["state"], left["processes"]) == ("exited", 19)


@in_machine
def test_fork_bomb_under_its_limit(answers):
    answer = answers["fork bomb"]
    verdict = verdict_of(answer)
    assert (answer["status"], answer["living"]) == (124, 0)
    assert (verdict["verdict"], verdict["left"], verdict["means"]) == ("timed_out", 0, "cgroup")
    assert 2 <= verdict["removed"] <= 20
    assert verdict_of(answers["others go on"])["stdout"] == "here\n"


@pytest.mark.parametrize("limit", [{"memory_max": 1 << 30}, {"processes_max": 10}])
def test_limit_that_cannot_be_set(harness, run_berth, limit):
    """The command is refused, never run without."""
    harness.env["BERTH_WITHOUT"] = "cgroup"
    service = harness.start_service()
    run_berth("create", WORKSPACE, check=True)
    with ExecClient(service.socket) as client:
        verdict = client.run(WORKSPACE, ["touch", "ran"], **limit).verdict
    assert (verdict.verdict, verdict.stage, verdict.error) == ("not_started", "confine", errno.EOPNOTSUPP)
    assert "needs the cgroup controller" in verdict.text
    assert not (service.root / "workspaces" / WORKSPACE / "tree" / "ran").exists()


@pytest.mark.parametrize("option,word", [("--memory", "0"), ("--memory", "1Q"), ("--memory", "-1"), ("--memory", ""),
                                         ("--processes", "0"), ("--processes", "x"), ("--processes", "-3")])
def test_limits_that_are_none(run_berth, option, word):
    refused = run_berth("exec", "-w", WORKSPACE, option, word, "--", "true")
    assert refused.returncode == 125 and f"{option}: {word} is not a number" in refused.stderr

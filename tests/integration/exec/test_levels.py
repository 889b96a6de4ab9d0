"""Who runs the service, and where: an ordinary user; users of containers, in which no namespaces can be
made, root among them, who has no capabilities there. What holds for each, and what is refused instead of
being less than was asked for."""

import errno
import json
import os
import shutil
import socket
import subprocess

import pytest

from lib.exec_client import WORKSPACE
from lib.harness import wait_until
from lib.processes import name_of
from lib.world import MACHINE, World

pytestmark = [pytest.mark.sandbox,
              pytest.mark.skipif(os.geteuid() != 0, reason="only root can become others, and make a network")]

USER = 61234
NAMESPACES = (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000)

# What a container's filter refuses (Docker's own does, as long as CAP_SYS_ADMIN is not there).
FILTER = [*(f"clone&{flag:#x}=1" for flag in NAMESPACES), "clone3=38", "unshare=1", "setns=1", "mount=1",
          "umount2=1", "pivot_root=1", "open_tree=1", "move_mount=1", "fsopen=1", "keyctl=1", "bpf=1"]

ORDINARY = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "--"]
POWERLESS = ["setpriv", "--inh-caps=-all", "--bounding-set=-all", "--"]
NO_MORE = ["unshare", "--user", "--map-root-user", "sh", "-c",
           'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"', "sh"]

# Name: (the user's number, the level, what stands before the service)
WHO = {
    "an ordinary user": (USER, "full", lambda refuse: ORDINARY),
    "an ordinary user in a container": (USER, "no-userns", lambda refuse: refuse + ORDINARY),
    "root in a container": (0, "no-userns", lambda refuse: refuse + POWERLESS),
    "root where there are no more user namespaces": (0, "no-userns", lambda refuse: NO_MORE + POWERLESS),
}

TRY = r"""
import ctypes, errno, json, os, socket, sys
names = json.loads(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
def call(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "")
def read(path):
    with open(path, "rb") as file:
        assert file.read(1)
def others(path):
    assert set(os.listdir(path)) - {"work"}
def write(path):
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
def connect(family, kind, protocol, address):
    with socket.socket(family, kind, protocol) as s:
        s.settimeout(5)
        if kind == socket.SOCK_STREAM:
            s.connect(address)
        else:
            s.sendto(b"x" * 8, address)
attempts = {
    "another workspace": lambda: read(names["secret"]),
    "others' names": lambda: others(names["root"] + "/workspaces"),
    "its own policy": lambda: read(names["root"] + "/workspaces/work/policy.json"),
    "passwords": lambda: read("/etc/shadow"),
    "a program": lambda: write("/usr/bin/berth-of-a-test"),
    "settings": lambda: write("/etc/berth-of-a-test"),
    "the kernel": lambda: write("/proc/sys/kernel/core_pattern"),
    "the keeper's root": lambda: os.listdir(f"/proc/{names['keeper']}/root"),
    "the keeper": lambda: os.kill(names["keeper"], 0),
    "tracing it": lambda: call(libc.ptrace(16, names["keeper"], 0, 0)),
    "a user namespace": lambda: call(libc.unshare(0x10000000)),
    "a mount": lambda: call(libc.mount(b"none", b"/tmp", b"tmpfs", 0, 0)),
    "tcp": lambda: connect(socket.AF_INET, socket.SOCK_STREAM, 0, ("198.51.100.10", 80)),
    "tcp6": lambda: connect(socket.AF_INET6, socket.SOCK_STREAM, 0, ("2001:db8::10", 80)),
    "udp": lambda: connect(socket.AF_INET, socket.SOCK_DGRAM, 0, ("198.51.100.53", 53)),
    "icmp": lambda: connect(socket.AF_INET, socket.SOCK_DGRAM, 1, ("198.51.100.10", 0)),
    "raw": lambda: connect(socket.AF_INET, socket.SOCK_RAW, 1, ("198.51.100.10", 0)),
    "packet": lambda: connect(socket.AF_PACKET, socket.SOCK_RAW, 3, ("lo", 0)),
    "vsock": lambda: connect(40, socket.SOCK_STREAM, 0, (2, 1)),
    "the service's socket": lambda: connect(socket.AF_UNIX, socket.SOCK_STREAM, 0, names["socket"]),
    "an abstract socket": lambda: connect(socket.AF_UNIX, socket.SOCK_STREAM, 0, "\0" + names["abstract"]),
}
found = {}
for name, attempt in attempts.items():
    try:
        attempt()
        found[name] = "done"
    except AssertionError:
        found[name] = "empty"
    except OSError as error:
        found[name] = errno.errorcode.get(error.errno, str(error))
print(json.dumps(found))
"""

NETWORK = ("tcp", "tcp6", "udp")
HELD = {
    "full": {
        "another workspace": "ENOENT", "others' names": "empty", "its own policy": "ENOENT", "passwords": "empty",
        "a program": "EROFS", "settings": "EROFS", "the kernel": "EACCES", "the keeper's root": "ENOENT",
        "the keeper": "ESRCH", "tracing it": "ESRCH", "tcp": "ENETUNREACH", "tcp6": "ENETUNREACH",
        "udp": "ENETUNREACH", "icmp": "EACCES", "raw": "EPERM", "the service's socket": "ENOENT",
        "an abstract socket": "ECONNREFUSED"},
    "no-userns": {
        "another workspace": "EACCES", "others' names": "EACCES", "its own policy": "EACCES", "passwords": "EACCES",
        "a program": "EACCES", "settings": "EACCES", "the kernel": "EACCES", "the keeper's root": "EACCES",
        "the keeper": "EPERM", "tracing it": "EPERM", "tcp": "EACCES", "tcp6": "EACCES", "udp": "EACCES",
        "icmp": "EACCES", "raw": "EACCES", "the service's socket": "EACCES", "an abstract socket": "EACCES"},
}
ALWAYS = {"a user namespace": "EPERM", "a mount": "EPERM", "packet": "EACCES", "vsock": "EACCES"}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    world = World(tmp_path_factory.mktemp("world"))
    world.dns.names = {"example.org": [["198.51.100.10"]], "self.example.org": [[MACHINE]]}
    world.serve("198.51.100.10", 80)
    world.serve("2001:db8::10", 80)
    yield world
    world.close()


class Machine:
    """A service of somebody's on the world's machine, with a root of its own."""

    def __init__(self, harness, world, who):
        self.harness = harness
        self.user, self.level, before = WHO[who]
        place = harness.short / "place"
        place.mkdir()
        harness.short.chmod(0o711)
        berthd = place / "berthd"
        shutil.copy(harness.program("berthd"), berthd)
        refuse = place / "refuse"
        shutil.copy(harness.build / "tests/tools/refuse", refuse)
        harness.binaries = {**harness.binaries, "berthd": berthd}
        for name in ("home", "run"):
            (place / name).mkdir(mode=0o700)
        for path in (place, place / "home", place / "run"):
            os.chown(path, self.user, self.user)
        env = {**harness.env, "HOME": str(place / "home"), "XDG_RUNTIME_DIR": str(place / "run"),
               "ASAN_OPTIONS": "detect_leaks=0"}
        command = before([str(refuse), *FILTER, "--"])
        which = [shutil.which(word) if word in ("setpriv", "unshare") else word for word in command]
        self.service = harness.start_service(root=place / "root", listen=[f"unix:{place}/run/s"], env=env,
                                             wrapper=[str(word) for word in world.on_machine(*which)])
        self.root = self.service.root
        assert self.service.root.stat().st_uid == self.user

    def create(self, name=WORKSPACE, policy=None):
        self.harness.run_berth("create", "--policy", "-", name, input=json.dumps(policy or {}), check=True)

    def run(self, *argv, workspace=WORKSPACE, options=()):
        return self.harness.run_berth("exec", "-w", workspace, *options, "--", *argv)

    def measured(self, workspace=WORKSPACE):
        return json.loads(self.harness.run_berth("policy", "--json", workspace).stdout)

    def tries(self, workspace=WORKSPACE):
        """By attempt, what came of it."""
        name = f"berth-test-{os.getpid()}"
        with socket.socket(socket.AF_UNIX) as somebody:
            somebody.bind("\0" + name)
            somebody.listen()
            names = {"root": str(self.root), "secret": str(self.root / "workspaces/other/tree/secret"),
                     "keeper": self.service.keeper().pid, "socket": self.service.socket, "abstract": name}
            result = self.run("/usr/bin/python3", "-c", TRY, json.dumps(names), workspace=workspace)
        assert result.returncode == 0, result
        return json.loads(result.stdout)


@pytest.fixture(params=WHO)
def machine(request, harness, world):
    machine = Machine(harness, world, request.param)
    machine.create("other")
    (machine.root / "workspaces/other/tree/secret").write_text("of another conversation's")
    return machine


def test_what_holds(machine, run_berth):
    machine.create()
    assert machine.run("true").returncode == 0
    found = machine.tries()
    wanted = {**HELD[machine.level], **ALWAYS}
    if machine.user and machine.level == "full":
        wanted["passwords"] = found["passwords"] if found["passwords"] in ("empty", "EACCES") else "EACCES"
    assert found == wanted
    told = machine.measured()["measured"]
    assert (told["level"], "changed" in told, "unknown" in told) == (machine.level, False, False)
    facts = told["facts"]
    assert (int(facts["capabilities"], 16), facts["no_new_privs"], facts["seccomp"]) == (0, True, True)
    assert facts["forbidden_errno"] == errno.EACCES
    assert ("user-namespace" in told["missing"]) == (machine.level != "full")
    # Its own files, a private /tmp and a home are there, for who has none elsewhere too; what it makes is the user's.
    script = 'touch made "$HOME/made" "${TMPDIR:-/tmp}/made" && stat -c %u made && id -u'
    assert machine.run("sh", "-c", script).stdout == f"{machine.user}\n{machine.user}\n"
    assert (machine.root / "workspaces" / WORKSPACE / "private/tmp/made").stat().st_uid == machine.user
    assert (machine.root / "workspaces" / WORKSPACE / "private/home/made").exists()
    level = json.loads(run_berth("status", "--json", check=True).stdout)["service"]["level"]
    assert level == machine.level


def test_limits(machine, run_berth):
    machine.create(policy={"limits": {"open_files": 64, "file_size": 4096, "wall_time": 1.5}})
    assert machine.run("sh", "-c", "ulimit -Hn; ulimit -Hf").stdout == "64\n8\n"
    assert machine.run("sleep", "60").returncode == 124
    limits = json.loads(run_berth("status", "--json", check=True).stdout)["service"]["limits"]
    for name, option, value in (("memory", "--memory", "512M"), ("pids", "--processes", "50")):
        result = machine.run("true", options=(option, value))
        if limits[name] is True:
            assert result.returncode == 0 and machine.user == 0, result
        else:
            assert limits[name].startswith(f'limits.{name}: needs the cgroup controller "{name}": ')
            assert (result.returncode, result.stderr) == (
                125, f"berth: not started: confine: {limits[name]}\n")


def test_the_machines_network(machine):
    """When that is what was asked for; all else is held as before."""
    machine.create(policy={"network": "host"})
    assert machine.run("true").returncode == 0
    found = machine.tries()
    assert {name: found[name] for name in NETWORK} == dict.fromkeys(NETWORK, "done")
    for name in ("another workspace", "the service's socket", "the keeper", "a mount"):
        assert found[name] == {**HELD[machine.level], **ALWAYS}[name]


def test_a_list_of_hosts(machine):
    machine.create(policy={"network": {"allow": ["*.example.org:80", "example.org:80"]}})
    curl = ["curl", "-sS", "--max-time", "20"]
    result = machine.run(*curl, "http://example.org/a")
    if machine.level != "full":
        assert result.returncode == 125
        assert result.stderr.startswith("berth: not started: confine: network.allow: needs a network namespace: ")
        return
    assert (result.returncode, result.stdout) == (0, "198.51.100.10:80 /a example.org\n"), result
    assert "the service's own machine" in machine.run(*curl, "http://self.example.org/").stdout
    assert "not on the allow list" in machine.run(*curl, "http://evil.test/").stdout
    assert machine.run(*curl, "--noproxy", "*", "http://198.51.100.10/").returncode == 7


def test_what_is_required(machine):
    machine.create(policy={"require": [machine.level, "landlock", "seccomp"]})
    assert machine.run("true").returncode == 0
    machine.create("full", policy={"require": ["full"]})
    machine.create("space", policy={"require": ["user-namespace"]})
    if machine.level == "full":
        assert machine.run("true", workspace="full").returncode == 0
        return
    for name, says in (("full", "require: full: this machine has no-userns"),
                       ("space", "require: user-namespace: ")):
        result = machine.run("touch", "ran", workspace=name)
        assert result.returncode == 125
        assert result.stderr.startswith(f"berth: not started: confine: {says}"), result.stderr
        assert len(result.stderr) > len(f"berth: not started: confine: {says}")  # the reason
        assert not (machine.root / "workspaces" / name / "tree/ran").exists()
        told = machine.measured(name)
        assert told["refused"].startswith(says) and "measured" not in told


def test_a_sandbox_of_an_ordinary_users_is_fenced(harness, world, run_berth):
    machine = Machine(harness, world, "an ordinary user")
    machine.create()
    assert machine.run("true").returncode == 0
    pid = machine.service.keeper().pid
    children = open(f"/proc/{pid}/task/{pid}/children", encoding="ascii").read().split()
    init = next(child for child in children if name_of(int(child)) == "berth-init")
    subprocess.run(["nsenter", "-t", init, "-n", "ip", "link", "add", "type", "veth"], check=True)
    result = machine.run("true")
    assert (result.returncode, result.stderr.split(": ")[2]) == (125, "attest"), result
    assert "is fenced" in machine.run("true").stderr
    # The commands that were refused may be a moment in going.
    wait_until(lambda: run_berth("policy", "--lift", WORKSPACE).returncode == 0)
    assert machine.run("true").returncode == 0
    wait_until(lambda: not os.path.exists(f"/proc/{init}"), what="the end of what was changed")

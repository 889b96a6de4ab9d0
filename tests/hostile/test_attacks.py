"""Attacks by commands of a workspace, each of lib/attacks.py: what they come to at each level, and without all that
stops them. Those of one service are tried one after the other by one command (tests/hostile/attacks)."""

import array
import contextlib
import ctypes
import ctypes.util
import functools
import json
import os
import select
import shutil
import socket
import stat
import struct
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from lib.attacks import ATTACKS, LEVELS, NOTHING, Setting
from lib.exec_client import WORKSPACE
from lib.harness import BINARIES, REPOSITORY, wait_until
from lib.ordinary import USER, give, let_in, ordinary_service
from lib.processes import name_of, processes_with

# Some send a signal to all that they can, and where nothing stops them that ends machines of User Mode Linux.
pytestmark = [pytest.mark.sandbox, pytest.mark.xdist_group("machine"),
              pytest.mark.skipif(os.geteuid() != 0, reason="only root can lay out what is attacked")]

SECRET = "secret of the machine\n"
OTHER_USER = 54321
libc = ctypes.CDLL(ctypes.util.find_library("c"), use_errno=True)

# Writes down the signals that it gets.
VICTIM = """
import os, signal, sys
record = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
for number in (10, 23, 28):
    signal.signal(number, lambda number, frame: os.write(record, b"%d\\n" % number))
os.write(record, b"0\\n")
while True:
    signal.pause()
"""


def serve(closing, s, answer):
    """Answers whoever connects, until it is closed."""
    def run():
        with contextlib.suppress(OSError):
            while True:
                answer(s)
    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def stop():
        with contextlib.suppress(OSError):
            s.shutdown(socket.SHUT_RDWR)
        s.close()
        thread.join(10)
    closing.callback(stop)


def accept(s):
    s.accept()[0].close()


def hand_out(path):
    """To whoever connects, a descriptor of that file."""
    def answer(s):
        connection, _ = s.accept()
        with connection, open(path, "rb") as file:
            connection.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [file.fileno()]))])
    return answer


def echo(s):
    data, peer = s.recvfrom(100)
    if not data:
        raise OSError("closed")
    s.sendto(data, peer)


def handle_of(path):
    """As the attack wants it: type and bytes, in hexadecimal digits."""
    space = ctypes.create_string_buffer(struct.pack("Ii", 128, 0) + bytes(128))
    assert libc.name_to_handle_at(-100, os.fsencode(path), space, ctypes.byref(ctypes.c_int()), 0) == 0
    size, kind = struct.unpack_from("Ii", space.raw)
    return (struct.pack("i", kind) + space.raw[8:8 + size]).hex()


def disk():
    """The device of the file system that the tests are on, or any."""
    devices = [path for path in Path("/dev").iterdir() if path.is_block_device()]
    number = os.stat(".").st_dev
    return next((path for path in devices if path.stat().st_rdev == number), devices[0] if devices else "/dev/sda")


def may_open_disk():
    with contextlib.suppress(OSError), open(disk(), "rb"):
        return True
    return False


class World:
    """What there is to attack, outside and in another workspace; and a service whose commands try."""

    def __init__(self, harness, closing, ordinary=False):
        self.harness, self.closing, self.ordinary = harness, closing, ordinary
        self.place = harness.new_path("outside")
        self.place.mkdir()
        let_in(self.place)
        self.secret = self.place / "secret"
        self.secret.write_text(SECRET)
        self.key = os.getpid()
        self.word = f"1000.{os.getpid()}"
        self.program = self.place / "berthd"
        shutil.copy(harness.program("berth"), self.program)
        self.names = {"outside": self.place, "secret": self.secret, "program": self.program, "key": self.key, "handle": handle_of(self.secret)}
        self._victim()
        self._sockets()
        self._shared()
        self._devices()
        if ordinary:
            give(self.place, self.secret, self.program, self.names["host_socket"], self.names["datagram_socket"],
                 self.names["shm"])

    def _victim(self):
        self.record = self.place / "signals"
        self.record.touch()
        self.record.chmod(0o666)
        self.victim = subprocess.Popen([sys.executable, "-c", VICTIM, self.record], stdin=subprocess.DEVNULL,
                                       user=USER if self.ordinary else None)
        self.closing.callback(self.victim.wait)
        self.closing.callback(self.victim.kill)
        wait_until(lambda: self.signals() == [0], what="the victim")
        self.names["victim"] = self.victim.pid

    def signals(self):
        return [int(line) for line in self.record.read_text().split()]

    def _sockets(self):
        abstract = f"berth-attack-{os.getpid()}"
        self.listen(socket.AF_UNIX, socket.SOCK_STREAM, "\0" + abstract, hand_out(self.secret))
        host, datagram = self.harness.short / "engine", self.harness.short / "datagram"
        self.listen(socket.AF_UNIX, socket.SOCK_STREAM, str(host), accept)
        self.listen(socket.AF_UNIX, socket.SOCK_DGRAM, str(datagram), lambda s: s.recv(10) or s.accept())
        tcp = self.listen(socket.AF_INET6, socket.SOCK_STREAM, ("::", 0), accept)
        udp = self.listen(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0), echo)
        self.names.update(abstract=abstract, host_socket=host, datagram_socket=datagram, tcp=tcp, udp=udp)

    def listen(self, family, kind, address, answer):
        s = socket.socket(family, kind)
        if family == socket.AF_INET6:
            s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        s.bind(address)
        if kind == socket.SOCK_STREAM:
            s.listen()
        serve(self.closing, s, answer)
        return s.getsockname()[1] if family != socket.AF_UNIX else None

    def _shared(self):
        memory = libc.shmget(self.key, 4096, 0o1666)
        libc.shmat.restype = ctypes.c_void_p
        at = ctypes.c_void_p(libc.shmat(memory, None, 0))
        ctypes.memmove(at, SECRET.encode(), len(SECRET))
        libc.shmdt(at)
        self.closing.callback(libc.shmctl, memory, 0, None)
        queue = libc.msgget(self.key, 0o1666)
        self.closing.callback(libc.msgctl, queue, 0, None)
        semaphores = libc.semget(self.key, 1, 0o1666)
        self.closing.callback(libc.semctl, semaphores, 0, 0)
        assert min(memory, queue, semaphores) >= 0
        name = f"/berth-attack-{os.getpid()}"
        opened = libc.mq_open(name.encode(), os.O_RDWR | os.O_CREAT, 0o600, None)
        assert opened >= 0
        os.fchmod(opened, 0o666)
        os.close(opened)
        self.closing.callback(libc.mq_unlink, name.encode())
        shared = Path("/dev/shm" + name)
        shared.write_text(SECRET)
        self.closing.callback(shared.unlink)
        self.names.update(queue=name, shm=shared)

    def _devices(self):
        master, slave = os.openpty()
        self.closing.callback(os.close, master)
        self.names["terminal"] = os.ttyname(slave)
        os.close(slave)
        self.names["disk"] = disk()
        rows = [line.split() for line in open("/proc/self/mounts", encoding="utf-8")]
        unified = next((row[1] for row in rows if row[2] == "cgroup2"), "/sys/fs/cgroup")
        old = next((row[1] for row in rows if row[2] == "cgroup"), "/sys/fs/cgroup")
        self.names.update(cgroup_procs=f"{unified}/cgroup.procs", release_agent=f"{old}/release_agent")

    def start(self, setting):
        """A service, and in its workspaces what may be attacked from there."""
        if setting.mechanisms:
            self.harness.env["BERTH_WITHOUT"] = ",".join(setting.mechanisms)
        self.service = ordinary_service(self.harness) if self.ordinary else self.harness.start_service()
        for name in (WORKSPACE, "other"):
            self.harness.run_berth("create", "--policy", "-", name, check=True,
                                   input=json.dumps(dict.fromkeys(setting.policy, "host")))
        self.tree, other = (self.service.root / "workspaces" / name / "tree" for name in (WORKSPACE, "other"))
        (other / "secret").write_text(SECRET)
        self.listen(socket.AF_UNIX, socket.SOCK_STREAM, self.reach(other / "socket"), hand_out(self.secret))
        self._programs()
        os.mknod(self.tree / "device", stat.S_IFCHR, os.makedev(1, 8))
        os.chmod(self.tree / "device", 0o666)
        os.chmod(self.reach(other / "socket"), 0o666)
        sleeper = subprocess.Popen([self.harness.program("berth"), "exec", "-w", "other", "--", "sleep", self.word],
                                   env=self.service.client_env(), stdin=subprocess.DEVNULL)
        self.closing.callback(sleeper.wait)
        self.closing.callback(sleeper.kill)
        wait_until(self._commands, what="the other workspace's command")
        self.names.update(
            policy_file=self.tree.parent / "policy.json",
            other_secret=other / "secret", other_socket=self.reach(other / "socket"), device="device",
            service_socket=self.service.socket, service=self.service.pid, keeper=self.service.keeper().pid,
            other=self._commands())
        return self

    def reach(self, path):
        """A name for it that is short enough for a socket."""
        link = self.harness.short / "other"
        if not link.exists():
            link.symlink_to(path.parent)
        return str(link / path.name)

    def _programs(self):
        shutil.copy(self.harness.program("attack"), self.tree / "attack")
        for name in ("set-user-id", "capable"):
            shutil.copy(self.harness.program("gain"), self.tree / name)
        os.chown(self.tree / "set-user-id", OTHER_USER, OTHER_USER)
        os.chmod(self.tree / "set-user-id", 0o4755)
        # CAP_NET_RAW, permitted and effective
        os.setxattr(self.tree / "capable", "security.capability", struct.pack("<5I", 0x02000001, 1 << 13, 0, 0, 0))
        self.names.update(set_user_id="./set-user-id", capable="./capable")

    def _commands(self):
        return next((pid for pid in processes_with(self.word) if name_of(pid) == "sleep"), None)

    def lines(self, attacks):
        return "".join(f"{attack.name} {attack.command}\n".format(**self.names) for attack in attacks)

    def attempt(self, attacks):
        """What each has come to."""
        result = self.harness.run_berth("exec", "-w", WORKSPACE, "-i", "--", "./attack", input=self.lines(attacks),
                                        timeout=60)
        assert result.returncode == 0, result
        return self.judge(attacks, result.stdout)

    def judge(self, attacks, text):
        found = dict(line.split(" ", 1) for line in text.splitlines())
        # What was sent before has been seen when these have.
        for count in (1, 2):
            self.victim.send_signal(10)
            wait_until(lambda: self.signals().count(10) >= count, what="the victim's answer")
        for attack in attacks:
            if attack.witness in self.signals() and attack.witness:
                found[attack.name] = "through"
        return found


@pytest.fixture
def world(harness):
    with contextlib.ExitStack() as closing:
        yield World(harness, closing)


# What cannot be shown where the kernel is without it, or the machine is itself confined.
NOT_HERE = {
    "module": lambda: not Path("/proc/modules").exists(),
    "kexec": lambda: not Path("/sys/kernel/kexec_loaded").exists(),
    "sysrq": lambda: not Path("/proc/sysrq-trigger").exists(),
    "iopl": lambda: libc.iopl(0) < 0,
    "disk": lambda: not may_open_disk(),
    "int80": lambda: unconfined("int80") == "ENOSYS",
}


@functools.cache
def unconfined(command):
    """What an attack that needs nothing laid out comes to without Berth."""
    program = Path(os.environ.get("BERTH_BUILD", REPOSITORY / "build")) / BINARIES["attack"]
    return subprocess.run([program], input=f"it {command}\n", capture_output=True, text=True, check=True,
                          timeout=60).stdout.split()[1]


def not_here(name):
    return NOT_HERE.get(name, lambda: False)()


def check(found, expected):
    """What is not here may fail for that."""
    wrong = [f"{name}: {found.get(name)}, not {answer}" for name, answer in expected.items()
             if found.get(name) not in answer.split(" or ") and not (not_here(name) and found.get(name) in ("ENOSYS", "ENOENT", "EPERM"))]
    assert not wrong, "\n".join(wrong)
    assert found.keys() == expected.keys()


@pytest.mark.parametrize("level", LEVELS)
def test_attacks_at_each_level(world, level):
    setting = LEVELS[level]
    world.start(setting)
    status = json.loads(world.harness.run_berth("status", "--json", check=True).stdout)
    assert status["service"]["level"] == level
    check(world.attempt(ATTACKS.values()), {name: setting.expects(attack) for name, attack in ATTACKS.items()})


def test_attacks_come_through_without_what_stops_them(world):
    attacks = [attack for attack in ATTACKS.values() if attack.control()]
    world.start(NOTHING)
    check(world.attempt(attacks), {attack.name: "through" for attack in attacks})


@pytest.fixture
def ordinary_world(harness):
    with contextlib.ExitStack() as closing:
        yield World(harness, closing, ordinary=True)


# What one ordinary user can do to another's programs where nothing stops it, and needs no privilege.
WITHOUT_PRIVILEGES = {
    "read", "policy", "read-workspace", "climb", "link", "any-process", "hard-link", "write", "make", "service-program",
    "look", "chmod", "set-id-outside", "utimes", "xattr", "watch", "take-abstract", "take-path", "host-socket", "service-socket", "datagram",
    "proc-root", "proc-cwd", "proc-fd", "proc-fd-other", "ptrace-service", "ptrace-other", "memory-service",
    "memory-other", "proc-mem", "environment", "pidfd-getfd", "kcmp", "limit", "slow-down", "pin-down", "oom-score",
    "signal-service", "signal-keeper", "signal-other", "signal-pidfd", "signal-all", "signal-by-owner", "set-user-id",
    "file-capabilities", "gain-again", "unshare-user", "clone-user", "clone3-user", "userfaultfd", "io-uring", "keyring",
    "add-key", "fanotify", "int80", "tcp", "tcp6", "udp", "shared-memory", "message-queue", "semaphores", "posix-queue",
    "dev-shm", "type-into"}


@pytest.mark.parametrize("level", LEVELS)
def test_attacks_on_a_service_of_an_ordinary_users(ordinary_world, level):
    """Who has the same user as the service, and nothing that root could give up. Nothing else comes through."""
    world, setting = ordinary_world, LEVELS[level]
    world.start(setting)
    status = json.loads(world.harness.run_berth("status", "--json", check=True).stdout)
    assert status["service"]["level"] == level
    found = world.attempt(ATTACKS.values())
    came = {name for name, answer in found.items() if answer == "through"}
    assert found.keys() == ATTACKS.keys()
    assert came - {name for name, attack in ATTACKS.items() if setting.expects(attack) == "through"} == set()


def test_attacks_of_an_ordinary_user_come_through(ordinary_world):
    attacks = [attack for attack in ATTACKS.values() if attack.control()]
    ordinary_world.start(NOTHING)
    found = ordinary_world.attempt(attacks)
    through = {name for name, answer in found.items() if answer == "through"}
    assert {name for name in WITHOUT_PRIVILEGES - through if not not_here(name)} == set()


# Above what one workspace may have, below what its user may.
BOMB = "bomb fork-bomb 4200\n"


@pytest.mark.parametrize("setting,answer", [(LEVELS["full"], "EAGAIN"), (LEVELS["no-userns"], "through")],
                         ids=["full", "no-userns"])
def test_fork_bomb_of_an_ordinary_users(ordinary_world, setting, answer):
    """Without the controllers of cgroups (test_limits.py has those): in a user namespace of its own."""
    ordinary_world.start(setting)
    result = ordinary_world.harness.run_berth("exec", "-w", WORKSPACE, "-i", "--", "./attack", input=BOMB, check=True)
    assert result.stdout == f"bomb {answer}\n"
    other = ordinary_world.harness.run_berth("exec", "-w", "other", "--", "sh", "-c", "echo here", check=True)
    assert other.stdout == "here\n"


def test_what_is_always_there_is_needed(world):
    """Without Berth, and with a descriptor that somebody has forgotten."""
    attacks = [attack for attack in ATTACKS.values() if attack.control() is None]
    with open("/dev/null", "rb") as forgotten:
        result = world.harness.run([world.harness.program("attack")], input=world.lines(attacks), check=True,
                                   pass_fds=[forgotten.fileno()])
    assert result.stdout.splitlines() == [f"{attack.name} through" for attack in attacks]


def test_no_child_of_the_service_can_be_traced(world):
    """Until its program begins it has the service's memory. Without Landlock, which would refuse it too."""
    world.start(Setting.of("landlock"))
    catcher = subprocess.Popen([world.harness.program("berth"), "exec", "-w", WORKSPACE, "-i", "--", "./attack"],
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                               env={**world.harness.env, **world.service.client_env()})
    try:
        catcher.stdin.write("ready inherited\ncatch catch-child 3 true\n")
        catcher.stdin.flush()
        assert catcher.stdout.readline() == "ready nothing\n"
        started = 0
        while catcher.poll() is None and not select.select([catcher.stdout], [], [], 0)[0]:
            world.harness.run_berth("exec", "-w", WORKSPACE, "--", "true", check=True)
            started += 1
        answer = catcher.communicate(timeout=20)[0]
        # Some are seen, and refused.
        assert answer == "catch EPERM\n" and started > 5
    finally:
        catcher.kill()
        catcher.wait()


def settings_of_single_layers():
    """Each setting in which attacks have one layer left, with those."""
    found = {}
    for attack in ATTACKS.values():
        for layer, _ in attack.layers if attack.control() else ():
            # Landlock never stands alone before sockets: their policies are refused then.
            if attack.alone(layer).has(layer):
                found.setdefault(attack.alone(layer), []).append(attack)
    return found


SINGLE = settings_of_single_layers()


@pytest.mark.long
@pytest.mark.parametrize("setting", SINGLE, ids=lambda setting: ",".join(setting.mechanisms) or "none")
def test_each_layer_stops_it_alone(world, setting):
    world.start(setting)
    check(world.attempt(ATTACKS.values()), {name: setting.expects(attack) for name, attack in ATTACKS.items()})


CONTROLS = {attack.control(): None for attack in ATTACKS.values() if attack.control()}


@pytest.mark.long
@pytest.mark.parametrize("setting", CONTROLS, ids=lambda setting: ",".join(setting.mechanisms) or "none")
def test_nothing_else_stops_it(world, setting):
    """With no more taken away than what the table names."""
    attacks = [attack for attack in ATTACKS.values() if attack.control() == setting]
    world.start(setting)
    check(world.attempt(attacks), {attack.name: "through" for attack in attacks})

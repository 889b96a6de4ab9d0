"""What holds the commands of a workspace: what they see and reach with each mechanism taken away,
what is refused, and that a sandbox that was widened from outside is used by no command any more."""

import errno
import json
import os
import re
import signal
import socket
import subprocess

import pytest

from lib import inject
from lib.exec_client import WORKSPACE
from lib.harness import wait_until
from lib.processes import name_of, state_of

pytestmark = pytest.mark.sandbox

NAMESPACES = ("mnt", "pid", "net", "ipc", "uts")

# What there is for a command, as one JSON object.
LOOK = r"""
import json, os, socket, sys
status = dict(line.rstrip("\n").split(":\t", 1) for line in open("/proc/self/status"))
def attempt(action):
    try:
        action()
        return "done"
    except OSError as error:
        return error.errno
def connect(family, address):
    with socket.socket(family) as s:
        s.settimeout(3)
        s.connect(address)
def loopback():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        connect(socket.AF_INET, s.getsockname())
def look(path):
    os.stat(path)
    (os.listdir if os.path.isdir(path) else open)(path)
print(json.dumps({
    "capabilities": {key: int(status[key], 16) for key in status if key.startswith("Cap")},
    "no_new_privs": status["NoNewPrivs"], "seccomp": status["Seccomp"], "groups": status["Groups"],
    "namespaces": {name: os.readlink("/proc/self/ns/" + name) for name in sys.argv[1].split(",")},
    "interfaces": [line.split(":")[0].strip() for line in open("/proc/self/net/dev")][2:],
    "loopback": attempt(loopback),
    "tcp": attempt(lambda: connect(socket.AF_INET, ("192.0.2.1", 80))),
    "abstract": attempt(lambda: connect(socket.AF_UNIX, "\0" + sys.argv[2])),
    "paths": {path: attempt(lambda: look(path)) for path in sys.argv[3:]},
}))
"""


@pytest.fixture
def confined(harness, run_berth):
    """confined(without="seccomp,…", policy={…}): a service and a workspace. Returns the service."""
    def start(without="", policy=None):
        if without:
            harness.env["BERTH_WITHOUT"] = without
        service = harness.start_service()
        create = ["create", WORKSPACE]
        if policy is not None:
            create[1:1] = ["--policy", "-"]
        run_berth(*create, input=json.dumps(policy or {}), check=True)
        return service
    return start


@pytest.fixture
def listener():
    """Somebody else's abstract socket."""
    name = f"berth-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as s:
        s.bind("\0" + name)
        s.listen()
        yield name


def run(run_berth, *argv, **keywords):
    return run_berth("exec", "-w", WORKSPACE, *keywords.pop("options", ()), "--", *argv, **keywords)


def look(run_berth, listener, *paths):
    result = run(run_berth, "/usr/bin/python3", "-c", LOOK, ",".join(NAMESPACES), listener,
                 *map(str, paths), check=True)
    return json.loads(result.stdout)


def sandbox_inits(service):
    pid = service.keeper().pid
    children = open(f"/proc/{pid}/task/{pid}/children", encoding="ascii").read().split()
    return [int(child) for child in children
            if name_of(child) == "berth-init" and state_of(child) != "Z"]


def sandbox_init(service):
    init, = sandbox_inits(service)
    return init


def set_policy(run_berth, policy, check=True):
    return run_berth("policy", "--set", "-", WORKSPACE, input=json.dumps(policy), check=check)


def measured(run_berth, check=True):
    result = run_berth("policy", "--json", WORKSPACE, check=check)
    return json.loads(result.stdout)


# --- what there is -------------------------------------------------------------------------

# By mechanism that is taken away: the level, what a command finds at "/", and of the network.
LEVELS = {
    "": ("full", "lists", errno.ENETUNREACH),
    "landlock": ("full", "lists", errno.ENETUNREACH),
    "mount-namespace": ("no-userns", errno.EACCES, errno.ENETUNREACH),
    "net-namespace": ("no-userns", "lists", errno.EACCES),
    "pid-namespace": ("no-userns", errno.EACCES, errno.EACCES),
    "seccomp": ("minimal", "lists", errno.ENETUNREACH),
}


@pytest.mark.parametrize("without", LEVELS)
def test_nothing_else_is_there(confined, run_berth, listener, without):
    service = confined(without)
    run_berth("create", "other", check=True)
    secret = service.root / "workspaces" / "other" / "tree" / "secret"
    secret.write_text("of another conversation's")
    own = service.root / "workspaces" / WORKSPACE
    run(run_berth, "true", check=True)
    outside = [secret, secret.parent, own / "policy.json", service.root / "service.json", service.root / "exec",
               "/etc/shadow", "/root/.bashrc", "/var/lib/dpkg/status", "/sys/kernel",
               f"/proc/{service.keeper().pid}/root" if without != "pid-namespace" else "/boot"]
    level, top, tcp = LEVELS[without]
    found = look(run_berth, listener, own / "tree", "/usr/bin", "/", *outside)
    assert found["capabilities"] == dict.fromkeys(found["capabilities"], 0)
    assert (found["no_new_privs"], found["seccomp"]) == ("1", "0" if without == "seccomp" else "2")
    assert found["paths"].pop("/") == ("done" if top == "lists" else top)
    assert found["paths"].pop(str(own / "tree")) == found["paths"].pop("/usr/bin") == "done"
    # A file that is hidden is empty.
    assert set(found["paths"].values()) <= {errno.ENOENT, errno.EACCES} | (
        {"done"} if top == "lists" else set()), found["paths"]
    assert [path for path, what in found["paths"].items() if what == "done"] in (
        [], ["/etc/shadow"])
    assert found["tcp"] == tcp
    if tcp == errno.ENETUNREACH:
        assert (found["interfaces"], found["loopback"]) == (["lo"], "done")
    assert found["abstract"] in (errno.ECONNREFUSED, errno.EPERM, errno.EACCES)
    told = measured(run_berth)
    assert told["measured"]["level"] == level
    assert set(without.split(",")) - {""} <= set(told["measured"]["missing"])
    if level == "full":
        for name in NAMESPACES:
            assert found["namespaces"][name] != os.readlink(f"/proc/self/ns/{name}")


def test_hidden_files_are_empty(confined, run_berth):
    confined()
    assert run(run_berth, "cat", "/proc/kallsyms", check=True).stdout == ""
    # Not to be opened, where mounts can be nobody's (tests/hostile/test_secrets.py).
    assert run(run_berth, "cat", "/etc/shadow").stdout == ""
    result = run(run_berth, "sh", "-c", "echo 1 > /proc/sys/kernel/panic; chmod 600 /dev/null;"
                                        " touch /x /usr/x /etc/x; echo y > /dev/null && echo end")
    assert result.stdout == "end\n"
    assert result.stderr.count("Read-only file system") == 5, result.stderr


def test_private_directories_stay(confined, run_berth, harness):
    """/tmp and the home are the workspace's own, and there again when all else was made anew."""
    service = confined()
    run(run_berth, "sh", "-c", 'echo kept > /tmp/kept; echo kept > "$HOME"/kept', check=True)
    os.kill(sandbox_init(service), 9)
    wait_until(lambda: sandbox_inits(service) == [], what="its end")
    assert run(run_berth, "sh", "-c", 'cat /tmp/kept "$HOME"/kept', check=True).stdout == (
        "kept\n" * 2)
    run_berth("create", "other", check=True)
    result = run_berth("exec", "-w", "other", "--", "sh", "-c", "cat /tmp/kept")
    assert result.returncode == 1
    run_berth("rm", "other", WORKSPACE, check=True)
    assert list((service.root / "workspaces").iterdir()) == []


REFUSED = {
    "mount": ("libc.mount(b'none', b'/tmp', b'tmpfs', 0, 0)", errno.EPERM),
    "unshare": ("libc.unshare(0x10000000)", errno.EPERM),
    "clone": ("libc.syscall(56, 0x10000000 | 17, 0, 0, 0, 0)", errno.EPERM),
    "clone3": ("libc.syscall(435, 0, 0)", errno.ENOSYS),
    "setns": ("libc.setns(0, 0)", errno.EPERM),
    "io_uring": ("libc.syscall(425, 1, 0)", errno.ENOSYS),
    "keyctl": ("libc.syscall(250, 0, -3, 0)", errno.EPERM),
    "bpf": ("libc.syscall(321, 0, 0, 0)", errno.EPERM),
    "userfaultfd": ("libc.syscall(323, 0)", errno.EPERM),
    "perf": ("libc.syscall(298, 0, 0, -1, -1, 0)", errno.EPERM),
    "handle": ("libc.syscall(304, -100, 0, 0)", errno.EPERM),
    "sticky": ("libc.ioctl(0, 0x5412, b'x')", errno.EPERM),
    "sticky, high bits": ("libc.syscall(16, 0, ctypes.c_ulong(0xff00005412), b'x')", errno.EPERM),
    "vsock": ("libc.socket(40, 1, 0)", errno.EACCES),
    "packet": ("libc.socket(17, 3, 0)", errno.EACCES),
    "mknod": ("libc.mknod(b'device', 0o20666, 0x103)", errno.EACCES),
    "settimeofday": ("libc.syscall(164, 0, 0)", errno.EPERM),
    "setuid": ("libc.setuid(12345)", errno.EPERM),
    "file_setattr": ("libc.syscall(469, -100, 0, 0, 0, 0)", errno.ENOSYS),
}


def test_system_calls_are_refused_one_by_one(confined, run_berth):
    confined()
    script = "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n" + "".join(
        f"print({name!r}, {call}, ctypes.get_errno(), sep='|')\n" for name, (call, _) in REFUSED.items())
    result = run(run_berth, "/usr/bin/python3", "-c", script, check=True)
    found = {name: (int(value), int(error)) for name, value, error in
             (line.split("|") for line in result.stdout.splitlines())}
    assert found == {name: (-1, error) for name, (_, error) in REFUSED.items()}


# By "int 0x80", which is how programs of 32 bits call: number, arguments, what comes back. POINTER is to memory that
# they can reach.
REFUSED_32 = {
    "mount": ((21, 0, 0, 0, 0, 0), errno.EPERM), "umount": ((22, 0), errno.EPERM), "umount2": ((52, 0, 0), errno.EPERM),
    "unshare": ((310, 0x10000000), errno.EPERM), "clone": ((120, 0x10000011, 0, 0, 0, 0), errno.EPERM),
    "clone3": ((435, 0, 0), errno.ENOSYS), "setns": ((346, 0, 0), errno.EPERM),
    "io_uring": ((425, 1, 0), errno.ENOSYS), "keyctl": ((288, 0, -3, 0), errno.EPERM),
    "bpf": ((357, 0, 0, 0), errno.EPERM), "userfaultfd": ((374, 0), errno.EPERM),
    "perf": ((336, 0, 0, -1, -1, 0), errno.EPERM), "handle": ((342, -100, 0, 0), errno.EPERM),
    "sticky": ((54, 0, 0x5412, 0), errno.EPERM), "stime": ((25, 0), errno.EPERM),
    "settimeofday": ((79, 0, 0), errno.EPERM), "clock_settime64": ((404, 0, 0), errno.EPERM),
    "vm86": ((166, 0, 0), errno.EPERM), "vsock": ((359, 40, 1, 0), errno.EACCES),
    "packet": ((359, 17, 3, 0), errno.EACCES), "packet, multiplexed": ((102, 1, "POINTER"), errno.EACCES),
    "setuid": ((213, 12345), errno.EPERM), "file_setattr": ((469, -100, 0, 0, 0), errno.ENOSYS),
}

CALL_32 = """
import ctypes, json, mmap, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
memory = libc.mmap(None, 4096, 7, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40, -1, 0)  # MAP_32BIT
def call(number, *args):
    args = [memory + 2048 if a == "POINTER" else a for a in args] + [0] * (5 - len(args))
    load = [b"\\xb8", b"\\xbb", b"\\xb9", b"\\xba", b"\\xbe", b"\\xbf"]  # eax, ebx, ecx, edx, esi, edi
    code = b"\\x53" + b"".join(op + struct.pack("<I", value & 0xffffffff) for op, value in zip(load, [number, *args]))
    code += b"\\xcd\\x80\\x5b\\xc3"
    ctypes.memmove(memory, code, len(code))
    return ctypes.CFUNCTYPE(ctypes.c_int)(memory)()
ctypes.memmove(memory + 2048, struct.pack("<3I", 17, 3, 0), 12)
print(json.dumps([call(20) == os.getpid(), {name: call(*args) for name, args in json.loads(sys.argv[1]).items()},
                  call(359, 1, 1, 0) > 2]))
"""


def test_system_calls_of_32_bits_are_refused_likewise(confined, run_berth):
    """The kernel numbers them otherwise; whoever calls so gets past no rule. There are kernels that have none:
    who tries has a signal, confined or not."""
    calls = ["/usr/bin/python3", "-c", CALL_32, json.dumps({name: call for name, (call, _) in REFUSED_32.items()})]
    outside = subprocess.run([*calls[:3], "{}"], stdout=subprocess.PIPE, timeout=30).returncode
    confined()
    result = run(run_berth, *calls)
    if outside < 0:
        assert result.returncode == 128 - outside, result
        return
    assert outside == result.returncode == 0, result
    works, found, unix = json.loads(result.stdout)
    assert works and unix
    assert found == {name: -error for name, (_, error) in REFUSED_32.items()}


PROGRAM_32 = """
.globl _start
_start: mov $4, %eax; mov $1, %ebx; mov $text, %ecx; mov $6, %edx; int $0x80
        mov $1, %eax; mov $7, %ebx; int $0x80
text:   .ascii "there\\n"
"""


def test_a_program_of_32_bits_runs(confined, run_berth, harness):
    """Where the kernel runs any; where it does not, that is what is told."""
    service = confined()
    source, program = harness.new_path("program.s"), harness.new_path("program")
    source.write_text(PROGRAM_32)
    subprocess.run(["as", "--32", "-o", f"{program}.o", source], check=True)
    subprocess.run(["ld", "-m", "elf_i386", "-o", service.root / "workspaces" / WORKSPACE / "tree" / "program",
                    f"{program}.o"], check=True)
    result = run(run_berth, "./program")
    try:
        subprocess.run([service.root / "workspaces" / WORKSPACE / "tree" / "program"], stdout=subprocess.DEVNULL, timeout=30)
    except OSError as error:
        assert error.errno == errno.ENOEXEC
        assert result.returncode == 126 and "Exec format error" in result.stderr, result
    else:
        assert (result.returncode, result.stdout) == (7, "there\n"), result


def test_processor_time_of_a_process(confined, run_berth):
    confined(policy={"limits": {"cpu_time": 1}})
    result = run_berth("exec", "-w", WORKSPACE, "--json", "--", "sh", "-c", "while :; do :; done")
    verdict = json.loads(result.stdout)
    assert (verdict["verdict"], verdict["signal"]) == ("signaled", signal.SIGXCPU)
    result = run_berth("exec", "-w", WORKSPACE, "--json", "--", "sh", "-c", "trap '' XCPU; while :; do :; done")
    assert json.loads(result.stdout)["signal"] == signal.SIGKILL


def test_terminal_is_the_sandboxs_own(confined, run_berth):
    confined()
    result = run_berth("exec", "-w", WORKSPACE, "-t", "--", "sh", "-c", "tty; ls /dev/pts", check=True)
    assert result.stdout.replace("\r", "") == "/dev/pts/0\n0  ptmx\n"


# --- policies ------------------------------------------------------------------------------

def test_timeout_of_the_policy(confined, run_berth):
    """The timeout that is told is the one that applied, and whose it was."""
    confined(policy={"limits": {"wall_time": 0.5}})
    whose = ", the limit of the workspace's policy (limits.wall_time); 1 process removed\n"
    result = run(run_berth, "sleep", "60", options=("--timeout", "100"))
    assert (result.returncode, result.stderr) == (124, "berth: timed out after 0.5 s" + whose)
    run(run_berth, "sleep", "60", options=("--detach", "--id", "long"), check=True)
    result = run_berth("wait", "-w", WORKSPACE, "--json", "long")
    assert (result.returncode, json.loads(result.stdout)["timeout_ms"]) == (124, 500)
    verdict = json.loads(run(run_berth, "sleep", "60", options=("--json",)).stdout)
    assert (verdict["verdict"], verdict["timeout_ms"]) == ("timed_out", 500)
    result = run(run_berth, "sleep", "60", options=("--timeout", "0.1"))
    assert result.stderr == "berth: timed out after 0.1 s; 1 process removed\n"


def test_policy_of_the_workspace(confined, run_berth, harness, listener):
    shown = harness.new_path("shown")
    shown.mkdir()
    (shown / "file").write_text("shown\n")
    policy = {"filesystem": {"read": [str(shown)]}, "network": "host",
              "limits": {"open_files": 64, "file_size": "1M", "cpu_time": 7, "wall_time": 2.5}}
    confined(policy=policy)
    found = look(run_berth, listener, shown / "file")
    assert found["paths"] == {str(shown / "file"): "done"}
    assert "lo" in found["interfaces"] and found["interfaces"] != ["lo"] or found["loopback"] == "done"
    assert found["abstract"] in (errno.EPERM, errno.ECONNREFUSED)
    result = run(run_berth, "sh", "-c", f"ulimit -Hn; ulimit -Hf; ulimit -St; echo x > {shown}/file")
    assert result.stdout.split() == ["64", "2048", "7"]
    assert "Read-only file system" in result.stderr
    told = measured(run_berth)
    assert told["asked"]["limits"] == {"memory": None, "pids": None, "cpu": None, "cpu_time": 7, "disk": None, "files": None, "wall_time": 2.5,
                                       "file_size": 1 << 20, "open_files": 64}
    assert told["measured"]["network"] == "host"
    assert told["measured"]["facts"]["limits"] == {"open_files": 64, "file_size": 1 << 20, "cpu_time": 8}
    text = run_berth("policy", WORKSPACE, check=True).stdout
    assert re.search(r"^network +host +host$", text, re.M), text


@pytest.mark.parametrize("without", ["", "mount-namespace"])
def test_what_is_read_besides_has_no_secrets(confined, run_berth, harness, without):
    """What hides keys and passwords stays when a directory above it is shown, by whatever name."""
    link = harness.new_path("link")
    link.symlink_to("/etc")
    confined(without, policy={"filesystem": {"read": ["/etc", str(link)]}})
    names = ("shadow", "gshadow", "ssh", "ssl/private", "hostname")
    script = "; ".join(f"cat {path}/{name} || ls {path}/{name}/" for path in ("/etc", link) for name in names)
    hostname = open("/etc/hostname", encoding="utf-8").read()
    assert run(run_berth, "sh", "-c", script + "; true", check=True).stdout == 2 * hostname
    set_policy(run_berth, {"filesystem": {"read": ["/etc", "/etc/shadow"]}})
    assert run(run_berth, "cat", "/etc/shadow", check=True).stdout == open("/etc/shadow", encoding="utf-8").read()
    assert run(run_berth, "cat", "/etc/gshadow").stdout == ""


@pytest.mark.parametrize("path, why", [
    ("/", "the service's own directory"), ("/proc/1", "commands have a /proc of their own"),
    ("/dev", "commands have a /dev of their own"), ("/etc/ssl/private/../private/", "must be"),
    ("/etc/ssl/./private", "is hidden, as all of /etc/ssl/private; to have that shown, name it")])
def test_what_is_not_to_be_read_besides(confined, run_berth, path, why):
    confined()
    result = set_policy(run_berth, {"filesystem": {"read": [path]}}, check=False)
    assert result.returncode == 1 and "filesystem.read: " in result.stderr and why in result.stderr


def test_policy_of_the_service(harness, run_berth):
    policy = harness.new_path("policy.json")
    policy.write_text('{"limits": {"open_files": 99}}')
    harness.start_service(args=["--policy", policy])
    run_berth("create", WORKSPACE, check=True)
    assert run(run_berth, "sh", "-c", "ulimit -Hn", check=True).stdout == "99\n"
    run_berth("create", "--policy", "-", "own", input='{"limits": {"file_size": 4096}}', check=True)
    result = run_berth("exec", "-w", "own", "--", "sh", "-c", "ulimit -Hn; ulimit -Hf", check=True)
    assert result.stdout == "99\n8\n"


@pytest.mark.parametrize("policy,says", [
    ('{"netwrok": 1}', "netwrok: there is no such field"),
    ('{"limits": {"memory": "lots"}}', "limits.memory: must be"),
    ('{"require": ["fulll"]}', "require: fulll: there is no such level or mechanism"),
    ("{", "line 1, column 1: not valid JSON"),
])
def test_policy_that_is_none(run_berth, service, policy, says):
    result = run_berth("create", "--policy", "-", "x", input=policy)
    assert (result.returncode, result.stdout) == (1, "")
    assert f"x: standard input: {says}" in result.stderr
    assert run_berth("ls", "-q", check=True).stdout == ""


def test_policy_is_for_new_workspaces(run_berth, service):
    run_berth("create", "x", check=True)
    result = run_berth("create", "--policy", "-", "x", input="{}")
    assert result.returncode == 1
    assert "exists, and keeps the policy it was made with" in result.stderr


@pytest.mark.parametrize("without,policy,says", [
    ("pid-namespace,landlock", {}, "filesystem: nothing here keeps commands to their workspace"),
    ("pid-namespace,seccomp", {}, "network: nothing here keeps commands from it"),
    ("net-namespace", {"network": {"allow": ["a.example:443"]}},
     "network.allow: needs a network namespace: taken away"),
    ("landlock", {"require": ["full", "landlock"]}, "require: landlock: taken away"),
    ("net-namespace", {"require": ["full"]}, "require: full: this machine has no-userns"),
    ("cgroup", {"limits": {"memory": "1G"}}, "limits.memory: "),
    ("", {"limits": {"cpu": 1}}, "limits.cpu: "),
    ("", {"limits": {"disk": "1G"}}, "limits.disk: needs project quotas on the file system of the service's directory"),
    ("", {"limits": {"files": 1000}}, "limits.files: needs project quotas"),
    ("seccomp", {"limits": {"disk": "1G"}}, "limits.disk: nothing here keeps commands from changing what a quota"),
])
def test_what_cannot_be_had_is_refused(confined, run_berth, without, policy, says):
    confined(without, policy)
    result = run(run_berth, "true")
    assert result.returncode == 125
    assert result.stderr.startswith(f"berth: not started: confine: {says}"), result.stderr
    told = measured(run_berth, check=False)
    assert told["refused"].startswith(says) and "measured" not in told


@pytest.mark.parametrize("path", ["{root}", "{root}/..", "/", "{root}/workspaces/work", "{link}"])
def test_the_services_directory_is_not_to_be_read(harness, run_berth, path):
    service = harness.start_service()
    link = harness.new_path("link")
    link.symlink_to(service.root)
    path = os.path.normpath(path.format(root=service.root, link=link))
    run_berth("create", "--policy", "-", WORKSPACE, check=True,
              input=json.dumps({"filesystem": {"read": [path]}}))
    result = run(run_berth, "true")
    assert result.returncode == 125
    assert result.stderr.startswith(
        f"berth: not started: confine: filesystem.read: {path}: the service's own directory")


def test_host_is_what_the_service_sees(confined, run_berth, tmp_path):
    confined("pid-namespace,landlock,seccomp", {"filesystem": "host", "network": "host"})
    (tmp_path / "file").write_text("there\n")
    assert run(run_berth, "cat", tmp_path / "file", check=True).stdout == "there\n"


# --- widened from outside --------------------------------------------------------------------

WIDENED = {
    "interface": (["ip", "link", "add", "type", "veth"], "-n", "the number of network interfaces"),
    "renamed": (["ip", "link", "set", "lo", "name", "lo0"], "-n", "the network interfaces"),
    "mount": (["mount", "-t", "tmpfs", "none", "/run"], "-m", "the number of mounts"),
    "remount": (["mount", "-o", "remount,bind,rw", "/usr"], "-m", "the mounts"),
}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can enter a sandbox from outside")
@pytest.mark.parametrize("how", WIDENED)
def test_widened_sandbox_is_fenced(confined, run_berth, how):
    service = confined()
    run(run_berth, "true", check=True)
    command, into, says = WIDENED[how]
    if how == "renamed":
        subprocess.run(["nsenter", "-t", str(sandbox_init(service)), "-n", "ip", "link", "set", "lo",
                        "down"], check=True)
    subprocess.run(["nsenter", "-t", str(sandbox_init(service)), into, *command], check=True)
    assert measured(run_berth, check=False)["measured"]["changed"] == says
    result = run(run_berth, "touch", "ran")
    assert (result.returncode, result.stderr) == (
        125, f"berth: not started: attest: what holds the workspace's commands was changed: {says}\n")
    # From now on nothing is started, whatever is put right, by whichever keeper.
    again = run(run_berth, "touch", "ran")
    assert again.returncode == 125
    assert again.stderr.startswith("berth: not started: attest: the workspace is fenced: what holds")
    assert not (service.root / "workspaces" / WORKSPACE / "tree" / "ran").exists()
    assert f"{WORKSPACE} is fenced: " in (service.root / "exec" / ".log").read_text()
    assert "fenced" in run_berth("policy", WORKSPACE).stdout
    run_berth("policy", "--lift", WORKSPACE, check=True)
    run(run_berth, "true", check=True)
    assert "changed" not in measured(run_berth)["measured"]
    result = run_berth("policy", "--lift", WORKSPACE)
    assert (result.returncode, "is not fenced" in result.stderr) == (1, True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can enter a sandbox from outside")
def test_a_fence_is_seen_and_outlives_everything(harness, run_berth):
    """By the caller, in the logs, and by who asks for the state; a keeper that begins anew, and a service
    that does, know of it."""
    audit = harness.new_path("audit.log")
    service = harness.start_service(args=["--audit-log", audit])
    run_berth("create", WORKSPACE, check=True)
    assert json.loads(run_berth("status", "--json", check=True).stdout)["service"]["fenced"] == []
    run(run_berth, "true", check=True)
    subprocess.run(["nsenter", "-t", str(sandbox_init(service)), "-n", "ip", "link", "add", "type", "veth"],
                   check=True)
    assert run(run_berth, "true").returncode == 125
    why = "what holds the workspace's commands was changed: the number of network interfaces"

    def check():
        fence, = json.loads(run_berth("status", "--json", check=True).stdout)["service"]["fenced"]
        assert (fence["workspace"], fence["why"]) == (WORKSPACE, why) and fence["since"] > 1700000000
        assert f"  FENCED: {WORKSPACE}: {why}" in run_berth("status", check=True).stdout
        result = run(run_berth, "true")
        assert (result.returncode, f"the workspace is fenced: {why}" in result.stderr) == (125, True)
    check()
    # A new keeper makes a new sandbox, in which nothing has been changed.
    service.keeper().kill()
    check()
    service.keeper().stop()
    service = service.restart()
    check()
    doctor = run_berth("doctor")
    assert (doctor.returncode, f"workspace {WORKSPACE} is fenced: {why}" in doctor.stdout) == (1, True)
    told = [line["text"] for line in map(json.loads, audit.read_text().splitlines())
            if line["message"] == "EXEC" and line["outcome"] == "not_started"]
    assert told[0] == why and told[1].startswith(f"the workspace is fenced: {why}")
    run_berth("policy", "--lift", WORKSPACE, check=True)
    run(run_berth, "true", check=True)
    assert "FENCED" not in run_berth("status", check=True).stdout


def test_what_is_missing_is_told(confined, run_berth):
    """By doctor and by refusals, with the controller's name."""
    confined("net-namespace,cgroup", {"limits": {"pids": 10}})
    says = 'limits.pids: needs the cgroup controller "pids": taken away'
    assert run(run_berth, "true").stderr == f"berth: not started: confine: {says}\n"
    run_berth("policy", "--set", "-", WORKSPACE, input='{"limits": {"pids": null}}', check=True)
    result = run_berth("exec", "-w", WORKSPACE, "--memory", "100M", "--", "true")
    assert result.stderr == ('berth: not started: confine: limits.memory: needs the cgroup controller "memory": '
                             "taken away\n")
    text = run_berth("doctor").stdout
    assert "commands are confined at the level no-userns alone" in text
    # What is missing for the same reason is in one line.
    missing, = re.findall(r"missing is (.*): taken away", text)
    assert "net-namespace" in missing.split(", "), text
    assert f"limits of pids: {says}" in text
    assert "at the level no-userns" in run_berth("status", check=True).stdout


MOVED = {"network": 0x40000000, "mount": 0x20000, "uts": 0x4000000}


@pytest.mark.skipif(not inject.available(), reason="a process is moved by tracing it")
@pytest.mark.parametrize("which", MOVED)
def test_a_sandbox_that_was_moved_is_fenced(confined, run_berth, which):
    """Its init leaves a namespace that it was made in; commands, which join it, would run elsewhere."""
    service = confined()
    run(run_berth, "sh", "-c", "sleep 60 & echo $!", check=True)
    with inject.held(sandbox_init(service)) as init:
        assert init.call("unshare", MOVED[which]) == 0
    says = f"what holds the workspace's commands was changed: the {which} namespace"
    result = run(run_berth, "touch", "ran")
    assert (result.returncode, result.stderr) == (125, f"berth: not started: attest: {says}\n")
    fence, = json.loads(run_berth("status", "--json", check=True).stdout)["service"]["fenced"]
    assert fence["why"] == says
    # It is not lifted as long as something lives that is held as nobody knows.
    result = run_berth("policy", "--lift", WORKSPACE)
    assert (result.returncode, "commands of the workspace live" in result.stderr) == (1, True)
    for command in json.loads(run_berth("ps", "--json", check=True).stdout):
        run_berth("kill", "-w", WORKSPACE, command["id"])
    wait_until(lambda: run_berth("policy", "--lift", WORKSPACE).returncode == 0, what="lifting the fence")
    run(run_berth, "true", check=True)


INTO = r"""
import ctypes, errno, json, os, sys
pid = next(int(name) for name in os.listdir("/proc") if name.isdigit() and open(f"/proc/{name}/comm").read() == "sleep\n")
libc = ctypes.CDLL(None, use_errno=True)
def attempt(action):
    try:
        action()
        return "done"
    except OSError as error:
        return errno.errorcode[error.errno]
def trace(request):
    if libc.ptrace(request, pid, 0, 0) < 0:
        raise OSError(ctypes.get_errno(), "")
print(json.dumps({name: attempt(lambda: action()) for name, action in {
    "attach": lambda: trace(16), "seize": lambda: trace(0x4206),
    "memory": lambda: open(f"/proc/{pid}/mem", "rb"), "environment": lambda: open(f"/proc/{pid}/environ").read(),
    "root": lambda: os.listdir(f"/proc/{pid}/root"), "directory": lambda: os.listdir(f"/proc/{pid}/cwd"),
    "descriptor": lambda: os.readlink(f"/proc/{pid}/fd/0"),
    "namespace": lambda: os.readlink(f"/proc/{pid}/ns/net")}.items()}))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can enter a sandbox from outside")
@pytest.mark.parametrize("without", ["", "landlock"])
def test_a_process_from_outside_gives_commands_nothing(confined, run_berth, without):
    """Somebody enters the sandbox with all that he may do, and a descriptor of the machine's root: commands
    see him, and that is all. It is no wider for that, and not fenced."""
    service = confined(without)
    run(run_berth, "true", check=True)
    entered = subprocess.Popen(["nsenter", "-t", str(sandbox_init(service)), "-p", "-m", "-n", "-i", "-u",
                                "sleep", "100"])
    try:
        def is_in():
            return "sleep" in run(run_berth, "sh", "-c", "cat /proc/[0-9]*/comm", check=True).stdout
        wait_until(is_in, what="the process inside")
        found = json.loads(run(run_berth, "/usr/bin/python3", "-c", INTO, check=True).stdout)
        assert found == {**dict.fromkeys(found, "EACCES"), "attach": "EPERM", "seize": "EPERM"}
        assert "changed" not in measured(run_berth)["measured"]
    finally:
        subprocess.run(["pkill", "-P", str(entered.pid)], check=False)
        entered.terminate()
        entered.wait(20)

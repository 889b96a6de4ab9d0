"""What the service could do if somebody had taken it over: tried in its own name, from outside."""

import json
import os
import re
import signal
import socket
import struct
from pathlib import Path

import pytest

from lib import inject, kernel_caches, raw
from lib.harness import started_by, wait_until
from lib.http_client import Http

pytestmark = pytest.mark.skipif(not inject.available(), reason="needs root, on x86-64")

PROT_READ, PROT_EXEC, MAP_PRIVATE, MAP_ANONYMOUS = 1, 4, 2, 32
MKNOD_CHARACTER = 0o020600
SIGCHLD = 17
BOUNDS = ["service-capabilities", "service-no-new-privs", "service-landlock", "service-seccomp"]
NOTHING = b"/no/such/program"


def attempts(root):
    """name: (the bound that stops it, the errno then, without it, the call)."""
    page = (PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
    return {
        # files
        "shadow": ("service-landlock", "EACCES", "", ("open", b"/etc/shadow", os.O_RDONLY)),
        "another process": ("service-landlock", "EACCES", None, ("open", b"/proc/1/environ", os.O_RDONLY)),
        "the kernel's settings": ("service-landlock", "EACCES", "", ("open", b"/proc/sys/kernel/core_pattern",
                                                                     os.O_WRONLY)),
        "write beside the root": ("service-landlock", "EACCES", "", (
            "open", bytes(root.parent / "new"), os.O_WRONLY | os.O_CREAT, 0o600)),
        "directory beside the root": ("service-landlock", "EACCES", "", ("mkdir", bytes(root.parent / "d"), 0o700)),
        # programs and processes
        "execve": ("service-seccomp", "EPERM", "ENOENT", ("execve", NOTHING, 0, 0)),
        "execveat": ("service-seccomp", "EPERM", "ENOENT", ("execveat", -100, NOTHING, 0, 0, 0)),
        "clone": ("service-seccomp", "EPERM", "EINVAL", ("clone", 0x20000 | 0x200, 0)),  # NEWNS with FS
        "clone3": ("service-seccomp", "ENOSYS", "EINVAL", ("clone3", 0, 0)),
        "kill": ("service-seccomp", "EPERM", "", ("kill", os.getpid(), 0)),
        "tgkill": ("service-seccomp", "ENOSYS", "", ("tgkill", os.getpid(), os.getpid(), 0)),
        # sockets
        "internet": ("service-seccomp", "EPERM", "", ("socket", socket.AF_INET, socket.SOCK_STREAM, 0)),
        "unix": ("service-seccomp", "EPERM", "", ("socket", socket.AF_UNIX, socket.SOCK_STREAM, 0)),
        "packet": ("service-seccomp", "EPERM", "", ("socket", socket.AF_PACKET, socket.SOCK_RAW, 0)),
        "connect": ("service-seccomp", "EPERM", "EBADF", ("connect", -1, 0, 0)),
        "bind": ("service-seccomp", "EPERM", "EBADF", ("bind", -1, 0, 0)),
        # memory
        "code": ("service-seccomp", "EPERM", "", ("mmap", 0, 4096, *page)),
        "memfd": ("service-seccomp", "EPERM", "", ("memfd_create", b"x", 0)),
        # the kernel
        "mount": ("service-seccomp", "EPERM", "EFAULT", ("mount", 0, 8, 0, 0, 0)),
        "unshare": ("service-seccomp", "EPERM", "EINVAL", ("unshare", 1)),
        "setns": ("service-seccomp", "EPERM", "EBADF", ("setns", -1, 0)),
        "bpf": ("service-seccomp", "EPERM", "EINVAL", ("bpf", 999, 0, 0)),
        "keys": ("service-seccomp", "EPERM", "EFAULT", ("add_key", 0, 0, 0, 0, 0)),
        "module": ("service-seccomp", "EPERM", None, ("init_module", 0, 0, 0)),
        "fault": ("service-seccomp", "EPERM", None, ("userfaultfd", -1)),
        "ring": ("service-seccomp", "EPERM", None, ("io_uring_setup", 0, 0)),
        "perf": ("service-seccomp", "EPERM", "EFAULT", ("perf_event_open", 0, 0, -1, -1, 0)),
        "personality": ("service-seccomp", "ENOSYS", "", ("personality", 0xffffffff)),
        "terminal": ("service-seccomp", "ENOSYS", "EBADF", ("ioctl", -1, 0x5412, 0)),
    }


def try_all(service, names=None):
    """What became of each attempt, as an errno's name."""
    found = {}
    with inject.held(service.pid) as thread:
        # What it does all the time, to see that calls are made: its own number, and a file of the root's.
        assert thread.call("getpid") == service.pid
        descriptor = thread.call("open", bytes(service.root / "service.json"), os.O_RDONLY)
        assert descriptor >= 0
        assert thread.call("close", descriptor) == 0
        for name, (_, _, _, call) in attempts(service.root).items():
            if names is None or name in names:
                result = thread.call(*call)
                found[name] = inject.name_of(result)
                if result >= 0 and call[0] in ("open", "socket", "memfd_create"):
                    thread.call("close", result)
    return found


def confinement_of(service):
    with raw.Stream(service.url) as stream:
        return stream.status()["service_confinement"]


def status_of(pid):
    """Of every thread, since what is not taken by each is missing somewhere."""
    found = set()
    for task in os.listdir(f"/proc/{pid}/task"):
        text = Path(f"/proc/{pid}/task/{task}/status").read_text()
        found.add(tuple(re.search(rf"^{word}:\s+(\S+)$", text, re.MULTILINE).group(1)
                        for word in ("NoNewPrivs", "Seccomp", "CapPrm", "CapEff", "CapBnd", "CapAmb")))
    return found


def serves(harness):
    """A file made, read and removed, and a command."""
    service = harness.services[-1]
    harness.run_berth("create", "w", check=True)
    assert harness.run_berth("exec", "-w", "w", "--", "sh", "-c", "echo x > f; cat f", check=True).stdout == "x\n"
    assert (service.root / "workspaces/w/tree/f").read_text() == "x\n"


def test_what_a_taken_service_cannot_do(harness):
    service = harness.start_service(tls=True, args=["--confine", "require"])
    expected = {name: error for name, (_, error, _, _) in attempts(service.root).items()}
    assert try_all(service) == expected
    assert {words["holds"] for name, words in confinement_of(service).items() if name != "mode"} == {True}
    # CHOWN, DAC_OVERRIDE, FOWNER, FSETID, SETGID, SETUID, MKNOD, LEASE, SETFCAP, and no others to be had.
    kept = f"{1 | 1 << 1 | 1 << 3 | 1 << 4 | 1 << 6 | 1 << 7 | 1 << 27 | 1 << 28 | 1 << 31:016x}"
    assert status_of(service.pid) == {("1", "2", kept, kept, "0" * 16, "0" * 16)}
    assert "NOT CONFINED" not in harness.run_berth("status", check=True).stdout
    assert "the service itself is confined" in harness.run_berth("doctor").stdout
    serves(harness)
    # The keeper is the starter's child, and is not held by any of it.
    assert ("0", "0") == tuple(re.search(rf"^{word}:\s+(\S+)$", Path(
        f"/proc/{service.keeper().pid}/status").read_text(), re.MULTILINE).group(1)
                               for word in ("NoNewPrivs", "Seccomp"))


@pytest.mark.parametrize("without", BOUNDS)
def test_each_bound_is_what_stops_it(harness, without):
    """Without no_new_privs there are none of the two that need it."""
    missing = BOUNDS[1:] if without == "service-no-new-privs" else [without]
    service = harness.start_service(env={**harness.env, "BERTH_WITHOUT": without})
    told = confinement_of(service)
    assert [name for name in BOUNDS if not told[name]["holds"]] == missing
    assert f"not confined by {without}: taken away" in service.log
    assert f"NOT CONFINED by {without}: taken away" in harness.run_berth("status", check=True).stdout
    assert f"itself is not confined by {without}: taken away" in harness.run_berth("doctor").stdout
    found = try_all(service)
    for name, (bound, error, otherwise, _) in attempts(service.root).items():
        if bound not in missing:
            assert (name, found[name]) == (name, error)
        elif ALSO.get(name, bound) in missing and otherwise is not None:
            assert (name, found[name]) == (name, otherwise)
        elif name in ALSO:
            assert (name, found[name]) == (name, "EPERM")
    (threads,) = status_of(service.pid)
    full = int(threads[2], 16) & 1 << 21  # CAP_SYS_ADMIN
    assert bool(full) == ("service-capabilities" in missing)
    serves(harness)


# Refused by two.
ALSO = {"kill": "service-landlock", "tgkill": "service-landlock", "packet": "service-capabilities"}


def test_what_it_knows_of_itself_lasts(harness):
    """The kernel forgets directories of /proc, and with them the rule that was made for one."""
    service = harness.start_service()
    kernel_caches.drop("2")
    with raw.Stream(service.url) as stream:
        assert stream.status()["resident_bytes"] > 0


def test_confine_off_and_require(harness):
    service = harness.start_service(args=["--confine", "off"])
    told = confinement_of(service)
    assert told["mode"] == "off" and not any(told[name]["holds"] for name in BOUNDS)
    assert all(f"not confined by {name}: turned off" in service.log for name in BOUNDS)
    assert try_all(service, ["shadow", "internet"]) == {"shadow": "", "internet": ""}
    refused = harness.run([harness.program("berthd"), "--root", harness.new_path("other"), "--confine", "require"],
                          env={**harness.env, "BERTH_WITHOUT": "service-landlock"})
    assert refused.returncode == 1
    assert "cannot confine itself (service-landlock: taken away)" in refused.stderr


def test_files_beside_the_root_are_read_again(harness):
    """The access file is replaced, and the audit log moved away; neither lies in the root."""
    access = harness.access_file({"id": "one", "secret": "first"})
    audit = harness.new_path("audit")
    service = harness.start_service(tls=True, access_file=access, args=["--audit-log", audit, "--confine", "require"])
    assert audit.read_text() == ""
    replaced = harness.access_file({"id": "two", "secret": "second"})
    os.replace(replaced, access)
    with raw.Stream(service.tls_url, token="second", ca=harness.certificates.ca) as stream:
        assert stream.status()["access"]["error"] is None
    assert raw.ask(service.tls_url, raw.request(token="first"), ca=harness.certificates.ca).status == 401
    audit.rename(audit.with_suffix(".old"))
    os.kill(service.popen.pid, signal.SIGHUP)
    service.wait_for_line("audit log .*: opened again")
    assert audit.exists()


# server/errand.h
ERRAND, SOCKET = struct.Struct("<IIi"), 3
KEEPER, ACCESS_FILE, AUDIT_LOG, GATEWAY, ANSWER = 3, 4, 5, 6, 7


def asked(thread, kind, text=b""):
    """What the starter answers: an errno's name, and why; "" when it sends a descriptor."""
    message = ERRAND.pack(kind, 77, 0) + text + b"\0"
    assert thread.call("sendto", SOCKET, message, len(message)) == len(message)
    answer = thread.received(SOCKET, 4096)
    found, serial, number = ERRAND.unpack_from(answer)
    assert (found, serial) == (ANSWER, 77)
    return inject.name_of(number), answer[ERRAND.size:-1].decode()


def test_what_the_starter_does_for_a_taken_service(harness):
    """A keeper of its own name, and the files of its settings; nothing else, and it goes on."""
    service = harness.start_service()
    with raw.Stream(service.url) as stream:
        stream.ping()
    ours = "berth-" + json.loads((service.root / "service.json").read_text())["service_id"]
    with inject.held(service.pid) as thread:
        for name in (b"", b"berth-", b"../../tmp/x", ours.encode()[:-1], ours.encode() + b"/x", b"x" * 3000,
                     ours.upper().encode()):
            assert asked(thread, KEEPER, name) == ("EINVAL", "this is no name of a service")
        assert asked(thread, ACCESS_FILE, b"/etc/shadow") == ("ENOENT", "No such file or directory")
        assert asked(thread, AUDIT_LOG, b"/etc/cron.d/x") == ("ENOENT", "No such file or directory")
        assert asked(thread, 99) == ("EINVAL", "")
        # A stream to the gateway, which is nobody's: what it says there is told to no service.
        assert asked(thread, GATEWAY, b"0" * 32) == ("", "")
        # Cut, without an end, too long: not answered, and not the starter's end.
        for message in (b"\3", ERRAND.pack(KEEPER, 1, 0), ERRAND.pack(KEEPER, 1, 0) + b"x", b"\3" * 8000):
            assert thread.call("sendto", SOCKET, message, len(message)) == len(message)
        assert asked(thread, KEEPER, ours.encode()) == ("", "")
    assert not Path("/etc/cron.d/x").exists()
    serves(harness)


# --- what reads HTTP ---------------------------------------------------------------------------------

GATEWAY_ATTEMPTS = {
    "a file that all may read": ("gateway-landlock", "EACCES", "", ("open", b"/etc/passwd", os.O_RDONLY)),
    "a file of the root's": (None, "EACCES", None, ("open", b"service.json", os.O_RDONLY)),
    "a new file": ("gateway-landlock", "EACCES", "", ("open", b"/tmp/http-attempt", os.O_WRONLY | os.O_CREAT, 0o600)),
    "a program": ("gateway-seccomp", "EPERM", "ENOENT", ("execve", NOTHING, 0, 0)),
    "a process": ("gateway-seccomp", "EPERM", "EINVAL", ("clone", 0x20000 | 0x200, 0)),
    "unix socket": ("gateway-seccomp", "EPERM", "", ("socket", socket.AF_UNIX, socket.SOCK_STREAM, 0)),
    "internet": ("gateway-seccomp", "EPERM", "", ("socket", socket.AF_INET, socket.SOCK_STREAM, 0)),
    "pair": ("gateway-seccomp", "EPERM", "EFAULT", ("socketpair", socket.AF_UNIX, socket.SOCK_STREAM, 0, 8)),
    "trace": ("gateway-seccomp", "EPERM", "ESRCH", ("kill", 999999999, 0)),
}


def worker_of(service):
    """The process that answers the one connection that there is."""
    def find():
        gateways = [pid for pid in started_by(service.popen.pid)
                    if Path(f"/proc/{pid}/comm").read_text() == "berthd-gateway\n"]
        return gateways and started_by(gateways[0])
    return wait_until(find)[0]


def try_in_worker(harness, without=None):
    service = harness.start_service(env={**harness.env, **({"BERTH_WITHOUT": without} if without else {})})
    found = {}
    with Http(service.url) as http:
        assert http.get("/v1/workspaces").status == 200
        pid = worker_of(service)
        wait_until(lambda: not Path(f"/proc/{pid}/syscall").read_text().startswith("running"))
        with inject.held(pid) as thread:
            for name, (_, _, _, call) in GATEWAY_ATTEMPTS.items():
                result = thread.call(*call)
                found[name] = inject.name_of(result)
                if result >= 0 and call[0] in ("open", "socket"):
                    thread.call("close", result)
        assert http.get("/v1/workspaces").status == 200  # it goes on
    Path("/tmp/http-attempt").unlink(missing_ok=True)
    return found


@pytest.mark.parametrize("without", [None, "gateway-landlock", "gateway-seccomp"])
def test_what_a_taken_gateway_cannot_do(harness, without):
    expected = {name: other if bound == without and without else error
                for name, (bound, error, other, _) in GATEWAY_ATTEMPTS.items()}
    assert try_in_worker(harness, without) == expected

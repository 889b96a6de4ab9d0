"""The machine crashes: whatever was not forced to the disk is gone. The filesystem of the service is told to stop as
if it had, and what is in its journal is all that is found again."""

import contextlib
import ctypes
import fcntl
import os
import subprocess
import time
from pathlib import Path

import pytest

from lib.berthwire import CallError
from lib.exec_client import DETACH, KEEP, STDIN, WORKSPACE, Call, ExecClient
from lib.harness import wait_until

pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(120)]

DURABLE = 32
SHUTDOWN, NOLOGFLUSH = 0x8004587d, (2).to_bytes(4, "little")  # ext4's, and XFS's


class Disk:
    """A filesystem whose journal is written when somebody waits for it, and not by itself."""

    def __init__(self, harness):
        self.harness, self.point = harness, harness.new_path("disk")
        self.image = harness.new_path("image")
        self.point.mkdir()
        with open(self.image, "wb") as file:
            file.truncate(64 << 20)
        self.run("mkfs.ext4", "-q", self.image)
        self.mount()

    @staticmethod
    def run(*argv):
        subprocess.run(argv, check=True, capture_output=True, timeout=30)

    def mount(self):
        self.run("mount", "-o", "loop,commit=300", self.image, self.point)

    def sync(self):
        self.run("sync", "-f", self.point)

    def crash(self):
        directory = os.open(self.point, os.O_RDONLY)
        fcntl.ioctl(directory, SHUTDOWN, NOLOGFLUSH)
        os.close(directory)

    def start_again(self):
        """From what is on it now. A copy, since somebody may still have the other one open."""
        self.close()
        image = self.harness.new_path("image")
        self.run("cp", "--sparse=always", self.image, image)
        self.image = image
        self.mount()

    def close(self):
        self.run("umount", "-l", self.point)


@pytest.fixture
def disk(harness):
    disk = Disk(harness)
    yield disk
    for thing in reversed(harness.owned):
        with contextlib.suppress(Exception):
            thing.stop()
    disk.close()


@pytest.fixture
def crashed(harness, disk, run_berth):
    """crashed(prepare) gives the service that is there after the crash: prepare has a client of the one before."""
    def crash(prepare):
        service = harness.start_service(root=disk.point / "root")
        run_berth("create", WORKSPACE, check=True)
        disk.sync()
        with ExecClient(service.socket) as client:
            prepare(client)
            keeper = service.keeper()
            disk.crash()
        service.kill()
        keeper.kill()
        disk.start_again()
        return service.restart()
    return crash


def run_and_wait(client, argv, exec_id, flags):
    client.wait_verdict(client.start(WORKSPACE, argv, flags=flags, exec_id=exec_id))
    return client.wait_verdict(client.attach(WORKSPACE, exec_id, 4))


@pytest.mark.parametrize("flags", [DURABLE, DETACH, KEEP], ids=["durable", "detached", "kept"])
def test_what_was_told_is_still_true(crashed, disk, flags):
    argv = ["sh", "-c", "seq 100000; echo e >&2; exit 7"]

    def prepare(client):
        told = run_and_wait(client, argv, "ended", flags)
        assert (told.verdict, told.code) == ("exited", 7)
        client.wait_started(client.start(WORKSPACE, ["sleep", "600"], flags=flags, exec_id="runs"))
        # What nobody has asked to be forced to the disk is gone indeed.
        assert run_and_wait(client, ["true"], "lost", 0).verdict == "exited"

    with ExecClient(crashed(prepare).socket) as client:
        call = client.start(WORKSPACE, argv, exec_id="ended")
        verdict = client.wait(call)
        assert (verdict.verdict, verdict.code, call.attached) == ("exited", 7, True)
        assert bytes(call.output[1]) == b"".join(b"%d\n" % i for i in range(1, 100001))
        assert bytes(call.output[2]) == b"e\n"
        call = client.start(WORKSPACE, ["sleep", "600"], exec_id="runs")
        verdict = client.wait_verdict(call)
        assert (verdict.verdict, call.attached) == ("unknown", True) and "ended while it ran" in verdict.text
        with pytest.raises(CallError) as gone:
            client.wait_verdict(client.attach(WORKSPACE, "lost"))
        assert gone.value.errno == 2


def test_nothing_runs_twice_by_the_command_line(crashed, disk, run_berth):
    """An ID that was chosen is durable, whether it is attached to or not."""
    command = ["exec", "-w", WORKSPACE, "--id", "mine", "--", "sh", "-c", "echo x >> again; exit 3"]

    def prepare(_):
        assert run_berth(*command).returncode == 3

    crashed(prepare)
    assert run_berth(*command).returncode == 3
    again = disk.point / "root/workspaces" / WORKSPACE / "tree/again"
    assert not again.exists() or again.read_text() in ("", "x\n")  # the crash may have taken it


# --- a slow disk ---------------------------------------------------------------------------

LIBC = ctypes.CDLL(None, use_errno=True)
PTRACE_DETACH, PTRACE_SEIZE, PTRACE_INTERRUPT = 17, 0x4206, 0x4207


def ptrace(request, thread):
    assert LIBC.ptrace(ctypes.c_long(request), ctypes.c_long(thread), None, None) == 0, os.strerror(ctypes.get_errno())


@contextlib.contextmanager
def disk_that_hangs(keeper):
    """The keeper's other thread, which waits for the disk, gets no further."""
    tasks = Path(f"/proc/{keeper.pid}/task")
    thread, = (int(task.name) for task in tasks.iterdir() if (task / "comm").read_text() == "berth-disk\n")
    ptrace(PTRACE_SEIZE, thread)
    ptrace(PTRACE_INTERRUPT, thread)
    os.waitpid(thread, 0x40000000)  # __WALL
    try:
        yield
    finally:
        ptrace(PTRACE_DETACH, thread)


def test_what_waits_for_the_disk_holds_up_nobody_else(client, service, tree):
    argv = ["sh", "-c", "echo x >> ran; exit 4"]
    client.run(WORKSPACE, ["true"], flags=DURABLE, exec_id="first")
    with ExecClient(service.socket) as other:
        with disk_that_hangs(service.keeper()):
            cat = client.start(WORKSPACE, ["cat"], flags=DURABLE | STDIN, exec_id="cat")
            client.input(cat, 0, "some ")
            client.input(cat, 5, "input", end=True)
            call = client.start(WORKSPACE, argv, flags=DURABLE, exec_id="id")
            unwanted = client.start(WORKSPACE, ["touch", "unwanted"], flags=DURABLE, exec_id="unwanted")
            wait_until(lambda: [one.verdict for one in other.list()].count("running") == 3,
                       what="them, by another connection")
            same = other.start(WORKSPACE, argv, flags=DURABLE, exec_id="id")
            killed = other.connection.request("EXEC_KILL", workspace=WORKSPACE.encode(), id=b"unwanted", signal=0,
                                              grace_ms=0, workspace_flags=0, by=b"me")
            other.calls[killed] = kill = Call(killed)
            assert other.run(WORKSPACE, ["true"]).verdict.code == 0
            assert sorted(one.verdict for one in other.list() if one.id != b"first") == ["exited"] + ["running"] * 3
            time.sleep(0.2)
            assert not call.started and not same.started and list(tree.iterdir()) == []
        assert other.wait(same).code == 4 and same.attached
        while kill.answer is None:
            other.step()
        assert kill.answer["left"] == 0
    with ExecClient(service.socket) as late:
        assert late.wait(late.attach(WORKSPACE, "id")).code == 4
    assert client.wait(call).code == 4 and not call.attached
    assert client.wait(cat).code == 0 and bytes(cat.output[1]) == b"some input"
    verdict = client.wait(unwanted)
    assert (verdict.verdict, verdict.stage, verdict.text) == ("not_started", "request", "killed before it started, by me")
    assert [path.name for path in tree.iterdir()] == ["ran"] and (tree / "ran").read_text() == "x\n"


def test_verdict_on_its_way_to_the_disk_is_not_told(client, service, tree):
    call = client.wait_started(client.start(WORKSPACE, ["sh", "-c", "sleep 0.3; touch ended; exit 6"], flags=DURABLE,
                                            exec_id="id"))
    with ExecClient(service.socket) as other:
        with disk_that_hangs(service.keeper()):
            wait_until(lambda: (tree / "ended").exists(), what="the command's end")
            time.sleep(0.5)
            assert other.list(exec_id="id")[0].verdict == "running"
            now = other.attach(WORKSPACE, "id", 1)  # its output so far, and how it goes
            assert other.run(WORKSPACE, ["true"]).verdict.code == 0
            assert now.started and now.verdict is None and call.verdict is None
        assert other.wait_verdict(now).code == 6
    assert client.wait(call).code == 6


def test_verdict_on_its_way_to_the_disk_is_told_though_the_workspace_is_removed(client, service, tree, harness):
    call = client.wait_started(client.start(WORKSPACE, ["sh", "-c", "sleep 60"], flags=DURABLE, exec_id="id"))
    with ExecClient(service.socket) as other:
        with disk_that_hangs(service.keeper()):
            removal = subprocess.Popen([harness.program("berth"), "rm", "-f", WORKSPACE], env=service.client_env(),
                                       stdin=subprocess.DEVNULL)
            wait_until(lambda: other.list(exec_id="id")[0].processes == 0, what="the command's end")
            time.sleep(0.3)
            assert removal.poll() is None and call.verdict is None
        verdict = client.wait(call)
    assert (verdict.verdict, verdict.text) == ("killed", "because its workspace is removed")
    assert removal.wait(30) == 0

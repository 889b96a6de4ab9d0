"""What reads the network crashes, and is started again: nobody gets a wrong answer."""

import os
import re
import signal
import subprocess
import threading
import time

import pytest

from lib import raw
from lib.harness import wait_until

RECORD = 64


@pytest.fixture
def service(harness):
    # A sanitiser would take the signal for a finding of its own.
    env = {**harness.env, "ASAN_OPTIONS": harness.env["ASAN_OPTIONS"] + ":handle_segv=0:handle_abort=0"}
    return harness.start_service(tls=True, env=env)


def crash(service, number=signal.SIGSEGV):
    """Ends the process that serves; returns when another one does, with the seconds that took."""
    before = service.pid
    service.expected_crashes += 1
    count = service.log.count("listening on")
    begin = time.monotonic()
    os.kill(before, number)
    wait_until(lambda: service.log.count("listening on") > count, what="another service", interval=0.001)
    with raw.Stream(service.url) as stream:
        stream.ping()
    took = time.monotonic() - begin
    assert service.pid != before and service.running()
    return took


class Writer(threading.Thread):
    """Appends numbered records, each forced, and reads them back. What was acknowledged is kept in
    `acknowledged`; an error is an error of that call alone."""

    def __init__(self, path, other):
        super().__init__(daemon=True)
        self.path, self.other = path, other
        self.acknowledged, self.errors, self.wrong = 0, [], []
        self.stopping = False
        self.start()

    def run(self):
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        while not self.stopping:
            record = f"{self.acknowledged:{RECORD}}".encode()
            try:
                os.pwrite(descriptor, record, self.acknowledged * RECORD)
                os.fsync(descriptor)
                self.acknowledged += 1
                self.look()
            except OSError as error:
                self.errors.append(error.errno)
                time.sleep(0.01)
        os.close(descriptor)

    def look(self):
        """The other mount has what was acknowledged."""
        count = self.acknowledged
        data = self.other.read_bytes()
        if data[:count * RECORD] != b"".join(f"{i:{RECORD}}".encode() for i in range(count)):
            self.wrong.append((count, len(data)))

    def end(self):
        self.stopping = True
        self.join(30)
        assert not self.is_alive()


def test_crash_under_load(harness, service, start_mount):
    """Two mounts, four writers that check each other's files, and commands that go on."""
    harness.run_berth("create", "w", check=True)
    mounts = [start_mount(service, workspace="w"), start_mount(service, url=service.tls_url, workspace="w")]
    pairs = [(mounts[i % 2].path / f"f{i}", mounts[1 - i % 2].path / f"f{i}") for i in range(4)]
    (mounts[0].path / "open").write_bytes(b"0123456789")
    inode = os.stat(mounts[1].path / "open").st_ino
    commands = [subprocess.Popen(
        [harness.program("berth"), "exec", "-w", "w", "--", "sh", "-c",
         f"touch on{n}; for i in $(seq 60); do echo $i; sleep 0.1; done; echo ran >> ran{n}; exit {n + 3}"],
        env=service.client_env(), stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, cwd=harness.directory) for n in range(2)]
    with open(mounts[1].path / "open", "r+b", buffering=0) as kept:
        writers = [Writer(*pair) for pair in pairs]
        wait_until(lambda: all((mounts[0].path / f"on{n}").exists() for n in range(2)), 30, "commands")
        keeper = service.keeper()
        for _ in range(2):
            at = [writer.acknowledged for writer in writers]
            wait_until(lambda at=at: all(w.acknowledged > a + 3 for w, a in zip(writers, at)), 30, "writers")
            crash(service)
        at = [writer.acknowledged for writer in writers]
        wait_until(lambda: all(w.acknowledged > a + 3 for w, a in zip(writers, at)), 60, "writers after it")
        # As after any restart of the service: found again by what it is, not by its name.
        assert os.pread(kept.fileno(), 4, 2) == b"2345"
        assert os.fstat(kept.fileno()).st_ino == inode
        for writer in writers:
            writer.end()
    for writer, (_, path) in zip(writers, pairs):
        assert writer.wrong == []
        writer.look()
        assert writer.wrong == [] and writer.acknowledged > 9
    for n, command in enumerate(commands):
        out, err = command.communicate(timeout=60)
        assert command.returncode == n + 3, err
        assert out.split() == [str(i).encode() for i in range(1, 61)]
        assert (service.root / f"workspaces/w/tree/ran{n}").read_text() == "ran\n"
    assert service.keeper().pid == keeper.pid
    with raw.Stream(service.url) as stream:
        assert stream.status()["crashes"] == 2
    assert "2 times" in harness.run_berth("doctor").stdout


def test_who_connects_meanwhile_waits(service):
    """The sockets are the starter's: between two services nobody is refused."""
    os.kill(service.popen.pid, signal.SIGSTOP)
    try:
        before = service.pid
        service.expected_crashes += 1
        os.kill(before, signal.SIGKILL)
        wait_until(lambda: not os.path.exists(f"/proc/{before}/exe"), what="its end")
        waiting = [raw.connect(url) for url in (service.url, f"unix:{service.root_socket}")]
    finally:
        os.kill(service.popen.pid, signal.SIGCONT)
    for connection in waiting:
        with raw.Stream(None, connection=connection) as stream:
            stream.ping()


def test_crashes_again_and_again(service):
    """Each time later, and a stop in between is a stop."""
    for _ in range(3):
        crash(service, signal.SIGABRT)
    service.expected_crashes += 1
    os.kill(service.pid, signal.SIGKILL)
    wait_until(lambda: service.log.count("is started again") == 4, what="its end")
    service.signal(signal.SIGTERM)
    assert service.popen.wait(10) == 0
    assert not os.path.exists(service.socket)
    assert re.search(r"ended by signal 6 \(Aborted\); it is started again", service.log)
    assert service.log.count("listening on unix:" + service.socket) == 4

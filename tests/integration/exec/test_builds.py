"""The service and the process that keeps its commands are of different builds, as after an upgrade while commands
run."""

import fcntl
import os
import re
import socket
import threading

import pytest

from lib.berthwire import Closed, Connection
from lib.exec_client import DETACH, WORKSPACE, ExecClient

pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(120)]


class OtherKeeper:
    """One that knows other messages: it greets, and takes whatever comes as far as it can."""

    def __init__(self, root, agent):
        (root / "exec").mkdir(mode=0o700, exist_ok=True)
        self.lock = os.open(root / "exec/.lock", os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        self.path = root / "exec/.socket"
        self.agent = agent
        self.got = []
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(self.path))
        self.listener.listen(8)
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            self.serve(Connection.socket(sock, None))

    def serve(self, wire):
        try:
            while frame := wire.receive_new():
                self.got.append(frame.name)
                if frame.name == "HELLO":
                    self.hello = frame["agent"]
                    wire.send("WELCOME", frame.tag, version=1, max_payload=0x400000, max_calls=64, window=0x40000,
                              features=0, agent=self.agent)
        except (Closed, OSError):
            pass
        wire.close()

    def close(self):
        os.unlink(self.path)
        self.listener.close()
        os.close(self.lock)


@pytest.mark.parametrize("agent", [b"berth-keeper 0.0.9 protocol 0123456789abcdef", b"berth-keeper 0.0.1"])
def test_older_keeper(service, execute, run_berth, agent):
    """Nothing is asked of it that it might take for something else, and everybody is told why."""
    keeper = OtherKeeper(service.root, agent)
    for refused in execute("touch", "ran"), run_berth("ps"), run_berth("wait", "-w", WORKSPACE, "id"):
        assert refused.returncode != 0 and refused.stdout == ""
        assert f"{agent.decode()} is of another build" in refused.stderr, refused.stderr
        assert "ends soon after the last of them" in refused.stderr
    assert execute("touch", "ran").returncode == 125
    assert set(keeper.got) <= {"HELLO", "GOODBYE"} and keeper.got
    assert re.fullmatch(rb"berthd \S+ protocol [0-9a-f]{16}", keeper.hello)
    keeper.close()
    assert execute("echo", "again").stdout == "again\n"


def test_newer_keeper(client, service):
    """A service of an older build is told by the keeper, which goes on."""
    call = client.start(WORKSPACE, ["sh", "-c", "sleep 1; exit 3"], flags=DETACH, exec_id="runs")
    assert client.wait_verdict(call).verdict == "running"
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(str(service.root / "exec/.socket"))
    other = Connection.socket(sock, 10)
    agent = other.hello(agent=b"berthd 0.0.9 protocol 0123456789abcdef")["agent"]
    assert re.fullmatch(rb"berth-keeper \S+ protocol [0-9a-f]{16}", agent)
    with pytest.raises((Closed, OSError)):
        other.call("EXEC_LIST", workspace=b"", id=b"", after=0, count=0)
    with ExecClient(service.socket) as again:
        assert again.wait_verdict(again.attach(WORKSPACE, "runs", 4)).code == 3

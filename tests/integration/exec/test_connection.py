"""Commands over a connection that is there already: a mount's, or that of a connection holder."""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import threading
import time

import pytest

from lib.exec_client import WORKSPACE
from lib.harness import wait_until


class Here:
    """berth on this machine, by way of a relay to the service."""

    def __init__(self, harness, env):
        self.harness, self.env = harness, env

    def run(self, *argv, options=(), **keywords):
        return self.harness.run_berth("exec", "-w", WORKSPACE, *options, "--", *argv,
                                      env=keywords.pop("env", self.env), **keywords)

    def begin(self, *argv, options=(), **keywords):
        return subprocess.Popen(
            [self.harness.program("berth"), "exec", "-w", WORKSPACE, *options, "--", *argv],
            env=self.env, cwd=self.harness.directory, start_new_session=True,
            **{"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, **keywords})

    def connections(self):
        return json.loads(self.harness.run_berth("connection", "ls", "--json", env=self.env,
                                                 check=True).stdout)


@pytest.fixture
def away(harness, start_service, start_relay):
    """A service behind a relay of 20 ms each way, over http, so that a holder is worth it."""
    service = start_service(http=True)
    harness.run_berth("create", WORKSPACE, check=True, url=service.url)
    relay = start_relay(service.http_url, delay=20)
    here = Here(harness, service.client_env(relay.url))
    here.relay, here.service = relay, service
    return here


def stored(service, name):
    return service.root / "workspaces" / WORKSPACE / "tree" / name


def test_a_warm_command_is_one_round_trip(away):
    assert away.run("sh", "-c", "exit 3").returncode == 3
    holder, = away.connections()
    assert (holder["kind"], holder["connected"], holder["programs"]) == ("holder", True, 0)
    for delay in (0, 20, 80):
        away.relay.delay(delay)
        away.relay.reset_stats()
        for _ in range(3):
            assert away.run("true").returncode == 0
        stats = away.relay.stats()
        sent = {kind: row["frames"] for kind, row in stats["to_server"]["types"].items()}
        sent.pop("PING", None)
        sent.pop("ACK", None)
        sent.pop("EXEC_FORGET", None)  # a notice, after the end
        assert sent == {"EXEC": 3}
        assert stats["round_trips_max"] <= 3 + stats["to_server"]["types"].get("PING", {"frames": 0})["frames"]
    assert len(away.harness.holders()) == 1


def test_a_connection_of_its_own_when_asked_for(away):
    assert away.run("true", options=["--no-persist"]).returncode == 0
    assert away.harness.holders() == []
    assert away.run("true", env={**away.env, "BERTH_PERSIST": "0"}).returncode == 0
    assert away.harness.holders() == []


def test_a_holder_that_nobody_uses_ends(away):
    assert away.run("true", options=["--persist", "1"]).returncode == 0
    assert away.harness.holders()
    wait_until(lambda: not away.harness.holders(), 15, "the holder's end")
    directory = away.harness.short / "run/berth/control"
    assert [path.name for path in directory.iterdir()] == ["lock"]


def test_a_holder_is_stopped(away):
    away.run("true", check=True)
    assert "holder" in away.harness.run_berth("connection", env=away.env, check=True).stdout
    stopped = away.harness.run_berth("connection", "stop", env=away.env, check=True)
    assert stopped.stdout.startswith("ended: holder  pid ") and len(stopped.stdout.splitlines()) == 1
    wait_until(lambda: not away.harness.holders(), what="the holder's end")
    assert away.connections() == []
    assert away.harness.run_berth("connection", "stop", env=away.env, check=True).stdout == ""


def test_everything_passes_through_a_holder(away):
    away.run("true", check=True)
    data = os.urandom(3_000_000)
    result = away.run("cat", options=["-i"], input=data, text=False)
    assert (result.returncode, result.stdout) == (0, data)
    result = away.run("sh", "-c", "echo out; echo err >&2; kill -9 $$")
    assert (result.returncode, result.stdout, result.stderr) == (137, "out\n", "err\n")
    result = away.run("/nowhere/x")
    assert result.returncode == 127
    verdict = json.loads(away.run("sleep", "60", options=["--timeout", "0.2", "--json"]).stdout)
    assert (verdict["verdict"], verdict["exit_status"]) == ("timed_out", 124)
    process = away.begin("sh", "-c", "echo ready; exec sleep 60")
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 130
    process.communicate()
    assert len(away.harness.holders()) == 1


def test_first_commands_at_once_have_one_holder(away):
    started = [away.begin("sh", "-c", f"exit {n + 10}") for n in range(8)]
    assert [process.wait(30) for process in started] == [n + 10 for n in range(8)]
    for process in started:
        process.communicate()
    assert len(away.harness.holders()) == 1
    assert away.connections()[0]["calls"] == 8


def test_another_identity_has_another_connection(away, harness):
    away.run("true", check=True)
    first = away.harness.holders()
    wrong = harness.token_file("wrong")
    result = away.run("true", env={**away.env, "BERTH_TOKEN_FILE": str(wrong)})
    assert result.returncode == 125 and "token" in result.stderr
    # The same name with another content is another token.
    other = harness.new_path("token")
    other.write_bytes(open(away.env["BERTH_TOKEN_FILE"], "rb").read())
    other.chmod(0o600)
    env = {**away.env, "BERTH_TOKEN_FILE": str(other)}
    away.run("true", env=env, check=True)
    assert away.harness.holders() == first
    other.write_text("wrong\n")
    assert away.run("true", env=env).returncode == 125
    assert away.harness.holders() == first


def test_a_holder_that_was_killed_is_replaced(away):
    away.run("true", check=True)
    first, = away.harness.holders()
    os.kill(first, signal.SIGKILL)
    assert away.run("sh", "-c", "exit 4").returncode == 4
    second, = wait_until(away.harness.holders, what="another holder")
    assert second != first


def test_a_holder_killed_amid_a_command_is_done_without(away):
    process = away.begin("sh", "-c", "echo ready; sleep 1; touch done; echo more; exit 6", stderr=subprocess.PIPE)
    assert process.stdout.readline() == b"ready\n"
    os.kill(away.harness.holders()[0], signal.SIGKILL)
    out, error = process.communicate(timeout=20)
    assert (process.returncode, out) == (6, b"more\n"), error
    assert stored(away.service, "done").exists()


def test_a_program_that_goes_leaves_its_command_to_linger(away):
    """Not killed at once: it may come back, as it could after the loss of a connection of its own."""
    process = away.begin("sh", "-c", "echo ready; sleep 1; touch after", options=["--id", "left"])
    assert process.stdout.readline() == b"ready\n"
    process.kill()
    process.communicate()
    wait_until(lambda: stored(away.service, "after").exists(), 15, "what it does after that")


def test_a_stopped_holder_holds_up_nobody(away):
    away.run("true", check=True)
    holder, = away.harness.holders()
    os.kill(holder, signal.SIGSTOP)
    try:
        assert away.run("sh", "-c", "exit 5").returncode == 5
    finally:
        os.kill(holder, signal.SIGCONT)


def stand_in_the_way(path, kind):
    if kind == "file":
        path.write_text("somebody's", encoding="ascii")
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to("nowhere")


@pytest.mark.parametrize("kind", ["file", "fifo", "directory", "symlink"])
def test_what_is_in_the_way_of_a_holder_holds_up_nobody(away, kind):
    away.run("true", check=True)
    path, = [p for p in (away.harness.short / "run/berth/control").iterdir() if p.is_socket()]
    os.kill(away.harness.holders()[0], signal.SIGKILL)
    wait_until(lambda: not away.harness.holders(), what="the holder's end")
    path.unlink()
    stand_in_the_way(path, kind)
    result = away.run("sh", "-c", "echo out; exit 5")
    assert (result.returncode, result.stdout) == (5, "out\n")
    assert "warning" in result.stderr and f"{path} is in the way" in result.stderr
    assert not away.harness.holders() and path.is_symlink() == (kind == "symlink")


def test_a_cut_of_the_network_is_survived(away):
    process = away.begin("sh", "-c", "echo one; read x < fifo; echo two; exit 9")
    os.mkfifo(stored(away.service, "fifo")) if not stored(away.service, "fifo").exists() else None
    process.kill()
    process.communicate()
    process = away.begin("sh", "-c", "echo one; read x < fifo; echo two; exit 9")
    assert process.stdout.readline() == b"one\n"
    away.relay.cut()
    wait_until(lambda: any(row["connected"] for row in away.connections()), what="the connection")
    with open(stored(away.service, "fifo"), "w", encoding="ascii") as fifo:
        fifo.write("go\n")
    out, _ = process.communicate(timeout=30)
    assert (process.returncode, out) == (9, b"two\n")


@pytest.mark.long
def test_a_slow_reader_holds_up_nobody_else(away):
    away.relay.delay(0)
    slow = away.begin("head", "-c", "30000000", "/dev/zero")
    assert slow.stdout.read(1) == b"\0"
    for _ in range(5):
        result = away.run("head", "-c", "2000000", "/dev/zero", text=False)
        assert len(result.stdout) == 2_000_000
    assert slow.poll() is None
    assert len(slow.stdout.read()) == 29_999_999
    assert slow.wait(20) == 0


def test_nothing_but_the_owner_connects(away, harness):
    """A user who can reach the socket's file all the same, since its modes were opened."""
    away.run("true", check=True)
    directory = harness.short / "run/berth/control"
    path, = [p for p in directory.iterdir() if p.is_socket()]
    assert (path.stat().st_mode & 0o777, directory.stat().st_mode & 0o777) == (0o600, 0o700)
    places = ((harness.short, 0o755), (harness.short / "run", 0o755),
                         (harness.short / "run/berth", 0o755), (directory, 0o755), (path, 0o666))
    for opened, mode in places:
        opened.chmod(mode)
    script = ("import socket, sys; s = socket.socket(socket.AF_UNIX); s.settimeout(10);"
              " s.connect(sys.argv[1]); s.sendall(b'GET /v1/connection HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n');"
              " print(len(s.recv(1000)))")
    as_owner = harness.run(["/usr/bin/python3", "-c", script, path], check=True)
    assert int(as_owner.stdout) > 50
    other = harness.run(["/usr/bin/setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups",
                         "/usr/bin/python3", "-c", script, path])
    assert other.returncode != 0 or other.stdout == "0\n"
    for opened, _ in places:
        opened.chmod(0o700)


def test_what_needs_a_session_is_refused(away):
    from lib.berthwire import CallError, Connection
    away.run("true", check=True)
    path, = [p for p in (away.harness.short / "run/berth/control").iterdir() if p.is_socket()]
    connection = Connection.unix(str(path), 10)
    connection.upgrade()
    connection.hello(window=1 << 20)
    with pytest.raises(CallError) as refused:
        connection.call("WORKSPACE_OPEN", flags=0, key=WORKSPACE.encode())
    assert refused.value.errno == 95
    assert connection.call("STATUS", flags=0).name == "STATUS_REPLY"
    connection.close()


def test_a_mounts_connection_is_used(harness, away, start_mount):
    mount = start_mount(away.service, url=away.relay.url, env=away.env)
    place = mount.path / WORKSPACE
    (place / "file").write_text("1\n")
    away.relay.reset_stats()
    bare = {name: value for name, value in harness.env.items() if not name.startswith("BERTH_")}
    run = lambda *argv: harness.run([harness.program("berth"), "exec", "--", *argv], cwd=place, env=bare)
    assert run("sh", "-c", "exit 6").returncode == 6
    for i in range(10):
        (place / "file").write_text(f"{i}\n")
        result = run("sh", "-c", "cat file; echo more >> file; mkdir -p d; touch d/$(cat file | head -1)")
        assert (result.returncode, result.stdout) == (0, f"{i}\n")
        assert (place / "file").read_text() == f"{i}\nmore\n"
        assert (place / "d" / str(i)).exists()
    stats = away.relay.stats()
    assert stats["to_server"]["types"]["EXEC"]["frames"] == 11
    assert "HELLO" not in stats["to_server"]["types"]
    assert harness.holders() == []
    # From elsewhere, by URL and credentials.
    assert away.run("sh", "-c", "exit 7").returncode == 7
    assert harness.holders() == []
    assert [row["kind"] for row in away.connections()] == ["mount"]
    assert harness.run_berth("connection", "stop", "--all", env=away.env).returncode == 0
    assert run("true").returncode == 0


def test_a_mount_whose_service_is_gone_says_so(harness, away, start_mount):
    mount = start_mount(away.service, url=away.relay.url, env=away.env)
    process = away.begin("sh", "-c", "echo ready; sleep 60", options=["--reattach", "2"], stderr=subprocess.PIPE)
    assert process.stdout.readline() == b"ready\n"
    away.relay.refuse()
    away.service.kill()
    _, error = process.communicate(timeout=60)
    assert process.returncode == 120, error
    mount.kill()


@pytest.fixture
def beside(harness, start_service, start_mount):
    """A service at a unix socket, and a mount whose connection is used."""
    service = start_service()
    harness.run_berth("create", WORKSPACE, check=True, url=service.url)
    here = Here(harness, service.client_env())
    here.service = service
    here.mount = start_mount(service, options=["timeout=60"])
    assert [(row["kind"], row["connected"]) for row in here.connections()] == [("mount", True)]
    yield here
    here.mount.kill()


def gone(here):
    """The service has crashed, and the mount knows."""
    here.service.kill()
    wait_until(lambda: not here.connections()[0]["connected"], what="the loss")


def test_nothing_waits_for_the_connection_of_a_mount(beside):
    gone(beside)
    for options in ([], ["--timeout", "1"], ["--reattach", "0"]):
        result = beside.run("true", options=options, timeout=20)
        assert result.returncode == 125 and "nobody listens" in result.stderr, result
    beside.service.restart()
    result = beside.run("true", options=["--json"], timeout=20)
    assert (result.returncode, json.loads(result.stdout)["verdict"]) == (0, "exited")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_who_waits_for_a_service_can_be_ended(beside, number):
    process = beside.begin("sh", "-c", "echo ready; sleep 60", stderr=subprocess.PIPE)
    assert process.stdout.readline() == b"ready\n"
    gone(beside)
    wait_until(lambda: beside.connections()[0]["programs"] == 0, 5, "the program's notice")
    time.sleep(0.2)
    assert process.poll() is None
    process.send_signal(number)
    _, error = process.communicate(timeout=20)
    assert process.returncode == 120 and b"outcome unknown" in error, error


def test_a_lost_connection_is_not_waited_for_when_told(beside):
    process = beside.begin("sh", "-c", "echo ready; sleep 60", options=["--reattach", "0"], stderr=subprocess.PIPE)
    assert process.stdout.readline() == b"ready\n"
    beside.service.kill()
    _, error = process.communicate(timeout=8)
    assert process.returncode == 120 and b"outcome unknown" in error, error


class Lender(threading.Thread):
    """In the place of a holder: lends a connection for one command, then such as are lost at once."""

    def __init__(self, path, service_path):
        super().__init__(daemon=True)
        self.service_path, self.cut, self.lent = service_path, threading.Event(), 0
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(path))
        self.listener.listen()

    def run(self):
        while True:
            try:
                program, _ = self.listener.accept()
            except OSError:
                return
            with program, socket.socket(socket.AF_UNIX) as service, contextlib.suppress(OSError):
                service.connect(self.service_path)
                self.lent += 1
                said = b""
                while not self.cut.is_set() or not said.partition(b"\r\n\r\n")[2]:  # the WELCOME
                    for ready in select.select([program, service], [], [], 0.1)[0]:
                        data = ready.recv(65536)
                        if not data:
                            raise ConnectionResetError
                        (service if ready is program else program).sendall(data)
                        said += data if ready is service else b""


def test_a_lender_without_a_connection_does_not_put_off_the_end(beside, harness):
    directory = harness.short / "run/berth/control"
    mount, = [path for path in directory.iterdir() if path.is_socket()]
    lender = Lender(directory / mount.name.split("-")[0], beside.service.url.removeprefix("unix:"))
    lender.start()
    process = beside.begin("sh", "-c", "echo ready; sleep 60", options=["--reattach", "2"], stderr=subprocess.PIPE)
    assert process.stdout.readline() == b"ready\n"
    lender.cut.set()
    try:
        _, error = process.communicate(timeout=20)
    finally:
        lender.listener.close()
    assert process.returncode == 120 and b"outcome unknown" in error, error
    assert lender.lent > 2


@pytest.mark.long
@pytest.mark.timeout(600)
def test_five_hundred_at_once(away):
    """And each has its own verdict and its own output."""
    away.relay.delay(0)
    away.run("true", check=True)
    started = [away.begin("sh", "-c", f"read x < /dev/null; sleep 1; echo {n}; exit {n % 100}",
                          stderr=subprocess.PIPE) for n in range(500)]
    for n, process in enumerate(started):
        out, error = process.communicate(timeout=400)
        assert (process.returncode, out) == (n % 100, f"{n}\n".encode()), error
    assert len(away.harness.holders()) == 1
    assert away.run("true").returncode == 0
    assert away.connections()[0]["programs"] == 0


def left_behind(away, holder):
    """All that commands could leave: descriptors, processes, cgroups and files, of whoever had to do with them."""
    keeper = away.service.keeper()
    descriptors = [len(os.listdir(f"/proc/{pid}/fd")) for pid in (holder, away.service.pid, keeper.pid)]
    with open(f"/proc/{keeper.pid}/task/{keeper.pid}/children", encoding="ascii") as file:
        processes = file.read().split()
    confinement = json.loads(away.harness.run_berth("status", "--json", env=away.env, check=True).stdout)
    cgroup = confinement["service"]["confinement"]["cgroup"]
    # One is made ahead, with another number each time.
    cgroups = len([name for name in os.listdir(cgroup["text"]) if name.startswith("exec-")]) if cgroup["holds"] else 0
    files = sorted(str(path) for path in (away.service.root / "exec").rglob("*"))
    return descriptors, processes, cgroups, files


@pytest.mark.parametrize("count", [50, pytest.param(10000, marks=[pytest.mark.long, pytest.mark.timeout(1800)])])
def test_many_in_a_row_leave_nothing_behind(away, count):
    away.relay.delay(0)
    for _ in range(2):
        away.run("true", check=True)
    holder, = away.harness.holders()

    def settled():
        """After a while in which nothing changes: an empty directory is removed within a second."""
        first = left_behind(away, holder)
        time.sleep(1.2)
        return first if left_behind(away, holder) == first else None
    before = wait_until(settled, 30, "an end of what has been begun")
    argv = [away.harness.program("berth"), "exec", "-w", WORKSPACE, "--", "true"]
    away.harness.run(["xargs", "-P", "4", "-I{}", *argv], input="x\n" * count, env=away.env, timeout=1700, check=True)
    wait_until(lambda: left_behind(away, holder) == before, 20, "nothing but what there was before")
    assert away.harness.holders() == [holder]

"""`berth top`: what it shows, on a terminal of any size and without one."""

import json
import os
import re
import signal
import subprocess
import time

import pytest

from lib import berthwire as wire
from lib.access import call, connect
from lib.berthwire import encode
from lib.exec_client import DETACH, ExecClient
from lib.peer_service import PeerService
from lib.screen import Screen

pytestmark = pytest.mark.sandbox

NASTY = "\x1b]0;title\x07\x1b[2J\r\nforged line\x9b31m\u202e"
CONTROLS = set(map(chr, [*range(0x09), *range(0x0b, 0x20), 0x7f, *range(0x80, 0xa0)]))
HOST = {"network": {"allow": ["example.org:443"]}}

# A request to the proxy that is refused, from inside.
ASK = ("import socket; s = socket.create_connection(('127.0.0.1', 3128)); "
       "s.sendall(b'CONNECT {}:443 HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n'); s.recv(200)")


@pytest.fixture
def berth(harness, service, run_berth):
    """Workspaces that are busy, idle and stopped; the words of a command line and its environment."""
    for name in ("busy", "idle", "stopped"):
        run_berth("create", name, check=True)
    run_berth("stop", "stopped", check=True)
    run_berth("exec", "-w", "busy", "--detach", "--", "sh", "-c", "while :; do :; done", check=True)
    run_berth("exec", "-w", "busy", "--detach", "--", "sleep", "400", check=True)
    env = {**os.environ, **service.client_env(), "TERM": "xterm", "LC_ALL": "C.UTF-8"}
    env.pop("NO_COLOR", None)
    return [str(harness.program("berth")), "top"], env


@pytest.fixture
def screen(berth):
    open_ones = []

    def start(*words, rows=24, columns=80, **env):
        argv, usual = berth
        one = Screen([*argv, *words], rows, columns, env={**usual, **env})
        open_ones.append(one)
        return one

    yield start
    for one in open_ones:
        one.close()


def ask_proxy(run_berth, workspace, host):
    run_berth("exec", "-w", workspace, "--", "/usr/bin/python3", "-c", ASK.format(host), check=True)


# --- without a terminal ------------------------------------------------------------------------

def test_without_a_terminal(berth, screen, harness, run_berth):
    """In a pipe it is printed once, and where it cannot be drawn."""
    result = run_berth("top", check=True)
    assert not CONTROLS & set(result.stdout) and not result.stderr
    lines = result.stdout.splitlines()
    assert "3 workspaces, 2 commands" in lines[1]
    rows = {line.split()[0]: line.split() for line in lines if line}
    shown = [line.split()[0] for line in lines if line.split()[1:2] in (["running"], ["stopped"])]
    assert shown[0] == "busy" and sorted(shown) == ["busy", "idle", "stopped"]
    assert rows["busy"][1:4] == ["running", "2", "2"] and float(rows["busy"][4]) > 1
    assert rows["stopped"][1] == "stopped" and rows["stopped"][2] == "-"
    assert re.search(r"^[0-9a-f]{16} +busy .*sleep 400$", result.stdout, re.M)

    one = screen(TERM="dumb")
    assert one.ended() == 0
    assert b"\x1b" not in one.raw and "busy" in one.text

    result = run_berth("top", env={**harness.env, "BERTH_URL": "unix:/nowhere/berthd.sock"})
    assert result.returncode == 1 and "/nowhere/berthd.sock" in result.stderr
    assert "MOUNT" in result.stdout
    for words in (["--interval", "0.1"], ["--interval", "x"], ["--sort", "size"], ["word"]):
        result = run_berth("top", *words)
        assert result.returncode == 2 and words[-1] in result.stderr


def test_as_json_with_a_mount(berth, harness, service, run_berth):
    mount = harness.start_mount(service)
    (mount.path / "busy" / "seen").write_text("1")
    os.stat(mount.path / "busy" / "seen")
    assert mount.stats()["lag_us"] == 0
    run_berth("exec", "-w", "busy", "--", "sh", "-c", "echo 2 > seen", check=True)
    stats = mount.stats()
    assert 0 < stats["lag_us"] <= stats["lag_max_us"] < 60e6 and stats["ping_us"] > 0

    argv, env = berth
    process = subprocess.Popen([*argv, "--json", "--interval", "0.3"], env=env, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE)
    try:
        first, second = (json.loads(process.stdout.readline()) for _ in range(2))
    finally:
        process.kill()
        process.communicate(timeout=20)
    for look in (first, second):
        assert set(look) == {"time", "url", "error", "service", "workspaces", "commands", "mounts", "egress", "note"}
        assert look["error"] is None and look["service"]["workspaces"] == 3
    busy = next(one for one in second["workspaces"] if one["id"] == "busy")
    assert busy["commands"] == busy["processes"] == 2 and busy["memory_bytes"] > 4096
    by_words = {" ".join(one["command"][:1]): one for one in second["commands"]}
    assert by_words["sh"]["cpu_percent"] > 5 > by_words["sleep"]["cpu_percent"]
    assert by_words["sh"]["cpu_ms"] >= 10 and by_words["sleep"]["memory_bytes"] > 4096
    ours = next(one for one in second["mounts"] if one["mountpoint"] == str(mount.path))
    assert ours["state"] == "connected" and ours["round_trips_per_s"] >= 0


class OlderService(PeerService):
    """It ends the connection for messages that it does not know, and says of none that it knows it."""
    connections = 0

    def answer(self, wire, got):
        if got.name == "HELLO":
            self.connections += 1
        if got.name == "STATUS":
            wire.send("STATUS_REPLY", got.tag, json=b'{"pid": 1, "workspaces": 1}')
        elif got.name == "WORKSPACE_LIST":
            wire.send("WORKSPACES", got.tag, items=[encode("WORKSPACE", thread_id=b"one", name=b"one", state=1)])
        elif got.name == "EXEC_LIST":
            wire.send("EXEC_COMMANDS", got.tag, items=[encode("EXEC_COMMAND", serial=1, processes=1)])
        elif got.name in ("EXEC_USAGE", "EGRESS_LOG"):
            wire.close()
        else:
            super().answer(wire, got)


def test_a_service_that_is_older(harness):
    service = OlderService(harness.short / "older.sock")
    argv = [str(harness.program("berth")), "--url", service.url, "top"]
    result = harness.run([*argv, "--once"], env=harness.env, check=True)
    assert "this service is older" in result.stdout and not result.stderr and re.search(r"^one ", result.stdout, re.M)
    with subprocess.Popen([*argv, "--json", "--interval", "0.2"], env=harness.env, stdout=subprocess.PIPE) as process:
        looks = [json.loads(process.stdout.readline()) for _ in range(3)]
        process.kill()
    assert all(look["error"] is None and "older" in look["note"] for look in looks)
    assert service.connections == 2, "one for each program"
    service.close()


# --- on a terminal -----------------------------------------------------------------------------

def test_it_goes_on_until_q(screen, run_berth):
    one = screen("--interval", "0.2")
    one.wait("sh -c")
    assert one.alternate and one.cursor_hidden and one.colours
    run_berth("create", "later", check=True)
    one.wait("later")
    one.process.send_signal(signal.SIGTSTP)
    os.waitid(os.P_PID, one.process.pid, os.WSTOPPED)
    one.read(0.1)
    assert one.is_given_back() and not one.wrapped
    one.clear()
    one.process.send_signal(signal.SIGCONT)
    one.wait("busy")
    assert one.alternate
    one.type("q")
    assert one.ended() == 0 and one.is_given_back()

    one = screen("--interval", "0.2", rows=16, columns=40, NO_COLOR="1")
    one.wait("sh -c")
    assert re.search(r"^WORKSPACE +CMDS +CPU%", one.text, re.M)
    one.resize(24, 100)
    one.wait(lambda s: re.search(r"^ID +WORKSPACE +TIME +PROCS", s.text, re.M), what="wide table")
    one.resize(5, 12)
    one.wait(lambda s: s.lines[0].startswith("berth  unix:"), what="tiny screen")
    one.wrapped.clear()  # what was under way when the screen became smaller
    one.read(0.5)
    one.process.send_signal(signal.SIGTERM)
    assert one.ended() == -signal.SIGTERM and one.is_given_back() and not one.wrapped and not one.colours


def test_orders_and_tables(screen):
    one = screen("--interval", "0.2", rows=40)

    def order(first, second):
        return lambda s: first in s.text and second in s.text and s.text.index(first) < s.text.index(second)

    one.wait(order("sh -c", "sleep 400"), what="busy first")
    one.type("n")
    one.wait("order name")
    one.type("ss")
    one.wait("order cpu")
    one.type("\t\t")
    one.wait(lambda s: "WORKSPACE" in s.text and "MOUNT" not in s.text, what="one table")
    one.type("\x1b[B")
    one.wait(lambda s: "sh -c" not in s.text and "sleep 400" in s.text, what="a row less")
    one.type("\x1b[A")
    one.wait("sh -c")
    one.type("h")
    one.wait("Tab table")
    one.type("\t\t\t")
    one.wait("MOUNT")
    one.type("\x03")
    assert one.ended() == -signal.SIGINT and one.is_given_back()


def test_a_service_that_does_not_answer_and_comes_back(screen, service):
    one, other = screen("--interval", "0.2"), screen("--interval", "0.2")
    one.wait("sh -c")
    other.wait("sh -c")
    service.signal(signal.SIGSTOP)
    try:
        one.wait("no answer since")
        before = time.monotonic()
        one.type("q")
        assert one.ended() == 0 and time.monotonic() - before < 2 and one.is_given_back()
    finally:
        service.signal(signal.SIGCONT)
    service.kill()
    other.wait("nobody listens")
    service.restart()
    other.wait("idle")
    other.type("q")
    assert other.ended() == 0


def test_what_others_chose_does_not_reach_the_terminal(screen, service, run_berth):
    with ExecClient(service.socket) as client:
        run_berth("create", NASTY, check=True)
        client.wait_started(client.start(NASTY, ["sh", "-c", "exec sleep 100", NASTY], flags=DETACH,
                                         exec_id=NASTY))
        one = screen(rows=40, columns=200)
        one.wait("\\x1b]0;title")  # any other control byte would have failed
        one.type("q")
        assert one.ended() == 0 and not one.wrapped
        assert not CONTROLS & set(run_berth("top", check=True).stdout)


# --- the proxy's decisions ---------------------------------------------------------------------

def test_decisions_come_live(screen, run_berth):
    run_berth("create", "--policy", "-", "net", input=json.dumps(HOST), check=True)
    ask_proxy(run_berth, "net", "before.example")
    one = screen("--interval", "0.2", columns=120)
    one.wait("before.example")
    ask_proxy(run_berth, "net", "evil.example")
    text = one.wait("evil.example")
    assert re.search(r"refused +net .*evil.example.*not on the allow list", text)
    assert text.index("evil.example") < text.index("before.example")
    one.type("q")
    assert one.ended() == 0


def decisions(connection, **fields):
    reply = call(connection, "EGRESS_LOG", **fields)
    return reply, wire.decode_list("EGRESS_DECISION", reply["items"])


def test_who_is_told_of_decisions_and_use(harness, run_berth):
    """As far as they were granted workspaces; an ID that the log cannot have exactly is nobody's but theirs
    who may see everything."""
    service = harness.start_service(http=True, access_file=harness.access_file(
        {"id": "whole", "secret": "whole"}, {"id": "ours", "secret": "ours", "workspaces": ["a-*"]}))
    for name in (b"a-one", b"b-two", b"a-\x01"):
        with connect(service.http_url, "whole") as connection:
            call(connection, "WORKSPACE_CREATE", thread_id=name, policy=json.dumps(HOST).encode())
        with ExecClient(service.socket) as client:
            client.run(name, ["/usr/bin/python3", "-c", ASK.format("evil.example")])
            client.wait_started(client.start(name, ["sleep", "100"], flags=DETACH))
    with connect(service.http_url, "whole") as connection:
        reply, seen = decisions(connection, position=2**64 - 1)
        assert {one["workspace"] for one in seen} == {b"a-one", b"b-two", b"a-\\x01"}
        assert all(one["verdict"] == b"refused" and one["host"] == b"evil.example" for one in seen)
        assert not decisions(connection, position=reply["position"])[1]
        assert len(decisions(connection, position=0, count=1)[1]) == 1
        assert decisions(connection, position=2**40)[0]["lost"] == 1
        assert [one["workspace"] for one in decisions(connection, position=0, workspace=b"b-two")[1]] == [b"b-two"]
        used = call(connection, "EXEC_USAGE")["items"]
        assert len(used) == 3
    with connect(service.http_url, "ours") as connection:
        assert [one["workspace"] for one in decisions(connection, position=0)[1]] == [b"a-one"]
        used = wire.decode_list("EXEC_USED", call(connection, "EXEC_USAGE")["items"])
        assert {one["workspace"] for one in used} == {b"a-one", b"a-\x01"}

"""Commands over HTTP: verdicts, streams, input, attaching, killing."""

import base64
import hashlib
import json
import socket
import time

import pytest

from lib.harness import wait_until
from lib.web import Web

ID = "commands"


@pytest.fixture
def web(service, run_berth):
    run_berth("create", ID, check=True)
    with Web(service.url, workspace=ID) as web:
        yield web


def run(web, *argv, **request):
    answer = web.ask("POST", "/exec", {"argv": list(argv), **request})
    assert answer.status == 200, answer
    return answer.json


def output(events, stream):
    """The stream's bytes, which must come without gap or repetition."""
    data = b""
    for event in events:
        if event["event"] == "output" and event["stream"] == stream:
            assert event["offset"] == len(data)
            text = event["data"]
            data += base64.b64decode(text) if event["encoding"] == "base64" else text.encode()
    return data


def test_verdicts(web):
    told = run(web, "sh", "-c", "cat; printf '\\377' >&2; echo $A; exit 3", stdin="in\n", env={"A": "1 2"})
    assert (told["verdict"], told["code"], told["exit_status"]) == ("exited", 3, 3)
    assert told["stdout"] == "in\n1 2\n" and told["stdout_truncated"] is False
    assert (told["stderr"], told["stderr_encoding"]) == ("/w==", "base64")
    assert run(web, "cat", stdin="AAEC/w==", stdin_encoding="base64")["stdout"] == "AAEC/w=="
    assert run(web, "cat")["stdout"] == ""
    told = run(web, "sh", "-c", "kill -9 $$")
    assert (told["verdict"], told["signal"], told["exit_status"]) == ("signaled", 9, 137)
    told = run(web, "sleep", "1000", timeout_ms=300)
    assert (told["verdict"], told["timeout_ms"], told["exit_status"]) == ("timed_out", 300, 124)
    told = run(web, "no-such-program")
    assert (told["verdict"], told["stage"], told["errno"]) == ("not_started", "execve", "ENOENT")
    told = run(web, "sh", "-c", "echo out; echo err >&2", merge=True)
    assert (told["stdout"], told["stderr"]) == ("out\nerr\n", "")
    told = run(web, "stty", "size", pty={"rows": 33, "columns": 44})
    assert told["stdout"] == "33 44\r\n"
    # What it was told by nobody's leave is forgotten.
    assert web.ask("GET", "/exec").json["commands"] == []


def test_the_path_at_which_the_workspace_is_seen(web):
    """A caller's own, so that what is printed means the same there; and the one that always is."""
    pwd = ["sh", "-c", "pwd; echo $PWD"]
    assert run(web, *pwd, mount_path="/home/agent/project", cwd="")["stdout"] == "/home/agent/project\n" * 2
    assert run(web, *pwd, mount_path="/workspace")["stdout"] == "/workspace\n" * 2
    (started, *_) = web.lines("POST", "/exec", {"argv": ["true"], "mount_path": "/workspace"})
    assert started["path"] == "/workspace"
    # Where that cannot be, it is where it is, as without.
    (started, *_) = web.lines("POST", "/exec", {"argv": ["true"], "mount_path": "/usr"})
    assert started["path"].endswith("/tree")
    answer = web.ask("POST", "/exec", {"argv": ["true"], "mount_path": "/" + "x" * 5000})
    assert (answer.status, answer.json["effect"]) == (400, "none")


def test_what_is_wrong(web):
    for body, status, errno in [
            ({}, 400, "EINVAL"), ({"argv": []}, 400, "EINVAL"), ({"argv": "ls"}, 400, "EINVAL"),
            ({"argv": ["a", 1]}, 400, "EINVAL"), ({"argv": ["a\0b"]}, 400, "EINVAL"),
            ({"argv": ["true"], "typo": 1}, 400, "EINVAL"), ({"argv": ["true"], "env": {"A": 1}}, 400, "EINVAL"),
            ({"argv": ["true"], "stdin": "%", "stdin_encoding": "base64"}, 400, "EINVAL"),
            ({"argv": ["true"], "pty": {"rows": 0}}, 400, "EINVAL"),
            ({"argv": ["true"], "timeout_ms": -1}, 400, "EINVAL")]:
        answer = web.ask("POST", "/exec", body)
        assert (answer.status, answer.json["errno"]) == (status, errno), (body, answer)
        assert answer.json["effect"] == "none"
    assert web.another(workspace="none").ask("POST", "/exec", {"argv": ["true"]}).status == 404
    assert web.ask("GET", "/exec/none").status == 404
    assert web.ask("POST", "/exec/none/kill", {}).status == 404
    assert web.ask("POST", "/exec/none/signal", {"signal": "NONE"}).status == 400
    run(web, "true", id="once")
    answer = web.ask("POST", "/exec", {"argv": ["false"], "id": "once"})
    assert (answer.status, answer.json["errno"]) == (409, "EEXIST")
    assert web.ask("POST", "/exec/once/signal", {"signal": "TERM"}).json["errno"] == "ESRCH"
    assert web.ask("POST", "/exec/once/input", b"x").json["errno"] == "ESRCH"


def test_a_stream(web):
    events = list(web.lines("POST", "/exec", {
        "argv": ["sh", "-c", "cat; head -c 300000 /dev/zero; echo err >&2; exit 4"], "stdin": "x" * 200000}))
    assert events[0]["event"] == "started" and events[0]["attached"] is False
    assert output(events, "stdout") == b"x" * 200000 + bytes(300000)
    assert output(events, "stderr") == b"err\n"
    end = events[-1]
    assert (end["event"], end["verdict"], end["code"]) == ("ended", "exited", 4)
    assert (end["stdout_bytes"], end["stderr_bytes"]) == (500000, 4)
    assert [event["event"] for event in events].count("ended") == 1


def test_input_and_output_both_at_once(web):
    """More input than any buffer holds, of a command that writes it back as it reads."""
    data = base64.b64encode(bytes(range(256)) * 8000).decode()  # 2.7 MB of text
    told = run(web, "sh", "-c", "cat | sha256sum", stdin=data)
    assert told["stdout"].split()[0] == hashlib.sha256(data.encode()).hexdigest()
    told = run(web, "cat", stdin=data)
    assert told["stdout"] == data


@pytest.mark.long
def test_output_is_bounded(web):
    told = run(web, "head", "-c", "9000000", "/dev/zero")
    assert told["stdout_bytes"] == 9000000 and told["stdout_truncated"] is True
    assert len(told["stdout"]) <= 4 << 20
    assert told["stdout_encoding"] == "utf-8" and set(told["stdout"]) == {"\0"}


@pytest.mark.long
def test_the_rest_of_an_output_that_was_cut(web):
    """It is had by the ID, from the first byte that is kept on."""
    told = run(web, "sh", "-c", "head -c 9000000 /dev/zero; printf end")
    end = told["stdout_offset"] + len(told["stdout"])
    assert told["stdout_truncated"] and end < told["stdout_bytes"] == 9000003
    rest = web.ask("GET", f"/exec/{told['id']}?stdout={end}").json
    assert rest["stdout_offset"] >= end and rest["stdout"]
    last = web.ask("GET", f"/exec/{told['id']}?stdout=8999000").json
    assert last["stdout"].endswith("end") and last["stdout_offset"] == 8999000


def test_a_stopped_workspace(web):
    assert web.ask("POST", "/stop").status == 200
    answer = web.ask("POST", "/exec", {"argv": ["true"]})
    assert (answer.status, answer.json["retry"], answer.json["effect"]) == (409, False, "none")


def test_detached_fed_and_attached_to(web):
    started = web.ask("POST", "/exec", {"argv": ["sh", "-c", "read a; echo got $a; cat"], "id": "c",
                                        "detach": True, "stdin_open": True})
    assert (started.status, started.json["verdict"]) == (202, "running")
    assert web.ask("POST", "/exec/c/input", b"one\ntw").json == {"input": 6}
    wait_until(lambda: web.ask("GET", "/exec/c").json["stdout_bytes"] >= 8, what="its output")
    now = web.ask("GET", "/exec/c").json
    assert now["exit_status"] is None
    assert now["verdict"] == "running" and now["stdout"].startswith("got one\n")
    assert web.ask("POST", "/exec/c/input?end=true", b"o\n").json == {"input": 8}
    ended = web.ask("GET", "/exec/c?follow=true").json
    assert (ended["verdict"], ended["stdout"]) == ("exited", "got one\ntwo\n")
    rest = web.ask("GET", "/exec/c?stdout=8").json
    assert rest["stdout"] == "two\n" and rest["stdout_truncated"] is False
    (listed,) = web.ask("GET", "/exec").json["commands"]
    assert listed["id"] == "c" and listed["argv"][0] == "sh" and listed["verdict"] == "exited"
    # The same request again attaches, and does not run again.
    again = web.ask("POST", "/exec", {"argv": ["sh", "-c", "read a; echo got $a; cat"], "id": "c"}).json
    assert again["stdout"] == "got one\ntwo\n" and again["id"] == "c"


def test_killing(web):
    web.ask("POST", "/exec", {"argv": ["sh", "-c", "setsid sleep 1000 & trap 'echo hup' HUP; echo ready; "
                                       "while :; do sleep 0.1; done"], "id": "k", "detach": True})
    wait_until(lambda: "ready" in web.ask("GET", "/exec/k").json["stdout"], what="the command")
    assert web.ask("POST", "/exec/k/signal", {"signal": "SIGHUP"}).status == 200
    wait_until(lambda: "hup" in web.ask("GET", "/exec/k").json["stdout"], what="the trap")
    killed = web.ask("POST", "/exec/k/kill", {}).json
    assert killed["left"] == 0 and killed["removed"] >= 2
    assert web.ask("GET", "/exec/k").json["verdict"] == "killed"


def test_resizing(web):
    web.ask("POST", "/exec", {"argv": ["sh", "-c", "trap 'stty size' WINCH; echo ready; "
                                       "while :; do sleep 0.1; done"],
                              "id": "t", "detach": True, "pty": {"rows": 10, "columns": 20}})
    wait_until(lambda: "ready" in web.ask("GET", "/exec/t").json["stdout"], what="the command")
    assert web.ask("POST", "/exec/t/resize", {"rows": 50, "columns": 60}).status == 204
    wait_until(lambda: "50 60" in web.ask("GET", "/exec/t").json["stdout"], what="its size")
    web.ask("POST", "/exec/t/kill", {})


def test_a_client_that_hangs_up(web, service):
    """It does not end a command that is to be kept; what it had not read is there for who comes back."""
    body = json.dumps({"argv": ["sh", "-c", "echo first; sleep 0.5; echo second"], "id": "h", "keep": True}).encode()
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(service.url[5:])
        s.sendall(f"POST {web.target('/exec')} HTTP/1.1\r\nHost: x\r\nAccept: application/x-ndjson\r\n"
                  f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
        received = b""
        while b"first" not in received:
            received += s.recv(65536)
    told = web.ask("GET", "/exec/h?follow=true").json
    assert (told["verdict"], told["stdout"]) == ("exited", "first\nsecond\n")


def test_a_slow_reader_bounds_the_memory(web, service):
    """A command that prints without end waits for who does not read."""
    body = json.dumps({"argv": ["sh", "-c", "yes | head -c 200000000"], "id": "s",
                       "linger_ms": 100}).encode()
    with socket.socket(socket.AF_UNIX) as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        s.connect(service.url[5:])
        s.sendall(f"POST {web.target('/exec')} HTTP/1.1\r\nHost: x\r\nAccept: application/x-ndjson\r\n"
                  f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
        s.recv(100)
        time.sleep(1)
        (listed,) = web.ask("GET", "/exec").json["commands"]
        assert listed["verdict"] == "running" and listed["stdout_bytes"] < 64 << 20

"""The audit log: what is in it, what never is, and what happens when it cannot be written."""

import errno
import json
import os
import re
import signal

import pytest

from lib import berthwire as wire
from lib.access import call, connect, refused, status_of
from lib.harness import wait_until

SECRET = "berth-secret-of-this-test"


def entries(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def short(entry):
    return tuple(entry.get(key) for key in ("identity", "message", "workspace", "outcome"))


@pytest.fixture
def log(harness):
    return harness.new_path("audit.log")


@pytest.fixture
def service(harness, log):
    return harness.start_service(http=True, args=["--audit-log", log], access_file=harness.access_file(
        {"id": "ann", "secret": SECRET}, {"id": "bob", "secret": "bob", "workspaces": ["b"], "verbs": ["read"]}))


def test_who_did_what(service, log):
    assert log.stat().st_mode & 0o777 == 0o600
    with connect(service.http_url, SECRET) as ann:
        call(ann, "WORKSPACE_CREATE", thread_id="a/ü\n".encode())
        call(ann, "PING")
        root = call(ann, "WORKSPACE_OPEN", key="a/ü\n".encode())["node"]
        call(ann, "CREATE", parent=root, name=b"name-of-a-file", flags=3, mode=0o644)
        tag = ann.request("EXEC", workspace="a/ü\n".encode(), id=b"run", argv=[b"sh", b"-c", b"exit 3", b"argument"],
                          env=[b"KEY=value-of-it"])
        ann.wait(tag, "EXEC_EXIT")
        assert call(ann, "WORKSPACE_OPEN", key=b"none") == errno.ENOENT
        call(ann, "WORKSPACE_REMOVE", key="a/ü\n".encode())
    with connect(service.http_url, "bob") as bob:
        call(bob, "WORKSPACE_OPEN", key=b"a")
        call(bob, "EXEC", workspace=b"b", argv=[b"x"])
    refused(service.http_url, "guess-of-somebody")
    name = "a%2F%C3%BC%0A"
    found = entries(log)
    assert [short(entry) for entry in found] == [
        ("ann", "CONNECT", None, "ok"), ("ann", "WORKSPACE_CREATE", name, "ok"), ("ann", "WORKSPACE_OPEN", name, "ok"),
        ("ann", "EXEC", name, "begun"), ("ann", "EXEC", name, "exited 3"), ("ann", "WORKSPACE_OPEN", "none", "ENOENT"),
        ("ann", "WORKSPACE_REMOVE", name, "ok"), ("bob", "CONNECT", None, "ok"), ("bob", "WORKSPACE_OPEN", "a", "ENOENT"),
        ("bob", "EXEC", "b", "EACCES"), (None, "CONNECT", None, "EACCES")]
    assert found[3]["exec"] == found[4]["exec"] == "run" and found[3]["verb"] == "exec"
    for entry in found:
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", entry["time"])
        assert entry["peer"].startswith("127.0.0.1:") and entry["connection"] > 0
    text = log.read_text()
    for secret in (SECRET, "guess-of", "argument", "value-of-it", "name-of-a-file", "sha256"):
        assert secret not in text


def test_a_user_at_the_socket_and_one_who_leaves_first(service, log):
    with wire.Connection.unix(service.socket) as connection:
        connection.upgrade()
        connection.hello()
        call(connection, "WORKSPACE_CREATE", thread_id=b"w")
        tag = connection.request("EXEC", workspace=b"w", argv=[b"sleep", b"60"])
        connection.wait(tag, "EXEC_STARTED")
    wait_until(lambda: [e["outcome"] for e in entries(log)] == ["ok", "ok", "begun", "gone"])
    assert re.fullmatch(r"user \d+ \(process \d+\)", entries(log)[0]["peer"])
    assert entries(log)[0]["identity"].startswith("user:")


def test_rotation(service, log):
    with connect(service.http_url, SECRET) as ann:
        call(ann, "WORKSPACE_CREATE", thread_id=b"one")
        old = log.with_suffix(".1")
        log.rename(old)
        call(ann, "WORKSPACE_CREATE", thread_id=b"two")
        assert not log.exists() and len(entries(old)) == 3
        service.signal(signal.SIGHUP)
        wait_until(log.exists)
        call(ann, "WORKSPACE_CREATE", thread_id=b"three")
        assert [e["workspace"] for e in entries(log)] == ["three"]
        assert len(entries(old)) == 3


def test_when_it_cannot_be_written(service, log):
    """What would be in it is refused, but for what ends something; the log says how much it lacks."""
    with connect(service.http_url, SECRET) as ann:
        call(ann, "WORKSPACE_CREATE", thread_id=b"w")
        before = entries(log)
        log.unlink()
        log.mkdir()
        service.signal(signal.SIGHUP)
        wait_until(lambda: "it can be written" in service.log or "is refused until" in service.log)
        assert call(ann, "WORKSPACE_CREATE", thread_id=b"v") == errno.EIO
        assert call(ann, "EXEC", workspace=b"w", argv=[b"true"]) == errno.EIO
        assert call(ann, "PING", nonce=4)["nonce"] == 4
        assert refused(service.http_url, SECRET).status == 503
        assert "seq" in call(ann, "WORKSPACE_REMOVE", key=b"w")
        assert status_of(ann)["audit_lost"] >= 1
        log.rmdir()
        assert call(ann, "WORKSPACE_CREATE", thread_id=b"v")["created"] == 1
    assert len(before) == 2
    lost, made = entries(log)
    assert lost["message"] == "LOST" and lost["count"] >= 1 and short(made) == ("ann", "WORKSPACE_CREATE", "v", "ok")


def test_a_disk_that_is_full(harness, service, log):
    """Lines are whole, whatever was cut off before them."""
    log.unlink()
    log.symlink_to("/dev/full")
    with connect(service.http_url, SECRET) as ann:
        service.signal(signal.SIGHUP)
        wait_until(lambda: "opened again" in service.log)
        call(ann, "WORKSPACE_CREATE", thread_id=b"first")  # nobody knew yet
        assert call(ann, "WORKSPACE_CREATE", thread_id=b"second") == errno.EIO


def test_one_that_cannot_be_opened(harness):
    result = harness.run([harness.program("berthd"), "--root", harness.new_path("root"), "--audit-log",
                          harness.new_path("none") / "log"])
    assert result.returncode == 1 and "audit log" in result.stderr
    fifo = harness.new_path("fifo")
    os.mkfifo(fifo)
    result = harness.run([harness.program("berthd"), "--root", harness.new_path("root"), "--audit-log", fifo], timeout=20)
    assert result.returncode == 1 and f"audit log {fifo}: it is no regular file" in result.stderr

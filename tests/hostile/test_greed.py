"""One client that takes all it can get leaves enough for the others."""

import errno

import pytest

from lib.berthwire import CallError, Connection

READ = 1
BY_NAME = 1
DESCRIPTORS = 2048


@pytest.fixture
def service(harness, monkeypatch):
    """A berthd that may have few descriptors; it raises its own limit as far as it can."""
    wrapper = harness.new_path("berthd")
    wrapper.write_text(f"#!/bin/sh\nulimit -n {DESCRIPTORS} || exit\nexec '{harness.program('berthd')}' \"$@\"\n")
    wrapper.chmod(0o755)
    monkeypatch.setitem(harness.binaries, "berthd", wrapper)
    return harness.start_service()


def client(service):
    connection = Connection.unix(service.socket)
    connection.upgrade()
    connection.hello()
    connection.call("WORKSPACE_CREATE", flags=0, thread_id=b"shared")
    root = connection.call("WORKSPACE_OPEN", flags=0, key=b"shared")["node"]
    return connection, root


def test_handles(service):
    """A client that never closes is refused, and another still creates and opens."""
    with client(service)[0] as greedy, client(service)[0] as modest:
        root = greedy.call("WORKSPACE_OPEN", flags=0, key=b"shared")["node"]
        node = greedy.call("CREATE", parent=root, flags=READ, mode=0o644, name=b"file")["node"]
        with pytest.raises(CallError) as refused:
            for _ in range(DESCRIPTORS):
                greedy.call("OPEN", node=node, flags=READ)
        assert refused.value.errno == errno.EMFILE
        root = modest.call("WORKSPACE_OPEN", flags=0, key=b"shared")["node"]
        for i in range(50):
            name = b"other%d" % i
            modest.call("CREATE", parent=root, flags=READ, mode=0o644, name=name)

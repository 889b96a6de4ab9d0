"""Clients that wait for locks, raw: what CANCEL, the end of a connection and too many waits do, and
that a client beside them does not notice."""

import errno
import fcntl
import json
import time

import pytest

from lib.berthwire import CallError, Connection
from lib.harness import wait_until

RW = 3
WAIT, FLOCK = 1, 2
NONE, READ, WRITE = 0, 1, 2
END = (1 << 63) - 1
WAITS_MAX = 256  # of one connection


class Client(Connection):
    """One that has the file open."""

    @classmethod
    def of(cls, service):
        self = cls.unix(service.socket)
        self.upgrade()
        self.hello()
        self.call("WORKSPACE_CREATE", flags=0, thread_id=b"demo")
        self.root = self.call("WORKSPACE_OPEN", flags=0, key=b"demo")["node"]
        made = self.call("CREATE", parent=self.root, flags=RW, mode=0o644, name=b"file")
        self.file = {"node": made["node"], "handle": made["handle"]}
        return self

    def begin(self, owner, kind=WRITE, flags=FLOCK, end=END):
        return self.request("LOCK_SET", **self.file, owner=owner, start=0, end=end, type=kind,
                            flags=flags)

    def lock(self, *args, **keywords):
        return self.reply(self.begin(*args, **keywords))

    def refused(self, tag):
        with pytest.raises(CallError) as error:
            self.reply(tag)
        return error.value.errno

    def service_status(self):
        return json.loads(self.call("STATUS", flags=0)["json"])


@pytest.fixture
def two(service):
    with Client.of(service) as one, Client.of(service) as other:
        yield one, other


def test_cancel_ends_a_wait_and_nothing_is_held(two):
    holder, waiter = two
    holder.lock(1)
    for early in (True, False):
        tag = waiter.begin(2, flags=FLOCK | WAIT)
        if not early:
            wait_until(lambda: holder.service_status()["lock_waits"] == 1)
        waiter.send("CANCEL", tag)
        waiter.send("CANCEL", tag)
        assert waiter.refused(tag) == errno.ECANCELED
        assert holder.service_status()["lock_waits"] == 0
    holder.lock(1, NONE)
    holder.lock(3)
    assert holder.service_status()["lock_owners"] == 1


def test_the_end_of_a_connection_ends_its_waits_and_its_locks(service, two):
    holder, waiter = two
    with Client.of(service) as third:
        third.lock(1)
        for i in range(20):
            third.begin(100 + i, flags=FLOCK | WAIT)
        tag = waiter.begin(2, flags=FLOCK | WAIT)
        wait_until(lambda: holder.service_status()["lock_waits"] == 21)
    assert waiter.reply(tag) is not None
    wait_until(lambda: holder.service_status()["lock_waits"] == 0)
    assert holder.service_status()["lock_owners"] == 1


def test_too_many_waits_are_refused(two):
    holder, waiter = two
    holder.lock(1)
    tags = [waiter.begin(i, flags=FLOCK | WAIT) for i in range(2, 2 + WAITS_MAX)]
    wait_until(lambda: holder.service_status()["lock_waits"] == WAITS_MAX)
    assert waiter.refused(waiter.begin(1000, flags=FLOCK | WAIT)) == errno.ENOLCK
    # Both are served as ever.
    for client in two:
        assert client.call("GETATTR", node=client.root, handle=0)
        assert client.call("WRITE", handle=client.file["handle"], offset=0, flags=0, data=b"x")
    # Shared locks are all granted by one turn.
    for tag in tags:
        waiter.send("CANCEL", tag)
    assert {waiter.refused(tag) for tag in tags} == {errno.ECANCELED}
    tags = [waiter.begin(i, kind=READ, flags=FLOCK | WAIT) for i in range(2, 2 + WAITS_MAX)]
    wait_until(lambda: holder.service_status()["lock_waits"] == WAITS_MAX)
    holder.lock(1, NONE)
    for tag in tags:
        waiter.reply(tag)
    assert holder.refused(holder.begin(1)) == errno.EAGAIN


def test_waiters_on_part_of_a_file_do_not_hold_up_each_other(two):
    """The first in the queue cannot be served, those behind it can."""
    holder, waiter = two
    holder.lock(1, flags=0, end=9)
    holder.reply(holder.request("LOCK_SET", **holder.file, owner=1, start=20, end=29, type=WRITE, flags=0))
    first = waiter.begin(2, flags=WAIT, end=9)
    second = waiter.request("LOCK_SET", **waiter.file, owner=3, start=20, end=25, type=WRITE, flags=WAIT)
    wait_until(lambda: holder.service_status()["lock_waits"] == 2)
    holder.reply(holder.request("LOCK_SET", **holder.file, owner=1, start=20, end=29, type=NONE, flags=0))
    waiter.reply(second)
    assert holder.service_status()["lock_waits"] == 1
    holder.lock(1, NONE, flags=0)
    waiter.reply(first)


def test_a_lock_held_by_an_outsider_is_seen_free(service, two):
    """Nobody tells the service: it looks from time to time, and hardly works meanwhile."""
    holder, waiter = two
    with open(service.root / "workspaces" / "demo" / "tree" / "file", "rb") as outside:
        fcntl.flock(outside, fcntl.LOCK_EX)
        tag = waiter.begin(2, flags=FLOCK | WAIT)
        wait_until(lambda: holder.service_status()["lock_waits"] == 1)
        time.sleep(0.3)
        assert holder.service_status()["lock_waits"] == 1
    waiter.reply(tag)

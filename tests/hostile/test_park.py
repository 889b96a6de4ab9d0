"""Sessions that outlive their connection, raw: what is kept for a client that comes back, and what one
cannot get that has no right to it, or wants too much."""

import errno
import json
import time

import pytest

from lib.berthwire import CONSTANTS, CallError, Closed, Connection, Refused, message
from lib.harness import wait_until

CHANGES = CONSTANTS["WIRE_FEATURE_CHANGES"]
RESUME = CONSTANTS["WIRE_FEATURE_RESUME"] | CHANGES
RW, EXCLUSIVE, APPEND = 3, 16, 4
FLOCK, WRITE_LOCK, UNLOCK = 2, 2, 0
END = (1 << 63) - 1
PARKED_MAX = 64  # of one credential
NO_KEY = bytes(16)


def connect(service, token=None):
    if token:
        host, port = service.http_url.removeprefix("http://").split(":")
        wire = Connection.tcp(host, int(port))
    else:
        wire = Connection.unix(service.socket)
    wire.upgrade(token=token)
    return wire


def client(service, token=None, features=RESUME):
    """One that has the file "file" open, in the workspace "demo"."""
    wire = connect(service, token)
    wire.hello(features=features)
    wire.call("WORKSPACE_CREATE", flags=0, thread_id=b"demo")
    wire.root = wire.call("WORKSPACE_OPEN", flags=0, key=b"demo")["node"]
    made = wire.call("CREATE", parent=wire.root, flags=RW, mode=0o644, name=b"file")
    wire.node, wire.handle = made["node"], made["handle"]
    return wire


def again(service, old, token=None, **keywords):
    wire = connect(service, token)
    welcome = wire.resume(old, **keywords)
    wire.root, wire.node, wire.handle = old.root, old.node, old.handle
    return wire, welcome["resumed"]


def status(wire):
    return json.loads(wire.call("STATUS", flags=0)["json"])


def parked(wire):
    return status(wire)["connections"]["parked"]


def parked_ever(wire):
    return status(wire)["connections"]["parked_ever"]


def cut(wire, observer):
    """The service has seen the end of wire's connection."""
    before = parked_ever(observer)
    wire.close()
    wait_until(lambda: parked_ever(observer) == before + 1, what="the parking")


@pytest.fixture
def observer(service):
    with connect(service) as wire:
        wire.hello()
        yield wire


def lock(wire, owner, kind=WRITE_LOCK):
    wire.call("LOCK_SET", node=wire.node, handle=wire.handle, owner=owner, start=0, end=END, type=kind,
              flags=FLOCK)


def test_nodes_handles_and_locks_are_kept(service, observer):
    old = client(service)
    old.call("WRITE", handle=old.handle, offset=0, flags=0, data=b"kept")
    old.call("UNLINK", parent=old.root, name=b"file")
    other = client(service, features=0)
    lock(old, 1)
    cut(old, observer)
    new, resumed = again(service, old)
    assert resumed
    assert new.call("READ", handle=new.handle, offset=0, size=10)["data"] == b"kept"
    assert new.call("GETATTR", node=new.node, handle=0)["attr"]["nlink"] == 0
    new.call("WRITE", handle=new.handle, offset=4, flags=0, data=b" on")
    assert new.call("READ", handle=new.handle, offset=0, size=10)["data"] == b"kept on"
    assert status(observer)["connections"]["resumed"] == 1
    new.close()
    other.close()


def test_locks_of_a_parked_session_are_held(service, observer):
    old, other = client(service), client(service, features=0)
    lock(old, 1)
    cut(old, observer)
    with pytest.raises(CallError) as refused:
        lock(other, 2)
    assert refused.value.errno == errno.EAGAIN
    new, _ = again(service, old)
    lock(new, 1, UNLOCK)
    lock(other, 2)
    other.close()
    new.close()


@pytest.mark.parametrize("how", ["not asked for", "goodbye"])
def test_what_is_not_parked_ends_at_once(service, observer, how):
    old = client(service, features=0 if how == "not asked for" else RESUME)
    other = client(service, features=0)
    lock(old, 1)
    if how == "goodbye":
        old.send("GOODBYE", 0)
    old.close()
    wait_until(lambda: status(observer)["lock_owners"] == 0, what="the end of the locks")
    lock(other, 2)
    other.close()


def test_a_request_whose_reply_was_lost_is_answered_once(service, observer):
    """Its reply comes again; it is not carried out again, and EEXIST is not its own doing."""
    old = client(service)
    tag = old.request("CREATE", parent=old.root, flags=RW | EXCLUSIVE, mode=0o600, name=b"once")
    append = old.request("WRITE", handle=old.handle, offset=0, flags=1, data=b"line\n")
    wait_until(lambda: status(observer)["messages"].get("WRITE") == 1, what="the request")
    cut(old, observer)
    new, _ = again(service, old)
    made = new.reply(tag)
    assert new.reply(append)["size"] == 5
    assert new.call("GETATTR", node=made["node"], handle=made["handle"])["attr"]["mode"] & 0o777 == 0o600
    assert new.call("READ", handle=new.handle, offset=0, size=100)["data"] == b"line\n"
    assert status(observer)["messages"]["CREATE"] == 2
    new.close()


def test_a_request_that_was_lost_is_carried_out_when_it_comes(service, observer):
    old = client(service)
    full = old.sent
    tag = old.next_tag
    old.request("MKDIR", parent=old.root, mode=0o755, name=b"whole")
    whole = len(old.sent) - len(full)
    # As if only half of the next had left.
    kept, old.write = old.write, lambda data: kept(data[:len(data) // 2])
    old.request("MKDIR", parent=old.root, mode=0o755, name=b"half")
    assert whole > 20
    wait_until(lambda: status(observer)["messages"].get("MKDIR") == 1, what="the first")
    cut(old, observer)
    new, _ = again(service, old)
    assert new.reply(tag).name == new.reply(tag + 1).name == "MADE"
    assert status(observer)["messages"]["MKDIR"] == 2
    new.close()


def test_what_was_given_up_is_not_begun(service, observer):
    old = client(service)
    cut(old, observer)
    old.write = lambda data: None
    tag = old.request("MKDIR", parent=old.root, mode=0o755, name=b"late")
    new, resumed = again(service, old, abandoned=tag)
    assert resumed
    with pytest.raises(CallError) as refused:
        new.reply(tag)
    assert refused.value.errno == errno.ECANCELED
    with pytest.raises(CallError) as missing:
        new.call("LOOKUP", parent=new.root, name=b"late")
    assert missing.value.errno == errno.ENOENT
    new.close()


def test_changes_are_told_to_who_comes_back(service, observer):
    old, other = client(service), client(service, features=0)
    assert old.welcome["features"] & CHANGES
    subscription = old.request("SUBSCRIBE")
    old.wait(subscription, "CHANGES")
    assert old.call("PING", nonce=1)["lease"] == 1
    cut(old, observer)
    other.call("MKDIR", parent=other.root, mode=0o755, name=b"meanwhile")
    new, _ = again(service, old)
    told = new.wait(subscription, "CHANGES")
    assert any(b"meanwhile" in item for item in told["items"])
    new.close()
    other.close()


def test_the_last_connection_has_the_session(service, observer):
    """Its client knows of a loss that the service has not seen."""
    old = client(service)
    new, resumed = again(service, old)
    assert resumed
    assert old.until_closed() == []
    newest, resumed = again(service, new)
    assert resumed and new.until_closed() == []
    newest.call("WRITE", handle=newest.handle, offset=0, flags=0, data=b"x")
    newest.close()


def test_a_key_that_is_not_right_leads_nowhere(service, observer):
    old = client(service)
    lock(old, 1)
    cut(old, observer)
    for key in (NO_KEY, bytes(b ^ 1 for b in old.welcome["key"]), old.welcome["key"][:15] + b"\0"):
        new, resumed = again(service, old, key=key)
        assert not resumed
        with pytest.raises(CallError) as refused:
            new.call("READ", handle=old.handle, offset=0, size=1)
        assert refused.value.errno == errno.EBADF
        assert new.welcome["key"] != old.welcome["key"]
        new.send("GOODBYE", 0)
        new.close()
    new, resumed = again(service, old)
    assert resumed
    new.close()


def test_a_key_of_the_wrong_length_ends_the_connection(service):
    wire = connect(service)
    wire.request("HELLO", version=1, max_payload=0x400000, window=0, features=RESUME, key=b"short")
    assert wire.until_closed()[-1].name == "GOODBYE"


def test_the_key_of_another_user_leads_nowhere(start_service, harness):
    service = start_service(unix=True, http=True, token_file=harness.token_file("token-a", "token-b"))
    with connect(service) as observer:
        observer.hello()
        old = client(service, token="token-a")
        cut(old, observer)
        for token in ("token-b", None):
            new, resumed = again(service, old, token=token)
            assert not resumed
            new.send("GOODBYE", 0)
            new.close()
        with pytest.raises(Refused):
            connect(service, token="token-c")
        new, resumed = again(service, old, token="token-a")
        assert resumed
        new.close()


@pytest.mark.parametrize("claim", [1, 1 << 40, (1 << 64) - 1])
def test_who_claims_replies_that_were_never_sent_has_no_session(service, observer, claim):
    old, other = client(service), client(service, features=0)
    lock(old, 1)
    cut(old, observer)
    new, resumed = again(service, old, received=min(old.received + claim, (1 << 64) - 1))
    assert not resumed
    wait_until(lambda: status(observer)["lock_owners"] == 0, what="the end of the session")
    lock(other, 2)
    new, resumed = again(service, old)
    assert not resumed
    other.close()


def test_who_acknowledges_what_was_never_sent_is_cut_off(service, observer):
    wire = client(service)
    wire.send("ACK", 0, received=wire.received + 1000)
    assert b"never sent" in wire.until_closed()[-1].payload
    wire.close()


def test_coming_and_going_does_not_fill_the_service(service, observer):
    """Each leaves an open file behind."""
    first = client(service)
    cut(first, observer)
    for _ in range(PARKED_MAX * 4):
        client(service).close()
    wait_until(lambda: parked_ever(observer) == PARKED_MAX * 4 + 1, what="the parkings")
    wait_until(lambda: status(observer)["handles"] <= PARKED_MAX, what="the bound")
    assert parked(observer) == PARKED_MAX
    _, resumed = again(service, first)
    assert not resumed


def test_replies_that_nobody_fetches_are_bounded(service, observer):
    """The replies to what was asked before the loss."""
    sessions = []
    filler = client(service, features=0)
    for i in range(4):
        filler.call("WRITE", handle=filler.handle, offset=i << 20, flags=0, data=b"x" * (1 << 20))
    for _ in range(12):
        wire = client(service)
        for i in range(12):
            wire.request("READ", handle=wire.handle, offset=(i % 4) << 20, size=1 << 20)
        sessions.append(wire)
        cut(wire, observer)
        assert status(observer)["resident_bytes"] < 400 << 20
    assert parked(observer) < 12
    filler.close()


# --- leases of those whose connection only the service has lost -----------------------------

def subscriber(service, features):
    wire = client(service, features=features)
    assert wire.welcome["features"] & CHANGES
    wire.wait(wire.request("SUBSCRIBE"), "CHANGES")
    assert wire.call("PING", nonce=1)["lease"] == 1
    return wire


def flush_time(other):
    other.call("WRITE", handle=other.handle, offset=0, flags=0, data=b"new")
    start = time.monotonic()
    other.call("FLUSH", handle=other.handle)
    return time.monotonic() - start


@pytest.mark.parametrize("features", [RESUME, CHANGES], ids=["parked", "gone"])
def test_a_lease_is_waited_for_whoever_has_it(service, features):
    """Its client may not know yet that it is not told of changes any more."""
    lost, other = subscriber(service, features), client(service, features=0)
    lost.close()
    assert 1 < flush_time(other) < 15
    # It has run out.
    assert flush_time(other) < 1
    other.close()


def test_a_lease_ends_with_goodbye(service):
    gone, other = subscriber(service, RESUME), client(service, features=0)
    gone.send("GOODBYE", 0)
    gone.close()
    assert flush_time(other) < 1
    other.close()


def test_who_leaves_while_its_flush_is_under_way(service):
    """Its answer waits for somebody who does not say that he has seen, when its connection is no more."""
    lazy, other = subscriber(service, RESUME), client(service, features=0)
    for _ in range(8):
        leaving = client(service, features=0)
        leaving.call("WRITE", handle=leaving.handle, offset=0, flags=0, data=b"new")
        leaving.send_raw(message("FLUSH", leaving.next_tag, handle=leaving.handle) + message("GOODBYE", 0))
        leaving.until_closed()
        leaving.close()
    assert flush_time(other) < 15
    assert other.call("PING", nonce=3)["nonce"] == 3
    for wire in (lazy, other):
        wire.close()


def test_a_lease_is_not_prolonged_while_somebody_waits(service):
    """Who says that it is alive, but never that it has seen, does not hold others up for ever."""
    lazy, other = subscriber(service, RESUME), client(service, features=0)
    other.call("WRITE", handle=other.handle, offset=0, flags=0, data=b"new")
    start = time.monotonic()
    tag = other.request("FLUSH", handle=other.handle)
    other.sock.settimeout(0.1)
    leases = []
    while True:
        leases.append(lazy.call("PING", nonce=2)["lease"])
        try:
            other.reply(tag)
            break
        except (TimeoutError, Closed):
            assert time.monotonic() - start < 15
    assert leases[-1] == 0 and time.monotonic() - start > 1
    other.close()
    lazy.close()

"""tests/lib/berthwire.py against the C machine (WIRE_PEER, a server end on standard streams), so
that what hostile tests send is what they mean to send."""

import errno
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))
import berthwire as wire  # noqa: E402


@pytest.fixture
def peer():
    process = subprocess.Popen([os.environ["WIRE_PEER"]], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, bufsize=0)
    yield wire.Connection.process(process)
    process.stdin.close()
    process.stdout.close()
    process.wait(timeout=10)


def sample(f, rng):
    if f.kind in ("U32", "U64"):
        return rng.getrandbits(int(f.kind[1:]))
    if f.kind == "TIME":
        return (-rng.getrandbits(60), rng.randrange(10**9))
    if f.kind == "ATTR":
        return {name: sample(wire.Field(name, {"Q": "U64", "I": "U32", "time": "TIME"}[kind]), rng)
                for name, kind in wire.ATTR_FIELDS}
    if f.kind == "BYTES":
        return rng.randbytes(rng.randint(f.min, min(f.max, f.min + 40)))
    return [rng.randbytes(rng.randrange(9)) for _ in range(rng.randrange(5))]


def test_the_table_was_read_whole():
    text = (wire.WIRE / "messages.def").read_text()
    assert len(wire.MESSAGES) == text.count("\nMESSAGE(") >= 60
    assert sum(len(m.fields) for m in wire.MESSAGES.values()) == text.count("\nFIELD_")
    hello = wire.MESSAGES["HELLO"]
    assert (hello.number, hello.sender, hello.kind, hello.owner) == (1, "CLIENT", "REQUEST", "WELCOME")
    assert (hello.min_payload, hello.max_payload) == (44, 188)
    assert wire.MESSAGES["WRITE"].max_payload == 0x100000 + 24
    assert wire.CONSTANTS["WIRE_VERDICT_UNKNOWN"] == 7


@pytest.mark.parametrize("name", wire.MESSAGES)
def test_what_is_encoded_decodes(name):
    rng = random.Random(name)
    for _ in range(20):
        values = {f.name: sample(f, rng) for f in wire.MESSAGES[name].fields}
        payload = wire.encode(name, **values)
        assert wire.decode(name, payload) == values
        with pytest.raises(wire.Malformed):
            wire.decode(name, payload + b"x")
        with pytest.raises(wire.Malformed):
            wire.decode(name, payload[:-1])


def test_every_request_is_understood(peer):
    assert peer.hello()["agent"] == b"wire-peer"
    rng = random.Random(1)
    for message in wire.MESSAGES.values():
        if message.kind != "REQUEST" or message.name == "HELLO":
            continue
        values = {f.name: sample(f, rng) for f in message.fields}
        if message.name == "PING":
            assert peer.call("PING", **values)["nonce"] == values["nonce"]
            continue
        with pytest.raises(wire.CallError) as caught:
            peer.call(message.name, **values)
        if message.name == "WRITE":
            assert (caught.value.errno, caught.value.text) == (errno.EIO, values["data"])
        else:
            assert (caught.value.errno, caught.value.text) == (errno.ENOSYS, message.name.encode())


def test_replies_are_told_apart(peer):
    peer.hello()
    tags = [peer.request("PING", nonce=n) for n in range(3)]
    for nonce in (2, 0, 1):
        assert peer.reply(tags[nonce])["nonce"] == nonce


@pytest.mark.parametrize("bad, why", [
    (b"GET / HTTP/1.1\r\n\r\n", b"unknown message type"),
    (wire.message("PING", 1), b"PING with a tag that does not rise"),
    (wire.message("LOOKUP", 9, name=b"x" * 256), b"LOOKUP of 268 bytes, not 13 to 267"),
    (wire.message("LOOKUP", 9, name=b""), b"LOOKUP of 12 bytes"),
    (wire.frame("LOOKUP", 9, wire.encode("LOOKUP") + b"x"), b"LOOKUP whose fields do not fit"),
    (wire.frame("WRITE", 9, length=0xffffffff), b"WRITE of 4294967295 bytes"),
    (wire.frame("PING", 9, bytes(8), flags=4), b"PING with flags 0x4"),
    (wire.message("EXEC_INPUT", 9, data=b"x"), b"EXEC_INPUT for a call that was never opened"),
])
def test_bad_bytes_end_the_connection(peer, bad, why):
    peer.hello()
    peer.send_raw(bad)
    frames = peer.until_closed()
    assert [f.name for f in frames] == ["GOODBYE"]
    assert frames[0]["error"] == errno.EPROTO
    assert why in frames[0]["text"]


def test_hello_is_refused_with_a_reason(peer):
    with pytest.raises(wire.Closed, match="HELLO of protocol version 0"):
        peer.hello(version=0)

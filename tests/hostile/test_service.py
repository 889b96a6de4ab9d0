"""Peers that break the protocol, hold places, or never read: their own connection ends, memory
stays bounded, and a well-behaved client beside them does not notice."""

import ctypes
import os
import re
import resource
import select
import socket
import struct
import threading
import time

import pytest

from lib import raw
from lib.harness import wait_until

MIB = 1 << 20

# What a flood of connections may cost the service, whatever they send or do not send.
FLOOD_MEMORY = 64 * MIB

# What one client that has authenticated and never reads may cost: FLOW_LIMIT, and as much
# again for a frame under way and for the allocator.
GREEDY_MEMORY = 48 * MIB


def allowed(service, bound):
    """Sanitizers keep freed memory back and add their own to every allocation."""
    binary = open(f"/proc/{service.pid}/exe", "rb").read()
    sanitised = b"__asan_init" in binary or b"__tsan_init" in binary
    return bound * 8 if sanitised else bound


class Peak:
    """The most resident memory since its making, beyond what there was then: what the kernel saw,
    not what a poll happened to see."""

    def __init__(self, service):
        self.service = service
        with open(f"/proc/{service.pid}/clear_refs", "w") as reset:
            reset.write("5")
        self.before = service.memory()

    def grown(self):
        text = open(f"/proc/{self.service.pid}/status").read()
        return int(re.search(r"^VmHWM:\s+(\d+) kB", text, re.MULTILINE).group(1)) * 1024 - self.before

    def check(self, bound):
        grown = self.grown()
        assert grown < allowed(self.service, bound), f"{grown / MIB:.1f} MiB"


@pytest.fixture
def many_descriptors():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 12000:
        pytest.fail(f"the hard limit of descriptors is {hard}; this test opens 10,000 connections")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Bystander:
    """A client that does ordinary things all the while. stop() fails if one of them failed or
    took longer than `bound` seconds; how often it came round must not be 0."""

    def __init__(self, url, bound=2.0, **keywords):
        self.stream = raw.Stream(url, **keywords)
        self.bound = bound
        self.rounds = 0
        self.slowest = 0.0
        self.error = None
        self.ending = threading.Event()
        self.node = self.stream.create_workspace(b"bystander")
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self):
        try:
            while not self.ending.wait(0.002):
                begin = time.monotonic()
                self.stream.ping(self.rounds)
                kind, _ = self.stream.call(raw.GETATTR, struct.pack("<QQ", self.node, 0))
                assert kind == raw.ATTRS
                self.slowest = max(self.slowest, time.monotonic() - begin)
                self.rounds += 1
        except Exception as error:
            self.error = error

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        # Also after what happened it must be served.
        rounds = self.rounds
        if kind is None:
            wait_until(lambda: self.rounds > rounds + 2 or self.error, 20, "the bystander")
        self.ending.set()
        self.thread.join(30)
        self.stream.connection.close()
        if kind is None:
            assert self.error is None, repr(self.error)
            assert self.rounds > 0
            assert self.slowest < self.bound, f"one round took {self.slowest:.2f} s"


def f(kind, tag, payload=b"", **keywords):
    return raw.frame(kind, tag, payload, **keywords)


GOOD_HELLO = f(raw.HELLO, 1, raw.hello())
PING = struct.pack("<Q", 1)

# Bytes after the upgrade, and words of the reason that comes back in GOODBYE.
BROKEN = {
    "unknown type": (GOOD_HELLO + f(0x7fff, 2), "unknown message type 0x7fff"),
    "request before HELLO": (f(raw.PING, 1, PING), "PING before HELLO"),
    "HELLO twice": (GOOD_HELLO + f(raw.HELLO, 2, raw.hello()), "HELLO after HELLO"),
    "HELLO cut inside": (f(raw.HELLO, 1, raw.hello()[:-1]), "HELLO"),
    "HELLO of version 0": (f(raw.HELLO, 1, raw.hello(version=0)), "version 0"),
    "over-long agent": (f(raw.HELLO, 1, raw.hello(agent=b"x" * 129)), "HELLO whose fields"),
    "a reply from a client": (GOOD_HELLO + f(raw.PONG, 2, PING), "PONG from the client"),
    "4 GiB announced": (GOOD_HELLO + f(raw.PING, 2, length=0xffffffff), "4294967295"),
    "too short": (GOOD_HELLO + f(raw.PING, 2, b"1234567"), "PING of 7 bytes"),
    "trailing byte": (GOOD_HELLO + f(raw.PING, 2, PING + b"\0"), "PING of 9 bytes"),
    "name too long": (GOOD_HELLO + f(raw.LOOKUP, 2, struct.pack("<Q", 1) + raw.text(b"n" * 256)),
                      "LOOKUP of"),
    "inner length lies": (GOOD_HELLO + f(raw.LOOKUP, 2, struct.pack("<QI", 1, 200) + b"short"),
                          "LOOKUP"),
    "flags": (GOOD_HELLO + f(raw.PING, 2, PING, flags=0x8000), "flags"),
    "tag reused": (GOOD_HELLO + f(raw.PING, 2, PING) * 2, "tag that does not rise"),
    "tag 0 for a request": (GOOD_HELLO + f(raw.PING, 0, PING), "tag"),
    "tag on a notice": (GOOD_HELLO + f(raw.RELEASE, 5, PING), "RELEASE with a tag"),
    "item without a call": (GOOD_HELLO + f(0x0304, 77, struct.pack("<IQ", 0, 0) + raw.text(b"x")),
                            "never opened"),
    "grant without a call": (GOOD_HELLO + f(raw.GRANT, 9, struct.pack("<I", 1)), "never opened"),
    "a record as a frame": (GOOD_HELLO + f(0x021c, 2, bytes(160)), "DIRENT"),
    "noise": (os.urandom(64 << 10), ""),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_frames(service, name):
    data, words = BROKEN[name]
    with Bystander(service.url):
        with raw.Stream(service.url, greet=False) as stream:
            stream.send(data)
            reason = stream.last_words()
        if words:
            assert reason is not None and words in reason, reason
    if words:
        assert words in service.log
    wait_until(lambda: service.running())


def test_answers_before_a_broken_frame_arrive(service):
    with raw.Stream(service.url) as stream:
        stream.ping()
        stream.send(f(raw.PING, 3, PING) + f(0x7fff, 4))
        assert "unknown message type 0x7fff" in stream.last_words()


@pytest.mark.parametrize("size", [1, 8, 15, 16, 17, 23])
def test_connection_cut_within_a_frame(service, size):
    with Bystander(service.url):
        for _ in range(20):
            with raw.Stream(service.url) as stream:
                stream.send(f(raw.PING, 2, PING)[:size])
        with raw.Stream(service.url) as stream:
            wait_until(lambda: stream.status()["connections"]["open"] == 2)


def test_more_calls_than_allowed(service):
    """Whoever does not wait for answers may not ask for more than the limit that WELCOME names."""
    with Bystander(service.url):
        with raw.Stream(service.url) as stream:
            node = stream.create_workspace(b"calls")
            batch = b"".join(f(raw.GETATTR, stream.tag + 1 + i, struct.pack("<QQ", node, 0))
                             for i in range(100_000))
            peak = Peak(service)
            sender = threading.Thread(target=send_quietly, args=(stream.connection, batch))
            sender.start()
            goodbye = stream.last_words()
            sender.join(20)
            assert "beyond 512 open calls" in goodbye
            peak.check(GREEDY_MEMORY)


def send_quietly(connection, data):
    try:
        connection.sendall(data)
    except OSError:
        pass


# --- places that are only held -----------------------------------------------------------------

def open_many(address, family, count, first_bytes=b""):
    opened = []
    for _ in range(count):
        connection = socket.socket(family, socket.SOCK_STREAM)
        connection.settimeout(20)
        connection.connect(address)
        if first_bytes:
            connection.send(first_bytes)
        opened.append(connection)
    return opened


def half_open(service, url, many, first_bytes, client):
    peak = Peak(service)
    kind, _, rest = url.partition(":")
    if kind == "unix":
        family, address = socket.AF_UNIX, rest
    else:
        family, address = socket.AF_INET, ("127.0.0.1", int(url.rsplit(":", 1)[1]))
    opened = []
    try:
        with Bystander(service.url):
            for _ in range(10):
                opened += open_many(address, family, many // 10, first_bytes)
                with client() as stream:
                    stream.ping()
            peak.check(FLOOD_MEMORY)
            status = client().status()
            assert status["connections"]["alive"] < 3000
            assert status["connections"]["dropped_early"] > many / 2
        with client() as stream:
            stream.ping()
    finally:
        for connection in opened:
            connection.close()
    assert service.log.count("dropped for a newer one") < 100


@pytest.mark.parametrize("first_bytes", [b"", b"GET /v1/stream HTTP/1.1\r\nHost: x\r\nX: "])
def test_ten_thousand_half_open_unix(many_descriptors, service, first_bytes):
    half_open(service, service.url, 10_000, first_bytes, lambda: raw.Stream(service.url))


def test_ten_thousand_half_open_tls(many_descriptors, start_service, certificates):
    service = start_service(tls=True)
    half_open(service, service.tls_url, 10_000, b"\x16\x03\x01\x02\x00\x01",
              lambda: raw.Stream(service.tls_url, token=service.token, ca=certificates.ca))


def test_flood_on_one_listener_spares_the_others(many_descriptors, start_service):
    """Un-upgraded connections compete within their listener only."""
    service = start_service(http=True)
    slow = raw.connect(service.url)
    slow.sendall(raw.request()[:10])
    opened = open_many(("127.0.0.1", int(service.http_url.rsplit(":", 1)[1])), socket.AF_INET, 3000)
    try:
        slow.sendall(raw.request()[10:])
        assert slow.recv(12) == b"HTTP/1.1 101"
    finally:
        for connection in [*opened, slow]:
            connection.close()


def test_out_of_descriptors(service):
    """accept() fails and the loop does not spin; who is in goes on; who waits gets in later."""
    limits = resource.prlimit(service.pid, resource.RLIMIT_NOFILE)
    with Bystander(service.url):
        highest = max(int(name) for name in os.listdir(f"/proc/{service.pid}/fd"))
        resource.prlimit(service.pid, resource.RLIMIT_NOFILE, (highest + 1, limits[1]))
        waiting = [raw.connect(service.url) for _ in range(40)]
        for connection in waiting:
            send_quietly(connection, raw.request("/healthz", upgrade=None))
        wait_until(lambda: "cannot accept" in service.log)
        failures = service_errors(service)
        before = cpu_seconds(service.pid)
        time.sleep(1)
        assert cpu_seconds(service.pid) - before < 0.6
        resource.prlimit(service.pid, resource.RLIMIT_NOFILE, limits)
        served = 0
        for connection in waiting:
            with connection:
                served += raw.read_all(connection).startswith(b"HTTP/1.1 200 ")
        # At each failure the oldest made room for the next; all others get in.
        assert served >= 20
    assert service_errors(service) - failures < 40


def service_errors(service):
    return service.log.count("cannot accept")


def cpu_seconds(pid):
    fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.matrix
@pytest.mark.slow
@pytest.mark.parametrize("stage", ["silent", "slow header", "no HELLO", "slow HELLO"])
def test_slow_to_begin(service, stage):
    """Ten seconds from accept to WELCOME, however busy the client seems meanwhile."""
    connection = raw.connect(service.url)
    data = raw.request() + raw.frame(raw.HELLO, 1, raw.hello())
    if stage in ("no HELLO", "slow HELLO"):
        connection.sendall(raw.request())
        assert connection.recv(4096).startswith(b"HTTP/1.1 101 ")
        data = raw.frame(raw.HELLO, 1, raw.hello())
    begin = time.monotonic()
    ended = None
    with Bystander(service.url):
        for i in range(40):
            if stage.startswith("slow") and i < len(data) - 1:
                send_quietly(connection, data[i:i + 1])
            readable, _, _ = select.select([connection], [], [], 0.5)
            if readable and raw.read_all(connection) == b"":
                ended = time.monotonic() - begin
                break
    connection.close()
    assert ended is not None and 8 < ended < 15
    wait_until(lambda: "not done in time" in service.log)


@pytest.mark.slow
def test_slow_tls_handshake(start_service, certificates):
    service = start_service(tls=True)
    port = int(service.tls_url.rsplit(":", 1)[1])
    with socket.create_connection(("127.0.0.1", port), 20) as connection:
        begin = time.monotonic()
        connection.sendall(b"\x16\x03\x01")
        assert raw.read_all(connection) == b""
        assert 8 < time.monotonic() - begin < 15
    with raw.Stream(service.tls_url, token=service.token, ca=certificates.ca) as stream:
        stream.ping()


# --- clients that never read --------------------------------------------------------------------

def read_requests(stream, handle, count):
    batch = b""
    for _ in range(count):
        stream.tag += 1
        batch += f(raw.READ, stream.tag, struct.pack("<QQI", handle, 0, MIB))
    return batch


def fill(service, stream):
    """A file of 1 MiB in a workspace; its handle."""
    node = stream.create_workspace(b"greedy")
    _, handle = stream.create_file(node, b"file")
    kind, body = stream.call(raw.WRITE, struct.pack("<QQI", handle, 0, 0) + raw.text(bytes(MIB)))
    assert kind == raw.WRITTEN, body
    return handle


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("tls", [False, pytest.param(True, marks=pytest.mark.long)])
def test_client_that_never_reads(start_service, certificates, tls):
    service = start_service(tls=tls)
    if tls:
        stream = raw.Stream(service.tls_url, token=service.token, ca=certificates.ca)
    else:
        stream = raw.Stream(service.url)
    handle = fill(service, stream)
    peak = Peak(service)
    with Bystander(service.url):
        sender = threading.Thread(target=send_quietly,
                                  args=(stream.connection, read_requests(stream, handle, 500)))
        begin = time.monotonic()
        sender.start()
        while time.monotonic() - begin < 60 and "the client does not read" not in service.log:
            time.sleep(0.05)
        took = time.monotonic() - begin
        sender.join(20)
    assert "the client does not read" in service.log
    assert 25 < took < 45
    peak.check(GREEDY_MEMORY)
    stream.connection.close()
    with raw.Stream(service.url) as other:
        wait_until(lambda: other.status()["handles"] == 0)


@pytest.mark.long
def test_slow_reader_gets_everything(service):
    """The limit pauses a client, it does not lose its answers."""
    with raw.Stream(service.url) as stream:
        handle = fill(service, stream)
        peak = Peak(service)
        sender = threading.Thread(target=send_quietly,
                                  args=(stream.connection, read_requests(stream, handle, 200)))
        sender.start()
        for i in range(200):
            if i % 20 == 0:
                time.sleep(0.1)
            kind, _, payload = stream.take()
            assert kind == raw.DATA and len(payload) == MIB + 4
        sender.join(10)
        peak.check(GREEDY_MEMORY)
        stream.ping()


def zstd(data):
    library = ctypes.CDLL("libzstd.so.1")
    library.ZSTD_compressBound.restype = library.ZSTD_compress.restype = ctypes.c_size_t
    library.ZSTD_compressBound.argtypes = [ctypes.c_size_t]
    out = ctypes.create_string_buffer(library.ZSTD_compressBound(len(data)))
    library.ZSTD_compress.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p,
                                      ctypes.c_size_t, ctypes.c_int]
    size = library.ZSTD_compress(out, len(out), data, len(data), 3)
    return out.raw[:size]


def test_frames_that_decompress_to_much(service):
    """A few hundred bytes on the wire become a megabyte each: counted before the next is."""
    peak = Peak(service)
    with Bystander(service.url):
        with raw.Stream(service.url, greet=False) as stream:
            stream.send(f(raw.HELLO, 1, raw.hello(features=1)))
            assert stream.take()[0] == raw.WELCOME
            bomb = zstd(struct.pack("<QQI", 4711, 0, 0) + raw.text(bytes(MIB - 4096)))
            assert len(bomb) < 1000
            count, pings = 400, 200
            # The pings fill the first read, so that the second finds all the others there.
            batch = b"".join(f(raw.PING, 2 + i, PING) for i in range(pings))
            batch += b"".join(f(raw.WRITE, 1000 + i, bomb, flags=2) for i in range(count))
            sender = threading.Thread(target=send_quietly, args=(stream.connection, batch))
            sender.start()
            for _ in range(pings):
                assert stream.take()[0] == raw.PONG
            for _ in range(count):
                kind, _, payload = stream.take()
                assert kind == raw.ERROR and struct.unpack_from("<I", payload)[0] == 9
            sender.join(20)
            peak.check(GREEDY_MEMORY)


def test_flood_of_notices(service):
    """Notices are never answered, and still they are counted. These wait for a request before
    them: a FORGET comes after all that was sent earlier."""
    batch = f(raw.FORGET, 0, raw.text(struct.pack("<QQ", 1, 1) * 4096)) * 200
    with Bystander(service.url):
        with raw.Stream(service.url) as stream:
            stream.ping()
            peak = Peak(service)
            for _ in range(20):
                stream.send(batch)
            stream.ping()
            peak.check(GREEDY_MEMORY)


def test_many_idle_connections(many_descriptors, service):
    """Authenticated ones are limited too, with a reason; what an idle one costs is small."""
    streams = [raw.Stream(service.url)]
    limit = None
    before = service.memory()
    try:
        while len(streams) < 6000:
            connection = raw.connect(service.url)
            connection.sendall(raw.request())
            data = connection.recv(4096)
            if not data.startswith(b"HTTP/1.1 101 "):
                data += raw.read_all(connection)
                connection.close()
                limit = raw.Answer(data)
                break
            connection.sendall(GOOD_HELLO)
            streams.append(connection)
        assert limit is not None
        assert limit.status == 503
        assert limit.problem["retry"] is True and "retry-after" in limit.fields
        assert len(streams) > 1000
        each = (service.memory() - before) / len(streams)
        assert each < allowed(service, 24 * 1024), f"{each / 1024:.1f} KiB a connection"
        streams[0].ping()
    finally:
        streams[0].connection.close()
        for connection in streams[1:]:
            connection.close()
    wait_until(lambda: can_connect(service), 20)


def can_connect(service):
    try:
        with raw.Stream(service.url) as stream:
            return stream.status()["connections"]["open"] == 1
    except AssertionError:
        return False


# --- noise ----------------------------------------------------------------------------------------

def test_noise_on_every_listener(start_service, certificates):
    service = start_service(tls=True, http=True)
    targets = [service.url, service.http_url, service.tls_url.replace("https:", "http:")]
    with Bystander(service.url):
        for size in (1, 7, 100, 4096, 70_000):
            for url in targets:
                with raw.connect(url) as connection:
                    send_quietly(connection, os.urandom(size))
                    send_quietly(connection, b"\r\n\r\n")
                    connection.settimeout(0.2)
                    try:
                        connection.recv(4096)
                    except OSError:
                        pass
    for url in (service.http_url, service.tls_url):
        with raw.Stream(url, token=service.token, ca=certificates.ca) as stream:
            stream.ping()


def test_control_bytes_of_a_peer_do_not_reach_the_log(start_service):
    service = start_service(http=True)
    raw.ask(service.http_url, raw.request("/a%1b[31m\\b\xc3\xa9"))
    with raw.Stream(service.http_url, token=service.token, greet=False) as stream:
        stream.send(f(raw.HELLO, 1, raw.hello(agent=b"evil\x1b[2J\nberthd: forged")))
        assert stream.take()[0] == raw.WELCOME
        stream.send(f(raw.GOODBYE, 0, struct.pack("<I", 0) + raw.text(b"\x1b]0;owned\x07\nforged")))
        stream.last_words()
    wait_until(lambda: "goodbye" in service.log)
    log = service.log_path.read_bytes()
    assert b"\x1b" not in log and b"\x07" not in log
    assert not any(line.startswith((b"berthd: forged", b"forged")) for line in log.splitlines())

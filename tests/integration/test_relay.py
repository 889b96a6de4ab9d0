"""The delay relay does what measurements and failure tests rely on: delays and bandwidths are
what was asked, failures are real, counts are exact."""

import contextlib
import socket
import struct
import threading
import time

import pytest

HELLO, WELCOME, ERROR, OK, PING, PONG = 1, 2, 3, 4, 5, 6
LOOKUP, ENTRY, FORGET, GETATTR, ATTRS = 0x0201, 0x0202, 0x0203, 0x0204, 0x0205


class Peer:
    """A TCP or unix server that hands each connection to serve(connection) on a thread."""

    def __init__(self, address=("127.0.0.1", 0), serve=None):
        family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
        self.listener = socket.socket(family)
        self.listener.bind(address)
        self.listener.listen(64)
        name = self.listener.getsockname()
        self.address = f"unix:{name}" if isinstance(name, str) else f"tcp:{name[0]}:{name[1]}"
        self.serve = serve or self.echo
        self.connections = []
        self.accepted = threading.Semaphore(0)
        threading.Thread(target=self._accept, daemon=True).start()

    @staticmethod
    def echo(connection):
        while data := connection.recv(65536):
            connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                self.connections.append(connection)
                self.accepted.release()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection):
        with contextlib.suppress(OSError):
            self.serve(connection)

    def take(self):
        assert self.accepted.acquire(timeout=10)
        return self.connections[-1]

    def close(self):
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for connection in self.connections:
            connection.close()


@pytest.fixture
def peer():
    with contextlib.ExitStack() as stack:
        def make(*args, **keywords):
            made = Peer(*args, **keywords)
            stack.callback(made.close)
            return made
        yield make


def connect(relay, timeout=20):
    address = relay.address
    if address.startswith("unix:"):
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(timeout)
        connection.connect(address[len("unix:"):])
    else:
        connection = socket.create_connection((relay.host, relay.port), timeout=timeout)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def receive(connection, size):
    data = b""
    while len(data) < size:
        chunk = connection.recv(size - len(data))
        assert chunk, f"end after {len(data)} of {size} bytes"
        data += chunk
    return data


def ping_times(connection, count):
    times = []
    for _ in range(count):
        before = time.perf_counter()
        connection.sendall(b"x")
        receive(connection, 1)
        times.append(time.perf_counter() - before)
    return times


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_bytes_and_end_pass_unchanged(start_relay, peer, harness, kind):
    address = ("127.0.0.1", 0) if kind == "tcp" else str(harness.short / "peer.sock")
    relay = start_relay(peer(address).address)
    payload = bytes(range(256)) * 20000
    with connect(relay) as connection:
        sender = threading.Thread(
            target=lambda: (connection.sendall(payload), connection.shutdown(socket.SHUT_WR)))
        sender.start()
        assert receive(connection, len(payload)) == payload
        assert connection.recv(1) == b""
        sender.join(10)
    assert relay.stats()["to_server"]["bytes"] == len(payload)
    assert relay.stats()["to_client"]["bytes"] == len(payload)


@pytest.mark.parametrize("delay", [0.5, 10])
def test_delay_is_added_once_in_each_direction(start_relay, peer, delay):
    relay = start_relay(peer().address)
    with connect(relay) as connection:
        ping_times(connection, 20)
        direct = min(ping_times(connection, 40))
        relay.delay(delay)
        ping_times(connection, 2)
        times = ping_times(connection, 40)
    # Never earlier than asked; the timer's own lateness stays well below a millisecond where nothing else is in the way.
    assert min(times) >= 2 * delay / 1000
    added = min(times) - direct
    assert added < 2 * delay / 1000 + 0.001, f"{added * 1000:.3f} ms"


def test_delay_does_not_limit_what_is_under_way(start_relay, peer):
    relay = start_relay(peer().address, delay=50)
    with connect(relay) as connection:
        before = time.perf_counter()
        for _ in range(50):
            connection.sendall(b"x")
            time.sleep(0.001)
        receive(connection, 50)
        assert time.perf_counter() - before < 0.5


def test_bandwidth_is_what_was_asked(start_relay, peer):
    sent = 3_000_000

    def pour(connection):
        connection.recv(1)
        connection.sendall(b"d" * sent)

    relay = start_relay(peer(serve=pour).address, bandwidth=2_000_000)
    with connect(relay) as connection:
        connection.sendall(b"g")
        receive(connection, 1)
        before = time.perf_counter()
        receive(connection, sent - 1)
        rate = sent / (time.perf_counter() - before)
    assert 1_960_000 < rate < 2_040_000, rate


def test_bandwidth_counts_each_direction_alone(start_relay, peer):
    relay = start_relay(peer().address, bandwidth=2_000_000)
    with connect(relay) as connection:
        payload = b"d" * 2_000_000
        sender = threading.Thread(target=connection.sendall, args=(payload,))
        before = time.perf_counter()
        sender.start()
        receive(connection, len(payload))
        sender.join(10)
        taken = time.perf_counter() - before
    assert 0.95 < taken < 1.2, taken  # both at once: 1 s, not 2


def test_a_small_message_is_not_held_by_the_end_of_a_large_one(start_relay, peer):
    relay = start_relay(peer().address, bandwidth=1_000_000)
    firsts = []
    with connect(relay) as connection:
        for _ in range(20):  # a busy machine lets one of them through in time
            before = time.perf_counter()
            connection.sendall(b"d" * 100_000)
            receive(connection, 1)
            firsts.append(time.perf_counter() - before)
            receive(connection, 99_999)
            last = time.perf_counter() - before
            assert last > 0.09, last
            if firsts[-1] < 0.05:
                return
    pytest.fail(f"the first byte came after {firsts} s")


def test_cut_closes_both_sides_and_serves_the_next(start_relay, peer):
    server = peer()
    relay = start_relay(server.address)
    with connect(relay) as connection:
        ping_times(connection, 1)
        accepted = server.take()
        relay.cut()
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(1) == b""
        with contextlib.suppress(OSError):
            accepted.settimeout(5)
            assert accepted.recv(1) == b""
    assert relay.stats()["open"] == 0
    with connect(relay) as connection:
        ping_times(connection, 1)


def test_stall_loses_nothing(start_relay, peer):
    relay = start_relay(peer().address)
    with connect(relay, timeout=0.3) as connection:
        ping_times(connection, 1)
        relay.stall()
        connection.sendall(b"kept")
        with pytest.raises(TimeoutError):
            connection.recv(1)
        relay.resume()
        connection.settimeout(10)
        assert receive(connection, 4) == b"kept"


def test_half_open_swallows_and_stays_open(start_relay, peer):
    server = peer()
    relay = start_relay(server.address)
    with connect(relay, timeout=0.3) as connection:
        ping_times(connection, 1)
        accepted = server.take()
        relay.half_open()
        connection.sendall(b"lost" * 100_000)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        accepted.sendall(b"lost too")
        relay.resume()
        with pytest.raises(TimeoutError):
            connection.recv(1)
        assert relay.stats()["open"] == 1
    with connect(relay) as connection:
        ping_times(connection, 1)


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_refuse_is_as_if_nobody_listened(start_relay, peer, harness, kind):
    address = ("127.0.0.1", 0) if kind == "tcp" else str(harness.short / "peer.sock")
    relay = start_relay(peer(address).address)
    with connect(relay) as kept:
        ping_times(kept, 1)
        relay.refuse()
        with pytest.raises(ConnectionRefusedError):
            connect(relay)
        ping_times(kept, 1)
        relay.refuse(False)
        with connect(relay) as connection:
            ping_times(connection, 1)


def test_target_that_is_not_there_closes_the_client(start_relay, harness):
    relay = start_relay(f"unix:{harness.short}/nobody")
    with connect(relay) as connection:
        assert connection.recv(1) == b""
    assert relay.stats()["failed"] == 1


@pytest.mark.parametrize("command", ["", "delay", "delay x", "delay -1", "bandwidth 1e30", "dance"])
def test_bad_commands_are_refused_and_change_nothing(start_relay, peer, command):
    relay = start_relay(peer().address)
    with pytest.raises(AssertionError, match="error"):
        relay.command(command)
    with connect(relay) as connection:
        assert min(ping_times(connection, 5)) < 0.05


# --- counting ------------------------------------------------------------------------------

def frame(kind, tag, payload=b""):
    return struct.pack("<IHHQ", len(payload), kind, 0, tag) + payload


class Stream:
    """Both ends of an upgraded connection, driven step by step."""

    def __init__(self, relay, server):
        self.client = connect(relay)
        self.client.sendall(b"GET /v1/stream HTTP/1.1\r\nHost: x\r\nUpgrade: berth/1\r\n\r\n")
        self.server = server.take()
        self.server.settimeout(20)
        while not (head := self.server.recv(4096)).endswith(b"\r\n\r\n"):
            assert head
        self.server.sendall(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: berth/1\r\n\r\n")
        while not (head := self.client.recv(4096)).endswith(b"\r\n\r\n"):
            assert head

    def request(self, *frames):
        data = b"".join(frames)
        self.client.sendall(data)
        assert receive(self.server, len(data)) == data

    def reply(self, *frames):
        data = b"".join(frames)
        self.server.sendall(data)
        assert receive(self.client, len(data)) == data


@pytest.fixture
def stream(start_relay, peer):
    server = peer(serve=lambda connection: None)
    relay = start_relay(server.address, raw=False)
    made = Stream(relay, server)
    made.relay = relay
    yield made
    made.client.close()


def test_frames_and_bytes_are_counted_per_type_and_direction(stream):
    stream.request(frame(HELLO, 1, b"h" * 24))
    stream.reply(frame(WELCOME, 1, b"w" * 60))
    stream.request(frame(LOOKUP, 2, b"l" * 20), frame(LOOKUP, 3, b"l" * 30), frame(FORGET, 0, b"f" * 16))
    stream.reply(frame(ENTRY, 3, b"e" * 116), frame(ERROR, 2, b"x" * 8))
    stats = stream.relay.stats()
    assert stats["upgraded"] == 1 and stats["malformed"] == 0
    assert stats["to_server"]["types"] == {
        "HELLO": {"frames": 1, "bytes": 40}, "LOOKUP": {"frames": 2, "bytes": 82},
        "FORGET": {"frames": 1, "bytes": 32}}
    assert stats["to_client"]["types"] == {
        "WELCOME": {"frames": 1, "bytes": 76}, "ENTRY": {"frames": 1, "bytes": 132},
        "ERROR": {"frames": 1, "bytes": 24}}
    assert stats["to_server"]["frames"] == 4
    assert stats["to_server"]["frame_bytes"] == 40 + 82 + 32
    assert stats["to_server"]["bytes"] > stats["to_server"]["frame_bytes"]
    assert stats["requests"] == 3


def test_frames_cut_at_every_byte_are_counted_all_the_same(stream):
    data = frame(LOOKUP, 1, b"abc") + frame(GETATTR, 2) + frame(0x7777, 3, b"z")
    for byte in data:
        stream.client.sendall(bytes([byte]))
        receive(stream.server, 1)
    types = stream.relay.stats()["to_server"]["types"]
    assert types == {"LOOKUP": {"frames": 1, "bytes": 19}, "GETATTR": {"frames": 1, "bytes": 16},
                     "unknown": {"frames": 1, "bytes": 17}}


def test_requests_in_flight_together_are_one_round_trip(stream):
    stream.request(*[frame(LOOKUP, tag) for tag in range(1, 101)])
    stream.reply(*[frame(ENTRY, tag) for tag in range(1, 101)])
    assert stream.relay.stats()["round_trips_max"] == 1


def test_requests_after_replies_add_up(stream):
    for tag in range(1, 8):
        stream.request(frame(LOOKUP, tag))
        stream.reply(frame(ENTRY, tag))
    assert stream.relay.stats()["round_trips_max"] == 7


def test_a_request_sent_before_a_reply_came_is_not_behind_it(stream):
    # 1 and 2 together; 3 after 1's answer; 2 answers late; 4 after 3's answer.
    stream.request(frame(LOOKUP, 1), frame(LOOKUP, 2))
    stream.reply(frame(ENTRY, 1))
    stream.request(frame(LOOKUP, 3))
    stream.reply(frame(ENTRY, 2))
    assert stream.relay.stats()["round_trips_max"] == 2
    stream.reply(frame(ENTRY, 3))
    stream.request(frame(LOOKUP, 4))
    stream.reply(frame(ERROR, 4))
    assert stream.relay.stats()["round_trips_max"] == 3


def test_hello_and_ping_are_no_round_trips(stream):
    stream.request(frame(HELLO, 1))
    stream.reply(frame(WELCOME, 1))
    stream.request(frame(PING, 2))
    stream.reply(frame(PONG, 2))
    assert stream.relay.stats()["round_trips_max"] == 0
    stream.request(frame(GETATTR, 3))
    stream.reply(frame(ATTRS, 3))
    assert stream.relay.stats()["round_trips_max"] == 1


def test_reset_starts_at_nothing_with_a_call_open(stream):
    stream.request(frame(LOOKUP, 1))
    stream.reply(frame(ENTRY, 1))
    stream.request(frame(LOOKUP, 2))
    stream.relay.reset_stats()
    stats = stream.relay.stats()
    assert stats["round_trips_max"] == 0 and stats["to_server"]["frames"] == 0
    stream.reply(frame(ENTRY, 2))
    stream.request(frame(LOOKUP, 3))
    assert stream.relay.stats()["round_trips_max"] == 1


def test_closed_connections_keep_their_counts(stream):
    stream.request(frame(LOOKUP, 1))
    stream.reply(frame(ENTRY, 1))
    stream.client.close()
    stream.server.close()
    deadline = time.monotonic() + 10
    while stream.relay.stats()["open"] and time.monotonic() < deadline:
        time.sleep(0.01)
    stats = stream.relay.stats()
    assert stats["open"] == 0 and stats["round_trips_max"] == 1 and stats["round_trips_sum"] == 1


def test_what_is_no_frame_is_passed_on_and_said(stream):
    bad = struct.pack("<IHHQ", 0xffffffff, LOOKUP, 0, 1) + b"rest"
    stream.request(bad)
    stats = stream.relay.stats()
    assert stats["malformed"] == 1 and stats["to_server"]["frames"] == 0


def test_other_protocols_are_only_counted_in_bytes(start_relay, peer):
    relay = start_relay(peer().address, raw=False)
    with connect(relay) as connection:
        payload = b"SSH-2.0-x\r\n\r\n" + b"y" * 1000
        connection.sendall(payload)
        assert receive(connection, len(payload)) == payload
    stats = relay.stats()
    assert stats["to_server"]["bytes"] == len(payload)
    assert stats["to_server"]["frames"] == 0 and stats["malformed"] == 0

"""Requests that two readers might read in two ways, and clients without manners. Two processes read
each connection: the service its first header, a process of the gateway all of it."""

import os
import signal
import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from lib import raw
from lib.harness import is_alive, started_by, wait_until
from lib.http_client import Http

GET = b"GET /healthz HTTP/1.1\r\nHost: a\r\n"
POST = b"POST /v1/workspaces HTTP/1.1\r\nHost: a\r\n"
# What would be answered by itself, if it were taken for a request.
HIDDEN = b"GET /hidden HTTP/1.1\r\nHost: a\r\n\r\n"

AMBIGUOUS = {
    "length and chunks": POST + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "chunks and length": POST + b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n" + HIDDEN,
    "two lengths": POST + b"Content-Length: 2\r\nContent-Length: 0\r\n\r\n{}" + HIDDEN,
    "two equal lengths": POST + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}" + HIDDEN,
    "list of lengths": POST + b"Content-Length: 2, 2\r\n\r\n{}" + HIDDEN,
    "length with a sign": POST + b"Content-Length: +2\r\n\r\n{}" + HIDDEN,
    "negative length": POST + b"Content-Length: -2\r\n\r\n{}" + HIDDEN,
    "hexadecimal length": POST + b"Content-Length: 0x2\r\n\r\n{}" + HIDDEN,
    "huge length": POST + b"Content-Length: 18446744073709551618\r\n\r\n{}" + HIDDEN,
    "empty length": POST + b"Content-Length:\r\n\r\n" + HIDDEN,
    "folded field": GET + b"X: a\r\n Content-Length: 34\r\n\r\n" + HIDDEN,
    "folded first field": b"GET /healthz HTTP/1.1\r\n Host: a\r\nHost: a\r\n\r\n" + HIDDEN,
    "space before the colon": GET + b"Content-Length : 34\r\n\r\n" + HIDDEN,
    "tab before the colon": GET + b"Content-Length\t: 34\r\n\r\n" + HIDDEN,
    "space in a name": GET + b"Content Length: 34\r\n\r\n" + HIDDEN,
    "field without a colon": GET + b"Content-Length 34\r\n\r\n" + HIDDEN,
    "field without a name": GET + b": 34\r\n\r\n" + HIDDEN,
    "line feed alone": GET + b"X: a\nContent-Length: 34\r\n\r\n" + HIDDEN,
    "line feeds at the end": b"GET /healthz HTTP/1.1\r\nHost: a\n\n" + HIDDEN,
    "carriage return alone": GET + b"X: a\rContent-Length: 34\r\n\r\n" + HIDDEN,
    "NUL in a value": GET + b"X: a\0b\r\n\r\n" + HIDDEN,
    "NUL in a name": GET + b"X\0: a\r\n\r\n" + HIDDEN,
    "NUL in the target": b"GET /\0healthz HTTP/1.1\r\nHost: a\r\n\r\n" + HIDDEN,
    "control byte in the target": b"GET /\x01healthz HTTP/1.1\r\nHost: a\r\n\r\n" + HIDDEN,
    "fragment": b"GET /healthz#x HTTP/1.1\r\nHost: a\r\n\r\n",
    "chunked twice": POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "chunked in a list": POST + b"Transfer-Encoding: identity, chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "other encoding": POST + b"Transfer-Encoding: gzip\r\n\r\n" + HIDDEN,
    "nearly chunked": POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "quoted chunked": POST + b'Transfer-Encoding: "chunked"\r\n\r\n0\r\n\r\n' + HIDDEN,
    "vertical tab and chunked": POST + b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "chunked in HTTP/1.0": b"POST /v1/workspaces HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "two hosts": GET + b"Host: b\r\n\r\n",
    "no host": b"GET /healthz HTTP/1.1\r\n\r\n",
    "two credentials": GET + b"Authorization: Bearer a\r\nAuthorization: Bearer b\r\n\r\n",
    "two keys": GET + b"X-API-Key: a\r\nx-api-key: b\r\n\r\n",
    "HTTP/0.9": b"GET /healthz\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/1.2 in words": b"GET /healthz HTTP/one\r\nHost: a\r\n\r\n",
    "no such method": b"BREW /healthz HTTP/1.1\r\nHost: a\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),
    "request behind CONNECT": b"CONNECT other:80 HTTP/1.1\r\nHost: a\r\n\r\n",
}

CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
BAD_CHUNKS = {
    "no size": b"\r\n{}\r\n0\r\n\r\n",
    "size with a prefix": b"0x2\r\n{}\r\n0\r\n\r\n",
    "size with a sign": b"+2\r\n{}\r\n0\r\n\r\n",
    "negative size": b"-1\r\n{}\r\n0\r\n\r\n",
    "space before a size": b" 2\r\n{}\r\n0\r\n\r\n",
    "space behind a size": b"2 \r\n{}\r\n0\r\n\r\n",
    "huge size": b"fffffffffffffffff\r\n{}\r\n0\r\n\r\n",
    "size of 64 bits": b"ffffffffffffffff\r\n{}\r\n0\r\n\r\n",
    "endless size": b"0" * 5000 + b"2\r\n{}\r\n0\r\n\r\n",
    "line feed behind a size": b"2\n{}\r\n0\r\n\r\n",
    "no end of a chunk": b"2\r\n{}0\r\n\r\n",
    "wrong end of a chunk": b"2\r\n{}XX0\r\n\r\n",
    "another byte for a carriage return": b"2\r\n{}X\n0\r\n\r\n",
    "line feed behind a chunk": b"2\r\n{}\n0\r\n\r\n",
    "line feed in an extension": b"2;a\n\r\n{}\r\n0\r\n\r\n",
    "carriage return in an extension": b"2;a\rb\r\n{}\r\n0\r\n\r\n",
    "NUL in an extension": b"2;a\0b\r\n{}\r\n0\r\n\r\n",
    "endless extension": b"2;" + b"a" * 5000 + b"\r\n{}\r\n0\r\n\r\n",
    "folded trailer": b"2\r\n{}\r\n0\r\nX: a\r\n b\r\n\r\n",
    "line feed behind a trailer": b"2\r\n{}\r\n0\r\nX: a\n\r\n",
    "endless trailer": b"2\r\n{}\r\n0\r\n" + b"X: aaaaaaaaaaaaaaaaaa\r\n" * 400 + b"\r\n",
}


def answers(data):
    """The statuses of all answers in what a connection has said."""
    statuses = []
    while data:
        head, separator, data = data.partition(b"\r\n\r\n")
        assert separator and head.startswith(b"HTTP/1.1 "), (head, data)
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        statuses.append(int(head.split()[1]))
        data = data[int(fields.get(b"content-length", 0)):]
    return statuses


def said(url, data, piece=1 << 20):
    """All that is answered until the other side closes."""
    with raw.connect(url) as connection:
        try:
            for at in range(0, len(data), piece):
                connection.sendall(data[at:at + piece])
        except OSError:
            pass  # what came before is answered
        return raw.read_all(connection)


def wrong(service, corpus, ways):
    """Of a corpus, what is not answered as it is to be: {(name, way): statuses}."""
    found = {}
    for name, data in corpus.items():
        for way, (before, piece) in ways.items():
            statuses = answers(said(service.url, before + data, piece))
            if statuses != [200] * before.count(b"GET /") + [400]:
                found[name, way] = statuses
    return found


def test_what_may_be_read_in_two_ways(service):
    """400 and the end: of a first request, which the service reads as well, of a later one, and
    however it comes. Nothing that is hidden in one is answered."""
    # Positive control: what is hidden would be.
    assert answers(said(service.url, GET + b"Connection: keep-alive\r\n\r\n" + HIDDEN.replace(
        b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))) == [200, 404]
    ways = {"first": (b"", 1 << 20), "second": (GET + b"\r\n", 1 << 20), "in pieces": (GET + b"\r\n", 7)}
    assert not wrong(service, AMBIGUOUS, ways)


def test_chunks_that_are_none(service):
    body = b"POST /v1/workspaces HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    # Positive controls, of which the last has an extension and a trailer.
    for name, chunks in {"a": b"2\r\n{}\r\n0\r\n\r\n", "b": b"1\r\n{\r\n001\r\n}\r\n0\r\n\r\n",
                         "c": b'2;x="y"\r\n{}\r\n0;z\r\nX: a\r\nY: b\r\n\r\n'}.items():
        with Http(service.url) as http:
            http.send(body + chunks)
            assert "\"id\" is a string" in http.answer().problem["detail"], name
    corpus = {name: CHUNKED + chunks + HIDDEN for name, chunks in BAD_CHUNKS.items()}
    assert not wrong(service, corpus, {"whole": (b"", 1 << 20), "in pieces": (b"", 3)})


def test_targets(service):
    """The absolute form is the same as the other; what has no path is nothing."""
    with Http(service.url) as http:
        assert http.get("http://elsewhere/healthz").body == b"ok\n"
        assert http.get("/healthz?x=1&y").status == 200
        assert http.get("/v1/workspaces?x=1&y").problem["detail"].count("parameter x") == 1
        assert http.get("/%68ealthz").status == 404
        assert http.get("//healthz").status == 404
        assert http.get("/v1/workspaces/a%00b").problem["detail"].count("percent-encoding") == 1
        assert http.get("/v1/workspaces/a%zz").status == 400
        assert http.get("/v1/workspaces/a%2").status == 400
        assert http.get("/v1/workspaces?after=%ff").status == 200
        assert http.get("/v1/workspaces/..%2f..%2fetc").problem["errno"] == "ENOENT"
        assert http.ask("OPTIONS", "/healthz").status == 405
        assert http.ask("OPTIONS", "*").status == 400 and http.is_closed()


def test_large_headers(service):
    """Of a first request and of a later one; as large as is allowed is answered."""
    for before in (b"", GET + b"\r\n"):
        for large in (b"X: " + b"x" * 20000 + b"\r\n", b"X: y\r\n" * 200, b"X" * 20000 + b": y\r\n"):
            data = before + GET + large + b"\r\n"
            assert answers(said(service.url, data)) == [200] * (len(before) > 0) + [431]
        assert answers(said(service.url, before + b"GET /" + b"x" * 20000 + b" HTTP/1.1\r\n\r\n"))[-1] == 431
        fitting = GET + b"Connection: close\r\nX: " + b"x" * 15000 + b"\r\n\r\n"
        assert answers(said(service.url, before + fitting))[-1] == 200


def test_pipelined(service):
    """In order, also behind errors that are no end; behind one that is, nothing more."""
    with Http(service.url) as http:
        for i in range(50):
            http.start("GET", "/healthz" if i % 2 else f"/nothing/{i}")
            http.start("POST", "/v1/workspaces", {"id": f"w{i % 3}"})
        for i in range(50):
            answer = http.answer()
            assert answer.body == b"ok\n" if i % 2 else f"/nothing/{i}" in answer.problem["detail"]
            assert http.answer().json["id"] == f"w{i % 3}"
        http.send(GET + b"Content-Length : 0\r\n\r\n" + GET + b"\r\n")
        assert http.answer().status == 400 and http.is_closed()


def test_credentials_of_each_request(harness):
    """One connection, several callers: each has its own grant, and a wrong one none."""
    service = harness.start_service(http=True)
    with Http(service.http_url) as http:
        for token, status in ((None, 401), ("wrong", 401), (service.token, 200), (None, 401), (service.token, 200)):
            http.token = token
            assert http.get("/v1/workspaces").status == status
            assert http.get("/healthz").status == 200
        http.token = None
        for field in ("X-API-Key", "X-Access-Token", "authorization"):
            value = "bearer " + service.token if field == "authorization" else service.token
            assert http.get("/v1/workspaces", **{field: value}).status == 200
            assert http.get("/v1/workspaces", **{field: value + " \t"}).status == 200
        basic = {"Authorization": "Basic dXNlcjo="}
        for two in ({"X-API-Key": service.token, "Authorization": "Bearer " + service.token},
                    {"X-API-Key": service.token, "X-Access-Token": service.token}, {"X-API-Key": service.token} | basic):
            answer = http.get("/v1/workspaces", **two)
            assert answer.status == 400 and "two credentials" in answer.problem["detail"]
        # There it is the name of a user.
        assert http.get("/v2/sandboxes", **{"X-API-Key": service.token} | basic).status == 200
        answer = http.get("/files?path=a&signature=v1_x", **{"X-Access-Token": service.token})
        assert answer.status == 400 and b"two credentials" in answer.body
        answer = http.get("/files?path=a&path=b", **{"X-Access-Token": service.token})
        assert answer.status == 400 and b"path is given twice" in answer.body
        # A client has no ticket to say, whatever it says.
        assert http.get("/v1/workspaces", **{"Berth-Caller": "0" * 32}).status == 401
        answer = http.get("/v1/workspaces", Authorization="Bearer a b")
        assert answer.status == 401 and answer.fields["www-authenticate"] == 'Bearer realm="berth"'


def test_credential_that_is_taken_back(harness):
    """Between two requests of one connection: the next one is not let in."""
    access = harness.access_file({"id": "kept", "secret": "kept"}, {"id": "gone", "secret": "gone"})
    service = harness.start_service(http=True, access_file=access)
    with Http(service.http_url, "gone") as http, Http(service.http_url, "kept") as other:
        assert http.get("/v1/workspaces").status == other.get("/v1/workspaces").status == 200
        access.write_text("".join(line for line in access.open() if '"gone"' not in line))
        service.wait_for_line("the access of gone has ended")
        assert http.get("/v1/workspaces").status == 401
        assert other.get("/v1/workspaces").status == 200


def test_tickets_are_of_no_use_elsewhere(harness):
    """At the gateway's own socket nobody gets in without one of a connection that is there."""
    service = harness.start_service()
    path = f"unix:{service.root}/gateway.sock"
    for extra in ("", "Berth-Caller: \r\n", f"Berth-Caller: {'0' * 32}\r\n", f"Berth-Caller: {'0' * 31}\r\n"):
        with raw.connect(path) as connection:
            connection.sendall(raw.request(extra=extra))
            assert raw.read_all(connection) == b""
    # Positive control: the same user gets in at the other socket.
    with raw.Stream(f"unix:{service.root}/berthd.sock") as stream:
        stream.ping()


def test_what_was_upgraded_ends_with_its_client(harness):
    """Even if the process that has it does nothing any more: its ticket is worth nothing, and nor is
    what it got for it."""
    service = harness.start_service(http=True)
    with raw.Stream(service.url) as stream:
        http = Http(service.http_url, service.token)
        assert http.get("/v1/workspaces").status == 200
        worker = worker_of(service)
        os.kill(worker, signal.SIGSTOP)
        assert stream.status()["connections"]["open"] == 2
        http.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        http.close()
        try:
            wait_until(lambda: stream.status()["connections"]["open"] == 1)
        finally:
            os.kill(worker, signal.SIGCONT)


def gateway_of(service):
    """The gateway's first process."""
    def find():
        return [pid for pid in started_by(service.popen.pid) if is_alive(pid) and name_of(pid) == "berthd-gateway"]
    return wait_until(find)[0]


def name_of(pid):
    with open(f"/proc/{pid}/comm", encoding="ascii") as file:
        return file.read().strip()


def worker_of(service, count=1):
    return wait_until(lambda: len(started_by(gateway_of(service))) == count and
                      started_by(gateway_of(service)))[-1]


def test_crash_takes_its_own_connection(service):
    """A process that answers one connection is killed: others go on, and new ones come."""
    with Http(service.url) as first, Http(service.url) as other:
        assert first.get("/v1/workspaces").status == 200
        victim = worker_of(service)
        assert other.get("/v1/workspaces").status == 200
        os.kill(victim, 9)
        assert first.is_closed()
        assert other.get("/v1/workspaces").status == 200
    with Http(service.url) as http:
        assert 'berth_gateway_crashes_total 1' in http.get("/metrics").body.decode()
    service.wait_for_line("the process of a connection was ended by signal 9")


def test_gateway_is_started_again(service):
    with Http(service.url) as http, raw.Stream(service.url) as stream:
        assert http.get("/healthz").status == 200
        old = gateway_of(service)
        os.kill(old, 9)
        assert http.is_closed()
        stream.ping()  # frames go on
        wait_until(lambda: not is_alive(old))

        def again():
            return answers(said(service.url, GET + b"Connection: close\r\n\r\n")) == [200]
        wait_until(again)
        assert gateway_of(service) != old
    service.wait_for_line("what answers HTTP was ended by signal 9")


def test_service_that_crashed(service):
    """HTTP goes on with the next one, by the same gateway; what was under way is cut."""
    with Http(service.url) as http:
        assert http.get("/v1/workspaces").status == 200
        gateway, old = gateway_of(service), service.pid
        service.expected_crashes = 1
        os.kill(old, 9)
        assert http.is_closed()
        wait_until(lambda: service.pid not in (old, service.popen.pid))
    with Http(service.url) as http:
        assert http.get("/v1/workspaces").status == 200
        assert gateway_of(service) == gateway


def test_confinement_of_the_gateway(service):
    """No capabilities, another user where there is one, no new privileges, a filter, no memory of
    others; descriptors of its own connection alone."""
    with Http(service.url) as first, Http(service.url) as second:
        assert first.get("/v1/workspaces").status == 200
        assert second.get("/v1/workspaces").status == 200
        pid = worker_of(service, 2)
        with open(f"/proc/{pid}/status", encoding="ascii") as file:
            status = dict(line.split(":\t", 1) for line in file if ":\t" in line)
        assert int(status["CapPrm"], 16) == int(status["CapBnd"], 16) == 0
        assert status["NoNewPrivs"].strip() == "1" and status["Seccomp"].strip() == "2"
        assert os.geteuid() != 0 or status["Uid"].split() == ["65534"] * 4
        kinds = sorted(os.readlink(f"/proc/{pid}/fd/{fd}").split(":")[0] for fd in os.listdir(f"/proc/{pid}/fd"))
        # To the client, to its parent, to the service.
        assert kinds.count("socket") == 3, kinds


def test_many_connections(service):
    """200 at once, each with requests; afterwards no process of theirs is left."""
    with ExitStack() as stack:
        connections = []
        for _ in range(200):
            connections.append(stack.enter_context(Http(service.url)))
            assert connections[-1].get("/v1/workspaces").status == 200
        for i, http in enumerate(connections):
            http.start("POST", "/v1/workspaces", {"id": f"w{i % 7}"})
        statuses = [http.answer().status for http in connections]
        assert len(started_by(gateway_of(service))) == 200
    assert sorted(set(statuses)) == [200, 201] and statuses.count(201) == 7
    wait_until(lambda: not started_by(gateway_of(service)), 30)


def test_too_many_connections(harness):
    """Who has not got in makes room for whoever comes; who has keeps its place, and others are told."""
    # 8 with so few descriptors.
    service = harness.start_service(wrapper=["prlimit", "--nofile=384:384"])
    with ExitStack() as stack:
        strangers = [stack.enter_context(Http(service.url)) for _ in range(8)]
        assert [http.get("/healthz").status for http in strangers] == [200] * 8
        known = []
        for i in range(8):
            known.append(stack.enter_context(Http(service.url)))
            assert known[-1].get("/v1/workspaces").status == 200
            assert strangers[i].is_closed()
        with raw.connect(service.url) as connection:
            connection.sendall(GET + b"\r\n")
            refused = raw.read_all(connection)
        assert answers(refused) == [503] and b"too many" in refused and b'"retry":true' in refused
        assert [http.get("/v1/workspaces").status for http in known] == [200] * 8
        known[0].close()
        wait_until(lambda: answers(said(service.url, GET + b"Connection: close\r\n\r\n")) == [200])


def test_client_that_reads_nothing(service):
    """It holds up nobody, and what is kept for it is bounded."""
    with raw.connect(service.url) as lazy, Http(service.url) as http:
        lazy.settimeout(0.5)
        sent = 0
        try:
            while sent < 64 << 20:
                sent += lazy.send((GET + b"\r\n") * 1000)
        except TimeoutError:
            pass
        assert sent < 32 << 20
        assert http.get("/healthz").status == 200


def test_half_closed(service):
    """Who has said all gets its answer; who has gone has its request given up."""
    with raw.connect(service.url) as connection:
        connection.sendall(POST + b'Content-Length: 10\r\n\r\n{"id":"a"}')
        connection.shutdown(socket.SHUT_WR)
        assert answers(raw.read_all(connection)) == [201]
    # Amid a body.
    with raw.connect(service.url) as connection:
        connection.sendall(POST + b'Content-Length: 11\r\n\r\n{"id":"b"}')
        connection.shutdown(socket.SHUT_WR)
        assert raw.read_all(connection) == b""
    with Http(service.url) as http:
        assert [w["id"] for w in http.get("/v1/workspaces").json["workspaces"]] == ["a"]


def test_reset_amid_everything(service):
    """Connections that break at any byte leave nothing."""
    data = GET + b"\r\n" + POST + b'Content-Length: 10\r\n\r\n{"id":"a"}'
    for at in range(1, len(data), 5):
        with raw.connect(service.url) as connection:
            connection.sendall(data[:at])
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    with Http(service.url) as http:
        assert http.get("/healthz").status == 200
        wait_until(lambda: len(started_by(gateway_of(service))) == 1, 30)


def test_continue(service):
    """A body is asked for once the request may have one; a refusal comes instead of it."""
    head = POST + b"Expect: 100-continue\r\nContent-Length: 10\r\n\r\n"
    with Http(service.url) as http:
        http.send(head)
        assert http._line() == "HTTP/1.1 100 Continue" and http._line() == ""
        http.send(b'{"id":"a"}')
        assert http.answer().status == 201
        http.send(head.replace(b"/v1/workspaces", b"/nothing"))
        answer = http.answer()
        assert answer.status == 404 and answer.fields["connection"] == "close"
        assert http.is_closed()


@pytest.mark.long
@pytest.mark.timeout(180)
def test_slow_clients(service):
    """A header that does not come, a body that stops, a connection that is not used."""
    def status_after(data, seconds):
        with raw.connect(service.url, timeout=seconds + 30) as connection:
            connection.sendall(data)
            begin = time.monotonic()
            statuses = answers(raw.read_all(connection))
            assert time.monotonic() - begin > seconds / 2
            return statuses
    with ThreadPoolExecutor() as pool:
        begun = pool.submit(status_after, GET, 10)
        later = pool.submit(status_after, b"GET /v1/workspaces HTTP/1.1\r\nHost: a\r\n\r\n" + GET, 10)
        body = pool.submit(status_after, POST + b"Content-Length: 10\r\n\r\n{", 10)
        idle = pool.submit(status_after, b"GET /v1/workspaces HTTP/1.1\r\nHost: a\r\n\r\n", 60)
        assert begun.result() == []
        assert later.result() == [200, 408]
        assert body.result() in ([408], [])
        assert idle.result() == [200]


def test_a_credential_has_its_share(harness):
    """Who holds as many connections as one may leaves places for others, and for this machine's root."""
    lines = ({"id": "greedy", "secret": "g" * 40, "workspaces": ["*"], "verbs": ["read"]},
             {"id": "other", "secret": "o" * 40, "workspaces": ["*"], "verbs": ["read"]})
    # 8 with so few descriptors: 6 for one credential, and 1 for the service's own user alone.
    service = harness.start_service(unix=True, http=True, access_file=harness.access_file(*lines),
                                    wrapper=["prlimit", "--nofile=384:384"])
    unix, http = service.url, service.http_url
    with ExitStack() as stack:
        def get(url, token=None):
            connection = stack.enter_context(Http(url, token))
            return connection.get("/v1/workspaces")
        assert [get(http, "g" * 40).status for _ in range(6)] == [200] * 6
        refused = get(http, "g" * 40)
        assert refused.status == 503 and refused.problem["retry"] is True
        assert "this credential" in refused.problem["detail"], refused.problem
        assert get(http, "o" * 40).status == 200
        assert get(unix).status == 200


def test_a_credential_has_its_share_of_transfers(harness):
    """Who takes nothing of the archives that it has asked for leaves others the means to get theirs."""
    lines = ({"id": "greedy", "secret": "g" * 40, "workspaces": ["*"], "verbs": ["read"]},
             {"id": "other", "secret": "o" * 40, "workspaces": ["*"], "verbs": ["read"]})
    service = harness.start_service(unix=True, http=True, access_file=harness.access_file(*lines))
    unix, http = service.url, service.http_url
    with Http(unix) as root, ExitStack() as stack:
        assert root.ask("POST", "/v1/workspaces", {"id": "big"}).status == 201
        assert root.ask("PUT", "/v1/workspaces/big/files/data", os.urandom(24 << 20)).status == 201
        def begin():
            connection = stack.enter_context(raw.connect(http))
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.sendall(b"GET /v1/workspaces/big/archive HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer "
                               + b"g" * 40 + b"\r\n\r\n")
            return connection.recv(12)
        assert [begin() for _ in range(8)] == [b"HTTP/1.1 200"] * 8
        assert begin() == b"HTTP/1.1 503"
        assert root.ask("POST", "/v1/workspaces/big/snapshots", {"id": "s"}).status == 201

"""Every way in which opening a byte stream can fail says what is wrong and what to do.

The peers are small servers of this file, so that each fails in exactly one way; stream-probe
prints the error and its text. The first test is the positive control: with nothing wrong, the
same probe and servers connect over each kind of URL."""

import contextlib
import os
import shlex
import socket
import ssl
import stat
import subprocess
import sys
import threading

import pytest

ANSWER = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: berth/1\r\nConnection: Upgrade\r\n\r\n"
TOKEN = "correct-horse"


class Server:
    """Accepts connections in a thread and hands each to `talk`; tls: an ssl.SSLContext."""

    def __init__(self, talk, tls=None, path=None):
        if path:
            self.listener = socket.socket(socket.AF_UNIX)
            self.listener.bind(str(path))
            self.listener.listen()
        else:
            self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.settimeout(20)
        self.port = None if path else self.listener.getsockname()[1]
        self.talk = talk
        self.tls = tls
        self.requests = []
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self):
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                connection.settimeout(20)
                with contextlib.suppress(OSError, ssl.SSLError), contextlib.closing(connection):
                    if self.tls:
                        connection = self.tls.wrap_socket(connection, server_side=True)
                    with contextlib.closing(connection):
                        self.talk(self, connection)

    def read_request(self, connection):
        request = b""
        while b"\r\n\r\n" not in request:
            data = connection.recv(4096)
            if not data:
                return b""
            request += data
        self.requests.append(request)
        return request

    def close(self):
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thread.join(20)


def answer(data):
    """A server that reads the request, sends data, and closes."""
    def talk(server, connection):
        if server.read_request(connection):
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR) if server.tls is None else None
    return talk


def echo(server, connection):
    """Upgrades, and sends back all that follows, slowly enough that the sender must wait."""
    if not server.read_request(connection):
        return
    connection.sendall(ANSWER)
    while data := connection.recv(8192):
        connection.sendall(data)


def status(code, body=b"", kind=b"application/problem+json"):
    return (b"HTTP/1.1 %d Reason\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s"
            % (code, kind, len(body), body))


@pytest.fixture
def serve(harness):
    servers = []

    def start(talk, tls=None, path=None):
        servers.append(Server(talk, tls, path))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def probe(harness, build_dir):
    program = build_dir / "tests/tools/stream-probe"
    assert program.exists(), f"{program} is missing: build it first"

    def run(url, *options, env=None, ok=False, **keywords):
        result = harness.run([program, "-m", "8000", *options, url], timeout=30,
                             env={**harness.env, **(env or {})}, **keywords)
        assert result.returncode == (0 if ok else 1), (result.stdout, result.stderr)
        return result.stdout.strip()

    return run


def server_context(certificates, name="server", client_ca=None):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(*certificates.pair(name))
    if client_ca:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(client_ca)
    return context


def check(text, error, url, *words):
    """The error; then the URL; then each of the words, in order; never a library's own noise."""
    assert text.startswith(f"{error} {url}: "), text
    at = 0
    for word in words:
        found = text.find(word, at)
        assert found >= 0, f"{word!r} not (after the others) in: {text}"
        at = found + len(word)
    for noise in ("SSL routines", "error:0", "OpenSSL", "alert", "libcurl", "curl_"):
        assert noise not in text, text


# --- nothing wrong -----------------------------------------------------------------------------

def test_good_streams_open_and_carry_bytes(serve, probe, certificates, harness):
    path = harness.short / "good.sock"
    unix = serve(echo, path=path)
    https = serve(echo, tls=server_context(certificates, client_ca=certificates.ca))
    http = serve(echo)
    cert, key = certificates.pair("client")
    size = 3_000_000
    # What comes right behind the answer, in the same segment, belongs to the stream.
    assert "echoed" in probe(f"unix:{path}", "-e", str(size), ok=True)
    assert "echoed" in probe(f"https://127.0.0.1:{https.port}", "-a", certificates.ca, "-c", cert,
                             "-k", key, "-t", TOKEN, "-e", str(size), ok=True)
    assert "echoed" in probe(f"http://127.0.0.1:{http.port}", "-t", TOKEN, "-e", str(size), ok=True)
    command = shlex.join([sys.executable, "-c", f"""
import os
request = b""
while b"\\r\\n\\r\\n" not in request:
    request += os.read(0, 4096)
os.write(1, {ANSWER!r})
while data := os.read(0, 8192):
    while data:
        data = data[os.write(1, data):]
"""])
    assert "echoed" in probe(f"exec:{command}", "-e", str(size), ok=True)

    assert b"Authorization" not in unix.requests[0]
    for server in (https, http):
        request = server.requests[0]
        assert request.startswith(b"GET /v1/stream HTTP/1.1\r\n")
        assert f"\r\nHost: 127.0.0.1:{server.port}\r\n".encode() in request
        assert b"\r\nUpgrade: berth/1\r\nConnection: Upgrade\r\n" in request
        assert f"\r\nAuthorization: Bearer {TOKEN}\r\n".encode() in request


def test_bytes_behind_the_answer_are_kept(serve, probe):
    expected = bytes((i * 31 + (i >> 8) * 7) & 0xff for i in range(5000))

    def talk(server, connection):
        server.read_request(connection)
        connection.sendall(ANSWER + expected)
        connection.recv(65536)
    server = serve(talk)
    assert "echoed 5000" in probe(f"http://127.0.0.1:{server.port}", "-e", "5000", ok=True)


def test_tls_sender_that_must_wait_repeats_its_record(serve, probe, certificates):
    """The peer does not read until all is sent, so that records are refused half-way."""
    def talk(server, connection):
        server.read_request(connection)
        connection.sendall(ANSWER)
        connection.settimeout(20)
        threading.Event().wait(0.5)
        echo_rest(connection)

    def echo_rest(connection):
        held = bytearray()
        while len(held) < 8_000_000:
            data = connection.recv(65536)
            if not data:
                return
            held += data
        connection.sendall(held)
        connection.recv(1)

    server = serve(talk, tls=server_context(certificates))
    text = probe(f"https://127.0.0.1:{server.port}", "-a", certificates.ca, "-e", "8000000", ok=True)
    assert "echoed 8000000" in text and "blocked 0 times" not in text


def test_writing_to_a_peer_that_is_gone_is_an_error_not_a_signal(serve, build_dir, harness,
                                                                 certificates):
    def hang_up(server, connection):
        server.read_request(connection)
        connection.sendall(ANSWER)

    path = harness.short / "gone.sock"
    serve(hang_up, path=path)
    http = serve(hang_up)
    https = serve(hang_up, tls=server_context(certificates))
    command = ("exec:exec 3<&0; head -c 40 >/dev/null; "
               "printf 'HTTP/1.1 101 X\\r\\nUpgrade: berth/1\\r\\nConnection: Upgrade\\r\\n\\r\\n'; "
               "echo tired >&2; exit 4")
    for url, reason in [(f"unix:{path}", ""), (f"http://127.0.0.1:{http.port}", ""),
                        (f"https://localhost:{https.port}", ""),
                        (command, "the command ended with status 4 and said: tired")]:
        result = harness.run([build_dir / "tests/tools/stream-probe", "-a", certificates.ca,
                              "-e", "3000000", url], timeout=30)
        assert result.returncode == 1, (url, result)
        assert result.stdout.startswith("ok\necho failed: "), result.stdout
        assert reason in result.stdout


# --- certificates --------------------------------------------------------------------------------

@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_unknown_ca(serve, probe, certificates, host):
    server = serve(echo, tls=server_context(certificates, "other_server"))
    url = f"https://{host}:{server.port}"
    check(probe(url, "-a", certificates.ca), "EBADE", url, "CA that is not in the CA file",
          "--ca-file")
    check(probe(url), "EBADE", url, "CA that this machine does not trust", "--ca-file")
    assert server.requests == []


def test_wrong_host_name(serve, probe, certificates):
    server = serve(echo, tls=server_context(certificates, "wrong_host"))
    url = f"https://localhost:{server.port}"
    check(probe(url, "-a", certificates.ca, "-t", TOKEN), "EBADE", url,
          "not made out for localhost", "subject alternative name")
    assert server.requests == []  # the token was not sent


def test_expired_certificate(serve, probe, certificates):
    server = serve(echo, tls=server_context(certificates, "expired"))
    url = f"https://localhost:{server.port}"
    check(probe(url, "-a", certificates.ca, "-t", TOKEN), "EBADE", url, "has expired", "renewed")
    assert server.requests == []


def test_certificate_not_yet_valid(serve, probe, certificates, tmp_path):
    def openssl(*arguments):
        subprocess.run(["openssl", *map(str, arguments)], cwd=tmp_path, check=True,
                       capture_output=True, timeout=30)
    (tmp_path / "ca.cnf").write_text(
        "[ca]\ndefault_ca=d\n[d]\nnew_certs_dir=.\ndatabase=index\nserial=serial\n"
        "default_md=sha256\npolicy=p\n[p]\ncommonName=supplied\n")
    (tmp_path / "index").write_text("")
    (tmp_path / "serial").write_text("2000\n")
    (tmp_path / "ext").write_text("subjectAltName=DNS:localhost\n")
    openssl("req", "-new", "-newkey", "rsa:2048", "-nodes", "-keyout", "key", "-subj", "/CN=future",
            "-out", "csr")
    openssl("ca", "-batch", "-notext", "-config", "ca.cnf", "-cert", certificates.ca, "-keyfile",
            certificates.directory / "ca.key", "-in", "csr", "-out", "pem", "-extfile", "ext",
            "-startdate", "20400101000000Z", "-enddate", "20410101000000Z")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "pem", tmp_path / "key")
    server = serve(echo, tls=context)
    url = f"https://localhost:{server.port}"
    check(probe(url, "-a", certificates.ca), "EBADE", url, "not valid yet", "clock")


def test_client_certificate_required(serve, probe, certificates):
    server = serve(echo, tls=server_context(certificates, client_ca=certificates.ca))
    url = f"https://localhost:{server.port}"
    # Again and again: the alert races with our request.
    for _ in range(10):
        check(probe(url, "-a", certificates.ca), "EACCES", url, "requires a client certificate",
              "--cert-file and --key-file")
    assert server.requests == []


def test_client_certificate_of_another_ca(serve, probe, certificates):
    server = serve(echo, tls=server_context(certificates, client_ca=certificates.ca))
    url = f"https://localhost:{server.port}"
    cert, key = certificates.pair("other_client")
    for _ in range(10):
        check(probe(url, "-a", certificates.ca, "-c", cert, "-k", key), "EACCES", url,
              "does not know the CA of the client certificate", "--cert-file")


def test_files_of_our_own(probe, certificates, tmp_path):
    url = "https://localhost:1"
    cert, key = certificates.pair("client")
    _, other_key = certificates.pair("other_client")
    empty = tmp_path / "empty.pem"
    empty.write_text("not a certificate\n")
    missing = tmp_path / "missing.pem"
    check(probe(url, "-a", missing), "ENOENT", url, f"CA file {missing}", "Check the path")
    check(probe(url, "-c", missing), "ENOENT", url, f"client certificate {missing}")
    check(probe(url, "-c", cert, "-k", missing), "ENOENT", url, f"client key {missing}")
    check(probe(url, "-k", key), "EINVAL", url, "without a certificate", "--cert-file")


def test_unusable_files_of_our_own(serve, probe, certificates, tmp_path):
    server = serve(echo, tls=server_context(certificates))
    url = f"https://localhost:{server.port}"
    cert, key = certificates.pair("client")
    _, other_key = certificates.pair("other_client")
    empty = tmp_path / "empty.pem"
    empty.write_text("not a certificate\n")
    encrypted = tmp_path / "encrypted.key"
    subprocess.run(["openssl", "pkey", "-in", key, "-aes256", "-passout", "pass:secret", "-out",
                    encrypted], check=True, timeout=30)
    check(probe(url, "-a", empty), "EINVAL", url, "CA file holds no certificate", "--ca-file")
    for pair in ((empty, key), (cert, other_key), (cert, empty), (cert, encrypted)):
        check(probe(url, "-a", certificates.ca, "-c", pair[0], "-k", pair[1]), "EINVAL", url,
              "cannot be used", "--cert-file and --key-file")
    check(probe(url, "-a", certificates.ca, "-c", cert), "EINVAL", url, "its file has no key", "--key-file")


# --- the wrong protocol ----------------------------------------------------------------------------

def test_tls_against_a_plain_port(serve, probe):
    server = serve(answer(status(400)))
    url = f"https://127.0.0.1:{server.port}"

    def talk(server, connection):
        connection.recv(4096)
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
    server.talk = talk
    check(probe(url, "-t", TOKEN), "EPROTO", url, "does not speak TLS", "http://")


def test_tls_against_a_port_that_hangs_up(serve, probe):
    def talk(server, connection):
        connection.recv(1)
    server = serve(talk)
    url = f"https://127.0.0.1:{server.port}"
    check(probe(url), "EPROTO", url, "during the TLS handshake", "Check that")


def test_plain_http_on_a_tls_port(serve, probe, certificates):
    server = serve(echo, tls=server_context(certificates))
    url = f"http://127.0.0.1:{server.port}"
    check(probe(url), "EPROTO", url, "https://")


def test_plain_http_on_a_tls_port_of_a_service(start_service, probe):
    url = start_service(tls=True).tls_url.replace("https", "http")
    error = probe(url)
    check(error, "EPROTO", url, "this port speaks TLS", "https://")
    assert "not a Berth service" not in error


def test_plain_http_on_a_tls_port_that_alerts(serve, probe):
    def talk(server, connection):
        connection.recv(4096)
        connection.sendall(bytes([21, 3, 3, 0, 2, 2, 70]))
    server = serve(talk)
    url = f"http://127.0.0.1:{server.port}"
    check(probe(url), "EPROTO", url, "this port speaks TLS", "https://")


def test_server_of_tls_1_2(serve, probe, certificates):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(*certificates.pair("server"))
    server = serve(echo, tls=context)
    url = f"https://localhost:{server.port}"
    check(probe(url, "-a", certificates.ca), "EPROTO", url, "does not speak TLS 1.3", "Check")
    assert server.requests == []


@pytest.mark.parametrize("code", [200, 204, 301, 400, 404, 405, 500])
def test_some_other_http_server(serve, probe, code):
    server = serve(answer(status(code, b"<html>It works!</html>" if code != 204 else b"", b"text/html")))
    url = f"http://127.0.0.1:{server.port}"
    check(probe(url), "EPROTO", url, f"HTTP status {code}", "not a Berth service", "Check")


def test_upgrade_to_something_else(serve, probe):
    server = serve(answer(ANSWER.replace(b"berth/1", b"websocket")))
    url = f"http://127.0.0.1:{server.port}"
    check(probe(url), "EPROTO", url, "not a Berth service")


def test_no_http_at_all(serve, probe):
    server = serve(answer(b"220 mail.example ESMTP\x1b[31m\r\n"))
    url = f"http://127.0.0.1:{server.port}"
    text = probe(url)
    check(text, "EPROTO", url, "not HTTP", "220 mail.example ESMTP\\x1b", "Check")


def test_headers_and_bodies_without_end(serve, probe):
    def headers(server, connection):
        server.read_request(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\n")
        while True:
            connection.sendall(b"X-Filler: " + b"x" * 1000 + b"\r\n")

    def body(server, connection):
        server.read_request(connection)
        connection.sendall(b"HTTP/1.1 404 No\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            connection.sendall(b"3e8\r\n" + b"x" * 1000 + b"\r\n")

    first = serve(headers)
    url = f"http://127.0.0.1:{first.port}"
    check(probe(url), "EPROTO", url, "longer than 16384 bytes")
    second = serve(body)
    url = f"http://127.0.0.1:{second.port}"
    check(probe(url), "EPROTO", url, "HTTP status 404")


def test_answer_that_is_cut(serve, probe):
    server = serve(answer(ANSWER[:40]))
    url = f"http://127.0.0.1:{server.port}"
    check(probe(url), "EPROTO", url, "ended the connection")


# --- refusals --------------------------------------------------------------------------------------

def test_wrong_and_missing_token(serve, probe, certificates):
    body = b'{"title": "Unauthorized", "detail": "no such token"}'
    server = serve(answer(status(401, body)), tls=server_context(certificates))
    url = f"https://localhost:{server.port}"
    check(probe(url, "-a", certificates.ca, "-t", "wrong"), "EACCES", url,
          "does not accept the token", "no such token", "token file")
    check(probe(url, "-a", certificates.ca), "EACCES", url, "requires a token", "--token-file")
    assert b"Bearer wrong" in server.requests[0] and b"Bearer" not in server.requests[1]


def test_other_refusals(serve, probe, harness):
    body = b'{"detail": "uid 1234 is not the owner"}'
    path = harness.short / "refuses.sock"
    serve(answer(status(403, body)), path=path)
    check(probe(f"unix:{path}"), "EACCES", f"unix:{path}", "refuses this user: uid 1234",
          "Run as the user")
    for code, error, words in [(403, "EACCES", ("refuses access", "token")),
                               (426, "EPROTO", ("another version", "same version")),
                               (429, "EBUSY", ("no more connections", "Try again")),
                               (503, "EBUSY", ("no more connections", "Try again")),
                               (502, "EPROTO", ("gateway", "service runs"))]:
        server = serve(answer(status(code)))
        url = f"http://127.0.0.1:{server.port}"
        check(probe(url), error, url, *words)


def test_a_refusal_cannot_write_to_the_terminal(serve, probe):
    server = serve(answer(status(401, b'{"detail": "\\u001b[2J\\nforged"}')))
    text = probe(f"http://127.0.0.1:{server.port}")
    assert "\x1b" not in text and "\n" not in text and "\\x1b[2J\\x0aforged" in text


def test_token_with_line_break(probe):
    url = "http://127.0.0.1:1"
    check(probe(url, "-t", "a\r\nX-Evil: 1"), "EINVAL", url, "token")
    check(probe(url, "-t", ""), "EINVAL", url, "token is empty")


# --- nobody there ------------------------------------------------------------------------------------

def closed_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def test_connection_refused(probe):
    port = closed_port()
    for scheme in ("http", "https"):
        url = f"{scheme}://127.0.0.1:{port}"
        check(probe(url), "ECONNREFUSED", url, "connection refused", str(port), "service runs")


def test_name_does_not_resolve(probe):
    url = "https://no-such-host.invalid:7000"
    check(probe(url), "ECONNREFUSED", url, "no-such-host.invalid does not resolve", "DNS")


def test_unix_socket_problems(probe, harness):
    missing = f"unix:{harness.short}/missing.sock"
    check(probe(missing), "ENOENT", missing, "no such socket", "berthd")
    below = f"unix:{harness.short}/no/such/dir.sock"
    check(probe(below), "ENOENT", below, "no such socket")

    path = harness.short / "dead.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    check(probe(f"unix:{path}"), "ECONNREFUSED", f"unix:{path}", "nobody listens", "berthd")

    plain = harness.short / "plain"
    plain.write_text("")
    check(probe(f"unix:{plain}"), "ECONNREFUSED", f"unix:{plain}", "not a socket")

    datagram = harness.short / "datagram.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(str(datagram))
        check(probe(f"unix:{datagram}"), "EPROTO", f"unix:{datagram}", "another type")


def test_unix_socket_of_somebody_else(serve, probe, harness):
    harness.short.chmod(stat.S_IRWXU | stat.S_IXGRP | stat.S_IXOTH)
    path = harness.short / "private.sock"
    serve(echo, path=path)
    other = {}
    if os.geteuid() == 0:
        path.chmod(0o600)
        other = {"user": 65534, "cwd": "/"}
    else:
        path.chmod(0)
    check(probe(f"unix:{path}", **other), "EACCES", f"unix:{path}", "permission denied",
          "Run as the user")


def test_unix_backlog_that_is_full(serve, probe, harness):
    """connect() says EAGAIN then; it is tried again until there is room, or no time is left."""
    path = harness.short / "full.sock"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen(0)
    with contextlib.ExitStack() as stack:
        stack.callback(listener.close)
        for _ in range(2):
            waiting = stack.enter_context(socket.socket(socket.AF_UNIX))
            waiting.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                waiting.connect(str(path))
        check(probe(f"unix:{path}", "-m", "500"), "EBUSY", f"unix:{path}", "too many", "Try again")

        listener.settimeout(10)

        def make_room():
            served = False
            while not served:
                connection, _ = listener.accept()
                connection.settimeout(0.5)
                with contextlib.suppress(OSError), contextlib.closing(connection):
                    if connection.recv(4096):
                        connection.sendall(ANSWER)
                        served = True
        timer = threading.Timer(0.3, make_room)
        timer.start()
        stack.callback(timer.join)
        assert probe(f"unix:{path}", "-m", "5000", ok=True) == "ok"


def test_time_out(serve, probe, certificates):
    hold = threading.Event()

    def silent(server, connection):
        hold.wait(20)
    plain, tls = serve(silent), serve(silent, tls=server_context(certificates))
    try:
        url = f"http://127.0.0.1:{plain.port}"
        check(probe(url, "-m", "300"), "ETIMEDOUT", url, "no answer within 0.3 s", "Check")
        url = f"https://127.0.0.1:{plain.port}"
        check(probe(url, "-m", "300"), "ETIMEDOUT", url, "no connection within 0.3 s", "Check")
        url = f"https://localhost:{tls.port}"
        check(probe(url, "-m", "500", "-a", certificates.ca), "ETIMEDOUT", url,
              "no answer within 0.5 s")
        url = "exec:echo who are you? >&2; exec sleep 5"
        check(probe(url, "-m", "300"), "ETIMEDOUT", url, "0.3 s", "who are you?", "by hand")
    finally:
        hold.set()


# --- commands ------------------------------------------------------------------------------------------

def test_commands_that_fail(probe):
    url = "exec:no-such-command --stdio"
    text = probe(url)
    check(text, "ECHILD", url, "command was not found", "127", "PATH")
    assert "said" not in text  # what the shell says of it has been shown
    url = "exec:/etc/passwd"
    check(probe(url), "ECHILD", url, "cannot be run", "permissions")
    url = "exec:echo first >&2; echo last words >&2; exit 3"
    text = probe(url)
    check(text, "ECHILD", url, "ended with status 3", "last words", "by hand")
    assert "first" not in text.removeprefix(f"ECHILD {url}")
    url = "exec:kill -9 $$"
    check(probe(url), "ECHILD", url, "killed by signal 9")
    url = "exec:exec >&- <&-; sleep 3"
    check(probe(url), "ECHILD", url, "closed its output")
    url = "exec:true"
    check(probe(url), "ECHILD", url, "ended with status 0", "before a service answered")
    url = "exec:echo Welcome to this host"
    check(probe(url), "EPROTO", url, "not a Berth service's", "Welcome to this host", "Take out")
    url = "exec:printf 'HTTP/1.1 503 Busy\\r\\nContent-Length: 0\\r\\n\\r\\n'"
    check(probe(url), "EBUSY", url, "no more connections")


def test_standard_error_of_a_command_is_passed_on(harness, build_dir):
    def said(script):
        return harness.run([build_dir / "tests/tools/stream-probe", f"exec:{script}; exit 1"], timeout=30,
                           env={**harness.env, "LC_ALL": "C.UTF-8"})
    result = said("echo one >&2; printf 'two\\003' >&2")
    assert result.stderr == "connect: one\nconnect: two\\x03" and "said: two\\x03" in result.stdout
    # Whose words they are, line by line, and nothing that drives a terminal; a prompt is shown at once.
    result = said(r"printf '\033]0;pwn\007\033[2J\r\n\n\rmine\tx\n' >&2; printf '\303' >&2; sleep 0.1; "
                  r"printf '\244\302\233\377ok' >&2")
    assert result.stderr == ("connect: \\x1b]0;pwn\\x07\\x1b[2J\nconnect: mine x\n"
                             "connect: \u00e4\\xc2\\x9b\\xffok")
    # And so much of it.
    result = said("yes some words | head -c 3000000 >&2")
    assert len(result.stderr) < 80000 and result.stderr.splitlines()[-1] == \
        "connect: (what it says from here on is not shown)"


@pytest.mark.long
@pytest.mark.timeout(60)
def test_what_is_waited_for_is_told(harness, build_dir):
    """A command that hangs is waited for with a word, and one that begins to answer not for long."""
    probe = build_dir / "tests/tools/stream-probe"
    result = harness.run([probe, "-m", "6000", "exec:exec sleep 50"], timeout=30)
    assert "still waiting for an answer from exec:exec sleep 50 (6 s at most)" in result.stderr
    assert result.stdout.startswith("ETIMEDOUT")
    result = harness.run([probe, "exec:printf 'HTTP/1.1 101 X\\r\\n'; exec sleep 50"], timeout=30)
    assert result.stdout.startswith("ETIMEDOUT") and "began to answer" in result.stdout


def test_a_command_that_does_not_end_is_killed(harness, build_dir, tmp_path):
    """It ignores end of file and TERM; after that neither it nor a zombie is left."""
    pid = tmp_path / "pid"
    script = tmp_path / "command"
    script.write_bytes(b"#!/bin/sh\ntrap '' TERM\necho $$ > " + os.fsencode(pid) +
                       b"\nprintf 'HTTP/1.1 101 X\\r\\nUpgrade: berth/1\\r\\n"
                       b"Connection: Upgrade\\r\\n\\r\\n'\nexec sleep 30 < /dev/null > /dev/null\n")
    script.chmod(0o700)
    result = harness.run([build_dir / "tests/tools/stream-probe", f"exec:exec {script}"], timeout=30)
    assert result.stdout == "ok\n"
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


# --- URLs and proxies --------------------------------------------------------------------------------------

def test_urls_that_are_none(probe):
    for url, words in [("", "not a URL"), ("berth", "not a URL"), ("ftp://h:1", "not a URL"),
                       ("unix:", "absolute"), ("unix:x", "absolute"), ("unix:/" + "x" * 107, "107"),
                       ("exec:", "missing"), ("exec: ", "missing"),
                       ("https://", "HOST:PORT"), ("https://h:0", "port"), ("https://h:99999", "valid"),
                       ("https://h:1/path", "nothing may follow"), ("https://h:1?q", "nothing may follow"),
                       ("https://h:1#f", "nothing may follow"),
                       ("http://10.0.0.1:1", "https://"), ("http://localhost.example:1", "https://"),
                       ("http://0.0.0.0:1", "this machine alone")]:
        text = probe(url)
        assert text.startswith("EINVAL ") and words in text, (url, text)
    text = probe("https://me:hunter2@h:1")
    assert text.startswith("EINVAL ") and "hunter2" not in text and "--token-file" in text


def test_proxies_are_for_https_alone(serve, probe, harness, certificates):
    path = harness.short / "direct.sock"
    serve(echo, path=path)
    http = serve(echo)
    https = serve(echo, tls=server_context(certificates))
    nowhere = {name: f"http://127.0.0.1:{closed_port()}"
               for name in ("http_proxy", "https_proxy", "all_proxy")}
    assert probe(f"unix:{path}", env=nowhere, ok=True) == "ok"
    assert probe(f"http://127.0.0.1:{http.port}", env=nowhere, ok=True) == "ok"
    assert probe(f"https://localhost:{https.port}", "-a", certificates.ca,
                 env={**nowhere, "no_proxy": "localhost"}, ok=True) == "ok"
    url = f"https://localhost:{https.port}"
    check(probe(url, "-a", certificates.ca, env=nowhere), "ECONNREFUSED", url, "proxy", "https_proxy")

    seen = []

    def proxy(server, connection):
        seen.append(server.read_request(connection))
        with socket.create_connection(("127.0.0.1", https.port)) as onward:
            connection.sendall(b"HTTP/1.1 200 Connected\r\n\r\n")
            there = threading.Thread(target=copy, args=(connection, onward), daemon=True)
            there.start()
            copy(onward, connection)
            there.join(10)

    def copy(source, target):
        with contextlib.suppress(OSError):
            while data := source.recv(8192):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    through = {"https_proxy": f"http://127.0.0.1:{serve(proxy).port}"}
    assert probe(url, "-a", certificates.ca, "-t", TOKEN, env=through, ok=True) == "ok"
    assert seen[0].startswith(f"CONNECT localhost:{https.port} ".encode())
    assert TOKEN.encode() not in seen[0]

    refusing = serve(answer(status(407)))
    check(probe(url, "-a", certificates.ca, env={"https_proxy": f"http://127.0.0.1:{refusing.port}"}),
          "EACCES", url, "proxy requires authentication", "https_proxy")

"""The service's life, its listeners, who may come in, HTTP, and --stdio."""

import concurrent.futures
import errno
import json
import os
import select
import signal
import socket
import stat
import struct
import subprocess
import time
from pathlib import Path

import pytest

from lib import raw
from lib.harness import is_alive, wait_until


def berthd(harness, *args, **keywords):
    return harness.run([harness.program("berthd"), *args], **keywords)


# --- command line ----------------------------------------------------------------------------

def test_version_and_help(harness):
    assert berthd(harness, "--version").stdout.startswith("berthd ")
    shown = berthd(harness, "--help")
    assert shown.returncode == 0
    for option in ("--config", "--root", "--listen", "--stdio", "--access-file", "--audit-log", "--tls-cert",
                   "--tls-key", "--tls-client-ca", "--log-level", "--version"):
        assert option in shown.stdout


@pytest.mark.parametrize("arguments", [["--nonsense"], ["stray"], ["--root"]])
def test_wrong_arguments(harness, arguments):
    result = berthd(harness, *arguments)
    assert result.returncode == 2
    assert "Try 'berthd --help'" in result.stderr


def test_a_root_without_a_name(harness):
    """It is not the directory in which one happens to be."""
    result = berthd(harness, "--root", "", "--listen", f"unix:{harness.new_path('s')}")
    assert result.returncode == 2 and result.stderr == "berthd: --root: a directory is needed\n"


@pytest.mark.parametrize("arguments, words", [
    (["--log-level", "loud"], "error, warning, info or debug"), (["--listen", "nonsense"], "nonsense"),
    (["--prune", "nonsense"], "nonsense")])
def test_values_that_make_no_sense(harness, arguments, words):
    result = berthd(harness, "--root", harness.new_path("root"), *arguments)
    assert result.returncode == 1 and words in result.stderr


@pytest.mark.parametrize("listen, more, words", [
    ("https://127.0.0.1:0", [], "access-file"),
    ("http://127.0.0.1:0", [], "access-file"),
    ("https://127.0.0.1:0", ["--access-file", "ACCESS"], "tls-cert"),
    ("http://192.0.2.1:80", ["--access-file", "ACCESS"], "this machine alone"),
    ("ftp://127.0.0.1:0", [], "ftp"),
    ("unix:DIRECTORY", [], "not a socket"),
])
def test_listeners_that_are_refused(harness, listen, more, words):
    """Nothing is served without authentication, and the reason says what is missing."""
    directory = harness.new_path("directory")
    directory.mkdir()
    access = str(harness.access_file({"id": "a", "secret": "secret"}))
    result = berthd(harness, "--root", harness.new_path("root"), "--listen",
                    listen.replace("DIRECTORY", str(directory)),
                    *[access if word == "ACCESS" else word for word in more])
    assert result.returncode == 1
    assert words in result.stderr


def test_open_access_file_is_refused(harness):
    access = harness.access_file({"id": "a", "secret": "secret"}, mode=0o644)
    result = berthd(harness, "--root", harness.new_path("root"), "--listen", "http://127.0.0.1:0",
                    "--access-file", access)
    assert result.returncode == 1
    assert str(access) in result.stderr and "chmod 600" in result.stderr


def test_tokens_in_the_access_file_are_refused(harness):
    """And not shown: it says what to do instead."""
    access = harness.token_file("secret-that-was-written-down")
    result = berthd(harness, "--root", harness.new_path("root"), "--listen", "http://127.0.0.1:0",
                    "--access-file", access)
    assert result.returncode == 1
    assert "line 2" in result.stderr and "berth token create" in result.stderr
    assert "secret-that" not in result.stderr


def test_key_of_another_certificate(harness, certificates):
    result = berthd(harness, "--root", harness.new_path("root"), "--listen", "https://127.0.0.1:0",
                    "--access-file", harness.access_file({"id": "t", "secret": "t"}), "--tls-cert",
                    certificates.pair("server")[0], "--tls-key", certificates.pair("client")[1])
    assert result.returncode == 1
    assert "does not belong to the certificate" in result.stderr


@pytest.mark.parametrize("more", [[], ["https://127.0.0.1:0"]], ids=["http alone", "https too"])
def test_certificates_cannot_be_asked_for_on_http(harness, certificates, more):
    """Else the token alone would open what the operator thinks needs a certificate."""
    pem, key = certificates.pair("server")
    listen = [word for url in ["http://127.0.0.1:0", *more] for word in ("--listen", url)]
    result = berthd(harness, "--root", harness.new_path("root"), *listen, "--tls-cert", pem, "--tls-key", key,
                    "--access-file", harness.access_file({"id": "t", "secret": "t"}), "--tls-client-ca", certificates.ca)
    assert result.returncode == 1
    assert "http://127.0.0.1:0: --tls-client-ca asks for certificates, which http has not" in result.stderr


@pytest.mark.parametrize("mode, warned", [(0o600, False), (0o640, False), (0o644, True), (0o602, True)])
def test_key_open_to_everybody_is_warned_of(harness, certificates, mode, warned):
    pem, key = certificates.pair("server")
    copy = harness.new_path("key")
    copy.write_bytes(key.read_bytes())
    copy.chmod(mode)
    service = harness.start_service(listen=["https://127.0.0.1:0"], args=["--tls-cert", pem, "--tls-key", copy])
    assert (f"warning: the key {copy} is open to every user" in service.log) == warned, service.log


# --- sockets and life ------------------------------------------------------------------------

def test_sockets_and_their_modes(harness):
    directory = harness.short / "made"
    service = harness.start_service(listen=[f"unix:{directory}/s.sock"])
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    for path in (directory / "s.sock", service.root / "berthd.sock"):
        wait_until(path.exists)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with raw.Stream(f"unix:{path}") as stream:
            stream.ping()
    service.stop()
    assert not (directory / "s.sock").exists()
    assert not (service.root / "berthd.sock").exists()


def test_default_socket(harness):
    service = harness.start_service(listen=[])
    path = Path(harness.env["XDG_RUNTIME_DIR"]) / "berth" / "berthd.sock"
    wait_until(path.exists)
    with raw.Stream(f"unix:{path}") as stream:
        stream.ping()
    service.wait_for_line(r"listening on unix:.*berthd\.sock", 2)


def listening(pid):
    """(family, address) of the sockets on which a process listens."""
    ours = {os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
    found = []
    for family in ("tcp", "tcp6", "udp", "udp6"):
        for words in map(str.split, Path(f"/proc/net/{family}").read_text().splitlines()[1:]):
            if f"socket:[{words[9]}]" in ours:
                found.append((family, words[1]))
    for words in map(str.split, Path("/proc/net/unix").read_text().splitlines()[1:]):
        if f"socket:[{words[6]}]" in ours and int(words[3], 16) & 0x10000:  # __SO_ACCEPTCON
            found.append(("unix", words[7] if len(words) > 7 else ""))
    return found


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
def test_by_default_nobody_else_can_connect(harness):
    """Nothing of a network, and sockets that another user does not get at, in two ways."""
    runtime = harness.short / "runtime"
    runtime.mkdir(mode=0o755)
    service = harness.start_service(listen=[], root=harness.short / "root",
                                    env={**harness.env, "XDG_RUNTIME_DIR": str(runtime)})
    service.wait_for_line(r"listening on unix:.*berthd\.sock", 2)
    sockets = [runtime / "berth" / "berthd.sock", service.root / "berthd.sock",
               service.root / "gateway.sock"]
    assert sorted(listening(service.pid)) == sorted(("unix", str(path)) for path in sockets)
    code = ("import os, socket, sys\nos.setgid(65534); os.setuid(65534)\n"
            "s = socket.socket(socket.AF_UNIX)\n"
            "try:\n    s.connect(sys.argv[1])\nexcept OSError as e:\n    print(e.errno)\nelse:\n    print(0)\n")

    def connect(path):
        return int(harness.run(["/usr/bin/python3", "-c", code, path], check=True).stdout)

    harness.short.chmod(0o755)
    for path in sockets:
        assert connect(path) == errno.EACCES
        path.parent.chmod(0o755)  # the directory stands in the way no more, the socket's mode does
        assert connect(path) == errno.EACCES
        path.chmod(0o666)         # positive control: and without that the kernel lets them
        assert connect(path) == 0


def test_long_paths(harness):
    """A socket address holds 107 bytes; a root may be deeper."""
    root = harness.new_path("root") / ("d" * 100) / ("e" * 100)
    root.parent.mkdir(parents=True)
    service = harness.start_service(root=root)
    wait_until((root / "berthd.sock").exists)
    with subprocess.Popen([harness.program("berthd"), "--root", root, "--stdio"], env=harness.env,
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE) as relay:
        relay.stdin.write(raw.request("/healthz", upgrade=None))
        relay.stdin.close()
        assert relay.stdout.read().startswith(b"HTTP/1.1 200 ")
    assert service.running()


def test_stale_socket_is_replaced(harness):
    first = harness.start_service()
    first.kill()
    assert Path(first.socket).exists()
    second = harness.start_service(root=first.root, listen=[first.url])
    with raw.Stream(second.url) as stream:
        stream.ping()


def test_socket_in_use_is_left_alone(harness):
    first = harness.start_service()
    result = berthd(harness, "--root", harness.new_path("other"), "--listen", first.url)
    assert result.returncode == 1
    assert "somebody else listens on" in result.stderr
    with raw.Stream(first.url) as stream:
        stream.ping()


def test_root_in_use(harness):
    first = harness.start_service()
    result = berthd(harness, "--root", first.root, "--listen", f"unix:{harness.short}/x.sock")
    assert result.returncode == 1
    assert str(first.root) in result.stderr
    assert not (harness.short / "x.sock").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stops_with_a_goodbye(harness, number):
    service = harness.start_service()
    stream = raw.Stream(service.url)
    half_open = raw.connect(service.url)
    service.signal(number)
    assert "stopping" in stream.last_words()
    stream.connection.close()
    assert raw.read_all(half_open) == b""
    half_open.close()
    assert service.popen.wait(10) == 0
    assert "berthd: stopped" in service.log


def test_stops_at_once_with_idle_clients(harness):
    service = harness.start_service()
    stream = raw.Stream(service.url)
    service.signal(signal.SIGTERM)
    stream.last_words()
    stream.connection.close()
    begin = time.monotonic()
    assert service.popen.wait(10) == 0
    assert time.monotonic() - begin < 1


def test_client_that_does_not_close_does_not_hold_it_up(harness):
    service = harness.start_service()
    with raw.Stream(service.url):
        service.signal(signal.SIGTERM)
        assert service.popen.wait(10) == 0


# --- HTTP ------------------------------------------------------------------------------------

@pytest.mark.parametrize("data, status, words", [
    (raw.request("/nothing\x1b"), 400, "not an HTTP/1.1 request"),
    (raw.request("/nothing", upgrade=None), 404, "/nothing"),
    (raw.request("/v1/stream", upgrade=None), 426, "Upgrade: berth/1"),
    (raw.request("/v1/stream", upgrade="websocket"), 426, "no other protocol"),
    (raw.request("/v1/stream", method="POST"), 405, "GET"),
    (raw.request("/healthz", method="DELETE"), 405, "GET"),
    (raw.request(host=None), 400, "not an HTTP/1.1 request"),
    (raw.request(extra="Content-Length: 5\r\n"), 400, "without a body"),
    (raw.request(extra="Transfer-Encoding: chunked\r\n"), 400, "without a body"),
    (raw.request(extra="Transfer-Encoding: gzip\r\n"), 400, "Transfer-Encoding"),
    (raw.request(extra="Transfer-Encoding: identity\r\nContent-Length: 0\r\n"), 400, "not an HTTP/1.1 request"),
    (raw.request(extra="Transfer-Encoding : chunked\r\n"), 400, "not an HTTP/1.1 request"),
    (raw.request("/healthz", upgrade=None, extra="Transfer-Encoding: gzip\r\n"), 400, "Transfer-Encoding"),
    (raw.request(extra="X: folded\r\n Authorization: x\r\n"), 400, "folded fields"),
    (raw.request(extra="Authorization: a\r\nAuthorization: b\r\n"), 400, "not an HTTP"),
    (raw.request(extra="X: " + "x" * 16384 + "\r\n"), 431, "16384"),
    (raw.request("/" + "x" * 20000), 431, "16384"),
    (b"GET /v1/stream HTTP/1.0\r\nConnection: Upgrade\r\nUpgrade: berth/1\r\n\r\n", 400, "HTTP/1.1"),
    (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, "not an HTTP/1.1 request"),
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(300), 400, "TLS"),
    (b"SSH-2.0-OpenSSH_9.2\r\n", 400, "not an HTTP/1.1 request"),
    (bytes(range(256)) * 4, 400, "not an HTTP/1.1 request"),
])
def test_problems(service, data, status, words):
    answer = raw.ask(service.url, data)
    assert answer.status == status
    problem = answer.problem
    assert words in problem["detail"]
    assert problem["effect"] == "none" and problem["retry"] is False
    if status == 405:
        assert "GET" in answer.fields["allow"]
    if status == 426:
        assert answer.fields["upgrade"] == "berth/1"
    with raw.Stream(service.url) as stream:
        stream.ping()


def test_healthz(service):
    answer = raw.ask(service.url, raw.request("/healthz?deep=1", upgrade=None))
    assert (answer.status, answer.body) == (200, b"ok\n")
    head = raw.ask(service.url, raw.request("/healthz", method="HEAD", upgrade=None))
    assert (head.status, head.body, head.fields["content-length"]) == (200, b"", "3")


def test_header_in_single_bytes_and_frames_behind_it(service):
    """What follows the header belongs to the stream, however the bytes are cut."""
    with raw.connect(service.url) as connection:
        data = raw.request() + raw.frame(raw.HELLO, 1, raw.hello())
        for i in range(len(data)):
            connection.sendall(data[i:i + 1])
        received = b""
        while b"berthd" not in received:
            received += connection.recv(4096)
    with raw.connect(service.url) as connection:
        connection.sendall(data + raw.frame(raw.PING, 2, struct.pack("<Q", 99)))
        received = b""
        while struct.pack("<Q", 99) not in received:
            received += connection.recv(4096)


def test_upgrade_is_matched_as_http_says(service):
    with raw.connect(service.url) as connection:
        connection.sendall(b"GET /v1/stream HTTP/1.1\r\nhost: x\r\nCONNECTION: keep-alive,  upgrade\r\n"
                           b"upgrade: other, Berth/1\r\n\r\n")
        assert connection.recv(4096).startswith(b"HTTP/1.1 101 ")


def test_client_that_does_not_close_after_its_answer(service):
    with raw.connect(service.url) as connection, raw.Stream(service.url) as stream:
        connection.sendall(raw.request("/nothing"))
        assert connection.recv(12) == b"HTTP/1.1 404"
        wait_until(lambda: stream.status()["connections"]["alive"] == 1, 8)


# --- who may come in -------------------------------------------------------------------------

@pytest.mark.parametrize("kind", ["tls_url", "http_url"])
def test_tokens(start_service, certificates, kind):
    service = start_service(tls=True, http=True)
    url = getattr(service, kind)
    for token in (None, "", "wrong", service.token + "x", service.token[:-1], "x" * 1024):
        answer = raw.ask(url, raw.request(token=token), ca=certificates.ca)
        assert answer.status == 401
        assert answer.fields["www-authenticate"].startswith("Bearer")
        assert "token" in answer.problem["detail"]
    basic = raw.request(extra="Authorization: Basic dXNlcjpwYXNz\r\n")
    assert raw.ask(url, basic, ca=certificates.ca).status == 401
    with raw.Stream(url, token=service.token, ca=certificates.ca) as stream:
        stream.ping()
        assert stream.status()["connections"]["unauthorized"] == 7
    assert raw.ask(url, raw.request("/healthz", upgrade=None), ca=certificates.ca).status == 200


def test_every_token_of_the_file(harness, start_service):
    service = start_service(http=True, token_file=harness.token_file("one", "two", "three"))
    for token in ("one", "two", "three"):
        with raw.Stream(service.http_url, token=token) as stream:
            stream.ping()


@pytest.mark.matrix
@pytest.mark.parametrize("way", ["unix", "http", "https", "stdio"])
def test_ordinary_clients_leave_no_line_in_the_log(harness, start_service, way):
    service = start_service(http=way == "http", tls=way == "https")
    url = {"unix": service.url, "http": service.http_url, "https": service.tls_url,
           "stdio": f"exec:{harness.program('berthd')} --stdio --root {service.root}"}[way]

    def lines():
        return [line for line in service.log.splitlines() if "berthd: debug: " not in line]

    service.wait_for_line(r"listening on .*/berthd\.sock$")
    before = lines()
    for words in (["create", "demo"], ["ls"], ["status"], ["visibility", "demo"],
                  ["exec", "--no-persist", "-w", "demo", "--", "seq", "1000"],
                  ["exec", "--no-persist", "-w", "demo", "--", "false"],
                  ["rm", "demo"]) * 3:
        harness.run_berth(*words, url=url, service=service)
    wait_until(lambda: json.loads(harness.run_berth("status", "--json", url=service.url, service=service)
                                  .stdout)["service"]["connections"]["alive"] == 1)
    assert lines() == before


def test_a_client_that_is_lost_leaves_a_line(service):
    """The positive control of the above. An answer that was not read turns the end into a reset."""
    with raw.Stream(service.url) as stream:
        stream.open_call(raw.STATUS, struct.pack("<I", 0))
        select.select([stream.connection], [], [], 10)
    wait_until(lambda: "in ready: Connection reset by peer" in service.log, what="the line")


def test_no_token_in_the_log(start_service):
    service = start_service(http=True)
    raw.ask(service.http_url, raw.request(token="guessed-secret"))
    with raw.Stream(service.http_url, token=service.token):
        pass
    assert service.token not in service.log
    assert "guessed-secret" not in service.log


def test_client_certificate(start_service, certificates):
    service = start_service(tls=True, client_ca=True)
    with raw.Stream(service.tls_url, ca=certificates.ca, pair=certificates.pair("client")) as stream:
        stream.ping()
    answer = raw.ask(service.tls_url, raw.request(), ca=certificates.ca)
    assert answer.status == 403
    assert "client certificate" in answer.problem["detail"]
    # Another authority's: the handshake itself fails.
    with pytest.raises((OSError, EOFError, AssertionError)):
        raw.Stream(service.tls_url, ca=certificates.ca, pair=certificates.pair("other_client"))
    wait_until(lambda: "TLS:" in service.log)


def test_certificate_and_token_are_both_needed(harness, start_service, certificates):
    service = start_service(tls=True, client_ca=True, token_file=harness.token_file("both"))
    pair = certificates.pair("client")
    with raw.Stream(service.tls_url, token="both", ca=certificates.ca, pair=pair) as stream:
        stream.ping()
    assert raw.ask(service.tls_url, raw.request(), ca=certificates.ca, pair=pair).status == 401
    assert raw.ask(service.tls_url, raw.request(token="both"), ca=certificates.ca).status == 403


def test_only_tls_1_3(start_service, certificates):
    import ssl
    service = start_service(tls=True)
    context = ssl.create_default_context(cafile=certificates.ca)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    port = int(service.tls_url.rsplit(":", 1)[1])
    with socket.create_connection(("localhost", port), 10) as plain:
        with pytest.raises(ssl.SSLError):
            context.wrap_socket(plain, server_hostname="localhost")
    context.maximum_version = ssl.TLSVersion.TLSv1_3
    with socket.create_connection(("localhost", port), 10) as plain:
        with context.wrap_socket(plain, server_hostname="localhost") as secure:
            assert secure.version() == "TLSv1.3"


def test_plain_http_on_the_tls_port(start_service, certificates):
    service = start_service(tls=True)
    answer = raw.ask(service.tls_url.replace("https:", "http:"), raw.request(token=service.token))
    assert answer.status == 400
    assert "https://" in answer.problem["detail"]
    with raw.Stream(service.tls_url, token=service.token, ca=certificates.ca) as stream:
        stream.ping()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
def test_peer_credentials(harness):
    """Another user who gets at the socket is refused; root always may."""
    service = harness.start_service()
    harness.short.chmod(0o755)
    os.chmod(service.socket, 0o777)
    code = ("import os, socket, sys\nos.setgid(65534); os.setuid(65534)\n"
            "s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])\n"
            "s.sendall(b'GET /v1/stream HTTP/1.1\\r\\nHost: x\\r\\nConnection: Upgrade\\r\\n"
            "Upgrade: berth/1\\r\\n\\r\\n')\nprint(s.recv(4096).decode())\n")
    result = harness.run(["/usr/bin/python3", "-c", code, service.socket], check=True)
    assert result.stdout.startswith("HTTP/1.1 403 ")
    assert "user 65534 may not use the service of user 0" in result.stdout
    assert "user 65534 may not use the service of user 0" in service.log


# --- status ----------------------------------------------------------------------------------

def test_status(service):
    with raw.Stream(service.url) as stream:
        stream.create_workspace(b"one")
        status = stream.status()
        assert status["pid"] == service.pid
        assert status["root"] == str(service.root)
        assert status["workspaces"] == 1
        assert status["exec"]["running"] == 0
        assert status["messages"]["WORKSPACE_CREATE"] == 1
        assert status["connections"]["open"] == 1
        assert status["workers"] >= 4
        assert 0 < status["resident_bytes"] <= status["resident_bytes_max"]


# --- order -----------------------------------------------------------------------------------

def test_pipelined_writes_and_release_keep_their_order(service):
    """On one handle changes take effect as they were sent, and RELEASE comes last."""
    with raw.Stream(service.url) as stream:
        parent = stream.create_workspace(b"order")
        _, handle = stream.create_file(parent, b"file")
        count = 200
        batch = b""
        for i in range(count):
            stream.tag += 1
            payload = struct.pack("<QQI", handle, 0, 0) + raw.text(struct.pack("<I", i) * 2048)
            batch += raw.frame(raw.WRITE, stream.tag, payload)
        read = stream.tag = stream.tag + 1
        batch += raw.frame(raw.READ, read, struct.pack("<QQI", handle, 0, 8192))
        batch += raw.frame(raw.RELEASE, 0, struct.pack("<Q", handle))
        stream.send(batch)
        seen = 0
        content = None
        while seen < count + 1:
            kind, tag, payload = stream.take()
            assert kind == (raw.DATA if tag == read else raw.WRITTEN), (kind, payload)
            content = payload[4:] if tag == read else content
            seen += 1
        assert content == struct.pack("<I", count - 1) * 2048
        # The handle is gone now.
        kind, payload = stream.call(raw.READ, struct.pack("<QQI", handle, 0, 1))
        assert kind == raw.ERROR and struct.unpack_from("<I", payload)[0] == 9


def test_a_small_write_does_not_overtake_a_large_one(service):
    with raw.Stream(service.url) as stream:
        parent = stream.create_workspace(b"order")
        _, handle = stream.create_file(parent, b"file")
        for i in range(40):
            batch, reads = b"", []
            for size in (1 << 20, 4096, 1):
                stream.tag += 1
                batch += raw.frame(raw.WRITE, stream.tag, struct.pack("<QQI", handle, 0, 0) +
                                   raw.text(bytes([size % 251]) * size))
                stream.tag += 1
                reads.append((stream.tag, bytes([size % 251])))
                batch += raw.frame(raw.READ, stream.tag, struct.pack("<QQI", handle, 0, 1))
            stream.send(batch)
            answers = {}
            for _ in range(6):
                kind, tag, payload = stream.take()
                answers[tag] = (kind, payload[4:])
            for tag, content in reads:
                assert answers[tag] == (raw.DATA, content)


def test_requests_of_a_lost_connection_end_whole(service):
    """What had been read of a connection that ends is carried out, in order, and then its
    handles are closed."""
    with raw.Stream(service.url) as stream:
        parent = stream.create_workspace(b"lost")
        _, handle = stream.create_file(parent, b"file")
        for i in range(64):
            stream.open_call(raw.WRITE, struct.pack("<QQI", handle, i * 65536, 0) +
                             raw.text(bytes([i]) * 65536))
    with raw.Stream(service.url) as other:
        wait_until(lambda: other.status()["handles"] == 0, what="the handle's closing")
    content = (service.root / "workspaces" / "lost" / "tree" / "file").read_bytes()
    assert content and len(content) % 65536 == 0
    assert content == b"".join(bytes([i]) * 65536 for i in range(len(content) // 65536))


# --- --stdio ---------------------------------------------------------------------------------

class StdioService:
    """Relays to a root that nobody serves; whoever they start is stopped at the end."""

    def __init__(self, harness):
        self.harness = harness
        self.root = harness.new_path("stdio-root")
        self.relays = []

    def relay(self):
        process = subprocess.Popen(
            [self.harness.program("berthd"), "--root", self.root, "--stdio"], env=self.harness.env,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.relays.append(process)
        return process

    def health(self, relay):
        relay.stdin.write(raw.request("/healthz", upgrade=None))
        relay.stdin.flush()
        return raw.Answer(relay.stdout.read())

    def pid(self):
        with raw.Stream(f"unix:{self.root}/berthd.sock") as stream:
            return stream.status()["pid"]

    def close(self):
        for relay in self.relays:
            relay.kill()
            relay.wait(10)
            for pipe in (relay.stdin, relay.stdout, relay.stderr):
                pipe.close()
        if (self.root / "berthd.sock").exists():
            pid = self.pid()
            os.kill(pid, signal.SIGTERM)
            wait_until(lambda: not is_alive(pid), what="its end")


@pytest.fixture
def stdio(harness):
    it = StdioService(harness)
    yield it
    it.close()


def test_stdio_starts_a_service_that_outlives_it(stdio):
    relay = stdio.relay()
    assert stdio.health(relay).status == 200
    assert relay.wait(10) == 0
    pid = stdio.pid()
    assert pid != relay.pid
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    assert int(fields[3]) != os.getsid(0) and int(fields[4]) == 0  # own session, no terminal
    for number in ("0", "1", "2"):
        assert os.readlink(f"/proc/{pid}/fd/{number}") in ("/dev/null", f"{stdio.root}/berthd.log")
    assert not any("pipe:" in os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()
                   if entry.name in ("0", "1", "2"))
    again = stdio.relay()
    assert stdio.health(again).status == 200
    assert stdio.pid() == pid
    log = (stdio.root / "berthd.log").read_text()
    assert log.count("listening on") == 1 and f"unix:{stdio.root}/berthd.sock" in log


def test_many_relays_at_once_start_one_service(stdio):
    relays = [stdio.relay() for _ in range(8)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(stdio.health, relays))
    assert [answer.status for answer in answers] == [200] * 8
    log = (stdio.root / "berthd.log").read_text()
    assert log.count("listening on") == 1, log
    assert "error" not in log


def test_killed_relay_takes_its_connection_alone(stdio):
    first, second = stdio.relay(), stdio.relay()
    for relay in (first, second):
        relay.stdin.write(raw.request() + raw.frame(raw.HELLO, 1, raw.hello()))
        relay.stdin.flush()
        assert relay.stdout.read(12) == b"HTTP/1.1 101"
    pid = stdio.pid()
    with raw.Stream(f"unix:{stdio.root}/berthd.sock") as stream:
        wait_until(lambda: stream.status()["connections"]["open"] == 3)
        first.kill()
        wait_until(lambda: stream.status()["connections"]["open"] == 2)
        assert second.poll() is None
        second.stdin.write(raw.frame(raw.PING, 2, struct.pack("<Q", 0x1234567890)))
        second.stdin.flush()
        data = b""
        while struct.pack("<Q", 0x1234567890) not in data:
            data += second.stdout.read1(4096)
        # End of our input: the service hears of it, and the relay ends.
        second.stdin.close()
        assert second.wait(10) == 0
        second.stdin = open(os.devnull, "wb")
        wait_until(lambda: stream.status()["connections"]["open"] == 1)
    assert stdio.pid() == pid


def test_relay_ends_with_its_service(stdio):
    relay = stdio.relay()
    relay.stdin.write(raw.request() + raw.frame(raw.HELLO, 1, raw.hello()))
    relay.stdin.flush()
    assert relay.stdout.read(12) == b"HTTP/1.1 101"
    os.kill(stdio.pid(), signal.SIGTERM)
    assert b"stopping" in relay.stdout.read()
    assert relay.wait(10) == 0


def test_relay_moves_much_in_both_directions(stdio):
    relay = stdio.relay()
    relay.stdin.write(raw.request() + raw.frame(raw.HELLO, 1, raw.hello()))
    relay.stdin.flush()

    def take(size):
        data = relay.stdout.read(size)
        assert len(data) == size
        return data

    def take_frame():
        length, kind, _, tag = raw.HEADER.unpack(take(raw.HEADER.size))
        return kind, tag, take(length)

    while not (line := relay.stdout.readline()) in (b"\r\n", b""):
        pass
    assert line and take_frame()[0] == raw.WELCOME

    def call(kind, tag, payload):
        relay.stdin.write(raw.frame(kind, tag, payload))
        relay.stdin.flush()
        return take_frame()

    call(raw.WORKSPACE_CREATE, 2, struct.pack("<IQQ", 0, 0, 0) + raw.text(b"w") + 3 * raw.text(b""))
    node = struct.unpack_from("<Q", call(raw.WORKSPACE_OPEN, 3, struct.pack("<I", 0) +
                                         raw.text(b"w"))[2])[0]
    _, _, body = call(raw.CREATE, 4, struct.pack("<QIIIII", node, 3, 0o600, 0, 0, 0) + raw.text(b"f"))
    handle = struct.unpack_from("<QQ", body)[1]
    block = os.urandom(1 << 20)
    for i in range(16):
        kind, _, _ = call(raw.WRITE, 5 + i, struct.pack("<QQI", handle, i << 20, 0) + raw.text(block))
        assert kind == raw.WRITTEN
    for i in range(16):
        relay.stdin.write(raw.frame(raw.READ, 100 + i, struct.pack("<QQI", handle, i << 20, 1 << 20)))
    relay.stdin.flush()
    for _ in range(16):
        kind, _, payload = take_frame()
        assert kind == raw.DATA and payload[4:] == block


def test_stdio_says_why_it_cannot(harness):
    root = harness.new_path("file")
    root.write_text("not a directory")
    result = berthd(harness, "--root", root, "--stdio")
    assert result.returncode == 1
    assert str(root) in result.stderr


def test_working_directory_is_left(harness, service):
    """Started from inside a mount of its own, it would keep that mount busy for ever."""
    assert os.readlink(f"/proc/{service.pid}/cwd") == "/"


@pytest.mark.parametrize("path", ["notes", "trash/kept", "tmp/a/kept", "workspaces/kept", "restores/kept", "exec/kept", "inodes"])
def test_nobody_elses_directory_becomes_a_root(harness, path):
    """What is in a root's trash is deleted: one that was mistyped must not be taken for one."""
    root = harness.new_path("somebody's")
    (root / path).parent.mkdir(parents=True)
    (root / path).write_text("precious")
    result = berthd(harness, "--root", root, "--listen", f"unix:{harness.short}/s")
    assert result.returncode == 1 and f"{root} is no service's directory" in result.stderr, result
    assert path.split("/")[0] + " is in it already" in result.stderr
    assert [str(p.relative_to(root)) for p in root.rglob("*") if p.is_file()] == [path]
    assert (root / path).read_text() == "precious"


def test_what_a_first_start_leaves_half_made_is_gone_on_with(start_service, harness):
    root = harness.new_path("root")
    for name in ("tmp", "trash", "workspaces", "lost+found", "exec/.half", ".hidden"):
        (root / name).mkdir(parents=True)
    for name in ("lock", "inodes"):
        (root / name).touch()
    start_service(root=root)
    assert (root / "service.json").exists()

"""What a workspace's commands can reach through the proxy: real clients and servers in network
namespaces."""

import contextlib
import json
import shutil
import socket
import time
import zipfile

import pytest

from lib.egress import Egress, Workspace, descriptors_of, read_all, read_head
from lib.harness import wait_until
from lib.world import MACHINE, MACHINE_ALSO, Files, World

NAMES = {
    "example.org": [["198.51.100.10"]],
    "www.example.org": [["198.51.100.10"]],
    "six.example.org": [["2001:db8::10"]],
    "both.example.org": [["2001:db8::10", "198.51.100.10"]],
    "other.test": [["198.51.100.11"]],
    "loop.example.org": [["127.0.0.1"]],
    "loop6.example.org": [["::1"]],
    "zero.example.org": [["0.0.0.0"]],
    "private.example.org": [["10.9.9.9"]],
    "metadata.example.org": [["169.254.169.254"]],
    "local6.example.org": [["fd00::10"]],
    "mapped.example.org": [["::ffff:127.0.0.1"]],
    "nat64.example.org": [["64:ff9b::7f00:1"]],
    "self.example.org": [[MACHINE]],
    "also.example.org": [[MACHINE_ALSO]],
    "mixed.example.org": [["10.9.9.9", "198.51.100.10", "127.0.0.1"]],
    "closed.example.org": [["198.51.100.11"]],
    "nowhere.example.org": [["203.0.113.99"]],
}


@pytest.fixture(scope="module")
def world(tmp_path_factory, certificates):
    world = World(tmp_path_factory.mktemp("world"))
    world.dns.names = NAMES
    site = certificates.pair("site")
    for address in ("198.51.100.10", "198.51.100.11", "10.9.9.9", "169.254.169.254", "2001:db8::10",
                    "fd00::10"):
        world.serve(address, 80)
    world.serve("198.51.100.10", 443, tls=site)
    for address in ("127.0.0.1", "::1", MACHINE, MACHINE_ALSO):
        world.serve(address, 80, where=world.machine)
    yield world
    world.close()


@pytest.fixture
def egress(harness, world):
    world.dns.asked.clear()
    world.dns.given.clear()
    return Egress(harness, world)


@pytest.fixture
def workspace(harness, egress):
    return Workspace(harness, egress, ["example.org:443", "*.example.org:*", "example.org:80"])


def test_curl(workspace, egress):
    result = workspace.curl("https://example.org/a")
    assert (result.returncode, result.stdout) == (0, "198.51.100.10:443 /a example.org\n")
    ended = egress.wait_for_decision(verdict="ended")
    assert ended["host"] == "example.org" and ended["port"] == 443 and ended["method"] == "CONNECT"
    assert ended["entry"] == "example.org:443" and ended["address"] == "198.51.100.10"
    assert ended["workspace"] == "w" and ended["bytes_up"] > 100 and ended["bytes_down"] > 100
    assert "reason" not in ended and len(egress.decisions(verdict="allowed")) == 1


def test_plain_http(workspace, egress):
    result = workspace.curl("-i", "http://www.example.org/b?c", "-H", "Proxy-Authorization: x",
                            "-H", "X-A: 1")
    assert result.stdout.endswith("198.51.100.10:80 /b?c www.example.org\n")
    assert "\nConnection: close\n" in result.stdout.replace("\r", "")
    method, path, headers = egress.world.servers_by_name["198.51.100.10:80"].seen[-1]
    assert (method, path, headers["X-A"], headers["Via"]) == ("GET", "/b?c", "1", "1.1 berth")
    assert headers["Connection"] == "close" and "Proxy-Authorization" not in headers
    ended = egress.wait_for_decision(verdict="ended")
    assert ended["method"] == "GET" and ended["entry"] == "*.example.org:*"


def test_bodies(workspace, tmp_path):
    body = tmp_path / "body"
    body.write_bytes(bytes(range(256)) * 8192)
    for i, how in enumerate(([], ["-H", "Transfer-Encoding: chunked"], ["-H", "Expect:"])):
        got = tmp_path / f"got{i}"
        workspace.curl("--data-binary", f"@{body}", *how, "-o", got, "http://example.org/", check=True)
        assert got.read_bytes() == body.read_bytes()


def test_two_servers_on_one_connection_to_the_proxy(workspace):
    """The second request goes to its own server although the first one's stays open."""
    result = workspace.curl("http://example.org/1", "http://www.example.org/2", "-I", check=True)
    assert result.stdout.count("200 OK") == 2
    result = workspace.curl("http://example.org/1", "http://www.example.org/2", check=True)
    assert result.stdout == ("198.51.100.10:80 /1 example.org\n"
                             "198.51.100.10:80 /2 www.example.org\n")


def test_pipelined_request_goes_nowhere(workspace, world):
    """A server that would go on gets one request and its body, and the client one answer."""
    listener = world.servers.listen("198.51.100.10", 7000)
    first = ("POST http://www.example.org:7000/1 HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\n"
             "body")
    second = "GET http://other.test/secret HTTP/1.1\r\nHost: other.test\r\nCookie: c\r\n\r\n"
    with workspace.connect() as client:
        client.sendall((first + second).encode())
        listener.settimeout(20)
        server, _ = listener.accept()
        listener.close()
        with server:
            server.settimeout(20)
            head = read_head(server)
            assert head.startswith("POST /1 HTTP/1.1\r\nHost: www.example.org:7000\r\n")
            server.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\n\r\n")
            answer = read_all(client)
            client.close()
            assert read_all(server) == b"body"
    assert answer.endswith(b"\r\n\r\nok") and answer.count(b"HTTP/1.1 ") == 1


def test_not_on_the_list(workspace, egress):
    """Nobody is even asked for such a name."""
    for url in ("https://evil.test/", "http://evil.test/", "https://example.org:22/",
                "http://example.org.evil.test/", "http://notexample.org/"):
        assert workspace.status(url) == 403
    refused = egress.decisions(verdict="refused")
    assert len(refused) == 5
    assert all(one["reason"].endswith("not on the allow list of this workspace") for one in refused)
    assert egress.world.dns.asked == []


def test_wildcards(harness, egress, world):
    """In place of labels, and of ports."""
    world.dns.names.update({name: [["198.51.100.10"]] for name in
                            ("a.b.c.test", "a.x.c.test", "a.x.y.c.test", "deep.down.below.test", "below.test")})
    workspace = Workspace(harness, egress, ["a.*.c.test:80", "*.below.test:*", "www.example.org:*"])
    for url, status in (("http://a.b.c.test/", 200), ("http://a.x.c.test/", 200), ("http://a.x.y.c.test/", 403),
                        ("http://b.x.c.test/", 403), ("http://a.c.test/", 403), ("https://a.b.c.test/", 403),
                        ("http://deep.down.below.test/", 200), ("http://below.test/", 403),
                        ("http://www.example.org/", 200), ("http://www.example.org:81/", 502)):
        assert workspace.status(url) == status, url


def test_the_reason_is_told(workspace):
    result = workspace.curl("http://evil.test/")
    assert result.stdout == "berth: evil.test port 80: not on the allow list of this workspace\n"
    result = workspace.curl("-v", "https://evil.test/")
    assert result.returncode == 56 and "response 403" in result.stderr
    assert ('< Proxy-Status: berth; error=http_request_denied; details="evil.test port 443: '
            'not on the allow list of this workspace"') in result.stderr


INSIDE = {
    "loop": "127.0.0.1 is loopback",
    "loop6": "::1 is loopback",
    "zero": "0.0.0.0 is unspecified",
    "private": "10.9.9.9 is private",
    "metadata": "169.254.169.254 is a cloud's metadata service",
    "local6": "fd00::10 is unique-local",
    "mapped": "127.0.0.1 is loopback",
    "nat64": "64:ff9b::7f00:1 is loopback",
    "self": f"{MACHINE} is the service's own machine",
    "also": f"{MACHINE_ALSO} is the service's own machine",
}


def test_names_that_lead_inside(workspace, egress):
    """Most of these servers are there and would answer."""
    for name, what in INSIDE.items():
        result = workspace.curl(f"http://{name}.example.org/")
        assert what in result.stdout, result.stdout
    assert not egress.decisions(verdict="allowed")
    assert workspace.status("https://loop.example.org:80/") == 403


def test_listed_addresses_may_be_reached(harness, egress):
    workspace = Workspace(harness, egress, ["*.example.org:80", "10.0.0.0/8:80", "127.0.0.1:80",
                                            f"{MACHINE}:80", "[fd00::10]:80", "198.51.100.11:80"])
    for url, server in (("http://private.example.org/", "10.9.9.9"), ("http://10.9.9.9/", "10.9.9.9"),
                        ("http://loop.example.org/", "127.0.0.1"),
                        ("http://self.example.org/", MACHINE), ("http://[fd00::10]/", "fd00::10"),
                        ("http://198.51.100.11/", "198.51.100.11")):
        result = workspace.curl("--noproxy", "", "-g", url)
        assert result.stdout.startswith(f"{server}:80 / "), result.stdout
    assert workspace.status("http://metadata.example.org/") == 403
    assert workspace.status("http://198.51.100.10/") == 403


def test_what_is_checked_is_what_is_connected_to(workspace, egress, world):
    """First public, then private: one question is asked, and its answer is used."""
    world.dns.names["rebind.example.org"] = [["198.51.100.10"], ["127.0.0.1"]]
    result = workspace.curl("http://rebind.example.org/")
    assert result.stdout.startswith("198.51.100.10:80 ")
    assert world.dns.asked.count(("rebind.example.org", "A")) == 1
    result = workspace.curl("http://rebind.example.org/")
    assert "127.0.0.1 is loopback" in result.stdout
    assert world.dns.asked.count(("rebind.example.org", "A")) == 2


def test_of_several_addresses_those_that_may_be_reached(workspace):
    assert workspace.curl("http://mixed.example.org/").stdout.startswith("198.51.100.10:80 ")


def test_an_address_that_does_not_answer_is_passed_over(workspace, world):
    world.dns.names["slow.example.org"] = [["203.0.113.99", "198.51.100.10", "2001:db8::99"]]
    assert workspace.curl("http://slow.example.org/").stdout.startswith("198.51.100.10:80 ")


def test_ipv6(workspace):
    assert workspace.curl("http://six.example.org/").stdout.startswith("2001:db8::10:80 ")


FORMS = [
    "127.1:80", "2130706433:80", "0x7f000001:80", "0177.0.0.1:80", "127.0.0.1:80", "[::1]:80",
    "[::ffff:127.0.0.1]:80", "[::ffff:7f00:1]:80", "localhost:80", "example.org@127.0.0.1:80",
    "127.0.0.1#.example.org:80", "127.0.0.1%00.example.org:80", "0:80", "[::]:80",
    "\uff11\uff12\uff17.0.0.1:80", "example.org:80:80", "/", "*"]


def test_forms_of_addresses(workspace, egress):
    for target in FORMS:
        for line in (f"CONNECT {target}", f"GET http://{target}/"):
            answer = workspace.ask(f"{line} HTTP/1.1\r\nHost: example.org\r\n\r\n")
            assert answer[9:12] in (b"400", b"403"), (line, answer)
    assert not egress.decisions(verdict="allowed")


def test_host_fields_say_nothing(workspace, egress):
    answer = workspace.ask("CONNECT evil.test:443 HTTP/1.1\r\nHost: example.org:443\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 403 ")
    with workspace.connect() as sock:
        sock.sendall(b"CONNECT example.org:80 HTTP/1.1\r\nHost: evil.test\r\n\r\n"
                     b"GET /early HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert read_head(sock).startswith("HTTP/1.1 200 ")
        assert b"198.51.100.10:80 /early x" in read_all(sock)
    assert [one["host"] for one in egress.decisions(verdict="allowed")] == ["example.org"]


REFUSED = [
    ("GET / HTTP/1.1\r\nHost: example.org\r\n\r\n", 400),
    ("GET http://example.org/ HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
    ("GET http://example.org/ HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n"
     "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    ("GET http://example.org/ HTTP/1.1\r\nHost: a\r\nTransfer-Encoding : chunked\r\n\r\n", 400),
    ("GET http://example.org/ HTTP/1.1\r\nHost: a\r\nX: a\r\n b\r\n\r\n", 400),
    ("GET http://example.org/ HTTP/1.1\nHost: a\n\n", 400),
    ("CONNECT example.org:443 HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello", 400),
    ("\x16\x03\x01\x02\x00\n", 400),
    ("GET http://example.org/ HTTP/1.1\r\nX: " + "x" * 40000 + "\r\n\r\n", 431),
    ("GET http://example.org/ HTTP/1.1\r\n" + "X: y\r\n" * 200 + "\r\n", 400),
]


def test_requests_that_are_refused(workspace, egress):
    for text, status in REFUSED:
        answer = workspace.ask(text)
        assert answer.startswith(f"HTTP/1.1 {status} ".encode()), (text, answer)
    assert not egress.decisions(verdict="allowed")
    assert workspace.status("http://example.org/") == 200


def test_failures_are_told(harness, world):
    egress = Egress(harness, world, "resolve_ms=500,connect_ms=700")
    workspace = Workspace(harness, egress, ["*.example.org:*"])
    world.dns.silent.add("silent.example.org")
    for name, status, text in (("missing", 502, "there is no such name"),
                               ("silent", 504, "its name server does not answer"),
                               ("nowhere", 504, "it does not answer"),
                               ("closed", 502, "Connection refused")):
        url = f"http://{name}.example.org{':81' if name == 'closed' else ''}/"
        result = workspace.curl("-w", "%{http_code}", url)
        assert result.stdout.endswith(str(status)) and text in result.stdout, result.stdout
    assert len(egress.decisions(verdict="failed")) == 4


def test_slow_names_of_one_workspace_do_not_hold_up_another(harness, egress, world):
    slow = Workspace(harness, egress, ["*.example.org:80"], "slow")
    world.dns.silent |= {f"s{i}.example.org" for i in range(40)}
    with contextlib.ExitStack() as stack:
        for i in range(40):
            sock = stack.enter_context(slow.connect())
            sock.sendall(f"GET http://s{i}.example.org/ HTTP/1.1\r\nHost: h\r\n\r\n".encode())
        wait_until(lambda: len({name for name, _ in world.dns.asked}) >= 8, what="8 questions")
        other = Workspace(harness, egress, ["www.example.org:80"], "other")
        assert other.status("http://www.example.org/") == 200
        assert len({name for name, _ in world.dns.asked if name.startswith("s")}) <= 16


def test_connections_that_say_nothing(harness, world):
    egress = Egress(harness, world, "request_ms=500")
    workspace = Workspace(harness, egress, ["example.org:80"])
    with workspace.connect() as silent, workspace.connect() as slow:
        slow.sendall(b"GET http://example.org/ HTTP/1.1\r\n")
        for _ in range(20):  # a byte now and then does not help
            time.sleep(0.05)
            try:
                slow.sendall(b"X")
            except OSError:
                break
        assert read_all(slow).startswith(b"HTTP/1.1 408 ")
        assert read_all(silent) == b""


def test_connections_that_nobody_uses(harness, world):
    egress = Egress(harness, world, "idle_ms=500")
    workspace = Workspace(harness, egress, ["example.org:80"])
    with workspace.connect() as sock:
        sock.sendall(b"CONNECT example.org:80 HTTP/1.1\r\nHost: h\r\n\r\n")
        assert read_head(sock).startswith("HTTP/1.1 200 ")
        with pytest.raises(ConnectionResetError):
            read_all(sock)
    assert egress.wait_for_decision(verdict="ended")["reason"] == "nothing was sent for too long"


@pytest.mark.long
def test_a_thousand_connections(harness, world):
    """Those beyond the bound wait, and none is lost; another workspace does not notice."""
    egress = Egress(harness, world, "connections=50")
    workspace = Workspace(harness, egress, ["example.org:80"])
    other = Workspace(harness, egress, ["example.org:80"], "other")
    request = b"GET http://example.org/ HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
    with contextlib.ExitStack() as stack:
        idle = [stack.enter_context(workspace.connect()) for _ in range(400)]
        wait_until(lambda: descriptors_of(egress.pid) > 50, what="50 connections")
        assert descriptors_of(egress.pid) < 100
        assert other.status("http://example.org/") == 200
        for sock in idle:
            sock.sendall(request)
        for sock in idle:
            assert read_all(sock).startswith(b"HTTP/1.1 200 ")
            sock.close()
    assert len(egress.decisions(verdict="allowed", workspace="w")) == 400


def test_new_connections_have_a_rate(harness, world):
    egress = Egress(harness, world, "per_second=20,burst=10")
    workspace = Workspace(harness, egress, [])
    start = time.monotonic()
    for _ in range(30):
        assert workspace.ask(b"GET http://a.b/ HTTP/1.1\r\nHost: h\r\n\r\n")[9:12] == b"403"
    assert time.monotonic() - start > 0.9


def _tunnel(workspace, world, port):
    """A tunnel, and its server's end."""
    listener = world.servers.listen("198.51.100.10", port)
    sock = workspace.connect()
    sock.sendall(f"CONNECT www.example.org:{port} HTTP/1.1\r\nHost: h\r\n\r\n".encode())
    assert read_head(sock).startswith("HTTP/1.1 200 ")
    listener.settimeout(20)
    server, _ = listener.accept()
    listener.close()
    sock.settimeout(20)
    server.settimeout(20)
    return sock, server


def test_each_direction_ends_by_itself(workspace, egress, world):
    client, server = _tunnel(workspace, world, 7001)
    with client, server:
        client.sendall(b"a question")
        client.shutdown(socket.SHUT_WR)
        assert read_all(server) == b"a question"
        server.sendall(b"an answer")
        server.shutdown(socket.SHUT_WR)
        assert read_all(client) == b"an answer"
    ended = egress.wait_for_decision(verdict="ended")
    assert (ended["bytes_up"], ended["bytes_down"]) == (10, 9)


def test_what_is_cut_short_is_not_an_end(workspace, world):
    client, server = _tunnel(workspace, world, 7002)
    with client:
        server.sendall(b"a part")
        server.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        time.sleep(0.1)
        server.close()
        with pytest.raises(ConnectionResetError):
            read_all(client)


def test_who_does_not_read_holds_up_the_other_side(workspace, egress, world):
    client, server = _tunnel(workspace, world, 7003)
    before = egress.memory()
    server.setblocking(False)
    sent = 0
    chunk = b"x" * 65536
    quiet = 0
    while quiet < 20 and sent < 256 << 20:
        try:
            sent += server.send(chunk)
            quiet = 0
        except BlockingIOError:
            quiet += 1
            time.sleep(0.02)
    assert sent < 64 << 20
    assert egress.memory() - before < 16 << 20
    server.settimeout(20)
    server.shutdown(socket.SHUT_WR)
    got = 0
    while part := client.recv(1 << 20):
        got += len(part)
    assert got == sent
    client.close()
    server.close()


def test_the_list_can_be_changed(harness, egress, world):
    workspace = Workspace(harness, egress, ["example.org:80"])
    assert workspace.status("http://www.example.org/") == 403
    egress.change(workspace.number, ["example.org:80", "www.example.org:*"])
    wait_until(lambda: workspace.status("http://www.example.org/") == 200, what="the new list")
    client, server = _tunnel(workspace, world, 7004)
    with client, server:
        egress.change(workspace.number, ["example.org:80"])
        with pytest.raises(ConnectionResetError):
            read_all(client)
    assert workspace.status("http://www.example.org/") == 403
    assert workspace.status("http://example.org/") == 200
    reasons = [one.get("reason") for one in egress.decisions(verdict="ended")]
    assert "not on the allow list of this workspace any more" in reasons


def test_workspaces_have_lists_of_their_own(harness, egress):
    one = Workspace(harness, egress, ["example.org:80"], "one")
    two = Workspace(harness, egress, ["www.example.org:80"], "two")
    assert (one.status("http://example.org/"), one.status("http://www.example.org/")) == (200, 403)
    assert (two.status("http://example.org/"), two.status("http://www.example.org/")) == (403, 200)
    one.listener.close()
    egress.close_workspace(one.number)
    wait_until(lambda: one.curl("http://example.org/").returncode != 0, what="its end")
    assert two.status("http://www.example.org/") == 200


PROBES = {
    "tcp": "import socket; socket.create_connection(('198.51.100.10', 80), 5)",
    "tcp6": "import socket; socket.create_connection(('2001:db8::10', 80), 5)",
    "udp": "import socket; s=socket.socket(2, 2); s.sendto(b'x', ('198.51.100.53', 53))",
    "raw": "import socket; s=socket.socket(2, 3, 253); s.sendto(b'x', ('198.51.100.10', 0))",
    "icmp": "import socket; s=socket.socket(2, 3, 1); s.sendto(b'\\x08'+bytes(7), ('198.51.100.10', 0))",
    "packet": "import socket; s=socket.socket(17, 3, 3); s.bind(('up0', 0))",
    "machine": f"import socket; socket.create_connection(('{MACHINE}', 80), 5)",
    "dns": "import socket; socket.getaddrinfo('example.org', 80)",
}


def test_there_is_no_other_way(workspace, harness, world):
    """Each probe gets out from the machine, and nothing from a workspace."""
    for name, script in PROBES.items():
        command = ["unshare", "--mount", "bash", "-c",
                   'mount --bind "$1" /etc/resolv.conf && exec /usr/bin/python3 -c "$2"', "bash",
                   world.resolv_conf, script]
        result = harness.run(workspace.namespace.command(*command))
        assert result.returncode == 1 and any(
            text in result.stderr for text in ("unreachable", "No such device", "name resolution")), \
            (name, result.stderr)
        control = harness.run(world.machine.command(*command))
        assert control.returncode == 0, (name, control.stderr)


def test_gains_nothing(egress, workspace):
    assert workspace.status("http://example.org/") == 200
    status = dict(line.split(":\t", 1)
                  for line in open(f"/proc/{egress.pid}/status", encoding="ascii")
                  if ":\t" in line)
    assert status["NoNewPrivs"].strip() == "1"


@pytest.fixture
def site(world, certificates, tmp_path):
    """A directory at https://pkg.example.org/."""
    directory = tmp_path / "site"
    directory.mkdir()

    class Here(Files):
        def __init__(self, *arguments, **keywords):
            super().__init__(*arguments, directory=str(directory), **keywords)

    server = world.serve("198.51.100.11", 443, Here, certificates.pair("site"))
    world.dns.names["pkg.example.org"] = [["198.51.100.11"]]
    yield directory
    server.close()
    world.owned.remove(server)


def test_git(workspace, harness, site, tmp_path):
    work = tmp_path / "work"
    for command in (["init", "-q", work], ["-C", work, "commit", "-q", "--allow-empty", "-m", "first"],
                    ["clone", "-q", "--bare", work, site / "project.git"],
                    ["-C", site / "project.git", "update-server-info"]):
        harness.run(["git", *command], check=True)
    workspace.run("git", "clone", "-q", "https://pkg.example.org/project.git", tmp_path / "clone",
                  check=True)
    log = harness.run(["git", "-C", tmp_path / "clone", "log", "--format=%s"], check=True)
    assert log.stdout == "first\n"
    result = workspace.run("git", "clone", "https://evil.test/project.git", tmp_path / "other")
    assert result.returncode == 128 and "403" in result.stderr


def test_python(workspace):
    script = "import urllib.request as r; print(r.urlopen('https://example.org/py').read().decode())"
    result = workspace.run("/usr/bin/python3", "-c", script, check=True)
    assert result.stdout.startswith("198.51.100.10:443 /py ")
    script = "import urllib.request as r; r.urlopen('https://evil.test/')"
    assert "403 Forbidden" in workspace.run("/usr/bin/python3", "-c", script).stderr


def _wheel(path):
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("berthpkg.py", "VALUE = 1\n")
        wheel.writestr("berthpkg-1.0.dist-info/METADATA",
                       "Metadata-Version: 2.1\nName: berthpkg\nVersion: 1.0\n")
        wheel.writestr("berthpkg-1.0.dist-info/WHEEL",
                       "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("berthpkg-1.0.dist-info/RECORD", "")


# Clients that are tried where they are installed; nothing is claimed of them elsewhere.
HAS_PIP = shutil.which("pip3", path="/usr/bin") is not None
CLIENTS = (["pip"] if HAS_PIP else []) + (["npm"] if shutil.which("npm") else [])


@pytest.mark.long
@pytest.mark.parametrize("client", CLIENTS)
def test_package_clients(workspace, egress, site, certificates, tmp_path, client):
    if client == "pip":
        (site / "simple/berthpkg").mkdir(parents=True)
        _wheel(site / "simple/berthpkg/berthpkg-1.0-py3-none-any.whl")
        command = ["/usr/bin/pip3", "download", "--no-deps", "--no-cache-dir", "-d", tmp_path / "got",
                   "--disable-pip-version-check", "--cert", certificates.ca, "--retries", "0",
                   "--index-url", "https://pkg.example.org/simple", "berthpkg"]
    else:
        (site / "berthpkg").mkdir(parents=True)
        (site / "berthpkg/index.html").write_text(json.dumps({
            "name": "berthpkg", "dist-tags": {"latest": "1.0.0"},
            "versions": {"1.0.0": {"name": "berthpkg", "version": "1.0.0", "dist": {
                "tarball": "https://pkg.example.org/berthpkg-1.0.0.tgz"}}}}))
        command = ["npm", "view", "berthpkg", "version", "--registry=https://pkg.example.org",
                   "--fetch-retries=0", "--no-update-notifier"]
    workspace.run(*command, check=True, timeout=50)
    refused = [str(word).replace("pkg.example.org", "evil.test") for word in command]
    assert workspace.run(*refused, timeout=50).returncode != 0
    assert egress.wait_for_decision(verdict="refused", host="evil.test")

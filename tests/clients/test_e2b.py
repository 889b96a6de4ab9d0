"""The unmodified SDK of E2B drives workspaces: what it does is in e2b/suite.mjs, once for each way in which
it can be pointed at a service. And what the SDK does not show of the dialect."""

import base64
import hashlib
import json
import os
import shutil
import subprocess
from datetime import datetime
from urllib.parse import urlencode

import pytest

from lib import berthwire as wire
from lib import e2b_sdk
from lib.access import call as wire_call, connect
from lib.http_client import Http

TOKEN = "suite-token-0123456789"
CHECKS = {"debug": 27, "api": 37, "direct": 29}


@pytest.fixture
def sdk(harness):
    return e2b_sdk.fetch()


@pytest.fixture
def service(harness):
    return harness.start_service(http=True, access_file=harness.access_file(
        {"id": "suite", "secret": TOKEN}, {"id": "debug", "loopback": True}))


def run_suite(sdk, service, mode, *only, **environment):
    shutil.copy(e2b_sdk.SOURCE / "suite.mjs", sdk / f"suite-{mode}.mjs")
    arguments = [service.http_url] + ([] if mode == "debug" else [TOKEN, *only])
    environment |= {name: value for name, value in os.environ.items() if not name.startswith(("E2B_", "NODE_"))}
    return subprocess.run(["node", "--no-warnings", *e2b_sdk.node_flags(), f"suite-{mode}.mjs", mode, *arguments], cwd=sdk, text=True,
                          env=environment, capture_output=True, timeout=200, check=False)


@pytest.mark.timeout(360)
@pytest.mark.parametrize("mode", [pytest.param("debug", marks=pytest.mark.long), "api", "direct"])
def test_the_sdk(sdk, service, mode):
    done = run_suite(sdk, service, mode)
    print(done.stdout, done.stderr)
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["ok"] * CHECKS[mode]


@pytest.mark.long
@pytest.mark.timeout(360)
def test_two_hundred_connections(sdk, service):
    """As many as the SDK opens to one address."""
    done = run_suite(sdk, service, "api", "many connections", BERTH_CONNECTIONS="200")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("ok many connections")


# --- what the SDK does not show ---------------------------------------------------------------

def call(http, method, body, **fields):
    fields = {"E2b-Sandbox-Id": "box", **{name.replace("_", "-"): value for name, value in fields.items()}}
    return http.ask("POST", f"/{method}", body, fields=fields)


@pytest.fixture
def box(service):
    with Http(service.http_url, TOKEN) as http:
        assert http.ask("POST", "/sandboxes", {"metadata": {"berth.thread_id": "box"}}).status == 201
        yield http


def test_failures_of_each_kind(service, box):
    """Calls have words, the daemon's and the control plane's HTTP have numbers, streams have a last frame."""
    answer = call(box, "filesystem.Filesystem/Stat", {"path": "none"})
    assert (answer.status, answer.json["code"]) == (404, "not_found")
    answer = box.get("/files?path=none", **{"E2b-Sandbox-Id": "box"})
    assert (answer.status, answer.json["code"]) == (404, 404)
    answer = box.get("/sandboxes/none")
    assert (answer.status, answer.json["code"]) == (404, 404)
    answer = call(box, "process.Process/Start", b"\0\0\0\0\2{}")
    assert answer.status == 200 and answer.body[:1] == b"\2"
    assert json.loads(answer.body[5:])["error"]["code"] == "invalid_argument"
    with Http(service.http_url, "wrong") as http:
        answer = call(http, "filesystem.Filesystem/Stat", {"path": ""})
        assert (answer.status, answer.json["code"]) == (401, "unauthenticated")
        answer = call(http, "process.Process/Start", b"\0\0\0\0\2{}")
        assert json.loads(answer.body[5:])["error"]["code"] == "invalid_argument"


def test_both_names_and_both_numbers(box):
    """Of fields, and of what may be a number or a string; null is as if it were not there."""
    assert call(box, "filesystem.Filesystem/MakeDir", {"path": "d", "unknown": 1}).status == 200
    answer = call(box, "filesystem.Filesystem/ListDir", {"path": None, "depth": "1"})
    assert [entry["name"] for entry in answer.json["entries"]] == ["d"]
    answer = call(box, "process.Process/SendSignal", {"process": {"pid": "5"}, "signal": "SIGNAL_SIGKILL"})
    assert (answer.status, answer.json["code"]) == (404, "not_found")
    answer = call(box, "process.Process/SendSignal", {"process": {"tag": "x"}, "signal": 9})
    assert (answer.status, answer.json["code"]) == (501, "unimplemented")


def frames(body):
    while body:
        flags, size = body[0], int.from_bytes(body[1:5], "big")
        yield flags, json.loads(body[5:5 + size])
        body = body[5 + size:]


def frame(message):
    text = json.dumps(message).encode()
    return b"\0" + len(text).to_bytes(4, "big") + text


def test_keepalives_come_between(box):
    """Never before the start, and the end is followed by a frame that says so."""
    answer = call(box, "process.Process/Start", frame({"process": {"cmd": "sleep", "args": ["2.5"]}, "stdin": False}),
                  Keepalive_Ping_Interval="1")
    told = [(flags, next(iter(message.get("event", {"": 0})))) for flags, message in frames(answer.body)]
    assert told[0] == (0, "start") and told[-2:] == [(0, "end"), (2, "")]
    assert (0, "keepalive") in told[1:-2] and set(told[1:-2]) == {(0, "keepalive")}


def test_commands_are_started_to_be_kept(service, box):
    """So that they go on without their client for good, not just for a while."""
    with Http(service.http_url, TOKEN) as http:
        http.start("POST", "/process.Process/Start", frame({"process": {"cmd": "sleep", "args": ["60"]}, "stdin": False}),
                   {"E2b-Sandbox-Id": "box", "Connect-Timeout-Ms": "60000"})
        assert http.head()[0] == 200
        with connect(service.http_url, TOKEN) as connection:
            listed = wire.decode_list("EXEC_COMMAND", wire_call(connection, "EXEC_LIST", workspace=b"box")["items"])
    keep = wire.CONSTANTS["WIRE_EXEC_KEEP"]
    assert [(one["flags"] & keep, one["timeout_ms"]) for one in listed] == [(keep, 0)]


def test_a_signed_url_outlives_the_service(service, box):
    """The token is kept nowhere: whose signature it is, is found out anew."""
    token = box.ask("POST", "/sandboxes", {"metadata": {"berth.thread_id": "box"}}).json["envdAccessToken"]
    signature = base64.b64encode(hashlib.sha256(f"x:read::{token}".encode()).digest()).decode().rstrip("=")
    target = "/files?" + urlencode({"path": "x", "signature": f"v1_{signature}"})
    fields = {"E2b-Sandbox-Id": "box", "Content-Type": "application/octet-stream"}
    assert box.ask("POST", "/files?path=x", b"content", fields=fields).status == 200
    service = service.restart()
    with Http(service.http_url) as http:
        assert http.ask("GET", target).body == b"content"
        assert http.ask("GET", target.replace("path=x", "path=y")).status == 401


def signed(token, path, operation, user):
    digest = hashlib.sha256(f"{path}:{operation}:{user}:{token}".encode()).digest()
    return "v1_" + base64.b64encode(digest).decode().rstrip("=")


def issued(box, name="box"):
    return box.ask("POST", "/sandboxes", {"metadata": {"berth.thread_id": name}}).json["envdAccessToken"]


def test_a_signature_is_for_one_thing(service, box):
    """A link for reading a file of a strange name is none for writing another one."""
    signature = signed(issued(box), "/home/user/a:write:b", "read", "user")
    with Http(service.http_url) as http:
        target = "/files?" + urlencode({"path": "/home/user/a", "username": "b:read:user", "signature": signature})
        answer = http.ask("POST", target, b"x", fields={"Content-Type": "application/octet-stream"})
        assert answer.status == 400
    assert not (service.root / "workspaces/box/tree/a").exists()


def test_a_token_ends_with_its_workspace(service, box):
    """Another workspace that has the same ID later has nothing to do with it."""
    token = issued(box)
    link = "/files?" + urlencode({"path": "x", "signature": signed(token, "x", "read", "")})
    fields = {"E2b-Sandbox-Id": "box", "Content-Type": "application/octet-stream"}
    with Http(service.http_url, token) as kept, Http(service.http_url) as http:
        assert kept.ask("POST", "/files?path=x", b"old", fields=fields).status == 200
        assert http.get(link).body == b"old"
        assert box.ask("DELETE", "/sandboxes/box").status == 204
        assert call(kept, "filesystem.Filesystem/Stat", {"path": "x"}).status == 404
        assert issued(box) != token
        assert box.ask("POST", "/files?path=x", b"new", fields=fields).status == 200
        for one in (kept, Http(service.http_url, token)):
            assert one.get("/files?path=x", **fields).status == 404
            assert call(one, "filesystem.Filesystem/Stat", {"path": "x"}).status == 404
            assert b"box" not in one.get("/v2/sandboxes").body
            assert one.get("/health", **fields).status == 502
        assert http.get(link).status in (401, 404)


def create(box, **body):
    return box.ask("POST", "/v2/sandboxes", body)


BOUNDS = [
    ({"allow_internet_access": False}, "none"), ({"network": {"denyOut": ["0.0.0.0/0"]}}, "none"),
    ({"network": {"denyOut": ["10.0.0.0/8", "0.0.0.0/0"], "allowPublicTraffic": False}}, "none"),
    ({"network": {}, "allow_internet_access": True}, "host"),
    ({"network": {"denyOut": ["10.0.0.0/8"]}}, None), ({"network": {"allowOut": ["example.com"]}}, None),
    ({"network": {"denyOut": ["0.0.0.0/0"], "allowOut": ["example.com"]}}, None), ({"network": ["0.0.0.0/0"]}, None),
    ({"network": {"rules": {"example.com": []}}}, None), ({"autoPause": True}, None),
    ({"iam": {"tokens": {"a": {}}}}, None)]


def test_bounds_are_held_to_or_refused(harness, tmp_path):
    """Where the service's own policy lets commands reach everything."""
    policy = tmp_path / "policy.json"
    policy.write_text('{"network": "host"}')
    service = harness.start_service(http=True, args=("--policy", policy))
    with Http(service.http_url, service.token) as http:
        for body, network in BOUNDS:
            answer = create(http, **body)
            assert answer.status == (201 if network else 400), (body, answer.body)
            if network:
                name = answer.json["sandboxID"]
                assert http.get(f"/v1/workspaces/{name}/policy").json["asked"]["network"] == network
        answer = http.ask("PUT", f"/sandboxes/{name}/network", {"denyOut": ["0.0.0.0/0"]})
        assert (answer.status, answer.json["code"]) == (400, 400)


def ends_in(box, name):
    info = box.get(f"/sandboxes/{name}").json
    return (datetime.fromisoformat(info["endAt"][:19]) - datetime.utcnow()).total_seconds()


def test_how_long_a_sandbox_is_there(box):
    """As long as E2B's, unless it is told; what is paused waits for who wants it again."""
    name = create(box).json["sandboxID"]
    assert 200 < ends_in(box, name) <= 300
    assert box.ask("POST", f"/sandboxes/{name}/pause").status == 204
    assert ends_in(box, name) > 86400
    assert box.ask("POST", f"/sandboxes/{name}/connect", {"timeout": 1000}).status == 201
    assert 800 < ends_in(box, name) <= 1000
    [fork] = box.ask("POST", f"/sandboxes/{name}/fork", {}).json
    assert 200 < ends_in(box, fork["sandbox"]["sandboxID"]) <= 300
    # Whoever finds one that is there does not set its end.
    assert box.ask("POST", "/v1/workspaces", {"id": "mine"}).status == 201
    assert create(box, metadata={"berth.thread_id": "mine"}).status == 201
    assert ends_in(box, "mine") > 86400
    assert box.ask("POST", "/sandboxes/mine/pause").status == 204
    assert box.ask("POST", "/sandboxes/mine/connect", {}).status == 201
    assert ends_in(box, "mine") > 86400


def test_only_sandboxes_are_listed(service, box):
    """A script that ends all that it finds finds nobody else's; by their IDs all can be reached."""
    assert box.ask("POST", "/v1/workspaces", {"id": "mine"}).status == 201
    for target in ("/sandboxes", "/v2/sandboxes?state=running", "/v2/sandboxes?limit=1"):
        [only] = box.get(target).json
        assert (only["sandboxID"], only["metadata"]) == ("box", {})
    assert box.ask("POST", "/sandboxes/mine/connect", {}).status == 200
    assert box.ask("POST", "/sandboxes/mine/fork", {}).status == 201
    assert len(box.get("/v2/sandboxes").json) == 2
    assert create(box, metadata={"e2b.sandbox": "x"}).status == 400


def test_there_is_one_user(service, box):
    """Who asks for another one, wants one that may do less."""
    def stat(user):
        basic = base64.b64encode(f"{user}:".encode()).decode()
        with Http(service.http_url) as http:
            return call(http, "filesystem.Filesystem/Stat", {"path": ""}, Authorization=f"Basic {basic}",
                        X_Access_Token=TOKEN)
    fields = {"E2b-Sandbox-Id": "box", "Content-Type": "application/octet-stream"}
    assert stat("user").status == stat("root").status == stat("").status == 200
    answer = stat("nobody")
    assert (answer.status, answer.json["code"]) == (400, "invalid_argument")
    for user, status in (("user", 200), ("root", 200), ("nobody", 400)):
        assert box.ask("POST", f"/files?path=x&username={user}", b"", fields=fields).status == status
        assert box.get(f"/files?path=x&username={user}", **fields).status == status


@pytest.mark.parametrize("target", ["/health", "/files?path=x", "/v2/sandboxes"])
def test_a_get_makes_nothing(service, target):
    """Of whoever comes without a token, as a page of the web can make a browser do."""
    with Http(service.http_url) as http:
        http.send(f"GET {target} HTTP/1.1\r\nHost: 49983-new.localhost\r\n\r\n".encode())
        assert http.answer().status in (200, 404, 502)
        assert not (service.root / "workspaces/new").exists()
        http.send(f"GET {target} HTTP/1.1\r\nHost: 49983-new.localhost\r\nSec-Fetch-Site: cross-site\r\n\r\n".encode())
        assert http.answer().status == 403
        http.send(b"POST /filesystem.Filesystem/Stat HTTP/1.1\r\nHost: 49983-new.localhost\r\n"
                  b"Sec-Fetch-Site: Cross-Site\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")
        assert http.answer().status == 403
        assert not (service.root / "workspaces/new").exists()
        fields = {"E2b-Sandbox-Id": "new"}
        assert http.ask("POST", "/filesystem.Filesystem/Stat", {"path": ""}, fields=fields).status == 200
        assert (service.root / "workspaces/new").exists()


def test_the_sandbox_in_the_host_name(service, box):
    with Http(service.http_url) as http:
        http.send(b"GET /health HTTP/1.1\r\nHost: 49983-box.sandboxes.example\r\nX-Access-Token: %s\r\n\r\n" % TOKEN.encode())
        assert http.answer().status == 204
        http.send(b"GET /health HTTP/1.1\r\nHost: 49983-none.sandboxes.example\r\nX-Access-Token: %s\r\n\r\n" % TOKEN.encode())
        assert http.answer().status == 502


@pytest.mark.matrix
@pytest.mark.parametrize("fields, status", [
    ({"Host": "localhost:1"}, 200), ({"Host": "127.0.0.1"}, 200), ({"Host": "[::1]:9"}, 200), ({"Host": "a.localhost"}, 200),
    ({"Host": "localhost", "Origin": "http://localhost:3000"}, 200),
    ({"Host": "evil.example"}, 403), ({"Host": "127.0.0.1.evil.example"}, 403), ({"Host": "notlocalhost.example"}, 403),
    ({"Host": "localhost", "Origin": "https://evil.example"}, 403), ({"Host": "localhost", "Origin": "null"}, 403)])
def test_pages_of_the_web_without_a_token(service, box, fields, status):
    """What a browser on this machine sends for a page of somebody else's is not this machine's own."""
    for target in ("/v2/sandboxes", "/v1/workspaces"):
        with Http(service.http_url) as http:
            lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
            http.send(f"GET {target} HTTP/1.1\r\n{lines}\r\n".encode())
            assert http.answer().status == status


def test_loopback_is_no_other_listener(harness):
    """Without such a line, and by any other way than plain http, no token is no credential."""
    service = harness.start_service(http=True, access_file=harness.access_file({"id": "suite", "secret": TOKEN}))
    with Http(service.http_url) as http:
        assert http.get("/v2/sandboxes").status == 401

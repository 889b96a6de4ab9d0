"""docs/openapi.json against the running service: every route and every documented answer of it is
asked for, and what comes is of the kind that is written there; and nothing else is answered."""

import io
import json
import re
import tarfile
from urllib.parse import quote

import pytest

from lib.harness import REPOSITORY
from lib.http_client import Http
from lib.schema import Schemas

DOCUMENT = json.loads((REPOSITORY / "docs/openapi.json").read_text())
SCHEMAS = Schemas(DOCUMENT)
# Another dialect has documents of its own.
OURS = re.compile(r"/v1/|/healthz$|/metrics$")


def routes():
    """Of the program's own table: {(method, path)}, with {name...} as {name}."""
    found = set()
    for table in sorted((REPOSITORY / "execsvc/gateway").glob("*.def")):
        for method, pattern in re.findall(r'^ROUTE\((\w+), "([^"]+)"', table.read_text(), re.MULTILINE):
            if OURS.match(pattern):
                found.add((method, pattern.replace("...}", "}")))
    return found


def documented():
    return {(method.upper(), path) for path, methods in DOCUMENT["paths"].items() for method in methods
            if method != "parameters"}


def test_all_routes_are_documented():
    assert routes() == documented()


def test_document_is_one():
    """References lead somewhere, parameters of paths are in them, operations have names of their own."""
    names = []
    for path, methods in DOCUMENT["paths"].items():
        for operation in methods.values():
            names.append(operation["operationId"])
            parameters = [SCHEMAS.resolve(p) for p in operation.get("parameters", [])]
            assert sorted(p["name"] for p in parameters if p["in"] == "path") == sorted(re.findall(r"{(\w+)}", path))
            assert operation["summary"]
            for response in operation["responses"].values():
                SCHEMAS.resolve(response)
    assert len(names) == len(set(names))


class Walk:
    """Asks, checks each answer against the document, and notes what of it has been seen."""

    def __init__(self, url, token=None):
        self.url = url
        self.token = token
        self.http = Http(url)
        self.seen = set()

    def ask(self, method, pattern, expected, body=None, fields=(), query="", token=..., **values):
        operation = DOCUMENT["paths"][pattern][method.lower()]
        target = pattern
        for name, value in values.items():
            target = target.replace(f"{{{name}}}", quote(value, safe="/" if name == "path" else ""))
        self.http.token = self.token if token is ... else token
        answer = self.http.ask(method, target + query, body, fields)
        if answer.fields.get("connection") == "close":
            self.http.close()
            self.http = Http(self.url)
        assert answer.status == expected, (method, target, answer.status, answer.body[:400])
        check(operation, answer)
        if answer.status < 300 and isinstance(body, dict):
            SCHEMAS.check(body, operation["requestBody"]["content"]["application/json"]["schema"])
        self.seen.add((method, pattern, expected))
        return answer


def check(operation, answer):
    """An answer is one that is documented for its operation."""
    responses = operation["responses"]
    assert str(answer.status) in responses, (operation["operationId"], answer.status, answer.body)
    response = SCHEMAS.resolve(responses[str(answer.status)])
    for name, header in response.get("headers", {}).items():
        SCHEMAS.check(answer.fields[name.lower()], header["schema"])
    content = response.get("content")
    if not content:
        assert answer.body == b""
        return
    kind = answer.fields["content-type"]
    schema = content.get(kind, content.get(kind.split(";")[0]))["schema"]
    if kind == "application/x-ndjson":
        for line in answer.body.splitlines():
            SCHEMAS.check(json.loads(line), schema)
    elif kind.endswith("json"):
        SCHEMAS.check(json.loads(answer.body), schema)
        assert answer.status < 400 or json.loads(answer.body)["status"] == answer.status
    elif "binary" not in str(schema):
        SCHEMAS.check(answer.body.decode(), schema)


def documented_answers():
    return {(method, path, int(status)) for method, path in documented()
            for status in DOCUMENT["paths"][path][method.lower()]["responses"]}


# Of each operation, but not of the walk: too many wrong credentials (429), a service that stops or has
# no room (503, 507), a machine that cannot (501). See tests/unit/test_gateway_routes.c, and
# test_http.py for 429.
ELSEWHERE = {429, 501, 503, 507}

# No workspace is fenced here.
OF_A_FENCE = {("DELETE", "/v1/workspaces/{id}/fence", status) for status in (204, 409)}

# test_http_watch.py.
OF_MANY_FILES = {("GET", "/v1/workspaces/{id}/watch/{path}", 413)}

BODIES = {"createWorkspace": {"id": "a"}, "changeWorkspace": {"ttl": 60}, "putLabels": {}, "changePolicy": {},
          "createSnapshot": {}, "restoreSnapshot": {"snapshot": "s"}, "writeFile": b"", "moveFile": {"from": "a", "to": "b"},
          "runCommand": {"argv": ["true"]}, "giveInput": b"", "killCommand": {}, "signalCommand": {"signal": "TERM"},
          "resizeTerminal": {"rows": 1, "columns": 1}}
WS = "/v1/workspaces/{id}"
FILE = WS + "/files/{path}"
EXEC = WS + "/exec"
ONE = EXEC + "/{exec}"
LARGE = {"x": "y" * (5 << 20)}


def operations():
    for method, path in sorted(documented()):
        yield method, path, DOCUMENT["paths"][path][method.lower()]


def walk_refusals(walk):
    """What each operation has in common: who asks, what there is, how it asks."""
    for method, path, operation in operations():
        responses = operation["responses"]
        values = {"id": "missing", "path": "a", "exec": "e"}
        body = BODIES.get(operation["operationId"])
        if "401" in responses:
            walk.ask(method, path, 401, body, token=None, **values)
            walk.ask(method, path, 401, body, token="wrong", **values)
        if "404" in responses and operation["operationId"] != "createWorkspace":
            walk.ask(method, path, 404, body, **values)
        if "413" in responses and isinstance(body, dict):
            walk.ask(method, path, 413, LARGE, **values)


def lasting(workspace):
    """But for what each use changes."""
    document = workspace if isinstance(workspace, dict) else workspace.json
    return {name: value for name, value in document.items() if name != "used_at"}


def walk_workspaces(walk):
    made = walk.ask("POST", "/v1/workspaces", 201, {"id": "w", "labels": {"a": "1"}, "ttl": 3600, "idle_ttl": None}).json
    assert made["labels"] == {"a": "1"} and made["expires_at"] and made["idle_ttl"] is None
    assert lasting(walk.ask("POST", "/v1/workspaces", 200, {"id": "w"})) == lasting(made)
    walk.ask("POST", "/v1/workspaces", 409, {"id": "w", "exclusive": True})
    walk.ask("POST", "/v1/workspaces", 404, {"id": "x", "source": {"snapshot": "missing"}})
    walk.ask("POST", "/v1/workspaces", 404, {"id": "x", "source": {"workspace": "missing"}})
    walk.ask("POST", "/v1/workspaces", 403, {"id": "x"}, token="reader")
    for wrong in ({}, {"id": ""}, {"id": 1}, {"id": "x", "labels": {"a": 1}}, {"id": "x", "lables": {}},
                  {"id": "x", "ttl": -1}, {"id": "x", "policy": {"network": "everything"}}, {"id": "x", "source": {}}):
        walk.ask("POST", "/v1/workspaces", 400, wrong)
    assert [w["id"] for w in walk.ask("GET", "/v1/workspaces", 200).json["workspaces"]] == ["w"]
    walk.ask("GET", "/v1/workspaces", 400, query="?limit=0")
    walk.ask("GET", WS, 400, query="?by=nothing", id="w")
    answer = walk.ask("GET", WS, 200, id="w")
    assert lasting(answer) == lasting(made) and answer.fields["etag"] == f'"{made["revision"]}"'
    walk.ask("GET", WS, 304, fields={"If-None-Match": answer.fields["etag"]}, id="w")
    walk.ask("POST", "/v1/workspaces", 415, b"{}", {"Content-Type": "text/plain"})
    walk.ask("POST", WS + "/exec", 415, b"{}", {"Content-Type": "text/plain"}, id="w")
    assert lasting(walk.ask("GET", WS, 200, query="?by=name", id=made["name"])) == lasting(made)
    changed = walk.ask("PATCH", WS, 200, {"labels": {"b": "2", "a": None}, "ttl": None}, {"If-Match": answer.fields["etag"]},
                       id="w").json
    assert changed["labels"] == {"b": "2"} and changed["expires_at"] is None and changed["revision"] != made["revision"]
    walk.ask("PATCH", WS, 412, {"ttl": 1}, {"If-Match": answer.fields["etag"]}, id="w")
    walk.ask("PATCH", WS, 403, {"ttl": 1}, id="w", token="reader")
    for wrong in ({}, {"state": "gone"}, {"id": "v"}):
        walk.ask("PATCH", WS, 400, wrong, id="w")
    walk.ask("GET", WS + "/labels", 400, query="?by=nothing", id="w")
    labels = walk.ask("GET", WS + "/labels", 200, id="w")
    assert labels.json == {"b": "2"}
    assert walk.ask("PUT", WS + "/labels", 200, {"c": "3"}, {"If-Match": labels.fields["etag"]}, id="w").json == {"c": "3"}
    walk.ask("PUT", WS + "/labels", 412, {"c": "4"}, {"If-Match": labels.fields["etag"]}, id="w")
    walk.ask("PUT", WS + "/labels", 400, {"c": 3}, id="w")
    walk.ask("PUT", WS + "/labels", 403, {}, id="w", token="reader")
    for verb, state in (("stop", "stopped"), ("start", "running")):
        assert walk.ask("POST", f"{WS}/{verb}", 200, id="w").json["state"] == state
        walk.ask("POST", f"{WS}/{verb}", 412, fields={"If-Match": labels.fields["etag"]}, id="w")
        walk.ask("POST", f"{WS}/{verb}", 400, query="?by=nothing", id="w")
        walk.ask("POST", f"{WS}/{verb}", 403, id="w", token="reader")
    assert walk.ask("GET", "/v1/workspaces", 200, query="?label=c%3D3&label=c&state=running").json["workspaces"]
    assert not walk.ask("GET", "/v1/workspaces", 200, query="?label=c%3D4").json["workspaces"]


def walk_policy(walk):
    assert walk.ask("GET", WS + "/policy", 200, id="w").json["asked"]
    walk.ask("GET", WS + "/policy", 400, query="?by=nothing", id="w")
    walk.ask("GET", WS + "/policy", 403, id="w", token="reader")
    assert walk.ask("PATCH", WS + "/policy", 200, {"limits": {"open_files": 100}}, id="w").json["changed"]
    walk.ask("PATCH", WS + "/policy", 400, {"limits": {"legs": 4}}, id="w")
    walk.ask("PATCH", WS + "/policy", 403, {}, id="w", token="reader")
    walk.ask("DELETE", WS + "/fence", 400, query="?by=nothing", id="w")
    walk.ask("DELETE", WS + "/fence", 403, id="w", token="reader")


def walk_snapshots(walk):
    walk.ask("PUT", FILE, 201, b"before", id="w", path="file")
    made = walk.ask("POST", WS + "/snapshots", 201, {"id": "s", "labels": {"a": "b"}, "live": True}, id="w").json
    assert (made["id"], made["workspace"], made["labels"]) == ("s", "w", {"a": "b"})
    walk.ask("POST", WS + "/snapshots", 409, {"id": "s", "live": True}, id="w")
    walk.ask("POST", WS + "/snapshots", 400, {"id": 1}, id="w")
    walk.ask("POST", WS + "/snapshots", 403, {}, id="w", token="reader")
    assert walk.ask("GET", WS + "/snapshots", 200, id="w").json["snapshots"] == [made]
    assert walk.ask("GET", "/v1/snapshots", 200).json["snapshots"] == [made]
    walk.ask("GET", "/v1/snapshots", 400, query="?limit=x")
    walk.ask("GET", WS + "/snapshots", 400, query="?limit=x", id="w")
    walk.ask("PUT", FILE, 200, b"after", id="w", path="file")
    walk.ask("POST", WS + "/restore", 200, {"snapshot": "s"}, id="w")
    assert walk.ask("GET", FILE, 200, id="w", path="file").body == b"before"
    walk.ask("POST", WS + "/restore", 400, {}, id="w")
    walk.ask("POST", WS + "/restore", 403, {"snapshot": "s"}, id="w", token="reader")
    walk.ask("POST", "/v1/workspaces", 201, {"id": "v", "source": {"snapshot": "s"}})
    walk.ask("DELETE", "/v1/snapshots/{id}", 403, id="s", token="reader")
    walk.ask("DELETE", "/v1/snapshots/{id}", 400, id="x" * 200)
    walk.ask("DELETE", "/v1/snapshots/{id}", 204, id="s")
    walk.ask("DELETE", "/v1/snapshots/{id}", 204, id="s")


def files_of(archive):
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar if member.isfile()}


def walk_archives(walk):
    whole = walk.ask("GET", WS + "/archive", 200, id="w").body
    assert files_of(whole) == {"file": b"before"}
    for target, name in ((WS, "w"), ("/v1/snapshots/{id}", "t")):
        walk.ask("GET", target + "/archive", 400, query="?format=zip", id=name)
    walk.ask("GET", WS + "/archive", 403, id="w", token="nobody")
    walk.ask("POST", WS + "/snapshots", 201, {"id": "t", "live": True}, id="w")
    walk.ask("GET", "/v1/snapshots/{id}/archive", 403, id="t", token="nobody")
    packed = walk.ask("GET", "/v1/snapshots/{id}/archive", 200, query="?format=tar.gz", id="t")
    assert packed.fields["content-type"] == "application/gzip" and files_of(packed.body) == {"file": b"before"}
    for kind, body in (("x-tar", whole), ("gzip", packed.body)):
        fields = {"Content-Type": "application/" + kind}
        made = walk.ask("POST", "/v1/workspaces", 201, body, fields, query=f"?id=from-{kind}&label=a%3Db&ttl=1000")
        assert made.json["labels"] == {"a": "b"} and made.json["expires_at"]
        assert walk.ask("GET", FILE, 200, id="from-" + kind, path="file").body == b"before"
        # Cut off, or none: there is no workspace.
        for wrong in (body[:len(body) // 2], b"nonsense"):
            walk.ask("POST", "/v1/workspaces", 400, wrong, fields, query="?id=half")
        walk.ask("GET", WS, 404, id="half")
    walk.ask("DELETE", "/v1/snapshots/{id}", 204, id="t")


def walk_files(walk):
    place = {"id": "w", "path": "d/f"}
    tag = walk.ask("PUT", FILE, 201, b"content", query="?parents=1", **place).fields["etag"]
    walk.ask("PUT", FILE, 200, b"content!", fields={"If-Match": tag}, **place)
    walk.ask("PUT", FILE, 412, b"", fields={"If-Match": tag}, **place)
    walk.ask("PUT", FILE, 400, b"", query="?mode=9", **place)
    walk.ask("PUT", FILE, 409, b"", id="w", path="d")
    walk.ask("PUT", FILE, 403, b"", token="reader", **place)
    whole = walk.ask("GET", FILE, 200, **place)
    assert whole.body == b"content!"
    assert walk.ask("GET", FILE, 206, fields={"Range": "bytes=1-2"}, **place).body == b"on"
    walk.ask("GET", FILE, 206, fields={"Range": "bytes=1-2,4-"}, **place)
    walk.ask("GET", FILE, 416, fields={"Range": "bytes=100-"}, **place)
    walk.ask("GET", FILE, 304, fields={"If-None-Match": whole.fields["etag"]}, **place)
    walk.ask("GET", FILE, 412, fields={"If-Match": tag}, **place)
    walk.ask("GET", FILE, 409, id="w", path="d")
    for method, path, extra in (("GET", FILE, ""), ("DELETE", FILE, ""), ("GET", WS + "/stat/{path}", ""),
                                ("GET", WS + "/list/{path}", ""), ("POST", WS + "/directories/{path}", ""),
                                ("GET", WS + "/watch/{path}", "")):
        walk.ask(method, path, 400, query=extra, id="w", path="x%00".replace("%00", "") + "n" * 300)
        walk.ask(method, path, 403, id="w", path="d/f", token="nobody")
    assert walk.ask("GET", WS + "/stat/{path}", 200, **place).json["size"] == 8
    walk.ask("GET", WS + "/stat/{path}", 409, id="w", path="d/f/g")
    assert [e["name"] for e in walk.ask("GET", WS + "/list/{path}", 200, id="w", path="d").json["entries"]] == ["f"]
    walk.ask("GET", WS + "/list/{path}", 409, **place)
    walk.ask("PUT", FILE, 201, b"", id="w", path="d/g")
    walk.ask("GET", WS + "/list/{path}", 413, query="?depth=2&limit=1", id="w", path="d")
    walk.ask("GET", WS + "/watch/{path}", 409, id="w", path="d/f/g")
    walk.ask("POST", WS + "/directories/{path}", 201, id="w", path="e")
    walk.ask("POST", WS + "/directories/{path}", 200, query="?parents=1", id="w", path="e")
    walk.ask("POST", WS + "/directories/{path}", 409, id="w", path="e")
    walk.ask("POST", WS + "/directories/{path}", 409, **place)
    walk.ask("POST", WS + "/move", 204, {"from": "d/g", "to": "e/g"}, id="w")
    walk.ask("POST", WS + "/move", 409, {"from": "d/f", "to": "e/g"}, id="w")
    walk.ask("POST", WS + "/move", 400, {"from": "d/f"}, id="w")
    walk.ask("POST", WS + "/move", 403, {"from": "d/f", "to": "x"}, id="w", token="reader")
    walk.ask("DELETE", FILE, 409, id="w", path="d")
    walk.ask("DELETE", FILE, 412, fields={"If-Match": '"x"'}, **place)
    walk.ask("DELETE", FILE, 204, **place)


def walk_watch(walk):
    """Its answer has no end: a line of it, and another after a change."""
    pattern = WS + "/watch/{path}"
    content = DOCUMENT["paths"][pattern]["get"]["responses"]["200"]["content"]["application/x-ndjson"]
    with Http(walk.url, walk.token) as http:
        http.start("GET", "/v1/workspaces/w/watch/e?recursive=1")
        status, fields = http.head()
        assert (status, fields["content-type"]) == (200, "application/x-ndjson")
        lines = http.chunks(fields)
        events = [json.loads(next(lines))]
        walk.ask("PUT", FILE, 201, b"", id="w", path="e/new")
        events.append(json.loads(next(lines)))
    for event in events:
        SCHEMAS.check(event, content["schema"])
    assert events[0]["event"] == "watching" and events[1]["path"] == "e/new"
    walk.seen.add(("GET", pattern, 200))


def walk_commands(walk):
    ended = walk.ask("POST", EXEC, 200, {"argv": ["sh", "-c", "echo out; exit 3"], "id": "first"}, id="w").json
    assert (ended["verdict"], ended["code"], ended["stdout"]) == ("exited", 3, "out\n")
    walk.ask("POST", EXEC, 200, {"argv": ["true"]}, {"Accept": "application/x-ndjson"}, id="w")
    walk.ask("POST", EXEC, 400, {"argv": []}, id="w")
    walk.ask("POST", EXEC, 403, {"argv": ["true"]}, id="w", token="reader")
    walk.ask("POST", EXEC, 202, {"argv": ["cat"], "id": "second", "detach": True, "stdin_open": True}, id="w")
    walk.ask("GET", EXEC, 400, query="?limit=x", id="w")
    walk.ask("GET", EXEC, 403, id="w", token="reader")
    assert "first" in [c["id"] for c in walk.ask("GET", EXEC, 200, id="w").json["commands"]]
    first, second = {"id": "w", "exec": "first"}, {"id": "w", "exec": "second"}
    assert walk.ask("GET", ONE, 200, **first).json["stdout"] == "out\n"
    walk.ask("GET", ONE, 400, query="?stdout=x", **first)
    walk.ask("GET", ONE, 403, token="reader", **first)
    walk.ask("POST", ONE + "/input", 200, b"text", **second)
    walk.ask("POST", ONE + "/input", 400, b"", query="?end=x", **second)
    walk.ask("POST", ONE + "/input", 403, b"", token="reader", **second)
    walk.ask("POST", ONE + "/input", 409, b"x", **first)
    walk.ask("POST", EXEC, 409, {"argv": ["false"], "id": "first"}, id="w")
    walk.ask("POST", ONE + "/signal", 409, {"signal": "CONT"}, **first)
    walk.ask("POST", ONE + "/kill", 409, {}, **first)
    walk.ask("POST", ONE + "/signal", 200, {"signal": "CONT"}, **second)
    walk.ask("POST", ONE + "/resize", 409, {"rows": 10, "columns": 10}, **first)
    walk.ask("POST", EXEC, 202, {"argv": ["cat"], "id": "third", "detach": True, "pty": {}}, id="w")
    walk.ask("POST", ONE + "/resize", 204, {"rows": 10, "columns": 10}, id="w", exec="third")
    walk.ask("DELETE", WS, 409, id="w")
    walk.ask("POST", WS + "/snapshots", 201, {"id": "u", "live": True}, id="w")
    walk.ask("POST", WS + "/restore", 409, {"snapshot": "u"}, id="w")
    for action, body in (("kill", {"grace_ms": 0}), ("signal", {"signal": 9}), ("resize", {"rows": 1, "columns": 1})):
        walk.ask("POST", f"{ONE}/{action}", 400, {action: "x"}, **second)
        walk.ask("POST", f"{ONE}/{action}", 403, body, token="reader", **second)
    walk.ask("POST", ONE + "/kill", 200, {}, **second)
    walk.ask("POST", ONE + "/kill", 200, {"grace_ms": 0}, id="w", exec="third")


def walk_the_end(walk):
    walk.ask("DELETE", WS, 400, query="?force=2", id="w")
    walk.ask("DELETE", WS, 403, id="w", token="reader")
    walk.ask("DELETE", WS, 204, query="?force=1", id="w")
    walk.ask("DELETE", WS, 204, id="w")
    walk.ask("GET", "/healthz", 200, token=None)
    assert walk.ask("GET", "/v1/openapi.json", 200, token=None).json == DOCUMENT
    walk.ask("GET", "/metrics", 200)
    walk.ask("GET", "/metrics", 403, token="reader")


def test_every_route_and_error(harness):
    access = harness.access_file({"id": "all", "secret": "all"},
                                 {"id": "reader", "secret": "reader", "verbs": ["read"]},
                                 {"id": "nobody", "secret": "nobody", "verbs": ["admin"]})
    service = harness.start_service(http=True, access_file=access)
    walk = Walk(service.http_url, "all")
    for part in (walk_refusals, walk_workspaces, walk_policy, walk_snapshots, walk_archives, walk_files, walk_watch,
                 walk_commands, walk_the_end):
        part(walk)
    missing = {one for one in documented_answers() - walk.seen if one[2] not in ELSEWHERE}
    assert missing == OF_A_FENCE | OF_MANY_FILES

"""HTTP as clients have it: methods, metrics, credentials, bodies in all forms, TLS."""

import hashlib
import json
import os
import re

import pytest

from lib import prometheus
from lib.harness import REPOSITORY
from lib.http_client import Http, workspace

DOCUMENT = json.loads((REPOSITORY / "docs/openapi.json").read_text())


def test_methods(service):
    """What a path is not asked for is answered 405, with what it is; HEAD is GET without content."""
    with Http(service.url) as http:
        http.ask("POST", "/v1/workspaces", {"id": "w"})
        for path, methods in DOCUMENT["paths"].items():
            target = re.sub(r"{\w+}", "w", path)
            allowed = {method.upper() for method in methods}
            allowed |= {"HEAD"} if "GET" in allowed else set()
            for method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"):
                if method not in allowed:
                    answer = http.ask(method, target)
                    assert answer.status == 405 and set(answer.fields["allow"].split(", ")) == allowed, (method, path)
        for target in ("/healthz", "/v1/workspaces", "/v1/workspaces/w", "/v1/openapi.json", "/v1/workspaces/missing",
                       "/v1/workspaces/w/archive", "/nothing"):
            whole, head = http.get(target), http.ask("HEAD", target)
            assert head.status == whole.status and head.body == b""
            different = {"date"} if "/metrics" not in target else {"date", "content-length"}
            assert {k: v for k, v in head.fields.items() if k not in different} == {
                k: v for k, v in whole.fields.items() if k not in different}, target


def test_metrics(service):
    with Http(service.url) as http:
        before = prometheus.parse(http.get("/metrics").body.decode())
        for i in range(3):
            assert http.ask("POST", "/v1/workspaces", {"id": "w"}).status == (201 if i == 0 else 200)
        assert http.get("/v1/workspaces/missing").status == 404
        assert http.get("/no/such\"path").status == 404
        assert http.ask("PUT", workspace("w", "/files/f"), b"12345").status == 201
        answer = http.get("/metrics")
        assert answer.fields["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        after = prometheus.parse(answer.body.decode())

    def grown(name, labels=None):
        return after[name, labels] - before.get((name, labels), 0)
    requests = "berth_http_requests_total"
    assert grown(requests, 'method="POST",route="/v1/workspaces",status="2xx"') == 3
    assert grown(requests, 'method="GET",route="/v1/workspaces/{id}",status="4xx"') == 1
    assert grown(requests, 'method="",route="",status="4xx"') == 1
    assert grown("berth_workspaces") == 1
    assert grown("berth_messages_total", 'type="WORKSPACE_CREATE"') == 3
    assert grown("berth_http_received_bytes_total") >= 5
    assert after["berth_gateway_processes", None] == after["berth_http_connections", None] == 1
    assert set(before) <= set(after)


def test_too_many_wrong_credentials(harness):
    """429, and when to come again; but whose is right is let in, from the same address."""
    service = harness.start_service(http=True)
    with Http(service.http_url, service.token) as known, Http(service.http_url) as http:
        assert known.get("/v1/workspaces").status == 200
        statuses = []
        for i in range(30):
            answer = http.get("/v1/workspaces", Authorization=f"Bearer wrong-{i}")
            statuses.append(answer.status)
        assert statuses == [401] * 20 + [429] * 10
        assert 1 <= int(answer.fields["retry-after"]) <= 10 and answer.problem["retry"] is True
        assert http.get("/healthz").status == 200
        assert http.get("/v1/workspaces", Authorization=f"Bearer {service.token}").status == 200


@pytest.mark.parametrize("kind", ["url", "http_url", "tls_url"])
def test_bodies(harness, certificates, kind):
    """In one piece, in chunks, after a 100: the file is what was sent, and comes back as it is."""
    service = harness.start_service(tls=True, http=True)
    content = os.urandom(3 << 20)
    with Http(getattr(service, kind), service.token, ca=certificates.ca) as http:
        assert http.ask("POST", "/v1/workspaces", {"id": "w"}).status == 201
        for name, body in (("whole", content), ("empty", b""), ("small", b"x")):
            for chunked in (False, True):
                target = workspace("w", f"/files/{name}-{chunked}")
                assert http.ask("PUT", target, body, chunked=chunked).status == 201
                assert http.get(target).body == body
        tree = service.root / "workspaces/w/tree"
        assert hashlib.sha256((tree / "whole-True").read_bytes()).digest() == hashlib.sha256(content).digest()
        # Of HTTP/1.0, where the end of a stream is the connection's.
        http.send(b"GET /v1/workspaces/w/archive HTTP/1.0\r\n" + (
            f"Authorization: Bearer {service.token}\r\n\r\n".encode()))
        status, fields = http.head()
        assert status == 200 and fields["connection"] == "close" and "transfer-encoding" not in fields
        with pytest.raises(EOFError):
            while True:
                http._receive()
        assert len(http.received) > 6 << 20


def test_client_certificates(harness, certificates):
    """A certificate that the connection proved is the client's by HTTP as well."""
    service = harness.start_service(tls=True, client_ca=True)
    with Http(service.tls_url, ca=certificates.ca, pair=certificates.pair("client")) as http:
        assert http.ask("POST", "/v1/workspaces", {"id": "w"}).status == 201


def test_audit_names_the_client(harness):
    """And not the process in between: its identity and where it comes from."""
    log = harness.new_path("audit")
    service = harness.start_service(http=True, args=["--audit-log", log])
    with Http(service.http_url, service.token) as http:
        port = http.connection.getsockname()[1]
        assert http.ask("POST", "/v1/workspaces", {"id": "w"}).status == 201
        http.token = "wrong"
        assert http.ask("POST", "/v1/workspaces", {"id": "v"}).status == 401
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert {line["peer"] for line in lines} == {f"127.0.0.1:{port}"}
    assert [(line["message"], line["identity"], line["outcome"]) for line in lines] == [
        ("CONNECT", "t0", "ok"), ("WORKSPACE_CREATE", "t0", "ok"), ("CONNECT", None, "EACCES")]

"""Who may do what: tokens that are for some workspaces and some verbs, that expire and are taken
back, certificates and users; over the wire, so that nothing on the client's side can refuse first."""

import errno
import json
import os
import ssl
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from lib import berthwire as wire
from lib.access import call, connect, refused, status_of
from lib.harness import VERBS, grant_line, wait_until

ALL = "whole"      # a token for everything
OURS = "ours"      # one for workspaces a-* alone, with all verbs

# What each request needs, written down once more: the table must not change by mistake.
NEEDS = {
    "admin": {"WORKSPACE_CREATE", "WORKSPACE_REMOVE", "WORKSPACE_SET_VISIBILITY", "WORKSPACE_SET", "EXEC_LIFT",
              "EXEC_POLICY_SET", "SNAPSHOT_CREATE", "SNAPSHOT_REMOVE", "WORKSPACE_RESTORE"},
    "read": {"WORKSPACE_OPEN", "WORKSPACE_LIST", "WORKSPACE_GET", "WORKSPACE_VISIBILITY", "LOOKUP", "GETATTR", "READLINK",
             "OPEN", "READ", "FSYNC", "READDIR", "STATFS", "GETXATTR", "LISTXATTR", "SEEK", "LOCK_GET",
             "LOCK_SET", "READTREE", "READPARTS", "READFILES", "SUBSCRIBE",
             "TREE_EXPORT", "SNAPSHOT_LIST"},
    "write": {"SETATTR", "MKNOD", "MKDIR", "SYMLINK", "LINK", "UNLINK", "RMDIR", "RENAME", "CREATE",
              "WRITE", "SETXATTR", "REMOVEXATTR", "FALLOCATE", "COPY", "PLACE"},
    "exec": {"EXEC", "EXEC_ATTACH", "EXEC_LIST", "EXEC_KILL", "EXEC_POLICY", "EXEC_USAGE", "EGRESS_LOG"},
}
NEEDS_NOTHING = {"HELLO", "PING", "STATUS", "ACCESS", "FLUSH", "VISIBILITY", "LOCK_CLAIM"}

REQUESTS = [m for m in wire.MESSAGES.values() if m.kind == "REQUEST"]


@pytest.fixture
def service(harness):
    grants = [{"id": "whole", "secret": ALL}, {"id": "ours", "secret": OURS, "workspaces": ["a-*"]}]
    grants += [{"id": f"no-{verb}", "secret": f"no-{verb}", "verbs": [v for v in VERBS if v != verb]}
               for verb in VERBS]
    return harness.start_service(http=True, access_file=harness.access_file(*grants))


@pytest.fixture
def whole(service):
    with connect(service.http_url, ALL) as connection:
        for name in (b"a-one", b"b-two", b"b/" + b"long" * 100):
            assert call(connection, "WORKSPACE_CREATE", thread_id=name)["created"] == 1
        yield connection


@pytest.fixture
def ours(service, whole):
    with connect(service.http_url, OURS) as connection:
        yield connection


# --- verbs -----------------------------------------------------------------------------------

def test_every_request_is_in_the_table():
    assert {m.name for m in REQUESTS} == NEEDS_NOTHING.union(*NEEDS.values())


@pytest.mark.parametrize("verb", VERBS)
def test_without_a_verb(service, whole, verb):
    """Each request that needs it is refused, each other is not, at least not for that reason."""
    for message in REQUESTS:
        if message.name in ("HELLO", "SUBSCRIBE") and message.name not in NEEDS[verb]:
            continue
        with connect(service.http_url, f"no-{verb}") as connection:
            answer = call(connection, message.name)
        refused = message.name in NEEDS[verb] or (verb, message.name) == ("read", "COPY")
        assert (answer == errno.EACCES) == refused, (message.name, answer)


def test_what_belongs_to_a_call_that_was_refused(service, whole):
    """Input and signals for a command that was not permitted change nothing, nor does forgetting it."""
    with connect(service.http_url, "no-exec") as connection:
        tag = connection.request("EXEC", workspace=b"a-one", argv=[b"cat"], flags=1)
        connection.send("EXEC_INPUT", tag, data=b"x", end=1)
        connection.send("EXEC_SIGNAL", tag, signal=9)
        connection.send("EXEC_FORGET", 0, workspace=b"a-one", id=b"x")
        assert connection.wait(tag)["error"] == errno.EACCES
        assert call(connection, "PING", nonce=3)["nonce"] == 3
    assert status_of(whole)["exec"]["started"] == 0
    assert status_of(whole)["connections"]["forbidden"] >= 2


def test_reading_alone(service, whole):
    root = call(whole, "WORKSPACE_OPEN", key=b"a-one")["node"]
    made = call(whole, "CREATE", parent=root, name=b"file", flags=3, mode=0o644)
    call(whole, "WRITE", handle=made["handle"], data=b"content")
    with connect(service.http_url, "no-write") as connection:
        root = call(connection, "WORKSPACE_OPEN", key=b"a-one")["node"]
        node = call(connection, "LOOKUP", parent=root, name=b"file")["node"]
        for flags in (2, 3, 1 | 4, 1 | 8):
            assert call(connection, "OPEN", node=node, flags=flags) == errno.EACCES
        handle = call(connection, "OPEN", node=node, flags=1)["handle"]
        assert call(connection, "READ", handle=handle, size=100)["data"] == b"content"
        assert call(connection, "LOCK_SET", node=node, handle=handle, owner=1, end=2**63 - 1, type=2) == errno.EACCES
        assert "seq" in call(connection, "LOCK_SET", node=node, handle=handle, owner=1, end=2**63 - 1, type=1)


# --- workspaces ------------------------------------------------------------------------------

def workspace_fields():
    """(request, its field for a workspace, its field for flags) of all but the one that makes one."""
    for message in REQUESTS:
        names = [f.name for f in message.fields]
        for field in message.fields:
            if field.max == wire.CONSTANTS["WIRE_THREAD_ID_MAX"] and message.name not in ("WORKSPACE_CREATE", "ACCESS"):
                yield message.name, field.name, "workspace_flags" if "workspace_flags" in names else "flags"


def test_another_workspace_does_not_exist(service, ours):
    """The answer is the same whether it does, by its ID and by its directory's name."""
    long_name = service.root / "workspaces"
    long_name = next(name for name in os.listdir(long_name) if "~" in name).encode()
    fields = list(workspace_fields())
    assert len(fields) == 19
    for name, field, flags in fields:
        answers = set()
        for key, by_name in ((b"b-two", 0), (b"b-none", 0), (b"b-two", 1), (b"b-none", 1), (long_name, 1),
                             (long_name[:-1] + (b"0" if long_name[-1:] != b"0" else b"1"), 1)):
            more = {"argv": [b"true"]} if name == "EXEC" else {}
            answer = call(ours, name, **{field: key, flags: by_name, **more})
            answers.add(answer if isinstance(answer, int) else str(answer))
        assert answers == {errno.ENOENT}, (name, answers)
    assert call(ours, "WORKSPACE_CREATE", thread_id=b"b-two") == errno.EACCES
    assert call(ours, "WORKSPACE_CREATE", thread_id=b"b-none") == errno.EACCES
    forks = [call(ours, "WORKSPACE_CREATE", thread_id=b"a-fork", flags=wire.CONSTANTS["WIRE_WORKSPACE_FROM_WORKSPACE"],
                  source=source) for source in (b"b-two", b"b-none")]
    assert forks == [errno.ENOENT] * 2
    assert "node" in call(ours, "WORKSPACE_OPEN", key=b"a-one")
    assert call(ours, "WORKSPACE_CREATE", thread_id=b"a-new")["created"] == 1


def test_a_token_for_one_workspace(service, whole, ours):
    """It reaches no other, makes and removes none, outlives the service, and ends with its line."""
    assert call(ours, "ACCESS", thread_id=b"b-two") == errno.ENOENT
    mine = call(ours, "ACCESS")
    assert (mine["identity"], mine["thread_id"], mine["token"]) == (b"ours", b"", b"")
    token = call(ours, "ACCESS", thread_id=b"a-one")["token"].decode()
    service = service.restart()
    assert (service.root / "token-key").stat().st_mode & 0o777 == 0o600
    with connect(service.http_url, token) as connection:
        mine = call(connection, "ACCESS", thread_id=b"a-one")
        assert (mine["identity"], mine["thread_id"], mine["token"].decode()) == (b"ours", b"a-one", token)
        assert "node" in call(connection, "WORKSPACE_OPEN", key=b"a-one")
        for other in (b"a-two", b"b-two", b"a-*"):
            assert call(connection, "WORKSPACE_OPEN", key=other) == errno.ENOENT
            assert call(connection, "ACCESS", thread_id=other) == errno.ENOENT
        assert call(connection, "WORKSPACE_CREATE", thread_id=b"a-one") == errno.EACCES
        assert call(connection, "WORKSPACE_REMOVE", key=b"a-one") == errno.EACCES
        assert listed(connection, 10) == [b"a-one"]
        assert status_of(connection)["granted"] == {
            "id": "ours", "workspace": "a-one", "workspaces": [], "verbs": ["read", "write", "exec"]}
        lines = Path(service.access_file).read_text().splitlines()
        Path(service.access_file).write_text("".join(f"{line}\n" for line in lines if '"ours"' not in line))
        wait_until(lambda: "the access of ours has ended" in service.log)
    assert refused(service.http_url, token).status == 401


def listed(connection, count):
    after, found = b"", []
    while True:
        page = call(connection, "WORKSPACE_LIST", count=count, after=after)
        found += [one["name"] for one in wire.decode_list("WORKSPACE", page["items"])]
        if not page["more"]:
            return found
        assert page["items"], "a page without anything, and more to come"
        after = found[-1]


def test_lists_show_what_is_ours(whole, ours):
    for i in range(5):
        call(whole, "WORKSPACE_CREATE", thread_id=b"a-%d" % i)
        call(whole, "WORKSPACE_CREATE", thread_id=b"aa-%d" % i)
    mine = [b"a-%d" % i for i in range(5)] + [b"a-one"]
    for count in (0, 1, 2, 3):
        assert listed(ours, count) == mine
        assert len(listed(whole, count)) == len(mine) + 7
    assert status_of(ours).keys() == {"granted", "version"}
    assert status_of(ours)["granted"] == {"id": "ours", "workspaces": ["a-*"], "verbs": VERBS}
    assert status_of(whole)["workspaces"] == 13


def test_commands_of_others(whole, ours):
    for workspace in (b"a-one", b"b-two"):
        tag = whole.request("EXEC", workspace=workspace, id=b"same", argv=[b"sleep", b"60"], flags=8)
        assert whole.wait(tag, "EXEC_EXIT")["verdict"] == 8
    page = call(ours, "EXEC_LIST")
    assert [c["workspace"] for c in wire.decode_list("EXEC_COMMAND", page["items"])] == [b"a-one"]
    assert "confinement" in status_of(ours) and "exec" not in status_of(ours)
    # The last that was looked at is told, so that one who asks for few finds all of them.
    first = call(ours, "EXEC_LIST", count=1, after=0)
    second = call(ours, "EXEC_LIST", count=1, after=first["after"])
    assert (len(first["items"]), first["more"], len(second["items"]), second["more"]) == (1, 1, 0, 0)
    assert call(ours, "EXEC_KILL", workspace=b"b-two", id=b"same") == errno.ENOENT
    assert call(ours, "EXEC_KILL", workspace=b"a-one", id=b"same")["removed"] == 1
    assert call(whole, "EXEC_KILL", workspace=b"b-two", id=b"same")["removed"] == 1


def test_nodes_and_handles_of_others(whole, ours):
    root = call(whole, "WORKSPACE_OPEN", key=b"b-two")["node"]
    made = call(whole, "CREATE", parent=root, name=b"file", flags=3, mode=0o644)
    assert call(ours, "LOOKUP", parent=root, name=b"file") == errno.ESTALE
    assert call(ours, "GETATTR", node=made["node"]) == errno.ESTALE
    assert call(ours, "READ", handle=made["handle"], size=9) == errno.EBADF


# --- the life of a grant ---------------------------------------------------------------------

def test_a_grant_that_is_taken_back(harness, service, whole, run_berth):
    """Who is in is cut off; whose line is as it was stays; nobody restarts anything."""
    with connect(service.http_url, OURS) as ours:
        assert call(ours, "PING") and call(whole, "PING")
        run_berth("token", "revoke", "ours", "--access-file", service.access_file, check=True)
        assert refused(service.http_url, OURS).status == 401
        goodbye = ours.receive()
        assert goodbye.name == "GOODBYE" and goodbye["error"] == errno.EACCES
        assert ours.receive() is None
    assert call(whole, "PING")
    assert "the access of ours has ended" in service.log
    with open(service.access_file, "a", encoding="utf-8") as file:
        file.write(grant_line(id="again", secret=OURS) + "\n")
    connect(service.http_url, OURS).close()


def test_a_parked_session_goes_with_its_grant(service, whole, run_berth):
    with connect(service.http_url, OURS) as lost:
        pass
    address = urlsplit(service.http_url)
    with wire.Connection.tcp(address.hostname, address.port) as lost:
        lost.upgrade(token=OURS)
        lost.hello(features=4)
    wait_until(lambda: status_of(whole)["connections"]["parked"] == 1)
    run_berth("token", "revoke", "ours", "--access-file", service.access_file, check=True)
    wait_until(lambda: status_of(whole)["connections"]["parked"] == 0, timeout=20)


def test_a_grant_that_expires(harness):
    soon = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 4))
    service = harness.start_service(http=True, access_file=harness.access_file(
        {"id": "short", "secret": "short", "expires": soon},
        {"id": "past", "secret": "past", "expires": "2020-01-01T00:00:00Z"}))
    assert b"has expired; ask for a new one" in refused(service.http_url, "past").body
    with connect(service.http_url, "short") as connection:
        goodbye = connection.receive()
        assert goodbye.name == "GOODBYE" and goodbye["error"] == errno.EACCES
    assert b"has expired" in refused(service.http_url, "short").body


def test_a_file_that_is_wrong_lets_nobody_in_anew(service, whole):
    text = service.access_file.read_bytes()
    service.access_file.write_bytes(text + b"rubbish\n")
    answer = refused(service.http_url, ALL)
    assert answer.status == 503 and b'"retry":true' in answer.body and b"who may enter" in answer.body
    assert b"retry-after: " in answer.head.lower()
    assert "line 8" in status_of(whole)["access"]["error"]
    # What cannot be compared is no wrong token: none of these is held against the address.
    assert {refused(service.http_url, f"token-{i}").status for i in range(25)} == {503}
    service.access_file.write_bytes(text)
    connect(service.http_url, ALL).close()
    service.access_file.chmod(0o644)
    assert refused(service.http_url, ALL).status == 503
    service.access_file.chmod(0o600)
    connect(service.http_url, ALL).close()
    assert status_of(whole)["access"]["error"] is None


def test_a_file_that_is_wrong_is_told_of(service, run_berth, harness):
    text = service.access_file.read_bytes()
    token = harness.new_path("token")
    token.write_text(ALL + "\n")
    token.chmod(0o600)
    assert "NOBODY" not in run_berth("status", check=True).stdout
    service.access_file.write_bytes(text + b'{"id":"x","tokn":"a"}\n')
    client = run_berth("--url", service.http_url, "--token-file", token, "ls")
    assert client.returncode == 1
    assert "the service takes no more connections now: it cannot read who may enter" in client.stderr
    told = run_berth("status", check=True).stdout
    assert "NOBODY IS LET IN but the service's own user: " in told and "line 8: unknown key tokn" in told
    doctor = run_berth("doctor")
    assert doctor.returncode == 1 and "line 8: unknown key tokn" in doctor.stdout


def test_wrong_tokens_are_limited(service, whole):
    """Who tries one after the other has to wait; whose token is right never has to, wherever from."""
    for i in range(40):  # the same again is no attempt
        assert refused(service.http_url, "wrong").status == 401
    statuses = [refused(service.http_url, f"guess-{i}").status for i in range(25)]
    assert statuses[:19] == [401] * 19 and statuses[-1] == 429
    answer = refused(service.http_url, "guess-25")
    assert answer.status == 429 and b"retry-after: " in answer.head.lower()
    connect(service.http_url, ALL).close()
    assert call(whole, "PING")
    with wire.Connection.unix(service.socket) as connection:
        connection.upgrade()
    other = service.http_url.replace("127.0.0.1", "127.0.0.2")
    assert other != service.http_url
    address = urlsplit(service.http_url)
    import socket
    with socket.create_connection((address.hostname, address.port), 20, source_address=("127.0.0.2", 0)) as sock:
        elsewhere = wire.Connection.socket(sock, 20)
        elsewhere.upgrade(token=ALL)
        assert elsewhere.hello()


# --- certificates and users ------------------------------------------------------------------

def test_certificates(harness, certificates):
    service = harness.start_service(tls=True, client_ca=True, access_file=harness.access_file(
        {"id": "cert", "certificate": "DNS:client", "workspaces": ["a-*"], "verbs": ["admin"]},
        {"id": "both", "certificate": "DNS:client", "secret": "both"},
        {"id": "other", "certificate": "subject:CN=somebody", "secret": "other"},
        {"id": "token", "secret": "token", "verbs": ["exec"]}))
    port = urlsplit(service.tls_url).port

    def granted(token, pair="client"):
        context = ssl.create_default_context(cafile=certificates.ca)
        if pair:
            context.load_cert_chain(*certificates.pair(pair))
        with wire.Connection.tcp("localhost", port, context) as connection:
            connection.upgrade(token=token)
            connection.hello()
            return status_of(connection)["granted"]["id"]

    assert granted(None) == "cert"
    assert granted("both") == "both"
    assert granted("token") == "token"
    for token, pair, status in (("other", "client", 403), ("both", None, 403), (None, None, 403),
                                (None, "server", 401), ("both", "server", 403), ("wrong", "client", 401)):
        if pair == "server":  # for servers: its use is not for clients, and the handshake fails
            with pytest.raises((ssl.SSLError, wire.Closed, ConnectionError)):
                granted(token, pair)
            continue
        with pytest.raises(wire.Refused) as caught:
            granted(token, pair)
        assert caught.value.status == status, (token, pair)


def test_a_certificate_that_nobody_knows(harness, certificates, run_berth):
    """It is not a token that is missing."""
    service = harness.start_service(tls=True, client_ca=True, access_file=harness.access_file(
        {"id": "other", "certificate": "subject:CN=somebody"}))
    cert, key = certificates.pair("client")
    result = run_berth("--url", service.tls_url, "--ca-file", certificates.ca, "--cert-file", cert, "--key-file", key, "ls")
    assert result.returncode == 1
    assert "no line of the access file is for the client certificate subject:CN=client alone" in result.stderr


def test_a_certificate_without_an_access_file(harness, certificates):
    service = harness.start_service(tls=True, client_ca=True)
    context = ssl.create_default_context(cafile=certificates.ca)
    context.load_cert_chain(*certificates.pair("client"))
    with wire.Connection.tcp("localhost", urlsplit(service.tls_url).port, context) as connection:
        connection.upgrade()
        connection.hello()
        assert status_of(connection)["granted"] == {
            "id": "subject:CN=client", "workspaces": ["*"], "verbs": VERBS}


def test_users(harness):
    """At a unix socket that they can reach; others do not get in by it."""
    service = harness.start_service(access_file=harness.access_file(
        {"id": "guest", "user": 65533, "workspaces": ["a-*"], "verbs": ["read"]}), args=["--socket-mode", "0666"])
    harness.short.chmod(0o755)
    assert os.stat(service.socket).st_mode & 0o777 == 0o666
    assert (service.root / "berthd.sock").stat().st_mode & 0o777 == 0o600
    code = ("import os, sys\nsys.path.insert(0, sys.argv[2])\nfrom lib import berthwire as wire\n"
            "os.setgid(int(sys.argv[3])); os.setuid(int(sys.argv[3]))\n"
            "c = wire.Connection.unix(sys.argv[1])\n"
            "try:\n    c.upgrade(); c.hello()\nexcept wire.Refused as e:\n    print(e.status); sys.exit()\n"
            "t = c.request('STATUS'); print(c.wait(t)['json'].decode())\n")
    here = os.path.dirname(os.path.dirname(__file__))

    def ask(user):
        return harness.run(["/usr/bin/python3", "-c", code, service.socket, here, str(user)], check=True).stdout

    assert json.loads(ask(65533))["granted"]["id"] == "guest"
    assert ask(65532) == "403\n"
    for mode in ("0400", "666x", "01666", ""):
        result = harness.run(["berthd", "--root", harness.new_path("root"), "--socket-mode", mode])
        assert result.returncode == 1 and "--socket-mode must be an octal mode" in result.stderr, result


# --- berth token -----------------------------------------------------------------------------

def test_token_command(harness, run_berth):
    access = harness.new_path("access")
    file = ("--access-file", access)
    made = run_berth("token", "create", *file, "-w", "a-*", "-w", "b", "--verb", "read,exec", "--id", "one",
                     "--expires", "12h", "--note", "for tests", check=True)
    token = made.stdout.strip()
    assert token.startswith("berth_") and len(token) == 6 + 43
    assert access.stat().st_mode & 0o777 == 0o600
    assert token not in access.read_text() and token[6:] not in access.read_text()
    other = run_berth("token", "create", *file, "-w", "*", "--verb", "admin", "--verb", "read", "--expires", "never",
                      check=True).stdout.strip()
    assert other != token
    (one, two) = json.loads(run_berth("token", "list", *file, "--json", check=True).stdout)
    assert (one["id"], one["workspaces"], one["verbs"], one["note"]) == ("one", ["a-*", "b"], ["read", "exec"],
                                                                        "for tests")
    assert one["expired"] is False and abs(time.mktime(time.strptime(one["expires"], "%Y-%m-%dT%H:%M:%SZ"))
                                           - time.timezone - time.time() - 12 * 3600) < 100
    assert "expires" not in two and two["verbs"] == ["read", "admin"]
    text = run_berth("token", "ls", *file, check=True).stdout
    assert text == run_berth("token", "list", *file, check=True).stdout
    assert text.split("\n")[0].split() == ["ID", "VERBS", "EXPIRES", "FOR"]
    assert "one" in text and "read,exec" in text and "a-*, b" in text and "never" in text and token not in text
    service = harness.start_service(http=True, access_file=access)
    for right in (token, other):
        connect(service.http_url, right).close()
    assert run_berth("token", "create", *file, "-w", "*", "--verb", "read", "--id", "one").returncode == 1
    run_berth("token", "revoke", *file, "one", check=True)
    assert refused(service.http_url, token).status == 401
    result = run_berth("token", "revoke", *file, "one")
    assert result.returncode == 1 and "there is none with the id one" in result.stderr


def test_token_in_a_file(harness, run_berth):
    """As --token-file takes it, whatever the umask; what is there already is not touched."""
    access, token = harness.new_path("access"), harness.new_path("token")
    create = ("token", "create", "--access-file", access, "-w", "*", "--verb", "read", "--output", token)
    before = os.umask(0)
    try:
        made = run_berth(*create, "--id", "one", check=True)
    finally:
        os.umask(before)
    assert made.stdout == "" and str(token) in made.stderr
    assert token.stat().st_mode & 0o777 == 0o600 and len(token.read_text()) == 6 + 43 + 1
    service = harness.start_service(http=True, access_file=access)
    assert run_berth("--url", service.http_url, "--token-file", token, "ls", check=True)
    again = run_berth(*create, "--id", "two")
    assert again.returncode == 1 and "File exists" in again.stderr
    assert token.read_text() not in again.stdout and '"two"' not in access.read_text()
    # The file is not left behind when there is no line for it.
    token.unlink()
    assert run_berth(*create, "--id", "one").returncode == 1 and not token.exists()


def test_token_command_finds_the_file(harness, run_berth):
    config = harness.new_path("berth.json")
    config.write_text(json.dumps({"service": {"access_file": "access"}}))
    run_berth("--config", config, "token", "create", "-w", "*", "--verb", "read", "--user", "daemon", "--id", "d",
              check=True)
    line = json.loads((config.parent / "access").read_text())
    assert line["user"] == 1 and "token" not in line
    config.write_text("{}")
    result = run_berth("--config", config, "token", "list")
    assert result.returncode == 1 and "--access-file" in result.stderr


@pytest.mark.parametrize("words, says", [
    (["--verb", "read"], "-w"), (["-w", "*"], "--verb"), (["-w", "*", "--verb", "reed"], "read, write, exec"),
    (["-w", "*", "--verb", "read", "--expires", "soon"], "30d"),
    (["-w", "*", "--verb", "read", "--expires", "99999999d"], "too long"),
    (["-w", "*", "--verb", "read", "--expires", "99999999999999999999d"], "too long"),
    (["-w", "*", "--verb", "read", "--id", "a b"], "letters"),
    (["-w", "*", "--verb", "read", "--id", "-a"], "not the first"),
    (["-w", "*", "--verb", "read", "--user", "0", "--output", "token"], "none is made"),
    (["-w", "*", "--verb", "read", "--user", "nobody-of-that-name"], "no such user"),
    (["-w", "*", "--verb", "read", "--user", "0", "--with-token"], "goes with no"),
    (["-w", "*", "--verb", "read", "more"], "takes no arguments"),
])
def test_token_command_that_makes_no_sense(harness, run_berth, words, says):
    access = harness.new_path("access")
    result = run_berth("token", "create", "--access-file", access, *words)
    assert result.returncode == 2 and says in result.stderr
    assert not access.exists()


# --- what people see -------------------------------------------------------------------------

def test_the_command_line_of_one_who_may_not(harness, service, whole, run_berth):
    env = service.client_env(service.http_url)
    env["BERTH_TOKEN"] = OURS
    result = run_berth("exec", "--no-persist", "-w", "b-two", "--", "true", env=env)
    assert result.returncode == 125 and "no such workspace" in result.stderr
    assert run_berth("exec", "--no-persist", "-w", "a-one", "--", "true", env=env).returncode == 0
    assert run_berth("ls", "-q", env=env, check=True).stdout == "a-one\n"
    assert "granted" in json.loads(run_berth("status", "--json", env=env, check=True).stdout)["service"]
    assert run_berth("status", env=env).returncode == 0
    env["BERTH_TOKEN"] = "no-exec"
    result = run_berth("exec", "--no-persist", "-w", "a-one", "--", "true", env=env)
    assert result.returncode == 125 and "not granted exec" in result.stderr
    result = run_berth("ps", env=env)
    assert result.returncode == 1 and "not granted exec" in result.stderr


def test_a_mount_of_one_who_may_only_read(harness, service, whole, run_berth):
    root = call(whole, "WORKSPACE_OPEN", key=b"a-one")["node"]
    made = call(whole, "CREATE", parent=root, name=b"file", flags=3, mode=0o644)
    call(whole, "WRITE", handle=made["handle"], data=b"content")
    env = {**service.client_env(service.http_url), "BERTH_TOKEN": "no-write"}
    mount = harness.start_mount(service, url=service.http_url, workspace="a-one", env=env)
    assert (mount.path / "file").read_text() == "content"
    for change in (lambda: (mount.path / "file").write_text("x"), lambda: (mount.path / "new").touch(),
                   lambda: (mount.path / "file").unlink(), lambda: (mount.path / "file").chmod(0o600)):
        with pytest.raises(PermissionError):
            change()
    env["BERTH_TOKEN"] = OURS
    mount = harness.start_mount(service, url=service.http_url, env=env)
    assert os.listdir(mount.path) == ["a-one"]
    assert not (mount.path / "b-two").exists()

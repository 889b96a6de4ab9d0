"""Files over HTTP: content with ranges and conditions, names, listings."""

import hashlib
import io
import os
import signal
import socket
import tarfile
import threading
from pathlib import Path
from urllib.parse import quote

import pytest

from lib.harness import wait_until
from lib.processes import children_of
from lib.web import Web

ID = "T/files:1"


@pytest.fixture
def tree(service, run_berth):
    run_berth("create", ID, check=True)
    (directory,) = (service.root / "workspaces").iterdir()
    return directory / "tree"


@pytest.fixture
def web(service, tree):
    with Web(service.url, workspace=ID) as web:
        yield web


def problem(answer, status, errno):
    assert answer.status == status, answer
    assert answer.fields["content-type"] == "application/problem+json"
    assert answer.json["status"] == status and answer.json["errno"] == errno, answer
    return answer.json


def test_put_and_get(web, tree):
    made = web.ask("PUT", "/files/a/b/c%20%F0%9F%8C%B2.txt?parents=true", b"content")
    assert made.status == 201 and made.json["size"] == 7 and made.json["path"] == "a/b/c 🌲.txt"
    assert (tree / "a/b/c 🌲.txt").read_bytes() == b"content"
    assert (tree / "a/b/c 🌲.txt").stat().st_mode & 0o7777 == 0o644
    got = web.ask("GET", "/files/a/b/c%20%F0%9F%8C%B2.txt")
    assert (got.status, got.body) == (200, b"content")
    assert got.fields["etag"] == made.fields["etag"] and got.fields["content-length"] == "7"
    assert got.fields["content-type"] == "application/octet-stream"
    assert got.fields["x-content-type-options"] == "nosniff"
    # In place of it, whole, with its mode.
    (tree / "a/b/c 🌲.txt").chmod(0o755)
    again = web.ask("PUT", "/files/a/b/c%20%F0%9F%8C%B2.txt", b"")
    assert again.status == 200 and again.fields["etag"] != made.fields["etag"]
    got = web.ask("GET", "/files/a/b/c%20%F0%9F%8C%B2.txt")
    assert (got.status, got.body, got.fields["content-length"]) == (200, b"", "0")
    assert (tree / "a/b/c 🌲.txt").stat().st_mode & 0o7777 == 0o755
    assert sorted(os.listdir(tree / "a/b")) == ["c 🌲.txt"]
    new = web.ask("PUT", "/files/script?mode=0700", b"#!/bin/sh\n")
    assert new.status == 201 and (tree / "script").stat().st_mode & 0o7777 == 0o700
    head = web.ask("HEAD", "/files/script")
    assert (head.status, head.body, head.fields["content-length"]) == (200, b"", "10")


def test_names_that_are_not_text(web, tree):
    name = b"\xff\n\"x"
    assert web.ask("PUT", f"/files/{quote(name)}", b"1").status == 201
    assert os.listdir(os.fsencode(tree)) == [name]
    (entry,) = web.ask("GET", "/list/").json["entries"]
    assert entry["name"] is None and entry["name_base64"] == "/woieA=="
    assert web.ask("GET", f"/files/{quote(name)}").body == b"1"


def test_append(web, tree):
    assert web.ask("PUT", "/files/log?append=1", b"one\n").status == 201
    assert web.ask("PUT", "/files/log?append=1", b"two\n").status == 200
    assert (tree / "log").read_bytes() == b"one\ntwo\n"


RANGES = [
    ("bytes=0-3", 206, b"0123", "bytes 0-3/10"),
    ("bytes=7-", 206, b"789", "bytes 7-9/10"),
    ("bytes=7-1000000000000000000000000", 206, b"789", "bytes 7-9/10"),
    ("bytes=-4", 206, b"6789", "bytes 6-9/10"),
    ("bytes=-400", 206, b"0123456789", "bytes 0-9/10"),
    ("bytes=20-30,0-0", 206, b"0", "bytes 0-0/10"),
    ("bytes=10-", 416, None, "bytes */10"),
    ("bytes=-0", 416, None, "bytes */10"),
    # What is no range of bytes is as if it were not there.
    ("bytes=3-2", 200, b"0123456789", None),
    ("bytes=a-", 200, b"0123456789", None),
    ("bytes=0-1,", 200, b"0123456789", None),
    ("lines=0-1", 200, b"0123456789", None),
    ("bytes=" + ",".join(["0-0"] * 17), 200, b"0123456789", None),
    ("bytes=0-,0-", 200, b"0123456789", None),  # more than there is
]


def test_a_range(web, tree):
    (tree / "f").write_bytes(b"0123456789")
    for field, status, body, content_range in RANGES:
        answer = web.ask("GET", "/files/f", Range=field)
        assert (answer.status, answer.fields.get("content-range")) == (status, content_range), field
        if body is not None:
            assert answer.body == body
    (tree / "f").write_bytes(b"")
    assert web.ask("GET", "/files/f", Range="bytes=0-").status == 416


def test_several_ranges(web, tree):
    (tree / "f").write_bytes(b"0123456789")
    answer = web.ask("GET", "/files/f", Range="bytes=0-1, 4-5 ,-1")
    assert answer.status == 206 and int(answer.fields["content-length"]) == len(answer.body)
    kind, boundary = answer.fields["content-type"].split("; boundary=")
    assert kind == "multipart/byteranges"
    first, *parts, last = answer.body.split(b"--" + boundary.encode())
    assert (first, last) == (b"\r\n", b"--\r\n")
    contents = [part.split(b"\r\n\r\n", 1)[1] for part in parts]
    assert contents == [b"01\r\n", b"45\r\n", b"9\r\n"]
    assert b"Content-Range: bytes 9-9/10" in parts[2]


def test_conditions_of_get(web, tree):
    (tree / "f").write_bytes(b"0123456789")
    os.utime(tree / "f", (1000000000, 1000000000))
    got = web.ask("GET", "/files/f")
    tag, date = got.fields["etag"], got.fields["last-modified"]
    assert date == "Sun, 09 Sep 2001 01:46:40 GMT"
    for fields, status in [
            ({"If_None_Match": tag}, 304), ({"If_None_Match": f'"x", W/{tag}'}, 304),
            ({"If_None_Match": "*"}, 304), ({"If_None_Match": '"x"'}, 200),
            ({"If_Modified_Since": date}, 304), ({"If_Modified_Since": "Sun, 09 Sep 2001 01:46:39 GMT"}, 200),
            ({"If_Modified_Since": date, "If_None_Match": '"x"'}, 200),
            ({"If_Match": tag}, 200), ({"If_Match": '"x"'}, 412), ({"If_Match": f"W/{tag}"}, 412),
            ({"If_Unmodified_Since": "Sun, 09 Sep 2001 01:46:39 GMT"}, 412),
            ({"If_Range": tag, "Range": "bytes=0-0"}, 206), ({"If_Range": '"x"', "Range": "bytes=0-0"}, 200),
            ({"If_Range": date, "Range": "bytes=0-0"}, 200)]:
        answer = web.ask("GET", "/files/f", **fields)
        assert answer.status == status, (fields, answer)
        if status == 304:
            assert answer.body == b"" and answer.fields["etag"] == tag
    os.utime(tree / "f")
    assert web.ask("GET", "/files/f", If_None_Match=tag).status == 200


def test_dates_are_no_condition_of_a_change(web, tree):
    (tree / "f").write_bytes(b"1")
    tag = web.ask("GET", "/files/f").fields["etag"]
    for date in ("Thu, 01 Jan 1970 00:00:00 GMT", "Fri, 01 Jan 2100 00:00:00 GMT", "x"):
        for method, path in [("PUT", "/files/f"), ("DELETE", "/files/f"), ("POST", "/directories/d")]:
            answer = web.ask(method, path, b"2" if method == "PUT" else b"", If_Unmodified_Since=date)
            assert answer.status == 412 and "If-Match" in answer.json["detail"], (method, answer)
            assert answer.json["effect"] == "none"
    assert (tree / "f").read_bytes() == b"1" and not (tree / "d").exists()
    fields = {"If_Unmodified_Since": "Thu, 01 Jan 1970 00:00:00 GMT", "If_Match": tag}
    assert web.ask("PUT", "/files/f", b"2", **fields).status == 200
    assert web.ask("PUT", "/files/f", b"3", If_Modified_Since="Fri, 01 Jan 2100 00:00:00 GMT").status == 200


def test_names_in_details_are_escaped_once(web):
    assert web.ask("GET", "/files/%ff%5c").json["detail"].startswith("\\xff\\x5c: ")


def test_conditions_of_put(web, tree):
    first = web.ask("PUT", "/files/f", b"1", If_None_Match="*")
    assert first.status == 201
    assert web.ask("PUT", "/files/f", b"2", If_None_Match="*").status == 412
    assert web.ask("PUT", "/files/f", b"2", If_Match='"x"').status == 412
    assert web.ask("PUT", "/files/none", b"2", If_Match="*").status == 412
    assert (tree / "f").read_bytes() == b"1" and os.listdir(tree) == ["f"]
    second = web.ask("PUT", "/files/f", b"2", If_Match=first.fields["etag"])
    assert second.status == 200 and (tree / "f").read_bytes() == b"2"
    refused = web.ask("PUT", "/files/f", b"3", If_Match=first.fields["etag"])
    assert refused.status == 412 and refused.json["effect"] == "none"
    assert os.listdir(tree) == ["f"]


def test_of_those_who_put_with_the_same_tag_one_wins(web, tree):
    tag = web.ask("PUT", "/files/counter", b"0").fields["etag"]
    statuses = []

    def put(n):
        with web.another() as mine:
            statuses.append(mine.ask("PUT", "/files/counter", str(n).encode() * 1000, If_Match=tag).status)

    threads = [threading.Thread(target=put, args=(n,)) for n in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(statuses) == [200] + [412] * 7
    assert len(set((tree / "counter").read_bytes())) == 1 and os.listdir(tree) == ["counter"]


def test_a_condition_holds_against_those_who_have_none(web, tree, start_mount):
    """A writer, remover or mover without a condition, by HTTP or a mount, is never undone by a PUT with
    one: of both that said they did it, the later is seen."""
    mount = start_mount(workspace=ID)
    (tree / "other").write_bytes(b"other")

    def rename():
        (mount.path / "new").write_bytes(b"mine")
        os.rename(mount.path / "new", mount.path / "f")

    with web.another() as other, web.another() as conditional:
        ways = [(b"mine", lambda: other.ask("PUT", "/files/f", b"mine")),
                (None, lambda: other.ask("DELETE", "/files/f")),
                (None, lambda: os.unlink(mount.path / "f")),
                (b"mine", rename),
                (None, lambda: other.ask("POST", "/move", {"from": "f", "to": "gone", "replace": True}))]
        for i in range(100):
            left, way = ways[i % len(ways)]
            tag = web.ask("PUT", "/files/f", b"base%d" % i).fields["etag"]
            thread = threading.Thread(target=way)
            thread.start()
            status = conditional.ask("PUT", "/files/f", b"conditional", If_Match=tag).status
            thread.join()
            assert status in (200, 412), status
            got = web.ask("GET", "/files/f")
            content = got.body if got.status == 200 else None
            if status == 412 or content != left:
                assert content == left, (i, status, got)


def test_links_stay_in_the_workspace(web, tree, service):
    (tree / "d").mkdir()
    (tree / "d/f").write_bytes(b"inside")
    (tree / "up").symlink_to("d/../d/f")
    (tree / "absolute").symlink_to("/workspace/d")
    (tree / "out").symlink_to("../../../../../etc/passwd")
    (tree / "etc").symlink_to("/etc/passwd")
    (tree / "like").symlink_to("/workspaces/d")
    (tree / "loop").symlink_to("loop")
    (tree / "new").symlink_to("d/made")
    assert web.ask("GET", "/files/up").body == b"inside"
    assert web.ask("GET", "/files/absolute/f").body == b"inside"
    for name in ("out", "etc", "like"):
        problem(web.ask("GET", f"/files/{name}"), 403, "EACCES")
        problem(web.ask("PUT", f"/files/{name}", b"x"), 403, "EACCES")
    problem(web.ask("GET", "/files/loop"), 409, "ELOOP")
    problem(web.ask("GET", "/files/d/..%2f..%2f..%2fetc/passwd"), 403, "EACCES")
    problem(web.ask("GET", "/files/%2e%2e/%2e%2e/x"), 403, "EACCES")
    assert web.ask("PUT", "/files/new", b"by a link").status == 201
    assert (tree / "d/made").read_bytes() == b"by a link" and (tree / "new").is_symlink()
    stat = web.ask("GET", "/stat/etc").json
    assert (stat["type"], stat["target"]) == ("symlink", "/etc/passwd")
    assert web.ask("GET", "/stat/up?follow=true").json["type"] == "file"
    assert web.ask("DELETE", "/files/etc").status == 204 and not (tree / "etc").is_symlink()


def test_what_is_wrong(web, tree, service):
    (tree / "d").mkdir()
    (tree / "f").write_bytes(b"")
    os.mkfifo(tree / "fifo")
    for method, path, body, status, errno in [
            ("GET", "/files/none", None, 404, "ENOENT"), ("GET", "/files/d", None, 409, "EISDIR"),
            ("GET", "/files/", None, 409, "EISDIR"), ("GET", "/files/f/x", None, 409, "ENOTDIR"),
            ("GET", "/files/f/", None, 409, "ENOTDIR"), ("GET", "/files/fifo", None, 400, "EINVAL"),
            ("GET", "/files/" + "x" * 256, None, 400, "ENAMETOOLONG"),
            ("GET", "/files/.berth/x", None, 404, "ENOENT"), ("PUT", "/files/.berth", b"", 403, "EPERM"),
            ("PUT", "/files/d", b"", 409, "EISDIR"), ("PUT", "/files/none/f", b"", 404, "ENOENT"),
            ("PUT", "/files/fifo", b"", 409, "EEXIST"), ("PUT", "/files/", b"", 409, "EISDIR"),
            ("PUT", "/files/f?mode=8", b"", 400, "EINVAL"), ("PUT", "/files/f?mode=07777", b"", 400, "EINVAL"),
            ("PUT", "/files/f?append=maybe", b"", 400, "EINVAL"),
            ("DELETE", "/files/none", None, 404, "ENOENT"), ("DELETE", "/files/", None, 409, "EISDIR"),
            ("GET", "/list/f", None, 409, "ENOTDIR"), ("GET", "/list/?depth=65", None, 400, "EINVAL"),
            ("GET", "/stat/none", None, 404, "ENOENT"), ("POST", "/directories/d", b"", 409, "EEXIST"),
            ("POST", "/directories/x/y", b"", 404, "ENOENT"),
            ("POST", "/move", {"from": "f"}, 400, "EINVAL"),
            ("POST", "/move", {"from": "f", "to": "d"}, 409, "EEXIST"),
            ("POST", "/move", {"from": "none", "to": "x"}, 404, "ENOENT")]:
        problem(web.ask(method, path, body), status, errno)
    problem(web.another(workspace="none").ask("GET", "/files/f"), 404, "ENOENT")
    assert sorted(os.listdir(tree)) == ["d", "f", "fifo"]


def test_a_directory_that_is_missing_can_be_asked_for(web):
    """Who makes something in it is told how; who reads is not."""
    for answer in (web.ask("PUT", "/files/a/f", b""), web.ask("POST", "/directories/a/b"),
                   web.ask("PUT", "/files/f", b"") and web.ask("POST", "/move", {"from": "f", "to": "a/f"})):
        assert "with parents it is made" in answer.json["detail"]
    assert "parents" not in web.ask("GET", "/files/a/f").json["detail"]
    assert "parents" not in web.ask("DELETE", "/files/a/f").json["detail"]


def test_directories_and_moves(web, tree):
    assert web.ask("POST", "/directories/a/b/c?parents=true").status == 201
    assert web.ask("POST", "/directories/a/b/c?parents=true").status == 200
    assert (tree / "a/b/c").stat().st_mode & 0o777 == 0o755
    web.ask("PUT", "/files/a/f", b"1")
    web.ask("PUT", "/files/g", b"2")
    assert web.ask("POST", "/move", {"from": "a/f", "to": "x/y/f", "parents": True}).status == 204
    assert (tree / "x/y/f").read_bytes() == b"1" and not (tree / "a/f").exists()
    assert web.ask("POST", "/move", {"from": "g", "to": "x/y/f", "replace": True}).status == 204
    assert (tree / "x/y/f").read_bytes() == b"2" and not (tree / "g").exists()


def test_removing(web, tree):
    for i in range(40):
        (tree / f"d/e{i}/f").mkdir(parents=True)
        for j in range(5):
            (tree / f"d/e{i}/{j}").write_bytes(b"")
    outside = tree / "kept"
    outside.mkdir()
    (outside / "x").write_bytes(b"")
    (tree / "d/link").symlink_to("../kept")
    problem(web.ask("DELETE", "/files/d"), 409, "ENOTEMPTY")
    assert web.ask("DELETE", "/files/d?recursive=true").status == 204
    assert os.listdir(tree) == ["kept"] and os.listdir(outside) == ["x"]


def test_what_rules_hide_is_not_removed(web, tree, run_berth):
    """As on a mount: nothing that is not seen is deleted with a directory."""
    (tree / "d/secret").mkdir(parents=True)
    (tree / "d/f").write_bytes(b"")
    run_berth("visibility", ID, "--add", "secret", check=True)
    assert [entry["name"] for entry in web.ask("GET", "/list/d").json["entries"]] == ["f"]
    answer = web.ask("DELETE", "/files/d?recursive=true")
    assert problem(answer, 409, "ENOTEMPTY")["effect"] == "unknown"  # f is gone
    assert os.listdir(tree / "d") == ["secret"]


def test_listing(web, tree):
    for i in range(25):
        (tree / f"f{i:02}").write_bytes(b"x" * i)
    (tree / "a/b").mkdir(parents=True)
    (tree / "a/b/c").write_bytes(b"")
    (tree / "a/link").symlink_to("b")
    names, after = [], ""
    while True:
        page = web.ask("GET", f"/list/?limit=10{after}").json
        names += [entry["name"] for entry in page["entries"]]
        if page["next"] is None:
            break
        assert len(page["entries"]) == 10
        after = f"&after={page['next']}"
    assert sorted(names) == ["a"] + [f"f{i:02}" for i in range(25)]
    below = {entry["path"]: entry for entry in web.ask("GET", "/list/a?depth=3").json["entries"]}
    assert sorted(below) == ["a/b", "a/b/c", "a/link"]
    assert below["a/link"]["target"] == "b" and below["a/b/c"]["type"] == "file"
    problem(web.ask("GET", "/list/?depth=3&limit=10"), 413, "EMSGSIZE")


def test_no_name_is_left_out_of_a_listing(web, tree):
    """Nor one that looks like a file which is being written: nobody hides anything by its name."""
    assert web.ask("PUT", "/files/.berth-put-0123456789abcdef", b"x").status == 201
    assert [entry["name"] for entry in web.ask("GET", "/list/").json["entries"]] == [".berth-put-0123456789abcdef"]


@pytest.mark.parametrize("reset", [False, True])
def test_an_upload_that_is_cut_leaves_nothing(web, tree, service, reset):
    """Nor has it a name while it comes, which whoever is killed would leave."""
    web.ask("PUT", "/files/f", b"before")
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(service.url[5:])
        s.sendall(f"PUT {web.target('/files/f')} HTTP/1.1\r\nHost: x\r\nContent-Length: 5000000\r\n\r\n".encode())
        s.sendall(bytes(2000000))
        wait_until(lambda: any("(deleted)" in name and str(tree) in name for name in open_files(service.pid)),
                   what="the file that is being written")
        assert os.listdir(tree) == ["f"]
        if reset:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    wait_until(lambda: not any("(deleted)" in name and str(tree) in name for name in open_files(service.pid)),
               what="its removal")
    assert os.listdir(tree) == ["f"] and (tree / "f").read_bytes() == b"before"


def open_files(pid):
    names = []
    for process in [pid, *map(int, children_of(pid))]:
        for link in Path(f"/proc/{process}/fd").glob("*"):
            try:
                names.append(os.readlink(link))
            except OSError:
                pass
    return names


def test_a_reader_has_one_version(web, tree):
    """What is put while it is read does not mix with it."""
    old, new = os.urandom(3 << 20), os.urandom(3 << 20)
    assert web.ask("PUT", "/files/f", old).status == 201
    with web.another() as reader:
        reader.start("GET", "/files/f")
        status, fields = reader.http.head()
        assert (status, fields["content-length"]) == (200, str(3 << 20))
        assert web.ask("PUT", "/files/f", new).status == 200
        assert b"".join(reader.http.chunks(fields)) == old
    assert web.ask("GET", "/files/f").body == new


def test_put_is_seen_by_mounts_and_commands(web, tree, start_mount, run_berth):
    """By the first look after the answer, without waiting."""
    mount = start_mount(workspace=ID)
    wait_until(lambda: mount.stats()["coherent"], what="reports of changes")
    web.ask("PUT", "/files/f", b"-1")
    for i in range(20):
        text = str(i).encode()
        assert (mount.path / "f").read_bytes() != text  # it is in the kernel's cache now
        assert web.ask("PUT", "/files/f", text).status == 200
        assert (mount.path / "f").read_bytes() == text
        if i % 10 == 0:
            assert web.ask("POST", "/exec", {"argv": ["cat", "f"]}).json["stdout"] == str(i)
    assert not (mount.path / "g").exists()
    assert web.ask("POST", "/move", {"from": "f", "to": "g"}).status == 204
    assert (mount.path / "g").exists() and not (mount.path / "f").exists()
    assert web.ask("DELETE", "/files/g").status == 204
    assert not (mount.path / "g").exists()
    # And the other way round.
    (mount.path / "h").write_bytes(b"by the mount")
    assert web.ask("GET", "/files/h").body == b"by the mount"


def test_put_waits_until_the_mounts_have_heard(web, tree, start_mount):
    """One that is stopped holds up the answer, until it goes on or its lease is over."""
    mount = start_mount(workspace=ID)
    wait_until(lambda: mount.stats()["coherent"], what="reports of changes")
    web.ask("PUT", "/files/f", b"old")
    assert (mount.path / "f").read_bytes() == b"old"
    for method, path, body in [("PUT", "/files/f", b"new"), ("POST", "/move", {"from": "f", "to": "g"}),
                               ("POST", "/directories/f", b""), ("DELETE", "/files/f", None)]:
        answers = []
        thread = threading.Thread(target=lambda: answers.append(web.ask(method, path, body)))
        os.kill(mount.pid, signal.SIGSTOP)
        try:
            thread.start()
            thread.join(0.5)
            assert answers == [], (method, path)
        finally:
            os.kill(mount.pid, signal.SIGCONT)
            thread.join()
        assert answers[0].status < 300, answers
    assert os.listdir(mount.path) == ["g"] and (mount.path / "g").read_bytes() == b"new"


@pytest.mark.long
def test_a_large_file(web, tree):
    data = os.urandom(1 << 20) * 24
    digest = hashlib.sha256(data).hexdigest()
    assert web.ask("PUT", "/files/large", data).status == 201
    assert hashlib.sha256((tree / "large").read_bytes()).hexdigest() == digest
    assert hashlib.sha256(web.ask("GET", "/files/large").body).hexdigest() == digest
    assert web.ask("PUT", "/files/chunked", data, chunked=True).status == 201
    assert hashlib.sha256((tree / "chunked").read_bytes()).hexdigest() == digest


def test_grants(harness, run_berth):
    """A caller has over HTTP what the same token has on the wire."""
    service = harness.start_service(http=True, access_file=harness.access_file(
        {"id": "reader", "secret": "r" * 32, "verbs": ["read"], "workspaces": ["w"]},
        {"id": "writer", "secret": "w" * 32, "verbs": ["read", "write"], "workspaces": ["w"]},
        {"id": "other", "secret": "o" * 32, "workspaces": ["v"]}))
    run_berth("--url", service.url, "create", "w", check=True)
    reader, writer, other = (Web(service.http_url, token=c * 32, workspace="w") for c in "rwo")
    assert writer.ask("PUT", "/files/f", b"1").status == 201
    assert reader.ask("GET", "/files/f").body == b"1"
    for method, path, body in [("PUT", "/files/f", b"2"), ("DELETE", "/files/f", None),
                               ("POST", "/directories/d", b""), ("PUT", "/files/f?append=1", b"2"),
                               ("POST", "/move", {"from": "f", "to": "g"}),
                               ("POST", "/exec", {"argv": ["true"]})]:
        assert reader.ask(method, path, body).status == 403, (method, path)
    assert writer.ask("POST", "/exec", {"argv": ["true"]}).status == 403
    assert other.ask("GET", "/files/f").status in (403, 404)
    assert reader.ask("GET", "/files/f").body == b"1"
    for web in reader, writer, other:
        web.close()


def test_conditions_of_a_removal(web, tree):
    tag = web.ask("PUT", "/files/f", b"1").fields["etag"]
    answer = web.ask("DELETE", "/files/f", If_Match='"x"')
    assert answer.status == 412 and answer.json["effect"] == "none" and os.listdir(tree) == ["f"]
    assert web.ask("DELETE", "/files/f", If_Match=f'"x", {tag}').status == 204
    (tree / "d").mkdir()
    problem(web.ask("DELETE", "/files/d", If_Match="*"), 400, "EINVAL")
    assert os.listdir(tree) == ["d"]


def test_conditions_that_cannot_be_kept_are_refused(web, tree):
    (tree / "f").write_bytes(b"1")
    for method, path, body in [("POST", "/move", {"from": "f", "to": "g"}), ("POST", "/snapshots", {}),
                               ("POST", "/restore", {"snapshot": "s"}), ("DELETE", "", None),
                               ("POST", "/directories/d", b""), ("POST", "/exec", {"argv": ["true"]})]:
        problem(web.ask(method, path, body, If_Match='"1"'), 400, "EINVAL")
    for tags in ("x", '"x', '"x" "y"', '"x", *', ""):
        problem(web.ask("PUT", "/files/f", b"2", If_Match=tags), 400, "EINVAL")
    assert os.listdir(tree) == ["f"] and (tree / "f").read_bytes() == b"1"


def test_two_fields_are_one_list(web, tree):
    tag = web.ask("PUT", "/files/f", b"1").fields["etag"]
    fields = {"If-Match": '"x"', "if-match": tag}
    web.start("PUT", "/files/f", b"2", fields)
    assert web.http.answer("PUT").status == 200
    web.start("PUT", "/files/f", b"3", {"If-None-Match": '"x"', "if-none-match": '"y"'})
    assert web.http.answer("PUT").status == 200
    assert (tree / "f").read_bytes() == b"3"


def test_conditions_of_a_workspace(web):
    tag = web.ask("GET", "").fields["etag"]
    assert web.ask("GET", "", If_None_Match=f'"x", {tag}').status == 304
    assert web.ask("GET", "", If_None_Match='"x"').status == 200
    assert web.ask("PATCH", "", {"labels": {"a": "b"}}, If_Match='"x", "99"').status == 412
    assert web.ask("PATCH", "", {"labels": {"a": "b"}}, If_Match=f'"x", {tag}').status == 200
    assert web.ask("PATCH", "", {"labels": {"a": "c"}}, If_Match=tag).status == 412


def test_parameters_that_mean_nothing_are_refused(web, tree):
    for method, path, body in [("GET", "/list/?dept=2", None), ("PUT", "/files/f?parent=1", b""),
                               ("GET", "/files/f?by=name", None), ("DELETE", "?lable=x", None)]:
        assert "means nothing here" in problem(web.ask(method, path, body), 400, "EINVAL")["detail"]
    for method, path in [("PUT", "/files/f?mode=0644&mode=0600"), ("GET", "?by=id&by=name"), ("GET", "/list/?limit=1&limit=")]:
        assert "is given twice" in problem(web.ask(method, path, b"" if method == "PUT" else None), 400, "EINVAL")["detail"]
    known = problem(web.ask("POST", "/move", {"form": "f", "to": "g"}), 400, "EINVAL")["detail"]
    assert '"form"' in known and "from, to, replace, parents" in known
    answer = web.ask("POST", "/exec", b'{"argv": ["true"]}', Content_Type="text/plain")
    assert answer.status == 415 and "application/json" in answer.json["detail"]
    assert os.listdir(tree) == []


def test_a_file_that_is_replaced_all_the_time_is_there(web, tree):
    web.ask("PUT", "/files/f", b"0")
    over = threading.Event()
    statuses = set()

    def replace():
        n = 0
        while not over.is_set():
            n += 1
            (tree / "new").write_bytes(b"%d" % n)
            os.rename(tree / "new", tree / "f")

    thread = threading.Thread(target=replace)
    thread.start()
    try:
        for _ in range(300):
            statuses.add(web.ask("GET", "/files/f").status)
            statuses.add(web.ask("GET", "/stat/f").status)
    finally:
        over.set()
        thread.join()
    assert statuses <= {200, 503} and 200 in statuses


def test_what_was_made_before_a_failure_is_told(web, tree):
    answer = web.ask("PUT", "/files/a/b/f?parents=true", b"", If_Match='"x"')
    assert answer.status == 412 and answer.json["effect"] == "unknown"
    answer = web.ask("POST", "/move", {"from": "a", "to": "c/a/../x/a", "parents": True})
    assert (tree / "c").is_dir()
    assert web.ask("PUT", "/files/a/f", b"", If_Match='"x"').json["effect"] == "none"


def test_the_host_of_an_absolute_target(service, tree):
    for host, status in (("evil.example", b"403"), ("localhost", b"200")):
        with socket.socket(socket.AF_UNIX) as s:
            s.connect(service.url[5:])
            s.settimeout(20)
            s.sendall(f"GET http://{host}/v1/workspaces HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            assert s.recv(65536).split()[1] == status


def is_refused(web, archive, why):
    with web.another(workspace="made") as made:
        problem(made.ask("GET", ""), 404, "ENOENT")
        made.http.start("POST", "/v1/workspaces?id=made", archive.getvalue(), {"Content-Type": "application/x-tar"}, False)
        answer = made.http.answer("POST")
        assert answer.status == 400 and why in answer.body


def test_an_archive_with_a_device_node(web, tree, service):
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        node = tarfile.TarInfo("null")
        node.type = tarfile.CHRTYPE
        tar.addfile(node)
    is_refused(web, data, b"device nodes")
    with web.another(workspace="made") as made:
        problem(made.ask("GET", ""), 404, "ENOENT")


def test_an_archive_with_two_kinds_of_one_name(web, tree):
    """The reason is the archive's, not that there is a workspace, or none."""
    for kinds in ((tarfile.REGTYPE, tarfile.DIRTYPE), (tarfile.DIRTYPE, tarfile.REGTYPE), (tarfile.DIRTYPE, tarfile.SYMTYPE)):
        data = io.BytesIO()
        with tarfile.open(fileobj=data, mode="w") as tar:
            for kind in kinds:
                info = tarfile.TarInfo("twice")
                info.type, info.linkname = kind, "x" if kind == tarfile.SYMTYPE else ""
                tar.addfile(info)
        is_refused(web, data, b"twice: a directory, and something else")


def test_an_archive_that_is_cut_between_two_files(web, tree):
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("a"))
        tar.addfile(tarfile.TarInfo("b"))
    with web.another(workspace="made") as made:
        problem(made.ask("GET", ""), 404, "ENOENT")
        for size, status in ((512, 400), (1024, 400), (10240, 201)):
            made.http.start("POST", "/v1/workspaces?id=made", data.getvalue()[:size],
                            {"Content-Type": "application/x-tar"}, False)
            assert made.http.answer("POST").status == status, size

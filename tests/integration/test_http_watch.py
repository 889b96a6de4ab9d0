"""Changes over HTTP: events by path, whoever makes them."""

import errno
import os
import socket
import threading

import pytest

from lib import berthwire as wire
from lib.access import call
from lib.harness import wait_until
from lib.web import Web

ID = "watched"


@pytest.fixture
def tree(service, run_berth):
    run_berth("create", ID, check=True)
    return service.root / "workspaces" / ID / "tree"


@pytest.fixture
def web(service, tree):
    with Web(service.url, workspace=ID) as web:
        yield web


class Watch:
    """Collects what is reported, on a thread."""

    def __init__(self, web, path):
        self.web = web.another()
        self.events = []
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._read, args=(path,), daemon=True)
        self.thread.start()
        wait_until(lambda: self.events or self.ended.is_set(), what="the watch")
        assert self.events[0]["event"] == "watching" and self.events[0]["complete"] is True

    def _read(self, path):
        try:
            for event in self.web.lines("GET", path):
                if event["event"] != "alive":
                    self.events.append(event)
        except EOFError:
            pass
        finally:
            self.ended.set()

    def close(self):
        """The thread reads."""
        self.web.http.connection.shutdown(socket.SHUT_RDWR)

    def told(self):
        return [(event["event"], event.get("path")) for event in self.events[1:]]

    def wait(self, *expected):
        """Until these have come, in this order, others between."""
        def have():
            it = iter(self.told())
            return all(event in it for event in expected)
        try:
            wait_until(have, what=f"{expected}")
        except TimeoutError as e:
            raise AssertionError(f"{expected} not in {self.told()}") from e


def test_a_tree(web, tree, start_mount):
    (tree / "a").mkdir()
    (tree / "a/old").write_bytes(b"1")
    watch = Watch(web, "/watch/?recursive=true")
    # By the service's own machine, by HTTP, by a command, by a mount.
    (tree / "a/old").write_bytes(b"2")
    watch.wait(("modified", "a/old"))
    web.ask("PUT", "/files/b/c/put?parents=true", b"1")
    watch.wait(("created", "b"), ("created", "b/c"), ("created", "b/c/put"))
    web.ask("POST", "/exec", {"argv": ["sh", "-c", "echo x > a/new; chmod 600 a/old"]})
    watch.wait(("created", "a/new"))
    watch.wait(("attributes", "a/old"))
    mount = start_mount(workspace=ID)
    (mount.path / "b/by-mount").write_bytes(b"")
    watch.wait(("created", "b/by-mount"))
    os.rename(mount.path / "b", mount.path / "moved")
    watch.wait(("renamed", "moved"))
    assert [event["from"] for event in watch.events if event["event"] == "renamed"] == ["b"]
    (tree / "moved/c/put").write_bytes(b"now here")
    watch.wait(("modified", "moved/c/put"))
    assert not any(".berth-put" in str(event) for event in watch.events)
    web.ask("DELETE", "/files/moved?recursive=true")
    watch.wait(("removed", "moved/c/put"), ("removed", "moved"))
    watch.close()


def test_one_directory_and_one_file(web, tree):
    (tree / "d/below").mkdir(parents=True)
    (tree / "d/f").write_bytes(b"")
    directory, file = Watch(web, "/watch/d"), Watch(web, "/watch/d/f")
    (tree / "d/below/x").write_bytes(b"")
    (tree / "d/g").write_bytes(b"")
    web.ask("PUT", "/files/d/f", b"1")
    directory.wait(("created", "d/g"))
    # Whoever looks too late finds that it is gone, and not that it was replaced before.
    directory.wait(("created", "d/f"))
    file.wait(("created", "d/f"))
    (tree / "d/end").write_bytes(b"")
    (tree / "d/f").unlink()
    directory.wait(("removed", "d/f"))
    file.wait(("removed", "d/f"))
    assert not any("below/" in str(path) for _, path in directory.told())
    assert {path for _, path in file.told()} == {"d/f"}
    # When the directory itself goes, the stream ends.
    web.ask("DELETE", "/files/d?recursive=true")
    assert directory.ended.wait(20)
    assert directory.told()[-1] == ("removed", "d")
    file.close()
    assert web.ask("GET", "/watch/none").status == 404


def test_nobody_waits_for_a_watch_that_is_not_read(web, tree, start_mount):
    """The barriers of mounts and commands do not wait for it, whatever is pending."""
    slow = web.another()
    slow.start("GET", "/watch/?recursive=true")
    _, fields = slow.http.head()
    assert b"watching" in next(slow.http.chunks(fields))
    for i in range(3000):
        (tree / f"{i:04}-{'x' * 200}").write_bytes(b"")
    mount = start_mount(workspace=ID)
    wait_until(lambda: mount.stats()["coherent"], what="reports of changes")
    for i in range(3):
        told = web.ask("POST", "/exec", {"argv": ["touch", "f"]}).json
        assert told["coherence"] == "seen"
        with open(mount.path / "g", "w") as f:
            os.fsync(f.fileno())
    slow.close()


def test_what_is_wrong(service, web, tree):
    """Flags that mean nothing are refused."""
    with wire.Connection.unix(service.url[5:]) as connection:
        connection.upgrade()
        connection.hello()
        assert call(connection, "SUBSCRIBE", flags=2) == errno.EINVAL


@pytest.mark.long
def test_too_many_files(web, tree):
    (tree / "d").mkdir()
    for i in range(100001):
        (tree / "d" / str(i)).touch()
    answer = web.ask("GET", "/watch/?recursive=true")
    assert (answer.status, answer.json["errno"]) == (413, "EMSGSIZE")
    assert web.ask("GET", "/stat/d").status == 200

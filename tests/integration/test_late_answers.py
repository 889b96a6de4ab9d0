"""An answer to a change of this mount's that is older than what others have been reported to have done
since: with a service that gives them in that order, as a real one does when its threads are unlucky."""

import os
import stat

import pytest

from lib.berthwire import CONSTANTS, encode
from lib.harness import wait_until
from lib.peer_service import PeerService

ROOT, MADE = 1, 2
COVERED = CONSTANTS["WIRE_ATTR_COVERED"]
NAME, ATTR = CONSTANTS["WIRE_CHANGE_NAME"], CONSTANTS["WIRE_CHANGE_ATTR"]
BEFORE, AFTER = 1000, 2000  # times of the directory: by this mount's change, and by the other's after it


class Service(PeerService):
    """Of one workspace with nothing in it. late: what others do is reported before the answer."""

    features = CONSTANTS["WIRE_FEATURE_CHANGES"]

    def __init__(self, path):
        self.late, self.time, self.subscription, self.asked = False, 0, 0, 0
        super().__init__(path)

    def directory(self, ino=ROOT):
        return {**self.attr(ino, stat.S_IFDIR | 0o755), "flags": COVERED, "version": self.time,
                "mtime": (self.time, 0), "ctime": (self.time, 0)}

    def change(self, wire):
        """By this mount, and then, told first, by another: the attributes after the first."""
        self.time = BEFORE
        told = self.directory()
        if self.late:
            self.time = AFTER
            item = encode("CHANGE", ino=ROOT, generation=1, kinds=NAME | ATTR, name=b"other")
            wire.send("CHANGES", self.subscription, position=2, items=[item])
        return told

    def answer(self, wire, got):
        if got.name == "WORKSPACE_OPEN":
            wire.send("WORKSPACE_ROOT", got.tag, node=1, attr=self.directory(), slot=1, thread_id=got["key"],
                      name=got["key"])
        elif got.name == "SUBSCRIBE":
            self.subscription = got.tag
            wire.send("CHANGES", got.tag, position=1, items=[])
        elif got.name == "GETATTR":
            self.asked += got["node"] == 1
            wire.send("ATTRS", got.tag, attr=self.directory(ROOT if got["node"] == 1 else MADE))
        elif got.name == "LOOKUP":
            wire.send("ERROR", got.tag, error=2, text=b"")
        elif got.name == "MKDIR":
            wire.send("MADE", got.tag, directory=self.change(wire), node=2, attr=self.directory(MADE), empty=1)
        elif got.name == "RMDIR":
            wire.send("REMOVED", got.tag, directory=self.change(wire))
        else:
            super().answer(wire, got)


@pytest.fixture
def served(harness, fuse_works, start_mount):
    service = Service(harness.short / "peer.sock")
    mount = start_mount(url=service.url, env=harness.env, workspace="demo")
    wait_until(lambda: mount.stats()["coherent"], what="reports of changes")
    yield service, mount.path
    service.close()


@pytest.mark.parametrize("what", ["made", "removed"])
@pytest.mark.parametrize("late", [False, True])
def test_attributes_of_the_directory(served, what, late):
    service, point = served
    os.stat(point)
    if what == "removed":
        os.mkdir(point / "d")
        os.stat(point)
    service.late = late
    before = service.asked
    (os.mkdir if what == "made" else os.rmdir)(point / "d")
    told = os.stat(point).st_mtime
    if late:
        assert told == AFTER, "older than what was reported before the answer came"
    else:
        # The answer to the change tells it, so nobody asks.
        assert (told, service.asked) == (BEFORE, before)

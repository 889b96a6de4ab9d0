"""The service dies at each place where something becomes durable (execsvc/store/faults.def), and at
random ones: what the next one finds is as it was before, or as it was to be; nothing is half, and
nothing is left over."""

import contextlib
import errno
import fcntl
import os
import random
import struct
import subprocess
import threading
import time

import pytest

from lib import berthwire as wire
from lib import trees
from lib.harness import wait_until

pytestmark = pytest.mark.fault_points

C = wire.CONSTANTS
SET = {part: C["WIRE_WORKSPACE_SET_" + part] for part in ("LABELS", "IDLE", "STATE")}
GONE = (wire.Closed, OSError)


class Lifecycle:
    """What a workspace goes through. Each step asks for something, and looks whether it is done; a
    step that was cut short is taken again, as a client would."""

    FAULTS = ("JSON_", "WORKSPACE_", "TRASH_", "RULES_")

    def __init__(self, world):
        self.world = world
        self.steps = [self.create, self.label, self.rules, self.run, self.stop, self.start, self.fill,
                      self.remove, self.create, self.expire]

    def get(self, peer):
        try:
            return peer.call("WORKSPACE_GET", key=b"w").fields
        except wire.CallError as error:
            assert error.errno == errno.ENOENT, error
            return None

    def set(self, peer, **values):
        """With compare-and-swap: after a crash only who finds it undone does it again."""
        return peer.call("WORKSPACE_SET", key=b"w", revision=self.get(peer)["revision"], **values)

    def create(self, peer):
        before = self.get(peer)
        if before:
            # Whole, though nobody was told: as it was asked for, and usable.
            assert before["labels"] == b'{"a":"1"}' and before["revision"] == 1
        peer.call("WORKSPACE_CREATE", thread_id=b"w", labels=b'{"a":"1"}')
        root = peer.call("WORKSPACE_OPEN", key=b"w")["node"]
        assert peer.call("GETATTR", node=root)["attr"]["mode"] == 0o40755
        peer.send("FORGET", 0, pairs=struct.pack("<QQ", root, 1))  # it is not in use any more

    def label(self, peer):
        before = self.get(peer)
        assert (before["labels"], before["revision"]) in ((b'{"a":"1"}', 1), (b'{"b":"2"}', 2))
        if before["revision"] == 1:
            self.set(peer, valid=SET["LABELS"], labels=b'{"b":"2"}')

    def rules(self, peer):
        before = peer.call("WORKSPACE_VISIBILITY", key=b"w")["workspace"]
        assert before in (b"", b"hide secret\n")
        peer.call("WORKSPACE_SET_VISIBILITY", key=b"w", rules=b"hide secret\n")

    def run(self, peer):
        """Once, however often it is asked for."""
        begun = peer.call("EXEC", workspace=b"w", id=b"c",
                          argv=[b"sh", b"-c", b"echo x >> ran; exec sleep 1000"],
                          flags=C["WIRE_EXEC_DETACH"])
        # The starter dies a moment before the service, which can start no keeper then.
        if begun["verdict"] == C["WIRE_VERDICT_NOT_STARTED"]:
            raise ConnectionResetError(begun["text"])
        assert begun["verdict"] == C["WIRE_VERDICT_RUNNING"], begun["text"]
        ran = self.world.tree / "ran"
        wait_until(lambda: ran.exists() and ran.read_text() == "x\n")

    def stop(self, peer):
        before = self.get(peer)
        if before["state"] == C["WIRE_WORKSPACE_STOPPED"]:
            assert self.verdict(peer) == C["WIRE_VERDICT_KILLED"]
        self.set(peer, valid=SET["STATE"], state=C["WIRE_WORKSPACE_STOPPED"])
        assert self.verdict(peer) == C["WIRE_VERDICT_KILLED"]

    def verdict(self, peer):
        return peer.call("EXEC_ATTACH", workspace=b"w", id=b"c")["verdict"]

    def start(self, peer):
        self.set(peer, valid=SET["STATE"], state=C["WIRE_WORKSPACE_RUNNING"])
        assert (self.world.tree / "ran").read_text() == "x\n"

    def fill(self, peer):
        for i in range(3):
            (self.world.tree / f"d{i}" / "below").mkdir(parents=True, exist_ok=True)

    def remove(self, peer):
        if self.get(peer):
            assert (self.world.tree / "d2" / "below").is_dir()  # whole, or not there
            peer.call("WORKSPACE_REMOVE", key=b"w", flags=C["WIRE_WORKSPACE_FORCE"])
        assert self.get(peer) is None

    def expire(self, peer):
        before = self.get(peer)
        if before and before["idle_ms"] == 0:
            self.set(peer, valid=SET["IDLE"], idle_ms=1)
        wait_until(lambda: self.get(peer) is None, timeout=60)

    def check_end(self, peer):
        assert not peer.call("WORKSPACE_LIST")["items"]


class Trees:
    """A workspace made of items, a snapshot of it, its restore, one made from that, and their end."""

    FAULTS = ("TREE_", "SNAPSHOT_", "RESTORE_")
    MADE = {b"d": 3, b"d/f": b"first", b"g": b"second"}

    def __init__(self, world):
        self.world = world
        self.steps = [self.create, self.snapshot, self.change, self.restore, self.copy, self.forget, self.remove]

    def content(self, name="w"):
        top = self.world.root / "workspaces" / name / "tree"
        return {os.fsencode(path.relative_to(top)): len(os.listdir(path)) + 2 if path.is_dir() else path.read_bytes()
                for path in top.rglob("*")}

    def ask(self, peer, name, allowed, **values):
        """Done now, or before the crash of which nobody was told."""
        try:
            peer.call(name, **values)
        except wire.CallError as error:
            assert error.errno == allowed, error

    def create(self, peer):
        assert trees.left_over(self.world.service)["restores"] == []
        items = [trees.item(trees.DIRECTORY, b"d", mode=0o755)] + trees.file(b"d/f", b"first") + trees.file(b"g", b"second")
        tag = peer.request("WORKSPACE_CREATE", thread_id=b"w", flags=trees.FROM_STREAM)
        peer.send("TREE_IN", tag, items=items, end=1)
        try:
            peer.reply(tag)
        except wire.CallError as error:
            assert error.errno == errno.EEXIST, error
        assert self.content() == self.MADE  # whole, whoever was told

    def snapshot(self, peer):
        self.ask(peer, "SNAPSHOT_CREATE", errno.EEXIST, workspace=b"w", id=b"s")

    def change(self, peer):
        (self.world.tree / "g").write_bytes(b"changed")
        (self.world.tree / "h").write_bytes(b"new")
        self.changed = self.content()

    def restore(self, peer):
        assert self.content() in (self.MADE, self.changed)
        peer.call("WORKSPACE_RESTORE", workspace=b"w", snapshot=b"s")
        assert self.content() == self.MADE

    def copy(self, peer):
        self.ask(peer, "WORKSPACE_CREATE", errno.EEXIST, thread_id=b"copy", flags=trees.FROM_SNAPSHOT, source=b"s")
        assert self.content("copy") == self.MADE

    def forget(self, peer):
        self.ask(peer, "SNAPSHOT_REMOVE", errno.ENOENT, id=b"s")

    def remove(self, peer):
        for name in (b"w", b"copy"):
            self.ask(peer, "WORKSPACE_REMOVE", errno.ENOENT, key=name)

    def check_end(self, peer):
        assert not peer.call("SNAPSHOT_LIST")["items"] and not peer.call("WORKSPACE_LIST")["items"]
        assert trees.left_over(self.world.service)["restores"] == []


SCRIPTS = [Lifecycle, Trees]


class World:
    """A root, the service on it, and a client that comes back."""

    def __init__(self, harness, service):
        self.harness, self.service, self.root = harness, service, service.root
        self.tree = self.root / "workspaces" / "w" / "tree"
        self.peer = None
        self.crashes = 0

    def connect(self, timeout=60):
        """To whatever service is there, in a moment."""
        until = time.monotonic() + timeout
        while True:
            try:
                peer = wire.Connection.unix(self.service.socket, timeout=60)
                peer.upgrade()
                peer.hello()
                return peer
            except GONE:
                assert time.monotonic() < until, "no service"
                time.sleep(0.02)

    def drop(self):
        if self.peer:
            self.peer.close()
        self.peer = None

    def take(self, step):
        """Until it has been taken without a crash."""
        for _ in range(50):
            try:
                self.peer = self.peer or self.connect()
                return step(self.peer)
            except GONE:
                self.drop()
            except wire.CallError as error:
                # Its starter may be killed a moment before it.
                if error.errno != errno.ECONNRESET:
                    raise
                self.drop()
        raise AssertionError(f"{step.__name__}: the service keeps dying")

    def play(self, script):
        for step in script.steps:
            self.take(step)
        self.take(script.check_end)
        self.settle()

    def crashed(self):
        return self.service.log.count("it is started again")

    def settle(self):
        """Nothing is left over, once the service has got to it."""
        def clean():
            return not os.listdir(self.root / "tmp") and not os.listdir(self.root / "trash")
        wait_until(clean, timeout=60, what="an empty tmp/ and trash/")
        self.drop()
        self.service.expected_crashes = self.crashed()


def fault_points(harness):
    result = subprocess.run([harness.program("berthd"), "--fault-points"], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, "build with -Dfault_points=true: " + result.stderr
    return [line.split("\t")[0] for line in result.stdout.splitlines()]


def is_free(root):
    """Nobody holds its lock: who is killed amid an fsync is there until that has ended."""
    with open(root / "lock", "rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            return False


def new_root(harness):
    root = harness.new_path("root")
    harness.start_service(root=root).stop()
    return root


def die_at(harness, name, passing, script):
    """Whether the service came there at all."""
    env = {**harness.env, "BERTH_FAULT": f"{name}:{passing}"}
    service = harness.start_service(root=new_root(harness), env=env)
    world = World(harness, service)
    world.play(script(world))
    crashed = world.crashed()
    assert crashed <= 1
    keeper = service.keeper()
    service.stop()
    if keeper:
        keeper.stop()
    return bool(crashed)


def scripts_of(name):
    found = [script for script in SCRIPTS if name.startswith(script.FAULTS)]
    assert found, f"{name}: no script comes there"
    return found


@pytest.mark.timeout(600)
def test_each_fault_point(harness):
    """The first time that it is passed."""
    for name in fault_points(harness):
        assert any([die_at(harness, name, 1, script) for script in scripts_of(name)]), name


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_each_passing_of_each_fault_point(harness):
    for name in fault_points(harness):
        for script in scripts_of(name):
            passing = 1
            while passing <= 12 and die_at(harness, name, passing, script):
                passing += 1


@pytest.mark.parametrize("passing", [1, 2])
def test_the_first_start(harness, passing):
    """Of a root that is not there yet: the service dies before it serves."""
    root = harness.new_path("root")
    for name in ("JSON_NEW", "JSON_RENAMED"):
        env = {**harness.env, "BERTH_FAULT": f"{name}:{passing}"}
        log = harness.new_path("log")
        with open(log, "wb") as file:
            service = subprocess.Popen([harness.program("berthd"), "--root", root], env=env, stdout=file, stderr=file)
        try:
            # Whether there is a second time depends on what the first left.
            if passing == 1:
                assert service.wait(20) == 1 and b"ended by signal 9" in log.read_bytes(), name
            else:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    service.wait(0.5)
        finally:
            service.terminate()
            service.wait(60)
    service = harness.start_service(root=root)
    World(harness, service).take(lambda peer: peer.call("WORKSPACE_CREATE", thread_id=b"w"))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kills", [10, pytest.param(500, marks=[pytest.mark.long, pytest.mark.timeout(7200)])])
def test_random_kills(harness, kills):
    """SIGKILL at any moment, while the script is played again and again."""
    seed = int(os.environ.get("BERTH_SEED", "0")) or random.randrange(2**31)
    print(f"BERTH_SEED={seed}")
    chance = random.Random(seed)
    world = World(harness, harness.start_service(root=new_root(harness)))
    stopping = threading.Event()
    done, problems = [], []

    def kill():
        """With the one that started it, which would wait longer and longer before the next."""
        try:
            while len(done) < kills and not stopping.is_set():
                time.sleep(chance.uniform(0.005, 0.4))
                old = world.service
                old.kill()
                done.append(old)
                wait_until(lambda: is_free(world.root), timeout=60, what="the end of what was killed")
                world.service = harness.start_service(root=world.root, listen=old.urls)
        except Exception as error:  # noqa: BLE001
            problems.append(error)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    try:
        while len(done) < kills and not problems:
            for step in Lifecycle(world).steps:
                world.take(step)
    finally:
        stopping.set()
        killer.join(60)
    assert not problems
    world.play(Lifecycle(world))

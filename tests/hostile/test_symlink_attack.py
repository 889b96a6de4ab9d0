"""An agent in a workspace points links at files of the machine that mounts it, and moves them up and
down while they are followed. Whoever works on the mount opens everything, and everything that is
opened is looked at: by the opener, which asks the kernel where it got, and by a watch on files
outside that nobody else opens. tests/tools/link-attack.c says what either side does."""

import json
import os
import shutil
import subprocess
import threading
import time

import pytest

LEVELS = ["o1", "o2", "o3", "o4"]  # above the mountpoint: where ".." leads from it
THREADS = 4


class Attack:
    """A workspace "demo" on a mount, beside one named "canary", below directories that each hold
    a file of that name, as the root of "demo" does."""

    def __init__(self, harness):
        self.harness, self.processes = harness, []
        self.service = harness.start_service()
        # What plays the agent lies outside of the workspace.
        self.policy = json.dumps({"filesystem": {"read": [str(harness.program("link-attack"))]}})
        for name in "demo", "canary":
            harness.run_berth("create", "--policy", "-", name, input=self.policy, check=True)
        self.tree = self.service.root / "workspaces/demo/tree"
        self.canaries = []
        self.point = harness.short
        for level in ["", *LEVELS]:
            self.point = self.point / level
            self.point.mkdir(exist_ok=True)
            self.canaries.append(self.point / "canary")
            self.canaries[-1].write_text("outside")
        self.point = self.point / "mnt"

    def mount(self, mode, url=None):
        self.started = self.harness.start_mount(self.service, url=url, path=self.point, options=f"symlinks={mode}",
                                                env=self.service.client_env())
        return self.point / "demo"

    def start(self, role, *arguments, prefix=()):
        process = subprocess.Popen([*prefix, self.harness.program("link-attack"), role, *map(str, arguments)],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   env={**self.harness.env, **self.service.client_env()})
        self.processes.append(process)
        if role != "victim":
            assert process.stdout.readline() == "ready\n", process.stderr.read()
        return process

    def agent(self, via):
        if via == "the tree":
            return self.start("agent", self.tree)
        if via == "another mount":
            other = self.harness.start_mount(self.service, options="symlinks=verbatim")
            return self.start("agent", other.path / "demo")
        return self.start("agent", ".", prefix=[self.harness.program("berth"), "exec", "-w", "demo", "--"])

    def victim(self, tries, timeout):
        process = self.start("victim", self.point / "demo", tries, THREADS)
        out, errors = process.communicate(timeout=timeout)
        assert process.returncode == 0
        return json.loads(out), errors


def ended(process):
    process.terminate()
    return json.loads(process.communicate(timeout=30)[0])


@pytest.fixture
def attack(harness, fuse_works):
    attack = Attack(harness)
    yield attack
    for process in attack.processes:
        if process.poll() is None:
            process.kill()
        process.communicate()


def run_attack(attack, mode, via, tries, timeout, mover=False):
    root = attack.mount(mode)
    watch = attack.start("watch", *attack.canaries)
    agent = attack.agent(via)
    local = attack.start("move", root) if mover else None
    seen, errors = attack.victim(tries, timeout)
    if local:
        seen["moved here"] = ended(local)["moves"]
    seen["moves"] = ended(agent)["moves"]
    seen["opened outside"] = ended(watch)["opened"]
    print(mode, via, seen)
    # It was a fair fight: things moved, links were followed, and links were refused.
    assert seen["tries"] == tries and seen["moves"] > tries // 200
    assert seen["inside"] > tries // 25
    return seen, errors


def test_without_containment_the_attack_gets_out(attack):
    """The control: the same attack, the same victim."""
    seen, _ = run_attack(attack, "verbatim", "the tree", 1000, 100)
    assert seen["outside"] > 40 and seen["opened outside"] > 20


@pytest.mark.timeout(200)
@pytest.mark.parametrize("mode, via, tries", [("contain", "the tree", 2000), pytest.param("contain", "a command", 2000, marks=pytest.mark.long),
                                              pytest.param("contain+translate", "the tree", 2000, marks=pytest.mark.long),
                                              ("refuse", "another mount", 2000)])
def test_nothing_outside_is_opened(attack, mode, via, tries):
    seen, errors = run_attack(attack, mode, via, tries, 180)
    assert seen["outside"] == 0 and seen["opened outside"] == 0, errors
    assert seen["refused"] > tries // 25


@pytest.mark.timeout(200)
@pytest.mark.long
def test_nothing_outside_is_opened_while_tools_here_move_directories(attack):
    seen, errors = run_attack(attack, "contain", "the tree", 4000, 180, mover=True)
    assert seen["outside"] == 0 and seen["opened outside"] == 0, errors
    assert seen["moved here"] > 0


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("mode, via, tries, mover", [
    ("contain", "the tree", 400_000, False), ("contain", "a command", 200_000, False),
    ("contain", "another mount", 100_000, False), ("refuse", "the tree", 200_000, False),
    ("refuse", "another mount", 100_000, False), ("contain", "the tree", 200_000, True)])
def test_a_million_tries(attack, mode, via, tries, mover):
    seen, errors = run_attack(attack, mode, via, tries, 7000, mover)
    assert seen["outside"] == 0 and seen["opened outside"] == 0, errors


def open_everything(root):
    """What can be opened below root, following links; the number of files that could."""
    opened = 0
    for directory, names, files in os.walk(root):
        for name in names + files:
            for path in (name, os.path.join(name, "canary"), os.path.join(name, "..", "canary")):
                try:
                    os.close(os.open(os.path.join(directory, path), os.O_RDONLY | os.O_NONBLOCK))
                    opened += 1
                except OSError:
                    pass
    return opened


@pytest.mark.parametrize("mode", ["contain", "contain+translate", "refuse", "verbatim"])
def test_a_tree_of_traps(attack, mode):
    """Every kind of link that leads to a canary, each at several depths, and chains of them."""
    outside = attack.canaries[-1]

    def longest(start):
        """A text of the greatest length that leads there."""
        ups = (4095 - len(start) - len(str(outside)) + 1) // 3
        return (start + "../" * ups).ljust(4095 - len(str(outside)) + 1, "/") + str(outside)[1:]
    texts = [str(outside), f"//{outside}", f"/.{outside}", f"/usr/..{outside}", f"/lib/../..{outside}",
             f"/proc/self/root{outside}", f"/dev/fd/../../..{outside}", f"/workspace/..{outside}",
             f"/workspace/../..{outside}", f"/etc/alternatives/../..{outside}", "trap0", "../trap0", "d/../../trap1",
             "to_up/../../canary", "to_up/../../../canary", "self", *("../" * n + "canary" for n in range(2, 12)),
             *("./" * n + "../" * n + "canary" for n in range(2, 6)), longest("d/"), longest(""), str(outside.parent), "/", "/home", "/proc/self/cwd", "/proc/self/fd"]
    directory = attack.tree
    for _ in range(4):
        (directory / "d").mkdir()
        os.symlink("..", directory / "to_up")
        os.symlink("self", directory / "self")
        for i, text in enumerate(texts):
            os.symlink(text, directory / f"trap{i}")
        (directory / "canary").write_text("inside")
        directory = directory / "d"
    root = attack.mount(mode)
    watch = attack.start("watch", *attack.canaries)
    assert open_everything(root) >= 4
    opened = ended(watch)["opened"]
    if mode == "verbatim":
        assert opened > 50
    else:
        assert opened == 0


def test_a_rename_here_waits_for_those_who_climb(attack):
    """Far from the service, a walk up a link's ".." takes long. A tool on the same mount that moves
    the link's directory up meanwhile, at any moment of that, does not make it leave the workspace."""
    relay = attack.harness.start_relay(attack.service)
    root = attack.mount("contain,cache=no", url=relay.url)  # each step of a walk is asked for
    deep = root / "1/2/3/4"
    deep.mkdir(parents=True)
    (root / "canary").write_text("inside")
    ends, held = {}, os.open(root, os.O_PATH)
    for moment in range(10):
        (deep / "m/a/b/c/d").mkdir(parents=True)
        os.symlink("../" * 9 + "canary", deep / "m/a/b/c/d/up")
        from_fd, link_fd = os.open(deep, os.O_PATH), os.open(deep / "m/a/b/c/d", os.O_PATH)
        relay.delay(40)
        mover = threading.Thread(target=os.rename, args=["m", "m"],
                                 kwargs={"src_dir_fd": from_fd, "dst_dir_fd": held})
        mover.start()
        time.sleep(moment * 0.05)
        try:
            fd = os.open("up", os.O_RDONLY, dir_fd=link_fd)
            end = os.readlink(f"/proc/self/fd/{fd}")
            os.close(fd)
        except OSError as error:
            end = os.strerror(error.errno)
        mover.join(30)
        relay.delay(0)
        ends[moment] = end
        os.close(from_fd)
        os.close(link_fd)
        shutil.rmtree(root / "m")
    os.close(held)
    assert set(ends.values()) <= {str(root / "canary"), "Permission denied"}, ends
    # The moments span from before the link is read, when it is refused, to after the walk.
    assert str(root / "canary") in ends.values()

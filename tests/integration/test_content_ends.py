"""Of a large file beside one that is opened the two ends are sent before they are asked for: nobody waits
for what is in them, all else is asked for, and none of it is stale."""

import os
import random

import pytest

from lib.berthwire import CONSTANTS
from lib.cached import through_relay, workspace  # noqa: F401, fixtures
from lib.exec_client import WORKSPACE, ExecClient
from lib.harness import wait_until

FILE_MAX, HEAD, TAIL = (CONSTANTS[f"WIRE_FILE_{name}"] for name in ("MAX", "HEAD", "TAIL"))
SIZE = 3 << 20
ROUNDS = 60


def content(number, size=SIZE):
    """Each 16 bytes say where they are, and of which version."""
    return b"".join(b"%07d %07d\n" % (number % 10000000, at) for at in range(0, size, 16))[:size]


@pytest.fixture
def run_there(service, workspace):
    with ExecClient(service.socket) as client:
        yield lambda command: client.run(WORKSPACE, ["sh", "-c", command])


@pytest.fixture
def mount(service, start_mount, workspace):
    mount = start_mount(service, workspace=WORKSPACE)
    wait_until(lambda: mount.stats()["coherent"], what="reports of changes")
    return mount


def ahead(mount, run_there):
    """Has the ends of `large` come, by opening its neighbour."""
    run_there("true")  # what was written before has been reported
    os.listdir(mount.path)
    before = mount.stats()["content"]
    (mount.path / "neighbour").read_bytes()
    wait_until(lambda: mount.stats()["content"] >= before + 2, what="content in advance")


def prepare(workspace, data):
    (workspace / "large").write_bytes(data)
    (workspace / "neighbour").write_bytes(b"neighbour")


def read_at(path, size, offset):
    """As programs that know what they want."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        return os.pread(descriptor, size, offset)
    finally:
        os.close(descriptor)


def test_who_reads_the_ends_waits_for_nothing(workspace, through_relay, run_there):
    data = content(1)
    prepare(workspace, data)
    mount, count = through_relay()
    ahead(mount, run_there)
    path = mount.path / "large"

    def ends():
        for size, offset in ((12, 0), (4096, HEAD - 4096), (4096, SIZE - TAIL), (20, SIZE - 20), (100, SIZE - 10)):
            assert read_at(path, size, offset) == data[offset:offset + size], offset
    cost = count(ends)
    print(cost)
    assert cost["blocking"] == 0 and cost["kinds"].get("READ", 0) == 0, cost
    # And once for what is between them.
    cost = count(lambda: read_at(path, 4096, SIZE // 2))
    assert cost["blocking"] == cost["kinds"]["READ"] == 1, cost
    assert read_at(path, 4096, SIZE // 2) == data[SIZE // 2:SIZE // 2 + 4096]
    for offset in (HEAD - 4096, SIZE - TAIL - 4096):  # both
        assert read_at(path, 8192, offset) == data[offset:offset + 8192]


@pytest.mark.parametrize("step", [4096, 60000, 1 << 20])
def test_a_file_read_from_one_end_to_the_other(workspace, through_relay, run_there, step):
    data = content(1)
    prepare(workspace, data)
    mount, count = through_relay()
    ahead(mount, run_there)
    found = []

    def read():
        with open(mount.path / "large", "rb", buffering=0) as file:
            while part := file.read(step):
                found.append(part)
    cost = count(read)
    print(cost)
    assert b"".join(found) == data
    assert cost["bytes"] <= SIZE + TAIL and cost["blocking"] <= 8, cost


@pytest.mark.parametrize("by", ["here", "there", "renamed over here"])
def test_unlinked_while_open(workspace, mount, run_there, by):
    data = content(1)
    prepare(workspace, data)
    ahead(mount, run_there)
    with open(mount.path / "large", "rb", buffering=0) as held:
        if by == "here":
            os.unlink(mount.path / "large")
        elif by == "there":
            # Opened at the service too, meanwhile.
            wait_until(lambda: mount.stats()["requests"].get("OPEN", 0) > 0)
            os.pread(held.fileno(), 1, SIZE // 2)
            run_there("rm large")
        else:
            os.rename(mount.path / "neighbour", mount.path / "large")
        for offset in (0, HEAD, SIZE // 2, SIZE - TAIL, SIZE - 100):
            assert os.pread(held.fileno(), 100, offset) == data[offset:offset + 100], offset
        assert os.fstat(held.fileno()).st_nlink == 0


REPLACES = ("cp ", "rm ")


def change(rng, number):
    """A command, which begins with one of REPLACES if the file is another one then."""
    where = rng.choice([0, HEAD - 8, HEAD, SIZE // 2, SIZE - TAIL - 8, SIZE - TAIL, SIZE - 16])
    text = f"new {number:07d}"
    put = f"printf '{text}' | dd of=large bs=1 seek={where} conv=notrunc status=none"
    return rng.choice([
        put, put,
        f"{put}; touch -d @1700000000 large",
        f"cp large t; printf '{text}' | dd of=t bs=1 seek={where} conv=notrunc status=none; mv -fT t large",
        f"truncate -s {rng.choice([SIZE, SIZE - TAIL, HEAD, FILE_MAX, FILE_MAX + 1, SIZE + 4096])} large",
        f"head -c {rng.choice([10, 100000])} large >> large.new; cat large.new >> large; rm large.new",
        "rm large; head -c 700000 /dev/urandom > large",
    ])


def test_what_changed_after_it_came_is_not_shown(workspace, mount, run_there):
    """By a command, between the two openings and while it is open."""
    seed = int.from_bytes(os.urandom(4), "little")
    rng = random.Random(seed)
    prepare(workspace, content(1))
    ahead(mount, run_there)
    for number in range(ROUNDS):
        with open(mount.path / "large", "rb", buffering=0) as held:
            os.pread(held.fileno(), 10, rng.randrange(SIZE))
            command = change(rng, number)
            run_there(command)
            real = (workspace / "large").read_bytes()
            told = (seed, number, command)
            assert os.stat(mount.path / "large").st_size == len(real), told
            same = not command.startswith(REPLACES)  # a new file can have the number of the old one
            for offset in [0, HEAD - 16, SIZE // 2, SIZE - TAIL - 16, SIZE - 100, rng.randrange(SIZE)]:
                assert read_at(mount.path / "large", 32, offset) == real[offset:offset + 32], (*told, offset)
                if same:
                    assert os.pread(held.fileno(), 32, offset) == real[offset:offset + 32], (*told, offset)
        if number % 3 == 0:
            # Of what is open the ends are not asked for anew; of a new file they are.
            (workspace / "t").write_bytes(real)
            os.rename(workspace / "t", workspace / "large")
            (workspace / "neighbour").unlink()
            (workspace / "neighbour").write_bytes(b"neighbour")
            ahead(mount, run_there)

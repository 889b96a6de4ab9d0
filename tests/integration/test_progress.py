"""What takes long says how far it is, on a terminal; in a pipe nothing, and at the end nothing is left."""

import os
import re
import signal
import subprocess
import tarfile

import pytest

from lib.screen import Screen

pytestmark = pytest.mark.sandbox

BANDWIDTH = 3 << 20
SIZE = 9 << 20  # three seconds of it


@pytest.fixture
def terminal(harness, service):
    open_ones = []

    def start(*words, program="berth", url=None, **more):
        env = {**os.environ, **service.client_env(url), "TERM": "xterm", "LC_ALL": "C.UTF-8", **more}
        one = Screen([str(harness.program(program)), *map(str, words)], 24, 100, env=env)
        open_ones.append(one)
        return one

    yield start
    for one in open_ones:
        one.close()


@pytest.fixture
def slow_disk(tmp_path):
    """A library to preload, by which fsync takes three seconds."""
    library = tmp_path / "slow.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-o", library, "-"], check=True, timeout=60, text=True,
                   input="#include <unistd.h>\nint fsync(int fd) { return sleep(3) != 0; }\n")
    return str(library)


@pytest.fixture
def archive(tmp_path):
    (tmp_path / "data").write_bytes(os.urandom(SIZE))
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        tar.add(tmp_path / "data", "data")
    return tmp_path / "a.tar"


def test_up_and_down(harness, service, terminal, archive, slow_disk, run_berth, tmp_path):
    slow = harness.start_relay(service.url, bandwidth=BANDWIDTH).url
    up = terminal("import", "demo", archive, url=slow)
    up.wait(lambda s: re.search(r"^demo: \d\.\d MiB of 9\.0 MiB, \d+ %, [\d.]+ [KM]iB/s, ", s.text, re.M),
            what="how far it is")
    assert up.ended() == 0 and up.lines[:2] == ["demo", ""]  # its name, and nothing else
    down = terminal("export", "demo", tmp_path / "out.tar", url=slow)
    down.wait(lambda s: re.search(r"^demo: \d\.\d MiB", s.text, re.M), what="how far it is")
    assert down.ended() == 0 and down.text.strip() == ""

    down = terminal("export", "demo", tmp_path / "slow.tar", LD_PRELOAD=slow_disk)
    down.wait(lambda s: re.search(r"^demo: 9\.0 MiB of 9\.0 MiB, 100 %: writing to the disk, \d s$", s.text, re.M),
              what="that all of it has come")
    assert down.ended() == 0 and down.text.strip() == ""

    result = run_berth("import", "again", archive, url=slow, check=True)
    assert (result.stdout, result.stderr) == ("again\n", "")


def test_while_the_service_works(harness, service, terminal, run_berth, tmp_path):
    run_berth("create", "demo", check=True)
    slow = harness.start_relay(service.url, delay=700).url
    all_of_them = [(terminal("snapshot", "create", "--live", "demo", "before", url=slow), "demo: taking a snapshot"),
                   (terminal("fork", "--live", "demo", "other", url=slow), "other: waiting for the service")]
    for one, step in all_of_them:
        one.wait(f"{step}, 1 s")
    for one, step in all_of_them:
        assert one.ended() == 0 and step not in one.text

    (tmp_path / "m").mkdir()
    service.signal(signal.SIGSTOP)
    try:
        one = terminal("mount", tmp_path / "m")
        one.wait("mount: waiting for the service, 1 s")
    finally:
        service.signal(signal.SIGCONT)
    try:
        assert one.ended() == 0 and one.text.strip() == ""
    finally:
        run_berth("umount", tmp_path / "m", check=True)

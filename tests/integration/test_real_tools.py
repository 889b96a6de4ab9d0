"""Tools that people use every day do on a mount what they do on a local directory.

Each test does the same work (lib/real_tools.py) on a local directory first, the oracle, then on
the mount, and compares what was printed and what is there. What the mount shows is compared with
what the service keeps, too. test_tools.py has the shorter ones.
"""

import os
import shutil

import pytest

from lib import real_tools, tree, workloads

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def places(harness, service, mount, run_berth):
    """A local directory, the same on the mount, and where the service keeps it."""
    run_berth("create", "tools", check=True)
    local = harness.new_path("local")
    local.mkdir()
    return local, mount.path / "tools", service.root / "workspaces" / "tools" / "tree"


def both(places, work, *args):
    local, remote, _ = places
    expected = work(str(local), *args)
    assert work(str(remote), *args) == expected
    return expected


def assert_same(places, times=False, skip=()):
    local, remote, stored = places
    assert tree.differences(local, remote, times, skip) == []
    assert tree.differences(stored, remote, True) == []


def needs_program(name):
    return pytest.mark.skipif(not shutil.which(name), reason=f"{name} is not installed")


# What git keeps of the very tree it works in: inode numbers, times, absolute paths.
GIT_SKIP = {b"clone/.git/index", b"origin/.git/index"}


@pytest.mark.long
def test_git(places):
    printed = both(places, real_tools.git_history)
    assert b"reworded" in printed and b"in the second tree" not in printed
    assert_same(places, skip=GIT_SKIP | {b"clone/.git/logs", b"clone/.git/config"})


@pytest.mark.long
def test_make(places):
    assert both(places, real_tools.make_many) == b"%d\n" % (sum(range(real_tools.PARTS)) + 1000)
    assert_same(places)


@pytest.mark.long
def test_cmake_and_ninja(places):
    """Build files name the directory, so that only what was built is compared."""
    assert both(places, real_tools.cmake_ninja) == b"%d\n" % sum(range(real_tools.PARTS))
    _, remote, stored = places
    assert tree.differences(stored, remote) == []


@pytest.mark.long
@needs_program("cargo")
def test_cargo(places, harness):
    home = harness.new_path("cargo")
    home.mkdir()
    assert both(places, real_tools.cargo, str(home)) == b"sum is 55\n"
    _, remote, stored = places
    assert tree.differences(stored, remote) == []


@pytest.mark.parametrize("journal", ["delete", "wal"])
def test_sqlite(places, journal):
    assert both(places, real_tools.sqlite, journal).startswith(b"ok\na|40|780\nb|40|780\n")


@pytest.mark.long
def test_rsync(places, harness):
    """Onto the mount, and from it back."""
    local, remote, stored = places
    source = harness.new_path("source")
    source.mkdir()
    real_tools.rich_tree(str(source))
    for place in local, remote:
        assert real_tools.rsync(str(source), str(place)) == b"\0binary\xff"
    assert_same(places, times=True)
    back = harness.new_path("back")
    real_tools.rsync(str(remote), str(back))
    assert tree.differences(source, back) == []
    assert (stored / "attributed").stat().st_blocks * 512 <= 1 << 20


@pytest.mark.long
def test_archives(places, harness):
    source = harness.new_path("source")
    source.mkdir()
    real_tools.rich_tree(str(source))
    both(places, real_tools.archives, str(source))
    assert_same(places, times=True, skip={b"from tar", b"from zip"})
    assert_same(places)
    _, remote, _ = places
    assert tree.differences(source, remote / "from tar" / "tree") == []
    assert os.getxattr(remote / "from tar" / "tree" / "attributed", "user.note") == b"\0binary\xff"


@pytest.mark.matrix
@pytest.mark.parametrize("save", real_tools.SAVES, ids=lambda save: save.__name__)
def test_saves(places, save):
    mode, _ = both(places, real_tools.save_again_and_again, save)
    assert mode == "0o100750"
    assert_same(places)


def test_vim(places):
    saved, _ = both(places, real_tools.vim_ways)
    assert saved == [(0o100751, b"two\n")] * 9


# --- JavaScript ----------------------------------------------------------------------------

@pytest.fixture(scope="session")
def prepared(tmp_path_factory):
    """The packages, fetched once: cache/ and package-lock.json, and node_modules."""
    assert shutil.which("npm"), "npm is needed (Debian's, or the one that comes with Node.js)"
    directory = tmp_path_factory.mktemp("npm")
    real_tools.npm_project(str(directory))
    result = real_tools.npm(str(directory), str(directory / "cache"), "install", "--ignore-scripts")
    assert result.returncode == 0, result.stderr
    return directory


@pytest.mark.long  # thousands of files, each call a round trip: minutes when sanitised
def test_npm_install(places, prepared):
    _, count = both(places, real_tools.npm_install, str(prepared))
    assert count > 50
    local, _, _ = places
    assert sum(len(names) for _, _, names in os.walk(local)) > 1000
    assert_same(places)


@pytest.mark.long  # thousands of files, each call a round trip: minutes when sanitised
def test_typescript(places, prepared):
    """The language server and the compiler, on sources and from modules that are on the mount."""
    local, remote, _ = places
    answers = []
    for place in local, remote:
        modules = place / "node_modules"
        modules.mkdir()
        workloads.run(str(modules), "cp", "-a", str(prepared / "node_modules" / "typescript"), ".")
        answers.append(real_tools.typescript(str(place), str(modules)))
    assert answers[0] == answers[1]
    _, renamed, printed = answers[1]
    assert len(renamed) >= 3 and printed == b"13\n"
    assert_same(places, skip={b"out/tsconfig.tsbuildinfo", b"tsconfig.tsbuildinfo"})

"""Unmodified tools on the mount leave what they leave on a local directory.

Each test does the same work twice, on a local directory first (the oracle), and compares
what was printed and what is there, file by file. The tree of the service itself is compared
too: what the mount shows is what is stored.
"""

import os
import tarfile

import pytest

from lib import tree, workloads

SKIP_GIT = {b".git/index"}  # holds inode numbers and times of this very tree


@pytest.fixture
def places(harness, service, mount, run_berth):
    """A local directory, the same on the mount, and where the service keeps it."""
    run_berth("create", "tools", check=True)
    local = harness.new_path("local")
    local.mkdir()
    stored = service.root / "workspaces" / "tools" / "tree"
    assert stored.is_dir()
    return local, mount.path / "tools", stored


def both(places, work, *args):
    local, remote, _ = places
    expected = work(str(local), *args)
    assert work(str(remote), *args) == expected
    return expected


def assert_same(places, times=True, skip=()):
    local, remote, stored = places
    assert tree.differences(local, remote, times, skip) == []
    assert tree.differences(stored, remote, True) == []


def test_source_tree(places):
    """Create, write, mkdir, chmod, symlink, utime: names, modes, nanoseconds and bytes agree."""
    both(places, workloads.source_tree, 250)
    assert_same(places)


@pytest.mark.timeout(180)
def test_git(places):
    both(places, workloads.source_tree, 120)
    printed = both(places, workloads.git_session)
    assert b" second\n" in printed and b"merge" in printed
    assert_same(places, times=False, skip=SKIP_GIT)


def test_ripgrep(places):
    both(places, workloads.source_tree, 200)
    assert len(both(places, workloads.ripgrep)) > 1000


def test_make(places):
    """Timestamps order as make needs them: nothing is built twice, a touched header is seen."""
    assert both(places, workloads.make_project) == b"sum 55\n"
    assert_same(places, times=False)


def test_make_through_exec(places, run_berth):
    """make on the developer's side and make in the workspace give the same tree."""
    local, remote, _ = places
    workloads.make_project(str(local))
    workloads.write_c_project(str(remote))
    run_berth("exec", "-w", "tools", "--", "make", "-s", "-j2", "check", check=True)
    assert b"up to date" in workloads.run(str(remote), "make", "prog"), "the mount sees other times"
    assert run_berth("exec", "-w", "tools", "--", "./prog", check=True).stdout == "sum 55\n"
    assert_same(places, times=False)


def test_vim_save(places):
    printed = both(places, workloads.vim_save)
    assert printed.startswith(b"two\nthree\n")
    assert_same(places, times=False)


def test_cp_archive(places, harness):
    """cp -a onto the mount and back keeps modes, times, links and hard links."""
    local, remote, _ = places
    workloads.source_tree(str(local / "src"), 150)
    os.link(local / "src" / "empty", local / "src" / "hard")
    os.utime(local / "src", ns=(10**18, 10**18))
    harness.run(["cp", "-a", local / "src", remote / "src"], check=True, timeout=60)
    assert_same(places)
    harness.run(["cp", "-a", remote / "src", local / "back"], check=True, timeout=60)
    assert tree.differences(local / "src", local / "back") == []


def test_tar(places, harness):
    """tar x onto the mount, tar c from it: the same members."""
    local, remote, _ = places
    source = harness.new_path("source")
    workloads.source_tree(str(source), 200)
    os.link(source / "empty", source / "hard")
    archive = harness.new_path("tree.tar")
    harness.run(["tar", "-C", source, "-cf", archive, "."], check=True)
    for place in local, remote:
        harness.run(["tar", "-C", place, "-xpf", archive], check=True, timeout=60)
    assert_same(places)
    packed = harness.new_path("packed.tar")
    harness.run(["tar", "-C", remote, "-cf", packed, "."], check=True, timeout=60)

    def members(path):
        with tarfile.open(path) as file:
            return sorted((m.name, m.type, m.size, m.mode, m.mtime, m.linkname)
                          for m in file if m.name != "." and m.type != tarfile.LNKTYPE
                          and m.name not in ("./empty", "./hard"))
    assert members(packed) == members(archive)


def test_remove_everything(places):
    """rm -r of a tree with read-only files and many names in one directory."""
    local, remote, stored = places
    for place in local, remote:
        folder = place / "many"
        folder.mkdir()
        for i in range(1000):
            (folder / f"name{i}").touch()
        (folder / "name1").chmod(0o400)
    both((local / "many", remote / "many", stored), workloads.remove_tree)
    assert_same(places, times=False)

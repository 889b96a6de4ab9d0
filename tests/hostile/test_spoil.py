"""Commands that spoil what the next ones of their workspace need: their home and /tmp, which are on the disk, and in
which mounts are made."""

import os

import pytest

from lib.exec_client import WORKSPACE
from lib.harness import wait_until
from lib.ordinary import ordinary_service
from lib.processes import name_of, state_of

pytestmark = pytest.mark.sandbox

# What is on the way to where the workspace really is, moved away, and something else in its place.
REPLACE = {
    "a link": 'ln -s / "$1"',
    "a link to nowhere": 'ln -s nowhere "$1"',
    "a file": 'echo > "$1"',
    "a FIFO": 'mkfifo "$1"',
}


def make_anew(service):
    """The sandbox: the next command needs another."""
    def inits():
        pid = service.keeper().pid
        children = open(f"/proc/{pid}/task/{pid}/children", encoding="ascii").read().split()
        return [int(child) for child in children if name_of(child) == "berth-init" and state_of(child) != "Z"]
    for init in inits():
        os.kill(init, 9)
    wait_until(lambda: not inits(), what="the sandbox's end")


def run(run_berth, *argv):
    return run_berth("exec", "-w", WORKSPACE, "--", *argv)


@pytest.mark.parametrize("what", REPLACE)
def test_what_is_in_the_way_of_mounts_is_removed(harness, run_berth, what):
    service = harness.start_service(root=harness.short / "deep" / "root")
    run_berth("create", WORKSPACE, check=True)
    first = harness.short
    moved = run(run_berth, "sh", "-c", f'mv "$1" /tmp/moved && {REPLACE[what]}', "sh", first)
    assert (moved.returncode, moved.stderr) == (0, "")
    make_anew(service)
    result = run(run_berth, "sh", "-c", 'cd "$1" && pwd -P', "sh", service.root / "workspaces" / WORKSPACE / "tree")
    assert (result.returncode, result.stdout) == (0, f"{service.root}/workspaces/{WORKSPACE}/tree\n"), result
    # What commands have kept elsewhere stays.
    assert run(run_berth, "test", "-d", "/tmp/moved").returncode == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_modes_of_the_private_directories_are_what_they_were(harness, run_berth):
    service = ordinary_service(harness)
    run_berth("create", WORKSPACE, check=True)
    assert run(run_berth, "sh", "-c", 'chmod 0 "$HOME" /tmp').returncode == 0
    make_anew(service)
    result = run(run_berth, "sh", "-c", 'echo 1 > "$HOME"/f && echo 1 > /tmp/f && echo written')
    assert (result.returncode, result.stdout) == (0, "written\n"), result

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


@pytest.fixture
def service(harness, run_berth):
    """Its workspace is below what is its commands' own /tmp."""
    service = harness.start_service(root=harness.short / "deep" / "root")
    run_berth("create", WORKSPACE, check=True)
    return service


def test_the_way_to_the_workspace_stays(harness, service, run_berth):
    """While a sandbox is there, too: the next command is in the same one."""
    place = service.root / "workspaces" / WORKSPACE / "tree"
    run_berth("exec", "--detach", "--id", "goes-on", "-w", WORKSPACE, "--", "sleep", "60", check=True)
    for part in (harness.short, harness.short / "deep", service.root, place.parent, place):
        for attempt in ('mv "$1" /tmp/moved', 'rmdir "$1"', 'rm -rf "$1"'):
            assert run(run_berth, "sh", "-c", attempt, "sh", part).returncode != 0, (part, attempt)
    result = run(run_berth, "sh", "-c", "pwd -P; echo there > f")
    assert (result.returncode, result.stdout) == (0, f"{place}\n"), result
    assert (place / "f").read_text() == "there\n"
    assert run_berth("kill", "goes-on").returncode == 0


@pytest.mark.parametrize("what", REPLACE)
def test_what_is_in_the_way_of_mounts_is_removed(harness, service, run_berth, what):
    """As it may have been left where the service's root was elsewhere."""
    assert run(run_berth, "touch", "/tmp/kept").returncode == 0
    make_anew(service)
    own, = (path.parent for path in (service.root / "workspaces" / WORKSPACE).glob("*/**/kept"))
    first = own / harness.short.relative_to("/tmp").parts[0]
    harness.run(["sh", "-c", f'rm -r "$1" && {REPLACE[what]}', "sh", first], check=True)
    result = run(run_berth, "sh", "-c", "pwd -P; ls /tmp")
    assert (result.returncode, result.stdout.splitlines()[0]) == (0, str(service.root / "workspaces" / WORKSPACE /
                                                                         "tree")), result
    assert "kept" in result.stdout.splitlines()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_modes_of_the_private_directories_are_what_they_were(harness, run_berth):
    service = ordinary_service(harness)
    run_berth("create", WORKSPACE, check=True)
    assert run(run_berth, "sh", "-c", 'chmod 0 "$HOME" /tmp').returncode == 0
    make_anew(service)
    result = run(run_berth, "sh", "-c", 'echo 1 > "$HOME"/f && echo 1 > /tmp/f && echo written')
    assert (result.returncode, result.stdout) == (0, "written\n"), result

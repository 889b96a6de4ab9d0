"""Where a command runs: paths through a mount from anywhere, and workspaces that are not there."""

import pytest

from lib.exec_client import WORKSPACE


@pytest.fixture
def from_home(harness, service, mount, tree, run_berth):
    """berth exec pwd with a -C, from outside of any mount."""
    run_berth("create", "other", check=True)
    (tree / "sub").mkdir()
    (mount.path / WORKSPACE / "sub").stat()

    def run(directory, *options, cwd="/", env=None):
        return harness.run(["berth", "exec", *options, "-C", directory, "--", "pwd", "-P"], cwd=cwd, env=env)
    return run


def test_a_path_through_a_mount_tells_the_workspace(from_home, mount):
    for options in ((), ("-w", WORKSPACE)):
        result = from_home(mount.path / WORKSPACE / "sub", *options)
        assert (result.returncode, result.stdout) == (0, f"{mount.path}/{WORKSPACE}/sub\n"), result
    result = from_home(mount.path / WORKSPACE / "sub", cwd=mount.path / "other")
    assert (result.returncode, result.stdout) == (0, f"{mount.path}/{WORKSPACE}/sub\n"), result
    result = from_home(f"{mount.path.name}/{WORKSPACE}/sub", cwd=mount.path.parent)
    assert (result.returncode, result.stdout) == (0, f"{mount.path}/{WORKSPACE}/sub\n"), result
    result = from_home(f"{WORKSPACE}/sub", cwd=mount.path)
    assert (result.returncode, result.stdout) == (0, f"{mount.path}/{WORKSPACE}/sub\n"), result


def test_a_path_into_another_workspace_is_refused(from_home, mount):
    result = from_home(mount.path / WORKSPACE / "sub", "-w", "other")
    assert result.returncode == 125 and f"is in the workspace {WORKSPACE}, and not in other" in result.stderr, result


def test_what_is_there_is_not_said_to_be_missing(from_home, mount, service):
    for options in (("-w", WORKSPACE), ()):
        result = from_home("/etc", *options, env=service.client_env())
        assert result.returncode == 125 and "/etc is not in a Berth mount" in result.stderr, result
        assert "No such file" not in result.stderr, result
    result = from_home(mount.path)
    assert result.returncode == 125 and "shows all workspaces" in result.stderr, result
    result = from_home(mount.path, "-w", WORKSPACE)
    assert result.returncode == 125 and f"is in no workspace; give a directory of {WORKSPACE}" in result.stderr, result


@pytest.mark.parametrize("words,status", [
    (["ps"], 1), (["ps", "-a", "--json"], 1), (["kill", "x"], 1), (["logs", "x"], 125), (["wait", "x"], 125),
    (["attach", "x"], 125)])
def test_a_workspace_that_is_not_there(run_berth, tree, words, status):
    result = run_berth(words[0], "-w", "nope", *words[1:])
    assert (result.returncode, result.stdout) == (status, ""), result
    assert result.stderr == (f"berth: {words[0]}: nope: no such workspace; see `berth ls`, or make it with "
                             "`berth create`\n")


def test_a_workspace_without_commands(run_berth, tree):
    result = run_berth("ps", "-aw", WORKSPACE)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    result = run_berth("logs", "-w", WORKSPACE, "x")
    assert result.returncode == 125 and "x: no such command in this workspace" in result.stderr, result

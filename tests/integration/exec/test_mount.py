"""Commands from inside a mount: workspace and directory are those of where the caller stands,
and what they do is what the mount shows."""

import os
import signal
import subprocess

import pytest

from lib import tree

PLACE = "T/1"


@pytest.fixture
def workspace(mount, run_berth):
    """The workspace's directory on the mount."""
    run_berth("create", PLACE, check=True)
    return mount.path / "T%2F1"


@pytest.fixture
def bare_env(harness):
    """Nothing here says where the service is: only the mount knows."""
    return {name: value for name, value in harness.env.items() if not name.startswith("BERTH_")}


@pytest.fixture
def execute(harness, bare_env):
    def run(directory, *argv, options=(), **keywords):
        return harness.run([harness.program("berth"), "exec", *options, "--", *argv],
                           cwd=directory, env=bare_env, **keywords)
    return run


def test_workspace_and_directory_are_inferred(execute, workspace):
    (workspace / "a" / "b").mkdir(parents=True)
    for below in ("", "a", "a/b"):
        result = execute(workspace / below, "sh", "-c", 'echo "$BERTH_THREAD_ID"; pwd -P')
        assert (result.returncode, result.stderr) == (0, "")
        assert result.stdout.splitlines() == [PLACE, str(workspace / below)]


@pytest.mark.parametrize("directory,expected", [
    ("b", "a/b"), (".", "a"), ("..", ""), ("../c", "c"), ("/workspace/c", "c"), ("/workspace", "")])
def test_directory_is_relative_to_where_we_stand(execute, workspace, directory, expected):
    (workspace / "a" / "b").mkdir(parents=True)
    (workspace / "c").mkdir()
    result = execute(workspace / "a", "pwd", "-P", options=["-C", directory], check=True)
    assert result.stdout == f"{workspace / expected}\n"


def test_directory_may_be_the_callers_own_path(execute, workspace):
    (workspace / "a b").mkdir()
    result = execute(workspace, "pwd", "-P", options=["-C", workspace / "a b"], check=True)
    assert result.stdout == f"{workspace}/a b\n"


def test_other_workspace_by_name(execute, run_berth, workspace):
    run_berth("create", "other", check=True)
    result = execute(workspace, "sh", "-c", 'echo "$BERTH_THREAD_ID"', options=["-w", "other"])
    assert (result.returncode, result.stdout) == (0, "other\n")


def test_mount_of_one_workspace(execute, service, start_mount, run_berth):
    run_berth("create", PLACE, check=True)
    one = start_mount(workspace=PLACE)
    (one.path / "sub").mkdir()
    result = execute(one.path / "sub", "sh", "-c", 'echo "$BERTH_THREAD_ID"; pwd -P', check=True)
    assert result.stdout.splitlines() == [PLACE, f"{one.path}/sub"]


def test_no_workspace_here(execute, harness, mount):
    for directory in (mount.path, harness.directory):
        result = execute(directory, "touch", "never")
        assert (result.returncode, result.stdout) == (125, "")
        assert "-w ID" in result.stderr
    assert not (mount.path / "never").exists()


def test_each_sees_what_the_other_wrote(execute, workspace):
    for i in range(30):
        (workspace / "from-mount").write_text(f"{i}\n")
        result = execute(workspace, "sh", "-c", "cat from-mount; cat from-mount > from-exec", check=True)
        assert result.stdout == f"{i}\n"
        assert (workspace / "from-exec").read_text() == f"{i}\n"


MAKEFILE = """
CFLAGS = -O0
program: main.o part.o
\tcc -o $@ main.o part.o
main.o: main.c part.h
part.o: part.c part.h
install: program
\tmkdir -p out/bin
\tcp program out/bin/
\tln -sf program out/bin/alias
"""

SOURCES = {
    "Makefile": MAKEFILE,
    "part.h": "int part(int);\n",
    "part.c": '#include "part.h"\nint part(int x)\n{\n    return x + 1;\n}\n',
    "main.c": '#include "part.h"\n#include <stdio.h>\nint main(void)\n{\n'
              '    printf("%d\\n", part(41));\n    return 0;\n}\n',
}


@pytest.mark.timeout(120)
def test_make_leaves_the_same_tree_as_locally(execute, harness, workspace):
    local = harness.new_path("local")
    local.mkdir()
    for name, text in SOURCES.items():
        (local / name).write_text(text)
        (workspace / name).write_text(text)
    expected = harness.run(["make", "install"], cwd=local, check=True)
    result = execute(workspace, "make", "install", check=True)
    assert result.stdout == expected.stdout
    assert tree.differences(str(local), str(workspace), False) == []
    assert execute(workspace, "./out/bin/alias", check=True).stdout == "42\n"
    again = execute(workspace, "make", check=True)
    assert "up to date" in again.stdout


def test_interrupted_command_from_a_mount(harness, bare_env, workspace):
    process = subprocess.Popen(
        [harness.program("berth"), "exec", "--", "sh", "-c", "echo ready; exec sleep 60"],
        cwd=workspace, env=bare_env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        start_new_session=True)
    try:
        assert process.stdout.readline() == b"ready\n"
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(20) == 130
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=20)

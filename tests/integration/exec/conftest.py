"""Commands in a workspace: the verdict is true, complete and final; bytes arrive as written;
nothing leaks in, nothing is left behind."""

import subprocess

import pytest

from lib.exec_client import WORKSPACE, ExecClient


@pytest.fixture
def tree(service, run_berth):
    """The workspace's directory at the service."""
    run_berth("create", WORKSPACE, check=True)
    return service.root / "workspaces" / WORKSPACE / "tree"


@pytest.fixture
def client(service, tree):
    with ExecClient(service.socket) as connected:
        yield connected


@pytest.fixture
def execute(run_berth, tree):
    """execute("sh", "-c", "…", options=["-i"], …): berth exec in the workspace."""
    def run(*argv, options=(), **keywords):
        return run_berth("exec", "-w", WORKSPACE, *options, "--", *argv, **keywords)
    return run


@pytest.fixture
def background(harness, service, tree):
    """Starts a subcommand in the background; it is killed at the end of the test."""
    started = []

    def start(*argv, **keywords):
        process = subprocess.Popen(
            [harness.program("berth"), *argv], env=service.client_env(), cwd=harness.directory,
            start_new_session=True, **{"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE,
                                       "stderr": subprocess.PIPE, **keywords})
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=20)


@pytest.fixture
def begin(background):
    """Starts berth exec in the background."""
    return lambda *argv, options=(), **keywords: background("exec", "-w", WORKSPACE, *options, "--", *argv, **keywords)

"""Places for the models: a local directory, and mounts of one workspace."""

import pytest

from lib.exec_client import ExecClient

# Links have any text.
OPTIONS = ["symlinks=verbatim"]


@pytest.fixture
def local(harness):
    path = harness.short / "local"
    path.mkdir()
    return path


@pytest.fixture
def workspace(service, run_berth):
    run_berth("create", "model", check=True)
    return service.root / "workspaces" / "model" / "tree"


@pytest.fixture
def mounted(workspace, service, start_mount):
    return start_mount(service, workspace="model", options=OPTIONS).path


@pytest.fixture
def mounted_too(workspace, service, start_mount):
    return start_mount(service, workspace="model", options=OPTIONS).path


@pytest.fixture
def settle(service, workspace):
    """A command has ended: the mounts show what was done before it."""
    with ExecClient(service.socket) as client:
        def run():
            assert client.run("model", ["true"]).verdict.coherence == 1
        yield run

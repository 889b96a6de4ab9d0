"""Places for the models: a local directory, and mounts of one workspace."""

import pytest

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

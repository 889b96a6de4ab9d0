"""Fixtures of tests about mounts that keep what they were told: import them by name."""

import pytest

from lib.exec_client import WORKSPACE


@pytest.fixture
def start_mount(start_mount):
    """As everywhere, with cache=yes."""
    def start(*arguments, options="", **keywords):
        return start_mount(*arguments, options=",".join(filter(None, [options, "cache=yes"])), **keywords)
    return start


@pytest.fixture
def workspace(service, run_berth):
    """Where the service keeps WORKSPACE."""
    run_berth("create", WORKSPACE, check=True)
    return service.root / "workspaces" / WORKSPACE / "tree"

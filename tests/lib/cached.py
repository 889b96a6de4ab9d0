"""Fixtures of tests about what mounts keep, which is counted: import them by name."""

import pytest

from lib.exec_client import WORKSPACE
from lib.harness import wait_until

# Requests that nobody may be waiting for.
QUIET = ("PING", "STATFS", "READTREE", "READFILES", "OPEN", "READ", "CREATE", "PLACE")


@pytest.fixture
def workspace(service, run_berth):
    """Where the service keeps WORKSPACE."""
    run_berth("create", WORKSPACE, check=True)
    return service.root / "workspaces" / WORKSPACE / "tree"


@pytest.fixture
def mount(service, start_mount, workspace):
    mount = start_mount(service, workspace=WORKSPACE)
    wait_until(lambda: mount.stats()["coherent"], what="reports of changes")
    return mount


@pytest.fixture
def through_relay(service, start_relay, start_mount, caches_kept):
    """A function that mounts the workspace behind a relay and gives its path and a function that
    counts: blocking requests, round trips, bytes received, requests by kind."""
    def start(options=(), **link):
        relay = start_relay(service, **{"delay": 25, **link})
        mount = start_mount(service, url=relay.url, workspace=WORKSPACE, options=options)
        wait_until(lambda: mount.stats()["coherent"], what="reports of changes")

        def count(work):
            relay.reset_stats()
            before = mount.stats()
            work()
            after, passed = mount.stats(), relay.stats()
            kinds = {kind: row["frames"] for kind, row in passed["to_server"]["types"].items()}
            # The relay has counted the same, and what nobody waits for.
            blocking = after["blocking"] - before["blocking"]
            quiet = sum(kinds.get(kind, 0) for kind in QUIET)
            assert blocking <= passed["requests"] <= blocking + quiet + 1, (blocking, kinds)
            return {"blocking": blocking, "round_trips": after["round_trips"] - before["round_trips"],
                    "bytes": passed["to_client"]["bytes"], "kinds": kinds}
        return mount, count
    return start

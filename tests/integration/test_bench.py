"""tests/bench/run measures every row: a benchmark that quietly fails is worse than none."""

import json
import sys

import pytest

from lib import harness as parts
from lib import mounts

BENCH = parts.REPOSITORY / "tests" / "bench" / "run"


def check_calls(found):
    """Both counts of the same work agree; each is exact when one program works in series."""
    assert len(found["calls"]) > 25
    for name, counts in found["calls"].items():
        assert counts["error"] is None, name
        assert counts["driver"] <= counts["relay"], name


def check_exec(found):
    for way in ("Berth, a holder's connection", "ssh, ControlMaster"):
        assert all(found["exec"]["ms"][way].values()), way


# Speeds of a sanitised build say nothing.
@pytest.mark.unsanitised
@pytest.mark.sandbox
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_part_is_measured_alone(harness, build_dir, fuse_works):
    figures = harness.directory / "figures.json"
    out = harness.run([sys.executable, BENCH, "--build", build_dir, "--quick", "--limit", "3", "--only", "calls",
                       "--json", figures], timeout=250, check=True).stdout
    assert "failed" not in out, out
    found = json.loads(figures.read_text())
    check_calls(found)
    assert not {"work", "cold", "warm", "getattr", "stream", "scale", "exec"} & {name for name, part in found.items() if part}
    assert mounts.mounts_below("/tmp/berth-bench-") == []


@pytest.mark.unsanitised
@pytest.mark.sandbox
@pytest.mark.long
@pytest.mark.timeout(900)
def test_all_tables_are_filled(harness, build_dir, fuse_works):
    figures = harness.directory / "figures.json"
    out = harness.run([sys.executable, BENCH, "--build", build_dir, "--quick", "--limit", "3",
                       "--json", figures], timeout=800, check=True).stdout
    assert "failed" not in out, out
    found = json.loads(figures.read_text())
    assert len(found["work"]) == 11
    for row, systems in found["work"].items():
        assert systems["local"]["seconds"] is not None, row
        assert all(systems[name]["error"] is None for name in systems if name != "counts"), row
    check_calls(found)
    check_exec(found)
    assert set(found["getattr"]) == {"local", "sshfs (dir_cache=no)", "Berth, unix", "Berth, TLS"}
    assert found["getattr"]["local"] < found["getattr"]["Berth, unix"]
    # What is known is not asked for again.
    for row in ("stat", "stat of missing names"):
        assert sum(found["warm"][row]["kernel"].get(kind, 0) for kind in ("LOOKUP", "GETATTR")) <= 2, found["warm"][row]
    for row, figures in found["cold"].items():
        assert figures["median"] is not None, row
    for row, systems in found["stream"]["seconds"].items():
        assert all(systems.values()), row
    for memory in found["stream"]["memory"].values():
        assert memory["driver"] < 200e6 and memory["service"] < 500e6
    assert found["scale"]["inodes"] > 1000
    assert found["scale"]["small"] is not None and all(found["scale"][name]["seconds"] for name in found["scale"] if "remount" in name)
    assert mounts.mounts_below("/tmp/berth-bench-") == []

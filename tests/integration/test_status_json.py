"""`berth status --json`: all that it prints is in berth-status(5), with the type that it has."""

import json
import os
import re
from pathlib import Path

import pytest

from lib.harness import REPOSITORY

pytestmark = pytest.mark.sandbox

PAGE = REPOSITORY / "docs/man/berth-status.5.scd"
TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null", dict: "object",
         list: "array"}


def described():
    found = re.findall(r"^\*([A-Za-z_.\[\]]+)\* \(([a-z ]+)\)$", PAGE.read_text(), re.M)
    return {path: set(kinds.split(" or ")) for path, kinds in found}


def walk(value, path=""):
    if path:
        yield path, TYPES[type(value)]
    if isinstance(value, dict):
        for key, one in value.items():
            yield from walk(one, f"{path}.{key}".lstrip("."))
    elif isinstance(value, list):
        for one in value:
            if isinstance(one, dict):
                for key, member in one.items():
                    yield from walk(member, f"{path}[].{key}")


def check(status, page):
    """What of the page was seen."""
    seen = set()
    for path, kind in walk(status):
        known = path if path in page else re.sub(r"\.[^.]+((?:\.(?:holds|text))?)$", r".NAME\1", path)
        assert known in page, f"{path} is not in {PAGE.name}"
        assert kind in page[known] or page[known] == {"any"}, f"{path} is {kind}, not {page[known]}"
        seen.add(known)
    return seen


def status_of(result):
    return json.loads(result.stdout)


def test_all_of_it_is_described(harness, run_berth, tmp_path):
    page = described()
    service = harness.start_service(args=("--audit-log", str(tmp_path / "audit")))
    run_berth("create", "demo", check=True)
    run_berth("create", "--policy", "-", "net", input='{"network":{"allow":["example.org:443"]}}', check=True)
    run_berth("visibility", "-a", "*.o", "demo", check=True)
    for workspace in ("demo", "net"):
        run_berth("exec", "-w", workspace, "--", "true", check=True)
    mount = harness.start_mount(service)
    (mount.path / "demo/file").write_text("x")
    joined = harness.new_path("joined")
    joined.mkdir(exist_ok=True)
    run_berth("mount", service.url, "unix:/nowhere/berthd.sock", joined, check=True)
    try:
        os.listdir(joined)
        seen = check(status_of(run_berth("status", "--json", check=True)), page)
    finally:
        run_berth("umount", joined, check=True)
    missing = {path for path in page if path not in seen}
    # What only others, or mounts in trouble, have.
    rare = {"mounts[].error", "mounts[].workspace", "mounts[].workspace_hex", "mounts[].token_file",
            "mounts[].ca_file", "mounts[].cert_file", "mounts[].key_file", "mounts[].stats.served_as_of",
            "service.granted.workspace", "service.granted.expires", "service.fenced[].workspace",
            "service.fenced[].NAME", "mounts[].members[].provider", "mounts[].members[].lag_ms",
            "mounts[].members[].says_it_is"}
    assert not missing - rare, "described, and not there"


def test_of_those_who_may_see_little_and_of_none(harness, run_berth, tmp_path):
    page = described()
    harness.start_service(http=True, unix=False, access_file=harness.access_file(
        {"id": "little", "secret": "little", "workspaces": ["a-*"], "verbs": ["read"], "expires": "2100-01-01T00:00:00Z"}))
    env = {**harness.env, "BERTH_URL": harness.services[-1].http_url, "BERTH_TOKEN": "little"}
    seen = check(status_of(run_berth("status", "--json", env=env, check=True)), page)
    assert "service.granted.expires" in seen and "service.pid" not in seen
    result = run_berth("status", "--json", env={**harness.env, "BERTH_URL": "unix:/nowhere/berthd.sock"})
    assert result.returncode == 1
    nothing = status_of(result)
    check(nothing, page)
    assert nothing["service"] is None and "/nowhere" in nothing["error"]


def test_a_path_of_the_page_is_no_accident():
    page = described()
    assert len(page) > 120 and Path(PAGE).exists()
    with pytest.raises(AssertionError):
        check({"service": {"nobody_told": 1}}, page)
    with pytest.raises(AssertionError):
        check({"url": 5}, page)

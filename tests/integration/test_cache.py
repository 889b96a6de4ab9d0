"""What mounts keep on this machine's disk: berth cache."""

import hashlib
import json
import os
import pathlib
import stat
import struct

import pytest

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def directory(harness):
    """Where the cache of what the harness runs is."""
    return pathlib.Path(harness.env["XDG_CACHE_HOME"]) / "berth"


def make_segment(directory, name, url, count, size=3000):
    """As the driver writes it (common/cache/segment.h)."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    service = hashlib.sha256(url.encode()).digest()
    data = struct.pack("=8s32s1024s", b"berthC1\n", service, url.encode()).ljust(4096, b"\0")
    start = 4096 + 16384 * 16
    for number in range(count):
        data += struct.pack("=QII", number + 1, start // 1024 + number * 3, size)
    data = data.ljust(start, b"\0") + b"x" * (3072 * count)
    path = directory / f"{name}.segment"
    path.write_bytes(data)
    return path.stat().st_blocks * 512


def shown(run_berth, *words):
    return json.loads(run_berth("cache", "--json", *words, check=True).stdout)


def test_nothing_is_kept(run_berth, directory):
    empty = {"path": str(directory), "bytes": 0, "entries": 0, "services": []}
    assert shown(run_berth) == empty
    assert shown(run_berth, "--clear") == empty
    assert run_berth("cache", check=True).stdout == f"Cache {directory}\n  0 files, 0 KiB\n"
    assert not directory.exists()  # to look makes nothing


def test_by_service_and_cleared(run_berth, directory):
    sizes = [make_segment(directory, "a", "https://b.example:1", 5), make_segment(directory, "b", "unix:/a", 1),
             make_segment(directory, "c", "https://b.example:1", 7)]
    (directory / "note").write_text("not ours")
    (directory / "bad.segment").write_text("no segment")
    bad = (directory / "bad.segment").stat().st_blocks * 512
    expected = {
        "path": str(directory), "bytes": sum(sizes) + bad, "entries": 13, "services": [
            {"url": "https://b.example:1", "bytes": sizes[0] + sizes[2], "entries": 12},
            {"url": "unix:/a", "bytes": sizes[1], "entries": 1}]}
    assert shown(run_berth) == expected
    lines = run_berth("cache", check=True).stdout.splitlines()
    assert lines[0] == f"Cache {directory}"
    assert lines[2].startswith("  https://b.example:1: 12 files, ")
    assert lines[3].startswith("  unix:/a: 1 file, ")
    assert shown(run_berth, "--clear") == expected
    assert shown(run_berth)["bytes"] == 0
    assert os.listdir(directory) == ["note"]


def test_what_a_segment_says_is_no_danger_to_a_terminal(run_berth, directory):
    make_segment(directory, "a", "unix:/\x1b[31mred", 1)
    text = run_berth("cache", check=True).stdout
    assert "\x1b" not in text and "\\x1b[31mred" in text
    assert shown(run_berth)["services"][0]["url"] == "unix:/\x1b[31mred"


@pytest.mark.parametrize("words", [[], ["--clear"], ["--json"]])
def test_directory_that_is_not_private(run_berth, directory, words, tmp_path):
    make_segment(directory, "a", "unix:/a", 1)
    directory.chmod(0o755)
    result = run_berth("cache", *words)
    assert result.returncode == 1 and "mode 0700" in result.stderr and str(directory) in result.stderr
    directory.chmod(0o700)
    moved = directory.rename(tmp_path / "elsewhere")
    directory.symlink_to(moved)
    result = run_berth("cache", *words)
    assert result.returncode == 1 and "not a link" in result.stderr
    assert stat.S_ISREG((moved / "a.segment").stat().st_mode)

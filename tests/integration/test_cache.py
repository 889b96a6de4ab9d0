"""What mounts keep on this machine's disk: that it is right, from one mount to the next, and berth cache."""

import concurrent.futures
import hashlib
import json
import mmap
import os
import pathlib
import stat
import struct
import time

import pytest

from lib.cached import workspace  # noqa: F401, fixtures
from lib.exec_client import WORKSPACE
from lib.harness import wait_until

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
    empty = {"path": str(directory), "bytes": 0, "entries": 0, "listings": 0, "services": []}
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
        "path": str(directory), "bytes": sum(sizes) + bad, "entries": 13, "listings": 0, "services": [
            {"url": "https://b.example:1", "bytes": sizes[0] + sizes[2], "entries": 12, "listings": 0},
            {"url": "unix:/a", "bytes": sizes[1], "entries": 1, "listings": 0}]}
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


# --- from one mount to the next --------------------------------------------------------------

# The service tells nobody that a content is for ever before its last change is so old.
SETTLED = 3.5

FILES = 120


def content(number, size=4000):
    return (b"%d " % number * size)[:size]


def settle():
    time.sleep(SETTLED)


@pytest.fixture
def files(workspace):
    """FILES files in 12 directories, the last of them large and the first empty."""
    for number in range(FILES):
        path = workspace / f"a{number % 3}" / f"b{number % 12}" / f"file{number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content(number, (number * 1103) % 131073 if number else 0))
    settle()
    return workspace


@pytest.fixture
def mounted(service, start_mount, workspace):
    """A function that mounts the workspace anew."""
    def start(options="", **keywords):
        mount = start_mount(service, workspace=WORKSPACE, options=options, **keywords)
        wait_until(lambda: mount.stats()["coherent"], what="reports of changes")
        return mount
    return start


def read_all(path):
    return {os.path.join(directory, name)[len(str(path)):]: pathlib.Path(directory, name).read_bytes()
            for directory, _, names in os.walk(path) for name in names}


def kept(mount, count):
    wait_until(lambda: mount.stats()["disk_written"] >= count, what="contents on disk")


def read_and_unmount(mounted, expected, count=None, **keywords):
    """Reads everything; what the driver counted."""
    mount = mounted(**keywords)
    assert read_all(mount.path) == expected
    if count is not None:
        kept(mount, count)
    stats = mount.stats()
    mount.unmount()
    return stats


def test_a_second_mount_receives_no_content(files, mounted, run_berth):
    expected = read_all(files)
    first = read_and_unmount(mounted, expected, FILES)
    assert first["content_received"] >= sum(map(len, expected.values()))
    assert first["disk_read"] == 0
    for _ in range(2):
        again = read_and_unmount(mounted, expected)
        assert again["content_received"] == 0 and again["disk_read"] == FILES, again
        # Nothing is read at the service (what stays open for long is opened there); what there is
        # to know of files is asked anew.
        assert not set(again["requests"]) & {"READFILES", "READ"}, again
        assert again["requests"]["READTREE"] >= 1 and again["disk_damaged"] == 0
    total = shown(run_berth)
    assert total["entries"] == FILES and len(total["services"]) == 1


def change_in_place(path, old):
    with open(path, "r+b") as file:
        file.write(b"N")


def change_by_rename(path, old):
    new = path.with_name("new")
    new.write_bytes(b"N" + old[1:])
    os.utime(new, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    new.rename(path)


def change_by_mapping(path, old):
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as mapping:
        mapping[0:1] = b"N"


def change_to_another_file(path, old):
    path.unlink()
    path.write_bytes(b"N" + old[1:])


@pytest.mark.matrix
@pytest.mark.parametrize("set_back", [True, pytest.param(False, marks=pytest.mark.long)],
                         ids=["time set back", "new time"])
@pytest.mark.parametrize(
    "change", [change_in_place, change_by_rename, change_by_mapping, change_to_another_file])
def test_changes_between_mounts_are_seen(files, mounted, change, set_back):
    """Of the same size, and with the same time of modification."""
    expected = read_all(files)
    read_and_unmount(mounted, expected, FILES)
    names = [name for name in sorted(expected) if expected[name]][::10]
    for name in names:
        path = pathlib.Path(f"{files}{name}")
        before = path.stat()
        change(path, expected[name])
        if set_back:
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
            assert path.stat().st_mtime_ns == before.st_mtime_ns
        assert path.stat().st_size == before.st_size
        expected[name] = b"N" + expected[name][1:]
    stats = read_and_unmount(mounted, expected)
    assert stats["disk_read"] == FILES - len(names)
    # In advance, too, nothing comes but what is not here.
    assert stats["content_received"] == sum(len(expected[name]) for name in names)


def test_changes_within_the_tick_after_a_read_are_seen(workspace, mounted):
    """A file that is read just after it was written, and written again before the clock of the
    filesystem has gone on, has the same times with another content: nothing of it is kept."""
    count = 60
    for number in range(count):
        (workspace / f"f{number}").write_bytes(b"---")
    mount = mounted()
    assert len(os.listdir(mount.path)) == count
    same = 0
    for number in range(count):
        path = workspace / f"f{number}"
        path.write_bytes(b"old")
        before = path.stat()
        assert (mount.path / path.name).read_bytes() in (b"---", b"old", b"")
        with open(path, "r+b") as file:
            file.write(b"new")
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        same += path.stat().st_ctime_ns == before.st_ctime_ns
    print("with the same times:", same)
    stats = mount.stats()
    assert stats["requests"]["READFILES"] > 0 and stats["disk_written"] == 0
    mount.unmount()
    settle()
    expected = {f"/f{number}": b"new" for number in range(count)}
    assert read_and_unmount(mounted, expected, count)["disk_read"] == 0
    assert read_and_unmount(mounted, expected)["disk_read"] == count


def test_a_flipped_byte_is_never_served(files, mounted, directory):
    expected = read_all(files)
    read_and_unmount(mounted, expected, FILES)
    (path,) = directory.glob("*.segment")
    data = bytearray(path.read_bytes())
    start = 4096 + 16384 * 16
    for at in range(start + 40, len(data), 50000):
        data[at] ^= 1
    path.write_bytes(data)
    stats = read_and_unmount(mounted, expected)
    damaged = stats["disk_damaged"]
    assert 30 < damaged < FILES and stats["disk_read"] == FILES - damaged
    # What was damaged came from the service, and is right from then on.
    stats = read_and_unmount(mounted, expected)
    assert stats["content_received"] == 0 and stats["disk_damaged"] == 0


def test_cleared_under_a_live_mount(files, mounted, run_berth):
    expected = read_all(files)
    read_and_unmount(mounted, expected, FILES)
    mount = mounted()
    assert len(list(os.walk(mount.path))) == 16
    some = [name for name in sorted(expected) if "/a0/" in name]
    for name in some:
        assert pathlib.Path(f"{mount.path}{name}").read_bytes() == expected[name]
    assert shown(run_berth, "--clear")["entries"] == FILES
    assert read_all(mount.path) == expected
    stats = mount.stats()
    assert stats["content_received"] > 0 and stats["disk_read"] == len(some)
    mount.unmount()
    # What came after that is kept.
    assert 0 < shown(run_berth)["entries"] < FILES


def test_two_mounts_at_once(files, service, start_mount, mounted, directory):
    expected = read_all(files)
    mounts = [mounted(), mounted()]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda mount: read_all(mount.path), mounts)) == [expected, expected]
    for mount in mounts:
        kept(mount, FILES)
        mount.unmount()
    stats = read_and_unmount(mounted, expected)
    assert stats["content_received"] == 0 and stats["disk_damaged"] == 0
    assert len(list(directory.glob("*.segment"))) == 2


def test_killed_drivers_leave_nothing_wrong(files, mounted):
    expected = read_all(files)
    for number in range(6):
        mount = mounted()
        for name in sorted(expected)[:: 6 - number]:
            assert pathlib.Path(f"{mount.path}{name}").read_bytes() == expected[name]
        mount.kill()
        mount.close()
    assert read_and_unmount(mounted, expected)["disk_damaged"] == 0


def test_switched_off(files, mounted, directory):
    read_and_unmount(mounted, read_all(files), options="cache_size=0")
    assert not directory.exists()


@pytest.mark.parametrize("plant", ["link", "open to others", "file"])
def test_a_directory_that_is_not_private_is_not_used(files, mounted, directory, tmp_path, plant):
    directory.parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "elsewhere").mkdir()
    if plant == "link":
        directory.symlink_to(tmp_path / "elsewhere")
    elif plant == "file":
        directory.touch()
    else:
        directory.mkdir(mode=0o755)
    expected = read_all(files)
    mount = mounted()
    assert read_all(mount.path) == expected
    assert mount.stats()["disk_written"] == 0
    assert f"no contents of files are kept on disk: {directory}: this must be a directory" in mount.log
    assert os.listdir(tmp_path / "elsewhere") == []
    assert plant == "file" or os.listdir(directory) == []


def test_a_directory_under_the_mountpoint_is_not_used(files, mounted, service, harness):
    path = harness.directory / "over"
    env = {**service.client_env(), "XDG_CACHE_HOME": str(path / "cache")}
    path.mkdir()
    mount = mounted(path=path, env=env)
    assert read_all(mount.path) == read_all(files)
    assert f"{path}/cache/berth is under the mountpoint {path}" in mount.log
    assert mount.stats()["disk_written"] == 0


@pytest.mark.parametrize("value", ["", "x", "1", "-1", "4095K", "65G", "1M5", "1T", " 1G", "99999999999999999999"])
def test_wrong_sizes(harness, service, value):
    result = harness.run([harness.program("berthfs"), "-f", service.urls[0], str(harness.directory), "-o",
                          f"cache_size={value}"], env=service.client_env())
    assert result.returncode == 2
    assert f"cache_size={value}: expected bytes, from 4M to 64G" in result.stderr

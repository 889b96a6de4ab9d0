"""Fixtures of all Python tests. BERTH_BUILD names the build directory (default: ./build).

harness        everything below as methods, one per test; private directories and environment
build_dir      the build directory; binaries: maps berthd, berthfs, berth, relay to paths
certificates   an authority of our own and what it signed (lib.certificates.Certificates)
start_service  factory: a berthd (Harness.start_service); service: one on a unix socket
start_mount    factory: a berthfs -f (Harness.start_mount); mount: all workspaces of `service`
start_relay    factory: the delay relay (Harness.start_relay); relay: one before `service`
run_berth      run_berth("ls", "--json") against the last service started
run            run(["git", "status"], cwd=…): any program, in bounded time
"""

import contextlib
import os
import signal
import subprocess
from pathlib import Path

import pytest

from lib import harness as parts
from lib import kernel_caches
from lib.certificates import Certificates
from lib.mounts import check_fuse, force_unmount

STATE = pytest.StashKey()


def pytest_configure(config):
    """A run in the background, or under nohup, ignores signals that tests send to programs, and
    what is ignored is inherited: by xdist's workers from here, who may not run this in their
    main thread."""
    if hasattr(config, "workerinput"):
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


@pytest.fixture(scope="session")
def build_dir():
    path = Path(os.environ.get("BERTH_BUILD", parts.REPOSITORY / "build")).resolve()
    assert path.is_dir(), f"{path}: no such build directory; set BERTH_BUILD"
    return path


# What contrib/check runs on the sanitised build, on which a test takes three times as long, with a
# search for leaks at each program's end, which takes that once more: of each part what leads through
# most of its ways, errors as well. All others run on the release build; with --long each runs on both.
SANITISED = ("hostile/test_control", "hostile/test_greed", "hostile/test_lock_waits", "hostile/test_lying",
             "hostile/test_park", "hostile/test_terminal_injection", "integration/test_faults",
             "integration/test_http_document", "integration/test_http_watch", "integration/test_late_answers",
             "integration/test_lifecycle", "integration/test_mount_options", "integration/test_mount_parallel",
             "integration/test_mount_resume", "integration/test_snapshots",
             "integration/test_trees", "integration/test_warm", "integration/exec/test_place",
             "integration/exec/test_streams.", "model/test_found", "model/test_mappings", "model/test_random")


def _thin_out(items):
    """Of a test marked matrix, a third of its variants, first and last among them, is run before a merge."""
    variants = {}
    for item in items:
        if item.get_closest_marker("matrix") and not item.get_closest_marker("long"):
            variants.setdefault((item.path, item.originalname), []).append(item)
    for those in variants.values():
        for index, item in enumerate(those):
            if index % 3 and item is not those[-1]:
                item.add_marker("long")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """What cannot run with that sanitiser, or without fault points, is not chosen."""
    _thin_out(items)
    for item in items:
        path = item.path.relative_to(Path(__file__).parent).as_posix()
        if path.startswith(SANITISED) and not any(map(item.get_closest_marker, ("unsanitised", "release"))):
            item.add_marker("sanitised")
    berthd = Path(os.environ.get("BERTH_BUILD", parts.REPOSITORY / "build")) / parts.BINARIES["berthd"]
    content = berthd.read_bytes() if berthd.exists() else b""
    unable = {"unsanitised"} if b"__asan_init" in content or b"__tsan_init" in content else set()
    if b"__tsan_init" in content:
        unable.add("one_thread")
    if b"BERTH_FAULT" not in content:
        unable.add("fault_points")
    left = [item for item in items if any(item.get_closest_marker(name) for name in unable)]
    config.hook.pytest_deselected(items=left)
    items[:] = [item for item in items if item not in left]


@pytest.fixture(scope="session")
def binaries(build_dir):
    return parts.find_binaries(build_dir)


@pytest.fixture(scope="session")
def certificates(tmp_path_factory):
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def fuse_works(tmp_path_factory):
    """Without this, no result about mounts means anything: a failure, never a skip."""
    check_fuse(tmp_path_factory.mktemp("fuse"))


def _time_limit(item):
    marker = item.get_closest_marker("timeout")
    if marker and (marker.args or "timeout" in marker.kwargs):
        return float(marker.args[0] if marker.args else marker.kwargs["timeout"])
    given = item.config.getoption("timeout", None)
    return float(given if given is not None else item.config.getini("timeout") or 0)


@pytest.fixture
def harness(request, tmp_path, build_dir):
    owner = parts.Harness(tmp_path, build_dir,
                          lambda: request.getfixturevalue("certificates"),
                          _time_limit(request.node), leaks=bool(request.node.get_closest_marker("sanitised"))
                          or os.environ.get("BERTH_LEAKS") == "all")
    request.node.stash[STATE] = owner
    yield owner
    owner.close()


@pytest.fixture
def start_service(harness):
    return harness.start_service


@pytest.fixture
def service(harness):
    return harness.start_service()


@pytest.fixture
def start_mount(harness, fuse_works):
    return harness.start_mount


@pytest.fixture
def mount(harness, fuse_works, service):
    return harness.start_mount(service)


@pytest.fixture
def point(harness):
    """An empty directory, at whose end nothing is mounted there."""
    path = harness.new_path("point")
    path.mkdir()
    yield path
    force_unmount(path)


@pytest.fixture
def caches_kept():
    """No test beside this one makes the kernel forget names and pages, which would be asked for again."""
    with kernel_caches.kept():
        yield


@pytest.fixture
def start_relay(harness):
    return harness.start_relay


@pytest.fixture
def relay(harness, service):
    return harness.start_relay(service)


@pytest.fixture
def run_berth(harness):
    return harness.run_berth


@pytest.fixture
def run(harness):
    return harness.run


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    report = outcome.get_result()
    owner = item.stash.get(STATE, None)
    # During "call" the daemons still run, so their stacks say what a stuck test waited for.
    if owner and report.failed and report.when in ("setup", "call"):
        report.sections.append(("daemons", owner.state()))


@pytest.fixture
def filesystems(harness):
    """Mounts filesystems for the test, and takes them away behind all that used them."""
    with contextlib.ExitStack() as stack:
        def mount(kind, *options, source="none"):
            point = harness.new_path(kind)
            point.mkdir()
            subprocess.run(["mount", "-t", kind, "-o", ",".join(options) or "defaults", source, point],
                           check=True, capture_output=True, timeout=30)
            stack.callback(subprocess.run, ["umount", "-l", point], check=True, timeout=30)
            return point

        def image(kind, size, *words, where=None, options=("loop",)):
            path = (where or harness.directory) / f"{kind}.img"
            with open(path, "wb") as file:
                file.truncate(size)
            subprocess.run([f"mkfs.{kind}", "-q", *words, path], check=True, capture_output=True,
                           timeout=60)
            return mount(kind, *options, source=path)

        mount.image = image
        # Before the filesystem goes, what uses it must.
        stack.callback(lambda: [thing.stop() for thing in reversed(harness.owned)])
        yield mount

"""stress-ng and fio with their own verification, each on a local directory first, then on a mount
(root's with owner=server), then on two mounts of one workspace at the same time."""

import os
import re
import threading

import pytest

# What runs at once for seconds in the default check.
FEW = ["chmod", "copy-file", "dentry", "dirmany", "fallocate", "fpunch", "fstat", "getdent", "hdd", "iomix",
       "mknod", "open", "rename", "seek", "touch", "utime"]
# Each alone, with --long. Of the class "filesystem" these are left out: bind-mount, binderfs, eventfd,
# fanotify and procfs, which are about other filesystems or are not done to a directory; fiemap, for
# which the kernel gives FUSE nothing to answer; verity, which a filesystem has to be made for.
ALL = ["access", "aio", "aiol", "chattr", "chdir", "chmod", "chown", "copy-file", "dentry", "dir", "dirdeep",
       "dirmany", "dnotify", "dup", "fallocate", "fcntl", "file-ioctl", "filename", "flock", "fpunch", "fsize",
       "fstat", "getdent", "handle", "hdd", "inode-flags", "inotify", "io", "iomix", "lease", "link", "locka",
       "lockf", "lockofd", "mincore", "mknod", "mmap", "msync", "open", "readahead", "remap", "rename", "revio",
       "seek", "sendfile", "splice", "symlink", "sync-file", "touch", "utime", "xattr"]


@pytest.fixture
def places(harness, service, start_mount, run_berth):
    """A local directory, and one workspace on two mounts."""
    run_berth("create", "stress", check=True)
    local = harness.short / "local"
    local.mkdir()
    options = ["symlinks=verbatim", *(["owner=server", "allow_other"] if os.geteuid() == 0 else [])]
    return [local, *(start_mount(service, workspace="stress", options=options).path for _ in range(2))]


def in_parallel(*functions):
    failures = []

    def guarded(function):
        try:
            function()
        except BaseException as failure:  # told below, in the test's own thread
            failures.append(failure)

    threads = [threading.Thread(target=guarded, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


# --- stress-ng -----------------------------------------------------------------------------

def stress(harness, place, names, seconds, workers=1, patience=60):
    """Runs stressors at once. What a stressor finds wrong, one that was skipped, and files that are
    left fail."""
    directory = place / f"stress-{os.urandom(4).hex()}"
    directory.mkdir()
    words = [word for name in names for word in (f"--{name}", workers)]
    result = harness.run(["stress-ng", "--temp-path", directory, "--verify", "--timeout", seconds,
                          "--metrics-brief", "--oomable", *words], timeout=seconds + patience)
    text = result.stdout + result.stderr
    assert result.returncode == 0, f"{place}:\n{text}"
    assert not re.search(r"\bfail:|\bskipp", text), f"{place}:\n{text}"
    done = dict(re.findall(r"(?:info|metrc):\s+\[\d+\]\s+([a-z-]+)\s+(\d+)\s+[\d.]+\s", text))
    assert os.listdir(directory) == []
    directory.rmdir()
    return {name: int(done.get(name, 0)) for name in names}


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(150)
def test_stressors_at_once(harness, places):
    local, mount, _ = places
    stress(harness, local, FEW, 1)
    done = stress(harness, mount, FEW, 4)
    # On a busy machine some come to little.
    assert sum(count > 0 for count in done.values()) >= len(FEW) / 2, done


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", ALL)
def test_stressor(harness, places, name):
    local, mount, _ = places
    stress(harness, local, [name], 2, workers=2)
    stress(harness, mount, [name], 8, workers=2, patience=300)


@pytest.mark.long
@pytest.mark.timeout(400)
def test_stressors_on_two_mounts(harness, places):
    _, first, second = places
    (first / "shared").mkdir()
    in_parallel(lambda: stress(harness, first, FEW, 40, patience=120),
                lambda: stress(harness, second, FEW, 40, patience=120),
                lambda: stress(harness, first / "shared", FEW, 40, patience=120),
                lambda: stress(harness, second / "shared", FEW, 40, patience=120))


# --- fio -----------------------------------------------------------------------------------

WAYS = {
    "buffered": ["--ioengine=psync", "--bssplit=512/20:4k/30:20k/20:128k/20:1m/10", "--fsync=64"],
    "direct": ["--ioengine=libaio", "--direct=1", "--iodepth=8", "--bssplit=4k/50:64k/30:1m/20"],
    "mapped": ["--ioengine=mmap", "--bssplit=4k/70:64k/30"],
}


def fio(harness, place, name, size, *more, timeout=60):
    """Random writes by two jobs with a file each, then a reading of all that checks each block."""
    result = harness.run(
        ["fio", f"--name={name}", f"--directory={place}", "--rw=randwrite", f"--size={size}", "--numjobs=2",
         "--verify=crc32c", "--verify_fatal=1", "--randrepeat=1", "--allrandrepeat=1", "--group_reporting",
         *WAYS[name], *more], cwd=harness.directory, timeout=timeout)
    assert result.returncode == 0, f"{place}:\n{result.stdout}{result.stderr}"
    assert "err= 0" in result.stdout and not re.search(r"verify.*(fail|bad)", result.stdout), result.stdout


def written_here_and_read_there(harness, here, there, size, timeout=60):
    for name in WAYS:
        fio(harness, here, name, size, timeout=timeout)
        fio(harness, there, name, size, "--verify_only", timeout=timeout)


@pytest.mark.slow
@pytest.mark.timeout(150)
@pytest.mark.long
def test_fio(harness, places):
    local, first, second = places
    written_here_and_read_there(harness, local, local, "1m")
    written_here_and_read_there(harness, first, second, "1m")


@pytest.mark.long
def test_fio_would_notice(harness, places):
    local = places[0]
    fio(harness, local, "buffered", "1m")
    with open(local / "buffered.1.0", "r+b") as file:
        file.seek(700_000)
        file.write(b"x")
    with pytest.raises(AssertionError, match="verify"):
        fio(harness, local, "buffered", "1m", "--verify_only")


@pytest.mark.long
@pytest.mark.timeout(600)
def test_fio_on_two_mounts(harness, places):
    _, first, second = places
    for name in ("one", "two"):
        (first / name).mkdir()
    in_parallel(
        lambda: written_here_and_read_there(harness, first / "one", second / "one", "64m", timeout=240),
        lambda: written_here_and_read_there(harness, second / "two", first / "two", "64m", timeout=240))

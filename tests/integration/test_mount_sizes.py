"""The largest of each kind: attributes, names of attributes, directories."""

import errno
import os
import shutil
import tempfile
from pathlib import Path

import pytest


@pytest.fixture
def roomy(harness, fuse_works):
    """A local directory and a workspace on a filesystem that takes attributes of 64 KiB (ext4
    keeps all of a file's in one block)."""
    place = Path(tempfile.mkdtemp(prefix="berth-", dir="/dev/shm"))
    service = harness.start_service(root=place / "root")
    harness.run_berth("create", "demo", check=True)
    local = place / "local"
    local.mkdir()
    yield local, harness.start_mount(service, workspace="demo").path
    service.stop()
    shutil.rmtree(place)


def fails_with(number, function, *arguments):
    with pytest.raises(OSError) as caught:
        function(*arguments)
    assert caught.value.errno == number, caught.value


def test_attributes_of_64_kib(roomy):
    for directory in roomy:
        path = directory / "f"
        path.touch()
        largest = os.urandom(65536)
        os.setxattr(path, "user.large", largest)
        assert os.getxattr(path, "user.large") == largest
        fails_with(errno.E2BIG, os.setxattr, path, "user.large", largest + b"x")
        os.setxattr(path, "user.large", largest[:65535], os.XATTR_REPLACE)
        assert len(os.getxattr(path, "user.large")) == 65535


def test_names_of_attributes_up_to_64_kib(roomy):
    for directory in roomy:
        path = directory / "f"
        path.touch()
        names = [f"user.{i:04}{'n' * 246}" for i in range(255)]
        for name in names:
            os.setxattr(path, name, b"")
        assert sorted(os.listxattr(path)) == names
        os.setxattr(path, "user.rest" + "n" * 200, b"")
        os.setxattr(path, "user.more" + "n" * 200, b"")
        # More than 65,536 bytes of names: no call can tell them.
        fails_with(errno.E2BIG, os.listxattr, path)
        os.removexattr(path, names[0])
        os.removexattr(path, names[1])
        assert len(os.listxattr(path)) == 255


ENTRIES = 50_000


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_directory_of_50000_entries(service, start_mount, run_berth, run):
    run_berth("create", "demo", check=True)
    below = service.root / "workspaces" / "demo" / "tree" / "many"
    below.mkdir()
    names = [f"entry-{i:05}" for i in range(ENTRIES)]
    directory = os.open(below, os.O_RDONLY)
    for name in names:
        os.close(os.open(name, os.O_WRONLY | os.O_CREAT, dir_fd=directory))
    os.close(directory)
    mount = start_mount(workspace="demo")
    def asked():
        return sum(mount.stats()["requests"].get(name, 0) for name in ("READDIR", "READTREE"))
    before = asked()
    listed = run(["ls", "-f", mount.path / "many"], check=True, timeout=120).stdout.split("\n")[:-1]
    assert sorted(listed) == [".", "..", *names]
    assert 0 < asked() - before < 100
    assert (mount.path / "many" / names[-1]).exists() and not (mount.path / "many" / "entry-50000").exists()
    # A part of it removed while the rest is being read: each that stays is there once.
    seen = []
    with os.scandir(mount.path / "many") as entries:
        for i, entry in enumerate(entries):
            seen.append(entry.name)
            if i == 1000:
                for name in names[::10]:
                    os.unlink(below / name)
    kept = [name for name in seen if int(name[-5:]) % 10]
    assert len(kept) == len(set(kept)) == ENTRIES - ENTRIES // 10
    assert set(os.listdir(mount.path / "many")) == set(names) - set(names[::10])

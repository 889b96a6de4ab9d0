"""What goes wrong at the service reaches the program that asked, with the errno a local directory
gives, and leaves nothing half made: full filesystems, quotas, exhausted inodes, filesystems that
become read-only, device errors, and a service without descriptors or without the right. Each step
is done on the mount and on a local directory in the same condition, and must end the same."""

import contextlib
import errno
import mmap
import os
import resource
import stat
import subprocess
from pathlib import Path

import pytest

from lib.harness import wait_until
from lib.mounts import mounts

KIB, MIB = 1 << 10, 1 << 20


class Pair:
    """The same condition twice: a mount of a workspace on a filesystem, and a directory of it."""

    def __init__(self, mount, tree, local):
        self.mount, self.tree, self.local = mount, tree, local

    def both(self, call):
        """call(directory) on each; what it gave or the errno must be the same, and is returned."""
        results = []
        for directory in (self.local, self.mount):
            try:
                results.append(call(directory))
            except OSError as error:
                results.append(errno.errorcode[error.errno])
        assert results[1] == results[0], f"local {results[0]}, mount {results[1]}"
        return results[1]

    def check(self):
        """The mount shows what the service has, and that is what the local directory has."""
        mounted, served, local = (listing(d) for d in (self.mount, self.tree, self.local))
        assert mounted == served
        assert {name: kind for name, (kind, _) in served.items()} == {
            name: kind for name, (kind, _) in local.items()}


def listing(directory):
    found = {}
    for path in sorted(directory.rglob("*")):
        status = os.lstat(path)
        kind = stat.S_IFMT(status.st_mode)
        found[str(path.relative_to(directory))] = (
            kind, path.read_bytes() if stat.S_ISREG(status.st_mode) else None)
    return found


@pytest.fixture
def make_pair(harness, start_service, start_mount, run_berth):
    def make(place, other=None, **keywords):
        """place: where the service has its root; other: where the local directory is."""
        service = start_service(root=place / "root", **keywords)
        run_berth("create", "demo", check=True, service=service)
        mount = start_mount(service, workspace="demo", options=["owner=server"])
        local = (other or place) / "local"
        local.mkdir()
        pair = Pair(mount.path, place / "root" / "workspaces" / "demo" / "tree", local)
        pair.service, pair.driver = service, mount
        return pair
    return make


def fill(path, block=64 * KIB):
    """Writes until it fails; the errno."""
    with open(path, "wb", buffering=0) as file:
        try:
            while True:
                file.write(b"f" * block)
        except OSError as error:
            return errno.errorcode[error.errno]


def make_each(directory):
    """What each way to make a name gives, on a filesystem without room for one."""
    def attempt(call, *arguments):
        try:
            call(*arguments)
        except OSError as error:
            return errno.errorcode[error.errno]
        return None

    def create(name, flags=os.O_CREAT | os.O_WRONLY | os.O_EXCL):
        os.close(os.open(directory / name, flags, 0o644))

    return {
        "create": attempt(create, "created"),
        "open": attempt(create, "opened", os.O_CREAT | os.O_RDWR),
        "mkdir": attempt(os.mkdir, directory / "directory"),
        "symlink": attempt(os.symlink, "x/" * 1000, directory / "symlink"),
        "mknod": attempt(os.mknod, directory / "node", stat.S_IFREG | 0o644),
        "mkfifo": attempt(os.mkfifo, directory / "fifo"),
    }


# --- no space ------------------------------------------------------------------------------

def two_tmpfs(filesystems, size=4 * MIB, inodes=200):
    return [filesystems("tmpfs", f"size={size}", f"nr_inodes={inodes}") for _ in range(2)]


def test_full_filesystem(filesystems, make_pair):
    place, other = two_tmpfs(filesystems)
    pair = make_pair(place, other)

    def prepare(directory):
        (directory / "kept").write_bytes(b"kept")
        (directory / "source").write_bytes(b"s" * 100000)

    pair.both(prepare)
    fill(place / "ballast")
    fill(other / "ballast")

    def on_file(flags, call):
        def step(directory):
            fd = os.open(directory / "kept", flags)
            try:
                return call(fd, directory)
            finally:
                os.close(fd)
        return step

    def copy(fd, directory):
        source = os.open(directory / "source", os.O_RDONLY)
        try:
            return os.copy_file_range(source, fd, 100000, 0, 64 * KIB)
        finally:
            os.close(source)

    def rewrite(directory):
        with open(directory / "kept", "wb", buffering=0) as file:
            return file.write(b"r" * MIB)

    steps = {
        "write": on_file(os.O_RDWR, lambda fd, _: os.pwrite(fd, b"w" * MIB, 64 * KIB)),
        "append": on_file(os.O_WRONLY | os.O_APPEND, lambda fd, _: os.write(fd, b"a" * MIB)),
        "fallocate": on_file(os.O_RDWR, lambda fd, _: os.posix_fallocate(fd, 0, MIB)),
        "copy": on_file(os.O_RDWR, copy),
    }
    # The last page of the file had room: so many bytes, and then the errno.
    assert pair.both(steps["append"]) == 4092
    for name, step in steps.items():
        assert pair.both(step) == "ENOSPC", name
        pair.check()
    # A page that was given back by truncation is had again; what does not fit is not.
    assert pair.both(rewrite) == 4096
    pair.check()
    os.unlink(place / "ballast")
    os.unlink(other / "ballast")
    for name, step in steps.items():
        assert pair.both(step) in (None, MIB, 100000), name
        pair.check()


def test_no_inodes(filesystems, make_pair):
    place, other = two_tmpfs(filesystems, inodes=60)
    pair = make_pair(place, other)
    for directory in (place, other):
        (directory / "ballast").mkdir()
        with contextlib.suppress(OSError):
            for i in range(100):
                (directory / "ballast" / str(i)).touch()
    assert set(pair.both(make_each).values()) == {"ENOSPC"}
    pair.check()
    assert not listing(pair.mount)
    for directory in (place, other):
        for path in (directory / "ballast").iterdir():
            path.unlink()
    assert set(pair.both(make_each).values()) == {None}
    pair.check()


def test_tools_tell(filesystems, make_pair, run, harness):
    """cp, dd, tar, git and a shell's redirection end with a failure, as they do locally."""
    place, other = two_tmpfs(filesystems, inodes=2000)
    pair = make_pair(place, other)
    big = harness.directory / "big"
    big.write_bytes(os.urandom(6 * MIB))
    run(["tar", "cf", harness.directory / "big.tar", "-C", harness.directory, "big"], check=True)

    def attempt(*argv):
        def call(directory):
            words = [str(word).replace("@", str(directory)) for word in argv]
            result = run(words, cwd=directory)
            return result.returncode != 0
        return call

    tools = [
        attempt("cp", big, "@/copied"),
        attempt("dd", f"if={big}", "of=@/written", "bs=64k", "conv=fsync"),
        attempt("dd", f"if={big}", "of=@/direct", "bs=1M", "oflag=append", "conv=notrunc,fsync"),
        attempt("tar", "xf", harness.directory / "big.tar", "-C", "@"),
        attempt("sh", "-c", f"cat {big} > @/redirected"),
        attempt("rsync", "--inplace", big, "@/synced"),
    ]
    for i, tool in enumerate(tools):
        assert pair.both(tool) is True, i
        mounted, served = listing(pair.mount), listing(pair.tree)
        assert mounted == served
        # A file that was cut short is the service's own, with what it could take.
        assert all(not data or big.read_bytes().startswith(data) for _, data in served.values())
        for directory in (pair.mount, pair.local):
            for path in directory.iterdir():
                path.unlink()

    def commit(directory):
        run(["git", "init", "-q", directory], check=True)
        (directory / "data").symlink_to(big)
        run(["cp", "-L", "--sparse=never", big, directory / "blob"])
        result = run(["git", "-C", directory, "add", "blob"])
        return result.returncode != 0

    assert pair.both(commit) is True
    assert run(["git", "-C", pair.mount, "fsck"]).returncode == 0
    for directory in (pair.mount, pair.local):
        (directory / "blob").unlink()
        (directory / "small").write_text("fits")
        run(["git", "-C", directory, "add", "small"], check=True)
        run(["git", "-C", directory, "commit", "-qm", "after"], check=True)


def test_mapped_files(filesystems, make_pair):
    """A shared mapping that cannot be written back: msync or fsync says so, and the program ends."""
    place, other = two_tmpfs(filesystems)
    pair = make_pair(place, other)
    path = pair.mount / "sparse"
    with open(path, "wb") as file:
        file.truncate(256 * KIB)
    fill(place / "ballast")
    with open(path, "r+b") as file:
        with mmap.mmap(file.fileno(), 256 * KIB) as mapped:
            mapped[:] = b"m" * (256 * KIB)
            with pytest.raises(OSError) as refused:
                mapped.flush()
            assert refused.value.errno in (errno.ENOSPC, errno.EIO)
            os.unlink(place / "ballast")
            mapped[:] = b"n" * (256 * KIB)
            mapped.flush()
        os.fsync(file.fileno())
    assert (pair.tree / "sparse").read_bytes() == b"n" * (256 * KIB)


# --- quota ---------------------------------------------------------------------------------

def test_quota(filesystems, make_pair):
    """Btrfs groups: the kernel's own EDQUOT, on data and on names."""
    place = filesystems.image("btrfs", 128 * MIB)
    for name in ("served", "other"):
        subprocess.run(["btrfs", "subvolume", "create", place / name], check=True,
                       capture_output=True, timeout=30)
    subprocess.run(["btrfs", "quota", "enable", place], check=True, capture_output=True, timeout=30)
    pair = make_pair(place / "served", place / "other")
    for name in ("served", "other"):
        subprocess.run(["btrfs", "qgroup", "limit", "3M", place / name], check=True,
                       capture_output=True, timeout=30)

    def fill_here(directory):
        with open(directory / "data", "wb", buffering=0) as file:
            written, last = 0, None
            try:
                while True:
                    written += file.write(b"d" * 100000)
            except OSError as error:
                last = errno.errorcode[error.errno]
            return last, written > MIB

    assert pair.both(fill_here) == ("EDQUOT", True)
    results = pair.both(make_each)
    assert results["mkdir"] == results["create"] == "EDQUOT"
    mounted, served = listing(pair.mount), listing(pair.tree)
    assert mounted == served and set(served) == {"data"}
    for name in ("served", "other"):
        subprocess.run(["btrfs", "qgroup", "limit", "none", place / name], check=True,
                       capture_output=True, timeout=30)
    assert set(pair.both(make_each).values()) == {None}


# --- filesystems that change their mind ----------------------------------------------------

def test_becomes_read_only(filesystems, make_pair):
    """Ext4 that found an error and let no more changes in, with files open."""
    place = filesystems.image("ext4", 32 * MIB, "-e", "remount-ro")
    pair = make_pair(place)
    handles = {}
    for directory in (pair.mount, pair.local):
        (directory / "kept").write_bytes(b"kept")
        (directory / "directory2").mkdir()
        handles[directory] = os.open(directory / "kept", os.O_RDWR)
    subprocess.run(["sync", "-f", place], check=True, timeout=60)
    device = next(row for row in mounts() if row["point"] == str(place))["source"]
    Path(f"/sys/fs/ext4/{os.path.basename(device)}/trigger_fs_error").write_text("test")

    assert set(pair.both(make_each).values()) == {"EROFS"}
    steps = {
        "open": lambda d: os.close(os.open(d / "kept", os.O_WRONLY | os.O_TRUNC)),
        "write": lambda d: (os.write(handles[d], b"w" * 10000), os.fsync(handles[d])),
        "ftruncate": lambda d: os.ftruncate(handles[d], 100),
        "truncate": lambda d: os.truncate(d / "kept", 0),
        "chmod": lambda d: os.chmod(d / "kept", 0o600),
        "utime": lambda d: os.utime(d / "kept"),
        "fchmod": lambda d: os.fchmod(handles[d], 0o600),
        "setxattr": lambda d: os.setxattr(d / "kept", b"user.a", b"b"),
        "rename": lambda d: os.rename(d / "kept", d / "moved"),
        "link": lambda d: os.link(d / "kept", d / "linked"),
        "unlink": lambda d: os.unlink(d / "kept"),
        "rmdir": lambda d: os.rmdir(d / "directory2"),
    }
    for name, step in steps.items():
        assert pair.both(step) == "EROFS", name
    assert pair.both(lambda d: os.pread(handles[d], 10, 0)) == b"kept"
    for fd in handles.values():
        os.close(fd)
    pair.check()


def test_device_error(filesystems, make_pair):
    """A device that takes no more writes, behind a filesystem that believes it does: the error comes
    with fsync, once for each who has the file open, and not with a success."""
    thin = filesystems("tmpfs", "size=6m")
    place = filesystems.image("ext4", 32 * MIB, "-E", "lazy_itable_init=0", where=thin)
    pair = make_pair(place)
    subprocess.run(["sync", "-f", place], check=True, timeout=60)

    def write_and_sync(directory):
        fd = os.open(directory / "data", os.O_CREAT | os.O_WRONLY, 0o644)
        try:
            for _ in range(12):
                os.write(fd, b"d" * MIB)
            os.fsync(fd)
        except OSError as error:
            assert error.errno in (errno.EIO, errno.EROFS, errno.ENOSPC), error
            return "told"
        finally:
            with contextlib.suppress(OSError):
                os.close(fd)
        return "success"

    assert write_and_sync(pair.mount) == "told"
    assert write_and_sync(pair.local) == "told"
    # Nobody is stuck.
    with contextlib.suppress(OSError):
        os.listdir(pair.mount)


# --- a service without rights or descriptors -----------------------------------------------

def test_service_of_another_user(harness, make_pair, filesystems, monkeypatch):
    """A service that runs as an ordinary user, on files of somebody else."""
    wrapper = harness.new_path("berthd")
    wrapper.write_text("#!/bin/sh\nexec setpriv --reuid 65534 --regid 65534 --clear-groups "
                       f"'{harness.program('berthd')}' \"$@\"\n")
    wrapper.chmod(0o755)
    monkeypatch.setitem(harness.binaries, "berthd", wrapper)
    place = filesystems("tmpfs", "size=8m,mode=777")
    harness.directory.chmod(0o755)
    harness.short.chmod(0o777)
    for directory in harness.directory.parents:
        if str(directory).startswith("/tmp/"):
            directory.chmod(0o755)
    service = harness.start_service(root=place / "root")
    harness.run_berth("create", "demo", check=True)
    tree = place / "root" / "workspaces" / "demo" / "tree"
    (tree / "theirs").write_bytes(b"theirs")
    (tree / "theirs").chmod(0o600)
    (tree / "shut").mkdir(mode=0o755)
    (tree / "shut" / "inside").write_bytes(b"inside")
    (tree / "closed").mkdir(mode=0o700)
    before = listing(tree)
    mount = harness.start_mount(service, workspace="demo")

    def attempt(call, *arguments):
        with pytest.raises(OSError) as refused:
            call(*arguments)
        return refused.value.errno

    assert attempt(open, mount.path / "theirs", "rb") == errno.EACCES
    assert attempt(open, mount.path / "theirs", "wb") == errno.EACCES
    assert attempt(os.truncate, mount.path / "theirs", 0) == errno.EACCES
    assert attempt(os.chmod, mount.path / "theirs", 0o666) == errno.EPERM
    assert attempt(os.listdir, mount.path / "closed") == errno.EACCES
    assert attempt(os.unlink, mount.path / "shut" / "inside") == errno.EACCES
    assert attempt(os.rename, mount.path / "shut" / "inside", mount.path / "out") == errno.EACCES
    results = make_each(mount.path / "shut")
    assert set(results.values()) == {"EACCES"}
    assert listing(tree) == before
    (mount.path / "ours").write_bytes(b"ours")
    assert os.lstat(tree / "ours").st_uid == 65534


def descriptor_limit(process, limit):
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (limit, resource.prlimit(
        process.pid, resource.RLIMIT_NOFILE)[1]))


def test_service_without_descriptors(make_pair, harness):
    """Kept descriptors go first; then EMFILE reaches who opens, nothing is made, what is open works
    on; and all is well as soon as there are descriptors again."""
    pair = make_pair(harness.directory)
    for i in range(60):
        (pair.tree / f"d{i}").mkdir()
        (pair.tree / f"d{i}" / "file").write_bytes(b"data")
    for i in range(60):
        assert (pair.mount / f"d{i}" / "file").read_bytes() == b"data"
    kept = pair.service.descriptors()
    descriptor_limit(pair.service, kept + 2)
    # More than the limit leaves: the kept ones make room.
    opened = [open(pair.mount / f"d{i}" / "file", "r+b", buffering=0) for i in range(30)]
    with pytest.raises(OSError) as refused:
        for i in range(200):
            opened.append(open(pair.mount / f"d{i % 60}" / "file", "r+b", buffering=0))
    assert refused.value.errno in (errno.EMFILE, errno.ENFILE)
    with pytest.raises(OSError) as refused:
        for i in range(200):
            opened.append(open(pair.mount / f"new{i}", "xb", buffering=0))
    assert refused.value.errno in (errno.EMFILE, errno.ENFILE)
    assert not (pair.tree / f"new{i}").exists()
    with pytest.raises(OSError) as refused:
        os.listdir(pair.mount)
    assert refused.value.errno in (errno.EMFILE, errno.ENFILE)
    for file in opened:
        assert file.write(b"DATA") == 4
        os.fsync(file.fileno())
    opened.pop().close()
    # Given back by a notice, which comes after the close.
    wait_until(lambda: listed(pair.mount), what="a descriptor that is free again")
    descriptor_limit(pair.service, 4096)
    for i in range(60):
        assert (pair.mount / f"d{i}" / "file").exists()
    (pair.mount / "newer").write_bytes(b"x")
    for file in opened:
        file.close()


def listed(directory):
    with contextlib.suppress(OSError):
        return os.listdir(directory)
    return None


def test_driver_without_descriptors(make_pair, harness):
    """The driver needs one descriptor for its connection and none for files; when it cannot have
    that, programs get EIO, and the mount comes back with the descriptor."""
    pair = make_pair(harness.directory)
    (pair.mount / "file").write_bytes(b"data")
    descriptor_limit(pair.driver, 4)
    opened = [open(pair.mount / "file", "rb") for _ in range(100)]
    assert all(file.read() == b"data" for file in opened)
    for file in opened:
        file.close()
    descriptor_limit(pair.driver, 4096)
    assert (pair.mount / "file").read_bytes() == b"data"

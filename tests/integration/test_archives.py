"""Archives on the command line, forks and git worktrees: berth create --from, import, export, snapshot."""

import gzip
import io
import json
import os
import signal
import stat
import subprocess
import tarfile
import time

import pytest

from lib.harness import wait_until
from lib.trees import NOTHING, fill, left_over, on_disk, tree_of, wait_for_nothing


@pytest.fixture
def service(harness):
    return harness.start_service()


@pytest.fixture
def berth(harness, service):
    def run(*words, ok=True, **keywords):
        done = harness.run_berth(*words, service=service, **keywords)
        assert (done.returncode == 0) == ok, done.stderr
        return done
    return run


@pytest.fixture
def source(tmp_path):
    top = tmp_path / "source"
    top.mkdir()
    fill(top)
    (top / "ünïcode ☃").write_bytes(b"x")
    long = top / ("long" * 40) / ("name" * 50)
    long.mkdir(parents=True)
    (long / ("f" * 255)).write_bytes(b"deep and long")
    return top


def tar(*words, **keywords):
    return subprocess.run(["tar", *words], check=True, timeout=60, capture_output=True, **keywords).stdout


def unpacked(harness, archive, name):
    top = harness.new_path(name)
    top.mkdir()
    tar("-C", top, "-xpf", archive, "--xattrs", "--xattrs-include=user.*")
    return on_disk(top)


def test_there_and_back(harness, berth, service, source):
    """What tar packs and unpacks is what it was before, by file and by pipe, plain and compressed."""
    plain, small = harness.new_path("a.tar"), harness.new_path("a.tar.gz")
    tar("-C", source, "-cf", plain, "--sparse", "--xattrs", "--format=posix", ".")
    small.write_bytes(gzip.compress(plain.read_bytes(), 1))
    subprocess.run(["zstd", "-q", plain], check=True, timeout=60)
    expected = on_disk(source)
    assert berth("create", "--from", plain, "plain").stdout == "plain\n"
    assert berth("import", "zipped", small).stdout == "zipped\n"
    with open(f"{plain}.zst", "rb") as stream:
        berth("create", "--from", "-", "zstd", stdin=stream)
    for name in ("plain", "zipped", "zstd"):
        assert on_disk(tree_of(service, name)) == expected, name
    for name in ("b.tar", "b.tar.zst", "b.tgz"):
        archive = harness.new_path(name)
        berth("export", "plain", archive)
        assert unpacked(harness, archive, name + ".unpacked") == expected, name
        assert name == "b.tar" or archive.stat().st_size < 1 << 20
    archive = harness.new_path("c.tar")
    archive.write_bytes(berth("export", "-z", "none", "plain", text=False).stdout)
    assert unpacked(harness, archive, "c") == expected
    assert left_over(service) == NOTHING


def test_names_are_bytes_and_tar_is_not_astonished(harness, berth, service):
    """Names that are no UTF-8, and such as are not composed, come out as they are; hdrcharset, which tar does not
    know, is for those alone that need it."""
    odd = [b"\xff\xfe", b"\xed\xa0\xbd\xed\xb8\x80", b"\xc0\x80"]
    names = [b"ascii", "ü☃".encode(), b"u\xcc\x88", "😀".encode()]
    berth("create", "w")
    top = os.fsencode(tree_of(service, "w"))
    for name in names + odd:
        with open(os.path.join(top, name), "xb"):
            pass
    os.symlink(odd[1], os.path.join(top, b"link"))
    archive = harness.new_path("a.tar")
    berth("export", "w", archive)
    listed = subprocess.run(["tar", "--quoting-style=escape", "-tf", archive], check=True, timeout=60, capture_output=True)
    assert listed.stderr.count(b"hdrcharset") == len(odd) + 1
    with tarfile.open(archive, errors="surrogateescape") as members:
        charsets = {os.fsencode(member.name).rpartition(b"/")[2]: member.pax_headers.get("hdrcharset") for member in members}
    assert [name for name in names if charsets[name]] == [] and all(charsets[name] == "BINARY" for name in odd + [b"link"])
    assert unpacked(harness, archive, "a") == on_disk(tree_of(service, "w"))


def test_an_archive_is_not_named_as_another_kind(harness, berth):
    berth("create", "w")
    for name in ("x.zip", "x.tar.XZ", "x.7z", "x.tar.bz2"):
        archive = harness.new_path(name)
        assert "only tar is written" in berth("export", "w", archive, ok=False).stderr
        assert "only tar is written" in berth("export", "-s", "s", archive, ok=False).stderr
        assert not archive.exists()
    directory = harness.new_path("d.zip")
    directory.mkdir()
    berth("export", "w", directory / "x.2026")


@pytest.mark.parametrize("form", ["gnu", "ustar", "v7"])
def test_other_kinds_of_tar(harness, berth, service, tmp_path, form):
    top = tmp_path / "top"
    (top / "d").mkdir(parents=True)
    (top / "d/f").write_bytes(b"x" * 1000)
    (top / "l").symlink_to("d/f")
    os.link(top / "d/f", top / "h")
    for path in (top / "d/f", top / "d", top / "l"):
        os.utime(path, (1e9, 1e9), follow_symlinks=False)
    archive = harness.new_path("a.tar")
    tar("-C", top, f"--format={form}", "-cf", archive, ".")
    berth("import", "w", archive)
    assert on_disk(tree_of(service, "w")) == on_disk(top)


def packed(*members):
    """A tar of (name, type or content, fields)."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, what, *fields in members:
            info = tarfile.TarInfo(name)
            content = what if isinstance(what, bytes) else b""
            info.type, info.size = tarfile.REGTYPE if isinstance(what, bytes) else what, len(content)
            if isinstance(what, str):
                info.type = {"dir": tarfile.DIRTYPE, "link": tarfile.SYMTYPE, "hard": tarfile.LNKTYPE,
                             "device": tarfile.CHRTYPE}[what]
            for key, value in (fields[0] if fields else {}).items():
                setattr(info, key, value)
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


def changed(data, at):
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1:]


HOSTILE = {
    "up": (packed(("good", b"x"), ("../f", b"x")), "leads out"),
    "up inside": (packed(("a/../../f", b"x")), "leads out"),
    "absolute": (packed(("/f", b"x")), "begins at the root"),
    "through a link": (packed(("l", "link", {"linkname": "/tmp"}), ("l/f", b"x")), "symbolic link"),
    "a hard link out": (packed(("h", "hard", {"linkname": "../../../service.json"})), "leads out"),
    "a hard link to nothing": (packed(("h", "hard", {"linkname": "none"})), "No such file"),
    "a file over a directory": (packed(("d", "dir"), ("d", b"x")), "something else of the same name"),
    "a name too long": (packed(("n" * 300, b"x")), "too long"),
    "a path too long": (packed(("/".join(["n" * 200] * 25), b"x")), "too long"),
    "cut off": (packed(("f", b"x" * 100000))[:50000], "damaged"),
    "no archive": (b"this is a text and no archive of anything\n" * 100, "no tar archive"),
    "empty": (b"", "no tar archive"),
    "a byte of a packed one changed": (changed(gzip.compress(packed(("f", bytes(100000))), 0), 50000), "gzip's checksum"),
    "the checksum cut off": (gzip.compress(packed(("f", b"x")))[:-8], "gzip's checksum"),
    "no end": (gzip.compress(packed(("f", b"x")) + bytes(20 << 20)), "goes on behind its end"),
    "cut off in compression": (gzip.compress(packed(("f", os.urandom(100000))))[:50000], "damaged"),
}


def test_hostile_archives(harness, berth, service):
    """Each is refused with a reason, and nothing of it is there."""
    for name, (data, why) in HOSTILE.items():
        archive = harness.new_path("hostile.tar")
        archive.write_bytes(data)
        done = berth("import", "w", archive, ok=False)
        assert why in done.stderr, (name, done.stderr)
        assert done.stdout == "", name
        wait_for_nothing(service) # when the service has noticed that nobody sends any more
    assert berth("ls", "-q").stdout == ""


@pytest.mark.parametrize("pieces", [1, 7, 10000])
def test_packed_in_pieces(harness, berth, service, pieces):
    """Members of gzip one after the other, the zeros of a tape behind them, and a pipe that gives a byte at a time."""
    data = packed(("f", bytes(range(256)) * 40), ("g", b"x"))
    size = len(data) // min(pieces, 7) + 1
    small = b"".join(gzip.compress(data[at:at + size]) for at in range(0, len(data), size)) + bytes(512)
    with subprocess.Popen([harness.program("berth"), "create", "--from", "-", "w"], env=service.client_env(),
                          stdin=subprocess.PIPE) as create:
        for at in range(0, 3 if pieces == 10000 else 0):
            os.write(create.stdin.fileno(), small[at:at + 1])
            time.sleep(0.05)
        os.write(create.stdin.fileno(), small[3 if pieces == 10000 else 0:])
        create.stdin.close()
        assert create.wait(30) == 0
    assert (tree_of(service, "w") / "f").read_bytes() == bytes(range(256)) * 40
    assert (tree_of(service, "w") / "g").read_bytes() == b"x"


def test_what_has_no_item_is_left_out(harness, berth, service):
    archive = harness.new_path("a.tar")
    archive.write_bytes(packed(("device", "device"), ("f", b"x")))
    assert "1 devices or sockets" in berth("import", "w", archive).stderr
    assert os.listdir(tree_of(service, "w")) == ["f"]


def test_a_file_that_is_there_stays_when_export_fails(harness, berth):
    archive = harness.new_path("a.tar")
    archive.write_bytes(b"as it was")
    assert "no" in berth("export", "none", archive, ok=False).stderr.lower()
    assert archive.read_bytes() == b"as it was"
    assert not [name for name in os.listdir(archive.parent) if "part" in name]


def test_snapshots_on_the_command_line(berth, service):
    berth("create", "w")
    (tree_of(service, "w") / "f").write_bytes(b"before")
    assert berth("snapshot", "create", "--label", "a=b", "w", "one").stdout == "one\n"
    (tree_of(service, "w") / "f").write_bytes(b"after")
    assert berth("fork", "w", "fork").stdout == "fork\n"
    assert berth("create", "--snapshot", "one", "copy").stdout == "copy\n"
    berth("snapshot", "restore", "w", "one")
    contents = [(tree_of(service, name) / "f").read_bytes() for name in ("w", "fork", "copy")]
    assert contents == [b"before", b"after", b"before"]
    made = json.loads(berth("snapshot", "create", "--json", "--live", "w").stdout)
    assert made["live"] and made["thread_id"] == "w" and made["entries"] == 2
    listed = json.loads(berth("snapshot", "ls", "--json", "w").stdout)
    assert sorted(s["id"] for s in listed) == sorted(["one", made["id"]])
    assert next(s for s in listed if s["id"] == "one")["labels"] == {"a": "b"}
    assert berth("snapshot", "ls", "-q", "fork").stdout == ""
    assert "one" in berth("snapshot", "ls").stdout
    assert "a snapshot of this ID exists" in berth("snapshot", "create", "w", "one", ok=False).stderr
    berth("snapshot", "rm", "one", made["id"])
    assert "no such snapshot" in berth("snapshot", "rm", "one", ok=False).stderr
    assert "no such snapshot" in berth("create", "--snapshot", "one", "x", ok=False).stderr
    assert berth("snapshot", "make", ok=False).returncode == 2
    assert berth("create", "--snapshot", "one", "--fork", "w", "x", ok=False).returncode == 2


# --- git -------------------------------------------------------------------------------------

def git(directory, *words, check=True):
    env = dict(os.environ, GIT_AUTHOR_NAME="A", GIT_AUTHOR_EMAIL="a@example", GIT_COMMITTER_NAME="A",
               GIT_COMMITTER_EMAIL="a@example", GIT_CONFIG_GLOBAL="/dev/null")
    done = subprocess.run(["git", "-C", directory, *words], check=check, timeout=60, capture_output=True, text=True,
                          env=env)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path):
    top = tmp_path / "repository"
    top.mkdir()
    git(top, "init", "-q", "-b", "main")
    for number in range(3):
        (top / "file").write_text(f"{number}\n")
        git(top, "add", ".")
        git(top, "commit", "-q", "-m", f"commit {number}")
    git(top, "branch", "topic", "HEAD~1")
    git(top, "tag", "v0", "HEAD~2")
    git(top, "config", "user.name", "B ü")
    git(top, "config", "user.email", "b@example")
    git(top, "remote", "add", "origin", "https://user:secret@example.com/app.git")
    (top / "file").write_text("uncommitted\n")
    return top


def test_worktree(harness, berth, service, repository, tmp_path):
    """A repository of its own, on the branch; git works in it, in the sandbox too; it can be fetched from."""
    (tmp_path / "tmp").mkdir()
    berth("create", "--worktree", repository, "w", env={**service.client_env(None), "TMPDIR": str(tmp_path / "tmp")})
    top = tree_of(service, "w")
    assert git(top, "symbolic-ref", "HEAD") == "refs/heads/main" and git(top, "status", "--porcelain") == ""
    assert (top / "file").read_text() == "2\n" and git(top, "rev-list", "--count", "HEAD") == "3"
    assert git(top, "config", "remote.origin.url") == "https://example.com/app.git"
    assert not (top / ".git/objects/info/alternates").exists() and not (top / ".git/hooks").exists()
    git(top, "fsck", "--strict")
    script = "echo x > new && git add . && git commit -qm new"
    berth("exec", "-w", "w", "--", "sh", "-c", script)
    mount = harness.start_mount(service)
    git(repository, "fetch", "-q", mount.path / "w", "main")
    assert git(repository, "log", "-1", "--format=%s %an %ae %ce", "FETCH_HEAD") == "new B ü b@example b@example"
    assert git(repository, "status", "--porcelain") == "M file"
    assert os.listdir(tmp_path / "tmp") == []


@pytest.mark.parametrize("ref,head,content", [("topic", "refs/heads/topic", "1\n"), ("v0", None, "0\n"),
                                              ("main~1", None, "1\n")])
def test_worktree_at_a_ref(berth, service, repository, ref, head, content):
    berth("create", "--worktree", f"{repository}@{ref}", "w")
    top = tree_of(service, "w")
    assert (git(top, "symbolic-ref", "-q", "HEAD", check=False) or None) == head
    assert (top / "file").read_text() == content
    assert git(top, "rev-parse", "HEAD") == git(repository, "rev-parse", f"{ref}^{{commit}}")
    assert git(top, "branch", "--format=%(refname:short)").split("\n")[-1] in ("topic", f"(HEAD detached at {git(top, 'rev-parse', '--short', 'HEAD')})")


def test_worktrees_that_cannot_be(berth, service, repository, tmp_path):
    for spec in (f"{repository}@none", tmp_path / "none", f"{repository}@--exec=x", tmp_path):
        (line,) = berth("create", "--worktree", spec, "w", ok=False).stderr.splitlines()
        assert line.startswith(f"berth: create: {str(spec).partition('@')[0]}: ") or "--exec=x: no such commit" in line
    bare = tmp_path / "bare"
    bare.mkdir()
    git(bare, "init", "-q")
    assert "no commit yet" in berth("create", "--worktree", bare, "w", ok=False).stderr
    assert berth("ls", "-q").stdout == ""


def test_exported_to_what_is_no_regular_file(harness, berth, source):
    """A device or FIFO is written to itself, and a link leads to the file that is replaced; what fails leaves what was."""
    archive = harness.new_path("w.tar")
    tar("-C", source, "-cf", archive, ".")
    berth("create", "--from", archive, "w")
    place = harness.new_path("place")
    place.mkdir()
    for name, minor in (("null", 3), ("full", 7)):
        os.mknod(place / name, 0o666 | stat.S_IFCHR, os.makedev(1, minor))
    os.mkfifo(place / "fifo")
    (place / "old.tar").write_text("old")
    (place / "link.tar").symlink_to("old.tar")
    (place / "nowhere.tar").symlink_to("none/x.tar")
    berth("export", "w", place / "null")
    assert "No space left" in berth("export", "w", place / "full", ok=False).stderr
    assert all(stat.S_ISCHR((place / name).stat().st_mode) for name in ("null", "full"))
    with subprocess.Popen(["tar", "-tf", place / "fifo"], stdout=subprocess.PIPE) as reader:
        berth("export", "w", place / "fifo")
        assert b"executable\n" in reader.communicate(timeout=30)[0] and reader.returncode == 0
    berth("export", "w", place / "link.tar")
    assert (place / "link.tar").is_symlink() and tarfile.is_tarfile(place / "old.tar")
    assert "No such file" in berth("export", "w", place / "nowhere.tar", ok=False).stderr
    assert sorted(os.listdir(place)) == ["fifo", "full", "link.tar", "nowhere.tar", "null", "old.tar"]


def test_what_failed_does_not_look_whole(harness, berth, service):
    """Whoever reads an export from a pipe learns from its end alone that it was not all: tar fails, too."""
    nothing = harness.run_berth("export", "none", service=service, text=False)
    assert nothing.returncode == 1 and nothing.stdout == b""

    berth("create", "w")
    for number in range(40):
        (tree_of(service, "w") / f"f{number:02}").write_bytes(os.urandom(1 << 18))
    slow = harness.start_relay(service.url, bandwidth=4 << 20).url
    with subprocess.Popen([harness.program("berth"), "export", "w"], env={**harness.env, "BERTH_URL": slow},
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as export:
        begun = export.stdout.read(1 << 20)
        service.kill()
        part = begun + export.stdout.read()
        assert export.wait(60) == 1 and len(part) < 40 << 18
    assert not part.endswith(bytes(1024))
    assert subprocess.run(["tar", "-t"], input=part, capture_output=True, timeout=60, check=False).returncode != 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_killed_while_exporting(harness, berth, service, number):
    """What was there is there, and nothing else; what replaces it at last is for the same users."""
    berth("create", "w")
    (tree_of(service, "w") / "f").write_bytes(os.urandom(8 << 20))
    place = harness.new_path("place")
    place.mkdir()
    (place / "w.tar").write_text("old")
    (place / "w.tar").chmod(0o600)
    slow = harness.start_relay(service.url, bandwidth=1 << 20)
    export = subprocess.Popen([harness.program("berth"), "export", "w", place / "w.tar"],
                              env={**harness.env, "BERTH_URL": slow.url}, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: slow.stats()["to_client"]["bytes"] > 1 << 20, what="a part of it")
    finally:
        export.send_signal(number)
    assert export.wait(30) != 0
    assert os.listdir(place) == ["w.tar"] and (place / "w.tar").read_text() == "old"
    berth("export", "w", place / "w.tar")
    assert os.listdir(place) == ["w.tar"] and tarfile.is_tarfile(place / "w.tar")
    assert (place / "w.tar").stat().st_mode & 0o777 == 0o600

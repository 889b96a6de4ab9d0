"""Several services in one tree: one that is dead, slow or not there is nothing to the others."""

import base64
import errno
import fcntl
import json
import os
import shutil
import signal
import subprocess
import threading
import time

import pytest

from lib import harness as parts
from lib import mounts
from lib.joined import SOON, berth, configure, join, members, set_default, until_state, within  # noqa: F401, fixtures


def kill(service):
    service.signal(signal.SIGKILL)
    service.kill()


def test_union(join, start_service, berth):
    a, b = start_service(), start_service()
    mount = join(A=a, B=b)
    berth("--service", "A", "create", "one", "odd/id", check=True)
    berth("--service", "B", "create", "two", check=True)
    assert sorted(os.listdir(mount.path)) == ["odd%2Fid", "one", "two"]
    for name in ("one", "two", "odd%2Fid"):
        (mount.path / name / "f").write_text(name)
        assert (mount.path / name / "f").read_text() == name
    assert os.getxattr(mount.path / "odd%2Fid", "user.berth.thread_id") == b"odd/id"
    assert {row.name: row.is_dir() for row in os.scandir(mount.path)} == dict.fromkeys(
        ["odd%2Fid", "one", "two"], True)
    # Each at its own service.
    assert berth("--service", "B", "exec", "-w", "two", "--", "cat", "f", check=True).stdout == "two"
    berth("--service", "A", "rm", "-f", "one", check=True)
    parts.wait_until(lambda: not (mount.path / "one").exists(), what="a removed workspace goes")
    assert "one" not in os.listdir(mount.path)


def test_root_is_the_mounts_own(join, start_service, berth):
    a = start_service()
    mount = join(A=a, B="unix:/nowhere/at/all")
    berth("--service", "A", "create", "w", check=True)
    for action in (lambda: os.mkdir(mount.path / "x"), lambda: (mount.path / "f").write_text(""),
                   lambda: os.rename(mount.path / "w", mount.path / "v"),
                   lambda: os.rmdir(mount.path / "w"),
                   lambda: os.setxattr(mount.path, "user.x", b"")):
        with pytest.raises(PermissionError):
            action()
    assert not (mount.path / ".git").exists()
    with pytest.raises(OSError) as caught:
        os.stat(mount.path / ("x" * 256))
    assert caught.value.errno == errno.ENAMETOOLONG
    assert os.stat(mount.path).st_ino == 1
    assert os.statvfs(mount.path).f_bavail > 0
    assert os.stat(mount.path / "w").st_dev == os.stat(mount.path).st_dev


def test_name_clash(join, start_service, berth):
    """The first has the name; what a name has led to stays there."""
    a, b = start_service(), start_service()
    names = {"A": a, "B": b}
    mount = join(**names)
    for service, text in (("A", "of a"), ("B", "of b")):
        berth("--service", service, "create", "same", check=True)
        berth("--service", service, "exec", "-w", "same", "--", "sh", "-c", f"echo {text} >f",
              check=True)
    assert sorted(os.listdir(mount.path)) == ["same", "same@B"]
    assert (mount.path / "same" / "f").read_text() == "of a\n"
    assert (mount.path / "same@B" / "f").read_text() == "of b\n"
    assert (mount.path / "same@A" / "f").read_text() == "of a\n"
    for name in ("same@C", "nothing@A", "same@", "@A"):
        assert not (mount.path / name).exists()
    for name, expected in (("same", "of a"), ("same@B", "of b")):
        run = berth("exec", "--", "cat", "f", cwd=mount.path / name, check=True)
        assert run.stdout == expected + "\n"
    berth("--service", "A", "rm", "-f", "same", check=True)
    parts.wait_until(lambda: os.listdir(mount.path) == ["same"], what="the other has the name now")
    assert (mount.path / "same" / "f").read_text() == "of b\n"
    # It is B's from now on, although A is before it.
    berth("--service", "A", "create", "same", check=True)
    assert sorted(os.listdir(mount.path)) == ["same", "same@A"]
    assert (mount.path / "same" / "f").read_text() == "of b\n"


def test_exec_by_the_members_connection(join, start_service, berth):
    a, b = start_service(), start_service()
    mount = join(A=a, B=b)
    for name in ("A", "B"):
        berth("--service", name, "create", name.lower(), check=True)
    os.listdir(mount.path)
    for name in ("a", "b"):
        (mount.path / name / "d").mkdir()
        (mount.path / name / "d" / "f").write_text("here")
        run = berth("exec", "--json", "--", "sh", "-c", "cat f; echo out >g; exit 7",
                    cwd=mount.path / name / "d")
        told = json.loads(run.stdout)
        assert run.returncode == 7
        assert base64.b64decode(told["stdout"]["data"]) == b"here" if isinstance(
            told.get("stdout"), dict) else "here" in run.stdout
        # The barrier: what the command wrote is there when it has returned.
        assert (mount.path / name / "d" / "g").read_text() == "out\n"
    refused = berth("exec", "--", "true", cwd=mount.path)
    assert refused.returncode != 0 and "several services" in refused.stderr


def test_never_there_then_comes(join, start_service, harness, berth):
    a, late = start_service(), start_service()
    root, socket = late.root, late.url
    berth("--url", socket, "create", "late", check=True)
    late.stop()
    begun = time.monotonic()
    mount = join(A=a, L=socket)
    assert time.monotonic() - begun < 8
    berth("--service", "A", "create", "w", check=True)
    assert within(SOON, os.listdir, mount.path) == ["w"]
    assert not within(SOON, (mount.path / "late").exists)
    within(SOON, (mount.path / "w" / "f").write_text, "x")
    assert members(mount)["L"]["state"] == "connecting" and "why" in members(mount)["L"]
    assert "connecting" in berth("status").stdout
    start_service(root=root, listen=[socket])
    until_state(mount, "L", "connected")
    assert sorted(os.listdir(mount.path)) == ["late", "w"]
    (mount.path / "late" / "f").write_text("x")


def test_killed_and_back(join, start_service, berth):
    a, b = start_service(), start_service()
    mount = join(A=a, B=b, options=["timeout=1"])
    for name in ("A", "B"):
        berth("--service", name, "create", name.lower(), check=True)
        (mount.path / name.lower() / "f").write_text(name)
    root, url = b.root, b.url
    kill(b)
    until_state(mount, "B", "disconnected")
    # Its workspaces are known still; the others know nothing of it.
    assert sorted(within(SOON, os.listdir, mount.path)) == ["a", "b"]
    within(1, (mount.path / "a" / "g").write_text, "x")
    assert within(1, (mount.path / "a" / "f").read_text) == "A"
    berth("--service", "A", "create", "new", check=True)
    assert within(SOON, os.listdir, mount.path / "new") == []
    assert not within(SOON, (mount.path / "nothing").exists)
    with pytest.raises(OSError) as caught:
        within(5, (mount.path / "b" / "f").read_text)
    assert caught.value.errno == errno.EIO
    assert berth("exec", "--", "true", cwd=mount.path / "a").returncode == 0
    start_service(root=root, listen=[url])
    until_state(mount, "B", "connected")
    assert (mount.path / "b" / "f").read_text() == "B"
    assert "B  connected" in berth("status").stdout


def test_stalled(join, start_service, start_relay, berth):
    """One that takes requests and does not answer holds nobody up for longer than JOIN_ANSWER_MS."""
    a, b = start_service(), start_service()
    relay = start_relay(b)
    mount = join(A=a, B=relay.url, options=["timeout=3"])
    for name in ("A", "B"):
        berth("--service", name, "create", name.lower(), check=True)
        (mount.path / name.lower() / "f").write_text(name)
    relay.stall()
    assert sorted(within(SOON, os.listdir, mount.path)) == ["a", "b"]
    assert not within(SOON, (mount.path / "nothing").exists)
    assert within(1, (mount.path / "a" / "f").read_text) == "A"
    within(1, (mount.path / "a" / "g").write_text, "x")
    within(3, os.stat, mount.path)
    relay.resume()
    parts.wait_until(lambda: (mount.path / "b" / "f").read_text() == "B", 15, "it goes on")


def test_numbers(join, start_service, berth):
    """st_ino: different for all files, the same on the next mount, in whatever order."""
    a, b = start_service(), start_service()

    def numbers(mount):
        found = {}
        for name in ("a", "b"):
            for path in (mount.path / name, mount.path / name / "f"):
                found[path.name + name] = os.stat(path).st_ino
            entries = {e.name: e.inode() for e in os.scandir(mount.path / name)}
            assert entries["f"] == found["f" + name]
        assert len(set(found.values())) == 4
        return found

    mount = join(A=a, B=b)
    for name in ("A", "B"):
        berth("--service", name, "create", name.lower(), check=True)
        (mount.path / name.lower() / "f").write_text(name)
    first = numbers(mount)
    mount.unmount()
    assert numbers(join(B=b, A=a)) == first


def test_across(join, start_service, berth):
    a, b = start_service(), start_service()
    mount = join(A=a, B=b)
    for name in ("A", "B"):
        berth("--service", name, "create", name.lower(), check=True)
    (mount.path / "a" / "f").write_text("x")
    for action in (os.rename, os.link):
        with pytest.raises(OSError) as caught:
            action(mount.path / "a" / "f", mount.path / "b" / "f")
        assert caught.value.errno == errno.EXDEV
    with open(mount.path / "a" / "f", "rb") as source, open(mount.path / "b" / "g", "wb") as target:
        assert os.copy_file_range(source.fileno(), target.fileno(), 1) == 1
    shutil.move(mount.path / "a" / "f", mount.path / "b" / "f")
    assert (mount.path / "b" / "f").read_text() == "x"
    assert os.listdir(mount.path / "a") == []


def test_another_service_at_the_same_place(join, start_service, berth):
    """Its files are other files: what was open fails, and the rest is looked up anew."""
    a, b = start_service(), start_service()
    mount = join(A=a, B=b, options=["timeout=1"])
    berth("--service", "A", "create", "a", check=True)
    berth("--service", "B", "create", "b", check=True)
    (mount.path / "b" / "f").write_text("old")
    url = b.url
    with open(mount.path / "b" / "f", encoding="ascii") as held:
        kill(b)
        other = start_service(listen=[url])
        berth("--service", "B", "create", "b", check=True)
        until_state(mount, "B", "connected")
        parts.wait_until(lambda: os.listdir(mount.path / "b") == [], what="the new one's files")
        with pytest.raises(OSError):
            os.pread(held.fileno(), 1, 4096 * 10)
            os.fstat(held.fileno())
            os.fsync(held.fileno())
    (mount.path / "b" / "f").write_text("new")
    assert berth("exec", "-w", "b", "--", "cat", "f", cwd=mount.path / "b").stdout == "new"
    (mount.path / "a" / "f").write_text("x")
    assert other.running()


def test_same_service_twice(join, start_service, start_relay, berth):
    """By the same URL it is used once; by another one it is what it is: nobody can tell that none lies."""
    a = start_service()
    mount = join(A=a, B=a, C=start_relay(a).url)
    berth("--service", "A", "create", "w", check=True)
    until_state(mount, "C", "connected")
    assert sorted(os.listdir(mount.path)) == ["w", "w@C"]
    (mount.path / "w" / "f").write_text("x")
    for name in ("w@A", "w@B", "w@C"):
        assert (mount.path / name / "f").read_text() == "x"
    told = members(mount)
    assert [told[name]["state"] for name in "ABC"] == ["connected", "refused", "connected"]
    assert told["B"]["why"] == "A has the same URL and credentials"
    assert (told["A"]["says_it_is"], told["C"]["says_it_is"]) == ("C", "A")
    assert "it says that it is the same service as A" in berth("status").stdout


def test_cache_on_disk_of_each(join, start_service, berth, caches_kept):
    a, b = start_service(), start_service()
    mount = join(A=a, B=b)
    for name in ("A", "B"):
        berth("--service", name, "create", name.lower(), check=True)
        for i in range(20):
            (mount.path / name.lower() / f"f{i}").write_text(name * 1000)
    mount.unmount()
    time.sleep(3.2)  # what has just been written is not kept: two seconds, as whole ones are counted
    def tell():
        told = {name: json.loads(os.getxattr(mount.path / name, "user.berth.mount")) for name in ("a", "b")}
        return told, [each["stats"] for each in told.values()]

    for kept in (0, 20):
        mount = join(A=a, B=b)
        parts.wait_until(lambda: all(m["coherent"] for m in members(mount).values()))
        # What is kept is read beside the work; until then all is asked of the services.
        parts.wait_until(lambda least=kept: all(stats["disk_entries"] >= least for stats in tell()[1]))
        for name in ("a", "b"):
            for entry in os.scandir(mount.path / name):
                with open(entry.path, encoding="ascii") as file:
                    assert file.read() == name.upper() * 1000
        parts.wait_until(lambda: all(stats["disk_pending"] == 0 for stats in tell()[1]), what="writing to disk")
        told, _ = tell()
        mount.unmount()
    for name in ("a", "b"):
        assert told[name]["member"] == name.upper()
        assert told[name]["stats"]["disk_read"] == 20, told[name]


def test_command_line(harness, configure, start_service, berth, fuse_works):
    a, b = start_service(), start_service()
    configure(A=a, B=b)
    path = harness.new_path("point")
    path.mkdir()

    def refused(*words):
        result = berth("mount", *words, path)
        assert result.returncode == 2, result
        return result.stderr

    assert "leave out" in refused("--service", "A", "--service", "B", a.url)
    assert "leave out" in refused("--all", "--service", "A")
    assert "no name" in refused("--service", "a:b")
    assert "not a URL" in refused(a.url, "x y")
    assert berth("--url", a.url, "mount", "--all", path).returncode == 2
    assert berth("mount", "--service", "A", "--service", "none", path).returncode == 1
    result = berth("mount", "--service", "A", "--service", "B", "-w", "x", path)
    assert result.returncode != 0 and "-w" in result.stderr
    log = harness.new_path("log")
    try:
        for words in (["--service", "A", "--service", "B"], [a.url, b.url]):
            done = berth("mount", *words, "-o", f"log={log}", path, check=True)
            assert (done.stdout, done.stderr) == ("", "")
            text = log.read_text()
            assert f"connected to {a.url}" in text and f"connected to {b.url}" in text
            log.unlink()
            berth("--service", "A", "create", "w", check=True)
            assert os.listdir(path) == ["w"]
            assert len(json.loads(os.getxattr(path, "user.berth.mount"))["members"]) == 2
            berth("umount", path, check=True)
        # One by name is a mount like any other.
        berth("mount", "--service", "B", path, check=True)
        assert os.listdir(path) == []
        assert json.loads(os.getxattr(path, "user.berth.mount"))["url"] == b.url
        berth("umount", path, check=True)
    finally:
        mounts.force_unmount(path)


def test_driver_dies(join, start_service, berth):
    """No dead mountpoint is left."""
    a, b = start_service(), start_service()
    mount = join(A=a, B=b)
    berth("--service", "A", "create", "w", check=True)
    (mount.path / "w" / "f").write_text("x")
    mount.kill()
    parts.wait_until(lambda: not mounts.find_mount(mount.path), what="its guard has unmounted")


def test_rules(join, start_service, berth):
    a, b = start_service(), start_service()
    mount = join(A=a, B=b, options=["prune=ide"])
    for name in ("A", "B"):
        berth("--service", name, "create", name.lower(), check=True)
        for directory in ("node_modules", "kept"):
            (mount.path / name.lower() / directory).mkdir()
        assert os.listdir(mount.path / name.lower()) == ["kept"]
    os.removexattr(mount.path, "user.berth.visibility")
    for name in ("a", "b"):
        parts.wait_until(lambda: sorted(os.listdir(mount.path / name)) == ["kept", "node_modules"])


# --- places -------------------------------------------------------------------------------------

def place(harness, service, name, **more):
    """As a provider leaves it: a workspace, and how it is reached."""
    directory = harness.directory / "home" / "state" / "berth-client" / "places"
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    url = f"exec:{harness.program('berthd')} --root {service.root} --stdio"
    told = {"version": 1, "id": name, "provider": "test", "sandbox": "s-" + name, "name": "s-" + name,
            "parameters": {}, "url": url, "state": "ready", "created": 1, "created_by": "test", **more}
    (directory / f".{name}").write_text(json.dumps(told))
    os.chmod(directory / f".{name}", 0o600)
    os.rename(directory / f".{name}", directory / f"{name}.json")
    return directory / f"{name}.json"


def test_places_come_and_go(join, harness, start_service, berth, configure):
    a, sandbox = start_service(), start_service()
    configure(A=a)
    berth("--service", "A", "create", "w", check=True)
    berth("--url", sandbox.url, "create", "made", "other", check=True)
    first = place(harness, sandbox, "made")
    mount = join(services="all")
    parts.wait_until(lambda: sorted(os.listdir(mount.path)) == ["made", "w"], what="the place's")
    # It is connected when it is used, and shows what it is of alone.
    assert members(mount)["made"]["state"] == "idle"
    assert members(mount)["made"]["provider"] == "test"
    (mount.path / "made" / "f").write_text("x")
    assert members(mount)["made"]["state"] == "connected"
    assert not (mount.path / "other").exists()
    run = berth("exec", "--", "cat", "f", cwd=mount.path / "made", check=True)
    assert run.stdout == "x"
    second = place(harness, sandbox, "other")
    parts.wait_until(lambda: (mount.path / "other").is_dir(), what="another place's")
    place(harness, sandbox, "half", state="creating", url="")
    first.unlink()
    parts.wait_until(lambda: not (mount.path / "made").exists(), what="it is gone")
    parts.wait_until(lambda: sorted(os.listdir(mount.path)) == ["other", "w"])
    second.unlink()
    parts.wait_until(lambda: os.listdir(mount.path) == ["w"], what="all are gone")
    (mount.path / "w" / "f").write_text("x")


@pytest.mark.long
def test_places_that_never_answer_leave_nothing_behind(join, harness, start_service, configure):
    a = start_service()
    configure(A=a)
    path = harness.directory / "home" / "config" / "berth" / "berth.json"
    path.write_text(json.dumps({"client": {**json.loads(path.read_text())["client"], "connect_timeout": 1}}))
    mount = join(services="all", options=["timeout=5"])
    until_state(mount, "A", "connected")
    pid = json.loads(os.getxattr(mount.path, "user.berth.mount"))["stats"]["pid"]

    def held():
        return len(os.listdir(f"/proc/{pid}/fd")), len(os.listdir(f"/proc/{pid}/task"))

    first = held()
    for i in range(8):
        name = f"p{i}"
        made = place(harness, a, name, url="exec:sleep 100")
        parts.wait_until(lambda: name in members(mount), what="the place's")
        asking = threading.Thread(target=os.path.exists, args=[mount.path / name])
        asking.start()
        until_state(mount, name, "connecting")
        made.unlink()
        parts.wait_until(lambda: name not in members(mount), what="it is gone")
        asking.join(10)
    parts.wait_until(lambda: held() <= first, 20, "threads and descriptors")


@pytest.mark.long
def test_a_disk_that_hangs_keeps_nobody_out(join, harness, start_service, start_relay, start_mount, berth):
    """The cache is on a mount whose service does not answer."""
    a, holder = start_service(), start_service()
    berth("--url", a.url, "create", "w", check=True)
    berth("--url", holder.url, "create", "cache", check=True)
    relay = start_relay(holder)
    slow = start_mount(holder, url=relay.url, options=["cache=no", "timeout=60"])
    os.listdir(slow.path / "cache")
    relay.stall()
    try:
        harness.env["XDG_CACHE_HOME"] = str(slow.path / "cache")
        mount = join(A=a, B="unix:/nowhere/at/all")
        until_state(mount, "A", "connected", 8)
        (mount.path / "w" / "f").write_text("x")
        assert within(1, (mount.path / "w" / "f").read_text) == "x"
    finally:
        relay.resume()


def test_all_without_anything(join, harness, start_service, run_berth):
    """Nothing is there yet; the service of this machine comes."""
    mount = join(services="all")
    assert os.listdir(mount.path) == []
    assert set(members(mount)) == {"default"}
    subprocess.run(["ls", "-la", mount.path], check=True, capture_output=True, timeout=10)


# --- which service an ID is of ------------------------------------------------------------------

def ids(berth, service):
    return berth("--url", service.url, "ls", "-q", check=True).stdout.split()


def test_ids_are_of_the_service_one_stands_in(join, harness, start_service, berth):
    default, lab = start_service(), start_service()
    mount = join(lab=lab, gone="unix:/nowhere/at/all")
    set_default(harness, default)
    for service in (default, lab):
        berth("--url", service.url, "create", "victim", "other", check=True)
    inside = mount.path / "other"
    berth("label", "victim", "a=b", cwd=inside, check=True)
    berth("snapshot", "create", "victim", "s1", cwd=inside, check=True)
    assert "s1" in berth("snapshot", "ls", "-q", cwd=inside, check=True).stdout
    assert berth("--url", default.url, "label", "victim", check=True).stdout == ""
    assert berth("--url", default.url, "snapshot", "ls", "-q", check=True).stdout == ""
    berth("create", "fresh", cwd=inside, check=True)
    assert "fresh" in berth("ls", "-q", cwd=inside, check=True).stdout.split()
    berth("rm", "victim", cwd=inside, check=True)
    berth("snapshot", "rm", "s1", cwd=inside, check=True)
    assert ids(berth, default) == ["other", "victim"]
    assert ids(berth, lab) == ["fresh", "other"]
    refused = berth("rm", "victim", cwd=inside)
    assert refused.returncode == 1 and "in which you stand" in refused.stderr
    # Who names a service means that one.
    berth("--url", default.url, "rm", "victim", cwd=inside, check=True)
    assert ids(berth, default) == ["other"]


@pytest.fixture
def two(join, harness, start_service, berth):
    """A mount of default and lab, which both have victim, and its services by name."""
    default, lab = start_service(), start_service()
    for service, more in ((default, ["plain"]), (lab, ["other"])):
        berth("--url", service.url, "create", "victim", *more, check=True)
    mount = join(default=default, lab=lab)
    set_default(harness, default)
    for name in ("default", "lab"):
        until_state(mount, name, "connected")
    return mount, default, lab


def labels(berth, service, workspace="victim"):
    return berth("--url", service.url, "label", workspace, check=True).stdout.split()


def test_the_workspace_in_which_one_stands(two, berth):
    """It is known to all commands that take one, by nothing and by a dot."""
    mount, default, lab = two
    inside = mount.path / "victim@lab"
    berth("label", ".", "a=b", cwd=inside, check=True)
    assert berth("label", cwd=inside, check=True).stdout == "a=b\n"
    assert labels(berth, default) == []
    berth("ttl", ".", "7d", cwd=inside, check=True)
    assert "never" not in berth("ttl", cwd=inside, check=True).stdout.splitlines()[0]
    assert "filesystem" in berth("policy", cwd=inside).stdout
    berth("visibility", "--add", "*.o", cwd=inside, check=True)
    assert berth("visibility", ".", cwd=inside, check=True).stdout == "*.o\n"
    (inside / "f").write_text("1")
    assert berth("snapshot", "create", cwd=inside, check=True).stdout
    berth("snapshot", "create", ".", "s1", cwd=inside, check=True)
    (inside / "f").write_text("2")
    berth("snapshot", "restore", "s1", cwd=inside, check=True)
    assert berth("exec", "-w", ".", "--", "cat", "f", cwd=inside, check=True).stdout == "1"
    berth("fork", "forked", cwd=inside, check=True)
    assert ids(berth, lab) == ["forked", "other", "victim"]
    assert berth("export", cwd=inside, text=False, check=True).stdout[257:262] == b"ustar"
    berth("stop", cwd=inside, check=True)
    assert "stopped" in berth("--url", lab.url, "ls", "-l").stdout
    berth("start", ".", cwd=inside, check=True)
    # One word too little is not taken for it where everything would be gone.
    refused = berth("rm", cwd=inside)
    assert refused.returncode == 2 and "which workspace?" in refused.stderr
    berth("rm", ".", cwd=inside, check=True)
    assert ids(berth, lab) == ["forked", "other"] and ids(berth, default) == ["plain", "victim"]
    for words in (["policy"], ["label"], ["stop"], ["snapshot", "create"]):
        refused = berth(*words, cwd=mount.path)
        assert refused.returncode == 2 and "which workspace?" in refused.stderr, words


def test_names_of_the_mount_are_ids(two, berth):
    """NAME@SERVICE, wherever one stands in the mount; in its root also NAME, as it is shown."""
    mount, default, lab = two
    for place in (mount.path, mount.path / "plain"):
        berth("label", "victim@lab", f"at={place.name}", cwd=place, check=True)
        assert labels(berth, lab) == [f"at={place.name}"]
    inside = mount.path / "plain"
    for words in (["exec", "-w", "victim@lab", "--", "true"], ["ps", "-w", "victim@lab"], ["label", "-n", "victim@lab"]):
        berth(*words, cwd=inside, check=True)
    missing = berth("label", "plain@lab", "a=b", cwd=inside)
    assert missing.returncode == 1 and "shows no workspace plain@lab" in missing.stderr
    assert labels(berth, default) == []
    assert berth("exec", "-w", "other", "--", "true", cwd=mount.path).returncode == 0
    # In another one IDs are of its own service.
    assert berth("exec", "-w", "other", "--", "true", cwd=mount.path / "plain").returncode == 125
    berth("rm", "victim@lab", cwd=mount.path / "plain", check=True)
    assert ids(berth, lab) == ["other"] and ids(berth, default) == ["plain", "victim"]
    told = berth("rm", "-f", "other", cwd=mount.path / "plain", check=True)
    assert "there is no workspace other at" in told.stderr and ids(berth, lab) == ["other"]


def test_each_word_is_looked_for_from_where_one_stands(two, berth):
    """Where an earlier one led to is not where the next is."""
    mount, default, lab = two
    berth("--url", lab.url, "create", "plain", check=True)
    run = berth("rm", "other@lab", "plain", cwd=mount.path)
    assert run.returncode == 1 and "plain@default" in run.stderr, run.stderr
    assert ids(berth, lab) == ["plain", "victim"] and ids(berth, default) == ["plain", "victim"]
    berth("stop", "plain@lab", "plain", cwd=mount.path / "victim@default", check=True)
    for service in (lab, default):
        listed = berth("--url", service.url, "ls", "-q", "--state", "stopped", check=True).stdout.split()
        assert listed == ["plain"]


@pytest.mark.parametrize("words", [["rm", "victim"], ["stop", "victim"], ["label", "victim", "a=b"],
                                   ["snapshot", "create", "victim"], ["fork", "victim", "new"], ["snapshot", "rm", "s"]],
                         ids=" ".join)
def test_nothing_is_changed_where_services_are_many(two, berth, words):
    mount, default, lab = two
    run = berth(*words, cwd=mount.path)
    expected = "victim@default" if "victim" in words else "berth --service lab"
    assert run.returncode == 1 and expected in run.stderr, run.stderr
    assert "victim" in ids(berth, default) and "victim" in ids(berth, lab)
    assert labels(berth, default) == labels(berth, lab) == []


def test_a_service_that_is_named_beats_the_mount(two, harness, berth):
    """For all commands alike; and nothing is changed in a workspace of that name there without its ID."""
    mount, default, lab = two
    inside = mount.path / "victim@lab"
    (inside / "f").write_text("lab")
    env = {**harness.env, "BERTH_URL": default.url}

    def run(*words):
        return harness.run([harness.program("berth"), *words], env=env, cwd=inside)

    assert run("ls", "-q").stdout.split() == ["plain", "victim"]
    assert run("exec", "--", "cat", "f").returncode == 1
    assert run("label", "victim", "a=b").returncode == 0 and labels(berth, default) == ["a=b"]
    for words in (["label", ".", "c=d"], ["rm", "."], ["stop"]):
        refused = run(*words)
        assert refused.returncode != 0 and "BERTH_URL" in refused.stderr, refused
    assert labels(berth, default) == ["a=b"] and labels(berth, lab) == []
    env["BERTH_URL"] = lab.url
    assert run("label", ".", "c=d").returncode == 0 and labels(berth, lab) == ["c=d"]


def test_a_place_elsewhere_is_not_removed(join, harness, start_service, berth):
    lab, sandbox = start_service(), start_service()
    berth("--url", sandbox.url, "create", "made", check=True)
    mount = join(lab=lab)
    berth("--url", lab.url, "create", "made", "other", check=True)
    here = place(harness, sandbox, "made")
    run = berth("rm", "made", cwd=mount.path / "other")
    assert run.returncode == 1 and "a provider" in run.stderr and "--service lab" in run.stderr
    assert here.exists() and ids(berth, lab) == ["made", "other"]
    berth("rm", "made", cwd=mount.path / "made", check=True)
    assert here.exists() and ids(berth, lab) == ["other"]


def test_a_place_is_held_without_the_callers_token(harness, start_service, berth, configure):
    sandbox = start_service()
    configure(A=sandbox)
    berth("--url", sandbox.url, "create", "made", check=True)
    place(harness, sandbox, "made")
    harness.env["BERTH_TOKEN"] = "berth_of_another_service"
    try:
        berth("exec", "-w", "made", "--", "true", check=True)
        held = json.loads(berth("connection", "ls", "--json", check=True).stdout)
        assert [one["kind"] for one in held] == ["holder"]
    finally:
        berth("connection", "stop", "--all")


def test_lock_that_is_kept(join, harness, start_service, berth):
    """A lock of another program holds nobody up, and numbers stay as they were first."""
    a = start_service()
    mount = join(A=a, gone="unix:/nowhere/at/all")
    path = harness.directory / "home" / "state" / "berth-client" / "joined"
    with open(path, "rb+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        berth("--service", "A", "create", *"uvw", check=True)
        first = [within(SOON, os.stat, mount.path / name).st_ino for name in "uvw"]
    (mount.path / "w" / "f").write_text("")
    assert [os.stat(mount.path / name).st_ino for name in "uvw"] == first


def test_doctor_names_who_is_not_there(join, start_service, berth):
    a = start_service()
    mount = join(A=a, gone="unix:/nowhere/at/all")
    parts.wait_until(lambda: "why" in members(mount)["gone"], what="a reason")
    told = berth("--service", "A", "doctor").stdout
    assert f"the mount at {mount.path}: the service gone is connecting: " in told, told


def test_names_of_the_mount_are_no_ids(start_service, berth):
    a = start_service()
    run = berth("--url", a.url, "exec", "-w", "demo@lab", "--", "true")
    assert "berth --service lab … -w demo" in run.stderr


def test_ls_of_all(two, harness, berth):
    mount, _, _ = two
    path = harness.directory / "home" / "config" / "berth" / "berth.json"
    assert sorted(berth("ls", "-aq", check=True).stdout.split()) == sorted(os.listdir(mount.path))
    told = json.loads(path.read_text())
    told["client"]["services"]["gone"] = {"url": "unix:/nowhere/at/all"}
    path.write_text(json.dumps(told))
    run = berth("ls", "--all")
    assert run.returncode == 1 and "gone: " in run.stderr
    rows = {line.split()[0]: line.split()[3] for line in run.stdout.splitlines()[1:]}
    assert rows == {"plain": "default", "victim": "default", "other": "lab", "victim@lab": "lab"}
    listed = json.loads(berth("ls", "--all", "--json").stdout)
    assert {(one["thread_id"], one["service"]) for one in listed} == {
        ("plain", "default"), ("victim", "default"), ("other", "lab"), ("victim", "lab")}
    assert berth("--service", "lab", "ls", "--all").returncode == 2


# --- top ----------------------------------------------------------------------------------------

def test_top(two, berth):
    mount, _, _ = two
    (mount.path / "plain" / "f").write_text("x")
    os.stat(mount.path / "victim@lab")
    parts.wait_until(lambda: members(mount)["lab"]["stats"]["ping_us"] > 0, what="a ping")
    lines = berth("top", "--once", check=True).stdout.splitlines()
    rows = [line.split("  ") for line in lines if str(mount.path) in line or line.startswith("  ")]
    cells = {row[0] or row[1]: [cell.strip() for cell in row if cell.strip()] for row in rows}
    for name in (str(mount.path), "default", "lab"):
        state, lag, ping, trips, files, cache = cells[name][1:7]
        assert state == "connected" and trips == "-" and "-" not in (lag, ping, files, cache), cells[name]
    [ours] = [m for m in json.loads(berth("top", "--once", "--json").stdout)["mounts"] if m["mountpoint"] == str(mount.path)]
    total, own = ours["stats"], [m["stats"] for m in ours["members"]]
    assert total["round_trips"] == sum(m["round_trips"] for m in own) > 0
    assert total["inodes"] == sum(m["inodes"] for m in own) > 0


def test_what_is_made_is_of_the_service_in_which_one_stands(join, start_service, berth):
    a, b = start_service(), start_service()
    mount = join(A=a, B=b)
    berth("--service", "B", "create", "w", check=True)
    for words in (("create", "new@A"), ("fork", "w", "new@A")):
        refused = berth(*words, cwd=mount.path / "w")
        assert refused.returncode != 0 and "berth --service A create ID" in refused.stderr, refused
    berth("create", "new@elsewhere", cwd=mount.path / "w", check=True)
    berth("fork", "w", "other", cwd=mount.path / "w", check=True)
    assert berth("--service", "B", "ls", "-q", check=True).stdout.split() == ["new%40elsewhere", "other", "w"]
    assert berth("--service", "A", "ls", "-q", check=True).stdout == ""

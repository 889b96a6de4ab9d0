"""Pruning as tools see it: crawlers do not descend, the service is not asked, what is hidden is
not there by any way in but a command's; and rules change while a mount is in use."""

import ctypes
import errno
import json
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

from lib.berthwire import CallError, Connection, decode_list
from lib.harness import wait_until

PACKAGES = 20


@pytest.fixture
def tree(service, run_berth):
    """The tree of workspace "demo" at the service, filled."""
    run_berth("create", "demo", check=True)
    root = service.root / "workspaces" / "demo" / "tree"
    for name in ("src", "node_modules", ".git", "dist", "src/__pycache__"):
        (root / name).mkdir()
    for i in range(PACKAGES):
        package = root / "node_modules" / f"package{i}"
        package.mkdir()
        (package / "index.js").write_text("needle\n")
    (root / "src/main.py").write_text("needle\n")
    (root / "src/__pycache__/main.pyc").write_text("needle\n")
    (root / "dist/app.js").write_text("needle\n")
    (root / ".git/config").write_text("needle\n")
    (root / ".env").write_text("needle\n")
    return root


def names(directory):
    return set(os.listdir(directory))


def crawl(run, directory):
    """What find, rg and du see below directory."""
    found = run(["find", ".", "-type", "f"], cwd=directory, check=True).stdout.split()
    searched = run(["rg", "--files", "--no-ignore", "--hidden", "."], cwd=directory, check=True).stdout.split()
    used = [line.split("\t")[1] for line in run(["du", "-a", "."], cwd=directory, check=True).stdout.splitlines()]
    return {os.path.normpath(name) for name in found}, {os.path.normpath(name) for name in searched}, \
        {os.path.normpath(name) for name in used}


SHOWN = {"src/main.py", "dist/app.js", ".git/config", ".env"}


def test_crawlers_do_not_descend(tree, service, start_mount, run):
    everything = {str(path.relative_to(tree)) for path in tree.rglob("*") if path.is_file()}
    plain = start_mount(workspace="demo")
    pruned = start_mount(workspace="demo", options="prune=ide")
    # The control: without rules all of it is seen, and asked about.
    for seen in crawl(run, plain.path):
        assert everything <= seen
    for seen in crawl(run, pruned.path):
        assert seen & everything == SHOWN

    def known():
        for mount in (plain, pruned):
            run(["find", ".", "-size", "+1"], cwd=mount.path, check=True)
        return [mount.stats()["read_ahead"] for mount in (plain, pruned)]

    few = known()
    for i in range(PACKAGES, 4 * PACKAGES):
        (tree / f"node_modules/package{i}").mkdir()
    wait_until(lambda: (plain.path / f"node_modules/package{4 * PACKAGES - 1}").exists())
    many = known()
    # Each is read, and none of them where they are not listed.
    assert many[0] - few[0] == 3 * PACKAGES, (few, many)
    assert many[1] == few[1], (few, many)
    stats = pruned.stats()
    assert stats["unlisted"] > 0 and stats["hidden"] == 0
    assert plain.stats()["unlisted"] == 0


def index(directory):
    """An indexer of an editor: watches every directory, lists it, and looks at every file."""
    libc = ctypes.CDLL(None, use_errno=True)
    watches = libc.inotify_init1(os.O_CLOEXEC)
    try:
        for place, _, files in os.walk(directory):
            assert libc.inotify_add_watch(watches, os.fsencode(place), 0x3c6) >= 0
            for name in files:
                path = os.path.join(place, name)
                if os.lstat(path).st_size < 1 << 20:
                    with open(path, "rb") as file:
                        file.read()
    finally:
        os.close(watches)


CRAWLERS = {
    "find": ["find", ".", "-type", "f", "-size", "+1"],
    "rg": ["rg", "--no-ignore", "--hidden", "-l", "needle"],
    "du": ["du", "-a", "."],
    "tar": ["tar", "-cf", "/dev/null", "--exclude-caches", "."],
    "rsync": ["rsync", "-an", "./", "/nonexistent"],
    "git": ["git", "-c", "init.templateDir=", "ls-files", "--others"],
    "indexer": index,
}


@pytest.mark.matrix
@pytest.mark.parametrize("name", CRAWLERS)
def test_each_crawler_costs_the_same_whatever_is_unlisted(name, tree, start_mount, run):
    """Counted in the messages of each mount, before and after the trees below node_modules and
    __pycache__ have grown: more where they are listed, none more where they are not."""
    (tree / ".git/objects").mkdir()
    (tree / ".git/refs").mkdir()
    (tree / ".git/HEAD").write_text("ref: refs/heads/main\n")
    (tree / ".git/config").write_text("[core]\nrepositoryformatversion = 0\n")
    plain = start_mount(workspace="demo", options="cache=no")
    pruned = start_mount(workspace="demo", options="prune=ide,cache=no")

    def crawl(mount):
        work = CRAWLERS[name]
        if callable(work):
            work(mount.path)
        else:
            run(work, cwd=mount.path, check=True)

    def costs():
        # FORGET and RELEASE come when the kernel likes.
        def asked(mount):
            return sum(count for what, count in mount.stats()["requests"].items() if what not in ("FORGET", "RELEASE"))
        found = []
        for mount in plain, pruned:
            before = asked(mount)
            crawl(mount)
            found.append(asked(mount) - before)
        return found
    costs()  # git's first look may write
    few = costs()
    for i in range(PACKAGES, 3 * PACKAGES):
        for place in tree / f"node_modules/package{i}", tree / f"src/__pycache__/package{i}":
            place.mkdir()
            (place / "index.js").write_text("needle\n")
    many = costs()
    assert many[0] - few[0] >= 2 * PACKAGES, (few, many)
    assert many[1] - few[1] <= 6, (few, many)


def test_the_service_is_not_asked_about_what_lies_below(tree, service, start_mount, run_berth, run):
    mount = start_mount(workspace="demo", options="prune=ide")

    def asked():
        messages = json.loads(run_berth("status", "--json").stdout)["service"]["messages"]
        return sum(messages.get(kind, 0) for kind in ("READDIR", "READTREE", "OPEN"))

    before = asked()
    run(["find", mount.path], check=True)
    # ".", src, .git and dist: an open and at most two pages each.
    assert asked() - before <= 4 * 3


def test_those_who_know_the_name_find_it(tree, start_mount, run):
    mount = start_mount(workspace="demo", options="prune=ide")
    modules = mount.path / "node_modules"
    assert "node_modules" not in names(mount.path)
    assert (modules / "package3/index.js").read_text() == "needle\n"
    assert names(modules) == {f"package{i}" for i in range(PACKAGES)}
    found = run(["rg", "--no-ignore", "-l", "needle", "node_modules"], cwd=mount.path, check=True).stdout
    assert len(found.split()) == PACKAGES
    # It may be made and removed as a whole, by name.
    run(["rm", "-r", modules], check=True)
    assert not (tree / "node_modules").exists()
    modules.mkdir()
    (modules / "new").write_text("x")
    assert (tree / "node_modules/new").read_text() == "x"
    assert "node_modules" not in names(mount.path)


def refused(number, call, *arguments):
    with pytest.raises(OSError) as caught:
        call(*arguments)
    assert caught.value.errno == number, caught.value


def test_hidden_does_not_exist(tree, service, start_mount, run_berth, tmp_path):
    rules = tmp_path / "rules"
    rules.write_text("hidden:.env\nhidden:/src/*.py\nhidden:private/\n")
    (tree / "private").mkdir()
    (tree / "private/x").write_text("x")
    mount = start_mount(workspace="demo", options=f"prune={rules}")
    for path in (mount.path / ".env", mount.path / "src/main.py", mount.path / "private",
                 mount.path / "private/x", mount.path / ".berth"):
        refused(errno.ENOENT, os.stat, path)
        refused(errno.ENOENT, open, path)
        refused(errno.ENOENT, os.unlink, path)
        refused(errno.ENOENT, os.listdir, path)
        refused(errno.ENOENT, os.getxattr, path, "user.x")
        refused(errno.ENOENT, os.rename, path, mount.path / "found")
        refused(errno.ENOENT, os.link, path, mount.path / "found")
    refused(errno.EPERM, open, mount.path / ".env", "w")
    refused(errno.EPERM, open, mount.path / "src/new.py", "x")
    refused(errno.EPERM, os.mkdir, mount.path / "private")
    refused(errno.EPERM, os.mkdir, mount.path / ".berth")
    refused(errno.EPERM, os.symlink, "/", mount.path / ".env")
    refused(errno.EPERM, os.link, mount.path / "dist/app.js", mount.path / "src/app.py")
    refused(errno.EPERM, os.rename, mount.path / "dist/app.js", mount.path / ".env")
    assert (tree / ".env").read_text() == "needle\n"
    assert names(mount.path / "src") == {"__pycache__"}
    # A link is not a way around.
    os.symlink("../.env", mount.path / "dist/link")
    refused(errno.ENOENT, open, mount.path / "dist/link")
    # Commands see the real tree, and may work in what is hidden.
    result = run_berth("exec", "-w", "demo", "--", "cat", ".env", "src/main.py", "private/x")
    assert result.returncode == 0 and result.stdout == "needle\nneedle\nx"
    assert run_berth("exec", "-w", "demo", "-C", "private", "--", "ls").stdout == "x\n"
    # Other connections have other rules.
    assert (start_mount(workspace="demo").path / ".env").read_text() == "needle\n"


def test_hidden_for_every_connection(tree, service, run_berth):
    """It is the service that hides: a client that never heard of rules gets no further."""
    run_berth("visibility", "demo", "--add", "hidden:.env", "--add", "hidden:/src/", "--add", "dist/", check=True)
    with Connection.unix(service.socket) as wire:
        wire.upgrade()
        wire.hello()
        root = wire.call("WORKSPACE_OPEN", key=b"demo")["node"]
        shown = wire.call("LOOKUP", parent=root, name=b".git")["node"]
        dist = wire.call("LOOKUP", parent=root, name=b"dist")["node"]
        app = wire.call("LOOKUP", parent=dist, name=b"app.js")["node"]

        def fails(number, name, /, **values):
            with pytest.raises(CallError) as caught:
                wire.call(name, **values)
            assert caught.value.errno == number, (name, values, caught.value)
        for name in (b".env", b"src", b".berth"):
            fails(errno.ENOENT, "LOOKUP", parent=root, name=name)
            fails(errno.ENOENT, "UNLINK", parent=root, name=name)
            fails(errno.ENOENT, "RMDIR", parent=root, name=name)
            fails(errno.ENOENT, "RENAME", parent=root, new_parent=shown, name=name, new_name=b"out")
        fails(errno.EPERM, "CREATE", parent=root, name=b".env", flags=3, mode=0o600)
        fails(errno.EPERM, "MKDIR", parent=root, name=b"src", mode=0o700)
        fails(errno.EPERM, "SYMLINK", parent=root, name=b".env", target=b"x")
        fails(errno.EPERM, "MKNOD", parent=root, name=b".env", mode=0o100600)
        fails(errno.EPERM, "LINK", node=app, parent=root, name=b".env")
        fails(errno.EPERM, "RENAME", parent=dist, new_parent=root, name=b"app.js", new_name=b".env")
        handle = wire.call("OPEN", node=root, flags=1 | 32)["handle"]
        page = wire.call("READDIR", handle=handle, cookie=0, size=65536, plus=0)
        listed = {entry["name"] for entry in decode_list("DIRENT", page["entries"])}
        assert listed == {b".git", b"node_modules"}
    for name in (".env", "src", "dist"):
        assert (tree / name).exists()


def test_nothing_unseen_is_deleted(tree, start_mount, run):
    mount = start_mount(workspace="demo", options="prune=ide")
    assert names(mount.path / "src") == {"main.py"}
    result = run(["rm", "-r", mount.path / "src"])
    assert result.returncode != 0 and "not empty" in result.stderr
    assert (tree / "src/__pycache__/main.pyc").exists()
    assert names(mount.path / "src") == set()
    refused(errno.ENOTEMPTY, os.rmdir, mount.path / "src")
    (mount.path / "empty").mkdir()
    refused(errno.ENOTEMPTY, os.rename, mount.path / "empty", mount.path / "src")
    run(["rm", "-r", mount.path / "src/__pycache__"], check=True)
    os.rmdir(mount.path / "src")


def test_a_workspace_s_rules_change_live(tree, service, start_mount, run_berth):
    mounts = [start_mount(workspace="demo"), start_mount()]
    roots = [mounts[0].path, mounts[1].path / "demo"]
    opened = [open(root / ".env") for root in roots]
    listing = run_berth("visibility", "demo", "--profile", "ide", "--add", "hidden:.env", check=True)
    assert listing.stdout == "profile:ide\nhidden:.env\n"
    for root, file in zip(roots, opened):
        assert names(root) == {"src", ".git", "dist"}
        refused(errno.ENOENT, os.stat, root / ".env")
        # As one that was unlinked.
        assert file.read() == "needle\n"
        file.close()
    assert run_berth("visibility", "demo").stdout == listing.stdout
    service.restart()
    for root in roots:
        wait_until(lambda root=root: not os.path.exists(root / ".env") and names(root) == {"src", ".git", "dist"})
    assert run_berth("visibility", "demo", "--clear", check=True).stdout == ""
    for root in roots:
        assert names(root) == {"src", ".git", "dist", ".env", "node_modules"}
        assert (root / ".env").read_text() == "needle\n"
    result = run_berth("visibility", "demo", "--add", "hidden:!x")
    assert result.returncode == 1 and "line 1: '!'" in result.stderr
    result = run_berth("visibility", "demo", "--profile", "ied")
    assert result.returncode == 2 and "no profile" in result.stderr
    assert run_berth("visibility", "nothing").returncode == 1
    assert run_berth("visibility").returncode == 2


def test_a_mount_s_rules_change_live(tree, service, start_mount, run_berth):
    mount = start_mount(workspace="demo", options="prune=ide")
    assert run_berth("visibility", "--mount", mount.path).stdout == "profile:ide\n"
    changed = run_berth("visibility", "--mount", mount.path / "src", "--add", "!node_modules/", "-a", "hidden:.env",
                        check=True)
    assert changed.stdout == "profile:ide\n!node_modules/\nhidden:.env\n"
    assert names(mount.path) == {"src", ".git", "dist", "node_modules"}
    assert names(mount.path / "src") == {"main.py"}
    # They are the mount's, also for its next connection.
    service.restart()
    wait_until(lambda: mount.stats()["connected"], what="the connection")
    assert names(mount.path) == {"src", ".git", "dist", "node_modules"}
    refused(errno.ENOENT, os.stat, mount.path / ".env")
    assert run_berth("visibility", "--mount", mount.path, "--add", "hidden:").returncode == 1
    assert run_berth("visibility", "--mount", mount.path, "--clear", check=True).stdout == ""
    assert names(mount.path) == {"src", ".git", "dist", "node_modules", ".env"}
    assert mount.stats()["connected"]


def test_rules_set_while_the_service_is_away(tree, service, start_mount, run_berth):
    mount = start_mount(workspace="demo", options="prune=ide")
    service.stop()
    wait_until(lambda: not mount.stats()["connected"], what="the loss")
    with ThreadPoolExecutor(1) as pool:
        change = pool.submit(os.setxattr, mount.path, "user.berth.visibility", b"hidden:.env\n")
        service.restart()
        change.result(30)
    assert os.getxattr(mount.path, "user.berth.visibility") == b"hidden:.env\n"
    assert names(mount.path) == {"src", ".git", "dist", "node_modules"}


def test_another_user_does_not_change_a_mount_s_rules(tree, start_mount):
    mount = start_mount(workspace="demo", options=["allow_other", "prune=ide"])
    os.chmod(mount.path, 0o777)
    script = f"import os; os.setxattr({str(mount.path)!r}, 'user.berth.visibility', b'')"
    result = subprocess.run(["/usr/bin/python3", "-c", script], user=65534, group=65534, extra_groups=[],
                            capture_output=True, text=True, timeout=30, check=False)
    assert "PermissionError" in result.stderr and "ermission" in result.stderr
    assert os.getxattr(mount.path, "user.berth.visibility") == b"profile:ide\n"


def test_precedence_from_configuration_to_mount(harness, tmp_path):
    config = tmp_path / "berth.json"
    config.write_text(json.dumps({"service": {"visibility": ["# all workspaces", "*.log", "hidden:*.key", "hidden:c"]}}))
    service = harness.start_service(args=("--config", config))
    harness.run_berth("create", "demo", check=True)
    root = service.root / "workspaces" / "demo" / "tree"
    for name in ("a.log", "b.log", "k.key", "public.key", "c", "d"):
        (root / name).write_text(name)
    harness.run_berth("visibility", "demo", "--add", "!public.key", "--add", "!b.log", check=True)
    shown = harness.run_berth("visibility", "demo").stdout
    assert shown.startswith("# of the service: # all workspaces\n# of the service: *.log\n")
    rules = tmp_path / "rules"
    rules.write_text("hidden:b.log\n!c\n")
    mount = harness.start_mount(service, workspace="demo", options=f"prune={rules}")
    assert names(mount.path) == {"public.key", "c", "d"}
    assert (mount.path / "a.log").read_text() == "a.log"
    refused(errno.ENOENT, os.stat, mount.path / "b.log")
    status = json.loads(harness.run_berth("status", "--json").stdout)
    assert status["service"]["visibility"]["rules"] == 3
    (workspace,) = status["service"]["visibility"]["workspaces"]
    assert workspace == {"name": "demo", "rules": 2, "unlisted": 1, "hidden": 2}
    (ours,) = [m for m in status["mounts"] if m["mountpoint"] == str(mount.path)]
    assert ours["visibility"]["rules"] == 2
    assert ours["stats"]["unlisted"] == 1 and ours["stats"]["hidden"] == 2
    text = harness.run_berth("status").stdout
    assert "workspace demo: 2 rules of visibility; left out of listings: 1 unlisted, 2 hidden" in text


def test_slips_in_rules_are_warned_of(harness, service, run_berth, fuse_works):
    """Wherever rules are given; they hold as they stand."""
    run_berth("create", "w", check=True)
    result = run_berth("visibility", "w", "-a", "hiden:.env", "-a", "hidden:[abc", "-a", r"\a:b", check=True)
    assert result.stdout == "hiden:.env\nhidden:[abc\n\\a:b\n"
    warnings = result.stderr.splitlines()
    assert len(warnings) == 2 and all("berth: visibility: warning: " in line for line in warnings)
    assert '"hiden:" is none of' in warnings[0] and "matches nothing" in warnings[1]
    rules = harness.new_path("rules")
    rules.write_text("a\nhiden:.env\n")
    words = f'rules of visibility {rules}, line 2: "hiden:" is none of'
    assert words in run_berth("visibility", "w", "-f", rules, check=True).stderr
    mount = harness.start_mount(service, options=f"prune={rules}")
    assert f"warning: {words}" in mount.log
    configuration = harness.new_path("berth.json")
    configuration.write_text(json.dumps({"service": {"visibility": ["a", "hiden:.env"]}}))
    other = harness.start_service(args=["--config", configuration])
    assert f'warning: {configuration}: service.visibility, rule 2: "hiden:" is none of' in other.log


@pytest.mark.parametrize("visibility, reason", [
    ("*.log", "must be an array of rules"),
    (["a\nb"], "must be an array of rules"),
    ([1], "must be an array of rules"),
    (["a", "profile:nope"], "line 2: there is no profile"),
])
def test_bad_rules_of_the_service(harness, tmp_path, visibility, reason):
    config = tmp_path / "berth.json"
    config.write_text(json.dumps({"service": {"visibility": visibility}}))
    result = harness.run([harness.program("berthd"), "--config", config, "--root", tmp_path / "root"])
    assert result.returncode == 1 and reason in result.stderr


def test_prune_of_the_service_and_bad_rules_of_a_mount(harness, tmp_path):
    rules = tmp_path / "rules"
    rules.write_text("hidden:secret\n")
    service = harness.start_service(args=("--prune", rules))
    harness.run_berth("create", "demo", check=True)
    (service.root / "workspaces/demo/tree/secret").write_text("x")
    mount = harness.start_mount(service, workspace="demo")
    assert names(mount.path) == set()
    point = harness.new_path("mnt")
    point.mkdir()
    rules.write_text("a\nshow:\n")
    for option, reason in ((f"prune={rules}", 'line 2: "show:" needs a pattern'),
                           ("prune=nope", 'no profile "nope"'),
                           (f"prune={tmp_path}/none", "No such file")):
        result = harness.run([harness.program("berthfs"), service.url, point, "-o", option])
        assert result.returncode == 1 and reason in result.stderr, result.stderr

"""Symbolic links of a workspace as the mount shows them: the tools of whoever mounts follow those that
stay inside, and none that an agent has pointed elsewhere."""

import errno
import json
import os
import stat
import threading

import pytest

from lib.harness import wait_until

RAW = "system.berth.symlink"


@pytest.fixture
def tree(service, run_berth):
    """The tree of workspace "demo" at the service, filled."""
    run_berth("create", "demo", check=True)
    root = service.root / "workspaces" / "demo" / "tree"
    (root / "a/b/c").mkdir(parents=True)
    (root / "file").write_text("inside")
    (root / "a/file").write_text("inside a")
    return root


@pytest.fixture(params=["all", "one"])
def start(request, tree, start_mount):
    """Mounts with options, and gives the workspace's directory: of a mount of all, and as the mount."""
    def start(*options):
        mount = start_mount(options=options, workspace="demo" if request.param == "one" else None)
        return mount, mount.path if request.param == "one" else mount.path / "demo"
    return start


def fails_with(number, call, *arguments, **keywords):
    with pytest.raises(OSError) as caught:
        call(*arguments, **keywords)
    assert caught.value.errno == number


def refused(path, text):
    """Neither read nor followed; and the text is still there, for who wants to know."""
    fails_with(errno.EACCES, os.readlink, path)
    fails_with(errno.EACCES, os.stat, path)
    fails_with(errno.EACCES, open, path)
    assert stat.S_ISLNK(os.lstat(path).st_mode)
    assert os.getxattr(path, RAW, follow_symlinks=False) == os.fsencode(text)


INSIDE = [("l0", "file"), ("l1", "a/file"), ("a/l2", "../file"), ("a/b/l3", "../../file"), ("a/b/c/l4", "../../../file"),
          ("a/b/l5", "./..//file"), ("a/l6", "file"), ("a/l7", ".."), ("dangling", "a/nowhere"),
          ("a/b/c/up", "../../..")]
SYSTEM = [("s0", "/usr/bin/env"), ("a/s1", "/bin/sh"), ("s2", "/lib"), ("s3", "/etc/alternatives")]
OUTSIDE = [("o0", ".."), ("a/o1", "../.."), ("a/b/o2", "../../../etc/shadow"), ("o3", "/etc/shadow"), ("o4", "/home"),
           ("o5", "/proc/self/root/etc/shadow"), ("o6", "/dev/fd/0"), ("o7", "/usr/../etc/shadow"), ("o8", "/"),
           ("a/o9", "b/../../file"), ("o10", "/usrx"), ("a/o11", "b/.."), ("o12", "/etc/alternativesx"),
           ("a/b/c/o13", "../" * 1365), ("o14", "/workspace/file"), ("o15", "x/../" * 818 + "/etc")]


def plant(tree, links):
    for name, text in links:
        os.symlink(text, tree / name)


def shown_exactly(root, links):
    for name, text in links:
        assert os.readlink(root / name) == text
        if "nowhere" not in text:
            os.stat(root / name)


def test_contain(tree, start):
    plant(tree, INSIDE + SYSTEM + OUTSIDE)
    mount, root = start()
    shown_exactly(root, INSIDE + SYSTEM)
    for name, text in OUTSIDE:
        refused(root / name, text)
    assert mount.stats()["links_refused"] == 3 * len(OUTSIDE)


def test_refuse(tree, start):
    plant(tree, INSIDE + SYSTEM + OUTSIDE)
    _, root = start("symlinks=refuse")
    shown_exactly(root, INSIDE)
    for name, text in SYSTEM + OUTSIDE:
        refused(root / name, text)


def test_verbatim(tree, start):
    plant(tree, INSIDE + SYSTEM + OUTSIDE)
    mount, root = start("symlinks=verbatim")
    for name, text in INSIDE + SYSTEM + OUTSIDE:
        assert os.readlink(root / name) == text
        assert os.getxattr(root / name, RAW, follow_symlinks=False) == os.fsencode(text)
    assert os.path.samefile(root / "o8", "/")
    assert mount.stats()["links_refused"] == 0


def test_translate(tree, start):
    plant(tree, INSIDE + SYSTEM + OUTSIDE)
    os.symlink("/workspace", tree / "a/w")
    os.symlink("/workspace/a/../../x", tree / "a/w2")
    mount, root = start("symlinks=contain+translate")
    shown_exactly(root, INSIDE + SYSTEM)
    for name, text in OUTSIDE:
        if name != "o14":
            refused(root / name, text)
    refused(root / "a/w2", "/workspace/a/../../x")
    assert os.readlink(root / "o14") == str(root / "file")
    assert (root / "o14").read_text() == "inside"
    assert os.readlink(root / "a/w") == str(root)
    assert os.getxattr(root / "o14", RAW, follow_symlinks=False) == b"/workspace/file"


def test_system_prefixes(tree, start_mount, tmp_path):
    plant(tree, [("usr", "/usr/bin/env"), ("tmp", str(tmp_path)), ("other", str(tmp_path) + "x")])
    root = start_mount(options=[f"system_prefixes={tmp_path}"]).path / "demo"
    refused(root / "usr", "/usr/bin/env")
    assert os.readlink(root / "tmp") == str(tmp_path)
    refused(root / "other", str(tmp_path) + "x")


def test_no_link_leads_to_another_workspace(tree, start_mount, run_berth, tmp_path):
    """Not by its depth in the mount, not by the mount's own path below a system prefix."""
    run_berth("create", "other", check=True)
    mountpoint = tmp_path / "system/mnt"
    mountpoint.mkdir(parents=True)
    plant(tree, [("a/up", "../../other"), ("abs", str(mountpoint / "other")), ("own", str(mountpoint / "demo/file"))])
    root = start_mount(path=mountpoint, options=[f"system_prefixes={tmp_path / 'system'}"]).path / "demo"
    for name in "a/up", "abs", "own":
        refused(root / name, os.readlink(tree / name))


def test_what_is_made_here_is_stored_as_given(tree, start):
    _, root = start()
    for name, text in INSIDE + SYSTEM + OUTSIDE:
        os.symlink(text, root / name)
        assert os.readlink(tree / name) == text
    shown_exactly(root, INSIDE + SYSTEM)
    for name, text in OUTSIDE:
        refused(root / name, text)


def test_chains_and_loops(tree, start):
    """Each link is judged by itself; loops are the kernel's to notice."""
    plant(tree, [("c0", "c1"), ("c1", "a/c2"), ("a/c2", "b/c3"), ("a/b/c3", "../../file"),
                 ("d0", "a/d1"), ("a/d1", "../../out"), ("loop", "loop"), ("x", "y"), ("y", "x"),
                 ("dir", "a/b"), ("through", "dir/../file")])
    _, root = start()
    assert (root / "c0").read_text() == "inside"
    fails_with(errno.EACCES, open, root / "d0")
    fails_with(errno.ELOOP, open, root / "loop")
    fails_with(errno.ELOOP, open, root / "x")
    assert (root / "dir/c3").read_text() == "inside"
    # Typed by the user, the kernel walks it; in a link it is refused, for "dir" could be changed.
    assert (root / "dir/../file").read_text() == "inside a"
    refused(root / "through", "dir/../file")


def test_text_of_the_greatest_length(tree, start):
    plant(tree, [("long", "a/" * 2047 + "f"), ("name", "x" * 4095)])
    _, root = start()
    assert os.readlink(root / "long") == "a/" * 2047 + "f"
    assert os.readlink(root / "name") == "x" * 4095
    assert len(os.getxattr(root / "long", RAW, follow_symlinks=False)) == 4095


def test_the_raw_text_is_an_attribute_of_the_link(tree, start):
    plant(tree, [("out", "/etc/shadow")])
    _, root = start()
    assert os.listxattr(root / "out", follow_symlinks=False) == []
    fails_with(errno.ENODATA, os.getxattr, root / "file", RAW)
    fails_with(errno.ENODATA, os.getxattr, root / "a", RAW)
    fails_with(errno.EOPNOTSUPP, os.setxattr, root / "out", RAW, b"x", follow_symlinks=False)
    # The kernel does not ask for this one; if it does some day, this is where to show it too.
    fails_with(errno.ENODATA, os.getxattr, root / "out", "user.berth.symlink", follow_symlinks=False)


def test_status_counts(tree, start_mount, run_berth):
    plant(tree, [("out", "/etc/shadow")])
    mount, other = start_mount(), start_mount(options="symlinks=refuse")
    for _ in range(3):
        fails_with(errno.EACCES, os.readlink, mount.path / "demo/out")
    status = json.loads(run_berth("status", "--json", check=True).stdout)
    mounts = {m["mountpoint"]: m for m in status["mounts"]}
    for path, mode, refused in (mount.path, "contain", 3), (other.path, "refuse", 0):
        said = mounts[str(path)]
        assert (said["symlinks"], said["stats"]["links_refused"]) == (mode, refused)
    assert "symbolic links refused: 3 times" in run_berth("status").stdout


@pytest.mark.parametrize("option", ["symlinks=", "symlinks=yes", "system_prefixes=", "system_prefixes=usr",
                                    "system_prefixes=/usr/..", "system_prefixes=/"])
def test_bad_options_are_named(service, harness, tmp_path, option):
    (tmp_path / "mnt").mkdir()
    result = harness.run([harness.program("berthfs"), service.url, tmp_path / "mnt", "-o", option])
    assert result.returncode == 2 and option.split("=")[0] in result.stderr


def test_config_file_sets_the_default(tree, service, start_mount, tmp_path):
    plant(tree, [("out", "/etc/shadow"), ("usr", "/usr/bin/env"), ("tmp", "/tmp/x")])
    config = tmp_path / "berth.json"
    config.write_text(json.dumps({"client": {"symlinks": "verbatim"}}))
    assert os.readlink(start_mount(options=f"config={config}").path / "demo/out") == "/etc/shadow"
    root = start_mount(options=[f"config={config}", "symlinks=contain"]).path / "demo"
    refused(root / "out", "/etc/shadow")
    config.write_text(json.dumps({"client": {"system_prefixes": ["/tmp", "/opt"]}}))
    root = start_mount(options=f"config={config}").path / "demo"
    refused(root / "usr", "/usr/bin/env")
    assert os.readlink(root / "tmp") == "/tmp/x"


def test_git_keeps_links(tree, start, run):
    """Checkout, status and stash of a tree with links that stay inside, under the default."""
    _, root = start()
    env = {**os.environ, "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a",
           "GIT_COMMITTER_EMAIL": "a@b", "GIT_CONFIG_GLOBAL": "/dev/null"}

    def git(*words):
        return run(["git", *words], cwd=root, env=env, check=True).stdout

    git("init", "-q")
    plant(root, INSIDE + SYSTEM)
    git("add", "-A")
    git("commit", "-qm", "links")
    assert git("status", "--porcelain") == ""
    for name, _ in INSIDE + SYSTEM:
        (root / name).unlink()
    git("checkout", "-q", ".")
    shown_exactly(root, INSIDE + SYSTEM)
    assert git("status", "--porcelain") == ""
    git("fsck", "--strict")


def test_hard_links_of_a_link_are_judged_each_where_it_is(tree, start):
    """One file, one inode number, two directories: the kernel's request says from which it follows."""
    plant(tree, [("a/b/c/deep", "../../../file")])
    os.link(tree / "a/b/c/deep", tree / "a/flat", follow_symlinks=False)
    _, root = start()
    for _ in range(2):
        assert (root / "a/b/c/deep").read_text() == "inside"
        refused(root / "a/flat", "../../../file")
    assert os.lstat(root / "a/flat").st_ino == os.lstat(root / "a/b/c/deep").st_ino
    # Made here, found from where it was.
    os.link(root / "a/b/c/deep", root / "made", follow_symlinks=False)
    assert os.lstat(root / "made").st_nlink == os.lstat(root / "a/b/c/deep").st_nlink == 3
    refused(root / "made", "../../../file")
    os.unlink(root / "a/b/c/deep")
    os.link(root / "made", root / "a/b/c/deep", follow_symlinks=False)
    assert (root / "a/b/c/deep").read_text() == "inside"


def test_renames_here_are_judged_at_the_new_place(tree, start):
    plant(tree, [("a/b/c/link", "../../../file"), ("a/lone", "../file")])
    _, root = start()
    assert os.readlink(root / "a/b/c/link") == "../../../file"
    inside = os.open(root / "a/b/c", os.O_PATH)
    os.rename(root / "a/b/c", root / "c")
    refused(root / "c/link", "../../../file")
    fails_with(errno.EACCES, os.readlink, "link", dir_fd=inside)
    os.rename(root / "c", root / "a/b/c")
    assert (root / "a/b/c/link").read_text() == "inside"
    assert os.readlink("link", dir_fd=inside) == "../../../file"
    os.close(inside)
    # A link itself, up and down.
    assert os.readlink(root / "a/lone") == "../file"
    os.rename(root / "a/lone", root / "lone")
    refused(root / "lone", "../file")
    os.rename(root / "lone", root / "a/b/lone")
    assert (root / "a/b/lone").read_text() == "inside a"
    # Two places at once.
    (root / "x").mkdir()
    os.symlink("../file", root / "x/up")
    os.rename(root / "x", root / "a/x")
    assert (root / "a/x/up").read_text() == "inside a"


def test_a_link_renamed_here_is_judged_anew_at_once(tree, start):
    """Its old place is not good for another moment, whatever the kernel still holds of it."""
    plant(tree, [("a/b/lone", "../file")])
    mount, root = start("cache=yes")
    for _ in range(300):
        assert os.readlink(root / "a/b/lone") == "../file"
        os.rename(root / "a/b/lone", root / "lone")
        fails_with(errno.EACCES, os.readlink, root / "lone")
        os.rename(root / "lone", root / "a/b/lone")
    held = os.open(root / "a/b/lone", os.O_PATH | os.O_NOFOLLOW)
    os.rename(root / "a/b/lone", root / "lone")
    fails_with(errno.ESTALE, os.readlink, "", dir_fd=held)
    # Nor when all that is known has been forgotten.
    os.setxattr(mount.path, "user.berth.visibility", b"hidden:no-such-name\n")
    fails_with(errno.ESTALE, os.readlink, "", dir_fd=held)
    os.close(held)


def test_a_reader_who_does_nothing_more_is_not_waited_for_long(tree, start):
    plant(tree, [("a/b/c/link", "../../../file")])
    _, root = start()
    read, leave = threading.Event(), threading.Event()
    text = []

    def reader():
        text.append(os.readlink(root / "a/b/c/link"))
        read.set()
        leave.wait(60)

    thread = threading.Thread(target=reader)
    thread.start()
    try:
        assert read.wait(30)
        os.rename(root / "a/b/c", root / "c")
    finally:
        leave.set()
        thread.join()
    assert text == ["../../../file"]
    refused(root / "c/link", "../../../file")


def test_moves_by_others_are_judged_at_the_new_place(tree, start):
    """And who is in the directory stays in it."""
    plant(tree, [("a/b/c/link", "../../../file")])
    (tree / "a/b/c/own").write_text("own")
    _, root = start()
    assert (root / "a/b/c/link").read_text() == "inside"
    number, inside = os.stat(root / "a/b/c").st_ino, os.open(root / "a/b/c", os.O_RDONLY)
    os.rename(tree / "a/b/c", tree / "c")
    wait_until(lambda: not os.path.exists(root / "a/b/c"))
    refused(root / "c/link", "../../../file")
    assert os.stat(root / "c").st_ino == os.fstat(inside).st_ino == number
    fd = os.open("own", os.O_RDONLY, dir_fd=inside)
    assert os.read(fd, 10) == b"own"
    os.close(fd)
    assert sorted(os.listdir(inside)) == ["link", "own"]
    # The kernel still has this one where it was, and climbs from there: it is shown, and leads inside.
    assert os.readlink("link", dir_fd=inside) == "../../../file"
    fd = os.open("link", os.O_RDONLY, dir_fd=inside)
    assert os.read(fd, 10) == b"inside"
    os.close(fd)
    fails_with(errno.ENOENT, os.stat, root / "a/b/c")
    os.close(inside)
    os.rename(tree / "c", tree / "a/b/c")
    wait_until(lambda: os.path.exists(root / "a/b/c"))
    assert (root / "a/b/c/link").read_text() == "inside"


def test_a_directory_moved_by_others_has_no_path_once_that_is_known(tree, start, run):
    _, root = start()
    script = "import os, sys; os.chdir(sys.argv[1]); os.rename(sys.argv[2], sys.argv[3]);" \
             "\nwhile os.path.exists(sys.argv[1]): pass\n" \
             "open('made', 'w').close(); print(os.listdir('.'));" \
             "\ntry: os.getcwd()\nexcept FileNotFoundError: print('gone')"
    result = run(["/usr/bin/python3", "-c", script, root / "a/b", tree / "a/b", tree / "moved"], check=True)
    assert result.stdout.splitlines() == ["['c', 'made']", "gone"] or \
        result.stdout.splitlines() == ["['made', 'c']", "gone"]
    assert sorted(os.listdir(root / "moved")) == ["c", "made"]

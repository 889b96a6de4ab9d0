"""Commands from inside a mount see their workspace at its path there, so that what compilers, tracebacks and
build systems print and write down opens on the machine of whoever called. Paths that cannot be are the service's,
and it is said why."""

import errno
import json
import os
import subprocess
from pathlib import Path

import pytest

from lib.exec_client import WORKSPACE, ExecClient
from lib.processes import name_of, state_of

pytestmark = pytest.mark.sandbox

PATH, PATH_ONLY = 64, 128  # flags of EXEC


@pytest.fixture
def tree(harness, service, run_berth):
    run_berth("create", WORKSPACE, check=True)
    return service.root / "workspaces" / WORKSPACE / "tree"


@pytest.fixture
def here(harness, tree):
    """here(directory, "pwd", …, options=["--path=local"]): berth exec from there, which nothing but the mount tells
    where the service is."""
    env = {name: value for name, value in harness.env.items() if not name.startswith("BERTH_U")}

    def run(directory, *argv, options=(), **keywords):
        return harness.run([harness.program("berth"), "exec", *options, "--", *argv], cwd=directory, env=env,
                           **keywords)
    return run


@pytest.fixture
def client(service, tree):
    with ExecClient(service.socket) as connected:
        yield connected


WHERE = """
import json, os, sys
print(json.dumps([os.getcwd(), os.environ.get("PWD"), os.path.realpath("."), os.path.realpath(sys.argv[1]),
                  os.environ["HOME"]]))
"""


def where(here, directory, **keywords):
    result = here(directory, "/usr/bin/python3", "-c", WHERE, "file", check=True, **keywords)
    return json.loads(result.stdout)


def as_json(here, directory, *argv, **keywords):
    result = here(directory, *argv, **{**keywords, "options": [*keywords.get("options", ()), "--json"]})
    return json.loads(result.stdout)


# --- where it is ---------------------------------------------------------------------------

@pytest.mark.parametrize("kind", ["all", "one", "a b", "\u00fc'$"])
def test_the_workspace_is_where_it_is_mounted(harness, here, start_mount, service, kind):
    """In a mount of all workspaces, of one, below a directory with blanks and the like."""
    above = harness.new_path("m" if kind in ("all", "one") else kind)
    above.mkdir()
    mounted = start_mount(path=above / "mount", **({"workspace": WORKSPACE} if kind == "one" else {}))
    top = mounted.path if kind == "one" else mounted.path / WORKSPACE
    (top / "src").mkdir()
    (top / "src" / "file").write_text("here\n")
    seen = where(here, top / "src")
    assert seen[:4] == [f"{top}/src"] * 3 + [f"{top}/src/file"]
    assert seen[4] == os.path.expanduser("~")
    assert here(top, "cat", top / "src" / "file", "/workspace/src/file", check=True).stdout == "here\n" * 2
    told = as_json(here, top / "src", "true", options=["--path=local"])
    assert (told["exit_status"], told["path"], told["path_text"]) == (0, str(top), None)


def test_home_of_the_service(harness, here, start_mount, tree, service):
    """The commands' home is at the same path as the caller's: a mount below it is there too."""
    home = Path.home() / f"berth-test-{os.getpid()}"
    home.mkdir()
    try:
        mounted = start_mount(path=home / "ws", workspace=WORKSPACE)
        seen = where(here, mounted.path)
        assert seen[0] == str(mounted.path) and seen[4] == str(home.parent)
        # What commands have in their home is there as ever.
        here(mounted.path, "sh", "-c", "echo kept > ~/kept", check=True)
        assert here(mounted.path, "cat", home.parent / "kept", options=["--path=remote"], check=True).stdout == "kept\n"
        mounted.unmount()
    finally:
        for directory in (home / "ws", home):
            if directory.exists():
                directory.rmdir()
    assert not home.exists()


def test_a_mountpoint_by_a_symbolic_link(harness, here, start_mount):
    mounted = start_mount(workspace=WORKSPACE)
    link = harness.new_path("link")
    link.symlink_to(mounted.path)
    assert where(here, link)[0] == str(mounted.path)
    told = as_json(here, "/", "pwd", options=["-C", link])
    assert (told["stdout"], told["path"]) == (f"{mounted.path}\n", str(mounted.path))


def test_how_it_is_turned_off_and_asked_for(here, mount, tree, harness):
    top = mount.path / WORKSPACE
    remote = as_json(here, top, "pwd", options=["--path=remote"])
    assert (remote["stdout"], remote["path"], remote["path_text"]) == (f"{tree}\n", str(tree), None)
    assert as_json(here, top, "pwd", options=["--path=local"])["stdout"] == f"{top}\n"
    assert as_json(here, top, "pwd", options=["-w", WORKSPACE])["stdout"] == f"{top}\n"
    result = here(top, "pwd", options=["--path=elsewhere"])
    assert (result.returncode, "--path: auto, local or remote" in result.stderr) == (125, True), result
    result = here("/", "pwd", options=["-w", WORKSPACE, "--path=local"])
    assert (result.returncode, "--path=local: the workspace is not known" in result.stderr) == (125, True), result
    shell = harness.run(["berth", "shell", top], input="pwd\n", check=True)
    assert shell.stdout == f"{top}\n"


@pytest.mark.parametrize("without", ["mount-namespace", "pid-namespace"])
def test_a_level_without_its_own_root(harness, start_mount, run_berth, without):
    """It runs at the service's path, which is told, or not at all."""
    harness.env["BERTH_WITHOUT"] = without
    service = harness.start_service()
    run_berth("create", WORKSPACE, check=True)
    top = start_mount(workspace=WORKSPACE).path
    stored = service.root / "workspaces" / WORKSPACE / "tree"
    told = json.loads(harness.run(["berth", "exec", "--json", "--", "pwd"], cwd=top, check=True).stdout)
    assert (told["stdout"], told["path"]) == (f"{stored}\n", str(stored))
    assert told["path_text"] == "commands have no root of their own here: " + (
        "taken away" if without == "mount-namespace" else "the pid namespace is taken away")
    result = harness.run(["berth", "exec", "--path=local", "--", "touch", "ran"], cwd=top)
    assert (result.returncode, result.stderr) == (125, f"berth: not started: confine: {told['path_text']}\n")
    assert not (stored / "ran").exists()


# --- what tools write down -----------------------------------------------------------------

PROGRAM = '#include "part.h"\nint main(void)\n{\n    return part(1);\n}\n'
FAILS = "def inner():\n    raise ValueError('so it is')\n\n\ndef test_it():\n    inner()\n"


def opens(name, text):
    return Path(name).read_text(encoding="utf-8") == text


def debug_names(objects):
    """(directory of compilation, name) of each unit."""
    dump = subprocess.run(["objdump", "--dwarf=info", *objects], capture_output=True, text=True, check=True).stdout
    dump = dump.split("DW_TAG_compile_unit")[1:]
    return [tuple(next(line.rsplit("): ", 1)[-1].split(": ", 1)[-1].strip() for line in unit.splitlines()
                       if f"DW_AT_{key} " in line) for key in ("comp_dir", "name")) for unit in dump]


@pytest.fixture
def project(mount, tree):
    """A workspace on the mount with something to build and to fail."""
    top = mount.path / WORKSPACE
    (top / "src").mkdir()
    (top / "src" / "main.c").write_text(PROGRAM)
    (top / "src" / "part.h").write_text("static inline int part(int x) { return x - 1; }\n")
    (top / "src" / "test_fails.py").write_text(FAILS)
    return top


def test_debug_information_opens_here(here, project):
    here(project / "src", "gcc", "-g", "-c", "main.c", check=True)
    here(project, "sh", "-c", 'gcc -g -c "$PWD"/src/main.c -o other.o && gcc -g -o program other.o', check=True)
    units = debug_names([project / "src" / "main.o", project / "other.o", project / "program"])
    assert {directory for directory, _ in units} == {f"{project}/src", str(project)}, units
    assert len(units) == 3 and all(opens(os.path.join(*unit), PROGRAM) for unit in units), units
    wrong = here(project / "src", "gcc", "-c", f"{project}/src/none.c")
    assert f"{project}/src/none.c: No such file" in wrong.stderr


def test_tracebacks_open_here(here, project):
    said = here(project, "/usr/bin/python3", "-c", "import sys; sys.path[0] = 'src'; import test_fails as t; t.inner()")
    assert f'File "{project}/src/test_fails.py", line 2' in said.stderr, said.stderr
    said = here(project / "src", "/usr/bin/python3", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=native")
    assert (said.returncode, f'File "{project}/src/test_fails.py", line 6, in test_it' in said.stdout) == (1, True), said
    assert opens(f"{project}/src/test_fails.py", FAILS)


def test_compile_commands_work_here(here, project):
    (project / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.20)\nproject(P C)\nadd_executable(program src/main.c)\n")
    here(project, "cmake", "-S", ".", "-B", "build", "-G", "Ninja", "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON", check=True,
         timeout=60)
    command, = json.loads((project / "build" / "compile_commands.json").read_text())
    assert (command["directory"], command["file"]) == (f"{project}/build", f"{project}/src/main.c")
    assert opens(command["file"], PROGRAM)
    # As an editor would: from the directory that it says, here.
    subprocess.run(command["command"].replace(" -c ", " -fsyntax-only -c "), shell=True, check=True, timeout=60,
                   cwd=command["directory"])


def test_git_says_where_it_is(here, project):
    here(project, "git", "init", "-q", check=True)
    assert here(project / "src", "git", "rev-parse", "--show-toplevel", check=True).stdout == f"{project}\n"
    here(project, "git", "-c", "user.name=n", "-c", "user.email=e", "commit", "-q", "--allow-empty", "-m", "m", check=True)
    # A second tree names the first by its path, and works from here.
    here(project, "git", "worktree", "add", "-q", "second", check=True)
    assert (project / "second" / ".git").read_text() == f"gitdir: {project}/.git/worktrees/second\n"
    said = subprocess.run(["git", "-c", f"safe.directory={project}/second", "-C", project / "second", "status",
                           "--porcelain"], capture_output=True, text=True, check=True, timeout=60)
    assert said.stdout == ""


# --- paths that cannot be ------------------------------------------------------------------

NO_PATH = "is no path of a directory below the root"
SYSTEM = "is where programs look for the system's"
AS_WRITTEN = "is not as the kernel writes it"
SEEN = "is in what commands see already"
REFUSED = {
    "/": NO_PATH, "relative": NO_PATH, "/a\nb": "has control characters", "/a\x1b[2Jb": "has control characters",
    "/a/../etc": AS_WRITTEN, "/a//b": AS_WRITTEN, "/a/.": AS_WRITTEN, "/a/": AS_WRITTEN, "/" + "x" * 256: AS_WRITTEN,
    "/d" * 33: "is too deep", "/x" * 2000: "is too deep",
    **{f"/{name}{rest}": SYSTEM for rest in ("", "/below") for name in (
        "proc", "sys", "dev", "usr", "bin", "sbin", "lib", "lib64", "etc", "opt", "run")},
    "/proc/self/cwd": SYSTEM, "/workspace/below": SEEN, "/tmp": "is the workspace's own place",
    "{home}": "is the workspace's own place", "{tree}/below": SEEN,
    "{tree}/..": AS_WRITTEN, "{above}": "has something of the workspace's in it",
    "/var/tmp/x": "cannot be made there: ", "/.berth": "cannot be made there: ",
    "/.berth/x": "cannot be made there: ",
}


def test_paths_that_would_hide_something(client, tree):
    """Each is refused where it is asked for alone, and else told; nothing of them is anywhere."""
    there = {"home": os.path.expanduser("~"), "tree": str(tree), "above": str(tree.parent)}
    before = client.run(WORKSPACE, ["sh", "-c", "ls -A / /tmp ~; cat /proc/self/mountinfo | wc -l"]).output[1]
    for pattern, why in REFUSED.items():
        path = pattern.format(**there)
        refused = client.run(WORKSPACE, ["touch", "ran"], mount_path=path, flags=PATH | PATH_ONLY).verdict
        assert (refused.verdict, refused.stage) == ("not_started", "confine"), path
        assert refused.text.startswith(f"{path} {why}"[:700]), (path, refused.text)
        call = client.run(WORKSPACE, ["pwd"], mount_path=path, flags=PATH)
        assert (call.verdict.verdict, call.output[1]) == ("exited", f"{tree}\n".encode()), path
    assert not (tree / "ran").exists()
    after = client.run(WORKSPACE, ["sh", "-c", "ls -A / /tmp ~; cat /proc/self/mountinfo | wc -l"]).output[1]
    assert after == before


def test_a_path_with_a_nul(client):
    refused = client.run(WORKSPACE, ["true"], mount_path=b"/a\0b", flags=PATH | PATH_ONLY).verdict
    assert (refused.verdict, refused.stage, refused.error) == ("not_started", "confine", errno.EINVAL)


def test_a_newline_in_the_mountpoint(harness, here, start_mount, tree):
    mounted = start_mount(path=harness.new_path("new\nline"), workspace=WORKSPACE)
    told = as_json(here, mounted.path, "pwd")
    assert (told["stdout"], told["path"]) == (f"{tree}\n", str(tree))
    assert "has control characters" in told["path_text"]


def at(client, path, *argv, flags=PATH | PATH_ONLY):
    call = client.run(WORKSPACE, argv, mount_path=path, flags=flags)
    return call.verdict.text or call.output[1].decode() or call.output[2].decode()


def test_the_workspace_is_at_no_path_of_another(client, tree):
    """What is made for a path is gone with it, and never in the workspace or on the machine."""
    assert at(client, "/home/dev/berth/one", "pwd") == "/home/dev/berth/one\n"
    assert at(client, "/tmp/x/y", "pwd") == "/tmp/x/y\n"
    assert at(client, "/home/dev/berth/two", "sh", "-c", "ls -A /home/dev/berth/one /tmp/x/y; touch made") == (
        "/home/dev/berth/one:\n\n/tmp/x/y:\n")
    assert os.listdir(tree) == ["made"] and not os.path.exists("/home/dev/berth")
    # The first ones are given up for others.
    for i in range(9):
        assert at(client, f"/srv/{i}", "pwd") == f"/srv/{i}\n"
    assert at(client, "/srv/8", "sh", "-c", "ls -d /home/dev /tmp/x 2>&1; ls /srv | wc -l") == (
        "ls: cannot access '/home/dev': No such file or directory\n"
        "ls: cannot access '/tmp/x': No such file or directory\n8\n")


def test_paths_in_use_are_not_given_up(client, tree):
    calls = [client.start(WORKSPACE, ["sh", "-c", "echo; read x; pwd"], mount_path=f"/srv/{i}", flags=PATH | 1)
             for i in range(8)]
    for call in calls:
        while not call.output[1]:
            client.step()
    assert "commands run at 8 other paths" in at(client, "/srv/8", "pwd")
    assert at(client, "/srv/8", "pwd", flags=PATH) == f"{tree}\n"
    for i, call in enumerate(calls):
        client.input(call, 0, b"\n", end=True)
        client.wait(call)
        assert call.output[1] == f"\n/srv/{i}\n".encode()
    assert at(client, "/srv/8", "pwd") == "/srv/8\n"


def test_what_commands_do_to_the_way_there(client, tree):
    """They can move it where it is theirs; the next command finds it made anew."""
    assert at(client, "/tmp/x/y", "pwd") == "/tmp/x/y\n"
    assert at(client, "", "sh", "-c", "mv /tmp/x /tmp/z && ls -d /tmp/?", flags=0) == "/tmp/z\n"
    assert at(client, "/tmp/x/y", "sh", "-c", "pwd; ls /tmp/z/y") == "/tmp/x/y\n"
    assert at(client, "", "sh", "-c", "rm -r /tmp/? && ls -d /tmp/?; echo end", flags=0) == "end\n"
    assert at(client, "/tmp/x/y", "pwd") == "/tmp/x/y\n"
    # A link leads nowhere, and a file is none.
    assert at(client, "", "sh", "-c", "rm -r /tmp/?; ln -s /usr /tmp/x; echo end", flags=0) == "end\n"
    assert "Not a directory" in at(client, "/tmp/x/y", "pwd")
    assert at(client, "", "sh", "-c", "rm /tmp/x; mkdir -p /tmp/x/y; echo kept > /tmp/x/y/file", flags=0) == ""
    assert "has something of the workspace's in it" in at(client, "/tmp/x/y", "pwd")
    assert at(client, "", "cat", "/tmp/x/y/file", flags=0) == "kept\n"


# --- what holds commands there -------------------------------------------------------------

def sandbox_init(service):
    pid = service.keeper().pid
    children = open(f"/proc/{pid}/task/{pid}/children", encoding="ascii").read().split()
    init, = [int(child) for child in children if name_of(child) == "berth-init" and state_of(child) != "Z"]
    return init


HELD = """
import ctypes, json, os
libc = ctypes.CDLL(None, use_errno=True)
status = dict(line.rstrip("\\n").split(":\\t", 1) for line in open("/proc/self/status"))
def attempt(path, flags=os.O_RDONLY):
    try:
        os.close(os.open(path, flags))
        return 0
    except OSError as error:
        return error.errno
print(json.dumps([status["CapEff"], status["NoNewPrivs"], status["Seccomp"], os.listdir("/proc").count("1"),
    attempt("/.berth"), attempt("/made", os.O_CREAT | os.O_WRONLY), attempt("/usr/made", os.O_CREAT | os.O_WRONLY),
    libc.umount(b"."), ctypes.get_errno(), libc.setns(0, 0), ctypes.get_errno(),
    sorted(os.listdir("/")), [os.readlink("/proc/self/ns/" + n) for n in ("net", "pid", "ipc", "uts", "user")]]))
"""


def test_a_view_holds_as_the_rest(client, tree):
    """The same but for one mount: nothing can be had there that cannot be had without."""
    there = json.loads(at(client, "/tmp/view", "/usr/bin/python3", "-c", HELD))
    plain = json.loads(at(client, "", "/usr/bin/python3", "-c", HELD, flags=0))
    assert there == plain
    assert there[:8] == ["0000000000000000", "1", "2", 1, errno.EACCES, errno.EROFS, errno.EROFS, -1], there


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can enter a sandbox from outside")
@pytest.mark.parametrize("when", ["before", "behind"])
def test_a_widened_sandbox_is_seen_by_way_of_a_view(client, service, tree, run_berth, when):
    """What was changed before a view was derived does not come into it unseen."""
    assert at(client, "/srv/a" if when == "behind" else "", "pwd", flags=PATH) != ""
    into = ["nsenter", "-t", str(sandbox_init(service)), "-m"]
    subprocess.run([*into, "mount", "-o", "remount,bind,rw", "/usr"], check=True)
    verdict = client.run(WORKSPACE, ["touch", "ran"], mount_path="/srv/b", flags=PATH).verdict
    assert (verdict.stage, verdict.error) == ("attest", errno.EPERM)
    assert verdict.text == "what holds the workspace's commands was changed: the mounts"
    verdict = client.run(WORKSPACE, ["touch", "ran"]).verdict
    assert verdict.stage == "attest" and "is fenced" in verdict.text
    assert not (tree / "ran").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can enter a sandbox from outside")
def test_a_widened_view_is_seen(client, service, tree):
    call = client.start(WORKSPACE, ["sleep", "60"], mount_path="/srv/a", flags=PATH)
    client.wait_started(call)
    subprocess.run(["nsenter", "-t", str(call.pid), "-m", "mount", "-t", "tmpfs", "none", "/run"], check=True)
    verdict = client.run(WORKSPACE, ["touch", "ran"], mount_path="/srv/a", flags=PATH).verdict
    assert (verdict.stage, verdict.text) == (
        "attest", "what holds the workspace's commands was changed: the number of mounts")
    assert not (tree / "ran").exists()


def test_limits_that_are_changed_hold_in_a_view(client, run_berth, tree):
    assert at(client, "/srv/a", "sh", "-c", "ulimit -Hn") != "64\n"
    run_berth("policy", "--set", "-", WORKSPACE, input='{"limits": {"open_files": 64}}', check=True)
    assert at(client, "/srv/a", "sh", "-c", "ulimit -Hn") == "64\n"
    assert json.loads(run_berth("policy", "--json", WORKSPACE, check=True).stdout)["measured"]["paths"] == ["/srv/a"]

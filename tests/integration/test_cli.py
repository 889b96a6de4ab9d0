"""berth: workspaces by every kind of thread ID, mounts, and what it says when things are wrong."""

import json
import os
import re
import subprocess
import threading
import time
import unicodedata

import pytest

from lib import harness as parts
from lib import mounts

HOSTILE = [
    pytest.param(b"thread_abc", id="plain"),
    pytest.param(b"x" * 600, id="long"),
    pytest.param(b"y" * 1024, id="longest"),
    pytest.param("\N{GRINNING FACE}\N{ZERO WIDTH JOINER}\N{ROCKET}".encode(), id="emoji"),
    pytest.param(b"../../etc", id="path"),
    pytest.param(b"/", id="slash"),
    pytest.param(b".", id="dot"),
    pytest.param(b"..", id="dots"),
    pytest.param(b"a\nb\n", id="newlines"),
    pytest.param(b"\x1b[31m\x1b]0;title\x07", id="escape-sequence"),
    pytest.param(b"\xff\xfe\x80", id="invalid-utf8"),
    pytest.param(b"ok\xc3", id="cut-utf8"),
    pytest.param(b"-x --name", id="like-an-option"),
    pytest.param(b"%41", id="like-an-escape"),
    pytest.param(b"a\\x0ab", id="like-escaped"),
    pytest.param("\N{RIGHT-TO-LEFT OVERRIDE}txt.exe".encode(), id="bidi"),
    pytest.param(b" ", id="blank"),
    pytest.param(b"$(touch x);`id`'\"*?", id="shell"),
]


def listed(run_berth, **keywords):
    return json.loads(run_berth("ls", "--json", check=True, **keywords).stdout)


def id_of(item):
    if item["thread_id"] is None:
        return bytes.fromhex(item["thread_id_hex"])
    assert "thread_id_hex" not in item
    return item["thread_id"].encode()


def fails(result, *texts, status=1):
    assert result.returncode == status, result
    for text in texts:
        assert text in result.stderr, result.stderr
    assert result.stderr.startswith("berth: "), result.stderr
    return result


# --- thread IDs ----------------------------------------------------------------------------

@pytest.mark.matrix
@pytest.mark.parametrize("thread_id", HOSTILE)
def test_hostile_ids(run_berth, service, thread_id):
    first = run_berth("create", "--", thread_id, check=True)
    name = first.stdout.removesuffix("\n")
    assert re.fullmatch(r"[A-Za-z0-9_%~-][A-Za-z0-9._%~-]{0,254}", name)
    assert (service.root / "workspaces" / name).is_dir()
    assert run_berth("create", "--", thread_id, check=True).stdout == first.stdout
    (item,) = listed(run_berth)
    assert id_of(item) == thread_id and item["name"] == name
    table = run_berth("ls", check=True).stdout
    lines = table.splitlines()
    assert len(lines) == 2 and lines[1].startswith(name)
    assert all(character.isprintable() for line in lines for character in line), lines
    assert run_berth("exec", "-w", thread_id, "--", "true").returncode == 0
    fails(run_berth("create", "-x", "--", thread_id), "exists")
    run_berth("rm", "--", thread_id, check=True)
    assert listed(run_berth) == []
    assert os.listdir(service.root / "workspaces") == []


LOOK_ALIKES = [
    b"Thread", b"thread", b"THREAD",
    unicodedata.normalize("NFC", "caf\u00e9").encode(),
    unicodedata.normalize("NFD", "caf\u00e9").encode(),
    b"a/b", b"a_b", b"a%2Fb", b"a//b", b"a/b/", b"a",
]


def test_ids_that_look_alike_stay_apart(run_berth, service, mount):
    names = run_berth("create", *LOOK_ALIKES, check=True).stdout.splitlines()
    assert len(set(names)) == len(LOOK_ALIKES)
    assert sorted(os.listdir(mount.path)) == sorted(names)
    for name in names:
        (mount.path / name / "mine").write_text(name)
    for name, thread_id in zip(names, LOOK_ALIKES):
        found = run_berth("exec", "-w", thread_id, "--", "cat", "mine", check=True)
        assert found.stdout == name
        assert os.getxattr(mount.path / name, "user.berth.thread_id") == thread_id
    run_berth("rm", LOOK_ALIKES[1], check=True)
    left = [id_of(item) for item in listed(run_berth)]
    assert sorted(left) == sorted(set(LOOK_ALIKES) - {LOOK_ALIKES[1]})


def test_printed_ids_are_reversible(run_berth, service):
    """Two IDs never look the same in the table, even where escapes stand for bytes."""
    ids = [b"a\nb", b"a\\x0ab", b"a\\\\x0ab", b"\\"]
    run_berth("create", *ids, check=True)
    column = run_berth("ls", check=True).stdout.splitlines()[1:]
    shown = {line.split("  ")[-1] for line in column}
    assert shown == {"a\\x0ab", "a\\\\x0ab", "a\\\\\\\\x0ab", "\\\\"}


def test_ls_without_a_utf8_locale_is_ascii(run_berth, service):
    run_berth("create", "caf\u00e9", check=True)
    env = {**service.client_env(), "LC_ALL": "C"}
    assert "caf\\xc3\\xa9" in run_berth("ls", env=env, check=True).stdout
    assert "caf\u00e9" in run_berth("ls", check=True).stdout


@pytest.mark.parametrize("thread_id", [b"", b"z" * 1025])
@pytest.mark.parametrize("command", ["create", "rm"])
def test_ids_that_are_none(run_berth, service, command, thread_id):
    """And nothing is done for the words before a wrong one."""
    run_berth("create", "kept", check=True)
    fails(run_berth(command, "kept" if command == "rm" else "new", thread_id), status=2)
    assert [id_of(item) for item in listed(run_berth)] == [b"kept"]


@pytest.mark.long
def test_many_workspaces_are_listed_in_pages(run_berth, service):
    ids = [f"w{number:04}" for number in range(1200)]
    run_berth("create", *ids, check=True, timeout=120)  # each is made durable
    assert run_berth("ls", "-q", check=True).stdout.split() == ids


def test_names_of_ls_q_can_be_removed(run_berth, service):
    run_berth("create", *[param.values[0] for param in HOSTILE if param.values[0][:1] != b"-"],
              check=True)
    names = run_berth("ls", "-q", check=True).stdout.splitlines()
    run_berth("rm", "--name", *names, check=True)
    assert listed(run_berth) == []


# --- rm ------------------------------------------------------------------------------------

def test_rm_of_what_is_not_there(run_berth, service):
    run_berth("create", "one", "two", "a/b", check=True)
    fails(run_berth("rm", "one", "nope", "two"), "berth: rm: there is no workspace nope")
    assert [id_of(item) for item in listed(run_berth)] == [b"a/b"]
    run_berth("rm", "-f", "nope", check=True)
    fails(run_berth("rm", "a%2Fb"), "directory name: say it with --name")
    fails(run_berth("rm", "--name", "a/b"), "thread ID: say it without --name")
    assert len(listed(run_berth)) == 1
    run_berth("rm", "--name", "a%2Fb", check=True)
    run_berth("rm", "-f", check=True)
    fails(run_berth("rm"), "which workspace?", status=2)


def test_rm_takes_all_files(run_berth, service):
    run_berth("create", "full", check=True)
    tree = service.root / "workspaces" / "full" / "tree"
    (tree / "d" / "e").mkdir(parents=True)
    (tree / "d" / "e" / "f").write_text("x")
    (tree / "d").chmod(0)
    run_berth("rm", "full", check=True)
    assert not (service.root / "workspaces" / "full").exists()


def test_created_at_is_now(run_berth, service):
    before = time.time() - 1
    run_berth("create", "now", check=True)
    (item,) = listed(run_berth)
    when = time.mktime(time.strptime(item["created_at"], "%Y-%m-%dT%H:%M:%SZ")) - time.timezone
    assert before - 1 <= when <= time.time() + 1


# --- help and usage ------------------------------------------------------------------------

COMMANDS = ["create", "ls", "rm", "mount", "umount", "exec", "status", "cache", "doctor"]


def test_overview_names_every_command(run_berth):
    text = run_berth("--help", check=True).stdout
    assert all(re.search(rf"^  {command} ", text, re.MULTILINE) for command in COMMANDS)
    assert run_berth("help", check=True).stdout == text
    assert run_berth("help", "--help", check=True).stdout.startswith("usage: berth help [COMMAND]\n")
    assert run_berth("--version", check=True).stdout.startswith("berth ")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command(run_berth, command):
    text = run_berth("help", command, check=True).stdout
    assert text.startswith(f"usage: berth {command}") and "\nExamples\n" in text
    assert run_berth(command, "--help", check=True).stdout == text
    assert run_berth(command, "-h", check=True).stdout == text
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize("word, near", [
    ("exce", "exec"), ("lst", "ls"), ("creat", "create"), ("unmount", "umount"), ("list", "ls"),
    ("delete", "rm"), ("moutn", "mount"), ("stat", "status"), ("docter", "doctor"), ("delet", "rm")])
def test_unknown_command_suggests_the_nearest(run_berth, word, near):
    fails(run_berth(word), f"there is no command {word}", f"did you mean `berth {near}`?", status=2)


@pytest.mark.parametrize("word", ["frobnicate", "x" * 3000, "\x1b[31m", ""])
def test_unknown_command_that_is_like_none(run_berth, word):
    result = fails(run_berth(word), "there is no command", status=2)
    assert "did you mean" not in result.stderr and "\x1b" not in result.stderr


@pytest.mark.parametrize("words, text", [
    ([], "no command given"),
    (["ls", "--url", "unix:/x"], "--url belongs before the command"),
    (["ls", "--wrong"], "--wrong"),
    (["ls", "-Z"], "-Z"),
    (["ls", "word"], "takes no arguments"),
    (["ls", "--json", "-q"], "exclude each other"),
    (["--url"], "--url needs a value"),
    (["mount"], "berth mount [URL] MOUNTPOINT"),
    (["mount", "-w"], "-w needs a value"),
    (["mount", "unix:/x"], "where shall it be mounted?"),
    (["mount", "unix:/x", "/a", "/b"], "one word too many"),
    (["--url", "unix:/y", "mount", "unix:/x", "/a"], "two URLs"),
    (["umount"], "which mountpoint?"),
    (["create"], "which thread ID?"),
    (["status", "x"], "takes no arguments"),
    (["cache", "x"], "takes no arguments"),
    (["doctor", "x"], "takes no arguments"),
    (["help", "nothing"], "there is no command nothing"),
])
def test_wrong_command_lines(run_berth, words, text):
    fails(run_berth(*words), text, status=2)


def test_output_that_cannot_be_written_is_a_failure(run_berth, service):
    run_berth("create", "one", check=True)
    for words in (["ls"], ["ls", "--json"], ["ls", "-q"], ["status"], ["cache"], ["cache", "--json"], ["--help"], ["create", "one"]):
        with open("/dev/full", "wb") as full:
            fails(run_berth(*words, stdout=full), "No space left")


def test_reader_that_goes_away_is_no_news(harness, service):
    harness.run_berth("create", *[f"w{number}" for number in range(500)], check=True)
    result = harness.run(["sh", "-c", "berth ls | head -n1"], env=service.client_env())
    assert result.stderr == "" and result.stdout.startswith("NAME")


# --- the way to the service ----------------------------------------------------------------

@pytest.mark.parametrize("words", [["ls"], ["create", "x"], ["rm", "x"], ["status"]])
def test_service_that_is_not_running(run_berth, words):
    result = run_berth(*words)
    assert result.returncode == 1
    shown = result.stdout if words == ["status"] else result.stderr
    assert "no such socket" in shown and "berthd" in shown


@pytest.mark.parametrize("url, text", [
    ("ftp://host", "ftp"), ("http://example.org:80", "this machine alone"), ("unix:relative", "unix:"),
    ("https://", "https"), ("", "")])
def test_wrong_url(run_berth, url, text):
    result = run_berth("--url", url, "ls")
    fails(result, text)


def test_nobody_listens(run_berth, harness):
    import socket
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        fails(run_berth("--url", f"http://127.0.0.1:{port}", "ls"), str(port))


def test_url_precedence(run_berth, harness, start_service):
    """--url, then BERTH_URL, then the configuration, then the default socket."""
    one, two, three = start_service(), start_service(), start_service()
    for service, name in ((one, "one"), (two, "two"), (three, "three")):
        run_berth("create", name, service=service, check=True)
    config = harness.new_path("berth.json")
    config.write_text(json.dumps({"client": {"url": three.url}}))
    env = {**harness.env, "BERTH_URL": two.url}
    names = lambda *words, env: run_berth(*words, "ls", "-q", env=env, check=True).stdout.split()
    assert names("--url", one.url, "--config", config, env=env) == ["one"]
    assert names("--config", config, env=env) == ["two"]
    assert names("--config", config, env=harness.env) == ["three"]
    fails(run_berth("ls", env=harness.env), "no such socket")


def test_services_by_name(run_berth, harness, start_service):
    """Each with its own credentials; a name and a URL contradict each other; shells complete names."""
    one, two = start_service(), start_service()
    run_berth("create", "first", service=one, check=True)
    run_berth("create", "second", service=two, check=True)
    config = harness.new_path("berth.json")
    config.write_text(json.dumps({"client": {"url": one.url, "services": {
        "lab": {"url": two.url}, "away": {"url": "unix:/nowhere/at/all"}}}}))
    ask = lambda *words, env=harness.env: run_berth("--config", config, *words, env=env)
    assert ask("ls", "-q").stdout.split() == ["first"]
    assert ask("--service", "lab", "ls", "-q").stdout.split() == ["second"]
    assert ask("ls", "-q", env={**harness.env, "BERTH_SERVICE": "lab"}).stdout.split() == ["second"]
    assert ask("--service", "lab", "exec", "-w", "second", "--", "sh", "-c", "exit 7").returncode == 7
    fails(ask("--service", "away", "ls"), "/nowhere/at/all")
    fails(ask("--service", "lib", "ls"), "no service")
    assert ask("--service", "lab", "--url", one.url, "ls").returncode == 2
    assert "from --service" in ask("--service", "lab", "doctor").stdout
    found = run_berth("complete", "--", "--config", config, "--service", "l", env=harness.env).stdout
    assert found == f"lab\t{two.url}\n"


# --- mount and umount ----------------------------------------------------------------------

@pytest.fixture
def mounted(run_berth, fuse_works, service, point):
    """A mount in the background, as people make it."""
    run_berth("create", "demo", check=True)
    run_berth("mount", point, check=True)
    return point


def gone(path):
    parts.wait_until(lambda: not mounts.find_mount(path), 10, f"end of the mount at {path}")


def driver_ended(pid):
    def ended():
        try:
            with open(f"/proc/{pid}/stat") as file:
                return file.read().rsplit(")", 1)[1].split()[0] == "Z"
        except OSError:
            return True
    parts.wait_until(ended, 20, f"end of berthfs {pid}")


def pid_of(path):
    return json.loads(os.getxattr(path, "user.berth.mount"))["stats"]["pid"]


def test_mount_is_usable_when_it_returns(run_berth, mounted):
    pid = pid_of(mounted)
    assert os.listdir(mounted) == ["demo"]
    (mounted / "demo" / "f").write_text("x")
    result = run_berth("umount", mounted, check=True)
    assert result.stdout == result.stderr == ""
    assert not mounts.find_mount(mounted)
    driver_ended(pid)


def test_mount_takes_url_and_workspace(run_berth, harness, service, point, fuse_works):
    run_berth("create", "T/1", check=True)
    (service.root / "workspaces" / "T%2F1" / "tree" / "f").write_text("x")
    run_berth("mount", service.url, point, "-w", "T/1", "-o", "ro", env=harness.env, check=True)
    pid = pid_of(point)
    assert (point / "f").read_text() == "x"
    with pytest.raises(OSError, match="Read-only"):
        (point / "g").write_text("x")
    run_berth("umount", point, check=True)
    driver_ended(pid)


def test_mount_passes_awkward_settings(run_berth, harness, start_service, point, fuse_works):
    """Commas and backslashes in file names come through the mount's options unchanged."""
    service = start_service(http=True)
    directory = harness.new_path('a,b\\c,"d"\\')
    directory.mkdir()
    token = directory / "to,ken\\,"
    token.write_text(service.token + "\n")
    token.chmod(0o600)
    env = {**harness.env, "BERTH_URL": service.http_url, "BERTH_TOKEN": "wrong"}
    run_berth("--token-file", token, "mount", point, env=env, check=True)
    told = json.loads(os.getxattr(point, "user.berth.mount"))
    assert told["token_file"] == str(token) and told["url"] == service.http_url
    run_berth("umount", point, check=True)
    driver_ended(told["stats"]["pid"])


def test_occupied_mountpoint(run_berth, mounted):
    result = run_berth("mount", mounted)
    assert result.returncode != 0 and "already" in result.stderr and "berth umount" in result.stderr


def test_missing_mountpoint(run_berth, service, harness, fuse_works):
    path = harness.new_path("missing")
    result = run_berth("mount", path)
    assert result.returncode != 0 and str(path) in result.stderr


def test_mount_without_a_service(run_berth, harness, point):
    result = run_berth("mount", point, env=harness.env)
    assert result.returncode != 0 and "no such socket" in result.stderr
    assert not mounts.find_mount(point)


def test_mount_without_berthfs(harness, point):
    """In a directory of its own, with nothing of ours in PATH."""
    alone = harness.new_path("alone")
    alone.mkdir()
    (alone / "berth").write_bytes(open(harness.program("berth"), "rb").read())
    (alone / "berth").chmod(0o755)
    env = {**harness.env, "PATH": ".:/usr/bin:/bin"}
    (alone / "berthfs").write_text("#!/bin/sh\necho ran\n")  # not executable
    fails(harness.run([alone / "berth", "mount", point], env=env), "berthfs is neither beside")
    (alone / "berthfs").chmod(0o755)
    assert harness.run([alone / "berth", "mount", point], env=env).stdout == "ran\n"
    # A relative entry of PATH would run what a workspace puts there.
    (alone / "berthfs").rename(harness.directory / "berthfs")
    fails(harness.run([alone / "berth", "mount", point], env=env), "berthfs is neither beside")


def test_umount_of_a_busy_mount_names_who_uses_it(run_berth, harness, mounted):
    pid = pid_of(mounted)
    sleeper = harness.start("sleeper", "sleep", "600", cwd=mounted / "demo")
    sleeper.expected_status = (-15,)
    with open(mounted / "demo" / "open", "w"):
        result = fails(run_berth("umount", mounted), "in use")
        assert f"pid {sleeper.pid} (sleep): working directory {mounted}/demo" in result.stderr
        assert f"pid {os.getpid()} (" in result.stderr and f"open file {mounted}/demo/open" in result.stderr
        assert mounts.find_mount(mounted)
        run_berth("umount", "-l", mounted, check=True)
        assert not mounts.find_mount(mounted)
    sleeper.stop()
    driver_ended(pid)


def test_umount_while_somebody_asks_something(run_berth, mounted):
    """As `berth status` does, which is over soon."""
    asking = os.open(mounted, os.O_PATH)
    end = threading.Timer(0.3, os.close, [asking])
    end.start()
    run_berth("umount", mounted, check=True)
    end.join()
    assert not mounts.find_mount(mounted)


def test_umount_with_a_mount_inside(run_berth, harness, mounted):
    inside = mounted / "demo" / "inside"
    inside.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", inside], check=True, timeout=20)
    fails(run_berth("umount", mounted), f"{inside} is mounted inside it")
    subprocess.run(["umount", inside], check=True, timeout=20)
    run_berth("umount", mounted, check=True)


@pytest.mark.parametrize("way", ["relative", "link", "slashes", "dots", "inside"])
def test_umount_by_other_words_for_the_place(run_berth, harness, mounted, way):
    link = harness.new_path("link")
    link.symlink_to(mounted)
    word, cwd = {
        "relative": (mounted.name, mounted.parent),
        "link": (link, None),
        "slashes": (f"{mounted}///", None),
        "dots": (f"{mounted}/demo/..", None),
        "inside": (".", mounted),
    }[way]
    # Started through a shell: the program itself must be able to leave its directory.
    run_berth("umount", word, check=True, cwd=cwd)
    assert not mounts.find_mount(mounted)


def test_umount_of_what_is_no_mount_of_ours(run_berth, harness, mounted):
    fails(run_berth("umount", "/proc"), "not a Berth mount but one of type proc")
    fails(run_berth("umount", harness.directory), "is not a mountpoint")
    fails(run_berth("umount", mounted / "demo"), f"berth umount {mounted}")
    fails(run_berth("umount", mounted / "nothing"), "")
    fails(run_berth("umount", "/nowhere/at/all"), "No such file")
    assert mounts.find_mount(mounted)


def test_umount_of_several_relative_places(run_berth, harness, mounted):
    """The working directory is left before the first is taken down; the others are still
    relative to where the user was, whatever lies at that name elsewhere."""
    places = [harness.directory / "rel" / name for name in ("a", "b", "c")]
    for place in places:
        place.mkdir(parents=True)
        run_berth("mount", place, check=True)
    run_berth("umount", "a", "./b", "../rel/c", cwd=harness.directory / "rel", check=True)
    assert mounts.mounts_below(harness.directory / "rel") == []
    # From the working directory, the first word; from "/", the second would be the other mount.
    run_berth("mount", places[0], check=True)
    fails(run_berth("umount", "a", str(mounted).lstrip("/"), cwd=harness.directory / "rel"),
          str(mounted).lstrip("/"))
    assert mounts.find_mount(places[0]) is None and mounts.find_mount(mounted)


def test_umount_of_several_goes_on_after_a_failure(run_berth, harness, mounted):
    other = harness.new_path("other")
    other.mkdir()
    run_berth("mount", other, check=True)
    fails(run_berth("umount", mounted, "/nowhere", other), "/nowhere")
    assert not mounts.find_mount(mounted) and not mounts.find_mount(other)


@pytest.mark.parametrize("words", [["visibility", "-m", "/nosuch"], ["umount", "/nosuch"]])
def test_a_missing_place_is_named_once(run_berth, service, words):
    result = fails(run_berth(*words), "/nosuch: No such file or directory")
    assert result.stderr.count("/nosuch") == 1


def test_the_manual_page_names_what_exec_gives(run_berth, service):
    """The members of its object, and the environment of a command."""
    page = (parts.REPOSITORY / "docs/man/berth.1.scd").read_text()
    run_berth("create", "demo", check=True)
    told = json.loads(run_berth("exec", "-w", "demo", "--json", "--", "/usr/bin/env", check=True).stdout)
    words = [name for name in told if not name.startswith("stderr_")]
    words += [line.partition("=")[0] for line in told["stdout"].splitlines()]
    assert {"verdict", "coherence", "PATH", "HOME", "BERTH_WORKSPACE", "BERTH_THREAD_ID"} <= set(words)
    section = page[page.index("# ENVIRONMENT OF A COMMAND"):page.index("# EXIT STATUS")]
    assert [word for word in words if f"*{word}*" not in section] == []


# --- status --------------------------------------------------------------------------------

def test_status(run_berth, service, mounted):
    told = json.loads(run_berth("status", "--json", check=True).stdout)
    assert told["url"] == service.url and told["error"] is None
    assert told["service"]["root"] == str(service.root) and told["service"]["workspaces"] == 1
    (mount,) = [row for row in told["mounts"] if row["mountpoint"] == str(mounted)]
    assert mount["state"] == "connected" and mount["url"] == service.url
    assert mount["stats"]["pid"] == pid_of(mounted)
    text = run_berth("status", check=True).stdout
    assert f"Service {service.url}" in text and "1 workspace, " in text
    assert f"{mounted}  connected" in text


def test_status_counts_as_people_do(run_berth, service, mounted):
    assert re.search(r"\b1 workspace, 0 commands running, \d+ connections, 0 open files$",
                     run_berth("status", check=True).stdout, re.MULTILINE)
    run_berth("visibility", "--mount", mounted, "-a", "a", check=True)
    run_berth("create", "other", check=True)
    text = run_berth("status", check=True).stdout
    assert re.search(r"\b2 workspaces, ", text) and "1 rule of visibility;" in text
    assert not re.search(r"\b1 (?!unlisted|hidden)\w+s\b", text), text
    # The service has no rules; what it tells of is what those of mounts have done.
    assert "0 rules" not in text


def test_peak_of_memory_is_no_less_than_what_is_in_use(run_berth, service):
    state = json.loads(run_berth("status", "--json", check=True).stdout)["service"]
    assert state["resident_bytes_max"] >= state["resident_bytes"] > 0


def test_status_of_a_mount_without_its_service(run_berth, service, mounted):
    pid = pid_of(mounted)
    service.stop()

    def state():
        result = run_berth("status", "--json")
        assert result.returncode == 1
        told = json.loads(result.stdout)
        assert told["service"] is None and told["error"]
        return next(row for row in told["mounts"] if row["mountpoint"] == str(mounted))["state"]

    parts.wait_until(lambda: state() == "disconnected", 10, "state disconnected", 0.2)
    run_berth("umount", mounted, check=True)
    driver_ended(pid)

"""Completion in the shells themselves, as a user's key asks for it."""

import re

import pexpect
import pytest

from lib.exec_client import WORKSPACE
from lib.harness import REPOSITORY

pytestmark = pytest.mark.timeout(300)

SCRIPTS = REPOSITORY / "contrib/completions"
BEGIN = {
    "bash": (["--norc", "--noprofile", "-i"], f"PS1='ready> '; source {SCRIPTS}/berth.bash"),
    "zsh": (["-f", "-i"], f"PS1='ready> '; fpath=({SCRIPTS} $fpath); autoload -U compinit; compinit -u -D;"
                          " unsetopt zle_bracketed_paste"),
}


@pytest.fixture(params=["bash", "zsh"])
def shell(request, harness, service, tree):
    arguments, script = BEGIN[request.param]
    child = pexpect.spawn(request.param, arguments, timeout=20, dimensions=(40, 150), cwd=str(harness.directory),
                          env={**service.client_env(), "TERM": "dumb", "HOME": str(harness.directory)})
    (harness.directory / "document-of-policy").touch()
    child.sendline(f"{script}; echo se''tup")
    child.expect("setup\r\n")
    child.expect("ready> ")
    child.name = request.param
    yield child
    child.close(force=True)


COMPLETED = [
    ("berth conn", "berth connection "),
    ("berth exec --work", "berth exec --workspace "),
    (f"berth exec -w {WORKSPACE[:2]}", f"berth exec -w {WORKSPACE} "),
    (f"berth rm {WORKSPACE[:2]}", f"berth rm {WORKSPACE} "),
    ("berth exec --on-disconnect c", "berth exec --on-disconnect continue "),
    ("berth kill -s TST", "berth kill -s TSTP "),
    (f"berth policy {WORKSPACE[:2]}", f"berth policy {WORKSPACE} "),
    ("berth token create --verb read,adm", "berth token create --verb read,admin "),
    ("berth mount -o ro,timeo", "berth mount -o ro,timeout="),
    ("berth create -p document-of", "berth create -p document-of-policy "),
]


def test_a_key_completes(shell):
    """In one shell, which takes longer to start than to answer: each line is taken back before the next."""
    failed = []
    for number, (typed, completed) in enumerate(COMPLETED):
        shell.send(typed + "\t")
        try:
            shell.expect(re.escape(completed[len(typed):].strip()))
        except pexpect.TIMEOUT:
            failed.append((typed, completed, shell.before))
        # Nothing that came for this line is there for the next one to find.
        shell.sendline(f"\x15echo do''ne-{number}.")
        shell.expect(rf"done-{number}\.\r\n")
        shell.expect("ready> ")
    assert not failed


@pytest.mark.parametrize("line,candidates", [
    ("berth sh", ["shell"]),
    (f"berth exec -w {WORKSPACE[:2]}", [WORKSPACE]),
    ("berth exec --work", ["--workspace"]),
    ("berth exec --on-disconnect ", ["continue", "kill"]),
    ("berth help umo", ["umount"]),
    ("berth policy ", [WORKSPACE]),
    ("berth token create --verb read,e", ["read,exec"]),
    ("berth mount -o owner=m", ["owner=map"]),
])
def test_fish(run, service, tree, line, candidates):
    out = run(["fish", "--no-config", "-c", f"source {SCRIPTS}/berth.fish; complete -C '{line}'"],
              env=service.client_env(), check=True).stdout
    assert [row.split("\t")[0] for row in out.splitlines()] == candidates


def test_what_berth_answers(run_berth, tree):
    def ask(*words, **keywords):
        return [line.split("\t")[0] for line in
                run_berth("complete", "--", *words, check=True, **keywords).stdout.splitlines()]

    run_berth("create", "T/1:x", "two words", "nasty\n\x1b[2J", check=True)
    assert set(ask("rm", "")) == {WORKSPACE, "T/1:x", "two words"}
    assert ask("rm", "T/") == ["T/1:x"]
    assert "exec" in ask("") and "complete" not in ask("") and "--url" in ask("--u")
    # Behind exec's own words nothing of ours belongs.
    assert ask("exec", "-w", WORKSPACE, "--", "") == []
    assert ask("exec", "ls", "-") == []
    assert "--json" in ask("exec", "-it", "-w", WORKSPACE, "-")
    assert ask("nonsense", "") == []
    assert ask("--url", "unix:/nowhere", "rm", "") == []


def test_what_berth_answers_of_lists_and_grants(run_berth, harness, tree):
    def ask(*words):
        return [line.split("\t")[0] for line in run_berth("complete", "--", *words, check=True).stdout.splitlines()]

    access = harness.access_file({"id": "laptop", "secret": "one"}, {"id": "desk", "secret": "two"})
    assert ask("token", "--access-file", access, "revoke", "") == ["laptop", "desk"]
    assert ask("token", "revoke", "laptop", f"--access-file={access}", "de") == []
    assert ask("token", "revoke", f"--access-file={access}", "de") == ["desk"]
    assert ask("token", "") == ["create", "list", "revoke"]
    assert ask("token", "create", "") == []
    assert ask("token", "create", "--verb", "") == ["read", "write", "exec", "admin"]
    assert ask("policy", "-n", "") == [WORKSPACE]
    assert ask("policy", "--set", "") == []
    options = ask("mount", "-o", "")
    assert {"ro", "allow_other", "owner=map", "timeout=", "disconnected=serve"} <= set(options)
    assert all(re.fullmatch(r"[a-z_]+(=[a-z./+A-Z]*)?", option) for option in options), options
    assert ask("ps", "--he") == ["--help"]


def test_every_option_is_explained(run_berth):
    for command in ("exec", "shell", "ps", "kill", "logs", "mount", "status"):
        lines = run_berth("complete", "--", command, "--", check=True).stdout.splitlines()
        assert lines and all(line.split("\t")[1:2] for line in lines), lines


def test_every_option_of_a_command_is_completed(run_berth):
    """Help pages are where options come from, so they must be complete."""
    source = REPOSITORY / "execsvc/cli"
    for command, file in (("exec", "exec_options.c"), ("ps", "cmd_ps.c"), ("kill", "cmd_kill.c"),
                          ("connection", "cmd_connection.c"), ("ls", "cmd_ls.c"), ("cache", "cmd_cache.c")):
        text = (source / file).read_text()
        table = text[text.index("options[] = {"):]
        names = set(re.findall(r'\{"([a-z-]+)",', table[:table.index("{0}")])) - {"cwd"}
        told = run_berth("complete", "--", command, "--", check=True).stdout
        assert {line.split("\t")[0] for line in told.splitlines()} >= {f"--{name}" for name in names}, command

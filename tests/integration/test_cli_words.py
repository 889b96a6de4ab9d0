"""What berth makes of words that were meant otherwise, and what it does not say."""

import json
import re
import signal

import pytest

from lib.harness import REPOSITORY, wait_until

WORKSPACE = "work"


@pytest.fixture
def execute(run_berth, service):
    run_berth("create", WORKSPACE, check=True)

    def run(*words):
        return run_berth("exec", "-w", WORKSPACE, *words)
    return run


@pytest.mark.parametrize("words,hint", [
    (["ls -la"], "sh -c '…'"), (["cd", "/"], "sh -c '…'"), (["A=1", "env"], "sh -c '…'"),
    ([WORKSPACE, "--", "pwd"], "named by -w"), (["nothing-like-it"], "")])
def test_a_program_that_is_not_there(execute, words, hint):
    result = execute(*words)
    assert result.returncode == 127 and hint in result.stderr, result
    assert result.stderr.endswith(")\n") == bool(hint), result


@pytest.mark.parametrize("word,number", [("-9", signal.SIGKILL), ("-USR1", signal.SIGUSR1),
                                         ("-SIGTERM", signal.SIGTERM)])
def test_kill_takes_signals_as_kill_does(run_berth, execute, word, number):
    execute("--detach", "--id", "sleeper", "--", "sleep", "300")
    assert run_berth("kill", word, "sleeper").returncode == 0
    assert run_berth("wait", "sleeper").returncode == 128 + number


def test_kill_takes_no_other_words(run_berth, service):
    for word in ("-Z", "-99", "-NOPE"):
        assert run_berth("kill", word, "x").returncode == 2


@pytest.mark.parametrize("words,text", [
    (["--url", "/run/x.sock", "ls"], "Write unix:/run/x.sock"),
    (["https://host:1", "ls"], "berth --url https://host:1")])
def test_urls_that_are_none(run_berth, words, text):
    result = run_berth(*words)
    assert result.returncode in (1, 2) and text in result.stderr, result


def test_status_says_only_what_it_was_told(harness):
    service = harness.start_service(http=True, access_file=harness.access_file(
        {"id": "little", "secret": "s", "workspaces": ["a-*"], "verbs": ["read", "exec"]}))
    env = {**harness.env, "BERTH_URL": service.http_url, "BERTH_TOKEN": "s"}
    result = harness.run(["berth", "status"], env=env)
    assert result.returncode == 0, result
    assert re.search("berthd .*\n  granted to little: read, exec; workspaces a-\\*\n", result.stdout), result
    told = result.stdout.partition("\nMounts")[0]
    assert "pid" not in told and " 0 " not in told, result
    told = json.loads(harness.run(["berth", "status", "--json"], env=env).stdout)["service"]
    assert not {"pid", "uptime_seconds", "workspaces"} & told.keys()


def test_a_mount_of_another_service_is_a_note(harness, start_service, start_mount):
    ours, other = start_service(), start_service()
    mount = start_mount(other)
    other.stop()

    def doctor(service):
        return harness.run(["berth", "doctor"], env=service.client_env()).stdout

    wait_until(lambda: re.search(f"problem +the mount at {mount.path} has lost", doctor(other)), 15)
    assert re.search(f"note +the mount at {mount.path} has lost", doctor(ours))


@pytest.mark.parametrize("text,ms", [("2", 2000), ("1.5s", 1500), ("500ms", 500), ("5m", 300000), ("2h", 7200000)])
def test_times_have_units(execute, text, ms):
    result = execute("--json", "--timeout", text, "--", "true")
    assert json.loads(result.stdout)["timeout_ms"] == ms


@pytest.mark.parametrize("words", [
    ["--timeout", "5x"], ["--timeout", "0m"], ["--timeout", "-1s"], ["--timeout", "1 h"], ["--timeout", "inf"],
    ["--reattach", "2d"], ["--max-output", "1KK"], ["--max-output", "-1k"], ["--max-output", "0"],
    ["--max-output", "1iB"], ["--max-output", "9999999999G"], ["--max-output", "B"]])
def test_units_that_are_none(execute, words):
    result = execute(*words, "--", "true")
    assert result.returncode == 125 and words[0] in result.stderr, result


def test_sizes_have_units(execute):
    for text in ("100", "1k", "1K", "1kB", "1MB", "2MiB", "1b"):
        assert execute("--max-output", text, "--", "true").returncode == 0, text


def test_part_of_an_id_is_not_taken_for_it(run_berth, execute):
    execute("--detach", "--id", "server-2", "--", "true")
    result = run_berth("kill", "server")
    assert result.returncode == 1 and "server-2 begins so, and the whole ID is wanted" in result.stderr, result


def strings_of(source):
    """The string literals of C, without what is in comments."""
    token = re.compile(r'/\*.*?\*/|//[^\n]*|\'(?:[^\'\\\n]|\\.)+\'|"(?:[^"\\\n]|\\.)*"', re.S)
    return [found for found in token.findall(source) if found.startswith('"')]


def test_sentences_of_the_service_are_ascii():
    """Clients and logs show each byte that is not ASCII as \\x and its number, whatever the locale."""
    parts = [part for part in (REPOSITORY / "execsvc").iterdir() if part.is_dir() and part.name != "cli"]
    files = [file for part in (*parts, REPOSITORY / "common") for file in part.rglob("*.[ch]")]
    assert len(files) > 100
    found = {str(file): [text for text in strings_of(file.read_text()) if not text.isascii()] for file in files}
    assert {file: texts for file, texts in found.items() if texts} == {}
    assert strings_of('a("\\"é"); /* "ü" */ // "ö"\nb("/*")') == ['"\\"é"', '"/*"']

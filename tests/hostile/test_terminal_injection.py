"""What commands choose is shown on the terminals of whoever looks at them: words, IDs and names."""

import pytest

from lib.exec_client import DETACH, WORKSPACE, ExecClient

pytestmark = pytest.mark.sandbox

NASTY = "\x1b]0;title\x07\x1b[2J\r\nforged line\x9b31m\u202e"
CONTROLS = set(map(chr, [*range(0x09), *range(0x0b, 0x20), 0x7f, *range(0x80, 0xa0)]))


def assert_plain(result):
    """Neither control characters nor lines that are not ours."""
    shown = result.stdout + result.stderr
    assert not CONTROLS & set(shown), shown
    assert not [line for line in shown.splitlines() if line.startswith("forged")], shown


def test_words_of_commands(service, run_berth):
    run_berth("create", WORKSPACE, check=True)
    with ExecClient(service.socket) as client:
        call = client.start(WORKSPACE, ["sh", "-c", "exec sleep 100", NASTY], flags=DETACH, exec_id="nasty")
        client.wait_started(call)
        assert "\\x1b]0;title" in run_berth("ps", check=True).stdout
        for words in (["ps"], ["ps", "-w", WORKSPACE], ["status"], ["kill", "-w", WORKSPACE, "nasty"]):
            assert_plain(run_berth(*words))


def test_ids(service, run_berth):
    with ExecClient(service.socket) as client:
        run_berth("create", NASTY, check=True)
        client.wait_started(client.start(NASTY, ["sleep", "100"], flags=DETACH, exec_id=NASTY))
        for words in (["ls"], ["ps"], ["status"], ["policy", NASTY], ["logs", "-w", NASTY, "none"],
                      ["kill", "-w", NASTY, NASTY], ["rm", NASTY]):
            assert_plain(run_berth(*words))


def test_programs_that_are_none(run_berth, service):
    run_berth("create", WORKSPACE, check=True)
    result = run_berth("exec", "-w", WORKSPACE, "--", f"/nowhere/{NASTY}")
    assert result.returncode == 127
    assert_plain(result)

"""berth label, ttl, stop and start, and what create and ls have of them."""

import json
import time
from datetime import datetime

import pytest


@pytest.fixture
def berth(harness):
    service = harness.start_service()

    def run(*words, status=0):
        result = harness.run_berth(*words, service=service)
        assert result.returncode == status, result.stderr
        return result.stdout if status == 0 else result.stderr

    return run


def listed(berth, *words):
    return berth("ls", "-q", *words).split()


def shown(berth, name):
    return next(item for item in json.loads(berth("ls", "--json")) if item["name"] == name)


def seconds_until(when):
    return datetime.fromisoformat(when.replace("Z", "+00:00")).timestamp() - time.time()


def test_labels(berth):
    berth("create", "--label", "team=search", "--label", "ticket=4=2", "one")
    berth("create", "--label", "team=ads", "two")
    berth("create", "three")
    assert berth("label", "one") == "team=search\nticket=4=2\n"
    assert listed(berth, "--label", "team") == ["one", "two"]
    assert listed(berth, "--label", "team=ads") == ["two"]
    assert listed(berth, "--label", "team", "--label", "ticket=4=2") == ["one"]
    assert berth("label", "one", "ticket-", "new=ü \x1b[31m") == ""
    assert berth("label", "one") == "new=ü \\x1b[31m\nteam=search\n"
    changed = json.loads(berth("label", "--json", "one", "new-"))
    assert (changed["labels"], changed["revision"]) == ({"team": "search"}, 3)
    assert "revision 3, not 2" in berth("label", "--revision", "2", "one", "a=b", status=1)
    assert json.loads(berth("label", "--json", "--revision", "3", "one", "a=b"))["labels"]["a"] == "b"
    assert shown(berth, "three")["labels"] == {}
    for words, message in ((["one", "team"], "neither KEY=VALUE nor KEY-"), (["one", "=x"], "neither KEY=VALUE"),
                           ([], "which workspace?"), (["--revision", "x", "one"], "not a number")):
        assert message in berth("label", *words, status=2)
    assert json.loads(berth("label", "one", "c=d", "--json"))["labels"]["c"] == "d"
    assert "there is no workspace none" in berth("label", "none", "a=b", status=1)
    assert "a key is" in berth("label", "one", "\x01=b", status=1)
    assert "not KEY=VALUE" in berth("create", "--label", "x-", "four", status=2)


def test_what_create_does_not_set_is_said(harness, berth):
    """A workspace that is there keeps its labels and its end; who asked for others is told, and for none it is well."""
    assert berth("create", "w") == "w\n" == berth("create", "w")
    for words in (("--label", "a=b"), ("--ttl", "1h"), ("--idle-ttl", "1h")):
        result = harness.run_berth("create", *words, "new" + words[0], "w")
        assert (result.returncode, result.stdout) == (1, f"new{words[0]}\n")
        assert "w: a workspace of this ID exists, and keeps its labels and its end" in result.stderr
    berth("create", "other")
    assert "w: a workspace of this ID exists" in berth("create", "--fork", "other", "w", status=1)
    item = shown(berth, "w")
    assert (item["labels"], item["expires_at"], item["idle_ttl"], item["revision"]) == ({}, None, None, 1)


def test_ends(berth):
    berth("create", "--ttl", "7d", "--idle-ttl", "2h", "w")
    item = shown(berth, "w")
    assert 7 * 86400 - 60 < seconds_until(item["expires_at"]) <= 7 * 86400
    assert item["idle_ttl"] == 7200
    assert seconds_until(item["used_at"]) <= 0
    assert "idle:  7200 s" in berth("ttl", "w")
    berth("ttl", "--idle", "never", "w", "never")
    item = shown(berth, "w")
    assert (item["expires_at"], item["idle_ttl"]) == (None, None)
    assert "ends:  never\nidle:  never\n" in berth("ttl", "w")
    for time_, message in (("-1", "neither a time"), ("x", "neither a time"), ("1e99", "more than 6944 days"),
                           ("1y", "not a time"), ("0", "`berth rm` removes at once")):
        assert message in berth("ttl", "--", "w", time_, status=2)
    berth("ttl", "w", "1w", "--idle", "90")
    item = shown(berth, "w")
    assert 7 * 86400 - 60 < seconds_until(item["expires_at"]) <= 7 * 86400 and item["idle_ttl"] == 90
    berth("ttl", "w", "1ms")
    until = time.monotonic() + 60
    while listed(berth) and time.monotonic() < until:
        time.sleep(0.1)
    assert listed(berth) == []


def test_long_list(berth):
    """What ls leaves out for narrow terminals, ls -l has."""
    berth("create", "--label", "team=ü \x1b", "--label", "a=b", "--ttl", "7d", "--idle-ttl", "2h", "one")
    berth("create", "two")
    berth("stop", "two")
    header, one, two = berth("ls", "-l").splitlines()
    assert header.split()[:5] == ["NAME", "STATE", "CREATED", "ENDS", "IDLE"]
    ends = datetime.fromisoformat(shown(berth, "one")["expires_at"].replace("Z", "+00:00")).astimezone()
    assert one.split()[:2] == ["one", "running"] and ends.strftime("%Y-%m-%d %H:%M:%S") in one
    assert one.endswith("  2h        one  a=b, team=ü \\x1b")
    assert two.split()[:2] == ["two", "stopped"] and two.endswith("  -                    -         two")
    assert berth("ls").splitlines()[0].split() == ["NAME", "CREATED", "THREAD", "ID"]
    assert "exclude each other" in berth("ls", "-l", "--json", status=2)


def test_states(berth):
    berth("create", "one", "two")
    berth("stop", "one")
    assert listed(berth, "--state", "stopped") == ["one"]
    assert listed(berth, "--state", "running") == ["two"]
    assert shown(berth, "one")["state"] == "stopped"
    assert "the workspace is stopped; see `berth start`" in berth("exec", "-w", "one", "--", "true", status=125)
    berth("start", "--name", "one")
    berth("exec", "-w", "one", "--", "true")
    assert "there is no workspace none" in berth("stop", "none", "two", status=1)
    assert listed(berth, "--state", "stopped") == ["two"]
    assert "neither running nor stopped" in berth("ls", "--state", "x", status=2)

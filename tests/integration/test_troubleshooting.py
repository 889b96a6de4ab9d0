"""docs/troubleshooting.md: what it quotes is what the programs say, and what they say most often is in it."""

import errno
import os
import re

import pytest

from lib import harness as parts
from lib.failure import HarnessError

pytestmark = pytest.mark.release

PAGE = parts.REPOSITORY / "docs" / "troubleshooting.md"
SPAN = re.compile(r"(`+)\s?(.+?)\s?(?<!`)\1(?!`)")
# What is between the parts of a text that is put together, as "%s%s" and the like are.
HOLE = re.compile(r"%[-+ 0#]*(?:\d+|\*)?(?:\.(?:\d+|\*))?(?:hh|h|ll|l|z|j)?[diouxXeEfgGcsp]")
# Headings that say where something is seen, in words of their own.
OWN_WORDS_MAX = 12


def headings():
    return re.findall(r"^### (.+)$", PAGE.read_text(), re.M)


def quoted(heading):
    """The messages of a heading that has nothing but messages; else None."""
    rest = SPAN.sub("", heading).replace("·", "").strip()
    return None if rest else [match[2] for match in SPAN.finditer(heading)]


MESSAGES = [message for heading in headings() for message in quoted(heading) or []]


@pytest.fixture(scope="module")
def texts(binaries, build_dir):
    """Every text that is in a program, with holes as the page has them."""
    programs = [*(binaries[name] for name in ("berth", "berthd", "berthfs")), *build_dir.glob("execsvc/cli/berth-network")]
    found = set()
    for program in programs:
        for raw in re.findall(rb"[^\x00]{4,2000}(?=\x00)", program.read_bytes()):
            # A text begins behind the last byte that is none.
            text = re.split(r"[\x00-\x08\x0e-\x1f\ufffd]", raw.decode("utf-8", "replace"))[-1]
            found.add(HOLE.sub("…", text).replace("%%", "%"))
    return found


def makes(text, piece):
    """Whether a text with holes makes this piece of a message, something being put into them."""
    parts = [part for part in text.strip(" :.;,…").split("…") if part.strip()]
    return len(parts) > 1 and sum(map(len, parts)) > max(25, len(piece) / 2) and \
        re.search(".*?".join(map(re.escape, parts)), piece) is not None


def is_said(message, texts):
    """Each piece between holes is in a program, and the longest of them is more than a word or two; or the
    kernel says it."""
    if message in {os.strerror(number) for number in errno.errorcode}:
        return True
    pieces = [piece.strip(" :.;,") for piece in message.split("…") if len(piece.strip()) > 3]
    return max(map(len, pieces), default=0) >= 10 and \
        all(any(piece in text or makes(text, piece) for text in texts) for piece in pieces)


@pytest.mark.parametrize("message", MESSAGES)
def test_what_is_quoted_is_said(message, texts):
    assert is_said(message, texts)


def test_what_nobody_says_is_found(texts):
    assert not is_said("…: there is no such sokcet. Start the service", texts)
    assert not is_said("No such error of any kernel", texts) and not is_said("…", texts)
    assert is_said("Stale file handle", texts)


def test_most_headings_are_messages():
    own = [heading for heading in headings() if quoted(heading) is None]
    assert len(own) <= OWN_WORDS_MAX and len(MESSAGES) > 50


def entry_for(text):
    """The message of the page that a reader finds for what was printed, or None."""
    for message in MESSAGES:
        pattern = ".*?".join(re.escape(piece) for piece in message.split("…"))
        if len(message.replace("…", "")) > 12 and re.search(pattern, text, re.S):
            return message
    return None


def check(text):
    if not entry_for(text):
        raise HarnessError(f"docs/troubleshooting.md has nothing for: {text}")


@pytest.mark.timeout(120)
def test_what_goes_wrong_first_is_in_it(harness, fuse_works):
    """What somebody new runs into, provoked one after the other."""
    def berth(*words, **keywords):
        result = harness.run_berth(*words, **keywords)
        assert result.returncode != 0, words
        return result.stderr

    check(berth("ls"))
    service = harness.start_service(tls=True, http=True)
    wrong = harness.token_file("wrong")
    remote = {**harness.env, "BERTH_URL": service.tls_url, "BERTH_PERSIST": "0"}
    authority = ["--ca-file", harness.certificates.ca]
    for words in (["--token-file", service.token_file], [*authority], [*authority, "--token-file", wrong],
                  ["--url", service.tls_url.replace("https", "http").replace("localhost", "127.0.0.1"), *authority],
                  ["--url", service.http_url.replace("http", "https"), *authority],
                  ["--url", "https://127.0.0.1:1"], ["--url", "exec:berthd-of-nobody --stdio"], ["--url", "exec:false"],
                  ["--url", "exec:echo welcome; cat"]):
        check(berth(*words, "ls", env=remote))
    harness.run_berth("create", "w", check=True)
    mount = harness.start_mount(service)
    here = {"cwd": mount.path / "w"}
    check(berth("exec", "true", cwd=harness.directory))
    check(berth("exec", "true", cwd=mount.path))
    check(berth("exec", "cd /; true", **here))
    check(berth("exec", "-w", "missing", "true"))
    check(berth("create", "--label", "a=b", "w"))
    check(berth("logs", "missing", **here))
    check(berth("mount", mount.path / "w"))
    check(berth("mount", harness.directory / "missing"))
    with open(mount.path / "w" / "file", "w", encoding="utf-8"):
        check(berth("umount", mount.path))
    for call, number in ((lambda: os.mkdir(mount.path / "new"), errno.EPERM),
                         (lambda: os.link(mount.path / "w" / "file", harness.directory / "link"), errno.EXDEV)):
        with pytest.raises(OSError) as caught:
            call()
        assert caught.value.errno == number and os.strerror(number) in MESSAGES
    os.symlink("/root/secret", mount.path / "w" / "link")
    with pytest.raises(PermissionError) as caught:
        os.readlink(mount.path / "w" / "link")
    assert caught.value.strerror in MESSAGES
    mount.close()
    # Of the service that was killed, its socket is left.
    service.kill()
    check(berth("ls"))
    for words in (["--listen", "https://127.0.0.1:0"], ["--listen", "http://127.0.0.1:0"],
                  ["--listen", "http://192.0.2.1:80"], ["--access-file", harness.access_file(mode=0o644)]):
        result = harness.run([harness.program("berthd"), "--root", harness.directory / "root", *words],
                             timeout=20)
        assert result.returncode == 1
        check(result.stderr)

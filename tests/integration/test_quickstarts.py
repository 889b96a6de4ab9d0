"""The quick starts: what they have their readers type works, in that order, and prints what they say."""

import json
import os
import re
import signal
import socket

import pytest

from lib import e2b_sdk
from lib import harness as parts
from lib import mounts
from lib.failure import HarnessError
from lib.quickstart import Reader, blocks_of, matches

pytestmark = pytest.mark.release

DOCS = parts.REPOSITORY / "docs"
DOCUMENTS = [*sorted(DOCS.glob("*.md")), *sorted(parts.REPOSITORY.glob("contrib/*/*/README.md")),
             parts.REPOSITORY / "README.md"]
NAMES = sorted(path.name for path in DOCS.glob("quickstart-*.md"))
# What cannot be typed here, in each of them. Each says so to its reader in other words.
NOT_TRIED_MAX = 6


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def keepers_below(directory):
    for lock in directory.rglob("exec/.lock"):
        try:
            pid = int(lock.read_text())
            if b"--keep-commands" in open(f"/proc/{pid}/cmdline", "rb").read().split(b"\0"):
                yield pid
        except (OSError, ValueError):
            continue


@pytest.fixture
def reader(harness, fuse_works):
    """Someone new to Berth, with a home of their own, who leaves nothing behind whatever happens."""
    home = harness.directory / "home"
    env = {**harness.env, "TMPDIR": str(harness.short)}
    # For root, the default would be the machine's one service, in /var/lib.
    (home / "config" / "berth").mkdir(parents=True)
    (home / "config" / "berth" / "berth.json").write_text(json.dumps({"service": {"root": str(home / "root")}}))
    ports = {f":{port}": f":{free_port()}" for port in (7433, 7443)}
    places = {**ports, "https://0.0.0.0": "https://127.0.0.1", "build.example.org": "localhost",
              **{f"{place}": f"{home}{place}" for place in ("/etc/berth", "/srv/berth", "/var/log/berth")},
              "/run/berth": f"{harness.short}/operator"}
    someone = Reader(harness, env, places)
    yield someone
    someone.close()
    harness.run_berth("connection", "stop", "--all", env=env)
    for process in reversed(someone.beside):
        process.stop()
    mounts.force_unmount(harness.directory)
    for pid in list(keepers_below(harness.directory)):
        os.kill(pid, signal.SIGTERM)
        parts.wait_until(lambda pid=pid: not parts.is_alive(pid), parts.STOP_TIMEOUT, "the keeper's end")


@pytest.mark.slow
@pytest.mark.timeout(360)  # with what npm fetches, once
@pytest.mark.parametrize("name", NAMES)
def test_quick_start(reader, name):
    if "agents" in name:
        # What npm would install; node looks for packages beside the program.
        os.symlink(e2b_sdk.fetch() / "node_modules", reader.directory("~/sdk") / "node_modules")
        if e2b_sdk.node_flags():
            reader.places["from 'e2b'"] = "from 'e2b/dist/index.mjs'"
            reader.places["node agent.mjs"] = " ".join(["node", *e2b_sdk.node_flags(), "agent.mjs"])
    reader.work_through(DOCS / name)


@pytest.mark.parametrize("name", NAMES)
def test_little_is_left_out(name):
    """A block that is not run says why, and such blocks are few."""
    blocks = blocks_of(DOCS / name)
    left = [block for block in blocks if block.not_tried is not None]
    assert len([block for block in blocks if block.language == "sh"]) >= 5 and len(left) <= NOT_TRIED_MAX
    assert all(len(block.not_tried) > 10 for block in left)


def links_of(path):
    return [link for link in re.findall(r"\]\(([^)\s]+)\)", path.read_text()) if "://" not in link]


def anchors_of(path):
    """As code forges make them of headings."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", text.lower()).strip().replace(" ", "-") for text in headings}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(parts.REPOSITORY)))
def test_links_lead_somewhere(path):
    """Of the documents: files that are there, and headings that are in them."""
    for link in links_of(path):
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        assert target.exists(), f"{path.name}: {link}"
        if anchor and target.suffix == ".md":
            assert anchor in anchors_of(target), f"{path.name}: {link}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(parts.REPOSITORY)))
def test_what_is_named_exists(path, harness):
    """Commands of berth, and providers, in what is to be typed."""
    shown = harness.run([harness.program("berth"), "--help"], check=True).stdout
    known = {word.rstrip(",") for line in shown.splitlines() if line.startswith("  ") for word in line.split()[:2]}
    text = path.read_text()
    typed = "\n".join(a or b for a, b in re.findall(r"`(berth [^`]+)`|^(?:    )?(berth .+)$", text, re.M))
    commands = {word for word in re.findall(r"^berth (?:--?[a-z-]+ (?:'[^']*'|\S+) )*([a-z]\S*)", typed, re.M)}
    assert commands <= known | {"help"}, commands - known
    there = {profile.stem for profile in (parts.REPOSITORY / "contrib" / "providers").glob("*.json")}
    assert set(re.findall(r"--provider[ =]([a-z]+)", text)) <= there


def test_what_a_document_says_is_compared(harness, tmp_path):
    """Of the reader of documents itself: a command that fails, and output that is another, are found."""
    assert matches("a … b\n", "a x\ny b") and not matches("a … b", "a b") and not matches("a", "a b")
    document = tmp_path / "document.md"
    for text in ("```sh\nfalse\n```\n", "```sh\necho other\n```\n```text\none\n```\n",
                 "<!-- what is this -->\n```json\n{}\n```\n", "```sh\nexit 3\n```\n", "```\ntrue\n```\n"):
        document.write_text(text)
        someone = Reader(harness, harness.env, seconds=10)
        with pytest.raises(HarnessError):
            someone.work_through(document)
        someone.close()
    document.write_text("```sh\nword=1\n```\n\n```sh\necho $word; cat\n```\n```text\n1\n```\n")
    someone = Reader(harness, harness.env, seconds=10)
    someone.work_through(document)
    someone.close()

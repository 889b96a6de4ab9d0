"""Runs the commands of a document as its reader would type them.

Of a document in Markdown, each fenced block of `sh` is run, in order, by one shell, and must succeed. A block of
`text` that follows is what it prints, in which `…` stands for anything. A comment before a block changes that:

    <!-- in a terminal of its own -->   it goes on in the background; the reader goes on when it listens
    <!-- not tried: WHY -->             it is not run
    <!-- write: PATH -->                a block of another language is the content of that file
"""

import dataclasses
import os
import re
import selectors
import signal
import subprocess
import time
from pathlib import Path

from lib.failure import HarnessError

BLOCK = re.compile(r"^(?:<!-- (?P<note>[^\n]*) -->\n+)?```(?P<language>[a-z]+)\n(?P<text>.*?)^```$", re.M | re.S)
OWN_TERMINAL = "in a terminal of its own"
END = "=-=-= end of block"


@dataclasses.dataclass
class Block:
    line: int
    language: str
    text: str
    note: str
    prints: str = None

    @property
    def not_tried(self):
        return self.note.removeprefix("not tried: ") if self.note.startswith("not tried: ") else None


def blocks_of(path):
    """What is to be done, in order. A block of `text` belongs to the one of `sh` right before it."""
    content = path.read_text()
    found, end = [], 0
    for match in BLOCK.finditer(content):
        between = content[end:match.start()]
        end = match.end()
        if match["language"] == "text" and not match["note"] and found and found[-1].language == "sh" \
                and not between.strip():
            found[-1].prints = match["text"]
            continue
        line = content.count("\n", 0, match.start()) + 1
        found.append(Block(line, match["language"], match["text"], match["note"] or ""))
    if len(re.findall(r"^```", content, re.M)) != 2 * len(re.findall(r"^```[a-z]+$", content, re.M)):
        raise HarnessError(f"{path}: a block without a language, or without an end")
    return found


def matches(pattern, text):
    """Whether text is what the document says is printed."""
    parts = [re.escape(part) for part in pattern.strip().split("…")]
    return re.fullmatch(".*?".join(parts), text.strip(), re.S) is not None


class Reader:
    """One shell, in which a document is worked through. places: texts of the document and what stands for them
    here, such as ports and directories."""

    def __init__(self, harness, env, places=(), seconds=30):
        self.harness, self.env, self.places, self.seconds = harness, env, dict(places), seconds
        self.shell = subprocess.Popen(
            ["bash", "--norc"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env=env, cwd=env["HOME"], start_new_session=True)
        self.beside = []
        self.run("set -o pipefail")

    def translate(self, text):
        for here, there in self.places.items():
            text = text.replace(here, str(there))
        return text

    def back(self, text):
        """What was printed here, in the document's words."""
        for here, there in self.places.items():
            text = text.replace(str(there), here)
        return text

    def directory(self, path):
        """One of the reader's, made."""
        directory = Path(self.translate(path).replace("~", self.env["HOME"]))
        directory.mkdir(parents=True, exist_ok=True)
        return directory

    def run(self, text):
        """Returns status and output of some lines."""
        self.shell.stdin.write(f"{{\n{text}\n}} < /dev/null\nprintf '\\n{END} %s\\n' $?\n".encode())
        self.shell.stdin.flush()
        until, output = time.monotonic() + self.seconds, b""
        expression = re.compile(rb"\n" + END.encode() + rb" (\d+)\n")
        with selectors.DefaultSelector() as selector:
            selector.register(self.shell.stdout, selectors.EVENT_READ)
            while not (match := expression.search(output)):
                ready = selector.select(max(0, until - time.monotonic()))
                part = os.read(self.shell.stdout.fileno(), 65536) if ready else b""
                if not part:
                    raise HarnessError(f"{'the shell has ended' if ready else 'not in time'}: {text}\n"
                                       f"{output.decode(errors='replace')}")
                output += part
        return int(match[1]), self.back(output[:match.start()].decode(errors="replace"))

    def start(self, text):
        """What the reader leaves running; ready when it says that it listens."""
        process = self.harness.start(f"beside-{len(self.beside)}", "bash", "-c", "exec " + text.strip(),
                                     env=self.env, cwd=self.env["HOME"])
        # Of a shell that became the program, TERM ends it as ^C would.
        process.expected_status = (0, -signal.SIGTERM)
        self.beside.append(process)
        process.wait_for_line("listening on")

    def work_through(self, path):
        for block in blocks_of(path):
            where = f"{path.name}:{block.line}"
            text = self.translate(block.text)
            if block.not_tried:
                continue
            if block.note.startswith("write: "):
                directory, name = os.path.split(block.note.removeprefix("write: "))
                (self.directory(directory) / name).write_text(text)
            elif block.language == "sh" and block.note == OWN_TERMINAL:
                self.start(text)
            elif block.language == "sh":
                status, output = self.run(text)
                if status != 0:
                    raise HarnessError(f"{where} failed with {status}:\n{text}\n--- printed\n{output}")
                if block.prints is not None and not matches(block.prints, output):
                    raise HarnessError(f"{where}: this is printed otherwise:\n{text}\n--- the document\n"
                                       f"{block.prints}\n--- here\n{output}")
            elif block.note:
                raise HarnessError(f"{where}: what does '{block.note}' mean?")

    def close(self):
        self.shell.stdin.close()
        try:
            self.shell.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self.shell.pid, signal.SIGKILL)
            self.shell.wait(10)
        self.shell.stdout.close()

"""A program on a pseudo-terminal, and what its screen shows: a terminal that knows what ours may send and
nothing else, so that any other control byte fails the test."""

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import time

from lib.failure import HarnessError

SEQUENCE = re.compile(rb"\x1b\[(\??)([0-9;]*)([A-Za-z])")
COLOURS = re.compile(r"(?:^|;)(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])(?:;|$)")


class Screen:
    """argv is the leader of the terminal's session."""

    def __init__(self, argv, rows=24, columns=80, env=None, cwd=None):
        self.rows, self.columns = rows, columns
        self.master, slave = pty.openpty()
        self._resize()
        self.modes = termios.tcgetattr(slave)
        self.slave = os.ttyname(slave)

        def become_leader():
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        self.process = subprocess.Popen(argv, stdin=slave, stdout=slave, stderr=slave, env=env, cwd=cwd,
                                        preexec_fn=become_leader)
        self.keep = slave  # so that what it has written can be read when it is gone
        self.clear()
        self.pending = b""
        self.raw = b""
        self.alternate = self.cursor_hidden = self.colours = False
        self.wrapped = []

    def clear(self):
        self.cells = [[" "] * self.columns for _ in range(self.rows)]
        self.row = self.column = 0

    def _resize(self):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", self.rows, self.columns, 0, 0))

    def resize(self, rows, columns):
        """The kernel tells the program (SIGWINCH)."""
        self.read(0.05)
        self.rows, self.columns = rows, columns
        self.clear()
        self._resize()

    # --- what it sends ----------------------------------------------------------------------

    def _control(self, private, words, kind):
        if private and (words, kind) in (("1049", "h"), ("1049", "l")):
            self.alternate = kind == "h"
        elif private and (words, kind) in (("25", "h"), ("25", "l")):
            self.cursor_hidden = kind == "l"
        elif not private and kind == "m":
            self.colours = self.colours or bool(COLOURS.search(words))
        elif not private and kind == "H" and not words:
            self.row = self.column = 0
        elif not private and kind == "K" and not words:
            if self.row < self.rows:
                self.cells[self.row][self.column:] = [" "] * (self.columns - self.column)
        else:
            raise HarnessError(f"a sequence that is none of ours: {private}{words}{kind}")

    def _put(self, character):
        if self.column >= self.columns or self.row >= self.rows:
            self.wrapped.append(character)
            return
        self.cells[self.row][self.column] = character
        self.column += 1

    def _feed(self, data):
        self.raw += data
        data = self.pending + data
        self.pending = b""
        at = 0
        while at < len(data):
            byte = data[at]
            if byte == 0x1b:
                found = SEQUENCE.match(data, at)
                if not found:
                    if len(data) - at > 16:
                        raise HarnessError(f"an escape that is none of ours: {data[at:at + 16]}")
                    self.pending = data[at:]
                    return
                self._control(*(part.decode() for part in found.groups()))
                at = found.end()
            elif byte == 0x0d:
                self.column = 0
                at += 1
            elif byte == 0x0a:
                self.row += 1
                at += 1
            elif byte < 0x20 or byte == 0x7f:
                raise HarnessError(f"a control byte that is none of ours: {byte:#x}")
            else:
                length = 1 if byte < 0x80 else 2 if byte < 0xe0 else 3 if byte < 0xf0 else 4
                if at + length > len(data):
                    self.pending = data[at:]
                    return
                self._put(data[at:at + length].decode())
                at += length

    def read(self, seconds):
        """Takes in what comes within that time."""
        deadline = time.monotonic() + seconds
        os.set_blocking(self.master, False)
        while True:
            try:
                self._feed(os.read(self.master, 65536))
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    return
                time.sleep(0.01)
            except OSError:
                return

    @property
    def lines(self):
        return ["".join(row).rstrip() for row in self.cells]

    @property
    def text(self):
        return "\n".join(self.lines)

    def wait(self, condition, timeout=20, what=None):
        """Until condition(screen), or the words in it; returns the text."""
        if isinstance(condition, str):
            words, what = condition, condition
            condition = lambda screen: words in screen.text  # noqa: E731
        deadline = time.monotonic() + timeout
        while True:
            self.read(0.02)
            if condition(self):
                return self.text
            if time.monotonic() > deadline:
                raise HarnessError(f"no {what} on the screen:\n{self.text}")

    # --- what it is sent --------------------------------------------------------------------

    def type(self, keys):
        os.write(self.master, keys.encode())

    def ended(self, timeout=20):
        """Its exit status; the terminal must be as it was."""
        deadline = time.monotonic() + timeout
        while self.process.poll() is None:
            self.read(0.02)
            if time.monotonic() > deadline:
                raise HarnessError(f"it does not end:\n{self.text}")
        self.read(0.05)
        return self.process.returncode

    def is_given_back(self):
        return (not self.alternate and not self.cursor_hidden
                and termios.tcgetattr(self.keep) == self.modes)

    def close(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait(20)
        os.close(self.keep)
        os.close(self.master)

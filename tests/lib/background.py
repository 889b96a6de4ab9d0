"""Programs in the background of a test: started, waited for in bounded time, ended, and their logs judged."""

import contextlib
import os
import re
import signal
import subprocess
import time
from pathlib import Path

from lib.failure import HarnessError

# Sanitised binaries start and stop slowly on a busy machine.
START_TIMEOUT = 30
STOP_TIMEOUT = 20

# Words in a daemon's log that fail the test, whatever else it found.
SUSPICIOUS = re.compile(
    r"(Address|Leak|Thread|Memory|UndefinedBehavior)Sanitizer|runtime error:|\bassert(ion)?\b.*\bfail"
    r"|Assertion|\bleaked\b|double free|corrupted|stack smashing|buffer overflow",
    re.IGNORECASE)


def wait_until(condition, timeout=10, what="condition", interval=0.01):
    """Polls condition() until it returns something true, which is returned."""
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {timeout} s")
        time.sleep(interval)


def describe_process(pid):
    """State, waiting place and kernel stacks of a process's threads, for a failure report."""
    lines = []
    try:
        tasks = sorted(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return f"process {pid} is gone"
    for task in tasks:
        for name in ("comm", "wchan", "syscall", "stack"):
            with contextlib.suppress(OSError):
                text = (task / name).read_text(errors="replace").strip()
                lines.append(f"{task.name} {name}: {text}")
        with contextlib.suppress(OSError):
            state = re.search(r"^State:.*$", (task / "status").read_text(), re.MULTILINE)
            lines.append(f"{task.name} {state.group(0) if state else ''}")
    return "\n".join(lines)


def memory_of(pid):
    """Resident memory in bytes."""
    text = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"^VmRSS:\s+(\d+) kB", text, re.MULTILINE).group(1)) * 1024


def started_by(pid):
    """The processes that one of a single thread has started and not reaped."""
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def is_alive(pid):
    """Whether there is such a process that has not ended."""
    try:
        return not re.search(r"^State:\s+Z", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    except OSError:
        return False


class Process:
    """A program in the background with its output in a log file."""

    def __init__(self, harness, name, argv, env=None, cwd=None, stdin=subprocess.DEVNULL,
                 pass_fds=()):
        self.harness = harness
        self.name = name
        self.argv = [str(argument) for argument in argv]
        self.log_path = harness.new_path(f"{name}.log")
        self.expected_status = (0,)
        self.killed = False
        self.asked_to_end = False
        with open(self.log_path, "wb") as log:
            self.popen = subprocess.Popen(
                self.argv, env=env or harness.env, cwd=cwd or harness.directory, stdin=stdin,
                stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
                pass_fds=pass_fds)
        harness.own(self)

    @property
    def pid(self):
        return self.popen.pid

    @property
    def log(self):
        return self.log_path.read_text(errors="replace")

    def running(self):
        return self.popen.poll() is None

    def wait_for_line(self, pattern, count=1, timeout=START_TIMEOUT):
        """Waits until count lines of the log match; returns the match objects."""
        expression = re.compile(pattern, re.MULTILINE)

        def look():
            ended = not self.running()
            found = list(expression.finditer(self.log))
            if len(found) >= count:
                return found
            if ended:
                raise HarnessError(
                    f"{self.name} ended with status {self.popen.returncode}:\n{self.log}")
            return None

        try:
            return wait_until(look, timeout, f"{self.name}: line matching {pattern!r}")
        except TimeoutError as error:
            raise HarnessError(f"{error}\n{self.log}\n{describe_process(self.pid)}") from error

    def signal(self, number):
        if self.running():
            self.asked_to_end |= number == signal.SIGTERM
            self.popen.send_signal(number)

    def kill(self):
        """Ends it as a crash would."""
        self.killed = True
        self.signal(signal.SIGKILL)
        self.popen.wait(STOP_TIMEOUT)

    def stop(self, timeout=STOP_TIMEOUT):
        """Asks it to end; a program that does not, or ends with another status than expected,
        fails the test. May be called again."""
        if self.running():
            # Once: a second TERM means "at once" to a program that is ending.
            if not self.asked_to_end:
                self.signal(signal.SIGTERM)
            try:
                self.popen.wait(timeout)
            except subprocess.TimeoutExpired:
                state = describe_process(self.pid)
                self.kill()
                raise HarnessError(f"{self.name} did not end on TERM:\n{state}\n{self.log}") from None
        status = self.popen.wait(timeout)
        if not self.killed and status not in self.expected_status:
            raise HarnessError(f"{self.name} ended with status {status}:\n{self.log}")
        return status

    def close(self):
        """End of the test: stop, and judge the log."""
        self.stop()
        found = SUSPICIOUS.search(self.log)
        if found:
            raise HarnessError(f"{self.name} wrote {found.group(0)!r}:\n{self.log}")

    def memory(self):
        return memory_of(self.pid)

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.pid}/fd"))

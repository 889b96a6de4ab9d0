"""What the benchmarks stand on: the tree, steps that take a time, the systems side by side, tables."""

import contextlib
import getpass
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tarfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from lib import harness as parts  # noqa: E402
from lib import mounts  # noqa: E402

ROUND_TRIP_MS = 20
BANDWIDTH = 100_000_000 // 8
WORKSPACE = "bench"

GIT = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}


# --- the tree ------------------------------------------------------------------------------

def generate_tree(directory, files, size):
    """A tree in the shape of git's own source: the same for the same arguments. Sizes are spread
    as there (half below 4 KiB, a few of hundreds of KiB), there are 25 files to a directory, and
    text repeats itself as source does, so that it shrinks to a fourth."""
    generator = random.Random(20240229)
    words = ["".join(generator.choice("etaoinshrdlucmfwypvbgkjqxz") for _ in range(generator.randint(2, 11)))
             for _ in range(4000)]
    lines = ["\t" * generator.randint(0, 3) + " ".join(generator.choices(words, k=generator.randint(2, 9)))
             + generator.choice((";", " {", ",", ")", "")) for _ in range(20000)]
    weights = [min(generator.lognormvariate(0, 1.6), 100) for _ in range(files)]
    scale = size / sum(weights)
    directories = [directory]
    for index in range(max(4, files // 25)):
        parent = generator.choice(directories[: 1 + index // 3])
        path = parent / f"dir{index:03}"
        path.mkdir()
        directories.append(path)
    for index, weight in enumerate(weights):
        length = int(weight * scale) + 20
        # A file has lines of its own, most of which it uses more than once.
        own = generator.choices(lines, k=8 + length // 160)
        text = []
        have = 0
        while have < length:
            line = own[int(len(own) * generator.random() ** 2)]
            if generator.random() < 0.3:
                line = f"{line} {generator.choice(words)}"
            text.append(line)
            have += len(line) + 1
        path = generator.choice(directories) / f"file{index:04}.{generator.choice('chtpm')}"
        path.write_text("\n".join(text)[:length] + "\n")


def prepare_tree(options, directory):
    """The model tree, a git repository with everything committed, and the archive of 500 files."""
    tree = directory / "model"
    if options.tree:
        shutil.copytree(options.tree, tree, symlinks=True, ignore=shutil.ignore_patterns(".git"))
    else:
        tree.mkdir()
        generate_tree(tree, options.files, options.size)
    for command in (["init", "-q"], ["add", "-A"],
                    ["-c", "user.name=b", "-c", "user.email=b@b", "commit", "-q", "-m", "tree"],
                    ["gc", "-q"]):
        subprocess.run(["git", *command], cwd=tree, env=GIT, check=True, timeout=600)
    count = total = 0
    members = []
    for parent, names, leaves in os.walk(tree):
        names[:] = sorted(name for name in names if name != ".git")
        for leaf in sorted(leaves):
            path = Path(parent) / leaf
            if path.is_symlink():
                continue
            count += 1
            total += path.stat().st_size
            if len(members) < options.archive and path.stat().st_size < 65536:
                members.append(path)
    archive = directory / "files.tar"
    with tarfile.open(archive, "w") as out:
        for path in members:
            out.add(path, f"unpacked/{path.relative_to(tree)}")
    return tree, archive, count, total, len(members)


# --- running a step ------------------------------------------------------------------------

class Took:
    """What a step took; seconds None: ended at the limit; error: why it failed."""

    def __init__(self, seconds, limit, error=None):
        self.seconds, self.limit, self.error = seconds, limit, error
        self.count = 1

    def __str__(self):
        if self.error:
            return f"failed ({self.error})"
        if self.seconds is None:
            return f"> {self.limit:g} s"
        if self.seconds < 0.0001:
            return f"{self.seconds * 1e6:.1f} µs"
        if self.seconds < 0.0995:
            return f"{self.seconds * 1000:.2g} ms" if self.seconds < 0.00995 else f"{self.seconds * 1000:.0f} ms"
        return f"{self.seconds:.2f} s" if self.seconds < 10 else f"{self.seconds:.0f} s"


def timed(argv, cwd, limit, env=None):
    """Runs a program to its end or the limit, output thrown away."""
    started = time.perf_counter()
    process = subprocess.Popen([str(word) for word in argv], cwd=cwd, env=env,
                               stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE, start_new_session=True)
    try:
        _, message = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=60)
        return Took(None, limit)
    seconds = time.perf_counter() - started
    if process.returncode != 0:
        lines = message.decode(errors="replace").strip().splitlines()
        return Took(None, limit, f"status {process.returncode}: {lines[-1] if lines else ''}"[:90])
    return Took(seconds, limit)


def median_of(call, count, limit):
    """Median seconds of `count` calls; stops at the limit, then of as many as there were."""
    times = []
    end = time.perf_counter() + limit
    while len(times) < count and (not times or time.perf_counter() < end):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    took = Took(statistics.median(times), limit)
    took.count = len(times)
    return took


# --- the systems ---------------------------------------------------------------------------

class Local:
    name = "local"

    def __init__(self, bench, label=""):
        self.bench = bench
        self.tree = self.behind = bench.directory / f"local{label}"
        bench.copy_model(self.tree)

    def fresh(self):
        """Makes the system forget what it knows: here nothing. `behind` is where its tree is
        without it."""

    def run_true(self, count):
        return median_of(lambda: subprocess.run(["/bin/true"], check=True), count, self.bench.limit)

    def close(self):
        pass


class Sshfs:
    """sshfs with its default options, as users run it, to a private sshd."""

    name = "sshfs"

    def __init__(self, bench, port, label, options=()):
        self.bench, self.port, self.options = bench, port, options
        self.point = bench.directory / f"sshfs-{label}"
        self.point.mkdir()
        self.tree = self.point / "tree"
        self.behind = bench.remote / "tree"
        self.control = bench.harness.short / f"ssh-{label}"
        self.process = None

    def fresh(self):
        self.close()
        # sshfs knows ssh's -F and -o, but not -i.
        options = self.bench.sshd.options()
        at = options.index("-i")
        options[at:at + 2] = ["-o", f"IdentityFile={options[at + 1]}"]
        command = ["sshfs", "-f", f"{getpass.getuser()}@127.0.0.1:{self.bench.remote}", self.point,
                   "-p", str(self.port), *options]
        for option in self.options:
            command += ["-o", option]
        self.process = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL)
        parts.wait_until(lambda: mounts.find_mount(self.point), 60, "sshfs mount")
        os.stat(self.tree)

    def run_true(self, count):
        control = ["-o", f"ControlPath={self.control}"]
        run = self.bench.sshd.command(*control, port=self.port)
        master = self.bench.sshd.command(*control, "-o", "ControlMaster=yes", "-o",
                                         "ControlPersist=120", "-f", "-N", port=self.port)
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "timeout": 60}
        subprocess.run(master, check=True, **quiet)
        try:
            return median_of(lambda: subprocess.run([*run, "true"], check=True, **quiet), count,
                             self.bench.limit)
        finally:
            subprocess.run([*run[:1], "-O", "exit", *run[1:]], check=False,
                           stderr=subprocess.DEVNULL, **quiet)

    def close(self):
        if self.process:
            mounts.force_unmount(self.point)
            self.process.kill()
            self.process.wait(30)
            self.process = None


class Berth:
    name = "berth"

    def __init__(self, bench, service, label, relay=None, url=None):
        self.bench, self.service, self.relay = bench, service, relay
        self.url = url or (relay.url if relay else service.url)
        self.point = bench.directory / f"berth-{label}"
        self.point.mkdir()
        self.tree = self.point / WORKSPACE / "tree"
        self.behind = service.root / "workspaces" / WORKSPACE / "tree" / "tree"
        self.mount = None

    def fresh(self):
        self.close()
        self.mount = self.bench.harness.start_mount(self.service, url=self.url, path=self.point)
        parts.wait_until(lambda: self.mount.stats()["coherent"], 60, "reports of changes")
        os.stat(self.tree)

    def run_true(self, count):
        harness = self.bench.harness
        env = self.service.client_env(self.url)
        argv = [harness.program("berth"), "exec", "-w", WORKSPACE, "--", "true"]
        return median_of(lambda: subprocess.run(argv, env=env, check=True, timeout=60,
                                                stdin=subprocess.DEVNULL), count, self.bench.limit)

    def close(self):
        if self.mount:
            self.bench.harness.owned.remove(self.mount)
            self.mount.close()
            self.mount = None


class Counts:
    """Round trips of a step in Berth, as the relay and as the driver counted them."""

    def __init__(self, system, connection_of_its_own=False):
        self.relay = getattr(system, "relay", None)
        self.mount = getattr(system, "mount", None) if not connection_of_its_own else None
        if self.relay:
            self.relay.reset_stats()
        self.before = self._driver()

    def _driver(self):
        return self.mount.stats() if self.mount else None

    def since(self):
        """(relay's stats or None, driver's difference or None)"""
        after = self._driver()
        difference = None
        if after:
            difference = {key: value - self.before.get(key, 0) for key, value in after.items()
                          if isinstance(value, int)}
        # The question about the driver's stats is answered locally and makes no frame.
        return self.relay.stats() if self.relay else None, difference


# --- counts and tables --------------------------------------------------------------------

def ratio(one, other):
    if one.error or other.error:
        return "—"
    if one.seconds is None and other.seconds is None:
        return "—"
    if one.seconds is None:
        return f"> {one.limit / other.seconds:.0f} ×"
    if other.seconds is None:
        return f"< {one.seconds / other.limit:.2f} ×"
    value = one.seconds / other.seconds
    return f"{value:.1f} ×" if value >= 0.1 else f"{value:.3f} ×"


def table(header, rows):
    print("| " + " | ".join(header) + " |")
    print("|" + " --- |" * len(header))
    for row in rows:
        print("| " + " | ".join(str(cell) for cell in row) + " |")
    print(flush=True)


def progress(text):
    print(text, file=sys.stderr, flush=True)

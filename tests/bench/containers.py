"""A container in which commands can be run beside `berth exec`, made of this machine's own files."""

import json
import re
import shutil
import subprocess

NAME = "berth-bench-exec"
QUIET = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}

# Stands before the runtime: where a service may not raise limits, whatever asks for some is refused
# as a whole. They are no part of what is measured.
WITHOUT_LIMITS = """#!/usr/bin/python3
import json, os, sys
for option, value in zip(sys.argv, sys.argv[1:]):
    path = value + "/config.json" if option in ("--bundle", "-b") else value
    if option in ("--bundle", "-b", "--process", "-p"):
        with open(path) as file:
            config = json.load(file)
        for limit in ("rlimits", "oomScoreAdj"):
            config.get("process", config).pop(limit, None)
        with open(path, "w") as file:
            json.dump(config, file)
os.execv({real!r}, [{name!r}, *sys.argv[1:]])
"""


def make_root(root):
    """A root with `true` and `sleep`, and what they load."""
    for directory in ("bin", "proc", "sys", "dev", "tmp", "etc"):
        (root / directory).mkdir(parents=True)
    for program in ("/bin/true", "/bin/sleep"):
        shutil.copy(program, root / "bin")
        listed = subprocess.run(["ldd", program], check=True, capture_output=True, text=True, timeout=20).stdout
        for library in re.findall(r"(/\S+)", listed):
            target = root / library.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(library, target)


def last_line(result):
    return (result.stderr.strip() or "no reason given").splitlines()[-1]


class Podman:
    """words: what goes before `exec NAME CMD`; without them, reason says what came of each try."""

    def __init__(self, directory, stack):
        self.words, self.reason = None, "podman is not installed"
        podman = shutil.which("podman")
        if not podman:
            return
        make_root(directory / "root")
        tried = []
        for runtime in ("crun", "runc"):
            real = shutil.which(runtime)
            if not real:
                tried.append(f"{runtime}: not installed")
                continue
            for where, path in (("as it is", real), ("asked for no limits", self.wrap(directory, runtime, real))):
                words = [podman, "--root", str(directory / "storage"), "--runroot", str(directory / "run"),
                         "--storage-driver", "vfs", "--cgroup-manager", "cgroupfs", "--runtime", str(path)]
                why = self.start(words, directory / "root", stack)
                if why is None:
                    self.words, self.how = words, f"{runtime}, {where}"
                    return
                tried.append(f"{runtime}, {where}: {why}")
        self.reason = "; ".join(tried)

    @staticmethod
    def wrap(directory, runtime, real):
        path = directory / "runtimes" / runtime  # podman goes by the name
        path.parent.mkdir(exist_ok=True)
        path.write_text(WITHOUT_LIMITS.replace("{real!r}", repr(real)).replace("{name!r}", repr(runtime)))
        path.chmod(0o755)
        return path

    @staticmethod
    def start(words, root, stack):
        """None, or why it cannot be."""
        remove = [*words, "rm", "-f", "-t", "0", NAME]
        try:
            started = subprocess.run(
                [*words, "run", "-d", "--name", NAME, "--ulimit", "host", "--security-opt", "seccomp=unconfined",
                 "--network", "none", "--rootfs", str(root), "/bin/sleep", "3600"],
                check=False, stderr=subprocess.PIPE, text=True, timeout=60, **QUIET)
            if started.returncode == 0:
                stack.callback(subprocess.run, remove, check=False, timeout=60, stderr=subprocess.DEVNULL, **QUIET)
                return None
            subprocess.run(remove, check=False, timeout=60, stderr=subprocess.DEVNULL, **QUIET)
            return last_line(started)
        except subprocess.TimeoutExpired:
            return "no end in 60 s"


class Docker:
    """The same, by a daemon that runs already: one of our own would change the machine's network."""

    def __init__(self, directory, stack):
        self.words, self.how, self.reason = None, "the daemon that runs here", "docker is not installed"
        docker = shutil.which("docker")
        if not docker:
            return
        asked = subprocess.run([docker, "version", "--format", "json"], check=False, capture_output=True, text=True,
                               timeout=30)
        server = json.loads(asked.stdout or "{}").get("Server") if asked.stdout.startswith("{") else None
        if not server:
            self.reason = f"no daemon answers: {last_line(asked)}"
            return
        root = directory / "root"
        if not root.exists():
            make_root(root)
        archive = subprocess.run(["tar", "-C", str(root), "-c", "."], check=True, capture_output=True, timeout=60).stdout
        subprocess.run([docker, "import", "-", NAME], input=archive, check=True, timeout=60, stdout=subprocess.DEVNULL)
        stack.callback(subprocess.run, [docker, "rmi", "-f", NAME], check=False, timeout=60, **QUIET)
        started = subprocess.run([docker, "run", "-d", "--rm", "--name", NAME, "--network", "none", NAME, "/bin/sleep",
                                  "3600"], check=False, stderr=subprocess.PIPE, text=True, timeout=60, **QUIET)
        if started.returncode != 0:
            self.reason = last_line(started)
            return
        stack.callback(subprocess.run, [docker, "rm", "-f", NAME], check=False, timeout=60, **QUIET)
        self.words = [docker]

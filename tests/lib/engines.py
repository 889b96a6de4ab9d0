"""Real container engines with storage of their own, and an image of BusyBox that is made here: nothing is
pulled, and no network of the machine's is touched, so containers have none or the machine's.

Two things that engines expect are missing on some machines, virtual ones and containers above all, and are
looked for first:

- the right to raise limits (CAP_SYS_RESOURCE): engines are then told to leave limits as they are;
- one kind of cgroups: where v1 and v2 are both mounted ("hybrid"), crun and runc refuse or look in the
  wrong place, so the engine is given a mount namespace in which v2 is not there.
"""

import contextlib
import os
import re
import resource
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from lib.failure import HarnessError

IMAGE = "localhost/berth-test"
HYBRID = Path("/sys/fs/cgroup/unified")
CAP_SYS_RESOURCE = 1 << 24
SEARCH = os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin"


def make_root(directory):
    """BusyBox, all of its applets as links, and users."""
    busybox = shutil.which("busybox", path=SEARCH)
    if not busybox:
        raise HarnessError("busybox is not installed")
    for name in ("bin", "dev", "etc", "proc", "root", "sys", "tmp", "usr/bin", "var/lib"):
        (directory / name).mkdir(parents=True)
    shutil.copy(busybox, directory / "bin/busybox")
    listed = subprocess.run([busybox, "--list"], check=True, capture_output=True, text=True, timeout=20)
    for name in listed.stdout.split():
        if name != "busybox":
            (directory / "bin" / name).symlink_to("busybox")
    (directory / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (directory / "etc/group").write_text("root:x:0:\n")
    (directory / "tmp").chmod(0o1777)


def limits_are_fixed():
    bounding = re.search(r"^CapBnd:\s*(\S+)", Path("/proc/self/status").read_text(), re.MULTILINE).group(1)
    return not int(bounding, 16) & CAP_SYS_RESOURCE


def limits_here():
    """What may be given to a container without raising anything: {"nofile": …, "nproc": …}. Podman gives
    itself no more processes than there are numbers for."""
    hard = {name: resource.getrlimit(which)[1]
            for name, which in (("nofile", resource.RLIMIT_NOFILE), ("nproc", resource.RLIMIT_NPROC))}
    most = int(Path("/proc/sys/kernel/pid_max").read_text())
    if hard["nproc"] == resource.RLIM_INFINITY or hard["nproc"] > most:
        hard["nproc"] = most
    return {name: value for name, value in hard.items() if value != resource.RLIM_INFINITY}


def without_hybrid_cgroups():
    """Words that go before an engine."""
    if not os.path.ismount(HYBRID):
        return []
    return ["unshare", "--mount", "--propagation", "private", "--", "sh", "-c",
            f'umount {HYBRID} && exec "$@"', "sh"]


class Engine:
    """bin: a directory for the front of PATH, in which the program of this name is this engine; how: what
    had to be done for it."""

    name = None
    image = IMAGE

    def __init__(self, *programs):
        self.programs = {name: self._program(name) for name in programs}
        # Sockets lie below it, whose addresses are at most 107 bytes.
        self.directory = Path(tempfile.mkdtemp(prefix="berth-", dir="/tmp"))
        self.bin = self.directory / "bin"
        self.bin.mkdir()
        self.before = without_hybrid_cgroups()
        self.limits = [f"{name}={value}:{value}" for name, value in limits_here().items()] \
            if limits_are_fixed() else []
        self.how = ", ".join((["cgroup v2 out of sight"] if self.before else [])
                             + (["limits left as they are"] if self.limits else [])) or "as it is"

    @staticmethod
    def _program(name):
        found = shutil.which(name, path=SEARCH)
        if not found:
            raise HarnessError(f"{name} is not installed")
        return found

    def write_program(self, text):
        path = self.bin / self.name
        path.write_text(text)
        path.chmod(0o755)

    def run(self, *words, check=True, timeout=60, **keywords):
        keywords.setdefault("stdin", None if "input" in keywords else subprocess.DEVNULL)
        if keywords["stdin"] is None:
            del keywords["stdin"]
        result = subprocess.run([self.bin / self.name, *map(str, words)], check=False, timeout=timeout,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, **keywords)
        if check and result.returncode != 0:
            raise HarnessError(f"{self.name} {words}: {result.stderr.decode(errors='replace')}")
        return result

    def text(self, *words, **keywords):
        return self.run(*words, **keywords).stdout.decode()

    def make_image(self, root=None):
        directory = self.directory / "image"
        if root is None:
            make_root(directory)
        archive = subprocess.run(["tar", "-C", str(root or directory), "--numeric-owner", "--owner=0", "--group=0",
                                  "-c", "."], check=True, capture_output=True, timeout=60).stdout
        self.run("import", "-", self.image, input=archive)
        shutil.rmtree(directory, ignore_errors=True)

    def names(self):
        """Of all containers, also those that do not run."""
        return self.text("ps", "--all", "--format", "{{.Names}}").split()

    def remove_all(self):
        names = self.names()
        if names:
            self.run("rm", "--force", "--volumes", *names, check=False)

    def close(self):
        try:
            self.remove_all()
        finally:
            self.stop()
            self._wait_for_helpers()
            for top in (f"/sys/fs/cgroup/*/{name}" for name in ("libpod_parent", "docker")):
                for pattern in (f"{top}/*", top):
                    for path in Path("/").glob(pattern.lstrip("/")):
                        with contextlib.suppress(OSError):
                            path.rmdir()
            shutil.rmtree(self.directory, ignore_errors=True)

    def _wait_for_helpers(self):
        """An engine's own clean-up of a container goes on behind its removal, and would make files again."""
        name = str(self.directory).encode()
        deadline = time.monotonic() + 20

        def busy():
            for entry in Path("/proc").iterdir():
                with contextlib.suppress(OSError):
                    if entry.name.isdigit() and name in (entry / "cmdline").read_bytes():
                        return True
            return False

        while busy() and time.monotonic() < deadline:
            time.sleep(0.1)

    def stop(self):
        pass


class Podman(Engine):
    name = "podman"

    def __init__(self, runtime="crun"):
        super().__init__("podman", runtime)
        real = self.programs["podman"]
        configuration = self.directory / "containers.conf"
        limits = ", ".join(f'"{limit}"' for limit in self.limits)
        configuration.write_text(
            "[containers]\nnetns = \"none\"\n" + (f"default_ulimits = [{limits}]\n" if limits else "")
            + f'[engine]\ncgroup_manager = "cgroupfs"\nruntime = "{runtime}"\nevents_logger = "none"\n'
            f'tmp_dir = "{self.directory}/tmp"\n')
        self.how = f"{runtime}, {self.how}"
        words = [*self.before, real, "--root", self.directory / "storage", "--runroot", self.directory / "run",
                 "--storage-driver", "vfs"]
        self.write_program(f"#!/bin/sh\nCONTAINERS_CONF={configuration}\nexport CONTAINERS_CONF\nexec "
                           + " ".join(f"'{word}'" for word in words) + ' "$@"\n')

    def remove_all(self):
        if self.text("pod", "ls", "--quiet", check=False):
            self.run("pod", "rm", "--force", "--all", "--time", "0", check=False)
        self.run("rm", "--force", "--all", "--volumes", "--time", "0", check=False)


class PodmanAsDocker(Podman):
    """Podman by the name of Docker, whose command line it takes: what the package podman-docker is."""

    name = "docker"


class Docker(Engine):
    """A dockerd of our own."""

    name = "docker"

    def __init__(self):
        super().__init__("docker", "dockerd")
        socket = f"unix://{self.directory}/docker.sock"
        self.write_program(f"#!/bin/sh\nDOCKER_HOST={socket}\nexport DOCKER_HOST\n"
                           f"exec '{self.programs['docker']}' \"$@\"\n")
        words = [*self.before, self.programs["dockerd"], "--host", socket, "--data-root", self.directory / "data",
                 "--exec-root", self.directory / "exec", "--pidfile", self.directory / "pid", "--iptables=false",
                 "--ip6tables=false", "--bridge=none", "--storage-driver=vfs",
                 *(word for limit in self.limits for word in ("--default-ulimit", limit)
                   if not limit.startswith("nproc"))]
        self.log = self.directory / "log"
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen([str(word) for word in words], stdin=subprocess.DEVNULL, stdout=log,
                                            stderr=log, start_new_session=True,
                                            env={**os.environ, "PATH": SEARCH})
        deadline = time.monotonic() + 60
        while self.run("version", check=False).returncode != 0:
            if self.process.poll() is not None or time.monotonic() > deadline:
                log = self.log.read_text(errors="replace")[-4000:]
                self.stop()
                shutil.rmtree(self.directory, ignore_errors=True)
                raise HarnessError(f"dockerd does not come up:\n{log}")
            time.sleep(0.2)

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)

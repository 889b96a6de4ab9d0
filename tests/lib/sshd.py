"""A private sshd on loopback, with keys of its own, for a test or a benchmark."""

import getpass
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

SSHD = shutil.which("sshd", path="/usr/sbin:/usr/bin:/sbin:/bin")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Sshd:
    """directory: private, for keys and configuration. port: where it listens. command(): the
    ssh command line, without the remote command, that reaches it (extra: more options). settings: more
    lines of its configuration."""

    def __init__(self, directory, settings=""):
        assert SSHD, "sshd is not installed"
        self.directory = Path(directory)
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in ("host", "user"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", name],
                           cwd=self.directory, check=True, timeout=30)
        shutil.copy(self.directory / "user.pub", self.directory / "authorized")
        if os.geteuid() == 0:
            os.makedirs("/run/sshd", mode=0o755, exist_ok=True)  # where it drops privileges to
        self.port = free_port()
        (self.directory / "config").write_text(
            f"Port {self.port}\nListenAddress 127.0.0.1\nHostKey {self.directory}/host\n"
            f"PidFile {self.directory}/pid\nAuthorizedKeysFile {self.directory}/authorized\n"
            "StrictModes no\nUsePAM no\nPasswordAuthentication no\nPermitRootLogin yes\n"
            "MaxSessions 100\nMaxStartups 100\nSubsystem sftp internal-sftp\n" + settings)
        self.log = open(self.directory / "log", "wb")
        self.process = subprocess.Popen([SSHD, "-D", "-e", "-f", str(self.directory / "config")],
                                        stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)
        deadline = time.monotonic() + 20
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    self.stop()
                    raise AssertionError((self.directory / "log").read_text()) from None
                time.sleep(0.05)

    def options(self):
        return ["-F", "none", "-i", str(self.directory / "user"), "-o", "IdentitiesOnly=yes",
                "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null",
                "-o", "LogLevel=ERROR", "-o", "BatchMode=yes"]

    def command(self, *extra, port=None):
        return ["ssh", *self.options(), "-p", str(port or self.port), *extra,
                f"{getpass.getuser()}@127.0.0.1"]

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)
        self.log.close()

"""The SDK of E2B, as tests/clients/e2b has it."""

import fcntl
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "clients" / "e2b"


def fetch():
    """A directory with the SDK and what it needs, as the lock file names them, fetched once for a build
    directory."""
    lock = (SOURCE / "package-lock.json").read_bytes()
    directory = Path(os.environ["BERTH_BUILD"]) / f"clients-e2b-{hashlib.sha256(lock).hexdigest()[:16]}"
    directory.mkdir(exist_ok=True)
    with open(directory / "lock", "w", encoding="ascii") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if not (directory / "complete").exists():
            for name in ("package.json", "package-lock.json"):
                shutil.copy(SOURCE / name, directory)
            command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
            done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=300, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
            (directory / "complete").touch()
    return directory


def node_version():
    out = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True, timeout=30).stdout
    return int(out.lstrip("v").split(".")[0])


def node_flags():
    """Node is Debian's 18 or a later one: the first wants to be asked for the cryptography that later ones have."""
    return [] if node_version() >= 20 else ["--experimental-global-webcrypto"]

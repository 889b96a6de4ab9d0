"""Runs in a machine (lib/machine.py): a service in /mnt, and commands with `berth`, one after the other. A program
of its own, with nothing but the standard library."""

import ctypes
import json
import os
import subprocess
import sys
import time

FINIT_MODULE = 313

ENVIRONMENT = {**os.environ, "HOME": "/mnt", "XDG_RUNTIME_DIR": "/mnt/run", "BERTH_URL": "unix:/mnt/s"}


def living(word):
    """How many processes have it in their arguments."""
    count = 0
    for name in os.listdir("/proc"):
        try:
            with open(f"/proc/{name}/cmdline", "rb") as line:
                count += name.isdigit() and name != str(os.getpid()) and word.encode() in line.read()
        except OSError:
            pass
    return count


def mount_disk():
    """The machine's disk, at /mnt/disk: ext4 with quotas of projects, whose format is a module."""
    load_modules("fs/quota/quota_tree", "fs/quota/quota_v2")
    os.mkdir("/mnt/disk")
    subprocess.run(["mount", "-t", "ext4", "-o", "prjquota", "/dev/ubda", "/mnt/disk"], check=True)


def run_steps(job, steps, **keywords):
    """Runs them, and answers with what came of each."""
    answers = {}
    for name, step in steps.items():
        begun = time.monotonic()
        result = subprocess.run(step, cwd="/mnt", capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=120,
                                check=False, **keywords)
        answers[name] = {"status": result.returncode, "stdout": result.stdout, "stderr": result.stderr,
                         "living": living(job["word"]), "took": time.monotonic() - begun}
    with open(job["answer"] + ".new", "w", encoding="utf-8") as file:
        json.dump(answers, file)
    os.rename(job["answer"] + ".new", job["answer"])


def read_job(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def load_modules(*paths):
    """Of the machine's kernel, as paths below its kernel/ without .ko."""
    for path in paths:
        with open(f"/usr/lib/uml/modules/{os.uname().release}/kernel/{path}.ko", "rb") as module:
            if ctypes.CDLL(None).syscall(FINIT_MODULE, module.fileno(), b"", 0) != 0:
                sys.exit(f"{path} cannot be loaded")


def main(job):
    job = read_job(job)
    os.mkdir("/mnt/run", 0o700)
    if job["disk"]:
        mount_disk()
    root = "/mnt/disk/root" if job["disk"] else "/mnt/root"
    service = subprocess.Popen([job["berthd"], "--root", root, "--listen", "unix:/mnt/s"], env=ENVIRONMENT)
    while not os.path.exists("/mnt/s"):
        if service.poll() is not None:
            sys.exit("the service has ended")
        time.sleep(0.01)
    run_steps(job, {name: [job["berth"], *step] for name, step in job["steps"].items()}, env=ENVIRONMENT)
    service.terminate()
    service.wait(20)


if __name__ == "__main__":
    main(sys.argv[1])

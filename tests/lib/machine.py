"""A machine of its own for a test that needs what this one's kernel is set up without: User Mode Linux on
this machine's files. It has cgroup v2 with every controller, and forgets everything when it ends."""

import json
import os
import signal
import subprocess

from lib.harness import HarnessError

KERNEL = "linux.uml"
BOOT_TIMEOUT = 240  # of everything that is done in it, on a busy machine

INIT = """#!/bin/sh
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t cgroup2 cgroup /sys/fs/cgroup
mount -t tmpfs tmpfs /mnt
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8
{how} /usr/bin/python3 '{program}' '{job}' > '{log}' 2>&1
halt -f
"""


def run_in_machine(place, program, job, memory="512M", disk=None, becomes=False):
    """Runs a Python program in it as root, with the path of a JSON file that holds the job; /mnt is an empty tmpfs
    there, and all else this machine's files. becomes: it is process 1, and has to end the machine itself. disk: an image that is its /dev/ubda. What it writes to the file that job["answer"] will name is returned.
    place: an empty directory."""
    answer, log, console = place / "answer", place / "log", place / "console"
    (place / "job").write_text(json.dumps({**job, "answer": str(answer)}))
    (place / "init").write_text(INIT.format(how="exec" if becomes else "", program=program, job=place / "job", log=log))
    (place / "init").chmod(0o755)
    with open(console, "wb") as out:
        machine = subprocess.Popen(
            [KERNEL, f"mem={memory}", "rootfstype=hostfs", "rootflags=/", "rw", f"init={place / 'init'}", "con=null",
             "con0=null,fd:1", f"uml_dir={place}", "quiet", *([f"ubd0={disk}"] if disk else [])],
            stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, cwd=place, start_new_session=True,
            env={"PATH": os.environ["PATH"], "HOME": str(place)})
    try:
        machine.wait(BOOT_TIMEOUT)
    except subprocess.TimeoutExpired:
        raise HarnessError(f"the machine does not end:\n{console.read_text(errors='replace')}") from None
    finally:
        if machine.poll() is None:
            os.killpg(machine.pid, signal.SIGKILL)
            machine.wait()
    if not answer.exists():
        said = [file.read_text(errors="replace") for file in (log, console) if file.exists()]
        raise HarnessError("the machine gives no answer:\n" + "\n".join(said))
    return json.loads(answer.read_text())

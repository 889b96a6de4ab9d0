"""Becomes systemd in a machine (lib/machine.py) that has Berth's units, and runs there what the job says, one after the
other. Nothing but the standard library."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from lib.booted_root import MS_BIND, enter, mount  # noqa: E402
from lib.machine_commands import load_modules, read_job, run_steps  # noqa: E402

UNIT = """[Unit]
Description=What a test does
After=sysinit.target
Requires=sysinit.target
SuccessAction=poweroff-immediate
FailureAction=poweroff-immediate

[Service]
Type=oneshot
ExecStart=/usr/bin/python3 {program} {job}
StandardOutput=append:{place}/log
StandardError=inherit
"""

def prepare(job_path, job):
    """In the root that is to be, which is the working directory."""
    place = str(Path(job_path).parent)
    for shared in (place, job["repository"]):  # /tmp is another one there
        os.makedirs(shared.lstrip("/"), exist_ok=True)
        mount(shared, shared.lstrip("/"), None, MS_BIND)
    target = Path("etc/systemd/system")
    for unit in ("berthd", "berthd-keeper"):
        shutil.copy(f"{job['repository']}/contrib/systemd/{unit}.socket", target / f"{unit}.socket")
        text = Path(f"{job['build']}/contrib/system-{unit}.service").read_text(encoding="utf-8")
        (target / f"{unit}.service").write_text(text)
    programs = Path(re.search(r"^ExecStart=(\S+)/berthd", text, re.MULTILINE).group(1).lstrip("/"))
    programs.mkdir(parents=True, exist_ok=True)
    for name in ("berthd", "berth"):
        shutil.copy(job[name], programs / name)
    Path("etc/systemd/system/test.service").write_text(UNIT.format(program=__file__, job=job_path, place=place))
    with open("etc/systemd/system/default.target", "a", encoding="utf-8") as target:
        target.write("Wants=test.service\n")


def main(job_path):
    job = read_job(job_path)
    if os.getpid() == 1:
        load_modules("fs/overlayfs/overlay")
        os.mkdir("/mnt/machine")
        enter("/mnt/machine", lambda: prepare(job_path, job))
    units = f"{job['repository']}/contrib/systemd"
    subprocess.run(["systemd-sysusers", f"{units}/berth.sysusers"], check=True)
    subprocess.run(["systemd-tmpfiles", "--create", f"{units}/berth.tmpfiles"], check=True)
    run_steps(job, job["steps"])


if __name__ == "__main__":
    main(sys.argv[1])

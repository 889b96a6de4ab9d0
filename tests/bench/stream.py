"""Large files from one end to the other: how fast, and with how much memory."""

import os
import re
from pathlib import Path

from systems import Berth, Local, Sshfs, progress, ratio, table, timed

LIMIT = 600  # seconds; a slow system is to have a figure, too


def peak(process):
    """The most memory a process has had resident, in bytes, since the last reset."""
    text = Path(f"/proc/{process.pid}/status").read_text()
    return int(re.search(r"^VmHWM:\s+(\d+) kB", text, re.MULTILINE).group(1)) * 1024


def reset_peak(process):
    Path(f"/proc/{process.pid}/clear_refs").write_text("5")


def steps(size, source):
    """(name, whether the system is to have forgotten all, command); sizes in MiB."""
    yield "dd, write zeros", True, ["dd", "if=/dev/zero", "of=large", "bs=1M", f"count={size}"]
    yield "dd, read zeros", True, ["dd", "if=large", "of=/dev/null", "bs=1M"]
    yield "cp random data, to it", False, ["cp", source, "copied"]
    yield "cp random data, from it", True, ["cp", "copied", f"{source}.back"]
    yield "dd, read random data", True, ["dd", "if=copied", "of=/dev/null", "bs=1M"]


def bench_stream(bench, stack):
    size, large = (32, 64) if bench.options.quick else (1024, 4096)
    source = bench.directory / "source"
    with open(source, "wb") as file:
        for _ in range(size):
            file.write(os.urandom(1 << 20))
    systems = [("local", Local(bench)), ("sshfs", Sshfs(bench, bench.sshd.port, "stream")),
               ("Berth, unix", Berth(bench, bench.service, "stream-unix")),
               ("Berth, TLS", Berth(bench, bench.service, "stream-tls", url=bench.service.tls_url))]
    found = {}
    for label, system in systems:
        stack.callback(system.close)
        for name, cold, command in steps(size, source):
            if cold:
                system.fresh()
            took = timed(command, system.tree, LIMIT)
            progress(f"  {label}: {name}: {took}")
            found.setdefault(name, {})[label] = took
        for name in (system.tree / "large", system.tree / "copied", Path(f"{source}.back")):
            name.unlink()
        system.close()
    rows = []
    for name, took in found.items():
        speed = {label: f"{size / each.seconds:.0f} MiB/s" if each.seconds else str(each)
                 for label, each in took.items()}
        rows.append([name, *speed.values(), ratio(took["sshfs"], took["Berth, TLS"])])
    print(f"### A file of {size} MiB\n")
    table(["work", *(label for label, _ in systems), "Berth, TLS, against sshfs"], rows)

    system = systems[-1][1]
    system.fresh()
    memory = []
    copies = " ".join([str(source)] * (large // size))
    for name, command in (("write", ["sh", "-c", f"cat {copies} > large"]),
                          ("read", ["dd", "if=large", "of=/dev/null", "bs=1M"])):
        if name == "read":
            system.fresh()
        for process in (system.mount, bench.service):
            reset_peak(process)
        took = timed(command, system.tree, LIMIT)
        memory.append([name, took, *(peak(process) / 1e6 for process in (system.mount, bench.service))])
    (system.tree / "large").unlink()
    system.close()
    print(f"### Memory for a file of {large} MiB of random data, TLS\n")
    table(["work", "time", "driver, at most", "service, at most"],
          [[name, took, f"{driver:.0f} MB", f"{service:.0f} MB"] for name, took, driver, service in memory])
    bench.results["stream"] = {
        "seconds": {name: {label: each.seconds for label, each in took.items()} for name, took in found.items()},
        "memory": {name: {"driver": driver, "service": service} for name, _, driver, service in memory}}

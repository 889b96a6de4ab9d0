"""What it costs to run `true` where the files are: one by one, and many at once."""

import os
import select
import subprocess
import time

from systems import WORKSPACE, progress, table

from containers import NAME, docker, podman  # after systems, which says where lib is

QUIET = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


def took(argv, env):
    """Milliseconds, or None if it fails. Waits on the process itself: subprocess's own wait with
    a timeout looks 0.5, 1, 2, … 50 ms apart, and would be what is measured."""
    started = time.perf_counter()
    with subprocess.Popen([str(word) for word in argv], env=env, **QUIET) as process:
        descriptor = os.pidfd_open(process.pid)
        end = select.poll()
        end.register(descriptor, select.POLLIN)
        ended = end.poll(60000)
        time_taken = (time.perf_counter() - started) * 1e3
        os.close(descriptor)
        if not ended:
            process.kill()
            raise TimeoutError(f"{argv}: no end in 60 s")
        return time_taken if process.wait() == 0 else None


def milliseconds(argv, count, env=None):
    """The fastest and the median of so many runs; None: it does not work."""
    times = []
    for _ in range(count):
        time_taken = took(argv, env)
        if time_taken is None:
            return None
        times.append(time_taken)
    times.sort()
    return times[0], times[len(times) // 2]


def berth(bench, url, *options):
    return ([bench.harness.program("berth"), "exec", *options, "-w", WORKSPACE, "--", "true"],
            bench.service.client_env(url))


def ssh(bench, stack, port, label):
    control = ["-o", f"ControlPath={bench.harness.short}/exec-{label}"]
    run = bench.sshd.command(*control, port=port)
    subprocess.run(bench.sshd.command(*control, "-o", "ControlMaster=yes", "-o", "ControlPersist=600", "-f", "-N",
                                      port=port), check=True, timeout=60, **QUIET)
    stack.callback(subprocess.run, [*run[:1], "-O", "exit", *run[1:]], check=False, **QUIET)
    return [*run, "true"], None


def ways(bench, stack, delay):
    """(name, argv, environment) for a round trip of so many milliseconds."""
    if delay:
        to_service = bench.harness.start_relay(bench.service.tls_url, delay=delay / 2)
        to_sshd = bench.harness.start_relay(f"tcp:127.0.0.1:{bench.sshd.port}", delay=delay / 2)
        url, port = to_service.url, to_sshd.port
    else:
        url, port = bench.service.tls_url, bench.sshd.port
    yield "Berth, a holder's connection", *berth(bench, url)
    yield "Berth, a connection of its own", *berth(bench, url, "--no-persist")
    yield "ssh, ControlMaster", *ssh(bench, stack, port, delay)


def many(bench, count, at_once):
    """Commands in a second, by so many callers."""
    argv, env = berth(bench, bench.service.tls_url)
    started = time.perf_counter()
    subprocess.run(["xargs", "-P", str(at_once), "-I{}", *map(str, argv)], env=env, check=True, timeout=600,
                   input=b"x\n" * count, stdout=subprocess.DEVNULL)
    return count / (time.perf_counter() - started)


def bench_exec(bench, stack):
    count = 5 if bench.options.quick else 21
    delays = (0, 20) if bench.options.quick else (0, 20, 80)
    bare = milliseconds(["/bin/true"], count)
    figures = {"fork and exec alone": {0: bare}}
    for delay in delays:
        for name, argv, env in ways(bench, stack, delay):
            milliseconds(argv, 1, env)  # so that what is to be warm is
            figures.setdefault(name, {})[delay] = milliseconds(argv, count, env)
            progress(f"  exec, {delay} ms: {name}: {figures[name][delay]}")
    notes = []
    for program, start in (("podman", podman), ("docker", docker)):
        container = start(stack)
        name = f"{program} exec"
        figures[name] = {0: milliseconds([*container.words, "exec", NAME, "/bin/true"], count) if container.words
                         else None}
        notes.append(f"{name}: {container.how if figures[name][0] else container.reason}.")
        progress(f"  exec, {notes[-1]}")
    rows = []
    peer = figures["ssh, ControlMaster"]
    for name, found in figures.items():
        row = [name]
        for delay in delays:
            took = found.get(delay, "—")
            if took is None:
                row.append("does not run here")
            elif took == "—":
                row.append("—")
            else:
                row.append(f"{took[1]:.1f} ({took[1] / peer[delay][1]:.2f} ×)")
        rows.append(row)
    print("### Running `true`\n")
    print("Milliseconds, median, by round-trip time; in brackets against ssh with ControlMaster. The process of"
          " `berth` or `ssh` itself is in all of them.\n")
    table(["way", *(f"{delay} ms" for delay in delays)], rows)
    print("\n" + " ".join(notes))
    rates = {at_once: many(bench, 100 if bench.options.quick else 1000, at_once) for at_once in (1, 4, 16)}
    print("\n### Many commands\n")
    table(["callers at once", "commands in a second"], [[n, f"{rate:.0f}"] for n, rate in rates.items()])
    bench.results["exec"] = {"ms": {name: {delay: took and took[1] for delay, took in found.items()}
                                    for name, found in figures.items()}, "rates": rates}

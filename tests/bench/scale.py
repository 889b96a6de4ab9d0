"""Many files: memory, how long they take, and that they do not hold up what is small."""

import os
import subprocess
import time

from systems import BANDWIDTH, ROUND_TRIP_MS, WORKSPACE, Berth, table, timed

SMALL = 20
LIMIT = 120


def make_files(directory, count):
    directory.mkdir(parents=True)
    descriptor = os.open(directory, os.O_RDONLY)
    for number in range(count):
        os.close(os.open(f"file-{number:06}.c", os.O_WRONLY | os.O_CREAT, 0o644, dir_fd=descriptor))
    os.close(descriptor)


def make_tree(tree, count):
    """`count` files: half of them a hundred to a directory, half in one; and a small directory."""
    for number in range(count // 200):
        make_files(tree / "many" / f"{number // 100:02}" / f"{number:04}", 100)
    make_files(tree / "large", count // 2)
    make_files(tree / "small", SMALL)


def find(system, where="."):
    return timed(["find", where, "-ls"], system.tree, LIMIT)


def mounted(bench, stack, service, label, relay=None):
    system = Berth(bench, service, label, relay=relay)
    system.tree = system.point / WORKSPACE
    stack.callback(system.close)
    system.fresh()
    return system


def seen(bench, service, command):
    """Seconds until a command has ended and the mounts have seen what it changed."""
    started = time.perf_counter()
    bench.harness.run_berth("exec", "-w", WORKSPACE, "--", *command, service=service, check=True, timeout=60)
    return time.perf_counter() - started


def slowest_stat(paths, seconds):
    """Of look-ups and of names that the kernel has, one after the other."""
    worst, end = 0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        for path in paths:
            started = time.perf_counter()
            os.lstat(path)
            worst = max(worst, time.perf_counter() - started)
    return worst


def measure_memory(bench, system, service, rows, results):
    before = (service.memory(), system.mount.memory())
    took = find(system)
    after = (service.memory(), system.mount.memory())
    stats = system.mount.stats()
    count = stats["inodes"]
    for name, old, new in zip(("service", "driver"), before, after):
        rows.append([f"memory of the {name}, for each file known", f"{(new - old) / count:.0f} B"])
        results[f"{name} bytes"] = (new - old) / count
    ahead = stats["read_ahead_bytes"] / (stats["read_ahead"] or 1)
    rows += [["of that in the driver: what was read ahead, for each entry", f"{ahead:.0f} B"],
             ["descriptors of the service", service.descriptors()],
             ["find -ls, no relay, first", took], ["again", find(system)],
             ["local", timed(["find", ".", "-ls"], service.root / "workspaces" / WORKSPACE / "tree", LIMIT)]]
    results |= {"inodes": count, "find": took.seconds, "read ahead bytes": ahead, "descriptors": service.descriptors()}


def measure_forgetting(bench, system, service, rows, results):
    """Other rules are in force: the kernel is told to forget every file, as after an overflow of
    what is to be reported."""
    touch = ["touch", "small/file-000000.c"]
    usual = min(seen(bench, service, touch) for _ in range(3))
    path = system.tree / "small" / "file-000001.c"
    os.lstat(path)
    started = time.perf_counter()
    os.setxattr(system.point, "user.berth.visibility", b"hidden:no-such-name\n")
    took = time.perf_counter() - started
    worst = slowest_stat([path, system.tree / "many" / "00"], 1.0)
    rows += [["everything is forgotten: the call that asks for it", f"{took * 1000:.0f} ms"],
             ["slowest stat in the second after it", f"{worst * 1000:.1f} ms"]]
    find(system)
    os.removexattr(system.point, "user.berth.visibility")
    late = seen(bench, service, touch)
    rows.append(["a command's change is seen, then and usually", f"{late * 1000:.0f} ms, {usual * 1000:.0f} ms"])
    results |= {"forget": took, "stat after": worst, "seen after": late, "seen": usual}


def measure_far(bench, stack, service, rows, results):
    relay = bench.harness.start_relay(service, delay=ROUND_TRIP_MS / 2, bandwidth=BANDWIDTH)
    system = mounted(bench, stack, service, "scale20", relay)
    walk = subprocess.Popen(["find", "large", "many", "-ls"], cwd=system.tree, stdout=subprocess.DEVNULL)
    time.sleep(0.2)
    started = time.perf_counter()
    listed = timed(["ls", "-l", "small"], system.tree, LIMIT)
    running = walk.poll() is None
    walk.wait(LIMIT)
    whole = time.perf_counter() - started + 0.2
    rows += [[f"20 ms: first `ls -l` of {SMALL} files{' while' if running else ', after'} the rest is walked", listed],
             ["20 ms: the walk of the rest", f"{whole:.2f} s"], ["20 ms: find -ls, again", find(system)]]
    find_again(system, relay, "20 ms: find again after a remount", rows, results)
    tree = service.root / "workspaces" / WORKSPACE / "tree"
    for path in [*sorted((tree / "large").iterdir())[::1000], *sorted((tree / "many").glob("*/*/*"))[::1000]][:100]:
        path.write_bytes(b"changed")
    find_again(system, relay, "20 ms: find again after a remount, 100 files changed", rows, results)
    results |= {"small": listed.seconds, "walk": whole}
    system.close()


def find_again(system, relay, name, rows, results):
    """What a walk costs of which an earlier mount has seen everything."""
    system.fresh()
    relay.reset_stats()
    took = find(system)
    stats = relay.stats()
    rows += [[name, took], ["its round trips, bytes received",
                            f"{stats['round_trips_sum']}, {stats['to_client']['bytes'] / 1e6:.2f} MB"]]
    results[name.removeprefix("20 ms: ")] = {"seconds": took.seconds, "round trips": stats["round_trips_sum"],
                     "bytes": stats["to_client"]["bytes"]}


def bench_scale(bench, stack):
    service = bench.harness.start_service()
    bench.harness.run_berth("create", WORKSPACE, service=service, check=True, timeout=60)
    make_tree(service.root / "workspaces" / WORKSPACE / "tree", bench.options.inodes)
    rows, results = [], {}
    system = mounted(bench, stack, service, "scale")
    measure_memory(bench, system, service, rows, results)
    measure_forgetting(bench, system, service, rows, results)
    system.close()
    measure_far(bench, stack, service, rows, results)
    print(f"### {bench.options.inodes:,} files, half of them in one directory\n")
    table(["what", "figure"], rows)
    bench.results["scale"] = results

"""Each step where nothing is known: a service just started, a tree that it has never seen, a mount just made,
nothing on disk; beside a fresh sshfs, behind the same relay."""

import statistics

from systems import BANDWIDTH, GIT, ROUND_TRIP_MS, WORKSPACE, Berth, Sshfs, progress, table, timed

# (name, what it does, the goal in seconds)
STEPS = [
    ("find -ls", ["find", ".", "-ls"], 0.4),
    ("git status", ["git", "status", "--porcelain"], 0.6),
    ("rg", ["rg", "-c", "--no-messages", r"\ban[a-z]"], 2.5),
    ("grep -r", ["grep", "-rc", "--exclude-dir=.git", r"\ban[a-z]", "."], 2.5),
]


def cold_berth(bench, name, command):
    """(Took, round trips that somebody waited for, bytes received), with everything made anew."""
    harness = bench.harness
    service = harness.start_service(tls=True)
    harness.run_berth("create", WORKSPACE, service=service, check=True, timeout=60)
    bench.copy_model(service.root / "workspaces" / WORKSPACE / "tree" / "tree")
    # By TLS: only what leaves the machine is compressed.
    relay = harness.start_relay(service.tls_url, delay=ROUND_TRIP_MS / 2, bandwidth=BANDWIDTH)
    bench.cold_count = getattr(bench, "cold_count", 0) + 1
    label = f"cold-{bench.cold_count}"
    system = Berth(bench, service, label, relay=relay)
    env = {**service.client_env(relay.url), "XDG_CACHE_HOME": str(bench.directory / f"cache-{label}")}
    start = harness.start_mount
    try:
        harness.start_mount = lambda *args, **keywords: start(*args, env=env, **keywords)
        system.fresh()
    finally:
        harness.start_mount = start
    relay.reset_stats()
    before = system.mount.stats()["round_trips"]
    took = timed(command, system.tree, bench.limit, GIT)
    trips = system.mount.stats()["round_trips"] - before
    received = relay.stats()["to_client"]["bytes"]
    progress(f"  berth, cold: {name}: {took}")
    system.close()
    service.stop()
    return took, trips, received


def cold_sshfs(bench, relay, name, command):
    system = Sshfs(bench, relay.port, f"cold-{name.split()[0]}")
    try:
        system.fresh()
        took = timed(command, system.tree, bench.limit, GIT)
    finally:
        system.close()
    progress(f"  sshfs, cold: {name}: {took}")
    return took


def bench_cold(bench, stack):
    count = 1 if bench.options.quick else 3
    relay = bench.harness.start_relay(f"tcp:127.0.0.1:{bench.sshd.port}", raw=True, delay=ROUND_TRIP_MS / 2,
                                      bandwidth=BANDWIDTH)
    rows, results = [], {}
    for name, command, goal in STEPS:
        sshfs = cold_sshfs(bench, relay, name, command)
        found = [cold_berth(bench, name, command) for _ in range(count)]
        seconds = [took.seconds for took, _, _ in found]
        times = ", ".join(str(took) for took, _, _ in found)
        rows.append([name, f"{goal} s", timed(command, bench.model, bench.limit, GIT), sshfs, times,
                     max(trips for _, trips, _ in found), f"{max(size for _, _, size in found) / 1e6:.1f} MB"])
        results[name] = {"sshfs": sshfs.seconds, "berth": seconds, "goal": goal,
                         "median": statistics.median(seconds) if None not in seconds else None}
    print(f"### Cold, {ROUND_TRIP_MS} ms, {bench.files} files, {bench.bytes / 1e6:.0f} MB\n")
    table(["work", "goal", "local", "sshfs", "Berth, each time", "round trips (driver)", "bytes received"], rows)
    bench.results["cold"] = results

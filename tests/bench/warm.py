"""What is done again: how long it takes, and what the kernel still asks the driver for."""

import os
import stat

from systems import GIT, Berth, Local, Sshfs, Took, median_of, ratio, table, timed

ROUNDS = 7


def files_of(tree):
    """The paths of all files outside .git, below tree."""
    found = []
    for parent, names, leaves in os.walk(tree):
        names[:] = [name for name in names if name != ".git"]
        found += [os.path.relpath(os.path.join(parent, leaf), tree) for leaf in leaves]
    return sorted(found)


def per_file(files, step):
    """Does step to each file; its seconds are those of one."""
    def work(tree):
        paths = [os.path.join(tree, name) for name in files]
        for path in paths:
            step(path)
    return work


def open_close(path):
    os.close(os.open(path, os.O_RDONLY))


def read_whole(path):
    descriptor = os.open(path, os.O_RDONLY)
    while os.read(descriptor, 65536):
        pass
    os.close(descriptor)


def absent(path):
    try:
        os.lstat(path + ".missing")
    except FileNotFoundError:
        return
    raise AssertionError(path)


def program(bench, *argv):
    def work(tree):
        took = timed(argv, tree, bench.limit, GIT)
        if took.seconds is None:
            raise OSError(str(took))
    return work


def operations(bench, files):
    """(name, of how many files, what is done)"""
    small = [name for name in files if os.stat(bench.model / name).st_size <= 65536]
    regular = [name for name in files if stat.S_ISREG(os.lstat(bench.model / name).st_mode)]
    yield "stat", len(regular), per_file(regular, os.lstat)
    yield "stat of missing names", len(regular), per_file(regular, absent)
    yield "open, close", len(small), per_file(small, open_close)
    yield "open, read, close", len(small), per_file(small, read_whole)
    yield "find -ls", 0, program(bench, "find", ".", "-ls")
    yield "git status", 0, program(bench, "git", "status", "--porcelain")
    yield "rg", 0, program(bench, "rg", "-c", "--no-messages", r"\ban[a-z]")


def kernel_requests(system):
    return system.mount.stats()["kernel"] if isinstance(system, Berth) else {}


def bench_warm(bench, stack):
    systems = [Local(bench, "warm"), Sshfs(bench, bench.sshd.port, "warm"), Berth(bench, bench.service, "warm")]
    files = files_of(bench.model)
    found, asked = {}, {}
    for system in systems:
        stack.callback(system.close)
        system.fresh()
        found[system.name] = {}
        for name, count, work in operations(bench, files):
            work(system.tree)
            before = kernel_requests(system)
            took = median_of(lambda: work(system.tree), ROUNDS, bench.limit)  # noqa: B023
            after = kernel_requests(system)
            asked[name] = {kind: value - before.get(kind, 0) for kind, value in after.items()
                           if value != before.get(kind, 0) and kind not in ("STATFS", "FORGET", "BATCH_FORGET")}
            asked[name]["rounds"] = took.count
            found[system.name][name] = Took(took.seconds / (count or 1), bench.limit)
        system.close()
    rows = []
    for name, count, _ in operations(bench, files):
        local, sshfs, berth = (found[system.name][name] for system in systems)
        rounds = asked[name].pop("rounds")
        kinds = ", ".join(f"{value / rounds:.0f} {kind}" for kind, value in sorted(asked[name].items())
                          if kind != "GETXATTR" and value >= rounds)
        rows.append([f"{name}{', each' if count else ''}", local, sshfs, berth, ratio(berth, local), kinds or "none"])
        bench.results.setdefault("warm", {})[name] = {
            system.name: found[system.name][name].seconds for system in systems} | {
            "files": count, "kernel": {kind: value / rounds for kind, value in asked[name].items()}}
    print(f"### The same again on {len(files)} files, no relay\n")
    print(f"Median of {ROUNDS} rounds after a first one. The last column: what the kernel asked the driver for,"
          " in one round.\n")
    table(["work", "local", "sshfs", "Berth", "Berth/local", "requests of the kernel"], rows)

"""Longer work with tools that people use every day, in the manner of workloads.py: each function
works in an empty directory and returns what must be the same wherever that directory is."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import textwrap

from lib import workloads
from lib.workloads import run


def write(directory, name, text, mode=None):
    path = os.path.join(directory, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(textwrap.dedent(text))
    if mode is not None:
        os.chmod(path, mode)


# --- git -----------------------------------------------------------------------------------

def git_history(directory):
    """A repository with 12 commits, of which the eighth breaks the test, and a clone of it that
    is rebased, bisected, given a second work tree, packed and checked."""
    origin, clone = os.path.join(directory, "origin"), os.path.join(directory, "clone")
    os.mkdir(origin)
    out = []

    def git(where, *argv, **keywords):
        out.append(run(where, "git", "-c", "advice.detachedHead=false", *argv, **keywords))
        return out[-1]

    git(origin, "init", "-q", "-b", "main")
    for i in range(12):
        write(origin, f"src/part{i % 4}/file{i}.txt", f"commit {i}\n" * (i + 1))
        write(origin, "value", f"{i}\n")
        write(origin, "broken", "yes\n" if i >= 8 else "no\n")
        git(origin, "add", "-A")
        git(origin, "commit", "-qm", f"commit {i}")
    git(directory, "clone", "-q", "--no-local", "origin", "clone")
    git(clone, "status", "--porcelain", "--branch")

    script = ["sed", "-i", "-e", "1s/^pick/reword/", "-e", "3s/^pick/fixup/", "-e", "5{h;d}", "-e", "$G"]
    editor = "sh -c 'echo reworded > \"$1\"' sh"
    git(clone, "checkout", "-q", "-b", "free")
    for i in range(6):
        write(clone, f"free{i}", f"{i}\n")
        git(clone, "add", "-A")
        git(clone, "commit", "-qm", f"free {i}")
    git(clone, "-c", "sequence.editor=" + " ".join(f"'{word}'" for word in script),
        "-c", f"core.editor={editor}", "rebase", "-q", "-i", "HEAD~6")
    git(clone, "log", "--format=%H %s %cd", "--stat")

    git(clone, "checkout", "-q", "main")
    git(clone, "bisect", "start", "HEAD", "HEAD~11")
    found = git(clone, "bisect", "run", "grep", "-q", "no", "broken")
    assert b"is the first bad commit" in found and b"commit 8" in found, found
    git(clone, "bisect", "reset")

    git(clone, "worktree", "add", "-q", "../second", "free")
    second = os.path.join(directory, "second")
    write(second, "free1", "changed\n")
    git(second, "commit", "-qam", "in the second tree")
    git(second, "status", "--porcelain")
    git(clone, "worktree", "remove", "../second")
    git(clone, "log", "-1", "--format=%H", "free")
    git(clone, "push", "-q", "origin", "free")

    git(clone, "gc", "-q", "--prune=now")
    git(clone, "repack", "-adq")
    for where in origin, clone:
        git(where, "fsck", "--full", "--strict")
        assert git(where, "status", "--porcelain") == b""
    return b"".join(out)


# --- compilers -----------------------------------------------------------------------------

PARTS = 8


def c_project(directory):
    """Many small sources with a common header, for make, cmake and ninja."""
    write(directory, "common.h", "\n".join(f"int part{i}(void);" for i in range(PARTS)) + "\n")
    for i in range(PARTS):
        write(directory, f"part{i}.c", f'#include "common.h"\nint part{i}(void) {{ return {i}; }}\n')
    write(directory, "main.c", '#include <stdio.h>\n#include "common.h"\nint main(void)\n{\n    int n = 0;\n'
          + "".join(f"    n += part{i}();\n" for i in range(PARTS)) + '    printf("%d\\n", n);\n}\n')
    sources = " ".join(f"part{i}.c" for i in range(PARTS))
    write(directory, "CMakeLists.txt", f"""\
        cmake_minimum_required(VERSION 3.10)
        project(parts C)
        add_library(parts STATIC {sources})
        add_executable(prog main.c)
        target_link_libraries(prog parts)
        """)
    objects = " ".join(f"part{i}.o" for i in range(PARTS))
    write(directory, "Makefile", f"prog: main.o {objects}\n\tcc -o $@ $^\n"
                                 "%.o: %.c common.h\n\tcc -c -o $@ $<\n")


def make_many(directory):
    """make -j; a second one has nothing to do; a changed part builds that part alone."""
    c_project(directory)
    run(directory, "make", "-s", "-j4")
    assert b"up to date" in run(directory, "make", "-j4")
    write(directory, "part3.c", '#include "common.h"\nint part3(void) { return 1003; }\n')
    rebuilt = run(directory, "make", "-j4")
    assert rebuilt.count(b"cc -c") == 1, rebuilt
    return run(directory, "./prog")


def cmake_ninja(directory):
    c_project(directory)
    run(directory, "cmake", "-S", ".", "-B", "out", "-G", "Ninja")
    run(directory, "ninja", "-C", "out", "-j4")
    assert b"no work to do" in run(directory, "ninja", "-C", "out")
    os.utime(os.path.join(directory, "common.h"))
    assert b"no work" not in run(directory, "ninja", "-C", "out", "-j4")
    assert b"no work to do" in run(directory, "ninja", "-C", "out")
    return run(directory, "out/prog")


def cargo(directory, home):
    """A crate that uses another of the same workspace; built twice, the second time from cache."""
    environment = {**workloads.ENVIRONMENT, "CARGO_HOME": home, "CARGO_NET_OFFLINE": "true",
                   "RUSTUP_HOME": os.environ.get("RUSTUP_HOME", os.path.expanduser("~/.rustup"))}
    write(directory, "Cargo.toml", '[workspace]\nmembers = ["app", "part"]\nresolver = "2"\n')
    for name in "app", "part":
        write(directory, f"{name}/Cargo.toml",
              f'[package]\nname = "{name}"\nversion = "0.1.0"\nedition = "2021"\n'
              + ('[dependencies]\npart = { path = "../part" }\n' if name == "app" else ""))
    write(directory, "part/src/lib.rs", "pub fn number() -> u32 { 55 }\n")
    write(directory, "app/src/main.rs", 'fn main() { println!("sum {}", part::number()); }\n')

    def build():
        result = subprocess.run(["cargo", "build", "-v"], cwd=directory, env=environment, timeout=120,
                                capture_output=True, check=False)
        assert result.returncode == 0, result.stderr
        return result.stderr
    assert build().count(b"Compiling") == 2
    assert build().count(b"Fresh") == 2
    write(directory, "app/src/main.rs", 'fn main() { println!("sum is {}", part::number()); }\n')
    again = build()
    assert b"Fresh part" in again and b"app" in again, again
    return run(directory, "target/debug/app")


# --- databases -----------------------------------------------------------------------------

WRITER = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], timeout=60, isolation_level=None)
for i in range(40):
    db.execute("begin immediate")
    n = db.execute("select n from counter").fetchone()[0]
    db.execute("update counter set n = ?", (n + 1,))
    db.execute("insert into log values (?, ?)", (sys.argv[2], i))
    db.execute("commit")
"""


def sqlite(directory, journal):
    """Two programs count in one database at a time; a transaction that is rolled back leaves
    nothing; then the sqlite3 shell checks and dumps it."""
    path = os.path.join(directory, "db")
    db = sqlite3.connect(path, isolation_level=None)
    assert db.execute(f"pragma journal_mode={journal}").fetchone() == (journal,)
    db.execute("create table counter (n)")
    db.execute("insert into counter values (0)")
    db.execute("create table log (who, i)")
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, path, who]) for who in "ab"]
    assert [writer.wait(60) for writer in writers] == [0, 0]
    assert db.execute("select n from counter").fetchone() == (80,)
    db.execute("begin")
    db.executemany("insert into log values ('undone', ?)", [(i,) for i in range(2000)])
    db.execute("rollback")
    db.execute("create index by_who on log (who, i)")
    db.execute("vacuum")
    db.close()
    checked = run(directory, "sqlite3", "db", "pragma integrity_check; select who, count(*), sum(i) "
                                              "from log group by who; pragma journal_mode;")
    assert checked.startswith(b"ok\n"), checked
    return checked + b" ".join(sorted(os.listdir(os.fsencode(directory))))


# --- archives and copies -------------------------------------------------------------------

def rich_tree(directory):
    """A source tree that has hard links, extended attributes and a hole as well."""
    workloads.source_tree(directory, 150)
    os.link(os.path.join(directory, "empty"), os.path.join(directory, "hard"))
    attributed = os.path.join(directory, "attributed")
    with open(attributed, "wb") as file:
        file.truncate(1 << 20)
        file.seek(1 << 19)
        file.write(b"data")
    os.setxattr(attributed, "user.note", b"\0binary\xff")
    for name in "attributed", "empty", ".":
        os.utime(os.path.join(directory, name), ns=(10**18, 10**18 + 1))


def rsync(source, target):
    """Twice with everything kept; the second run finds nothing to do."""
    copy = ["rsync", "-aHAX", "--itemize-changes", source + "/", target + "/"]
    first = run("/", *copy)
    assert first.count(b"\n") > 150
    assert run("/", *copy) == b"", "the second run transferred something"
    assert run("/", "rsync", "-aHAXc", "--itemize-changes", source + "/", target + "/") == b""
    return os.getxattr(os.path.join(target, "attributed"), "user.note")


def archives(directory, source):
    """Packed from the directory and unpacked into it, with tar, compressed, and with zip."""
    run(directory, "cp", "-a", source, "tree")
    run(directory, "tar", "--xattrs", "--sparse", "--sort=name", "-czf", "tree.tar.gz", "tree")
    os.mkdir(os.path.join(directory, "from tar"))
    run(directory, "tar", "--xattrs", "-xpzf", "tree.tar.gz", "-C", "from tar")
    assert run(directory, "tar", "--compare", "-zf", "tree.tar.gz") == b""
    # zip keeps neither names that are not UTF-8 nor hard links nor nanoseconds.
    os.unlink(os.path.join(os.fsencode(directory), b"tree", b"not utf-8 \xff\xfe"))
    os.utime(os.path.join(directory, "tree"), ns=(10**18, 10**18))
    run(directory, "zip", "-qry", "tree.zip", "tree")
    run(directory, "unzip", "-q", "tree.zip", "-d", "from zip")
    assert b"No errors detected" in run(directory, "unzip", "-t", "tree.zip")
    os.unlink(os.path.join(directory, "tree.tar.gz"))
    os.unlink(os.path.join(directory, "tree.zip"))


# --- editors -------------------------------------------------------------------------------

def _put(path, data, flags=os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode=0o666, sync=None):
    fd = os.open(path, flags, mode)
    try:
        assert os.write(fd, data) == len(data)
        if sync:
            sync(fd)
    finally:
        os.close(fd)


def save_nano(path, data):
    """In place."""
    _put(path, data, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)


def save_emacs(path, data):
    """The old file becomes the backup, a new one is made and given its mode."""
    mode = os.stat(path).st_mode & 0o7777
    lock = os.path.join(os.path.dirname(path), ".#" + os.path.basename(path))
    os.symlink("user@host.1234:1700000000", lock)
    assert os.readlink(lock) == "user@host.1234:1700000000"
    os.rename(path, path + "~")
    _put(path, data, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, os.fsync)
    os.chmod(path, mode)
    os.unlink(lock)


def save_vscode(path, data):
    """Opened to read and write, cut off, written and synced; watchers stat in between."""
    before = os.stat(path)
    fd = os.open(path, os.O_RDWR)
    try:
        os.ftruncate(fd, 0)
        assert os.stat(path).st_size == 0
        assert os.pwrite(fd, data, 0) == len(data)
        os.fdatasync(fd)
    finally:
        os.close(fd)
    after = os.stat(path)
    assert (after.st_ino, after.st_size) == (before.st_ino, len(data))
    assert after.st_mtime_ns >= before.st_mtime_ns


def save_jetbrains(path, data):
    """"Safe write": a temporary file beside, the old one aside, the new one in place."""
    mode = os.stat(path).st_mode & 0o7777
    new, old = path + "___jb_tmp___", path + "___jb_old___"
    _put(new, data, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, sync=os.fsync)
    os.chmod(new, mode)
    os.rename(path, old)
    os.rename(new, path)
    os.unlink(old)


def save_atomically(path, data):
    """As most command-line tools and many editors: a temporary name, fsync, rename, and fsync
    of the directory."""
    mode = os.stat(path).st_mode & 0o7777
    temporary = os.path.join(os.path.dirname(path), ".saving-4711")
    _put(temporary, data, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, os.fsync)
    os.chmod(temporary, mode)
    os.rename(temporary, path)
    fd = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(fd)
    os.close(fd)


SAVES = [save_nano, save_emacs, save_vscode, save_jetbrains, save_atomically]


def save_again_and_again(directory, save):
    """Each save is there at once and whole, by its name, by its size, and for another program."""
    path = os.path.join(directory, "file.sh")
    _put(path, b"#!/bin/sh\n")
    os.chmod(path, 0o750)
    for i in range(25):
        data = b"#!/bin/sh\n" + b"# comment\n" * (i * 37 % 11) + b"echo %d\n" % i
        save(path, data)
        with open(path, "rb") as file:
            assert file.read() == data, i
        assert os.stat(path).st_size == len(data)
        assert run(directory, "./file.sh") == b"%d\n" % i
    return oct(os.stat(path).st_mode), sorted(os.listdir(directory))


def vim_ways(directory):
    """Real vim, with each of its ways to write."""
    out = []
    for copy in "yes", "no", "auto":
        for backup in "backup", "nobackup nowritebackup", "nobackup writebackup":
            write(directory, "f.sh", "#!/bin/sh\necho one\n", 0o751)
            run(directory, "vim", "-u", "NONE", "-N", "-es", "--cmd",
                f"set backupcopy={copy} {backup} undofile fsync", "-c", "%s/one/two/", "-c", "wq", "f.sh")
            out.append((os.stat(os.path.join(directory, "f.sh")).st_mode, run(directory, "./f.sh")))
    return out, sorted(os.listdir(directory))


# --- JavaScript ----------------------------------------------------------------------------

PACKAGES = {"eslint": "9.15.0", "typescript": "5.6.3"}


def npm(directory, cache, *argv, timeout=180):
    environment = {**workloads.ENVIRONMENT, "HOME": cache, "npm_config_cache": cache,
                   "npm_config_update_notifier": "false"}
    for name in os.environ:
        if name.lower().endswith("_proxy") or name in ("npm_config_registry", "NPM_CONFIG_USERCONFIG",
                                                       "NODE_EXTRA_CA_CERTS"):
            environment[name] = os.environ[name]
    return subprocess.run(["npm", *argv, "--no-audit", "--no-fund"], cwd=directory, env=environment,
                          capture_output=True, timeout=timeout, check=False)


def npm_project(directory):
    write(directory, "package.json", json.dumps(
        {"name": "project", "version": "1.0.0", "private": True, "dependencies": PACKAGES}))


def npm_install(directory, prepared):
    """Installs what the lock file names from a cache that has it all, and runs it. prepared: a
    directory with cache/ and package-lock.json."""
    npm_project(directory)
    shutil.copyfile(os.path.join(prepared, "package-lock.json"),
                    os.path.join(directory, "package-lock.json"))
    result = npm(directory, os.path.join(prepared, "cache"), "ci", "--offline", "--ignore-scripts")
    assert result.returncode == 0, result.stderr
    write(directory, "eslint.config.js", "module.exports = [{ rules: { 'no-undef': 'error' } }];\n")
    write(directory, "bad.js", "missing();\n")
    linted = subprocess.run(["node_modules/.bin/eslint", "-f", "json", "bad.js"], cwd=directory, timeout=60,
                            env=workloads.ENVIRONMENT, capture_output=True, check=False)
    found = json.loads(linted.stdout)[0]["messages"]
    assert [message["ruleId"] for message in found] == ["no-undef"], linted
    listed = npm(directory, os.path.join(prepared, "cache"), "ls", "--offline", "--all", "--parseable")
    assert listed.returncode == 0, listed.stderr
    return found, len(listed.stdout.splitlines())


TYPESCRIPT = {
    "tsconfig.json": '{"compilerOptions": {"strict": true, "outDir": "out", "incremental": true, '
                     '"module": "commonjs", "target": "es2020", "types": []}, "include": ["src"]}\n',
    "src/shape.ts": "export interface Shape { area(): number }\n"
                    "export function total(shapes: Shape[]): number {\n"
                    "    return shapes.reduce((sum, shape) => sum + shape.area(), 0);\n}\n",
    "src/square.ts": "import { Shape } from './shape';\n"
                     "export class Square implements Shape {\n    constructor(private side: number) {}\n"
                     "    area(): number { return this.side ** 2; }\n}\n",
    "src/main.ts": "import { total } from './shape';\nimport { Square } from './square';\n"
                   "declare const console: { log(x: unknown): void };\n"
                   "console.log(total([new Square(2), new Square(3)]));\n",
}


class TsServer:
    """typescript's language server over its standard streams, as editors run it."""

    def __init__(self, directory, modules):
        self.directory = directory
        self.sequence = 0
        self.process = subprocess.Popen(
            ["node", os.path.join(modules, "typescript/lib/tsserver.js"), "--disableAutomaticTypingAcquisition",
             "--suppressDiagnosticEvents"],
            cwd=directory, env=workloads.ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        try:
            self.process.wait(20)
        finally:
            self.process.kill()
            self.process.wait()
            self.process.stdout.close()

    def send(self, command, name, **arguments):
        self.sequence += 1
        arguments["file"] = os.path.join(self.directory, name)
        message = {"seq": self.sequence, "type": "request", "command": command, "arguments": arguments}
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()

    def ask(self, command, name, **arguments):
        self.send(command, name, **arguments)
        while True:
            length = 0
            while line := self.process.stdout.readline().strip():
                if line.lower().startswith(b"content-length:"):
                    length = int(line.split(b":")[1])
            assert length, "the server ended"
            message = json.loads(self.process.stdout.read(length))
            if message["type"] == "response" and message["request_seq"] == self.sequence:
                assert message["success"], message
                return message["body"]


def typescript(directory, modules):
    """Hover and rename by the language server; the rename is applied; tsc compiles the result,
    and once more without anything to do. modules: a node_modules with typescript."""
    for name, text in TYPESCRIPT.items():
        write(directory, name, text)
    with TsServer(directory, modules) as server:
        for name in TYPESCRIPT:
            if name.endswith(".ts"):
                server.send("open", name)
        hover = server.ask("quickinfo", "src/main.ts", line=4, offset=14)
        assert "total(shapes: Shape[]): number" in hover["displayString"], hover
        renamed = server.ask("rename", "src/shape.ts", line=2, offset=17)
        assert renamed["info"]["canRename"], renamed
        places = []
        for group in renamed["locs"]:
            name = os.path.relpath(group["file"], directory)
            with open(os.path.join(directory, name), encoding="utf-8") as file:
                lines = file.read().split("\n")
            for spot in sorted(group["locs"], key=lambda s: -s["start"]["offset"]):
                row, start, end = spot["start"]["line"] - 1, spot["start"]["offset"], spot["end"]["offset"]
                lines[row] = lines[row][:start - 1] + "sumOfAreas" + lines[row][end - 1:]
                places.append((name, row, start))
            path = os.path.join(directory, name)
            save_atomically(path, "\n".join(lines).encode())
            server.send("reload", name, tmpfile=path)
        hover = server.ask("quickinfo", "src/main.ts", line=4, offset=14)
        assert "sumOfAreas" in hover["displayString"], hover
    tsc = ["node", os.path.join(modules, "typescript/lib/tsc.js"), "-p", ".", "--listEmittedFiles"]
    emitted = run(directory, *tsc)
    assert emitted.count(b"TSFILE") == 4, emitted
    assert b"TSFILE" not in run(directory, *tsc), "compiled again what had not changed"
    return hover, sorted(places), run(directory, "node", "out/main.js")

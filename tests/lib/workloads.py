"""Work that people do in a workspace, with the tools they do it with.

Each function works in an empty or prepared directory and returns what it printed, with
nothing in it that depends on where the directory is or when it ran, so that a local
directory and a mount can be compared.
"""

import os
import random
import shutil
import subprocess
import textwrap

ENVIRONMENT = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "LC_ALL": "C.UTF-8",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "A",
    "GIT_AUTHOR_EMAIL": "a@example.org",
    "GIT_AUTHOR_DATE": "1700000000 +0000",
    "GIT_COMMITTER_NAME": "A",
    "GIT_COMMITTER_EMAIL": "a@example.org",
    "GIT_COMMITTER_DATE": "1700000000 +0000",
    "TZ": "UTC",
}


def run(directory, *argv, stdin=None, timeout=120):
    """Runs a command there; its standard output, or an error that shows everything."""
    result = subprocess.run(
        argv, cwd=directory, env=ENVIRONMENT, input=stdin or b"", capture_output=True, timeout=timeout
    )
    assert result.returncode == 0, (argv, result.returncode, result.stdout, result.stderr)
    return result.stdout


def source_tree(directory, files, seed=1):
    """A tree like a project's sources: nested directories, text of many sizes, some links,
    executables, an empty file, odd names. Every time is set, so that copies can be compared."""
    rng = random.Random(seed)
    words = [f"word{i}" for i in range(400)]
    os.makedirs(directory, exist_ok=True)
    folders = [""]
    for i in range(max(3, files // 25)):
        parent = rng.choice(folders)
        folder = os.path.join(parent, f"dir{i}")
        if folder.count("/") > 6:
            continue
        os.mkdir(os.path.join(directory, folder))
        folders.append(folder)
    for i in range(files):
        path = os.path.join(directory, rng.choice(folders), f"file{i}.{rng.choice(['c', 'h', 'txt'])}")
        lines = int(rng.paretovariate(1.1) * 12) % 2000
        with open(path, "w") as file:
            for _ in range(lines):
                file.write(" ".join(rng.choices(words, k=8)) + "\n")
        if i % 40 == 0:
            os.chmod(path, 0o755)
        if i % 60 == 0:
            os.symlink(os.path.basename(path), path + ".link")
    open(os.path.join(directory, "empty"), "w").close()
    open(os.path.join(directory, "with space and é"), "w").close()
    open(os.path.join(os.fsencode(directory), b"not utf-8 \xff\xfe"), "w").close()
    for folder, folder_names, names in os.walk(directory, topdown=False):
        for name in names + folder_names:
            stamp = rng.randrange(10**18, 17 * 10**17)
            os.utime(os.path.join(folder, name), ns=(stamp, stamp), follow_symlinks=False)


def git_session(directory):
    """init, add, commit, status, branch, checkout, merge, stash, gc, fsck."""
    out = []

    def git(*argv):
        out.append(run(directory, "git", *argv))

    git("init", "-q", "-b", "main")
    git("add", ".")
    git("commit", "-qm", "first")
    git("status", "--porcelain")
    git("checkout", "-q", "-b", "topic")
    with open(os.path.join(directory, "empty"), "a") as file:
        file.write("no longer\n")
    git("commit", "-qam", "topic")
    git("checkout", "-q", "main")
    with open(os.path.join(directory, "new"), "w") as file:
        file.write("new\n")
    git("add", "new")
    git("commit", "-qm", "second")
    git("merge", "-q", "-m", "merge", "topic")
    with open(os.path.join(directory, "new"), "w") as file:
        file.write("changed\n")
    git("stash", "-q")
    git("stash", "pop", "-q")
    git("status", "--porcelain")
    git("checkout", "--", "new")
    git("status", "--porcelain")
    git("log", "--format=%H %s", "--all")
    git("gc", "-q")
    git("fsck", "--full", "--strict")
    return b"".join(out)


def ripgrep(directory):
    """Matches of the whole tree, sorted; and the files rg would search."""
    found = run(directory, "rg", "--no-config", "--sort", "path", "-n", "word1[0-9] word[0-9]*7", ".")
    listed = run(directory, "rg", "--no-config", "--sort", "path", "--files", "--hidden")
    return found + listed


C_PROJECT = {
    "Makefile": """\
        OBJECTS = main.o table.o text.o
        prog: $(OBJECTS)
        \tcc -o $@ $(OBJECTS)
        %.o: %.c common.h
        \tcc -O1 -c -o $@ $<
        check: prog
        \t./prog > out.txt
        \tcmp out.txt expected.txt
        clean:
        \trm -f prog *.o out.txt
        """,
    "common.h": "int table_sum(int n);\nconst char *text_name(void);\n",
    "main.c": """\
        #include <stdio.h>
        #include "common.h"
        int main(void) { printf("%s %d\\n", text_name(), table_sum(10)); return 0; }
        """,
    "table.c": """\
        #include "common.h"
        int table_sum(int n) { int s = 0; for (int i = 1; i <= n; i++) s += i; return s; }
        """,
    "text.c": '#include "common.h"\nconst char *text_name(void) { return "sum"; }\n',
    "expected.txt": "sum 55\n",
}


def write_c_project(directory):
    os.makedirs(directory, exist_ok=True)
    for name, text in C_PROJECT.items():
        with open(os.path.join(directory, name), "w") as file:
            file.write(textwrap.dedent(text).replace("        \t", "\t"))


def make_project(directory):
    """Builds with make -j, checks, and asserts that a second make has nothing to do."""
    write_c_project(directory)
    run(directory, "make", "-s", "-j2", "check")
    again = run(directory, "make", "prog")
    assert b"up to date" in again, again
    os.utime(os.path.join(directory, "common.h"))
    assert b"table.o" in run(directory, "make", "prog")
    return run(directory, "./prog")


def vim_save(directory):
    """A vim edit and save, with a backup made by rename and the mode kept."""
    path = os.path.join(directory, "edited.sh")
    with open(path, "w") as file:
        file.write("#!/bin/sh\necho one\n")
    os.chmod(path, 0o750)
    commands = [
        "-c", "set nomore", "-c", "%s/one/two/", "-c", "normal Goecho three", "-c", "wq",
    ]
    run(directory, "vim", "-u", "NONE", "-N", "-es", "--cmd", "set backup backupcopy=no fsync",
        *commands, "edited.sh")
    assert os.stat(path).st_mode & 0o7777 == 0o750
    return run(directory, "./edited.sh") + b"\n".join(sorted(os.listdir(os.fsencode(directory))))


def remove_tree(directory):
    shutil.rmtree(directory)
    assert not os.path.lexists(directory)

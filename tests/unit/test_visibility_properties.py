"""Visibility rules against git: patterns and trees that Hypothesis makes up, judged by
`git check-ignore` and by our module (VISIBILITY_FILTER names the program that speaks for it)."""

import os
import re
import struct
import subprocess

import pytest
from hypothesis import example, given, settings, strategies as st

# Names that patterns of the same alphabet have a good chance to match.
NAMES = [b"a", b"b", b"ab", b"foo", b"Foo", b"a.c", b".a", b"-", b"]", b"[a]", b"a b", b"b ", b" ",
         b"\\", b"a\\", b"!a", b"#", b"*", b"**", b"?", b"a\nb", b"a\tb", b"\x0b", b"\xff", b"\xc3\xa9",
         b"aaaa", b"0", b"^"]
LEVELS = ([b"a", b"b", b"foo", b"\xff", b"a b", b"**"], [b"a", b"b", b"foo", b".a"], [b"a", b"foo"])

PIECES = st.sampled_from([
    b"a", b"b", b"foo", b"c", b".", b"/", b"/", b"*", b"*", b"**", b"**/", b"/**", b"/**/", b"***", b"?",
    b"\\", b" ", b"-", b"!", b"#", b"^", b"\t", b"\xff", b"\xc3\xa9", b"0",
    b"[", b"]", b"[ab]", b"[!a]", b"[^a]", b"[a-c]", b"[c-a]", b"[]a]", b"[!]a]", b"[a-]", b"[-a]", b"[a/b]",
    b"[/]", b"[[:alpha:]]", b"[[:space:]]", b"[![:alnum:]_]", b"[[:nope:]]", b"[[:alpha]", b"[[:]", b"[\\]]",
    b"[a\\-c]", b"[\\", b"[a", b"[[a]", b"[*]", b"[a-\\c]", b"[[:punct:]]", b"[[:upper:][:digit:]]",
    b"[\xc0-\xff]", b"[[:cntrl:]]", b"[[:graph:]]", b"[[:print:]]", b"[[:blank:]]", b"[[:xdigit:]]-",
    b"\\*", b"\\ ", b"\\/", b"\\[", b"\\!", b"\\#", b"\\\\",
])
PATTERN = st.lists(PIECES, max_size=6).map(b"".join)


def anchored(draw):
    parts = draw(st.lists(st.one_of(st.sampled_from([b"a", b"b", b"foo", b"**", b"*", b"f*", b"?", b".a"]),
                                    PATTERN.map(lambda p: p.replace(b"/", b""))),
                          min_size=1, max_size=4))
    return draw(st.sampled_from([b"", b"/", b"**/"])) + b"/".join(parts) + draw(st.sampled_from([b"", b"/"]))


LINE = st.tuples(st.sampled_from([b"", b"", b"", b"!"]),
                 st.one_of(PATTERN, st.composite(anchored)(), st.sampled_from(NAMES)),
                 st.sampled_from([b"", b"", b"", b" ", b"/", b"  ", b"\r"])).map(b"".join)
RULES = st.lists(LINE, min_size=1, max_size=6)


def quirk_of_git(line):
    """git before 2.52 compares what stands before the first wildcard by itself, and then takes a
    `**` right behind it for one that fills its component: `foo**/bar`. The documentation, newer gits
    and this module say otherwise."""
    body = line[1:] if line.startswith(b"!") else line
    return re.match(rb"/?[^*?\[\\]*[^*?\[\\/]\*\*", body) and b"/" in body


class Filter:
    def __init__(self):
        self.process = subprocess.Popen([os.environ["VISIBILITY_FILTER"]], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE)

    def ask(self, paths, service=b"", workspace=b"", mount=b""):
        request = b"".join(struct.pack("=I", len(text)) + text for text in (service, workspace, mount))
        request += struct.pack("=I", len(paths))
        request += b"".join(struct.pack("=I", len(path)) + path for path in paths)
        self.process.stdin.write(request)
        self.process.stdin.flush()
        (error,) = struct.unpack("=I", self.process.stdout.read(4))
        if error:
            raise ValueError(self.process.stdout.read(error).decode())
        answer = self.process.stdout.read(2 * len(paths)).decode()
        assert len(answer) == 2 * len(paths), "the filter ended"
        return {path: answer[2 * i:2 * i + 2] for i, path in enumerate(paths)}


@pytest.fixture(scope="module")
def rules():
    filter = Filter()
    yield filter
    filter.process.stdin.close()
    assert filter.process.wait(timeout=10) == 0


class Git:
    """A repository with a fixed tree, whose info/exclude is written anew for each question."""

    def __init__(self, directory):
        self.root = os.fsencode(directory)
        # Neither the user's configuration nor a global list of exclusions.
        self.environment = {"PATH": os.environ["PATH"], "HOME": str(directory), "GIT_CONFIG_NOSYSTEM": "1", "LC_ALL": "C"}
        subprocess.run(["git", "init", "-q", directory], env=self.environment, check=True, timeout=30)
        self.exclude = os.path.join(self.root, b".git", b"info", b"exclude")
        self.paths = []
        self.fill(b"", LEVELS)

    def fill(self, prefix, levels):
        directories = levels[0] if levels else []
        for name in directories:
            os.mkdir(os.path.join(self.root, prefix, name))
            self.paths.append(prefix + name + b"/")
            self.fill(prefix + name + b"/", levels[1:])
        for name in NAMES if not prefix else [b"b", b"ab", b"a.c", b"\xff", b"b ", b"Foo", b"x"]:
            path = os.path.join(self.root, prefix, name)
            if not os.path.lexists(path):
                # A link to a directory is no directory.
                os.symlink(b".", path) if name == b"x" else open(path, "x").close()
                self.paths.append(prefix + name)

    def ignored(self, lines):
        with open(self.exclude, "wb") as file:
            file.write(b"\n".join(lines) + b"\n")
        result = subprocess.run(
            ["git", "check-ignore", "--no-index", "--stdin", "-z", "--non-matching", "--verbose"],
            cwd=self.root, env=self.environment, capture_output=True, timeout=60,
            input=b"".join(path.rstrip(b"/") + b"\0" for path in self.paths))
        assert result.returncode in (0, 1), result.stderr
        fields = result.stdout.split(b"\0")
        assert len(fields) == 4 * len(self.paths) + 1
        # The pattern that decided, which may be one that shows.
        return {path: fields[4 * i] != b"" and not fields[4 * i + 2].startswith(b"!")
                for i, path in enumerate(self.paths)}


@pytest.fixture(scope="module")
def git(tmp_path_factory):
    return Git(tmp_path_factory.mktemp("repository"))


@settings(max_examples=int(os.environ.get("VISIBILITY_EXAMPLES", "80")), deadline=None)
@given(RULES)
@example([b"foo", b"!foo/a"])
@example([b"a/**/foo"])
@example([b"a/**", b"!a/b/"])
@example([b"/*", b"!/foo"])
@example([b"**/a/b"])
@example([b"**"])
@example([b"a/***/foo"])
@example([b"\\!a", b"\\#"])
@example([b"b\\ ", b"b "])
@example([b"a\\"])
@example([b"[a"])
@example([b"*/"])
@example([b"a**\\/foo"])
@example([b"**\\/a"])
def test_the_same_as_git(git, rules, lines):
    lines = [line for line in lines if not quirk_of_git(line)]
    expected = git.ignored(lines)
    found = rules.ask(git.paths, service=b"\n".join(lines) + b"\n")
    wrong = {path: (expected[path], found[path]) for path in git.paths
             if expected[path] != (found[path][0] == "u")}
    assert not wrong, lines


def test_git_is_asked_in_earnest(git):
    """The comparison above would also succeed if git ignored nothing."""
    found = git.ignored([b"foo/", b"!a/foo/", b"*.c"])
    assert found[b"foo/"] and found[b"foo/a/"] and found[b"a.c"] and found[b"a/b/a.c"]
    assert not found[b"a/foo/"] and not found[b"b/Foo"] and not found[b"a/x"]


WORDS = {"s": b"show:", "u": b"unlisted:", "h": b"hidden:"}
ORDER = "suh"
SAFE = st.sampled_from([b"a", b"b", b"foo", b"foo/", b"/a", b"/a/b", b"a/**", b"**/a/foo", b"*", b"*.c", b"/foo/*/a",
                        b"a/*/foo/", b"**/b/", b"[ab]"])
TYPED = st.lists(st.tuples(st.sampled_from("suh"), SAFE), max_size=5)


def text_of(typed):
    return b"".join(WORDS[kind] + pattern + b"\n" for kind, pattern in typed)


@settings(max_examples=100, deadline=None)
@given(TYPED, TYPED, TYPED)
def test_sources_are_one_list_in_order(git, rules, service, workspace, mount):
    parts = rules.ask(git.paths, text_of(service), text_of(workspace), text_of(mount))
    assert parts == rules.ask(git.paths, text_of(service + workspace + mount))
    assert parts == rules.ask(git.paths, b"", b"", text_of(service + workspace + mount))


@settings(max_examples=100, deadline=None)
@given(TYPED)
def test_what_lies_below(git, rules, typed):
    found = rules.ask(git.paths, text_of(typed))
    for path in git.paths:
        kind, listed = found[path]
        parent = path.rstrip(b"/").rpartition(b"/")[0]
        above = found[parent + b"/"][0] if parent else "s"
        assert ORDER.index(kind) >= ORDER.index(above)
        assert (listed == "l") == (kind == "s" or (kind == above == "u"))


@settings(max_examples=100, deadline=None)
@given(TYPED)
def test_each_word_alone_is_git_s_answer(git, rules, typed):
    """With one word against `show` the rules are gitignore's, whatever the word."""
    for word in "uh":
        lines = [(b"!" if kind == "s" else b"") + pattern for kind, pattern in typed]
        found = rules.ask(git.paths, text_of([("s" if kind == "s" else word, pattern) for kind, pattern in typed]))
        expected = git.ignored(lines)
        assert {path: kind[0] == word for path, kind in found.items()} == expected

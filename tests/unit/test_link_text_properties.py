"""What is shown of a symbolic link never leads out, whatever the tree it is followed in. The tree is
a model of the kernel's walk over a workspace at /mnt in which other links, contained as well,
lead anywhere inside. LINK_TEXT_FILTER names the program that speaks for the C module."""

import os
import subprocess

import pytest
from hypothesis import example, given, settings, strategies as st

PREFIXES = (["usr"], ["bin"], ["lib*"], ["opt"], ["nix"], ["etc", "alternatives"])


class Filter:
    def __init__(self):
        self.process = subprocess.Popen([os.environ["LINK_TEXT_FILTER"]], text=True, bufsize=1,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def shown(self, mode, depth, text):
        self.process.stdin.write(f"{mode} {depth} {text.hex()}\n")
        answer = self.process.stdout.readline()
        assert answer.endswith("\n"), "the filter ended"
        return None if answer == "-\n" else bytes.fromhex(answer)


@pytest.fixture(scope="module")
def texts():
    filter = Filter()
    yield filter
    filter.process.stdin.close()
    assert filter.process.wait(timeout=10) == 0


PIECES = st.sampled_from([b"..", b"..", b"..", b".", b"/", b"/", b"/", b"/", b"a", b"b", b"...", b"..a",
                          b"usr", b"lib", b"lib64", b"etc", b"alternatives", b"mnt", b"workspace", b"proc",
                          b"home", b"\xff", b"\n", b" "])
TEXTS = st.one_of(st.lists(PIECES, min_size=1, max_size=14).map(b"".join),
                  st.lists(PIECES, min_size=1, max_size=8).map(b"/".join),
                  st.binary(min_size=1, max_size=40).filter(lambda t: b"\0" not in t))
MODES = st.sampled_from(["contain", "contain+translate", "refuse"])


def components(text):
    return [c for c in text.split(b"/") if c not in (b"", b".")]


def walk(start, text, jumps):
    """The directory a walk ends in, as a list; None: it left /mnt. jumps: for each named component,
    the place a contained link there would lead to, or None for a plain directory."""
    at = [] if text.startswith(b"/") else [b"mnt", *start]
    jumps = iter(jumps)
    for component in components(text):
        if component == b"..":
            at = at[:-1]
        else:
            at = [*at, component]
            jump = next(jumps, None)
            if at[0] == b"mnt" and len(at) > 1 and jump is not None:
                at = [b"mnt", *jump]
        if not text.startswith(b"/") and at[:1] != [b"mnt"]:
            return None
    return at


PLACES = st.lists(st.sampled_from([b"a", b"b"]), max_size=3)


@settings(max_examples=1000, deadline=None)
@example(mode="contain", start=[b"a"], text=b"b/../../x", jumps=[[]])
@example(mode="contain", start=[b"a"], text=b"../b/..", jumps=[[]])
@example(mode="contain+translate", start=[], text=b"/workspace/b/../..", jumps=[])
@given(mode=MODES, start=PLACES, text=TEXTS, jumps=st.lists(st.none() | PLACES, max_size=6))
def test_what_is_shown_stays_inside(texts, mode, start, text, jumps):
    shown = texts.shown(mode, len(start), text)
    if shown is None:
        return
    if shown != text:
        assert mode == "contain+translate" and components(text)[0] == b"workspace"
        assert components(shown) == [b"mnt", *components(text)[1:]]
    end = walk(start, shown, jumps)
    assert end is not None
    if shown.startswith(b"/") and end[:1] != [b"mnt"]:
        assert mode != "refuse" and b".." not in components(shown)
        names = [c.decode("latin-1") for c in components(shown)]
        assert any(len(names) >= len(p) and all(n.startswith(w[:-1]) if w.endswith("*") else n == w
                                                for n, w in zip(names, p)) for p in PREFIXES)


@settings(max_examples=1000, deadline=None)
@given(start=PLACES, text=TEXTS)
def test_what_plainly_stays_inside_is_shown(texts, start, text):
    """Exactly as it is: git and tar would take anything else for a change."""
    names = components(text)
    ups = next((i for i, c in enumerate(names) if c != b".."), len(names))
    inside = not text.startswith(b"/") and b".." not in names[ups:] and ups <= len(start)
    for mode in "contain", "contain+translate", "refuse":
        if not text.startswith(b"/"):
            assert texts.shown(mode, len(start), text) == (text if inside else None)
    assert texts.shown("verbatim", len(start), text) == text


@settings(max_examples=500, deadline=None)
@given(mode=MODES, text=TEXTS)
def test_outside_of_workspaces_nothing_is_shown(texts, mode, text):
    assert texts.shown(mode, -1, text) is None

"""Sequences that random tests found a difference with, as calls of lib/model/calls.py: on another
local directory first, and then on a mount."""

import os

import pytest

from lib.model.pairs import run_script

# Who holds a file by a descriptor that does not open it still sees that it has no links.
PATH_DESCRIPTOR_OF_AN_UNLINKED_FILE = [
    ("open", 0, None, b"a", os.O_RDWR | os.O_CREAT), ("write", 0, (100, 1)), ("close", 0),
    ("open", 0, None, b"a", os.O_PATH), ("unlink", None, b"a"), ("fstat", 0),
]

PATH_DESCRIPTOR_OF_AN_UNLINKED_LINK = [
    ("symlink", b"missing", None, b"a"), ("open", 0, None, b"a", os.O_PATH | os.O_NOFOLLOW),
    ("unlink", None, b"a"), ("fstat", 0),
]

# By an ordinary user: it can be listed, though nothing in it can be reached.
DIRECTORY_THAT_CANNOT_BE_SEARCHED = [
    ("mkdir", None, b"d"), ("mkdir", None, b"d/e"), ("chmod", None, b"d", 0o644), ("list", None, b"d"),
    ("stat", None, b"d/e"), ("chmod", None, b"d", 0o311), ("list", None, b"d"), ("stat", None, b"d/e"),
    ("chmod", None, b"d", 0o755),
]

FOUND = {name: script for name, script in globals().items() if name.isupper()}


@pytest.mark.parametrize("name", FOUND)
def test_found(name, harness, local, mounted):
    other = harness.short / "other"
    other.mkdir()
    run_script(local, other, FOUND[name])
    run_script(local, mounted, FOUND[name])

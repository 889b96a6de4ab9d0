"""The mapping of thread IDs to directory names, over IDs that an agent framework or an
attacker could choose. THREAD_ID_FILTER names the program that speaks for the C module."""

import errno
import hashlib
import os
import re
import subprocess
import unicodedata

import pytest
from hypothesis import assume, example, given, settings, strategies as st

ID_MAX = 1024
NAME_MAX = 255
PLAIN = re.compile(rb"[A-Za-z0-9_-][A-Za-z0-9._-]*\Z")


class Filter:
    def __init__(self):
        self.process = subprocess.Popen([os.environ["THREAD_ID_FILTER"]], text=True, bufsize=1,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, what, data):
        self.process.stdin.write(f"{what} {data.hex()}\n")
        answer = self.process.stdout.readline()
        assert answer.endswith("\n"), "the filter ended"
        if answer.startswith("- "):
            return -int(answer[2:])
        return bytes.fromhex(answer)

    def name(self, thread_id):
        return self.ask("name", thread_id)

    def id(self, name):
        return self.ask("id", name)


@pytest.fixture(scope="module")
def mapping():
    filter = Filter()
    yield filter
    filter.process.stdin.close()
    assert filter.process.wait(timeout=10) == 0


PIECES = st.sampled_from([
    b".", b"..", b"/", b"//", b"~", b"%", b"%2F", b"%2f", b"\0", b"\n", b" ", b"a", b"A", b"-",
    b"_", b"caf\xc3\xa9", b"cafe\xcc\x81", "\N{SHIP}".encode(), b"\xff", b"\xc3", b"etc",
    b"~" + hashlib.sha256(b"x").hexdigest().encode(), b"a" * 190, b"/" * 63, b"b" * 64,
])
IDS = st.one_of(
    st.binary(min_size=1, max_size=ID_MAX),
    st.text(min_size=1, max_size=ID_MAX // 4).map(lambda t: t.encode("utf-8", "surrogatepass")),
    st.lists(PIECES, min_size=1, max_size=12).map(b"".join),
    st.from_regex(PLAIN, fullmatch=True),
    st.integers(180, 260).flatmap(lambda n: st.sampled_from([b"a" * n, b"a" * n + b"/",
                                                             b"/" * (n // 3) + b"a" * (n % 3)])),
).filter(lambda i: 1 <= len(i) <= ID_MAX)

thorough = settings(max_examples=400, deadline=None)


@thorough
@given(IDS)
@example(b".")
@example(b"..")
@example(b"../../etc")
@example(b"\0" * ID_MAX)
def test_names_are_safe_and_lead_back(mapping, thread_id):
    name = mapping.name(thread_id)
    assert 1 <= len(name) <= NAME_MAX
    assert not name.startswith(b".")
    assert b"/" not in name and b"\0" not in name
    name.decode("ascii")
    assert name.isascii() and re.fullmatch(rb"[A-Za-z0-9._%~-]+", name)
    if PLAIN.match(thread_id) and len(thread_id) <= NAME_MAX:
        assert name == thread_id
    back = mapping.id(name)
    if b"~" in name:
        assert back == -errno.ENODATA
        prefix, hash_text = name.split(b"~")
        assert hash_text.decode() == hashlib.sha256(thread_id).hexdigest()
        whole = mapping.id(prefix)
        assert thread_id.startswith(whole)
    else:
        assert back == thread_id


@thorough
@given(IDS, IDS)
def test_two_ids_have_two_names(mapping, one, other):
    assume(one != other)
    assert mapping.name(one) != mapping.name(other)


def variants(thread_id):
    """IDs that something careless could take for the same."""
    yield thread_id.swapcase()
    yield thread_id + b"/"
    yield b"/" + thread_id
    yield thread_id.replace(b"/", b"%2F")
    yield thread_id + b"\0"
    yield thread_id + b"."
    yield thread_id.rstrip(b" .")
    try:
        text = thread_id.decode()
    except UnicodeDecodeError:
        return
    for form in ("NFC", "NFD", "NFKC", "NFKD"):
        yield unicodedata.normalize(form, text).encode()
    yield text.casefold().encode()


@thorough
@given(IDS)
@example("Å".encode())
@example("ﬁ".encode())
@example(b"T/1")
def test_likenesses_stay_apart(mapping, thread_id):
    name = mapping.name(thread_id)
    for other in variants(thread_id):
        if other and other != thread_id and len(other) <= ID_MAX:
            assert mapping.name(other) != name


@thorough
@given(IDS, IDS)
def test_likenesses_of_names_stay_apart(mapping, thread_id, other):
    """The name of an ID, taken as an ID itself, has another name unless it is plain."""
    name = mapping.name(thread_id)
    if name != thread_id:
        assert mapping.name(name) != name


@thorough
@given(st.one_of(IDS, st.from_regex(rb"[a%~./][A-Za-z0-9%~.]{0,20}\Z"),
                 IDS.map(lambda i: i[:190] + b"~" + hashlib.sha256(i).hexdigest().encode())))
def test_only_names_of_ids_are_names(mapping, name):
    back = mapping.id(name)
    if isinstance(back, bytes):
        assert mapping.name(back) == name
    else:
        assert back in (-errno.EINVAL, -errno.ENODATA)
        if back == -errno.ENODATA:
            assert re.fullmatch(rb"[A-Za-z0-9_%-][A-Za-z0-9._%-]{187,189}~[0-9a-f]{64}", name)


def test_lengths_out_of_bounds(mapping):
    assert mapping.name(b"a" * (ID_MAX + 1)) == -errno.EINVAL
    assert mapping.name(b"") == -errno.EINVAL
    assert mapping.id(b"") == -errno.EINVAL
    assert mapping.id(b"a" * (NAME_MAX + 1)) == -errno.EINVAL

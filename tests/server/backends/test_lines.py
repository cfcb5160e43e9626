"""The newline splitter and the repair of lines (C-041, C-042, C-047, C-048)."""

from __future__ import annotations

import time

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.backends.acp_stdio.lines import LineSplitter, repaired
from server.backends.acp_stdio.messages import decode_envelope


def fed(splitter: LineSplitter, pieces: list[bytes]) -> list[bytes]:
    return [line for piece in pieces for line in splitter.feed(piece)]


@given(st.lists(st.binary().map(lambda b: b.replace(b"\n", b"").rstrip(b"\r"))), st.randoms(use_true_random=False))
def test_c_047_any_cut_gives_the_same_lines(lines: list[bytes], random: object) -> None:
    """C-047: three in one write, one in ten writes, CRLF: every line once, in order."""
    text = b"".join(line + (b"\r\n" if number % 2 else b"\n") for number, line in enumerate(lines))
    cuts = sorted(random.randrange(len(text) + 1) for _ in range(5))  # type: ignore[attr-defined]  # hypothesis' Random
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    splitter = LineSplitter()
    assert fed(splitter, pieces) == lines
    assert splitter.finish() == b""


def test_c_041_utf8_cut_after_every_byte() -> None:
    """C-041: characters split between reads arrive whole."""
    text = '{"t":"é漢🙂"}\n'.encode()
    lines = fed(LineSplitter(), [text[n : n + 1] for n in range(len(text))])
    assert [msgspec.json.decode(repaired(line)) for line in lines] == [{"t": "é漢🙂"}]


def test_c_042_only_lf_and_crlf_end_a_line() -> None:
    """C-042: U+2028, U+2029 and U+0085 are characters like any other."""
    text = '{"t":"a\u2028b\u2029c\u0085d"}'
    assert LineSplitter().feed(text.encode() + b"\n") == [text.encode()]
    assert repaired(text.encode()) == text.encode()


def test_unterminated_rest_is_given_back_at_the_end() -> None:
    """C-047: a last message without newline is not lost."""
    splitter = LineSplitter()
    assert splitter.feed(b"one\ntwo") == [b"one"]
    assert splitter.pending == 3
    assert splitter.finish() == b"two"


def test_overlong_line_is_dropped_and_counted() -> None:
    splitter = LineSplitter(limit=10)
    assert fed(splitter, [b"12345", b"678901", b"2345\nshort\n", b"x" * 11 + b"\n", b"ok\n"]) == [
        b"",
        b"short",
        b"x" * 11,
        b"ok",
    ]
    assert splitter.overlong == 1


def test_an_overlong_line_costs_no_memory() -> None:
    """C-069: garbage for ever without a newline stays within the limit."""
    splitter = LineSplitter(limit=1000)
    for _ in range(1000):
        splitter.feed(b"g" * 100)
        assert splitter.pending <= 1000


def test_long_lines_are_linear() -> None:
    """A 20 MiB line in 4 KiB pieces: far below what rescanning would take."""
    splitter = LineSplitter()
    begun = time.perf_counter()
    for _ in range(5 * 1024):
        splitter.feed(b"x" * 4096)
    (line,) = splitter.feed(b"\n")
    assert len(line) == 20 * 2**20
    assert time.perf_counter() - begun < 2


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (rb'"\ud83d"', '"\ufffd"'),
        (rb'"\ud83d\ude42"', '"🙂"'),
        (rb'"\uD83D\uDE42 \uDE42"', '"🙂 \ufffd"'),
        (rb'"\ud83d\ud83d\ude42"', '"\ufffd🙂"'),
        (rb'"\\ud83d"', '"\\\\ud83d"'),
        (rb'"\\\ud83d"', '"\\\\\ufffd"'),
        (b'"a\xffb"', '"a\ufffdb"'),
        (b'"\xed\xa0\xbd"', '"\ufffd\ufffd\ufffd"'),
        ('"é漢🙂"'.encode(), '"é漢🙂"'),
        (b"[1,\r2]", "[1,2]"),
    ],
)
def test_c_048_repaired_lines_decode_everywhere(given: bytes, expected: str) -> None:
    """C-048: a lone surrogate or broken UTF-8 becomes U+FFFD; a proper pair stays."""
    line = repaired(given)
    assert b"\r" not in line
    assert msgspec.json.decode(line) == msgspec.json.decode(expected)
    line.decode("utf-8")


@given(st.text())
def test_sound_json_text_is_not_touched(text: str) -> None:
    line = msgspec.json.encode(text.encode("utf-8", "replace").decode())
    assert repaired(line) == line


def test_envelope_leaves_params_as_text() -> None:
    """Zero re-encoding: white space, key order, unknown members and big numbers stay as the agent wrote them."""
    update = b'{ "sessionUpdate":"x_unknown", "n":123456789012345678901234567890,"b": [ 1 ] }'
    message = decode_envelope(b'{"method":"session/update","params":{"update":' + update + b',"sessionId":"s"}}')
    assert message.params is not None
    assert bytes(message.params["update"]) == update

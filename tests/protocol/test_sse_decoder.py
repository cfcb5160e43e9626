"""The event-stream parser: CLI-020, ACP-098, C-040 to C-043."""

from __future__ import annotations

import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.sse import SseDecoder, SseEvent, SseFramingError, acp_frame, comment_frame, rest_frame, retry_frame


def feed(*chunks: bytes) -> list[SseEvent]:
    decoder = SseDecoder()
    return [event for chunk in chunks for event in decoder.receive_data(chunk)]


def every_cut(stream: bytes) -> list[list[SseEvent]]:
    whole = [feed(stream)]
    halves = [feed(stream[:cut], stream[cut:]) for cut in range(len(stream) + 1)]
    return whole + halves + [feed(*(stream[i : i + 1] for i in range(len(stream))))]


def test_crlf_split_between_reads_is_one_line_end() -> None:
    """C-040."""
    assert feed(b"data: a\r", b"\ndata: b\r\n\r\n") == [SseEvent("a\nb")]
    for events in every_cut(b"data: a\r\ndata: b\r\n\r\n"):
        assert events == [SseEvent("a\nb")]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_every_line_end_cut_anywhere(end: bytes) -> None:
    """CLI-020: LF, CRLF and CR, split at any byte."""
    stream = end.join([b"id: 1", b"data: one", b"", b": hb", b"", b"id: 2", b"data: two", b"data: more", b"", b""])
    for events in every_cut(stream):
        assert events == [SseEvent("one", id="1"), SseEvent("two\nmore", id="2")]


def test_characters_split_between_reads() -> None:
    """C-041: no replacement character however a character is cut."""
    for events in every_cut('data: {"t":"é漢🙂"}\n\n'.encode()):
        assert events == [SseEvent('{"t":"é漢🙂"}')]


def test_only_cr_lf_and_crlf_end_a_line() -> None:
    """C-042: U+2028, U+2029, U+0085 and the ASCII separators are data."""
    text = "a\u2028b\u2029c\u0085d\x0b\x0c\x1c\x1d\x1ee"
    assert feed(f"data: {text}\n\n".encode()) == [SseEvent(text)]


def test_comments_unknown_fields_and_id_only_blocks() -> None:
    """C-043."""
    decoder = SseDecoder()
    assert decoder.receive_data(b": ping\n\nfoo: bar\n\nid: 7\n\n") == []
    assert decoder.last_event_id == "7"
    assert decoder.receive_data(b"data\n\n") == [SseEvent("")]
    assert decoder.receive_data(b'id: 8\ndata: {"k":1}\n\n') == [SseEvent('{"k":1}', id="8")]
    assert decoder.last_event_id == "8"


def test_an_event_without_id_does_not_inherit_one() -> None:
    """CLI-021: an id-less frame never carries the id of an earlier one."""
    assert feed(b"id: 4\ndata: a\n\ndata: b\n\n") == [SseEvent("a", id="4"), SseEvent("b")]


def test_byte_order_mark_is_dropped_once() -> None:
    """CLI-020: a leading BOM, even split, is no part of the first field; a later one is data."""
    for events in every_cut(b"\xef\xbb\xbfdata: a\n\n\xef\xbb\xbfdata: b\n\n"):
        assert events == [SseEvent("a")]


def test_one_leading_space_is_removed() -> None:
    """CLI-020."""
    assert feed(b"data:a\ndata:  b\ndata:\n\n") == [SseEvent("a\n b\n")]


def test_retry_needs_digits() -> None:
    """CLI-022: the hint is digits only; anything else leaves the old one."""
    decoder = SseDecoder()
    decoder.receive_data(b"retry: 1500\n\nretry: 1e9\n\nretry: -1\n\nretry: \n\nretry: 9999999999999999\n\n")
    assert decoder.retry == 1500


def test_an_id_with_a_null_is_ignored() -> None:
    """CLI-021: such a block has no cursor."""
    assert feed(b"id: 1\0\ndata: a\n\n") == [SseEvent("a")]


def test_the_guard_counts_bytes_without_an_event_end() -> None:
    """CLI-020: 16 MiB by default; the limit is what counts, in one line or in many."""
    for chunk in (b"x" * 40, b"data: 123456\n" * 4):
        decoder = SseDecoder(limit=30)
        with pytest.raises(SseFramingError):
            decoder.receive_data(chunk)
        with pytest.raises(SseFramingError):
            decoder.receive_data(b"\n\n")
        assert decoder.receive_eof() is None
    assert SseDecoder(limit=30).receive_data(b"data: 12345\n\n" * 100) == [SseEvent("12345")] * 100


def test_the_default_guard_is_16_mib() -> None:
    """CLI-020."""
    decoder = SseDecoder()
    decoder.receive_data(b"x" * (16 * 1024 * 1024))
    with pytest.raises(SseFramingError):
        decoder.receive_data(b"x")


def test_the_unterminated_rest_is_marked_and_moves_no_cursor() -> None:
    """CLI-020: REST parses it, /acp needs complete JSON; both need to know that it was unterminated."""
    decoder = SseDecoder()
    decoder.receive_data(b"id: 1\ndata: a\n\nid: 2\ndata: {}")
    assert decoder.receive_eof() == SseEvent("{}", id="2", terminated=False)
    assert decoder.last_event_id == "1"


def test_a_dangling_id_line_is_no_event() -> None:
    """ACP-096: the recorded daemon leaves one behind when it closes between the parts of a frame."""
    decoder = SseDecoder()
    decoder.receive_data(b"data: a\n\nid: 11\n")
    assert decoder.receive_eof() is None
    assert decoder.last_event_id is None


def test_dripping_input_stays_linear() -> None:
    """CLI-020: a megabyte byte by byte is a matter of a second, not of minutes."""
    decoder = SseDecoder()
    stream = b"data: " + b"x" * 300_000 + b"\n\n"
    begun = time.perf_counter()
    events = [event for i in range(len(stream)) for event in decoder.receive_data(stream[i : i + 1])]
    assert len(events) == 1
    assert time.perf_counter() - begun < 20


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=5))
def test_arbitrary_bytes_however_cut_mean_the_same(stream: bytes, cuts: list[int]) -> None:
    """CLI-020: no input raises anything but a framing error, and cutting changes nothing."""
    edges = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    pieces = [stream[a:b] for a, b in itertools.pairwise(edges)]
    assert feed(*pieces) == feed(stream)


@given(
    st.lists(st.tuples(st.none() | st.integers(0, 2**53 - 1), st.text(st.characters(exclude_characters="\r\n\0")))),
    st.integers(1, 7),
)
def test_what_the_encoder_writes_the_decoder_reads(frames: list[tuple[int | None, str]], size: int) -> None:
    """ACP-093, CLI-020: round trip."""
    stream = retry_frame(3000) + b"".join(
        acp_frame(t.encode(errors="replace"), n) + comment_frame("hb") for n, t in frames
    )
    events = feed(*(stream[i : i + size] for i in range(0, len(stream), size)))
    assert [(event.id, event.data) for event in events] == [
        (None if n is None else str(n), t.encode(errors="replace").decode()) for n, t in frames
    ]


def test_rest_frames_name_their_event() -> None:
    """REST-084."""
    assert feed(rest_frame(b"{}", "turn_complete", 7)) == [SseEvent("{}", "turn_complete", "7")]

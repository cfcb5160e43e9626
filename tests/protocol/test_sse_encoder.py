"""Frames as bytes: ACP-091 to ACP-093, REST-084, C-044."""

from __future__ import annotations

import msgspec
import pytest

from protocol.sse import acp_frame, comment_frame, rest_frame, retry_frame


def test_acp_frames() -> None:
    """ACP-093: id, data, blank line; no event line; no id unless given."""
    assert acp_frame(b"{}", 7) == b"id: 7\ndata: {}\n\n"
    assert acp_frame(b"{}") == b"data: {}\n\n"


def test_rest_frames() -> None:
    """REST-084: id, event, data, blank line."""
    assert rest_frame(b"{}", "session_update", 7) == b"id: 7\nevent: session_update\ndata: {}\n\n"
    assert rest_frame(b"{}", "replay_complete") == b"event: replay_complete\ndata: {}\n\n"


def test_comments_and_retry() -> None:
    """ACP-091, ACP-092, REST-084."""
    assert comment_frame("hb") == b": hb\n\n"
    assert retry_frame(3000) == b"retry: 3000\n\n"
    with pytest.raises(ValueError, match="negative"):
        retry_frame(-1)


def test_encoded_json_never_breaks_a_frame() -> None:
    """C-044: agent text with line ends stays inside one data line."""
    data = msgspec.json.encode({"text": "x\r\nevent: hack\rid: 999\n\ndata: {}\n\n"})
    assert acp_frame(data, 3).count(b"\n") == 3


@pytest.mark.parametrize("bad", [b"a\nb", b"a\rb"])
def test_a_raw_line_end_is_refused(bad: bytes) -> None:
    """C-044: what msgspec did not encode cannot forge a frame either."""
    with pytest.raises(ValueError, match="line end"):
        acp_frame(bad)
    with pytest.raises(ValueError, match="line end"):
        rest_frame(b"{}", bad.decode())
    with pytest.raises(ValueError, match="line end"):
        comment_frame(bad.decode())

"""Last-Event-ID and epoch values: ACP-110 to ACP-114, ACP-257."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.sse import MAX_EVENT_ID, parse_epoch, parse_last_event_id, sanitise_for_log


@pytest.mark.parametrize(
    ("value", "cursor"),
    [("0", 0), ("5", 5), ("003", 3), ("9007199254740991", MAX_EVENT_ID), ("0" * 5000 + "7", 7), ("000", 0)],
)
def test_accepted(value: str, cursor: int) -> None:
    """ACP-111."""
    assert parse_last_event_id(value) == cursor


@pytest.mark.parametrize(
    "value",
    [
        None,
        "",
        "-1",
        "+1",
        "1.0",
        "1e3",
        "0x10",
        " 1",
        "1 ",
        "1\n",
        "abc",
        "\u0663",
        "\uff15",
        "9007199254740992",
        "99999999999999999999",
        "9" * 10_000,
        "1,2",
        "1_0",
    ],
)
def test_refused(value: str | None) -> None:
    """ACP-112, ACP-113: the same as absent."""
    assert parse_last_event_id(value) is None


@given(st.text())
def test_never_raises(value: str) -> None:
    """ACP-112: a refused value is never an error."""
    cursor = parse_last_event_id(value)
    assert cursor is None or (value.isascii() and value.isdigit() and 0 <= cursor <= MAX_EVENT_ID)


@pytest.mark.parametrize("value", ["a", "Az09_-", "x" * 64, "ddd18c36-2a3c-4790-9766-958bf21e3521"])
def test_epoch_accepted(value: str) -> None:
    """ACP-114."""
    assert parse_epoch(value) == value


@pytest.mark.parametrize("value", [None, "", "x" * 65, "a b", "a\n", "é", "a.b"])
def test_epoch_refused(value: str | None) -> None:
    """ACP-114."""
    assert parse_epoch(value) is None


def test_sanitised_copies_are_clean_and_clipped() -> None:
    """ACP-112, ACP-257: control, bidi and zero-width characters removed, 64 characters."""
    dirty = "a\x00\x1b[31m\u202eb\u2066\u200b\u200d\ufeff\u2028c\r\n\x9b\u061c\ud800"
    assert sanitise_for_log(dirty) == "a[31mbc"
    assert sanitise_for_log("x" * 1_000_000) == "x" * 64
    assert sanitise_for_log("\u200b" * 10 + "y", limit=1) == "y"

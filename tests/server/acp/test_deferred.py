"""Replies that wait, and the counting of what waits: no clock, no session."""

from __future__ import annotations

import pytest

from server.routes.acp.buffers import Meter
from server.routes.acp.deferred import Replies, Reply


def replies(*watermarks: int) -> tuple[Replies, Meter]:
    meter = Meter(1000)
    queue = Replies(meter)
    for number, watermark in enumerate(watermarks):
        queue.push(Reply(b"%d" % number, watermark))
    return queue, meter


def texts(taken: list[Reply]) -> list[bytes]:
    return [each.message for each in taken]


def test_released_in_order_up_to_what_was_delivered() -> None:
    """ACP-136: a reply waits for the event it was made after."""
    queue, _ = replies(0, 3, 5)
    assert texts(queue.release(2)) == [b"0"]
    assert texts(queue.release(4)) == [b"1"]
    assert texts(queue.release(5)) == [b"2"]
    assert texts(queue.release(99)) == []


def test_an_older_reply_holds_up_the_younger_ones() -> None:
    """ACP-136: releases keep buffer order, also when a later one could go."""
    queue, _ = replies(5, 1)
    assert texts(queue.release(4)) == []
    assert texts(queue.release(5)) == [b"0", b"1"]


def test_what_was_not_confirmed_comes_back_first() -> None:
    """ACP-123: replies that were being written are re-queued, in front, in order."""
    queue, meter = replies(0, 0, 0)
    taken = queue.release(0)
    queue.push(Reply(b"late", 0))
    queue.confirm(taken[:1])
    queue.put_back(taken[1:])
    assert texts(queue.release(0)) == [b"1", b"2", b"late"]
    assert meter.frames == 3


def test_counted_until_confirmed() -> None:
    """ACP-131: what is being written still takes up memory."""
    queue, meter = replies(0, 0)
    taken = queue.release(0)
    assert (len(queue), meter.frames, meter.bytes) == (0, 2, 2)
    queue.confirm(taken)
    assert (meter.frames, meter.bytes) == (0, 0)


def test_confirmation_is_told_once() -> None:
    told: list[int] = []
    queue, _ = replies()
    queue.push(Reply(b"x", on_written=lambda: told.append(1)))
    taken = queue.release(0)
    assert told == []
    queue.confirm(taken)
    taken[0].on_written = None
    assert told == [1]


def test_drained_replies_are_not_counted_any_more() -> None:
    queue, meter = replies(1, 2)
    assert texts(queue.drain()) == [b"0", b"1"]
    assert (len(queue), meter.frames) == (0, 0)


def test_meters_count_upwards() -> None:
    """ACP-131: stream, connection and process each have their own bound."""
    process = Meter(3, 100)
    one, other = Meter(2, None, process), Meter(2, None, process)
    one.add(10)
    one.add(10)
    other.add(10)
    assert not any(each.exceeded for each in (one, other, process))
    other.add(60)
    assert process.exceeded
    assert not other.exceeded
    one.add(1)
    assert one.exceeded
    one.remove(1)
    other.remove(60)
    assert (process.frames, process.bytes) == (3, 30)


@pytest.mark.parametrize("size", [100, 101])
def test_bytes_are_bounded_too(size: int) -> None:
    """ACP-131."""
    meter = Meter(1000, 100)
    meter.add(size)
    assert meter.exceeded is (size > 100)

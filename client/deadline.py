"""Deadlines on calls. No call takes a timeout: whoever has one puts a scope around it, as usual in Trio."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import trio

from client.errors import DaemonTimeoutError

__all__ = ["limited"]


@contextlib.contextmanager
def limited(seconds: float, what: str) -> Iterator[None]:
    """Like ``trio.fail_after``, with an exception of ours. Infinity means no limit."""
    with trio.move_on_after(seconds) as scope:
        yield
    if scope.cancelled_caught:
        raise DaemonTimeoutError(f"{what}: no answer after {seconds:g} s")

"""Deadlines on calls. No call takes a timeout: whoever has one puts a scope around it, as usual in Trio."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

import trio

from client.errors import DaemonTimeoutError

__all__ = ["limited", "outlasting"]

T = TypeVar("T")


@contextlib.contextmanager
def limited(seconds: float, what: str) -> Iterator[None]:
    """Like ``trio.fail_after``, with an exception of ours. Infinity means no limit."""
    with trio.move_on_after(seconds) as scope:
        yield
    if scope.cancelled_caught:
        raise DaemonTimeoutError(f"{what}: no answer after {seconds:g} s")


async def outlasting(patience: Callable[[], float], call: Callable[[], Awaitable[T]]) -> T:
    """``await call()``, which a cancellation of the caller leaves ``patience()`` seconds to come to its end.

    If it brings a result, that is returned as if nothing had happened, and the caller's next checkpoint raises the
    cancellation. If it fails, or has to be cancelled too, the cancellation is raised here.
    """
    outcome: list[T | Exception] = []
    protected = trio.CancelScope(shield=True)

    async def watch() -> None:
        try:
            await trio.sleep_forever()
        except trio.Cancelled:  # noqa: ASYNC103 - it belongs to the caller, whose own task raises it
            protected.deadline = trio.current_time() + patience()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        with protected:
            try:
                outcome.append(await call())
            except Exception as exc:
                # Raised inside the nursery it would come out wrapped in a group.
                outcome.append(exc)
        # From here on only `watch` is waited for, and a cancellation must not make the outcome lost.
        nursery.cancel_scope.shield = True
        nursery.cancel_scope.cancel()
    if not outcome:
        await trio.sleep_forever()
    if isinstance(outcome[0], Exception):
        await trio.lowlevel.checkpoint_if_cancelled()
        raise outcome[0]
    return outcome[0]

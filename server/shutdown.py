"""The order in which the outside goes away: what everything that streams listens to."""

from __future__ import annotations

import trio

__all__ = ["Drain"]


class Drain:
    """Serving, then draining, then cut: each once and for all.

    Whoever learns first that the process is to end calls `begin`: the signal handler of ``moorline serve``, or the guard
    when the ASGI server stops listening (under the ``hypercorn`` command the application hears of it in no other way while
    connections are open). From then on nothing new is admitted, and the engine closes its sessions; readers still get what
    that brings. `cut` follows within seconds: every stream sends its last frame and ends, every WebSocket closes with 1012.
    """

    __slots__ = ("_began", "_cut", "_scopes")

    def __init__(self) -> None:
        self._began = trio.Event()
        self._cut = trio.Event()
        self._scopes: set[trio.CancelScope] = set()

    @property
    def begun(self) -> bool:
        return self._began.is_set()

    @property
    def is_cut(self) -> bool:
        return self._cut.is_set()

    def begin(self) -> None:
        """Synchronous and idempotent."""
        self._began.set()

    def cut(self) -> None:
        """Synchronous and idempotent; implies `begin`."""
        self._began.set()
        if self._cut.is_set():
            return
        self._cut.set()
        for scope in self._scopes:
            scope.cancel()

    async def wait_begun(self) -> None:
        await self._began.wait()

    async def wait_cut(self) -> None:
        """For what ends in good order by itself: a WebSocket's reader."""
        await self._cut.wait()

    def watch(self, scope: trio.CancelScope) -> None:
        """Cancel ``scope`` at the cut, at once if that has been. Pair with `unwatch` in a ``finally``.

        A set of scopes instead of a task per stream: a waiting stream costs no task for being told.
        """
        self._scopes.add(scope)
        if self._cut.is_set():
            scope.cancel()

    def unwatch(self, scope: trio.CancelScope) -> None:
        self._scopes.discard(scope)
